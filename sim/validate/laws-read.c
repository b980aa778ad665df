/* Recorded measurements of kernels, as rows of laws. */
#include <math.h>
#include <string.h>

#include "engine/base/assert.h"
#include "sim/validate/laws.h"
#include "sim/validate/validate.h"

#define KIB 1024.0
#define MIB 1048576.0

typedef struct reader {
  oct_law_rows *rows;
  GArray *shapes; /* gint64, rising: the (n, k) pairs of the GEMM file */
  oct_law_id attention;
} reader;

static gboolean
refuse(GError **error, const char *what, const char *value) {
  g_set_error(error, OCT_VALIDATE_ERROR, OCT_VALIDATE_ERROR_DATA, "%s '%s' is not understood", what,
              value);
  return FALSE;
}

/* Numbers of cells; FALSE when one is none or negative. */
static gboolean
read_numbers(char **cells, guint n, const guint *at, double *out, GError **error) {
  for (guint i = 0; i < n; i++) {
    out[i] = oct_measured_number(cells[at[i]]);
    if (!(out[i] >= 0 && out[i] < 1e15))
      return refuse(error, "number", cells[at[i]]);
  }
  return TRUE;
}

static guint8
band_of(double value, double a, double b, double c) {
  return value <= a ? 0 : (value <= b ? 1 : (value <= c ? 2 : 3));
}

static gboolean
add(reader *r, oct_law_id id, oct_law_row *row, double milliseconds, GError **error) {
  if (!(milliseconds > 0))
    return refuse(error, "latency_ms", "0");
  row->measured_s = milliseconds / 1e3;
  g_array_append_val(r->rows->of[id], *row);
  return TRUE;
}

/* ---------------------------------------------------------------- GEMM */

static gint64
shape_key(double n, double k) {
  return (gint64)n * (G_GINT64_CONSTANT(1) << 24) + (gint64)k;
}

static int
compare_keys(gconstpointer a, gconstpointer b) {
  gint64 x = *(const gint64 *)a, y = *(const gint64 *)b;
  return (x > y) - (x < y);
}

static gboolean
gemm_shape(char **cells, gpointer user, GError **error) {
  static const guint at[] = {0, 1};
  reader *r = user;
  double v[2];
  if (!read_numbers(cells, 2, at, v, error))
    return FALSE;
  gint64 key = shape_key(v[0], v[1]);
  for (guint i = 0; i < r->shapes->len; i++)
    if (g_array_index(r->shapes, gint64, i) == key)
      return TRUE;
  g_array_append_val(r->shapes, key);
  return TRUE;
}

static gboolean
gemm_row(char **cells, gpointer user, GError **error) {
  static const guint at[] = {2, 3, 4, 5};
  static const char *const types[] = {"bfloat16", "fp8", "nvfp4"};
  reader *r = user;
  oct_law_row row = {.system = (guint8)oct_measured_system_find(cells[0])};
  double v[4];
  guint type = 0;
  while (type < G_N_ELEMENTS(types) && strcmp(types[type], cells[1]) != 0)
    type++;
  if (type == G_N_ELEMENTS(types))
    return refuse(error, "dtype", cells[1]);
  if (!read_numbers(cells, 4, at, v, error))
    return FALSE;
  if (row.system == OCT_MEASURED_SYSTEMS)
    return TRUE;
  row.u.gemm.m = v[0];
  row.u.gemm.n = v[1];
  row.u.gemm.k = v[2];
  row.band = band_of(v[0], 16, 256, 2048);
  gint64 key = shape_key(v[1], v[2]);
  guint index = 0;
  while (g_array_index(r->shapes, gint64, index) != key)
    index++;
  row.fold = (guint8)(index % OCT_LAW_FOLDS);
  return add(r, OCT_LAW_GEMM_BF16 + type, &row, v[3], error);
}

/* ---------------------------------------------------------------- attention */

static guint8
layout_fold(double heads, double kv_heads) {
  static const guint layouts[][2] = {{4, 1}, {8, 1}, {8, 2}, {16, 4}, {32, 8}, {40, 8}, {64, 8}};
  for (guint i = 0; i < G_N_ELEMENTS(layouts); i++)
    if (layouts[i][0] == (guint)heads && layouts[i][1] == (guint)kv_heads)
      return (guint8)(i % OCT_LAW_FOLDS);
  return OCT_LAW_FOLDS - 1;
}

static gboolean
attention_row(char **cells, gpointer user, GError **error) {
  static const guint at[] = {1, 2, 3, 4, 5, 6};
  reader *r = user;
  const gboolean prefill = r->attention == OCT_LAW_PREFILL;
  oct_law_row row = {.system = (guint8)oct_measured_system_find(cells[0])};
  double v[6];
  if (!read_numbers(cells, 6, at, v, error))
    return FALSE;
  const guint64 batch = (guint64)v[0], isl = (guint64)v[1], length = isl + (guint64)v[2];
  /* A prompt of one token runs the decode kernel. */
  if (row.system == OCT_MEASURED_SYSTEMS || (prefill && isl == 1))
    return TRUE;
  row.fold = layout_fold(v[3], v[4]);
  row.u.attention = (oct_attention_shape){.prefill = prefill,
                                          .n_sequences = (guint32)batch,
                                          .n_heads = (guint32)v[3],
                                          .n_kv_heads = (guint32)v[4],
                                          .key_dim = 128,
                                          .value_dim = 128,
                                          .kv_element_bytes = 2,
                                          .warm_l2 = TRUE,
                                          .tokens = batch * isl,
                                          .context = batch * length,
                                          .pairs = batch * oct_shape_pairs(length - isl, isl, 0)};
  const double kv_bytes = (double)(batch * length) * v[4] * 128 * 2 * 2;
  row.band = prefill ? band_of((double)(batch * isl), 1024, 8192, 65536)
                     : band_of(kv_bytes, MIB, 16 * MIB, 256 * MIB);
  return add(r, r->attention, &row, v[5], error);
}

/* ---------------------------------------------------------------- routed experts */

static guint8
model_fold(const char *model) {
  static const char *const models[] = {"deepseek-v3/r1", "mixtral-8x7b", "qwen3-235b-a22b",
                                       "qwen3-30b-a3b"};
  guint i = 0;
  while (i < G_N_ELEMENTS(models) && strcmp(models[i], model) != 0)
    i++;
  return (guint8)i;
}

/* Round robin, and what of it comes to a rank. DeepSeek's kernel picks experts of the best four of
 * eight groups: its rows of H100 and H200 stop to grow at 32 tokens, at the time of half of the
 * experts, as do those of two ranks, and before take four experts more for each token after the
 * first. So half of the ranks have all the work. */
#define GROUPED       "deepseek-v3/r1"
#define GROUPED_SHARE 0.5

static void
set_routing(oct_moe_shape *s, const char *model, double tokens, double top_k, double experts,
            double ranks) {
  const gboolean grouped = strcmp(model, GROUPED) == 0;
  const double busy = grouped ? MAX(1, GROUPED_SHARE * ranks) : ranks;
  s->pairs = tokens * top_k / busy;
  s->all_pairs = tokens * top_k;
  s->distinct = MIN(experts / ranks, MAX(1, s->pairs));
  if (grouped)
    s->distinct = MAX(1, MIN(GROUPED_SHARE * experts, top_k / 2 * (tokens + 1)) / busy);
}

static gboolean
moe_row(char **cells, gpointer user, GError **error) {
  static const char *const types[] = {"bfloat16", "fp8", "fp8_block", "nvfp4"};
  static const double bytes[] = {2, 1, 1, 0.5625};
  static const guint at[] = {3, 4, 5, 6, 7, 8, 9, 11};
  reader *r = user;
  oct_law_row row = {.system = (guint8)oct_measured_system_find(cells[0]),
                     .fold = model_fold(cells[1])};
  double v[8];
  guint type = 0;
  while (type < G_N_ELEMENTS(types) && strcmp(types[type], cells[2]) != 0)
    type++;
  if (type == G_N_ELEMENTS(types))
    return refuse(error, "dtype", cells[2]);
  if (!read_numbers(cells, 8, at, v, error))
    return FALSE;
  const double tokens = v[0], top_k = v[3], tensor = v[5], ranks = v[6];
  /* Round robin, whose distinct experts are known; layouts of at most 16 by 8 ranks. */
  if (row.system == OCT_MEASURED_SYSTEMS || strcmp(cells[10], "balanced") != 0 || ranks > 16 ||
      tensor > 8)
    return TRUE;
  oct_moe_shape *s = &row.u.moe;
  *s = (oct_moe_shape){.outer = v[1], .inner = v[2] / tensor};
  set_routing(s, cells[1], tokens, top_k, v[4], ranks);
  s->expert_bytes = 3 * s->outer * s->inner * bytes[type];
  row.band = band_of(tokens, 16, 256, 4096);
  return add(r, OCT_LAW_MOE_BF16 + type, &row, v[7], error);
}

/* ---------------------------------------------------------------- collectives */

static void
set_collective(oct_law_row *row, double n, double bytes) {
  row->u.collective.n = n;
  row->u.collective.bytes = bytes;
  row->band = band_of(bytes, 64 * KIB, MIB, 32 * MIB);
  row->fold = (guint8)((guint)(log2(bytes) + 0.5) % OCT_LAW_FOLDS);
}

static gboolean
nccl_row(char **cells, gpointer user, GError **error) {
  static const char *const names[OCT_COLLECTIVE_COUNT] = {"all_reduce", "all_gather",
                                                          "reduce_scatter", "alltoall"};
  static const guint at[] = {3, 4, 5};
  reader *r = user;
  oct_law_row row = {.system = (guint8)oct_measured_system_find(cells[0])};
  double v[3];
  guint op = 0;
  while (op < OCT_COLLECTIVE_COUNT && strcmp(names[op], cells[1]) != 0)
    op++;
  if (op == OCT_COLLECTIVE_COUNT)
    return refuse(error, "op", cells[1]);
  if (!read_numbers(cells, 3, at, v, error))
    return FALSE;
  const double bytes = v[1] * (strcmp(cells[2], "half") == 0 ? 2 : 1);
  if (row.system == OCT_MEASURED_SYSTEMS || bytes < KIB)
    return TRUE;
  set_collective(&row, v[0], bytes);
  return add(r, OCT_LAW_ALL_REDUCE + op, &row, v[2], error);
}

/* The quicker of the engines' own kernels in a graph, at each size. */
static gboolean
graph_row(char **cells, gpointer user, GError **error) {
  static const guint at[] = {2, 3, 4};
  reader *r = user;
  oct_law_row row = {.system = (guint8)oct_measured_system_find(cells[0])};
  double v[3];
  if (!read_numbers(cells, 3, at, v, error))
    return FALSE;
  if (row.system == OCT_MEASURED_SYSTEMS || strcmp(cells[1], "bfloat16") != 0 ||
      strcmp(cells[5], "vllm_eager") == 0 || 2 * v[1] < KIB)
    return TRUE;
  set_collective(&row, v[0], 2 * v[1]);
  GArray *list = r->rows->of[OCT_LAW_ONESHOT];
  for (guint i = 0; i < list->len; i++) {
    oct_law_row *other = &g_array_index(list, oct_law_row, i);
    if (other->system == row.system && other->u.collective.n == row.u.collective.n &&
        other->u.collective.bytes == row.u.collective.bytes) {
      other->measured_s = MIN(other->measured_s, v[2] / 1e3);
      return TRUE;
    }
  }
  return add(r, OCT_LAW_ONESHOT, &row, v[2], error);
}

/* ---------------------------------------------------------------- the whole */

static gboolean
read_attention(reader *r, const char *folder, const char *file, oct_law_id id, GError **error) {
  static const char *const columns[] = {"system", "batch",    "isl",        "step",
                                        "heads",  "kv_heads", "latency_ms", NULL};
  r->attention = id;
  return oct_measured_read(folder, file, columns, attention_row, r, error);
}

static gboolean
read_all(reader *r, const char *folder, GError **error) {
  static const char *const shape[] = {"n", "k", NULL};
  static const char *const gemm[] = {"system", "dtype", "m", "n", "k", "latency_ms", NULL};
  static const char *const moe[] = {
      "system",  "model_shape", "dtype",  "num_tokens",   "hidden",     "inter", "topk",
      "experts", "moe_tp",      "moe_ep", "distribution", "latency_ms", NULL};
  static const char *const nccl[] = {"system",         "op",         "dtype", "num_gpus",
                                     "count_elements", "latency_ms", NULL};
  static const char *const graph[] = {"system",     "dtype",   "num_gpus", "message_size",
                                      "latency_ms", "backend", NULL};
  if (!oct_measured_read(folder, "aic_gemm_vllm0.24.0.csv", shape, gemm_shape, r, error))
    return FALSE;
  g_array_sort(r->shapes, compare_keys);
  return oct_measured_read(folder, "aic_gemm_vllm0.24.0.csv", gemm, gemm_row, r, error) &&
         read_attention(r, folder, "aic_generation_attention_vllm0.24.0.csv", OCT_LAW_DECODE,
                        error) &&
         read_attention(r, folder, "aic_context_attention_vllm0.24.0.csv", OCT_LAW_PREFILL,
                        error) &&
         oct_measured_read(folder, "aic_moe_vllm0.24.0.csv", moe, moe_row, r, error) &&
         oct_measured_read(folder, "aic_nccl2.29.2.csv", nccl, nccl_row, r, error) &&
         oct_measured_read(folder, "aic_custom_allreduce.csv", graph, graph_row, r, error);
}

gboolean
oct_law_rows_read(oct_law_rows *rows, const char *folder, GError **error) {
  reader r = {.rows = rows, .shapes = g_array_new(FALSE, FALSE, sizeof(gint64))};
  for (guint id = 0; id < OCT_LAW_COUNT; id++)
    rows->of[id] = g_array_new(FALSE, FALSE, sizeof(oct_law_row));
  gboolean good = read_all(&r, folder, error);
  g_array_unref(r.shapes);
  if (!good)
    oct_law_rows_clear(rows);
  return good;
}

void
oct_law_rows_clear(oct_law_rows *rows) {
  for (guint id = 0; id < OCT_LAW_COUNT; id++)
    g_clear_pointer(&rows->of[id], g_array_unref);
}
