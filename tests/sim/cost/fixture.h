/* What the tests of the price share: models on nodes, and shapes of steps. */
#ifndef OCT_TESTS_SIM_COST_FIXTURE_H
#define OCT_TESTS_SIM_COST_FIXTURE_H

#include "engine/base/rng.h"
#include "sim/cost/cost.h"

/* A model of the zoo on a node, and its cost. Weights of a model may be retyped before make(). */
typedef struct rig {
  oct_model_spec *spec;
  oct_profile *profile;
  oct_parallel parallel;
  oct_cost_options options;
  oct_cost *cost;
} rig;

/* Loads both with one rank and BF16 KV; a failure fails the test. */
void rig_load(rig *r, const char *model, const char *node);
/* Makes the cost; the caller has set parallel and options. */
void rig_make(rig *r);
/* rig_load() and rig_make() with a tensor-parallel size. */
void rig_init(rig *r, const char *model, const char *node, guint32 tensor);
void rig_clear(rig *r);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(rig, rig_clear)

/* One domain of `batch` decodes at `context` tokens each. */
void shape_decode(oct_step_shape *shape, guint32 batch, guint32 context, guint32 window);
/* One domain of n prefill chunks of `tokens` from position `position`, the last token sampled. */
void shape_prefill(oct_step_shape *shape, guint32 n, guint32 tokens, guint32 position,
                   guint32 window);
/* A random mixed step: decodes, verifies and chunks in `domains` domains. */
void shape_random(oct_step_shape *shape, oct_rng *rng, guint32 domains, guint32 window);

/* Price of a step, all stages and sends. */
gint64 step_ns(const rig *r, const oct_step_shape *shape);

/* Path of third-party data, see tests/README.md; NULL, with the test skipped, when it is not there.
 * Owned. */
char *shared_or_skip(const char *path);

#endif
