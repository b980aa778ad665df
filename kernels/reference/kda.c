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

void
oct_ref_short_conv(const float *weight, uint32_t taps, float *inputs, size_t stride, const float *x,
                   uint32_t n, float *out) {
  for (uint32_t c = 0; c < n; c++) {
    const float *w = weight + (size_t)c * taps;
    float sum = 0;
    for (uint32_t t = 0; t + 1 < taps; t++) {
      sum += w[t] * inputs[t * stride + c];
      if (t > 0)
        inputs[(t - 1) * stride + c] = inputs[t * stride + c];
    }
    sum += w[taps - 1] * x[c];
    if (taps > 1)
      inputs[(size_t)(taps - 2) * stride + c] = x[c];
    out[c] = sum * sigmoid(sum);
  }
}

static void
normalise(const float *x, uint32_t n, float scale, float *out) {
  float squares;
  oct_ref_dots(x, n, 1, x, n, 1, n, &squares, 1);
  float factor = scale / sqrtf(squares + NORM_EPS);
  for (uint32_t i = 0; i < n; i++)
    out[i] = x[i] * factor;
}

float
oct_ref_kda_log_decay(float decay_bound, float a_log, float z) {
  float a = expf(a_log);
  return decay_bound == 0 ? -a * softplus(z) : decay_bound * sigmoid(a * z);
}

/* S decays per key channel, takes in beta (v - S'k) along k, and is read by q. */
void
oct_ref_kda_recur(const oct_kda_head *head, uint32_t width, float *s, float *out, float *scratch) {
  float *q = scratch, *k = q + width, *u = k + width, *decay = u + width,
        beta = sigmoid(head->beta);
  normalise(head->q, width, 1 / sqrtf((float)width), q);
  normalise(head->k, width, 1, k);
  for (uint32_t d = 0; d < width; d++)
    decay[d] = expf(head->log_decay[d]);
  for (uint32_t d = 0; d < width; d++)
    for (uint32_t e = 0; e < width; e++)
      s[(size_t)d * width + e] *= decay[d];
  memset(out, 0, width * sizeof *out);
  oct_ref_combine(k, width, 1, s, width, width, width, out, width);
  for (uint32_t e = 0; e < width; e++)
    u[e] = beta * (head->v[e] - out[e]);
  for (uint32_t d = 0; d < width; d++)
    oct_ref_combine(&k[d], 1, 1, u, width, 1, width, s + (size_t)d * width, width);
  memset(out, 0, width * sizeof *out);
  oct_ref_combine(q, width, 1, s, width, width, width, out, width);
}

void
oct_ref_kda(const oct_kda *kda, float *state, const oct_kda_token *token, uint32_t first,
            uint32_t n, float *out, float *scratch) {
  uint32_t width = kda->width, taps = kda->taps;
  size_t channels = (size_t)kda->n_heads * width, inputs = (taps - 1) * channels;
  float *conv = state + channels * width;
  float *q = scratch + 4 * width, *k = q + width, *v = k + width, *decay = v + width;
  for (uint32_t h = first; h < first + n; h++) {
    size_t at = (size_t)h * width, tap = at * taps;
    oct_ref_short_conv(kda->q_conv + tap, taps, conv + at, channels, token->q + at, width, q);
    oct_ref_short_conv(kda->k_conv + tap, taps, conv + inputs + at, channels, token->k + at, width,
                       k);
    oct_ref_short_conv(kda->v_conv + tap, taps, conv + 2 * inputs + at, channels, token->v + at,
                       width, v);
    for (uint32_t d = 0; d < width; d++)
      decay[d] = oct_ref_kda_log_decay(kda->decay_bound, kda->a_log[h],
                                       token->z[at + d] + kda->dt_bias[at + d]);
    const oct_kda_head head = {q, k, v, decay, token->beta[h]};
    oct_ref_kda_recur(&head, width, state + at * width, out + at, scratch);
  }
}

void
oct_ref_sigmoid_gate(float *x, const float *gate, size_t n) {
  for (size_t i = 0; i < n; i++)
    x[i] *= sigmoid(gate[i]);
}
