/* The worker process: runs the inner world and answers the front through the channel. */
#ifndef OCT_BACKENDS_REMOTE_WORKER_H
#define OCT_BACKENDS_REMOTE_WORKER_H

#include "backends/remote/channel.h"
#include "backends/remote/remote.h"

typedef struct worker_start {
  oct_channel *channel;
  oct_remote_make_fn make;
  void *arg;
  gint64 heartbeat_ns;
  gint64 epoch_ns; /* CLOCK_MONOTONIC of the front's time 0: all times in messages count from it */
} worker_start;

/* Exit status of a worker. */
enum {
  WORKER_STOPPED = 0, /* told to */
  WORKER_FAILED = 3,  /* the inner world could not be made: CHANNEL_FAILED said why */
  WORKER_CORRUPT = 4, /* a request was malformed: a fault said which */
};

/* A worker_start as argument; returns when the worker is to exit. */
int oct_worker_main(void *start);

/* CLOCK_MONOTONIC in ns. */
gint64 oct_worker_now(void);

#endif
