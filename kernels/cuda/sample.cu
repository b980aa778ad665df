/* From logits to tokens: a block per row, with the reference's steps in its order.
 *
 * The vocabulary is never sorted. A place in the order "likeliest first, of equals the lower token
 * first" is found by the bits of the probability, which for numbers that are not negative order as
 * the numbers do: a histogram of the top bits tells in which bin the place lies, then those of the
 * next bits within that bin, until the value is known; ties are counted by token. Top-k looks for a
 * number of candidates, top-p and the draw for a mass. Where the first bits leave few candidates,
 * which is the rule, these alone are sorted. Sums are float64, as the reference's; they are added
 * up in another order. */
#include "kernels/cuda/common.cuh"

#define THREADS  1024
#define BINS     2048
#define LEVELS   3    /* of 11, 11 and 10 bits */
#define SORTED   2048 /* candidates of a cut that are sorted, at most; a power of two */
#define EXCLUDED (-1.0f)

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

/* ---------------------------------------------------------------- the draw */

OCT_DEVICE uint64_t
mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

OCT_DEVICE double
uniform_of(uint64_t seed, uint32_t position) {
  uint64_t bits =
      mix(mix(seed + 0x9e3779b97f4a7c15u) + 0x9e3779b97f4a7c15u * ((uint64_t)position + 1));
  return (double)(bits >> 11) * 0x1p-53;
}

/* By token: the first whose running sum exceeds the share `uniform` of the total. */
OCT_DEVICE uint32_t
draw_in_order(sample_room &room, const float *p, uint32_t n, double uniform) {
  uint32_t per = (n + THREADS - 1) / THREADS, first = threadIdx.x * per;
  uint32_t end = min(n, first + per), last = OCT_CUDA_NONE;
  double mine = 0, total;
  for (uint32_t i = first; i < end; i++)
    if (p[i] > 0) {
      mine += p[i];
      last = i;
    }
  double sum = scan_masses(room, mine, &total), target = uniform * total;
  if (threadIdx.x == 0) {
    room.found = OCT_CUDA_NONE;
    room.flag = 0;
  }
  __syncthreads();
  if (last != OCT_CUDA_NONE) {
    atomicMax(&room.flag, last);
    for (uint32_t i = first; i < end && sum + mine > target; i++) {
      if (p[i] > 0)
        sum += p[i];
      if (sum > target) {
        atomicMin(&room.found, i);
        break;
      }
    }
  }
  __syncthreads();
  return room.found != OCT_CUDA_NONE ? room.found : room.flag;
}

/* ---------------------------------------------------------------- few candidates, sorted */

OCT_DEVICE bool
comes_first(candidate a, candidate b) {
  return a.key > b.key || (a.key == b.key && a.token < b.token);
}

/* The candidates whose top bits are `bin` or more, in order; the rest of the room is filled with
 * what comes behind all. They are at most SORTED. */
OCT_DEVICE void
sort_candidates(sample_room &room, const float *p, uint32_t n, uint32_t bin) {
  for (uint32_t i = threadIdx.x; i < SORTED; i += THREADS)
    room.sorted[i] = {0, OCT_CUDA_NONE};
  if (threadIdx.x == 0)
    room.flag = 0;
  __syncthreads();
#pragma unroll 4
  for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
    float x = p[i];
    if (x >= 0 && __float_as_uint(x) >> 21 >= bin)
      room.sorted[atomicAdd(&room.flag, 1u)] = {__float_as_uint(x), i};
  }
  for (uint32_t size = 2; size <= SORTED; size *= 2)
    for (uint32_t step = size / 2; step > 0; step /= 2) {
      __syncthreads();
      uint32_t i = 2 * threadIdx.x - (threadIdx.x & (step - 1)), k = i + step;
      candidate a = room.sorted[i], b = room.sorted[k];
      if (comes_first(b, a) == ((i & size) == 0)) {
        room.sorted[i] = b;
        room.sorted[k] = a;
      }
    }
  __syncthreads();
}

/* Top-p of the `most` first of the sorted, and the draw among what is left. `total` is the mass
 * that top-p is a share of; infinite: that of the `most`. */
OCT_DEVICE uint32_t
draw_sorted(sample_room &room, const oct_sampling &s, uint32_t most, double total, double uniform) {
  uint32_t i = 2 * threadIdx.x;
  double first = i < most ? __uint_as_float(room.sorted[i].key) : 0;
  double second = i + 1 < most ? __uint_as_float(room.sorted[i + 1].key) : 0, all;
  double before = scan_masses(room, first + second, &all);
  double reach = s.top_p < 1 ? s.top_p * (total < INFINITY ? total : all) : INFINITY;
  /* The place of the last that is kept, then of the one that is drawn. */
  if (threadIdx.x == 0) {
    room.found = most - 1;
    room.words[0] = OCT_CUDA_NONE;
    room.words[1] = 0;
  }
  __syncthreads();
  if (i < most && before + first >= reach)
    atomicMin(&room.found, i);
  else if (i + 1 < most && before + first + second >= reach)
    atomicMin(&room.found, i + 1);
  __syncthreads();
  uint32_t last = room.found;
  if (i == last)
    room.mass = before + first;
  if (i + 1 == last)
    room.mass = before + first + second;
  __syncthreads();
  double target = uniform * room.mass;
  if (i <= last && before + first > target)
    atomicMin(&room.words[0], i);
  else if (i + 1 <= last && before + first + second > target)
    atomicMin(&room.words[0], i + 1);
  if (i <= last && first > 0)
    atomicMax(&room.words[1], i + (i + 1 <= last && second > 0 ? 1 : 0));
  __syncthreads();
  return room.sorted[room.words[0] != OCT_CUDA_NONE ? room.words[0] : room.words[1]].token;
}

OCT_DEVICE uint32_t
draw_of_top(sample_room &room, const oct_sampling &s, const float *p, uint32_t n, uint32_t kept,
            double total, double uniform) {
  auto key = [p](uint32_t i, uint32_t *k) {
    float x = p[i];
    *k = __float_as_uint(x);
    return x >= 0;
  };
  auto mass = [](uint32_t k) { return (double)__uint_as_float(k); };
  bool by_count = s.top_k > 0 && (uint32_t)s.top_k < kept;
  /* The bin of the last that top-k, or else top-p, leaves. */
  goal first_goal = by_count ? GOAL_COUNT : GOAL_REACH;
  count_bins(room, n, key, mass, !by_count, 0, 0, 21, 11);
  place bin_place = {0, 0, 0};
  uint32_t bin =
      find_bin(room, first_goal, by_count ? (double)s.top_k : s.top_p * total, &bin_place);
  uint32_t few = bin_place.before + room.counts[bin];
  __syncthreads();
  if (few <= SORTED) {
    sort_candidates(room, p, n, bin);
    uint32_t most = by_count ? (uint32_t)s.top_k : few;
    return draw_sorted(room, s, most, by_count ? INFINITY : total, uniform);
  }
  double reached = total;
  auto mass_up_to = [&](goal g, double target) {
    place at = find_place(room, n, key, mass, g, target);
    double each = mass(at.key);
    uint32_t ties = count_ties(room, n, key, at.key);
    return at.mass_before + ties_needed(at, each, ties, g, target) * each;
  };
  if (by_count) {
    place at = find_place(room, n, key, mass, GOAL_COUNT, (double)s.top_k);
    double sum = 0, above;
    for (uint32_t i = threadIdx.x; i < n; i += THREADS)
      if (p[i] > mass(at.key))
        sum += p[i];
    scan_masses(room, sum, &above);
    reached = above + ((uint32_t)s.top_k - at.before) * mass(at.key);
  }
  if (s.top_p < 1) {
    double up_to = mass_up_to(GOAL_REACH, s.top_p * reached);
    reached = fmin(reached, up_to);
  }
  double target = uniform * reached;
  auto drawable = [p](uint32_t i, uint32_t *k) {
    float x = p[i];
    *k = __float_as_uint(x);
    return x > 0;
  };
  place at = find_place(room, n, drawable, mass, GOAL_EXCEED, target);
  uint32_t ties = count_ties(room, n, drawable, at.key);
  uint32_t nth = ties_needed(at, mass(at.key), ties, GOAL_EXCEED, target);
  return find_tie(room, n, drawable, at.key, nth);
}

/* ---------------------------------------------------------------- candidates */

OCT_DEVICE float
penalised(const oct_sampling &s, float logit, uint32_t count) {
  uint32_t output = count & ~OCT_REF_COUNT_PROMPT;
  if (count != 0)
    logit = logit > 0 ? logit / s.repetition : logit * s.repetition;
  if (output != 0)
    logit -= s.presence + s.frequency * (float)output;
  return logit;
}

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

/* Copies logits with what changes them to p; what may not be sampled is -inf. False: a logit is no
 * number. */
OCT_DEVICE bool
collect(sample_room &room, const oct_cuda_sample_row &row, const float *logits, uint32_t n,
        uint32_t n_suppressed, float *p, best *found) {
  bool bad = false,
       is_plain = row.n_biases == 0 && n_suppressed == 0 && row.mask == NULL && row.counts == NULL;
  best b = {-INFINITY, OCT_CUDA_NONE};
#pragma unroll 4
  for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
    float x = logits[i];
    bad |= isnan(x) || x == INFINITY;
    p[i] = x;
    if (is_plain && x > b.logit)
      b = {x, i};
  }
  if (__syncthreads_or(bad))
    return false;
  if (row.n_biases > 0) {
    if (threadIdx.x == 0)
      for (uint32_t i = 0; i < row.n_biases; i++)
        if (row.biases[i].token < n)
          p[row.biases[i].token] += row.biases[i].bias;
    __syncthreads();
  }
  if (n_suppressed > 0) {
    for (uint32_t i = threadIdx.x; i < n_suppressed; i += THREADS)
      if (row.suppressed[i] < n)
        p[row.suppressed[i]] = -INFINITY;
    __syncthreads();
  }
#pragma unroll 4
  for (uint32_t i = threadIdx.x; !is_plain && i < n; i += THREADS) {
    float x = p[i];
    if (row.counts != NULL)
      x = penalised(row.sampling, x, row.counts[i]);
    if ((row.mask != NULL && (row.mask[i / 64] >> (i % 64) & 1) == 0) || !(x > -INFINITY))
      x = -INFINITY;
    p[i] = x;
    if (x > b.logit)
      b = {x, i};
  }
  *found = block_best(room, b);
  return true;
}

/* Logits to probabilities, the best's being 1; those under `least` are EXCLUDED. Returns how many
 * are left. */
OCT_DEVICE uint32_t
weigh(sample_room &room, float *p, uint32_t n, float top, const oct_sampling &s, double *total) {
  float least = s.min_p > 0 ? s.min_p : 0;
  uint32_t mine = 0, all;
  double sum = 0;
#pragma unroll 4
  for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
    float x = p[i], weight = EXCLUDED;
    if (x > -INFINITY) {
      float w = expf((x - top) / s.temperature);
      if (w >= least) {
        weight = w;
        mine++;
        sum += w;
      }
    }
    p[i] = weight;
  }
  scan_masses(room, sum, total);
  scan_counts(room, mine, &all);
  return all;
}

static __global__ void
__launch_bounds__(THREADS) sample_rows(oct_cuda_sample a, oct_cuda_batch b) {
  __shared__ sample_room room;
  admit_successor();
  await_predecessors();
  oct_cuda_sample_row row = a.rows[blockIdx.x];
  uint32_t *token = a.tokens + blockIdx.x;
  const float *logits = a.logits + blockIdx.x * a.stride;
  float *p = (float *)a.workspace + (size_t)blockIdx.x * a.vocab;
  best top = {0, OCT_CUDA_NONE};
  bool sane =
      row.seq != OCT_CUDA_NONE && collect(room, row, logits, a.vocab, row.n_suppressed, p, &top);
  if (sane && top.token == OCT_CUDA_NONE && row.n_suppressed > 0)
    sane = collect(room, row, logits, a.vocab, 0, p, &top);
  if (!sane || top.token == OCT_CUDA_NONE) {
    if (threadIdx.x == 0)
      *token = OCT_REF_NO_TOKEN;
    return;
  }
  uint32_t chosen = top.token;
  if (row.sampling.temperature >= 1e-5f) {
    double total, uniform = uniform_of(row.sampling.seed, b.token_position[row.token] + 1);
    uint32_t kept = weigh(room, p, a.vocab, top.logit, row.sampling, &total);
    bool is_cut =
        (row.sampling.top_k > 0 && (uint32_t)row.sampling.top_k < kept) || row.sampling.top_p < 1;
    chosen = is_cut ? draw_of_top(room, row.sampling, p, a.vocab, kept, total, uniform)
                    : draw_in_order(room, p, a.vocab, uniform);
  }
  if (threadIdx.x == 0)
    *token = chosen;
}

size_t
oct_cuda_sample_workspace(uint32_t n, uint32_t vocab) {
  return (size_t)n * vocab * sizeof(float);
}

int
oct_cuda_sample_rows(const oct_cuda_queue *queue, const oct_cuda_sample *call) {
  if (call->n == 0)
    return OCT_CUDA_OK;
  return launch(queue, sample_rows, dim3(call->n), dim3(THREADS), 0, *call, *call->batch);
}

/* ---------------------------------------------------------------- log probabilities */

#define LOGPROBS_MAX 128

/* Bits that order as the numbers do, negative ones too. */
OCT_DEVICE uint32_t
ordered(float x) {
  uint32_t bits = __float_as_uint(x);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

OCT_DEVICE float
unordered(uint32_t key) {
  return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

/* Sorts n found candidates into out by counting who comes before each. */
OCT_DEVICE void
put_in_order(const oct_token_logprob *found, uint32_t n, oct_token_logprob *out) {
  for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
    uint32_t rank = 0;
    for (uint32_t k = 0; k < n; k++)
      rank += found[k].logprob > found[i].logprob ||
              (found[k].logprob == found[i].logprob && found[k].token < found[i].token);
    out[rank] = found[i];
  }
}

static __global__ void
__launch_bounds__(THREADS) logprob_rows(oct_cuda_logprobs a) {
  __shared__ sample_room room;
  __shared__ oct_token_logprob found[LOGPROBS_MAX];
  __shared__ uint32_t n_found;
  admit_successor();
  await_predecessors();
  const float *logits = a.logits + blockIdx.x * a.stride;
  oct_token_logprob *out = a.out + (size_t)blockIdx.x * (1 + a.most);
  uint32_t token = a.tokens[blockIdx.x], wanted = min(a.rows[blockIdx.x].n_logprobs, a.most);
  if (a.rows[blockIdx.x].seq == OCT_CUDA_NONE || token >= a.vocab)
    return;
  best b = {-INFINITY, OCT_CUDA_NONE};
  for (uint32_t i = threadIdx.x; i < a.vocab; i += THREADS)
    if (logits[i] > b.logit)
      b = {logits[i], i};
  b = block_best(room, b);
  double mine = 0, sum;
  for (uint32_t i = threadIdx.x; i < a.vocab; i += THREADS)
    mine += expf(logits[i] - b.logit);
  scan_masses(room, mine, &sum);
  float shift = b.logit + (float)log(sum);
  if (threadIdx.x == 0) {
    out[0] = {token, logits[token] - shift};
    n_found = 0;
  }
  __syncthreads();
  if (wanted == 0)
    return;
  auto key = [logits, shift, token](uint32_t i, uint32_t *k) {
    *k = ordered(logits[i] - shift);
    return i != token;
  };
  auto mass = [](uint32_t) { return 0.0; };
  place at = find_place(room, a.vocab, key, mass, GOAL_COUNT, (double)wanted);
  for (uint32_t i = threadIdx.x; i < a.vocab; i += THREADS) {
    uint32_t k;
    if (key(i, &k) && k > at.key)
      found[atomicAdd(&n_found, 1u)] = {i, unordered(k)};
  }
  __syncthreads();
  for (uint32_t nth = 1; at.before + nth <= wanted; nth++) {
    uint32_t tie = find_tie(room, a.vocab, key, at.key, nth);
    if (threadIdx.x == 0)
      found[at.before + nth - 1] = {tie, unordered(at.key)};
    __syncthreads();
  }
  put_in_order(found, wanted, out + 1);
}

int
oct_cuda_logprobs_rows(const oct_cuda_queue *queue, const oct_cuda_logprobs *call) {
  if (call->n == 0)
    return OCT_CUDA_OK;
  if (call->most > LOGPROBS_MAX || call->most >= call->vocab)
    return OCT_CUDA_UNSUPPORTED;
  return launch(queue, logprob_rows, dim3(call->n), dim3(THREADS), 0, *call);
}
