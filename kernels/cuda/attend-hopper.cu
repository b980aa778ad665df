/* Attention of runs of query tokens on Hopper.
 *
 * A block has 128 rows (query tokens by the heads of a group, heads innermost) in two groups of
 * four warps, and four warps that bring keys and values: bf16 by the tensor copy engine straight
 * from the pages, fp8 by way of registers, where it becomes bf16. Tiles of 128 keys go through two
 * places of shared memory each for keys and for values. A group multiplies its 64 rows by the keys
 * of a tile while the values of the tile before are multiplied; between the two stands the softmax.
 *
 * Tiles are taken from the last down, so that those with a mask come first. */
#include "kernels/cuda/attend.cuh"
#include "kernels/cuda/hopper.cuh"

#define ROWS      128
#define KEYS      128
#define STAGES    2
#define CONSUMERS 256
#define THREADS   (CONSUMERS + 128)

struct hopper_args {
  attend_args a;
  uint32_t boxes; /* copies of a tile of keys: pages by runs of 64 dimensions */
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* Where things are in shared memory. */
template <int D> struct layout {
  static constexpr uint32_t RUN = KEYS * 128; /* 64 dimensions of a tile's keys */
  static constexpr uint32_t TILE = D / 64 * RUN;
  static constexpr uint32_t QUERIES = ROWS * D * 2;
  static constexpr uint32_t KEYS_AT = QUERIES, VALUES_AT = KEYS_AT + STAGES * TILE;
  static constexpr uint32_t BARRIERS_AT = VALUES_AT + STAGES * TILE;

  /* 16 bytes at dimension 8 c of a row, of a matrix of `rows` rows. */
  static __device__ uint32_t place(uint32_t rows, uint32_t row, uint32_t c) {
    return c / 8 * rows * 128 + row * 128 + 16 * (c % 8 ^ row % 8);
  }
};

/* Barriers of 8 bytes: keys full, values full, keys free, values free, STAGES of each. */
struct barriers {
  uint32_t base;
  __device__ uint32_t keys_full(uint32_t s) const {
    return base + 8 * s;
  }
  __device__ uint32_t values_full(uint32_t s) const {
    return base + 8 * (STAGES + s);
  }
  __device__ uint32_t keys_free(uint32_t s) const {
    return base + 8 * (2 * STAGES + s);
  }
  __device__ uint32_t values_free(uint32_t s) const {
    return base + 8 * (3 * STAGES + s);
  }
};

/* What a block works on. */
struct work {
  uint32_t seq, kv_head, first_token, start, first_row, n_rows;
  uint32_t low, high;         /* positions of the first and the last row */
  uint32_t first_tile, tiles; /* tiles [first_tile, first_tile + tiles) of the context */
};

OCT_DEVICE bool
find_work(const attend_args &a, work *w) {
  uint32_t tile = gridDim.x - 1 - blockIdx.x; /* the last see most and come first */
  if (!find_tile<ROWS>(a, &tile, &w->seq))
    return false;
  w->kv_head = blockIdx.y;
  w->first_token = a.batch.seq_first[w->seq];
  w->start = a.batch.seq_start[w->seq];
  w->first_row = tile * ROWS;
  w->n_rows = (a.batch.seq_first[w->seq + 1] - w->first_token) * a.group;
  w->low = w->start + w->first_row / a.group;
  w->high = w->start + min(w->first_row + ROWS - 1, w->n_rows - 1) / a.group;
  uint32_t begin = a.window != 0 && w->low + 1 > a.window ? w->low + 1 - a.window : 0;
  w->first_tile = begin / KEYS;
  w->tiles = w->high / KEYS + 1 - w->first_tile;
  return true;
}

/* ---------------------------------------------------------------- bringing keys and values */

/* One warp: a lane has a page and a run of 64 dimensions of it. Pages behind the last that the
 * sequence has are the last once more. */
template <int D>
OCT_DEVICE void
copy_tile(const hopper_args &h, const CUtensorMap *map, const work &w, uint32_t tile, uint32_t head,
          uint32_t to, uint32_t full) {
  const attend_args &a = h.a;
  uint32_t lane = threadIdx.x % 32, tokens = min(a.kv.page_tokens, (uint32_t)KEYS);
  const uint32_t *pages = a.tables.pages + a.batch.seq_slot[w.seq] * a.tables.stride;
  if (lane == 0)
    barrier_expect(full, layout<D>::TILE);
  __syncwarp();
  for (uint32_t i = lane; i < h.boxes; i += 32) {
    uint32_t part = i / (D / 64), run = i % (D / 64), position = tile * KEYS + part * tokens;
    uint32_t page = pages[min(position, w.high) / a.kv.page_tokens];
    copy_box(to + run * layout<D>::RUN + part * tokens * 128, map, full, (int)run * 64,
             (int)(position % a.kv.page_tokens), (int)head, (int)page);
  }
}

/* All four warps: fp8 to bf16. */
template <int D>
OCT_DEVICE void
convert_tile(const attend_args &a, const work &w, const page_reader &pages, uint32_t tile,
             size_t values, uint32_t to, uint32_t full) {
  constexpr uint32_t RUNS = D / 16; /* of 16 bytes */
  uint32_t thread = threadIdx.x - CONSUMERS;
#pragma unroll 4
  for (uint32_t i = thread; i < KEYS * RUNS; i += 128) {
    uint32_t row = i / RUNS, run = i % RUNS, position = min(tile * KEYS + row, w.high);
    uint4 raw = *(const uint4 *)(key_row(pages, position) + values + 16 * run);
    const uint32_t codes[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (uint32_t c = 0; c < 2; c++) {
      uint32_t pairs[4];
      expand_fp8(codes[2 * c], pairs);
      expand_fp8(codes[2 * c + 1], pairs + 2);
      asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(
                       to + layout<D>::place(KEYS, row, 2 * run + c)),
                   "r"(pairs[0]), "r"(pairs[1]), "r"(pairs[2]), "r"(pairs[3]));
    }
  }
  fence_async();
  barrier_arrive(full);
}

template <typename C, int D>
OCT_DEVICE void
bring(const hopper_args &h, const CUtensorMap *map, const work &w, uint32_t room,
      const barriers &bars) {
  const attend_args &a = h.a;
  constexpr bool copies = sizeof(C) == 2;
  if (copies && threadIdx.x >= CONSUMERS + 32)
    return;
  page_reader pages = open_pages(a.kv, a.tables, a.batch.seq_slot[w.seq], w.kv_head, sizeof(C));
  for (uint32_t i = 0; i < w.tiles; i++) {
    uint32_t s = i % STAGES, free_parity = (i / STAGES + 1) % 2;
    uint32_t tile = w.first_tile + w.tiles - 1 - i;
    uint32_t keys = room + layout<D>::KEYS_AT + s * layout<D>::TILE;
    uint32_t values = room + layout<D>::VALUES_AT + s * layout<D>::TILE;
    barrier_wait(bars.keys_free(s), free_parity);
    if constexpr (copies)
      copy_tile<D>(h, map, w, tile, w.kv_head, keys, bars.keys_full(s));
    else
      convert_tile<D>(a, w, pages, tile, 0, keys, bars.keys_full(s));
    barrier_wait(bars.values_free(s), free_parity);
    if constexpr (copies)
      copy_tile<D>(h, map, w, tile, a.kv.n_heads + w.kv_head, values, bars.values_full(s));
    else
      convert_tile<D>(a, w, pages, tile, pages.half_bytes, values, bars.values_full(s));
  }
}

/* ---------------------------------------------------------------- multiplying */

/* A group of four warps with 64 rows; a thread has of rows g and g + 8 of its warp's 16 the columns
 * 8 j + 2t and the next, as d[4 j], d[4 j + 1] and d[4 j + 2], d[4 j + 3]. */
template <int D> struct consumer {
  float scores[KEYS / 2], out[D / 2], top[2], sum[2];
  uint32_t weights[KEYS / 16][4];
  uint32_t group, warp, g, t, row[2], position[2];

  __device__ void open(const attend_args &a, const work &w) {
    group = threadIdx.x / 128;
    warp = threadIdx.x % 128 / 32;
    g = threadIdx.x % 32 / 4;
    t = threadIdx.x % 4;
#pragma unroll
    for (int r = 0; r < 2; r++) {
      row[r] = w.first_row + 64 * group + 16 * warp + g + 8 * r;
      position[r] = w.start + min(row[r], w.n_rows - 1) / a.group;
      top[r] = -INFINITY;
      sum[r] = 0;
    }
  }

  /* The group's 64 rows of queries to shared memory. */
  __device__ void load_queries(const attend_args &a, const work &w, uint32_t room) {
    for (uint32_t i = threadIdx.x % 128; i < 64 * (D / 8); i += 128) {
      uint32_t r = i / (D / 8), c = i % (D / 8), at = w.first_row + 64 * group + r;
      uint4 v = make_uint4(0, 0, 0, 0);
      if (at < w.n_rows)
        v = *(const uint4 *)((const bf16 *)a.q + (w.first_token + at / a.group) * a.q_stride +
                             (size_t)(w.kv_head * a.group + at % a.group) * D + 8 * c);
      asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(
                       room + group * (layout<D>::QUERIES / 2) + layout<D>::place(64, r, c)),
                   "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w));
    }
    fence_async();
    named_barrier(1 + group, 128);
  }

  __device__ void multiply_keys(uint32_t room, uint32_t keys) {
    uint32_t queries = room + group * (layout<D>::QUERIES / 2);
    wgmma_begin();
#pragma unroll
    for (int k = 0; k < D / 16; k++)
      wgmma_scores(scores, swizzled_matrix(queries + k / 4 * (64 * 128) + k % 4 * 32, 16),
                   swizzled_matrix(keys + k / 4 * layout<D>::RUN + k % 4 * 32, 16), k > 0);
    wgmma_commit();
  }

  __device__ void multiply_values(uint32_t values) {
    wgmma_begin();
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++)
      wgmma_values(out, weights[k], swizzled_matrix(values + k * 16 * 128, layout<D>::RUN), 1);
    wgmma_commit();
  }

  __device__ void mask(const attend_args &a, uint32_t first_key) {
#pragma unroll
    for (int i = 0; i < KEYS / 2; i++) {
      uint32_t key = first_key + i / 4 * 8 + 2 * t + i % 2, seer = position[i % 4 / 2];
      if (key > seer || (a.window != 0 && key + a.window <= seer))
        scores[i] = -INFINITY;
    }
  }

  /* Scores to weights, in place; what the earlier results have to be multiplied by. */
  __device__ void soften(float scale, float (&keep)[2]) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      float best = -INFINITY;
#pragma unroll
      for (int j = 0; j < KEYS / 8; j++)
        best = fmaxf(best, fmaxf(scores[4 * j + 2 * r], scores[4 * j + 2 * r + 1]));
      best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 1));
      best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 2)) * scale;
      best = fmaxf(best, top[r]);
      float base = best == -INFINITY ? 0 : best, total = 0;
      keep[r] = power2(top[r] - base);
      top[r] = best;
#pragma unroll
      for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
        for (int i = 4 * j + 2 * r; i < 4 * j + 2 * r + 2; i++) {
          scores[i] = power2(fmaf(scores[i], scale, -base));
          total += scores[i];
        }
      sum[r] = sum[r] * keep[r] + total;
    }
  }

  __device__ void pack_weights() {
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++)
#pragma unroll
      for (int i = 0; i < 4; i++)
        weights[k][i] = pack<bf16>(scores[8 * k + 4 * (i / 2) + 2 * (i % 2)],
                                   scores[8 * k + 4 * (i / 2) + 2 * (i % 2) + 1]);
  }

  __device__ void rescale(const float (&keep)[2]) {
#pragma unroll
    for (int i = 0; i < D / 2; i++)
      out[i] *= keep[i % 4 / 2];
  }

  __device__ void store(const attend_args &a, const work &w) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      float s = sum[r];
      s += __shfl_xor_sync(0xffffffffu, s, 1);
      s += __shfl_xor_sync(0xffffffffu, s, 2);
      if (row[r] >= w.n_rows)
        continue;
      uint32_t head = w.kv_head * a.group + row[r] % a.group;
      float factor = finish_softmax(top[r], s, a.sinks, head) * value_scale(a, w.kv_head);
      bf16 *to =
          (bf16 *)a.out + (w.first_token + row[r] / a.group) * a.out_stride + (size_t)head * D;
#pragma unroll
      for (int j = 0; j < D / 8; j++)
        *(uint32_t *)(to + 8 * j + 2 * t) =
            pack<bf16>(out[4 * j + 2 * r] * factor, out[4 * j + 2 * r + 1] * factor);
    }
  }
};

/* Values behind the sequence's last may be anything, and zero times anything may be no number. */
template <int D>
OCT_DEVICE void
clear_values(uint32_t values, uint32_t from) {
  for (uint32_t i = threadIdx.x; i < (KEYS - from) * (D / 8); i += CONSUMERS)
    asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(
                     values + layout<D>::place(KEYS, from + i / (D / 8), i % (D / 8))),
                 "r"(0));
  fence_async();
  named_barrier(3, CONSUMERS);
}

/* A warp's arrival at a barrier that all consuming warps have to reach. */
OCT_DEVICE void
arrive_by_warp(uint32_t barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0)
    barrier_arrive(barrier);
}

/* Scores of a tile as softened weights. */
template <int D>
OCT_DEVICE void
soften_tile(consumer<D> &c, const attend_args &a, const work &w, uint32_t first_key, float scale,
            float (&keep)[2]) {
  if (a.soft_cap > 0)
#pragma unroll
    for (int k = 0; k < KEYS / 2; k++)
      c.scores[k] = cap_score(c.scores[k], scale, a.soft_cap);
  if (first_key + KEYS > w.low + 1 || (a.window != 0 && first_key + a.window <= w.high))
    c.mask(a, first_key);
  c.soften(a.soft_cap > 0 ? 1 : scale, keep);
}

template <int D>
OCT_DEVICE void
consume(const attend_args &a, const work &w, uint32_t room, const barriers &bars) {
  constexpr uint32_t TILE = layout<D>::TILE;
  consumer<D> c;
  c.open(a, w);
  c.load_queries(a, w, room);
  float scale = score_scale(a, w.kv_head), keep[2];
  uint32_t keys = room + layout<D>::KEYS_AT, values = room + layout<D>::VALUES_AT;
  uint32_t first_key = (w.first_tile + w.tiles - 1) * KEYS;
  barrier_wait(bars.keys_full(0), 0);
  c.multiply_keys(room, keys);
  wgmma_wait<0>();
  keep_behind(c.scores);
  arrive_by_warp(bars.keys_free(0));
  soften_tile(c, a, w, first_key, scale, keep);
  c.pack_weights();
  barrier_wait(bars.values_full(0), 0);
  if ((w.high + 1) % KEYS != 0)
    clear_values<D>(values, (w.high + 1) % KEYS);
#pragma unroll
  for (int i = 0; i < D / 2; i++)
    c.out[i] = 0;
  for (uint32_t i = 1; i < w.tiles; i++) {
    uint32_t s = i % STAGES, before = (i - 1) % STAGES;
    barrier_wait(bars.keys_full(s), i / STAGES % 2);
    barrier_wait(bars.values_full(before), (i - 1) / STAGES % 2);
    c.multiply_keys(room, keys + s * TILE);
    c.multiply_values(values + before * TILE);
    wgmma_wait<1>();
    keep_behind(c.scores);
    arrive_by_warp(bars.keys_free(s));
    first_key -= KEYS;
    soften_tile(c, a, w, first_key, scale, keep);
    wgmma_wait<0>();
    keep_behind(c.out);
    arrive_by_warp(bars.values_free(before));
    c.rescale(keep);
    c.pack_weights();
  }
  uint32_t last = (w.tiles - 1) % STAGES;
  barrier_wait(bars.values_full(last), (w.tiles - 1) / STAGES % 2);
  c.multiply_values(values + last * TILE);
  wgmma_wait<0>();
  keep_behind(c.out);
  c.store(a, w);
}

#endif

template <typename C, int D>
static __global__ void
__launch_bounds__(THREADS, 1)
    attend_hopper(hopper_args h, const __grid_constant__ CUtensorMap map) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) unsigned char shared[];
  admit_successor();
  await_predecessors();
  work w;
  if (!find_work(h.a, &w))
    return;
  uint32_t room = shared_address(shared);
  barriers bars = {room + layout<D>::BARRIERS_AT};
  if (threadIdx.x == 0) {
    for (uint32_t s = 0; s < STAGES; s++) {
      barrier_init(bars.keys_full(s), sizeof(C) == 2 ? 1 : 128);
      barrier_init(bars.values_full(s), sizeof(C) == 2 ? 1 : 128);
      barrier_init(bars.keys_free(s), CONSUMERS / 32);
      barrier_init(bars.values_free(s), CONSUMERS / 32);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  if (threadIdx.x >= CONSUMERS) {
    give_registers<sizeof(C) == 2 ? 24 : 56>();
    bring<C, D>(h, &map, w, room, bars);
  } else {
    take_registers<sizeof(C) == 2 ? 240 : 224>();
    consume<D>(h.a, w, room, bars);
  }
#endif
}

/* ---------------------------------------------------------------- launch */

/* The pool of a layer as [page, keys' and values' heads, token, dimension]. */
static bool
make_map(const attend_args &a, CUtensorMap *map) {
  static const PFN_cuTensorMapEncodeTiled_v12000 encode = find_encoder();
  if (encode == NULL)
    return false;
  uint64_t row = (uint64_t)a.kv.width * 2;
  uint32_t tokens = a.kv.page_tokens < KEYS ? a.kv.page_tokens : KEYS;
  const cuuint64_t sizes[4] = {a.kv.width, a.kv.page_tokens, 2 * (uint64_t)a.kv.n_heads, 1u << 31};
  const cuuint64_t strides[3] = {row, row * a.kv.page_tokens, a.kv.page_bytes};
  const cuuint32_t box[4] = {64, tokens, 1, 1}, steps[4] = {1, 1, 1, 1};
  return encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, a.kv.base, sizes, strides, box, steps,
                CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

template <typename C, int D>
static int
launch_hopper(const oct_cuda_queue *queue, const attend_args &a) {
  CUtensorMap map = {};
  uint32_t tokens = a.kv.page_tokens < KEYS ? a.kv.page_tokens : KEYS;
  hopper_args h = {a, KEYS / tokens * (D / 64)};
  if (sizeof(C) == 2 && !make_map(a, &map))
    return OCT_CUDA_UNSUPPORTED;
  uint32_t tiles = a.batch.n_tokens * a.group / ROWS + a.n_seqs;
  size_t shared = (size_t)ROWS * D * 2 + 4 * STAGES * (size_t)KEYS * D + 4 * STAGES * 8;
  return launch_large(queue, attend_hopper<C, D>, dim3(tiles, a.kv.n_heads), dim3(THREADS), shared,
                      h, map);
}

bool
oct_attend_hopper_can(const oct_cuda_queue *queue, const attend_args &a, oct_cuda_type type) {
  return queue->capability == 90 && type == OCT_CUDA_BF16 && a.kv.type != OCT_CUDA_F32 &&
         a.kv.has_values && (a.kv.width == 64 || a.kv.width == 128) && a.kv.page_tokens >= 8 &&
         a.q_stride % 8 == 0 && a.out_stride % 2 == 0 && (uintptr_t)a.q % 16 == 0 &&
         (uintptr_t)a.kv.base % 16 == 0 && a.kv.page_bytes % 16 == 0;
}

int
oct_attend_hopper(const oct_cuda_queue *queue, const attend_args &a) {
  bool wide = a.kv.width == 128;
  if (a.kv.type == OCT_CUDA_BF16)
    return wide ? launch_hopper<bf16, 128>(queue, a) : launch_hopper<bf16, 64>(queue, a);
  return wide ? launch_hopper<fp8, 128>(queue, a) : launch_hopper<fp8, 64>(queue, a);
}
