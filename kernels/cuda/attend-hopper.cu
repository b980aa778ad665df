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
#include "kernels/cuda/tiles.cuh"

template <int D> using layout = tile_layout<D, D, 2>;

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

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
      barrier_expect(full, layout<D>::KEY_TILE);
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
    uint32_t keys = room + layout<D>::KEYS_AT + s * layout<D>::KEY_TILE;
    uint32_t values = room + layout<D>::VALUES_AT + s * layout<D>::KEY_TILE;
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
  if (threadIdx.x == 0)
    open_barriers(bars, sizeof(C) == 2 ? 1 : 128);
  __syncthreads();
  if (threadIdx.x >= CONSUMERS) {
    give_registers<sizeof(C) == 2 ? 40 : 72>();
    bring<C, D>(h, &pool, &query, shared, bars);
  } else {
    take_registers<sizeof(C) == 2 ? 232 : 216>();
    consume<layout<D>>(h, shared, bars);
  }
#endif
}

/* ---------------------------------------------------------------- launch */

/* The pool of a layer as [page, keys' and values' heads, token, dimension]. */
static bool
map_pool(const attend_args &a, uint32_t tokens, CUtensorMap *map) {
  uint64_t row = (uint64_t)a.kv.width * 2;
  return make_map(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, a.kv.base,
                  {a.kv.width, a.kv.page_tokens, 2 * (uint64_t)a.kv.n_heads, 1u << 31},
                  {row, row * a.kv.page_tokens, a.kv.page_bytes}, {64, tokens, 1, 1});
}

/* Queries as [token, head, dimension]. */
static bool
map_queries(const attend_args &a, CUtensorMap *map) {
  uint64_t row = (uint64_t)a.kv.width * 2, token = a.q_stride * 2;
  return make_map(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, a.q,
                  {a.kv.width, a.n_heads, a.batch.n_tokens, 1},
                  {row, token, token * a.batch.n_tokens}, {64, a.group, ROWS / a.group, 1});
}

template <typename C, int D>
static int
launch_hopper(const oct_cuda_queue *queue, const attend_args &a) {
  CUtensorMap pool = {}, query = {};
  uint32_t tokens = a.kv.page_tokens < KEYS ? a.kv.page_tokens : KEYS;
  hopper_args h = {a,
                   KEYS / tokens * (D / 64),
                   a.batch.n_tokens * a.group / ROWS + a.n_seqs,
                   ROWS % a.group == 0,
                   NULL,
                   false,
                   false};
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
