#include "config.h"

#include "sim/replay/replay.h"

#include <errno.h>
#include <string.h>
#include <sys/resource.h>

#ifdef HAVE_SIMGRID
#include "backends/simgrid/simgrid.h"
#endif

#define TIMELINE_NS 1000000000
#define CHROME_NS   (10 * G_GINT64_CONSTANT(1000000000))

void
oct_replay_config_default(oct_replay_config *config) {
  memset(config, 0, sizeof *config);
  oct_setup_options_default(&config->setup);
  oct_slo_init(&config->slo);
  config->warmup_ns = -1;
  config->timeline_ns = TIMELINE_NS;
  config->chrome_for_ns = CHROME_NS;
}

/* ---------------------------------------------------------------- files */

typedef struct outputs {
  FILE *requests, *timeline, *chrome;
  oct_log *log;
} outputs;

static gboolean
open_file(const char *path, FILE **file, GError **error) {
  if (path == NULL)
    return TRUE;
  *file = fopen(path, "we");
  if (*file != NULL)
    return TRUE;
  g_set_error(error, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_IO, "%s: cannot write: %s", path,
              g_strerror(errno));
  return FALSE;
}

static gboolean
open_outputs(const oct_replay_config *config, outputs *o, GError **error) {
  if (!open_file(config->requests_path, &o->requests, error) ||
      !open_file(config->timeline_path, &o->timeline, error) ||
      !open_file(config->chrome_path, &o->chrome, error))
    return FALSE;
  if (config->log_path != NULL)
    o->log = oct_log_new_file(config->log_path, error);
  return config->log_path == NULL || o->log != NULL;
}

static gboolean
close_file(const char *path, FILE *file, GError **error) {
  if (file == NULL || fclose(file) == 0)
    return TRUE;
  if (error != NULL && *error == NULL)
    g_set_error(error, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_IO, "%s: cannot write: %s", path,
                g_strerror(errno));
  return FALSE;
}

/* *error may be set: the first one counts. */
static gboolean
close_outputs(const oct_replay_config *config, outputs *o, GError **error) {
  gboolean good = close_file(config->requests_path, o->requests, error);
  good &= close_file(config->timeline_path, o->timeline, error);
  good &= close_file(config->chrome_path, o->chrome, error);
  if (o->log != NULL)
    good &= oct_log_close(o->log, *error == NULL ? error : NULL);
  return good;
}

/* ---------------------------------------------------------------- the run */

static void
fill_drive(const oct_replay_config *config, const oct_setup *setup, const outputs *o,
           oct_drive_config *drive) {
  *drive = (oct_drive_config){.engine = setup->engine,
                              .n_replicas = setup->options.n_replicas,
                              .devices = setup->devices,
                              .n_prefill = setup->options.n_prefill,
                              .router = setup->options.router,
                              .prefill_engine =
                                  setup->prefill_devices != NULL ? &setup->prefill_engine : NULL,
                              .prefill_devices = setup->prefill_devices,
                              .client = config->client,
                              .keep_records = config->worst_window_ns > 0,
                              .scenario = setup->scenario,
                              .exact_lengths = config->exact_lengths,
                              .assume_max_tokens = config->assume_max_tokens,
                              .seed = setup->options.seed,
                              .duration_ns = config->duration_ns,
                              .warmup_ns = config->warmup_ns,
                              .sample_ns = config->sample_ns,
                              .slo = config->slo,
                              .requests = o->requests,
                              .timeline = o->timeline,
                              .timeline_ns = config->timeline_ns,
                              .detail = config->detail,
                              .picture = config->picture,
                              .chrome = o->chrome,
                              .chrome_from_ns = config->chrome_from_ns,
                              .chrome_for_ns = config->chrome_for_ns,
                              .read_use = oct_setup_read_use(setup),
                              .progress = config->progress,
                              .outcome = config->outcome,
                              .enough = config->enough,
                              .user = config->user};
  drive->engine.log = o->log;
  if (setup->profile != NULL) {
    drive->request_in_ns = setup->profile->engine.request_in_ns;
    drive->request_out_per_token_ns = setup->profile->engine.request_out_per_token_ns;
  }
}

/* A report of nothing is an error. */
static gboolean
has_measured(const oct_replay_config *config, const oct_replay_result *r, GError **error) {
  if (r->facts.n_requests == 0)
    g_set_error(error, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_OPTION,
                "%s: the trace has no request (%" G_GUINT64_FORMAT " rows were left out)",
                r->trace_name, r->facts.n_skipped);
  else if (config->warmup_ns > r->drive.load_end_ns)
    g_set_error(error, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_OPTION,
                "warmup: %.9g s leaves nothing to measure, the last request was sent at %.9g s",
                (double)config->warmup_ns / 1e9, (double)r->drive.load_end_ns / 1e9);
  else
    return TRUE;
  return FALSE;
}

static gboolean
run_in_world(const oct_replay_config *config, oct_replay_result *r, const outputs *o,
             GError **error) {
  if (r->setup.spec->n_eos_tokens == 0 && !config->exact_lengths) {
    g_set_error(error, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_OPTION,
                "%s has no end-of-sequence token: its outputs end by length only (--exact-lengths)",
                r->setup.spec->name);
    return FALSE;
  }
  oct_rows_options asked = config->rows;
  asked.warp = r->setup.scenario != NULL ? r->setup.scenario->warp : NULL;
  g_autoptr(oct_rows) rows = oct_rows_open(&asked, error);
  if (rows == NULL)
    return FALSE;
  g_autoptr(oct_world) world = oct_setup_world(&r->setup, error);
  if (world == NULL)
    return FALSE;
  oct_drive_config drive;
  oct_machine machine;
  fill_drive(config, &r->setup, o, &drive);
  if (r->setup.scenario != NULL && oct_setup_machine(&r->setup, &machine))
    drive.machine = &machine;
  gboolean good = oct_drive(world, rows, config->concurrency, &drive, &r->drive, error);
  r->facts = *oct_rows_facts(rows);
  r->trace_name = g_strdup(config->trace_name != NULL ? config->trace_name : oct_rows_name(rows));
  r->own_rate = oct_rows_own_rate(rows);
#ifdef HAVE_SIMGRID
  if (r->setup.options.backend == OCT_REPLAY_SIMGRID)
    r->activities = oct_simgrid_activities(world);
#endif
  return good && has_measured(config, r, error);
}

static double
cpu_seconds(const struct rusage *usage) {
  return (double)(usage->ru_utime.tv_sec + usage->ru_stime.tv_sec) +
         (double)(usage->ru_utime.tv_usec + usage->ru_stime.tv_usec) / 1e6;
}

gboolean
oct_replay_run(const oct_replay_config *config, oct_replay_result *r, GError **error) {
  memset(r, 0, sizeof *r);
  struct rusage before, after;
  gint64 start_us = g_get_monotonic_time();
  outputs o = {0};
  GError *failed = NULL;
  getrusage(RUSAGE_SELF, &before);
  if (!oct_setup_make(&config->setup, &r->setup, error))
    return FALSE;
  gboolean good = open_outputs(config, &o, &failed) && run_in_world(config, r, &o, &failed);
  if (o.log != NULL) {
    r->log_digest = oct_log_digest(o.log);
    r->log_lines = oct_log_lines(o.log);
  }
  good &= close_outputs(config, &o, &failed);
  getrusage(RUSAGE_SELF, &after);
  r->wall_s = (double)(g_get_monotonic_time() - start_us) / 1e6;
  r->cpu_s = cpu_seconds(&after) - cpu_seconds(&before);
  r->peak_rss_bytes = (guint64)after.ru_maxrss * 1024;
  if (good)
    return TRUE;
  oct_replay_result_clear(r);
  g_propagate_error(error, failed);
  return FALSE;
}

void
oct_replay_result_clear(oct_replay_result *r) {
  oct_setup_clear(&r->setup);
  oct_drive_result_clear(&r->drive);
  g_free(r->trace_name);
  memset(r, 0, sizeof *r);
}
