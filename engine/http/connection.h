/* One connection as HTTP sees it: bytes in, bytes out, time-outs, and the exchange that the handler
 * knows. No socket is in here: engine/http/server.c moves the bytes, and a test or a fuzzer can do
 * so as well. Internal to engine/http; the rules for handlers are in engine/http/server.h.
 *
 * Who moves the bytes calls, in any order: receive() with what came, hung_up() or broken() at its
 * end, sent() with what went, expire() at the deadline; and after any of these, and when woken,
 * settle(). Callbacks to the handler come from receive(), hung_up(), broken(), expire(), settle()
 * and abort().
 */
#ifndef OCT_HTTP_CONNECTION_H
#define OCT_HTTP_CONNECTION_H

#include "engine/http/server.h"

/* Pipelined bytes are read up to here, then wait in the kernel. */
#define OCT_HTTP_AHEAD_BYTES 4096u
/* How long a connection that was closed by us waits for the client to have read the answer. */
#define OCT_HTTP_LINGER_NS      (2 * G_GINT64_CONSTANT(1000000000))
#define OCT_HTTP_PEER_BYTES_MAX 56

typedef enum oct_http_phase {
  OCT_HTTP_READING_HEAD,
  OCT_HTTP_READING_BODY, /* head() was called */
  OCT_HTTP_ASKED,        /* request() was called */
  OCT_HTTP_STREAMING,    /* the answer has begun */
  OCT_HTTP_ANSWERED,     /* the answer is being sent; then the next request */
  OCT_HTTP_CLOSING,      /* the answer is being sent; then nothing */
  OCT_HTTP_LINGERING, /* all is sent; waits for the client's end, so that no reset overtakes it */
  OCT_HTTP_OVER,      /* to be closed at once */
} oct_http_phase;

/* What the connections of a server have in common. */
typedef struct oct_http_shared {
  oct_http_server_config config;
  oct_http_counts counts;
  guint64 n_ids;
  gboolean draining;
  /* The connection has bytes to send, or settle() has something to do. Marks it, no more. */
  void (*wake)(oct_http_exchange *x);
  /* Try to send at once, with sent() for what went. */
  void (*push)(oct_http_exchange *x);
} oct_http_shared;

/* Bytes first in, first out. */
typedef struct oct_http_queue {
  char *bytes;
  gsize at, used, size; /* bytes[at … used) are in it */
} oct_http_queue;

struct oct_http_exchange {
  oct_http_shared *shared;
  oct_http_parser *parser;
  oct_http_phase phase;
  oct_http_queue out, ahead; /* to send; pipelined */
  void *user;
  gint64 since_ns;    /* the phase's: of a head its first byte, else when the phase began */
  gint64 started_ns;  /* the request's first byte */
  gint64 body_ns;     /* the latest piece of the body */
  gint64 progress_ns; /* when `out` was last empty or taken from */
  gsize body_bytes;   /* on the wire */
  gboolean begun;     /* the head's first byte is here */
  gboolean served;    /* a request came before on this connection */
  gboolean chunked;   /* the stream's pieces are chunks */
  gboolean mute;      /* HEAD: the stream's pieces are dropped */
  gboolean close;     /* behind the answer */
  gboolean half;      /* the client has closed its sending half */
  gboolean reset;     /* when OVER: drop what the kernel still holds */
  gboolean doomed;    /* settle() cuts it, for this reason */
  oct_http_gone doom;
  char id[OCT_HTTP_ID_BYTES_MAX + 1], peer[OCT_HTTP_PEER_BYTES_MAX];
};

/* `x` is zeroed. FALSE with *error (MEMORY). */
gboolean oct_http_connection_init(oct_http_exchange *x, oct_http_shared *shared, const char *peer,
                                  GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Frees what it holds; an exchange that is open is lost without a word. */
void oct_http_connection_clear(oct_http_exchange *x);

/* How many bytes may come: 0 while pipelined ones wait. More than it says are asserted against
 * while an exchange is open. */
gsize oct_http_connection_room(const oct_http_exchange *x);
void oct_http_connection_receive(oct_http_exchange *x, const void *bytes, gsize size);
/* The client closed its sending half; and: the connection is dead. */
void oct_http_connection_hung_up(oct_http_exchange *x);
void oct_http_connection_broken(oct_http_exchange *x);
/* Bytes that wait to be sent; the first n of them are. */
oct_http_slice oct_http_connection_pending(const oct_http_exchange *x);
void oct_http_connection_sent(oct_http_exchange *x, gsize n);
/* The first moment at which a time-out is over, G_MAXINT64 without one; and what comes of it. */
gint64 oct_http_connection_deadline(const oct_http_exchange *x);
void oct_http_connection_expire(oct_http_exchange *x, gint64 now_ns);
/* Goes on where that waited for bytes to be sent, or for the caller to be elsewhere. */
void oct_http_connection_settle(oct_http_exchange *x);
void oct_http_connection_abort(oct_http_exchange *x);

/* --- between connection.c and answer.c -------------------------------------------------------- */

/* An answer may still come, or go on. */
gboolean oct_http_connection_is_open(const oct_http_exchange *x);
void oct_http_connection_enter(oct_http_exchange *x, oct_http_phase phase);
/* Appends bytes within the budget. FALSE when that is spent. */
gboolean oct_http_queue_append(oct_http_queue *q, oct_budget *budget, const void *bytes,
                               gsize size) G_GNUC_WARN_UNUSED_RESULT;
void oct_http_queue_clear(oct_http_queue *q, oct_budget *budget);
/* Answers what no handler has seen, or sees any more, and closes. */
void oct_http_answer_refusal(oct_http_exchange *x, guint status, const char *reason);
/* HTTP/1.1 100 */
void oct_http_answer_continue(oct_http_exchange *x);

#endif
