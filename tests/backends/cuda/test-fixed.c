/* Output in a fixed order: a sequence's logits have the same bits alone and among any others, and
 * whatever chunks its prompt comes in. */
#include "config.h"

#include <string.h>

#include "backends/registry.h"
#include "engine/base/rng.h"
#include "tests/backends/cuda/wide.h"

#define VOCAB   128 /* a token's own logprob and 127 others are all of them */
#define SLOTS   64
#define PROMPT  300
#define DECODES 8
#define TOKENS  (PROMPT + DECODES)
#define BLOCK   16
#define PAGES   ((TOKENS + BLOCK - 1) / BLOCK) /* of a sequence */
#define BUDGET  1024

static oct_layer_spec layers[3] = {{0, 0}, {0, 0}, {0, 0}};

static oct_model_spec
spec_of(guint32 head_dim) {
  static char name[] = "fixed", architecture[] = "wide";
  oct_model_spec s = {.name = name,
                      .architecture = architecture,
                      .vocab = VOCAB,
                      .hidden = 1024,
                      .n_layers = 3,
                      .max_position = 4096,
                      .rms_norm_eps = 1e-5,
                      .rope_theta = 10000,
                      .n_attention = 1,
                      .n_ffn = 1,
                      .layers = layers,
                      .types = {.attention = OCT_DTYPE_BF16,
                                .dense_ffn = OCT_DTYPE_BF16,
                                .embedding = OCT_DTYPE_BF16,
                                .head = OCT_DTYPE_BF16,
                                .base = OCT_DTYPE_BF16}};
  s.attention[0] = (oct_attention_spec){
      .kind = OCT_ATTENTION_GQA, .n_heads = 8, .n_kv_heads = 2, .head_dim = head_dim};
  s.ffn[0] = (oct_ffn_spec){.kind = OCT_FFN_DENSE, .intermediate = 2816};
  return s;
}

typedef struct run {
  oct_world *world;
  guint32 instance;
  guint64 number;
  oct_step_builder *builder;
  oct_event event;
  guint32 n;     /* sequences, of which the first is looked at */
  guint32 chunk; /* of its prompt; the others' differ */
  float *logits; /* [TOKENS, VOCAB]: logprobs of the first sequence */
  void (*job)(struct run *r);
} run;

static void
open_slot(run *r, guint32 slot) {
  oct_slot_open *o = oct_step_add_open(r->builder);
  o->slot = slot;
  o->prompt_tokens = TOKENS;
  for (guint32 i = 0; i < PAGES; i++)
    *oct_step_add_change(r->builder) =
        (oct_page_change){.slot = slot, .index = i, .page = i * SLOTS + slot};
}

/* Tokens [first, first + n) of a sequence; `scored`: with all their logprobs. */
static void
add(run *r, guint32 sequence, guint32 first, guint32 n, gboolean scored) {
  guint32 *ids, at = oct_step_add_tokens(r->builder, NULL, n + 1, &ids);
  for (guint32 i = 0; i <= n; i++)
    ids[i] = (guint32)(oct_mix64(1000 * sequence + first + i) % VOCAB);
  oct_slice *s = oct_step_add_slice(r->builder);
  s->slot = sequence;
  s->source = OCT_SOURCE_IDS;
  s->sample = OCT_SAMPLE_NONE;
  s->n_prompt_logprobs = scored ? VOCAB - 1 : 0;
  s->n_tokens = n;
  s->tokens = at;
  s->position = first;
}

static void
finish(run *r, guint32 first, guint32 n) {
  g_autoptr(GError) error = NULL;
  oct_submit answer = oct_world_submit(r->world, r->instance, oct_step_end(r->builder), &error);
  g_assert_no_error(error);
  g_assert_cmpint(answer, ==, OCT_SUBMIT_OK);
  wide_next(r->world, &r->event, OCT_EVENT_STEP_DONE);
  const oct_logprob *l = oct_result_logprobs(r->event.result);
  for (guint32 i = 0; i < n; i++)
    for (guint32 k = 0; k < VOCAB; k++, l++)
      r->logits[(gsize)(first + i) * VOCAB + l->token] = l->logprob;
}

/* All sequences from their first token to the first one's last; those that end sooner begin again.
 */
static void
run_steps(run *r) {
  guint32 at[SLOTS] = {0};
  while (at[0] < TOKENS) {
    guint32 first = at[0], mine = 0, room = BUDGET;
    oct_step_begin(r->builder, ++r->number, 1);
    for (guint32 s = 0; s < r->n; s++) {
      guint32 chunk = s == 0 ? r->chunk : 7 + 31 * (s % 9), left = s + 1 < r->n ? r->n - s - 1 : 0;
      if (at[s] == TOKENS)
        at[s] = 0;
      guint32 n = at[s] < PROMPT ? MIN(MIN(chunk, PROMPT - at[s]), MAX(room - left, 1)) : 1;
      if (at[s] == 0)
        open_slot(r, s);
      add(r, s, at[s], n, s == 0);
      mine = s == 0 ? n : mine;
      at[s] += n;
      room -= n;
    }
    finish(r, first, mine);
  }
}

static int
run_inside(oct_world *world, void *arg) {
  static const guint16 devices[] = {0};
  run *r = arg;
  g_autoptr(GError) error = NULL;
  oct_model_spec spec = spec_of(128);
  oct_instance_config config = {.label = "fixed",
                                .spec = &spec,
                                .parallel = OCT_PARALLEL_DEFAULT,
                                .devices = devices,
                                .kv_dtype = OCT_DTYPE_BF16,
                                .block_size = BLOCK,
                                .depth = 2,
                                .max_slots = SLOTS,
                                .max_batched_tokens = BUDGET,
                                .seed = 1};
  config.memory.n_groups = 1;
  config.memory.groups[0] = (oct_pool_plan){.n_device = SLOTS * PAGES};
  r->world = world;
  r->builder = oct_step_builder_new();
  gboolean accepted = oct_world_open(world, &config, &r->instance, &error);
  g_assert_no_error(error);
  g_assert_true(accepted);
  wide_next(r->world, &r->event, OCT_EVENT_OPENED);
  r->job(r);
  oct_world_close(world, r->instance);
  oct_step_builder_free(r->builder);
  return 0;
}

static void
run_on_device(void (*job)(run *r)) {
  g_autoptr(GError) error = NULL;
  run r = {.job = job};
  oct_world *world = oct_backend_world_new("cuda:fixed_order=1", &error);
  if (world == NULL) {
    g_test_skip(error->message);
    return;
  }
  (void)oct_world_run(world, run_inside, &r);
  oct_world_free(world);
}

/* The first sequence's logprobs, owned. */
static float *
logits_of(run *r, guint32 n, guint32 chunk) {
  r->n = n;
  r->chunk = chunk;
  r->logits = g_new0(float, (gsize)TOKENS *VOCAB);
  run_steps(r);
  return r->logits;
}

static void
expect_equal(const float *got, const float *wanted, const char *what) {
  guint32 off = 0;
  for (gsize i = 0; i < (gsize)TOKENS * VOCAB; i++)
    off += memcmp(&got[i], &wanted[i], sizeof *got) != 0;
  g_test_message("%s: %u of %d logits differ", what, off, TOKENS * VOCAB);
  g_assert_cmpuint(off, ==, 0);
}

static void
among_others(run *r) {
  static const guint32 counts[] = {2, 3, 7, 16, 17, 33, 64};
  g_autofree float *alone = logits_of(r, 1, PROMPT);
  for (guint i = 0; i < G_N_ELEMENTS(counts); i++) {
    g_autofree float *some = logits_of(r, counts[i], PROMPT);
    g_autofree char *what = g_strdup_printf("one of %u", counts[i]);
    expect_equal(some, alone, what);
  }
}

static void
in_chunks(run *r) {
  static const guint32 chunks[] = {150, 128, 64, 50, 20};
  g_autofree float *whole = logits_of(r, 1, PROMPT);
  for (guint i = 0; i < G_N_ELEMENTS(chunks); i++)
    for (guint32 n = 1; n <= 9; n += 8) {
      g_autofree float *some = logits_of(r, n, chunks[i]);
      g_autofree char *what = g_strdup_printf("one of %u, chunks of %u", n, chunks[i]);
      expect_equal(some, whole, what);
    }
}

static void
test_others(void) {
  run_on_device(among_others);
}

static void
test_chunks(void) {
  run_on_device(in_chunks);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/cuda/fixed/alone-and-among-others-has-the-same-bits", test_others);
  g_test_add_func("/cuda/fixed/whole-and-in-chunks-has-the-same-bits", test_chunks);
  return g_test_run();
}
