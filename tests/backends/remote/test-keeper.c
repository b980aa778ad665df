/* A keeper that cannot fork: what it says, and what comes of it. The linker's --wrap has its calls
 * of fork() come here. */
#include "backends/remote/keeper.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backends/registry.h"
#include "backends/remote/remote.h"

static guint forks_left; /* of this process, and of those that it forks */

pid_t __real_fork(void);
pid_t __wrap_fork(void);

pid_t
__wrap_fork(void) {
  if (forks_left == 0) {
    errno = EAGAIN;
    return -1;
  }
  forks_left--;
  return __real_fork();
}

static int
work(void *arg) {
  (void)arg;
  return 3;
}

/* What the keeper says of a worker that it is to start. */
static keeper_notice
start_one(guint forks) {
  g_autoptr(GError) error = NULL;
  const char order = KEEPER_START;
  keeper_notice notice;
  int front;
  forks_left = forks;
  pid_t keeper = oct_keeper_fork(work, NULL, &front, &error);
  g_assert_no_error(error);
  g_assert_cmpint(write(front, &order, 1), ==, 1);
  g_assert_cmpint(recv(front, &notice, sizeof notice, 0), ==, sizeof notice);
  close(front);
  g_assert_cmpint(waitpid(keeper, NULL, 0), ==, keeper);
  return notice;
}

static void
a_worker_ends_or_is_none(void) {
  keeper_notice notice = start_one(2);
  g_assert_cmpint(notice.failure, ==, 0);
  g_assert_cmpint(notice.worker, >, 0);
  g_assert_true(WIFEXITED(notice.status));
  g_assert_cmpint(WEXITSTATUS(notice.status), ==, 3);
  notice = start_one(1);
  g_assert_cmpint(notice.failure, ==, EAGAIN);
  g_assert_cmpint(notice.worker, ==, 0);
}

static oct_world *
make(void *arg, GError **error) {
  return oct_backend_world_new(arg, error);
}

static void
a_world_says_why_it_has_no_worker(void) {
  static char mock[] = "mock:clock=real";
  const char *who[] = {"remote: keeper: ", "remote: no worker: worker not forked: "};
  oct_remote_options options;
  oct_remote_options_default(&options);
  for (guint forks = 0; forks < 2; forks++) {
    g_autoptr(GError) error = NULL;
    g_autofree char *why = g_strconcat(who[forks], g_strerror(EAGAIN), NULL);
    forks_left = forks;
    g_assert_null(oct_remote_world_new(make, mock, &options, &error));
    g_assert_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_DEVICE);
    g_assert_cmpstr(error->message, ==, why);
  }
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/remote/keeper/a-worker-ends-or-is-none", a_worker_ends_or_is_none);
  g_test_add_func("/remote/keeper/a-world-says-why-it-has-no-worker",
                  a_world_says_why_it_has_no_worker);
  return g_test_run();
}
