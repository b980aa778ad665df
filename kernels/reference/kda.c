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

/* sum over d of a[d] b[d] exp(later[d] - earlier[d]): exponents are at most 0. */
static float
decayed_dot(const float *a, const float *b, const float *later, const float *earlier, uint32_t n) {
  float sum = 0;
  for (uint32_t d = 0; d < n; d++)
    sum += a[d] * b[d] * expf(later[d] - earlier[d]);
  return sum;
}

/* out[e] += sum over d of a[d] exp(g[d]) s[d, e] */
static void
decayed_read(const float *a, const float *g, const float *s, uint32_t width, float *out) {
  for (uint32_t d = 0; d < width; d++) {
    float factor = a[d] * expf(g[d]);
    oct_ref_combine(&factor, 1, 1, s + (size_t)d * width, width, 1, width, out, width);
  }
}

/* With G the sums of log decays up to and with each token:
 *   U_i = beta_i (v_i - (k_i e^G_i) S) - sum over j < i of beta_i (k_i . k_j e^(G_i - G_j)) U_j,
 *   out_i = (q_i e^G_i) S + sum over j <= i of (q_i . k_j e^(G_i - G_j)) U_j,
 *   S = e^G_n S + sum over j of (k_j e^(G_n - G_j)) U_j. */
void
oct_ref_kda_chunk(const oct_kda_chunk *c, uint32_t width, float *s, float *out, float *scratch) {
  float *q = scratch, *k = q + (size_t)c->n * width, *u = k + (size_t)c->n * width;
  float *g = u + (size_t)c->n * width;
  for (uint32_t i = 0; i < c->n; i++) {
    size_t from = i * c->stride, at = (size_t)i * width;
    float beta = sigmoid(c->beta[i * c->beta_stride]), *o = out + from;
    normalise(c->first.q + from, width, 1 / sqrtf((float)width), q + at);
    normalise(c->first.k + from, width, 1, k + at);
    for (uint32_t d = 0; d < width; d++)
      g[at + d] = c->first.log_decay[from + d] + (i > 0 ? g[at - width + d] : 0);
    memset(o, 0, width * sizeof *o);
    decayed_read(k + at, g + at, s, width, o);
    for (uint32_t j = 0; j < i; j++) {
      size_t before = (size_t)j * width;
      float p = decayed_dot(k + at, k + before, g + at, g + before, width);
      oct_ref_combine(&p, 1, 1, u + before, width, 1, width, o, width);
    }
    for (uint32_t e = 0; e < width; e++)
      u[at + e] = beta * (c->first.v[from + e] - o[e]);
    memset(o, 0, width * sizeof *o);
    decayed_read(q + at, g + at, s, width, o);
    for (uint32_t j = 0; j <= i; j++) {
      size_t before = (size_t)j * width;
      float p = decayed_dot(q + at, k + before, g + at, g + before, width);
      oct_ref_combine(&p, 1, 1, u + before, width, 1, width, o, width);
    }
  }
  const float *last = g + (size_t)(c->n - 1) * width;
  for (uint32_t d = 0; d < width; d++) {
    float *row = s + (size_t)d * width, whole = expf(last[d]);
    for (uint32_t e = 0; e < width; e++)
      row[e] *= whole;
    for (uint32_t j = 0; j < c->n; j++) {
      float factor = k[(size_t)j * width + d] * expf(last[d] - g[(size_t)j * width + d]);
      oct_ref_combine(&factor, 1, 1, u + (size_t)j * width, width, 1, width, row, width);
    }
  }
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
