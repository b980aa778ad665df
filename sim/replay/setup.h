/* From what a user asks for to what can run: model, node, memory, placement, world.
 *
 * Options say what was asked; a setup is what came of it, with every figure that the report names.
 * Equal options give equal setups. The world is made apart, because SimGrid has one per process: a
 * parent can make setups (to refuse early, to print) and leave the worlds to its children.
 */
#ifndef OCT_SIM_REPLAY_SETUP_H
#define OCT_SIM_REPLAY_SETUP_H

#include "engine/model/spec.h"
#include "engine/sched/engine.h"
#include "engine/sched/ledger.h"
#include "sim/cost/cost.h"
#include "sim/platform/platform.h"
#include "sim/profile.h"
#include "sim/replay/speculation.h"
#include "sim/replay/engine-preset.h"
#include "sim/replay/drive.h"
#include "sim/scenario/scenario.h"

typedef enum oct_replay_backend { OCT_REPLAY_SIMGRID, OCT_REPLAY_MOCK } oct_replay_backend;

/* A GPU with at least this much memory serves larger batches unless told otherwise, as in vLLM. */
#define OCT_SETUP_LARGE_GPU_BYTES          70e9
#define OCT_SETUP_LARGE_MAX_NUM_SEQS       256u
#define OCT_SETUP_LARGE_MAX_BATCHED_TOKENS 8192u

/* Plain data; strings are borrowed. */
typedef struct oct_setup_options {
  const char *model;   /* zoo name or path */
  const char *zoo_dir; /* NULL = built in */
  const char *node;    /* profile name or path; mock may do without: NULL */
  const char *preset;  /* host times; NULL = the profile's default */
  oct_replay_backend backend;
  const char *description; /* a world of backends/registry.h in place of it; NULL = none */
  guint32 n_nodes;         /* like `node`, joined by their NICs; 0 = 1 */
  gint64 nic_latency_ns;   /* of a transfer between them */
  guint32 n_replicas;
  guint32 n_prefill;      /* of them compute prompts only; 0 = each does all */
  guint32 prefill_tensor; /* tensor ranks of those; 0 = as the others */
  oct_routing_rule router;
  char *const *scenarios; /* files, NULL-terminated; borrowed; NULL = none */
  /* parallel (tensor 0 = all GPUs that a replica can have), kv_dtype, block_size, eager,
   * max_num_seqs (0 = by the GPU), max_num_batched_tokens (0), max_model_len (0 = what the model
   * and the cache allow), run_ahead, policy, preemption, state_snapshot_interval,
   * long_prefill_threshold, decode_gap_max_ns, queue_max, no_forward. */
  oct_engine_config engine;
  int prefix_caching; /* 1 on, 0 off, -1 = on but for models with recurrent state, as vLLM */
  /* Without a profile: memory of each GPU that the world has; 0 = not known, and the mock's pages
   * are planned. */
  guint64 device_bytes;
  double gpu_memory_utilization;
  guint32 num_gpu_blocks_override;
  double state_memory_ratio;
  guint64 expert_cache_bytes, kv_offloading_bytes;
  guint64 swap_space_bytes; /* per GPU: the old name of the host tier; 0 = not given */
  /* How experts that are not resident are kept: engine.experts, and a file with one line of numbers
   * per layer in place of an assumed popularity; NULL = none. Reads them in place, or loads them.
   */
  const char *expert_histogram;
  gboolean expert_load;
  oct_moe_kernel moe_kernel;
  double routing_alpha;
  gboolean routing_balanced;
  const char *routing_file; /* engine/model/expert-counts.h; NULL = none */
  const char *speculative;  /* --speculative-config; NULL = none */
  const char *draft_model;  /* where the model that it names is; NULL = by that name */
  double cost_scale;        /* of steps on simgrid, as in oct_cost_options; 0 = 1 */
  /* The engine that is imitated; an empty name = none but the profile's host times. Whoever chooses
   * one calls oct_setup_imitate(). */
  oct_engine_preset engine_preset;
  /* Storage of dense weights and of experts, in place of the model's; OCT_DTYPE_NONE = its own. */
  oct_dtype weight_type, expert_type;
  gboolean whole_norms; /* as in oct_cost_options: a shape that the model's spec cannot say */
  gboolean exact;       /* every step through the solver */
  /* The backend does not check that the engine keeps its pages apart
   * (oct_shadow_options.track_pages), nor the records of its steps: for many runs of what others
   * run checked. */
  gboolean unchecked;
  guint64 seed;
} oct_setup_options;

/* Assumed where nobody says: the size of an RDMA write through one switch. */
#define OCT_SETUP_NIC_LATENCY_NS 5000

void oct_setup_options_default(oct_setup_options *options);
/* Takes the preset's policy, preemption, scheduling, memory share and graphs over what stands in
 * *options; what is set afterwards counts. */
void oct_setup_imitate(oct_setup_options *options, const oct_engine_preset *preset);

typedef struct oct_setup {
  oct_setup_options options;
  oct_model_spec *spec; /* owned */
  oct_profile *profile; /* owned; NULL without a node */
  oct_platform
      *platform; /* owned; its resources are those of oct_setup_read_use(); NULL likewise */
  gboolean has_ledger;
  oct_ledger ledger;        /* of each replica */
  oct_engine_config engine; /* complete but for devices, seed, log and listener */
  guint16 *devices;         /* [n_replicas x ranks], owned */
  /* With options.prefill_tensor: what a prefill replica is, and where. Their places in `devices`
   * repeat as many of these as fit. */
  oct_engine_config prefill_engine;
  guint16 *prefill_devices; /* [n_prefill x ranks of it], owned; NULL = as the others */
  double *expert_histogram; /* owned; engine.experts.histogram */
  double *routing_weights;  /* owned; popularity by rank of options.routing_file; NULL = none */
  guint32 n_routing_weights;
  double *routing_counts; /* owned; [n_layers, n_routing_weights] of the same file; NULL = none */
  oct_speculative speculative;
  oct_model_spec *draft_spec; /* owned; NULL without a draft model */
  guint64 draft_cache_bytes;  /* of a GPU, where there is a ledger */
  oct_scenario *scenario;     /* owned; NULL = none */
  GPtrArray *warnings;        /* char *, owned */
} oct_setup;

/* FALSE with *error: OCT_MODEL_ERROR, OCT_PROFILE_ERROR, OCT_ENGINE_ERROR, OCT_REPLAY_ERROR. */
gboolean oct_setup_make(const oct_setup_options *options, oct_setup *setup,
                        GError **error) G_GNUC_WARN_UNUSED_RESULT;
void oct_setup_clear(oct_setup *setup);

/* The world that the engines run in; owned. NULL with *error, also where simgrid is not built in.
 */
oct_world *oct_setup_world(const oct_setup *setup, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* What a scenario needs of the machine: fills *machine, which borrows the setup. FALSE: this is no
 * simulated node, and scenarios are of traffic alone. */
gboolean oct_setup_machine(oct_setup *setup, oct_machine *machine);
/* The node as placement sees it. */
void oct_setup_node_shape(const oct_profile *profile, oct_node_shape *node);

/* Resources of a simgrid world, for oct_drive_config.read_use; NULL on mock. */
typedef void (*oct_read_use_fn)(oct_world *world, guint *n, double *moved, gint64 *delayed_ns);
oct_read_use_fn oct_setup_read_use(const oct_setup *setup);

/* What the engine that is imitated does to prices: writes over scale (times cost_scale),
 * expert_time, and how collectives, norms and shared experts run. */
void oct_setup_cost_options(const oct_setup *setup, oct_cost_options *options);

/* "sm", "hbm", "nvlink-up" …; static. */
const char *oct_setup_resource_kind(oct_resource_kind kind);

#endif
