/* The part of octet calibrate that asks a server: what a request costs beside its steps.
 *
 * Errors are OCT_CALIBRATE_ERROR_WORLD and those of cli/local-server.h. One thread, which waits. */
#ifndef OCT_CLI_CALIBRATE_SERVED_H
#define OCT_CLI_CALIBRATE_SERVED_H

#include <glib.h>

#define OCT_CALIBRATE_REQUEST_TOKENS 1024 /* of the prompts that are sent */

/* Borrowed for the call. */
typedef struct oct_calibrate_server {
  const char *program;         /* octet; NULL: this one */
  const char *model, *backend; /* as octet serve takes them */
  guint gpus;
} oct_calibrate_server;

/* Serves the model with made-up weights at a Unix socket, sends it prompts of token ids one at a
 * time and logs its steps: *seconds becomes the median of the time to the first token without its
 * step: HTTP, checks, queues, how a step gets to an idle device, and the way back. Takes some
 * seconds. FALSE with *error: no server, or no answers. */
gboolean oct_calibrate_request(const oct_calibrate_server *how, double *seconds,
                               GError **error) G_GNUC_WARN_UNUSED_RESULT;

#endif
