/* Many sequences of models with latent attention, as DeepSeek-V3 has it, on a GPU against the cpu
 * backend: short prompts, decodes and drafts of all of them at once and of few, with graphs of
 * every size and without, in any order and in a fixed one. */
#include "config.h"

#include <math.h>

#include "backends/registry.h"
#include "engine/base/rng.h"
#include "tests/backends/cuda/wide.h"

#define VOCAB 33 /* a token's own logprob and 32 others are all of them */
#define SLOTS 256
#define PAGES 3 /* of a slot */
#define BLOCK 16
#define MOST  (PAGES * BLOCK - 1)

static oct_layer_spec layers[2] = {{0, 0}, {0, 1}};

/* 512 + 64, as published; narrow elsewhere. */
static oct_model_spec
deepseek(guint32 heads) {
  static char name[] = "many-latent";
  oct_model_spec s = wide_base(name, VOCAB, 256, layers, G_N_ELEMENTS(layers));
  s.max_position = 163840;
  s.rms_norm_eps = 1e-6;
  s.n_ffn = 2;
  s.attention[0] = (oct_attention_spec){.kind = OCT_ATTENTION_MLA,
                                        .n_heads = heads,
                                        .q_lora = 128,
                                        .kv_lora = 512,
                                        .qk_nope = 128,
                                        .qk_rope = 64,
                                        .v_head = 128};
  s.ffn[0] = (oct_ffn_spec){.kind = OCT_FFN_DENSE, .intermediate = 512};
  s.ffn[1] = (oct_ffn_spec){.kind = OCT_FFN_DENSE, .intermediate = 256};
  return s;
}

/* ---------------------------------------------------------------- a run */

typedef struct run {
  const oct_model_spec *spec;
  gboolean eager;
  float *logits; /* [slots, MOST, vocab]: logprobs, of tokens that were scored */
  guint32 at[SLOTS];
  oct_world *world;
  guint32 instance;
  guint64 number;
  oct_step_builder *builder;
  oct_event event;
} run;

static guint32
id_at(guint32 slot, guint32 position) {
  return (guint32)(oct_mix64(1000 * slot + position) % VOCAB);
}

static oct_slice *
add(run *r, guint32 slot, guint32 n_ids, guint32 first) {
  guint32 *ids, at = oct_step_add_tokens(r->builder, NULL, n_ids, &ids);
  for (guint32 i = 0; i < n_ids; i++)
    ids[i] = id_at(slot, first + i);
  oct_slice *s = oct_step_add_slice(r->builder);
  s->slot = slot;
  s->source = OCT_SOURCE_IDS;
  s->tokens = at;
  s->position = r->at[slot];
  return s;
}

static void
submit(run *r) {
  g_autoptr(GError) error = NULL;
  oct_submit answer = oct_world_submit(r->world, r->instance, oct_step_end(r->builder), &error);
  g_assert_no_error(error);
  g_assert_cmpint(answer, ==, OCT_SUBMIT_OK);
  wide_next(r->world, &r->event, OCT_EVENT_STEP_DONE);
}

/* The next n tokens of slots [0, count), every one scored. */
static void
score(run *r, guint32 count, guint32 n) {
  oct_step_begin(r->builder, ++r->number, 1);
  for (guint32 slot = 0; slot < count; slot++) {
    if (r->at[slot] == 0) {
      oct_slot_open *o = oct_step_add_open(r->builder);
      o->slot = slot;
      o->prompt_tokens = MOST + 1;
      for (guint32 i = 0; i < PAGES; i++)
        *oct_step_add_change(r->builder) =
            (oct_page_change){.slot = slot, .index = i, .page = i * SLOTS + slot};
    }
    oct_slice *s = add(r, slot, n + 1, r->at[slot]);
    s->sample = OCT_SAMPLE_NONE;
    s->n_prompt_logprobs = VOCAB - 1;
    s->n_tokens = n;
  }
  submit(r);
  const oct_logprob *l = oct_result_logprobs(r->event.result);
  for (guint32 slot = 0; slot < count; r->at[slot++] += n)
    for (guint32 i = 0; i < n; i++)
      for (guint32 k = 0; k < VOCAB; k++, l++)
        r->logits[((gsize)slot * MOST + r->at[slot] + i) * VOCAB + l->token] = l->logprob;
}

/* A token of each slot and n drafts behind it, which are verified where the sequences end. */
static void
verify(run *r, guint32 count, guint32 n) {
  oct_step_begin(r->builder, ++r->number, 1);
  for (guint32 slot = 0; slot < count; slot++) {
    oct_slice *s = add(r, slot, 1 + n, r->at[slot]);
    s->sample = OCT_SAMPLE_ALL;
    s->flags = OCT_SLICE_VERIFY;
    s->n_tokens = 1 + n;
  }
  submit(r);
}

/* A token of each slot is sampled: the steps that have graphs from the beginning. */
static void
decode(run *r, guint32 count) {
  oct_step_begin(r->builder, ++r->number, 1);
  for (guint32 slot = 0; slot < count; slot++) {
    oct_slice *s = add(r, slot, 1, r->at[slot]++);
    s->sample = OCT_SAMPLE_LAST;
    s->n_tokens = 1;
  }
  submit(r);
}

static int
run_inside(oct_world *world, void *arg) {
  static const guint16 devices[] = {0};
  run *r = arg;
  g_autoptr(GError) error = NULL;
  oct_instance_config config = {.label = "many",
                                .spec = r->spec,
                                .parallel = OCT_PARALLEL_DEFAULT,
                                .devices = devices,
                                .kv_dtype = OCT_DTYPE_BF16,
                                .block_size = BLOCK,
                                .depth = 2,
                                .max_slots = SLOTS,
                                .max_batched_tokens = 8 * SLOTS,
                                .seed = 1,
                                .eager = r->eager};
  config.memory.n_groups = 1;
  /* Contexts of 163,840 tokens would have room: what workspaces have to do for. */
  config.memory.groups[0] = (oct_pool_plan){.n_device = 163840 / BLOCK};
  r->world = world;
  r->builder = oct_step_builder_new();
  gboolean accepted = oct_world_open(world, &config, &r->instance, &error);
  g_assert_no_error(error);
  g_assert_true(accepted);
  wide_next(r->world, &r->event, OCT_EVENT_OPENED);
  for (guint32 n = 2; n <= 16; n += 7) /* a prompt alone, which is padded; together 27 tokens */
    score(r, 1, n);
  for (guint32 slot = 0; slot < SLOTS; slot++)
    r->at[slot] = 0;
  static const guint32 counts[] = {SLOTS, 200, 96};
  for (guint i = 0; i < G_N_ELEMENTS(counts); i++) {
    score(r, counts[i], 2 + i);
    score(r, counts[i], 1);
    decode(r, counts[i]);
    score(r, counts[i], 3);
  }
  verify(r, 200, 3);
  oct_world_close(world, r->instance);
  oct_step_builder_free(r->builder);
  return 0;
}

/* FALSE: the test is skipped, there is no GPU. */
static gboolean
compute(run *r, const char *world_text) {
  g_autoptr(GError) error = NULL;
  oct_world *world = oct_backend_world_new(world_text, &error);
  if (world == NULL) {
    g_assert_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_DEVICE);
    g_test_skip(error->message);
    return FALSE;
  }
  r->logits = g_new0(float, (gsize)SLOTS *MOST *VOCAB);
  (void)oct_world_run(world, run_inside, r);
  oct_world_free(world);
  return TRUE;
}

static void
run_clear(run *r) {
  g_free(r->logits);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(run, run_clear)

/* ---------------------------------------------------------------- the tests */

static void
equals_cpu(gconstpointer data) {
  static const char *const worlds[] = {"cuda:", "cuda:fixed_order=1", "cuda:"};
  oct_model_spec spec = deepseek(GPOINTER_TO_UINT(data));
  g_auto(run) wanted = {.spec = &spec};
  for (guint way = 0; way < G_N_ELEMENTS(worlds); way++) {
    g_auto(run) got = {.spec = &spec, .eager = way == 2};
    if (!compute(&got, worlds[way]))
      return;
    if (wanted.logits == NULL)
      g_assert_true(compute(&wanted, "cpu"));
    double difference = 0, size = 0;
    for (gsize i = 0; i < (gsize)SLOTS * MOST * VOCAB; i++) {
      difference += pow((double)got.logits[i] - wanted.logits[i], 2);
      size += pow(wanted.logits[i], 2);
    }
    g_test_message("%u heads on %s%s: relative L2 %.2e", spec.attention[0].n_heads, worlds[way],
                   got.eager ? ", eager" : "", sqrt(difference / size));
    g_assert_cmpfloat(sqrt(difference / size), <=, 2e-2);
  }
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_data_func("/cuda/many/16-heads-equal-cpu", GUINT_TO_POINTER(16), equals_cpu);
  g_test_add_data_func("/cuda/many/32-heads-equal-cpu", GUINT_TO_POINTER(32), equals_cpu);
  return g_test_run();
}
