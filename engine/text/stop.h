/* Stop strings in a text that comes in pieces.
 *
 * A text ends at the stop string whose last byte comes first; of several that end there, the
 * longest counts. This does not depend on how the text is cut. What may still be the beginning of a
 * stop string is held back, and nothing else is: after every call, the longest tail of the text
 * that begins some stop string. Aho-Corasick: linear in the text, whatever the strings.
 *
 * A set is constant: any thread. A matcher belongs to one sequence.
 */
#ifndef OCT_TEXT_STOP_H
#define OCT_TEXT_STOP_H

#include <glib.h>

/* Limits of a request. */
#define OCT_STOP_STRINGS_MAX 16u
#define OCT_STOP_BYTES_MAX   256u

typedef struct oct_stop_set oct_stop_set;
/* Where a matcher stands: begins as zeroes, and is freed with oct_stop_clear(). */
typedef struct oct_stop_matcher {
  guint32 node;
  GString *held; /* NULL: nothing yet */
} oct_stop_matcher;

/* Life cycle. NULL with *error (INPUT): too many strings, one that is empty or too long. */
oct_stop_set *oct_stop_set_new(const char *const *strings, guint n,
                               GError **error) G_GNUC_WARN_UNUSED_RESULT;
void oct_stop_set_free(oct_stop_set *set); /* accepts NULL */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(oct_stop_set, oct_stop_set_free)
void oct_stop_clear(oct_stop_matcher *matcher);

/* Use. Takes in a piece, appends what is sure to be text to `out`. Returns the index of the stop
 * string that ends the text, -1 while none does; after one, the matcher is done. `include`: the
 * stop string is part of the text. While `armed` is FALSE (min_tokens) a stop string that ends in
 * this piece is text like any other. */
int oct_stop_push(const oct_stop_set *set, oct_stop_matcher *matcher, const char *text, gsize size,
                  gboolean armed, gboolean include, GString *out);
/* The same for parsers, which go on after a match: takes in text up to and with the first string
 * that ends in it, and says how much that is. The string is not part of what is appended. */
int oct_stop_scan(const oct_stop_set *set, oct_stop_matcher *matcher, const char *text, gsize size,
                  gsize *taken, GString *out);
/* The text has ended otherwise: appends what was held back. */
void oct_stop_finish(oct_stop_matcher *matcher, GString *out);

#endif
