/* Fuzz target: token ids of an answer, control tokens among them, to text and taken apart, as a
 * server does. The first byte chooses the family and whether the prompt ends inside the reasoning;
 * bytes below 64 are control tokens, all others ordinary ones. Whatever the ids, no event has a
 * control token's text in it, and those that are no markers of the family change nothing. */
#include <string.h>

#include "engine/base/assert.h"
#include "engine/text/detokenizer.h"
#include "engine/text/parse.h"
#include "tests/fuzz/replay.h"

#define N_CONTROL 32
#define ANSWER    4096 /* bytes of an input that are read */

static const char *const names[N_CONTROL] = {
    "<|open|>",       "<|close|>",     "<|sep|>",      "<|end_of_msg|>", "[TOOL_CALLS]",
    "[ARGS]",         "[CALL_ID]",     "[THINK]",      "[/THINK]",       "<|im_end|>",
    "[EOT]",          "<|media_pad|>", "<think>",      "</think>",       "[BOS]",
    "<osagent_mode>", "<tool_call>",   "</tool_call>", "[UNK]",          "[start_header_id]"};

/* Of all bytes, and control tokens. */
static oct_tokenizer *
tokenizer_of_bytes(void) {
  static oct_tokenizer *tokenizer;
  if (tokenizer != NULL)
    return tokenizer;
  g_autoptr(GError) error = NULL;
  g_autoptr(GString) file = g_string_new(NULL);
  for (guint i = 0; i < 256; i++) {
    guint8 byte = (guint8)i;
    g_autofree char *text = g_base64_encode(&byte, 1);
    g_string_append_printf(file, "%s %u\n", text, i);
  }
  const oct_tiktoken_spec spec = {.pre = "gpt2", .n_special = N_CONTROL, .names = names};
  tokenizer = oct_tokenizer_from_tiktoken(file->str, file->len, &spec, &error);
  oct_assert(tokenizer != NULL);
  return tokenizer;
}

static gboolean
is_marker(oct_parse_family family, guint control) {
  guint n;
  const char *const *markers = oct_parse_markers(family, &n);
  for (guint i = 0; i < n; i++)
    if (g_strcmp0(names[control], markers[i]) == 0)
      return TRUE;
  return FALSE;
}

/* Ordinary text has no '<' and no '[' here: what has one is of a control token. */
static void
has_no_control(const char *text, gsize size) {
  oct_assert(memchr(text, '<', size) == NULL && memchr(text, '[', size) == NULL);
}

static void
sink(gpointer data, const oct_parse_event *event) {
  GString *said = data;
  static char kind;
  if (said->len == 0)
    kind = 0;
  if (kind != 'A' + (char)event->kind || event->kind >= OCT_PARSE_CALL)
    g_string_append_printf(said, "\n%c:", kind = (char)('A' + (char)event->kind));
  if (event->kind == OCT_PARSE_CALL) {
    has_no_control(event->name, strlen(event->name));
    g_string_append(said, event->name);
  } else if (event->kind != OCT_PARSE_CALL_END) {
    has_no_control(event->text, event->size);
    g_string_append_len(said, event->text, (gssize)event->size);
  }
}

/* `strays`: with control tokens that are no markers. */
static char *
answer(const oct_parse_options *like, const uint8_t *data, size_t size, gboolean strays) {
  g_autoptr(GString) said = g_string_new(NULL), text = g_string_new(NULL);
  oct_parse_options options = *like;
  options.sink = sink;
  options.data = said;
  g_autoptr(oct_detokenizer) d = oct_detokenizer_new(tokenizer_of_bytes(), TRUE, FALSE);
  g_autoptr(oct_parser) parser = oct_parser_new(&options);
  guint n;
  const char *const *markers = oct_parse_markers(options.family, &n);
  oct_detokenizer_keep(d, markers, n);
  for (size_t i = 0; i < size; i++) {
    guint32 id = data[i] == '<' || data[i] == '[' ? 'a' : data[i];
    if (data[i] < 64) {
      id = 256 + data[i] % N_CONTROL;
      if (!strays && !is_marker(options.family, data[i] % N_CONTROL))
        continue;
    }
    g_string_truncate(text, 0);
    oct_detokenizer_push(d, id, text);
    oct_parser_push(parser, text->str, text->len);
  }
  g_string_truncate(text, 0);
  oct_detokenizer_finish(d, text);
  oct_parser_push(parser, text->str, text->len);
  oct_parser_finish(parser);
  return g_string_free(g_steal_pointer(&said), FALSE);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const oct_parse_family families[] = {OCT_PARSE_KIMI_K3, OCT_PARSE_KIMI_K2,
                                              OCT_PARSE_MISTRAL, OCT_PARSE_HERMES};
  if (size == 0)
    return 0;
  const oct_parse_options options = {.family = families[data[0] % G_N_ELEMENTS(families)],
                                     .tools = TRUE,
                                     .begins_in_thinking = data[0] % 8 >= 4};
  size = MIN(size, ANSWER);
  g_autofree char *with = answer(&options, data + 1, size - 1, TRUE);
  g_autofree char *without = answer(&options, data + 1, size - 1, FALSE);
  oct_assert(g_str_equal(with, without));
  return 0;
}
