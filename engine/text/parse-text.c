/* The families whose markers are text: <think>, <tool_call>, and Llama 3's bare JSON. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* memmem() */
#endif
#include <string.h>

#include "engine/text/parse-internal.h"

/* --- <think> -------------------------------------------------------------------------------------
 */

enum { THINK, THINK_END, CALL, CALL_END };

static const char *const markers[] = {"<think>", "</think>", "<tool_call>", "</tool_call>"};

/* <think> opens the reasoning only in front of the answer; </think> without one is dropped. */
static void
think_marker(oct_parser *p, int which) {
  if (which == THINK && !p->wrote && p->state == STATE_ANSWER) {
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
plain_text(oct_parser *p, const char *text, gsize size, int which) {
  oct_parse_text(p, p->state == STATE_THINKING ? OCT_PARSE_REASONING : OCT_PARSE_CONTENT, text,
                 size);
  think_marker(p, which);
}

static void
plain_finish(oct_parser *p) {
  oct_parse_blank(p, OCT_PARSE_CONTENT, p->state == STATE_THINKING);
}

const oct_parse_ops oct_parse_plain = {
    .markers = markers, .n_markers = 2, .text = plain_text, .finish = plain_finish};

/* --- Hermes
 * ---------------------------------------------------------------------------------------- */

static void
body_text(oct_parser *p, const char *text, gsize size) {
  if (p->body->len + size > OCT_PARSE_CALL_BYTES_MAX)
    return; /* what is beyond the limit makes the call invalid */
  for (gsize i = 0; i < size; i++)
    (void)oct_json_scan_byte(&p->scan, text[i]);
  g_string_append_len(p->body, text, (gssize)size);
}

/* A body that is no call is answer text, without its markers. */
static void
end_body(oct_parser *p) {
  if (!oct_parse_json_call(p, p->body->str, p->body->len))
    oct_parse_body_is_text(p, markers, G_N_ELEMENTS(markers));
  g_string_truncate(p->body, 0);
  p->scan = (oct_json_scan){0};
}

static void
hermes_text(oct_parser *p, const char *text, gsize size, int which) {
  if (p->state == STATE_BODY) {
    body_text(p, text, size);
    /* Within a string of the arguments a marker is text. */
    if (which >= 0 && p->scan.in_string)
      body_text(p, markers[which], strlen(markers[which]));
    else if (which == CALL_END || which == CALL) {
      end_body(p);
      p->state = which == CALL ? STATE_BODY : STATE_ANSWER;
      p->trim = TRUE;
    }
    return;
  }
  plain_text(p, text, size, which);
  if (which == CALL && p->state == STATE_ANSWER) {
    oct_parse_blank(p, OCT_PARSE_CONTENT, TRUE);
    p->state = STATE_BODY;
  }
}

static void
hermes_finish(oct_parser *p) {
  if (p->state == STATE_BODY && p->body->len > 0)
    end_body(p);
  plain_finish(p);
}

const oct_parse_ops oct_parse_hermes = {
    .markers = markers, .n_markers = 4, .text = hermes_text, .finish = hermes_finish};

/* --- Llama 3
 * ----------------------------------------------------------------------------------------- */

/* More white space than this in front is an answer. */
#define BLANK_BYTES_MAX 1024u

static const char python_tag[] = "<|python_tag|>";

/* Before the first byte that decides: white space, and the tag or a beginning of it. NUL, where the
 * body does not end, decides like others. */
static gboolean
may_be_call(oct_parser *p) {
  const char *text = p->body->str, *end = text + p->body->len;
  if (p->body->len > BLANK_BYTES_MAX)
    return FALSE;
  while (*text == ' ' || *text == '\n' || *text == '\t' || *text == '\r' || *text == ';')
    text++;
  if (strncmp(text, python_tag, strlen(python_tag)) == 0) {
    text += strlen(python_tag);
    while (*text == ' ' || *text == '\n')
      text++;
  } else if (*text == '<')
    return text + strlen(text) == end && strncmp(text, python_tag, strlen(text)) == 0;
  if (text == end)
    return TRUE;
  if (*text != '{')
    return FALSE;
  g_string_erase(p->body, 0, text - p->body->str);
  p->state = STATE_BODY;
  return TRUE;
}

static void
llama3_answer(oct_parser *p) {
  const char *text = p->body->str;
  const char *bare = memmem(text, p->body->len, python_tag, strlen(python_tag));
  if (bare != NULL)
    g_string_erase(p->body, bare - text, (gssize)strlen(python_tag));
  oct_parse_text(p, OCT_PARSE_CONTENT, p->body->str, p->body->len);
  g_string_truncate(p->body, 0);
  p->state = STATE_ANSWER;
}

void
oct_parse_llama3_push(oct_parser *p, const char *text, gsize size) {
  if (p->state != STATE_BODY && p->state != STATE_BETWEEN)
    p->state = p->wrote || p->blank->len > 0 || !p->options.tools ? STATE_ANSWER : STATE_BETWEEN;
  for (gsize i = 0; i < size; i++) {
    if (p->state == STATE_ANSWER || p->body->len >= OCT_PARSE_CALL_BYTES_MAX) {
      if (p->state != STATE_ANSWER)
        llama3_answer(p);
      oct_parse_text(p, OCT_PARSE_CONTENT, text + i, size - i);
      return;
    }
    g_string_append_c(p->body, text[i]);
    if (p->state == STATE_BETWEEN) {
      p->scan = (oct_json_scan){0};
      if (!may_be_call(p))
        llama3_answer(p);
      else if (p->state == STATE_BODY)
        (void)oct_json_scan_byte(&p->scan, '{');
    } else if (oct_json_scan_byte(&p->scan, text[i])) {
      p->state = STATE_BETWEEN;
      if (oct_parse_json_call(p, p->body->str, p->body->len))
        g_string_truncate(p->body, 0);
      else
        llama3_answer(p);
    }
  }
}

void
oct_parse_llama3_finish(oct_parser *p) {
  gboolean only_blank = p->state == STATE_BETWEEN && p->n_calls > 0;
  if (p->body->len > 0 && !only_blank)
    llama3_answer(p);
  oct_parse_blank(p, OCT_PARSE_CONTENT, FALSE);
  oct_parse_call_end(p);
}
