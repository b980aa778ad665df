/* The filters. Each takes the value on its left and its arguments. */
#include <math.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/text/jinja-internal.h"

typedef oct_jvalue (*oct_jfilter_call)(oct_jrun *run, oct_jvalue value, const oct_jargs *args);

/* The value as a string, as Jinja's soft_str() makes one of anything. */
static const oct_jstring *
as_string(oct_jrun *run, oct_jvalue value) {
  if (value.kind == OCT_J_STRING)
    return value.string;
  oct_jbuilder *builder = oct_jbuild_begin(run);
  if (builder == NULL)
    return oct_jempty().string;
  oct_jbuild_value(run, builder, value);
  return oct_jbuild_end(run, builder).string;
}

static oct_jvalue
wrong(oct_jrun *run, const char *filter, oct_jvalue value) {
  return oct_jfail(run, OCT_TEXT_ERROR_TEMPLATE, "filter %s on a %s", filter,
                   oct_jkind_name(value));
}

static oct_jvalue
filter_tojson(oct_jrun *run, oct_jvalue value, const oct_jargs *args) {
  oct_jjson style = {.indent = -1};
  oct_jvalue ascii = oct_jarg(args, 0, "ensure_ascii", oct_jbool(FALSE));
  oct_jvalue indent = oct_jarg(args, 1, "indent", oct_jnone());
  oct_jvalue separators = oct_jarg(args, 2, "separators", oct_jnone());
  style.ascii = oct_jtrue(ascii);
  style.sorted = oct_jtrue(oct_jarg(args, 3, "sort_keys", oct_jbool(FALSE)));
  if (indent.kind == OCT_J_INT)
    style.indent = (int)CLAMP(indent.integer, 0, 64);
  if (separators.kind == OCT_J_LIST && separators.list->n == 2 &&
      separators.list->items[0].kind == OCT_J_STRING &&
      separators.list->items[1].kind == OCT_J_STRING) {
    style.item = separators.list->items[0].string;
    style.key = separators.list->items[1].string;
  }
  oct_jbuilder *builder = oct_jbuild_begin(run);
  if (builder != NULL)
    oct_jbuild_json(run, builder, value, &style, 0);
  return oct_jbuild_end(run, builder);
}

static oct_jvalue
filter_trim(oct_jrun *run, oct_jvalue value, const oct_jargs *args) {
  return oct_jtrim(run, as_string(run, value), args);
}

static oct_jvalue
filter_length(oct_jrun *run, oct_jvalue value, const oct_jargs *args) {
  (void)args;
  gssize n = oct_jlength(value);
  return n < 0 ? wrong(run, "length", value) : oct_jint(n);
}

static oct_jvalue
filter_upper(oct_jrun *run, oct_jvalue value, const oct_jargs *args) {
  (void)args;
  return oct_jcase(run, as_string(run, value), 'u');
}

static oct_jvalue
filter_lower(oct_jrun *run, oct_jvalue value, const oct_jargs *args) {
  (void)args;
  return oct_jcase(run, as_string(run, value), 'l');
}

static oct_jvalue
filter_title(oct_jrun *run, oct_jvalue value, const oct_jargs *args) {
  (void)args;
  return oct_jcase(run, as_string(run, value), 't');
}

static oct_jvalue
filter_capitalize(oct_jrun *run, oct_jvalue value, const oct_jargs *args) {
  (void)args;
  return oct_jcase(run, as_string(run, value), 'c');
}

/* item.a.b, as attribute="a.b" asks for it. */
static oct_jvalue
attribute_of(oct_jrun *run, oct_jvalue item, oct_jvalue attribute) {
  if (attribute.kind == OCT_J_INT)
    return oct_jget_item(run, item, attribute);
  if (attribute.kind != OCT_J_STRING)
    return item;
  g_autofree char *path = g_strndup(attribute.string->bytes, attribute.string->size);
  g_auto(GStrv) parts = g_strsplit(path, ".", 8);
  for (guint i = 0; parts[i] != NULL && !run->failed; i++) {
    oct_jvalue key = oct_jcopy(run, parts[i], strlen(parts[i]), 0);
    if (g_ascii_isdigit(parts[i][0]))
      key = oct_jint(g_ascii_strtoll(parts[i], NULL, 10));
    item = oct_jget_item(run, item, key);
  }
  return item;
}

static oct_jvalue
filter_join(oct_jrun *run, oct_jvalue value, const oct_jargs *args) {
  oct_jvalue by = oct_jarg(args, 0, "d", oct_jempty());
  oct_jvalue attribute = oct_jarg(args, 1, "attribute", oct_jnone());
  oct_jlist *items = oct_jitems(run, value);
  if (attribute.kind != OCT_J_NONE) {
    oct_jvalue list = oct_jlist_new(run, items->n);
    for (gsize i = 0; i < items->n && !run->failed; i++)
      oct_jlist_add(run, list.list, attribute_of(run, items->items[i], attribute));
    items = list.list;
  }
  return oct_jjoin(run, items, as_string(run, by));
}

static oct_jvalue
filter_replace(oct_jrun *run, oct_jvalue value, const oct_jargs *args) {
  oct_jvalue from = oct_jarg(args, 0, "old", oct_jnone()),
             to = oct_jarg(args, 1, "new", oct_jnone());
  oct_jvalue most = oct_jarg(args, 2, "count", oct_jint(-1));
  return oct_jreplace(run, as_string(run, value), as_string(run, from), as_string(run, to),
                      most.kind == OCT_J_INT ? most.integer : -1);
}

static oct_jvalue
filter_default(oct_jrun *run, oct_jvalue value, const oct_jargs *args) {
  (void)run;
  gboolean falsy = oct_jtrue(oct_jarg(args, 1, "boolean", oct_jbool(FALSE)));
  gboolean missing = value.kind == OCT_J_UNDEFINED || (falsy && !oct_jtrue(value));
  return missing ? oct_jarg(args, 0, "default_value", oct_jempty()) : value;
}

static oct_jvalue
filter_first(oct_jrun *run, oct_jvalue value, const oct_jargs *args) {
  (void)args;
  const oct_jlist *items = oct_jitems(run, value);
  return items->n > 0 ? items->items[0] : oct_jundefined("the first item");
}

static oct_jvalue
filter_last(oct_jrun *run, oct_jvalue value, const oct_jargs *args) {
  (void)args;
  const oct_jlist *items = oct_jitems(run, value);
  return items->n > 0 ? items->items[items->n - 1] : oct_jundefined("the last item");
}

static oct_jvalue
copy_of(oct_jrun *run, const oct_jlist *items) {
  oct_jvalue list = oct_jlist_new(run, items->n);
  for (gsize i = 0; i < items->n && oct_jburn(run, 1); i++)
    oct_jlist_add(run, list.list, items->items[i]);
  return list;
}

static oct_jvalue
filter_list(oct_jrun *run, oct_jvalue value, const oct_jargs *args) {
  (void)args;
  return copy_of(run, oct_jitems(run, value));
}

static oct_jvalue
filter_string(oct_jrun *run, oct_jvalue value, const oct_jargs *args) {
  (void)args;
  return (oct_jvalue){.kind = OCT_J_STRING, .string = as_string(run, value)};
}

static oct_jvalue
filter_int(oct_jrun *run, oct_jvalue value, const oct_jargs *args) {
  (void)run;
  oct_jvalue standard = oct_jarg(args, 0, "default", oct_jint(0));
  if (value.kind == OCT_J_BOOL)
    return oct_jint(value.boolean);
  if (value.kind == OCT_J_INT)
    return value;
  double real = value.kind == OCT_J_FLOAT ? value.real : NAN;
  if (value.kind == OCT_J_STRING) {
    g_autofree char *text = g_strstrip(g_strndup(value.string->bytes, value.string->size));
    char *end;
    gint64 whole = g_ascii_strtoll(text, &end, 10);
    if (*text != 0 && *end == 0)
      return oct_jint(whole);
    real = g_ascii_strtod(text, &end);
    if (*text == 0 || *end != 0)
      real = NAN;
  }
  return real > -9e18 && real < 9e18 ? oct_jint((gint64)real) : standard;
}

static oct_jvalue
filter_float(oct_jrun *run, oct_jvalue value, const oct_jargs *args) {
  (void)run;
  oct_jvalue standard = oct_jarg(args, 0, "default", oct_jfloat(0));
  if (value.kind == OCT_J_BOOL || value.kind == OCT_J_INT || value.kind == OCT_J_FLOAT)
    return oct_jfloat(oct_jnumber(value));
  if (value.kind != OCT_J_STRING)
    return standard;
  g_autofree char *text = g_strstrip(g_strndup(value.string->bytes, value.string->size));
  char *end;
  double real = g_ascii_strtod(text, &end);
  return *text == 0 || *end != 0 ? standard : oct_jfloat(real);
}

static oct_jvalue
filter_items(oct_jrun *run, oct_jvalue value, const oct_jargs *args) {
  (void)args;
  if (value.kind == OCT_J_UNDEFINED)
    return oct_jlist_new(run, 0);
  if (value.kind != OCT_J_DICT || value.dict->is_namespace)
    return wrong(run, "items", value);
  return oct_jdict_items(run, value.dict);
}

/* --- sorting ------------------------------------------------------------------------------------
 */

/* What two items are compared by: an attribute, strings without regard to case. */
static oct_jvalue
sort_key(oct_jrun *run, oct_jvalue item, oct_jvalue attribute, gboolean case_sensitive) {
  oct_jvalue key = attribute_of(run, item, attribute);
  return key.kind == OCT_J_STRING && !case_sensitive ? oct_jcase(run, key.string, 'l') : key;
}

/* Merge sort: stable, without recursion; items and keys move together. */
static void
sort_items(oct_jrun *run, oct_jvalue *items, oct_jvalue *keys, gsize n, gboolean reverse) {
  g_autofree oct_jvalue *other = g_new(oct_jvalue, MAX(n, 1u)),
                        *other_keys = g_new(oct_jvalue, MAX(n, 1u));
  for (gsize width = 1; width < n && oct_jburn(run, n); width *= 2) {
    for (gsize begin = 0; begin < n; begin += 2 * width) {
      gsize middle = MIN(begin + width, n), end = MIN(begin + 2 * width, n), a = begin, b = middle;
      for (gsize to = begin; to < end; to++) {
        gboolean left = b >= end;
        if (!left && a < middle) {
          int order = oct_jcompare(run, keys[a], keys[b]);
          left = reverse ? order >= 0 : order <= 0;
        }
        gsize from = left ? a++ : b++;
        other[to] = items[from];
        other_keys[to] = keys[from];
      }
    }
    memcpy(items, other, n * sizeof *items);
    memcpy(keys, other_keys, n * sizeof *keys);
  }
}

static oct_jvalue
filter_sort(oct_jrun *run, oct_jvalue value, const oct_jargs *args) {
  gboolean reverse = oct_jtrue(oct_jarg(args, 0, "reverse", oct_jbool(FALSE)));
  gboolean cased = oct_jtrue(oct_jarg(args, 1, "case_sensitive", oct_jbool(FALSE)));
  oct_jvalue attribute = oct_jarg(args, 2, "attribute", oct_jnone());
  oct_jvalue list = copy_of(run, oct_jitems(run, value)), keys = oct_jlist_new(run, list.list->n);
  for (gsize i = 0; i < list.list->n && !run->failed; i++)
    oct_jlist_add(run, keys.list, sort_key(run, list.list->items[i], attribute, cased));
  if (!run->failed)
    sort_items(run, list.list->items, keys.list->items, list.list->n, reverse);
  return list;
}

static oct_jvalue
filter_dictsort(oct_jrun *run, oct_jvalue value, const oct_jargs *args) {
  gboolean cased = oct_jtrue(oct_jarg(args, 0, "case_sensitive", oct_jbool(FALSE)));
  oct_jvalue by = oct_jarg(args, 1, "by", oct_jnone());
  gboolean reverse = oct_jtrue(oct_jarg(args, 2, "reverse", oct_jbool(FALSE)));
  gint64 place = by.kind == OCT_J_STRING && oct_jis(by.string, "value");
  if (value.kind != OCT_J_DICT)
    return wrong(run, "dictsort", value);
  oct_jvalue list = oct_jdict_items(run, value.dict), keys = oct_jlist_new(run, list.list->n);
  for (gsize i = 0; i < list.list->n && !run->failed; i++)
    oct_jlist_add(run, keys.list, sort_key(run, list.list->items[i], oct_jint(place), cased));
  if (!run->failed)
    sort_items(run, list.list->items, keys.list->items, list.list->n, reverse);
  return list;
}

static oct_jvalue
filter_unique(oct_jrun *run, oct_jvalue value, const oct_jargs *args) {
  gboolean cased = oct_jtrue(oct_jarg(args, 0, "case_sensitive", oct_jbool(FALSE)));
  oct_jvalue attribute = oct_jarg(args, 1, "attribute", oct_jnone());
  const oct_jlist *items = oct_jitems(run, value);
  oct_jvalue list = oct_jlist_new(run, 0), keys = oct_jlist_new(run, 0);
  for (gsize i = 0; i < items->n && !run->failed; i++) {
    oct_jvalue key = sort_key(run, items->items[i], attribute, cased);
    if (oct_jcontains(run, keys, key))
      continue;
    oct_jlist_add(run, keys.list, key);
    oct_jlist_add(run, list.list, items->items[i]);
  }
  return list;
}

static oct_jvalue
filter_reverse(oct_jrun *run, oct_jvalue value, const oct_jargs *args) {
  (void)args;
  const oct_jlist *items = oct_jitems(run, value);
  oct_jvalue list = oct_jlist_new(run, items->n);
  for (gsize i = items->n; i > 0 && oct_jburn(run, 1); i--)
    oct_jlist_add(run, list.list, items->items[i - 1]);
  return value.kind == OCT_J_STRING ? oct_jjoin(run, list.list, oct_jempty().string) : list;
}

/* --- choosing -----------------------------------------------------------------------------------
 */

static oct_jvalue
filter_map(oct_jrun *run, oct_jvalue value, const oct_jargs *args) {
  oct_jvalue attribute = oct_jarg(args, G_MAXUINT, "attribute", oct_jnone());
  oct_jvalue standard = oct_jarg(args, G_MAXUINT, "default", oct_jnone());
  const oct_jlist *items = oct_jitems(run, value);
  oct_jvalue list = oct_jlist_new(run, items->n);
  g_autofree char *name =
      args->n > 0 && args->values[0].kind == OCT_J_STRING
          ? g_strndup(args->values[0].string->bytes, args->values[0].string->size)
          : NULL;
  if (attribute.kind == OCT_J_NONE && (name == NULL || !oct_jfilter_known(name)))
    return oct_jfail(run, OCT_TEXT_ERROR_UNSUPPORTED, "map with the filter '%s'",
                     name == NULL ? "" : name);
  oct_jargs rest = {.values = args->values == NULL ? NULL : args->values + 1,
                    .n = args->n > 0 ? args->n - 1 : 0};
  for (gsize i = 0; i < items->n && oct_jburn(run, 1); i++) {
    oct_jvalue item = attribute.kind != OCT_J_NONE ? attribute_of(run, items->items[i], attribute)
                                                   : oct_jfilter(run, name, items->items[i], &rest);
    if (item.kind == OCT_J_UNDEFINED && standard.kind != OCT_J_NONE)
      item = standard;
    oct_jlist_add(run, list.list, item);
  }
  return list;
}

/* select, reject and their kin for attributes: `by_attribute`, and which outcome stays. */
static oct_jvalue
choose(oct_jrun *run, oct_jvalue value, const oct_jargs *args, gboolean by_attribute,
       gboolean keep) {
  guint first = by_attribute ? 1 : 0;
  oct_jvalue attribute = by_attribute ? oct_jarg(args, 0, NULL, oct_jnone()) : oct_jnone();
  oct_jvalue test = oct_jarg(args, first, NULL, oct_jnone());
  g_autofree char *name =
      test.kind == OCT_J_STRING ? g_strndup(test.string->bytes, test.string->size) : NULL;
  static const char *const signs[][2] = {{"==", "eq"}, {"!=", "ne"}, {">", "gt"},
                                         {">=", "ge"}, {"<", "lt"},  {"<=", "le"}};
  for (guint i = 0; name != NULL && i < G_N_ELEMENTS(signs); i++)
    if (strcmp(name, signs[i][0]) == 0) {
      g_free(name);
      name = g_strdup(signs[i][1]);
    }
  if (name != NULL && !oct_jtest_known(name))
    return oct_jfail(run, OCT_TEXT_ERROR_UNSUPPORTED, "the test '%s'", name);
  guint skip = MIN(first + 1, args->n);
  oct_jargs rest = {.values = args->values == NULL ? NULL : args->values + skip,
                    .n = args->n - skip};
  const oct_jlist *items = oct_jitems(run, value);
  oct_jvalue list = oct_jlist_new(run, 0);
  for (gsize i = 0; i < items->n && oct_jburn(run, 1); i++) {
    oct_jvalue item = attribute_of(run, items->items[i], attribute);
    gboolean holds = name == NULL ? oct_jtrue(item) : oct_jtest(run, name, item, &rest);
    if (holds == keep)
      oct_jlist_add(run, list.list, items->items[i]);
  }
  return list;
}

static oct_jvalue
filter_select(oct_jrun *run, oct_jvalue value, const oct_jargs *args) {
  return choose(run, value, args, FALSE, TRUE);
}

static oct_jvalue
filter_reject(oct_jrun *run, oct_jvalue value, const oct_jargs *args) {
  return choose(run, value, args, FALSE, FALSE);
}

static oct_jvalue
filter_selectattr(oct_jrun *run, oct_jvalue value, const oct_jargs *args) {
  return choose(run, value, args, TRUE, TRUE);
}

static oct_jvalue
filter_rejectattr(oct_jrun *run, oct_jvalue value, const oct_jargs *args) {
  return choose(run, value, args, TRUE, FALSE);
}

/* --- numbers and layout --------------------------------------------------------------------------
 */

static oct_jvalue
filter_abs(oct_jrun *run, oct_jvalue value, const oct_jargs *args) {
  (void)args;
  if (value.kind == OCT_J_FLOAT)
    return oct_jfloat(fabs(value.real));
  if (value.kind != OCT_J_INT || value.integer == G_MININT64)
    return wrong(run, "abs", value);
  return oct_jint(ABS(value.integer));
}

static oct_jvalue
filter_round(oct_jrun *run, oct_jvalue value, const oct_jargs *args) {
  oct_jvalue precision = oct_jarg(args, 0, "precision", oct_jint(0));
  oct_jvalue method = oct_jarg(args, 1, "method", oct_jnone());
  if (value.kind != OCT_J_INT && value.kind != OCT_J_FLOAT)
    return wrong(run, "round", value);
  if (precision.kind != OCT_J_INT || ABS(precision.integer) > 15)
    return wrong(run, "round", precision);
  double scale = pow(10, (double)precision.integer), x = oct_jnumber(value);
  if (method.kind == OCT_J_STRING && oct_jis(method.string, "ceil"))
    return oct_jfloat(ceil(x * scale) / scale);
  if (method.kind == OCT_J_STRING && oct_jis(method.string, "floor"))
    return oct_jfloat(floor(x * scale) / scale);
  char text[64];
  g_snprintf(text, sizeof text, "%.*f", (int)MAX(precision.integer, 0), x);
  return oct_jfloat(precision.integer < 0 ? rint(x * scale) / scale : g_ascii_strtod(text, NULL));
}

static oct_jvalue
filter_sum(oct_jrun *run, oct_jvalue value, const oct_jargs *args) {
  oct_jvalue attribute = oct_jarg(args, 0, "attribute", oct_jnone());
  oct_jvalue total = oct_jarg(args, 1, "start", oct_jint(0));
  const oct_jlist *items = oct_jitems(run, value);
  for (gsize i = 0; i < items->n && !run->failed; i++)
    total = oct_jbinary(run, "+", total, attribute_of(run, items->items[i], attribute));
  return total;
}

static oct_jvalue
extreme(oct_jrun *run, oct_jvalue value, gboolean largest) {
  const oct_jlist *items = oct_jitems(run, value);
  oct_jvalue best = items->n > 0 ? items->items[0] : oct_jundefined("min or max of nothing");
  for (gsize i = 1; i < items->n && !run->failed; i++) {
    int order = oct_jcompare(run, items->items[i], best);
    if (largest ? order > 0 : order < 0)
      best = items->items[i];
  }
  return best;
}

static oct_jvalue
filter_min(oct_jrun *run, oct_jvalue value, const oct_jargs *args) {
  (void)args;
  return extreme(run, value, FALSE);
}

static oct_jvalue
filter_max(oct_jrun *run, oct_jvalue value, const oct_jargs *args) {
  (void)args;
  return extreme(run, value, TRUE);
}

static oct_jvalue
filter_indent(oct_jrun *run, oct_jvalue value, const oct_jargs *args) {
  oct_jvalue width = oct_jarg(args, 0, "width", oct_jint(4));
  gboolean first = oct_jtrue(oct_jarg(args, 1, "first", oct_jbool(FALSE)));
  gboolean blank = oct_jtrue(oct_jarg(args, 2, "blank", oct_jbool(FALSE)));
  const oct_jstring *s = as_string(run, value), *by = NULL;
  oct_jbuilder *builder = oct_jbuild_begin(run);
  gint64 spaces = width.kind == OCT_J_INT ? CLAMP(width.integer, 0, 1000) : 0;
  if (width.kind == OCT_J_STRING)
    by = width.string;
  gsize at = 0;
  for (gboolean begin = TRUE; builder != NULL && at < s->size && !run->failed; begin = FALSE) {
    const char *newline = memchr(s->bytes + at, '\n', s->size - at);
    gsize end = newline == NULL ? s->size : (gsize)(newline - s->bytes) + 1;
    gboolean is_blank = s->bytes[at] == '\n';
    if (begin ? first : (blank || !is_blank)) {
      for (gint64 i = 0; by == NULL && i < spaces; i++)
        oct_jbuild_bytes(run, builder, " ", 1, 0);
      if (by != NULL)
        oct_jbuild_part(run, builder, by, 0, by->size);
    }
    oct_jbuild_part(run, builder, s, at, end);
    at = end;
  }
  return oct_jbuild_end(run, builder);
}

static oct_jvalue
filter_safe(oct_jrun *run, oct_jvalue value, const oct_jargs *args) {
  return filter_string(run, value, args);
}

static oct_jvalue
filter_escape(oct_jrun *run, oct_jvalue value, const oct_jargs *args) {
  static const char special[] = "&<>\"'";
  static const char *const names[] = {"&amp;", "&lt;", "&gt;", "&#34;", "&#39;"};
  (void)args;
  const oct_jstring *s = as_string(run, value);
  oct_jbuilder *builder = oct_jbuild_begin(run);
  for (gsize i = 0; builder != NULL && i < s->size && !run->failed; i++) {
    const char *hit = s->bytes[i] == 0 ? NULL : strchr(special, s->bytes[i]);
    guint8 mark = s->marks == NULL ? s->mark : s->marks[i];
    if (hit != NULL)
      oct_jbuild_bytes(run, builder, names[hit - special], strlen(names[hit - special]), mark);
    else
      oct_jbuild_part(run, builder, s, i, i + 1);
  }
  return oct_jbuild_end(run, builder);
}

static const struct {
  const char *name;
  oct_jfilter_call call;
} filters[] = {
    {"abs", filter_abs},
    {"capitalize", filter_capitalize},
    {"count", filter_length},
    {"d", filter_default},
    {"default", filter_default},
    {"dictsort", filter_dictsort},
    {"e", filter_escape},
    {"escape", filter_escape},
    {"first", filter_first},
    {"float", filter_float},
    {"indent", filter_indent},
    {"int", filter_int},
    {"items", filter_items},
    {"join", filter_join},
    {"last", filter_last},
    {"length", filter_length},
    {"list", filter_list},
    {"lower", filter_lower},
    {"map", filter_map},
    {"max", filter_max},
    {"min", filter_min},
    {"reject", filter_reject},
    {"rejectattr", filter_rejectattr},
    {"replace", filter_replace},
    {"reverse", filter_reverse},
    {"round", filter_round},
    {"safe", filter_safe},
    {"select", filter_select},
    {"selectattr", filter_selectattr},
    {"sort", filter_sort},
    {"string", filter_string},
    {"sum", filter_sum},
    {"title", filter_title},
    {"tojson", filter_tojson},
    {"trim", filter_trim},
    {"unique", filter_unique},
    {"upper", filter_upper},
};

static oct_jfilter_call
find_filter(const char *name) {
  for (guint i = 0; i < G_N_ELEMENTS(filters); i++)
    if (strcmp(filters[i].name, name) == 0)
      return filters[i].call;
  return NULL;
}

gboolean
oct_jfilter_known(const char *name) {
  return find_filter(name) != NULL;
}

oct_jvalue
oct_jfilter(oct_jrun *run, const char *name, oct_jvalue value, const oct_jargs *args) {
  if (run->calls >= OCT_TEMPLATE_CALLS_MAX)
    return oct_jfail(run, OCT_TEXT_ERROR_LIMIT, "filters nest too deeply");
  run->calls++;
  oct_jvalue result = find_filter(name)(run, value, args);
  run->calls--;
  return result;
}
