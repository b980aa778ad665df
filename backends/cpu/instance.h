/* One instance of a cpu world: what was submitted and has not been told. Private to backends/cpu.
 *
 * All fields are guarded by the world's lock, except what a thread works on while a flight or
 * transfer is in a state that says so. With a real clock two threads run it: the stepper takes
 * flights in order, the copier transfers. With a virtual one the world's next() does their work.
 */
#ifndef OCT_BACKENDS_CPU_INSTANCE_H
#define OCT_BACKENDS_CPU_INSTANCE_H

#include <pthread.h>

#include "backends/cpu/cpu.h"
#include "backends/cpu/runner.h"

#define OCT_CPU_STAGES 16

typedef enum oct_flight_state {
  OCT_FLIGHT_WAITING,  /* submitted */
  OCT_FLIGHT_RUNNING,  /* the stepper has it */
  OCT_FLIGHT_SAMPLING, /* waits for masks */
  OCT_FLIGHT_DONE,     /* its events are to be told */
} oct_flight_state;

typedef struct oct_cpu_flight {
  oct_flight_state state;
  guint64 number;
  oct_step *record; /* a copy */
  gsize record_room;
  oct_time submit_ns, start_ns, sampling_ns, mask_ns, end_ns;
  guint32 n_masks, n_missing, next_wanted; /* wanted: the slice to look at next */
  const guint64 **masks;                   /* [slices]; into mask_bits, NULL: none has come */
  guint32 *mask_index;                     /* [slices]: OCT_NO_INDEX: needs none */
  guint64 *mask_bits;                      /* [n_masks, words] */
  gsize slices_room, bits_room;
  guint32 n_failed, next_failed; /* REQUEST faults to tell */
  guint32 *failed;
  gsize failed_room;
  const char *reason;
  guint8 *result;
  gsize result_room;
  /* Virtual clock. */
  guint64 feeds_on; /* the latest earlier step whose token it needs */
  gboolean placed, known;
} oct_cpu_flight;

typedef struct oct_cpu_transfer {
  guint64 ticket, after;     /* after: the last step submitted before it */
  guint32 peer, peer_domain; /* pull: where the sources are; 0 = none */
  oct_time submit_ns, end_ns;
  gboolean reading, done, failed; /* reading: the copier is at a peer's memory */
  guint32 n;
  oct_copy *copies;
} oct_cpu_transfer;

typedef struct oct_cpu_instance {
  struct oct_cpu_world *world;
  guint32 id;
  oct_instance_config config;
  char *label;
  oct_capabilities capabilities;
  oct_cpu_model *model;
  oct_cpu_runner *runner;
  /* Opening. */
  gboolean open, open_told, failed;
  double fraction; /* loaded */
  gboolean progress_due;
  char why[96];
  oct_time open_ns; /* virtual */
  /* Steps: a ring of depth + 1, so that a told result stays until the next call. */
  oct_cpu_flight *flights;
  guint32 first, n, room;
  guint64 last_number, done_number;
  GPtrArray *transfers; /* in order of submission */
  gboolean closing;     /* atomic */
  pthread_t stepper, copier;
  gboolean has_stepper, has_copier;
  pthread_cond_t work;                    /* something for the stepper or the copier */
  oct_time stage_free_ns[OCT_CPU_STAGES]; /* virtual */
} oct_cpu_instance;

/* ---- life cycle */
oct_cpu_instance *oct_cpu_instance_new(struct oct_cpu_world *world,
                                       const oct_instance_config *config, guint32 id);
/* Starts the threads of a real clock. FALSE with *error. */
gboolean oct_cpu_instance_start(oct_cpu_instance *in, GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Ends it in whatever state. Not with the lock held. */
void oct_cpu_instance_free(oct_cpu_instance *in);

/* ---- use; all with the lock held, unless it says otherwise */

/* Loads the model and makes the runner: `failed` and `why` tell. Takes the lock now and then. */
void oct_cpu_instance_load(oct_cpu_instance *in);
oct_cpu_flight *oct_cpu_instance_flight(oct_cpu_instance *in, guint32 i); /* 0 = oldest */
/* A copy of the record goes to the end. There is room. */
void oct_cpu_instance_add_flight(oct_cpu_instance *in, const oct_step *step, oct_time now);
void oct_cpu_instance_add_transfer(oct_cpu_instance *in, const oct_cpu_transfer *about,
                                   const oct_copy *copies, guint32 n);
/* TRUE: taken or ignored. */
gboolean oct_cpu_instance_mask(oct_cpu_instance *in, guint64 number, guint32 slice,
                               const guint64 *bits, guint32 n_words, oct_time now, GError **error);
/* The oldest flight, which is done, has been told. */
void oct_cpu_instance_pop(oct_cpu_instance *in);
/* The i-th transfer has been told. */
void oct_cpu_instance_drop_transfer(oct_cpu_instance *in, guint32 i);
/* The halves of a step, without the lock; then the result, with times. */
oct_cpu_outcome oct_cpu_instance_begin(oct_cpu_instance *in, oct_cpu_flight *f, oct_fault *fault);
void oct_cpu_instance_finish(oct_cpu_instance *in, oct_cpu_flight *f);
/* All copies of a transfer; `peer` NULL for copies within the instance. Without the lock. */
void oct_cpu_instance_copy(const oct_cpu_instance *in, const oct_cpu_instance *peer,
                           const oct_cpu_transfer *t);

/* ---- virtual clock */

/* Fills in the times of what can be placed. */
void oct_cpu_instance_place(oct_cpu_instance *in);

#endif
