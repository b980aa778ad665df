#include "sim/validate/report.h"

#include <math.h>
#include <string.h>

#include "engine/base/assert.h"

#define COLUMNS_MAX 16

/* ---------------------------------------------------------------- making */

json_t *
oct_validate_part(const char *name) {
  return json_pack("{s:s, s:[], s:[]}", "name", name, "tables", "aims");
}

json_t *
oct_validate_table(json_t *part, const char *title, const char *const *columns) {
  json_t *names = json_array();
  for (guint i = 0; columns[i] != NULL; i++)
    json_array_append_new(names, json_string(columns[i]));
  oct_assert(json_array_size(names) <= COLUMNS_MAX);
  json_t *table =
      json_pack("{s:s, s:[], s:o, s:[]}", "title", title, "notes", "columns", names, "rows");
  json_array_append_new(json_object_get(part, "tables"), table);
  return table;
}

void
oct_validate_note(json_t *table, const char *format, ...) {
  va_list list;
  va_start(list, format);
  g_autofree char *text = g_strdup_vprintf(format, list);
  va_end(list);
  json_array_append_new(json_object_get(table, "notes"), json_string(text));
}

json_t *
oct_validate_row(json_t *table) {
  json_t *row = json_array();
  json_array_append_new(json_object_get(table, "rows"), row);
  return row;
}

void
oct_validate_text(json_t *row, const char *format, ...) {
  va_list list;
  va_start(list, format);
  g_autofree char *text = g_strdup_vprintf(format, list);
  va_end(list);
  json_array_append_new(row, json_string(text));
}

void
oct_validate_number(json_t *row, double value) {
  json_array_append_new(row, isfinite(value) ? json_real(value) : json_null());
}

void
oct_validate_cells(json_t *row, const oct_score *score) {
  json_array_append_new(row, json_integer(oct_score_n(score)));
  oct_validate_number(row, 100 * oct_score_mean(score));
  oct_validate_number(row, 100 * oct_score_quantile(score, 0.5));
  oct_validate_number(row, 100 * oct_score_quantile(score, 0.9));
  oct_validate_number(row, 100 * oct_score_bias(score));
}

void
oct_validate_aim(json_t *part, const char *what, double aim, double got) {
  json_array_append_new(json_object_get(part, "aims"),
                        json_pack("{s:s, s:f, s:o, s:b}", "what", what, "aim_percent", 100 * aim,
                                  "got_percent", isfinite(got) ? json_real(100 * got) : json_null(),
                                  "met", isfinite(got) && got <= aim));
}

static void
set_figure(json_t *part, const char *what, json_t *value) {
  json_t *figures = json_object_get(part, "figures");
  if (figures == NULL) {
    figures = json_object();
    json_object_set_new(part, "figures", figures);
  }
  json_object_set_new(figures, what, value);
}

void
oct_validate_count(json_t *part, const char *what, guint n) {
  set_figure(part, what, json_integer(n));
}

void
oct_validate_percent(json_t *part, const char *what, double fraction) {
  set_figure(part, what, isfinite(fraction) ? json_real(100 * fraction) : json_null());
}

json_t *
oct_validate_report(json_t *parts) {
  return json_pack("{s:s, s:o}", "schema", OCT_VALIDATE_SCHEMA, "parts", parts);
}

double
oct_validate_got(const json_t *part, const char *what) {
  gsize i;
  json_t *aim;
  json_array_foreach(json_object_get(part, "aims"), i,
                     aim) if (strcmp(json_string_value(json_object_get(aim, "what")), what) == 0) {
    const json_t *got = json_object_get(aim, "got_percent");
    return json_is_number(got) ? json_number_value(got) / 100 : NAN;
  }
  return NAN;
}

/* ---------------------------------------------------------------- showing */

static char *
cell_text(const json_t *cell) {
  if (json_is_string(cell))
    return g_strdup(json_string_value(cell));
  if (json_is_integer(cell))
    return g_strdup_printf("%" JSON_INTEGER_FORMAT, json_integer_value(cell));
  if (!json_is_real(cell))
    return g_strdup("–");
  return g_strdup_printf("%.1f", json_real_value(cell));
}

static void
widen(glong *widths, const json_t *cells) {
  gsize i;
  json_t *cell;
  json_array_foreach(cells, i, cell) {
    g_autofree char *text = cell_text(cell);
    oct_assert(i < COLUMNS_MAX);
    widths[i] = MAX(widths[i], g_utf8_strlen(text, -1));
  }
}

static void
print_cells(FILE *out, const glong *widths, const json_t *cells) {
  gsize i;
  json_t *cell;
  json_array_foreach(cells, i, cell) {
    g_autofree char *text = cell_text(cell);
    int pad = (int)(widths[i] - g_utf8_strlen(text, -1));
    gboolean left = json_is_string(cell);
    fprintf(out, "| %*s%s%*s ", left ? 0 : pad, "", text, left ? pad : 0, "");
  }
  fputs("|\n", out);
}

static void
print_table(FILE *out, const json_t *table) {
  glong widths[COLUMNS_MAX] = {0};
  const json_t *columns = json_object_get(table, "columns");
  gsize i;
  json_t *row;
  widen(widths, columns);
  json_array_foreach(json_object_get(table, "rows"), i, row) widen(widths, row);
  fprintf(out, "\n%s\n\n", json_string_value(json_object_get(table, "title")));
  print_cells(out, widths, columns);
  for (i = 0; i < json_array_size(columns); i++) {
    g_autofree char *dashes = g_strnfill((gsize)widths[i] + 2, '-');
    fprintf(out, "|%s", dashes);
  }
  fputs("|\n", out);
  json_array_foreach(json_object_get(table, "rows"), i, row) print_cells(out, widths, row);
  const json_t *notes = json_object_get(table, "notes");
  if (json_array_size(notes) > 0)
    fputc('\n', out);
  json_array_foreach(notes, i, row) fprintf(out, "- %s\n", json_string_value(row));
}

static void
print_aims(FILE *out, const json_t *aims) {
  gsize i;
  json_t *aim;
  if (json_array_size(aims) > 0)
    fputs("\nAims\n\n", out);
  json_array_foreach(aims, i, aim) {
    g_autofree char *got = cell_text(json_object_get(aim, "got_percent"));
    fprintf(out, "- %s: %s %%, aim at most %.1f %%: %s\n",
            json_string_value(json_object_get(aim, "what")), got,
            json_number_value(json_object_get(aim, "aim_percent")),
            json_is_true(json_object_get(aim, "met")) ? "met" : "MISSED");
  }
}

void
oct_validate_print(FILE *out, const json_t *report) {
  gsize i, k;
  json_t *part, *table;
  json_array_foreach(json_object_get(report, "parts"), i, part) {
    fprintf(out, "%s## %s", i > 0 ? "\n" : "", json_string_value(json_object_get(part, "name")));
    const json_t *seconds = json_object_get(part, "seconds");
    if (json_is_number(seconds))
      fprintf(out, " (%.1f s)", json_number_value(seconds));
    fputc('\n', out);
    json_array_foreach(json_object_get(part, "tables"), k, table) print_table(out, table);
    print_aims(out, json_object_get(part, "aims"));
  }
}
