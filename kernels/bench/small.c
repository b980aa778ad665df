/* Everything that is small beside products and attention: norms, caches, activations, routing,
 * sampling. */
#include "kernels/bench/bench.h"

#include <stdlib.h>

#define SETS_MAX 64

static oct_cuda_norm norms[SETS_MAX];
static oct_cuda_glu glus[SETS_MAX];
static oct_cuda_rope_store ropes[SETS_MAX];
static oct_cuda_sample samples[SETS_MAX];
static oct_cuda_logprobs logprobs[SETS_MAX];
static oct_cuda_batch batch;

static int
call_norm(const bench *b, void *context, unsigned set) {
  (void)context;
  return oct_cuda_rms_norm(&b->queue, &norms[set]);
}

static int
call_glu(const bench *b, void *context, unsigned set) {
  (void)context;
  return oct_cuda_glu_rows(&b->queue, &glus[set]);
}

static int
call_rope(const bench *b, void *context, unsigned set) {
  (void)context;
  return oct_cuda_rope_and_store(&b->queue, &ropes[set]);
}

static int
call_sample(const bench *b, void *context, unsigned set) {
  (void)context;
  return oct_cuda_sample_rows(&b->queue, &samples[set]);
}

static int
call_logprobs(const bench *b, void *context, unsigned set) {
  (void)context;
  return oct_cuda_logprobs_rows(&b->queue, &logprobs[set]);
}

static void
prepare(bench_item *item, bench_call call) {
  item->call = call;
  item->sets = bench_sets(item->bytes);
  item->calls = item->sets * (1 + 32 / item->sets);
}

double
bench_norm(bench *b, uint32_t n, uint32_t width) {
  size_t size = (size_t)n * width;
  bench_item item = {.bytes = 2.0 * 4 * (double)size};
  snprintf(item.name, sizeof item.name, "residual + norm, %u x %u bf16", n, width);
  if (!bench_wants(b, item.name))
    return -1;
  prepare(&item, call_norm);
  for (unsigned i = 0; i < item.sets; i++)
    norms[i] = (oct_cuda_norm){.type = OCT_CUDA_BF16,
                               .residual_type = OCT_CUDA_BF16,
                               .n = n,
                               .width = width,
                               .x = bench_random(b, OCT_CUDA_BF16, size, 1),
                               .x_stride = width,
                               .residual = bench_random(b, OCT_CUDA_BF16, size, 1),
                               .residual_stride = width,
                               .weight = bench_random(b, OCT_CUDA_BF16, width, 1),
                               .eps = 1e-5f,
                               .out = bench_room(size * 2),
                               .out_stride = width};
  double seconds = bench_run(b, &item);
  bench_free_all();
  return seconds;
}

double
bench_glu(bench *b, uint32_t n, uint32_t inner) {
  size_t size = (size_t)n * inner;
  bench_item item = {.bytes = 2.0 * 3 * (double)size};
  snprintf(item.name, sizeof item.name, "silu and product, %u x %u bf16", n, inner);
  if (!bench_wants(b, item.name))
    return -1;
  prepare(&item, call_glu);
  for (unsigned i = 0; i < item.sets; i++)
    glus[i] = (oct_cuda_glu){.type = OCT_CUDA_BF16,
                             .n = n,
                             .inner = inner,
                             .x = bench_random(b, OCT_CUDA_BF16, 2 * size, 1),
                             .x_stride = 2 * (size_t)inner,
                             .out = bench_room(size * 2),
                             .out_stride = inner};
  double seconds = bench_run(b, &item);
  bench_free_all();
  return seconds;
}

/* n sequences of one token, each with a page. */
static void
make_batch(uint32_t n) {
  uint32_t *words = malloc((3 * (size_t)n + 1) * sizeof *words);
  for (uint32_t i = 0; i <= n; i++)
    words[i] = i;
  for (uint32_t i = 0; i < n; i++)
    words[n + 1 + i] = i % 8;
  batch = (oct_cuda_batch){.n_tokens = n, .n_seqs = n};
  batch.seq_first = batch.seq_slot = batch.token_seq = bench_copy(words, (n + 1) * 4);
  batch.token_position = batch.seq_start = bench_copy(words + n + 1, n * 4);
  free(words);
}

double
bench_rope(bench *b, uint32_t n, uint32_t heads, uint32_t kv_heads, uint32_t width) {
  enum { PAGE = 16 };
  bench_item item = {.bytes = 2.0 * n * width * (2.0 * heads + 4.0 * kv_heads)};
  snprintf(item.name, sizeof item.name, "rotate and store, %u tokens, %u/%u x %u bf16", n, heads,
           kv_heads, width);
  if (!bench_wants(b, item.name))
    return -1;
  prepare(&item, call_rope);
  make_batch(n);
  size_t page = (size_t)2 * PAGE * kv_heads * width,
         stride = (size_t)(heads + 2 * kv_heads) * width;
  const float *angles = bench_random(b, OCT_CUDA_F32, (size_t)8 * width, 0.5f);
  for (unsigned i = 0; i < item.sets; i++) {
    char *qkv = bench_random(b, OCT_CUDA_BF16, n * stride, 1);
    ropes[i] = (oct_cuda_rope_store){.type = OCT_CUDA_BF16,
                                     .batch = &batch,
                                     .kv = {.type = OCT_CUDA_BF16,
                                            .base = bench_room(n * page * 2),
                                            .page_bytes = page * 2,
                                            .page_tokens = PAGE,
                                            .n_heads = kv_heads,
                                            .width = width,
                                            .has_values = true},
                                     .tables = {.pages = batch.seq_slot, .stride = 1},
                                     .n_heads = heads,
                                     .q = qkv,
                                     .k = qkv + (size_t)2 * heads * width,
                                     .v = qkv + (size_t)2 * (heads + kv_heads) * width,
                                     .q_stride = stride,
                                     .k_stride = stride,
                                     .v_stride = stride,
                                     .angles = angles,
                                     .rope_dim = width};
  }
  double seconds = bench_run(b, &item);
  bench_free_all();
  return seconds;
}

double
bench_sample(bench *b, const char *how, uint32_t n, uint32_t vocab, oct_sampling sampling) {
  bench_item item = {.bytes = 4.0 * n * vocab};
  snprintf(item.name, sizeof item.name, "sample %s, %u rows of %u", how, n, vocab);
  if (!bench_wants(b, item.name))
    return -1;
  prepare(&item, call_sample);
  if (item.sets > 8)
    item.sets = 8;
  item.calls = item.sets * 2;
  make_batch(n);
  oct_cuda_sample_row *rows = calloc(n, sizeof *rows);
  for (uint32_t i = 0; i < n; i++)
    rows[i] = (oct_cuda_sample_row){.sampling = sampling, .token = i};
  const oct_cuda_sample_row *on_device = bench_copy(rows, n * sizeof *rows);
  free(rows);
  for (unsigned i = 0; i < item.sets; i++)
    samples[i] = (oct_cuda_sample){.n = n,
                                   .vocab = vocab,
                                   .logits = bench_random(b, OCT_CUDA_F32, (size_t)n * vocab, 3),
                                   .stride = vocab,
                                   .batch = &batch,
                                   .rows = on_device,
                                   .tokens = bench_room(n * 4),
                                   .workspace = bench_room(oct_cuda_sample_workspace(n, vocab))};
  double seconds = bench_run(b, &item);
  bench_free_all();
  return seconds;
}

static void
run_logprobs(bench *b, uint32_t n, uint32_t most) {
  enum { VOCAB = 128256 };
  bench_item item = {.bytes = 4.0 * n * VOCAB};
  snprintf(item.name, sizeof item.name, "log probabilities, best %u, %u rows of %d", most, n,
           VOCAB);
  if (!bench_wants(b, item.name))
    return;
  prepare(&item, call_logprobs);
  item.sets = 1;
  item.calls = 8;
  oct_cuda_sample_row *rows = calloc(n, sizeof *rows);
  for (uint32_t i = 0; i < n; i++)
    rows[i].n_logprobs = most;
  uint32_t *tokens = calloc(n, sizeof *tokens);
  logprobs[0] =
      (oct_cuda_logprobs){.n = n,
                          .vocab = VOCAB,
                          .most = most,
                          .logits = bench_random(b, OCT_CUDA_F32, (size_t)n * VOCAB, 3),
                          .stride = VOCAB,
                          .rows = bench_copy(rows, n * sizeof *rows),
                          .tokens = bench_copy(tokens, n * sizeof *tokens),
                          .out = bench_room((size_t)n * (1 + most) * sizeof(oct_token_logprob))};
  free(rows);
  free(tokens);
  bench_run(b, &item);
  bench_free_all();
}

static oct_cuda_route routes[SETS_MAX];

static int
call_route(const bench *b, void *context, unsigned set) {
  (void)context;
  return oct_cuda_route_tokens(&b->queue, &routes[set]);
}

double
bench_route(bench *b, uint32_t n, uint32_t n_experts, uint32_t top_k) {
  bench_item item = {.bytes = 4.0 * n * n_experts};
  snprintf(item.name, sizeof item.name, "route, %u tokens to %u of %u", n, top_k, n_experts);
  if (!bench_wants(b, item.name))
    return -1;
  prepare(&item, call_route);
  for (unsigned i = 0; i < item.sets; i++)
    routes[i] = (oct_cuda_route){.routing = {.score = OCT_ROUTER_SOFTMAX,
                                             .n_experts = n_experts,
                                             .top_k = top_k,
                                             .renormalise = true,
                                             .scaling = 1},
                                 .n = n,
                                 .logits = bench_random(b, OCT_CUDA_F32, (size_t)n * n_experts, 1),
                                 .experts = bench_room((size_t)n * top_k * 4),
                                 .weights = bench_room((size_t)n * top_k * 4)};
  double seconds = bench_run(b, &item);
  bench_free_all();
  return seconds;
}

void
bench_small(bench *b) {
  static const uint32_t rows[] = {1, 64, 256, 8192};
  for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++) {
    bench_norm(b, rows[i], 4096);
    bench_glu(b, rows[i], 14336);
    bench_rope(b, rows[i], 32, 8, 128);
  }
  const oct_sampling greedy = {.top_p = 1, .repetition = 1, .top_k = -1};
  oct_sampling s = greedy;
  bench_sample(b, "greedy", 1, 128256, s);
  bench_sample(b, "greedy", 64, 128256, s);
  s.temperature = 0.8f;
  bench_sample(b, "by temperature", 64, 128256, s);
  s.top_p = 0.9f;
  bench_sample(b, "by top-p", 64, 128256, s);
  s.top_k = 50;
  bench_sample(b, "by top-k and top-p", 64, 128256, s);
  bench_sample(b, "by top-k and top-p", 256, 128256, s);
  run_logprobs(b, 64, 20);
}
