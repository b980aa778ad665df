/* One connection without a socket, in the test's time: what the test gives is what came, what it
 * takes is what went. Shared by the tests and the fuzz target of the server. */
#ifndef OCT_TESTS_HTTP_RIG_H
#define OCT_TESTS_HTTP_RIG_H

#include "engine/http/connection.h"
#include "tests/engine/http/handler.h"

typedef struct oct_http_rig {
  oct_http_test_handler h;
  oct_budget *budget;
  oct_http_shared shared;
  oct_http_exchange x;
  GString *wire; /* what the client has received */
  gsize window;  /* bytes that it still takes */
} oct_http_rig;

/* All but the connection. */
void oct_http_rig_prepare(oct_http_rig *r, gsize budget_bytes);
void oct_http_rig_start(oct_http_rig *r);
/* Aborts what is open; nothing may leak (asserted). */
void oct_http_rig_stop(oct_http_rig *r);

/* Sends and settles until nothing changes. */
void oct_http_rig_pump(oct_http_rig *r);
/* In pieces of what the connection has room for. Returns how many bytes it took. */
gsize oct_http_rig_give(oct_http_rig *r, const void *bytes, gsize size);
/* Lets time pass. */
void oct_http_rig_advance(oct_http_rig *r, gint64 ns);

#endif
