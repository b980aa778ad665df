#define _GNU_SOURCE /* names of threads */

#include "engine/base/worker.h"

#include <pthread.h>
#include <signal.h>

#include "engine/base/assert.h"
#include "engine/base/error.h"

struct oct_worker {
  pthread_t thread;
  void (*run)(void *arg);
  void *arg;
};

static void *
enter(void *data) {
  oct_worker *worker = data;
  worker->run(worker->arg);
  return NULL;
}

oct_worker *
oct_worker_new(const char *name, void (*run)(void *arg), void *arg, GError **error) {
  oct_worker *worker = g_new0(oct_worker, 1);
  worker->run = run;
  worker->arg = arg;
  /* Signals are the main thread's: a thread inherits what is blocked here. */
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int failed = pthread_create(&worker->thread, NULL, enter, worker);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (failed != 0) {
    g_set_error(error, OCT_BASE_ERROR, OCT_BASE_ERROR_MEMORY, "thread %s: %s", name,
                g_strerror(failed));
    g_free(worker);
    return NULL;
  }
  char shown[16];
  g_strlcpy(shown, name, sizeof shown);
  pthread_setname_np(worker->thread, shown);
  return worker;
}

void
oct_worker_free(oct_worker *worker) {
  if (worker == NULL)
    return;
  oct_assert(pthread_join(worker->thread, NULL) == 0);
  g_free(worker);
}

struct oct_bell {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  gboolean rung;
};

oct_bell *
oct_bell_new(void) {
  oct_bell *bell = g_new0(oct_bell, 1);
  pthread_mutex_init(&bell->lock, NULL);
  pthread_cond_init(&bell->changed, NULL);
  return bell;
}

void
oct_bell_free(oct_bell *bell) {
  if (bell == NULL)
    return;
  pthread_mutex_destroy(&bell->lock);
  pthread_cond_destroy(&bell->changed);
  g_free(bell);
}

void
oct_bell_ring(oct_bell *bell) {
  pthread_mutex_lock(&bell->lock);
  bell->rung = TRUE;
  pthread_cond_signal(&bell->changed);
  pthread_mutex_unlock(&bell->lock);
}

void
oct_bell_wait(oct_bell *bell) {
  pthread_mutex_lock(&bell->lock);
  while (!bell->rung)
    pthread_cond_wait(&bell->changed, &bell->lock);
  bell->rung = FALSE;
  pthread_mutex_unlock(&bell->lock);
}
