#include "tests/traces/fixture.h"

#include <string.h>

oct_trace *
oct_test_open_text(const char *text, const oct_trace_options *options) {
  GError *error = NULL;
  oct_trace *trace = oct_trace_open_bytes("test.trace", text, strlen(text), options, &error);
  g_assert_no_error(error);
  return trace;
}

static void
free_row(gpointer data) {
  oct_trace_request *row = data;
  g_free((char *)row->class_name);
  oct_trace_request_free(row);
}

GPtrArray *
oct_test_read_all(oct_trace *trace) {
  GPtrArray *rows = g_ptr_array_new_with_free_func(free_row);
  oct_trace_request row;
  GError *error = NULL;
  while (oct_trace_next(trace, &row, &error)) {
    oct_trace_request *copy = oct_trace_request_copy(&row);
    copy->class_name = g_strdup(row.class_name);
    g_assert_cmpuint(copy->index, ==, rows->len);
    g_ptr_array_add(rows, copy);
  }
  g_assert_no_error(error);
  return rows;
}

GError *
oct_test_read_error(const char *text, const oct_trace_options *options) {
  GError *error = NULL;
  g_autoptr(oct_trace) trace =
      oct_trace_open_bytes("test.trace", text, strlen(text), options, &error);
  if (trace == NULL) {
    g_assert_nonnull(error);
    return error;
  }
  oct_trace_request row;
  while (oct_trace_next(trace, &row, &error))
    g_assert_cmpuint(row.input_tokens, >, 0);
  g_assert_nonnull(error);
  GError *again = NULL;
  g_assert_false(oct_trace_next(trace, &row, &again));
  g_assert_nonnull(again);
  g_assert_cmpstr(again->message, ==, error->message);
  g_error_free(again);
  return error;
}

void
oct_test_refuses(const char *text, const oct_trace_options *options, oct_trace_error code,
                 const char *parts) {
  g_autoptr(GError) error = oct_test_read_error(text, options);
  g_assert_error(error, OCT_TRACE_ERROR, (int)code);
  g_auto(GStrv) wanted = g_strsplit(parts, "|", -1);
  for (gsize i = 0; wanted[i] != NULL; i++)
    if (strstr(error->message, wanted[i]) == NULL)
      g_error("\"%s\" does not contain \"%s\"", error->message, wanted[i]);
}

char *
oct_test_shared(const char *name) {
  const char *root = g_getenv("OCT_SHARED"), *tests = g_getenv("G_TEST_SRCDIR");
  g_autofree char *beside =
      g_build_filename(tests != NULL ? tests : ".", "..", "..", "shared", NULL);
  char *path = g_build_filename(root != NULL ? root : beside, name, NULL);
  if (g_file_test(path, G_FILE_TEST_EXISTS))
    return path;
  g_autofree char *why = g_strdup_printf("no %s: set OCT_SHARED to the folder of recordings", path);
  g_test_skip(why);
  g_free(path);
  return NULL;
}
