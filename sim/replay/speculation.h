/* --speculative-config: what is asked of speculative decoding, in vLLM's JSON, and what of a
 * simulation it needs besides: how often drafts are accepted.
 *
 *   {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4, "prompt_lookup_min":
 * 2}
 *   {"method": "draft_model", "model": M, "num_speculative_tokens": 3,
 *    "draft_tensor_parallel_size": 1}
 *
 * doc/operations.md has every key. What is not known is refused by its name.
 */
#ifndef OCT_SIM_REPLAY_SPECULATION_H
#define OCT_SIM_REPLAY_SPECULATION_H

#include "engine/sched/engine.h"

typedef struct oct_speculative {
  oct_draft_method method;
  char *model; /* owned; the draft model as it was named, NULL without one */
  guint32 n_tokens, ngram_min, ngram_max, seqs_max;
  guint32 tensor; /* of the draft model; 0 = as the model's */
  double acceptance_min;
  /* Of a simulation: the chance of a draft by its place, once all before it were accepted; the last
   * one holds for those behind it. 0 = not said. */
  guint32 n_acceptance;
  double acceptance[OCT_DRAFTS_MAX];
  double proposal_rate; /* of a decode to have drafts at all; negative = not said */
} oct_speculative;

/* FALSE with *error (OCT_REPLAY_ERROR_OPTION). The text is borrowed for the call. */
gboolean oct_speculative_parse(const char *text, oct_speculative *out,
                               GError **error) G_GNUC_WARN_UNUSED_RESULT;
void oct_speculative_clear(oct_speculative *speculative);

/* "0.8+0.7": the acceptance as the key accept_rate of a world's description. Owned; NULL when it
 * was not said. */
char *oct_speculative_rates(const oct_speculative *speculative);

/* The text without what only a simulation is told. Owned; NULL when it is no JSON object. */
char *oct_speculative_of_server(const char *text);

#endif
