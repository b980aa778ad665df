/* Values as text: str(), repr() and json.dumps() of Python, and the strings that are being built.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/text/jinja-internal.h"

/* --- building -------------------------------------------------------------------------------- */

oct_jbuilder *
oct_jbuild_begin(oct_jrun *run) {
  if (run->n_builders == OCT_TEMPLATE_CALLS_MAX) {
    oct_jfail(run, OCT_TEXT_ERROR_LIMIT, "blocks nest too deeply");
    return NULL;
  }
  oct_jbuilder *builder = &run->builders[run->n_builders++];
  if (builder->text == NULL) {
    builder->text = g_byte_array_new();
    builder->marks = g_byte_array_new();
  }
  g_byte_array_set_size(builder->text, 0);
  g_byte_array_set_size(builder->marks, 0);
  return builder;
}

oct_jvalue
oct_jbuild_end(oct_jrun *run, oct_jbuilder *builder) {
  if (builder == NULL)
    return oct_jnone();
  oct_assert(builder == &run->builders[run->n_builders - 1]);
  run->n_builders--;
  gsize n = builder->text->len;
  const char *text = (const char *)builder->text->data;
  guint8 mark = n > 0 ? builder->marks->data[0] : 0;
  gboolean mixed = FALSE;
  for (gsize i = 1; i < n && !mixed; i++)
    mixed = builder->marks->data[i] != mark;
  oct_jvalue value = oct_jcopy(run, text, n, mark);
  if (mixed && !run->failed) {
    oct_jvalue marks = oct_jcopy(run, (const char *)builder->marks->data, n, 0);
    if (!run->failed)
      ((oct_jstring *)value.string)->marks = (const guint8 *)marks.string->bytes;
  }
  return value;
}

static gboolean
room_for(oct_jrun *run, const oct_jbuilder *builder, gsize size) {
  if (size > OCT_TEMPLATE_OUTPUT_MAX - builder->text->len)
    oct_jfail(run, OCT_TEXT_ERROR_LIMIT, "the template writes more than %u MiB",
              OCT_TEMPLATE_OUTPUT_MAX >> 20);
  return oct_jburn(run, 1 + size / 64);
}

void
oct_jbuild_bytes(oct_jrun *run, oct_jbuilder *builder, const char *bytes, gsize size, guint8 mark) {
  if (size == 0 || !room_for(run, builder, size))
    return;
  guint at = builder->marks->len;
  g_byte_array_append(builder->text, (const guint8 *)bytes, (guint)size);
  g_byte_array_set_size(builder->marks, at + (guint)size);
  memset(builder->marks->data + at, mark, size);
}

void
oct_jbuild_part(oct_jrun *run, oct_jbuilder *builder, const oct_jstring *string, gsize from,
                gsize to) {
  oct_assert(from <= to && to <= string->size);
  if (string->marks == NULL) {
    oct_jbuild_bytes(run, builder, string->bytes + from, to - from, string->mark);
    return;
  }
  if (from == to || !room_for(run, builder, to - from))
    return;
  g_byte_array_append(builder->text, (const guint8 *)string->bytes + from, (guint)(to - from));
  g_byte_array_append(builder->marks, string->marks + from, (guint)(to - from));
}

static void
add(oct_jrun *run, oct_jbuilder *builder, const char *text) {
  oct_jbuild_bytes(run, builder, text, strlen(text), 0);
}

oct_jvalue
oct_jconcat(oct_jrun *run, oct_jvalue a, oct_jvalue b) {
  oct_jbuilder *builder = oct_jbuild_begin(run);
  if (builder != NULL) {
    oct_jbuild_value(run, builder, a);
    oct_jbuild_value(run, builder, b);
  }
  return oct_jbuild_end(run, builder);
}

/* --- str() and repr() ------------------------------------------------------------------------ */

/* The shortest digits that read back as the same number, as Python writes them. */
static void
add_real(oct_jrun *run, oct_jbuilder *builder, double value, gboolean json) {
  char text[40];
  if (isnan(value) || isinf(value)) {
    add(run, builder,
        isnan(value) ? (json ? "NaN" : "nan")
        : value > 0  ? (json ? "Infinity" : "inf")
                     : (json ? "-Infinity" : "-inf"));
    return;
  }
  int digits = 1;
  for (; digits < 17; digits++) {
    char buffer[G_ASCII_DTOSTR_BUF_SIZE], format[8];
    g_snprintf(format, sizeof format, "%%.%de", digits - 1);
    g_ascii_formatd(buffer, sizeof buffer, format, value);
    double back = g_ascii_strtod(buffer, NULL);
    if (!(back < value) && !(back > value))
      break;
  }
  char format[8], buffer[G_ASCII_DTOSTR_BUF_SIZE];
  g_snprintf(format, sizeof format, "%%.%de", digits - 1);
  g_ascii_formatd(buffer, sizeof buffer, format, value);
  const char *e = strchr(buffer, 'e');
  int exponent = e == NULL ? 0 : atoi(e + 1);
  if (exponent < -4 || exponent >= 16) {
    /* d.ddde+XX, as it stands: at least two digits of exponent, and no point after one digit. */
    g_strlcpy(text, buffer, sizeof text);
  } else {
    g_snprintf(format, sizeof format, "%%.%df", MAX(digits - 1 - exponent, 1));
    g_ascii_formatd(text, sizeof text, format, value);
  }
  add(run, builder, text);
}

static void
add_repr_string(oct_jrun *run, oct_jbuilder *builder, const oct_jstring *string) {
  gboolean single = memchr(string->bytes, '\'', string->size) != NULL;
  gboolean both = single && memchr(string->bytes, '"', string->size) != NULL;
  const char *quote = single && !both ? "\"" : "'";
  guint8 mark = oct_jmark_of(&(oct_jvalue){.kind = OCT_J_STRING, .string = string});
  add(run, builder, quote);
  for (gsize at = 0; at < string->size && !run->failed;) {
    gsize n = oct_utf8_size(string->bytes + at, string->size - at);
    gunichar c = g_utf8_get_char(string->bytes + at);
    char text[16];
    if (c == '\\' || (gunichar)*quote == c)
      g_snprintf(text, sizeof text, "\\%c", (int)c);
    else if (c == '\n' || c == '\r' || c == '\t')
      g_snprintf(text, sizeof text, "\\%c", c == '\n' ? 'n' : c == '\r' ? 'r' : 't');
    else if (c < 0x20 || c == 0x7f || (c >= 0x80 && c < 0x100 && !g_unichar_isprint(c)) ||
             c == 0xa0 || c == 0xad)
      g_snprintf(text, sizeof text, "\\x%02x", c);
    else if (c >= 0x100 && (!g_unichar_isprint(c) || g_unichar_isspace(c)))
      g_snprintf(text, sizeof text, c > 0xffff ? "\\U%08x" : "\\u%04x", c);
    else {
      oct_jbuild_part(run, builder, string, at, at + n);
      at += n;
      continue;
    }
    oct_jbuild_bytes(run, builder, text, strlen(text), mark);
    at += n;
  }
  add(run, builder, quote);
}

static void add_repr(oct_jrun *run, oct_jbuilder *builder, oct_jvalue value, guint depth);

static void
add_repr_dict(oct_jrun *run, oct_jbuilder *builder, const oct_jdict *dict, guint depth) {
  if (dict->is_namespace)
    add(run, builder, "<Namespace ");
  add(run, builder, "{");
  for (gsize i = 0; i < dict->n && !run->failed; i++) {
    if (i > 0)
      add(run, builder, ", ");
    add_repr(run, builder, dict->keys[i], depth);
    add(run, builder, ": ");
    add_repr(run, builder, dict->values[i], depth);
  }
  add(run, builder, dict->is_namespace ? "}>" : "}");
}

static void
add_repr_list(oct_jrun *run, oct_jbuilder *builder, const oct_jlist *list, guint depth) {
  add(run, builder, list->tuple ? "(" : "[");
  for (gsize i = 0; i < list->n && !run->failed; i++) {
    if (i > 0)
      add(run, builder, ", ");
    add_repr(run, builder, list->items[i], depth);
  }
  add(run, builder, list->tuple ? (list->n == 1 ? ",)" : ")") : "]");
}

static void
add_repr(oct_jrun *run, oct_jbuilder *builder, oct_jvalue value, guint depth) {
  if (depth > OCT_TEMPLATE_CALLS_MAX / 2)
    oct_jfail(run, OCT_TEXT_ERROR_LIMIT, "a value nests too deeply to be written");
  if (!oct_jburn(run, 1))
    return;
  if (value.kind == OCT_J_STRING)
    add_repr_string(run, builder, value.string);
  else if (value.kind == OCT_J_LIST)
    add_repr_list(run, builder, value.list, depth + 1);
  else if (value.kind == OCT_J_DICT)
    add_repr_dict(run, builder, value.dict, depth + 1);
  else if (value.kind == OCT_J_UNDEFINED)
    add(run, builder, "Undefined");
  else
    oct_jbuild_value(run, builder, value);
}

void
oct_jbuild_value(oct_jrun *run, oct_jbuilder *builder, oct_jvalue value) {
  char number[32];
  switch (value.kind) {
  case OCT_J_UNDEFINED:
    break;
  case OCT_J_NONE:
    add(run, builder, "None");
    break;
  case OCT_J_BOOL:
    add(run, builder, value.boolean ? "True" : "False");
    break;
  case OCT_J_INT:
    g_snprintf(number, sizeof number, "%" G_GINT64_FORMAT, value.integer);
    add(run, builder, number);
    break;
  case OCT_J_FLOAT:
    add_real(run, builder, value.real, FALSE);
    break;
  case OCT_J_STRING:
    oct_jbuild_part(run, builder, value.string, 0, value.string->size);
    break;
  case OCT_J_LIST:
  case OCT_J_DICT:
    add_repr(run, builder, value, 0);
    break;
  case OCT_J_MACRO:
  case OCT_J_METHOD:
  case OCT_J_FUNCTION:
  case OCT_J_LOOP:
  default:
    oct_jfail(run, OCT_TEXT_ERROR_TEMPLATE, "a %s cannot be written", oct_jkind_name(value));
  }
}

/* --- JSON ------------------------------------------------------------------------------------ */

static void
add_json_string(oct_jrun *run, oct_jbuilder *builder, const oct_jstring *string, gboolean ascii) {
  static const char short_escapes[] = "\"\\\n\r\t\f\b", names[] = "\"\\nrtfb";
  guint8 mark = oct_jmark_of(&(oct_jvalue){.kind = OCT_J_STRING, .string = string});
  add(run, builder, "\"");
  gsize plain = 0;
  for (gsize at = 0; at < string->size && !run->failed;) {
    gsize n = oct_utf8_size(string->bytes + at, string->size - at);
    gunichar c = g_utf8_get_char(string->bytes + at);
    char text[16];
    const char *known = c < 0x80 && c != 0 ? strchr(short_escapes, (int)c) : NULL;
    if (known == NULL && c >= 0x20 && (!ascii || c < 0x7f)) {
      at += n;
      continue;
    }
    if (known != NULL)
      g_snprintf(text, sizeof text, "\\%c", names[known - short_escapes]);
    else if (c > 0xffff)
      g_snprintf(text, sizeof text, "\\u%04x\\u%04x", 0xd800 + ((c - 0x10000) >> 10),
                 0xdc00 + (c & 0x3ff));
    else
      g_snprintf(text, sizeof text, "\\u%04x", c);
    oct_jbuild_part(run, builder, string, plain, at);
    oct_jbuild_bytes(run, builder, text, strlen(text), mark);
    at += n;
    plain = at;
  }
  oct_jbuild_part(run, builder, string, plain, string->size);
  add(run, builder, "\"");
}

static void
new_line(oct_jrun *run, oct_jbuilder *builder, const oct_jjson *style, guint depth) {
  if (style->indent < 0)
    return;
  add(run, builder, "\n");
  for (guint i = 0; i < depth * (guint)style->indent && !run->failed; i++)
    add(run, builder, " ");
}

static void
add_separator(oct_jrun *run, oct_jbuilder *builder, const oct_jstring *given,
              const char *standard) {
  if (given != NULL)
    oct_jbuild_part(run, builder, given, 0, given->size);
  else
    add(run, builder, standard);
}

/* The order in which a dict's keys are written. */
static gsize *
key_order(oct_jrun *run, const oct_jdict *dict, gboolean sorted) {
  gsize *order = g_new(gsize, MAX(dict->n, 1u));
  for (gsize i = 0; i < dict->n; i++) {
    gsize at = i;
    if (sorted && oct_jburn(run, i / 4))
      while (at > 0 && oct_jcompare(run, dict->keys[order[at - 1]], dict->keys[i]) > 0) {
        order[at] = order[at - 1];
        at--;
      }
    order[at] = i;
  }
  return order;
}

static void
add_json_dict(oct_jrun *run, oct_jbuilder *builder, const oct_jdict *dict, const oct_jjson *style,
              guint depth) {
  g_autofree gsize *order = key_order(run, dict, style->sorted);
  add(run, builder, "{");
  for (gsize k = 0; k < dict->n && !run->failed; k++) {
    oct_jvalue key = dict->keys[order[k]];
    if (k > 0)
      add_separator(run, builder, style->item, style->indent < 0 ? ", " : ",");
    new_line(run, builder, style, depth + 1);
    if (key.kind != OCT_J_STRING) {
      oct_jbuilder *text = oct_jbuild_begin(run);
      if (text != NULL)
        oct_jbuild_json(run, text, key, style, depth + 1);
      key = oct_jbuild_end(run, text);
      if (run->failed)
        return;
    }
    add_json_string(run, builder, key.string, style->ascii);
    add_separator(run, builder, style->key, ": ");
    oct_jbuild_json(run, builder, dict->values[order[k]], style, depth + 1);
  }
  if (dict->n > 0)
    new_line(run, builder, style, depth);
  add(run, builder, "}");
}

void
oct_jbuild_json(oct_jrun *run, oct_jbuilder *builder, oct_jvalue value, const oct_jjson *style,
                guint depth) {
  if (depth > OCT_TEMPLATE_CALLS_MAX / 2)
    oct_jfail(run, OCT_TEXT_ERROR_LIMIT, "a value nests too deeply for tojson");
  if (!oct_jburn(run, 1))
    return;
  switch (value.kind) {
  case OCT_J_NONE:
    add(run, builder, "null");
    break;
  case OCT_J_BOOL:
    add(run, builder, value.boolean ? "true" : "false");
    break;
  case OCT_J_INT:
    oct_jbuild_value(run, builder, value);
    break;
  case OCT_J_FLOAT:
    add_real(run, builder, value.real, TRUE);
    break;
  case OCT_J_STRING:
    add_json_string(run, builder, value.string, style->ascii);
    break;
  case OCT_J_LIST:
    add(run, builder, "[");
    for (gsize i = 0; i < value.list->n && !run->failed; i++) {
      if (i > 0)
        add_separator(run, builder, style->item, style->indent < 0 ? ", " : ",");
      new_line(run, builder, style, depth + 1);
      oct_jbuild_json(run, builder, value.list->items[i], style, depth + 1);
    }
    if (value.list->n > 0)
      new_line(run, builder, style, depth);
    add(run, builder, "]");
    break;
  case OCT_J_DICT:
    add_json_dict(run, builder, value.dict, style, depth);
    break;
  case OCT_J_UNDEFINED:
  case OCT_J_MACRO:
  case OCT_J_METHOD:
  case OCT_J_FUNCTION:
  case OCT_J_LOOP:
  default:
    oct_jfail(run, OCT_TEXT_ERROR_TEMPLATE, "tojson of a %s", oct_jkind_name(value));
  }
}
