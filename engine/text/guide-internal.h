/* Automata over bytes, with calls. Only guide*.c include this. */
#ifndef OCT_TEXT_GUIDE_INTERNAL_H
#define OCT_TEXT_GUIDE_INTERNAL_H

#include "engine/text/error.h"
#include "engine/text/guide.h"

typedef enum oct_edge_kind {
  OCT_EDGE_BYTES, /* reads a byte of [low, high] */
  OCT_EDGE_FREE,  /* reads nothing */
  OCT_EDGE_CALL,  /* goes to `call`; when that returns, goes on at `to` */
  OCT_EDGE_NEST,  /* the same for a value inside a value: counts against the depth */
} oct_edge_kind;

typedef struct oct_edge {
  oct_edge_kind kind;
  guint8 low, high;
  guint32 call, to;
  guint32 next; /* edge of the same state, 0: none */
} oct_edge;

/* State 0 is where a rule returns: it has no edges. */
typedef struct oct_automaton {
  GArray *first; /* guint32 per state: its first edge, 0: none */
  GArray *edges; /* oct_edge; index 0 is not used */
  guint32 start;
  GError **error;
  gboolean failed;
} oct_automaton;

void oct_automaton_init(oct_automaton *a, GError **error);
void oct_automaton_clear(oct_automaton *a);
void oct_automaton_fail(oct_automaton *a, oct_text_error code, const char *format, ...)
    G_GNUC_PRINTF(3, 4);
guint32 oct_automaton_state(oct_automaton *a);
void oct_automaton_edge(oct_automaton *a, guint32 from, oct_edge edge);
void oct_automaton_free(oct_automaton *a, guint32 from, guint32 to);
void oct_automaton_bytes(oct_automaton *a, guint32 from, guint8 low, guint8 high, guint32 to);
/* Reads exactly this text; returns where it is then. */
guint32 oct_automaton_text(oct_automaton *a, guint32 from, const char *text, gsize size);
/* Reads one character of [low, high], written in UTF-8. */
void oct_automaton_char(oct_automaton *a, guint32 from, gunichar low, gunichar high, guint32 to);
/* Reads what a pattern matches, whole; returns where it is then. `json`: as the inside of a JSON
 * string, in which a quote and a backslash cannot stand for themselves; then `search` says that the
 * pattern may match anywhere. */
guint32 oct_automaton_regex(oct_automaton *a, guint32 from, const char *pattern, gboolean json,
                            gboolean search);
/* Rules for JSON; each begins at the state that is returned and ends by returning. */
void oct_automaton_schema(oct_automaton *a, const json_t *schema);
void oct_automaton_json_object(oct_automaton *a);

#endif
