/* Fuzz target: what a client, a handler and a clock do to a connection, one command a byte:
 *
 *   0 … 191    so many bytes that follow come from the client
 *   192 …      by ACTIONS below, in turn
 *
 * Whatever the order, each exchange ends once (the handler asserts it), answers are framed well,
 * what waits to be sent is bounded, and nothing leaks. */
#include "config.h"

#include <string.h>

#include "engine/base/assert.h"
#include "tests/engine/http/rig.h"
#include "tests/fuzz/replay.h"

#define S G_GINT64_CONSTANT(1000000000)

/* Small, so that inputs of a few hundred bytes reach them. */
static void
set_limits(oct_http_server_limits *l) {
  l->request = (oct_http_limits){.request_line_bytes = 100,
                                 .header_bytes = 300,
                                 .headers = 8,
                                 .body_bytes = 200,
                                 .chunks = 6,
                                 .extension_bytes = 12};
  l->queue_bytes = 300;
}

static gboolean
may_answer(const oct_http_rig *r) {
  return r->h.open->len > 0 &&
         (r->x.phase == OCT_HTTP_READING_BODY || r->x.phase == OCT_HTTP_ASKED);
}

static void
act_answer(oct_http_rig *r) {
  if (may_answer(r))
    oct_http_test_answer(&r->h, "hello");
}

static void
act_begin(oct_http_rig *r) {
  if (may_answer(r))
    oct_http_stream_begin(oct_http_test_first(&r->h), &(oct_http_reply){.status = 200});
}

static void
act_write(oct_http_rig *r) {
  if (r->x.phase == OCT_HTTP_STREAMING)
    (void)!oct_http_stream_write(oct_http_test_first(&r->h), "0123456789abcdef", 16);
}

static void
act_end(oct_http_rig *r) {
  if (r->x.phase == OCT_HTTP_STREAMING)
    oct_http_test_end(&r->h);
}

static void
act_stop_reading(oct_http_rig *r) {
  r->window = 0;
}

static void
act_read_some(oct_http_rig *r) {
  r->window = 20;
}

static void
act_read(oct_http_rig *r) {
  r->window = G_MAXSIZE;
}

static void
act_wait(oct_http_rig *r) {
  oct_http_rig_advance(r, S);
}

static void
act_wait_long(oct_http_rig *r) {
  oct_http_rig_advance(r, 31 * S);
}

static void
act_hang_up(oct_http_rig *r) {
  if (r->x.phase != OCT_HTTP_OVER && !r->x.half)
    oct_http_connection_hung_up(&r->x);
}

static void
act_break(oct_http_rig *r) {
  if (r->x.phase != OCT_HTTP_OVER)
    oct_http_connection_broken(&r->x);
}

static void
act_drain(oct_http_rig *r) {
  r->shared.draining = TRUE;
}

static void
act_no_memory(oct_http_rig *r) {
  oct_budget_fail_at(r->budget, 1);
}

#define DATA_MAX 191
static void (*const actions[])(oct_http_rig *) = {
    act_answer, act_begin,     act_write,   act_end,   act_stop_reading, act_read_some, act_read,
    act_wait,   act_wait_long, act_hang_up, act_break, act_drain,        act_no_memory,
};

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  oct_http_rig r;
  oct_http_rig_start(&r);
  set_limits(&r.shared.config.limits);
  /* The parser has the limits that it was made with. */
  oct_http_connection_clear(&r.x);
  memset(&r.x, 0, sizeof r.x);
  oct_assert(oct_http_connection_init(&r.x, &r.shared, "fuzz", NULL));
  for (size_t at = 0; at < size && r.x.phase != OCT_HTTP_OVER;) {
    guint8 command = data[at++];
    if (command > DATA_MAX) {
      actions[(command - DATA_MAX - 1) % G_N_ELEMENTS(actions)](&r);
      oct_http_rig_pump(&r);
    } else if (!r.x.half) {
      gsize n = MIN(command, size - at);
      (void)oct_http_rig_give(&r, data + at, n);
      at += n;
    }
    /* A stream's pieces beyond its limit are not kept; an answer of these handlers is short. */
    oct_assert(oct_http_connection_pending(&r.x).size <= 300 + 16 + 8 + 2048);
  }
  /* Answers to HEAD have no bodies, and cannot be told from those to others. */
  g_autoptr(GString) text = g_string_new(NULL);
  if (size == 0 || memmem(data, size, "HEAD", 4) == NULL)
    oct_http_test_read(r.wire->str, r.wire->len, FALSE, text);
  oct_http_rig_stop(&r);
  return 0;
}
