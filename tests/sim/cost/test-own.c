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

static void
delta_prompt(void) {
  g_auto(rig) r = {0};
  oct_step_shape shape;
  rig_own(&r, "b300-hgx8", OCT_DTYPE_FP8);
  const oct_own_kda *own = &r.profile->own_kernels.kda;
  shape_prefill(&shape, 1, CONTEXT, 0, 0);
  const double flops = 7.0 * CONTEXT * WIDTH * 128;
  const oct_cost_operator o = operator_of(&r, &shape, "kda.prefill");
  g_assert_cmpuint(o.part, ==, OCT_PART_COMPUTE);
  /* Outside a graph each launch costs as well. */
  close_to(o.seconds - r.profile->launch.kernel_pipelined_s,
           own->prefill_fixed_s +
               flops / (own->prefill_peak * r.profile->gpu.flops[OCT_MATH_BF16]));
}

/* The latent is 576 wide, of which 512 are the values: bytes bind 12 heads in BF16, and under data
 * parallelism, with all 96, arithmetic does. */
static void
latent_decode(void) {
  for (int all = 0; all < 2; all++) {
    g_auto(rig) r = {0};
    oct_step_shape shape;
    rig_load(&r, "kimi-k3", "b300-hgx8");
    r.parallel.tensor = all ? 1 : 8;
    r.parallel.data = all ? 8 : 1;
    r.parallel.expert_parallel = all;
    r.options.moe_kernel = OCT_MOE_KERNEL_OWN;
    rig_make(&r);
    const oct_own_mla *own = &r.profile->own_kernels.mla;
    shape_decode(&shape, BATCH, CONTEXT, 0);
    shape.n_domains = r.parallel.data;
    const double heads = all ? 96 : HEADS, seen = (double)shape.domains[0].decode_context;
    const double bytes = seen * 576 * 2 + BATCH * heads * (576 + 512) * 2;
    const double flops = 2 * (576 + 512) * seen * heads;
    const double memory_s = bytes / (own->decode_bf16_hbm * r.profile->gpu.hbm_bytes_per_s);
    const double compute_s = flops / (own->decode_peak * r.profile->gpu.flops[OCT_MATH_BF16]);
    const oct_cost_operator o = operator_of(&r, &shape, "mla.decode");
    g_assert_cmpuint(o.count, ==, 24);
    g_assert_cmpuint(o.part, ==, compute_s > memory_s ? OCT_PART_COMPUTE : OCT_PART_MEMORY);
    close_to(o.seconds, own->decode_fixed_s + MAX(memory_s, compute_s));
  }
}

static void
experts(void) {
  g_auto(rig) r = {0};
  oct_step_shape shape;
  rig_own(&r, "b300-hgx8", OCT_DTYPE_FP8);
  const oct_own_experts *own = &r.profile->own_kernels.mxfp4_experts;
  shape_decode(&shape, BATCH, CONTEXT, 0);
  const double distinct = oct_cost_distinct_experts(r.cost, BATCH, TRUE), pairs = BATCH * 16.0;
  /* Three matrices of 3584 x 384 a rank: half a byte and a scale of a byte for 32. */
  const double weights = 3.0 * 3584 * 384 * (0.5 + 1.0 / 32);
  const double bytes = distinct * weights + pairs * (4 * 3584 + 6 * 384);
  const double memory_s = bytes / (own->hbm * r.profile->gpu.hbm_bytes_per_s);
  const double compute_s =
      6 * pairs * 3584 * 384 / (own->peak * r.profile->gpu.flops[OCT_MATH_BF16]);
  const oct_cost_operator o = operator_of(&r, &shape, "moe.experts");
  g_assert_cmpfloat_with_epsilon(o.seconds, own->fixed_s + MAX(memory_s, compute_s),
                                 1e-4 * o.seconds);
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
  g_test_add_func("/sim/cost/own/delta-prompts-are-arithmetic", delta_prompt);
  g_test_add_func("/sim/cost/own/latent-decode-is-the-larger-of-two-floors", latent_decode);
  g_test_add_func("/sim/cost/own/experts-that-are-touched-are-read-once", experts);
  g_test_add_func("/sim/cost/own/fractions-are-carried-from-gpu-to-gpu", carried);
  g_test_add_func("/sim/cost/own/a-profile-without-them-is-refused", refused);
  return g_test_run();
}
