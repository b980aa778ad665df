/* Tokens per second of the cpu backend on a real model: the prompt of one sequence, then decodes of
 * 1 and of 16 sequences together.
 *
 *   bench-cpu [--threads N] [--options TEXT] [MODEL]      MODEL: default $OCT_SMOLLM2
 *
 * Wall time is the best of three runs; CPU time tells what other work on the machine has taken
 * away: tokens per CPU second times threads is what a quiet machine gives at best. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

#include "backends/registry.h"
#include "engine/base/assert.h"
#include "engine/base/rng.h"

#define SLOTS   16
#define PROMPT  256
#define CONTEXT 512
#define DECODES 32
#define ROUNDS  3

static gint n_threads = 2;
static char *options;

typedef struct bench {
  oct_world *world;
  oct_instance_config config;
  guint32 instance, page_tokens;
  guint64 number;
  oct_step_builder *builder;
  guint32 position[SLOTS];
} bench;

static double
wall_s(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double
cpu_s(void) {
  struct rusage u;
  getrusage(RUSAGE_SELF, &u);
  return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
         1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static const oct_event *
wait_for(bench *b, oct_event_kind kind, oct_event *event) {
  do {
    gboolean there = oct_world_next(b->world, OCT_TIME_NEVER, event);
    oct_assert(there);
    if (event->kind == OCT_EVENT_OPEN_FAILED || event->kind == OCT_EVENT_FAULT) {
      fprintf(stderr, "bench-cpu: %s\n", event->fault->message);
      exit(1);
    }
  } while (event->kind != kind);
  return event;
}

static void
run_step(bench *b) {
  g_autoptr(GError) error = NULL;
  oct_event event;
  oct_submit answer = oct_world_submit(b->world, b->instance, oct_step_end(b->builder), &error);
  if (answer != OCT_SUBMIT_OK) {
    fprintf(stderr, "bench-cpu: %s\n", error->message);
    exit(1);
  }
  (void)wait_for(b, OCT_EVENT_STEP_DONE, &event);
}

static void
add_prompt(bench *b, guint32 slot, guint32 n) {
  guint32 *ids, pages = CONTEXT / b->page_tokens;
  oct_slot_open *o = oct_step_add_open(b->builder);
  o->slot = slot;
  o->prompt_tokens = n;
  for (guint32 g = 0; g < b->config.memory.n_groups; g++)
    for (guint32 i = 0; i < pages; i++)
      *oct_step_add_change(b->builder) = (oct_page_change){
          .slot = slot, .group = (guint16)g, .index = i, .page = slot * pages + i};
  oct_slice *s = oct_step_add_slice(b->builder);
  s->slot = slot;
  s->sample = OCT_SAMPLE_LAST;
  s->flags = OCT_SLICE_PREFILL;
  s->n_tokens = n;
  s->tokens = oct_step_add_tokens(b->builder, NULL, n, &ids);
  for (guint32 i = 0; i < n; i++)
    ids[i] = (guint32)(oct_mix64(slot * 1000 + i) % b->config.spec->vocab);
  b->position[slot] = n;
}

static void
decode(bench *b, guint32 n) {
  oct_step_begin(b->builder, ++b->number, 1);
  for (guint32 slot = 0; slot < n; slot++)
    *oct_step_add_slice(b->builder) = (oct_slice){.slot = slot,
                                                  .source = OCT_SOURCE_DEVICE,
                                                  .sample = OCT_SAMPLE_LAST,
                                                  .n_tokens = 1,
                                                  .tokens = OCT_NO_INDEX,
                                                  .position = b->position[slot]++,
                                                  .state_position = OCT_NO_INDEX};
  run_step(b);
}

static void
start(bench *b, guint32 n, guint32 prompt) {
  oct_step_begin(b->builder, ++b->number, 1);
  for (guint32 slot = 0; slot < n; slot++)
    add_prompt(b, slot, prompt);
  run_step(b);
}

static void
report(const char *what, double tokens, const double *wall, const double *cpu) {
  double best = wall[0], least = cpu[0];
  for (int i = 1; i < ROUNDS; i++) {
    best = MIN(best, wall[i]);
    least = MIN(least, cpu[i]);
  }
  printf("%-28s %8.1f tokens/s  (%.1f at %d threads by CPU time)\n", what, tokens / best,
         tokens / least * n_threads, n_threads);
}

static void
measure_decode(bench *b, guint32 n) {
  double wall[ROUNDS], cpu[ROUNDS];
  for (int round = 0; round < ROUNDS; round++) {
    start(b, n, PROMPT / SLOTS);
    wall[round] = -wall_s();
    cpu[round] = -cpu_s();
    for (int i = 0; i < DECODES; i++)
      decode(b, n);
    wall[round] += wall_s();
    cpu[round] += cpu_s();
  }
  g_autofree char *what = g_strdup_printf("decode, %u sequence%s", n, n == 1 ? "" : "s");
  report(what, (double)n * DECODES, wall, cpu);
}

static void
measure_prompt(bench *b) {
  double wall[ROUNDS], cpu[ROUNDS];
  for (int round = 0; round < ROUNDS; round++) {
    wall[round] = -wall_s();
    cpu[round] = -cpu_s();
    start(b, 1, PROMPT);
    wall[round] += wall_s();
    cpu[round] += cpu_s();
  }
  report("prompt of 256 tokens", PROMPT, wall, cpu);
}

static int
run_inside(oct_world *world, void *arg) {
  bench *b = arg;
  g_autoptr(GError) error = NULL;
  oct_event event;
  double opened = -wall_s();
  b->world = world;
  if (!oct_world_open(world, &b->config, &b->instance, &error)) {
    fprintf(stderr, "bench-cpu: %s\n", error->message);
    return 1;
  }
  (void)wait_for(b, OCT_EVENT_OPENED, &event);
  printf("%-28s %8.2f s\n", "opening", opened + wall_s());
  b->builder = oct_step_builder_new();
  measure_prompt(b);
  measure_decode(b, 1);
  measure_decode(b, SLOTS);
  oct_step_builder_free(b->builder);
  oct_world_close(world, b->instance);
  return 0;
}

int
main(int argc, char **argv) {
  const GOptionEntry entries[] = {
      {"threads", 't', 0, G_OPTION_ARG_INT, &n_threads, "threads (default 2)", "N"},
      {"options", 'o', 0, G_OPTION_ARG_STRING, &options, "more keys of the backend", "KEY=VALUE,…"},
      {0}};
  g_autoptr(GError) error = NULL;
  g_autoptr(GOptionContext) context = g_option_context_new("[MODEL]");
  g_option_context_add_main_entries(context, entries, NULL);
  if (!g_option_context_parse(context, &argc, &argv, &error)) {
    fprintf(stderr, "bench-cpu: %s\n", error->message);
    return 2;
  }
  const char *model = argc > 1 ? argv[1] : getenv("OCT_SMOLLM2");
  if (model == NULL) {
    printf("no model: set OCT_SMOLLM2 (tools/get-smollm2), or name one\n");
    return 0;
  }
  g_autoptr(oct_model_spec) spec = oct_model_spec_load(model, NULL, &error);
  g_autofree char *text =
      g_strdup_printf("cpu:model=%s,threads=%d%s%s", model, n_threads, options != NULL ? "," : "",
                      options != NULL ? options : "");
  oct_world *world = spec != NULL ? oct_backend_world_new(text, &error) : NULL;
  if (world == NULL) {
    fprintf(stderr, "bench-cpu: %s\n", error->message);
    return 1;
  }
  static const guint16 devices[] = {0};
  oct_layer_group groups[OCT_MODEL_GROUPS_MAX];
  bench b = {.page_tokens = 16,
             .config = {.label = "bench",
                        .spec = spec,
                        .parallel = OCT_PARALLEL_DEFAULT,
                        .devices = devices,
                        .kv_dtype = OCT_DTYPE_BF16,
                        .block_size = 16,
                        .depth = 1,
                        .max_slots = SLOTS,
                        .max_batched_tokens = PROMPT,
                        .seed = 1}};
  b.config.memory.n_groups = oct_model_groups(spec, OCT_DTYPE_BF16, groups);
  for (guint32 g = 0; g < b.config.memory.n_groups; g++)
    b.config.memory.groups[g].n_device = SLOTS * CONTEXT / 16;
  printf("%s, %s\n", spec->name, text);
  int status = oct_world_run(world, run_inside, &b);
  oct_world_free(world);
  return status;
}
