/* --config FILE: flags in a file, as vLLM reads them from YAML. The part of YAML that flags need is
 * read here, and the rest refused with its line:
 *
 *   # a comment
 *   port: 8000                     a value, plain or in one or two kinds of quotes
 *   enable-log-requests: true      a flag without value; false leaves it out
 *   served-model-name:             a flag that may be repeated
 *     - first
 *     - second
 *
 * Keys are the flags' long names, with '-' or '_' between words. */
#ifndef OCT_CLI_CONFIG_FILE_H
#define OCT_CLI_CONFIG_FILE_H

#include <glib.h>

#define OCT_CONFIG_FILE_BYTES_MAX (1u << 20)

/* Appends "--key=value" or "--key" (owned) to `flags` for all that the file says. `entries` are the
 * flags that there are, their end included; a key that is none of them is refused. FALSE with
 * *error (G_OPTION_ERROR, G_FILE_ERROR), which names file and line. */
gboolean oct_config_file_read(const char *path, const GOptionEntry *entries, GPtrArray *flags,
                              GError **error) G_GNUC_WARN_UNUSED_RESULT;

#endif
