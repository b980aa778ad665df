/* Latent attention of a prompt in the expanded form: keys and values of every head have been made
 * from the latents; rotated parts of keys are shared by the heads. A block per query token and
 * head, as the plain kernel for pages. */
#include "kernels/cuda/attend.cuh"

#define WARPS 4

/* N elements of q and of a row. */
template <typename T>
OCT_DEVICE float
dot(const float *q, const T *row, uint32_t n) {
  float sum = 0;
  for (uint32_t c = 0; c < n; c++)
    sum += q[c] * to_float(row[c]);
  return sum;
}

/* What the warps found, [WARPS, value] and top and sum of each, and what earlier parts of the
 * context came to: to memory. */
template <typename T>
OCT_DEVICE void
put_row(const oct_cuda_mla_expanded &a, const float *room) {
  uint32_t token = blockIdx.x, head = blockIdx.y;
  const float *tops = room + WARPS * a.value, *sums = tops + WARPS;
  float all = -INFINITY, total = 0;
  for (int w = 0; w < WARPS; w++)
    all = fmaxf(all, tops[w]);
  for (int w = 0; w < WARPS; w++)
    total += sums[w] * exp2f(tops[w] - all);
  T *out = (T *)a.out + token * a.out_stride + (size_t)head * a.value;
  float *state =
      a.state != NULL ? a.state + ((size_t)token * a.n_heads + head) * (a.value + 2) : NULL;
  float best = all, keep = 1, old = 0;
  if (state != NULL && !a.begins) {
    best = fmaxf(all, state[0]);
    keep = exp2f(all - best);
    old = exp2f(state[0] - best);
    total = total * keep + state[1] * old;
  }
  for (uint32_t c = threadIdx.x; c < a.value; c += blockDim.x) {
    float x = 0;
    for (int w = 0; w < WARPS; w++)
      x += room[w * a.value + c] * exp2f(tops[w] - all);
    x = state != NULL && !a.begins ? x * keep + state[2 + c] * old : x;
    if (state == NULL || a.ends)
      out[c] = from_float<T>(x / total);
    else
      state[2 + c] = x;
  }
  __syncthreads();
  if (state != NULL && !a.ends && threadIdx.x == 0) {
    state[0] = best;
    state[1] = total;
  }
}

template <typename T, int D>
static __global__ void
attend_expanded(oct_cuda_mla_expanded a) {
  extern __shared__ float shared[];
  admit_successor();
  await_predecessors();
  uint32_t token = blockIdx.x, head = blockIdx.y, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint32_t both = a.nope + a.value, width = a.nope + a.rope;
  float *q = shared, *room = shared + width, *tops = room + WARPS * a.value, *sums = tops + WARPS;
  const T *from = (const T *)a.q + token * a.q_stride + (size_t)head * width;
  for (uint32_t c = threadIdx.x; c < width; c += blockDim.x)
    q[c] = to_float(from[c]);
  __syncthreads();
  float acc[D] = {}, top = -INFINITY, sum = 0;
  uint32_t seen = a.position - a.first_key + token + 1;
  uint32_t end = a.n_keys > 0 ? min(seen, a.n_keys) : seen;
  for (uint32_t base = 32 * warp; base < end; base += 32 * WARPS) {
    uint32_t n = min(32u, end - base), key = base + min(lane, n - 1);
    const T *kv = (const T *)a.kv + ((size_t)key * a.n_heads + head) * both;
    const T *latent = (const T *)a.latents + (size_t)key * (a.lora + a.rope);
    float score =
        (dot(q, kv, a.nope) + dot(q + a.nope, latent + a.lora, a.rope)) * a.scale * OCT_LOG2E;
    score = lane < n ? score : -INFINITY;
    float next = fmaxf(top, warp_max(score)), keep = exp2f(top - next), p = exp2f(score - next);
    sum = sum * keep + warp_sum(p);
    top = next;
#pragma unroll
    for (int i = 0; i < D; i++)
      acc[i] *= keep;
    for (uint32_t j = 0; j < n; j++) {
      float weight = __shfl_sync(0xffffffffu, p, j);
      const T *value = (const T *)a.kv + ((size_t)(base + j) * a.n_heads + head) * both + a.nope;
#pragma unroll
      for (int i = 0; i < D; i++)
        if (lane + 32 * i < a.value)
          acc[i] += weight * to_float(value[lane + 32 * i]);
    }
  }
#pragma unroll
  for (int i = 0; i < D; i++)
    if (lane + 32 * i < a.value)
      room[warp * a.value + lane + 32 * i] = acc[i];
  if (lane == 0) {
    tops[warp] = top;
    sums[warp] = sum;
  }
  __syncthreads();
  put_row<T>(a, room);
}

template <typename T>
static int
launch_expanded(const oct_cuda_queue *queue, const oct_cuda_mla_expanded *call) {
  dim3 grid(call->m, call->n_heads);
  size_t shared = (call->nope + call->rope + WARPS * (call->value + 2)) * sizeof(float);
  if (call->value <= 128)
    return launch(queue, attend_expanded<T, 4>, grid, dim3(32 * WARPS), shared, *call);
  if (call->value <= 512)
    return launch(queue, attend_expanded<T, 16>, grid, dim3(32 * WARPS), shared, *call);
  return OCT_CUDA_UNSUPPORTED;
}

uint32_t
oct_cuda_mla_expanded_paths(const oct_cuda_queue *queue, const oct_cuda_mla_expanded *call) {
  return 1u << (oct_mla_hopper_can(queue, call) ? OCT_CUDA_ATTENTION_HOPPER
                                                : OCT_CUDA_ATTENTION_PLAIN);
}

int
oct_cuda_mla_attend_expanded(const oct_cuda_queue *queue, const oct_cuda_mla_expanded *call) {
  if (call->m == 0)
    return OCT_CUDA_OK;
  if (call->first_key > call->position)
    return OCT_CUDA_UNSUPPORTED;
  if (oct_mla_hopper_can(queue, call))
    return oct_mla_hopper(queue, call);
  return OCT_BY_TYPE(call->type, T, launch_expanded<T>(queue, call));
}
