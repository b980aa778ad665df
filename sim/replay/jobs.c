#include "sim/replay/jobs.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/assert.h"

#define ANSWER_BYTES_MAX (64u << 20)

typedef struct child {
  guint job;
  pid_t pid;
  int fd;
  GByteArray *answer;
} child;

static gboolean
fail(GError **error, const char *what, const char *why) {
  g_set_error(error, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_CHILD, "%s: %s", what, why);
  return FALSE;
}

/* ---------------------------------------------------------------- the child's side */

static gboolean
write_all(int fd, const char *text, gsize size) {
  while (size > 0) {
    ssize_t n = write(fd, text, size);
    if (n < 0 && errno == EINTR)
      continue;
    if (n <= 0)
      return FALSE;
    text += n;
    size -= (gsize)n;
  }
  return TRUE;
}

static void work(oct_job_fn fn, void *user, guint job, pid_t parent, int fd) G_GNUC_NORETURN;

static void
work(oct_job_fn fn, void *user, guint job, pid_t parent, int fd) {
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent)
    _exit(1);
  g_autoptr(GError) error = NULL;
  json_t *result = fn(user, job, &error);
  json_t *answer = result != NULL ? json_pack("{s:o}", "result", result)
                                  : json_pack("{s:s}", "error", error->message);
  char *text = json_dumps(answer, JSON_COMPACT | JSON_REAL_PRECISION(17));
  gboolean good = text != NULL && write_all(fd, text, strlen(text));
  fflush(NULL);
  _exit(good ? 0 : 1);
}

/* ---------------------------------------------------------------- the parent's side */

static gboolean
start(child *c, guint job, oct_job_fn fn, void *user, GError **error) {
  int ends[2];
  pid_t parent = getpid();
  if (pipe(ends) != 0)
    return fail(error, "pipe", g_strerror(errno));
  fflush(NULL); /* else the child writes what is buffered once more */
  pid_t pid = fork();
  if (pid < 0) {
    int why = errno;
    close(ends[0]);
    close(ends[1]);
    return fail(error, "fork", g_strerror(why));
  }
  if (pid == 0) {
    close(ends[0]);
    work(fn, user, job, parent, ends[1]);
  }
  close(ends[1]);
  *c = (child){job, pid, ends[0], g_byte_array_new()};
  return TRUE;
}

/* Of a lone job the number says nothing; and it may be work of one that is numbered. */
static void
tell_failure(const child *c, gboolean alone, const char *why, GError **error) {
  g_autofree char *name = g_strdup_printf("configuration %u", c->job + 1);
  if (alone)
    g_set_error_literal(error, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_CHILD, why);
  else
    fail(error, name, why);
}

/* What the child said, or how it died. Frees the child. */
static json_t *
finish(child *c, gboolean alone, GError **error) {
  int status = 0;
  while (waitpid(c->pid, &status, 0) < 0 && errno == EINTR)
    ;
  json_t *answer = json_loadb((const char *)c->answer->data, c->answer->len, 0, NULL);
  json_t *result = json_incref(json_object_get(answer, "result"));
  if (result == NULL && answer != NULL) {
    tell_failure(c, alone, json_string_value(json_object_get(answer, "error")), error);
  } else if (result == NULL) {
    g_autofree char *why = WIFSIGNALED(status)
                               ? g_strdup_printf("its process died of signal %d (%s)",
                                                 WTERMSIG(status), g_strsignal(WTERMSIG(status)))
                               : g_strdup_printf("its process ended with status %d and no result",
                                                 WEXITSTATUS(status));
    tell_failure(c, alone, why, error);
  }
  json_decref(answer);
  close(c->fd);
  g_byte_array_unref(c->answer);
  return result;
}

/* Reads what there is; FALSE at the end. */
static gboolean
read_some(child *c) {
  guint8 buffer[65536];
  ssize_t n = read(c->fd, buffer, sizeof buffer);
  if (n < 0)
    return errno == EINTR || errno == EAGAIN;
  if (n == 0 || c->answer->len + (gsize)n > ANSWER_BYTES_MAX)
    return FALSE;
  g_byte_array_append(c->answer, buffer, (guint)n);
  return TRUE;
}

static void
end_children(child *children, guint n) {
  for (guint i = 0; i < n; i++) {
    kill(children[i].pid, SIGKILL);
    while (waitpid(children[i].pid, NULL, 0) < 0 && errno == EINTR)
      ;
    close(children[i].fd);
    g_byte_array_unref(children[i].answer);
  }
}

/* Waits until one of the children has said all; returns which. */
static guint
wait_for_one(child *children, guint n) {
  for (;;) {
    struct pollfd fds[OCT_JOBS_PARALLEL_MAX];
    for (guint i = 0; i < n; i++)
      fds[i] = (struct pollfd){children[i].fd, POLLIN, 0};
    if (poll(fds, n, -1) < 0)
      continue;
    for (guint i = 0; i < n; i++)
      if (fds[i].revents != 0 && !read_some(&children[i]))
        return i;
  }
}

gboolean
oct_jobs_run_picked(guint parallel, guint n, oct_job_pick_fn pick, oct_job_fn fn, void *user,
                    void (*done)(void *user, guint job), json_t **results, GError **error) {
  oct_assert(parallel >= 1 && parallel <= OCT_JOBS_PARALLEL_MAX);
  child children[OCT_JOBS_PARALLEL_MAX];
  guint n_children = 0;
  gboolean good = TRUE;
  memset(results, 0, n * sizeof *results);
  while (good) {
    const guint job = n_children < parallel ? pick(user) : OCT_JOBS_NONE;
    if (job != OCT_JOBS_NONE) {
      oct_assert(job < n && results[job] == NULL);
      good = start(&children[n_children], job, fn, user, error);
      n_children += good;
      continue;
    }
    if (n_children == 0)
      return TRUE;
    guint i = wait_for_one(children, n_children);
    child ended = children[i];
    children[i] = children[--n_children];
    results[ended.job] = finish(&ended, n == 1, error);
    good = results[ended.job] != NULL;
    if (good)
      done(user, ended.job);
  }
  end_children(children, n_children);
  for (guint i = 0; i < n; i++)
    g_clear_pointer(&results[i], json_decref);
  return FALSE;
}

/* ---------------------------------------------------------------- in their order */

typedef struct queue {
  oct_job_fn fn;
  void (*done)(void *user, guint n_done);
  void *user;
  guint n, next, n_done;
} queue;

static guint
pick_next(void *user) {
  queue *q = user;
  return q->next < q->n ? q->next++ : OCT_JOBS_NONE;
}

static json_t *
run_queued(void *user, guint job, GError **error) {
  const queue *q = user;
  return q->fn(q->user, job, error);
}

static void
tell_queued(void *user, guint job) {
  queue *q = user;
  (void)job;
  q->n_done++;
  if (q->done != NULL)
    q->done(q->user, q->n_done);
}

gboolean
oct_jobs_run_at_once(guint parallel, guint n, oct_job_fn fn, void *user,
                     void (*done)(void *user, guint n_done), json_t **results, GError **error) {
  oct_assert(n <= OCT_JOBS_MAX);
  queue q = {.fn = fn, .done = done, .user = user, .n = n};
  return oct_jobs_run_picked(parallel, n, pick_next, run_queued, &q, tell_queued, results, error);
}

gboolean
oct_jobs_run(guint n, oct_job_fn fn, void *user, void (*done)(void *user, guint n_done),
             json_t **results, GError **error) {
  return oct_jobs_run_at_once(OCT_JOBS_PARALLEL, n, fn, user, done, results, error);
}
