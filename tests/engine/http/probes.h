/* Messages that servers have read in more than one way, or not survived, and messages that must be
 * served: each with what must come of it. Shared by the tests of the parser and of the server. */
#ifndef OCT_TESTS_HTTP_PROBES_H
#define OCT_TESTS_HTTP_PROBES_H

#include <glib.h>

/* The body limit that the probes are made for, below the standard one to keep them small. */
#define OCT_HTTP_PROBE_BODY_MAX (4 << 20)

typedef struct oct_http_probe {
  const char *name;
  const char *bytes;
  gsize size;
  const char *expected; /* as http-drive.h says */
  const char *unit;     /* stands n times in the place of the bytes' only '@' */
  gsize n;
} oct_http_probe;

extern const oct_http_probe oct_http_probes[];
extern const gsize oct_http_n_probes;

/* The probe's bytes. Owned. */
GString *oct_http_probe_spell(const oct_http_probe *probe);

#endif
