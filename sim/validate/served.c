#include "sim/validate/served.h"

#include <math.h>
#include <string.h>

#include "sim/replay/report.h"
#include "sim/validate/report.h"
#include "sim/validate/validate.h"

#define REPEATS_MIN 3 /* whose least and most are an interval */

/* A number of a report, and how near its prediction should be; `aim` 0: only shown. */
typedef struct figure {
  const char *name, *path;
  double scale, aim;
} figure;

static const figure figures[] = {
    {"TTFT p50, ms", "latency_s.ttft.p50", 1e3, 0.05},
    {"TTFT p99, ms", "latency_s.ttft.p99", 1e3, 0.10},
    {"ITL p50, ms", "latency_s.itl.p50", 1e3, 0.05},
    {"ITL p99, ms", "latency_s.itl.p99", 1e3, 0.10},
    {"E2E p50, ms", "latency_s.e2e.p50", 1e3, 0.05},
    {"E2E p99, ms", "latency_s.e2e.p99", 1e3, 0.10},
    {"requests/s, whole run", "throughput.whole_run.requests_per_s", 1, 0.03},
    {"output tokens/s, whole run", "throughput.whole_run.output_tokens_per_s", 1, 0.03},
    {"backlog, tokens/s", "verdict.backlog_tokens_per_s", 1, 0},
    {"- low of 95 %", "verdict.backlog_tokens_per_s_low", 1, 0},
    {"- high of 95 %", "verdict.backlog_tokens_per_s_high", 1, 0},
};

static gboolean
check(const json_t *report, double requests, const char *which, GError **error) {
  const double n = oct_report_number(report, "requests.measured");
  const char *why = !isfinite(n) || !isfinite(oct_report_number(report, "latency_s.ttft.p50"))
                        ? "has no latencies of measured requests"
                    : isfinite(requests) && n != requests ? "measured another number of requests"
                                                          : NULL;
  if (why == NULL)
    return TRUE;
  g_set_error(error, OCT_VALIDATE_ERROR, OCT_VALIDATE_ERROR_DATA,
              "%s %s (%.0f; the prediction %.0f)", which, why, n, requests);
  return FALSE;
}

static int
compare_doubles(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Whether the prediction is as near as it should be; NULL: nothing is asked of it. */
static const char *
verdict(const figure *f, double error, double predicted, const double *values, gsize n) {
  if (!(f->aim > 0) || !isfinite(error))
    return NULL;
  if (fabs(error) <= f->aim)
    return "held";
  gboolean between = n >= REPEATS_MIN && predicted >= values[0] && predicted <= values[n - 1];
  return between ? "held: between the repeats" : "MISSED";
}

/* A row; TRUE in *missed when the figure should be nearer. Nothing without numbers. */
static void
add_figure(json_t *table, const figure *f, const json_t *predicted, const json_t *measured,
           guint *asked, guint *missed) {
  const gsize n = json_array_size(measured);
  g_autofree double *values = g_new(double, n);
  const double twin = oct_report_number(predicted, f->path) * f->scale;
  for (gsize i = 0; i < n; i++)
    values[i] = oct_report_number(json_array_get(measured, i), f->path) * f->scale;
  for (gsize i = 0; i < n; i++)
    if (!isfinite(values[i]) || !isfinite(twin))
      return;
  qsort(values, n, sizeof *values, compare_doubles);
  const double middle = (values[(n - 1) / 2] + values[n / 2]) / 2;
  const double error = middle != 0 ? twin / middle - 1 : NAN;
  const char *found = verdict(f, error, twin, values, n);
  json_t *row = oct_validate_row(table);
  oct_validate_text(row, "%s", f->name);
  oct_validate_number(row, values[0]);
  oct_validate_number(row, middle);
  oct_validate_number(row, values[n - 1]);
  oct_validate_number(row, twin);
  oct_validate_number(row, f->aim > 0 ? error * 100 : NAN);
  oct_validate_number(row, f->aim > 0 ? f->aim * 100 : NAN);
  oct_validate_text(row, "%s", found != NULL ? found : "");
  *asked += found != NULL;
  *missed += found != NULL && strcmp(found, "MISSED") == 0;
}

json_t *
oct_validate_served(const json_t *predicted, const json_t *measured, GError **error) {
  static const char *const columns[] = {"figure", "least", "median", "most", "predicted",
                                        "off %",  "aim %", "",       NULL};
  const double requests = oct_report_number(predicted, "requests.measured");
  guint asked = 0, missed = 0;
  if (!check(predicted, NAN, "the prediction", error))
    return NULL;
  for (gsize i = 0; i < json_array_size(measured); i++) {
    g_autofree char *which = g_strdup_printf("measured report %u", (guint)i + 1);
    if (!check(json_array_get(measured, i), requests, which, error))
      return NULL;
  }
  json_t *part = oct_validate_part("served");
  json_t *table = oct_validate_table(part, "the same requests, served and predicted", columns);
  for (gsize i = 0; i < G_N_ELEMENTS(figures); i++)
    add_figure(table, &figures[i], predicted, measured, &asked, &missed);
  oct_validate_note(table, "%.0f requests, %u real runs; off: from their median", requests,
                    (guint)json_array_size(measured));
  oct_validate_note(table, "%u of %u figures held", asked - missed, asked);
  return part;
}
