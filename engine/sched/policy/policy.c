/* The table of policies, and what several share. */
#include <string.h>

#include "engine/sched/policy/policies.h"

static const oct_policy *const policies[] = {
    &oct_policy_decode_first, &oct_policy_stage_aware,    &oct_policy_vllm_v1,
    &oct_policy_priority,     &oct_policy_shortest_first, NULL,
};

const oct_policy *
oct_policy_find(const char *name) {
  if (name == NULL)
    return &oct_policy_decode_first;
  for (int i = 0; policies[i] != NULL; i++)
    if (strcmp(policies[i]->name, name) == 0)
      return policies[i];
  return NULL;
}

const oct_policy *const *
oct_policy_list(void) {
  return policies;
}

void
oct_rank_by_arrival(oct_engine *engine, oct_seq *seq, gboolean requeued) {
  (void)engine;
  (void)requeued; /* it arrived earlier than those that wait: arrival order puts it in front */
  seq->rank_class = 0;
  seq->rank = 0;
}

void
oct_plan_decode_first(oct_engine *engine, guint32 domain) {
  oct_kv_domain *d = &engine->domains[domain];
  /* Decodes leave something to prefill once it has gone without for a while. */
  guint32 keep = 0;
  if (d->starved_steps >= OCT_STARVED_STEPS_MAX && oct_plan_prefill_pending(engine, domain))
    keep = MAX(1, engine->config.max_num_batched_tokens / 8);
  oct_plan_decodes(engine, domain, keep);
  gboolean pending = oct_plan_prefill_pending(engine, domain);
  guint32 tokens = oct_plan_prefills(engine, domain);
  tokens += oct_plan_admissions(engine, domain);
  d->starved_steps = pending && tokens == 0 ? d->starved_steps + 1 : 0;
}
