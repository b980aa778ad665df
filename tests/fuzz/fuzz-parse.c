/* Fuzz target: an answer of any family, taken apart. The first byte chooses the family, whether
 * tools were offered and whether the prompt ends inside the reasoning; bytes below 30 are markers
 * and what stands between them, 30 is NUL, 31 a newline, all others are themselves. Whatever the
 * stream, cuts change nothing, a call is ended before the next begins, no event has a marker of
 * Kimi's in it and no text one of its own family, and the arguments that Kimi K3 wrote as elements
 * are an object of JSON. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* memmem() */
#endif
#include <string.h>

#include <jansson.h>

#include "engine/base/assert.h"
#include "engine/text/parse.h"
#include "tests/fuzz/replay.h"

#define TEXT_MAX 8192

/* vocabulary_of() says which of them are markers. */
static const char *const k2_pieces[] = {"<|tool_calls_section_begin|>",
                                        "<|tool_calls_section_end|>",
                                        "<|tool_call_begin|>",
                                        "<|tool_call_argument_begin|>",
                                        "<|tool_call_end|>",
                                        "<|im_end|>",
                                        "<think>",
                                        "</think>",
                                        "functions.f:0",
                                        "{\"a\":1}"};
static const char *const k3_pieces[] = {"<|open|>",
                                        "<|close|>",
                                        "<|sep|>",
                                        "<|end_of_msg|>",
                                        "think",
                                        "response",
                                        "tools",
                                        "call",
                                        "message",
                                        "argument",
                                        "json",
                                        " tool=\"f\"",
                                        " index=\"1\"",
                                        " key=\"a\"",
                                        " key=\"b&quot;&amp;\"",
                                        " type=\"string\"",
                                        " type=\"number\"",
                                        " type=\"object\"",
                                        " type=\"boolean\"",
                                        " type=\"null\"",
                                        "<|open|>argument key=\"a\" type=\"string\"<|sep|>",
                                        "<|close|>argument<|sep|>",
                                        "<|open|>call tool=\"f\" index=\"1\"<|sep|>"};
static const char *const other_pieces[] = {
    "<think>", "</think>",       "<tool_call>",     "</tool_call>",     "{",
    "}",       "\"name\":\"f\"", "\"arguments\":{", "\"parameters\":{", "[TOOL_CALLS]",
    "[ARGS]",  "[CALL_ID]",      "[THINK]",         "[/THINK]",         "<|python_tag|>"};

/* What bytes below 30 stand for, and which no event may have in it. */
typedef struct vocabulary {
  const char *const *pieces;
  gsize n, first_marker, n_markers;
} vocabulary;

static const vocabulary *
vocabulary_of(oct_parse_family family) {
  static const vocabulary of[OCT_PARSE_FAMILY_COUNT] = {
      [OCT_PARSE_PLAIN] = {other_pieces, G_N_ELEMENTS(other_pieces), 0, 2},
      [OCT_PARSE_HERMES] = {other_pieces, G_N_ELEMENTS(other_pieces), 0, 4},
      [OCT_PARSE_LLAMA3] = {other_pieces, G_N_ELEMENTS(other_pieces), 0, 0},
      [OCT_PARSE_MISTRAL] = {other_pieces, G_N_ELEMENTS(other_pieces), 9, 5},
      [OCT_PARSE_KIMI_K2] = {k2_pieces, G_N_ELEMENTS(k2_pieces), 0, 6},
      [OCT_PARSE_KIMI_K3] = {k3_pieces, G_N_ELEMENTS(k3_pieces), 0, 4}};
  return &of[family];
}

typedef struct seen {
  const oct_parse_options *options;
  GString *content, *reasoning, *calls, *arguments;
  gboolean open, elements; /* elements: no call's arguments are raw */
} seen;

static void
has_no_marker(const oct_parse_options *options, const char *text, gsize size) {
  const vocabulary *v = vocabulary_of(options->family);
  for (gsize i = 0; i < v->n_markers; i++) {
    const char *marker = v->pieces[v->first_marker + i];
    oct_assert(memmem(text, size, marker, strlen(marker)) == NULL);
  }
}

static void
sink(gpointer data, const oct_parse_event *event) {
  seen *s = data;
  if (event->kind != OCT_PARSE_CALL && event->kind != OCT_PARSE_CALL_END) {
    oct_assert(event->size > 0);
    /* Other families' arguments may have one in a string. */
    if (event->kind != OCT_PARSE_ARGUMENTS || s->options->family >= OCT_PARSE_KIMI_K2)
      has_no_marker(s->options, event->text, event->size);
  }
  switch (event->kind) {
  case OCT_PARSE_CONTENT:
    g_string_append_len(s->content, event->text, (gssize)event->size);
    break;
  case OCT_PARSE_REASONING:
    g_string_append_len(s->reasoning, event->text, (gssize)event->size);
    break;
  case OCT_PARSE_CALL:
    oct_assert(!s->open && *event->name != '\0');
    if (s->options->family >= OCT_PARSE_KIMI_K2)
      has_no_marker(s->options, event->name, strlen(event->name));
    s->open = TRUE;
    g_string_append_printf(s->calls, "\n%u %s %s:", event->call, event->name,
                           event->id != NULL ? event->id : "");
    g_string_truncate(s->arguments, 0);
    break;
  case OCT_PARSE_ARGUMENTS:
    oct_assert(s->open);
    g_string_append_len(s->calls, event->text, (gssize)event->size);
    g_string_append_len(s->arguments, event->text, (gssize)event->size);
    break;
  case OCT_PARSE_CALL_END:
  default:
    oct_assert(s->open);
    s->open = FALSE;
    if (s->elements) {
      json_t *object = json_loadb(s->arguments->str, s->arguments->len, 0, NULL);
      oct_assert(json_is_object(object));
      json_decref(object);
    }
    break;
  }
}

static char *
take_apart(oct_parse_options options, const GString *text, gsize first, gsize piece) {
  seen s = {&options,
            g_string_new(NULL),
            g_string_new(NULL),
            g_string_new(NULL),
            g_string_new(NULL),
            FALSE,
            options.family == OCT_PARSE_KIMI_K3 && strstr(text->str, "json") == NULL &&
                g_utf8_validate(text->str, (gssize)text->len, NULL)};
  options.sink = sink;
  options.data = &s;
  g_autoptr(oct_parser) parser = oct_parser_new(&options);
  for (gsize at = 0; at < text->len;) {
    gsize n = MIN(at == 0 && first > 0 ? first : piece, text->len - at);
    oct_parser_push(parser, text->str + at, n);
    at += n;
  }
  oct_parser_finish(parser);
  oct_assert(!s.open);
  g_string_append_c(s.reasoning, '|');
  g_string_append_len(s.reasoning, s.content->str, (gssize)s.content->len);
  g_string_append_c(s.reasoning, '|');
  g_string_append_len(s.reasoning, s.calls->str, (gssize)s.calls->len);
  for (gsize i = 0; i < s.reasoning->len; i++) /* so that it is one string */
    s.reasoning->str[i] = s.reasoning->str[i] == '\0' ? '\1' : s.reasoning->str[i];
  char *all = g_string_free(s.reasoning, FALSE);
  g_string_free(s.content, TRUE);
  g_string_free(s.calls, TRUE);
  g_string_free(s.arguments, TRUE);
  return all;
}

static void
append(GString *text, oct_parse_family family, guint8 byte) {
  const vocabulary *v = vocabulary_of(family);
  if (byte >= 32)
    g_string_append_c(text, (char)byte);
  else if (byte >= 30)
    g_string_append_c(text, byte == 31 ? '\n' : '\0');
  else if (byte < v->n)
    g_string_append(text, v->pieces[byte]);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size < 2 || size > TEXT_MAX)
    return 0;
  const oct_parse_options options = {
      .family = (oct_parse_family)((data[0] & 31) % OCT_PARSE_FAMILY_COUNT),
      .tools = (data[0] & 64) != 0,
      .begins_in_thinking = (data[0] & 128) != 0};
  g_autoptr(GString) text = g_string_new(NULL);
  for (size_t i = 1; i < size; i++)
    append(text, options.family, data[i]);
  if (text->len == 0)
    return 0;
  g_autofree char *whole = take_apart(options, text, 0, text->len);
  g_autofree char *bytes = take_apart(options, text, 0, 1);
  g_autofree char *parts = take_apart(options, text, 1 + data[size - 1] % text->len, 7);
  oct_assert(g_str_equal(whole, bytes) && g_str_equal(whole, parts));
  return 0;
}
