/* A whole decode step of the llama-3.1-8b shape, random weights, as one graph; against the sum over
 * operators of their floors, and each operator's share. */
#include "kernels/bench/bench.h"

#include <stdlib.h>
#include <string.h>

enum {
  LAYERS = 32,
  HIDDEN = 4096,
  INNER = 14336,
  HEADS = 32,
  KV = 8,
  WIDTH = 128,
  VOCAB = 128256,
  PAGE = 16,
  QKV = (HEADS + 2 * KV) * WIDTH,
};

typedef struct layer {
  void *qkv, *o, *gate_up, *down, *norm;
} layer;

enum part {
  PART_NORM,
  PART_QKV,
  PART_ROPE,
  PART_ATTEND,
  PART_O,
  PART_GATE_UP,
  PART_GLU,
  PART_DOWN,
  PART_HEAD,
  PART_SAMPLE,
  PARTS
};
static const char *const part_names[PARTS] = {
    "norms", "qkv",   "rotate and store", "attention", "o", "gate+up", "glu", "down",
    "head",  "sample"};

typedef struct model {
  layer layers[LAYERS];
  void *embedding, *head, *x, *normed, *qkv, *mixed, *inner, *glu, *pool, *workspace, *sampling;
  float *logits, *angles;
  size_t workspace_bytes, page_bytes;
  uint32_t n, context, *tokens, *ids;
  oct_cuda_batch batch;
  oct_cuda_tables tables;
  const oct_cuda_sample_row *rows;
  uint32_t parts; /* which are run */
} model;

static bool
has(const model *m, enum part part) {
  return m->parts >> part & 1;
}

static int
product(const bench *b, uint32_t n, void *w, uint32_t rows, uint32_t columns, const void *x,
        oct_cuda_type y_type, void *y) {
  const oct_cuda_matmul call = {
      .weight = {.format = OCT_CUDA_MATRIX_BF16, .rows = rows, .columns = columns, .data = w},
      .x_type = OCT_CUDA_BF16,
      .y_type = y_type,
      .m = n,
      .x = x,
      .x_stride = columns,
      .y = y,
      .y_stride = rows};
  return oct_cuda_multiply(&b->queue, b->blas, &call);
}

static int
norm(const bench *b, const model *m, const void *x, const void *weight) {
  const oct_cuda_norm call = {.type = OCT_CUDA_BF16,
                              .residual_type = OCT_CUDA_BF16,
                              .n = m->n,
                              .width = HIDDEN,
                              .x = x,
                              .x_stride = HIDDEN,
                              .residual = m->x,
                              .residual_stride = HIDDEN,
                              .weight = weight,
                              .eps = 1e-5f,
                              .out = m->normed,
                              .out_stride = HIDDEN};
  return oct_cuda_rms_norm(&b->queue, &call);
}

static oct_cuda_attention
attention_of(const model *m, uint32_t l) {
  return (oct_cuda_attention){.type = OCT_CUDA_BF16,
                              .batch = &m->batch,
                              .max_queries = 1,
                              .max_context = m->context,
                              .kv = {.type = OCT_CUDA_BF16,
                                     .base = (char *)m->pool + l * (m->page_bytes / LAYERS),
                                     .page_bytes = m->page_bytes,
                                     .page_tokens = PAGE,
                                     .n_heads = KV,
                                     .width = WIDTH,
                                     .has_values = true},
                              .tables = m->tables,
                              .n_heads = HEADS,
                              .scale = 0.088f,
                              .q = m->qkv,
                              .q_stride = QKV,
                              .out = m->mixed,
                              .out_stride = HEADS * WIDTH,
                              .workspace = m->workspace,
                              .workspace_bytes = m->workspace_bytes};
}

static int
attend(const bench *b, const model *m, uint32_t l) {
  int error = OCT_CUDA_OK;
  oct_cuda_attention call = attention_of(m, l);
  const oct_cuda_rope_store store = {.type = OCT_CUDA_BF16,
                                     .batch = &m->batch,
                                     .kv = call.kv,
                                     .tables = m->tables,
                                     .n_heads = HEADS,
                                     .q = m->qkv,
                                     .k = (char *)m->qkv + 2 * HEADS * WIDTH,
                                     .v = (char *)m->qkv + 2 * (HEADS + KV) * WIDTH,
                                     .q_stride = QKV,
                                     .k_stride = QKV,
                                     .v_stride = QKV,
                                     .angles = m->angles,
                                     .rope_dim = WIDTH};
  call.store = &store;
  if (!has(m, PART_ROPE) || !has(m, PART_ATTEND) || !oct_cuda_attention_can_store(&b->queue, &call))
    call.store = NULL;
  if (has(m, PART_ROPE) && call.store == NULL)
    error = oct_cuda_rope_and_store(&b->queue, &store);
  if (error == OCT_CUDA_OK && has(m, PART_ATTEND))
    error = oct_cuda_attend(&b->queue, &call);
  return error;
}

/* Gates and ups by themselves, and what the activation makes of them. */
static int
feed_inner(const bench *b, const model *m, const layer *l) {
  int error = OCT_CUDA_OK;
  const oct_cuda_glu glu = {.type = OCT_CUDA_BF16,
                            .n = m->n,
                            .inner = INNER,
                            .x = m->inner,
                            .x_stride = 2 * INNER,
                            .out = m->glu,
                            .out_stride = INNER};
  if (has(m, PART_GATE_UP))
    error = product(b, m->n, l->gate_up, 2 * INNER, HIDDEN, m->normed, OCT_CUDA_BF16, m->inner);
  if (error == OCT_CUDA_OK && has(m, PART_GLU))
    error = oct_cuda_glu_rows(&b->queue, &glu);
  return error;
}

static int
feed_forward(const bench *b, const model *m, const layer *l) {
  static const oct_glu_params swiglu = {.kind = OCT_GLU_SWIGLU};
  int error = OCT_CUDA_OK;
  const oct_cuda_matmul gated = {.weight = {.format = OCT_CUDA_MATRIX_BF16,
                                            .rows = 2 * INNER,
                                            .columns = HIDDEN,
                                            .data = l->gate_up},
                                 .x_type = OCT_CUDA_BF16,
                                 .y_type = OCT_CUDA_BF16,
                                 .m = m->n,
                                 .x = m->normed,
                                 .x_stride = HIDDEN,
                                 .glu = &swiglu,
                                 .y = m->glu,
                                 .y_stride = INNER};
  if (has(m, PART_GATE_UP) && has(m, PART_GLU) &&
      oct_cuda_matmul_path(&b->queue, &gated) == OCT_CUDA_PATH_NARROW)
    error = oct_cuda_multiply(&b->queue, b->blas, &gated);
  else
    error = feed_inner(b, m, l);
  if (error == OCT_CUDA_OK && has(m, PART_DOWN))
    error = product(b, m->n, l->down, HIDDEN, INNER, m->glu, OCT_CUDA_BF16, m->mixed);
  return error;
}

static int
finish(const bench *b, const model *m) {
  int error = OCT_CUDA_OK;
  const oct_cuda_sample sample = {.n = m->n,
                                  .vocab = VOCAB,
                                  .logits = m->logits,
                                  .stride = VOCAB,
                                  .batch = &m->batch,
                                  .rows = m->rows,
                                  .tokens = m->tokens,
                                  .workspace = m->sampling};
  if (has(m, PART_HEAD))
    error = product(b, m->n, m->head, VOCAB, HIDDEN, m->normed, OCT_CUDA_F32, m->logits);
  if (error == OCT_CUDA_OK && has(m, PART_SAMPLE))
    error = oct_cuda_sample_rows(&b->queue, &sample);
  return error;
}

static int
call_step(const bench *b, void *context, unsigned set) {
  const model *m = context;
  (void)set;
  const oct_cuda_embed embed = {.table_type = OCT_CUDA_BF16,
                                .type = OCT_CUDA_BF16,
                                .table = m->embedding,
                                .rows = VOCAB,
                                .width = HIDDEN,
                                .ids = m->ids,
                                .n = m->n,
                                .out = m->x};
  int error = oct_cuda_embed_rows(&b->queue, &embed);
  for (uint32_t l = 0; error == OCT_CUDA_OK && l < LAYERS; l++) {
    const layer *w = &m->layers[l];
    if (has(m, PART_NORM))
      error = norm(b, m, l > 0 ? m->mixed : NULL, w->norm);
    if (error == OCT_CUDA_OK && has(m, PART_QKV))
      error = product(b, m->n, w->qkv, QKV, HIDDEN, m->normed, OCT_CUDA_BF16, m->qkv);
    if (error == OCT_CUDA_OK)
      error = attend(b, m, l);
    if (error == OCT_CUDA_OK && has(m, PART_O))
      error = product(b, m->n, w->o, HIDDEN, HEADS * WIDTH, m->mixed, OCT_CUDA_BF16, m->inner);
    if (error == OCT_CUDA_OK && has(m, PART_NORM))
      error = norm(b, m, m->inner, w->norm);
    if (error == OCT_CUDA_OK)
      error = feed_forward(b, m, w);
  }
  if (error == OCT_CUDA_OK && has(m, PART_NORM))
    error = norm(b, m, m->mixed, m->layers[0].norm);
  return error == OCT_CUDA_OK ? finish(b, m) : error;
}

/* ---------------------------------------------------------------- floors */

/* Seconds at least, of a part in all layers: bytes that it has to move, or its flops. */
static double
floor_of(const bench *b, const model *m, enum part part) {
  static const double weights[PARTS] = {[PART_QKV] = (double)QKV * HIDDEN,
                                        [PART_O] = (double)HIDDEN * HEADS * WIDTH,
                                        [PART_GATE_UP] = 2.0 * INNER * HIDDEN,
                                        [PART_DOWN] = (double)INNER * HIDDEN,
                                        [PART_HEAD] = (double)VOCAB * HIDDEN};
  double times = part == PART_HEAD || part == PART_SAMPLE ? 1 : LAYERS;
  double by_flops = 2 * weights[part] * m->n / b->bf16_rate, bytes = 2 * weights[part];
  if (part == PART_ATTEND)
    bytes = 2.0 * 2 * KV * WIDTH * m->n * m->context;
  double by_bytes = bytes / b->read_rate;
  return times * (by_bytes > by_flops ? by_bytes : by_flops);
}

/* ---------------------------------------------------------------- set up */

static void
make_layers(const bench *b, model *m) {
  for (uint32_t l = 0; l < LAYERS; l++) {
    m->layers[l].qkv = bench_random(b, OCT_CUDA_BF16, (size_t)QKV * HIDDEN, 0.02f);
    m->layers[l].o = bench_random(b, OCT_CUDA_BF16, (size_t)HIDDEN * HEADS * WIDTH, 0.02f);
    m->layers[l].gate_up = bench_random(b, OCT_CUDA_BF16, 2 * (size_t)INNER * HIDDEN, 0.02f);
    m->layers[l].down = bench_random(b, OCT_CUDA_BF16, (size_t)INNER * HIDDEN, 0.02f);
    m->layers[l].norm = bench_random(b, OCT_CUDA_BF16, HIDDEN, 1);
  }
  m->embedding = bench_random(b, OCT_CUDA_BF16, (size_t)VOCAB * HIDDEN, 1);
  m->head = bench_random(b, OCT_CUDA_BF16, (size_t)VOCAB * HIDDEN, 0.02f);
}

static void
make_batch(model *m) {
  uint32_t n = m->n, stride = m->context / PAGE + 1;
  uint32_t *words = malloc((3 * (size_t)n + 1 + (size_t)n * stride) * sizeof *words);
  uint32_t *pages = words + 2 * n + 1;
  for (uint32_t i = 0; i <= n; i++)
    words[i] = i;
  for (uint32_t i = 0; i < n; i++)
    words[n + 1 + i] = m->context - 1;
  for (uint32_t i = 0; i < n * stride; i++)
    pages[i] = (uint32_t)((uint64_t)i * 7919 % ((uint64_t)n * stride));
  m->batch = (oct_cuda_batch){.n_tokens = n, .n_seqs = n};
  m->batch.seq_first = m->batch.seq_slot = m->batch.token_seq = bench_copy(words, (n + 1) * 4);
  m->batch.token_position = m->batch.seq_start = bench_copy(words + n + 1, n * 4);
  m->tables =
      (oct_cuda_tables){.pages = bench_copy(pages, (size_t)n * stride * 4), .stride = stride};
  m->ids = m->batch.seq_slot;
  free(words);
}

static void
make_rows(model *m) {
  oct_cuda_sample_row *rows = calloc(m->n, sizeof *rows);
  for (uint32_t i = 0; i < m->n; i++)
    rows[i] = (oct_cuda_sample_row){
        .sampling = {.top_p = 1, .repetition = 1, .top_k = -1}, .seq = i, .token = i};
  m->rows = bench_copy(rows, m->n * sizeof *rows);
  free(rows);
}

static void
make_room(const bench *b, model *m) {
  size_t n = m->n;
  m->x = bench_random(b, OCT_CUDA_BF16, n * HIDDEN, 1);
  m->normed = bench_random(b, OCT_CUDA_BF16, n * HIDDEN, 1);
  m->qkv = bench_random(b, OCT_CUDA_BF16, n * QKV, 1);
  m->mixed = bench_random(b, OCT_CUDA_BF16, n * HIDDEN, 1);
  m->inner = bench_random(b, OCT_CUDA_BF16, n * 2 * INNER, 1);
  m->glu = bench_random(b, OCT_CUDA_BF16, n * INNER, 1);
  m->logits = bench_random(b, OCT_CUDA_F32, n * VOCAB, 1);
  m->angles = bench_random(b, OCT_CUDA_F32, (size_t)(m->context + 1) * WIDTH, 0.7f);
  m->tokens = bench_room(n * 4);
  m->sampling = bench_room(oct_cuda_sample_workspace(m->n, VOCAB));
  m->page_bytes = (size_t)LAYERS * 2 * KV * PAGE * WIDTH * 2;
  m->pool = bench_random(b, OCT_CUDA_BF16, (n * m->tables.stride + 1) * m->page_bytes / 2, 1);
  const oct_cuda_attention call = attention_of(m, 0);
  m->workspace_bytes = oct_cuda_attention_workspace(&b->queue, &call);
  m->workspace = bench_bytes(b, m->workspace_bytes, 0, 0);
}

static void
run_step(bench *b, uint32_t n, uint32_t context) {
  model *m = calloc(1, sizeof *m);
  m->n = n;
  m->context = context;
  bench_item item = {.sets = 1, .calls = 1, .call = call_step, .context = m};
  snprintf(item.name, sizeof item.name, "step llama-3.1-8b bf16, %u at %u", n, context);
  if (bench_wants(b, item.name)) {
    make_layers(b, m);
    make_batch(m);
    make_room(b, m);
    make_rows(m);
    double floor = 0;
    for (int p = 0; p < PARTS; p++)
      floor += floor_of(b, m, (enum part)p);
    item.bytes = floor * b->read_rate;
    m->parts = (1u << PARTS) - 1;
    double whole = bench_run(b, &item);
    printf("  %.2f x of the floor of %.0f us; without a part:\n", whole / floor, floor * 1e6);
    for (int p = 0; p < PARTS; p++) {
      m->parts = ((1u << PARTS) - 1) & ~(1u << p);
      snprintf(item.name, sizeof item.name, "  step, %u: less %s", n, part_names[p]);
      item.bytes = (floor - floor_of(b, m, (enum part)p)) * b->read_rate;
      double rest = bench_run(b, &item);
      printf("    %-20s takes %8.1f us, floor %8.1f\n", part_names[p], (whole - rest) * 1e6,
             floor_of(b, m, (enum part)p) * 1e6);
    }
    bench_free_all();
  }
  free(m);
}

void
bench_step(bench *b) {
  static const uint32_t batches[] = {1, 16, 64, 256};
  for (unsigned i = 0; i < sizeof batches / sizeof *batches; i++)
    run_step(b, batches[i], 1024);
}
