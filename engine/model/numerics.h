/* What a config says of a model's arithmetic beyond its shapes: how rotary positions are scaled,
 * how a router scores, which constants an activation has. Part of oct_model_spec; only backends
 * that compute tokens look at it. Zeroed means: plain rotary positions, softmax routing without
 * renormalisation.
 */
#ifndef OCT_MODEL_NUMERICS_H
#define OCT_MODEL_NUMERICS_H

#include <glib.h>

typedef enum oct_rope_scaling {
  OCT_ROPE_SCALING_NONE,
  OCT_ROPE_SCALING_LINEAR,
  OCT_ROPE_SCALING_LLAMA3,
  OCT_ROPE_SCALING_YARN,
  OCT_ROPE_SCALING_OTHER, /* a kind that Octet does not compute */
} oct_rope_scaling;

typedef struct oct_numerics {
  oct_rope_scaling rope_scaling;
  gboolean rope_interleaved;             /* pairs (2i, 2i + 1), else (i, i + width / 2) */
  double rope_factor;                    /* LINEAR, LLAMA3, YARN */
  double rope_original;                  /* LLAMA3, YARN: positions of pre-training */
  double rope_low_freq, rope_high_freq;  /* LLAMA3 */
  double rope_beta_fast, rope_beta_slow; /* YARN */
  gboolean rope_truncate;                /* YARN */
  /* YARN: attention factor, or 0: from mscale and mscale_all_dim where given, else from factor. */
  double rope_attention_factor, rope_mscale, rope_mscale_all_dim;
  gboolean router_sigmoid, router_renormalise;
  guint32 router_groups, router_top_groups; /* 0 = none */
  double latent_norm_eps;                   /* MLA: of q_a and kv_a norms; latent_norm_eps of the
                                               config, which no published one has, or 1e-6 */
  double glu_alpha, glu_limit;              /* gpt-oss; Kimi K3: beta and linear beta of SiTU */
  double decay_bound; /* KDA: lower bound of a log decay (Kimi K3), 0 = Kimi-Linear's softplus */
} oct_numerics;

#endif
