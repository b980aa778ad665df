#include "cli/local-server.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <glib/gstdio.h>

/* Ends with this process, and does not hear the terminal's Ctrl-C. */
static void
before_serving(gpointer unused) {
  (void)unused;
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  setpgid(0, 0);
}

gboolean
oct_local_server_start(oct_local_server *s, const char *program, const char *const *args,
                       GError **error) {
  s->program = program != NULL ? g_strdup(program) : g_file_read_link("/proc/self/exe", error);
  if (s->program == NULL || (s->folder = g_dir_make_tmp("octet-XXXXXX", error)) == NULL)
    return FALSE;
  s->socket = g_build_filename(s->folder, "socket", NULL);
  s->log = g_build_filename(s->folder, "log", NULL);
  int log = open(s->log, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  if (log < 0) {
    g_set_error(error, G_FILE_ERROR, (gint)g_file_error_from_errno(errno), "%s: %s", s->log,
                g_strerror(errno));
    return FALSE;
  }
  g_autoptr(GPtrArray) argv = g_ptr_array_new();
  g_ptr_array_add(argv, s->program);
  g_ptr_array_add(argv, (char *)"serve");
  for (guint i = 0; args[i] != NULL; i++)
    g_ptr_array_add(argv, (char *)args[i]);
  g_ptr_array_add(argv, (char *)"--uds");
  g_ptr_array_add(argv, s->socket);
  g_ptr_array_add(argv, NULL);
  gboolean good =
      g_spawn_async_with_fds(NULL, (char **)argv->pdata, NULL, G_SPAWN_DO_NOT_REAP_CHILD,
                             before_serving, NULL, &s->pid, -1, log, log, error);
  close(log);
  return good;
}

gboolean
oct_local_server_has_ended(const oct_local_server *s) {
  siginfo_t info = {0};
  return s->pid > 0 && waitid(P_PID, (id_t)s->pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid == s->pid;
}

char *
oct_local_server_last_words(const oct_local_server *s) {
  g_autofree char *text = NULL;
  if (!oct_local_server_has_ended(s) || !g_file_get_contents(s->log, &text, NULL, NULL))
    return NULL;
  g_auto(GStrv) lines = g_strsplit(g_strchomp(text), "\n", -1);
  const char *last = "";
  for (char **line = lines; *line != NULL; line++)
    if (!g_str_has_prefix(*line, "Try '"))
      last = *line;
  return g_strdup(last);
}

void
oct_local_server_stop(oct_local_server *s) {
  if (s->pid > 0) {
    kill(s->pid, SIGTERM);
    waitpid(s->pid, NULL, 0);
    g_spawn_close_pid(s->pid);
  }
  GDir *folder = s->folder != NULL ? g_dir_open(s->folder, 0, NULL) : NULL;
  for (const char *name; folder != NULL && (name = g_dir_read_name(folder)) != NULL;) {
    g_autofree char *path = g_build_filename(s->folder, name, NULL);
    (void)g_unlink(path);
  }
  if (folder != NULL) {
    g_dir_close(folder);
    (void)g_rmdir(s->folder);
  }
  g_free(s->program);
  g_free(s->folder);
  g_free(s->socket);
  g_free(s->log);
  *s = (oct_local_server){0};
}
