/* Delta attention in chunks: what depends on a chunk alone. A block has a head of a chunk.
 *
 * Convolutions and gates go by channels, two to a thread, down the 16 tokens; norms by rows; then
 * decays between tokens are products of those of single tokens, from which all factors e^G come
 * without a logarithm. K K' and Q K' go to tensor cores as (k_i e^(G_i - R)) . (k_j e^(R - G_j)), R
 * in the middle of the chunk, so that with decays of at most e^-5 no factor is beyond e^40. A
 * channel that decays by more than e^80 between the middle and an end is left out there and added
 * pair by pair. (I + L) is solved by forward substitution: inverses by doubling cancel badly. */
#include "kernels/cuda/kda-chunk.cuh"

enum { THREADS = 256, MIDDLE = CHUNK / 2 - 1, BEFORE = KDA_TAPS - 1 };

#define STEEP (80 * LOG2E) /* of sums of binary logarithms of decays */
#define LOG2E 1.44269504f

typedef float float_rows[CHUNK][KDA_WIDTH];

/* What does not depend on the number of parts. */
struct chunk_work {
  float_rows q, k, alpha; /* decays of tokens */
  float beta[CHUNK];
  uint32_t steep[KDA_WIDTH / 32];
  uint32_t seq, chunk; /* whose chunk this is, and its number there */
  uint32_t token, n;   /* its first token in the batch, and how many are its */
};

template <int P> struct chunk_room {
  chunk_record<P> record; /* first: it leaves as it is */
  union {
    chunk_rows k_middle[P];    /* k e^(G - R) */
    float lower[CHUNK][CHUNK]; /* L transposed: [j][i] */
  };
  chunk_rows q_middle[P], k_from[P]; /* q e^(G - R), k e^(R - G) */
  chunk_work work;
};

/* For bfloat16 the hardware's functions do as they are, and numbers too small are zero. */
template <typename T> constexpr bool is_rough = sizeof(T) == sizeof(bf16);

template <typename T>
OCT_DEVICE float
power_of_2(float x) {
  float y;
  if (!is_rough<T>)
    return exp2f(x);
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

template <typename T>
OCT_DEVICE float
reciprocal(float x) {
  float y;
  if (!is_rough<T>)
    return 1 / x;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

template <typename T>
OCT_DEVICE float
silu(float x) {
  return x * reciprocal<T>(1 + power_of_2<T>(-LOG2E * x));
}

/* Binary logarithm of a decay; BOUNDED: bound * sigmoid, as decay_bound is not 0. */
template <typename T, bool BOUNDED>
OCT_DEVICE float
log_decay(float bound, float rate, float z) {
  if (BOUNDED)
    return bound * LOG2E * reciprocal<T>(1 + power_of_2<T>(-LOG2E * rate * z));
  if (!is_rough<T>)
    return -LOG2E * rate * softplus(z);
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(1 + power_of_2<T>(LOG2E * z)));
  return -rate * (z > 20 ? LOG2E * z : y);
}

/* ---------------------------------------------------------------- which chunk */

/* FALSE: the number has none. */
OCT_DEVICE bool
find_chunk(const oct_cuda_batch &b, const chunk_pass &pass, uint32_t number, chunk_work &room) {
  if (threadIdx.x == 0)
    room.seq = OCT_CUDA_NONE;
  __syncthreads();
  for (uint32_t s = pass.first_seq + threadIdx.x; s < b.n_seqs; s += THREADS) {
    chunk_run run = run_of(b, pass, s);
    if (number >= run.first && number - run.first < (run.n_tokens + CHUNK - 1) / CHUNK) {
      room.seq = s;
      room.chunk = number - run.first;
      room.token = run.token + room.chunk * CHUNK;
      room.n = min(CHUNK, run.n_tokens - room.chunk * CHUNK);
    }
  }
  __syncthreads();
  return room.seq != OCT_CUDA_NONE;
}

/* ---------------------------------------------------------------- convolutions and gates */

template <typename T>
OCT_DEVICE float2
load_pair(const T *from) {
  float pair[2];
  load_floats(from, pair);
  return {pair[0], pair[1]};
}

/* What a thread has of a layer: the weights of its two channels of q, k or v, or bias and rate of
 * their decays. */
struct channel_weights {
  float4 of[2];
};

OCT_DEVICE channel_weights
load_weights(const oct_kda &kda, uint32_t which, uint32_t head, uint32_t c) {
  size_t at = (size_t)head * KDA_WIDTH + c;
  if (which == 3) {
    float2 bias = load_pair(kda.dt_bias + at);
    return {{{bias.x, bias.y, expf(kda.a_log[head]), 0}, {}}};
  }
  const float *taps = which == 0 ? kda.q_conv : which == 1 ? kda.k_conv : kda.v_conv;
  const float4 *from = reinterpret_cast<const float4 *>(taps + at * KDA_TAPS);
  return {{from[0], from[1]}};
}

template <int P>
OCT_DEVICE void
put_pair(chunk_rows (&rows)[P], int t, uint32_t c, float2 x) {
  uint32_t parts[P];
  split_pair(x.x, x.y, parts);
#pragma unroll
  for (int p = 0; p < P; p++)
    *reinterpret_cast<uint32_t *>(&rows[p][t][swizzled(t, c)]) = parts[p];
}

/* A token's row in the chunk; behind the chunk's tokens the last one's, so that loads need no
 * branches, in which each would be waited for. */
OCT_DEVICE uint32_t
row_of(const chunk_work &work, uint32_t t) {
  return min(t, work.n - 1);
}

/* The inputs before a sequence's first token, of a thread's channels. */
template <typename C>
OCT_DEVICE void
load_kept(const oct_cuda_kda &a, const oct_cuda_batch &b, uint32_t seq, uint32_t which, size_t c,
          float2 (&x)[CHUNK + BEFORE]) {
  size_t channels = (size_t)a.kda.n_heads * KDA_WIDTH;
  const C *kept = (const C *)a.conv + kda_slot(a, b, seq) * a.conv_stride;
  bool fresh = b.seq_start[seq] == 0;
#pragma unroll
  for (int t = 0; t < BEFORE; t++)
    x[t] = fresh ? float2{} : load_pair(kept + (which * BEFORE + t) * channels + c);
}

/* Outputs of channels c and c + 1 of q, k or v. Behind the chunk's tokens they are some numbers: T
 * has zeros there. */
template <typename T, typename C>
OCT_DEVICE void
convolve(const oct_cuda_kda &a, const oct_cuda_batch &b, const chunk_work &work,
         const channel_weights &w, uint32_t which, size_t c, float2 (&y)[CHUNK]) {
  size_t stride = which == 0 ? a.q_stride : which == 1 ? a.k_stride : a.v_stride;
  const T *from = (const T *)(which == 0 ? a.q : which == 1 ? a.k : a.v) + work.token * stride + c;
  float2 x[CHUNK + BEFORE];
#pragma unroll
  for (int t = 0; t < CHUNK; t++)
    x[t + BEFORE] = load_pair(from + row_of(work, t) * stride);
  if (work.chunk == 0)
    load_kept<C>(a, b, work.seq, which, c, x);
  else
#pragma unroll
    for (int t = 0; t < BEFORE; t++)
      x[t] = load_pair(from - (BEFORE - t) * stride);
#pragma unroll
  for (int t = 0; t < CHUNK; t++) {
    float4 u = w.of[0], v = w.of[1];
    float2 sum = {u.x * x[t].x + u.y * x[t + 1].x + u.z * x[t + 2].x + u.w * x[t + 3].x,
                  v.x * x[t].y + v.y * x[t + 1].y + v.z * x[t + 2].y + v.w * x[t + 3].y};
    y[t] = {silu<T>(sum.x), silu<T>(sum.y)};
  }
}

/* Decays of channels c and c + 1 of the head; ones behind the chunk's tokens. */
template <typename T, bool BOUNDED>
OCT_DEVICE void
make_decays(const oct_cuda_kda &a, chunk_work &work, float4 w, uint32_t head, uint32_t c) {
  const T *z = (const T *)a.z + work.token * a.z_stride + (size_t)head * KDA_WIDTH + c;
  float2 x[CHUNK] = {}, sum = {}, middle = {}; /* sums from the first token on */
  uint32_t n = work.n;
  if (a.z != NULL)
#pragma unroll
    for (int t = 0; t < CHUNK; t++)
      x[t] = load_pair(z + row_of(work, t) * a.z_stride);
#pragma unroll
  for (int t = 0; t < CHUNK; t++) {
    float2 log = {log_decay<T, BOUNDED>(a.kda.decay_bound, w.z, x[t].x + w.x),
                  log_decay<T, BOUNDED>(a.kda.decay_bound, w.z, x[t].y + w.y)};
    if (t >= n)
      log = {};
    if (t > 0)
      sum = {sum.x + log.x, sum.y + log.y};
    if (t == MIDDLE)
      middle = sum;
    *reinterpret_cast<float2 *>(&work.alpha[t][c]) = {power_of_2<T>(log.x), power_of_2<T>(log.y)};
  }
  bool low = middle.x < -STEEP || sum.x - middle.x < -STEEP;
  bool high = middle.y < -STEEP || sum.y - middle.y < -STEEP;
  if (low || high)
    atomicOr(&work.steep[c / 32], (low ? 1u << c % 32 : 0) | (high ? 1u << (c + 1) % 32 : 0));
}

/* A quarter of the block for each of q, k, v and the decays: `which`, and the thread's channel. */
template <typename T, typename C>
OCT_DEVICE void
load_chunk(const oct_cuda_kda &a, const oct_cuda_batch &b, const channel_weights &w, uint32_t head,
           chunk_work &work, chunk_rows (&v)[parts_of<T>]) {
  uint32_t which = threadIdx.x / 64, c = threadIdx.x % 64 * 2, t = threadIdx.x;
  if (t < CHUNK)
    work.beta[t] =
        t < work.n
            ? sigmoidf(to_float(((const T *)a.beta)[(work.token + t) * a.beta_stride + head]))
            : 0;
  if (which == 3 && a.kda.decay_bound != 0)
    make_decays<T, true>(a, work, w.of[0], head, c);
  else if (which == 3)
    make_decays<T, false>(a, work, w.of[0], head, c);
  if (which == 3)
    return;
  float2 y[CHUNK];
  convolve<T, C>(a, b, work, w, which, (size_t)head * KDA_WIDTH + c, y);
#pragma unroll
  for (int i = 0; i < CHUNK; i++)
    if (which == 2)
      put_pair(v, i, c, y[i]);
    else
      *reinterpret_cast<float2 *>(which == 0 ? &work.q[i][c] : &work.k[i][c]) = y[i];
}

/* Brings q and k to their lengths; a warp has two rows of each. */
OCT_DEVICE void
norm_rows(chunk_work &work) {
  uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    float *row = i % 2 == 0 ? work.q[warp * 2 + i / 2] : work.k[warp * 2 + i / 2];
    float4 x = reinterpret_cast<const float4 *>(row)[lane];
    float sum = warp_sum(x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w);
    float f = rsqrtf((sum + KDA_NORM_EPS) * (i % 2 == 0 ? KDA_WIDTH : 1));
    reinterpret_cast<float4 *>(row)[lane] = {x.x * f, x.y * f, x.z * f, x.w * f};
  }
}

/* ---------------------------------------------------------------- factors e^G */

OCT_DEVICE float2
times(float2 x, float2 y) {
  return {x.x * y.x, x.y * y.y};
}

template <typename T>
OCT_DEVICE float2
inverse(float2 x) {
  return {reciprocal<T>(x.x), reciprocal<T>(x.y)};
}

OCT_DEVICE float2
pair_at(const float_rows &rows, int t, uint32_t c) {
  return *reinterpret_cast<const float2 *>(&rows[t][c]);
}

/* The loops below are unrolled by 8 tokens at most: a block runs through its code once, which
 * should not be more than instruction caches have. */
#define RUN 8

/* x e^G of channels c and c + 1; alpha: their decays. */
template <int P>
OCT_DEVICE void
scale_from_first(const float_rows &x, const float_rows &alpha, uint32_t c, chunk_rows (&out)[P]) {
  float2 whole = {1, 1};
#pragma unroll 1
  for (int run = 0; run < CHUNK; run += RUN)
#pragma unroll
    for (int i = 0; i < RUN; i++) {
      whole = times(whole, pair_at(alpha, run + i, c));
      put_pair(out, run + i, c, times(pair_at(x, run + i, c), whole));
    }
}

/* x e^(G - R), or when it is inverse x e^(R - G). */
template <typename T, int P>
OCT_DEVICE void
scale_to_middle(const float_rows &x, const float_rows &alpha, bool inverse_of, uint32_t c,
                chunk_rows (&out)[P]) {
  float2 back = {1, 1}, on = {1, 1};
#pragma unroll
  for (int i = 0; i < RUN; i++) {
    int t = MIDDLE - i;
    put_pair(out, t, c, times(pair_at(x, t, c), inverse_of ? back : inverse<T>(back)));
    back = times(back, pair_at(alpha, t, c));
    t = MIDDLE + 1 + i;
    on = times(on, pair_at(alpha, t, c));
    put_pair(out, t, c, times(pair_at(x, t, c), inverse_of ? inverse<T>(on) : on));
  }
}

/* x e^(G_last - G); returns e^G_last. */
template <int P>
OCT_DEVICE float2
scale_to_last(const float_rows &x, const float_rows &alpha, uint32_t c, chunk_rows (&out)[P]) {
  float2 back = {1, 1};
#pragma unroll 1
  for (int run = CHUNK - RUN; run >= 0; run -= RUN)
#pragma unroll
    for (int i = RUN - 1; i >= 0; i--) {
      put_pair(out, run + i, c, times(pair_at(x, run + i, c), back));
      back = times(back, pair_at(alpha, run + i, c));
    }
  return back;
}

/* Zeros for steep ones (bits) of channels c and c + 1. */
template <int P>
OCT_DEVICE void
clear_steep(uint32_t steep, uint32_t c, chunk_rows (&rows)[P]) {
  for (int i = 0; i < 2; i++)
#pragma unroll 1
    for (int t = 0; (steep >> i & 1) != 0 && t < CHUNK; t++)
      for (int p = 0; p < P; p++)
        rows[p][t][swizzled(t, c + i)] = from_float<bf16>(0);
}

/* A quarter of the block for each kind. Steep channels become zeros in what is multiplied within
 * the chunk: their factors may be no numbers. */
template <typename T>
OCT_DEVICE void
make_operands(chunk_room<parts_of<T>> &room) {
  constexpr int P = parts_of<T>;
  const chunk_work &w = room.work;
  uint32_t which = threadIdx.x / 64, c = threadIdx.x % 64 * 2, steep = w.steep[c / 32] >> c % 32;
  if (which == 3) {
    float2 last = scale_to_last(w.k, w.alpha, c, room.record.k_last);
    *reinterpret_cast<float2 *>(&room.record.decay[c]) = last;
    return;
  }
  const float_rows &x = which == 0 ? w.q : w.k;
  chunk_rows(&middle)[P] = which == 0 ? room.q_middle : which == 1 ? room.k_middle : room.k_from;
  scale_to_middle<T>(x, w.alpha, which == 2, c, middle);
  clear_steep(steep, c, middle);
  if (which < 2)
    scale_from_first(x, w.alpha, c, which == 0 ? room.record.q : room.record.k);
}

/* ---------------------------------------------------------------- within the chunk */

/* x times the rows of k_from, [16, 16], by a warp: d[n][0], [1]: row g, columns 8 n + 2 t and the
 * next; [2], [3]: row g + 8. */
template <int P>
OCT_DEVICE void
multiply_rows(const chunk_rows (&x)[P], const chunk_rows (&k_from)[P], float (&d)[2][4]) {
  float odd[2][4] = {};
#pragma unroll
  for (int i = 0; i < KDA_WIDTH / 16; i++)
#pragma unroll
    for (int parts = P * P - 1; parts >= 0; parts--) {
      uint32_t a[4], b[4];
      if (parts / P + parts % P > 1)
        continue;
      load_matrices(a, matrix_address(x[parts / P], 2 * i, true));
      load_matrices(b, matrix_address(k_from[parts % P], 2 * i, false));
      mma<bf16>(i % 2 == 0 ? d[0] : odd[0], a[0], a[1], a[2], a[3], b[0], b[1]);
      mma<bf16>(i % 2 == 0 ? d[1] : odd[1], a[0], a[1], a[2], a[3], b[2], b[3]);
    }
#pragma unroll
  for (int i = 0; i < 8; i++)
    d[i / 4][i % 4] += odd[i / 4][i % 4];
}

/* What steep channels give to the product of x's row i and row j of k, j <= i. */
OCT_DEVICE float
steep_product(const chunk_work &work, const float_rows &x, uint32_t i, uint32_t j) {
  float sum = 0;
#pragma unroll 1
  for (uint32_t word = 0; word < KDA_WIDTH / 32; word++)
#pragma unroll 1
    for (uint32_t left = work.steep[word]; left != 0; left &= left - 1) {
      uint32_t c = word * 32 + __ffs(left) - 1;
      float y = x[i][c] * work.k[j][c];
#pragma unroll 1
      for (uint32_t t = j + 1; t <= i; t++)
        y *= work.alpha[t][c];
      sum += y;
    }
  return sum;
}

/* All of x's rows by k's: a warp's sums d as above, with what steep channels give. */
OCT_DEVICE void
add_steep(const chunk_work &work, const float_rows &x, float (&d)[2][4]) {
  uint32_t lane = threadIdx.x % 32;
  if ((work.steep[0] | work.steep[1] | work.steep[2] | work.steep[3]) == 0)
    return;
#pragma unroll
  for (int k = 0; k < 8; k++) {
    uint32_t i = lane / 4 + k % 4 / 2 * 8, j = k / 4 * 8 + lane % 4 * 2 + k % 2;
    if (j <= i)
      d[k / 4][k % 4] += steep_product(work, x, i, j);
  }
}

OCT_DEVICE void
put_split(chunk_pair &pair, uint32_t i, uint32_t j, float x) {
  bf16 high = from_float<bf16>(x);
  pair[0][i][j] = high;
  pair[1][i][j] = from_float<bf16>(x - to_float(high));
}

/* A lane has a column of T; L is transposed. */
OCT_DEVICE void
solve(const float *beta, const float (&lower)[CHUNK][CHUNK], chunk_pair &t) {
  uint32_t c = threadIdx.x % CHUNK;
  float x[CHUNK];
#pragma unroll
  for (int i = 0; i < CHUNK; i++)
    x[i] = i == c ? beta[i] : 0;
#pragma unroll
  for (int j = 0; j < CHUNK; j++)
#pragma unroll
    for (int run = (j + 1) / 4 * 4; run < CHUNK; run += 4) {
      float4 l = *reinterpret_cast<const float4 *>(&lower[j][run]);
      x[run] -= l.x * (run > j ? x[j] : 0);
      x[run + 1] -= l.y * (run + 1 > j ? x[j] : 0);
      x[run + 2] -= l.z * (run + 2 > j ? x[j] : 0);
      x[run + 3] -= l.w * (run + 3 > j ? x[j] : 0);
    }
  if (threadIdx.x % 32 < CHUNK)
#pragma unroll
    for (int i = 0; i < CHUNK; i++)
      put_split(t, i, c, x[i]);
}

/* By two warps: T and M. L comes where the rows were that it is made of. */
template <int P>
OCT_DEVICE void
make_squares(chunk_room<P> &room) {
  uint32_t lane = threadIdx.x % 32;
  bool is_m = threadIdx.x >= 32;
  float d[2][4] = {};
  multiply_rows(is_m ? room.q_middle : room.k_middle, room.k_from, d);
  add_steep(room.work, is_m ? room.work.q : room.work.k, d);
  __syncwarp();
#pragma unroll
  for (int k = 0; k < 8; k++) {
    uint32_t i = lane / 4 + k % 4 / 2 * 8, j = k / 4 * 8 + lane % 4 * 2 + k % 2;
    if (is_m)
      put_split(room.record.m, i, j, j <= i ? d[k / 4][k % 4] : 0);
    else
      room.lower[j][i] = j < i ? room.work.beta[i] * d[k / 4][k % 4] : 0;
  }
  __syncwarp();
  if (!is_m)
    solve(room.work.beta, room.lower, room.record.t);
}

/* From shared memory, to be there when the kernel has ended; returns once it has been read. */
OCT_DEVICE void
store_bulk(void *to, uint32_t from, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n"
               "cp.async.bulk.commit_group;\n"
               "cp.async.bulk.wait_group.read 0;" ::"l"(to),
               "r"(from), "r"(bytes)
               : "memory");
}

template <typename T, typename C>
static __global__ void
__launch_bounds__(THREADS, is_rough<T> ? 4 : 2)
    kda_chunks(oct_cuda_kda a, oct_cuda_batch b, chunk_pass pass) {
  extern __shared__ uint4 shared[];
  constexpr int P = parts_of<T>;
  chunk_room<P> &room = *reinterpret_cast<chunk_room<P> *>(shared);
  chunk_work &work = room.work;
  uint32_t head = blockIdx.x, number = pass.first + blockIdx.y;
  admit_successor();
  channel_weights weights = load_weights(a.kda, threadIdx.x / 64, head, threadIdx.x % 64 * 2);
  if (threadIdx.x < KDA_WIDTH / 32)
    work.steep[threadIdx.x] = 0;
  await_predecessors();
  if (!find_chunk(b, pass, number, work))
    return;
  load_chunk<T, C>(a, b, weights, head, work, room.record.v);
  __syncthreads();
  norm_rows(work);
  __syncthreads();
  make_operands<T>(room);
  __syncthreads();
  if (threadIdx.x < 64)
    make_squares(room);
  fence_async();
  __syncthreads();
  if (threadIdx.x == 0)
    store_bulk((chunk_record<P> *)a.workspace + (size_t)blockIdx.y * a.kda.n_heads + head,
               shared_address(&room.record), sizeof room.record);
}

template <typename T>
static int
launch_chunks(const oct_cuda_queue *queue, const oct_cuda_kda *call, const chunk_pass *pass) {
  dim3 grid(call->kda.n_heads, pass->end - pass->first), block(THREADS);
  size_t shared = sizeof(chunk_room<parts_of<T>>);
  if (call->conv_type == OCT_CUDA_F32)
    return launch_large(queue, kda_chunks<T, float>, grid, block, shared, *call, *call->batch,
                        *pass);
  if (call->conv_type == OCT_CUDA_BF16)
    return launch_large(queue, kda_chunks<T, bf16>, grid, block, shared, *call, *call->batch,
                        *pass);
  return OCT_CUDA_UNSUPPORTED;
}

int
oct_kda_make_chunks(const oct_cuda_queue *queue, const oct_cuda_kda *call, const chunk_pass *pass) {
  return OCT_BY_TYPE(call->type, T, launch_chunks<T>(queue, call, pass));
}
