/* What the policies' files share among themselves. */
#ifndef OCT_SCHED_POLICIES_H
#define OCT_SCHED_POLICIES_H

#include "engine/sched/internal.h"

/* Steps in a row that prefill may go without a token while decodes take the whole budget. */
#define OCT_STARVED_STEPS_MAX 8

extern const oct_policy oct_policy_decode_first, oct_policy_stage_aware, oct_policy_vllm_v1,
    oct_policy_priority, oct_policy_shortest_first;

/* First come, first served. */
void oct_rank_by_arrival(oct_engine *engine, oct_seq *seq, gboolean requeued);
/* Running decodes, then running prefills, then the queue: what all but two policies plan. */
void oct_plan_decode_first(oct_engine *engine, guint32 domain);

#endif
