/* Parallel layouts: which are legal, how layers fall into stages, and what one rank's cache takes.
 */
#include "engine/base/assert.h"
#include "engine/model/spec.h"

static gboolean refuse(GError **error, const char *format, ...) G_GNUC_PRINTF(2, 3);

static gboolean
refuse(GError **error, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  g_autofree char *message = g_strdup_vprintf(format, arguments);
  va_end(arguments);
  g_set_error_literal(error, OCT_MODEL_ERROR, OCT_MODEL_ERROR_LAYOUT, message);
  return FALSE;
}

static gboolean
check_sizes(const oct_model_spec *spec, const oct_parallel *p, GError **error) {
  const struct {
    const char *name;
    guint32 size, max;
  } sizes[] = {
      {"tensor parallel size", p->tensor, OCT_PARALLEL_WORLD_MAX},
      {"pipeline parallel size", p->pipeline, OCT_PARALLEL_STAGES_MAX},
      {"data parallel size", p->data, OCT_PARALLEL_WORLD_MAX},
      {"decode context parallel size", p->decode_context, OCT_PARALLEL_WORLD_MAX},
  };
  for (guint i = 0; i < G_N_ELEMENTS(sizes); i++)
    if (sizes[i].size < 1 || sizes[i].size > sizes[i].max)
      return refuse(error, "%s %u: allowed are 1 to %u", sizes[i].name, sizes[i].size,
                    sizes[i].max);
  guint64 world = (guint64)p->tensor * p->pipeline * p->data;
  if (world > OCT_PARALLEL_WORLD_MAX)
    return refuse(error, "%" G_GUINT64_FORMAT " ranks, at most %d are supported", world,
                  OCT_PARALLEL_WORLD_MAX);
  if (p->pipeline > spec->n_layers)
    return refuse(error, "pipeline parallel size %u: %s has only %u layers", p->pipeline,
                  spec->name, spec->n_layers);
  return TRUE;
}

static gboolean
even_split(const oct_parallel *p) {
  for (guint i = 0; i < OCT_PARALLEL_STAGES_MAX; i++)
    if (p->stage_layers[i] != 0)
      return FALSE;
  return TRUE;
}

static gboolean
check_stages(const oct_model_spec *spec, const oct_parallel *p, GError **error) {
  if (even_split(p))
    return TRUE;
  guint64 layers = 0;
  for (guint i = 0; i < OCT_PARALLEL_STAGES_MAX; i++) {
    if (i < p->pipeline && p->stage_layers[i] == 0)
      return refuse(error, "stage %u of %u has no layers", i, p->pipeline);
    if (i >= p->pipeline && p->stage_layers[i] != 0)
      return refuse(error, "layers are given for stages beyond the pipeline parallel size %u",
                    p->pipeline);
    layers += p->stage_layers[i];
  }
  if (layers != spec->n_layers)
    return refuse(error, "the stages have %" G_GUINT64_FORMAT " layers together, %s has %u", layers,
                  spec->name, spec->n_layers);
  return TRUE;
}

/* Elements that a split width must be a multiple of, so that no scale straddles two ranks. MXFP4
 * and NVFP4 kernels pad the last block instead. */
static guint32
split_block(oct_dtype type) {
  return type == OCT_DTYPE_FP8_BLOCK ? 128 : MAX(oct_dtype_int4_group(type), 1);
}

static gboolean
check_width(const char *what, guint64 width, oct_dtype type, guint32 ranks, GError **error) {
  if (width % ranks != 0)
    return refuse(error, "tensor parallel size %u does not divide the %s width %" G_GUINT64_FORMAT,
                  ranks, what, width);
  guint32 block = split_block(type);
  if (ranks > 1 && width / ranks % block != 0)
    return refuse(error,
                  "tensor parallel size %u leaves %" G_GUINT64_FORMAT
                  " of the %s width %" G_GUINT64_FORMAT
                  " on a rank, not a multiple of the %u that share one %s scale",
                  ranks, width / ranks, what, width, block, oct_dtype_name(type));
  return TRUE;
}

/* Scales of the projections that are split by head. */
static gboolean
check_head_widths(const oct_attention_spec *a, oct_dtype type, const oct_parallel *p,
                  GError **error) {
  const guint32 mla[] = {a->qk_nope + a->qk_rope, a->qk_nope + a->v_head, a->v_head};
  const guint32 other[] = {a->head_dim};
  const guint32 *widths = a->kind == OCT_ATTENTION_MLA ? mla : other;
  guint n = a->kind == OCT_ATTENTION_MLA ? G_N_ELEMENTS(mla) : G_N_ELEMENTS(other);
  for (guint i = 0; i < n; i++)
    if (!check_width("attention", (guint64)a->n_heads * widths[i], type, p->tensor, error))
      return FALSE;
  return TRUE;
}

static gboolean
check_attention(const oct_attention_spec *a, oct_dtype type, const oct_parallel *p,
                GError **error) {
  if (a->n_heads % p->tensor != 0)
    return refuse(error, "tensor parallel size %u does not divide the %u attention heads",
                  p->tensor, a->n_heads);
  if (!check_head_widths(a, type, p, error))
    return FALSE;
  if (a->kind != OCT_ATTENTION_GQA && a->kind != OCT_ATTENTION_WINDOW)
    return TRUE;
  if (a->n_kv_heads % p->tensor != 0 && p->tensor % a->n_kv_heads != 0)
    return refuse(error,
                  "tensor parallel size %u neither divides the %u KV heads nor is a multiple of "
                  "them",
                  p->tensor, a->n_kv_heads);
  /* Only copies of the same KV head can share its tokens out among themselves. */
  guint32 copies = p->tensor > a->n_kv_heads ? p->tensor / a->n_kv_heads : 1;
  if (copies % p->decode_context != 0)
    return refuse(error,
                  "decode context parallel size %u: with %u KV heads and tensor parallel size %u "
                  "each KV head is on %u rank%s, which it must divide",
                  p->decode_context, a->n_kv_heads, p->tensor, copies, copies == 1 ? "" : "s");
  return TRUE;
}

static gboolean
check_ffn(const oct_model_spec *spec, const oct_ffn_spec *f, const oct_parallel *p,
          GError **error) {
  if (f->kind == OCT_FFN_DENSE)
    return check_width("dense FFN", f->intermediate, spec->types.dense_ffn, p->tensor, error);
  if (!p->replicate_shared && f->shared_intermediate > 0 &&
      !check_width("shared expert", f->shared_intermediate, spec->types.shared_expert, p->tensor,
                   error))
    return FALSE;
  if (f->kind == OCT_FFN_LATENT_MOE && p->shard_latent &&
      (f->latent % p->tensor != 0 || f->n_experts % p->tensor != 0 ||
       spec->hidden % p->tensor != 0))
    return refuse(error,
                  "tensor parallel size %u does not divide the latent of %u, the router of %u "
                  "experts and the hidden width %u, unless the latent is replicated",
                  p->tensor, f->latent, f->n_experts, spec->hidden);
  if (!p->expert_parallel)
    return check_width("expert", f->moe_intermediate, spec->types.expert, p->tensor, error);
  guint64 ranks = (guint64)p->tensor * p->data;
  if (f->n_experts % ranks != 0)
    return refuse(error,
                  "expert parallelism over %" G_GUINT64_FORMAT
                  " ranks (tensor %u x data %u) does not divide the %u experts",
                  ranks, p->tensor, p->data, f->n_experts);
  return TRUE;
}

/* What shard_latent splits: projections of experts' latents, and the router beside them. */
static gboolean
has_latent(const oct_model_spec *spec) {
  for (guint i = 0; i < spec->n_ffn; i++)
    if (spec->ffn[i].kind == OCT_FFN_LATENT_MOE)
      return TRUE;
  return FALSE;
}

gboolean
oct_parallel_check(const oct_model_spec *spec, const oct_parallel *parallel, GError **error) {
  if (!check_sizes(spec, parallel, error) || !check_stages(spec, parallel, error))
    return FALSE;
  if (parallel->tensor % parallel->decode_context != 0)
    return refuse(error, "decode context parallel size %u does not divide tensor parallel size %u",
                  parallel->decode_context, parallel->tensor);
  for (guint i = 0; i < spec->n_attention; i++)
    if (!check_attention(&spec->attention[i], spec->types.attention, parallel, error))
      return FALSE;
  gboolean has_experts = FALSE, has_shared = FALSE;
  for (guint i = 0; i < spec->n_ffn; i++) {
    if (!check_ffn(spec, &spec->ffn[i], parallel, error))
      return FALSE;
    has_experts |= spec->ffn[i].kind != OCT_FFN_DENSE;
    has_shared |= spec->ffn[i].shared_intermediate > 0;
  }
  if (parallel->expert_parallel && !has_experts)
    return refuse(error, "expert parallelism: %s has no experts", spec->name);
  if (parallel->replicate_shared && !has_shared)
    return refuse(error, "replicated shared experts: %s has no shared experts", spec->name);
  if (!parallel->shard_latent && !has_latent(spec))
    return refuse(error, "replicated latent: %s has no experts that work on a latent", spec->name);
  return TRUE;
}

void
oct_parallel_stage(const oct_model_spec *spec, const oct_parallel *parallel, guint32 stage,
                   guint32 *first, guint32 *count) {
  oct_assert(stage < parallel->pipeline && parallel->pipeline <= OCT_PARALLEL_STAGES_MAX);
  if (even_split(parallel)) {
    guint32 each = spec->n_layers / parallel->pipeline, more = spec->n_layers % parallel->pipeline;
    *first = stage * each + MIN(stage, more);
    *count = each + (stage < more ? 1 : 0);
    return;
  }
  *first = 0;
  for (guint32 i = 0; i < stage; i++)
    *first += parallel->stage_layers[i];
  *count = parallel->stage_layers[stage];
}

/* Cache values per token and layer on a rank: K and V of its KV heads (a head that several ranks
 * share counts on each), or the latent. */
static guint64
token_values(const oct_attention_spec *a, guint32 tensor) {
  if (a->kind == OCT_ATTENTION_MLA)
    return (guint64)a->kv_lora + a->qk_rope;
  return 2 * (guint64)((a->n_kv_heads + tensor - 1) / tensor) * a->head_dim;
}

/* Recurrent state in float32, and the convolution's last inputs of q, k and v in bfloat16. */
static guint64
state_bytes(const oct_attention_spec *a, guint32 tensor) {
  guint64 heads = (a->n_heads + tensor - 1) / tensor;
  guint64 recurrent = heads * a->head_dim * a->head_dim * 4;
  guint64 convolution = (guint64)(a->conv_kernel - 1) * 3 * heads * a->head_dim * 2;
  return recurrent + convolution;
}

guint
oct_model_groups(const oct_model_spec *spec, oct_dtype kv,
                 oct_layer_group groups[OCT_MODEL_GROUPS_MAX]) {
  G_STATIC_ASSERT(OCT_ATTENTION_COUNT <= OCT_MODEL_GROUPS_MAX);
  guint n = 0;
  for (guint32 layer = 0; layer < spec->n_layers; layer++) {
    guint8 attention = spec->layers[layer].attention;
    guint i = 0;
    while (i < n && groups[i].attention != attention)
      i++;
    const oct_attention_spec *a = &spec->attention[attention];
    if (i == n)
      groups[n++] = (oct_layer_group){.kind = a->kind, .window = a->window, .attention = attention};
    groups[i].n_layers++;
    if (a->kind == OCT_ATTENTION_KDA)
      groups[i].state_bytes += state_bytes(a, 1);
    else
      groups[i].token_bytes += oct_storage_bytes(kv, 1, token_values(a, 1));
  }
  return n;
}

/* Layers of group `group` in a stage, and the group's attention in *a. */
static guint64
stage_group_layers(const oct_model_spec *spec, const oct_parallel *parallel, guint32 stage,
                   guint group, const oct_attention_spec **a) {
  oct_layer_group groups[OCT_MODEL_GROUPS_MAX];
  guint n = oct_model_groups(spec, OCT_DTYPE_BF16, groups);
  oct_assert(group < n);
  guint32 first, count;
  oct_parallel_stage(spec, parallel, stage, &first, &count);
  guint64 layers = 0;
  for (guint32 layer = first; layer < first + count; layer++)
    if (spec->layers[layer].attention == groups[group].attention)
      layers++;
  *a = &spec->attention[groups[group].attention];
  return layers;
}

guint64
oct_model_rank_token_bytes(const oct_model_spec *spec, const oct_parallel *parallel, guint32 stage,
                           oct_dtype kv, guint group) {
  const oct_attention_spec *a;
  guint64 layers = stage_group_layers(spec, parallel, stage, group, &a);
  if (a->kind == OCT_ATTENTION_KDA)
    return 0;
  guint64 bytes = layers * oct_storage_bytes(kv, 1, token_values(a, parallel->tensor));
  return (bytes + parallel->decode_context - 1) / parallel->decode_context;
}

guint64
oct_model_rank_state_bytes(const oct_model_spec *spec, const oct_parallel *parallel, guint32 stage,
                           guint group) {
  const oct_attention_spec *a;
  guint64 layers = stage_group_layers(spec, parallel, stage, group, &a);
  return a->kind == OCT_ATTENTION_KDA ? layers * state_bytes(a, parallel->tensor) : 0;
}
