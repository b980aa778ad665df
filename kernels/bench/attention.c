/* Attention: decode by batch and context, prompts by length, latents. */
#include "kernels/bench/bench.h"

#include <stdlib.h>
#include <string.h>

#define PAGE     16
#define SETS_MAX 64

/* A batch of equal sequences with pages of their own in random order. */
typedef struct sequences {
  oct_cuda_batch batch;
  oct_cuda_tables tables;
  uint32_t n_pages;
} sequences;

static sequences
make_sequences(uint32_t n, uint32_t n_tokens, uint32_t context, uint32_t page) {
  uint32_t total = n * n_tokens, stride = context / page + 1;
  uint32_t *words = malloc(((size_t)2 * total + 4 * n + 4 + (size_t)n * stride) * sizeof *words);
  uint32_t *seq = words, *position = seq + total, *first = position + total, *start = first + n + 1;
  uint32_t *slot = start + n, *pages = slot + n;
  for (uint32_t s = 0; s < n; s++) {
    first[s] = s * n_tokens;
    start[s] = context - n_tokens;
    slot[s] = s;
    for (uint32_t i = 0; i < n_tokens; i++) {
      seq[s * n_tokens + i] = s;
      position[s * n_tokens + i] = start[s] + i;
    }
  }
  first[n] = total;
  for (uint32_t i = 0; i < n * stride; i++)
    pages[i] = i;
  for (uint32_t i = n * stride - 1; i > 0; i--) {
    uint32_t k = (uint32_t)rand() % (i + 1), swap = pages[i];
    pages[i] = pages[k];
    pages[k] = swap;
  }
  sequences s = {.batch = {.n_tokens = total,
                           .n_seqs = n,
                           .token_seq = bench_copy(seq, total * 4),
                           .token_position = bench_copy(position, total * 4),
                           .seq_first = bench_copy(first, (n + 1) * 4),
                           .seq_start = bench_copy(start, n * 4),
                           .seq_slot = bench_copy(slot, n * 4)},
                 .tables = {.pages = bench_copy(pages, (size_t)n * stride * 4), .stride = stride},
                 .n_pages = n * stride};
  free(words);
  return s;
}

typedef struct attention_context {
  oct_cuda_attention calls[SETS_MAX];
  oct_cuda_mla latents[SETS_MAX];
  oct_cuda_context_attention parts[SETS_MAX];
  oct_cuda_mla_expanded expanded[SETS_MAX];
} attention_context;

static attention_context room;

static int
call_attention(const bench *b, void *context, unsigned set) {
  attention_context *c = context;
  return oct_cuda_attend(&b->queue, &c->calls[set]);
}

static int
call_latent(const bench *b, void *context, unsigned set) {
  attention_context *c = context;
  return oct_cuda_mla_attend(&b->queue, &c->latents[set]);
}

static int
call_part(const bench *b, void *context, unsigned set) {
  attention_context *c = context;
  return oct_cuda_context_attend(&b->queue, &c->parts[set]);
}

/* What all members found of one member's heads. */
static int
call_merge(const bench *b, void *context, unsigned set) {
  const oct_cuda_context_attention *c = &((attention_context *)context)->parts[set];
  return oct_cuda_context_merge(&b->queue, c->type, c->out, c->members, c->n * c->n_heads,
                                c->value_width, (void *)(uintptr_t)c->q);
}

static int
call_expanded(const bench *b, void *context, unsigned set) {
  return oct_cuda_mla_attend_expanded(&b->queue, &((attention_context *)context)->expanded[set]);
}

double
bench_attend(bench *b, const bench_attention_shape *s) {
  bench_item item = {.rate = b->bf16_rate, .call = call_attention, .context = &room};
  uint32_t page = s->page_tokens > 0 ? s->page_tokens : PAGE;
  snprintf(item.name, sizeof item.name, "%s %u/%u x %u, %u x %u tokens at %u, %s", s->name,
           s->heads, s->kv_heads, s->width, s->n, s->n_tokens, s->context,
           s->cache == OCT_CUDA_FP8 ? "fp8" : "bf16");
  size_t end = strlen(item.name);
  if (page != PAGE)
    snprintf(item.name + end, sizeof item.name - end, ", pages of %u", page);
  else if (s->gathers)
    snprintf(item.name + end, sizeof item.name - end, ", gathered");
  if (!bench_wants(b, item.name))
    return -1;
  size_t row = 2 * (size_t)s->kv_heads * s->width * oct_cuda_type_bytes(s->cache);
  double seen = s->n_tokens == 1 ? s->context : s->context - (s->n_tokens - 1) / 2.0;
  item.bytes = (double)s->n * s->context * (double)row;
  item.flops = 4.0 * s->n * s->n_tokens * seen * s->heads * s->width;
  item.sets = bench_sets(item.bytes);
  item.calls = item.sets * (1 + 8 / item.sets);
  size_t size = (size_t)s->n * s->n_tokens * s->heads * s->width;
  for (unsigned i = 0; i < item.sets; i++) {
    sequences q = make_sequences(s->n, s->n_tokens, s->context, page);
    oct_cuda_attention *call = &room.calls[i];
    oct_cuda_batch *batch = malloc(sizeof *batch);
    *batch = q.batch;
    *call = (oct_cuda_attention){
        .type = OCT_CUDA_BF16,
        .batch = batch,
        .max_queries = s->n_tokens,
        .max_context = s->context,
        .kv = {.type = s->cache,
               .base = bench_random(
                   b, s->cache, (size_t)q.n_pages * page * row / oct_cuda_type_bytes(s->cache), 1),
               .page_bytes = page * row,
               .page_tokens = page,
               .n_heads = s->kv_heads,
               .width = s->width,
               .has_values = true},
        .tables = q.tables,
        .n_heads = s->heads,
        .scale = 0.08f,
        .q = bench_random(b, OCT_CUDA_BF16, size, 1),
        .out = bench_room(size * 2),
        .q_stride = (size_t)s->heads * s->width,
        .out_stride = (size_t)s->heads * s->width};
    call->workspace_bytes = oct_cuda_attention_workspace(&b->queue, call) +
                            (s->gathers ? oct_cuda_attention_gather(&b->queue, call) : 0);
    call->workspace = bench_bytes(b, call->workspace_bytes, 0, 0);
  }
  double seconds = bench_run(b, &item);
  for (unsigned i = 0; i < item.sets; i++)
    free((void *)room.calls[i].batch);
  bench_free_all();
  return seconds;
}

/* n sequences of n_tokens tokens that end at `context`. */
typedef struct latent_shape {
  uint32_t heads, n, n_tokens, context;
  oct_cuda_type cache;
  oct_cuda_attention_path path;
} latent_shape;

static double
bench_latent(bench *b, const latent_shape *s) {
  bench_item item = {.rate = b->bf16_rate, .call = call_latent, .context = &room};
  uint32_t n = s->n, rows = n * s->n_tokens;
  snprintf(item.name, sizeof item.name, "latents 512 + 64, %u heads, %u x %u at %u, %s%s", s->heads,
           n, s->n_tokens, s->context, s->cache == OCT_CUDA_FP8 ? "fp8" : "bf16",
           s->path == OCT_CUDA_ATTENTION_DECODE ? ", mma.sync" : "");
  if (!bench_wants(b, item.name))
    return -1;
  size_t row = 576 * oct_cuda_type_bytes(s->cache);
  double seen = s->context - (s->n_tokens - 1) / 2.0;
  item.bytes = (double)n * s->context * (double)row;
  item.flops = 2.0 * rows * seen * s->heads * (576 + 512);
  item.sets = bench_sets(item.bytes);
  item.calls = item.sets * (1 + 4 / item.sets);
  for (unsigned i = 0; i < item.sets; i++) {
    sequences q = make_sequences(n, s->n_tokens, s->context, PAGE);
    oct_cuda_mla *call = &room.latents[i];
    oct_cuda_batch *batch = malloc(sizeof *batch);
    *batch = q.batch;
    *call =
        (oct_cuda_mla){.type = OCT_CUDA_BF16,
                       .batch = batch,
                       .path = s->path,
                       .max_queries = s->n_tokens,
                       .max_context = s->context,
                       .kv = {.type = s->cache,
                              .base = bench_random(b, s->cache, (size_t)q.n_pages * PAGE * 576, 1),
                              .page_bytes = PAGE * row,
                              .page_tokens = PAGE,
                              .n_heads = 1,
                              .width = 576},
                       .tables = q.tables,
                       .n_heads = s->heads,
                       .lora = 512,
                       .rope = 64,
                       .scale = 0.07f,
                       .q = bench_random(b, OCT_CUDA_BF16, (size_t)rows * s->heads * 576, 1),
                       .out = bench_room((size_t)rows * s->heads * 512 * 2)};
    call->workspace_bytes = oct_cuda_mla_workspace(&b->queue, call);
    call->workspace = bench_bytes(b, call->workspace_bytes, 0, 0);
  }
  double seconds = bench_run(b, &item);
  for (unsigned i = 0; i < item.sets; i++)
    free((void *)room.latents[i].batch);
  bench_free_all();
  return seconds;
}

double
bench_latents(bench *b, uint32_t heads, uint32_t n, uint32_t context, oct_cuda_type cache) {
  const latent_shape shape = {heads, n, 1, context, cache, OCT_CUDA_ATTENTION_AUTO};
  return bench_latent(b, &shape);
}

/* Shards of 12 and 16 heads, whole models' 96 and 128, drafts, a prompt in this form; and what
 * other machines than Hopper's have. */
static void
bench_latent_shapes(bench *b) {
  static const struct {
    uint32_t heads, n, n_tokens, context;
    bool old;
  } shapes[] = {{12, 64, 1, 8192, true},   {16, 64, 1, 8192, true},   {96, 64, 1, 8192, true},
                {128, 64, 1, 8192, false}, {64, 64, 1, 8192, false},  {32, 64, 1, 8192, false},
                {12, 1, 1, 8192, true},    {12, 16, 1, 8192, true},   {12, 1, 1, 131072, false},
                {96, 1, 1, 8192, false},   {96, 16, 1, 8192, false},  {12, 256, 1, 1024, true},
                {12, 1, 1, 1024, false},   {12, 64, 1, 1024, false},  {32, 64, 1, 1024, false},
                {96, 64, 1, 1024, false},  {96, 256, 1, 256, false},  {12, 64, 4, 8192, false},
                {96, 64, 4, 8192, false},  {96, 1, 2048, 4096, false}};
  for (unsigned i = 0; i < 2 * sizeof shapes / sizeof *shapes; i++) {
    oct_cuda_type cache = i % 2 == 0 ? OCT_CUDA_BF16 : OCT_CUDA_FP8;
    latent_shape s = {shapes[i / 2].heads,   shapes[i / 2].n, shapes[i / 2].n_tokens,
                      shapes[i / 2].context, cache,           OCT_CUDA_ATTENTION_AUTO};
    bench_latent(b, &s);
    s.path = OCT_CUDA_ATTENTION_DECODE;
    if (shapes[i / 2].old)
      bench_latent(b, &s);
  }
}

/* A rank's part of contexts that `members` share: n tokens of all members' heads see `visible` keys
 * each. kv_width 576: latents, else keys and values of a head. */
typedef struct part_shape {
  uint32_t members, heads, kv_width, n, visible;
  oct_cuda_type cache;
  oct_cuda_attention_path path;
} part_shape;

static void
bench_part(bench *b, const part_shape *s) {
  bool latent = s->kv_width == 576;
  uint32_t all = s->members * s->heads, width = latent ? 512 : s->kv_width;
  bench_item item = {.rate = b->bf16_rate, .call = call_part, .context = &room};
  int end = snprintf(item.name, sizeof item.name,
                     "a part of contexts, %u x %u heads x %u, %u at %u, %s%s", s->members, s->heads,
                     s->kv_width, s->n, s->visible, s->cache == OCT_CUDA_FP8 ? "fp8" : "bf16",
                     s->path == OCT_CUDA_ATTENTION_PLAIN ? ", plain" : "");
  if (!bench_wants(b, item.name))
    return;
  size_t row = (latent ? 576 : 2 * s->kv_width) * oct_cuda_type_bytes(s->cache);
  item.bytes = (double)s->n * s->visible * (double)row;
  item.flops = 2.0 * s->n * s->visible * all * (s->kv_width + width);
  item.sets = bench_sets(item.bytes);
  item.calls = item.sets * (1 + 4 / item.sets);
  uint32_t *visible = malloc(s->n * sizeof *visible);
  for (uint32_t i = 0; i < s->n; i++)
    visible[i] = s->visible;
  for (unsigned i = 0; i < item.sets; i++) {
    sequences q = make_sequences(s->n, 1, s->visible, PAGE);
    size_t rows = (size_t)all * s->n;
    oct_cuda_context_attention *call = &room.parts[i];
    *call = (oct_cuda_context_attention){
        .type = OCT_CUDA_BF16,
        .path = s->path,
        .n = s->n,
        .members = s->members,
        .token_seq = q.batch.token_seq,
        .visible = bench_copy(visible, s->n * sizeof *visible),
        .seq_slot = q.batch.seq_slot,
        .kv = {.type = s->cache,
               .base = bench_random(
                   b, s->cache, (size_t)q.n_pages * PAGE * row / oct_cuda_type_bytes(s->cache), 1),
               .page_bytes = PAGE * row,
               .page_tokens = PAGE,
               .n_heads = 1,
               .width = s->kv_width,
               .has_values = !latent},
        .tables = q.tables,
        .n_heads = s->heads,
        .value_width = width,
        .scale = 0.07f,
        .q = bench_random(b, OCT_CUDA_BF16, rows * s->kv_width, 1),
        .out = bench_room(rows * (2 + width) * sizeof(float)),
        .max_visible = s->visible};
    call->workspace_bytes = oct_cuda_context_workspace(&b->queue, call);
    call->workspace = bench_bytes(b, call->workspace_bytes, 0, 0);
  }
  free(visible);
  (void)bench_run(b, &item);
  if (s->path == OCT_CUDA_ATTENTION_AUTO) {
    item.call = call_merge;
    item.flops = 0;
    item.bytes = (double)s->n * all * (2 + width) * sizeof(float);
    snprintf(item.name + end, sizeof item.name - (size_t)end, ": merge");
    (void)bench_run(b, &item);
  }
  bench_free_all();
}

/* Kimi K3 over 8 ranks, at 8k and 128k of context; the plain kernel; two ranks of a key head. */
static void
bench_parts(bench *b) {
  static const part_shape shapes[] = {
      {8, 12, 576, 64, 1024, OCT_CUDA_BF16, OCT_CUDA_ATTENTION_AUTO},
      {8, 12, 576, 64, 1024, OCT_CUDA_FP8, OCT_CUDA_ATTENTION_AUTO},
      {8, 12, 576, 64, 1024, OCT_CUDA_BF16, OCT_CUDA_ATTENTION_PLAIN},
      {8, 12, 576, 16, 16384, OCT_CUDA_BF16, OCT_CUDA_ATTENTION_AUTO},
      {8, 12, 576, 1, 131072, OCT_CUDA_BF16, OCT_CUDA_ATTENTION_AUTO},
      {2, 8, 128, 64, 4096, OCT_CUDA_BF16, OCT_CUDA_ATTENTION_AUTO},
      {2, 8, 128, 64, 4096, OCT_CUDA_FP8, OCT_CUDA_ATTENTION_AUTO},
      {2, 8, 128, 64, 4096, OCT_CUDA_BF16, OCT_CUDA_ATTENTION_PLAIN}};
  for (unsigned i = 0; i < sizeof shapes / sizeof *shapes; i++)
    bench_part(b, &shapes[i]);
}

/* m tokens of a prompt behind `position` others, in the expanded form; its products are not in. */
static void
bench_expanded(bench *b, uint32_t heads, uint32_t m, uint32_t position) {
  bench_item item = {.rate = b->bf16_rate, .call = call_expanded, .context = &room};
  snprintf(item.name, sizeof item.name, "latents expanded 192/128, %u heads, %u tokens at %u",
           heads, m, position);
  if (!bench_wants(b, item.name))
    return;
  size_t n = (size_t)m + position, rows = (size_t)m * heads;
  item.bytes = (double)(n * (64 + 256 * (size_t)heads) + rows * (192 + 128)) * 2;
  item.flops = 2.0 * (double)rows * (position + (m + 1) / 2.0) * (192 + 128);
  item.sets = 1;
  item.calls = 4;
  room.expanded[0] =
      (oct_cuda_mla_expanded){.type = OCT_CUDA_BF16,
                              .n_heads = heads,
                              .lora = 512,
                              .nope = 128,
                              .rope = 64,
                              .value = 128,
                              .m = m,
                              .position = position,
                              .scale = 0.07f,
                              .q = bench_random(b, OCT_CUDA_BF16, rows * 192, 1),
                              .latents = bench_random(b, OCT_CUDA_BF16, n * 576, 1),
                              .kv = bench_random(b, OCT_CUDA_BF16, n * heads * 256, 1),
                              .q_stride = (size_t)heads * 192,
                              .out = bench_room(rows * 128 * 2),
                              .out_stride = (size_t)heads * 128};
  (void)bench_run(b, &item);
  bench_free_all();
}

void
bench_attention(bench *b) {
  static const bench_attention_shape shapes[] = {
      {"decode", 32, 8, 128, 64, 1, 8192, OCT_CUDA_BF16, 0, false},
      {"decode", 32, 8, 128, 64, 1, 8192, OCT_CUDA_FP8, 0, false},
      {"decode", 32, 8, 128, 1, 1, 1024, OCT_CUDA_BF16, 0, false},
      {"decode", 32, 8, 128, 1, 1, 131072, OCT_CUDA_BF16, 0, false},
      {"decode", 32, 8, 128, 16, 1, 1024, OCT_CUDA_BF16, 0, false},
      {"decode", 32, 8, 128, 64, 1, 1024, OCT_CUDA_BF16, 0, false},
      {"decode", 32, 8, 128, 256, 1, 1024, OCT_CUDA_BF16, 0, false},
      {"decode", 64, 8, 128, 64, 1, 8192, OCT_CUDA_BF16, 0, false},
      {"decode", 64, 8, 64, 64, 1, 8192, OCT_CUDA_BF16, 0, false},
      {"decode", 16, 1, 256, 64, 1, 8192, OCT_CUDA_BF16, 0, false},
      {"prefill", 32, 8, 128, 1, 8192, 8192, OCT_CUDA_BF16, 0, false},
      {"prefill", 32, 8, 128, 1, 8192, 8192, OCT_CUDA_BF16, 0, true},
      {"prefill", 32, 8, 128, 1, 8192, 8192, OCT_CUDA_BF16, 128, false},
      {"prefill", 32, 8, 128, 1, 8192, 8192, OCT_CUDA_FP8, 0, false},
      {"prefill", 32, 8, 128, 1, 2048, 8192, OCT_CUDA_BF16, 0, false},
      {"prefill", 32, 8, 128, 8, 1024, 1024, OCT_CUDA_BF16, 0, false},
      {"prefill", 32, 8, 64, 1, 8192, 8192, OCT_CUDA_BF16, 0, false},
      {"verify", 32, 8, 128, 64, 4, 8192, OCT_CUDA_BF16, 0, false}};
  for (unsigned i = 0; i < sizeof shapes / sizeof *shapes; i++)
    bench_attend(b, &shapes[i]);
  bench_latent_shapes(b);
  bench_parts(b);
  bench_expanded(b, 12, 8192, 0);
  bench_expanded(b, 96, 8192, 0);
  bench_expanded(b, 128, 4096, 0);
  bench_expanded(b, 96, 2048, 6144);
}
