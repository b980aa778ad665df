#include "sim/replay/drive.h"

#include <errno.h>
#include <string.h>

#include "engine/base/assert.h"
#include "sim/replay/drive-internal.h"

#define LENGTHS_STREAM  0x6d61785f746f6b /* "max_tok" */
#define PROGRESS_EVENTS 2048

/* ---------------------------------------------------------------- set-up */

gboolean
oct_driver_open(oct_driver *d, oct_replica *replica) {
  oct_engine_config config = replica->config;
  replica->dirty = TRUE;
  replica->wake = OCT_TIME_NEVER;
  oct_driver_listen(d, replica, &config.listener);
  config.instance.devices = replica->devices;
  config.seed = d->config->seed + replica->number;
  replica->engine = oct_engine_new(d->world, &config, &d->error);
  return replica->engine != NULL;
}

static gboolean
open_replica(oct_driver *d, guint32 number) {
  oct_replica *replica = &d->replicas[number];
  replica->number = number;
  const oct_drive_config *c = d->config;
  gboolean apart = c->prefill_engine != NULL && number < c->n_prefill;
  replica->config = apart ? *c->prefill_engine : c->engine;
  replica->config.log = c->engine.log;
  replica->ranks = oct_parallel_world(&replica->config.instance.parallel);
  replica->down_ns = -1;
  memcpy(replica->devices,
         (apart ? c->prefill_devices : c->devices) + (gsize)number * replica->ranks,
         replica->ranks * sizeof *replica->devices);
  return oct_driver_open(d, replica);
}

static void
set_up(oct_driver *d) {
  const oct_engine_config *c = &d->config->engine;
  oct_layer_group groups[OCT_MODEL_GROUPS_MAX];
  oct_drive_result *r = d->result;
  r->page_tokens = c->instance.block_size * c->instance.parallel.decode_context;
  r->n_groups = oct_model_groups(c->instance.spec, c->instance.kv_dtype, groups);
  for (guint i = 0; i < r->n_groups; i++)
    r->is_state[i] = groups[i].kind == OCT_ATTENTION_KDA;
  oct_metrics_options options = {.warmup_ns = d->config->warmup_ns,
                                 .sample_ns = d->config->sample_ns,
                                 .slo = d->config->slo,
                                 .detail = d->config->detail,
                                 .source = oct_driver_source(d)};
  d->metrics = oct_metrics_new(&options);
  d->page_ids = g_array_new(FALSE, FALSE, sizeof(guint64));
  oct_rng_seed(&d->lengths, d->config->seed, LENGTHS_STREAM);
  d->next_row = d->config->timeline_ns;
  oct_incidents_init(d);
  oct_driver_write_timeline_head(d);
}

/* ---------------------------------------------------------------- the loop */

static gboolean
is_over(const oct_driver *d) {
  guint waiting = (guint)g_sequence_get_length(d->again) + d->parked.length;
  if (d->n_live == 0 && waiting == 0 && oct_feed_is_exhausted(d->feed))
    return TRUE;
  oct_time end = d->config->duration_ns;
  if (end == 0 || d->n_live_window > 0)
    return FALSE;
  return d->window_ended &&
         (d->next_input == OCT_TIME_NEVER || d->next_input - d->config->request_in_ns >= end);
}

/* Turns every engine that has something to do; a stretch may run to the next thing that is not its
 * own. */
static void
turn_engines(oct_driver *d) {
  gboolean each_step = d->spans != NULL && oct_spans_looks(d->spans, d->now);
  for (guint32 i = 0; i < d->n_replicas; i++) {
    oct_replica *replica = &d->replicas[i];
    if (replica->engine == NULL || (!replica->dirty && replica->wake > d->now))
      continue;
    oct_time horizon = each_step ? d->now : MIN(d->next_input, oct_driver_next_watch(d));
    horizon = MIN(horizon, oct_incidents_next(d));
    for (guint32 j = 0; j < d->n_replicas; j++)
      if (j != i && d->replicas[j].engine != NULL)
        horizon = MIN(horizon, d->replicas[j].dirty ? d->now : d->replicas[j].wake);
    replica->wake = oct_engine_turn(replica->engine, d->now, MAX(horizon, d->now));
    replica->dirty = FALSE;
  }
}

static void
hand_over(oct_driver *d, const oct_event *event) {
  for (guint32 i = 0; i < d->n_replicas; i++)
    if (d->replicas[i].engine != NULL && oct_engine_owns(d->replicas[i].engine, event->instance)) {
      oct_engine_event(d->replicas[i].engine, event);
      d->replicas[i].dirty = TRUE;
      return;
    }
}

gboolean
oct_driver_fail(oct_driver *d) {
  oct_engine_stats stats;
  const char *reason = "";
  oct_driver_sum_stats(d, &stats);
  for (guint32 i = 0; i < d->n_replicas && *reason == '\0'; i++)
    if (d->replicas[i].engine != NULL)
      reason = oct_engine_down_reason(d->replicas[i].engine);
  g_set_error(&d->error, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_STUCK,
              "at %.3f s %" G_GUINT64_FORMAT " requests are left (%u running, %u waiting) and "
              "nothing more will happen to them%s%s",
              (double)d->now / 1e9, d->n_live, stats.running, stats.waiting,
              *reason != '\0' ? ": " : "", reason);
  return FALSE;
}

static gboolean
loop(oct_driver *d) {
  /* Requests are handed over when the clock has reached them and all that happens at that time has
   * happened: so it is when steps are fast-forwarded up to then. */
  gboolean may_send = TRUE;
  for (guint64 events = 0;; events++) {
    if (!oct_incidents_take(d, may_send) || !oct_driver_take_due(d, may_send))
      return FALSE;
    if (is_over(d))
      return TRUE;
    turn_engines(d);
    oct_time until = MIN(d->next_input, oct_incidents_next(d));
    for (guint32 i = 0; i < d->n_replicas; i++)
      if (d->replicas[i].engine != NULL)
        until = MIN(until, d->replicas[i].wake);
    oct_event event;
    if (!oct_world_next(d->world, MAX(until, d->now), &event))
      return oct_driver_fail(d);
    if (event.time_ns > d->now)
      oct_driver_watch(d, event.time_ns);
    d->now = event.time_ns;
    may_send = event.kind == OCT_EVENT_TIMER;
    if (event.instance != 0)
      hand_over(d, &event);
    oct_incidents_note(d, &event);
    if (d->config->enough != NULL && d->config->enough(d->config->user)) {
      d->result->cut_short = TRUE;
      return TRUE;
    }
    if (d->config->progress != NULL && events % PROGRESS_EVENTS == 0)
      d->config->progress(d->config->user, &(oct_drive_progress){d->now, d->sent, d->ended});
  }
}

/* ---------------------------------------------------------------- the end */

static gboolean
flush(FILE *file, const char *what, GError **error) {
  if (file == NULL || (fflush(file) == 0 && !ferror(file)))
    return TRUE;
  g_set_error(error, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_IO, "%s: cannot write: %s", what,
              g_strerror(errno));
  return FALSE;
}

static void
conclude(oct_driver *d) {
  oct_drive_result *r = d->result;
  oct_driver_watch(d, d->now);
  oct_incidents_count_energy(d);
  if (!d->window_ended)
    oct_metrics_end_window(d->metrics, d->now);
  oct_metrics_measure(d->metrics, &r->measured);
  const oct_measured *m = &r->measured;
  if (!r->cut_short && d->config->duration_ns == 0 &&
      (double)(m->end_ns - m->from_ns) < 1e9 * m->residence_mean_s) {
    oct_measured_clear(&r->measured);
    oct_metrics_extend_window(d->metrics, d->now);
    oct_metrics_measure(d->metrics, &r->measured);
  }
  r->closed_loop = oct_feed_is_closed_loop(d->feed);
  r->concurrency = oct_feed_concurrency(d->feed);
  if (r->closed_loop)
    r->measured.verdict = OCT_VERDICT_CLOSED;
  r->span_ns = d->now;
  r->sent = d->sent;
  r->ended = d->ended;
  r->refused = d->refused;
  oct_driver_sum_stats(d, &r->stats);
  if (d->spans != NULL)
    oct_spans_end(d->spans, d->now);
  if (d->config->picture)
    r->picture = oct_spans_json(d->spans);
  r->step_hist = oct_hist_new();
  r->batch_hist = oct_hist_new();
  oct_driver_merge_hist(d, OCT_HIST_STEP, r->step_hist);
  oct_driver_merge_hist(d, OCT_HIST_BATCH_SEQS, r->batch_hist);
  r->integral_request_s = (double)d->integral / 1e9;
  r->residence_sum_s = (double)d->residence / 1e9;
}

static int
run(oct_world *world, void *arg) {
  oct_driver *d = arg;
  (void)world;
  gboolean good = TRUE;
  for (; good && d->n_replicas < d->config->n_replicas; d->n_replicas += good)
    good = open_replica(d, d->n_replicas);
  good = good && loop(d);
  if (good)
    conclude(d);
  if (good && d->config->scenario == NULL && d->result->stats.state == OCT_ENGINE_DEAD)
    good = oct_driver_fail(d);
  d->closing = TRUE;
  /* Those that pull first: what they pull from outlives them. */
  for (guint32 i = d->n_replicas; i > 0; i--)
    oct_engine_free(d->replicas[i - 1].engine);
  oct_incidents_clear(d);
  return good ? 0 : 1;
}

gboolean
oct_drive(oct_world *world, oct_rows *rows, guint32 concurrency, const oct_drive_config *config,
          oct_drive_result *result, GError **error) {
  oct_assert(config->n_replicas >= 1 && config->n_replicas <= OCT_REPLICAS_MAX);
  oct_assert(config->n_prefill < config->n_replicas);
  oct_assert(config->timeline == NULL || config->timeline_ns > 0);
  memset(result, 0, sizeof *result);
  oct_driver *d = g_new0(oct_driver, 1);
  d->world = d->given = world;
  d->config = config;
  d->result = result;
  d->feed = oct_feed_new(rows, concurrency);
  set_up(d);
  oct_driver_watch_spans(d);
  oct_world_run(d->world, run, d);
  if (d->world != world)
    oct_world_free(d->world);
  oct_spans_free(d->spans);
  GError *failed = g_steal_pointer(&d->error);
  oct_metrics_free(d->metrics);
  oct_feed_free(d->feed);
  g_array_unref(d->page_ids);
  g_free(d);
  if (failed == NULL && flush(config->requests, "requests", &failed) &&
      flush(config->timeline, "timeline", &failed))
    (void)flush(config->chrome, "chrome-trace", &failed);
  if (failed == NULL)
    return TRUE;
  oct_drive_result_clear(result);
  g_propagate_error(error, failed);
  return FALSE;
}

void
oct_drive_result_clear(oct_drive_result *result) {
  oct_measured_clear(&result->measured);
  oct_hist_free(result->step_hist);
  oct_hist_free(result->batch_hist);
  json_decref(result->picture);
  g_clear_pointer(&result->incidents.events, g_array_unref);
  oct_records_free(result->records);
  memset(result, 0, sizeof *result);
}
