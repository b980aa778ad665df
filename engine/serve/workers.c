#include "engine/serve/workers.h"

#include "engine/base/assert.h"

typedef struct oct_job {
  void (*work)(void *user);
  void (*done)(void *user);
  void *user;
} oct_job;

typedef struct oct_text_thread {
  oct_service *service;
  oct_ring *jobs, *results; /* oct_job */
  oct_bell *bell;
  oct_worker *worker;
  atomic_bool quit;
  guint32 n_jobs; /* front's: posted and not done */
} oct_text_thread;

struct oct_workers {
  guint32 n;
  oct_text_thread threads[OCT_WORKERS_MAX];
};

oct_workers *
oct_workers_new(oct_service *service, guint32 n) {
  oct_assert(n >= 1 && n <= OCT_WORKERS_MAX);
  oct_workers *w = g_new0(oct_workers, 1);
  w->n = n;
  for (guint32 i = 0; i < n; i++) {
    oct_text_thread *t = &w->threads[i];
    t->service = service;
    t->jobs = oct_ring_new(OCT_WORKERS_JOBS_MAX, sizeof(oct_job));
    /* As long: there is room for the result of every job that was taken. */
    t->results = oct_ring_new(OCT_WORKERS_JOBS_MAX, sizeof(oct_job));
    t->bell = oct_bell_new();
  }
  return w;
}

static gboolean
work_once(oct_text_thread *t) {
  oct_job job;
  if (!oct_ring_pop(t->jobs, &job))
    return FALSE;
  job.work(job.user);
  oct_assert(oct_ring_push(t->results, &job));
  return TRUE;
}

static void
run(void *data) {
  oct_text_thread *t = data;
  while (!atomic_load(&t->quit)) {
    oct_bell_wait(t->bell);
    while (!atomic_load(&t->quit) && work_once(t))
      oct_service_notify(t->service);
  }
}

gboolean
oct_workers_start(oct_workers *w, GError **error) {
  for (guint32 i = 0; i < w->n; i++) {
    w->threads[i].worker = oct_worker_new("octet-text", run, &w->threads[i], error);
    if (w->threads[i].worker == NULL)
      return FALSE;
  }
  return TRUE;
}

void
oct_workers_stop(oct_workers *w) {
  for (guint32 i = 0; i < w->n; i++) {
    oct_text_thread *t = &w->threads[i];
    atomic_store(&t->quit, TRUE);
    oct_bell_ring(t->bell);
    g_clear_pointer(&t->worker, oct_worker_free);
  }
}

void
oct_workers_drop(oct_workers *w) {
  for (guint32 i = 0; i < w->n; i++) {
    oct_text_thread *t = &w->threads[i];
    oct_assert(t->worker == NULL);
    oct_job job;
    while (oct_ring_pop(t->jobs, &job)) {
      t->n_jobs--;
      job.done(job.user);
    }
  }
}

void
oct_workers_free(oct_workers *w) {
  if (w == NULL)
    return;
  oct_workers_dispatch(w);
  oct_workers_drop(w);
  for (guint32 i = 0; i < w->n; i++) {
    oct_ring_free(w->threads[i].jobs);
    oct_ring_free(w->threads[i].results);
    oct_bell_free(w->threads[i].bell);
  }
  g_free(w);
}

gboolean
oct_workers_post(oct_workers *w, void (*work)(void *user), void (*done)(void *user), void *user,
                 GError **error) {
  oct_text_thread *t = &w->threads[0];
  for (guint32 i = 1; i < w->n; i++)
    if (w->threads[i].n_jobs < t->n_jobs)
      t = &w->threads[i];
  if (t->n_jobs >= OCT_WORKERS_JOBS_MAX) {
    g_set_error(error, OCT_SERVICE_ERROR, OCT_SERVICE_ERROR_BUSY,
                "%u texts wait to be encoded; the queue takes %u", t->n_jobs * w->n,
                OCT_WORKERS_JOBS_MAX * w->n);
    return FALSE;
  }
  t->n_jobs++;
  oct_assert(oct_ring_push(t->jobs, &(oct_job){work, done, user}));
  if (t->worker != NULL)
    oct_bell_ring(t->bell);
  return TRUE;
}

gboolean
oct_workers_dispatch(oct_workers *w) {
  gboolean any = FALSE;
  for (guint32 i = 0; i < w->n; i++) {
    oct_job job;
    while (oct_ring_pop(w->threads[i].results, &job)) {
      w->threads[i].n_jobs--;
      job.done(job.user);
      any = TRUE;
    }
  }
  return any;
}

void
oct_workers_turn(oct_workers *w) {
  for (guint32 i = 0; i < w->n; i++)
    while (work_once(&w->threads[i]))
      continue;
}
