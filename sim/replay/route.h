/* How requests find a replica, and what clients do that do not get an answer in time. Plain data.
 */
#ifndef OCT_SIM_REPLAY_ROUTE_H
#define OCT_SIM_REPLAY_ROUTE_H

#include <glib.h>

typedef enum oct_routing_rule {
  OCT_ROUTE_LEAST_LOADED, /* with the fewest tokens to compute; equal: the lowest number */
  OCT_ROUTE_ROUND_ROBIN,
  /* That has been sent most of the prompt's leading pages; equal, or when that one has more than
   * twice the work of the least loaded: the least loaded. For traces with prefix content. */
  OCT_ROUTE_PREFIX,
  OCT_ROUTE_COUNT
} oct_routing_rule;

/* "least-loaded", "round-robin", "prefix-affinity"; static. */
const char *oct_routing_rule_name(oct_routing_rule router);
gboolean oct_routing_rule_find(const char *name, oct_routing_rule *router);

/* A client that does not wait for ever. */
typedef struct oct_client {
  gint64 timeout_ns; /* from sending to the last token; 0 = waits */
  guint32 retries;   /* after a timeout, a refusal as busy, or a failure it sends again so often */
  gint64 backoff_ns; /* after this pause, twice as long each time */
} oct_client;

#endif
