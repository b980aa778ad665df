/* Paged attention against float64 over plain arrays; and that pages do not matter. */
#include <math.h>
#include <string.h>

#include "kernels/reference/vector.h"
#include "tests/kernels/data.h"

/* A cache of `tokens` tokens in pages of `page_tokens`, in a pool with other layers and pages
 * between. k and v are [tokens, heads, width], as stored. */
typedef struct cache {
  oct_kv_layer layer;
  guint32 *pages;
  guint8 *pool;
  float *k, *v;
  guint32 tokens;
} cache;

static void
store_all(cache *c) {
  const oct_kv_layer *l = &c->layer;
  for (guint32 t = 0; t < c->tokens; t++) {
    gsize at = (gsize)t * l->n_heads * l->width;
    oct_ref_kv_store(l, c->pages, t, c->k + at, c->v != NULL ? c->v + at : NULL);
  }
}

static void
cache_init(cache *c, oct_kv_format format, guint32 page_tokens, guint32 heads, guint32 width,
           guint32 tokens, gboolean has_values) {
  guint32 n = (tokens + page_tokens - 1) / page_tokens, n_pages = n + 3;
  c->tokens = tokens;
  c->layer = (oct_kv_layer){.format = format,
                            .page_tokens = page_tokens,
                            .n_heads = heads,
                            .width = width,
                            .has_values = has_values};
  gsize bytes = oct_ref_kv_page_bytes(&c->layer);
  c->layer.page_stride = 3 * bytes; /* this layer is the second of three */
  c->pool = g_malloc(n_pages * c->layer.page_stride);
  memset(c->pool, 0x7f, n_pages * c->layer.page_stride); /* what is not stored is huge or NaN */
  c->layer.base = c->pool + bytes;
  c->pages = data_pages(n, n_pages);
  gsize count = (gsize)tokens * heads * width;
  c->k = data_normal(count, 1);
  c->v = has_values ? data_normal(count, 1) : NULL;
  for (gsize i = 0; format == OCT_KV_BF16 && i < count; i++) {
    c->k[i] = oct_ref_from_bf16(oct_ref_to_bf16(c->k[i]));
    if (has_values)
      c->v[i] = oct_ref_from_bf16(oct_ref_to_bf16(c->v[i]));
  }
  store_all(c);
}

static void
cache_clear(cache *c) {
  g_free(c->pages);
  g_free(c->pool);
  g_free(c->k);
  g_free(c->v);
}

/* Softmax of n scores, with a sink or without. */
static void
exact_softmax(double *s, guint32 n, const float *sink) {
  double top = sink != NULL ? *sink : -INFINITY, sum = 0;
  for (guint32 i = 0; i < n; i++)
    top = MAX(top, s[i]);
  if (sink != NULL)
    sum = exp(*sink - top);
  for (guint32 i = 0; i < n; i++)
    sum += exp(s[i] - top);
  for (guint32 i = 0; i < n; i++)
    s[i] = exp(s[i] - top) / sum;
}

static double *
exact_attention(const oct_attention *a, const cache *c, guint32 position, const float *q) {
  guint32 width = a->kv.width, group = a->n_heads / a->kv.n_heads;
  double *out = g_new0(double, (gsize)a->n_heads *width);
  g_autofree double *s = g_new(double, position + 1);
  for (guint32 h = 0; h < a->n_heads; h++) {
    guint32 begin = a->window > 0 && position + 1 > a->window ? position + 1 - a->window : 0;
    guint32 kv = h / group;
    for (guint32 t = begin; t <= position; t++) {
      s[t - begin] = 0;
      for (guint32 d = 0; d < width; d++)
        s[t - begin] +=
            (double)q[(gsize)h * width + d] * c->k[((gsize)t * a->kv.n_heads + kv) * width + d];
      s[t - begin] *= a->scale;
    }
    exact_softmax(s, position + 1 - begin, a->sinks != NULL ? &a->sinks[h] : NULL);
    for (guint32 t = begin; t <= position; t++)
      for (guint32 d = 0; d < width; d++)
        out[(gsize)h * width + d] +=
            s[t - begin] * c->v[((gsize)t * a->kv.n_heads + kv) * width + d];
  }
  return out;
}

static float *
attend(const oct_attention *a, const cache *c, guint32 position, const float *q) {
  guint32 group = a->n_heads / a->kv.n_heads;
  float *out = g_new0(float, (gsize)a->n_heads * a->kv.width);
  g_autofree float *scratch =
      g_new(float, (gsize)group *(position + 1) + 2 * (gsize)a->kv.page_tokens * a->kv.width);
  /* Some heads here, some there. */
  guint32 first = data_between(0, a->kv.n_heads);
  oct_ref_attention(a, c->pages, position, first, a->kv.n_heads - first, q, out, scratch);
  oct_ref_attention(a, c->pages, position, 0, first, q, out, scratch);
  return out;
}

static void
grouped_queries(void) {
  for (int round = 0; round < 24; round++) {
    cache c;
    guint32 kv_heads = data_between(1, 3), group = data_between(1, 4), width = data_between(1, 40);
    guint32 tokens = data_between(1, 70), position = data_between(0, tokens - 1);
    cache_init(&c, round % 2 == 0 ? OCT_KV_F32 : OCT_KV_BF16, data_between(1, 17), kv_heads, width,
               tokens, TRUE);
    g_autofree float *sinks = data_normal(kv_heads * group, 2);
    oct_attention a = {.kv = c.layer,
                       .n_heads = kv_heads * group,
                       .window = round % 3 == 1 ? data_between(1, 20) : 0,
                       .scale = (float)(1 / sqrt(width)),
                       .sinks = round % 4 >= 2 ? sinks : NULL};
    g_autofree float *q = data_normal((gsize)a.n_heads * width, 1);
    g_autofree float *got = attend(&a, &c, position, q);
    g_autofree double *exact = exact_attention(&a, &c, position, q);
    g_test_message("%u heads over %u, width %u, position %u, window %u%s, pages of %u", a.n_heads,
                   kv_heads, width, position, a.window, a.sinks != NULL ? ", sinks" : "",
                   c.layer.page_tokens);
    data_expect("attention", got, exact, (gsize)a.n_heads * width, 1, 1e-6);
    cache_clear(&c);
  }
}

/* The same tokens in pages of another size at other places: the same bits. */
static void
pages_do_not_matter(void) {
  for (int round = 0; round < 6; round++) {
    cache a, b;
    guint32 width = data_between(8, 40), tokens = data_between(20, 60), position = tokens - 1;
    cache_init(&a, OCT_KV_F32, 16, 2, width, tokens, TRUE);
    cache_init(&b, OCT_KV_F32, data_between(1, 9), 2, width, tokens, TRUE);
    gsize bytes = (gsize)tokens * 2 * width * sizeof(float);
    memcpy(b.k, a.k, bytes);
    memcpy(b.v, a.v, bytes);
    store_all(&b);
    oct_attention call = {
        .kv = a.layer, .n_heads = 6, .scale = 0.3f, .window = round % 2 == 0 ? 0 : 11};
    g_autofree float *q = data_normal(6 * width, 1);
    g_autofree float *first = attend(&call, &a, position, q);
    call.kv = b.layer;
    g_autofree float *second = attend(&call, &b, position, q);
    g_assert_cmpmem(first, 6 * width * sizeof *first, second, 6 * width * sizeof *second);
    cache_clear(&a);
    cache_clear(&b);
  }
}

/* Pages below the window are not read: their table entries point nowhere. */
static void
windows_do_not_read_below(void) {
  cache c;
  cache_init(&c, OCT_KV_F32, 4, 1, 8, 40, TRUE);
  oct_attention a = {.kv = c.layer, .n_heads = 2, .scale = 1, .window = 9};
  g_autofree float *q = data_normal(16, 1);
  g_autofree double *exact = exact_attention(&a, &c, 30, q);
  for (guint32 i = 0; i < 22 / 4; i++)
    c.pages[i] = 1u << 30;
  g_autofree float *got = attend(&a, &c, 30, q);
  data_expect("attention", got, exact, 16, 1, 1e-6);
  cache_clear(&c);
}

/* ---------------------------------------------------------------- latent attention */

typedef struct latent {
  cache c;
  oct_mla call;
  data_matrix *kv_b;
  float *q; /* [m, heads, nope + rope] */
  guint32 m, position;
} latent;

static void
latent_init(latent *l, oct_kv_format format, oct_matrix_format weights) {
  guint32 heads = data_between(1, 5), lora = data_between(1, 50), nope = data_between(1, 30);
  guint32 rope = 2 * data_between(1, 8), value = data_between(1, 30), tokens = data_between(1, 50);
  cache_init(&l->c, format, data_between(1, 17), 1, lora + rope, tokens, FALSE);
  l->kv_b = data_matrix_new(weights, heads * (nope + value), lora, 0.3);
  l->call = (oct_mla){.kv = l->c.layer,
                      .n_heads = heads,
                      .kv_lora = lora,
                      .nope = nope,
                      .rope = rope,
                      .value = value,
                      .scale = (float)(1 / sqrt(nope + rope)),
                      .kv_b = &l->kv_b->matrix};
  l->m = data_between(1, 3);
  l->position = tokens - 1;
  l->q = data_normal((gsize)l->m * heads * (nope + rope), 1);
}

static void
latent_clear(latent *l) {
  cache_clear(&l->c);
  data_matrix_free(l->kv_b);
  g_free(l->q);
}

/* Keys and values of each token made of its latent, in float64: out[m, heads, value]. */
static double *
exact_latent(const latent *l) {
  const oct_mla *a = &l->call;
  guint32 nope = a->nope, value = a->value, width = a->kv.width;
  double *out = g_new0(double, (gsize)l->m * a->n_heads * value);
  g_autofree double *s = g_new(double, l->position + 1);
  for (guint32 i = 0; i < l->m; i++)
    for (guint32 h = 0; h < a->n_heads; h++) {
      const float *q = l->q + ((gsize)i * a->n_heads + h) * (nope + a->rope);
      const float *w = l->kv_b->values + (gsize)h * (nope + value) * a->kv_lora;
      double *to = out + ((gsize)i * a->n_heads + h) * value;
      for (guint32 t = 0; t <= l->position; t++) {
        const float *token = l->c.k + (gsize)t * width;
        s[t] = 0;
        for (guint32 d = 0; d < nope; d++) {
          double key = 0;
          for (guint32 c = 0; c < a->kv_lora; c++)
            key += (double)w[d * a->kv_lora + c] * token[c];
          s[t] += q[d] * key;
        }
        for (guint32 d = 0; d < a->rope; d++)
          s[t] += (double)q[nope + d] * token[a->kv_lora + d];
        s[t] *= a->scale;
      }
      exact_softmax(s, l->position + 1, NULL);
      for (guint32 t = 0; t <= l->position; t++)
        for (guint32 d = 0; d < value; d++) {
          double v = 0;
          for (guint32 c = 0; c < a->kv_lora; c++)
            v += (double)w[(nope + d) * a->kv_lora + c] * l->c.k[(gsize)t * width + c];
          to[d] += s[t] * v;
        }
    }
  return out;
}

static float *
absorbed_form(const latent *l) {
  const oct_mla *a = &l->call;
  float *out = g_new0(float, (gsize)l->m * a->n_heads * a->value);
  g_autofree float *q = g_new(float, (gsize)l->m * a->n_heads * a->kv.width);
  g_autofree float *sums = g_new(float, (gsize)l->m * a->n_heads * a->kv_lora);
  g_autofree float *scratch =
      g_new(float, (gsize)a->n_heads *(l->position + 1) +
                       (gsize)MAX(a->kv.page_tokens, OCT_REF_MATMUL_ROWS) * a->kv.width);
  for (guint32 h = 0; h < a->n_heads; h++)
    oct_ref_mla_absorb(a, h, l->m, l->q, q, scratch);
  guint32 first = data_between(0, a->n_heads);
  for (guint32 i = 0; i < l->m; i++) {
    const float *from = q + (gsize)i * a->n_heads * a->kv.width;
    float *to = sums + (gsize)i * a->n_heads * a->kv_lora;
    oct_ref_mla_latent(a, l->c.pages, l->position, 0, first, from, to, scratch);
    oct_ref_mla_latent(a, l->c.pages, l->position, first, a->n_heads - first, from, to, scratch);
  }
  for (guint32 h = 0; h < a->n_heads; h++)
    oct_ref_mla_values(a, h, l->m, sums, out, scratch);
  return out;
}

static float *
expanded_form(const latent *l) {
  const oct_mla *a = &l->call;
  guint32 both = a->nope + a->value;
  float *out = g_new0(float, (gsize)l->m * a->n_heads * a->value);
  g_autofree float *scratch =
      g_new(float, (gsize)(l->position + 1) * (1 + both) + (gsize)both * a->kv_lora +
                       (gsize)a->kv.page_tokens * a->kv.width);
  for (guint32 i = 0; i < l->m; i++)
    for (guint32 h = 0; h < a->n_heads; h++)
      oct_ref_mla_expanded(a, l->c.pages, l->position, h,
                           l->q + (gsize)i * a->n_heads * (a->nope + a->rope),
                           out + (gsize)i * a->n_heads * a->value, scratch);
  return out;
}

static void
latent_attention_both_ways(void) {
  static const oct_matrix_format formats[] = {OCT_MATRIX_F32, OCT_MATRIX_BF16, OCT_MATRIX_ROWS};
  for (guint round = 0; round < 12; round++) {
    latent l;
    latent_init(&l, round % 2 == 0 ? OCT_KV_F32 : OCT_KV_BF16, formats[round % 3]);
    g_autofree double *exact = exact_latent(&l);
    g_autofree float *absorbed = absorbed_form(&l), *expanded = expanded_form(&l);
    gsize n = (gsize)l.m * l.call.n_heads * l.call.value;
    double typical = 0.3 * sqrt(l.call.kv_lora); /* of a value */
    data_expect("absorbed", absorbed, exact, n, typical, 1e-6);
    data_expect("expanded", expanded, exact, n, typical, 1e-6);
    latent_clear(&l);
  }
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/kernels/attention/grouped-queries", grouped_queries);
  g_test_add_func("/kernels/attention/pages-do-not-matter", pages_do_not_matter);
  g_test_add_func("/kernels/attention/windows-do-not-read-below", windows_do_not_read_below);
  g_test_add_func("/kernels/attention/latent-attention-both-ways", latent_attention_both_ways);
  return g_test_run();
}
