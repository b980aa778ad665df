/* Finding a weight. Its module may hold it plain (".weight"), in 8 or 4 bits with scales beside it
 * (".weight_scale…"), packed (".weight_packed"), or as AWQ and GPTQ do (".qweight"); the tensors
 * that are there decide, not the config. Every part's type and shape is checked against the
 * weight's, so that reading needs no further check. */
#include "engine/model/files/find.h"

#include <math.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/model/files/dequant.h"
#include "engine/model/files/names.h"

#define NAME_SIZE (OCT_FILE_NAME_MAX + 1)
#define SHAPE_MAX 4

typedef enum outcome { ABSENT, FOUND, WRONG } outcome;

void
oct_map_list_add(oct_map_list *list, const char *format, ...) {
  va_list arguments;
  if (list->n++ >= OCT_MAP_TEXTS_MAX)
    return;
  va_start(arguments, format);
  g_ptr_array_add(list->texts, g_strdup_vprintf(format, arguments));
  va_end(arguments);
}

static outcome wrong(oct_finder *f, const oct_weight *w, const oct_file_tensor *t,
                     const char *format, ...) G_GNUC_PRINTF(4, 5);

static outcome
wrong(oct_finder *f, const oct_weight *w, const oct_file_tensor *t, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  g_autofree char *message = g_strdup_vprintf(format, arguments);
  va_end(arguments);
  g_autofree char *name = oct_weight_name(w);
  oct_map_list_add(&f->report->wrong, "%s: tensor %s %s", name, t->name, message);
  return WRONG;
}

const oct_file_tensor *
oct_finder_tensor(oct_finder *finder, const char *name, const char *suffix) {
  char full[NAME_SIZE];
  int n = g_snprintf(full, sizeof full, "%s%s", name, suffix);
  if (n < 0 || (gsize)n >= sizeof full)
    return NULL;
  const oct_file_tensor *tensor = oct_checkpoint_find(finder->checkpoint, full);
  if (tensor != NULL)
    finder->used[tensor - oct_checkpoint_tensor(finder->checkpoint, 0)] = 1;
  return tensor;
}

/* --- shapes and types ----------------------------------------------------------------------------
 */

/* TRUE when both shapes are equal but for dimensions of 1, which files add and leave out. */
static gboolean
has_shape(const oct_file_tensor *t, guint n, const guint64 *shape) {
  guint i = 0;
  for (guint k = 0; k < t->n_dims; k++) {
    while (i < n && shape[i] == 1)
      i++;
    if (t->shape[k] == 1)
      continue;
    if (i == n || shape[i++] != t->shape[k])
      return FALSE;
  }
  while (i < n && shape[i] == 1)
    i++;
  return i == n;
}

/* Checks a shape of up to SHAPE_MAX dimensions, ended by the first 0. */
static gboolean
check_shape(oct_finder *f, const oct_weight *w, const oct_file_tensor *t,
            const guint64 shape[SHAPE_MAX]) {
  guint n = 0;
  while (n < SHAPE_MAX && shape[n] != 0)
    n++;
  if (has_shape(t, n, shape))
    return TRUE;
  while (n > 1 && shape[n - 1] == 1)
    n--;
  oct_file_tensor wanted = {.n_dims = (guint16)n};
  memcpy(wanted.shape, shape, n * sizeof *shape);
  g_autofree char *found = oct_file_tensor_shape(t), *text = oct_file_tensor_shape(&wanted);
  wrong(f, w, t, "has the shape %s, wanted is %s", found, text);
  return FALSE;
}

static gboolean
is_plain(oct_stored_type type) {
  return type == OCT_STORED_F32 || type == OCT_STORED_BF16 || type == OCT_STORED_F16 ||
         type == OCT_STORED_F64;
}

/* Scales of 8-bit and 4-bit integer formats. */
static gboolean
is_scale(oct_stored_type type) {
  return type == OCT_STORED_F32 || type == OCT_STORED_BF16 || type == OCT_STORED_F16;
}

static outcome
wrong_type(oct_finder *f, const oct_weight *w, const oct_file_tensor *t, const char *wanted) {
  return wrong(f, w, t, "is of type %s, wanted is %s", oct_stored_get(t->type)->name, wanted);
}

static guint64
divide_up(guint64 a, guint64 b) {
  return (a + b - 1) / b;
}

static void
set_codes(oct_weight *w, oct_layout layout, const oct_file_tensor *codes) {
  w->layout = layout;
  w->codes = codes->data;
  w->type = codes->type;
  w->bytes += codes->bytes;
}

static void
set_scales(oct_weight *w, const oct_file_tensor *scales) {
  w->scales = scales->data;
  w->scale_type = scales->type;
  w->bytes += scales->bytes;
}

/* --- one module ----------------------------------------------------------------------------------
 */

static outcome
find_plain(oct_finder *f, oct_weight *w, const oct_file_tensor *t) {
  if (!check_shape(f, w, t, (const guint64[SHAPE_MAX]){w->rows, w->columns}))
    return WRONG;
  guint block = oct_stored_get(t->type)->block;
  if (block > 1 && (t->n_dims == 0 || t->shape[t->n_dims - 1] != w->columns))
    return wrong(f, w, t, "is in blocks of %u that do not run along its inputs", block);
  set_codes(w, OCT_LAYOUT_ROWS, t);
  return FOUND;
}

/* e4m3, with one scale, one per row, or one per 128 x 128. */
static outcome
find_fp8(oct_finder *f, oct_weight *w, const char *module, const oct_file_tensor *t) {
  if (!check_shape(f, w, t, (const guint64[SHAPE_MAX]){w->rows, w->columns}))
    return WRONG;
  const oct_file_tensor *s = oct_finder_tensor(f, module, ".weight_scale_inv");
  if (s == NULL)
    s = oct_finder_tensor(f, module, ".weight_scale");
  if (s == NULL) {
    set_codes(w, OCT_LAYOUT_ROWS, t);
    return FOUND;
  }
  if (!is_scale(s->type))
    return wrong_type(f, w, s, "F32, BF16 or F16");
  guint64 blocks[] = {divide_up(w->rows, 128), divide_up(w->columns, 128)};
  if (oct_file_tensor_elements(s) == 1 || has_shape(s, 1, &w->rows)) {
    set_codes(w, OCT_LAYOUT_FP8, t);
    w->row_scales = oct_file_tensor_elements(s) != 1;
  } else if (has_shape(s, 2, blocks)) {
    set_codes(w, OCT_LAYOUT_FP8_BLOCK, t);
  } else {
    g_autofree char *shape = oct_file_tensor_shape(s);
    return wrong(f, w, s,
                 "has the shape %s, wanted is one scale, one for each of %" G_GUINT64_FORMAT
                 " rows, or [%" G_GUINT64_FORMAT ", %" G_GUINT64_FORMAT "]",
                 shape, w->rows, blocks[0], blocks[1]);
  }
  set_scales(w, s);
  return FOUND;
}

/* One number, finite and above 0. */
static outcome
read_global(oct_finder *f, const oct_weight *w, const oct_file_tensor *t, float *value) {
  if (!is_scale(t->type))
    return wrong_type(f, w, t, "F32, BF16 or F16");
  if (oct_file_tensor_elements(t) != 1)
    return wrong(f, w, t, "has %" G_GUINT64_FORMAT " elements, wanted is one",
                 oct_file_tensor_elements(t));
  oct_dequant_row(t->type, t->data, 1, value);
  if (!isfinite(*value) || *value <= 0)
    return wrong(f, w, t, "is %g: a scale is finite and above 0", (double)*value);
  return FOUND;
}

/* 4-bit floats: the scales' type tells MXFP4 from NVFP4. */
static outcome
find_fp4(oct_finder *f, oct_weight *w, const char *module, const oct_file_tensor *t) {
  const oct_file_tensor *s = oct_finder_tensor(f, module, ".weight_scale");
  if (s == NULL)
    return wrong(f, w, t, "has no %s.weight_scale beside it", module);
  gboolean nv = s->type == OCT_STORED_F8_E4M3;
  if (!nv && s->type != OCT_STORED_U8 && s->type != OCT_STORED_F8_E8M0)
    return wrong_type(f, w, s, "U8 or F8_E8M0 (MXFP4), or F8_E4M3 (NVFP4)");
  if (w->columns % 2 != 0)
    return wrong(f, w, t, "packs pairs, and %" G_GUINT64_FORMAT " inputs are odd", w->columns);
  const guint64 shape[SHAPE_MAX] = {w->rows, w->columns / 2};
  const guint64 scales[SHAPE_MAX] = {w->rows, divide_up(w->columns, nv ? 16 : 32)};
  if (!check_shape(f, w, t, shape) || !check_shape(f, w, s, scales))
    return WRONG;
  set_codes(w, nv ? OCT_LAYOUT_NVFP4 : OCT_LAYOUT_MXFP4, t);
  set_scales(w, s);
  const oct_file_tensor *divisor = oct_finder_tensor(f, module, ".weight_global_scale");
  const oct_file_tensor *factor = oct_finder_tensor(f, module, ".weight_scale_2");
  if ((divisor != NULL && read_global(f, w, divisor, &w->divisor) != FOUND) ||
      (factor != NULL && read_global(f, w, factor, &w->factor) != FOUND))
    return WRONG;
  w->bytes += (divisor != NULL ? divisor->bytes : 0) + (factor != NULL ? factor->bytes : 0);
  return FOUND;
}

/* --- 4-bit integers ------------------------------------------------------------------------------
 */

static gboolean
is_word(const oct_file_tensor *t) {
  return t->type == OCT_STORED_I32 || t->type == OCT_STORED_U32;
}

/* Inputs per scale, from the number of groups that the scales have. */
static outcome
set_group(oct_finder *f, oct_weight *w, const oct_file_tensor *s, guint64 groups) {
  if (groups == 0 || w->columns % groups != 0 || w->columns / groups > G_MAXUINT32)
    return wrong(f, w, s, "has %" G_GUINT64_FORMAT " groups for %" G_GUINT64_FORMAT " inputs",
                 groups, w->columns);
  w->group = (guint32)(w->columns / groups);
  return FOUND;
}

/* The group of each input, which is noted when it is not the plain order. */
static outcome
set_order(oct_finder *f, oct_weight *w, const oct_file_tensor *t) {
  if (!is_word(t))
    return wrong_type(f, w, t, "I32");
  if (!check_shape(f, w, t, (const guint64[SHAPE_MAX]){w->columns}))
    return WRONG;
  const gint32 *order = (const gint32 *)(gconstpointer)t->data;
  guint64 groups = w->columns / w->group;
  gboolean plain = TRUE;
  for (guint64 k = 0; k < w->columns; k++) {
    if (order[k] < 0 || (guint64)order[k] >= groups)
      return wrong(f, w, t,
                   "has group %d at input %" G_GUINT64_FORMAT ": there are %" G_GUINT64_FORMAT,
                   order[k], k, groups);
    plain = plain && (guint64)order[k] == k / w->group;
  }
  w->order = plain ? NULL : order;
  w->bytes += t->bytes;
  return FOUND;
}

/* GPTQ's first format stores zeros less one. Some writers of the second forget to say so: symmetric
 * weights then have 8 everywhere, which the first would mean as 9. */
static guint8
zero_offset(const oct_model_spec *spec, const oct_file_tensor *zeros) {
  const guint32 *words = (const guint32 *)(gconstpointer)zeros->data;
  gboolean all_eight = TRUE;
  for (guint64 i = 0; i < zeros->bytes / sizeof *words && all_eight; i++)
    all_eight = words[i] == 0x88888888u;
  return spec->gptq_v2 || all_eight ? 0 : 1;
}

/* AWQ: [inputs, outputs / 8] words; GPTQ: [inputs / 8, outputs]. */
static outcome
find_qweight(oct_finder *f, oct_weight *w, const char *module, const oct_file_tensor *t) {
  const oct_file_tensor *z = oct_finder_tensor(f, module, ".qzeros");
  const oct_file_tensor *s = oct_finder_tensor(f, module, ".scales");
  const oct_file_tensor *order = oct_finder_tensor(f, module, ".g_idx");
  if (z == NULL || s == NULL)
    return wrong(f, w, t, "has no %s.%s beside it", module, z == NULL ? "qzeros" : "scales");
  if (!is_word(t) || !is_word(z))
    return wrong_type(f, w, is_word(t) ? z : t, "I32");
  if (!is_scale(s->type))
    return wrong_type(f, w, s, "F16, BF16 or F32");
  if (w->rows % 8 != 0 || w->columns % 8 != 0)
    return wrong(f, w, t,
                 "packs eights, and [%" G_GUINT64_FORMAT ", %" G_GUINT64_FORMAT
                 "] is not in eights",
                 w->rows, w->columns);
  const guint64 awq[] = {w->columns, w->rows / 8};
  gboolean is_awq = has_shape(t, 2, awq);
  if (!is_awq && !check_shape(f, w, t, (const guint64[SHAPE_MAX]){w->columns / 8, w->rows}))
    return WRONG;
  guint64 groups = oct_file_tensor_elements(s) / w->rows;
  if (!check_shape(f, w, s, (const guint64[SHAPE_MAX]){groups, w->rows}) ||
      !check_shape(f, w, z, (const guint64[SHAPE_MAX]){groups, w->rows / 8}) ||
      set_group(f, w, s, groups) != FOUND)
    return WRONG;
  if (order != NULL && is_awq)
    return wrong(f, w, order, "belongs to no AWQ weight");
  set_codes(w, is_awq ? OCT_LAYOUT_AWQ : OCT_LAYOUT_GPTQ, t);
  set_scales(w, s);
  w->zeros = (const guint32 *)(gconstpointer)z->data;
  w->bytes += z->bytes;
  w->zero_offset = is_awq ? 0 : zero_offset(f->spec, z);
  return order != NULL ? set_order(f, w, order) : FOUND;
}

/* compressed-tensors' pack-quantized: [outputs, inputs / 8] words. */
static outcome
find_packed_int4(oct_finder *f, oct_weight *w, const char *module, const oct_file_tensor *t) {
  const oct_file_tensor *s = oct_finder_tensor(f, module, ".weight_scale");
  const oct_file_tensor *z = oct_finder_tensor(f, module, ".weight_zero_point");
  const oct_file_tensor *order = oct_finder_tensor(f, module, ".weight_g_idx");
  (void)oct_finder_tensor(f, module, ".weight_shape"); /* the config's shapes count */
  if (s == NULL)
    return wrong(f, w, t, "has no %s.weight_scale beside it", module);
  if (!is_scale(s->type))
    return wrong_type(f, w, s, "BF16, F16 or F32");
  if (z != NULL && !is_word(z))
    return wrong_type(f, w, z, "I32");
  if (w->columns % 8 != 0)
    return wrong(f, w, t, "packs eights, and its %" G_GUINT64_FORMAT " inputs are not in eights",
                 w->columns);
  guint64 groups = oct_file_tensor_elements(s) / w->rows;
  if (!check_shape(f, w, t, (const guint64[SHAPE_MAX]){w->rows, w->columns / 8}) ||
      !check_shape(f, w, s, (const guint64[SHAPE_MAX]){w->rows, groups}) ||
      (z != NULL &&
       !check_shape(f, w, z, (const guint64[SHAPE_MAX]){divide_up(w->rows, 8), groups})) ||
      set_group(f, w, s, groups) != FOUND)
    return WRONG;
  set_codes(w, OCT_LAYOUT_INT4_PACKED, t);
  set_scales(w, s);
  w->zeros = z != NULL ? (const guint32 *)(gconstpointer)z->data : NULL;
  w->bytes += z != NULL ? z->bytes : 0;
  return order != NULL ? set_order(f, w, order) : FOUND;
}

static outcome
find_module(oct_finder *f, oct_weight *w, const char *module) {
  const oct_file_tensor *t = oct_finder_tensor(f, module, ".weight");
  if (t != NULL) {
    if (t->type == OCT_STORED_F8_E4M3)
      return find_fp8(f, w, module, t);
    if (t->type == OCT_STORED_U8)
      return find_fp4(f, w, module, t);
    if (is_plain(t->type) || oct_stored_get(t->type)->block > 1)
      return find_plain(f, w, t);
    return wrong_type(f, w, t, "a type of weights");
  }
  t = oct_finder_tensor(f, module, ".weight_packed");
  if (t != NULL && is_word(t))
    return find_packed_int4(f, w, module, t);
  if (t != NULL)
    return t->type == OCT_STORED_U8 ? find_fp4(f, w, module, t)
                                    : wrong_type(f, w, t, "U8 (4-bit floats) or I32 (integers)");
  t = oct_finder_tensor(f, module, ".qweight");
  return t != NULL ? find_qweight(f, w, module, t) : ABSENT;
}

static outcome
find_bare(oct_finder *f, oct_weight *w, const char *name, const char *suffix) {
  const oct_file_tensor *t = oct_finder_tensor(f, name, suffix);
  if (t == NULL)
    return ABSENT;
  return is_plain(t->type) ? find_plain(f, w, t) : wrong_type(f, w, t, "a plain type");
}

/* --- tensors of all experts ----------------------------------------------------------------------
 */

static guint64
n_experts(const oct_finder *f, const oct_weight *w) {
  return f->spec->ffn[f->spec->layers[w->layer].ffn].n_experts;
}

/* An expert's part: `count` equal ones lie one after the other. */
static const guint8 *
part_of(const oct_file_tensor *t, guint64 count, guint64 expert) {
  return t->data + t->bytes / count * expert;
}

/* Plain or GGUF's blocks, [experts, rows, columns]; fused: the rows of gate and up alternate. */
static outcome
stacked_rows(oct_finder *f, oct_weight *w, oct_name_stack stack, const oct_file_tensor *t) {
  guint64 experts = n_experts(f, w), fused = stack == OCT_STACK_WHOLE ? 1 : 2;
  const oct_stored_info *info = oct_stored_get(t->type);
  if (!is_plain(t->type) && info->block == 1)
    return wrong_type(f, w, t, "a type of weights");
  if (!check_shape(f, w, t, (const guint64[SHAPE_MAX]){experts, w->rows * fused, w->columns}))
    return WRONG;
  if (info->block > 1 && t->shape[t->n_dims - 1] != w->columns)
    return wrong(f, w, t, "is in blocks of %u that do not run along its inputs", info->block);
  set_codes(w, OCT_LAYOUT_ROWS, t);
  w->bytes = t->bytes / experts / fused;
  w->row_step = (guint32)fused;
  w->codes =
      part_of(t, experts, w->expert) + (stack == OCT_STACK_ODD ? oct_weight_row_bytes(w) : 0);
  return FOUND;
}

/* gpt-oss in 16 bits: [experts, inputs, outputs]. */
static outcome
stacked_columns(oct_finder *f, oct_weight *w, oct_name_stack stack, const oct_file_tensor *t) {
  guint64 experts = n_experts(f, w), fused = stack == OCT_STACK_WHOLE ? 1 : 2;
  if (!is_plain(t->type))
    return wrong_type(f, w, t, "a plain type");
  if (!check_shape(f, w, t, (const guint64[SHAPE_MAX]){experts, w->columns, w->rows * fused}))
    return WRONG;
  set_codes(w, OCT_LAYOUT_COLUMNS, t);
  w->bytes = t->bytes / experts / fused;
  w->row_step = (guint32)fused;
  w->row_pitch = w->rows * fused;
  w->codes = part_of(t, experts, w->expert) +
             (stack == OCT_STACK_ODD ? oct_stored_get(t->type)->bytes : 0);
  return FOUND;
}

/* gpt-oss in MXFP4: blocks [experts, rows, columns / 32, 16] and scales [experts, rows, columns /
 * 32]. */
static outcome
stacked_mxfp4(oct_finder *f, oct_weight *w, oct_name_stack stack, const char *name,
              const oct_file_tensor *t) {
  guint64 experts = n_experts(f, w), fused = stack == OCT_STACK_WHOLE ? 1 : 2;
  guint64 rows = w->rows * fused, blocks = divide_up(w->columns, 32);
  const oct_file_tensor *s = oct_finder_tensor(f, name, "_scales");
  if (s == NULL)
    return wrong(f, w, t, "has no %s_scales beside it", name);
  if (t->type != OCT_STORED_U8 || s->type != OCT_STORED_U8)
    return wrong_type(f, w, t->type != OCT_STORED_U8 ? t : s, "U8");
  if (w->columns % 32 != 0)
    return wrong(f, w, t, "is in blocks of 32, and there are %" G_GUINT64_FORMAT " inputs",
                 w->columns);
  if (!check_shape(f, w, t, (const guint64[SHAPE_MAX]){experts, rows, blocks, 16}) ||
      !check_shape(f, w, s, (const guint64[SHAPE_MAX]){experts, rows, blocks}))
    return WRONG;
  set_codes(w, OCT_LAYOUT_MXFP4, t);
  set_scales(w, s);
  w->bytes /= experts * fused;
  w->row_step = (guint32)fused;
  guint64 odd = stack == OCT_STACK_ODD ? 1 : 0;
  w->codes = part_of(t, experts, w->expert) + odd * oct_weight_row_bytes(w);
  w->scales = part_of(s, experts, w->expert) + odd * blocks;
  return FOUND;
}

static outcome
find_stacked(oct_finder *f, oct_weight *w, const oct_name_row *row, const char *name) {
  const oct_file_tensor *t;
  if (row->part == OCT_NAME_BARE && (t = oct_finder_tensor(f, name, "")) != NULL)
    return stacked_rows(f, w, row->stack, t);
  if (row->part == OCT_NAME_BIAS && (t = oct_finder_tensor(f, name, ".bias")) != NULL)
    return stacked_rows(f, w, row->stack, t);
  if (row->part != OCT_NAME_WEIGHT)
    return ABSENT;
  if ((t = oct_finder_tensor(f, name, ".weight")) != NULL)
    return stacked_rows(f, w, row->stack, t);
  if ((t = oct_finder_tensor(f, name, "_blocks")) != NULL)
    return stacked_mxfp4(f, w, row->stack, name, t);
  if ((t = oct_finder_tensor(f, name, "")) != NULL)
    return stacked_columns(f, w, row->stack, t);
  return ABSENT;
}

/* --- the search ----------------------------------------------------------------------------------
 */

/* GGUF's llama files hold the rows of q and k so that a rotated pair stands together. FALSE for
 * heads of an odd width, which have no pairs. */
static gboolean
set_permutation(const oct_finder *f, oct_weight *w) {
  static const oct_weight_kind kinds[] = {OCT_WEIGHT_Q, OCT_WEIGHT_K, OCT_WEIGHT_Q_BIAS,
                                          OCT_WEIGHT_K_BIAS};
  const oct_model_spec *spec = f->spec;
  if (oct_checkpoint_format(f->checkpoint) != OCT_LOAD_GGUF ||
      !(g_str_equal(spec->architecture, "llama") || g_str_equal(spec->architecture, "mixtral")))
    return TRUE;
  for (guint i = 0; i < G_N_ELEMENTS(kinds); i++)
    if (w->kind == kinds[i])
      w->head_rows = spec->attention[spec->layers[w->layer].attention].head_dim;
  return w->head_rows % 2 == 0;
}

/* Adds that no tensor has any of a weight's names. */
static void
report_missing(oct_finder *f, const oct_weight *w, const oct_name_row *row) {
  g_autofree char *its_name = oct_weight_name(w);
  g_autoptr(GString) names = g_string_new(NULL);
  const char *suffix = row->part == OCT_NAME_WEIGHT ? ".weight"
                       : row->part == OCT_NAME_BIAS ? ".bias"
                                                    : "";
  char name[NAME_SIZE];
  for (guint i = 0; i <= OCT_NAME_CANDIDATES; i++) {
    const char *pattern = i < OCT_NAME_CANDIDATES ? row->single[i] : row->stacked;
    if (pattern != NULL &&
        oct_name_expand(f->prefix, pattern, w->layer, w->expert, name, sizeof name))
      g_string_append_printf(names, "%s%s%s", names->len > 0 ? " or " : "no tensor ", name, suffix);
  }
  oct_map_list_add(&f->report->missing, "%s: %s", its_name,
                   names->len > 0 ? names->str : "files of this format have no name for it");
}

gboolean
oct_finder_find(oct_finder *finder, oct_weight *w) {
  const oct_name_row *row = oct_name_row_get(oct_checkpoint_format(finder->checkpoint), w->kind);
  char name[NAME_SIZE];
  outcome result = ABSENT;
  w->divisor = w->factor = 1;
  w->row_step = 1;
  for (guint i = 0; i < OCT_NAME_CANDIDATES && row->single[i] != NULL && result == ABSENT; i++) {
    if (!oct_name_expand(finder->prefix, row->single[i], w->layer, w->expert, name, sizeof name))
      continue;
    if (row->part == OCT_NAME_WEIGHT)
      result = find_module(finder, w, name);
    else
      result = find_bare(finder, w, name, row->part == OCT_NAME_BIAS ? ".bias" : "");
  }
  if (result == ABSENT && row->stacked != NULL &&
      oct_name_expand(finder->prefix, row->stacked, w->layer, w->expert, name, sizeof name))
    result = find_stacked(finder, w, row, name);
  if (result == ABSENT)
    report_missing(finder, w, row);
  if (result == FOUND && !set_permutation(finder, w)) {
    g_autofree char *its_name = oct_weight_name(w);
    oct_map_list_add(&finder->report->wrong, "%s: heads of %u rows, wanted is an even number",
                     its_name, w->head_rows);
    return FALSE;
  }
  return result == FOUND;
}

/* --- the names to write --------------------------------------------------------------------------
 */

/* Whether a checkpoint has any tensor of a module. */
static gboolean
has_module(const oct_checkpoint *c, const char *module) {
  static const char *const suffixes[] = {".weight", ".weight_packed", ".qweight", ".bias", ""};
  char name[NAME_SIZE];
  for (guint i = 0; i < G_N_ELEMENTS(suffixes); i++) {
    int n = g_snprintf(name, sizeof name, "%s%s", module, suffixes[i]);
    if (n > 0 && (gsize)n < sizeof name && oct_checkpoint_find(c, name) != NULL)
      return TRUE;
  }
  return FALSE;
}

/* Mixtral's names say block_sparse_moe, others' mlp. */
static gboolean
suits_family(const oct_model_spec *spec, const char *pattern) {
  return g_str_equal(spec->architecture, "mixtral") ==
         (strstr(pattern, "block_sparse_moe") != NULL);
}

gboolean
oct_weight_module(const oct_model_spec *spec, const oct_checkpoint *source, const oct_weight *w,
                  char *name, const char **suffix) {
  const oct_name_row *row = oct_name_row_get(OCT_LOAD_SAFETENSORS, w->kind);
  gboolean gguf = oct_checkpoint_format(source) == OCT_LOAD_GGUF;
  guint n = 0;
  while (n < OCT_NAME_CANDIDATES && row->single[n] != NULL)
    n++;
  *suffix = row->part == OCT_NAME_WEIGHT ? ".weight" : row->part == OCT_NAME_BIAS ? ".bias" : "";
  for (guint i = 0; i < n; i++)
    if (oct_name_expand("", row->single[i], w->layer, w->expert, name, NAME_SIZE) &&
        (gguf ? n == 1 || suits_family(spec, row->single[i]) : has_module(source, name)))
      return TRUE;
  return FALSE;
}
