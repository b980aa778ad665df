/* Models of production shapes on a GPU against the cpu backend: heads of 128, latents of 512 + 64,
 * 16 experts, windows with a sink, and Kimi K3 with all that it has. Both make the same weights up;
 * the same three sequences go through both, prompts in chunks and then token by token together, and
 * every logit is compared. */
#include "config.h"

#include <math.h>
#include <string.h>

#ifdef HAVE_CUDA
#include <cuda_runtime_api.h>
#endif

#include "backends/cuda/cuda.h"
#include "backends/registry.h"
#include "engine/base/rng.h"
#include "kernels/cuda/launches.h"
#include "tests/backends/cuda/wide-models.h"
#include "tests/backends/cuda/wide.h"

#define VOCAB     WIDE_VOCAB
#define SEQUENCES 3
#define PROMPT    150
#define DECODES   6
#define TOKENS    (PROMPT + DECODES)
#define PAGES     10 /* of a sequence */

/* How often the backend has told that it widens weights. */
static gint n_widened;

static GLogWriterOutput
watch_log(GLogLevelFlags level, const GLogField *fields, gsize n, gpointer data) {
  for (gsize i = 0; i < n; i++)
    if (g_str_equal(fields[i].key, "MESSAGE") && strstr(fields[i].value, "widened") != NULL)
      g_atomic_int_inc(&n_widened);
  return g_log_writer_default(level, fields, n, data);
}

/* ---------------------------------------------------------------- a run */

typedef struct run {
  const oct_model_spec *spec;
  oct_parallel parallel;
  oct_dtype kv;
  gboolean single;  /* every step has one token of each sequence */
  gboolean eager;   /* no graphs */
  gboolean apart;   /* one sequence after the other */
  guint more;       /* how often all sequences are run again; the last time's logits stay */
  float *logits;    /* [sequences, tokens, vocab]: logprobs */
  guint64 *choices; /* [tokens]: of experts, by a step that has a token of each sequence */
  oct_world *world;
  guint32 instance;
  guint64 number;
  oct_step_builder *builder;
  oct_layer_group groups[OCT_MODEL_GROUPS_MAX];
  guint n_groups;
  oct_event event;
} run;

static guint32
id_at(guint32 sequence, guint32 position) {
  return (guint32)(oct_mix64(1000 * sequence + position) % VOCAB);
}

static void
open_slot(run *r, guint32 slot) {
  oct_slot_open *o = oct_step_add_open(r->builder);
  o->slot = slot;
  o->prompt_tokens = TOKENS;
  for (guint g = 0; g < r->n_groups; g++)
    for (guint32 i = 0; i < (r->groups[g].state_bytes > 0 ? 1 : PAGES); i++)
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
  if (oct_model_has_state(r->spec))
    s->state_position = first;
}

static void
finish(run *r, const guint32 *firsts, const guint32 *counts) {
  g_autoptr(GError) error = NULL;
  oct_submit answer = oct_world_submit(r->world, r->instance, oct_step_end(r->builder), &error);
  g_assert_no_error(error);
  g_assert_cmpint(answer, ==, OCT_SUBMIT_OK);
  wide_next(r->world, &r->event, OCT_EVENT_STEP_DONE);
  if (r->single)
    r->choices[firsts[0]] = wide_hash_choices(r->event.result);
  const oct_logprob *l = oct_result_logprobs(r->event.result);
  for (guint32 s = 0; s < SEQUENCES; s++)
    for (guint32 i = 0; i < counts[s]; i++)
      for (guint32 k = 0; k < VOCAB; k++, l++)
        r->logits[((gsize)s * TOKENS + firsts[s] + i) * VOCAB + l->token] = l->logprob;
}

/* Sequences [begin, end): prompts by chunks of their own, then all of them token by token. */
static void
run_steps(run *r, guint32 begin, guint32 end) {
  static const guint32 chunks[SEQUENCES] = {PROMPT, 64, 33};
  guint32 at[SEQUENCES] = {0}, firsts[SEQUENCES] = {0}, counts[SEQUENCES] = {0};
  for (guint32 left = (end - begin) * TOKENS; left > 0;) {
    oct_step_begin(r->builder, ++r->number, 1);
    for (guint32 s = begin; s < end; s++) {
      guint32 room = at[s] < PROMPT && !r->single ? MIN(chunks[s], PROMPT - at[s]) : 1;
      firsts[s] = at[s];
      counts[s] = MIN(room, TOKENS - at[s]);
      if (at[s] == 0)
        open_slot(r, s);
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
  static const guint16 devices[] = {0, 1, 2, 3, 4, 5, 6, 7};
  run *r = arg;
  g_autoptr(GError) error = NULL;
  oct_instance_config config = {.label = "wide",
                                .spec = r->spec,
                                .parallel = r->parallel,
                                .devices = devices,
                                .kv_dtype = r->kv,
                                .block_size = 16,
                                .depth = 2,
                                .max_slots = SEQUENCES,
                                .max_batched_tokens = SEQUENCES * TOKENS,
                                .seed = 1,
                                .eager = r->eager,
                                .report_experts = r->single};
  r->n_groups = oct_model_groups(r->spec, OCT_DTYPE_BF16, r->groups);
  config.memory.n_groups = r->n_groups;
  for (guint32 i = 0; i < config.memory.n_groups; i++)
    config.memory.groups[i] = (oct_pool_plan){.n_device = SEQUENCES * PAGES};
  r->world = world;
  r->builder = oct_step_builder_new();
  gboolean accepted = oct_world_open(world, &config, &r->instance, &error);
  g_assert_no_error(error);
  g_assert_true(accepted);
  wide_next(r->world, &r->event, OCT_EVENT_OPENED);
  for (guint i = 0; i <= r->more && !r->apart; i++)
    run_steps(r, 0, SEQUENCES);
  for (guint32 s = 0; s < SEQUENCES && r->apart; s++)
    run_steps(r, s, s + 1);
  oct_world_close(world, r->instance);
  oct_step_builder_free(r->builder);
  return 0;
}

/* Every sequence's logits, each row less its mean; frees the world. */
static void
compute_on(run *r, oct_world *world) {
  r->logits = g_new0(float, SEQUENCES *TOKENS *VOCAB);
  r->choices = g_new0(guint64, TOKENS);
  (void)oct_world_run(world, run_inside, r);
  oct_world_free(world);
  for (guint32 row = 0; row < SEQUENCES * TOKENS; row++) {
    float *l = r->logits + (gsize)row * VOCAB;
    double mean = 0;
    for (guint32 k = 0; k < VOCAB; k++)
      mean += (double)l[k] / VOCAB;
    for (guint32 k = 0; k < VOCAB; k++)
      l[k] -= (float)mean;
  }
}

/* FALSE with *error: no such world. */
static gboolean
compute(run *r, const char *world_text, GError **error) {
  oct_world *world = oct_backend_world_new(world_text, error);
  if (world != NULL)
    compute_on(r, world);
  return world != NULL;
}

static void
run_clear(run *r) {
  g_free(r->logits);
  g_free(r->choices);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(run, run_clear)

/* ---------------------------------------------------------------- the comparison */

typedef struct kind {
  const char *name, *world;
  double limit; /* relative L2 */
  guint32 tensor, pipeline;
  oct_dtype kv;
  gboolean quantised; /* models of quantised weights too */
  guint32 context;
  gboolean experts; /* whole ones on each rank */
} kind;

static const kind kinds[] = {
    {"float32", "cuda:dtype=float32,devices=2", 1e-4, 1, 1, OCT_DTYPE_BF16, FALSE, 1, FALSE},
    {"float32-tensor2", "cuda:dtype=float32,devices=2", 1e-4, 2, 1, OCT_DTYPE_BF16, FALSE, 1,
     FALSE},
    {"float32-pipeline2", "cuda:dtype=float32,devices=2", 1e-4, 1, 2, OCT_DTYPE_BF16, FALSE, 1,
     FALSE},
    {"float32-expanded", "cuda:dtype=float32,expand=16,expand_keys=64", 1e-4, 1, 1, OCT_DTYPE_BF16,
     FALSE, 1, FALSE},
    {"bfloat16-expanded", "cuda:expand=16,expand_keys=64", 2e-2, 1, 1, OCT_DTYPE_BF16, FALSE, 1,
     FALSE},
    {"bfloat16-fp8-expanded", "cuda:expand=16", 1e-1, 1, 1, OCT_DTYPE_FP8, FALSE, 1, FALSE},
    {"bfloat16", "cuda:devices=2", 2e-2, 1, 1, OCT_DTYPE_BF16, TRUE, 1, FALSE},
    {"bfloat16-tensor2", "cuda:devices=2", 2e-2, 2, 1, OCT_DTYPE_BF16, TRUE, 1, FALSE},
    {"bfloat16-fixed", "cuda:devices=2,fixed_order=1", 2e-2, 1, 1, OCT_DTYPE_BF16, TRUE, 1, FALSE},
    {"bfloat16-fp8", "cuda:devices=2", 1e-1, 1, 1, OCT_DTYPE_FP8, FALSE, 1, FALSE},
    /* Inputs have four significant bits. */
    {"fp8-inputs", "cuda:devices=2,fp8_inputs=1", 1e-1, 1, 1, OCT_DTYPE_BF16, TRUE, 1, FALSE},
};

/* Layouts of eight ranks, which share GPUs where there are fewer. */
static const kind eight_kinds[] = {
    {"float32-tensor8", "cuda:dtype=float32,devices=8", 1e-4, 8, 1, OCT_DTYPE_BF16, FALSE, 1,
     FALSE},
    {"float32-experts8", "cuda:dtype=float32,devices=8", 1e-4, 8, 1, OCT_DTYPE_BF16, FALSE, 1,
     TRUE},
    {"float32-tensor8-context8", "cuda:dtype=float32,devices=8", 1e-4, 8, 1, OCT_DTYPE_BF16, FALSE,
     8, FALSE},
    {"float32-tensor4-pipeline2", "cuda:dtype=float32,devices=8", 1e-4, 4, 2, OCT_DTYPE_BF16, FALSE,
     1, FALSE},
    {"float32-tensor2-pipeline4", "cuda:dtype=float32,devices=8", 1e-4, 2, 4, OCT_DTYPE_BF16, FALSE,
     1, FALSE},
    {"bfloat16-tensor8", "cuda:devices=8", 2e-2, 8, 1, OCT_DTYPE_BF16, FALSE, 1, FALSE},
    {"bfloat16-tensor4-pipeline2", "cuda:devices=8", 2e-2, 4, 2, OCT_DTYPE_BF16, FALSE, 1, FALSE},
    {"float32-tensor8-expanded", "cuda:dtype=float32,devices=8,expand=16,expand_keys=64", 1e-4, 8,
     1, OCT_DTYPE_BF16, FALSE, 1, FALSE},
    {"bfloat16-tensor8-expanded", "cuda:devices=8,expand=16", 2e-2, 8, 1, OCT_DTYPE_BF16, FALSE, 1,
     FALSE},
    {"bfloat16-experts8", "cuda:devices=8", 2e-2, 8, 1, OCT_DTYPE_BF16, FALSE, 1, TRUE},
};

typedef struct test {
  const kind *kind;
  wide_model spec;
} test;

/* Relative L2 over the rows of steps in which both chose the same experts, and how many steps are
 * left out. */
static double
difference_of(const run *a, const run *b, guint32 *n_flipped) {
  double difference = 0, size = 0;
  *n_flipped = 0;
  for (guint32 t = 0; t < TOKENS; t++) {
    gboolean flipped = a->choices[t] != b->choices[t];
    *n_flipped += flipped;
    for (guint32 s = 0; s < SEQUENCES && !flipped; s++)
      for (guint32 k = 0; k < VOCAB; k++) {
        gsize at = ((gsize)s * TOKENS + t) * VOCAB + k;
        double off = (double)a->logits[at] - b->logits[at];
        difference += off * off;
        size += (double)b->logits[at] * b->logits[at];
      }
  }
  g_assert_cmpfloat(size, >, 0);
  return sqrt(difference / size);
}

/* ---------------------------------------------------------------- kernels */

#ifdef HAVE_CUDA
/* What decides which kernels a run takes. */
typedef struct traits {
  gboolean f32, fixed, expanded, shared; /* shared: ranks share GPUs */
  gboolean latent, gqa, state, experts, codes, fp8_inputs;
} traits;

static gboolean
says(const kind *k, const char *option) {
  return strstr(k->world, option) != NULL;
}

static traits
traits_of(const kind *k, const oct_model_spec *s, guint n_gpus) {
  traits t = {.f32 = says(k, "dtype=float32"),
              .fixed = says(k, "fixed_order=1"),
              .expanded = says(k, "expand=16"),
              .shared = k->tensor * k->pipeline > n_gpus,
              .state = oct_model_has_state(s),
              .experts = oct_model_has_experts(s),
              .codes = s->types.attention != OCT_DTYPE_BF16 ||
                       s->types.dense_ffn != OCT_DTYPE_BF16 || s->types.expert != OCT_DTYPE_BF16};
  t.fp8_inputs = says(k, "fp8_inputs=1") && s->types.attention == OCT_DTYPE_FP8;
  for (guint32 i = 0; i < s->n_attention; i++) {
    t.latent |= s->attention[i].kind == OCT_ATTENTION_MLA;
    t.gqa |= s->attention[i].kind == OCT_ATTENTION_GQA;
  }
  return t;
}

/* Kernels whose names contain both. */
static void
expect_kernel(const oct_cuda_launches *launches, const char *part, const char *type,
              gboolean wanted) {
  guint64 n = 0;
  for (guint32 i = 0; i < launches->n; i++)
    if (strstr(launches->of[i].name, part) != NULL && strstr(launches->of[i].name, type) != NULL)
      n += launches->of[i].n;
  if ((n > 0) != wanted)
    g_test_message("%s of %s: %" G_GUINT64_FORMAT " launches", part, type, n);
  g_assert_cmpint(n > 0, ==, wanted);
}

static void
expect_attention(const oct_cuda_launches *l, const kind *k, const traits *t) {
  gboolean fast = !t->f32, parts = k->context > 1;
  const char *cache = t->f32 ? "" : k->kv == OCT_DTYPE_FP8 ? "fp8_e4m3" : "bfloat16";
  expect_kernel(l, "attend_plain", "", !fast && !parts);
  expect_kernel(l, "attend_part", "", !fast && parts);
  expect_kernel(l, "attend_hopper", cache, fast && t->gqa);
  expect_kernel(l, "attend_decode", cache, fast && t->gqa && !t->fixed);
  expect_kernel(l, "attend_latent", cache, fast && t->latent);
  expect_kernel(l, "attend_expanded_hopper", "", fast && t->latent && t->expanded);
  expect_kernel(l, "attend_expanded", "", t->latent && t->expanded);
  expect_kernel(l, "kda_decode", "", t->state);
  expect_kernel(l, "kda_chunks", "", t->state && !t->fixed);
}

/* Products of bfloat16 by their size: of few tokens o and down, and gates and ups. Quantised
 * weights: of prompts as operands in registers, of few tokens by the skinny kernel, as small ones
 * of bfloat16 are. */
static void
expect_products(const oct_cuda_launches *l, const kind *k, const traits *t, gboolean is_dense) {
  gboolean alone = k->tensor * k->pipeline == 1, fast = !t->f32;
  expect_kernel(l, "cublasLt", "", !t->fixed);
  if ((t->f32 && t->experts) || (t->fixed && t->latent))
    expect_kernel(l, "multiply_plain", "", TRUE);
  expect_kernel(l, "quantise_rows", "", t->fp8_inputs);
  expect_kernel(l, "sort_pairs", "", t->experts);
  if (!fast || !alone || t->fp8_inputs)
    return;
  if (is_dense && !t->codes) {
    expect_kernel(l, "norm of parts", "", !t->fixed);
    expect_kernel(l, "multiply_narrow", "", TRUE);
  }
  expect_kernel(l, "multiply_codes", "", t->codes && !t->fixed);
  expect_kernel(l, "multiply_skinny", "", !t->fixed);
  if (t->fixed && (t->codes || t->experts))
    expect_kernel(l, "multiply_tile", "", TRUE);
}

static void
expect_kernels(const kind *k, const oct_model_spec *spec, const oct_cuda_launches *launches) {
  int n_gpus = 0;
  g_assert_cmpint(cudaGetDeviceCount(&n_gpus), ==, cudaSuccess);
  traits t = traits_of(k, spec, (guint)n_gpus);
  for (guint32 i = 0; i < launches->n; i++)
    g_test_message("%6" G_GUINT64_FORMAT " x %s", launches->of[i].n, launches->of[i].name);
  expect_attention(launches, k, &t);
  expect_products(launches, k, &t, g_str_has_prefix(spec->name, "wide-dense"));
  if (k->tensor == 1 || t.shared)
    expect_kernel(launches, "norm_rows", "", TRUE);
  expect_kernel(launches, "all_reduce", "", k->tensor > 1 && !t.shared);
  expect_kernel(launches, "mix_rows", "", spec->attn_res_block > 0);
  expect_kernel(launches, "gate_rows", "", spec->attn_res_block > 0);
}

/* The kind's world, which counts kernels. */
static oct_world *
open_counted(const kind *k, oct_cuda_launches *launches, GError **error) {
  g_auto(GStrv) parts = g_strsplit(k->world + strlen("cuda:"), ",", -1);
  oct_cuda_options o;
  oct_cuda_options_default(&o);
  o.launches = launches;
  for (char **part = parts; *part != NULL; part++) {
    g_auto(GStrv) pair = g_strsplit(*part, "=", 2);
    guint32 value = (guint32)g_ascii_strtoull(pair[1], NULL, 10);
    if (g_str_equal(pair[0], "dtype"))
      o.float32 = g_str_equal(pair[1], "float32");
    else if (g_str_equal(pair[0], "devices"))
      o.devices = value;
    else if (g_str_equal(pair[0], "fixed_order"))
      o.fixed_order = value != 0;
    else if (g_str_equal(pair[0], "fp8_inputs"))
      o.fp8_inputs = value != 0;
    else if (g_str_equal(pair[0], "expand"))
      o.expand = value;
    else if (g_str_equal(pair[0], "expand_keys"))
      o.expand_keys = value;
    else
      g_error("the kind %s has an option %s", k->name, pair[0]);
  }
  return oct_cuda_world_new(&o, error);
}
#endif

/* FALSE: the test is skipped. */
static gboolean
compute_counted(run *r, const kind *k) {
  g_autoptr(GError) error = NULL;
#ifdef HAVE_CUDA
  g_autofree oct_cuda_launches *launches = g_new0(oct_cuda_launches, 1);
  oct_world *world = open_counted(k, launches, &error);
#else
  oct_world *world = oct_backend_world_new(k->world, &error);
#endif
  if (world == NULL) {
    g_assert_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_DEVICE);
    g_test_skip(error->message);
    return FALSE;
  }
  compute_on(r, world);
#ifdef HAVE_CUDA
  if (!r->single)
    expect_kernels(k, r->spec, launches);
#endif
  return TRUE;
}

/* Both on the same steps. In bfloat16 a token may choose another expert than in float32 where two
 * score alike, and is then off by as much as the experts differ: where steps have one token of each
 * sequence that is seen, and such steps are counted instead of compared, a quarter of them at most
 * (half where the cache or the inputs are fp8, whose rounding is 16 times as coarse); over prompts
 * in chunks the whole is held to three times the limit. */
static void
compare(const test *t, const oct_model_spec *spec, gboolean single) {
  g_autoptr(GError) error = NULL;
  oct_parallel one = OCT_PARALLEL_DEFAULT, several = one;
  several.tensor = t->kind->tensor;
  several.pipeline = t->kind->pipeline;
  several.decode_context = t->kind->context;
  several.expert_parallel = t->kind->experts;
  g_auto(run) got = {.spec = spec, .parallel = several, .kv = t->kind->kv, .single = single};
  g_auto(run) wanted = {.spec = spec, .parallel = one, .kv = OCT_DTYPE_BF16, .single = single};
  g_atomic_int_set(&n_widened, 0);
  if (!compute_counted(&got, t->kind))
    return;
  /* All but a latent's second projection, which is read both ways. */
  gboolean widens =
      spec->attention[0].kind == OCT_ATTENTION_MLA && spec->types.attention != OCT_DTYPE_BF16;
  g_assert_cmpint(g_atomic_int_get(&n_widened), ==, widens ? (gint)t->kind->tensor : 0);
  g_assert_true(compute(&wanted, "cpu", &error));
  double bound = t->kind->limit;
  if (bound > 1e-3 && spec->attn_res_block > 0)
    bound = MAX(bound, 2 * WIDE_K3_SHORT_BF16);
  guint32 flipped, most = bound < 1e-3 ? 0 : bound < 1e-1 ? TOKENS / 4 : TOKENS / 2;
  double limit = oct_model_has_experts(spec) && !single && bound > 1e-3 ? 3 * bound : bound;
  double difference = difference_of(&got, &wanted, &flipped);
  g_test_message("%s on %s%s: relative L2 %.2e, limit %.0e; %u of %u steps chose other experts",
                 spec->name, t->kind->name, single ? ", step by step" : "", difference, limit,
                 flipped, (guint)TOKENS);
  g_assert_cmpfloat(difference, <=, limit);
  g_assert_cmpuint(flipped, <=, most);
}

static void
equals_cpu(gconstpointer data) {
  const test *t = data;
  oct_model_spec spec = t->spec();
  compare(t, &spec, FALSE);
  if (oct_model_has_experts(&spec) && !g_test_failed())
    compare(t, &spec, TRUE);
}

static void
add_test(const kind *k, wide_model spec) {
  test *t = g_new(test, 1);
  *t = (test){k, spec};
  g_autofree char *path = g_strdup_printf("/cuda/wide/%s/%s-equals-cpu", k->name, spec().name);
  g_test_add_data_func_full(path, t, equals_cpu, g_free);
}

/* Of models that have what the layout divides: experts, latents without heads; stages have at least
 * a layer of the short Kimi K3 each. */
static void
add_eight(const kind *k, const wide_model *specs, gsize n) {
  for (gsize i = 0; i < n; i++) {
    oct_model_spec spec = specs[i]();
    if ((!k->experts || oct_model_has_experts(&spec)) &&
        (k->context == 1 || spec.attention[0].kind == OCT_ATTENTION_MLA))
      add_test(k, specs[i]);
  }
  add_test(k, k->limit < 1e-3 ? wide_k3_long : wide_k3_short);
}

/* ---------------------------------------------------------------- graphs and batches */

/* TRUE: computed; FALSE: the test is skipped, there is no GPU. */
static gboolean
compute_or_skip(run *r, const char *world_text) {
  g_autoptr(GError) error = NULL;
  if (compute(r, world_text, &error))
    return TRUE;
  g_assert_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_DEVICE);
  g_test_skip(error->message);
  return FALSE;
}

/* Steps with prompts come again, so that they are captured and replayed; without graphs they are
 * enqueued anew every time. */
static void
graphs_give_the_same_bits(gconstpointer data) {
  const test *t = data;
  oct_model_spec spec = t->spec();
  g_auto(run)
      graphs = {.spec = &spec, .parallel = OCT_PARALLEL_DEFAULT, .kv = OCT_DTYPE_BF16, .more = 2};
  g_auto(run) eager = graphs;
  eager.eager = TRUE;
  if (!compute_or_skip(&graphs, "cuda:devices=2") || !compute_or_skip(&eager, "cuda:devices=2"))
    return;
  gsize bytes = sizeof(float) * SEQUENCES * TOKENS * VOCAB;
  g_assert_cmpint(memcmp(graphs.logits, eager.logits, bytes), ==, 0);
}

/* The likeliest token of a row, and how far ahead of the next it is. */
static guint32
best_of(const float *row, float *margin) {
  guint32 best = 0;
  float next = -INFINITY;
  for (guint32 k = 1; k < VOCAB; k++)
    if (row[k] > row[best]) {
      next = row[best];
      best = k;
    } else {
      next = MAX(next, row[k]);
    }
  *margin = row[best] - next;
  return best;
}

/* Each sequence alone, and all together. With a fixed order the bits are the same; without, another
 * token is the likeliest only where the two logits were nearer than twice the largest difference.
 */
static void
batches_change_near_ties_alone(gconstpointer data) {
  const test *t = data;
  oct_model_spec spec = t->spec();
  for (guint fixed = 0; fixed < 2; fixed++) {
    const char *world = fixed == 1 ? "cuda:devices=2,fixed_order=1" : "cuda:devices=2";
    g_auto(run) together = {.spec = &spec, .parallel = OCT_PARALLEL_DEFAULT, .kv = OCT_DTYPE_BF16};
    g_auto(run) apart = together;
    apart.apart = TRUE;
    if (!compute_or_skip(&together, world) || !compute_or_skip(&apart, world))
      return;
    guint flips = 0;
    float largest = 0, widest = 0;
    for (gsize i = 0; i < SEQUENCES * TOKENS * VOCAB; i++)
      largest = MAX(largest, fabsf(together.logits[i] - apart.logits[i]));
    for (gsize row = 0; row < SEQUENCES * TOKENS; row++) {
      float margin, other;
      if (best_of(together.logits + row * VOCAB, &margin) ==
          best_of(apart.logits + row * VOCAB, &other))
        continue;
      flips++;
      widest = MAX(widest, margin);
    }
    g_test_message("%s, %s: %u of %d likeliest tokens differ, largest difference %.2e, margin of "
                   "those %.2e",
                   spec.name, fixed ? "fixed order" : "any order", flips, SEQUENCES * TOKENS,
                   (double)largest, (double)widest);
    if (fixed)
      g_assert_cmpfloat(largest, ==, 0);
    g_assert_cmpfloat(widest, <=, 2 * largest);
  }
}

static void
add_named(const test *t, const char *name, GTestDataFunc run_test) {
  g_autofree char *path = g_strdup_printf("/cuda/wide/%s/%s", t->spec().name, name);
  g_test_add_data_func_full(path, g_memdup2(t, sizeof *t), run_test, g_free);
}

int
main(int argc, char **argv) {
  static const wide_model plain_models[] = {wide_dense, wide_latent, wide_windowed};
  static const wide_model graph_models[] = {wide_dense, wide_latent, wide_windowed, wide_k3_long};
  static const wide_model quantised_models[] = {
      wide_dense_fp8,     wide_dense_blocks,   wide_dense_int4,   wide_dense_int4_small,
      wide_latent_blocks, wide_windowed_mxfp4, wide_windowed_int4};
  g_test_init(&argc, &argv, NULL);
  g_log_set_writer_func(watch_log, NULL, NULL);
  for (gsize i = 0; i < G_N_ELEMENTS(kinds); i++) {
    for (gsize k = 0; k < G_N_ELEMENTS(plain_models); k++)
      add_test(&kinds[i], plain_models[k]);
    for (gsize k = 0; k < G_N_ELEMENTS(quantised_models) && kinds[i].quantised; k++)
      add_test(&kinds[i], quantised_models[k]);
    add_test(&kinds[i], kinds[i].limit < 1e-3 ? wide_k3_long : wide_k3_short);
  }
  for (gsize i = 0; i < G_N_ELEMENTS(eight_kinds); i++)
    add_eight(&eight_kinds[i], plain_models, G_N_ELEMENTS(plain_models));
  for (gsize k = 0; k < G_N_ELEMENTS(graph_models); k++) {
    const test t = {NULL, graph_models[k]};
    add_named(&t, "graphs-give-the-same-bits", graphs_give_the_same_bits);
    add_named(&t, "batches-change-near-ties-alone", batches_change_near_ties_alone);
  }
  return g_test_run();
}
