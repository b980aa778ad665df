/* One loop at a time is published under a generation number. Helpers that see a new number take
 * items from a shared counter until it is used up, then report. The caller does the same and waits
 * for the reports. */
#include "backends/cpu/threads.h"

#include <pthread.h>
#include <sched.h>

#include "engine/base/assert.h"

/* Looks at the generation before a helper sleeps, and at the reports before the caller does: some
 * tens of microseconds, which is what a sleep and a wake-up cost. */
#define SPINS 1000

struct oct_team {
  guint32 n_threads;
  pthread_t helpers[OCT_TEAM_THREADS_MAX - 1];
  /* The loop. Written by the caller before the generation, read by helpers after it. */
  oct_team_fn fn;
  void *context;
  guint32 n;
  guint32 generation; /* atomic */
  guint32 next;       /* atomic: the next item to take */
  guint32 busy;       /* atomic: helpers that have not reported */
  gboolean ends;      /* atomic */
  pthread_mutex_t lock;
  pthread_cond_t begun, ended;
};

typedef struct helper {
  oct_team *team;
  guint32 thread;
} helper;

static inline void
pause_a_little(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

static void
take_items(oct_team *t, guint32 thread) {
  for (;;) {
    guint32 item = __atomic_fetch_add(&t->next, 1, __ATOMIC_RELAXED);
    if (item >= t->n)
      return;
    t->fn(t->context, item, thread);
  }
}

/* Waits for a generation other than `seen`; FALSE when the team ends. */
static gboolean
wait_for_loop(oct_team *t, guint32 seen) {
  for (guint i = 0; i < SPINS; i++) {
    if (__atomic_load_n(&t->generation, __ATOMIC_ACQUIRE) != seen)
      return !__atomic_load_n(&t->ends, __ATOMIC_ACQUIRE);
    pause_a_little();
  }
  pthread_mutex_lock(&t->lock);
  while (__atomic_load_n(&t->generation, __ATOMIC_ACQUIRE) == seen)
    pthread_cond_wait(&t->begun, &t->lock);
  pthread_mutex_unlock(&t->lock);
  return !__atomic_load_n(&t->ends, __ATOMIC_ACQUIRE);
}

static void *
help(void *data) {
  helper h = *(helper *)data;
  g_free(data);
  oct_team *t = h.team;
  for (guint32 seen = 0; wait_for_loop(t, seen); seen++) {
    take_items(t, h.thread);
    if (__atomic_sub_fetch(&t->busy, 1, __ATOMIC_ACQ_REL) == 0) {
      pthread_mutex_lock(&t->lock);
      pthread_cond_signal(&t->ended);
      pthread_mutex_unlock(&t->lock);
    }
  }
  return NULL;
}

oct_team *
oct_team_new(guint32 n_threads) {
  oct_assert(n_threads >= 1 && n_threads <= OCT_TEAM_THREADS_MAX);
  oct_team *t = g_new0(oct_team, 1);
  pthread_mutex_init(&t->lock, NULL);
  pthread_cond_init(&t->begun, NULL);
  pthread_cond_init(&t->ended, NULL);
  t->n_threads = 1;
  for (guint32 i = 1; i < n_threads; i++) {
    helper *h = g_new(helper, 1);
    *h = (helper){t, i};
    if (pthread_create(&t->helpers[i - 1], NULL, help, h) != 0) {
      g_free(h);
      break;
    }
    t->n_threads++;
  }
  return t;
}

/* A new generation is seen by those awake at once, and by sleepers through the lock. */
static void
publish(oct_team *t) {
  pthread_mutex_lock(&t->lock);
  __atomic_add_fetch(&t->generation, 1, __ATOMIC_ACQ_REL);
  pthread_cond_broadcast(&t->begun);
  pthread_mutex_unlock(&t->lock);
}

void
oct_team_free(oct_team *t) {
  if (t == NULL)
    return;
  __atomic_store_n(&t->ends, TRUE, __ATOMIC_RELEASE);
  publish(t);
  for (guint32 i = 1; i < t->n_threads; i++)
    pthread_join(t->helpers[i - 1], NULL);
  pthread_mutex_destroy(&t->lock);
  pthread_cond_destroy(&t->begun);
  pthread_cond_destroy(&t->ended);
  g_free(t);
}

void
oct_team_run(oct_team *t, oct_team_fn fn, void *context, guint32 n) {
  if (t->n_threads == 1 || n <= 1) {
    for (guint32 i = 0; i < n; i++)
      fn(context, i, 0);
    return;
  }
  t->fn = fn;
  t->context = context;
  t->n = n;
  __atomic_store_n(&t->next, 0, __ATOMIC_RELAXED);
  __atomic_store_n(&t->busy, t->n_threads - 1, __ATOMIC_RELAXED);
  publish(t);
  take_items(t, 0);
  for (guint i = 0; i < SPINS; i++) {
    if (__atomic_load_n(&t->busy, __ATOMIC_ACQUIRE) == 0)
      return;
    pause_a_little();
  }
  pthread_mutex_lock(&t->lock);
  while (__atomic_load_n(&t->busy, __ATOMIC_ACQUIRE) != 0)
    pthread_cond_wait(&t->ended, &t->lock);
  pthread_mutex_unlock(&t->lock);
}

guint32
oct_team_threads(const oct_team *t) {
  return t->n_threads;
}
