/* What can go wrong with a question to a server, by name: the kinds that reports count.
 *
 * Plain data; any thread.
 */
#ifndef OCT_CLIENT_FAILURE_H
#define OCT_CLIENT_FAILURE_H

typedef enum oct_failure {
  OCT_FAILURE_NONE,
  /* Before a byte of the answer. */
  OCT_FAILURE_RESOLVE,         /* the host's name is not known */
  OCT_FAILURE_REFUSED,         /* nobody listens there */
  OCT_FAILURE_CONNECT,         /* another reason why there is no connection */
  OCT_FAILURE_CONNECT_TIMEOUT, /* none within the time-out */
  OCT_FAILURE_TLS,             /* certificate or handshake */
  OCT_FAILURE_EMPTY,           /* the server closed without an answer */
  /* At any time. */
  OCT_FAILURE_RESET,   /* the connection was reset */
  OCT_FAILURE_TIMEOUT, /* of the whole exchange, or nothing came for too long */
  OCT_FAILURE_CANCELLED,
  /* In the answer. */
  OCT_FAILURE_STATUS,    /* a status other than 200 */
  OCT_FAILURE_PROTOCOL,  /* what came is not HTTP/1 */
  OCT_FAILURE_TYPE,      /* a stream was asked for, and the answer is of another content type */
  OCT_FAILURE_TRUNCATED, /* the body ended before its end, or its stream before [DONE] */
  OCT_FAILURE_CONTENT,   /* an event is not the JSON that it should be, or is too long */
  OCT_FAILURE_ERROR,     /* an event of the stream says that the server failed */
  OCT_FAILURE_OTHER,
  OCT_FAILURE_COUNT
} oct_failure;

const char *oct_failure_name(oct_failure kind); /* "connection refused"; static */

#endif
