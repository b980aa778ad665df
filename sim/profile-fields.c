/* The keys of a node profile: one table that says where each is kept, when it must be there and
 * what it may be, and the few keys whose meaning a table cannot say (topologies, presets). The
 * table is also what unknown groups and keys are told by. */
#include <math.h>
#include <string.h>

#include "sim/profile-read.h"

typedef enum field_type {
  FIELD_STRING,
  FIELD_U32,
  FIELD_DOUBLE,
  FIELD_LIST,    /* exactly `n` doubles: the members of a fit, in order */
  FIELD_CURVE,   /* doubles over the grid that `grid` names in the same group */
  FIELD_GRID,    /* read with its curves */
  FIELD_GPUS,    /* one guint8 per GPU */
  FIELD_SPECIAL, /* read by a function of its own below */
} field_type;

typedef enum field_need {
  NEED_ALWAYS,
  NEED_NEVER,  /* may be left out: its default is 0 */
  NEED_GROUP,  /* when its group is there */
  NEED_FP4,    /* when the GPU has FP4 units */
  NEED_TABLES, /* when collectives have tables, for groups of up to `n_min` GPUs */
  NEED_RING,   /* when they are an analytic ring */
  NEED_LAWS,   /* when they are fitted laws */
  NEED_PAIRS,  /* when NVLink joins pairs */
  NEED_SHORT,  /* when steps of short contexts were timed too */
} field_need;

typedef struct field {
  const char *group, *key;
  field_type type;
  field_need need;
  gsize offset;
  double min, max; /* of each value, as it is written */
  double scale;    /* CURVE: unit of the values in seconds */
  guint32 n;       /* LIST: how many; NEED_TABLES: GPUs from which it is needed */
  const char *grid;
} field;

#define AT(member) G_STRUCT_OFFSET(oct_profile, member)
#define TEXT(g, k, member)                                                                         \
  { g, k, FIELD_STRING, NEED_ALWAYS, AT(member), 0, 0, 0, 0, NULL }
#define U32(g, k, member, low, high)                                                               \
  { g, k, FIELD_U32, NEED_ALWAYS, AT(member), low, high, 0, 0, NULL }
#define REAL(g, k, member, ...)                                                                    \
  { g, k, FIELD_DOUBLE, NEED_ALWAYS, AT(member), __VA_ARGS__, 0, 0, NULL }
#define WHEN(g, k, member, need, ...)                                                              \
  { g, k, FIELD_DOUBLE, need, AT(member), __VA_ARGS__, 0, 0, NULL }
#define CURVE(g, k, member, need, n, grid)                                                         \
  { g, k, FIELD_CURVE, need, AT(member), 1e-3, 1e9, 1e-6, n, grid }
#define GRID(g, k)                                                                                 \
  { g, k, FIELD_GRID, NEED_NEVER, 0, 0, 0, 0, 0, NULL }
#define RATIO(k, member, need)                                                                     \
  GRID("step_ratio", k "_tokens"), {                                                               \
    "step_ratio", k, FIELD_CURVE, need, AT(member), 0.05, 20, 1, 0, k "_tokens"                    \
  }
#define FIT(g, k, member, type, need)                                                              \
  { g, k, FIELD_LIST, need, AT(member), 0, 1e6, 0, sizeof(type) / sizeof(double), NULL }
#define GPUS(g, k, member, need)                                                                   \
  { g, k, FIELD_GPUS, need, AT(member), 0, 0, 0, 0, NULL }
#define SPECIAL(g, k)                                                                              \
  { g, k, FIELD_SPECIAL, NEED_NEVER, 0, 0, 0, 0, 0, NULL }

/* Ranges: wide enough for any machine of the next years, narrow enough to catch a wrong unit. */
#define RATE   1e6, 1e16 /* bytes/s */
#define RATE0  0, 1e16
#define SIZE   1, 1e16 /* bytes */
#define FLOPS0 0, 1e19
#define TIME   0, 1    /* s */
#define PART   1e-3, 1 /* a fraction that is there */
#define PART0  0, 1
#define HZ     1e6, 1e11

#define NCCL(name, op, n, i)                                                                       \
  CURVE("collectives", "nccl_" name "_us_n" #n, collectives.nccl[op][i], NEED_TABLES, n, "bytes")
#define NCCL3(name, op) NCCL(name, op, 2, 0), NCCL(name, op, 4, 1), NCCL(name, op, 8, 2)
#define ONESHOT(n, i)                                                                              \
  CURVE("collectives", "oneshot_all_reduce_us_n" #n, collectives.oneshot_all_reduce[i],            \
        NEED_TABLES, n, "oneshot_bytes")
#define MOE(name, table, spread)                                                                   \
  CURVE("moe_layer", name "_balanced_us", moe[table][spread][OCT_MOE_BALANCED], NEED_GROUP, 0,     \
        "tokens"),                                                                                 \
      CURVE("moe_layer", name "_power_law_1p01_us", moe[table][spread][OCT_MOE_POWER_1P01],        \
            NEED_GROUP, 0, "tokens"),                                                              \
      CURVE("moe_layer", name "_power_law_1p2_us", moe[table][spread][OCT_MOE_POWER_1P2],          \
            NEED_GROUP, 0, "tokens")

static const field fields[] = {
    SPECIAL("profile", "schema"),
    SPECIAL("profile", "base"),
    SPECIAL("profile", "fictional"),
    TEXT("profile", "name", name),
    TEXT("profile", "title", title),

    TEXT("gpu", "name", gpu.name),
    U32("gpu", "count", gpu.count, 1, OCT_PROFILE_GPUS_MAX),
    TEXT("gpu", "compute_capability", gpu.compute_capability),
    TEXT("gpu", "gencode", gpu.gencode),
    U32("gpu", "sm_count", gpu.sm_count, 1, 4096),
    REAL("gpu", "l2_bytes", gpu.l2_bytes, 0, 1e12),
    REAL("gpu", "boost_hz", gpu.boost_hz, HZ),
    REAL("gpu", "hbm_bytes", gpu.hbm_bytes, SIZE),
    REAL("gpu", "hbm_bytes_per_s", gpu.hbm_bytes_per_s, RATE),
    REAL("gpu", "bf16_flops", gpu.flops[OCT_MATH_BF16], 1e9, 1e19),
    REAL("gpu", "fp8_flops", gpu.flops[OCT_MATH_FP8], FLOPS0),
    REAL("gpu", "fp4_flops", gpu.flops[OCT_MATH_FP4], FLOPS0),

    REAL("efficiency", "hbm_read", efficiency.hbm_read, PART),
    REAL("efficiency", "hbm_copy", efficiency.hbm_copy, PART),
    REAL("efficiency", "hbm_gemv_large", efficiency.hbm_gemv_large, PART),
    REAL("efficiency", "hbm_gemv_128mb", efficiency.hbm_gemv_128mb, PART),
    REAL("efficiency", "hbm_gemv_32mb", efficiency.hbm_gemv_32mb, PART),
    REAL("efficiency", "hbm_attention_gqa", efficiency.hbm_attention_gqa, PART),
    REAL("efficiency", "hbm_attention_mla_fp8", efficiency.hbm_attention_mla_fp8, PART),
    REAL("efficiency", "hbm_attention_mla_bf16", efficiency.hbm_attention_mla_bf16, PART),
    REAL("efficiency", "hbm_moe_expert", efficiency.hbm_moe_expert, PART),
    REAL("efficiency", "bf16_gemm", efficiency.gemm[OCT_MATH_BF16], PART),
    REAL("efficiency", "fp8_gemm", efficiency.gemm[OCT_MATH_FP8], PART0),
    REAL("efficiency", "fp8_block_gemm", efficiency.gemm[OCT_MATH_FP8_BLOCK], PART0),
    REAL("efficiency", "fp4_gemm", efficiency.gemm[OCT_MATH_FP4], PART0),
    REAL("efficiency", "kernel_floor_s", efficiency.kernel_floor_s, TIME),
    FIT("own_kernels", "kda", own_kernels.kda, oct_own_kda, NEED_GROUP),
    FIT("own_kernels", "mla", own_kernels.mla, oct_own_mla, NEED_GROUP),
    FIT("own_kernels", "mxfp4_experts", own_kernels.mxfp4_experts, oct_own_experts, NEED_GROUP),
    FIT("own_kernels", "pairs", own_kernels.pairs, oct_own_rows, NEED_GROUP),
    FIT("own_kernels", "mix", own_kernels.mix, oct_own_rows, NEED_GROUP),
    GRID("gemm", "m"),
    CURVE("gemm", "bfloat16_us_n8192_k8192", gemm_8192[OCT_MATH_BF16], NEED_GROUP, 0, "m"),
    CURVE("gemm", "fp8_us_n8192_k8192", gemm_8192[OCT_MATH_FP8], NEED_GROUP, 0, "m"),
    CURVE("gemm", "fp8_block_us_n8192_k8192", gemm_8192[OCT_MATH_FP8_BLOCK], NEED_NEVER, 0, "m"),
    CURVE("gemm", "nvfp4_us_n8192_k8192", gemm_8192[OCT_MATH_FP4], NEED_FP4, 0, "m"),
    GRID("gemm_probe", "m"),
    CURVE("gemm_probe", "bfloat16_us_n8192_k8192", gemm_probe, NEED_GROUP, 0, "m"),
    FIT("gemm_fit", "bfloat16", gemm_fit[OCT_MATH_BF16], oct_gemm_fit, NEED_ALWAYS),
    FIT("gemm_fit", "fp8", gemm_fit[OCT_MATH_FP8], oct_gemm_fit, NEED_ALWAYS),
    FIT("gemm_fit", "fp8_block", gemm_fit[OCT_MATH_FP8_BLOCK], oct_gemm_fit, NEED_ALWAYS),
    FIT("gemm_fit", "fp4", gemm_fit[OCT_MATH_FP4], oct_gemm_fit, NEED_FP4),
    FIT("moe_fit", "bfloat16", moe_fit[OCT_MATH_BF16], oct_moe_fit, NEED_ALWAYS),
    FIT("moe_fit", "fp8", moe_fit[OCT_MATH_FP8], oct_moe_fit, NEED_ALWAYS),
    FIT("moe_fit", "fp8_block", moe_fit[OCT_MATH_FP8_BLOCK], oct_moe_fit, NEED_ALWAYS),
    FIT("moe_fit", "fp4", moe_fit[OCT_MATH_FP4], oct_moe_fit, NEED_FP4),
    FIT("attention_fit", "decode", decode_fit, oct_decode_fit, NEED_ALWAYS),
    FIT("attention_fit", "prefill", prefill_fit, oct_prefill_fit, NEED_ALWAYS),

    FIT("collective_fit", "all_reduce", collective_fit[OCT_COLLECTIVE_ALL_REDUCE],
        oct_collective_fit, NEED_LAWS),
    FIT("collective_fit", "all_gather", collective_fit[OCT_COLLECTIVE_ALL_GATHER],
        oct_collective_fit, NEED_LAWS),
    FIT("collective_fit", "reduce_scatter", collective_fit[OCT_COLLECTIVE_REDUCE_SCATTER],
        oct_collective_fit, NEED_LAWS),
    FIT("collective_fit", "alltoall", collective_fit[OCT_COLLECTIVE_ALL_TO_ALL], oct_collective_fit,
        NEED_LAWS),
    FIT("collective_fit", "oneshot_all_reduce", oneshot_fit, oct_collective_fit, NEED_LAWS),
    RATIO("graph", step_ratio.graph, NEED_GROUP),
    RATIO("eager", step_ratio.eager, NEED_GROUP),
    RATIO("graph_short", step_ratio.graph_short, NEED_NEVER),
    RATIO("verify", step_ratio.verify, NEED_NEVER),
    RATIO("mixed", step_ratio.mixed, NEED_NEVER),
    WHEN("step_ratio", "graph_context", step_ratio.graph_context, NEED_SHORT, 1, 1e7),
    WHEN("step_ratio", "graph_short_context", step_ratio.graph_short_context, NEED_SHORT, 1, 1e7),
    WHEN("heat", "time_constant_s", heat.time_constant_s, NEED_GROUP, 1e-4, 10),
    WHEN("heat", "threshold", heat.threshold, NEED_GROUP, 0, 0.99),
    WHEN("heat", "prompts", heat.prompts, NEED_GROUP, 0, 4),
    WHEN("heat", "decodes", heat.decodes, NEED_GROUP, 0, 4),
    WHEN("heat", "flops_per_s", heat.flops_per_s, NEED_GROUP, 1e9, 1e19),
    GRID("moe_layer", "tokens"),
    MOE("k3_w4a16_ep8", OCT_MOE_K3_W4A16, OCT_MOE_EP8),
    MOE("k3_w4a16_tp8", OCT_MOE_K3_W4A16, OCT_MOE_TP8),
    MOE("e384_w4a8_ep8", OCT_MOE_E384_W4A8, OCT_MOE_EP8),
    MOE("e384_w4a8_tp8", OCT_MOE_E384_W4A8, OCT_MOE_TP8),

    SPECIAL("nvlink", "topology"),
    SPECIAL("nvlink", "pairs"),
    U32("nvlink", "generation", nvlink.generation, 0, 16),
    U32("nvlink", "links_per_gpu", nvlink.links_per_gpu, 0, 256),
    REAL("nvlink", "bytes_per_s_per_direction", nvlink.bytes_per_s, RATE),
    REAL("nvlink", "achieved_bytes_per_s_per_direction", nvlink.achieved_bytes_per_s, RATE),
    U32("nvlink", "switch_count", nvlink.switch_count, 0, 64),
    REAL("nvlink", "load_latency_s", nvlink.load_latency_s, TIME),
    REAL("nvlink", "copy_latency_s", nvlink.copy_latency_s, TIME),
    U32("nvlink", "nvls_min_gpus", nvlink.nvls_min_gpus, 2, 1024),

    SPECIAL("collectives", "model"),
    WHEN("collectives", "hop_overhead_s", collectives.hop_overhead_s, NEED_RING, TIME),
    WHEN("collectives", "base_overhead_s", collectives.base_overhead_s, NEED_RING, TIME),
    GRID("collectives", "bytes"),
    NCCL3("all_reduce", OCT_COLLECTIVE_ALL_REDUCE),
    NCCL3("all_gather", OCT_COLLECTIVE_ALL_GATHER),
    NCCL3("reduce_scatter", OCT_COLLECTIVE_REDUCE_SCATTER),
    NCCL3("alltoall", OCT_COLLECTIVE_ALL_TO_ALL),
    GRID("collectives", "oneshot_bytes"),
    ONESHOT(2, 0),
    ONESHOT(4, 1),
    ONESHOT(8, 2),
    GRID("collectives_probe", "bytes"),
    CURVE("collectives_probe", "all_reduce_us_n2", all_reduce_probe, NEED_GROUP, 0, "bytes"),

    GRID("moe_alltoall", "tokens_per_gpu"),
    CURVE("moe_alltoall", "dispatch_us", moe_alltoall.dispatch, NEED_GROUP, 0, "tokens_per_gpu"),
    CURVE("moe_alltoall", "combine_us", moe_alltoall.combine, NEED_GROUP, 0, "tokens_per_gpu"),

    GPUS("topology", "gpu_socket", topology.gpu_socket, NEED_ALWAYS),
    GPUS("topology", "gpu_numa_node", topology.gpu_numa_node, NEED_ALWAYS),
    GPUS("topology", "gpu_pcie_switch", topology.gpu_switch, NEED_ALWAYS),
    SPECIAL("topology", "pcie_switch_socket"),
    GPUS("topology", "gpu_root_complex", topology.gpu_root_complex, NEED_NEVER),

    U32("pcie", "gpu_link_gen", pcie.gpu_link_gen, 1, 16),
    U32("pcie", "host_link_gen", pcie.host_link_gen, 1, 16),
    U32("pcie", "lanes", pcie.lanes, 1, 64),
    REAL("pcie", "h2d_bytes_per_s", pcie.h2d_bytes_per_s, RATE),
    REAL("pcie", "d2h_bytes_per_s", pcie.d2h_bytes_per_s, RATE),
    REAL("pcie", "duplex_bytes_per_s", pcie.duplex_bytes_per_s, RATE),
    REAL("pcie", "pageable_bytes_per_s", pcie.pageable_bytes_per_s, RATE),
    REAL("pcie", "kernel_read", pcie.kernel_read, PART),
    REAL("pcie", "copy_latency_s", pcie.copy_latency_s, TIME),
    REAL("pcie", "switch_uplink_bytes_per_s", pcie.switch_uplink_bytes_per_s, RATE),
    REAL("pcie", "host_link_aggregate_bytes_per_s", pcie.host_link_aggregate_bytes_per_s, RATE),
    REAL("pcie", "nic_bytes_per_s_per_gpu", pcie.nic_bytes_per_s_per_gpu, RATE0),
    WHEN("pcie", "cross_pair_bytes_per_s", pcie.cross_pair_bytes_per_s, NEED_PAIRS, RATE),
    WHEN("pcie", "cross_socket_bytes_per_s", pcie.cross_socket_bytes_per_s, NEED_PAIRS, RATE),
    WHEN("pcie", "cross_pair_latency_s", pcie.cross_pair_latency_s, NEED_PAIRS, TIME),
    WHEN("pcie", "cross_socket_latency_s", pcie.cross_socket_latency_s, NEED_PAIRS, TIME),
    GRID("copies", "bytes"),
    CURVE("copies", "to_device_us", copy_to_device, NEED_GROUP, 0, "bytes"),
    CURVE("copies", "from_device_us", copy_from_device, NEED_GROUP, 0, "bytes"),
    U32("host", "sockets", host.sockets, 1, 16),
    TEXT("host", "cpu", host.cpu),
    U32("host", "cores_per_socket", host.cores_per_socket, 1, 4096),
    REAL("host", "memory_bytes", host.memory_bytes, SIZE),
    REAL("host", "memory_bytes_per_s_per_socket", host.memory_bytes_per_s_per_socket, RATE),
    REAL("host", "memory_efficiency", host.memory_efficiency, PART),
    REAL("host", "intersocket_bytes_per_s", host.intersocket_bytes_per_s, RATE0),
    REAL("host", "intersocket_latency_s", host.intersocket_latency_s, TIME),
    REAL("host", "intersocket_p2p_bytes_per_s", host.intersocket_p2p_bytes_per_s, RATE0),
    REAL("host", "staged_p2p_bytes_per_s", host.staged_p2p_bytes_per_s, RATE),
    REAL("host", "staged_p2p_latency_s", host.staged_p2p_latency_s, TIME),

    REAL("launch", "cpu_enqueue_s", launch.cpu_enqueue_s, TIME),
    REAL("launch", "kernel_pipelined_s", launch.kernel_pipelined_s, TIME),
    REAL("launch", "launch_and_sync_s", launch.launch_and_sync_s, TIME),
    REAL("launch", "graph_launch_s", launch.graph_launch_s, TIME),
    REAL("launch", "graph_node_s", launch.graph_node_s, TIME),
    REAL("launch", "event_sync_s", launch.event_sync_s, TIME),

    REAL("thermal", "tdp_w", thermal.tdp_w, 1, 1e5),
    REAL("thermal", "idle_w", thermal.idle_w, 0, 1e5),
    REAL("thermal", "min_power_limit_w", thermal.min_power_limit_w, 0, 1e5),
    REAL("thermal", "throttle_c", thermal.throttle_c, 0, 200),
    REAL("thermal", "slowdown_c", thermal.slowdown_c, 0, 200),
    REAL("thermal", "shutdown_c", thermal.shutdown_c, 0, 200),
    REAL("thermal", "hbm_throttle_c", thermal.hbm_throttle_c, 0, 200),
    REAL("thermal", "nominal_hz", thermal.nominal_hz, HZ),
    REAL("thermal", "throttled_hz", thermal.throttled_hz, HZ),
    REAL("thermal", "inlet_c", thermal.inlet_c, -50, 100),
    REAL("thermal", "thermal_resistance_k_per_w", thermal.resistance_k_per_w, 0, 10),
    REAL("thermal", "thermal_time_constant_s", thermal.time_constant_s, 1e-3, 1e5),
    REAL("thermal", "node_power_w", thermal.node_power_w, 1, 1e6),

    REAL("reliability", "gpu_failures_per_gpu_year", reliability.gpu_failures_per_gpu_year, 0, 1e4),
    REAL("reliability", "gpu_interruptions_per_gpu_year",
         reliability.gpu_interruptions_per_gpu_year, 0, 1e4),

    SPECIAL("engine", "default_preset"),
    SPECIAL("engine", "presets"),
};

/* Keys of a group [engine NAME]: microseconds in the file, nanoseconds in memory. */
static const struct {
  const char *key;
  gsize offset;
} engine_times[] = {
    {"step_host_us", G_STRUCT_OFFSET(oct_engine_times, step_host_ns)},
    {"step_host_per_seq_us", G_STRUCT_OFFSET(oct_engine_times, step_host_per_seq_ns)},
    {"request_in_us", G_STRUCT_OFFSET(oct_engine_times, request_in_ns)},
    {"request_out_per_token_us", G_STRUCT_OFFSET(oct_engine_times, request_out_per_token_ns)},
    {"submit_lead_us", G_STRUCT_OFFSET(oct_engine_times, submit_lead_ns)},
};
#define ENGINE_PREFIX      "engine "
#define ENGINE_US_MAX      1e7
#define ENGINE_PRESETS_MAX 16
#define ENGINE_BATCH_MAX   65536
#define PROFILE_SCHEMA     1

/* ---------------------------------------------------------------- the table's keys */

/* More bytes never take less time: single slow measurements of a collective are cut off. */
static void
flatten_spikes(oct_curve *curve) {
  for (guint32 i = curve->n; i-- > 1;)
    curve->y[i - 1] = MIN(curve->y[i - 1], curve->y[i]);
}

static gboolean
read_curve(const oct_profile_chain *chain, const field *f, oct_curve *out, GError **error) {
  guint32 n;
  if (!oct_profile_read_list(chain, f->group, f->grid, 1, 1e15, 2, OCT_PROFILE_POINTS_MAX, out->x,
                             &out->n, error) ||
      !oct_profile_read_list(chain, f->group, f->key, f->min, f->max, out->n, out->n, out->y, &n,
                             error))
    return FALSE;
  for (guint32 i = 0; i < n; i++) {
    out->y[i] *= f->scale;
    if (i > 0 && out->x[i] <= out->x[i - 1]) {
      g_set_error(error, OCT_PROFILE_ERROR, OCT_PROFILE_ERROR_RANGE,
                  "%s: [%s] %s: %g after %g: a grid must rise",
                  oct_profile_chain_find(chain, f->group, f->grid)->label, f->group, f->grid,
                  out->x[i], out->x[i - 1]);
      return FALSE;
    }
  }
  if (strcmp(f->group, "collectives") == 0 || strcmp(f->group, "moe_alltoall") == 0)
    flatten_spikes(out);
  return TRUE;
}

static gboolean
is_needed(const oct_profile *profile, const oct_profile_chain *chain, const field *f) {
  switch (f->need) {
  case NEED_ALWAYS:
    return TRUE;
  case NEED_NEVER:
    return FALSE;
  case NEED_GROUP:
    return oct_profile_chain_has_group(chain, f->group);
  case NEED_FP4:
    return profile->gpu.flops[OCT_MATH_FP4] > 0;
  case NEED_TABLES:
    return !profile->collectives.analytic_ring && !profile->collectives.fitted &&
           profile->gpu.count >= f->n;
  case NEED_RING:
    return profile->collectives.analytic_ring;
  case NEED_LAWS:
    return profile->collectives.fitted;
  case NEED_SHORT:
    return oct_profile_chain_find(chain, "step_ratio", "graph_short") != NULL;
  case NEED_PAIRS:
    return profile->nvlink.topology == OCT_NVLINK_PAIRS;
  }
  return TRUE;
}

static gboolean
read_field(oct_profile *profile, const oct_profile_chain *chain, const field *f, GError **error) {
  void *out = G_STRUCT_MEMBER_P(profile, f->offset);
  guint32 n;
  if (f->type == FIELD_SPECIAL || f->type == FIELD_GRID)
    return TRUE;
  if (!is_needed(profile, chain, f)) {
    /* Tables that a base has but this machine has no use for stay unread: they may not fit it. */
    if (f->need == NEED_TABLES || f->need == NEED_LAWS || f->need == NEED_FP4 ||
        oct_profile_chain_find(chain, f->group, f->key) == NULL)
      return TRUE;
    /* A base's list may be of another machine's length: only the machine's own file counts. */
    if (f->type == FIELD_GPUS && f->need == NEED_NEVER &&
        !g_key_file_has_key(chain->files[0].keys, f->group, f->key, NULL))
      return TRUE;
  }
  switch (f->type) {
  case FIELD_STRING:
    return oct_profile_read_string(chain, f->group, f->key, out, error);
  case FIELD_U32:
    return oct_profile_read_u32(chain, f->group, f->key, f->min, f->max, out, error);
  case FIELD_DOUBLE:
    return oct_profile_read_double(chain, f->group, f->key, f->min, f->max, out, error);
  case FIELD_LIST:
    return oct_profile_read_list(chain, f->group, f->key, f->min, f->max, f->n, f->n, out, &n,
                                 error);
  case FIELD_CURVE:
    return read_curve(chain, f, out, error);
  case FIELD_GPUS:
    return oct_profile_read_bytes(chain, f->group, f->key, OCT_PROFILE_GPUS_MAX - 1,
                                  profile->gpu.count, profile->gpu.count, out, &n, error);
  case FIELD_GRID:
  case FIELD_SPECIAL:
    break;
  }
  return TRUE;
}

/* ---------------------------------------------------------------- what a table cannot say */

static gboolean
read_choices(oct_profile *profile, const oct_profile_chain *chain, GError **error) {
  guint32 schema;
  if (!oct_profile_read_u32(chain, "profile", "schema", PROFILE_SCHEMA, PROFILE_SCHEMA, &schema,
                            error))
    return FALSE;
  const char *label;
  g_autofree char *fictional = oct_profile_take_value(chain, "profile", "fictional", &label);
  if (fictional != NULL && strcmp(fictional, "true") != 0 && strcmp(fictional, "false") != 0) {
    g_set_error(error, OCT_PROFILE_ERROR, OCT_PROFILE_ERROR_PARSE,
                "%s: [profile] fictional: '%.60s' is neither true nor false", label, fictional);
    return FALSE;
  }
  profile->fictional = fictional != NULL && strcmp(fictional, "true") == 0;
  g_autofree char *topology = oct_profile_take_value(chain, "nvlink", "topology", &label);
  static const char *const names[] = {"none", "switch", "pairs"};
  guint i = 0;
  if (topology == NULL)
    return oct_profile_missing(chain, "nvlink", "topology", error);
  while (i < G_N_ELEMENTS(names) && strcmp(names[i], topology) != 0)
    i++;
  if (i == G_N_ELEMENTS(names)) {
    g_set_error(error, OCT_PROFILE_ERROR, OCT_PROFILE_ERROR_PARSE,
                "%s: [nvlink] topology: '%.60s' is none of switch, pairs, none", label, topology);
    return FALSE;
  }
  profile->nvlink.topology = (oct_nvlink_topology)i;

  g_autofree char *model = oct_profile_take_value(chain, "collectives", "model", &label);
  profile->collectives.fitted = model != NULL && strcmp(model, "fitted") == 0;
  profile->collectives.analytic_ring = model != NULL && strcmp(model, "analytic_ring") == 0;
  if (model != NULL && !profile->collectives.fitted && !profile->collectives.analytic_ring) {
    g_set_error(error, OCT_PROFILE_ERROR, OCT_PROFILE_ERROR_PARSE,
                "%s: [collectives] model: '%.60s' is neither analytic_ring nor fitted", label,
                model);
    return FALSE;
  }
  if (profile->nvlink.topology == OCT_NVLINK_PAIRS && !profile->collectives.analytic_ring)
    return oct_profile_missing(chain, "collectives", "model", error);
  return TRUE;
}

/* "0-1;2-3;": GPUs that a bridge joins; each at most once. */
static gboolean
read_pairs(oct_profile *profile, const oct_profile_chain *chain, GError **error) {
  const guint32 count = profile->gpu.count;
  for (guint32 i = 0; i < OCT_PROFILE_GPUS_MAX; i++)
    profile->nvlink.gpu_pair[i] = (guint8)i;
  if (profile->nvlink.topology != OCT_NVLINK_PAIRS)
    return TRUE;
  const char *label;
  g_autofree char *text = oct_profile_take_value(chain, "nvlink", "pairs", &label);
  if (text == NULL)
    return oct_profile_missing(chain, "nvlink", "pairs", error);
  g_auto(GStrv) parts = g_strsplit(text, ";", OCT_PROFILE_GPUS_MAX);
  for (guint i = 0; parts[i] != NULL; i++) {
    if (*g_strstrip(parts[i]) == '\0')
      continue;
    char *end = NULL;
    guint64 a = g_ascii_strtoull(parts[i], &end, 10);
    guint64 b = end != parts[i] && *end == '-' ? g_ascii_strtoull(end + 1, &end, 10) : a;
    if (!g_ascii_isdigit(parts[i][0]) || *end != '\0' || a == b || a >= count || b >= count ||
        profile->nvlink.gpu_pair[a] != a || profile->nvlink.gpu_pair[b] != b) {
      g_set_error(error, OCT_PROFILE_ERROR, OCT_PROFILE_ERROR_RANGE,
                  "%s: [nvlink] pairs: '%.40s' is not a pair of two unpaired GPUs below %u", label,
                  parts[i], count);
      return FALSE;
    }
    profile->nvlink.gpu_pair[a] = (guint8)b;
    profile->nvlink.gpu_pair[b] = (guint8)a;
  }
  return TRUE;
}

static gboolean
topology_error(const oct_profile_chain *chain, const char *key, guint32 value, guint32 limit,
               GError **error) {
  g_set_error(error, OCT_PROFILE_ERROR, OCT_PROFILE_ERROR_RANGE,
              "%s: [topology] %s: %u is not below %u", chain->files[0].label, key, value, limit);
  return FALSE;
}

/* Switches, root complexes and sockets must be those that the node has. */
static gboolean
read_topology(oct_profile *profile, const oct_profile_chain *chain, GError **error) {
  oct_profile_topology *t = &profile->topology;
  t->n_sockets = profile->host.sockets;
  if (!oct_profile_read_bytes(chain, "topology", "pcie_switch_socket", OCT_PROFILE_GPUS_MAX - 1, 1,
                              OCT_PROFILE_GPUS_MAX, t->switch_socket, &t->n_switches, error))
    return FALSE;
  /* A base's list counts only if the machine's own file has none. */
  gboolean own_complexes =
      g_key_file_has_key(chain->files[0].keys, "topology", "gpu_root_complex", NULL);
  for (guint32 s = 0; s < t->n_switches; s++) {
    if (t->switch_socket[s] >= t->n_sockets)
      return topology_error(chain, "pcie_switch_socket", t->switch_socket[s], t->n_sockets, error);
    t->switch_root_complex[s] = t->switch_socket[s];
  }
  t->n_root_complexes = own_complexes ? 0 : t->n_sockets;
  for (guint32 g = 0; g < profile->gpu.count; g++) {
    guint8 pcie_switch = t->gpu_switch[g];
    if (t->gpu_socket[g] >= t->n_sockets)
      return topology_error(chain, "gpu_socket", t->gpu_socket[g], t->n_sockets, error);
    if (pcie_switch >= t->n_switches)
      return topology_error(chain, "gpu_pcie_switch", pcie_switch, t->n_switches, error);
    if (!own_complexes)
      t->gpu_root_complex[g] = t->switch_socket[pcie_switch];
    t->switch_root_complex[pcie_switch] = t->gpu_root_complex[g];
    t->n_root_complexes = MAX(t->n_root_complexes, t->gpu_root_complex[g] + 1u);
  }
  if (t->n_sockets > 1 && profile->host.intersocket_bytes_per_s <= 0) {
    g_set_error(error, OCT_PROFILE_ERROR, OCT_PROFILE_ERROR_RANGE,
                "%s: [host] intersocket_bytes_per_s: 0 with %u sockets", chain->files[0].label,
                t->n_sockets);
    return FALSE;
  }
  return TRUE;
}

static gboolean
check_fit(const oct_profile_chain *chain, const char *group, const char *key, double value,
          double min, double max, const char *member, GError **error) {
  if (value >= min && value <= max)
    return TRUE;
  g_set_error(error, OCT_PROFILE_ERROR, OCT_PROFILE_ERROR_RANGE,
              "%s: [%s] %s: %s %g is not within %g and %g", chain->files[0].label, group, key,
              member, value, min, max);
  return FALSE;
}

/* Fractions of the peak stay within it, so that no price can beat its roofline. */
static gboolean
check_fits(const oct_profile *p, const oct_profile_chain *chain, GError **error) {
  for (int m = 0; m < OCT_MATH_COUNT; m++) {
    const oct_gemm_fit *g = &p->gemm_fit[m];
    const oct_moe_fit *e = &p->moe_fit[m];
    const char *name = oct_math_name((oct_math)m);
    if (p->gpu.flops[m] <= 0)
      continue;
    if (!check_fit(chain, "gemm_fit", name, g->peak, 0.01, 1, "peak fraction", error) ||
        !check_fit(chain, "gemm_fit", name, g->bandwidth, 0.01, 1, "bandwidth fraction", error) ||
        !check_fit(chain, "gemm_fit", name, g->quantise, 0.01, 1, "quantise fraction", error) ||
        !check_fit(chain, "gemm_fit", name, g->wave_rounding, 0, 1, "wave rounding", error) ||
        !check_fit(chain, "moe_fit", name, e->peak, 0.01, 1, "peak fraction", error) ||
        !check_fit(chain, "moe_fit", name, e->bandwidth, 0.01, 1, "bandwidth fraction", error) ||
        !check_fit(chain, "moe_fit", name, e->activation, 0.01, 1, "activation fraction", error) ||
        !check_fit(chain, "moe_fit", name, e->row_tile, 1, 1024, "row tile", error))
      return FALSE;
  }
  return check_fit(chain, "attention_fit", "decode", p->decode_fit.bandwidth, 0.01, 1,
                   "bandwidth fraction", error) &&
         check_fit(chain, "attention_fit", "decode", p->decode_fit.overlap, 0, 1, "overlap",
                   error) &&
         check_fit(chain, "attention_fit", "decode", p->decode_fit.wave_rounding, 0, 1,
                   "wave rounding", error) &&
         check_fit(chain, "attention_fit", "prefill", p->prefill_fit.peak, 0.01, 1, "peak fraction",
                   error) &&
         check_fit(chain, "attention_fit", "prefill", p->prefill_fit.bandwidth, 0.01, 1,
                   "bandwidth fraction", error);
}

/* ---------------------------------------------------------------- engine presets */

char **
oct_profile_read_presets(const oct_profile_chain *chain, GError **error) {
  const char *label;
  g_autofree char *text = oct_profile_take_value(chain, "engine", "presets", &label);
  if (text == NULL) {
    oct_profile_missing(chain, "engine", "presets", error);
    return NULL;
  }
  g_auto(GStrv) parts = g_strsplit(text, ";", ENGINE_PRESETS_MAX + 1);
  g_autoptr(GPtrArray) names = g_ptr_array_new_with_free_func(g_free);
  for (guint i = 0; parts[i] != NULL; i++)
    if (*g_strstrip(parts[i]) != '\0')
      g_ptr_array_add(names, g_strdup(parts[i]));
  if (names->len == 0 || names->len > ENGINE_PRESETS_MAX) {
    g_set_error(error, OCT_PROFILE_ERROR, OCT_PROFILE_ERROR_RANGE,
                "%s: [engine] presets: %u names are not within 1 and %d", label, names->len,
                ENGINE_PRESETS_MAX);
    return NULL;
  }
  g_ptr_array_set_free_func(names, NULL);
  g_ptr_array_add(names, NULL);
  return (char **)g_ptr_array_free(g_steal_pointer(&names), FALSE);
}

/* One preset's group into *engine; its name is left alone. */
static gboolean
read_preset(oct_engine_times *engine, const oct_profile_chain *chain, const char *preset,
            GError **error) {
  g_autofree char *group = g_strconcat(ENGINE_PREFIX, preset, NULL);
  for (guint i = 0; i < G_N_ELEMENTS(engine_times); i++) {
    double us;
    if (!oct_profile_read_double(chain, group, engine_times[i].key, 0, ENGINE_US_MAX, &us, error))
      return FALSE;
    *(gint64 *)G_STRUCT_MEMBER_P(engine, engine_times[i].offset) = (gint64)(us * 1e3 + 0.5);
  }
  return oct_profile_read_u32(chain, group, "graph_max_batch", 0, ENGINE_BATCH_MAX,
                              &engine->graph_max_batch, error);
}

static gboolean
unknown_preset(const oct_profile_chain *chain, const char *preset, char **presets, GError **error) {
  g_autofree char *known = g_strjoinv(", ", presets);
  g_set_error(error, OCT_PROFILE_ERROR, OCT_PROFILE_ERROR_NOT_FOUND,
              "%s: [engine] has no preset '%.60s': it has %s", chain->files[0].label, preset,
              known);
  return FALSE;
}

/* A group [engine NAME] that `presets` does not list would be read by nobody. */
static gboolean
check_preset_groups(const oct_profile_file *file, const char *const *names, GError **error) {
  g_auto(GStrv) groups = g_key_file_get_groups(file->keys, NULL);
  for (guint g = 0; groups[g] != NULL; g++)
    if (g_str_has_prefix(groups[g], ENGINE_PREFIX) &&
        !g_strv_contains(names, groups[g] + strlen(ENGINE_PREFIX))) {
      g_set_error(error, OCT_PROFILE_ERROR, OCT_PROFILE_ERROR_UNKNOWN,
                  "%s: [%.60s] is not one of the presets that [engine] lists", file->label,
                  groups[g]);
      return FALSE;
    }
  return TRUE;
}

/* Every preset is read, so that a fault shows whichever is chosen. */
static gboolean
read_engine(oct_profile *profile, const oct_profile_chain *chain, const char *preset,
            GError **error) {
  g_auto(GStrv) presets = oct_profile_read_presets(chain, error);
  if (presets == NULL ||
      !oct_profile_read_string(chain, "engine", "default_preset", &profile->engine.preset, error))
    return FALSE;
  const char *const *names = (const char *const *)presets;
  if (!g_strv_contains(names, profile->engine.preset))
    return unknown_preset(chain, profile->engine.preset, presets, error);
  if (preset != NULL) {
    if (!g_strv_contains(names, preset))
      return unknown_preset(chain, preset, presets, error);
    g_free(profile->engine.preset);
    profile->engine.preset = g_strdup(preset);
  }
  for (guint32 i = 0; i < chain->n; i++)
    if (!check_preset_groups(&chain->files[i], names, error))
      return FALSE;
  for (guint i = 0; names[i] != NULL; i++) {
    oct_engine_times times = {.preset = profile->engine.preset};
    if (!read_preset(&times, chain, names[i], error))
      return FALSE;
    if (strcmp(names[i], profile->engine.preset) == 0)
      profile->engine = times;
  }
  return TRUE;
}

/* ---------------------------------------------------------------- unknown names */

static gboolean
is_known(const char *group, const char *key) {
  if (g_str_has_prefix(group, ENGINE_PREFIX)) {
    for (guint i = 0; i < G_N_ELEMENTS(engine_times); i++)
      if (key == NULL || strcmp(engine_times[i].key, key) == 0)
        return TRUE;
    return strcmp(key, "graph_max_batch") == 0;
  }
  for (guint i = 0; i < G_N_ELEMENTS(fields); i++)
    if (strcmp(fields[i].group, group) == 0 && (key == NULL || strcmp(fields[i].key, key) == 0))
      return TRUE;
  return FALSE;
}

static gboolean
check_names(const oct_profile_file *file, GError **error) {
  g_auto(GStrv) groups = g_key_file_get_groups(file->keys, NULL);
  for (guint g = 0; groups[g] != NULL; g++) {
    if (oct_profile_is_measured(groups[g]))
      continue; /* read with its keys */
    if (!is_known(groups[g], NULL)) {
      g_set_error(error, OCT_PROFILE_ERROR, OCT_PROFILE_ERROR_UNKNOWN,
                  "%s: [%.60s] is not a group of a profile", file->label, groups[g]);
      return FALSE;
    }
    g_auto(GStrv) keys = g_key_file_get_keys(file->keys, groups[g], NULL, NULL);
    for (guint k = 0; keys != NULL && keys[k] != NULL; k++)
      if (!is_known(groups[g], keys[k])) {
        g_set_error(error, OCT_PROFILE_ERROR, OCT_PROFILE_ERROR_UNKNOWN,
                    "%s: [%s] %.60s is not a key of a profile", file->label, groups[g], keys[k]);
        return FALSE;
      }
  }
  return TRUE;
}

/* ---------------------------------------------------------------- all of it */

gboolean
oct_profile_read_fields(oct_profile *profile, const oct_profile_chain *chain, const char *preset,
                        GError **error) {
  for (guint32 i = 0; i < chain->n; i++)
    if (!check_names(&chain->files[i], error))
      return FALSE;
  /* The choices and [gpu] come first: what else is needed depends on them. */
  if (!read_choices(profile, chain, error))
    return FALSE;
  for (int pass = 0; pass < 2; pass++)
    for (guint i = 0; i < G_N_ELEMENTS(fields); i++)
      if ((strcmp(fields[i].group, "gpu") == 0) == (pass == 0) &&
          !read_field(profile, chain, &fields[i], error))
        return FALSE;
  profile->gpu.flops[OCT_MATH_FP8_BLOCK] = profile->gpu.flops[OCT_MATH_FP8];
  return oct_profile_read_measured(profile, chain, error) && read_pairs(profile, chain, error) &&
         read_topology(profile, chain, error) && check_fits(profile, chain, error) &&
         read_engine(profile, chain, preset, error);
}
