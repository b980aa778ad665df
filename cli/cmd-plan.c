/* octet plan: which layout serves a trace under objectives, at what rate, and how sure that is. */
#include <malloc.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include "cli/cli.h"
#include "cli/engine-flags.h"
#include "cli/report-file.h"
#include "cli/trace-flags.h"
#include "sim/plan/plan-json.h"
#include "sim/plan/plan.h"
#include "sim/replay/replay.h"

#define COMMAND     "plan"
#define OWN_ENTRIES 28
#define NOT_GIVEN   G_MININT /* of a count: 0 is a value, and refused */

typedef struct options {
  oct_engine_flags *flags;
  oct_trace_flags trace;
  char *rate, *duration, *slo, *assume, *json, *html, *state, *price, *objective, *cost_error,
      *growth, *peak, *window, *input, *output;
  gint seeds, jobs, gpus_max, nodes_max, coarse;
  gboolean exact_lengths, all, survive_loss;
  char *identity, *made; /* owned: made = the name of traffic from --input and --output */
  const char *name;      /* of the trace, as the user wrote it */
  oct_dist *dist;
  oct_replay_config base;
  oct_plan_variant variants[OCT_ENGINE_VARIANTS_MAX];
  char *labels[OCT_ENGINE_VARIANTS_MAX];
  double prices[OCT_ENGINE_VARIANTS_MAX];
  oct_plan_options plan;
} options;

static void
own_entries(GOptionEntry *e, options *o) {
  const GOptionEntry own[] = {
      {"rate", 0, 0, G_OPTION_ARG_STRING, &o->rate,
       "session starts per second to serve; default: as many as can be", "R"},
      {"growth", 0, 0, G_OPTION_ARG_STRING, &o->growth,
       "plan for so many times that rate, or the trace's own", "X"},
      {"peak", 0, 0, G_OPTION_ARG_STRING, &o->peak,
       "the busiest time of the day over its mean: that much is to be served", "X"},
      {"worst-window", 0, 0, G_OPTION_ARG_STRING, &o->window,
       "the same, as in the busiest stretch of the trace so long (5min)", "TIME"},
      {"survive-loss", 0, 0, G_OPTION_ARG_NONE, &o->survive_loss,
       "objectives hold with one GPU lost (N+1)", NULL},
      {"slo", 0, 0, G_OPTION_ARG_STRING, &o->slo, "objectives: ttft_p99=2s,tpot_p99=50ms,e2e=30s …",
       "LIST"},
      {"objective", 0, 0, G_OPTION_ARG_STRING, &o->objective,
       "rate (default), gpus (default with --rate) or cost", "O"},
      {"gpu-hour-price", 0, 0, G_OPTION_ARG_STRING, &o->price,
       "of one GPU; several, one for each --node", "P,…"},
      {"input", 0, 0, G_OPTION_ARG_STRING, &o->input,
       "without TRACE: prompt tokens of Poisson traffic, as octet trace gen --input", "DIST"},
      {"output", 0, 0, G_OPTION_ARG_STRING, &o->output, "without TRACE: its output tokens", "DIST"},
      {"max-gpus", 0, 0, G_OPTION_ARG_INT, &o->gpus_max, "GPUs of a node to use (all)", "N"},
      {"max-nodes", 0, 0, G_OPTION_ARG_INT, &o->nodes_max,
       "nodes of a kind, as independent replicas (1)", "N"},
      {"duration", 0, 0, G_OPTION_ARG_STRING, &o->duration,
       "load of a final run of generated traffic (10min)", "TIME"},
      {"coarse-requests", 0, 0, G_OPTION_ARG_INT, &o->coarse, "of a coarse run (2000)", "N"},
      {"seeds", 0, 0, G_OPTION_ARG_INT, &o->seeds, "streams of the finals (5)", "N"},
      {"jobs", 0, 0, G_OPTION_ARG_INT, &o->jobs, "processes at once (2); changes no answer", "N"},
      {"state", 0, 0, G_OPTION_ARG_FILENAME, &o->state,
       "keep what is found, and go on from there after an interruption", "FILE"},
      {"cost-error", 0, 0, G_OPTION_ARG_STRING, &o->cost_error,
       "relative error of step costs to try; default: as measured, by kind of model", "X"},
      {"exact-lengths", 0, 0, G_OPTION_ARG_NONE, &o->exact_lengths,
       "tell the scheduler the true output lengths", NULL},
      {"assume-max-tokens", 0, 0, G_OPTION_ARG_STRING, &o->assume,
       "max_tokens of requests that do not state it", "DIST"},
      {"all", 0, 0, G_OPTION_ARG_NONE, &o->all, "list every layout", NULL},
      {"json", 0, 0, G_OPTION_ARG_FILENAME, &o->json, "write the plan as JSON, - for stdout",
       "FILE"},
      {"html", 0, 0, G_OPTION_ARG_FILENAME, &o->html, "write the plan as a page with plots",
       "FILE"},
      G_OPTION_ENTRY_NULL,
  };
  G_STATIC_ASSERT(G_N_ELEMENTS(own) <= OWN_ENTRIES);
  memcpy(e, own, sizeof own);
}

/* --- what was asked --------------------------------------------------------------------------- */

static gboolean
read_count(const char *flag, gint given, gint standard, gint most, guint *out, GError **error) {
  g_autofree char *text = g_strdup_printf("%d", given), *why = NULL;
  *out = (guint)(given != NOT_GIVEN ? given : standard);
  if (given == NOT_GIVEN || (given >= 1 && given <= most))
    return TRUE;
  why = g_strdup_printf("must be a whole number from 1 to %d", most);
  return oct_cli_bad_option(error, flag, text, why);
}

static gboolean
read_counts(options *o, GError **error) {
  oct_plan_options *p = &o->plan;
  guint coarse = 0, nodes = 0, gpus = 0;
  if (!read_count("seeds", o->seeds, OCT_PLAN_SEEDS, OCT_PLAN_SEEDS_MAX, &p->seeds, error) ||
      !read_count("jobs", o->jobs, 2, 64, &p->parallel, error) ||
      !read_count("max-gpus", o->gpus_max, 0, 64, &gpus, error) ||
      !read_count("max-nodes", o->nodes_max, 1, 4096, &nodes, error) ||
      !read_count("coarse-requests", o->coarse, 2000, 1 << 24, &coarse, error))
    return FALSE;
  p->gpus_max = gpus;
  p->nodes_max = nodes;
  p->coarse_requests = coarse;
  return TRUE;
}

/* TRACE, or Poisson traffic of the lengths given. */
static gboolean
read_trace(options *o, GError **error) {
  if (o->name != NULL && (o->input != NULL || o->output != NULL))
    return oct_cli_bad_option(error, "input, output", o->name, "a TRACE has lengths of its own");
  if (o->name == NULL && (o->input == NULL || o->output == NULL))
    return oct_cli_bad_option(error, COMMAND, "", "a TRACE is wanted, or --input and --output");
  if (o->name == NULL)
    o->name = o->made =
        g_strdup_printf("gen:chat-150,rate=1,input=%s,output=%s", o->input, o->output);
  if (o->assume != NULL && (o->dist = oct_dist_parse(o->assume, error)) == NULL)
    return FALSE;
  if (!oct_trace_flags_read(&o->trace, o->name, error))
    return FALSE;
  if (strcmp(o->trace.path, "-") == 0)
    return oct_cli_bad_option(error, COMMAND, "-", "the trace is read many times: name a file");
  return TRUE;
}

static gboolean
read_base(options *o, GError **error) {
  oct_replay_config *c = &o->base;
  oct_time duration_ns = 0;
  oct_replay_config_default(c);
  c->rows.path = o->trace.path;
  c->trace_name = o->name;
  c->rows.trace = &o->trace.options;
  c->exact_lengths = o->exact_lengths;
  c->assume_max_tokens = o->dist;
  if (o->slo == NULL)
    return oct_cli_bad_option(error, "slo", "", "which objectives?");
  if (!oct_slo_parse(&c->slo, o->slo, error))
    return FALSE;
  if (o->duration != NULL &&
      !oct_duration_parse("duration", o->duration, TRUE, &duration_ns, error))
    return FALSE;
  if (o->duration != NULL && !o->trace.endless)
    return oct_cli_bad_option(error, "duration", o->duration, "the trace has a length of its own");
  if (o->trace.endless && o->trace.endless_rate > OCT_RATE_MAX)
    return oct_cli_bad_option(error, "trace", o->name,
                              "above 1000000 sessions a second it must have an end (requests=N)");
  if (duration_ns > 0)
    o->plan.full_seconds = (double)duration_ns / 1e9;
  o->plan.base = c;
  o->plan.endless = o->trace.endless;
  return TRUE;
}

/* How much traffic: a rate, and what it grows to. */
static gboolean
read_demand(options *o, GError **error) {
  oct_plan_asked *a = &o->plan.asked;
  if ((o->rate != NULL && !oct_cli_parse_rate("rate", o->rate, &o->plan.wanted, error)) ||
      (o->growth != NULL && !oct_cli_parse_positive("growth", o->growth, &a->growth, error)) ||
      (o->peak != NULL && !oct_cli_parse_positive("peak", o->peak, &a->peak, error)) ||
      (o->window != NULL &&
       !oct_duration_parse("worst-window", o->window, TRUE, &a->window_ns, error)))
    return FALSE;
  if (a->peak > 0 && a->peak < 1)
    return oct_cli_bad_option(error, "peak", o->peak, "a peak is not below the mean");
  if (o->peak != NULL && o->window != NULL)
    return oct_cli_bad_option(error, "peak", o->peak, "with --worst-window the trace says it");
  a->rate = o->plan.wanted;
  return TRUE;
}

static gboolean
read_goal(options *o, GError **error) {
  static const char *const names[] = {"rate", "gpus", "cost"};
  oct_plan_options *p = &o->plan;
  if (!read_demand(o, error))
    return FALSE;
  const gboolean is_rate_given = p->wanted > 0 || oct_plan_asks_more(&p->asked);
  p->goal = is_rate_given ? OCT_PLAN_GOAL_GPUS : OCT_PLAN_GOAL_RATE;
  for (guint i = 0; o->objective != NULL && i <= G_N_ELEMENTS(names); i++) {
    if (i == G_N_ELEMENTS(names))
      return oct_cli_bad_option(error, "objective", o->objective, "must be rate, gpus or cost");
    if (strcmp(o->objective, names[i]) == 0) {
      p->goal = (oct_plan_goal)i;
      break;
    }
  }
  if (p->goal == OCT_PLAN_GOAL_GPUS && !is_rate_given)
    return oct_cli_bad_option(error, "objective", "gpus", "for which --rate?");
  if (p->goal == OCT_PLAN_GOAL_RATE && is_rate_given)
    return oct_cli_bad_option(error, "objective", "rate",
                              "has no meaning with --rate, --growth, --peak or --worst-window");
  if (p->goal == OCT_PLAN_GOAL_COST && o->price == NULL)
    return oct_cli_bad_option(error, "objective", "cost", "at which --gpu-hour-price?");
  return TRUE;
}

/* --- layouts' variants ------------------------------------------------------------------------ */

/* The i-th price goes with the i-th different node; one price with all. */
static gboolean
read_prices(options *o, guint n, GError **error) {
  if (o->price == NULL)
    return TRUE;
  g_auto(GStrv) texts = g_strsplit(o->price, ",", -1);
  g_autoptr(GPtrArray) nodes = g_ptr_array_new();
  guint n_prices = g_strv_length(texts);
  if (n_prices == 0)
    return oct_cli_bad_option(error, "gpu-hour-price", o->price, "must be a number above 0");
  for (guint i = 0; i < n; i++) {
    const char *node = o->variants[i].options.node;
    guint at = 0;
    while (at < nodes->len && g_strcmp0(nodes->pdata[at], node) != 0)
      at++;
    if (at == nodes->len)
      g_ptr_array_add(nodes, (gpointer)node);
    if (at >= n_prices && n_prices > 1)
      return oct_cli_bad_option(error, "gpu-hour-price", o->price, "one price, or one a node");
    if (!oct_cli_parse_positive("gpu-hour-price", texts[n_prices > 1 ? at : 0], &o->prices[i],
                                error))
      return FALSE;
  }
  if (n_prices > 1 && n_prices != nodes->len)
    return oct_cli_bad_option(error, "gpu-hour-price", o->price, "one price, or one a node");
  o->plan.gpu_hour_prices = o->prices;
  return TRUE;
}

static gboolean
read_variants(options *o, GError **error) {
  guint n = oct_engine_flags_variants(o->flags, error);
  if (n == 0)
    return FALSE;
  for (guint i = 0; i < n; i++) {
    oct_plan_variant *v = &o->variants[i];
    g_autoptr(GString) label = g_string_new(NULL);
    oct_setup_options_default(&v->options);
    /* A plan's texts have the node in front of each layout. */
    if (!oct_engine_flags_apply(o->flags, i, &v->options, label, "node", error))
      return FALSE;
    v->survive_loss = o->survive_loss;
    v->label = o->labels[i] = g_string_free(g_steal_pointer(&label), FALSE);
    if (v->options.model == NULL)
      return oct_cli_bad_option(error, "model", "", "which model? (--model)");
    if (strcmp(v->options.model, o->variants[0].options.model) != 0)
      return oct_cli_bad_option(error, "model", v->options.model, "a plan is of one model");
  }
  /* A seed that is given draws another trace too; else the generator's own stands. */
  oct_setup_options standard;
  oct_setup_options_default(&standard);
  o->base.setup.seed = o->variants[0].options.seed;
  if (o->base.setup.seed != standard.seed)
    o->base.rows.seed = o->base.setup.seed;
  o->plan.n_variants = n;
  o->plan.variants = o->variants;
  return read_prices(o, n, error);
}

static gboolean
read_cost_error(options *o, GError **error) {
  oct_plan_options *p = &o->plan;
  p->cost_error_from = "step costs: as --cost-error says";
  if (o->cost_error != NULL) {
    char *end;
    p->cost_error = g_ascii_strtod(o->cost_error, &end);
    if (end == o->cost_error || *end != '\0' || !(p->cost_error >= 0 && p->cost_error < 1))
      return oct_cli_bad_option(error, "cost-error", o->cost_error,
                                "must be a number of at least 0 and below 1");
    return TRUE;
  }
  const oct_setup_options *first = &o->variants[0].options;
  if (first->backend == OCT_REPLAY_MOCK)
    return TRUE;
  oct_model_spec *spec = oct_model_spec_load(first->model, first->zoo_dir, error);
  if (spec == NULL)
    return FALSE;
  p->cost_error = oct_replay_cost_error(oct_model_has_experts(spec), &p->cost_error_from);
  oct_model_spec_free(spec);
  return TRUE;
}

/* All words but those that say how, not what. */
static char *
make_identity(int argc, char **argv) {
  static const char *const how[] = {"--state", "--json", "--jobs", "--html"};
  GString *text = g_string_new(NULL);
  for (int i = 1; i < argc; i++) {
    gboolean left_out = strcmp(argv[i], "--all") == 0;
    for (gsize k = 0; k < G_N_ELEMENTS(how) && !left_out; k++) {
      gsize size = strlen(how[k]);
      if (strncmp(argv[i], how[k], size) != 0)
        continue;
      left_out = argv[i][size] == '=' || argv[i][size] == '\0';
      i += argv[i][size] == '\0';
    }
    if (!left_out)
      g_string_append_printf(text, "%s\n", argv[i]);
  }
  return g_string_free(text, FALSE);
}

/* --- progress --------------------------------------------------------------------------------- */

typedef struct progress {
  const char *phase;
  gint64 started_us;
  guint before; /* jobs that were done when the phase was first seen */
} progress;

static void
show_progress(void *user, const oct_plan_progress *at) {
  progress *p = user;
  gint64 now = g_get_monotonic_time();
  if (p->phase != at->phase || at->done < p->before) {
    p->phase = at->phase;
    p->started_us = now;
    p->before = at->done;
  }
  fprintf(stderr, "\r%s: %u of %u searches", at->phase, at->done, at->total);
  if (at->done > p->before)
    fprintf(stderr, ", about %.0f s left in this phase",
            (double)(now - p->started_us) / 1e6 / (at->done - p->before) * (at->total - at->done));
  fputs("\033[K", stderr);
}

/* --- the command ------------------------------------------------------------------------------ */

static gboolean
read_options(options *o, GError **error) {
  oct_plan_options_default(&o->plan);
  return read_counts(o, error) && read_trace(o, error) && read_base(o, error) &&
         read_goal(o, error) && read_variants(o, error) && read_cost_error(o, error);
}

static gboolean
run_plan(options *o, GError **error) {
  progress at = {0};
  gboolean terminal = isatty(STDERR_FILENO), good = TRUE;
  o->plan.identity = o->identity;
  o->plan.state_path = o->state;
  o->plan.user = &at;
  o->plan.told = terminal ? show_progress : NULL;
  if (!oct_report_file_check(o->json, error) || !oct_report_file_check_html(o->html, error))
    return FALSE;
  json_t *plan = oct_plan_make(&o->plan, error);
  if (terminal)
    fputs("\r\033[K", stderr);
  if (plan == NULL)
    return FALSE;
  if (o->json == NULL || strcmp(o->json, "-") != 0)
    oct_plan_print(stdout, plan, o->all);
  if (o->json != NULL)
    good = oct_report_file_write(o->json, plan, error);
  if (good && o->html != NULL)
    good = oct_report_file_write_html(o->html, plan, error);
  const char *why = json_string_value(json_object_get(plan, "no_verdict"));
  if (good && why != NULL) {
    g_set_error(error, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_UNDECIDED,
                "no verdict is possible, and no layout is recommended: %s", why);
    good = FALSE;
  }
  json_decref(plan);
  return good;
}

static int
run(options *o) {
  GError *error = NULL;
  if (read_options(o, &error) && run_plan(o, &error))
    return OCT_EXIT_OK;
  if (!g_error_matches(error, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_OPTION))
    return oct_cli_fail(COMMAND, error);
  int status = oct_cli_refuse(COMMAND, "%s", error->message);
  g_error_free(error);
  return status;
}

static void
clear_options(options *o) {
  char *const texts[] = {o->html,     o->rate,       o->duration,  o->slo,   o->assume, o->json,
                         o->state,    o->price,      o->objective, o->input, o->output, o->made,
                         o->identity, o->cost_error, o->growth,    o->peak,  o->window};
  for (gsize i = 0; i < G_N_ELEMENTS(texts); i++)
    g_free(texts[i]);
  for (gsize i = 0; i < G_N_ELEMENTS(o->labels); i++)
    g_free(o->labels[i]);
  oct_trace_flags_clear(&o->trace);
  oct_dist_unref(o->dist);
  oct_engine_flags_free(o->flags);
}

int
oct_cmd_plan(int argc, char **argv) {
  options o = {.flags = oct_engine_flags_new(),
               .seeds = NOT_GIVEN,
               .jobs = NOT_GIVEN,
               .gpus_max = NOT_GIVEN,
               .nodes_max = NOT_GIVEN,
               .coarse = NOT_GIVEN};
  GOptionEntry entries[OCT_ENGINE_FLAGS_MAX + OCT_TRACE_FLAGS + OWN_ENTRIES] = {0};
  guint n = oct_engine_flags_entries(o.flags, entries);
  n += oct_trace_flags_entries(&o.trace, entries + n);
  own_entries(entries + n, &o);
  g_autofree char *policies = oct_engine_flags_details();
  g_autofree char *details = g_strdup_printf(
      "TRACE is what octet replay takes. Every layout of the model on each --node is considered;\n"
      "a parallel size or --replicas above 1 is kept to. Knobs take several values "
      "(--kv-cache-dtype\n"
      "bfloat16,fp8 --max-num-seqs 128,256). Traffic that is too short for a verdict gets bounds,\n"
      "no recommendation, and exit status 1. doc/plan.md in the source explains the method.\n\n%s",
      policies);
  const oct_cli_usage usage = {
      .command = COMMAND,
      .arguments = "[TRACE]",
      .summary = "Finds the layout and the rate that serve a trace under objectives.",
      .details = details,
      .entries = entries,
      .min_arguments = 0,
      .max_arguments = 1,
  };
  mallopt(M_MMAP_THRESHOLD, 128 * 1024);
  oct_engine_flags_expand(o.flags, argc, argv);
  o.identity = make_identity(argc, argv);
  int status = oct_cli_parse(&usage, &argc, &argv);
  if (status == OCT_CLI_GO_ON) {
    o.name = argc > 1 ? argv[1] : NULL;
    status = run(&o);
  }
  clear_options(&o);
  return status;
}
