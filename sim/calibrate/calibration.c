/* The plan: which kernels, at which points. */
#include "sim/calibrate/calibration.h"

#include <string.h>

#include "engine/base/assert.h"

#define OPERATORS_MAX 512

/* ---------------------------------------------------------------- axes */

/* What 64 sequences run that verify 2, 4 and 8 drafts each: far from both neighbours that are
 * powers of two, whose tiles they do not fill. */
static gboolean
is_verified(guint32 rows) {
  return rows == 192 || rows == 320 || rows == 576;
}

/* Prompts of a power of two and a few decodes: one more row of tiles, whose edges are timed. */
static gboolean
is_past_prompts(guint32 rows) {
  return rows == 528 || rows == 640 || rows == 1040 || rows == 1152 || rows == 2064;
}

/* 1, 2, 4 … up to `most`, and what lies in the middle where steps of the engine often are: not when
 * `quick`, but for products' verified rows and those just past prompts. */
static guint32
axis_tokens(double *axis, guint32 first, guint32 most, gboolean quick, gboolean products) {
  static const guint32 points[] = {1,    2,    4,    8,    16,   24,   32,   48,   64,   96,
                                   128,  192,  256,  320,  384,  512,  528,  576,  640,  768,
                                   1024, 1040, 1152, 1536, 2048, 2064, 4096, 8192, 16384};
  guint32 n = 0;
  for (guint i = 0; i < G_N_ELEMENTS(points) && n < OCT_TIMED_POINTS_MAX; i++) {
    gboolean power = (points[i] & (points[i] - 1)) == 0;
    gboolean special = is_verified(points[i]) || is_past_prompts(points[i]);
    gboolean kept = power || (products && special) || (!quick && !is_past_prompts(points[i]));
    if (points[i] >= first && points[i] <= most && kept)
      axis[n++] = points[i];
  }
  return n;
}

static guint32
axis_of(double *axis, const guint32 *points, guint n_points, guint32 most, gboolean quick) {
  guint32 n = 0;
  for (guint i = 0; i < n_points; i += quick ? 2 : 1)
    if (points[i] <= most)
      axis[n++] = points[i];
  return n;
}

/* ---------------------------------------------------------------- tables */

static gboolean
is_planned(const GArray *tables, const oct_timed *wanted) {
  for (guint i = 0; i < tables->len; i++) {
    const oct_timed *t = &g_array_index(tables, oct_timed, i);
    if (t->kind == wanted->kind && t->type == wanted->type &&
        memcmp(t->shape, wanted->shape, sizeof t->shape) == 0)
      return TRUE;
  }
  return FALSE;
}

static void
want(GArray *tables, oct_timed_kind kind, oct_dtype type, const guint32 *shape,
     const oct_calibration_limits *limits) {
  /* Kernels take keys by 64: short contexts are steps, whose edges are timed. */
  static const guint32 contexts[] = {16,  64,   80,   128,  192,  208,   256,
                                     512, 1024, 2048, 4096, 8192, 16384, 32768};
  static const guint32 befores[] = {0, 1024, 4096, 16384, 32768};
  static const guint32 batches[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 384, 512};
  /* Sequences that verify drafts, and tokens of each. */
  static const guint32 verified[] = {1, 4, 16, 64, 256}, drafted[] = {2, 3, 5, 9};
  oct_timed table = {.kind = kind, .type = type, .n_y = 1};
  memcpy(table.shape, shape, oct_timed_form_of(kind)->n_shape * sizeof *shape);
  if (is_planned(tables, &table))
    return;
  if (kind == OCT_TIMED_DECODE || kind == OCT_TIMED_MLA_DECODE) {
    table.n_x = axis_of(table.x, batches, G_N_ELEMENTS(batches), limits->max_batch, limits->quick);
    table.n_y =
        axis_of(table.y, contexts, G_N_ELEMENTS(contexts), limits->max_context, limits->quick);
  } else if (kind == OCT_TIMED_VERIFY) {
    table.n_x = axis_of(table.x, verified, G_N_ELEMENTS(verified), limits->max_batch, FALSE);
    table.n_y = axis_of(table.y, drafted, G_N_ELEMENTS(drafted), shape[3], limits->quick);
  } else if (kind == OCT_TIMED_PREFILL) {
    table.n_x = axis_tokens(table.x, 16, limits->max_tokens, TRUE, FALSE);
    table.n_y =
        axis_of(table.y, befores, G_N_ELEMENTS(befores), limits->max_context, limits->quick);
  } else {
    gboolean few = limits->quick || (kind != OCT_TIMED_PRODUCT && kind != OCT_TIMED_EXPERTS);
    guint32 most = kind == OCT_TIMED_SAMPLE ? limits->max_batch : limits->max_tokens;
    table.n_x = axis_tokens(table.x, 1, most, few, kind == OCT_TIMED_PRODUCT);
  }
  g_array_append_val(tables, table);
}

/* ---------------------------------------------------------------- what a model needs */

static void
want_products(const oct_cost *cost, const oct_calibration_limits *limits, GArray *tables) {
  g_autofree oct_cost_operator *list = g_new0(oct_cost_operator, OPERATORS_MAX);
  oct_step_shape shape = {.n_domains = 1};
  const oct_slice decode = {.n_tokens = 1, .sample = OCT_SAMPLE_LAST};
  oct_domain_shape_add(&shape.domains[0], &decode, 1, 0);
  guint n = oct_cost_operators(cost, &shape, list, OPERATORS_MAX);
  for (guint i = 0; i < MIN(n, OPERATORS_MAX); i++)
    if (list[i].type != OCT_DTYPE_NONE)
      want(tables, OCT_TIMED_PRODUCT, list[i].type,
           (guint32[2]){(guint32)list[i].n, (guint32)list[i].k}, limits);
}

static void
want_attention(const oct_attention_spec *a, guint32 tp, oct_dtype kv_dtype,
               const oct_calibration_limits *limits, GArray *tables) {
  const guint32 heads = (a->n_heads + tp - 1) / tp,
                kv_heads = (MAX(a->n_kv_heads, 1) + tp - 1) / tp;
  static const guint32 contexts[] = {1024, 4096}; /* of slices that verify drafts */
  if (a->kind == OCT_ATTENTION_MLA) {
    want(tables, OCT_TIMED_MLA_DECODE, kv_dtype, (guint32[3]){heads, a->kv_lora, a->qk_rope},
         limits);
    return;
  }
  if (a->kind != OCT_ATTENTION_GQA && a->kind != OCT_ATTENTION_WINDOW)
    return;
  const guint32 shape[3] = {heads, kv_heads, a->head_dim};
  want(tables, OCT_TIMED_DECODE, kv_dtype, shape, limits);
  want(tables, OCT_TIMED_PREFILL, kv_dtype, shape, limits);
  for (guint i = 0; i < (limits->quick ? 1 : G_N_ELEMENTS(contexts)); i++)
    if (contexts[i] <= limits->max_context)
      want(tables, OCT_TIMED_VERIFY, kv_dtype,
           (guint32[4]){heads, kv_heads, a->head_dim, contexts[i]}, limits);
  want(tables, OCT_TIMED_ROTATE, OCT_DTYPE_BF16, shape, limits);
}

static void
want_ffn(const oct_model_spec *spec, const oct_ffn_spec *f, guint32 tp, gboolean whole_experts,
         const oct_calibration_limits *limits, GArray *tables) {
  if (f->kind == OCT_FFN_DENSE) {
    want(tables, OCT_TIMED_ACTIVATION, OCT_DTYPE_BF16,
         (guint32[1]){(f->intermediate + tp - 1) / tp}, limits);
    return;
  }
  const guint32 inner = whole_experts ? f->moe_intermediate : (f->moe_intermediate + tp - 1) / tp;
  const guint32 outer = f->kind == OCT_FFN_LATENT_MOE ? f->latent : spec->hidden;
  want(tables, OCT_TIMED_EXPERTS, spec->types.expert,
       (guint32[4]){f->n_experts, f->top_k, outer, inner}, limits);
  want(tables, OCT_TIMED_ROUTE, OCT_DTYPE_BF16, (guint32[2]){f->n_experts, f->top_k}, limits);
}

void
oct_calibration_plan(const oct_cost *cost, const oct_model_spec *spec, const oct_parallel *parallel,
                     oct_dtype kv_dtype, const oct_calibration_limits *limits, GArray *tables) {
  want_products(cost, limits, tables);
  for (guint32 a = 0; a < spec->n_attention; a++)
    want_attention(&spec->attention[a], parallel->tensor, kv_dtype, limits, tables);
  for (guint32 f = 0; f < spec->n_ffn; f++)
    want_ffn(spec, &spec->ffn[f], parallel->tensor, parallel->expert_parallel, limits, tables);
  want(tables, OCT_TIMED_NORM, OCT_DTYPE_BF16, (guint32[1]){spec->hidden}, limits);
  want(tables, OCT_TIMED_SAMPLE, OCT_DTYPE_BF16, (guint32[1]){spec->vocab}, limits);
}
