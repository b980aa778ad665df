#include "kernels/reference/blocks.h"

#include <stdbool.h>
#include <string.h>

#include "kernels/reference/targets.h"

/* Eight at a time: compilers turn eight bytes into eight numbers well, sixteen not always. */
#define GROUP 8

typedef float v8 __attribute__((vector_size(32)));
typedef int32_t i8x32 __attribute__((vector_size(32)));
typedef float v16 __attribute__((vector_size(64)));
typedef int32_t i16x32 __attribute__((vector_size(64)));
typedef uint8_t b16 __attribute__((vector_size(16)));
typedef uint8_t b16_memory __attribute__((vector_size(16), aligned(1), may_alias));
typedef uint8_t b8 __attribute__((vector_size(8)));
typedef uint8_t b8_memory __attribute__((vector_size(8), aligned(1), may_alias));

/* ---------------------------------------------------------------- parts of blocks */

/* A half-precision number that is none of the usual ones: subnormal, infinite, or not a number. */
static float
rare_half(uint32_t rest) {
  uint32_t bits = (rest << 13) | 0x7f800000;
  float value;
  if (rest < 0x0400)
    return (float)rest * 0x1p-24f;
  memcpy(&value, &bits, sizeof value);
  return value;
}

ALWAYS_INLINE float
half(const uint8_t *in) {
  uint16_t code;
  memcpy(&code, in, sizeof code);
  uint32_t rest = code & 0x7fff, bits = (rest << 13) + ((127 - 15) << 23);
  float value;
  memcpy(&value, &bits, sizeof value);
  if (__builtin_expect(rest - 0x0400 >= 0x7800, 0))
    value = rare_half(rest);
  return (code & 0x8000) != 0 ? -value : value;
}

ALWAYS_INLINE void
load_bytes(b8 *to, const uint8_t *from) {
  *to = *(const b8_memory *)from;
}

/* out[8] = step * (code + shift) + base: the product is exact, so fusing changes nothing. */
ALWAYS_INLINE void
put(float *out, const b8 *codes, int shift, float step, float base) {
  i8x32 wide = __builtin_convertvector(*codes, i8x32) + shift;
  v8 value = __builtin_convertvector(wide, v8) * step + base;
  memcpy(out, &value, sizeof value);
}

/* The same without a sum, which would turn -0 into 0. */
ALWAYS_INLINE void
put_product(float *out, const b8 *codes, int shift, float step) {
  i8x32 wide = __builtin_convertvector(*codes, i8x32) + shift;
  v8 value = __builtin_convertvector(wide, v8) * step;
  memcpy(out, &value, sizeof value);
}

/* ---------------------------------------------------------------- blocks of 32 */

/* Takes bits first … first + 7 of the word into the codes as their fifth bits. */
ALWAYS_INLINE void
add_fifth_bits(b8 *codes, const uint8_t *word, int first) {
  const b8 place = {1, 2, 4, 8, 16, 32, 64, 128};
  b8 bits = ((b8){0} + word[first / 8]) & place;
  *codes |= (b8)(bits != 0) & 16;
}

/* Lower halves of 16 bytes are weights 0 … 15, upper halves 16 … 31. */
ALWAYS_INLINE void
block_q4(const uint8_t *codes, const uint8_t *fifth, int shift, float step, const float *base,
         float *out) {
  UNROLL
  for (int i = 0; i < 32; i += GROUP) {
    b8 bytes;
    load_bytes(&bytes, codes + i % 16);
    bytes = i < 16 ? bytes & 15 : bytes >> 4;
    if (fifth != NULL)
      add_fifth_bits(&bytes, fifth, i);
    if (base != NULL)
      put(out + i, &bytes, shift, step, *base);
    else
      put_product(out + i, &bytes, shift, step);
  }
}

/* The same of four bits, for processors whose vectors have sixteen numbers. */
ALWAYS_INLINE void
block_q4_wide(const uint8_t *codes, int shift, float step, const float *base, float *out) {
  b16 bytes = *(const b16_memory *)codes;
  i16x32 low = __builtin_convertvector(bytes & 15, i16x32) + shift;
  i16x32 high = __builtin_convertvector(bytes >> 4, i16x32) + shift;
  v16 first = __builtin_convertvector(low, v16) * step;
  v16 second = __builtin_convertvector(high, v16) * step;
  if (base != NULL) {
    first += *base;
    second += *base;
  }
  memcpy(out, &first, sizeof first);
  memcpy(out + 16, &second, sizeof second);
}

ALWAYS_INLINE void
block_q8_0(const uint8_t *in, float *out) {
  float step = half(in);
  UNROLL
  for (int i = 0; i < 32; i += GROUP) {
    b8 bytes;
    load_bytes(&bytes, in + 2 + i);
    bytes ^= 128; /* signed to unsigned, 128 more */
    put_product(out + i, &bytes, -128, step);
  }
}

/* ---------------------------------------------------------------- blocks of 256 */

/* The 6-bit scale and minimum of sub-block j. */
ALWAYS_INLINE void
scale_and_minimum(const uint8_t *in, int j, float *scale, float *minimum) {
  if (j < 4) {
    *scale = (float)(in[j] & 63);
    *minimum = (float)(in[j + 4] & 63);
  } else {
    *scale = (float)((in[j + 4] & 15) | (in[j - 4] >> 6) << 4);
    *minimum = (float)((in[j + 4] >> 4) | (in[j] >> 6) << 4);
  }
}

ALWAYS_INLINE void
block_q4_q5_k(const uint8_t *in, const uint8_t *fifth, const uint8_t *codes, float *out) {
  float d = half(in), dmin = half(in + 2);
  for (int j = 0; j < 8; j++) {
    float scale, minimum;
    scale_and_minimum(in + 4, j, &scale, &minimum);
    float step = d * scale, base = -(dmin * minimum);
    UNROLL
    for (int i = 0; i < 32; i += GROUP) {
      b8 bytes, bits;
      load_bytes(&bytes, codes + j / 2 * 32 + i);
      bytes = j % 2 == 0 ? bytes & 15 : bytes >> 4;
      if (fifth != NULL) {
        load_bytes(&bits, fifth + i);
        bytes |= (bits >> j & 1) << 4;
      }
      put(out + j * 32 + i, &bytes, 0, step, base);
    }
  }
}

/* Of each half, quarter k: lower bits from the lower (k < 2) or upper halves of 32 or the next 32
 * bytes, upper bits from bits 2k of 32 bytes, a scale for each 16. */
ALWAYS_INLINE void
block_q6_k(const uint8_t *in, float *out) {
  float d = half(in + 208);
  for (int part = 0; part < 2; part++)
    for (int k = 0; k < 4; k++)
      UNROLL
  for (int i = 0; i < 32; i += GROUP) {
    b8 low, high;
    load_bytes(&low, in + part * 64 + k % 2 * 32 + i);
    load_bytes(&high, in + 128 + part * 32 + i);
    low = k < 2 ? low & 15 : low >> 4;
    low |= (high >> (2 * k) & 3) << 4;
    int8_t scale = (int8_t)in[192 + part * 8 + k * 2 + i / 16];
    put_product(out + part * 128 + k * 32 + i, &low, -32, d * (float)scale);
  }
}

/* ---------------------------------------------------------------- rows of blocks */

ALWAYS_INLINE void
expand_block(oct_block_format format, bool wide, const uint8_t *in, float *out) {
  float base;
  switch (format) {
  case OCT_BLOCK_Q4_0:
    if (wide)
      block_q4_wide(in + 2, -8, half(in), NULL, out);
    else
      block_q4(in + 2, NULL, -8, half(in), NULL, out);
    break;
  case OCT_BLOCK_Q4_1:
    base = half(in + 2);
    if (wide)
      block_q4_wide(in + 4, 0, half(in), &base, out);
    else
      block_q4(in + 4, NULL, 0, half(in), &base, out);
    break;
  case OCT_BLOCK_Q5_0:
    block_q4(in + 6, in + 2, -16, half(in), NULL, out);
    break;
  case OCT_BLOCK_Q5_1:
    base = half(in + 2);
    block_q4(in + 8, in + 4, 0, half(in), &base, out);
    break;
  case OCT_BLOCK_Q8_0:
    block_q8_0(in, out);
    break;
  case OCT_BLOCK_Q4_K:
    block_q4_q5_k(in, NULL, in + 16, out);
    break;
  case OCT_BLOCK_Q5_K:
    block_q4_q5_k(in, in + 16, in + 48, out);
    break;
  case OCT_BLOCK_Q6_K:
    block_q6_k(in, out);
    break;
  case OCT_BLOCK_FORMATS:
    break;
  }
}

static const struct {
  uint16_t weights, bytes;
} sizes[OCT_BLOCK_FORMATS] = {
    [OCT_BLOCK_Q4_0] = {32, 18},   [OCT_BLOCK_Q4_1] = {32, 20},   [OCT_BLOCK_Q5_0] = {32, 22},
    [OCT_BLOCK_Q5_1] = {32, 24},   [OCT_BLOCK_Q8_0] = {32, 34},   [OCT_BLOCK_Q4_K] = {256, 144},
    [OCT_BLOCK_Q5_K] = {256, 176}, [OCT_BLOCK_Q6_K] = {256, 210},
};

size_t
oct_ref_block_weights(oct_block_format format) {
  return sizes[format].weights;
}

size_t
oct_ref_block_bytes(oct_block_format format) {
  return sizes[format].bytes;
}

typedef void (*expander)(const uint8_t *blocks, size_t n, float *out);

/* A loop per format, in which the format is constant, for each kind of processor. */
#define EXPAND(kind, attribute, wide, name, format)                                                \
  attribute static void name##_##kind(const uint8_t *blocks, size_t n, float *out) {               \
    for (size_t i = 0; i < n; i++)                                                                 \
      expand_block(format, wide, blocks + i * sizes[format].bytes,                                 \
                   out + i * sizes[format].weights);                                               \
  }
#define EXPANDERS(kind, attribute, wide)                                                           \
  EXPAND(kind, attribute, wide, q4_0, OCT_BLOCK_Q4_0)                                              \
  EXPAND(kind, attribute, wide, q4_1, OCT_BLOCK_Q4_1)                                              \
  EXPAND(kind, attribute, wide, q5_0, OCT_BLOCK_Q5_0)                                              \
  EXPAND(kind, attribute, wide, q5_1, OCT_BLOCK_Q5_1)                                              \
  EXPAND(kind, attribute, wide, q8_0, OCT_BLOCK_Q8_0)                                              \
  EXPAND(kind, attribute, wide, q4_k, OCT_BLOCK_Q4_K)                                              \
  EXPAND(kind, attribute, wide, q5_k, OCT_BLOCK_Q5_K)                                              \
  EXPAND(kind, attribute, wide, q6_k, OCT_BLOCK_Q6_K)                                              \
  static const expander expanders_##kind[OCT_BLOCK_FORMATS] = {                                    \
      [OCT_BLOCK_Q4_0] = q4_0_##kind, [OCT_BLOCK_Q4_1] = q4_1_##kind,                              \
      [OCT_BLOCK_Q5_0] = q5_0_##kind, [OCT_BLOCK_Q5_1] = q5_1_##kind,                              \
      [OCT_BLOCK_Q8_0] = q8_0_##kind, [OCT_BLOCK_Q4_K] = q4_k_##kind,                              \
      [OCT_BLOCK_Q5_K] = q5_k_##kind, [OCT_BLOCK_Q6_K] = q6_k_##kind};

EXPANDERS(any, , false)
#ifdef __x86_64__
EXPANDERS(avx2, OCT_TARGET_AVX2, false)
EXPANDERS(avx512, OCT_TARGET_AVX512, true)
#endif

void
oct_ref_expand_blocks(oct_block_format format, const uint8_t *blocks, size_t n, float *out) {
  const expander *of = expanders_any;
#ifdef __x86_64__
  switch (oct_ref_target()) {
  case OCT_TARGET_IS_AVX512:
    of = expanders_avx512;
    break;
  case OCT_TARGET_IS_AVX2:
    of = expanders_avx2;
    break;
  case OCT_TARGET_IS_ANY:
    break;
  }
#endif
  of[format](blocks, n, out);
}
