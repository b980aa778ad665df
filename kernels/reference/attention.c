/* The paged cache, and attention over it: grouped-query and latent.
 *
 * A token's scores against all keys that it sees are made first, page by page, then the softmax,
 * then the sum of values in the order of positions, continued from page to page. No step depends on
 * where a page begins, so a result depends on the tokens seen alone. */
#include "kernels/kernels.h"

#include <math.h>
#include <string.h>

#include "kernels/reference/vector.h"

#define MIN(a, b) ((a) < (b) ? (a) : (b))

/* ---------------------------------------------------------------- the cache */

size_t
oct_ref_kv_element_bytes(oct_kv_format format) {
  return format == OCT_KV_F32 ? 4 : 2;
}

static size_t
half_page(const oct_kv_layer *layer) {
  return (size_t)layer->n_heads * layer->page_tokens * layer->width;
}

size_t
oct_ref_kv_page_bytes(const oct_kv_layer *layer) {
  return half_page(layer) * (layer->has_values ? 2 : 1) * oct_ref_kv_element_bytes(layer->format);
}

static void
store(const oct_kv_layer *layer, void *page, size_t at, const float *from) {
  if (layer->format == OCT_KV_F32) {
    memcpy((float *)page + at, from, layer->width * sizeof *from);
    return;
  }
  uint16_t *to = (uint16_t *)page + at;
  for (uint32_t c = 0; c < layer->width; c++)
    to[c] = oct_ref_to_bf16(from[c]);
}

void
oct_ref_kv_store(const oct_kv_layer *layer, const uint32_t *pages, uint32_t position,
                 const float *k, const float *v) {
  uint32_t in_page = position % layer->page_tokens;
  void *page = (uint8_t *)layer->base + pages[position / layer->page_tokens] * layer->page_stride;
  for (uint32_t h = 0; h < layer->n_heads; h++) {
    size_t at = ((size_t)h * layer->page_tokens + in_page) * layer->width;
    store(layer, page, at, k + (size_t)h * layer->width);
    if (layer->has_values)
      store(layer, page, half_page(layer) + at, v + (size_t)h * layer->width);
  }
}

/* A run of tokens within one page. */
typedef struct run {
  uint32_t first, n; /* position, count */
} run;

static run
run_at(const oct_kv_layer *layer, uint32_t position, uint32_t end) {
  uint32_t left = layer->page_tokens - position % layer->page_tokens;
  return (run){position, MIN(left, end - position)};
}

/* Keys (or values) of KV head h for the run, as float32: in place, or in scratch of
 * page_tokens * width. */
static const float *
read_run(const oct_kv_layer *layer, const uint32_t *pages, run r, uint32_t h, bool values,
         float *scratch) {
  const void *page =
      (const uint8_t *)layer->base + pages[r.first / layer->page_tokens] * layer->page_stride;
  size_t at = ((size_t)h * layer->page_tokens + r.first % layer->page_tokens) * layer->width +
              (values ? half_page(layer) : 0);
  if (layer->format == OCT_KV_F32)
    return (const float *)page + at;
  oct_ref_expand_bf16((const uint16_t *)page + at, (size_t)r.n * layer->width, scratch);
  return scratch;
}

/* ---------------------------------------------------------------- softmax */

/* Scores become weights that add up to 1, or to less with a sink. */
static void
softmax(float *scores, uint32_t n, float scale, const float *sink) {
  float top = sink != NULL ? *sink : -INFINITY;
  for (uint32_t i = 0; i < n; i++) {
    scores[i] *= scale;
    top = fmaxf(top, scores[i]);
  }
  double sum = sink != NULL ? expf(*sink - top) : 0;
  for (uint32_t i = 0; i < n; i++) {
    scores[i] = expf(scores[i] - top);
    sum += scores[i];
  }
  float factor = (float)(1 / sum);
  for (uint32_t i = 0; i < n; i++)
    scores[i] *= factor;
}

/* ---------------------------------------------------------------- grouped-query attention */

void
oct_ref_attention(const oct_attention *call, const uint32_t *pages, uint32_t position,
                  uint32_t first, uint32_t n, const float *q, float *out, float *scratch) {
  const oct_kv_layer *kv = &call->kv;
  uint32_t group = call->n_heads / kv->n_heads, width = kv->width, end = position + 1;
  uint32_t begin = call->window != 0 && end > call->window ? end - call->window : 0;
  uint32_t seen = end - begin;
  float *scores = scratch, *page = scratch + (size_t)group * end;
  for (uint32_t h = first; h < first + n; h++) {
    const float *query = q + (size_t)h * group * width;
    float *result = out + (size_t)h * group * width;
    run r;
    for (uint32_t at = begin; at < end; at += r.n) {
      r = run_at(kv, at, end);
      const float *keys = read_run(kv, pages, r, h, false, page);
      oct_ref_dots(query, width, group, keys, width, r.n, width, scores + (at - begin), seen);
    }
    for (uint32_t g = 0; g < group; g++)
      softmax(scores + (size_t)g * seen, seen, call->scale,
              call->sinks != NULL ? &call->sinks[h * group + g] : NULL);
    memset(result, 0, (size_t)group * width * sizeof *result);
    for (uint32_t at = begin; at < end; at += r.n) {
      r = run_at(kv, at, end);
      const float *values = read_run(kv, pages, r, h, true, page);
      oct_ref_combine(scores + (at - begin), seen, group, values, width, r.n, width, result, width);
    }
  }
}

/* ---------------------------------------------------------------- latent attention */

void
oct_ref_mla_latent(const oct_mla *call, const uint32_t *pages, uint32_t position, uint32_t first,
                   uint32_t n, const float *q, float *out, float *scratch) {
  const oct_kv_layer *kv = &call->kv;
  uint32_t end = position + 1;
  float *scores = scratch, *page = scratch + (size_t)n * end;
  run r;
  for (uint32_t at = 0; at < end; at += r.n) {
    r = run_at(kv, at, end);
    const float *keys = read_run(kv, pages, r, 0, false, page);
    oct_ref_dots(q + (size_t)first * kv->width, kv->width, n, keys, kv->width, r.n, kv->width,
                 scores + at, end);
  }
  float *result = out + (size_t)first * call->kv_lora;
  for (uint32_t h = 0; h < n; h++)
    softmax(scores + (size_t)h * end, end, call->scale, NULL);
  memset(result, 0, (size_t)n * call->kv_lora * sizeof *result);
  for (uint32_t at = 0; at < end; at += r.n) {
    r = run_at(kv, at, end);
    const float *rows = read_run(kv, pages, r, 0, false, page);
    oct_ref_combine(scores + at, end, n, rows, kv->width, r.n, call->kv_lora, result,
                    call->kv_lora);
  }
}

void
oct_ref_mla_absorb(const oct_mla *call, uint32_t h, uint32_t m, const float *q, float *absorbed,
                   float *scratch) {
  size_t q_stride = (size_t)call->n_heads * (call->nope + call->rope);
  size_t stride = (size_t)call->n_heads * call->kv.width;
  q += (size_t)h * (call->nope + call->rope);
  absorbed += (size_t)h * call->kv.width;
  oct_matmul product = {.weight = call->kv_b,
                        .x = q,
                        .x_stride = q_stride,
                        .m = m,
                        .y = absorbed,
                        .y_stride = stride};
  oct_ref_matmul_transposed(&product, h * (call->nope + call->value), call->nope, scratch);
  for (uint32_t i = 0; i < m; i++)
    memcpy(absorbed + i * stride + call->kv_lora, q + i * q_stride + call->nope,
           call->rope * sizeof *q);
}

void
oct_ref_mla_values(const oct_mla *call, uint32_t h, uint32_t m, const float *latent, float *out,
                   float *scratch) {
  uint32_t first = h * (call->nope + call->value) + call->nope;
  oct_matmul product = {.weight = call->kv_b,
                        .x = latent + (size_t)h * call->kv_lora,
                        .x_stride = (size_t)call->n_heads * call->kv_lora,
                        .m = m,
                        .y = out + (size_t)h * call->value,
                        .y_stride = (size_t)call->n_heads * call->value,
                        .y_first = first};
  oct_ref_matmul(&product, first, call->value, scratch);
}

void
oct_ref_mla_expanded(const oct_mla *call, const uint32_t *pages, uint32_t position, uint32_t h,
                     const float *q, float *out, float *scratch) {
  const oct_kv_layer *kv = &call->kv;
  uint32_t end = position + 1, nope = call->nope, value = call->value, lora = call->kv_lora;
  float *scores = scratch, *key = scores + end, *values = key + (size_t)end * nope;
  float *weight = values + (size_t)end * value, *page = weight + (size_t)(nope + value) * lora;
  q += (size_t)h * (nope + call->rope);
  out += (size_t)h * value;
  oct_ref_rows(call->kv_b, h * (nope + value), nope + value, weight);
  run r;
  for (uint32_t at = 0; at < end; at += r.n) {
    r = run_at(kv, at, end);
    const float *rows = read_run(kv, pages, r, 0, false, page);
    oct_ref_dots(rows, kv->width, r.n, weight, lora, nope, lora, key + (size_t)at * nope, nope);
    oct_ref_dots(rows, kv->width, r.n, weight + (size_t)nope * lora, lora, value, lora,
                 values + (size_t)at * value, value);
    for (uint32_t i = 0; i < r.n; i++) {
      float plain, rotated;
      oct_ref_dots(q, nope, 1, key + (size_t)(at + i) * nope, nope, 1, nope, &plain, 1);
      oct_ref_dots(q + nope, call->rope, 1, rows + (size_t)i * kv->width + lora, call->rope, 1,
                   call->rope, &rotated, 1);
      scores[at + i] = plain + rotated;
    }
  }
  softmax(scores, end, call->scale, NULL);
  memset(out, 0, value * sizeof *out);
  oct_ref_combine(scores, end, 1, values, value, end, value, out, value);
}
