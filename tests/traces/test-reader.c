/* What spans rows: lines, order, sorting, spreading, limits. */
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include <glib.h>
#include <glib/gstdio.h>

#include "engine/base/rng.h"
#include "tests/traces/fixture.h"
#include "traces/idmap.h"
#include "traces/lines.h"

#define ROW(rows, i) ((const oct_trace_request *)g_ptr_array_index(rows, i))

/* A Mooncake trace with these times in ms. */
static char *
text_of(const gint64 *ms, gsize n) {
  GString *text = g_string_new(NULL);
  for (gsize i = 0; i < n; i++)
    g_string_append_printf(
        text, "{\"timestamp\":%" G_GINT64_FORMAT ",\"input_length\":%u,\"output_length\":1}\n",
        ms[i], (guint)i + 1);
  return g_string_free(text, FALSE);
}

/* --- lines ------------------------------------------------------------------------------------ */

static void
test_lines(void) {
  const char *text = "\xef\xbb\xbf"
                     "one\r\n\ntwo\nthree";
  g_autoptr(oct_lines) lines = oct_lines_over("x", text, strlen(text));
  static const char *const wanted[] = {"one", "", "two", "three"};
  char *line;
  gsize size;
  GError *error = NULL;
  for (guint i = 0; i < 4; i++) {
    g_assert_true(oct_lines_next(lines, &line, &size, &error));
    g_assert_cmpstr(line, ==, wanted[i]);
    g_assert_cmpuint(size, ==, strlen(wanted[i]));
    g_assert_cmpuint(oct_lines_number(lines), ==, i + 1);
  }
  g_assert_false(oct_lines_next(lines, &line, &size, &error));
  g_assert_no_error(error);
}

/* Lines of all lengths around the size of a read, from a file. */
static void
test_lines_lengths(void) {
  g_autofree char *path = NULL;
  int fd = g_file_open_tmp("octet-lines-XXXXXX", &path, NULL);
  g_assert_cmpint(fd, >=, 0);
  g_autoptr(GString) text = g_string_new(NULL);
  static const gsize lengths[] = {0, 1, 65534, 65535, 65536, 65537, 5, 200000, 0, 131072};
  for (gsize i = 0; i < G_N_ELEMENTS(lengths); i++) {
    g_autofree char *line = g_strnfill(lengths[i], (char)('a' + i));
    g_string_append_printf(text, "%s\n", line);
  }
  g_assert_cmpint(write(fd, text->str, text->len), ==, (gssize)text->len);
  close(fd);
  g_autoptr(oct_lines) lines = oct_lines_open(path, NULL);
  char *line;
  gsize size;
  for (gsize i = 0; i < G_N_ELEMENTS(lengths); i++) {
    g_assert_true(oct_lines_next(lines, &line, &size, NULL));
    g_assert_cmpuint(size, ==, lengths[i]);
    g_assert_cmpuint(strspn(line, (char[]){(char)('a' + i), 0}), ==, size);
  }
  g_assert_false(oct_lines_next(lines, &line, &size, NULL));
  g_unlink(path);
}

static void
test_long_line(void) {
  g_autofree char *text = g_malloc(OCT_TRACE_LINE_BYTES_MAX + 3);
  memset(text, ' ', OCT_TRACE_LINE_BYTES_MAX + 2);
  text[0] = '\n';
  text[OCT_TRACE_LINE_BYTES_MAX + 2] = 0;
  oct_test_refuses(text, NULL, OCT_TRACE_ERROR_LIMIT, "test.trace:2|16777216 bytes");
  text[OCT_TRACE_LINE_BYTES_MAX + 1] = '\n'; /* at the limit: read, and blank */
  oct_test_refuses(text, NULL, OCT_TRACE_ERROR_FORMAT, "empty");
}

static void
test_binary(void) {
  static const char bytes[] = "{\"input_length\":1,\"output_length\":1}\n{\"a\0b\":1}\n";
  g_autoptr(GError) error = NULL;
  g_autoptr(oct_trace) trace = oct_trace_open_bytes("bin", bytes, sizeof bytes - 1, NULL, &error);
  oct_trace_request row;
  g_assert_no_error(error);
  g_assert_true(oct_trace_next(trace, &row, &error));
  g_assert_false(oct_trace_next(trace, &row, &error));
  g_assert_error(error, OCT_TRACE_ERROR, OCT_TRACE_ERROR_SYNTAX);
  g_assert_nonnull(strstr(error->message, "bin:2: byte 4 is zero"));
}

static void
test_missing_file(void) {
  g_autoptr(GError) error = NULL;
  g_assert_null(oct_trace_open("/nonexistent/trace", NULL, &error));
  g_assert_error(error, OCT_TRACE_ERROR, OCT_TRACE_ERROR_IO);
  g_assert_nonnull(strstr(error->message, "/nonexistent/trace"));
  g_clear_error(&error);
  g_assert_null(oct_trace_open("/", NULL, &error)); /* opens, cannot be read */
  g_assert_error(error, OCT_TRACE_ERROR, OCT_TRACE_ERROR_IO);
}

/* --- order ------------------------------------------------------------------------------------ */

static void
test_order(void) {
  static const gint64 ms[] = {0, 5, 5, 4};
  g_autofree char *text = text_of(ms, 4);
  oct_test_refuses(text, NULL, OCT_TRACE_ERROR_VALUE, ":4|0.001000 s before|--sort-window");
}

static void
test_sort(void) {
  static const gint64 ms[] = {3, 1, 2, 2, 9, 7, 8, 8};
  static const guint wanted[] = {2, 3, 4, 1, 6, 7, 8, 5}; /* input tokens; ties in file order */
  g_autofree char *text = text_of(ms, 8);
  oct_trace_options options;
  oct_trace_options_init(&options);
  options.sort_window = 3;
  g_autoptr(oct_trace) trace = oct_test_open_text(text, &options);
  g_autoptr(GPtrArray) rows = oct_test_read_all(trace);
  g_assert_cmpuint(rows->len, ==, 8);
  for (guint i = 0; i < 8; i++)
    g_assert_cmpuint(ROW(rows, i)->input_tokens, ==, wanted[i]);
  g_assert_cmpuint(oct_trace_get_facts(trace)->n_sorted, ==, 2);
  options.sort_window = 1;
  static const gint64 far[] = {5, 6, 7, 1};
  g_autofree char *late = text_of(far, 4);
  oct_test_refuses(late, &options, OCT_TRACE_ERROR_VALUE, ":4|window|too small");
}

/* Random order, windows large enough: the result is the sorted file, ties in file order. */
static void
test_sort_random(void) {
  oct_rng rng;
  oct_rng_seed(&rng, 20240229, 0);
  for (int round = 0; round < 50; round++) {
    gint64 ms[64];
    for (gsize i = 0; i < 64; i++)
      ms[i] = (gint64)oct_rng_below(&rng, 20);
    g_autofree char *text = text_of(ms, 64);
    oct_trace_options options;
    oct_trace_options_init(&options);
    options.sort_window = 64;
    g_autoptr(oct_trace) trace = oct_test_open_text(text, &options);
    g_autoptr(GPtrArray) rows = oct_test_read_all(trace);
    g_assert_cmpuint(rows->len, ==, 64);
    for (guint i = 1; i < 64; i++) {
      const oct_trace_request *a = ROW(rows, i - 1), *b = ROW(rows, i);
      g_assert_true(a->arrival_ns < b->arrival_ns ||
                    (a->arrival_ns == b->arrival_ns && a->line < b->line));
    }
  }
}

/* A session's turns move with its first, and its parents are counted in the sorted order. */
static void
test_sort_sessions(void) {
#define S(id, fields)                                                                              \
  "{\"session_id\":\"" id "\"," fields "\"input_length\":1,\"output_length\":1}\n"
  const char *text = S("late", "\"timestamp\":9,") S("late", "\"delay\":1,")
      S("early", "\"timestamp\":2,") S("early", "\"delay\":1,");
  oct_trace_options options;
  oct_trace_options_init(&options);
  options.sort_window = 4;
  g_autoptr(oct_trace) trace = oct_test_open_text(text, &options);
  g_autoptr(GPtrArray) rows = oct_test_read_all(trace);
  static const guint64 lines[] = {3, 4, 1, 2}, parents[] = {0, 1, 0, 3};
  for (guint i = 0; i < 4; i++) {
    g_assert_cmpuint(ROW(rows, i)->line, ==, lines[i]);
    g_assert_cmpuint(ROW(rows, i)->parent, ==, parents[i]);
  }
}

/* --- spread ----------------------------------------------------------------------------------- */

static void
test_spread(void) {
  /* Ticks of 3 s that jitter by a millisecond; one tick is empty. */
  static const gint64 ms[] = {0, 0, 0, 3000, 5999, 5999, 12000, 12000};
  static const gint64 wanted[] = {0, 1000, 2000, 3000, 5999, 7498, 12000, 13499};
  g_autofree char *text = text_of(ms, 8);
  oct_trace_options options;
  oct_trace_options_init(&options);
  options.spread = TRUE;
  g_autoptr(oct_trace) trace = oct_test_open_text(text, &options);
  g_autoptr(GPtrArray) rows = oct_test_read_all(trace);
  g_assert_cmpuint(rows->len, ==, 8);
  for (guint i = 0; i < 8; i++) /* the tick so far is 2,999 ms from the third on */
    g_assert_cmpint(ROW(rows, i)->arrival_ns / 1000000, ==, wanted[i]);
  const oct_trace_facts *facts = oct_trace_get_facts(trace);
  g_assert_true(facts->spread);
  g_assert_cmpint(facts->tick_ns, ==, 2999000000);
  g_assert_cmpuint(facts->n_distinct_arrivals, ==, 4);
}

static void
test_spread_tick(void) {
  static const gint64 ms[] = {1000, 1000, 1000, 1000, 9000};
  g_autofree char *text = text_of(ms, 5);
  oct_trace_options options;
  oct_trace_options_init(&options);
  g_assert_true(oct_trace_options_set(&options, "spread", "2", NULL));
  g_autoptr(oct_trace) trace = oct_test_open_text(text, &options);
  g_autoptr(GPtrArray) rows = oct_test_read_all(trace);
  for (guint i = 0; i < 4; i++)
    g_assert_cmpint(ROW(rows, i)->arrival_ns, ==, 1000000000 + i * 500000000);
}

static void
test_quantised(void) {
  static const gint64 ticks[] = {0, 0, 3000, 3000, 6000, 6000}, fine[] = {0, 1, 3, 8, 9, 20};
  g_autofree char *text = text_of(ticks, 6), *smooth = text_of(fine, 6);
  g_autoptr(oct_trace) trace = oct_test_open_text(text, NULL);
  g_autoptr(GPtrArray) rows = oct_test_read_all(trace);
  g_assert_cmpuint(rows->len, ==, 6);
  g_assert_true(oct_trace_get_facts(trace)->quantised);
  g_assert_false(oct_trace_get_facts(trace)->spread);
  g_autoptr(oct_trace) other = oct_test_open_text(smooth, NULL);
  g_autoptr(GPtrArray) others = oct_test_read_all(other);
  g_assert_cmpuint(others->len, ==, 6);
  g_assert_false(oct_trace_get_facts(other)->quantised);
}

/* Rows of a closed loop have no tick to be spread over, and are not held. */
static void
test_spread_closed(void) {
  GString *text = g_string_new("num_prefill_tokens,num_decode_tokens\n");
  for (int i = 0; i < 70000; i++)
    g_string_append(text, "1,1\n");
  oct_trace_options options;
  oct_trace_options_init(&options);
  options.spread = TRUE;
  g_autoptr(oct_trace) trace = oct_test_open_text(text->str, &options);
  oct_trace_request row;
  GError *error = NULL;
  guint64 n = 0;
  while (oct_trace_next(trace, &row, &error))
    n++;
  g_assert_no_error(error);
  g_assert_cmpuint(n, ==, 70000);
  g_string_free(text, TRUE);
}

static void
test_spread_limit(void) {
  GString *text = g_string_new("arrived_at,num_prefill_tokens,num_decode_tokens\n");
  for (int i = 0; i < 65538; i++)
    g_string_append(text, "0,1,1\n");
  oct_trace_options options;
  oct_trace_options_init(&options);
  options.spread = TRUE;
  oct_test_refuses(text->str, &options, OCT_TRACE_ERROR_LIMIT, ":65538|65536 rows at one time");
  g_string_free(text, TRUE);
}

/* --- options ---------------------------------------------------------------------------------- */

static void
test_limit(void) {
  static const gint64 ms[] = {0, 1, 2, 3};
  g_autofree char *text = text_of(ms, 4);
  oct_trace_options options;
  oct_trace_options_init(&options);
  options.limit = 2;
  g_autoptr(oct_trace) trace = oct_test_open_text(text, &options);
  g_autoptr(GPtrArray) rows = oct_test_read_all(trace);
  g_assert_cmpuint(rows->len, ==, 2);
}

static void
test_options(void) {
  oct_trace_options o;
  oct_trace_options_init(&o);
  g_assert_true(oct_trace_options_set(&o, "format", "timed", NULL));
  g_assert_true(oct_trace_options_set(&o, "spread", "auto", NULL));
  g_assert_true(oct_trace_options_set(&o, "time-unit", "ms", NULL));
  g_assert_true(oct_trace_options_set(&o, "hash-block-size", "16", NULL));
  g_assert_true(oct_trace_options_set(&o, "sort-window", "65536", NULL));
  g_assert_true(oct_trace_options_set(&o, "concurrency", "8", NULL));
  g_assert_true(oct_trace_options_set(&o, "limit", "12345678901", NULL));
  g_assert_cmpint(o.format, ==, OCT_TRACE_FORMAT_TIMED);
  g_assert_true(o.spread && o.spread_tick_ns == 0 && o.time_unit_ns == 1000000);
  g_assert_true(o.block_size == 16 && o.sort_window == 65536 && o.concurrency == 8);
  g_assert_cmpuint(o.limit, ==, 12345678901);
  static const char *const bad[][2] = {
      {"format", "csv"},  {"spread", "0"},          {"spread", "nan"},        {"spread", "3s"},
      {"time-unit", "m"}, {"hash-block-size", "0"}, {"sort-window", "65537"}, {"limit", "-1"},
      {"limit", "1x"},    {"concurrency", ""},      {"no-such", "thing"}};
  for (gsize i = 0; i < G_N_ELEMENTS(bad); i++) {
    g_autoptr(GError) error = NULL;
    g_assert_false(oct_trace_options_set(&o, bad[i][0], bad[i][1], &error));
    g_assert_error(error, OCT_TRACE_ERROR, OCT_TRACE_ERROR_OPTION);
    g_assert_nonnull(strstr(error->message, bad[i][1]));
  }
}

static void
test_generated_source(void) {
  oct_trace_options options;
  oct_trace_options_init(&options);
  options.limit = 3;
  g_autoptr(oct_trace) trace = oct_trace_open("gen:chat-150,requests=10", &options, NULL);
  g_autoptr(GPtrArray) rows = oct_test_read_all(trace);
  g_assert_cmpuint(rows->len, ==, 3);
  g_assert_cmpstr(oct_trace_get_name(trace), ==, "chat-150");
  g_autoptr(GError) error = NULL;
  g_assert_null(oct_trace_open("gen:chat-151,requests=10", NULL, &error));
  g_assert_error(error, OCT_TRACE_ERROR, OCT_TRACE_ERROR_OPTION);
}

/* --- idmap ------------------------------------------------------------------------------------ */

static void
test_idmap(void) {
  g_autoptr(oct_idmap) map = oct_idmap_new();
  guint64 value = 0;
  g_assert_false(oct_idmap_get(map, 0, &value));
  for (guint64 i = 0; i < 10000; i++)
    oct_idmap_set(map, i * 64, i);
  oct_idmap_set(map, 64, 77);
  oct_idmap_set(map, G_MAXUINT64, 5);
  g_assert_cmpuint(oct_idmap_count(map), ==, 10001);
  for (guint64 i = 0; i < 10000; i++) {
    g_assert_true(oct_idmap_get(map, i * 64, &value));
    g_assert_cmpuint(value, ==, i == 1 ? 77 : i);
    g_assert_false(oct_idmap_get(map, i * 64 + 1, NULL));
  }
  g_assert_true(oct_idmap_get(map, G_MAXUINT64, &value));
  g_assert_cmpuint(value, ==, 5);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/traces/lines/end-at-newline-or-end-of-file", test_lines);
  g_test_add_func("/traces/lines/of-any-length-are-whole", test_lines_lengths);
  g_test_add_func("/traces/lines/past-the-limit-are-an-error", test_long_line);
  g_test_add_func("/traces/lines/with-zero-bytes-are-an-error", test_binary);
  g_test_add_func("/traces/reader/names-the-file-it-cannot-open", test_missing_file);
  g_test_add_func("/traces/reader/refuses-rows-out-of-order", test_order);
  g_test_add_func("/traces/reader/sorts-within-its-window", test_sort);
  g_test_add_func("/traces/reader/sorts-stably", test_sort_random);
  g_test_add_func("/traces/reader/sorts-turns-with-their-session", test_sort_sessions);
  g_test_add_func("/traces/reader/spreads-rows-over-their-tick", test_spread);
  g_test_add_func("/traces/reader/spreads-over-a-stated-tick", test_spread_tick);
  g_test_add_func("/traces/reader/says-that-times-are-quantised", test_quantised);
  g_test_add_func("/traces/reader/does-not-hold-a-closed-loop", test_spread_closed);
  g_test_add_func("/traces/reader/bounds-the-rows-of-one-time", test_spread_limit);
  g_test_add_func("/traces/reader/stops-at-the-limit", test_limit);
  g_test_add_func("/traces/options/are-checked", test_options);
  g_test_add_func("/traces/reader/opens-generators-by-name", test_generated_source);
  g_test_add_func("/traces/idmap/finds-what-was-set", test_idmap);
  return g_test_run();
}
