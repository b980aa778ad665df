/* Perplexity and divergence of logits whose probabilities are known. */
#include "engine/model/quantise/divergence.h"

#include <math.h>

#define NEAR(a, b) g_assert_cmpfloat_with_epsilon(a, b, 1e-6)

static float
ln(double x) {
  return (float)log(x);
}

static void
by_hand(void) {
  /* p(reference) = 1/2, 1/4, 1/8, 1/8; the model's the other way round, then the same again; logits
   * may be shifted. */
  const float reference[] = {ln(4) + 7, ln(2) + 7, 7, 7};
  const float model[] = {-3, -3, ln(2) - 3, ln(4) - 3};
  g_autoptr(oct_divergence) d = oct_divergence_new(4);
  oct_divergence_result r;
  oct_divergence_get(d, &r);
  g_assert_cmpuint(r.positions, ==, 0);
  NEAR(r.perplexity, 0);
  oct_divergence_add(d, model, reference, 0);
  double kl = 0.5 * log(4) + 0.25 * log(2) + 0.125 * log(0.5) + 0.125 * log(0.25);
  oct_divergence_get(d, &r);
  NEAR(r.nll, log(8));
  NEAR(r.perplexity, 8);
  NEAR(r.reference_perplexity, 2);
  NEAR(r.kl_mean, kl);
  NEAR(r.kl_max, kl);
  NEAR(r.kl_p99, kl);
  NEAR(r.top1_agreement, 0);
  oct_divergence_add(d, reference, reference, 1);
  oct_divergence_get(d, &r);
  g_assert_cmpuint(r.positions, ==, 2);
  NEAR(r.nll, (log(8) + log(4)) / 2);
  NEAR(r.reference_nll, (log(2) + log(4)) / 2);
  NEAR(r.kl_mean, kl / 2);
  NEAR(r.kl_p99, kl);
  NEAR(r.top1_agreement, 0.5);
}

static void
without_reference(void) {
  const float logits[] = {0, 0, 0, 0, 0};
  g_autoptr(oct_divergence) d = oct_divergence_new(5);
  oct_divergence_result r;
  for (guint32 i = 0; i < 5; i++)
    oct_divergence_add(d, logits, NULL, i);
  oct_divergence_get(d, &r);
  g_assert_false(r.has_reference);
  NEAR(r.perplexity, 5);
}

/* Of 200 positions two are far off: p99 is the smallest value that only they exceed. */
static void
percentile(void) {
  g_autoptr(oct_divergence) d = oct_divergence_new(2);
  const float even[] = {0, 0}, some[] = {0.1f, 0}, far[] = {9, 0};
  oct_divergence_result r;
  for (guint i = 0; i < 200; i++)
    oct_divergence_add(d, i == 50 || i == 60 ? far : i == 70 ? some : even, even, 0);
  oct_divergence_get(d, &r);
  double kl_some = log((1 + exp(0.1)) / 2) - 0.05;
  NEAR(r.kl_p99, kl_some);
  g_assert_cmpfloat(r.kl_max, >, 3);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/divergence/equals-what-hands-compute", by_hand);
  g_test_add_func("/divergence/perplexity-needs-no-reference", without_reference);
  g_test_add_func("/divergence/p99-is-exceeded-by-a-hundredth", percentile);
  return g_test_run();
}
