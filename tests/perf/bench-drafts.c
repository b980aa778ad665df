/* What it costs to verify drafts: the time of a step in which each sequence runs its last token and
 * k drafts, for k from 0 on, on a backend that computes.
 *
 *   bench-drafts [--world TEXT] [--batches LIST] [--context N] [--drafts K] [--steps N] MODEL
 *
 * MODEL is a name of the zoo or a checkpoint; the world's text names the backend ("cuda", "cpu",
 * "cpu:model=PATH"): without a checkpoint weights are made up. "simgrid:node=h200x1" tells what the
 * twin takes for it. Each sequence has `context` tokens, and a step is run behind them again and
 * again. The median is told, and the step's time over that of k = 0: so many tokens a slice must
 * bring on average for drafts to pay. */
#include <stdio.h>
#include <stdlib.h>

#include "backends/registry.h"
#include "engine/base/assert.h"
#include "engine/base/rng.h"

#define PAGE        16
#define WARM_UP     5
#define BATCHES_MAX 16

static char *world_text, *batches_text;
static gint context = 1024, most_drafts = 8, n_steps = 30;

typedef struct bench {
  oct_world *world;
  oct_instance_config config;
  guint32 instance, n_batches, batches[BATCHES_MAX], largest;
  guint64 number;
  oct_step_builder *builder;
  guint32 opened; /* slots */
} bench;

static void
fail(const char *what) {
  fprintf(stderr, "bench-drafts: %s\n", what);
  exit(1);
}

static void
wait_for(bench *b, oct_event_kind kind, oct_event *event) {
  do {
    gboolean there = oct_world_next(b->world, OCT_TIME_NEVER, event);
    oct_assert(there);
    if (event->kind == OCT_EVENT_OPEN_FAILED || event->kind == OCT_EVENT_FAULT)
      fail(event->fault->message);
  } while (event->kind != kind);
}

/* The slot's pages are its own, one after another. */
static void
open_slot(bench *b, guint32 slot) {
  guint32 pages = (guint32)(context + OCT_VERIFY_TOKENS_MAX) / PAGE + 1;
  oct_slot_open *o = oct_step_add_open(b->builder);
  o->slot = slot;
  o->key = o->seed = slot + 1;
  o->prompt_tokens = (guint32)context;
  o->temperature = 0;
  for (guint32 g = 0; g < b->config.memory.n_groups; g++)
    for (guint32 i = 0; i < pages; i++)
      *oct_step_add_change(b->builder) = (oct_page_change){
          .slot = slot, .group = (guint16)g, .index = i, .page = slot * pages + i};
}

/* Runs the step that was built; returns its time on the device. */
static gint64
submit(bench *b) {
  g_autoptr(GError) error = NULL;
  oct_event event;
  if (oct_world_submit(b->world, b->instance, oct_step_end(b->builder), &error) != OCT_SUBMIT_OK)
    fail(error != NULL ? error->message : "the instance is full");
  wait_for(b, OCT_EVENT_STEP_DONE, &event);
  return event.result->end_ns - event.result->start_ns;
}

/* The slot's sequence and its context. */
static void
fill_slot(bench *b, guint32 slot) {
  guint32 *ids;
  oct_step_begin(b->builder, ++b->number, 1);
  open_slot(b, slot);
  guint32 at = oct_step_add_tokens(b->builder, NULL, (guint32)context, &ids);
  for (guint32 k = 0; k < (guint32)context; k++)
    ids[k] = (guint32)(oct_mix64(slot * 100000u + k) % b->config.spec->vocab);
  oct_slice *s = oct_step_add_slice(b->builder);
  s->slot = slot;
  s->flags = OCT_SLICE_PREFILL;
  s->n_tokens = (guint32)context;
  s->tokens = at;
  (void)submit(b);
}

/* One step of all sequences; returns its time on the device. */
static gint64
run_step(bench *b, guint32 batch, guint32 drafts) {
  for (; b->opened < batch; b->opened++)
    fill_slot(b, b->opened);
  oct_step_begin(b->builder, ++b->number, 1);
  for (guint32 i = 0; i < batch; i++) {
    guint32 *ids;
    guint32 at = oct_step_add_tokens(b->builder, NULL, 1 + drafts, &ids);
    for (guint32 k = 0; k <= drafts; k++)
      ids[k] = (guint32)(oct_mix64(b->number * 4096 + i * 16 + k) % b->config.spec->vocab);
    oct_slice *s = oct_step_add_slice(b->builder);
    s->slot = i;
    s->source = OCT_SOURCE_IDS;
    s->sample = drafts > 0 ? OCT_SAMPLE_ALL : OCT_SAMPLE_LAST;
    s->flags = drafts > 0 ? OCT_SLICE_VERIFY : 0;
    s->n_tokens = 1 + drafts;
    s->tokens = at;
    s->position = (guint32)context;
  }
  return submit(b);
}

static int
compare(const void *a, const void *b) {
  gint64 x = *(const gint64 *)a, y = *(const gint64 *)b;
  return (x > y) - (x < y);
}

static int
run(oct_world *world, void *arg) {
  bench *b = arg;
  g_autoptr(GError) error = NULL;
  oct_event event;
  g_autofree gint64 *times = g_new(gint64, (gsize)n_steps);
  (void)world;
  if (!oct_world_open(b->world, &b->config, &b->instance, &error))
    fail(error->message);
  wait_for(b, OCT_EVENT_OPENED, &event);
  printf("model,context,batch,drafts,step_ms,over_plain\n");
  for (guint32 i = 0; i < b->n_batches; i++) {
    double plain = 0;
    for (guint32 k = 0; k <= (guint32)most_drafts; k++) {
      for (int n = 0; n < WARM_UP; n++)
        (void)run_step(b, b->batches[i], k);
      for (int n = 0; n < n_steps; n++)
        times[n] = run_step(b, b->batches[i], k);
      qsort(times, (gsize)n_steps, sizeof *times, compare);
      double median = (double)times[n_steps / 2] / 1e6;
      plain = k == 0 ? median : plain;
      printf("%s,%d,%u,%u,%.3f,%.3f\n", b->config.spec->name, context, b->batches[i], k, median,
             median / plain);
      fflush(stdout);
    }
  }
  oct_world_close(b->world, b->instance);
  return 0;
}

static void
read_batches(bench *b) {
  g_auto(GStrv) parts = g_strsplit(batches_text != NULL ? batches_text : "1,16,64", ",", -1);
  for (char **p = parts; *p != NULL; p++) {
    guint64 n;
    if (b->n_batches == BATCHES_MAX || !g_ascii_string_to_unsigned(*p, 10, 1, 1024, &n, NULL))
      fail("--batches: up to 16 numbers from 1 to 1024");
    b->batches[b->n_batches++] = (guint32)n;
    b->largest = MAX(b->largest, (guint32)n);
  }
}

static void
fill_config(bench *b, oct_model_spec *spec) {
  static const guint16 device = 0;
  oct_instance_config *c = &b->config;
  oct_layer_group groups[OCT_MODEL_GROUPS_MAX];
  guint32 pages = (guint32)(context + OCT_VERIFY_TOKENS_MAX) / PAGE + 1;
  *c = (oct_instance_config){.spec = spec,
                             .parallel = OCT_PARALLEL_DEFAULT,
                             .devices = &device,
                             .kv_dtype = OCT_DTYPE_BF16,
                             .block_size = PAGE,
                             .depth = 1,
                             .max_slots = b->largest,
                             .max_batched_tokens =
                                 MAX(b->largest * OCT_VERIFY_TOKENS_MAX, (guint32)context)};
  c->memory.n_groups = oct_model_groups(spec, c->kv_dtype, groups);
  for (guint32 g = 0; g < c->memory.n_groups; g++) {
    if (groups[g].kind == OCT_ATTENTION_KDA)
      fail("a state cannot be taken back to where it was");
    c->memory.groups[g].n_device = b->largest * pages;
  }
}

int
main(int argc, char **argv) {
  const GOptionEntry entries[] = {
      {"world", 'w', 0, G_OPTION_ARG_STRING, &world_text, "default: cuda", "TEXT"},
      {"batches", 'b', 0, G_OPTION_ARG_STRING, &batches_text, "default: 1,16,64", "LIST"},
      {"context", 'c', 0, G_OPTION_ARG_INT, &context, "default: 1024", "N"},
      {"drafts", 'k', 0, G_OPTION_ARG_INT, &most_drafts, "most of a slice (8)", "K"},
      {"steps", 'n', 0, G_OPTION_ARG_INT, &n_steps, "timed, of each kind (30)", "N"},
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
  if (argc != 2 || context < 1 || most_drafts < 0 || most_drafts >= OCT_VERIFY_TOKENS_MAX ||
      n_steps < 1)
    fail("one MODEL; --context, --steps at least 1; --drafts 0 to 15");
  g_autoptr(oct_model_spec) spec = oct_model_spec_load(argv[1], NULL, &error);
  if (spec == NULL)
    fail(error->message);
  read_batches(&b);
  fill_config(&b, spec);
  b.builder = oct_step_builder_new();
  b.world = oct_backend_world_new(world_text != NULL ? world_text : "cuda", &error);
  if (b.world == NULL)
    fail(error->message);
  oct_world_run(b.world, run, &b);
  oct_world_free(b.world);
  oct_step_builder_free(b.builder);
  return 0;
}
