/* Which experts a token takes. */
#include "kernels/kernels.h"

#include <math.h>

/* The index of the largest of n, the lowest of equals; those that are NaN never win over others. */
static uint32_t
largest(const float *x, uint32_t n) {
  uint32_t best = 0;
  for (uint32_t i = 1; i < n; i++)
    if (x[i] > x[best] || isnan(x[best]))
      best = i;
  return best;
}

static void
make_scores(const oct_routing *r, const float *logits, float *scores) {
  if (r->score == OCT_ROUTER_SIGMOID) {
    for (uint32_t e = 0; e < r->n_experts; e++)
      scores[e] = 1 / (1 + expf(-logits[e]));
    return;
  }
  float top = logits[largest(logits, r->n_experts)];
  double sum = 0;
  for (uint32_t e = 0; e < r->n_experts; e++) {
    scores[e] = expf(logits[e] - top);
    sum += scores[e];
  }
  for (uint32_t e = 0; e < r->n_experts; e++)
    scores[e] = (float)(scores[e] / sum);
}

/* Leaves only the experts of the best groups; a group counts by the sum of its two best. */
static void
keep_groups(const oct_routing *r, float *choice, float *groups) {
  uint32_t size = r->n_experts / r->n_groups;
  for (uint32_t g = 0; g < r->n_groups; g++) {
    float first = -INFINITY, second = -INFINITY;
    for (uint32_t i = 0; i < size; i++) {
      float x = choice[g * size + i];
      if (x > first) {
        second = first;
        first = x;
      } else if (x > second) {
        second = x;
      }
    }
    groups[g] = size > 1 ? first + second : first;
  }
  /* Each round takes the best group out; what is left after them is given up. */
  for (uint32_t round = 0; round < r->top_groups; round++)
    groups[largest(groups, r->n_groups)] = NAN;
  for (uint32_t g = 0; g < r->n_groups; g++)
    for (uint32_t i = 0; !isnan(groups[g]) && i < size; i++)
      choice[g * size + i] = -INFINITY;
}

/* The first expert that is not among those taken. */
static uint32_t
first_left(const uint32_t *taken, uint32_t n) {
  for (uint32_t e = 0;; e++) {
    uint32_t i = 0;
    while (i < n && taken[i] != e)
      i++;
    if (i == n)
      return e;
  }
}

void
oct_ref_route(const oct_routing *r, const float *logits, uint32_t *experts, float *weights,
              float *scratch) {
  float *scores = scratch, *choice = scratch + r->n_experts;
  make_scores(r, logits, scores);
  for (uint32_t e = 0; e < r->n_experts; e++)
    choice[e] = scores[e] + (r->bias != NULL ? r->bias[e] : 0);
  if (r->n_groups > 1)
    keep_groups(r, choice, choice + r->n_experts);
  double sum = 0;
  for (uint32_t k = 0; k < r->top_k; k++) {
    experts[k] = largest(choice, r->n_experts);
    if (isnan(choice[experts[k]]))
      experts[k] = first_left(experts, k);
    choice[experts[k]] = NAN;
    weights[k] = scores[experts[k]];
    sum += weights[k];
  }
  for (uint32_t k = 0; k < r->top_k; k++) {
    if (r->renormalise)
      weights[k] = (float)(weights[k] / (sum + 1e-20));
    weights[k] *= r->scaling;
  }
}
