/* Products of weights of four bits with few rows of x by matrix instructions of eight bits: codes
 * become e5m2 (e2m1) or e4m3 (integers) exactly, in registers, by two or three instructions for
 * four of them; x becomes two e4m3 of which the second has what the first lacks, exactly but for
 * values below 2^-9 of the largest of 256, which are off by up to 2^-17 of that. The two are
 * columns beside each other, so that both of a token's sums are one thread's.
 *
 * Scales of groups, and of x, multiply sums in float32. An instruction adds 32 products within
 * about 2^-13 of the largest; sums of more are in float32, but for groups of integers.
 *
 * The copiers' first warp brings weights and x, the others turn x into halves. */
#ifndef OCT_KERNELS_CUDA_MATMUL_HALVES_CUH
#define OCT_KERNELS_CUDA_MATMUL_HALVES_CUH

#include "kernels/cuda/matmul-codes.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* ---------------------------------------------------------------- x */

/* Two pairs of bf16 of four significant bits to four e4m3. (What is below a pair's upper one
 * changes nothing in rounding it.) */
OCT_DEVICE uint32_t
narrow_pairs(uint32_t low, uint32_t high) {
  uint32_t all;
  asm("{\n"
      ".reg .b16 low, high;\n"
      "cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
      "cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n"
      "mov.b32 %0, {low, high};\n"
      "}\n"
      : "=r"(all)
      : "f"(__uint_as_float(low << 16)), "f"(__uint_as_float(low)),
        "f"(__uint_as_float(high << 16)), "f"(__uint_as_float(high)));
  return all;
}

/* Four words of bf16 times a power of two, a pair of bf16, to two words of first and two of second
 * halves: the first three bits of a mantissa, and the other four. */
OCT_DEVICE void
halve(const uint32_t (&x)[4], uint32_t power, uint32_t (&first)[2], uint32_t (&second)[2]) {
  uint32_t high[4], low[4];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    uint32_t all = multiply_pairs(x[i], power);
    high[i] = all & 0xfff0fff0u;
    __nv_bfloat162 rest = __hsub2(*reinterpret_cast<const __nv_bfloat162 *>(&all),
                                  *reinterpret_cast<__nv_bfloat162 *>(&high[i]));
    low[i] = *reinterpret_cast<uint32_t *>(&rest);
  }
#pragma unroll
  for (int w = 0; w < 2; w++) {
    first[w] = narrow_pairs(high[2 * w], high[2 * w + 1]);
    second[w] = narrow_pairs(low[2 * w], low[2 * w + 1]);
  }
}

/* The largest exponent of bf16 that a warp's lanes have, in its place. */
OCT_DEVICE uint32_t
largest_exponent(const uint32_t (&x)[4]) {
  uint32_t most = 0;
#pragma unroll
  for (int i = 0; i < 4; i++)
    most = __vmaxu2(most, x[i] & 0x7fff7fffu);
  return __reduce_max_sync(0xffffffffu, max(most & 0xffff, most >> 16)) >> 7;
}

/* What lies behind the halves of a stage: factors of tokens, and sums of 32, 64 or 128 inputs. */
template <int F, int N> struct beside_halves {
  static constexpr uint32_t GROUPS = 2 * kind_traits<F>::SIDES; /* of a unit's integers */

  OCT_DEVICE uint32_t factor(uint32_t room, uint32_t token) {
    return room + shape<F, N>::X_HALVES + token * 4;
  }
  OCT_DEVICE uint32_t sum(uint32_t room, uint32_t token, uint32_t group) {
    return room + shape<F, N>::X_HALVES + N * 4 + (token * GROUPS + group) * 4;
  }
};

OCT_DEVICE void
store_shared_float(uint32_t to, float x) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(x) : "memory");
}
OCT_DEVICE float
load_shared_float(uint32_t from) {
  float x;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(from));
  return x;
}

/* What a lane has of a token's 256 inputs: eight of them, then 16 bytes of halves, what the token's
 * sums are multiplied by, and of integers the sum of its group of inputs. */
template <int F, int N> struct halved {
  uint4 run;
  float factor, sum;

  /* Lanes two apart have every other byte of the same runs: the first makes that of first halves,
   * the other that of second ones. */
  __device__ void make(uint4 raw) {
    const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
    uint32_t exponent = max(largest_exponent(words), 12u), first[2], second[2];
    uint32_t power = (261 - exponent) * 0x00800080u; /* the largest becomes 128 to 256 */
    halve(words, power, first, second);
    uint32_t own[2], other[2];
    bool is_first = threadIdx.x % 4 < 2;
#pragma unroll
    for (int w = 0; w < 2; w++) {
      own[w] = is_first ? first[w] : second[w];
      other[w] = __shfl_xor_sync(0xffffffffu, is_first ? second[w] : first[w], 2);
    }
    uint32_t low = is_first ? 0x5140 : 0x1504, high = is_first ? 0x7362 : 0x3726;
    run = {__byte_perm(own[0], other[0], low), __byte_perm(own[0], other[0], high),
           __byte_perm(own[1], other[1], low), __byte_perm(own[1], other[1], high)};
    factor = __uint_as_float((exponent - 7) << 23) * shape<F, N>::HALVES_FACTOR;
    if constexpr (kind_traits<F>::INT4) {
      sum = 0;
#pragma unroll
      for (int i = 0; i < 4; i++)
        sum += __uint_as_float(words[i] << 16) + __uint_as_float(words[i] & 0xffff0000u);
      sum *= __uint_as_float((261 - exponent) << 23) / 512;
#pragma unroll
      for (uint32_t d = 1; d < 16 / kind_traits<F>::SIDES; d *= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, d);
    }
  }

  __device__ void store(uint32_t room, uint32_t token) const {
    uint32_t lane = threadIdx.x % 32, pair = lane % 4, column = 2 * token + (pair >= 2);
    uint32_t place = lane % 16 / 4 * 2 + pair % 2;
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(
                     room + lane / 16 * (2 * N * 128) + column * 128 + (place ^ column % 8) * 16),
                 "r"(run.x), "r"(run.y), "r"(run.z), "r"(run.w)
                 : "memory");
    if (lane == 0)
      store_shared_float(beside_halves<F, N>::factor(room, token), factor);
    if constexpr (kind_traits<F>::INT4) {
      constexpr uint32_t EACH = 16 / kind_traits<F>::SIDES; /* lanes of a group */
      if (lane % EACH == 0)
        store_shared_float(beside_halves<F, N>::sum(room, token, lane / EACH), sum);
    }
  }
};

/* The copiers but the first warp: x of a block's units in order, some tokens at a time, whose
 * chains of instructions are long and wait for each other otherwise. */
template <int F, int N> struct halver {
  using sizes = shape<F, N>;
  static constexpr uint32_t WARPS = COPIERS / 32 - 1, TURNS = (N + WARPS - 1) / WARPS;
  static constexpr uint32_t TOGETHER = TURNS > 2 ? 3 : 1;
  const codes_args &s;
  const ring &r;
  cursor<N> &c;
  uint32_t warp, lane;

  __device__ void run() const {
    const unit_range units(s);
    uint32_t stage = 0, turn = 0;
    for (; c.at < c.end; c.next())
      for (uint32_t k = units.begin; k < units.end; k++) {
        uint32_t room = r.base + stage * s.stage_bytes;
        bool here = k * sizes::INPUTS + 8 * lane < s.a.columns;
        barrier_wait(r.raw(stage), turn % 2);
#pragma unroll 1
        for (uint32_t first = warp; first < c.now.n_tokens; first += TOGETHER * WARPS) {
          uint4 raw[TOGETHER];
          halved<F, N> some[TOGETHER];
#pragma unroll
          for (uint32_t i = 0; i < TOGETHER; i++) {
            uint32_t token = first + i * WARPS;
            raw[i] = {0, 0, 0, 0};
            if (here && token < c.now.n_tokens)
              raw[i] = load_shared(room + sizes::X_RAW_AT + (token * sizes::INPUTS + 8 * lane) * 2);
          }
#pragma unroll
          for (uint32_t i = 0; i < TOGETHER; i++)
            some[i].make(raw[i]);
#pragma unroll
          for (uint32_t i = 0; i < TOGETHER; i++)
            if (first + i * WARPS < c.now.n_tokens)
              some[i].store(room, first + i * WARPS);
        }
        fence_async();
        arrive_by_warp(r.full(stage), lane);
        if (++stage == s.stages) {
          stage = 0;
          turn++;
        }
      }
  }
};

/* ---------------------------------------------------------------- products */

/* d (+)= a b: 64 rows of 32 bytes by as many columns as d has room for; a in registers, b as
 * wgmma_weights() has it. */
/* clang-format off */
#define OCT_HALVES(N, R, R1, R2, R3, R4, R5, TYPE)                                                 \
  asm volatile("{\n.reg .pred p;\n.reg .b64 b;\nsetp.ne.b32 p, %" #R5 ", 0;\n"                     \
               "mov.b64 b, {%" #R4 ", 0x40000040};\n"                                              \
               "wgmma.mma_async.sync.aligned.m64n" #N "k32.f32." TYPE ".e4m3 {" OCT_D##R "}, "     \
               "{%" #R ", %" #R1 ", %" #R2 ", %" #R3 "}, b, p, 1, 1;\n}\n"                         \
               : OCT_O##R##_0                                                                      \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(adds))
#define OCT_WGMMA(N, R, R1, R2, R3, R4, R5)                                                        \
  template <bool FLOATS>                                                                           \
  OCT_DEVICE void wgmma_halves(float (&d)[R], const uint32_t (&a)[4], uint32_t b, int adds) {      \
    if (FLOATS)                                                                                    \
      OCT_HALVES(N, R, R1, R2, R3, R4, R5, "e5m2");                                                \
    else                                                                                           \
      OCT_HALVES(N, R, R1, R2, R3, R4, R5, "e4m3");                                                \
  }
OCT_WGMMA(8, 4, 5, 6, 7, 8, 9)
OCT_WGMMA(16, 8, 9, 10, 11, 12, 13)
#undef OCT_WGMMA
#undef OCT_HALVES
/* clang-format on */

/* A word of codes to the bytes of one instruction's first 16 inputs of 32 and of the others
 * (codes.cuh has their places): e2m1 times 2^-14 as e5m2, integers times 2^-9 as e4m3. */
template <bool FLOATS>
OCT_DEVICE void
expand_bytes_of(uint32_t word, uint32_t &first, uint32_t &second) {
  if (FLOATS) {
    first = word << 1 & 0x8e8e8e8eu;
    second = (word >> 2 & 0x0e0e0e0eu) | (word & 0x80808080u);
  } else {
    first = word & 0x0f0f0f0fu;
    second = word >> 4 & 0x0f0f0f0fu;
  }
}

/* The sums of a warp's 16 rows, from unit to unit. */
template <int F, int N> struct halves_multiplier : tile_sums<F, N> {
  using traits = kind_traits<F>;
  using sizes = shape<F, N>;
  using base = tile_sums<F, N>;
  using base::acc;
  using base::s;
  static constexpr bool FLOATS = F == KIND_MXFP4;
  static constexpr int TOGETHER = FLOATS ? 1 : 4 / traits::SIDES; /* steps of 32 in a sum */
  static constexpr int STEPS = 4, PARTS = STEPS / TOGETHER;       /* of a chunk */
  const ring &r;
  float unit[N / 2];
  float part[PARTS][N];
  uint32_t codes[2][4], side[2][traits::SIDES];

  __device__ halves_multiplier(const codes_args &args, const ring &the_ring)
      : base(args), r(the_ring) {
  }

  __device__ float scale_of(int h, int step) const {
    if (FLOATS) /* e8m0 is float32's exponent */
      return __uint_as_float((step == 3 ? side[h][0] >> 1 : side[h][0] << (23 - 8 * step)) &
                             0x7f800000u);
    return int4_scale(side[h][step / TOGETHER]);
  }
  __device__ float zero_of(int h, int step) const {
    return __uint_as_float(0x43000000u | (side[h][step / TOGETHER] & 0xffff0000u)) - 128;
  }

  /* A chunk's parts into the unit's sums. */
  __device__ void take(uint32_t room, uint32_t chunk) {
#pragma unroll
    for (int p = 0; p < PARTS; p++) {
      int step = p * TOGETHER;
      float scale[2] = {scale_of(0, step), scale_of(1, step)}, zero[2] = {0, 0};
      if (!FLOATS) {
        zero[0] = zero_of(0, step);
        zero[1] = zero_of(1, step);
      }
#pragma unroll
      for (int i = 0; i < N / 2; i++) {
        int h = base::half_of(i);
        float v = part[p][2 * i] + part[p][2 * i + 1];
        if (!FLOATS)
          v -= zero[h] * load_shared_float(
                             beside_halves<F, N>::sum(room, base::first_token() + base::token_of(i),
                                                      chunk * traits::SIDES + step / TOGETHER));
        unit[i] += scale[h] * v;
      }
    }
  }

  __device__ void run_chunk(uint32_t room, uint32_t chunk) {
    uint32_t x = (room + chunk * (2 * N * 128)) / 16, a[STEPS][4];
    base::load_codes(room, chunk, codes, side);
#pragma unroll
    for (int i = 0; i < STEPS; i++)
#pragma unroll
      for (int h = 0; h < 2; h++)
        expand_bytes_of<FLOATS>(codes[h][i], a[i][h], a[i][2 + h]);
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < STEPS; i++)
      wgmma_halves<FLOATS>(part[i / TOGETHER], a[i], x + 2 * i, i % TOGETHER != 0);
    wgmma_commit();
    wgmma_wait<0>();
#pragma unroll
    for (int i = 0; i < STEPS; i++)
      asm volatile("" ::"r"(a[i][0]), "r"(a[i][1]), "r"(a[i][2]), "r"(a[i][3]) : "memory");
#pragma unroll
    for (int p = 0; p < PARTS; p++)
      keep_behind(part[p]);
    take(room, chunk);
  }

  __device__ void run_unit(uint32_t stage, uint32_t n_chunks) {
    uint32_t room = __shfl_sync(0xffffffffu, r.base + stage * s.stage_bytes, 0);
    base::clear(unit);
#pragma unroll
    for (uint32_t chunk = 0; chunk < sizes::CHUNKS; chunk++)
      if (chunk < n_chunks)
        run_chunk(room, chunk);
#pragma unroll
    for (int i = 0; i < N / 2; i++)
      acc[i] += unit[i] * load_shared_float(beside_halves<F, N>::factor(
                              room, base::first_token() + base::token_of(i)));
    arrive_by_warp(r.empty(stage));
  }

  __device__ void begin_tile() {
    base::clear(acc);
  }
  __device__ void end_tile() {
  }
  __device__ void load_scales(const cursor<N> &c, uint32_t k) {
    (void)c;
    (void)k;
  }
};

#endif
#endif
