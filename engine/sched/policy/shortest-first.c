/* shortest-first: short prompts pass long ones, but not for ever.
 *
 * The rank is arrival time plus OCT_SHORTEST_NS_PER_TOKEN for each prompt token: a prompt that is
 * 1,000 tokens longer waits as if it had come that much later, so nobody is overtaken by what
 * arrives more than its own length's worth of time afterwards. */
#include "engine/sched/policy/policies.h"

#define OCT_SHORTEST_NS_PER_TOKEN 1000000 /* 1,000 tokens weigh one second */

static void
rank(oct_engine *engine, oct_seq *seq, gboolean requeued) {
  (void)engine;
  (void)requeued;
  seq->rank_class = 0;
  seq->rank = seq->request->arrival_ns + (gint64)seq->request->prompt * OCT_SHORTEST_NS_PER_TOKEN;
}

const oct_policy oct_policy_shortest_first = {
    .name = "shortest-first",
    .summary = "short prompts first; 1,000 tokens weigh as one second of waiting",
    .rank = rank,
    .plan = oct_plan_decode_first,
    .victim = oct_victim_youngest,
};
