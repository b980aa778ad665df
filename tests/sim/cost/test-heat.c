/* The law by which a chip that has computed much is slower for a while. */
#include <math.h>

#include "sim/cost/heat.h"
#include "tests/sim/cost/fixture.h"

static const oct_heat_law law = {
    .time_constant_s = 0.04, .prompts = 0.2, .decodes = 0.05, .flops_per_s = 5e14};

static oct_stage_price
prompt(double flops) {
  oct_stage_price price = {.ns = 25000000};
  price.groups[OCT_PART_COMPUTE] = (oct_cost_group){.ns = 20000000, .flops = flops};
  price.groups[OCT_PART_COPY].ns = 5000000;
  return price;
}

static void
levels_follow_the_load(void) {
  double mean;
  /* An exponential towards the load, and the same in one go as in two. */
  g_assert_cmpfloat_with_epsilon(oct_heat_after(&law, 0, 1, 0.04, &mean), 1 - exp(-1), 1e-12);
  g_assert_cmpfloat_with_epsilon(mean, exp(-1), 1e-12);
  const double half = oct_heat_after(&law, 0.3, 0.6, 0.01, NULL);
  g_assert_cmpfloat_with_epsilon(oct_heat_after(&law, half, 0.6, 0.02, NULL),
                                 oct_heat_after(&law, 0.3, 0.6, 0.03, NULL), 1e-12);
  g_assert_cmpfloat_with_epsilon(oct_heat_after(&law, 0.7, 0.7, 0.03, &mean), 0.7, 1e-12);
  g_assert_cmpfloat_with_epsilon(mean, 0.7, 1e-12);
  g_assert_cmpfloat(oct_heat_after(&law, 0.7, 0, 0, &mean), ==, 0.7);
  g_assert_cmpfloat(mean, ==, 0.7);
  /* Above a threshold: never below it, from where it is crossed on, and all the way. */
  oct_heat_law from = law;
  from.threshold = 0.5;
  (void)oct_heat_after(&from, 0.1, 0.4, 0.1, &mean);
  g_assert_cmpfloat(mean, ==, 0);
  (void)oct_heat_after(&from, 0.6, 0.8, 0.04, &mean);
  g_assert_cmpfloat_with_epsilon(mean, (0.3 - 0.2 * (1 - exp(-1))) / 0.5, 1e-12);
  (void)oct_heat_after(&from, 0.8, 1, 0, &mean); /* in no time, what is there */
  g_assert_cmpfloat_with_epsilon(mean, 0.6, 1e-12);
  (void)oct_heat_after(&from, 0.3, 1, 0, &mean);
  g_assert_cmpfloat(mean, ==, 0);
  for (guint up = 0; up < 2; up++) {
    const double begin = up ? 0.2 : 0.9, load = up ? 1 : 0;
    double sum = 0, level = begin;
    for (guint i = 0; i < 4000; i++) { /* by small steps */
      level = oct_heat_after(&law, level, load, 0.04 / 4000, NULL);
      sum += MAX(0, level - 0.5) / 0.5 / 4000;
    }
    (void)oct_heat_after(&from, begin, load, 0.04, &mean);
    g_assert_cmpfloat_with_epsilon(mean, sum, 1e-3);
    g_assert_cmpfloat(mean, >, 0.01);
  }
  oct_stage_price price = prompt(5e14 * 0.025 / 2);
  g_assert_cmpfloat_with_epsilon(oct_heat_load(&law, oct_heat_flops(&price), 0.025), 0.5, 1e-12);
  g_assert_cmpfloat(oct_heat_load(&law, oct_heat_flops(&price), 0.001), ==, 1);
}

static void
prices_are_stretched(void) {
  oct_heat heat = {0};
  oct_stage_price price = prompt(1e15); /* as much as the chip can */
  double mean;
  (void)oct_heat_after(&law, 0, 1, 0.025, &mean);
  oct_heat_price(&law, &heat, 1000, FALSE, &price);
  (void)oct_heat_after(&law, 0, 1, 0.025 * (1 + 0.2 * mean), &mean); /* as long as it gets */
  g_assert_cmpint(price.groups[OCT_PART_COMPUTE].ns, ==, llround(20e6 * (1 + 0.2 * mean)));
  g_assert_cmpint(price.groups[OCT_PART_COPY].ns, ==, 5000000); /* the host's link is not slower */
  g_assert_cmpint(price.ns, ==, price.groups[OCT_PART_COMPUTE].ns + 5000000);
  g_assert_cmpint(heat.at_ns, ==, 1000 + price.ns);
  /* Right behind it the same takes longer still, after a second of rest as long as at first. */
  oct_stage_price next = prompt(1e15), rested = prompt(1e15);
  oct_heat again = heat;
  oct_heat_price(&law, &again, heat.at_ns, FALSE, &next);
  g_assert_cmpint(next.ns, >, price.ns);
  g_assert_cmpint(next.ns, <, 5000000 + 24000000);
  oct_heat_price(&law, &heat, heat.at_ns + 1000000000, FALSE, &rested);
  g_assert_cmpint(rested.ns, ==, price.ns);
  /* A graph has the decodes' slope, whatever it computes. */
  g_assert_cmpfloat_with_epsilon(oct_heat_factor(&law, TRUE, 1, 0.5), 1.025, 1e-12);
  g_assert_cmpfloat_with_epsilon(oct_heat_factor(&law, FALSE, 1, 0.5), 1.1, 1e-12);
  g_assert_cmpfloat_with_epsilon(oct_heat_factor(&law, FALSE, 0, 0.5), 1.025, 1e-12);
}

/* Along real times the factors are those of prices that took as long. */
static void
real_times_agree_with_prices(void) {
  oct_heat made = {0}, real = {0};
  gint64 now = 0;
  for (guint i = 0; i < 6; i++) {
    oct_stage_price cold = prompt(1e15);
    cold.groups[OCT_PART_COPY].ns = 0;
    cold.ns = 20000000;
    oct_stage_price price = cold;
    const gint64 begin = now + (i % 3) * 4000000;
    oct_heat_price(&law, &made, begin, i % 2 == 0, &price);
    double factor = oct_heat_pass(&law, &real, begin, begin + price.ns, i % 2 == 0, &cold);
    g_assert_cmpfloat_with_epsilon((double)price.ns, 20e6 * factor, 0.001 * 20e6);
    now = begin + price.ns;
  }
  /* Whatever else it took longer for, the load is what its price says. */
  oct_stage_price half = prompt(law.flops_per_s * 0.01);
  half.groups[OCT_PART_COPY].ns = 0;
  half.ns = 20000000;
  oct_heat rested = {0};
  double excess;
  (void)oct_heat_after(&law, 0, 0.5, 0.06, &excess);
  g_assert_cmpfloat_with_epsilon(oct_heat_pass(&law, &rested, 0, 60000000, FALSE, &half),
                                 oct_heat_factor(&law, FALSE, 0.5, excess), 1e-12);
}

static void
profiles_have_it_whole(void) {
  static const char *const texts[] = {
      "[profile]\nschema=1\nname=x\ntitle=x\nbase=h200x1\n",
      ("[profile]\nschema=1\nname=x\ntitle=x\nbase=h200x1\n[heat]\ntime_constant_s=0.04\n"
       "threshold=0.4\nprompts=0.2\ndecodes=0.05\nflops_per_s=5e14\n"),
      "[profile]\nschema=1\nname=x\ntitle=x\nbase=h200x1\n[heat]\ntime_constant_s=0.04\n"};
  for (guint i = 0; i < G_N_ELEMENTS(texts); i++) {
    g_autoptr(GError) error = NULL;
    oct_profile *p = oct_profile_parse("x.ini", texts[i], strlen(texts[i]), NULL, NULL, &error);
    if (i == 2) {
      g_assert_error(error, OCT_PROFILE_ERROR, OCT_PROFILE_ERROR_MISSING);
      g_assert_nonnull(strstr(error->message, "[heat] threshold"));
      continue;
    }
    g_assert_no_error(error);
    g_assert_cmpint(oct_heat_is_known(&p->heat), ==, i == 1);
    g_assert_cmpfloat(p->heat.prompts, ==, i == 1 ? 0.2 : 0);
    oct_profile_free(p);
  }
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/sim/cost/heat/levels-follow-the-load", levels_follow_the_load);
  g_test_add_func("/sim/cost/heat/prices-are-stretched", prices_are_stretched);
  g_test_add_func("/sim/cost/heat/real-times-agree-with-prices", real_times_agree_with_prices);
  g_test_add_func("/sim/cost/heat/profiles-have-the-law-whole-or-not", profiles_have_it_whole);
  return g_test_run();
}
