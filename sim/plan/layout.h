/* The layouts that a plan considers: every way to cut a model over 1 … N GPUs of a node.
 *
 * TP x PP x data-parallel attention, expert parallelism on and off where the model has experts,
 * decode context parallelism by every divisor of TP, and from one replica to as many as the node's
 * GPUs have room for. A layout that the model, the memory or the node does not allow is kept, with
 * the reason that oct_parallel_check(), oct_ledger_make() or oct_place() gave.
 */
#ifndef OCT_SIM_PLAN_LAYOUT_H
#define OCT_SIM_PLAN_LAYOUT_H

#include "sim/plan/bound.h"
#include "sim/replay/setup.h"

typedef enum oct_plan_fate {
  OCT_PLAN_FATE_ILLEGAL,   /* cannot be built */
  OCT_PLAN_FATE_BOUNDED,   /* the roofline rules it out, or keeps it below those that lead */
  OCT_PLAN_FATE_OUTPACED,  /* its priced estimate is far below those that lead: not simulated */
  OCT_PLAN_FATE_SIMULATED, /* on the coarse horizon */
  OCT_PLAN_FATE_FINALIST,  /* on the full horizon too, with every seed */
  OCT_PLAN_FATE_COUNT
} oct_plan_fate;
const char *oct_plan_fate_name(oct_plan_fate fate); /* static */

typedef struct oct_plan_layout {
  guint variant;             /* of the knobs */
  oct_setup_options options; /* of the variant, with the layout filled in; strings borrowed */
  oct_setup_options run;     /* what is simulated: that, or what of it goes on after a loss */
  char *after_loss;          /* its label; owned, NULL = nothing is lost */
  gboolean alone;            /* its replicas share nothing: one stands for all (probe.h) */
  guint engine; /* the first layout whose replicas are these; its own number unless `alone` */
  guint32 gpus; /* of all replicas */
  char *label;  /* "TP4 PP2 x1, kv-cache-dtype fp8"; owned */
  oct_plan_fate fate;
  char *why; /* of ILLEGAL, BOUNDED, OUTPACED; owned, NULL otherwise */
  oct_plan_bound bound;
} oct_plan_layout;

typedef struct oct_plan_variant {
  oct_setup_options options; /* a parallel size above 1, EP, replicas above 1: only that is tried */
  const char *label;         /* of its knobs, "" = only one */
  /* Rates are those with one GPU lost, for good: one replica less, or of a single replica the
   * layout that the engine reopens with on the GPUs that are left (engine/sched/replan.h). */
  gboolean survive_loss;
} oct_plan_variant;

/* Appends the layouts of one variant on at most `gpus_max` GPUs (0 = all of the node) to an array
 * of oct_plan_layout, bounds filled in. FALSE with *error where the model or the node cannot be
 * read. */
gboolean oct_plan_layouts(const oct_plan_variant *variant, guint number, guint32 gpus_max,
                          const oct_slo *slo, const oct_plan_workload *workload, GArray *layouts,
                          GError **error) G_GNUC_WARN_UNUSED_RESULT;
void oct_plan_layout_clear(gpointer layout); /* for g_array_set_clear_func() */

/* How long a request stays at `rate` session starts per second, in the mean and without waiting, by
 * priced steps; 0 = not known. */
double oct_plan_layout_residence_s(const oct_plan_layout *layout, const oct_plan_workload *workload,
                                   double rate);

/* "octet serve MODEL --tensor-parallel-size 4 …" of all replicas of a node; owned. */
char *oct_plan_serve_command(const oct_plan_layout *layout) G_GNUC_WARN_UNUSED_RESULT;

#endif
