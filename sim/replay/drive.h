/* The loop of a replay: engines in one world, fed by a trace, watched by metrics.
 *
 * It is the driver that engine/sched/engine.h describes, with N engines: take the earliest event,
 * hand it to its engine, hand over what has arrived, turn every engine that had something or is
 * due. A request is sent to the replica with the fewest tokens to compute (equal: the lowest
 * number). Host times are charged outside the engine: a request is handed over request_in_ns after
 * its arrival, from which its times count, and a token reaches the client request_out_per_token_ns
 * after the engine had it. A scenario's actions come between events, like arrivals.
 *
 * Everything happens in virtual time and one order: equal configurations give equal event logs,
 * byte for byte, with and without fast-forward, and whatever is sampled or written down.
 */
#ifndef OCT_SIM_REPLAY_DRIVE_H
#define OCT_SIM_REPLAY_DRIVE_H

#include <jansson.h>
#include <stdio.h>

#include "sim/replay/feed.h"
#include "engine/sched/placement.h"
#include "sim/replay/metrics.h"
#include "sim/replay/records.h"
#include "sim/replay/route.h"
#include "sim/scenario/scenario.h"
#include "traces/dist.h"

#define OCT_REPLICAS_MAX 64

typedef struct oct_drive_progress {
  oct_time now_ns;
  guint64 sent, ended;
} oct_drive_progress;

/* What a scenario needs of the machine. */
typedef struct oct_machine {
  void *user;
  /* Does what the action says to the world; not called for DRAIN and TELL. */
  gboolean (*act)(void *user, oct_world *world, const oct_action *action, GError **error);
  /* The engine of a replica on the GPUs that are not taken, of at most `ranks` ranks: fills what
   * follows from the layout into *engine, and `devices`. FALSE with *error when none fits. */
  gboolean (*replan)(void *user, const gboolean taken[OCT_NODE_DEVICES_MAX], guint32 ranks,
                     oct_engine_config *engine, guint16 *devices, GError **error);
  guint n_gpus;
  double idle_w, limit_w; /* of one GPU */
} oct_machine;

typedef struct oct_drive_config {
  /* Each replica's; devices, listener and seed are set by the driver. */
  oct_engine_config engine;
  guint32 n_replicas;
  const guint16 *devices; /* [n_replicas x ranks]: device of each rank */
  /* Above 0: the first so many replicas compute prompts and their first token, the others take
   * the cache from there and go on. */
  guint32 n_prefill;
  const oct_engine_config *prefill_engine; /* of those, where it is another one; NULL = engine */
  const guint16 *prefill_devices;          /* [n_prefill x its ranks] */
  oct_routing_rule router;
  oct_client client;
  const oct_scenario *scenario; /* NULL = none */
  const oct_machine *machine;   /* NULL = no scenario with hardware, and none that reopens */
  gint64 request_in_ns, request_out_per_token_ns;
  /* What the scheduler is told of output lengths: the true one, else the trace's max_tokens, else
   * drawn from `assume_max_tokens`, else (NULL) as much as the context allows. */
  gboolean exact_lengths;
  const oct_dist *assume_max_tokens;
  guint64 seed;
  oct_time
      duration_ns; /* the window's end; load goes on until what arrived in it has ended. 0 = all */
  oct_time warmup_ns; /* -1 = by rule */
  oct_time sample_ns; /* 0 = OCT_METRICS_SAMPLE_NS */
  oct_slo slo;
  gboolean keep_records; /* of every request; else of those with a class */
  FILE *requests; /* one JSON line per request of the window's time, in order of their ends; NULL =
                     none */
  FILE *timeline; /* CSV, a row per interval; NULL = none */
  oct_time timeline_ns;
  gboolean detail;  /* oct_metrics_options.detail */
  gboolean picture; /* a stretch of steps is kept: oct_drive_result.picture */
  FILE *chrome;     /* steps, copies and requests of a window (spans.h); NULL = none */
  oct_time chrome_from_ns, chrome_for_ns;
  /* Reads the counters of the world's resources: [*n] each; NULL = none. */
  void (*read_use)(oct_world *world, guint *n, double *moved, gint64 *delayed_ns);
  /* All may be NULL. Now and then; each request of the window's time as it ends; and after each
   * event: TRUE ends the run there, whose window then ends too if it had not. */
  void (*progress)(void *user, const oct_drive_progress *progress);
  void (*outcome)(void *user, guint64 index, const oct_outcome *outcome);
  gboolean (*enough)(void *user);
  void *user;
} oct_drive_config;

/* What a scenario and impatient clients came to, in the whole run. */
typedef struct oct_incidents {
  GArray *events;              /* of oct_incident, owned; NULL = no scenario */
  guint64 retries;             /* requests sent again by their clients */
  guint64 timeouts;            /* attempts that their clients gave up */
  guint64 lost_requests;       /* that were in an engine that was lost … */
  guint64 resumed;             /* … of which so many went on elsewhere, */
  guint64 resumed_tokens;      /* which computed so many tokens of prompt and output again */
  guint64 parked;              /* waited because no replica was up */
  gint64 down_ns;              /* sum over replicas of the time in which they could not serve */
  guint64 pulls, pulled_pages; /* caches handed from prefill to decode replicas */
  /* Of all GPUs: with dynamic power only while arithmetic binds, and whenever a step runs. */
  double energy_low_j, energy_high_j;
} oct_incidents;
typedef struct oct_incident {
  oct_time at_ns;
  char *text;
} oct_incident;

typedef struct oct_drive_result {
  oct_measured measured;
  gboolean closed_loop;
  guint32 concurrency;
  oct_time span_ns;     /* until the last event */
  oct_time load_end_ns; /* when the last request was sent */
  gboolean cut_short;   /* `enough` ended it */
  guint64 sent, ended;  /* of the whole run; accepted ones that ended by themselves */
  guint64 refused;
  char first_refusal[256]; /* why the first one that was not "busy" was refused; "" = none */
  guint64 unsized;         /* requests whose max_tokens nobody stated */
  oct_engine_stats stats;  /* of the whole run, summed over replicas */
  oct_hist *step_hist, *batch_hist; /* owned; whole run */
  json_t *picture;                  /* owned; NULL unless asked for (oct_spans_json()) */
  guint32 page_tokens;
  guint32 n_groups;
  gboolean is_state[OCT_MODEL_GROUPS_MAX];
  /* Little's law on a drained run: time integral of the requests in the engines, and the sum of
   * their residence times, each from its own books. */
  double integral_request_s, residence_sum_s;
  oct_incidents incidents;
  oct_records *records; /* owned; NULL = none were kept */
} oct_drive_result;

/* Runs inside oct_world_run(); the world is borrowed and is of no use for a second run. FALSE with
 * *error: of the trace, the engine's config, or OCT_REPLAY_ERROR_STUCK. */
gboolean oct_drive(oct_world *world, oct_rows *rows, guint32 concurrency,
                   const oct_drive_config *config, oct_drive_result *result,
                   GError **error) G_GNUC_WARN_UNUSED_RESULT;
void oct_drive_result_clear(oct_drive_result *result);

#endif
