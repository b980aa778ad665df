/* Collectives: seconds from the profile's measured tables, or from a ring over the node's links.
 *
 * In a graph the engine uses its own one-shot and two-shot kernels where they are quicker than
 * NCCL. They were measured for all-reduce; an all-gather or reduce-scatter moves half of what an
 * all-reduce of the same buffer does, so it is assumed to take no longer.
 */
#include <math.h>
#include <string.h>

#include "engine/base/assert.h"
#include "sim/cost/internal.h"

static gboolean
uses_ring(const oct_profile *profile) {
  return profile->collectives.analytic_ring || profile->nvlink.topology != OCT_NVLINK_SWITCH;
}

/* ---------------------------------------------------------------- groups */

/* One hop between two GPUs without a switch: a bridge, PCIe within a socket, or across sockets; or
 * from node to node. */
static void
hop(const oct_profile *profile, guint16 a, guint16 b, double *bytes_per_s, double *latency_s) {
  const oct_profile_topology *t = &profile->topology;
  gboolean same_socket = t->gpu_socket[a] == t->gpu_socket[b];
  if (oct_profile_node_of(profile, a) != oct_profile_node_of(profile, b)) {
    *bytes_per_s = profile->pcie.nic_bytes_per_s_per_gpu;
    *latency_s = profile->nic_latency_s;
  } else if (profile->nvlink.topology == OCT_NVLINK_SWITCH ||
             (profile->nvlink.topology == OCT_NVLINK_PAIRS && profile->nvlink.gpu_pair[a] == b)) {
    *bytes_per_s = profile->nvlink.achieved_bytes_per_s;
    *latency_s = profile->nvlink.load_latency_s;
  } else if (profile->nvlink.topology == OCT_NVLINK_PAIRS) {
    *bytes_per_s =
        same_socket ? profile->pcie.cross_pair_bytes_per_s : profile->pcie.cross_socket_bytes_per_s;
    *latency_s =
        same_socket ? profile->pcie.cross_pair_latency_s : profile->pcie.cross_socket_latency_s;
  } else {
    *bytes_per_s = profile->host.staged_p2p_bytes_per_s;
    *latency_s = profile->host.staged_p2p_latency_s;
  }
}

gboolean
oct_group_init(oct_group *group, const oct_profile *profile, const guint16 *gpus, guint32 n,
               GError **error) {
  *group = (oct_group){.n = n, .hop_bytes_per_s = INFINITY};
  for (guint32 i = 0; i < n && n > 1; i++) {
    double bytes_per_s, latency_s;
    hop(profile, gpus[i], gpus[(i + 1) % n], &bytes_per_s, &latency_s);
    group->hop_bytes_per_s = MIN(group->hop_bytes_per_s, bytes_per_s);
    group->hop_s = MAX(group->hop_s, latency_s);
    group->spans |=
        oct_profile_node_of(profile, gpus[i]) != oct_profile_node_of(profile, gpus[(i + 1) % n]);
  }
  if (n > 8 && !uses_ring(profile) && !group->spans) {
    g_set_error(error, OCT_COST_ERROR, OCT_COST_ERROR_UNSUPPORTED,
                "%u GPUs exchange, but %s has collectives of at most 8", n, profile->name);
    return FALSE;
  }
  return TRUE;
}

oct_group
oct_group_worse(const oct_group *a, const oct_group *b) {
  return (oct_group){.n = MAX(a->n, b->n),
                     .hop_bytes_per_s = MIN(a->hop_bytes_per_s, b->hop_bytes_per_s),
                     .hop_s = MAX(a->hop_s, b->hop_s),
                     .spans = a->spans || b->spans};
}

/* ---------------------------------------------------------------- times */

/* A table measured for 2, 4 and 8 GPUs, at n: between sizes the logarithm of n counts. */
static double
table_at(const oct_curve curves[OCT_PROFILE_SIZES], guint32 n, double bytes) {
  double size = log2(n) - 1;
  int low = CLAMP((int)size, 0, OCT_PROFILE_SIZES - 1);
  while (low > 0 && curves[low].n == 0)
    low--; /* a node of 4 GPUs has no table of 8 */
  if (curves[low].n == 0)
    return INFINITY;
  double a = oct_curve_at(&curves[low], bytes);
  if (size <= low || low + 1 >= OCT_PROFILE_SIZES || curves[low + 1].n == 0)
    return a;
  return a + (oct_curve_at(&curves[low + 1], bytes) - a) * (size - low);
}

static double
ring_seconds(const oct_profile *profile, const oct_group *group, oct_collective op, double bytes) {
  const double n = group->n;
  double rounds = op == OCT_COLLECTIVE_ALL_REDUCE ? 2 * (n - 1) : n - 1;
  double moved = rounds / n * bytes;
  /* In an all-to-all two GPUs of a pair use the same way out at once. */
  if (op == OCT_COLLECTIVE_ALL_TO_ALL && n > 2)
    moved *= 2;
  return profile->collectives.base_overhead_s +
         rounds * (group->hop_s + profile->collectives.hop_overhead_s) +
         moved / group->hop_bytes_per_s;
}

/* What NCCL itself counts on: bytes that a link carries, of its nominal rate, and what of it
 * reductions in the switch reach (NCCL 2.30.7, src/graph/topo.h and tuning.cc: GB/s per NVLink of
 * SM90 and SM100; efficiencies of NVLS on Hopper and Blackwell). Generations that it does not tell
 * apart here have the older ones' figures. */
static double
nccl_share(const oct_profile *profile, gboolean in_switch) {
  const gboolean blackwell = profile->nvlink.generation >= 5;
  const double links = blackwell ? 40.1 / 50 : 20.6 / 25;
  return in_switch ? links * (blackwell ? 0.74 : 0.85) : links;
}

/* `moved` = bytes that one GPU sends. What is latency grows with the link's: synchronisation goes
 * to and fro over it, and what must be in flight to fill it is its rate times its latency. */
static double
law_seconds(const oct_profile *profile, const oct_collective_fit *fit, double n, double moved,
            gboolean in_switch) {
  const double latency_s = profile->nvlink.load_latency_s;
  const double ramp_s = latency_s * (in_switch ? fit->switch_ramp_latencies : fit->ramp_latencies);
  double share = nccl_share(profile, in_switch);
  share *= in_switch ? fit->switch_bandwidth : fit->bandwidth * (1 - fit->few_loss / n);
  double link_s = moved / profile->nvlink.bytes_per_s;
  double ramp = 1 + (in_switch ? fit->switch_ramp : fit->ramp) * ramp_s / (link_s + ramp_s);
  return latency_s * (fit->fixed_latencies + fit->per_gpu_latencies * n) + ramp * link_s / share;
}

double
oct_cost_collective_law_s(const oct_profile *profile, const oct_collective *op, guint32 n,
                          double bytes) {
  const double others = (n - 1.0) / n;
  if (op == NULL)
    return law_seconds(profile, &profile->oneshot_fit, n, 2 * bytes * others, FALSE);
  const oct_collective_fit *fit = &profile->collective_fit[*op];
  if (*op != OCT_COLLECTIVE_ALL_REDUCE)
    return law_seconds(profile, fit, n, bytes * others, FALSE);
  if (n >= profile->nvlink.nvls_min_gpus)
    return law_seconds(profile, fit, n, bytes * (n + 1) / n, TRUE);
  return law_seconds(profile, fit, n, 2 * bytes * others, FALSE);
}

static double
fitted_seconds(const oct_profile *profile, guint32 n, oct_collective op, double bytes,
               gboolean graph) {
  double seconds = oct_cost_collective_law_s(profile, &op, n, bytes);
  /* As with tables, what half an all-reduce moves takes no longer than the whole. */
  if (graph && op != OCT_COLLECTIVE_ALL_TO_ALL)
    seconds = MIN(seconds, oct_cost_collective_law_s(profile, NULL, n, bytes));
  return seconds;
}

static double
collective_seconds(const oct_profile *profile, const oct_group *group, oct_collective op,
                   double bytes, gboolean graph) {
  if (uses_ring(profile))
    return ring_seconds(profile, group, op, bytes);
  if (profile->collectives.fitted)
    return fitted_seconds(profile, group->n, op, bytes, graph);
  const oct_profile_collectives *c = &profile->collectives;
  if (!graph && op == OCT_COLLECTIVE_ALL_REDUCE && group->n == 2 && profile->all_reduce_probe.n > 0)
    return oct_curve_at(&profile->all_reduce_probe, bytes);
  double seconds = table_at(c->nccl[op], group->n, bytes);
  if (graph && op != OCT_COLLECTIVE_ALL_TO_ALL)
    seconds = MIN(seconds, table_at(c->oneshot_all_reduce, group->n, bytes));
  return seconds;
}

/* Bytes that cross a GPU's link, per direction. */
static double
link_bytes(const oct_profile *profile, const oct_group *group, oct_collective op, double bytes) {
  const double n = group->n;
  if (op != OCT_COLLECTIVE_ALL_REDUCE)
    return bytes * (n - 1) / n;
  if (!uses_ring(profile) && group->n >= profile->nvlink.nvls_min_gpus)
    return bytes * (n + 1) / n; /* reduced in the switch */
  return 2 * bytes * (n - 1) / n;
}

oct_price
oct_price_collective(const oct_profile *profile, const oct_group *group, oct_collective op,
                     double bytes, gboolean graph) {
  if (group->n < 2 || bytes <= 0)
    return (oct_price){.part = OCT_PART_COLLECTIVE};
  return (oct_price){.seconds = collective_seconds(profile, group, op, bytes, graph),
                     .nvlink_bytes = link_bytes(profile, group, op, bytes),
                     .part = OCT_PART_COLLECTIVE};
}

/* Of the node's first n GPUs. */
static gboolean
first_gpus(const oct_profile *profile, guint32 n, oct_group *group) {
  guint16 gpus[OCT_PROFILE_GPUS_MAX];
  oct_assert(n <= profile->gpu.count);
  for (guint16 i = 0; i < n; i++)
    gpus[i] = i;
  return oct_group_init(group, profile, gpus, n, NULL);
}

double
oct_cost_collective_ns(const oct_profile *profile, oct_collective op, guint32 n, double bytes,
                       gboolean graph) {
  oct_group group;
  oct_assert((guint)op < OCT_COLLECTIVE_COUNT);
  if (!first_gpus(profile, n, &group))
    return INFINITY;
  return 1e9 * oct_price_collective(profile, &group, op, bytes, graph).seconds;
}

/* ---------------------------------------------------------------- experts and sends */

/* The dispatch table's own row: 8 ranks, 7168 elements to 8 experts, FP8 out and BF16 back. */
#define DISPATCH_RANKS 8
#define DISPATCH_WIDTH 7168.0
#define DISPATCH_TOP_K 8.0

oct_price
oct_price_dispatch(const oct_profile *profile, const oct_group *group, double tokens, double width,
                   double top_k, gboolean combine, gboolean graph) {
  const oct_curve *curve =
      combine ? &profile->moe_alltoall.combine : &profile->moe_alltoall.dispatch;
  const double bytes = tokens * top_k * width * (combine ? 2 : 1);
  if (group->n < 2 || tokens <= 0)
    return (oct_price){.part = OCT_PART_COLLECTIVE};
  if (group->n != DISPATCH_RANKS || curve->n == 0 || uses_ring(profile))
    return oct_price_collective(profile, group, OCT_COLLECTIVE_ALL_TO_ALL, bytes, graph);
  double scale = width * top_k / (DISPATCH_WIDTH * DISPATCH_TOP_K);
  return (oct_price){.seconds = oct_curve_at(curve, tokens * scale),
                     .nvlink_bytes = bytes * (group->n - 1) / group->n,
                     .part = OCT_PART_COLLECTIVE};
}

double
oct_cost_dispatch_ns(const oct_profile *profile, guint32 n, double tokens, double width,
                     double top_k, gboolean combine) {
  oct_group group;
  if (!first_gpus(profile, n, &group))
    return INFINITY;
  return 1e9 * oct_price_dispatch(profile, &group, tokens, width, top_k, combine, FALSE).seconds;
}

double
oct_price_send(const oct_profile *profile, const oct_group *pair, double bytes) {
  if (bytes <= 0)
    return 0;
  if (pair->spans)
    return pair->hop_s + bytes / pair->hop_bytes_per_s;
  /* Half of an all-to-all's buffer goes to the other GPU. */
  if (!uses_ring(profile) && profile->collectives.fitted)
    return fitted_seconds(profile, 2, OCT_COLLECTIVE_ALL_TO_ALL, 2 * bytes, FALSE);
  if (!uses_ring(profile) && profile->collectives.nccl[OCT_COLLECTIVE_ALL_TO_ALL][0].n > 0)
    return oct_curve_at(&profile->collectives.nccl[OCT_COLLECTIVE_ALL_TO_ALL][0], 2 * bytes);
  return profile->collectives.base_overhead_s + pair->hop_s + bytes / pair->hop_bytes_per_s;
}
