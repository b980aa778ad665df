/* Parts of a run, and what happened on the way, for people. */
#include "sim/replay/report.h"

#define EVENTS_SHOWN 12

static void
print_window(FILE *out, const json_t *w, const char *label, const char *what) {
  if (w == NULL)
    return;
  g_autofree char *text = g_strdup_printf(
      "%s from %.0f s: %s requests, %s tokens/s, %s within the limits, p99 of TTFT %s, TPOT %s, "
      "E2E %s",
      what, oct_report_number(w, "from_s"), oct_report_count(oct_report_number(w, "requests")),
      oct_report_count(oct_report_number(w, "tokens_per_s")),
      oct_report_share(oct_report_number(w, "attainment")),
      oct_report_seconds(oct_report_number(w, "ttft_p99_s")),
      oct_report_seconds(oct_report_number(w, "tpot_p99_s")),
      oct_report_seconds(oct_report_number(w, "e2e_p99_s")));
  oct_report_print_wrapped(out, label, text);
}

void
oct_report_print_parts(FILE *out, const json_t *r) {
  const json_t *classes = oct_report_at(r, "classes"), *c;
  gsize i;
  const char *reason = json_string_value(oct_report_at(r, "windows.reason"));
  if (reason != NULL)
    oct_report_print_wrapped(out, "windows", reason);
  print_window(out, oct_report_at(r, "windows.worst"), "windows", "worst");
  print_window(out, oct_report_at(r, "windows.peak"), "", "peak");
  json_array_foreach(classes, i, c) {
    const char *name = json_string_value(json_object_get(c, "class"));
    g_autofree char *text = g_strdup_printf(
        "%s: %s requests, %s within the limits; p50 and p99 of TTFT %s and %s, TPOT %s and %s",
        *name != '\0' ? name : "(none)", oct_report_count(oct_report_number(c, "requests")),
        oct_report_share(oct_report_number(c, "attainment")),
        oct_report_seconds(oct_report_number(c, "ttft_p50_s")),
        oct_report_seconds(oct_report_number(c, "ttft_p99_s")),
        oct_report_seconds(oct_report_number(c, "tpot_p50_s")),
        oct_report_seconds(oct_report_number(c, "tpot_p99_s")));
    oct_report_print_wrapped(out, i == 0 ? "classes" : "", text);
  }
}

void
oct_report_print_incidents(FILE *out, const json_t *r) {
  const json_t *events = oct_report_at(r, "incidents.events"), *event;
  gsize i;
  if (oct_report_at(r, "incidents") == NULL)
    return;
  if (oct_report_at(r, "incidents.title") != NULL)
    oct_report_print_wrapped(out, "scenario",
                             json_string_value(oct_report_at(r, "incidents.title")));
  json_array_foreach(events, i, event) {
    if (i == EVENTS_SHOWN) {
      g_autofree char *more = g_strdup_printf("… and %d more (--json has them)",
                                              (int)json_array_size(events) - EVENTS_SHOWN);
      oct_report_print_wrapped(out, "", more);
      break;
    }
    g_autofree char *line = g_strdup_printf("at %.3f s %s", oct_report_number(event, "at_s"),
                                            json_string_value(json_object_get(event, "event")));
    oct_report_print_wrapped(out, "", line);
  }
  g_autofree char *text = g_strdup_printf(
      "requests lost %s, of which resumed %s (%s tokens computed again), parked %s; replicas down "
      "for %s; clients: %s timeouts, %s sent again",
      oct_report_count(oct_report_number(r, "incidents.lost_requests")),
      oct_report_count(oct_report_number(r, "incidents.resumed")),
      oct_report_count(oct_report_number(r, "incidents.resumed_tokens")),
      oct_report_count(oct_report_number(r, "incidents.parked")),
      oct_report_seconds(oct_report_number(r, "incidents.down_s")),
      oct_report_count(oct_report_number(r, "incidents.client_timeouts")),
      oct_report_count(oct_report_number(r, "incidents.client_retries")));
  oct_report_print_wrapped(out, "incidents", text);
  if (oct_report_at(r, "incidents.energy") == NULL)
    return;
  g_autofree char *energy = g_strdup_printf(
      "GPUs draw %.0f to %.0f W, %.3g to %.3g J per output token (dynamic power only while "
      "arithmetic binds, or whenever a step runs)",
      oct_report_number(r, "incidents.energy.watts_low"),
      oct_report_number(r, "incidents.energy.watts_high"),
      oct_report_number(r, "incidents.energy.joules_per_token_low"),
      oct_report_number(r, "incidents.energy.joules_per_token_high"));
  oct_report_print_wrapped(out, "energy", energy);
}
