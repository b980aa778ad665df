/* Sums of 16 lanes: the one way in which the reference operators add products up. Private to
 * kernels/reference.
 *
 * A dot product of k elements is 16 partial sums, lane l of the elements l, l + 16, …, the last
 * vector filled up with zeros, then a fixed tree over the lanes. However many rows a tile holds, an
 * element of the result is computed by the same operations, so results do not depend on the batch.
 * Vectors of 16 floats are one register with AVX-512, two with AVX2, four with SSE; each function
 * of oct_ref_vector_ops exists for each of the three.
 */
#ifndef OCT_KERNELS_REFERENCE_VECTOR_H
#define OCT_KERNELS_REFERENCE_VECTOR_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define OCT_LANES 16

/* y[i * y_stride + j] = x_i . w_j for m rows of x and n rows of w, k elements each. */
void oct_ref_dots(const float *x, size_t x_stride, uint32_t m, const float *w, size_t w_stride,
                  uint32_t n, uint32_t k, float *y, size_t y_stride);

/* y[i, c] += sum over j of p[i * p_stride + j] rows[j, c], in the order of j, for c < width. */
void oct_ref_combine(const float *p, size_t p_stride, uint32_t m, const float *rows,
                     size_t row_stride, uint32_t n, uint32_t width, float *y, size_t y_stride);

static inline float
oct_ref_from_bf16(uint16_t code) {
  uint32_t bits = (uint32_t)code << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

/* Rounds to nearest, ties to even. NaN stays NaN. */
static inline uint16_t
oct_ref_to_bf16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7fffffff) > 0x7f800000)
    return (uint16_t)(bits >> 16 | 0x40);
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* n codes. */
void oct_ref_expand_bf16(const uint16_t *codes, size_t n, float *out);

#endif
