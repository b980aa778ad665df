#include "backends/arithmetic.h"

#include <math.h>

#include "engine/backend.h"
#include "engine/base/assert.h"

static gboolean refuse(GError **error, const char *format, ...) G_GNUC_PRINTF(2, 3);

static gboolean
refuse(GError **error, const char *format, ...) {
  va_list args;
  va_start(args, format);
  if (error != NULL)
    *error = g_error_new_valist(OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_CONFIG, format, args);
  va_end(args);
  return FALSE;
}

/* ---------------------------------------------------------------- what is computed */

gboolean
oct_arithmetic_check(const oct_model_spec *spec, GError **error) {
  if (spec->numerics.rope_scaling == OCT_ROPE_SCALING_OTHER)
    return refuse(error, "%s: rope scaling of another kind than linear, llama3 or yarn",
                  spec->name);
  for (guint32 i = 0; i < spec->n_attention; i++) {
    const oct_attention_spec *a = &spec->attention[i];
    guint32 rotated = a->kind == OCT_ATTENTION_MLA ? a->qk_rope : a->head_dim;
    if (a->kind != OCT_ATTENTION_KDA && spec->rope_theta > 0 && rotated % 2 != 0)
      return refuse(error, "%s: rotary positions on %u elements, which is odd", spec->name,
                    rotated);
  }
  return TRUE;
}

/* Sizes that the engine's plan and the weights must agree on. */
gboolean
oct_arithmetic_check_same(const oct_model_spec *found, const oct_model_spec *wanted,
                          GError **error) {
  oct_layer_group a[OCT_MODEL_GROUPS_MAX], b[OCT_MODEL_GROUPS_MAX];
  guint n = oct_model_groups(found, OCT_DTYPE_BF16, a);
  gboolean same = found->vocab == wanted->vocab && found->hidden == wanted->hidden &&
                  found->n_layers == wanted->n_layers &&
                  n == oct_model_groups(wanted, OCT_DTYPE_BF16, b);
  for (guint i = 0; same && i < n; i++)
    same = a[i].kind == b[i].kind && a[i].n_layers == b[i].n_layers && a[i].window == b[i].window &&
           a[i].token_bytes == b[i].token_bytes && a[i].state_bytes == b[i].state_bytes;
  for (guint32 l = 0; same && l < found->n_layers; l++)
    same =
        found->layers[l].attention == wanted->layers[l].attention &&
        found->ffn[found->layers[l].ffn].n_experts == wanted->ffn[wanted->layers[l].ffn].n_experts;
  if (same)
    return TRUE;
  return refuse(
      error,
      "the weights are of %s (%u layers, hidden %u, vocabulary %u), the instance wants %s "
      "(%u layers, hidden %u, vocabulary %u)",
      found->name, found->n_layers, found->hidden, found->vocab, wanted->name, wanted->n_layers,
      wanted->hidden, wanted->vocab);
}

/* ---------------------------------------------------------------- rotary positions */

static double
attention_factor(const oct_numerics *n) {
  if (n->rope_attention_factor > 0)
    return n->rope_attention_factor;
  if (n->rope_mscale > 0 && n->rope_mscale_all_dim > 0)
    return oct_ref_yarn_mscale(n->rope_factor, n->rope_mscale) /
           oct_ref_yarn_mscale(n->rope_factor, n->rope_mscale_all_dim);
  return oct_ref_yarn_mscale(n->rope_factor, 1);
}

static guint32
rotated_elements(const oct_model_spec *spec) {
  guint32 dim = 0;
  for (guint32 i = 0; i < spec->n_attention && spec->rope_theta > 0; i++) {
    const oct_attention_spec *a = &spec->attention[i];
    if (a->kind != OCT_ATTENTION_KDA)
      dim = a->kind == OCT_ATTENTION_MLA ? a->qk_rope : a->head_dim;
  }
  return dim;
}

oct_rope
oct_arithmetic_rope(const oct_model_spec *spec) {
  static const oct_rope_kind kinds[] = {[OCT_ROPE_SCALING_NONE] = OCT_ROPE_PLAIN,
                                        [OCT_ROPE_SCALING_LINEAR] = OCT_ROPE_LINEAR,
                                        [OCT_ROPE_SCALING_LLAMA3] = OCT_ROPE_LLAMA3,
                                        [OCT_ROPE_SCALING_YARN] = OCT_ROPE_YARN};
  const oct_numerics *n = &spec->numerics;
  oct_rope rope = {.dim = rotated_elements(spec)};
  if (rope.dim == 0)
    return rope;
  rope = (oct_rope){.kind = kinds[n->rope_scaling],
                    .interleaved = n->rope_interleaved,
                    .dim = rope.dim,
                    .theta = spec->rope_theta,
                    .factor = n->rope_factor,
                    .original_positions = n->rope_original,
                    .low_freq_factor = n->rope_low_freq,
                    .high_freq_factor = n->rope_high_freq,
                    .beta_fast = n->rope_beta_fast,
                    .beta_slow = n->rope_beta_slow,
                    .truncate = n->rope_truncate};
  if (rope.kind == OCT_ROPE_YARN)
    rope.attention_factor = attention_factor(n);
  return rope;
}

gboolean
oct_arithmetic_frequencies(const oct_model_spec *spec, const oct_weight_map *map, float *out,
                           GError **error) {
  oct_rope rope = oct_arithmetic_rope(spec);
  if (rope.dim == 0)
    return TRUE;
  oct_ref_rope_frequencies(&rope, out);
  guint n_divisors;
  const float *divisors = oct_weight_map_rope_divisors(map, &n_divisors);
  if (divisors != NULL && n_divisors != rope.dim / 2)
    return refuse(error, "%s: %u divisors of rotary frequencies, wanted are %u", spec->name,
                  n_divisors, rope.dim / 2);
  for (guint32 i = 0; divisors != NULL && i < n_divisors; i++)
    out[i] /= divisors[i];
  return TRUE;
}

/* ---------------------------------------------------------------- other constants */

oct_glu_params
oct_arithmetic_glu(const oct_model_spec *spec) {
  static const oct_glu kinds[] = {[OCT_ACTIVATION_SWIGLU] = OCT_GLU_SWIGLU,
                                  [OCT_ACTIVATION_SWIGLU_CLAMPED] = OCT_GLU_CLAMPED,
                                  [OCT_ACTIVATION_SITU] = OCT_GLU_SITU};
  const oct_numerics *n = &spec->numerics;
  return (oct_glu_params){
      .kind = kinds[spec->activation], .alpha = (float)n->glu_alpha, .limit = (float)n->glu_limit};
}

float
oct_arithmetic_latent_scale(const oct_model_spec *spec) {
  const oct_numerics *n = &spec->numerics;
  double scale = 0;
  for (guint32 i = 0; i < spec->n_attention; i++) {
    const oct_attention_spec *a = &spec->attention[i];
    if (a->kind != OCT_ATTENTION_MLA)
      continue;
    double mscale = n->rope_mscale_all_dim > 0
                        ? oct_ref_yarn_mscale(n->rope_factor, n->rope_mscale_all_dim)
                        : 1;
    scale = mscale * mscale / sqrt(a->qk_nope + a->qk_rope);
  }
  return (float)scale;
}

float
oct_arithmetic_latent_eps(const oct_model_spec *spec) {
  double eps = spec->numerics.latent_norm_eps;
  return (float)(eps > 0 ? eps : spec->rms_norm_eps);
}

oct_routing
oct_arithmetic_routing(const oct_model_spec *spec, const oct_ffn_spec *ffn,
                       const float *score_bias) {
  const oct_numerics *n = &spec->numerics;
  return (oct_routing){.score = n->router_sigmoid ? OCT_ROUTER_SIGMOID : OCT_ROUTER_SOFTMAX,
                       .n_experts = ffn->n_experts,
                       .top_k = ffn->top_k,
                       .n_groups = n->router_groups,
                       .top_groups = n->router_top_groups,
                       .renormalise = n->router_renormalise,
                       .scaling = ffn->routed_scaling,
                       .bias = score_bias};
}

guint32
oct_arithmetic_group(const oct_model_spec *spec, guint32 layer) {
  oct_layer_group groups[OCT_MODEL_GROUPS_MAX];
  guint n = oct_model_groups(spec, OCT_DTYPE_BF16, groups);
  for (guint32 g = 0; g < n; g++)
    if (groups[g].attention == spec->layers[layer].attention)
      return g;
  oct_assert_failed(__FILE__, __LINE__, "every layer is in a group");
}
