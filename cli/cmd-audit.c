/* octet audit: are the claims of a deployment report possible? */
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "sim/audit/audit.h"

#define COMMAND "audit"

static int
run(const char *path, const char *json_path, const char *zoo, gboolean strict) {
  GError *error = NULL;
  json_t *report = oct_audit_run(path, zoo, &error);
  if (report == NULL)
    return oct_cli_fail(COMMAND, error);
  gboolean good = TRUE;
  if (json_path == NULL || g_strcmp0(json_path, "-") != 0)
    oct_audit_print(stdout, report);
  if (json_path != NULL)
    good = oct_cli_write_json(json_path, json_incref(report), &error);
  const char *verdict = json_string_value(json_object_get(report, "verdict"));
  gboolean passed = !strict || strcmp(verdict, oct_claim_verdict_name(OCT_CLAIM_CONSISTENT)) == 0;
  json_decref(report);
  if (!good)
    return oct_cli_fail(COMMAND, error);
  return passed ? OCT_EXIT_OK : OCT_EXIT_FAILED;
}

int
oct_cmd_audit(int argc, char **argv) {
  char *json_path = NULL, *zoo = NULL;
  gboolean strict = FALSE;
  const GOptionEntry entries[] = {
      {"json", 0, 0, G_OPTION_ARG_FILENAME, &json_path,
       "write the report as JSON, - for standard output", "FILE"},
      {"strict", 0, 0, G_OPTION_ARG_NONE, &strict, "exit with 1 unless all claims are consistent",
       NULL},
      {"zoo", 0, 0, G_OPTION_ARG_FILENAME, &zoo, "folder with model configs", "DIR"},
      G_OPTION_ENTRY_NULL,
  };
  g_autofree char *keys = oct_audit_keys();
  g_autofree char *details = g_strdup_printf(
      "FILE is a key file: group [report] says what holds throughout, each further group what is\n"
      "claimed besides. Claims are checked against each other, the model's bytes, the node's\n"
      "profile and the roofline; each is consistent, inconsistent or impossible, with the\n"
      "arithmetic. Examples are in sim/audits; doc/audit.md in the source says what is checked.\n\n"
      "Keys (a unit stands behind the number: 1.6 TB/s, 150 req/s, 16 B/tok, 1.18 s):\n%s",
      keys);
  const oct_cli_usage usage = {
      .command = COMMAND,
      .arguments = "FILE",
      .summary = "Checks the claims of a deployment report: units, Little's law, memory, roofline.",
      .details = details,
      .entries = entries,
      .min_arguments = 1,
      .max_arguments = 1,
  };
  int status = oct_cli_parse(&usage, &argc, &argv);
  if (status == OCT_CLI_GO_ON)
    status = run(argv[1], json_path, zoo, strict);
  g_free(json_path);
  g_free(zoo);
  return status;
}
