/* The roofline's word against simulated runs: what it rules out must miss, and no layout may serve
 * more than it allows. */
#include "config.h"

#include <string.h>

#include "sim/plan/layout.h"
#include "sim/plan/probe.h"
#include "sim/replay/jobs.h"

#define TRAFFIC "gen:chat-150,rate=1"

static void
chat(oct_replay_config *c, const char *slo) {
  oct_replay_config_default(c);
  c->rows.path = TRAFFIC;
  g_assert_true(oct_slo_parse(&c->slo, slo, NULL));
}

static const char *speculative; /* of layouts_of() */

static GArray *
layouts_of(const oct_replay_config *c, const char *model, const char *node, guint32 gpus,
           oct_plan_workload *workload) {
  g_autoptr(GError) error = NULL;
  oct_plan_variant variant = {.label = ""};
  GArray *layouts = g_array_new(FALSE, TRUE, sizeof(oct_plan_layout));
  g_array_set_clear_func(layouts, oct_plan_layout_clear);
  oct_setup_options_default(&variant.options);
  variant.options.speculative = speculative;
  variant.options.model = model;
  variant.options.node = node;
  g_assert_true(oct_plan_workload_read(&c->rows, TRUE, workload, &error));
  g_assert_true(oct_plan_layouts(&variant, 0, gpus, &c->slo, workload, layouts, &error));
  return layouts;
}

static void
test_illegal(void) {
  oct_replay_config c;
  oct_plan_workload w;
  chat(&c, "ttft_p99=2s");
  GArray *layouts = layouts_of(&c, "llama-3.1-70b", "h200-hgx8", 3, &w);
  gboolean heads = FALSE, memory = FALSE, fits = FALSE;
  for (guint i = 0; i < layouts->len; i++) {
    const oct_plan_layout *l = &g_array_index(layouts, oct_plan_layout, i);
    g_assert_cmpint(l->fate == OCT_PLAN_FATE_ILLEGAL, <=, l->why != NULL);
    g_assert_cmpuint(l->gpus, <=, 3);
    heads |= g_strcmp0(l->label, "TP3 x1") == 0 && l->fate == OCT_PLAN_FATE_ILLEGAL &&
             g_strrstr(l->why, "3") != NULL;
    memory |= g_strcmp0(l->label, "TP1 x1") == 0 && l->fate == OCT_PLAN_FATE_ILLEGAL &&
              g_strrstr(l->why, "does not fit") != NULL;
    fits |= g_strcmp0(l->label, "TP2 x1") == 0 && l->fate != OCT_PLAN_FATE_ILLEGAL;
  }
  g_assert_true(heads && memory && fits);
  g_array_unref(layouts);
  oct_plan_workload_clear(&w);
}

#ifdef HAVE_SIMGRID
typedef struct run {
  oct_replay_config config;
  double rate;
} run;

static json_t *
probe(void *user, guint index, GError **error) {
  const run *r = user;
  oct_plan_probe p = {
      .config = &r->config, .requests_per_start = 1, .requests = 300, .no_abort = TRUE};
  (void)index;
  return oct_plan_probe_run(&p, r->rate, 1, error);
}

static json_t *
run_at(const oct_replay_config *c, const oct_plan_layout *l, double rate) {
  run r = {.config = *c, .rate = rate};
  json_t *out = NULL;
  g_autoptr(GError) error = NULL;
  r.config.setup = l->options;
  g_assert_true(oct_jobs_run(1, probe, &r, NULL, &out, &error));
  return out;
}
#endif

static void
test_misses(void) {
#ifndef HAVE_SIMGRID
  g_test_skip("SimGrid is not built in");
#else
  static const char *const slos[] = {"tpot_p99=6ms", "ttft_p99=120ms", "e2e_p50=5s"};
  for (gsize k = 0; k < G_N_ELEMENTS(slos); k++) {
    oct_replay_config c;
    oct_plan_workload w;
    guint n_bounded = 0, n_open = 0;
    chat(&c, slos[k]);
    GArray *layouts = layouts_of(&c, "qwen3-32b", "h200-hgx8", 4, &w);
    for (guint i = 0; i < layouts->len; i++) {
      const oct_plan_layout *l = &g_array_index(layouts, oct_plan_layout, i);
      n_open += l->fate == OCT_PLAN_FATE_OUTPACED;
      if (l->fate != OCT_PLAN_FATE_BOUNDED || l->options.n_replicas > 1 || n_bounded >= 3)
        continue;
      /* So low a rate that a request is alone most of the time. */
      json_t *out = run_at(&c, l, 0.02);
      g_test_message("%s: %s", l->label, l->why);
      g_assert_false(json_is_true(json_object_get(out, "slo_met")));
      json_decref(out);
      n_bounded++;
    }
    g_assert_cmpuint(n_bounded, >, 0);
    g_assert_cmpuint(n_open, >, 0);
    g_array_unref(layouts);
    oct_plan_workload_clear(&w);
  }
#endif
}

/* A run that is far overloaded completes no more than the roofline allows. */
static void
test_rate(void) {
#ifndef HAVE_SIMGRID
  g_test_skip("SimGrid is not built in");
#else
  oct_replay_config c;
  oct_plan_workload w;
  chat(&c, "e2e=1h");
  GArray *layouts = layouts_of(&c, "llama-3.1-8b", "h200-hgx8", 2, &w);
  guint n = 0;
  for (guint i = 0; i < layouts->len; i++) {
    const oct_plan_layout *l = &g_array_index(layouts, oct_plan_layout, i);
    if (l->fate != OCT_PLAN_FATE_OUTPACED)
      continue;
    json_t *out = run_at(&c, l, 3 * l->bound.rate_most);
    double done = json_number_value(json_object_get(out, "requests_per_s"));
    g_assert_cmpfloat(done, <=, l->bound.rate_most);
    g_assert_cmpfloat(l->bound.rate_guess, <=, l->bound.rate_most);
    json_decref(out);
    n++;
  }
  g_assert_cmpuint(n, >=, 3);
  g_array_unref(layouts);
  oct_plan_workload_clear(&w);
#endif
}

/* With drafts a step may bring more tokens of a sequence than one: what the roofline rules out
 * without them is served with them, and within what it then allows. */
static void
test_drafts(void) {
#ifndef HAVE_SIMGRID
  g_test_skip("SimGrid is not built in");
#else
  oct_replay_config c;
  oct_plan_workload w;
  chat(&c, "tpot_p90=2500us");
  GArray *plain = layouts_of(&c, "llama-3.1-8b", "h200x1", 1, &w);
  oct_plan_workload_clear(&w);
  speculative = "{\"method\":\"ngram\",\"num_speculative_tokens\":5,\"acceptance\":0.9}";
  GArray *drafts = layouts_of(&c, "llama-3.1-8b", "h200x1", 1, &w);
  speculative = NULL;
  g_assert_cmpuint(drafts->len, ==, 1);
  const oct_plan_layout *l = &g_array_index(drafts, oct_plan_layout, 0);
  g_assert_cmpint(g_array_index(plain, oct_plan_layout, 0).fate, ==, OCT_PLAN_FATE_BOUNDED);
  g_assert_cmpint(l->fate, !=, OCT_PLAN_FATE_BOUNDED);
  json_t *alone = run_at(&c, l, 0.02), *full = run_at(&c, l, 3 * l->bound.rate_most);
  g_assert_true(json_is_true(json_object_get(alone, "slo_met")));
  g_assert_cmpfloat(json_number_value(json_object_get(full, "requests_per_s")), <=,
                    l->bound.rate_most);
  g_autofree char *command = oct_plan_serve_command(l);
  g_assert_nonnull(strstr(command, "--speculative-config '{\"method\":\"ngram\","
                                   "\"num_speculative_tokens\":5}'"));
  json_decref(alone);
  json_decref(full);
  g_array_unref(plain);
  g_array_unref(drafts);
  oct_plan_workload_clear(&w);
#endif
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/plan/bound/illegal-layouts-say-why", test_illegal);
  g_test_add_func("/plan/bound/what-is-ruled-out-misses-when-it-is-simulated", test_misses);
  g_test_add_func("/plan/bound/no-layout-serves-more-than-the-roofline", test_rate);
  g_test_add_func("/plan/bound/drafts-may-beat-a-tokens-floor", test_drafts);
  return g_test_run();
}
