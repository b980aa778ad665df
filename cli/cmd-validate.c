/* octet validate: predictions against measurements, and how far they are off. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include "cli/cli.h"
#include "cli/report-file.h"
#include "cli/trace-flags.h"
#include "sim/validate/errors-file.h"
#include "sim/validate/report.h"
#include "sim/validate/served.h"
#include "sim/validate/steps.h"
#include "sim/validate/validate.h"

#define COMMAND "validate"
#define SKIP    10 /* steps of each instance, which warm it up */

typedef struct options {
  char *data, *json, *errors, *fit, *only;
  char *steps, *node, *model;        /* a step log, and what it was made on */
  char *moe_kernel, *expert_routing; /* what its prices are of */
  oct_steps_validation prices;       /* all of these, read */
  char *served, **measured;          /* a report of replay, and those of bench */
  gint skip;
  gboolean operators, silicon, infer, seen, trace_record, quick;
  gint jobs, rows;
  gint64 seed;
  oct_validate_options validate;
} options;

static json_t *
run_fit(const options *o, GError **error) {
  return oct_validate_fit(&o->validate, o->fit, error);
}

static json_t *
run_operators(const options *o, GError **error) {
  return oct_validate_operators(&o->validate, error);
}

static json_t *
run_steps(const options *o, GError **error) {
  return oct_validate_steps(&o->prices, error);
}

static json_t *
run_served(const options *o, GError **error) {
  json_t *predicted = json_array(), *measured = json_array(), *part = NULL;
  gboolean good = oct_report_file_read(o->served, predicted, error);
  for (guint i = 0; o->measured[i] != NULL && good; i++)
    good = oct_report_file_read(o->measured[i], measured, error);
  if (good && json_array_size(predicted) != 1)
    good = oct_cli_bad_option(error, "served", o->served, "has several reports; one is compared");
  if (good)
    part = oct_validate_served(json_array_get(predicted, 0), measured, error);
  json_decref(predicted);
  json_decref(measured);
  return part;
}

static json_t *
run_silicon(const options *o, GError **error) {
  return oct_validate_silicon(&o->validate, error);
}

static json_t *
run_record(const options *o, GError **error) {
  return oct_validate_record(&o->validate, error);
}

/* The parts, in the order in which they run. */
typedef struct part {
  gboolean needs_data; /* reads the folder of --data */
  gboolean by_default; /* runs when no part was asked for */
  gboolean (*is_wanted)(const options *o);
  json_t *(*run)(const options *o, GError **error);
} part;

static gboolean
wants_fit(const options *o) {
  return o->fit != NULL;
}

static gboolean
wants_operators(const options *o) {
  return o->operators;
}

static gboolean
wants_steps(const options *o) {
  return o->steps != NULL;
}

static gboolean
wants_served(const options *o) {
  return o->served != NULL;
}

static gboolean
wants_silicon(const options *o) {
  return o->silicon;
}

static gboolean
wants_record(const options *o) {
  return o->trace_record;
}

static const part parts[] = {
    {TRUE, FALSE, wants_fit, run_fit},        {TRUE, TRUE, wants_operators, run_operators},
    {FALSE, FALSE, wants_steps, run_steps},   {FALSE, FALSE, wants_served, run_served},
    {TRUE, TRUE, wants_silicon, run_silicon}, {TRUE, TRUE, wants_record, run_record},
};

enum { STEPS_PART = 2, SILICON_PART = 4 }; /* places in parts */

/* --- running ---------------------------------------------------------------------------------- */

static void
show_progress(void *user, const char *what, guint done, guint total) {
  (void)user;
  fprintf(stderr, "\r%s: %u of %u\033[K", what, done, total);
}

static gboolean
run_part(const options *o, const part *p, json_t *list, GError **error) {
  gint64 start_us = g_get_monotonic_time();
  json_t *found = p->run(o, error);
  if (o->validate.told != NULL)
    fputs("\r\033[K", stderr);
  if (found == NULL)
    return FALSE;
  json_object_set_new(found, "seconds",
                      json_real((double)(g_get_monotonic_time() - start_us) / 1e6));
  json_array_append_new(list, found);
  return TRUE;
}

static gboolean
is_run(const options *o, const part *p) {
  gboolean any = FALSE;
  for (gsize i = 0; i < G_N_ELEMENTS(parts); i++)
    any |= parts[i].is_wanted(o);
  return any ? p->is_wanted(o) : p->by_default;
}

static gboolean
run_all(options *o, GError **error) {
  gboolean good = oct_report_file_check(o->json, error) && oct_report_file_check(o->errors, error);
  json_t *list = json_array();
  for (gsize i = 0; i < G_N_ELEMENTS(parts) && good; i++)
    if (is_run(o, &parts[i]))
      good = run_part(o, &parts[i], list, error);
  json_t *report = oct_validate_report(list);
  if (good && (o->json == NULL || strcmp(o->json, "-") != 0))
    oct_validate_print(stdout, report);
  if (good && o->json != NULL)
    good = oct_report_file_write(o->json, report, error);
  if (good && o->errors != NULL)
    good = oct_errors_file_write(o->errors, report, error);
  json_decref(report);
  return good;
}

/* What --steps is priced with; --moe-kernel and --expert-routing are octet replay's. */
static gboolean
read_prices(options *o, GError **error) {
  const char *routing = o->expert_routing, *file = NULL;
  oct_moe_kernel kernel = OCT_MOE_KERNEL_MEASURED;
  if (o->moe_kernel != NULL && !oct_moe_kernel_parse(o->moe_kernel, &kernel))
    return oct_cli_bad_option(error, "moe-kernel", o->moe_kernel, "is measured, target or own");
  if (routing != NULL && g_str_has_prefix(routing, "file:"))
    file = routing + 5;
  if (routing != NULL && strcmp(routing, "uniform") != 0 && (file == NULL || *file == '\0'))
    return oct_cli_bad_option(error, "expert-routing", routing, "is uniform or file:COUNTS");
  o->prices = (oct_steps_validation){.log = o->steps,
                                     .model = o->model,
                                     .node = o->node,
                                     .skip = (guint32)o->skip,
                                     .moe_kernel = kernel,
                                     .routing_file = file};
  return TRUE;
}

static gboolean
read_options(options *o, GError **error) {
  g_autofree char *jobs = g_strdup_printf("%d", o->jobs);
  if (o->jobs < 1 || o->jobs > 64)
    return oct_cli_bad_option(error, "jobs", jobs, "must be a whole number from 1 to 64");
  if ((o->served != NULL) != (o->measured != NULL))
    return oct_cli_bad_option(error, o->served != NULL ? "served" : "measured",
                              o->served != NULL ? o->served : o->measured[0],
                              "needs the other: --served REPLAY.json --measured BENCH.json …");
  for (gsize i = 0; i < G_N_ELEMENTS(parts); i++)
    if (is_run(o, &parts[i]) && parts[i].needs_data && o->data == NULL)
      return oct_cli_bad_option(error, "data", "", "which folder has the recordings? (--data DIR)");
  if (o->steps != NULL && (o->node == NULL || o->model == NULL))
    return oct_cli_bad_option(error, "steps", o->steps,
                              "needs the --model and the --node that it was logged with");
  g_autofree char *skip = g_strdup_printf("%d", o->skip);
  g_autofree char *rows = g_strdup_printf("%d", o->rows);
  if (o->rows < 0)
    return oct_cli_bad_option(error, "rows", rows, "must not be below 0");
  if (o->skip < 0)
    return oct_cli_bad_option(error, "skip-steps", skip, "must not be below 0");
  const part *steps = &parts[STEPS_PART], *silicon = &parts[SILICON_PART];
  const struct {
    const char *flag, *value;
    gboolean is_used;
    const char *of;
  } pairs[] = {
      {"model", o->model, is_run(o, steps), "has no meaning without --steps"},
      {"node", o->node, is_run(o, steps), "has no meaning without --steps"},
      {"skip-steps", o->skip != SKIP ? skip : NULL, is_run(o, steps),
       "has no meaning without --steps"},
      {"moe-kernel", o->moe_kernel, is_run(o, steps), "has no meaning without --steps"},
      {"expert-routing", o->expert_routing, is_run(o, steps), "has no meaning without --steps"},
      {"only", o->only, is_run(o, silicon), "is of --silicon"},
      {"rows", o->rows != 0 ? rows : NULL, is_run(o, silicon), "is of --silicon"},
      {"infer", o->infer ? "" : NULL, is_run(o, silicon), "is of --silicon"},
      {"seen", o->seen ? "" : NULL, is_run(o, silicon), "is of --silicon"}};
  if (o->errors != NULL && (o->quick || o->seen || o->only != NULL || o->rows != 0 || o->infer ||
                            o->fit != NULL || o->steps != NULL || o->served != NULL))
    return oct_cli_bad_option(
        error, "errors", o->errors,
        "takes whole parts: without --quick, --only, --rows, --seen, --infer, "
        "--fit, --steps and --served");
  for (gsize i = 0; i < G_N_ELEMENTS(pairs); i++)
    if (pairs[i].value != NULL && !pairs[i].is_used)
      return oct_cli_bad_option(error, pairs[i].flag, pairs[i].value, pairs[i].of);
  if (!read_prices(o, error))
    return FALSE;
  o->validate = (oct_validate_options){.data = o->data,
                                       .quick = o->quick,
                                       .infer = o->infer,
                                       .seen = o->seen,
                                       .only = o->only,
                                       .rows = (guint)o->rows,
                                       .seed = (guint64)o->seed,
                                       .jobs = (guint)o->jobs,
                                       .told = isatty(STDERR_FILENO) ? show_progress : NULL};
  return TRUE;
}

static void
clear(options *o) {
  g_free(o->data);
  g_free(o->json);
  g_free(o->errors);
  g_free(o->fit);
  g_free(o->only);
  g_free(o->steps);
  g_free(o->moe_kernel);
  g_free(o->expert_routing);
  g_free(o->served);
  g_strfreev(o->measured);
  g_free(o->node);
  g_free(o->model);
}

int
oct_cmd_validate(int argc, char **argv) {
  options o = {.jobs = 2, .seed = 1, .skip = SKIP};
  const GOptionEntry entries[] = {
      {"data", 0, 0, G_OPTION_ARG_FILENAME, &o.data,
       "folder of the recordings (their files: doc/simulation.md)", "DIR"},
      {"operators", 0, 0, G_OPTION_ARG_NONE, &o.operators,
       "kernels against measured tables: transfer and table scores", NULL},
      {"silicon", 0, 0, G_OPTION_ARG_NONE, &o.silicon, "published end-to-end runs, each simulated",
       NULL},
      {"trace-record", 0, 0, G_OPTION_ARG_NONE, &o.trace_record,
       "a recorded run on an RTX 4090: its first 60 s fitted, the rest scored", NULL},
      {"infer", 0, 0, G_OPTION_ARG_NONE, &o.infer,
       "with --silicon: infer the protocols afresh, in place of the frozen ones", NULL},
      {"seen", 0, 0, G_OPTION_ARG_NONE, &o.seen,
       "with --silicon: runs of H100 and H200 alone, which constants may be fitted to", NULL},
      {"fit", 0, 0, G_OPTION_ARG_FILENAME, &o.fit,
       "fit the price laws to the recordings and write the files of sim/profiles/fits", "DIR"},
      {"steps", 0, 0, G_OPTION_ARG_FILENAME, &o.steps,
       "the steps of a real engine (octet serve --record-steps), priced one by one", "LOG"},
      {"model", 0, 0, G_OPTION_ARG_STRING, &o.model, "the model of --steps", "M"},
      {"node", 0, 0, G_OPTION_ARG_STRING, &o.node, "the profile of --steps", "N"},
      {"skip-steps", 0, 0, G_OPTION_ARG_INT, &o.skip,
       "of --steps, the first of each instance, which warm it up (10)", "N"},
      {"moe-kernel", 0, 0, G_OPTION_ARG_STRING, &o.moe_kernel,
       "of --steps: measured, target or own, as octet replay has it (measured)", "K"},
      {"expert-routing", 0, 0, G_OPTION_ARG_STRING, &o.expert_routing,
       "of --steps: uniform, or file:COUNTS of octet serve --record-routing (uniform)", "R"},
      {"served", 0, 0, G_OPTION_ARG_FILENAME, &o.served,
       "--json of octet replay, against what was measured of the same requests", "FILE"},
      {"measured", 0, 0, G_OPTION_ARG_FILENAME_ARRAY, &o.measured,
       "--json of octet bench; repeated for each repeat of --served", "FILE"},
      {"quick", 0, 0, G_OPTION_ARG_NONE, &o.quick,
       "a part of the folds and rows; the report says which", NULL},
      {"seed", 0, 0, G_OPTION_ARG_INT64, &o.seed, "of what is drawn (1)", "N"},
      {"only", 0, 0, G_OPTION_ARG_STRING, &o.only, "with --silicon: models whose name has TEXT",
       "TEXT"},
      {"rows", 0, 0, G_OPTION_ARG_INT, &o.rows,
       "with --silicon: at most N of each engine and system, drawn by the seed (all)", "N"},
      {"errors", 0, 0, G_OPTION_ARG_FILENAME, &o.errors,
       "write the figures that reports quote, of the parts that ran (sim/profiles/fits/errors.ini)",
       "FILE"},
      {"jobs", 0, 0, G_OPTION_ARG_INT, &o.jobs, "processes at once (2); changes no answer", "N"},
      {"json", 0, 0, G_OPTION_ARG_FILENAME, &o.json, "write the report as JSON, - for stdout",
       "FILE"},
      G_OPTION_ENTRY_NULL,
  };
  const oct_cli_usage usage = {
      .command = COMMAND,
      .summary = "Compares predictions with measurements and says how far they are off: all parts, "
                 "or those asked for.",
      .details = "doc/simulation.md explains the method and shows the tables.\n",
      .entries = entries,
  };
  int status = oct_cli_parse(&usage, &argc, &argv);
  if (status == OCT_CLI_GO_ON) {
    g_autoptr(GError) error = NULL;
    if (!read_options(&o, &error))
      status = oct_cli_refuse(COMMAND, "%s", error->message);
    else if (!run_all(&o, &error))
      status = oct_cli_fail(COMMAND, g_steal_pointer(&error));
    else
      status = OCT_EXIT_OK;
  }
  clear(&o);
  return status;
}
