/* What pricing a step costs, in ns a call on one core (best of five runs); and the decode floor
 * table of Kimi K3 on 8 B300: the priced step with measured and target expert kernels against the
 * bytes that it must read over the peak of HBM. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/cost/cost.h"

#define CALLS   200000
#define CONTEXT 8192

typedef struct bench {
  oct_model_spec *spec;
  oct_profile *profile;
  oct_cost *cost;
} bench;

static void
fail(const GError *error) {
  fprintf(stderr, "bench-cost: %s\n", error->message);
  exit(1);
}

static bench
bench_new(const char *model, const char *node, guint32 tensor, guint32 data,
          oct_moe_kernel kernel) {
  g_autoptr(GError) error = NULL;
  bench b = {0};
  oct_parallel parallel = OCT_PARALLEL_DEFAULT;
  oct_cost_options options = OCT_COST_OPTIONS_DEFAULT;
  parallel.tensor = tensor;
  parallel.data = data;
  parallel.expert_parallel = data > 1;
  options.kv_dtype = OCT_DTYPE_FP8;
  options.moe_kernel = kernel;
  if ((b.spec = oct_model_spec_load(model, NULL, &error)) == NULL ||
      (b.profile = oct_profile_load(node, NULL, NULL, &error)) == NULL ||
      (b.cost = oct_cost_new(b.spec, &parallel, NULL, b.profile, &options, &error)) == NULL)
    fail(error);
  return b;
}

static void
bench_free(bench *b) {
  oct_cost_free(b->cost);
  oct_profile_free(b->profile);
  oct_model_spec_free(b->spec);
}

static oct_step_shape
decodes(guint32 batch, guint32 domains, guint32 window) {
  oct_step_shape shape;
  oct_slice slice = {.n_tokens = 1, .sample = OCT_SAMPLE_LAST};
  memset(&shape, 0, sizeof shape);
  shape.n_domains = domains;
  for (guint32 i = 0; i < batch; i++)
    oct_domain_shape_add(&shape.domains[i % domains], &slice, CONTEXT - 1, window);
  return shape;
}

static void
time_steps(const char *label, const bench *b, oct_step_shape shape, gboolean advance) {
  gint64 best = G_MAXINT64, sum = 0;
  oct_step_price price;
  for (int run = 0; run < 5; run++) {
    gint64 start = g_get_monotonic_time();
    for (int i = 0; i < CALLS; i++) {
      for (guint32 d = 0; advance && d < shape.n_domains; d++)
        oct_domain_shape_advance(&shape.domains[d], 0);
      oct_cost_step(b->cost, &shape, &price);
      sum += price.stages[0].ns;
    }
    best = MIN(best, g_get_monotonic_time() - start);
  }
  printf("%-52s %8.0f ns%s\n", label, (double)best * 1e3 / CALLS, sum == 0 ? " (empty)" : "");
}

static void
prices(void) {
  bench k3 = bench_new("kimi-k3", "b300-hgx8", 8, 1, OCT_MOE_KERNEL_MEASURED);
  bench k3_dp = bench_new("kimi-k3", "b300-hgx8", 1, 8, OCT_MOE_KERNEL_MEASURED);
  bench llama = bench_new("llama-3.1-70b", "h200-hgx8", 8, 1, OCT_MOE_KERNEL_MEASURED);
  time_steps("kimi-k3 TP8, advance and price 256 decodes", &k3, decodes(256, 1, 0), TRUE);
  time_steps("kimi-k3 DP8 EP8, advance and price 8 x 32 decodes", &k3_dp, decodes(256, 8, 0), TRUE);
  time_steps("llama-3.1-70b TP8, advance and price 256 decodes", &llama, decodes(256, 1, 0), TRUE);
  oct_step_shape mixed = decodes(64, 1, 0);
  oct_slice chunk = {.n_tokens = 4000, .sample = OCT_SAMPLE_LAST, .flags = OCT_SLICE_PREFILL};
  oct_domain_shape_add(&mixed.domains[0], &chunk, 0, 0);
  time_steps("kimi-k3 TP8, price 64 decodes and a chunk of 4,000", &k3, mixed, FALSE);
  gint64 start = g_get_monotonic_time();
  for (int i = 0; i < 20; i++) {
    bench one = bench_new("kimi-k3", "b300-hgx8", 8, 1, OCT_MOE_KERNEL_MEASURED);
    bench_free(&one);
  }
  printf("%-52s %8.1f ms\n", "kimi-k3 TP8, load model and profile, make the cost",
         (double)(g_get_monotonic_time() - start) / 20e3);
  bench_free(&k3);
  bench_free(&k3_dp);
  bench_free(&llama);
}

static void
floor_table(void) {
  static const guint32 batches[] = {1, 8, 32, 64, 128, 256};
  bench measured = bench_new("kimi-k3", "b300-hgx8", 8, 1, OCT_MOE_KERNEL_MEASURED);
  bench target = bench_new("kimi-k3", "b300-hgx8", 8, 1, OCT_MOE_KERNEL_TARGET);
  printf("\nDecode floor, kimi-k3 on b300-hgx8, TP8, FP8 KV, %d tokens of context:\n"
         "batch  GB/GPU  floor ms   measured ms  x floor   target ms  x floor\n",
         CONTEXT);
  for (guint i = 0; i < G_N_ELEMENTS(batches); i++) {
    oct_step_shape shape = decodes(batches[i], 1, 0);
    oct_step_price a, b;
    oct_cost_step(measured.cost, &shape, &a);
    oct_cost_step(target.cost, &shape, &b);
    double bytes = oct_cost_floor_bytes(measured.cost, &shape, 0);
    double floor_ms = bytes / measured.profile->gpu.hbm_bytes_per_s * 1e3;
    double ms = (double)a.stages[0].ns * 1e-6, target_ms = (double)b.stages[0].ns * 1e-6;
    printf("%5u %7.1f %9.2f %13.2f %8.2f %11.2f %8.2f\n", batches[i], bytes * 1e-9, floor_ms, ms,
           ms / floor_ms, target_ms, target_ms / floor_ms);
  }
  bench_free(&measured);
  bench_free(&target);
}

int
main(void) {
  prices();
  floor_table();
  return 0;
}
