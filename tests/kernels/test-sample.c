/* Samplers: what each keeps, exactly; what it draws, by chi-square against the float64
 * distribution; and that a draw is a function of seed and position. */
#include <math.h>
#include <string.h>

#include "tests/kernels/data.h"

#define VOCAB 24
#define DRAWS 20000

static const oct_sampling plain = {.temperature = 1, .top_p = 1, .repetition = 1, .seed = 1};

typedef struct ranked {
  guint32 token;
  double value;
} ranked;

static int
larger_first(const void *a, const void *b) {
  const ranked *x = a, *y = b;
  if (x->value != y->value)
    return x->value > y->value ? -1 : 1;
  return x->token < y->token ? -1 : 1;
}

/* What is left of a distribution p[VOCAB] when only its first n by rank are kept, adding up to 1.
 */
static void
keep_ranks(double *p, guint32 n) {
  ranked r[VOCAB];
  double sum = 0;
  for (guint32 t = 0; t < VOCAB; t++)
    r[t] = (ranked){t, p[t]};
  qsort(r, VOCAB, sizeof *r, larger_first);
  for (guint32 i = 0; i < n; i++)
    sum += r[i].value;
  for (guint32 i = 0; i < VOCAB; i++)
    p[r[i].token] = i < n ? r[i].value / sum : 0;
}

static guint32
ranks_for_top_p(const double *p, double top_p) {
  ranked r[VOCAB];
  double sum = 0;
  for (guint32 t = 0; t < VOCAB; t++)
    r[t] = (ranked){t, p[t]};
  qsort(r, VOCAB, sizeof *r, larger_first);
  for (guint32 i = 0; i < VOCAB; i++)
    if ((sum += r[i].value) >= top_p)
      return i + 1;
  return VOCAB;
}

/* The distribution that a sampler should draw from. */
static void
exact_distribution(const oct_sampling *s, const oct_sample_input *in, double *p) {
  double top = -INFINITY, sum = 0;
  for (guint32 t = 0; t < VOCAB; t++) {
    double logit = in->logits[t];
    for (guint32 i = 0; i < in->n_biases; i++)
      logit += in->biases[i].token == t ? in->biases[i].bias : 0;
    if (in->counts != NULL && in->counts[t] != 0) {
      guint32 n = in->counts[t] & ~OCT_REF_COUNT_PROMPT;
      logit = logit > 0 ? logit / s->repetition : logit * s->repetition;
      logit -= (n > 0 ? s->presence : 0) + (double)n * s->frequency;
    }
    if (in->mask != NULL && (in->mask[t / 64] >> (t % 64) & 1) == 0)
      logit = -INFINITY;
    for (guint32 i = 0; i < in->n_suppressed; i++)
      logit = in->suppressed[i] == t ? -INFINITY : logit;
    p[t] = logit / s->temperature;
    top = MAX(top, p[t]);
  }
  for (guint32 t = 0; t < VOCAB; t++)
    sum += p[t] = exp(p[t] - top);
  double least = s->min_p;
  for (guint32 t = 0; t < VOCAB; t++)
    if (p[t] < least) {
      sum -= p[t];
      p[t] = 0;
    }
  for (guint32 t = 0; t < VOCAB; t++)
    p[t] /= sum;
  if (s->top_k > 0)
    keep_ranks(p, MIN((guint32)s->top_k, VOCAB));
  if (s->top_p < 1)
    keep_ranks(p, ranks_for_top_p(p, s->top_p));
}

/* Upper 1e-6 quantile of chi-square with n degrees, by Wilson and Hilferty. */
static double
chi_square_limit(double n) {
  double a = 2 / (9 * n);
  return n * pow(1 - a + 4.753424 * sqrt(a), 3);
}

/* Draws over seeds and positions, and compares with the exact distribution. */
static void
check_draws(const char *name, const oct_sampling *sampling, const oct_sample_input *input) {
  oct_token_logprob scratch[VOCAB];
  double p[VOCAB], chi = 0, degrees = -1, rest_expected = 0, rest_seen = 0;
  guint seen[VOCAB] = {0};
  oct_sampling s = *sampling;
  oct_sample_input in = *input;
  exact_distribution(&s, &in, p);
  guint64 seed = (guint64)g_test_rand_int() << 32;
  for (guint i = 0; i < DRAWS; i++) {
    s.seed = seed + i / 100;
    in.position = i % 100;
    guint32 token = oct_ref_sample(&s, &in, scratch);
    g_assert_cmpuint(token, <, VOCAB);
    g_assert_cmpfloat(p[token], >, 0);
    seen[token]++;
  }
  for (guint32 t = 0; t < VOCAB; t++) {
    double expected = p[t] * DRAWS;
    if (expected < 10) { /* rare ones together */
      rest_expected += expected;
      rest_seen += seen[t];
      continue;
    }
    chi += (seen[t] - expected) * (seen[t] - expected) / expected;
    degrees++;
  }
  if (rest_expected >= 10) {
    chi += (rest_seen - rest_expected) * (rest_seen - rest_expected) / rest_expected;
    degrees++;
  }
  double limit = degrees > 0 ? chi_square_limit(degrees) : 1e-9;
  g_test_message("%s: chi-square %.1f with %.0f degrees of freedom, limit %.1f at 1e-6", name, chi,
                 degrees, limit);
  g_assert_cmpfloat(chi, <=, limit);
}

static void
draws_follow_the_distribution(void) {
  g_autofree float *logits = data_normal(VOCAB, 1.5);
  const oct_logit_bias biases[] = {{3, 2}, {9, -1}, {11, -100}};
  guint32 counts[VOCAB] = {[2] = 3, [5] = OCT_REF_COUNT_PROMPT, [7] = OCT_REF_COUNT_PROMPT | 1};
  guint64 mask = 0x5a5a5a;
  oct_sample_input all = {.logits = logits, .vocab = VOCAB}, biased = all, counted = all,
                   masked = all;
  biased.biases = biases;
  biased.n_biases = G_N_ELEMENTS(biases);
  counted.counts = counts;
  masked.mask = &mask;
  oct_sampling s = plain;
  check_draws("temperature 1", &s, &all);
  s.temperature = 0.6f;
  check_draws("temperature 0.6", &s, &all);
  s.temperature = 1.7f;
  check_draws("temperature 1.7", &s, &all);
  check_draws("logit bias", &plain, &biased);
  check_draws("mask", &plain, &masked);
  static const guint32 suppressed[] = {1, 4, 20};
  oct_sample_input stopped = masked;
  stopped.suppressed = suppressed;
  stopped.n_suppressed = G_N_ELEMENTS(suppressed);
  check_draws("suppression", &plain, &stopped);
  s = plain;
  s.top_k = 5;
  check_draws("top-k 5", &s, &all);
  s.top_k = 1;
  check_draws("top-k 1", &s, &all);
  s.top_k = 1000;
  check_draws("top-k beyond the vocabulary", &s, &all);
  s = plain;
  s.top_p = 0.7f;
  check_draws("top-p 0.7", &s, &all);
  s.top_p = 1e-6f;
  check_draws("top-p 0.000001", &s, &all);
  s = plain;
  s.min_p = 0.1f;
  check_draws("min-p 0.1", &s, &all);
  s = plain;
  s.repetition = 1.4f;
  check_draws("repetition 1.4", &s, &counted);
  s = plain;
  s.presence = 0.8f;
  check_draws("presence 0.8", &s, &counted);
  s = plain;
  s.frequency = 0.5f;
  check_draws("frequency 0.5", &s, &counted);
  s = (oct_sampling){.temperature = 0.8f,
                     .top_p = 0.85f,
                     .min_p = 0.02f,
                     .repetition = 1.2f,
                     .presence = 0.3f,
                     .frequency = -0.2f,
                     .top_k = 9};
  counted.mask = &mask;
  counted.biases = biases;
  counted.n_biases = 2;
  check_draws("all of them", &s, &counted);
}

static void
greedy_takes_the_largest(void) {
  oct_token_logprob scratch[VOCAB];
  for (int round = 0; round < 50; round++) {
    g_autofree float *logits = data_normal(VOCAB, 1.5);
    oct_sampling s = plain;
    oct_sample_input in = {.logits = logits, .vocab = VOCAB, .position = (guint32)round};
    guint32 best = 0;
    for (guint32 t = 1; t < VOCAB; t++)
      if (logits[t] > logits[best])
        best = t;
    s.temperature = round % 2 == 0 ? 0 : 9e-6f;
    s.top_k = round % 3;
    g_assert_cmpuint(oct_ref_sample(&s, &in, scratch), ==, best);
    guint64 mask = ~((guint64)1 << best);
    guint32 second = best == 0 ? 1 : 0;
    for (guint32 t = 0; t < VOCAB; t++)
      if (t != best && logits[t] > logits[second])
        second = t;
    in.mask = &mask;
    g_assert_cmpuint(oct_ref_sample(&s, &in, scratch), ==, second);
  }
  float equal[4] = {1, 2, 2, 2};
  oct_sampling s = plain;
  s.temperature = 0;
  oct_sample_input in = {.logits = equal, .vocab = 4};
  g_assert_cmpuint(oct_ref_sample(&s, &in, scratch), ==, 1);
}

static void
what_is_no_number_is_refused(void) {
  oct_token_logprob scratch[4];
  float bad[3][4] = {
      {0, NAN, 1, 2}, {0, 1, INFINITY, 0}, {-INFINITY, -INFINITY, -INFINITY, -INFINITY}};
  for (int i = 0; i < 3; i++) {
    oct_sample_input in = {.logits = bad[i], .vocab = 4};
    g_assert_cmpuint(oct_ref_sample(&plain, &in, scratch), ==, OCT_REF_NO_TOKEN);
  }
  float fine[4] = {0, -INFINITY, 1, 2};
  guint64 none = 0, second = 2;
  oct_sample_input in = {.logits = fine, .vocab = 4, .mask = &none};
  g_assert_cmpuint(oct_ref_sample(&plain, &in, scratch), ==, OCT_REF_NO_TOKEN);
  in.mask = &second;
  g_assert_cmpuint(oct_ref_sample(&plain, &in, scratch), ==, OCT_REF_NO_TOKEN);
}

/* What is suppressed is sampled after all where nothing else is left. */
static void
suppression_yields_to_the_mask(void) {
  oct_token_logprob scratch[VOCAB];
  g_autofree float *logits = data_normal(VOCAB, 1.5);
  guint64 mask = 1 << 4 | 1 << 9;
  const guint32 both[] = {9, 4, 1};
  oct_sampling s = plain;
  s.temperature = 0;
  oct_sample_input in = {.logits = logits, .vocab = VOCAB, .mask = &mask, .suppressed = both};
  guint32 best = logits[4] >= logits[9] ? 4 : 9, other = 13 - best;
  g_assert_cmpuint(oct_ref_sample(&s, &in, scratch), ==, best);
  in.suppressed = best == 9 ? both : both + 1;
  in.n_suppressed = 1;
  g_assert_cmpuint(oct_ref_sample(&s, &in, scratch), ==, other);
  in.suppressed = both;
  in.n_suppressed = 3;
  g_assert_cmpuint(oct_ref_sample(&s, &in, scratch), ==, best);
}

/* Two draws that have nothing to do with each other agree as often as the distribution has it, to 6
 * standard deviations. */
static void
check_agreement(const double p[VOCAB], guint agreed, guint draws) {
  double chance = 0;
  for (guint32 t = 0; t < VOCAB; t++)
    chance += p[t] * p[t];
  double expected = chance * draws;
  g_assert_cmpfloat(fabs(agreed - expected), <=, 6 * sqrt(expected * (1 - chance)));
}

static void
draws_depend_on_seed_and_position_alone(void) {
  enum { PAIRS = 1000 };
  oct_token_logprob scratch[VOCAB];
  g_autofree float *logits = data_normal(VOCAB, 1);
  guint same_seed = 0, same_position = 0;
  for (guint32 i = 0; i < PAIRS; i++) {
    oct_sampling s = plain, other = plain;
    s.seed = i;
    other.seed = i + 1;
    oct_sample_input in = {.logits = logits, .vocab = VOCAB, .position = i}, next = in;
    next.position++;
    guint32 token = oct_ref_sample(&s, &in, scratch);
    g_assert_cmpuint(token, ==, oct_ref_sample(&s, &in, scratch));
    same_seed += token == oct_ref_sample(&s, &next, scratch);
    same_position += token == oct_ref_sample(&other, &in, scratch);
  }
  double p[VOCAB];
  exact_distribution(&plain, &(oct_sample_input){.logits = logits, .vocab = VOCAB}, p);
  check_agreement(p, same_seed, PAIRS);
  check_agreement(p, same_position, PAIRS);
}

/* 2 x 64 cells by seed's and position's neighbours: uniform, and no correlation. */
static void
uniforms_are_uniform(void) {
  enum { CELLS = 64, N = 200000 };
  guint seen[CELLS] = {0};
  double product = 0, before = 0, chi = 0;
  guint64 seed = g_test_rand_int();
  for (guint i = 0; i < N; i++) {
    double u =
        i % 2 == 0 ? oct_ref_sample_uniform(seed, i / 2) : oct_ref_sample_uniform(seed + i, 7);
    g_assert_true(u >= 0 && u < 1);
    seen[(int)(u * CELLS)]++;
    product += (u - 0.5) * (before - 0.5);
    before = u;
  }
  for (int c = 0; c < CELLS; c++)
    chi += (seen[c] - (double)N / CELLS) * (seen[c] - (double)N / CELLS) / ((double)N / CELLS);
  double correlation = product / N * 12;
  g_test_message("chi-square %.1f, limit %.1f; correlation %.4f", chi, chi_square_limit(CELLS - 1),
                 correlation);
  g_assert_cmpfloat(chi, <=, chi_square_limit(CELLS - 1));
  g_assert_cmpfloat(fabs(correlation), <=, 5 / sqrt(N));
}

static void
logprobs_are_the_softmax(void) {
  for (int round = 0; round < 20; round++) {
    g_autofree float *logits = data_normal(VOCAB, 3);
    if (round % 4 == 0)
      logits[5] = logits[6]; /* equals */
    guint32 token = data_between(0, VOCAB - 1), n = data_between(0, VOCAB - 1), at = 1;
    oct_token_logprob out[VOCAB];
    ranked r[VOCAB];
    double sum = 0;
    for (guint32 t = 0; t < VOCAB; t++) {
      sum += exp(logits[t]);
      r[t] = (ranked){t, logits[t]};
    }
    qsort(r, VOCAB, sizeof *r, larger_first);
    oct_ref_logprobs(logits, VOCAB, token, n, out);
    g_assert_cmpuint(out[0].token, ==, token);
    for (guint32 i = 0; i < VOCAB && at <= n; i++)
      if (r[i].token != token)
        g_assert_cmpuint(out[at++].token, ==, r[i].token);
    g_assert_cmpuint(at, ==, n + 1);
    for (guint32 i = 0; i <= n; i++)
      g_assert_cmpfloat(fabs(out[i].logprob - (logits[out[i].token] - log(sum))), <, 1e-5);
  }
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/kernels/sample/draws-follow-the-distribution", draws_follow_the_distribution);
  g_test_add_func("/kernels/sample/greedy-takes-the-largest", greedy_takes_the_largest);
  g_test_add_func("/kernels/sample/what-is-no-number-is-refused", what_is_no_number_is_refused);
  g_test_add_func("/kernels/sample/suppression-yields-to-the-mask", suppression_yields_to_the_mask);
  g_test_add_func("/kernels/sample/draws-depend-on-seed-and-position-alone",
                  draws_depend_on_seed_and_position_alone);
  g_test_add_func("/kernels/sample/uniforms-are-uniform", uniforms_are_uniform);
  g_test_add_func("/kernels/sample/logprobs-are-the-softmax", logprobs_are_the_softmax);
  return g_test_run();
}
