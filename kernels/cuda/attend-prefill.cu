/* Attention of runs of query tokens, by the matrix instruction that every architecture has.
 *
 * A block has 64 rows, a row being a query token and one of the query heads of a KV head, heads
 * innermost: heads of a group share the keys that are loaded, also when a run is short. Keys and
 * values come tile by tile from the pages into shared memory, two tiles in turn; their 16-byte
 * chunks are swizzled so that matrix loads meet no bank twice. */
#include "kernels/cuda/attend.cuh"
#include "kernels/cuda/barrier.cuh"

#define WARPS 4
#define ROWS  (16 * WARPS)

/* C: cache; DP: head size rounded up to what is built; KEYS: of a tile. */
template <typename C, int DP, int KEYS> struct prefiller {
  static constexpr int CHUNKS = DP / 8; /* of 16 bytes in a row of shared memory */
  static constexpr uint32_t TILE_BYTES = KEYS * DP * 2;

  uint32_t q[DP / 16][4];
  float acc[DP / 8][4], top[2], sum[2];
  uint32_t g, t, first_row, n_rows; /* rows g and g + 8 of the warp's 16 */

  static __device__ uint32_t place(uint32_t row, uint32_t chunk) {
    return row * (DP * 2) + 16 * (chunk ^ (row % 8));
  }

  /* Rows to tokens and heads; q's rows as operands. */
  __device__ void load_queries(const attend_args &a, uint32_t kv_head, uint32_t first_token) {
#pragma unroll
    for (int k = 0; k < DP / 16; k++)
#pragma unroll
      for (int i = 0; i < 4; i++) {
        uint32_t row = first_row + g + i % 2 * 8, dim = 16 * k + 2 * t + i / 2 * 8;
        q[k][i] = 0;
        if (row < n_rows && dim < a.kv.width)
          q[k][i] =
              *(const uint32_t *)((const bf16 *)a.q + (first_token + row / a.group) * a.q_stride +
                                  (size_t)(kv_head * a.group + row % a.group) * a.kv.width + dim);
      }
  }

  /* Keys [at, at + KEYS) and their values to shared memory; zeros for those outside [begin, end),
   * which may be on pages that are not the sequence's. */
  static __device__ void load_tile(const page_reader &pages, uint32_t width, uint32_t at,
                                   uint32_t begin, uint32_t end, uint32_t keys, uint32_t values) {
    constexpr int E = 16 / sizeof(C), RUNS = DP / E;
    for (uint32_t i = threadIdx.x; i < KEYS * RUNS; i += 32 * WARPS) {
      uint32_t row = i / RUNS, run = i % RUNS;
      bool valid = at + row >= begin && at + row < end && run * E < width;
      const char *from = valid ? key_row(pages, at + row) + 16 * run : pages.base;
      if constexpr (sizeof(C) == 2) {
        copy_async(keys + place(row, run), from, valid);
        copy_async(values + place(row, run), valid ? from + pages.half_bytes : from, valid);
      } else {
#pragma unroll
        for (int half = 0; half < 2; half++) {
          uint4 raw = valid ? *(const uint4 *)(from + (half ? pages.half_bytes : 0))
                            : make_uint4(0, 0, 0, 0);
          const fp8 *codes = (const fp8 *)&raw;
          uint32_t words[8];
#pragma unroll
          for (int w = 0; w < 8; w++)
            words[w] = pack<bf16>(to_float(codes[2 * w]), to_float(codes[2 * w + 1]));
#pragma unroll
          for (int c = 0; c < 2; c++)
            asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"((half ? values : keys) +
                                                                          place(row, 2 * run + c)),
                         "r"(words[4 * c]), "r"(words[4 * c + 1]), "r"(words[4 * c + 2]),
                         "r"(words[4 * c + 3]));
        }
      }
    }
    asm volatile("cp.async.commit_group;");
  }

  __device__ void scores(uint32_t keys, float (&s)[KEYS / 8][4]) {
    uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
      s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0;
#pragma unroll
    for (int k = 0; k < DP / 16; k++)
#pragma unroll
      for (int n = 0; n < KEYS / 16; n++) {
        uint32_t b[4];
        load_matrices(b, keys + place(16 * n + lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2));
        mma<bf16>(s[2 * n], q[k][0], q[k][1], q[k][2], q[k][3], b[0], b[1]);
        mma<bf16>(s[2 * n + 1], q[k][0], q[k][1], q[k][2], q[k][3], b[2], b[3]);
      }
  }

  /* Scores to weights; what was summed before is scaled to the new top. */
  __device__ void weigh(float (&s)[KEYS / 8][4]) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      float best = top[r];
#pragma unroll
      for (int n = 0; n < KEYS / 8; n++)
        best = fmaxf(best, fmaxf(s[n][2 * r], s[n][2 * r + 1]));
      best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 1));
      best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 2));
      float base = best == -INFINITY ? 0 : best, keep = power2(top[r] - base);
      top[r] = best;
      sum[r] *= keep;
#pragma unroll
      for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
        for (int i = 2 * r; i < 2 * r + 2; i++) {
          s[n][i] = power2(s[n][i] - base);
          sum[r] += s[n][i];
        }
#pragma unroll
      for (int d = 0; d < DP / 8; d++) {
        acc[d][2 * r] *= keep;
        acc[d][2 * r + 1] *= keep;
      }
    }
  }

  __device__ void add_values(uint32_t values, const float (&s)[KEYS / 8][4]) {
    uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++) {
      uint32_t p[4] = {pack<bf16>(s[2 * k][0], s[2 * k][1]), pack<bf16>(s[2 * k][2], s[2 * k][3]),
                       pack<bf16>(s[2 * k + 1][0], s[2 * k + 1][1]),
                       pack<bf16>(s[2 * k + 1][2], s[2 * k + 1][3])};
#pragma unroll
      for (int d = 0; d < DP / 16; d++) {
        uint32_t b[4];
        load_transposed(b, values + place(16 * k + lane % 16, 2 * d + lane / 16));
        mma<bf16>(acc[2 * d], p[0], p[1], p[2], p[3], b[0], b[1]);
        mma<bf16>(acc[2 * d + 1], p[0], p[1], p[2], p[3], b[2], b[3]);
      }
    }
  }

  __device__ void store(const attend_args &a, uint32_t kv_head, uint32_t first_token) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      float s = sum[r];
      s += __shfl_xor_sync(0xffffffffu, s, 1);
      s += __shfl_xor_sync(0xffffffffu, s, 2);
      uint32_t row = first_row + g + 8 * r;
      if (row >= n_rows)
        continue;
      uint32_t head = kv_head * a.group + row % a.group;
      float factor = finish_softmax(top[r], s, a.sinks, head) * value_scale(a, kv_head);
      bf16 *out =
          (bf16 *)a.out + (first_token + row / a.group) * a.out_stride + (size_t)head * a.kv.width;
#pragma unroll
      for (int d = 0; d < DP / 8; d++)
        if (8 * d < a.kv.width)
          *(uint32_t *)(out + 8 * d + 2 * t) =
              pack<bf16>(acc[d][2 * r] * factor, acc[d][2 * r + 1] * factor);
    }
  }
};

/* Scales scores, and takes out what rows do not see: rows' positions are position[0], [1]. */
template <int N>
OCT_DEVICE void
mask_scores(const attend_args &a, float (&s)[N][4], float scale, uint32_t at, uint32_t t,
            const uint32_t (&position)[2], bool is_edge) {
#pragma unroll
  for (int n = 0; n < N; n++)
#pragma unroll
    for (int i = 0; i < 4; i++) {
      s[n][i] = cap_score(s[n][i], scale, a.soft_cap);
      uint32_t key = at + 8 * n + 2 * t + i % 2, seer = position[i / 2];
      if (is_edge && (key > seer || (a.window != 0 && key + a.window <= seer)))
        s[n][i] = -INFINITY;
    }
}

template <typename C, int DP, int KEYS>
static __global__ void
__launch_bounds__(32 * WARPS) attend_prefill(attend_args a) {
  extern __shared__ __align__(128) unsigned char shared[];
  admit_successor();
  await_predecessors();
  /* The last tiles see most: they come first. */
  uint32_t tile = gridDim.x - 1 - blockIdx.x, seq, kv_head = blockIdx.y;
  if (!find_tile<ROWS>(a, &tile, &seq))
    return;
  uint32_t first_token = a.batch.seq_first[seq], start = a.batch.seq_start[seq];
  prefiller<C, DP, KEYS> p = {};
  p.g = threadIdx.x % 32 / 4;
  p.t = threadIdx.x % 4;
  p.first_row = tile * ROWS + 16 * (threadIdx.x / 32);
  p.n_rows = (a.batch.seq_first[seq + 1] - first_token) * a.group;
  p.top[0] = p.top[1] = -INFINITY;
  p.load_queries(a, kv_head, first_token);
  uint32_t low = start + tile * ROWS / a.group;
  uint32_t high = start + min(tile * ROWS + ROWS - 1, p.n_rows - 1) / a.group;
  uint32_t position[2];
  for (int r = 0; r < 2; r++)
    position[r] = start + min(p.first_row + p.g + 8 * r, p.n_rows - 1) / a.group;
  uint32_t end = high + 1, begin = a.window != 0 && low + 1 > a.window ? low + 1 - a.window : 0;
  uint32_t at = begin / KEYS * KEYS;
  page_reader pages = open_pages(a.kv, a.tables, a.batch.seq_slot[seq], kv_head, sizeof(C));
  float scale = score_scale(a, kv_head);
  uint32_t room = (uint32_t)__cvta_generic_to_shared(shared), bytes = p.TILE_BYTES, turn = 0;
  p.load_tile(pages, a.kv.width, at, begin, end, room, room + bytes);
  for (; at < end; at += KEYS, turn ^= 1) {
    uint32_t keys = room + turn * 2 * bytes;
    if (at + KEYS < end)
      p.load_tile(pages, a.kv.width, at + KEYS, 0, end, room + (turn ^ 1) * 2 * bytes,
                  room + (turn ^ 1) * 2 * bytes + bytes);
    else
      asm volatile("cp.async.commit_group;");
    asm volatile("cp.async.wait_group 1;");
    __syncthreads();
    float s[KEYS / 8][4];
    p.scores(keys, s);
    bool is_edge = at + KEYS > low + 1 || (a.window != 0 && at + a.window <= high);
    mask_scores(a, s, scale, at, p.t, position, is_edge);
    p.weigh(s);
    p.add_values(keys + bytes, s);
    __syncthreads();
  }
  p.store(a, kv_head, first_token);
}

/* ---------------------------------------------------------------- launch */

template <typename C, int DP, int KEYS>
static int
launch_prefill(const oct_cuda_queue *queue, const attend_args &a) {
  /* At most this many tiles, whatever the lengths are. */
  uint32_t tiles = a.batch.n_tokens * a.group / ROWS + a.n_seqs;
  return launch_large(queue, attend_prefill<C, DP, KEYS>, dim3(tiles, a.kv.n_heads),
                      dim3(32 * WARPS), 4 * prefiller<C, DP, KEYS>::TILE_BYTES, a);
}

template <typename C>
static int
by_head(const oct_cuda_queue *queue, const attend_args &a) {
  if (a.kv.width <= 64)
    return launch_prefill<C, 64, 64>(queue, a);
  if (a.kv.width <= 128)
    return launch_prefill<C, 128, 64>(queue, a);
  return launch_prefill<C, 256, 32>(queue, a);
}

bool
oct_attend_prefill_can(const attend_args &a, oct_cuda_type type) {
  uint32_t step = a.kv.type == OCT_CUDA_FP8 ? 16 : 8;
  return type == OCT_CUDA_BF16 && a.kv.type != OCT_CUDA_F32 && a.kv.has_values &&
         a.kv.width % step == 0 && a.kv.width <= 256 && a.q_stride % 2 == 0 &&
         a.out_stride % 2 == 0;
}

int
oct_attend_prefill(const oct_cuda_queue *queue, const attend_args &a) {
  return a.kv.type == OCT_CUDA_BF16 ? by_head<bf16>(queue, a) : by_head<fp8>(queue, a);
}
