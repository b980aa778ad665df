/* Latent attention in the absorbed form on Hopper, of 512 dimensions that are keys and values and
 * 64 more of keys. The matrix instruction has keys by rows in its scores and dimensions by rows in
 * its sums, so that N rows of queries, 16 to 64, are its narrow side and a key is read once for
 * all.
 *
 * Tiles of 64 keys come by ordinary copies of 16 bytes as runs of 128 bytes a key, and go through a
 * ring of places for such runs. (The tensor copy engine, whose boxes small pages make small, brings
 * less in the same time.) bf16 is multiplied from there. e4m3 goes by way of registers and becomes
 * half (it is exact in it); up to 16 rows it is multiplied as it is, with queries and weights as
 * two numbers of eight bits each. Two groups of four warps take tiles in turn up to 32 rows, with
 * softmaxes of their own that are joined at the end. Beyond, they work on tiles together: each
 * makes the weights of one, and adds up half of the dimensions of both.
 *
 * Weights are powers of two of scores less a base that stands LIFT below the largest score when it
 * was set, and is raised only when a score stands above it by more than ABOVE. */
#include "kernels/cuda/latent-end.cuh"

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

/* 16 bytes from memory to shared memory. */
OCT_DEVICE void
copy_piece(uint32_t to, const void *from) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from)
               : "memory");
}

/* Where a key is: an entry of its context's page table, and which of the page's it is. */
struct latent_key {
  uint32_t entry, token;

  /* `entries` entries and `tokens` tokens on. */
  __device__ void advance(uint32_t entries, uint32_t tokens, uint32_t page_tokens) {
    entry += entries;
    token += tokens;
    if (token >= page_tokens) {
      token -= page_tokens;
      entry++;
    }
  }
};

/* The tiles of a work, by four warps: a thread has 16 bytes of every 16th key of a run. */
template <typename C, int N>
OCT_DEVICE void
bring_tiles(const latent_args &h, const latent_item &w, ring<shape<C, N>> &r) {
  typedef shape<C, N> S;
  constexpr uint32_t EACH = KEYS / 16, ROW = LATENT_WIDTH * sizeof(C);
  const oct_cuda_kv &kv = h.a.kv;
  const uint32_t *pages = h.a.tables.pages + w.slot * h.a.tables.stride;
  uint32_t row = threadIdx.x % 128 / 8, chunk = threadIdx.x % 8, page[EACH];
  uint32_t to = r.room + row * 128 + 16 * (chunk ^ row % 8);
  uint32_t last = (w.length - 1) / kv.page_tokens;
  uint32_t entries = KEYS / kv.page_tokens, tokens = KEYS % kv.page_tokens;
  latent_key key[EACH];
#pragma unroll
  for (uint32_t i = 0; i < EACH; i++) {
    uint32_t at = w.begin * KEYS + row + 16 * i;
    key[i] = {at / kv.page_tokens, at % kv.page_tokens};
    page[i] = pages[min(key[i].entry, last)];
  }
  for (uint32_t unit = w.begin; unit < w.end; unit++) {
    const char *from[EACH];
#pragma unroll
    for (uint32_t i = 0; i < EACH; i++) {
      from[i] = (const char *)kv.base + page[i] * kv.page_bytes + key[i].token * ROW + 16 * chunk;
      key[i].advance(entries, tokens, kv.page_tokens);
      /* Pages behind the context's last are that once more. */
      if (unit + 1 < w.end)
        page[i] = pages[min(key[i].entry, last)];
    }
#pragma unroll
    for (int j = 0; j < S::RUNS; j++) {
      uint32_t at, parity;
      r.find(j, &at, &parity);
      barrier_wait(r.free(at), parity ^ 1);
      if (128 * S::run_at(j) + 16 * chunk < ROW)
#pragma unroll
        for (uint32_t i = 0; i < EACH; i++)
          copy_piece(to + at * RUN_BYTES + i * 2048, from[i] + 128 * S::run_at(j));
      arrive_after_copies(r.full(at));
    }
    r.skip();
  }
}

template <typename C, int N>
OCT_DEVICE void
bring(const latent_args &h, latent_cursor c, ring<shape<C, N>> r, unsigned char *shared) {
  latent_item w;
  uint32_t nth = 0;
  for (; c.find_next<N>(h, &w); nth++) {
    bring_item(w, nth, r, shared);
    bring_tiles<C, N>(h, w, r);
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
  t.scale = score_scale(h.a, 0);
  for (uint32_t nth = 0;; nth++) {
    barrier_wait(r.item_full(nth), nth / 2 % 2);
    const latent_item &w = *(const latent_item *)(shared + S::ITEMS_AT + nth % 2 * S::ITEM);
    if (w.begin == w.end)
      break;
    t.open_bases();
    t.load_queries(h, w);
    t.open_sums();
    uint32_t low = t.limits()[0];
    t.take_tiles(w, low);
    latent_end<C, N>{t, h, w}.close_work();
    named_barrier(EVERYBODY, S::CONSUMERS);
    if (arrives_for_warp(t.lane))
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
    attend_latent_hopper(const __grid_constant__ latent_args h) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  typedef shape<C, N> S;
  extern __shared__ __align__(1024) unsigned char shared[];
  admit_successor();
  await_predecessors();
  ring<S> r = {shared_address(shared) + S::RING_AT, shared_address(shared) + S::BARRIERS_AT, 0, 0};
  if (threadIdx.x == 0) {
    for (uint32_t i = 0; i < S::PLACES; i++) {
      barrier_init(r.full(i), 128);
      barrier_init(r.free(i), arrivals_of(4));
    }
    for (uint32_t i = 0; i < 2; i++) {
      barrier_init(r.item_full(i), 1);
      barrier_init(r.item_free(i), arrivals_of(S::CONSUMERS / 32));
      barrier_init(r.weights_full(i), arrivals_of(4));
      barrier_init(r.weights_free(i), arrivals_of(S::CONSUMERS / 32));
      barrier_init(r.bases_known(i), arrivals_of(4));
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  clear_rows(h);
  latent_cursor c;
  c.open<S::THREADS / 32>(h, (uint32_t *)(shared + S::SMALL_AT));
  __syncthreads();
  if (threadIdx.x >= S::CONSUMERS) {
    give_registers<S::BRINGS>();
    bring<C, N>(h, c, r, shared);
  } else {
    take_registers<S::TAKES>();
    consume<C, N>(h, r, shared);
  }
#endif
}

/* ---------------------------------------------------------------- launch */

template <typename C, int N>
static int
launch_latents(const oct_cuda_queue *queue, const latent_args &h, uint32_t blocks) {
  int error = launch_large(queue, attend_latent_hopper<C, N>, dim3(blocks),
                           dim3(shape<C, N>::THREADS), (size_t)shape<C, N>::BYTES, h);
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
