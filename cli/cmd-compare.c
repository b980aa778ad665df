/* octet compare: two runs side by side, and which differences are more than chance. */
#include <stdio.h>
#include <string.h>

#include <jansson.h>

#include "cli/cli.h"
#include "cli/report-file.h"
#include "cli/trace-flags.h"
#include "sim/compare/compare.h"
#include "sim/replay/slo.h"

#define COMMAND "compare"

typedef struct options {
  char *json, *html;
} options;

static json_t *
read_and_compare(int n_files, char **files, GError **error) {
  json_t *list = json_array(), *compared = NULL;
  gboolean good = TRUE;
  for (int i = 0; i < n_files && good; i++)
    good = oct_report_file_read(files[i], list, error);
  if (good && json_array_size(list) != 2) {
    g_autofree char *n = g_strdup_printf("%u", (guint)json_array_size(list));
    good = oct_cli_bad_option(error, "compare: reports in the files", n, "it takes two");
  }
  if (good)
    compared = oct_compare_make(json_array_get(list, 0), json_array_get(list, 1), error);
  json_decref(list);
  return compared;
}

static gboolean
run_compare(const options *o, int n_files, char **files, GError **error) {
  if (o->json != NULL && o->html != NULL && strcmp(o->json, o->html) == 0)
    return oct_cli_bad_option(error, "html", o->html, "is written by another option too");
  if (!oct_report_file_check(o->json, error) || !oct_report_file_check_html(o->html, error))
    return FALSE;
  json_t *compared = read_and_compare(n_files, files, error);
  gboolean good = compared != NULL;
  if (good && (o->json == NULL || strcmp(o->json, "-") != 0))
    oct_compare_print(stdout, compared);
  if (good && o->json != NULL)
    good = oct_report_file_write(o->json, compared, error);
  if (good && o->html != NULL)
    good = oct_report_file_write_html(o->html, compared, error);
  json_decref(compared);
  return good;
}

int
oct_cmd_compare(int argc, char **argv) {
  options o = {0};
  const GOptionEntry entries[] = {
      {"json", 0, 0, G_OPTION_ARG_FILENAME, &o.json, "write the comparison as JSON, - for stdout",
       "FILE"},
      {"html", 0, 0, G_OPTION_ARG_FILENAME, &o.html, "write it as a page with plots", "FILE"},
      G_OPTION_ENTRY_NULL,
  };
  const oct_cli_usage usage = {
      .command = COMMAND,
      .arguments = "A.json B.json",
      .summary = "Compares two runs: what differs, and whether that is more than chance.",
      .details =
          "A and B are what --json of octet replay or octet bench writes; one file with two\n"
          "reports will do. Runs of the same requests are compared in pairs. doc/compare.md\n"
          "in the source explains the method.",
      .entries = entries,
      .min_arguments = 1,
      .max_arguments = 2,
  };
  int status = oct_cli_parse(&usage, &argc, &argv);
  GError *error = NULL;
  if (status == OCT_CLI_GO_ON) {
    status = OCT_EXIT_OK;
    if (!run_compare(&o, argc - 1, argv + 1, &error)) {
      if (g_error_matches(error, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_OPTION)) {
        status = oct_cli_refuse(COMMAND, "%s", error->message);
        g_error_free(error);
      } else {
        status = oct_cli_fail(COMMAND, error);
      }
    }
  }
  g_free(o.json);
  g_free(o.html);
  return status;
}
