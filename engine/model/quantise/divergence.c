#include "engine/model/quantise/divergence.h"

#include <math.h>
#include <stdlib.h>

#include "engine/base/assert.h"

struct oct_divergence {
  guint32 vocab;
  guint64 positions, agreed;
  double nll, reference_nll;
  GArray *kl; /* of double, per position */
};

oct_divergence *
oct_divergence_new(guint32 vocab) {
  oct_assert(vocab > 0);
  oct_divergence *d = g_new0(oct_divergence, 1);
  d->vocab = vocab;
  d->kl = g_array_new(FALSE, FALSE, sizeof(double));
  return d;
}

void
oct_divergence_free(oct_divergence *d) {
  if (d == NULL)
    return;
  g_array_unref(d->kl);
  g_free(d);
}

/* ln of the sum of exp(logits), and where the largest is (the first of equals). */
static double
log_sum(const float *logits, guint32 n, guint32 *largest) {
  guint32 best = 0;
  for (guint32 i = 1; i < n; i++)
    if (logits[i] > logits[best])
      best = i;
  double sum = 0, most = (double)logits[best];
  for (guint32 i = 0; i < n; i++)
    sum += exp((double)logits[i] - most);
  *largest = best;
  return most + log(sum);
}

void
oct_divergence_add(oct_divergence *d, const float *logits, const float *reference,
                   guint32 next_token) {
  oct_assert(next_token < d->vocab);
  oct_assert(d->kl->len == (reference != NULL ? d->positions : 0)); /* in every call, or none */
  guint32 first, its_first;
  double sum = log_sum(logits, d->vocab, &first);
  d->nll += sum - (double)logits[next_token];
  d->positions++;
  if (reference == NULL)
    return;
  double its_sum = log_sum(reference, d->vocab, &its_first), kl = 0;
  for (guint32 i = 0; i < d->vocab; i++) {
    double its = (double)reference[i] - its_sum;
    kl += exp(its) * (its - ((double)logits[i] - sum));
  }
  kl = fmax(kl, 0); /* rounding may leave it a little below */
  g_array_append_val(d->kl, kl);
  d->reference_nll += its_sum - (double)reference[next_token];
  d->agreed += first == its_first;
}

static int
by_size(gconstpointer a, gconstpointer b) {
  const double *x = a, *y = b;
  return (*x > *y) - (*x < *y);
}

void
oct_divergence_get(const oct_divergence *d, oct_divergence_result *r) {
  *r = (oct_divergence_result){.positions = d->positions};
  if (d->positions == 0)
    return;
  double n = (double)d->positions;
  r->nll = d->nll / n;
  r->perplexity = exp(r->nll);
  if (d->kl->len == 0)
    return;
  g_autofree double *kl = g_memdup2(d->kl->data, d->kl->len * sizeof *kl);
  qsort(kl, d->kl->len, sizeof *kl, by_size);
  r->has_reference = TRUE;
  r->reference_nll = d->reference_nll / n;
  r->reference_perplexity = exp(r->reference_nll);
  for (guint i = 0; i < d->kl->len; i++)
    r->kl_mean += kl[i] / n;
  r->kl_p99 = kl[(gsize)ceil(0.99 * n) - 1];
  r->kl_max = kl[d->kl->len - 1];
  r->top1_agreement = (double)d->agreed / n;
}
