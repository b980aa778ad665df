/* Traffic that was served, as a trace: written, and read back by what replays traces. */
#include <string.h>
#include <unistd.h>

#include <glib/gstdio.h>

#include "backends/mock/mock.h"
#include "tests/engine/serve/serve-rig.h"
#include "traces/write.h"

typedef struct tape {
  oct_trace_writer *writer;
  guint64 n;
  gint64 last_ns;
} tape;

static void
on_row(void *user, const oct_service_row *row) {
  tape *t = user;
  g_autoptr(GError) error = NULL;
  g_assert_cmpint(row->arrival_ns, >=, t->last_ns);
  t->last_ns = row->arrival_ns;
  oct_trace_request request = {.arrival_ns = row->arrival_ns,
                               .input_tokens = row->input_tokens,
                               .output_tokens = row->output_tokens,
                               .max_tokens = row->max_tokens,
                               .block_size = row->block_size,
                               .hash_ids = row->hash_ids,
                               .n_hash_ids = row->n_hash_ids,
                               .output_hash_ids = row->output_hash_ids,
                               .n_output_hash_ids = row->n_output_hash_ids,
                               .index = t->n++,
                               .priority = row->priority,
                               .class_name = ""};
  g_assert_true(oct_trace_writer_write(t->writer, &request, &error));
  g_assert_no_error(error);
}

static oct_trace_request *
next_row(oct_trace *trace) {
  g_autoptr(GError) error = NULL;
  oct_trace_request row;
  g_assert_true(oct_trace_next(trace, &row, &error));
  g_assert_no_error(error);
  return oct_trace_request_copy(&row);
}

/* How many leading blocks two rows share. */
static guint
shared(const oct_trace_request *a, const oct_trace_request *b) {
  guint n = 0;
  while (n < MIN(a->n_hash_ids, b->n_hash_ids) && a->hash_ids[n] == b->hash_ids[n])
    n++;
  return n;
}

static void
serve_and_record(serve_rig *r, const char *path) {
  g_autoptr(GError) error = NULL;
  tape t = {.writer = oct_trace_writer_open(path, NULL, &error), .last_ns = 0};
  g_assert_no_error(error);
  r->config.record = on_row;
  r->config.log = NULL;
  r->config.user = &t;
  serve_run(r);
  g_assert_no_error(r->error);
  oct_service_free(g_steal_pointer(&r->service));
  g_assert_true(oct_trace_writer_close(t.writer, &error));
}

static void
test_round_trip(void) {
  g_autofree char *path =
      g_strdup_printf("%s/octet-recorder-%d.jsonl", g_get_tmp_dir(), (int)getpid());
  g_autofree char *begin = g_strnfill(40, 'x');
  g_autofree char *one = g_strconcat(begin, " one", NULL), *two = g_strconcat(begin, " two", NULL);
  serve_rig r;
  serve_rig_init(&r, oct_mock_world_new(NULL, NULL));
  serve_ask *first = serve_add(&r, 7 * MS, one), *second = serve_add(&r, 9 * MS, two);
  serve_ask *choices = serve_add(&r, 10 * MS, "Hello, you"), *refused = serve_add(&r, 11 * MS, "");
  serve_ask *last = serve_add(&r, 300 * MS, NULL);
  first->params.sampling.max_tokens = 60; /* ends after the second: rows come as they came */
  second->params.sampling.max_tokens = 5;
  choices->params.sampling.n = 2;
  choices->params.sampling.priority = 3;
  refused->params.sampling.max_tokens = 5;
  /* A next turn: the first one's prompt and answer. */
  guint32 turn[104];
  last->params.prompt_ids = turn;
  for (guint i = 0; i < 44; i++)
    turn[i] = (guint8)one[i];
  serve_rig before; /* what it will answer */
  serve_ask *same;
  serve_rig_one(&before, &same, one);
  same->params.sampling.max_tokens = 60;
  same->params.seeded = first->params.seeded = TRUE;
  serve_run(&before);
  memcpy(turn + 44, same->choices[0].ids->data, 60 * sizeof *turn);
  serve_rig_clear(&before);
  last->params.n_prompt_ids = 104;
  serve_and_record(&r, path);
  serve_rig_clear(&r);

  g_autoptr(GError) error = NULL;
  g_autoptr(oct_trace) trace = oct_trace_open(path, NULL, &error);
  g_assert_no_error(error);
  oct_trace_request *rows[5], end;
  for (guint i = 0; i < 5; i++)
    rows[i] = next_row(trace);
  g_assert_false(oct_trace_next(trace, &end, &error));
  g_assert_no_error(error);
  g_assert_cmpint(oct_trace_get_facts(trace)->format, ==, OCT_TRACE_FORMAT_OCTET);
  g_assert_cmpint(rows[0]->arrival_ns, ==, 0);
  g_assert_cmpint(rows[1]->arrival_ns, ==, 2 * MS);
  g_assert_cmpint(rows[4]->arrival_ns, ==, 293 * MS);
  g_assert_cmpuint(rows[0]->input_tokens, ==, 44);
  g_assert_cmpuint(rows[0]->output_tokens, ==, 60);
  g_assert_cmpuint(rows[1]->max_tokens, ==, 5);
  g_assert_cmpuint(rows[0]->block_size, ==, 16);
  g_assert_cmpuint(rows[0]->n_hash_ids, ==, 3);
  g_assert_cmpuint(shared(rows[0], rows[1]), ==, 2);
  g_assert_cmpuint(shared(rows[0], rows[2]), ==, 0);
  /* A row for each choice. */
  g_assert_cmpuint(shared(rows[2], rows[3]), ==, 1);
  g_assert_cmpint(rows[3]->priority, ==, 3);
  /* The next turn has the blocks that the first one's output is said to have made. */
  g_assert_cmpuint(rows[0]->n_output_hash_ids, ==, 4);
  g_assert_cmpuint(shared(rows[0], rows[4]), ==, 2);
  for (guint i = 0; i < 4; i++)
    g_assert_cmpuint(rows[0]->output_hash_ids[i], ==, rows[4]->hash_ids[2 + i]);
  for (guint i = 0; i < 5; i++)
    oct_trace_request_free(rows[i]);
  g_unlink(path);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/serve/recorder/what-was-served-can-be-replayed", test_round_trip);
  return g_test_run();
}
