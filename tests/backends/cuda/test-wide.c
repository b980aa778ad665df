/* Models of production shapes on a GPU against the cpu backend: heads of 128, latents of 512 + 64,
 * 16 experts, windows with a sink. Both make the same weights up; the same three sequences go
 * through both, prompts in chunks and then token by token together, and every logit is compared. */
#include <math.h>
#include <string.h>

#include "backends/registry.h"
#include "engine/base/rng.h"

#define VOCAB     129 /* a token's own logprob and 128 others are all of them */
#define SEQUENCES 3
#define PROMPT    150
#define DECODES   6
#define TOKENS    (PROMPT + DECODES)
#define PAGES     10 /* of a sequence */

/* ---------------------------------------------------------------- models */

static oct_layer_spec plain[4] = {{0, 0}, {0, 0}, {0, 0}, {0, 0}};
static oct_layer_spec mixed[4] = {{0, 0}, {1, 1}, {0, 1}, {1, 1}};

static oct_model_spec
base(char *name) {
  static char architecture[] = "wide";
  return (oct_model_spec){.name = name,
                          .architecture = architecture,
                          .vocab = VOCAB,
                          .hidden = 2048,
                          .n_layers = 4,
                          .max_position = 4096,
                          .rms_norm_eps = 1e-5,
                          .rope_theta = 10000,
                          .n_attention = 1,
                          .n_ffn = 1,
                          .layers = plain,
                          .types = {.attention = OCT_DTYPE_BF16,
                                    .dense_ffn = OCT_DTYPE_BF16,
                                    .expert = OCT_DTYPE_BF16,
                                    .shared_expert = OCT_DTYPE_BF16,
                                    .router = OCT_DTYPE_BF16,
                                    .latent = OCT_DTYPE_BF16,
                                    .embedding = OCT_DTYPE_BF16,
                                    .head = OCT_DTYPE_BF16,
                                    .base = OCT_DTYPE_BF16}};
}

static oct_model_spec
dense(void) {
  static char name[] = "wide-dense";
  oct_model_spec s = base(name);
  s.attention[0] = (oct_attention_spec){
      .kind = OCT_ATTENTION_GQA, .n_heads = 16, .n_kv_heads = 8, .head_dim = 128, .qk_norm = TRUE};
  s.ffn[0] = (oct_ffn_spec){.kind = OCT_FFN_DENSE, .intermediate = 4096};
  return s;
}

static oct_ffn_spec
experts(guint32 shared) {
  return (oct_ffn_spec){.kind = OCT_FFN_MOE,
                        .n_experts = 16,
                        .top_k = 4,
                        .moe_intermediate = 256,
                        .shared_intermediate = shared,
                        .routed_scaling = 1};
}

static oct_model_spec
latent(void) {
  static char name[] = "wide-latent";
  oct_model_spec s = base(name);
  s.n_ffn = 1;
  s.attention[0] = (oct_attention_spec){.kind = OCT_ATTENTION_MLA,
                                        .n_heads = 16,
                                        .q_lora = 768,
                                        .kv_lora = 512,
                                        .qk_nope = 128,
                                        .qk_rope = 64,
                                        .v_head = 128};
  s.ffn[0] = experts(256);
  s.numerics.router_sigmoid = s.numerics.router_renormalise = TRUE;
  return s;
}

static oct_model_spec
windowed(void) {
  static char name[] = "wide-window";
  oct_model_spec s = base(name);
  s.layers = mixed;
  s.n_attention = s.n_ffn = 2;
  s.attention[0] = (oct_attention_spec){
      .kind = OCT_ATTENTION_GQA, .n_heads = 16, .n_kv_heads = 4, .head_dim = 64, .sinks = TRUE};
  s.attention[1] = s.attention[0];
  s.attention[1].kind = OCT_ATTENTION_WINDOW;
  s.attention[1].window = 64;
  s.ffn[0] = (oct_ffn_spec){.kind = OCT_FFN_DENSE, .intermediate = 4096};
  s.ffn[1] = experts(0);
  s.numerics.router_renormalise = TRUE;
  return s;
}

/* ---------------------------------------------------------------- a run */

typedef struct run {
  const oct_model_spec *spec;
  oct_parallel parallel;
  oct_dtype kv;
  float *logits; /* [sequences, tokens, vocab]: logprobs */
  oct_world *world;
  guint32 instance;
  guint64 number;
  oct_step_builder *builder;
  oct_event event;
} run;

static guint32
id_at(guint32 sequence, guint32 position) {
  return (guint32)(oct_mix64(1000 * sequence + position) % VOCAB);
}

static void
next(run *r, oct_event_kind wanted) {
  do
    g_assert_true(oct_world_next(r->world, OCT_TIME_NEVER, &r->event));
  while (r->event.kind == OCT_EVENT_OPEN_PROGRESS);
  if (r->event.kind == OCT_EVENT_FAULT || r->event.kind == OCT_EVENT_OPEN_FAILED)
    g_test_message("%s", r->event.fault->message);
  g_assert_cmpint(r->event.kind, ==, wanted);
}

static void
open_slot(run *r, guint32 slot, guint n_groups) {
  oct_slot_open *o = oct_step_add_open(r->builder);
  o->slot = slot;
  o->prompt_tokens = TOKENS;
  for (guint g = 0; g < n_groups; g++)
    for (guint32 i = 0; i < PAGES; i++)
      *oct_step_add_change(r->builder) = (oct_page_change){
          .slot = slot, .group = (guint16)g, .index = i, .page = i * SEQUENCES + slot};
}

/* Tokens [first, first + n) of a sequence, every one scored. */
static void
add(run *r, guint32 sequence, guint32 first, guint32 n) {
  guint32 *ids, at = oct_step_add_tokens(r->builder, NULL, n + 1, &ids);
  for (guint32 i = 0; i <= n; i++)
    ids[i] = id_at(sequence, first + i);
  oct_slice *s = oct_step_add_slice(r->builder);
  s->slot = sequence;
  s->source = OCT_SOURCE_IDS;
  s->sample = OCT_SAMPLE_NONE;
  s->n_prompt_logprobs = VOCAB - 1;
  s->n_tokens = n;
  s->tokens = at;
  s->position = first;
}

static void
finish(run *r, const guint32 *firsts, const guint32 *counts) {
  g_autoptr(GError) error = NULL;
  oct_submit answer = oct_world_submit(r->world, r->instance, oct_step_end(r->builder), &error);
  g_assert_no_error(error);
  g_assert_cmpint(answer, ==, OCT_SUBMIT_OK);
  next(r, OCT_EVENT_STEP_DONE);
  const oct_logprob *l = oct_result_logprobs(r->event.result);
  for (guint32 s = 0; s < SEQUENCES; s++)
    for (guint32 i = 0; i < counts[s]; i++)
      for (guint32 k = 0; k < VOCAB; k++, l++)
        r->logits[((gsize)s * TOKENS + firsts[s] + i) * VOCAB + l->token] = l->logprob;
}

/* Prompts by chunks of their own, then all sequences token by token. */
static void
run_steps(run *r, guint n_groups) {
  static const guint32 chunks[SEQUENCES] = {PROMPT, 64, 33};
  guint32 at[SEQUENCES] = {0}, firsts[SEQUENCES], counts[SEQUENCES];
  for (guint32 left = SEQUENCES * TOKENS; left > 0;) {
    oct_step_begin(r->builder, ++r->number, 1);
    for (guint32 s = 0; s < SEQUENCES; s++) {
      guint32 room = at[s] < PROMPT ? MIN(chunks[s], PROMPT - at[s]) : 1;
      firsts[s] = at[s];
      counts[s] = MIN(room, TOKENS - at[s]);
      if (at[s] == 0)
        open_slot(r, s, n_groups);
      if (counts[s] > 0)
        add(r, s, at[s], counts[s]);
      at[s] += counts[s];
      left -= counts[s];
    }
    finish(r, firsts, counts);
  }
}

static int
run_inside(oct_world *world, void *arg) {
  static const guint16 devices[] = {0, 1};
  run *r = arg;
  g_autoptr(GError) error = NULL;
  oct_layer_group groups[OCT_MODEL_GROUPS_MAX];
  oct_instance_config config = {.label = "wide",
                                .spec = r->spec,
                                .parallel = r->parallel,
                                .devices = devices,
                                .kv_dtype = r->kv,
                                .block_size = 16,
                                .depth = 2,
                                .max_slots = SEQUENCES,
                                .max_batched_tokens = SEQUENCES * TOKENS,
                                .seed = 1};
  config.memory.n_groups = oct_model_groups(r->spec, OCT_DTYPE_BF16, groups);
  for (guint32 i = 0; i < config.memory.n_groups; i++)
    config.memory.groups[i] = (oct_pool_plan){.n_device = SEQUENCES * PAGES};
  r->world = world;
  r->builder = oct_step_builder_new();
  gboolean accepted = oct_world_open(world, &config, &r->instance, &error);
  g_assert_no_error(error);
  g_assert_true(accepted);
  next(r, OCT_EVENT_OPENED);
  run_steps(r, config.memory.n_groups);
  oct_world_close(world, r->instance);
  oct_step_builder_free(r->builder);
  return 0;
}

/* Every sequence's logits, each row less its mean; owned. NULL with *error: no such world. */
static float *
logits_of(const char *world_text, const oct_model_spec *spec, const oct_parallel *parallel,
          oct_dtype kv, GError **error) {
  oct_world *world = oct_backend_world_new(world_text, error);
  if (world == NULL)
    return NULL;
  run r = {.spec = spec, .parallel = *parallel, .kv = kv};
  r.logits = g_new0(float, SEQUENCES *TOKENS *VOCAB);
  (void)oct_world_run(world, run_inside, &r);
  oct_world_free(world);
  for (guint32 row = 0; row < SEQUENCES * TOKENS; row++) {
    float *l = r.logits + (gsize)row * VOCAB;
    double mean = 0;
    for (guint32 k = 0; k < VOCAB; k++)
      mean += (double)l[k] / VOCAB;
    for (guint32 k = 0; k < VOCAB; k++)
      l[k] -= (float)mean;
  }
  return r.logits;
}

/* ---------------------------------------------------------------- the comparison */

typedef struct kind {
  const char *name, *world;
  double limit; /* relative L2 */
  guint32 tensor, pipeline;
  oct_dtype kv;
} kind;

static const kind kinds[] = {
    {"float32", "cuda:dtype=float32,devices=2", 1e-4, 1, 1, OCT_DTYPE_BF16},
    {"float32-tensor2", "cuda:dtype=float32,devices=2", 1e-4, 2, 1, OCT_DTYPE_BF16},
    {"float32-pipeline2", "cuda:dtype=float32,devices=2", 1e-4, 1, 2, OCT_DTYPE_BF16},
    {"bfloat16", "cuda:devices=2", 2e-2, 1, 1, OCT_DTYPE_BF16},
    {"bfloat16-tensor2", "cuda:devices=2", 2e-2, 2, 1, OCT_DTYPE_BF16},
    {"bfloat16-fixed", "cuda:devices=2,fixed_order=1", 2e-2, 1, 1, OCT_DTYPE_BF16},
    {"bfloat16-fp8", "cuda:devices=2", 1e-1, 1, 1, OCT_DTYPE_FP8},
};

typedef struct test {
  const kind *kind;
  oct_model_spec (*spec)(void);
} test;

static void
equals_cpu(gconstpointer data) {
  const test *t = data;
  g_autoptr(GError) error = NULL;
  oct_model_spec spec = t->spec();
  oct_parallel one = OCT_PARALLEL_DEFAULT, several = one;
  several.tensor = t->kind->tensor;
  several.pipeline = t->kind->pipeline;
  g_autofree float *got = logits_of(t->kind->world, &spec, &several, t->kind->kv, &error);
  if (got == NULL) {
    g_assert_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_DEVICE);
    g_test_skip(error->message);
    return;
  }
  g_autofree float *wanted = logits_of("cpu", &spec, &one, OCT_DTYPE_BF16, &error);
  g_assert_no_error(error);
  double difference = 0, size = 0;
  for (gsize i = 0; i < SEQUENCES * TOKENS * VOCAB; i++) {
    difference += ((double)got[i] - wanted[i]) * ((double)got[i] - wanted[i]);
    size += (double)wanted[i] * wanted[i];
  }
  g_test_message("%s on %s: relative L2 %.2e, limit %.0e", spec.name, t->kind->name,
                 sqrt(difference / size), t->kind->limit);
  g_assert_cmpfloat(size, >, 0);
  g_assert_cmpfloat(sqrt(difference / size), <=, t->kind->limit);
}

int
main(int argc, char **argv) {
  static oct_model_spec (*const specs[])(void) = {dense, latent, windowed};
  g_test_init(&argc, &argv, NULL);
  for (gsize i = 0; i < G_N_ELEMENTS(kinds); i++)
    for (gsize k = 0; k < G_N_ELEMENTS(specs); k++) {
      test *t = g_new(test, 1);
      *t = (test){&kinds[i], specs[k]};
      g_autofree char *path =
          g_strdup_printf("/cuda/wide/%s/%s-equals-cpu", kinds[i].name, specs[k]().name);
      g_test_add_data_func_full(path, t, equals_cpu, g_free);
    }
  return g_test_run();
}
