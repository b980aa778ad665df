/* Attention whose tokens are shared out over members: what they find together is what one finds
 * over all tokens, of latents and of keys and values. */
#include "kernels/cuda/workspace.h"
#include "tests/kernels/cuda/device.h"

#include <math.h>
#include <string.h>

#define PAGE    16
#define MEMBERS 4    /* at most */
#define LONGEST 2600 /* context */

/* A batch, and how it is asked for. */
typedef struct context_batch {
  const device_seq *seqs;
  guint32 n, longest;
  gboolean tight; /* workspaces are about the least that do */
  guint32 apart;  /* tokens that are compared: every so manieth */
} context_batch;

typedef struct context_case {
  oct_cuda_type type, cache;
  guint32 members, heads, lora, rope;
  gboolean values; /* keys of lora, and values; rope is 0 */
  guint32 flags;
  oct_cuda_attention_path path; /* PLAIN: without a workspace */
} context_case;

typedef struct members {
  const context_case *c;
  device_batch *batch;
  device_pages *pages; /* of PAGE * members tokens */
  float *host, *q;     /* all latents; [members, tokens, heads, lora + rope] */
  guint32 width;
  gsize n, found; /* tokens; floats that a member finds of one member's heads */
  const context_batch *of;
  float *out[MEMBERS];
  guint32 *place[MEMBERS];
} members;

/* Runs of rows in a page: keys, values. */
static guint32
runs_of(const context_case *c) {
  return c->values ? 2 : 1;
}

/* The tokens of every page that member r keeps. */
static void *
own_pool(const members *m, guint32 r) {
  gsize run = (gsize)PAGE * m->width, n = (gsize)m->pages->n_pages * runs_of(m->c);
  g_autofree float *own = g_new(float, run *n);
  for (gsize p = 0; p < n; p++)
    memcpy(own + p * run, m->host + (p * m->c->members + r) * run, run * sizeof *own);
  return device_put(m->c->cache, own, run * n);
}

/* About the least workspace that does. */
static gsize
least_workspace(const oct_cuda_queue *queue, oct_cuda_context_attention call) {
  for (gsize bytes = call.workspace_bytes; bytes > 0; bytes = call.workspace_bytes) {
    call.workspace_bytes = bytes - MAX(bytes / 32, 1);
    if (oct_cuda_context_used(queue, &call) > call.workspace_bytes)
      return bytes;
  }
  return 0;
}

/* The kernel that a case is for. */
static oct_cuda_attention_path
path_of(const context_case *c, const oct_cuda_queue *queue) {
  if (c->path != OCT_CUDA_ATTENTION_AUTO)
    return c->path;
  return c->values || queue->capability != 90 ? OCT_CUDA_ATTENTION_DECODE
                                              : OCT_CUDA_ATTENTION_HOPPER;
}

static void
attend_member(members *m, const oct_cuda_queue *queue, guint32 r, const void *q) {
  const context_case *c = m->c;
  float scales[2] = {c->cache == OCT_CUDA_FP8 ? 0.75f : 1, c->cache == OCT_CUDA_FP8 ? 1.25f : 1};
  float *d_scales = c->cache == OCT_CUDA_FP8 ? device_put(OCT_CUDA_F32, scales, 2) : NULL;
  guint32 *place = device_room(m->n * sizeof *place),
          *visible = device_room(m->n * sizeof *visible);
  m->out[r] = device_room(c->members * m->found * sizeof(float));
  device_check(
      oct_cuda_context_places(queue, &m->batch->batch, PAGE, c->members, r, place, visible));
  oct_cuda_context_attention call = {
      .type = c->type,
      .path = c->path,
      .n = (guint32)m->n,
      .members = c->members,
      .token_seq = m->batch->batch.token_seq,
      .visible = visible,
      .seq_slot = m->batch->batch.seq_slot,
      .kv = {.type = c->cache,
             .base = own_pool(m, r),
             .page_bytes = (gsize)PAGE * m->width * runs_of(c) * oct_cuda_type_bytes(c->cache),
             .has_values = c->values,
             .page_tokens = PAGE,
             .n_heads = 1,
             .width = m->width,
             .k_scale = d_scales,
             .v_scale = c->values && d_scales != NULL ? d_scales + 1 : NULL},
      .tables = m->pages->tables,
      .n_heads = c->heads,
      .value_width = c->lora,
      .scale = (float)(1 / sqrt(m->width)),
      .q = q,
      .out = m->out[r]};
  if (c->path != OCT_CUDA_ATTENTION_PLAIN) {
    call.max_visible = m->of->longest;
    call.workspace_bytes = oct_cuda_context_workspace(queue, &call);
    if (m->of->tight)
      call.workspace_bytes = least_workspace(queue, call);
    call.workspace = device_zeros(call.workspace_bytes + 16);
  }
  g_assert_cmphex(oct_cuda_context_paths(queue, &call), ==, 1u << path_of(c, queue));
  device_check(oct_cuda_context_attend(queue, &call));
  device_check(oct_cuda_context_attend(queue, &call));
  m->place[r] = g_new(guint32, m->n);
  device_read(m->place[r], place, m->n * sizeof *place);
}

/* Every token has one place, the next in its member's run. */
static void
check_places(const members *m) {
  for (guint32 i = 0; i < m->batch->n_tokens; i++) {
    guint32 position = m->batch->position_of[i], page = PAGE * m->c->members, n = 0;
    for (guint32 r = 0; r < m->c->members; r++) {
      if (m->place[r][i] == OCT_CUDA_NONE)
        continue;
      n++;
      g_assert_cmpuint(r, ==, position % page / PAGE);
      g_assert_cmpuint(m->place[r][i], ==, position / page * PAGE + position % PAGE);
    }
    g_assert_cmpuint(n, ==, 1);
  }
}

/* One token of all heads over all tokens. */
static void
twin(const members *m, guint32 i, const float *q, float *out, float *scratch) {
  const context_case *c = m->c;
  const guint32 *pages = device_pages_of(m->pages, m->batch, m->batch->seq_of[i]);
  const oct_kv_layer kv = {.format = OCT_KV_F32,
                           .base = m->host,
                           .page_stride =
                               (gsize)PAGE * c->members * m->width * runs_of(c) * sizeof(float),
                           .page_tokens = PAGE * c->members,
                           .n_heads = 1,
                           .width = m->width,
                           .has_values = c->values};
  float scale = (float)(1 / sqrt(m->width));
  const oct_attention attention = {.kv = kv, .n_heads = c->heads, .scale = scale};
  const oct_mla latent = {
      .kv = kv, .n_heads = c->heads, .kv_lora = c->lora, .rope = c->rope, .scale = scale};
  if (c->values)
    oct_ref_attention(&attention, pages, m->batch->position_of[i], 0, 1, q, out, scratch);
  else
    oct_ref_mla_latent(&latent, pages, m->batch->position_of[i], 0, c->heads, q, out, scratch);
}

/* What all found of member g's heads, put together, against the whole. */
static void
check_member(const members *m, const oct_cuda_queue *queue, guint32 g) {
  const context_case *c = m->c;
  gsize token = (gsize)c->heads * c->lora, n = m->n * token, rows = (gsize)c->heads * m->width;
  float *parts = device_room(c->members * m->found * sizeof(float));
  g_autofree float *want = g_new0(float, n),
                   *scratch =
                       g_new(float, c->heads *(LONGEST + 1) + (gsize)PAGE * MEMBERS * m->width * 2);
  void *out = device_room_of(c->type, n);
  for (guint32 r = 0; r < c->members; r++)
    g_assert_cmpint(cudaMemcpy(parts + r * m->found, m->out[r] + g * m->found,
                               m->found * sizeof(float), cudaMemcpyDeviceToDevice),
                    ==, cudaSuccess);
  device_check(oct_cuda_context_merge(queue, c->type, parts, c->members, (guint32)(m->n * c->heads),
                                      c->lora, out));
  g_autofree float *got = device_get(c->type, out, n);
  for (guint32 i = 0; i < m->batch->n_tokens; i++)
    if (i % m->of->apart == 0)
      twin(m, i, m->q + (g * m->n + i) * rows, want + i * token, scratch);
    else
      memcpy(want + i * token, got + i * token, token * sizeof *want);
  device_expect("shared context", got, want, n, c->type == OCT_CUDA_F32 ? 1e-5 : 6e-3);
}

static void
check(const context_case *c, const context_batch *of) {
  const oct_cuda_queue *queue = device_queue(c->flags);
  g_autoptr(device_batch) b = device_batch_new(queue, of->seqs, of->n, 1, 1);
  g_autoptr(device_pages) pages = device_pages_new(b, PAGE * c->members);
  members m = {.c = c, .batch = b, .pages = pages, .width = c->lora + c->rope, .of = of};
  m.n = b->batch.n_tokens;
  m.found = m.n * c->heads * (c->lora + 2);
  gsize pool = (gsize)PAGE * c->members * m.width * pages->n_pages * runs_of(c);
  gsize queries = c->members * m.n * c->heads * m.width;
  m.host = data_normal(pool, 1);
  m.q = data_normal(queries, 1);
  device_poison(pages, b, runs_of(c), m.width, m.host);
  (void)device_put(c->cache, m.host, pool); /* what the cache's type holds of it */
  void *q = device_put(c->type, m.q, queries);
  for (guint32 r = 0; r < c->members; r++)
    attend_member(&m, queue, r, q);
  for (gsize i = 0; i < pool && c->cache == OCT_CUDA_FP8; i++) {
    gsize run = (gsize)PAGE * c->members * m.width;
    m.host[i] *= c->values && i / run % 2 == 1 ? 1.25f : 0.75f;
  }
  check_places(&m);
  for (guint32 g = 0; g < c->members; g++)
    check_member(&m, queue, g);
  for (guint32 r = 0; r < c->members; r++)
    g_free(m.place[r]);
  g_free(m.host);
  g_free(m.q);
}

static void
test_context(void) {
  static const device_seq seqs[] = {{1, 200}, {40, 0}, {3, 95},  {1, 0},
                                    {1, 31},  {1, 32}, {2, 2590}};
  static const context_case cases[] = {
      {OCT_CUDA_F32, OCT_CUDA_F32, 2, 3, 32, 16, FALSE, 0, OCT_CUDA_ATTENTION_PLAIN},
      {OCT_CUDA_F32, OCT_CUDA_BF16, 4, 2, 24, 8, FALSE, 0, OCT_CUDA_ATTENTION_PLAIN},
      {OCT_CUDA_BF16, OCT_CUDA_BF16, 2, 8, 512, 64, FALSE, 0, OCT_CUDA_ATTENTION_PLAIN},
      {OCT_CUDA_F32, OCT_CUDA_F32, 2, 4, 128, 0, TRUE, 0, OCT_CUDA_ATTENTION_PLAIN},
      {OCT_CUDA_BF16, OCT_CUDA_BF16, 2, 8, 512, 64, FALSE, 0, OCT_CUDA_ATTENTION_AUTO},
      {OCT_CUDA_BF16, OCT_CUDA_FP8, 3, 5, 512, 64, FALSE, OCT_CUDA_OVERLAP,
       OCT_CUDA_ATTENTION_AUTO},
      {OCT_CUDA_BF16, OCT_CUDA_BF16, 4, 12, 512, 64, FALSE, OCT_CUDA_FIXED_ORDER,
       OCT_CUDA_ATTENTION_AUTO},
      {OCT_CUDA_BF16, OCT_CUDA_FP8, 4, 12, 512, 64, FALSE, 0, OCT_CUDA_ATTENTION_DECODE},
      {OCT_CUDA_BF16, OCT_CUDA_BF16, 2, 5, 512, 64, FALSE, OCT_CUDA_FIXED_ORDER,
       OCT_CUDA_ATTENTION_DECODE},
      {OCT_CUDA_BF16, OCT_CUDA_BF16, 4, 2, 128, 0, TRUE, 0, OCT_CUDA_ATTENTION_AUTO},
      {OCT_CUDA_BF16, OCT_CUDA_FP8, 2, 8, 128, 0, TRUE, OCT_CUDA_OVERLAP, OCT_CUDA_ATTENTION_AUTO},
      {OCT_CUDA_BF16, OCT_CUDA_BF16, 3, 6, 64, 0, TRUE, OCT_CUDA_FIXED_ORDER,
       OCT_CUDA_ATTENTION_AUTO}};
  for (guint i = 0; i < 2 * G_N_ELEMENTS(cases); i++) {
    if (device_queue(0) == NULL)
      return;
    const context_batch of = {seqs, G_N_ELEMENTS(seqs), LONGEST, i % 2 == 1, 1};
    if (i % 2 == 0 || cases[i / 2].path != OCT_CUDA_ATTENTION_PLAIN)
      check(&cases[i / 2], &of);
  }
}

/* More tokens than a grid has blocks along its second and third side. */
static void
test_many(void) {
  enum { SEQS = 700, EACH = 100 };
  static const context_case cases[] = {
      {OCT_CUDA_BF16, OCT_CUDA_BF16, 1, 2, 64, 0, TRUE, OCT_CUDA_FIXED_ORDER,
       OCT_CUDA_ATTENTION_AUTO},
      {OCT_CUDA_BF16, OCT_CUDA_BF16, 1, 1, 512, 64, FALSE, 0, OCT_CUDA_ATTENTION_AUTO}};
  device_seq seqs[SEQS];
  for (guint i = 0; i < SEQS; i++)
    seqs[i] = (device_seq){EACH, 0};
  for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
    const context_batch of = {seqs, SEQS, EACH, FALSE, 13};
    if (device_queue(0) == NULL)
      return;
    if (!device_quick())
      check(&cases[i], &of);
  }
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/cuda/context/members-find-together-what-one-finds", test_context);
  g_test_add_func("/cuda/context/more-tokens-than-a-grid-is-high", test_many);
  return g_test_run();
}
