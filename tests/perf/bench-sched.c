/* The scheduler alone: schedule + commit per decode step on a world that costs nothing, at several
 * numbers of running sequences, and the allocations of the steady state (malloc is counted).
 * Budget: 50 us at 256 running, 200 us at 1,024, no allocation.
 *
 * Then the same where something could cost more than it should: a long queue, deadlines, a head of
 * the queue that does not fit, a host tier behind a full device, everybody cancelled at once. */
#include <errno.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/base/assert.h"
#include "engine/sched/engine.h"

/* ---------------------------------------------------------------- counted allocations */

static guint64 n_allocations;
void *__libc_malloc(size_t size);
void *__libc_realloc(void *memory, size_t size);
void *__libc_calloc(size_t count, size_t size);

void *
malloc(size_t size) {
  n_allocations++;
  return __libc_malloc(size);
}

void *
realloc(void *memory, size_t size) {
  n_allocations++;
  return __libc_realloc(memory, size);
}

void *
calloc(size_t count, size_t size) {
  n_allocations++;
  return __libc_calloc(count, size);
}

/* ---------------------------------------------------------------- a world that costs nothing */

/* Each step takes 1 ms of virtual time; every sampled slice gets token 1. Results are built once
 * per size, so that what is measured is the scheduler. */
typedef struct null_world {
  oct_world base;
  guint64 numbers[4];
  guint32 slices[4];
  guint32 first, n;
  guint64 tickets[4096]; /* copies end at once */
  guint32 first_ticket, n_tickets;
  oct_time now;
  gboolean opened;
  oct_capabilities capabilities;
  guint8 *result;
} null_world;

static int
null_run(oct_world *world, oct_world_fn fn, void *arg) {
  return fn(world, arg);
}

static void
null_wake(oct_world *world) {
  (void)world;
}

static void
null_free(oct_world *world) {
  null_world *w = (null_world *)world;
  free(w->result);
}

static gboolean
null_open(oct_world *world, const oct_instance_config *config, guint32 *instance, GError **error) {
  (void)error;
  null_world *w = (null_world *)world;
  *instance = 1;
  w->capabilities = (oct_capabilities){.depth = config->depth,
                                       .n_groups = config->memory.n_groups,
                                       .host_tier = TRUE,
                                       .clock = OCT_CLOCK_VIRTUAL};
  for (guint32 g = 0; g < config->memory.n_groups; g++)
    w->capabilities.fits[g] = config->memory.groups[g].n_device;
  w->result =
      calloc(1, sizeof(oct_step_result) + OCT_STEP_SLICES_MAX * sizeof(oct_slice_result) + 64);
  oct_step_result *r = (oct_step_result *)(void *)w->result;
  r->slices = sizeof *r;
  r->tokens = r->logprobs = r->experts = sizeof *r + OCT_STEP_SLICES_MAX * sizeof(oct_slice_result);
  r->n_tokens = 1;
  *(guint32 *)(void *)(w->result + r->tokens) = 1;
  return TRUE;
}

static void
null_close(oct_world *world, guint32 instance) {
  (void)world;
  (void)instance;
}

static oct_submit
null_submit(oct_world *world, guint32 instance, const oct_step *step, GError **error) {
  (void)instance;
  (void)error;
  null_world *w = (null_world *)world;
  guint32 at = (w->first + w->n++) % 4;
  w->numbers[at] = step->number;
  w->slices[at] = step->n_slices;
  return OCT_SUBMIT_OK;
}

static oct_submit
null_copy(oct_world *world, guint32 instance, guint64 ticket, const oct_copy *copies, guint32 n,
          GError **error) {
  (void)instance;
  (void)copies;
  (void)n;
  (void)error;
  null_world *w = (null_world *)world;
  if (w->n_tickets == G_N_ELEMENTS(w->tickets))
    return OCT_SUBMIT_FULL;
  w->tickets[(w->first_ticket + w->n_tickets++) % G_N_ELEMENTS(w->tickets)] = ticket;
  return OCT_SUBMIT_OK;
}

static gboolean
null_next(oct_world *world, oct_time until_ns, oct_event *event) {
  null_world *w = (null_world *)world;
  memset(event, 0, sizeof *event);
  event->instance = 1;
  if (!w->opened) {
    w->opened = TRUE;
    event->kind = OCT_EVENT_OPENED;
    event->capabilities = &w->capabilities;
    return TRUE;
  }
  if (w->n_tickets > 0) {
    *event = (oct_event){.kind = OCT_EVENT_COPY_DONE,
                         .instance = 1,
                         .time_ns = w->now,
                         .number = w->tickets[w->first_ticket]};
    w->first_ticket = (w->first_ticket + 1) % G_N_ELEMENTS(w->tickets);
    w->n_tickets--;
    return TRUE;
  }
  if (w->n == 0 || until_ns < w->now + 1000000) {
    if (until_ns == OCT_TIME_NEVER)
      return FALSE;
    w->now = MAX(w->now, until_ns);
    *event = (oct_event){.kind = OCT_EVENT_TIMER, .time_ns = w->now};
    return TRUE;
  }
  oct_step_result *r = (oct_step_result *)(void *)w->result;
  oct_slice_result *slices = (oct_slice_result *)(void *)(w->result + r->slices);
  for (guint32 i = 0; i < w->slices[w->first]; i++)
    slices[i] = (oct_slice_result){.n_accepted = 1, .logprobs = OCT_NO_INDEX};
  r->n_slices = w->slices[w->first];
  r->start_ns = w->now;
  w->now += 1000000;
  r->end_ns = w->now;
  event->kind = OCT_EVENT_STEP_DONE;
  event->time_ns = w->now;
  event->number = w->numbers[w->first];
  event->result = r;
  w->first = (w->first + 1) % 4;
  w->n--;
  return TRUE;
}

static const oct_world_ops null_ops = {.name = "null",
                                       .abi = OCT_BACKEND_ABI,
                                       .clock = OCT_CLOCK_VIRTUAL,
                                       .free = null_free,
                                       .run = null_run,
                                       .wake = null_wake,
                                       .open = null_open,
                                       .close = null_close,
                                       .submit = null_submit,
                                       .copy = null_copy,
                                       .next = null_next};

/* ---------------------------------------------------------------- the measurement */

typedef struct bench {
  const char *model;
  guint32 running;
} bench;

static double
seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Turns until `steps` more steps have ended. */
static oct_time
advance(oct_world *world, oct_engine *engine, oct_time now, guint64 steps) {
  oct_engine_stats stats;
  oct_engine_get_stats(engine, &stats);
  guint64 until = stats.steps + steps;
  while (stats.steps < until) {
    oct_time wake = oct_engine_turn(engine, now, OCT_TIME_NEVER);
    oct_event event;
    gboolean alive = oct_world_next(world, wake, &event);
    oct_assert(alive);
    now = event.time_ns;
    oct_engine_event(engine, &event);
    oct_engine_get_stats(engine, &stats);
  }
  return now;
}

static int
run(oct_world *world, void *arg) {
  const bench *b = arg;
  g_autoptr(GError) error = NULL;
  g_autoptr(oct_model_spec) spec = oct_model_spec_load(b->model, NULL, &error);
  oct_assert(spec != NULL);
  oct_engine_config c;
  oct_engine_config_default(&c);
  guint16 device = 0;
  c.instance.label = "bench";
  c.instance.spec = spec;
  c.instance.devices = &device;
  c.max_num_seqs = b->running;
  c.max_num_batched_tokens = MAX(8192, b->running);
  c.max_model_len = 16384;
  c.queue_max = b->running + 1;
  oct_layer_group groups[OCT_MODEL_GROUPS_MAX];
  c.instance.memory.n_groups = oct_model_groups(spec, c.instance.kv_dtype, groups);
  for (guint32 g = 0; g < c.instance.memory.n_groups; g++)
    c.instance.memory.groups[g].n_device = b->running * 1024;
  oct_engine *engine = oct_engine_new(world, &c, &error);
  oct_assert(engine != NULL);
  oct_time now = 0;
  for (guint32 i = 0; i < b->running; i++) {
    oct_request_params p;
    oct_request_params_default(&p);
    p.prompt_tokens = 100 + i % 57;
    p.max_tokens = 15000;
    p.ignore_eos = TRUE;
    oct_request_id id;
    gboolean taken = oct_engine_submit(engine, &p, &id, &error);
    oct_assert(taken);
  }
  now = advance(world, engine, now, 100);
  /* 300 steps stay within what a sequence has reserved for its page table. */
  guint64 allocations = n_allocations;
  double start = seconds();
  now = advance(world, engine, now, 300);
  double took = seconds() - start;
  printf("%-24s %5u running: %7.2f us per step, %5.1f ns per sequence, %" G_GUINT64_FORMAT
         " allocations in 300 steps\n",
         b->model, b->running, took / 300 * 1e6, took / 300 / b->running * 1e9,
         n_allocations - allocations);
  oct_engine_free(engine);
  return 0;
}

/* ---------------------------------------------------------------- loads */

typedef struct load {
  const char *name, *policy;
  guint32 running, queued;
  guint32 prompt, max_tokens;    /* of what runs; outputs are spread over 1 .. max_tokens */
  guint32 queued_prompt, shared; /* its first tokens are those of the first that runs */
  guint32 pages, host;           /* per group */
  gboolean deadlines, cancel;
} load;

static void
submit(oct_engine *engine, const load *l, guint32 i, gboolean queued, oct_time now) {
  g_autoptr(GError) error = NULL;
  oct_request_params p;
  oct_request_params_default(&p);
  p.arrival_ns = now;
  p.prompt_tokens = queued ? l->queued_prompt : l->prompt;
  p.max_tokens = 1 + i * 37 % l->max_tokens;
  p.tenant = i;
  p.ignore_eos = TRUE;
  guint64 pages[8192];
  if (l->shared > 0 && (queued || i == 0)) {
    p.prompt_tokens = queued ? l->queued_prompt : l->shared;
    p.max_tokens = 9000;
    p.page_ids = pages;
    p.n_page_ids = MIN(l->shared / 16, G_N_ELEMENTS(pages));
    for (guint32 k = 0; k < p.n_page_ids; k++)
      pages[k] = k + 1;
  }
  if (l->deadlines)
    p.deadline_ns = now + G_GINT64_CONSTANT(3600000000000) + i;
  oct_request_id id;
  gboolean taken = oct_engine_submit(engine, &p, &id, &error);
  oct_assert(taken);
}

static void
cancel_all(oct_engine *engine, guint64 n, oct_time now) {
  double start = seconds();
  guint64 cancelled = 0;
  for (oct_request_id id = 1; id <= n; id++)
    cancelled += oct_engine_cancel(engine, id, now);
  printf("%-36s %8.2f us per request, %" G_GUINT64_FORMAT " cancelled\n", "  cancel",
         (seconds() - start) / (double)cancelled * 1e6, cancelled);
}

static int
run_load(oct_world *world, void *arg) {
  const load *l = arg;
  g_autoptr(GError) error = NULL;
  g_autoptr(oct_model_spec) spec = oct_model_spec_load("llama-3.1-70b", NULL, &error);
  oct_assert(spec != NULL);
  oct_engine_config c;
  oct_engine_config_default(&c);
  guint16 device = 0;
  c.instance.label = "load";
  c.instance.spec = spec;
  c.instance.devices = &device;
  c.max_num_seqs = l->running;
  c.max_num_batched_tokens = MAX(8192, l->running);
  c.queue_max = l->running + l->queued + 1;
  c.queue_tokens_max = 1LL << 32;
  c.policy = l->policy;
  c.instance.memory.n_groups = 1;
  c.instance.memory.groups[0] = (oct_pool_plan){.n_device = l->pages, .n_host = l->host};
  oct_engine *engine = oct_engine_new(world, &c, &error);
  oct_assert(engine != NULL);
  for (guint32 i = 0; i < l->running; i++)
    submit(engine, l, i, FALSE, 0);
  oct_time now = advance(world, engine, 0, 50);
  for (guint32 i = 0; i < l->queued; i++)
    submit(engine, l, l->running + i, TRUE, now);
  now = advance(world, engine, now, 50);
  double start = seconds();
  now = advance(world, engine, now, 300);
  double took = seconds() - start;
  oct_engine_stats stats;
  oct_engine_get_stats(engine, &stats);
  printf("%-36s %8.2f us per step, %u run, %u wait, %" G_GUINT64_FORMAT " preemptions\n", l->name,
         took / 300 * 1e6, stats.running, stats.waiting, stats.preemptions);
  if (l->cancel)
    cancel_all(engine, l->running + l->queued, now);
  oct_engine_free(engine);
  return 0;
}

/* A million requests of a thousand tenants: what each costs, and whether memory grows with them. */
static int
run_million(oct_world *world, void *arg) {
  const load *l = arg;
  g_autoptr(GError) error = NULL;
  g_autoptr(oct_model_spec) spec = oct_model_spec_load("llama-3.1-70b", NULL, &error);
  oct_assert(spec != NULL);
  oct_engine_config c;
  oct_engine_config_default(&c);
  guint16 device = 0;
  c.instance.spec = spec;
  c.instance.devices = &device;
  c.max_num_seqs = l->running;
  c.policy = l->policy;
  c.instance.memory.n_groups = 1;
  c.instance.memory.groups[0] = (oct_pool_plan){.n_device = l->pages, .n_host = l->host};
  oct_engine *engine = oct_engine_new(world, &c, &error);
  oct_assert(engine != NULL);
  oct_time now = 0;
  gsize early = 0;
  double start = seconds();
  oct_engine_stats stats = {0};
  for (guint32 i = 0; i < 1000000; i++) {
    submit(engine, l, i % 1000, FALSE, now);
    if (i == 100000)
      early = mallinfo2().uordblks;
    for (oct_engine_get_stats(engine, &stats); stats.waiting > 2 * l->running;
         oct_engine_get_stats(engine, &stats))
      now = advance(world, engine, now, 1);
  }
  printf("%-36s %8.2f us per request, %" G_GSIZE_FORMAT
         " KiB in use after 100,000, %" G_GSIZE_FORMAT " at the end\n",
         l->name, (seconds() - start), early / 1024, mallinfo2().uordblks / 1024);
  oct_engine_free(engine);
  return 0;
}

static void
in_null_world(oct_world_fn fn, const void *arg) {
  null_world w = {0};
  oct_world_init(&w.base, &null_ops);
  (void)oct_world_run(&w.base, fn, (void *)(guintptr)arg);
  oct_world_free(&w.base);
}

static const bench benches[] = {{"llama-3.1-70b", 16},
                                {"llama-3.1-70b", 256},
                                {"llama-3.1-70b", 1024},
                                {"kimi-k3", 256},
                                {"kimi-k3", 1024}};

static const load loads[] = {
    {.name = "nothing queued",
     .running = 1024,
     .prompt = 100,
     .max_tokens = 9000,
     .pages = 1 << 20},
    {.name = "4,096 queued",
     .running = 1024,
     .queued = 4096,
     .prompt = 100,
     .queued_prompt = 100,
     .max_tokens = 9000,
     .pages = 1 << 20,
     .cancel = TRUE},
    {.name = "4,096 queued, deadlines",
     .running = 1024,
     .queued = 4096,
     .prompt = 100,
     .queued_prompt = 100,
     .max_tokens = 9000,
     .pages = 1 << 20,
     .deadlines = TRUE},
    {.name = "4,096 queued of as many tenants",
     .policy = "priority",
     .running = 1024,
     .queued = 4096,
     .prompt = 100,
     .queued_prompt = 100,
     .max_tokens = 900,
     .pages = 1 << 20},
    {.name = "some end and come each step",
     .running = 1024,
     .queued = 4096,
     .prompt = 100,
     .queued_prompt = 100,
     .max_tokens = 900,
     .pages = 1 << 20},
    {.name = "a head of 120,000 tokens waits",
     .running = 1024,
     .queued = 16,
     .prompt = 100,
     .queued_prompt = 125000,
     .shared = 100000,
     .max_tokens = 900,
     .pages = 40000},
    {.name = "full device, host tier",
     .running = 256,
     .queued = 4096,
     .prompt = 1000,
     .queued_prompt = 1000,
     .max_tokens = 900,
     .pages = 24000,
     .host = 100000},
    {.name = "long contexts, cancelled",
     .running = 1024,
     .queued = 64,
     .prompt = 3000,
     .queued_prompt = 3000,
     .max_tokens = 9000,
     .pages = 1 << 20,
     .cancel = TRUE},
};

static const load million = {.name = "a million requests",
                             .policy = "priority",
                             .running = 256,
                             .prompt = 40,
                             .max_tokens = 5,
                             .pages = 10000,
                             .host = 20000};

int
main(void) {
  for (gsize i = 0; i < G_N_ELEMENTS(benches); i++)
    in_null_world(run, &benches[i]);
  for (gsize i = 0; i < G_N_ELEMENTS(loads); i++)
    in_null_world(run_load, &loads[i]);
  in_null_world(run_million, &million);
  return 0;
}
