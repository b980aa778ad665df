/* Rotary positions and the paged cache: queries, keys and values of a batch are normed, rotated and
 * stored in one pass; latents likewise. */
#include "kernels/cuda/common.cuh"

/* Where a token's row of a head is: an element of the layer's pages. */
OCT_DEVICE size_t
page_row(const oct_cuda_kv &kv, const oct_cuda_tables &tables, uint32_t slot, uint32_t position,
         uint32_t head, size_t element_bytes, size_t *values) {
  uint32_t page = tables.pages[slot * tables.stride + position / kv.page_tokens];
  size_t row =
      ((size_t)head * kv.page_tokens + position % kv.page_tokens) * kv.width * element_bytes;
  *values = (size_t)kv.n_heads * kv.page_tokens * kv.width * element_bytes;
  return page * kv.page_bytes + row;
}

/* The rotated element c of a head whose elements are read by `at`. */
template <typename F>
OCT_DEVICE float
rotated(F at, uint32_t c, uint32_t dim, bool interleaved, const float *angles) {
  uint32_t half = dim / 2;
  if (interleaved) {
    float cosine = angles[c / 2], sine = angles[half + c / 2];
    return c % 2 == 0 ? at(c) * cosine - at(c + 1) * sine : at(c) * cosine + at(c - 1) * sine;
  }
  uint32_t pair = c < half ? c : c - half;
  float cosine = angles[pair], sine = angles[half + pair];
  return c < half ? at(c) * cosine - at(c + half) * sine : at(c) * cosine + at(c - half) * sine;
}

/* ---------------------------------------------------------------- grouped-query attention */

#define OCT_HEAD_MAX 512

/* A warp per head of a token: query heads first, then KV heads, whose warp stores k and v. The head
 * is held in shared memory as float32, normed, so that each lane finds its pairs. */
template <typename T, typename C>
static __global__ void
rope_store(oct_cuda_rope_store a, oct_cuda_batch b) {
  extern __shared__ float shared[];
  admit_successor();
  await_predecessors();
  uint32_t token = blockIdx.x, lane = threadIdx.x % 32, width = a.kv.width;
  uint32_t head = blockIdx.y * (blockDim.x / 32) + threadIdx.x / 32;
  float *x = shared + threadIdx.x / 32 * width;
  if (head >= a.n_heads + a.kv.n_heads || b.token_seq[token] == OCT_CUDA_NONE)
    return;
  bool is_q = head < a.n_heads;
  uint32_t kv_head = head - a.n_heads;
  const T *from = is_q ? (const T *)a.q + token * a.q_stride + (size_t)head * width
                       : (const T *)a.k + token * a.k_stride + (size_t)kv_head * width;
  const T *weight = (const T *)(is_q ? a.q_norm : a.k_norm);
  float sum = 0;
  for (uint32_t c = lane; c < width; c += 32) {
    x[c] = to_float(from[c]);
    sum += x[c] * x[c];
  }
  if (weight != NULL) {
    float factor = rsqrtf(warp_sum(sum) / width + a.eps);
    for (uint32_t c = lane; c < width; c += 32)
      x[c] *= factor * to_float(weight[c]);
  }
  __syncwarp();
  uint32_t position = b.token_position[token];
  const float *angles = a.angles + (size_t)position * a.rope_dim;
  auto at = [x](uint32_t c) { return x[c]; };
  if (is_q) {
    T *q = (T *)a.q + token * a.q_stride + (size_t)head * width;
    for (uint32_t c = lane; c < width; c += 32)
      q[c] =
          from_float<T>(c < a.rope_dim ? rotated(at, c, a.rope_dim, a.interleaved, angles) : x[c]);
    return;
  }
  uint32_t place = a.place != NULL ? a.place[token] : position;
  if (a.kv.base == NULL || place == OCT_CUDA_NONE)
    return;
  size_t values, row = page_row(a.kv, a.tables, b.seq_slot[b.token_seq[token]], place, kv_head,
                                sizeof(C), &values);
  C *k_to = (C *)((char *)a.kv.base + row), *v_to = (C *)((char *)a.kv.base + row + values);
  const T *v = (const T *)a.v + token * a.v_stride + (size_t)kv_head * width;
  float k_scale = a.kv.k_scale != NULL ? 1 / a.kv.k_scale[kv_head] : 1;
  float v_scale = a.kv.v_scale != NULL ? 1 / a.kv.v_scale[kv_head] : 1;
  for (uint32_t c = lane; c < width; c += 32) {
    float k = c < a.rope_dim ? rotated(at, c, a.rope_dim, a.interleaved, angles) : x[c];
    k_to[c] = from_float<C>(k * k_scale);
    v_to[c] = from_float<C>(to_float(v[c]) * v_scale);
  }
}

template <typename T>
static int
launch_rope_store(const oct_cuda_queue *queue, const oct_cuda_rope_store *call) {
  const oct_cuda_batch *b = call->batch;
  dim3 grid(b->n_tokens, ceil_div(call->n_heads + call->kv.n_heads, 4));
  size_t shared = 4 * call->kv.width * sizeof(float);
  switch (call->kv.type) {
  case OCT_CUDA_F32:
    return launch(queue, rope_store<T, float>, grid, dim3(128), shared, *call, *b);
  case OCT_CUDA_BF16:
    return launch(queue, rope_store<T, bf16>, grid, dim3(128), shared, *call, *b);
  case OCT_CUDA_FP8:
    return launch(queue, rope_store<T, fp8>, grid, dim3(128), shared, *call, *b);
  }
  return OCT_CUDA_UNSUPPORTED;
}

int
oct_cuda_rope_and_store(const oct_cuda_queue *queue, const oct_cuda_rope_store *call) {
  if (call->batch->n_tokens == 0)
    return OCT_CUDA_OK;
  if (call->kv.width > OCT_HEAD_MAX || call->rope_dim > call->kv.width || call->rope_dim % 2 != 0)
    return OCT_CUDA_UNSUPPORTED;
  return OCT_BY_TYPE(call->type, T, launch_rope_store<T>(queue, call));
}

/* ---------------------------------------------------------------- latent attention */

/* A block per token and run of warps: warp 0 of the first run stores the latent; the others rotate
 * a query head each. */
template <typename T, typename C>
static __global__ void
mla_store(oct_cuda_mla_store a, oct_cuda_batch b) {
  admit_successor();
  await_predecessors();
  uint32_t token = blockIdx.x, lane = threadIdx.x % 32, width = a.lora + a.rope;
  uint32_t item = blockIdx.y * (blockDim.x / 32) + threadIdx.x / 32;
  if (item > a.n_heads || b.token_seq[token] == OCT_CUDA_NONE)
    return;
  uint32_t position = b.token_position[token];
  const float *angles = a.angles + (size_t)position * a.rope;
  if (item > 0) {
    uint32_t head = item - 1;
    T *q = (T *)a.q + token * a.q_stride + (size_t)head * (a.nope + a.rope) + a.nope;
    T *absorbed = a.absorbed != NULL
                      ? (T *)a.absorbed + ((size_t)token * a.n_heads + head) * width + a.lora
                      : NULL;
    auto at = [q](uint32_t c) { return to_float(q[c]); };
    /* All lanes have read before any of them writes; rope <= 128 is 4 elements a lane. */
    float turned[4];
#pragma unroll
    for (uint32_t k = 0; k < 4; k++) {
      uint32_t c = lane + 32 * k;
      if (c < a.rope)
        turned[k] = a.angles != NULL ? rotated(at, c, a.rope, a.interleaved, angles) : at(c);
    }
    __syncwarp();
#pragma unroll
    for (uint32_t k = 0; k < 4; k++) {
      uint32_t c = lane + 32 * k;
      if (c >= a.rope)
        break;
      q[c] = from_float<T>(turned[k]);
      if (absorbed != NULL)
        absorbed[c] = from_float<T>(turned[k]);
    }
    return;
  }
  uint32_t place = a.place != NULL ? a.place[token] : position;
  if (place == OCT_CUDA_NONE)
    return;
  const T *x = (const T *)a.latents + token * a.latents_stride;
  float sum = 0;
  for (uint32_t c = lane; c < a.lora; c += 32) {
    float v = to_float(x[c]);
    sum += v * v;
  }
  float factor = rsqrtf(warp_sum(sum) / a.lora + a.eps);
  size_t values,
      row = page_row(a.kv, a.tables, b.seq_slot[b.token_seq[token]], place, 0, sizeof(C), &values);
  C *to = (C *)((char *)a.kv.base + row);
  float scale = a.kv.k_scale != NULL ? 1 / a.kv.k_scale[0] : 1;
  for (uint32_t c = lane; c < a.lora; c += 32)
    to[c] = from_float<C>(to_float(x[c]) * factor * to_float(((const T *)a.norm)[c]) * scale);
  auto at = [x, a](uint32_t c) { return to_float(x[a.lora + c]); };
  for (uint32_t c = lane; c < a.rope; c += 32)
    to[a.lora + c] = from_float<C>(
        (a.angles != NULL ? rotated(at, c, a.rope, a.interleaved, angles) : at(c)) * scale);
}

template <typename T>
static int
launch_mla_store(const oct_cuda_queue *queue, const oct_cuda_mla_store *call) {
  const oct_cuda_batch *b = call->batch;
  dim3 grid(b->n_tokens, ceil_div(call->n_heads + 1, 4));
  switch (call->kv.type) {
  case OCT_CUDA_F32:
    return launch(queue, mla_store<T, float>, grid, dim3(128), 0, *call, *b);
  case OCT_CUDA_BF16:
    return launch(queue, mla_store<T, bf16>, grid, dim3(128), 0, *call, *b);
  case OCT_CUDA_FP8:
    return launch(queue, mla_store<T, fp8>, grid, dim3(128), 0, *call, *b);
  }
  return OCT_CUDA_UNSUPPORTED;
}

int
oct_cuda_mla_norm_and_store(const oct_cuda_queue *queue, const oct_cuda_mla_store *call) {
  if (call->batch->n_tokens == 0)
    return OCT_CUDA_OK;
  if (call->rope > 128 || call->rope % 2 != 0)
    return OCT_CUDA_UNSUPPORTED;
  return OCT_BY_TYPE(call->type, T, launch_mla_store<T>(queue, call));
}

/* ---------------------------------------------------------------- out of the pages */

template <typename C, typename T>
static __global__ void
gather_latents(oct_cuda_kv kv, const uint32_t *pages, T *out) {
  admit_successor();
  await_predecessors();
  uint32_t position = blockIdx.x;
  const C *from =
      (const C *)((const char *)kv.base + pages[position / kv.page_tokens] * kv.page_bytes) +
      (size_t)(position % kv.page_tokens) * kv.width;
  float scale = kv.k_scale != NULL ? kv.k_scale[0] : 1;
  for (uint32_t c = threadIdx.x; c < kv.width; c += blockDim.x)
    out[(size_t)position * kv.width + c] = from_float<T>(to_float(from[c]) * scale);
}

template <typename T>
static int
launch_gather(const oct_cuda_queue *queue, const oct_cuda_kv *kv, const uint32_t *pages, uint32_t n,
              void *out) {
  switch (kv->type) {
  case OCT_CUDA_F32:
    return launch(queue, gather_latents<float, T>, dim3(n), dim3(128), 0, *kv, pages, (T *)out);
  case OCT_CUDA_BF16:
    return launch(queue, gather_latents<bf16, T>, dim3(n), dim3(128), 0, *kv, pages, (T *)out);
  case OCT_CUDA_FP8:
    return launch(queue, gather_latents<fp8, T>, dim3(n), dim3(128), 0, *kv, pages, (T *)out);
  }
  return OCT_CUDA_UNSUPPORTED;
}

int
oct_cuda_mla_gather(const oct_cuda_queue *queue, const oct_cuda_kv *kv, const uint32_t *pages,
                    uint32_t n, oct_cuda_type type, void *out) {
  if (n == 0)
    return OCT_CUDA_OK;
  return OCT_BY_TYPE(type, T, launch_gather<T>(queue, kv, pages, n, out));
}

static __global__ void
copy_pages(char *base, size_t page_bytes, size_t bytes, const uint32_t *from, const uint32_t *to) {
  await_predecessors();
  const uint4 *source = (const uint4 *)(base + from[blockIdx.x] * page_bytes);
  uint4 *target = (uint4 *)(base + to[blockIdx.x] * page_bytes);
  size_t n = bytes / sizeof *source, step = (size_t)gridDim.y * blockDim.x;
  for (size_t i = (size_t)blockIdx.y * blockDim.x + threadIdx.x; i < n; i += step)
    target[i] = source[i];
}

int
oct_cuda_copy_pages(const oct_cuda_queue *queue, void *base, size_t page_bytes, size_t bytes,
                    const uint32_t *from, const uint32_t *to, uint32_t n) {
  if (n == 0 || bytes == 0)
    return OCT_CUDA_OK;
  if (page_bytes % 16 != 0 || bytes % 16 != 0 || bytes > page_bytes)
    return OCT_CUDA_UNSUPPORTED;
  size_t blocks = (bytes / 16 + 255) / 256;
  return launch(queue, copy_pages, dim3(n, (uint32_t)(blocks < 32 ? blocks : 32)), dim3(256), 0,
                (char *)base, page_bytes, bytes, from, to);
}
