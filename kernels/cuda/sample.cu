/* From logits to tokens, with the reference's steps in its order. What changes logits, and the best
 * of them, is by blocks of runs of a row; what follows is by a block per row.
 *
 * Top-k looks for a number of candidates, top-p and the draw for a mass. Where the first bits of
 * probabilities leave few candidates, which is the rule, these alone are sorted. Sums are float64,
 * as the reference's; they are added up in another order. */
#include "kernels/cuda/sample.cuh"

#define EXCLUDED (-1.0f)
#define RUN      16384 /* tokens of a row that a block goes through at first */

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

/* The thread's best of a row's tokens [begin, end), four at a time; true: a logit is no number. */
OCT_DEVICE bool
best_of_fours(const float *logits, uint32_t begin, uint32_t end, best *b) {
  bool bad = false;
#pragma unroll 4
  for (uint32_t i = begin + 4 * threadIdx.x; i < end; i += 4 * THREADS) {
    float x[4];
    load_floats<float, 4>(logits + i, x);
#pragma unroll
    for (uint32_t k = 0; k < 4; k++) {
      bad |= isnan(x[k]) || x[k] == INFINITY;
      if (x[k] > b->logit)
        *b = {x[k], i + k};
    }
  }
  return bad;
}

/* Tokens [begin, end) of a row: logits with what changes them go to p (NULL: nobody reads them),
 * and what may not be sampled is -inf. False: a logit is no number. */
OCT_DEVICE bool
collect(sample_room &room, const oct_cuda_sample_row &row, const float *logits, uint32_t begin,
        uint32_t end, uint32_t n_suppressed, float *p, best *found) {
  bool bad = false,
       is_plain = row.n_biases == 0 && n_suppressed == 0 && row.mask == NULL && row.counts == NULL;
  best b = {-INFINITY, OCT_CUDA_NONE};
  if (p == NULL && (end - begin) % 4 == 0 && (uintptr_t)(logits + begin) % 16 == 0) {
    bad = best_of_fours(logits, begin, end, &b);
    begin = end;
  }
#pragma unroll 8
  for (uint32_t i = begin + threadIdx.x; i < end; i += THREADS) {
    float x = logits[i];
    bad |= isnan(x) || x == INFINITY;
    if (p != NULL)
      p[i] = x;
    if (is_plain && x > b.logit)
      b = {x, i};
  }
  if (__syncthreads_or(bad))
    return false;
  if (row.n_biases > 0) {
    if (threadIdx.x == 0)
      for (uint32_t i = 0; i < row.n_biases; i++)
        if (row.biases[i].token >= begin && row.biases[i].token < end)
          p[row.biases[i].token] += row.biases[i].bias;
    __syncthreads();
  }
  if (n_suppressed > 0) {
    for (uint32_t i = threadIdx.x; i < n_suppressed; i += THREADS)
      if (row.suppressed[i] >= begin && row.suppressed[i] < end)
        p[row.suppressed[i]] = -INFINITY;
    __syncthreads();
  }
#pragma unroll 4
  for (uint32_t i = begin + threadIdx.x; !is_plain && i < end; i += THREADS) {
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

OCT_DEVICE bool
is_greedy(const oct_cuda_sample_row &row) {
  return row.sampling.temperature < 1e-5f;
}

/* Of greedy rows that nothing changes only the best is wanted. */
OCT_DEVICE bool
needs_copy(const oct_cuda_sample_row &row) {
  return !is_greedy(row) || row.n_biases > 0 || row.n_suppressed > 0 || row.mask != NULL ||
         row.counts != NULL;
}

/* What a run of RUN tokens of a row has: its best, whose logit is no number when one of them is. */
OCT_DEVICE best *
bests_of(const oct_cuda_sample &a, uint32_t row, uint32_t runs) {
  return (best *)((float *)a.workspace + (size_t)a.n * a.vocab) + (size_t)row * runs;
}

/* A block per run of a row. */
static __global__ void
__launch_bounds__(THREADS) collect_runs(oct_cuda_sample a) {
  __shared__ sample_room room;
  admit_successor();
  await_predecessors();
  oct_cuda_sample_row row = a.rows[blockIdx.y];
  if (row.seq == OCT_CUDA_NONE)
    return;
  const float *logits = a.logits + blockIdx.y * a.stride;
  float *p = needs_copy(row) ? (float *)a.workspace + (size_t)blockIdx.y * a.vocab : NULL;
  best top = {0, 0};
  uint32_t begin = blockIdx.x * RUN;
  bool sane =
      collect(room, row, logits, begin, min(a.vocab, begin + RUN), row.n_suppressed, p, &top);
  if (threadIdx.x == 0)
    bests_of(a, blockIdx.y, gridDim.x)[blockIdx.x] = sane ? top : best{NAN, 0};
}

/* The best of all runs of a row; false: a logit is no number. */
OCT_DEVICE bool
join_runs(sample_room &room, const best *bests, uint32_t runs, best *top) {
  bool bad = false;
  best b = {-INFINITY, OCT_CUDA_NONE};
  for (uint32_t i = threadIdx.x; i < runs; i += THREADS) {
    bad |= isnan(bests[i].logit);
    if (bests[i].logit > b.logit)
      b = bests[i];
  }
  if (__syncthreads_or(bad))
    return false;
  *top = block_best(room, b);
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
__launch_bounds__(THREADS) sample_rows(oct_cuda_sample a, oct_cuda_batch b, uint32_t runs) {
  __shared__ sample_room room;
  admit_successor();
  await_predecessors();
  oct_cuda_sample_row row = a.rows[blockIdx.x];
  uint32_t *token = a.tokens + blockIdx.x;
  const float *logits = a.logits + blockIdx.x * a.stride;
  float *p = (float *)a.workspace + (size_t)blockIdx.x * a.vocab;
  best top = {0, OCT_CUDA_NONE};
  bool sane =
      row.seq != OCT_CUDA_NONE && join_runs(room, bests_of(a, blockIdx.x, runs), runs, &top);
  if (sane && top.token == OCT_CUDA_NONE && row.n_suppressed > 0)
    sane = collect(room, row, logits, 0, a.vocab, 0, p, &top);
  if (!sane || top.token == OCT_CUDA_NONE) {
    if (threadIdx.x == 0)
      *token = OCT_REF_NO_TOKEN;
    return;
  }
  uint32_t chosen = top.token;
  if (!is_greedy(row)) {
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
  return (size_t)n * vocab * sizeof(float) + (size_t)n * ceil_div(vocab, RUN) * sizeof(best);
}

/* As many rows at a time as a grid takes, one time after the other in the same workspace. */
int
oct_cuda_sample_rows(const oct_cuda_queue *queue, const oct_cuda_sample *call) {
  uint32_t runs = ceil_div(call->vocab, RUN);
  oct_cuda_sample some = *call;
  int error = OCT_CUDA_OK;
  for (uint32_t done = 0; done < call->n && error == OCT_CUDA_OK; done += some.n) {
    some.n = within_grid(call->n - done);
    some.rows = call->rows + done;
    some.logits = call->logits + done * call->stride;
    some.tokens = call->tokens + done;
    error = launch(queue, collect_runs, dim3(runs, some.n), dim3(THREADS), 0, some);
    if (error == OCT_CUDA_OK)
      error = launch(queue, sample_rows, dim3(some.n), dim3(THREADS), 0, some, *call->batch, runs);
  }
  return error;
}
