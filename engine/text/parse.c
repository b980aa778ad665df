/* The common part: markers are found in the stream, the text between them goes to the family. */
#include "engine/text/parse-internal.h"

#include <jansson.h>
#include <string.h>

#include "engine/base/assert.h"

static const oct_parse_ops *
ops_of_family(oct_parse_family family) {
  static const oct_parse_ops *const ops[OCT_PARSE_FAMILY_COUNT] = {
      &oct_parse_plain,   &oct_parse_hermes,  NULL,
      &oct_parse_mistral, &oct_parse_kimi_k2, &oct_parse_kimi_k3};
  return ops[family];
}

static const oct_parse_ops *
ops_of(const oct_parser *p) {
  return ops_of_family(p->options.family);
}

const char *const *
oct_parse_markers(oct_parse_family family, guint *n) {
  oct_assert(family < OCT_PARSE_FAMILY_COUNT);
  const oct_parse_ops *ops = ops_of_family(family);
  *n = ops != NULL ? ops->n_markers : 0;
  return ops != NULL ? ops->markers : NULL;
}

oct_parser *
oct_parser_new(const oct_parse_options *options) {
  oct_assert(options->family < OCT_PARSE_FAMILY_COUNT && options->sink != NULL);
  oct_parser *p = g_new0(oct_parser, 1);
  p->options = *options;
  p->state = options->begins_in_thinking ? STATE_THINKING : STATE_ANSWER;
  p->trim = options->begins_in_thinking && options->family != OCT_PARSE_KIMI_K3;
  p->found = g_string_new(NULL);
  p->body = g_string_new(NULL);
  p->blank = g_string_new(NULL);
  const oct_parse_ops *ops = ops_of(p);
  if (ops != NULL) {
    p->markers = oct_stop_set_new(ops->markers, ops->n_markers, NULL);
    oct_assert(p->markers != NULL);
  }
  if (options->family == OCT_PARSE_KIMI_K3)
    p->xtml = oct_xtml_new(options->begins_in_thinking);
  return p;
}

void
oct_parser_free(oct_parser *p) {
  if (p == NULL)
    return;
  oct_stop_set_free(p->markers);
  oct_stop_clear(&p->matcher);
  g_string_free(p->found, TRUE);
  g_string_free(p->body, TRUE);
  g_string_free(p->blank, TRUE);
  oct_xtml_free(p->xtml);
  g_free(p);
}

void
oct_parser_push(oct_parser *p, const char *text, gsize size) {
  const oct_parse_ops *ops = ops_of(p);
  if (ops == NULL) {
    oct_parse_llama3_push(p, text, size);
    return;
  }
  while (size > 0) {
    gsize taken;
    g_string_truncate(p->found, 0);
    int which = oct_stop_scan(p->markers, &p->matcher, text, size, &taken, p->found);
    ops->text(p, p->found->str, p->found->len, which);
    text += taken;
    size -= taken;
  }
}

void
oct_parser_finish(oct_parser *p) {
  const oct_parse_ops *ops = ops_of(p);
  if (ops == NULL) {
    oct_parse_llama3_finish(p);
    return;
  }
  g_string_truncate(p->found, 0);
  oct_stop_finish(&p->matcher, p->found);
  ops->text(p, p->found->str, p->found->len, -1);
  ops->finish(p);
  oct_parse_call_end(p);
}

guint
oct_parser_n_calls(const oct_parser *p) {
  return p->n_calls;
}

/* --- reporting
 * ------------------------------------------------------------------------------------ */

static void
report(oct_parser *p, oct_parse_kind kind, const char *text, gsize size) {
  if (size == 0)
    return;
  oct_parse_event event = {.kind = kind, .text = text, .size = size};
  event.call = kind == OCT_PARSE_ARGUMENTS ? p->n_calls - 1 : 0;
  p->wrote = p->wrote || kind == OCT_PARSE_CONTENT;
  p->options.sink(p->options.data, &event);
}

void
oct_parse_text(oct_parser *p, oct_parse_kind kind, const char *text, gsize size) {
  while (p->trim && size > 0 && *text == '\n')
    text++, size--;
  if (size == 0)
    return;
  p->trim = FALSE;
  gsize solid = size;
  while (solid > 0 && text[solid - 1] == '\n')
    solid--;
  if (solid > 0)
    oct_parse_blank(p, kind, FALSE);
  report(p, kind, text, solid);
  g_string_append_len(p->blank, text + solid, (gssize)(size - solid));
}

void
oct_parse_blank(oct_parser *p, oct_parse_kind kind, gboolean drop) {
  if (!drop)
    report(p, kind, p->blank->str, p->blank->len);
  g_string_truncate(p->blank, 0);
}

gboolean
oct_parse_call(oct_parser *p, const char *name, const char *id) {
  oct_parse_call_end(p);
  if (p->n_calls == OCT_PARSE_CALLS_MAX)
    return FALSE;
  oct_parse_event event = {.kind = OCT_PARSE_CALL, .call = p->n_calls, .name = name, .id = id};
  p->n_calls++;
  p->call_open = TRUE;
  p->options.sink(p->options.data, &event);
  return TRUE;
}

void
oct_parse_arguments(oct_parser *p, const char *text, gsize size) {
  if (p->call_open)
    report(p, OCT_PARSE_ARGUMENTS, text, size);
}

void
oct_parse_call_end(oct_parser *p) {
  if (!p->call_open)
    return;
  p->call_open = FALSE;
  oct_parse_event event = {.kind = OCT_PARSE_CALL_END, .call = p->n_calls - 1};
  p->options.sink(p->options.data, &event);
}

gboolean
oct_parse_json_call(oct_parser *p, const char *json, gsize size) {
  json_t *root = json_loadb(json, size, JSON_REJECT_DUPLICATES, NULL);
  const char *name = json_string_value(json_object_get(root, "name")), *begin;
  gsize n;
  gboolean ok = name != NULL && *name != 0;
  const char *id = p->options.family == OCT_PARSE_MISTRAL
                       ? json_string_value(json_object_get(root, "id"))
                       : NULL; /* other models are not told to give one */
  if (ok && oct_parse_call(p, name, id)) {
    /* The arguments as the model wrote them; some write them as a string of JSON. */
    const json_t *value = json_object_get(root, "arguments");
    const char *key = value != NULL ? "arguments" : "parameters";
    value = json_object_get(root, key);
    if (json_is_string(value))
      oct_parse_arguments(p, json_string_value(value), json_string_length(value));
    else if (value != NULL && !json_is_null(value) && oct_json_member(json, size, key, &begin, &n))
      oct_parse_arguments(p, begin, n);
    else
      oct_parse_arguments(p, "{}", 2);
    oct_parse_call_end(p);
  }
  g_clear_pointer(&root, json_decref);
  return ok;
}

/* Length of the marker that begins there, or 0. Models write any byte, NUL among them. */
static gsize
marker_at(const GString *text, gsize at, const char *const *markers, guint n_markers) {
  for (guint i = 0; i < n_markers; i++) {
    gsize n = strlen(markers[i]);
    if (n <= text->len - at && memcmp(text->str + at, markers[i], n) == 0)
      return n;
  }
  return 0;
}

void
oct_parse_body_is_text(oct_parser *p, const char *const *markers, guint n_markers) {
  g_autoptr(GString) text = g_string_sized_new(p->body->len);
  for (gsize at = 0; at < p->body->len;) {
    gsize marker = marker_at(p->body, at, markers, n_markers);
    g_string_append_c(text, marker > 0 ? ' ' : p->body->str[at]);
    at += MAX(marker, 1);
  }
  oct_parse_text(p, OCT_PARSE_CONTENT, text->str, text->len);
  g_string_truncate(p->body, 0);
}

/* --- JSON
 * -------------------------------------------------------------------------------------------- */

gboolean
oct_json_scan_byte(oct_json_scan *scan, char byte) {
  if (scan->in_string) {
    if (scan->escaped)
      scan->escaped = FALSE;
    else if (byte == '\\')
      scan->escaped = TRUE;
    else if (byte == '"')
      scan->in_string = FALSE;
    return FALSE;
  }
  if (byte == '"')
    scan->in_string = TRUE;
  else if (byte == '{' || byte == '[') {
    scan->depth++;
    scan->begun = TRUE;
  } else if ((byte == '}' || byte == ']') && scan->depth > 0)
    return --scan->depth == 0;
  return FALSE;
}

gboolean
oct_json_is_object(const char *json, gsize size) {
  json_t *value = json_loadb(json, size, JSON_REJECT_DUPLICATES, NULL);
  gboolean ok = json_is_object(value);
  json_decref(value);
  return ok;
}

/* Where a value that begins at `at` ends. */
static gsize
value_end(const char *json, gsize at, gsize size) {
  oct_json_scan scan = {0};
  gboolean simple = json[at] != '{' && json[at] != '[' && json[at] != '"';
  for (gsize i = at; i < size; i++) {
    if (simple && (strchr(",}] \t\r\n", json[i]) != NULL))
      return i;
    gboolean ended = oct_json_scan_byte(&scan, json[i]);
    if (ended || (!simple && i > at && scan.depth == 0 && !scan.in_string))
      return i + 1;
  }
  return size;
}

static gsize
skip_white(const char *json, gsize at, gsize size) {
  while (at < size && strchr(" \t\r\n,:", json[at]) != NULL && json[at] != 0)
    at++;
  return at;
}

gboolean
oct_json_member(const char *json, gsize size, const char *key, const char **begin, gsize *n) {
  gsize at = skip_white(json, 0, size);
  if (at == size || json[at] != '{')
    return FALSE;
  at = skip_white(json, at + 1, size);
  while (at < size && json[at] == '"') {
    gsize name_end = value_end(json, at, size);
    gsize value = skip_white(json, name_end, size);
    if (value >= size)
      return FALSE;
    gsize end = value_end(json, value, size);
    if (name_end - at - 2 == strlen(key) && memcmp(json + at + 1, key, strlen(key)) == 0) {
      *begin = json + value;
      *n = end - value;
      return TRUE;
    }
    at = skip_white(json, end, size);
  }
  return FALSE;
}

void
oct_json_escape(const char *text, gsize size, GString *out) {
  static const char special[] = "\"\\\n\r\t\f\b", names[] = "\"\\nrtfb";
  for (gsize i = 0; i < size; i++) {
    const char *hit = text[i] == 0 ? NULL : strchr(special, text[i]);
    if (hit != NULL)
      g_string_append_printf(out, "\\%c", names[hit - special]);
    else if ((guint8)text[i] < 0x20)
      g_string_append_printf(out, "\\u%04x", (guint)text[i]);
    else
      g_string_append_c(out, text[i]);
  }
}
