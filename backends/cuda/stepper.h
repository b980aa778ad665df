/* One rank's work: opening, and steps from a plan to results. Private to backends/cuda.
 *
 * A step is enqueued in two halves, because a mask may come late: oct_cuda_stepper_begin() has
 * everything up to the logits, oct_cuda_stepper_finish() samples. Neither waits for the device.
 */
#ifndef OCT_BACKENDS_CUDA_STEPPER_H
#define OCT_BACKENDS_CUDA_STEPPER_H

#include "backends/cuda/forward.h"
#include "backends/cuda/plan.h"

typedef struct oct_cuda_stepper oct_cuda_stepper;

/* A step on its device's clock, ns. */
typedef struct oct_cuda_span {
  guint64 begin, end;
} oct_cuda_span;

/* What a step leaves in pinned memory, once its event has come. */
typedef struct oct_cuda_output {
  oct_cuda_span *span;         /* of the last stage; tokens follow it */
  guint32 *tokens;             /* [rows]: sampled, or OCT_REF_NO_TOKEN */
  oct_token_logprob *logprobs; /* [rows, 1 + most_logprobs of the domain] */
  float *pooled;               /* [n_pooled, hidden] */
  guint32 *counts;             /* [layers of the rank, most experts]; NULL: not counted */
  guint32 most_experts;
} oct_cuda_output;

/* Between stages: hidden states to the next one, tokens back to the earlier ones. Shared by the
 * instance's ranks, made before their threads. */
typedef struct oct_cuda_mail oct_cuda_mail;
oct_cuda_mail *oct_cuda_mail_new(oct_cuda_group *group, guint32 ring);
void oct_cuda_mail_free(oct_cuda_mail *mail); /* accepts NULL */
/* The rank sends no more: who waits for what it has not sent goes on without, which fails. */
void oct_cuda_mail_leave(oct_cuda_mail *mail, const oct_cuda_stepper *stepper);

typedef struct oct_cuda_stepper_options {
  oct_cuda_group *group;           /* borrowed, as is what follows */
  guint32 index;                   /* of the rank */
  oct_cuda_circle *const *circles; /* [OCT_CUDA_CIRCLES] */
  oct_cuda_mail *mail;
  const oct_cuda_source *source;
  const oct_cuda_slots_state *slots;
  oct_cuda_stepper *const *steppers; /* of all ranks: for the first of the tensor group */
  guint32 ring;                      /* steps whose buffers are kept apart */
  gboolean (*progress)(void *user, double fraction);
  void *user;
} oct_cuda_stepper_options;

/* Life cycle, on the rank's thread. Memory for the object first, so that others find it; then its
 * content, all ranks together. FALSE: noted. */
oct_cuda_stepper *oct_cuda_stepper_new(const oct_cuda_stepper_options *options);
gboolean oct_cuda_stepper_open(oct_cuda_stepper *stepper) G_GNUC_WARN_UNUSED_RESULT;
/* oct_cuda_rank_rest(), and frees the object as oct_cuda_rank_close() does. */
gboolean oct_cuda_stepper_rest(oct_cuda_stepper *stepper) G_GNUC_WARN_UNUSED_RESULT;
gboolean oct_cuda_stepper_close(oct_cuda_stepper *stepper,
                                gboolean give_back) G_GNUC_WARN_UNUSED_RESULT;

/* Use. `at` is the step's place in the ring. FALSE: noted. */
gboolean oct_cuda_stepper_begin(oct_cuda_stepper *stepper, const oct_cuda_plan *plan, guint32 at);
/* After begin(): waits until the logits are there. */
gboolean oct_cuda_stepper_wait_logits(oct_cuda_stepper *stepper);
/* masks[i]: of slice i of the step, NULL = none. */
gboolean oct_cuda_stepper_finish(oct_cuda_stepper *stepper, const oct_cuda_plan *plan, guint32 at,
                                 const guint64 *const *masks);
/* BESIDE copies, some of those of one ticket. */
typedef struct oct_cuda_beside {
  const oct_copy *copies;
  guint32 n;
  gboolean in;                 /* from the host tier, or from a peer: the stream */
  const oct_cuda_memory *peer; /* whose pages they are; NULL: this rank's */
  guint32 after;    /* place in the ring of the step that ends before; OCT_NO_INDEX: none */
  cudaEvent_t done; /* recorded behind them, or NULL */
} oct_cuda_beside;
gboolean oct_cuda_stepper_copy(oct_cuda_stepper *stepper, const oct_cuda_beside *beside);

/* Any thread: whether the step at `at` of the ring has ended on this rank. FALSE also when that
 * fails, which is noted. */
gboolean oct_cuda_stepper_has_ended(oct_cuda_stepper *stepper, guint32 at);
const oct_cuda_output *oct_cuda_stepper_output(const oct_cuda_stepper *stepper, guint32 at);

/* Inspect. */
oct_cuda_rank *oct_cuda_stepper_rank(oct_cuda_stepper *stepper);
const oct_cuda_memory *oct_cuda_stepper_memory(const oct_cuda_stepper *stepper);
guint32 oct_cuda_stepper_graph_most(const oct_cuda_stepper *stepper); /* batch; 0 = no graphs */
/* What its steps are padded to, with graphs or without. */
const oct_cuda_padding *oct_cuda_stepper_padding(const oct_cuda_stepper *stepper);
/* That the driver has left on the rank's GPU; any thread may ask. */
guint64 oct_cuda_stepper_free_bytes(oct_cuda_stepper *stepper);

#endif
