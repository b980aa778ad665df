/* Methods of strings, mappings and lists. Sandboxed as in transformers: nothing changes a value. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* memmem() */
#endif
#include <string.h>

#include "engine/base/assert.h"
#include "engine/text/jinja-internal.h"

static const oct_jstring empty = {.bytes = ""};

/* The argument as a string; NULL when it is not given or None, failed when it is of another kind.
 */
static const oct_jstring *
string_arg(oct_jrun *run, const oct_jargs *args, guint place, const char *name) {
  oct_jvalue value = oct_jarg(args, place, name, oct_jnone());
  if (value.kind == OCT_J_STRING)
    return value.string;
  if (value.kind != OCT_J_NONE)
    oct_jfail(run, OCT_TEXT_ERROR_TEMPLATE, "a method of a string takes a %s",
              oct_jkind_name(value));
  return NULL;
}

static gssize
find(const oct_jstring *string, gsize from, const oct_jstring *what) {
  if (what->size == 0)
    return (gssize)from;
  const char *hit = memmem(string->bytes + from, string->size - from, what->bytes, what->size);
  return hit == NULL ? -1 : hit - string->bytes;
}

static gboolean
is_space(gunichar c) {
  return g_unichar_isspace(c) || c == 0x0b || c == 0x85 || (c >= 0x1c && c <= 0x1f);
}

/* Whether a character belongs to what strip() takes: of `set`, or white space. */
static gboolean
stripped(const oct_jstring *string, gsize at, gsize n, const oct_jstring *set) {
  if (set == NULL)
    return is_space(g_utf8_get_char_validated(string->bytes + at, (gssize)n));
  for (gsize i = 0; i < set->size;) {
    gsize k = oct_utf8_size(set->bytes + i, set->size - i);
    if (k == n && memcmp(set->bytes + i, string->bytes + at, n) == 0)
      return TRUE;
    i += k;
  }
  return FALSE;
}

static oct_jvalue
strip(oct_jrun *run, const oct_jstring *string, const oct_jstring *set, gboolean left,
      gboolean right) {
  gsize from = 0, to = string->size;
  oct_jburn(run, string->size / 64);
  while (left && from < to) {
    gsize n = oct_utf8_size(string->bytes + from, to - from);
    if (!stripped(string, from, n, set))
      break;
    from += n;
  }
  while (right && from < to) {
    gsize at = to - 1;
    while (at > from && ((guint8)string->bytes[at] & 0xc0) == 0x80)
      at--;
    if (!stripped(string, at, to - at, set))
      break;
    to = at;
  }
  return oct_jpart(run, string, from, to);
}

/* split(): at white space, or at a separator, at most `most` times (-1: always). */
static oct_jvalue
split(oct_jrun *run, const oct_jstring *string, const oct_jargs *args, gboolean from_right) {
  const oct_jstring *by = string_arg(run, args, 0, "sep");
  oct_jvalue most_value = oct_jarg(args, 1, "maxsplit", oct_jint(-1));
  gint64 most = most_value.kind == OCT_J_INT ? most_value.integer : -1;
  oct_jvalue list = oct_jlist_new(run, 0);
  if (run->failed)
    return list;
  if (by != NULL && by->size == 0)
    return oct_jfail(run, OCT_TEXT_ERROR_TEMPLATE, "split by an empty string");
  if (from_right && (by == NULL || most >= 0)) {
    if (by == NULL)
      return oct_jfail(run, OCT_TEXT_ERROR_UNSUPPORTED, "rsplit at white space");
    /* As many places as there are, less those at the left that exceed `most`. */
    gint64 places = 0;
    for (gssize hit = 0; (hit = find(string, (gsize)hit, by)) >= 0 && oct_jburn(run, 1);
         hit += (gssize)by->size)
      places++;
    gsize at = 0, begin = 0;
    for (gint64 i = 0; i < places && oct_jburn(run, 1); i++) {
      gsize hit = (gsize)find(string, at, by);
      if (i >= places - most) {
        oct_jlist_add(run, list.list, oct_jpart(run, string, begin, hit));
        begin = hit + by->size;
      }
      at = hit + by->size;
    }
    oct_jlist_add(run, list.list, oct_jpart(run, string, begin, string->size));
    return list;
  }
  gsize at = 0;
  while (oct_jburn(run, 1)) {
    if (by == NULL) {
      oct_jvalue rest = oct_jpart(run, string, at, string->size);
      rest = strip(run, rest.string, NULL, TRUE, FALSE);
      at = string->size - rest.string->size;
      if (at == string->size)
        break;
    }
    gsize end = at, next;
    if (by != NULL) {
      gssize hit = most == 0 ? -1 : find(string, at, by);
      end = hit < 0 ? string->size : (gsize)hit;
      next = hit < 0 ? string->size + 1 : end + by->size;
    } else {
      if (most == 0)
        end = string->size;
      while (end < string->size) {
        gsize n = oct_utf8_size(string->bytes + end, string->size - end);
        if (stripped(string, end, n, NULL))
          break;
        end += n;
      }
      next = end;
    }
    oct_jlist_add(run, list.list, oct_jpart(run, string, at, end));
    oct_jburn(run, (end - at) / 64);
    most -= most > 0;
    at = next;
    if (at > string->size || run->failed)
      break;
  }
  return list;
}

static oct_jvalue
split_lines(oct_jrun *run, const oct_jstring *string, const oct_jargs *args) {
  gboolean keep = oct_jtrue(oct_jarg(args, 0, "keepends", oct_jbool(FALSE)));
  oct_jvalue list = oct_jlist_new(run, 0);
  gsize begin = 0;
  for (gsize at = 0; at < string->size && oct_jburn(run, 1); at++) {
    char c = string->bytes[at];
    if (c != '\n' && c != '\r')
      continue;
    gsize end = at;
    if (c == '\r' && at + 1 < string->size && string->bytes[at + 1] == '\n')
      at++;
    oct_jlist_add(run, list.list, oct_jpart(run, string, begin, keep ? at + 1 : end));
    begin = at + 1;
  }
  if (begin < string->size)
    oct_jlist_add(run, list.list, oct_jpart(run, string, begin, string->size));
  return list;
}

oct_jvalue
oct_jreplace(oct_jrun *run, const oct_jstring *string, const oct_jstring *from,
             const oct_jstring *to, gint64 most) {
  oct_jbuilder *builder = oct_jbuild_begin(run);
  gsize at = 0, search = 0;
  while (builder != NULL && most != 0 && oct_jburn(run, 1)) {
    gssize hit = search > string->size ? -1 : find(string, search, from);
    if (hit < 0)
      break;
    oct_jbuild_part(run, builder, string, at, (gsize)hit);
    oct_jbuild_part(run, builder, to, 0, to->size);
    at = (gsize)hit + from->size;
    /* An empty string is found before each character and at the end. */
    search = from->size > 0      ? at
             : at < string->size ? at + oct_utf8_size(string->bytes + at, string->size - at)
                                 : string->size + 1;
    most--;
  }
  if (builder != NULL && !run->failed)
    oct_jbuild_part(run, builder, string, at, string->size);
  return oct_jbuild_end(run, builder);
}

static gboolean
at_end(oct_jrun *run, const oct_jstring *string, oct_jvalue what, gboolean begin) {
  if (what.kind == OCT_J_LIST && what.list->tuple) {
    for (gsize i = 0; i < what.list->n; i++)
      if (what.list->items[i].kind == OCT_J_STRING &&
          at_end(run, string, what.list->items[i], begin))
        return TRUE;
    return FALSE;
  }
  if (what.kind != OCT_J_STRING) {
    oct_jfail(run, OCT_TEXT_ERROR_TEMPLATE, "a string begins or ends with a %s",
              oct_jkind_name(what));
    return FALSE;
  }
  gsize n = what.string->size;
  return n <= string->size &&
         memcmp(string->bytes + (begin ? 0 : string->size - n), what.string->bytes, n) == 0;
}

/* upper(), lower(), title(), capitalize(), character by character. */
oct_jvalue
oct_jcase(oct_jrun *run, const oct_jstring *string, char how) {
  oct_jbuilder *builder = oct_jbuild_begin(run);
  gboolean word = FALSE, first = TRUE;
  for (gsize at = 0; builder != NULL && at < string->size && !run->failed;) {
    gsize n = oct_utf8_size(string->bytes + at, string->size - at);
    gunichar c = g_utf8_get_char_validated(string->bytes + at, (gssize)n);
    gboolean up = how == 'u' || (how == 't' && !word) || (how == 'c' && first);
    g_autofree char *changed = (c & 0x80000000u) != 0 ? g_strndup(string->bytes + at, n)
                               : up                   ? g_utf8_strup(string->bytes + at, (gssize)n)
                                    : g_utf8_strdown(string->bytes + at, (gssize)n);
    guint8 mark = string->marks == NULL ? string->mark : string->marks[at];
    oct_jbuild_bytes(run, builder, changed, strlen(changed), mark);
    word = g_unichar_isalpha(c);
    first = FALSE;
    at += n;
  }
  return oct_jbuild_end(run, builder);
}

static oct_jvalue
all_are(const oct_jstring *string, gboolean (*is)(gunichar c)) {
  for (gsize at = 0; at < string->size;) {
    gsize n = oct_utf8_size(string->bytes + at, string->size - at);
    if (!is(g_utf8_get_char_validated(string->bytes + at, (gssize)n)))
      return oct_jbool(FALSE);
    at += n;
  }
  return oct_jbool(string->size > 0);
}

oct_jvalue
oct_jjoin(oct_jrun *run, const oct_jlist *items, const oct_jstring *by) {
  oct_jbuilder *builder = oct_jbuild_begin(run);
  for (gsize i = 0; builder != NULL && i < items->n && !run->failed; i++) {
    if (i > 0)
      oct_jbuild_part(run, builder, by, 0, by->size);
    oct_jbuild_value(run, builder, items->items[i]);
  }
  return oct_jbuild_end(run, builder);
}

static oct_jvalue
position(oct_jrun *run, const oct_jstring *string, const oct_jargs *args, gboolean last) {
  const oct_jstring *what = string_arg(run, args, 0, "sub");
  if (what == NULL)
    return oct_jfail(run, OCT_TEXT_ERROR_TEMPLATE, "find takes a string");
  gssize found = find(string, 0, what);
  for (gssize next = found; last && next >= 0 && what->size > 0 && oct_jburn(run, 1);) {
    next = find(string, (gsize)found + 1, what);
    found = next >= 0 ? next : found;
  }
  if (found < 0)
    return oct_jint(-1);
  oct_jstring before = {.bytes = string->bytes, .size = (gsize)found};
  return oct_jint((gint64)oct_jchars(&before));
}

static oct_jvalue
count(oct_jrun *run, const oct_jstring *string, const oct_jargs *args) {
  const oct_jstring *what = string_arg(run, args, 0, "sub");
  gint64 n = 0;
  if (what == NULL || what->size == 0)
    return oct_jfail(run, OCT_TEXT_ERROR_TEMPLATE, "count takes a string");
  for (gssize at = 0; (at = find(string, (gsize)at, what)) >= 0 && oct_jburn(run, 1);
       at += (gssize)what->size)
    n++;
  return oct_jint(n);
}

static oct_jvalue
string_method(oct_jrun *run, const oct_jstring *self, const char *name, const oct_jargs *args) {
  if (strcmp(name, "strip") == 0 || strcmp(name, "lstrip") == 0 || strcmp(name, "rstrip") == 0) {
    const oct_jstring *set = string_arg(run, args, 0, "chars");
    return strip(run, self, set, *name != 'r', *name != 'l');
  }
  if (strcmp(name, "split") == 0 || strcmp(name, "rsplit") == 0)
    return split(run, self, args, *name == 'r');
  if (strcmp(name, "splitlines") == 0)
    return split_lines(run, self, args);
  if (strcmp(name, "startswith") == 0 || strcmp(name, "endswith") == 0)
    return oct_jbool(at_end(run, self, oct_jarg(args, 0, NULL, oct_jnone()), *name == 's'));
  if (strcmp(name, "upper") == 0 || strcmp(name, "lower") == 0 || strcmp(name, "title") == 0 ||
      strcmp(name, "capitalize") == 0)
    return oct_jcase(run, self, *name);
  if (strcmp(name, "replace") == 0) {
    const oct_jstring *from = string_arg(run, args, 0, "old"),
                      *to = string_arg(run, args, 1, "new");
    oct_jvalue most = oct_jarg(args, 2, "count", oct_jint(-1));
    if (from == NULL || to == NULL || most.kind != OCT_J_INT)
      return oct_jfail(run, OCT_TEXT_ERROR_TEMPLATE, "replace takes two strings");
    return oct_jreplace(run, self, from, to, most.integer);
  }
  if (strcmp(name, "find") == 0 || strcmp(name, "rfind") == 0)
    return position(run, self, args, *name == 'r');
  if (strcmp(name, "count") == 0)
    return count(run, self, args);
  if (strcmp(name, "join") == 0)
    return oct_jjoin(run, oct_jitems(run, oct_jarg(args, 0, NULL, oct_jnone())), self);
  if (strcmp(name, "isdigit") == 0)
    return all_are(self, g_unichar_isdigit);
  if (strcmp(name, "isalpha") == 0)
    return all_are(self, g_unichar_isalpha);
  if (strcmp(name, "isalnum") == 0)
    return all_are(self, g_unichar_isalnum);
  if (strcmp(name, "isspace") == 0)
    return all_are(self, is_space);
  if (strcmp(name, "removeprefix") == 0 || strcmp(name, "removesuffix") == 0) {
    const oct_jstring *what = string_arg(run, args, 0, NULL);
    gboolean prefix = name[6] == 'p';
    if (what == NULL || !at_end(run, self, oct_jarg(args, 0, NULL, oct_jnone()), prefix))
      return oct_jpart(run, self, 0, self->size);
    return oct_jpart(run, self, prefix ? what->size : 0,
                     prefix ? self->size : self->size - what->size);
  }
  return oct_jfail(run, OCT_TEXT_ERROR_UNSUPPORTED, "the method '%s' of a string", name);
}

oct_jvalue
oct_jdict_items(oct_jrun *run, const oct_jdict *dict) {
  oct_jvalue list = oct_jlist_new(run, dict->n);
  for (gsize i = 0; i < dict->n && oct_jburn(run, 1); i++) {
    oct_jvalue pair = oct_jlist_new(run, 2);
    pair.list->tuple = TRUE;
    oct_jlist_add(run, pair.list, dict->keys[i]);
    oct_jlist_add(run, pair.list, dict->values[i]);
    oct_jlist_add(run, list.list, pair);
  }
  return list;
}

static oct_jvalue
dict_method(oct_jrun *run, oct_jvalue self, const char *name, const oct_jargs *args) {
  if (strcmp(name, "get") == 0) {
    oct_jvalue key = oct_jarg(args, 0, "key", oct_jnone());
    oct_jvalue found = oct_jget_item(run, self, key);
    return found.kind == OCT_J_UNDEFINED ? oct_jarg(args, 1, "default", oct_jnone()) : found;
  }
  if (strcmp(name, "items") == 0)
    return oct_jdict_items(run, self.dict);
  oct_jvalue list = oct_jlist_new(run, self.dict->n);
  gboolean keys = strcmp(name, "keys") == 0;
  if (!keys && strcmp(name, "values") != 0)
    return oct_jfail(run, OCT_TEXT_ERROR_UNSUPPORTED, "the method '%s' of a mapping", name);
  for (gsize i = 0; i < self.dict->n && oct_jburn(run, 1); i++)
    oct_jlist_add(run, list.list, keys ? self.dict->keys[i] : self.dict->values[i]);
  return list;
}

static oct_jvalue
list_method(oct_jrun *run, const oct_jlist *self, const char *name, const oct_jargs *args) {
  oct_jvalue what = oct_jarg(args, 0, NULL, oct_jnone());
  gint64 n = 0;
  gboolean index = strcmp(name, "index") == 0;
  if (!index && strcmp(name, "count") != 0)
    return oct_jfail(run, OCT_TEXT_ERROR_UNSUPPORTED, "the method '%s' of a list", name);
  for (gsize i = 0; i < self->n; i++)
    if (oct_jequal(run, self->items[i], what, 0)) {
      if (index)
        return oct_jint((gint64)i);
      n++;
    }
  return index ? oct_jfail(run, OCT_TEXT_ERROR_TEMPLATE, "index: the value is not in the list")
               : oct_jint(n);
}

oct_jvalue
oct_jcall_method(oct_jrun *run, const oct_jmethod *method, const oct_jargs *args) {
  g_autofree char *name = g_strndup(method->name->bytes, method->name->size);
  if (method->self.kind == OCT_J_STRING)
    return string_method(run, method->self.string, name, args);
  if (method->self.kind == OCT_J_DICT)
    return dict_method(run, method->self, name, args);
  oct_assert(method->self.kind == OCT_J_LIST);
  return list_method(run, method->self.list, name, args);
}

oct_jvalue
oct_jtrim(oct_jrun *run, const oct_jstring *string, const oct_jargs *args) {
  return strip(run, string, string_arg(run, args, 0, "chars"), TRUE, TRUE);
}

oct_jvalue
oct_jempty(void) {
  return (oct_jvalue){.kind = OCT_J_STRING, .string = &empty};
}
