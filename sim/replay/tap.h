/* Steps and copies as they pass between engines and their world.
 *
 * A tap is a world that passes every call on to another and notes what is submitted and when it
 * ends. What it tells comes in the order of the ends. Fast-forwarded steps do not pass: whoever
 * wants each step lets the engines forward nothing meanwhile.
 *
 * Memory: what is unfinished. One thread, that of the world's loop.
 */
#ifndef OCT_SIM_REPLAY_TAP_H
#define OCT_SIM_REPLAY_TAP_H

#include "engine/backend.h"

typedef struct oct_tap_step {
  guint32 instance;
  guint64 number;
  oct_time submit_ns, start_ns, end_ns; /* start on the first stage; end on the last */
  guint32 n_slices, n_prefills;         /* sequences, and those of them with prompt tokens */
  guint32 n_tokens, n_prefill_tokens;
  guint32 n_copies; /* that the step itself makes, before and after its kernels */
  gint64 part_ns[OCT_PART_COUNT];
} oct_tap_step;

typedef enum oct_tap_way {
  OCT_TAP_TO_DEVICE,
  OCT_TAP_TO_HOST,
  OCT_TAP_FROM_PEER, /* pulled out of another instance */
  OCT_TAP_EXPERTS,   /* weights of experts to the device */
  OCT_TAP_WAYS
} oct_tap_way;
const char *oct_tap_way_name(oct_tap_way way); /* "to device" …; static */

/* Copies under one ticket, beside the steps. It may have queued behind others before it began. */
typedef struct oct_tap_copy {
  guint32 instance;
  guint64 ticket;
  oct_tap_way way;
  oct_time submit_ns, end_ns;
  guint32 n_items;
  gboolean failed;
} oct_tap_copy;

typedef struct oct_tap_listener {
  void *user;
  void (*step)(void *user, const oct_tap_step *step);
  void (*copy)(void *user, const oct_tap_copy *copy);
} oct_tap_listener;

/* Wraps `inner`, which is borrowed: it outlives the tap and is asked nothing else meanwhile but its
 * accounting. Freed with oct_world_free(). */
oct_world *oct_tap_new(oct_world *inner, const oct_tap_listener *listener);

#endif
