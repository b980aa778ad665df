/* Reading the numerics of a config.json. Names and defaults are those of the transformers library.
 */
#include "engine/model/numerics-reader.h"

#include <string.h>

/* The classes of these norms have a default of their own, which no published config overrides. */
#define LATENT_NORM_EPS 1e-6

static oct_rope_scaling
scaling_kind(const char *type) {
  static const struct {
    const char *name;
    oct_rope_scaling kind;
  } kinds[] = {{"default", OCT_ROPE_SCALING_NONE},
               {"linear", OCT_ROPE_SCALING_LINEAR},
               {"llama3", OCT_ROPE_SCALING_LLAMA3},
               {"yarn", OCT_ROPE_SCALING_YARN}};
  for (gsize i = 0; i < G_N_ELEMENTS(kinds); i++)
    if (strcmp(kinds[i].name, type) == 0)
      return kinds[i].kind;
  return OCT_ROPE_SCALING_OTHER;
}

/* rope_scaling, which transformers 5 calls rope_parameters. */
static void
read_rope(oct_fields *fields, oct_model_spec *spec) {
  oct_numerics *n = &spec->numerics;
  oct_fields rope;
  if (!oct_fields_object_or(fields, "rope_parameters", &rope) &&
      !oct_fields_object_or(fields, "rope_scaling", &rope))
    return;
  const char *field = oct_fields_has(&rope, "rope_type") ? "rope_type" : "type";
  n->rope_scaling = scaling_kind(oct_fields_string_or(&rope, field, "default"));
  if (n->rope_scaling == OCT_ROPE_SCALING_NONE || n->rope_scaling == OCT_ROPE_SCALING_OTHER)
    return;
  n->rope_factor = oct_fields_real(&rope, "factor", 1e-3, 1e6);
  if (n->rope_scaling == OCT_ROPE_SCALING_LINEAR)
    return;
  n->rope_original =
      oct_fields_real_or(&rope, "original_max_position_embeddings", 1, 1e9, spec->max_position);
  if (n->rope_scaling == OCT_ROPE_SCALING_LLAMA3) {
    n->rope_low_freq = oct_fields_real(&rope, "low_freq_factor", 1e-6, 1e6);
    n->rope_high_freq = oct_fields_real(&rope, "high_freq_factor", 1e-6, 1e6);
    return;
  }
  n->rope_beta_fast = oct_fields_real_or(&rope, "beta_fast", 1e-6, 1e6, 32);
  n->rope_beta_slow = oct_fields_real_or(&rope, "beta_slow", 1e-6, 1e6, 1);
  n->rope_truncate = oct_fields_bool_or(&rope, "truncate", TRUE);
  n->rope_attention_factor = oct_fields_real_or(&rope, "attention_factor", 0, 1e6, 0);
  n->rope_mscale = oct_fields_real_or(&rope, "mscale", 0, 1e6, 0);
  n->rope_mscale_all_dim = oct_fields_real_or(&rope, "mscale_all_dim", 0, 1e6, 0);
}

static gboolean
is_one_of(const oct_model_spec *spec, const char *const *names) {
  return g_strv_contains(names, spec->architecture);
}

static void
read_router(oct_fields *fields, oct_model_spec *spec) {
  static const char *const deepseek[] = {"deepseek_v3", "kimi_k2", NULL};
  static const char *const kimi[] = {"kimi_linear", "kimi_k3", NULL};
  static const char *const always[] = {"mixtral", "gpt_oss", NULL};
  oct_numerics *n = &spec->numerics;
  gboolean is_kimi = is_one_of(spec, kimi);
  if (is_kimi || is_one_of(spec, deepseek)) {
    const char *name = is_kimi ? "moe_router_activation_func" : "scoring_func";
    const char *score = oct_fields_string_or(fields, name, "sigmoid");
    n->router_sigmoid = strcmp(score, "sigmoid") == 0;
    if (!n->router_sigmoid && strcmp(score, "softmax") != 0)
      oct_fields_fail(fields, name, OCT_MODEL_ERROR_FIELD,
                      "supported are \"sigmoid\" and \"softmax\"");
    n->router_renormalise =
        oct_fields_bool_or(fields, is_kimi ? "moe_renormalize" : "norm_topk_prob", TRUE);
    n->router_groups = oct_fields_u32_or(fields, is_kimi ? "num_expert_group" : "n_group", 0,
                                         OCT_MODEL_EXPERTS_MAX, 0);
    n->router_top_groups = oct_fields_u32_or(fields, "topk_group", 0, OCT_MODEL_EXPERTS_MAX, 0);
    return;
  }
  n->router_renormalise =
      is_one_of(spec, always) || oct_fields_bool_or(fields, "norm_topk_prob", FALSE);
}

/* Groups must divide the experts, and leave enough of them to choose from. */
static void
check_groups(oct_fields *fields, const oct_model_spec *spec) {
  guint32 groups = spec->numerics.router_groups, top = spec->numerics.router_top_groups;
  for (guint32 i = 0; i < spec->n_ffn && groups > 1; i++) {
    guint32 experts = spec->ffn[i].n_experts;
    if (experts > 0 && (experts % groups != 0 || top < 1 || top > groups ||
                        (guint64)top * (experts / groups) < spec->ffn[i].top_k))
      oct_fields_fail(fields, "topk_group", OCT_MODEL_ERROR_FIELD,
                      "of %u groups: %u experts, of which a token takes %u, do not fit", groups,
                      experts, spec->ffn[i].top_k);
  }
}

void
oct_numerics_read(oct_fields *fields, oct_model_spec *spec) {
  oct_numerics *n = &spec->numerics;
  static const char *const interleaved[] = {"deepseek_v3", "kimi_k2", NULL};
  read_rope(fields, spec);
  n->rope_interleaved =
      is_one_of(spec, interleaved) && oct_fields_bool_or(fields, "rope_interleave", TRUE);
  read_router(fields, spec);
  check_groups(fields, spec);
  n->latent_norm_eps = oct_fields_real_or(fields, "latent_norm_eps", 1e-20, 1, LATENT_NORM_EPS);
  if (spec->activation == OCT_ACTIVATION_SWIGLU_CLAMPED) {
    n->glu_alpha = 1.702;
    n->glu_limit = oct_fields_real_or(fields, "swiglu_limit", 1e-3, 1e6, 7);
  }
  if (spec->activation == OCT_ACTIVATION_SITU) {
    n->glu_alpha = oct_fields_real_or(fields, "activation_situ_beta", 1e-3, 1e6, 4);
    n->glu_limit = oct_fields_real_or(fields, "activation_situ_linear_beta", 1e-3, 1e6, 25);
  }
  oct_fields linear;
  if (strcmp(spec->architecture, "kimi_k3") == 0 &&
      oct_fields_object_or(fields, "linear_attn_config", &linear))
    n->decay_bound = oct_fields_real_or(&linear, "gate_lower_bound", -1e3, 0, -5);
}
