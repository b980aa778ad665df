#include "tests/backends/cuda/wide.h"

#include "engine/base/rng.h"

oct_model_spec
wide_base(char *name, guint32 vocab, guint32 hidden, oct_layer_spec *layers, guint32 n_layers) {
  static char architecture[] = "wide";
  return (oct_model_spec){.name = name,
                          .architecture = architecture,
                          .vocab = vocab,
                          .hidden = hidden,
                          .n_layers = n_layers,
                          .max_position = 4096,
                          .rms_norm_eps = 1e-5,
                          .rope_theta = 10000,
                          .n_attention = 1,
                          .n_ffn = 1,
                          .layers = layers,
                          .types = {.attention = OCT_DTYPE_BF16,
                                    .dense_ffn = OCT_DTYPE_BF16,
                                    .expert = OCT_DTYPE_BF16,
                                    .shared_expert = OCT_DTYPE_BF16,
                                    .router = OCT_DTYPE_BF16,
                                    .latent = OCT_DTYPE_BF16,
                                    .embedding = OCT_DTYPE_BF16,
                                    .head = OCT_DTYPE_BF16,
                                    .base = OCT_DTYPE_BF16}};
}

oct_ffn_spec
wide_experts(guint32 shared) {
  return (oct_ffn_spec){.kind = OCT_FFN_MOE,
                        .n_experts = 16,
                        .top_k = 4,
                        .moe_intermediate = 256,
                        .shared_intermediate = shared,
                        .routed_scaling = 1};
}

oct_model_spec
wide_k3(guint32 vocab, guint32 hidden, guint32 dense, guint32 latent) {
  static oct_model_spec *published;
  g_autoptr(GError) error = NULL;
  if (published == NULL)
    published = oct_model_spec_load("kimi-k3", NULL, &error);
  g_assert_no_error(error);
  oct_model_spec s = *published;
  s.vocab = vocab;
  s.hidden = hidden;
  s.n_layers = 13;
  s.attn_res_block = 4;
  for (guint32 i = 0; i < s.n_attention; i++) {
    s.attention[i].n_heads = 16;
    if (s.attention[i].kind == OCT_ATTENTION_MLA)
      s.attention[i].q_lora = 192;
  }
  for (guint32 i = 0; i < s.n_ffn; i++) {
    oct_ffn_spec *f = &s.ffn[i];
    f->intermediate = f->intermediate > 0 ? dense : 0;
    if (f->kind == OCT_FFN_DENSE)
      continue;
    f->n_experts = 16;
    f->top_k = 4;
    f->moe_intermediate = f->shared_intermediate = 256;
    f->latent = latent;
  }
  return s;
}

void
wide_next(oct_world *world, oct_event *event, oct_event_kind wanted) {
  do
    g_assert_true(oct_world_next(world, OCT_TIME_NEVER, event));
  while (event->kind == OCT_EVENT_OPEN_PROGRESS);
  if (event->kind == OCT_EVENT_FAULT || event->kind == OCT_EVENT_OPEN_FAILED)
    g_test_message("%s", event->fault->message);
  g_assert_cmpint(event->kind, ==, wanted);
}

guint64
wide_hash_choices(const oct_step_result *result) {
  const oct_expert_use *uses = oct_result_experts(result);
  guint64 hash = 0;
  for (guint32 i = 0; i < result->n_experts; i++)
    hash = oct_mix64(
        hash + ((guint64)uses[i].layer << 48 | (guint64)uses[i].expert << 24 | uses[i].tokens));
  return hash;
}
