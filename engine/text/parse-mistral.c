/* Mistral: [TOOL_CALLS] and a list of calls as JSON (tokenizers up to version 7), or for each call
 * [TOOL_CALLS], its name, [CALL_ID] and an id or not, [ARGS] and the arguments (from version 11).
 * Reasoning stands between [THINK] and [/THINK]. All markers are control tokens. */
#include <string.h>

#include "engine/text/parse-internal.h"

enum { CALLS, ARGS, CALL_ID, THINK, THINK_END };

static const char *const markers[] = {"[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]"};

#define ID_MARK '\001' /* in the body, between a name and an id: no name has it */

static gboolean
is_blank(char byte) {
  return byte == ' ' || byte == '\n' || byte == '\t' || byte == '\r';
}

static void
give_up(oct_parser *p) {
  for (gsize i = 0; i < p->body->len; i++)
    if (p->body->str[i] == ID_MARK)
      p->body->str[i] = ' ';
  oct_parse_body_is_text(p, markers, G_N_ELEMENTS(markers));
}

static void
end_calls(oct_parser *p) {
  if (p->body->len > 0)
    give_up(p);
  p->state = STATE_ANSWER;
  p->trim = TRUE;
}

/* name, id or none, arguments: the body is whole. A name has no NUL. */
static void
end_named(oct_parser *p) {
  const char *args = memchr(p->body->str, '{', p->body->len);
  gsize head = (gsize)(args - p->body->str);
  if (memchr(p->body->str, '\0', head) != NULL) {
    end_calls(p);
    return;
  }
  g_autofree char *name = g_strndup(p->body->str, head);
  char *id = strchr(name, ID_MARK);
  if (id != NULL)
    *id++ = '\0';
  g_strstrip(name);
  if (id != NULL)
    g_strstrip(id);
  gsize size = p->body->len - head;
  if (*name != '\0' && strpbrk(name, " \n\t\"") == NULL && oct_json_is_object(args, size)) {
    if (oct_parse_call(p, name, id != NULL && *id != '\0' ? id : NULL)) {
      oct_parse_arguments(p, args, size);
      oct_parse_call_end(p);
    }
    g_string_truncate(p->body, 0);
  }
  end_calls(p);
}

/* A byte of a list: its elements are reported as each ends. */
static void
list_byte(oct_parser *p, char byte) {
  gboolean ended = oct_json_scan_byte(&p->scan, byte);
  if (ended) {
    end_calls(p);
    return;
  }
  if (p->scan.depth == 1 && !p->scan.in_string && byte != '}') {
    if (!is_blank(byte) && byte != ',')
      g_string_append_c(p->body, byte);
    return;
  }
  g_string_append_c(p->body, byte);
  if (p->scan.depth == 1 && byte == '}' && !p->scan.in_string) {
    if (oct_parse_json_call(p, p->body->str, p->body->len))
      g_string_truncate(p->body, 0);
    else
      give_up(p);
  }
}

static void
body_byte(oct_parser *p, char byte) {
  if (p->state == STATE_SECTION) {
    list_byte(p, byte);
    return;
  }
  if (!p->scan.begun && p->body->len == 0 && is_blank(byte))
    return;
  gboolean first = p->body->len == 0;
  if (first && byte == '[') {
    p->state = STATE_SECTION;
    (void)oct_json_scan_byte(&p->scan, byte);
    return;
  }
  g_string_append_c(p->body, byte);
  if (!p->scan.begun && byte != '{') {
    if (p->body->len > OCT_PARSE_HEADER_BYTES_MAX)
      end_calls(p);
    return;
  }
  if (!oct_json_scan_byte(&p->scan, byte))
    return;
  if (!first && p->body->str[0] != '{')
    end_named(p);
  else { /* one call without a list */
    if (oct_parse_json_call(p, p->body->str, p->body->len))
      g_string_truncate(p->body, 0);
    end_calls(p);
  }
}

static void
body_text(oct_parser *p, const char *text, gsize size) {
  for (gsize i = 0; i < size; i++) {
    if (p->state != STATE_BODY && p->state != STATE_SECTION) {
      oct_parse_text(p, OCT_PARSE_CONTENT, text + i, size - i);
      return;
    }
    if (p->body->len >= OCT_PARSE_CALL_BYTES_MAX)
      end_calls(p);
    else
      body_byte(p, text[i]);
    if (p->state == STATE_ANSWER && p->body->len > 0)
      give_up(p);
  }
}

static void
begin_calls(oct_parser *p) {
  oct_parse_blank(p, OCT_PARSE_CONTENT, TRUE);
  p->scan = (oct_json_scan){0};
  p->state = STATE_BODY;
}

/* A marker in a call. */
static void
body_marker(oct_parser *p, int which) {
  if (p->scan.in_string)
    body_text(p, markers[which], strlen(markers[which]));
  else if (which == CALL_ID && !p->scan.begun && p->body->len > 0)
    g_string_append_c(p->body, ID_MARK);
  else if (which == CALLS) {
    end_calls(p);
    begin_calls(p);
  }
}

static void
mistral_text(oct_parser *p, const char *text, gsize size, int which) {
  if (p->state == STATE_BODY || p->state == STATE_SECTION) {
    body_text(p, text, size);
    if (p->state == STATE_BODY || p->state == STATE_SECTION) {
      if (which >= 0)
        body_marker(p, which);
      return;
    }
  } else {
    oct_parse_text(p, p->state == STATE_THINKING ? OCT_PARSE_REASONING : OCT_PARSE_CONTENT, text,
                   size);
  }
  if (which == CALLS && p->state == STATE_ANSWER) {
    begin_calls(p);
  } else if (which == THINK && !p->wrote && p->state == STATE_ANSWER) {
    oct_parse_blank(p, OCT_PARSE_CONTENT, TRUE);
    p->state = STATE_THINKING;
    p->trim = TRUE;
  } else if (which == THINK_END) {
    gboolean thinking = p->state == STATE_THINKING;
    oct_parse_blank(p, OCT_PARSE_CONTENT, thinking);
    p->state = STATE_ANSWER;
    p->trim = p->trim || thinking;
  }
}

static void
mistral_finish(oct_parser *p) {
  if (p->state == STATE_BODY || p->state == STATE_SECTION)
    end_calls(p);
  oct_parse_blank(p, OCT_PARSE_CONTENT, p->state == STATE_THINKING);
}

const oct_parse_ops oct_parse_mistral = {.markers = markers,
                                         .n_markers = G_N_ELEMENTS(markers),
                                         .text = mistral_text,
                                         .finish = mistral_finish};
