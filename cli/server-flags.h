/* What commands that ask a server have in common: how it is reached, and which model it serves. */
#ifndef OCT_CLI_SERVER_FLAGS_H
#define OCT_CLI_SERVER_FLAGS_H

#include <glib.h>

#include "client/http.h"

#define OCT_SERVER_FLAGS 4

/* Plain data that starts as zero; texts are owned. */
typedef struct oct_server_flags {
  char *model, *api_key, *timeout;
  char **headers;
} oct_server_flags;

void oct_server_flags_clear(oct_server_flags *flags);
/* Writes OCT_SERVER_FLAGS entries; they write into `flags`. */
guint oct_server_flags_entries(oct_server_flags *flags, GOptionEntry *entries);

/* A client for `url`. Without --api-key the key is the environment's OPENAI_API_KEY. NULL with
 * *error: OCT_CLIENT_ERROR, OCT_REPLAY_ERROR. */
oct_client *oct_server_open(const oct_server_flags *flags, const char *url,
                            GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Asks for /v1/models until it is answered or the time has come, and returns --model, or the first
 * model of the answer. Owned. */
char *oct_server_wait(const oct_server_flags *flags, oct_client *client, gint64 until_ns,
                      GError **error) G_GNUC_WARN_UNUSED_RESULT;

#endif
