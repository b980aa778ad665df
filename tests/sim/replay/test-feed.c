/* When requests are sent: by time, after a parent, when a slot is free. */
#include "sim/replay/feed.h"

#include <string.h>
#include <unistd.h>

#include <glib/gstdio.h>

/* A feed over text, played with a clock in the test's hand. */
typedef struct play {
  char *path;
  oct_rows *rows;
  oct_feed *feed;
} play;

static void
open_play(play *p, const char *text, guint32 concurrency) {
  g_autoptr(GError) error = NULL;
  int fd = g_file_open_tmp("octet-feed-XXXXXX", &p->path, &error);
  g_assert_no_error(error);
  g_assert_cmpint(write(fd, text, strlen(text)), ==, (gssize)strlen(text));
  close(fd);
  p->rows = oct_rows_open(&(oct_rows_options){.path = p->path}, &error);
  g_assert_no_error(error);
  p->feed = oct_feed_new(p->rows, concurrency);
}

static void
close_play(play *p) {
  oct_feed_free(p->feed);
  oct_rows_free(p->rows);
  unlink(p->path);
  g_free(p->path);
}

static oct_time
due(play *p, oct_time now) {
  oct_time at;
  g_autoptr(GError) error = NULL;
  gboolean good = oct_feed_due(p->feed, now, &at, &error);
  g_assert_no_error(error);
  g_assert_true(good);
  return at;
}

/* Takes what is due, which must be request `index` at `at`. */
static oct_feed_entry *
take(play *p, oct_time now, guint64 index, oct_time at) {
  oct_feed_request request;
  g_assert_cmpint(due(p, now), ==, at);
  oct_feed_take(p->feed, &request);
  g_assert_cmpuint(request.row->index, ==, index);
  g_assert_cmpint(request.due_ns, ==, at);
  return request.entry;
}

static void
test_open(void) {
  play p;
  open_play(&p,
            "{\"arrival_us\":1,\"input_tokens\":10,\"output_tokens\":1}\n"
            "{\"arrival_us\":5,\"input_tokens\":10,\"output_tokens\":1}\n"
            "{\"arrival_us\":5,\"input_tokens\":10,\"output_tokens\":1}\n",
            0);
  oct_feed_entry *a = take(&p, 0, 0, 1000);
  oct_feed_entry *b = take(&p, 1000, 1, 5000);
  g_assert_false(oct_feed_is_exhausted(p.feed));
  oct_feed_entry *c = take(&p, 5000, 2, 5000);
  g_assert_cmpint(due(&p, 5000), ==, OCT_TIME_NEVER);
  g_assert_true(oct_feed_is_exhausted(p.feed));
  oct_feed_ended(p.feed, b, 6000);
  oct_feed_ended(p.feed, a, 6000);
  oct_feed_ended(p.feed, c, 6000);
  g_assert_false(oct_feed_is_closed_loop(p.feed));
  close_play(&p);
}

/* Turns come think_us after their parent's end, however late or early that is. */
static void
test_dependent(void) {
  play p;
  open_play(&p,
            "{\"arrival_us\":0,\"input_tokens\":10,\"output_tokens\":1,\"session\":1}\n"
            "{\"think_us\":7,\"input_tokens\":10,\"output_tokens\":1,\"session\":1,\"parent\":0}\n"
            "{\"think_us\":3,\"input_tokens\":10,\"output_tokens\":1,\"session\":1,\"parent\":1}\n"
            "{\"arrival_us\":20,\"input_tokens\":10,\"output_tokens\":1,\"session\":2}\n"
            "{\"arrival_us\":90,\"input_tokens\":10,\"output_tokens\":1,\"session\":3}\n"
            "{\"arrival_us\":95,\"input_tokens\":10,\"output_tokens\":1,\"session\":4}\n"
            "{\"think_us\":1,\"input_tokens\":10,\"output_tokens\":1,\"session\":2,\"parent\":3}\n",
            0);
  oct_feed_entry *first = take(&p, 0, 0, 0);
  g_assert_cmpint(due(&p, 0), ==, 20000);
  oct_feed_ended(p.feed, first, 5000);
  oct_feed_entry *second = take(&p, 5000, 1, 12000);
  oct_feed_entry *other = take(&p, 12000, 3, 20000);
  oct_feed_ended(p.feed, second, 50000);
  oct_feed_entry *third = take(&p, 50000, 2, 53000);
  oct_feed_ended(p.feed, other, 60000);
  oct_feed_ended(p.feed, third, 60000);
  oct_feed_entry *last = take(&p, 60000, 4, 90000);
  /* Its turn is read when the row before it has gone, after its parent's end: it is overdue. */
  oct_feed_entry *late = take(&p, 90000, 6, 90000);
  oct_feed_ended(p.feed, last, 91000);
  oct_feed_ended(p.feed, take(&p, 91000, 5, 95000), 96000);
  oct_feed_ended(p.feed, late, 96000);
  g_assert_cmpint(due(&p, 96000), ==, OCT_TIME_NEVER);
  g_assert_true(oct_feed_is_exhausted(p.feed));
  close_play(&p);
}

static void
test_closed(void) {
  play p;
  open_play(&p,
            "{\"input_tokens\":10,\"output_tokens\":1,\"session\":1}\n"
            "{\"think_us\":2,\"input_tokens\":10,\"output_tokens\":1,\"session\":1,\"parent\":0}\n"
            "{\"input_tokens\":10,\"output_tokens\":1}\n"
            "{\"input_tokens\":10,\"output_tokens\":1,\"think_us\":1}\n"
            "{\"input_tokens\":10,\"output_tokens\":1}\n",
            2);
  oct_feed_entry *a = take(&p, 0, 0, 0), *b = take(&p, 0, 2, 0);
  g_assert_cmpint(due(&p, 0), ==, OCT_TIME_NEVER);
  g_assert_false(oct_feed_is_exhausted(p.feed));
  /* The session keeps its slot for its second turn; nobody else gets in. */
  oct_feed_ended(p.feed, a, 10000);
  oct_feed_entry *turn = take(&p, 10000, 1, 12000);
  g_assert_cmpint(due(&p, 12000), ==, OCT_TIME_NEVER);
  oct_feed_ended(p.feed, b, 15000);
  oct_feed_entry *c = take(&p, 15000, 3, 16000);
  g_assert_cmpint(due(&p, 16000), ==, OCT_TIME_NEVER);
  oct_feed_ended(p.feed, turn, 20000);
  oct_feed_entry *d = take(&p, 20000, 4, 20000);
  oct_feed_ended(p.feed, c, 21000);
  oct_feed_ended(p.feed, d, 22000);
  g_assert_cmpint(due(&p, 22000), ==, OCT_TIME_NEVER);
  g_assert_true(oct_feed_is_exhausted(p.feed));
  g_assert_true(oct_feed_is_closed_loop(p.feed));
  close_play(&p);
}

static void
test_no_slots(void) {
  play p;
  oct_time at;
  g_autoptr(GError) error = NULL;
  open_play(&p, "{\"input_tokens\":10,\"output_tokens\":1}\n", 0);
  g_assert_false(oct_feed_due(p.feed, 0, &at, &error));
  g_assert_error(error, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_OPTION);
  g_assert_nonnull(strstr(error->message, "concurrency"));
  close_play(&p);
}

/* The feed of 10^5 sessions holds those that are out, not the trace. */
static void
test_memory(void) {
  g_autoptr(GError) error = NULL;
  oct_rows_options options = {.path = "gen:rate=1000,requests=100000,turns=2,think=0.001"};
  g_autoptr(oct_rows) rows = oct_rows_open(&options, &error);
  g_assert_no_error(error);
  g_autoptr(oct_feed) feed = oct_feed_new(rows, 0);
  oct_time now = 0;
  guint n = 0;
  for (;;) {
    oct_feed_request request;
    if (!oct_feed_due(feed, now, &now, &error) || now == OCT_TIME_NEVER)
      break;
    oct_feed_take(feed, &request);
    oct_feed_ended(feed, request.entry, now + 1);
    n++;
  }
  g_assert_no_error(error);
  g_assert_cmpuint(n, ==, 100000);
  g_assert_true(oct_feed_is_exhausted(feed));
}

/* An entry whose request is out, or whose turns wait, is freed with the feed. */
static void
test_abandoned(void) {
  g_autoptr(GError) error = NULL;
  oct_rows_options options = {.path = "gen:concurrency=5,requests=100,turns=4,think=1"};
  g_autoptr(oct_rows) rows = oct_rows_open(&options, &error);
  g_autoptr(oct_feed) feed = oct_feed_new(rows, 0);
  oct_time at;
  for (int i = 0; i < 3; i++) {
    oct_feed_request request;
    g_assert_true(oct_feed_due(feed, 0, &at, &error));
    oct_feed_take(feed, &request);
  }
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/replay/feed/open-loop-keeps-its-times", test_open);
  g_test_add_func("/replay/feed/turns-follow-their-parents-end", test_dependent);
  g_test_add_func("/replay/feed/closed-loop-fills-its-slots", test_closed);
  g_test_add_func("/replay/feed/closed-loop-needs-slots", test_no_slots);
  g_test_add_func("/replay/feed/every-request-comes-once", test_memory);
  g_test_add_func("/replay/feed/frees-what-is-out", test_abandoned);
  return g_test_run();
}
