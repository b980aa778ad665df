/* What a model wrote, taken apart as it comes: answer, reasoning, tool calls.
 *
 * The parser reads the text of the detokenizer (of control tokens with those alone that are markers
 * of the family: oct_parse_markers()) in any pieces, and reports events. All the events of
 * a kind and tool call together are the same however the text was cut. Markers of the family are
 * never part of an event, however a stream is broken off or disordered: what is not understood is
 * answer text without them. (Ordinary text in front of and behind one that is taken out may spell
 * another.) NUL is a byte like others, but in no name. Linear in the text.
 *
 * Model output is input like any other: nothing here is executed, and every buffer has a limit.
 */
#ifndef OCT_TEXT_PARSE_H
#define OCT_TEXT_PARSE_H

#include <glib.h>

/* Limits. */
#define OCT_PARSE_HEADER_BYTES_MAX 65536u     /* a call's name or id, an element's attributes */
#define OCT_PARSE_CALL_BYTES_MAX   (4u << 20) /* a call that must be whole before it is reported */
#define OCT_PARSE_CALLS_MAX        1024u      /* of an answer; later ones are dropped */

typedef enum oct_parse_family {
  OCT_PARSE_PLAIN,   /* <think>…</think>, no tools */
  OCT_PARSE_HERMES,  /* Qwen: <tool_call>{"name": …, "arguments": …}</tool_call> */
  OCT_PARSE_LLAMA3,  /* an answer that is {"name": …, "parameters": …}, several between ; */
  OCT_PARSE_MISTRAL, /* [TOOL_CALLS] [{"name": …}], or [TOOL_CALLS]name[ARGS]{…} */
  OCT_PARSE_KIMI_K2, /* <|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>… */
  OCT_PARSE_KIMI_K3, /* XTML */
  OCT_PARSE_FAMILY_COUNT
} oct_parse_family;

typedef enum oct_parse_kind {
  OCT_PARSE_CONTENT,   /* text of the answer */
  OCT_PARSE_REASONING, /* text of the reasoning */
  OCT_PARSE_CALL,      /* a tool call begins: name, and the model's id when it gives one */
  OCT_PARSE_ARGUMENTS, /* text of its arguments: together JSON when the model wrote JSON */
  OCT_PARSE_CALL_END,
} oct_parse_kind;

typedef struct oct_parse_event {
  oct_parse_kind kind;
  guint call;       /* the tool call's place, from 0 */
  const char *text; /* CONTENT, REASONING, ARGUMENTS; valid during the call of the sink */
  gsize size;       /* > 0 for these */
  const char *name; /* CALL */
  const char *id;   /* CALL; NULL when the model gives none */
} oct_parse_event;

typedef void (*oct_parse_sink)(gpointer data, const oct_parse_event *event);

typedef struct oct_parse_options {
  oct_parse_family family;
  gboolean tools;              /* tools were offered: without, calls of Llama's kind are text */
  gboolean begins_in_thinking; /* the prompt ends inside the reasoning */
  oct_parse_sink sink;
  gpointer data; /* for the sink, borrowed */
} oct_parse_options;

typedef struct oct_parser oct_parser;

/* Life cycle. */
oct_parser *oct_parser_new(const oct_parse_options *options);
void oct_parser_free(oct_parser *parser); /* accepts NULL */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(oct_parser, oct_parser_free)

/* Use. The sink is called from within. */
void oct_parser_push(oct_parser *parser, const char *text, gsize size);
/* The text has ended: reports what was held back, and ends an open call. */
void oct_parser_finish(oct_parser *parser);

/* The family's markers, static: what the detokenizer keeps of control tokens
 * (oct_detokenizer_keep()). NULL and n 0 for a family without. */
const char *const *oct_parse_markers(oct_parse_family family, guint *n);

/* Calls that were reported. */
guint oct_parser_n_calls(const oct_parser *parser);

#endif
