/* What sampling and log probabilities share: a block's scans over a row, and places in the order
 * "likeliest first, of equals the lower token first".
 *
 * The vocabulary is never sorted. A place is found by the bits of the probability, which for
 * numbers that are not negative order as the numbers do: a histogram of the top bits tells in which
 * bin the place lies, then those of the next bits within that bin, until the value is known; ties
 * are counted by token. */
#ifndef OCT_KERNELS_CUDA_SAMPLE_CUH
#define OCT_KERNELS_CUDA_SAMPLE_CUH

#include "kernels/cuda/common.cuh"

#define THREADS 1024
#define BINS    2048
#define LEVELS  3    /* of 11, 11 and 10 bits */
#define SORTED  2048 /* candidates of a cut that are sorted, at most; a power of two */

struct candidate {
  uint32_t key, token;
};

struct sample_room {
  union {
    struct {
      uint32_t counts[BINS];
      double masses[BINS];
    };
    candidate sorted[SORTED];
  };
  double scan[32];
  uint32_t scan_counts[32];
  float floats[32];
  uint32_t words[32];
  uint32_t found, flag;
  double mass;
};

/* ---------------------------------------------------------------- block-wide scans */

/* The sum of x over the threads before this one; *total: of all. */
OCT_DEVICE double
scan_masses(sample_room &room, double x, double *total) {
  uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  double until = x;
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    double before = __shfl_up_sync(0xffffffffu, until, d);
    until += lane >= d ? before : 0;
  }
  __syncthreads();
  if (lane == 31)
    room.scan[warp] = until;
  __syncthreads();
  double base = 0, all = 0;
  for (uint32_t w = 0; w < THREADS / 32; w++) {
    base += w < warp ? room.scan[w] : 0;
    all += room.scan[w];
  }
  *total = all;
  return base + until - x;
}

OCT_DEVICE uint32_t
scan_counts(sample_room &room, uint32_t x, uint32_t *total) {
  uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, until = x;
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    uint32_t before = __shfl_up_sync(0xffffffffu, until, d);
    until += lane >= d ? before : 0;
  }
  __syncthreads();
  if (lane == 31)
    room.scan_counts[warp] = until;
  __syncthreads();
  uint32_t base = 0, all = 0;
  for (uint32_t w = 0; w < THREADS / 32; w++) {
    base += w < warp ? room.scan_counts[w] : 0;
    all += room.scan_counts[w];
  }
  *total = all;
  return base + until - x;
}

/* ---------------------------------------------------------------- places in the order */

/* The element at a place: its key, and what lies before all elements of that key. */
struct place {
  uint32_t key, before;
  double mass_before;
};

enum goal { GOAL_COUNT, GOAL_REACH, GOAL_EXCEED };

/* Whether a run that ends at (count, mass) contains the place. */
OCT_DEVICE bool
contains(goal g, uint32_t count, double mass, double target) {
  return g == GOAL_COUNT ? count >= target : g == GOAL_REACH ? mass >= target : mass > target;
}

/* Finds the bin, from the highest down, in which the goal is met; the last one that has anything
 * when it never is. All threads get *at with its `before`s moved on, and the bin. */
OCT_DEVICE uint32_t
find_bin(sample_room &room, goal g, double target, place *at) {
  constexpr uint32_t PER = BINS / THREADS;
  uint32_t first = BINS - 1 - threadIdx.x * PER, count = 0, all;
  double mass = 0, all_mass;
#pragma unroll
  for (uint32_t i = 0; i < PER; i++) {
    count += room.counts[first - i];
    mass += room.masses[first - i];
  }
  uint32_t before = at->before + scan_counts(room, count, &all);
  double mass_before = at->mass_before + scan_masses(room, mass, &all_mass);
  if (threadIdx.x == 0) {
    room.found = THREADS;
    room.flag = 0;
  }
  __syncthreads();
  if (count > 0) {
    atomicMax(&room.flag, threadIdx.x); /* the last with anything */
    if (contains(g, before + count, mass_before + mass, target))
      atomicMin(&room.found, threadIdx.x);
  }
  __syncthreads();
  uint32_t owner = room.found < THREADS ? room.found : room.flag;
  __syncthreads();
  if (threadIdx.x == owner) {
    uint32_t bin = first, last = first;
    for (uint32_t i = 0; i < PER; i++) {
      uint32_t b = first - i;
      if (room.counts[b] == 0)
        continue;
      last = b;
      if (contains(g, before + room.counts[b], mass_before + room.masses[b], target))
        break;
      /* Not in this bin, unless no later one has anything. */
      bool more = false;
      for (uint32_t k = i + 1; k < PER; k++)
        more |= room.counts[first - k] > 0;
      if (!more)
        break;
      before += room.counts[b];
      mass_before += room.masses[b];
    }
    bin = last;
    room.found = bin;
    room.flag = before;
    room.mass = mass_before;
  }
  __syncthreads();
  at->before = room.flag;
  at->mass_before = room.mass;
  uint32_t bin = room.found;
  __syncthreads();
  return bin;
}

/* The histogram of some bits of the keys that agree with `known` of `key_so_far`. key(i) of element
 * i, or false when it takes no part; mass(key). */
template <typename K, typename M>
OCT_DEVICE void
count_bins(sample_room &room, uint32_t n, K key, M mass, bool by_mass, uint32_t key_so_far,
           uint32_t known, uint32_t shift, uint32_t bits) {
  for (uint32_t i = threadIdx.x; i < BINS; i += THREADS) {
    room.counts[i] = 0;
    room.masses[i] = 0;
  }
  __syncthreads();
#pragma unroll 4
  for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
    uint32_t k;
    if (!key(i, &k) || (k & known) != (key_so_far & known))
      continue;
    uint32_t bin = k >> shift & ((1u << bits) - 1);
    atomicAdd(&room.counts[bin], 1u);
    if (by_mass)
      atomicAdd(&room.masses[bin], mass(k));
  }
  __syncthreads();
}

template <typename K, typename M>
OCT_DEVICE place
find_place(sample_room &room, uint32_t n, K key, M mass, goal g, double target) {
  constexpr uint32_t shifts[LEVELS] = {21, 10, 0}, bits[LEVELS] = {11, 11, 10};
  place at = {0, 0, 0};
  uint32_t known = 0;
#pragma unroll
  for (int level = 0; level < LEVELS; level++) {
    count_bins(room, n, key, mass, g != GOAL_COUNT, at.key, known, shifts[level], bits[level]);
    uint32_t bin = find_bin(room, g, target, &at);
    at.key |= bin << shifts[level];
    known |= ((1u << bits[level]) - 1) << shifts[level];
  }
  return at;
}

/* How many elements of key `at.key`, one at least, the goal needs. */
OCT_DEVICE uint32_t
ties_needed(const place &at, double each, uint32_t ties, goal g, double target) {
  if (g == GOAL_COUNT)
    return (uint32_t)target - at.before;
  double more = (target - at.mass_before) / each;
  uint32_t n = more > 0 ? more < ties ? (uint32_t)ceil(more) : ties : 1;
  /* The quotient is rounded: settle it by the sums themselves. */
  while (n > 1 && contains(g, 0, at.mass_before + (n - 1) * each, target))
    n--;
  while (n < ties && !contains(g, 0, at.mass_before + n * each, target))
    n++;
  return n > 0 ? n : 1;
}

template <typename K>
OCT_DEVICE uint32_t
count_ties(sample_room &room, uint32_t n, K key, uint32_t wanted) {
  uint32_t mine = 0, all;
  for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
    uint32_t k;
    mine += key(i, &k) && k == wanted;
  }
  scan_counts(room, mine, &all);
  return all;
}

/* The nth (from 1) element of that key by token. */
template <typename K>
OCT_DEVICE uint32_t
find_tie(sample_room &room, uint32_t n, K key, uint32_t wanted, uint32_t nth) {
  uint32_t per = (n + THREADS - 1) / THREADS, first = threadIdx.x * per, mine = 0, all, k;
  uint32_t end = min(n, first + per);
  for (uint32_t i = first; i < end; i++)
    mine += key(i, &k) && k == wanted;
  uint32_t before = scan_counts(room, mine, &all);
  if (before < nth && nth <= before + mine)
    for (uint32_t i = first; i < end; i++)
      if (key(i, &k) && k == wanted && ++before == nth)
        room.found = i;
  __syncthreads();
  return room.found;
}

/* ---------------------------------------------------------------- the best */

struct best {
  float logit;
  uint32_t token;
};

/* Of the block; the lower token of equals. */
OCT_DEVICE best
block_best(sample_room &room, best b) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2) {
    float logit = __shfl_xor_sync(0xffffffffu, b.logit, d);
    uint32_t token = __shfl_xor_sync(0xffffffffu, b.token, d);
    if (logit > b.logit || (logit == b.logit && token < b.token))
      b = {logit, token};
  }
  __syncthreads();
  if (threadIdx.x % 32 == 0) {
    room.floats[threadIdx.x / 32] = b.logit;
    room.words[threadIdx.x / 32] = b.token;
  }
  __syncthreads();
  b = {room.floats[0], room.words[0]};
  for (int w = 1; w < THREADS / 32; w++)
    if (room.floats[w] > b.logit || (room.floats[w] == b.logit && room.words[w] < b.token))
      b = {room.floats[w], room.words[w]};
  return b;
}

#endif
