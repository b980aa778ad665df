/* What can be called or taken from a value: functions, attributes, methods, and the tests. */
#include <string.h>

#include "engine/base/assert.h"
#include "engine/text/jinja-internal.h"

/* --- functions -------------------------------------------------------------------------------- */

static const char *const functions[] = {"range", "namespace", "dict", "raise_exception",
                                        "strftime_now"};

gboolean
oct_jfunction_known(const char *name) {
  for (guint i = 0; i < G_N_ELEMENTS(functions); i++)
    if (strcmp(functions[i], name) == 0)
      return TRUE;
  return FALSE;
}

static oct_jvalue
call_range(oct_jrun *run, const oct_jargs *args) {
  gint64 bounds[3] = {0, 0, 1};
  for (guint i = 0; i < args->n && i < 3; i++) {
    if (args->values[i].kind != OCT_J_INT)
      return oct_jfail(run, OCT_TEXT_ERROR_TEMPLATE, "range of a %s",
                       oct_jkind_name(args->values[i]));
    bounds[args->n == 1 ? 1 : i] = args->values[i].integer;
  }
  if (args->n == 0 || args->n > 3 || bounds[2] == 0)
    return oct_jfail(run, OCT_TEXT_ERROR_TEMPLATE, "range takes 1 to 3 numbers, the step not 0");
  oct_jvalue list = oct_jlist_new(run, 0);
  for (gint64 i = bounds[0];
       (bounds[2] > 0 ? i < bounds[1] : i > bounds[1]) && oct_jburn(run, 1);) {
    oct_jlist_add(run, list.list, oct_jint(i));
    if (__builtin_add_overflow(i, bounds[2], &i))
      break;
  }
  return list;
}

static oct_jvalue
call_dict(oct_jrun *run, const oct_jargs *args, gboolean is_namespace) {
  oct_jvalue dict = oct_jdict_new(run, args->n_named);
  dict.dict->is_namespace = is_namespace;
  if (args->n == 1 && args->values[0].kind == OCT_J_DICT)
    for (gsize i = 0; i < args->values[0].dict->n && !run->failed; i++)
      oct_jdict_set(run, dict.dict, args->values[0].dict->keys[i], args->values[0].dict->values[i]);
  else if (args->n > 0)
    return oct_jfail(run, OCT_TEXT_ERROR_UNSUPPORTED, "dict() of other than a mapping");
  for (guint i = 0; i < args->n_named && !run->failed; i++)
    oct_jdict_set(run, dict.dict, oct_jtext(run, args->names[i], strlen(args->names[i]), 0),
                  args->named[i]);
  return dict;
}

/* The formats of strftime that templates use, in English and UTC. */
static oct_jvalue
call_strftime(oct_jrun *run, const oct_jargs *args) {
  static const char *const days[] = {"Monday", "Tuesday",  "Wednesday", "Thursday",
                                     "Friday", "Saturday", "Sunday"};
  static const char *const months[] = {"January",   "February", "March",    "April",
                                       "May",       "June",     "July",     "August",
                                       "September", "October",  "November", "December"};
  oct_jvalue pattern = oct_jarg(args, 0, "format", oct_jnone());
  g_autoptr(GDateTime) now = g_date_time_new_from_unix_utc(run->input->now_s);
  if (pattern.kind != OCT_J_STRING || now == NULL)
    return oct_jfail(run, OCT_TEXT_ERROR_TEMPLATE, "strftime_now takes a format");
  g_autoptr(GString) out = g_string_new(NULL);
  const oct_jstring *s = pattern.string;
  for (gsize i = 0; i < s->size; i++) {
    gboolean plain = s->bytes[i] != '%' || i + 1 == s->size;
    gboolean bare = !plain && s->bytes[i + 1] == '-' && i + 2 < s->size;
    char c = plain ? 0 : s->bytes[i += bare ? 2 : 1];
    int month = g_date_time_get_month(now), day = g_date_time_get_day_of_week(now);
    int hour = g_date_time_get_hour(now), hour12 = hour % 12 == 0 ? 12 : hour % 12;
    if (plain)
      g_string_append_c(out, s->bytes[i]);
    else if (c == 'Y')
      g_string_append_printf(out, "%d", g_date_time_get_year(now));
    else if (c == 'B' || c == 'b')
      g_string_append_len(out, months[month - 1], c == 'b' ? 3 : -1);
    else if (c == 'A' || c == 'a')
      g_string_append_len(out, days[day - 1], c == 'a' ? 3 : -1);
    else if (c == 'p')
      g_string_append(out, hour < 12 ? "AM" : "PM");
    else if (c == '%')
      g_string_append_c(out, '%');
    else if (strchr("dmyHIMSj", c) != NULL) {
      int value = c == 'd'   ? g_date_time_get_day_of_month(now)
                  : c == 'm' ? month
                  : c == 'y' ? g_date_time_get_year(now) % 100
                  : c == 'H' ? hour
                  : c == 'I' ? hour12
                  : c == 'M' ? g_date_time_get_minute(now)
                  : c == 'S' ? g_date_time_get_second(now)
                             : g_date_time_get_day_of_year(now);
      g_string_append_printf(out, "%0*d", bare ? 1 : c == 'j' ? 3 : 2, value);
    } else
      return oct_jfail(run, OCT_TEXT_ERROR_UNSUPPORTED, "strftime_now with '%%%c'", c);
  }
  return oct_jcopy(run, out->str, out->len, 0);
}

oct_jvalue
oct_jcall_function(oct_jrun *run, const char *name, const oct_jargs *args) {
  if (strcmp(name, "range") == 0)
    return call_range(run, args);
  if (strcmp(name, "namespace") == 0 || strcmp(name, "dict") == 0)
    return call_dict(run, args, *name == 'n');
  if (strcmp(name, "strftime_now") == 0)
    return call_strftime(run, args);
  oct_jvalue message = oct_jarg(args, 0, "message", oct_jnone());
  int size = message.kind == OCT_J_STRING ? (int)MIN(message.string->size, 1000u) : 0;
  return oct_jfail(run, OCT_TEXT_ERROR_TEMPLATE, "%.*s", size,
                   size > 0 ? message.string->bytes : "");
}

oct_jvalue
oct_jcall(oct_jrun *run, oct_jvalue function, const oct_jargs *args) {
  if (function.kind == OCT_J_MACRO)
    return oct_jcall_macro(run, function.macro, args);
  if (function.kind == OCT_J_FUNCTION)
    return oct_jcall_function(run, function.name, args);
  if (function.kind == OCT_J_METHOD)
    return oct_jcall_method(run, function.method, args);
  return oct_jfail(run, OCT_TEXT_ERROR_TEMPLATE, "a %s is called", oct_jkind_name(function));
}

/* --- attributes --------------------------------------------------------------------------------
 */

static oct_jvalue
loop_attr(oct_jrun *run, const oct_jloop *loop, const char *name) {
  gsize n = loop->items->n, i = loop->index0;
  if (strcmp(name, "index") == 0)
    return oct_jint((gint64)i + 1);
  if (strcmp(name, "index0") == 0)
    return oct_jint((gint64)i);
  if (strcmp(name, "revindex") == 0)
    return oct_jint((gint64)(n - i));
  if (strcmp(name, "revindex0") == 0)
    return oct_jint((gint64)(n - i) - 1);
  if (strcmp(name, "first") == 0)
    return oct_jbool(i == 0);
  if (strcmp(name, "last") == 0)
    return oct_jbool(i + 1 == n);
  if (strcmp(name, "length") == 0)
    return oct_jint((gint64)n);
  if (strcmp(name, "previtem") == 0)
    return i > 0 ? loop->items->items[i - 1] : oct_jundefined("loop.previtem");
  if (strcmp(name, "nextitem") == 0)
    return i + 1 < n ? loop->items->items[i + 1] : oct_jundefined("loop.nextitem");
  return oct_jfail(run, OCT_TEXT_ERROR_UNSUPPORTED, "the attribute 'loop.%s'", name);
}

/* Python's names; those outside of the subset are refused when they are called. */
static const char *const dict_methods[] = {"get",        "items",   "keys",    "values",
                                           "pop",        "update",  "clear",   "copy",
                                           "setdefault", "popitem", "fromkeys"};
static const char *const list_methods[] = {"append", "extend", "insert",  "pop",  "remove", "index",
                                           "count",  "sort",   "reverse", "copy", "clear"};

static gboolean
among(const char *name, const char *const *names, gsize n) {
  for (gsize i = 0; i < n; i++)
    if (strcmp(names[i], name) == 0)
      return TRUE;
  return FALSE;
}

oct_jvalue
oct_jget_attr(oct_jrun *run, oct_jvalue value, const char *name) {
  gboolean method = value.kind == OCT_J_STRING;
  if (value.kind == OCT_J_LOOP)
    return loop_attr(run, value.loop, name);
  if (value.kind == OCT_J_UNDEFINED)
    return oct_jfail(run, OCT_TEXT_ERROR_TEMPLATE, "'%s' is undefined, and '%s' of it is asked for",
                     value.name, name);
  if (value.kind == OCT_J_DICT && !value.dict->is_namespace)
    method = among(name, dict_methods, G_N_ELEMENTS(dict_methods));
  if (value.kind == OCT_J_LIST)
    method = among(name, list_methods, G_N_ELEMENTS(list_methods));
  if (method) {
    oct_jmethod *bound = oct_arena_alloc(&run->arena, sizeof *bound);
    oct_jvalue text = oct_jtext(run, name, strlen(name), 0);
    if (bound == NULL || run->failed)
      return oct_jfail(run, OCT_TEXT_ERROR_LIMIT, "the template takes too much memory");
    *bound = (oct_jmethod){.self = value, .name = text.string};
    return (oct_jvalue){.kind = OCT_J_METHOD, .method = bound};
  }
  if (value.kind == OCT_J_DICT) {
    const oct_jvalue *found = oct_jdict_get(run, value.dict, name, strlen(name));
    if (found != NULL)
      return *found;
  }
  return oct_jundefined(name);
}

/* --- tests --------------------------------------------------------------------------------------
 */

typedef enum oct_jtest_id {
  TEST_DEFINED,
  TEST_UNDEFINED,
  TEST_NONE,
  TEST_STRING,
  TEST_MAPPING,
  TEST_NUMBER,
  TEST_INTEGER,
  TEST_FLOAT,
  TEST_BOOLEAN,
  TEST_TRUE,
  TEST_FALSE,
  TEST_ITERABLE,
  TEST_SEQUENCE,
  TEST_CALLABLE,
  TEST_ODD,
  TEST_EVEN,
  TEST_DIVISIBLEBY,
  TEST_LOWER,
  TEST_UPPER,
  TEST_IN,
  TEST_SAMEAS,
  TEST_EQ,
  TEST_NE,
  TEST_GT,
  TEST_GE,
  TEST_LT,
  TEST_LE,
} oct_jtest_id;

static const struct {
  const char *name;
  oct_jtest_id id;
} tests[] = {{"defined", TEST_DEFINED},
             {"undefined", TEST_UNDEFINED},
             {"none", TEST_NONE},
             {"string", TEST_STRING},
             {"mapping", TEST_MAPPING},
             {"number", TEST_NUMBER},
             {"integer", TEST_INTEGER},
             {"float", TEST_FLOAT},
             {"boolean", TEST_BOOLEAN},
             {"true", TEST_TRUE},
             {"false", TEST_FALSE},
             {"iterable", TEST_ITERABLE},
             {"sequence", TEST_SEQUENCE},
             {"callable", TEST_CALLABLE},
             {"odd", TEST_ODD},
             {"even", TEST_EVEN},
             {"divisibleby", TEST_DIVISIBLEBY},
             {"lower", TEST_LOWER},
             {"upper", TEST_UPPER},
             {"in", TEST_IN},
             {"sameas", TEST_SAMEAS},
             {"equalto", TEST_EQ},
             {"eq", TEST_EQ},
             {"ne", TEST_NE},
             {"gt", TEST_GT},
             {"greaterthan", TEST_GT},
             {"ge", TEST_GE},
             {"lt", TEST_LT},
             {"lessthan", TEST_LT},
             {"le", TEST_LE}};

static int
find_test(const char *name) {
  for (guint i = 0; i < G_N_ELEMENTS(tests); i++)
    if (strcmp(tests[i].name, name) == 0)
      return (int)tests[i].id;
  return -1;
}

gboolean
oct_jtest_known(const char *name) {
  return find_test(name) >= 0;
}

static gboolean
cased(const oct_jstring *string, gboolean upper) {
  gboolean any = FALSE;
  for (gsize at = 0; at < string->size;
       at += oct_utf8_size(string->bytes + at, string->size - at)) {
    gunichar c = g_utf8_get_char(string->bytes + at);
    if (upper ? g_unichar_islower(c) : g_unichar_isupper(c))
      return FALSE;
    any = any || (upper ? g_unichar_isupper(c) : g_unichar_islower(c));
  }
  return any;
}

static gboolean
test_number(oct_jrun *run, oct_jtest_id id, oct_jvalue value, oct_jvalue other) {
  gint64 by = id == TEST_DIVISIBLEBY ? (other.kind == OCT_J_INT ? other.integer : 0) : 2;
  if (value.kind != OCT_J_INT || by == 0 || by == -1) {
    oct_jfail(run, OCT_TEXT_ERROR_TEMPLATE, "a test of numbers on a %s", oct_jkind_name(value));
    return FALSE;
  }
  return (value.integer % by == 0) == (id != TEST_ODD);
}

static gboolean
test_order(oct_jrun *run, oct_jtest_id id, oct_jvalue value, oct_jvalue other) {
  int order = oct_jcompare(run, value, other);
  return id == TEST_GT   ? order > 0
         : id == TEST_GE ? order >= 0
         : id == TEST_LT ? order < 0
                         : order <= 0;
}

gboolean
oct_jtest(oct_jrun *run, const char *name, oct_jvalue value, const oct_jargs *args) {
  oct_jkind kind = value.kind;
  oct_jvalue other = oct_jarg(args, 0, "other", oct_jundefined("a test's argument"));
  oct_jtest_id id = (oct_jtest_id)find_test(name);
  gboolean number = kind == OCT_J_INT || kind == OCT_J_FLOAT || kind == OCT_J_BOOL;
  switch (id) {
  case TEST_DEFINED:
  case TEST_UNDEFINED:
    return (kind == OCT_J_UNDEFINED) == (id == TEST_UNDEFINED);
  case TEST_NONE:
    return kind == OCT_J_NONE;
  case TEST_STRING:
    return kind == OCT_J_STRING;
  case TEST_MAPPING:
    return kind == OCT_J_DICT && !value.dict->is_namespace;
  case TEST_NUMBER:
    return number;
  case TEST_INTEGER:
    return kind == OCT_J_INT;
  case TEST_FLOAT:
    return kind == OCT_J_FLOAT;
  case TEST_BOOLEAN:
    return kind == OCT_J_BOOL;
  case TEST_TRUE:
  case TEST_FALSE:
    return kind == OCT_J_BOOL && value.boolean == (id == TEST_TRUE);
  case TEST_ITERABLE:
    return kind == OCT_J_STRING || kind == OCT_J_LIST || kind == OCT_J_UNDEFINED ||
           (kind == OCT_J_DICT && !value.dict->is_namespace);
  case TEST_SEQUENCE:
    return kind == OCT_J_STRING || kind == OCT_J_LIST || kind == OCT_J_UNDEFINED ||
           (kind == OCT_J_DICT && !value.dict->is_namespace);
  case TEST_CALLABLE:
    return kind == OCT_J_MACRO || kind == OCT_J_METHOD || kind == OCT_J_FUNCTION;
  case TEST_ODD:
  case TEST_EVEN:
  case TEST_DIVISIBLEBY:
    return test_number(run, id, value, other);
  case TEST_LOWER:
  case TEST_UPPER:
    return kind == OCT_J_STRING && cased(value.string, id == TEST_UPPER);
  case TEST_IN:
    return oct_jcontains(run, other, value);
  case TEST_SAMEAS:
    return kind == other.kind && oct_jequal(run, value, other, 0);
  case TEST_EQ:
  case TEST_NE:
    return oct_jequal(run, value, other, 0) == (id == TEST_EQ);
  case TEST_GT:
  case TEST_GE:
  case TEST_LT:
  case TEST_LE:
    return test_order(run, id, value, other);
  default:
    oct_assert(FALSE);
    return FALSE;
  }
}
