/* Rescaling a trace: session starts move, distances within a session do not. */
#include "sim/replay/rows.h"

#include <string.h>

#include <glib/gstdio.h>

typedef struct kept {
  gint64 arrival_ns;
  guint64 index, session, parent, salt;
} kept;

static char *folder;

static char *
write_trace(const char *name, const char *text) {
  char *path = g_build_filename(folder, name, NULL);
  g_autoptr(GError) error = NULL;
  g_file_set_contents(path, text, -1, &error);
  g_assert_no_error(error);
  return path;
}

static GArray *
read_all(const oct_rows_options *options, GError **error) {
  g_autoptr(oct_rows) rows = oct_rows_open(options, error);
  if (rows == NULL)
    return NULL;
  GArray *all = g_array_new(FALSE, FALSE, sizeof(kept));
  oct_trace_request row;
  guint64 salt;
  while (oct_rows_next(rows, &row, &salt, error)) {
    const kept k = {row.arrival_ns, row.index, row.session, row.parent, salt};
    g_array_append_val(all, k);
  }
  return all;
}

static const kept *
at(const GArray *all, guint i) {
  return &g_array_index(all, kept, i);
}

/* 100 starts, one a second; session 11 has turns with recorded times in between. */
static char *
sessions_trace(void) {
  g_autoptr(GString) text = g_string_new(NULL);
  int row = 0, last = 10; /* the session's previous turn */
  for (int i = 0; i < 100; i++, row++) {
    g_string_append_printf(text,
                           "{\"arrival_us\":%d,\"input_tokens\":10,\"output_tokens\":%d,"
                           "\"session\":%d}\n",
                           i * 1000000, i + 1, i + 1);
    if (i % 10 != 6 || i <= 10)
      continue;
    /* A turn of the session that began at 10 s; the file is in order of recorded times. */
    g_string_append_printf(text,
                           "{\"arrival_us\":%d,\"input_tokens\":10,\"output_tokens\":500,"
                           "\"session\":11,\"parent\":%d}\n",
                           i * 1000000 + 1, last);
    last = ++row;
  }
  return write_trace("sessions.jsonl", text->str);
}

static void
check_sessions(double rate, double factor) {
  g_autofree char *path = sessions_trace();
  oct_rows_options options = {.path = path, .rate = rate};
  g_autoptr(GError) error = NULL;
  g_autoptr(GArray) plain = read_all(&(oct_rows_options){.path = path}, &error);
  g_assert_no_error(error);
  g_autoptr(GArray) all = read_all(&options, &error);
  g_assert_no_error(error);
  g_assert_cmpuint(all->len, ==, plain->len);
  gint64 before = 0, wanted_start = (gint64)(10e9 * factor);
  guint turns = 0;
  for (guint i = 0; i < all->len; i++) {
    const kept *k = at(all, i);
    g_assert_cmpint(k->arrival_ns, >=, before);
    before = k->arrival_ns;
    const kept *was = at(plain, (guint)k->index);
    g_assert_cmpuint(was->index, ==, k->index);
    if (k->parent == 0) {
      g_assert_cmpint(ABS(k->arrival_ns - (gint64)((double)was->arrival_ns * factor)), <=, 1);
    } else {
      g_assert_cmpint(ABS(k->arrival_ns - wanted_start - (was->arrival_ns - 10000000000)), <=, 1);
      turns++;
    }
  }
  g_assert_cmpuint(turns, >, 3);
}

static void
test_compress(void) {
  check_sessions(4, 0.25);
  check_sessions(0.5, 2);
}

static void
test_generator(void) {
  g_autoptr(GError) error = NULL;
  oct_rows_options options = {.path = "gen:rate=2,requests=1000,turns=3,think=5"};
  g_autoptr(GArray) plain = read_all(&options, &error);
  options.rate = 20;
  g_autoptr(GArray) fast = read_all(&options, &error);
  g_assert_no_error(error);
  g_assert_cmpuint(fast->len, ==, plain->len);
  for (guint i = 0; i < fast->len; i++) {
    gint64 was = at(plain, i)->arrival_ns, is = at(fast, i)->arrival_ns;
    g_assert_cmpint(was < 0 ? is + 1 : ABS(is - was / 10), <=, was < 0 ? 0 : 1);
  }
}

static void
test_superpose(void) {
  g_autofree char *path = sessions_trace();
  g_autoptr(GError) error = NULL;
  g_autoptr(GArray) plain = read_all(&(oct_rows_options){.path = path}, &error);
  oct_rows_options options = {.path = path, .rate = 3.5, .mode = OCT_RATE_SUPERPOSE};
  g_autoptr(GArray) all = read_all(&options, &error);
  g_assert_no_error(error);
  gint64 before = 0;
  guint per_copy[4] = {0};
  g_autoptr(GHashTable) indices = g_hash_table_new(NULL, NULL);
  for (guint i = 0; i < all->len; i++) {
    const kept *k = at(all, i);
    g_assert_cmpint(k->arrival_ns, >=, before);
    before = k->arrival_ns;
    g_assert_cmpuint(k->salt, <, 4);
    per_copy[k->salt]++;
    g_assert_true(g_hash_table_add(indices, GSIZE_TO_POINTER(k->index + 1)));
    /* Sessions and parents of one copy stay in it. */
    g_assert_cmpuint(k->session % 4, ==, k->salt);
    if (k->parent > 0)
      g_assert_cmpuint((k->parent - 1) % 4, ==, k->salt);
  }
  for (int c = 0; c < 3; c++)
    g_assert_cmpuint(per_copy[c], ==, plain->len);
  g_test_message("the half copy keeps %u of %u rows", per_copy[3], plain->len);
  g_assert_cmpuint(per_copy[3], >, plain->len / 4);
  g_assert_cmpuint(per_copy[3], <, plain->len * 3 / 4);
  /* The first copy begins where the trace does, the second elsewhere and wraps. */
  const kept *second = NULL;
  for (guint i = 0; i < all->len && second == NULL; i++)
    if (at(all, i)->salt == 1)
      second = at(all, i);
  g_assert_nonnull(second);
  if (second != NULL)
    g_assert_cmpuint(second->index / 4, >, 20);
}

static void
test_own_rate(void) {
  g_autofree char *path = sessions_trace();
  g_autoptr(GError) error = NULL;
  g_autoptr(oct_rows) rows = oct_rows_open(&(oct_rows_options){.path = path, .rate = 1}, &error);
  g_assert_no_error(error);
  g_assert_cmpfloat_with_epsilon(oct_rows_own_rate(rows), 1, 1e-9);
}

static void
refused(const char *path, double rate, const char *part) {
  g_autoptr(GError) error = NULL;
  g_autoptr(oct_rows) rows = oct_rows_open(&(oct_rows_options){.path = path, .rate = rate}, &error);
  g_assert_null(rows);
  g_assert_nonnull(error);
  if (strstr(error->message, part) == NULL)
    g_error("\"%s\" does not say \"%s\"", error->message, part);
}

static void
test_refuses(void) {
  g_autofree char *closed =
      write_trace("closed.jsonl", "{\"input_tokens\":10,\"output_tokens\":1}\n{\"input_tokens\":10,"
                                  "\"output_tokens\":1}\n");
  g_autofree char *one =
      write_trace("one.jsonl", "{\"arrival_us\":5,\"input_tokens\":1,\"output_tokens\":1}\n");
  refused(closed, 5, "closed loop");
  refused("gen:concurrency=4,requests=5", 5, "closed loop");
  refused("gen:rate=inf,requests=5", 5, "at once");
  refused(one, 5, "fewer than two");
  refused("-", 5, "standard input");
  refused("/nonexistent/x.jsonl", 5, "/nonexistent/x.jsonl");
}

static gboolean
keeps_thirds(void *user, const oct_trace_request *start) {
  guint *n = user;
  g_assert_cmpuint(start->parent, ==, 0);
  return (*n)++ % 3 == 1;
}

/* Sessions are kept or left out whole, and the rows that are kept can be counted. */
static void
test_deal(void) {
  g_autoptr(GError) error = NULL;
  g_autofree char *path = sessions_trace();
  guint asked = 0;
  oct_rows_options o = {.path = path, .rate = 2, .deal = keeps_thirds, .deal_user = &asked};
  g_autoptr(GArray) some = read_all(&o, &error);
  g_assert_no_error(error);
  g_assert_cmpuint(asked, ==, 100);
  guint starts = 0, turns = 0;
  for (guint i = 0; i < some->len; i++) {
    starts += at(some, i)->parent == 0;
    turns += at(some, i)->parent > 0;
    g_assert_cmpuint(at(some, i)->session % 3, ==, 2); /* the second, the fifth … start */
  }
  g_assert_cmpuint(starts, ==, 33);
  g_assert_cmpuint(turns, >, 0); /* those of session 11 */
  o.kept_max = 5;
  asked = 0;
  g_autoptr(GArray) few = read_all(&o, &error);
  g_assert_no_error(error);
  g_assert_cmpuint(few->len, ==, 5);
  g_assert_cmpuint(at(few, 4)->index, ==, at(some, 4)->index);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  folder = g_dir_make_tmp("octet-rows-XXXXXX", NULL);
  g_assert_nonnull(folder);
  g_test_add_func("/replay/rows/compress-moves-starts-and-keeps-distances-within-sessions",
                  test_compress);
  g_test_add_func("/replay/rows/a-generator-keeps-its-requests-at-any-rate", test_generator);
  g_test_add_func("/replay/rows/superpose-lays-copies-on-top-of-each-other", test_superpose);
  g_test_add_func("/replay/rows/sessions-are-dealt-out-whole", test_deal);
  g_test_add_func("/replay/rows/the-own-rate-is-that-of-session-starts", test_own_rate);
  g_test_add_func("/replay/rows/refuses-a-rate-that-means-nothing", test_refuses);
  int status = g_test_run();
  static const char *const files[] = {"sessions.jsonl", "closed.jsonl", "one.jsonl"};
  for (gsize i = 0; i < G_N_ELEMENTS(files); i++) {
    g_autofree char *path = g_build_filename(folder, files[i], NULL);
    g_remove(path);
  }
  g_rmdir(folder);
  g_free(folder);
  return status;
}
