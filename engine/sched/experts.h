/* Expert residency: which experts of a mixture are on the device when it cannot hold them all.
 *
 * Every MoE layer has `n_slots` device slots on each rank: with expert parallelism a rank keeps
 * some of its own experts whole, else all ranks keep their slices of the same ones. What a step
 * needs and does not find, the backend reads from pinned host memory, and says so in the step's
 * result; from what finished steps used, this module learns and moves experts:
 *
 *                      load chosen                plan(): "gone"            epoch has passed
 *   FREE ------------------------------------------------------------------+
 *   MAPPED ----------> LEAVING ------------------> DRAINING ----------------+--> LOADING
 *     ^                                                                           | copy done
 *     +------------------------- plan(): "expert e is in slot s" ------------ LOADED
 *
 * Invariants:
 *  1. A slot is written only after the step whose record took its expert off the map has ended: no
 *     unfinished step can read it, and should that step fail, the expert is still there.
 *  2. An expert is in at most one slot, and steps find it there only after its copy has ended.
 *  3. What a failed step's record said about the map did not happen, and is said again.
 *
 * Which one: every expert has a heat, the number of steps that used it, each counting half after
 * `half_life_steps` more: with a short half-life that is LRU, with a long one LFU. A missed expert
 * replaces the coldest of its layer and rank if that saves more than one transfer within a
 * half-life: heat(new) - heat(old) > 1 / ln 2. At most `loads_max` are on their way. PINNED keeps
 * what warm-up brought. Both start with the experts that are expected to be the most popular.
 *
 * Nothing is allocated after oct_experts_new(). One thread.
 */
#ifndef OCT_SCHED_EXPERTS_H
#define OCT_SCHED_EXPERTS_H

#include <glib.h>

#include "engine/backend.h"

#define OCT_EXPERT_HALF_LIFE_STEPS 256
#define OCT_EXPERT_LOADS_MAX       64

typedef enum oct_expert_policy {
  OCT_EXPERT_LRU,    /* frequency-aware, as above */
  OCT_EXPERT_PINNED, /* the warm-up's choice for ever */
} oct_expert_policy;

/* What is expected of routing before any step has run. */
typedef enum oct_expert_warmup {
  OCT_EXPERT_WARM_UNIFORM,   /* all alike: the first of each rank */
  OCT_EXPERT_WARM_POWER_LAW, /* expert i of a layer as (i + 1)^-exponent */
  OCT_EXPERT_WARM_HISTOGRAM, /* recorded */
} oct_expert_warmup;

/* Zeroed = the defaults. */
typedef struct oct_expert_options {
  oct_expert_policy policy;
  oct_expert_warmup warmup;
  double exponent;         /* POWER_LAW; 0 = 1 */
  const double *histogram; /* HISTOGRAM: [n_layers][n_experts of the widest layer], any scale, >= 0;
                              borrowed during oct_experts_new() */
  guint32 half_life_steps; /* 0 = OCT_EXPERT_HALF_LIFE_STEPS */
  guint32 loads_max;       /* 0 = OCT_EXPERT_LOADS_MAX */
} oct_expert_options;

typedef struct oct_experts oct_experts;

/* ---- life cycle */

/* For an instance of `spec` (borrowed) laid out as `parallel` with n_slots >= 1 per MoE layer and
 * rank. NULL with *error (OCT_ENGINE_ERROR_CONFIG): no experts, or a histogram with a value that
 * is negative or not a number. */
oct_experts *oct_experts_new(const oct_model_spec *spec, const oct_parallel *parallel,
                             guint32 n_slots, const oct_expert_options *options,
                             GError **error) G_GNUC_WARN_UNUSED_RESULT;
void oct_experts_free(oct_experts *experts); /* accepts NULL */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(oct_experts, oct_experts_free)
/* The instance is opened again: nothing is on the device; what was learned stays, and the hottest
 * experts are chosen for warm-up. */
void oct_experts_reset(oct_experts *experts);

/* ---- use */

/* What a finished step used: learns, and chooses loads. FALSE, with nothing changed, when one of
 * them does not exist. */
gboolean oct_experts_used(oct_experts *experts, const oct_expert_use *uses,
                          guint32 n) G_GNUC_WARN_UNUSED_RESULT;
/* Says to step `number`, which is being built and will be submitted, what changed on the map. */
void oct_experts_plan(oct_experts *experts, guint64 number, oct_step_builder *builder);
/* Step `number` failed as a whole. Before the next call of oct_experts_loads(). */
void oct_experts_step_failed(oct_experts *experts, guint64 number);
/* Copies (BESIDE) that may begin when steps up to `completed` have ended: at most `max`, returned
 * by number; each is on its way until oct_experts_loaded() has it. */
guint32 oct_experts_loads(oct_experts *experts, guint64 completed, oct_copy *copies, guint32 max);
void oct_experts_loaded(oct_experts *experts, const oct_copy *copies, guint32 n, gboolean failed);

/* ---- inspect */

/* Everything that warm-up chose has arrived (or failed to). */
gboolean oct_experts_warm(const oct_experts *experts);

typedef struct oct_expert_stats {
  guint64 uses, hits;            /* experts that steps used, and of them those on the device */
  guint64 used_pairs, hit_pairs; /* the same, by token-expert pairs */
  guint64 loads, loaded_bytes;   /* experts brought to the device, bytes over all ranks */
  guint64 evictions;
} oct_expert_stats;
void oct_experts_get_stats(const oct_experts *experts, oct_expert_stats *stats);
/* Slot of the expert on the map of steps yet to be submitted, OCT_NO_INDEX when it is not there. */
guint32 oct_experts_slot(const oct_experts *experts, guint32 layer, guint32 expert);
/* Books against one another. FALSE with *error. O(everything). */
gboolean oct_experts_check(const oct_experts *experts, GError **error);

/* The break-even batch: the most tokens in a step for which bringing its missed experts over the
 * host link takes no longer than reading the rest of its weights from device memory; above it the
 * link binds. Of one GPU, with n of its experts per layer, r of them resident, and k routed to it
 * per token (top-k over the ranks that share the experts), of which a share h finds its expert:
 *
 *   touched(B) = r (1 - (1 - k h / r)^B),    missed(B) = (n - r) (1 - (1 - k (1 - h) / (n - r))^B)
 *   layers x missed(B) x expert / link <= (other + layers x touched(B) x expert) / device memory
 *
 * h comes from oct_expert_stats (hit_pairs / used_pairs); with uniform routing it is r / n. */
typedef struct oct_expert_balance {
  double n_layers;              /* MoE layers on the GPU */
  double n_experts, n_resident; /* per layer on the GPU */
  double top_k;                 /* routed to this GPU per token and layer, on average */
  double hit_share;             /* 0..1 */
  double expert_bytes;          /* what the GPU holds of one */
  double other_bytes;           /* other weights that a step reads */
  double memory_bytes_per_s, link_bytes_per_s;
} oct_expert_balance;
#define OCT_EXPERT_BATCH_MAX (1u << 20)
/* 0: the link binds even with one token; OCT_EXPERT_BATCH_MAX: it never does. */
guint32 oct_experts_break_even(const oct_expert_balance *balance);

#endif
