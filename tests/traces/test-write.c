/* What is written reads back the same; the sample traces in the source are what gen makes. */
#include <math.h>
#include <string.h>
#include <unistd.h>

#include <glib.h>
#include <glib/gstdio.h>

#include "tests/traces/fixture.h"
#include "traces/gen.h"
#include "traces/write.h"

#define ROW(rows, i) ((const oct_trace_request *)g_ptr_array_index(rows, i))

static char *
scratch(void) {
  char *path = NULL;
  int fd = g_file_open_tmp("octet-trace-XXXXXX", &path, NULL);
  g_assert_cmpint(fd, >=, 0);
  close(fd);
  return path;
}

/* Writes all of `trace` to `path`. */
static void
copy(oct_trace *trace, const char *path) {
  GError *error = NULL;
  oct_trace_writer *writer = oct_trace_writer_open(path, trace, &error);
  oct_trace_request row;
  g_assert_no_error(error);
  while (oct_trace_next(trace, &row, &error))
    g_assert_true(oct_trace_writer_write(writer, &row, NULL));
  g_assert_no_error(error);
  g_assert_true(oct_trace_writer_close(writer, &error));
}

static void
assert_equal(const oct_trace_request *a, const oct_trace_request *b) {
  g_assert_cmpint(a->arrival_ns, ==, b->arrival_ns);
  g_assert_cmpint(a->think_ns, ==, b->think_ns);
  g_assert_cmpuint(a->input_tokens, ==, b->input_tokens);
  g_assert_cmpuint(a->output_tokens, ==, b->output_tokens);
  g_assert_cmpuint(a->max_tokens, ==, b->max_tokens);
  g_assert_cmpuint(a->block_size, ==, b->block_size);
  g_assert_cmpuint(a->session, ==, b->session);
  g_assert_cmpuint(a->parent, ==, b->parent);
  g_assert_cmpint(a->priority, ==, b->priority);
  g_assert_cmpstr(a->class_name, ==, b->class_name);
  g_assert_cmpmem(a->hash_ids, a->n_hash_ids * sizeof(guint64), b->hash_ids,
                  b->n_hash_ids * sizeof(guint64));
  g_assert_cmpmem(a->output_hash_ids, a->n_output_hash_ids * sizeof(guint64), b->output_hash_ids,
                  b->n_output_hash_ids * sizeof(guint64));
}

/* Opens `source` twice: the rows as read, and as read back after writing. */
static void
round_trip(const char *source, const oct_trace_options *options) {
  g_autofree char *path = scratch();
  GError *error = NULL;
  g_autoptr(oct_trace) first = oct_trace_open(source, options, &error);
  g_assert_no_error(error);
  g_autoptr(GPtrArray) wanted = oct_test_read_all(first);
  g_autoptr(oct_trace) second = oct_trace_open(source, options, &error);
  copy(second, path);
  g_autoptr(oct_trace) back = oct_trace_open(path, NULL, &error);
  g_assert_no_error(error);
  g_autoptr(GPtrArray) got = oct_test_read_all(back);
  const oct_trace_facts *a = oct_trace_get_facts(first), *b = oct_trace_get_facts(back);
  g_assert_cmpuint(got->len, ==, wanted->len);
  g_assert_cmpuint(got->len, >, 0);
  for (guint i = 0; i < got->len; i++)
    assert_equal(ROW(wanted, i), ROW(got, i));
  g_assert_cmpint(a->spread, ==, b->spread);
  g_assert_cmpuint(a->concurrency, ==, b->concurrency);
  g_assert_cmpuint(a->block_size, ==, b->block_size);
  g_assert_cmpint(b->format, ==, OCT_TRACE_FORMAT_OCTET);
  g_unlink(path);
}

static void
test_generated(void) {
  static const char *const sources[] = {
      "gen:chat-150,requests=500",
      "gen:sharegpt,requests=500,class=a\"b\\c,priority=-3",
      "gen:mooncake-conversation,requests=200",
      "gen:agentic,requests=60",
      "gen:azure-code-2023,requests=500,max-tokens=true*1.5",
      "gen:concurrency=16,requests=40,turns=2,think=exponential:3",
  };
  for (gsize i = 0; i < G_N_ELEMENTS(sources); i++)
    round_trip(sources[i], NULL);
}

/* Times are exact to the nanosecond up to 104 days, as far as the doubles of JSON reach. */
static void
test_times(void) {
  g_autofree char *path = scratch();
  GString *text = g_string_new("arrived_at,num_prefill_tokens,num_decode_tokens\n");
  for (guint i = 0; i < 9; i++)
    g_string_append_printf(text, "%u.%09u,1,1\n", 1000000 * i, 123456789 + i);
  oct_trace_options options;
  oct_trace_options_init(&options);
  g_assert_true(g_file_set_contents(path, text->str, -1, NULL));
  g_string_free(text, TRUE);
  round_trip(path, &options);
  g_unlink(path);
}

static void
test_mooncake_spread(void) {
  g_autofree char *path = scratch();
  g_assert_true(g_file_set_contents(
      path,
      "{\"timestamp\":0,\"input_length\":600,\"output_length\":1,\"hash_ids\":[1,2]}\n"
      "{\"timestamp\":0,\"input_length\":100,\"output_length\":1,\"hash_ids\":[3]}\n"
      "{\"timestamp\":3000,\"input_length\":1,\"output_length\":1,\"session_id\":\"x\"}\n"
      "{\"delay\":5,\"input_length\":9,\"output_length\":1,\"session_id\":\"x\"}\n",
      -1, NULL));
  oct_trace_options options;
  oct_trace_options_init(&options);
  options.spread = TRUE;
  round_trip(path, &options);
  g_unlink(path);
}

/* Writing a written trace changes nothing: one text for one trace. */
static void
test_stable(void) {
  g_autofree char *a = scratch(), *b = scratch(), *text_a = NULL, *text_b = NULL;
  g_autoptr(oct_trace) trace = oct_trace_open("gen:sharegpt,requests=50,seed=4", NULL, NULL);
  copy(trace, a);
  g_autoptr(oct_trace) back = oct_trace_open(a, NULL, NULL);
  copy(back, b);
  g_assert_true(g_file_get_contents(a, &text_a, NULL, NULL));
  g_assert_true(g_file_get_contents(b, &text_b, NULL, NULL));
  /* Only the header's source is another. */
  g_assert_cmpstr(strchr(text_a, '\n'), ==, strchr(text_b, '\n'));
  g_unlink(a);
  g_unlink(b);
}

static void
test_large_ids(void) {
  g_autofree char *path = scratch();
  g_autoptr(oct_trace) trace = oct_trace_open("gen:requests=1", NULL, NULL);
  g_autoptr(oct_trace_writer) writer = oct_trace_writer_open(path, trace, NULL);
  guint64 id = (guint64)G_MAXINT64 + 1;
  oct_trace_request row = {.arrival_ns = 0,
                           .input_tokens = 16,
                           .output_tokens = 1,
                           .block_size = 16,
                           .hash_ids = &id,
                           .n_hash_ids = 1,
                           .class_name = ""};
  g_autoptr(GError) error = NULL;
  g_assert_false(oct_trace_writer_write(writer, &row, &error));
  g_assert_error(error, OCT_TRACE_ERROR, OCT_TRACE_ERROR_LIMIT);
  g_unlink(path);
}

static void
test_no_room(void) {
  if (g_access("/dev/full", W_OK) != 0) {
    g_test_skip("no /dev/full");
    return;
  }
  g_autoptr(oct_trace) trace = oct_trace_open("gen:requests=1", NULL, NULL);
  oct_trace_writer *writer = oct_trace_writer_open("/dev/full", trace, NULL);
  oct_trace_request row;
  g_autoptr(GError) error = NULL;
  g_assert_true(oct_trace_next(trace, &row, NULL));
  g_assert_true(oct_trace_writer_write(writer, &row, NULL)); /* in the buffer */
  g_assert_false(oct_trace_writer_close(writer, &error));
  g_assert_error(error, OCT_TRACE_ERROR, OCT_TRACE_ERROR_IO);
  g_clear_error(&error);
  g_assert_null(oct_trace_writer_open("/nonexistent/x", trace, &error));
  g_assert_error(error, OCT_TRACE_ERROR, OCT_TRACE_ERROR_IO);
}

static void
test_samples(void) {
  static const char *const names[] = {"chat.jsonl", "closed.jsonl", "sessions.jsonl"};
  static const guint wanted[] = {40, 12, 24};
  for (gsize i = 0; i < G_N_ELEMENTS(names); i++) {
    g_autofree char *path =
        g_test_build_filename(G_TEST_DIST, "..", "traces", "samples", names[i], NULL);
    GError *error = NULL;
    g_autoptr(oct_trace) trace = oct_trace_open(path, NULL, &error);
    g_assert_no_error(error);
    g_autoptr(GPtrArray) rows = oct_test_read_all(trace);
    g_assert_cmpuint(rows->len, ==, wanted[i]);
  }
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/traces/write/generated-traces-read-back-equal", test_generated);
  g_test_add_func("/traces/write/times-read-back-to-the-nanosecond", test_times);
  g_test_add_func("/traces/write/a-spread-trace-says-so", test_mooncake_spread);
  g_test_add_func("/traces/write/a-written-trace-is-written-the-same", test_stable);
  g_test_add_func("/traces/write/refuses-ids-that-json-cannot-hold", test_large_ids);
  g_test_add_func("/traces/write/says-that-a-file-is-not-complete", test_no_room);
  g_test_add_func("/traces/write/the-samples-read", test_samples);
  return g_test_run();
}
