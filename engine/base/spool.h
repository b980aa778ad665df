/* Things to be written by a thread of their own, so that a slow disk or a pipe that nobody reads
 * never holds up who has them: what finds no room is dropped, and counted.
 *
 * One thread pushes; write() and discard() are called on the spool's thread, in the order of the
 * pushes.
 */
#ifndef OCT_BASE_SPOOL_H
#define OCT_BASE_SPOOL_H

#include <glib.h>

typedef struct oct_spool oct_spool;

typedef struct oct_spool_config {
  const char *name;                       /* of the thread, up to 15 bytes */
  guint32 items_max;                      /* that wait; rounded up to a power of two */
  gsize bytes_max;                        /* of all that wait, as push() is told */
  void (*write)(void *user, void *item);  /* may block */
  void (*dropped)(void *user, guint64 n); /* so many were, since it was told last; NULL: never */
  void (*discard)(void *item);            /* frees one that was written, or is dropped */
  void *user;
} oct_spool_config;

/* Life cycle. NULL with *error (MEMORY): no thread. */
oct_spool *oct_spool_new(const oct_spool_config *config, GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Ends after what was pushed. Nothing is pushed any more. */
void oct_spool_end(oct_spool *spool);
/* Waits for the thread; where write() may hang, only once is_idle() says so. Accepts NULL. */
void oct_spool_free(oct_spool *spool);

/* Takes the item. FALSE: dropped. Never waits. */
gboolean oct_spool_push(oct_spool *spool, void *item, gsize bytes);

/* All that was pushed has been written; after end(): and the thread is through. */
gboolean oct_spool_is_idle(const oct_spool *spool);
guint64 oct_spool_dropped(const oct_spool *spool);

#endif
