/* Ranks whose devices a test moves: in the place of the backend's steppers, of what ranks share,
 * and of CUDA's runtime, so that worlds, instances and their threads run without a GPU. Whatever a
 * rank calls can be held up, as a driver's call can that does not come back; steps and copies can
 * be left unended, as by a device that stands still.
 */
#ifndef OCT_TESTS_CUDA_SCRIPT_H
#define OCT_TESTS_CUDA_SCRIPT_H

#include <glib.h>

#define SCRIPT_RANKS 8
#define SCRIPT_TOKEN 5 /* that every row samples */

/* Where a rank can be held. */
typedef enum script_call {
  SCRIPT_OPEN,
  SCRIPT_BEGIN,
  SCRIPT_LOGITS,
  SCRIPT_COPY,
  SCRIPT_REST,
  SCRIPT_CLOSE,
  SCRIPT_CALLS
} script_call;

/* Everything moves. */
void script_reset(void);
/* The ranks of this number, of every instance, stay in the call that they make next, or are in. */
void script_hold(guint32 rank, script_call call);
void script_release(guint32 rank, script_call call);
/* Waits until one is held. */
void script_await(guint32 rank, script_call call);
/* The rank's steps do not end, or again do. */
void script_stop(guint32 rank, gboolean stopped);
/* The rank's opening fails; it does not come to rest; closing leaves its device unusable. */
void script_fail_opening(guint32 rank);
void script_unrest(guint32 rank);
void script_spoil(guint32 rank);
/* Copies do not end, or again do. */
void script_stop_copies(gboolean stopped);
/* Events that were made and not destroyed; ranks that have begun to close, and that kept their
 * memory in doing so, since everything was made to move. */
gint script_events(void);
gint script_closed(void);
gint script_kept(void);

#endif
