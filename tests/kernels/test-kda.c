/* Delta attention against float64, with the convolution written as a sum over the whole sequence;
 * and the division of heads among callers. */
#include <math.h>
#include <string.h>

#include "tests/kernels/data.h"

typedef struct layer {
  oct_kda kda;
  guint32 channels, tokens;
  float *q_conv, *k_conv, *v_conv, *a_log, *dt_bias;
  float *q, *k, *v, *z, *beta; /* [tokens, channels], beta [tokens, heads] */
} layer;

static void
layer_init(layer *l, float decay_bound) {
  /* Queries and keys are divided by their length, which magnifies the rounding of one that is all
   * but zero, as one of few channels may be. */
  guint32 heads = data_between(1, 4), width = data_between(5, 21), taps = data_between(1, 5);
  l->channels = heads * width;
  l->tokens = data_between(1, 30);
  gsize n = (gsize)l->tokens * l->channels;
  l->q_conv = data_normal((gsize)l->channels * taps, 1);
  l->k_conv = data_normal((gsize)l->channels * taps, 1);
  l->v_conv = data_normal((gsize)l->channels * taps, 1);
  l->a_log = data_normal(heads, 0.5);
  l->dt_bias = data_normal(l->channels, 1);
  l->q = data_normal(n, 1);
  l->k = data_normal(n, 1);
  l->v = data_normal(n, 1);
  l->z = data_normal(n, 1);
  l->beta = data_normal((gsize)l->tokens * heads, 1);
  l->kda = (oct_kda){.n_heads = heads,
                     .width = width,
                     .taps = taps,
                     .q_conv = l->q_conv,
                     .k_conv = l->k_conv,
                     .v_conv = l->v_conv,
                     .a_log = l->a_log,
                     .dt_bias = l->dt_bias,
                     .decay_bound = decay_bound};
}

static void
layer_clear(layer *l) {
  float *all[] = {l->q_conv, l->k_conv, l->v_conv, l->a_log, l->dt_bias,
                  l->q,      l->k,      l->v,      l->z,     l->beta};
  for (gsize i = 0; i < G_N_ELEMENTS(all); i++)
    g_free(all[i]);
}

/* Outputs [tokens, channels]; heads [0, cut) by one call and the rest by another. */
static float *
run(const layer *l, guint32 cut) {
  const oct_kda *k = &l->kda;
  float *out = g_new0(float, (gsize)l->tokens * l->channels);
  g_autofree float *state = g_new0(float, oct_ref_kda_state_floats(k));
  g_autofree float *scratch = g_new(float, 8 * k->width);
  for (guint32 t = 0; t < l->tokens; t++) {
    gsize at = (gsize)t * l->channels;
    oct_kda_token token = {l->q + at, l->k + at, l->v + at, l->z + at,
                           l->beta + (gsize)t * k->n_heads};
    oct_ref_kda(k, state, &token, cut, k->n_heads - cut, out + at, scratch);
    oct_ref_kda(k, state, &token, 0, cut, out + at, scratch);
  }
  return out;
}

/* Channel c of token t after convolution and SiLU. */
static double
convolved(const layer *l, const float *taps, const float *x, guint32 t, guint32 c) {
  double sum = 0;
  guint32 n = l->kda.taps;
  for (guint32 back = 0; back < n && back <= t; back++)
    sum += (double)taps[c * n + n - 1 - back] * x[(gsize)(t - back) * l->channels + c];
  return sum / (1 + exp(-sum));
}

static void
exact_head(const layer *l, guint32 h, double *out) {
  guint32 w = l->kda.width;
  g_autofree double *s = g_new0(double, w *w), *q = g_new(double, w), *k = g_new(double, w);
  for (guint32 t = 0; t < l->tokens; t++) {
    double qq = 1e-6, kk = 1e-6;
    for (guint32 d = 0; d < w; d++) {
      q[d] = convolved(l, l->q_conv, l->q, t, h * w + d);
      k[d] = convolved(l, l->k_conv, l->k, t, h * w + d);
      qq += q[d] * q[d];
      kk += k[d] * k[d];
    }
    for (guint32 d = 0; d < w; d++) {
      gsize c = h * w + d;
      double z = (double)l->z[(gsize)t * l->channels + c] + l->dt_bias[c];
      double a = exp(l->a_log[h]), bound = l->kda.decay_bound;
      double decay = exp(bound == 0 ? -a * log1p(exp(z)) : bound / (1 + exp(-a * z)));
      q[d] /= sqrt(qq * w);
      k[d] /= sqrt(kk);
      for (guint32 e = 0; e < w; e++)
        s[d * w + e] *= decay;
    }
    double beta = 1 / (1 + exp(-(double)l->beta[(gsize)t * l->kda.n_heads + h]));
    for (guint32 e = 0; e < w; e++) {
      double seen = 0, sum = 0;
      for (guint32 d = 0; d < w; d++)
        seen += s[d * w + e] * k[d];
      double u = beta * (convolved(l, l->v_conv, l->v, t, h * w + e) - seen);
      for (guint32 d = 0; d < w; d++) {
        s[d * w + e] += k[d] * u;
        sum += s[d * w + e] * q[d];
      }
      out[(gsize)t * l->channels + h * w + e] = sum;
    }
  }
}

static void
recurrence(void) {
  for (int round = 0; round < 12; round++) {
    layer l;
    layer_init(&l, round % 2 == 0 ? 0 : -5);
    g_autofree double *exact = g_new0(double, (gsize)l.tokens *l.channels);
    for (guint32 h = 0; h < l.kda.n_heads; h++)
      exact_head(&l, h, exact);
    g_autofree float *whole = run(&l, 0), *parts = run(&l, data_between(0, l.kda.n_heads));
    gsize n = (gsize)l.tokens * l.channels;
    /* What is typical was read off: half of the layers have more. */
    data_expect(round % 2 == 0 ? "softplus decay" : "bounded decay", whole, exact, n, 0.06, 2e-6);
    g_assert_cmpmem(whole, n * sizeof *whole, parts, n * sizeof *parts);
    layer_clear(&l);
  }
}

static void
gates(void) {
  guint32 n = data_between(1, 99);
  g_autofree float *x = data_normal(n, 1), *gate = data_normal(n, 3);
  g_autofree double *exact = g_new(double, n);
  for (guint32 i = 0; i < n; i++)
    exact[i] = x[i] / (1 + exp(-(double)gate[i]));
  oct_ref_sigmoid_gate(x, gate, n);
  data_expect("sigmoid gate", x, exact, n, 0, 1e-6);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/kernels/kda/recurrence", recurrence);
  g_test_add_func("/kernels/kda/gates", gates);
  return g_test_run();
}
