/* The price of a step: that it is the sum of its operators, above its roofline, rising, and what
 * each kind of parallel layout does to it. */
#include <math.h>
#include <string.h>

#include "tests/sim/cost/fixture.h"

/* Models and layouts that between them have every kind of layer and every way of splitting it. */
static const struct layout {
  const char *model, *node;
  guint32 tensor, pipeline, data, context;
  gboolean expert, replicated;
  double alpha;
} layouts[] = {
    {"kimi-k3", "b300-hgx8", 8, 1, 1, 1, FALSE, FALSE, 0},
    {"kimi-k3", "b300-hgx8", 8, 1, 1, 8, TRUE, FALSE, 0},
    {"kimi-k3", "b300-hgx8", 1, 1, 8, 1, TRUE, FALSE, 1.01},
    {"kimi-k3", "pairs-4rc", 4, 2, 1, 1, FALSE, TRUE, 0},
    {"deepseek-v3", "h200-hgx8", 4, 1, 2, 1, TRUE, FALSE, 0},
    {"gpt-oss-120b", "h100-hgx8", 2, 1, 1, 1, FALSE, FALSE, 0},
    {"llama-3.1-70b", "h200-hgx8", 2, 4, 1, 1, FALSE, FALSE, 0},
    {"mixtral-8x7b", "b200-hgx8", 4, 1, 1, 1, TRUE, FALSE, 0},
    {"kimi-linear-48b-a3b", "h200x2", 2, 1, 1, 1, FALSE, FALSE, 0},
    {"smollm2-135m", "h200x1", 1, 1, 1, 1, FALSE, FALSE, 0},
    {"llama-3.1-8b", "h200x1-measured", 1, 1, 1, 1, FALSE, FALSE, 0},
    {"qwen3-30b-a3b", "h200x2-measured", 2, 1, 1, 1, FALSE, FALSE, 0},
};

static void
rig_layout(rig *r, const struct layout *l, oct_moe_kernel kernel) {
  rig_load(r, l->model, l->node);
  r->parallel.tensor = l->tensor;
  r->parallel.pipeline = l->pipeline;
  r->parallel.data = l->data;
  r->parallel.decode_context = l->context;
  r->parallel.expert_parallel = l->expert;
  r->parallel.replicate_shared = l->replicated;
  r->parallel.shard_latent = !l->replicated;
  r->options.routing_alpha = l->alpha;
  r->options.moe_kernel = kernel;
  rig_make(r);
}

typedef void (*check_fn)(rig *r, oct_rng *rng);

static void
each_layout(check_fn check) {
  oct_rng rng;
  oct_rng_seed(&rng, 3, 0);
  for (guint i = 0; i < G_N_ELEMENTS(layouts); i++)
    for (int kernel = 0; kernel < 2; kernel++) {
      g_auto(rig) r = {0};
      rig_layout(&r, &layouts[i], (oct_moe_kernel)kernel);
      check(&r, &rng);
    }
}

/* ---------------------------------------------------------------- sums and floors */

static double
lowest_ratio(const oct_profile *profile) {
  const oct_step_ratio *of = &profile->step_ratio;
  const oct_curve *curves[] = {&of->graph, &of->eager, &of->graph_short, &of->verify, &of->mixed};
  double lowest = 1;
  for (gsize c = 0; c < G_N_ELEMENTS(curves); c++)
    for (guint i = 0; i < curves[c]->n; i++)
      lowest = MIN(lowest, curves[c]->y[i]);
  return lowest;
}

static void
sum_of_operators(rig *r, oct_rng *rng) {
  oct_cost_operator operators[400];
  for (int step = 0; step < 60; step++) {
    oct_step_shape shape;
    oct_step_price price;
    shape_random(&shape, rng, r->parallel.data, oct_cost_window(r->spec));
    if (step % 4 == 0)
      shape_decode(&shape, 1 + (guint32)oct_rng_below(rng, 600),
                   1 + (guint32)oct_rng_below(rng, 9000), oct_cost_window(r->spec));
    shape.expert_miss_bytes[0] = step % 5 == 0 ? 1e9 : 0;
    oct_cost_step(r->cost, &shape, &price);
    guint n = oct_cost_operators(r->cost, &shape, operators, G_N_ELEMENTS(operators));
    g_assert_cmpuint(n, <=, G_N_ELEMENTS(operators));
    double seconds[OCT_COST_STAGES_MAX] = {0}, bytes[OCT_COST_STAGES_MAX] = {0};
    double fixed[OCT_COST_STAGES_MAX] = {0};
    for (guint i = 0; i < n; i++) {
      const oct_cost_operator *o = &operators[i];
      g_assert_cmpfloat(o->fixed_s, <=, o->seconds);
      seconds[o->stage] += o->seconds * o->count;
      fixed[o->stage] += o->fixed_s * o->count;
      bytes[o->stage] += o->hbm_bytes * o->count;
    }
    for (guint32 s = 0; s < price.n_stages; s++) {
      gint64 groups = 0;
      double moved = 0;
      for (guint g = 0; g < OCT_COST_GROUPS; g++) {
        groups += price.stages[s].groups[g].ns;
        moved += price.stages[s].groups[g].hbm_bytes;
      }
      g_assert_cmpint(groups, ==, price.stages[s].ns);
      /* A ratio of whole steps that takes all that is fixed and more ends at memory's floor: above
       * the ratio's sum by no more than that time, and not above the kernels' own. */
      if (r->profile->step_ratio.graph.n > 0 && price.stages[s].groups[OCT_PART_FIXED].ns == 0) {
        const double floor_s = bytes[s] / r->profile->gpu.hbm_bytes_per_s;
        const double own_s = seconds[s] / lowest_ratio(r->profile);
        g_assert_cmpint(price.stages[s].ns, >=, oct_cost_ns(seconds[s]) - 1);
        g_assert_cmpint(price.stages[s].ns, <=, oct_cost_ns(MIN(seconds[s] + floor_s, own_s)) + 1);
      } else
        g_assert_cmpint(ABS(oct_cost_ns(seconds[s]) - price.stages[s].ns), <=, 1);
      /* Ratios of whole steps may take from it what memory needs for its bytes. */
      if (r->profile->step_ratio.graph.n == 0)
        g_assert_cmpint(ABS(oct_cost_ns(fixed[s]) - price.stages[s].groups[OCT_PART_FIXED].ns), <=,
                        1);
      g_assert_cmpfloat(fabs(moved - bytes[s]), <=, 1e-6 * (bytes[s] + 1));
    }
  }
}

static void
sums(void) {
  each_layout(sum_of_operators);
}

static guint n_steps;

/* No step is faster than its roofline, and no group moves more than HBM carries in its time. */
static void
above_floor(rig *r, oct_rng *rng) {
  double peak = 0;
  for (int m = 0; m < OCT_MATH_COUNT; m++)
    peak = MAX(peak, r->profile->gpu.flops[m]);
  for (int step = 0; step < 60; step++, n_steps++) {
    oct_step_shape shape;
    oct_step_price price;
    shape_random(&shape, rng, r->parallel.data, oct_cost_window(r->spec));
    oct_cost_step(r->cost, &shape, &price);
    gint64 ns = 0;
    for (guint32 s = 0; s < price.n_stages; s++) {
      ns += price.stages[s].ns;
      const oct_cost_group *groups = price.stages[s].groups;
      for (guint g = 0; g < OCT_COST_GROUPS; g++) {
        g_assert_cmpint(groups[g].ns, >=, 0);
        g_assert_cmpfloat(groups[g].hbm_bytes, <=,
                          r->profile->gpu.hbm_bytes_per_s * 1e-9 * ((double)groups[g].ns + 1));
        g_assert_cmpfloat(groups[g].flops, <=, peak * 1e-9 * ((double)groups[g].ns + 1));
      }
    }
    gint64 floor = oct_cost_floor_ns(r->cost, &shape);
    if (ns < floor)
      g_error("%s: %" G_GINT64_FORMAT " ns below the floor %" G_GINT64_FORMAT, r->spec->name, ns,
              floor);
  }
}

static void
floors(void) {
  n_steps = 0;
  each_layout(above_floor);
  g_assert_cmpuint(n_steps, >=, 1000);
}

/* ---------------------------------------------------------------- monotony */

static void
rising(rig *r, oct_rng *rng) {
  (void)rng;
  if (r->profile->step_ratio.graph.n > 0)
    return; /* whole steps are as they were measured */
  const guint32 window = oct_cost_window(r->spec);
  oct_step_shape shape;
  for (guint32 context = 1; context < 200000; context = context * 3 + 1) {
    gint64 before = 0;
    for (guint32 batch = 1; batch <= 700; batch += 1 + batch / 7) {
      shape_decode(&shape, batch, context, window);
      gint64 ns = step_ns(r, &shape);
      /* Leaving the graph costs launches, never saves. */
      g_assert_cmpint(ns, >=, before);
      before = ns;
    }
  }
  for (guint32 batch = 1; batch <= 300; batch *= 5) {
    gint64 before = 0;
    for (guint32 context = 1; context < 200000; context = context * 2 + 1) {
      shape_decode(&shape, batch, context, window);
      gint64 ns = step_ns(r, &shape);
      g_assert_cmpint(ns, >=, before);
      before = ns;
    }
  }
  gint64 before = 0;
  for (guint32 tokens = 1; tokens < 20000; tokens += 1 + tokens / 5) {
    shape_prefill(&shape, 1, tokens, 100, window);
    gint64 ns = step_ns(r, &shape);
    g_assert_cmpint(ns, >=, before);
    before = ns;
  }
}

static void
monotone(void) {
  each_layout(rising);
}

/* ---------------------------------------------------------------- Kimi K3 */

/* Weights that a decode step reads on 8 B300: total GB by batch, each once. What every rank has
 * whole (q_a, kv_a and the gates of delta attention) is read by all of them. */
static void
k3_bytes(void) {
  static const struct {
    guint32 batch;
    double total_gb;
  } rows[] = {{1, 137.0},  {2, 162.4}, {4, 211.7},  {8, 305.3},  {16, 473.4},
              {32, 745.0}, {64, 1101}, {128, 1413}, {256, 1543}, {512, 1558}};
  g_auto(rig) r = {0};
  rig_init(&r, "kimi-k3", "b300-hgx8", 8);
  for (guint i = 0; i < G_N_ELEMENTS(rows); i++) {
    oct_step_shape shape;
    shape_decode(&shape, rows[i].batch, 1, 0);
    double state =
        2.0 * rows[i].batch * (double)oct_model_rank_state_bytes(r.spec, &r.parallel, 0, 0);
    double bytes = 8 * (oct_cost_floor_bytes(r.cost, &shape, 0) - state);
    const double whole = 1e-9 * 2 * 7168 * (24 * (1536 + 576) + 69 * 128);
    /* Norms are whole too: 0.1 % at batch 1; the table is rounded. */
    g_assert_cmpfloat_with_epsilon(bytes / 1e9 - 7 * whole, rows[i].total_gb,
                                   0.004 * rows[i].total_gb);
  }
}

/* MLA latent and KDA state: bytes that a step of one sequence adds to the floor. */
static void
k3_cache(void) {
  g_auto(rig) r = {0};
  rig_init(&r, "kimi-k3", "b300-hgx8", 8);
  oct_step_shape shorter, longer;
  shape_decode(&shorter, 1, 1000, 0);
  shape_decode(&longer, 1, 2000, 0);
  double kv = oct_cost_floor_bytes(r.cost, &longer, 0) - oct_cost_floor_bytes(r.cost, &shorter, 0);
  g_assert_cmpfloat(kv, ==, 1000 * 27648.0); /* replicated: every rank reads it all */
  g_assert_cmpuint(8 * oct_model_rank_state_bytes(r.spec, &r.parallel, 0, 0), ==, 449372160);
  r.parallel.decode_context = 8;
  rig_make(&r);
  double split =
      oct_cost_floor_bytes(r.cost, &longer, 0) - oct_cost_floor_bytes(r.cost, &shorter, 0);
  g_assert_cmpfloat(split, ==, 1000 * 27648.0 / 8);
}

static const oct_cost_operator *
find(const oct_cost_operator *operators, guint n, const char *name) {
  for (guint i = 0; i < n; i++)
    if (strcmp(operators[i].name, name) == 0)
      return &operators[i];
  g_error("no operator %s", name);
}

/* The measured table of the K3 expert block, at the points where the model meets it exactly: one
 * token touches 16 experts under any routing, and thousands touch all 896. */
static void
k3_experts(void) {
  g_auto(rig) r = {0};
  rig_init(&r, "kimi-k3", "b300-hgx8", 8);
  oct_cost_operator operators[200];
  oct_step_shape shape;
  shape_decode(&shape, 1, 1000, 0);
  guint n = oct_cost_operators(r.cost, &shape, operators, G_N_ELEMENTS(operators));
  const oct_cost_operator *experts = find(operators, n, "moe.experts");
  g_assert_cmpuint(experts->count, ==, 92);
  g_assert_cmpuint(experts->n, ==, 16);
  g_assert_cmpfloat_with_epsilon(experts->seconds, 65.42e-6, 0.5e-6);
  shape_prefill(&shape, 1, 8192, 0, 0);
  n = oct_cost_operators(r.cost, &shape, operators, G_N_ELEMENTS(operators));
  double eager = r.profile->launch.kernel_pipelined_s;
  experts = find(operators, n, "moe.experts");
  g_assert_cmpuint(experts->n, ==, 896);
  g_assert_cmpfloat_with_epsilon(experts->seconds - eager, 6570e-6, 1e-6);
  /* 64 tokens touch 613 experts: less than round robin's 896 (702.8 us), more than a power law's
   * 344 (472 us). */
  shape_decode(&shape, 64, 1000, 0);
  n = oct_cost_operators(r.cost, &shape, operators, G_N_ELEMENTS(operators));
  experts = find(operators, n, "moe.experts");
  g_assert_cmpuint(experts->n, ==, 613);
  g_assert_cmpfloat(experts->seconds, >, 472e-6);
  g_assert_cmpfloat(experts->seconds, <, 702.8e-6);
  gint64 measured = step_ns(&r, &shape);
  r.options.moe_kernel = OCT_MOE_KERNEL_TARGET;
  rig_make(&r);
  g_assert_cmpint(step_ns(&r, &shape), <, measured);
  /* Nor is the best slower than what is measured where no table has the model's type. */
  g_auto(rig) other = {0};
  rig_init(&other, "gpt-oss-120b", "h100-hgx8", 8);
  measured = step_ns(&other, &shape);
  other.options.moe_kernel = OCT_MOE_KERNEL_TARGET;
  rig_make(&other);
  g_assert_cmpint(step_ns(&other, &shape), <=, measured);
}

/* What the contextual kernels read: KDA state in and out, the MLA latent; and how often they run.
 */
static void
k3_kernels(void) {
  g_auto(rig) r = {0};
  rig_init(&r, "kimi-k3", "b300-hgx8", 8);
  oct_cost_operator operators[200];
  oct_step_shape shape;
  shape_decode(&shape, 64, 10000, 0);
  guint n = oct_cost_operators(r.cost, &shape, operators, G_N_ELEMENTS(operators));
  const oct_cost_operator *kda = find(operators, n, "kda.decode");
  double state = 2.0 * 64 * (double)oct_model_rank_state_bytes(r.spec, &r.parallel, 0, 0);
  g_assert_cmpuint(kda->count, ==, 69);
  g_assert_cmpfloat(kda->hbm_bytes * 69, >=, state);
  g_assert_cmpfloat(kda->hbm_bytes * 69, <=, state * 1.02);
  const oct_cost_operator *mla = find(operators, n, "mla.decode");
  double latent = 64 * 10000 * 1152.0;
  g_assert_cmpuint(mla->count, ==, 24);
  g_assert_cmpfloat(mla->hbm_bytes, >=, latent);
  g_assert_cmpfloat(mla->hbm_bytes, <=, latent * 1.01);
  g_assert_cmpfloat(mla->flops, ==, 2 * 1088.0 * 12 * 64 * 10000);
  g_assert_cmpuint(find(operators, n, "attn_res.mix")->count, ==, 2 * 93 + 1);
  /* With DCP8 a rank has an eighth of the tokens for eight times the heads: the same arithmetic. */
  r.parallel.decode_context = 8;
  rig_make(&r);
  n = oct_cost_operators(r.cost, &shape, operators, G_N_ELEMENTS(operators));
  mla = find(operators, n, "mla.decode");
  g_assert_cmpfloat(mla->flops, ==, 2 * 1088.0 * 12 * 64 * 10000);
  g_assert_cmpfloat(mla->hbm_bytes, <=, latent / 8 * 1.2);
}

/* A step at batch 1 lies between its floor (2.3 ms at 7.7 TB/s) and ten times that; 186 all-reduces
 * of 14-21 KB take about 1 ms in graphs. */
static void
k3_batch_one(void) {
  g_auto(rig) r = {0};
  rig_init(&r, "kimi-k3", "b300-hgx8", 8);
  oct_cost_operator operators[200];
  oct_step_shape shape;
  shape_decode(&shape, 1, 1000, 0);
  gint64 floor = oct_cost_floor_ns(r.cost, &shape);
  g_assert_cmpfloat_with_epsilon((double)floor * 1e-6, 2.34, 0.03);
  g_assert_cmpint(step_ns(&r, &shape), >, 2 * floor);
  g_assert_cmpint(step_ns(&r, &shape), <, 10 * floor);
  guint n = oct_cost_operators(r.cost, &shape, operators, G_N_ELEMENTS(operators)), count = 0;
  double seconds = 0;
  for (guint i = 0; i < n; i++)
    if (g_str_has_suffix(operators[i].name, "all_reduce") && operators[i].name[0] != 'e') {
      count += operators[i].count;
      seconds += operators[i].count * operators[i].seconds;
    }
  g_assert_cmpuint(count, ==, 186);
  g_assert_cmpfloat_with_epsilon(seconds, 1.0e-3, 0.05e-3);
}

/* ---------------------------------------------------------------- layouts */

/* Pipeline stages of K3 send the running sum and the block snapshots so far. */
static void
sends(void) {
  g_auto(rig) r = {0};
  rig_load(&r, "kimi-k3", "b300-hgx8");
  r.parallel.tensor = 2;
  r.parallel.pipeline = 4;
  const guint32 layers[4] = {24, 24, 24, 21};
  memcpy(r.parallel.stage_layers, layers, sizeof layers);
  rig_make(&r);
  oct_step_shape shape;
  oct_step_price price;
  shape_decode(&shape, 10, 1000, 0);
  oct_cost_step(r.cost, &shape, &price);
  g_assert_cmpuint(price.n_stages, ==, 4);
  for (guint32 s = 0; s < 3; s++) {
    g_assert_cmpfloat(price.stages[s].send_bytes, ==, 10 * 7168 * 2.0 * (1 + 2 * (s + 1)));
    g_assert_cmpint(price.stages[s].send_ns, >, 0);
  }
  g_assert_cmpfloat(price.stages[3].send_bytes, ==, 0);
  g_assert_cmpint(price.stages[3].send_ns, ==, 0);
  /* A split in the middle of a block ships the block's snapshot too. */
  const guint32 uneven[4] = {25, 24, 24, 20};
  memcpy(r.parallel.stage_layers, uneven, sizeof uneven);
  rig_make(&r);
  oct_cost_step(r.cost, &shape, &price);
  g_assert_cmpfloat(price.stages[0].send_bytes, ==, 10 * 7168 * 2.0 * 4);
}

/* Stages together do what one stage does, save launches and the larger share of each rank. */
static void
stages(void) {
  g_auto(rig) one = {0}, four = {0};
  rig_init(&one, "llama-3.1-8b", "h200-hgx8", 1);
  rig_load(&four, "llama-3.1-8b", "h200-hgx8");
  four.parallel.pipeline = 4;
  rig_make(&four);
  oct_step_shape shape;
  oct_step_price a, b;
  shape_decode(&shape, 16, 1000, 0);
  oct_cost_step(one.cost, &shape, &a);
  oct_cost_step(four.cost, &shape, &b);
  gint64 sum = 0;
  for (guint32 s = 0; s < 4; s++)
    sum += b.stages[s].ns;
  gint64 launches = 3 * oct_cost_ns(one.profile->launch.graph_launch_s);
  g_assert_cmpint(ABS(sum - launches - a.stages[0].ns), <=, 4);
}

/* With two domains a layer waits for the heavier; an idle domain costs nothing but joins the
 * experts. */
static void
domains(void) {
  g_auto(rig) r = {0};
  rig_load(&r, "deepseek-v3", "h200-hgx8");
  r.parallel.data = 8;
  r.parallel.expert_parallel = TRUE;
  rig_make(&r);
  oct_step_shape light, heavy, both;
  shape_decode(&light, 8, 100, 0);
  shape_decode(&heavy, 8, 60000, 0);
  both = heavy;
  light.n_domains = heavy.n_domains = both.n_domains = 8;
  both.domains[1] = light.domains[0];
  gint64 heavy_ns = step_ns(&r, &heavy), both_ns = step_ns(&r, &both);
  g_assert_cmpint(step_ns(&r, &light), <, heavy_ns);
  g_assert_cmpint(both_ns, >, heavy_ns); /* more experts are touched */
  oct_step_shape twice = heavy;
  twice.domains[1] = heavy.domains[0];
  /* A second domain as heavy adds the same experts, and its attention runs beside the first. */
  g_assert_cmpint(step_ns(&r, &twice), ==, both_ns);
  oct_step_shape idle = {.n_domains = 8};
  g_assert_cmpint(step_ns(&r, &idle), ==, 0);
}

/* Decode-context parallelism shares out the KV that every rank would read whole, and pays for
 * exchanging queries and outputs: worth it for long contexts, not for short ones. */
static void
context_parallel(void) {
  g_auto(rig) whole = {0}, split = {0};
  rig_init(&whole, "kimi-k3", "b300-hgx8", 8);
  rig_load(&split, "kimi-k3", "b300-hgx8");
  split.parallel.tensor = split.parallel.decode_context = 8;
  rig_make(&split);
  oct_step_shape shape;
  shape_decode(&shape, 32, 100, 0);
  g_assert_cmpint(step_ns(&split, &shape), >, step_ns(&whole, &shape));
  shape_decode(&shape, 32, 200000, 0);
  gint64 saved = step_ns(&whole, &shape) - step_ns(&split, &shape);
  /* 7/8 of 24 layers x 32 x 200,000 x 1,152 B at 68 % of 7.7 TB/s is 29.5 ms, less the exchange and
   * the arithmetic of all heads, which DCP does not share out. */
  g_assert_cmpint(saved, >, 20 * 1000 * 1000);
  g_assert_cmpint(saved, <, 30 * 1000 * 1000);
}

/* Under expert parallelism a layer takes as long as the rank with the most experts. */
static void
heaviest_rank(void) {
  g_auto(rig) r = {0};
  rig_load(&r, "kimi-k3", "b300-hgx8");
  r.parallel.tensor = 8;
  r.parallel.expert_parallel = TRUE;
  rig_make(&r);
  oct_cost_operator operators[200];
  oct_step_shape shape;
  for (guint32 batch = 1; batch <= 256; batch *= 4) {
    shape_decode(&shape, batch, 1000, 0);
    guint n = oct_cost_operators(r.cost, &shape, operators, G_N_ELEMENTS(operators));
    const oct_cost_operator *experts = find(operators, n, "moe.experts");
    double most = oct_cost_distinct_experts(r.cost, batch, TRUE);
    g_assert_cmpuint(experts->n, ==, (guint64)round(most));
    /* It reads them whole. */
    g_assert_cmpfloat(experts->hbm_bytes, >=, most * 17547264.0 * 0.999);
    g_assert_cmpfloat(experts->hbm_bytes, <=, most * 17547264.0 * 1.1);
  }
}

/* The same table of ranks on other GPUs: only a node without a switch minds. */
static void
placement(void) {
  g_auto(rig) r = {0};
  rig_load(&r, "llama-3.1-8b", "pairs-4rc");
  r.parallel.tensor = 2;
  oct_step_shape shape;
  shape_decode(&shape, 8, 1000, 0);
  gint64 ns[3];
  const guint16 pairs[3][2] = {{0, 1}, {1, 2}, {3, 4}}; /* bridge; PCIe; across sockets */
  for (guint i = 0; i < 3; i++) {
    g_autoptr(GError) error = NULL;
    g_clear_pointer(&r.cost, oct_cost_free);
    r.cost = oct_cost_new(r.spec, &r.parallel, pairs[i], r.profile, &r.options, &error);
    g_assert_no_error(error);
    ns[i] = step_ns(&r, &shape);
  }
  g_assert_cmpint(ns[0], <, ns[1]);
  g_assert_cmpint(ns[1], <, ns[2]);
}

static void
graphs(void) {
  g_auto(rig) r = {0};
  rig_init(&r, "llama-3.1-70b", "h200-hgx8", 8);
  oct_step_shape shape;
  oct_step_price price;
  shape_decode(&shape, 32, 1000, 0);
  g_assert_true(oct_cost_is_graph(r.cost, &shape));
  oct_cost_step(r.cost, &shape, &price);
  g_assert_true(price.graph);
  gint64 graph = price.stages[0].ns;
  shape.flags = OCT_SHAPE_EAGER;
  g_assert_false(oct_cost_is_graph(r.cost, &shape));
  gint64 eager = step_ns(&r, &shape);
  g_assert_cmpint(eager, >, graph);
  shape.flags = 0;
  r.options.eager = TRUE;
  rig_make(&r);
  g_assert_cmpint(step_ns(&r, &shape), ==, eager);
  r.options.eager = FALSE;
  rig_make(&r);
  shape_decode(&shape, r.profile->engine.graph_max_batch + 1, 1000, 0);
  g_assert_false(oct_cost_is_graph(r.cost, &shape));
  shape_prefill(&shape, 1, 64, 0, 0);
  g_assert_false(oct_cost_is_graph(r.cost, &shape));
}

/* Experts read from the host: their bytes over PCIe, in a group of their own, on that stage only.
 */
static void
misses(void) {
  g_auto(rig) r = {0};
  rig_init(&r, "kimi-k3", "b300-hgx8", 8);
  oct_step_shape shape;
  oct_step_price without, with;
  shape_decode(&shape, 4, 1000, 0);
  oct_cost_step(r.cost, &shape, &without);
  shape.expert_miss_bytes[0] = 577e6;
  r.profile->pcie.kernel_read = 1;
  oct_cost_step(r.cost, &shape, &with);
  g_assert_cmpint(with.stages[0].ns - without.stages[0].ns, ==,
                  with.stages[0].groups[OCT_PART_COPY].ns);
  g_assert_cmpint(ABS(with.stages[0].groups[OCT_PART_COPY].ns - 10003600), <=, 1);
  g_assert_cmpfloat(with.stages[0].groups[OCT_PART_COPY].host_bytes, ==, 577e6);
  /* A kernel that reads host memory in place may be slower than copies. */
  r.profile->pcie.kernel_read = 0.8;
  oct_cost_step(r.cost, &shape, &with);
  g_assert_cmpint(ABS(with.stages[0].groups[OCT_PART_COPY].ns - 12503600), <=, 1);
  /* A rank's part of experts that are shared out by width; whole ones, of the rank with most. */
  double bytes = (double)oct_model_expert(r.spec, 1).bytes;
  g_assert_cmpfloat(oct_cost_miss_bytes(r.cost, 0, 16), ==, 2 * bytes);
  g_assert_cmpfloat_with_epsilon(oct_cost_miss_bytes(r.cost, 0, 1), bytes / 8, 1e-6);
  r.parallel.expert_parallel = TRUE;
  rig_make(&r);
  g_assert_cmpfloat(oct_cost_miss_bytes(r.cost, 0, 17), ==, 3 * bytes);
}

/* FP8 KV halves what attention reads; speculation that verifies 4 tokens costs less than 4 steps.
 */
static void
variants(void) {
  g_auto(rig) r = {0};
  rig_init(&r, "llama-3.1-8b", "h200x1", 1);
  oct_step_shape shape;
  shape_decode(&shape, 64, 30000, 0);
  gint64 bf16 = step_ns(&r, &shape);
  r.options.kv_dtype = OCT_DTYPE_FP8;
  rig_make(&r);
  g_assert_cmpint(step_ns(&r, &shape), <, bf16 * 6 / 10);
  memset(&shape, 0, sizeof shape);
  shape.n_domains = 1;
  oct_slice verify = {.n_tokens = 4, .sample = OCT_SAMPLE_ALL, .flags = OCT_SLICE_VERIFY};
  oct_domain_shape_add(&shape.domains[0], &verify, 1000, 0);
  gint64 four = step_ns(&r, &shape);
  shape_decode(&shape, 1, 1004, 0);
  gint64 one = step_ns(&r, &shape);
  g_assert_cmpint(four, >, one);
  g_assert_cmpint(four, <, 2 * one);
  /* The ratio of steps that verify is not for those that have prompts, too. */
  oct_step_shape with_prompt = {.n_domains = 1};
  oct_slice prompt = {.n_tokens = 500, .sample = OCT_SAMPLE_LAST, .flags = OCT_SLICE_PREFILL};
  oct_domain_shape_add(&with_prompt.domains[0], &verify, 1000, 0);
  shape = with_prompt;
  oct_domain_shape_add(&with_prompt.domains[0], &prompt, 0, 0);
  const gint64 mixed = step_ns(&r, &with_prompt);
  g_assert_cmpuint(r.profile->step_ratio.verify.n, ==, 0);
  r.profile->step_ratio.verify = (oct_curve){.n = 1, .x = {1}, .y = {2}};
  g_assert_cmpint(step_ns(&r, &shape), >, four * 19 / 10);
  g_assert_cmpint(step_ns(&r, &with_prompt), ==, mixed);
}

/* Rows whose logits nobody wants are not multiplied with the head. */
static void
unsampled(void) {
  g_auto(rig) r = {0};
  rig_init(&r, "llama-3.1-8b", "h200x1", 1);
  oct_step_shape all, none;
  shape_decode(&all, 32, 1000, 0);
  none = all;
  none.domains[0].sample_rows = 0;
  double head = (double)(step_ns(&r, &all) - step_ns(&r, &none)) * 1e-9;
  /* 1.05 GB of head at 4.8 TB/s, at most twice that with sampling. */
  g_assert_cmpfloat(head, >, 1.05e9 / 4.8e12);
  g_assert_cmpfloat(head, <, 2 * 1.05e9 / 4.8e12);
}

static void
hosts(void) {
  g_auto(rig) r = {0};
  rig_init(&r, "llama-3.1-8b", "h200x1", 1);
  const oct_engine_times *engine = oct_cost_engine(r.cost);
  g_assert_cmpint(oct_cost_step_host_ns(r.cost, 0), ==, engine->step_host_ns);
  g_assert_cmpint(oct_cost_step_host_ns(r.cost, 100), ==,
                  engine->step_host_ns + 100 * engine->step_host_per_seq_ns);
}

/* ---------------------------------------------------------------- refusals */

static void
expect_refused(rig *r, const guint16 *devices, int code, const char *part) {
  g_autoptr(GError) error = NULL;
  g_assert_null(oct_cost_new(r->spec, &r->parallel, devices, r->profile, &r->options, &error));
  g_assert_error(error, OCT_COST_ERROR, code);
  g_assert_nonnull(strstr(error->message, part));
}

static void
refusals(void) {
  g_auto(rig) r = {0};
  rig_load(&r, "llama-3.1-8b", "h200x2");
  r.parallel.tensor = 4;
  expect_refused(&r, NULL, OCT_COST_ERROR_LAYOUT, "4 ranks, but h200x2 has 2 GPUs");
  r.parallel.tensor = 3;
  expect_refused(&r, NULL, OCT_COST_ERROR_LAYOUT, "3");
  r.parallel.tensor = 2;
  expect_refused(&r, (const guint16[]){0, 2}, OCT_COST_ERROR_LAYOUT, "GPU 2");
  expect_refused(&r, (const guint16[]){1, 1}, OCT_COST_ERROR_LAYOUT, "taken");
  r.options.kv_dtype = OCT_DTYPE_MXFP4;
  expect_refused(&r, NULL, OCT_COST_ERROR_UNSUPPORTED, "mxfp4");
  r.options.kv_dtype = OCT_DTYPE_FP8;
  r.options.routing_alpha = NAN;
  expect_refused(&r, NULL, OCT_COST_ERROR_UNSUPPORTED, "exponent");
  r.options.routing_alpha = -1;
  expect_refused(&r, NULL, OCT_COST_ERROR_UNSUPPORTED, "exponent");
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/sim/cost/price/is-the-sum-of-its-operators", sums);
  g_test_add_func("/sim/cost/price/is-above-the-roofline-of-1000-random-steps", floors);
  g_test_add_func("/sim/cost/price/rises-with-batch-context-and-tokens", monotone);
  g_test_add_func("/sim/cost/k3/floor-reads-the-published-bytes", k3_bytes);
  g_test_add_func("/sim/cost/k3/caches-have-the-published-sizes", k3_cache);
  g_test_add_func("/sim/cost/k3/experts-take-the-measured-times", k3_experts);
  g_test_add_func("/sim/cost/k3/kernels-read-state-and-latent", k3_kernels);
  g_test_add_func("/sim/cost/price/only-sampled-rows-meet-the-head", unsampled);
  g_test_add_func("/sim/cost/k3/batch-one-is-bound-by-launches", k3_batch_one);
  g_test_add_func("/sim/cost/layout/k3-stages-send-their-snapshots", sends);
  g_test_add_func("/sim/cost/layout/stages-add-up-to-one", stages);
  g_test_add_func("/sim/cost/layout/domains-wait-for-the-heaviest", domains);
  g_test_add_func("/sim/cost/layout/context-parallelism-shares-out-the-kv", context_parallel);
  g_test_add_func("/sim/cost/layout/experts-wait-for-the-heaviest-rank", heaviest_rank);
  g_test_add_func("/sim/cost/layout/pairs-are-slower-off-the-bridge", placement);
  g_test_add_func("/sim/cost/price/eager-costs-more-than-a-graph", graphs);
  g_test_add_func("/sim/cost/price/missed-experts-cross-pcie", misses);
  g_test_add_func("/sim/cost/price/fp8-kv-and-verifying-cost-as-they-should", variants);
  g_test_add_func("/sim/cost/price/host-times-come-from-the-preset", hosts);
  g_test_add_func("/sim/cost/price/refuses-what-it-cannot-price", refusals);
  return g_test_run();
}
