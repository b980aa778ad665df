/* One replay from its options to its report: setup, world, trace, loop, figures.
 *
 * oct_replay_run() makes everything itself and may be called once per process with simgrid, whose
 * world is the only one a process can have: several configurations run in forked children
 * (sim/replay/jobs.h). The report is JSON; doc/replay.md describes every field, sim/replay/report.h
 * prints it for people.
 */
#ifndef OCT_SIM_REPLAY_REPLAY_H
#define OCT_SIM_REPLAY_REPLAY_H

#include <jansson.h>

#include "sim/replay/drive.h"
#include "sim/replay/setup.h"

#define OCT_REPLAY_SCHEMA "octet-replay-1"

/* Plain data; strings and distributions are borrowed. */
typedef struct oct_replay_config {
  const char *label;      /* tells it from others in a comparison; NULL = alone */
  const char *trace_name; /* in the report; NULL = the path */
  oct_setup_options setup;
  oct_rows_options rows;
  guint32 concurrency;
  gboolean exact_lengths;
  const oct_dist *assume_max_tokens;
  oct_time duration_ns, warmup_ns, sample_ns, timeline_ns; /* as oct_drive_config */
  oct_slo slo;
  oct_client client;
  gint64 worst_window_ns;          /* 0 = not looked for */
  const oct_class_slo *class_slos; /* [n_class_slos], borrowed */
  guint n_class_slos;
  const char *requests_path, *timeline_path, *log_path; /* NULL = not written */
  const char *chrome_path;                              /* likewise: spans.h */
  oct_time chrome_from_ns, chrome_for_ns;
  gboolean detail; /* the report has "detail" (detail.h), and with `picture` a stretch of steps */
  gboolean picture;
  /* As in oct_drive_config. */
  void (*progress)(void *user, const oct_drive_progress *progress);
  void (*outcome)(void *user, guint64 index, const oct_outcome *outcome);
  gboolean (*enough)(void *user);
  void *user;
} oct_replay_config;

void oct_replay_config_default(oct_replay_config *config);

typedef struct oct_replay_result {
  oct_setup setup;
  oct_drive_result drive;
  oct_trace_facts facts;
  char *trace_name;
  double own_rate;        /* 0 = not known */
  oct_hash128 log_digest; /* of the event log, when one is written */
  guint64 log_lines;
  guint64 activities; /* of SimGrid */
  double wall_s, cpu_s;
  guint64 peak_rss_bytes;
} oct_replay_result;

/* FALSE with *error: of the setup, the trace, the loop or a file. */
gboolean oct_replay_run(const oct_replay_config *config, oct_replay_result *result,
                        GError **error) G_GNUC_WARN_UNUSED_RESULT;
void oct_replay_result_clear(oct_replay_result *result);

/* The report; owned. */
json_t *oct_replay_json(const oct_replay_config *config, const oct_replay_result *result);
/* Of it "verdict", "throughput", "slo" and "scheduler": no steps are priced for it. Owned. */
json_t *oct_replay_brief_json(const oct_replay_config *config, const oct_replay_result *result);
/* Appends to the array `list` what was assumed rather than known, as texts. */
void oct_replay_assumptions(const oct_replay_config *config, const oct_replay_result *result,
                            json_t *list);
/* Appends what predictions of this kind were off by where they could be compared, as texts. */
void oct_replay_errors(const oct_replay_result *result, json_t *list);
/* The share by which a step's price is wrong at the 90th percentile, of models with or without
 * experts, on B200, to whose runs nothing was fitted (sim/errors.h); 0 when it is not known. *from,
 * static, says so in a sentence. */
double oct_replay_cost_error(gboolean experts, const char **from);
/* What happened on the way, null without a scenario or impatient clients (incidents-json.c). */
json_t *oct_incidents_json(const oct_replay_config *config, const oct_replay_result *result);
/* Keys of a profile's file and its bases whose comment says "assumed", sorted: "group/key". Owned:
 * g_ptr_array_unref(). */
GPtrArray *oct_profile_assumed_keys(const char *path);

#endif
