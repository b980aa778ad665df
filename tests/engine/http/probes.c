#include "tests/engine/http/probes.h"

#include <string.h>

#define P(name, bytes, expected)                                                                   \
  { name, bytes, sizeof bytes - 1, expected, NULL, 0 }
#define LONG(name, bytes, expected, unit, n)                                                       \
  { name, bytes, sizeof bytes - 1, expected, unit, n }
#define H       "Host: a\r\n"
#define POST    "POST / HTTP/1.1\r\n" H
#define GET     "GET / HTTP/1.1\r\n" H
#define CHUNKED POST "Transfer-Encoding: chunked\r\n\r\n"
#define NEXT    "GET /two HTTP/1.1\r\n" H "\r\n"
#define BODY    "\r\nhello, world!"
#define CHUNKS  "d\r\nhello, world!\r\n0\r\n\r\n"

const oct_http_probe oct_http_probes[] = {
    /* two framings */
    P("length-then-chunked", POST "Content-Length: 13\r\nTransfer-Encoding: chunked\r\n\r\n" CHUNKS,
      "400"),
    P("chunked-then-length",
      POST "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n" NEXT, "400"),
    P("two-lengths", POST "Content-Length: 13\r\nContent-Length: 0\r\n" BODY, "400"),
    P("two-equal-lengths", POST "Content-Length: 13\r\nContent-Length: 13\r\n" BODY, "400"),
    /* lengths */
    P("length-with-plus", POST "Content-Length: +13\r\n" BODY, "400"),
    P("length-list", POST "Content-Length: 13, 13\r\n" BODY, "400"),
    P("length-hex", POST "Content-Length: 0x0d\r\n" BODY, "400"),
    P("length-with-space-inside", POST "Content-Length: 13 3\r\n" BODY, "400"),
    P("length-negative", POST "Content-Length: -1\r\n" BODY, "400"),
    P("length-empty", POST "Content-Length:\r\n" BODY, "400"),
    P("length-2^64+13", POST "Content-Length: 18446744073709551629\r\n" BODY, "400"),
    P("length-2^32+13", POST "Content-Length: 4294967309\r\n" BODY, "413"),
    P("space-before-colon", POST "Content-Length : 13\r\n" BODY, "400"),
    /* codings */
    P("coding-xchunked", POST "Transfer-Encoding: xchunked\r\n\r\n" CHUNKS, "400"),
    P("coding-chunked-identity", POST "Transfer-Encoding: chunked, identity\r\n\r\n" CHUNKS, "400"),
    P("coding-gzip-chunked", POST "Transfer-Encoding: gzip, chunked\r\n\r\n" CHUNKS, "400"),
    P("coding-twice",
      POST "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n" CHUNKS, "400"),
    P("coding-with-vertical-tab",
      POST "Transfer-Encoding: \x0b"
           "chunked\r\n\r\n" CHUNKS,
      "400"),
    P("coding-in-1.0", "POST / HTTP/1.0\r\n" H "Transfer-Encoding: chunked\r\n\r\n" CHUNKS, "400"),
    /* ends of lines */
    P("bare-lf-everywhere", "GET / HTTP/1.1\nHost: a\n\n", "400"),
    P("bare-lf-once", "GET / HTTP/1.1\r\nHost: a\nX: b\r\n\r\n", "400"),
    P("bare-cr-in-value", GET "X: a\rb\r\n\r\n", "400"),
    P("bare-cr-hides-length", POST "X: a\rContent-Length: 13\r\n" BODY, "400"),
    P("cr-cr-lf", GET "X: a\r\n\r\r\n", "400"),
    P("nul-in-value", GET "X: a\0b\r\n\r\n", "400"),
    P("nul-in-name", GET "X\0Y: a\r\n\r\n", "400"),
    P("folded-value", POST "X: a\r\n Content-Length: 13\r\n" BODY, "400"),
    P("space-before-length", POST " Content-Length: 13\r\n" BODY, "400"),
    P("tab-before-the-first-header", "GET / HTTP/1.1\r\n\tHost: a\r\n\r\n", "400"),
    P("empty-line-first", "\r\n" GET "\r\n", "400"),
    /* headers */
    P("no-colon", GET "Content-Length\r\n\r\n", "400"),
    P("empty-name", GET ": a\r\n\r\n", "400"),
    P("name-with-bracket", GET "X(: a\r\n\r\n", "400"),
    P("no-host", "GET / HTTP/1.1\r\nX: a\r\n\r\n", "400"),
    P("two-hosts", GET "Host: b\r\n\r\n", "400"),
    P("host-with-slash", "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", "400"),
    P("host-empty", "GET / HTTP/1.1\r\nHost: \r\n\r\n", "400"),
    P("host-with-user", "GET / HTTP/1.1\r\nHost: u@a\r\n\r\n", "400"),
    P("two-authorizations", GET "Authorization: Bearer a\r\nauthorization: Bearer b\r\n\r\n",
      "400"),
    LONG("header-of-200-kb", GET "X: @\r\n\r\n", "431", "a", 200000),
    LONG("20000-headers", GET "@\r\n", "431", "X: a\r\n", 20000),
    /* chunks */
    P("lf-in-chunk-extension", CHUNKED "d;a\nb\r\nhello, world!\r\n0\r\n\r\n", "400"),
    LONG("chunk-extension-of-1-mib", CHUNKED "d;@\r\nhello, world!\r\n0\r\n\r\n", "400", "a",
         1 << 20),
    P("chunk-extension-empty", CHUNKED "d;\r\nhello, world!\r\n0\r\n\r\n", "400"),
    P("chunk-extension-with-space", CHUNKED "d; a\r\nhello, world!\r\n0\r\n\r\n", "400"),
    P("chunk-extension-open-quote", CHUNKED "d;a=\"b\r\nhello, world!\r\n0\r\n\r\n", "400"),
    P("chunk-extension-escaped-cr", CHUNKED "d;a=\"\\\r\n\"\r\nhello, world!", "400"),
    P("chunk-extension-behind-quote", CHUNKED "d;a=\"b\"c\r\nhello, world!", "400"),
    P("chunk-size-overflows", CHUNKED "1000000000000000d\r\nhello, world!\r\n0\r\n\r\n", "400"),
    P("chunk-size-negative", CHUNKED "-2\r\nhello, world!\r\n0\r\n\r\n", "400"),
    P("chunk-size-empty", CHUNKED "\r\nhello, world!\r\n0\r\n\r\n", "400"),
    P("chunk-size-0x", CHUNKED "0xd\r\nhello, world!\r\n0\r\n\r\n", "400"),
    P("chunk-size-of-2^64-1", CHUNKED "ffffffffffffffff\r\nhello", "413"),
    P("chunk-with-junk-behind", CHUNKED "d\r\nhello, world!xx0\r\n\r\n", "400"),
    P("chunk-size-and-space", CHUNKED "d \r\nhello, world!\r\n0\r\n\r\n", "400"),
    P("trailer", CHUNKED "d\r\nhello, world!\r\n0\r\nContent-Length: 3\r\n\r\n", "400"),
    /* request lines */
    P("version-1.2", "GET / HTTP/1.2\r\n" H "\r\n", "505"),
    P("version-2.0", "GET / HTTP/2.0\r\n" H "\r\n", "505"),
    P("version-1.1x", "GET / HTTP/1.1x\r\n" H "\r\n", "400"),
    P("version-0.9", "GET /\r\n", "400"),
    P("version-in-small-letters", "GET / http/1.1\r\n" H "\r\n", "400"),
    P("two-spaces-before-target", "GET  / HTTP/1.1\r\n" H "\r\n", "400"),
    P("two-spaces-behind-target", "GET /  HTTP/1.1\r\n" H "\r\n", "400"),
    P("tab-behind-method", "GET\t/ HTTP/1.1\r\n" H "\r\n", "400"),
    P("unknown-method", "BREW / HTTP/1.1\r\n" H "\r\n", "501"),
    P("method-in-small-letters", "get / HTTP/1.1\r\n" H "\r\n", "501"),
    P("trace", "TRACE / HTTP/1.1\r\n" H "\r\n", "501"),
    P("connect", "CONNECT a:80 HTTP/1.1\r\n" H "\r\n", "400"),
    P("target-without-slash", "GET two HTTP/1.1\r\n" H "\r\n", "400"),
    P("target-with-half-an-escape", "GET /%2 HTTP/1.1\r\n" H "\r\n", "400"),
    P("target-with-byte-above-ascii", "GET /\xc3\xa9 HTTP/1.1\r\n" H "\r\n", "400"),
    P("absolute-form-of-another-host", "GET http://b/ HTTP/1.1\r\n" H "\r\n", "400"),
    P("tls-hello", "\x16\x03\x01\x02", "400"),
    /* bodies past the limit */
    P("body-of-5-mib", POST "Content-Length: 5242880\r\n\r\n", "413"),
    LONG("body-of-5-mib-in-chunks", CHUNKED "@0\r\n\r\n", "413",
         "20\r\n0123456789abcdef0123456789abcdef\r\n", (5 << 20) / 32),
    P("expectation-unknown", POST "Expect: 200-maybe\r\nContent-Length: 13\r\n" BODY, "417"),
    /* and what must be served */
    P("get", GET "\r\n", "GET /"),
    P("head", "HEAD / HTTP/1.1\r\n" H "\r\n", "HEAD /"),
    P("options-star", "OPTIONS * HTTP/1.1\r\n" H "\r\n", "OPTIONS *"),
    P("get-in-1.0", "GET / HTTP/1.0\r\n\r\n", "GET /"),
    P("absolute-form", "GET http://A/x?y HTTP/1.1\r\n" H "\r\n", "GET /x?y"),
    P("absolute-form-without-path", "GET http://a?y HTTP/1.1\r\n" H "\r\n", "GET /?y"),
    P("length", POST "Content-Length: 13\r\n" BODY, "POST / hello, world!"),
    P("length-with-spaces-around", POST "content-LENGTH: \t 13 \r\n" BODY, "POST / hello, world!"),
    P("length-of-0", POST "Content-Length: 0\r\n\r\n" NEXT, "POST / | GET /two"),
    P("chunked", CHUNKED CHUNKS, "POST / hello, world!"),
    P("chunked-in-capitals", POST "Transfer-Encoding: CHUNKED\r\n\r\n" CHUNKS,
      "POST / hello, world!"),
    P("chunks-with-extensions",
      CHUNKED "00005;a=b\r\nhello\r\n8;c=\"d\\\" e\";f;g=h\r\n, world!\r\n0;e\r\n\r\n",
      "POST / hello, world!"),
    P("pipelined", POST "Content-Length: 13\r\n" BODY NEXT, "POST / hello, world! | GET /two"),
    P("pipelined-behind-chunks", CHUNKED CHUNKS NEXT, "POST / hello, world! | GET /two"),
    P("junk-behind-a-request",
      GET "\r\n"
          "x\r\n\r\n",
      "GET / | 400"),
    P("expect-continue", POST "Expect: 100-continue\r\nContent-Length: 13\r\n\r\n", "body"),
    P("ipv6-host", "GET / HTTP/1.1\r\nHost: [::1]:8000\r\n\r\n", "GET /"),
    P("half-a-head", "GET / HTTP/1.1\r\nHos", "head"),
    P("half-a-body", POST "Content-Length: 13\r\n\r\nhello", "body"),
};

const gsize oct_http_n_probes = G_N_ELEMENTS(oct_http_probes);

GString *
oct_http_probe_spell(const oct_http_probe *p) {
  GString *text = g_string_new_len(p->bytes, (gssize)p->size);
  if (p->unit != NULL) {
    gsize at = (gsize)((const char *)memchr(text->str, '@', text->len) - text->str);
    g_autoptr(GString) filled = g_string_new_len(p->bytes, (gssize)at);
    for (gsize i = 0; i < p->n; i++)
      g_string_append(filled, p->unit);
    g_string_append_len(filled, p->bytes + at + 1, (gssize)(p->size - at - 1));
    g_string_assign(text, "");
    g_string_append_len(text, filled->str, (gssize)filled->len);
  }
  return text;
}
