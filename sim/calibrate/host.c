#include "sim/calibrate/host.h"

#include <time.h>

#include "engine/sched/engine.h"

#define PROMPT  64  /* tokens of each sequence */
#define WARM_UP 40  /* steps */
#define STEPS   200 /* that are timed */
#define MOST    (PROMPT + 4 * (WARM_UP + STEPS))

typedef struct host_run {
  const oct_model_spec *spec;
  oct_parallel parallel;
  guint32 running;
  double step_s; /* out */
  GError **error;
} host_run;

static double
now_s(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Turns until `steps` more steps have ended; seconds that the engine's own calls took are added to
 * *took. FALSE with *error. */
static gboolean
advance(oct_world *world, oct_engine *engine, oct_time *now, guint64 steps, double *took,
        GError **error) {
  oct_engine_stats stats;
  oct_engine_get_stats(engine, &stats);
  const guint64 until = stats.steps + steps;
  while (stats.steps < until) {
    double began = now_s();
    oct_time wake = oct_engine_turn(engine, *now, OCT_TIME_NEVER);
    *took += now_s() - began;
    oct_event event;
    if (!oct_world_next(world, wake, &event) || event.kind == OCT_EVENT_FAULT ||
        event.kind == OCT_EVENT_OPEN_FAILED) {
      g_set_error(error, OCT_CALIBRATE_ERROR, OCT_CALIBRATE_ERROR_WORLD,
                  "the engine's own times: the world failed");
      return FALSE;
    }
    *now = event.time_ns;
    began = now_s();
    oct_engine_event(engine, &event);
    *took += now_s() - began;
    oct_engine_get_stats(engine, &stats);
  }
  return TRUE;
}

static oct_engine *
make_engine(oct_world *world, const host_run *r, guint16 *devices) {
  oct_engine_config c;
  oct_layer_group groups[OCT_MODEL_GROUPS_MAX];
  oct_engine_config_default(&c);
  c.instance.label = "calibrate";
  c.instance.spec = r->spec;
  c.instance.parallel = r->parallel;
  c.instance.devices = devices;
  c.max_num_seqs = r->running;
  c.max_num_batched_tokens = MAX(2048, r->running);
  c.max_model_len = 2 * MOST;
  c.queue_max = r->running + 1;
  c.no_forward = TRUE;
  c.carry_ids = TRUE;
  c.instance.memory.n_groups = oct_model_groups(r->spec, c.instance.kv_dtype, groups);
  for (guint32 g = 0; g < c.instance.memory.n_groups; g++)
    c.instance.memory.groups[g].n_device = r->running * (2 * MOST / c.instance.block_size + 2);
  return oct_engine_new(world, &c, r->error);
}

static int
run_engine(oct_world *world, void *arg) {
  host_run *r = arg;
  guint16 devices[OCT_PROFILE_GPUS_MAX];
  guint32 ids[PROMPT] = {0};
  oct_time now = world->now_ns;
  double took = 0;
  for (guint16 i = 0; i < OCT_PROFILE_GPUS_MAX; i++)
    devices[i] = i;
  oct_engine *engine = make_engine(world, r, devices);
  gboolean fine = engine != NULL;
  for (guint32 i = 0; fine && i < r->running; i++) {
    oct_request_params p;
    oct_request_id id;
    oct_request_params_default(&p);
    p.arrival_ns = now;
    p.prompt_ids = ids;
    p.prompt_tokens = PROMPT;
    p.max_tokens = MOST;
    p.ignore_eos = TRUE;
    fine = oct_engine_submit(engine, &p, &id, r->error);
  }
  fine = fine && advance(world, engine, &now, WARM_UP, &took, r->error);
  took = 0;
  fine = fine && advance(world, engine, &now, STEPS, &took, r->error);
  r->step_s = took / STEPS;
  oct_engine_free(engine);
  return fine ? 0 : 1;
}

gboolean
oct_calibrate_host(oct_world *world, const oct_model_spec *spec, const oct_parallel *parallel,
                   guint32 running, oct_host_times *out, GError **error) {
  host_run one = {.spec = spec, .parallel = *parallel, .running = 1, .error = error};
  host_run many = {.spec = spec, .parallel = *parallel, .running = running, .error = error};
  if (oct_world_run(world, run_engine, &one) != 0 || oct_world_run(world, run_engine, &many) != 0)
    return FALSE;
  out->sequence_s = running > 1 ? MAX(0, many.step_s - one.step_s) / (running - 1) : 0;
  out->step_s = MAX(0, one.step_s - out->sequence_s);
  return TRUE;
}
