/* After a loss: the layout that a model goes on with on the devices that are left.
 *
 * Of all cuts that oct_parallel_check() allows, whose memory oct_ledger_make() finds enough and
 * that oct_place() finds room for, the one with the most tensor ranks (a token is soonest where
 * most work on it), and with those the fewest stages. Data-parallel attention is kept where a cut
 * with it fits, else given up; decode context parallelism as far as it divides the tensor ranks.
 * Equal inputs give equal answers. Knows no backend and no profile: the machine is the ledger's
 * bytes and the placement's shape.
 */
#ifndef OCT_SCHED_REPLAN_H
#define OCT_SCHED_REPLAN_H

#include "engine/sched/ledger.h"
#include "engine/sched/placement.h"

typedef struct oct_replan {
  oct_parallel parallel;
  oct_ledger ledger;
  guint16 devices[OCT_NODE_DEVICES_MAX]; /* of each rank */
} oct_replan;

/* `config` is the ledger's as it was, with the layout that ran; its depth is its stages plus
 * run-ahead and follows the new stages. `node` says which devices are taken or lost. At most
 * `ranks_max` ranks (0 = all that are free). FALSE with *error (OCT_ENGINE_ERROR_CONFIG) when none
 * fits: it names the devices that are left and why the last cut failed. */
gboolean oct_replan_make(const oct_ledger_config *config, const oct_node_shape *node,
                         guint32 ranks_max, oct_replan *out,
                         GError **error) G_GNUC_WARN_UNUSED_RESULT;

#endif
