/* The phases of a connection:
 *
 *   READING_HEAD --head--> READING_BODY --body--> ASKED --begin--> STREAMING
 *        ^                      |                   |                  |
 *        |                      +------respond------+-------end--------+
 *        |                                          v
 *        +---- next request ------------------- ANSWERED ----close----> CLOSING --> LINGERING
 *
 *   refused, too slow: --> CLOSING with the refusal.     left, stalled, aborted: --> OVER
 *
 * 1. The handler is told head() once, then request() at most once, then nothing more once the
 *    answer has ended; gone() comes once, if the answer has not ended, and never otherwise.
 * 2. The answer's functions change the phase and fill `out`; what follows from that is done in
 *    settle(), so that a handler is never called from within its own call.
 * 3. The next request is looked at when the answer before it is with the kernel: what a connection
 *    holds is one request, one answer and OCT_HTTP_AHEAD_BYTES. */
#include "engine/http/connection.h"

#include <string.h>

#include "engine/base/assert.h"
#include "engine/base/limits.h"
#include "engine/base/rng.h"
#include "engine/http/head.h"

#define READ_BYTES     65536u
#define KEPT_BYTES_MAX 8192u /* of a queue that is empty */
#define FIRST_BYTES    1024u
#define NS_PER_S       G_GINT64_CONSTANT(1000000000)

static gint64
standard(oct_limit which) {
  return oct_limit_get(which)->standard;
}

oct_http_server_limits
oct_http_server_limits_standard(void) {
  const gint64 ms = 1000000;
  return (oct_http_server_limits){
      .request = oct_http_limits_standard(),
      .connections = (gsize)standard(OCT_LIMIT_CONNECTIONS),
      .connections_per_address = (gsize)standard(OCT_LIMIT_CONNECTIONS_PER_ADDRESS),
      .queue_bytes = (gsize)standard(OCT_LIMIT_STREAM_QUEUE_BYTES),
      .header_ns = standard(OCT_LIMIT_HEADER_TIMEOUT) * ms,
      .body_idle_ns = standard(OCT_LIMIT_BODY_TIMEOUT) * ms,
      .body_grace_ns = standard(OCT_LIMIT_BODY_GRACE) * ms,
      .body_rate = (gsize)standard(OCT_LIMIT_BODY_RATE),
      .stall_ns = standard(OCT_LIMIT_STALL_TIMEOUT) * ms,
      .idle_ns = standard(OCT_LIMIT_KEEP_ALIVE_TIMEOUT) * ms,
  };
}

/* --- queues ----------------------------------------------------------------------------------- */

gboolean
oct_http_queue_append(oct_http_queue *q, oct_budget *budget, const void *bytes, gsize size) {
  if (size > q->size - q->used && q->at > 0) {
    memmove(q->bytes, q->bytes + q->at, q->used - q->at);
    q->used -= q->at;
    q->at = 0;
  }
  if (size > q->size - q->used) {
    gsize wanted;
    if (!g_size_checked_add(&wanted, q->used, size))
      return FALSE;
    wanted = MAX(MAX(wanted, q->size < G_MAXSIZE / 2 ? 2 * q->size : wanted), FIRST_BYTES);
    char *grown = oct_budget_resize(budget, q->bytes, wanted, 1, NULL);
    if (grown == NULL)
      return FALSE;
    q->bytes = grown;
    q->size = wanted;
  }
  if (size > 0)
    memcpy(q->bytes + q->used, bytes, size);
  q->used += size;
  return TRUE;
}

void
oct_http_queue_clear(oct_http_queue *q, oct_budget *budget) {
  oct_budget_release(budget, q->bytes);
  *q = (oct_http_queue){NULL, 0, 0, 0};
}

/* Takes n bytes out; an empty queue keeps little. */
static void
take(oct_http_queue *q, oct_budget *budget, gsize n) {
  oct_assert(n <= q->used - q->at);
  q->at += n;
  if (q->at < q->used)
    return;
  q->at = q->used = 0;
  if (q->size > KEPT_BYTES_MAX)
    oct_http_queue_clear(q, budget);
}

/* --- life cycle ------------------------------------------------------------------------------- */

static gint64
now(const oct_http_exchange *x) {
  return x->shared->config.now_ns(x->shared->config.clock);
}

gboolean
oct_http_connection_init(oct_http_exchange *x, oct_http_shared *shared, const char *peer,
                         GError **error) {
  x->shared = shared;
  x->parser = oct_http_parser_new(&shared->config.limits.request, shared->config.budget, error);
  if (x->parser == NULL)
    return FALSE;
  g_strlcpy(x->peer, peer, sizeof x->peer);
  x->since_ns = now(x);
  shared->counts.connections++;
  return TRUE;
}

void
oct_http_connection_clear(oct_http_exchange *x) {
  oct_budget *budget = x->shared->config.budget;
  if (oct_http_connection_is_open(x))
    x->shared->counts.exchanges--;
  x->shared->counts.connections--;
  oct_http_queue_clear(&x->out, budget);
  oct_http_queue_clear(&x->ahead, budget);
  g_clear_pointer(&x->parser, oct_http_parser_free);
}

gboolean
oct_http_connection_is_open(const oct_http_exchange *x) {
  return x->phase >= OCT_HTTP_READING_BODY && x->phase <= OCT_HTTP_STREAMING;
}

void
oct_http_connection_enter(oct_http_exchange *x, oct_http_phase phase) {
  gboolean open = oct_http_connection_is_open(x);
  x->phase = phase;
  x->since_ns = now(x);
  if (open && !oct_http_connection_is_open(x))
    x->shared->counts.exchanges--;
}

/* The handler hears that there is nobody to answer, if it still would have. */
static void
lose(oct_http_exchange *x, oct_http_gone why) {
  if (!oct_http_connection_is_open(x))
    return;
  oct_http_shared *shared = x->shared;
  shared->counts.gone[why]++;
  /* Not open any more: an answer from within gone() is a handler's mistake and asserted against. */
  oct_http_connection_enter(x, OCT_HTTP_OVER);
  shared->config.handler.gone(shared->config.user, x, why);
}

/* Loses the exchange; the connection ends without another byte. */
static void
drop(oct_http_exchange *x, oct_http_gone why, gboolean reset) {
  lose(x, why);
  x->reset |= reset;
  oct_http_connection_enter(x, OCT_HTTP_OVER);
}

/* Loses the exchange; the connection ends with a refusal. */
static void
refuse(oct_http_exchange *x, guint status, const char *reason, oct_http_gone why) {
  x->shared->counts.refused++;
  lose(x, why);
  oct_http_answer_refusal(x, status, reason);
}

/* --- requests --------------------------------------------------------------------------------- */

static void
choose_id(oct_http_exchange *x) {
  const oct_http_slice *given =
      oct_http_request_header(oct_http_parser_request(x->parser), "X-Request-Id");
  gboolean valid = given != NULL && given->size > 0 && given->size <= OCT_HTTP_ID_BYTES_MAX;
  for (gsize i = 0; valid && i < given->size; i++)
    valid = oct_http_is_token(given->bytes[i]);
  if (valid) {
    memcpy(x->id, given->bytes, given->size);
    x->id[given->size] = '\0';
    return;
  }
  guint64 seed = x->shared->config.id_seed, n = x->shared->n_ids++;
  g_snprintf(x->id, sizeof x->id, "%016" G_GINT64_MODIFIER "x%016" G_GINT64_MODIFIER "x",
             oct_mix64(seed ^ oct_mix64(n)), oct_mix64(n + oct_mix64(~seed)));
}

static void
tell_head(oct_http_exchange *x) {
  oct_http_shared *shared = x->shared;
  x->user = NULL;
  x->served = TRUE;
  x->chunked = x->mute = x->close = FALSE;
  x->body_bytes = 0;
  oct_http_connection_enter(x, OCT_HTTP_READING_BODY);
  x->body_ns = x->since_ns;
  choose_id(x);
  shared->counts.requests++;
  shared->counts.exchanges++;
  if (shared->config.handler.head != NULL)
    shared->config.handler.head(shared->config.user, x);
}

static gboolean
is_host_known(const oct_http_exchange *x) {
  oct_http_slice host = oct_http_parser_request(x->parser)->host;
  const char *const *names = x->shared->config.hosts;
  if (names == NULL || host.bytes == NULL || oct_http_host_is_literal(host))
    return TRUE;
  for (; *names != NULL; names++)
    if (oct_http_host_is_named(host, *names))
      return TRUE;
  return FALSE;
}

/* What follows from the parser's state. */
static void
go_on(oct_http_exchange *x, oct_http_state state) {
  oct_http_shared *shared = x->shared;
  if (state == OCT_HTTP_REFUSED) {
    oct_http_verdict verdict = oct_http_parser_verdict(x->parser);
    refuse(x, verdict.status, verdict.reason,
           verdict.status == 503 ? OCT_HTTP_GONE_MEMORY : OCT_HTTP_GONE_REFUSED);
    return;
  }
  if (state == OCT_HTTP_IN_HEAD)
    return;
  if (x->phase == OCT_HTTP_READING_HEAD && !is_host_known(x)) {
    refuse(x, 421, "this server is not known by the name in Host", OCT_HTTP_GONE_REFUSED);
    return;
  }
  if (x->phase == OCT_HTTP_READING_HEAD) {
    tell_head(x);
    if (x->phase == OCT_HTTP_READING_BODY && state == OCT_HTTP_IN_BODY &&
        oct_http_parser_request(x->parser)->expect_continue)
      oct_http_answer_continue(x);
  }
  if (x->phase == OCT_HTTP_READING_BODY && state == OCT_HTTP_DONE) {
    oct_http_connection_enter(x, OCT_HTTP_ASKED);
    shared->config.handler.request(shared->config.user, x);
  }
}

/* Feeds the parser until its request is whole, answered or refused. Returns how many were read. */
static gsize
read_request(oct_http_exchange *x, const char *bytes, gsize size) {
  gsize at = 0, used = 0;
  while (at < size && x->phase <= OCT_HTTP_READING_BODY) {
    if (x->phase == OCT_HTTP_READING_HEAD && !x->begun) {
      x->begun = TRUE;
      x->started_ns = now(x);
      if (x->served)
        x->since_ns = x->started_ns;
    }
    gboolean in_body = x->phase == OCT_HTTP_READING_BODY;
    oct_http_state state = oct_http_parser_feed(x->parser, bytes + at, size - at, &used);
    if (in_body) {
      x->body_ns = now(x);
      x->body_bytes += used;
    }
    at += used;
    go_on(x, state);
  }
  return at;
}

gsize
oct_http_connection_room(const oct_http_exchange *x) {
  if (x->phase < OCT_HTTP_ASKED || x->phase > OCT_HTTP_ANSWERED)
    return READ_BYTES;
  gsize held = x->ahead.used - x->ahead.at;
  return held < OCT_HTTP_AHEAD_BYTES ? OCT_HTTP_AHEAD_BYTES - held : 0;
}

void
oct_http_connection_receive(oct_http_exchange *x, const void *bytes, gsize size) {
  const char *from = bytes;
  oct_assert(size <= oct_http_connection_room(x));
  x->shared->counts.bytes_in += size;
  gsize at = read_request(x, from, size);
  /* What is behind a request waits; behind a refusal it is dropped. */
  if (x->phase <= OCT_HTTP_ANSWERED && at < size &&
      !oct_http_queue_append(&x->ahead, x->shared->config.budget, from + at, size - at))
    drop(x, OCT_HTTP_GONE_MEMORY, FALSE);
}

/* --- ends ------------------------------------------------------------------------------------- */

void
oct_http_connection_hung_up(oct_http_exchange *x) {
  x->half = TRUE;
  if (x->phase < OCT_HTTP_ANSWERED || x->phase == OCT_HTTP_LINGERING)
    drop(x, OCT_HTTP_GONE_LEFT, FALSE);
}

void
oct_http_connection_broken(oct_http_exchange *x) {
  drop(x, OCT_HTTP_GONE_LEFT, TRUE);
}

void
oct_http_connection_abort(oct_http_exchange *x) {
  drop(x, OCT_HTTP_GONE_ABORTED, TRUE);
}

/* --- output ----------------------------------------------------------------------------------- */

oct_http_slice
oct_http_connection_pending(const oct_http_exchange *x) {
  if (x->out.used == x->out.at)
    return (oct_http_slice){NULL, 0};
  return (oct_http_slice){x->out.bytes + x->out.at, x->out.used - x->out.at};
}

void
oct_http_connection_sent(oct_http_exchange *x, gsize n) {
  take(&x->out, x->shared->config.budget, n);
  x->shared->counts.bytes_out += n;
  if (n > 0)
    x->progress_ns = now(x);
}

static void
next_request(oct_http_exchange *x) {
  oct_http_parser_next(x->parser);
  oct_http_connection_enter(x, OCT_HTTP_READING_HEAD);
  x->begun = FALSE;
  x->id[0] = '\0';
  gsize held = x->ahead.used - x->ahead.at;
  if (held > 0)
    take(&x->ahead, x->shared->config.budget, read_request(x, x->ahead.bytes + x->ahead.at, held));
}

void
oct_http_connection_settle(oct_http_exchange *x) {
  if (x->doomed && x->phase != OCT_HTTP_OVER)
    drop(x, x->doom, TRUE);
  if (x->out.used > x->out.at)
    return;
  if (x->phase == OCT_HTTP_ANSWERED) {
    if (!x->close && !x->half && !x->shared->draining)
      next_request(x);
    else
      oct_http_connection_enter(x, OCT_HTTP_CLOSING);
  } else if (x->phase == OCT_HTTP_READING_HEAD && x->shared->draining && !x->begun) {
    oct_http_connection_enter(x, OCT_HTTP_CLOSING);
  }
  if (x->phase == OCT_HTTP_CLOSING && x->out.used == x->out.at)
    oct_http_connection_enter(x, x->half ? OCT_HTTP_OVER : OCT_HTTP_LINGERING);
}

/* --- time ------------------------------------------------------------------------------------- */

/* The latest moment at which a body of that many bytes is fast enough. */
static gint64
body_limit(const oct_http_exchange *x) {
  const oct_http_server_limits *l = &x->shared->config.limits;
  double needed_ns = (double)x->body_bytes * (double)NS_PER_S / (double)l->body_rate;
  gint64 rate_ns = needed_ns > 1e17 ? G_MAXINT64 / 4 : (gint64)needed_ns;
  return MIN(x->body_ns + l->body_idle_ns, x->since_ns + MAX(l->body_grace_ns, rate_ns));
}

gint64
oct_http_connection_deadline(const oct_http_exchange *x) {
  const oct_http_server_limits *l = &x->shared->config.limits;
  gint64 last = G_MAXINT64 - 1;
  if (x->phase == OCT_HTTP_OVER)
    return G_MAXINT64;
  if (x->phase == OCT_HTTP_READING_HEAD)
    last = x->since_ns + (x->begun || !x->served ? l->header_ns : l->idle_ns);
  else if (x->phase == OCT_HTTP_READING_BODY)
    last = body_limit(x);
  else if (x->phase == OCT_HTTP_LINGERING)
    last = x->since_ns + OCT_HTTP_LINGER_NS;
  if (x->out.used > x->out.at)
    last = MIN(last, x->progress_ns + l->stall_ns);
  return last + 1;
}

void
oct_http_connection_expire(oct_http_exchange *x, gint64 now_ns) {
  const oct_http_server_limits *l = &x->shared->config.limits;
  if (now_ns < oct_http_connection_deadline(x))
    return;
  if (x->out.used > x->out.at && now_ns > x->progress_ns + l->stall_ns)
    drop(x, OCT_HTTP_GONE_STALLED, TRUE);
  else if (x->phase == OCT_HTTP_READING_BODY)
    refuse(x, 408, "the body does not come in time", OCT_HTTP_GONE_TIMEOUT);
  else if (x->phase == OCT_HTTP_READING_HEAD && x->begun)
    refuse(x, 408, "the head does not come in time", OCT_HTTP_GONE_TIMEOUT);
  else
    drop(x, OCT_HTTP_GONE_TIMEOUT, FALSE);
}
