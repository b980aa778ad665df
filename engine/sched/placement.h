/* Placement: which device of a node each rank runs on.
 *
 * Ranks are numbered stage by stage, in a stage domain by domain, in a domain by tensor rank:
 * rank = (stage x data + domain) x tensor + t. Tensor-parallel ranks talk twice in every layer, so
 * they are put on devices that reach each other by NVLink, on one socket where that is possible;
 * the domains of a stage lie beside each other, because experts may be spread over them; stages
 * come after one another, since they exchange least. Equal inputs give equal placements.
 *
 * The machine arrives as a plain struct: this folder knows no profile and no driver. Whether the
 * model fits the devices is the ledger's question (engine/sched/ledger.h).
 */
#ifndef OCT_SCHED_PLACEMENT_H
#define OCT_SCHED_PLACEMENT_H

#include <glib.h>

#include "engine/model/spec.h"

#define OCT_NODE_DEVICES_MAX 64

typedef struct oct_node_shape {
  guint32 n_devices;
  guint64 memory_bytes; /* of one device, as software sees it; for the ledger */
  guint8 socket[OCT_NODE_DEVICES_MAX];
  /* Devices with equal numbers reach each other by NVLink; one of its own for a device without. */
  guint8 nvlink_group[OCT_NODE_DEVICES_MAX];
  guint8 pcie_switch[OCT_NODE_DEVICES_MAX];
  gboolean taken[OCT_NODE_DEVICES_MAX]; /* not to be used: another instance has it */
} oct_node_shape;

/* Fills devices[oct_parallel_world(parallel)] with the device of each rank. FALSE with *error when
 * the model cannot be cut so (OCT_MODEL_ERROR_LAYOUT) or there are too few free devices
 * (OCT_ENGINE_ERROR_CONFIG). *warning (may be NULL) is owned, or NULL: set when ranks that talk in
 * every layer are not on one NVLink group, which works but makes collectives cross slower links. */
gboolean oct_place(const oct_model_spec *spec, const oct_parallel *parallel,
                   const oct_node_shape *node, guint16 *devices, char **warning,
                   GError **error) G_GNUC_WARN_UNUSED_RESULT;

#endif
