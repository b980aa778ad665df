/* What one of several equal replicas gets from a router to the least loaded, without the others.
 *
 * The router (engine/sched/router.h, which chooses here too) sends a request to the replica with
 * the fewest tokens to compute: of prompts, and one for each sequence that decodes. A dealer keeps
 * these books for all replicas with fixed times: a replica computes its prompts one after the other
 * at `prompt_token_s` a token, then each output takes `token_s` a token, whatever runs beside it.
 * Only the first replica's sessions are then simulated. Equal loads go by turns, so that it gets
 * the n-th part; with times of 0 all do, and sessions are dealt out in turn.
 *
 * Estimates go in, so what comes out is one: plans say so, and run their best layout with all its
 * replicas as well. One thread.
 */
#ifndef OCT_SIM_PLAN_DEALER_H
#define OCT_SIM_PLAN_DEALER_H

#include "sim/replay/slo.h"
#include "traces/trace.h"

typedef struct oct_plan_dealer oct_plan_dealer;

oct_plan_dealer *oct_plan_dealer_new(guint32 n_replicas, double prompt_token_s, double token_s);
void oct_plan_dealer_free(oct_plan_dealer *dealer); /* accepts NULL */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(oct_plan_dealer, oct_plan_dealer_free)

/* Whether the session start goes to the first replica: an oct_rows_options.deal. Rows in order of
 * arrival. */
gboolean oct_plan_dealer_deal(void *dealer, const oct_trace_request *row);

#endif
