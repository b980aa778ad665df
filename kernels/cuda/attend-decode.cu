/* Decode attention: one query token per sequence, its context split over blocks.
 *
 * A block has a sequence, a KV head with up to 16 of its query heads, and a split of the context;
 * its four warps take 16 keys in turn and never wait for each other until the end. Keys and values
 * go from memory to registers, 16 bytes a lane, and from there into matrix instructions: the order
 * of dimensions within a sum is free, so each lane's 16 bytes serve as the operand's elements of
 * consecutive steps. Products are transposed (keys by heads, dimensions by heads), so that a group
 * of 8 heads fills the instruction's narrow side.
 *
 * With E elements in 16 bytes: lane (g, t) = (lane / 4, lane % 4) loads of keys g and g + 8 the
 * dimensions [4 E c + E t, + E), and of values at keys 2t, 2t + 1, 2t + 8, 2t + 9 the dimensions
 * [8 E v + E g, + E). */
#include "kernels/cuda/attend.cuh"

#define WARPS 4
#define TILE  16 /* keys */

template <typename C> struct cache_traits;
template <> struct cache_traits<bf16> { typedef bf16 operand; };
template <> struct cache_traits<fp8> { typedef half operand; /* e4m3 is exact in it */ };

/* 16 bytes of the cache as operands of 16 bits: E / 2 words. */
template <typename C>
OCT_DEVICE void
expand(uint4 raw, uint32_t (&words)[8 / sizeof(C)]) {
  const uint32_t from[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int i = 0; i < 4; i++)
    if constexpr (sizeof(C) == 2) {
      words[i] = from[i];
    } else {
      words[2 * i] = halves_of((uint16_t)from[i]);
      words[2 * i + 1] = halves_of((uint16_t)(from[i] >> 16));
    }
}

OCT_DEVICE uint4
load_once(const char *from) {
  uint4 v;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}

/* C: cache, D: head size, NT: tiles of 8 heads. */
template <typename C, int D, int NT> struct decoder {
  typedef typename cache_traits<C>::operand H;
  static constexpr int E = 16 / sizeof(C);
  static constexpr int KC = (D + 4 * E - 1) / (4 * E), VG = (D + 8 * E - 1) / (8 * E);
  static constexpr int STEPS = E / 4; /* of 16 dimensions in a chunk of keys */
  static constexpr int MT = E / 2;    /* tiles of 16 dimensions in a group of values */

  uint32_t q[NT][KC][2 * STEPS];
  uint4 keys[KC][2], values[VG][4];
  float acc[NT][VG][MT][4], top[NT][2], sum[NT][2];
  uint32_t g, t;

  /* Query head g of each tile of heads, as the narrow operand. */
  __device__ void load_queries(const bf16 *from, uint32_t n_heads) {
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
      for (int c = 0; c < KC; c++) {
        uint32_t dim = 4 * E * c + E * t, head = 8 * n + g;
#pragma unroll
        for (int w = 0; w < 2 * STEPS; w++) {
          float x[2] = {};
          if (head < n_heads && dim + 2 * w < D)
            load_floats<bf16, 2>(from + (size_t)head * D + dim + 2 * w, x);
          q[n][c][w] = pack<H>(x[0], x[1]);
        }
      }
  }

  __device__ void load_keys(const char *tile, uint32_t row_bytes) {
#pragma unroll
    for (int c = 0; c < KC; c++)
#pragma unroll
      for (int r = 0; r < 2; r++)
        keys[c][r] = D % (4 * E) == 0 || 4 * E * c + E * t < D
                         ? load_once(tile + (g + 8 * r) * row_bytes + 16 * (4 * c + t))
                         : make_uint4(0, 0, 0, 0);
  }

  __device__ void load_values(const char *tile, uint32_t row_bytes) {
#pragma unroll
    for (int v = 0; v < VG; v++)
#pragma unroll
      for (int r = 0; r < 4; r++)
        values[v][r] =
            D % (8 * E) == 0 || 8 * E * v + E * g < D
                ? load_once(tile + (2 * t + r % 2 + r / 2 * 8) * row_bytes + 16 * (8 * v + g))
                : make_uint4(0, 0, 0, 0);
  }

  /* Values of keys that nobody has stored may be anything, and zero times anything may be no
   * number. */
  __device__ void clear_values(uint32_t n) {
#pragma unroll
    for (int r = 0; r < 4; r++)
      if (2 * t + r % 2 + r / 2 * 8 >= n)
#pragma unroll
        for (int v = 0; v < VG; v++)
          values[v][r] = make_uint4(0, 0, 0, 0);
  }

  __device__ void scores(float (&s)[NT][4]) {
#pragma unroll
    for (int n = 0; n < NT; n++)
      s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0;
#pragma unroll
    for (int c = 0; c < KC; c++) {
      uint32_t low[2 * STEPS], high[2 * STEPS];
      expand<C>(keys[c][0], low);
      expand<C>(keys[c][1], high);
#pragma unroll
      for (int i = 0; i < STEPS; i++)
#pragma unroll
        for (int n = 0; n < NT; n++)
          mma<H>(s[n], low[2 * i], high[2 * i], low[2 * i + 1], high[2 * i + 1], q[n][c][2 * i],
                 q[n][c][2 * i + 1]);
    }
  }

  /* Scores of heads 2t, 2t + 1 at keys g (0, 1) and g + 8 (2, 3) to weights, as operands by key. */
  __device__ void weigh(float (&s)[4], int n, uint32_t (&weights)[2]) {
    float keep[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
      float best = fmaxf(s[h], s[h + 2]);
#pragma unroll
      for (int d = 4; d < 32; d *= 2)
        best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, d));
      best = fmaxf(best, top[n][h]);
      float base = best == -INFINITY ? 0 : best;
      keep[h] = power2(top[n][h] - base);
      top[n][h] = best;
      s[h] = power2(s[h] - base);
      s[h + 2] = power2(s[h + 2] - base);
      sum[n][h] = sum[n][h] * keep[h] + s[h] + s[h + 2];
    }
    weights[0] = transpose8(pack<H>(s[0], s[1]));
    weights[1] = transpose8(pack<H>(s[2], s[3]));
    if (__any_sync(0xffffffffu, keep[0] != 1 || keep[1] != 1))
#pragma unroll
      for (int v = 0; v < VG; v++)
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
          for (int i = 0; i < 4; i++)
            acc[n][v][m][i] *= keep[i % 2];
  }

  __device__ void add_values(const uint32_t (&weights)[NT][2]) {
#pragma unroll
    for (int v = 0; v < VG; v++) {
      uint32_t rows[4][2 * STEPS];
#pragma unroll
      for (int r = 0; r < 4; r++)
        expand<C>(values[v][r], rows[r]);
#pragma unroll
      for (int m = 0; m < MT; m++) {
        uint32_t a0 = __byte_perm(rows[0][m], rows[1][m], 0x5410);
        uint32_t a1 = __byte_perm(rows[0][m], rows[1][m], 0x7632);
        uint32_t a2 = __byte_perm(rows[2][m], rows[3][m], 0x5410);
        uint32_t a3 = __byte_perm(rows[2][m], rows[3][m], 0x7632);
#pragma unroll
        for (int n = 0; n < NT; n++)
          mma<H>(acc[n][v][m], a0, a1, a2, a3, weights[n][0], weights[n][1]);
      }
    }
  }

  /* The warp's results to shared memory: out[head, D], and top and sum of each head. */
  __device__ void leave(float *out, float *tops, float *sums) {
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
      for (int h = 0; h < 2; h++) {
        float s = sum[n][h];
#pragma unroll
        for (int d = 4; d < 32; d *= 2)
          s += __shfl_xor_sync(0xffffffffu, s, d);
        uint32_t head = 8 * n + 2 * t + h;
        if (g == 0) {
          tops[head] = top[n][h];
          sums[head] = s;
        }
#pragma unroll
        for (int v = 0; v < VG; v++)
#pragma unroll
          for (int m = 0; m < MT; m++) {
            uint32_t dim = 8 * E * v + E * g + 2 * m;
            if (dim < D) {
              out[head * D + dim] = acc[n][v][m][h];
              out[head * D + dim + 1] = acc[n][v][m][2 + h];
            }
          }
      }
  }
};

/* The part [*begin, *end) of the context that split `split` has; whole tiles but for the ends. */
OCT_DEVICE void
split_range(const attend_args &a, uint32_t length, uint32_t split, uint32_t *begin, uint32_t *end) {
  uint32_t from = a.window != 0 && length > a.window ? length - a.window : 0;
  uint32_t base = from / TILE * TILE, chunk = a.chunk;
  if (chunk == 0)
    chunk = ((length - base + a.n_splits - 1) / a.n_splits + 63) / 64 * 64;
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

/* What a block has of its heads once its warps are joined: rows of D in place of the first warp's,
 * and top and sum of each head behind everything else. */
template <int D>
OCT_DEVICE float
join_warps(const float *room, uint32_t heads, uint32_t h, uint32_t c, float *top, float *sum) {
  const float *tops = room + WARPS * heads * D, *sums = tops + WARPS * heads;
  float x = 0;
  *top = -INFINITY;
  *sum = 0;
#pragma unroll
  for (int w = 0; w < WARPS; w++)
    *top = fmaxf(*top, tops[w * heads + h]);
#pragma unroll
  for (int w = 0; w < WARPS; w++) {
    float factor = tops[w * heads + h] > -INFINITY ? exp2f(tops[w * heads + h] - *top) : 0;
    *sum += sums[w * heads + h] * factor;
    x += factor > 0 ? room[(w * heads + h) * D + c] * factor : 0;
  }
  return x;
}

/* A head's element, or a split's part of it, to memory. */
template <int D>
OCT_DEVICE void
put_element(const attend_args &a, uint32_t seq, uint32_t head, uint32_t split, uint32_t c, float x,
            float top, float sum) {
  if (a.n_splits == 1 || a.in_cluster) {
    float factor = finish_softmax(top, sum, a.sinks, head) * value_scale(a, head / a.group);
    uint32_t row = a.batch.seq_first[a.first_seq + seq];
    ((bf16 *)a.out)[row * a.out_stride + (size_t)head * D + c] = from_float<bf16>(x * factor);
    return;
  }
  size_t part = ((size_t)seq * a.n_heads + head) * a.n_splits + split;
  a.partial[part * D + c] = x;
  if (c == 0) {
    float *ends = a.partial + (size_t)a.n_seqs * a.n_heads * a.n_splits * D + 2 * part;
    ends[0] = top;
    ends[1] = sum;
  }
}

OCT_DEVICE void
cluster_barrier() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
#endif
}

/* A float in the shared memory of block `rank` of the cluster, at the place of *own in this one's.
 */
OCT_DEVICE float
read_of_block(const float *own, uint32_t rank) {
  float x = 0;
#if __CUDA_ARCH__ >= 900
  uint32_t at = (uint32_t)__cvta_generic_to_shared(own), there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(rank));
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(x) : "r"(there) : "memory");
#endif
  return x;
}

/* Joins the splits that the blocks of a cluster have; each writes some of the elements. */
template <int D>
OCT_DEVICE void
join_cluster(const attend_args &a, float *room, uint32_t heads, uint32_t n, uint32_t first_head,
             uint32_t seq, uint32_t split) {
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
    float top = -INFINITY, sum = 0, x = 0;
    for (uint32_t s = 0; s < a.n_splits; s++)
      top = fmaxf(top, read_of_block(ends + 2 * h, s));
    for (uint32_t s = 0; s < a.n_splits; s++) {
      float one = read_of_block(ends + 2 * h, s);
      if (one == -INFINITY)
        continue;
      sum += read_of_block(ends + 2 * h + 1, s) * exp2f(one - top);
      x += read_of_block(room + i, s) * exp2f(one - top);
    }
    put_element<D>(a, seq, first_head + h, 0, i % D, x, top, sum);
  }
  cluster_barrier(); /* the others may still read here */
}

template <int D>
OCT_DEVICE void
join_block(const attend_args &a, float *room, uint32_t heads, uint32_t n, uint32_t first_head,
           uint32_t seq, uint32_t split) {
  if (a.in_cluster) {
    join_cluster<D>(a, room, heads, n, first_head, seq, split);
    return;
  }
  for (uint32_t i = threadIdx.x; i < n * D; i += blockDim.x) {
    float top, sum, x = join_warps<D>(room, heads, i / D, i % D, &top, &sum);
    put_element<D>(a, seq, first_head + i / D, split, i % D, x, top, sum);
  }
}

/* Padding tokens are as many as padding sequences in a batch of decodes. */
OCT_DEVICE void
clear_padding(const attend_args &a, uint32_t token, uint32_t head, uint32_t n) {
  if (token >= a.batch.n_tokens || a.batch.token_seq[token] != OCT_CUDA_NONE)
    return;
  bf16 *out = (bf16 *)a.out + token * a.out_stride + (size_t)head * a.value_width;
  for (uint32_t c = threadIdx.x; c < n * a.value_width; c += blockDim.x)
    out[c] = from_float<bf16>(0);
}

/* Blocks of a multiprocessor: as registers allow. */
constexpr int
blocks_of(int element_bytes, int width, int tiles) {
  return width > 128 || tiles > 1 ? 2 : width <= 64 || element_bytes == 1 ? 4 : 3;
}

template <typename C, int D, int NT>
static __global__ void
__launch_bounds__(32 * WARPS, blocks_of(sizeof(C), D, NT)) attend_decode(attend_args a) {
  extern __shared__ float room[];
  admit_successor();
  await_predecessors();
  constexpr uint32_t HEADS = 8 * NT;
  uint32_t tiles = (a.group + HEADS - 1) / HEADS, seq = blockIdx.z, split = blockIdx.x;
  uint32_t kv_head = blockIdx.y / tiles, first = blockIdx.y % tiles * HEADS;
  uint32_t row = a.batch.seq_first[a.first_seq + seq];
  bool is_empty = row == a.batch.seq_first[a.first_seq + seq + 1];
  uint32_t head = kv_head * a.group + first, n = min(HEADS, a.group - first);
  if (split == 0)
    clear_padding(a, a.first_seq + seq, head, n);
  if (is_empty)
    return;
  uint32_t begin, end;
  split_range(a, a.batch.seq_start[a.first_seq + seq] + 1, split, &begin, &end);
  decoder<C, D, NT> d = {};
  d.g = threadIdx.x % 32 / 4;
  d.t = threadIdx.x % 4;
#pragma unroll
  for (int i = 0; i < NT; i++)
    d.top[i][0] = d.top[i][1] = -INFINITY;
  if (begin < end) {
    d.load_queries((const bf16 *)a.q + row * a.q_stride + (size_t)head * D, n);
    page_reader pages =
        open_pages(a.kv, a.tables, a.batch.seq_slot[a.first_seq + seq], kv_head, sizeof(C));
    read_context(d, a, pages, kv_head, begin, end);
  }
  uint32_t warp = threadIdx.x / 32;
  float *tops = room + WARPS * HEADS * D, *sums = tops + WARPS * HEADS;
  d.leave(room + warp * HEADS * D, tops + warp * HEADS, sums + warp * HEADS);
  __syncthreads();
  join_block<D>(a, room, HEADS, n, head, seq, split);
}

/* A block per sequence and head joins the splits. */
static __global__ void
join_splits(attend_args a) {
  admit_successor();
  await_predecessors();
  uint32_t seq = blockIdx.y, head = blockIdx.x, width = a.value_width;
  uint32_t row = a.batch.seq_first[a.first_seq + seq];
  if (row == a.batch.seq_first[a.first_seq + seq + 1])
    return;
  size_t part = ((size_t)seq * a.n_heads + head) * a.n_splits;
  const float *ends = a.partial + (size_t)a.n_seqs * a.n_heads * a.n_splits * width + 2 * part;
  float all = -INFINITY, total = 0;
  for (uint32_t s = 0; s < a.n_splits; s++)
    all = fmaxf(all, ends[2 * s]);
  for (uint32_t s = 0; s < a.n_splits; s++)
    total += ends[2 * s] > -INFINITY ? ends[2 * s + 1] * exp2f(ends[2 * s] - all) : 0;
  float factor = finish_softmax(all, total, a.sinks, head) * value_scale(a, head / a.group);
  for (uint32_t c = threadIdx.x; c < width; c += blockDim.x) {
    float x = 0;
    for (uint32_t s = 0; s < a.n_splits; s++)
      if (ends[2 * s] > -INFINITY)
        x += a.partial[(part + s) * width + c] * exp2f(ends[2 * s] - all);
    ((bf16 *)a.out)[row * a.out_stride + (size_t)head * width + c] = from_float<bf16>(x * factor);
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
  dim3 grid(a.n_splits, a.kv.n_heads * ceil_div(a.group, 8 * NT), a.n_seqs);
  size_t shared = ((size_t)WARPS * 8 * NT * (D + 2) + 2 * 8 * NT) * sizeof(float);
  uint32_t cluster = a.in_cluster ? a.n_splits : 1;
  int error = allow_large(queue, attend_decode<C, D, NT>, cluster, shared);
  if (error == OCT_CUDA_OK)
    error =
        launch_cluster(queue, attend_decode<C, D, NT>, cluster, grid, dim3(32 * WARPS), shared, a);
  if (error == OCT_CUDA_OK && a.n_splits > 1 && !a.in_cluster)
    error = oct_attend_join(queue, a);
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

uint32_t
oct_attend_decode_blocks(const attend_args &a) {
  int element_bytes = a.kv.type == OCT_CUDA_FP8 ? 1 : 2;
  return (uint32_t)blocks_of(element_bytes, (int)a.kv.width, a.group <= 8 ? 1 : 2);
}

int
oct_attend_decode(const oct_cuda_queue *queue, const attend_args &a) {
  return a.kv.type == OCT_CUDA_BF16 ? by_head<bf16>(queue, a) : by_head<fp8>(queue, a);
}
