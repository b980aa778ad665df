/* The white-space rules are those of Jinja's lexer with trim_blocks and lstrip_blocks: a newline
 * right after a block or comment goes, and so does the indentation in front of one; a minus takes
 * all white space on its side, a plus keeps it. */
#include <string.h>

#include "engine/base/assert.h"
#include "engine/text/jinja-internal.h"

typedef struct oct_jlexer {
  oct_arena *arena;
  const char *source, *at, *end;
  guint line;
  gboolean line_starting; /* the text goes on right after a newline that was taken */
  GArray *tokens;
  GError **error;
} oct_jlexer;

static gboolean
lex_fail(oct_jlexer *l, const char *what) {
  g_set_error(l->error, OCT_TEXT_ERROR, OCT_TEXT_ERROR_FORMAT, "chat template, line %u: %s",
              l->line, what);
  return FALSE;
}

static gboolean
add_token(oct_jlexer *l, oct_jtoken_kind kind, const char *text, gsize size) {
  char *copy = oct_arena_alloc(l->arena, size + 1);
  if (copy == NULL)
    return lex_fail(l, "the template is too large");
  if (size > 0)
    memcpy(copy, text, size);
  oct_jtoken token = {kind, l->line, copy, size};
  g_array_append_val(l->tokens, token);
  return TRUE;
}

static void
advance(oct_jlexer *l, gsize n) {
  for (gsize i = 0; i < n; i++)
    l->line += l->at[i] == '\n';
  l->at += n;
}

static gboolean
starts(const oct_jlexer *l, const char *text) {
  gsize n = strlen(text);
  return (gsize)(l->end - l->at) >= n && memcmp(l->at, text, n) == 0;
}

/* The next "{{", "{%" or "{#", else the end. */
static const char *
find_tag(const oct_jlexer *l) {
  for (const char *p = l->at; p + 1 < l->end; p++)
    if (p[0] == '{' && (p[1] == '{' || p[1] == '%' || p[1] == '#'))
      return p;
  return l->end;
}

/* Takes what follows the end of a tag: all white space after a minus, else one newline after a
 * block or a comment. */
static void
after_tag(oct_jlexer *l, char sign, gboolean trim) {
  const char *begin = l->at;
  if (sign == '-')
    while (l->at < l->end && g_ascii_isspace(*l->at))
      advance(l, 1);
  else if (sign != '+' && trim && l->at < l->end && *l->at == '\n')
    advance(l, 1);
  l->line_starting = l->at > begin && l->at[-1] == '\n';
}

/* The text in front of a tag, without what the tag takes away. */
static gboolean
add_text(oct_jlexer *l, const char *tag) {
  const char *stop = tag;
  char kind = tag < l->end ? tag[1] : 0, sign = tag + 2 < l->end ? tag[2] : 0;
  if (kind != 0 && sign == '-') {
    while (stop > l->at && g_ascii_isspace(stop[-1]))
      stop--;
  } else if ((kind == '%' || kind == '#') && sign != '+') {
    const char *line = stop;
    while (line > l->at && line[-1] != '\n' && g_ascii_isspace(line[-1]))
      line--;
    if ((line > l->at && line[-1] == '\n') || (line == l->at && l->line_starting))
      stop = line;
  }
  gboolean ok = stop == l->at || add_token(l, OCT_T_TEXT, l->at, (gsize)(stop - l->at));
  advance(l, (gsize)(tag - l->at));
  return ok;
}

static gboolean
skip_comment(oct_jlexer *l) {
  const char *p = l->at + 2;
  while (p + 1 < l->end && !(p[0] == '#' && p[1] == '}'))
    p++;
  if (p + 1 >= l->end)
    return lex_fail(l, "a comment has no end");
  char sign = p > l->at + 2 ? p[-1] : 0;
  advance(l, (gsize)(p + 2 - l->at));
  after_tag(l, sign, TRUE);
  return TRUE;
}

/* --- inside tags ------------------------------------------------------------------------------ */

static gboolean
lex_escape(oct_jlexer *l, const char **p, GString *out) {
  static const char names[] = "nrtbfav0\\'\"", bytes[] = "\n\r\t\b\f\a\v\0\\'\"";
  char c = *++*p;
  if (c == '\n') {
    ++*p;
    return TRUE;
  }
  const char *known = c == 0 ? NULL : strchr(names, c);
  guint digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
  if (known != NULL) {
    g_string_append_c(out, bytes[known - names]);
    ++*p;
  } else if (digits > 0) {
    gunichar value = 0;
    for (guint i = 0; i < digits; i++) {
      int digit = *p + 1 < l->end ? g_ascii_xdigit_value(*++*p) : -1;
      if (digit < 0)
        return lex_fail(l, "an escape lacks its digits");
      value = value * 16 + (gunichar)digit;
    }
    ++*p;
    if (!g_unichar_validate(value))
      return lex_fail(l, "an escape is not a character");
    g_string_append_unichar(out, value);
  } else
    g_string_append_c(out, '\\');
  return TRUE;
}

static gboolean
lex_string(oct_jlexer *l) {
  char quote = *l->at;
  g_autoptr(GString) out = g_string_new(NULL);
  const char *p = l->at + 1;
  while (p < l->end && *p != quote) {
    if (*p == '\\' && p + 1 < l->end) {
      if (!lex_escape(l, &p, out))
        return FALSE;
    } else
      g_string_append_c(out, *p++);
  }
  if (p >= l->end)
    return lex_fail(l, "a string has no end");
  gboolean ok = add_token(l, OCT_T_STRING, out->str, out->len);
  advance(l, (gsize)(p + 1 - l->at));
  return ok;
}

static gboolean
lex_number(oct_jlexer *l) {
  const char *p = l->at;
  gboolean real = FALSE;
  g_autoptr(GString) out = g_string_new(NULL);
  while (p < l->end && (g_ascii_isdigit(*p) || *p == '_'))
    p++;
  if (p + 1 < l->end && *p == '.' && g_ascii_isdigit(p[1])) {
    real = TRUE;
    for (p++; p < l->end && (g_ascii_isdigit(*p) || *p == '_');)
      p++;
  }
  if (p + 1 < l->end && (*p == 'e' || *p == 'E')) {
    const char *q = p + 1 + (p[1] == '+' || p[1] == '-');
    if (q < l->end && g_ascii_isdigit(*q)) {
      real = TRUE;
      for (p = q; p < l->end && g_ascii_isdigit(*p);)
        p++;
    }
  }
  for (const char *q = l->at; q < p; q++)
    if (*q != '_')
      g_string_append_c(out, *q);
  gboolean ok = add_token(l, real ? OCT_T_FLOAT : OCT_T_INT, out->str, out->len);
  advance(l, (gsize)(p - l->at));
  return ok;
}

static gboolean
lex_one(oct_jlexer *l) {
  static const char *const operators[] = {"**", "//", "==", "!=", "<=", ">=", "+", "-", "*",
                                          "/",  "%",  "~",  "<",  ">",  "=",  "(", ")", "[",
                                          "]",  "{",  "}",  ",",  ":",  ".",  "|", ";"};
  if (g_ascii_isalpha(*l->at) || *l->at == '_') {
    const char *p = l->at;
    while (p < l->end && (g_ascii_isalnum(*p) || *p == '_'))
      p++;
    gboolean ok = add_token(l, OCT_T_NAME, l->at, (gsize)(p - l->at));
    advance(l, (gsize)(p - l->at));
    return ok;
  }
  if (g_ascii_isdigit(*l->at))
    return lex_number(l);
  if (*l->at == '\'' || *l->at == '"')
    return lex_string(l);
  for (guint i = 0; i < G_N_ELEMENTS(operators); i++)
    if (starts(l, operators[i])) {
      gsize n = strlen(operators[i]);
      gboolean ok = add_token(l, OCT_T_OPERATOR, l->at, n);
      advance(l, n);
      return ok;
    }
  return lex_fail(l, "a character that begins nothing");
}

/* From after "{{" or "{%" to after its end. Brackets of the expression may hold "}}". */
static gboolean
lex_tag(oct_jlexer *l, gboolean output) {
  const char *end = output ? "}}" : "%}";
  guint braces = 0;
  advance(l, 2);
  if (l->at < l->end && (*l->at == '-' || *l->at == '+'))
    advance(l, 1);
  if (!add_token(l, output ? OCT_T_OUTPUT_BEGIN : OCT_T_BLOCK_BEGIN, "", 0))
    return FALSE;
  while (l->at < l->end) {
    if (g_ascii_isspace(*l->at)) {
      advance(l, 1);
      continue;
    }
    gboolean signed_end =
        (*l->at == '-' || *l->at == '+') && l->end - l->at >= 3 && memcmp(l->at + 1, end, 2) == 0;
    if (braces == 0 && (signed_end || starts(l, end))) {
      char sign = signed_end ? *l->at : 0;
      gboolean ok = add_token(l, output ? OCT_T_OUTPUT_END : OCT_T_BLOCK_END, "", 0);
      advance(l, signed_end ? 3 : 2);
      after_tag(l, sign, !output);
      return ok;
    }
    braces += *l->at == '{';
    braces -= *l->at == '}' && braces > 0;
    if (!lex_one(l))
      return FALSE;
  }
  return lex_fail(l, "a tag has no end");
}

/* {% raw %}: TRUE when the tag at l->at is one, and then its text is taken. */
static gboolean
lex_raw(oct_jlexer *l, gboolean *ok) {
  const char *p = l->at + 2;
  p += p < l->end && (*p == '-' || *p == '+');
  while (p < l->end && g_ascii_isspace(*p))
    p++;
  if (l->end - p < 3 || memcmp(p, "raw", 3) != 0)
    return FALSE;
  p += 3;
  while (p < l->end && g_ascii_isspace(*p))
    p++;
  char sign = p < l->end && (*p == '-' || *p == '+') ? *p++ : 0;
  if (l->end - p < 2 || memcmp(p, "%}", 2) != 0)
    return FALSE;
  advance(l, (gsize)(p + 2 - l->at));
  after_tag(l, sign, TRUE);
  for (const char *tag = l->at; tag + 1 < l->end; tag++) {
    if (tag[0] != '{' || tag[1] != '%')
      continue;
    const char *q = tag + 2;
    q += q < l->end && (*q == '-' || *q == '+');
    while (q < l->end && g_ascii_isspace(*q))
      q++;
    if (l->end - q < 6 || memcmp(q, "endraw", 6) != 0)
      continue;
    q += 6;
    while (q < l->end && g_ascii_isspace(*q))
      q++;
    char end_sign = q < l->end && (*q == '-' || *q == '+') ? *q++ : 0;
    if (l->end - q < 2 || memcmp(q, "%}", 2) != 0)
      continue;
    *ok = add_text(l, tag);
    advance(l, (gsize)(q + 2 - l->at));
    after_tag(l, end_sign, TRUE);
    return TRUE;
  }
  *ok = lex_fail(l, "raw has no endraw");
  return TRUE;
}

static gboolean
lex_all(oct_jlexer *l) {
  while (l->at < l->end) {
    const char *tag = find_tag(l);
    gboolean ok = add_text(l, tag);
    if (!ok)
      return FALSE;
    if (l->at >= l->end)
      break;
    if (l->at[1] == '#')
      ok = skip_comment(l);
    else if (l->at[1] != '%' || !lex_raw(l, &ok))
      ok = lex_tag(l, l->at[1] == '{');
    if (!ok)
      return FALSE;
  }
  return add_token(l, OCT_T_END, "", 0);
}

GArray *
oct_jinja_lex(oct_arena *arena, const char *source, gsize size, GError **error) {
  /* As Jinja: every kind of newline is one, and one at the end is not part of the text. */
  g_autoptr(GString) text = g_string_sized_new(size);
  for (gsize i = 0; i < size; i++) {
    if (source[i] == '\r') {
      g_string_append_c(text, '\n');
      i += i + 1 < size && source[i + 1] == '\n';
    } else
      g_string_append_c(text, source[i]);
  }
  if (text->len > 0 && text->str[text->len - 1] == '\n')
    g_string_truncate(text, text->len - 1);
  oct_jlexer l = {.arena = arena,
                  .source = text->str,
                  .at = text->str,
                  .end = text->str + text->len,
                  .line = 1,
                  .line_starting = TRUE,
                  .tokens = g_array_new(FALSE, FALSE, sizeof(oct_jtoken)),
                  .error = error};
  if (lex_all(&l))
    return l.tokens;
  g_array_unref(l.tokens);
  return NULL;
}
