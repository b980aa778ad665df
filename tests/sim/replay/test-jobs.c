/* Work in child processes. */
#include "sim/replay/jobs.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

typedef struct plan {
  guint bad;
  int how; /* 0 = an error, 1 = killed, 2 = ends without a word */
} plan;

static json_t *
square(void *user, guint index, GError **error) {
  const plan *p = user;
  if (p == NULL || index != p->bad)
    return json_pack("{s:i, s:s}", "square", (int)(index * index), "text", "\"quoted\"\n");
  if (p->how == 0) {
    g_set_error(error, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_OPTION, "the sky is %s", "low");
    return NULL;
  }
  if (p->how == 1)
    kill(getpid(), SIGKILL);
  _exit(3);
}

static guint told;

static void
tell(void *user, guint n_done) {
  (void)user;
  g_assert_cmpuint(n_done, ==, ++told);
}

static void
test_results(void) {
  json_t *results[10];
  g_autoptr(GError) error = NULL;
  told = 0;
  g_assert_true(oct_jobs_run(10, square, NULL, tell, results, &error));
  g_assert_no_error(error);
  g_assert_cmpuint(told, ==, 10);
  for (int i = 0; i < 10; i++) {
    g_assert_cmpint(json_integer_value(json_object_get(results[i], "square")), ==, i * i);
    g_assert_cmpstr(json_string_value(json_object_get(results[i], "text")), ==, "\"quoted\"\n");
    json_decref(results[i]);
  }
}

static void
test_failures(void) {
  static const char *const parts[] = {"the sky is low", "signal 9", "status 3"};
  for (int how = 0; how < 3; how++) {
    plan p = {.bad = 3, .how = how};
    json_t *results[6];
    g_autoptr(GError) error = NULL;
    g_assert_false(oct_jobs_run(6, square, &p, NULL, results, &error));
    g_assert_error(error, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_CHILD);
    g_assert_nonnull(strstr(error->message, "configuration 4"));
    g_assert_nonnull(strstr(error->message, parts[how]));
    for (int i = 0; i < 6; i++)
      g_assert_null(results[i]);
  }
}

static json_t *
square_alone(void *user, guint index, GError **error) {
  json_t *result = NULL;
  (void)index;
  return oct_jobs_run(1, square, user, NULL, &result, error) ? result : NULL;
}

/* Jobs within jobs, as a plan has them, are told with one number. */
static void
test_one_number(void) {
  plan p = {.bad = 0};
  json_t *results[3];
  g_autoptr(GError) error = NULL;
  g_assert_false(oct_jobs_run_at_once(1, 3, square_alone, &p, NULL, results, &error));
  g_assert_error(error, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_CHILD);
  g_assert_cmpstr(error->message, ==, "configuration 1: the sky is low");
}

static json_t *
large(void *user, guint index, GError **error) {
  (void)user;
  (void)index;
  (void)error;
  json_t *list = json_array();
  for (int i = 0; i < 200000; i++)
    json_array_append_new(list, json_integer(i));
  return list;
}

/* More than a pipe holds, from two children at once. */
static void
test_large(void) {
  json_t *results[3];
  g_autoptr(GError) error = NULL;
  g_assert_true(oct_jobs_run(3, large, NULL, NULL, results, &error));
  for (int i = 0; i < 3; i++) {
    g_assert_cmpuint(json_array_size(results[i]), ==, 200000);
    json_decref(results[i]);
  }
}

/* Of five jobs the others wait for the third, whose result they are told. */
typedef struct waiting {
  gboolean taken[5];
  guint n_ended, first_ended, found;
  json_t *results[5];
} waiting;

static guint
pick_waiting(void *user) {
  waiting *w = user;
  for (guint i = 0; i < 5; i++) {
    if (w->taken[i] || (i != 2 && w->results[2] == NULL))
      continue;
    w->taken[i] = TRUE;
    return i;
  }
  return OCT_JOBS_NONE;
}

static json_t *
add_found(void *user, guint index, GError **error) {
  const waiting *w = user;
  (void)error;
  return json_integer((json_int_t)(index == 2 ? 40 : w->found + index));
}

static void
note_waiting(void *user, guint job) {
  waiting *w = user;
  if (w->n_ended++ == 0)
    w->first_ended = job;
  if (job == 2)
    w->found = (guint)json_integer_value(w->results[2]);
}

static void
test_waits(void) {
  for (guint parallel = 1; parallel <= 3; parallel++) {
    waiting w = {0};
    g_autoptr(GError) error = NULL;
    g_assert_true(oct_jobs_run_picked(parallel, 5, pick_waiting, add_found, &w, note_waiting,
                                      w.results, &error));
    g_assert_no_error(error);
    g_assert_cmpuint(w.n_ended, ==, 5);
    g_assert_cmpuint(w.first_ended, ==, 2);
    for (guint i = 0; i < 5; i++) {
      g_assert_cmpint(json_integer_value(w.results[i]), ==, i == 2 ? 40 : 40 + i);
      json_decref(w.results[i]);
    }
  }
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/replay/jobs/results-come-by-number", test_results);
  g_test_add_func("/replay/jobs/a-childs-failure-is-told", test_failures);
  g_test_add_func("/replay/jobs/a-failure-within-a-job-has-one-number", test_one_number);
  g_test_add_func("/replay/jobs/one-begins-when-what-it-waits-for-has-ended", test_waits);
  g_test_add_func("/replay/jobs/large-results-come-whole", test_large);
  return g_test_run();
}
