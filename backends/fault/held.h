/* Events that come later than the inner world says, or that it never said. */
#ifndef OCT_BACKENDS_FAULT_HELD_H
#define OCT_BACKENDS_FAULT_HELD_H

#include "engine/backend.h"

typedef struct held_event {
  guint32 instance;
  guint64 order; /* of holding: what is due at one time is told in it */
  oct_time time_ns;
  oct_event event;
  oct_fault fault;
  guint8 *result; /* owned; STEP_DONE */
  gboolean pops;  /* FAULT: a step ends with it */
} held_event;

typedef struct fault_held {
  GPtrArray *events; /* held_event */
  guint64 n_held;    /* so far */
} fault_held;

void fault_held_init(fault_held *held);
void fault_held_clear(fault_held *held);
void fault_held_free(held_event *event); /* of one that was taken out */

/* Holds an event of an instance until time_ns; what it points to is the caller's to fill in. */
held_event *fault_hold(fault_held *held, guint32 id, oct_event_kind kind, guint64 number,
                       oct_time time_ns);
void fault_hold_fault(fault_held *held, guint32 id, oct_severity severity, guint64 number,
                      guint32 slice, gboolean retryable, oct_time time_ns, const char *what);
/* Forgets those of an instance. */
void fault_held_drop(fault_held *held, guint32 id);
/* Index of the one that is due first, or how many there are. */
guint32 fault_held_first(const fault_held *held);

#endif
