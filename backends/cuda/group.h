/* What the ranks of an instance share: its config, a place to meet, and the first failure. Private
 * to backends/cuda. */
#ifndef OCT_BACKENDS_CUDA_GROUP_H
#define OCT_BACKENDS_CUDA_GROUP_H

#include <pthread.h>

#include "backends/cuda/cuda.h"

typedef struct oct_cuda_group {
  const oct_instance_config *config; /* borrowed */
  const oct_cuda_options *options;   /* borrowed */
  guint32 n_ranks, n_stages, n_domains, n_tensor;
  guint32 n_context;    /* ranks that share a sequence's tokens out */
  guint32 n_gpus;       /* of the machine */
  gboolean joint;       /* experts are whole, over the ranks of all domains */
  gboolean shared_gpus; /* ranks of a tensor group share a GPU; of a stage, when joint */
  pthread_mutex_t lock;
  pthread_cond_t moved;
  guint32 n_waiting;
  guint64 round;
  guint32 n_parted;
  gboolean restless; /* one that has parted does not rest */
  gboolean broken;   /* atomic; then device and message are set */
  guint32 device;    /* of the world; OCT_NO_INDEX = not one of them */
  char message[96];
} oct_cuda_group;

/* Life cycle: of memory that the caller has. */
void oct_cuda_group_init(oct_cuda_group *group, const oct_instance_config *config,
                         const oct_cuda_options *options, guint32 n_gpus);
void oct_cuda_group_clear(oct_cuda_group *group);

/* Waits until all n_ranks are here. FALSE: the group is broken, now or meanwhile. */
gboolean oct_cuda_group_meet(oct_cuda_group *group) G_GNUC_WARN_UNUSED_RESULT;
/* The same among some of the ranks, which have their own meeting. */
typedef struct oct_cuda_meeting {
  guint32 n, n_waiting;
  guint64 round;
} oct_cuda_meeting;
gboolean oct_cuda_group_meet_some(oct_cuda_group *group,
                                  oct_cuda_meeting *meeting) G_GNUC_WARN_UNUSED_RESULT;
/* The last meeting, of a broken group, too: waits until all n_ranks have said whether their GPU
 * rests. TRUE: all do. */
gboolean oct_cuda_group_part(oct_cuda_group *group, gboolean rests) G_GNUC_WARN_UNUSED_RESULT;
/* n ranks have no thread that would part. */
void oct_cuda_group_miss(oct_cuda_group *group, guint32 n);
/* The first failure counts, later ones are its consequences. Any thread. */
void oct_cuda_group_break(oct_cuda_group *group, guint32 device, const char *message);
gboolean oct_cuda_group_is_broken(const oct_cuda_group *group);
/* The GPU (0 … n_gpus - 1) that a device of the world is. */
guint32 oct_cuda_group_gpu(const oct_cuda_group *group, guint32 device);

#endif
