/* float32 to stored weights, as `octet convert` writes them: round to nearest, one function per
 * format. Pure functions; the inputs must be finite (the caller checks). Any thread.
 */
#ifndef OCT_MODEL_FILES_QUANTISE_H
#define OCT_MODEL_FILES_QUANTISE_H

#include <glib.h>

/* --- FP8 e4m3 ------------------------------------------------------------------------------------
 * A value is read back with an error of at most scale x max(2^-10, |value / scale| x 2^-4). */

/* The scale that makes the largest of n values 448: 1 for all zeros. Take the largest of several
 * runs' for a tensor. */
float oct_quant_fp8_scale(const float *values, gsize n);
void oct_quant_fp8(const float *values, float scale, gsize n, guint8 *codes);
/* One band of up to 128 rows of [n_rows, columns]: codes likewise, scales[ceil(columns / 128)]. */
void oct_quant_fp8_band(const float *values, gsize n_rows, gsize columns, guint8 *codes,
                        float *scales);

/* --- MXFP4 ---------------------------------------------------------------------------------------
 * n even; codes[n / 2], lower half first; scales[ceil(n / 32)]. Of the exponent that the OCP
 * specification names (the largest value falls into [4, 8) and is cut at 6) and the next one, each
 * block takes the one with the smaller squared error. An error is at most a quarter of the block's
 * largest value, and at most half a step where nothing is cut. */
void oct_quant_mxfp4(const float *values, gsize n, guint8 *codes, guint8 *scales);

/* --- AWQ's 4-bit integers ------------------------------------------------------------------------
 * `importance` (may be NULL) says for each input of a group or row what a squared error there
 * costs; a group's range is then shrunk, down to 0.7 of what its values need, to where the sum
 * costs least, and values outside of it are cut. Without it a group has its whole range, and an
 * error is at most half of the group's scale, and a little more at the ends of its range where
 * float16 rounds the scale down. */

/* Rows first_row … first_row + 7 (a multiple of 8) of a [rows, columns] weight: values[8, columns].
 * Writes their words of codes [columns, rows / 8], zeros [columns / group, rows / 8] and float16
 * scales [columns / group, rows]. Zero is always representable. */
void oct_quant_awq(const float *values, const float *importance, guint64 first_row, guint64 rows,
                   guint64 columns, guint64 group, guint32 *codes, guint32 *zeros, guint16 *scales);
/* What a group of n values costs with its whole range. */
double oct_quant_awq_cost(const float *values, const float *importance, guint64 n);

#endif
