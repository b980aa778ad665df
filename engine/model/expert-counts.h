/* How often each expert of each layer was chosen: counted while serving, read by the simulation.
 *
 * A text file, the same that --expert-warmup hist:FILE takes:
 *
 *     # octet expert counts 1: kimi-linear-48b-a3b, 120000 tokens
 *     (an empty line for a layer without experts)
 *     10 0 7 …       one number >= 0 per expert of the layer, in order; blanks or commas between
 *
 * One line per layer of the model, dense ones included, which are empty; lines that begin with #
 * are comments. Counts are relative to their layer: chances and any other scale do as well.
 *
 * In memory counts are double[n_layers][width], width the most experts of any layer. Any thread.
 */
#ifndef OCT_MODEL_EXPERT_COUNTS_H
#define OCT_MODEL_EXPERT_COUNTS_H

#include <glib.h>

#include "engine/model/spec.h"

#define OCT_EXPERT_COUNTS_BYTES_MAX (64u << 20) /* of a file */

guint32 oct_expert_counts_width(const oct_model_spec *spec);

/* Owned, n_layers x width; NULL with *error (OCT_MODEL_ERROR_PARSE, _NOT_FOUND) that has file, line
 * and value. */
double *oct_expert_counts_read(const char *path, const oct_model_spec *spec,
                               GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Writes counts of `tokens` tokens; a file that is there is replaced whole. */
gboolean oct_expert_counts_write(const char *path, const oct_model_spec *spec, const double *counts,
                                 guint64 tokens, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Popularity by rank: each layer's counts from the most to the least, as shares of their sum, and
 * the mean of those over all layers that are as wide as any: [width], owned. NULL with *error
 * (OCT_MODEL_ERROR_PARSE) when none of these has a count. */
double *oct_expert_counts_ranked(const oct_model_spec *spec, const double *counts,
                                 GError **error) G_GNUC_WARN_UNUSED_RESULT;

#endif
