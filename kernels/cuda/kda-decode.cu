/* Delta attention of one token a sequence, all in one launch: convolutions, norms, gates, the state
 * read and written once, the output with its norm and gate.
 *
 * A block takes heads of sequences in turn. One copy brings a state of 64 KiB into shared memory;
 * the next head's begins when this one's has been used, while the block goes on to its
 * convolutions, and the other blocks of the multiprocessor keep memory busy, too. A warp has 16
 * columns and all rows: nothing of the state passes between warps. One pass makes both S'k and S'q:
 * as S = D + k u' with the decayed state D, o = S'q = D'q + u (k'q), so that u is known before the
 * only other pass, which adds k u' on the way back to memory. */
#include "kernels/cuda/barrier.cuh"
#include "kernels/cuda/kda.cuh"

enum { THREADS = 256, WARPS = THREADS / 32, COLUMNS = KDA_WIDTH / WARPS, BLOCKS = 3 };
/* A lane has 4 columns of every 8th row. */
enum { LANES = COLUMNS / 4, GROUPS = 32 / LANES, ROWS = KDA_WIDTH / GROUPS };

/* A head of a sequence, and where its state is. */
struct unit {
  uint32_t head, token;
  bool any, fresh;
  size_t slot;
};

struct decode_room {
  float state[KDA_WIDTH][KDA_WIDTH];
  float4 rows[KDA_WIDTH]; /* decay, k and q of a key channel; k and q before their norm */
  float v[KDA_WIDTH];
  float squares[WARPS], products[WARPS], squares_out[WARPS]; /* by warp */
  float beta;
  unit units[3]; /* in turn: this and the next, and one that slow warps may still read */
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

OCT_DEVICE unit
find_unit(const oct_cuda_kda &a, const oct_cuda_batch &b, uint32_t number) {
  uint32_t seq = number / a.kda.n_heads;
  unit u = {number % a.kda.n_heads, b.seq_first[seq], false, b.seq_start[seq] == 0, 0};
  u.any = u.token < b.seq_first[seq + 1];
  u.slot = u.any ? kda_slot(a, b, seq) : 0;
  return u;
}

OCT_DEVICE float *
state_of(const oct_cuda_kda &a, const unit &u) {
  return a.states + u.slot * a.state_stride + (size_t)u.head * KDA_WIDTH * KDA_WIDTH;
}

/* By one thread, when no thread reads the state before it. */
OCT_DEVICE void
bring_state(const oct_cuda_kda &a, const unit &u, decode_room &room) {
  if (!u.any || u.fresh)
    return;
  barrier_expect(shared_address(&room.loaded), sizeof room.state);
  copy_bulk(shared_address(room.state), state_of(a, u), sizeof room.state,
            shared_address(&room.loaded));
}

/* The first half of the block makes q and v of a head, the second k and the decays. */
template <typename T, typename C>
OCT_DEVICE void
prepare_token(const oct_cuda_kda &a, const unit &u, decode_room &room) {
  uint32_t i = threadIdx.x % KDA_WIDTH;
  size_t channels = (size_t)a.kda.n_heads * KDA_WIDTH, c = (size_t)u.head * KDA_WIDTH + i;
  size_t inputs = (KDA_TAPS - 1) * channels;
  C *conv = (C *)a.conv + u.slot * a.conv_stride;
  float *place = &room.rows[i].z, x;
  if (threadIdx.x >= KDA_WIDTH) {
    C *of_k = conv + inputs;
    channel k = load_channel<T, C>(a.kda.k_conv, of_k, channels, c,
                                   ((const T *)a.k)[u.token * a.k_stride + c], u.fresh);
    float z = a.kda.dt_bias[c];
    if (a.z != NULL)
      z += to_float(((const T *)a.z)[u.token * a.z_stride + c]);
    room.rows[i].x = expf(kda_log_decay(a.kda, expf(a.kda.a_log[u.head]), z));
    x = convolve(k, of_k, channels, c);
    place = &room.rows[i].y;
  } else {
    C *of_v = conv + 2 * inputs;
    channel q = load_channel<T, C>(a.kda.q_conv, conv, channels, c,
                                   ((const T *)a.q)[u.token * a.q_stride + c], u.fresh);
    channel v = load_channel<T, C>(a.kda.v_conv, of_v, channels, c,
                                   ((const T *)a.v)[u.token * a.v_stride + c], u.fresh);
    x = convolve(q, conv, channels, c);
    room.v[i] = convolve(v, of_v, channels, c);
  }
  *place = x;
  if (threadIdx.x == 0)
    room.beta = sigmoidf(to_float(((const T *)a.beta)[u.token * a.beta_stride + u.head]));
  float squares = warp_sum(x * x);
  if (threadIdx.x % 32 == 0)
    room.squares[threadIdx.x / 32] = squares;
}

OCT_DEVICE float
sum_of(const float *x, int n) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < n; i++)
    sum += x[i];
  return sum;
}

/* What brings k and q to length 1, and q on to 1 / sqrt(width). */
OCT_DEVICE float
k_factor(const decode_room &room) {
  return 1 / sqrtf(sum_of(room.squares + WARPS / 2, WARPS / 2) + KDA_NORM_EPS);
}

OCT_DEVICE float
q_factor(const decode_room &room) {
  return rsqrtf((float)KDA_WIDTH) / sqrtf(sum_of(room.squares, WARPS / 2) + KDA_NORM_EPS);
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

/* This lane's columns of a row, decayed. */
OCT_DEVICE float4
decayed(const decode_room &room, bool fresh, uint32_t d, float decay) {
  uint32_t column = threadIdx.x / 32 * LANES + threadIdx.x % LANES;
  float4 x = fresh ? float4{} : reinterpret_cast<const float4 *>(room.state[d])[column];
  return {x.x * decay, x.y * decay, x.z * decay, x.w * decay};
}

/* S'k, S'q and k'q with the decayed state, before k and q have their norms. */
struct reading {
  float4 k, q;
  float product;
};

OCT_DEVICE reading
read_state(const decode_room &room, bool fresh) {
  reading sum = {};
#pragma unroll
  for (int r = 0; r < ROWS; r++) {
    uint32_t d = r * GROUPS + threadIdx.x % 32 / LANES;
    float4 row = room.rows[d], x = decayed(room, fresh, d, row.x);
    sum.k = add_product(sum.k, row.y, x);
    sum.q = add_product(sum.q, row.z, x);
    sum.product += row.y * row.z;
  }
#pragma unroll
  for (int d = LANES; d < 32; d *= 2)
    sum.product += __shfl_xor_sync(0xffffffffu, sum.product, d);
  return {sum_groups(sum.k), sum_groups(sum.q), sum.product};
}

OCT_DEVICE void
write_state(const decode_room &room, bool fresh, float4 u, float *home) {
  uint32_t column = threadIdx.x / 32 * LANES + threadIdx.x % LANES;
#pragma unroll
  for (int r = 0; r < ROWS; r++) {
    uint32_t d = r * GROUPS + threadIdx.x % 32 / LANES;
    float4 row = room.rows[d];
    reinterpret_cast<float4 *>(home + d * KDA_WIDTH)[column] =
        add_product(decayed(room, fresh, d, row.x), row.y, u);
  }
}

/* The outputs of a warp's columns, by its first lanes, with their norm and gate; all of the block
 * are here. */
template <typename T>
OCT_DEVICE void
write_outputs(const oct_cuda_kda &a, const unit &u, decode_room &room, float4 o) {
  uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint32_t i = (warp * LANES + lane % LANES) * 4;
  size_t c = (size_t)u.head * KDA_WIDTH + i;
  float x[4] = {o.x, o.y, o.z, o.w}, open[4] = {0, 0, 0, 0}, weight[4];
  T *to = (T *)a.out + u.token * a.out_stride + c;
  if (a.norm != NULL) {
    if (a.gate != NULL)
      load_floats((const T *)a.gate + u.token * a.gate_stride + c, open);
    load_floats((const T *)a.norm + i, weight);
    float squares = o.x * o.x + o.y * o.y + o.z * o.z + o.w * o.w;
#pragma unroll
    for (int d = 1; d < LANES; d *= 2)
      squares += __shfl_xor_sync(0xffffffffu, squares, d);
    if (lane == 0)
      room.squares_out[warp] = squares;
  }
  __syncthreads();
  if (a.norm != NULL) {
    float factor = rsqrtf(sum_of(room.squares_out, WARPS) / KDA_WIDTH + a.norm_eps);
#pragma unroll
    for (int k = 0; k < 4; k++)
      x[k] *= factor * weight[k] * sigmoidf(open[k]);
  }
  if (lane < LANES)
    store_floats(to, x);
}

template <typename T, typename C>
static __global__ void
__launch_bounds__(THREADS, BLOCKS) kda_decode(oct_cuda_kda a, oct_cuda_batch b, uint32_t n_units) {
  extern __shared__ uint4 shared[];
  decode_room &room = *reinterpret_cast<decode_room *>(shared);
  uint32_t loaded = shared_address(&room.loaded), parity = 0;
  uint32_t column = threadIdx.x / 32 * LANES + threadIdx.x % LANES;
  admit_successor();
  if (threadIdx.x == 0) {
    barrier_init(loaded, 1);
    fence_async();
  }
  await_predecessors();
  if (threadIdx.x == 0) {
    room.units[0] = find_unit(a, b, blockIdx.x);
    bring_state(a, room.units[0], room);
  }
  __syncthreads();
  for (uint32_t number = blockIdx.x, turn = 0; number < n_units;
       number += gridDim.x, turn = (turn + 1) % 3) {
    const unit &u = room.units[turn];
    if (u.any)
      prepare_token<T, C>(a, u, room);
    bool more = threadIdx.x == 0 && number + gridDim.x < n_units;
    if (more)
      room.units[(turn + 1) % 3] = find_unit(a, b, number + gridDim.x);
    __syncthreads();
    if (u.any) {
      if (!u.fresh) {
        barrier_wait(loaded, parity);
        parity ^= 1;
      }
      reading sum = read_state(room, u.fresh);
      float f = k_factor(room), g = f * room.beta;
      float4 v = reinterpret_cast<const float4 *>(room.v)[column];
      float4 w = {g * (v.x - f * sum.k.x), g * (v.y - f * sum.k.y), g * (v.z - f * sum.k.z),
                  g * (v.w - f * sum.k.w)};
      write_state(room, u.fresh, w, state_of(a, u));
      float4 o = add_product(sum.q, sum.product, w);
      f = q_factor(room);
      write_outputs<T>(a, u, room, {o.x * f, o.y * f, o.z * f, o.w * f});
    }
    if (more)
      bring_state(a, room.units[(turn + 1) % 3], room);
  }
}

template <typename T>
static int
launch_decode(const oct_cuda_queue *queue, const oct_cuda_kda *call) {
  uint32_t units = call->kda.n_heads * call->n_decode, most = BLOCKS * queue->sm_count;
  dim3 grid(units < most ? units : most), block(THREADS);
  size_t shared = sizeof(decode_room);
  if (call->conv_type == OCT_CUDA_F32)
    return launch_large(queue, kda_decode<T, float>, grid, block, shared, *call, *call->batch,
                        units);
  if (call->conv_type == OCT_CUDA_BF16)
    return launch_large(queue, kda_decode<T, bf16>, grid, block, shared, *call, *call->batch,
                        units);
  return OCT_CUDA_UNSUPPORTED;
}

int
oct_kda_decode(const oct_cuda_queue *queue, const oct_cuda_kda *call) {
  return OCT_BY_TYPE(call->type, T, launch_decode<T>(queue, call));
}
