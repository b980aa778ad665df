/* What happened on the way, for people. */
#include "sim/replay/report.h"

#define EVENTS_SHOWN 12

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
