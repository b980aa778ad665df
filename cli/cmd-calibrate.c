/* octet calibrate: measures the machine it runs on and writes a node profile. */
#include <stdio.h>
#include <string.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include "backends/registry.h"
#include "cli/calibrate-gpu.h"
#include "cli/calibrate-served.h"
#include "cli/cli.h"
#include "cli/report-file.h"
#include "engine/base/assert.h"
#include "engine/sched/engine.h"
#include "sim/calibrate/host.h"
#include "sim/calibrate/steps.h"

#define COMMAND       "calibrate"
#define DEFAULT_MODEL "llama-3.1-8b"
#define MODELS_MAX    8
#define STEP_TOKENS   8192 /* of the largest step */
#define STEP_SLOTS    256
#define STEP_CONTEXT  1024 /* of decodes whose whole steps are timed */
#define STEP_REPEATS  15
#define MEMORY_SHARE  0.6 /* of the GPU's memory, for keys and values */
#define CONTEXT_MAX   (1 << 20)
#define ALL_GPUS      G_MININT

typedef struct options {
  char *out, *base, *name, *title, *backend;
  char **models;
  int gpus, max_context;
  gboolean quick, no_steps;
} options;

typedef struct work {
  const options *o;
  oct_calibrate_card card;
  oct_profile *base;
  oct_calibration *calibration;
  GArray *tables;                    /* oct_timed */
  oct_model_spec *specs[MODELS_MAX]; /* owned */
  guint n_models;
  char *stamp;
  gint64 began_us;
} work;

static void
options_clear(options *o) {
  char *const texts[] = {o->out, o->base, o->name, o->title, o->backend};
  for (gsize i = 0; i < G_N_ELEMENTS(texts); i++)
    g_free(texts[i]);
  g_strfreev(o->models);
}

static void
work_clear(work *w) {
  oct_calibrate_card_clear(&w->card);
  oct_profile_free(w->base);
  oct_calibration_free(w->calibration);
  g_clear_pointer(&w->tables, g_array_unref);
  for (guint i = 0; i < w->n_models; i++)
    oct_model_spec_free(w->specs[i]);
  g_free(w->stamp);
}

static void
tell(void *user, const char *what) {
  const work *w = user;
  fprintf(stderr, "octet: calibrate: %5.1f s  %s\n",
          (double)(g_get_monotonic_time() - w->began_us) * 1e-6, what);
}

/* ---------------------------------------------------------------- before anything is measured */

/* A profile of the same GPU, for all that is not measured. */
static const char *
base_of(const char *card, guint gpus) {
  static const struct {
    const char *card, *one, *two, *more;
  } known[] = {{"H200", "h200x1", "h200x2", "h200-hgx8"},
               {"H100", "h100-hgx8", "h100-hgx8", "h100-hgx8"},
               {"B300", "b300-hgx8", "b300-hgx8", "b300-hgx8"},
               {"B200", "b200-hgx8", "b200-hgx8", "b200-hgx8"}};
  for (gsize i = 0; i < G_N_ELEMENTS(known); i++)
    if (strstr(card, known[i].card) != NULL)
      return gpus == 1 ? known[i].one : gpus == 2 ? known[i].two : known[i].more;
  return NULL;
}

static gboolean
load_models(work *w, GError **error) {
  static char *default_models[] = {DEFAULT_MODEL, NULL};
  char **names = w->o->models != NULL ? w->o->models : default_models;
  for (guint i = 0; names[i] != NULL; i++) {
    oct_model_spec *spec = oct_model_spec_load(names[i], NULL, error);
    if (spec == NULL)
      return FALSE;
    w->specs[w->n_models++] = spec;
  }
  return TRUE;
}

static guint
gpus_of(const work *w) {
  return w->o->gpus != ALL_GPUS ? (guint)w->o->gpus : w->card.count;
}

static gboolean
prepare(work *w, GError **error) {
  if (!load_models(w, error) || !oct_calibrate_card_read(&w->card, error))
    return FALSE;
  const guint gpus = gpus_of(w);
  if (gpus > w->card.count) {
    g_set_error(error, OCT_CALIBRATE_ERROR, OCT_CALIBRATE_ERROR_WORLD,
                "--gpus: %u: this machine has %u", gpus, w->card.count);
    return FALSE;
  }
  const char *base = w->o->base != NULL ? w->o->base : base_of(w->card.name, gpus);
  if (base == NULL) {
    g_set_error(error, OCT_CALIBRATE_ERROR, OCT_CALIBRATE_ERROR_WORLD,
                "%s is not a card that a profile is known of: --base names one, for what is not "
                "measured",
                w->card.name);
    return FALSE;
  }
  w->base = oct_profile_load(base, NULL, NULL, error);
  if (w->base == NULL)
    return FALSE;
  g_autoptr(GDateTime) now = g_date_time_new_now_utc();
  g_autofree char *date = g_date_time_format(now, "%Y-%m-%d");
  g_autofree char *title = g_strdup_printf("%u x %s, measured %s", gpus, w->card.name, date);
  g_autofree char *file = g_path_get_basename(w->o->out);
  char *dot = strrchr(file, '.');
  if (dot != NULL)
    *dot = '\0';
  if (strcmp(file, base) == 0) {
    g_set_error(error, OCT_CALIBRATE_ERROR, OCT_CALIBRATE_ERROR_WORLD,
                "--out: %s: a profile cannot be based on one of its own name", w->o->out);
    return FALSE;
  }
  w->stamp = g_strdup_printf("measured(octet calibrate, %s, driver %s, %s)", date, w->card.driver,
                             w->card.name);
  w->calibration = oct_calibration_new(w->o->name != NULL ? w->o->name : file,
                                       w->o->title != NULL ? w->o->title : title, base, w->stamp);
  w->tables = g_array_new(FALSE, FALSE, sizeof(oct_timed));
  return TRUE;
}

/* ---------------------------------------------------------------- kernels */

/* Of every model, alone on a GPU and divided among all of them. */
static gboolean
plan(work *w, GError **error) {
  const oct_calibration_limits limits = {.max_tokens = STEP_TOKENS,
                                         .max_batch = STEP_SLOTS,
                                         .max_context = (guint32)w->o->max_context,
                                         .quick = w->o->quick};
  static const oct_dtype caches[] = {OCT_DTYPE_BF16, OCT_DTYPE_FP8};
  const guint gpus = gpus_of(w);
  for (guint i = 0; i < w->n_models; i++)
    for (guint tensor = 1; tensor <= gpus; tensor += MAX(1, gpus - 1)) {
      oct_parallel parallel = OCT_PARALLEL_DEFAULT;
      parallel.tensor = tensor;
      const oct_cost_options cost_options = OCT_COST_OPTIONS_DEFAULT;
      g_autoptr(oct_cost) cost =
          oct_cost_new(w->specs[i], &parallel, NULL, w->base, &cost_options, error);
      if (cost == NULL)
        return FALSE;
      for (guint c = 0; c < G_N_ELEMENTS(caches); c++)
        oct_calibration_plan(cost, w->specs[i], &parallel, caches[c], &limits, w->tables);
    }
  return TRUE;
}

/* The machine's own NUMA nodes, and what a base of another number of GPUs cannot say. */
static void
put_topology(work *w) {
  const guint gpus = gpus_of(w);
  double zeros[OCT_PROFILE_GPUS_MAX] = {0}, own[OCT_PROFILE_GPUS_MAX];
  const gboolean known = oct_calibration_set_numa(w->calibration, w->card.numa_nodes, gpus);
  if (w->base->gpu.count == gpus)
    return;
  for (guint i = 0; i < gpus; i++)
    own[i] = i;
  oct_calibration_set_list(w->calibration, "topology", "gpu_socket", "assumed: one", zeros, gpus);
  if (!known)
    oct_calibration_set_list(w->calibration, "topology", "gpu_numa_node",
                             "assumed: one, the system does not tell", zeros, gpus);
  oct_calibration_set_list(w->calibration, "topology", "gpu_pcie_switch", "assumed: each its own",
                           own, gpus);
  oct_calibration_set_list(w->calibration, "topology", "pcie_switch_socket", "assumed: one", zeros,
                           gpus);
}

static void
put_host(work *w) {
  g_autofree char *text = NULL;
  struct sysinfo info;
  if (sysinfo(&info) == 0)
    oct_calibration_set(w->calibration, "host", "memory_bytes", NULL,
                        (double)info.totalram * info.mem_unit);
  if (w->base->host.sockets == 1)
    oct_calibration_set(w->calibration, "host", "cores_per_socket", NULL,
                        (double)sysconf(_SC_NPROCESSORS_ONLN));
  if (!g_file_get_contents("/proc/cpuinfo", &text, NULL, NULL))
    return;
  g_auto(GStrv) lines = g_strsplit(text, "\n", 64);
  for (guint i = 0; lines[i] != NULL; i++)
    if (g_str_has_prefix(lines[i], "model name") && strchr(lines[i], ':') != NULL) {
      oct_calibration_set_text(w->calibration, "host", "cpu", NULL,
                               g_strstrip(strchr(lines[i], ':') + 1));
      return;
    }
}

/* ---------------------------------------------------------------- whole steps */

static oct_profile *
profile_so_far(const work *w, GError **error) {
  g_autofree char *text = oct_calibration_text(w->calibration);
  return oct_profile_parse(w->o->out, text, strlen(text), NULL, NULL, error);
}

static void
print_heat(const oct_heat_trial *load, const oct_heat_law *law) {
  if (load->n > 0)
    printf("a load of decodes, and of prompts beside them (+): us of each step\n");
  for (guint i = 0; i < load->n; i++)
    printf("%s%.0f%s", load->steps[i].prompt ? "+" : "", load->steps[i].seconds * 1e6,
           i % 16 == 15 || i + 1 == load->n ? "\n" : " ");
  if (oct_heat_is_known(law))
    printf(
        "heat: prompts %.1f%%, decodes %.1f%% longer at most, time constant %.0f ms, from a level "
        "of %.2f on\n",
        law->prompts * 100, law->decodes * 100, law->time_constant_s * 1e3, law->threshold);
}

static void
print_steps(const oct_step_timings *timings) {
  print_heat(&timings->load, &timings->heat);
  printf("whole steps: measured, and the sum of their kernels before and after the ratio\n");
  printf("%8s %8s %8s %8s %8s %6s %12s %12s %9s %9s\n", "decodes", "context", "prompts", "tokens",
         "before", "graph", "measured us", "kernels us", "off", "corrected");
  for (guint32 i = 0; i < timings->n; i++) {
    const oct_step_timing *t = &timings->timings[i];
    const double measured = (double)t->measured_ns, priced = (double)t->priced_ns;
    printf("%8u %8u %8u %8u %8u %6s %12.1f %12.1f %+8.1f%% %+8.1f%%%s\n", t->step.n_decode,
           t->step.context, t->step.n_prefill, t->step.tokens, t->step.before,
           t->graph ? "yes" : "no", measured * 1e-3, priced * 1e-3, (priced / measured - 1) * 100,
           (priced * oct_calibrate_ratio_of(timings, t) / measured - 1) * 100,
           t->curve != OCT_STEP_CHECK ? "" : "  check");
  }
}

/* The host times of the preset that is read by default: what was found of them, the rest as it was.
 */
static void
put_engine(work *w, guint32 graph_max_batch, guint32 most, const oct_host_times *host) {
  g_autofree char *group = g_strdup_printf("engine %s", w->base->engine.preset);
  /* A backend has graphs for no more sequences than it was opened with. */
  if (graph_max_batch < most)
    oct_calibration_set(w->calibration, group, "graph_max_batch", "as the backend tells",
                        graph_max_batch);
  oct_calibration_set(w->calibration, group, "step_host_us",
                      "scheduling, submitting and committing a step", host->step_s * 1e6);
  oct_calibration_set(w->calibration, group, "step_host_per_seq_us", "and for each sequence",
                      host->sequence_s * 1e6);
  oct_engine_config config;
  oct_engine_config_default(&config);
  oct_calibration_set(w->calibration, group, "submit_lead_us", "as the server does",
                      (double)config.submit_lead_ns * 1e-3);
}

static gboolean
time_steps(work *w, GError **error) {
  const oct_model_spec *spec = w->specs[0];
  oct_layer_group groups[OCT_MODEL_GROUPS_MAX];
  oct_steps_options how = {.drive = {.spec = spec,
                                     .parallel = OCT_PARALLEL_DEFAULT,
                                     .kv_dtype = OCT_DTYPE_BF16,
                                     .max_slots = STEP_SLOTS,
                                     .max_context = 2 * STEP_CONTEXT,
                                     .max_tokens = STEP_TOKENS},
                           .context = STEP_CONTEXT,
                           .repeats = STEP_REPEATS};
  how.drive.parallel.tensor = gpus_of(w);
  double token_bytes = 0;
  guint n = oct_model_groups(spec, OCT_DTYPE_BF16, groups);
  for (guint g = 0; g < n; g++)
    token_bytes += (double)groups[g].token_bytes;
  const double room = MEMORY_SHARE * w->base->gpu.hbm_bytes * gpus_of(w);
  while (how.drive.max_slots > 1 &&
         token_bytes * how.drive.max_slots * how.drive.max_context > room)
    how.drive.max_slots /= 2;
  g_autoptr(oct_profile) profile = profile_so_far(w, error);
  oct_world *world =
      profile != NULL ? oct_backend_world_new(w->o->backend != NULL ? w->o->backend : "cuda", error)
                      : NULL;
  if (world == NULL)
    return FALSE;
  g_autofree oct_step_timings *timings = g_new0(oct_step_timings, 1);
  oct_host_times host;
  gboolean fine = oct_calibrate_steps(world, &how, profile, timings, error);
  if (fine)
    tell(w, "the engine's own times");
  fine = fine &&
         oct_calibrate_host(world, spec, &how.drive.parallel, how.drive.max_slots, &host, error);
  oct_world_free(world);
  if (!fine)
    return FALSE;
  put_engine(w, timings->graph_max_batch, how.drive.max_slots, &host);
  oct_calibrate_set_ratios(w->calibration, timings);
  print_steps(timings);
  return TRUE;
}

/* Without a server that answers, what a request costs stays as in the base: FALSE. */
static gboolean
put_request(work *w) {
  g_autoptr(GError) why = NULL;
  g_autofree char *group = g_strdup_printf("engine %s", w->base->engine.preset);
  const oct_calibrate_server how = {.model = w->o->models != NULL ? w->o->models[0] : DEFAULT_MODEL,
                                    .backend = w->o->backend != NULL ? w->o->backend : "cuda",
                                    .gpus = gpus_of(w)};
  double seconds;
  tell(w, "requests over HTTP");
  if (!oct_calibrate_request(&how, &seconds, &why)) {
    g_printerr("octet: calibrate: what a request costs is not measured: %s\n", why->message);
    return FALSE;
  }
  oct_calibration_set(w->calibration, group, "request_in_us",
                      "of a prompt of 1,024 token ids: HTTP, checks, queues, and the way back",
                      seconds * 1e6);
  return TRUE;
}

/* ---------------------------------------------------------------- the command */

#define LACKS_STEPS                                                                                \
  "# Whole steps, heat and the engine's own times were not measured: they are the base's.\n"
#define LACKS_REQUESTS "# What a request costs was not measured: it is the base's.\n"

/* `lacks` is told at the head of the file: what a reader would otherwise take for measured. */
static gboolean
write_profile(const work *w, const char *lacks, GError **error) {
  g_autoptr(oct_profile) profile = profile_so_far(w, error);
  if (profile == NULL)
    return FALSE;
  g_autofree char *measured = oct_calibration_text(w->calibration);
  g_autofree char *text = g_strconcat(lacks, measured, NULL);
  if (!g_file_set_contents(w->o->out, text, -1, error))
    return FALSE;
  printf("%s: %s on %s: %u measured tables; octet replay --node %s\n%s", w->o->out, w->stamp,
         w->base->name, profile->n_measured, w->o->out, lacks);
  return TRUE;
}

static gboolean
calibrate(work *w, GError **error) {
  if (!oct_report_file_check(w->o->out, error) || !prepare(w, error) || !plan(w, error))
    return FALSE;
  put_host(w);
  put_topology(w);
  oct_calibrate_gpu(w->calibration, w->tables, gpus_of(w),
                    MEMORY_SHARE / 2 * w->base->gpu.hbm_bytes, w->base->gpu.hbm_bytes_per_s, tell,
                    w);
  /* Kernels' times are kept whatever comes of steps, and those whatever comes of requests. */
  if (!write_profile(w, LACKS_STEPS, error))
    return FALSE;
  if (w->o->no_steps)
    return TRUE;
  tell(w, "whole steps");
  if (!time_steps(w, error) || !write_profile(w, LACKS_REQUESTS, error))
    return FALSE;
  return !put_request(w) || write_profile(w, "", error);
}

static int
check(const options *o) {
  if (o->out == NULL || *o->out == '\0')
    return oct_cli_refuse(COMMAND, "--out: the file of the profile is needed");
  if (o->gpus != ALL_GPUS && (o->gpus < 1 || o->gpus > OCT_PROFILE_GPUS_MAX))
    return oct_cli_refuse(COMMAND, "--gpus: %d is not from 1 to %d", o->gpus, OCT_PROFILE_GPUS_MAX);
  if (o->max_context < 128 || o->max_context > CONTEXT_MAX)
    return oct_cli_refuse(COMMAND, "--max-context: %d is not from 128 to %d", o->max_context,
                          CONTEXT_MAX);
  if (o->models != NULL && g_strv_length(o->models) > MODELS_MAX)
    return oct_cli_refuse(COMMAND, "--model: %u models, the limit is %d", g_strv_length(o->models),
                          MODELS_MAX);
  return OCT_CLI_GO_ON;
}

int
oct_cmd_calibrate(int argc, char **argv) {
  options o = {.gpus = ALL_GPUS, .max_context = 32768};
  const GOptionEntry entries[] = {
      {"out", 'o', 0, G_OPTION_ARG_FILENAME, &o.out, "the profile, a file of --node", "FILE"},
      {"model", 'm', 0, G_OPTION_ARG_STRING_ARRAY, &o.models,
       "its kernels' shapes are timed, of the first also whole steps; may be repeated "
       "(" DEFAULT_MODEL ")",
       "M"},
      {"gpus", 0, 0, G_OPTION_ARG_INT, &o.gpus, "of the profile (all)", "N"},
      {"base", 0, 0, G_OPTION_ARG_STRING, &o.base,
       "profile that says what is not measured (by the card's name)", "NODE"},
      {"name", 0, 0, G_OPTION_ARG_STRING, &o.name, "its id (the file's name)", "NAME"},
      {"title", 0, 0, G_OPTION_ARG_STRING, &o.title, "its title (GPUs and date)", "TEXT"},
      {"max-context", 0, 0, G_OPTION_ARG_INT, &o.max_context, "of attention that is timed (32768)",
       "N"},
      {"quick", 0, 0, G_OPTION_ARG_NONE, &o.quick, "fewer points of products", NULL},
      {"no-steps", 0, 0, G_OPTION_ARG_NONE, &o.no_steps, "kernels only, no whole steps", NULL},
      {"backend", 0, 0, G_OPTION_ARG_STRING, &o.backend, "world of the whole steps (cuda)",
       "WORLD"},
      G_OPTION_ENTRY_NULL};
  const oct_cli_usage usage = {
      .command = COMMAND,
      .summary = "Measures the machine it runs on and writes a node profile.",
      .entries = entries,
      .details =
          "The backend's own kernels are timed in graphs on random data larger than the L2 cache:\n"
          "products by rows, attention by length and batch, experts, small kernels; then copies,\n"
          "launches, whole steps of the first model, and requests to a server of its own.\n"
          "Name first the model that you serve most, as it is served (llama-3.1-70b+fp8), and\n"
          "with --gpus how many GPUs it is divided among. doc/calibrate.md says what becomes of\n"
          "the figures and how to check them against a real server.\n"
          "It takes some two minutes, a minute more for each further model, and needs the\n"
          "GPUs for itself.\n"
          "Exit status: 0 the profile is written; 1 it could not be, or nothing can be measured\n"
          "here (no GPU, no CUDA in this build); 2 wrong usage.\n\n",
  };
  int status = oct_cli_parse(&usage, &argc, &argv);
  if (status == OCT_CLI_GO_ON)
    status = check(&o);
  if (status == OCT_CLI_GO_ON) {
    GError *error = NULL;
    work w = {.o = &o, .began_us = g_get_monotonic_time()};
    status = calibrate(&w, &error) ? OCT_EXIT_OK : oct_cli_fail(COMMAND, error);
    work_clear(&w);
  }
  options_clear(&o);
  return status;
}
