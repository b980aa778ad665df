/* The driver's inside, shared by drive.c (the loop), submit.c (requests in and out) and watch.c
 * (what is sampled and written). */
#ifndef OCT_SIM_REPLAY_DRIVE_INTERNAL_H
#define OCT_SIM_REPLAY_DRIVE_INTERNAL_H

#include "engine/base/rng.h"
#include "sim/replay/drive.h"
#include "sim/replay/spans.h"

typedef struct oct_driver oct_driver;

typedef struct oct_replica {
  oct_driver *driver;
  guint32 number;
  oct_engine *engine;
  oct_time wake;
  gboolean dirty; /* had an event or a request since its last turn */
} oct_replica;

/* A request from its hand-over to its end. */
typedef struct oct_live {
  oct_replica *replica;
  oct_feed_entry *entry;
  guint64 index;
  oct_time due_ns;
  guint32 input_tokens, true_tokens;
  gint32 priority;
  const char *class_name;
  gboolean in_window;
} oct_live;

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
  guint64 n_live, n_live_window;
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

/* ---- drive.c */
/* The run cannot go on: says in driver->error what is left, and why an engine is down. FALSE. */
gboolean oct_driver_fail(oct_driver *d);

/* ---- watch.c */
void oct_driver_sum_stats(const oct_driver *d, oct_engine_stats *sum);
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
