/* Queries of latent-hopper.cu on their way to shared memory.
 *
 * Of latents in bf16 they stay as they are; of those in e4m3 they become halves. Up to 16 rows e4m3
 * is multiplied as it is, so that a query becomes two numbers of e4m3, times a power of two of its
 * row: all eight bits of a bf16 whose exponent is at most 9 below the row's largest, and smaller
 * ones within 2^-18 of that. */
#ifndef OCT_KERNELS_CUDA_LATENT_QUERIES_CUH
#define OCT_KERNELS_CUDA_LATENT_QUERIES_CUH

#include "kernels/cuda/latent.cuh"
#include "kernels/cuda/wgmma.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* Two numbers as e4m3, the first in the low byte; those become what is left of them. */
OCT_DEVICE uint16_t
take_code(float &x, float &y) {
  __nv_fp8x2_storage_t code = __nv_cvt_float2_to_fp8x2({x, y}, __NV_SATFINITE, __NV_E4M3);
  float2 v = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(code, __NV_E4M3)));
  x -= v.x;
  y -= v.y;
  return code;
}

/* Eight bf16 times `factor` to e4m3, and what that leaves to e4m3. */
OCT_DEVICE void
split_query(const uint4 &v, float factor, uint2 *high, uint2 *low) {
  const uint32_t raw[4] = {v.x, v.y, v.z, v.w};
  uint32_t codes[2][4];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    float x = __uint_as_float(raw[i] << 16) * factor;
    float y = __uint_as_float(raw[i] & 0xffff0000u) * factor;
    codes[0][i] = take_code(x, y);
    codes[1][i] = take_code(x, y);
  }
  *high = make_uint2(codes[0][0] | codes[0][1] << 16, codes[0][2] | codes[0][3] << 16);
  *low = make_uint2(codes[1][0] | codes[1][1] << 16, codes[1][2] | codes[1][3] << 16);
}

/* The power of two that a row is multiplied by, and its inverse; no number where a query is none.
 */
OCT_DEVICE float
query_factor(float largest, float *inverse) {
  uint32_t exponent = max(__float_as_uint(largest) >> 23, 64u);
  *inverse = largest < INFINITY ? __uint_as_float((exponent - 7) << 23) : NAN;
  return __uint_as_float((261 - exponent) << 23);
}

OCT_DEVICE float
largest_of(const uint4 &v) {
  const uint32_t raw[4] = {v.x, v.y, v.z, v.w};
  float x = 0;
#pragma unroll
  for (int i = 0; i < 4; i++)
    x = fmaxf(x, fmaxf(fabsf(__uint_as_float(raw[i] << 16)),
                       fabsf(__uint_as_float(raw[i] & 0xffff0000u))));
  return x;
}

/* The rows of a work's run, by all threads that multiply. */
template <typename C, int N> struct latent_queries {
  typedef shape<C, N> S;
  static constexpr uint32_t EACH = LATENT_WIDTH / 8, WARPS = S::CONSUMERS / 32;

  const latent_args &h;
  const latent_item &w;
  uint32_t n_rows; /* that there are */
  uint32_t to;     /* address of the first run */
  float scale;     /* of raw scores; of e4m3 it goes to scales[row], with the row's own */
  float *scales;

  __device__ void load() const {
    if constexpr (S::CODES)
      split();
    else
      copy();
  }

  /* Dimensions [8 c, 8 c + 8) of a row. */
  __device__ uint4 read(uint32_t row, uint32_t c) const {
    if (c >= EACH || row >= n_rows)
      return make_uint4(0, 0, 0, 0);
    latent_row of = find_row(h, w.group, w.run * N + row);
    return ((const uint4 *)query_row(h.a, of.token, of.head))[c];
  }

  /* A thread has 16 dimensions of a row at a time. */
  __device__ void copy() const {
    constexpr uint32_t ALL = N * EACH / 2, AHEAD = 3;
    for (uint32_t first = threadIdx.x; first < ALL; first += AHEAD * S::CONSUMERS) {
      uint4 v[AHEAD][2];
#pragma unroll
      for (uint32_t k = 0; k < AHEAD; k++)
#pragma unroll
        for (uint32_t half = 0; half < 2; half++) {
          uint32_t i = 2 * (first + k * S::CONSUMERS) + half;
          v[k][half] = read(i / EACH, i % EACH);
        }
#pragma unroll
      for (uint32_t k = 0; k < AHEAD; k++)
        if (first + k * S::CONSUMERS < ALL)
          store_copy(first + k * S::CONSUMERS, v[k]);
    }
  }

  /* For halves, of whose keys four neighbours come as one word, 16 dimensions are in the order that
   * follows. */
  __device__ void store_copy(uint32_t i, const uint4 (&v)[2]) const {
    uint32_t row = i / (EACH / 2), c = i % (EACH / 2), words[8];
    const uint32_t raw[8] = {v[0].x, v[0].y, v[0].z, v[0].w, v[1].x, v[1].y, v[1].z, v[1].w};
#pragma unroll
    for (int k = 0; k < 8; k++)
      words[k] = S::COPIES ? raw[k] : half_pair(raw[k < 4 ? 2 * k : 2 * (k - 4) + 1]);
    uint32_t at = to + c / 4 * S::QUERIES + row * 128;
#pragma unroll
    for (uint32_t k = 0; k < 2; k++)
      asm volatile(
          "st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(at + 16 * ((2 * (c % 4) + k) ^ row % 8)),
          "r"(words[4 * k]), "r"(words[4 * k + 1]), "r"(words[4 * k + 2]), "r"(words[4 * k + 3])
          : "memory");
  }

  static __device__ uint32_t half_pair(uint32_t x) {
    return pack<__half>(__uint_as_float(x << 16), __uint_as_float(x & 0xffff0000u));
  }

  /* A warp has some rows at a time, a lane eight dimensions of each 256 of them. */
  __device__ void split() const {
    constexpr uint32_t AHEAD = 2;
    uint32_t lane = threadIdx.x % 32;
    for (uint32_t first = threadIdx.x / 32; first < N; first += AHEAD * WARPS) {
      uint4 v[AHEAD][3];
#pragma unroll
      for (uint32_t a = 0; a < AHEAD; a++)
#pragma unroll
        for (uint32_t k = 0; k < 3; k++)
          v[a][k] = read(first + a * WARPS, lane + 32 * k);
#pragma unroll
      for (uint32_t a = 0; a < AHEAD; a++)
        if (first + a * WARPS < N)
          store(first + a * WARPS, lane, v[a]);
    }
  }

  __device__ void store(uint32_t row, uint32_t lane, const uint4 (&v)[3]) const {
    float inverse, largest = fmaxf(fmaxf(largest_of(v[0]), largest_of(v[1])), largest_of(v[2]));
    float factor = query_factor(warp_max(largest), &inverse);
    if (lane == 0)
      scales[row] = scale * inverse;
#pragma unroll
    for (uint32_t k = 0; k < 3; k++) {
      uint32_t c = lane + 32 * k;
      if (c >= EACH)
        continue;
      uint2 codes[2];
      split_query(v[k], factor, &codes[0], &codes[1]);
      uint32_t at = to + c / 16 * S::QUERIES + row * 128 + 16 * (c / 2 % 8 ^ row % 8) + c % 2 * 8;
#pragma unroll
      for (uint32_t i = 0; i < 2; i++)
        asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(at + i * (N * 128)), "r"(codes[i].x),
                     "r"(codes[i].y)
                     : "memory");
    }
  }
};

#endif
#endif
