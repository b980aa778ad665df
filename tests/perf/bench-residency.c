/* Expert slots: decodes of a model whose experts are partly on the device, by the real engine.
 *
 *   bench-residency [--backend TEXT] [--percent LIST] [--concurrency N] [--input N] [--output N]
 *                   [--requests N] [--loads N] [--record-routing FILE]
 *                   [--twin NODE [--expert-routing FILE]] MODEL
 *
 * MODEL is what oct_model_spec_load() takes; weights are made up. For each percentage of the
 * experts of a layer: how many of the experts that steps used were on the device, of all uses and
 * of all pairs of tokens and experts; how long steps of `concurrency` decodes took; what was
 * brought by loads. FILE is what `octet replay --expert-routing file:FILE` takes: what steps of
 * decodes chose, of the last percentage. With --twin the same requests run on a simulated node with
 * this engine's kernels, experts being chosen as a FILE says that they were; one percentage a run.
 * CSV on stdout. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>

#include "backends/registry.h"
#include "engine/model/expert-counts.h"
#include "tests/engine/sched/rig.h"
#ifdef HAVE_SIMGRID
#include "backends/simgrid/simgrid.h"
#endif

static char *backend = "cuda", *percents = "100,75,50,25", *routing, *twin, *chosen;
static gint concurrency = 16, n_input = 32, n_output = 256, n_requests = 0, loads_max = 0;

typedef struct watch {
  GArray *ns; /* gint64: of steps of decodes alone */
  oct_time last_ns, first_ns;
  guint64 n_missed; /* experts, in those steps */
  guint32 width;
  double *counts; /* [layers, width], of those steps */
} watch;

static gboolean
on_event(rig *r, const oct_event *event, void *user) {
  watch *w = user;
  (void)r;
  if (event->kind != OCT_EVENT_STEP_DONE)
    return TRUE;
  const oct_step_result *result = event->result;
  gint64 ns = result->end_ns - result->start_ns;
  gboolean full = result->n_slices == (guint32)concurrency && result->n_tokens == result->n_slices;
  w->first_ns = w->first_ns == 0 ? result->start_ns : w->first_ns;
  w->last_ns = result->end_ns;
  if (!full)
    return TRUE;
  g_array_append_val(w->ns, ns);
  for (guint32 i = 0; i < result->n_experts; i++) {
    const oct_expert_use *use = &oct_result_experts(result)[i];
    w->counts[(gsize)use->layer * w->width + use->expert] += use->tokens;
    w->n_missed += use->missed;
  }
  return TRUE;
}

static gint
compare(gconstpointer a, gconstpointer b) {
  gint64 x = *(const gint64 *)a, y = *(const gint64 *)b;
  return x < y ? -1 : x > y;
}

static void
tell(guint32 percent, guint32 slots, const watch *w, const oct_expert_stats *s, double open_s) {
  gint64 sum = 0;
  guint n = MAX(w->ns->len, 1);
  for (guint i = 0; i < w->ns->len; i++)
    sum += g_array_index(w->ns, gint64, i);
  g_array_sort(w->ns, compare);
  gint64 median = w->ns->len > 0 ? g_array_index(w->ns, gint64, w->ns->len / 2) : 0;
  double seconds = (double)(w->last_ns - w->first_ns) * 1e-9;
  printf("%u %%,%u slots,concurrency %d,hits %.4f of uses,%.4f of pairs,%u steps,median %.1f us,"
         "mean %.1f us,%.1f misses a step,%" G_GUINT64_FORMAT " loads,%.2f GB/s,open %.1f s\n",
         percent, slots, concurrency, s->uses > 0 ? (double)s->hits / (double)s->uses : 1,
         s->used_pairs > 0 ? (double)s->hit_pairs / (double)s->used_pairs : 1, w->ns->len,
         (double)median * 1e-3, (double)sum / n * 1e-3, (double)w->n_missed / n, s->loads,
         (double)s->loaded_bytes / seconds * 1e-9, open_s);
  (void)fflush(stdout);
}

/* Tokens that were routed: a layer's choices over those of a token. */
static guint64
routed_tokens(const oct_model_spec *spec, const watch *w) {
  double sum = 0;
  for (guint32 l = 0; l < spec->n_layers && sum == 0; l++)
    for (guint32 e = 0; e < w->width; e++)
      sum += w->counts[(gsize)l * w->width + e] / MAX(1, spec->ffn[spec->layers[l].ffn].top_k);
  return (guint64)(sum + 0.5);
}

#ifdef HAVE_SIMGRID
static oct_world *
twin_world(const oct_model_spec *spec, GError **error) {
  oct_simgrid_options options = OCT_SIMGRID_OPTIONS_DEFAULT;
  oct_shadow_options shadow;
  oct_shadow_options_default(&shadow);
  oct_profile *profile = oct_profile_load(twin, NULL, NULL, error);
  if (profile == NULL)
    return NULL;
  double *counts = chosen != NULL ? oct_expert_counts_read(chosen, spec, error) : NULL;
  double *ranked = counts != NULL ? oct_expert_counts_ranked(spec, counts, error) : NULL;
  if (chosen != NULL && ranked == NULL)
    return NULL;
  shadow.expert_counts = counts; /* as long as the program runs */
  shadow.n_count_layers = spec->n_layers;
  shadow.n_count_experts = oct_expert_counts_width(spec);
  options.profile = profile;
  options.moe_kernel = OCT_MOE_KERNEL_OWN;
  options.routing_weights = ranked;
  options.n_routing_weights = ranked != NULL ? shadow.n_count_experts : 0;
  options.shadow = &shadow;
  oct_world *world = oct_simgrid_world_new(&options, error);
  if (world != NULL)
    oct_simgrid_own_profile(world, profile);
  return world;
}
#else
static oct_world *
twin_world(const oct_model_spec *spec, GError **error) {
  (void)spec;
  g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_CONFIG,
              "simgrid: this program was built without SimGrid");
  return NULL;
}
#endif

/* FALSE: it did not go well, which was said. */
static gboolean
run(const oct_model_spec *spec, guint32 percent) {
  g_autoptr(GError) error = NULL;
  rig r;
  oct_engine_config config;
  oct_world *world =
      twin != NULL ? twin_world(spec, &error) : oct_backend_world_new(backend, &error);
  if (world == NULL) {
    fprintf(stderr, "bench-residency: %s\n", error->message);
    return FALSE;
  }
  guint32 n_experts = 0, pages = (guint32)(concurrency * ((n_input + n_output) / 16 + 2) + 8);
  for (guint32 i = 0; i < spec->n_ffn; i++)
    n_experts = MAX(n_experts, spec->ffn[i].n_experts);
  rig_init(&r, world);
  rig_config(&config, spec, pages, 0);
  config.max_num_seqs = (guint32)concurrency;
  config.prefix_caching = FALSE;
  config.instance.check_tags = FALSE;
  config.experts.loads_max = (guint32)loads_max;
  guint32 slots = percent < 100 ? MAX(1, n_experts * percent / 100) : 0;
  config.instance.memory.n_expert_slots = slots;
  watch w = {.ns = g_array_new(FALSE, FALSE, sizeof(gint64)),
             .width = oct_expert_counts_width(spec)};
  w.counts = g_new0(double, MAX(1, (gsize)spec->n_layers * w.width));
  r.check = FALSE;
  r.on_event = on_event;
  r.user = &w;
  rig_add_engine(&r, &config);
  for (gint i = 0; i < n_requests; i++) {
    oct_request_params p;
    oct_request_params_default(&p);
    g_autofree guint32 *ids = rig_prompt(spec, (guint64)i + 1, (guint32)n_input);
    p.prompt_ids = ids;
    p.prompt_tokens = (guint32)n_input;
    p.temperature = 1;
    p.seed = (guint64)i + 1;
    p.max_tokens = (guint32)n_output;
    p.ignore_eos = TRUE;
    rig_add(&r, 0, &p);
  }
  rig_run(&r);
  gboolean fine = r.failure == NULL;
  if (fine)
    tell(percent, slots, &w, &r.stats[0].experts, (double)w.first_ns * 1e-9);
  else
    fprintf(stderr, "bench-residency: %s\n", r.failure);
  rig_clear(&r);
  if (fine && routing != NULL &&
      !oct_expert_counts_write(routing, spec, w.counts, routed_tokens(spec, &w), &error)) {
    fprintf(stderr, "bench-residency: %s\n", error->message);
    fine = FALSE;
  }
  g_array_unref(w.ns);
  g_free(w.counts);
  return fine;
}

int
main(int argc, char **argv) {
  g_autoptr(GError) error = NULL;
  const GOptionEntry entries[] = {
      {"backend", 0, 0, G_OPTION_ARG_STRING, &backend, "world (default cuda)", "TEXT"},
      {"percent", 0, 0, G_OPTION_ARG_STRING, &percents, "of experts (100,75,50,25)", "LIST"},
      {"concurrency", 0, 0, G_OPTION_ARG_INT, &concurrency, "requests at a time (16)", "N"},
      {"input", 0, 0, G_OPTION_ARG_INT, &n_input, "tokens of a prompt (32)", "N"},
      {"output", 0, 0, G_OPTION_ARG_INT, &n_output, "tokens made of each (256)", "N"},
      {"requests", 0, 0, G_OPTION_ARG_INT, &n_requests, "in all (twice the concurrency)", "N"},
      {"loads", 0, 0, G_OPTION_ARG_INT, &loads_max, "experts on their way at most (64)", "N"},
      {"record-routing", 0, 0, G_OPTION_ARG_FILENAME, &routing, "experts' choices", "FILE"},
      {"twin", 0, 0, G_OPTION_ARG_STRING, &twin, "a simulated node, in place of a backend", "NODE"},
      {"expert-routing", 0, 0, G_OPTION_ARG_FILENAME, &chosen, "choices of the twin", "FILE"},
      {NULL}};
  GOptionContext *options = g_option_context_new("MODEL");
  g_option_context_add_main_entries(options, entries, NULL);
  gboolean parsed = g_option_context_parse(options, &argc, &argv, &error);
  g_option_context_free(options);
  if (parsed && argc == 1) { /* as `make bench` does */
    printf("no model: name one\n");
    return 0;
  }
  g_autoptr(oct_model_spec) spec =
      parsed && argc == 2 ? oct_model_spec_load(argv[1], NULL, &error) : NULL;
  if (spec == NULL || concurrency < 1 || n_input < 1 || n_output < 1 || loads_max < 0) {
    fprintf(stderr, "bench-residency: %s\n", error != NULL ? error->message : "what model?");
    return 1;
  }
  n_requests = n_requests > 0 ? n_requests : 2 * concurrency;
  g_auto(GStrv) each = g_strsplit(percents, ",", -1);
  for (guint i = 0; each[i] != NULL; i++)
    if (!run(spec, (guint32)g_ascii_strtoull(each[i], NULL, 10)))
      return 1;
  return 0;
}
