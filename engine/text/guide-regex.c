/* Regular expressions, by recursive descent of limited depth: each construct adds states between
 * where it begins and where it ends. A repetition is copied by reading its part of the pattern
 * again. */
#include <string.h>

#include "engine/base/assert.h"
#include "engine/text/guide-internal.h"

typedef struct oct_regex {
  oct_automaton *a;
  const char *at, *end;
  guint depth;
  gboolean json; /* the text is the inside of a JSON string */
} oct_regex;

typedef struct oct_range {
  gunichar low, high;
} oct_range;

static guint32 read_alternatives(oct_regex *r, guint32 from);

static void
unsupported(oct_regex *r, const char *what) {
  oct_automaton_fail(r->a, OCT_TEXT_ERROR_INPUT, "the pattern has %s, which is not supported",
                     what);
}

/* In JSON, quotes, backslashes and control characters are written with a backslash. */
static void
add_range(oct_regex *r, guint32 from, gunichar low, gunichar high, guint32 to) {
  if (!r->json) {
    oct_automaton_char(r->a, from, low, high, to);
    return;
  }
  static const char escapes[][2] = {{'"', '"'},  {'\\', '\\'}, {'\n', 'n'}, {'\r', 'r'},
                                    {'\t', 't'}, {'\f', 'f'},  {'\b', 'b'}};
  for (guint i = 0; i < G_N_ELEMENTS(escapes); i++)
    if (low <= (gunichar)escapes[i][0] && (gunichar)escapes[i][0] <= high) {
      guint32 middle = oct_automaton_text(r->a, from, "\\", 1);
      oct_automaton_bytes(r->a, middle, (guint8)escapes[i][1], (guint8)escapes[i][1], to);
    }
  static const oct_range plain[] = {{0x20, 0x21}, {0x23, 0x5b}, {0x5d, 0x10ffff}};
  for (guint i = 0; i < G_N_ELEMENTS(plain); i++)
    if (MAX(low, plain[i].low) <= MIN(high, plain[i].high))
      oct_automaton_char(r->a, from, MAX(low, plain[i].low), MIN(high, plain[i].high), to);
}

static void
add_ranges(oct_regex *r, guint32 from, GArray *ranges, gboolean negated, guint32 to) {
  if (!negated) {
    for (guint i = 0; i < ranges->len; i++) {
      oct_range range = g_array_index(ranges, oct_range, i);
      add_range(r, from, range.low, range.high, to);
    }
    return;
  }
  for (gunichar at = 0; at <= 0x10ffff;) {
    gunichar next = 0x110000;
    gboolean inside = FALSE;
    for (guint i = 0; i < ranges->len; i++) {
      oct_range range = g_array_index(ranges, oct_range, i);
      if (range.low <= at && at <= range.high) {
        at = range.high + 1;
        inside = TRUE;
        break;
      }
      if (range.low > at)
        next = MIN(next, range.low);
    }
    if (inside)
      continue;
    add_range(r, from, at, next - 1, to);
    at = next;
  }
}

static void
add_named(GArray *ranges, char name) {
  static const oct_range digits[] = {{'0', '9'}},
                         words[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}},
                         spaces[] = {{'\t', '\r'}, {' ', ' '}};
  if (name == 'd')
    g_array_append_vals(ranges, digits, 1);
  else if (name == 'w')
    g_array_append_vals(ranges, words, 4);
  else
    g_array_append_vals(ranges, spaces, 2);
}

static gunichar
read_hex(oct_regex *r, guint digits) {
  gunichar value = 0;
  for (guint i = 0; i < digits; i++) {
    int digit = r->at < r->end ? g_ascii_xdigit_value(*r->at) : -1;
    if (digit < 0) {
      oct_automaton_fail(r->a, OCT_TEXT_ERROR_INPUT, "the pattern has an escape without digits");
      return 0;
    }
    value = value * 16 + (gunichar)digit;
    r->at++;
  }
  return value;
}

/* After a backslash: one character, or a named class, whose letter goes to *name. */
static gunichar
read_escape(oct_regex *r, char *name) {
  static const char letters[] = "nrtfv", bytes[] = "\n\r\t\f\v";
  *name = 0;
  if (r->at == r->end) {
    oct_automaton_fail(r->a, OCT_TEXT_ERROR_INPUT, "the pattern ends in a backslash");
    return 0;
  }
  char c = *r->at++;
  const char *known = strchr(letters, c);
  if (strchr("dwsDWS", c) != NULL)
    *name = c;
  else if (known != NULL && c != 0)
    return (gunichar)bytes[known - letters];
  else if (c == 'x' || c == 'u')
    return read_hex(r, c == 'x' ? 2 : 4);
  else if (g_ascii_isalnum(c) || (guint8)c >= 0x80) {
    g_autofree char *what = g_strdup_printf("the escape '\\%c'", g_ascii_isprint(c) ? c : '?');
    unsupported(r, what);
  }
  return (gunichar)(guint8)c;
}

static gunichar
read_char(oct_regex *r) {
  gunichar c = g_utf8_get_char(r->at);
  r->at = g_utf8_next_char(r->at);
  return c;
}

static void
read_class(oct_regex *r, guint32 from, guint32 to) {
  g_autoptr(GArray) ranges = g_array_new(FALSE, FALSE, sizeof(oct_range));
  gboolean negated = r->at < r->end && *r->at == '^';
  r->at += negated;
  for (gboolean first = TRUE; r->at < r->end && (first || *r->at != ']') && !r->a->failed;
       first = FALSE) {
    char name = 0;
    if (*r->at == '[') {
      unsupported(r, "a set inside a set");
      return;
    }
    gunichar low = *r->at == '\\' ? (r->at++, read_escape(r, &name)) : read_char(r), high = low;
    if (name != 0) {
      if (g_ascii_isupper(name))
        unsupported(r, "a complement inside a set");
      add_named(ranges, g_ascii_tolower(name));
      continue;
    }
    if (r->end - r->at >= 2 && *r->at == '-' && r->at[1] != ']') {
      r->at++;
      high = *r->at == '\\' ? (r->at++, read_escape(r, &name)) : read_char(r);
    }
    if (name != 0 || high < low)
      oct_automaton_fail(r->a, OCT_TEXT_ERROR_INPUT, "the pattern has a range that runs backwards");
    oct_range range = {low, high};
    g_array_append_val(ranges, range);
  }
  if (r->at == r->end)
    oct_automaton_fail(r->a, OCT_TEXT_ERROR_INPUT, "the pattern lacks a ]");
  else
    r->at++;
  if (!r->a->failed)
    add_ranges(r, from, ranges, negated, to);
}

static guint32
read_group(oct_regex *r, guint32 from) {
  if (r->at < r->end && *r->at == '?') {
    if (r->end - r->at < 2 || r->at[1] != ':')
      unsupported(r, "a group that begins with (?");
    r->at += 2;
  }
  if (++r->depth > OCT_GUIDE_DEPTH_MAX)
    oct_automaton_fail(r->a, OCT_TEXT_ERROR_LIMIT, "the pattern nests more than %u deep",
                       OCT_GUIDE_DEPTH_MAX);
  guint32 to = r->a->failed ? from : read_alternatives(r, from);
  r->depth--;
  if (!r->a->failed && (r->at == r->end || *r->at != ')'))
    oct_automaton_fail(r->a, OCT_TEXT_ERROR_INPUT, "the pattern lacks a )");
  else if (!r->a->failed)
    r->at++;
  return to;
}

/* One atom from `from`; returns where it is then. */
static guint32
read_atom(oct_regex *r, guint32 from) {
  char c = *r->at, name = 0;
  if (c == '(') {
    r->at++;
    return read_group(r, from);
  }
  guint32 to = oct_automaton_state(r->a);
  if (c == '[') {
    r->at++;
    read_class(r, from, to);
  } else if (c == '.') {
    r->at++;
    add_range(r, from, 0, '\n' - 1, to);
    add_range(r, from, '\n' + 1, 0x10ffff, to);
  } else if (c == '\\') {
    r->at++;
    gunichar value = read_escape(r, &name);
    g_autoptr(GArray) ranges = g_array_new(FALSE, FALSE, sizeof(oct_range));
    oct_range range = {value, value};
    if (name != 0)
      add_named(ranges, g_ascii_tolower(name));
    else
      g_array_append_val(ranges, range);
    if (!r->a->failed)
      add_ranges(r, from, ranges, g_ascii_isupper(name), to);
  } else if (strchr("*+?{^$", c) != NULL)
    oct_automaton_fail(r->a, OCT_TEXT_ERROR_INPUT, "the pattern has a '%c' that follows nothing%s",
                       c, c == '^' || c == '$' ? ", or an anchor in the middle" : "");
  else {
    gunichar value = read_char(r);
    add_range(r, from, value, value, to);
  }
  return to;
}

static gboolean
read_number(oct_regex *r, guint *value) {
  guint n = 0, digits = 0;
  for (; r->at < r->end && g_ascii_isdigit(*r->at); r->at++, digits++)
    n = MIN(n * 10 + (guint)(*r->at - '0'), OCT_GUIDE_REPEAT_MAX + 1);
  *value = n;
  return digits > 0;
}

/* The quantifier at r->at: how often, G_MAXUINT for no end. FALSE: there is none. */
static gboolean
read_quantifier(oct_regex *r, guint *least, guint *most) {
  char c = r->at < r->end ? *r->at : 0;
  *least = c == '+' ? 1 : 0;
  *most = c == '?' ? 1 : G_MAXUINT;
  if (c == 0 || strchr("*+?{", c) == NULL)
    return FALSE;
  r->at++;
  if (c == '{') {
    gboolean ok = read_number(r, least);
    *most = *least;
    if (ok && r->at < r->end && *r->at == ',') {
      r->at++;
      if (!read_number(r, most))
        *most = G_MAXUINT;
    }
    if (!ok || r->at == r->end || *r->at != '}' || *most < *least)
      oct_automaton_fail(r->a, OCT_TEXT_ERROR_INPUT, "the pattern has a malformed {m,n}");
    else
      r->at++;
    if (*least > OCT_GUIDE_REPEAT_MAX || (*most != G_MAXUINT && *most > OCT_GUIDE_REPEAT_MAX))
      oct_automaton_fail(r->a, OCT_TEXT_ERROR_LIMIT, "the pattern repeats more than %u times",
                         OCT_GUIDE_REPEAT_MAX);
  }
  if (r->at < r->end && strchr("*+?{", *r->at) != NULL)
    unsupported(r, "a lazy, possessive or repeated quantifier");
  return TRUE;
}

static guint32
read_repeated(oct_regex *r, guint32 from) {
  oct_automaton *a = r->a;
  const char *atom = r->at;
  guint32 begin = oct_automaton_state(a);
  oct_automaton_free(a, from, begin);
  guint32 to = read_atom(r, begin);
  guint least, most;
  if (a->failed || !read_quantifier(r, &least, &most) || a->failed)
    return to;
  const char *after = r->at;
  guint32 end = oct_automaton_state(a);
  if (least == 0)
    oct_automaton_free(a, begin, end);
  for (guint n = 1; !a->failed; n++) {
    if (n >= least)
      oct_automaton_free(a, to, end);
    if (most == G_MAXUINT && n >= least) {
      oct_automaton_free(a, to, begin);
      break;
    }
    if (n >= most)
      break;
    begin = oct_automaton_state(a);
    oct_automaton_free(a, to, begin);
    r->at = atom;
    to = read_atom(r, begin);
  }
  r->at = after;
  if (most == 0) {
    guint32 nothing = oct_automaton_state(a);
    oct_automaton_free(a, from, nothing);
    return nothing;
  }
  return end;
}

static guint32
read_alternatives(oct_regex *r, guint32 from) {
  guint32 end = oct_automaton_state(r->a);
  for (;;) {
    guint32 at = oct_automaton_state(r->a);
    oct_automaton_free(r->a, from, at);
    while (!r->a->failed && r->at < r->end && *r->at != '|' && *r->at != ')')
      at = read_repeated(r, at);
    oct_automaton_free(r->a, at, end);
    if (r->a->failed || r->at == r->end || *r->at != '|')
      return end;
    r->at++;
  }
}

/* Any characters, any number of them. */
static guint32
add_anything(oct_regex *r, guint32 from) {
  guint32 at = oct_automaton_state(r->a);
  oct_automaton_free(r->a, from, at);
  add_range(r, at, 0, 0x10ffff, at);
  return at;
}

guint32
oct_automaton_regex(oct_automaton *a, guint32 from, const char *pattern, gboolean json,
                    gboolean search) {
  gsize size = strlen(pattern);
  oct_regex r = {.a = a, .at = pattern, .end = pattern + size, .json = json};
  if (size > OCT_GUIDE_BYTES_MAX || !g_utf8_validate(pattern, -1, NULL)) {
    oct_automaton_fail(a, OCT_TEXT_ERROR_INPUT,
                       "a pattern of %" G_GSIZE_FORMAT " bytes: at most %u, in UTF-8", size,
                       OCT_GUIDE_BYTES_MAX);
    return from;
  }
  gboolean begins = size > 0 && *pattern == '^';
  gboolean ends = size > 1 && pattern[size - 1] == '$' && pattern[size - 2] != '\\';
  r.at += begins;
  r.end -= ends;
  /* An anchor binds tighter than |: with both, only a group can be meant. */
  if (search && !begins)
    from = add_anything(&r, from);
  from = read_alternatives(&r, from);
  if (!a->failed && r.at < r.end)
    oct_automaton_fail(a, OCT_TEXT_ERROR_INPUT, "the pattern has a ) without (");
  return search && !ends ? add_anything(&r, from) : from;
}
