/* Which attention kernel serves which part of a batch, and their workspace. */
#include "kernels/cuda/attend.cuh"

/* Keys of a split at least, and with a fixed order always. */
#define SPLIT_KEYS       64
#define BLOCK_KEYS       128
#define FIXED_SPLIT_KEYS 1024
#define SPLITS_MAX       128
#define CLUSTER_MAX      16 /* splits that a cluster of blocks can have */

static attend_args
make_args(const oct_cuda_attention *c) {
  attend_args a = {};
  a.batch = *c->batch;
  a.kv = c->kv;
  a.tables = c->tables;
  a.n_heads = c->n_heads;
  a.group = c->kv.n_heads > 0 ? c->n_heads / c->kv.n_heads : 0;
  a.window = c->window;
  a.scale = c->scale;
  a.soft_cap = c->soft_cap;
  a.sinks = c->sinks;
  a.q = c->q;
  a.out = c->out;
  a.q_stride = c->q_stride;
  a.out_stride = c->out_stride;
  a.value_width = c->kv.width;
  a.n_splits = 1;
  return a;
}

/* Splits for the least time: blocks run in waves over the multiprocessors, and each costs as much
 * as BLOCK_KEYS more keys beside its own, as does joining the splits. Of nearly equal times the one
 * with more splits, since contexts differ. */
static void
choose_splits(const oct_cuda_queue *queue, uint32_t max_context, uint32_t window, attend_args *a) {
  uint32_t context = window != 0 && window + 16 < max_context ? window + 16 : max_context;
  if ((queue->flags & OCT_CUDA_FIXED_ORDER) != 0) {
    a->chunk = FIXED_SPLIT_KEYS;
    while (ceil_div(context, a->chunk) > SPLITS_MAX)
      a->chunk *= 2;
    a->n_splits = ceil_div(context, a->chunk);
    return;
  }
  bool is_latent = !a->kv.has_values;
  uint32_t heads = a->kv.width > 128 && !is_latent ? 8 : 16, most = SPLITS_MAX;
  uint32_t pairs = a->n_seqs * a->kv.n_heads * ceil_div(a->group, heads);
  uint32_t slots = queue->sm_count * (is_latent ? 1 : oct_attend_decode_blocks(*a));
  double least = 1e300;
  if (most > ceil_div(context, SPLIT_KEYS))
    most = ceil_div(context, SPLIT_KEYS);
  for (uint32_t s = 1; s <= most; s++) {
    double time = (double)ceil_div(pairs * s, slots) * (ceil_div(context, s) + BLOCK_KEYS) +
                  (s > 1 ? BLOCK_KEYS : 0);
    if (time < least * 1.08)
      a->n_splits = s;
    least = time < least ? time : least;
  }
  /* With a block a multiprocessor at most, those of a sequence and head join without a second
   * kernel; where they share multiprocessors, clusters spread too unevenly to pay. */
  a->in_cluster = !is_latent && a->n_splits > 1 && a->n_splits <= CLUSTER_MAX &&
                  pairs * a->n_splits <= queue->sm_count && queue->capability >= 90;
}

/* The batch in two parts: sequences of one token, and others. */
struct attend_plan {
  attend_args decode, prefill; /* n_seqs 0: no part */
  bool is_plain, is_hopper;
};

static attend_plan
make_plan(const oct_cuda_queue *queue, const oct_cuda_attention *c) {
  attend_plan plan = {};
  attend_args a = make_args(c);
  uint32_t n_decode = c->max_queries <= 1 ? c->batch->n_seqs : c->n_decode;
  bool decode = oct_attend_decode_can(a, c->type) && c->path != OCT_CUDA_ATTENTION_PLAIN &&
                c->path != OCT_CUDA_ATTENTION_PREFILL && c->path != OCT_CUDA_ATTENTION_HOPPER;
  plan.is_hopper = oct_attend_hopper_can(queue, a, c->type) &&
                   (c->path == OCT_CUDA_ATTENTION_AUTO || c->path == OCT_CUDA_ATTENTION_HOPPER);
  bool prefill = plan.is_hopper ||
                 (oct_attend_prefill_can(a, c->type) && c->path != OCT_CUDA_ATTENTION_PLAIN &&
                  c->path != OCT_CUDA_ATTENTION_DECODE);
  if (!decode)
    n_decode = 0; /* the prefill kernel takes them too */
  if (n_decode < c->batch->n_seqs && !prefill) {
    plan.is_plain = true;
    a.n_seqs = c->batch->n_seqs;
    plan.prefill = a;
    return plan;
  }
  plan.decode = plan.prefill = a;
  plan.decode.n_seqs = n_decode;
  plan.prefill.first_seq = n_decode;
  plan.prefill.n_seqs = c->batch->n_seqs - n_decode;
  if (n_decode > 0)
    choose_splits(queue, c->max_context, c->window, &plan.decode);
  return plan;
}

size_t
oct_cuda_attention_workspace(const oct_cuda_queue *queue, const oct_cuda_attention *call) {
  attend_plan plan = make_plan(queue, call);
  if (plan.decode.n_seqs == 0 || plan.decode.n_splits == 1 || plan.decode.in_cluster)
    return 0;
  return (size_t)plan.decode.n_seqs * call->n_heads * plan.decode.n_splits * (call->kv.width + 2) *
         sizeof(float);
}

uint32_t
oct_cuda_attention_paths(const oct_cuda_queue *queue, const oct_cuda_attention *call) {
  attend_plan plan = make_plan(queue, call);
  if (plan.is_plain)
    return 1u << OCT_CUDA_ATTENTION_PLAIN;
  return (plan.decode.n_seqs > 0 ? 1u << OCT_CUDA_ATTENTION_DECODE : 0) |
         (plan.prefill.n_seqs == 0 ? 0
          : plan.is_hopper         ? 1u << OCT_CUDA_ATTENTION_HOPPER
                                   : 1u << OCT_CUDA_ATTENTION_PREFILL);
}

/* Rows of padding tokens to zero; a block per token. */
static __global__ void
clear_padding(attend_args a) {
  await_predecessors();
  if (a.batch.token_seq[blockIdx.x] != OCT_CUDA_NONE)
    return;
  bf16 *out = (bf16 *)a.out + blockIdx.x * a.out_stride;
  for (uint32_t c = threadIdx.x; c < a.n_heads * a.value_width; c += blockDim.x)
    out[c] = from_float<bf16>(0);
}

int
oct_cuda_attend(const oct_cuda_queue *queue, const oct_cuda_attention *call) {
  if (call->batch->n_tokens == 0 || call->batch->n_seqs == 0)
    return OCT_CUDA_OK;
  if (call->kv.n_heads == 0 || call->n_heads % call->kv.n_heads != 0 || call->kv.width > 512 ||
      (call->kv.page_tokens & (call->kv.page_tokens - 1)) != 0)
    return OCT_CUDA_UNSUPPORTED;
  attend_plan plan = make_plan(queue, call);
  if (plan.is_plain)
    return oct_attend_plain(queue, call->type, plan.prefill);
  if (oct_cuda_attention_workspace(queue, call) > call->workspace_bytes)
    return OCT_CUDA_UNSUPPORTED;
  plan.decode.partial = (float *)call->workspace;
  int error = OCT_CUDA_OK;
  if (plan.prefill.n_seqs > 0) {
    error = launch(queue, clear_padding, dim3(call->batch->n_tokens), dim3(128), 0, plan.prefill);
    if (error == OCT_CUDA_OK)
      error = plan.is_hopper ? oct_attend_hopper(queue, plan.prefill)
                             : oct_attend_prefill(queue, plan.prefill);
  }
  if (error == OCT_CUDA_OK && plan.decode.n_seqs > 0)
    error = oct_attend_decode(queue, plan.decode);
  return error;
}

/* ---------------------------------------------------------------- latent attention */

static attend_args
make_mla_args(const oct_cuda_mla *c) {
  attend_args a = {};
  a.batch = *c->batch;
  a.kv = c->kv;
  a.kv.has_values = false;
  a.tables = c->tables;
  a.n_heads = a.group = c->n_heads;
  a.scale = c->scale;
  a.q = c->q;
  a.out = c->out;
  a.q_stride = (size_t)c->n_heads * c->kv.width;
  a.out_stride = (size_t)c->n_heads * c->lora;
  a.value_width = c->lora;
  a.n_seqs = c->batch->n_seqs;
  a.n_splits = 1;
  return a;
}

/* Whether the kernel of its size serves the call; and the splits, of batches of single tokens. */
static bool
plan_latent(const oct_cuda_queue *queue, const oct_cuda_mla *call, attend_args *a) {
  *a = make_mla_args(call);
  if (call->path == OCT_CUDA_ATTENTION_PLAIN || !oct_attend_latent_can(queue, *a, call->type))
    return false;
  if (call->max_queries <= 1)
    choose_splits(queue, call->max_context, 0, a);
  return true;
}

size_t
oct_cuda_mla_workspace(const oct_cuda_queue *queue, const oct_cuda_mla *call) {
  attend_args a;
  if (!plan_latent(queue, call, &a) || a.n_splits == 1)
    return 0;
  return (size_t)a.n_seqs * a.n_heads * a.n_splits * (call->lora + 2) * sizeof(float);
}

uint32_t
oct_cuda_mla_paths(const oct_cuda_queue *queue, const oct_cuda_mla *call) {
  attend_args a;
  return 1u << (plan_latent(queue, call, &a) ? OCT_CUDA_ATTENTION_DECODE
                                             : OCT_CUDA_ATTENTION_PLAIN);
}

int
oct_cuda_mla_attend(const oct_cuda_queue *queue, const oct_cuda_mla *call) {
  if (call->batch->n_tokens == 0 || call->batch->n_seqs == 0)
    return OCT_CUDA_OK;
  if (call->kv.n_heads != 1 || call->kv.width != call->lora + call->rope || call->lora > 512)
    return OCT_CUDA_UNSUPPORTED;
  attend_args a;
  if (!plan_latent(queue, call, &a))
    return oct_attend_plain(queue, call->type, a);
  if (oct_cuda_mla_workspace(queue, call) > call->workspace_bytes)
    return OCT_CUDA_UNSUPPORTED;
  a.partial = (float *)call->workspace;
  return oct_attend_latent(queue, a);
}
