/* stage-aware: two queues, prefill steps before decode steps.
 *
 * While prompts wait, steps are made of prompts only; then all decodes go together. It gives the
 * shortest time to first token and the largest decode batches, and is known to starve decodes under
 * load: the bound (decode_gap_max_ns) forces a decode step when the last one is too long ago. */
#include "engine/sched/policy/policies.h"

static gboolean
decodes_overdue(const oct_engine *engine, const oct_kv_domain *d) {
  gboolean any = FALSE;
  for (guint32 i = 0; i < d->n_running && !any; i++)
    any = oct_seq_decodes(d->running[i]);
  return any && engine->now - d->last_decode_ns >= engine->config.decode_gap_max_ns;
}

static void
plan(oct_engine *engine, guint32 domain) {
  oct_kv_domain *d = &engine->domains[domain];
  if (!decodes_overdue(engine, d)) {
    guint32 tokens = oct_plan_prefills(engine, domain);
    tokens += oct_plan_admissions(engine, domain);
    if (tokens > 0)
      return;
  }
  oct_plan_decodes(engine, domain, 0);
}

const oct_policy oct_policy_stage_aware = {
    .name = "stage-aware",
    .summary = "prefill-only steps while prompts wait, then decode-only steps; bounded decode gap",
    .rank = oct_rank_by_arrival,
    .plan = plan,
    .victim = oct_victim_youngest,
};
