/* The fault backend: wraps any world and makes it go wrong, by seed or by script.
 *
 * Whether and how a step, a copy or an opening goes wrong is a function of (seed, instance, its
 * number) alone, so that a run can be repeated, and is the same stepped and fast-forwarded. A
 * script names single faults in place of, or beside, those by chance.
 *
 * Steps that fail are not handed to the inner world, which therefore counts its own numbers. Copies
 * and pages of a failed step are as they were before it.
 */
#ifndef OCT_BACKENDS_FAULT_H
#define OCT_BACKENDS_FAULT_H

#include "engine/backend.h"

#define OCT_INJECT_SCRIPT_MAX 64

typedef enum oct_inject {
  /* Steps. */
  OCT_INJECT_REQUEST,    /* one slice fails, the step goes on */
  OCT_INJECT_STEP,       /* the step fails and may be run again */
  OCT_INJECT_STEP_FINAL, /* the step fails and running it again will not work */
  OCT_INJECT_INSTANCE,   /* the instance is lost, at once or when the step should end */
  OCT_INJECT_DEVICE,     /* the same, naming the device */
  OCT_INJECT_FATAL,      /* the world is lost */
  OCT_INJECT_DELAY,      /* the step's end comes delay_ns late */
  OCT_INJECT_LATE,       /* late_ns late: long after the engine has given up on it */
  OCT_INJECT_HANG,       /* the step never ends, nor does one after it */
  OCT_INJECT_NUMBER,     /* a STEP_DONE comes for a step that was never submitted */
  OCT_INJECT_FULL,       /* submit() answers FULL once although there is room; only while a step is
                            unfinished */
  /* Copies, numbered 1, 2, 3 … per instance in order of oct_world_copy() and oct_world_pull(). */
  OCT_INJECT_COPY,      /* the copy fails */
  OCT_INJECT_COPY_LATE, /* its event comes late_ns late */
  OCT_INJECT_TICKET,    /* a COPY_DONE comes for a ticket that was never given */
  /* Openings, numbered 1, 2, 3 … per world. */
  OCT_INJECT_OPEN, /* opening fails after delay_ns */
  OCT_INJECT_COUNT
} oct_inject;

#define OCT_INJECT_ALL_STEPS                                                                       \
  ((1u << OCT_INJECT_COPY) - 1) /* mask of what happens to steps; the rest: copies and openings */

/* "request", "step-final" …; static. */
const char *oct_inject_name(oct_inject kind);
/* OCT_INJECT_COUNT when there is no such kind. */
oct_inject oct_inject_from_name(const char *name);

typedef struct oct_inject_line {
  oct_inject kind;
  guint32 instance; /* 0 = any */
  guint64 at;       /* number of the step, copy or opening */
} oct_inject_line;

typedef struct oct_fault_options {
  guint64 seed;
  double rate;   /* chance of each step, copy and opening to go wrong */
  guint32 kinds; /* mask of 1u << oct_inject: what may happen by chance */
  guint32 n_script;
  oct_inject_line script[OCT_INJECT_SCRIPT_MAX];
  gint64 delay_ns; /* DELAY, and from submission until a failing step or copy fails */
  gint64 late_ns;  /* LATE */
} oct_fault_options;

/* Nothing goes wrong; delay 1 ms, late 10 s. */
void oct_fault_options_default(oct_fault_options *options);

/* Takes the inner world, also when it fails. NULL with *error (CONFIG). */
oct_world *oct_fault_world_new(oct_world *inner, const oct_fault_options *options,
                               GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Inspect: how often each kind was injected so far. */
guint64 oct_fault_world_count(const oct_world *world, oct_inject kind);

#endif
