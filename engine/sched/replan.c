#include "engine/sched/replan.h"

#include <string.h>

#include "engine/sched/engine.h"

static guint32
largest_divisor(guint32 of, guint32 most) {
  guint32 d = MIN(of, most);
  while (of % d != 0)
    d--;
  return d;
}

/* The cut into tensor x pipeline x data, filled into `out` when it is legal and fits. */
static gboolean
try_cut(const oct_ledger_config *was, const oct_node_shape *node, guint32 tensor, guint32 pipeline,
        guint32 data, oct_replan *out, GError **error) {
  oct_ledger_config c = *was;
  c.parallel.tensor = tensor;
  c.parallel.pipeline = pipeline;
  c.parallel.data = data;
  c.parallel.decode_context = largest_divisor(tensor, was->parallel.decode_context);
  memset(c.parallel.stage_layers, 0, sizeof c.parallel.stage_layers);
  c.depth = was->depth - was->parallel.pipeline + pipeline;
  c.num_gpu_blocks_override = 0;
  if (!oct_parallel_check(c.spec, &c.parallel, error) ||
      !oct_place(c.spec, &c.parallel, node, out->devices, NULL, error) ||
      !oct_ledger_make(&c, &out->ledger, error))
    return FALSE;
  out->parallel = c.parallel;
  return TRUE;
}

/* With so many tensor ranks, the fewest stages that fit. */
static gboolean
try_tensor(const oct_ledger_config *was, const oct_node_shape *node, guint32 tensor, guint32 most,
           guint32 data, oct_replan *out, GError **error) {
  guint32 stages_max = MIN(most / (tensor * data), OCT_PARALLEL_STAGES_MAX);
  for (guint32 pipeline = 1; pipeline <= stages_max; pipeline++) {
    g_clear_error(error);
    if (try_cut(was, node, tensor, pipeline, data, out, error))
      return TRUE;
  }
  return FALSE;
}

gboolean
oct_replan_make(const oct_ledger_config *config, const oct_node_shape *node, guint32 ranks_max,
                oct_replan *out, GError **error) {
  const guint32 data[2] = {config->parallel.data, 1};
  guint32 left = 0;
  g_autoptr(GError) why = NULL;
  for (guint32 d = 0; d < node->n_devices; d++)
    left += !node->taken[d];
  guint32 most = ranks_max > 0 ? MIN(left, ranks_max) : left;
  for (guint d = 0; d < (data[0] > 1 ? 2u : 1u); d++)
    for (guint32 tensor = MIN(most / data[d], OCT_PARALLEL_WORLD_MAX); tensor >= 1; tensor--)
      if (try_tensor(config, node, tensor, most, data[d], out, &why))
        return TRUE;
  g_set_error(error, OCT_ENGINE_ERROR, OCT_ENGINE_ERROR_CONFIG,
              "no layout of %s fits the %u of %u devices that are left: %s", config->spec->name,
              most, node->n_devices, why != NULL ? why->message : "none is free");
  return FALSE;
}
