/* Guided requests on mock, in virtual time: tokens a second with 0, 10 and 100 % of 256 running
 * sequences guided, by how long their owner takes for a mask; beside it the processor's time for a
 * step, scheduler, mock and masks of a vocabulary of 128,256 together. Steps take 10 ms: an answer
 * within that costs nothing, since it comes while its step runs. */
#include <stdio.h>
#include <time.h>

#include "backends/mock/mock.h"
#include "engine/base/assert.h"
#include "engine/sched/engine.h"

#define RUNNING 256
#define STEPS   200
#define STEP_NS G_GINT64_CONSTANT(10000000)

typedef struct question {
  oct_request_id id;
  guint32 n_output;
  oct_time due_ns;
} question;

typedef struct bench {
  guint32 percent;
  gint64 answer_ns;
  oct_engine *engine;
  const guint64 *bits;
  guint32 n_words;
  GArray *questions; /* question, in the order of due_ns */
  guint first;
} bench;

static double
seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void
on_mask(void *user, oct_request_id id, void *request_user, guint32 choice, guint32 n_output,
        oct_time now) {
  bench *b = user;
  (void)request_user;
  if (b->answer_ns == 0) {
    (void)oct_engine_mask(b->engine, id, choice, n_output, b->bits, b->n_words, now);
    return;
  }
  question q = {id, n_output, now + b->answer_ns};
  g_array_append_val(b->questions, q);
}

/* Gives the masks that are due; returns when the next is. */
static oct_time
answer(bench *b, oct_time now) {
  for (; b->first < b->questions->len; b->first++) {
    question q = g_array_index(b->questions, question, b->first);
    if (q.due_ns > now)
      return q.due_ns;
    (void)oct_engine_mask(b->engine, q.id, 0, q.n_output, b->bits, b->n_words, now);
  }
  g_array_set_size(b->questions, 0);
  b->first = 0;
  return OCT_TIME_NEVER;
}

/* Until `steps` more have ended. */
static oct_time
advance(bench *b, oct_world *world, oct_time now, guint64 steps) {
  oct_engine_stats stats;
  oct_engine_get_stats(b->engine, &stats);
  guint64 until = stats.steps + steps;
  while (stats.steps < until) {
    oct_event event;
    (void)answer(b, now);
    oct_time wake = oct_engine_turn(b->engine, now, now);
    gboolean alive = oct_world_next(world, MIN(wake, answer(b, now)), &event);
    oct_assert(alive);
    now = event.time_ns;
    oct_engine_event(b->engine, &event);
    oct_engine_get_stats(b->engine, &stats);
  }
  return now;
}

static void
configure(oct_engine_config *c, const oct_model_spec *spec, bench *b) {
  static const guint16 device;
  oct_engine_config_default(c);
  c->instance.label = "bench";
  c->instance.spec = spec;
  c->instance.devices = &device;
  c->max_num_seqs = RUNNING;
  c->max_num_batched_tokens = 8192;
  c->max_model_len = 4096;
  c->queue_max = RUNNING;
  c->no_forward = TRUE;
  oct_layer_group groups[OCT_MODEL_GROUPS_MAX];
  c->instance.memory.n_groups = oct_model_groups(spec, c->instance.kv_dtype, groups);
  for (guint32 g = 0; g < c->instance.memory.n_groups; g++)
    c->instance.memory.groups[g].n_device = RUNNING * 256;
  c->listener = (oct_listener){.user = b, .mask = on_mask};
}

static int
run(oct_world *world, void *arg) {
  bench *b = arg;
  g_autoptr(GError) error = NULL;
  g_autoptr(oct_model_spec) spec = oct_model_spec_load("llama-3.1-8b", NULL, &error);
  oct_assert(spec != NULL);
  b->n_words = (spec->vocab + 63) / 64;
  g_autofree guint64 *bits = g_new(guint64, b->n_words);
  for (guint32 w = 0; w < b->n_words; w++)
    bits[w] = 0x0123456789abcdefu + w;
  b->bits = bits;
  b->questions = g_array_new(FALSE, FALSE, sizeof(question));
  oct_engine_config c;
  configure(&c, spec, b);
  b->engine = oct_engine_new(world, &c, &error);
  oct_assert(b->engine != NULL);
  for (guint32 i = 0; i < RUNNING; i++) {
    oct_request_params p;
    oct_request_params_default(&p);
    p.prompt_tokens = 100;
    p.max_tokens = 2000;
    p.ignore_eos = TRUE;
    p.guided = i * b->percent / 100 != (i + 1) * b->percent / 100;
    oct_request_id id;
    gboolean taken = oct_engine_submit(b->engine, &p, &id, &error);
    oct_assert(taken);
  }
  oct_time from = advance(b, world, 0, 20);
  double start = seconds();
  oct_time to = advance(b, world, from, STEPS);
  double took = seconds() - start;
  oct_engine_stats stats;
  oct_engine_get_stats(b->engine, &stats);
  printf("%3u %% guided, masks after %4.1f ms: %8.0f tokens/s, %6.1f us of processor per step, "
         "%5" G_GUINT64_FORMAT " of %5" G_GUINT64_FORMAT " masks late\n",
         b->percent, (double)b->answer_ns * 1e-6, STEPS * RUNNING / ((double)(to - from) * 1e-9),
         took / STEPS * 1e6, stats.late_masks, stats.masks);
  oct_engine_free(b->engine);
  g_array_unref(b->questions);
  return 0;
}

int
main(void) {
  static const guint32 percents[] = {0, 10, 100};
  static const gint64 answers[] = {0, STEP_NS / 2, STEP_NS * 9 / 10, STEP_NS * 3 / 2};
  for (gsize a = 0; a < G_N_ELEMENTS(answers); a++)
    for (gsize p = 0; p < G_N_ELEMENTS(percents); p++) {
      oct_mock_options o;
      g_autoptr(GError) error = NULL;
      oct_mock_options_default(&o);
      o.fixed_ns = STEP_NS;
      o.token_ns = o.sequence_ns = 0;
      oct_world *world = oct_mock_world_new(&o, &error);
      oct_assert(world != NULL);
      bench b = {.percent = percents[p], .answer_ns = answers[a]};
      (void)oct_world_run(world, run, &b);
      oct_world_free(world);
    }
  return 0;
}
