/* RMS norms: of the residual stream with what is added to it, quantised too, of heads, and gated.
 */
#include "kernels/cuda/common.cuh"

/* ---------------------------------------------------------------- residual and norm */

struct norm_args {
  uint32_t heads, width;
  const void *x;
  size_t x_stride;
  uint32_t parts;
  size_t part_stride;
  void *residual;
  size_t residual_stride;
  const void *weight;
  float eps;
  void *out;
  size_t out_stride;
  void *narrow;
  float *narrow_scale;
};

/* A block's row of e4m3 over its scale; v as it was stored. */
template <int N, int ITEMS>
OCT_DEVICE void
quantise_row(const norm_args &a, float (&v)[ITEMS][N], float *room) {
  float most = 0;
#pragma unroll
  for (int k = 0; k < ITEMS; k++)
#pragma unroll
    for (int i = 0; i < N; i++)
      if ((k * blockDim.x + threadIdx.x) * N < a.width)
        most = fmaxf(most, fabsf(v[k][i]));
  float scale = fmaxf(block_max(most, room) / 448, 1e-12f);
  if (threadIdx.x == 0)
    a.narrow_scale[blockIdx.x] = scale;
#pragma unroll
  for (int k = 0; k < ITEMS; k++) {
    uint32_t c = (k * blockDim.x + threadIdx.x) * N;
    if (c >= a.width)
      break;
#pragma unroll
    for (int i = 0; i < N; i++)
      v[k][i] /= scale;
    store_floats<fp8, N>((fp8 *)a.narrow + (size_t)blockIdx.x * a.width + c, v[k]);
  }
}

/* N elements of x, from element `at` of its row on. */
template <typename T, int N>
OCT_DEVICE void
load_addend(const norm_args &a, uint32_t row, size_t at, float (&v)[N]) {
  if (a.parts == 0) {
    load_floats<T, N>((const T *)a.x + row * a.x_stride + at, v);
    return;
  }
  const float *from = (const float *)a.x + row * a.x_stride + at;
  load_floats<float, N>(from, v);
  for (uint32_t p = 1; p < a.parts; p++) {
    float more[N];
    load_floats<float, N>(from + p * a.part_stride, more);
#pragma unroll
    for (int i = 0; i < N; i++)
      v[i] += more[i];
  }
}

/* A block per row, which stays in registers: ITEMS runs of N elements a thread. T: activations, R:
 * residual. */
template <typename T, typename R, int N, int ITEMS>
static __global__ void
__launch_bounds__(1024) norm_rows(norm_args a) {
  __shared__ float room[32];
  admit_successor();
  await_predecessors();
  uint32_t row = blockIdx.x / a.heads, head = blockIdx.x % a.heads;
  R *residual = (R *)a.residual + row * a.residual_stride + (size_t)head * a.width;
  float values[ITEMS][N], sum = 0;
#pragma unroll
  for (int k = 0; k < ITEMS; k++) {
    uint32_t c = (k * blockDim.x + threadIdx.x) * N;
    if (c >= a.width)
      break;
    if (a.x != NULL)
      load_addend<T, N>(a, row, (size_t)head * a.width + c, values[k]);
    if (a.residual != NULL) {
      float old[N];
      load_floats<R, N>(residual + c, old);
#pragma unroll
      for (int i = 0; i < N; i++)
        values[k][i] = a.x != NULL ? values[k][i] + old[i] : old[i];
      if (a.x != NULL)
        store_floats<R, N>(residual + c, values[k]);
    }
#pragma unroll
    for (int i = 0; i < N; i++)
      sum += values[k][i] * values[k][i];
  }
  if (a.out == NULL)
    return;
  float factor = rsqrtf(block_sum(sum, room) / a.width + a.eps);
  T *out = (T *)a.out + row * a.out_stride + (size_t)head * a.width;
#pragma unroll
  for (int k = 0; k < ITEMS; k++) {
    uint32_t c = (k * blockDim.x + threadIdx.x) * N;
    if (c >= a.width)
      break;
    float weight[N];
    if (a.weight != NULL)
      load_floats<T, N>((const T *)a.weight + c, weight);
#pragma unroll
    for (int i = 0; i < N; i++)
      values[k][i] =
          to_float(from_float<T>(values[k][i] * (factor * (a.weight != NULL ? weight[i] : 1))));
    store_floats<T, N>(out + c, values[k]);
  }
  if (a.narrow != NULL)
    quantise_row<N, ITEMS>(a, values, room);
}

template <typename T, typename R>
static int
launch_norm(const oct_cuda_queue *queue, uint32_t rows, const norm_args &a) {
  bool even = a.width % 8 == 0 && a.x_stride % 8 == 0 && a.residual_stride % 8 == 0 &&
              a.out_stride % 8 == 0;
  uint32_t step = even ? 8 : 1, threads = round_up(ceil_div(a.width, step), 32);
  if (threads > 1024)
    threads = 1024;
  if (ceil_div(a.width, threads * step) > (even ? 4u : 16u))
    return OCT_CUDA_UNSUPPORTED;
  if (!even)
    return launch(queue, norm_rows<T, R, 1, 16>, dim3(rows), dim3(threads), 0, a);
  if (a.width <= threads * step)
    return launch(queue, norm_rows<T, R, 8, 1>, dim3(rows), dim3(threads), 0, a);
  return launch(queue, norm_rows<T, R, 8, 4>, dim3(rows), dim3(threads), 0, a);
}

int
oct_cuda_rms_norm(const oct_cuda_queue *queue, const oct_cuda_norm *call) {
  uint32_t heads = call->heads > 0 ? call->heads : 1;
  size_t row = (size_t)heads * call->width;
  norm_args a = {heads,
                 call->width,
                 call->x,
                 call->x == NULL   ? 0
                 : call->parts > 0 ? row
                                   : call->x_stride,
                 call->x != NULL ? call->parts : 0,
                 call->n * row,
                 call->residual,
                 call->residual != NULL ? call->residual_stride : 0,
                 call->weight,
                 call->eps,
                 call->out,
                 call->out != NULL ? call->out_stride : 0,
                 call->out != NULL ? call->narrow : NULL,
                 call->narrow_scale};
  if (a.narrow != NULL && a.heads > 1)
    return OCT_CUDA_UNSUPPORTED;
  uint32_t rows = call->n * a.heads;
  if (rows == 0 || a.width == 0)
    return OCT_CUDA_OK;
  if (a.parts > 0 && queue->launches != NULL)
    oct_cuda_count_launch(queue->launches, NULL, "norm of parts");
  oct_cuda_type residual = call->residual != NULL ? call->residual_type : call->type;
  return OCT_BY_TYPE(call->type, T, OCT_BY_TYPE(residual, R, launch_norm<T, R>(queue, rows, a)));
}

/* ---------------------------------------------------------------- gated norm of heads */

/* A warp per head. */
template <typename T>
static __global__ void
gated_norm(oct_cuda_gated_norm a) {
  admit_successor();
  await_predecessors();
  uint32_t item = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (item >= a.n * a.heads)
    return;
  size_t row = item / a.heads, at = (size_t)(item % a.heads) * a.width;
  if (a.first != NULL && row < *a.first)
    return;
  const T *x = (const T *)a.x + row * a.x_stride + at;
  const T *gate = a.gate != NULL ? (const T *)a.gate + row * a.gate_stride + at : NULL;
  T *out = (T *)a.out + row * a.out_stride + at;
  float sum = 0;
  for (uint32_t c = lane; c < a.width; c += 32) {
    float v = to_float(x[c]);
    sum += v * v;
  }
  float factor = rsqrtf(warp_sum(sum) / a.width + a.eps);
  for (uint32_t c = lane; c < a.width; c += 32) {
    float weight = a.weight != NULL ? to_float(((const T *)a.weight)[c]) : 1;
    float open = gate != NULL ? sigmoidf(to_float(gate[c])) : 0.5f;
    out[c] = from_float<T>(to_float(x[c]) * factor * weight * open);
  }
}

/* LANES lanes per head, 8 elements each. */
template <typename T, int LANES>
static __global__ void
gated_norm_runs(oct_cuda_gated_norm a) {
  admit_successor();
  uint32_t item = (blockIdx.x * blockDim.x + threadIdx.x) / LANES;
  uint32_t c = threadIdx.x % LANES * 8;
  float weight[8], v[8] = {}, open[8] = {};
  if (a.weight != NULL)
    load_floats<T, 8>((const T *)a.weight + c, weight);
  await_predecessors();
  size_t row = item / a.heads, at = (size_t)(item % a.heads) * a.width + c;
  bool mine = item < a.n * a.heads && (a.first == NULL || row >= *a.first);
  if (mine)
    load_floats<T, 8>((const T *)a.x + row * a.x_stride + at, v);
  if (mine && a.gate != NULL)
    load_floats<T, 8>((const T *)a.gate + row * a.gate_stride + at, open);
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 8; i++)
    sum += v[i] * v[i];
#pragma unroll
  for (int d = LANES / 2; d > 0; d /= 2)
    sum += __shfl_xor_sync(0xffffffffu, sum, d);
  float factor = rsqrtf(sum / a.width + a.eps);
  if (!mine)
    return;
#pragma unroll
  for (int i = 0; i < 8; i++)
    v[i] *= factor * (a.weight != NULL ? weight[i] : 1) * sigmoidf(open[i]);
  store_floats<T, 8>((T *)a.out + row * a.out_stride + at, v);
}

template <typename T>
static int
launch_gated(const oct_cuda_queue *queue, const oct_cuda_gated_norm *call) {
  uint32_t items = call->n * call->heads;
  bool even = call->x_stride % 8 == 0 && call->gate_stride % 8 == 0 && call->out_stride % 8 == 0;
  if (even && call->width == 128)
    return launch(queue, gated_norm_runs<T, 16>, dim3(ceil_div(items, 8)), dim3(128), 0, *call);
  if (even && call->width == 64)
    return launch(queue, gated_norm_runs<T, 8>, dim3(ceil_div(items, 16)), dim3(128), 0, *call);
  return launch(queue, gated_norm<T>, dim3(ceil_div(items, 4)), dim3(128), 0, *call);
}

int
oct_cuda_gated_rms_norm(const oct_cuda_queue *queue, const oct_cuda_gated_norm *call) {
  if (call->n * call->heads == 0)
    return OCT_CUDA_OK;
  return OCT_BY_TYPE(call->type, T, launch_gated<T>(queue, call));
}
