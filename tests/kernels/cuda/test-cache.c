/* Rotation and the paged cache. */
#include "tests/kernels/cuda/device.h"

#include <string.h>

static const oct_cuda_type caches[] = {OCT_CUDA_F32, OCT_CUDA_BF16, OCT_CUDA_FP8};

static double
limit_of(oct_cuda_type type) {
  return type == OCT_CUDA_F32 ? 1e-5 : type == OCT_CUDA_BF16 ? 4e-3 : DEVICE_FP8_ERROR;
}

static const device_seq seqs[] = {{1, 40}, {13, 0}, {1, 0}, {5, 29}};

static float *
angles_of(const oct_rope *rope, guint32 positions) {
  g_autofree float *frequencies = g_new(float, rope->dim / 2 + 1);
  float *angles = g_new(float, (gsize)positions * rope->dim + 1);
  oct_ref_rope_frequencies(rope, frequencies);
  for (guint32 p = 0; p < positions; p++)
    oct_ref_rope_angles(rope, frequencies, p, angles + (gsize)p * rope->dim);
  return angles;
}

typedef struct rope_case {
  oct_cuda_type type, cache;
  guint32 heads, kv_heads, width, rope_dim;
  gboolean interleaved, norms;
} rope_case;

/* The twin, into pages of float32 on the host. */
static void
store_twin(const rope_case *c, const device_batch *b, const device_pages *pages,
           const oct_kv_layer *kv, const float *angles, const oct_rope *rope, float *q, float *k,
           const float *v, const float *norms) {
  for (guint32 i = 0; i < b->n_tokens; i++) {
    float *qi = q + (gsize)i * c->heads * c->width, *ki = k + (gsize)i * c->kv_heads * c->width;
    if (c->norms) {
      oct_ref_rms_norm(qi, norms, c->heads, c->width, c->width, 1e-6f, qi);
      oct_ref_rms_norm(ki, norms + c->width, c->kv_heads, c->width, c->width, 1e-6f, ki);
    }
    if (rope->dim > 0) {
      const float *at = angles + (gsize)b->position_of[i] * rope->dim;
      oct_ref_rope(rope, at, c->heads, c->width, qi);
      oct_ref_rope(rope, at, c->kv_heads, c->width, ki);
    }
    oct_ref_kv_store(kv, device_pages_of(pages, b, b->seq_of[i]), b->position_of[i], ki,
                     v + (gsize)i * c->kv_heads * c->width);
  }
}

static void
check_rope(const oct_cuda_queue *queue, const rope_case *c) {
  g_autoptr(device_batch) b = device_batch_new(queue, seqs, G_N_ELEMENTS(seqs), 3, 2);
  g_autoptr(device_pages) pages = device_pages_new(b, 16);
  gsize q_size = (gsize)b->batch.n_tokens * c->heads * c->width;
  gsize k_size = (gsize)b->batch.n_tokens * c->kv_heads * c->width;
  g_autofree float *q = data_normal(q_size, 1), *k = data_normal(k_size, 1);
  g_autofree float *v = data_normal(k_size, 1), *norms = data_normal(2 * c->width, 1);
  g_autofree float *scales = g_new(float, 2 * c->kv_heads);
  for (guint32 h = 0; h < 2 * c->kv_heads; h++)
    scales[h] = c->cache == OCT_CUDA_FP8 ? 0.5f + (float)h / 8 : 1;
  const oct_rope rope = {
      .kind = OCT_ROPE_PLAIN, .interleaved = c->interleaved, .dim = c->rope_dim, .theta = 10000};
  g_autofree float *angles = angles_of(&rope, 64);
  gsize page = 2 * (gsize)c->kv_heads * 16 * c->width, pool = page * pages->n_pages;
  g_autofree float *host = g_new0(float, pool), *zeros = g_new0(float, pool);
  oct_kv_layer kv = {.format = OCT_KV_F32,
                     .base = host,
                     .page_stride = page * sizeof *host,
                     .page_tokens = 16,
                     .n_heads = c->kv_heads,
                     .width = c->width,
                     .has_values = true};
  void *d_norms = device_put(c->type, norms, 2 * c->width);
  float *d_scales = device_put(OCT_CUDA_F32, scales, 2 * c->kv_heads);
  oct_cuda_rope_store call = {
      .type = c->type,
      .batch = &b->batch,
      .kv = {.type = c->cache,
             .base = device_put(c->cache, zeros, pool),
             .page_bytes = page * oct_cuda_type_bytes(c->cache),
             .page_tokens = 16,
             .n_heads = c->kv_heads,
             .width = c->width,
             .has_values = true,
             .k_scale = d_scales,
             .v_scale = d_scales + c->kv_heads},
      .tables = pages->tables,
      .n_heads = c->heads,
      .q = device_put(c->type, q, q_size),
      .k = device_put(c->type, k, k_size),
      .v = device_put(c->type, v, k_size),
      .q_stride = (gsize)c->heads * c->width,
      .k_stride = (gsize)c->kv_heads * c->width,
      .v_stride = (gsize)c->kv_heads * c->width,
      .q_norm = c->norms ? d_norms : NULL,
      .k_norm = c->norms ? (char *)d_norms + c->width * oct_cuda_type_bytes(c->type) : NULL,
      .eps = 1e-6f,
      .angles = device_copy(angles, 64 * rope.dim * sizeof *angles),
      .rope_dim = c->rope_dim,
      .interleaved = c->interleaved};
  device_check(oct_cuda_rope_and_store(queue, &call));
  store_twin(c, b, pages, &kv, angles, &rope, q, k, v, norms);
  g_autofree float *out = device_get(c->type, call.q, q_size);
  device_expect("queries", out, q, (gsize)b->n_tokens * c->heads * c->width, limit_of(c->type));
  g_autofree float *cache = device_get(c->cache, call.kv.base, pool);
  for (gsize i = 0; i < pool; i++) {
    gsize at = i % page, half = page / 2;
    cache[i] *= scales[(at % half) / (16 * c->width) + (at >= half ? c->kv_heads : 0)];
  }
  device_expect("cache", cache, host, pool, MAX(limit_of(c->type), limit_of(c->cache)));
}

static void
test_rope(void) {
  static const rope_case cases[] = {{OCT_CUDA_F32, OCT_CUDA_F32, 4, 2, 16, 16, FALSE, FALSE},
                                    {OCT_CUDA_F32, OCT_CUDA_BF16, 9, 3, 8, 8, TRUE, TRUE},
                                    {OCT_CUDA_BF16, OCT_CUDA_BF16, 8, 2, 128, 128, FALSE, TRUE},
                                    {OCT_CUDA_BF16, OCT_CUDA_BF16, 3, 3, 80, 32, FALSE, FALSE},
                                    {OCT_CUDA_BF16, OCT_CUDA_FP8, 8, 2, 64, 64, FALSE, FALSE},
                                    {OCT_CUDA_BF16, OCT_CUDA_FP8, 2, 1, 256, 0, FALSE, FALSE},
                                    {OCT_CUDA_F32, OCT_CUDA_FP8, 5, 5, 96, 96, TRUE, FALSE}};
  for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
    const oct_cuda_queue *queue = device_queue(0);
    if (queue == NULL)
      return;
    check_rope(queue, &cases[i]);
  }
}

/* Latents: normed, rotated, stored; queries' rotated parts in both places; and back by gather. */
static void
check_latents(const oct_cuda_queue *queue, oct_cuda_type type, oct_cuda_type cache,
              gboolean rotates) {
  enum { HEADS = 3, LORA = 32, NOPE = 24, ROPE = 16, WIDTH = LORA + ROPE, PAGE = 8 };
  g_autoptr(device_batch) b = device_batch_new(queue, seqs, G_N_ELEMENTS(seqs), 2, 1);
  g_autoptr(device_pages) pages = device_pages_new(b, PAGE);
  guint32 n = b->batch.n_tokens;
  gsize q_size = (gsize)n * HEADS * (NOPE + ROPE), page = PAGE * WIDTH;
  g_autofree float *x = data_normal((gsize)n * WIDTH, 1), *q = data_normal(q_size, 1);
  g_autofree float *norm = data_normal(LORA, 1);
  const oct_rope rope = {.interleaved = true, .dim = ROPE, .theta = 10000};
  g_autofree float *angles = angles_of(&rope, 64);
  gsize pool = page * pages->n_pages;
  g_autofree float *zeros = g_new0(float, pool);
  gsize a_size = (gsize)n * HEADS * WIDTH;
  g_autofree float *absorbed = g_new0(float, a_size);
  oct_cuda_mla_store call = {.type = type,
                             .batch = &b->batch,
                             .kv = {.type = cache,
                                    .base = device_put(cache, zeros, pool),
                                    .page_bytes = page * oct_cuda_type_bytes(cache),
                                    .page_tokens = PAGE,
                                    .n_heads = 1,
                                    .width = WIDTH},
                             .tables = pages->tables,
                             .n_heads = HEADS,
                             .lora = LORA,
                             .nope = NOPE,
                             .rope = ROPE,
                             .latents = device_put(type, x, (gsize)n * WIDTH),
                             .latents_stride = WIDTH,
                             .q = device_put(type, q, q_size),
                             .q_stride = HEADS * (NOPE + ROPE),
                             .absorbed = device_put(type, absorbed, a_size),
                             .norm = device_put(type, norm, LORA),
                             .eps = 1e-6f,
                             .angles =
                                 rotates ? device_copy(angles, 64 * ROPE * sizeof *angles) : NULL,
                             .interleaved = true};
  device_check(oct_cuda_mla_norm_and_store(queue, &call));
  g_autofree float *out = device_get(type, call.q, q_size);
  g_autofree float *placed = device_get(type, call.absorbed, a_size);
  oct_ref_rms_norm(x, norm, n, LORA, WIDTH, 1e-6f, x);
  for (guint32 i = 0; i < b->n_tokens; i++) {
    const float *at = angles + (gsize)b->position_of[i] * ROPE;
    if (rotates) {
      oct_ref_rope(&rope, at, HEADS, NOPE + ROPE, q + (gsize)i * HEADS * (NOPE + ROPE) + NOPE);
      oct_ref_rope(&rope, at, 1, WIDTH, x + (gsize)i * WIDTH + LORA);
    }
    for (guint32 h = 0; h < HEADS; h++)
      memcpy(absorbed + ((gsize)i * HEADS + h) * WIDTH + LORA,
             q + ((gsize)i * HEADS + h) * (NOPE + ROPE) + NOPE, ROPE * sizeof *q);
  }
  device_expect("queries", out, q, (gsize)b->n_tokens * HEADS * (NOPE + ROPE), limit_of(type));
  device_expect("absorbed", placed, absorbed, (gsize)b->n_tokens * HEADS * WIDTH, limit_of(type));
  /* Sequence 1 begins at position 0, at token 1 of the batch. */
  guint32 end = seqs[1].n_tokens;
  void *rows = device_room_of(type, (gsize)end * WIDTH);
  device_check(oct_cuda_mla_gather(
      queue, &call.kv, pages->tables.pages + (gsize)b->slots[1] * pages->stride, end, type, rows));
  g_autofree float *back = device_get(type, rows, (gsize)end * WIDTH);
  device_expect("latents", back, x + WIDTH, (gsize)end * WIDTH,
                MAX(limit_of(type), limit_of(cache)));
}

static void
test_latents(void) {
  for (guint t = 0; t < 2; t++)
    for (guint c = 0; c < G_N_ELEMENTS(caches); c++) {
      const oct_cuda_queue *queue = device_queue(0);
      if (queue == NULL)
        return;
      check_latents(queue, t == 0 ? OCT_CUDA_F32 : OCT_CUDA_BF16, caches[c], c != 1);
    }
}

static void
test_copy(void) {
  const oct_cuda_queue *queue = device_queue(0);
  if (queue == NULL)
    return;
  enum { PAGES = 9, BYTES = 4096, USED = 4000 };
  g_autofree guint8 *pool = g_malloc(PAGES * BYTES), *want = NULL, *out = g_malloc(PAGES * BYTES);
  for (gsize i = 0; i < PAGES * BYTES; i++)
    pool[i] = (guint8)g_test_rand_int();
  want = g_memdup2(pool, PAGES * BYTES);
  static const guint32 from[] = {0, 5, 2}, to[] = {8, 1, 3};
  void *d = device_copy(pool, PAGES * BYTES);
  device_check(oct_cuda_copy_pages(queue, d, BYTES, USED, device_copy(from, sizeof from),
                                   device_copy(to, sizeof to), 3));
  for (guint i = 0; i < 3; i++)
    memcpy(want + to[i] * BYTES, pool + from[i] * BYTES, USED);
  device_read(out, d, PAGES * BYTES);
  g_assert_cmpmem(out, PAGES * BYTES, want, PAGES * BYTES);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/cuda/cache/norms-rotates-and-stores", test_rope);
  g_test_add_func("/cuda/cache/latents-are-stored-and-gathered", test_latents);
  g_test_add_func("/cuda/cache/copies-pages", test_copy);
  return g_test_run();
}
