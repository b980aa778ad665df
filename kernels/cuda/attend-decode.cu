/* Decode attention: one query token per sequence, its context shared out over blocks.
 *
 * A block has a sequence, a KV head with up to 16 of its query heads, and a part of the context;
 * its four warps take 16 keys in turn (decoder.cuh) and never wait for each other until the end.
 * Parts are splits of a length that the context's gives, or of as many blocks as a cluster has, or
 * equal shares of all contexts, where a block goes from one sequence to the next. */
#define WARPS 4

#include "kernels/cuda/cluster.cuh"
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

/* A part of a sequence's context that a block has, for a run of a group's heads. */
struct piece {
  uint32_t seq, kv_head, first, n; /* heads [first, first + n) */
  uint32_t begin, end;             /* positions; none: there is nothing to read */
};

/* What the block's warps do with it. */
template <typename C, int D, int NT> struct reader {
  /* As registers allow: what is asked for before the queries are there. */
  static constexpr bool KEYS_AHEAD = D <= 128, VALUES_AHEAD = KEYS_AHEAD && sizeof(C) == 2;
  decoder<C, D, NT> d;
  page_reader pages;
  piece now;
  uint32_t newest;
  bool ready; /* the warp's first keys and values are on their way */

  /* Asks for the warp's first keys and values, unless they are not stored yet. */
  __device__ void open(const attend_args &a, const piece &p) {
    now = p;
    ready = false;
    newest = decode_length(a, p.seq) - 1;
    if (p.begin >= p.end)
      return;
    pages = open_pages(a.kv, a.tables, decode_slot(a, p.seq), p.kv_head, sizeof(C));
    uint32_t at = p.begin / TILE * TILE + TILE * (threadIdx.x / 32);
    ready = KEYS_AHEAD && at < p.end && at + TILE <= newest;
    if (ready) {
      const char *tile = key_row(pages, at);
      d.load_keys(tile, pages.row_bytes);
      if (VALUES_AHEAD)
        d.load_values(tile + pages.half_bytes, pages.row_bytes);
    }
  }

  __device__ void read_tiles(const attend_args &a) {
    float scale = score_scale(a, now.kv_head);
    uint32_t at = now.begin / TILE * TILE + TILE * (threadIdx.x / 32);
    const char *tile = at < now.end ? key_row(pages, at) : NULL;
    if (at < now.end && !ready)
      d.load_keys(tile, pages.row_bytes);
    while (at < now.end) {
      uint32_t next = at + TILE * WARPS;
      const char *next_tile = next < now.end ? key_row(pages, next) : NULL;
      if (!ready || !VALUES_AHEAD)
        d.load_values(tile + pages.half_bytes, pages.row_bytes);
      ready = false;
      float s[NT][4];
      d.scores(s);
      if (next < now.end)
        d.load_keys(next_tile, pages.row_bytes);
      bool is_edge = at < now.begin || at + TILE > now.end;
      uint32_t weights[NT][2];
#pragma unroll
      for (int n = 0; n < NT; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
          uint32_t key = at + d.g + (i / 2) * 8;
          s[n][i] = is_edge && (key < now.begin || key >= now.end)
                        ? -INFINITY
                        : cap_score(s[n][i], scale, a.soft_cap);
        }
        d.weigh(s[n], n, weights[n]);
      }
      if (at + TILE > now.end)
        d.clear_values(now.end - at);
      d.add_values(weights);
      at = next;
      tile = next_tile;
    }
  }

  /* Goes through the piece and leaves what each warp has of it in the room. */
  __device__ void run(const attend_args &a, float *room) {
    constexpr uint32_t HEADS = 8 * NT;
    d.clear();
    if (now.begin < now.end) {
      uint32_t row = decode_token(a, now.seq);
      if constexpr (decoder<C, D, NT>::PAIRED)
        if (a.angles != NULL && now.end == newest + 1) {
          if (threadIdx.x < 64)
            store_newest<C, D>(a, pages, row, now.kv_head, newest, threadIdx.x < 32);
          __syncthreads();
        }
      d.load_queries(a, row, now.first, now.n, newest);
      read_tiles(a);
    }
    uint32_t warp = threadIdx.x / 32;
    float *tops = room + WARPS * HEADS * D, *sums = tops + WARPS * HEADS;
    d.leave(room + warp * HEADS * D, tops + warp * HEADS, sums + warp * HEADS);
  }
};

/* Joins the splits that the blocks of a cluster have; each writes some of the elements. */
template <int D>
OCT_DEVICE void
join_cluster(const attend_args &a, float *room, uint32_t heads, uint32_t n, uint32_t first_head,
             uint32_t row, uint32_t split) {
  float *ends = room + WARPS * heads * (D + 2);
  for (uint32_t i = threadIdx.x; i < n * D / RUN; i += blockDim.x) {
    uint32_t h = i / (D / RUN), c = i % (D / RUN) * RUN;
    float top, sum, x[RUN];
    join_warps<D>(room, heads, h, c, x, &top, &sum);
    /* Nobody else reads these. */
    store_floats<float, 4>(room + h * D + c, *(float(*)[4])x);
    store_floats<float, 4>(room + h * D + c + 4, *(float(*)[4])(x + 4));
    if (c == 0) {
      ends[2 * h] = top;
      ends[2 * h + 1] = sum;
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
      tops[s] = load_there(ends + 2 * h, from);
      sums[s] = load_there(ends + 2 * h + 1, from);
      xs[s] = load_there(room + i, from);
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
    float one[1] = {x};
    put_run<1>(a, row, first_head + h, i % D, one, top, sum);
  }
  cluster_barrier(); /* the others may still read here */
}

/* Blocks of a multiprocessor: as registers allow. */
constexpr int
blocks_of(int element_bytes, int width, int tiles) {
  return width > 128 || tiles > 1 ? 2 : width <= 64 || element_bytes == 1 ? 4 : 3;
}

/* A block per sequence, run of heads and split: splits of a fixed length, or as many as blocks of a
 * cluster. */
template <typename C, int D, int NT>
static __global__ void
__launch_bounds__(32 * WARPS, blocks_of(sizeof(C), D, NT)) attend_decode(attend_args a) {
  extern __shared__ __align__(16) float room[];
  constexpr uint32_t HEADS = 8 * NT;
  if (!a.early)
    await_predecessors();
  uint32_t tiles = (a.group + HEADS - 1) / HEADS, seq = a.first_seq + blockIdx.z;
  uint32_t split = blockIdx.x, kv_head = blockIdx.y / tiles, first = blockIdx.y % tiles * HEADS;
  uint32_t row = decode_token(a, seq), length = decode_length(a, seq);
  uint32_t head = kv_head * a.group + first, n = min(HEADS, a.group - first);
  piece mine = {seq, kv_head, head, n, 0, 0};
  if (length > 0)
    split_range(a, length, split, &mine.begin, &mine.end);
  reader<C, D, NT> r;
  r.open(a, mine);
  await_predecessors();
  admit_successor();
  if (split == 0)
    clear_padding(a, seq, head, n);
  if (length == 0 || (mine.begin >= mine.end && !a.in_cluster))
    return;
  r.run(a, room);
  __syncthreads();
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

/* Where a piece goes that was read: whole, or a part at a place of the workspace. */
struct ending {
  uint32_t n, first, row, place;
  bool whole;
  parts p;
};

/* The piece that a share has from unit `unit` on; s->seq goes on to its sequence. */
template <int HEADS>
OCT_DEVICE piece
take_piece(const attend_args &a, share *s, uint32_t runs, uint32_t unit, uint32_t *n_units) {
  while (unit >= runs * (s->seq_begin + s->each)) {
    s->seq_begin += s->each;
    s->each = units_of(a, a.first_seq + ++s->seq);
  }
  uint32_t tiles = (a.group + HEADS - 1) / HEADS, local = unit - runs * s->seq_begin;
  uint32_t run = local / s->each, at = local % s->each, seq = a.first_seq + s->seq;
  uint32_t length = decode_length(a, seq), first = run % tiles * HEADS, from, base;
  seen_range(a, length, &from, &base);
  *n_units = min(s->each - at, s->end - unit);
  return {seq,
          run / tiles,
          run / tiles * a.group + first,
          min((uint32_t)HEADS, a.group - first),
          max(from, base + at * UNIT),
          min(length, base + (at + *n_units) * UNIT)};
}

template <int HEADS>
OCT_DEVICE ending
end_piece(const attend_args &a, const share &s, uint32_t runs, uint32_t unit, uint32_t n_units) {
  uint32_t tiles = (a.group + HEADS - 1) / HEADS, local = unit - runs * s.seq_begin;
  uint32_t run = local / s.each, at = local % s.each, first = run % tiles * HEADS;
  return {min((uint32_t)HEADS, a.group - first),
          run / tiles * a.group + first,
          decode_token(a, a.first_seq + s.seq),
          2 * blockIdx.x + (at == 0 ? 1 : 0),
          n_units == s.each,
          parts_of(a, s, unit - at, s.seq * runs + run)};
}

template <typename C, int D, int NT>
static __global__ void
__launch_bounds__(32 * WARPS, blocks_of(sizeof(C), D, NT)) attend_shares(attend_args a) {
  extern __shared__ __align__(16) float room[];
  __shared__ ending was;
  constexpr uint32_t HEADS = 8 * NT;
  if (!a.early)
    await_predecessors();
  uint32_t tiles = (a.group + HEADS - 1) / HEADS, runs = a.kv.n_heads * tiles, n_units = 0;
  share s;
  find_own_share(a, runs, &s);
  reader<C, D, NT> r;
  uint32_t unit = s.begin;
  if (unit < s.end)
    r.open(a, take_piece<HEADS>(a, &s, runs, unit, &n_units));
  await_predecessors();
  admit_successor();
  for (uint32_t i = blockIdx.x; i < a.n_seqs; i += gridDim.x)
    clear_padding(a, a.first_seq + i, 0, a.n_heads);
  while (unit < s.end) {
    r.run(a, room);
    if (threadIdx.x == 0)
      was = end_piece<HEADS>(a, s, runs, unit, n_units);
    unit += n_units;
    /* The next piece's first keys come while this one is joined. */
    if (unit < s.end)
      r.open(a, take_piece<HEADS>(a, &s, runs, unit, &n_units));
    __syncthreads();
    if (was.whole)
      leave_whole<D>(a, room, HEADS, was.n, was.first, was.row);
    else
      leave_part<D>(a, was.p, room, HEADS, was.n, was.first, was.row, was.place);
    __syncthreads(); /* the room is free again */
  }
}

/* ---------------------------------------------------------------- launch */

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
