/* Which attention kernel serves which part of a batch, and their workspace. */
#include "kernels/cuda/attend.cuh"

#define CLUSTER_KEYS 8192 /* of a context at most that a cluster goes through */

static attend_args
make_args(const oct_cuda_attention *c) {
  attend_args a = {};
  a.batch = *c->batch;
  a.kv = c->kv;
  a.tables = c->tables;
  a.n_heads = a.own_heads = c->n_heads;
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
  a.early = c->settled;
  a.max_queries = c->max_queries;
  return a;
}

/* Runs of heads that a block takes, of a sequence. */
static uint32_t
runs_of(const attend_args &a) {
  return a.kv.n_heads * ceil_div(a.group, oct_attend_decode_heads(a));
}

static uint32_t
seen_context(uint32_t max_context, uint32_t window) {
  return window != 0 && window + 16 < max_context ? window + 16 : max_context;
}

/* How blocks share the contexts. With few sequences and heads, clusters of blocks: a split for
 * each, joined through shared memory. Otherwise as many blocks as run at a time have equal shares
 * of all contexts, however long each is. */
void
oct_attend_share_out(const oct_cuda_queue *queue, uint32_t max_context, attend_args *a) {
  uint32_t context = seen_context(max_context, a->window);
  uint32_t pairs = a->n_seqs * runs_of(*a), units = ceil_div(context, OCT_ATTEND_UNIT);
  if ((queue->flags & OCT_CUDA_FIXED_ORDER) != 0) {
    a->chunk = OCT_ATTEND_CHUNK;
    a->n_splits = ceil_div(context, a->chunk);
    if (a->n_splits > OCT_ATTEND_CHUNKS)
      a->n_splits = OCT_ATTEND_CHUNKS;
    return;
  }
  uint32_t splits = units < OCT_ATTEND_CLUSTER ? units : OCT_ATTEND_CLUSTER;
  if (queue->capability >= 90 && pairs * splits <= queue->sm_count && context <= CLUSTER_KEYS) {
    a->n_splits = splits;
    a->in_cluster = splits > 1;
    return;
  }
  uint32_t slots = queue->sm_count * oct_attend_decode_blocks(*a);
  uint64_t most = (uint64_t)pairs * units;
  a->n_shares = most < slots ? (uint32_t)most : slots;
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
  /* In a fixed order a token's sum is the same one alone and within a run: one kernel has both. */
  bool is_fixed = (queue->flags & OCT_CUDA_FIXED_ORDER) != 0;
  if (is_fixed && c->path == OCT_CUDA_ATTENTION_AUTO && prefill)
    decode = false;
  if (!decode)
    n_decode = 0; /* the prefill kernel takes them too */
  if (n_decode < c->batch->n_seqs && !prefill) {
    plan.is_plain = true;
    a.n_seqs = c->batch->n_seqs;
    plan.prefill = a;
    return plan;
  }
  if (c->store != NULL && n_decode == c->batch->n_seqs &&
      oct_attend_decode_can_store(a, *c->store)) {
    a.angles = c->store->angles;
    a.k = c->store->k;
    a.v = c->store->v;
    a.k_stride = c->store->k_stride;
    a.v_stride = c->store->v_stride;
    a.q_norm = c->store->q_norm;
    a.k_norm = c->store->k_norm;
    a.eps = c->store->eps;
  }
  plan.decode = plan.prefill = a;
  plan.decode.n_seqs = n_decode;
  plan.prefill.first_seq = n_decode;
  plan.prefill.n_seqs = c->batch->n_seqs - n_decode;
  /* Few sequences have long contexts read by all blocks, in parts of one length everywhere. */
  if (is_fixed && plan.is_hopper)
    plan.prefill.n_splits = ceil_div(c->max_context, OCT_ATTEND_PART);
  if (n_decode > 0)
    oct_attend_share_out(queue, c->max_context, &plan.decode);
  return plan;
}

/* Of so many parts. */
static size_t
part_bytes(const attend_args &a, size_t n) {
  return n * oct_attend_decode_heads(a) * (a.kv.width + 2) * sizeof(float);
}

static bool
has_parts(const attend_args &a) {
  return a.n_seqs > 0 && !a.in_cluster && (a.n_shares > 0 || a.n_splits > 1);
}

/* Grows with sequences and keys. In a fixed order those of some sequences do, which then go at a
 * time. */
size_t
oct_attend_decode_bytes(const attend_args &a) {
  if (!has_parts(a))
    return 0;
  if (a.n_shares > 0)
    return OCT_ATTEND_COUNTS + part_bytes(a, 2 * a.n_shares);
  size_t one = part_bytes(a, runs_of(a) * a.n_splits), all = a.n_seqs * one;
  size_t most = one > OCT_CUDA_FIXED_BYTES ? one : OCT_CUDA_FIXED_BYTES;
  return OCT_ATTEND_COUNTS + (all < most ? all : most);
}

/* Sequences of a launch, whose parts and counts have to have room; 0: not even one's have. */
static uint32_t
seqs_at_a_time(attend_args *a, size_t workspace_bytes) {
  size_t runs = runs_of(*a), most = within_grid(OCT_ATTEND_COUNTS / sizeof(uint32_t) / runs);
  if (!has_parts(*a))
    return within_grid(a->n_seqs);
  size_t room = workspace_bytes > OCT_ATTEND_COUNTS
                    ? (workspace_bytes - OCT_ATTEND_COUNTS) / part_bytes(*a, 1)
                    : 0;
  if (a->n_shares > 0)
    a->n_shares = room / 2 < a->n_shares ? (uint32_t)(room / 2) : a->n_shares;
  else if (room / (runs * a->n_splits) < most)
    most = room / (runs * a->n_splits);
  if (a->n_shares == 0 && a->n_splits == 1)
    return 0;
  return (uint32_t)(most < a->n_seqs ? most : a->n_seqs);
}

size_t
oct_attend_decode_used(const attend_args &args, size_t workspace_bytes) {
  attend_args a = args;
  uint32_t n = seqs_at_a_time(&a, workspace_bytes);
  if (n == 0 && a.n_seqs > 0)
    return SIZE_MAX;
  if (!has_parts(a))
    return 0;
  return OCT_ATTEND_COUNTS +
         part_bytes(a, a.n_shares > 0 ? 2 * a.n_shares : n * runs_of(a) * a.n_splits);
}

int
oct_attend_decode_with(const oct_cuda_queue *queue, const attend_args &args, void *workspace,
                       size_t workspace_bytes) {
  attend_args a = args;
  uint32_t step = seqs_at_a_time(&a, workspace_bytes);
  if (step == 0)
    return OCT_CUDA_UNSUPPORTED;
  a.arrived = (uint32_t *)workspace;
  a.partial = (float *)((char *)workspace + OCT_ATTEND_COUNTS);
  int error = OCT_CUDA_OK;
  for (uint32_t done = 0; done < args.n_seqs && error == OCT_CUDA_OK; done += step) {
    a.first_seq = args.first_seq + done;
    a.n_seqs = args.n_seqs - done < step ? args.n_seqs - done : step;
    error = oct_attend_decode(queue, a);
  }
  return error;
}

size_t
oct_cuda_attention_workspace(const oct_cuda_queue *queue, const oct_cuda_attention *call) {
  oct_cuda_attention all = *call;
  size_t parts = oct_attend_hopper_bytes(make_plan(queue, call).prefill);
  all.max_queries = 1; /* as many single tokens as there are sequences */
  return parts > 0 ? OCT_ATTEND_COUNTS + parts
                   : oct_attend_decode_bytes(make_plan(queue, &all).decode);
}

/* Either has parts. */
static size_t
used_of(const attend_plan &plan, size_t workspace_bytes) {
  return oct_attend_hopper_bytes(plan.prefill) > 0
             ? oct_attend_hopper_used(plan.prefill, workspace_bytes)
             : oct_attend_decode_used(plan.decode, workspace_bytes);
}

size_t
oct_cuda_attention_used(const oct_cuda_queue *queue, const oct_cuda_attention *call) {
  return used_of(make_plan(queue, call), call->workspace_bytes);
}

size_t
oct_cuda_attention_gather(const oct_cuda_queue *queue, const oct_cuda_attention *call) {
  attend_plan plan = make_plan(queue, call);
  size_t bytes = plan.is_hopper && !plan.is_plain && plan.prefill.n_splits <= 1
                     ? oct_attend_gather_bytes(plan.prefill, call->max_context)
                     : 0;
  return bytes > 0 ? bytes + OCT_ATTEND_COUNTS + 256 : 0;
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

/* Runs on Hopper whose contexts are cut; the workspace does. */
static int
attend_parts(const oct_cuda_queue *queue, const oct_cuda_attention *call, attend_args a) {
  a.partial = (float *)((char *)call->workspace + OCT_ATTEND_COUNTS);
  return oct_attend_hopper(queue, a, call->workspace_bytes - OCT_ATTEND_COUNTS);
}

/* Sequences of several tokens. */
static int
attend_prompts(const oct_cuda_queue *queue, const oct_cuda_attention *call, attend_plan *plan) {
  int error =
      launch(queue, clear_padding, dim3(call->batch->n_tokens), dim3(128), 0, plan->prefill);
  if (error != OCT_CUDA_OK || !plan->is_hopper)
    return error != OCT_CUDA_OK ? error : oct_attend_prefill(queue, plan->prefill);
  if (plan->prefill.n_splits > 1)
    return attend_parts(queue, call, plan->prefill);
  size_t used = (oct_attend_decode_bytes(plan->decode) + 255) / 256 * 256;
  used = used > OCT_ATTEND_COUNTS ? used : OCT_ATTEND_COUNTS;
  size_t bytes = oct_attend_gather_bytes(plan->prefill, call->max_context);
  if (bytes > 0 && used + bytes <= call->workspace_bytes)
    error =
        oct_attend_gather(queue, &plan->prefill, call->max_context, (char *)call->workspace + used);
  return error != OCT_CUDA_OK ? error : oct_attend_hopper(queue, plan->prefill, 0);
}

bool
oct_cuda_attention_can_store(const oct_cuda_queue *queue, const oct_cuda_attention *call) {
  return call->store != NULL && make_plan(queue, call).decode.angles != NULL;
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

int
oct_cuda_attend(const oct_cuda_queue *queue, const oct_cuda_attention *call) {
  if (call->batch->n_tokens == 0 || call->batch->n_seqs == 0)
    return OCT_CUDA_OK;
  if (call->kv.n_heads == 0 || call->n_heads % call->kv.n_heads != 0 || call->kv.width > 512 ||
      (call->kv.page_tokens & (call->kv.page_tokens - 1)) != 0)
    return OCT_CUDA_UNSUPPORTED;
  attend_plan plan = make_plan(queue, call);
  if (call->store != NULL && plan.decode.angles == NULL)
    return OCT_CUDA_UNSUPPORTED;
  if (plan.is_plain)
    return oct_attend_plain(queue, call->type, plan.prefill);
  if (used_of(plan, call->workspace_bytes) == SIZE_MAX)
    return OCT_CUDA_UNSUPPORTED;
  int error = OCT_CUDA_OK;
  if (plan.prefill.n_seqs > 0)
    error = attend_prompts(queue, call, &plan);
  if (error == OCT_CUDA_OK && plan.decode.n_seqs > 0)
    error = oct_attend_decode_with(queue, plan.decode, call->workspace, call->workspace_bytes);
  return error;
}
