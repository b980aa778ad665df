#include "tests/backends/simgrid/child.h"

#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

void
child_run(void (*body)(gpointer arg, gpointer out), gpointer arg, gpointer out, gsize out_size) {
  gsize room = MAX(out_size, 1);
  void *shared = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  g_assert_true(shared != MAP_FAILED);
  fflush(NULL);
  pid_t pid = fork();
  g_assert_cmpint(pid, >=, 0);
  if (pid == 0) {
    body(arg, shared);
    fflush(NULL);
    _exit(0);
  }
  int status;
  g_assert_cmpint(waitpid(pid, &status, 0), ==, pid);
  if (out_size > 0)
    memcpy(out, shared, out_size);
  munmap(shared, room);
  g_assert_true(WIFEXITED(status));
  g_assert_cmpint(WEXITSTATUS(status), ==, 0);
}
