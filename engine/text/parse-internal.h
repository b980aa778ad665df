/* What the families share. Only parse*.c include this. */
#ifndef OCT_TEXT_PARSE_INTERNAL_H
#define OCT_TEXT_PARSE_INTERNAL_H

#include "engine/text/parse.h"
#include "engine/text/stop.h"

/* Follows JSON byte by byte: enough to know where a value ends. */
typedef struct oct_json_scan {
  gboolean in_string, escaped, begun;
  guint32 depth;
} oct_json_scan;
/* TRUE when this byte ends the object or list that the text began with. */
gboolean oct_json_scan_byte(oct_json_scan *scan, char byte);
/* The bytes of a member of an object, as they are written: `json` is valid. FALSE: there is none.
 */
gboolean oct_json_member(const char *json, gsize size, const char *key, const char **begin,
                         gsize *n);
/* Whether all of it is one object of valid JSON. */
gboolean oct_json_is_object(const char *json, gsize size);
/* Appends text as the inside of a JSON string. */
void oct_json_escape(const char *text, gsize size, GString *out);

typedef enum oct_parse_state {
  STATE_THINKING,
  STATE_ANSWER,
  /* Hermes, Llama 3, Mistral */
  STATE_BODY, /* JSON of a call */
  STATE_BETWEEN,
  /* Kimi K2; Mistral: a list of calls */
  STATE_SECTION,
  STATE_ID,
  STATE_ARGUMENTS,
  /* Kimi K3 */
  STATE_OPEN,  /* between <|open|> and <|sep|> */
  STATE_CLOSE, /* between <|close|> and <|sep|> */
  STATE_ELEMENT,
} oct_parse_state;

struct oct_parser {
  oct_parse_options options;
  oct_parse_state state;
  oct_stop_set *markers;
  oct_stop_matcher matcher;
  GString *found; /* text in front of a marker */
  GString *body;  /* of what must be whole */
  GString *blank; /* white space at the end of text, which may have to go */
  gboolean trim;  /* the next text loses its leading newlines */
  gboolean wrote; /* answer text was reported */
  gboolean call_open;
  guint n_calls;
  oct_json_scan scan;
  struct oct_xtml *xtml;
};

/* Text of the answer or the reasoning. Newlines at its end are kept back until more comes. */
void oct_parse_text(oct_parser *p, oct_parse_kind kind, const char *text, gsize size);
/* Drops, or reports as answer text, what was kept back. */
void oct_parse_blank(oct_parser *p, oct_parse_kind kind, gboolean drop);
/* Begins a call; FALSE when there are too many. `id` may be NULL. */
gboolean oct_parse_call(oct_parser *p, const char *name, const char *id);
void oct_parse_arguments(oct_parser *p, const char *text, gsize size);
void oct_parse_call_end(oct_parser *p);
/* A body that is a call: {"name": …, "arguments" or "parameters": …}. FALSE when it is not. */
gboolean oct_parse_json_call(oct_parser *p, const char *json, gsize size);

/* What the body holds is no call: answer text, with a space for each marker. The body is empty
 * then. */
void oct_parse_body_is_text(oct_parser *p, const char *const *markers, guint n_markers);

/* A family: its markers, and what text in front of marker `which` (-1: of none) means. */
typedef struct oct_parse_ops {
  const char *const *markers;
  guint n_markers;
  void (*text)(oct_parser *p, const char *text, gsize size, int which);
  void (*finish)(oct_parser *p);
} oct_parse_ops;
extern const oct_parse_ops oct_parse_plain, oct_parse_hermes, oct_parse_mistral, oct_parse_kimi_k2,
    oct_parse_kimi_k3;
void oct_parse_llama3_push(oct_parser *p, const char *text, gsize size);
void oct_parse_llama3_finish(oct_parser *p);

struct oct_xtml *oct_xtml_new(gboolean thinking);
void oct_xtml_free(struct oct_xtml *xtml); /* accepts NULL */

#endif
