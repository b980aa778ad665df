#include "kernels/reference/vector.h"

#include "kernels/reference/targets.h"

typedef float v16 __attribute__((vector_size(64)));
typedef float v8 __attribute__((vector_size(32)));
typedef float v4 __attribute__((vector_size(16)));
typedef float v16_memory __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint32_t u16x32 __attribute__((vector_size(64)));
typedef uint16_t h16_memory __attribute__((vector_size(32), aligned(2), may_alias));

#define ALWAYS_INLINE             static inline __attribute__((always_inline))
#define SHUFFLE(a, b, i, j, k, l) __builtin_shufflevector(a, b, i, j, k, l)

/* The fixed tree over the lanes: a lane takes on the one half the lanes away, until one is left.
 * Down to four lanes by whole vectors. */
ALWAYS_INLINE void
reduce_to_four(const v16 *sum, v4 *out) {
  union {
    v16 whole;
    v8 half[2];
  } a = {*sum};
  union {
    v8 whole;
    v4 half[2];
  } b = {a.half[0] + a.half[1]};
  *out = b.half[0] + b.half[1];
}

ALWAYS_INLINE float
reduce(const v16 *sum) {
  v4 a;
  reduce_to_four(sum, &a);
  return (a[0] + a[2]) + (a[1] + a[3]);
}

/* The same of four sums at once. */
ALWAYS_INLINE void
reduce_four(const v16 *sums, float *out) {
  v4 a, b, c, d;
  reduce_to_four(&sums[0], &a);
  reduce_to_four(&sums[1], &b);
  reduce_to_four(&sums[2], &c);
  reduce_to_four(&sums[3], &d);
  v4 ab = SHUFFLE(a, b, 0, 1, 4, 5) + SHUFFLE(a, b, 2, 3, 6, 7);
  v4 cd = SHUFFLE(c, d, 0, 1, 4, 5) + SHUFFLE(c, d, 2, 3, 6, 7);
  v4 all = SHUFFLE(ab, cd, 0, 2, 4, 6) + SHUFFLE(ab, cd, 1, 3, 5, 7);
  memcpy(out, &all, sizeof all);
}

/* Reads `n` < 16 elements, zeros after them. */
ALWAYS_INLINE void
load_tail(v16 *to, const float *from, size_t n) {
  float a[OCT_LANES] = {0};
  memcpy(a, from, n * sizeof *a);
  memcpy(to, a, sizeof a);
}

/* A tile of mr x nr dot products, constants where it is called: rows of x and of w in registers. */
ALWAYS_INLINE void
tile(const float *x, size_t xs, const int mr, const float *w, size_t ws, const int nr, uint32_t k,
     float *y, size_t ys) {
  v16 sum[4][4], right[4];
  UNROLL
  for (int i = 0; i < mr; i++) {
    UNROLL
    for (int j = 0; j < nr; j++)
      sum[i][j] = (v16){0};
  }
  uint32_t c = 0;
  for (; c + OCT_LANES <= k; c += OCT_LANES) {
    UNROLL
    for (int j = 0; j < nr; j++)
      right[j] = *(const v16_memory *)(w + (size_t)j * ws + c);
    UNROLL
    for (int i = 0; i < mr; i++) {
      v16 left = *(const v16_memory *)(x + (size_t)i * xs + c);
      UNROLL
      for (int j = 0; j < nr; j++)
        sum[i][j] += left * right[j];
    }
  }
  if (c < k) {
    UNROLL
    for (int j = 0; j < nr; j++)
      load_tail(&right[j], w + (size_t)j * ws + c, k - c);
    UNROLL
    for (int i = 0; i < mr; i++) {
      v16 left;
      load_tail(&left, x + (size_t)i * xs + c, k - c);
      UNROLL
      for (int j = 0; j < nr; j++)
        sum[i][j] += left * right[j];
    }
  }
  UNROLL
  for (int i = 0; i < mr; i++) {
    if (nr == 4) {
      reduce_four(sum[i], y + (size_t)i * ys);
      continue;
    }
    UNROLL
    for (int j = 0; j < nr; j++)
      y[(size_t)i * ys + (size_t)j] = reduce(&sum[i][j]);
  }
}

/* All of y in tiles of mr x nr, and what is left over in smaller ones. */
ALWAYS_INLINE void
dots(const float *x, size_t xs, uint32_t m, const float *w, size_t ws, uint32_t n, uint32_t k,
     float *y, size_t ys, const int mr, const int nr) {
  uint32_t i = 0;
  for (; i + (uint32_t)mr <= m; i += (uint32_t)mr) {
    uint32_t j = 0;
    for (; j + (uint32_t)nr <= n; j += (uint32_t)nr)
      tile(x + i * xs, xs, mr, w + j * ws, ws, nr, k, y + i * ys + j, ys);
    for (; j < n; j++)
      tile(x + i * xs, xs, mr, w + j * ws, ws, 1, k, y + i * ys + j, ys);
  }
  for (; i < m; i++) {
    uint32_t j = 0;
    for (; j + 4 <= n; j += 4)
      tile(x + i * xs, xs, 1, w + j * ws, ws, 4, k, y + i * ys + j, ys);
    for (; j < n; j++)
      tile(x + i * xs, xs, 1, w + j * ws, ws, 1, k, y + i * ys + j, ys);
  }
}

/* blocks x 16 columns of one row of y, which stay in registers over all rows. */
ALWAYS_INLINE void
combine_columns(const float *p, const float *rows, size_t row_stride, uint32_t n, const int blocks,
                float *y) {
  v16 sum[4];
  UNROLL
  for (int b = 0; b < blocks; b++)
    sum[b] = *(const v16_memory *)(y + OCT_LANES * b);
  for (uint32_t j = 0; j < n; j++) {
    const float *row = rows + j * row_stride;
    v16 factor = (v16){0} + p[j];
    UNROLL
    for (int b = 0; b < blocks; b++)
      sum[b] += factor * *(const v16_memory *)(row + OCT_LANES * b);
  }
  UNROLL
  for (int b = 0; b < blocks; b++)
    *(v16_memory *)(y + OCT_LANES * b) = sum[b];
}

ALWAYS_INLINE void
combine_tail(const float *p, const float *rows, size_t row_stride, uint32_t n, size_t width,
             float *y) {
  v16 sum, part;
  float a[OCT_LANES];
  load_tail(&sum, y, width);
  for (uint32_t j = 0; j < n; j++) {
    v16 factor = (v16){0} + p[j];
    load_tail(&part, rows + j * row_stride, width);
    sum += factor * part;
  }
  memcpy(a, &sum, sizeof a);
  memcpy(y, a, width * sizeof *a);
}

ALWAYS_INLINE void
combine(const float *p, size_t ps, uint32_t m, const float *rows, size_t row_stride, uint32_t n,
        uint32_t width, float *y, size_t ys) {
  for (uint32_t i = 0; i < m; i++) {
    uint32_t c = 0;
    for (; c + 4 * OCT_LANES <= width; c += 4 * OCT_LANES)
      combine_columns(p + i * ps, rows + c, row_stride, n, 4, y + i * ys + c);
    for (; c + OCT_LANES <= width; c += OCT_LANES)
      combine_columns(p + i * ps, rows + c, row_stride, n, 1, y + i * ys + c);
    if (c < width)
      combine_tail(p + i * ps, rows + c, row_stride, n, width - c, y + i * ys + c);
  }
}

ALWAYS_INLINE void
expand_bf16(const uint16_t *codes, size_t n, float *out) {
  size_t i = 0;
  for (; i + OCT_LANES <= n; i += OCT_LANES) {
    u16x32 wide = __builtin_convertvector(*(const h16_memory *)(codes + i), u16x32) << 16;
    memcpy(out + i, &wide, sizeof wide);
  }
  for (; i < n; i++)
    out[i] = oct_ref_from_bf16(codes[i]);
}

/* ---------------------------------------------------------------- one of each per processor */

typedef struct vector_ops {
  void (*dots)(const float *x, size_t xs, uint32_t m, const float *w, size_t ws, uint32_t n,
               uint32_t k, float *y, size_t ys);
  void (*combine)(const float *p, size_t ps, uint32_t m, const float *rows, size_t row_stride,
                  uint32_t n, uint32_t width, float *y, size_t ys);
  void (*expand_bf16)(const uint16_t *codes, size_t n, float *out);
} vector_ops;

/* Tiles of mr x nr accumulators and a few operands must fit in the registers. */
#define VECTOR_OPS(kind, attribute, mr, nr)                                                        \
  attribute static void dots_##kind(const float *x, size_t xs, uint32_t m, const float *w,         \
                                    size_t ws, uint32_t n, uint32_t k, float *y, size_t ys) {      \
    dots(x, xs, m, w, ws, n, k, y, ys, mr, nr);                                                    \
  }                                                                                                \
  attribute static void combine_##kind(const float *p, size_t ps, uint32_t m, const float *rows,   \
                                       size_t row_stride, uint32_t n, uint32_t width, float *y,    \
                                       size_t ys) {                                                \
    combine(p, ps, m, rows, row_stride, n, width, y, ys);                                          \
  }                                                                                                \
  attribute static void expand_bf16_##kind(const uint16_t *codes, size_t n, float *out) {          \
    expand_bf16(codes, n, out);                                                                    \
  }                                                                                                \
  static const vector_ops ops_##kind = {dots_##kind, combine_##kind, expand_bf16_##kind};

VECTOR_OPS(any, , 1, 2)

#ifdef __x86_64__
VECTOR_OPS(avx2, OCT_TARGET_AVX2, 2, 2)
VECTOR_OPS(avx512, OCT_TARGET_AVX512, 4, 4)

static const vector_ops *
ops(void) {
  static const vector_ops *const all[] = {[OCT_TARGET_IS_ANY] = &ops_any,
                                          [OCT_TARGET_IS_AVX2] = &ops_avx2,
                                          [OCT_TARGET_IS_AVX512] = &ops_avx512};
  return all[oct_ref_target()];
}
#else
static const vector_ops *
ops(void) {
  return &ops_any;
}
#endif

void
oct_ref_dots(const float *x, size_t xs, uint32_t m, const float *w, size_t ws, uint32_t n,
             uint32_t k, float *y, size_t ys) {
  ops()->dots(x, xs, m, w, ws, n, k, y, ys);
}

void
oct_ref_combine(const float *p, size_t ps, uint32_t m, const float *rows, size_t row_stride,
                uint32_t n, uint32_t width, float *y, size_t ys) {
  ops()->combine(p, ps, m, rows, row_stride, n, width, y, ys);
}

void
oct_ref_expand_bf16(const uint16_t *codes, size_t n, float *out) {
  ops()->expand_bf16(codes, n, out);
}
