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
 *
 * In a fixed order contexts are cut every PART keys, at the same places for every row, so that many
 * blocks have parts of one context; another kernel joins them. */
#include "kernels/cuda/tiles.cuh"

template <int D> using layout = tile_layout<D, D, 2>;

#define PART_TILES (OCT_ATTEND_PART / KEYS)

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* The work of a tile of rows, with all of its context; false: it is beyond the batch's tiles. */
OCT_DEVICE bool
find_rows(const attend_args &a, uint32_t tile, uint32_t kv_head, work *w) {
  if (!find_tile<ROWS>(a, &tile, &w->seq))
    return false;
  w->kv_head = kv_head;
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

/* Whether all rows of a work see keys of one part alone. */
OCT_DEVICE bool
is_whole(const work &w) {
  return w.first_tile / PART_TILES == (w.first_tile + w.tiles - 1) / PART_TILES;
}

/* Of a work with its whole context the part `part`; false: it has nothing of that. */
OCT_DEVICE bool
cut_part(work *w, uint32_t part) {
  uint32_t last = w->first_tile + w->tiles - 1, begin = max(w->first_tile, part * PART_TILES);
  uint32_t end = min(last + 1, (part + 1) * PART_TILES);
  w->part = is_whole(*w) ? WHOLE : part;
  w->last_keys = end == last + 1 ? (w->high + 1) % KEYS : 0;
  w->first_tile = begin;
  w->tiles = end - begin;
  return begin < end;
}

/* Work `item`; false: there is none of the number. The last tiles see most and come first. */
template <bool PARTS>
OCT_DEVICE bool
find_work(const hopper_args &h, uint32_t item, work *w) {
  const attend_args &a = h.a;
  if (!PARTS)
    return find_rows(a, h.tiles - 1 - item / a.kv.n_heads, item % a.kv.n_heads, w);
  uint32_t run = item / a.n_splits;
  uint32_t tile = h.first_tile + h.n_tiles - 1 - run / h.n_kv;
  return find_rows(a, tile, h.first_kv + run % h.n_kv, w) && cut_part(w, item % a.n_splits);
}

/* The block's works in turn: rounds go to and fro, so that no block has the largest of each. False:
 * there is none any more. */
template <bool PARTS>
OCT_DEVICE bool
next_work(const hopper_args &h, uint32_t *round, work *w) {
  uint32_t n = PARTS ? h.n_tiles * h.a.n_splits * h.n_kv : h.tiles * h.a.kv.n_heads;
  while (*round * gridDim.x < n) {
    uint32_t at = *round % 2 == 0 ? blockIdx.x : gridDim.x - 1 - blockIdx.x;
    uint32_t item = *round * gridDim.x + at;
    ++*round;
    if (item < n && find_work<PARTS>(h, item, w))
      return true;
  }
  return false;
}

/* ---------------------------------------------------------------- bringing keys and values */

/* A lane's copy of a tile of keys or values: a page's tokens by a run of 64 dimensions. Pages
 * behind the last that the sequence has are the last once more; of those before the first that is
 * seen nothing is read: the copy engine gives zeros for a page beyond the map. */
template <int D> struct box {
  uint32_t page, token, run, offset;

  template <bool WINDOW>
  __device__ void find(const hopper_args &h, const uint32_t *pages, const work &w, uint32_t tile,
                       uint32_t from) {
    uint32_t lane = threadIdx.x % 32, tokens = min(h.a.kv.page_tokens, (uint32_t)KEYS);
    uint32_t part = lane / (D / 64), position = tile * KEYS + part * tokens;
    run = lane % (D / 64);
    if (lane < h.boxes)
      page = WINDOW && position + tokens <= from
                 ? OCT_CUDA_NONE
                 : pages[min(position, w.high) / h.a.kv.page_tokens];
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

/* All four warps: fp8 to bf16. Keys that no row sees are the nearest that one does. */
template <int D, bool WINDOW>
OCT_DEVICE void
convert_tile(const work &w, const page_reader &pages, uint32_t tile, uint32_t from, size_t values,
             uint32_t to, uint32_t full) {
  constexpr uint32_t RUNS = D / 16; /* of 16 bytes */
  uint32_t thread = threadIdx.x - CONSUMERS;
#pragma unroll 4
  for (uint32_t i = thread; i < KEYS * RUNS; i += 128) {
    uint32_t row = i / RUNS, run = i % RUNS, position = min(tile * KEYS + row, w.high);
    if constexpr (WINDOW)
      position = max(position, from);
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
template <typename C, int D, bool WINDOW>
OCT_DEVICE void
bring_tiles(const hopper_args &h, const CUtensorMap *map, const work &w, uint32_t room,
            const barriers &bars, uint32_t *turn) {
  const attend_args &a = h.a;
  constexpr bool copies = sizeof(C) == 2;
  page_reader pages = open_pages(a.kv, a.tables, a.batch.seq_slot[w.seq], w.kv_head, sizeof(C));
  uint32_t from = WINDOW && w.low + 1 > a.window ? w.low + 1 - a.window : 0;
  box<D> now = {};
  if constexpr (copies)
    now.template find<WINDOW>(h, pages.pages, w, w.first_tile + w.tiles - 1, from);
  for (uint32_t i = 0; i < w.tiles; i++, ++*turn) {
    uint32_t s = *turn % STAGES, free_parity = (*turn / STAGES + 1) % 2;
    uint32_t tile = w.first_tile + w.tiles - 1 - i;
    uint32_t keys = room + layout<D>::KEYS_AT + s * layout<D>::KEY_TILE;
    uint32_t values = room + layout<D>::VALUES_AT + s * layout<D>::KEY_TILE;
    box<D> next = now;
    if (copies && i + 1 < w.tiles)
      next.template find<WINDOW>(h, pages.pages, w, tile - 1, from);
    barrier_wait(bars.keys_free(s), free_parity);
    if constexpr (copies)
      now.copy(h, map, w.kv_head, keys, bars.keys_full(s));
    else
      convert_tile<D, WINDOW>(w, pages, tile, from, 0, keys, bars.keys_full(s));
    barrier_wait(bars.values_free(s), free_parity);
    if constexpr (copies)
      now.copy(h, map, a.kv.n_heads + w.kv_head, values, bars.values_full(s));
    else
      convert_tile<D, WINDOW>(w, pages, tile, from, pages.half_bytes, values, bars.values_full(s));
    now = next;
  }
}

template <typename C, int D, bool PARTS, bool WINDOW>
OCT_DEVICE void
bring(const hopper_args &h, const CUtensorMap *pool, const CUtensorMap *query,
      unsigned char *shared, const barriers &bars) {
  bool first_warp = threadIdx.x < CONSUMERS + 32;
  uint32_t round = 0, turn = 0, nth = 0;
  work w = {};
  if (sizeof(C) == 2 && !first_warp)
    return;
  for (; next_work<PARTS>(h, &round, &w); nth++) {
    if (first_warp)
      bring_work<D>(h, query, w, nth, shared, bars);
    bring_tiles<C, D, WINDOW>(h, pool, w, shared_address(shared), bars, &turn);
  }
  w.tiles = 0;
  if (first_warp)
    bring_work<D>(h, query, w, nth, shared, bars);
}

#endif

/* PARTS: contexts are cut every PART keys, each part for itself. WINDOW: there is one; where
 * kernels without compared keys with a lower bound, too, prompts took 9 % longer in fp8, 1 to 2
 * otherwise. */
template <typename C, int D, bool PARTS, bool WINDOW>
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
    bring<C, D, PARTS, WINDOW>(h, &pool, &query, shared, bars);
  } else {
    take_registers<sizeof(C) == 2 ? 232 : 216>();
    consume<layout<D>, PARTS>(h, shared, bars);
  }
#endif
}

/* ---------------------------------------------------------------- joining parts */

/* A block per tile of rows and KV head, a warp a row at a time: its parts in their order. */
template <int D>
static __global__ void
__launch_bounds__(THREADS) join_parts(const __grid_constant__ hopper_args h) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  const attend_args &a = h.a;
  uint32_t lane = threadIdx.x % 32;
  work w;
  admit_successor();
  await_predecessors();
  if (!find_rows(a, h.first_tile + blockIdx.x, h.first_kv + blockIdx.y, &w) || is_whole(w))
    return;
  for (uint32_t row = w.first_row + threadIdx.x / 32; row < min(w.first_row + ROWS, w.n_rows);
       row += THREADS / 32) {
    uint32_t token = w.first_token + row / a.group, head = w.kv_head * a.group + row % a.group;
    uint32_t position = w.start + row / a.group;
    uint32_t begin = a.window != 0 && position + 1 > a.window ? position + 1 - a.window : 0;
    uint32_t first = begin / OCT_ATTEND_PART, last = position / OCT_ATTEND_PART;
    float top = -INFINITY, sum = 0, x[D / 32] = {};
    for (uint32_t k = first; k <= last; k++)
      top = fmaxf(top, part_of(h, token, head, k)[D]);
    float base = top == -INFINITY ? 0 : top;
    for (uint32_t k = first; k <= last; k++) {
      const float *part = part_of(h, token, head, k);
      float factor = power2(part[D] - base), v[D / 32];
      load_floats<float, D / 32>(part + D / 32 * lane, v);
      sum += part[D + 1] * factor;
#pragma unroll
      for (int i = 0; i < D / 32; i++)
        x[i] += v[i] * factor;
    }
    float factor = finish_softmax(top, sum, a.sinks, head) * value_scale(a, w.kv_head);
#pragma unroll
    for (int i = 0; i < D / 32; i++)
      x[i] *= factor;
    store_floats<bf16, D / 32>(
        (bf16 *)a.out + token * a.out_stride + (size_t)head * D + D / 32 * lane, x);
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

/* Tiles of rows at most. */
static uint32_t
tiles_of_batch(const attend_args &a) {
  return a.batch.n_tokens * a.group / ROWS + a.n_seqs;
}

/* Tokens of a tile, at most. */
static uint32_t
tokens_of_tile(const attend_args &a) {
  return a.max_queries <= 1 ? 1 : ROWS / a.group + 2;
}

/* Of a token's parts, for the query heads of a KV head. */
static size_t
token_bytes(const attend_args &a) {
  return (size_t)a.group * a.n_splits * (a.kv.width + 4) * sizeof(float);
}

/* As many tokens as have parts at a time, and KV heads: all, or one where a tile's have no room. */
struct parts_plan {
  uint32_t tokens, kv_heads; /* 0: not even that */
};

static parts_plan
plan_parts(const attend_args &a, size_t bytes) {
  uint32_t least = tokens_of_tile(a), all = a.batch.n_tokens;
  least = least < all ? least : all;
  for (uint32_t kv_heads = a.kv.n_heads;; kv_heads = 1) {
    size_t n = bytes / (kv_heads * token_bytes(a));
    if (n >= least)
      return {n < all ? (uint32_t)n : all, kv_heads};
    if (kv_heads == 1)
      return {0, 0};
  }
}

size_t
oct_attend_hopper_bytes(const attend_args &a) {
  if (a.n_splits <= 1 || a.n_seqs == 0)
    return 0;
  size_t all = a.batch.n_tokens * a.kv.n_heads * token_bytes(a);
  size_t one = tokens_of_tile(a) * token_bytes(a);
  size_t most = one > OCT_CUDA_FIXED_BYTES ? one : OCT_CUDA_FIXED_BYTES;
  return all < most ? all : most;
}

size_t
oct_attend_hopper_used(const attend_args &a, size_t workspace_bytes) {
  size_t room = workspace_bytes > OCT_ATTEND_COUNTS ? workspace_bytes - OCT_ATTEND_COUNTS : 0;
  parts_plan p = plan_parts(a, room);
  return p.tokens > 0 ? OCT_ATTEND_COUNTS + p.tokens * p.kv_heads * token_bytes(a) : SIZE_MAX;
}

/* Some tiles and KV heads at a time, as their parts have room. */
template <typename C, int D>
static int
launch_parts(const oct_cuda_queue *queue, hopper_args *h, const CUtensorMap &pool,
             const CUtensorMap &query, size_t bytes) {
  auto kernel =
      h->a.window != 0 ? attend_hopper<C, D, true, true> : attend_hopper<C, D, true, false>;
  parts_plan p = plan_parts(h->a, bytes);
  uint32_t step = p.tokens >= h->a.batch.n_tokens ? h->tiles : p.tokens / tokens_of_tile(h->a);
  int error = OCT_CUDA_OK;
  if (step == 0)
    return OCT_CUDA_UNSUPPORTED;
  h->a.room_tokens = p.tokens;
  h->n_kv = p.kv_heads;
  for (h->first_tile = 0; h->first_tile < h->tiles && error == OCT_CUDA_OK; h->first_tile += step)
    for (h->first_kv = 0; h->first_kv < h->a.kv.n_heads && error == OCT_CUDA_OK;
         h->first_kv += h->n_kv) {
      uint32_t left = h->tiles - h->first_tile;
      h->n_tiles = left < step ? left : step;
      uint32_t works = h->n_tiles * h->n_kv * h->a.n_splits;
      error = launch_large(queue, kernel, dim3(works < queue->sm_count ? works : queue->sm_count),
                           dim3(THREADS), (size_t)layout<D>::BYTES, *h, pool, query);
      if (error == OCT_CUDA_OK)
        error = launch(queue, join_parts<D>, dim3(h->n_tiles, h->n_kv), dim3(THREADS), 0, *h);
    }
  return error;
}

template <typename C, int D>
static int
launch_hopper(const oct_cuda_queue *queue, const attend_args &a, size_t bytes) {
  CUtensorMap pool = {}, query = {};
  uint32_t tokens = a.kv.page_tokens < KEYS ? a.kv.page_tokens : KEYS;
  hopper_args h = {};
  h.a = a;
  h.boxes = KEYS / tokens * (D / 64);
  h.tiles = tiles_of_batch(a);
  h.copies_query = ROWS % a.group == 0;
  if ((sizeof(C) == 2 && !map_pool(a, tokens, &pool)) ||
      (h.copies_query && !map_queries(a, &query)))
    return OCT_CUDA_UNSUPPORTED;
  if (a.n_splits > 1)
    return launch_parts<C, D>(queue, &h, pool, query, bytes);
  uint32_t works = h.tiles * a.kv.n_heads;
  auto kernel =
      a.window != 0 ? attend_hopper<C, D, false, true> : attend_hopper<C, D, false, false>;
  return launch_large(queue, kernel, dim3(works < queue->sm_count ? works : queue->sm_count),
                      dim3(THREADS), (size_t)layout<D>::BYTES, h, pool, query);
}

bool
oct_attend_hopper_can(const oct_cuda_queue *queue, const attend_args &a, oct_cuda_type type) {
  return queue->capability == 90 && type == OCT_CUDA_BF16 && a.kv.type != OCT_CUDA_F32 &&
         a.kv.has_values && (a.kv.width == 64 || a.kv.width == 128) && a.kv.page_tokens >= 8 &&
         a.q_stride % 8 == 0 && a.out_stride % 2 == 0 && (uintptr_t)a.q % 16 == 0 &&
         (uintptr_t)a.kv.base % 16 == 0 && a.kv.page_bytes % 16 == 0;
}

int
oct_attend_hopper(const oct_cuda_queue *queue, const attend_args &a, size_t bytes) {
  bool wide = a.kv.width == 128;
  if (a.kv.type == OCT_CUDA_BF16)
    return wide ? launch_hopper<bf16, 128>(queue, a, bytes)
                : launch_hopper<bf16, 64>(queue, a, bytes);
  return wide ? launch_hopper<fp8, 128>(queue, a, bytes) : launch_hopper<fp8, 64>(queue, a, bytes);
}
