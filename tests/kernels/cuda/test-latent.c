/* Latent attention over pages against the plain-C twin: decodes, verified drafts, prompts, in every
 * form that serves them; and the expanded form. */
#include "kernels/cuda/workspace.h"
#include "tests/kernels/cuda/device.h"

#include <math.h>
#include <string.h>

#define THREADS_MAX 16
#define PARTS       8 /* of a token's heads */

#define PLAIN  (1u << OCT_CUDA_ATTENTION_PLAIN)
#define DECODE (1u << OCT_CUDA_ATTENTION_DECODE)
#define HOPPER (1u << OCT_CUDA_ATTENTION_HOPPER)

typedef struct latent_case {
  oct_cuda_type type, cache;
  guint32 heads, lora, nope, rope, value;
} latent_case;

/* A batch, and how it is asked for. */
typedef struct latent_batch {
  const device_seq *seqs;
  guint32 n, n_decode, flags, page;
  oct_cuda_attention_path path;
  double sharpness; /* of the softmax: standard deviation of scores; 0 = 1 */
  double sink;      /* what any head's score with the first key stands above; 0 = nothing */
} latent_batch;

static double
latent_limit(const latent_case *c) {
  return c->type == OCT_CUDA_F32 ? c->cache == OCT_CUDA_F32 ? 1e-5 : 1e-4 : 6e-3;
}

/* ---------------------------------------------------------------- the twin, by several threads */

typedef struct twin_run {
  const latent_case *c;
  const device_batch *b;
  const device_pages *pages;
  oct_mla twin;
  const float *q;
  float *out;
  guint32 most, n_threads;
} twin_run;

typedef struct twin_thread {
  const twin_run *run;
  guint32 first;
} twin_thread;

static gpointer
attend_some(gpointer data) {
  const twin_thread *t = data;
  const twin_run *r = t->run;
  guint32 heads = r->c->heads, width = r->twin.kv.width;
  g_autofree float *scratch =
      g_new(float, (gsize)heads *(r->most + 1) + (gsize)r->twin.kv.page_tokens * width);
  for (guint32 i = t->first; i < r->b->n_tokens * PARTS; i += r->n_threads) {
    guint32 token = i / PARTS, from = heads * (i % PARTS) / PARTS;
    oct_ref_mla_latent(&r->twin, device_pages_of(r->pages, r->b, r->b->seq_of[token]),
                       r->b->position_of[token], from, heads * (i % PARTS + 1) / PARTS - from,
                       r->q + (gsize)token * heads * width,
                       r->out + (gsize)token * heads * r->c->lora, scratch);
  }
  return NULL;
}

static void
attend_twin(const latent_case *c, const device_batch *b, const device_pages *pages, float *host,
            guint32 page, float scale, const float *q, float *out) {
  twin_thread threads[THREADS_MAX];
  GThread *handles[THREADS_MAX];
  guint32 width = c->lora + c->rope;
  twin_run r = {.c = c,
                .b = b,
                .pages = pages,
                .q = q,
                .out = out,
                .n_threads = MIN(THREADS_MAX, g_get_num_processors()),
                .twin = {.kv = {.format = OCT_KV_F32,
                                .base = host,
                                .page_stride = (gsize)page * width * sizeof(float),
                                .page_tokens = page,
                                .n_heads = 1,
                                .width = width},
                         .n_heads = c->heads,
                         .kv_lora = c->lora,
                         .rope = c->rope,
                         .scale = scale}};
  for (guint32 i = 0; i < b->n_tokens; i++)
    r.most = MAX(r.most, b->position_of[i]);
  for (guint32 i = 0; i < r.n_threads; i++) {
    threads[i] = (twin_thread){&r, i};
    handles[i] = g_thread_new("twin", attend_some, &threads[i]);
  }
  for (guint32 i = 0; i < r.n_threads; i++)
    (void)g_thread_join(handles[i]);
}

/* ---------------------------------------------------------------- the absorbed form */

/* The first key of a context of one sequence is what its heads' queries have in common. */
static void
make_sink(const latent_case *c, double sink, const float *q, guint32 width, float *key) {
  for (guint32 d = 0; d < width; d++) {
    double sum = 0;
    for (guint32 h = 0; h < c->heads; h++)
      sum += q[(gsize)h * width + d];
    key[d] = (float)(sink * sum / sqrt(width));
  }
}

/* Runs a call twice, and nothing behind its workspace is written. */
static void
attend(const oct_cuda_queue *queue, oct_cuda_mla *call) {
  guint8 behind[16];
  call->workspace = device_room(call->workspace_bytes + sizeof behind);
  g_assert_cmpuint(oct_cuda_mla_used(queue, call), <=, call->workspace_bytes);
  device_check(oct_cuda_mla_attend(queue, call));
  device_check(oct_cuda_mla_attend(queue, call));
  device_read(behind, (guint8 *)call->workspace + call->workspace_bytes, sizeof behind);
  for (gsize i = 0; i < sizeof behind; i++)
    g_assert_cmphex(behind[i], ==, 0xff);
}

/* About the least workspace that does. */
static gsize
least_workspace(const oct_cuda_queue *queue, oct_cuda_mla call) {
  for (gsize bytes = call.workspace_bytes; bytes > 0; bytes = call.workspace_bytes) {
    call.workspace_bytes = bytes - MAX(bytes / 32, 1);
    if (oct_cuda_mla_used(queue, &call) > call.workspace_bytes)
      return bytes;
  }
  return 0;
}

/* Runs the case over a batch and compares, with the workspace that it would like and with the least
 * that does; padding has to give zeros. What it gave is copied to `got` when that is not NULL. */
static void
check_latent(const latent_case *c, const latent_batch *l, guint32 expected, const char *name,
             float **got) {
  const oct_cuda_queue *queue = device_queue(l->flags);
  g_autoptr(device_batch) b = device_batch_new(queue, l->seqs, l->n, 1, 1);
  g_autoptr(device_pages) pages = device_pages_new(b, l->page);
  guint32 width = c->lora + c->rope, longest = 1, most = 1;
  gsize pool = (gsize)l->page * width * pages->n_pages, n = b->batch.n_tokens;
  double sharp = l->sharpness > 0 ? l->sharpness : 1;
  g_autofree float *q = data_normal(n * c->heads * width, sharp), *host = data_normal(pool, 1);
  g_autofree float *want = g_new0(float, n * c->heads * c->lora);
  float scales[1] = {c->cache == OCT_CUDA_FP8 ? 0.75f : 1};
  for (guint32 s = 0; s < l->n; s++) {
    longest = MAX(longest, l->seqs[s].position + l->seqs[s].n_tokens);
    most = MAX(most, l->seqs[s].n_tokens);
  }
  if (l->sink > 0)
    make_sink(c, l->sink / scales[0], q, width,
              host + (gsize)device_pages_of(pages, b, 0)[0] * l->page * width);
  device_poison(pages, b, 1, width, host);
  oct_cuda_mla call = {
      .type = c->type,
      .path = l->path,
      .batch = &b->batch,
      .n_decode = l->n_decode,
      .max_queries = most,
      .max_context = longest + 3,
      .kv = {.type = c->cache,
             .base = device_put(c->cache, host, pool),
             .page_bytes = (gsize)l->page * width * oct_cuda_type_bytes(c->cache),
             .page_tokens = l->page,
             .n_heads = 1,
             .width = width,
             .k_scale = c->cache == OCT_CUDA_FP8 ? device_put(OCT_CUDA_F32, scales, 1) : NULL},
      .tables = pages->tables,
      .n_heads = c->heads,
      .lora = c->lora,
      .rope = c->rope,
      .scale = (float)(1 / sqrt(width)),
      .q = device_put(c->type, q, n * c->heads * width),
      .out = device_room_of(c->type, n * c->heads * c->lora)};
  call.workspace_bytes = oct_cuda_mla_workspace(queue, &call);
  attend(queue, &call);
  g_assert_cmphex(oct_cuda_mla_paths(queue, &call), ==, expected);
  for (gsize i = 0; i < pool; i++)
    host[i] *= scales[0];
  attend_twin(c, b, pages, host, l->page, call.scale, q, want);
  g_autofree float *out = device_get(c->type, call.out, n * c->heads * c->lora);
  device_expect(name, out, want, n * c->heads * c->lora, latent_limit(c));
  call.workspace_bytes = least_workspace(queue, call);
  call.out = device_room_of(c->type, n * c->heads * c->lora);
  attend(queue, &call);
  g_autofree float *least = device_get(c->type, call.out, n * c->heads * c->lora);
  device_expect(name, least, want, n * c->heads * c->lora, latent_limit(c));
  if ((l->flags & OCT_CUDA_FIXED_ORDER) != 0)
    g_assert_cmpmem(out, n * c->heads * c->lora * sizeof *out, least,
                    n * c->heads * c->lora * sizeof *least);
  if (got != NULL)
    *got = g_steal_pointer(&out);
}

/* What takes 512 + 64 in bf16 when nothing is asked for. */
static guint32
fastest(void) {
  return device_queue(0)->capability == 90 ? HOPPER : DECODE;
}

/* The way to it: short contexts take another by themselves. */
static oct_cuda_attention_path
by_hopper(void) {
  return fastest() == HOPPER ? OCT_CUDA_ATTENTION_HOPPER : OCT_CUDA_ATTENTION_AUTO;
}

/* Where a tool watches every access. */
static const device_seq few_singles[] = {{1, 130}, {1, 0}, {1, 64}};
static const device_seq few_mixed[] = {{1, 70}, {9, 0}, {3, 65}, {1, 0}};

static const device_seq singles[] = {{1, 700}, {1, 0}, {1, 63}, {1, 64}, {1, 999}};
static const device_seq mixed[] = {{1, 200}, {40, 0}, {3, 70}, {1, 0}};

static void
test_plain(void) {
  static const latent_case cases[] = {{OCT_CUDA_F32, OCT_CUDA_F32, 4, 32, 24, 16, 20},
                                      {OCT_CUDA_BF16, OCT_CUDA_BF16, 4, 32, 24, 16, 20},
                                      {OCT_CUDA_F32, OCT_CUDA_FP8, 5, 512, 128, 64, 128},
                                      {OCT_CUDA_F32, OCT_CUDA_BF16, 3, 64, 16, 8, 16}};
  for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
    if (device_queue(0) == NULL)
      return;
    const latent_batch some = {device_quick() ? few_mixed : mixed,
                               G_N_ELEMENTS(mixed),
                               0,
                               0,
                               16,
                               OCT_CUDA_ATTENTION_AUTO,
                               0,
                               0};
    check_latent(&cases[i], &some, PLAIN, "plain", NULL);
  }
}

/* Heads by the width of the matrix instruction, and both sides of each. */
static const guint32 heads[] = {1, 12, 16, 17, 32, 37, 48, 64, 65, 96, 100, 128};

static void
check_wide(guint32 n_heads, oct_cuda_type cache, const latent_batch *l, guint32 expected,
           const char *what) {
  const latent_case c = {OCT_CUDA_BF16, cache, n_heads, 512, 128, 64, 128};
  g_autofree char *name =
      g_strdup_printf("%s, %u heads, %s", what, n_heads, cache == OCT_CUDA_FP8 ? "fp8" : "bf16");
  check_latent(&c, l, expected, name, NULL);
}

static void
test_decode(void) {
  for (guint i = 0; i < 2 * G_N_ELEMENTS(heads); i++) {
    if (device_queue(0) == NULL)
      return;
    oct_cuda_type cache = i % 2 == 0 ? OCT_CUDA_BF16 : OCT_CUDA_FP8;
    latent_batch l = {singles, G_N_ELEMENTS(singles),   0, OCT_CUDA_OVERLAP,
                      16,      OCT_CUDA_ATTENTION_AUTO, 0, 0};
    if (device_quick() && i / 2 % 4 != 1) /* 12, 37 and 96 heads are left */
      continue;
    if (device_quick()) {
      l.seqs = few_singles;
      l.n = G_N_ELEMENTS(few_singles);
    }
    if (heads[i / 2] > 16)
      check_wide(heads[i / 2], cache, &l, DECODE, "decode, short");
    l.path = by_hopper();
    check_wide(heads[i / 2], cache, &l, fastest(), "decode");
    l.path = OCT_CUDA_ATTENTION_AUTO;
    l.flags = OCT_CUDA_FIXED_ORDER;
    l.sharpness = 12;
    l.page = 8u << i / 2 % 5;
    check_wide(heads[i / 2], cache, &l, DECODE, "decode, sharp, in fixed order");
  }
}

/* Drafts: the rows of a sequence's tokens go together. */
static void
test_verify(void) {
  static const device_seq few_drafts[] = {{4, 130}, {2, 63}, {1, 0}};
  static const device_seq drafts[] = {{4, 700}, {4, 0}, {2, 63}, {1, 127}, {4, 990}};
  static const guint32 some[] = {3, 12, 16, 20, 96};
  for (guint i = 0; i < 2 * G_N_ELEMENTS(some); i++) {
    if (device_queue(0) == NULL)
      return;
    if (device_quick() && i / 2 % 3 != 1) /* 12 and 96 heads are left */
      continue;
    const latent_batch l = {device_quick() ? few_drafts : drafts,
                            device_quick() ? G_N_ELEMENTS(few_drafts) : G_N_ELEMENTS(drafts),
                            0,
                            i % 3 == 0 ? OCT_CUDA_FIXED_ORDER : 0,
                            64,
                            OCT_CUDA_ATTENTION_AUTO,
                            i % 4 == 0 ? 12 : 1,
                            0};
    check_wide(some[i / 2], i % 2 == 0 ? OCT_CUDA_BF16 : OCT_CUDA_FP8, &l,
               l.flags == OCT_CUDA_FIXED_ORDER ? DECODE : fastest(), "drafts");
  }
}

static void
test_prompts(void) {
  static const guint32 some[] = {3, 16, 37, 96};
  for (guint i = 0; i < 2 * G_N_ELEMENTS(some); i++) {
    if (device_queue(0) == NULL)
      return;
    if (device_quick() && i / 2 % 2 == 0) /* 16 and 96 heads are left */
      continue;
    latent_batch l = {device_quick() ? few_mixed : mixed,
                      G_N_ELEMENTS(mixed),
                      1,
                      i % 3 == 0 ? OCT_CUDA_FIXED_ORDER : OCT_CUDA_OVERLAP,
                      32,
                      OCT_CUDA_ATTENTION_AUTO,
                      i % 4 == 0 ? 12 : 1,
                      0};
    oct_cuda_type cache = i % 2 == 0 ? OCT_CUDA_BF16 : OCT_CUDA_FP8;
    check_wide(some[i / 2], cache, &l, l.flags == OCT_CUDA_FIXED_ORDER ? DECODE : fastest(),
               "mixed");
    l.path = OCT_CUDA_ATTENTION_DECODE;
    check_wide(some[i / 2], cache, &l, DECODE, "mixed, by mma.sync");
  }
}

/* Contexts of very different lengths, more and fewer of them than blocks. */
static void
test_shares(void) {
  const device_seq one[] = {{1, device_quick() ? 900 : 20000}};
  static const guint32 some[] = {12, 16, 32, 40, 64, 96};
  const guint32 divisor = device_quick() ? 16 : 1;
  if (device_queue(0) == NULL)
    return;
  device_seq seqs[150];
  for (guint i = 0; i < G_N_ELEMENTS(seqs); i++)
    seqs[i] =
        (device_seq){1, (i % 29 == 0 ? data_between(2100, 2500) : data_between(0, 200)) / divisor};
  for (guint i = 0; i < 2 * G_N_ELEMENTS(some); i++) {
    oct_cuda_type cache = i % 2 == 0 ? OCT_CUDA_BF16 : OCT_CUDA_FP8;
    latent_batch l = {seqs, G_N_ELEMENTS(seqs),      0, OCT_CUDA_OVERLAP,
                      16,   OCT_CUDA_ATTENTION_AUTO, 6, 0};
    if (device_queue(0) == NULL)
      return;
    if (device_quick() && i / 2 % 4 != 0) /* 12 and 64 heads are left */
      continue;
    l.path = by_hopper();
    check_wide(some[i / 2], cache, &l, fastest(), "uneven");
    l.seqs = one;
    l.n = 1;
    check_wide(some[i / 2], cache, &l, fastest(), "one long");
  }
}

/* Contexts of nearly one length have blocks of their own: several each, and one; some see nothing.
 */
static void
test_even(void) {
  static const guint32 some[] = {12, 16, 40, 96}, sizes[] = {6, 40, 130};
  device_seq seqs[130];
  for (guint i = 0; i < 6 * G_N_ELEMENTS(some); i++) {
    guint32 n = sizes[i / 2 % 3], length = device_quick() ? 200 : MAX(150, 6000 / n);
    if (device_queue(0) == NULL)
      return;
    if (device_quick() && (i / 6 % 2 == 0 || n > 6)) /* 16 and 96 heads are left */
      continue;
    for (guint32 s = 0; s < n; s++)
      seqs[s] = (device_seq){1, length - data_between(0, 20)};
    const latent_batch l = {seqs, n, 0, OCT_CUDA_OVERLAP, 16, by_hopper(), 6, 0};
    check_wide(some[i / 6], i % 2 == 0 ? OCT_CUDA_BF16 : OCT_CUDA_FP8, &l, fastest(), "even");
  }
}

/* Short contexts, one token each, have a kernel of their own: 32 and more of up to 16 heads, less
 * than 16 of more. One of the batch's sequences is padding. */
static void
test_short(void) {
  static const struct {
    guint32 heads, n;
    gboolean own;
  } cases[] = {{12, 30, FALSE}, {12, 31, TRUE},  {16, 40, TRUE},  {17, 14, TRUE},
               {17, 15, FALSE}, {32, 40, FALSE}, {128, 14, TRUE}, {128, 40, FALSE}};
  if (device_queue(0) == NULL)
    return;
  device_seq seqs[40];
  for (guint i = 0; i < G_N_ELEMENTS(seqs); i++)
    seqs[i] = (device_seq){1, data_between(0, device_quick() ? 70 : 300)};
  for (guint i = 0; i < 2 * G_N_ELEMENTS(cases); i++) {
    const guint32 heads_of = cases[i / 2].heads;
    const oct_cuda_type cache = i % 2 == 0 ? OCT_CUDA_BF16 : OCT_CUDA_FP8;
    latent_batch l = {seqs, cases[i / 2].n, 0, 0, 16, OCT_CUDA_ATTENTION_AUTO, 1, 0};
    if (device_queue(0) == NULL)
      return;
    check_wide(heads_of, cache, &l, cases[i / 2].own ? DECODE : fastest(), "many short");
    if (device_quick() || !cases[i / 2].own)
      continue;
    device_seq first = seqs[0];
    seqs[0].position = 2100;
    check_wide(heads_of, cache, &l, fastest(), "one of them long");
    seqs[0] = first;
  }
}

/* What is beside a context in a fixed order. */
typedef struct fixed_case {
  guint32 own, other, bound; /* of max_context; 0: the longest's */
} fixed_case;

#define FIXED_POOL 400 /* pages; contexts have them again and again */
#define FIXED_PAGE 16
#define RUN        30 /* tokens of a run of the context */

/* Of a context, whose queries and pages are always the same, as the last of `run` tokens, alone
 * (`beside` NULL) or beside others: what attention gives, owned. q: of the context's last RUN
 * tokens, and two more. */
static float *
attend_fixed(const oct_cuda_queue *queue, const latent_case *c, const fixed_case *f,
             const fixed_case *beside, guint32 run, const guint8 *q, void *pool) {
  const device_seq seqs[] = {
      {run, f->own + 1 - run}, {1, 20}, {1, beside != NULL ? beside->other : 0}};
  guint32 n = beside != NULL ? 3 : 1, longest = MAX(f->own, n > 1 ? seqs[2].position : 0);
  guint32 stride = longest / FIXED_PAGE + 2;
  g_autoptr(device_batch) b = device_batch_new(queue, seqs, n, 0, 0);
  g_autofree guint32 *table = g_new(guint32, (gsize)b->n_slots * stride);
  for (guint32 p = 0; p < b->n_slots * stride; p++)
    table[p] = p % stride * 7 % FIXED_POOL;
  oct_cuda_mla call = {
      .type = OCT_CUDA_BF16,
      .batch = &b->batch,
      .max_queries = run,
      .max_context = MAX(longest + 1, beside != NULL ? beside->bound : 0),
      .kv = {.type = c->cache,
             .base = pool,
             .page_bytes = FIXED_PAGE * 576 * oct_cuda_type_bytes(c->cache),
             .page_tokens = FIXED_PAGE,
             .n_heads = 1,
             .width = 576},
      .tables = {.pages = device_copy(table, (gsize)b->n_slots * stride * 4), .stride = stride},
      .n_heads = c->heads,
      .lora = 512,
      .rope = 64,
      .scale = 1.0f / 24,
      .q = q + (gsize)(RUN - run) * c->heads * 576 * 2,
      .out = device_room_of(OCT_CUDA_BF16, b->batch.n_tokens * (gsize)c->heads * 512)};
  call.workspace_bytes = oct_cuda_mla_workspace(queue, &call);
  if (beside != NULL)
    call.workspace_bytes = least_workspace(queue, call);
  attend(queue, &call);
  return device_get(OCT_CUDA_BF16, (guint8 *)call.out + (run - 1) * (gsize)c->heads * 512 * 2,
                    (gsize)c->heads * 512);
}

/* A row has the same bits whoever is beside it, however long contexts might be, and as the last of
 * a run; and it is what another order gives but for rounding. */
static void
test_fixed(void) {
  static const fixed_case cases[] = {
      {2999, 5000, 0}, {2999, 5000, 200000}, {2999, 140000, 0}, {140000, 20, 0}};
  static const fixed_case quick[] = {{299, 500, 0}, {299, 500, 5000}};
  static const guint32 some[] = {12, 96};
  for (guint i = 0; i < 2 * G_N_ELEMENTS(some); i++) {
    const oct_cuda_queue *fixed = device_queue(OCT_CUDA_FIXED_ORDER);
    if (fixed == NULL)
      return;
    oct_cuda_queue any_order = *fixed;
    any_order.flags = 0;
    const latent_case c = {
        OCT_CUDA_BF16, i % 2 == 0 ? OCT_CUDA_BF16 : OCT_CUDA_FP8, some[i / 2], 512, 128, 64, 128};
    gsize row = (gsize)c.heads * 576, out = (gsize)c.heads * 512,
          pool = FIXED_POOL * FIXED_PAGE * 576;
    g_autofree float *q = data_normal((RUN + 2) * row, 4), *host = data_normal(pool, 1);
    void *d_q = device_put(OCT_CUDA_BF16, q, (RUN + 2) * row);
    void *d_pool = device_put(c.cache, host, pool);
    const fixed_case *of = device_quick() ? quick : cases;
    for (guint k = 0; k < (device_quick() ? G_N_ELEMENTS(quick) : G_N_ELEMENTS(cases)); k++) {
      g_autofree float *alone = attend_fixed(fixed, &c, &of[k], NULL, 1, d_q, d_pool);
      g_autofree float *among = attend_fixed(fixed, &c, &of[k], &of[k], 1, d_q, d_pool);
      g_autofree float *last = attend_fixed(fixed, &c, &of[k], &of[k], RUN, d_q, d_pool);
      g_autofree float *any = attend_fixed(&any_order, &c, &of[k], NULL, 1, d_q, d_pool);
      g_assert_cmpmem(alone, out * sizeof(float), among, out * sizeof(float));
      g_assert_cmpmem(alone, out * sizeof(float), last, out * sizeof(float));
      device_expect("fixed order against any", alone, any, out, latent_limit(&c));
    }
  }
}

/* What fp8 costs where contexts are long: latents that are rounded to e4m3 over a scale that fits
 * them, against the same in float32. */
static void
test_long_fp8(void) {
  const device_seq one[] = {{1, device_quick() ? 1999 : 49999}};
  static const latent_case cases[] = {{OCT_CUDA_BF16, OCT_CUDA_FP8, 12, 512, 128, 64, 128},
                                      {OCT_CUDA_BF16, OCT_CUDA_FP8, 48, 512, 128, 64, 128}};
  for (guint i = 0; i < 2 * G_N_ELEMENTS(cases); i++) {
    if (device_queue(0) == NULL)
      return;
    const latent_batch l = {one, 1, 0, 0, 64, by_hopper(), i % 2 == 0 ? 1 : 10, 0};
    check_latent(&cases[i / 2], &l, fastest(), i % 2 == 0 ? "50k, flat" : "50k, sharp", NULL);
  }
}

/* A prompt's tokens, whose sums go over all of a long context in one place. */
static void
test_long_sums(void) {
  const device_seq one[] = {{20, device_quick() ? 980 : 29980}};
  for (guint i = 0; i < 4; i++) {
    if (device_queue(0) == NULL)
      return;
    const latent_case c = {
        OCT_CUDA_BF16, i % 2 == 0 ? OCT_CUDA_BF16 : OCT_CUDA_FP8, 3, 512, 128, 64, 128};
    const latent_batch l = {one, 1, 0, 0, 64, OCT_CUDA_ATTENTION_AUTO, i < 2 ? 1 : 10, 0};
    check_latent(&c, &l, fastest(), i % 2 == 0 ? "long sums, bf16" : "long sums, fp8", NULL);
  }
}

/* Weights each of which is nothing beside a context's largest, and all of which are half of it. */
static void
test_sink(void) {
  const device_seq one[] = {{1, device_quick() ? 1999 : 49999}};
  for (guint i = 0; i < 4; i++) {
    if (device_queue(0) == NULL)
      return;
    oct_cuda_type cache = i % 2 == 0 ? OCT_CUDA_BF16 : OCT_CUDA_FP8;
    const latent_case c = {OCT_CUDA_BF16, cache, i < 2 ? 12 : 48, 512, 128, 64, 128};
    const latent_batch l = {one, 1, 0, 0, 64, by_hopper(), 1, i < 2 ? 12 : 11};
    check_latent(&c, &l, fastest(), i % 2 == 0 ? "a sink, bf16" : "a sink, fp8", NULL);
  }
}

/* ---------------------------------------------------------------- the expanded form */

/* Queries of m tokens from `position` on, over all keys or over parts of `part` of them. */
typedef struct expanded_case {
  latent_case c;
  guint32 m, position, part;
} expanded_case;

/* In float64, a token and head. */
static void
expanded_twin(const latent_case *c, guint32 seen, guint32 h, double scale, const float *q,
              const float *rows, const float *kv, float *want) {
  guint32 both = c->nope + c->value, head = c->nope + c->rope, width = c->lora + c->rope;
  g_autofree double *scores = g_new(double, seen);
  double top = -INFINITY, sum = 0;
  for (guint32 p = 0; p < seen; p++) {
    scores[p] = 0;
    for (guint32 d = 0; d < head; d++)
      scores[p] += (double)q[d] * (d < c->nope ? kv[((gsize)p * c->heads + h) * both + d]
                                               : rows[(gsize)p * width + c->lora + d - c->nope]);
    scores[p] *= scale;
    top = fmax(top, scores[p]);
  }
  for (guint32 p = 0; p < seen; p++)
    sum += scores[p] = exp(scores[p] - top);
  for (guint32 d = 0; d < c->value; d++) {
    double x = 0;
    for (guint32 p = 0; p < seen; p++)
      x += scores[p] * kv[((gsize)p * c->heads + h) * both + c->nope + d];
    want[d] = (float)(x / sum);
  }
}

/* Keys and values are made on the host; only the attention over them is the kernel's. */
static void
check_expanded(const expanded_case *e) {
  const latent_case *c = &e->c;
  const oct_cuda_queue *queue = device_queue(0);
  guint32 m = e->m, n = e->position + m, width = c->lora + c->rope,
          part = e->part > 0 ? e->part : n;
  guint32 both = c->nope + c->value, head = c->nope + c->rope;
  gsize size = (gsize)m * c->heads * c->value, element = oct_cuda_type_bytes(c->type);
  g_autofree float *q = data_normal((gsize)m * c->heads * head, 2);
  g_autofree float *rows = data_normal((gsize)n * width, 1);
  g_autofree float *kv = data_normal((gsize)n * c->heads * both, 1);
  g_autofree float *want = g_new(float, size);
  const char *latents = device_put(c->type, rows, (gsize)n * width);
  const char *keys = device_put(c->type, kv, (gsize)n * c->heads * both);
  oct_cuda_mla_expanded call = {.type = c->type,
                                .n_heads = c->heads,
                                .lora = c->lora,
                                .nope = c->nope,
                                .rope = c->rope,
                                .value = c->value,
                                .m = m,
                                .position = e->position,
                                .scale = (float)(1 / sqrt(head)),
                                .q = device_put(c->type, q, (gsize)m * c->heads * head),
                                .q_stride = (gsize)c->heads * head,
                                .out = device_room_of(c->type, size),
                                .out_stride = (gsize)c->heads * c->value};
  if (e->part > 0)
    call.state = device_room((gsize)m * c->heads * (2 + c->value) * sizeof(float));
  gboolean is_wide = queue->capability == 90 && c->type == OCT_CUDA_BF16 && c->nope == 128;
  g_assert_cmphex(oct_cuda_mla_expanded_paths(queue, &call), ==, is_wide ? HOPPER : PLAIN);
  for (guint32 first = 0; first < n; first += part) {
    call.first_key = first;
    call.n_keys = MIN(part, n - first);
    call.latents = latents + (gsize)first * width * element;
    call.kv = keys + (gsize)first * c->heads * both * element;
    call.begins = first == 0;
    call.ends = first + part >= n;
    device_check(oct_cuda_mla_attend_expanded(queue, &call));
  }
  for (guint32 i = 0; i < m; i++)
    for (guint32 h = 0; h < c->heads; h++)
      expanded_twin(c, e->position + i + 1, h, call.scale, q + ((gsize)i * c->heads + h) * head,
                    rows, kv, want + ((gsize)i * c->heads + h) * c->value);
  g_autofree float *out = device_get(c->type, call.out, size);
  g_autofree char *name = g_strdup_printf("expanded, %u heads, %u tokens at %u, parts of %u",
                                          c->heads, m, e->position, e->part);
  device_expect(name, out, want, size, latent_limit(c));
}

static void
test_expanded(void) {
  static const expanded_case cases[] = {
      {{OCT_CUDA_F32, OCT_CUDA_F32, 4, 32, 24, 16, 20}, 9, 60, 0},
      {{OCT_CUDA_F32, OCT_CUDA_F32, 3, 512, 128, 64, 128}, 5, 90, 50},
      {{OCT_CUDA_BF16, OCT_CUDA_BF16, 4, 32, 24, 16, 20}, 9, 60, 40},
      {{OCT_CUDA_F32, OCT_CUDA_BF16, 3, 64, 16, 8, 16}, 9, 60, 0},
      {{OCT_CUDA_BF16, OCT_CUDA_BF16, 16, 512, 128, 64, 128}, 9, 60, 0},
      {{OCT_CUDA_BF16, OCT_CUDA_BF16, 3, 512, 128, 64, 128}, 1, 0, 0},
      {{OCT_CUDA_BF16, OCT_CUDA_BF16, 5, 512, 128, 64, 128}, 300, 0, 0},
      {{OCT_CUDA_BF16, OCT_CUDA_BF16, 2, 512, 128, 64, 128}, 129, 500, 0},
      {{OCT_CUDA_BF16, OCT_CUDA_BF16, 2, 512, 128, 64, 128}, 200, 431, 211},
      {{OCT_CUDA_BF16, OCT_CUDA_BF16, 2, 512, 128, 64, 128}, 130, 254, 192}};
  for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
    if (device_queue(0) == NULL)
      return;
    if (device_quick() && cases[i].m * cases[i].c.heads > 400)
      continue;
    check_expanded(&cases[i]);
  }
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/cuda/latent/plain-takes-any-size", test_plain);
  g_test_add_func("/cuda/latent/decode-of-any-number-of-heads", test_decode);
  g_test_add_func("/cuda/latent/drafts-are-verified-together", test_verify);
  g_test_add_func("/cuda/latent/prompts-beside-decodes", test_prompts);
  g_test_add_func("/cuda/latent/uneven-contexts-are-shared-out", test_shares);
  g_test_add_func("/cuda/latent/even-contexts-have-blocks-of-their-own", test_even);
  g_test_add_func("/cuda/latent/many-short-contexts", test_short);
  g_test_add_func("/cuda/latent/fixed-order-gives-the-same-bits", test_fixed);
  g_test_add_func("/cuda/latent/fp8-over-long-contexts", test_long_fp8);
  g_test_add_func("/cuda/latent/sums-over-long-contexts", test_long_sums);
  g_test_add_func("/cuda/latent/small-weights-of-many-keys-count", test_sink);
  g_test_add_func("/cuda/latent/expanded", test_expanded);
  return g_test_run();
}
