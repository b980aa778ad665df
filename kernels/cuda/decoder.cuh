/* What a warp of the decode kernel does: a tile of 16 keys and values from memory to registers, and
 * from there into matrix instructions. The order of dimensions within a sum is free, so each lane's
 * 16 bytes serve as the operand's elements of consecutive steps. Products are transposed (keys by
 * heads, dimensions by heads), so that a group of 8 heads fills the instruction's narrow side.
 *
 * With E elements in 16 bytes: lane (g, t) = (lane / 4, lane % 4) loads of keys g and g + 8 the
 * dimensions [4 E c + E t, + E), and of values at keys 2t, 2t + 1, 2t + 8, 2t + 9 the dimensions
 * [8 E v + E g, + E). */
#ifndef OCT_KERNELS_CUDA_DECODER_CUH
#define OCT_KERNELS_CUDA_DECODER_CUH

#include "kernels/cuda/attend.cuh"

template <typename C> struct cache_traits;
template <> struct cache_traits<bf16> { typedef bf16 operand; };
template <> struct cache_traits<fp8> { typedef half operand; /* e4m3 is exact in it */ };

/* 16 bytes of the cache as operands of 16 bits: E / 2 words. */
template <typename C>
OCT_DEVICE void
expand(uint4 raw, uint32_t (&words)[8 / sizeof(C)]) {
  const uint32_t from[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int i = 0; i < 4; i++)
    if constexpr (sizeof(C) == 2) {
      words[i] = from[i];
    } else {
      words[2 * i] = halves_of((uint16_t)from[i]);
      words[2 * i + 1] = halves_of((uint16_t)(from[i] >> 16));
    }
}

OCT_DEVICE uint4
load_once(const char *from) {
  uint4 v;
  asm volatile("ld.global.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}

/* C: cache, D: head size, NT: tiles of 8 heads. */
template <typename C, int D, int NT> struct decoder {
  typedef typename cache_traits<C>::operand H;
  static constexpr int E = 16 / sizeof(C);
  static constexpr int KC = (D + 4 * E - 1) / (4 * E), VG = (D + 8 * E - 1) / (8 * E);
  static constexpr int STEPS = E / 4; /* of 16 dimensions in a chunk of keys */
  static constexpr int MT = E / 2;    /* tiles of 16 dimensions in a group of values */

  uint32_t q[NT][KC][2 * STEPS];
  uint4 keys[KC][2], values[VG][4];
  float acc[NT][VG][MT][4], top[NT][2], sum[NT][2];
  uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;

  __device__ void clear() {
#pragma unroll
    for (int n = 0; n < NT; n++) {
      top[n][0] = top[n][1] = -INFINITY;
      sum[n][0] = sum[n][1] = 0;
#pragma unroll
      for (int i = 0; i < VG * MT * 4; i++)
        acc[n][i / 4 / MT][i / 4 % MT][i % 4] = 0;
    }
  }

  /* Whether a lane has both dimensions of each rotated pair. */
  static constexpr bool PAIRED = D % (8 * E) == 0;

  /* The lane's dimensions of a query head: normed and rotated as they would have been stored. */
  __device__ void turn_query(const attend_args &a, float (&x)[KC][E], uint32_t position) {
    if (a.q_norm != NULL) {
      float sum_of_squares = 0;
#pragma unroll
      for (int i = 0; i < KC * E; i++)
        sum_of_squares += x[i / E][i % E] * x[i / E][i % E];
      sum_of_squares += __shfl_xor_sync(0xffffffffu, sum_of_squares, 1);
      sum_of_squares += __shfl_xor_sync(0xffffffffu, sum_of_squares, 2);
      float factor = rsqrtf(sum_of_squares / D + a.eps);
#pragma unroll
      for (int i = 0; i < KC * E; i++)
        x[i / E][i % E] *=
            factor * to_float(((const bf16 *)a.q_norm)[i / E * 4 * E + E * t + i % E]);
    }
    const float *cosines = a.angles + (size_t)position * D + E * t, *sines = cosines + D / 2;
#pragma unroll
    for (int c = 0; c < KC / 2; c++)
#pragma unroll
      for (int i = 0; i < E; i++) {
        float low = x[c][i], high = x[c + KC / 2][i];
        float cosine = cosines[4 * E * c + i], sine = sines[4 * E * c + i];
        x[c][i] = to_float(from_float<bf16>(low * cosine - high * sine));
        x[c + KC / 2][i] = to_float(from_float<bf16>(high * cosine + low * sine));
      }
  }

  /* Query heads first + g of each tile of heads, as the narrow operand. */
  __device__ void load_queries(const attend_args &a, uint32_t token, uint32_t first,
                               uint32_t n_heads, uint32_t position) {
#pragma unroll
    for (int n = 0; n < NT; n++) {
      float x[KC][E] = {};
      uint32_t head = first + min(8 * n + g, n_heads - 1);
      const bf16 *row = query_row(a, token, head) + E * t;
#pragma unroll
      for (int c = 0; c < KC; c++)
        if (8 * n + g < n_heads && (D % (4 * E) == 0 || 4 * E * c + E * t < D))
#pragma unroll
          for (int i = 0; i < E; i += 2)
            load_floats<bf16, 2>(row + 4 * E * c + i, *(float(*)[2])(x[c] + i));
      if constexpr (PAIRED)
        if (a.angles != NULL)
          turn_query(a, x, position);
#pragma unroll
      for (int c = 0; c < KC; c++)
#pragma unroll
        for (int w = 0; w < 2 * STEPS; w++)
          q[n][c][w] = pack<H>(x[c][2 * w], x[c][2 * w + 1]);
    }
  }

  __device__ void load_keys(const char *tile, uint32_t row_bytes) {
#pragma unroll
    for (int c = 0; c < KC; c++)
#pragma unroll
      for (int r = 0; r < 2; r++)
        keys[c][r] = D % (4 * E) == 0 || 4 * E * c + E * t < D
                         ? load_once(tile + (g + 8 * r) * row_bytes + 16 * (4 * c + t))
                         : make_uint4(0, 0, 0, 0);
  }

  __device__ void load_values(const char *tile, uint32_t row_bytes) {
#pragma unroll
    for (int v = 0; v < VG; v++)
#pragma unroll
      for (int r = 0; r < 4; r++)
        values[v][r] =
            D % (8 * E) == 0 || 8 * E * v + E * g < D
                ? load_once(tile + (2 * t + r % 2 + r / 2 * 8) * row_bytes + 16 * (8 * v + g))
                : make_uint4(0, 0, 0, 0);
  }

  /* Values of keys that nobody has stored may be anything, and zero times anything may be no
   * number. */
  __device__ void clear_values(uint32_t n) {
#pragma unroll
    for (int r = 0; r < 4; r++)
      if (2 * t + r % 2 + r / 2 * 8 >= n)
#pragma unroll
        for (int v = 0; v < VG; v++)
          values[v][r] = make_uint4(0, 0, 0, 0);
  }

  __device__ void scores(float (&s)[NT][4]) {
#pragma unroll
    for (int n = 0; n < NT; n++)
      s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0;
#pragma unroll
    for (int c = 0; c < KC; c++) {
      uint32_t low[2 * STEPS], high[2 * STEPS];
      expand<C>(keys[c][0], low);
      expand<C>(keys[c][1], high);
#pragma unroll
      for (int i = 0; i < STEPS; i++)
#pragma unroll
        for (int n = 0; n < NT; n++)
          mma<H>(s[n], low[2 * i], high[2 * i], low[2 * i + 1], high[2 * i + 1], q[n][c][2 * i],
                 q[n][c][2 * i + 1]);
    }
  }

  /* Scores of heads 2t, 2t + 1 at keys g (0, 1) and g + 8 (2, 3) to weights, as operands by key. */
  __device__ void weigh(float (&s)[4], int n, uint32_t (&weights)[2]) {
    float keep[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
      float best = fmaxf(s[h], s[h + 2]);
#pragma unroll
      for (int d = 4; d < 32; d *= 2)
        best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, d));
      best = fmaxf(best, top[n][h]);
      float base = best == -INFINITY ? 0 : best;
      keep[h] = power2(top[n][h] - base);
      top[n][h] = best;
      s[h] = power2(s[h] - base);
      s[h + 2] = power2(s[h + 2] - base);
      sum[n][h] = sum[n][h] * keep[h] + s[h] + s[h + 2];
    }
    weights[0] = transpose8(pack<H>(s[0], s[1]));
    weights[1] = transpose8(pack<H>(s[2], s[3]));
    if (__any_sync(0xffffffffu, keep[0] != 1 || keep[1] != 1))
#pragma unroll
      for (int v = 0; v < VG; v++)
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
          for (int i = 0; i < 4; i++)
            acc[n][v][m][i] *= keep[i % 2];
  }

  __device__ void add_values(const uint32_t (&weights)[NT][2]) {
#pragma unroll
    for (int v = 0; v < VG; v++) {
      uint32_t rows[4][2 * STEPS];
#pragma unroll
      for (int r = 0; r < 4; r++)
        expand<C>(values[v][r], rows[r]);
#pragma unroll
      for (int m = 0; m < MT; m++) {
        uint32_t a0 = __byte_perm(rows[0][m], rows[1][m], 0x5410);
        uint32_t a1 = __byte_perm(rows[0][m], rows[1][m], 0x7632);
        uint32_t a2 = __byte_perm(rows[2][m], rows[3][m], 0x5410);
        uint32_t a3 = __byte_perm(rows[2][m], rows[3][m], 0x7632);
#pragma unroll
        for (int n = 0; n < NT; n++)
          mma<H>(acc[n][v][m], a0, a1, a2, a3, weights[n][0], weights[n][1]);
      }
    }
  }

  /* The warp's results to shared memory: out[head, D], and top and sum of each head. */
  __device__ void leave(float *out, float *tops, float *sums) {
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
      for (int h = 0; h < 2; h++) {
        float s = sum[n][h];
#pragma unroll
        for (int d = 4; d < 32; d *= 2)
          s += __shfl_xor_sync(0xffffffffu, s, d);
        uint32_t head = 8 * n + 2 * t + h;
        if (g == 0) {
          tops[head] = top[n][h];
          sums[head] = s;
        }
#pragma unroll
        for (int v = 0; v < VG; v++)
#pragma unroll
          for (int m = 0; m < MT; m++) {
            uint32_t dim = 8 * E * v + E * g + 2 * m;
            if (dim < D) {
              out[head * D + dim] = acc[n][v][m][h];
              out[head * D + dim + 1] = acc[n][v][m][2 + h];
            }
          }
      }
  }
};

/* The newest key of a sequence, or its value, to the cache: a warp. */
template <typename C, int D>
OCT_DEVICE void
store_newest(const attend_args &a, const page_reader &pages, uint32_t row, uint32_t kv_head,
             uint32_t position, bool is_key) {
  constexpr int N = D / 32;
  uint32_t lane = threadIdx.x % 32;
  float x[N], scale = 1;
  if (!is_key) {
    load_floats<bf16, N>((const bf16 *)a.v + row * a.v_stride + (size_t)kv_head * D + N * lane, x);
    scale = a.kv.v_scale != NULL ? 1 / a.kv.v_scale[kv_head] : 1;
  } else {
    load_floats<bf16, N>((const bf16 *)a.k + row * a.k_stride + (size_t)kv_head * D + N * lane, x);
    scale = a.kv.k_scale != NULL ? 1 / a.kv.k_scale[kv_head] : 1;
    if (a.k_norm != NULL) {
      float sum = 0, weight[N];
      load_floats<bf16, N>((const bf16 *)a.k_norm + N * lane, weight);
#pragma unroll
      for (int i = 0; i < N; i++)
        sum += x[i] * x[i];
      float factor = rsqrtf(warp_sum(sum) / D + a.eps);
#pragma unroll
      for (int i = 0; i < N; i++)
        x[i] *= factor * weight[i];
    }
    const float *cosines = a.angles + (size_t)position * D + N * (lane % 16);
#pragma unroll
    for (int i = 0; i < N; i++) {
      float other = __shfl_xor_sync(0xffffffffu, x[i], 16);
      float sine = lane < 16 ? -cosines[D / 2 + i] : cosines[D / 2 + i];
      x[i] = x[i] * cosines[i] + other * sine;
    }
  }
#pragma unroll
  for (int i = 0; i < N; i++)
    x[i] *= scale;
  const char *to = key_row(pages, position) + (is_key ? 0 : pages.half_bytes);
  store_floats<C, N>((C *)(uintptr_t)to + N * lane, x);
}

#endif
