/* The memory ledger: what one GPU's memory is spent on, term by term, and how many pages, state
 * slots and expert slots are left to give. It is made before an instance is opened, printed at
 * start, and refuses a layout that does not fit with the whole sum in its message.
 *
 * All bytes are per GPU unless a name says `host`. Ranks of one stage hold equally much, stages do
 * not: there is one column of terms per stage, and every count of the plan is the minimum over
 * stages, since page ids are valid on all of them. Counts are per KV domain.
 *
 * What is computed and what is assumed:
 *  - weights, pages, state and experts: exact, from the model (engine/model/spec.h);
 *  - activations: the buffers of one step of max_num_batched_tokens, formula in ledger-work.c;
 *  - context, graphs, communication: from what was measured on H200, the constants say how.
 *
 * What is left for the cache is split so (ledger.c gives the order):
 *  1. A recurrent model's live sequences: a state slot for each of max_num_seqs, and one more for
 *     every OCT_LEDGER_DRAIN of them, whose predecessor still drains behind a step in flight; at
 *     most half of the cache.
 *  2. With prefix caching, snapshots: one for every OCT_LEDGER_SNAPSHOT_TOKENS tokens that the
 *     pages hold, at most half of what is then left. A page without a snapshot at or above it
 *     cannot be hit, a snapshot without its pages neither.
 *  3. Sliding-window pages: what max_num_seqs sequences and the chunks in flight can use; with
 *     prefix caching at least a quarter as many pages as the full groups have, because pages that
 *     the window has left are what a later hit needs.
 *  4. The rest: pages of full attention.
 * `state_memory_ratio` replaces 1 and 2 by a share of the cache. Plain data; any thread.
 */
#ifndef OCT_SCHED_LEDGER_H
#define OCT_SCHED_LEDGER_H

#include <glib.h>

#include "engine/backend.h"

#define OCT_LEDGER_SNAPSHOT_TOKENS 8192
#define OCT_LEDGER_DRAIN           16
/* Measured on an H200: 621 MiB with a context and its first kernels, 64 MiB more with a first
 * product of cuBLAS. */
#define OCT_LEDGER_CONTEXT_BYTES (G_GUINT64_CONSTANT(685) << 20)

typedef struct oct_ledger_config {
  const oct_model_spec *spec; /* borrowed */
  oct_parallel parallel;      /* legal: oct_parallel_check() */
  oct_dtype kv_dtype;
  guint32 block_size;             /* tokens per page before decode-context parallelism */
  guint32 max_num_seqs;           /* per KV domain */
  guint32 max_num_batched_tokens; /* per KV domain and step */
  guint32 max_model_len;          /* 0 = the model's */
  guint32 depth;                  /* unfinished steps: pipeline stages + run-ahead */
  guint32 graph_max_batch;        /* decode steps up to this batch run as graphs; 0 = eager */
  gboolean prefix_caching;
  guint64 device_bytes;            /* of one GPU, as software sees it */
  double gpu_memory_utilization;   /* share of them that this instance may use */
  guint32 num_gpu_blocks_override; /* pages of full attention per domain; 0 = what fits */
  double state_memory_ratio;       /* share of the cache for state slots; negative = as above */
  guint64 expert_cache_bytes;      /* per GPU, for routed experts; 0 = all are resident */
  guint64 kv_offloading_bytes;     /* host tier of the whole instance; 0 = none */
  guint64 host_bytes;              /* host memory of the node; 0 = not known, not checked */
} oct_ledger_config;

/* Fills in vLLM's defaults (utilization 0.92, block 16, BF16 KV, prefix caching on); the caller
 * sets spec and device_bytes. */
void oct_ledger_config_default(oct_ledger_config *config);

typedef enum oct_ledger_term {
  OCT_LEDGER_ATTENTION, /* weights, by class of oct_weights */
  OCT_LEDGER_DENSE_FFN,
  OCT_LEDGER_EXPERTS, /* all of the rank's; or its expert slots, and room for those of one layer
                         that a step brings */
  OCT_LEDGER_SHARED_EXPERTS,
  OCT_LEDGER_ROUTER,
  OCT_LEDGER_LATENT,
  OCT_LEDGER_NORMS,
  OCT_LEDGER_EMBEDDING,
  OCT_LEDGER_HEAD,
  OCT_LEDGER_ACTIVATIONS, /* workspace of the widest layer, attention residuals, split KV */
  OCT_LEDGER_LOGITS,
  OCT_LEDGER_GRAPHS,
  OCT_LEDGER_COMMUNICATION,
  OCT_LEDGER_CONTEXT,
  OCT_LEDGER_PAGES, /* of all page groups; oct_ledger_stage.group_bytes tells them apart */
  OCT_LEDGER_STATES,
  OCT_LEDGER_UNUSED,  /* less than a page, or left over on a stage that is not the tightest */
  OCT_LEDGER_RESERVE, /* 1 - gpu_memory_utilization */
  OCT_LEDGER_TERMS
} oct_ledger_term;
#define OCT_LEDGER_FIRST_CACHE_TERM OCT_LEDGER_PAGES

const char *oct_ledger_term_name(oct_ledger_term term); /* "attention", "KV pages" …; static */

/* One stage's column: its terms add up to device_bytes. */
typedef struct oct_ledger_stage {
  guint32 first_layer, n_layers;
  guint64 terms[OCT_LEDGER_TERMS];
  guint64 unit_bytes[OCT_MODEL_GROUPS_MAX];  /* a page, or a state slot, of the group */
  guint64 group_bytes[OCT_MODEL_GROUPS_MAX]; /* all of them */
} oct_ledger_stage;

typedef struct oct_ledger {
  oct_ledger_config config;
  oct_memory_plan plan;
  guint32 n_stages, tightest; /* stage that binds the plan */
  oct_ledger_stage stages[OCT_PARALLEL_STAGES_MAX];
  oct_layer_group groups[OCT_MODEL_GROUPS_MAX];
  guint32 page_tokens;  /* block_size x decode_context */
  guint64 cache_tokens; /* per domain: what the pages of full attention hold; 0 = no such group */
  guint32 live_slots, snapshot_slots; /* parts of the state slots, per domain */
  guint32 rank_experts;               /* routed experts per layer of a rank when all are resident */
  guint64 host_unit_bytes[OCT_MODEL_GROUPS_MAX]; /* replicated groups counted once */
  guint64 host_cache_bytes;                      /* all domains */
  guint64 host_expert_bytes; /* routed experts pinned in host memory when slots are limited */
} oct_ledger;

/* Makes the ledger. FALSE with *error (OCT_ENGINE_ERROR_CONFIG), which has the whole sum, when the
 * model, one step's chunk of pages or a state slot does not fit, or when the host's memory does
 * not. Sizes out of their limits are OCT_BASE_ERROR_LIMIT, illegal layouts OCT_MODEL_ERROR_LAYOUT.
 */
gboolean oct_ledger_make(const oct_ledger_config *config, oct_ledger *ledger,
                         GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Weights, and all that is not cache, of a stage. */
guint64 oct_ledger_weights(const oct_ledger *ledger, guint32 stage);
guint64 oct_ledger_fixed(const oct_ledger *ledger, guint32 stage);
/* The table printed at start, GB = 1e9 bytes. Owned. */
char *oct_ledger_format(const oct_ledger *ledger) G_GNUC_WARN_UNUSED_RESULT;

/* Inside (ledger-work.c): what a step needs besides weights and cache, per GPU. */
guint64 oct_ledger_activations(const oct_ledger_config *config, guint32 stage);
guint64 oct_ledger_logits(const oct_ledger_config *config, guint32 stage);
guint64 oct_ledger_graphs(const oct_ledger_config *config, guint32 stage);
guint64 oct_ledger_communication(const oct_ledger_config *config, guint32 stage);

#endif
