/* The constants of a model's arithmetic, for the backends that compute tokens: what of a spec they
 * can compute, rotary positions, routing, scales. */
#ifndef OCT_BACKENDS_ARITHMETIC_H
#define OCT_BACKENDS_ARITHMETIC_H

#include "engine/model/files/map.h"
#include "kernels/kernels.h"

/* FALSE with *error (CONFIG): a spec with something that no backend computes. */
gboolean oct_arithmetic_check(const oct_model_spec *spec, GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* FALSE with *error (CONFIG): weights of `found` are not what a plan for `wanted` counts on. */
gboolean oct_arithmetic_check_same(const oct_model_spec *found, const oct_model_spec *wanted,
                                   GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Rotary positions; dim 0: none. */
oct_rope oct_arithmetic_rope(const oct_model_spec *spec);
/* Their inverse frequencies, [rope.dim / 2], with the divisors of a file that has them. FALSE with
 * *error (CONFIG) when it has another number of them. */
gboolean oct_arithmetic_frequencies(const oct_model_spec *spec, const oct_weight_map *map,
                                    float *out, GError **error) G_GNUC_WARN_UNUSED_RESULT;
oct_glu_params oct_arithmetic_glu(const oct_model_spec *spec);
float oct_arithmetic_latent_scale(const oct_model_spec *spec); /* 0 without latent attention */
/* Epsilon of the norms of q_a and kv_a. */
float oct_arithmetic_latent_eps(const oct_model_spec *spec);
oct_routing oct_arithmetic_routing(const oct_model_spec *spec, const oct_ffn_spec *ffn,
                                   const float *score_bias);
/* Which layer group a layer is in, of oct_model_groups(). */
guint32 oct_arithmetic_group(const oct_model_spec *spec, guint32 layer);

#endif
