/* What is done to a text before it is cut: Unicode normal forms, replaced strings, a leading space.
 *
 * Constant once built: any thread. */
#ifndef OCT_TEXT_NORMALIZE_H
#define OCT_TEXT_NORMALIZE_H

#include <glib.h>

typedef enum oct_normal_kind {
  OCT_NORMAL_NFC,
  OCT_NORMAL_NFD,
  OCT_NORMAL_NFKC,
  OCT_NORMAL_NFKD,
  OCT_NORMAL_REPLACE,      /* every `from` by `to` */
  OCT_NORMAL_PREPEND,      /* `to` in front of a text that is not empty */
  OCT_NORMAL_SPACE,        /* a space in front, unless there is one */
  OCT_NORMAL_FIRST_SPACE,  /* the same, only at the beginning of the whole text */
  OCT_NORMAL_SINGLE_SPACES /* runs of spaces become one, those at both ends go */
} oct_normal_kind;

typedef struct oct_normalizer oct_normalizer;

oct_normalizer *oct_normalizer_new(void);
void oct_normalizer_free(oct_normalizer *normalizer); /* accepts NULL */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(oct_normalizer, oct_normalizer_free)
/* Adds a step; the texts are copied, NULL where the kind has none. */
void oct_normalizer_add(oct_normalizer *normalizer, oct_normal_kind kind, const char *from,
                        const char *to);
/* TRUE when any step is of this kind. */
gboolean oct_normalizer_has(const oct_normalizer *normalizer, oct_normal_kind kind);
/* Where a text stands: spaces are put in front of what begins a section (after an added token), or
 * only of what begins the whole text. */
typedef enum oct_normal_place {
  OCT_PLACE_INSIDE,
  OCT_PLACE_SECTION,
  OCT_PLACE_TEXT,
} oct_normal_place;
/* Replaces the content of `text`, valid UTF-8, by its normal form. */
void oct_normalizer_run(const oct_normalizer *normalizer, oct_normal_place place, GString *text);

#endif
