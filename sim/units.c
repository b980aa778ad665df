#include "sim/units.h"

#include <errno.h>
#include <math.h>
#include <string.h>

G_DEFINE_QUARK(oct - units - error - quark, oct_units_error)

#define BASE(unit, n)       .exponent = {[unit] = n}
#define RATIO(above, below) .exponent = {[above] = 1, [below] = -1}
const oct_dimension oct_dimension_number = {.exponent = {0}};
const oct_dimension oct_dimension_bytes = {BASE(OCT_UNIT_BYTE, 1)};
const oct_dimension oct_dimension_bytes_per_s = {RATIO(OCT_UNIT_BYTE, OCT_UNIT_SECOND)};
const oct_dimension oct_dimension_bytes_per_token = {RATIO(OCT_UNIT_BYTE, OCT_UNIT_TOKEN)};
const oct_dimension oct_dimension_seconds = {BASE(OCT_UNIT_SECOND, 1)};
const oct_dimension oct_dimension_tokens = {BASE(OCT_UNIT_TOKEN, 1)};
const oct_dimension oct_dimension_tokens_per_s = {RATIO(OCT_UNIT_TOKEN, OCT_UNIT_SECOND)};
const oct_dimension oct_dimension_requests = {BASE(OCT_UNIT_REQUEST, 1)};
const oct_dimension oct_dimension_requests_per_s = {RATIO(OCT_UNIT_REQUEST, OCT_UNIT_SECOND)};
const oct_dimension oct_dimension_flops = {RATIO(OCT_UNIT_FLOP, OCT_UNIT_SECOND)};
const oct_dimension oct_dimension_watts = {BASE(OCT_UNIT_WATT, 1)};
const oct_dimension oct_dimension_per_s = {BASE(OCT_UNIT_SECOND, -1)};

typedef struct unit_word {
  const char *word;
  gint unit; /* -1: a pure number */
  double factor;
  gboolean prefixed; /* takes an SI prefix */
} unit_word;

static const unit_word words[] = {
    {"B", OCT_UNIT_BYTE, 1, TRUE},
    {"byte", OCT_UNIT_BYTE, 1, FALSE},
    {"bytes", OCT_UNIT_BYTE, 1, FALSE},
    {"s", OCT_UNIT_SECOND, 1, TRUE},
    {"min", OCT_UNIT_SECOND, 60, FALSE},
    {"h", OCT_UNIT_SECOND, 3600, FALSE},
    {"d", OCT_UNIT_SECOND, 86400, FALSE},
    {"tok", OCT_UNIT_TOKEN, 1, TRUE},
    {"token", OCT_UNIT_TOKEN, 1, FALSE},
    {"tokens", OCT_UNIT_TOKEN, 1, FALSE},
    {"req", OCT_UNIT_REQUEST, 1, TRUE},
    {"request", OCT_UNIT_REQUEST, 1, FALSE},
    {"requests", OCT_UNIT_REQUEST, 1, FALSE},
    {"users", OCT_UNIT_REQUEST, 1, FALSE},
    {"flop", OCT_UNIT_FLOP, 1, TRUE},
    {"FLOP", OCT_UNIT_FLOP, 1, TRUE},
    {"W", OCT_UNIT_WATT, 1, TRUE},
    {"GPU", -1, 1, FALSE},
    {"GPUs", -1, 1, FALSE},
    {"%", -1, 0.01, FALSE},
    {"x", -1, 1, FALSE},
    {"1", -1, 1, FALSE},
};

static const struct {
  const char *word;
  double factor;
  gboolean binary;
} prefixes[] = {
    {"Ki", 1024.0, TRUE},       {"Mi", 1048576.0, TRUE},
    {"Gi", 1073741824.0, TRUE}, {"Ti", 1099511627776.0, TRUE},
    {"k", 1e3, FALSE},          {"K", 1e3, FALSE},
    {"M", 1e6, FALSE},          {"G", 1e9, FALSE},
    {"T", 1e12, FALSE},         {"P", 1e15, FALSE},
    {"m", 1e-3, FALSE},         {"u", 1e-6, FALSE},
    {"n", 1e-9, FALSE},
};

/* ---------------------------------------------------------------- reading */

static const unit_word *
find_word(const char *word, double *factor) {
  for (gsize i = 0; i < G_N_ELEMENTS(words); i++)
    if (strcmp(words[i].word, word) == 0) {
      *factor = words[i].factor;
      return &words[i];
    }
  for (gsize p = 0; p < G_N_ELEMENTS(prefixes); p++) {
    gsize n = strlen(prefixes[p].word);
    if (strncmp(word, prefixes[p].word, n) != 0)
      continue;
    for (gsize i = 0; i < G_N_ELEMENTS(words); i++)
      if (words[i].prefixed && strcmp(words[i].word, word + n) == 0 &&
          (!prefixes[p].binary || words[i].unit == OCT_UNIT_BYTE)) {
        *factor = words[i].factor * prefixes[p].factor;
        return &words[i];
      }
  }
  return NULL;
}

/* "TB/s", "/h", "": unit words between slashes, the first one above the line. */
static gboolean
parse_units(const char *text, double *value, oct_dimension *dimension, GError **error) {
  g_auto(GStrv) parts = g_strsplit(text, "/", -1);
  if (g_strv_length(parts) > 3) {
    g_set_error(error, OCT_UNITS_ERROR, OCT_UNITS_ERROR_UNIT, "more than two \"/\" in \"%s\"",
                text);
    return FALSE;
  }
  for (guint i = 0; parts[i] != NULL; i++) {
    const char *part = g_strstrip(parts[i]);
    double factor;
    if (i == 0 && *part == '\0')
      continue;
    const unit_word *word = find_word(part, &factor);
    if (word == NULL) {
      g_set_error(error, OCT_UNITS_ERROR, OCT_UNITS_ERROR_UNIT,
                  "unit \"%.40s\" is not known: B, s, min, h, d, tok, req, users, flop, W, GPUs or "
                  "%%, with a prefix such as k, M, G, T, m, u, n, Gi",
                  part);
      return FALSE;
    }
    *value = i == 0 ? *value * factor : *value / factor;
    if (word->unit >= 0)
      dimension->exponent[word->unit] =
          (gint8)(dimension->exponent[word->unit] + (i == 0 ? 1 : -1));
  }
  return TRUE;
}

gboolean
oct_quantity_parse(const char *text, double *value, oct_dimension *dimension, GError **error) {
  char *end;
  *dimension = oct_dimension_number;
  *value = g_ascii_strtod(text, &end);
  if (end == text || !isfinite(*value)) {
    g_set_error(error, OCT_UNITS_ERROR, OCT_UNITS_ERROR_NUMBER,
                "wants a number, with its unit behind it");
    return FALSE;
  }
  if (*end == ',' && g_ascii_isdigit(end[1])) {
    g_set_error(error, OCT_UNITS_ERROR, OCT_UNITS_ERROR_NUMBER,
                "a number is written without commas, its point is \".\"");
    return FALSE;
  }
  return parse_units(end, value, dimension, error);
}

static gboolean
is_equal(const oct_dimension *a, const oct_dimension *b) {
  return memcmp(a, b, sizeof *a) == 0;
}

gboolean
oct_quantity_read(const char *text, const oct_dimension *dimension, double *value, GError **error) {
  oct_dimension found;
  if (!oct_quantity_parse(text, value, &found, error))
    return FALSE;
  gboolean count =
      is_equal(dimension, &oct_dimension_tokens) || is_equal(dimension, &oct_dimension_requests);
  if (is_equal(&found, dimension) || (count && is_equal(&found, &oct_dimension_number)))
    return TRUE;
  g_autofree char *is = oct_dimension_name(&found), *wanted = oct_dimension_name(dimension);
  g_set_error(error, OCT_UNITS_ERROR, OCT_UNITS_ERROR_DIMENSION, "is in %s, must be in %s", is,
              wanted);
  return FALSE;
}

/* ---------------------------------------------------------------- writing */

static void
append_units(GString *out, const oct_dimension *d, gint sign, const char *const *names) {
  gboolean first = TRUE;
  for (int u = 0; u < OCT_UNIT_COUNT; u++)
    for (int n = 0; n < sign * d->exponent[u]; n++) {
      g_string_append_printf(out, "%s%s", first && sign > 0 ? "" : sign > 0 ? " " : "/", names[u]);
      first = FALSE;
    }
}

char *
oct_dimension_name(const oct_dimension *d) {
  static const char *const above[] = {"bytes",    "seconds",    "tokens",
                                      "requests", "operations", "watts"};
  static const char *const below[] = {"byte", "s", "token", "request", "operation", "watt"};
  GString *out = g_string_new(NULL);
  append_units(out, d, 1, above);
  append_units(out, d, -1, below);
  if (out->len == 0)
    g_string_append(out, "numbers without unit");
  else if (out->str[0] == '/')
    g_string_prepend(out, "1");
  return g_string_free(out, FALSE);
}

char *
oct_quantity_format(double value, const oct_dimension *d) {
  static const char *const above[] = {"B", "s", "tok", "req", "flop", "W"};
  static const struct {
    double from;
    const char *prefix;
  } scales[] = {{1e15, "P"}, {1e12, "T"}, {1e9, "G"},  {1e6, "M"}, {1e3, "k"},
                {1, ""},     {1e-3, "m"}, {1e-6, "u"}, {1e-9, "n"}};
  /* Seconds have no kilo; counts of tokens and requests are written out. */
  gboolean seconds = is_equal(d, &oct_dimension_seconds);
  gboolean plain = d->exponent[OCT_UNIT_BYTE] <= 0 && d->exponent[OCT_UNIT_FLOP] <= 0 && !seconds;
  g_autoptr(GString) units = g_string_new(NULL);
  append_units(units, d, 1, above);
  append_units(units, d, -1, above);
  const char *gap = units->len == 0 || units->str[0] == '/' ? "" : " ";
  double size = fabs(value);
  if (plain)
    return g_strdup_printf(size >= 100 ? "%.0f%s%s" : "%.4g%s%s", value, gap, units->str);
  for (gsize i = 0; i < G_N_ELEMENTS(scales); i++)
    if (size >= scales[i].from * 0.9995 && !(seconds && scales[i].from > 1))
      return g_strdup_printf(size / scales[i].from >= 1000 ? "%.0f %s%s" : "%.4g %s%s",
                             value / scales[i].from, scales[i].prefix, units->str);
  return g_strdup_printf("%.4g%s%s", value, gap, units->str);
}
