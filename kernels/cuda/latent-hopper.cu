/* Latent attention in the absorbed form on Hopper, of 512 dimensions that are keys and values and
 * 64 more of keys. The matrix instruction has keys by rows in its scores and dimensions by rows in
 * its sums, so that N rows of queries, 16 to 64, are its narrow side and a key is read once for
 * all.
 *
 * Tiles of 64 keys come by the tensor copy engine as runs of 128 bytes a key, and go through a ring
 * of places for such runs: bf16 is multiplied from there, fp8 by way of registers, where it becomes
 * half (e4m3 is exact in it). Up to 32 rows, groups of four warps take tiles in turn, with
 * softmaxes of their own that are joined at the end: two, or three where fp8 has up to 16 rows.
 * Beyond, two work on tiles together: each makes the weights of one, and adds up half of the
 * dimensions of both.
 *
 * Weights are powers of two of scores less a base that stands LIFT below the largest score when it
 * was set, and is raised only when a score stands above it by more than ABOVE. */
#include "kernels/cuda/latent-group.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* ---------------------------------------------------------------- bringing tiles */

/* The work to the consumers; one without units is the end. Of four warps, a thread does it. */
template <typename S>
OCT_DEVICE void
bring_item(const latent_item &w, uint32_t nth, const ring<S> &r, unsigned char *shared) {
  if (threadIdx.x != S::CONSUMERS)
    return;
  barrier_wait(r.item_free(nth), (nth / 2 + 1) % 2);
  *(latent_item *)(shared + S::ITEMS_AT + nth % 2 * S::ITEM) = w;
  barrier_arrive(r.item_full(nth));
}

/* The tiles of a work. A copy takes the time of many instructions to begin, so that each of four
 * warps has some of a tile's pages, of 8 tokens or more; one thread of it. */
template <typename C, int N>
OCT_DEVICE void
bring_tiles(const latent_args &h, const CUtensorMap *pool, const latent_item &w,
            ring<shape<C, N>> &r) {
  typedef shape<C, N> S;
  const oct_cuda_kv &kv = h.a.kv;
  const uint32_t *pages = h.a.tables.pages + w.slot * h.a.tables.stride;
  uint32_t warp = threadIdx.x % 128 / 32, tokens = min(kv.page_tokens, (uint32_t)KEYS);
  uint32_t mine[2] = {warp * tokens, (warp + 4) * tokens};
  /* Pages behind the context's last are that once more. */
  auto page_of = [&](uint32_t unit, int i) {
    return mine[i] < KEYS ? pages[min(unit * KEYS + mine[i], w.length - 1) / kv.page_tokens] : 0;
  };
  uint32_t page[2] = {page_of(w.begin, 0), page_of(w.begin, 1)};
  for (uint32_t unit = w.begin; unit < w.end; unit++) {
    uint32_t next[2] = {};
    if (unit + 1 < w.end) {
      next[0] = page_of(unit + 1, 0);
      next[1] = page_of(unit + 1, 1);
    }
#pragma unroll
    for (int j = 0; j < S::RUNS; j++) {
      uint32_t at, parity;
      r.find(j, &at, &parity);
      barrier_wait(r.free(at), parity ^ 1);
      if (warp == 0)
        barrier_expect(r.full(at), RUN_BYTES);
#pragma unroll
      for (int i = 0; i < 2; i++)
        if (mine[i] < KEYS)
          copy_box(r.room + at * RUN_BYTES + mine[i] * 128, pool, r.full(at),
                   S::run_at(j) * (128 / (int)sizeof(C)),
                   (int)((unit * KEYS + mine[i]) % kv.page_tokens), 0, (int)page[i]);
    }
    r.skip();
    page[0] = next[0];
    page[1] = next[1];
  }
}

template <typename C, int N>
OCT_DEVICE void
bring(const latent_args &h, const CUtensorMap *pool, latent_cursor c, ring<shape<C, N>> r,
      unsigned char *shared) {
  latent_item w;
  uint32_t nth = 0;
  for (; c.find_next<N>(h, &w); nth++) {
    bring_item(w, nth, r, shared);
    if (threadIdx.x % 32 == 0)
      bring_tiles<C, N>(h, pool, w, r);
    __syncwarp();
  }
  w.begin = w.end = 0;
  bring_item(w, nth, r, shared);
}

template <typename C, int N>
OCT_DEVICE void
consume(const latent_args &h, const ring<shape<C, N>> &r, unsigned char *shared) {
  typedef shape<C, N> S;
  latent_group_of_warps<C, N> t;
  t.r = r;
  t.shared = shared;
  t.origin = shared_address(shared);
  t.used = 0;
  t.group = threadIdx.x / 128;
  t.warp = threadIdx.x % 128 / 32;
  t.lane = threadIdx.x % 32;
  float scale = score_scale(h.a, 0);
  for (uint32_t nth = 0;; nth++) {
    barrier_wait(r.item_full(nth), nth / 2 % 2);
    const latent_item &w = *(const latent_item *)(shared + S::ITEMS_AT + nth % 2 * S::ITEM);
    if (w.begin == w.end)
      break;
    t.open_bases();
    t.load_queries(h, w);
    t.open_sums();
    uint32_t low = t.limits()[0];
    t.take_tiles(w, low, scale);
    t.close_work(h, w);
    named_barrier(EVERYBODY, S::CONSUMERS);
    if (t.lane == 0)
      barrier_arrive(r.item_free(nth));
  }
}

#endif

/* Rows of tokens that see nothing. */
OCT_DEVICE void
clear_rows(const latent_args &h) {
  for (uint32_t token = blockIdx.x; token < h.a.batch.n_tokens; token += gridDim.x)
    if (sees_nothing(h.a, token))
      for (uint32_t head = 0; head < h.a.n_heads; head++)
        put_nothing(h.a, token, head);
}

template <typename C, int N>
static __global__ void
__launch_bounds__(shape<C, N>::THREADS, 1)
    attend_latent_hopper(const __grid_constant__ latent_args h,
                         const __grid_constant__ CUtensorMap pool) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  typedef shape<C, N> S;
  extern __shared__ __align__(1024) unsigned char shared[];
  admit_successor();
  await_predecessors();
  ring<S> r = {shared_address(shared) + S::RING_AT, shared_address(shared) + S::BARRIERS_AT, 0, 0};
  if (threadIdx.x == 0) {
    for (uint32_t i = 0; i < S::PLACES; i++) {
      barrier_init(r.full(i), 1);
      barrier_init(r.free(i), 4);
    }
    for (uint32_t i = 0; i < 2; i++) {
      barrier_init(r.item_full(i), 1);
      barrier_init(r.item_free(i), S::CONSUMERS / 32);
      barrier_init(r.weights_full(i), 4);
      barrier_init(r.weights_free(i), S::CONSUMERS / 32);
      barrier_init(r.bases_known(i), 4);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  clear_rows(h);
  latent_cursor c;
  c.open<S::THREADS / 32>(h, (uint32_t *)(shared + S::SMALL_AT));
  __syncthreads();
  if (threadIdx.x >= S::CONSUMERS) {
    give_registers<40>();
    bring<C, N>(h, &pool, c, r, shared);
  } else {
    take_registers<S::GROUPS == 3 ? 152 : 232>();
    consume<C, N>(h, r, shared);
  }
#endif
}

/* ---------------------------------------------------------------- launch */

/* The pool as [page, 1, token, dimension], in boxes of 128 bytes by a page's tokens. */
static bool
map_latents(const attend_args &a, CUtensorMap *map) {
  static const PFN_cuTensorMapEncodeTiled_v12000 encode = find_encoder();
  uint32_t element = a.kv.type == OCT_CUDA_FP8 ? 1 : 2, tokens = a.kv.page_tokens;
  const cuuint64_t sizes[4] = {LATENT_WIDTH, tokens, 1, 1u << 31};
  const cuuint64_t row = (cuuint64_t)LATENT_WIDTH * element;
  const cuuint64_t strides[3] = {row, row * tokens, a.kv.page_bytes};
  const cuuint32_t box[4] = {128 / element, tokens < KEYS ? tokens : KEYS, 1, 1};
  const cuuint32_t steps[4] = {1, 1, 1, 1};
  CUtensorMapDataType type =
      element == 1 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  return encode != NULL &&
         encode(map, type, 4, a.kv.base, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

template <typename C, int N>
static int
launch_latents(const oct_cuda_queue *queue, const latent_args &h, uint32_t blocks) {
  CUtensorMap pool = {};
  if (!map_latents(h.a, &pool))
    return OCT_CUDA_UNSUPPORTED;
  int error = launch_large(queue, attend_latent_hopper<C, N>, dim3(blocks),
                           dim3(shape<C, N>::THREADS), (size_t)shape<C, N>::BYTES, h, pool);
  bool parts =
      h.deal == LATENT_SHARES ? blocks > h.runs : h.deal == LATENT_CHUNKS && h.a.n_splits > 1;
  return error != OCT_CUDA_OK || !parts ? error : oct_latent_join(queue, h, N);
}

template <typename C>
static int
by_rows(const oct_cuda_queue *queue, const latent_args &h, uint32_t n, uint32_t blocks) {
  switch (n) {
  case 16:
    return launch_latents<C, 16>(queue, h, blocks);
  case 32:
    return launch_latents<C, 32>(queue, h, blocks);
  case 48:
    return launch_latents<C, 48>(queue, h, blocks);
  case 64:
    return launch_latents<C, 64>(queue, h, blocks);
  default:
    return OCT_CUDA_UNSUPPORTED;
  }
}

int
oct_latent_hopper(const oct_cuda_queue *queue, const latent_args &h, uint32_t n, uint32_t blocks) {
  return h.a.kv.type == OCT_CUDA_FP8 ? by_rows<fp8>(queue, h, n, blocks)
                                     : by_rows<bf16>(queue, h, n, blocks);
}
