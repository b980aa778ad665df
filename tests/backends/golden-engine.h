/* The golden checkpoints through the real engine, for any world: the greedy tokens that
 * transformers, or Kimi K3's reference, gives come out whatever the chunks of the prompt, whether
 * its pages are found in the prefix cache, after preemption with recompute and with offload, in a
 * batch with others, running ahead or not. And a seeded request samples the same tokens in any
 * company.
 */
#ifndef OCT_TESTS_GOLDEN_ENGINE_H
#define OCT_TESTS_GOLDEN_ENGINE_H

#include "engine/sched/engine.h"
#include "tests/backends/cpu/golden.h"

typedef struct golden_world {
  const char *prefix; /* of the tests' names */
  /* Worlds by name, with one %s for the checkpoint: the usual one, one whose steps take so long
   * that requests overlap, and one on a real clock. */
  const char *usual, *slow, *real;
  /* 0: tokens are transformers'. Else one may differ where its logit is below the best by less than
   * so much of the logits' root mean square; what follows it is not compared. */
  double margin;
  /* Sums are in no fixed order: another step, and other sequences in it, may make another token
   * where two logits are as near as that. Draws are not compared then. */
  gboolean loose;
  /* A token may take other experts, as in a loose world, in models with a recurrent state alone. */
  gboolean loose_states;
  oct_parallel parallel;
  gboolean kimi_k3; /* the checkpoints of kimi-k3 too */
  gboolean eager;
  guint32 expert_percent; /* of a rank's experts that have slots; 0: all are on the device */
  gboolean needs_gpu;     /* skipped where there is none */
} golden_world;

/* Adds its tests to the program's; the world stays in place. */
void golden_engine_add(const golden_world *world);

#endif
