/* JSON and JSON schemas as rules. A rule begins at a state and ends by going to state 0, which
 * returns. Schemas are walked by recursion of limited depth; what $ref names is a rule of its own,
 * so that a schema may name itself. */
#include <math.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/text/guide-internal.h"

#define WHITE_MAX 20u

typedef struct oct_schema {
  oct_automaton *a;
  const json_t *root;
  GHashTable *refs; /* name to the first state of its rule; never walked */
  GPtrArray *open;  /* names whose rules are not written yet */
  guint32 white, string, number, integer, any, any_object, any_array; /* rules; 0: not yet */
  guint depth;
} oct_schema;

static void add_schema(oct_schema *s, const json_t *schema, guint32 from, guint32 to);

/* Between two states, a rule. */
static void
call(oct_schema *s, guint32 from, guint32 rule, guint32 to, gboolean nest) {
  oct_automaton_edge(
      s->a, from, (oct_edge){.kind = nest ? OCT_EDGE_NEST : OCT_EDGE_CALL, .call = rule, .to = to});
}

static guint32
text(oct_schema *s, guint32 from, const char *literal) {
  return oct_automaton_text(s->a, from, literal, strlen(literal));
}

static guint32
white(oct_schema *s, guint32 from) {
  if (s->white == 0) {
    guint32 at = s->white = oct_automaton_state(s->a);
    for (guint i = 0; i <= WHITE_MAX; i++) {
      oct_automaton_free(s->a, at, 0);
      if (i == WHITE_MAX)
        break;
      guint32 next = oct_automaton_state(s->a);
      oct_automaton_bytes(s->a, at, ' ', ' ', next);
      oct_automaton_bytes(s->a, at, '\t', '\n', next);
      at = next;
    }
  }
  guint32 to = oct_automaton_state(s->a);
  call(s, from, s->white, to, FALSE);
  return to;
}

/* One character of a string, or its escape. */
static void
string_char(oct_schema *s, guint32 from, guint32 to) {
  static const char hex[][2] = {{'0', '9'}, {'a', 'f'}, {'A', 'F'}};
  oct_automaton_char(s->a, from, 0x20, 0x21, to);
  oct_automaton_char(s->a, from, 0x23, 0x5b, to);
  oct_automaton_char(s->a, from, 0x5d, 0x10ffff, to);
  guint32 escape = text(s, from, "\\"), digits[4];
  for (const char *p = "\"\\/bfnrt"; *p != 0; p++)
    oct_automaton_bytes(s->a, escape, (guint8)*p, (guint8)*p, to);
  digits[0] = text(s, escape, "u");
  for (guint i = 1; i < 4; i++)
    digits[i] = oct_automaton_state(s->a);
  /* \ud800 to \udfff are halves of characters: left out. */
  guint32 low = oct_automaton_state(s->a);
  for (guint h = 0; h < 3; h++) {
    for (guint i = 1; i < 4; i++)
      oct_automaton_bytes(s->a, digits[i], (guint8)hex[h][0], (guint8)hex[h][1],
                          i == 3 ? to : digits[i + 1]);
    if (h == 0)
      oct_automaton_bytes(s->a, digits[0], '0', '9', digits[1]);
    else {
      guint8 a = (guint8)hex[h][0];
      oct_automaton_bytes(s->a, digits[0], a, a + 2, digits[1]);
      oct_automaton_bytes(s->a, digits[0], a + 4, a + 5, digits[1]);
      oct_automaton_bytes(s->a, digits[0], a + 3, a + 3, low);
    }
  }
  oct_automaton_bytes(s->a, low, '0', '7', digits[2]);
}

static guint32
string_rule(oct_schema *s) {
  if (s->string == 0) {
    s->string = oct_automaton_state(s->a);
    guint32 inside = text(s, s->string, "\"");
    string_char(s, inside, inside);
    oct_automaton_bytes(s->a, inside, '"', '"', 0);
  }
  return s->string;
}

static guint32
number_rule(oct_schema *s, gboolean integer) {
  guint32 *rule = integer ? &s->integer : &s->number;
  if (*rule == 0) {
    *rule = oct_automaton_state(s->a);
    guint32 at = oct_automaton_regex(
        s->a, *rule,
        integer ? "-?(0|[1-9][0-9]{0,17})"
                : "-?(0|[1-9][0-9]{0,17})(\\.[0-9]{1,17})?([eE][+\\-]?[0-9]{1,2})?",
        FALSE, FALSE);
    oct_automaton_free(s->a, at, 0);
  }
  return *rule;
}

static guint32 any_rule(oct_schema *s);

/* ", value" again and again, then `close`: from after a first value. `item` is a rule. */
static void
more_items(oct_schema *s, guint32 from, guint32 again, const char *close, guint32 to) {
  guint32 at = white(s, from);
  oct_automaton_free(s->a, text(s, at, close), to);
  guint32 comma = white(s, text(s, at, ","));
  oct_automaton_free(s->a, comma, again);
}

static guint32
any_array_rule(oct_schema *s) {
  if (s->any_array == 0) {
    guint32 begin = s->any_array = oct_automaton_state(s->a), item = oct_automaton_state(s->a);
    guint32 open = white(s, text(s, begin, "[")), after = oct_automaton_state(s->a);
    oct_automaton_free(s->a, text(s, open, "]"), 0);
    oct_automaton_free(s->a, open, item);
    call(s, item, any_rule(s), after, FALSE);
    more_items(s, after, item, "]", 0);
  }
  return s->any_array;
}

/* "key": value, from `from`; the value is `rule`. */
static guint32
member(oct_schema *s, guint32 from, guint32 rule) {
  guint32 key = oct_automaton_state(s->a), after = oct_automaton_state(s->a);
  call(s, from, string_rule(s), key, FALSE);
  guint32 colon = white(s, text(s, white(s, key), ":"));
  call(s, colon, rule, after, FALSE);
  return after;
}

static guint32
any_object_rule(oct_schema *s) {
  if (s->any_object == 0) {
    guint32 begin = s->any_object = oct_automaton_state(s->a), item = oct_automaton_state(s->a);
    guint32 open = white(s, text(s, begin, "{"));
    oct_automaton_free(s->a, text(s, open, "}"), 0);
    oct_automaton_free(s->a, open, item);
    more_items(s, member(s, item, any_rule(s)), item, "}", 0);
  }
  return s->any_object;
}

static guint32
any_rule(oct_schema *s) {
  if (s->any == 0) {
    s->any = oct_automaton_state(s->a);
    call(s, s->any, string_rule(s), 0, FALSE);
    call(s, s->any, number_rule(s, FALSE), 0, FALSE);
    call(s, s->any, any_object_rule(s), 0, TRUE);
    call(s, s->any, any_array_rule(s), 0, TRUE);
    static const char *const words[] = {"true", "false", "null"};
    for (guint i = 0; i < 3; i++)
      oct_automaton_free(s->a, text(s, s->any, words[i]), 0);
  }
  return s->any;
}

/* --- schemas
 * ---------------------------------------------------------------------------------------- */

static void
refuse(oct_schema *s, const char *word, const char *what) {
  oct_automaton_fail(s->a, OCT_TEXT_ERROR_INPUT, "the schema's '%.100s' %s", word, what);
}

static void
add_literal(oct_schema *s, const json_t *value, guint32 from, guint32 to) {
  char *dump = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
  if (dump == NULL) {
    refuse(s, "enum", "has a value that cannot be written");
    return;
  }
  oct_automaton_free(s->a, text(s, from, dump), to);
  free(dump);
}

/* A count from a word; `standard` when it is absent. */
static gint64
count_of(oct_schema *s, const json_t *schema, const char *word, gint64 standard) {
  const json_t *value = json_object_get(schema, word);
  if (value == NULL)
    return standard;
  gint64 n = json_is_integer(value) ? json_integer_value(value) : -1;
  if (n < 0 || n > (gint64)OCT_GUIDE_REPEAT_MAX)
    refuse(s, word, "is not a number from 0 to 1000");
  return n;
}

static void
add_string(oct_schema *s, const json_t *schema, guint32 from, guint32 to) {
  const json_t *pattern = json_object_get(schema, "pattern");
  gint64 least = count_of(s, schema, "minLength", 0), most = count_of(s, schema, "maxLength", -1);
  if (pattern != NULL) {
    if (!json_is_string(pattern) || least != 0 || most != -1) {
      refuse(s, "pattern", "is not a string, or stands beside minLength or maxLength");
      return;
    }
    guint32 at =
        oct_automaton_regex(s->a, text(s, from, "\""), json_string_value(pattern), TRUE, TRUE);
    oct_automaton_free(s->a, text(s, at, "\""), to);
    return;
  }
  if (least == 0 && most == -1) {
    call(s, from, string_rule(s), to, FALSE);
    return;
  }
  if (most != -1 && most < least)
    refuse(s, "maxLength", "is less than minLength");
  guint32 at = text(s, from, "\"");
  for (gint64 n = 0; !s->a->failed; n++) {
    if (n >= least)
      oct_automaton_free(s->a, text(s, at, "\""), to);
    if (n == most)
      break;
    if (most == -1 && n == least) {
      string_char(s, at, at);
      break;
    }
    guint32 next = oct_automaton_state(s->a);
    string_char(s, at, next);
    at = next;
  }
}

static void
add_array(oct_schema *s, const json_t *schema, guint32 from, guint32 to) {
  const json_t *items = json_object_get(schema, "items");
  gint64 least = count_of(s, schema, "minItems", 0), most = count_of(s, schema, "maxItems", -1);
  if (items == NULL && least == 0 && most == -1) {
    call(s, from, any_array_rule(s), to, TRUE);
    return;
  }
  if (most != -1 && most < least)
    refuse(s, "maxItems", "is less than minItems");
  guint32 item = oct_automaton_state(s->a); /* a rule of its own, so that it is written once */
  if (items == NULL || json_is_true(items))
    call(s, item, any_rule(s), 0, FALSE);
  else
    add_schema(s, items, item, 0);
  guint32 at = white(s, text(s, from, "["));
  if (least == 0)
    oct_automaton_free(s->a, text(s, at, "]"), to);
  for (gint64 n = 1; most != 0 && !s->a->failed; n++) {
    guint32 after = oct_automaton_state(s->a), again = oct_automaton_state(s->a);
    oct_automaton_free(s->a, at, again);
    call(s, again, item, after, FALSE);
    guint32 next = white(s, after);
    if (n >= least)
      oct_automaton_free(s->a, text(s, next, "]"), to);
    if (n == most)
      break;
    at = white(s, text(s, next, ","));
    if (most == -1 && n >= least) {
      oct_automaton_free(s->a, at, again);
      break;
    }
  }
}

static gboolean
is_required(const json_t *schema, const char *name) {
  const json_t *required = json_object_get(schema, "required");
  for (gsize i = 0; i < json_array_size(required); i++)
    if (g_strcmp0(json_string_value(json_array_get(required, i)), name) == 0)
      return TRUE;
  return FALSE;
}

/* Two rows of states, one place per property: nothing written yet, and something. From the second a
 * comma comes first. */
static void
add_object(oct_schema *s, const json_t *schema, guint32 from, guint32 to) {
  json_t *properties = json_object_get(schema, "properties"), *value;
  const json_t *more = json_object_get(schema, "additionalProperties");
  const json_t *required = json_object_get(schema, "required");
  const char *name;
  if (properties != NULL && !json_is_object(properties))
    refuse(s, "properties", "is not an object");
  if (required != NULL && !json_is_array(required))
    refuse(s, "required", "is not a list of names");
  for (gsize i = 0; i < json_array_size(required); i++)
    if (json_object_get(properties, json_string_value(json_array_get(required, i)) == NULL
                                        ? ""
                                        : json_string_value(json_array_get(required, i))) == NULL)
      refuse(s, "required", "names what properties does not have");
  gboolean open = more == NULL ? json_object_size(properties) == 0 : !json_is_false(more);
  guint32 first = white(s, text(s, from, "{")), later = oct_automaton_state(s->a);
  json_object_foreach(properties, name, value) {
    guint32 next_first = oct_automaton_state(s->a), next_later = oct_automaton_state(s->a);
    if (!is_required(schema, name)) {
      oct_automaton_free(s->a, first, next_first);
      oct_automaton_free(s->a, later, next_later);
    }
    guint32 key = oct_automaton_state(s->a), done = oct_automaton_state(s->a);
    oct_automaton_free(s->a, first, key);
    oct_automaton_free(s->a, white(s, text(s, white(s, later), ",")), key);
    json_t *quoted = json_string(name);
    guint32 colon = oct_automaton_state(s->a);
    add_literal(s, quoted, key, colon);
    json_decref(quoted);
    add_schema(s, value, white(s, text(s, white(s, colon), ":")), done);
    oct_automaton_free(s->a, done, next_later);
    first = next_first;
    later = next_later;
    if (s->a->failed)
      return;
  }
  if (open) {
    guint32 rule = any_rule(s), item = oct_automaton_state(s->a);
    if (json_is_object(more)) {
      rule = oct_automaton_state(s->a);
      add_schema(s, more, rule, 0);
    }
    oct_automaton_free(s->a, first, item);
    oct_automaton_free(s->a, white(s, text(s, white(s, later), ",")), item);
    oct_automaton_free(s->a, member(s, item, rule), later);
  }
  oct_automaton_free(s->a, text(s, first, "}"), to);
  oct_automaton_free(s->a, text(s, white(s, later), "}"), to);
}

static void
add_type(oct_schema *s, const json_t *schema, const char *type, guint32 from, guint32 to) {
  if (g_str_equal(type, "string"))
    add_string(s, schema, from, to);
  else if (g_str_equal(type, "integer") || g_str_equal(type, "number"))
    call(s, from, number_rule(s, *type == 'i'), to, FALSE);
  else if (g_str_equal(type, "boolean")) {
    oct_automaton_free(s->a, text(s, from, "true"), to);
    oct_automaton_free(s->a, text(s, from, "false"), to);
  } else if (g_str_equal(type, "null"))
    oct_automaton_free(s->a, text(s, from, "null"), to);
  else if (g_str_equal(type, "array") || g_str_equal(type, "object")) {
    guint32 rule = oct_automaton_state(s->a);
    (*type == 'a' ? add_array : add_object)(s, schema, rule, 0);
    call(s, from, rule, to, TRUE);
  } else
    refuse(s, "type", "is not one of the seven types");
}

static void
add_ref(oct_schema *s, const char *ref, guint32 from, guint32 to) {
  if (!g_str_has_prefix(ref, "#/$defs/") && !g_str_has_prefix(ref, "#/definitions/")) {
    refuse(s, ref, "is a $ref to elsewhere than #/$defs/ or #/definitions/");
    return;
  }
  gpointer rule = g_hash_table_lookup(s->refs, ref);
  if (rule == NULL) {
    rule = GUINT_TO_POINTER(oct_automaton_state(s->a));
    char *name = g_strdup(ref);
    g_hash_table_insert(s->refs, name, rule);
    g_ptr_array_add(s->open, name);
  }
  call(s, from, GPOINTER_TO_UINT(rule), to, TRUE);
}

static gboolean
check_words(oct_schema *s, const json_t *schema) {
  static const char *const words[] = {
      "type",        "properties", "required",    "additionalProperties",
      "items",       "minItems",   "maxItems",    "enum",
      "const",       "minLength",  "maxLength",   "pattern",
      "anyOf",       "allOf",      "$ref",        "$defs",
      "definitions", "title",      "description", "default",
      "examples",    "$schema",    "$id",         "$comment",
      "deprecated",  "readOnly",   "writeOnly"};
  const char *word;
  json_t *value;
  json_object_foreach((json_t *)schema, word, value) {
    gboolean known = FALSE;
    for (guint i = 0; i < G_N_ELEMENTS(words) && !known; i++)
      known = g_str_equal(word, words[i]);
    if (!known) {
      refuse(s, word, "is not supported");
      return FALSE;
    }
  }
  return TRUE;
}

static void
add_each(oct_schema *s, const json_t *list, const char *word, guint32 from, guint32 to) {
  if (json_array_size(list) == 0)
    refuse(s, word, "is not a list with something in it");
  for (gsize i = 0; i < json_array_size(list) && !s->a->failed; i++) {
    if (g_str_equal(word, "enum"))
      add_literal(s, json_array_get(list, i), from, to);
    else
      add_schema(s, json_array_get(list, i), from, to);
  }
}

static void
add_checked(oct_schema *s, const json_t *schema, guint32 from, guint32 to) {
  const json_t *type = json_object_get(schema, "type"), *value;
  if ((value = json_object_get(schema, "$ref")) != NULL)
    add_ref(s, json_is_string(value) ? json_string_value(value) : "", from, to);
  else if ((value = json_object_get(schema, "enum")) != NULL)
    add_each(s, value, "enum", from, to);
  else if ((value = json_object_get(schema, "const")) != NULL)
    add_literal(s, value, from, to);
  else if ((value = json_object_get(schema, "anyOf")) != NULL)
    add_each(s, value, "anyOf", from, to);
  else if ((value = json_object_get(schema, "allOf")) != NULL) {
    if (json_array_size(value) != 1)
      refuse(s, "allOf", "has other than one entry");
    else
      add_schema(s, json_array_get(value, 0), from, to);
  } else if (json_is_string(type))
    add_type(s, schema, json_string_value(type), from, to);
  else if (json_array_size(type) > 0)
    for (gsize i = 0; i < json_array_size(type) && !s->a->failed; i++) {
      const char *one = json_string_value(json_array_get(type, i));
      add_type(s, schema, one == NULL ? "" : one, from, to);
    }
  else if (type != NULL)
    refuse(s, "type", "is not a name or a list of names");
  else if (json_object_get(schema, "properties") != NULL)
    add_type(s, schema, "object", from, to);
  else if (json_object_get(schema, "items") != NULL)
    add_type(s, schema, "array", from, to);
  else
    call(s, from, any_rule(s), to, FALSE);
}

static void
add_schema(oct_schema *s, const json_t *schema, guint32 from, guint32 to) {
  if (++s->depth > OCT_GUIDE_DEPTH_MAX)
    oct_automaton_fail(s->a, OCT_TEXT_ERROR_LIMIT, "the schema nests more than %u deep",
                       OCT_GUIDE_DEPTH_MAX);
  if (!s->a->failed) {
    if (json_is_true(schema))
      call(s, from, any_rule(s), to, FALSE);
    else if (!json_is_object(schema))
      refuse(s, "properties, items or another part", "is not a schema");
    else if (check_words(s, schema))
      add_checked(s, schema, from, to);
  }
  s->depth--;
}

void
oct_automaton_schema(oct_automaton *a, const json_t *schema) {
  oct_schema s = {.a = a,
                  .root = schema,
                  .refs = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL),
                  .open = g_ptr_array_new()};
  a->start = oct_automaton_state(a);
  add_schema(&s, schema, a->start, 0);
  while (s.open->len > 0 && !a->failed) {
    const char *name = g_ptr_array_steal_index(s.open, s.open->len - 1);
    g_auto(GStrv) parts = g_strsplit(name, "/", 3);
    const json_t *found = json_object_get(json_object_get(schema, parts[1]), parts[2]);
    if (found == NULL)
      refuse(&s, name, "names a schema that is not there");
    else
      add_schema(&s, found, GPOINTER_TO_UINT(g_hash_table_lookup(s.refs, name)), 0);
  }
  g_hash_table_unref(s.refs);
  g_ptr_array_unref(s.open);
}

void
oct_automaton_json_object(oct_automaton *a) {
  oct_schema s = {.a = a};
  a->start = any_object_rule(&s);
}
