#include "backends/cuda/group.h"

#include <string.h>

guint32
oct_cuda_group_gpu(const oct_cuda_group *g, guint32 device) {
  return device % g->n_gpus;
}

/* Whether two ranks that meet are on one GPU: NCCL and kernels that wait for each other cannot
 * serve them. */
static gboolean
share_gpus(const oct_cuda_group *g) {
  guint32 n = g->n_tensor * (g->joint ? g->n_domains : 1);
  for (guint32 first = 0; first < g->n_ranks; first += n)
    for (guint32 a = first; a < first + n; a++)
      for (guint32 b = first; b < a; b++)
        if (oct_cuda_group_gpu(g, g->config->devices[a]) ==
            oct_cuda_group_gpu(g, g->config->devices[b]))
          return TRUE;
  return FALSE;
}

void
oct_cuda_group_init(oct_cuda_group *g, const oct_instance_config *config,
                    const oct_cuda_options *options, guint32 n_gpus) {
  memset(g, 0, sizeof *g);
  g->config = config;
  g->options = options;
  g->n_ranks = oct_parallel_world(&config->parallel);
  g->n_stages = config->parallel.pipeline;
  g->n_domains = config->parallel.data;
  g->n_tensor = config->parallel.tensor;
  g->n_context = config->parallel.decode_context;
  g->n_gpus = n_gpus;
  g->joint = config->parallel.expert_parallel && g->n_domains > 1;
  g->shared_gpus = share_gpus(g);
  g->device = OCT_NO_INDEX;
  pthread_mutex_init(&g->lock, NULL);
  pthread_cond_init(&g->moved, NULL);
}

void
oct_cuda_group_clear(oct_cuda_group *g) {
  pthread_mutex_destroy(&g->lock);
  pthread_cond_destroy(&g->moved);
}

gboolean
oct_cuda_group_is_broken(const oct_cuda_group *g) {
  return __atomic_load_n(&g->broken, __ATOMIC_ACQUIRE);
}

static gboolean
meet(oct_cuda_group *g, guint32 n, guint32 *n_waiting, guint64 *round) {
  pthread_mutex_lock(&g->lock);
  guint64 mine = *round;
  if (++*n_waiting == n) {
    *n_waiting = 0;
    ++*round;
    pthread_cond_broadcast(&g->moved);
  }
  while (*round == mine && !g->broken)
    pthread_cond_wait(&g->moved, &g->lock);
  gboolean fine = !g->broken;
  pthread_mutex_unlock(&g->lock);
  return fine;
}

gboolean
oct_cuda_group_meet(oct_cuda_group *g) {
  return meet(g, g->n_ranks, &g->n_waiting, &g->round);
}

gboolean
oct_cuda_group_meet_some(oct_cuda_group *g, oct_cuda_meeting *m) {
  return meet(g, m->n, &m->n_waiting, &m->round);
}

gboolean
oct_cuda_group_part(oct_cuda_group *g, gboolean rests) {
  pthread_mutex_lock(&g->lock);
  g->n_parted++;
  g->restless |= !rests;
  pthread_cond_broadcast(&g->moved);
  while (g->n_parted < g->n_ranks)
    pthread_cond_wait(&g->moved, &g->lock);
  gboolean all = !g->restless;
  pthread_mutex_unlock(&g->lock);
  return all;
}

void
oct_cuda_group_miss(oct_cuda_group *g, guint32 n) {
  pthread_mutex_lock(&g->lock);
  g->n_parted += n;
  pthread_cond_broadcast(&g->moved);
  pthread_mutex_unlock(&g->lock);
}

void
oct_cuda_group_break(oct_cuda_group *g, guint32 device, const char *message) {
  pthread_mutex_lock(&g->lock);
  if (!g->broken) {
    g->device = device;
    g_strlcpy(g->message, message, sizeof g->message);
    __atomic_store_n(&g->broken, TRUE, __ATOMIC_RELEASE);
  }
  pthread_cond_broadcast(&g->moved);
  pthread_mutex_unlock(&g->lock);
}
