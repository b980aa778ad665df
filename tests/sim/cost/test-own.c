/* Own kernels, by the fractions of their floors: closed forms, and what is carried from one GPU to
 * another. */
#include <math.h>
#include <string.h>

#include "tests/sim/cost/fixture.h"

#define BATCH   64u
#define CONTEXT 8192u
/* Kimi K3 over 8 ranks: 96 heads of 128 in delta attention, 96 over a latent of 512 + 64, experts
 * of 3584 x 3072. */
#define HEADS 12.0
#define WIDTH (HEADS * 128)

static void
rig_own(rig *r, const char *node, oct_dtype kv) {
  rig_load(r, "kimi-k3", node);
  r->parallel.tensor = 8;
  r->options.kv_dtype = kv;
  r->options.moe_kernel = OCT_MOE_KERNEL_OWN;
  rig_make(r);
}

static oct_cost_operator
operator_of(const rig *r, const oct_step_shape *shape, const char *name) {
  oct_cost_operator list[400];
  guint n = oct_cost_operators(r->cost, shape, list, G_N_ELEMENTS(list));
  for (guint i = 0; i < n; i++)
    if (strcmp(list[i].name, name) == 0)
      return list[i];
  g_error("no operator %s", name);
}

static void
close_to(double a, double b) {
  g_assert_cmpfloat_with_epsilon(a, b, 1e-9 * fabs(b));
}

static double
state_bytes(void) {
  return 2 * (WIDTH * 128 * 4 + 3 * WIDTH * 3 * 2);
}

static void
delta_decode(void) {
  g_auto(rig) r = {0};
  oct_step_shape shape;
  rig_own(&r, "b300-hgx8", OCT_DTYPE_FP8);
  const oct_own_kda *own = &r.profile->own_kernels.kda;
  shape_decode(&shape, BATCH, CONTEXT, 0);
  const double bytes = BATCH * (state_bytes() + WIDTH * 6 * 2);
  const oct_cost_operator o = operator_of(&r, &shape, "kda.decode");
  g_assert_cmpuint(o.count, ==, 69);
  close_to(o.hbm_bytes, bytes);
  close_to(o.seconds,
           own->decode_fixed_s + bytes / (own->decode_hbm * r.profile->gpu.hbm_bytes_per_s));
}

/* One long prompt on a rank's 12 heads waits for its chunks, eight shorter ones are arithmetic. */
static void
delta_prompt(void) {
  for (guint n = 1; n <= 8; n *= 8) {
    g_auto(rig) r = {0};
    oct_step_shape shape;
    rig_own(&r, "b300-hgx8", OCT_DTYPE_FP8);
    const oct_own_kda *own = &r.profile->own_kernels.kda;
    shape_prefill(&shape, n, CONTEXT / n, 0, 0);
    const double flops = 7.0 * CONTEXT * WIDTH * 128;
    const double arithmetic_s = flops / (own->prefill_peak * r.profile->gpu.flops[OCT_MATH_BF16]);
    const double chain_s = CONTEXT / n * own->prefill_token_s;
    const oct_cost_operator o = operator_of(&r, &shape, "kda.prefill");
    g_assert_cmpuint(o.part, ==, OCT_PART_COMPUTE);
    g_assert_true((n == 1) == (chain_s > arithmetic_s));
    /* Outside a graph each launch costs as well. */
    const double fixed_s = own->prefill_fixed_s + r.profile->launch.kernel_pipelined_s;
    close_to(o.seconds, fixed_s + MAX(arithmetic_s, chain_s));
    close_to(o.fixed_s, fixed_s + MAX(chain_s - arithmetic_s, 0));
  }
}

/* The latent is 576 wide, of which 512 are the values: bytes bind 12 heads in BF16, and under data
 * parallelism, with all 96, arithmetic does, most of all over short contexts. */
static void
latent_decode(void) {
  for (int i = 0; i < 4; i++) {
    const gboolean all = i % 2;
    const guint32 context = i < 2 ? CONTEXT : 1024;
    g_auto(rig) r = {0};
    oct_step_shape shape;
    rig_load(&r, "kimi-k3", "b300-hgx8");
    r.parallel.tensor = all ? 1 : 8;
    r.parallel.data = all ? 8 : 1;
    r.parallel.expert_parallel = all;
    r.options.moe_kernel = OCT_MOE_KERNEL_OWN;
    rig_make(&r);
    const oct_own_mla *own = &r.profile->own_kernels.mla;
    shape_decode(&shape, BATCH, context, 0);
    shape.n_domains = r.parallel.data;
    const double heads = all ? 96 : HEADS, seen = (double)shape.domains[0].decode_context;
    const double bytes = seen * 576 * 2 + BATCH * heads * (576 + 512) * 2;
    const double flops = 2 * (576 + 512) * seen * heads;
    const double memory_s = bytes / (own->decode_bf16_hbm * r.profile->gpu.hbm_bytes_per_s);
    const double peak = all && i >= 2 ? own->decode_short_peak : own->decode_peak;
    const double compute_s = flops / (peak * r.profile->gpu.flops[OCT_MATH_BF16]);
    const oct_cost_operator o = operator_of(&r, &shape, "mla.decode");
    g_assert_cmpuint(o.count, ==, 24);
    g_assert_cmpuint(o.part, ==, compute_s > memory_s ? OCT_PART_COMPUTE : OCT_PART_MEMORY);
    close_to(o.seconds, own->decode_fixed_s + MAX(memory_s, compute_s));
  }
}

/* On the GPU whose kernels were timed the price is what they took: 64 sequences of 8192. */
static void
latent_points(void) {
  static const struct {
    guint32 heads;
    oct_dtype kv;
    double us;
  } points[] = {{12, OCT_DTYPE_FP8, 91.2},
                {12, OCT_DTYPE_BF16, 152.9},
                {96, OCT_DTYPE_FP8, 243.4},
                {96, OCT_DTYPE_BF16, 274.5}};
  for (gsize i = 0; i < G_N_ELEMENTS(points); i++) {
    const guint32 data = points[i].heads / 12;
    g_auto(rig) r = {0};
    oct_step_shape shape;
    rig_load(&r, "kimi-k3", "h200-hgx8");
    r.parallel.tensor = 8 / data;
    r.parallel.data = data;
    r.parallel.expert_parallel = data > 1;
    r.options.kv_dtype = points[i].kv;
    r.options.moe_kernel = OCT_MOE_KERNEL_OWN;
    rig_make(&r);
    shape_decode(&shape, BATCH, CONTEXT, 0);
    shape.n_domains = data;
    const oct_cost_operator o = operator_of(&r, &shape, "mla.decode");
    g_assert_cmpfloat_with_epsilon(o.seconds * 1e6, points[i].us, 0.12 * points[i].us);
  }
}

/* The chance that more than n tokens chose an expert whose mean is `mean`. */
static double
more_than(guint n, double mean) {
  double chance = exp(-mean), below = 0;
  for (guint k = 0; k <= n; k++) {
    below += chance;
    chance *= mean / (k + 1);
  }
  return 1 - below;
}

/* Passes of 4 columns over an expert that so many tokens choose in the mean. */
static double
passes_of(double mean) {
  double passes = 0;
  for (guint n = 0; n < 400; n += 4)
    passes += more_than(n, mean);
  return passes;
}

/* 64 tokens choose an expert 1.14 times in the mean: passes of 4 columns, also where ranks have
 * whole experts. Routing decides how many: uniform, few experts have a second one; with the same 16
 * experts for every token, 64 rows each take 16 passes and more, though hardly any weights are
 * read. */
static void
experts(void) {
  enum { BY_WIDTH, SAME, WHOLE, CASES };
  for (int i = 0; i < CASES; i++) {
    g_auto(rig) r = {0};
    oct_step_shape shape;
    double weights_of[896] = {0};
    for (guint e = 0; e < 16; e++)
      weights_of[e] = 1;
    rig_load(&r, "kimi-k3", "b300-hgx8");
    r.parallel.tensor = 8;
    r.parallel.expert_parallel = i == WHOLE;
    r.options.moe_kernel = OCT_MOE_KERNEL_OWN;
    r.options.routing_weights = i == SAME ? weights_of : NULL;
    r.options.n_routing_weights = i == SAME ? 896 : 0;
    rig_make(&r);
    const oct_own_experts *own = &r.profile->own_kernels.mxfp4_experts;
    shape_decode(&shape, BATCH, CONTEXT, 0);
    const double all = oct_cost_distinct_experts(r.cost, BATCH, FALSE),
                 here = oct_cost_distinct_experts(r.cost, BATCH, TRUE);
    g_assert_cmpfloat_with_epsilon(all, i == SAME ? 16 : 613, 1);
    g_assert_true((here < all) == (i == WHOLE));
    const oct_cost_operator o = operator_of(&r, &shape, "moe.experts");
    const double inner = i == WHOLE ? 3072 : 384, pairs = o.flops / (6 * 3584 * inner);
    g_assert_cmpfloat_with_epsilon(pairs, i == WHOLE ? 128 : 1024, i == WHOLE ? 32 : 1e-6);
    /* Three matrices: half a byte and a scale of a byte for 32. */
    const double weights = 3.0 * 3584 * inner * (0.5 + 1.0 / 32);
    const double bytes = here * weights + pairs * (4 * 3584 + 6 * inner);
    const double mean = BATCH * 16.0 / 896;
    const double passes = i == SAME ? 16 * passes_of(64) : 896 * passes_of(mean);
    const double memory_s = bytes / (own->hbm * r.profile->gpu.hbm_bytes_per_s);
    const double compute_s = 6 * passes * here / all * (4 + own->turned) * 3584 * inner /
                             (own->peak * r.profile->gpu.flops[OCT_MATH_BF16]);
    g_assert_true((compute_s > memory_s) == (i == SAME));
    g_assert_cmpfloat_with_epsilon(o.seconds, own->fixed_s + MAX(memory_s, compute_s),
                                   1e-2 * o.seconds);
  }
}

/* Choosing, sorting and adding up; and the mixes of attention residuals, float32 in and out. */
static void
rows(void) {
  g_auto(rig) r = {0};
  oct_step_shape shape;
  rig_own(&r, "b300-hgx8", OCT_DTYPE_FP8);
  const oct_own_rows *pairs = &r.profile->own_kernels.pairs, *mix = &r.profile->own_kernels.mix;
  const double rate = r.profile->gpu.hbm_bytes_per_s;
  shape_decode(&shape, BATCH, CONTEXT, 0);
  oct_cost_operator o = operator_of(&r, &shape, "moe.pairs");
  double bytes = BATCH * (896 * 4 + 16 * (12 + 4 * 3584) + 3584 * 2);
  g_assert_cmpuint(o.count, ==, 92);
  close_to(o.seconds, pairs->fixed_s + bytes / (pairs->hbm * rate));
  o = operator_of(&r, &shape, "attn_res.mix");
  g_assert_cmpuint(o.count, ==, 187);
  /* Of 93 layers: 0 + 1 snapshots in the first, up to 8 + 8 in the last, and 8 at the end. */
  double snapshots = 8;
  for (guint l = 0; l < 93; l++)
    snapshots += (l + 11) / 12 + l / 12 + 1;
  bytes = BATCH * 7168 * (2 * snapshots / 187 + 12);
  close_to(o.seconds, mix->fixed_s + bytes / (mix->hbm * rate));
}

/* One fraction on two GPUs: what is above the fixed time goes with the memory's rate. */
static void
carried(void) {
  static const char *const nodes[] = {"h200-hgx8", "b300-hgx8", "b200-hgx8", "h100-hgx8"};
  oct_step_shape shape;
  shape_decode(&shape, BATCH, CONTEXT, 0);
  oct_profile_own_kernels first = {0};
  for (gsize i = 0; i < G_N_ELEMENTS(nodes); i++) {
    g_auto(rig) r = {0};
    rig_own(&r, nodes[i], OCT_DTYPE_FP8);
    if (i == 0)
      first = r.profile->own_kernels;
    g_assert_cmpmem(&first, sizeof first, &r.profile->own_kernels, sizeof first);
    const oct_cost_operator o = operator_of(&r, &shape, "kda.decode");
    close_to((o.seconds - first.kda.decode_fixed_s) * r.profile->gpu.hbm_bytes_per_s,
             o.hbm_bytes / first.kda.decode_hbm);
    g_assert_cmpint(step_ns(&r, &shape), >, oct_cost_floor_ns(r.cost, &shape));
  }
}

static void
refused(void) {
  g_auto(rig) r = {0};
  g_autoptr(GError) error = NULL;
  rig_load(&r, "kimi-linear-48b-a3b", "rtx4090");
  r.options.moe_kernel = OCT_MOE_KERNEL_OWN;
  g_assert_null(oct_cost_new(r.spec, &r.parallel, NULL, r.profile, &r.options, &error));
  g_assert_error(error, OCT_COST_ERROR, OCT_COST_ERROR_UNSUPPORTED);
  g_assert_nonnull(strstr(error->message, "own_kernels"));
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/sim/cost/own/delta-decode-reads-and-writes-its-state-once", delta_decode);
  g_test_add_func("/sim/cost/own/delta-prompts-are-arithmetic-or-wait", delta_prompt);
  g_test_add_func("/sim/cost/own/latent-decode-is-the-larger-of-two-floors", latent_decode);
  g_test_add_func("/sim/cost/own/latent-decodes-take-what-they-took", latent_points);
  g_test_add_func("/sim/cost/own/experts-are-read-once-and-turned-for-each-pass", experts);
  g_test_add_func("/sim/cost/own/rows-round-experts-and-residuals-have-their-bytes", rows);
  g_test_add_func("/sim/cost/own/fractions-are-carried-from-gpu-to-gpu", carried);
  g_test_add_func("/sim/cost/own/a-profile-without-them-is-refused", refused);
  return g_test_run();
}
