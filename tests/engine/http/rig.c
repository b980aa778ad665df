#include "tests/engine/http/rig.h"

#include <string.h>

#include "engine/base/assert.h"

static void
wake(oct_http_exchange *x) {
  (void)x;
}

static void
send_some(oct_http_rig *r) {
  oct_http_slice pending = oct_http_connection_pending(&r->x);
  gsize n = MIN(pending.size, r->window);
  g_string_append_len(r->wire, pending.bytes, (gssize)n);
  r->window -= n;
  oct_http_connection_sent(&r->x, n);
}

static void
push(oct_http_exchange *x) {
  send_some((oct_http_rig *)((char *)x - G_STRUCT_OFFSET(oct_http_rig, x)));
}

void
oct_http_rig_prepare(oct_http_rig *r, gsize budget_bytes) {
  memset(r, 0, sizeof *r);
  oct_http_test_handler_init(&r->h);
  r->budget = oct_budget_new("connection", budget_bytes);
  r->shared.config = oct_http_test_config(&r->h, r->budget);
  r->shared.wake = wake;
  r->shared.push = push;
  r->wire = g_string_new(NULL);
  r->window = G_MAXSIZE;
}

void
oct_http_rig_start(oct_http_rig *r) {
  oct_http_rig_prepare(r, 64 << 20);
  oct_assert(oct_http_connection_init(&r->x, &r->shared, "test", NULL));
}

void
oct_http_rig_stop(oct_http_rig *r) {
  oct_http_connection_abort(&r->x);
  oct_http_connection_clear(&r->x);
  oct_assert(r->shared.counts.connections == 0);
  oct_assert(r->shared.counts.exchanges == 0);
  oct_assert(oct_budget_used(r->budget) == 0);
  oct_budget_free(r->budget);
  oct_http_test_handler_clear(&r->h);
  g_string_free(r->wire, TRUE);
}

void
oct_http_rig_pump(oct_http_rig *r) {
  gsize before;
  do {
    before = r->wire->len;
    if (r->x.phase != OCT_HTTP_OVER)
      send_some(r);
    oct_http_connection_settle(&r->x);
  } while (r->wire->len != before);
}

gsize
oct_http_rig_give(oct_http_rig *r, const void *bytes, gsize size) {
  const char *from = bytes;
  gsize at = 0;
  while (at < size && r->x.phase != OCT_HTTP_OVER) {
    gsize n = MIN(size - at, oct_http_connection_room(&r->x));
    if (n == 0)
      break;
    oct_http_connection_receive(&r->x, from + at, n);
    at += n;
    oct_http_rig_pump(r);
  }
  return at;
}

void
oct_http_rig_advance(oct_http_rig *r, gint64 ns) {
  r->h.now_ns += ns;
  if (r->h.now_ns >= oct_http_connection_deadline(&r->x))
    oct_http_connection_expire(&r->x, r->h.now_ns);
  oct_http_rig_pump(r);
}
