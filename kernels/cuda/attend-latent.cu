/* Latent attention in the absorbed form, of the one size that models have: 512 dimensions that are
 * keys and values, and 64 more of keys. Any head reads the same rows, so that 16 heads of a token
 * are one side of the matrix instructions.
 *
 * A block has a token, 16 heads and a split of the context. One warp brings tiles of 64 rows to
 * shared memory, two on their way. Eight warps first share out the scores of a tile, 16 rows by 8
 * heads each, and leave them in shared memory; then each weighs all of them for itself, and adds up
 * 64 of the dimensions. */
#include "kernels/cuda/attend.cuh"
#include "kernels/cuda/barrier.cuh"

#define LORA      512
#define WIDTH     576
#define HEADS     16
#define KEYS      64
#define WARPS     8
#define CONSUMERS (32 * WARPS)
#define THREADS   (CONSUMERS + 32)
#define STAGES    2
#define PITCH     (WIDTH * 2 + 16) /* bytes of a row: eight rows meet no bank twice */
#define TILE      (KEYS * PITCH)
#define SCORES    20 /* floats of a row of scores */

#define QUERIES_AT (STAGES * TILE)
#define SCORES_AT  (QUERIES_AT + HEADS * PITCH)
#define ROOM       (SCORES_AT + 2 * KEYS * SCORES * 4)

/* The part [*begin, *end) of the context that a split has, in whole tiles but for the last. */
OCT_DEVICE void
latent_range(const attend_args &a, uint32_t length, uint32_t split, uint32_t *begin,
             uint32_t *end) {
  uint32_t chunk = a.chunk;
  if (chunk == 0)
    chunk = ((length + a.n_splits - 1) / a.n_splits + KEYS - 1) / KEYS * KEYS;
  *begin = min(length, split * chunk);
  *end = min(length, (split + 1) * chunk);
}

/* A lane has rows `lane` and `lane + 32` of each tile. */
OCT_DEVICE void
bring_rows(const page_reader &pages, uint32_t begin, uint32_t end, uint32_t room, uint32_t full,
           uint32_t free) {
  uint32_t lane = threadIdx.x % 32, turn = 0;
  for (uint32_t at = begin; at < end; at += KEYS, turn++) {
    uint32_t s = turn % STAGES, n = min((uint32_t)KEYS, end - at);
    barrier_wait(free + 8 * s, (turn / STAGES + 1) % 2);
    if (lane == 0)
      barrier_expect(full + 8 * s, n * WIDTH * 2);
    __syncwarp();
    for (uint32_t row = lane; row < n; row += 32)
      copy_bulk(room + s * TILE + row * PITCH, key_row(pages, at + row), WIDTH * 2, full + 8 * s);
  }
}

struct latent_consumer {
  float acc[4][2][4], top[2], sum[2]; /* 16 dimensions by 8 heads; of heads g and g + 8 */
  uint32_t lane, warp, g, t;

  /* Scores of rows 16 (warp % 4) … by heads 8 (warp / 4) …, to shared memory. */
  __device__ void score(uint32_t rows, uint32_t queries, float *scores) {
    uint32_t part = warp % 4, half = warp / 4;
    float d[2][4] = {};
#pragma unroll 6
    for (int k = 0; k < WIDTH / 32; k++) {
      uint32_t b[4], m[2][4];
      load_matrices(b, queries + (8 * half + lane % 8) * PITCH + 64 * k + lane / 8 * 16);
#pragma unroll
      for (int i = 0; i < 2; i++) {
        load_matrices(m[i],
                      rows + (16 * part + lane % 16) * PITCH + 64 * k + 32 * i + lane / 16 * 16);
        mma<bf16>(d[i], m[i][0], m[i][1], m[i][2], m[i][3], b[2 * i], b[2 * i + 1]);
      }
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
      scores[(16 * part + g + i / 2 * 8) * SCORES + 8 * half + 2 * t + i % 2] = d[0][i] + d[1][i];
  }

  /* All scores of the tile's n rows, for heads g and g + 8, to weights as operands by row. */
  __device__ void weigh(const float *scores, uint32_t n, float scale,
                        uint32_t (&weights)[4][2][2]) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      float s[4][4], best = top[h], total = 0;
#pragma unroll
      for (int k = 0; k < 4; k++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
          uint32_t row = 16 * k + 2 * t + i % 2 + i / 2 * 8;
          s[k][i] = row < n ? scores[row * SCORES + g + 8 * h] * scale : -INFINITY;
          best = fmaxf(best, s[k][i]);
        }
      best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 1));
      best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 2));
      float keep = power2(top[h] - best);
      top[h] = best;
#pragma unroll
      for (int k = 0; k < 4; k++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
          s[k][i] = power2(s[k][i] - best);
          total += s[k][i];
        }
        weights[k][h][0] = pack<bf16>(s[k][0], s[k][1]);
        weights[k][h][1] = pack<bf16>(s[k][2], s[k][3]);
      }
      sum[h] = sum[h] * keep + total;
      /* Sums have heads 2t and 2t + 1 in a lane: what these keep is with lanes of g = 2t, 2t + 1.
       */
      float keeps[2] = {__shfl_sync(0xffffffffu, keep, 8 * t),
                        __shfl_sync(0xffffffffu, keep, 8 * t + 4)};
#pragma unroll
      for (int m = 0; m < 4; m++)
#pragma unroll
        for (int i = 0; i < 4; i++)
          acc[m][h][i] *= keeps[i % 2];
    }
  }

  /* Rows behind the context's end may be anything, and zero times anything may be no number. */
  __device__ void clear_rows(uint32_t rows, uint32_t n) {
    for (uint32_t i = threadIdx.x; i < (KEYS - n) * (WIDTH / 8); i += CONSUMERS)
      asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(
                       rows + (n + i / (WIDTH / 8)) * PITCH + i % (WIDTH / 8) * 16),
                   "r"(0));
  }

  __device__ void add_rows(uint32_t rows, const uint32_t (&weights)[4][2][2]) {
#pragma unroll
    for (int k = 0; k < 4; k++)
#pragma unroll
      for (int m = 0; m < 4; m++) {
        uint32_t v[4];
        load_transposed(v, rows + (16 * k + lane % 8 + lane / 16 * 8) * PITCH + 128 * warp +
                               32 * m + lane / 8 % 2 * 16);
#pragma unroll
        for (int h = 0; h < 2; h++)
          mma<bf16>(acc[m][h], v[0], v[1], v[2], v[3], weights[k][h][0], weights[k][h][1]);
      }
  }

  /* Dimensions 64 warp + 16 m + g (+ 8), heads 8 h + 2t (+ 1). */
  __device__ void store(const attend_args &a, uint32_t token, uint32_t row, uint32_t first_head,
                        uint32_t split) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      float s = sum[h];
      s += __shfl_xor_sync(0xffffffffu, s, 1);
      s += __shfl_xor_sync(0xffffffffu, s, 2);
      float factor = a.n_splits == 1 ? finish_softmax(top[h], s, NULL, 0) : 1;
      uint32_t own = first_head + 8 * h + g;
      size_t part = ((size_t)row * a.n_heads + own) * a.n_splits + split;
      if (a.n_splits > 1 && warp == 0 && t == 0 && own < a.n_heads) {
        float *ends = a.partial + (size_t)a.n_seqs * a.n_heads * a.n_splits * LORA + 2 * part;
        ends[0] = top[h];
        ends[1] = s;
      }
#pragma unroll
      for (int i = 0; i < 4; i++) {
        uint32_t head = first_head + 8 * h + 2 * t + i % 2;
        float f = __shfl_sync(0xffffffffu, factor, 4 * (2 * t + i % 2));
#pragma unroll
        for (int m = 0; m < 4; m++) {
          uint32_t c = 64 * warp + 16 * m + g + i / 2 * 8;
          if (head >= a.n_heads)
            continue;
          if (a.n_splits == 1)
            ((bf16 *)a.out)[token * a.out_stride + (size_t)head * LORA + c] =
                from_float<bf16>(acc[m][h][i] * f);
          else
            a.partial[(((size_t)row * a.n_heads + head) * a.n_splits + split) * LORA + c] =
                acc[m][h][i];
        }
      }
    }
  }
};

OCT_DEVICE void
consume_rows(latent_consumer &c, const attend_args &a, uint32_t begin, uint32_t end, uint32_t room,
             float *scores, uint32_t full, uint32_t free) {
  float scale = score_scale(a, 0);
  uint32_t turn = 0;
  for (uint32_t at = begin; at < end; at += KEYS, turn++) {
    uint32_t s = turn % STAGES, n = min((uint32_t)KEYS, end - at), rows = room + s * TILE;
    float *here = scores + turn % 2 * (KEYS * SCORES);
    barrier_wait(full + 8 * s, turn / STAGES % 2);
    if (n < KEYS) {
      c.clear_rows(rows, n);
      named_barrier(1, CONSUMERS);
    }
    c.score(rows, room + QUERIES_AT, here);
    named_barrier(1, CONSUMERS);
    uint32_t weights[4][2][2];
    c.weigh(here, n, scale, weights);
    c.add_rows(rows, weights);
    __syncwarp();
    if (c.lane == 0)
      barrier_arrive(free + 8 * s);
  }
}

OCT_DEVICE void
load_query_rows(const attend_args &a, uint32_t token, uint32_t first_head, uint32_t room) {
  for (uint32_t i = threadIdx.x; i < HEADS * (WIDTH / 8); i += CONSUMERS) {
    uint32_t h = i / (WIDTH / 8), c = i % (WIDTH / 8);
    uint4 v = make_uint4(0, 0, 0, 0);
    if (first_head + h < a.n_heads)
      v = *(const uint4 *)((const bf16 *)a.q + token * a.q_stride +
                           (size_t)(first_head + h) * WIDTH + 8 * c);
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(room + h * PITCH + 16 * c),
                 "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w));
  }
}

static __global__ void
__launch_bounds__(THREADS, 1) attend_latent(attend_args a) {
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ __align__(8) uint64_t barriers[2 * STAGES];
  admit_successor();
  await_predecessors();
  uint32_t token = blockIdx.x, first_head = blockIdx.y * HEADS, split = blockIdx.z;
  uint32_t seq = a.batch.token_seq[token];
  if (seq == OCT_CUDA_NONE) {
    bf16 *out = (bf16 *)a.out + token * a.out_stride + (size_t)first_head * LORA;
    uint32_t n = min((uint32_t)HEADS, a.n_heads - first_head) * LORA;
    for (uint32_t c = threadIdx.x; split == 0 && c < n; c += THREADS)
      out[c] = from_float<bf16>(0);
    return;
  }
  uint32_t room = shared_address(shared), full = shared_address(barriers), free = full + 8 * STAGES;
  uint32_t begin, end;
  latent_range(a, a.batch.token_position[token] + 1, split, &begin, &end);
  if (threadIdx.x == 0) {
    for (uint32_t s = 0; s < STAGES; s++) {
      barrier_init(full + 8 * s, 1);
      barrier_init(free + 8 * s, WARPS);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  if (threadIdx.x < CONSUMERS)
    load_query_rows(a, token, first_head, room + QUERIES_AT);
  __syncthreads();
  if (threadIdx.x >= CONSUMERS) {
    page_reader pages = open_pages(a.kv, a.tables, a.batch.seq_slot[seq], 0, sizeof(bf16));
    bring_rows(pages, begin, end, room, full, free);
    return;
  }
  latent_consumer c = {};
  c.lane = threadIdx.x % 32;
  c.warp = threadIdx.x / 32;
  c.g = c.lane / 4;
  c.t = c.lane % 4;
  c.top[0] = c.top[1] = -INFINITY;
  consume_rows(c, a, begin, end, room, (float *)(shared + SCORES_AT), full, free);
  c.store(a, token, seq, first_head, split);
}

/* ---------------------------------------------------------------- launch */

bool
oct_attend_latent_can(const oct_cuda_queue *queue, const attend_args &a, oct_cuda_type type) {
  return queue->capability >= 90 && type == OCT_CUDA_BF16 && a.kv.type == OCT_CUDA_BF16 &&
         a.kv.k_scale == NULL && a.kv.width == WIDTH && a.value_width == LORA &&
         (uintptr_t)a.kv.base % 16 == 0 && a.kv.page_bytes % 16 == 0;
}

int
oct_attend_latent(const oct_cuda_queue *queue, const attend_args &a) {
  dim3 grid(a.batch.n_tokens, ceil_div(a.n_heads, HEADS), a.n_splits);
  int error = launch_large(queue, attend_latent, grid, dim3(THREADS), ROOM, a);
  if (error == OCT_CUDA_OK && a.n_splits > 1)
    error = oct_attend_join(queue, a);
  return error;
}
