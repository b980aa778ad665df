/* A server of the command's own: octet serve in a process that ends with this one, at a Unix socket
 * in a folder of its own.
 *
 * Life: a zeroed one; start; use `socket`, which is there once the server listens; stop, also where
 * it did not start, which removes the folder with what is in it. Errors are those of spawning and
 * of files (G_SPAWN_ERROR, G_FILE_ERROR). One thread.
 */
#ifndef OCT_CLI_LOCAL_SERVER_H
#define OCT_CLI_LOCAL_SERVER_H

#include <glib.h>

typedef struct oct_local_server {
  char *program;               /* octet, for other commands as well; as these owned by the server */
  char *folder, *socket, *log; /* NULL: there is none */
  GPid pid;
} oct_local_server;

/* `program serve ARGS… --uds SOCKET`; program NULL: this one. args: ends with NULL. */
gboolean oct_local_server_start(oct_local_server *server, const char *program,
                                const char *const *args, GError **error) G_GNUC_WARN_UNUSED_RESULT;
gboolean oct_local_server_has_ended(const oct_local_server *server);
/* Its last words, when it has ended by itself; NULL otherwise. Owned. */
char *oct_local_server_last_words(const oct_local_server *server);
/* Asks it to end and waits for that, as long as it takes; all files of its folder are removed.
 * Accepts a zeroed one, and leaves one. */
void oct_local_server_stop(oct_local_server *server);

#endif
