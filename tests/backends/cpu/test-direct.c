/* A model run directly: logits and perplexity are those of the goldens, divergence is that of their
 * float64 arithmetic, and what comes into weights is counted. */
#include <math.h>
#include <string.h>

#include "backends/cpu/direct.h"
#include "engine/model/quantise/divergence.h"
#include "tests/backends/cpu/golden.h"

static oct_cpu_direct *
open_direct(const golden *g, oct_kv_format kv) {
  g_autoptr(GError) error = NULL;
  const oct_cpu_direct_options options = {
      .path = g->folder, .kv = kv, .threads = 2, .context = GOLDEN_PROMPT};
  oct_cpu_direct *direct = oct_cpu_direct_new(&options, &error);
  g_assert_no_error(error);
  return direct;
}

/* The result for the golden prompt, with a reference (may be NULL). */
static oct_divergence_result
judge(const golden *g, oct_cpu_direct *direct, oct_cpu_direct *reference) {
  guint32 vocab = g->spec->vocab;
  oct_divergence_result r;
  g_autoptr(oct_divergence) d = oct_divergence_new(vocab);
  g_autofree float *a = g_new(float, vocab), *b = g_new(float, vocab);
  oct_cpu_direct_run(direct, g->prompt, GOLDEN_PROMPT);
  if (reference != NULL)
    oct_cpu_direct_run(reference, g->prompt, GOLDEN_PROMPT);
  for (guint32 i = 0; i + 1 < GOLDEN_PROMPT; i++) {
    oct_cpu_direct_logits(direct, i, 1, a);
    if (reference != NULL)
      oct_cpu_direct_logits(reference, i, 1, b);
    oct_divergence_add(d, a, reference != NULL ? b : NULL, g->prompt[i + 1]);
  }
  oct_divergence_get(d, &r);
  return r;
}

/* ln p of a row's tokens in float64. */
static void
log_probabilities(const float *logits, guint32 n, double *out) {
  double sum = 0;
  for (guint32 i = 0; i < n; i++)
    sum += exp((double)logits[i]);
  for (guint32 i = 0; i < n; i++)
    out[i] = (double)logits[i] - log(sum);
}

static void
perplexity(gconstpointer name) {
  golden g;
  golden_open(&g, name);
  guint32 vocab = g.spec->vocab;
  const float *logits = golden_floats(&g, "logits", (gsize)GOLDEN_PROMPT * vocab);
  g_autofree double *p = g_new(double, vocab);
  double nll = 0;
  for (guint32 i = 0; i + 1 < GOLDEN_PROMPT; i++) {
    log_probabilities(logits + (gsize)i * vocab, vocab, p);
    nll -= p[g.prompt[i + 1]] / (GOLDEN_PROMPT - 1);
  }
  oct_cpu_direct *direct = open_direct(&g, OCT_KV_F32);
  oct_divergence_result r = judge(&g, direct, NULL);
  g_assert_cmpuint(r.positions, ==, GOLDEN_PROMPT - 1);
  g_assert_cmpfloat_with_epsilon(r.nll, nll, 1e-4);
  g_assert_cmpfloat_with_epsilon(r.perplexity, exp(nll), 1e-4 * exp(nll));
  oct_cpu_direct_free(direct);
  golden_close(&g);
}

/* A cache in bfloat16 against float32: its own float64 sum over both models' logits. */
static void
cache_types(void) {
  golden g;
  golden_open(&g, "llama");
  guint32 vocab = g.spec->vocab;
  oct_cpu_direct *narrow = open_direct(&g, OCT_KV_BF16), *wide = open_direct(&g, OCT_KV_F32);
  oct_divergence_result same = judge(&g, wide, wide), r = judge(&g, narrow, wide);
  g_assert_cmpfloat(same.kl_max, <, 1e-12);
  g_assert_cmpfloat(same.top1_agreement, ==, 1);
  g_autofree float *a = g_new(float, vocab), *b = g_new(float, vocab);
  g_autofree double *p = g_new(double, vocab), *q = g_new(double, vocab);
  double mean = 0;
  for (guint32 i = 0; i + 1 < GOLDEN_PROMPT; i++) {
    oct_cpu_direct_logits(narrow, i, 1, a);
    oct_cpu_direct_logits(wide, i, 1, b);
    log_probabilities(a, vocab, q);
    log_probabilities(b, vocab, p);
    for (guint32 k = 0; k < vocab; k++)
      mean += exp(p[k]) * (p[k] - q[k]) / (GOLDEN_PROMPT - 1);
  }
  g_assert_cmpfloat(r.kl_mean, >, 0);
  g_assert_cmpfloat_with_epsilon(r.kl_mean, mean, 1e-9);
  g_assert_cmpfloat(r.kl_mean, <, 1e-3);
  oct_cpu_direct_free(narrow);
  oct_cpu_direct_free(wide);
  golden_close(&g);
}

/* The first layer's q, k and v see the normed embeddings; every matrix sees every token, but for
 * experts, which share the tokens out. */
static void
inputs(gconstpointer name) {
  golden g;
  golden_open(&g, name);
  oct_cpu_direct *direct = open_direct(&g, OCT_KV_F32);
  const oct_weight_map *map = oct_cpu_direct_model(direct)->map;
  oct_inputs *seen = oct_inputs_new(map);
  oct_cpu_direct_collect(direct, seen);
  oct_cpu_direct_run(direct, g.prompt, GOLDEN_PROMPT);
  oct_cpu_direct_collect(direct, NULL);
  oct_cpu_direct_run(direct, g.prompt, GOLDEN_PROMPT); /* not counted */
  guint64 gates = 0, downs = 0;
  for (guint i = 0; i < oct_weight_map_n(map); i++) {
    const oct_weight *w = oct_weight_map_at(map, i);
    if (w->columns == 1 || w->kind <= OCT_WEIGHT_HEAD)
      continue;
    if (w->kind == OCT_WEIGHT_EXPERT_GATE)
      gates += oct_inputs_rows(seen, w);
    else if (w->kind == OCT_WEIGHT_EXPERT_DOWN)
      downs += oct_inputs_rows(seen, w);
    else if (w->kind != OCT_WEIGHT_EXPERT_UP)
      g_assert_cmpuint(oct_inputs_rows(seen, w), ==, GOLDEN_PROMPT);
  }
  guint64 pairs = 0;
  for (guint32 l = 0; l < g.spec->n_layers; l++)
    pairs += (guint64)GOLDEN_PROMPT * g.spec->ffn[g.spec->layers[l].ffn].top_k;
  g_assert_cmpuint(gates, ==, pairs);
  g_assert_cmpuint(downs, ==, pairs);
  guint32 hidden = g.spec->hidden;
  const float *x = golden_floats(&g, "hidden.0", (gsize)GOLDEN_PROMPT * hidden);
  const oct_weight *norm = oct_weight_map_get(map, OCT_WEIGHT_ATTN_NORM, 0, 0);
  g_autofree float *weight = g_new(float, hidden), *sizes = g_new(float, hidden);
  g_autofree double *wanted = g_new0(double, hidden);
  oct_weight_read(norm, 0, hidden, weight);
  oct_inputs_sizes(seen, oct_weight_map_get(map, OCT_WEIGHT_K, 0, 0), sizes);
  for (guint32 i = 0; i < GOLDEN_PROMPT; i++) {
    double squares = 0;
    for (guint32 c = 0; c < hidden; c++)
      squares += (double)x[i * hidden + c] * (double)x[i * hidden + c];
    double scale = 1 / sqrt(squares / hidden + g.spec->rms_norm_eps);
    for (guint32 c = 0; c < hidden; c++)
      wanted[c] += fabs((double)x[i * hidden + c] * scale * (double)weight[c]) / GOLDEN_PROMPT;
  }
  for (guint32 c = 0; c < hidden; c++)
    g_assert_cmpfloat_with_epsilon((double)sizes[c], wanted[c], 1e-5);
  oct_inputs_free(seen);
  oct_cpu_direct_free(direct);
  golden_close(&g);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  for (guint i = 0; golden_names[i] != NULL; i++) {
    g_autofree char *path =
        g_strdup_printf("/cpu/direct/perplexity-is-the-goldens/%s", golden_names[i]);
    g_test_add_data_func(path, golden_names[i], perplexity);
  }
  g_test_add_func("/cpu/direct/divergence-of-cache-types", cache_types);
  g_test_add_data_func("/cpu/direct/sees-what-comes-in/llama", "llama", inputs);
  g_test_add_data_func("/cpu/direct/sees-what-comes-in/mixtral", "mixtral", inputs);
  return g_test_run();
}
