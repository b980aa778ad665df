/* The figures of a replay, kept in memory that does not grow with it.
 *
 * What is measured is what arrived in a window [from, end) of virtual time. Where the window begins
 * is known only afterwards (five mean residence times), so requests are collected by arrival in up
 * to 32 batches of equal length, each with its histograms, whose length doubles when they run out;
 * the window begins at a batch's border. Counters of the engine (tokens, steps, gaps between
 * tokens) are copied at each border, so that any window is a difference of two copies. Gauges are
 * sampled 16 times a batch. With `detail` there are kept beside them what every resource has moved
 * at each sample, and a uniform sample of the answered requests: those whose indices have the
 * smallest hashes, so that runs of one trace keep the same ones.
 *
 * One thread.
 */
#ifndef OCT_SIM_REPLAY_METRICS_H
#define OCT_SIM_REPLAY_METRICS_H

#include "engine/base/hist.h"
#include "engine/sched/engine.h"
#include "sim/replay/slo.h"
#include "sim/replay/trend.h"

#define OCT_METRICS_BATCHES_MAX   32
#define OCT_METRICS_SAMPLES       16 /* of a batch */
#define OCT_METRICS_SAMPLES_MAX   (OCT_METRICS_BATCHES_MAX * OCT_METRICS_SAMPLES)
#define OCT_METRICS_SAMPLE_NS     10000000 /* distance of the first samples */
#define OCT_METRICS_RESOURCES_MAX 256
/* A run is long enough for "stable" when so many mean residence times fit into the window, or,
 * where the warm-up is chosen by rule, into half of the run. What begins empty fills up for about
 * so long, and serves more than it can keep up: with warm-ups of a quarter, llama-3.1-8b on one
 * H200, which serves 10.1 sessions of chat-150 a second, had no growing backlog at 14/s in windows
 * of 1.4, at 11.3/s of 3.8 and at 10.8/s of 4.6 residence times, and had one at 10.8/s from 5.3 on.
 */
#define OCT_METRICS_RESIDENCES 5
#define OCT_METRICS_REQUESTS_MAX                                                                   \
  4096 /* kept with `detail`: 64 bytes each, twice as many at times */

/* How one request ended for its client. */
typedef enum oct_fate {
  OCT_FATE_ANSWERED,
  OCT_FATE_BUSY,    /* refused: the queue was full */
  OCT_FATE_REFUSED, /* refused for another reason: too long, instance down */
  OCT_FATE_FAILED,  /* failed or timed out after it was accepted */
  OCT_FATE_COUNT
} oct_fate;
const char *oct_fate_name(oct_fate fate); /* static */

typedef struct oct_outcome {
  oct_fate fate;
  guint64 index;                       /* of the request in its trace */
  oct_time arrival_ns;                 /* intended; closed loop and dependent turns: sent */
  gint64 value_ns[OCT_LATENCY_COUNT];  /* -1 = none; ITL: the longest decode gap */
  guint32 input_tokens, output_tokens; /* output: received */
  gboolean cut;                        /* max_tokens or the context ended it before its true end */
} oct_outcome;

/* Counters since the start of the run, over all replicas. */
typedef struct oct_counters {
  oct_time time_ns;
  guint64 sent, ended, busy; /* requests handed over (refused ones too); ended for their client */
  guint64 sent_tokens, busy_tokens; /* their prompt tokens */
  oct_engine_stats stats;
  oct_hist *hists[OCT_HIST_COUNT]; /* owned */
  guint n_resources;
  double *moved;      /* [n_resources], owned: as oct_simgrid_use.moved */
  gint64 *delayed_ns; /* likewise */
} oct_counters;
void oct_counters_clear(oct_counters *counters);

typedef struct oct_gauges {
  oct_time time_ns;
  guint32 running, waiting;
  double
      backlog_tokens; /* to be computed for requests that are in, and for those refused as busy */
  /* Shares of the device's pages and state slots, 0..1; of several page groups the fullest. */
  float kv_used, kv_cached, state_used, state_cached, host_used;
} oct_gauges;

/* Who knows counters and gauges. */
typedef struct oct_metrics_source {
  void *user;
  void (*sample)(void *user, oct_gauges *sample);       /* all but time_ns */
  void (*counters)(void *user, oct_counters *counters); /* fills a zeroed struct, all but time_ns */
  /* What each resource has moved, into [OCT_METRICS_RESOURCES_MAX]; how many there are. NULL = 0.
   */
  guint (*moved)(void *user, double *moved);
} oct_metrics_source;

typedef struct oct_metrics_options {
  oct_time warmup_ns; /* where the window begins; -1 = by rule */
  oct_time sample_ns; /* distance of the first samples; 0 = OCT_METRICS_SAMPLE_NS */
  oct_slo slo;
  gboolean detail;
  oct_metrics_source source;
} oct_metrics_options;

/* A request that was kept whole. */
typedef struct oct_kept_request {
  guint64 hash, index;
  oct_time arrival_ns;
  guint32 input_tokens, output_tokens;
  gint64 value_ns[OCT_LATENCY_COUNT]; /* as in oct_outcome */
} oct_kept_request;

/* What arrived in a batch's time, and the gaps between tokens in it. Times -1 = none. */
typedef struct oct_batch_summary {
  oct_time from_ns, end_ns;
  guint64 answered;
  gint64 ttft_p50_ns, ttft_p99_ns, tpot_p50_ns, tpot_p99_ns, itl_p50_ns, itl_p99_ns;
} oct_batch_summary;

typedef struct oct_metrics oct_metrics;

/* ---- life cycle */
oct_metrics *oct_metrics_new(const oct_metrics_options *options);
void oct_metrics_free(oct_metrics *metrics); /* accepts NULL */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(oct_metrics, oct_metrics_free)

/* ---- use */
/* When the next sample is due. */
oct_time oct_metrics_next_sample(const oct_metrics *metrics);
/* Takes every sample that is due before `now`: nothing has changed since the last event. */
void oct_metrics_advance(oct_metrics *metrics, oct_time now);
void oct_metrics_add(oct_metrics *metrics, const oct_outcome *outcome);
/* The window ends here: counters are copied. Once; samples go on. */
void oct_metrics_end_window(oct_metrics *metrics, oct_time now);
/* It ends here after all, later. */
void oct_metrics_extend_window(oct_metrics *metrics, oct_time now);

/* ---- what came of it */

typedef struct oct_measured {
  oct_time from_ns, end_ns;
  gboolean warmup_given;
  gboolean extended; /* to the end of the run: the load was sent within one residence time */
  /* For "stable" (OCT_METRICS_RESIDENCES). By rule the warm-up would be more than half of the run:
   * 10 % were taken. */
  gboolean too_short;
  double residence_mean_s;
  guint64 requests; /* arrived in the window */
  guint64 fates[OCT_FATE_COUNT];
  guint64 good; /* answered within the limits of each request */
  guint64 cut;
  guint64 input_tokens, output_tokens;  /* of answered ones */
  oct_hist *latency[OCT_LATENCY_COUNT]; /* owned; ITL: of all tokens in the window's time */
  oct_hist *longest_gap;                /* owned; one a request with two tokens or more */
  oct_counters at_from, at_end;         /* borders of the window */
  oct_hist *steps[OCT_HIST_COUNT];      /* owned: the engine's histograms of the window's time */
  guint first_sample, end_sample, n_samples; /* of the window, and of the run */
  oct_gauges samples[OCT_METRICS_SAMPLES_MAX];
  guint n_batches;
  oct_batch_summary batches[OCT_METRICS_BATCHES_MAX]; /* of the run */
  /* With `detail`. moved[n_samples x n_moved], owned, since the start; requests[n_kept] that
   * arrived in the window, by index, owned, out of all that were answered in it. */
  guint n_moved;
  double *moved;
  guint n_kept;
  oct_kept_request *kept;
  oct_trend backlog; /* of backlog_tokens in the window */
  oct_verdict verdict;
} oct_measured;

/* After oct_metrics_end_window(). */
void oct_metrics_measure(const oct_metrics *metrics, oct_measured *measured);
/* Of a second view of the same requests, added with the same arrivals and windows: measured over
 * the window of `leader`. */
void oct_metrics_measure_beside(const oct_metrics *metrics, const oct_metrics *leader,
                                oct_measured *measured);
void oct_measured_clear(oct_measured *measured);

/* Everything that hists a and b, of one growing histogram, differ in: b - a. Owned. */
oct_hist *oct_hist_difference(const oct_hist *a, const oct_hist *b);

#endif
