/* Latent attention in the absorbed form, of the one size that models have: 512 dimensions that are
 * keys and values, and 64 more of keys, in bf16 or fp8. Any head reads the same rows, so that 16
 * heads of a token are one side of the matrix instructions.
 *
 * A block has a token, 16 heads and a split of the context; two run on a multiprocessor. A token's
 * sums are the same ones whichever others there are if splits have a fixed length. One warp
 * brings tiles of 32 rows to shared memory, several on their way. Of a tile eight warps first make
 * scores, 16 rows by a quarter of the dimensions each, with their queries in registers. Then each
 * adds up the quarters of two heads, a row a lane, and leaves weights and what earlier sums keep.
 * Then each adds up 64 of the dimensions.
 *
 * fp8 becomes half (e4m3 is exact in it) on its way from shared memory to the instruction. A run of
 * 16 dimensions is in another order there, which its queries follow: four neighbours of a row come
 * as one word, and two dimensions of two rows when it is transposed. */
#include "kernels/cuda/attend.cuh"
#include "kernels/cuda/barrier.cuh"

#define LORA      512
#define WIDTH     576
#define HEADS     16
#define KEYS      32
#define WARPS     8
#define CONSUMERS (32 * WARPS)
#define THREADS   (CONSUMERS + 32)
#define STEPS     9  /* of 16 dimensions in a quarter */
#define SCORES    17 /* floats of a row of scores: rows of a warp meet no bank twice */
#define WEIGHTS   80 /* bytes of a head's weights: eight heads meet no bank twice */

/* C: cache. PITCH: bytes of a row in shared memory; eight rows meet no bank twice. */
template <typename C> struct latent_traits;
template <> struct latent_traits<bf16> {
  typedef bf16 operand;
  static constexpr uint32_t STAGES = 2;
};
template <> struct latent_traits<fp8> {
  typedef half operand;
  static constexpr uint32_t STAGES = 4;
};

/* Where things are in shared memory. */
template <typename C> struct latent_layout {
  static constexpr uint32_t STAGES = latent_traits<C>::STAGES;
  static constexpr uint32_t ROW = WIDTH * sizeof(C), PITCH = ROW + 16, TILE = KEYS * PITCH;
  static constexpr uint32_t SCORES_AT = STAGES * TILE, PLANE = KEYS * SCORES * 4;
  static constexpr uint32_t WEIGHTS_AT = SCORES_AT + 4 * PLANE;
  static constexpr uint32_t KEEPS_AT = WEIGHTS_AT + HEADS * WEIGHTS, BYTES = KEEPS_AT + 4 * HEADS;
};

/* The part [*begin, *end) of the context that a split has, in whole tiles but for the last. */
OCT_DEVICE void
latent_range(const attend_args &a, uint32_t length, uint32_t split, uint32_t *begin,
             uint32_t *end) {
  uint32_t chunk = a.chunk == 0 ? ((length + a.n_splits - 1) / a.n_splits + KEYS - 1) / KEYS * KEYS
                                : fixed_chunk(a, length);
  *begin = min(length, split * chunk);
  *end = min(length, (split + 1) * chunk);
}

/* Top and sum of a head's split. */
OCT_DEVICE float *
split_ends(const attend_args &a, uint32_t row, uint32_t head, uint32_t split) {
  size_t part = ((size_t)row * a.n_heads + head) * a.n_splits + split;
  return a.partial + (size_t)a.n_seqs * a.n_heads * a.n_splits * LORA + 2 * part;
}

/* A lane has a row of each tile. */
template <typename C>
OCT_DEVICE void
bring_rows(const page_reader &pages, uint32_t begin, uint32_t end, uint32_t room, uint32_t full,
           uint32_t free) {
  typedef latent_layout<C> at;
  uint32_t lane = threadIdx.x % 32, turn = 0;
  for (uint32_t first = begin; first < end; first += KEYS, turn++) {
    uint32_t s = turn % at::STAGES, n = min((uint32_t)KEYS, end - first);
    barrier_wait(free + 8 * s, (turn / at::STAGES + 1) % 2);
    if (lane == 0)
      barrier_expect(full + 8 * s, n * at::ROW);
    __syncwarp();
    if (lane < n)
      copy_bulk(room + s * at::TILE + lane * at::PITCH, key_row(pages, first + lane), at::ROW,
                full + 8 * s);
  }
}

/* Four matrices of 8 x 8 words of 16 bits, or two. */
OCT_DEVICE void
load_pair(uint32_t (&r)[2], uint32_t from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(from));
}

template <typename C> struct latent_consumer {
  typedef latent_layout<C> at;
  typedef typename latent_traits<C>::operand H;

  uint32_t q[STEPS][2][2]; /* queries of heads g and g + 8 over the warp's quarter */
  float acc[4][2][4];      /* 16 dimensions by 8 heads */
  float top[2], sum[2];    /* of heads 2 warp and 2 warp + 1 */
  uint32_t lane, warp, g, t;

  __device__ void load_queries(const attend_args &a, uint32_t token, uint32_t first_head) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      uint32_t head = first_head + 8 * h + g;
      bool is_there = head < a.n_heads;
      const bf16 *row = query_row(a, token, is_there ? head : first_head) + warp / 2 * (16 * STEPS);
#pragma unroll
      for (int k = 0; k < STEPS; k++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
          float x[2] = {};
          if (is_there)
            load_floats<bf16, 2>(row + 16 * k + (sizeof(C) == 2 ? 2 * t + 8 * i : 4 * t + 2 * i),
                                 x);
          q[k][h][i] = pack<H>(x[0], x[1]);
        }
    }
  }

  /* Scores of rows 16 (warp % 2) … over the warp's quarter, to its plane. */
  __device__ void score(uint32_t rows, float *scores) {
    float d[2][4] = {};
    uint32_t from = rows + (16 * (warp % 2) + lane % 16) * at::PITCH +
                    warp / 2 * (16 * STEPS) * (uint32_t)sizeof(C);
#pragma unroll
    for (int k = 0; k < STEPS; k++) {
      uint32_t m[4];
      if constexpr (sizeof(C) == 2) {
        load_matrices(m, from + 32 * k + lane / 16 * 16);
      } else {
        uint32_t raw[2];
        load_pair(raw, from + 16 * k);
        m[0] = halves_of((uint16_t)raw[0]);
        m[1] = halves_of((uint16_t)raw[1]);
        m[2] = halves_of((uint16_t)(raw[0] >> 16));
        m[3] = halves_of((uint16_t)(raw[1] >> 16));
      }
#pragma unroll
      for (int h = 0; h < 2; h++)
        mma<H>(d[h], m[0], m[1], m[2], m[3], q[k][h][0], q[k][h][1]);
    }
    float *plane = scores + warp / 2 * (KEYS * SCORES);
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
      for (int i = 0; i < 4; i++)
        plane[(16 * (warp % 2) + g + i / 2 * 8) * SCORES + 8 * h + 2 * t + i % 2] = d[h][i];
  }

  /* Scores of the tile's n rows for the warp's two heads, a row a lane, to weights; and what the
   * sums so far have to be multiplied by. */
  __device__ void weigh(const float *scores, uint32_t n, float scale, unsigned char *weights,
                        float *keeps) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      uint32_t head = 2 * warp + h;
      float s = -INFINITY;
      if (lane < n) {
        const float *from = scores + lane * SCORES + head;
        s = (from[0] + from[KEYS * SCORES] + from[2 * KEYS * SCORES] + from[3 * KEYS * SCORES]) *
            scale;
      }
      float best = fmaxf(top[h], warp_max(s)), keep = power2(top[h] - best);
      top[h] = best;
      s = power2(s - best);
      sum[h] = sum[h] * keep + s; /* a lane's part */
      *(H *)(weights + head * WEIGHTS + 2 * lane) = (H)s;
      if (lane == 0)
        keeps[head] = keep;
    }
  }

  /* Rows behind the context's end may be anything, and zero times anything may be no number. */
  __device__ void clear_rows(uint32_t rows, uint32_t n) {
    constexpr uint32_t RUNS = at::ROW / 16;
    for (uint32_t i = threadIdx.x; i < (KEYS - n) * RUNS; i += CONSUMERS)
      asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(
                       rows + (n + i / RUNS) * at::PITCH + i % RUNS * 16),
                   "r"(0));
  }

  __device__ void rescale(const float *keeps) {
    float keep[2][2];
    bool same = true;
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
      for (int i = 0; i < 2; i++) {
        keep[h][i] = keeps[8 * h + 2 * t + i];
        same &= keep[h][i] == 1;
      }
    if (__all_sync(0xffffffffu, same))
      return;
#pragma unroll
    for (int m = 0; m < 4; m++)
#pragma unroll
      for (int h = 0; h < 2; h++)
#pragma unroll
        for (int i = 0; i < 4; i++)
          acc[m][h][i] *= keep[h][i % 2];
  }

  /* 16 dimensions of 16 rows, from `from` on, as the operand whose rows are dimensions. */
  __device__ void load_values(uint32_t (&v)[4], uint32_t from) {
    if constexpr (sizeof(C) == 2) {
      load_transposed(v, from + (lane % 8 + lane / 16 * 8) * at::PITCH + lane / 8 % 2 * 16);
    } else {
      uint32_t raw[2];
      asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                   : "=r"(raw[0]), "=r"(raw[1])
                   : "r"(from + lane % 16 * at::PITCH));
#pragma unroll
      for (int i = 0; i < 2; i++) {
        v[2 * i] = halves_of((uint16_t)__byte_perm(raw[i], 0, 0x4420));
        v[2 * i + 1] = halves_of((uint16_t)__byte_perm(raw[i], 0, 0x4431));
      }
    }
  }

  __device__ void add_rows(uint32_t rows, uint32_t weights) {
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++) {
      uint32_t w[4]; /* heads g, then g + 8: keys 2t, 2t + 8 */
      load_matrices(w, weights + (lane % 8 + lane / 16 * 8) * WEIGHTS + 32 * k + lane / 8 % 2 * 16);
#pragma unroll
      for (int m = 0; m < 4; m++) {
        uint32_t v[4];
        load_values(v, rows + 16 * k * at::PITCH + (64 * warp + 16 * m) * (uint32_t)sizeof(C));
#pragma unroll
        for (int h = 0; h < 2; h++)
          mma<H>(acc[m][h], v[0], v[1], v[2], v[3], w[2 * h], w[2 * h + 1]);
      }
    }
  }

  /* The dimension of row i / 2 of a lane's accumulators. */
  __device__ uint32_t dimension(int m, int i) const {
    return 64 * warp + 16 * m + (sizeof(C) == 2 ? g + i / 2 * 8 : 2 * g + i / 2);
  }

  /* Ends of the warp's heads: by head, and to the partial sums'. */
  __device__ void leave_ends(const attend_args &a, uint32_t row, uint32_t first_head,
                             uint32_t split, float *factors) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      float s = warp_sum(sum[h]);
      uint32_t own = first_head + 2 * warp + h;
      if (lane != 0)
        continue;
      factors[2 * warp + h] = a.n_splits == 1 ? end_factor(a, 0, top[h], s) : 1;
      if (own >= a.n_heads)
        continue;
      if (a.n_splits == 1) {
        put_ends(a, row, own, top[h], s);
      } else {
        float *ends = split_ends(a, row, own, split);
        ends[0] = top[h];
        ends[1] = s;
      }
    }
  }

  __device__ void store(const attend_args &a, uint32_t token, uint32_t row, uint32_t first_head,
                        uint32_t split, const float *factors) {
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
      for (int i = 0; i < 4; i++) {
        uint32_t of = 8 * h + 2 * t + i % 2, head = first_head + of;
        if (head >= a.n_heads)
          continue;
#pragma unroll
        for (int m = 0; m < 4; m++) {
          uint32_t c = dimension(m, i);
          if (a.n_splits == 1)
            put_elements<1>(a, token, head, c, {acc[m][h][i] * factors[of]});
          else
            a.partial[(((size_t)row * a.n_heads + head) * a.n_splits + split) * LORA + c] =
                acc[m][h][i];
        }
      }
  }
};

/* A split behind the context's end: one of several. */
OCT_DEVICE void
leave_nothing(const attend_args &a, uint32_t row, uint32_t first_head, uint32_t split) {
  uint32_t head = first_head + threadIdx.x;
  if (threadIdx.x < HEADS && head < a.n_heads)
    split_ends(a, row, head, split)[0] = -INFINITY;
}

template <typename C>
OCT_DEVICE void
consume_rows(latent_consumer<C> &c, const attend_args &a, uint32_t begin, uint32_t end,
             unsigned char *shared, uint32_t full, uint32_t free) {
  typedef latent_layout<C> at;
  float scale = score_scale(a, 0);
  float *scores = (float *)(shared + at::SCORES_AT), *keeps = (float *)(shared + at::KEEPS_AT);
  uint32_t room = shared_address(shared), turn = 0;
  for (uint32_t first = begin; first < end; first += KEYS, turn++) {
    uint32_t s = turn % at::STAGES, n = min((uint32_t)KEYS, end - first);
    uint32_t rows = room + s * at::TILE;
    barrier_wait(full + 8 * s, turn / at::STAGES % 2);
    if (n < KEYS) {
      c.clear_rows(rows, n);
      named_barrier(1, CONSUMERS);
    }
    c.score(rows, scores);
    named_barrier(1, CONSUMERS);
    c.weigh(scores, n, scale, shared + at::WEIGHTS_AT, keeps);
    named_barrier(1, CONSUMERS);
    c.rescale(keeps);
    c.add_rows(rows, room + at::WEIGHTS_AT);
    arrive_by_warp(free + 8 * s);
  }
}

template <typename C>
static __global__ void
__launch_bounds__(THREADS, 2) attend_latent(attend_args a) {
  typedef latent_layout<C> at;
  extern __shared__ __align__(128) unsigned char latent_room[];
  __shared__ __align__(8) uint64_t barriers[2 * at::STAGES];
  admit_successor();
  await_predecessors();
  uint32_t row = blockIdx.x, first_head = blockIdx.y * HEADS, split = blockIdx.z;
  uint32_t token = a.first_seq + row;
  uint32_t seq = a.batch.token_seq[token];
  if (sees_nothing(a, token)) {
    for (uint32_t head = first_head; split == 0 && head < min(first_head + HEADS, a.n_heads);
         head++)
      put_nothing(a, token, head);
    return;
  }
  uint32_t full = shared_address(barriers), free = full + 8 * at::STAGES;
  uint32_t begin, end;
  latent_range(a, a.visible != NULL ? a.visible[token] : a.batch.token_position[token] + 1, split,
               &begin, &end);
  if (begin >= end) {
    leave_nothing(a, row, first_head, split);
    return;
  }
  if (threadIdx.x == 0) {
    for (uint32_t s = 0; s < at::STAGES; s++) {
      barrier_init(full + 8 * s, 1);
      barrier_init(free + 8 * s, arrivals_of(WARPS));
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  if (threadIdx.x >= CONSUMERS) {
    page_reader pages = open_pages(a.kv, a.tables, a.batch.seq_slot[seq], 0, sizeof(C));
    bring_rows<C>(pages, begin, end, shared_address(latent_room), full, free);
    return;
  }
  latent_consumer<C> c = {};
  c.lane = threadIdx.x % 32;
  c.warp = threadIdx.x / 32;
  c.g = c.lane / 4;
  c.t = c.lane % 4;
  c.top[0] = c.top[1] = -INFINITY;
  c.load_queries(a, token, first_head);
  consume_rows(c, a, begin, end, latent_room, full, free);
  float *factors = (float *)(latent_room + at::KEEPS_AT);
  named_barrier(1, CONSUMERS);
  c.leave_ends(a, row, first_head, split, factors);
  named_barrier(1, CONSUMERS);
  c.store(a, token, row, first_head, split, factors);
}

/* ---------------------------------------------------------------- joining splits */

/* A block per token and head; splits behind a context's end have nothing. */
static __global__ void
join_splits(attend_args a) {
  admit_successor();
  await_predecessors();
  uint32_t head = blockIdx.x, token = a.first_seq + blockIdx.y, width = a.value_width;
  if (sees_nothing(a, token))
    return;
  size_t part = ((size_t)blockIdx.y * a.n_heads + head) * a.n_splits;
  const float *ends = a.partial + (size_t)a.n_seqs * a.n_heads * a.n_splits * width + 2 * part;
  float all = -INFINITY, total = 0;
  for (uint32_t s = 0; s < a.n_splits; s++)
    all = fmaxf(all, ends[2 * s]);
  for (uint32_t s = 0; s < a.n_splits; s++)
    total += ends[2 * s] > -INFINITY ? ends[2 * s + 1] * exp2f(ends[2 * s] - all) : 0;
  float factor = end_factor(a, head, all, total);
  if (threadIdx.x == 0)
    put_ends(a, token, head, all, total);
  for (uint32_t c = threadIdx.x; c < width; c += blockDim.x) {
    float x = 0;
    for (uint32_t s = 0; s < a.n_splits; s++)
      if (ends[2 * s] > -INFINITY)
        x += a.partial[(part + s) * width + c] * exp2f(ends[2 * s] - all);
    put_elements<1>(a, token, head, c, {x * factor});
  }
}

/* ---------------------------------------------------------------- launch */

bool
oct_attend_latent_can(const oct_cuda_queue *queue, const attend_args &a, oct_cuda_type type) {
  return queue->capability >= 90 && type == OCT_CUDA_BF16 && a.kv.type != OCT_CUDA_F32 &&
         a.kv.width == WIDTH && a.value_width == LORA && (uintptr_t)a.kv.base % 16 == 0 &&
         a.kv.page_bytes % 16 == 0 && (a.kv.type == OCT_CUDA_FP8 || a.kv.k_scale == NULL);
}

template <typename C>
static int
launch_latent(const oct_cuda_queue *queue, const attend_args &a) {
  dim3 grid(a.n_seqs, ceil_div(a.n_heads, HEADS), a.n_splits);
  int error =
      launch_large(queue, attend_latent<C>, grid, dim3(THREADS), latent_layout<C>::BYTES, a);
  if (error == OCT_CUDA_OK && a.n_splits > 1)
    error = launch(queue, join_splits, dim3(a.n_heads, a.n_seqs), dim3(128), 0, a);
  return error;
}

int
oct_attend_latent(const oct_cuda_queue *queue, const attend_args &a) {
  return a.kv.type == OCT_CUDA_FP8 ? launch_latent<fp8>(queue, a) : launch_latent<bf16>(queue, a);
}
