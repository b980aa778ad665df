/* Routing against float64, sorted in full. */
#include <math.h>
#include <string.h>

#include "tests/kernels/data.h"

typedef struct scored {
  guint32 expert;
  double choice, score;
} scored;

static int
better_first(const void *a, const void *b) {
  const scored *x = a, *y = b;
  if (x->choice != y->choice)
    return x->choice > y->choice ? -1 : 1;
  return x->expert < y->expert ? -1 : 1;
}

/* Experts of groups that are not among the best move below all others. */
static void
exact_groups(const oct_routing *r, scored *s) {
  guint32 size = r->n_experts / r->n_groups;
  g_autofree scored *groups = g_new0(scored, r->n_groups);
  g_autofree scored *members = g_new(scored, size);
  for (guint32 g = 0; g < r->n_groups; g++) {
    memcpy(members, s + g * size, size * sizeof *s);
    qsort(members, size, sizeof *members, better_first);
    groups[g] = (scored){g, members[0].choice + (size > 1 ? members[1].choice : 0), 0};
  }
  qsort(groups, r->n_groups, sizeof *groups, better_first);
  for (guint32 i = r->top_groups; i < r->n_groups; i++)
    for (guint32 k = 0; k < size; k++)
      s[groups[i].expert * size + k].choice = -INFINITY;
}

static void
exact_route(const oct_routing *r, const float *logits, guint32 *experts, double *weights) {
  g_autofree scored *s = g_new(scored, r->n_experts);
  double sum = 0;
  for (guint32 e = 0; e < r->n_experts; e++)
    sum += exp(logits[e]);
  for (guint32 e = 0; e < r->n_experts; e++) {
    double score =
        r->score == OCT_ROUTER_SIGMOID ? 1 / (1 + exp(-logits[e])) : exp(logits[e]) / sum;
    s[e] = (scored){e, score + (r->bias != NULL ? r->bias[e] : 0), score};
  }
  if (r->n_groups > 1)
    exact_groups(r, s);
  qsort(s, r->n_experts, sizeof *s, better_first);
  double chosen = 0;
  for (guint32 k = 0; k < r->top_k; k++)
    chosen += s[k].score;
  for (guint32 k = 0; k < r->top_k; k++) {
    experts[k] = s[k].expert;
    weights[k] = s[k].score * r->scaling / (r->renormalise ? chosen : 1);
  }
}

static void
check_routing(const oct_routing *r, const char *name) {
  g_autofree float *scratch = g_new(float, 2 * r->n_experts + r->n_groups);
  g_autofree float *weights = g_new(float, r->top_k);
  g_autofree double *exact = g_new(double, r->top_k);
  g_autofree guint32 *experts = g_new(guint32, r->top_k), *wanted = g_new(guint32, r->top_k);
  g_autofree float *logits = data_normal(r->n_experts, 2);
  oct_ref_route(r, logits, experts, weights, scratch);
  exact_route(r, logits, wanted, exact);
  g_assert_cmpmem(experts, r->top_k * sizeof *experts, wanted, r->top_k * sizeof *wanted);
  data_expect(name, weights, exact, r->top_k, 0, 1e-6);
}

static void
softmax_top_k(void) {
  for (int round = 0; round < 12; round++) {
    guint32 n = data_between(1, 130);
    oct_routing r = {.score = OCT_ROUTER_SOFTMAX,
                     .n_experts = n,
                     .top_k = data_between(1, MIN(n, 9)),
                     .renormalise = round % 2 == 0,
                     .scaling = round % 3 == 0 ? 1 : 2.5f};
    check_routing(&r, round % 2 == 0 ? "softmax, renormalised" : "softmax");
  }
}

static void
sigmoid_with_bias_and_groups(void) {
  for (int round = 0; round < 16; round++) {
    guint32 size = data_between(1, 9), groups = data_between(1, 8), n = size * groups;
    guint32 top = data_between(1, groups);
    g_autofree float *bias = data_normal(n, 0.3);
    oct_routing r = {.score = OCT_ROUTER_SIGMOID,
                     .n_experts = n,
                     .top_k = data_between(1, top * size),
                     .n_groups = groups,
                     .top_groups = top,
                     .renormalise = round % 2 == 0,
                     .scaling = 2.5f,
                     .bias = round % 4 < 2 ? bias : NULL};
    g_test_message("%u groups of %u, %u kept, top %u", groups, size, top, r.top_k);
    check_routing(&r, "sigmoid");
  }
}

static void
equals_go_to_the_lower(void) {
  float logits[8] = {0, 1, 1, 0, 1, 1, 1, 0}, weights[4], scratch[16];
  guint32 experts[4];
  oct_routing r = {.n_experts = 8, .top_k = 4, .renormalise = true, .scaling = 1};
  oct_ref_route(&r, logits, experts, weights, scratch);
  static const guint32 wanted[] = {1, 2, 4, 5};
  g_assert_cmpmem(experts, sizeof experts, wanted, sizeof wanted);
  g_assert_cmpfloat(weights[0], ==, 0.25f);
}

/* A model that has gone wrong still names experts that exist, and none twice. */
static void
not_numbers_stay_in_range(void) {
  float logits[6] = {NAN, NAN, NAN, NAN, NAN, NAN}, weights[3], scratch[16];
  guint32 experts[3];
  for (int sigmoid = 0; sigmoid < 2; sigmoid++) {
    oct_routing r = {.score = sigmoid ? OCT_ROUTER_SIGMOID : OCT_ROUTER_SOFTMAX,
                     .n_experts = 6,
                     .top_k = 3,
                     .n_groups = 3,
                     .top_groups = 2,
                     .scaling = 1};
    oct_ref_route(&r, logits, experts, weights, scratch);
    /* Of groups that were given up first: these have numbers, though the lowest. */
    static const guint32 wanted[] = {4, 5, 0};
    g_assert_cmpmem(experts, sizeof experts, wanted, sizeof wanted);
    r.n_groups = 0;
    oct_ref_route(&r, logits, experts, weights, scratch);
    static const guint32 first[] = {0, 1, 2};
    g_assert_cmpmem(experts, sizeof experts, first, sizeof first);
  }
}

/* What is a number is taken first. */
static void
not_numbers_come_last(void) {
  float logits[6] = {NAN, 1, NAN, 3, NAN, 2}, weights[6], scratch[16];
  guint32 experts[6];
  static const guint32 wanted[] = {3, 5, 1, 0, 2, 4};
  oct_routing r = {.score = OCT_ROUTER_SIGMOID, .n_experts = 6, .top_k = 6, .scaling = 1};
  oct_ref_route(&r, logits, experts, weights, scratch);
  g_assert_cmpmem(experts, sizeof experts, wanted, sizeof wanted);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/kernels/route/softmax-top-k", softmax_top_k);
  g_test_add_func("/kernels/route/sigmoid-with-bias-and-groups", sigmoid_with_bias_and_groups);
  g_test_add_func("/kernels/route/equals-go-to-the-lower", equals_go_to_the_lower);
  g_test_add_func("/kernels/route/not-numbers-stay-in-range", not_numbers_stay_in_range);
  g_test_add_func("/kernels/route/not-numbers-come-last", not_numbers_come_last);
  return g_test_run();
}
