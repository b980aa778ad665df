/* The backend's own small kernels against what they stand for, over sizes of no use to a vector. */
#include "backends/cuda/glue.h"

#include <math.h>
#include <string.h>

#include "engine/model/files/dummy.h"
#include "engine/model/files/floats.h"
#include "engine/model/files/map.h"
#include "tests/kernels/cuda/device.h"

static void
test_tables(void) {
  if (device_queue(0) == NULL)
    return;
  enum { ENTRIES = 3000, CHANGES = 777 };
  g_autofree guint32 *want = g_new0(guint32, ENTRIES), *got = g_new(guint32, ENTRIES);
  g_autofree guint32 *places = data_pages(CHANGES, ENTRIES);
  g_autofree oct_glue_change *changes = g_new(oct_glue_change, CHANGES);
  for (guint i = 0; i < CHANGES; i++) {
    changes[i] = (oct_glue_change){places[i], 5000 + i};
    want[places[i]] = 5000 + i;
  }
  void *tables = device_zeros(ENTRIES * sizeof *want);
  device_check(oct_glue_tables(NULL, tables, device_copy(changes, CHANGES * sizeof *changes), 0));
  device_check(
      oct_glue_tables(NULL, tables, device_copy(changes, CHANGES * sizeof *changes), CHANGES));
  device_read(got, tables, ENTRIES * sizeof *got);
  g_assert_cmpmem(got, ENTRIES * sizeof *got, want, ENTRIES * sizeof *want);
}

static void
test_move(void) {
  static const gsize sizes[] = {16, 48, 4096, OCT_GLUE_MOVE_MOST};
  if (device_queue(0) == NULL)
    return;
  for (guint i = 0; i < G_N_ELEMENTS(sizes); i++) {
    g_autofree float *x = data_normal(sizes[i] / 4, 1), *got = g_new(float, sizes[i] / 4 + 4);
    void *to = device_zeros(sizes[i] + 16);
    device_check(oct_glue_move(NULL, to, device_copy(x, sizes[i]), sizes[i]));
    device_read(got, to, sizes[i] + 16);
    g_assert_cmpmem(got, sizes[i], x, sizes[i]);
    for (guint k = 0; k < 4; k++)
      g_assert_cmpfloat(got[sizes[i] / 4 + k], ==, 0);
  }
}

static void
test_counts(void) {
  if (device_queue(0) == NULL)
    return;
  enum { VOCAB = 101, N = 999, PROMPT = 400 };
  guint32 ids[N], want[VOCAB] = {0}, got[VOCAB];
  for (guint i = 0; i < N; i++) {
    ids[i] = data_between(0, VOCAB - 2);
    if (i < PROMPT)
      want[ids[i]] |= OCT_REF_COUNT_PROMPT;
    else
      want[ids[i]]++;
  }
  guint32 *counts = device_room(sizeof got); /* what is there is forgotten */
  device_check(oct_glue_counts(NULL, counts, VOCAB, device_copy(ids, sizeof ids), N, PROMPT));
  device_read(got, counts, sizeof got);
  g_assert_cmpmem(got, sizeof got, want, sizeof want);
  device_check(oct_glue_counts(NULL, counts, VOCAB, device_copy(ids, sizeof ids), 0, 0));
  device_read(got, counts, sizeof got);
  for (guint i = 0; i < VOCAB; i++)
    g_assert_cmpuint(got[i], ==, 0);
}

/* A part of a made-up matrix, as both activations' types. */
static void
test_dummy(void) {
  enum { ROWS = 60, COLUMNS = 77, ROW = 13, N_ROWS = 20, COLUMN = 5, N = 33, PITCH = 40 };
  if (device_queue(0) == NULL)
    return;
  for (guint k = 0; k < 4; k++) {
    oct_weight w = {.kind = OCT_WEIGHT_UP, .rows = ROWS, .columns = COLUMNS};
    oct_dummy_init(&w, k % 2 == 0 ? OCT_DTYPE_BF16 : OCT_DTYPE_F32, FALSE, 7);
    oct_cuda_type type = k / 2 == 0 ? OCT_CUDA_F32 : OCT_CUDA_BF16;
    const oct_glue_dummy call = {.key = w.dummy,
                                 .mean = w.mean,
                                 .deviation = w.deviation,
                                 .stored_bf16 = w.type == OCT_STORED_BF16,
                                 .columns = COLUMNS,
                                 .row = ROW,
                                 .column = COLUMN,
                                 .rows = N_ROWS,
                                 .n = N,
                                 .type = type,
                                 .out = device_room_of(type, N_ROWS * PITCH),
                                 .pitch = PITCH};
    device_check(oct_glue_make_dummy(NULL, &call));
    g_autofree float *got = device_get(type, call.out, N_ROWS * PITCH);
    float row[COLUMNS];
    for (guint r = 0; r < N_ROWS; r++) {
      oct_weight_read(&w, ROW + r, 1, row);
      for (guint c = 0; c < N; c++) {
        float want = row[COLUMN + c];
        if (type == OCT_CUDA_BF16)
          want = oct_float_from_bf16(oct_bf16_from_float(want));
        g_assert_cmpfloat(got[r * PITCH + c], ==, want);
      }
    }
  }
}

/* What a code is worth, the scale and the zero taken off. */
static float
value_of(const oct_weight *w, guint32 row, guint32 column, const float *values) {
  gint zero;
  return values[column] / oct_weight_scale(w, row, column, &zero);
}

/* The code of an input in a packed row (oct_cuda_matrix has the order). */
static guint
packed_code(const guint8 *row, gboolean is_float, guint c) {
  static const guint size_at[] = {0, 3, 8, 11}, sign_at[] = {6, 7, 14, 15};
  guint in = c % 32, pair = in / 8, word = c / 128 * 16 + in % 8 / 2 * 4 + c % 128 / 32;
  guint half = row[4 * word + 2 * (c % 2)] | (guint)row[4 * word + 2 * (c % 2) + 1] << 8;
  return is_float ? (half >> size_at[pair] & 7) | (half >> sign_at[pair] & 1) << 3
                  : half >> 4 * pair & 15;
}

static void
test_codes(void) {
  static const float e2m1[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  static const oct_dtype stored[] = {OCT_DTYPE_FP8, OCT_DTYPE_MXFP4, OCT_DTYPE_INT4_G64};
  enum { ROWS = 24, COLUMNS = 192, BYTES = ROWS * COLUMNS };
  for (guint k = 0; k < G_N_ELEMENTS(stored); k++) {
    if (device_queue(0) == NULL)
      return;
    oct_weight w = {.kind = OCT_WEIGHT_UP, .rows = ROWS, .columns = COLUMNS};
    oct_dummy_init(&w, stored[k], FALSE, 7);
    guint32 pitch = k == 0 ? COLUMNS : 128; /* two chunks of 64 bytes */
    const oct_glue_dummy_codes call = {.key = w.dummy,
                                       .kind = k == 0   ? OCT_GLUE_E4M3
                                               : k == 1 ? OCT_GLUE_E2M1
                                                        : OCT_GLUE_INT4,
                                       .columns = COLUMNS,
                                       .rows = ROWS,
                                       .n = COLUMNS,
                                       .out = device_zeros(BYTES),
                                       .pitch = COLUMNS};
    device_check(oct_glue_make_codes(NULL, &call));
    guint8 got[BYTES];
    float row[COLUMNS];
    device_read(got, call.out, sizeof got);
    for (guint r = 0; r < ROWS; r++) {
      oct_weight_read(&w, r, 1, row);
      for (guint c = 0; c < COLUMNS; c++) {
        guint code = k == 0 ? got[r * pitch + c] : packed_code(got + r * pitch, k == 1, c);
        float value = k == 0   ? oct_float_from_e4m3((guint8)code)
                      : k == 1 ? (code & 8 ? -e2m1[code & 7] : e2m1[code])
                               : (float)code - 8;
        g_assert_cmpfloat_with_epsilon(value, value_of(&w, r, c, row),
                                       fabsf(value) * 1e-5f + 1e-9f);
      }
    }
  }
}

static void
test_sum(void) {
  static const gsize sizes[] = {1, 77, 70001};
  for (guint i = 0; i < 2 * G_N_ELEMENTS(sizes); i++) {
    if (device_queue(0) == NULL)
      return;
    oct_cuda_type type = i % 2 == 0 ? OCT_CUDA_F32 : OCT_CUDA_BF16;
    gsize n = sizes[i / 2];
    const void *x[3];
    g_autofree float *want = g_new0(float, n);
    for (guint r = 0; r < G_N_ELEMENTS(x); r++) {
      g_autofree float *some = data_normal(n, 1);
      x[r] = device_put(type, some, n);
      oct_ref_add(want, some, n);
    }
    void *out = device_room_of(type, n);
    device_check(oct_glue_sum(NULL, type, x, G_N_ELEMENTS(x), n, out));
    g_autofree float *got = device_get(type, out, n);
    device_expect("sum", got, want, n, type == OCT_CUDA_F32 ? 1e-6 : 4e-3);
  }
}

/* Two runs of rows, the mean after the second. */
static void
test_pool(void) {
  for (guint k = 0; k < 2; k++) {
    if (device_queue(0) == NULL)
      return;
    enum { FIRST = 5, N = 12, WIDTH = 333 };
    oct_cuda_type type = k == 0 ? OCT_CUDA_F32 : OCT_CUDA_BF16;
    g_autofree float *x = data_normal(N * WIDTH, 1);
    guint8 *d = device_put(type, x, N * WIDTH);
    oct_glue_pool call = {.type = type,
                          .x = d,
                          .n = FIRST,
                          .width = WIDTH,
                          .sum = device_room(WIDTH * sizeof(double)),
                          .begins = true};
    device_check(oct_glue_pool_rows(NULL, &call));
    call.x = d + FIRST * WIDTH * oct_cuda_type_bytes(type);
    call.n = N - FIRST;
    call.begins = false;
    call.count = N;
    call.out = device_room(WIDTH * sizeof(float));
    device_check(oct_glue_pool_rows(NULL, &call));
    float want[WIDTH];
    for (guint c = 0; c < WIDTH; c++) {
      double sum = 0;
      for (guint i = 0; i < N; i++)
        sum += x[i * WIDTH + c];
      want[c] = (float)(sum / N);
    }
    g_autofree float *got = device_get(OCT_CUDA_F32, call.out, WIDTH);
    device_expect("mean", got, want, WIDTH, 1e-7);
  }
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/cuda/glue/page-tables-change", test_tables);
  g_test_add_func("/cuda/glue/moves-bytes", test_move);
  g_test_add_func("/cuda/glue/counts-a-history", test_counts);
  g_test_add_func("/cuda/glue/makes-the-host's-numbers-up", test_dummy);
  g_test_add_func("/cuda/glue/makes-the-host's-codes-up", test_codes);
  g_test_add_func("/cuda/glue/sums-in-the-order-of-ranks", test_sum);
  g_test_add_func("/cuda/glue/means-of-runs-of-rows", test_pool);
  return g_test_run();
}
