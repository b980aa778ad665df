/* Building automata: states, edges, characters as bytes, and regular expressions. */
#include <stdarg.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/text/guide-internal.h"

void
oct_automaton_init(oct_automaton *a, GError **error) {
  *a = (oct_automaton){.first = g_array_new(FALSE, TRUE, sizeof(guint32)),
                       .edges = g_array_new(FALSE, TRUE, sizeof(oct_edge)),
                       .error = error};
  g_array_set_size(a->first, 1);
  g_array_set_size(a->edges, 1);
}

void
oct_automaton_clear(oct_automaton *a) {
  g_array_unref(a->first);
  g_array_unref(a->edges);
}

void
oct_automaton_fail(oct_automaton *a, oct_text_error code, const char *format, ...) {
  if (a->failed)
    return;
  a->failed = TRUE;
  va_list arguments;
  va_start(arguments, format);
  g_autofree char *message = g_strdup_vprintf(format, arguments);
  va_end(arguments);
  g_set_error_literal(a->error, OCT_TEXT_ERROR, code, message);
}

guint32
oct_automaton_state(oct_automaton *a) {
  if (a->first->len >= OCT_GUIDE_STATES_MAX)
    oct_automaton_fail(a, OCT_TEXT_ERROR_LIMIT, "the constraint needs more than %u states",
                       OCT_GUIDE_STATES_MAX);
  if (a->failed)
    return 1 < a->first->len ? 1 : 0;
  guint32 none = 0;
  g_array_append_val(a->first, none);
  return a->first->len - 1;
}

void
oct_automaton_edge(oct_automaton *a, guint32 from, oct_edge edge) {
  if (a->edges->len >= 20 * OCT_GUIDE_STATES_MAX)
    oct_automaton_fail(a, OCT_TEXT_ERROR_LIMIT, "the constraint needs more than %u edges",
                       20 * OCT_GUIDE_STATES_MAX);
  if (a->failed)
    return;
  edge.next = g_array_index(a->first, guint32, from);
  g_array_append_val(a->edges, edge);
  g_array_index(a->first, guint32, from) = a->edges->len - 1;
}

void
oct_automaton_free(oct_automaton *a, guint32 from, guint32 to) {
  oct_automaton_edge(a, from, (oct_edge){.kind = OCT_EDGE_FREE, .to = to});
}

void
oct_automaton_bytes(oct_automaton *a, guint32 from, guint8 low, guint8 high, guint32 to) {
  oct_automaton_edge(a, from,
                     (oct_edge){.kind = OCT_EDGE_BYTES, .low = low, .high = high, .to = to});
}

guint32
oct_automaton_text(oct_automaton *a, guint32 from, const char *text, gsize size) {
  for (gsize i = 0; i < size && !a->failed; i++) {
    guint32 next = oct_automaton_state(a);
    oct_automaton_bytes(a, from, (guint8)text[i], (guint8)text[i], next);
    from = next;
  }
  return from;
}

/* Characters [low, high] whose encodings have the same length and differ only so that each byte's
 * range is independent of the others: one chain of edges. */
static void
add_chain(oct_automaton *a, guint32 from, gunichar low, gunichar high, guint32 to) {
  char first[6], last[6];
  int n = g_unichar_to_utf8(low, first);
  g_unichar_to_utf8(high, last);
  for (int i = 0; i < n; i++) {
    guint32 next = i + 1 == n ? to : oct_automaton_state(a);
    oct_automaton_bytes(a, from, (guint8)first[i], (guint8)last[i], next);
    from = next;
  }
}

void
oct_automaton_char(oct_automaton *a, guint32 from, gunichar low, gunichar high, guint32 to) {
  static const gunichar ends[] = {0x7f, 0x7ff, 0xd7ff, 0xdfff, 0xffff, 0x10ffff};
  while (low <= high && !a->failed) {
    guint length = 0;
    while (low > ends[length])
      length++;
    gunichar end = MIN(high, ends[length]);
    if (length == 3) { /* surrogates are no characters */
      low = end + 1;
      continue;
    }
    /* Shortened until all bytes but the first that differs run over their whole range. */
    guint bytes = length == 0 ? 1 : length == 1 ? 2 : length == 5 ? 4 : 3;
    for (guint i = 1; i < bytes; i++) {
      gunichar below = ((gunichar)1 << (6 * i)) - 1;
      if ((low & ~below) == (end & ~below))
        continue;
      if ((low & below) != 0)
        end = low | below;
      else if ((end & below) != below)
        end = (end & ~below) - 1;
      else
        continue;
      i = 0;
    }
    add_chain(a, from, low, end, to);
    low = end + 1;
  }
}
