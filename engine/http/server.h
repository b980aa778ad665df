/* Serves HTTP/1.1 to clients that are not trusted: sockets, time-outs and queues around the parser
 * of engine/http/parser.h. Who answers is a handler, told of each request twice: with its head, to
 * refuse it by route or key before a body is read, and whole.
 *
 *   head(x) --> request(x) --> oct_http_respond(x)                                    one answer
 *                          \-> oct_http_stream_begin(x), _write(x) …, _end(x)         a stream
 *   gone(x) instead of the rest: the client left, reads too slowly, or the server stops
 *
 * An exchange is one request and its answer. It belongs to the server; the handler may use it from
 * head() until it has responded, ended the stream, or been told gone(), whichever comes first, and
 * never after. A connection has one exchange at a time: a pipelined request waits unread.
 *
 * Everything runs in the thread that calls oct_http_server_turn(), and nothing here waits: the
 * caller polls oct_http_server_fd() until oct_http_server_deadline(). Callbacks come from within
 * turn() and abort() only, never from within oct_http_respond() and its kin, so that a handler may
 * answer wherever it stands. Time is the caller's clock: it may be a test's.
 *
 * A client has left when it closes, resets, or closes its sending half: the last is what waiting
 * clients do not do, and no other sign comes from one that died in order.
 */
#ifndef OCT_HTTP_SERVER_H
#define OCT_HTTP_SERVER_H

#include <glib.h>

#include "engine/base/budget.h"
#include "engine/http/parser.h"

typedef struct oct_http_server oct_http_server;
typedef struct oct_http_exchange oct_http_exchange;

/* --- limits: the rows of engine/base/limits.h ------------------------------------------------- */

#define OCT_HTTP_ID_BYTES_MAX 128 /* of X-Request-Id */

/* Each is the most that is accepted; what comes of one more stands beside it. */
typedef struct oct_http_server_limits {
  oct_http_limits request;
  gsize connections;             /* 503 and closed */
  gsize connections_per_address; /* the same; 0: any number. A proxy shares one address */
  gsize queue_bytes;             /* of a stream, written and not taken by the kernel; cut */
  gint64 header_ns;              /* from a request's first byte to its head's last; 408 */
  gint64 body_idle_ns;           /* between two pieces of a body; 408 */
  gint64 body_grace_ns;          /* from then on, body_rate is wanted on average; 408 */
  gsize body_rate;               /* bytes/s of a body, framing included; below: 408 */
  gint64 stall_ns;               /* without the client taking a byte that waits for it; cut */
  gint64 idle_ns;                /* between two requests; closed */
} oct_http_server_limits;

oct_http_server_limits oct_http_server_limits_standard(void);

/* --- handler ---------------------------------------------------------------------------------- */

typedef enum oct_http_gone {
  OCT_HTTP_GONE_LEFT,    /* the client closed, reset, or closed its sending half */
  OCT_HTTP_GONE_STALLED, /* it does not read: queue_bytes or stall_ns */
  OCT_HTTP_GONE_TIMEOUT, /* it did not send its body in time (408 is sent) */
  OCT_HTTP_GONE_REFUSED, /* its body is malformed or too long (400, 413 is sent) */
  OCT_HTTP_GONE_MEMORY,  /* the budget is spent */
  OCT_HTTP_GONE_ABORTED, /* oct_http_server_abort() */
  OCT_HTTP_GONE_COUNT
} oct_http_gone;

/* None may block. All have the configuration's `user`. */
typedef struct oct_http_handler {
  /* The head is readable, and nothing of a body: answer here to refuse, and request() never comes;
   * the connection then closes if a body was to follow. May be NULL. */
  void (*head)(void *user, oct_http_exchange *x);
  /* The request is whole. Answer here or later. */
  void (*request)(void *user, oct_http_exchange *x);
  /* After head(), before an answer has ended: there is nobody to answer. The exchange and the
   * request's bytes are readable inside this call for the last time. Comes once. */
  void (*gone)(void *user, oct_http_exchange *x, oct_http_gone why);
} oct_http_handler;

/* --- life cycle ------------------------------------------------------------------------------- */

typedef struct oct_http_server_config {
  oct_http_server_limits limits;
  oct_http_handler handler;
  void *user;                    /* the handler's */
  oct_budget *budget;            /* borrowed: all memory whose size clients decide */
  gint64 (*now_ns)(void *clock); /* never goes back */
  void *clock;
  guint64 id_seed; /* of the request ids that the server makes */
  /* Names that Host may have besides addresses and localhost, ending in NULL; borrowed. Others are
   * answered with 421: a page in a browser on this machine, whose name has been made to mean this
   * machine, asks by that name. NULL: any name. */
  const char *const *hosts;
} oct_http_server_config;

/* Copies the configuration. NULL with *error (OCT_HTTP_ERROR_SOCKET): no more descriptors. */
oct_http_server *oct_http_server_new(const oct_http_server_config *config,
                                     GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Closes everything, as oct_http_server_abort() does first. Accepts NULL. Not within a callback. */
void oct_http_server_free(oct_http_server *server);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(oct_http_server, oct_http_server_free)

#define OCT_HTTP_ERROR (oct_http_error_quark())
GQuark oct_http_error_quark(void);
typedef enum oct_http_error {
  OCT_HTTP_ERROR_ADDRESS, /* is none, or cannot be listened at: in use, not ours, not permitted */
  OCT_HTTP_ERROR_SOCKET,  /* the machine gives no more */
} oct_http_error;

/* Listens at a numeric IPv4 or IPv6 address or "localhost" (127.0.0.1): names are not looked up.
 * Port 0 takes a free one; *bound (may be NULL) is the port taken. Several may be listened at. */
gboolean oct_http_server_listen(oct_http_server *server, const char *address, guint16 port,
                                guint16 *bound, GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Listens at a Unix socket that it makes with mode 0600, in place of one that nobody listens at,
 * and removes when it stops listening. */
gboolean oct_http_server_listen_unix(oct_http_server *server, const char *path,
                                     GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Serves a connected stream socket as if it had been accepted. Takes `fd`. */
void oct_http_server_adopt(oct_http_server *server, int fd);

/* --- loop ------------------------------------------------------------------------------------- */

/* Readable when there is something to do; the same for the server's whole life. */
int oct_http_server_fd(const oct_http_server *server);
/* Does all that is due: accepts, reads, calls back, sends what was written since, times out. */
void oct_http_server_turn(oct_http_server *server);
/* When turn() is to be called though the fd is silent: now or earlier when answers were written
 * and not yet sent; G_MAXINT64: never. */
gint64 oct_http_server_deadline(const oct_http_server *server);

/* Stops listening, closes connections that wait for a request, and lets each other one end with
 * its answer (Connection: close). */
void oct_http_server_drain(oct_http_server *server);
/* gone() for every exchange, then closes every connection at once. Not within a callback. */
void oct_http_server_abort(oct_http_server *server);

/* --- exchange --------------------------------------------------------------------------------- */

/* The head from head() on, the body from request() on. */
const oct_http_request *oct_http_exchange_request(const oct_http_exchange *x);
/* The client's X-Request-Id where that is a token (RFC 9110) of at most OCT_HTTP_ID_BYTES_MAX, else
 * one that the server made. Answers carry it; the handler does not add it. */
const char *oct_http_exchange_id(const oct_http_exchange *x);
/* "127.0.0.1:40000", "[::1]:40000" or "unix". */
const char *oct_http_exchange_peer(const oct_http_exchange *x);
/* When the request's first byte came. */
gint64 oct_http_exchange_started_ns(const oct_http_exchange *x);
/* The handler's pointer, NULL at first. */
void oct_http_exchange_set_user(oct_http_exchange *x, void *user);
void *oct_http_exchange_user(const oct_http_exchange *x);

/* --- answers ---------------------------------------------------------------------------------- */

typedef struct oct_http_field {
  const char *name;  /* a token (asserted), and none of those the server sets */
  const char *value; /* control characters are sent as '_': no answer can be split */
} oct_http_field;

/* All borrowed for the call. The server adds Content-Length or Transfer-Encoding, Connection,
 * Content-Type and X-Request-Id. */
typedef struct oct_http_reply {
  guint status;             /* 200 … 599 (asserted) */
  const char *content_type; /* NULL: none */
  const oct_http_field *fields;
  guint n_fields;
  oct_http_slice body; /* left out for HEAD, 204 and 304, as is its length for the last two */
} oct_http_reply;

/* Answers, and ends the exchange. */
void oct_http_respond(oct_http_exchange *x, const oct_http_reply *reply);
/* The same with the error body that OpenAI's clients read; `message` is UTF-8 of any content. */
void oct_http_respond_error(oct_http_exchange *x, guint status, const char *message);

/* Begins an answer whose length is not known: chunked, or up to the end of the connection for
 * HTTP/1.0. reply->body is the first piece. */
void oct_http_stream_begin(oct_http_exchange *x, const oct_http_reply *reply);
/* Appends a piece, sent with the others of this turn. FALSE: the client is being cut, and gone()
 * follows from the next turn; later pieces are dropped. 0 bytes are nothing. Allocates only while
 * the queue is longer than ever before. */
gboolean oct_http_stream_write(oct_http_exchange *x, const void *bytes, gsize size);
/* Ends the answer and the exchange. */
void oct_http_stream_end(oct_http_exchange *x);

/* --- inspect ---------------------------------------------------------------------------------- */

typedef struct oct_http_counts {
  guint connections;             /* open */
  guint exchanges;               /* between head() and the end of the answer */
  guint64 accepted, turned_away; /* connections; the latter by the limits of their number */
  guint64 requests;              /* heads that were read */
  guint64 refused;               /* requests that the server answered itself: 400, 408, … */
  guint64 gone[OCT_HTTP_GONE_COUNT];
  guint64 bytes_in, bytes_out;
} oct_http_counts;

oct_http_counts oct_http_server_counts(const oct_http_server *server);
/* Appends them in Prometheus' text format. */
void oct_http_server_write_metrics(const oct_http_server *server, GString *out);

#endif
