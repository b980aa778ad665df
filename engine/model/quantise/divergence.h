/* How well a model predicts a text, and how far its predictions are from another's.
 *
 * Positions are added one by one with the logits there and the token that follows. Arithmetic is
 * float64 from the logits on. One thread at a time.
 */
#ifndef OCT_MODEL_QUANTISE_DIVERGENCE_H
#define OCT_MODEL_QUANTISE_DIVERGENCE_H

#include <glib.h>

typedef struct oct_divergence oct_divergence;

/* Life cycle. */
oct_divergence *oct_divergence_new(guint32 vocab);
void oct_divergence_free(oct_divergence *divergence); /* accepts NULL */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(oct_divergence, oct_divergence_free)

/* Use: logits[vocab] of the model, and of the reference or NULL (then in every call). */
void oct_divergence_add(oct_divergence *divergence, const float *logits, const float *reference,
                        guint32 next_token);

typedef struct oct_divergence_result {
  guint64 positions;
  double nll, perplexity; /* mean of -ln p(next token), and exp() of it */
  gboolean has_reference; /* the rest is there */
  double reference_nll, reference_perplexity;
  double kl_mean, kl_p99, kl_max; /* of KL(reference || model) over positions, nats */
  double top1_agreement;          /* share of positions where both have the same first token */
} oct_divergence_result;

/* Inspect. p99 is the smallest KL that is not exceeded at 99 % of positions. All zero without a
 * position. */
void oct_divergence_get(const oct_divergence *divergence, oct_divergence_result *result);

#endif
