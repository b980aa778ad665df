/* Attention residuals. A row of the usual kernel is shared by the blocks of a cluster, each of
 * which keeps its part of every source in registers: sources are read once, scores and the norm's
 * sum of squares are added up over the cluster. Several clusters share a multiprocessor, so that
 * one loads while another waits for its sums. */
#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/residual.h"

#define MIX_THREADS 256 /* of a block at most */
#define MIX_BLOCKS  8   /* sources before the stream that stay in registers */
#define MIX_WARPS   (MIX_THREADS / 32)
#define RUN         8 /* elements of a row and source that a thread has */

/* ---------------------------------------------------------------- sums over a row */

/* Sums over a warp of 2 HALF values, in which lane i ends up with value i / (32 / V): half of what
 * is left changes hands in each step. HALF 0: the one value that is left, over the last 2 D lanes.
 */
template <int HALF, int D>
OCT_DEVICE void
sum_step(float *v, uint32_t lane) {
  if constexpr (HALF == 0) {
    v[0] += __shfl_xor_sync(0xffffffffu, v[0], D);
  } else {
    bool high = (lane & D) != 0;
#pragma unroll
    for (int i = 0; i < HALF; i++) {
      float give = high ? v[i] : v[i + HALF], keep = high ? v[i + HALF] : v[i];
      v[i] = keep + __shfl_xor_sync(0xffffffffu, give, D);
    }
  }
  if constexpr (D > 1)
    sum_step<HALF / 2, D / 2>(v, lane);
}

template <int V>
OCT_DEVICE float
warp_sums(float (&v)[V], uint32_t lane) {
  sum_step<V / 2, 16>(v, lane);
  return v[0];
}

/* What each block and warp found of a row. */
template <int SOURCES> struct mix_room {
  float warps[2 * SOURCES][MIX_WARPS];
  float blocks[2 * SOURCES][OCT_CLUSTER_MAX];
  float squares[MIX_WARPS];
  float all_squares[OCT_CLUSTER_MAX];
};

/* ---------------------------------------------------------------- the usual kernel */

/* The thread's run of the stream, which is also stored. */
template <typename T>
OCT_DEVICE void
take_stream(const oct_cuda_residual_mix &a, size_t at, float (&p)[RUN]) {
  float x[RUN] = {};
  if (a.x != NULL)
    load_floats<T, RUN>((const T *)a.x + at, x);
  if (!a.begins) {
    load_floats<float, RUN>(a.residual + at, p);
#pragma unroll
    for (int i = 0; i < RUN; i++)
      p[i] += x[i];
  } else {
#pragma unroll
    for (int i = 0; i < RUN; i++)
      p[i] = x[i];
  }
  if (a.keep != NULL)
    store_floats<T, RUN>((T *)a.keep + at, p);
  else if (a.x != NULL)
    store_floats<float, RUN>(a.residual + at, p);
}

/* Floats are made of it again from here on: they would take twice the registers. */
template <typename T>
OCT_DEVICE void
keep_packed(vec<T, RUN> &v) {
  uint32_t *words = reinterpret_cast<uint32_t *>(&v);
#pragma unroll
  for (int i = 0; i < (int)(RUN * sizeof(T) / 4); i++)
    asm volatile("" : "+r"(words[i]));
}

/* Sum of squares and product with the scores' vector. */
OCT_DEVICE void
score_run(const float (&v)[RUN], const float (&score)[RUN], float *squares, float *dot) {
  *squares = *dot = 0;
#pragma unroll
  for (int i = 0; i < RUN; i++) {
    *squares += v[i] * v[i];
    *dot += v[i] * score[i];
  }
}

/* The softmax of all sources' scores, from the sums of every warp of the row's blocks: a warp finds
 * it, lane i that of source i. */
template <int SOURCES>
OCT_DEVICE float
mix_weight(const oct_cuda_residual_mix &a, const mix_room<SOURCES> &room, uint32_t blocks,
           uint32_t lane) {
  float score = -INFINITY;
  /* The stream is the last of SOURCES; in between are sources that there are not. */
  if (lane < a.n_blocks || lane == SOURCES - 1) {
    float squares = 0, dot = 0;
    for (uint32_t b = 0; b < blocks; b++) {
      squares += room.blocks[2 * lane][b];
      dot += room.blocks[2 * lane + 1][b];
    }
    score = dot * rsqrtf(squares / a.width + a.eps);
  }
  float most = warp_max(score); /* by all lanes, as is the sum */
  float weight = expf(score - most);
  return weight / warp_sum(weight);
}

/* What the warps of a row's blocks found of its sources, to the memory of all of them. */
template <int SOURCES>
OCT_DEVICE void
share_scores(mix_room<SOURCES> &room, uint32_t blocks, uint32_t part) {
  uint32_t warps = blockDim.x / 32;
  __syncthreads();
  cluster_wait(); /* all blocks of the row have begun: their memory can be written */
  if (threadIdx.x < 2 * SOURCES) {
    float sum = 0;
    for (uint32_t w = 0; w < warps; w++)
      sum += room.warps[threadIdx.x][w];
    for (uint32_t b = 0; b < blocks; b++)
      store_there(&room.blocks[threadIdx.x][part], b, sum);
  }
  __syncwarp();
  cluster_arrive();
}

/* The sum over a row's blocks. */
template <int SOURCES>
OCT_DEVICE float
share_squares(mix_room<SOURCES> &room, uint32_t blocks, uint32_t part, float squares) {
  uint32_t warps = blockDim.x / 32;
  squares = warp_sum(squares);
  if (threadIdx.x % 32 == 0)
    room.squares[threadIdx.x / 32] = squares;
  __syncthreads();
  if (threadIdx.x < blocks) {
    float sum = 0;
    for (uint32_t w = 0; w < warps; w++)
      sum += room.squares[w];
    store_there(&room.all_squares[part], threadIdx.x, sum);
  }
  __syncwarp();
  cluster_arrive();
  cluster_wait();
  float all = 0;
  for (uint32_t b = 0; b < blocks; b++)
    all += room.all_squares[b];
  return all;
}

/* The thread's runs of the blocks before the stream. */
template <typename T, int NB>
OCT_DEVICE void
take_blocks(const oct_cuda_residual_mix &a, bool mine, size_t at, vec<T, RUN> (&kept)[NB]) {
#pragma unroll
  for (int s = 0; s < NB; s++)
    if (mine && s < (int)a.n_blocks)
      kept[s] = *(const vec<T, RUN> *)((const T *)a.blocks + s * a.block_stride + at);
}

/* The sums of a warp over its part of every source. */
template <typename T, int NB>
OCT_DEVICE void
score_all(vec<T, RUN> (&kept)[NB], const float (&p)[RUN], const float (&score)[RUN],
          mix_room<NB + 1> &room) {
  uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float sums[2 * NB], own[2];
  score_run(p, score, &own[0], &own[1]);
#pragma unroll
  for (int s = 0; s < NB; s++) {
    float v[RUN];
#pragma unroll
    for (int i = 0; i < RUN; i++)
      v[i] = to_float(kept[s].at[i]);
    score_run(v, score, &sums[2 * s], &sums[2 * s + 1]);
    keep_packed(kept[s]);
  }
  float of_blocks = warp_sums<2 * NB>(sums, lane), of_stream = warp_sums<2>(own, lane);
  if (lane % (16 / NB) == 0)
    room.warps[lane / (16 / NB)][warp] = of_blocks;
  if (lane % 16 == 0)
    room.warps[2 * NB + lane / 16][warp] = of_stream;
}

/* NB: 1, 2, 4 or 8 blocks at most. */
template <typename T, int NB>
static __global__ void
__launch_bounds__(MIX_THREADS, sizeof(T) == 2 ? 3 : 2)
    mix_rows(oct_cuda_residual_mix a, uint32_t blocks) {
  __shared__ mix_room<NB + 1> room;
  cluster_arrive();
  admit_successor();
  uint32_t part = blockIdx.x % blocks, c = (part * blockDim.x + threadIdx.x) * RUN;
  size_t at = (size_t)(blockIdx.x / blocks) * a.width + c;
  bool mine = c < a.width;
  float score[RUN] = {}, p[RUN] = {}, norm[RUN];
  if (mine && a.n_blocks > 0)
    load_floats<float, RUN>(a.score + c, score);
  await_predecessors();
  vec<T, RUN> kept[NB] = {};
  take_blocks<T, NB>(a, mine, at, kept);
  if (mine)
    take_stream<T>(a, at, p);
  score_all<T, NB>(kept, p, score, room);
  share_scores<NB + 1>(room, blocks, part);
  if (mine && a.norm != NULL)
    load_floats<T, RUN>((const T *)a.norm + c, norm);
  cluster_wait();
  float weight = mix_weight<NB + 1>(a, room, blocks, threadIdx.x % 32), squares = 0;
  float last = __shfl_sync(0xffffffffu, weight, NB);
#pragma unroll
  for (int i = 0; i < RUN; i++)
    p[i] *= last;
#pragma unroll
  for (int s = 0; s < NB; s++) {
    float w = __shfl_sync(0xffffffffu, weight, s);
#pragma unroll
    for (int i = 0; i < RUN; i++)
      p[i] += w * to_float(kept[s].at[i]);
  }
#pragma unroll
  for (int i = 0; i < RUN; i++)
    squares += p[i] * p[i];
  float factor = rsqrtf(share_squares<NB + 1>(room, blocks, part, squares) / a.width + a.norm_eps);
  if (!mine)
    return;
#pragma unroll
  for (int i = 0; i < RUN; i++)
    p[i] *= factor * (a.norm != NULL ? norm[i] : 1);
  store_floats<T, RUN>((T *)a.out + at, p);
}

/* ---------------------------------------------------------------- any width and count */

template <typename T>
OCT_DEVICE float
stream_at(const oct_cuda_residual_mix &a, size_t at) {
  float p = a.begins ? 0 : a.residual[at];
  return a.x != NULL ? p + to_float(((const T *)a.x)[at]) : p;
}

template <typename T>
OCT_DEVICE float
source_at(const oct_cuda_residual_mix &a, uint32_t source, size_t at) {
  return source < a.n_blocks ? to_float(((const T *)a.blocks)[source * a.block_stride + at])
                             : stream_at<T>(a, at);
}

template <typename T>
OCT_DEVICE float
mix_at(const oct_cuda_residual_mix &a, const float *weights, size_t at) {
  float sum = 0;
  for (uint32_t s = 0; s <= a.n_blocks; s++)
    sum += weights[s] * source_at<T>(a, s, at);
  return sum;
}

/* A block per row, which reads the sources three times; the stream is stored last. */
template <typename T>
static __global__ void
mix_plain(oct_cuda_residual_mix a) {
  __shared__ float room[32], weights[32];
  admit_successor();
  await_predecessors();
  size_t row = (size_t)blockIdx.x * a.width;
  for (uint32_t s = 0; a.out != NULL && s <= a.n_blocks; s++) {
    float squares = 0, dot = 0;
    for (uint32_t c = threadIdx.x; a.n_blocks > 0 && c < a.width; c += blockDim.x) {
      float v = source_at<T>(a, s, row + c);
      squares += v * v;
      dot += v * a.score[c];
    }
    squares = block_sum(squares, room);
    dot = block_sum(dot, room);
    if (threadIdx.x == 0)
      weights[s] = a.n_blocks > 0 ? dot * rsqrtf(squares / a.width + a.eps) : 0;
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    float score = threadIdx.x <= a.n_blocks ? weights[threadIdx.x] : -INFINITY;
    float weight = expf(score - warp_max(score));
    weights[threadIdx.x] = weight / warp_sum(weight);
  }
  __syncthreads();
  float squares = 0;
  for (uint32_t c = threadIdx.x; a.out != NULL && c < a.width; c += blockDim.x) {
    float v = mix_at<T>(a, weights, row + c);
    squares += v * v;
  }
  float factor = rsqrtf(block_sum(squares, room) / a.width + a.norm_eps);
  for (uint32_t c = threadIdx.x; c < a.width; c += blockDim.x) {
    float p = stream_at<T>(a, row + c), v = a.out != NULL ? mix_at<T>(a, weights, row + c) : 0;
    if (a.keep != NULL)
      ((T *)a.keep)[row + c] = from_float<T>(p);
    else if (a.x != NULL)
      a.residual[row + c] = p;
    if (a.out != NULL)
      ((T *)a.out)[row + c] =
          from_float<T>(v * factor * (a.norm != NULL ? to_float(((const T *)a.norm)[c]) : 1));
  }
}

/* ---------------------------------------------------------------- launches */

template <typename T, int NB>
static int
launch_rows(const oct_cuda_queue *queue, const oct_cuda_residual_mix *call) {
  uint32_t blocks = 1, threads = call->width / RUN;
  while (ceil_div(threads, blocks) > MIX_THREADS)
    blocks *= 2;
  threads = round_up(ceil_div(threads, blocks), 32);
  return launch_cluster(queue, mix_rows<T, NB>, blocks, dim3(call->n * blocks), dim3(threads), 0,
                        *call, blocks);
}

template <typename T>
static int
launch_mix(const oct_cuda_queue *queue, const oct_cuda_residual_mix *call) {
  if (call->width % RUN != 0 || call->width > RUN * MIX_THREADS * OCT_CLUSTER_MAX ||
      call->out == NULL || call->n_blocks > MIX_BLOCKS || call->block_stride % RUN != 0)
    return launch(queue, mix_plain<T>, dim3(call->n), dim3(MIX_THREADS), 0, *call);
  if (call->n_blocks <= 1)
    return launch_rows<T, 1>(queue, call);
  if (call->n_blocks <= 2)
    return launch_rows<T, 2>(queue, call);
  if (call->n_blocks <= 4)
    return launch_rows<T, 4>(queue, call);
  return launch_rows<T, MIX_BLOCKS>(queue, call);
}

int
oct_cuda_residual_mix_rows(const oct_cuda_queue *queue, const oct_cuda_residual_mix *call) {
  if (call->n == 0 || call->width == 0)
    return OCT_CUDA_OK;
  if (call->n_blocks > OCT_CUDA_MIX_BLOCKS_MAX)
    return OCT_CUDA_UNSUPPORTED;
  return OCT_BY_TYPE(call->type, T, launch_mix<T>(queue, call));
}
