/* What four warps do with tiles of latents in latent-hopper.cu: scores, weights, sums; what is done
 * with those is in latent-end.cuh. */
#ifndef OCT_KERNELS_CUDA_LATENT_GROUP_CUH
#define OCT_KERNELS_CUDA_LATENT_GROUP_CUH

#include "kernels/cuda/latent-codes.cuh"
#include "kernels/cuda/latent-queries.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* A group of four warps. A thread has of matrices' rows 16 warp + g and + 8 (keys, or dimensions)
 * the columns 8 j + 2t and the next (queries), as d[4 j], d[4 j + 1] and d[4 j + 2], d[4 j + 3]. */
template <typename C, int N> struct latent_group_of_warps {
  typedef shape<C, N> S;
  typedef typename std::conditional<S::COPIES, bf16, __half>::type H;
  static constexpr int TILES = S::TILES;

  float acc[TILES][N / 2], scores[N / 2], sum[N / 4]; /* sum: of weights of the thread's keys */
  ring<S> r;
  unsigned char *shared;
  uint32_t group, warp, lane, origin; /* origin: of shared memory */
  float scale;                        /* of raw scores */
  uint32_t used; /* tiles of the block that had either weights, modulo 2: a bit each */

  __device__ uint32_t address(uint32_t at) const {
    return origin + at;
  }
  __device__ float *small(uint32_t at) const {
    return (float *)(shared + S::SMALL_AT) + at;
  }
  /* [4 warps, N] of the group, at the end of a work. */
  __device__ float *sums() const {
    return small(group * 4 * N);
  }
  /* [4 warps, N] where weights go next. */
  __device__ float *maxima(uint32_t which) const {
    return (float *)(shared + S::WEIGHTS_AT + which * S::WEIGHTS);
  }
  __device__ float *bases() const {
    return small(S::BASES_AT + (S::SHARED_SUMS ? 0 : group) * N);
  }
  /* What of earlier sums is kept when weights are added. */
  __device__ float *keeps(uint32_t which) const {
    return small(S::KEEPS_AT + which * N);
  }
  __device__ uint32_t *limits() const {
    return (uint32_t *)small(S::LIMITS_AT);
  }
  __device__ uint32_t *raised(uint32_t which) const {
    return (uint32_t *)small(S::RAISED_AT + which);
  }
  __device__ void meet_group() const {
    named_barrier(GROUP + group, 128);
  }
  __device__ void give_back(int run) const {
    uint32_t at, parity;
    r.find(S::place_of_run(run), &at, &parity);
    __syncwarp();
    if (arrives_for_warp(lane))
      barrier_arrive(r.free(at));
  }

  /* What raw scores of columns are multiplied by, of e4m3. */
  __device__ float *scales() const {
    return small(S::SCALES_AT);
  }

  /* ---- queries */

  /* The run's rows to shared memory. */
  __device__ void load_queries(const latent_args &h, const latent_item &w) {
    uint32_t n_rows = rows_of(h, w.group) - w.run * N;
    if (threadIdx.x < N) {
      uint32_t token = (w.run * N + min(threadIdx.x, n_rows - 1)) / h.a.n_heads;
      limits()[threadIdx.x] = w.group.length - (w.group.n_tokens - 1 - token);
    }
    latent_queries<C, N>{h, w, n_rows, origin, scale, scales()}.load();
    fence_async();
    named_barrier(EVERYBODY, S::CONSUMERS);
  }

  /* Bytes [32 k, 32 k + 32) of the rows. */
  __device__ uint64_t query_matrix(int k) const {
    return swizzled_matrix(shared_address(shared), 16) + (k / 4 * S::QUERIES + k % 4 * 32) / 16;
  }

  /* ---- scores */

  __device__ void score() {
    if constexpr (S::COPIES)
      score_copies();
    else if constexpr (S::CODES)
      score_codes();
    else
      score_halves();
    wgmma_wait<0>();
    keep_behind(scores);
  }

  __device__ void score_copies() {
#pragma unroll
    for (int j = 0; j < S::RUNS; j++) {
      uint32_t at, parity;
      r.find(j, &at, &parity);
      barrier_wait(r.full(at), parity);
      fence_async();
      wgmma_begin();
      uint32_t keys = r.room + at * RUN_BYTES;
#pragma unroll
      for (int k = 0; k < 4; k++)
        wgmma<N>::rows(scores, swizzled_matrix(keys + 32 * k, 16),
                       query_matrix(4 * S::run_at(j) + k), j + k > 0);
    }
    wgmma_commit();
  }

  /* A tile's runs are there, and for the matrix unit, too. */
  __device__ void await_tile() const {
#pragma unroll
    for (int j = 0; j < S::RUNS; j++) {
      uint32_t at, parity;
      r.find(j, &at, &parity);
      barrier_wait(r.full(at), parity);
    }
    fence_async();
  }

  /* Of the run at place j of a tile, with the first and the second numbers of queries: columns of
   * one instruction, so that both sums of a key and a row are one thread's. */
  __device__ void multiply_codes(float (&part)[N], int j) const {
    uint32_t at, parity;
    r.find(j, &at, &parity);
    wgmma_begin();
#pragma unroll
    for (int k = 0; k < (j == 0 ? 2 : 4); k++)
      wgmma_codes(part, swizzled_matrix(r.room + at * RUN_BYTES + 32 * k, 16),
                  query_matrix(4 * S::run_at(j) + k), k > 0);
    wgmma_commit();
  }

  __device__ void add_part(float (&part)[N], bool begins) {
    keep_behind(part);
#pragma unroll
    for (int i = 0; i < N / 2; i++)
      scores[i] = (begins ? 0 : scores[i]) + (part[i] + part[N / 2 + i]);
  }

  __device__ void score_codes() {
    float part[2][N];
    await_tile();
    multiply_codes(part[0], 0);
#pragma unroll
    for (int j = 1; j < S::RUNS; j++) {
      multiply_codes(part[j % 2], j);
      wgmma_wait<1>();
      add_part(part[(j - 1) % 2], j == 1);
    }
    wgmma_wait<0>();
    add_part(part[(S::RUNS - 1) % 2], false);
  }

  /* Group g of a tile's keys: 64 dimensions, as two times four matrices. The last run has one. */
  __device__ void load_keys(int g, uint32_t (&raw)[2][4]) const {
    int run = g == 0 ? S::RUNS - 1 : S::run_at(1 + (g - 1) / 2), half = g == 0 ? 0 : (g - 1) % 2;
    uint32_t at, parity, row = 16 * warp + lane % 16;
    r.find(S::place_of_run(run), &at, &parity);
    if (half == 0)
      barrier_wait(r.full(at), parity);
#pragma unroll
    for (int p = 0; p < 2; p++)
      load_matrices(raw[p], r.room + at * RUN_BYTES + row * 128 +
                                16 * ((4 * half + 2 * p + lane / 16) ^ row % 8));
  }

  /* A group is on its way from shared memory while the one before becomes operands, and the one
   * before that is multiplied. */
  __device__ void score_halves() {
    constexpr int GROUPS = 2 * S::RUNS - 1;
    uint32_t raw[2][2][4], a[2][2][2][4];
    load_keys(0, raw[0]);
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
      int first = g == 0 ? 8 * (S::RUNS - 1) : 8 * S::run_at(1 + (g - 1) / 2) + (g - 1) % 2 * 4;
      if (g + 1 < GROUPS)
        load_keys(g + 1, raw[(g + 1) % 2]);
#pragma unroll
      for (int p = 0; p < 2; p++)
        widen_keys(raw[g % 2][p], a[g % 2][p]);
      wgmma_begin();
#pragma unroll
      for (int p = 0; p < 4; p++)
        wgmma<N>::half_rows(scores, a[g % 2][p / 2][p % 2], query_matrix(first + p), g + p > 0);
      wgmma_commit();
      wgmma_wait<1>(); /* the operands of the group before are free */
    }
  }

  /* ---- weights */

  __device__ void mask(uint32_t first) {
#pragma unroll
    for (int i = 0; i < N / 2; i++)
      if (first + 16 * warp + lane / 4 + i % 4 / 2 * 8 >= limits()[column_of(i / 4 * 2 + i % 2)])
        scores[i] = -INFINITY;
  }

  /* The thread's column number c. */
  __device__ uint32_t column_of(int c) const {
    return c / 2 * 8 + lane % 4 * 2 + c % 2;
  }

  /* What the group has of sums of weights, when bases were raised. */
  __device__ void rescale_weights(uint32_t which) {
#pragma unroll
    for (int c = 0; c < N / 4; c++)
      sum[c] *= keeps(which)[column_of(c)];
  }

  /* The base of columns whose largest score stands too far above it. */
  __device__ void raise_bases(uint32_t which) {
#pragma unroll
    for (int c = 0; c < N / 4; c++) {
      int i = c / 2 * 4 + c % 2;
      float best = fmaxf(scores[i], scores[i + 2]);
#pragma unroll
      for (int d = 4; d < 32; d *= 2)
        best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, d));
      if (lane / 4 == 0)
        maxima(which)[warp * N + column_of(c)] = best;
    }
    meet_group();
    uint32_t column = threadIdx.x % 128;
    if (column < N) {
      const float *all = maxima(which) + column;
      float best = fmaxf(fmaxf(all[0], all[N]), fmaxf(all[2 * N], all[3 * N]));
      float base = bases()[column], keep = 1;
      if (best > base + S::ABOVE) {
        keep = power2(base - (best - S::LIFT));
        bases()[column] = best - S::LIFT;
      }
      keeps(which)[column] = keep;
    }
    meet_group();
    rescale_weights(which);
  }

  /* Bases that do for the scores, which become times their scales; true: some were raised. */
  __device__ bool choose_bases(uint32_t which) {
    bool above = false;
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
      uint32_t column = column_of(i / 4 * 2 + i % 2);
      scores[i] *= S::CODES ? scales()[column] : scale;
      above |= scores[i] > bases()[column] + S::ABOVE;
    }
    bool any = vote(VOTES + group, 128, above);
    if (any)
      raise_bases(which);
    return any;
  }

  __device__ void load_bases(float (&base)[N / 4]) const {
#pragma unroll
    for (int c = 0; c < N / 4; c += 2) {
      float2 v = *(const float2 *)(bases() + column_of(c));
      base[c] = v.x == -INFINITY ? 0 : v.x;
      base[c + 1] = v.y == -INFINITY ? 0 : v.y;
    }
  }

  /* Scores to weights in shared memory. */
  __device__ void weigh(const float (&base)[N / 4], uint32_t which) {
    uint32_t words[N / 4];
#pragma unroll
    for (int j = 0; j < N / 8; j++) {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        scores[4 * j + i] = power2(scores[4 * j + i] - base[2 * j + i % 2]);
        sum[2 * j + i % 2] += scores[4 * j + i];
      }
      if constexpr (!S::CODES) {
        words[2 * j] = pack<H>(scores[4 * j], scores[4 * j + 1]);
        words[2 * j + 1] = pack<H>(scores[4 * j + 2], scores[4 * j + 3]);
      } else {
        uint32_t high[2], low[2];
#pragma unroll
        for (int i = 0; i < 2; i++)
          split_weights(scores[4 * j + i], scores[4 * j + 2 + i], &high[i], &low[i]);
        words[2 * j] = high[0] | high[1] << 16;
        words[2 * j + 1] = low[0] | low[1] << 16;
      }
    }
    store_weights(words, which);
  }

  /* To rows of 128 bytes, one for each column. Words are 8 keys each; of CODES two first and second
   * numbers of keys g and g + 8 of the warp's, first numbers in a row's first half. */
  __device__ void store_weights(const uint32_t (&words)[N / 4], uint32_t which) {
    uint32_t column = (S::CODES ? lane / 8 % 2 : lane / 16) * 8 + lane % 8;
    uint32_t chunk = S::CODES ? 4 * (lane / 16) + warp : 2 * warp + lane / 8 % 2;
    uint32_t to =
        address(S::WEIGHTS_AT + which * S::WEIGHTS) + column * 128 + 16 * (chunk ^ lane % 8);
    constexpr int SECOND = S::CODES ? 2 : 1, THIRD = 3 - SECOND;
#pragma unroll
    for (int j = 0; j < N / 8; j += 2)
      store_transposed(to + j * 1024, words[2 * j], words[2 * j + SECOND], words[2 * j + THIRD],
                       words[2 * j + 3]);
  }

  /* Values behind the context's end may be anything, and zero times anything may be no number. */
  __device__ void clear_keys(uint32_t n) {
    for (uint32_t i = threadIdx.x % 128; i < (KEYS - n) * 8 * (S::RUNS - 1); i += 128) {
      uint32_t at, parity;
      r.find(1 + i % (S::RUNS - 1), &at, &parity);
      asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(
                       r.room + at * RUN_BYTES + (n + i / (S::RUNS - 1) / 8) * 128 +
                       i / (S::RUNS - 1) % 8 * 16),
                   "r"(0)
                   : "memory");
    }
  }

  /* ---- sums */

  __device__ void rescale(uint32_t which) {
    const float *keep = keeps(which) + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < N / 8; j++) {
      float2 k = *(const float2 *)(keep + 8 * j);
#pragma unroll
      for (int m = 0; m < TILES; m++) {
        acc[m][4 * j] *= k.x;
        acc[m][4 * j + 1] *= k.y;
        acc[m][4 * j + 2] *= k.x;
        acc[m][4 * j + 3] *= k.y;
      }
    }
  }

  /* Bytes [32 k, 32 k + 32): weights of 16 keys; of CODES the first numbers of 32, or from 2 on the
   * second ones. */
  __device__ uint64_t weight_matrix(int k, uint32_t which) const {
    return swizzled_matrix(address(S::WEIGHTS_AT + which * S::WEIGHTS + 32 * k), 16);
  }

  __device__ void add_copies(int first_run, uint32_t which) {
#pragma unroll
    for (int m = 0; m < TILES; m++) {
      uint32_t at, parity;
      r.find(S::place_of_run(first_run + m), &at, &parity);
      wgmma_begin();
#pragma unroll
      for (int k = 0; k < KEYS / 16; k++)
        wgmma<N>::columns(acc[m], swizzled_matrix(r.room + at * RUN_BYTES + k * 2048, 16),
                          weight_matrix(k, which), 1);
      wgmma_commit();
      if (m > 0) {
        wgmma_wait<1>();
        give_back(first_run + m - 1);
      }
    }
    wgmma_wait<0>();
    give_back(first_run + TILES - 1);
#pragma unroll
    for (int m = 0; m < TILES; m++)
      keep_behind(acc[m]);
  }

  /* 64 dimensions of values: two times 32 keys. */
  __device__ void load_values(int first_run, int m, uint32_t (&raw)[2][4]) const {
    uint32_t at, parity;
    r.find(S::place_of_run(first_run + m / 2), &at, &parity);
#pragma unroll
    for (int k = 0; k < KEYS / 32; k++)
      load_transposed(raw[k], r.room + at * RUN_BYTES + (32 * k + lane) * 128 +
                                  16 * ((m % 2 * 4 + warp) ^ lane % 8));
  }

  __device__ void add_halves(int first_run, uint32_t which) {
    uint32_t raw[2][2][4], a[2][2][2][4];
    load_values(first_run, 0, raw[0]);
#pragma unroll
    for (int m = 0; m < TILES; m++) {
      if (m + 1 < TILES)
        load_values(first_run, m + 1, raw[(m + 1) % 2]);
#pragma unroll
      for (int k = 0; k < KEYS / 32; k++)
        widen_values(raw[m % 2][k], a[m % 2][k]);
      wgmma_begin();
#pragma unroll
      for (int k = 0; k < KEYS / 16; k++)
        wgmma<N>::half_rows(acc[m], a[m % 2][k / 2][k % 2], weight_matrix(k, which), 1);
      wgmma_commit();
      wgmma_wait<1>();
      if (m % 2 == 1)
        give_back(first_run + m / 2);
    }
    wgmma_wait<0>();
#pragma unroll
    for (int m = 0; m < TILES; m++)
      keep_behind(acc[m]);
  }

  /* A tile's sums of 64 dimensions. */
  __device__ void multiply_values(float (&d)[N / 2], const uint32_t (&a)[2][4],
                                  uint32_t which) const {
    wgmma_begin();
#pragma unroll
    for (int k = 0; k < 2; k++) {
      wgmma_high(d, a[k], weight_matrix(k, which), k > 0);
      wgmma_low(d, a[k], weight_matrix(2 + k, which), 1);
    }
    wgmma_commit();
  }

  __device__ void add_sums(float (&part)[N / 2], int m) {
    keep_behind(part);
#pragma unroll
    for (int i = 0; i < N / 2; i++)
      acc[m][i] += part[i];
  }

  /* 64 dimensions are on their way from shared memory while those before are turned, and those
   * before them are multiplied. */
  __device__ void add_codes(int first_run, uint32_t which) {
    uint32_t raw[2][4], a[2][2][4];
    float part[2][N / 2];
    auto turn = [&](int m) {
#pragma unroll
      for (int k = 0; k < 2; k++)
        turn_values(raw[k], a[m % 2][k]);
      if (m % 2 == 1)
        give_back(first_run + m / 2);
    };
    load_values(first_run, 0, raw);
    turn(0);
    load_values(first_run, 1, raw);
#pragma unroll
    for (int m = 0; m < TILES; m++) {
      multiply_values(part[m % 2], a[m % 2], which);
      if (m > 0) {
        wgmma_wait<1>();
        add_sums(part[(m - 1) % 2], m - 1);
      }
      if (m + 1 < TILES)
        turn(m + 1);
      if (m + 2 < TILES)
        load_values(first_run, m + 2, raw);
    }
    wgmma_wait<0>();
    add_sums(part[(TILES - 1) % 2], TILES - 1);
  }

  __device__ void add_values(uint32_t which) {
    int first_run = S::SHARED_SUMS ? (int)group * S::HALF : 0;
    if constexpr (S::COPIES)
      add_copies(first_run, which);
    else if constexpr (S::CODES)
      add_codes(first_run, which);
    else
      add_halves(first_run, which);
  }

  /* ---- tiles, and the end of a work */

  /* Addresses are made where they are needed: registers do not do for all. */
  __device__ void forget_addresses() {
    asm volatile("" : "+r"(origin), "+r"(r.room), "+r"(r.barriers));
  }

  /* A tile of the group's own, from its first key on. */
  __device__ void take_tile(uint32_t first, uint32_t low, uint32_t length) {
    float base[N / 4];
    forget_addresses();
    score();
    give_back(S::RUNS - 1);
    if (first + KEYS > low)
      mask(first);
    bool any = choose_bases(group);
    load_bases(base);
    weigh(base, group);
    if (first + KEYS > length)
      clear_keys(length - first);
    fence_async();
    meet_group();
    if (any)
      rescale(group);
    add_values(group);
  }

  /* Weights of a tile that both groups add up; the groups make those of tiles in turn, and know the
   * bases of the one before. */
  __device__ void make_weights(uint32_t first, uint32_t low, uint32_t length, bool begins) {
    float base[N / 4];
    uint32_t which = group, other = 1 - which;
    forget_addresses();
    barrier_wait(r.weights_free(which), (used >> which & 1) ^ 1);
    score();
    give_back(S::RUNS - 1);
    if (!begins) {
      barrier_wait(r.bases_known(other), (used >> other & 1) ^ 1 ^ which);
      if (*raised(other))
        rescale_weights(other);
    }
    if (first + KEYS > low)
      mask(first);
    bool any = choose_bases(which);
    if (threadIdx.x % 128 == 0)
      *raised(which) = any;
    load_bases(base);
    arrive_by_warp(r.bases_known(which), lane);
    weigh(base, which);
    if (first + KEYS > length)
      clear_keys(length - first);
    fence_async();
    arrive_by_warp(r.weights_full(which), lane);
  }

  __device__ void use_weights(uint32_t which) {
    forget_addresses();
    barrier_wait(r.weights_full(which), used >> which & 1);
    if (S::COPIES)
      fence_async();
    if (*raised(which))
      rescale(which);
    add_values(which);
    arrive_by_warp(r.weights_free(which), lane);
    used ^= 1u << which;
  }

  /* The units of a work. */
  __device__ void take_tiles(const latent_item &w, uint32_t low) {
    if constexpr (S::SHARED_SUMS)
      take_together(w, low);
    else
      for (uint32_t unit = w.begin, next = w.begin + group; unit < w.end; unit++) {
        if (unit == next) {
          take_tile(unit * KEYS, low, w.length);
          next += S::GROUPS;
        }
        r.skip();
      }
  }

  /* Tiles by twos: a group makes the weights of one, and adds up half of both. */
  __device__ void take_together(const latent_item &w, uint32_t low) {
    uint32_t length = w.length;
    for (uint32_t unit = w.begin; unit < w.end; unit += 2) {
      ring<S> here = r;
      bool both = unit + 1 < w.end;
      if (group == 1)
        r.skip();
      if (group == 0 || both)
        make_weights((unit + group) * KEYS, low, length, unit + group == w.begin);
      r.place = here.place;
      r.phase = here.phase;
      use_weights(0);
      r.skip();
      if (both) {
        use_weights(1);
        r.skip();
      }
    }
    uint32_t last = (w.end - w.begin + 1) % 2;
    barrier_wait(r.bases_known(last), (used >> last & 1) ^ 1);
    if (group != last && *raised(last))
      rescale_weights(last);
  }

  __device__ void open_bases() {
    if (threadIdx.x % 128 < N)
      bases()[threadIdx.x % 128] = -INFINITY;
  }

  __device__ void open_sums() {
#pragma unroll
    for (int m = 0; m < TILES; m++)
#pragma unroll
      for (int i = 0; i < N / 2; i++)
        acc[m][i] = 0;
#pragma unroll
    for (int c = 0; c < N / 4; c++)
      sum[c] = 0;
  }
};

#endif
#endif
