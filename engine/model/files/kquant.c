/* GGUF's blocks of 256.
 *
 *   Q4_K  f16 d, f16 dmin, 12 bytes of 6-bit scales and minima, 128 bytes of codes
 *   Q5_K  the same with 32 bytes of fifth bits before the codes
 *   Q6_K  128 bytes of lower, 64 of upper bits, 16 signed scales, f16 d
 *
 * Products of scales and codes have at most 11 + 6 + 5 bits and are exact; Q6_K's have 11 + 8 + 6
 * and are rounded once, after the exact product of its scales. */
#include "engine/model/files/kquant.h"

#include "engine/model/files/floats.h"

#define SUBBLOCKS 8 /* of 32 elements */

/* The 6-bit scale and minimum of sub-block j: the first four stand in the lower six bits of bytes j
 * and j + 4; of the last four, the lower bits share byte j + 4 and the upper ones are the top bits
 * of bytes j - 4 and j. */
static void
scale_and_minimum(const guint8 *in, guint j, guint *scale, guint *minimum) {
  if (j < 4) {
    *scale = in[j] & 63;
    *minimum = in[j + 4] & 63;
  } else {
    *scale = (in[j + 4] & 15u) | (in[j - 4] >> 6) << 4;
    *minimum = (in[j + 4] >> 4) | (in[j] >> 6) << 4;
  }
}

/* Codes of sub-blocks 2p and 2p + 1 are the lower and upper halves of the same 32 bytes. `high` has
 * the fifth bits, bit j of each byte for sub-block j, or is NULL. */
static void
read_q4_q5(const guint8 *restrict in, const guint8 *restrict high, const guint8 *restrict codes,
           float *restrict out) {
  float d = oct_float_from_f16(oct_load_u16(in)), dmin = oct_float_from_f16(oct_load_u16(in + 2));
  for (guint j = 0; j < SUBBLOCKS; j++) {
    guint scale, minimum, shift = (j & 1) * 4;
    scale_and_minimum(in + 4, j, &scale, &minimum);
    float step = d * (float)scale, base = dmin * (float)minimum;
    const guint8 *q = codes + (j / 2) * 32;
    float *o = out + j * 32;
    if (high == NULL)
      for (guint i = 0; i < 32; i++)
        o[i] = step * (float)(q[i] >> shift & 15) - base;
    else
      for (guint i = 0; i < 32; i++)
        o[i] = step * (float)((q[i] >> shift & 15) | (high[i] >> j & 1) << 4) - base;
  }
}

void
oct_block_q4_k(const guint8 *restrict in, float *restrict out) {
  read_q4_q5(in, NULL, in + 16, out);
}

void
oct_block_q5_k(const guint8 *restrict in, float *restrict out) {
  read_q4_q5(in, in + 16, in + 48, out);
}

/* In each half of 128 elements, quarter k takes its lower bits from the lower (k < 2) or upper
 * halves of 32 bytes, and its upper two bits from bit pair k of 32 other bytes. */
void
oct_block_q6_k(const guint8 *restrict in, float *restrict out) {
  const guint8 *low = in, *high = in + 128;
  const gint8 *scales = (const gint8 *)in + 192;
  float d = oct_float_from_f16(oct_load_u16(in + 208));
  for (guint run = 0; run < 16; run++) { /* of 16 elements, which share a scale */
    guint half = run / 8, k = run / 2 % 4, start = run % 2 * 16;
    const guint8 *l = low + half * 64 + (k & 1) * 32 + start, *h = high + half * 32 + start;
    float step = d * (float)scales[run], *o = out + run * 16;
    for (guint i = 0; i < 16; i++) {
      gint bits = (l[i] >> (k / 2) * 4 & 15) | (h[i] >> k * 2 & 3) << 4;
      o[i] = step * (float)(bits - 32);
    }
  }
}
