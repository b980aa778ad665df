#include "cli/report-file.h"

#include <errno.h>
#include <string.h>

#include <glib/gstdio.h>

#include "cli/trace-flags.h"
#include "sim/page/page.h"
#include "sim/replay/replay.h"
#include "sim/replay/report.h"

#define COMPARISON_SCHEMA "octet-comparison-1"

static gboolean
fail(const char *path, int why, GError **error) {
  g_set_error(error, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_IO, "%s: cannot write: %s", path,
              g_strerror(why));
  return FALSE;
}

gboolean
oct_report_file_check(const char *path, GError **error) {
  FILE *file;
  if (path == NULL || strcmp(path, "-") == 0)
    return TRUE;
  const gboolean was_there = g_file_test(path, G_FILE_TEST_EXISTS);
  if ((file = fopen(path, "ae")) == NULL || fclose(file) != 0)
    return fail(path, errno, error);
  if (!was_there)
    (void)g_unlink(path); /* a run that is broken off leaves no empty report */
  return TRUE;
}

gboolean
oct_report_file_write(const char *path, const json_t *report, GError **error) {
  gboolean is_stdout = strcmp(path, "-") == 0;
  FILE *file = is_stdout ? stdout : fopen(path, "we");
  gboolean good = file != NULL &&
                  json_dumpf(report, file, JSON_INDENT(1) | JSON_REAL_PRECISION(12)) == 0 &&
                  fputc('\n', file) != EOF;
  int why = errno;
  if (file != NULL && !is_stdout && fclose(file) != 0 && good) {
    good = FALSE;
    why = errno;
  }
  return good || fail(path, why, error);
}

gboolean
oct_report_file_check_html(const char *path, GError **error) {
  if (path == NULL)
    return TRUE;
  if (strcmp(path, "-") == 0 || *path == '\0')
    return oct_cli_bad_option(error, "html", path, "is no name of a file");
  return oct_page_check(error) && oct_report_file_check(path, error);
}

gboolean
oct_report_file_write_html(const char *path, const json_t *report, GError **error) {
  g_autofree char *page = oct_page_make(report, error);
  if (page == NULL)
    return FALSE;
  FILE *file = fopen(path, "we");
  gboolean good = file != NULL && fputs(page, file) != EOF;
  int why = errno;
  if (file != NULL && fclose(file) != 0 && good) {
    good = FALSE;
    why = errno;
  }
  return good || fail(path, why, error);
}

gboolean
oct_report_file_is_one(const char *text) {
  return g_str_has_suffix(text, ".json") && strchr(text, ' ') == NULL;
}

static gboolean
is_schema(const json_t *value, const char *schema) {
  const json_t *at = json_object_get(value, "schema");
  return json_is_string(at) && strcmp(json_string_value(at), schema) == 0;
}

static gboolean
append(const char *path, json_t *report, json_t *list, GError **error) {
  if (!is_schema(report, OCT_REPLAY_SCHEMA))
    return oct_cli_bad_option(error, "compare", path,
                              "holds no report of octet replay or octet bench");
  if (!json_is_string(json_object_get(report, "label"))) {
    g_autofree char *name = g_path_get_basename(path);
    json_object_set_new(report, "label", json_string(name));
  }
  json_array_append(list, report);
  return TRUE;
}

gboolean
oct_report_file_read(const char *path, json_t *list, GError **error) {
  json_error_t where;
  json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &where), *report;
  gboolean good = TRUE;
  gsize i;
  if (root == NULL)
    return oct_cli_bad_option(error, "compare", path,
                              g_file_test(path, G_FILE_TEST_IS_DIR) ? "is a folder" : where.text);
  if (is_schema(root, COMPARISON_SCHEMA))
    json_array_foreach(json_object_get(root, "reports"), i, report) {
      good = good && append(path, report, list, error);
    }
  else
    good = append(path, root, list, error);
  json_decref(root);
  return good;
}

json_t *
oct_report_file_comparison(json_t *list) {
  return json_pack("{s:s, s:o}", "schema", COMPARISON_SCHEMA, "reports", list);
}

void
oct_report_file_print_comparison(FILE *out, const json_t *comparison) {
  const json_t *list = json_object_get(comparison, "reports");
  guint n = (guint)json_array_size(list);
  g_autofree json_t **reports = g_new(json_t *, n);
  for (guint i = 0; i < n; i++)
    reports[i] = json_array_get(list, i);
  g_autofree char *title = oct_report_title(reports[0]);
  fprintf(out, "%u configurations of: %s\n\n", n, title);
  oct_report_print_comparison(out, reports, n);
}
