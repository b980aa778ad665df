/* The rules for one line of a request's head, as functions of its bytes. Internal to engine/http.
 * Every function looks at each byte a constant number of times. */
#ifndef OCT_HTTP_HEAD_H
#define OCT_HTTP_HEAD_H

#include "engine/http/parser.h"

/* A refusal; status 0 is none. */
typedef struct oct_http_fault {
  guint status;
  const char *reason; /* static */
} oct_http_fault;

/* Of a request line without its CR LF; slices are of `line`. `authority` is NULL unless the target
 * is http://authority/path; path is NULL where that has none. */
typedef struct oct_http_request_line {
  oct_http_method method;
  guint minor;
  oct_http_slice path, query, authority;
} oct_http_request_line;

oct_http_fault oct_http_read_request_line(oct_http_slice line, oct_http_request_line *out);

/* Of a header line without its CR LF, in which control characters were refused already. */
oct_http_fault oct_http_read_header(oct_http_slice line, oct_http_header *out);

/* Whether a byte may be in a token: a method, a name. */
gboolean oct_http_is_token(char c);

/* host [":" port] with a name, an IPv4 address or a bracketed IPv6 address. */
gboolean oct_http_host_is_valid(oct_http_slice host);

/* Without its port: an address, or localhost or a name below it. `host` is valid. */
gboolean oct_http_host_is_literal(oct_http_slice host);
/* Without its port: that name, with ASCII letters in any case. */
gboolean oct_http_host_is_named(oct_http_slice host, const char *name);

/* Digits only, without a sign, and within 63 bits. */
gboolean oct_http_read_length(oct_http_slice value, gsize *out);

/* Whether a comma-separated list has the word, in any case. */
gboolean oct_http_list_has(oct_http_slice list, const char *word);

#endif
