/* The Kimi families, whose markers are control tokens. */
#include <jansson.h>
#include <string.h>

#include "engine/text/parse-internal.h"

/* --- K2
 * -------------------------------------------------------------------------------------------- */

enum { SECTION, SECTION_END, CALL, ARGUMENTS, CALL_END, THINK, THINK_END, END };

static const char *const k2_markers[] = {"<|tool_calls_section_begin|>",
                                         "<|tool_calls_section_end|>",
                                         "<|tool_call_begin|>",
                                         "<|tool_call_argument_begin|>",
                                         "<|tool_call_end|>",
                                         "<think>",
                                         "</think>",
                                         "<|im_end|>"};

/* "functions.name:0" names its function; other ids are names themselves. */
static void
k2_call(oct_parser *p) {
  g_autofree char *id = g_strstrip(g_strndup(p->body->str, p->body->len));
  const char *begin = g_str_has_prefix(id, "functions.") ? id + strlen("functions.") : id;
  const char *colon = strrchr(begin, ':');
  gboolean number =
      colon != NULL && colon[1] != 0 && strspn(colon + 1, "0123456789") == strlen(colon + 1);
  g_autofree char *name = number ? g_strndup(begin, (gsize)(colon - begin)) : g_strdup(begin);
  gboolean whole = memchr(p->body->str, 0, p->body->len) == NULL; /* a name has no NUL */
  g_string_truncate(p->body, 0);
  if (*name != 0 && whole)
    (void)!oct_parse_call(p, name, id);
}

static void
k2_text(oct_parser *p, const char *text, gsize size, int which) {
  switch ((int)p->state) {
  case STATE_THINKING:
    oct_parse_text(p, OCT_PARSE_REASONING, text, size);
    break;
  case STATE_ANSWER:
    oct_parse_text(p, OCT_PARSE_CONTENT, text, size);
    break;
  case STATE_ID:
    if (p->body->len + size <= OCT_PARSE_HEADER_BYTES_MAX)
      g_string_append_len(p->body, text, (gssize)size);
    break;
  case STATE_ARGUMENTS:
    /* White space in front of the arguments is not theirs. */
    while (p->trim && size > 0 && g_ascii_isspace(*text))
      text++, size--;
    p->trim = p->trim && size == 0;
    oct_parse_arguments(p, text, size);
    break;
  default: /* STATE_SECTION: between calls */
    break;
  }
  if (which < 0)
    return;
  gboolean thinking = p->state == STATE_THINKING, answer = p->state == STATE_ANSWER;
  if (which == THINK || which == THINK_END) {
    if (which == THINK && answer && !p->wrote)
      p->state = STATE_THINKING;
    else if (which == THINK_END && thinking)
      p->state = STATE_ANSWER;
    else
      return;
    oct_parse_blank(p, OCT_PARSE_CONTENT, TRUE);
    p->trim = TRUE;
    return;
  }
  if (which == END)
    return;
  /* Any marker of a call ends the reasoning and the answer's text: the section's may be missing. */
  if (thinking || answer)
    oct_parse_blank(p, OCT_PARSE_CONTENT, which == SECTION || which == CALL || thinking);
  if (p->state == STATE_ARGUMENTS && which != ARGUMENTS)
    oct_parse_call_end(p);
  if (which == ARGUMENTS && p->state == STATE_ID) {
    k2_call(p);
    p->state = STATE_ARGUMENTS;
    p->trim = TRUE;
  } else if (which == CALL) {
    g_string_truncate(p->body, 0);
    p->state = STATE_ID;
  } else if (which == SECTION || (which == CALL_END && !answer && !thinking))
    p->state = STATE_SECTION;
  else if (which == SECTION_END && !answer && !thinking) {
    p->state = STATE_ANSWER;
    p->trim = TRUE;
  }
}

static void
k2_finish(oct_parser *p) {
  oct_parse_blank(p, OCT_PARSE_CONTENT, p->state != STATE_ANSWER);
}

const oct_parse_ops oct_parse_kimi_k2 = {.markers = k2_markers,
                                         .n_markers = G_N_ELEMENTS(k2_markers),
                                         .text = k2_text,
                                         .finish = k2_finish};

/* --- K3
 * -------------------------------------------------------------------------------------------- */

enum { OPEN, CLOSE, SEPARATOR, END_OF_MESSAGE };

static const char *const k3_markers[] = {"<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"};

typedef enum oct_xtml_where {
  IN_THINK,
  IN_RESPONSE,
  IN_NOTHING,  /* after an element: what is text here has lost its element */
  IN_TOOLS,    /* between calls */
  IN_CALL,     /* between arguments */
  IN_ARGUMENT, /* a value */
  IN_JSON,     /* all the arguments as they are */
} oct_xtml_where;

struct oct_xtml {
  oct_xtml_where where;
  GString *header; /* between <|open|> or <|close|> and <|sep|> */
  GString *value;  /* of an argument that is not a string */
  gboolean is_string, first_argument, raw;
};

struct oct_xtml *
oct_xtml_new(gboolean thinking) {
  struct oct_xtml *x = g_new0(struct oct_xtml, 1);
  x->where = thinking ? IN_THINK : IN_RESPONSE;
  x->header = g_string_new(NULL);
  x->value = g_string_new(NULL);
  return x;
}

void
oct_xtml_free(struct oct_xtml *x) {
  if (x == NULL)
    return;
  g_string_free(x->header, TRUE);
  g_string_free(x->value, TRUE);
  g_free(x);
}

/* The value of key="…" in a header, its escapes undone; NULL when there is none, or NUL in it. */
static char *
attribute(const GString *header, const char *key) {
  g_autofree char *wanted = g_strconcat(" ", key, "=\"", NULL);
  const char *begin = strstr(header->str, wanted);
  if (begin == NULL || strlen(header->str) != header->len)
    return NULL;
  begin += strlen(wanted);
  const char *end = strchr(begin, '"');
  g_autoptr(GString) value = g_string_new_len(begin, end == NULL ? -1 : end - begin);
  g_string_replace(value, "&quot;", "\"", 0);
  g_string_replace(value, "&amp;", "&", 0);
  return g_string_free(g_steal_pointer(&value), FALSE);
}

static void
append_arguments(oct_parser *p, const char *text) {
  oct_parse_arguments(p, text, strlen(text));
}

static void
end_argument(oct_parser *p) {
  struct oct_xtml *x = p->xtml;
  if (x->where != IN_ARGUMENT)
    return;
  x->where = IN_CALL;
  if (x->is_string) {
    append_arguments(p, "\"");
    return;
  }
  /* What does not hold the type that it claims is a string. */
  json_t *value = json_loadb(x->value->str, x->value->len, JSON_DECODE_ANY, NULL);
  g_autoptr(GString) text = g_string_new(NULL);
  if (value == NULL) {
    g_string_append_c(text, '"');
    oct_json_escape(x->value->str, x->value->len, text);
    g_string_append_c(text, '"');
  } else
    g_string_append_len(text, x->value->str, (gssize)x->value->len);
  oct_parse_arguments(p, text->str, text->len);
  g_clear_pointer(&value, json_decref);
}

static void
end_call(oct_parser *p) {
  struct oct_xtml *x = p->xtml;
  end_argument(p);
  if (x->where != IN_CALL && x->where != IN_JSON)
    return;
  if (!x->raw)
    append_arguments(p, x->first_argument ? "{}" : "}");
  oct_parse_call_end(p);
  x->where = IN_TOOLS;
}

/* XTML says where text ends: newlines at the end of a channel are its own. */
static void
leave(oct_parser *p) {
  oct_parse_blank(p, p->xtml->where == IN_THINK ? OCT_PARSE_REASONING : OCT_PARSE_CONTENT, FALSE);
  end_call(p);
}

static void
open_call(oct_parser *p) {
  struct oct_xtml *x = p->xtml;
  g_autofree char *name = attribute(x->header, "tool");
  leave(p);
  if (name != NULL && *name != 0)
    (void)!oct_parse_call(p, name, NULL);
  x->where = IN_CALL;
  x->first_argument = TRUE;
  x->raw = FALSE;
}

static void
open_argument(oct_parser *p) {
  struct oct_xtml *x = p->xtml;
  g_autofree char *key = attribute(x->header, "key"), *type = attribute(x->header, "type");
  end_argument(p);
  if (x->where != IN_CALL || key == NULL || x->raw)
    return;
  g_autoptr(GString) text = g_string_new(x->first_argument ? "{\"" : ", \"");
  oct_json_escape(key, strlen(key), text);
  x->is_string = type == NULL || g_str_equal(type, "string");
  g_string_append(text, x->is_string ? "\": \"" : "\": ");
  oct_parse_arguments(p, text->str, text->len);
  g_string_truncate(x->value, 0);
  x->first_argument = FALSE;
  x->where = IN_ARGUMENT;
}

static gboolean
is_tag(const GString *header, const char *tag) {
  gsize n = strlen(tag);
  return strncmp(header->str, tag, n) == 0 && (header->len == n || header->str[n] == ' ');
}

static void
open_element(oct_parser *p) {
  struct oct_xtml *x = p->xtml;
  if (is_tag(x->header, "call"))
    open_call(p);
  else if (is_tag(x->header, "argument"))
    open_argument(p);
  else if (is_tag(x->header, "json")) {
    if (x->where == IN_CALL && x->first_argument) {
      x->raw = TRUE;
      x->where = IN_JSON;
    }
  } else {
    leave(p);
    x->where = is_tag(x->header, "think")      ? IN_THINK
               : is_tag(x->header, "response") ? IN_RESPONSE
               : is_tag(x->header, "tools")    ? IN_TOOLS
                                               : IN_NOTHING;
  }
}

static void
close_element(oct_parser *p) {
  struct oct_xtml *x = p->xtml;
  if (is_tag(x->header, "argument"))
    end_argument(p);
  else if (is_tag(x->header, "json")) {
    if (x->where == IN_JSON)
      x->where = IN_CALL;
  } else if (is_tag(x->header, "call"))
    end_call(p);
  else {
    leave(p);
    x->where = IN_NOTHING;
  }
}

static void
k3_content(oct_parser *p, const char *text, gsize size) {
  struct oct_xtml *x = p->xtml;
  switch (x->where) {
  case IN_THINK:
    oct_parse_text(p, OCT_PARSE_REASONING, text, size);
    break;
  case IN_NOTHING:
    while (size > 0 && g_ascii_isspace(*text))
      text++, size--;
    if (size > 0)
      x->where = IN_RESPONSE;
    oct_parse_text(p, OCT_PARSE_CONTENT, text, size);
    break;
  case IN_RESPONSE:
    oct_parse_text(p, OCT_PARSE_CONTENT, text, size);
    break;
  case IN_ARGUMENT:
    if (x->is_string) {
      g_autoptr(GString) escaped = g_string_new(NULL);
      oct_json_escape(text, size, escaped);
      oct_parse_arguments(p, escaped->str, escaped->len);
    } else if (x->value->len + size <= OCT_PARSE_CALL_BYTES_MAX)
      g_string_append_len(x->value, text, (gssize)size);
    break;
  case IN_JSON:
    oct_parse_arguments(p, text, size);
    break;
  case IN_TOOLS:
  case IN_CALL:
  default:
    break;
  }
}

static void
k3_text(oct_parser *p, const char *text, gsize size, int which) {
  struct oct_xtml *x = p->xtml;
  gboolean in_header = p->state == STATE_OPEN || p->state == STATE_CLOSE;
  if (in_header) {
    if (x->header->len + size <= OCT_PARSE_HEADER_BYTES_MAX)
      g_string_append_len(x->header, text, (gssize)size);
  } else
    k3_content(p, text, size);
  if (which < 0)
    return;
  if (which == SEPARATOR && p->state == STATE_OPEN)
    open_element(p);
  else if (which == SEPARATOR && p->state == STATE_CLOSE)
    close_element(p);
  p->state = which == OPEN ? STATE_OPEN : which == CLOSE ? STATE_CLOSE : STATE_ELEMENT;
  if (which == OPEN || which == CLOSE)
    g_string_truncate(x->header, 0);
}

static void
k3_finish(oct_parser *p) {
  leave(p);
}

const oct_parse_ops oct_parse_kimi_k3 = {.markers = k3_markers,
                                         .n_markers = G_N_ELEMENTS(k3_markers),
                                         .text = k3_text,
                                         .finish = k3_finish};
