/* From logits to a token. The candidates are pairs of token and logit, cut down step by step; those
 * of top-k and top-p come off a heap, so that their number and not the vocabulary is sorted. */
#include "kernels/kernels.h"

#include <math.h>

#define GREEDY_BELOW 1e-5f

typedef oct_token_logprob candidate;

/* ---------------------------------------------------------------- the random number */

static uint64_t
mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

double
oct_ref_sample_uniform(uint64_t seed, uint32_t position) {
  uint64_t bits =
      mix(mix(seed + 0x9e3779b97f4a7c15u) + 0x9e3779b97f4a7c15u * ((uint64_t)position + 1));
  return (double)(bits >> 11) * 0x1p-53;
}

/* ---------------------------------------------------------------- candidates */

static float
penalised(const oct_sampling *s, float logit, uint32_t count) {
  uint32_t output = count & ~OCT_REF_COUNT_PROMPT;
  if (count != 0)
    logit = logit > 0 ? logit / s->repetition : logit * s->repetition;
  if (output != 0)
    logit -= s->presence + s->frequency * (float)output;
  return logit;
}

/* Fills in what may be sampled; -1 when a logit is no number. */
static int64_t
collect(const oct_sampling *s, const oct_sample_input *in, uint32_t n_suppressed, candidate *to) {
  for (uint32_t t = 0; t < in->vocab; t++) {
    if (isnan(in->logits[t]) || in->logits[t] == INFINITY)
      return -1;
    to[t] = (candidate){t, in->logits[t]};
  }
  for (uint32_t i = 0; i < in->n_biases; i++)
    if (in->biases[i].token < in->vocab)
      to[in->biases[i].token].logprob += in->biases[i].bias;
  for (uint32_t i = 0; i < n_suppressed; i++)
    if (in->suppressed[i] < in->vocab)
      to[in->suppressed[i]].logprob = -INFINITY;
  uint32_t n = 0;
  for (uint32_t t = 0; t < in->vocab; t++) {
    if (in->mask != NULL && (in->mask[t / 64] >> (t % 64) & 1) == 0)
      continue;
    float logit = to[t].logprob;
    if (in->counts != NULL)
      logit = penalised(s, logit, in->counts[t]);
    if (logit > -INFINITY) /* also refuses NaN, which infinite parameters make */
      to[n++] = (candidate){t, logit};
  }
  return n;
}

static uint32_t
best_of(const candidate *c, uint32_t n) {
  uint32_t best = 0;
  for (uint32_t i = 1; i < n; i++)
    if (c[i].logprob > c[best].logprob)
      best = i;
  return best;
}

static bool
is_before(candidate a, candidate b) {
  return a.logprob > b.logprob || (a.logprob == b.logprob && a.token < b.token);
}

static void
sift_down(candidate *heap, uint32_t n, uint32_t at) {
  candidate moved = heap[at];
  for (;;) {
    uint64_t child = 2 * (uint64_t)at + 1;
    if (child >= n)
      break;
    if (child + 1 < n && is_before(heap[child + 1], heap[child]))
      child++;
    if (!is_before(heap[child], moved))
      break;
    heap[at] = heap[child];
    at = (uint32_t)child;
  }
  heap[at] = moved;
}

static void
make_heap(candidate *c, uint32_t n) {
  for (uint32_t i = n / 2; i-- > 0;)
    sift_down(c, n, i);
}

/* Moves the best of n to the end, which is c[n - 1]. */
static void
pop(candidate *c, uint32_t n) {
  candidate best = c[0];
  c[0] = c[n - 1];
  c[n - 1] = best;
  sift_down(c, n - 1, 0);
}

/* ---------------------------------------------------------------- the draw */

/* Of n probabilities in the order of c, which need not add up to 1. */
static uint32_t
draw(const candidate *c, uint32_t n, double total, double uniform) {
  double target = uniform * total, sum = 0;
  uint32_t last = 0;
  for (uint32_t i = 0; i < n; i++) {
    if (c[i].logprob > 0)
      last = i;
    sum += c[i].logprob;
    if (sum > target)
      return c[i].token;
  }
  return c[last].token;
}

static double
sum_of(const candidate *c, uint32_t n) {
  double sum = 0;
  for (uint32_t i = 0; i < n; i++)
    sum += c[i].logprob;
  return sum;
}

/* Top-k and top-p of n probabilities, then the draw among them, the likeliest first. */
static uint32_t
draw_of_top(const oct_sampling *s, candidate *c, uint32_t n, double uniform) {
  uint32_t most = s->top_k > 0 && (uint32_t)s->top_k < n ? (uint32_t)s->top_k : n, kept = 0;
  make_heap(c, n);
  double total = most == n ? sum_of(c, n) : 0, reached = 0;
  if (most < n) {
    for (; kept < most; kept++)
      pop(c, n - kept);
    total = sum_of(c + (n - kept), kept);
    kept = 0;
  }
  /* Popped ones stand at the end, the best last. */
  while (kept < most && (kept == 0 || reached < s->top_p * total)) {
    if (most == n)
      pop(c, n - kept);
    kept++;
    reached += c[n - kept].logprob;
  }
  for (uint32_t i = 0; i < kept / 2; i++) {
    candidate swap = c[n - kept + i];
    c[n - kept + i] = c[n - 1 - i];
    c[n - 1 - i] = swap;
  }
  return draw(c + (n - kept), kept, reached, uniform);
}

uint32_t
oct_ref_sample(const oct_sampling *s, const oct_sample_input *in, candidate *c) {
  int64_t found = collect(s, in, in->n_suppressed, c);
  if (found == 0 && in->n_suppressed > 0)
    found = collect(s, in, 0, c);
  if (found <= 0)
    return OCT_REF_NO_TOKEN;
  uint32_t n = (uint32_t)found, best = best_of(c, n);
  if (!(s->temperature >= GREEDY_BELOW))
    return c[best].token;
  float top = c[best].logprob, least = s->min_p > 0 ? s->min_p : 0;
  uint32_t kept = 0;
  for (uint32_t i = 0; i < n; i++) {
    float p = expf((c[i].logprob - top) / s->temperature);
    if (p >= least)
      c[kept++] = (candidate){c[i].token, p};
  }
  double uniform = oct_ref_sample_uniform(s->seed, in->position);
  if ((s->top_k > 0 && (uint32_t)s->top_k < kept) || s->top_p < 1)
    return draw_of_top(s, c, kept, uniform);
  return draw(c, kept, sum_of(c, kept), uniform);
}

/* ---------------------------------------------------------------- logprobs */

void
oct_ref_logprobs(const float *logits, uint32_t vocab, uint32_t token, uint32_t n, candidate *out) {
  float top = -INFINITY;
  for (uint32_t t = 0; t < vocab; t++)
    top = fmaxf(top, logits[t]);
  double sum = 0;
  for (uint32_t t = 0; t < vocab; t++)
    sum += expf(logits[t] - top);
  float shift = top + (float)log(sum);
  out[0] = (candidate){token, logits[token] - shift};
  uint32_t have = 0;
  for (uint32_t t = 0; t < vocab; t++) {
    candidate c = {t, logits[t] - shift};
    if (t == token || (have == n && (n == 0 || !is_before(c, out[n]))))
      continue;
    uint32_t at = have < n ? ++have : n;
    for (; at > 1 && is_before(c, out[at - 1]); at--)
      out[at] = out[at - 1];
    out[at] = c;
  }
}
