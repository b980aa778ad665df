/* Scales of a cache in fp8 that a checkpoint brings along: keys, values or latents are kept divided
 * by them, and what is read is multiplied.
 */
#ifndef OCT_MODEL_FILES_CACHE_H
#define OCT_MODEL_FILES_CACHE_H

#include "engine/model/files/tensors.h"

/* A layer's scales for n_heads heads, k[n_heads] and v[n_heads]: from the tensors
 * model.layers.N.self_attn.k_scale (or attn.k_scale, or k_proj.k_scale) and likewise for v, with
 * one number for all heads or one for each. 1 where there is none; *found says whether there is
 * any. FALSE with *error (TENSOR): another number of elements or type, or a scale that is no
 * positive finite number. */
gboolean oct_cache_scales(const oct_checkpoint *checkpoint, guint32 layer, guint32 n_heads,
                          float *k, float *v, gboolean *found,
                          GError **error) G_GNUC_WARN_UNUSED_RESULT;

#endif
