/* Output in a fixed order: a token's logits have the same bits in whatever steps its sequence
 * comes, alone and among any others: decoded, in chunks of one token and of several, behind pages
 * that an earlier sequence left, computed again after it was preempted. By one of each kind of
 * attention, and weights and caches of each type. */
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

/* ---------------------------------------------------------------- models */

static oct_layer_spec layers[3] = {{0, 0}, {0, 0}, {0, 0}};
static oct_layer_spec mixed[3] = {{0, 0}, {1, 1}, {0, 1}};

static oct_model_spec
base(oct_attention_spec attention) {
  static char name[] = "fixed";
  oct_model_spec s = wide_base(name, VOCAB, 1024, layers, G_N_ELEMENTS(layers));
  s.attention[0] = attention;
  s.ffn[0] = (oct_ffn_spec){.kind = OCT_FFN_DENSE, .intermediate = 2816};
  return s;
}

static oct_model_spec
of_heads(guint32 width, guint32 n_heads) {
  return base((oct_attention_spec){.kind = OCT_ATTENTION_GQA,
                                   .n_heads = n_heads,
                                   .n_kv_heads = 2,
                                   .head_dim = width,
                                   .qk_norm = width != 128});
}

static oct_model_spec
dense(void) {
  return of_heads(128, 8);
}
static oct_model_spec
heads_of_64(void) {
  return of_heads(64, 14);
}
static oct_model_spec
heads_of_80(void) {
  return of_heads(80, 2);
}
static oct_model_spec
heads_of_256(void) {
  return of_heads(256, 4);
}
/* No kernel of tensor cores takes it. */
static oct_model_spec
heads_of_20(void) {
  return of_heads(20, 4);
}

static oct_model_spec
int4(void) {
  oct_model_spec s = dense();
  s.types.attention = s.types.dense_ffn = OCT_DTYPE_INT4_G128;
  return s;
}

/* A window with a sink, and experts. */
static oct_model_spec
windowed(void) {
  oct_model_spec s = base((oct_attention_spec){
      .kind = OCT_ATTENTION_GQA, .n_heads = 16, .n_kv_heads = 4, .head_dim = 64, .sinks = TRUE});
  s.layers = mixed;
  s.n_attention = s.n_ffn = 2;
  s.attention[1] = s.attention[0];
  s.attention[1].kind = OCT_ATTENTION_WINDOW;
  s.attention[1].window = 64;
  s.ffn[1] = wide_experts(0);
  s.numerics.router_renormalise = TRUE;
  return s;
}

static oct_model_spec
latent(void) {
  oct_model_spec s = base((oct_attention_spec){.kind = OCT_ATTENTION_MLA,
                                               .n_heads = 20,
                                               .q_lora = 768,
                                               .kv_lora = 512,
                                               .qk_nope = 128,
                                               .qk_rope = 64,
                                               .v_head = 128});
  s.ffn[0] = wide_experts(256);
  s.numerics.router_sigmoid = s.numerics.router_renormalise = TRUE;
  return s;
}

/* Delta attention, latent attention, experts on a latent, attention residuals. */
static oct_model_spec
k3(void) {
  static oct_layer_spec short_layers[] = {{0, 0}, {1, 1}, {0, 1}};
  oct_model_spec s = wide_k3(VOCAB, 512, 1024, 256);
  s.layers = short_layers;
  s.n_layers = G_N_ELEMENTS(short_layers);
  s.attn_res_block = 1;
  return s;
}

typedef struct subject {
  const char *name;
  oct_model_spec (*spec)(void);
  oct_dtype kv;
  const char *world;
} subject;

/* ---------------------------------------------------------------- a run */

typedef struct run {
  const subject *of;
  oct_model_spec spec;
  oct_world *world;
  guint32 instance;
  guint64 number;
  oct_step_builder *builder;
  oct_event event;
  oct_layer_group groups[OCT_MODEL_GROUPS_MAX];
  guint32 n_groups;
  guint32 n;      /* sequences, of which the first is looked at */
  guint32 chunk;  /* of its prompt; the others' differ */
  guint32 prompt; /* how many of its tokens come in chunks; the others are decoded */
  guint32 found;  /* how many of them are in its pages already */
  guint32 again;  /* behind so many it loses its pages, and computes them anew in one chunk */
  float *logits;  /* [TOKENS, VOCAB]: logprobs of the first sequence */
  void (*job)(struct run *r);
} run;

/* `moved`: on other pages than before. */
static void
open_slot(run *r, guint32 slot, gboolean moved) {
  oct_slot_open *o = oct_step_add_open(r->builder);
  o->slot = slot;
  o->prompt_tokens = TOKENS;
  for (guint32 g = 0; g < r->n_groups; g++)
    for (guint32 i = 0; i < (r->groups[g].state_bytes > 0 ? 1 : PAGES); i++)
      *oct_step_add_change(r->builder) =
          (oct_page_change){.slot = slot,
                            .group = (guint16)g,
                            .index = i,
                            .page = i * (SLOTS + 1) + (moved ? SLOTS : slot)};
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
  if (oct_model_has_state(&r->spec))
    s->state_position = first;
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

/* How many tokens a sequence has in a step that has room for so many. */
static guint32
take(const run *r, guint32 sequence, guint32 at, guint32 room) {
  guint32 chunk = sequence == 0 ? r->chunk : 7 + 31 * (sequence % 9);
  guint32 prompt = sequence == 0 ? r->prompt : PROMPT;
  return at < prompt ? MIN(MIN(chunk, prompt - at), MAX(room, 1)) : 1;
}

/* All sequences from their first token to the first one's last; those that end sooner begin again.
 */
static void
run_steps(run *r) {
  guint32 at[SLOTS] = {r->found}, again = r->again;
  gboolean is_open[SLOTS] = {FALSE};
  while (at[0] < TOKENS) {
    guint32 mine = 0, room = BUDGET;
    gboolean anew = again > 0 && at[0] >= again;
    guint32 first = anew ? 0 : at[0];
    oct_step_begin(r->builder, ++r->number, 1);
    for (guint32 s = 0; s < r->n; s++) {
      guint32 left = s + 1 < r->n ? r->n - s - 1 : 0;
      if (at[s] == TOKENS)
        at[s] = 0;
      gboolean moved = s == 0 && anew;
      guint32 n = moved ? again : take(r, s, at[s], room > left ? room - left : 0);
      at[s] = moved ? 0 : at[s];
      if (at[s] == 0 || !is_open[s])
        open_slot(r, s, moved);
      is_open[s] = TRUE;
      add(r, s, at[s], n, s == 0);
      mine = s == 0 ? n : mine;
      at[s] += n;
      room -= n;
    }
    again = anew ? 0 : again;
    finish(r, first, mine);
  }
}

static int
run_inside(oct_world *world, void *arg) {
  static const guint16 devices[] = {0, 1};
  run *r = arg;
  g_autoptr(GError) error = NULL;
  r->spec = r->of->spec();
  oct_instance_config config = {.label = "fixed",
                                .spec = &r->spec,
                                .parallel = OCT_PARALLEL_DEFAULT,
                                .devices = devices,
                                .kv_dtype = r->of->kv,
                                .block_size = BLOCK,
                                .depth = 2,
                                .max_slots = SLOTS,
                                .max_batched_tokens = BUDGET,
                                .seed = 1};
  config.parallel.tensor = strstr(r->of->world, "devices=2") != NULL ? 2 : 1;
  r->n_groups = oct_model_groups(&r->spec, OCT_DTYPE_BF16, r->groups);
  config.memory.n_groups = r->n_groups;
  for (guint32 g = 0; g < r->n_groups; g++)
    config.memory.groups[g] = (oct_pool_plan){.n_device = (SLOTS + 1) * PAGES};
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
run_on_device(const subject *of, void (*job)(run *r)) {
  g_autoptr(GError) error = NULL;
  run r = {.of = of, .job = job};
  oct_world *world = oct_backend_world_new(of->world, &error);
  if (world == NULL) {
    g_test_skip(error->message);
    return;
  }
  (void)oct_world_run(world, run_inside, &r);
  oct_world_free(world);
}

/* ---------------------------------------------------------------- comparisons */

/* How the first sequence comes. */
typedef struct manner {
  guint32 n, chunk, prompt, found, again;
} manner;

/* Its logprobs, owned; those that are not computed are zeros. */
static float *
logits_of(run *r, const manner *m) {
  r->n = m->n;
  r->chunk = m->chunk;
  r->prompt = m->prompt;
  r->found = m->found;
  r->again = m->again;
  r->logits = g_new0(float, (gsize)TOKENS *VOCAB);
  run_steps(r);
  return r->logits;
}

static void
expect_equal(const run *r, const float *got, const float *wanted, const manner *m) {
  guint32 off = 0, first = TOKENS;
  for (gsize i = (gsize)m->found * VOCAB; i < (gsize)TOKENS * VOCAB; i++)
    if (memcmp(&got[i], &wanted[i], sizeof *got) != 0) {
      off++;
      first = MIN(first, (guint32)(i / VOCAB));
    }
  g_test_message("%s, one of %u, %u tokens in chunks of %u, %u found, %u again: %u of %d logits "
                 "differ, from token %u on",
                 r->of->name, m->n, m->prompt, m->chunk, m->found, m->again, off, TOKENS * VOCAB,
                 first);
  g_assert_cmpuint(off, ==, 0);
}

static void
expect_all(run *r, const manner *manners, gsize n) {
  const manner whole = {1, PROMPT, PROMPT, 0, 0};
  g_autofree float *wanted = logits_of(r, &whole);
  for (gsize i = 0; i < n; i++) {
    g_autofree float *some = logits_of(r, &manners[i]);
    expect_equal(r, some, wanted, &manners[i]);
  }
}

static void
among_others(run *r) {
  static const manner manners[] = {{2, PROMPT, PROMPT, 0, 0},  {3, PROMPT, PROMPT, 0, 0},
                                   {7, PROMPT, PROMPT, 0, 0},  {16, PROMPT, PROMPT, 0, 0},
                                   {17, PROMPT, PROMPT, 0, 0}, {33, PROMPT, PROMPT, 0, 0},
                                   {64, PROMPT, PROMPT, 0, 0}};
  expect_all(r, manners, G_N_ELEMENTS(manners));
}

static void
in_chunks(run *r) {
  static const manner manners[] = {
      {1, TOKENS, TOKENS, 0, 0}, {1, 150, PROMPT, 0, 0}, {9, 128, PROMPT, 0, 0},
      {1, 50, PROMPT, 0, 0},     {9, 50, PROMPT, 0, 0},  {1, 23, PROMPT, 0, 0},
      {9, 3, PROMPT, 0, 0},      {1, 299, PROMPT, 0, 0}, {9, 299, PROMPT, 0, 0}};
  expect_all(r, manners, G_N_ELEMENTS(manners));
}

static void
token_by_token(run *r) {
  static const manner manners[] = {{1, 1, PROMPT, 0, 0}, {5, 1, PROMPT, 0, 0}};
  expect_all(r, manners, G_N_ELEMENTS(manners));
}

/* The pages are those of the run before. */
static void
behind_found_pages(run *r) {
  static const manner manners[] = {{1, PROMPT, PROMPT, PROMPT - 1, 0},
                                   {6, PROMPT, PROMPT, PROMPT - 1, 0},
                                   {1, PROMPT, PROMPT, 16, 0},
                                   {6, 7, PROMPT, 288, 0}};
  expect_all(r, manners, G_N_ELEMENTS(manners));
}

static void
computed_again(run *r) {
  static const manner manners[] = {{1, PROMPT, PROMPT, 0, PROMPT + 5},
                                   {4, 100, PROMPT, 0, PROMPT + 1},
                                   {4, 100, PROMPT, 0, 200},
                                   {1, 1, 40, 0, 120}};
  expect_all(r, manners, G_N_ELEMENTS(manners));
}

/* ---------------------------------------------------------------- tests */

static void
test_company(gconstpointer of) {
  run_on_device(of, among_others);
}

static void
test_chunks(gconstpointer of) {
  run_on_device(of, in_chunks);
}

static void
test_single(gconstpointer of) {
  run_on_device(of, token_by_token);
}

/* States are not in pages: a snapshot is a copy of them. */
static void
test_found(gconstpointer of) {
  oct_model_spec spec = ((const subject *)of)->spec();
  if (oct_model_has_state(&spec))
    g_test_skip("pages alone do not have a recurrent state");
  else
    run_on_device(of, behind_found_pages);
}

static void
test_again(gconstpointer of) {
  run_on_device(of, computed_again);
}

static void
add_test(const subject *of, const char *claim, GTestDataFunc fn) {
  g_autofree char *path = g_strdup_printf("/cuda/fixed/%s/%s", of->name, claim);
  g_test_add_data_func(path, of, fn);
}

#define FIXED "cuda:fixed_order=1"

int
main(int argc, char **argv) {
  static const subject subjects[] = {
      {"heads-of-128", dense, OCT_DTYPE_BF16, FIXED},
      {"heads-of-128-on-two-ranks", dense, OCT_DTYPE_BF16, FIXED ",devices=2"},
      {"heads-of-128-fp8-cache", dense, OCT_DTYPE_FP8, FIXED},
      {"heads-of-64", heads_of_64, OCT_DTYPE_BF16, FIXED},
      {"heads-of-80", heads_of_80, OCT_DTYPE_BF16, FIXED},
      {"heads-of-256-fp8-cache", heads_of_256, OCT_DTYPE_FP8, FIXED},
      {"heads-of-20", heads_of_20, OCT_DTYPE_BF16, FIXED},
      {"four-bits", int4, OCT_DTYPE_BF16, FIXED},
      {"float32", dense, OCT_DTYPE_BF16, FIXED ",dtype=float32"},
      {"window-and-experts", windowed, OCT_DTYPE_BF16, FIXED},
      {"latent", latent, OCT_DTYPE_BF16, FIXED},
      {"latent-fp8-cache", latent, OCT_DTYPE_FP8, FIXED},
      {"kimi-k3", k3, OCT_DTYPE_BF16, FIXED},
      {"kimi-k3-float32", k3, OCT_DTYPE_BF16, FIXED ",dtype=float32"}};
  g_test_init(&argc, &argv, NULL);
  for (gsize i = 0; i < G_N_ELEMENTS(subjects); i++) {
    add_test(&subjects[i], "alone-and-among-others", test_company);
    add_test(&subjects[i], "whole-and-in-chunks", test_chunks);
    add_test(&subjects[i], "token-by-token", test_single);
    add_test(&subjects[i], "behind-found-pages", test_found);
    add_test(&subjects[i], "computed-again", test_again);
  }
  return g_test_run();
}
