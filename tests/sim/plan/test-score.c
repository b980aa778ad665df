/* Intervals and goals. */
#include "sim/plan/score.h"

#include <math.h>

static void
test_interval(void) {
  /* Mean 3, variance 2.5, n = 5: 2.776 x sqrt(2.5 / 5). */
  const double values[] = {1, 2, 3, 4, 5};
  oct_plan_estimate e = oct_plan_estimate_of(values, 5);
  g_assert_cmpfloat(e.mean, ==, 3);
  g_assert_cmpfloat_with_epsilon(e.half, 2.776 * sqrt(0.5), 1e-9);
  e = oct_plan_estimate_of(values, 1);
  g_assert_cmpfloat(e.mean, ==, 1);
  g_assert_true(isnan(e.half));
}

static oct_plan_options
asked(oct_plan_goal goal, double wanted, guint32 nodes, const double *prices) {
  oct_plan_options o;
  oct_plan_options_default(&o);
  o.goal = goal;
  o.wanted = wanted;
  o.nodes_max = nodes;
  o.gpu_hour_prices = prices;
  return o;
}

static void
test_goals(void) {
  const double prices[] = {1, 10};
  oct_plan_layout small = {.gpus = 2}, large = {.gpus = 8}, dear = {.variant = 1, .gpus = 2};
  oct_plan_options o = asked(OCT_PLAN_GOAL_RATE, 0, 1, NULL);
  g_assert_cmpfloat(oct_plan_score(&o, &large, 9), >, oct_plan_score(&o, &small, 8));
  o = asked(OCT_PLAN_GOAL_GPUS, 10, 4, NULL);
  /* 3 nodes of 2 against one of 8. */
  g_assert_cmpfloat(oct_plan_score(&o, &small, 4), >, oct_plan_score(&o, &large, 10));
  g_assert_cmpfloat(oct_plan_score(&o, &large, 12), >, oct_plan_score(&o, &large, 10));
  g_assert_cmpfloat(oct_plan_score(&o, &small, 2), ==, -INFINITY);
  o = asked(OCT_PLAN_GOAL_COST, 0, 1, prices);
  g_assert_cmpfloat(oct_plan_score(&o, &small, 3), >, oct_plan_score(&o, &large, 11));
  g_assert_cmpfloat(oct_plan_score(&o, &small, 3), >, oct_plan_score(&o, &dear, 29));
  g_assert_cmpfloat(oct_plan_score(&o, &dear, 31), >, oct_plan_score(&o, &small, 3));
}

/* Of several nodes one has lost a GPU: 4.3 there, 7.2 on each of the others. */
static void
test_one_loss(void) {
  const oct_plan_layout l = {.gpus = 6}, more = {.gpus = 8};
  const oct_plan_options o = asked(OCT_PLAN_GOAL_GPUS, 9.1, 4, NULL);
  g_assert_cmpuint(oct_plan_nodes_with(&o, 4.3, 7.2), ==, 2);
  g_assert_cmpuint(oct_plan_nodes_with(&o, 4.3, NAN), ==, 3);
  g_assert_cmpuint(oct_plan_nodes(&o, 4.3), ==, 3);
  g_assert_cmpuint(oct_plan_nodes_with(&o, 9.1, 1), ==, 1);
  g_assert_cmpuint(oct_plan_nodes_with(&o, 4.3, 0), ==, 0);
  g_assert_cmpuint(oct_plan_nodes_with(&o, 4.3, 1), ==, 0); /* six are more than four */
  g_assert_cmpfloat(oct_plan_score_with(&o, &l, 4.3, 7.2), >,
                    oct_plan_score_with(&o, &more, 7.2, 9.3));
  g_assert_cmpfloat(oct_plan_score(&o, &l, 4.3), <, oct_plan_score(&o, &more, 7.2));
}

/* What the race rests on: a bound on the rate is a bound on the score. */
static void
test_monotone(void) {
  const double prices[] = {2};
  const oct_plan_layout l = {.gpus = 4};
  for (int goal = OCT_PLAN_GOAL_RATE; goal <= OCT_PLAN_GOAL_COST; goal++)
    for (int wanted = goal == OCT_PLAN_GOAL_GPUS; wanted <= 1; wanted++) {
      oct_plan_options o = asked((oct_plan_goal)goal, wanted * 20, 16, prices);
      double before = -INFINITY;
      for (double rate = 0.5; rate < 5000; rate *= 1.01) {
        double score = oct_plan_score(&o, &l, rate);
        g_assert_cmpfloat(score, >=, before);
        before = score;
      }
    }
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/plan/score/interval-is-students", test_interval);
  g_test_add_func("/plan/score/each-goal-has-its-order", test_goals);
  g_test_add_func("/plan/score/of-several-nodes-one-has-the-loss", test_one_loss);
  g_test_add_func("/plan/score/never-falls-with-the-rate", test_monotone);
  return g_test_run();
}
