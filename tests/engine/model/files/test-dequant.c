/* Every dequantiser against values from programs that share no code with it. */
#include "engine/model/files/dequant.h"

#include <math.h>
#include <string.h>

#include "engine/model/files/floats.h"
#include "tests/engine/model/files/golden.h"

static void
plain(void) {
  const struct {
    const char *name;
    oct_stored_type stored, type;
  } types[] = {
      {"f16", OCT_STORED_U16, OCT_STORED_F16},     {"bf16", OCT_STORED_U16, OCT_STORED_BF16},
      {"e4m3", OCT_STORED_U8, OCT_STORED_F8_E4M3}, {"e5m2", OCT_STORED_U8, OCT_STORED_F8_E5M2},
      {"e8m0", OCT_STORED_U8, OCT_STORED_F8_E8M0},
  };
  g_autoptr(oct_checkpoint) golden = golden_open("plain");
  for (guint i = 0; i < G_N_ELEMENTS(types); i++) {
    g_autofree char *values = g_strconcat(types[i].name, "_values", NULL);
    guint64 n = golden_dim(golden, values, 0);
    g_autofree float *out = g_new(float, n);
    g_assert_cmpuint(n, >=, 256);
    oct_dequant_row(types[i].type, golden_data(golden, types[i].name, types[i].stored, n), n, out);
    assert_same(out, golden_data(golden, values, OCT_STORED_F32, n), n);
  }
}

static void
plain_wide(void) {
  const double in[] = {1, -0.1, 1e300, 1e-300, 3.4028234663852886e38};
  float out[5];
  oct_dequant_row(OCT_STORED_F64, in, 5, out);
  assert_same(out, (const float[]){1, -0.1f, INFINITY, 0, 3.4028235e38f}, 5);
  oct_dequant_row(OCT_STORED_F32, out, 0, NULL);
  const float same[] = {1.5f, -2};
  oct_dequant_row(OCT_STORED_F32, same, 2, out);
  assert_same(out, same, 2);
}

/* Signs of zero too, which assert_same() lets pass. */
static void
signs(void) {
  g_assert_true(signbit(oct_float_from_f16(0x8000)));
  g_assert_true(signbit(oct_float_from_bf16(0x8000)));
  g_assert_true(signbit(oct_float_from_e4m3(0x80)));
  g_assert_true(signbit(oct_float_from_e2m1(8)));
  g_assert_false(signbit(oct_float_from_e4m3(0)));
}

/* Every code of a type comes back when its value is rounded to the type again. */
static void
round_trips(void) {
  for (guint code = 0; code < 65536; code++) {
    float half = oct_float_from_f16((guint16)code), brain = oct_float_from_bf16((guint16)code);
    if (!isnan(half))
      g_assert_cmpuint(oct_f16_from_float(half), ==, code);
    if (!isnan(brain))
      g_assert_cmpuint(oct_bf16_from_float(brain), ==, code);
    g_assert_true(isnan(half) == isnan(oct_float_from_f16(oct_f16_from_float(half))));
    g_assert_true(isnan(brain) == isnan(oct_float_from_bf16(oct_bf16_from_float(brain))));
  }
  for (guint code = 0; code < 256; code++) {
    float eight = oct_float_from_e4m3((guint8)code);
    g_assert_cmpuint(oct_e4m3_from_float(eight) & 0x7f, ==, code & 0x7f);
    if (!isnan(eight))
      g_assert_cmpuint(oct_e4m3_from_float(eight), ==, code);
  }
  for (guint code = 0; code < 16; code++)
    g_assert_cmpuint(oct_e2m1_from_float(oct_float_from_e2m1(code)), ==, code);
}

static void
rounds(void) {
  g_autoptr(oct_checkpoint) golden = golden_open("narrow");
  guint64 n = golden_dim(golden, "values", 0), n_halves = golden_dim(golden, "halves", 0);
  const float *values = golden_data(golden, "values", OCT_STORED_F32, n);
  const float *halves = golden_data(golden, "halves", OCT_STORED_F32, n_halves);
  const guint8 *e4m3 = golden_data(golden, "e4m3", OCT_STORED_U8, n);
  const guint8 *e2m1 = golden_data(golden, "e2m1", OCT_STORED_U8, n);
  const guint16 *f16 = golden_data(golden, "f16", OCT_STORED_U16, n_halves);
  const guint16 *bf16 = golden_data(golden, "bf16", OCT_STORED_U16, n_halves);
  g_assert_cmpuint(n, >, 1000);
  for (guint64 i = 0; i < n; i++) {
    g_assert_cmpuint(oct_e4m3_from_float(values[i]), ==, e4m3[i]);
    g_assert_cmpuint(oct_e2m1_from_float(values[i]), ==, e2m1[i]);
  }
  for (guint64 i = 0; i < n_halves; i++) {
    g_assert_cmpuint(oct_f16_from_float(halves[i]), ==, f16[i]);
    g_assert_cmpuint(oct_bf16_from_float(halves[i]), ==, bf16[i]);
  }
}

/* --- GGUF's blocks -------------------------------------------------------------------------------
 */

typedef struct gguf_case {
  const char *golden;
  oct_stored_type type;
} gguf_case;

static void
gguf_blocks(gconstpointer data) {
  const gguf_case *c = data;
  g_autoptr(oct_checkpoint) golden = golden_open(c->golden);
  const oct_stored_info *info = oct_stored_get(c->type);
  guint64 rows = golden_dim(golden, "values", 0), columns = golden_dim(golden, "values", 1);
  guint64 row_bytes = columns / info->block * info->bytes;
  const guint8 *blocks = golden_data(golden, "blocks", OCT_STORED_U8, rows * row_bytes);
  const float *values = golden_data(golden, "values", OCT_STORED_F32, rows * columns);
  g_autofree float *out = g_new(float, columns);
  for (guint64 row = 0; row < rows; row++) {
    oct_dequant_row(c->type, blocks + row * row_bytes, columns, out);
    assert_same(out, values + row * columns, columns);
  }
}

/* --- floats with scales --------------------------------------------------------------------------
 */

static void
fp8(void) {
  g_autoptr(oct_checkpoint) golden = golden_open("fp8");
  guint64 rows = golden_dim(golden, "codes", 0), columns = golden_dim(golden, "codes", 1);
  guint64 blocks = golden_dim(golden, "scales", 1);
  const guint8 *codes = golden_data(golden, "codes", OCT_STORED_U8, rows * columns);
  const float *scales = golden_data(golden, "scales", OCT_STORED_F32, rows * blocks);
  const float *values = golden_data(golden, "values", OCT_STORED_F32, rows * columns);
  const float *by_row = golden_data(golden, "row_values", OCT_STORED_F32, rows * columns);
  g_autofree float *out = g_new(float, columns);
  for (guint64 row = 0; row < rows; row++) {
    oct_dequant_fp8_blocks(codes + row * columns, scales + row * blocks, columns, out);
    assert_same(out, values + row * columns, columns);
    oct_dequant_fp8(codes + row * columns, scales[row * blocks], columns, out);
    assert_same(out, by_row + row * columns, columns);
  }
}

static void
mxfp4(void) {
  g_autoptr(oct_checkpoint) golden = golden_open("mxfp4");
  guint64 rows = golden_dim(golden, "values", 0), columns = golden_dim(golden, "values", 1);
  const guint8 *codes = golden_data(golden, "codes", OCT_STORED_U8, rows * columns / 2);
  const guint8 *scales = golden_data(golden, "scales", OCT_STORED_U8, rows * columns / 32);
  const float *values = golden_data(golden, "values", OCT_STORED_F32, rows * columns);
  g_autofree float *out = g_new(float, columns);
  for (guint64 row = 0; row < rows; row++) {
    oct_dequant_mxfp4(codes + row * columns / 2, scales + row * columns / 32, columns, out);
    assert_same(out, values + row * columns, columns);
  }
  const guint8 nan_scale = 0xff, code = 0x22;
  oct_dequant_mxfp4(&code, &nan_scale, 2, out);
  g_assert_true(isnan(out[0]) && isnan(out[1]));
}

static void
nvfp4(void) {
  g_autoptr(oct_checkpoint) golden = golden_open("nvfp4");
  guint64 rows = golden_dim(golden, "values", 0), columns = golden_dim(golden, "values", 1);
  const guint8 *codes = golden_data(golden, "codes", OCT_STORED_U8, rows * columns / 2);
  const guint8 *scales = golden_data(golden, "scales", OCT_STORED_U8, rows * columns / 16);
  const float *divisor = golden_data(golden, "divisor", OCT_STORED_F32, 1);
  const float *factor = golden_data(golden, "factor", OCT_STORED_F32, 1);
  const float *values = golden_data(golden, "values", OCT_STORED_F32, rows * columns);
  const float *by_factor = golden_data(golden, "factor_values", OCT_STORED_F32, rows * columns);
  g_autofree float *out = g_new(float, columns);
  for (guint64 row = 0; row < rows; row++) {
    const guint8 *row_codes = codes + row * columns / 2, *row_scales = scales + row * columns / 16;
    oct_dequant_nvfp4(row_codes, row_scales, *divisor, 1, columns, out);
    assert_same(out, values + row * columns, columns);
    oct_dequant_nvfp4(row_codes, row_scales, 1, *factor, columns, out);
    assert_same(out, by_factor + row * columns, columns);
  }
}

/* --- 4-bit integers ------------------------------------------------------------------------------
 */

/* The whole weight at once and every single row, against the golden's selected rows. */
static void
check_int4(const oct_checkpoint *golden, const oct_int4 *w, const char *name) {
  guint64 n = golden_dim(golden, "rows", 0);
  const gint64 *rows = golden_data(golden, "rows", OCT_STORED_I64, n);
  const float *values = golden_data(golden, name, OCT_STORED_F32, n * w->columns);
  g_autofree float *all = g_new(float, w->rows * w->columns), *one = g_new(float, w->columns);
  oct_dequant_int4(w, 0, w->rows, all);
  for (guint64 i = 0; i < n; i++) {
    oct_dequant_int4(w, (guint64)rows[i], 1, one);
    assert_same(one, values + i * w->columns, w->columns);
    assert_same(all + (guint64)rows[i] * w->columns, one, w->columns);
  }
  oct_dequant_int4(w, 5, 12, all); /* a run that begins and ends inside a word */
  for (guint64 i = 0; i < n; i++)
    if (rows[i] >= 5 && rows[i] < 17)
      assert_same(all + (guint64)(rows[i] - 5) * w->columns, values + i * w->columns, w->columns);
}

static void
awq(void) {
  g_autoptr(oct_checkpoint) golden = golden_open("awq");
  oct_int4 w = {.layout = OCT_INT4_AWQ,
                .rows = golden_dim(golden, "scales", 1),
                .columns = golden_dim(golden, "qweight", 0),
                .group = 128,
                .codes = golden_data(golden, "qweight", OCT_STORED_I32, 0),
                .zeros = golden_data(golden, "qzeros", OCT_STORED_I32, 0),
                .scales = golden_data(golden, "scales", OCT_STORED_F16, 0),
                .scale_type = OCT_STORED_F16};
  check_int4(golden, &w, "values");
}

static void
gptq(void) {
  g_autoptr(oct_checkpoint) golden = golden_open("gptq");
  oct_int4 w = {.layout = OCT_INT4_GPTQ,
                .rows = golden_dim(golden, "qweight", 1),
                .columns = golden_dim(golden, "g_idx", 0),
                .group = 128,
                .codes = golden_data(golden, "qweight", OCT_STORED_I32, 0),
                .zeros = golden_data(golden, "qzeros", OCT_STORED_I32, 0),
                .scales = golden_data(golden, "scales", OCT_STORED_F16, 0),
                .scale_type = OCT_STORED_F16,
                .zero_offset = 1,
                .order = golden_data(golden, "g_idx", OCT_STORED_I32, 0)};
  check_int4(golden, &w, "values");
  w.order = NULL;
  check_int4(golden, &w, "values_in_order");
}

static void
packed_int4(void) {
  g_autoptr(oct_checkpoint) golden = golden_open("packed-int4");
  oct_int4 w = {.layout = OCT_INT4_PACKED,
                .rows = golden_dim(golden, "weight_packed", 0),
                .columns = golden_dim(golden, "weight_packed", 1) * 8,
                .group = 128,
                .codes = golden_data(golden, "weight_packed", OCT_STORED_I32, 0),
                .zeros = golden_data(golden, "weight_zero_point", OCT_STORED_I32, 0),
                .scales = golden_data(golden, "weight_scale", OCT_STORED_U16, 0),
                .scale_type = OCT_STORED_BF16};
  check_int4(golden, &w, "values");
  w.zeros = NULL;
  check_int4(golden, &w, "values_symmetric");
}

/* Scales of each type that may hold them. */
static void
scale_types(void) {
  const guint32 codes[] = {0x76543210};
  const float wide = 0.5f;
  const guint16 half = 0x3800, brain = 0x3f00;
  const struct {
    oct_stored_type type;
    const void *scale;
  } cases[] = {{OCT_STORED_F32, &wide}, {OCT_STORED_F16, &half}, {OCT_STORED_BF16, &brain}};
  for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
    float out[8];
    oct_int4 w = {.layout = OCT_INT4_PACKED,
                  .rows = 1,
                  .columns = 8,
                  .group = 8,
                  .codes = codes,
                  .scales = cases[i].scale,
                  .scale_type = cases[i].type};
    oct_dequant_int4(&w, 0, 1, out);
    assert_same(out, (const float[]){-4, -3.5f, -3, -2.5f, -2, -1.5f, -1, -0.5f}, 8);
  }
}

int
main(int argc, char **argv) {
  static const gguf_case cases[] = {
      {"gguf-q4_0", OCT_STORED_Q4_0},      {"gguf-q4_1", OCT_STORED_Q4_1},
      {"gguf-q5_0", OCT_STORED_Q5_0},      {"gguf-q5_1", OCT_STORED_Q5_1},
      {"gguf-q8_0", OCT_STORED_Q8_0},      {"gguf-q4_0-real", OCT_STORED_Q4_0},
      {"gguf-q4_1-real", OCT_STORED_Q4_1}, {"gguf-q5_0-real", OCT_STORED_Q5_0},
      {"gguf-q5_1-real", OCT_STORED_Q5_1}, {"gguf-q8_0-real", OCT_STORED_Q8_0},
      {"gguf-q4_k", OCT_STORED_Q4_K},      {"gguf-q5_k", OCT_STORED_Q5_K},
      {"gguf-q6_k", OCT_STORED_Q6_K},      {"gguf-mxfp4", OCT_STORED_MXFP4},
  };
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/dequant/plain-types-equal-the-golden", plain);
  g_test_add_func("/dequant/wide-types-are-rounded-or-copied", plain_wide);
  g_test_add_func("/dequant/zeros-keep-their-sign", signs);
  g_test_add_func("/dequant/every-code-of-a-narrow-float-round-trips", round_trips);
  g_test_add_func("/dequant/rounding-to-narrow-floats-equals-the-golden", rounds);
  for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
    g_autofree char *path = g_strdup_printf("/dequant/%s-equals-the-golden", cases[i].golden);
    g_test_add_data_func(path, &cases[i], gguf_blocks);
  }
  g_test_add_func("/dequant/fp8-equals-the-golden", fp8);
  g_test_add_func("/dequant/mxfp4-equals-the-golden", mxfp4);
  g_test_add_func("/dequant/nvfp4-equals-the-golden", nvfp4);
  g_test_add_func("/dequant/awq-equals-the-golden", awq);
  g_test_add_func("/dequant/gptq-equals-the-golden", gptq);
  g_test_add_func("/dequant/packed-int4-equals-the-golden", packed_int4);
  g_test_add_func("/dequant/int4-scales-may-be-of-three-types", scale_types);
  return g_test_run();
}
