/* Embeddings, gated activations, sums, copies of rows, conversions: one pass over memory each. */
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/gather.h"

/* Elements [N at, …) of a row are thread `at`'s: a grid of rows by runs of the row. */
#define OCT_ROW_THREADS 128

static dim3
row_grid(uint32_t rows, uint32_t width, uint32_t step) {
  return dim3(rows, ceil_div(width, step * OCT_ROW_THREADS));
}

/* ---------------------------------------------------------------- embeddings, rows */

template <typename W, typename T, int N>
static __global__ void
take_rows(const W *table, size_t stride, uint32_t first, uint32_t rows, uint32_t width,
          const uint32_t *ids, T *out, size_t out_stride) {
  /* Whoever comes later finds what was written before this one: oct_cuda_attention.settled. */
  await_predecessors();
  admit_successor();
  uint32_t c = (blockIdx.y * blockDim.x + threadIdx.x) * N, id = ids[blockIdx.x] - first;
  if (c >= width)
    return;
  float v[N] = {};
  if (id < rows)
    load_floats<W, N>(table + id * stride + c, v);
  store_floats<T, N>(out + blockIdx.x * out_stride + c, v);
}

template <typename W, typename T>
static int
launch_take(const oct_cuda_queue *queue, const void *table, size_t stride, uint32_t first,
            uint32_t rows, uint32_t width, const uint32_t *ids, uint32_t n, void *out,
            size_t out_stride) {
  if (width % 8 == 0 && stride % 8 == 0 && out_stride % 8 == 0)
    return launch(queue, take_rows<W, T, 8>, row_grid(n, width, 8), dim3(OCT_ROW_THREADS), 0,
                  (const W *)table, stride, first, rows, width, ids, (T *)out, out_stride);
  return launch(queue, take_rows<W, T, 1>, row_grid(n, width, 1), dim3(OCT_ROW_THREADS), 0,
                (const W *)table, stride, first, rows, width, ids, (T *)out, out_stride);
}

int
oct_cuda_embed_part(const oct_cuda_queue *queue, const oct_cuda_embed *call, uint32_t first) {
  if (call->n == 0)
    return OCT_CUDA_OK;
  return OCT_BY_TYPE(
      call->table_type, W,
      OCT_BY_TYPE(call->type, T,
                  launch_take<W, T>(queue, call->table, call->width, first, call->rows, call->width,
                                    call->ids, call->n, call->out, call->width)));
}

int
oct_cuda_embed_rows(const oct_cuda_queue *queue, const oct_cuda_embed *call) {
  return oct_cuda_embed_part(queue, call, 0);
}

int
oct_cuda_gather_rows(const oct_cuda_queue *queue, const oct_cuda_gather *call) {
  if (call->n == 0)
    return OCT_CUDA_OK;
  return OCT_BY_TYPE(call->type, T,
                     launch_take<T, T>(queue, call->x, call->x_stride, 0, OCT_CUDA_NONE,
                                       call->width, call->rows, call->n, call->out,
                                       call->out_stride));
}

/* ---------------------------------------------------------------- gated activations */

template <typename T, int N>
static __global__ void
glu_rows(oct_cuda_glu a) {
  admit_successor();
  await_predecessors();
  uint32_t c = (blockIdx.y * blockDim.x + threadIdx.x) * N, row = blockIdx.x;
  if (c >= a.inner || (a.n_device != NULL && row >= *a.n_device))
    return;
  const T *x = (const T *)a.x + row * a.x_stride;
  float gate[N], up[N];
  if (a.pairs) {
    float both[2 * N];
    load_floats<T, N>(x + 2 * c, *(float(*)[N])both);
    load_floats<T, N>(x + 2 * c + N, *(float(*)[N])(both + N));
#pragma unroll
    for (int i = 0; i < N; i++) {
      gate[i] = both[2 * i];
      up[i] = both[2 * i + 1];
    }
  } else {
    load_floats<T, N>(x + c, gate);
    load_floats<T, N>(x + a.inner + c, up);
  }
#pragma unroll
  for (int i = 0; i < N; i++)
    gate[i] = glu(a.params, gate[i], up[i]);
  store_floats<T, N>((T *)a.out + row * a.out_stride + c, gate);
}

template <typename T>
static int
launch_glu(const oct_cuda_queue *queue, const oct_cuda_glu *call) {
  if (call->inner % 8 == 0 && call->x_stride % 8 == 0 && call->out_stride % 8 == 0)
    return launch(queue, glu_rows<T, 8>, row_grid(call->n, call->inner, 8), dim3(OCT_ROW_THREADS),
                  0, *call);
  return launch(queue, glu_rows<T, 1>, row_grid(call->n, call->inner, 1), dim3(OCT_ROW_THREADS), 0,
                *call);
}

int
oct_cuda_glu_rows(const oct_cuda_queue *queue, const oct_cuda_glu *call) {
  if (call->n == 0)
    return OCT_CUDA_OK;
  return OCT_BY_TYPE(call->type, T, launch_glu<T>(queue, call));
}

template <typename T, int N>
static __global__ void
gate_rows(oct_cuda_gate a) {
  admit_successor();
  await_predecessors();
  uint32_t c = (blockIdx.y * blockDim.x + threadIdx.x) * N;
  if (c >= a.width)
    return;
  T *x = (T *)a.x + blockIdx.x * a.x_stride + c;
  float v[N], gate[N];
  load_floats<T, N>(x, v);
  load_floats<T, N>((const T *)a.gate + blockIdx.x * a.gate_stride + c, gate);
#pragma unroll
  for (int i = 0; i < N; i++)
    v[i] *= sigmoidf(gate[i]);
  store_floats<T, N>(x, v);
}

template <typename T>
static int
launch_gate(const oct_cuda_queue *queue, const oct_cuda_gate *call) {
  if (call->width % 8 == 0 && call->x_stride % 8 == 0 && call->gate_stride % 8 == 0)
    return launch(queue, gate_rows<T, 8>, row_grid(call->n, call->width, 8), dim3(OCT_ROW_THREADS),
                  0, *call);
  return launch(queue, gate_rows<T, 1>, row_grid(call->n, call->width, 1), dim3(OCT_ROW_THREADS), 0,
                *call);
}

int
oct_cuda_sigmoid_gate(const oct_cuda_queue *queue, const oct_cuda_gate *call) {
  if (call->n == 0 || call->width == 0)
    return OCT_CUDA_OK;
  return OCT_BY_TYPE(call->type, T, launch_gate<T>(queue, call));
}

/* ---------------------------------------------------------------- sums */

template <typename T, typename Y, int N>
static __global__ void
add_rows(oct_cuda_add a) {
  admit_successor();
  await_predecessors();
  uint32_t c = (blockIdx.y * blockDim.x + threadIdx.x) * N, row = blockIdx.x;
  if (c >= a.width)
    return;
  Y *y = (Y *)a.y + row * a.y_stride + c;
  float more[N], sum[N], factor = 1;
  load_floats<Y, N>(y, sum);
  load_floats<T, N>(a.x != NULL ? (const T *)a.x + row * a.x_stride + c : (const T *)a.bias + c,
                    more);
  if (a.x != NULL && a.row_gate != NULL)
    factor = sigmoidf(a.row_gate[row]);
#pragma unroll
  for (int i = 0; i < N; i++)
    sum[i] += factor * more[i];
  store_floats<Y, N>(y, sum);
}

template <typename T, typename Y>
static int
launch_add(const oct_cuda_queue *queue, const oct_cuda_add *call) {
  size_t x_stride = call->x != NULL ? call->x_stride : 0;
  if (call->width % 8 == 0 && x_stride % 8 == 0 && call->y_stride % 8 == 0)
    return launch(queue, add_rows<T, Y, 8>, row_grid(call->n, call->width, 8),
                  dim3(OCT_ROW_THREADS), 0, *call);
  return launch(queue, add_rows<T, Y, 1>, row_grid(call->n, call->width, 1), dim3(OCT_ROW_THREADS),
                0, *call);
}

int
oct_cuda_add_rows(const oct_cuda_queue *queue, const oct_cuda_add *call) {
  if (call->n == 0)
    return OCT_CUDA_OK;
  return OCT_BY_TYPE(call->type, T, OCT_BY_TYPE(call->y_type, Y, launch_add<T, Y>(queue, call)));
}

/* ---------------------------------------------------------------- conversions */

template <typename F, typename T>
static __global__ void
convert(const F *from, T *to, size_t n) {
  admit_successor();
  await_predecessors();
  size_t step = (size_t)gridDim.x * blockDim.x;
  for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step)
    to[i] = from_float<T>(to_float(from[i]));
}

template <typename F, typename T>
static int
launch_convert(const oct_cuda_queue *queue, const void *from, void *to, size_t n) {
  size_t blocks = (n + 255) / 256, most = (size_t)queue->sm_count * 16;
  return launch(queue, convert<F, T>, dim3((uint32_t)(blocks < most ? blocks : most)), dim3(256), 0,
                (const F *)from, (T *)to, n);
}

template <typename F>
static int
convert_to(const oct_cuda_queue *queue, const void *from, oct_cuda_type type, void *to, size_t n) {
  if (type == OCT_CUDA_FP8)
    return launch_convert<F, fp8>(queue, from, to, n);
  return OCT_BY_TYPE(type, T, launch_convert<F, T>(queue, from, to, n));
}

int
oct_cuda_convert(const oct_cuda_queue *queue, oct_cuda_type from_type, const void *from,
                 oct_cuda_type to_type, void *to, size_t n) {
  if (n == 0)
    return OCT_CUDA_OK;
  if (from_type == OCT_CUDA_FP8)
    return convert_to<fp8>(queue, from, to_type, to, n);
  return OCT_BY_TYPE(from_type, F, convert_to<F>(queue, from, to_type, to, n));
}

/* ---------------------------------------------------------------- rows to fp8 */

template <typename T, int N>
static __global__ void
quantise_rows(oct_cuda_quantise a) {
  __shared__ float room[32];
  admit_successor();
  await_predecessors();
  const T *x = (const T *)a.x + blockIdx.x * a.x_stride;
  fp8 *out = (fp8 *)a.out + (size_t)blockIdx.x * a.width;
  float most = 0, v[N];
  for (uint32_t c = N * threadIdx.x; c < a.width; c += N * blockDim.x) {
    load_floats<T, N>(x + c, v);
#pragma unroll
    for (int i = 0; i < N; i++)
      most = fmaxf(most, fabsf(v[i]));
  }
  float scale = fmaxf(block_max(most, room) / 448, 1e-12f);
  if (threadIdx.x == 0)
    a.scale[blockIdx.x] = scale;
  for (uint32_t c = N * threadIdx.x; c < a.width; c += N * blockDim.x) {
    load_floats<T, N>(x + c, v);
#pragma unroll
    for (int i = 0; i < N; i++)
      v[i] /= scale;
    store_floats<fp8, N>(out + c, v);
  }
}

template <typename T>
static int
launch_quantise(const oct_cuda_queue *queue, const oct_cuda_quantise *call) {
  if (call->width % 8 == 0 && call->x_stride % 8 == 0)
    return launch(queue, quantise_rows<T, 8>, dim3(call->n), dim3(256), 0, *call);
  return launch(queue, quantise_rows<T, 1>, dim3(call->n), dim3(256), 0, *call);
}

int
oct_cuda_quantise_fp8(const oct_cuda_queue *queue, const oct_cuda_quantise *call) {
  if (call->n == 0)
    return OCT_CUDA_OK;
  return OCT_BY_TYPE(call->type, T, launch_quantise<T>(queue, call));
}
