/* What a step needs on one GPU besides weights and cache.
 *
 * Activations are BF16. Buffers of attention and of the FFN take turns in one arena, so a layer
 * counts the larger of the two, and the widest layer of the stage counts for all. Per token:
 *
 *   always      residual, normed input, block output                        3 x hidden
 *   attn. res.  snapshots of the residual at every block so far (Kimi K3)   blocks x hidden
 *   GQA         q, k, v; output                       (2 q + 2 kv heads) x head width
 *   MLA         q latent, q, latent; k and v expanded for prefill; output (and its gate)
 *   KDA         q, k, v and gate, q, k, v after the convolution, decay in FP32, output
 *   dense       gate, up, product                                           3 x inner width
 *   MoE         router logits (FP32), shared experts as dense, latent in and out, and per routed
 *               row: input, gate, up, product, output. With expert parallelism a rank gets
 *               top-k / TP rows per token on average, and room for EP_ROOM times that.
 *
 * MLA also expands cached context for prefill chunk by chunk, MLA_CONTEXT_MAX tokens at a time
 * (vLLM's choice), and decode attention keeps partial results of SPLITS parts per sequence.
 */
#include "engine/sched/ledger.h"

#include "engine/base/assert.h"

#define BF16            2
#define EP_ROOM         2     /* assumed: uneven routing beyond it runs in several passes */
#define MLA_CONTEXT_MAX 65536 /* tokens; vLLM's workspace of chunked MLA prefill */
#define SPLITS          8     /* assumed: parts of a sequence's KV that run side by side */

static guint64
divide_up(guint64 a, guint64 b) {
  return (a + b - 1) / b;
}

static guint64
attention_token_values(const oct_attention_spec *a, guint32 tensor) {
  guint64 heads = divide_up(a->n_heads, tensor);
  guint64 values = 0;
  switch (a->kind) {
  case OCT_ATTENTION_GQA:
  case OCT_ATTENTION_WINDOW:
    values = (2 * heads + 2 * divide_up(a->n_kv_heads, tensor)) * a->head_dim;
    break;
  case OCT_ATTENTION_MLA:
    values = a->q_lora + heads * (a->qk_nope + a->qk_rope) + a->kv_lora + a->qk_rope +
             heads * (a->qk_nope + a->qk_rope + a->v_head) +
             heads * a->v_head * (a->output_gate ? 2 : 1);
    break;
  case OCT_ATTENTION_KDA:
    values = heads * a->head_dim * (4 + 3 + 2 + 1);
    break;
  case OCT_ATTENTION_COUNT:
    oct_assert_failed(__FILE__, __LINE__, "an attention has a kind");
  }
  return values;
}

static guint64
ffn_token_values(const oct_model_spec *spec, const oct_ffn_spec *f, const oct_parallel *p) {
  if (f->kind == OCT_FFN_DENSE)
    return 3 * divide_up(f->intermediate, p->tensor);
  guint64 shared =
      p->replicate_shared ? f->shared_intermediate : divide_up(f->shared_intermediate, p->tensor);
  guint64 width = f->kind == OCT_FFN_LATENT_MOE ? f->latent : spec->hidden;
  guint64 inner = f->moe_intermediate, rows = f->top_k;
  if (p->expert_parallel)
    rows = MIN(divide_up((guint64)EP_ROOM * f->top_k, p->tensor), (guint64)f->top_k * p->data);
  else
    inner = divide_up(inner, p->tensor);
  return 2 * (guint64)f->n_experts + 3 * shared + 2 * (guint64)f->latent +
         rows * (2 * width + 3 * inner);
}

guint64
oct_ledger_activations(const oct_ledger_config *config, guint32 stage) {
  const oct_model_spec *spec = config->spec;
  const oct_parallel *p = &config->parallel;
  guint32 first, count;
  oct_parallel_stage(spec, p, stage, &first, &count);
  guint64 widest = 0, beside = 0;
  for (guint32 l = first; l < first + count; l++) {
    const oct_attention_spec *a = &spec->attention[spec->layers[l].attention];
    const oct_ffn_spec *f = &spec->ffn[spec->layers[l].ffn];
    guint64 heads = divide_up(a->n_heads, p->tensor);
    widest = MAX(widest, MAX(attention_token_values(a, p->tensor), ffn_token_values(spec, f, p)));
    if (a->kind == OCT_ATTENTION_KDA)
      continue;
    gboolean mla = a->kind == OCT_ATTENTION_MLA;
    guint64 value_width = mla ? a->kv_lora : a->head_dim;
    guint64 bytes = SPLITS * (guint64)config->max_num_seqs * heads * (value_width + 1) * 4;
    if (mla)
      bytes += BF16 * (guint64)MIN(config->max_model_len, MLA_CONTEXT_MAX) *
               (a->kv_lora + a->qk_rope + heads * (a->qk_nope + a->qk_rope + a->v_head));
    beside = MAX(beside, bytes);
  }
  guint64 snapshots = spec->attn_res_block > 0 ? divide_up(first + count, spec->attn_res_block) : 0;
  guint64 token_values = widest + (3 + snapshots) * spec->hidden;
  return BF16 * token_values * config->max_num_batched_tokens + beside;
}

/* Rows that are sampled, each over the whole vocabulary: FP32 logits, and FP32 values and indices
 * for the sorts of top-k and top-p. Only the last stage samples. */
guint64
oct_ledger_logits(const oct_ledger_config *config, guint32 stage) {
  if (stage + 1 < config->parallel.pipeline)
    return 0;
  return 12 * (guint64)config->max_num_seqs * config->spec->vocab;
}

/* ---------------------------------------------------------------- graphs and communication */

#define KERNELS_PER_LAYER 12 /* assumed: fused kernels of one layer */
/* Measured on an H200 (driver 580.159, CUDA 12): graphs of 1,000 and 4,000 small kernels take 2.1
 * and 2.6 KiB a node, the first one 12 MiB more. Kernels with more arguments take more: rounded. */
#define GRAPH_NODE_BYTES  4096
#define GRAPH_FIRST_BYTES (G_GUINT64_CONSTANT(12) << 20)

/* One graph per captured batch size: 1, 2, 4, then every 8 up to 256, then every 16. */
guint64
oct_ledger_graphs(const oct_ledger_config *config, guint32 stage) {
  guint32 max = MIN(config->graph_max_batch, config->max_num_seqs), first, count;
  if (max == 0)
    return 0;
  guint64 sizes = max >= 4 ? 3 : max >= 2 ? 2 : 1;
  sizes += divide_up(MIN(max, 256), 8) + (max > 256 ? divide_up(max - 256, 16) : 0);
  oct_parallel_stage(config->spec, &config->parallel, stage, &first, &count);
  return GRAPH_FIRST_BYTES + sizes * (count + 1) * KERNELS_PER_LAYER * GRAPH_NODE_BYTES;
}

/* Measured on two H200 with NCCL 2.28.9, without NVLink multicast: the first communicator takes
 * 768 MiB with its first all-reduce, a second one 486 MiB. Assumed for larger groups too. */
#define COMMUNICATOR_BYTES (G_GUINT64_CONSTANT(486) << 20)
#define NCCL_FIRST_BYTES   ((G_GUINT64_CONSTANT(768) << 20) - COMMUNICATOR_BYTES)
#define ALL_REDUCE_MAX     (G_GUINT64_CONSTANT(64) << 20) /* largest message of our own kernel */

/* A communicator per group of ranks; two buffers that peers write into for the small all-reduces;
 * two of what a stage hands on (attention residuals included); and with data-parallel attention
 * what experts get and give back, a token once for each rank that has an expert for it. */
guint64
oct_ledger_communication(const oct_ledger_config *config, guint32 stage) {
  const oct_model_spec *spec = config->spec;
  const oct_parallel *p = &config->parallel;
  guint64 tokens = config->max_num_batched_tokens, width = spec->hidden, bytes = 0;
  guint32 first, count, top_k = 0;
  oct_parallel_stage(spec, p, stage, &first, &count);
  for (guint32 i = 0; i < spec->n_ffn; i++) {
    if (spec->ffn[i].kind == OCT_FFN_LATENT_MOE)
      width = spec->hidden + spec->ffn[i].latent;
    top_k = MAX(top_k, spec->ffn[i].top_k);
  }
  if (p->tensor > 1)
    bytes += COMMUNICATOR_BYTES + 2 * MIN(tokens * width * BF16, ALL_REDUCE_MAX);
  if (p->pipeline > 1) {
    guint64 vectors =
        1 + (spec->attn_res_block > 0 ? divide_up(first + count, spec->attn_res_block) : 0);
    bytes += COMMUNICATOR_BYTES + 2 * tokens * vectors * spec->hidden * BF16;
  }
  if (p->data > 1 && p->expert_parallel) {
    guint32 ranks = p->data * p->tensor;
    guint64 row = width > spec->hidden ? width - spec->hidden : spec->hidden;
    bytes += COMMUNICATOR_BYTES + 2 * tokens * MIN(top_k, ranks) * row * BF16;
  } else if (p->data > 1) {
    bytes += COMMUNICATOR_BYTES;
  }
  if (bytes > 0)
    bytes += NCCL_FIRST_BYTES;
  return bytes;
}
