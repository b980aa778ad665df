/* What an instance has in flight, as the front knows it: so that it answers FULL and REFUSED
 * itself, and believes no event that does not fit what it submitted. */
#ifndef OCT_BACKENDS_REMOTE_PENDING_H
#define OCT_BACKENDS_REMOTE_PENDING_H

#include "engine/backend.h"

typedef struct oct_pending oct_pending;

/* The config is borrowed. Nothing is in flight, and the instance is opening. */
oct_pending *oct_pending_new(const oct_instance_config *config);
void oct_pending_free(oct_pending *pending); /* accepts NULL */

/* ---- what is asked: FALSE with *error when it is refused (RECORD, UNSUPPORTED, DEVICE). */
gboolean oct_pending_is_full(const oct_pending *pending);
gboolean oct_pending_check_step(const oct_pending *pending, const oct_step *step,
                                GError **error) G_GNUC_WARN_UNUSED_RESULT;
gboolean oct_pending_check_copy(const oct_pending *pending, guint64 ticket, const oct_copy *copies,
                                guint32 n, GError **error) G_GNUC_WARN_UNUSED_RESULT;
gboolean oct_pending_check_pull(const oct_pending *pending, const oct_pending *peer,
                                guint32 peer_domain, guint64 ticket, const oct_copy *copies,
                                guint32 n, GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* *awaited: FALSE when the mask is for a step that has ended, or came already: it is ignored. */
gboolean oct_pending_check_mask(const oct_pending *pending, guint64 number, guint32 slice,
                                const guint64 *bits, guint32 n_words, gboolean *awaited,
                                GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* It was handed on. */
void oct_pending_add_step(oct_pending *pending, const oct_step *step);
void oct_pending_add_copy(oct_pending *pending, guint64 ticket);
void oct_pending_add_mask(oct_pending *pending, guint64 number, guint32 slice);

/* ---- what is told: FALSE with *error when the event cannot be. What it ends leaves. */
gboolean oct_pending_take_event(oct_pending *pending, const oct_event *event,
                                GError **error) G_GNUC_WARN_UNUSED_RESULT;

#endif
