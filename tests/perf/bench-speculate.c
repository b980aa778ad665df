/* The engine with and without drafts, on a backend that computes: output tokens a second of B
 * sequences that decode together.
 *
 *   bench-speculate [--world TEXT] [--batches LIST] [--prompt N] [--output N] [--draft-layers N]
 * MODEL
 *
 * MODEL is a name of the zoo, a config.json or, with a world that has it, a checkpoint; otherwise
 * weights are made up. What such a model says means nothing and is seldom foreseen: by n-grams now
 * and then, by its own first layers as a draft model hardly ever. So the figures tell what guessing
 * costs. Texts are compared with the plain run's; in bfloat16 one may part from it where two logits
 * are all but equal, which in a model that was made up they often are.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/registry.h"
#include "engine/base/assert.h"
#include "engine/base/rng.h"
#include "engine/sched/engine.h"

#define PAGE        16
#define BATCHES_MAX 16

static char *world_text, *batches_text;
static gint n_prompt = 128, n_output = 256, draft_layers = 4;

typedef struct outputs {
  guint32 *ids; /* [batch][n_output] */
  guint32 *n;   /* [batch] */
  guint32 ended;
  oct_time first_ns, last_ns;
} outputs;

typedef struct bench {
  oct_world *world;
  oct_model_spec *spec, draft;
  oct_engine_config config;
  guint32 batch;
  outputs now, plain;
  oct_engine_stats stats;
} bench;

static void
fail(const char *what) {
  fprintf(stderr, "bench-speculate: %s\n", what);
  exit(1);
}

static void
on_tokens(void *user, oct_request_id id, void *request, guint32 choice, const guint32 *ids,
          const oct_logprob *logprobs, guint32 n, oct_time now) {
  bench *b = user;
  guint32 i = GPOINTER_TO_UINT(request);
  (void)id, (void)choice, (void)logprobs;
  memcpy(b->now.ids + (gsize)i * (gsize)n_output + b->now.n[i], ids, n * sizeof *ids);
  b->now.n[i] += n;
  b->now.first_ns = b->now.first_ns == 0 ? now : b->now.first_ns;
  b->now.last_ns = now;
}

static void
on_ended(void *user, const oct_request_record *record) {
  if (record->reason != OCT_END_LENGTH)
    fail(oct_end_reason_name(record->reason));
  ((bench *)user)->now.ended++;
}

static void
ask(bench *b, oct_engine *engine, guint32 i) {
  g_autoptr(GError) error = NULL;
  g_autofree guint32 *ids = g_new(guint32, (gsize)n_prompt);
  oct_request_params p;
  oct_request_id id;
  oct_request_params_default(&p);
  for (gint k = 0; k < n_prompt; k++)
    ids[k] = (guint32)(oct_mix64((guint64)i * 100000 + (guint64)k) % b->spec->vocab);
  p.user = GUINT_TO_POINTER(i);
  p.arrival_ns = b->world->now_ns;
  p.prompt_ids = ids;
  p.prompt_tokens = (guint32)n_prompt;
  p.max_tokens = (guint32)n_output;
  p.ignore_eos = TRUE;
  p.temperature = 0;
  if (!oct_engine_submit(engine, &p, &id, &error))
    fail(error->message);
}

static int
run(oct_world *world, void *arg) {
  bench *b = arg;
  g_autoptr(GError) error = NULL;
  gboolean asked = FALSE;
  g_autoptr(oct_engine) engine = oct_engine_new(world, &b->config, &error);
  if (engine == NULL)
    fail(error->message);
  while (b->now.ended < b->batch) {
    oct_event event;
    oct_time wake = oct_engine_turn(engine, world->now_ns, world->now_ns);
    if (!oct_world_next(world, wake, &event))
      fail("the world is at rest");
    if (oct_engine_owns(engine, event.instance))
      oct_engine_event(engine, &event);
    oct_engine_get_stats(engine, &b->stats);
    if (b->stats.state == OCT_ENGINE_DEAD)
      fail(oct_engine_down_reason(engine));
    for (guint32 i = 0; !asked && b->stats.state == OCT_ENGINE_SERVING && i < b->batch; i++)
      ask(b, engine, i);
    asked |= b->stats.state == OCT_ENGINE_SERVING;
  }
  return 0;
}

static void
clear(outputs *o, guint32 batch) {
  g_free(o->ids);
  g_free(o->n);
  *o = (outputs){.ids = g_new0(guint32, (gsize)batch * (gsize)n_output),
                 .n = g_new0(guint32, batch)};
}

static guint32
same_texts(const bench *b) {
  guint32 same = 0;
  gsize size = (gsize)n_output * sizeof(guint32);
  for (guint32 i = 0; i < b->batch; i++)
    same += memcmp((const guint8 *)b->now.ids + i * size, (const guint8 *)b->plain.ids + i * size,
                   size) == 0;
  return same;
}

static void
run_method(bench *b, const char *name, oct_draft_method method, guint32 n_tokens) {
  g_autoptr(GError) error = NULL;
  oct_speculation *s = &b->config.speculation;
  *s = (oct_speculation){.method = method, .n_tokens = n_tokens, .ngram_min = 2, .ngram_max = 4};
  s->draft = b->config.instance;
  s->draft.spec = &b->draft;
  clear(&b->now, b->batch);
  b->world = oct_backend_world_new(world_text != NULL ? world_text : "cuda", &error);
  if (b->world == NULL)
    fail(error->message);
  oct_world_run(b->world, run, b);
  oct_world_free(b->world);
  const oct_draft_stats *d = &b->stats.speculation;
  if (method == OCT_DRAFT_NONE) {
    clear(&b->plain, b->batch);
    memcpy(b->plain.ids, b->now.ids, (gsize)b->batch * (gsize)n_output * sizeof(guint32));
  }
  double seconds = (double)(b->now.last_ns - b->now.first_ns) / 1e9;
  double tokens = (double)b->batch * (n_output - 1);
  printf("%s,%u,%s,%u,%.1f,%" G_GUINT64_FORMAT ",%" G_GUINT64_FORMAT ",%" G_GUINT64_FORMAT
         ",%" G_GUINT64_FORMAT ",%u\n",
         b->spec->name, b->batch, name, n_tokens, tokens / seconds, b->stats.steps, d->draft_tokens,
         d->accepted, d->model_steps, same_texts(b));
  fflush(stdout);
}

static void
fill_config(bench *b, guint32 largest) {
  static const guint16 device = 0;
  oct_engine_config *c = &b->config;
  oct_layer_group groups[OCT_MODEL_GROUPS_MAX];
  oct_engine_config_default(c);
  c->instance.spec = b->spec;
  c->instance.devices = &device;
  c->instance.block_size = PAGE;
  c->max_num_seqs = largest;
  c->max_num_batched_tokens = MAX(8192, largest);
  c->max_model_len = (guint32)(n_prompt + n_output);
  c->carry_ids = TRUE;
  c->prefix_caching = FALSE;
  c->listener = (oct_listener){.user = b, .tokens = on_tokens, .ended = on_ended};
  c->instance.memory.n_groups = oct_model_groups(b->spec, c->instance.kv_dtype, groups);
  for (guint32 g = 0; g < c->instance.memory.n_groups; g++)
    c->instance.memory.groups[g].n_device = 2 * largest * (c->max_model_len / PAGE + 2);
}

static void
run_all(bench *b) {
  g_auto(GStrv) parts = g_strsplit(batches_text != NULL ? batches_text : "1,16", ",", BATCHES_MAX);
  printf("model,batch,drafts,most,tokens_per_s,steps,drafted,accepted,draft_steps,same_texts\n");
  for (char **p = parts; *p != NULL; p++) {
    guint64 n;
    if (!g_ascii_string_to_unsigned(*p, 10, 1, 1024, &n, NULL))
      fail("--batches: numbers from 1 to 1024");
    b->batch = (guint32)n;
    fill_config(b, b->batch);
    run_method(b, "none", OCT_DRAFT_NONE, 0);
    run_method(b, "ngram", OCT_DRAFT_NGRAM, 5);
    run_method(b, "model", OCT_DRAFT_MODEL, 3);
  }
}

int
main(int argc, char **argv) {
  const GOptionEntry entries[] = {
      {"world", 'w', 0, G_OPTION_ARG_STRING, &world_text, "default: cuda", "TEXT"},
      {"batches", 'b', 0, G_OPTION_ARG_STRING, &batches_text, "default: 1,16", "LIST"},
      {"prompt", 'p', 0, G_OPTION_ARG_INT, &n_prompt, "tokens (128)", "N"},
      {"output", 'o', 0, G_OPTION_ARG_INT, &n_output, "tokens (256)", "N"},
      {"draft-layers", 'l', 0, G_OPTION_ARG_INT, &draft_layers, "of the draft model (4)", "N"},
      {NULL, 0, 0, G_OPTION_ARG_NONE, NULL, NULL, NULL}};
  g_autoptr(GOptionContext) options = g_option_context_new("MODEL");
  g_autoptr(GError) error = NULL;
  bench b = {0};
  g_option_context_add_main_entries(options, entries, NULL);
  if (!g_option_context_parse(options, &argc, &argv, &error))
    fail(error->message);
  if (argc == 1) { /* as `make bench` does */
    printf("no model: name one\n");
    return 0;
  }
  if (argc != 2 || n_prompt < 1 || n_output < 2)
    fail("one MODEL; --prompt at least 1, --output at least 2");
  b.spec = oct_model_spec_load(argv[1], NULL, &error);
  if (b.spec == NULL)
    fail(error->message);
  if (draft_layers < 1 || (guint32)draft_layers > b.spec->n_layers)
    fail("--draft-layers: at least 1, at most the model's");
  b.draft = *b.spec;
  b.draft.n_layers = (guint32)draft_layers;
  run_all(&b);
  clear(&b.now, 1);
  g_free(b.now.ids);
  g_free(b.now.n);
  g_free(b.plain.ids);
  g_free(b.plain.n);
  oct_model_spec_free(b.spec);
  return 0;
}
