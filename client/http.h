/* A non-blocking HTTP/1.1 client for thousands of exchanges on one thread: libcurl's multi
 * interface on an epoll loop.
 *
 * The caller turns the loop: oct_client_poll() waits until something happens or a time has come,
 * and calls back from there. Connections are kept and used again; one exchange has one connection
 * for itself. A kept connection that the server had closed before it saw the request is replaced
 * once, as libcurl does.
 *
 * URLs: http://HOST[:PORT][/PREFIX], https:// likewise, HOST:PORT, and unix:PATH for a Unix socket.
 * A prefix that ends in /v1 stands for what is before it, because users paste what they gave to
 * other clients; paths of calls begin with "/v1/…".
 *
 * Time is CLOCK_MONOTONIC in ns. One thread.
 */
#ifndef OCT_CLIENT_HTTP_H
#define OCT_CLIENT_HTTP_H

#include <glib.h>

#include "client/failure.h"

#define OCT_CLIENT_ERROR (oct_client_error_quark())
GQuark oct_client_error_quark(void);
typedef enum oct_client_error {
  OCT_CLIENT_ERROR_OPTION, /* a URL or header that makes no sense */
  OCT_CLIENT_ERROR_SYSTEM, /* epoll or libcurl could not be set up */
  OCT_CLIENT_ERROR_ANSWER, /* a simple call was not answered: oct_client_get() */
} oct_client_error;

/* Plain data; all is copied. Times in ms, 0 = no limit. */
typedef struct oct_client_options {
  const char *url;
  const char *api_key;        /* NULL = none; sent as "Authorization: Bearer …" */
  const char *const *headers; /* "Name: value", NULL-terminated; NULL = none */
  guint32 connect_timeout_ms;
  guint32 total_timeout_ms; /* of an exchange */
  guint32 idle_timeout_ms;  /* without a byte; in whole seconds, rounded up */
} oct_client_options;
void oct_client_options_default(oct_client_options *options); /* connect 10 s, no other limit */

typedef struct oct_client oct_client;
typedef struct oct_exchange oct_exchange;

/* How an exchange ended. */
typedef struct oct_exchange_end {
  oct_failure failure; /* NONE also with a status other than 200: the body came whole */
  int status;          /* 0 = no answer */
  const char *message; /* of a failure; "" without; borrowed for the call */
  gint64 started_ns, ended_ns;
} oct_exchange_end;

typedef struct oct_call {
  const char *path; /* "/v1/models"; copied */
  char *body;       /* taken; JSON that is sent by POST; NULL = GET */
  gsize body_bytes;
  gboolean wants_stream; /* sends Accept: text/event-stream */
  void *user;
  /* Once before the first byte of a body, if there is a body; content_type "" = not stated. FALSE
   * ends the exchange. NULL = not told. */
  gboolean (*head)(void *user, int status, const char *content_type);
  /* Bytes of the body, which came at `now_ns`. FALSE ends the exchange. */
  gboolean (*data)(void *user, const char *bytes, gsize n, gint64 now_ns);
  /* Last, always, from oct_client_poll(); may start others. An exchange that a callback ended has
   * the failure CANCELLED: who ended it knows why. */
  void (*done)(void *user, const oct_exchange_end *end);
} oct_call;

/* ---- life cycle */
/* NULL with *error. */
oct_client *oct_client_new(const oct_client_options *options,
                           GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Ends what is out without calling back. Accepts NULL. */
void oct_client_free(oct_client *client);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(oct_client, oct_client_free)

/* ---- use */
/* Starts an exchange; the handle is good until its `done`. Never fails at once: what is wrong is
 * told by `done`. */
oct_exchange *oct_client_start(oct_client *client, const oct_call *call);
/* Ends it: `done` is called from here, with CANCELLED. Not from a callback. */
void oct_client_cancel(oct_client *client, oct_exchange *exchange);
/* One turn: waits until something happens, a signal comes, or `until_ns` (G_MAXINT64 = no limit),
 * and calls back. */
void oct_client_poll(oct_client *client, gint64 until_ns);

/* A GET that waits for its answer: the body, owned, NUL-terminated, of at most
 * OCT_CLIENT_BODY_MAX. NULL with *error (ANSWER), also for a status other than 200. Turns the loop
 * for others too. */
#define OCT_CLIENT_BODY_MAX (4u << 20)
char *oct_client_get(oct_client *client, const char *path, gint64 until_ns,
                     GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* ---- inspect */
guint32 oct_client_n_open(const oct_client *client);  /* exchanges that are out */
const char *oct_client_url(const oct_client *client); /* as it is used, without the path */
/* Time spent outside of waiting since the client was made. */
gint64 oct_client_busy_ns(const oct_client *client);
gint64 oct_client_now_ns(void);

#endif
