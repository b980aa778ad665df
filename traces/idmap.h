/* A map from 64-bit ids to 64-bit numbers: sessions to their last request, blocks to "seen".
 *
 * Open addressing in one array (16 bytes a slot, at most 2/3 full), because a trace has millions of
 * block ids. Iteration is not offered, so no result can depend on the order of slots. One thread.
 */
#ifndef OCT_TRACES_IDMAP_H
#define OCT_TRACES_IDMAP_H

#include <glib.h>

typedef struct oct_idmap oct_idmap;

/* Life cycle. */
oct_idmap *oct_idmap_new(void);
void oct_idmap_free(oct_idmap *map); /* accepts NULL */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(oct_idmap, oct_idmap_free)

/* Use. Any key and any value are allowed. */
void oct_idmap_set(oct_idmap *map, guint64 key, guint64 value);
gboolean oct_idmap_get(const oct_idmap *map, guint64 key, guint64 *value); /* value may be NULL */

/* Inspect. */
gsize oct_idmap_count(const oct_idmap *map);

#endif
