/* JSON to and from clients. */
#include <math.h>

#include "engine/api/json-in.h"
#include "engine/api/json-out.h"

static void
writes(const char *text, gsize size, const char *expected) {
  g_autoptr(GString) out = g_string_new(NULL);
  oct_out json = OCT_OUT_INIT(out);
  oct_out_text(&json, text, size);
  g_assert_cmpstr(out->str, ==, expected);
}

static void
test_text(void) {
  writes("", 0, "\"\"");
  writes("a\"b\\c/d", 7, "\"a\\\"b\\\\c/d\"");
  writes("\n\r\t\b\x1f\x7f", 6, "\"\\n\\r\\t\\u0008\\u001f\\u007f\"");
  writes("a\0b", 3, "\"a\\u0000b\"");
  writes("h\xc3\xa9 \xe6\xbc\xa2 \xf0\x9f\x98\x80", 12,
         "\"h\xc3\xa9 \xe6\xbc\xa2 \xf0\x9f\x98\x80\"");
}

static void
test_invalid(void) {
#define BAD "\xef\xbf\xbd"
  writes("\xff", 1, "\"" BAD "\"");
  writes("\xc3", 1, "\"" BAD "\"");
  writes("\xc0\x80", 2, "\"" BAD BAD "\"");
  writes("\xed\xa0\x80", 3, "\"" BAD BAD BAD "\"");
  writes("\xf4\x90\x80\x80", 4, "\"" BAD BAD BAD BAD "\"");
  writes("a\xe6\xbcz", 4, "\"a" BAD BAD "z\"");
}

static void
test_numbers(void) {
  g_autoptr(GString) out = g_string_new(NULL);
  oct_out json = OCT_OUT_INIT(out);
  oct_out_open(&json, '[');
  oct_out_int(&json, 0);
  oct_out_int(&json, -1);
  oct_out_int(&json, G_MININT64);
  oct_out_int(&json, G_MAXINT64);
  oct_out_uint(&json, G_MAXUINT64);
  oct_out_double(&json, 0.1);
  oct_out_double(&json, -1.5e300);
  oct_out_double(&json, 1.0 / 3);
  oct_out_double(&json, NAN);
  oct_out_double(&json, INFINITY);
  oct_out_float(&json, -0.1f);
  oct_out_float(&json, 16777216.0f);
  oct_out_float(&json, -INFINITY);
  oct_out_close(&json, ']');
  g_assert_cmpstr(out->str, ==,
                  "[0,-1,-9223372036854775808,9223372036854775807,18446744073709551615,0.1,"
                  "-1.5e+300,0.3333333333333333,null,null,-0.1,16777216,null]");
}

static void
test_structure(void) {
  g_autoptr(GString) out = g_string_new(NULL);
  oct_out json = OCT_OUT_INIT(out);
  oct_out_open(&json, '{');
  oct_out_put_empty(&json, "a", "[]");
  oct_out_key(&json, "b");
  oct_out_open(&json, '[');
  oct_out_open(&json, '{');
  oct_out_put_null(&json, "c");
  oct_out_put_bool(&json, "d", TRUE);
  oct_out_close(&json, '}');
  oct_out_string(&json, NULL);
  oct_out_close(&json, ']');
  oct_out_put_string(&json, "e\"", "f");
  oct_out_close(&json, '}');
  g_assert_cmpstr(out->str, ==, "{\"a\":[],\"b\":[{\"c\":null,\"d\":true},null],\"e\\\"\":\"f\"}");
}

/* Whatever is written reads back as it was. */
static void
test_round_trip(void) {
  for (double value = 1e-300; value < 1e300; value *= 977.123) {
    g_autoptr(GString) out = g_string_new(NULL);
    oct_out json = OCT_OUT_INIT(out);
    oct_out_double(&json, value);
    g_assert_true(g_ascii_strtod(out->str, NULL) == value);
  }
}

/* --- in ----------------------------------------------------------------------------------------
 */

static void
reads(const char *text, gsize size, const char *message) {
  g_auto(oct_api_fault) fault = {.status = 0};
  json_t *value = oct_json_read(text, size, 0, &fault);
  if (message == NULL) {
    g_assert_nonnull(value);
    json_decref(value);
    return;
  }
  g_assert_null(value);
  g_assert_cmpuint(fault.status, ==, 400);
  if (strstr(fault.message, message) == NULL)
    g_error("'%s' does not say '%s'", fault.message, message);
}

static void
test_refused(void) {
#define READS(text, message) reads(text, sizeof text - 1, message)
  READS("", "not valid JSON");
  READS("{", "not valid JSON");
  READS("{} {}", "not valid JSON");
  READS("{\"a\":1,\"a\":2}", "key twice");
  READS("\"\xff\"", "UTF-8");
  READS("\"\xed\xa0\x80\"", "UTF-8");
  READS("\"\\u0000\"", "U+0000");
  READS("{\"\\u0000\":1}", "U+0000");
  READS("\"\0\"", "not valid JSON");
  READS("1e999", "too large");
  READS("9223372036854775808", "too large");
  READS("NaN", "not valid JSON");
  READS("[1,]", "not valid JSON");
  READS("'a'", "not valid JSON");
  READS("\"\\ud800\"", "not valid JSON");
  READS("9223372036854775807", NULL);
  READS("\"\\ud83d\\ude00\"", NULL);
}

static char *
repeat(const char *before, const char *item, guint n, const char *after) {
  GString *out = g_string_new(NULL);
  for (guint i = 0; i < n; i++)
    g_string_append(out, before);
  g_string_append(out, item);
  for (guint i = 0; i < n; i++)
    g_string_append(out, after);
  return g_string_free(out, FALSE);
}

static void
check_depth(guint depth, const char *message) {
  g_autofree char *text = repeat("[", "", depth, "]");
  reads(text, strlen(text), message);
}

static void
test_depth(void) {
  check_depth(OCT_JSON_DEPTH_MAX - 1, NULL);
  check_depth(OCT_JSON_DEPTH_MAX, NULL);
  check_depth(OCT_JSON_DEPTH_MAX + 1, "64 deep");
  check_depth(1000000, "64 deep");
  /* Brackets in strings are text. */
  g_autofree char *text = repeat("[", "\"[[[[[[[[[[[[[[[[\\\"[[[[\"", OCT_JSON_DEPTH_MAX, "]");
  reads(text, strlen(text), NULL);
}

static void
check_amount(char open, guint n, const char *message) {
  g_autoptr(GString) text = g_string_new(NULL);
  g_string_append_c(text, open);
  for (guint i = 0; i < n; i++)
    g_string_append_printf(text, open == '{' ? "%s\"%u\":0" : "%s%u", i > 0 ? "," : "", i);
  g_string_append_c(text, open == '{' ? '}' : ']');
  reads(text->str, text->len, message);
}

static void
test_amounts(void) {
  check_amount('{', OCT_JSON_KEYS_MAX, NULL);
  check_amount('{', OCT_JSON_KEYS_MAX + 1, "1024 keys");
  check_amount('[', OCT_JSON_ITEMS_MAX, NULL);
  check_amount('[', OCT_JSON_ITEMS_MAX + 1, "65536 items");
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/api/json/text-is-escaped", test_text);
  g_test_add_func("/api/json/what-is-not-utf8-is-replaced", test_invalid);
  g_test_add_func("/api/json/numbers-are-shortest", test_numbers);
  g_test_add_func("/api/json/commas-are-where-they-belong", test_structure);
  g_test_add_func("/api/json/numbers-read-back", test_round_trip);
  g_test_add_func("/api/json/refuses-what-is-not-strict", test_refused);
  g_test_add_func("/api/json/depth-is-limited", test_depth);
  g_test_add_func("/api/json/amounts-are-limited", test_amounts);
  return g_test_run();
}
