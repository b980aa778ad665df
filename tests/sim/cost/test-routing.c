/* Distinct experts: the closed form against published figures and against drawing experts. */
#include <math.h>
#include <string.h>

#include <glib/gstdio.h>

#include "engine/model/expert-counts.h"
#include "tests/sim/cost/fixture.h"

/* Distinct experts per layer of Kimi K3 (896, top-16) for B tokens of uniform routing. */
static void
published(void) {
  static const struct {
    guint64 tokens;
    double distinct;
  } rows[] = {{1, 16},     {2, 31.7},   {4, 62.3},    {8, 120.3},   {16, 224.4},
              {32, 392.6}, {64, 613.2}, {128, 806.7}, {256, 887.1}, {512, 896}};
  g_auto(rig) r = {0};
  rig_init(&r, "kimi-k3", "b300-hgx8", 8);
  for (guint i = 0; i < G_N_ELEMENTS(rows); i++)
    g_assert_cmpfloat_with_epsilon(oct_cost_distinct_experts(r.cost, rows[i].tokens, FALSE),
                                   rows[i].distinct, 0.1);
}

/* Mean over rounds of the most distinct experts that one of `ranks` ranks holds. */
static double
heaviest_by_drawing(oct_rng *rng, guint32 tokens, guint32 n_experts, guint32 top_k, guint32 ranks) {
  enum { ROUNDS = 400 };
  double sum = 0;
  for (int round = 0; round < ROUNDS; round++) {
    gboolean touched[1024] = {FALSE};
    guint32 count[64] = {0}, most = 0;
    for (guint32 t = 0; t < tokens; t++) {
      gboolean mine[1024] = {FALSE};
      for (guint32 k = 0; k < top_k;) {
        guint32 expert = (guint32)oct_rng_below(rng, n_experts);
        if (mine[expert])
          continue;
        mine[expert] = touched[expert] = TRUE;
        k++;
      }
    }
    for (guint32 e = 0; e < n_experts; e++)
      if (touched[e])
        count[e / (n_experts / ranks)]++;
    for (guint32 k = 0; k < ranks; k++)
      most = MAX(most, count[k]);
    sum += most;
  }
  return sum / ROUNDS;
}

static void
heaviest(void) {
  oct_rng rng;
  g_auto(rig) r = {0};
  oct_rng_seed(&rng, 11, 0);
  rig_load(&r, "kimi-k3", "b300-hgx8");
  r.parallel.tensor = 8;
  r.parallel.expert_parallel = TRUE;
  rig_make(&r);
  static const guint32 tokens[] = {2, 8, 64, 256};
  for (guint i = 0; i < G_N_ELEMENTS(tokens); i++) {
    double drawn = heaviest_by_drawing(&rng, tokens[i], 896, 16, 8);
    double priced = oct_cost_distinct_experts(r.cost, tokens[i], TRUE);
    g_test_message("%u tokens: drawn %.2f, priced %.2f", tokens[i], drawn, priced);
    g_assert_cmpfloat(fabs(priced / drawn - 1), <, 0.05);
  }
}

/* Uniform routing on EP8: about +35 % distinct experts on the heaviest rank at batch 8, +9 % at 64,
 * +1 % at 256. */
static void
excess(void) {
  static const struct {
    guint64 tokens;
    double excess, tolerance;
  } rows[] = {{8, 0.35, 0.03}, {64, 0.09, 0.01}, {256, 0.01, 0.005}};
  g_auto(rig) r = {0};
  rig_load(&r, "kimi-k3", "b300-hgx8");
  r.parallel.tensor = 8;
  r.parallel.expert_parallel = TRUE;
  rig_make(&r);
  for (guint i = 0; i < G_N_ELEMENTS(rows); i++) {
    double mean = oct_cost_distinct_experts(r.cost, rows[i].tokens, FALSE) / 8;
    double most = oct_cost_distinct_experts(r.cost, rows[i].tokens, TRUE);
    g_assert_cmpfloat_with_epsilon(most / mean - 1, rows[i].excess, rows[i].tolerance);
  }
}

static void
limits(void) {
  g_auto(rig) r = {0};
  rig_load(&r, "kimi-k3", "b300-hgx8");
  r.parallel.tensor = 8;
  r.parallel.expert_parallel = TRUE;
  for (int alpha = 0; alpha <= 2; alpha++) {
    r.options.routing_alpha = alpha * 0.6;
    rig_make(&r);
    double before = 0, before_most = 0;
    for (guint64 tokens = 1; tokens < 100000; tokens = tokens * 3 / 2 + 1) {
      double all = oct_cost_distinct_experts(r.cost, tokens, FALSE);
      double most = oct_cost_distinct_experts(r.cost, tokens, TRUE);
      g_assert_cmpfloat(all, <=, 896 + 1e-9);
      g_assert_cmpfloat(most, <=, 112 + 1e-9);
      g_assert_cmpfloat(all, >=, before - 1e-9);
      g_assert_cmpfloat(most, >=, before_most - 0.05);
      g_assert_cmpfloat(most, >=, all / 8 - 0.05);
      before = all;
      before_most = most;
    }
  }
}

/* A skewed routing touches fewer experts; the first tokens touch top_k each. */
static void
skew(void) {
  g_auto(rig) uniform = {0}, power = {0};
  rig_init(&uniform, "kimi-k3", "b300-hgx8", 8);
  rig_load(&power, "kimi-k3", "b300-hgx8");
  power.parallel.tensor = 8;
  power.options.routing_alpha = 1.2;
  rig_make(&power);
  g_assert_cmpfloat_with_epsilon(oct_cost_distinct_experts(power.cost, 1, FALSE), 16, 1e-6);
  for (guint64 tokens = 2; tokens < 2000; tokens *= 2)
    g_assert_cmpfloat(oct_cost_distinct_experts(power.cost, tokens, FALSE), <,
                      oct_cost_distinct_experts(uniform.cost, tokens, FALSE));
  g_auto(rig) dense = {0};
  rig_init(&dense, "llama-3.1-8b", "h200x1", 1);
  g_assert_cmpfloat(oct_cost_distinct_experts(dense.cost, 5, FALSE), ==, 0);
}

/* Counts that follow a law give what the law gives, whatever their scale and order. */
static void
measured(void) {
  g_auto(rig) power = {0}, counted = {0};
  rig_load(&power, "kimi-k3", "b300-hgx8");
  rig_load(&counted, "kimi-k3", "b300-hgx8");
  const oct_model_spec *spec = counted.spec;
  guint32 width = oct_expert_counts_width(spec);
  g_autofree double *counts = g_new0(double, (gsize)spec->n_layers *width);
  for (guint32 layer = 1; layer < spec->n_layers; layer++)
    for (guint32 e = 0; e < width; e++)
      counts[layer * width + (e * 37 + layer) % width] = layer * 1000 * pow(e + 1.0, -1.2);
  g_autofree char *path = g_build_filename(g_get_tmp_dir(), "octet-expert-counts", (char *)NULL);
  g_autoptr(GError) error = NULL;
  g_assert_true(oct_expert_counts_write(path, spec, counts, 1000, &error));
  g_autofree double *read = oct_expert_counts_read(path, spec, &error);
  g_assert_no_error(error);
  g_autofree double *ranked = oct_expert_counts_ranked(spec, read, &error);
  g_assert_no_error(error);
  g_unlink(path);
  power.parallel.tensor = counted.parallel.tensor = 8;
  power.options.routing_alpha = 1.2;
  counted.options.routing_weights = ranked;
  counted.options.n_routing_weights = width;
  rig_make(&power);
  rig_make(&counted);
  for (guint64 tokens = 1; tokens < 2000; tokens *= 2)
    g_assert_cmpfloat_with_epsilon(oct_cost_distinct_experts(counted.cost, tokens, FALSE),
                                   oct_cost_distinct_experts(power.cost, tokens, FALSE), 1e-6);
  /* Only 20 experts are ever chosen: no more are touched. */
  for (guint32 e = 20; e < width; e++)
    ranked[e] = 0;
  rig_make(&counted);
  g_assert_cmpfloat_with_epsilon(oct_cost_distinct_experts(counted.cost, 100000, FALSE), 20, 0.01);
}

static void
balanced(void) {
  g_auto(rig) r = {0};
  rig_load(&r, "kimi-k3", "b300-hgx8");
  r.parallel.tensor = 8;
  r.parallel.expert_parallel = TRUE;
  r.options.routing_balanced = TRUE;
  rig_make(&r);
  for (guint64 tokens = 1; tokens < 200; tokens++) {
    double distinct = MIN(896, 16 * tokens);
    g_assert_cmpfloat(oct_cost_distinct_experts(r.cost, tokens, FALSE), ==, distinct);
    g_assert_cmpfloat(oct_cost_distinct_experts(r.cost, tokens, TRUE), ==, distinct / 8);
  }
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/sim/cost/routing/has-the-published-distinct-experts-of-kimi-k3", published);
  g_test_add_func("/sim/cost/routing/counts-give-what-their-law-gives", measured);
  g_test_add_func("/sim/cost/routing/balanced-touches-experts-in-turn", balanced);
  g_test_add_func("/sim/cost/routing/heaviest-rank-agrees-with-drawing", heaviest);
  g_test_add_func("/sim/cost/routing/heaviest-rank-exceeds-the-mean-as-stated", excess);
  g_test_add_func("/sim/cost/routing/stays-within-the-experts-and-rises", limits);
  g_test_add_func("/sim/cost/routing/skew-touches-fewer-experts", skew);
  return g_test_run();
}
