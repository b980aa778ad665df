/* Drives a parser over bytes that come in pieces, and says in a line of text what it made of them.
 * Shared by the tests and the fuzz target of engine/http. */
#ifndef OCT_TESTS_HTTP_DRIVE_H
#define OCT_TESTS_HTTP_DRIVE_H

#include "engine/http/parser.h"

/* Appends the method's name and the path. */
void oct_http_drive_describe(const oct_http_request *request, GString *out);

/* Bytes [0, first) come at once, then pieces of `piece` bytes. Appends one item per request, with
 * " | " between: "METHOD path", "?query", " body" for a whole one, a status for a refused one,
 * "head" or "body" for one that lacks bytes. With `details`, also host, headers, and the verdict's
 * reason and place. Returns the work done. */
guint64 oct_http_drive(const oct_http_limits *limits, const void *bytes, gsize size, gsize first,
                       gsize piece, gboolean details, GString *out);

#endif
