/* Models of production shapes: heads of 128, latents of 512 + 64, windows with a sink, 16 experts,
 * and Kimi K3 with all that it has; of weights of each type. */
#include "tests/backends/cuda/wide-models.h"

#include "tests/backends/cuda/wide.h"

static oct_layer_spec plain[4] = {{0, 0}, {0, 0}, {0, 0}, {0, 0}};
static oct_layer_spec mixed[4] = {{0, 0}, {1, 1}, {0, 1}, {1, 1}};

static oct_model_spec
base(char *name) {
  return wide_base(name, WIDE_VOCAB, 2048, plain, G_N_ELEMENTS(plain));
}

oct_model_spec
wide_dense(void) {
  static char name[] = "wide-dense";
  oct_model_spec s = base(name);
  s.attention[0] = (oct_attention_spec){
      .kind = OCT_ATTENTION_GQA, .n_heads = 16, .n_kv_heads = 8, .head_dim = 128, .qk_norm = TRUE};
  s.ffn[0] = (oct_ffn_spec){.kind = OCT_FFN_DENSE, .intermediate = 4096};
  return s;
}

oct_model_spec
wide_latent(void) {
  static char name[] = "wide-latent";
  oct_model_spec s = base(name);
  s.n_ffn = 1;
  s.attention[0] = (oct_attention_spec){.kind = OCT_ATTENTION_MLA,
                                        .n_heads = 16,
                                        .q_lora = 768,
                                        .kv_lora = 512,
                                        .qk_nope = 128,
                                        .qk_rope = 64,
                                        .v_head = 128};
  s.ffn[0] = wide_experts(256);
  s.numerics.router_sigmoid = s.numerics.router_renormalise = TRUE;
  return s;
}

oct_model_spec
wide_windowed(void) {
  static char name[] = "wide-window";
  oct_model_spec s = base(name);
  s.layers = mixed;
  s.n_attention = s.n_ffn = 2;
  s.attention[0] = (oct_attention_spec){
      .kind = OCT_ATTENTION_GQA, .n_heads = 16, .n_kv_heads = 4, .head_dim = 64, .sinks = TRUE};
  s.attention[1] = s.attention[0];
  s.attention[1].kind = OCT_ATTENTION_WINDOW;
  s.attention[1].window = 64;
  s.ffn[0] = (oct_ffn_spec){.kind = OCT_FFN_DENSE, .intermediate = 4096};
  s.ffn[1] = wide_experts(0);
  s.numerics.router_renormalise = TRUE;
  return s;
}

/* Kimi K3 but for its sizes: 13 layers in blocks of 4, heads as published, 16 experts. */
oct_model_spec
wide_k3_long(void) {
  static char name[] = "wide-k3";
  oct_model_spec s = wide_k3(WIDE_VOCAB, 512, 1024, 256);
  s.name = name;
  return s;
}

/* Delta attention and a dense feed-forward, then latent attention and experts on a latent, in
 * blocks of one: for bfloat16, since 13 made-up layers make any rounding 500 times larger. */
oct_model_spec
wide_k3_short(void) {
  static char name[] = "wide-k3-short";
  static oct_layer_spec short_layers[] = {{0, 0}, {1, 1}};
  oct_model_spec s = wide_k3_long();
  s.name = name;
  s.layers = short_layers;
  s.n_layers = G_N_ELEMENTS(short_layers);
  s.attn_res_block = 1;
  return s;
}

/* ---------------------------------------------------------------- quantised ones */

static oct_model_spec
quantised(oct_model_spec s, const char *name, oct_dtype attention, oct_dtype ffn) {
  s.name = (char *)(gsize)name;
  s.types.attention = attention;
  s.types.dense_ffn = s.types.expert = s.types.shared_expert = ffn;
  return s;
}

oct_model_spec
wide_dense_fp8(void) {
  return quantised(wide_dense(), "wide-dense-fp8", OCT_DTYPE_FP8, OCT_DTYPE_FP8);
}
oct_model_spec
wide_dense_blocks(void) {
  return quantised(wide_dense(), "wide-dense-fp8-block", OCT_DTYPE_FP8_BLOCK, OCT_DTYPE_FP8_BLOCK);
}
oct_model_spec
wide_dense_int4(void) {
  return quantised(wide_dense(), "wide-dense-int4", OCT_DTYPE_INT4_G128, OCT_DTYPE_INT4_G64);
}
oct_model_spec
wide_dense_int4_small(void) {
  return quantised(wide_dense(), "wide-dense-int4-32", OCT_DTYPE_INT4_G32, OCT_DTYPE_MXFP4);
}
oct_model_spec
wide_latent_blocks(void) {
  return quantised(wide_latent(), "wide-latent-fp8-block", OCT_DTYPE_FP8_BLOCK,
                   OCT_DTYPE_FP8_BLOCK);
}
oct_model_spec
wide_windowed_mxfp4(void) {
  return quantised(wide_windowed(), "wide-window-mxfp4", OCT_DTYPE_BF16, OCT_DTYPE_MXFP4);
}
oct_model_spec
wide_windowed_int4(void) {
  return quantised(wide_windowed(), "wide-window-int4", OCT_DTYPE_INT4_G64, OCT_DTYPE_INT4_G128);
}
