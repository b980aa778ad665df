/* A comparison for people, from its JSON. */
#include <math.h>
#include <string.h>

#include "sim/compare/compare.h"
#include "sim/replay/report.h"

static const char *
text_of(const json_t *object, const char *name) {
  const char *text = json_string_value(json_object_get(object, name));
  return text != NULL ? text : "-";
}

static void
print_test(FILE *out, const json_t *t) {
  double relative = oct_report_number(t, "relative");
  g_autofree char *interval =
      g_strdup_printf("%s … %s", oct_report_seconds(oct_report_number(t, "low")),
                      oct_report_seconds(oct_report_number(t, "high")));
  g_autofree char *change =
      isfinite(relative) ? g_strdup_printf("%+.1f %%", 100 * relative) : g_strdup("-");
  /* The ellipsis is three bytes of one column. */
  fprintf(out, "  %-16s %9s %9s %9s %25s %9s %7.2g  %s\n", text_of(t, "name"),
          oct_report_seconds(oct_report_number(t, "a")),
          oct_report_seconds(oct_report_number(t, "b")), change, interval,
          oct_report_share(oct_report_number(t, "above")), oct_report_number(t, "p_adjusted"),
          json_is_true(json_object_get(t, "equal"))      ? "equal"
          : !json_is_true(json_object_get(t, "differs")) ? ""
          : oct_report_number(t, "difference") > 0       ? "longer"
                                                         : "shorter");
}

static void
print_figures(FILE *out, const json_t *figures) {
  gsize i;
  const json_t *f;
  fprintf(out, "\n  %-24s %14s %14s %10s   %s\n", "of the whole run", "A", "B", "B - A",
          "(one value each: no interval)");
  json_array_foreach(figures, i, f) {
    double relative = oct_report_number(f, "relative");
    g_autofree char *change =
        isfinite(relative) ? g_strdup_printf("%+.1f %%", 100 * relative) : g_strdup("-");
    fprintf(out, "  %-24s %14.6g %14.6g %10s\n", text_of(f, "name"), oct_report_number(f, "a"),
            oct_report_number(f, "b"), change);
  }
}

void
oct_compare_print(FILE *out, const json_t *compared) {
  const json_t *reports = json_object_get(compared, "reports"), *item;
  gsize i;
  guint n_differ = 0;
  json_array_foreach(reports, i, item) {
    const json_t *label = json_object_get(item, "label");
    g_autofree char *title = oct_report_title(item);
    g_autofree char *line = json_is_string(label)
                                ? g_strdup_printf("%s: %s", json_string_value(label), title)
                                : g_strdup(title);
    oct_report_print_wrapped(out, i == 0 ? "A" : "B", line);
  }
  oct_report_print_wrapped(out, "method", text_of(compared, "method"));
  fprintf(out, "\n  %-16s %9s %9s %9s %23s %9s %7s\n", "", "A", "B", "B - A", "95 % interval",
          "B above A", "p (all)");
  json_array_foreach(json_object_get(compared, "tests"), i, item) {
    print_test(out, item);
    n_differ += json_is_true(json_object_get(item, "differs"));
  }
  print_figures(out, json_object_get(compared, "figures"));
  fputc('\n', out);
  json_array_foreach(json_object_get(compared, "notes"), i, item)
      oct_report_print_wrapped(out, i == 0 ? "note" : "", json_string_value(item));
  fprintf(out, "\n%u of %u differences are more than chance.\n", n_differ,
          (guint)json_array_size(json_object_get(compared, "tests")));
}
