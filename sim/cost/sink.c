/* Where operators go: into sums by what binds them, and into lists for people. */
#include <math.h>

#include "sim/cost/internal.h"

double
oct_sum_seconds(const oct_sum *sum) {
  double seconds = 0;
  for (int p = 0; p < OCT_SUM_PARTS; p++)
    seconds += sum->seconds[p];
  return seconds;
}

void
oct_sum_add(oct_sum *sum, const oct_sum *part, double count) {
  for (int p = 0; p < OCT_SUM_PARTS; p++) {
    sum->seconds[p] += count * part->seconds[p];
    sum->flops[p] += count * part->flops[p];
    sum->hbm_bytes[p] += count * part->hbm_bytes[p];
  }
  sum->nvlink_bytes += count * part->nvlink_bytes;
  sum->host_bytes += count * part->host_bytes;
}

void
oct_sink_add(oct_sink *sink, const char *name, const oct_price *price, double m, double n,
             double k) {
  double launch_s = 0;
  oct_price hidden;
  if (!(price->seconds > 0) || sink->count == 0)
    return;
  if (sink->beside) {
    hidden = *price;
    hidden.seconds -= hidden.fixed_s;
    hidden.fixed_s = 0;
    price = &hidden;
  }
  if (!sink->graph && !sink->beside && price->part != OCT_PART_COLLECTIVE &&
      price->part != OCT_PART_COPY)
    launch_s = sink->cost->profile->launch.kernel_pipelined_s;
  if (sink->sum != NULL) {
    oct_sum *sum = sink->sum;
    const double count = sink->count;
    sum->seconds[price->part] += count * (price->seconds - price->fixed_s);
    sum->seconds[OCT_PART_FIXED] += count * (price->fixed_s + launch_s);
    sum->flops[price->part] += count * price->flops;
    sum->hbm_bytes[price->part] += count * price->hbm_bytes;
    sum->nvlink_bytes += count * price->nvlink_bytes;
    sum->host_bytes += count * price->host_bytes;
  }
  if (sink->list != NULL && sink->n < sink->max)
    sink->list[sink->n] = (oct_cost_operator){.name = name,
                                              .stage = sink->stage,
                                              .count = sink->count,
                                              .part = price->part,
                                              .m = (guint64)ceil(m),
                                              .n = (guint64)ceil(n),
                                              .k = (guint64)ceil(k),
                                              .flops = price->flops,
                                              .hbm_bytes = price->hbm_bytes,
                                              .nvlink_bytes = price->nvlink_bytes,
                                              .host_bytes = price->host_bytes,
                                              .seconds = price->seconds + launch_s,
                                              .fixed_s = price->fixed_s + launch_s};
  sink->n++;
}

void
oct_sink_gemm(oct_sink *sink, const char *name, oct_dtype type, double m, double n, double k) {
  double weights = (double)oct_storage_bytes(type, (guint64)ceil(n), (guint64)ceil(k));
  oct_sink_gemm_bytes(sink, name, type, m, n, k, weights);
}

void
oct_sink_gemm_bytes(oct_sink *sink, const char *name, oct_dtype type, double m, double n, double k,
                    double weight_bytes) {
  oct_price price = oct_price_product(sink->cost->profile, type, m, n, k, weight_bytes);
  const guint at = sink->n;
  oct_sink_add(sink, name, &price, m, n, k);
  if (sink->list != NULL && sink->n > at && at < sink->max)
    sink->list[at].type = type;
}

void
oct_sink_memory(oct_sink *sink, const char *name, double bytes) {
  oct_price price = oct_price_memory(sink->cost->profile, bytes, 0);
  oct_sink_add(sink, name, &price, 0, 0, 0);
}

void
oct_sink_rows(oct_sink *sink, const char *name, oct_timed_kind kind, guint32 a, guint32 b,
              guint32 c, double bytes) {
  const guint32 shape[OCT_TIMED_SHAPE_MAX] = {a, b, c};
  oct_price price = oct_price_rows(sink->cost->profile, kind, shape, bytes);
  oct_sink_add(sink, name, &price, 0, 0, 0);
}

void
oct_sink_collective(oct_sink *sink, const char *name, const oct_group *group, oct_collective op,
                    double bytes) {
  const gboolean own_kernels = sink->graph && !sink->cost->options.nccl_only;
  oct_price price = oct_price_collective(sink->cost->profile, group, op, bytes, own_kernels);
  oct_sink_add(sink, name, &price, 0, 0, 0);
}

void
oct_sink_norm(oct_sink *sink, double tokens) {
  if (sink->cost->options.fused_norms && sink->cost->tensor.n > 1)
    return;
  if (sink->cost->spec->attn_res_block == 0)
    oct_sink_rows(sink, "norm", OCT_TIMED_NORM, sink->cost->spec->hidden, 0, 0,
                  tokens * sink->cost->spec->hidden * 3 * 2.0);
}
