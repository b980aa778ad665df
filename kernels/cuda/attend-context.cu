/* Attention over a part of each sequence's tokens: decode context parallelism. The ranks of a
 * context group have the same key head (or latents), each keep some tokens of every page, attend to
 * them with the queries of all the group's heads, and give each other what they found: a base, the
 * sum of exponentials and the sum of weighted values, from which the whole follows.
 *
 * The kernels of decodes serve it, with each token as a sequence of its own; where they cannot, one
 * that has a warp for a token and a head. */
#include "kernels/cuda/attend.cuh"
#include "kernels/cuda/peers.h"

#define WARPS     4
#define PARTS_MAX 20 /* of 32 elements of a key */
#define MERGE_MAX OCT_CUDA_PEERS_MAX

/* Of a sequence's first n tokens, those that member `member` keeps: a page has `tokens` of each of
 * `members`, one member's after another's. */
OCT_DEVICE uint32_t
kept_of(uint32_t n, uint32_t tokens, uint32_t members, uint32_t member) {
  uint32_t page = tokens * members, rest = n % page, before = member * tokens;
  uint32_t more = rest > before ? rest - before : 0;
  return n / page * tokens + (more < tokens ? more : tokens);
}

static __global__ void
place_tokens(oct_cuda_batch b, uint32_t tokens, uint32_t members, uint32_t member, uint32_t *place,
             uint32_t *visible) {
  admit_successor();
  await_predecessors();
  uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= b.n_tokens)
    return;
  bool padding = b.token_seq[i] == OCT_CUDA_NONE;
  uint32_t position = b.token_position[i];
  uint32_t until = kept_of(position + 1, tokens, members, member);
  bool mine = until > kept_of(position, tokens, members, member);
  place[i] = mine && !padding ? until - 1 : OCT_CUDA_NONE;
  visible[i] = padding ? 0 : until;
}

int
oct_cuda_context_places(const oct_cuda_queue *queue, const oct_cuda_batch *batch,
                        uint32_t page_tokens, uint32_t members, uint32_t member, uint32_t *place,
                        uint32_t *visible) {
  if (batch->n_tokens == 0)
    return OCT_CUDA_OK;
  return launch(queue, place_tokens, dim3(ceil_div(batch->n_tokens, 128)), dim3(128), 0, *batch,
                page_tokens, members, member, place, visible);
}

/* ---------------------------------------------------------------- a member's part */

/* 32 lanes have `parts` elements each of a row. */
template <typename C, int PARTS>
OCT_DEVICE void
load_row(const C *row, uint32_t width, float scale, float (&to)[PARTS]) {
  uint32_t lane = threadIdx.x % 32;
#pragma unroll
  for (int k = 0; k < PARTS; k++) {
    uint32_t c = 32 * k + lane;
    to[k] = c < width ? to_float(row[c]) * scale : 0;
  }
}

template <typename T, typename C, int PARTS>
static __global__ void
__launch_bounds__(32 * WARPS) attend_part(oct_cuda_context_attention a) {
  admit_successor();
  await_predecessors();
  uint32_t lane = threadIdx.x % 32, width = a.kv.width;
  uint32_t row = blockIdx.x * WARPS + threadIdx.x / 32; /* member, token, head */
  if (row >= a.members * a.n * a.n_heads)
    return;
  uint32_t token = row / a.n_heads % a.n, n = a.visible[token];
  float q[PARTS], acc[PARTS] = {}, top = -INFINITY, sum = 0;
  float scale = a.kv.k_scale != NULL ? a.kv.k_scale[0] : 1;
  float v_scale = a.kv.v_scale != NULL ? a.kv.v_scale[0] : 1;
  load_row<T, PARTS>((const T *)a.q + (size_t)row * width, width, a.scale, q);
  uint32_t seq = a.token_seq[token];
  const uint32_t *pages =
      seq != OCT_CUDA_NONE ? a.tables.pages + a.seq_slot[seq] * a.tables.stride : NULL;
  for (uint32_t i = 0; i < n; i++) {
    const char *page = (const char *)a.kv.base + pages[i / a.kv.page_tokens] * a.kv.page_bytes;
    const C *key = (const C *)page + (size_t)(i % a.kv.page_tokens) * width;
    float x[PARTS], score = 0;
    load_row<C, PARTS>(key, width, scale, x);
#pragma unroll
    for (int k = 0; k < PARTS; k++)
      score += q[k] * x[k];
    score = warp_sum(score);
    if (score > top) {
      float factor = expf(top - score);
      sum *= factor;
#pragma unroll
      for (int k = 0; k < PARTS; k++)
        acc[k] *= factor;
      top = score;
    }
    float weight = expf(score - top);
    sum += weight;
    if (a.kv.has_values)
      load_row<C, PARTS>(key + (size_t)a.kv.page_tokens * width, width, v_scale, x);
#pragma unroll
    for (int k = 0; k < PARTS; k++)
      acc[k] += weight * x[k];
  }
  float *out = a.out + (size_t)row * (a.value_width + 2);
  if (lane == 0) {
    out[0] = top;
    out[1] = sum;
  }
#pragma unroll
  for (int k = 0; k < PARTS; k++)
    if (32 * k + lane < a.value_width)
      out[2 + 32 * k + lane] = acc[k];
}

template <typename T, typename C>
static int
launch_part(const oct_cuda_queue *queue, const oct_cuda_context_attention *a) {
  dim3 grid(ceil_div(a->members * a->n * a->n_heads, WARPS)), block(32 * WARPS);
  if (a->kv.width <= 4 * 32)
    return launch(queue, attend_part<T, C, 4>, grid, block, 0, *a);
  return launch(queue, attend_part<T, C, PARTS_MAX>, grid, block, 0, *a);
}

template <typename T>
static int
launch_by_cache(const oct_cuda_queue *queue, const oct_cuda_context_attention *a) {
  switch (a->kv.type) {
  case OCT_CUDA_F32:
    return launch_part<T, float>(queue, a);
  case OCT_CUDA_BF16:
    return launch_part<T, bf16>(queue, a);
  case OCT_CUDA_FP8:
    return launch_part<T, fp8>(queue, a);
  }
  return OCT_CUDA_UNSUPPORTED;
}

/* ---------------------------------------------------------------- the kernels of decodes */

static attend_args
make_args(const oct_cuda_context_attention *c) {
  attend_args a = {};
  a.batch.n_tokens = a.batch.n_seqs = a.n_seqs = c->n;
  a.batch.token_seq = (uint32_t *)(uintptr_t)c->token_seq;
  a.batch.seq_slot = (uint32_t *)(uintptr_t)c->seq_slot;
  a.kv = c->kv;
  a.tables = c->tables;
  a.n_heads = a.group = c->members * c->n_heads;
  a.own_heads = c->n_heads;
  a.scale = c->scale;
  a.q = c->q;
  a.q_stride = (size_t)c->n_heads * c->kv.width;
  a.visible = c->visible;
  a.found = c->out;
  a.value_width = c->value_width;
  a.n_splits = 1;
  return a;
}

/* The kernel that takes the call if its workspace does, args as it wants them; bytes that do, and
 * what is used of those that there are. */
static oct_cuda_attention_path
plan_part(const oct_cuda_queue *queue, const oct_cuda_context_attention *c, attend_args *a,
          size_t *bytes, size_t *used) {
  *a = make_args(c);
  *bytes = *used = 0;
  if (c->max_visible == 0 || (c->kv.page_tokens & (c->kv.page_tokens - 1)) != 0)
    return OCT_CUDA_ATTENTION_PLAIN;
  if (!c->kv.has_values) {
    oct_cuda_attention_path path = oct_latent_part_path(queue, *a, c->type, c->path);
    if (path != OCT_CUDA_ATTENTION_PLAIN) {
      *bytes = oct_latent_part_bytes(queue, *a, c->max_visible);
      *used = oct_latent_part_used(queue, *a, path, c->max_visible, c->workspace_bytes);
    }
    return path;
  }
  if ((c->path != OCT_CUDA_ATTENTION_AUTO && c->path != OCT_CUDA_ATTENTION_DECODE) ||
      c->value_width != c->kv.width || !oct_attend_decode_can(*a, c->type))
    return OCT_CUDA_ATTENTION_PLAIN;
  oct_attend_share_out(queue, c->max_visible, a);
  *bytes = oct_attend_decode_bytes(*a);
  *used = oct_attend_decode_used(*a, c->workspace_bytes);
  return OCT_CUDA_ATTENTION_DECODE;
}

size_t
oct_cuda_context_workspace(const oct_cuda_queue *queue, const oct_cuda_context_attention *call) {
  attend_args a;
  size_t bytes, used;
  (void)plan_part(queue, call, &a, &bytes, &used);
  return bytes;
}

size_t
oct_cuda_context_used(const oct_cuda_queue *queue, const oct_cuda_context_attention *call) {
  attend_args a;
  size_t bytes, used;
  (void)plan_part(queue, call, &a, &bytes, &used);
  return used;
}

uint32_t
oct_cuda_context_paths(const oct_cuda_queue *queue, const oct_cuda_context_attention *call) {
  attend_args a;
  size_t bytes, used;
  oct_cuda_attention_path path = plan_part(queue, call, &a, &bytes, &used);
  return 1u << (used <= call->workspace_bytes ? path : OCT_CUDA_ATTENTION_PLAIN);
}

int
oct_cuda_context_attend(const oct_cuda_queue *queue, const oct_cuda_context_attention *call) {
  if (call->n == 0)
    return OCT_CUDA_OK;
  if (call->kv.width > 32 * PARTS_MAX || call->kv.n_heads != 1)
    return OCT_CUDA_UNSUPPORTED;
  attend_args a;
  size_t bytes, used;
  oct_cuda_attention_path path = plan_part(queue, call, &a, &bytes, &used);
  if (path == OCT_CUDA_ATTENTION_PLAIN || used > call->workspace_bytes)
    return OCT_BY_TYPE(call->type, T, launch_by_cache<T>(queue, call));
  if (!call->kv.has_values)
    return oct_latent_part(queue, a, path, call->max_visible, call->workspace,
                           call->workspace_bytes);
  return oct_attend_decode_with(queue, a, call->workspace, call->workspace_bytes);
}

/* ---------------------------------------------------------------- the whole */

template <typename T>
static __global__ void
merge_parts(const float *parts, uint32_t members, uint32_t rows, uint32_t value_width, T *out) {
  __shared__ float factors[MERGE_MAX];
  admit_successor();
  await_predecessors();
  uint32_t row = blockIdx.x, lane = threadIdx.x % 32;
  size_t width = value_width + 2;
  if (threadIdx.x < 32) {
    const float *part = parts + ((size_t)lane * rows + row) * width;
    float one = lane < members ? part[0] : -INFINITY, top = warp_max(one);
    float factor = one > -INFINITY ? expf(one - top) : 0;
    float sum = warp_sum(factor > 0 ? factor * part[1] : 0);
    if (lane < members)
      factors[lane] = sum > 0 ? factor / sum : 0;
  }
  __syncthreads();
  for (uint32_t c = threadIdx.x; c < value_width; c += blockDim.x) {
    float x = 0;
#pragma unroll 8
    for (uint32_t r = 0; r < members; r++)
      x += factors[r] * parts[((size_t)r * rows + row) * width + 2 + c];
    out[(size_t)row * value_width + c] = from_float<T>(x);
  }
}
static_assert(MERGE_MAX <= 32, "a lane has a member's ends");

int
oct_cuda_context_merge(const oct_cuda_queue *queue, oct_cuda_type type, const float *parts,
                       uint32_t members, uint32_t rows, uint32_t value_width, void *out) {
  if (rows == 0)
    return OCT_CUDA_OK;
  if (members > MERGE_MAX)
    return OCT_CUDA_UNSUPPORTED;
  return OCT_BY_TYPE(type, T,
                     launch(queue, merge_parts<T>, dim3(rows), dim3(128), 0, parts, members, rows,
                            value_width, (T *)out));
}
