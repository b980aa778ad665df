/* Latent attention of 512 + 64 on Hopper: what a launch has, how its blocks share the work out, and
 * where parts of a context go until they are joined.
 *
 * A group is what has keys in common: a sequence's tokens of a batch, or one token where each sees
 * another number of the keys that are here. Its rows are tokens by heads, heads innermost; with
 * members, the heads of all members. A run is N rows. */
#ifndef OCT_KERNELS_CUDA_LATENT_CUH
#define OCT_KERNELS_CUDA_LATENT_CUH

#include "kernels/cuda/attend.cuh"
#include "kernels/cuda/units.cuh"

#define LATENT_LORA  512
#define LATENT_WIDTH 576
#define LATENT_KEYS  64 /* of a unit */
#define LATENT_ROWS  64 /* of a run at most */
#define LATENT_WHOLE OCT_CUDA_NONE
/* Units of keys that beginning a group takes as long as. */
#define LATENT_BEGIN 8

enum latent_deal {
  LATENT_SHARES, /* equal shares of all contexts, each for all runs of its groups */
  LATENT_CHUNKS, /* parts of fixed_chunk() keys, whatever the batch is */
  LATENT_TILES,  /* a run after the other, whole: prompts */
};

struct latent_args {
  attend_args a; /* of `first_seq` and n_seqs: groups */
  latent_deal deal;
  uint32_t rows; /* of a group, at most */
  uint32_t runs; /* of a group, at most; all groups' in LATENT_TILES */
  uint32_t cost; /* of LATENT_SHARES: LATENT_BEGIN, or 0 where shares are small */
};

/* A group's share of a batch. */
struct latent_group {
  uint32_t first_token, n_tokens, length; /* keys that its last token sees */
};

OCT_DEVICE latent_group
find_group(const latent_args &h, uint32_t group) {
  const oct_cuda_batch &b = h.a.batch;
  uint32_t seq = h.a.first_seq + group;
  if (h.a.visible != NULL)
    return {seq, 1, h.a.visible[seq]};
  uint32_t first = b.seq_first[seq], n = b.seq_first[seq + 1] - first;
  return {first, n, n > 0 ? b.seq_start[seq] + n : 0};
}

OCT_DEVICE uint32_t
latent_units(const latent_args &h, uint32_t group) {
  return (find_group(h, group).length + LATENT_KEYS - 1) / LATENT_KEYS;
}

/* Those, and as many as beginning the group takes as long as, which come first. */
OCT_DEVICE uint32_t
latent_cost(const latent_args &h, uint32_t group) {
  uint32_t units = latent_units(h, group);
  return units > 0 ? h.cost + units : 0;
}

/* How many shares each group has of its own, where such shares end no later than equal shares of
 * all contexts, some of which begin a second group; 0: they do not. all: what groups cost together.
 */
OCT_DEVICE uint32_t
own_shares(const latent_args &h, uint32_t shares, uint32_t all, uint32_t longest) {
  uint32_t n = h.a.n_seqs, each = shares / n;
  if (each == 0)
    return 0;
  uint64_t equal = (uint64_t)all + (LATENT_BEGIN - h.cost) * n;
  return (uint64_t)((longest + each - 1) / each) * shares <= equal ? each : 0;
}

OCT_DEVICE uint32_t
rows_of(const latent_args &h, const latent_group &g) {
  return g.n_tokens * h.a.n_heads;
}

/* ---------------------------------------------------------------- parts */

/* Parts of n rows: [row, 512] and then top and sum of each. */
OCT_DEVICE float *
latent_part(const latent_args &h, uint32_t n, uint32_t place) {
  return h.a.partial + (size_t)place * n * (LATENT_LORA + 2);
}

/* A block has a place for a part that a group begins with and one for another. */
OCT_DEVICE uint32_t
latent_place(const latent_args &h, uint32_t block, uint32_t run, bool begins) {
  return 2 * (block * h.runs + run) + (begins ? 1 : 0);
}

/* The token and head of a group's row r. */
struct latent_row {
  uint32_t token, head;
};

OCT_DEVICE latent_row
find_row(const latent_args &h, const latent_group &g, uint32_t r) {
  return {g.first_token + r / h.a.n_heads, r % h.a.n_heads};
}

/* ---------------------------------------------------------------- a block's works in turn */

struct latent_item {
  latent_group group;
  uint32_t slot, run, begin, end; /* units */
  uint32_t length;                /* of the context, as the last of the run's rows sees it */
  uint32_t place;                 /* of the part that this is, or LATENT_WHOLE */
};

struct latent_cursor {
  share s;
  uint32_t unit, next, run; /* next: tiles' */
  uint32_t cost;            /* of beginning a group, in units */

  /* All threads; room: W + 3 words of shared memory. */
  template <int W> __device__ void open(const latent_args &h, uint32_t *room) {
    next = blockIdx.x;
    run = blockIdx.x % h.runs;
    if (h.deal != LATENT_SHARES) {
      __syncthreads();
      return;
    }
    uint32_t block = blockIdx.x / h.runs, blocks = gridDim.x / h.runs;
    find_share<W>(
        h.a.n_seqs, 1, block, blocks, [&](uint32_t i) { return latent_cost(h, i); }, room, &s);
    cost = h.cost;
    if (h.a.n_seqs <= blocks) {
      uint32_t each = own_shares(h, blocks, s.all, find_longest<W>(h, room));
      if (each > 0)
        take_own(h, block, each);
    }
    unit = s.begin;
  }

  /* Units of the longest group. */
  template <int W> static __device__ uint32_t find_longest(const latent_args &h, uint32_t *room) {
    uint32_t longest = 0;
    for (uint32_t i = threadIdx.x; i < h.a.n_seqs; i += 32 * W)
      longest = max(longest, latent_units(h, i));
    longest = __reduce_max_sync(0xffffffffu, longest);
    if (threadIdx.x % 32 == 0)
      room[threadIdx.x / 32] = longest;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < W; i++)
      longest = max(longest, room[i]);
    return longest;
  }

  /* A part of one group, each of which has `each` blocks. */
  __device__ void take_own(const latent_args &h, uint32_t block, uint32_t each) {
    uint32_t part = block % each, units = 0;
    s.seq = block / each;
    if (s.seq < h.a.n_seqs)
      units = latent_units(h, s.seq);
    each = max(1u, min(each, units));
    cost = 0;
    s.seq_begin = 0;
    s.each = units;
    s.begin = units * min(part, each) / each;
    s.end = units * min(part + 1, each) / each;
  }

  __device__ bool next_share(const latent_args &h, latent_item *w) {
    for (; unit < s.end;) {
      while (unit >= s.seq_begin + s.each) {
        s.seq_begin += s.each;
        s.each = latent_cost(h, ++s.seq);
      }
      uint32_t at = unit - s.seq_begin, n = min(s.each - at, s.end - unit);
      unit += n;
      if (at + n <= cost)
        continue;
      w->group = find_group(h, s.seq);
      w->run = run;
      w->begin = max(at, cost) - cost;
      w->end = at + n - cost;
      w->length = w->group.length;
      w->slot = decode_slot(h.a, h.a.first_seq + s.seq);
      w->place = w->begin == 0 && at + n == s.each
                     ? LATENT_WHOLE
                     : latent_place(h, blockIdx.x / h.runs, run, w->begin == 0);
      return true;
    }
    return false;
  }

  __device__ bool next_chunk(const latent_args &h, latent_item *w) {
    if (next == OCT_CUDA_NONE)
      return false;
    uint32_t split = next % h.a.n_splits, at = next / h.a.n_splits, group = at / h.runs;
    w->group = find_group(h, group);
    uint32_t units = fixed_chunk(h.a, w->group.length) / LATENT_KEYS, all = latent_units(h, group);
    w->run = at % h.runs;
    w->begin = split * units;
    w->end = min(all, w->begin + units);
    w->length = w->group.length;
    w->place = all <= units ? LATENT_WHOLE : next;
    next = OCT_CUDA_NONE;
    if (w->begin >= w->end) /* a token that sees nothing has no slot */
      return false;
    w->slot = decode_slot(h.a, h.a.first_seq + group);
    return true;
  }

  /* The last see most, and come first. */
  template <int N> __device__ bool next_tile(const latent_args &h, latent_item *w) {
    for (; next < h.runs; next += gridDim.x) {
      uint32_t tile = h.runs - 1 - next, seq;
      if (!find_tile<N>(h.a, &tile, &seq))
        continue;
      w->group = find_group(h, seq - h.a.first_seq);
      uint32_t last = min(rows_of(h, w->group), (tile + 1) * N) - 1, hidden;
      hidden = w->group.n_tokens - 1 - last / (h.a.n_heads);
      w->run = tile;
      w->begin = 0;
      w->length = w->group.length - hidden;
      w->end = (w->length + LATENT_KEYS - 1) / LATENT_KEYS;
      w->slot = decode_slot(h.a, seq);
      w->place = LATENT_WHOLE;
      next += gridDim.x;
      return true;
    }
    return false;
  }

  /* False: there is none any more. Every warp finds it for itself. */
  template <int N> __device__ bool find_next(const latent_args &h, latent_item *w) {
    for (;;) {
      bool found = h.deal == LATENT_SHARES   ? next_share(h, w)
                   : h.deal == LATENT_CHUNKS ? next_chunk(h, w)
                                             : next_tile<N>(h, w);
      if (!found || w->run * N < rows_of(h, w->group))
        return found;
    }
  }
};

/* ---------------------------------------------------------------- a block's shared memory */

#define KEYS      LATENT_KEYS
#define RUN_BYTES (KEYS * 128)
#define SHARED    (227 * 1024)

/* Barriers of threads; of GROUP and VOTES one for each group. */
enum { EVERYBODY = 1, GROUP = 2, VOTES = 5 };

/* Where things are in shared memory, and who does what. */
template <typename C, int N> struct shape {
  static constexpr bool COPIES = sizeof(C) == 2;
  static constexpr bool SHARED_SUMS = N > 32; /* both groups add up every tile, half of it each */
  static constexpr bool CODES = !COPIES && N == 16; /* e4m3 is multiplied as it is */
  static constexpr uint32_t GROUPS = 2;             /* of four warps */
  /* Registers of a thread that brings, and of one that takes. */
  static constexpr int BRINGS = !COPIES && (N == 32 || N == 64) ? 40 : 56, TAKES = 252 - BRINGS / 2;
  static constexpr uint32_t CONSUMERS = 128 * GROUPS, THREADS = CONSUMERS + 128;
  static constexpr int TILES = SHARED_SUMS ? 4 : 8; /* of 64 dimensions that a group adds up */
  static constexpr int RUNS = COPIES ? 9 : 5;       /* of a tile; the last has what is no value */
  static constexpr int HALF = (RUNS - 1) / 2;
  /* Powers of two that weights may reach, and that the largest has when a base is set. */
  static constexpr float ABOVE = CODES ? 8.75f : 15, LIFT = CODES ? 6 : 7;
  /* A run of queries: rows of 128 bytes; of CODES the first numbers of all rows, then the second.
   */
  static constexpr uint32_t QUERIES = CODES ? 2 * N * 128 : N * 128;
  static constexpr uint32_t WEIGHTS_AT = (CODES ? 5 : 9) * QUERIES, WEIGHTS = N * 128;
  static constexpr uint32_t RING_AT = WEIGHTS_AT + GROUPS * WEIGHTS;
  /* Words: sums of warps, bases, what sums are kept of, limits, what scores are multiplied by;
   * whether bases were raised. */
  static constexpr uint32_t BASES_AT = 4 * N * GROUPS, KEEPS_AT = BASES_AT + N * GROUPS;
  static constexpr uint32_t LIMITS_AT = KEEPS_AT + N * GROUPS, SCALES_AT = LIMITS_AT + N;
  static constexpr uint32_t RAISED_AT = SCALES_AT + N;
  static constexpr uint32_t SMALL = 4 * (RAISED_AT + 4);
  static constexpr uint32_t ITEM = 64; /* two of them, and barriers for them and for weights */
  static constexpr uint32_t MORE = 2 * 16 + 3 * 16;
  static constexpr uint32_t PLACES =
      (SHARED - RING_AT - SMALL - 2 * ITEM - MORE) / (RUN_BYTES + 16);
  static constexpr uint32_t SMALL_AT = RING_AT + PLACES * RUN_BYTES;
  static constexpr uint32_t ITEMS_AT = SMALL_AT + SMALL, BARRIERS_AT = ITEMS_AT + 2 * ITEM;
  static constexpr uint32_t BYTES = BARRIERS_AT + 16 * PLACES + MORE;
  static_assert(sizeof(latent_item) <= ITEM, "a work has no room");

  /* The run that comes at place j of a tile: what is no value is done with first. */
  static __device__ constexpr int run_at(int j) {
    return j == 0 ? RUNS - 1 : j - 1;
  }
  static __device__ constexpr int place_of_run(int run) {
    return run == RUNS - 1 ? 0 : run + 1;
  }
};

/* Base of the ring's barriers, and the place that the next tile begins at. */
template <typename S> struct ring {
  uint32_t room, barriers, place, phase;

  __device__ void find(int j, uint32_t *at, uint32_t *parity) const {
    uint32_t p = place + j;
    bool over = p >= S::PLACES;
    *at = over ? p - S::PLACES : p;
    *parity = phase ^ (over ? 1 : 0);
  }
  __device__ void skip() {
    place += S::RUNS;
    if (place >= S::PLACES) {
      place -= S::PLACES;
      phase ^= 1;
    }
  }
  __device__ uint32_t full(uint32_t at) const {
    return barriers + 16 * at;
  }
  __device__ uint32_t free(uint32_t at) const {
    return barriers + 16 * at + 8;
  }
  /* Of a block's works, number `nth`. */
  __device__ uint32_t item_full(uint32_t nth) const {
    return full(S::PLACES + nth % 2);
  }
  __device__ uint32_t item_free(uint32_t nth) const {
    return free(S::PLACES + nth % 2);
  }
  /* Of weights in shared memory, and of the bases that they were made with. */
  __device__ uint32_t weights_full(uint32_t which) const {
    return full(S::PLACES + 2 + which);
  }
  __device__ uint32_t weights_free(uint32_t which) const {
    return free(S::PLACES + 2 + which);
  }
  __device__ uint32_t bases_known(uint32_t which) const {
    return barriers + 16 * (S::PLACES + 4) + 8 * which;
  }
};

/* ---------------------------------------------------------------- the kernels' launchers */

/* n rows of a run: 16, 32, 48 or LATENT_ROWS. */
int oct_latent_hopper(const oct_cuda_queue *queue, const latent_args &args, uint32_t n,
                      uint32_t blocks);
/* What that leaves in parts. */
int oct_latent_join(const oct_cuda_queue *queue, const latent_args &args, uint32_t n);

#endif
