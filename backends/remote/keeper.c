#include "backends/remote/keeper.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/backend.h"

typedef struct keeper {
  int (*worker)(void *arg);
  void *arg;
  int socket, children; /* children: signalfd of SIGCHLD */
  pid_t child;          /* 0 = none */
} keeper;

/* What ends the front in a terminal or by a supervisor must not end the worker first: the front
 * drains its streams through it. */
static void
ignore_signals(void) {
  struct sigaction ignore = {.sa_handler = SIG_IGN};
  sigaction(SIGINT, &ignore, NULL);
  sigaction(SIGTERM, &ignore, NULL);
  sigaction(SIGHUP, &ignore, NULL);
  sigaction(SIGPIPE, &ignore, NULL);
}

static void
start_worker(keeper *k) {
  pid_t self = getpid();
  fflush(NULL);
  pid_t pid = fork();
  const int failure = errno;
  if (pid == 0) {
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    close(k->socket);
    close(k->children);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != self)
      _exit(1); /* the keeper ended before it could be asked to take us along */
    prctl(PR_SET_NAME, "octet-worker");
    _exit(k->worker(k->arg));
  }
  k->child = MAX(pid, 0);
  if (pid < 0) {
    keeper_notice notice = {.failure = failure};
    (void)!write(k->socket, &notice, sizeof notice);
  }
}

static void
reap(keeper *k) {
  struct signalfd_siginfo info;
  (void)!read(k->children, &info, sizeof info);
  keeper_notice notice = {.failure = 0};
  while ((notice.worker = waitpid(-1, &notice.status, WNOHANG)) > 0) {
    if (notice.worker == k->child)
      k->child = 0;
    (void)!write(k->socket, &notice, sizeof notice);
  }
}

static void
keep(keeper *k) {
  for (;;) {
    struct pollfd p[2] = {{.fd = k->socket, .events = POLLIN},
                          {.fd = k->children, .events = POLLIN}};
    if (poll(p, 2, -1) < 0 && errno != EINTR)
      return;
    if ((p[1].revents & POLLIN) != 0)
      reap(k);
    if (p[0].revents == 0)
      continue;
    char order;
    ssize_t n = read(k->socket, &order, 1);
    if (n < 0 && errno == EINTR)
      continue;
    if (n <= 0 || order == KEEPER_QUIT)
      return; /* the front is gone, or wants us gone */
    if (order == KEEPER_START && k->child == 0)
      start_worker(k);
    if (order == KEEPER_KILL && k->child > 0)
      kill(k->child, SIGKILL);
  }
}

pid_t
oct_keeper_fork(int (*worker)(void *arg), void *arg, int *front, GError **error) {
  int pair[2];
  fflush(NULL);
  gboolean made = socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0;
  pid_t pid = made ? fork() : -1;
  if (pid < 0) {
    g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_DEVICE, "remote: keeper: %s",
                g_strerror(errno));
    if (made) {
      close(pair[0]);
      close(pair[1]);
    }
    return -1;
  }
  if (pid > 0) {
    close(pair[1]);
    *front = pair[0];
    return pid;
  }
  close(pair[0]);
  setsid();
  ignore_signals();
  prctl(PR_SET_NAME, "octet-keeper");
  keeper k = {.worker = worker, .arg = arg, .socket = pair[1]};
  sigset_t child;
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  sigprocmask(SIG_BLOCK, &child, NULL);
  k.children = signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
  if (k.children >= 0)
    keep(&k);
  if (k.child > 0) {
    kill(k.child, SIGKILL);
    waitpid(k.child, NULL, 0);
  }
  _exit(0);
}
