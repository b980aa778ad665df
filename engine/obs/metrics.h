/* Metrics in Prometheus' text format: families with their samples, and histograms with fixed
 * buckets. No registry: whoever has the figures writes them when somebody asks, so that a counter
 * has one owner and no lock. One thread at a time each.
 *
 *   oct_metrics_family(out, "octet:steps_total", OCT_METRIC_COUNTER, "Steps that have ended.");
 *   oct_metrics_sample(out, "octet:steps_total", "engine=\"0\"", 17);
 */
#ifndef OCT_OBS_METRICS_H
#define OCT_OBS_METRICS_H

#include <glib.h>

#define OCT_HISTOGRAM_BOUNDS_MAX 64

typedef enum oct_metric_kind {
  OCT_METRIC_COUNTER,
  OCT_METRIC_GAUGE,
  OCT_METRIC_HISTOGRAM
} oct_metric_kind;

/* Appends HELP and TYPE; the samples of the family follow at once. `help`: one line. */
void oct_metrics_family(GString *out, const char *name, oct_metric_kind kind, const char *help);
/* Appends a sample. `labels` is what stands between the braces, "" for none. */
void oct_metrics_sample(GString *out, const char *name, const char *labels, double value);
/* Appends name="value", with what must be escaped, and a comma before it unless `labels` is empty.
 */
void oct_metrics_label(GString *labels, const char *name, const char *value);

typedef struct oct_histogram oct_histogram;

/* Life cycle. `bounds` ascend; they are copied; +Inf is always there. */
oct_histogram *oct_histogram_new(const double *bounds, guint n_bounds);
void oct_histogram_free(oct_histogram *histogram); /* accepts NULL */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(oct_histogram, oct_histogram_free)
/* The same as adding `value` `times` times. */
void oct_histogram_add(oct_histogram *histogram, double value, guint64 times);
guint64 oct_histogram_count(const oct_histogram *histogram);
/* Appends its buckets, sum and count. */
void oct_histogram_write(const oct_histogram *histogram, GString *out, const char *name,
                         const char *labels);

/* Fills 1, 2, 5, 10, 20, 50 … up to `most`, at most OCT_HISTOGRAM_BOUNDS_MAX; returns how many. */
guint oct_histogram_bounds_125(double *bounds, double most);

#endif
