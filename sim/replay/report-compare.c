/* Runs side by side. */
#include <math.h>
#include <string.h>

#include "sim/replay/report.h"

typedef enum form { SECONDS, COUNT, SHARE, TEXT } form;

typedef struct row {
  const char *name, *path;
  form form;
  gboolean needs_slo; /* means nothing without objectives */
} row;

static const row rows[] = {
    {"verdict", "verdict.verdict", TEXT, FALSE},
    {"unserved share of load", "verdict.unserved_share", SHARE, FALSE},
    {"requests/s", "throughput.requests_per_s", COUNT, FALSE},
    {"good requests/s", "throughput.good_requests_per_s", COUNT, TRUE},
    {"within SLO", "slo.attainment", SHARE, TRUE},
    {"output tokens/s", "throughput.output_tokens_per_s", COUNT, FALSE},
    {"refused as busy", "requests.busy", COUNT, FALSE},
    {"TTFT mean", "latency_s.ttft.mean", SECONDS, FALSE},
    {"TTFT p50", "latency_s.ttft.p50", SECONDS, FALSE},
    {"TTFT p99", "latency_s.ttft.p99", SECONDS, FALSE},
    {"TPOT p50", "latency_s.tpot.p50", SECONDS, FALSE},
    {"TPOT p99", "latency_s.tpot.p99", SECONDS, FALSE},
    {"ITL p99", "latency_s.itl.p99", SECONDS, FALSE},
    {"E2E p50", "latency_s.e2e.p50", SECONDS, FALSE},
    {"E2E p99", "latency_s.e2e.p99", SECONDS, FALSE},
    {"queue p99", "latency_s.queue.p99", SECONDS, FALSE},
    {"longest decode gap p50", "latency_s.longest_gap.p50", SECONDS, FALSE},
    {"longest decode gap p99", "latency_s.longest_gap.p99", SECONDS, FALSE},
    {"longest decode gap max", "latency_s.longest_gap.max", SECONDS, FALSE},
    {"step mean", "steps.time.mean", SECONDS, FALSE},
    {"sequences a step", "steps.sequences.mean", COUNT, FALSE},
    {"KV pages used", "use.kv_used.mean", SHARE, FALSE},
    {"preemptions", "scheduler.preemptions", COUNT, FALSE},
    {"recomputed share", "scheduler.recomputed_share", SHARE, FALSE},
    {"prefix hits", "scheduler.prefix_hit_share", SHARE, FALSE},
    {"bound by", "steps.bound_by", TEXT, FALSE},
};

static const char *
cell(const json_t *report, const row *r) {
  double value = oct_report_number(report, r->path);
  if (r->needs_slo && oct_report_at(report, "slo.met") == NULL)
    return "-";
  const json_t *at = oct_report_at(report, r->path);
  switch (r->form) {
  case SECONDS:
    return oct_report_seconds(value);
  case COUNT:
    return oct_report_count(value);
  case SHARE:
    return oct_report_share(value);
  case TEXT:
    break;
  }
  return at != NULL && json_is_string(at) ? json_string_value(at) : "-";
}

/* What tells the run from the others, cut to the column. */
static char *
heading(const json_t *report, guint number) {
  const json_t *label = oct_report_at(report, "label");
  g_autofree char *text =
      label != NULL ? g_strdup(json_string_value(label)) : g_strdup_printf("run %u", number);
  if (g_utf8_strlen(text, -1) <= 17)
    return g_steal_pointer(&text);
  /* Of "policy decode-first" the value says enough. */
  const char *value = strchr(text, ' ');
  if (value != NULL && strchr(value + 1, ' ') == NULL && g_utf8_strlen(value + 1, -1) <= 17)
    return g_strdup(value + 1);
  g_autofree char *end = g_utf8_substring(text, g_utf8_strlen(text, -1) - 16, -1);
  return g_strdup_printf("…%s", end);
}

/* g_snprintf pads bytes; names may hold others. */
static void
print_right(FILE *out, const char *text, int width) {
  int n = (int)g_utf8_strlen(text, -1);
  fprintf(out, "%*s%s", MAX(0, width - n), "", text);
}

void
oct_report_print_comparison(FILE *out, json_t *const *reports, guint n) {
  for (guint first = 0; first < n; first += OCT_REPORT_COMPARED) {
    guint last = MIN(n, first + OCT_REPORT_COMPARED);
    fprintf(out, "%s%-26s", first > 0 ? "\n" : "", "");
    for (guint i = first; i < last; i++) {
      g_autofree char *name = heading(reports[i], i + 1);
      print_right(out, name, 18);
    }
    fputc('\n', out);
    for (gsize k = 0; k < G_N_ELEMENTS(rows); k++) {
      fprintf(out, "  %-24s", rows[k].name);
      for (guint i = first; i < last; i++)
        print_right(out, cell(reports[i], &rows[k]), 18);
      fputc('\n', out);
    }
  }
  fputc('\n', out);
  for (guint i = 0; i < n; i++) {
    const json_t *label = oct_report_at(reports[i], "label");
    g_autofree char *name = heading(reports[i], i + 1);
    if (label != NULL && strcmp(name, json_string_value(label)) != 0)
      fprintf(out, "%u: %s\n", i + 1, json_string_value(label));
    if (oct_report_at(reports[i], "latency_s.at_s") != NULL)
      fprintf(out, "%s: saturated; its percentiles are those at T = %.0f s and grow with it\n",
              name, oct_report_number(reports[i], "latency_s.at_s"));
  }
}
