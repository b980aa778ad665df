/* Reads HTTP/1.0 and HTTP/1.1 requests from bytes as they arrive, and refuses all that two servers
 * could read differently.
 *
 * A parser serves one connection. It is fed whatever the socket gave, stops behind the head and
 * behind the request, and leaves what follows unread: a pipelined request waits with the caller
 * until oct_http_parser_next(). What it says depends on the bytes alone, not on how they were cut
 * (but for a 503, which depends on the budget).
 * Lines end in CR LF, lengths are digits, and a message that is not understood is refused with the
 * status to answer and the connection to close: nobody knows where the next request would begin.
 *
 * Work is linear in the bytes; memory comes from the budget as bytes arrive, never because a header
 * announces them. Time-outs, TLS, routes, keys and Content-Encoding are the caller's. A parser
 * belongs to one thread at a time.
 */
#ifndef OCT_HTTP_PARSER_H
#define OCT_HTTP_PARSER_H

#include <glib.h>

#include "engine/base/budget.h"

/* --- limits: what a client may send; the rows of engine/base/limits.h ------------------------ */

/* Each is the most that is accepted. The status answers one more. */
typedef struct oct_http_limits {
  gsize request_line_bytes; /* without its CR LF; 414 */
  gsize header_bytes;       /* all header lines and the empty one, with their CR LF; 431 */
  gsize headers;            /* 431 */
  gsize body_bytes;         /* decoded, and on the wire with the framing of chunks; 413 */
  gsize chunks;             /* without the last, empty one; 413 */
  gsize extension_bytes;    /* of all chunks of a body together, from each ';' on; 400 */
} oct_http_limits;

/* The standard column of the rows. */
oct_http_limits oct_http_limits_standard(void);

/* --- types ------------------------------------------------------------------------------------ */

/* What else is a token is answered with 501, CONNECT with 400. */
typedef enum oct_http_method {
  OCT_HTTP_GET,
  OCT_HTTP_HEAD,
  OCT_HTTP_POST,
  OCT_HTTP_PUT,
  OCT_HTTP_PATCH,
  OCT_HTTP_DELETE,
  OCT_HTTP_OPTIONS,
} oct_http_method;

/* Bytes of the request: not terminated, NULL when absent. */
typedef struct oct_http_slice {
  const char *bytes;
  gsize size;
} oct_http_slice;

typedef struct oct_http_header {
  oct_http_slice name;  /* a token, in the client's spelling */
  oct_http_slice value; /* without spaces around it; no control character but HTAB inside */
} oct_http_header;

typedef struct oct_http_request {
  oct_http_method method;
  guint minor; /* of HTTP/1.minor: 0 or 1 */
  /* Printable ASCII with complete %XX, neither decoded nor cleaned of dots and double slashes.
   * path begins with '/', or is "*" (OPTIONS); of http://host/path only the path is in it. */
  oct_http_slice path;
  oct_http_slice query; /* behind the first '?'; NULL without one */
  oct_http_slice host;  /* name or address, and port if sent; NULL only for HTTP/1.0 without one */
  const oct_http_header *headers; /* in order, with those that framed the message */
  guint n_headers;
  gboolean keep_alive;      /* the client wants the connection to stay open */
  gboolean expect_continue; /* the client waits for 100 before it sends the body */
  gboolean chunked;
  gsize content_length; /* as announced; 0 when chunked */
  oct_http_slice body;  /* decoded, what has arrived */
} oct_http_request;

typedef enum oct_http_state {
  OCT_HTTP_IN_HEAD, /* wants bytes; nothing to see */
  OCT_HTTP_IN_BODY, /* wants bytes; the head is readable: answer an Expect, or refuse by route */
  OCT_HTTP_DONE,    /* the request is whole */
  OCT_HTTP_REFUSED, /* answer with the verdict and close */
} oct_http_state;

typedef struct oct_http_verdict {
  guint status;       /* 0, or 400, 413, 414, 417, 431, 501, 503 (no memory), 505 */
  const char *reason; /* static, never the client's bytes; NULL with 0 */
  gboolean close;     /* behind the answer: always when refused, else if the client wants it */
} oct_http_verdict;

/* --- life cycle ------------------------------------------------------------------------------- */

typedef struct oct_http_parser oct_http_parser;

/* Copies the limits, borrows the budget. NULL with *error (OCT_BASE_ERROR_MEMORY). */
oct_http_parser *oct_http_parser_new(const oct_http_limits *limits, oct_budget *budget,
                                     GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Accepts NULL. */
void oct_http_parser_free(oct_http_parser *parser);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(oct_http_parser, oct_http_parser_free)

/* --- use -------------------------------------------------------------------------------------- */

/* Reads on and returns the state; *used bytes were read. It stops early where the state changes:
 * call again with the rest while it says IN_BODY. In DONE and REFUSED it reads nothing. */
oct_http_state oct_http_parser_feed(oct_http_parser *parser, const void *bytes, gsize size,
                                    gsize *used) G_GNUC_WARN_UNUSED_RESULT;
/* After DONE (asserted): forgets the request, gives its body's memory back, and reads the next. */
void oct_http_parser_next(oct_http_parser *parser);

/* --- inspect ---------------------------------------------------------------------------------- */

oct_http_state oct_http_parser_state(const oct_http_parser *parser);
/* In every state; says nothing of a request that has not ended. */
oct_http_verdict oct_http_parser_verdict(const oct_http_parser *parser);
/* In IN_BODY and DONE, and in REFUSED if the head was readable before (asserted). All slices hold
 * until the next feed (body) or next. */
const oct_http_request *oct_http_parser_request(const oct_http_parser *parser);
/* The first header of that name in any case, or NULL. Authorization, Content-Type, Content-Length,
 * Expect, Host and Transfer-Encoding never come twice. */
const oct_http_slice *oct_http_request_header(const oct_http_request *request, const char *name);
/* Whether a slice is that text, with ASCII letters in any case. */
gboolean oct_http_slice_is(oct_http_slice slice, const char *text);
/* Bytes looked at, copied or cleared since the parser was made: what linear is measured by. */
guint64 oct_http_parser_work(const oct_http_parser *parser);

#endif
