/* Matrix products of the shapes that models have, by rows; those of experts. */
#include "kernels/bench/bench.h"

#include <math.h>
#include <stdlib.h>

#define SETS_MAX 64

static oct_cuda_matmul products[SETS_MAX];

static int
call_product(const bench *b, void *context, unsigned set) {
  (void)context;
  return oct_cuda_multiply(&b->queue, b->blas, &products[set]);
}

static const char *const format_names[] = {"f32", "bf16", "fp8", "fp8 block", "mxfp4", "int4"};
static const char *const path_names[] = {"auto",   "blas", "skinny", "tile",
                                         "stream", "wide", "codes",  "narrow"};

static double
weight_bytes(oct_cuda_format format, double n) {
  static const double bytes[] = {4, 2, 1, 1 + 4.0 / 16384, 0.5 + 1.0 / 32, 0.5 + 4.0 / 128};
  return bytes[format] * n;
}

/* n matrices of a format. */
static oct_cuda_matrix
make_weight(const bench *b, oct_cuda_format format, size_t n, uint32_t rows, uint32_t columns) {
  size_t size = n * rows * columns;
  oct_cuda_matrix w = {.format = format, .rows = rows, .columns = columns};
  switch (format) {
  case OCT_CUDA_MATRIX_F32:
  case OCT_CUDA_MATRIX_BF16:
    w.data = bench_random(b, format == OCT_CUDA_MATRIX_F32 ? OCT_CUDA_F32 : OCT_CUDA_BF16, size, 1);
    break;
  case OCT_CUDA_MATRIX_FP8:
  case OCT_CUDA_MATRIX_FP8_BLOCK:
    w.data = bench_random(b, OCT_CUDA_FP8, size, 4);
    w.scales = bench_random(b, OCT_CUDA_F32, n * oct_cuda_matrix_scale_bytes(&w) / 4, 1);
    break;
  case OCT_CUDA_MATRIX_MXFP4:
    w.data = bench_bytes(b, n * oct_cuda_matrix_bytes(&w), 0, 255);
    w.scales = bench_bytes(b, n * oct_cuda_matrix_scale_bytes(&w), 118, 126);
    break;
  case OCT_CUDA_MATRIX_MXFP4_ROWS: /* of scaled.h */
    break;
  case OCT_CUDA_MATRIX_INT4:
    w.group = 128;
    w.data = bench_bytes(b, n * oct_cuda_matrix_bytes(&w), 0, 255);
    w.scales = bench_bytes(b, n * oct_cuda_matrix_scale_bytes(&w), 8, 8); /* zeros too */
    break;
  }
  return w;
}

double
bench_product(bench *b, const char *shape, uint32_t m, uint32_t rows, uint32_t columns,
              oct_cuda_format format, oct_cuda_path path) {
  bench_item item = {.rate = b->bf16_rate, .call = call_product};
  snprintf(item.name, sizeof item.name, "product %s %s %u x %u x %u, %s", shape,
           format_names[format], m, rows, columns, path_names[path]);
  if (!bench_wants(b, item.name))
    return -1;
  double elements = (double)rows * columns;
  item.bytes = weight_bytes(format, elements) + 2.0 * m * ((double)columns + rows);
  item.flops = 2 * elements * m;
  item.sets = bench_sets(item.bytes);
  item.calls = item.sets * (1 + 8 / item.sets);
  for (unsigned i = 0; i < item.sets; i++)
    products[i] = (oct_cuda_matmul){.weight = make_weight(b, format, 1, rows, columns),
                                    .path = path,
                                    .x_type = OCT_CUDA_BF16,
                                    .y_type = OCT_CUDA_BF16,
                                    .m = m,
                                    .x = bench_random(b, OCT_CUDA_BF16, (size_t)m * columns, 1),
                                    .x_stride = columns,
                                    .y = bench_room((size_t)m * rows * 2),
                                    .y_stride = rows};
  double seconds = bench_run(b, &item);
  bench_free_all();
  return seconds;
}

/* ---------------------------------------------------------------- experts */

static oct_cuda_expert_matmul experts[SETS_MAX];

static int
call_experts(const bench *b, void *context, unsigned set) {
  (void)context;
  return oct_cuda_expert_multiply(&b->queue, &experts[set]);
}

static void
choose_evenly(uint32_t *chosen, uint32_t n, uint32_t top_k, uint32_t n_experts) {
  for (uint32_t i = 0; i < n * top_k; i++) {
    bool again;
    do {
      again = false;
      chosen[i] = (uint32_t)rand() % n_experts;
      for (uint32_t k = i / top_k * top_k; k < i; k++)
        again |= chosen[k] == chosen[i];
    } while (again);
  }
}

static double
random_share(void) {
  return (rand() + 0.5) / (RAND_MAX + 1.0);
}

/* Experts' popularities are as e to the power of normal numbers times `spread`: without putting
 * back, which is the most of their logarithms, each with Gumbel noise. */
static void
choose_unevenly(uint32_t *chosen, uint32_t n, uint32_t top_k, uint32_t n_experts, double spread) {
  double *popular = malloc(2 * (size_t)n_experts * sizeof *popular), *now = popular + n_experts;
  for (uint32_t e = 0; e < n_experts; e++)
    popular[e] = spread * sqrt(-2 * log(random_share())) * cos(2 * 3.14159265 * random_share());
  for (uint32_t i = 0; i < n; i++) {
    for (uint32_t e = 0; e < n_experts; e++)
      now[e] = popular[e] - log(-log(random_share()));
    for (uint32_t k = 0; k < top_k; k++) {
      uint32_t best = 0;
      for (uint32_t e = 1; e < n_experts; e++)
        best = now[e] > now[best] ? e : best;
      chosen[(size_t)i * top_k + k] = best;
      now[best] = -INFINITY;
    }
  }
  free(popular);
}

/* Random experts for n tokens, evenly with a spread of 0; the number of those that were chosen. */
static uint32_t
make_pairs(const bench *b, oct_cuda_pairs *pairs, uint32_t n, uint32_t top_k, uint32_t n_experts,
           double spread) {
  uint32_t *chosen = calloc((size_t)n * top_k + n_experts, sizeof *chosen), distinct = 0;
  uint32_t *seen = chosen + (size_t)n * top_k;
  if (spread > 0)
    choose_unevenly(chosen, n, top_k, n_experts, spread);
  else
    choose_evenly(chosen, n, top_k, n_experts);
  for (uint32_t i = 0; i < n * top_k; i++)
    distinct += seen[chosen[i]]++ == 0;
  *pairs = (oct_cuda_pairs){.n = n,
                            .top_k = top_k,
                            .n_experts = n_experts,
                            .n_local = n_experts,
                            .experts = bench_copy(chosen, (size_t)n * top_k * 4),
                            .starts = bench_room((n_experts + 1) * 4),
                            .pair_of = bench_room((size_t)n * top_k * 4),
                            .row_of = bench_room((size_t)n * top_k * 4)};
  bench_check(oct_cuda_sort_pairs(&b->queue, pairs), "sort");
  free(chosen);
  return distinct;
}

/* Bytes count the experts that were chosen. */
static double
run_uneven(bench *b, uint32_t n, uint32_t n_experts, uint32_t top_k, uint32_t rows,
           uint32_t columns, oct_cuda_format format, oct_cuda_path path, double spread) {
  bench_item item = {.rate = b->bf16_rate, .call = call_experts};
  snprintf(item.name, sizeof item.name, "experts %s, %u tokens, %u of %u%s, %u x %u%s%s",
           format_names[format], n, top_k, n_experts, spread > 0 ? " unevenly" : "", rows, columns,
           path == OCT_CUDA_PATH_AUTO ? "" : ", ",
           path == OCT_CUDA_PATH_AUTO ? "" : path_names[path]);
  if (!bench_wants(b, item.name))
    return -1;
  oct_cuda_pairs pairs;
  uint32_t distinct = make_pairs(b, &pairs, n, top_k, n_experts, spread);
  double elements = (double)rows * columns;
  item.bytes =
      weight_bytes(format, elements) * distinct + 2.0 * n * top_k * ((double)columns + rows);
  item.flops = 2 * elements * n * top_k;
  item.sets = bench_sets(item.bytes);
  if (item.sets > 16)
    item.sets = 16;
  item.calls = item.sets * (1 + 8 / item.sets);
  for (unsigned i = 0; i < item.sets; i++)
    experts[i] =
        (oct_cuda_expert_matmul){.type = OCT_CUDA_BF16,
                                 .y_type = OCT_CUDA_BF16,
                                 .path = path,
                                 .weight = make_weight(b, format, n_experts, rows, columns),
                                 .pairs = &pairs,
                                 .gather = true,
                                 .x = bench_random(b, OCT_CUDA_BF16, (size_t)n * columns, 1),
                                 .x_stride = columns,
                                 .y = bench_room((size_t)n * top_k * rows * 2),
                                 .y_stride = rows};
  double seconds = bench_run(b, &item);
  bench_free_all();
  return seconds;
}

static double
run_experts(bench *b, uint32_t n, uint32_t n_experts, uint32_t top_k, uint32_t rows,
            uint32_t columns, oct_cuda_format format, oct_cuda_path path) {
  return run_uneven(b, n, n_experts, top_k, rows, columns, format, path, 0);
}

double
bench_experts(bench *b, uint32_t n, uint32_t n_experts, uint32_t top_k, uint32_t rows,
              uint32_t columns, oct_cuda_format format) {
  return run_experts(b, n, n_experts, top_k, rows, columns, format, OCT_CUDA_PATH_AUTO);
}

/* ---------------------------------------------------------------- a whole block of experts */

typedef struct expert_block {
  oct_cuda_pairs pairs;
  oct_cuda_expert_matmul up, down;
  oct_cuda_glu glu;
  oct_cuda_combine combine;
} expert_block;

static expert_block blocks[SETS_MAX];

static int
call_block(const bench *b, void *context, unsigned set) {
  const expert_block *e = &blocks[set];
  (void)context;
  int error = oct_cuda_sort_pairs(&b->queue, &e->pairs);
  if (error == OCT_CUDA_OK)
    error = oct_cuda_expert_multiply(&b->queue, &e->up);
  if (error == OCT_CUDA_OK)
    error = oct_cuda_glu_rows(&b->queue, &e->glu);
  if (error == OCT_CUDA_OK)
    error = oct_cuda_expert_multiply(&b->queue, &e->down);
  return error == OCT_CUDA_OK ? oct_cuda_combine_pairs(&b->queue, &e->combine) : error;
}

static void
make_block(const bench *b, expert_block *e, const oct_cuda_pairs *pairs, uint32_t hidden,
           uint32_t inner, oct_cuda_format format) {
  const uint32_t rows = pairs->n * pairs->top_k;
  e->pairs = *pairs;
  e->up = (oct_cuda_expert_matmul){
      .type = OCT_CUDA_BF16,
      .y_type = OCT_CUDA_BF16,
      .weight = make_weight(b, format, pairs->n_experts, 2 * inner, hidden),
      .pairs = &e->pairs,
      .gather = true,
      .x = bench_random(b, OCT_CUDA_BF16, (size_t)pairs->n * hidden, 1),
      .x_stride = hidden,
      .y = bench_room((size_t)rows * 2 * inner * 2),
      .y_stride = (size_t)2 * inner};
  e->glu = (oct_cuda_glu){.type = OCT_CUDA_BF16,
                          .n = rows,
                          .inner = inner,
                          .n_device = pairs->starts + pairs->n_local,
                          .x = e->up.y,
                          .x_stride = (size_t)2 * inner,
                          .out = bench_room((size_t)rows * inner * 2),
                          .out_stride = inner};
  e->down =
      (oct_cuda_expert_matmul){.type = OCT_CUDA_BF16,
                               .weight = make_weight(b, format, pairs->n_experts, hidden, inner),
                               .pairs = &e->pairs,
                               .x = e->glu.out,
                               .x_stride = inner,
                               .y = bench_room((size_t)rows * hidden * 4),
                               .y_stride = hidden};
  e->combine = (oct_cuda_combine){.type = OCT_CUDA_F32,
                                  .out_type = OCT_CUDA_BF16,
                                  .pairs = &e->pairs,
                                  .weights = bench_random(b, OCT_CUDA_F32, rows, 1),
                                  .width = hidden,
                                  .y = e->down.y,
                                  .y_stride = hidden,
                                  .out = bench_room((size_t)pairs->n * hidden * 2),
                                  .out_stride = hidden};
}

double
bench_expert_block(bench *b, uint32_t n, uint32_t n_experts, uint32_t top_k, uint32_t hidden,
                   uint32_t inner, oct_cuda_format format, uint32_t *distinct) {
  bench_item item = {.rate = b->bf16_rate, .call = call_block};
  snprintf(item.name, sizeof item.name, "expert block %s, %u tokens, %u of %u, %u x %u",
           format_names[format], n, top_k, n_experts, inner, hidden);
  if (!bench_wants(b, item.name))
    return -1;
  oct_cuda_pairs pairs;
  *distinct = make_pairs(b, &pairs, n, top_k, n_experts, 0);
  double elements = 3.0 * hidden * inner;
  item.bytes =
      weight_bytes(format, elements) * *distinct + (double)n * top_k * (8.0 * hidden + 6.0 * inner);
  item.flops = 2 * elements * n * top_k;
  item.sets = bench_sets(item.bytes);
  if (item.sets > 8)
    item.sets = 8;
  item.calls = item.sets * (1 + 4 / item.sets);
  for (unsigned i = 0; i < item.sets; i++)
    make_block(b, &blocks[i], &pairs, hidden, inner, format);
  double seconds = bench_run(b, &item);
  bench_free_all();
  return seconds;
}

static const struct {
  const char *name;
  uint32_t rows, columns;
} shapes[] = {
    {"qkv", 6144, 4096}, {"o", 4096, 4096}, {"gate+up", 28672, 4096}, {"down", 4096, 14336}};

void
bench_matmul(bench *b) {
  static const uint32_t rows[] = {1, 4, 8, 16, 32, 64, 128, 256};
  for (unsigned s = 0; s < sizeof shapes / sizeof *shapes; s++)
    for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++) {
      bench_product(b, shapes[s].name, rows[i], shapes[s].rows, shapes[s].columns,
                    OCT_CUDA_MATRIX_BF16, OCT_CUDA_PATH_BLAS);
      bench_product(b, shapes[s].name, rows[i], shapes[s].rows, shapes[s].columns,
                    OCT_CUDA_MATRIX_BF16, OCT_CUDA_PATH_NARROW);
      if (rows[i] <= 8)
        bench_product(b, shapes[s].name, rows[i], shapes[s].rows, shapes[s].columns,
                      OCT_CUDA_MATRIX_BF16, OCT_CUDA_PATH_SKINNY);
      if (rows[i] <= 32)
        bench_product(b, shapes[s].name, rows[i], shapes[s].rows, shapes[s].columns,
                      OCT_CUDA_MATRIX_BF16, OCT_CUDA_PATH_STREAM);
    }
  bench_product(b, "gate+up", 4096, 28672, 4096, OCT_CUDA_MATRIX_BF16, OCT_CUDA_PATH_BLAS);
  bench_product(b, "gate+up", 4096, 28672, 4096, OCT_CUDA_MATRIX_BF16, OCT_CUDA_PATH_TILE);
  static const uint32_t tokens[] = {1, 16, 64, 256, 512, 1024, 2048};
  static const oct_cuda_path paths[] = {OCT_CUDA_PATH_SKINNY, OCT_CUDA_PATH_STREAM,
                                        OCT_CUDA_PATH_WIDE};
  for (unsigned i = 0; i < sizeof tokens / sizeof *tokens; i++)
    for (unsigned p = 0; p < sizeof paths / sizeof *paths; p++)
      if (tokens[i] < 2048 || p == 2)
        run_experts(b, tokens[i], 128, 8, 1536, 2048, OCT_CUDA_MATRIX_BF16, paths[p]);
}

/* Experts of models in bf16, chosen evenly and as unevenly as kimi-linear-48b-a3b with made-up
 * weights does, by the kernels that may be the quickest. */
void
bench_choices(bench *b) {
  static const struct {
    uint32_t n_experts, top_k, inner, hidden;
  } of[] = {{8, 2, 14336, 4096}, {128, 8, 768, 2048}, {256, 8, 1024, 2304}, {32, 4, 2880, 2880}};
  static const uint32_t means[] = {1, 2, 4, 8, 12, 16, 32, 64};
  static const double spreads[] = {0, 1.3};
  static const oct_cuda_path paths[] = {OCT_CUDA_PATH_STREAM, OCT_CUDA_PATH_WIDE};
  for (unsigned s = 0; s < sizeof of / sizeof *of; s++)
    for (unsigned t = 0; t < sizeof means / sizeof *means; t++)
      for (unsigned i = 0; i < 4; i++) {
        uint32_t n = means[t] * of[s].n_experts / of[s].top_k;
        srand(n); /* the same choices for each kernel */
        run_uneven(b, n, of[s].n_experts, of[s].top_k, 2 * of[s].inner, of[s].hidden,
                   OCT_CUDA_MATRIX_BF16, paths[i % 2], spreads[i / 2]);
        srand(n);
        run_uneven(b, n, of[s].n_experts, of[s].top_k, of[s].hidden, of[s].inner,
                   OCT_CUDA_MATRIX_BF16, paths[i % 2], spreads[i / 2]);
      }
}

/* A product by each kernel that may be the quickest for so many rows. */
static void
bench_paths(bench *b, const char *shape, uint32_t m, uint32_t rows, uint32_t columns,
            oct_cuda_format format) {
  bool is_packed = format >= OCT_CUDA_MATRIX_MXFP4;
  bench_product(b, shape, m, rows, columns, format, OCT_CUDA_PATH_CODES);
  if (m <= 16)
    bench_product(b, shape, m, rows, columns, format, OCT_CUDA_PATH_SKINNY);
  if (m <= 32 && !is_packed)
    bench_product(b, shape, m, rows, columns, format, OCT_CUDA_PATH_STREAM);
  if (m >= 64 && !is_packed)
    bench_product(b, shape, m, rows, columns, format, OCT_CUDA_PATH_WIDE);
}

/* Weights of eight and four bits, beside bf16 by cuBLASLt; experts of Kimi K3 on one of 8 ranks,
 * which has whole ones or a part of each, and of others. */
void
bench_codes(bench *b) {
  static const oct_cuda_format formats[] = {OCT_CUDA_MATRIX_FP8, OCT_CUDA_MATRIX_FP8_BLOCK,
                                            OCT_CUDA_MATRIX_MXFP4, OCT_CUDA_MATRIX_INT4};
  static const uint32_t rows[] = {1, 8, 16, 32, 64, 96, 128, 192, 256, 1024, 8192};
  for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++) {
    bench_product(b, "gate+up", rows[i], 28672, 4096, OCT_CUDA_MATRIX_BF16, OCT_CUDA_PATH_BLAS);
    bool is_few = rows[i] <= 128 && rows[i] != 96;
    for (unsigned s = 0; s < sizeof shapes / sizeof *shapes && is_few; s++)
      if (s != 2)
        bench_product(b, shapes[s].name, rows[i], shapes[s].rows, shapes[s].columns,
                      OCT_CUDA_MATRIX_BF16, OCT_CUDA_PATH_BLAS);
    for (unsigned f = 0; f < sizeof formats / sizeof *formats; f++) {
      bench_paths(b, "gate+up", rows[i], 28672, 4096, formats[f]);
      for (unsigned s = 0; s < sizeof shapes / sizeof *shapes && is_few; s++)
        if (s != 2)
          bench_paths(b, shapes[s].name, rows[i], shapes[s].rows, shapes[s].columns, formats[f]);
    }
  }
  static const struct {
    uint32_t n_experts, top_k, rows, columns;
    oct_cuda_format format;
  } experts_of[] = {
      {112, 2, 6144, 3584, OCT_CUDA_MATRIX_MXFP4},    {112, 2, 3584, 3072, OCT_CUDA_MATRIX_MXFP4},
      {896, 16, 768, 3584, OCT_CUDA_MATRIX_MXFP4},    {896, 16, 3584, 384, OCT_CUDA_MATRIX_MXFP4},
      {32, 4, 5760, 2880, OCT_CUDA_MATRIX_MXFP4},     {128, 8, 1536, 2048, OCT_CUDA_MATRIX_INT4},
      {128, 8, 1536, 2048, OCT_CUDA_MATRIX_FP8_BLOCK}};
  static const uint32_t tokens[] = {1, 16, 64, 256, 512, 1024, 2048};
  for (unsigned e = 0; e < sizeof experts_of / sizeof *experts_of; e++)
    for (unsigned i = 0; i < sizeof tokens / sizeof *tokens; i++) {
      static const oct_cuda_path paths[] = {OCT_CUDA_PATH_CODES, OCT_CUDA_PATH_SKINNY,
                                            OCT_CUDA_PATH_STREAM, OCT_CUDA_PATH_WIDE};
      bool is_packed = experts_of[e].format >= OCT_CUDA_MATRIX_MXFP4;
      for (unsigned p = 0; p < (is_packed ? 2 : 4); p++)
        if (p == 0 || (p == 1 && tokens[i] <= 16) || (p == 2 && tokens[i] <= 256) ||
            (p == 3 && tokens[i] >= 256))
          run_experts(b, tokens[i], experts_of[e].n_experts, experts_of[e].top_k,
                      experts_of[e].rows, experts_of[e].columns, experts_of[e].format, paths[p]);
    }
}
