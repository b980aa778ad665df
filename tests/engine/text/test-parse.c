/* Answers taken apart, whole, byte by byte, and in two parts cut at every place. */
#include <string.h>

#include <jansson.h>

#include "engine/base/rng.h"
#include "engine/text/parse.h"

typedef struct seen {
  GString *content, *reasoning, *calls;
  gboolean open;
} seen;

static void
sink(gpointer data, const oct_parse_event *event) {
  seen *s = data;
  switch (event->kind) {
  case OCT_PARSE_CONTENT:
    g_assert_cmpuint(event->size, >, 0);
    g_string_append_len(s->content, event->text, (gssize)event->size);
    break;
  case OCT_PARSE_REASONING:
    g_string_append_len(s->reasoning, event->text, (gssize)event->size);
    break;
  case OCT_PARSE_CALL:
    g_assert_false(s->open);
    s->open = TRUE;
    g_string_append_printf(s->calls, "%u %s%s%s:", event->call, event->name,
                           event->id != NULL ? " " : "", event->id != NULL ? event->id : "");
    break;
  case OCT_PARSE_ARGUMENTS:
    g_assert_true(s->open);
    g_string_append_len(s->calls, event->text, (gssize)event->size);
    break;
  case OCT_PARSE_CALL_END:
    g_assert_true(s->open);
    s->open = FALSE;
    g_string_append(s->calls, "\n");
    break;
  default:
    g_assert_not_reached();
  }
}

/* "reasoning|content|calls" */
static char *
take_apart(oct_parse_options options, const char *text, gsize first, gsize piece) {
  seen s = {g_string_new(NULL), g_string_new(NULL), g_string_new(NULL), FALSE};
  options.sink = sink;
  options.data = &s;
  g_autoptr(oct_parser) parser = oct_parser_new(&options);
  gsize size = strlen(text);
  for (gsize at = 0; at < size;) {
    gsize n = MIN(at == 0 && first > 0 ? first : piece, size - at);
    oct_parser_push(parser, text + at, n);
    at += n;
  }
  oct_parser_finish(parser);
  g_assert_false(s.open);
  char *all = g_strdup_printf("%s|%s|%s", s.reasoning->str, s.content->str, s.calls->str);
  g_string_free(s.reasoning, TRUE);
  g_string_free(s.content, TRUE);
  g_string_free(s.calls, TRUE);
  return all;
}

typedef struct parse_case {
  const char *name;
  oct_parse_options options;
  const char *text, *expected;
} parse_case;

#define HERMES                                                                                     \
  { .family = OCT_PARSE_HERMES, .tools = TRUE }
#define HERMES_THINKS                                                                              \
  { .family = OCT_PARSE_HERMES, .tools = TRUE, .begins_in_thinking = TRUE }
#define LLAMA                                                                                      \
  { .family = OCT_PARSE_LLAMA3, .tools = TRUE }
#define MISTRAL                                                                                    \
  { .family = OCT_PARSE_MISTRAL, .tools = TRUE }
#define K2                                                                                         \
  { .family = OCT_PARSE_KIMI_K2, .tools = TRUE }
#define K3                                                                                         \
  { .family = OCT_PARSE_KIMI_K3, .tools = TRUE, .begins_in_thinking = TRUE }
#define K3_ANSWERS                                                                                 \
  { .family = OCT_PARSE_KIMI_K3 }
#define O(tag)         "<|open|>" tag "<|sep|>"
#define C(tag)         "<|close|>" tag "<|sep|>"
#define CALL_K2(id, a) "<|tool_call_begin|>" id "<|tool_call_argument_begin|>" a "<|tool_call_end|>"
#define BEGIN_K2       "<|tool_calls_section_begin|>"
#define END_K2         "<|tool_calls_section_end|>"

static const parse_case cases[] = {
    {"plain/text-is-content", {0}, "Hello <b> & <thin", "|Hello <b> & <thin|"},
    {"plain/thinking-is-apart", {0}, "<think>\nhm\n\nhm\n</think>\n\nHi\n", "hm\n\nhm|Hi\n|"},
    {"plain/unfinished-thinking-is-reasoning", {0}, "<think>hm\n", "hm||"},
    {"plain/stray-end-is-dropped", {0}, "a</think>b", "|ab|"},
    {"plain/late-begin-is-dropped", {0}, "a <think> b", "|a  b|"},
    {"hermes/one-call", HERMES,
     "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 0.1, \"b\": [1, {}]}}\n</tool_call>",
     "||0 f:{\"a\": 0.1, \"b\": [1, {}]}\n"},
    {"hermes/text-thinking-and-two-calls", HERMES_THINKS,
     "\nplan\n</think>\n\nLet me.\n\n<tool_call>{\"arguments\": {}, \"name\": \"f\"}</tool_call>\n"
     "<tool_call>{\"name\": \"g\"}</tool_call>",
     "plan|Let me.|0 f:{}\n1 g:{}\n"},
    {"hermes/markers-in-strings-are-text", HERMES,
     "<tool_call>{\"name\":\"f\",\"arguments\":{\"x\":\"</tool_call> \\\" "
     "<tool_call>\"}}</tool_call>",
     "||0 f:{\"x\":\"</tool_call> \\\" <tool_call>\"}\n"},
    {"hermes/arguments-as-a-string", HERMES,
     "<tool_call>{\"name\":\"f\",\"arguments\":\"{\\\"a\\\": 1}\"}</tool_call>",
     "||0 f:{\"a\": 1}\n"},
    {"hermes/cut-off-but-whole", HERMES, "<tool_call>{\"name\":\"f\",\"arguments\":{}}",
     "||0 f:{}\n"},
    {"hermes/cut-off-is-text", HERMES, "<tool_call>{\"name\":\"f\",\"argu",
     "|{\"name\":\"f\",\"argu|"},
    {"hermes/cut-off-in-a-string-keeps-no-marker", HERMES, "<tool_call>{\"name\":\"f</tool_call>",
     "|{\"name\":\"f |"},
    {"hermes/not-json-is-text", HERMES, "a<tool_call>hello</tool_call>b", "|ahellob|"},
    {"hermes/call-after-call-without-end", HERMES,
     "<tool_call>{\"name\":\"f\"}<tool_call>{\"name\":\"g\"}</tool_call>", "||0 f:{}\n1 g:{}\n"},
    {"hermes/stray-end-is-dropped", HERMES, "a</tool_call>b", "|ab|"},
    {"hermes/call-in-thinking-is-no-call", HERMES_THINKS, "x <tool_call>{} y</think>z",
     "x {} y|z|"},
    {"hermes/eval-is-text", HERMES, "<tool_call>__import__('os')</tool_call>",
     "|__import__('os')|"},
    {"llama/one-call", LLAMA, " {\"name\": \"f\", \"parameters\": {\"a\": \"}\"}}",
     "||0 f:{\"a\": \"}\"}\n"},
    {"llama/python-tag", LLAMA, "<|python_tag|>{\"name\":\"f\",\"parameters\":{}}", "||0 f:{}\n"},
    {"llama/several", LLAMA,
     "{\"name\":\"f\",\"parameters\":{}}; {\"name\":\"g\",\"arguments\":{\"b\":2}}\n",
     "||0 f:{}\n1 g:{\"b\":2}\n"},
    {"llama/other-json-is-text", LLAMA, "{\"a\": 1} and", "|{\"a\": 1} and|"},
    {"llama/text-is-text", LLAMA, "The {\"name\":\"f\",\"parameters\":{}}",
     "|The {\"name\":\"f\",\"parameters\":{}}|"},
    {"llama/cut-off-is-text", LLAMA, "{\"name\": \"f\", \"para", "|{\"name\": \"f\", \"para|"},
    {"llama/less-than-is-text", LLAMA, "<|pyth", "|<|pyth|"},
    {"llama/without-tools-is-text",
     {.family = OCT_PARSE_LLAMA3},
     "{\"name\":\"f\",\"parameters\":{}}",
     "|{\"name\":\"f\",\"parameters\":{}}|"},
    {"mistral/list-of-calls", MISTRAL,
     "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": [1, \"]\"]}, \"id\": \"abcdefghi\"}, "
     "{\"name\": \"g\", \"arguments\": {}}]",
     "||0 f abcdefghi:{\"a\": [1, \"]\"]}\n1 g:{}\n"},
    {"mistral/named-calls", MISTRAL,
     "[TOOL_CALLS]f[ARGS]{\"a\": \"[TOOL_CALLS] }\"}[TOOL_CALLS]g[CALL_ID]abcdefghi[ARGS]{}",
     "||0 f:{\"a\": \"[TOOL_CALLS] }\"}\n1 g abcdefghi:{}\n"},
    {"mistral/named-without-args-marker", MISTRAL, "[TOOL_CALLS]f{\"a\": 1}", "||0 f:{\"a\": 1}\n"},
    {"mistral/one-call-without-a-list", MISTRAL,
     "[TOOL_CALLS]{\"name\":\"f\",\"arguments\":{\"b\":2}}", "||0 f:{\"b\":2}\n"},
    {"mistral/text-then-call", MISTRAL, "Let me look.\n[TOOL_CALLS]f[ARGS]{}",
     "|Let me look.|0 f:{}\n"},
    {"mistral/thinking-is-apart", MISTRAL, "[THINK]hm\n[/THINK]\nHi", "hm|Hi|"},
    {"mistral/call-after-thinking", MISTRAL, "[THINK]hm[/THINK][TOOL_CALLS]f[ARGS]{}",
     "hm||0 f:{}\n"},
    {"mistral/text-is-text", MISTRAL, "a [TOOL and {\"name\": 1} [b]",
     "|a [TOOL and {\"name\": 1} [b]|"},
    {"mistral/cut-off-list-is-text", MISTRAL, "[TOOL_CALLS] [{\"name\": \"f\", \"argu",
     "|{\"name\": \"f\", \"argu|"},
    {"mistral/cut-off-name-is-text", MISTRAL, "[TOOL_CALLS]f[ARGS]{\"a\":", "|f{\"a\":|"},
    {"mistral/cut-off-id-keeps-no-marker", MISTRAL, "[TOOL_CALLS]f[CALL_ID]x", "|f x|"},
    {"mistral/first-call-of-a-cut-list-stays", MISTRAL,
     "[TOOL_CALLS][{\"name\":\"f\",\"arguments\":{}},{\"na", "|{\"na|0 f:{}\n"},
    {"mistral/no-name-is-text", MISTRAL, "[TOOL_CALLS]a b[ARGS]{}", "|a b{}|"},
    {"mistral/stray-markers-are-dropped", MISTRAL, "a[ARGS]b[CALL_ID]c[/THINK]d", "|abcd|"},
    {"mistral/garbage-in-a-list-is-text", MISTRAL, "[TOOL_CALLS][1, 2]x", "|12x|"},
    {"mistral/text-after-calls", MISTRAL, "[TOOL_CALLS][{\"name\":\"f\"}]\nDone.",
     "|Done.|0 f:{}\n"},
    {"kimi-k2/calls", K2,
     "Sure.\n" BEGIN_K2 CALL_K2("functions.get_weather:0", " {\"city\": \"x\"}")
         CALL_K2("functions.a.b:12", "{}") END_K2 "<|im_end|>",
     "|Sure.|0 get_weather functions.get_weather:0:{\"city\": \"x\"}\n1 a.b functions.a.b:12:{}\n"},
    {"kimi-k2/thinking", K2, "<think>hm\n</think>Yes", "hm|Yes|"},
    {"kimi-k2/thinking-without-end", K2, "<think>hm" BEGIN_K2 CALL_K2("functions.f:0", "{}") END_K2,
     "hm||0 f functions.f:0:{}\n"},
    {"kimi-k2/no-section", K2, CALL_K2("f", "{}"), "||0 f f:{}\n"},
    {"kimi-k2/cut-off-in-arguments", K2,
     BEGIN_K2 "<|tool_call_begin|>functions.f:0"
              "<|tool_call_argument_begin|>{\"a\"",
     "||0 f functions.f:0:{\"a\"\n"},
    {"kimi-k2/cut-off-in-id", K2, "t" BEGIN_K2 "<|tool_call_begin|>functions.f", "|t|"},
    {"kimi-k2/call-without-end", K2,
     BEGIN_K2 "<|tool_call_begin|>functions.f:0"
              "<|tool_call_argument_begin|>{}<|tool_call_begin|>functions.g:1"
              "<|tool_call_argument_begin|>{}" END_K2 "after",
     "|after|0 f functions.f:0:{}\n1 g functions.g:1:{}\n"},
    {"kimi-k2/repeated-and-stray-ends", K2, "a<|tool_call_end|>" END_K2 END_K2 "b", "|ab|"},
    {"kimi-k3/reasoning-and-answer", K3,
     "let me\n" C("think") O("response") "\nHi " C("response") C("message") "<|end_of_msg|>",
     "let me\n|\nHi |"},
    {"kimi-k3/calls", K3,
     "t" C("think") O("response") C("response") O("tools") O("call tool=\"get\" index=\"1\"")
         O("argument key=\"city\" type=\"string\"") "a \"b\"\n" C("argument")
             O("argument key=\"n\" type=\"number\"") "3" C("argument") C("call")
                 O("call tool=\"now\" index=\"2\"") C("call") C("tools") C("message"),
     "t||0 get:{\"city\": \"a \\\"b\\\"\\n\", \"n\": 3}\n1 now:{}\n"},
    {"kimi-k3/raw-json", K3,
     C("think") O("tools") O("call tool=\"f\" index=\"1\"")
         O("json type=\"object\"") "{\"a\": tru" C("json") C("call") C("tools"),
     "||0 f:{\"a\": tru\n"},
    {"kimi-k3/no-transition-to-the-answer", K3,
     "t" C("think") O("tools") O("call tool=\"f\" index=\"1\"") C("call") C("tools"),
     "t||0 f:{}\n"},
    {"kimi-k3/no-end-of-thinking", K3, "t" O("tools") O("call tool=\"f\" index=\"1\"") C("call"),
     "t||0 f:{}\n"},
    {"kimi-k3/text-without-element-is-answer", K3, "t" C("think") " \nHi", "t|Hi|"},
    {"kimi-k3/no-tools-no-markers", K3_ANSWERS, "Hi" C("response") C("message") "<|end_of_msg|>",
     "|Hi|"},
    {"kimi-k3/cut-off-in-a-value", K3,
     C("think") O("tools") O("call tool=\"f\" index=\"1\"")
         O("argument key=\"a\" type=\"string\"") "par",
     "||0 f:{\"a\": \"par\"}\n"},
    {"kimi-k3/cut-off-in-a-header", K3, "t" C("think") "<|open|>respo", "t||"},
    {"kimi-k3/wrong-type-is-a-string", K3,
     C("think") O("tools") O("call tool=\"f\" index=\"1\"")
         O("argument key=\"a\" type=\"number\"") "many" C("argument") C("call"),
     "||0 f:{\"a\": \"many\"}\n"},
    {"kimi-k3/escaped-attributes", K3,
     C("think") O("tools") O("call tool=\"f\" index=\"1\"")
         O("argument key=\"a&quot;&amp;b\" type=\"null\"") "null" C("argument") C("call"),
     "||0 f:{\"a\\\"&b\": null}\n"},
    {"kimi-k3/argument-without-end", K3,
     C("think") O("tools") O("call tool=\"f\" index=\"1\"")
         O("argument key=\"a\" type=\"string\"") "x" O("argument key=\"b\" type=\"string\"") "y" C(
             "call") "z",
     "||0 f:{\"a\": \"x\", \"b\": \"y\"}\n"},
};

static void
is_taken_apart_the_same_in_all_pieces(gconstpointer data) {
  const parse_case *one = data;
  gsize size = strlen(one->text);
  g_autofree char *whole = take_apart(one->options, one->text, 0, size);
  g_assert_cmpstr(whole, ==, one->expected);
  for (gsize piece = 1; piece < 4; piece++) {
    g_autofree char *pieces = take_apart(one->options, one->text, 0, piece);
    g_assert_cmpstr(pieces, ==, one->expected);
  }
  for (gsize cut = 1; cut < size; cut++) {
    g_autofree char *parts = take_apart(one->options, one->text, cut, size);
    g_assert_cmpstr(parts, ==, one->expected);
  }
}

/* Pieces of all families in random order: no event breaks the rules (the sink asserts them), and
 * cuts change nothing. */
static void
disorder_breaks_nothing(void) {
  static const char *const pieces[] = {"<think>",
                                       "</think>",
                                       "<tool_call>",
                                       "</tool_call>",
                                       "{\"name\":\"f\",\"arguments\":{}}",
                                       "\n",
                                       "text",
                                       "\"",
                                       "{",
                                       "}",
                                       "[TOOL_CALLS]",
                                       "[ARGS]",
                                       "[CALL_ID]",
                                       "[THINK]",
                                       "[/THINK]",
                                       "[",
                                       "]",
                                       BEGIN_K2,
                                       END_K2,
                                       "<|tool_call_begin|>",
                                       "functions.f:0",
                                       "<|sep|>",
                                       "<|tool_call_argument_begin|>",
                                       "<|tool_call_end|>",
                                       "<|open|>",
                                       "<|close|>",
                                       "call tool=\"f\"",
                                       "argument key=\"a\" type=\"string\"",
                                       "argument key=\"b\" type=\"object\"",
                                       "tools",
                                       "think",
                                       "response",
                                       "json type=\"object\"",
                                       "<|python_tag|>",
                                       ";",
                                       "<|end_of_msg|>",
                                       "\xc3\xa9"};
  oct_rng rng;
  oct_rng_seed(&rng, 11, 0);
  g_test_message("seed 11");
  for (guint round = 0; round < 4000; round++) {
    g_autoptr(GString) text = g_string_new(NULL);
    for (guint n = (guint)oct_rng_below(&rng, 14); n > 0; n--)
      g_string_append(text, pieces[oct_rng_below(&rng, G_N_ELEMENTS(pieces))]);
    oct_parse_options options = {.family =
                                     (oct_parse_family)oct_rng_below(&rng, OCT_PARSE_FAMILY_COUNT),
                                 .tools = oct_rng_below(&rng, 4) > 0,
                                 .begins_in_thinking = oct_rng_below(&rng, 2) > 0};
    g_autofree char *whole = take_apart(options, text->str, 0, MAX(text->len, 1));
    g_autofree char *bytes = take_apart(options, text->str, 0, 1);
    g_autofree char *parts = take_apart(options, text->str, 1 + oct_rng_below(&rng, 40), 7);
    if (!g_str_equal(whole, bytes) || !g_str_equal(whole, parts))
      g_test_message("family %d: '%s'", (int)options.family, text->str);
    g_assert_cmpstr(whole, ==, bytes);
    g_assert_cmpstr(whole, ==, parts);
  }
}

/* Models may write it like any other byte: what has it in a name is no call, and text keeps it. */
static void
nul_is_a_byte_of_text(void) {
  static const struct {
    oct_parse_family family;
    char text[72];
    const char *content;
    guint n_calls;
  } texts[] = {
      {OCT_PARSE_PLAIN, "a\1b", "a\1b", 0},
      {OCT_PARSE_HERMES, "<tool_call>{\"name\":\"f\1\"}</tool_call>", "{\"name\":\"f\1\"}", 0},
      {OCT_PARSE_HERMES, "<tool_call>{\"a\1\":\"</think></tool_call>", "{\"a\1\":\"  ", 0},
      {OCT_PARSE_LLAMA3, "\1a<|python_tag|>", "\1a<|python_tag|>", 0},
      {OCT_PARSE_LLAMA3, "{\"a\1<|python_tag|>\":1", "{\"a\1\":1", 0},
      {OCT_PARSE_LLAMA3, "{\"name\":\"f\"}\1 was called", "\1 was called", 1},
      {OCT_PARSE_LLAMA3, "{\"name\":\"f\"}<\1", "<\1", 1},
      {OCT_PARSE_LLAMA3, "{\"name\":\"f\1\",\"parameters\":{}}",
       "{\"name\":\"f\1\",\"parameters\":{}}", 0},
      {OCT_PARSE_MISTRAL, "[TOOL_CALLS]f\1[ARGS]{\"a\":\"[ARGS]\"}", "f\1{\"a\":\" \"}", 0},
      {OCT_PARSE_MISTRAL, "[TOOL_CALLS][{\"name\":\"\1\"}]", "{\"name\":\"\1\"}", 0},
      {OCT_PARSE_KIMI_K2, "a\1<|tool_call_begin|>functions.f\1:0<|tool_call_argument_begin|>{}",
       "a\1", 0},
      {OCT_PARSE_KIMI_K3, "a\1" C("response") O("call tool=\"f\1\""), "a\1", 0},
      {OCT_PARSE_KIMI_K3, "a" C("response") O("think\1") "b", "ab", 0},
  };
  for (gsize i = 0; i < G_N_ELEMENTS(texts); i++)
    for (gsize piece = 1; piece < 80; piece += 26) {
      seen s = {g_string_new(NULL), g_string_new(NULL), g_string_new(NULL), FALSE};
      const oct_parse_options options = {
          .family = texts[i].family, .tools = TRUE, .sink = sink, .data = &s};
      g_autoptr(oct_parser) parser = oct_parser_new(&options);
      g_autofree char *text = g_strdup(texts[i].text), *content = g_strdup(texts[i].content);
      gsize size = strlen(text), n = strlen(content);
      for (gsize k = 0; k < size; k++)
        text[k] = text[k] == '\1' ? '\0' : text[k];
      for (gsize k = 0; k < n; k++)
        content[k] = content[k] == '\1' ? '\0' : content[k];
      for (gsize at = 0; at < size; at += piece)
        oct_parser_push(parser, text + at, MIN(piece, size - at));
      oct_parser_finish(parser);
      g_assert_cmpmem(s.content->str, s.content->len, content, n);
      g_assert_cmpuint(oct_parser_n_calls(parser), ==, texts[i].n_calls);
      g_string_free(s.content, TRUE);
      g_string_free(s.reasoning, TRUE);
      g_string_free(s.calls, TRUE);
    }
}

/* An answer that can be no call is not kept back. */
static void
nul_is_told_at_once(void) {
  static const char *const begins[] = {"", " ", "<", "<|python_tag|>", "<|python_tag|> "};
  for (gsize i = 0; i < G_N_ELEMENTS(begins); i++) {
    seen s = {g_string_new(NULL), g_string_new(NULL), g_string_new(NULL), FALSE};
    const oct_parse_options options = {
        .family = OCT_PARSE_LLAMA3, .tools = TRUE, .sink = sink, .data = &s};
    g_autoptr(oct_parser) parser = oct_parser_new(&options);
    oct_parser_push(parser, begins[i], strlen(begins[i]));
    oct_parser_push(parser, "\0a", 2);
    g_assert_cmpuint(s.content->len, >=, 2);
    g_assert_cmpmem(s.content->str + s.content->len - 2, 2, "\0a", 2);
    g_string_free(s.content, TRUE);
    g_string_free(s.reasoning, TRUE);
    g_string_free(s.calls, TRUE);
  }
}

static void
expect_no_markers(const char *text, oct_parse_options options) {
  static const char *const markers[] = {"<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"};
  g_autofree char *out = take_apart(options, text, 0, 1);
  for (gsize i = 0; i < G_N_ELEMENTS(markers); i++) {
    if (strstr(out, markers[i]) != NULL)
      g_test_message("'%s' gives '%s'", text, out);
    g_assert_null(strstr(out, markers[i]));
  }
}

/* Kimi K3's markers are in no text that a client gets: of a stream that ends anywhere, that has
 * pieces twice, too few or in another order. */
static void
markers_of_kimi_k3_never_leak(void) {
  static const char *const pieces[] = {O("think"),
                                       C("think"),
                                       O("response"),
                                       C("response"),
                                       O("tools"),
                                       C("tools"),
                                       O("call tool=\"f\" index=\"1\""),
                                       C("call"),
                                       O("argument key=\"a\" type=\"string\""),
                                       O("argument key=\"b\" type=\"number\""),
                                       C("argument"),
                                       O("json type=\"object\""),
                                       C("json"),
                                       O("message role=\"assistant\""),
                                       C("message"),
                                       "<|open|>",
                                       "<|close|>",
                                       "<|sep|>",
                                       "<|end_of_msg|>",
                                       "text",
                                       "1",
                                       "\xe4\xbd\xa0",
                                       "\n"};
  oct_rng rng;
  oct_rng_seed(&rng, 12, 0);
  g_test_message("seed 12");
  for (guint round = 0; round < 3000; round++) {
    g_autoptr(GString) text = g_string_new(NULL);
    /* A good stream, then strikes: pieces that are lost, repeated or put elsewhere. */
    for (guint n = (guint)oct_rng_below(&rng, 18); n > 0; n--)
      g_string_append(text, pieces[round % 2 == 0 ? (G_N_ELEMENTS(pieces) - n) % 15
                                                  : oct_rng_below(&rng, G_N_ELEMENTS(pieces))]);
    g_string_truncate(text, oct_rng_below(&rng, text->len + 1));
    const oct_parse_options options = {.family = OCT_PARSE_KIMI_K3,
                                       .tools = oct_rng_below(&rng, 2) > 0,
                                       .begins_in_thinking = oct_rng_below(&rng, 2) > 0};
    expect_no_markers(text->str, options);
  }
  static const char good[] = "a" C("think") O("response") "b" C("response") O("tools")
      O("call tool=\"f\" index=\"1\"") O("argument key=\"a\" type=\"string\"") "x" C("argument")
          C("call") C("tools") "<|end_of_msg|>";
  for (gsize n = 0; n <= sizeof good - 1; n++) {
    g_autofree char *cut = g_strndup(good, n);
    expect_no_markers(cut, (oct_parse_options)K3);
  }
}

static void
ignore_event(gpointer data, const oct_parse_event *event) {
  (void)event;
  ++*(guint *)data;
}

static void
calls_are_limited(void) {
  guint n = 0;
  oct_parse_options options = {.family = OCT_PARSE_HERMES, .sink = ignore_event, .data = &n};
  g_autoptr(oct_parser) parser = oct_parser_new(&options);
  const char *call = "<tool_call>{\"name\":\"f\"}</tool_call>";
  for (guint i = 0; i < OCT_PARSE_CALLS_MAX + 5; i++)
    oct_parser_push(parser, call, strlen(call));
  oct_parser_finish(parser);
  g_assert_cmpuint(oct_parser_n_calls(parser), ==, OCT_PARSE_CALLS_MAX);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
    g_autofree char *path = g_strdup_printf("/text/parse/%s", cases[i].name);
    g_test_add_data_func(path, &cases[i], is_taken_apart_the_same_in_all_pieces);
  }
  g_test_add_func("/text/parse/nul-is-a-byte-of-text", nul_is_a_byte_of_text);
  g_test_add_func("/text/parse/nul-is-told-at-once", nul_is_told_at_once);
  g_test_add_func("/text/parse/disorder-breaks-nothing", disorder_breaks_nothing);
  g_test_add_func("/text/parse/markers-of-kimi-k3-never-leak", markers_of_kimi_k3_never_leak);
  g_test_add_func("/text/parse/calls-are-limited", calls_are_limited);
  return g_test_run();
}
