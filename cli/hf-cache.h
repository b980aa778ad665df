/* Models that Hugging Face's tools have downloaded: "org/name" to the folder that holds its files.
 * Nothing is fetched: what is not there is an error that says where it was looked for.
 *
 *   HUB/models--org--name/refs/REVISION          names a commit
 *   HUB/models--org--name/snapshots/COMMIT/      the files
 *
 * HUB is $HF_HUB_CACHE, else $HF_HOME/hub, else $XDG_CACHE_HOME or ~/.cache + /huggingface/hub. */
#ifndef OCT_CLI_HF_CACHE_H
#define OCT_CLI_HF_CACHE_H

#include <glib.h>

/* Whether it may be an id: "name" or "org/name" of letters, digits, '-', '_' and '.', none of them
 * made of dots. */
gboolean oct_hf_is_id(const char *name);

/* The folder HUB. Owned. */
char *oct_hf_hub(void);

/* The snapshot of `revision` (NULL: "main"; a branch, a tag or a commit) of `id` in `hub`. Owned.
 * NULL with *error (G_FILE_ERROR): each place that was looked at, or a name that cannot be. */
char *oct_hf_find(const char *hub, const char *id, const char *revision,
                  GError **error) G_GNUC_WARN_UNUSED_RESULT;

#endif
