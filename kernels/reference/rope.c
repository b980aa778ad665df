/* Rotary positions. Frequencies, and the product of position and frequency, are rounded to float32
 * as in the code that the checkpoints are published with, so that long contexts see the angles that
 * the models were trained on; cosines and sines of that product are exact to float32. */
#include "kernels/kernels.h"

#include <math.h>

#define TWO_PI 6.283185307179586

double
oct_ref_yarn_mscale(double scale, double mscale) {
  return scale <= 1 ? 1 : 0.1 * mscale * log(scale) + 1;
}

/* The pair whose wavelength fits `rotations` times into the original context. */
static double
yarn_pair(const oct_rope *rope, double rotations) {
  return rope->dim * log(rope->original_positions / (rotations * TWO_PI)) / (2 * log(rope->theta));
}

/* Share of extrapolation of each pair: 1 below `low`, 0 above `high`. */
static void
yarn_ramp(const oct_rope *rope, double *low, double *high) {
  *low = yarn_pair(rope, rope->beta_fast);
  *high = yarn_pair(rope, rope->beta_slow);
  if (rope->truncate) {
    *low = floor(*low);
    *high = ceil(*high);
  }
  *low = fmax(*low, 0);
  *high = fmin(*high, rope->dim - 1);
  if (*low == *high)
    *high += 0.001;
}

static double
llama3_frequency(const oct_rope *rope, double frequency) {
  double turns = rope->original_positions * frequency / TWO_PI;
  if (turns < rope->low_freq_factor)
    return frequency / rope->factor;
  if (turns > rope->high_freq_factor)
    return frequency;
  double smooth =
      (turns - rope->low_freq_factor) / (rope->high_freq_factor - rope->low_freq_factor);
  return (1 - smooth) * frequency / rope->factor + smooth * frequency;
}

void
oct_ref_rope_frequencies(const oct_rope *rope, float *out) {
  double low = 0, high = 1;
  if (rope->kind == OCT_ROPE_YARN)
    yarn_ramp(rope, &low, &high);
  for (uint32_t i = 0; i < rope->dim / 2; i++) {
    double frequency = pow(rope->theta, -2.0 * i / rope->dim);
    switch (rope->kind) {
    case OCT_ROPE_PLAIN:
      break;
    case OCT_ROPE_LINEAR:
      frequency /= rope->factor;
      break;
    case OCT_ROPE_LLAMA3:
      frequency = llama3_frequency(rope, frequency);
      break;
    case OCT_ROPE_YARN: {
      double interpolated = fmin(fmax((i - low) / (high - low), 0), 1);
      frequency = frequency / rope->factor * interpolated + frequency * (1 - interpolated);
      break;
    }
    }
    out[i] = (float)frequency;
  }
}

void
oct_ref_rope_angles(const oct_rope *rope, const float *frequencies, uint32_t position, float *out) {
  double factor = rope->kind == OCT_ROPE_YARN ? rope->attention_factor : 1;
  uint32_t half = rope->dim / 2;
  for (uint32_t i = 0; i < half; i++) {
    float angle = (float)position * frequencies[i];
    out[i] = (float)(cos(angle) * factor);
    out[half + i] = (float)(sin(angle) * factor);
  }
}

void
oct_ref_rope(const oct_rope *rope, const float *angles, uint32_t n, size_t stride, float *heads) {
  uint32_t half = rope->dim / 2;
  uint32_t step = rope->interleaved ? 2 : 1, other = rope->interleaved ? 1 : half;
  for (uint32_t h = 0; h < n; h++, heads += stride)
    for (uint32_t i = 0; i < half; i++) {
      float *a = heads + i * step, *b = a + other;
      float cosine = angles[i], sine = angles[half + i], x = *a, y = *b;
      *a = x * cosine - y * sine;
      *b = y * cosine + x * sine;
    }
}
