/* Two lists of spans take turns: a step reads one and writes the other. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "engine/text/split.h"

#include <pcre2.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/text/error.h"

typedef struct oct_split_step {
  pcre2_code *code;
  oct_split_mode mode;
  gboolean invert;
} oct_split_step;

struct oct_splitter {
  oct_split_step steps[OCT_SPLIT_STEPS_MAX];
  guint n_steps;
};

struct oct_split_scratch {
  pcre2_match_data *match;
  pcre2_match_context *context;
  pcre2_jit_stack *stack;
  GArray *from, *to; /* oct_span */
};

oct_splitter *
oct_splitter_new(void) {
  return g_new0(oct_splitter, 1);
}

void
oct_splitter_free(oct_splitter *splitter) {
  if (splitter == NULL)
    return;
  for (guint i = 0; i < splitter->n_steps; i++)
    pcre2_code_free(splitter->steps[i].code);
  g_free(splitter);
}

oct_split_scratch *
oct_split_scratch_new(void) {
  oct_split_scratch *scratch = g_new0(oct_split_scratch, 1);
  scratch->match = pcre2_match_data_create(1, NULL);
  scratch->context = pcre2_match_context_create(NULL);
  scratch->stack = pcre2_jit_stack_create(32 * 1024, OCT_SPLIT_JIT_STACK_MAX, NULL);
  oct_assert(scratch->match != NULL && scratch->context != NULL);
  if (scratch->stack != NULL)
    pcre2_jit_stack_assign(scratch->context, NULL, scratch->stack);
  pcre2_set_match_limit(scratch->context, OCT_SPLIT_MATCH_MAX);
  pcre2_set_heap_limit(scratch->context, OCT_SPLIT_HEAP_MAX);
  scratch->from = g_array_new(FALSE, FALSE, sizeof(oct_span));
  scratch->to = g_array_new(FALSE, FALSE, sizeof(oct_span));
  return scratch;
}

void
oct_split_scratch_free(oct_split_scratch *scratch) {
  if (scratch == NULL)
    return;
  pcre2_match_data_free(scratch->match);
  pcre2_match_context_free(scratch->context);
  pcre2_jit_stack_free(scratch->stack);
  g_array_unref(scratch->from);
  g_array_unref(scratch->to);
  g_free(scratch);
}

gboolean
oct_splitter_add(oct_splitter *splitter, const char *pattern, gsize size, gboolean literal,
                 oct_split_mode mode, gboolean invert, GError **error) {
  if (splitter->n_steps == OCT_SPLIT_STEPS_MAX) {
    g_set_error(error, OCT_TEXT_ERROR, OCT_TEXT_ERROR_LIMIT,
                "a pre-tokenizer with more than %u steps", OCT_SPLIT_STEPS_MAX);
    return FALSE;
  }
  g_autofree char *translated =
      literal ? g_strndup(pattern, size) : oct_split_translate(pattern, size, error);
  if (translated == NULL)
    return FALSE;
  int code;
  PCRE2_SIZE at;
  guint32 options = literal ? PCRE2_LITERAL | PCRE2_UTF : PCRE2_UTF | PCRE2_UCP;
  pcre2_code *compiled =
      pcre2_compile((PCRE2_SPTR)translated, PCRE2_ZERO_TERMINATED, options, &code, &at, NULL);
  if (compiled == NULL) {
    PCRE2_UCHAR message[160];
    pcre2_get_error_message(code, message, sizeof message);
    g_set_error(error, OCT_TEXT_ERROR, OCT_TEXT_ERROR_FORMAT,
                "the pre-tokenizer's pattern '%.200s': %s at byte %" G_GSIZE_FORMAT, translated,
                (const char *)message, (gsize)at);
    return FALSE;
  }
  /* Where the compiler is not built in, PCRE2 interprets: slower, the same result. */
  (void)pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE);
  splitter->steps[splitter->n_steps++] = (oct_split_step){compiled, mode, invert};
  return TRUE;
}

/* Adds [start, end) of a piece, which matches or does not, by the rules of the mode. `last_match`:
 * whether the part before it in the same piece matched; -1 at the beginning. */
static void
add_part(const oct_split_step *step, GArray *to, oct_span part, gboolean matches, int *last_match) {
  if (part.start == part.end)
    return;
  matches = matches != step->invert;
  oct_span *last =
      *last_match < 0 || to->len == 0 ? NULL : &g_array_index(to, oct_span, to->len - 1);
  gboolean append = TRUE;
  switch (step->mode) {
  case OCT_SPLIT_ISOLATED:
    break;
  case OCT_SPLIT_REMOVED:
    append = !matches;
    break;
  case OCT_SPLIT_MERGED_PREVIOUS:
    if (last != NULL && matches && *last_match == FALSE)
      last->end = part.end, append = FALSE;
    break;
  case OCT_SPLIT_MERGED_NEXT:
    if (last != NULL && !matches && *last_match == TRUE)
      last->end = part.end, append = FALSE;
    break;
  case OCT_SPLIT_CONTIGUOUS:
    if (last != NULL && matches == *last_match)
      last->end = part.end, append = FALSE;
    break;
  default:
    oct_assert(FALSE);
  }
  if (append)
    g_array_append_val(to, part);
  *last_match = matches;
}

/* The next match at or after `at`: 1, or 0 when there is none; negative is PCRE2's error. */
static int
next_match(const oct_split_step *step, oct_split_scratch *scratch, const char *text, gsize size,
           gsize at, oct_span *found) {
  int n = pcre2_match(step->code, (PCRE2_SPTR)text, size, at, PCRE2_NO_UTF_CHECK, scratch->match,
                      scratch->context);
  if (n == PCRE2_ERROR_JIT_STACKLIMIT)
    n = pcre2_match(step->code, (PCRE2_SPTR)text, size, at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                    scratch->match, scratch->context);
  if (n == PCRE2_ERROR_NOMATCH)
    return 0;
  if (n < 0)
    return n;
  const PCRE2_SIZE *ends = pcre2_get_ovector_pointer(scratch->match);
  *found = (oct_span){(guint32)ends[0], (guint32)ends[1]};
  return 1;
}

static gboolean
run_step(const oct_split_step *step, oct_split_scratch *scratch, const char *text, oct_span piece,
         GArray *to, GError **error) {
  const char *begin = text + piece.start;
  gsize size = piece.end - piece.start, done = 0, at = 0;
  int last_match = -1;
  while (at < size) {
    oct_span found;
    int n = next_match(step, scratch, begin, size, at, &found);
    if (n < 0) {
      PCRE2_UCHAR message[160];
      pcre2_get_error_message(n, message, sizeof message);
      g_set_error(error, OCT_TEXT_ERROR, OCT_TEXT_ERROR_LIMIT,
                  "the pre-tokenizer gave up at byte %" G_GSIZE_FORMAT " of a text: %s",
                  piece.start + at, (const char *)message);
      return FALSE;
    }
    if (n == 0)
      break;
    if (found.start == found.end) { /* an empty match cuts nothing */
      at = found.end + 1;
      while (at < size && (begin[at] & 0xc0) == 0x80)
        at++;
      continue;
    }
    oct_span gap = {piece.start + (guint32)done, piece.start + found.start};
    oct_span match = {piece.start + found.start, piece.start + found.end};
    add_part(step, to, gap, FALSE, &last_match);
    add_part(step, to, match, TRUE, &last_match);
    done = at = found.end;
  }
  oct_span rest = {piece.start + (guint32)done, piece.end};
  add_part(step, to, rest, FALSE, &last_match);
  return TRUE;
}

gboolean
oct_splitter_run(const oct_splitter *splitter, oct_split_scratch *scratch, const char *text,
                 gsize size, GArray *spans, GError **error) {
  oct_assert(size < G_MAXUINT32);
  if (size == 0)
    return TRUE;
  oct_span whole = {0, (guint32)size};
  g_array_set_size(scratch->from, 0);
  g_array_append_val(scratch->from, whole);
  for (guint s = 0; s < splitter->n_steps; s++) {
    g_array_set_size(scratch->to, 0);
    for (guint i = 0; i < scratch->from->len; i++)
      if (!run_step(&splitter->steps[s], scratch, text, g_array_index(scratch->from, oct_span, i),
                    scratch->to, error))
        return FALSE;
    GArray *swap = scratch->from;
    scratch->from = scratch->to;
    scratch->to = swap;
  }
  g_array_append_vals(spans, scratch->from->data, scratch->from->len);
  return TRUE;
}
