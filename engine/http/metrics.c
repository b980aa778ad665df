#include "engine/obs/metrics.h"

#include "engine/http/server.h"

static void
write_one(GString *out, const char *name, oct_metric_kind kind, const char *help, double value) {
  oct_metrics_family(out, name, kind, help);
  oct_metrics_sample(out, name, "", value);
}

static void
write_gone(GString *out, const oct_http_counts *counts) {
  static const char *const reasons[OCT_HTTP_GONE_COUNT] = {"left",    "stalled", "timeout",
                                                           "refused", "memory",  "aborted"};
  const char *name = "octet:http_gone_total";
  oct_metrics_family(out, name, OCT_METRIC_COUNTER, "Requests whose client was lost, by reason.");
  for (guint i = 0; i < OCT_HTTP_GONE_COUNT; i++) {
    g_autoptr(GString) labels = g_string_new(NULL);
    oct_metrics_label(labels, "reason", reasons[i]);
    oct_metrics_sample(out, name, labels->str, (double)counts->gone[i]);
  }
}

void
oct_http_server_write_metrics(const oct_http_server *server, GString *out) {
  oct_http_counts c = oct_http_server_counts(server);
  const struct {
    const char *name, *help;
    oct_metric_kind kind;
    double value;
  } rows[] = {
      {"octet:http_connections", "Connections that are open.", OCT_METRIC_GAUGE, c.connections},
      {"octet:http_requests", "Requests that are being answered.", OCT_METRIC_GAUGE, c.exchanges},
      {"octet:http_connections_total", "Connections taken.", OCT_METRIC_COUNTER,
       (double)c.accepted},
      {"octet:http_turned_away_total", "Connections above a limit of their number.",
       OCT_METRIC_COUNTER, (double)c.turned_away},
      {"octet:http_requests_total", "Requests whose head was read.", OCT_METRIC_COUNTER,
       (double)c.requests},
      {"octet:http_refused_total", "Requests that were malformed, too large or too slow.",
       OCT_METRIC_COUNTER, (double)c.refused},
      {"octet:http_received_bytes_total", "Bytes from clients.", OCT_METRIC_COUNTER,
       (double)c.bytes_in},
      {"octet:http_sent_bytes_total", "Bytes to clients.", OCT_METRIC_COUNTER, (double)c.bytes_out},
  };
  for (gsize i = 0; i < G_N_ELEMENTS(rows); i++)
    write_one(out, rows[i].name, rows[i].kind, rows[i].help, rows[i].value);
  write_gone(out, &c);
}
