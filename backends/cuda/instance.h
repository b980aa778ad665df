/* One instance of a cuda world: what was submitted and has not been told, and the threads of its
 * ranks. Private to backends/cuda.
 *
 * All fields are guarded by the world's lock, except what a rank's thread works on while a flight
 * is in a state that says so. Every rank's thread takes flights and copies in the order they were
 * submitted; rank 0 makes the plan of each flight, which the others wait for. The world's next()
 * looks at the device's events.
 */
#ifndef OCT_BACKENDS_CUDA_INSTANCE_H
#define OCT_BACKENDS_CUDA_INSTANCE_H

#include "backends/cuda/result.h"

typedef enum oct_cuda_flight_state {
  OCT_CUDA_WAITING,  /* submitted */
  OCT_CUDA_PLANNED,  /* ranks enqueue it */
  OCT_CUDA_SAMPLING, /* every rank that samples waits for masks */
  OCT_CUDA_DONE,     /* its events are to be told */
} oct_cuda_flight_state;

typedef struct oct_cuda_flight {
  oct_cuda_flight_state state;
  guint64 number;
  oct_step *record; /* a copy */
  gsize record_room;
  oct_cuda_plan *plan;
  guint32 n_begun, n_at_masks, n_enqueued; /* ranks */
  oct_time submit_ns, start_ns, enqueued_ns, sampling_ns, mask_ns, end_ns;
  guint32 n_masks, n_missing, next_wanted; /* wanted: the slice to look at next */
  const guint64 **masks;                   /* [slices]; into mask_bits, NULL: none has come */
  guint32 *mask_index;                     /* [slices]; OCT_NO_INDEX: needs none */
  guint64 *mask_bits;                      /* [n_masks, words] */
  gsize slices_room, bits_room;
  GArray *failed; /* guint32: REQUEST faults to tell */
  guint32 next_failed;
  guint8 *result;
  gsize result_room;
} oct_cuda_flight;

typedef struct oct_cuda_transfer {
  guint64 ticket, after; /* after: the last step submitted before it */
  guint32 n, n_started;  /* copies; ranks that have enqueued them */
  oct_copy *copies;
  guint32 peer, peer_domain; /* the instance that is pulled from; 0: none */
  gboolean failed;           /* the peer is gone */
  guint32 n_busy;            /* ranks that are enqueuing copies */
  cudaEvent_t *events;       /* [ranks] */
  oct_time started_ns;
} oct_cuda_transfer;

typedef struct oct_cuda_instance oct_cuda_instance;

/* A rank's thread. */
typedef struct oct_cuda_worker {
  oct_cuda_instance *in;
  guint32 index;
  pthread_t thread;
  gboolean running;
  guint64 number;      /* of the last flight that it enqueued */
  guint64 at_masks;    /* of the last flight that was ready to be sampled when masks were missing */
  guint32 transfers;   /* of in->transfers that it has enqueued */
  guint32 copied;      /* copies of the next one that it has */
  oct_time copying_ns; /* since when it enqueues some; 0: it does not */
} oct_cuda_worker;

struct oct_cuda_instance {
  struct oct_cuda_world *world;
  guint32 id;
  oct_instance_config config;
  guint16 *devices;
  oct_capabilities capabilities;
  oct_cuda_group group;
  oct_cuda_circle *circles[OCT_CUDA_CIRCLES]; /* NULL: none such is needed */
  oct_cuda_mail *mail;
  oct_cuda_source source;
  oct_cuda_slots_state slots;
  oct_cuda_stepper **steppers; /* [ranks] */
  oct_cuda_worker *workers;    /* [ranks] */
  /* Opening. */
  gboolean open, open_told, failed;
  double fraction;
  gboolean progress_due;
  char why[96];
  /* Steps: a ring of depth + 1, so that a told result stays until the next call. */
  oct_cuda_flight *flights;
  guint32 first, n, room;
  guint64 last_number, told_number;
  oct_time free_ns;     /* the latest end of a step */
  guint64 device_ns;    /* the same on the device's clock; 0: none has ended */
  GPtrArray *transfers; /* in order of submission */
  gboolean closing;     /* atomic */
  gboolean lost, fault_due;
  oct_fault fault;
  pthread_t aborter; /* of communicators, once the instance is lost */
  gboolean aborting;
  pthread_cond_t work; /* something for the workers */
};

/* ---- life cycle */
oct_cuda_instance *oct_cuda_instance_new(struct oct_cuda_world *world,
                                         const oct_instance_config *config, guint32 id);
/* FALSE with *error. */
gboolean oct_cuda_instance_start(oct_cuda_instance *in, GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Ends it in whatever state. Not with the lock held. */
void oct_cuda_instance_free(oct_cuda_instance *in);

/* Until what has begun of such pulls has ended, or the deadline, once for all of them: then the
 * instance's memory may be freed. On the world's thread, which alone adds and removes instances and
 * transfers; not with the lock held, which ranks need meanwhile. */
void oct_cuda_instance_await_pulls(struct oct_cuda_world *world, guint32 peer);

/* ---- use; all with the lock held */
oct_cuda_flight *oct_cuda_instance_flight(oct_cuda_instance *in, guint32 i); /* 0 = oldest */
/* A copy of the record goes to the end. There is room. */
void oct_cuda_instance_add_flight(oct_cuda_instance *in, const oct_step *step, oct_time now);
oct_cuda_transfer *oct_cuda_instance_add_transfer(oct_cuda_instance *in, guint64 ticket,
                                                  const oct_copy *copies, guint32 n);
/* Pulls from an instance, which is about to be closed or is lost, fail: none of their copies begins
 * any more. */
void oct_cuda_instance_fail_pulls(struct oct_cuda_world *world, guint32 peer);
/* TRUE: taken or ignored. */
gboolean oct_cuda_instance_mask(oct_cuda_instance *in, guint64 number, guint32 slice,
                                const guint64 *bits, guint32 n_words, oct_time now, GError **error);
/* The oldest flight, which is done, has been told. */
void oct_cuda_instance_pop(oct_cuda_instance *in);
void oct_cuda_instance_drop_transfer(oct_cuda_instance *in, guint32 i);
/* Looks at the devices: flights that have ended become DONE, a broken group a fault. */
void oct_cuda_instance_poll(oct_cuda_instance *in, oct_time now);
gboolean oct_cuda_instance_transfer_is_done(oct_cuda_instance *in, guint32 i, oct_time now);
/* Whether devices are at work whose end only polling tells. */
gboolean oct_cuda_instance_is_busy(const oct_cuda_instance *in);

/* ---- workers (worker.c) */
void *oct_cuda_worker_run(void *worker);

#endif
