/* Server-sent events out of bytes, however they are cut.
 *
 * As the HTML standard reads them: lines end in LF, CR LF or CR; "data:" lines of one event are
 * joined by LF; a blank line ends the event; lines that begin with a colon and fields that are not
 * known mean nothing; an event without data is dropped, and so is one that no blank line ends.
 *
 * One thread.
 */
#ifndef OCT_CLIENT_SSE_H
#define OCT_CLIENT_SSE_H

#include <glib.h>

#define OCT_SSE_EVENT_BYTES_MAX (4u << 20) /* a longer event is an error, not an allocation */

/* An event: its type ("" = none stated), and its data, NUL-terminated; borrowed for the call.
 * FALSE stops reading. */
typedef gboolean (*oct_sse_fn)(void *user, const char *type, const char *data, gsize n);

typedef enum oct_sse_status {
  OCT_SSE_GO_ON,
  OCT_SSE_STOPPED, /* by the callback */
  OCT_SSE_TOO_LONG /* an event above OCT_SSE_EVENT_BYTES_MAX */
} oct_sse_status;

typedef struct oct_sse oct_sse;

oct_sse *oct_sse_new(oct_sse_fn event, void *user);
void oct_sse_free(oct_sse *sse); /* accepts NULL */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(oct_sse, oct_sse_free)

/* The next bytes. After anything but GO_ON every further call says the same. */
oct_sse_status oct_sse_feed(oct_sse *sse, const char *bytes, gsize n) G_GNUC_WARN_UNUSED_RESULT;

#endif
