/* A handler that does what the path says and writes down what it is told, and a reader of answers.
 * Shared by the tests and the fuzz target of the server.
 *
 *   /wait…    keeps the exchange open           /stream…  begins a stream and keeps it open
 *   /refuse…  answers 401 from head()           /sse…     a stream of two pieces, ended at once
 *   others    answers with "METHOD path?query body", as http-drive.h writes it
 *
 * Events: "head", "request", "gone:REASON", with " " between; each exchange's order is asserted. */
#ifndef OCT_TESTS_HTTP_HANDLER_H
#define OCT_TESTS_HTTP_HANDLER_H

#include "engine/http/server.h"

typedef struct oct_http_test_handler {
  GString *events;
  GPtrArray *open; /* exchanges that wait for an answer */
  gint64 now_ns;   /* what the clock says */
} oct_http_test_handler;

void oct_http_test_handler_init(oct_http_test_handler *h);
void oct_http_test_handler_clear(oct_http_test_handler *h); /* no exchange is open (asserted) */
/* With the standard limits but the probes' body. */
oct_http_server_config oct_http_test_config(oct_http_test_handler *h, oct_budget *budget);

/* The oldest open exchange; and it, answered or ended, with a text. */
oct_http_exchange *oct_http_test_first(const oct_http_test_handler *h);
void oct_http_test_answer(oct_http_test_handler *h, const char *text);
void oct_http_test_end(oct_http_test_handler *h);

/* Appends what a client reads in the answers: with " | " between, a status other than 200 and its
 * body's message, or the body of 200; "…" for an answer that is not whole. 100 is left out.
 * Asserts that they are framed well. `heads`: to requests with HEAD, which have no bodies: statuses
 * only. */
void oct_http_test_read(const char *bytes, gsize size, gboolean heads, GString *out);

#endif
