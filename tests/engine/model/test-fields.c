/* Checked reading of JSON: what is refused, and what the messages say. */
#include <string.h>

#include "engine/model/fields.h"
#include "engine/model/spec.h"

static void
expect_message(const GError *error, int code, const char *part) {
  g_assert_error(error, OCT_MODEL_ERROR, code);
  if (strstr(error->message, part) == NULL)
    g_error("'%s' does not contain '%s'", error->message, part);
}

/* Text that is not an acceptable document. */
static void
expect_unparsed(const char *text, gsize size, const char *part) {
  g_autoptr(GError) error = NULL;
  g_assert_null(oct_fields_parse("doc", text, size, &error));
  expect_message(error, OCT_MODEL_ERROR_PARSE, part);
}

static void
test_documents(void) {
  const struct {
    const char *text, *part;
  } cases[] = {
      {"", "doc:1:0:"},
      {"[1]", "doc: not a JSON object"},
      {"3", "doc:1:1:"},
      {"{\"a\": 1", "doc:1:7:"},
      {"{\n\"a\": 1} x", "doc:2:9:"},
      {"{\"a\": 1, \"a\": 2}", "duplicate object key"},
      {"{\"a\": NaN}", "'NaN', in field a"},
      {"{\"a\": -Infinity}", "invalid token"},
      {"{\"a\": 9223372036854775808}", "too big integer near '9223372036854775808', in field a"},
      {"{\"a\": -9223372036854775809}", "near '-9223372036854775809', in field a"},
      {"{\"x\": 1, \"big\" : 1e999}", "real number overflow near '1e999', in field big"},
      {"{\"a\": \"\\u0000\"}", "\\u0000"},
      {"{\"a\": 01}", "doc:1:"},
      {"{\"a\": 'b'}", "doc:1:"},
      {"{\"a\": 1,}", "doc:1:"},
      {"// c\n{\"a\": 1}", "doc:1:"},
      {"\xef\xbb\xbf{}", "doc:1:"},
  };
  for (guint i = 0; i < G_N_ELEMENTS(cases); i++)
    expect_unparsed(cases[i].text, strlen(cases[i].text), cases[i].part);
  expect_unparsed("{\"a\": \"\xff\xfe\"}", 11, "unable to decode byte 0xff");
  expect_unparsed("{\"a\": 1}\0", 9, "doc:1:");
  expect_unparsed("\x7f"
                  "ELF\x02\x01\x01\0\0",
                  9, "doc:1:");
}

static void
test_depth(void) {
  for (guint depth = OCT_FIELDS_DEPTH_MAX; depth <= 100000; depth = depth * 5 / 4 + 1) {
    g_autoptr(GString) text = g_string_new("{\"a\": ");
    for (guint i = 1; i < depth; i++)
      g_string_append_c(text, '[');
    for (guint i = 1; i < depth; i++)
      g_string_append_c(text, ']');
    g_string_append_c(text, '}');
    if (depth > OCT_FIELDS_DEPTH_MAX) {
      expect_unparsed(text->str, text->len, "nested deeper than 64 levels");
      continue;
    }
    g_autoptr(GError) error = NULL;
    json_t *root = oct_fields_parse("doc", text->str, text->len, &error);
    g_assert_no_error(error);
    json_decref(root);
  }
  /* Brackets inside strings do not nest, an escaped quote does not end one. */
  g_autoptr(GString) text = g_string_new("{\"a\": \"\\\"");
  for (guint i = 0; i < 1000; i++)
    g_string_append_c(text, '[');
  g_string_append(text, "\"}");
  g_autoptr(GError) error = NULL;
  json_t *root = oct_fields_parse("doc", text->str, text->len, &error);
  g_assert_no_error(error);
  json_decref(root);
}

static void
test_size(void) {
  g_autoptr(GString) text = g_string_new("{}");
  while (text->len < OCT_FIELDS_BYTES_MAX)
    g_string_append_c(text, ' ');
  g_autoptr(GError) error = NULL;
  json_t *root = oct_fields_parse("doc", text->str, text->len, &error);
  g_assert_no_error(error);
  json_decref(root);
  g_string_append_c(text, ' ');
  expect_unparsed(text->str, text->len, "1048577 bytes, at most 1048576");
}

/* A document with one object, and the place of its first error. */
typedef struct fixture {
  json_t *root;
  oct_fields fields;
  GError *error;
} fixture;

static void
open_fixture(fixture *f, const char *text) {
  f->error = NULL;
  f->root = oct_fields_parse("doc", text, strlen(text), &f->error);
  g_assert_no_error(f->error);
  oct_fields_init(&f->fields, "doc", f->root, &f->error);
}

/* Checks the error, and makes the fixture usable again. */
static void
take_error(fixture *f, int code, const char *message) {
  g_assert_true(oct_fields_failed(&f->fields));
  g_assert_error(f->error, OCT_MODEL_ERROR, code);
  g_assert_cmpstr(f->error->message, ==, message);
  g_clear_error(&f->error);
}

static void
close_fixture(fixture *f) {
  g_assert_no_error(f->error);
  json_decref(f->root);
}

static void
test_integers(void) {
  fixture f;
  open_fixture(&f, "{\"n\": 7, \"z\": 0, \"m\": -5, \"r\": 7.0, \"s\": \"7\", \"b\": true,"
                   " \"x\": null, \"big\": 9223372036854775807}");
  g_assert_cmpuint(oct_fields_u32(&f.fields, "n", 1, 10), ==, 7);
  g_assert_cmpuint(oct_fields_u32(&f.fields, "n", 7, 7), ==, 7);
  g_assert_cmpuint(oct_fields_u32_or(&f.fields, "absent", 1, 10, 3), ==, 3);
  g_assert_cmpuint(oct_fields_u32_or(&f.fields, "x", 1, 10, 3), ==, 3);
  g_assert_false(oct_fields_failed(&f.fields));
  const struct {
    const char *name;
    int code;
    const char *message;
  } cases[] = {
      {"absent", OCT_MODEL_ERROR_FIELD, "doc: field absent is missing"},
      {"x", OCT_MODEL_ERROR_FIELD, "doc: field x is missing"},
      {"z", OCT_MODEL_ERROR_FIELD, "doc: field z is 0, allowed are 1 to 6"},
      {"n", OCT_MODEL_ERROR_FIELD, "doc: field n is 7, allowed are 1 to 6"},
      {"m", OCT_MODEL_ERROR_FIELD, "doc: field m is -5, allowed are 1 to 6"},
      {"big", OCT_MODEL_ERROR_FIELD, "doc: field big is 9223372036854775807, allowed are 1 to 6"},
      {"r", OCT_MODEL_ERROR_PARSE, "doc: field r is 7.0, expected an integer"},
      {"s", OCT_MODEL_ERROR_PARSE, "doc: field s is \"7\", expected an integer"},
      {"b", OCT_MODEL_ERROR_PARSE, "doc: field b is true, expected an integer"},
  };
  for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
    g_assert_cmpuint(oct_fields_u32(&f.fields, cases[i].name, 1, 6), ==, 0);
    take_error(&f, cases[i].code, cases[i].message);
  }
  close_fixture(&f);
}

static void
test_others(void) {
  fixture f;
  open_fixture(&f, "{\"r\": 2.5, \"i\": 3, \"t\": true, \"s\": \"text\", \"a\": [1, \"b\"]}");
  g_assert_cmpfloat(oct_fields_real(&f.fields, "r", 0, 10), ==, 2.5);
  g_assert_cmpfloat(oct_fields_real(&f.fields, "i", 0, 10), ==, 3);
  g_assert_cmpfloat(oct_fields_real_or(&f.fields, "absent", 0, 10, 4), ==, 4);
  g_assert_true(oct_fields_bool_or(&f.fields, "t", FALSE));
  g_assert_true(oct_fields_bool_or(&f.fields, "absent", TRUE));
  g_assert_cmpstr(oct_fields_string(&f.fields, "s"), ==, "text");
  g_assert_cmpstr(oct_fields_string_or(&f.fields, "absent", "none"), ==, "none");
  g_assert_false(oct_fields_failed(&f.fields));
  oct_fields_real(&f.fields, "r", 3, 10);
  take_error(&f, OCT_MODEL_ERROR_FIELD, "doc: field r is 2.5, allowed are 3 to 10");
  oct_fields_real(&f.fields, "s", 3, 10);
  take_error(&f, OCT_MODEL_ERROR_PARSE, "doc: field s is \"text\", expected a number");
  oct_fields_bool_or(&f.fields, "i", FALSE);
  take_error(&f, OCT_MODEL_ERROR_PARSE, "doc: field i is 3, expected true or false");
  g_assert_cmpstr(oct_fields_string(&f.fields, "i"), ==, "");
  take_error(&f, OCT_MODEL_ERROR_PARSE, "doc: field i is 3, expected a string");
  const json_t *array = oct_fields_array(&f.fields, "a", 2);
  g_assert_cmpuint(oct_fields_element_u32(&f.fields, "a", array, 0, 1, 1), ==, 1);
  g_assert_cmpstr(oct_fields_element_string(&f.fields, "a", array, 1), ==, "b");
  oct_fields_element_u32(&f.fields, "a", array, 1, 1, 1);
  take_error(&f, OCT_MODEL_ERROR_PARSE, "doc: field a[1] is \"b\", expected an integer");
  g_assert_null(oct_fields_array(&f.fields, "a", 1));
  take_error(&f, OCT_MODEL_ERROR_FIELD,
             "doc: field a is [1,\"b\"], 2 elements, at most 1 are allowed");
  g_assert_null(oct_fields_array(&f.fields, "s", 1));
  take_error(&f, OCT_MODEL_ERROR_PARSE, "doc: field s is \"text\", expected an array");
  close_fixture(&f);
}

static void
test_nesting(void) {
  fixture f;
  oct_fields inner, deep;
  open_fixture(&f, "{\"outer\": {\"inner\": {\"n\": 12}}, \"n\": 1}");
  g_assert_true(oct_fields_object(&f.fields, "outer", &inner));
  g_assert_true(oct_fields_object(&inner, "inner", &deep));
  g_assert_false(oct_fields_object_or(&inner, "absent", &deep));
  oct_fields_u32(&deep, "n", 1, 5);
  /* Every reader of the document knows, and reads on without effect. */
  g_assert_true(oct_fields_failed(&f.fields));
  g_assert_cmpuint(oct_fields_u32(&f.fields, "n", 1, 5), ==, 0);
  g_assert_cmpuint(oct_fields_u32_or(&f.fields, "n", 1, 5, 9), ==, 9);
  take_error(&f, OCT_MODEL_ERROR_FIELD, "doc: field outer.inner.n is 12, allowed are 1 to 5");
  g_assert_false(oct_fields_object(&f.fields, "n", &inner));
  take_error(&f, OCT_MODEL_ERROR_PARSE, "doc: field n is 1, expected an object");
  oct_fields_fail(&f.fields, "n", OCT_MODEL_ERROR_FIELD, "but %s", "no");
  take_error(&f, OCT_MODEL_ERROR_FIELD, "doc: field n is 1, but no");
  close_fixture(&f);
}

/* Values are cut, and never break the message. */
static void
test_long_values(void) {
  fixture f;
  g_autofree char *filler = g_strnfill(5000, 'a');
  g_autofree char *text = g_strdup_printf("{\"s\": \"%s\", \"u\": \"\xe2\x82\xac\"}", filler);
  open_fixture(&f, text);
  oct_fields_u32(&f.fields, "s", 0, 1);
  g_assert_cmpuint(strlen(f.error->message), <, 200);
  g_assert_true(g_utf8_validate(f.error->message, -1, NULL));
  g_clear_error(&f.error);
  oct_fields_u32(&f.fields, "u", 0, 1);
  take_error(&f, OCT_MODEL_ERROR_PARSE, "doc: field u is \"\\u20AC\", expected an integer");
  close_fixture(&f);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/model/fields/refuses-what-is-not-a-json-object", test_documents);
  g_test_add_func("/model/fields/refuses-deep-nesting", test_depth);
  g_test_add_func("/model/fields/refuses-a-long-document", test_size);
  g_test_add_func("/model/fields/integers-have-type-and-range", test_integers);
  g_test_add_func("/model/fields/other-types-are-checked", test_others);
  g_test_add_func("/model/fields/first-error-stands-and-has-its-path", test_nesting);
  g_test_add_func("/model/fields/messages-stay-short", test_long_values);
  return g_test_run();
}
