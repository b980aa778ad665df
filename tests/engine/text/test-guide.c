/* Constraints: what they accept, that masks are what advance() allows, and that answers which
 * follow them are what was asked for. */
#include <string.h>

#include "engine/base/rng.h"
#include "engine/text/error.h"
#include "engine/text/guide.h"
#include "tests/engine/text/text-golden.h"

static oct_tokenizer *tokenizer;
static oct_guide_vocab *vocab;

static gboolean
feed(oct_guide *guide, oct_guide_state *state, const char *text, gsize size) {
  for (gsize i = 0; i < size; i++) {
    guint32 id = oct_vocab_byte(oct_tokenizer_vocab(tokenizer), (guint8)text[i]);
    if (!oct_guide_advance(guide, state, id))
      return FALSE;
  }
  return TRUE;
}

static gboolean
accepts(oct_guide *guide, const char *text) {
  oct_guide_state state = {0};
  return feed(guide, &state, text, strlen(text)) && oct_guide_may_end(guide, &state);
}

static oct_guide *
schema_guide(const char *schema, GError **error) {
  json_t *json = json_loads(schema, JSON_DECODE_ANY, NULL);
  g_assert_nonnull(json);
  oct_guide *guide = oct_guide_new_schema(vocab, json, error);
  json_decref(json);
  return guide;
}

/* --- regular expressions, against GLib's --------------------------------------------------------
 */

static const char *const patterns[] = {
    "abc",   "a|bc|",       "(a|b)*c",      "a+b?c*", "[a-c]{2,3}", "(ab){2}", "a{0}b",
    "a{2,}", "(a|b){0,2}c", "[^a]b",        "\\d+",   "\\w\\s\\w",  ".b",      "[a\\-c]",
    "((a))", "(?:ab)+c",    "\\x61\\u0062", "a\\.b",  "[\\d.]+",    "\\D",     "[^\\d]a",
    "^ab$",  "(a*)*b",      "(|a)+b",       "é+",     "[à-ü]b",     "[^b]+",   "(a|ab)(c|bc)"};

static void
patterns_accept_what_glib_matches(void) {
  static const char *const alphabet[] = {"a", "b",        "c", "1",  ".",
                                         " ", "\xc3\xa9", "-", "\n", "\xe6\xbc\xa2"};
  oct_rng rng;
  oct_rng_seed(&rng, 5, 0);
  g_test_message("seed 5");
  for (guint p = 0; p < G_N_ELEMENTS(patterns); p++) {
    g_autoptr(GError) error = NULL;
    g_autoptr(oct_guide) guide = oct_guide_new_regex(vocab, patterns[p], &error);
    g_assert_no_error(error);
    /* GLib's \\w, \\s and \\d know all of Unicode; \\u is not in its dialect. */
    g_autoptr(GString) oracle = g_string_new(NULL);
    g_string_printf(oracle, "\\A(?:%s)\\z", patterns[p]);
    g_string_replace(oracle, "[\\d.]", "[0-9.]", 0);
    g_string_replace(oracle, "[^\\d]", "[^0-9]", 0);
    g_string_replace(oracle, "\\d", "[0-9]", 0);
    g_string_replace(oracle, "\\D", "[^0-9]", 0);
    g_string_replace(oracle, "\\w", "[0-9A-Za-z_]", 0);
    g_string_replace(oracle, "\\s", "[ \\t-\\r]", 0);
    g_string_replace(oracle, "\\u0062", "b", 0);
    g_autoptr(GRegex) regex = g_regex_new(oracle->str, G_REGEX_DOLLAR_ENDONLY, 0, &error);
    g_assert_no_error(error);
    for (guint round = 0; round < 400; round++) {
      g_autoptr(GString) text = g_string_new(NULL);
      for (guint n = (guint)oct_rng_below(&rng, 7); n > 0; n--)
        g_string_append(text, alphabet[oct_rng_below(&rng, round % 2 == 0 ? 3 : 10)]);
      gboolean expected = g_regex_match(regex, text->str, 0, NULL);
      if (accepts(guide, text->str) != expected)
        g_error("/%s/ on '%s': expected %d", patterns[p], text->str, expected);
    }
  }
}

/* Every boundary of UTF-8: classes are checked character by character. */
static void
classes_are_characters_not_bytes(void) {
  static const struct {
    const char *pattern;
    gunichar low, high;
  } cases[] = {{"[\\u0041-\\u07ff]", 0x41, 0x7ff},    {"[\\u0080-\\uffff]", 0x80, 0xffff},
               {"[\\u07fe-\\u0801]", 0x7fe, 0x801},   {"[\\u1234-\\ue123]", 0x1234, 0xe123},
               {"[\\ud7ff-\\ue000]", 0xd7ff, 0xe000}, {"[😀-😏]", 0x1f600, 0x1f60f},
               {"[\\uffff-𐀁]", 0xffff, 0x10001}};
  for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
    g_autoptr(oct_guide) guide = oct_guide_new_regex(vocab, cases[i].pattern, NULL);
    g_assert_nonnull(guide);
    for (gunichar c = 1; c <= 0x10ffff; c += c < 0x900 ? 1 : c % 61 + 1) {
      if (c >= 0xd800 && c < 0xe000)
        continue;
      char text[8] = {0};
      g_unichar_to_utf8(c, text);
      gboolean expected = c >= cases[i].low && c <= cases[i].high;
      if (accepts(guide, text) != expected)
        g_error("%s on U+%04X: expected %d", cases[i].pattern, c, expected);
    }
    g_assert_false(accepts(guide, "\xff"));
    g_assert_false(accepts(guide, "\xc3"));
  }
}

/* --- schemas
 * ---------------------------------------------------------------------------------------- */

typedef struct schema_case {
  const char *schema;
  const char *yes[8], *no[10];
} schema_case;

static const schema_case schemas[] = {
    {"{\"type\":\"integer\"}", {"0", "-7", "120"}, {"", "01", "1.5", "+1", "\"1\"", "1e3"}},
    {"{\"type\":\"number\"}", {"0", "-7.25", "1e5", "1.5E-3"}, {"1.", ".5", "01", "NaN"}},
    {"{\"type\":\"boolean\"}", {"true", "false"}, {"True", "null", "1"}},
    {"{\"type\":[\"null\",\"string\"]}", {"null", "\"\"", "\"a\""}, {"1", "nul"}},
    {"{\"type\":\"string\"}",
     {"\"\"", "\"é漢😀\"", "\"\\n\\u00e9\\\"\\\\\"", "\"\\uD7ff\""},
     {"\"\n\"", "\"\\x\"", "\"a", "\"\\ud800\"", "\"a\"b"}},
    {"{\"type\":\"string\",\"minLength\":1,\"maxLength\":2}",
     {"\"a\"", "\"é漢\"", "\"\\n\\t\""},
     {"\"\"", "\"abc\""}},
    {"{\"type\":\"string\",\"minLength\":2}", {"\"ab\"", "\"abc\""}, {"\"a\""}},
    {"{\"type\":\"string\",\"pattern\":\"^[a-z]+$\"}", {"\"ab\""}, {"\"\"", "\"aB\"", "\"a1\""}},
    {"{\"type\":\"string\",\"pattern\":\"b.\"}",
     {"\"abc\"", "\"b\\\"\"", "\"xxbxx\""},
     {"\"b\"", "\"ab\"", "\"b\"\""}},
    {"{\"enum\":[\"a\",1,null,{\"x\":[true]}]}",
     {"\"a\"", "1", "null", "{\"x\":[true]}"},
     {"2", "\"b\"", "{}"}},
    {"{\"const\":\"x\\\"y\"}", {"\"x\\\"y\""}, {"\"x\""}},
    {"{\"type\":\"array\",\"items\":{\"type\":\"integer\"}}",
     {"[]", "[1]", "[ 1 , 2,\n3 ]", "[1, 2]"},
     {"[1,]", "[\"a\"]", "[,1]", "1"}},
    {"{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":1,\"maxItems\":2}",
     {"[1]", "[1,2]"},
     {"[]", "[1,2,3]"}},
    {"{\"type\":\"array\",\"items\":{\"type\":\"boolean\"},\"minItems\":2}",
     {"[true,false]", "[true,true,true]"},
     {"[]", "[true]"}},
    {"{\"type\":\"array\",\"maxItems\":0}", {"[]", "[ ]"}, {"[1]"}},
    {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"string\"}"
     "},\"required\":[\"a\"]}",
     {"{\"a\":1}", "{\"a\": 1, \"b\": \"x\"}", "{ \"a\" : 1 }"},
     {"{}", "{\"b\":\"x\"}", "{\"a\":1,}", "{\"b\":\"x\",\"a\":1}", "{\"a\":1,\"c\":2}",
      "{\"a\":\"1\"}"}},
    {"{\"properties\":{\"a\":{},\"b\":{},\"c\":{\"type\":\"null\"}}}",
     {"{}", "{\"c\":null}", "{\"a\":[1,{\"z\":0}],\"c\":null}", "{\"b\":1}"},
     {"{\"c\":1}", "{,\"c\":null}", "{\"c\":null,\"a\":1}"}},
    {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}},\"additionalProperties\":{"
     "\"type\":\"boolean\"}}",
     {"{}", "{\"a\":1,\"z\":true}", "{\"z\":true,\"y\":false}"},
     {"{\"z\":1}", "{\"a\":1,}"}},
    {"{\"type\":\"object\"}",
     {"{}", "{\"a\":{\"b\":[1,2,{\"c\":null}]}}"},
     {"[]", "{a:1}", "{\"a\"}", "{\"a\":1 \"b\":2}"}},
    {"{\"type\":\"object\",\"properties\":{},\"additionalProperties\":false}",
     {"{}"},
     {"{\"a\":1}"}},
    {"{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"array\",\"items\":{\"const\":0}}]}",
     {"5", "[0,0]"},
     {"[1]", "\"\""}},
    {"{\"$defs\":{\"n\":{\"type\":\"object\",\"properties\":{\"v\":{\"type\":\"integer\"},\"k\":{"
     "\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/n\"}}},\"required\":[\"v\"]}},\"$ref\":\"#/"
     "$defs/n\"}",
     {"{\"v\":1}", "{\"v\":1,\"k\":[{\"v\":2,\"k\":[]},{\"v\":3}]}"},
     {"{\"k\":[]}", "{\"v\":1,\"k\":[{}]}"}},
    {"{\"allOf\":[{\"type\":\"null\"}],\"title\":\"t\",\"description\":\"d\"}", {"null"}, {"1"}},
    {"true", {"1", "[]", "\"x\""}, {"x"}},
};

static void
schemas_accept_and_reject(void) {
  for (guint i = 0; i < G_N_ELEMENTS(schemas); i++) {
    g_autoptr(GError) error = NULL;
    g_autoptr(oct_guide) guide = schema_guide(schemas[i].schema, &error);
    g_assert_no_error(error);
    for (guint k = 0; k < 8 && schemas[i].yes[k] != NULL; k++) {
      if (!accepts(guide, schemas[i].yes[k]))
        g_error("%s does not accept %s", schemas[i].schema, schemas[i].yes[k]);
    }
    for (guint k = 0; k < 10 && schemas[i].no[k] != NULL; k++)
      if (accepts(guide, schemas[i].no[k]))
        g_error("%s accepts %s", schemas[i].schema, schemas[i].no[k]);
  }
}

static void
refuses_by_name(void) {
  static const char *const cases[][2] = {
      {"{\"type\":\"integer\",\"minimum\":3}", "minimum"},
      {"{\"oneOf\":[{}]}", "oneOf"},
      {"{\"format\":\"date\"}", "format"},
      {"{\"type\":\"text\"}", "type"},
      {"{\"type\":7}", "type"},
      {"{\"enum\":[]}", "enum"},
      {"{\"$ref\":\"http://x/y\"}", "http://x/y"},
      {"{\"$ref\":\"#/$defs/none\"}", "none"},
      {"{\"allOf\":[{},{}]}", "allOf"},
      {"{\"type\":\"object\",\"properties\":{\"a\":5}}", "not a schema"},
      {"{\"type\":\"object\",\"required\":[\"b\"],\"properties\":{\"a\":{}}}", "required"},
      {"{\"type\":\"string\",\"pattern\":\"^+[a-z]$\"}", "follows nothing"},
      {"{\"type\":\"string\",\"maxLength\":-1}", "maxLength"},
      {"{\"type\":\"array\",\"minItems\":100000}", "minItems"},
      {"{\"type\":\"array\",\"minItems\":5,\"maxItems\":2}", "maxItems"},
      {"{\"type\":\"object\",\"properties\":5}", "properties"},
      {"{\"type\":\"object\",\"properties\":{\"a\":{}},\"required\":\"a\"}", "required"},
      {"{\"type\":\"object\",\"patternProperties\":{}}", "patternProperties"},
      {"5", "schema"},
  };
  for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
    g_autoptr(GError) error = NULL;
    g_assert_null(schema_guide(cases[i][0], &error));
    g_assert_error(error, OCT_TEXT_ERROR, OCT_TEXT_ERROR_INPUT);
    if (strstr(error->message, cases[i][1]) == NULL)
      g_error("'%s' does not name %s", error->message, cases[i][1]);
  }
  static const char *const bad[] = {
      "(",    ")",      "[a",    "*a", "a**", "a+?",   "(?=a)", "(?P<n>a)", "\\1", "\\b",
      "\\pL", "a{2,1}", "[b-a]", "\\", "a^b", "[[a]]", "\\xg1", "x{1",      "\xff"};
  for (guint i = 0; i < G_N_ELEMENTS(bad); i++) {
    g_autoptr(GError) error = NULL;
    if (oct_guide_new_regex(vocab, bad[i], &error) != NULL)
      g_error("/%s/ is accepted", bad[i]);
    g_assert_error(error, OCT_TEXT_ERROR, OCT_TEXT_ERROR_INPUT);
  }
}

static void
work_is_limited(void) {
  g_autofree char *deep = g_strnfill(60000, '(');
  g_autoptr(GString) schema = g_string_new(NULL);
  for (guint i = 0; i < 1000; i++)
    g_string_append(schema, "{\"items\":");
  g_string_append(schema, "{}");
  for (guint i = 0; i < 1000; i++)
    g_string_append(schema, "}");
  static const char *const large[] = {"(a{1000}){1000}", "a{1001}",
                                      "((((a{100}){100}){100}){100}){100}",
                                      "[a-z]{1000}[^x]{1000}.{1000}\\W{1000}"};
  for (guint i = 0; i < G_N_ELEMENTS(large); i++) {
    g_autoptr(GError) error = NULL;
    g_assert_null(oct_guide_new_regex(vocab, large[i], &error));
    g_assert_error(error, OCT_TEXT_ERROR, OCT_TEXT_ERROR_LIMIT);
  }
  g_autoptr(GError) error = NULL;
  g_assert_null(oct_guide_new_regex(vocab, deep, &error));
  g_assert_error(error, OCT_TEXT_ERROR, OCT_TEXT_ERROR_LIMIT);
  g_clear_error(&error);
  g_assert_null(schema_guide(schema->str, &error));
  g_assert_error(error, OCT_TEXT_ERROR, OCT_TEXT_ERROR_LIMIT);
  g_clear_error(&error);
  /* A pattern whose positions double with each character. */
  g_autoptr(oct_guide) guide = oct_guide_new_regex(vocab, "(a|b)*a(a|b){40}", &error);
  g_assert_no_error(error);
  oct_guide_state state = {0};
  oct_rng rng;
  oct_rng_seed(&rng, 1, 0);
  gboolean going = TRUE;
  for (guint i = 0; i < 60000 && going; i++)
    going = feed(guide, &state, oct_rng_below(&rng, 2) > 0 ? "a" : "b", 1);
  g_assert_false(going);
  g_autofree guint32 *bits = g_new(guint32, oct_guide_vocab_words(vocab));
  g_assert_false(oct_guide_mask(guide, &state, bits, &error));
  g_assert_error(error, OCT_TEXT_ERROR, OCT_TEXT_ERROR_LIMIT);
}

/* A guide whose texts differ for ever uses up its positions: it says so on the way. */
static void
use_is_told(void) {
  g_autoptr(oct_guide) guide = oct_guide_new_regex(vocab, "[ab]*a[ab]{16}", NULL);
  oct_guide_state state = {0};
  oct_rng rng;
  oct_rng_seed(&rng, 6, 0);
  g_assert_cmpfloat(oct_guide_used(guide), <, 0.01);
  double before = 0;
  for (guint i = 0; i < 2 * OCT_GUIDE_POSITIONS_MAX; i++) {
    const char *letter = oct_rng_below(&rng, 2) == 0 ? "a" : "b";
    if (!feed(guide, &state, letter, 1))
      break;
    g_assert_cmpfloat(oct_guide_used(guide), >=, before);
    before = oct_guide_used(guide);
  }
  g_assert_cmpfloat(before, >, 0.9);
  g_assert_cmpfloat(oct_guide_used(guide), ==, 1);
}

/* An answer deeper than the limit cannot begin another value inside, and can end. */
static void
depth_of_an_answer_is_limited(void) {
  g_autoptr(oct_guide) guide = oct_guide_new_json(vocab, NULL);
  oct_guide_state state = {0};
  guint depth = 0;
  while (feed(guide, &state, "{\"a\":", 5))
    depth++;
  g_assert_cmpuint(depth, ==, OCT_GUIDE_DEPTH_MAX + 1);
  g_assert_false(feed(guide, &state, "[", 1));
  g_assert_true(feed(guide, &state, "1", 1));
  while (!oct_guide_may_end(guide, &state))
    g_assert_true(feed(guide, &state, "}", 1));
}

/* --- masks
 * ------------------------------------------------------------------------------------------- */

static void
check_mask(oct_guide *guide, const oct_guide_state *state, guint32 *bits) {
  g_autoptr(GError) error = NULL;
  gboolean ok = oct_guide_mask(guide, state, bits, &error);
  g_assert_no_error(error);
  g_assert_true(ok);
  for (guint32 id = 0; id < oct_tokenizer_n_tokens(tokenizer); id++) {
    oct_guide_state copy = *state;
    gboolean allowed = (bits[id / 32] >> (id % 32) & 1) != 0;
    if (oct_guide_advance(guide, &copy, id) != allowed)
      g_error("token %u: the mask says %d", id, allowed);
  }
}

/* Answers made of random allowed tokens: masks are what advance() allows, and the answer fits. */
static void
random_answers_fit(void) {
  oct_rng rng;
  oct_rng_seed(&rng, 3, 0);
  g_test_message("seed 3");
  g_autofree guint32 *bits = g_new(guint32, oct_guide_vocab_words(vocab));
  for (guint s = 0; s < G_N_ELEMENTS(schemas) + 1; s++)
    for (guint round = 0; round < 6; round++) {
      g_autoptr(oct_guide) guide = s < G_N_ELEMENTS(schemas) ? schema_guide(schemas[s].schema, NULL)
                                                             : oct_guide_new_json(vocab, NULL);
      oct_guide_state state = {0};
      g_autoptr(GString) text = g_string_new(NULL);
      for (guint n = 0; !state.ended; n++) {
        check_mask(guide, &state, bits);
        /* After a while only what brings the answer to its end. */
        guint32 id, tries = 0;
        do
          id = (guint32)oct_rng_below(&rng, oct_tokenizer_n_tokens(tokenizer));
        while ((bits[id / 32] >> (id % 32) & 1) == 0 && ++tries < 100000);
        if (n > 12)
          for (const char *p = "0}]\"elsrufant:1,{"; *p != 0; p++) {
            guint32 one = oct_vocab_byte(oct_tokenizer_vocab(tokenizer), (guint8)*p);
            if ((bits[one / 32] >> (one % 32) & 1) != 0) {
              id = one;
              break;
            }
          }
        if (oct_guide_may_end(guide, &state) && n > 3)
          id = oct_tokenizer_role(tokenizer, OCT_ROLE_EOS);
        if (n > 400)
          break; /* some values end only by chance */
        g_assert_true(oct_guide_advance(guide, &state, id));
        oct_text bytes = oct_tokenizer_bytes(tokenizer, id);
        if (!state.ended)
          g_string_append_len(text, bytes.bytes, (gssize)bytes.size);
      }
      json_t *json = state.ended
                         ? json_loadb(text->str, text->len, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL)
                         : json_null();
      if (json == NULL)
        g_error("'%s' is not JSON", text->str);
      json_decref(json);
    }
}

static void
choices_are_all_there_is(void) {
  static const char *const choices[] = {"yes", "yesterday", "no", "é"};
  g_autoptr(oct_guide) guide = oct_guide_new_choice(vocab, choices, 4, NULL);
  for (guint i = 0; i < 4; i++)
    g_assert_true(accepts(guide, choices[i]));
  static const char *const others[] = {"", "y", "yesterda", "yesno", "No"};
  for (guint i = 0; i < G_N_ELEMENTS(others); i++)
    g_assert_false(accepts(guide, others[i]));
  oct_guide_state state = {0};
  g_autofree guint32 *bits = g_new(guint32, oct_guide_vocab_words(vocab));
  check_mask(guide, &state, bits);
  g_assert_true(feed(guide, &state, "yes", 3));
  check_mask(guide, &state, bits);
  g_assert_true(oct_guide_advance(guide, &state, oct_tokenizer_role(tokenizer, OCT_ROLE_EOS)));
  check_mask(guide, &state, bits);
  g_autoptr(GError) error = NULL;
  g_assert_null(oct_guide_new_choice(vocab, choices, 0, &error));
  g_assert_error(error, OCT_TEXT_ERROR, OCT_TEXT_ERROR_INPUT);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  const char *config = "{\"eos_token\":\"<|im_end|>\"}";
  tokenizer = text_tokenizer("llama3");
  g_assert_true(oct_tokenizer_read_config(tokenizer, config, strlen(config), NULL));
  vocab = oct_guide_vocab_new(tokenizer);
  g_test_add_func("/text/guide/patterns-accept-what-glib-matches",
                  patterns_accept_what_glib_matches);
  g_test_add_func("/text/guide/classes-are-characters-not-bytes", classes_are_characters_not_bytes);
  g_test_add_func("/text/guide/schemas-accept-and-reject", schemas_accept_and_reject);
  g_test_add_func("/text/guide/refuses-by-name", refuses_by_name);
  g_test_add_func("/text/guide/work-is-limited", work_is_limited);
  g_test_add_func("/text/guide/use-is-told", use_is_told);
  g_test_add_func("/text/guide/depth-of-an-answer-is-limited", depth_of_an_answer_is_limited);
  g_test_add_func("/text/guide/random-answers-fit", random_answers_fit);
  g_test_add_func("/text/guide/choices-are-all-there-is", choices_are_all_there_is);
  int status = g_test_run();
  oct_guide_vocab_free(vocab);
  oct_tokenizer_free(tokenizer);
  return status;
}
