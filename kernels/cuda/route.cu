/* Experts: which a token takes, the pairs of tokens and experts sorted by expert, and what the
 * experts gave added up. */
#include "kernels/cuda/common.cuh"

/* ---------------------------------------------------------------- routing */

/* Of two candidates the better, of equals the lower; NaN never wins over a number. */
struct choice {
  float score;
  uint32_t index;
};

OCT_DEVICE bool
is_better(choice a, choice b) {
  if (isnan(a.score) || isnan(b.score))
    return !isnan(a.score) || (isnan(b.score) && a.index < b.index);
  return a.score > b.score || (a.score == b.score && a.index < b.index);
}

OCT_DEVICE choice
warp_best(choice x) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2) {
    choice y = {__shfl_xor_sync(0xffffffffu, x.score, d), __shfl_xor_sync(0xffffffffu, x.index, d)};
    if (is_better(y, x))
      x = y;
  }
  return x;
}

/* The best of x[0, n) in shared memory, found by a warp. */
OCT_DEVICE choice
best_of(const float *x, uint32_t n, uint32_t lane) {
  choice best = {NAN, OCT_CUDA_NONE};
  for (uint32_t i = lane; i < n; i += 32) {
    choice c = {x[i], i};
    if (is_better(c, best))
      best = c;
  }
  return warp_best(best);
}

OCT_DEVICE void
make_scores(const oct_routing &r, const float *logits, float *scores, uint32_t lane) {
  if (r.score == OCT_ROUTER_SIGMOID) {
    for (uint32_t e = lane; e < r.n_experts; e += 32)
      scores[e] = sigmoidf(logits[e]);
    return;
  }
  float top = -INFINITY, sum = 0;
  for (uint32_t e = lane; e < r.n_experts; e += 32)
    top = fmaxf(top, logits[e]);
  top = warp_max(top);
  for (uint32_t e = lane; e < r.n_experts; e += 32) {
    scores[e] = expf(logits[e] - top);
    sum += scores[e];
  }
  sum = warp_sum(sum);
  for (uint32_t e = lane; e < r.n_experts; e += 32)
    scores[e] /= sum;
}

/* Leaves only the experts of the best groups; a group counts by the sum of its two best. */
OCT_DEVICE void
keep_groups(const oct_routing &r, float *choice_scores, float *groups, uint32_t lane) {
  uint32_t size = r.n_experts / r.n_groups;
  for (uint32_t g = lane; g < r.n_groups; g += 32) {
    float first = -INFINITY, second = -INFINITY;
    for (uint32_t i = 0; i < size; i++) {
      float x = choice_scores[g * size + i];
      second = x > first ? first : fmaxf(second, x);
      first = fmaxf(first, x);
    }
    groups[g] = size > 1 ? first + second : first;
  }
  __syncwarp();
  for (uint32_t round = 0; round < r.top_groups; round++) {
    choice best = best_of(groups, r.n_groups, lane);
    __syncwarp();
    if (lane == 0)
      groups[best.index] = NAN;
    __syncwarp();
  }
  for (uint32_t e = lane; e < size * r.n_groups; e += 32)
    if (!isnan(groups[e / size]))
      choice_scores[e] = -INFINITY;
  __syncwarp();
}

/* A warp per token; shared memory: scores, scores for the choice, groups. */
static __global__ void
route(oct_cuda_route a) {
  extern __shared__ float shared[];
  admit_successor();
  await_predecessors();
  const oct_routing &r = a.routing;
  uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint32_t token = blockIdx.x * (blockDim.x / 32) + warp;
  if (token >= a.n)
    return;
  uint32_t *experts = a.experts + (size_t)token * r.top_k;
  float *weights = a.weights + (size_t)token * r.top_k;
  if (a.token_seq != NULL && a.token_seq[token] == OCT_CUDA_NONE) {
    for (uint32_t k = lane; k < r.top_k; k += 32) {
      experts[k] = OCT_CUDA_NONE;
      weights[k] = 0;
    }
    return;
  }
  float *scores = shared + warp * (2 * r.n_experts + r.n_groups), *choices = scores + r.n_experts;
  make_scores(r, a.logits + (size_t)token * r.n_experts, scores, lane);
  for (uint32_t e = lane; e < r.n_experts; e += 32)
    choices[e] = scores[e] + (r.bias != NULL ? r.bias[e] : 0);
  __syncwarp();
  if (r.n_groups > 1)
    keep_groups(r, choices, choices + r.n_experts, lane);
  /* Lane k keeps choice k. */
  float mine = 0, sum = 0;
  for (uint32_t k = 0; k < r.top_k; k++) {
    choice best = best_of(choices, r.n_experts, lane);
    uint32_t expert = best.index < r.n_experts ? best.index : 0;
    float score = scores[expert];
    __syncwarp();
    if (lane == 0) {
      choices[expert] = NAN;
      experts[k] = expert;
    }
    if (lane == k)
      mine = score;
    sum += score;
    __syncwarp();
  }
  if (lane < r.top_k)
    weights[lane] = (r.renormalise ? mine / (sum + 1e-20f) : mine) * r.scaling;
}

int
oct_cuda_route_tokens(const oct_cuda_queue *queue, const oct_cuda_route *call) {
  const oct_routing &r = call->routing;
  if (call->n == 0)
    return OCT_CUDA_OK;
  if (r.n_experts > OCT_CUDA_EXPERTS_MAX || r.top_k > OCT_CUDA_TOP_K_MAX || r.top_k > r.n_experts)
    return OCT_CUDA_UNSUPPORTED;
  size_t shared = 4 * (2 * r.n_experts + r.n_groups) * sizeof(float);
  return launch(queue, route, dim3(ceil_div(call->n, 4)), dim3(128), shared, *call);
}

/* ---------------------------------------------------------------- pairs by expert */

#define OCT_SORT_THREADS 1024

/* One block: the pairs of each local expert to counts (shared memory), and where each begins to
 * starts; pairs that are not here get no row. */
OCT_DEVICE void
count_experts(const oct_cuda_pairs &a, uint32_t *counts) {
  uint32_t pairs = a.n * a.top_k, tid = threadIdx.x, lane = tid % 32;
  for (uint32_t e = tid; e < a.n_local; e += blockDim.x)
    counts[e] = 0;
  __syncthreads();
  for (uint32_t p = tid; p < pairs; p += blockDim.x) {
    uint32_t expert = a.experts[p], local = expert - a.first_expert;
    bool chosen = expert != OCT_CUDA_NONE;
    if (chosen && a.counts != NULL)
      atomicAdd(&a.counts[expert], 1u);
    if (chosen && local < a.n_local)
      atomicAdd(&counts[local], 1u);
    else
      a.row_of[p] = OCT_CUDA_NONE;
  }
  __syncthreads();
  uint32_t sum = 0;
  for (uint32_t base = 0; tid < 32 && base < a.n_local; base += 32) {
    uint32_t e = base + lane, mine = e < a.n_local ? counts[e] : 0, until = mine;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
      uint32_t before = __shfl_up_sync(0xffffffffu, until, d);
      until += lane >= d ? before : 0;
    }
    if (e < a.n_local)
      a.starts[e] = sum + until - mine;
    sum += __shfl_sync(0xffffffffu, until, 31);
  }
  if (tid == 0)
    a.starts[a.n_local] = sum;
  __syncthreads();
}

/* Few pairs: one block does all. Warps take experts; each goes through all pairs in order, so that
 * rows of an expert are in the order of tokens, always. */
static __global__ void
sort_pairs(oct_cuda_pairs a) {
  __shared__ uint32_t counts[OCT_CUDA_EXPERTS_MAX];
  admit_successor();
  await_predecessors();
  count_experts(a, counts);
  uint32_t pairs = a.n * a.top_k, lane = threadIdx.x % 32;
  for (uint32_t e = threadIdx.x / 32; e < a.n_local; e += blockDim.x / 32) {
    uint32_t at = a.starts[e], left = counts[e];
    for (uint32_t base = 0; base < pairs && left > 0; base += 32) {
      uint32_t p = base + lane;
      bool here = p < pairs && a.experts[p] == a.first_expert + e;
      uint32_t who = __ballot_sync(0xffffffffu, here);
      if (here) {
        uint32_t row = at + __popc(who & ((1u << lane) - 1));
        a.pair_of[row] = p;
        a.row_of[p] = row;
      }
      at += __popc(who);
      left -= __popc(who);
    }
  }
}

/* Many pairs: one block counts, then each expert has a block. */
static __global__ void
count_pairs(oct_cuda_pairs a) {
  __shared__ uint32_t counts[OCT_CUDA_EXPERTS_MAX];
  admit_successor();
  await_predecessors();
  count_experts(a, counts);
}

static __global__ void
place_pairs(oct_cuda_pairs a) {
  __shared__ uint32_t before[8];
  admit_successor();
  await_predecessors();
  uint32_t pairs = a.n * a.top_k, e = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  uint32_t at = a.starts[e], left = a.starts[e + 1] - at;
  for (uint32_t base = 0; base < pairs && left > 0; base += 256) {
    uint32_t p = base + threadIdx.x;
    bool here = p < pairs && a.experts[p] == a.first_expert + e;
    uint32_t who = __ballot_sync(0xffffffffu, here);
    if (lane == 0)
      before[warp] = __popc(who);
    __syncthreads();
    uint32_t row = at + __popc(who & ((1u << lane) - 1)), all = 0;
#pragma unroll
    for (uint32_t w = 0; w < 8; w++) {
      row += w < warp ? before[w] : 0;
      all += before[w];
    }
    if (here) {
      a.pair_of[row] = p;
      a.row_of[p] = row;
    }
    at += all;
    left -= all;
    __syncthreads();
  }
}

int
oct_cuda_sort_pairs(const oct_cuda_queue *queue, const oct_cuda_pairs *call) {
  if (call->n_local > OCT_CUDA_EXPERTS_MAX)
    return OCT_CUDA_UNSUPPORTED;
  if (call->n * call->top_k <= 2048)
    return launch(queue, sort_pairs, dim3(1), dim3(OCT_SORT_THREADS), 0, *call);
  int error = launch(queue, count_pairs, dim3(1), dim3(OCT_SORT_THREADS), 0, *call);
  if (error == OCT_CUDA_OK)
    error = launch(queue, place_pairs, dim3(call->n_local), dim3(256), 0, *call);
  return error;
}

/* ---------------------------------------------------------------- the sum over experts */

template <typename T, typename O, int N>
static __global__ void
combine(oct_cuda_combine a, oct_cuda_pairs pairs) {
  admit_successor();
  await_predecessors();
  uint32_t token = blockIdx.x, c = (blockIdx.y * blockDim.x + threadIdx.x) * N;
  if (c >= a.width)
    return;
  float sum[N] = {};
  for (uint32_t k = 0; k < pairs.top_k; k++) {
    uint32_t p = token * pairs.top_k + k, row = pairs.row_of[p];
    if (row == OCT_CUDA_NONE)
      continue;
    float weight = a.weights[p], y[N];
    load_floats<T, N>((const T *)a.y + row * a.y_stride + c, y);
#pragma unroll
    for (int i = 0; i < N; i++)
      sum[i] += weight * y[i];
  }
  O *out = (O *)a.out + token * a.out_stride + c;
  if (a.add) {
    float old[N];
    load_floats<O, N>(out, old);
#pragma unroll
    for (int i = 0; i < N; i++)
      sum[i] += old[i];
  }
  store_floats<O, N>(out, sum);
}

template <typename T, typename O>
static int
launch_combine(const oct_cuda_queue *queue, const oct_cuda_combine *call) {
  uint32_t n = call->pairs->n;
  if (call->width % 8 == 0 && call->y_stride % 8 == 0 && call->out_stride % 8 == 0)
    return launch(queue, combine<T, O, 8>, dim3(n, ceil_div(call->width, 8 * 128)), dim3(128), 0,
                  *call, *call->pairs);
  return launch(queue, combine<T, O, 1>, dim3(n, ceil_div(call->width, 128)), dim3(128), 0, *call,
                *call->pairs);
}

int
oct_cuda_combine_pairs(const oct_cuda_queue *queue, const oct_cuda_combine *call) {
  if (call->pairs->n == 0)
    return OCT_CUDA_OK;
  return OCT_BY_TYPE(call->type, T,
                     OCT_BY_TYPE(call->out_type, O, launch_combine<T, O>(queue, call)));
}
