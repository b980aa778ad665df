/* The driver's inside, shared by drive.c (the loop), submit.c (requests in and out), route.c (which
 * replica), incidents.c (scenarios, lost and reopened replicas) and watch.c (what is sampled and
 * written). */
#ifndef OCT_SIM_REPLAY_DRIVE_INTERNAL_H
#define OCT_SIM_REPLAY_DRIVE_INTERNAL_H

#include "engine/base/rng.h"
#include "sim/replay/drive.h"
#include "sim/replay/spans.h"

typedef struct oct_driver oct_driver;

typedef struct oct_replica {
  oct_driver *driver;
  guint32 number;
  oct_engine *engine; /* NULL: no layout fits what is left */
  oct_time wake;
  gboolean dirty; /* had an event or a request since its last turn */
  oct_engine_config config;
  guint16 devices[OCT_NODE_DEVICES_MAX];
  guint32 ranks;     /* it was made for */
  gboolean draining; /* is to be opened again when it is empty */
  oct_time down_ns;  /* since when it cannot serve; -1 = it can */
  guint32 n_exports; /* caches that wait here for a decode replica */
} oct_replica;

/* A request from its hand-over to its end, through all engines and attempts. */
typedef struct oct_live {
  oct_replica *replica;
  oct_feed_entry *entry;
  guint64 index;
  oct_time due_ns;  /* the client wanted it then; all latencies count from it */
  oct_time sent_ns; /* this attempt */
  guint32 input_tokens, true_tokens;
  gint32 priority;
  const char *class_name;
  gboolean in_window;
  /* What an engine is asked for. */
  guint32 max_tokens, oracle_tokens;
  guint64 salt, tenant;
  guint64 *page_ids; /* owned when the request may be sent twice, else borrowed from the driver */
  guint32 n_page_ids;
  gboolean prefill; /* on a prefill replica */
  oct_replica *import_from;
  oct_request_id import_id;
  guint32 attempts; /* of the client, before this one */
  /* What earlier engines have brought, in this attempt. */
  guint32 output, cached, recomputed, preemptions;
  oct_time first_ns, last_ns;
  gint64 queue_ns, gap_ns;
  /* In the list of those that are sent again. */
  oct_time again_ns;
  guint64 order;
} oct_live;

/* Tokens that an engine would have to compute for it before the next one of its output. */
static inline guint64
oct_live_tokens(const oct_live *live) {
  return (guint64)live->input_tokens + live->output;
}

struct oct_driver {
  oct_world *world; /* that the engines are in: a tap, or the one that was given */
  oct_world *given;
  const oct_drive_config *config;
  oct_drive_result *result;
  oct_feed *feed;
  oct_metrics *metrics;
  oct_spans *spans; /* NULL = nobody looks at steps */
  guint32 n_replicas;
  oct_replica replicas[OCT_REPLICAS_MAX];
  oct_rng lengths; /* draws of assume_max_tokens */
  GArray *page_ids;
  oct_time now, next_input;
  gboolean closing, window_ended;
  guint64 n_live, n_live_window; /* in engines; of the window and not ended */
  GSequence *again;              /* oct_live *, by time: sent again, or on to the next engine */
  guint64 again_tokens;          /* sum of their oct_live_tokens() */
  GQueue parked;                 /* oct_live *: no replica is up */
  guint64 next_order;
  gboolean keeps; /* requests may be handed over more than once */
  guint32 next_robin;
  GHashTable *seen_pages; /* prefix router: page id -> replicas that were sent it, as bits */
  guint next_action;
  gboolean trouble; /* an engine may be dead */
  gboolean gone[OCT_NODE_DEVICES_MAX];
  double cap_w[OCT_NODE_DEVICES_MAX]; /* 0 = none */
  gint64 roll_from;                   /* replicas are reopened one after another; -1 = not */
  GPtrArray *retired;                 /* oct_engine *, kept for those that may pull from them */
  oct_engine_stats retired_stats;
  oct_hist *retired_hists[OCT_HIST_COUNT]; /* NULL until an engine has been retired */
  oct_time energy_at;
  oct_engine_stats energy_stats[OCT_REPLICAS_MAX]; /* of each replica, at energy_at */
  guint64 sent, ended, refused, busy, sent_tokens, busy_tokens;
  unsigned __int128 integral, residence; /* request x ns */
  oct_time integral_at;
  oct_time next_row;          /* of the timeline */
  oct_engine_stats row_stats; /* at the previous row */
  guint64 row_sent, row_ended, row_busy;
  GError *error;
};

/* ---- submit.c */
/* Finds out when the next request is due and, if it may, hands over those whose time has come.
 * FALSE: driver->error. */
gboolean oct_driver_take_due(oct_driver *d, gboolean may_send);
void oct_driver_listen(oct_driver *d, oct_replica *replica, oct_listener *listener);

/* Puts a request in the list of those to be handed over at `at`. */
void oct_driver_again(oct_driver *d, oct_live *live, oct_time at);
/* A request that will never be handed over ends for its client. */
void oct_driver_give_up(oct_driver *d, oct_live *live, oct_fate fate);
void oct_live_free(oct_driver *d, oct_live *live);

/* ---- route.c */
/* The replica for a request, NULL when none is up. */
oct_replica *oct_driver_route(oct_driver *d, const oct_live *live);

/* ---- incidents.c */
void oct_incidents_init(oct_driver *d);
void oct_incidents_clear(oct_driver *d);
/* When the next action is due, OCT_TIME_NEVER when none is. */
oct_time oct_incidents_next(const oct_driver *d);
/* Does what is due: actions, if the clock stands at their time, engines that have died, replicas
 * that are empty or up again. FALSE: driver->error. */
gboolean oct_incidents_take(oct_driver *d, gboolean may_act);
/* A fault or a failed opening: an engine may be dead after it. */
void oct_incidents_note(oct_driver *d, const oct_event *event);
/* Whether a replica may still come up, so that a request can wait for it. */
gboolean oct_incidents_may_return(const oct_driver *d);
/* Energy up to now. */
void oct_incidents_count_energy(oct_driver *d);

/* ---- drive.c */
/* Opens the engine of a replica from its config. FALSE: driver->error. */
gboolean oct_driver_open(oct_driver *d, oct_replica *replica);
/* The run cannot go on: says in driver->error what is left, and why an engine is down. FALSE. */
gboolean oct_driver_fail(oct_driver *d);

/* ---- watch.c */
void oct_driver_sum_stats(const oct_driver *d, oct_engine_stats *sum);
/* Counters and histograms of an engine that is about to go. */
void oct_driver_add_retired(oct_driver *d, const oct_engine *engine);
/* Adds what all engines, past ones too, have recorded. */
void oct_driver_merge_hist(const oct_driver *d, oct_engine_hist which, oct_hist *into);
oct_metrics_source oct_driver_source(oct_driver *d);
/* Spans and their tap, where they are asked for. */
void oct_driver_watch_spans(oct_driver *d);
/* Samples and rows due before `now`. */
void oct_driver_watch(oct_driver *d, oct_time now);
oct_time oct_driver_next_watch(const oct_driver *d);
void oct_driver_write_request(oct_driver *d, const oct_live *live, const oct_outcome *outcome,
                              const oct_request_record *record);
void oct_driver_write_timeline_head(oct_driver *d);

#endif
