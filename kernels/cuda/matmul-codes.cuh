/* What the products with codes (matmul-codes.cu, which describes them) go over: their sizes, a
 * block's tiles in order, and the copies of a tile's units into the ring. */
#ifndef OCT_KERNELS_CUDA_MATMUL_CODES_CUH
#define OCT_KERNELS_CUDA_MATMUL_CODES_CUH

#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/matmul.cuh"

#define STAGES_MAX 16
#define SPLIT_MAX  8
#define COPIERS    128 /* threads */

template <int F, int N> struct shape {
  using traits = kind_traits<F>;
  /* Of four warps that multiply: a wide one's sums leave registers for three. */
  static constexpr uint32_t GROUPS = N > 128 ? 3 : 4, ROWS_MAX = 64 * GROUPS;
  static constexpr uint32_t THREADS = 128 * GROUPS + COPIERS;
  static constexpr uint32_t RING_BYTES = (N > 128 ? 224u : 200u) << 10;
  static constexpr uint32_t EACH = 4 * traits::E, BLOCKS = EACH / 64; /* inputs of a chunk; by 64 */
  static constexpr uint32_t CHUNKS = traits::PACKED && N > 32 ? 1 : 2; /* of a unit */
  static constexpr uint32_t INPUTS = CHUNKS * EACH, BATCHES = INPUTS / 64;
  /* Few rows of x with weights of four bits: see matmul-halves.cuh. */
  static constexpr bool HALVES = traits::PACKED && N <= 8;
  /* Of a stage, in bytes: x's halves, what is beside them, and x as it came. */
  static constexpr uint32_t X_HALVES = 2 * N * INPUTS, X_RAW = 2 * N * INPUTS;
  static constexpr uint32_t X_RAW_AT = X_HALVES + 128 * ((36 * N + 127) / 128);
  /* What brings sums to the scale that row_scale() knows. */
  static constexpr float HALVES_FACTOR = traits::INT4 ? 512 : 1.0f / (1 << (FP4_SHIFT - 14));
  static constexpr uint32_t X_BLOCK = 128 * N;
  static constexpr uint32_t X_BYTES = HALVES ? X_RAW_AT + X_RAW : X_BLOCK * BATCHES;
  static constexpr uint32_t SIDE_BYTES = traits::PACKED ? 4 * traits::SIDES : 0; /* of a row */
  static constexpr bool GROUPED = traits::INT4 || F == KIND_FP8_BLOCK;
  static constexpr bool EXACT = GROUPED && N <= 32 && !HALVES;
  static constexpr bool SYNC = N <= 8 && !HALVES; /* by mma.sync */
  /* Operands of one batch at a time: what multiplies waits, and other warps' turn comes. */
  static constexpr bool SINGLE = N >= 48;
  /* Registers go from threads that copy to those that multiply. */
  static constexpr bool MOVES = N > 64;
  static constexpr int REGISTERS = GROUPS == 3 ? 152 : 112; /* with MOVES */
  static constexpr int COPY_REGISTERS = GROUPS == 3 ? 56 : 32;
};

struct codes_args {
  matmul_args a;
  oct_glu_params glu;
  uint32_t halves;           /* 2: gates, and ups as many rows further on */
  uint32_t rows;             /* of a half in all */
  uint32_t tile_rows, tiles; /* of a half */
  uint32_t token_groups;     /* without experts: of N tokens */
  uint32_t units, split;     /* of a tile; blocks that share its inputs */
  uint32_t stages, stage_bytes;
  bool x_in_boxes; /* rows of x follow each other: the copy engine brings them */
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

struct ring : stage_ring<STAGES_MAX> {
  /* With halves: of x as it comes. `full` waits for what was made of it. */
  __device__ uint32_t raw(uint32_t s) const {
    return other(s);
  }
};

/* The first expert from `e` on that has tokens; every warp finds it. There is one. */
OCT_DEVICE uint32_t
find_busy(const matmul_args &a, uint32_t e) {
  for (;; e += 32) {
    uint32_t mine = e + threadIdx.x % 32;
    uint32_t who =
        __ballot_sync(0xffffffffu, mine < a.n_experts && a.starts[mine + 1] > a.starts[mine]);
    if (who != 0)
      return e + (uint32_t)__ffs((int)who) - 1;
    if (e >= a.n_experts)
      return 0;
  }
}

/* Of experts: groups of N tokens that all have, and the one of a block's first tile. */
struct first_job {
  uint32_t groups;
  job now;
};

/* A block's tiles, of so many in all. */
struct tile_range {
  uint32_t begin, end;

  __device__ tile_range(const codes_args &s, uint32_t all) {
    uint32_t share = gridDim.x / s.split, nth = blockIdx.x / s.split;
    begin = (uint32_t)((uint64_t)all * nth / share);
    end = (uint32_t)((uint64_t)all * (nth + 1) / share);
  }
};

/* All threads of a block, each with some of the experts; `found` and `room` (of a warp each) are
 * shared. */
template <int N>
OCT_DEVICE void
find_first(const codes_args &s, uint32_t *room, first_job *found) {
  uint32_t each = (s.a.n_experts + blockDim.x - 1) / blockDim.x, lane = threadIdx.x % 32;
  uint32_t first = min(threadIdx.x * each, s.a.n_experts), last = min(first + each, s.a.n_experts);
  uint32_t own = 0, from = s.a.starts[first];
  for (uint32_t e = first; e < last; e++) {
    uint32_t to = s.a.starts[e + 1];
    own += (to - from + N - 1) / N;
    from = to;
  }
  uint32_t end = own, all = 0, before = 0;
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    uint32_t other = __shfl_up_sync(0xffffffffu, end, d);
    end += lane >= d ? other : 0;
  }
  if (lane == 31)
    room[threadIdx.x / 32] = end;
  __syncthreads();
  for (uint32_t w = 0; w < blockDim.x / 32; w++) {
    before += w < threadIdx.x / 32 ? room[w] : 0;
    all += room[w];
  }
  uint32_t nth = tile_range(s, all * s.tiles).begin / s.tiles - (before + end - own);
  if (nth < own) {
    uint32_t e = first, groups = 0;
    for (;; nth -= groups, e++) {
      groups = (s.a.starts[e + 1] - s.a.starts[e] + N - 1) / N;
      if (nth < groups)
        break;
    }
    uint32_t token = s.a.starts[e] + nth * N;
    found->now = {e, s.a.slots != NULL ? s.a.slots[e] : e, token,
                  min((uint32_t)N, s.a.starts[e + 1] - token)};
  }
  if (threadIdx.x == 0)
    found->groups = all;
  __syncthreads();
}

/* A block's tiles in order, and what the one has that it stands at. With experts after
 * find_first() alone. */
template <int N> struct cursor {
  const codes_args &s;
  uint32_t at, end;    /* of all tiles */
  uint32_t first_row;  /* of a half */
  uint32_t last_token; /* experts: the end of the expert's tokens */
  job now;

  __device__ cursor(const codes_args &args, const first_job &found) : s(args) {
    bool is_experts = s.a.starts != NULL;
    const tile_range tiles(s, s.tiles * (is_experts ? found.groups : s.token_groups));
    at = tiles.begin;
    end = tiles.end;
    if (!is_experts) {
      aim();
    } else if (at < end) {
      now = found.now;
      last_token = s.a.starts[now.expert + 1];
      first_row = at % s.tiles * s.tile_rows;
    }
  }
  __device__ void aim() { /* without experts */
    uint32_t first = at % s.token_groups * N;
    first_row = at / s.token_groups * s.tile_rows;
    now = {0, 0, first, min((uint32_t)N, s.a.m - first)};
  }
  __device__ bool is_new_job() const { /* of experts */
    return first_row == 0;
  }
  __device__ void next() {
    if (++at == end)
      return;
    if (s.a.starts == NULL) {
      aim();
      return;
    }
    first_row += s.tile_rows;
    if (first_row < s.rows)
      return;
    first_row = 0;
    now.first_token += now.n_tokens;
    if (now.first_token == last_token) {
      now.expert = find_busy(s.a, now.expert + 1);
      now.slot = s.a.slots != NULL ? s.a.slots[now.expert] : now.expert;
      now.first_token = s.a.starts[now.expert];
      last_token = s.a.starts[now.expert + 1];
    }
    now.n_tokens = min((uint32_t)N, last_token - now.first_token);
  }
};

/* The units of a tile that the block has. */
struct unit_range {
  uint32_t begin, end;

  __device__ explicit unit_range(const codes_args &s) {
    uint32_t rank = blockIdx.x % s.split;
    begin = s.units * rank / s.split;
    end = s.units * (rank + 1) / s.split;
  }
};

/* ---------------------------------------------------------------- copies */

/* COPIERS threads, the block's units in order: weights by the first one, x by all, or by the first,
 * too; with halves a warp. */
template <int F, int N> struct fetcher {
  using sizes = shape<F, N>;
  static constexpr uint32_t ACROSS = 8 * sizes::BATCHES; /* runs of 16 bytes of a row of a unit */
  static constexpr uint32_t AT_ONCE = COPIERS / ACROSS, RUNS = (N + AT_ONCE - 1) / AT_ONCE;
  const codes_args &s;
  const ring &r;
  cursor<N> &c;
  const CUtensorMap *weights, *inputs;
  unit_range units;
  uint32_t lane;    /* of the copiers */
  uint32_t x[RUNS]; /* this thread's first run in rows of x, in 16 bytes; NONE: no such token */

  /* Chunks that unit k has: with bytes all, zeros beyond the last input, as the operands of one
   * must not be made where those of the last are in use. */
  __device__ uint32_t chunks_of(uint32_t k) const {
    if (!kind_traits<F>::PACKED)
      return sizes::CHUNKS;
    uint32_t left = s.a.columns - k * sizes::INPUTS;
    return min(sizes::CHUNKS, (left + sizes::EACH - 1) / sizes::EACH);
  }

  __device__ void open() {
#pragma unroll
    for (uint32_t i = 0; i < RUNS; i++) {
      uint32_t token = i * AT_ONCE + lane / ACROSS;
      x[i] = OCT_CUDA_NONE;
      if (token < c.now.n_tokens) {
        size_t row = c.now.first_token + token;
        if (s.a.gather)
          row = s.a.pair_of[row] / s.a.top_k;
        x[i] = (uint32_t)(row * (s.a.x_stride / 8)) + lane % ACROSS;
      }
    }
  }

  /* One thread. */
  __device__ void send_weights(uint32_t k, uint32_t stage) const {
    uint32_t room = r.base + stage * s.stage_bytes + sizes::X_BYTES, box = s.tile_rows * 64;
    uint32_t beside = room + sizes::CHUNKS * s.halves * box, chunks = chunks_of(k);
    uint32_t rows = min(s.tile_rows, s.rows - c.first_row);
    barrier_expect(r.full(stage),
                   chunks *
                       (s.halves * (box + rows * sizes::SIDE_BYTES) +
                        (s.x_in_boxes && !sizes::HALVES ? sizes::BLOCKS * sizes::X_BLOCK : 0)));
    size_t all = packed_columns(s.a.columns) / 128;
    for (uint32_t i = 0; i < chunks; i++)
      for (uint32_t h = 0; h < s.halves; h++) {
        uint32_t chunk = k * sizes::CHUNKS + i, row = c.first_row + h * s.rows;
        uint32_t place = i * s.halves + h;
        copy_box(room + place * box, weights, r.full(stage), (int)(chunk * 64),
                 (int)(c.now.slot * s.a.rows + row));
        if (sizes::SIDE_BYTES > 0)
          copy_bulk(beside + place * s.tile_rows * sizes::SIDE_BYTES,
                    (const char *)s.a.scales +
                        ((c.now.slot * all + chunk) * s.a.rows + row) * sizes::SIDE_BYTES,
                    rows * sizes::SIDE_BYTES, r.full(stage));
      }
  }

  /* One thread: N rows, of which the last may be others' or none. */
  __device__ void send_boxes(uint32_t k, uint32_t stage) const {
    uint32_t room = r.base + stage * s.stage_bytes, blocks = chunks_of(k) * sizes::BLOCKS;
    for (uint32_t b = 0; b < blocks; b++)
      copy_box(room + b * sizes::X_BLOCK, inputs, r.full(stage), (int)(k * sizes::INPUTS + 64 * b),
               (int)c.now.first_token);
  }

  /* All threads: runs as the instruction's swizzle wants them; zeros beyond the last input, as they
   * meet weights that are zero. */
  __device__ void send_inputs(uint32_t k, uint32_t stage) const {
    uint32_t run = lane % ACROSS, first = k * (sizes::INPUTS / 8);
    bool here = 8 * (first + run) < s.a.columns;
    uint32_t room = r.base + stage * s.stage_bytes + run / 8 * sizes::X_BLOCK;
#pragma unroll
    for (uint32_t i = 0; i < RUNS; i++) {
      uint32_t token = i * AT_ONCE + lane / ACROSS;
      if (x[i] != OCT_CUDA_NONE)
        copy_async(room + token * 128 + ((run % 8) ^ (token % 8)) * 16,
                   (const uint4 *)s.a.x + (here ? x[i] + first : 0), here);
    }
    arrive_after_copies(r.full(stage));
  }

  /* What does not depend on predecessors: the first tile's weights. The number of units. */
  __device__ uint32_t begin() const {
    uint32_t n = c.at < c.end ? min(units.end - units.begin, s.stages) : 0;
    if (lane < 32 && is_elected())
      for (uint32_t i = 0; i < n; i++)
        send_weights(units.begin + i, i);
    __syncwarp();
    return n;
  }

  /* With halves, a warp: weights, and x as it is: a box, or a lane a token. */
  __device__ void run_raw(uint32_t early) {
    uint32_t stage = 0, turn = 0, i = 0;
    const bf16 *from = NULL;
    for (bool is_first = true; c.at < c.end; c.next(), is_first = false) {
      if (!s.x_in_boxes && lane < c.now.n_tokens &&
          (is_first || s.a.starts == NULL || c.is_new_job())) {
        size_t row = c.now.first_token + lane;
        if (s.a.gather)
          row = s.a.pair_of[row] / s.a.top_k;
        from = (const bf16 *)s.a.x + row * s.a.x_stride;
      }
      for (uint32_t k = units.begin; k < units.end; k++, i++) {
        if (i >= s.stages)
          barrier_wait(r.empty(stage), (turn - 1) % 2);
        uint32_t bytes = 2 * min(sizes::INPUTS, s.a.columns - k * sizes::INPUTS);
        if (is_elected()) {
          barrier_expect(r.raw(stage), s.x_in_boxes ? sizes::X_RAW : c.now.n_tokens * bytes);
          if (i >= early)
            send_weights(k, stage);
          if (s.x_in_boxes)
            copy_box(r.base + stage * s.stage_bytes + sizes::X_RAW_AT, inputs, r.raw(stage),
                     (int)(k * sizes::INPUTS), (int)c.now.first_token);
        }
        __syncwarp();
        if (!s.x_in_boxes && lane < c.now.n_tokens)
          copy_bulk(r.base + stage * s.stage_bytes + sizes::X_RAW_AT + lane * 2 * sizes::INPUTS,
                    from + k * sizes::INPUTS, bytes, r.raw(stage));
        if (++stage == s.stages) {
          stage = 0;
          turn++;
        }
      }
    }
  }

  /* The first `early` units have their weights already. */
  __device__ void run(uint32_t early) {
    uint32_t stage = 0, turn = 0, i = 0;
    for (bool is_first = true; c.at < c.end; c.next(), is_first = false) {
      if (!s.x_in_boxes && (is_first || s.a.starts == NULL || c.is_new_job()))
        open();
      for (uint32_t k = units.begin; k < units.end; k++, i++) {
        if (i >= s.stages)
          barrier_wait(r.empty(stage), (turn - 1) % 2);
        if (lane < 32 && is_elected()) {
          if (i >= early)
            send_weights(k, stage);
          if (s.x_in_boxes)
            send_boxes(k, stage);
        }
        __syncwarp();
        if (!s.x_in_boxes)
          send_inputs(k, stage);
        if (++stage == s.stages) {
          stage = 0;
          turn++;
        }
      }
    }
  }
};

/* ---------------------------------------------------------------- sums */

/* A warp's 16 rows of a tile by N tokens, as matrix instructions have them. */
template <int F, int N> struct tile_sums {
  using traits = kind_traits<F>;
  using sizes = shape<F, N>;
  const codes_args &s;
  uint32_t g, t;
  uint32_t row;      /* of the tile's half, that of lane group 0 */
  uint32_t place[2]; /* of rows g and g + 8 of the warp in a chunk of the tile, all halves */
  float acc[N / 2];

  __device__ explicit tile_sums(const codes_args &args) : s(args) {
    uint32_t warp = threadIdx.x / 32;
    g = threadIdx.x % 32 / 4;
    t = threadIdx.x % 4;
    row = warp * (16 / s.halves);
    /* Warps beyond the tile read rows that it has, and store none. */
    place[0] = (row < s.tile_rows ? row : 0) + g;
    place[1] = place[0] + (s.halves == 2 ? s.tile_rows : 8);
  }

  /* Of sum i: the token behind the thread's first one, and which of its rows. With halves every
   * other column is a token's. */
  static __device__ constexpr int token_of(int i) {
    return sizes::HALVES ? i / 2 * 4 : i / 4 * 8 + i % 2;
  }
  static __device__ constexpr int half_of(int i) {
    return sizes::HALVES ? i % 2 : i % 4 / 2;
  }
  __device__ uint32_t first_token() const {
    return sizes::HALVES ? t : 2 * t;
  }

  __device__ void clear(float (&sums)[N / 2]) const {
#pragma unroll
    for (int i = 0; i < N / 2; i++)
      sums[i] = 0;
  }

  /* Packed codes of a chunk, and what is beside them. */
  __device__ void load_codes(uint32_t room, uint32_t chunk, uint32_t (&codes)[2][4],
                             uint32_t (&side)[2][traits::SIDES]) const {
    uint32_t rows = s.halves * s.tile_rows, from = room + sizes::X_BYTES + chunk * rows * 64;
    uint32_t beside =
        room + sizes::X_BYTES + sizes::CHUNKS * rows * 64 + chunk * rows * sizes::SIDE_BYTES;
#pragma unroll
    for (int h = 0; h < 2; h++) {
      uint4 v = load_shared(from + place[h] * 64 + 16 * t);
      codes[h][0] = v.x;
      codes[h][1] = v.y;
      codes[h][2] = v.z;
      codes[h][3] = v.w;
#pragma unroll
      for (int i = 0; i < traits::SIDES; i++)
        side[h][i] = load_shared_word(beside + place[h] * sizes::SIDE_BYTES + 4 * i);
    }
  }

  /* In few instructions: a block comes here once, or seldom, and fetches them anew. */
  template <typename T>
  __device__ void store_plainly(const job &now, const bool (&here)[2], const float (&factor)[2],
                                const float (&more)[2], uint32_t first_row) const {
    T *to = (T *)s.a.y + (now.first_token + first_token()) * s.a.y_stride + first_row;
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
      constexpr int EACH = sizes::HALVES ? 4 : 8;
      int h = half_of(i);
      if (first_token() + token_of(i) < now.n_tokens && here[h])
        to[token_of(i) % EACH * s.a.y_stride + 8 * h] = from_float<T>(acc[i] * factor[h] + more[h]);
      if (i + 1 < N / 2 && token_of(i + 1) / EACH > token_of(i) / EACH)
        to += EACH * s.a.y_stride;
    }
  }

  __device__ void store(const cursor<N> &c) {
    constexpr int STEP = N < 16 ? N : 16;
    const bf16 *bias =
        s.a.bias != NULL ? (const bf16 *)s.a.bias + (size_t)c.now.expert * s.a.rows : NULL;
    uint32_t at[2] = {c.first_row + row + g, 0};
    bool is_pair = s.halves == 2, here[2];
    at[1] = at[0] + (is_pair ? s.rows : 8);
    here[0] = row + g < s.tile_rows && at[0] < s.rows;
    here[1] = is_pair ? here[0] : row < s.tile_rows && at[1] < s.rows;
    float factor[2], more[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
      factor[h] = here[h] ? row_scale<F>(s.a, c.now.slot, at[h]) : 0;
      more[h] = here[h] && bias != NULL ? to_float(bias[at[h]]) : 0;
    }
    if (!is_pair && !s.a.accumulate) {
      if (s.a.y_is_float)
        store_plainly<float>(c.now, here, factor, more, at[0]);
      else
        store_plainly<bf16>(c.now, here, factor, more, at[0]);
      return;
    }
    /* Some tokens at a time, after which the others' sums take their places: as much code for any
     * N. */
#pragma unroll 1
    for (uint32_t first = 0; first < c.now.n_tokens; first += STEP) {
#pragma unroll
      for (int i = 0; i < STEP / 2; i++) {
        uint32_t token = first + first_token() + token_of(i);
        if (half_of(i) > 0 || token >= c.now.n_tokens)
          continue;
        float low = acc[i] * factor[0] + more[0];
        float high = acc[i + (sizes::HALVES ? 1 : 2)] * factor[1] + more[1];
        if (is_pair)
          low = glu(s.glu, low, high);
        if (here[0])
          store_sum(s.a, c.now.first_token + token, at[0], low, NULL);
        if (here[1] && !is_pair)
          store_sum(s.a, c.now.first_token + token, at[1], high, NULL);
      }
#pragma unroll
      for (int i = 0; i + STEP / 2 < N / 2; i++)
        acc[i] = acc[i + STEP / 2];
    }
  }

  /* To the block's shared memory, [tokens, halves * tile_rows]. */
  __device__ void spill(float *room, uint32_t pitch) const {
    if (row >= s.tile_rows)
      return;
#pragma unroll
    for (int i = 0; i < N / 2; i++)
      room[(first_token() + token_of(i)) * pitch + place[half_of(i)]] = acc[i];
  }
};

#endif
#endif
