/* decode-first, the default: no decode waits for a prompt.
 *
 * Running decodes take the budget first, prompts what is left, in chunks. A prompt's chunk
 * lengthens the step that it shares, so decodes slow down by at most the budget's worth of prefill
 * per step; they never stop. Prefill cannot starve either: after OCT_STARVED_STEPS_MAX steps
 * without a token an eighth of the budget is kept for it. */
#include "engine/sched/policy/policies.h"

const oct_policy oct_policy_decode_first = {
    .name = "decode-first",
    .summary = "running decodes first, prompt chunks fill the rest of each step (default)",
    .rank = oct_rank_by_arrival,
    .plan = oct_plan_decode_first,
    .victim = oct_victim_youngest,
};
