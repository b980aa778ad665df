/* Narrow floats to float32 and back, one value at a time, by integer arithmetic: equal on every
 * machine, whatever its modes for subnormal numbers do to arithmetic on them. Conversions to a
 * narrow type round to nearest, ties to even. Private to the model files and their users.
 */
#ifndef OCT_MODEL_FILES_FLOATS_H
#define OCT_MODEL_FILES_FLOATS_H

#include <glib.h>
#include <string.h>

#define OCT_E4M3_MAX 448.0f
#define OCT_E2M1_MAX 6.0f

static inline float
oct_float_of_bits(guint32 bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static inline guint32
oct_bits_of_float(float value) {
  guint32 bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

static inline guint16
oct_load_u16(const guint8 *bytes) {
  guint16 value;
  memcpy(&value, bytes, sizeof value);
  return value;
}

static inline guint32
oct_load_u32(const guint8 *bytes) {
  guint32 value;
  memcpy(&value, bytes, sizeof value);
  return value;
}

/* --- to float32: exact, NaN stays NaN ------------------------------------------------------------
 */

static inline float
oct_float_from_bf16(guint16 code) {
  return oct_float_of_bits((guint32)code << 16);
}

/* a where the condition holds, else b: without a branch, so that loops over these conversions are
 * vectorised. */
static inline guint32
oct_bits_select(gboolean condition, guint32 a, guint32 b) {
  guint32 mask = 0u - (guint32)condition;
  return (a & mask) | (b & ~mask);
}

static inline float
oct_float_from_f16(guint16 code) {
  guint32 sign = (guint32)(code & 0x8000) << 16, rest = code & 0x7fff;
  guint32 subnormal = oct_bits_of_float((float)(gint32)rest * 0x1p-24f);
  /* Infinity and NaN have the largest exponent, which becomes float32's. */
  guint32 normal = (rest << 13) + oct_bits_select(rest >= 0x7c00, 224u << 23, 112u << 23);
  return oct_float_of_bits(oct_bits_select(rest < 0x0400, subnormal, normal) | sign);
}

static inline float
oct_float_from_e4m3(guint8 code) {
  guint32 sign = (guint32)(code & 0x80) << 24, rest = code & 0x7f;
  guint32 subnormal = oct_bits_of_float((float)(gint32)rest * 0x1p-9f);
  guint32 normal = oct_bits_select(rest == 0x7f, 0x7fc00000, (rest << 20) + (120u << 23));
  return oct_float_of_bits(oct_bits_select(rest < 0x08, subnormal, normal) | sign);
}

static inline float
oct_float_from_e5m2(guint8 code) {
  return oct_float_from_f16((guint16)(code << 8));
}

/* 2^(code - 127); 0xff is NaN. Code 0, 2^-127, is subnormal in float32. */
static inline float
oct_float_from_e8m0(guint8 code) {
  guint32 bits = oct_bits_select(code == 0, 0x00400000, (guint32)code << 23);
  return oct_float_of_bits(oct_bits_select(code == 0xff, 0x7fc00000, bits));
}

/* A 4-bit float of 1-2-1: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives. */
static inline float
oct_float_from_e2m1(guint code) {
  static const float values[16] = {0,     0.5f,  1,     1.5f,  2,  3,  4,  6,
                                   -0.0f, -0.5f, -1.0f, -1.5f, -2, -3, -4, -6};
  return values[code & 15];
}

/* --- from float32 --------------------------------------------------------------------------------
 */

static inline guint16
oct_bf16_from_float(float value) {
  guint32 bits = oct_bits_of_float(value);
  if ((bits & 0x7fffffff) > 0x7f800000)
    return (guint16)(bits >> 16 | 0x40);
  return (guint16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* Beyond 65504 and its rounding: infinity. */
static inline guint16
oct_f16_from_float(float value) {
  guint32 bits = oct_bits_of_float(value), sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;
  if (rest > 0x7f800000)
    return (guint16)(sign | 0x7e00);
  if (rest >= 0x47800000) /* 65536 */
    return (guint16)(sign | 0x7c00);
  if (rest < 0x33000000) /* below half of the smallest subnormal */
    return (guint16)sign;
  guint32 exponent = rest >> 23, mantissa = (rest & 0x7fffff) | 0x800000;
  guint32 shift = exponent >= 113 ? 13 : 126 - exponent; /* 2^-14 is the smallest normal */
  guint32 code = exponent >= 113 ? (rest >> 13) - (112u << 10) : mantissa >> shift;
  guint32 lost = mantissa & ((1u << shift) - 1), half = 1u << (shift - 1);
  code += lost > half || (lost == half && (code & 1) != 0);
  return (guint16)(sign | code);
}

/* Saturates at ±448; NaN is 0x7f or 0xff. */
static inline guint8
oct_e4m3_from_float(float value) {
  guint32 bits = oct_bits_of_float(value), sign = bits >> 24 & 0x80, rest = bits & 0x7fffffff;
  if (rest > 0x7f800000)
    return (guint8)(sign | 0x7f);
  if (rest >= 0x43e00000) /* 448 */
    return (guint8)(sign | 0x7e);
  if (rest < 0x3a800000) /* below half of the smallest subnormal, 2^-9 */
    return (guint8)sign;
  guint32 exponent = rest >> 23, mantissa = (rest & 0x7fffff) | 0x800000;
  guint32 shift = exponent >= 121 ? 20 : 141 - exponent; /* 2^-6 is the smallest normal */
  guint32 code = exponent >= 121 ? (rest >> 20) - (120u << 3) : mantissa >> shift;
  guint32 lost = mantissa & ((1u << shift) - 1), half = 1u << (shift - 1);
  code += lost > half || (lost == half && (code & 1) != 0);
  return (guint8)(sign | code);
}

/* Saturates at ±6; NaN gives 6. */
static inline guint
oct_e2m1_from_float(float value) {
  guint32 bits = oct_bits_of_float(value);
  float size = oct_float_of_bits(bits & 0x7fffffff);
  /* Each limit lies half-way between two values; the even code wins a tie. */
  guint code = (guint)(size > 0.25f) + (guint)(size >= 0.75f) + (guint)(size > 1.25f) +
               (guint)(size >= 1.75f) + (guint)(size > 2.5f) + (guint)(size >= 3.5f) +
               (guint)(size > 5);
  if (size != size)
    code = 7;
  return code | (bits >> 28 & 8);
}

#endif
