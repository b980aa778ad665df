/* Latent attention of a prompt in the expanded form on Hopper, of heads whose keys have 128
 * dimensions of their own and 64 that all share, and whose values have 128: what tiles.cuh says,
 * with keys and values by the tensor copy engine from two matrices. */
#include "kernels/cuda/tiles.cuh"

typedef tile_layout<192, 128, 1> expanded_layout;

/* Where the copies come from: queries, keys and values of heads, shared parts of keys. */
struct expanded_maps {
  CUtensorMap queries, heads, shared;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* The block's works in turn; rounds go to and fro, so that no block has the largest of each. Heads
 * change first, since their queries' tiles see most at the end. */
OCT_DEVICE bool
next_work(const hopper_args &h, uint32_t *round, work *w) {
  uint32_t n = h.tiles * h.a.n_heads, item = n;
  for (; item >= n && *round * gridDim.x < n; ++*round)
    item = *round * gridDim.x + (*round % 2 == 0 ? blockIdx.x : gridDim.x - 1 - blockIdx.x);
  if (item >= n)
    return false;
  *w = {};
  w->kv_head = item % h.a.n_heads;
  w->first_row = (h.tiles - 1 - item / h.a.n_heads) * ROWS;
  w->n_rows = h.a.batch.n_tokens;
  w->start = h.a.first_seq;
  uint32_t last = h.a.n_seqs - 1; /* of the keys that are here */
  w->low = min(w->start + w->first_row, last);
  w->high = min(w->start + min(w->first_row + ROWS, w->n_rows) - 1, last);
  w->tiles = w->high / KEYS + 1;
  return true;
}

/* One thread. */
OCT_DEVICE void
bring_expanded(const hopper_args &h, const expanded_maps &maps, unsigned char *shared,
               const barriers &bars) {
  typedef expanded_layout L;
  uint32_t room = shared_address(shared), turn = 0, round = 0;
  for (uint32_t nth = 0;; nth++) {
    work w = {};
    bool is_one = next_work(h, &round, &w);
    barrier_wait(bars.queries_free(0), (nth + 1) % 2);
    *(work *)(shared + L::WORKS_AT) = w;
    if (!is_one) {
      barrier_arrive(bars.queries_full(0));
      return;
    }
    barrier_expect(bars.queries_full(0), L::QUERIES);
    for (int run = 0; run < 3; run++)
      copy_box(room + run * (ROWS * 128), &maps.queries, bars.queries_full(0), run * 64,
               (int)w.kv_head, (int)w.first_row, 0);
    for (uint32_t i = 0; i < w.tiles; i++, turn++) {
      uint32_t s = turn % STAGES, free_parity = (turn / STAGES + 1) % 2;
      uint32_t keys = room + L::KEYS_AT + s * L::KEY_TILE;
      uint32_t values = room + L::VALUES_AT + s * L::VALUE_TILE;
      int key = (int)((w.tiles - 1 - i) * KEYS);
      barrier_wait(bars.keys_free(s), free_parity);
      barrier_expect(bars.keys_full(s), L::KEY_TILE);
      for (int run = 0; run < 2; run++)
        copy_box(keys + run * L::RUN, &maps.heads, bars.keys_full(s), run * 64, (int)w.kv_head, key,
                 0);
      copy_box(keys + 2 * L::RUN, &maps.shared, bars.keys_full(s), 0, key, 0, 0);
      barrier_wait(bars.values_free(s), free_parity);
      barrier_expect(bars.values_full(s), L::VALUE_TILE);
      for (int run = 0; run < 2; run++)
        copy_box(values + run * L::RUN, &maps.heads, bars.values_full(s), 128 + run * 64,
                 (int)w.kv_head, key, 0);
    }
  }
}

#endif

static __global__ void
__launch_bounds__(THREADS, 1) attend_expanded_hopper(const __grid_constant__ hopper_args h,
                                                     const __grid_constant__ expanded_maps maps) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) unsigned char shared[];
  admit_successor();
  await_predecessors();
  barriers bars = {shared_address(shared) + expanded_layout::BARRIERS_AT};
  if (threadIdx.x == 0)
    open_barriers(bars, 1);
  __syncthreads();
  if (threadIdx.x >= CONSUMERS) {
    give_registers<40>();
    if (threadIdx.x == CONSUMERS)
      bring_expanded(h, maps, shared, bars);
  } else {
    take_registers<232>();
    consume<expanded_layout>(h, shared, bars);
  }
#endif
}

/* ---------------------------------------------------------------- launch */

static bool
map_all(const oct_cuda_mla_expanded *c, uint32_t keys, expanded_maps *maps) {
  uint64_t heads = c->n_heads, both = 256 * 2, latent = (uint64_t)(c->lora + c->rope) * 2;
  constexpr CUtensorMapDataType type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  return make_map(&maps->queries, type, c->q, {192, heads, c->m, 1},
                  {192 * 2, c->q_stride * 2, c->q_stride * 2 * c->m}, {64, 1, ROWS, 1}) &&
         make_map(&maps->heads, type, c->kv, {256, heads, keys, 1},
                  {both, heads * both, heads * both * keys}, {64, 1, KEYS, 1}) &&
         make_map(&maps->shared, type, (const char *)c->latents + (size_t)c->lora * 2,
                  {64, keys, 1, 1}, {latent, latent * keys, latent * keys}, {64, KEYS, 1, 1});
}

bool
oct_mla_hopper_can(const oct_cuda_queue *queue, const oct_cuda_mla_expanded *c) {
  return queue->capability == 90 && c->type == OCT_CUDA_BF16 && c->nope == 128 && c->rope == 64 &&
         c->value == 128 && c->q_stride % 8 == 0 && c->out_stride % 2 == 0 && c->lora % 8 == 0 &&
         (uintptr_t)c->q % 16 == 0 && (uintptr_t)c->kv % 16 == 0 && (uintptr_t)c->latents % 16 == 0;
}

int
oct_mla_hopper(const oct_cuda_queue *queue, const oct_cuda_mla_expanded *c) {
  expanded_maps maps;
  hopper_args h = {};
  uint32_t keys = c->n_keys > 0 ? c->n_keys : c->position + c->m;
  if (!map_all(c, keys, &maps))
    return OCT_CUDA_UNSUPPORTED;
  h.a.n_heads = h.a.own_heads = c->n_heads;
  h.a.group = 1;
  h.a.batch.n_tokens = c->m;
  h.a.first_seq = c->position - c->first_key; /* the first token's place among the keys */
  h.a.n_seqs = keys;
  h.a.scale = c->scale;
  h.a.out = c->out;
  h.a.out_stride = c->out_stride;
  h.tiles = ceil_div(c->m, ROWS);
  h.copies_query = true;
  h.state = c->state;
  h.begins = c->begins;
  h.ends = c->ends;
  uint32_t works = h.tiles * c->n_heads;
  return launch_large(queue, attend_expanded_hopper,
                      dim3(works < queue->sm_count ? works : queue->sm_count), dim3(THREADS),
                      (size_t)expanded_layout::BYTES, h, maps);
}
