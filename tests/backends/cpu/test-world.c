/* What the contract test does not reach: openings that fail, log probabilities, penalties, masks
 * and expert counts of a real model, slices that fail alone, and breaches that end the world. */
#include <math.h>
#include <string.h>

#include <glib/gstdio.h>

#include "backends/cpu/cpu.h"
#include "backends/registry.h"
#include "tests/backends/cpu/golden.h"

/* A world with one open instance of a checkpoint, driven step by step. */
typedef struct bench {
  golden g;
  oct_world *world;
  oct_instance_config config;
  oct_step_builder *builder;
  guint32 instance;
  guint64 number;
  oct_slot_open *opened; /* by the last prompt() */
  oct_event event;
} bench;

static void
bench_config(bench *b, const oct_model_spec *spec) {
  static const guint16 devices[] = {0};
  oct_layer_group groups[OCT_MODEL_GROUPS_MAX];
  b->config = (oct_instance_config){.label = "bench",
                                    .spec = spec,
                                    .parallel = OCT_PARALLEL_DEFAULT,
                                    .devices = devices,
                                    .kv_dtype = OCT_DTYPE_BF16,
                                    .block_size = 16,
                                    .depth = 2,
                                    .max_slots = 4,
                                    .max_batched_tokens = 128,
                                    .seed = 1,
                                    .report_experts = TRUE};
  b->config.memory.n_groups = oct_model_groups(spec, OCT_DTYPE_BF16, groups);
  for (guint32 i = 0; i < b->config.memory.n_groups; i++)
    b->config.memory.groups[i] = (oct_pool_plan){.n_device = 16, .n_host = 4};
}

/* The first event that is no progress. */
static void
next(bench *b) {
  do
    g_assert_true(oct_world_next(b->world, OCT_TIME_NEVER, &b->event));
  while (b->event.kind == OCT_EVENT_OPEN_PROGRESS);
}

typedef struct call {
  const char *model; /* a folder, or NULL: the golden one */
  const char *name;  /* of the golden checkpoint that says the spec */
  void (*fn)(bench *b);
} call;

static int
run_inside(oct_world *world, void *arg) {
  const call *c = arg;
  bench b = {.world = world};
  g_autoptr(GError) error = NULL;
  golden_open(&b.g, c->name);
  bench_config(&b, b.g.spec);
  b.builder = oct_step_builder_new();
  g_assert_true(oct_world_open(world, &b.config, &b.instance, &error));
  g_assert_no_error(error);
  next(&b);
  c->fn(&b);
  oct_world_close(world, b.instance);
  oct_step_builder_free(b.builder);
  golden_close(&b.g);
  return 0;
}

static void
with_world(const char *name, const char *model, const char *options, void (*fn)(bench *b)) {
  g_autoptr(GError) error = NULL;
  g_autofree char *in_hf = g_build_filename("hf", name, NULL);
  g_autofree char *own = golden_path(in_hf);
  g_autofree char *text =
      g_strdup_printf("cpu:threads=2,model=%s%s", model != NULL ? model : own, options);
  oct_world *world = oct_backend_world_new(text, &error);
  g_assert_no_error(error);
  call c = {model, name, fn};
  (void)oct_world_run(world, run_inside, &c);
  oct_world_free(world);
}

/* Begins a step that opens slot `slot` with pages 4 x slot … and runs the whole prompt. */
static oct_slice *
prompt(bench *b, guint32 slot, oct_sample sample) {
  oct_slot_open *o = b->opened = oct_step_add_open(b->builder);
  o->slot = slot;
  o->prompt_tokens = GOLDEN_PROMPT;
  for (guint32 g = 0; g < b->config.memory.n_groups; g++)
    for (guint32 i = 0; i < 4; i++)
      *oct_step_add_change(b->builder) = (oct_page_change){
          .slot = slot, .group = (guint16)g, .index = i, .page = 4 * slot + (i * 3 + 1) % 4};
  guint32 at = oct_step_add_tokens(b->builder, b->g.prompt, GOLDEN_PROMPT, NULL);
  oct_slice *s = oct_step_add_slice(b->builder);
  s->slot = slot;
  s->sample = (guint8)sample;
  s->n_tokens = GOLDEN_PROMPT;
  s->tokens = at;
  return s;
}

static void
submit(bench *b) {
  g_autoptr(GError) error = NULL;
  const oct_step *step = oct_step_end(b->builder);
  g_assert_cmpint(oct_world_submit(b->world, b->instance, step, &error), ==, OCT_SUBMIT_OK);
  g_assert_no_error(error);
}

static void
begin(bench *b) {
  oct_step_begin(b->builder, ++b->number, 1);
}

/* ---------------------------------------------------------------- opening */

static void
expect_open_failed(bench *b) {
  g_assert_cmpint(b->event.kind, ==, OCT_EVENT_OPEN_FAILED);
  g_test_message("%s", b->event.fault->message);
  g_assert_cmpuint(strlen(b->event.fault->message), >, 10);
}

static void
wrong_checkpoints_open_nothing(void) {
  g_autofree char *other = golden_path("hf/qwen2-bias"), *none = golden_path("hf/none");
  with_world("mixtral", other, "", expect_open_failed);
  with_world("llama", none, "", expect_open_failed);
  with_world("llama", none, ",clock=virtual", expect_open_failed);
}

static int
refuse_scaling(oct_world *world, void *arg) {
  bench b = {0};
  g_autoptr(GError) error = NULL;
  g_autoptr(oct_model_spec) spec = oct_model_spec_load("llama-3.1-8b", NULL, &error);
  (void)arg;
  g_assert_no_error(error);
  spec->numerics.rope_scaling = OCT_ROPE_SCALING_OTHER;
  bench_config(&b, spec);
  g_assert_false(oct_world_open(world, &b.config, &b.instance, &error));
  g_assert_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_CONFIG);
  g_assert_nonnull(strstr(error->message, "rope scaling"));
  return 0;
}

static void
models_that_are_not_computed_are_refused(void) {
  g_autoptr(GError) error = NULL;
  oct_world *world = oct_cpu_world_new(NULL, &error);
  g_assert_no_error(error);
  (void)oct_world_run(world, refuse_scaling, NULL);
  oct_world_free(world);
}

static void
wrong_options_are_refused(void) {
  static const char *const wrong[] = {"cpu:threads=257",    "cpu:kv=fp8",    "cpu:format=onnx",
                                      "cpu:latents=nested", "cpu:model=a,b", "cpu:fixed_ns=0"};
  for (gsize i = 0; i < G_N_ELEMENTS(wrong); i++) {
    g_autoptr(GError) error = NULL;
    g_assert_null(oct_backend_world_new(wrong[i], &error));
    g_assert_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_CONFIG);
  }
}

/* ---------------------------------------------------------------- results */

/* Log probability of `token` at position t by the golden logits. */
static double
exact_logprob(const bench *b, guint32 t, guint32 token) {
  guint32 vocab = b->g.spec->vocab;
  const float *l = golden_floats(&b->g, "logits", (gsize)GOLDEN_PROMPT * vocab) + (gsize)t * vocab;
  double sum = 0;
  for (guint32 i = 0; i < vocab; i++)
    sum += exp(l[i]);
  return l[token] - log(sum);
}

static void
check_logprobs(bench *b) {
  begin(b);
  prompt(b, 0, OCT_SAMPLE_ALL)->n_logprobs = 5;
  prompt(b, 1, OCT_SAMPLE_LAST);
  submit(b);
  next(b);
  g_assert_cmpint(b->event.kind, ==, OCT_EVENT_STEP_DONE);
  const oct_step_result *r = b->event.result;
  const oct_slice_result *s = oct_result_slices(r);
  g_assert_cmpuint(s[0].n_accepted, ==, GOLDEN_PROMPT);
  g_assert_cmpuint(s[1].n_accepted, ==, 1);
  g_assert_cmpuint(oct_result_tokens(r)[s[1].tokens], ==, b->g.generated[0]);
  g_assert_cmpuint(s[1].logprobs, ==, OCT_NO_INDEX);
  for (guint32 t = 0; t < GOLDEN_PROMPT; t++) {
    const oct_logprob *l = oct_result_logprobs(r) + s[0].logprobs + t * 6;
    g_assert_cmpuint(l[0].token, ==, oct_result_tokens(r)[s[0].tokens + t]);
    for (guint32 k = 0; k < 6; k++) {
      g_assert_cmpfloat(fabs(l[k].logprob - exact_logprob(b, t, l[k].token)), <, 1e-4);
      g_assert_true(k < 1 || l[k].token != l[0].token);
      g_assert_true(k < 2 || l[k].logprob <= l[k - 1].logprob);
      g_assert_cmpfloat(l[0].logprob, >=, l[k].logprob); /* greedy */
    }
  }
  gint64 parts = 0;
  for (int i = 0; i < OCT_PART_COUNT; i++)
    parts += r->part_ns[i];
  g_assert_cmpint(parts, ==, r->end_ns - r->start_ns);
}

static void
logprobs_are_the_models_own(void) {
  with_world("llama", NULL, "", check_logprobs);
}

static void
check_experts(bench *b) {
  begin(b);
  prompt(b, 0, OCT_SAMPLE_LAST);
  submit(b);
  next(b);
  const oct_step_result *r = b->event.result;
  const oct_model_spec *spec = b->g.spec;
  guint64 pairs[8] = {0};
  g_assert_cmpuint(r->n_experts, >, 0);
  for (guint32 i = 0; i < r->n_experts; i++) {
    const oct_expert_use *use = &oct_result_experts(r)[i];
    g_assert_cmpuint(use->missed, ==, 0);
    pairs[use->layer] += use->tokens;
  }
  for (guint32 l = 0; l < spec->n_layers; l++)
    g_assert_cmpuint(pairs[l], ==, GOLDEN_PROMPT * spec->ffn[spec->layers[l].ffn].top_k);
}

static void
experts_are_counted(void) {
  with_world("qwen3-moe", NULL, "", check_experts);
}

/* The mask of the second slice allows what is not the likeliest; both steps wait in turn. */
static void
check_masks(bench *b) {
  guint64 bits[5] = {0};
  g_autoptr(GError) error = NULL;
  begin(b);
  prompt(b, 0, OCT_SAMPLE_LAST);
  prompt(b, 1, OCT_SAMPLE_LAST)->flags |= OCT_SLICE_NEEDS_MASK;
  submit(b);
  next(b);
  g_assert_cmpint(b->event.kind, ==, OCT_EVENT_MASK_WANTED);
  g_assert_cmpuint(b->event.slice, ==, 1);
  bits[4] = (guint64)1 << 63; /* token 319, the last one */
  g_assert_true(oct_world_mask(b->world, b->instance, 1, 1, bits, 5, &error));
  next(b);
  g_assert_cmpint(b->event.kind, ==, OCT_EVENT_STEP_DONE);
  const guint32 *tokens = oct_result_tokens(b->event.result);
  g_assert_cmpuint(tokens[0], ==, b->g.generated[0]);
  g_assert_cmpuint(tokens[1], ==, 319);
}

static void
masks_are_obeyed_to_the_last_token(void) {
  with_world("llama", NULL, "", check_masks);
  with_world("llama", NULL, ",clock=virtual", check_masks);
}

/* ---------------------------------------------------------------- penalties */

#define OUTPUTS 22

typedef struct penalties {
  float repetition, presence, frequency;
} penalties;

/* How many of the greedy tokens came before, and how many are in the prompt. */
static void
count_outputs(bench *b, const penalties *p, guint *repeated, guint *from_prompt) {
  guint32 outputs[OUTPUTS];
  *repeated = *from_prompt = 0;
  for (guint i = 0; i < OUTPUTS; i++) {
    begin(b);
    if (i == 0) {
      oct_slice *s = prompt(b, 0, OCT_SAMPLE_LAST);
      b->opened->repetition_penalty = p->repetition;
      b->opened->presence_penalty = p->presence;
      b->opened->frequency_penalty = p->frequency;
      b->opened->history = s->tokens;
      b->opened->n_history = GOLDEN_PROMPT;
    } else {
      *oct_step_add_slice(b->builder) = (oct_slice){.source = OCT_SOURCE_DEVICE,
                                                    .sample = OCT_SAMPLE_LAST,
                                                    .n_tokens = 1,
                                                    .tokens = OCT_NO_INDEX,
                                                    .position = OCT_POSITION_AFTER,
                                                    .state_position = OCT_NO_INDEX};
    }
    submit(b);
    next(b);
    outputs[i] = oct_result_tokens(b->event.result)[0];
    gboolean again = FALSE, prompted = FALSE;
    for (guint k = 0; k < i; k++)
      again |= outputs[k] == outputs[i];
    for (guint k = 0; k < GOLDEN_PROMPT; k++)
      prompted |= b->g.prompt[k] == outputs[i];
    *repeated += again;
    *from_prompt += prompted;
  }
}

/* Penalties beyond all logits. Presence and frequency look at the output, repetition at both. */
static void
check_penalties(bench *b) {
  static const penalties none = {1, 0, 0}, presence = {1, 1000, 0}, frequency = {1, 0, 1000},
                         repetition = {1e6f, 0, 0};
  guint repeated, from_prompt;
  count_outputs(b, &none, &repeated, &from_prompt);
  g_test_message("of %u outputs %u came before, %u are in the prompt", OUTPUTS, repeated,
                 from_prompt);
  g_assert_cmpuint(repeated, >, 0);
  g_assert_cmpuint(from_prompt, >, 0);
  count_outputs(b, &presence, &repeated, &from_prompt);
  g_assert_cmpuint(repeated, ==, 0);
  g_assert_cmpuint(from_prompt, >, 0);
  count_outputs(b, &frequency, &repeated, &from_prompt);
  g_assert_cmpuint(repeated, ==, 0);
  g_assert_cmpuint(from_prompt, >, 0);
  count_outputs(b, &repetition, &repeated, &from_prompt);
  g_assert_cmpuint(repeated, ==, 0);
  g_assert_cmpuint(from_prompt, ==, 0);
}

static void
penalties_see_prompt_and_output(void) {
  with_world("llama", NULL, "", check_penalties);
}

/* ---------------------------------------------------------------- what goes wrong */

/* The llama checkpoint with a number in the head's row of token 7 that is none; owned path. */
static char *
broken_checkpoint(void) {
  g_autoptr(GError) error = NULL;
  golden g;
  golden_open(&g, "llama");
  g_autofree char *from = g_build_filename(g.folder, "model.safetensors", NULL);
  g_autofree char *config = g_build_filename(g.folder, "config.json", NULL), *bytes, *json;
  gsize size, json_size;
  g_assert_true(g_file_get_contents(from, &bytes, &size, &error));
  g_assert_true(g_file_get_contents(config, &json, &json_size, &error));
  g_autoptr(oct_checkpoint) file = oct_checkpoint_open(from, OCT_LOAD_SAFETENSORS, &error);
  g_assert_no_error(error);
  const oct_file_tensor *head = oct_checkpoint_find(file, "lm_head.weight");
  const oct_file_tensor *first = oct_checkpoint_tensor(file, 0);
  for (guint i = 1; i < oct_checkpoint_n_tensors(file); i++)
    if (oct_checkpoint_tensor(file, i)->data < first->data)
      first = oct_checkpoint_tensor(file, i);
  gsize start = size - oct_checkpoint_bytes(file); /* tensors fill the file's end */
  gsize at = start + (gsize)(head->data - first->data) + (gsize)7 * g.spec->hidden * 2;
  memcpy(bytes + at, "\xc0\x7f", 2);
  char *folder = g_dir_make_tmp("octet-cpu-XXXXXX", &error);
  g_assert_no_error(error);
  g_autofree char *to = g_build_filename(folder, "model.safetensors", NULL);
  g_autofree char *to_config = g_build_filename(folder, "config.json", NULL);
  g_assert_true(g_file_set_contents(to, bytes, (gssize)size, &error));
  g_assert_true(g_file_set_contents(to_config, json, (gssize)json_size, &error));
  golden_close(&g);
  return folder;
}

static void
remove_checkpoint(const char *folder) {
  static const char *const names[] = {"model.safetensors", "config.json"};
  for (gsize i = 0; i < G_N_ELEMENTS(names); i++) {
    g_autofree char *path = g_build_filename(folder, names[i], NULL);
    g_unlink(path);
  }
  g_rmdir(folder);
}

static void
check_failed_slices(bench *b) {
  begin(b);
  prompt(b, 0, OCT_SAMPLE_LAST);
  prompt(b, 1, OCT_SAMPLE_NONE); /* samples nothing: nothing can go wrong with it */
  submit(b);
  begin(b); /* the next step is there already */
  *oct_step_add_slice(b->builder) = (oct_slice){.slot = 0,
                                                .source = OCT_SOURCE_DEVICE,
                                                .sample = OCT_SAMPLE_LAST,
                                                .n_tokens = 1,
                                                .tokens = OCT_NO_INDEX,
                                                .position = OCT_POSITION_AFTER,
                                                .state_position = OCT_NO_INDEX};
  submit(b);
  next(b);
  g_assert_cmpint(b->event.kind, ==, OCT_EVENT_FAULT);
  g_assert_cmpint(b->event.fault->severity, ==, OCT_SEVERITY_REQUEST);
  g_assert_cmpuint(b->event.fault->number, ==, 1);
  g_assert_cmpuint(b->event.fault->slice, ==, 0);
  next(b);
  g_assert_cmpint(b->event.kind, ==, OCT_EVENT_STEP_DONE);
  const oct_slice_result *s = oct_result_slices(b->event.result);
  g_assert_cmpuint(s[0].flags, ==, OCT_RESULT_FAILED);
  g_assert_cmpuint(s[0].n_accepted, ==, 0);
  g_assert_cmpuint(s[1].flags, ==, 0);
  /* What follows of the slot is dropped by the engine, and is no fault of its own. */
  next(b);
  g_assert_cmpint(b->event.kind, ==, OCT_EVENT_STEP_DONE);
  g_assert_cmpuint(b->event.number, ==, 2);
}

static void
a_logit_that_is_no_number_fails_its_slice(void) {
  g_autofree char *folder = broken_checkpoint();
  with_world("llama", folder, "", check_failed_slices);
  with_world("llama", folder, ",clock=virtual", check_failed_slices);
  remove_checkpoint(folder);
}

static void
expect_fatal(bench *b, const char *what) {
  g_autoptr(GError) error = NULL;
  submit(b);
  next(b);
  g_assert_cmpint(b->event.kind, ==, OCT_EVENT_FAULT);
  g_assert_cmpint(b->event.fault->severity, ==, OCT_SEVERITY_FATAL);
  g_test_message("%s", b->event.fault->message);
  g_assert_nonnull(strstr(b->event.fault->message, what));
  begin(b);
  g_assert_cmpint(oct_world_submit(b->world, b->instance, oct_step_end(b->builder), &error), ==,
                  OCT_SUBMIT_REFUSED);
  g_assert_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_DEVICE);
}

static void
slice_without_slot(bench *b) {
  begin(b);
  oct_slice *s = oct_step_add_slice(b->builder);
  *s = (oct_slice){.n_tokens = 1, .position = 0, .state_position = OCT_NO_INDEX};
  s->tokens = oct_step_add_tokens(b->builder, b->g.prompt, 1, NULL);
  expect_fatal(b, "not open");
}

static void
slice_without_page(bench *b) {
  begin(b);
  oct_slot_open *o = oct_step_add_open(b->builder);
  o->prompt_tokens = 20;
  *oct_step_add_change(b->builder) = (oct_page_change){.index = 1, .page = 3};
  oct_slice *s = oct_step_add_slice(b->builder);
  s->n_tokens = 20;
  s->tokens = oct_step_add_tokens(b->builder, b->g.prompt, 20, NULL);
  expect_fatal(b, "no page 0");
}

static void
slice_without_token(bench *b) {
  begin(b);
  prompt(b, 0, OCT_SAMPLE_NONE);
  submit(b);
  next(b);
  begin(b);
  *oct_step_add_slice(b->builder) = (oct_slice){.source = OCT_SOURCE_DEVICE,
                                                .sample = OCT_SAMPLE_LAST,
                                                .n_tokens = 1,
                                                .tokens = OCT_NO_INDEX,
                                                .position = GOLDEN_PROMPT,
                                                .state_position = OCT_NO_INDEX};
  expect_fatal(b, "no token");
}

static void
slice_below_the_first_live_page(bench *b) {
  begin(b);
  prompt(b, 0, OCT_SAMPLE_LAST);
  *oct_step_add_change(b->builder) = (oct_page_change){.op = OCT_PAGE_FIRST_LIVE, .index = 1};
  expect_fatal(b, "given up");
}

static void
breaches_end_the_world(void) {
  void (*const breaches[])(bench * b) = {slice_without_slot, slice_without_page,
                                         slice_without_token, slice_below_the_first_live_page};
  for (gsize i = 0; i < G_N_ELEMENTS(breaches); i++) {
    with_world("llama", NULL, "", breaches[i]);
    with_world("llama", NULL, ",clock=virtual", breaches[i]);
  }
}

static void
check_adapters(bench *b) {
  g_autoptr(GError) error = NULL;
  g_assert_false(b->event.capabilities->adapters);
  begin(b);
  prompt(b, 0, OCT_SAMPLE_LAST)->adapter = 1;
  g_assert_cmpint(oct_world_submit(b->world, b->instance, oct_step_end(b->builder), &error), ==,
                  OCT_SUBMIT_REFUSED);
  g_assert_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_UNSUPPORTED);
}

static void
adapters_are_refused(void) {
  with_world("llama", NULL, "", check_adapters);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/cpu/world/wrong-checkpoints-open-nothing", wrong_checkpoints_open_nothing);
  g_test_add_func("/cpu/world/models-that-are-not-computed-are-refused",
                  models_that_are_not_computed_are_refused);
  g_test_add_func("/cpu/world/wrong-options-are-refused", wrong_options_are_refused);
  g_test_add_func("/cpu/world/logprobs-are-the-models-own", logprobs_are_the_models_own);
  g_test_add_func("/cpu/world/experts-are-counted", experts_are_counted);
  g_test_add_func("/cpu/world/masks-are-obeyed-to-the-last-token",
                  masks_are_obeyed_to_the_last_token);
  g_test_add_func("/cpu/world/penalties-see-prompt-and-output", penalties_see_prompt_and_output);
  g_test_add_func("/cpu/world/a-logit-that-is-no-number-fails-its-slice",
                  a_logit_that_is_no_number_fails_its_slice);
  g_test_add_func("/cpu/world/breaches-end-the-world", breaches_end_the_world);
  g_test_add_func("/cpu/world/adapters-are-refused", adapters_are_refused);
  return g_test_run();
}
