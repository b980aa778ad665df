/* Tokens and log probabilities, row by row the reference's. */
#include "tests/kernels/cuda/device.h"

#include <math.h>

#define ROWS 48

/* Rows with their own parameters, some of everything that can be asked for. */
static void
fill_row(guint i, guint32 vocab, oct_cuda_sample_row *row, oct_sample_input *twin) {
  oct_sampling s = {.temperature = i % 8 == 0 ? 0 : (float)g_test_rand_double_range(0.3, 1.5),
                    .top_p = i % 3 == 1 ? (float)g_test_rand_double_range(0.1, 0.99) : 1,
                    .min_p = i % 5 == 1 ? 0.02f : 0,
                    .repetition = 1,
                    .top_k = i % 4 == 1 ? (gint32)data_between(1, MIN(vocab, 60)) : -1,
                    .seed = ((guint64)(guint32)g_test_rand_int() << 32) + i};
  *row = (oct_cuda_sample_row){.token = i};
  if (i % 6 == 2) {
    s.repetition = 1.3f;
    s.presence = 0.4f;
    s.frequency = 0.2f;
    guint32 *counts = g_new0(guint32, vocab);
    for (guint k = 0; k < vocab / 4 + 1; k++)
      counts[data_between(0, vocab - 1)] += k % 3 == 0 ? OCT_REF_COUNT_PROMPT : 1;
    for (guint k = 0; k < vocab; k++)
      counts[k] &= OCT_REF_COUNT_PROMPT | 7;
    twin->counts = counts;
    row->counts = device_copy(counts, vocab * sizeof *counts);
  }
  if (i % 7 == 3) {
    guint64 *mask = g_new0(guint64, vocab / 64 + 1);
    for (guint k = 0; k < vocab; k++)
      if (i != 10 && (k % 5 == i % 5 || vocab == 1))
        mask[k / 64] |= (guint64)1 << (k % 64);
    twin->mask = mask;
    row->mask = device_copy(mask, (vocab / 64 + 1) * sizeof *mask);
  }
  if (i % 9 == 4) {
    oct_logit_bias *biases = g_new(oct_logit_bias, 3);
    for (guint k = 0; k < 3; k++)
      biases[k] = (oct_logit_bias){data_between(0, vocab - 1), k == 0 ? -INFINITY : 6};
    twin->biases = biases;
    twin->n_biases = row->n_biases = 3;
    row->biases = device_copy(biases, 3 * sizeof *biases);
  }
  if (i % 10 == 5 || vocab == 1) {
    guint32 *suppressed = g_new(guint32, 2);
    suppressed[0] = 0;
    suppressed[1] = vocab / 2;
    twin->suppressed = suppressed;
    twin->n_suppressed = row->n_suppressed = 2;
    row->suppressed = device_copy(suppressed, 2 * sizeof *suppressed);
  }
  row->sampling = s;
}

static void
free_row(oct_sample_input *twin) {
  g_free((gpointer)twin->counts);
  g_free((gpointer)twin->mask);
  g_free((gpointer)twin->biases);
  g_free((gpointer)twin->suppressed);
}

static double
logit_of(const oct_sample_input *twin, guint32 token) {
  double x = twin->logits[token];
  for (guint32 i = 0; i < twin->n_biases; i++)
    x += twin->biases[i].token == token ? twin->biases[i].bias : 0;
  return x;
}

/* Whether a cut row's token may stand for the reference's: they are as likely but for the rounding
 * of float32 exponentials, or some are whose logits are others, so that they may come in another
 * order. Of equals alone the lower comes first. */
static gboolean
may_be_for(const oct_sampling *s, const oct_sample_input *twin, guint32 token, guint32 want) {
  double least = 2e-6 * s->temperature, wanted;
  if (s->temperature == 0 || twin->counts != NULL || (s->top_p == 1 && s->top_k < 0) ||
      token >= twin->vocab || want >= twin->vocab)
    return FALSE;
  wanted = logit_of(twin, want);
  gboolean others = FALSE;
  for (guint32 t = 0; t < twin->vocab && !others; t++) {
    double difference = fabs(logit_of(twin, t) - wanted);
    others = difference > 0 && difference <= least;
  }
  return others && fabs(logit_of(twin, token) - wanted) <= least;
}

static void
check_vocab(const oct_cuda_queue *queue, guint32 vocab, double spread) {
  gsize stride = (vocab + 3) / 4 * 4;
  g_autofree float *logits = data_normal(ROWS * stride, spread);
  oct_cuda_sample_row rows[ROWS];
  oct_sample_input twins[ROWS] = {{0}};
  guint32 position[ROWS], tokens[ROWS];
  for (guint i = 0; i < ROWS; i++) {
    if (i % 4 == 2) /* ties */
      for (guint k = 0; k < vocab; k++)
        logits[i * stride + k] = rintf(logits[i * stride + k]);
    position[i] = data_between(0, 5000);
    fill_row(i, vocab, &rows[i], &twins[i]);
    twins[i].logits = logits + i * stride;
    twins[i].vocab = vocab;
    twins[i].position = position[i] + 1;
  }
  if (vocab > 4)
    logits[9 * stride + 3] = NAN;
  rows[7].seq = OCT_CUDA_NONE;
  oct_cuda_batch b = {.token_position = device_copy(position, sizeof position)};
  oct_cuda_sample call = {.n = ROWS,
                          .vocab = vocab,
                          .logits = device_copy(logits, ROWS * stride * sizeof *logits),
                          .stride = stride,
                          .batch = &b,
                          .rows = device_copy(rows, sizeof rows),
                          .tokens = device_room(sizeof tokens),
                          .workspace = device_room(oct_cuda_sample_workspace(ROWS, vocab))};
  device_check(oct_cuda_sample_rows(queue, &call));
  device_read(tokens, call.tokens, sizeof tokens);
  g_autofree oct_token_logprob *scratch = g_new(oct_token_logprob, vocab);
  guint others = 0;
  for (guint i = 0; i < ROWS; i++) {
    guint32 want = oct_ref_sample(&rows[i].sampling, &twins[i], scratch);
    if (i == 7)
      want = OCT_REF_NO_TOKEN;
    if (tokens[i] != want && !may_be_for(&rows[i].sampling, &twins[i], tokens[i], want)) {
      g_test_message("vocabulary %u, row %u: token %u, the reference's is %u", vocab, i, tokens[i],
                     want);
      others++;
    }
    free_row(&twins[i]);
  }
  g_assert_cmpuint(others, ==, 0);
}

static void
test_tokens(void) {
  static const guint32 vocabs[] = {1, 2, 320, 1000, 5003, 128256};
  for (guint i = 0; i < G_N_ELEMENTS(vocabs); i++)
    for (guint k = 0; k < 3; k++) {
      const oct_cuda_queue *queue = device_queue(0);
      if (queue == NULL)
        return;
      if (device_quick() && vocabs[i] > 10000)
        continue;
      check_vocab(queue, vocabs[i], k == 0 ? 0.5 : k == 1 ? 3 : 12);
    }
}

/* More rows than a grid is high, the best of each, of every third but for one token. */
static void
test_many(void) {
  enum { MANY = 70000, VOCAB = 5 };
  const oct_cuda_queue *queue = device_queue(0);
  if (queue == NULL || device_quick())
    return;
  const guint32 one = 3;
  g_autofree float *logits = data_normal((gsize)MANY * VOCAB, 1);
  g_autofree oct_cuda_sample_row *rows = g_new0(oct_cuda_sample_row, MANY);
  g_autofree guint32 *tokens = g_new(guint32, MANY), *zeros = g_new0(guint32, MANY);
  const guint32 *suppressed = device_copy(&one, sizeof one);
  for (guint32 i = 0; i < MANY; i++) {
    rows[i] = (oct_cuda_sample_row){.token = i, .sampling = {.top_p = 1, .repetition = 1}};
    rows[i].suppressed = suppressed;
    rows[i].n_suppressed = i % 3 == 0 ? 1 : 0;
  }
  oct_cuda_batch b = {.token_position = device_copy(zeros, MANY * sizeof *zeros)};
  oct_cuda_sample call = {.n = MANY,
                          .vocab = VOCAB,
                          .logits = device_copy(logits, (gsize)MANY * VOCAB * sizeof *logits),
                          .stride = VOCAB,
                          .batch = &b,
                          .rows = device_copy(rows, MANY * sizeof *rows),
                          .tokens = device_room(MANY * sizeof *tokens),
                          .workspace = device_room(oct_cuda_sample_workspace(MANY, VOCAB))};
  device_check(oct_cuda_sample_rows(queue, &call));
  device_read(tokens, call.tokens, MANY * sizeof *tokens);
  for (guint32 i = 0; i < MANY; i++) {
    guint32 best = 0;
    for (guint32 t = 1; t < VOCAB; t++)
      if (logits[i * VOCAB + t] > logits[i * VOCAB + best] && (t != one || i % 3 != 0))
        best = t;
    g_assert_cmpuint(tokens[i], ==, best);
  }
}

static void
test_logprobs(void) {
  static const guint32 vocabs[] = {40, 1001, 128256};
  for (guint v = 0; v < G_N_ELEMENTS(vocabs); v++) {
    const oct_cuda_queue *queue = device_queue(0);
    if (queue == NULL)
      return;
    if (device_quick() && vocabs[v] > 10000)
      continue;
    enum { N = 6, MOST = 20 };
    guint32 vocab = vocabs[v], tokens[N];
    g_autofree float *logits = data_normal((gsize)N * vocab, 4);
    oct_cuda_sample_row rows[N] = {{.seq = 0}};
    for (guint i = 0; i < N; i++) {
      tokens[i] = data_between(0, vocab - 1);
      rows[i].n_logprobs = i * 4;
      for (guint k = 0; i % 2 == 1 && k < vocab; k++)
        logits[i * vocab + k] = rintf(logits[i * vocab + k]);
    }
    oct_cuda_logprobs call = {.n = N,
                              .vocab = vocab,
                              .most = MOST,
                              .logits = device_copy(logits, (gsize)N * vocab * sizeof *logits),
                              .stride = vocab,
                              .rows = device_copy(rows, sizeof rows),
                              .tokens = device_copy(tokens, sizeof tokens),
                              .out = device_room(N * (1 + MOST) * sizeof(oct_token_logprob))};
    device_check(oct_cuda_logprobs_rows(queue, &call));
    oct_token_logprob got[N * (1 + MOST)], want[1 + MOST];
    device_read(got, call.out, sizeof got);
    for (guint i = 0; i < N; i++) {
      oct_ref_logprobs(logits + (gsize)i * vocab, vocab, tokens[i], i * 4, want);
      for (guint k = 0; k < 1 + i * 4; k++) {
        const oct_token_logprob *g = &got[i * (1 + MOST) + k];
        g_assert_cmpuint(g->token, ==, want[k].token);
        g_assert_cmpfloat_with_epsilon(g->logprob, want[k].logprob, 2e-5f);
      }
    }
  }
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/cuda/sample/draws-the-reference's-tokens", test_tokens);
  g_test_add_func("/cuda/sample/more-rows-than-a-grid-is-high", test_many);
  g_test_add_func("/cuda/sample/log-probabilities-in-order", test_logprobs);
  return g_test_run();
}
