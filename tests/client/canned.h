/* A server with canned answers, in a thread of its own: each connection is answered by a script.
 *
 * A script is a text of steps. It runs once for each request that has come whole (head and
 * Content-Length), on every connection from its start; a connection that a script leaves open waits
 * for the next request.
 *
 *   "send" TEXT     the bytes as they are
 *   "pause"         gives the kernel time to hand over what was sent, so that pieces arrive apart
 *   "close"         in order (FIN)
 *   "reset"         RST
 *   "hang"          nothing more; until the client closes
 */
#ifndef OCT_TESTS_CLIENT_CANNED_H
#define OCT_TESTS_CLIENT_CANNED_H

#include <glib.h>

typedef enum canned_kind {
  CANNED_END,
  CANNED_SEND,
  CANNED_PAUSE,
  CANNED_CLOSE,
  CANNED_RESET,
  CANNED_HANG
} canned_kind;

typedef struct canned_step {
  canned_kind kind;
  const char *text;
} canned_step;

#define CANNED_STEPS_MAX 16

typedef struct canned canned;

/* Chooses the steps for a request, which is borrowed for the call: fills steps[CANNED_STEPS_MAX],
 * ended by CANNED_END. Runs in the server's thread. */
typedef void (*canned_fn)(void *user, const char *request, guint number, canned_step *steps);

/* Listens on a free port of 127.0.0.1, or on a Unix socket at `path`. */
canned *canned_new(const char *path, canned_fn answer, void *user);
void canned_free(canned *server); /* stops it */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(canned, canned_free)

const char *canned_url(const canned *server);
guint canned_n_connections(const canned *server); /* accepted so far */
guint canned_n_requests(const canned *server);

/* "HTTP/1.1 200 OK" with Content-Type and the text in chunks of `cut` bytes each (0 = one chunk);
 * owned. */
char *canned_chunked(const char *type, const char *body, gsize cut);
/* The same with a Content-Length, and any status line's rest ("404 Not Found"). Owned. */
char *canned_plain(const char *status, const char *type, const char *body);

#endif
