/* Single kernels: collectives without a switch, attention that arithmetic binds, tables between
 * sizes. */
#include <math.h>

#include "sim/cost/internal.h"
#include "tests/sim/cost/fixture.h"

/* Without NVSwitch: base + rounds x slowest hop + bytes over the slowest link. */
static void
ring(void) {
  g_autoptr(GError) error = NULL;
  g_autoptr(oct_profile) p = oct_profile_load("pairs-4rc", NULL, NULL, &error);
  g_assert_no_error(error);
  /* A pair: 2 rounds over the bridge, 120 ns + 1.2 us each, 1 MB / 777 GB/s. */
  g_assert_cmpfloat_with_epsilon(oct_cost_collective_ns(p, OCT_COLLECTIVE_ALL_REDUCE, 2, 1e6, TRUE),
                                 6600 + 2640 + 1287, 1);
  /* Four GPUs of a socket: 6 rounds over PCIe, 850 ns + 1.2 us, 1.5 MB / 57.7 GB/s. */
  g_assert_cmpfloat_with_epsilon(oct_cost_collective_ns(p, OCT_COLLECTIVE_ALL_REDUCE, 4, 1e6, TRUE),
                                 6600 + 12300 + 25997, 1);
  /* All eight: 14 rounds, 1.75 MB / 37 GB/s across the sockets. */
  g_assert_cmpfloat_with_epsilon(oct_cost_collective_ns(p, OCT_COLLECTIVE_ALL_REDUCE, 8, 1e6, TRUE),
                                 6600 + 28700 + 47297, 1);
  g_assert_cmpfloat_with_epsilon(oct_cost_collective_ns(p, OCT_COLLECTIVE_ALL_GATHER, 8, 1e6, TRUE),
                                 6600 + 14350 + 23649, 1);
}

static void
tables(void) {
  g_autoptr(GError) error = NULL;
  g_autoptr(oct_profile) p = oct_profile_load("b300-hgx8", NULL, NULL, &error);
  g_assert_no_error(error);
  double two = oct_cost_collective_ns(p, OCT_COLLECTIVE_ALL_REDUCE, 2, 16384, FALSE);
  double three = oct_cost_collective_ns(p, OCT_COLLECTIVE_ALL_REDUCE, 3, 16384, FALSE);
  double four = oct_cost_collective_ns(p, OCT_COLLECTIVE_ALL_REDUCE, 4, 16384, FALSE);
  double eight = oct_cost_collective_ns(p, OCT_COLLECTIVE_ALL_REDUCE, 8, 16384, FALSE);
  g_assert_cmpfloat_with_epsilon(eight, 25970, 1);
  g_assert_cmpfloat(two, <, three);
  g_assert_cmpfloat(three, <, four);
  g_assert_cmpfloat(four, <, eight);
  /* In a graph the engine's own kernel; above 64 MB its table ends and NCCL's is the quicker. */
  g_assert_cmpfloat_with_epsilon(
      oct_cost_collective_ns(p, OCT_COLLECTIVE_ALL_REDUCE, 8, 16384, TRUE), 5366, 1);
  g_assert_cmpfloat_with_epsilon(
      oct_cost_collective_ns(p, OCT_COLLECTIVE_ALL_REDUCE, 8, 536870912, TRUE), 1335000, 1);
  g_assert_cmpfloat(oct_cost_collective_ns(p, OCT_COLLECTIVE_ALL_REDUCE, 1, 16384, TRUE), ==, 0);
}

/* Absorbed MLA with 128 heads is bound by arithmetic: on H200 it was measured at 2.74 TB/s of KV,
 * 662 TF. With 16 heads it reads at the profile's fraction of HBM. */
static void
mla(void) {
  g_autoptr(GError) error = NULL;
  g_autoptr(oct_profile) p = oct_profile_load("h200-hgx8", NULL, NULL, &error);
  g_assert_no_error(error);
  oct_attention_shape shape = {.mla = TRUE,
                               .n_sequences = 128,
                               .n_heads = 128,
                               .n_kv_heads = 1,
                               .key_dim = 576,
                               .value_dim = 512,
                               .kv_element_bytes = 2,
                               .tokens = 128,
                               .context = 128 * 16384,
                               .pairs = 128 * 16384};
  double bytes = (double)shape.context * 1152;
  double rate = bytes / oct_cost_attention_ns(p, &shape) * 1e-3; /* TB/s */
  g_assert_cmpfloat_with_epsilon(rate, 2.74, 0.2);
  g_assert_cmpint(oct_price_attention(p, &shape).part, ==, OCT_PART_COMPUTE);
  shape.n_heads = 16;
  rate = bytes / oct_cost_attention_ns(p, &shape) * 1e-3;
  g_assert_cmpfloat_with_epsilon(rate, 0.9 * 4.8, 0.2);
  g_assert_cmpint(oct_price_attention(p, &shape).part, ==, OCT_PART_MEMORY);
}

/* A lone long prompt keeps few SMs busy for long: four prompts cost less than four times one. */
static void
prefill(void) {
  g_autoptr(GError) error = NULL;
  g_autoptr(oct_profile) p = oct_profile_load("h200-hgx8", NULL, NULL, &error);
  g_assert_no_error(error);
  oct_attention_shape shape = {.prefill = TRUE,
                               .n_sequences = 1,
                               .n_heads = 4,
                               .n_kv_heads = 1,
                               .key_dim = 128,
                               .value_dim = 128,
                               .kv_element_bytes = 2,
                               .tokens = 1024,
                               .context = 1024,
                               .pairs = oct_shape_pairs(0, 1024, 0)};
  double one = oct_cost_attention_ns(p, &shape);
  shape.n_sequences = 4;
  shape.tokens *= 4;
  shape.context *= 4;
  shape.pairs *= 4;
  g_assert_cmpfloat(oct_cost_attention_ns(p, &shape), <, 2 * one);
  /* A prefix that is already there costs its pairs, not its tokens. */
  shape = (oct_attention_shape){.prefill = TRUE,
                                .n_sequences = 1,
                                .n_heads = 32,
                                .n_kv_heads = 8,
                                .key_dim = 128,
                                .value_dim = 128,
                                .kv_element_bytes = 2,
                                .tokens = 8192,
                                .context = 16384,
                                .pairs = oct_shape_pairs(8192, 8192, 0)};
  double second = oct_cost_attention_ns(p, &shape);
  shape.context = 8192;
  shape.pairs = oct_shape_pairs(0, 8192, 0);
  g_assert_cmpfloat(fabs(second / oct_cost_attention_ns(p, &shape) - 3), <, 0.25);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/sim/cost/kernels/ring-takes-rounds-and-the-slowest-link", ring);
  g_test_add_func("/sim/cost/kernels/tables-are-read-by-size-and-mode", tables);
  g_test_add_func("/sim/cost/kernels/mla-is-bound-by-arithmetic-with-many-heads", mla);
  g_test_add_func("/sim/cost/kernels/prefill-counts-pairs-and-lone-tiles", prefill);
  return g_test_run();
}
