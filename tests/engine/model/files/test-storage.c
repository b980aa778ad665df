/* A weight reads the same however it is stored: each layout that published checkpoints use, and
 * what must hold of its parts. */
#include <math.h>
#include <string.h>

#include "engine/model/files/dequant.h"
#include "engine/model/files/floats.h"
#include "tests/engine/model/files/golden.h"
#include "tests/engine/model/files/small.h"

#define Q       "model.layers.0.self_attn.q_proj"
#define ROWS    24
#define COLUMNS 256

/* The tensors of a small llama but q. */
static writer *
without_q(const oct_model_spec *spec) {
  g_autoptr(GError) error = NULL;
  g_autoptr(oct_budget) budget = oct_budget_new("test", 1 << 24);
  g_autoptr(oct_weight_map) map = oct_weight_map_new_dummy(spec, 1, &error);
  for (guint i = 0; i < oct_weight_map_n(map); i++)
    g_assert_true(oct_weight_materialise(map, i, budget, &error));
  writer *w = small_write(map);
  writer_drop(w, Q ".weight");
  return w;
}

/* Some rows of q against wanted[n, COLUMNS]; rows NULL: 0 … n - 1. */
static void
expect_q(const oct_model_spec *spec, const writer *w, oct_layout layout, const gint64 *rows,
         guint64 n, const float *wanted) {
  g_autoptr(small_map) m = small_open(spec, w);
  const oct_weight *q = oct_weight_map_get(m->map, OCT_WEIGHT_Q, 0, 0);
  g_autofree float *all = g_new(float, ROWS *COLUMNS), *one = g_new(float, COLUMNS);
  g_assert_cmpint(q->layout, ==, layout);
  g_assert_cmpuint(q->rows, ==, ROWS);
  oct_weight_read(q, 0, ROWS, all);
  for (guint64 i = 0; i < n; i++) {
    guint64 row = rows != NULL ? (guint64)rows[i] : i;
    oct_weight_read(q, row, 1, one);
    assert_same(one, wanted + i * COLUMNS, COLUMNS);
    assert_same(all + row * COLUMNS, one, COLUMNS);
  }
}

/* Copies a golden's tensor as a part of q. */
static void
add_part(writer *w, const oct_checkpoint *golden, const char *name, const char *suffix,
         oct_stored_type type) {
  const oct_file_tensor *t = oct_checkpoint_find(golden, name);
  g_autofree char *full = g_strconcat(Q, suffix, NULL);
  const gint64 shape[] = {(gint64)t->shape[0], t->n_dims > 1 ? (gint64)t->shape[1] : -1, -1};
  g_assert_cmpuint(t->n_dims, <=, 2);
  writer_add_shape(w, full, type, t->data, shape);
}

static void
awq(void) {
  g_autoptr(oct_model_spec) spec = small_llama();
  g_autoptr(oct_checkpoint) golden = golden_open("awq");
  g_autoptr(writer) w = without_q(spec);
  add_part(w, golden, "qweight", ".qweight", OCT_STORED_I32);
  add_part(w, golden, "qzeros", ".qzeros", OCT_STORED_I32);
  add_part(w, golden, "scales", ".scales", OCT_STORED_F16);
  expect_q(spec, w, OCT_LAYOUT_AWQ, golden_data(golden, "rows", OCT_STORED_I64, 7), 7,
           golden_data(golden, "values", OCT_STORED_F32, 7 * COLUMNS));
  writer_drop(w, Q ".qzeros");
  small_refused(spec, w, "has no " Q ".qzeros beside it");
}

static writer *
gptq_writer(const oct_model_spec *spec, const oct_checkpoint *golden) {
  writer *w = without_q(spec);
  add_part(w, golden, "qweight", ".qweight", OCT_STORED_I32);
  add_part(w, golden, "qzeros", ".qzeros", OCT_STORED_I32);
  add_part(w, golden, "scales", ".scales", OCT_STORED_F16);
  return w;
}

static void
gptq(void) {
  g_autoptr(oct_model_spec) spec = small_llama();
  g_autoptr(oct_checkpoint) golden = golden_open("gptq");
  g_autoptr(writer) w = gptq_writer(spec, golden);
  const gint64 *rows = golden_data(golden, "rows", OCT_STORED_I64, 7);
  expect_q(spec, w, OCT_LAYOUT_GPTQ, rows, 7,
           golden_data(golden, "values_in_order", OCT_STORED_F32, 7 * COLUMNS));
  add_part(w, golden, "g_idx", ".g_idx", OCT_STORED_I32);
  /* Its writers add a bias of zeros. */
  writer_add(w, Q ".bias", OCT_STORED_F16, NULL, ROWS, -1);
  expect_q(spec, w, OCT_LAYOUT_GPTQ, rows, 7,
           golden_data(golden, "values", OCT_STORED_F32, 7 * COLUMNS));
  writer_drop(w, Q ".bias");
  writer_add(w, Q ".bias", OCT_STORED_F16, (const guint16[ROWS]){[5] = 1}, ROWS, -1);
  small_refused(spec, w, "1 unexpected (" Q ".bias)");
}

/* The same zeros mean one less in the second format. */
static void
gptq_zeros(void) {
  g_autoptr(oct_model_spec) spec = small_llama();
  g_autoptr(oct_checkpoint) golden = golden_open("gptq");
  g_autoptr(writer) w = gptq_writer(spec, golden);
  guint32 eights[2 * ROWS / 8];
  memset(eights, 0x88, sizeof eights);
  for (guint i = 0; i < 3; i++) {
    if (i == 2) {
      writer_drop(w, Q ".qzeros");
      writer_add(w, Q ".qzeros", OCT_STORED_I32, eights, 2, ROWS / 8, -1);
    }
    spec->gptq_v2 = i == 1;
    g_autoptr(small_map) m = small_open(spec, w);
    g_assert_cmpuint(oct_weight_map_get(m->map, OCT_WEIGHT_Q, 0, 0)->zero_offset, ==, i == 0);
  }
}

static void
refuses_groups_out_of_range(void) {
  const gint32 values[] = {-1, 2, G_MAXINT32, G_MININT32};
  for (guint i = 0; i < G_N_ELEMENTS(values); i++) {
    g_autoptr(oct_model_spec) spec = small_llama();
    g_autoptr(oct_checkpoint) golden = golden_open("gptq");
    g_autoptr(writer) w = gptq_writer(spec, golden);
    gint32 order[COLUMNS] = {0};
    order[200] = values[i];
    g_autofree char *part = g_strdup_printf("has group %d at input 200: there are 2", values[i]);
    writer_add(w, Q ".g_idx", OCT_STORED_I32, order, COLUMNS, -1);
    small_refused(spec, w, part);
  }
}

static void
packed_int4(void) {
  g_autoptr(oct_model_spec) spec = small_llama();
  g_autoptr(oct_checkpoint) golden = golden_open("packed-int4");
  g_autoptr(writer) w = without_q(spec);
  const gint64 *rows = golden_data(golden, "rows", OCT_STORED_I64, 7);
  add_part(w, golden, "weight_packed", ".weight_packed", OCT_STORED_I32);
  add_part(w, golden, "weight_scale", ".weight_scale", OCT_STORED_BF16);
  writer_add(w, Q ".weight_shape", OCT_STORED_I64, (const gint64[]){ROWS, COLUMNS}, 2, -1);
  expect_q(spec, w, OCT_LAYOUT_INT4_PACKED, rows, 7,
           golden_data(golden, "values_symmetric", OCT_STORED_F32, 7 * COLUMNS));
  add_part(w, golden, "weight_zero_point", ".weight_zero_point", OCT_STORED_I32);
  expect_q(spec, w, OCT_LAYOUT_INT4_PACKED, rows, 7,
           golden_data(golden, "values", OCT_STORED_F32, 7 * COLUMNS));
}

/* --- 8-bit floats --------------------------------------------------------------------------------
 */

static guint8 *
fp8_codes(void) {
  guint8 *codes = g_new(guint8, ROWS * COLUMNS);
  for (guint i = 0; i < ROWS * COLUMNS; i++)
    codes[i] = (guint8)((i * 37 + i / COLUMNS) % 127 | (i % 3 == 0 ? 0x80 : 0));
  return codes;
}

static void
fp8(void) {
  const struct {
    const char *suffix;
    oct_stored_type type;
    int shape[3];
    oct_layout layout;
    gboolean by_row;
  } cases[] = {
      {".weight_scale", OCT_STORED_F32, {1, -1, -1}, OCT_LAYOUT_FP8, FALSE},
      {".weight_scale", OCT_STORED_BF16, {-1, -1, -1}, OCT_LAYOUT_FP8, FALSE},
      {".weight_scale", OCT_STORED_F32, {ROWS, 1, -1}, OCT_LAYOUT_FP8, TRUE},
      {".weight_scale", OCT_STORED_F16, {ROWS, -1, -1}, OCT_LAYOUT_FP8, TRUE},
      {".weight_scale_inv", OCT_STORED_F32, {1, 2, -1}, OCT_LAYOUT_FP8_BLOCK, FALSE},
      {".weight_scale", OCT_STORED_BF16, {1, 2, -1}, OCT_LAYOUT_FP8_BLOCK, FALSE},
  };
  g_autofree guint8 *codes = fp8_codes();
  g_autofree float *wanted = g_new(float, ROWS *COLUMNS);
  for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
    g_autoptr(oct_model_spec) spec = small_llama();
    g_autoptr(writer) w = without_q(spec);
    float wide[ROWS];
    guint16 narrow[ROWS];
    for (guint k = 0; k < ROWS; k++) { /* exact in every type */
      wide[k] = 0.25f * (float)(k + 1);
      narrow[k] = cases[i].type == OCT_STORED_F16 ? oct_f16_from_float(wide[k])
                                                  : oct_bf16_from_float(wide[k]);
    }
    g_autofree char *name = g_strconcat(Q, cases[i].suffix, NULL);
    writer_add(w, Q ".weight", OCT_STORED_F8_E4M3, codes, ROWS, COLUMNS, -1);
    writer_add(w, name, cases[i].type,
               cases[i].type == OCT_STORED_F32 ? (const void *)wide : narrow, cases[i].shape[0],
               cases[i].shape[1], cases[i].shape[2], -1);
    for (guint k = 0; k < ROWS * COLUMNS; k++) {
      guint scale = cases[i].layout == OCT_LAYOUT_FP8_BLOCK ? k % COLUMNS / 128
                    : cases[i].by_row                       ? k / COLUMNS
                                                            : 0;
      wanted[k] = oct_float_from_e4m3(codes[k]) * wide[scale];
    }
    expect_q(spec, w, cases[i].layout, NULL, ROWS, wanted);
  }
}

/* Each band of 128 rows has its own scales. */
static void
fp8_bands(void) {
  enum { N = 256 };
  const float scales[2][2] = {{1, 2}, {4, 8}};
  g_autoptr(oct_model_spec) spec = small_llama();
  g_autoptr(writer) w = without_q(spec);
  g_autofree guint8 *codes = g_new(guint8, N * N);
  writer_add(w, Q ".weight", OCT_STORED_F32, NULL, ROWS, COLUMNS, -1);
  writer_drop(w, "model.layers.0.mlp.up_proj.weight");
  for (guint i = 0; i < N * N; i++)
    codes[i] = (guint8)((i * 29 + i / N) % 127);
  writer_add(w, "model.layers.0.mlp.up_proj.weight", OCT_STORED_F8_E4M3, codes, N, N, -1);
  writer_add(w, "model.layers.0.mlp.up_proj.weight_scale_inv", OCT_STORED_F32, scales, 2, 2, -1);
  g_autoptr(small_map) m = small_open(spec, w);
  const oct_weight *up = oct_weight_map_get(m->map, OCT_WEIGHT_UP, 0, 0);
  for (guint row = 0; row < N; row++) {
    float found[N], wanted[N];
    for (guint k = 0; k < N; k++)
      wanted[k] = oct_float_from_e4m3(codes[row * N + k]) * scales[row / 128][k / 128];
    oct_weight_read(up, row, 1, found);
    assert_same(found, wanted, N);
  }
}

/* Without scales the codes are the values. */
static void
fp8_bare(void) {
  g_autoptr(oct_model_spec) spec = small_llama();
  g_autoptr(writer) w = without_q(spec);
  g_autofree guint8 *codes = fp8_codes();
  g_autofree float *wanted = g_new(float, ROWS *COLUMNS);
  writer_add(w, Q ".weight", OCT_STORED_F8_E4M3, codes, ROWS, COLUMNS, -1);
  oct_dequant_row(OCT_STORED_F8_E4M3, codes, ROWS * COLUMNS, wanted);
  expect_q(spec, w, OCT_LAYOUT_ROWS, NULL, ROWS, wanted);
  writer_add(w, Q ".weight_scale", OCT_STORED_F32, NULL, 3, -1);
  small_refused(spec, w, "has the shape [3], wanted is one scale, one for each of 24 rows, or [1,");
}

/* --- 4-bit floats --------------------------------------------------------------------------------
 */

/* 4 rows of 96 columns of the goldens, repeated to [24, 256] by hand: too few columns. So the codes
 * are made here, and the values by the dequantisers that the goldens have checked. */
static void
fp4(void) {
  g_autofree guint8 *codes = fp8_codes();
  g_autofree float *wanted = g_new(float, ROWS *COLUMNS);
  g_autofree guint8 *mx = g_new(guint8, ROWS * COLUMNS / 32),
                    *nv = g_new(guint8, ROWS * COLUMNS / 16);
  const float divisor = 3, factor = 0.01f;
  for (guint i = 0; i < ROWS * COLUMNS / 32; i++)
    mx[i] = (guint8)(120 + i % 11);
  for (guint i = 0; i < ROWS * COLUMNS / 16; i++)
    nv[i] = (guint8)(1 + i % 125);
  for (guint kind = 0; kind < 4; kind++) {
    g_autoptr(oct_model_spec) spec = small_llama();
    g_autoptr(writer) w = without_q(spec);
    gboolean is_mx = kind < 2, packed = kind != 3;
    writer_add(w, packed ? Q ".weight_packed" : Q ".weight", OCT_STORED_U8, codes, ROWS,
               COLUMNS / 2, -1);
    if (is_mx)
      writer_add(w, Q ".weight_scale", kind == 0 ? OCT_STORED_U8 : OCT_STORED_F8_E8M0, mx, ROWS,
                 COLUMNS / 32, -1);
    else
      writer_add(w, Q ".weight_scale", OCT_STORED_F8_E4M3, nv, ROWS, COLUMNS / 16, -1);
    if (kind == 2)
      writer_add(w, Q ".weight_global_scale", OCT_STORED_F32, &divisor, 1, -1);
    if (kind == 3)
      writer_add(w, Q ".weight_scale_2", OCT_STORED_F32, &factor, -1);
    for (guint row = 0; row < ROWS; row++) {
      const guint8 *in = codes + row * COLUMNS / 2;
      float *out = wanted + row * COLUMNS;
      if (is_mx)
        oct_dequant_mxfp4(in, mx + row * COLUMNS / 32, COLUMNS, out);
      else
        oct_dequant_nvfp4(in, nv + row * COLUMNS / 16, kind == 2 ? divisor : 1,
                          kind == 3 ? factor : 1, COLUMNS, out);
    }
    expect_q(spec, w, is_mx ? OCT_LAYOUT_MXFP4 : OCT_LAYOUT_NVFP4, NULL, ROWS, wanted);
  }
}

static void
refuses_scales(void) {
  const float bad[] = {0, -1, NAN, INFINITY};
  for (guint i = 0; i < G_N_ELEMENTS(bad); i++) {
    g_autoptr(oct_model_spec) spec = small_llama();
    g_autoptr(writer) w = without_q(spec);
    writer_add(w, Q ".weight_packed", OCT_STORED_U8, NULL, ROWS, COLUMNS / 2, -1);
    writer_add(w, Q ".weight_scale", OCT_STORED_F8_E4M3, NULL, ROWS, COLUMNS / 16, -1);
    writer_add(w, Q ".weight_global_scale", OCT_STORED_F32, &bad[i], 1, -1);
    small_refused(spec, w, "a scale is finite and above 0");
  }
  g_autoptr(oct_model_spec) spec = small_llama();
  g_autoptr(writer) w = without_q(spec);
  writer_add(w, Q ".weight_packed", OCT_STORED_U8, NULL, ROWS, COLUMNS / 2, -1);
  small_refused(spec, w, "has no " Q ".weight_scale beside it");
  writer_add(w, Q ".weight_scale", OCT_STORED_U8, NULL, ROWS, COLUMNS / 16, -1);
  small_refused(spec, w, "has the shape [24, 16], wanted is [24, 8]");
}

/* --- stacked experts (gpt-oss) -------------------------------------------------------------------
 */

enum { EXPERTS = 3, HIDDEN = 64, INNER = 32 };

/* What element (row, column) of a weight of an expert is: small numbers, exact in bfloat16. */
static float
cell(guint layer, guint expert, guint which, guint row, guint column) {
  return (float)((layer * 7 + expert * 31 + which * 101 + row * 3 + column * 5) % 251) - 125;
}

/* Experts' biases, and their weights as [experts, inputs, outputs] with gate and up alternating. */
static void
add_stacked(writer *w, guint layer) {
  g_autofree guint16 *fused = g_new(guint16, EXPERTS * HIDDEN * 2 * INNER),
                     *down = g_new(guint16, EXPERTS * INNER * HIDDEN);
  guint16 fused_bias[EXPERTS * 2 * INNER], down_bias[EXPERTS * HIDDEN];
  guint n = 0, n_down = 0;
  for (guint e = 0; e < EXPERTS; e++) {
    for (guint column = 0; column < HIDDEN; column++)
      for (guint row = 0; row < 2 * INNER; row++)
        fused[n++] = oct_bf16_from_float(cell(layer, e, row % 2, row / 2, column));
    for (guint column = 0; column < INNER; column++)
      for (guint row = 0; row < HIDDEN; row++)
        down[n_down++] = oct_bf16_from_float(cell(layer, e, 2, row, column));
    for (guint row = 0; row < 2 * INNER; row++)
      fused_bias[e * 2 * INNER + row] =
          oct_bf16_from_float(cell(layer, e, 3 + row % 2, row / 2, 0));
    for (guint row = 0; row < HIDDEN; row++)
      down_bias[e * HIDDEN + row] = oct_bf16_from_float(cell(layer, e, 5, row, 0));
  }
  g_autofree char *stem = g_strdup_printf("model.layers.%u.mlp.experts.", layer);
  const struct {
    const char *name;
    const void *data;
    gint64 shape[4];
  } tensors[] = {{"gate_up_proj", fused, {EXPERTS, HIDDEN, 2 * INNER, -1}},
                 {"down_proj", down, {EXPERTS, INNER, HIDDEN, -1}},
                 {"gate_up_proj_bias", fused_bias, {EXPERTS, 2 * INNER, -1}},
                 {"down_proj_bias", down_bias, {EXPERTS, HIDDEN, -1}}};
  for (guint i = 0; i < G_N_ELEMENTS(tensors); i++) {
    g_autofree char *name = g_strconcat(stem, tensors[i].name, NULL);
    writer_add_shape(w, name, OCT_STORED_BF16, tensors[i].data, tensors[i].shape);
  }
}

/* Everything of a small gpt-oss but its experts. */
static writer *
without_experts(const oct_model_spec *spec) {
  static const char *const parts[] = {"gate_proj", "up_proj", "down_proj"};
  g_autoptr(GError) error = NULL;
  g_autoptr(oct_budget) budget = oct_budget_new("test", 1 << 24);
  oct_weight_map *map = oct_weight_map_new_dummy(spec, 1, &error);
  for (guint i = 0; i < oct_weight_map_n(map); i++)
    g_assert_true(oct_weight_materialise(map, i, budget, &error));
  writer *w = small_write(map);
  for (guint layer = 0; layer < 2; layer++) {
    for (guint e = 0; e < EXPERTS; e++)
      for (guint i = 0; i < 3; i++) {
        g_autofree char *name =
            g_strdup_printf("model.layers.%u.mlp.experts.%u.%s.weight", layer, e, parts[i]);
        writer_drop(w, name);
      }
    /* gpt-oss calls its router so. */
    g_autofree char *gate = g_strdup_printf("model.layers.%u.mlp.gate.weight", layer);
    g_autofree char *router = g_strdup_printf("model.layers.%u.mlp.router.weight", layer);
    writer_rename(w, gate, router);
  }
  oct_weight_map_free(map);
  return w;
}

static void
expect_cells(const oct_weight_map *map, oct_weight_kind kind, guint which, guint rows,
             guint columns) {
  for (guint layer = 0; layer < 2; layer++)
    for (guint e = 0; e < EXPERTS; e++) {
      const oct_weight *w = oct_weight_map_get(map, kind, layer, e);
      float all[HIDDEN * HIDDEN], one[HIDDEN];
      g_assert_cmpuint(w->rows, ==, rows);
      g_assert_cmpuint(w->columns, ==, columns);
      oct_weight_read(w, 0, rows, all);
      for (guint row = 0; row < rows; row++) {
        oct_weight_read(w, row, 1, one);
        for (guint column = 0; column < columns; column++) {
          g_assert_cmpfloat(one[column], ==, cell(layer, e, which, row, column));
          g_assert_cmpfloat(all[row * columns + column], ==, one[column]);
        }
      }
    }
}

static void
stacked_columns(void) {
  g_autoptr(oct_model_spec) spec = small_gpt_oss();
  g_autoptr(writer) w = without_experts(spec);
  add_stacked(w, 0);
  add_stacked(w, 1);
  g_autoptr(small_map) m = small_open(spec, w);
  expect_cells(m->map, OCT_WEIGHT_EXPERT_GATE, 0, INNER, HIDDEN);
  expect_cells(m->map, OCT_WEIGHT_EXPERT_UP, 1, INNER, HIDDEN);
  expect_cells(m->map, OCT_WEIGHT_EXPERT_DOWN, 2, HIDDEN, INNER);
  expect_cells(m->map, OCT_WEIGHT_EXPERT_GATE_BIAS, 3, INNER, 1);
  expect_cells(m->map, OCT_WEIGHT_EXPERT_UP_BIAS, 4, INNER, 1);
  expect_cells(m->map, OCT_WEIGHT_EXPERT_DOWN_BIAS, 5, HIDDEN, 1);
  guint64 bytes = 0;
  for (guint i = 0; i < oct_weight_map_n(m->map); i++)
    bytes += oct_weight_map_at(m->map, i)->bytes;
  g_assert_cmpuint(bytes, ==, oct_checkpoint_bytes(m->checkpoint));
}

/* gpt-oss in MXFP4: every expert's rows against the dequantiser on the bytes where they belong. */
static void
stacked_mxfp4(void) {
  g_autoptr(oct_model_spec) spec = small_gpt_oss();
  g_autoptr(writer) w = without_experts(spec);
  guint8 blocks[EXPERTS][2 * INNER][HIDDEN / 2], scales[EXPERTS][2 * INNER][HIDDEN / 32];
  guint8 down[EXPERTS][HIDDEN][INNER / 2], down_scales[EXPERTS][HIDDEN];
  for (guint i = 0; i < sizeof blocks; i++)
    (&blocks[0][0][0])[i] = (guint8)(i * 41 + i / 100);
  for (guint i = 0; i < sizeof scales; i++)
    (&scales[0][0][0])[i] = (guint8)(110 + i % 20);
  for (guint i = 0; i < sizeof down; i++)
    (&down[0][0][0])[i] = (guint8)(i * 23 + i / 90);
  for (guint i = 0; i < sizeof down_scales; i++)
    (&down_scales[0][0])[i] = (guint8)(115 + i % 9);
  for (guint layer = 0; layer < 2; layer++) {
    add_stacked(w, layer);
    g_autofree char *stem = g_strdup_printf("model.layers.%u.mlp.experts.", layer);
    g_autofree char *fused = g_strconcat(stem, "gate_up_proj", NULL);
    g_autofree char *fused_blocks = g_strconcat(fused, "_blocks", NULL);
    g_autofree char *fused_scales = g_strconcat(fused, "_scales", NULL);
    g_autofree char *its_down = g_strconcat(stem, "down_proj", NULL);
    g_autofree char *its_blocks = g_strconcat(its_down, "_blocks", NULL);
    g_autofree char *its_scales = g_strconcat(its_down, "_scales", NULL);
    writer_drop(w, fused);
    writer_drop(w, its_down);
    writer_add(w, fused_blocks, OCT_STORED_U8, blocks, EXPERTS, 2 * INNER, HIDDEN / 32, 16, -1);
    writer_add(w, fused_scales, OCT_STORED_U8, scales, EXPERTS, 2 * INNER, HIDDEN / 32, -1);
    writer_add(w, its_blocks, OCT_STORED_U8, down, EXPERTS, HIDDEN, INNER / 32, 16, -1);
    writer_add(w, its_scales, OCT_STORED_U8, down_scales, EXPERTS, HIDDEN, 1, -1);
  }
  g_autoptr(small_map) m = small_open(spec, w);
  for (guint e = 0; e < EXPERTS; e++)
    for (guint row = 0; row < HIDDEN; row++) {
      float found[HIDDEN], wanted[HIDDEN];
      if (row < INNER)
        for (guint odd = 0; odd < 2; odd++) {
          oct_weight_read(oct_weight_map_get(m->map, OCT_WEIGHT_EXPERT_GATE + odd, 1, e), row, 1,
                          found);
          oct_dequant_mxfp4(blocks[e][2 * row + odd], scales[e][2 * row + odd], HIDDEN, wanted);
          assert_same(found, wanted, HIDDEN);
        }
      oct_weight_read(oct_weight_map_get(m->map, OCT_WEIGHT_EXPERT_DOWN, 0, e), row, 1, found);
      oct_dequant_mxfp4(down[e][row], &down_scales[e][row], INNER, wanted);
      assert_same(found, wanted, INNER);
    }
}

static void
refuses_stacks(void) {
  g_autoptr(oct_model_spec) spec = small_gpt_oss();
  g_autoptr(writer) w = without_experts(spec);
  add_stacked(w, 0);
  small_refused(spec, w, "no tensor model.layers.1.mlp.experts.0.gate_proj.weight or");
  add_stacked(w, 1);
  writer_drop(w, "model.layers.1.mlp.experts.down_proj");
  writer_add(w, "model.layers.1.mlp.experts.down_proj", OCT_STORED_BF16, NULL, EXPERTS, HIDDEN,
             INNER, -1);
  small_refused(spec, w, "[3, 64, 32], wanted is [3, 32, 64]");
  writer_drop(w, "model.layers.1.mlp.experts.down_proj");
  writer_add(w, "model.layers.1.mlp.experts.down_proj_blocks", OCT_STORED_U8, NULL, EXPERTS, HIDDEN,
             1, 16, -1);
  small_refused(spec, w, "has no model.layers.1.mlp.experts.down_proj_scales beside it");
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/storage/awq-reads-as-its-golden", awq);
  g_test_add_func("/storage/gptq-reads-as-its-golden", gptq);
  g_test_add_func("/storage/gptq-zeros-mean-what-the-format-says", gptq_zeros);
  g_test_add_func("/storage/refuses-groups-out-of-range", refuses_groups_out_of_range);
  g_test_add_func("/storage/packed-int4-reads-as-its-golden", packed_int4);
  g_test_add_func("/storage/fp8-reads-with-one-scale-row-scales-and-block-scales", fp8);
  g_test_add_func("/storage/fp8-blocks-of-every-band-have-their-scales", fp8_bands);
  g_test_add_func("/storage/fp8-without-scales-is-its-codes", fp8_bare);
  g_test_add_func("/storage/mxfp4-and-nvfp4-read-in-both-packings", fp4);
  g_test_add_func("/storage/refuses-scales-that-are-none", refuses_scales);
  g_test_add_func("/storage/stacked-experts-read-by-column", stacked_columns);
  g_test_add_func("/storage/stacked-experts-read-from-mxfp4", stacked_mxfp4);
  g_test_add_func("/storage/refuses-stacks-that-do-not-fit", refuses_stacks);
  return g_test_run();
}
