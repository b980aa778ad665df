/* Models of production shapes that tests make weights up for. Arrays of a spec are shared by all
 * that are made, for ever. From one thread. */
#ifndef OCT_TESTS_BACKENDS_CUDA_WIDE_MODELS_H
#define OCT_TESTS_BACKENDS_CUDA_WIDE_MODELS_H

#include "engine/model/spec.h"

#define WIDE_VOCAB 129 /* a token's own logprob and 128 others are all of them */

typedef oct_model_spec (*wide_model)(void);

/* bfloat16: heads of 128; latents and experts; a window with a sink, and experts. */
oct_model_spec wide_dense(void);
oct_model_spec wide_latent(void);
oct_model_spec wide_windowed(void);
/* Kimi K3 but for its sizes: 13 layers in blocks of 4; and delta attention with a dense
 * feed-forward, then latent attention with experts on a latent, in blocks of one. */
oct_model_spec wide_k3_long(void);
oct_model_spec wide_k3_short(void);
/* The short one is off by so much on the cpu backend when what goes into its halves of layers and
 * comes out of them is rounded to bfloat16, and nothing else is. */
#define WIDE_K3_SHORT_BF16 2.85e-2

/* Weights of other types. */
oct_model_spec wide_dense_fp8(void);
oct_model_spec wide_dense_blocks(void);
oct_model_spec wide_dense_int4(void);
oct_model_spec wide_dense_int4_small(void);
oct_model_spec wide_latent_blocks(void);
oct_model_spec wide_windowed_mxfp4(void);
oct_model_spec wide_windowed_int4(void);

#endif
