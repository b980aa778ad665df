/* Kimi delta attention: tokens of a sequence one after another into a state that stays in shared
 * memory meanwhile. A block per sequence and head. */
#include "kernels/cuda/common.cuh"

OCT_DEVICE float
softplus(float x) {
  return x > 20 ? x : log1pf(expf(x));
}

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
    float rate = expf(kda.a_log[head]);
    room.decay[i] =
        expf(kda.decay_bound == 0 ? -rate * softplus(z) : kda.decay_bound * sigmoidf(rate * z));
  }
  float q_squares = block_sum(q * q, room.reduce), k_squares = block_sum(k * k, room.reduce);
  if (i < width) {
    room.q[i] = q * (rsqrtf((float)width) / sqrtf(q_squares + 1e-6f));
    room.k[i] = k / sqrtf(k_squares + 1e-6f);
  }
  __syncthreads();
  float beta = sigmoidf(to_float(((const T *)a.beta)[token * a.beta_stride + head]));
  if (i < width)
    ((T *)a.out)[token * a.out_stride + c] = from_float<T>(recur(state, room, width, i, beta));
  __syncthreads();
}

template <typename T, typename C>
static __global__ void
kda_run(oct_cuda_kda a, oct_cuda_batch b) {
  extern __shared__ float shared[];
  admit_successor();
  await_predecessors();
  uint32_t seq = blockIdx.y, head = blockIdx.x, width = a.kda.width;
  uint32_t first = b.seq_first[seq], end = b.seq_first[seq + 1];
  if (first >= end)
    return;
  kda_room room = {shared, shared + width, shared + 2 * width, shared + 3 * width,
                   shared + 4 * width};
  float *state = shared + 4 * width + 32;
  uint32_t slot = a.state_of[(size_t)b.seq_slot[seq] * a.state_of_stride];
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
launch_kda(const oct_cuda_queue *queue, const oct_cuda_kda *call) {
  uint32_t width = call->kda.width, threads = round_up(width, 32);
  dim3 grid(call->kda.n_heads, call->batch->n_seqs);
  size_t shared = (4 * (size_t)width + 32 + (size_t)width * width) * sizeof(float);
  if (call->conv_type == OCT_CUDA_F32)
    return launch_large(queue, kda_run<T, float>, grid, dim3(threads), shared, *call, *call->batch);
  if (call->conv_type == OCT_CUDA_BF16)
    return launch_large(queue, kda_run<T, bf16>, grid, dim3(threads), shared, *call, *call->batch);
  return OCT_CUDA_UNSUPPORTED;
}

int
oct_cuda_kda_run(const oct_cuda_queue *queue, const oct_cuda_kda *call) {
  if (call->batch->n_seqs == 0)
    return OCT_CUDA_OK;
  if (call->kda.width > 1024)
    return OCT_CUDA_UNSUPPORTED;
  return OCT_BY_TYPE(call->type, T, launch_kda<T>(queue, call));
}
