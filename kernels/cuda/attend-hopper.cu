/* Attention of runs of query tokens on Hopper.
 *
 * A block has 128 rows (query tokens by the heads of a group, heads innermost) in two groups of
 * four warps, and four warps that bring queries, keys and values: bf16 by the tensor copy engine
 * straight from the pages, fp8 by way of registers, where it becomes bf16. Tiles of 128 keys go
 * through two places of shared memory each for keys and for values. A group multiplies its 64 rows
 * by the keys of a tile while the values of the tile before are multiplied; between the two stands
 * the softmax, and meanwhile the other group multiplies.
 *
 * Blocks are as many as multiprocessors, and each has several works, one after the other: what
 * brings is a work ahead, so that neither the beginning of one nor the end of another leaves
 * anything waiting. Keys are taken from the last tile down, so that those with a mask come first.
 */
#include "kernels/cuda/attend.cuh"
#include "kernels/cuda/hopper.cuh"

#define ROWS      128
#define KEYS      128
#define STAGES    2
#define CONSUMERS 256
#define THREADS   (CONSUMERS + 128)
#define TURN      4 /* the first of two named barriers */

struct hopper_args {
  attend_args a;
  uint32_t boxes;    /* copies of a tile of keys: pages by runs of 64 dimensions; 32 at most */
  uint32_t tiles;    /* of rows, at most */
  bool copies_query; /* a group divides the rows: queries come by the copy engine too */
};

/* Where things are in shared memory. */
template <int D> struct layout {
  static constexpr uint32_t RUN = KEYS * 128; /* 64 dimensions of a tile's keys */
  static constexpr uint32_t TILE = D / 64 * RUN;
  static constexpr uint32_t QUERIES = ROWS * D * 2;
  static constexpr uint32_t KEYS_AT = 2 * QUERIES, VALUES_AT = KEYS_AT + STAGES * TILE;
  static constexpr uint32_t BARRIERS_AT = VALUES_AT + STAGES * TILE;
  static constexpr uint32_t WORKS_AT = BARRIERS_AT + 8 * (4 * STAGES + 4);
  static constexpr uint32_t BYTES = WORKS_AT + 2 * 64;

  /* 16 bytes at dimension 8 c of a row, of a matrix of 128 rows. */
  static __device__ uint32_t place(uint32_t row, uint32_t c) {
    return c / 8 * (128 * 128) + row * 128 + 16 * (c % 8 ^ row % 8);
  }
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* Barriers of 8 bytes: keys full, values full, keys free, values free, STAGES of each; queries
 * full, queries free, 2 of each. */
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
  __device__ uint32_t queries_full(uint32_t s) const {
    return base + 8 * (4 * STAGES + s);
  }
  __device__ uint32_t queries_free(uint32_t s) const {
    return base + 8 * (4 * STAGES + 2 + s);
  }
};

/* What a block works on at a time. */
struct work {
  uint32_t seq, kv_head, first_token, start, first_row, n_rows;
  uint32_t low, high; /* positions of the first and the last row */
  uint32_t first_tile,
      tiles; /* tiles [first_tile, first_tile + tiles) of the context; 0: the end */
};

/* Work `item`; false: it is beyond the batch's tiles. The last tiles see most and come first. */
OCT_DEVICE bool
find_work(const hopper_args &h, uint32_t item, work *w) {
  const attend_args &a = h.a;
  uint32_t tile = h.tiles - 1 - item / a.kv.n_heads;
  if (!find_tile<ROWS>(a, &tile, &w->seq))
    return false;
  w->kv_head = item % a.kv.n_heads;
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

/* The block's works in turn: rounds go to and fro, so that no block has the largest of each. False:
 * there is none any more. */
OCT_DEVICE bool
next_work(const hopper_args &h, uint32_t *round, work *w) {
  uint32_t n = h.tiles * h.a.kv.n_heads;
  while (*round * gridDim.x < n) {
    uint32_t at = *round % 2 == 0 ? blockIdx.x : gridDim.x - 1 - blockIdx.x;
    uint32_t item = *round * gridDim.x + at;
    ++*round;
    if (item < n && find_work(h, item, w))
      return true;
  }
  return false;
}

/* ---------------------------------------------------------------- bringing keys and values */

/* A lane's copy of a tile of keys or values: a page's tokens by a run of 64 dimensions. Pages
 * behind the last that the sequence has are the last once more. */
template <int D> struct box {
  uint32_t page, token, run, offset;

  __device__ void find(const hopper_args &h, const uint32_t *pages, const work &w, uint32_t tile) {
    uint32_t lane = threadIdx.x % 32, tokens = min(h.a.kv.page_tokens, (uint32_t)KEYS);
    uint32_t part = lane / (D / 64), position = tile * KEYS + part * tokens;
    run = lane % (D / 64);
    if (lane < h.boxes)
      page = pages[min(position, w.high) / h.a.kv.page_tokens];
    token = position % h.a.kv.page_tokens;
    offset = run * layout<D>::RUN + part * tokens * 128;
  }

  __device__ void copy(const hopper_args &h, const CUtensorMap *map, uint32_t head, uint32_t to,
                       uint32_t full) const {
    if (threadIdx.x % 32 == 0)
      barrier_expect(full, layout<D>::TILE);
    __syncwarp();
    if (threadIdx.x % 32 < h.boxes)
      copy_box(to + offset, map, full, (int)run * 64, (int)token, (int)head, (int)page);
  }
};

/* All four warps: fp8 to bf16. */
template <int D>
OCT_DEVICE void
convert_tile(const work &w, const page_reader &pages, uint32_t tile, size_t values, uint32_t to,
             uint32_t full) {
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
      asm volatile(
          "st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to + layout<D>::place(row, 2 * run + c)),
          "r"(pairs[0]), "r"(pairs[1]), "r"(pairs[2]), "r"(pairs[3]));
    }
  }
  fence_async();
  barrier_arrive(full);
}

/* The work to the consumers, number `nth` of the block, and its queries. One warp. */
template <int D>
OCT_DEVICE void
bring_work(const hopper_args &h, const CUtensorMap *map, const work &w, uint32_t nth,
           unsigned char *shared, const barriers &bars) {
  uint32_t s = nth % 2, full = bars.queries_full(s);
  barrier_wait(bars.queries_free(s), (nth / 2 + 1) % 2);
  if (threadIdx.x % 32 != 0)
    return;
  *(work *)(shared + layout<D>::WORKS_AT + 64 * s) = w;
  if (!h.copies_query || w.tiles == 0) {
    barrier_arrive(full);
    return;
  }
  barrier_expect(full, layout<D>::QUERIES);
  for (uint32_t run = 0; run < D / 64; run++)
    copy_box(shared_address(shared) + s * layout<D>::QUERIES + run * (ROWS * 128), map, full,
             (int)run * 64, (int)(w.kv_head * h.a.group),
             (int)(w.first_token + w.first_row / h.a.group), 0);
}

/* The tiles of a work, from *turn on. */
template <typename C, int D>
OCT_DEVICE void
bring_tiles(const hopper_args &h, const CUtensorMap *map, const work &w, uint32_t room,
            const barriers &bars, uint32_t *turn) {
  const attend_args &a = h.a;
  constexpr bool copies = sizeof(C) == 2;
  page_reader pages = open_pages(a.kv, a.tables, a.batch.seq_slot[w.seq], w.kv_head, sizeof(C));
  box<D> now = {};
  if constexpr (copies)
    now.find(h, pages.pages, w, w.first_tile + w.tiles - 1);
  for (uint32_t i = 0; i < w.tiles; i++, ++*turn) {
    uint32_t s = *turn % STAGES, free_parity = (*turn / STAGES + 1) % 2;
    uint32_t tile = w.first_tile + w.tiles - 1 - i;
    uint32_t keys = room + layout<D>::KEYS_AT + s * layout<D>::TILE;
    uint32_t values = room + layout<D>::VALUES_AT + s * layout<D>::TILE;
    box<D> next = now;
    if (copies && i + 1 < w.tiles)
      next.find(h, pages.pages, w, tile - 1);
    barrier_wait(bars.keys_free(s), free_parity);
    if constexpr (copies)
      now.copy(h, map, w.kv_head, keys, bars.keys_full(s));
    else
      convert_tile<D>(w, pages, tile, 0, keys, bars.keys_full(s));
    barrier_wait(bars.values_free(s), free_parity);
    if constexpr (copies)
      now.copy(h, map, a.kv.n_heads + w.kv_head, values, bars.values_full(s));
    else
      convert_tile<D>(w, pages, tile, pages.half_bytes, values, bars.values_full(s));
    now = next;
  }
}

template <typename C, int D>
OCT_DEVICE void
bring(const hopper_args &h, const CUtensorMap *pool, const CUtensorMap *query,
      unsigned char *shared, const barriers &bars) {
  bool first_warp = threadIdx.x < CONSUMERS + 32;
  uint32_t round = 0, turn = 0, nth = 0;
  work w = {};
  if (sizeof(C) == 2 && !first_warp)
    return;
  for (; next_work(h, &round, &w); nth++) {
    if (first_warp)
      bring_work<D>(h, query, w, nth, shared, bars);
    bring_tiles<C, D>(h, pool, w, shared_address(shared), bars, &turn);
  }
  w.tiles = 0;
  if (first_warp)
    bring_work<D>(h, query, w, nth, shared, bars);
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

  /* The group's 64 rows of queries to shared memory, where the copy engine cannot. */
  __device__ void load_queries(const attend_args &a, const work &w, uint32_t queries) {
    for (uint32_t i = threadIdx.x % 128; i < 64 * (D / 8); i += 128) {
      uint32_t r = i / (D / 8), c = i % (D / 8), at = w.first_row + 64 * group + r;
      uint4 v = make_uint4(0, 0, 0, 0);
      if (at < w.n_rows)
        v = *(const uint4 *)((const bf16 *)a.q + (w.first_token + at / a.group) * a.q_stride +
                             (size_t)(w.kv_head * a.group + at % a.group) * D + 8 * c);
      asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(
                       queries + layout<D>::place(64 * group + r, c)),
                   "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w));
    }
    fence_async();
    named_barrier(1 + group, 128);
  }

  __device__ void multiply_keys(uint32_t queries, uint32_t keys) {
    wgmma_begin();
#pragma unroll
    for (int k = 0; k < D / 16; k++)
      wgmma_scores(
          scores,
          swizzled_matrix(queries + k / 4 * (ROWS * 128) + group * (64 * 128) + k % 4 * 32, 16),
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
                     values + layout<D>::place(from + i / (D / 8), i % (D / 8))),
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

/* One work, whose tiles are number `turn` of the block and on; queries are there. */
template <int D>
OCT_DEVICE void
consume_work(const hopper_args &h, const work &w, uint32_t room, uint32_t queries,
             const barriers &bars, uint32_t turn) {
  constexpr uint32_t TILE = layout<D>::TILE;
  const attend_args &a = h.a;
  consumer<D> c;
  c.open(a, w);
  if (!h.copies_query)
    c.load_queries(a, w, queries);
  float scale = score_scale(a, w.kv_head), keep[2];
  uint32_t keys = room + layout<D>::KEYS_AT, values = room + layout<D>::VALUES_AT;
  uint32_t first_key = (w.first_tile + w.tiles - 1) * KEYS, s = turn % STAGES;
  barrier_wait(bars.keys_full(s), turn / STAGES % 2);
  c.multiply_keys(queries, keys + s * TILE);
  wgmma_wait<0>();
  keep_behind(c.scores);
  arrive_by_warp(bars.keys_free(s));
  soften_tile(c, a, w, first_key, scale, keep);
  c.pack_weights();
  if ((w.high + 1) % KEYS != 0) {
    barrier_wait(bars.values_full(s), turn / STAGES % 2);
    clear_values<D>(values + s * TILE, (w.high + 1) % KEYS);
  }
#pragma unroll
  for (int i = 0; i < D / 2; i++)
    c.out[i] = 0;
  /* The groups take turns: one multiplies while the other softens. */
  if (c.group == 1 && w.tiles > 1)
    named_arrive(TURN, CONSUMERS);
  for (uint32_t i = 1; i < w.tiles; i++) {
    uint32_t before = s, parity = turn / STAGES % 2;
    turn++;
    s = turn % STAGES;
    barrier_wait(bars.keys_full(s), turn / STAGES % 2);
    barrier_wait(bars.values_full(before), parity);
    named_barrier(TURN + c.group, CONSUMERS);
    c.multiply_keys(queries, keys + s * TILE);
    c.multiply_values(values + before * TILE);
    if (c.group == 0 || i + 1 < w.tiles)
      named_arrive(TURN + 1 - c.group, CONSUMERS);
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
  barrier_wait(bars.values_full(s), turn / STAGES % 2);
  c.multiply_values(values + s * TILE);
  wgmma_wait<0>();
  keep_behind(c.out);
  arrive_by_warp(bars.values_free(s));
  c.store(a, w);
}

template <int D>
OCT_DEVICE void
consume(const hopper_args &h, unsigned char *shared, const barriers &bars) {
  uint32_t room = shared_address(shared), turn = 0;
  for (uint32_t nth = 0;; nth++) {
    uint32_t s = nth % 2;
    barrier_wait(bars.queries_full(s), nth / 2 % 2);
    const work w = *(const work *)(shared + layout<D>::WORKS_AT + 64 * s);
    if (w.tiles == 0)
      break;
    consume_work<D>(h, w, room, room + s * layout<D>::QUERIES, bars, turn);
    arrive_by_warp(bars.queries_free(s));
    turn += w.tiles;
  }
}

#endif

template <typename C, int D>
static __global__ void
__launch_bounds__(THREADS, 1)
    attend_hopper(const __grid_constant__ hopper_args h, const __grid_constant__ CUtensorMap pool,
                  const __grid_constant__ CUtensorMap query) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) unsigned char shared[];
  admit_successor();
  await_predecessors();
  barriers bars = {shared_address(shared) + layout<D>::BARRIERS_AT};
  if (threadIdx.x == 0) {
    for (uint32_t s = 0; s < STAGES; s++) {
      barrier_init(bars.keys_full(s), sizeof(C) == 2 ? 1 : 128);
      barrier_init(bars.values_full(s), sizeof(C) == 2 ? 1 : 128);
      barrier_init(bars.keys_free(s), CONSUMERS / 32);
      barrier_init(bars.values_free(s), CONSUMERS / 32);
    }
    for (uint32_t s = 0; s < 2; s++) {
      barrier_init(bars.queries_full(s), 1);
      barrier_init(bars.queries_free(s), CONSUMERS / 32);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  if (threadIdx.x >= CONSUMERS) {
    give_registers<sizeof(C) == 2 ? 40 : 72>();
    bring<C, D>(h, &pool, &query, shared, bars);
  } else {
    take_registers<sizeof(C) == 2 ? 232 : 216>();
    consume<D>(h, shared, bars);
  }
#endif
}

/* ---------------------------------------------------------------- launch */

/* Boxes of 64 dimensions by box1 by box2 of a tensor of bf16 with four dimensions, the innermost
 * first; strides in bytes, of all but that. */
static bool
make_map(CUtensorMap *map, const void *base, const cuuint64_t (&sizes)[4],
         const cuuint64_t (&strides)[3], uint32_t box1, uint32_t box2) {
  static const PFN_cuTensorMapEncodeTiled_v12000 encode = find_encoder();
  const cuuint32_t box[4] = {64, box1, box2, 1}, steps[4] = {1, 1, 1, 1};
  return encode != NULL && encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, (void *)(uintptr_t)base,
                                  sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                  CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/* The pool of a layer as [page, keys' and values' heads, token, dimension]. */
static bool
map_pool(const attend_args &a, uint32_t tokens, CUtensorMap *map) {
  uint64_t row = (uint64_t)a.kv.width * 2;
  return make_map(map, a.kv.base,
                  {a.kv.width, a.kv.page_tokens, 2 * (uint64_t)a.kv.n_heads, 1u << 31},
                  {row, row * a.kv.page_tokens, a.kv.page_bytes}, tokens, 1);
}

/* Queries as [token, head, dimension]. */
static bool
map_queries(const attend_args &a, CUtensorMap *map) {
  uint64_t row = (uint64_t)a.kv.width * 2, token = a.q_stride * 2;
  return make_map(map, a.q, {a.kv.width, a.n_heads, a.batch.n_tokens, 1},
                  {row, token, token * a.batch.n_tokens}, a.group, ROWS / a.group);
}

template <typename C, int D>
static int
launch_hopper(const oct_cuda_queue *queue, const attend_args &a) {
  CUtensorMap pool = {}, query = {};
  uint32_t tokens = a.kv.page_tokens < KEYS ? a.kv.page_tokens : KEYS;
  hopper_args h = {a, KEYS / tokens * (D / 64), a.batch.n_tokens * a.group / ROWS + a.n_seqs,
                   ROWS % a.group == 0};
  if ((sizeof(C) == 2 && !map_pool(a, tokens, &pool)) ||
      (h.copies_query && !map_queries(a, &query)))
    return OCT_CUDA_UNSUPPORTED;
  uint32_t works = h.tiles * a.kv.n_heads;
  return launch_large(queue, attend_hopper<C, D>,
                      dim3(works < queue->sm_count ? works : queue->sm_count), dim3(THREADS),
                      (size_t)layout<D>::BYTES, h, pool, query);
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
