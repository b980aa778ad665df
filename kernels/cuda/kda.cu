/* Kimi delta attention: which kernel takes which sequences, and the recurrent one for any width:
 * tokens of a sequence one after another into a state that stays in shared memory meanwhile. A
 * block per sequence and head. */
#include "kernels/cuda/kda-chunk.cuh"

struct kda_room {
  float *q, *k, *v, *decay, *reduce; /* [width] each; reduce [32] */
};

/* The short convolution of channel c and its SiLU; the inputs move on by one. */
template <typename C>
OCT_DEVICE float
convolve(const oct_kda &kda, const float *taps, C *inputs, size_t channels, size_t c, float x) {
  float sum = 0;
  for (uint32_t t = 0; t + 1 < kda.taps; t++) {
    C stored = inputs[t * channels + c];
    sum += taps[c * kda.taps + t] * to_float(stored);
    if (t > 0)
      inputs[(t - 1) * channels + c] = stored;
  }
  sum += taps[c * kda.taps + kda.taps - 1] * x;
  if (kda.taps > 1)
    inputs[(kda.taps - 2) * channels + c] = from_float<C>(x);
  return sum * sigmoidf(sum);
}

/* Thread e has column e of the state: s[d * width + e] over all d. */
OCT_DEVICE float
recur(float *s, const kda_room &room, uint32_t width, uint32_t e, float beta) {
  float seen = 0;
  for (uint32_t d = 0; d < width; d++) {
    float x = s[d * width + e] * room.decay[d];
    s[d * width + e] = x;
    seen += room.k[d] * x;
  }
  float change = beta * (room.v[e] - seen), out = 0;
  for (uint32_t d = 0; d < width; d++) {
    float x = s[d * width + e] + room.k[d] * change;
    s[d * width + e] = x;
    out += room.q[d] * x;
  }
  return out;
}

template <typename T, typename C>
OCT_DEVICE void
take_token(const oct_cuda_kda &a, const kda_room &room, C *conv, float *state, uint32_t head,
           uint32_t token) {
  const oct_kda &kda = a.kda;
  uint32_t width = kda.width, i = threadIdx.x;
  size_t channels = (size_t)kda.n_heads * width, inputs = (kda.taps - 1) * channels;
  size_t c = (size_t)head * width + i;
  float q = 0, k = 0;
  if (i < width) {
    q = convolve(kda, kda.q_conv, conv, channels, c,
                 to_float(((const T *)a.q)[token * a.q_stride + c]));
    k = convolve(kda, kda.k_conv, conv + inputs, channels, c,
                 to_float(((const T *)a.k)[token * a.k_stride + c]));
    room.v[i] = convolve(kda, kda.v_conv, conv + 2 * inputs, channels, c,
                         to_float(((const T *)a.v)[token * a.v_stride + c]));
    float z = kda.dt_bias[c];
    if (a.z != NULL)
      z += to_float(((const T *)a.z)[token * a.z_stride + c]);
    room.decay[i] = expf(kda_log_decay(kda, expf(kda.a_log[head]), z));
  }
  float q_squares = block_sum(q * q, room.reduce), k_squares = block_sum(k * k, room.reduce);
  if (i < width) {
    room.q[i] = q * (rsqrtf((float)width) / sqrtf(q_squares + KDA_NORM_EPS));
    room.k[i] = k / sqrtf(k_squares + KDA_NORM_EPS);
  }
  __syncthreads();
  float beta = sigmoidf(to_float(((const T *)a.beta)[token * a.beta_stride + head]));
  if (i < width)
    ((T *)a.out)[token * a.out_stride + c] = from_float<T>(recur(state, room, width, i, beta));
  __syncthreads();
}

template <typename T, typename C>
static __global__ void
kda_recurrent(oct_cuda_kda a, oct_cuda_batch b, uint32_t first_seq) {
  extern __shared__ float shared[];
  admit_successor();
  await_predecessors();
  uint32_t seq = first_seq + blockIdx.y, head = blockIdx.x, width = a.kda.width;
  uint32_t first = b.seq_first[seq], end = b.seq_first[seq + 1];
  if (first >= end)
    return;
  kda_room room = {shared, shared + width, shared + 2 * width, shared + 3 * width,
                   shared + 4 * width};
  float *state = shared + 4 * width + 32;
  size_t slot = kda_slot(a, b, seq);
  float *home = a.states + slot * a.state_stride + (size_t)head * width * width;
  C *conv = (C *)a.conv + slot * a.conv_stride;
  size_t channels = (size_t)a.kda.n_heads * width;
  bool fresh = b.seq_start[seq] == 0;
  for (uint32_t i = threadIdx.x; i < width * width; i += blockDim.x)
    state[i] = fresh ? 0 : home[i];
  for (uint32_t t = 0; fresh && t < 3 * (a.kda.taps - 1); t++)
    if (threadIdx.x < width)
      conv[t * channels + (size_t)head * width + threadIdx.x] = from_float<C>(0);
  __syncthreads();
  for (uint32_t token = first; token < end; token++)
    take_token<T, C>(a, room, conv, state, head, token);
  for (uint32_t i = threadIdx.x; i < width * width; i += blockDim.x)
    home[i] = state[i];
}

template <typename T>
static int
launch_recurrent(const oct_cuda_queue *queue, const oct_cuda_kda *call, uint32_t first_seq) {
  uint32_t width = call->kda.width, threads = round_up(width, 32), end = call->batch->n_seqs;
  size_t shared = (4 * (size_t)width + 32 + (size_t)width * width) * sizeof(float);
  int error = OCT_CUDA_OK;
  if (call->conv_type != OCT_CUDA_F32 && call->conv_type != OCT_CUDA_BF16)
    return OCT_CUDA_UNSUPPORTED;
  for (uint32_t first = first_seq; first < end && error == OCT_CUDA_OK; first += OCT_GRID_MOST) {
    dim3 grid(call->kda.n_heads, within_grid(end - first)), block(threads);
    error = call->conv_type == OCT_CUDA_F32
                ? launch_large(queue, kda_recurrent<T, float>, grid, block, shared, *call,
                               *call->batch, first)
                : launch_large(queue, kda_recurrent<T, bf16>, grid, block, shared, *call,
                               *call->batch, first);
  }
  return error;
}

/* The outputs of sequences from first_seq on get their norm and gate. */
static int
norm_outputs(const oct_cuda_queue *queue, const oct_cuda_kda *call, uint32_t first_seq) {
  const oct_cuda_gated_norm norm = {.type = call->type,
                                    .n = call->batch->n_tokens,
                                    .heads = call->kda.n_heads,
                                    .width = call->kda.width,
                                    .first =
                                        first_seq > 0 ? call->batch->seq_first + first_seq : NULL,
                                    .x = call->out,
                                    .gate = call->gate,
                                    .weight = call->norm,
                                    .x_stride = call->out_stride,
                                    .gate_stride = call->gate_stride,
                                    .eps = call->norm_eps,
                                    .out = call->out,
                                    .out_stride = call->out_stride};
  return oct_cuda_gated_rms_norm(queue, &norm);
}

/* States and weights come by 16 bytes, gates and outputs by four elements. */
static bool
can_be_fast(const oct_cuda_queue *queue, const oct_cuda_kda *call) {
  return call->kda.width == KDA_WIDTH && call->kda.taps == KDA_TAPS && queue->capability >= 90 &&
         (call->state_stride | call->gate_stride | call->out_stride) % 4 == 0;
}

/* A token's bits are the same alone and within a run: none goes in chunks. */
static bool
is_fixed(const oct_cuda_queue *queue) {
  return (queue->flags & OCT_CUDA_FIXED_ORDER) != 0;
}

/* Of all heads of a chunk. */
static size_t
chunk_bytes(const oct_cuda_kda *call) {
  size_t record = call->type == OCT_CUDA_BF16 ? sizeof(chunk_record<parts_of<bf16>>)
                                              : sizeof(chunk_record<parts_of<float>>);
  return call->kda.n_heads * record;
}

/* Chunks of a pass by which records keep to the limit of a workspace, of `all` at most. */
static uint32_t
chunks_of_pass(const oct_cuda_kda *call, size_t bytes, uint32_t all) {
  size_t n = bytes / chunk_bytes(call);
  return within_grid(n < all ? n : all);
}

/* Numbers that chunks of sequences behind the decodes may have. */
static uint32_t
chunk_numbers(const oct_cuda_kda *call) {
  const oct_cuda_batch *b = call->batch;
  return b->n_tokens / CHUNK + b->n_seqs - call->n_decode;
}

size_t
oct_cuda_kda_workspace(const oct_cuda_queue *queue, const oct_cuda_kda *call) {
  if (!can_be_fast(queue, call) || is_fixed(queue) || call->n_decode >= call->batch->n_seqs)
    return 0;
  uint32_t n = chunks_of_pass(call, OCT_CUDA_KDA_WORKSPACE, chunk_numbers(call));
  return (n > 0 ? n : 1) * chunk_bytes(call);
}

/* Rows come by pairs of elements. */
static bool
can_chunk(const oct_cuda_kda *call, uint32_t first_seq) {
  size_t strides = call->q_stride | call->k_stride | call->v_stride | call->z_stride |
                   call->out_stride | call->conv_stride;
  return call->workspace != NULL && strides % 2 == 0 &&
         call->batch->n_seqs - first_seq <= OCT_GRID_MOST &&
         chunks_of_pass(call, call->workspace_bytes, 1) > 0;
}

static int
run_chunks(const oct_cuda_queue *queue, const oct_cuda_kda *call, uint32_t first_seq) {
  uint32_t all = chunk_numbers(call), step = chunks_of_pass(call, call->workspace_bytes, all);
  int error = OCT_CUDA_OK;
  for (uint32_t first = 0; first < all && error == OCT_CUDA_OK; first += step) {
    chunk_pass pass = {first_seq, first, first + step < all ? first + step : all};
    error = oct_kda_make_chunks(queue, call, &pass);
    if (error == OCT_CUDA_OK)
      error = oct_kda_take_chunks(queue, call, &pass);
  }
  return error;
}

int
oct_cuda_kda_run(const oct_cuda_queue *queue, const oct_cuda_kda *call) {
  uint32_t n_seqs = call->batch->n_seqs, n_decode = 0;
  bool fast = can_be_fast(queue, call);
  int error = OCT_CUDA_OK;
  if (call->kda.width > 1024)
    return OCT_CUDA_UNSUPPORTED;
  if (fast && is_fixed(queue))
    return oct_kda_decode_runs(queue, call);
  if (fast)
    n_decode = call->n_decode < n_seqs ? call->n_decode : n_seqs;
  if (n_decode > 0)
    error = oct_kda_decode(queue, call);
  if (error != OCT_CUDA_OK || n_decode == n_seqs)
    return error;
  error = fast && can_chunk(call, n_decode)
              ? run_chunks(queue, call, n_decode)
              : OCT_BY_TYPE(call->type, T, launch_recurrent<T>(queue, call, n_decode));
  if (error == OCT_CUDA_OK && call->norm != NULL)
    error = norm_outputs(queue, call, n_decode);
  return error;
}
