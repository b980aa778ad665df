/* What is sampled under speculative decoding has the model's distribution: over many seeds, the
 * second and third token of an answer are counted by what stands before them, and compared with the
 * probabilities that the model's own logprobs give, after bias, temperature and top-k. The draft
 * model is the same without the biases, so that some drafts are accepted and some are not, and
 * which depends on what is drawn. */
#include <math.h>

#include "backends/registry.h"
#include "tests/backends/cpu/golden.h"
#include "tests/engine/sched/rig.h"

#define REQUESTS    4000
#define TOP_K       3
#define TOKENS      3
#define TEMPERATURE 0.8f
#define OTHERS      20 /* beside the token itself */
#define BIAS        0.3f

/* Token `token` after `n` tokens of the output: how often it came, and should have. */
typedef struct cell {
  guint32 before[TOKENS - 1], n, token;
  double seen, wanted, unbiased;
} cell;

static cell *
cell_of(GArray *cells, const guint32 *output, guint32 n, guint32 token) {
  for (guint i = 0; i < cells->len; i++) {
    cell *c = &g_array_index(cells, cell, i);
    gboolean same = c->n == n && c->token == token;
    for (guint32 k = 0; k < n; k++)
      same &= c->before[k] == output[k];
    if (same)
      return c;
  }
  cell fresh = {.n = n, .token = token};
  for (guint32 k = 0; k < n; k++)
    fresh.before[k] = output[k];
  g_array_append_val(cells, fresh);
  return &g_array_index(cells, cell, cells->len - 1);
}

static float
bias_of(const oct_request_params *p, guint32 token) {
  for (guint32 i = 0; i < p->n_logit_bias; i++)
    if (p->logit_bias[i].token == token)
      return p->logit_bias[i].bias;
  return 0;
}

/* The most likely TOP_K of the logprobs, once biased or not, and their probabilities. */
static void
likeliest(const oct_request_params *p, const oct_logprob *others, gboolean biased, guint32 *tokens,
          double *shares) {
  double scores[1 + OTHERS], sum = 0;
  for (int i = 0; i <= OTHERS; i++)
    scores[i] = (double)others[i].logprob + (biased ? (double)bias_of(p, others[i].token) : 0);
  for (int k = 0; k < TOP_K; k++) {
    int best = 0;
    for (int i = 1; i <= OTHERS; i++)
      best = scores[i] > scores[best] ? i : best;
    tokens[k] = others[best].token;
    shares[k] = exp(scores[best] / (double)TEMPERATURE);
    sum += shares[k];
    scores[best] = -INFINITY;
  }
  for (int k = 0; k < TOP_K; k++)
    shares[k] /= sum;
}

static void
count(GArray *cells, const rig_request *q) {
  const guint32 *output = (const guint32 *)(const void *)q->tokens[0]->data;
  g_assert_cmpuint(q->tokens[0]->len, ==, TOKENS);
  g_assert_cmpuint(q->logprobs[0]->len, ==, TOKENS * (1 + OTHERS));
  for (guint32 n = 1; n < TOKENS; n++) {
    const oct_logprob *others = &g_array_index(q->logprobs[0], oct_logprob, n * (1 + OTHERS));
    guint32 tokens[TOP_K];
    double shares[TOP_K];
    for (int biased = 0; biased < 2; biased++) {
      likeliest(&q->params, others, biased, tokens, shares);
      for (int k = 0; k < TOP_K; k++) {
        cell *c = cell_of(cells, output, n, tokens[k]);
        *(biased ? &c->wanted : &c->unbiased) += shares[k];
      }
    }
    cell_of(cells, output, n, output[n])->seen += 1;
  }
}

/* Chi-square over the cells that should have at least 5; those that should have none must. Returns
 * the cells. */
static guint
chi_square(const GArray *cells, gboolean biased, double *sum) {
  guint n = 0;
  *sum = 0;
  for (guint i = 0; i < cells->len; i++) {
    const cell *c = &g_array_index(cells, cell, i);
    double wanted = biased ? c->wanted : c->unbiased;
    if (biased && wanted <= 0)
      g_assert_cmpfloat(c->seen, ==, 0);
    if (wanted < 5)
      continue;
    *sum += (c->seen - wanted) * (c->seen - wanted) / wanted;
    n++;
  }
  return n;
}

static void
samples_the_models_distribution(void) {
  g_autoptr(GError) error = NULL;
  golden g;
  rig r;
  oct_engine_config config;
  golden_open(&g, "llama");
  g_autofree char *text = g_strdup_printf("cpu:model=%s,threads=2,clock=virtual", g.folder);
  oct_world *world = oct_backend_world_new(text, &error);
  g_assert_no_error(error);
  rig_init(&r, world);
  r.check = FALSE;
  rig_config(&config, g.spec, 1024, 0);
  config.max_num_seqs = 64;
  config.max_num_batched_tokens = 512;
  config.max_model_len = 128;
  config.instance.check_tags = FALSE;
  config.queue_max = REQUESTS;
  config.speculation =
      (oct_speculation){.method = OCT_DRAFT_MODEL, .n_tokens = 2, .draft = config.instance};
  rig_add_engine(&r, &config);
  /* Every fifth token is biased. */
  oct_token_bias biases[64];
  for (guint32 i = 0; i < G_N_ELEMENTS(biases); i++)
    biases[i] = (oct_token_bias){5 * i, i % 2 == 0 ? BIAS : -BIAS};
  for (guint32 i = 0; i < REQUESTS; i++) {
    oct_request_params p;
    oct_request_params_default(&p);
    p.prompt_ids = g.prompt;
    p.prompt_tokens = g.n_prompt;
    p.max_tokens = TOKENS;
    p.ignore_eos = TRUE;
    p.seed = i + 1;
    p.temperature = TEMPERATURE;
    p.top_k = TOP_K;
    p.n_logprobs = OTHERS;
    p.logit_bias = biases;
    p.n_logit_bias = G_N_ELEMENTS(biases);
    (void)rig_add(&r, 0, &p);
  }
  rig_run(&r);
  g_assert_cmpstr(r.failure, ==, NULL);
  const oct_draft_stats *d = &r.stats[0].speculation;
  GArray *cells = g_array_new(FALSE, FALSE, sizeof(cell));
  for (guint i = 0; i < REQUESTS; i++)
    count(cells, rig_request_at(&r, i));
  double right, wrong;
  guint n = chi_square(cells, TRUE, &right), n_wrong = chi_square(cells, FALSE, &wrong);
  g_test_message("%" G_GUINT64_FORMAT " of %" G_GUINT64_FORMAT
                 " drafts accepted; chi-square %.1f over %u cells, %.1f over %u against the draft "
                 "model's distribution",
                 d->accepted, d->draft_tokens, right, n, wrong, n_wrong);
  g_assert_cmpuint(d->accepted, >, d->draft_tokens / 5);
  g_assert_cmpuint(d->accepted, <, d->draft_tokens * 9 / 10);
  g_assert_cmpuint(n, >, 20);
  /* A third of the cells are no degrees of freedom; as if they were, and four deviations. */
  g_assert_cmpfloat(right, <, n + 4 * sqrt(2.0 * n));
  g_assert_cmpfloat(wrong, >, 10.0 * n_wrong);
  g_array_unref(cells);
  rig_clear(&r);
  golden_close(&g);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/cpu/speculation/samples-the-models-distribution",
                  samples_the_models_distribution);
  return g_test_run();
}
