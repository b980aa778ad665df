/* The forward pass on nine architectures: hidden states of every layer, logits, and greedy tokens
 * equal what transformers, or Kimi K3's reference, computes in float32; and no bit depends on
 * chunks, tiles, threads, the place of pages or other sequences in the batch. */
#include <glib/gstdio.h>
#include <string.h>
#include <unistd.h>

#include "backends/cpu/forward-internal.h"
#include "engine/backend.h"
#include "tests/backends/cpu/golden.h"
#include "tests/engine/model/files/folder.h"

#define LIMIT      1e-4 /* relative L2 */
#define SEQUENCES  3
#define MAX_TOKENS (GOLDEN_PROMPT + GOLDEN_GENERATED)

typedef struct bench {
  golden g;
  oct_instance_config config;
  oct_cpu_model *model;
  oct_cpu_memory *memory;
  oct_team *team;
  oct_cpu_forward *forward;
  guint32 pages[SEQUENCES][128];
  oct_cpu_view views[SEQUENCES];
  float *hidden, *logits; /* of one batch */
} bench;

typedef struct bench_options {
  guint32 threads, block_size;
  oct_kv_format kv;
  oct_cpu_weights weights;
  gboolean expanded_latents;
  const char *folder; /* of the same checkpoint with another config */
} bench_options;

static const bench_options usual = {.threads = 2, .block_size = 16};

/* Pages of sequence s in an order that is not the natural one. */
static void
scatter_pages(bench *b, guint32 n_pages) {
  for (guint32 s = 0; s < SEQUENCES; s++) {
    for (guint32 i = 0; i < n_pages; i++)
      b->pages[s][i] = s + SEQUENCES * ((i * 5 + 3 * s + 1) % n_pages);
    b->views[s] = (oct_cpu_view){0};
    for (guint32 g = 0; g < b->config.memory.n_groups; g++)
      b->views[s].tables[g] = b->pages[s];
  }
}

static void
bench_open(bench *b, const char *name, const bench_options *o) {
  g_autoptr(GError) error = NULL;
  oct_layer_group groups[OCT_MODEL_GROUPS_MAX];
  memset(b, 0, sizeof *b);
  golden_open(&b->g, name);
  if (o->folder != NULL) {
    g_free(b->g.folder);
    b->g.folder = g_strdup(o->folder);
    oct_model_spec_free(b->g.spec);
    b->g.spec = oct_model_spec_load(o->folder, NULL, &error);
    g_assert_no_error(error);
  }
  /* Powers of two, which 5 does not divide, so that pages of a sequence are all different. */
  guint32 n_pages = o->block_size == 16 ? 8 : o->block_size == 1 ? 128 : 16;
  b->config = (oct_instance_config){
      .spec = b->g.spec, .parallel = OCT_PARALLEL_DEFAULT, .block_size = o->block_size};
  b->config.memory.n_groups = oct_model_groups(b->g.spec, OCT_DTYPE_BF16, groups);
  for (guint32 g = 0; g < b->config.memory.n_groups; g++)
    b->config.memory.groups[g].n_device = SEQUENCES * n_pages;
  g_assert_cmpuint(n_pages, <=, 128);
  scatter_pages(b, n_pages);
  const oct_cpu_model_options options = {
      .path = b->g.folder, .spec = b->g.spec, .weights = o->weights};
  b->model = oct_cpu_model_load(&options, NULL, NULL, &error);
  g_assert_no_error(error);
  b->memory = oct_cpu_memory_new(&b->config, b->model, o->kv, &error);
  g_assert_no_error(error);
  b->team = oct_team_new(o->threads);
  const oct_cpu_forward_options forward = {.model = b->model,
                                           .memory = b->memory,
                                           .team = b->team,
                                           .max_tokens = SEQUENCES * MAX_TOKENS,
                                           .max_context = MAX_TOKENS,
                                           .expanded_latents = o->expanded_latents};
  b->forward = oct_cpu_forward_new(&forward, &error);
  g_assert_no_error(error);
  b->hidden = g_new0(float, (gsize)SEQUENCES *MAX_TOKENS * b->g.spec->hidden);
  b->logits = g_new0(float, (gsize)SEQUENCES *MAX_TOKENS * b->g.spec->vocab);
}

static void
bench_close(bench *b) {
  oct_cpu_forward_free(b->forward);
  oct_team_free(b->team);
  oct_cpu_memory_free(b->memory);
  oct_cpu_model_free(b->model);
  golden_close(&b->g);
  g_free(b->hidden);
  g_free(b->logits);
}

/* Adds n tokens of a sequence at `position` to a batch of `have`, all rows wanted. */
static guint32
add(oct_cpu_token *tokens, guint32 have, guint32 view, guint32 position, const guint32 *ids,
    guint32 n) {
  for (guint32 i = 0; i < n; i++)
    tokens[have + i] = (oct_cpu_token){ids[i], position + i, view, have + i};
  return have + n;
}

static void
run(bench *b, const oct_cpu_token *tokens, guint32 n) {
  g_assert_true(oct_cpu_forward_run(b->forward, b->views, tokens, n, NULL, b->hidden));
  oct_cpu_forward_logits(b->forward, b->hidden, n, b->logits);
}

static guint32
largest(const float *logits, guint32 n) {
  guint32 best = 0;
  for (guint32 i = 1; i < n; i++)
    if (logits[i] > logits[best])
      best = i;
  return best;
}

/* Of prompt and generated tokens, all but the last. */
static guint32
positions(const bench *b) {
  return b->g.n_prompt + b->g.n_generated - 1;
}

/* The prompt in chunks, then greedy tokens one by one; logits of positions() tokens. Owned. */
static float *
whole_run(bench *b, guint32 view, guint32 chunk) {
  guint32 vocab = b->g.spec->vocab, ids[MAX_TOKENS];
  oct_cpu_token tokens[MAX_TOKENS];
  float *all = g_new(float, (gsize)positions(b) * vocab);
  memcpy(ids, b->g.prompt, sizeof b->g.prompt);
  guint32 n_prompt = b->g.n_prompt, last = n_prompt + b->g.n_generated - 1;
  for (guint32 at = 0; at < last;) {
    guint32 n = at < n_prompt ? MIN(chunk, n_prompt - at) : 1;
    run(b, tokens, add(tokens, 0, view, at, ids + at, n));
    memcpy(all + (gsize)at * vocab, b->logits, (gsize)n * vocab * sizeof *all);
    at += n;
    if (at >= n_prompt)
      ids[at] = largest(b->logits + (gsize)(n - 1) * vocab, vocab);
  }
  gsize bytes = b->g.n_generated * sizeof *ids;
  g_assert_cmpmem(ids + n_prompt, bytes, b->g.generated, bytes);
  return all;
}

/* ---------------------------------------------------------------- against the reference */

typedef struct hidden_check {
  bench *b;
  double worst;
  guint32 seen;
} hidden_check;

static void
check_hidden(void *user, guint32 layer, guint32 first, guint32 n, const float *x) {
  hidden_check *c = user;
  guint32 width = c->b->g.spec->hidden;
  const float *wanted = golden_hidden(&c->b->g, layer);
  if (wanted == NULL)
    return;
  double error = golden_error(x, wanted + (gsize)first * width, (gsize)n * width);
  g_test_message("hidden state %u: relative L2 %.2e", layer, error);
  g_assert_cmpfloat(error, <=, LIMIT);
  c->worst = MAX(c->worst, error);
  c->seen++;
}

static void
equals_the_reference(gconstpointer data) {
  bench b;
  oct_cpu_token tokens[GOLDEN_PROMPT];
  bench_open(&b, data, &usual);
  guint32 vocab = b.g.spec->vocab;
  gsize n = (gsize)b.g.n_prompt * vocab;
  hidden_check check = {.b = &b};
  oct_cpu_forward_set_watch(b.forward, check_hidden, &check);
  run(&b, tokens, add(tokens, 0, 0, 0, b.g.prompt, b.g.n_prompt));
  oct_cpu_forward_set_watch(b.forward, NULL, NULL);
  g_assert_cmpuint(check.seen, ==, b.g.spec->n_layers + 1);
  double error = golden_error(b.logits, golden_floats(&b.g, "logits", n), n);
  g_test_message("logits: relative L2 %.2e, limit %.0e", error, LIMIT);
  g_assert_cmpfloat(error, <=, LIMIT);
  g_autofree float *all = whole_run(&b, 1, b.g.n_prompt);
  error = golden_error(all + (gsize)(b.g.n_prompt - 1) * vocab, golden_generated_logits(&b.g),
                       (gsize)b.g.n_generated * vocab);
  g_test_message("generated logits: relative L2 %.2e, limit %.0e", error, LIMIT);
  g_assert_cmpfloat(error, <=, LIMIT);
  bench_close(&b);
}

/* A tensor of the oracle's for a layer, n floats. */
static const float *
of_layer(const bench *b, guint32 layer, const char *what, gsize n) {
  g_autofree char *name = g_strdup_printf("layer.%u.%s", layer, what);
  return golden_floats(&b->g, name, n);
}

static void
expect_near(const char *what, guint32 layer, const float *got, const float *wanted, gsize n) {
  double error = golden_error(got, wanted, n);
  g_test_message("layer %u %s: relative L2 %.2e", layer, what, error);
  g_assert_cmpfloat(error, <=, LIMIT);
}

/* Logits of the layer's router, and the weights that its choices get. */
static void
check_router(const bench *b, guint32 layer) {
  const oct_cpu_layer *l = &b->model->layers[layer];
  const float *logits = b->forward->room.logits;
  guint32 n = b->g.n_prompt, experts = l->ffn->n_experts, top = l->ffn->top_k;
  oct_routing routing = oct_cpu_model_routing(b->model, l);
  g_autofree float *scratch = g_new(float, 3 * experts), *weights = g_new(float, n *top);
  guint32 chosen[16];
  g_assert_cmpuint(top, <=, G_N_ELEMENTS(chosen));
  for (guint32 i = 0; i < n; i++)
    oct_ref_route(&routing, logits + (gsize)i * experts, chosen, weights + (gsize)i * top, scratch);
  expect_near("router's logits", layer, logits, of_layer(b, layer, "router_logits", n * experts),
              (gsize)n * experts);
  expect_near("choices", layer, weights, of_layer(b, layer, "router_weight", n * top),
              (gsize)n * top);
}

static void
check_routers(void *user, guint32 after, guint32 first, guint32 n, const float *x) {
  const bench *b = user;
  (void)x;
  g_assert_cmpuint(first, ==, 0);
  g_assert_cmpuint(n, ==, b->g.n_prompt);
  if (after > 0 && after <= b->g.spec->n_layers &&
      b->model->layers[after - 1].ffn->kind != OCT_FFN_DENSE)
    check_router(b, after - 1);
}

static void
check_state(const bench *b, guint32 layer) {
  const oct_attention_spec *a = b->model->layers[layer].attention;
  const float *state = oct_cpu_memory_state(b->memory, 0, layer,
                                            b->views[0].tables[b->model->layers[layer].group][0]);
  gsize n = (gsize)a->n_heads * a->head_dim * a->head_dim;
  gsize inputs = 3 * (gsize)(a->conv_kernel - 1) * a->n_heads * a->head_dim;
  expect_near("state", layer, state, of_layer(b, layer, "cache_S", n), n);
  expect_near("convolution", layer, state + n, of_layer(b, layer, "cache_conv", inputs), inputs);
}

static void
check_rows(const bench *b, guint32 layer) {
  const oct_attention_spec *a = b->model->layers[layer].attention;
  oct_kv_layer kv = oct_cpu_memory_layer(b->memory, 0, layer);
  const guint32 *pages = b->views[0].tables[b->model->layers[layer].group];
  guint32 n = b->g.n_prompt;
  g_autofree float *latents = g_new(float, n * a->kv_lora), *keys = g_new(float, n * a->qk_rope);
  for (guint32 i = 0; i < n; i++) {
    const guint8 *page = (const guint8 *)kv.base + pages[i / kv.page_tokens] * kv.page_stride;
    const float *row = (const float *)(gconstpointer)page + (gsize)(i % kv.page_tokens) * kv.width;
    memcpy(latents + (gsize)i * a->kv_lora, row, a->kv_lora * sizeof *row);
    memcpy(keys + (gsize)i * a->qk_rope, row + a->kv_lora, a->qk_rope * sizeof *row);
  }
  expect_near("latents", layer, latents, of_layer(b, layer, "cache_latent", n * a->kv_lora),
              (gsize)n * a->kv_lora);
  expect_near("shared keys", layer, keys, of_layer(b, layer, "cache_kpe", n * a->qk_rope),
              (gsize)n * a->qk_rope);
}

/* What a prompt leaves behind, and how it chose. */
static void
caches_and_choices_equal_the_reference(gconstpointer data) {
  bench b;
  oct_cpu_token tokens[GOLDEN_PROMPT];
  bench_open(&b, data, &usual);
  oct_cpu_forward_set_watch(b.forward, check_routers, &b);
  run(&b, tokens, add(tokens, 0, 0, 0, b.g.prompt, b.g.n_prompt));
  oct_cpu_forward_set_watch(b.forward, NULL, NULL);
  for (guint32 l = 0; l < b.g.spec->n_layers; l++)
    if (b.model->layers[l].attention->kind == OCT_ATTENTION_KDA)
      check_state(&b, l);
    else
      check_rows(&b, l);
  bench_close(&b);
}

/* ---------------------------------------------------------------- equal bits */

static void
chunks_and_threads_change_no_bit(gconstpointer data) {
  bench b;
  bench_open(&b, data, &usual);
  gsize bytes = (gsize)positions(&b) * b.g.spec->vocab * sizeof(float);
  g_autofree float *whole = whole_run(&b, 0, b.g.n_prompt);
  static const guint32 chunks[] = {1, 5, 7, 16, 17};
  for (gsize i = 0; i < G_N_ELEMENTS(chunks); i++) {
    g_autofree float *parts = whole_run(&b, 1 + i % 2, chunks[i]);
    g_assert_cmpmem(parts, bytes, whole, bytes);
  }
  bench_close(&b);
  static const bench_options others[] = {
      {.threads = 1, .block_size = 1},
      {.threads = 3, .block_size = 5, .weights = OCT_CPU_WEIGHTS_MAPPED},
      {.threads = 2, .block_size = 16, .weights = OCT_CPU_WEIGHTS_FLOAT32}};
  for (gsize i = 0; i < G_N_ELEMENTS(others); i++) {
    bench_open(&b, data, &others[i]);
    g_autofree float *again = whole_run(&b, i % SEQUENCES, 16);
    g_assert_cmpmem(again, bytes, whole, bytes);
    bench_close(&b);
  }
}

/* Three sequences in one batch, at different places of their prompts: each gets what it gets alone.
 * Together they are more than one tile. */
static void
company_changes_no_bit(gconstpointer data) {
  bench b;
  oct_cpu_token tokens[SEQUENCES * MAX_TOKENS];
  bench_open(&b, data, &usual);
  gsize width = b.g.spec->vocab;
  g_autofree float *alone = whole_run(&b, 0, b.g.n_prompt);
  guint32 ids[MAX_TOKENS];
  memcpy(ids, b.g.prompt, sizeof b.g.prompt);
  memcpy(ids + b.g.n_prompt, b.g.generated, sizeof b.g.generated);
  guint32 last = positions(&b);
  guint32 cuts[SEQUENCES][4] = {
      {0, 20, 21, last}, {0, 1, last - 6, last}, {0, last - 1, last, last}};
  for (guint32 round = 0; round < 3; round++) {
    guint32 n = 0, starts[SEQUENCES];
    for (guint32 s = 0; s < SEQUENCES; s++) {
      starts[s] = n;
      guint32 from = cuts[s][round], to = cuts[s][round + 1];
      n = add(tokens, n, s, from, ids + from, to - from);
    }
    run(&b, tokens, n);
    for (guint32 s = 0; s < SEQUENCES; s++) {
      gsize count = (cuts[s][round + 1] - cuts[s][round]) * width;
      g_assert_cmpmem(b.logits + starts[s] * width, count * sizeof(float),
                      alone + cuts[s][round] * width, count * sizeof(float));
    }
  }
  bench_close(&b);
}

/* ---------------------------------------------------------------- options */

static void
expanded_latents_agree(gconstpointer name) {
  bench b;
  bench_options o = usual;
  bench_open(&b, name, &o);
  g_autofree float *absorbed = whole_run(&b, 0, 16);
  gsize n = (gsize)positions(&b) * b.g.spec->vocab;
  bench_close(&b);
  o.expanded_latents = TRUE;
  bench_open(&b, name, &o);
  g_autofree float *expanded = whole_run(&b, 0, 16);
  double error = golden_error(expanded, absorbed, n);
  g_test_message("expanded against absorbed: relative L2 %.2e", error);
  g_assert_cmpfloat(error, >, 0);
  g_assert_cmpfloat(error, <=, 1e-5);
  bench_close(&b);
}

/* The golden folder's files beside a config in which one more field stands. Owned. */
static char *
with_field(const char *name, const char *field) {
  g_autoptr(GError) error = NULL;
  g_autofree char *from = golden_path(name), *config = NULL;
  char *folder = folder_new();
  g_autoptr(GDir) dir = g_dir_open(from, 0, &error);
  g_assert_no_error(error);
  for (const char *file; (file = g_dir_read_name(dir)) != NULL;) {
    g_autofree char *old = g_build_filename(from, file, NULL);
    g_autofree char *new = g_build_filename(folder, file, NULL);
    if (g_str_equal(file, "config.json"))
      g_assert_true(g_file_get_contents(old, &config, NULL, &error));
    else if (!g_file_test(old, G_FILE_TEST_IS_DIR))
      g_assert_cmpint(symlink(old, new), ==, 0);
  }
  g_autoptr(GString) text = g_string_new(config);
  g_autofree char *wanted = g_strdup_printf("%s, \"rms_norm_eps\"", field);
  g_assert_cmpuint(g_string_replace(text, "\"rms_norm_eps\"", wanted, 0), ==, 1);
  g_autofree char *path = g_build_filename(folder, "config.json", NULL);
  g_assert_true(g_file_set_contents(path, text->str, -1, &error));
  return folder;
}

/* The epsilon of q_a's and kv_a's norms is 1e-6 unless the config says; the golden logits of 1e-5
 * are off by some 6e-6 from those, and so are these. */
static void
epsilon_of_latents_is_a_parameter(void) {
  bench b;
  bench_options o = usual;
  oct_cpu_token tokens[GOLDEN_PROMPT];
  float *got[2];
  g_autofree char *folder = with_field("kimi-k3/tiny-a", "\"latent_norm_eps\": 1e-5");
  for (guint i = 0; i < 2; i++) {
    o.folder = i == 1 ? folder : NULL;
    bench_open(&b, "kimi-k3/tiny-a", &o);
    gsize bytes = (gsize)b.g.n_prompt * b.g.spec->vocab * sizeof(float);
    run(&b, tokens, add(tokens, 0, 0, 0, b.g.prompt, b.g.n_prompt));
    got[i] = g_memdup2(b.logits, bytes);
    if (i == 0)
      bench_close(&b);
  }
  gsize n = (gsize)b.g.n_prompt * b.g.spec->vocab;
  const float *usual_logits = golden_floats(&b.g, "logits", n);
  const float *other_logits = golden_floats(&b.g, "logits_lora_eps_1em5", n);
  for (gsize i = 0; i < n; i++) {
    got[0][i] = got[1][i] - got[0][i];
    got[1][i] = other_logits[i] - usual_logits[i];
  }
  double error = golden_error(got[0], got[1], n);
  g_test_message("what the epsilon changes: relative L2 %.2e", error);
  g_assert_cmpfloat(error, <=, 0.5);
  g_free(got[0]);
  g_free(got[1]);
  bench_close(&b);
  folder_remove(folder);
}

static void
narrow_cache_is_close(void) {
  bench b;
  oct_cpu_token tokens[GOLDEN_PROMPT];
  bench_options o = usual;
  o.kv = OCT_KV_BF16;
  bench_open(&b, "llama", &o);
  gsize n = (gsize)b.g.n_prompt * b.g.spec->vocab;
  run(&b, tokens, add(tokens, 0, 0, 0, b.g.prompt, b.g.n_prompt));
  double error = golden_error(b.logits, golden_floats(&b.g, "logits", n), n);
  g_test_message("cache of bfloat16: relative L2 %.2e", error);
  g_assert_cmpfloat(error, >, 1e-5);
  g_assert_cmpfloat(error, <=, 2e-2);
  bench_close(&b);
}

static void
stops_when_told(void) {
  bench b;
  oct_cpu_token tokens[GOLDEN_PROMPT];
  bench_open(&b, "llama", &usual);
  gboolean stop = TRUE;
  guint32 n = add(tokens, 0, 0, 0, b.g.prompt, b.g.n_prompt);
  g_assert_false(oct_cpu_forward_run(b.forward, b.views, tokens, n, &stop, b.hidden));
  bench_close(&b);
}

static void
add_tests(const char *const *names) {
  for (const char *const *name = names; *name != NULL; name++) {
    const struct {
      const char *claim;
      void (*fn)(gconstpointer data);
    } tests[] = {{"equals-the-reference", equals_the_reference},
                 {"chunks-and-threads-change-no-bit", chunks_and_threads_change_no_bit},
                 {"company-changes-no-bit", company_changes_no_bit}};
    for (gsize i = 0; i < G_N_ELEMENTS(tests); i++) {
      g_autofree char *path = g_strdup_printf("/cpu/forward/%s/%s", *name, tests[i].claim);
      g_test_add_data_func(path, *name, tests[i].fn);
    }
  }
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  for (const char *const *name = golden_k3_names; *name != NULL; name++) {
    g_autofree char *path =
        g_strdup_printf("/cpu/forward/%s/caches-and-choices-equal-the-reference", *name);
    g_test_add_data_func(path, *name, caches_and_choices_equal_the_reference);
  }
  add_tests(golden_names);
  add_tests(golden_k3_names);
  g_test_add_data_func("/cpu/forward/deepseek-v3/expanded-latents-agree", "deepseek-v3",
                       expanded_latents_agree);
  g_test_add_data_func("/cpu/forward/kimi-k3/expanded-latents-agree", "kimi-k3/tiny-b",
                       expanded_latents_agree);
  g_test_add_func("/cpu/forward/kimi-k3/epsilon-of-latents-is-a-parameter",
                  epsilon_of_latents_is_a_parameter);
  g_test_add_func("/cpu/forward/narrow-cache-is-close", narrow_cache_is_close);
  g_test_add_func("/cpu/forward/stops-when-told", stops_when_told);
  return g_test_run();
}
