/* Worst and peak windows, and classes: exact figures of parts of a run. */
#include <string.h>

#include "sim/replay/records.h"
#include "sim/replay/report.h"

#define S G_GINT64_CONSTANT(1000000000)

static void
add(oct_records *r, double at_s, double ttft_s, const char *class_name) {
  oct_outcome o = {.fate = ttft_s >= 0 ? OCT_FATE_ANSWERED : OCT_FATE_FAILED,
                   .arrival_ns = (oct_time)(at_s * 1e9),
                   .input_tokens = 90,
                   .output_tokens = 10};
  for (int i = 0; i < OCT_LATENCY_COUNT; i++)
    o.value_ns[i] = ttft_s >= 0 ? (gint64)(ttft_s * 1e9) : -1;
  oct_records_add(r, &o, class_name);
}

static void
limit(oct_slo *slo, const char *text) {
  g_autoptr(GError) error = NULL;
  oct_slo_init(slo);
  g_assert_true(oct_slo_parse(slo, text, &error));
}

/* One request a second of 0.1 s; in [100, 120) they take 2 s, in [200, 220) there are three. */
static oct_records *
traffic(void) {
  oct_records *r = oct_records_new();
  for (int t = 300; t-- > 0;) {
    add(r, t, t >= 100 && t < 120 ? 2 : 0.1, "");
    for (int more = 0; more < 2 && t >= 200 && t < 220; more++)
      add(r, t + 0.3 * (more + 1), 0.1, "");
  }
  return r;
}

static void
test_windows(void) {
  oct_slo slo;
  oct_records *r = traffic();
  limit(&slo, "ttft=1s");
  json_t *w = oct_records_windows_json(r, 0, 300 * S, 50 * S, &slo);
  /* Windows begin every 10 s: those from 70 to 100 hold all twenty slow ones of fifty. */
  g_assert_cmpfloat_with_epsilon(oct_report_number(w, "worst.attainment"), 0.6, 1e-9);
  g_assert_cmpfloat(oct_report_number(w, "worst.from_s"), ==, 70);
  g_assert_cmpfloat(oct_report_number(w, "worst.ttft_p99_s"), ==, 2);
  g_assert_cmpfloat(oct_report_number(w, "worst.requests"), ==, 50);
  g_assert_cmpfloat(oct_report_number(w, "peak.requests"), ==, 90);
  g_assert_cmpfloat(oct_report_number(w, "peak.from_s"), ==, 170);
  g_assert_cmpfloat(oct_report_number(w, "peak.tokens_per_s"), ==, 90 * 100 / 50.0);
  json_decref(w);
  /* Not before the window of the run, and one window if the run is shorter. */
  w = oct_records_windows_json(r, 130 * S, 300 * S, 50 * S, &slo);
  g_assert_cmpfloat(oct_report_number(w, "worst.attainment"), ==, 1);
  json_decref(w);
  w = oct_records_windows_json(r, 0, 300 * S, 1000 * S, &slo);
  g_assert_cmpfloat(oct_report_number(w, "worst.requests"), ==, 340);
  g_assert_cmpfloat(oct_report_number(w, "worst.length_s"), ==, 300);
  g_assert_cmpfloat(oct_report_number(w, "peak.tokens_per_s"), ==, 340 * 100 / 300.0);
  json_decref(w);
  w = oct_records_windows_json(r, 400 * S, 500 * S, 50 * S, &slo);
  g_assert_true(json_is_null(w));
  json_decref(w);
  oct_records_free(r);
}

static void
test_classes(void) {
  oct_records *r = oct_records_new();
  oct_slo slo;
  oct_class_slo own = {.class_name = "batch"};
  limit(&slo, "ttft_p90=1s");
  limit(&own.slo, "ttft_p90=20s");
  for (int i = 1; i <= 100; i++) {
    add(r, i, i * 0.02, "chat"); /* p50 1 s, p90 1.8 s; 50 are within 1 s */
    add(r, i, i * 0.2, "batch"); /* 20 s at most */
  }
  add(r, 50, -1, "chat");
  add(r, 500, 99, "chat"); /* outside of the window */
  json_t *list = oct_records_classes_json(r, 0, 200 * S, &slo, &own, 1);
  g_assert_cmpuint(json_array_size(list), ==, 2);
  const json_t *batch = json_array_get(list, 0), *chat = json_array_get(list, 1);
  g_assert_cmpstr(json_string_value(json_object_get(batch, "class")), ==, "batch");
  g_assert_cmpfloat(oct_report_number(batch, "attainment"), ==, 1);
  g_assert_cmpfloat_with_epsilon(oct_report_number(batch, "ttft_p99_s"), 19.8, 1e-9);
  g_assert_cmpfloat(oct_report_number(chat, "requests"), ==, 101);
  g_assert_cmpfloat(oct_report_number(chat, "answered"), ==, 100);
  g_assert_cmpfloat_with_epsilon(oct_report_number(chat, "ttft_p50_s"), 1, 1e-9);
  const json_t *objective = json_array_get(json_object_get(chat, "objectives"), 0);
  g_assert_false(json_is_true(json_object_get(objective, "met")));
  g_assert_cmpfloat_with_epsilon(oct_report_number(objective, "value_s"), 1.8, 1e-9);
  json_decref(list);
  oct_records_free(r);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/replay/records/worst-and-peak-windows", test_windows);
  g_test_add_func("/replay/records/classes-have-limits-of-their-own", test_classes);
  return g_test_run();
}
