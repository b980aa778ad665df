/* The workspace of the largest call does for every smaller one, whatever mix of decodes, drafts and
 * prompts it has. Asked of launchers on the host: this needs no GPU. */
#include "kernels/cuda/kda.h"
#include "kernels/cuda/workspace.h"
#include "tests/kernels/cuda/device.h"

#define CASES    300
#define LAUNCHES 100

/* What an engine is opened for, on some machine. */
typedef struct limits {
  oct_cuda_queue queue;
  guint32 seqs, tokens, context, page;
  oct_cuda_type cache;
} limits;

/* A launch of such an engine. */
typedef struct shape {
  oct_cuda_batch batch;
  guint32 n_decode, queries, context;
} shape;

static const guint32 powers[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024};

static guint32
one_of(const guint32 *from, guint32 n) {
  return from[data_between(0, n - 1)];
}

static limits
draw_limits(void) {
  static const guint32 multiprocessors[] = {16, 108, 132, 148}, pages[] = {4, 16, 32, 64};
  limits l = {.queue = {.sm_count = one_of(multiprocessors, G_N_ELEMENTS(multiprocessors)),
                        .capability = data_between(0, 3) > 0 ? 90 : 100,
                        .flags = data_between(0, 1) > 0 ? OCT_CUDA_FIXED_ORDER : 0},
              .seqs = data_between(1, 1024),
              .page = one_of(pages, G_N_ELEMENTS(pages)),
              .cache = data_between(0, 1) > 0 ? OCT_CUDA_FP8 : OCT_CUDA_BF16};
  guint32 tokens = 16 * one_of(powers, G_N_ELEMENTS(powers));
  l.tokens = MAX(l.seqs, tokens);
  l.context = 1024 * one_of(powers, G_N_ELEMENTS(powers)) - data_between(0, 1) * 777;
  return l;
}

/* Decodes of a size that graphs have or of any; a short prompt, padded; drafts; prompts beside
 * decodes. */
static shape
draw_shape(const limits *l) {
  guint32 n = data_between(1, l->seqs), each = data_between(2, 16);
  guint32 context = data_between(0, 1) > 0 ? 2048 * one_of(powers, 8) : data_between(1, l->context);
  shape s = {.context = MIN(l->context, context)};
  switch (data_between(0, 4)) {
  case 0:
    n = MAX(n / 16 * 16, MIN(l->seqs, 16));
    s.batch = (oct_cuda_batch){.n_tokens = n, .n_seqs = n};
    s.n_decode = n;
    s.queries = 1;
    break;
  case 1:
    s.batch = (oct_cuda_batch){.n_tokens = n, .n_seqs = n};
    s.n_decode = n;
    s.queries = 1;
    break;
  case 2:
    s.batch = (oct_cuda_batch){.n_tokens = MIN(16, l->tokens), .n_seqs = 1};
    s.queries = MIN(16, l->tokens);
    break;
  case 3:
    n = MAX(1, MIN(n, l->tokens / each));
    s.batch = (oct_cuda_batch){.n_tokens = n * each, .n_seqs = n};
    s.queries = each;
    break;
  default:
    s.batch = (oct_cuda_batch){.n_tokens = l->tokens, .n_seqs = n};
    s.n_decode = data_between(0, n);
    s.queries = l->tokens - s.n_decode;
  }
  return s;
}

static shape
largest(const limits *l) {
  return (shape){.batch = {.n_tokens = l->tokens, .n_seqs = l->seqs},
                 .queries = l->tokens,
                 .context = l->context};
}

static void
holds(const char *what, const limits *l, guint32 heads, const shape *s, gsize used, gsize bytes) {
  if (used <= bytes)
    return;
  g_test_message("%s: %u heads, pages of %u, capability %u, flags %u: %u tokens of %u sequences, "
                 "%u decodes, %u queries, context %u of %u: %" G_GSIZE_FORMAT " of %" G_GSIZE_FORMAT
                 " bytes",
                 what, heads, l->page, l->queue.capability, l->queue.flags, s->batch.n_tokens,
                 s->batch.n_seqs, s->n_decode, s->queries, s->context, l->context, used, bytes);
  g_test_fail();
}

/* No more than was asked for unless one sequence needs it. */
static void
keeps_to(const limits *l, gsize bytes, gsize one) {
  gsize most =
      (l->queue.flags & OCT_CUDA_FIXED_ORDER) != 0 ? OCT_CUDA_FIXED_BYTES : OCT_CUDA_PARTS_BYTES;
  g_assert_cmpuint(bytes, <=, MAX(most, one) + (1u << 20));
}

/* ---------------------------------------------------------------- the kinds */

static const guint32 all_heads[] = {1, 4, 8, 12, 16, 17, 24, 32, 48, 64, 65, 96, 128};

static oct_cuda_mla
latent_call(const limits *l, guint32 heads, const shape *s) {
  return (oct_cuda_mla){.type = OCT_CUDA_BF16,
                        .batch = &s->batch,
                        .n_decode = s->n_decode,
                        .max_queries = s->queries,
                        .max_context = s->context,
                        .kv = {.type = l->cache,
                               .page_bytes = 4096,
                               .page_tokens = l->page,
                               .n_heads = 1,
                               .width = 576},
                        .n_heads = heads,
                        .lora = 512,
                        .rope = 64};
}

static void
test_latent(void) {
  for (guint i = 0; i < CASES; i++) {
    limits l = draw_limits();
    guint32 heads = one_of(all_heads, G_N_ELEMENTS(all_heads));
    shape s = largest(&l);
    oct_cuda_mla call = latent_call(&l, heads, &s);
    gsize bytes = oct_cuda_mla_workspace(&l.queue, &call);
    keeps_to(&l, bytes, (gsize)128 * 128 * 514 * sizeof(float));
    for (guint k = 0; k < LAUNCHES; k++) {
      s = draw_shape(&l);
      call = latent_call(&l, heads, &s);
      call.workspace_bytes = bytes;
      holds("latents", &l, heads, &s, oct_cuda_mla_used(&l.queue, &call), bytes);
    }
  }
}

static void
test_heads(void) {
  static const guint32 widths[] = {64, 80, 96, 128, 256}, groups[] = {1, 4, 8, 12, 16};
  for (guint i = 0; i < CASES; i++) {
    limits l = draw_limits();
    guint32 width = one_of(widths, G_N_ELEMENTS(widths)), kv_heads = one_of(powers, 6),
            window = data_between(0, 2) > 0 ? 0 : data_between(16, 4096), bytes_of = width * 2;
    shape s = largest(&l);
    oct_cuda_attention call = {.type = OCT_CUDA_BF16,
                               .batch = &s.batch,
                               .kv = {.type = l.cache,
                                      .page_bytes = 4096,
                                      .has_values = TRUE,
                                      .page_tokens = MAX(l.page, 16),
                                      .n_heads = kv_heads,
                                      .width = width},
                               .n_heads = kv_heads * one_of(groups, G_N_ELEMENTS(groups)),
                               .window = window,
                               .q_stride = bytes_of};
    call.max_queries = s.queries;
    call.max_context = s.context;
    call.workspace_bytes = oct_cuda_attention_workspace(&l.queue, &call);
    keeps_to(&l, call.workspace_bytes, 0);
    for (guint k = 0; k < LAUNCHES; k++) {
      s = draw_shape(&l);
      call.n_decode = s.n_decode;
      call.max_queries = s.queries;
      call.max_context = s.context;
      holds("heads", &l, call.n_heads, &s, oct_cuda_attention_used(&l.queue, &call),
            call.workspace_bytes);
    }
  }
}

/* Ranks that share tokens out: of latents, and of a head that all have a copy of. */
static void
test_parts(void) {
  for (guint i = 0; i < CASES; i++) {
    limits l = draw_limits();
    gboolean latents = i % 2 == 0;
    guint32 members = one_of(powers + 1, 3), heads = one_of(all_heads, 8);
    oct_cuda_context_attention call = {.type = OCT_CUDA_BF16,
                                       .n = MIN(l.tokens, 128),
                                       .members = members,
                                       .kv = {.type = l.cache,
                                              .page_bytes = 4096,
                                              .has_values = !latents,
                                              .page_tokens = MAX(l.page, 16),
                                              .n_heads = 1,
                                              .width = latents ? 576 : 128},
                                       .n_heads = heads,
                                       .value_width = latents ? 512 : 128,
                                       .max_visible = l.context};
    gsize bytes = oct_cuda_context_workspace(&l.queue, &call);
    keeps_to(&l, bytes, (gsize)128 * heads * members * 514 * sizeof(float) * 2);
    call.workspace_bytes = bytes;
    for (guint k = 0; k < LAUNCHES; k++) {
      shape s = draw_shape(&l);
      call.n = MIN(s.batch.n_tokens, 128);
      call.max_visible = s.context;
      holds("parts", &l, heads * members, &s, oct_cuda_context_used(&l.queue, &call), bytes);
      g_assert_cmphex(oct_cuda_context_paths(&l.queue, &call), !=, 1u << OCT_CUDA_ATTENTION_PLAIN);
    }
  }
}

/* Passes take as many chunks as there is room for: at least one. */
static void
test_delta(void) {
  for (guint i = 0; i < CASES; i++) {
    limits l = draw_limits();
    shape s = largest(&l);
    oct_cuda_kda call = {
        .type = OCT_CUDA_BF16,
        .conv_type = OCT_CUDA_BF16,
        .batch = &s.batch,
        .kda = {.n_heads = one_of(all_heads, G_N_ELEMENTS(all_heads)), .width = 128, .taps = 4}};
    gsize bytes = oct_cuda_kda_workspace(&l.queue, &call);
    for (guint k = 0; k < LAUNCHES; k++) {
      s = draw_shape(&l);
      call.n_decode = s.n_decode;
      holds("delta", &l, call.kda.n_heads, &s, oct_cuda_kda_workspace(&l.queue, &call), bytes);
    }
  }
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/cuda/workspace/of-latents-does-for-smaller-calls", test_latent);
  g_test_add_func("/cuda/workspace/of-heads-does-for-smaller-calls", test_heads);
  g_test_add_func("/cuda/workspace/of-parts-does-for-smaller-calls", test_parts);
  g_test_add_func("/cuda/workspace/of-delta-attention-does-for-smaller-calls", test_delta);
  return g_test_run();
}
