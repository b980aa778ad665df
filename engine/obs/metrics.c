#include "engine/obs/metrics.h"

#include <math.h>
#include <string.h>

#include "engine/base/assert.h"

void
oct_metrics_family(GString *out, const char *name, oct_metric_kind kind, const char *help) {
  static const char *const kinds[] = {"counter", "gauge", "histogram"};
  g_string_append_printf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kinds[kind]);
}

/* Shortest of the forms that read back as the same number. */
static void
append_number(GString *out, double value) {
  char digits[G_ASCII_DTOSTR_BUF_SIZE];
  if (isinf(value)) {
    g_string_append(out, value > 0 ? "+Inf" : "-Inf");
    return;
  }
  g_ascii_formatd(digits, sizeof digits, "%.15g", value);
  if (g_ascii_strtod(digits, NULL) != value)
    g_ascii_dtostr(digits, sizeof digits, value);
  g_string_append(out, digits);
}

void
oct_metrics_sample(GString *out, const char *name, const char *labels, double value) {
  g_string_append(out, name);
  if (*labels != '\0')
    g_string_append_printf(out, "{%s}", labels);
  g_string_append_c(out, ' ');
  append_number(out, value);
  g_string_append_c(out, '\n');
}

void
oct_metrics_label(GString *labels, const char *name, const char *value) {
  g_string_append_printf(labels, "%s%s=\"", labels->len > 0 ? "," : "", name);
  for (const char *c = value; *c != '\0'; c++) {
    if (*c == '\\' || *c == '"')
      g_string_append_c(labels, '\\');
    if (*c == '\n')
      g_string_append(labels, "\\n");
    else
      g_string_append_c(labels, *c);
  }
  g_string_append_c(labels, '"');
}

/* ---------------------------------------------------------------- histograms */

struct oct_histogram {
  guint n_bounds;
  double bounds[OCT_HISTOGRAM_BOUNDS_MAX];
  guint64 counts[OCT_HISTOGRAM_BOUNDS_MAX + 1]; /* of each bucket alone; the last is +Inf */
  guint64 count;
  double sum;
};

oct_histogram *
oct_histogram_new(const double *bounds, guint n_bounds) {
  oct_assert(n_bounds <= OCT_HISTOGRAM_BOUNDS_MAX);
  oct_histogram *h = g_new0(oct_histogram, 1);
  h->n_bounds = n_bounds;
  for (guint i = 0; i < n_bounds; i++) {
    oct_assert(i == 0 || bounds[i] > bounds[i - 1]);
    h->bounds[i] = bounds[i];
  }
  return h;
}

void
oct_histogram_free(oct_histogram *h) {
  g_free(h);
}

void
oct_histogram_add(oct_histogram *h, double value, guint64 times) {
  guint low = 0, high = h->n_bounds; /* the first bound that is not below the value */
  while (low < high) {
    guint middle = (low + high) / 2;
    if (h->bounds[middle] < value)
      low = middle + 1;
    else
      high = middle;
  }
  h->counts[low] += times;
  h->count += times;
  h->sum += value * (double)times;
}

guint64
oct_histogram_count(const oct_histogram *h) {
  return h->count;
}

void
oct_histogram_write(const oct_histogram *h, GString *out, const char *name, const char *labels) {
  const char *comma = *labels != '\0' ? "," : "";
  guint64 below = 0;
  for (guint i = 0; i <= h->n_bounds; i++) {
    below += h->counts[i];
    g_string_append_printf(out, "%s_bucket{%s%sle=\"", name, labels, comma);
    append_number(out, i < h->n_bounds ? h->bounds[i] : (double)INFINITY);
    g_string_append_printf(out, "\"} %" G_GUINT64_FORMAT "\n", below);
  }
  g_autofree char *sum = g_strconcat(name, "_sum", NULL);
  g_autofree char *count = g_strconcat(name, "_count", NULL);
  oct_metrics_sample(out, sum, labels, h->sum);
  oct_metrics_sample(out, count, labels, (double)h->count);
}

guint
oct_histogram_bounds_125(double *bounds, double most) {
  static const double steps[] = {1, 2, 5};
  guint n = 0;
  for (double decade = 1; n < OCT_HISTOGRAM_BOUNDS_MAX; decade *= 10)
    for (guint i = 0; i < G_N_ELEMENTS(steps) && n < OCT_HISTOGRAM_BOUNDS_MAX; i++) {
      if (decade * steps[i] > most)
        return n;
      bounds[n++] = decade * steps[i];
    }
  return n;
}
