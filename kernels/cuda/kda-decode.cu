/* Delta attention of one token a sequence, all in one launch: convolutions, norms, gates, the state
 * read and written once, the output with its norm and gate.
 *
 * A block has a head of a sequence. One copy brings its state of 64 KiB into shared memory, and
 * three such blocks on a multiprocessor keep memory busy while others compute. A warp has 32
 * columns and all rows: nothing of the state passes between warps. One pass makes both S'k and S'q:
 * as S = D
 * + k u' with the decayed state D, o = S'q = D'q + u (k'q), so that u is known before the only
 * other pass, which adds k u' on the way back to memory. */
#include "kernels/cuda/barrier.cuh"
#include "kernels/cuda/kda.cuh"

enum { THREADS = KDA_WIDTH, WARPS = THREADS / 32, COLUMNS = KDA_WIDTH / WARPS };
/* A lane has 4 columns of every 4th row. */
enum { LANES = COLUMNS / 4, GROUPS = 32 / LANES, ROWS = KDA_WIDTH / GROUPS };

struct decode_room {
  float state[KDA_WIDTH][KDA_WIDTH];
  float4 rows[KDA_WIDTH]; /* decay, k and q of a key channel; k and q before their norm */
  float v[KDA_WIDTH];
  float squares[3][WARPS]; /* of q, k and outputs, by warp */
  uint64_t loaded;
};

/* A channel's convolution: its weights, the inputs before this token, this token's. */
struct channel {
  float4 taps;
  float before[KDA_TAPS - 1], now;
};

template <typename T, typename C>
OCT_DEVICE channel
load_channel(const float *weights, const C *inputs, size_t channels, size_t c, T now, bool fresh) {
  channel x;
  x.taps = *reinterpret_cast<const float4 *>(weights + c * KDA_TAPS);
#pragma unroll
  for (int t = 0; t + 1 < KDA_TAPS; t++)
    x.before[t] = fresh ? 0 : to_float(inputs[t * channels + c]);
  x.now = to_float(now);
  return x;
}

/* Its output behind SiLU; the inputs move on by one. */
template <typename C>
OCT_DEVICE float
convolve(const channel &x, C *inputs, size_t channels, size_t c) {
  float sum =
      x.taps.x * x.before[0] + x.taps.y * x.before[1] + x.taps.z * x.before[2] + x.taps.w * x.now;
  inputs[c] = from_float<C>(x.before[1]);
  inputs[channels + c] = from_float<C>(x.before[2]);
  inputs[2 * channels + c] = from_float<C>(x.now);
  return sum * sigmoidf(sum);
}

/* What the block works on. */
struct unit {
  uint32_t head, token;
  bool fresh;
  size_t slot;
};

/* A thread makes a channel of q, k, v and the decays. */
template <typename T, typename C>
OCT_DEVICE void
prepare_token(const oct_cuda_kda &a, const unit &u, decode_room &room) {
  uint32_t i = threadIdx.x, lane = i % 32, warp = i / 32;
  size_t channels = (size_t)a.kda.n_heads * KDA_WIDTH, c = (size_t)u.head * KDA_WIDTH + i;
  C *of_q = (C *)a.conv + u.slot * a.conv_stride, *of_k = of_q + (KDA_TAPS - 1) * channels;
  C *of_v = of_k + (KDA_TAPS - 1) * channels;
  channel q = load_channel<T, C>(a.kda.q_conv, of_q, channels, c,
                                 ((const T *)a.q)[u.token * a.q_stride + c], u.fresh);
  channel k = load_channel<T, C>(a.kda.k_conv, of_k, channels, c,
                                 ((const T *)a.k)[u.token * a.k_stride + c], u.fresh);
  channel v = load_channel<T, C>(a.kda.v_conv, of_v, channels, c,
                                 ((const T *)a.v)[u.token * a.v_stride + c], u.fresh);
  float z = a.kda.dt_bias[c], rate = a.kda.a_log[u.head];
  if (a.z != NULL)
    z += to_float(((const T *)a.z)[u.token * a.z_stride + c]);
  float x = convolve(q, of_q, channels, c), y = convolve(k, of_k, channels, c);
  room.v[i] = convolve(v, of_v, channels, c);
  room.rows[i] = {expf(kda_log_decay(a.kda, expf(rate), z)), y, x, 0};
  float squares_q = warp_sum(x * x), squares_k = warp_sum(y * y);
  if (lane == 0) {
    room.squares[0][warp] = squares_q;
    room.squares[1][warp] = squares_k;
  }
}

/* Of a vector whose squares the warps have summed. */
OCT_DEVICE float
squares_of(const decode_room &room, int which) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < WARPS; i++)
    sum += room.squares[which][i];
  return sum;
}

OCT_DEVICE float4
add_product(float4 sum, float x, float4 y) {
  return {sum.x + x * y.x, sum.y + x * y.y, sum.z + x * y.z, sum.w + x * y.w};
}

/* Over the lanes that have the same columns. */
OCT_DEVICE float4
sum_groups(float4 x) {
#pragma unroll
  for (int d = LANES; d < 32; d *= 2)
    x = {x.x + __shfl_xor_sync(0xffffffffu, x.x, d), x.y + __shfl_xor_sync(0xffffffffu, x.y, d),
         x.z + __shfl_xor_sync(0xffffffffu, x.z, d), x.w + __shfl_xor_sync(0xffffffffu, x.w, d)};
  return x;
}

/* This lane's part of the state, decayed; of it S'k, S'q and k'q, before k and q have their norms.
 */
struct reading {
  float4 s[ROWS], k, q;
  float product;
};

OCT_DEVICE void
read_state(const decode_room &room, bool fresh, reading &r) {
  uint32_t column = threadIdx.x / 32 * LANES + threadIdx.x % LANES;
  r.k = r.q = {};
  r.product = 0;
#pragma unroll
  for (int i = 0; i < ROWS; i++) {
    uint32_t d = i * GROUPS + threadIdx.x % 32 / LANES;
    float4 row = room.rows[d];
    float4 x = fresh ? float4{} : reinterpret_cast<const float4 *>(room.state[d])[column];
    r.s[i] = {x.x * row.x, x.y * row.x, x.z * row.x, x.w * row.x};
    r.k = add_product(r.k, row.y, r.s[i]);
    r.q = add_product(r.q, row.z, r.s[i]);
    r.product += row.y * row.z;
  }
  r.k = sum_groups(r.k);
  r.q = sum_groups(r.q);
#pragma unroll
  for (int d = LANES; d < 32; d *= 2)
    r.product += __shfl_xor_sync(0xffffffffu, r.product, d);
}

OCT_DEVICE void
write_state(const decode_room &room, const reading &r, float4 u, float *home) {
  uint32_t column = threadIdx.x / 32 * LANES + threadIdx.x % LANES;
#pragma unroll
  for (int i = 0; i < ROWS; i++) {
    uint32_t d = i * GROUPS + threadIdx.x % 32 / LANES;
    reinterpret_cast<float4 *>(home + d * KDA_WIDTH)[column] =
        add_product(r.s[i], room.rows[d].y, u);
  }
}

/* The outputs of a warp's columns, by its first lanes, with their norm and gate. */
template <typename T>
OCT_DEVICE void
write_outputs(const oct_cuda_kda &a, const unit &u, decode_room &room, float4 o) {
  uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint32_t i = (warp * LANES + lane % LANES) * 4;
  size_t c = (size_t)u.head * KDA_WIDTH + i;
  float x[4] = {o.x, o.y, o.z, o.w}, open[4] = {0, 0, 0, 0}, weight[4];
  if (a.norm != NULL) {
    if (a.gate != NULL)
      load_floats((const T *)a.gate + u.token * a.gate_stride + c, open);
    load_floats((const T *)a.norm + i, weight);
    float squares = o.x * o.x + o.y * o.y + o.z * o.z + o.w * o.w;
#pragma unroll
    for (int d = 1; d < LANES; d *= 2)
      squares += __shfl_xor_sync(0xffffffffu, squares, d);
    if (lane == 0)
      room.squares[2][warp] = squares;
    __syncthreads();
    float factor = rsqrtf(squares_of(room, 2) / KDA_WIDTH + a.norm_eps);
#pragma unroll
    for (int k = 0; k < 4; k++)
      x[k] *= factor * weight[k] * sigmoidf(open[k]);
  }
  if (lane < LANES)
    store_floats((T *)a.out + u.token * a.out_stride + c, x);
}

/* One token. The state comes by the barrier `loaded`, or is here (0), and goes to `home`, or stays
 * (NULL). */
template <typename T, typename C>
OCT_DEVICE void
take_token(const oct_cuda_kda &a, const unit &u, decode_room &room, uint32_t loaded, float *home) {
  float beta = to_float(((const T *)a.beta)[u.token * a.beta_stride + u.head]);
  prepare_token<T, C>(a, u, room);
  __syncthreads();
  float k_factor = 1 / sqrtf(squares_of(room, 1) + KDA_NORM_EPS);
  float q_factor = rsqrtf((float)KDA_WIDTH) / sqrtf(squares_of(room, 0) + KDA_NORM_EPS);
  if (loaded != 0)
    barrier_wait(loaded, 0);
  reading r;
  read_state(room, u.fresh, r);
  uint32_t column = threadIdx.x / 32 * LANES + threadIdx.x % LANES;
  float4 v = reinterpret_cast<const float4 *>(room.v)[column];
  float f = k_factor, g = f * sigmoidf(beta);
  float4 w = {g * (v.x - f * r.k.x), g * (v.y - f * r.k.y), g * (v.z - f * r.k.z),
              g * (v.w - f * r.k.w)};
  write_state(room, r, w, home != NULL ? home : room.state[0]);
  float4 o = add_product(r.q, r.product, w);
  write_outputs<T>(a, u, room, {o.x * q_factor, o.y * q_factor, o.z * q_factor, o.w * q_factor});
}

/* RUNS: of any number of tokens, one after another, each by the arithmetic of a single one. */
template <typename T, typename C, bool RUNS>
static __global__ void
__launch_bounds__(THREADS, 3) kda_decode(oct_cuda_kda a, oct_cuda_batch b) {
  extern __shared__ uint4 shared[];
  decode_room &room = *reinterpret_cast<decode_room *>(shared);
  uint32_t seq = blockIdx.y, loaded = shared_address(&room.loaded);
  admit_successor();
  if (threadIdx.x == 0) {
    barrier_init(loaded, 1);
    fence_async();
  }
  await_predecessors();
  uint32_t first = b.seq_first[seq], end = b.seq_first[seq + 1], slot = b.seq_slot[seq];
  unit u = {blockIdx.x, first, b.seq_start[seq] == 0, 0};
  if (first >= end)
    return;
  u.slot = a.state_of[(size_t)slot * a.state_of_stride];
  float *home = a.states + u.slot * a.state_stride + (size_t)u.head * KDA_WIDTH * KDA_WIDTH;
  if (threadIdx.x == 0 && !u.fresh) {
    barrier_expect(loaded, sizeof room.state);
    copy_bulk(shared_address(room.state), home, sizeof room.state, loaded);
  }
  bool comes = !u.fresh;
#pragma unroll 1
  for (;; u.token++, u.fresh = false) {
    take_token<T, C>(a, u, room, comes ? loaded : 0, !RUNS || u.token + 1 == end ? home : NULL);
    if (!RUNS || u.token + 1 == end)
      break;
    comes = false;
    __syncthreads(); /* the rows are free again */
  }
}

/* As many sequences at a time as a grid takes. */
template <typename T, typename C>
static int
launch_some(const oct_cuda_queue *queue, const oct_cuda_kda *call, bool runs) {
  uint32_t n = runs ? call->batch->n_seqs : call->n_decode;
  size_t shared = sizeof(decode_room);
  oct_cuda_batch b = *call->batch;
  int error = OCT_CUDA_OK;
  for (uint32_t done = 0; done < n && error == OCT_CUDA_OK; done += OCT_GRID_MOST) {
    dim3 grid(call->kda.n_heads, within_grid(n - done)), block(THREADS);
    error = runs ? launch_large(queue, kda_decode<T, C, true>, grid, block, shared, *call, b)
                 : launch_large(queue, kda_decode<T, C, false>, grid, block, shared, *call, b);
    b.seq_first += OCT_GRID_MOST;
    b.seq_start += OCT_GRID_MOST;
    b.seq_slot += OCT_GRID_MOST;
  }
  return error;
}

template <typename T>
static int
launch_decode(const oct_cuda_queue *queue, const oct_cuda_kda *call, bool runs) {
  if (call->conv_type == OCT_CUDA_F32)
    return launch_some<T, float>(queue, call, runs);
  if (call->conv_type == OCT_CUDA_BF16)
    return launch_some<T, bf16>(queue, call, runs);
  return OCT_CUDA_UNSUPPORTED;
}

int
oct_kda_decode(const oct_cuda_queue *queue, const oct_cuda_kda *call) {
  return OCT_BY_TYPE(call->type, T, launch_decode<T>(queue, call, false));
}

int
oct_kda_decode_runs(const oct_cuda_queue *queue, const oct_cuda_kda *call) {
  return OCT_BY_TYPE(call->type, T, launch_decode<T>(queue, call, true));
}
