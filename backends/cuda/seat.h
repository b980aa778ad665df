/* A rank's seat in an NCCL communicator. Its thread joins and makes the calls; any other may abort
 * it, at any time, for who waits for a lost rank waits for ever. Aborting frees what calls use. So
 * each call into NCCL is made under the lock that aborting takes, and none after it. A seat is
 * known to be taken before its joining has ended: that is aborted as well. Private to
 * backends/cuda.
 */
#ifndef OCT_BACKENDS_CUDA_SEAT_H
#define OCT_BACKENDS_CUDA_SEAT_H

#include "backends/cuda/libraries.h"
#include "backends/cuda/rank.h"

typedef struct oct_cuda_seat {
  pthread_mutex_t lock;
  const oct_nccl *nccl;
  guint32 n;       /* of the communicator */
  ncclComm_t comm; /* NULL: not taken, or aborted */
  gboolean aborted;
} oct_cuda_seat;

/* Life cycle: of memory that the caller has. */
void oct_cuda_seat_init(oct_cuda_seat *seat);
void oct_cuda_seat_clear(oct_cuda_seat *seat); /* aborts it */

/* Any thread; a second time does nothing. Blocking, for NCCL may wait for the device. */
void oct_cuda_seat_abort(oct_cuda_seat *seat);

/* On the rank's thread. FALSE: it failed, took longer than the deadline, the group is broken, or
 * the seat was aborted; the rank has failed, and the first of the group's failures is noted. Place
 * `member` of n, all of which have the id. */
gboolean oct_cuda_seat_join(oct_cuda_seat *seat, oct_cuda_rank *rank, const oct_nccl *nccl,
                            const ncclUniqueId *id, guint32 n,
                            guint32 member) G_GNUC_WARN_UNUSED_RESULT;

typedef enum oct_cuda_meet_kind {
  OCT_CUDA_MEET_SUM,          /* out[count]: sums; may be x */
  OCT_CUDA_MEET_GATHER,       /* out[n, count]: everybody's x[count] */
  OCT_CUDA_MEET_SCATTER_SUMS, /* out[count]: of x[n, count] the sums of the own row */
  OCT_CUDA_MEET_EXCHANGE /* of bytes: out[n, count] has what all have for here in x[n, count] */
} oct_cuda_meet_kind;

typedef struct oct_cuda_meet {
  oct_cuda_meet_kind kind;
  ncclDataType_t type;
  gsize count; /* of elements */
  const void *x;
  void *out;
  const char *what; /* for messages */
} oct_cuda_meet;

/* Enqueued on the rank's compute stream, by its thread; arrays are device memory. FALSE: as above.
 */
gboolean oct_cuda_seat_meet(oct_cuda_seat *seat, oct_cuda_rank *rank,
                            const oct_cuda_meet *meet) G_GNUC_WARN_UNUSED_RESULT;

#endif
