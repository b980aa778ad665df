/* A conversation with a server: its messages, as a request's JSON and as lines of a file.
 *
 * Plain memory; one thread.
 */
#ifndef OCT_CLIENT_TALK_H
#define OCT_CLIENT_TALK_H

#include <glib.h>

typedef struct oct_talk oct_talk;

/* ---- life cycle */
oct_talk *oct_talk_new(void);
void oct_talk_free(oct_talk *talk); /* accepts NULL */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(oct_talk, oct_talk_free)

/* ---- use */
/* The system message, in front of all others; "" = none. */
void oct_talk_set_system(oct_talk *talk, const char *text);
void oct_talk_add(oct_talk *talk, const char *role, const char *text);
/* Takes the last message back: a question that was not answered. */
void oct_talk_drop_last(oct_talk *talk);
/* Forgets all but the system message. */
void oct_talk_reset(oct_talk *talk);
/* The body of a streamed request; max_tokens 0 and temperature below 0 leave it to the server.
 * Owned. */
char *oct_talk_body(const oct_talk *talk, const char *model, guint32 max_tokens, double temperature,
                    gsize *n);
/* Writes the messages as JSON: {"model", "messages"}. FALSE with *error. */
gboolean oct_talk_save(const oct_talk *talk, const char *model, const char *path,
                       GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* ---- inspect */
guint oct_talk_n_messages(const oct_talk *talk); /* the system message included */

#endif
