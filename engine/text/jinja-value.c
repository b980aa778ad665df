/* memmem() */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
/* Values: making them, looking at them. */
#include <stdarg.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/text/jinja-internal.h"

#define BLOCK_BYTES 65536u

void
oct_arena_init(oct_arena *arena, gsize bytes_max) {
  *arena = (oct_arena){.blocks = g_ptr_array_new_with_free_func(g_free), .max = bytes_max};
}

void
oct_arena_clear(oct_arena *arena) {
  g_ptr_array_unref(arena->blocks);
  *arena = (oct_arena){0};
}

void *
oct_arena_alloc(oct_arena *arena, gsize size) {
  if (size > arena->max)
    return NULL;
  size = (MAX(size, 1u) + 15) & ~(gsize)15;
  if (size > arena->size - arena->used) {
    gsize block = MAX(size, BLOCK_BYTES);
    if (block > arena->max - arena->total)
      return NULL;
    void *memory = g_try_malloc0(block);
    if (memory == NULL)
      return NULL;
    g_ptr_array_add(arena->blocks, memory);
    arena->total += block;
    arena->size = block;
    arena->used = 0;
  }
  guint8 *base = g_ptr_array_index(arena->blocks, arena->blocks->len - 1);
  arena->used += size;
  return base + arena->used - size;
}

oct_jvalue
oct_jfail(oct_jrun *run, oct_text_error code, const char *format, ...) {
  if (!run->failed) {
    run->failed = TRUE;
    va_list arguments;
    va_start(arguments, format);
    g_autofree char *message = g_strdup_vprintf(format, arguments);
    va_end(arguments);
    g_set_error(run->error, OCT_TEXT_ERROR, code, "chat template, line %u: %s%s", run->line,
                message,
                code == OCT_TEXT_ERROR_UNSUPPORTED
                    ? " is not supported; give another template with --chat-template"
                    : "");
  }
  return oct_jnone();
}

gboolean
oct_jburn(oct_jrun *run, gsize steps) {
  run->fuel -= (gint64)MIN(steps, (gsize)G_MAXINT32);
  if (run->fuel < 0)
    oct_jfail(run, OCT_TEXT_ERROR_LIMIT, "the template takes more than its %u steps",
              run->input->fuel == 0 ? OCT_TEMPLATE_FUEL : run->input->fuel);
  return !run->failed;
}

/* Fails the run when memory is out; then a static place takes what is written. */
static void *
allocate(oct_jrun *run, gsize size) {
  void *memory = run->failed ? NULL : oct_arena_alloc(&run->arena, size);
  if (memory == NULL)
    oct_jfail(run, OCT_TEXT_ERROR_LIMIT, "the template takes more than its %u MiB",
              OCT_TEMPLATE_MEMORY_MAX >> 20);
  return memory;
}

oct_jvalue
oct_jundefined(const char *name) {
  return (oct_jvalue){.kind = OCT_J_UNDEFINED, .name = name};
}

oct_jvalue
oct_jnone(void) {
  return (oct_jvalue){.kind = OCT_J_NONE};
}

oct_jvalue
oct_jbool(gboolean value) {
  return (oct_jvalue){.kind = OCT_J_BOOL, .boolean = value != FALSE};
}

oct_jvalue
oct_jint(gint64 value) {
  return (oct_jvalue){.kind = OCT_J_INT, .integer = value};
}

oct_jvalue
oct_jfloat(double value) {
  return (oct_jvalue){.kind = OCT_J_FLOAT, .real = value};
}

static oct_jvalue
string_value(oct_jrun *run, oct_jstring string) {
  static const oct_jstring empty = {.bytes = ""};
  oct_jstring *copy = allocate(run, sizeof *copy);
  if (copy != NULL)
    *copy = string;
  return (oct_jvalue){.kind = OCT_J_STRING, .string = copy != NULL ? copy : &empty};
}

oct_jvalue
oct_jtext(oct_jrun *run, const char *bytes, gsize size, guint8 mark) {
  return string_value(run, (oct_jstring){.bytes = bytes, .size = size, .mark = mark});
}

oct_jvalue
oct_jcopy(oct_jrun *run, const char *bytes, gsize size, guint8 mark) {
  char *copy = allocate(run, size);
  if (copy == NULL)
    return oct_jtext(run, "", 0, mark);
  if (size > 0)
    memcpy(copy, bytes, size);
  return oct_jtext(run, copy, size, mark);
}

oct_jvalue
oct_jpart(oct_jrun *run, const oct_jstring *string, gsize from, gsize to) {
  oct_assert(from <= to && to <= string->size);
  return string_value(run,
                      (oct_jstring){.bytes = string->bytes + from,
                                    .marks = string->marks == NULL ? NULL : string->marks + from,
                                    .size = to - from,
                                    .mark = string->mark});
}

/* Grows a pair of arrays of values to twice their room. */
static gboolean
grow(oct_jrun *run, oct_jvalue **items, gsize n, gsize *room) {
  if (n < *room)
    return !run->failed;
  gsize more = MAX(*room * 2, 4u);
  oct_jvalue *wider = oct_jburn(run, more / 4) ? allocate(run, more * sizeof *wider) : NULL;
  if (wider == NULL)
    return FALSE;
  if (n > 0)
    memcpy(wider, *items, n * sizeof *wider);
  *items = wider;
  *room = more;
  return TRUE;
}

oct_jvalue
oct_jlist_new(oct_jrun *run, gsize room) {
  static oct_jlist nothing;
  oct_jlist *list = allocate(run, sizeof *list);
  if (list == NULL) {
    nothing = (oct_jlist){0};
    return (oct_jvalue){.kind = OCT_J_LIST, .list = &nothing};
  }
  list->items = room == 0 ? NULL : allocate(run, room * sizeof *list->items);
  list->room = list->items == NULL ? 0 : room;
  return (oct_jvalue){.kind = OCT_J_LIST, .list = list};
}

void
oct_jlist_add(oct_jrun *run, oct_jlist *list, oct_jvalue value) {
  if (grow(run, &list->items, list->n, &list->room))
    list->items[list->n++] = value;
}

oct_jvalue
oct_jdict_new(oct_jrun *run, gsize room) {
  static oct_jdict nothing;
  oct_jdict *dict = allocate(run, sizeof *dict);
  if (dict == NULL) {
    nothing = (oct_jdict){0};
    return (oct_jvalue){.kind = OCT_J_DICT, .dict = &nothing};
  }
  room = MAX(room, 4u);
  dict->keys = allocate(run, room * sizeof *dict->keys);
  dict->values = allocate(run, room * sizeof *dict->values);
  dict->room = dict->keys == NULL || dict->values == NULL ? 0 : room;
  return (oct_jvalue){.kind = OCT_J_DICT, .dict = dict};
}

static const oct_jvalue *
find_key(oct_jrun *run, const oct_jdict *dict, oct_jvalue key) {
  oct_jburn(run, dict->n / 16);
  for (gsize i = 0; i < dict->n; i++)
    if (oct_jequal(run, dict->keys[i], key, 0))
      return &dict->values[i];
  return NULL;
}

void
oct_jdict_set(oct_jrun *run, oct_jdict *dict, oct_jvalue key, oct_jvalue value) {
  if (key.kind == OCT_J_LIST || key.kind == OCT_J_DICT) {
    oct_jfail(run, OCT_TEXT_ERROR_TEMPLATE, "a %s cannot be a key", oct_jkind_name(key));
    return;
  }
  oct_jvalue *place = (oct_jvalue *)find_key(run, dict, key);
  if (place != NULL) {
    *place = value;
    return;
  }
  gsize room = dict->room;
  if (!grow(run, &dict->keys, dict->n, &room) || !grow(run, &dict->values, dict->n, &dict->room))
    return;
  dict->keys[dict->n] = key;
  dict->values[dict->n++] = value;
}

const oct_jvalue *
oct_jdict_get(oct_jrun *run, const oct_jdict *dict, const char *key, gsize size) {
  oct_jburn(run, dict->n / 16);
  for (gsize i = 0; i < dict->n; i++)
    if (dict->keys[i].kind == OCT_J_STRING && dict->keys[i].string->size == size &&
        memcmp(dict->keys[i].string->bytes, key, size) == 0)
      return &dict->values[i];
  return NULL;
}

oct_jvalue
oct_jfrom_json(oct_jrun *run, const json_t *json, guint8 mark, guint depth) {
  if (!oct_jburn(run, 1) || depth > OCT_TEMPLATE_CALLS_MAX)
    return oct_jfail(run, OCT_TEXT_ERROR_LIMIT, "the messages nest too deeply");
  switch (json_typeof(json)) {
  case JSON_OBJECT: {
    oct_jvalue dict = oct_jdict_new(run, json_object_size(json));
    const char *key;
    json_t *item;
    json_object_foreach((json_t *)json, key, item) {
      /* Keys of an object are unique, and the room is there unless memory is out. */
      oct_jvalue value = oct_jfrom_json(run, item, mark, depth + 1);
      if (run->failed || dict.dict->n >= dict.dict->room)
        return dict;
      dict.dict->keys[dict.dict->n] = oct_jtext(run, key, strlen(key), mark);
      dict.dict->values[dict.dict->n++] = value;
    }
    return dict;
  }
  case JSON_ARRAY: {
    oct_jvalue list = oct_jlist_new(run, json_array_size(json));
    for (gsize i = 0; i < json_array_size(json) && !run->failed; i++)
      oct_jlist_add(run, list.list, oct_jfrom_json(run, json_array_get(json, i), mark, depth + 1));
    return list;
  }
  case JSON_STRING:
    return oct_jtext(run, json_string_value(json), json_string_length(json), mark);
  case JSON_INTEGER:
    return oct_jint(json_integer_value(json));
  case JSON_REAL:
    return oct_jfloat(json_real_value(json));
  case JSON_TRUE:
  case JSON_FALSE:
    return oct_jbool(json_is_true(json));
  case JSON_NULL:
  default:
    return oct_jnone();
  }
}

/* --- looking --------------------------------------------------------------------------------- */

gboolean
oct_jis(const oct_jstring *string, const char *text) {
  gsize n = strlen(text);
  return string->size == n && memcmp(string->bytes, text, n) == 0;
}

const char *
oct_jkind_name(oct_jvalue value) {
  static const char *const names[] = {"undefined value", "None",   "boolean",  "number",
                                      "number",          "string", "list",     "mapping",
                                      "macro",           "method", "function", "loop"};
  return names[value.kind];
}

gboolean
oct_jtrue(oct_jvalue value) {
  switch (value.kind) {
  case OCT_J_UNDEFINED:
  case OCT_J_NONE:
    return FALSE;
  case OCT_J_BOOL:
    return value.boolean;
  case OCT_J_INT:
    return value.integer != 0;
  case OCT_J_FLOAT:
    return value.real < 0 || value.real > 0;
  case OCT_J_STRING:
    return value.string->size > 0;
  case OCT_J_LIST:
    return value.list->n > 0;
  case OCT_J_DICT:
    return value.dict->is_namespace || value.dict->n > 0;
  case OCT_J_MACRO:
  case OCT_J_METHOD:
  case OCT_J_FUNCTION:
  case OCT_J_LOOP:
  default:
    return TRUE;
  }
}

static gboolean
is_number(oct_jvalue value) {
  return value.kind == OCT_J_BOOL || value.kind == OCT_J_INT || value.kind == OCT_J_FLOAT;
}

double
oct_jnumber(oct_jvalue value) {
  return value.kind == OCT_J_FLOAT  ? value.real
         : value.kind == OCT_J_BOOL ? (double)value.boolean
                                    : (double)value.integer;
}

static gboolean
equal_parts(oct_jrun *run, oct_jvalue a, oct_jvalue b, guint depth) {
  if (a.kind == OCT_J_LIST) {
    if (a.list->n != b.list->n || a.list->tuple != b.list->tuple)
      return FALSE;
    for (gsize i = 0; i < a.list->n; i++)
      if (!oct_jequal(run, a.list->items[i], b.list->items[i], depth + 1))
        return FALSE;
    return TRUE;
  }
  if (a.dict->n != b.dict->n || a.dict->is_namespace || b.dict->is_namespace)
    return a.dict == b.dict;
  for (gsize i = 0; i < a.dict->n; i++) {
    const oct_jvalue *other = find_key(run, b.dict, a.dict->keys[i]);
    if (other == NULL || !oct_jequal(run, a.dict->values[i], *other, depth + 1))
      return FALSE;
  }
  return TRUE;
}

gboolean
oct_jequal(oct_jrun *run, oct_jvalue a, oct_jvalue b, guint depth) {
  if (depth > OCT_TEMPLATE_CALLS_MAX || !oct_jburn(run, 1))
    return FALSE;
  if (is_number(a) && is_number(b)) {
    if (a.kind != OCT_J_FLOAT && b.kind != OCT_J_FLOAT)
      return (a.kind == OCT_J_BOOL ? a.boolean : a.integer) ==
             (b.kind == OCT_J_BOOL ? b.boolean : b.integer);
    double x = oct_jnumber(a), y = oct_jnumber(b);
    return !(x < y) && !(x > y) && x - x <= 0 && y - y <= 0;
  }
  if (a.kind != b.kind)
    return FALSE;
  switch (a.kind) {
  case OCT_J_UNDEFINED:
  case OCT_J_NONE:
    return TRUE;
  case OCT_J_STRING:
    return a.string->size == b.string->size &&
           memcmp(a.string->bytes, b.string->bytes, a.string->size) == 0;
  case OCT_J_LIST:
  case OCT_J_DICT:
    return equal_parts(run, a, b, depth);
  case OCT_J_MACRO:
    return a.macro == b.macro;
  case OCT_J_FUNCTION:
    return strcmp(a.name, b.name) == 0;
  case OCT_J_METHOD:
  case OCT_J_LOOP:
  case OCT_J_BOOL:
  case OCT_J_INT:
  case OCT_J_FLOAT:
  default:
    return FALSE;
  }
}

int
oct_jcompare(oct_jrun *run, oct_jvalue a, oct_jvalue b) {
  oct_jburn(run, 1);
  if (is_number(a) && is_number(b)) {
    if (a.kind == OCT_J_INT && b.kind == OCT_J_INT)
      return (a.integer > b.integer) - (a.integer < b.integer);
    double x = oct_jnumber(a), y = oct_jnumber(b);
    return (x > y) - (x < y);
  }
  if (a.kind == OCT_J_STRING && b.kind == OCT_J_STRING) {
    /* UTF-8 sorts as its characters do. */
    int order = memcmp(a.string->bytes, b.string->bytes, MIN(a.string->size, b.string->size));
    return order != 0 ? order
                      : (a.string->size > b.string->size) - (a.string->size < b.string->size);
  }
  if (a.kind == OCT_J_LIST && b.kind == OCT_J_LIST) {
    for (gsize i = 0; i < MIN(a.list->n, b.list->n) && !run->failed; i++)
      if (!oct_jequal(run, a.list->items[i], b.list->items[i], 0)) {
        if (run->calls >= OCT_TEMPLATE_CALLS_MAX)
          return oct_jfail(run, OCT_TEXT_ERROR_LIMIT, "lists nest too deeply"), 0;
        run->calls++;
        int order = oct_jcompare(run, a.list->items[i], b.list->items[i]);
        run->calls--;
        return order;
      }
    return (a.list->n > b.list->n) - (a.list->n < b.list->n);
  }
  oct_jfail(run, OCT_TEXT_ERROR_TEMPLATE, "a %s and a %s have no order", oct_jkind_name(a),
            oct_jkind_name(b));
  return 0;
}

gsize
oct_jchars(const oct_jstring *string) {
  gsize n = 0;
  for (gsize i = 0; i < string->size; i++)
    n += ((guint8)string->bytes[i] & 0xc0) != 0x80;
  return n;
}

gssize
oct_jlength(oct_jvalue value) {
  switch ((int)value.kind) {
  case OCT_J_UNDEFINED:
    return 0;
  case OCT_J_STRING:
    return (gssize)oct_jchars(value.string);
  case OCT_J_LIST:
    return (gssize)value.list->n;
  case OCT_J_DICT:
    return value.dict->is_namespace ? -1 : (gssize)value.dict->n;
  default:
    return -1;
  }
}

gboolean
oct_jcontains(oct_jrun *run, oct_jvalue whole, oct_jvalue part) {
  if (whole.kind == OCT_J_STRING) {
    if (part.kind != OCT_J_STRING)
      oct_jfail(run, OCT_TEXT_ERROR_TEMPLATE, "a %s cannot be in a string", oct_jkind_name(part));
    else if (oct_jburn(run, whole.string->size / 64))
      return part.string->size == 0 || memmem(whole.string->bytes, whole.string->size,
                                              part.string->bytes, part.string->size) != NULL;
    return FALSE;
  }
  if (whole.kind == OCT_J_DICT)
    return find_key(run, whole.dict, part) != NULL;
  if (whole.kind == OCT_J_LIST) {
    for (gsize i = 0; i < whole.list->n; i++)
      if (oct_jequal(run, whole.list->items[i], part, 0))
        return TRUE;
    return FALSE;
  }
  if (whole.kind != OCT_J_UNDEFINED)
    oct_jfail(run, OCT_TEXT_ERROR_TEMPLATE, "a %s cannot be searched with 'in'",
              oct_jkind_name(whole));
  return FALSE;
}

oct_jlist *
oct_jitems(oct_jrun *run, oct_jvalue value) {
  if (value.kind == OCT_J_LIST)
    return value.list;
  oct_jvalue list = oct_jlist_new(run, 0);
  if (value.kind == OCT_J_STRING) {
    for (gsize at = 0; at < value.string->size && oct_jburn(run, 1);) {
      gsize n = oct_utf8_size(value.string->bytes + at, value.string->size - at);
      oct_jlist_add(run, list.list, oct_jpart(run, value.string, at, at + n));
      at += n;
    }
  } else if (value.kind == OCT_J_DICT && !value.dict->is_namespace) {
    for (gsize i = 0; i < value.dict->n && oct_jburn(run, 1); i++)
      oct_jlist_add(run, list.list, value.dict->keys[i]);
  } else if (value.kind != OCT_J_UNDEFINED)
    oct_jfail(run, OCT_TEXT_ERROR_TEMPLATE, "a %s cannot be walked", oct_jkind_name(value));
  return list.list;
}

/* Where character `index` begins. */
static gsize
char_at(const oct_jstring *string, gsize index) {
  gsize at = 0;
  for (; index > 0 && at < string->size; index--)
    at += oct_utf8_size(string->bytes + at, string->size - at);
  return at;
}

oct_jvalue
oct_jget_item(oct_jrun *run, oct_jvalue value, oct_jvalue key) {
  if (value.kind == OCT_J_DICT) {
    const oct_jvalue *found = find_key(run, value.dict, key);
    if (found != NULL)
      return *found;
    return oct_jundefined("an item");
  }
  if (key.kind != OCT_J_INT || (value.kind != OCT_J_LIST && value.kind != OCT_J_STRING)) {
    if (value.kind == OCT_J_UNDEFINED)
      return oct_jfail(run, OCT_TEXT_ERROR_TEMPLATE, "'%s' is undefined",
                       value.name == NULL ? "" : value.name);
    return oct_jundefined("an item");
  }
  gssize n = oct_jlength(value);
  gint64 index = key.integer < 0 ? key.integer + n : key.integer;
  if (index < 0 || index >= n)
    return oct_jundefined("an item beyond the end");
  if (value.kind == OCT_J_LIST)
    return value.list->items[index];
  oct_jburn(run, value.string->size / 64);
  gsize from = char_at(value.string, (gsize)index);
  return oct_jpart(run, value.string, from,
                   from + oct_utf8_size(value.string->bytes + from, value.string->size - from));
}

/* Python's rules for the bounds of a slice. */
static gint64
clamp(oct_jvalue bound, gint64 n, gint64 step, gboolean upper) {
  if (bound.kind != OCT_J_INT)
    return step > 0 ? (upper ? n : 0) : (upper ? -1 : n - 1);
  gint64 at = bound.integer < 0 ? bound.integer + n : bound.integer;
  return step > 0 ? CLAMP(at, 0, n) : CLAMP(at, -1, n - 1);
}

oct_jvalue
oct_jslice(oct_jrun *run, oct_jvalue value, const oct_jvalue bounds[3]) {
  if (value.kind != OCT_J_LIST && value.kind != OCT_J_STRING)
    return oct_jfail(run, OCT_TEXT_ERROR_TEMPLATE, "a %s cannot be sliced", oct_jkind_name(value));
  gint64 n = oct_jlength(value), step = bounds[2].kind == OCT_J_INT ? bounds[2].integer : 1;
  if (step == 0 || step == G_MININT64)
    return oct_jfail(run, OCT_TEXT_ERROR_TEMPLATE, "a slice's step is zero");
  gint64 from = clamp(bounds[0], n, step, FALSE), to = clamp(bounds[1], n, step, TRUE);
  if (!oct_jburn(run, (gsize)n / 16))
    return oct_jnone();
  if (value.kind == OCT_J_STRING && step == 1) {
    gsize begin = char_at(value.string, (gsize)from);
    gsize end = from >= to ? begin : char_at(value.string, (gsize)to);
    return oct_jpart(run, value.string, begin, end);
  }
  oct_jlist *items = oct_jitems(run, value);
  oct_jvalue list = oct_jlist_new(run, 0);
  list.list->tuple = value.kind == OCT_J_LIST && items->tuple;
  for (gint64 i = from; (step > 0 ? i < to : i > to) && oct_jburn(run, 1);) {
    if (i >= 0 && i < (gint64)items->n)
      oct_jlist_add(run, list.list, items->items[i]);
    if (__builtin_add_overflow(i, step, &i))
      break;
  }
  if (value.kind == OCT_J_LIST)
    return list;
  oct_jbuilder *builder = oct_jbuild_begin(run);
  for (gsize i = 0; builder != NULL && i < list.list->n; i++)
    oct_jbuild_value(run, builder, list.list->items[i]);
  return oct_jbuild_end(run, builder);
}

guint8
oct_jmark_of(const oct_jvalue *value) {
  if (value->kind != OCT_J_STRING)
    return 0;
  const oct_jstring *string = value->string;
  if (string->marks == NULL)
    return string->mark;
  for (gsize i = 0; i < string->size; i++)
    if (string->marks[i] != 0)
      return string->marks[i];
  return 0;
}
