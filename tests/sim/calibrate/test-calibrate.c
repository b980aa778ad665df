/* A calibration: what is planned for a model, what is written and read back, what the price makes
 * of it, and the driver of whole steps. */
#include <math.h>
#include <string.h>

#include "backends/registry.h"
#include "engine/base/rng.h"
#include "sim/calibrate/host.h"
#include "sim/calibrate/steps.h"
#include "sim/cost/internal.h"
#include "tests/sim/cost/fixture.h"

#define STAMP "measured(a test)"

static GArray *
plan_of(const char *model, guint32 tensor) {
  g_auto(rig) r = {0};
  const oct_calibration_limits limits = {
      .max_tokens = 1024, .max_batch = 64, .max_context = 4096, .quick = TRUE};
  GArray *tables = g_array_new(FALSE, FALSE, sizeof(oct_timed));
  rig_init(&r, model, "h200-hgx8", tensor);
  oct_calibration_plan(r.cost, r.spec, &r.parallel, OCT_DTYPE_BF16, &limits, tables);
  return tables;
}

static const oct_timed *
find(const GArray *tables, const char *group) {
  for (guint i = 0; i < tables->len; i++) {
    g_autofree char *name = oct_timed_group(&g_array_index(tables, oct_timed, i));
    if (strcmp(name, group) == 0)
      return &g_array_index(tables, oct_timed, i);
  }
  return NULL;
}

static void
plans_what_a_model_runs(void) {
  static const char *const dense[] = {"measured product bfloat16 6144 4096",
                                      "measured product bfloat16 4096 4096",
                                      "measured product bfloat16 28672 4096",
                                      "measured product bfloat16 4096 14336",
                                      "measured product bfloat16 128256 4096",
                                      "measured decode bfloat16 32 8 128",
                                      "measured prefill bfloat16 32 8 128",
                                      "measured verify bfloat16 32 8 128 1024",
                                      "measured rotate 32 8 128",
                                      "measured activation 14336",
                                      "measured norm 4096",
                                      "measured sample 128256"};
  g_autoptr(GArray) tables = plan_of("llama-3.1-8b", 1);
  g_assert_cmpuint(tables->len, ==, G_N_ELEMENTS(dense));
  for (guint i = 0; i < G_N_ELEMENTS(dense); i++)
    g_assert_nonnull(find(tables, dense[i]));
  const oct_timed *decode = find(tables, "measured decode bfloat16 32 8 128");
  g_assert_cmpfloat(decode->x[decode->n_x - 1], ==, 64);
  g_assert_cmpfloat(decode->y[decode->n_y - 1], <=, 4096);
  const oct_timed *product = find(tables, dense[0]);
  guint verified = 0;
  for (guint i = 0; i < product->n_x; i++)
    verified += product->x[i] == 192 || product->x[i] == 320 || product->x[i] == 576;
  g_assert_cmpuint(verified, ==, 3);
  /* A rank of two has half of the heads and of the inner width. */
  g_autoptr(GArray) halves = plan_of("llama-3.1-8b", 2);
  g_assert_nonnull(find(halves, "measured decode bfloat16 16 4 128"));
  g_assert_nonnull(find(halves, "measured product bfloat16 14336 4096"));
  g_assert_nonnull(find(halves, "measured activation 7168"));
  g_autoptr(GArray) experts = plan_of("qwen3-30b-a3b", 1);
  g_assert_nonnull(find(experts, "measured experts bfloat16 128 8 2048 768"));
  g_assert_nonnull(find(experts, "measured route 128 8"));
  g_autoptr(GArray) latent = plan_of("deepseek-v3", 8);
  g_assert_nonnull(find(latent, "measured mla-decode bfloat16 16 512 64"));
}

/* ---------------------------------------------------------------- written and read */

static oct_profile *
parse(const oct_calibration *c, GError **error) {
  g_autofree char *text = oct_calibration_text(c);
  return oct_profile_parse("made.ini", text, strlen(text), NULL, NULL, error);
}

/* Twice what the model says, at m of 1, 64 and 1024. */
static oct_timed
product_table(const oct_profile *p, guint32 n, guint32 k) {
  oct_timed t = {.kind = OCT_TIMED_PRODUCT,
                 .type = OCT_DTYPE_BF16,
                 .shape = {n, k},
                 .n_x = 3,
                 .n_y = 1,
                 .x = {1, 64, 1024}};
  for (guint i = 0; i < t.n_x; i++)
    t.seconds[i] = 2e-9 * oct_cost_gemm_ns(p, OCT_MATH_BF16, (guint64)t.x[i], n, k);
  return t;
}

static void
prices_are_the_tables(void) {
  g_autoptr(GError) error = NULL;
  g_autoptr(oct_profile) base = oct_profile_load("h200-hgx8", NULL, NULL, &error);
  g_assert_no_error(error);
  g_autoptr(oct_calibration) c = oct_calibration_new("made", "made up", "h200-hgx8", STAMP);
  const oct_timed table = product_table(base, 6144, 4096);
  oct_calibration_add(c, &table);
  oct_timed decode = {.kind = OCT_TIMED_DECODE,
                      .type = OCT_DTYPE_BF16,
                      .shape = {32, 8, 128},
                      .n_x = 2,
                      .n_y = 2,
                      .x = {1, 64},
                      .y = {1024, 4096},
                      .seconds = {20e-6, 30e-6, 80e-6, 300e-6}};
  oct_calibration_add(c, &decode);
  oct_calibration_set(c, "efficiency", "hbm_read", "of the peak", 0.93);
  /* What is taken back is the base's again. */
  oct_calibration_set(c, "launch", "graph_node_s", NULL, 0.5);
  oct_calibration_drop(c, "launch");
  g_autoptr(oct_profile) p = parse(c, &error);
  g_assert_no_error(error);
  g_assert_cmpuint(p->n_measured, ==, 2);
  g_assert_cmpfloat_with_epsilon(p->efficiency.hbm_read, 0.93, 1e-9);
  g_assert_cmpfloat(p->launch.graph_node_s, ==, base->launch.graph_node_s);
  const double bytes = 6144.0 * 4096 * 2;
  for (guint i = 0; i < table.n_x; i++)
    g_assert_cmpfloat_with_epsilon(
        oct_price_product(p, OCT_DTYPE_BF16, table.x[i], 6144, 4096, bytes).seconds,
        table.seconds[i], 1e-5 * table.seconds[i]);
  /* Between points linear; past the last as the model goes on. */
  double between = oct_price_product(p, OCT_DTYPE_BF16, 32.5, 6144, 4096, bytes).seconds;
  g_assert_cmpfloat_with_epsilon(between, (table.seconds[0] + table.seconds[1]) / 2, 1e-9);
  double past = oct_price_product(p, OCT_DTYPE_BF16, 4096, 6144, 4096, bytes).seconds;
  g_assert_cmpfloat_with_epsilon(
      past, 2e-9 * oct_cost_gemm_ns(base, OCT_MATH_BF16, 4096, 6144, 4096), 1e-5 * past);
  /* Another shape is corrected as its neighbour, another type not at all. */
  double other = oct_price_product(p, OCT_DTYPE_BF16, 64, 8192, 4096, 8192.0 * 4096 * 2).seconds;
  g_assert_cmpfloat_with_epsilon(
      other, 2e-9 * oct_cost_gemm_ns(base, OCT_MATH_BF16, 64, 8192, 4096), 1e-5 * other);
  double fp8 = oct_price_product(p, OCT_DTYPE_FP8, 64, 6144, 4096, bytes / 2).seconds;
  g_assert_cmpfloat_with_epsilon(fp8, 1e-9 * oct_cost_gemm_ns(base, OCT_MATH_FP8, 64, 6144, 4096),
                                 1e-5 * fp8);
  oct_attention_shape s = {.n_sequences = 64,
                           .n_heads = 32,
                           .n_kv_heads = 8,
                           .key_dim = 128,
                           .value_dim = 128,
                           .kv_element_bytes = 2,
                           .tokens = 64,
                           .context = 64 * 2560,
                           .pairs = 64 * 2560};
  g_assert_cmpfloat_with_epsilon(oct_cost_attention_ns(p, &s), 190e3, 1);
  s.warm_l2 = TRUE;
  g_assert_cmpfloat_with_epsilon(oct_cost_attention_ns(p, &s), oct_cost_attention_ns(base, &s),
                                 1e-6);
}

/* Slices that verify drafts have a table of their own. */
static void
verified_slices_have_a_table(void) {
  g_autoptr(GError) error = NULL;
  g_autoptr(oct_calibration) c = oct_calibration_new("made", "made up", "h200-hgx8", STAMP);
  const oct_timed decode = {.kind = OCT_TIMED_DECODE,
                            .type = OCT_DTYPE_BF16,
                            .shape = {32, 8, 128},
                            .n_x = 1,
                            .n_y = 1,
                            .x = {64},
                            .y = {1024},
                            .seconds = {80e-6}};
  const oct_timed verify = {.kind = OCT_TIMED_VERIFY,
                            .type = OCT_DTYPE_BF16,
                            .shape = {32, 8, 128, 1024},
                            .n_x = 2,
                            .n_y = 2,
                            .x = {16, 64},
                            .y = {3, 9},
                            .seconds = {60e-6, 90e-6, 160e-6, 260e-6}};
  oct_calibration_add(c, &decode);
  oct_calibration_add(c, &verify);
  g_autoptr(oct_profile) p = parse(c, &error);
  g_assert_no_error(error);
  static const struct {
    guint32 n, each;
    double ns;
  } cases[] = {{64, 1, 80e3}, {64, 3, 160e3}, {64, 9, 260e3}, {64, 6, 210e3},
               {16, 3, 60e3}, {40, 3, 110e3}, {64, 2, 120e3}};
  for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
    const guint32 n = cases[i].n, each = cases[i].each;
    const oct_attention_shape s = {.n_sequences = n,
                                   .n_heads = 32,
                                   .n_kv_heads = 8,
                                   .key_dim = 128,
                                   .value_dim = 128,
                                   .kv_element_bytes = 2,
                                   .tokens = n * each,
                                   .context = n * 1024,
                                   .pairs = n * (each * 1024 - each * (each - 1) / 2)};
    g_assert_cmpfloat_with_epsilon(oct_cost_attention_ns(p, &s), cases[i].ns, 100);
  }
}

/* No price falls below its roofline, whatever a table says. */
static void
roofline_holds(void) {
  g_autoptr(GError) error = NULL;
  g_autoptr(oct_calibration) c = oct_calibration_new("made", "made up", "h200-hgx8", STAMP);
  const oct_timed table = {.kind = OCT_TIMED_PRODUCT,
                           .type = OCT_DTYPE_BF16,
                           .shape = {6144, 4096},
                           .n_x = 1,
                           .n_y = 1,
                           .x = {64},
                           .seconds = {1e-6}};
  oct_calibration_add(c, &table);
  g_autoptr(oct_profile) p = parse(c, &error);
  g_assert_no_error(error);
  oct_price price = oct_price_product(p, OCT_DTYPE_BF16, 64, 6144, 4096, 6144.0 * 4096 * 2);
  g_assert_cmpfloat_with_epsilon(price.seconds, price.hbm_bytes / p->gpu.hbm_bytes_per_s, 1e-12);
  g_assert_cmpfloat(price.fixed_s, >=, 0);
}

static void
numa_nodes_are_those_of_the_machine(void) {
  g_autoptr(GError) error = NULL;
  g_autoptr(oct_calibration) c = oct_calibration_new("made", "made up", "h200x2", STAMP);
  static const gint unknown[] = {0, -1}, beyond[] = {0, OCT_PROFILE_GPUS_MAX}, known[] = {0, 3};
  g_assert_false(oct_calibration_set_numa(c, unknown, 2));
  g_assert_false(oct_calibration_set_numa(c, beyond, 2));
  g_autofree char *without = oct_calibration_text(c);
  g_assert_null(strstr(without, "gpu_numa_node"));
  g_assert_true(oct_calibration_set_numa(c, known, 2));
  g_autoptr(oct_profile) p = parse(c, &error);
  g_assert_no_error(error);
  g_assert_cmpuint(p->topology.gpu_numa_node[0], ==, 0);
  g_assert_cmpuint(p->topology.gpu_numa_node[1], ==, 3);
  g_autofree char *text = oct_calibration_text(c);
  g_assert_nonnull(strstr(text, STAMP ": as the system tells\ngpu_numa_node=0;3;"));
}

/* A point that could not be timed cuts the table off; without any it is left out. */
static void
gaps_are_cut_off(void) {
  g_autoptr(GError) error = NULL;
  g_autoptr(oct_calibration) c = oct_calibration_new("made", "made up", "h200-hgx8", STAMP);
  oct_timed t = {.kind = OCT_TIMED_DECODE,
                 .type = OCT_DTYPE_FP8,
                 .shape = {32, 8, 128},
                 .n_x = 3,
                 .n_y = 3,
                 .x = {1, 2, 4},
                 .y = {10, 20, 30},
                 .seconds = {1e-6, 2e-6, 3e-6, 4e-6, 5e-6, 0, 6e-6, 7e-6, 0}};
  oct_calibration_add(c, &t);
  t.shape[0] = 16;
  t.seconds[0] = 0;
  oct_calibration_add(c, &t);
  g_autoptr(oct_profile) p = parse(c, &error);
  g_assert_no_error(error);
  g_assert_cmpuint(p->n_measured, ==, 1);
  g_assert_cmpuint(p->measured[0].n_x, ==, 3);
  g_assert_cmpuint(p->measured[0].n_y, ==, 2);
  g_assert_cmpfloat_with_epsilon(p->measured[0].seconds[5], 7e-6, 1e-12);
}

static void
bad_tables_are_refused(void) {
  static const struct {
    const char *text, *why;
  } cases[] = {
      {"[measured nothing 1]\nm=1;\nus=1;", "no such kind"},
      {"[measured norm]\nrows=1;\nus=1;", "too few or too many"},
      {"[measured product 1 2]\nm=1;\nus=1;", "not a type"},
      {"[measured norm 4096]\nrows=1;2;\nus=1;", "1 values are not within 2 and 2"},
      {"[measured norm 4096]\nrows=2;2;\nus=1;1;", "an axis must rise"},
      {"[measured norm 4096]\nrows=1;\nus=1;\nmore=1", "more is not a key"},
      {"[measured norm 4096]\nrows=1;\nus=0;", "not within"},
      {"[step_ratio]\ngraph_tokens=1;2;\ngraph=1;1;", "eager_tokens is missing"},
      {"[step_ratio]\ngraph_tokens=1;2;\ngraph=1;1;\neager_tokens=1;2;\neager=1;1;\n"
       "graph_short_tokens=1;2;\ngraph_short=1;1;",
       "graph_context is missing"},
      {"[step_ratio]\ngraph_tokens=1;2;\ngraph=1;1;\neager_tokens=1;2;\neager=1;1;\n"
       "graph_short_tokens=1;2;\ngraph_short=1;1;\ngraph_context=64\ngraph_short_context=64",
       "graph_short_context: 64 is not below 64"},
  };
  for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
    g_autoptr(GError) error = NULL;
    g_autofree char *text = g_strdup_printf(
        "[profile]\nschema=1\nname=made\ntitle=made up\nbase=h200-hgx8\n%s\n", cases[i].text);
    g_assert_null(oct_profile_parse("made.ini", text, strlen(text), NULL, NULL, &error));
    g_assert_nonnull(strstr(error->message, "made.ini"));
    if (strstr(error->message, cases[i].why) == NULL)
      g_error("'%s' lacks '%s'", error->message, cases[i].why);
  }
}

/* ---------------------------------------------------------------- whole steps */

static oct_steps_options
small_steps(const oct_model_spec *spec) {
  return (oct_steps_options){.drive = {.spec = spec,
                                       .parallel = OCT_PARALLEL_DEFAULT,
                                       .kv_dtype = OCT_DTYPE_BF16,
                                       .max_slots = 32,
                                       .max_context = 512,
                                       .max_tokens = 512},
                             .context = 256,
                             .repeats = 3};
}

/* The mock takes 1 ms, 1 us a token and 10 us a sequence. */
static void
drives_a_world(void) {
  g_autoptr(GError) error = NULL;
  g_autofree oct_step_timings *timings = g_new0(oct_step_timings, 1);
  g_auto(rig) r = {0};
  rig_init(&r, "smollm2-135m", "h200x1", 1);
  oct_world *world = oct_backend_world_new("mock", &error);
  g_assert_no_error(error);
  const oct_steps_options options = small_steps(r.spec);
  gboolean fine = oct_calibrate_steps(world, &options, r.profile, timings, &error);
  g_assert_no_error(error);
  g_assert_true(fine);
  oct_world_free(world);
  g_assert_cmpuint(timings->n, >, 10);
  for (guint32 i = 0; i < timings->n; i++) {
    const oct_step_timing *t = &timings->timings[i];
    const gint64 tokens =
        t->step.n_decode * (1 + t->step.drafts) + t->step.n_prefill * t->step.tokens;
    const gint64 seqs = t->step.n_decode + t->step.n_prefill;
    g_assert_cmpint(t->measured_ns, ==, 1000000 + 1000 * tokens + 10000 * seqs);
    g_assert_cmpint(t->graph, ==, t->step.n_prefill == 0);
    oct_step_shape shape;
    if (t->step.n_prefill == 0 && t->step.drafts == 0) {
      shape_decode(&shape, t->step.n_decode, t->step.context, 0);
      g_assert_cmpint(t->priced_ns, ==, step_ns(&r, &shape));
    }
  }
  /* A profile with these ratios prices the steps that they are from. */
  g_autoptr(oct_calibration) c = oct_calibration_new("made", "made up", "h200x1", STAMP);
  oct_calibrate_set_ratios(c, timings);
  oct_profile_free(r.profile);
  r.profile = parse(c, &error);
  g_assert_no_error(error);
  rig_make(&r);
  guint checked = 0, verified = 0, mixed = 0;
  for (guint32 i = 0; i < timings->n; i++) {
    const oct_step_timing *t = &timings->timings[i];
    oct_step_shape shape = {.n_domains = 1};
    if (t->curve == OCT_STEP_CHECK || t->curve == OCT_STEP_EAGER)
      continue;
    const oct_slice slice = {.n_tokens = 1 + t->step.drafts,
                             .sample = OCT_SAMPLE_ALL,
                             .flags = t->step.drafts > 0 ? OCT_SLICE_VERIFY : 0};
    for (guint32 k = 0; k < t->step.n_decode; k++)
      oct_domain_shape_add(&shape.domains[0], &slice, t->step.context - 1, 0);
    const oct_slice prompt = {
        .n_tokens = t->step.tokens, .sample = OCT_SAMPLE_LAST, .flags = OCT_SLICE_PREFILL};
    for (guint32 k = 0; k < t->step.n_prefill; k++)
      oct_domain_shape_add(&shape.domains[0], &prompt, 0, 0);
    mixed += t->curve == OCT_STEP_MIXED;
    verified += t->curve == OCT_STEP_VERIFY;
    double price = (double)step_ns(&r, &shape), measured = (double)t->measured_ns;
    g_assert_cmpfloat_with_epsilon(price, measured, 1e-4 * measured);
    checked++;
  }
  g_assert_cmpuint(verified, ==, 6);
  g_assert_cmpuint(mixed, ==, 2);
  g_assert_cmpuint(checked, ==, 28); /* with ten batches at two contexts */
}

/* A load as a chip with this law takes it, by `noise` more or less. */
static void
make_load(const oct_heat_law *law, double noise, oct_heat_trial *load) {
  double level = 0;
  oct_rng rng;
  oct_rng_seed(&rng, 7, 0);
  load->n = OCT_HEAT_LOAD_MAX;
  for (guint32 i = 0; i < load->n; i++) {
    const gboolean prompt = i > 60 && oct_rng_uniform(&rng) < 0.1 + 0.6 * (i / 40 % 2);
    const double cold = prompt ? 20e-3 : 5e-3, flops = prompt ? 7e14 * 0.021 : 0.25e12;
    double seconds = cold, excess = 0, next = level;
    for (guint k = 0; k < 20; k++) { /* until it agrees with its own length */
      const double share = MIN(1, flops / (seconds * law->flops_per_s));
      next = oct_heat_after(law, level, share, seconds, &excess);
      seconds = cold * oct_heat_factor(law, !prompt, 1, excess);
    }
    level = next;
    seconds *= 1 + noise * (2 * oct_rng_uniform(&rng) - 1);
    load->steps[i] = (oct_heat_step){
        .prompt = prompt, .seconds = seconds, .priced_s = 1.1 * cold, .flops = flops};
  }
}

/* How far what the law says of the load's steps is from what they took, in the mean. */
static double
heat_is_off_by(const oct_heat_law *law, const oct_heat_trial *load) {
  double level = 0, excess, sum = 0;
  guint n = 0;
  for (guint32 i = 0; i < load->n; i++) {
    const oct_heat_step *s = &load->steps[i];
    const double cold = s->priced_s / 1.1;
    if (i < 40 || s->seconds <= 0 || s->seconds > 2 * cold)
      continue;
    const double share = oct_heat_load(law, s->flops, s->seconds);
    level = oct_heat_after(law, level, share, s->seconds, &excess);
    sum += fabs(cold * oct_heat_factor(law, !s->prompt, share, excess) / s->seconds - 1);
    n++;
  }
  g_assert_cmpuint(n, >, 400);
  return sum / n;
}

static void
heat_is_found(void) {
  const oct_heat_law law = {.time_constant_s = 0.04,
                            .threshold = 0.4,
                            .prompts = 0.17,
                            .decodes = 0.05,
                            .flops_per_s = 7e14};
  g_autofree oct_heat_trial *load = g_new0(oct_heat_trial, 1);
  oct_heat_law found;
  for (guint i = 0; i < 2; i++) {
    make_load(&law, i * 0.02, load);
    load->steps[200].seconds *= 3; /* something else ran */
    load->steps[0].seconds = 0;
    for (guint32 k = 0; k < 40; k++) /* the first do not count */
      load->steps[k].priced_s /= 1.3;
    g_assert_true(oct_calibrate_heat_fit(load, &found));
    g_assert_cmpfloat_with_epsilon(found.time_constant_s, law.time_constant_s, 0.008);
    g_assert_cmpfloat_with_epsilon(found.threshold, law.threshold, 0.051);
    g_assert_cmpfloat_with_epsilon(found.prompts, law.prompts, 0.026);
    g_assert_cmpfloat_with_epsilon(found.decodes, law.decodes, 0.007);
    /* The highest load is taken for what the slowest prompt reached: hot, that is less. */
    g_assert_cmpfloat(found.flops_per_s, <=, law.flops_per_s);
    g_assert_cmpfloat(found.flops_per_s, >, law.flops_per_s / 1.17 * 0.97);
    /* Noise of 2 % at most is of 1 % in the mean. */
    g_assert_cmpfloat(heat_is_off_by(&found, load), <, 0.004 + i * 0.0075);
  }
  /* Decodes that are faster when it is hot have no slope. */
  oct_heat_law odd = law;
  odd.decodes = -0.05;
  make_load(&odd, 0, load);
  g_assert_true(oct_calibrate_heat_fit(load, &found));
  g_assert_cmpfloat(found.decodes, ==, 0);
  /* Steps that always take as long show none. */
  for (guint32 i = 0; i < load->n; i++)
    load->steps[i].seconds = load->steps[i].priced_s;
  g_assert_false(oct_calibrate_heat_fit(load, &found));
  g_assert_false(oct_heat_is_known(&found));
  oct_step_price price = {.n_stages = 1};
  g_assert_cmpfloat(oct_calibrate_heat_factor(&found, &price, 0.02, 0, 0), ==, 1);
  /* Prompts without rest are as warm as can be. */
  price.stages[0].groups[0].flops = 1e15;
  g_assert_cmpfloat_with_epsilon(oct_calibrate_heat_factor(&law, &price, 0.02, 0, 0), 1.17, 1e-4);
  const double rested = oct_calibrate_heat_factor(&law, &price, 0.02, 0.02, 0);
  g_assert_cmpfloat(rested, >, 1.03);
  g_assert_cmpfloat(rested, <, 1.12);
}

/* Times of the clock: all that can be said is that they are there, and not absurd. */
static void
times_the_engine(void) {
  g_autoptr(GError) error = NULL;
  oct_host_times host;
  g_auto(rig) r = {0};
  rig_init(&r, "smollm2-135m", "h200x1", 1);
  oct_world *world = oct_backend_world_new("mock", &error);
  g_assert_no_error(error);
  gboolean fine = oct_calibrate_host(world, r.spec, &r.parallel, 8, &host, &error);
  g_assert_no_error(error);
  g_assert_true(fine);
  oct_world_free(world);
  g_assert_cmpfloat(host.step_s + host.sequence_s, >, 0);
  g_assert_cmpfloat(host.step_s, <, 1);
}

static int
open_recurrent(oct_world *world, void *arg) {
  GError **error = arg;
  g_autoptr(oct_model_spec) spec = oct_model_spec_load("kimi-linear-48b-a3b", NULL, error);
  g_assert_nonnull(spec);
  oct_steps_options options = small_steps(spec);
  oct_drive *drive = oct_drive_new(world, &options.drive, error);
  g_assert_null(drive);
  return 0;
}

static void
recurrent_models_are_refused(void) {
  g_autoptr(GError) error = NULL;
  oct_world *world = oct_backend_world_new("mock", &error);
  g_assert_no_error(error);
  oct_world_run(world, open_recurrent, &error);
  g_assert_error(error, OCT_CALIBRATE_ERROR, OCT_CALIBRATE_ERROR_MODEL);
  oct_world_free(world);
}

static double
graph_ratio(const oct_step_ratio *ratio, double tokens, double context) {
  const oct_ratio_step step = {.graph = TRUE, .tokens = tokens, .context = context};
  return oct_step_ratio_of(ratio, &step);
}

static void
ratios_are_linear(void) {
  const oct_curve curve = {.n = 2, .x = {10, 20}, .y = {1, 2}};
  g_assert_cmpfloat(oct_step_ratio_at(&curve, 1), ==, 1);
  g_assert_cmpfloat_with_epsilon(oct_step_ratio_at(&curve, 15), 1.5, 1e-12);
  g_assert_cmpfloat(oct_step_ratio_at(&curve, 1000), ==, 2);
  g_assert_cmpfloat(oct_step_ratio_at(&(oct_curve){0}, 5), ==, 1);
  /* Of graphs also in the context, between the two that were timed. */
  oct_step_ratio ratio = {.graph = curve};
  g_assert_cmpfloat(graph_ratio(&ratio, 1000, 10), ==, 2);
  ratio.graph_short = (oct_curve){.n = 2, .x = {10, 20}, .y = {3, 4}};
  ratio.graph_context = 1000;
  ratio.graph_short_context = 100;
  g_assert_cmpfloat(graph_ratio(&ratio, 1000, 10), ==, 4);
  g_assert_cmpfloat_with_epsilon(graph_ratio(&ratio, 1000, 550), 3, 1e-12);
  g_assert_cmpfloat_with_epsilon(graph_ratio(&ratio, 15, 550), 2.5, 1e-12);
  g_assert_cmpfloat(graph_ratio(&ratio, 1000, 5000), ==, 2);
  /* Drafts, and prompts beside decodes, have their own where the profile has them. */
  oct_ratio_step step = {.verifies = TRUE, .graph = TRUE, .tokens = 15, .context = 5000};
  g_assert_cmpfloat_with_epsilon(oct_step_ratio_of(&ratio, &step), 1.5, 1e-12);
  ratio.verify = (oct_curve){.n = 1, .x = {10}, .y = {7}};
  g_assert_cmpfloat(oct_step_ratio_of(&ratio, &step), ==, 7);
  ratio.eager = (oct_curve){.n = 1, .x = {10}, .y = {5}};
  step = (oct_ratio_step){.mixed = TRUE, .tokens = 15};
  g_assert_cmpfloat(oct_step_ratio_of(&ratio, &step), ==, 5);
  ratio.mixed = (oct_curve){.n = 1, .x = {10}, .y = {6}};
  g_assert_cmpfloat(oct_step_ratio_of(&ratio, &step), ==, 6);
  step.mixed = FALSE;
  g_assert_cmpfloat(oct_step_ratio_of(&ratio, &step), ==, 5);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/sim/calibrate/plan/has-the-kernels-that-a-model-runs", plans_what_a_model_runs);
  g_test_add_func("/sim/calibrate/tables/price-what-was-measured", prices_are_the_tables);
  g_test_add_func("/sim/calibrate/tables/of-verified-slices", verified_slices_have_a_table);
  g_test_add_func("/sim/calibrate/tables/never-beat-the-roofline", roofline_holds);
  g_test_add_func("/sim/calibrate/tables/end-where-times-are-missing", gaps_are_cut_off);
  g_test_add_func("/sim/calibrate/topology/numa-nodes-are-those-of-the-machine",
                  numa_nodes_are_those_of_the_machine);
  g_test_add_func("/sim/calibrate/tables/are-refused-by-name", bad_tables_are_refused);
  g_test_add_func("/sim/calibrate/steps/are-timed-and-priced", drives_a_world);
  g_test_add_func("/sim/calibrate/heat/is-found-in-a-load", heat_is_found);
  g_test_add_func("/sim/calibrate/host/engine-is-timed-on-any-world", times_the_engine);
  g_test_add_func("/sim/calibrate/steps/refuse-recurrent-models", recurrent_models_are_refused);
  g_test_add_func("/sim/calibrate/steps/ratios-are-linear-and-flat-outside", ratios_are_linear);
  return g_test_run();
}
