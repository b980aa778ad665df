/* Shapes: sums over slices, checked against counting every query-key pair; and the advance by one
 * token, checked against summing afresh. */
#include <string.h>

#include "tests/sim/cost/fixture.h"

static guint64
pairs_by_counting(guint64 first, guint64 n, guint64 window) {
  guint64 pairs = 0;
  for (guint64 i = 1; i <= n; i++)
    pairs += window > 0 ? MIN(first + i, window) : first + i;
  return pairs;
}

static void
pairs(void) {
  static const guint64 values[] = {0, 1, 2, 3, 7, 8, 9, 63, 64, 65, 1000};
  for (guint f = 0; f < G_N_ELEMENTS(values); f++)
    for (guint n = 0; n < G_N_ELEMENTS(values); n++)
      for (guint w = 0; w < G_N_ELEMENTS(values); w++)
        g_assert_cmpuint(oct_shape_pairs(values[f], values[n], values[w]), ==,
                         pairs_by_counting(values[f], values[n], values[w]));
}

static void
sums(void) {
  oct_domain_shape shape = {0};
  oct_slice decode = {.n_tokens = 1, .sample = OCT_SAMPLE_LAST};
  oct_slice verify = {.n_tokens = 4, .sample = OCT_SAMPLE_ALL, .flags = OCT_SLICE_VERIFY};
  oct_slice chunk = {.n_tokens = 3, .flags = OCT_SLICE_PREFILL};
  oct_domain_shape_add(&shape, &decode, 9, 8);
  oct_domain_shape_add(&shape, &verify, 5, 8);
  oct_domain_shape_add(&shape, &chunk, 6, 8);
  g_assert_cmpuint(shape.n_decode, ==, 2);
  g_assert_cmpuint(shape.n_prefill, ==, 1);
  g_assert_cmpuint(shape.decode_tokens, ==, 5);
  g_assert_cmpuint(shape.prefill_tokens, ==, 3);
  g_assert_cmpuint(shape.sample_rows, ==, 5);
  g_assert_cmpuint(shape.decode_context, ==, 10 + 9);
  g_assert_cmpuint(shape.decode_pairs, ==, 10 + (6 + 7 + 8 + 9));
  g_assert_cmpuint(shape.decode_window_context, ==, 8 + 9);
  g_assert_cmpuint(shape.decode_window_pairs, ==, 8 + (6 + 7 + 8 + 8));
  g_assert_cmpuint(shape.prefill_context, ==, 9);
  g_assert_cmpuint(shape.prefill_pairs, ==, 7 + 8 + 9);
  g_assert_cmpuint(shape.prefill_window_context, ==, 9);
  g_assert_cmpuint(shape.prefill_window_pairs, ==, 7 + 8 + 8);
  g_assert_false(oct_domain_shape_is_decode(&shape));
}

static void
summed(oct_domain_shape *shape, const guint32 *positions, guint32 n, guint32 window) {
  oct_slice slice = {.n_tokens = 1, .sample = OCT_SAMPLE_LAST};
  memset(shape, 0, sizeof *shape);
  for (guint32 i = 0; i < n; i++)
    oct_domain_shape_add(shape, &slice, positions[i], window);
}

/* 200 random batches, each advanced 150 tokens: equal to the sum afresh after every one. */
static void
advance(void) {
  oct_rng rng;
  oct_rng_seed(&rng, 7, 0);
  for (guint round = 0; round < 200; round++) {
    const guint32 window = round % 3 == 0 ? 0 : 1 + (guint32)oct_rng_below(&rng, 128);
    guint32 positions[40], n = 1 + (guint32)oct_rng_below(&rng, G_N_ELEMENTS(positions));
    for (guint32 i = 0; i < n; i++)
      positions[i] = (guint32)oct_rng_below(&rng, 200);
    oct_domain_shape advanced, fresh;
    summed(&advanced, positions, n, window);
    guint again = 0;
    for (guint step = 0; step < 150; step++) {
      gboolean good = oct_domain_shape_advance(&advanced, window);
      for (guint32 i = 0; i < n; i++)
        positions[i]++;
      summed(&fresh, positions, n, window);
      /* The sums are right also when a slice has just filled its window; the counters are not. */
      if (!good) {
        again++;
        advanced.below_window = fresh.below_window;
        advanced.until_window = fresh.until_window;
      }
      g_assert_cmpmem(&advanced, sizeof advanced, &fresh, sizeof fresh);
    }
    g_assert_cmpuint(again, <=, n); /* each slice fills its window once */
    if (window == 0)
      g_assert_cmpuint(again, ==, 0);
  }
}

static void
windows(void) {
  g_auto(rig) oss = {0}, llama = {0};
  rig_load(&oss, "gpt-oss-120b", "h200-hgx8");
  rig_load(&llama, "llama-3.1-8b", "h200-hgx8");
  g_assert_cmpuint(oct_cost_window(oss.spec), ==, 128);
  g_assert_cmpuint(oct_cost_window(llama.spec), ==, 0);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/sim/cost/shape/counts-every-query-key-pair", pairs);
  g_test_add_func("/sim/cost/shape/sums-decodes-verifies-and-chunks", sums);
  g_test_add_func("/sim/cost/shape/advances-as-if-summed-afresh", advance);
  g_test_add_func("/sim/cost/shape/knows-the-window-of-a-model", windows);
  return g_test_run();
}
