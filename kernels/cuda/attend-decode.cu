/* Decode attention: one query token per sequence, its context shared out over blocks.
 *
 * A block has a sequence, a KV head with up to 16 of its query heads, and a part of the context;
 * its four warps take 16 keys in turn (decoder.cuh) and never wait for each other until the end.
 * Parts are splits of a length that the context's gives, or of as many blocks as a cluster has, or
 * equal shares of all contexts, where a block goes from one sequence to the next. */
#define WARPS 4

#include "kernels/cuda/barrier.cuh"
#include "kernels/cuda/shares.cuh"

/* Keys of a split of n keys. */
OCT_DEVICE uint32_t
chunk_of(const attend_args &a, uint32_t n) {
  uint32_t chunk = a.chunk;
  if (chunk == 0)
    return ((n + a.n_splits - 1) / a.n_splits + UNIT - 1) / UNIT * UNIT;
  while (n > chunk * OCT_ATTEND_CHUNKS)
    chunk *= 2;
  return chunk;
}

/* The part [*begin, *end) of the context that split `split` has; whole tiles but for the ends. */
OCT_DEVICE void
split_range(const attend_args &a, uint32_t length, uint32_t split, uint32_t *begin, uint32_t *end) {
  uint32_t from, base;
  seen_range(a, length, &from, &base);
  uint32_t chunk = chunk_of(a, length - base);
  *begin = max(from, base + split * chunk);
  *end = min(length, base + (split + 1) * chunk);
}

template <typename C, int D, int NT>
OCT_DEVICE void
read_context(decoder<C, D, NT> &d, const attend_args &a, const page_reader &pages, uint32_t kv_head,
             uint32_t begin, uint32_t end) {
  float scale = score_scale(a, kv_head);
  uint32_t at = begin / TILE * TILE + TILE * (threadIdx.x / 32);
  const char *tile = at < end ? key_row(pages, at) : NULL;
  if (at < end)
    d.load_keys(tile, pages.row_bytes);
  while (at < end) {
    uint32_t next = at + TILE * WARPS;
    const char *next_tile = next < end ? key_row(pages, next) : NULL;
    d.load_values(tile + pages.half_bytes, pages.row_bytes);
    float s[NT][4];
    d.scores(s);
    if (next < end)
      d.load_keys(next_tile, pages.row_bytes);
    bool is_edge = at < begin || at + TILE > end;
    uint32_t weights[NT][2];
#pragma unroll
    for (int n = 0; n < NT; n++) {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        uint32_t key = at + d.g + (i / 2) * 8;
        s[n][i] = is_edge && (key < begin || key >= end) ? -INFINITY
                                                         : cap_score(s[n][i], scale, a.soft_cap);
      }
      d.weigh(s[n], n, weights[n]);
    }
    if (at + TILE > end)
      d.clear_values(end - at);
    d.add_values(weights);
    at = next;
    tile = next_tile;
  }
}

/* Joins the splits that the blocks of a cluster have; each writes some of the elements. */
template <int D>
OCT_DEVICE void
join_cluster(const attend_args &a, float *room, uint32_t heads, uint32_t n, uint32_t first_head,
             uint32_t row, uint32_t split) {
  float *ends = room + WARPS * heads * (D + 2);
  for (uint32_t i = threadIdx.x; i < n * D; i += blockDim.x) {
    float top, sum, x = join_warps<D>(room, heads, i / D, i % D, &top, &sum);
    room[i] = x; /* nobody else reads this one */
    if (i % D == 0) {
      ends[2 * (i / D)] = top;
      ends[2 * (i / D) + 1] = sum;
    }
  }
  cluster_barrier();
  for (uint32_t i = split * blockDim.x + threadIdx.x; i < n * D; i += a.n_splits * blockDim.x) {
    uint32_t h = i / D;
    float tops[OCT_ATTEND_CLUSTER], sums[OCT_ATTEND_CLUSTER], xs[OCT_ATTEND_CLUSTER];
    /* All at once: another block's memory is far away. */
#pragma unroll
    for (uint32_t s = 0; s < OCT_ATTEND_CLUSTER; s++) {
      uint32_t from = min(s, a.n_splits - 1);
      tops[s] = read_of_block(ends + 2 * h, from);
      sums[s] = read_of_block(ends + 2 * h + 1, from);
      xs[s] = read_of_block(room + i, from);
    }
    float top = tops[0], sum = 0, x = 0;
#pragma unroll
    for (uint32_t s = 1; s < OCT_ATTEND_CLUSTER; s++)
      top = fmaxf(top, tops[s]);
#pragma unroll
    for (uint32_t s = 0; s < OCT_ATTEND_CLUSTER; s++) {
      float factor = s < a.n_splits && tops[s] > -INFINITY ? exp2f(tops[s] - top) : 0;
      sum += factor > 0 ? sums[s] * factor : 0;
      x += factor > 0 ? xs[s] * factor : 0;
    }
    put_element<D>(a, row, first_head + h, i % D, x, top, sum);
  }
  cluster_barrier(); /* the others may still read here */
}

/* Blocks of a multiprocessor: as registers allow. */
constexpr int
blocks_of(int element_bytes, int width, int tiles) {
  return width > 128 || tiles > 1 ? 2 : width <= 64 || element_bytes == 1 ? 4 : 3;
}

/* The block's warps go through [begin, end) of a sequence's context and leave what they have of it
 * in the room; everybody may read it then. */
template <typename C, int D, int NT>
OCT_DEVICE void
gather_context(const attend_args &a, float *room, uint32_t seq, uint32_t row, uint32_t kv_head,
               uint32_t head, uint32_t n, uint32_t begin, uint32_t end) {
  uint32_t newest = decode_length(a, seq) - 1;
  constexpr uint32_t HEADS = 8 * NT;
  decoder<C, D, NT> d = {};
  d.g = threadIdx.x % 32 / 4;
  d.t = threadIdx.x % 4;
#pragma unroll
  for (int i = 0; i < NT; i++)
    d.top[i][0] = d.top[i][1] = -INFINITY;
  if (begin < end) {
    page_reader pages = open_pages(a.kv, a.tables, decode_slot(a, seq), kv_head, sizeof(C));
    if constexpr (decoder<C, D, NT>::PAIRED)
      if (a.angles != NULL && end == newest + 1) {
        if (threadIdx.x < 64)
          store_newest<C, D>(a, pages, row, kv_head, newest, threadIdx.x < 32);
        __syncthreads();
      }
    d.load_queries(a, row, head, n, newest);
    read_context(d, a, pages, kv_head, begin, end);
  }
  uint32_t warp = threadIdx.x / 32;
  float *tops = room + WARPS * HEADS * D, *sums = tops + WARPS * HEADS;
  d.leave(room + warp * HEADS * D, tops + warp * HEADS, sums + warp * HEADS);
  __syncthreads();
}

/* A block per sequence, run of heads and split: splits of a fixed length, or as many as blocks of a
 * cluster. */
template <typename C, int D, int NT>
static __global__ void
__launch_bounds__(32 * WARPS, blocks_of(sizeof(C), D, NT)) attend_decode(attend_args a) {
  extern __shared__ float room[];
  admit_successor();
  await_predecessors();
  constexpr uint32_t HEADS = 8 * NT;
  uint32_t tiles = (a.group + HEADS - 1) / HEADS, seq = a.first_seq + blockIdx.z;
  uint32_t split = blockIdx.x, kv_head = blockIdx.y / tiles, first = blockIdx.y % tiles * HEADS;
  uint32_t row = decode_token(a, seq), length = decode_length(a, seq);
  uint32_t head = kv_head * a.group + first, n = min(HEADS, a.group - first);
  if (split == 0)
    clear_padding(a, seq, head, n);
  if (length == 0)
    return;
  uint32_t begin, end;
  split_range(a, length, split, &begin, &end);
  if (begin >= end && !a.in_cluster)
    return;
  gather_context<C, D, NT>(a, room, seq, row, kv_head, head, n, begin, end);
  if (a.in_cluster) {
    join_cluster<D>(a, room, HEADS, n, head, row, split);
    return;
  }
  uint32_t from, base, pair = blockIdx.z * gridDim.y + blockIdx.y;
  seen_range(a, length, &from, &base);
  uint32_t chunk = chunk_of(a, length - base);
  uint32_t used = a.chunk > 0 ? (length - base + chunk - 1) / chunk : 1;
  const parts p = {a.arrived + pair, pair * a.n_splits, pair * a.n_splits + 1, 1, used};
  if (used == 1)
    leave_whole<D>(a, room, HEADS, n, head, row);
  else
    leave_part<D>(a, p, room, HEADS, n, head, row, pair * a.n_splits + split);
}

/* ---------------------------------------------------------------- shares of all contexts */

template <typename C, int D, int NT>
static __global__ void
__launch_bounds__(32 * WARPS, blocks_of(sizeof(C), D, NT)) attend_shares(attend_args a) {
  extern __shared__ float room[];
  admit_successor();
  await_predecessors();
  constexpr uint32_t HEADS = 8 * NT;
  uint32_t tiles = (a.group + HEADS - 1) / HEADS, runs = a.kv.n_heads * tiles;
  for (uint32_t i = blockIdx.x; i < a.n_seqs; i += gridDim.x)
    clear_padding(a, a.first_seq + i, 0, a.n_heads);
  share s;
  find_own_share(a, runs, &s);
  for (uint32_t unit = s.begin; unit < s.end;) {
    while (unit >= runs * (s.seq_begin + s.each)) {
      s.seq_begin += s.each;
      s.each = units_of(a, a.first_seq + ++s.seq);
    }
    uint32_t seq = a.first_seq + s.seq, local = unit - runs * s.seq_begin, run = local / s.each;
    uint32_t at = local % s.each, n_units = min(s.each - at, s.end - unit);
    uint32_t row = decode_token(a, seq), length = decode_length(a, seq), from, base;
    uint32_t kv_head = run / tiles, first = run % tiles * HEADS;
    uint32_t head = kv_head * a.group + first, n = min(HEADS, a.group - first);
    seen_range(a, length, &from, &base);
    gather_context<C, D, NT>(a, room, seq, row, kv_head, head, n, max(from, base + at * UNIT),
                             min(length, base + (at + n_units) * UNIT));
    if (n_units == s.each)
      leave_whole<D>(a, room, HEADS, n, head, row);
    else
      leave_part<D>(a, parts_of(a, s, unit - at, s.seq * runs + run), room, HEADS, n, head, row,
                    2 * blockIdx.x + (at == 0 ? 1 : 0));
    unit += n_units;
    __syncthreads(); /* the room is free again */
  }
}

/* ---------------------------------------------------------------- joining latents' splits */

/* A block per sequence and head joins the splits. */
static __global__ void
join_splits(attend_args a) {
  admit_successor();
  await_predecessors();
  uint32_t seq = blockIdx.y, head = blockIdx.x, width = a.value_width;
  uint32_t row = decode_token(a, a.first_seq + seq);
  if (decode_length(a, a.first_seq + seq) == 0)
    return;
  size_t part = ((size_t)seq * a.n_heads + head) * a.n_splits;
  const float *ends = a.partial + (size_t)a.n_seqs * a.n_heads * a.n_splits * width + 2 * part;
  float all = -INFINITY, total = 0;
  for (uint32_t s = 0; s < a.n_splits; s++)
    all = fmaxf(all, ends[2 * s]);
  for (uint32_t s = 0; s < a.n_splits; s++)
    total += ends[2 * s] > -INFINITY ? ends[2 * s + 1] * exp2f(ends[2 * s] - all) : 0;
  float factor = end_factor(a, head, all, total);
  if (threadIdx.x == 0)
    put_ends(a, row, head, all, total);
  for (uint32_t c = threadIdx.x; c < width; c += blockDim.x) {
    float x = 0;
    for (uint32_t s = 0; s < a.n_splits; s++)
      if (ends[2 * s] > -INFINITY)
        x += a.partial[(part + s) * width + c] * exp2f(ends[2 * s] - all);
    put_elements<1>(a, row, head, c, {x * factor});
  }
}

/* ---------------------------------------------------------------- launch */

int
oct_attend_join(const oct_cuda_queue *queue, const attend_args &a) {
  return launch(queue, join_splits, dim3(a.n_heads, a.n_seqs), dim3(128), 0, a);
}

template <typename C, int D, int NT>
static int
launch_decode(const oct_cuda_queue *queue, const attend_args &a) {
  uint32_t runs = a.kv.n_heads * ceil_div(a.group, 8 * NT);
  size_t shared = ((size_t)WARPS * 8 * NT * (D + 2) + 2 * 8 * NT) * sizeof(float);
  if (a.n_shares > 0)
    return launch_large(queue, attend_shares<C, D, NT>, dim3(a.n_shares), dim3(32 * WARPS), shared,
                        a);
  uint32_t cluster = a.in_cluster ? a.n_splits : 1;
  int error = allow_large(queue, attend_decode<C, D, NT>, cluster, shared);
  if (error == OCT_CUDA_OK)
    error = launch_cluster(queue, attend_decode<C, D, NT>, cluster,
                           dim3(a.n_splits, runs, a.n_seqs), dim3(32 * WARPS), shared, a);
  return error;
}

template <typename C, int D>
static int
by_group(const oct_cuda_queue *queue, const attend_args &a) {
  /* Two tiles of wide heads do not fit into registers. */
  if constexpr (D <= 128)
    if (a.group > 8)
      return launch_decode<C, D, 2>(queue, a);
  return launch_decode<C, D, 1>(queue, a);
}

template <typename C>
static int
by_head(const oct_cuda_queue *queue, const attend_args &a) {
  switch (a.kv.width) {
  case 64:
    return by_group<C, 64>(queue, a);
  case 80:
    return by_group<C, 80>(queue, a);
  case 96:
    return by_group<C, 96>(queue, a);
  case 128:
    return by_group<C, 128>(queue, a);
  case 256:
    return by_group<C, 256>(queue, a);
  default:
    return OCT_CUDA_UNSUPPORTED;
  }
}

bool
oct_attend_decode_can(const attend_args &a, oct_cuda_type type) {
  uint32_t w = a.kv.width;
  return type == OCT_CUDA_BF16 && a.kv.type != OCT_CUDA_F32 && a.kv.has_values &&
         a.kv.page_tokens % TILE == 0 && (w == 64 || w == 80 || w == 96 || w == 128 || w == 256) &&
         a.q_stride % 2 == 0;
}

bool
oct_attend_decode_can_store(const attend_args &a, const oct_cuda_rope_store &s) {
  uint32_t w = a.kv.width, run = a.kv.type == OCT_CUDA_FP8 ? 128 : 64;
  return s.place == NULL && s.angles != NULL && s.rope_dim == w && !s.interleaved && w % run == 0 &&
         s.kv.base == a.kv.base && s.k_stride % 8 == 0 && s.v_stride % 8 == 0 &&
         (uintptr_t)s.k % 16 == 0 && (uintptr_t)s.v % 16 == 0;
}

uint32_t
oct_attend_decode_heads(const attend_args &a) {
  return a.kv.width <= 128 && a.group > 8 ? 16 : 8;
}

uint32_t
oct_attend_decode_blocks(const attend_args &a) {
  int element_bytes = a.kv.type == OCT_CUDA_FP8 ? 1 : 2;
  return (uint32_t)blocks_of(element_bytes, (int)a.kv.width, (int)oct_attend_decode_heads(a) / 8);
}

int
oct_attend_decode(const oct_cuda_queue *queue, const attend_args &a) {
  return a.kv.type == OCT_CUDA_BF16 ? by_head<bf16>(queue, a) : by_head<fp8>(queue, a);
}
