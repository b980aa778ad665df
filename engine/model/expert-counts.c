#include "engine/model/expert-counts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/base/file.h"

guint32
oct_expert_counts_width(const oct_model_spec *spec) {
  guint32 most = 0;
  for (guint i = 0; i < spec->n_ffn; i++)
    most = MAX(most, spec->ffn[i].n_experts);
  return most;
}

static guint32
experts_of(const oct_model_spec *spec, guint32 layer) {
  return spec->ffn[spec->layers[layer].ffn].n_experts;
}

/* ---------------------------------------------------------------- reading */

static gboolean
refuse(GError **error, const char *path, guint line, const char *what) {
  g_set_error(error, OCT_MODEL_ERROR, OCT_MODEL_ERROR_PARSE, "%s:%u: %s", path, line, what);
  return FALSE;
}

static gboolean
read_line(const char *path, guint number, const char *text, double *row, guint32 n_experts,
          GError **error) {
  guint32 n = 0;
  for (const char *at = text + strspn(text, " \t,\r"); *at != '\0'; at += strspn(at, " \t,\r")) {
    char *end;
    double value = g_ascii_strtod(at, &end);
    if (end == at || !isfinite(value) || value < 0) {
      g_autofree char *what = g_strdup_printf("\"%.20s\" is no number of at least 0", at);
      return refuse(error, path, number, what);
    }
    if (n == n_experts) {
      g_autofree char *what = g_strdup_printf("more than the layer's %u experts", n_experts);
      return refuse(error, path, number, what);
    }
    row[n++] = value;
    at = end;
  }
  if (n == 0 || n == n_experts)
    return TRUE;
  g_autofree char *what = g_strdup_printf("%u values for %u experts", n, n_experts);
  return refuse(error, path, number, what);
}

static gboolean
read_lines(const char *path, char **lines, const oct_model_spec *spec, double *counts,
           GError **error) {
  guint32 width = oct_expert_counts_width(spec), layer = 0;
  guint n_lines = g_strv_length(lines);
  if (n_lines > 0 && *lines[n_lines - 1] == '\0')
    n_lines--; /* the last line ends too */
  for (guint i = 0; i < n_lines; i++) {
    if (*lines[i] == '#')
      continue;
    if (layer == spec->n_layers)
      return refuse(error, path, i + 1, "more lines than the model has layers");
    if (!read_line(path, i + 1, lines[i], counts + (gsize)layer * width, experts_of(spec, layer),
                   error))
      return FALSE;
    layer++;
  }
  if (layer < spec->n_layers)
    return refuse(error, path, n_lines, "fewer lines than the model has layers");
  return TRUE;
}

double *
oct_expert_counts_read(const char *path, const oct_model_spec *spec, GError **error) {
  g_autofree char *text = NULL;
  g_autoptr(GError) reason = NULL;
  if (!oct_file_read(path, OCT_EXPERT_COUNTS_BYTES_MAX, &text, NULL, &reason)) {
    const gboolean too_long = g_error_matches(reason, OCT_BASE_ERROR, OCT_BASE_ERROR_LIMIT);
    g_set_error(error, OCT_MODEL_ERROR,
                too_long ? OCT_MODEL_ERROR_PARSE : OCT_MODEL_ERROR_NOT_FOUND, "%s: %s", path,
                reason->message);
    return NULL;
  }
  g_autofree double *counts =
      g_new0(double, (gsize)spec->n_layers *MAX(oct_expert_counts_width(spec), 1));
  g_auto(GStrv) lines = g_strsplit(text, "\n", -1);
  return read_lines(path, lines, spec, counts, error) ? g_steal_pointer(&counts) : NULL;
}

/* ---------------------------------------------------------------- writing */

gboolean
oct_expert_counts_write(const char *path, const oct_model_spec *spec, const double *counts,
                        guint64 tokens, GError **error) {
  guint32 width = oct_expert_counts_width(spec);
  g_autoptr(GString) text = g_string_new(NULL);
  g_string_append_printf(text, "# octet expert counts 1: %s, %" G_GUINT64_FORMAT " tokens\n",
                         spec->name, tokens);
  for (guint32 layer = 0; layer < spec->n_layers; layer++) {
    for (guint32 e = 0; e < experts_of(spec, layer); e++) {
      char number[G_ASCII_DTOSTR_BUF_SIZE];
      g_ascii_formatd(number, sizeof number, "%.15g", counts[(gsize)layer * width + e]);
      g_string_append_printf(text, "%s%s", e > 0 ? " " : "", number);
    }
    g_string_append_c(text, '\n');
  }
  return g_file_set_contents(path, text->str, (gssize)text->len, error);
}

/* ---------------------------------------------------------------- popularity */

static int
compare_down(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return x < y ? 1 : x > y ? -1 : 0;
}

double *
oct_expert_counts_ranked(const oct_model_spec *spec, const double *counts, GError **error) {
  const guint32 n = oct_expert_counts_width(spec);
  guint32 layers = 0;
  g_autofree double *sorted = g_new(double, MAX(n, 1)), *out = g_new0(double, MAX(n, 1));
  for (guint32 layer = 0; layer < spec->n_layers; layer++) {
    double sum = 0;
    if (n == 0 || experts_of(spec, layer) != n)
      continue;
    memcpy(sorted, counts + (gsize)layer * n, n * sizeof *sorted);
    for (guint32 e = 0; e < n; e++)
      sum += sorted[e];
    if (!(sum > 0))
      continue;
    qsort(sorted, n, sizeof *sorted, compare_down);
    for (guint32 e = 0; e < n; e++)
      out[e] += sorted[e] / sum;
    layers++;
  }
  for (guint32 e = 0; e < n && layers > 0; e++)
    out[e] /= layers;
  if (layers > 0)
    return g_steal_pointer(&out);
  g_set_error(error, OCT_MODEL_ERROR, OCT_MODEL_ERROR_PARSE, "no expert of model '%s' has a count",
              spec->name);
  return NULL;
}
