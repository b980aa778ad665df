/* What is small in models of delta and latent attention with many experts: attention residuals,
 * gates, choosing among hundreds of experts, the sum over them. */
#include "kernels/bench/bench.h"
#include "kernels/cuda/residual.h"

#include <stdlib.h>

#define SETS_MAX 64

static oct_cuda_residual_mix mixes[SETS_MAX];
static oct_cuda_gate gates[SETS_MAX];
static oct_cuda_gated_norm norms[SETS_MAX];
static oct_cuda_glu glus[SETS_MAX];
static oct_cuda_route routes[SETS_MAX];
static oct_cuda_pairs pairs[SETS_MAX];
static oct_cuda_combine sums[SETS_MAX];

static int
call_mix(const bench *b, void *context, unsigned set) {
  (void)context;
  return oct_cuda_residual_mix_rows(&b->queue, &mixes[set]);
}

static int
call_gate(const bench *b, void *context, unsigned set) {
  (void)context;
  return oct_cuda_sigmoid_gate(&b->queue, &gates[set]);
}

static int
call_gated_norm(const bench *b, void *context, unsigned set) {
  (void)context;
  return oct_cuda_gated_rms_norm(&b->queue, &norms[set]);
}

static int
call_glu(const bench *b, void *context, unsigned set) {
  (void)context;
  return oct_cuda_glu_rows(&b->queue, &glus[set]);
}

static int
call_route(const bench *b, void *context, unsigned set) {
  (void)context;
  return oct_cuda_route_tokens(&b->queue, &routes[set]);
}

static int
call_sort(const bench *b, void *context, unsigned set) {
  (void)context;
  return oct_cuda_sort_pairs(&b->queue, &pairs[set]);
}

static int
call_sum(const bench *b, void *context, unsigned set) {
  (void)context;
  return oct_cuda_combine_pairs(&b->queue, &sums[set]);
}

static bool
prepare(bench *b, bench_item *item, bench_call call) {
  item->call = call;
  item->sets = bench_sets(item->bytes);
  item->sets = item->sets < SETS_MAX ? item->sets : SETS_MAX;
  item->calls = item->sets * (1 + 32 / item->sets);
  return bench_wants(b, item->name);
}

double
bench_residual_mix(bench *b, uint32_t n, uint32_t width, uint32_t n_blocks) {
  size_t size = (size_t)n * width;
  bench_item item = {.bytes = (double)size * (2 * n_blocks + 2 + 4 + 4 + 2)};
  snprintf(item.name, sizeof item.name, "residual mix of %u + norm, %u x %u bf16", n_blocks + 1, n,
           width);
  if (!prepare(b, &item, call_mix))
    return -1;
  for (unsigned i = 0; i < item.sets; i++)
    mixes[i] = (oct_cuda_residual_mix){.type = OCT_CUDA_BF16,
                                       .n = n,
                                       .width = width,
                                       .n_blocks = n_blocks,
                                       .x = bench_random(b, OCT_CUDA_BF16, size, 1),
                                       .residual = bench_random(b, OCT_CUDA_F32, size, 1),
                                       .blocks = bench_random(b, OCT_CUDA_BF16, n_blocks * size, 1),
                                       .block_stride = size,
                                       .score = bench_random(b, OCT_CUDA_F32, width, 0.01f),
                                       .eps = 1e-5f,
                                       .norm = bench_random(b, OCT_CUDA_BF16, width, 1),
                                       .norm_eps = 1e-5f,
                                       .out = bench_room(size * 2)};
  double seconds = bench_run(b, &item);
  bench_free_all();
  return seconds;
}

static void
run_gate(bench *b, uint32_t n, uint32_t width) {
  size_t size = (size_t)n * width;
  bench_item item = {.bytes = 2.0 * 3 * (double)size};
  snprintf(item.name, sizeof item.name, "sigmoid gate, %u x %u bf16", n, width);
  if (!prepare(b, &item, call_gate))
    return;
  for (unsigned i = 0; i < item.sets; i++)
    gates[i] = (oct_cuda_gate){.type = OCT_CUDA_BF16,
                               .n = n,
                               .width = width,
                               .x = bench_random(b, OCT_CUDA_BF16, size, 1),
                               .gate = bench_random(b, OCT_CUDA_BF16, size, 1),
                               .x_stride = width,
                               .gate_stride = width};
  bench_run(b, &item);
  bench_free_all();
}

static void
run_gated_norm(bench *b, uint32_t n, uint32_t heads, uint32_t width) {
  size_t row = (size_t)heads * width, size = n * row;
  bench_item item = {.bytes = 2.0 * 3 * (double)size};
  snprintf(item.name, sizeof item.name, "gated norm of heads, %u x %u x %u bf16", n, heads, width);
  if (!prepare(b, &item, call_gated_norm))
    return;
  for (unsigned i = 0; i < item.sets; i++)
    norms[i] = (oct_cuda_gated_norm){.type = OCT_CUDA_BF16,
                                     .n = n,
                                     .heads = heads,
                                     .width = width,
                                     .x = bench_random(b, OCT_CUDA_BF16, size, 1),
                                     .gate = bench_random(b, OCT_CUDA_BF16, size, 1),
                                     .weight = bench_random(b, OCT_CUDA_BF16, width, 1),
                                     .x_stride = row,
                                     .gate_stride = row,
                                     .eps = 1e-5f,
                                     .out = bench_room(size * 2),
                                     .out_stride = row};
  bench_run(b, &item);
  bench_free_all();
}

static void
run_situ(bench *b, uint32_t n, uint32_t inner) {
  size_t size = (size_t)n * inner;
  bench_item item = {.bytes = 2.0 * 3 * (double)size};
  snprintf(item.name, sizeof item.name, "situ, %u x %u bf16", n, inner);
  if (!prepare(b, &item, call_glu))
    return;
  for (unsigned i = 0; i < item.sets; i++)
    glus[i] = (oct_cuda_glu){.type = OCT_CUDA_BF16,
                             .params = {.kind = OCT_GLU_SITU, .alpha = 4, .limit = 25},
                             .n = n,
                             .inner = inner,
                             .x = bench_random(b, OCT_CUDA_BF16, 2 * size, 1),
                             .x_stride = 2 * (size_t)inner,
                             .out = bench_room(size * 2),
                             .out_stride = inner};
  bench_run(b, &item);
  bench_free_all();
}

static void
run_route(bench *b, uint32_t n, uint32_t n_experts, uint32_t top_k) {
  bench_item item = {.bytes = 4.0 * n * n_experts + 8.0 * n * top_k};
  snprintf(item.name, sizeof item.name, "route by sigmoid and bias, %u to %u of %u", n, top_k,
           n_experts);
  if (!prepare(b, &item, call_route))
    return;
  for (unsigned i = 0; i < item.sets; i++)
    routes[i] =
        (oct_cuda_route){.routing = {.score = OCT_ROUTER_SIGMOID,
                                     .n_experts = n_experts,
                                     .top_k = top_k,
                                     .renormalise = true,
                                     .scaling = 1,
                                     .bias = bench_random(b, OCT_CUDA_F32, n_experts, 0.1f)},
                         .n = n,
                         .logits = bench_random(b, OCT_CUDA_F32, (size_t)n * n_experts, 1),
                         .experts = bench_room((size_t)n * top_k * 4),
                         .weights = bench_room((size_t)n * top_k * 4)};
  bench_run(b, &item);
  bench_free_all();
}

/* Pairs of n tokens, each with experts of its own. */
static oct_cuda_pairs
make_pairs(uint32_t n, uint32_t n_experts, uint32_t top_k) {
  size_t size = (size_t)n * top_k;
  uint32_t *experts = malloc(size * sizeof *experts);
  for (size_t p = 0; p < size; p++)
    experts[p] =
        (uint32_t)(rand() % (int)(n_experts / top_k) + (int)(p % top_k * (n_experts / top_k)));
  oct_cuda_pairs made = {.n = n,
                         .top_k = top_k,
                         .n_experts = n_experts,
                         .n_local = n_experts,
                         .experts = bench_copy(experts, size * sizeof *experts),
                         .starts = bench_room((n_experts + 1) * 4),
                         .pair_of = bench_room(size * 4),
                         .row_of = bench_room(size * 4)};
  free(experts);
  return made;
}

static void
run_sort(bench *b, uint32_t n, uint32_t n_experts, uint32_t top_k) {
  bench_item item = {.bytes = 12.0 * n * top_k};
  snprintf(item.name, sizeof item.name, "sort pairs, %u tokens of %u of %u", n, top_k, n_experts);
  if (!prepare(b, &item, call_sort))
    return;
  for (unsigned i = 0; i < item.sets; i++)
    pairs[i] = make_pairs(n, n_experts, top_k);
  bench_run(b, &item);
  bench_free_all();
}

static void
run_sum(bench *b, uint32_t n, uint32_t n_experts, uint32_t top_k, uint32_t width) {
  size_t size = (size_t)n * top_k;
  bench_item item = {.bytes = (double)width * (4.0 * (double)size + 2.0 * n)};
  snprintf(item.name, sizeof item.name, "sum of %u + norm, %u x %u float32", top_k, n, width);
  if (!prepare(b, &item, call_sum))
    return;
  for (unsigned i = 0; i < item.sets; i++) {
    pairs[i] = make_pairs(n, n_experts, top_k);
    bench_check(oct_cuda_sort_pairs(&b->queue, &pairs[i]), "sorting");
    sums[i] = (oct_cuda_combine){.type = OCT_CUDA_F32,
                                 .out_type = OCT_CUDA_BF16,
                                 .pairs = &pairs[i],
                                 .weights = bench_random(b, OCT_CUDA_F32, size, 1),
                                 .width = width,
                                 .y = bench_random(b, OCT_CUDA_F32, size * width, 1),
                                 .y_stride = width,
                                 .norm = bench_random(b, OCT_CUDA_BF16, width, 1),
                                 .norm_eps = 1e-5f,
                                 .out = bench_room((size_t)n * width * 2),
                                 .out_stride = width};
  }
  bench_run(b, &item);
  bench_free_all();
}

/* In the sizes of Kimi K3. */
void
bench_hybrid(bench *b) {
  static const uint32_t rows[] = {1, 8, 64, 1024, 8192};
  for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++) {
    for (uint32_t n_blocks = 1; n_blocks <= 8; n_blocks = n_blocks == 1 ? 4 : 2 * n_blocks)
      bench_residual_mix(b, rows[i], 7168, n_blocks);
    run_gate(b, rows[i], 12288);
    run_gated_norm(b, rows[i], 96, 128);
    run_situ(b, rows[i], 6144);
    run_route(b, rows[i], 896, 16);
    run_sort(b, rows[i], 896, 16);
    run_sum(b, rows[i], 896, 16, 3584);
  }
}
