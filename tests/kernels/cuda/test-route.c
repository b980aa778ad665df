/* Routing, sorting of pairs, and the sum over experts. */
#include "tests/kernels/cuda/device.h"

#include <math.h>
#include <string.h>

/* Scores of a token's experts in float64. */
static void
make_scores(const oct_routing *r, const float *logits, double *scores) {
  double sum = 0;
  for (guint32 e = 0; e < r->n_experts; e++) {
    scores[e] = r->score == OCT_ROUTER_SIGMOID ? 1 / (1 + exp(-(double)logits[e])) : exp(logits[e]);
    sum += scores[e];
  }
  for (guint32 e = 0; e < r->n_experts && r->score == OCT_ROUTER_SOFTMAX; e++)
    scores[e] /= sum;
}

static double
bias_of(const oct_routing *r, guint32 e) {
  return r->bias != NULL ? r->bias[e] : 0;
}

/* Whether an expert may have the place of another: what they are chosen by is the same but for the
 * rounding of float32 exponentials. */
static gboolean
may_be_for(const oct_routing *r, const double *scores, guint32 e, guint32 other) {
  double difference = scores[e] + bias_of(r, e) - scores[other] - bias_of(r, other);
  return fabs(difference) <= 5e-7 * (scores[e] + fabs(bias_of(r, e)));
}

/* Of equals the lower comes first: those below choice j have been chosen. */
static void
check_equals(const oct_routing *r, const float *logits, const guint32 *experts, guint32 j) {
  guint32 e = experts[j], size = r->n_groups > 1 ? r->n_experts / r->n_groups : r->n_experts;
  for (guint32 lower = e / size * size; lower < e; lower++) {
    gboolean found = logits[lower] != logits[e] || bias_of(r, lower) != bias_of(r, e);
    for (guint32 k = 0; k < j; k++)
      found |= experts[k] == lower;
    g_assert_true(found);
  }
}

/* Experts of a token that are not the twin's, and their weights. */
static void
check_others(const oct_routing *r, const float *logits, const guint32 *experts,
             const float *weights, const guint32 *want) {
  g_autofree double *scores = g_new(double, r->n_experts);
  double sum = 0;
  make_scores(r, logits, scores);
  for (guint32 j = 0; j < r->top_k; j++) {
    g_assert_cmpuint(experts[j], <, r->n_experts);
    if (!may_be_for(r, scores, experts[j], want[j]))
      g_test_fail_printf("choice %u of %u is %u, not %u", j, r->n_experts, experts[j], want[j]);
    for (guint32 k = 0; k < j; k++)
      g_assert_cmpuint(experts[j], !=, experts[k]);
    check_equals(r, logits, experts, j);
    sum += scores[experts[j]];
  }
  for (guint32 j = 0; j < r->top_k; j++)
    g_assert_cmpfloat_with_epsilon(weights[j],
                                   scores[experts[j]] / (r->renormalise ? sum : 1) * r->scaling,
                                   2e-6 * r->scaling);
}

static void
check_routing(const oct_cuda_queue *queue, const oct_routing *routing, gboolean has_bias) {
  guint32 n = 37, e = routing->n_experts, k = routing->top_k;
  g_autofree float *logits = data_normal((gsize)n * e, 1), *bias = data_normal(e, 0.3);
  g_autofree guint32 *token_seq = g_new0(guint32, n);
  token_seq[5] = OCT_CUDA_NONE;
  for (guint32 i = 0; i < e; i++) /* ties: the lower expert first */
    logits[3 * e + i] = (float)(i % 3);
  for (guint32 i = 0; i < e; i++) /* nothing to choose by: none twice */
    logits[7 * e + i] = NAN;
  oct_cuda_route call = {.routing = *routing,
                         .n = n,
                         .logits = device_copy(logits, (gsize)n * e * sizeof *logits),
                         .token_seq = device_copy(token_seq, n * sizeof *token_seq),
                         .experts = device_room(n * k * 4),
                         .weights = device_room(n * k * 4)};
  call.routing.bias = has_bias ? device_copy(bias, e * sizeof *bias) : NULL;
  device_check(oct_cuda_route_tokens(queue, &call));
  oct_routing twin = *routing;
  twin.bias = has_bias ? bias : NULL;
  g_autofree guint32 *experts = g_new(guint32, n * k), *want = g_new(guint32, k);
  g_autofree float *weights = g_new(float, n *k), *want_weights = g_new(float, k);
  g_autofree float *scratch = g_new(float, 2 * e + routing->n_groups + 1);
  device_read(experts, call.experts, n * k * 4);
  device_read(weights, call.weights, n * k * 4);
  for (guint32 i = 0; i < n; i++) {
    oct_ref_route(&twin, logits + (gsize)i * e, want, want_weights, scratch);
    /* Where logits are few numbers nothing is nearly the same. */
    if (i != 5 && i != 7 && (i != 3 || has_bias) &&
        memcmp(experts + i * k, want, k * sizeof *want) != 0) {
      check_others(&twin, logits + (gsize)i * e, experts + i * k, weights + i * k, want);
      continue;
    }
    for (guint32 j = 0; j < k; j++) {
      g_assert_cmpuint(experts[i * k + j], ==, i == 5 ? OCT_CUDA_NONE : want[j]);
      if (i == 7)
        g_assert_true(isnan(weights[i * k + j]) && isnan(want_weights[j]));
      else
        g_assert_cmpfloat_with_epsilon(weights[i * k + j], i == 5 ? 0 : want_weights[j],
                                       2e-6f * routing->scaling);
    }
  }
}

static void
test_routing(void) {
  static const oct_routing cases[] = {{OCT_ROUTER_SOFTMAX, 8, 3, 0, 0, false, 1, NULL},
                                      {OCT_ROUTER_SOFTMAX, 128, 8, 0, 0, true, 1, NULL},
                                      {OCT_ROUTER_SIGMOID, 8, 3, 4, 2, true, 2.5f, NULL},
                                      {OCT_ROUTER_SIGMOID, 256, 8, 8, 4, true, 2.5f, NULL},
                                      {OCT_ROUTER_SOFTMAX, 257, 5, 0, 0, true, 1, NULL},
                                      {OCT_ROUTER_SIGMOID, 513, 32, 0, 0, true, 2.4f, NULL},
                                      {OCT_ROUTER_SOFTMAX, 640, 10, 0, 0, false, 1, NULL},
                                      {OCT_ROUTER_SIGMOID, 760, 16, 8, 4, true, 2.4f, NULL},
                                      {OCT_ROUTER_SIGMOID, 896, 16, 0, 0, true, 2.4f, NULL},
                                      {OCT_ROUTER_SOFTMAX, 1024, 32, 0, 0, true, 1, NULL}};
  for (guint i = 0; i < 2 * G_N_ELEMENTS(cases); i++) {
    const oct_cuda_queue *queue = device_queue(0);
    if (queue == NULL)
      return;
    check_routing(queue, &cases[i / 2], i % 2);
  }
}

static void
check_pairs(const oct_cuda_queue *queue, guint32 n, guint32 top_k, guint32 n_experts, guint32 first,
            guint32 local) {
  guint32 size = n * top_k, next = 0;
  g_autofree guint32 *experts = g_new(guint32, size), *counts = g_new0(guint32, n_experts);
  for (guint32 p = 0; p < size; p++) {
    experts[p] = p % 11 == 7 ? OCT_CUDA_NONE : data_between(0, n_experts - 1);
    if (experts[p] != OCT_CUDA_NONE)
      counts[experts[p]]++;
  }
  g_autofree guint32 *zeros = g_new0(guint32, n_experts);
  oct_cuda_pairs call = {.n = n,
                         .top_k = top_k,
                         .n_experts = n_experts,
                         .first_expert = first,
                         .n_local = local,
                         .experts = device_copy(experts, size * 4),
                         .starts = device_room((local + 1) * 4),
                         .pair_of = device_room(size * 4),
                         .row_of = device_room(size * 4),
                         .counts = device_copy(zeros, n_experts * 4)};
  device_check(oct_cuda_sort_pairs(queue, &call));
  g_autofree guint32 *starts = g_new(guint32, local + 1), *pair_of = g_new(guint32, size);
  g_autofree guint32 *row_of = g_new(guint32, size), *got = g_new(guint32, n_experts);
  device_read(starts, call.starts, (local + 1) * 4);
  device_read(pair_of, call.pair_of, size * 4);
  device_read(row_of, call.row_of, size * 4);
  device_read(got, call.counts, n_experts * 4);
  g_assert_cmpmem(got, n_experts * 4, counts, n_experts * 4);
  for (guint32 e = 0; e < local; e++) {
    g_assert_cmpuint(starts[e], ==, next);
    for (guint32 p = 0; p < size; p++)
      if (experts[p] == first + e) {
        g_assert_cmpuint(pair_of[next], ==, p);
        g_assert_cmpuint(row_of[p], ==, next);
        next++;
      }
  }
  g_assert_cmpuint(starts[local], ==, next);
  for (guint32 p = 0; p < size; p++)
    if (experts[p] == OCT_CUDA_NONE || experts[p] < first || experts[p] >= first + local)
      g_assert_cmpuint(row_of[p], ==, OCT_CUDA_NONE);
}

static void
test_pairs(void) {
  static const guint32 cases[][5] = {
      {1, 3, 8, 0, 8},         {77, 3, 8, 2, 4},        {40, 8, 128, 0, 128},
      {900, 8, 64, 0, 64},     {700, 6, 160, 80, 40},   {300, 16, 896, 0, 896},
      {64, 16, 896, 112, 112}, {3000, 16, 896, 0, 896}, {5000, 32, 1024, 0, 1024}};
  for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
    const oct_cuda_queue *queue = device_queue(0);
    if (queue == NULL)
      return;
    if (device_quick() && cases[i][0] > 100)
      continue;
    check_pairs(queue, cases[i][0], cases[i][1], cases[i][2], cases[i][3], cases[i][4]);
  }
}

static void
test_combine(void) {
  for (guint k = 0; k < 4; k++) {
    const oct_cuda_queue *queue = device_queue(0);
    if (queue == NULL)
      return;
    guint32 n = 11, top_k = 3, width = k % 2 == 0 ? 64 : 75, size = n * top_k;
    oct_cuda_type type = k / 2 == 0 ? OCT_CUDA_F32 : OCT_CUDA_BF16;
    g_autofree guint32 *row_of = data_pages(size, size);
    g_autofree float *y = data_normal((gsize)size * width, 1), *weights = data_normal(size, 1);
    g_autofree float *out = data_normal((gsize)n * width, 1);
    row_of[4] = OCT_CUDA_NONE;
    oct_cuda_pairs pairs = {.n = n, .top_k = top_k, .row_of = device_copy(row_of, size * 4)};
    oct_cuda_combine call = {.type = type,
                             .out_type = OCT_CUDA_F32,
                             .pairs = &pairs,
                             .weights = device_copy(weights, size * sizeof *weights),
                             .width = width,
                             .y = device_put(type, y, (gsize)size * width),
                             .y_stride = width,
                             .add = true,
                             .out = device_put(OCT_CUDA_F32, out, (gsize)n * width),
                             .out_stride = width};
    device_check(oct_cuda_combine_pairs(queue, &call));
    for (guint32 p = 0; p < size; p++)
      for (guint32 c = 0; p != 4 && c < width; c++)
        out[(gsize)(p / top_k) * width + c] += weights[p] * y[(gsize)row_of[p] * width + c];
    g_autofree float *got = device_get(OCT_CUDA_F32, call.out, (gsize)n * width);
    device_expect("sum over experts", got, out, (gsize)n * width, 1e-6);
  }
}

/* The norm of the sum, of 16 experts as of one, from widths that fit a block's first run on. */
static void
test_combine_norm(void) {
  static const guint32 widths[] = {3584, 75, 8192, 64, 2304, 5001};
  for (guint k = 0; k < 2 * G_N_ELEMENTS(widths); k++) {
    const oct_cuda_queue *queue = device_queue(0);
    if (queue == NULL)
      return;
    guint32 n = 9, top_k = 1 + 15 * (k / 2 % 2), width = widths[k / 2], size = n * top_k;
    oct_cuda_type type = k % 2 == 0 ? OCT_CUDA_F32 : OCT_CUDA_BF16;
    g_autofree guint32 *row_of = data_pages(size, size);
    g_autofree float *y = data_normal((gsize)size * width, 1), *weights = data_normal(size, 1);
    g_autofree float *norm = data_normal(width, 1), *want = g_new0(float, (gsize)n *width);
    row_of[size - 1] = OCT_CUDA_NONE;
    oct_cuda_pairs pairs = {.n = n, .top_k = top_k, .row_of = device_copy(row_of, size * 4)};
    oct_cuda_combine call = {.type = OCT_CUDA_F32,
                             .out_type = type,
                             .pairs = &pairs,
                             .weights = device_copy(weights, size * sizeof *weights),
                             .width = width,
                             .y = device_put(OCT_CUDA_F32, y, (gsize)size * width),
                             .y_stride = width,
                             .norm = device_put(type, norm, width),
                             .norm_eps = 1e-5f,
                             .out = device_room_of(type, (gsize)n * width),
                             .out_stride = width};
    device_check(oct_cuda_combine_pairs(queue, &call));
    for (guint32 p = 0; p < size - 1; p++)
      for (guint32 c = 0; c < width; c++)
        want[(gsize)(p / top_k) * width + c] += weights[p] * y[(gsize)row_of[p] * width + c];
    oct_ref_rms_norm(want, norm, n, width, width, 1e-5f, want);
    g_autofree float *got = device_get(type, call.out, (gsize)n * width);
    device_expect("norm of the sum", got, want, (gsize)n * width, k % 2 == 0 ? 1e-5 : 4e-3);
  }
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/cuda/route/chooses-as-the-reference", test_routing);
  g_test_add_func("/cuda/route/pairs-are-sorted-by-expert-and-token", test_pairs);
  g_test_add_func("/cuda/route/adds-up-what-experts-give", test_combine);
  g_test_add_func("/cuda/route/norms-the-sum-over-experts", test_combine_norm);
  return g_test_run();
}
