#include "sim/replay/step-times.h"

#include <math.h>
#include <string.h>

#include "sim/cost/cost.h"

oct_cost *
oct_step_times_cost(const oct_setup *s, oct_moe_kernel kernel) {
  oct_cost_options options = OCT_COST_OPTIONS_DEFAULT;
  options.kv_dtype = s->engine.instance.kv_dtype;
  options.moe_kernel = kernel;
  options.routing_alpha = s->options.routing_alpha;
  options.routing_balanced = s->options.routing_balanced;
  options.routing_weights = s->routing_weights;
  options.n_routing_weights = s->n_routing_weights;
  oct_setup_cost_options(s, &options);
  options.eager = s->engine.instance.eager;
  return oct_cost_new(s->spec, &s->engine.instance.parallel, s->devices, s->profile, &options,
                      NULL);
}

/* Stages follow each other for one step: their sum and the sends between them. */
static gint64
step_ns(const oct_cost *cost, const oct_step_shape *shape) {
  oct_step_price price;
  gint64 ns = 0;
  oct_cost_step(cost, shape, &price);
  for (guint32 i = 0; i < price.n_stages; i++)
    ns += price.stages[i].ns + price.stages[i].send_ns;
  return ns;
}

static void
shape_of(const oct_setup *s, guint32 batch, guint32 context, oct_step_shape *shape) {
  guint32 window = oct_cost_window(s->spec), domains = s->engine.instance.parallel.data;
  memset(shape, 0, sizeof *shape);
  shape->n_domains = domains;
  for (guint32 i = 0; i < batch; i++) {
    const oct_slice slice = {.n_tokens = 1, .sample = OCT_SAMPLE_LAST};
    oct_domain_shape_add(&shape->domains[i % domains], &slice, context, window);
  }
}

gboolean
oct_step_times_context(const oct_replay_result *r, oct_step_context *out) {
  const oct_setup *s = &r->setup;
  const oct_measured *m = &r->drive.measured;
  const guint64 answered = m->fates[OCT_FATE_ANSWERED];
  const double mean = oct_hist_mean(m->steps[OCT_HIST_BATCH_SEQS]);
  if (s->profile == NULL || s->options.backend == OCT_REPLAY_MOCK || answered == 0)
    return FALSE;
  *out =
      (oct_step_context){.input = (guint32)(m->input_tokens / answered),
                         .output = (guint32)MAX(1, m->output_tokens / answered),
                         .context = (guint32)((m->input_tokens + m->output_tokens / 2) / answered),
                         .batch = isfinite(mean) ? (guint32)MAX(1, lround(mean)) : 1};
  return TRUE;
}

json_t *
oct_step_times_json(const oct_replay_result *r) {
  const oct_setup *s = &r->setup;
  oct_step_context c;
  if (!oct_step_times_context(r, &c))
    return json_null();
  g_autoptr(oct_cost) measured = oct_step_times_cost(s, OCT_MOE_KERNEL_MEASURED);
  g_autoptr(oct_cost) target =
      oct_model_has_experts(s->spec) ? oct_step_times_cost(s, OCT_MOE_KERNEL_TARGET) : NULL;
  gboolean is_own = s->options.moe_kernel == OCT_MOE_KERNEL_OWN;
  g_autoptr(oct_cost) own = is_own ? oct_step_times_cost(s, OCT_MOE_KERNEL_OWN) : NULL;
  if (measured == NULL)
    return json_null();
  guint32 batches[] = {1, 8, 32, 64, 128, 256, c.batch};
  json_t *rows = json_array();
  for (gsize i = 0; i < G_N_ELEMENTS(batches); i++) {
    oct_step_shape shape;
    shape_of(s, batches[i], c.context, &shape);
    json_t *row = json_object();
    json_object_set_new(row, "batch", json_integer(batches[i]));
    json_object_set_new(row, "measured_s", json_real((double)step_ns(measured, &shape) / 1e9));
    json_object_set_new(row, "target_s",
                        target != NULL ? json_real((double)step_ns(target, &shape) / 1e9)
                                       : json_null());
    json_object_set_new(row, "own_s",
                        own != NULL ? json_real((double)step_ns(own, &shape) / 1e9) : json_null());
    json_object_set_new(row, "floor_s",
                        json_real((double)oct_cost_floor_ns(measured, &shape) / 1e9));
    json_array_append_new(rows, row);
  }
  return json_pack("{s:I, s:o}", "context_tokens", (json_int_t)c.context, "rows", rows);
}
