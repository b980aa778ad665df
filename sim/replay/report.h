/* Reports for people, from their JSON: at most 100 columns wide. */
#ifndef OCT_SIM_REPLAY_REPORT_H
#define OCT_SIM_REPLAY_REPORT_H

#include <jansson.h>
#include <stdio.h>

#include <glib.h>

#define OCT_REPORT_COLUMNS  100
#define OCT_REPORT_COMPARED 4 /* runs side by side; more go below */

/* One run in full. */
void oct_report_print(FILE *out, const json_t *report);
/* Runs side by side: verdict, latencies, decode gaps, throughput, memory. */
void oct_report_print_comparison(FILE *out, json_t *const *reports, guint n);
/* Parts of the former: verdict and window; latencies, or `only` those named ("ttft"; NULL =
 * all); throughput and objectives. */
void oct_report_print_verdict(FILE *out, const json_t *report);
void oct_report_print_latency(FILE *out, const json_t *report, const char *const *only);
/* A row as in its table. */
void oct_report_print_distribution(FILE *out, const char *name, const json_t *distribution);
void oct_report_print_throughput(FILE *out, const json_t *report);
/* Worst and peak windows, and classes; nothing without. */
void oct_report_print_parts(FILE *out, const json_t *report);
/* What a scenario and impatient clients came to; nothing without. */
void oct_report_print_incidents(FILE *out, const json_t *report);
/* "label  text", the text broken between words and indented. */
void oct_report_print_wrapped(FILE *out, const char *label, const char *text);
/* One line: what ran. Owned. */
char *oct_report_title(const json_t *report) G_GNUC_WARN_UNUSED_RESULT;

/* The value at a path of names, "latency_s.ttft.p99"; NULL when there is none or it is null. */
const json_t *oct_report_at(const json_t *report, const char *path);
double oct_report_number(const json_t *report, const char *path); /* NAN when there is none */
/* "41.2 ms", "1.53 s", "-" for NAN; in one of a few buffers used in turn: up to 8 in one printf. */
const char *oct_report_seconds(double s);
/* The same for counts, "12,345", and for shares, "41.2 %". */
const char *oct_report_count(double n);
const char *oct_report_share(double share);

#endif
