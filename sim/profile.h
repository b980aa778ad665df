/* A node profile: everything the simulation knows about a machine, read from sim/profiles/NAME.ini.
 *
 * The file is GKeyFile text; keys end in their unit, and each carries a comment that says where its
 * figure is from (datasheet, measured, derived, assumed). Here every value is in SI units (seconds,
 * bytes, bytes per second, flop/s, watts, degrees Celsius) except the host times of [engine], which
 * the engine charges as they are: int64 nanoseconds.
 *
 * A profile may name a `base`, which is read first and then overridden key by key; a key that is in
 * neither is an error that names file, group and key, never a silent zero. Unknown groups and keys
 * are errors too, as are values out of range, NaN and lists of the wrong length.
 *
 * A loaded profile never changes: any thread may read it.
 */
#ifndef OCT_SIM_PROFILE_H
#define OCT_SIM_PROFILE_H

#include <glib.h>

#include "engine/model/spec.h"

/* Limits of a file: beyond them loading fails with an error that names the value and the limit. */
#define OCT_PROFILE_GPUS_MAX   16
#define OCT_PROFILE_POINTS_MAX 64
#define OCT_PROFILE_BASES_MAX  4
#define OCT_PROFILE_FILE_MAX   (1 << 20)
/* Folder below those of profiles with constants that profiles may be based on and that are none by
 * themselves: they are not listed. */
#define OCT_PROFILE_FITS "fits"

#define OCT_PROFILE_ERROR (oct_profile_error_quark())
GQuark oct_profile_error_quark(void);
typedef enum oct_profile_error {
  OCT_PROFILE_ERROR_NOT_FOUND, /* no such profile or file */
  OCT_PROFILE_ERROR_PARSE,     /* not a key file, too large, or a value of the wrong type */
  OCT_PROFILE_ERROR_MISSING,   /* a group or key that must be there */
  OCT_PROFILE_ERROR_UNKNOWN,   /* a group or key that does not exist */
  OCT_PROFILE_ERROR_RANGE,     /* a value or a list's length out of range */
} oct_profile_error;

/* A measured table y(x), x rising. n = 0: the profile has no such table. */
typedef struct oct_curve {
  guint32 n;
  double x[OCT_PROFILE_POINTS_MAX];
  double y[OCT_PROFILE_POINTS_MAX];
} oct_curve;

/* y at x: log-log between points, proportional to x past the last, the first below the first. */
double oct_curve_at(const oct_curve *curve, double x);

/* The arithmetic type of a matrix product. */
typedef enum oct_math {
  OCT_MATH_BF16,
  OCT_MATH_FP8,       /* one scale per tensor or row */
  OCT_MATH_FP8_BLOCK, /* 128 x 128 block scales */
  OCT_MATH_FP4,       /* NVFP4 or MXFP4 */
  OCT_MATH_COUNT
} oct_math;

const char *oct_math_name(oct_math math); /* "bfloat16", "fp8", "fp8_block", "fp4"; static */

typedef struct oct_profile_gpu {
  char *name;
  char *compute_capability, *gencode;
  guint32 count;
  guint32 sm_count;
  double l2_bytes;
  double boost_hz;
  double hbm_bytes;             /* capacity that software sees */
  double hbm_bytes_per_s;       /* datasheet peak */
  double flops[OCT_MATH_COUNT]; /* dense peak, flop/s; 0 = the GPU has no such unit */
} oct_profile_gpu;

/* Fractions of the peak that kernels of a class reach, and the floor under a small kernel. */
typedef struct oct_profile_efficiency {
  double hbm_read, hbm_copy;
  double hbm_gemv_large, hbm_gemv_128mb, hbm_gemv_32mb;
  double hbm_attention_gqa, hbm_attention_mla_fp8, hbm_attention_mla_bf16;
  double hbm_moe_expert;
  double gemm[OCT_MATH_COUNT]; /* 0 = no such unit */
  double kernel_floor_s;
} oct_profile_efficiency;

/* What this engine's own kernels reach of the larger of two floors, bytes over the memory's rate
 * and flops over the BF16 peak, of the GPU that they were measured on: fractions, above 0 and at
 * most 1, and what comes to that whatever the size; both carried over to this GPU. All 0 where a
 * profile has no group [own_kernels]. */
typedef struct oct_own_kda {
  double decode_fixed_s, decode_hbm;    /* state read and written once */
  double prefill_fixed_s, prefill_peak; /* chunked */
  /* Of each token of one prompt, whose chunks wait for each other. */
  double prefill_token_s;
} oct_own_kda;
typedef struct oct_own_mla {
  double decode_fixed_s, decode_fp8_hbm, decode_bf16_hbm; /* absorbed, on the latent */
  double decode_peak, decode_short_peak; /* by the kernel for many heads over short contexts */
} oct_own_mla;
/* What that kernel takes (kernels/cuda/latent.cu): more heads than so many, contexts of at most so
 * many tokens. */
#define OCT_OWN_MLA_FEW_HEADS     16
#define OCT_OWN_MLA_SHORT_CONTEXT 2048
typedef struct oct_own_experts {
  double fixed_s, hbm, peak; /* both grouped products, MXFP4 turned into BF16 */
  double turned;             /* what that costs a pass over the weights, as columns of tokens */
} oct_own_experts;
typedef struct oct_own_rows {
  double fixed_s, hbm; /* bytes alone: no arithmetic to speak of */
} oct_own_rows;
typedef struct oct_profile_own_kernels {
  oct_own_kda kda;
  oct_own_mla mla;
  oct_own_experts mxfp4_experts;
  oct_own_rows pairs; /* choosing experts, sorting pairs by them, their sum */
  oct_own_rows mix;   /* of attention residuals, with the norm behind */
} oct_profile_own_kernels;

/* Routed-expert kernels that have measured tables (microseconds by tokens, kept here as seconds).
 */
typedef enum oct_moe_table {
  OCT_MOE_K3_W4A16,  /* Kimi K3's shape: latent 3584, inter 3072, top-16 of 896, MXFP4 x BF16 */
  OCT_MOE_E384_W4A8, /* 7168 x 3072, top-6 of 384, MXFP4 x MXFP8: what a good kernel reaches */
  OCT_MOE_TABLE_COUNT
} oct_moe_table;
typedef enum oct_moe_spread { OCT_MOE_TP8, OCT_MOE_EP8, OCT_MOE_SPREAD_COUNT } oct_moe_spread;
typedef enum oct_moe_routing {
  OCT_MOE_BALANCED, /* round robin: all experts are touched as soon as tokens x top-k reach them */
  OCT_MOE_POWER_1P01, /* power law, exponent 1.01; EP rows are the heaviest rank's */
  OCT_MOE_POWER_1P2,
  OCT_MOE_ROUTING_COUNT
} oct_moe_routing;

typedef enum oct_nvlink_topology {
  OCT_NVLINK_NONE,
  OCT_NVLINK_SWITCH, /* every pair at the full rate through NVSwitch */
  OCT_NVLINK_PAIRS,  /* only gpu and gpu_pair[gpu] are linked */
} oct_nvlink_topology;

typedef struct oct_profile_nvlink {
  oct_nvlink_topology topology;
  guint8 gpu_pair[OCT_PROFILE_GPUS_MAX]; /* PAIRS: the GPU at the other end, itself when none */
  double bytes_per_s;                    /* per GPU and direction, datasheet */
  double achieved_bytes_per_s;           /* per GPU and direction, what copies reach */
  double load_latency_s, copy_latency_s;
  guint32 generation, links_per_gpu, switch_count;
  guint32 nvls_min_gpus; /* in-switch reduction from this group size on */
} oct_profile_nvlink;

typedef enum oct_collective {
  OCT_COLLECTIVE_ALL_REDUCE,
  OCT_COLLECTIVE_ALL_GATHER,
  OCT_COLLECTIVE_REDUCE_SCATTER,
  OCT_COLLECTIVE_ALL_TO_ALL,
  OCT_COLLECTIVE_COUNT
} oct_collective;

/* Group sizes that have tables: index 0, 1, 2 = 2, 4, 8 GPUs. */
#define OCT_PROFILE_SIZES 3

/* x: bytes of the whole buffer on one rank (nccl-tests size column); y: seconds, with single slow
 * measurements cut off so that more bytes never take less time. */
typedef struct oct_profile_collectives {
  gboolean analytic_ring; /* no tables: hops over the links of [nvlink] and [pcie] */
  gboolean fitted;        /* no tables: the laws of [collective_fit] */
  double hop_overhead_s, base_overhead_s; /* analytic_ring */
  oct_curve nccl[OCT_COLLECTIVE_COUNT][OCT_PROFILE_SIZES];
  oct_curve oneshot_all_reduce[OCT_PROFILE_SIZES]; /* own kernel inside a graph */
} oct_profile_collectives;

/* Low-latency expert dispatch and combine of 8 ranks: seconds by tokens per GPU; and the row they
 * were measured with, by which other models scale. */
typedef struct oct_profile_moe_alltoall {
  oct_curve dispatch, combine; /* n = 0: none, the all-to-all table is used */
} oct_profile_moe_alltoall;

typedef struct oct_profile_topology {
  guint32 n_sockets, n_switches, n_root_complexes;
  guint8 gpu_socket[OCT_PROFILE_GPUS_MAX];
  guint8 gpu_numa_node[OCT_PROFILE_GPUS_MAX];
  guint8 gpu_switch[OCT_PROFILE_GPUS_MAX]; /* PCIe switch */
  guint8
      gpu_root_complex[OCT_PROFILE_GPUS_MAX]; /* = its switch's socket when the profile has none */
  guint8 switch_socket[OCT_PROFILE_GPUS_MAX];
  guint8 switch_root_complex[OCT_PROFILE_GPUS_MAX];
} oct_profile_topology;

typedef struct oct_profile_pcie {
  guint32 gpu_link_gen, host_link_gen, lanes;
  double h2d_bytes_per_s, d2h_bytes_per_s; /* one direction alone, per GPU */
  double duplex_bytes_per_s;               /* limits both directions together, per GPU */
  double pageable_bytes_per_s;
  double kernel_read; /* what kernels reach that read host memory in place, of h2d_bytes_per_s */
  double copy_latency_s;
  double switch_uplink_bytes_per_s;       /* per direction, shared by the GPUs of a switch */
  double host_link_aggregate_bytes_per_s; /* all GPUs together, per direction */
  double nic_bytes_per_s_per_gpu;         /* 0 = no NIC */
  /* PAIRS profiles: GPU to GPU outside a pair; 0 otherwise. */
  double cross_pair_bytes_per_s, cross_socket_bytes_per_s;
  double cross_pair_latency_s, cross_socket_latency_s;
} oct_profile_pcie;

typedef struct oct_profile_host {
  char *cpu;
  guint32 sockets, cores_per_socket;
  double memory_bytes;                  /* whole node */
  double memory_bytes_per_s_per_socket; /* theoretical: multiply by memory_efficiency */
  double memory_efficiency;
  double intersocket_bytes_per_s; /* per direction; 0 with one socket */
  double intersocket_latency_s;
  double intersocket_p2p_bytes_per_s; /* GPU to GPU across sockets without NVLink */
  double staged_p2p_bytes_per_s, staged_p2p_latency_s;
} oct_profile_host;

typedef struct oct_profile_launch {
  double cpu_enqueue_s, kernel_pipelined_s, launch_and_sync_s;
  double graph_launch_s, graph_node_s, event_sync_s;
} oct_profile_launch;

typedef struct oct_profile_thermal {
  double tdp_w, idle_w, min_power_limit_w;
  double throttle_c, slowdown_c, shutdown_c, hbm_throttle_c;
  double nominal_hz, throttled_hz;
  double inlet_c, resistance_k_per_w, time_constant_s;
  double node_power_w;
} oct_profile_thermal;

typedef struct oct_profile_reliability {
  double gpu_failures_per_gpu_year, gpu_interruptions_per_gpu_year;
} oct_profile_reliability;

/* Host times of one engine preset: what a step or request costs on the CPU. */
typedef struct oct_engine_times {
  char *preset;                    /* "octet" … */
  gint64 step_host_ns;             /* per step */
  gint64 step_host_per_seq_ns;     /* per sequence in the step */
  gint64 request_in_ns;            /* arrival to queue: HTTP, tokenizer, checks */
  gint64 request_out_per_token_ns; /* device to client: detokenise, write */
  gint64 submit_lead_ns;   /* a step ahead is submitted this long before its predecessor ends */
  guint32 graph_max_batch; /* decode steps up to this batch run as a graph; 0 = none */
} oct_engine_times;

/* Constants of the price models, fitted to measured tables; sim/cost/README.md gives the formulas,
 * the ini files say what each was fitted to. Fractions are of the [gpu] peak and never above 1. */
typedef struct oct_gemm_fit {
  double peak, bandwidth; /* fractions */
  double fixed_s;
  double per_k_s;       /* latency of one step of the inner loop */
  double split_s;       /* splitting k over blocks */
  double single_row_s;  /* extra when m = 1 */
  double hot, hot_s;    /* slowdown of long kernels: factor 1 + hot x t / (t + hot_s) */
  double wave_rounding; /* 1 = a partial wave takes as long as a whole one */
  double quantise;      /* bandwidth fraction of quantising the activations */
} oct_gemm_fit;

typedef struct oct_moe_fit {
  double peak, bandwidth;
  double fixed_s, per_expert_s; /* per touched expert of the rank */
  double row_tile;              /* rows that one tile computes at least */
  double per_k_s;
  double activation; /* bandwidth fraction of permuting and activating */
  double per_pair_s; /* per routed token-expert pair of all ranks */
} oct_moe_fit;

typedef struct oct_decode_fit {
  double fixed_s;
  double wave_s; /* per wave of (sequence, KV head) blocks */
  double bandwidth;
  double overlap;           /* share of the shorter of the two that is not hidden */
  double l2_share, l2_time; /* KV that fits this share of L2 takes this fraction of its HBM time:
                               only in benchmark loops, because in a step the weights evict it */
  double split_s, split_context; /* split-KV reduction: half of it at this many tokens */
  double wave_rounding;
} oct_decode_fit;

typedef struct oct_prefill_fit {
  double fixed_s, peak;
  double pairs_per_token; /* extra query-key pairs that masking computes for nothing */
  double wave_s;          /* per wave of 128-query tiles */
  double bandwidth;
  double hot, hot_s;
  double serial; /* a lone tile's time relative to its share of the peak */
} oct_prefill_fit;

/* Collectives over a switch where no table was measured. A GPU moves `moved` bytes over its link.
 * Times are in latencies of the link ([nvlink] load_latency_s); fractions are of what NCCL counts
 * on for the link's generation (sim/cost/collectives.c).
 */
typedef struct oct_collective_fit {
  double fixed_latencies, per_gpu_latencies;
  double bandwidth, few_loss;  /* of a ring of n GPUs: bandwidth x (1 - few_loss / n) */
  double ramp, ramp_latencies; /* factor 1 + ramp x r / (t + r), t = moved / link rate */
  double switch_bandwidth, switch_ramp, switch_ramp_latencies; /* of a reduction in the switch */
} oct_collective_fit;

/* Kernels that were measured on this very machine, by their shape: groups [measured …], as
 * `octet calibrate` writes them. Where there are some, prices go through them and the fitted models
 * only carry from their shapes and points to others. */
typedef enum oct_timed_kind {
  OCT_TIMED_PRODUCT,    /* by m; shape: outputs n, inputs k; type: of the weights */
  OCT_TIMED_DECODE,     /* by sequences and context; heads, KV heads, width; of the cache */
  OCT_TIMED_MLA_DECODE, /* the same; heads, latent, rope */
  OCT_TIMED_PREFILL,    /* by tokens and cached tokens before; heads, KV heads, width */
  OCT_TIMED_VERIFY,     /* by sequences and tokens of each; heads, KV heads, width, context */
  OCT_TIMED_EXPERTS,    /* by tokens, uniform routing; experts, top-k, hidden, inner; weights */
  OCT_TIMED_NORM,       /* by rows; width */
  OCT_TIMED_ROTATE,     /* by tokens; heads, KV heads, width: rotation and cache write */
  OCT_TIMED_ACTIVATION, /* by rows; inner width */
  OCT_TIMED_SAMPLE,     /* by rows; vocabulary; at temperature 1 */
  OCT_TIMED_ROUTE,      /* by tokens; experts, top-k */
  OCT_TIMED_KINDS
} oct_timed_kind;

#define OCT_TIMED_POINTS_MAX 32 /* of an axis */
#define OCT_TIMED_SHAPE_MAX  4
#define OCT_TIMED_MAX        256 /* tables of a profile */

typedef struct oct_timed {
  oct_timed_kind kind;
  oct_dtype type; /* BF16 for kinds without one */
  guint32 shape[OCT_TIMED_SHAPE_MAX];
  guint32 n_x, n_y; /* n_y 1: there is one axis */
  double x[OCT_TIMED_POINTS_MAX], y[OCT_TIMED_POINTS_MAX];
  double seconds[OCT_TIMED_POINTS_MAX * OCT_TIMED_POINTS_MAX]; /* [n_x, n_y] */
} oct_timed;

/* How a kind is written: [measured NAME (TYPE) SHAPE…], and the names of its axes (NULL: it has no
 * second one). Static. */
typedef struct oct_timed_form {
  const char *name;
  gboolean typed;
  guint32 n_shape;
  const char *x, *y;
} oct_timed_form;
const oct_timed_form *oct_timed_form_of(oct_timed_kind kind);
/* The name of a table's group. Owned. */
char *oct_timed_group(const oct_timed *table);

/* Whole steps against the sum of their kernels, which overlap, share caches, warm the chip and wait
 * for each other: measured over priced, by tokens of the step. n = 0: not known, 1 everywhere.
 * Decodes in graphs have a second curve, of a shorter mean context: products of many sequences that
 * hardly wait for the cache run hotter, and so slower. Between both contexts linear, flat outside.
 * Steps that verify drafts have one of their own, and so have prompts beside decodes; without it
 * they are as others. */
typedef struct oct_step_ratio {
  oct_curve graph, eager, graph_short, verify, mixed;
  double graph_context, graph_short_context;
} oct_step_ratio;
/* A step as its ratio depends on it. */
typedef struct oct_ratio_step {
  gboolean graph, verifies; /* verifies: drafts, without prompts */
  gboolean mixed;           /* prompts beside decodes */
  double tokens, context;   /* context: the mean of its decodes, in a graph */
} oct_ratio_step;
double oct_step_ratio_of(const oct_step_ratio *ratio, const oct_ratio_step *step);
double oct_step_ratio_at(const oct_curve *curve, double tokens); /* linear; flat outside */

/* How a chip that has computed much is slower for a while; sim/cost/heat.h has the law. */
typedef struct oct_heat_law {
  double time_constant_s;  /* 0: not known, prices do not depend on what ran before */
  double threshold;        /* the level from which it slows anything down, below 1 */
  double prompts, decodes; /* how much slower at the highest level: 0.15 = 15 % longer */
  double flops_per_s;      /* of a GPU, whose level is the highest in the end */
} oct_heat_law;

typedef struct oct_profile {
  char *path; /* of the file that was read last */
  char *name, *title;
  /* Equal nodes that NICs join (oct_profile_join()): 1 as it is read. The GPUs, sockets and
   * switches below are of all of them, those of a node together. */
  guint32 n_nodes;
  double nic_latency_s; /* of a transfer from node to node */
  gboolean fictional;   /* imitates a report, no machine like it is known */
  oct_profile_gpu gpu;
  oct_profile_efficiency efficiency;
  oct_profile_own_kernels own_kernels;
  oct_gemm_fit gemm_fit[OCT_MATH_COUNT]; /* peak 0 = no such unit */
  oct_moe_fit moe_fit[OCT_MATH_COUNT];   /* likewise */
  oct_decode_fit decode_fit;
  oct_prefill_fit prefill_fit;
  /* With collectives.fitted; the one-shot all-reduce is an engine's own, in a graph. */
  oct_collective_fit collective_fit[OCT_COLLECTIVE_COUNT], oneshot_fit;
  oct_curve gemm_8192[OCT_MATH_COUNT]; /* seconds by m of one m x 8192 x 8192 product */
  oct_curve gemm_probe;                /* the same in BF16, measured on this very machine */
  oct_curve all_reduce_probe;          /* eager all-reduce of 2 GPUs, likewise */
  /* Seconds of one pinned copy by bytes, waited for; n 0: copy_latency_s and the rate. */
  oct_curve copy_to_device, copy_from_device;
  oct_curve moe[OCT_MOE_TABLE_COUNT][OCT_MOE_SPREAD_COUNT][OCT_MOE_ROUTING_COUNT];
  guint32 n_measured;
  oct_timed *measured; /* owned; in the order of the file's groups */
  oct_step_ratio step_ratio;
  oct_heat_law heat;
  oct_profile_nvlink nvlink;
  oct_profile_collectives collectives;
  oct_profile_moe_alltoall moe_alltoall;
  oct_profile_topology topology;
  oct_profile_pcie pcie;
  oct_profile_host host;
  oct_profile_launch launch;
  oct_profile_thermal thermal;
  oct_profile_reliability reliability;
  oct_engine_times engine;
} oct_profile;

/* Life cycle.
 * `name` is a profile's name ("b300-hgx8") or the path of an .ini file (it holds a '/' or ends in
 * ".ini"). Names are looked for in `dir`, or with NULL in oct_profile_dirs(). `preset` chooses the
 * host times of [engine]; NULL = the file's `default_preset`. Returns an owned profile, or NULL
 * with *error (OCT_PROFILE_ERROR). */
oct_profile *oct_profile_load(const char *name, const char *dir, const char *preset,
                              GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* From the text of one file; `label` names it in errors. A `base` is looked for in `dir`, as above.
 */
oct_profile *oct_profile_parse(const char *label, const char *text, gsize size, const char *dir,
                               const char *preset, GError **error) G_GNUC_WARN_UNUSED_RESULT;
void oct_profile_free(oct_profile *profile); /* accepts NULL */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(oct_profile, oct_profile_free)

/* Makes the profile that of so many nodes like it, each GPU with its NIC. FALSE with *error (RANGE)
 * when it has no NIC, or more GPUs than OCT_PROFILE_GPUS_MAX come together. 1 changes nothing. */
gboolean oct_profile_join(oct_profile *profile, guint32 n_nodes, double nic_latency_s,
                          GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Seconds of a copy from pinned memory to the GPU or back, alone and waited for: as measured by
 * size, proportional past the largest; without a table the latency and the bytes at their rate. */
double oct_profile_copy_s(const oct_profile *profile, gboolean to_device, double bytes);
/* The node that a GPU is in. */
static inline guint32
oct_profile_node_of(const oct_profile *profile, guint32 gpu) {
  return profile->n_nodes > 1 ? gpu / (profile->gpu.count / profile->n_nodes) : 0;
}

/* Inspect.
 * Folders that names are looked for in: the source tree's sim/profiles, then the installed one.
 * Borrowed, NULL-terminated. */
const char *const *oct_profile_dirs(void);
/* Names of the profiles in `dir` (NULL: in oct_profile_dirs()), sorted, without duplicates. Owned:
 * g_strfreev(). */
char **oct_profile_list(const char *dir);
/* Presets that the file (or its base) offers, in its order. Owned: g_strfreev(); NULL with *error.
 */
char **oct_profile_presets(const char *name, const char *dir,
                           GError **error) G_GNUC_WARN_UNUSED_RESULT;

#endif
