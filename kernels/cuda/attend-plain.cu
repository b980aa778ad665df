/* Attention for any head size and type: a block per token and query head. Each warp takes every
 * fourth run of 32 keys, a lane a key, with a softmax of its own; the block joins them. */
#include "kernels/cuda/attend.cuh"

#define WARPS 4

/* q in shared memory times a key, N elements at once. */
template <typename C, int N>
OCT_DEVICE float
dot(const float *q, const C *key, uint32_t width) {
  float sum = 0;
  for (uint32_t c = 0; c < width; c += N) {
    float k[N];
    load_floats<C, N>(key + c, k);
#pragma unroll
    for (int i = 0; i < N; i++)
      sum += q[c + i] * k[i];
  }
  return sum;
}

/* Joins the warps' results and writes the row. room: WARPS * (value_width + 2) floats. */
template <typename T, int D>
OCT_DEVICE void
join_warps(const attend_args &a, const float (&acc)[D], float top, float sum, float *room,
           uint32_t head, T *out) {
  uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, width = a.value_width;
  float *tops = room + WARPS * width, *sums = tops + WARPS;
#pragma unroll
  for (int i = 0; i < D; i++)
    if (lane + 32 * i < width)
      room[warp * width + lane + 32 * i] = acc[i];
  if (lane == 0) {
    tops[warp] = top;
    sums[warp] = sum;
  }
  __syncthreads();
  float all = -INFINITY, total = 0;
  for (int w = 0; w < WARPS; w++)
    all = fmaxf(all, tops[w]);
  for (int w = 0; w < WARPS; w++)
    total += tops[w] > -INFINITY ? sums[w] * exp2f(tops[w] - all) : 0;
  float factor = finish_softmax(all, total, a.sinks, head) * value_scale(a, head / a.group);
  for (uint32_t c = threadIdx.x; c < width; c += blockDim.x) {
    float x = 0;
    for (int w = 0; w < WARPS; w++)
      if (tops[w] > -INFINITY)
        x += room[w * width + c] * exp2f(tops[w] - all);
    out[c] = from_float<T>(x * factor);
  }
}

template <typename T, typename C, int N, int D>
static __global__ void
attend_plain(attend_args a) {
  extern __shared__ float shared[];
  admit_successor();
  await_predecessors();
  uint32_t token = blockIdx.x, head = blockIdx.y, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint32_t seq = a.batch.token_seq[token];
  if (seq != OCT_CUDA_NONE && (seq < a.first_seq || seq - a.first_seq >= a.n_seqs))
    return;
  T *out = (T *)a.out + token * a.out_stride + (size_t)head * a.value_width;
  if (seq == OCT_CUDA_NONE) {
    for (uint32_t c = threadIdx.x; c < a.value_width; c += blockDim.x)
      out[c] = from_float<T>(0);
    return;
  }
  const T *q = (const T *)a.q + token * a.q_stride + (size_t)head * a.kv.width;
  for (uint32_t c = threadIdx.x; c < a.kv.width; c += blockDim.x)
    shared[c] = to_float(q[c]);
  __syncthreads();
  page_reader pages = open_pages(a.kv, a.tables, a.batch.seq_slot[seq], head / a.group, sizeof(C));
  size_t values = a.kv.has_values ? pages.half_bytes : 0;
  float scale = score_scale(a, head / a.group), acc[D] = {}, top = -INFINITY, sum = 0;
  uint32_t end = a.batch.token_position[token] + 1;
  uint32_t begin = a.window != 0 && end > a.window ? end - a.window : 0;
  for (uint32_t base = begin + 32 * warp; base < end; base += 32 * WARPS) {
    uint32_t n = min(32u, end - base);
    const char *key = key_row(pages, base + min(lane, n - 1));
    float score = cap_score(dot<C, N>(shared, (const C *)key, a.kv.width), scale, a.soft_cap);
    score = lane < n ? score : -INFINITY;
    float next = fmaxf(top, warp_max(score)), keep = exp2f(top - next), p = exp2f(score - next);
    sum = sum * keep + warp_sum(p);
    top = next;
#pragma unroll
    for (int i = 0; i < D; i++)
      acc[i] *= keep;
    for (uint32_t j = 0; j < n; j++) {
      float weight = __shfl_sync(0xffffffffu, p, j);
      const C *value =
          (const C *)((const char *)__shfl_sync(0xffffffffu, (uint64_t)key, j) + values);
#pragma unroll
      for (int i = 0; i < D; i++)
        if (lane + 32 * i < a.value_width)
          acc[i] += weight * to_float(value[lane + 32 * i]);
    }
  }
  join_warps<T, D>(a, acc, top, sum, shared + (a.kv.width + 3) / 4 * 4, head, out);
}

template <typename T, typename C, int N>
static int
by_width(const oct_cuda_queue *queue, const attend_args &a) {
  dim3 grid(a.batch.n_tokens, a.n_heads);
  size_t shared = (round_up(a.kv.width, 4) + WARPS * (a.value_width + 2)) * sizeof(float);
  if (a.value_width <= 64)
    return launch(queue, attend_plain<T, C, N, 2>, grid, dim3(32 * WARPS), shared, a);
  if (a.value_width <= 128)
    return launch(queue, attend_plain<T, C, N, 4>, grid, dim3(32 * WARPS), shared, a);
  if (a.value_width <= 256)
    return launch(queue, attend_plain<T, C, N, 8>, grid, dim3(32 * WARPS), shared, a);
  if (a.value_width <= 512)
    return launch(queue, attend_plain<T, C, N, 16>, grid, dim3(32 * WARPS), shared, a);
  return OCT_CUDA_UNSUPPORTED;
}

template <typename T, typename C>
static int
by_alignment(const oct_cuda_queue *queue, const attend_args &a) {
  constexpr int N = 16 / sizeof(C);
  if (a.kv.width % N == 0)
    return by_width<T, C, N>(queue, a);
  return by_width<T, C, 1>(queue, a);
}

template <typename T>
static int
by_cache(const oct_cuda_queue *queue, const attend_args &a) {
  switch (a.kv.type) {
  case OCT_CUDA_F32:
    return by_alignment<T, float>(queue, a);
  case OCT_CUDA_BF16:
    return by_alignment<T, bf16>(queue, a);
  case OCT_CUDA_FP8:
    return by_alignment<T, fp8>(queue, a);
  }
  return OCT_CUDA_UNSUPPORTED;
}

int
oct_attend_plain(const oct_cuda_queue *queue, oct_cuda_type type, const attend_args &args) {
  return OCT_BY_TYPE(type, T, by_cache<T>(queue, args));
}
