#include "client/prompt.h"

#include "engine/base/rng.h"
#include "traces/blocks.h"

#define PAGES_AT_ONCE 256

/* One token each, with the blank in front, in the vocabularies of GPT, Llama, Qwen and others. */
static const char *const words[] = {
    "the",  "of",    "and",  "to",   "in",    "is",   "for",  "that", "on",   "with",  "as",
    "it",   "by",    "from", "at",   "this",  "an",   "are",  "was",  "be",   "or",    "have",
    "not",  "can",   "one",  "all",  "new",   "more", "time", "has",  "will", "about", "if",
    "up",   "out",   "so",   "what", "their", "some", "when", "two",  "into", "than",  "other",
    "them", "first", "only", "like", "would", "who",  "now",  "over", "such", "our",   "may",
    "make", "after", "also", "many", "use",   "work", "day",  "part", "well"};

static void
append_number(GString *out, guint64 n) {
  char digits[20];
  gsize at = sizeof digits;
  do {
    digits[--at] = (char)('0' + n % 10);
    n /= 10;
  } while (n > 0);
  g_string_append_len(out, digits + at, (gssize)(sizeof digits - at));
}

static void
append_token(GString *out, const oct_prompt_options *o, guint64 mixed, gboolean is_first) {
  if (!is_first)
    g_string_append_c(out, o->as_text ? ' ' : ',');
  if (o->as_text)
    g_string_append(out, words[mixed % G_N_ELEMENTS(words)]);
  else
    append_number(out, o->first_id + mixed % o->n_ids);
}

void
oct_prompt_append(GString *out, const oct_trace_request *row, guint64 salt,
                  const oct_prompt_options *o) {
  guint32 page = row->block_size > 0 ? row->block_size : OCT_PROMPT_BLOCK;
  guint64 n_pages = (row->input_tokens + (guint64)page - 1) / page, ids[PAGES_AT_ONCE];
  guint64 key = oct_mix64(o->seed ^ oct_mix64(salt));
  g_string_append_c(out, o->as_text ? '"' : '[');
  for (guint64 p = 0; p < n_pages; p++) {
    if (p % PAGES_AT_ONCE == 0)
      oct_trace_page_ids(row, p, MIN(n_pages - p, PAGES_AT_ONCE), page, ids);
    guint64 end = MIN((p + 1) * page, row->input_tokens);
    for (guint64 t = p * page; t < end; t++)
      append_token(out, o, oct_mix64(ids[p % PAGES_AT_ONCE] ^ key ^ oct_mix64(t)), t == 0);
  }
  g_string_append_c(out, o->as_text ? '"' : ']');
}
