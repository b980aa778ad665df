/* Served requests against their twin: the report of `octet replay` against those of `octet bench`,
 * which sent the same requests to a real server, one time or, better, several times.
 *
 * A percentile holds when the prediction is within 5 % (p50) or 10 % (p99) of the repeats' median,
 * or, with three repeats at least, between their least and their most; throughput within 3 %. The
 * slope of the backlog is shown: at a load that is served it is noise about nothing.
 */
#ifndef OCT_SIM_VALIDATE_SERVED_H
#define OCT_SIM_VALIDATE_SERVED_H

#include <glib.h>
#include <jansson.h>

/* A part of sim/validate/report.h: a row per figure. `predicted` is a report (octet-replay-1),
 * `measured` an array of at least one. Borrowed. Owned; NULL with *error (OCT_VALIDATE_ERROR_DATA:
 * reports of other numbers of requests, or without latencies). */
json_t *oct_validate_served(const json_t *predicted, const json_t *measured,
                            GError **error) G_GNUC_WARN_UNUSED_RESULT;

#endif
