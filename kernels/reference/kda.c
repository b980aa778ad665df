/* Kimi delta attention, token by token in its recurrent form. A prompt in chunks, and a decode, do
 * the same operations in the same order. */
#include "kernels/kernels.h"

#include <math.h>
#include <string.h>

#include "kernels/reference/vector.h"

#define NORM_EPS 1e-6f

static inline float
sigmoid(float x) {
  return 1 / (1 + expf(-x));
}

static inline float
softplus(float x) {
  return x > 20 ? x : log1pf(expf(x));
}

size_t
oct_ref_kda_state_floats(const oct_kda *kda) {
  size_t channels = (size_t)kda->n_heads * kda->width;
  return channels * kda->width + 3 * (size_t)(kda->taps - 1) * channels;
}

/* The short convolution of one head's channels and its SiLU; the inputs move on by one. */
static void
convolve(const oct_kda *kda, const float *taps, float *inputs, const float *x, uint32_t head,
         float *out) {
  size_t channels = (size_t)kda->n_heads * kda->width;
  for (uint32_t i = 0; i < kda->width; i++) {
    size_t c = (size_t)head * kda->width + i;
    float sum = 0;
    for (uint32_t t = 0; t + 1 < kda->taps; t++) {
      sum += taps[c * kda->taps + t] * inputs[t * channels + c];
      if (t > 0)
        inputs[(t - 1) * channels + c] = inputs[t * channels + c];
    }
    sum += taps[c * kda->taps + kda->taps - 1] * x[c];
    if (kda->taps > 1)
      inputs[(size_t)(kda->taps - 2) * channels + c] = x[c];
    out[i] = sum * sigmoid(sum);
  }
}

static void
normalise(float *x, uint32_t n, float scale) {
  float squares;
  oct_ref_dots(x, n, 1, x, n, 1, n, &squares, 1);
  float factor = scale / sqrtf(squares + NORM_EPS);
  for (uint32_t i = 0; i < n; i++)
    x[i] *= factor;
}

/* S decays per key channel, takes in beta (v - S'k) along k, and is read by q. */
static void
recur(const oct_kda *kda, float *s, const float *q, const float *k, float *v, const float *decay,
      float beta, float *out) {
  uint32_t width = kda->width;
  for (uint32_t d = 0; d < width; d++)
    for (uint32_t e = 0; e < width; e++)
      s[(size_t)d * width + e] *= decay[d];
  memset(out, 0, width * sizeof *out);
  oct_ref_combine(k, width, 1, s, width, width, width, out, width);
  for (uint32_t e = 0; e < width; e++)
    v[e] = beta * (v[e] - out[e]);
  for (uint32_t d = 0; d < width; d++)
    oct_ref_combine(&k[d], 1, 1, v, width, 1, width, s + (size_t)d * width, width);
  memset(out, 0, width * sizeof *out);
  oct_ref_combine(q, width, 1, s, width, width, width, out, width);
}

void
oct_ref_kda(const oct_kda *kda, float *state, const oct_kda_token *token, uint32_t first,
            uint32_t n, float *out, float *scratch) {
  uint32_t width = kda->width;
  size_t channels = (size_t)kda->n_heads * width, inputs = (kda->taps - 1) * channels;
  float *conv = state + channels * width;
  float *q = scratch, *k = q + width, *v = k + width, *decay = v + width;
  for (uint32_t h = first; h < first + n; h++) {
    convolve(kda, kda->q_conv, conv, token->q, h, q);
    convolve(kda, kda->k_conv, conv + inputs, token->k, h, k);
    convolve(kda, kda->v_conv, conv + 2 * inputs, token->v, h, v);
    normalise(q, width, 1 / sqrtf((float)width));
    normalise(k, width, 1);
    float a = expf(kda->a_log[h]);
    for (uint32_t d = 0; d < width; d++) {
      size_t c = (size_t)h * width + d;
      float z = token->z[c] + kda->dt_bias[c];
      float log_decay =
          kda->decay_bound == 0 ? -a * softplus(z) : kda->decay_bound * sigmoid(a * z);
      decay[d] = expf(log_decay);
    }
    recur(kda, state + (size_t)h * width * width, q, k, v, decay, sigmoid(token->beta[h]),
          out + (size_t)h * width);
  }
}

void
oct_ref_sigmoid_gate(float *x, const float *gate, size_t n) {
  for (size_t i = 0; i < n; i++)
    x[i] *= sigmoid(gate[i]);
}
