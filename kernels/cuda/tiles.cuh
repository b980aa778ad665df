/* What the kernels of runs of query tokens share on Hopper: tiles of 128 rows by 128 keys, what two
 * groups of four warps do with them, and where they are.
 *
 * A group multiplies its 64 rows by the keys of a tile while the values of the tile before are
 * multiplied; between the two stands the softmax, and meanwhile the other group multiplies. Keys
 * are taken from the last tile down, so that those with a mask come first. */
#ifndef OCT_KERNELS_CUDA_TILES_CUH
#define OCT_KERNELS_CUDA_TILES_CUH

#include "kernels/cuda/attend.cuh"
#include "kernels/cuda/hopper.cuh"

#define ROWS      128
#define KEYS      128
#define STAGES    2
#define CONSUMERS 256
#define THREADS   (CONSUMERS + 128)
#define TURN      4 /* the first of two named barriers */

struct hopper_args {
  attend_args a;
  uint32_t boxes;    /* copies of a tile of keys: pages by runs of 64 dimensions; 32 at most */
  uint32_t tiles;    /* of rows, at most */
  bool copies_query; /* a group divides the rows: queries come by the copy engine too */
  /* Of contexts that come in parts: [token, head, 2 + width] float32, what earlier parts came to;
   * NULL: the context is whole. */
  float *state;
  bool begins, ends; /* there were none; there are none to come: out is written */
  uint32_t first_tile, n_tiles, first_kv, n_kv; /* of a launch of parts: tiles of rows, KV heads */
};

/* Where things are in shared memory: keys of KD dimensions, values of VD, queries of PLACES works.
 */
template <int KD, int VD, int PLACES> struct tile_layout {
  static constexpr int KEY_WIDTH = KD, VALUE_WIDTH = VD, QUERY_PLACES = PLACES;
  static constexpr uint32_t RUN = KEYS * 128; /* 64 dimensions of a tile's keys */
  static constexpr uint32_t KEY_TILE = KD / 64 * RUN, VALUE_TILE = VD / 64 * RUN;
  static constexpr uint32_t QUERIES = ROWS * KD * 2;
  static constexpr uint32_t KEYS_AT = PLACES * QUERIES, VALUES_AT = KEYS_AT + STAGES * KEY_TILE;
  static constexpr uint32_t BARRIERS_AT = VALUES_AT + STAGES * VALUE_TILE;
  static constexpr uint32_t WORKS_AT = BARRIERS_AT + 8 * (4 * STAGES + 4);
  static constexpr uint32_t BYTES = WORKS_AT + 2 * 64;

  /* 16 bytes at dimension 8 c of a row, of a matrix of 128 rows. */
  static __device__ uint32_t place(uint32_t row, uint32_t c) {
    return c / 8 * (128 * 128) + row * 128 + 16 * (c % 8 ^ row % 8);
  }
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* Barriers of 8 bytes: keys full, values full, keys free, values free, STAGES of each; queries
 * full, queries free, 2 of each. */
struct barriers {
  uint32_t base;
  __device__ uint32_t keys_full(uint32_t s) const {
    return base + 8 * s;
  }
  __device__ uint32_t values_full(uint32_t s) const {
    return base + 8 * (STAGES + s);
  }
  __device__ uint32_t keys_free(uint32_t s) const {
    return base + 8 * (2 * STAGES + s);
  }
  __device__ uint32_t values_free(uint32_t s) const {
    return base + 8 * (3 * STAGES + s);
  }
  __device__ uint32_t queries_full(uint32_t s) const {
    return base + 8 * (4 * STAGES + s);
  }
  __device__ uint32_t queries_free(uint32_t s) const {
    return base + 8 * (4 * STAGES + 2 + s);
  }
};

/* The barriers' beginning, by one thread: `bringers` arrive at a tile of keys or values. */
OCT_DEVICE void
open_barriers(const barriers &bars, uint32_t bringers) {
  for (uint32_t s = 0; s < STAGES; s++) {
    barrier_init(bars.keys_full(s), bringers);
    barrier_init(bars.values_full(s), bringers);
    barrier_init(bars.keys_free(s), arrivals_of(CONSUMERS / 32));
    barrier_init(bars.values_free(s), arrivals_of(CONSUMERS / 32));
  }
  for (uint32_t s = 0; s < 2; s++) {
    barrier_init(bars.queries_full(s), 1);
    barrier_init(bars.queries_free(s), arrivals_of(CONSUMERS / 32));
  }
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/* What a block works on at a time. */
struct work {
  uint32_t seq, kv_head, first_token, start, first_row, n_rows;
  uint32_t low, high; /* positions of the first and the last row */
  uint32_t first_tile,
      tiles; /* tiles [first_tile, first_tile + tiles) of the context; 0: the end */
  /* Where contexts are cut: which part this is, or WHOLE; keys of its last tile that are seen. */
  uint32_t part, last_keys;
};

#define WHOLE OCT_CUDA_NONE

/* A part of what a row comes to: elements, top and sum, in runs of 16 bytes. */
OCT_DEVICE float *
part_of(const hopper_args &h, uint32_t token, uint32_t head, uint32_t part) {
  const attend_args &a = h.a;
  uint32_t heads = h.n_kv * a.group, own = head - h.first_kv * a.group;
  size_t at = ((size_t)(token % a.room_tokens) * heads + own) * a.n_splits + part;
  return a.partial + at * (a.value_width + 4);
}

/* ---------------------------------------------------------------- multiplying */

/* A group of four warps with 64 rows; a thread has of rows g and g + 8 of its warp's 16 the columns
 * 8 j + 2t and the next, as d[4 j], d[4 j + 1] and d[4 j + 2], d[4 j + 3]. */
template <typename L> struct consumer {
  static constexpr int KD = L::KEY_WIDTH, D = L::VALUE_WIDTH;
  float scores[KEYS / 2], out[D / 2], top[2], sum[2];
  uint32_t weights[KEYS / 16][4];
  uint32_t group, warp, g, t, row[2], position[2];

  __device__ void open(const attend_args &a, const work &w) {
    group = threadIdx.x / 128;
    warp = threadIdx.x % 128 / 32;
    g = threadIdx.x % 32 / 4;
    t = threadIdx.x % 4;
#pragma unroll
    for (int r = 0; r < 2; r++) {
      row[r] = w.first_row + 64 * group + 16 * warp + g + 8 * r;
      position[r] = min(w.high, w.start + min(row[r], w.n_rows - 1) / a.group);
      top[r] = -INFINITY;
      sum[r] = 0;
    }
  }

  /* The group's 64 rows of queries to shared memory, where the copy engine cannot. */
  __device__ void load_queries(const attend_args &a, const work &w, uint32_t queries) {
    for (uint32_t i = threadIdx.x % 128; i < 64 * (KD / 8); i += 128) {
      uint32_t r = i / (KD / 8), c = i % (KD / 8), at = w.first_row + 64 * group + r;
      uint4 v = make_uint4(0, 0, 0, 0);
      if (at < w.n_rows)
        v = *(const uint4 *)((const bf16 *)a.q + (w.first_token + at / a.group) * a.q_stride +
                             (size_t)(w.kv_head * a.group + at % a.group) * KD + 8 * c);
      asm volatile(
          "st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(queries + L::place(64 * group + r, c)),
          "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w));
    }
    fence_async();
    named_barrier(1 + group, 128);
  }

  __device__ void multiply_keys(uint32_t queries, uint32_t keys) {
    wgmma_begin();
#pragma unroll
    for (int k = 0; k < KD / 16; k++)
      wgmma_product(
          scores,
          swizzled_matrix(queries + k / 4 * (ROWS * 128) + group * (64 * 128) + k % 4 * 32, 16),
          swizzled_matrix(keys + k / 4 * L::RUN + k % 4 * 32, 16), k > 0);
    wgmma_commit();
  }

  __device__ void multiply_values(uint32_t values) {
    wgmma_begin();
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++)
      wgmma_values(out, weights[k], swizzled_matrix(values + k * 16 * 128, L::RUN), 1);
    wgmma_commit();
  }

  __device__ void mask(const attend_args &a, uint32_t first_key) {
#pragma unroll
    for (int i = 0; i < KEYS / 2; i++) {
      uint32_t key = first_key + i / 4 * 8 + 2 * t + i % 2, seer = position[i % 4 / 2];
      if (key > seer || (a.window != 0 && key + a.window <= seer))
        scores[i] = -INFINITY;
    }
  }

  /* Scores to weights, in place; what the earlier results have to be multiplied by. */
  __device__ void soften(float scale, float (&keep)[2]) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      float best = -INFINITY;
#pragma unroll
      for (int j = 0; j < KEYS / 8; j++)
        best = fmaxf(best, fmaxf(scores[4 * j + 2 * r], scores[4 * j + 2 * r + 1]));
      best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 1));
      best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 2)) * scale;
      best = fmaxf(best, top[r]);
      float base = best == -INFINITY ? 0 : best, total = 0;
      keep[r] = power2(top[r] - base);
      top[r] = best;
#pragma unroll
      for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
        for (int i = 4 * j + 2 * r; i < 4 * j + 2 * r + 2; i++) {
          scores[i] = power2(fmaf(scores[i], scale, -base));
          total += scores[i];
        }
      sum[r] = sum[r] * keep[r] + total;
    }
  }

  __device__ void pack_weights() {
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++)
#pragma unroll
      for (int i = 0; i < 4; i++)
        weights[k][i] = pack<bf16>(scores[8 * k + 4 * (i / 2) + 2 * (i % 2)],
                                   scores[8 * k + 4 * (i / 2) + 2 * (i % 2) + 1]);
  }

  __device__ void rescale(const float (&keep)[2]) {
#pragma unroll
    for (int i = 0; i < D / 2; i++)
      out[i] *= keep[i % 4 / 2];
  }

  /* Earlier parts of a row's context join; what stays for later ones. */
  __device__ void carry(const hopper_args &h, uint32_t token, uint32_t head, int r,
                        float *sum_all) {
    float *state = h.state + ((size_t)token * h.a.n_heads + head) * (D + 2);
    float keep = 1, old = 0;
    if (!h.begins) {
      float before = state[0], best = fmaxf(before, top[r]), base = best == -INFINITY ? 0 : best;
      keep = power2(top[r] - base);
      old = power2(before - base);
      *sum_all = *sum_all * keep + state[1] * old;
      top[r] = best;
    }
#pragma unroll
    for (int j = 0; j < D / 8; j++)
#pragma unroll
      for (int i = 0; i < 2; i++) {
        float *at = state + 2 + 8 * j + 2 * t + i, x = out[4 * j + 2 * r + i] * keep;
        x = h.begins ? x : x + *at * old;
        out[4 * j + 2 * r + i] = x;
        if (!h.ends)
          *at = x;
      }
    __syncwarp(0xfu << (threadIdx.x % 32 & ~3u));
    if (t == 0 && !h.ends) {
      state[0] = top[r];
      state[1] = *sum_all;
    }
  }

  /* A part of a row's context, to be joined with the others. */
  __device__ void leave(const hopper_args &h, const work &w, uint32_t token, uint32_t head, int r,
                        float sum_all) {
    float *to = part_of(h, token, head, w.part);
#pragma unroll
    for (int j = 0; j < D / 8; j++)
      store_floats<float, 2>(to + 8 * j + 2 * t, {out[4 * j + 2 * r], out[4 * j + 2 * r + 1]});
    if (t == 0)
      store_floats<float, 2>(to + D, {top[r], sum_all});
  }

  template <bool PARTS> __device__ void store(const hopper_args &h, const work &w) {
    const attend_args &a = h.a;
#pragma unroll
    for (int r = 0; r < 2; r++) {
      float s = sum[r];
      s += __shfl_xor_sync(0xffffffffu, s, 1);
      s += __shfl_xor_sync(0xffffffffu, s, 2);
      if (row[r] >= w.n_rows)
        continue;
      uint32_t head = w.kv_head * a.group + row[r] % a.group;
      uint32_t token = w.first_token + row[r] / a.group;
      if constexpr (L::QUERY_PLACES == 1)
        if (h.state != NULL) {
          carry(h, token, head, r, &s);
          if (!h.ends)
            continue;
        }
      if (PARTS && w.part != WHOLE) {
        leave(h, w, token, head, r, s);
        continue;
      }
      float factor = finish_softmax(top[r], s, a.sinks, head) * value_scale(a, w.kv_head);
      bf16 *to = (bf16 *)a.out + token * a.out_stride + (size_t)head * D;
#pragma unroll
      for (int j = 0; j < D / 8; j++)
        *(uint32_t *)(to + 8 * j + 2 * t) =
            pack<bf16>(out[4 * j + 2 * r] * factor, out[4 * j + 2 * r + 1] * factor);
    }
  }
};

/* Values behind the sequence's last may be anything, and zero times anything may be no number. */
template <typename L>
OCT_DEVICE void
clear_values(uint32_t values, uint32_t from) {
  constexpr uint32_t D = L::VALUE_WIDTH;
  for (uint32_t i = threadIdx.x; i < (KEYS - from) * (D / 8); i += CONSUMERS)
    asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(
                     values + L::place(from + i / (D / 8), i % (D / 8))),
                 "r"(0));
  fence_async();
  named_barrier(3, CONSUMERS);
}

/* Scores of a tile as softened weights. */
template <typename L>
OCT_DEVICE void
soften_tile(consumer<L> &c, const attend_args &a, const work &w, uint32_t first_key, float scale,
            float (&keep)[2]) {
  if (a.soft_cap > 0)
#pragma unroll
    for (int k = 0; k < KEYS / 2; k++)
      c.scores[k] = cap_score(c.scores[k], scale, a.soft_cap);
  if (first_key + KEYS > w.low + 1 || (a.window != 0 && first_key + a.window <= w.high))
    c.mask(a, first_key);
  c.soften(a.soft_cap > 0 ? 1 : scale, keep);
}

/* One work, whose tiles are number `turn` of the block and on; queries are there. */
template <typename L, bool PARTS>
OCT_DEVICE void
consume_work(const hopper_args &h, const work &w, uint32_t room, uint32_t place,
             const barriers &bars, uint32_t turn) {
  const attend_args &a = h.a;
  uint32_t queries = room + place * L::QUERIES;
  consumer<L> c;
  c.open(a, w);
  if (!h.copies_query)
    c.load_queries(a, w, queries);
  float scale = score_scale(a, w.kv_head), keep[2];
  uint32_t keys = room + L::KEYS_AT, values = room + L::VALUES_AT;
  uint32_t first_key = (w.first_tile + w.tiles - 1) * KEYS, s = turn % STAGES;
  barrier_wait(bars.keys_full(s), turn / STAGES % 2);
  c.multiply_keys(queries, keys + s * L::KEY_TILE);
  wgmma_wait<0>();
  keep_behind(c.scores);
  arrive_by_warp(bars.keys_free(s));
  if (w.tiles == 1)
    arrive_by_warp(bars.queries_free(place));
  soften_tile(c, a, w, first_key, scale, keep);
  c.pack_weights();
  uint32_t last_keys = PARTS ? w.last_keys : (w.high + 1) % KEYS;
  if (last_keys != 0) {
    barrier_wait(bars.values_full(s), turn / STAGES % 2);
    clear_values<L>(values + s * L::VALUE_TILE, last_keys);
  }
#pragma unroll
  for (int i = 0; i < L::VALUE_WIDTH / 2; i++)
    c.out[i] = 0;
  /* The groups take turns: one multiplies while the other softens. */
  if (c.group == 1 && w.tiles > 1)
    named_arrive(TURN, CONSUMERS);
  for (uint32_t i = 1; i < w.tiles; i++) {
    uint32_t before = s, parity = turn / STAGES % 2;
    turn++;
    s = turn % STAGES;
    barrier_wait(bars.keys_full(s), turn / STAGES % 2);
    barrier_wait(bars.values_full(before), parity);
    named_wait(TURN + c.group, CONSUMERS);
    c.multiply_keys(queries, keys + s * L::KEY_TILE);
    c.multiply_values(values + before * L::VALUE_TILE);
    if (c.group == 0 || i + 1 < w.tiles)
      named_arrive(TURN + 1 - c.group, CONSUMERS);
    wgmma_wait<1>();
    keep_behind(c.scores);
    arrive_by_warp(bars.keys_free(s));
    if (i + 1 == w.tiles)
      arrive_by_warp(bars.queries_free(place));
    first_key -= KEYS;
    soften_tile(c, a, w, first_key, scale, keep);
    wgmma_wait<0>();
    keep_behind(c.out);
    arrive_by_warp(bars.values_free(before));
    c.rescale(keep);
    c.pack_weights();
  }
  barrier_wait(bars.values_full(s), turn / STAGES % 2);
  c.multiply_values(values + s * L::VALUE_TILE);
  wgmma_wait<0>();
  keep_behind(c.out);
  arrive_by_warp(bars.values_free(s));
  c.template store<PARTS>(h, w);
}

template <typename L, bool PARTS = false>
OCT_DEVICE void
consume(const hopper_args &h, unsigned char *shared, const barriers &bars) {
  uint32_t room = shared_address(shared), turn = 0;
  for (uint32_t nth = 0;; nth++) {
    uint32_t s = nth % L::QUERY_PLACES;
    barrier_wait(bars.queries_full(s), nth / L::QUERY_PLACES % 2);
    const work w = *(const work *)(shared + L::WORKS_AT + 64 * s);
    if (w.tiles == 0)
      break;
    consume_work<L, PARTS>(h, w, room, s, bars, turn);
    turn += w.tiles;
  }
}

#endif

#endif
