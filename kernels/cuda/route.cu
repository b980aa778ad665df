/* Experts: which a token takes, the pairs of tokens and experts sorted by expert, and what the
 * experts gave added up. */
#include "kernels/cuda/cluster.cuh"

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

/* Scores of a token's experts, and what they are chosen by, to shared memory. Every 32nd is a
 * lane's: all are loaded before one is used. */
template <int GROUPS>
OCT_DEVICE void
make_scores(const oct_routing &r, const float *logits, float *scores, float *choices,
            uint32_t lane) {
  constexpr uint32_t N = 8 * GROUPS;
  float x[N], bias[N], top = -INFINITY, sum = 0;
#pragma unroll
  for (uint32_t i = 0; i < N; i++) {
    uint32_t e = lane + 32 * i;
    x[i] = e < r.n_experts ? logits[e] : -INFINITY;
    bias[i] = e < r.n_experts && r.bias != NULL ? r.bias[e] : 0;
    top = fmaxf(top, x[i]);
  }
  bool sigmoid = r.score == OCT_ROUTER_SIGMOID;
  top = sigmoid ? 0 : warp_max(top);
#pragma unroll
  for (uint32_t i = 0; i < N; i++) {
    x[i] = sigmoid ? sigmoidf(x[i]) : expf(x[i] - top);
    sum += x[i];
  }
  sum = sigmoid ? 1 : warp_sum(sum);
#pragma unroll
  for (uint32_t i = 0; i < N; i++) {
    uint32_t e = lane + 32 * i;
    if (e < r.n_experts) {
      scores[e] = x[i] / sum;
      choices[e] = scores[e] + bias[i];
    }
  }
  __syncwarp();
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

/* Order of scores as numbers: 0 is no candidate, 1 is NaN. */
OCT_DEVICE uint32_t
key_of(float score) {
  uint32_t bits = __float_as_uint(score + 0.0f); /* -0 is 0 */
  return isnan(score) ? 1 : (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

/* The best of a lane's 8 candidates of 256 whose keys begin at `keys`, every 32nd of them. */
OCT_DEVICE void
find_best(const uint32_t *keys, uint32_t left, uint32_t lane, uint32_t *best, uint32_t *at) {
  *best = *at = 0;
#pragma unroll
  for (uint32_t i = 0; i < 8; i++) {
    uint32_t key = lane + 32 * i < left ? keys[lane + 32 * i] : 0;
    *at = key > *best ? i : *at;
    *best = key > *best ? key : *best;
  }
}

/* The candidates of a warp: their keys in shared memory, and the best of each lane's in registers.
 */
template <int GROUPS> struct candidates { uint32_t best[GROUPS], at[GROUPS]; };

template <int GROUPS>
OCT_DEVICE void
renew(candidates<GROUPS> &c, const uint32_t *keys, uint32_t n, uint32_t group, uint32_t lane) {
  uint32_t best, at, left = n > 256 * group ? n - 256 * group : 0;
  find_best(keys + 256 * group, left, lane, &best, &at);
#pragma unroll
  for (uint32_t g = 0; g < GROUPS; g++) {
    c.best[g] = g == group ? best : c.best[g];
    c.at[g] = g == group ? 8 * g + at : c.at[g];
  }
}

/* The best of all, of equals the lowest, which then is no candidate any more. */
template <int GROUPS>
OCT_DEVICE uint32_t
pop_best(candidates<GROUPS> &c, uint32_t *keys, uint32_t n, uint32_t lane) {
  uint32_t key = c.best[0], mine = c.at[0];
#pragma unroll
  for (uint32_t g = 1; g < GROUPS; g++) {
    mine = c.best[g] > key ? c.at[g] : mine;
    key = c.best[g] > key ? c.best[g] : key;
  }
  uint32_t top = __reduce_max_sync(0xffffffffu, key);
  uint32_t expert = __reduce_min_sync(0xffffffffu, key == top ? lane + 32 * mine : UINT32_MAX);
  if (expert % 32 == lane)
    keys[expert] = 0;
  renew(c, keys, n, expert / 256, lane);
  return expert;
}

/* A warp per token; shared memory: scores, scores for the choice, groups. */
template <int GROUPS>
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
  make_scores<GROUPS>(r, a.logits + (size_t)token * r.n_experts, scores, choices, lane);
  if (r.n_groups > 1)
    keep_groups(r, choices, choices + r.n_experts, lane);
  uint32_t *keys =
      (uint32_t *)choices; /* of a lane are read and written by it alone from here on */
  for (uint32_t e = lane; e < r.n_experts; e += 32)
    keys[e] = key_of(choices[e]);
  candidates<GROUPS> left;
#pragma unroll
  for (uint32_t g = 0; g < GROUPS; g++)
    renew(left, keys, r.n_experts, g, lane);
  /* Lane k keeps choice k. */
  uint32_t chosen = 0;
  float mine = 0, sum = 0;
  for (uint32_t k = 0; k < r.top_k; k++) {
    uint32_t expert = pop_best(left, keys, r.n_experts, lane);
    float score = scores[expert];
    if (lane == k) {
      chosen = expert;
      mine = score;
    }
    sum += score;
  }
  if (lane < r.top_k) {
    experts[lane] = chosen;
    weights[lane] = (r.renormalise ? mine / (sum + 1e-20f) : mine) * r.scaling;
  }
}

int
oct_cuda_route_tokens(const oct_cuda_queue *queue, const oct_cuda_route *call) {
  const oct_routing &r = call->routing;
  if (call->n == 0)
    return OCT_CUDA_OK;
  if (r.n_experts > OCT_CUDA_EXPERTS_MAX || r.top_k > OCT_CUDA_TOP_K_MAX || r.top_k > r.n_experts)
    return OCT_CUDA_UNSUPPORTED;
  size_t shared = 4 * (2 * r.n_experts + r.n_groups) * sizeof(float);
  dim3 grid(ceil_div(call->n, 4)), block(128);
  if (r.n_experts <= 256)
    return launch(queue, route<1>, grid, block, shared, *call);
  if (r.n_experts <= 512)
    return launch(queue, route<2>, grid, block, shared, *call);
  return launch(queue, route<4>, grid, block, shared, *call);
}

/* ---------------------------------------------------------------- pairs by expert */

#define SORT_THREADS 1024
#define SORT_PAIRS   2048 /* of a block, before there are more of them */

static_assert(OCT_CUDA_EXPERTS_MAX <= SORT_THREADS, "a thread has an expert");

/* Where blocks and warps, which have the pairs in order, put those of each expert: a warp's next
 * behind those of its block's warps before it, and behind base. */
struct sort_room {
  uint32_t warps[32], total;
  uint32_t here[OCT_CUDA_EXPERTS_MAX], base[OCT_CUDA_EXPERTS_MAX];
};

/* The sum of x over the threads before this one; *all: of the whole block. */
OCT_DEVICE uint32_t
sum_before(uint32_t x, sort_room *room, uint32_t *all) {
  uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, until = x;
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    uint32_t before = __shfl_up_sync(0xffffffffu, until, d);
    until += lane >= d ? before : 0;
  }
  if (lane == 31)
    room->warps[warp] = until;
  __syncthreads();
  uint32_t sum = room->warps[lane], before = lane < warp ? sum : 0;
  *all = __reduce_add_sync(0xffffffffu, sum);
  return __reduce_add_sync(0xffffffffu, before) + until - x;
}

/* Rows of an expert are in the order of tokens, always. Block b of the cluster has the b-th part of
 * the pairs, each of its n_warps the next runs of 32 of it; next[n_warps, n_local] in shared memory
 * first counts a warp's pairs of each expert. */
static __global__ void
__launch_bounds__(SORT_THREADS)
    sort_pairs(oct_cuda_pairs a, uint32_t blocks, uint32_t n_warps, uint32_t runs) {
  extern __shared__ uint32_t next[];
  __shared__ sort_room room;
  admit_successor();
  await_predecessors();
  uint32_t tid = threadIdx.x, warp = tid / 32, lane = tid % 32, pairs = a.n * a.top_k;
  uint32_t first = (blockIdx.x * n_warps + warp) * runs * 32, *mine = next + warp * a.n_local;
  for (uint32_t i = tid; i < n_warps * a.n_local; i += SORT_THREADS)
    next[i] = 0;
  __syncthreads();
  for (uint32_t i = 0; warp < n_warps && i < runs; i++) {
    uint32_t p = first + 32 * i + lane;
    uint32_t expert = p < pairs ? a.experts[p] : OCT_CUDA_NONE, local = expert - a.first_expert;
    if (expert != OCT_CUDA_NONE && local < a.n_local)
      atomicAdd(&mine[local], 1u);
    else if (p < pairs)
      a.row_of[p] = OCT_CUDA_NONE;
    if (expert != OCT_CUDA_NONE && a.counts != NULL)
      atomicAdd(&a.counts[expert], 1u);
  }
  __syncthreads();
  uint32_t here = 0, all = 0, before = 0, sum;
  for (uint32_t w = 0; tid < a.n_local && w < n_warps; w++) {
    uint32_t n = next[w * a.n_local + tid];
    next[w * a.n_local + tid] = here;
    here += n;
  }
  if (tid < a.n_local)
    room.here[tid] = here;
  all = here;
  if (blocks > 1) {
    cluster_barrier();
    all = 0;
    for (uint32_t b = 0; tid < a.n_local && b < blocks; b++) {
      uint32_t n = load_there(&room.here[tid], b);
      before += b < blockIdx.x ? n : 0;
      all += n;
    }
  }
  uint32_t start = sum_before(all, &room, &sum);
  if (tid < a.n_local)
    room.base[tid] = start + before;
  if (tid < a.n_local && blockIdx.x == 0)
    a.starts[tid] = start;
  if (tid == 0 && blockIdx.x == 0)
    a.starts[a.n_local] = sum;
  __syncthreads();
  for (uint32_t i = 0; warp < n_warps && i < runs; i++) {
    uint32_t p = first + 32 * i + lane;
    uint32_t expert = p < pairs ? a.experts[p] : OCT_CUDA_NONE, local = expert - a.first_expert;
    bool placed = expert != OCT_CUDA_NONE && local < a.n_local;
    uint32_t same = __match_any_sync(0xffffffffu, placed ? local : OCT_CUDA_NONE);
    uint32_t ahead = __popc(same & ((1u << lane) - 1));
    uint32_t row = placed ? room.base[local] + mine[local] + ahead : 0;
    __syncwarp();
    if (placed && ahead == 0)
      mine[local] += __popc(same);
    __syncwarp();
    if (placed) {
      a.pair_of[row] = p;
      a.row_of[p] = row;
    }
  }
  if (blocks > 1)
    cluster_barrier(); /* the others may still read what is here */
}

int
oct_cuda_sort_pairs(const oct_cuda_queue *queue, const oct_cuda_pairs *call) {
  if (call->n_local > OCT_CUDA_EXPERTS_MAX)
    return OCT_CUDA_UNSUPPORTED;
  uint32_t pairs = call->n * call->top_k, blocks = 1;
  while (blocks < OCT_CLUSTER_MAX && pairs > blocks * SORT_PAIRS)
    blocks *= 2;
  uint32_t runs = ceil_div(ceil_div(pairs, 32), blocks), warps = runs < 32 ? runs : 32;
  warps = warps > 0 ? warps : 1;
  size_t shared = (size_t)warps * call->n_local * sizeof(uint32_t);
  int error = allow_large(queue, sort_pairs, blocks, shared + sizeof(sort_room));
  if (error != OCT_CUDA_OK)
    return error;
  return launch_cluster(queue, sort_pairs, blocks, dim3(blocks), dim3(SORT_THREADS), shared, *call,
                        blocks, warps, ceil_div(runs, warps));
}

/* ---------------------------------------------------------------- the sum over experts */

#define SUM_AT_ONCE 4 /* rows of pairs that a thread loads before it adds one */

/* N elements of a token's sum, in the order of k. Rows and weights of all pairs are read at once, a
 * lane's each; all lanes of the warp are here, those without elements too. */
template <typename T, int N>
OCT_DEVICE void
sum_pairs(const oct_cuda_combine &a, const oct_cuda_pairs &pairs, uint32_t token, uint32_t c,
          float (&sum)[N]) {
  uint32_t lane = threadIdx.x % 32, at = token * pairs.top_k + lane, own = OCT_CUDA_NONE;
  float own_weight = 0;
  if (lane < pairs.top_k) {
    own = pairs.row_of[at];
    own_weight = a.weights[at];
  }
#pragma unroll
  for (int i = 0; i < N; i++)
    sum[i] = 0;
  /* Some at a time are on their way. */
  for (uint32_t first = 0; first < pairs.top_k; first += SUM_AT_ONCE) {
    float y[SUM_AT_ONCE][N];
    uint32_t rows[SUM_AT_ONCE];
#pragma unroll
    for (uint32_t k = 0; k < SUM_AT_ONCE; k++) {
      rows[k] = __shfl_sync(0xffffffffu, own, (first + k) % 32);
      if (first + k >= pairs.top_k || c >= a.width)
        rows[k] = OCT_CUDA_NONE;
      if (rows[k] != OCT_CUDA_NONE)
        load_floats<T, N>((const T *)a.y + rows[k] * a.y_stride + c, y[k]);
    }
    /* A row that is not here adds nothing, not even a zero to what may be -0. */
#pragma unroll
    for (uint32_t k = 0; k < SUM_AT_ONCE; k++) {
      float weight = __shfl_sync(0xffffffffu, own_weight, (first + k) % 32);
#pragma unroll
      for (int i = 0; i < N; i++)
        sum[i] = rows[k] != OCT_CUDA_NONE ? sum[i] + weight * y[k][i] : sum[i];
    }
  }
}

template <typename T, typename O, int N>
static __global__ void
combine(oct_cuda_combine a, oct_cuda_pairs pairs) {
  admit_successor();
  await_predecessors();
  uint32_t token = blockIdx.x, c = (blockIdx.y * blockDim.x + threadIdx.x) * N;
  float sum[N];
  sum_pairs<T, N>(a, pairs, token, c, sum);
  if (c >= a.width)
    return;
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

/* A cluster of blocks per token, N elements a thread. */
template <typename T, typename O, int N>
static __global__ void
combine_norm(oct_cuda_combine a, oct_cuda_pairs pairs, uint32_t blocks) {
  __shared__ cluster_room room;
  cluster_arrive();
  admit_successor();
  uint32_t part = blockIdx.x % blocks, token = blockIdx.x / blocks;
  uint32_t c = (part * blockDim.x + threadIdx.x) * N;
  float sum[N], norm[N], squares = 0;
  if (c < a.width)
    load_floats<O, N>((const O *)a.norm + c, norm);
  await_predecessors();
  sum_pairs<T, N>(a, pairs, token, c, sum);
#pragma unroll
  for (int i = 0; i < N; i++)
    squares += sum[i] * sum[i];
  cluster_wait(); /* all have begun: their memory can be written */
  float factor = rsqrtf(cluster_sum(squares, &room, blocks, part) / a.width + a.norm_eps);
  if (c >= a.width)
    return;
#pragma unroll
  for (int i = 0; i < N; i++)
    sum[i] *= factor * norm[i];
  store_floats<O, N>((O *)a.out + token * a.out_stride + c, sum);
}

template <typename T, typename O, int N>
static int
launch_combine_norm(const oct_cuda_queue *queue, const oct_cuda_combine *call) {
  uint32_t threads = ceil_div(call->width, N), blocks = 1;
  while (blocks < OCT_CLUSTER_MAX && ceil_div(threads, blocks) > 128)
    blocks *= 2;
  threads = round_up(ceil_div(threads, blocks), 32);
  if (call->add || threads > 1024)
    return OCT_CUDA_UNSUPPORTED;
  return launch_cluster(queue, combine_norm<T, O, N>, blocks, dim3(call->pairs->n * blocks),
                        dim3(threads), 0, *call, *call->pairs, blocks);
}

template <typename T, typename O>
static int
launch_combine(const oct_cuda_queue *queue, const oct_cuda_combine *call) {
  uint32_t n = call->pairs->n;
  bool even = call->width % 8 == 0 && call->y_stride % 8 == 0 && call->out_stride % 8 == 0;
  if (call->norm != NULL)
    return even ? launch_combine_norm<T, O, 8>(queue, call)
                : launch_combine_norm<T, O, 1>(queue, call);
  if (even)
    return launch(queue, combine<T, O, 8>, dim3(n, ceil_div(call->width, 8 * 128)), dim3(128), 0,
                  *call, *call->pairs);
  return launch(queue, combine<T, O, 1>, dim3(n, ceil_div(call->width, 128)), dim3(128), 0, *call,
                *call->pairs);
}

int
oct_cuda_combine_pairs(const oct_cuda_queue *queue, const oct_cuda_combine *call) {
  if (call->pairs->n == 0)
    return OCT_CUDA_OK;
  if (call->pairs->top_k > OCT_CUDA_TOP_K_MAX)
    return OCT_CUDA_UNSUPPORTED;
  return OCT_BY_TYPE(call->type, T,
                     OCT_BY_TYPE(call->out_type, O, launch_combine<T, O>(queue, call)));
}
