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

double
bench_latents(bench *b, uint32_t heads, uint32_t n, uint32_t context, oct_cuda_type cache) {
  bench_item item = {.rate = b->bf16_rate, .call = call_latent, .context = &room};
  snprintf(item.name, sizeof item.name, "decode latents 512 + 64, %u heads, %u at %u, %s", heads, n,
           context, cache == OCT_CUDA_FP8 ? "fp8" : "bf16");
  if (!bench_wants(b, item.name))
    return -1;
  size_t row = 576 * oct_cuda_type_bytes(cache);
  item.bytes = (double)n * context * (double)row;
  item.flops = 2.0 * n * context * heads * (576 + 512);
  item.sets = bench_sets(item.bytes);
  item.calls = item.sets * (1 + 4 / item.sets);
  for (unsigned i = 0; i < item.sets; i++) {
    sequences q = make_sequences(n, 1, context, PAGE);
    oct_cuda_mla *call = &room.latents[i];
    oct_cuda_batch *batch = malloc(sizeof *batch);
    *batch = q.batch;
    *call = (oct_cuda_mla){.type = OCT_CUDA_BF16,
                           .batch = batch,
                           .max_queries = 1,
                           .max_context = context,
                           .kv = {.type = cache,
                                  .base = bench_random(b, cache, (size_t)q.n_pages * PAGE * 576, 1),
                                  .page_bytes = PAGE * row,
                                  .page_tokens = PAGE,
                                  .n_heads = 1,
                                  .width = 576},
                           .tables = q.tables,
                           .n_heads = heads,
                           .lora = 512,
                           .rope = 64,
                           .scale = 0.07f,
                           .q = bench_random(b, OCT_CUDA_BF16, (size_t)n * heads * 576, 1),
                           .out = bench_room((size_t)n * heads * 512 * 2)};
    call->workspace_bytes = oct_cuda_mla_workspace(&b->queue, call);
    call->workspace = bench_bytes(b, call->workspace_bytes, 0, 0);
  }
  double seconds = bench_run(b, &item);
  for (unsigned i = 0; i < item.sets; i++)
    free((void *)room.latents[i].batch);
  bench_free_all();
  return seconds;
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
  bench_latents(b, 16, 64, 8192, OCT_CUDA_BF16);
  bench_latents(b, 16, 64, 8192, OCT_CUDA_FP8);
  bench_latents(b, 12, 64, 8192, OCT_CUDA_FP8);
  bench_latents(b, 128, 64, 4096, OCT_CUDA_BF16);
}
