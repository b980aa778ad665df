/* What a report must say was assumed: by the profile, by the model of the machine, and about the
 * trace. */
#include <string.h>

#include "sim/cost/heat.h"
#include "sim/errors.h"
#include "sim/replay/replay.h"

/* ---------------------------------------------------------------- the profile's own words */

static int
compare_names(gconstpointer a, gconstpointer b) {
  return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Adds the assumed keys of one file; returns its base's name, or NULL. */
static char *
scan_file(const char *path, GHashTable *seen, GPtrArray *keys) {
  g_autofree char *text = NULL;
  char *base = NULL;
  if (!g_file_get_contents(path, &text, NULL, NULL))
    return NULL;
  g_auto(GStrv) lines = g_strsplit(text, "\n", -1);
  g_autofree char *group = g_strdup("");
  gboolean assumed = FALSE, in_comment = FALSE;
  for (char **line = lines; *line != NULL; line++) {
    g_strstrip(*line);
    char *equals = strchr(*line, '=');
    if (**line == '#') {
      /* The origin is the comment's first word; further lines go on with it. */
      if (!in_comment)
        assumed = g_str_has_prefix(g_strchug(*line + 1), "assumed");
      in_comment = TRUE;
      continue;
    }
    if (**line == '[' && strchr(*line, ']') != NULL) {
      g_free(group);
      group = g_strndup(*line + 1, (gsize)(strchr(*line, ']') - *line - 1));
    } else if (equals != NULL) {
      g_autofree char *key = g_strndup(*line, (gsize)(equals - *line));
      char *name = g_strdup_printf("%s/%s", group, key);
      if (strcmp(key, "base") == 0 && base == NULL)
        base = g_strdup(equals + 1);
      /* What a later file says of a key stands for it. */
      gboolean first = g_hash_table_add(seen, g_strdup(name));
      if (first && assumed)
        g_ptr_array_add(keys, name);
      else
        g_free(name);
    }
    in_comment = FALSE;
    assumed = FALSE;
  }
  return base;
}

GPtrArray *
oct_profile_assumed_keys(const char *path) {
  GPtrArray *keys = g_ptr_array_new_with_free_func(g_free);
  g_autoptr(GHashTable) seen = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
  g_autofree char *file = g_strdup(path);
  for (int depth = 0; file != NULL && depth <= OCT_PROFILE_BASES_MAX; depth++) {
    g_autofree char *base = scan_file(file, seen, keys);
    g_autofree char *folder = g_path_get_dirname(file);
    g_clear_pointer(&file, g_free);
    if (base != NULL)
      file = g_strdup_printf("%s/%s.ini", folder, g_strstrip(base));
  }
  g_ptr_array_sort(keys, compare_names);
  return keys;
}

/* ---------------------------------------------------------------- texts */

static void add(json_t *list, const char *format, ...) G_GNUC_PRINTF(2, 3);

static void
add(json_t *list, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  g_autofree char *text = g_strdup_vprintf(format, arguments);
  va_end(arguments);
  json_array_append_new(list, json_string(text));
}

/* Fractions that were measured on one GPU and are taken for another. */
static void
about_own_kernels(const oct_setup *s, json_t *list) {
  const oct_profile_own_kernels *k = &s->profile->own_kernels;
  const gboolean fp8 = s->engine.instance.kv_dtype == OCT_DTYPE_FP8;
  add(list,
      "own kernels: what they reach of the larger of their byte and BF16 floors on an H200 is "
      "assumed to be reached here: delta attention %.3g of the memory in decodes and %.3g of the "
      "peak in prompts, latent attention's decodes %.3g and %.3g, MXFP4 experts %.3g and %.3g (a "
      "pass over weights costs as much as %.3g columns of tokens besides, to turn them into BF16, "
      "by instructions that may grow less than the peak), sums over experts %.3g and mixes of "
      "residuals %.3g of the memory",
      k->kda.decode_hbm, k->kda.prefill_peak, fp8 ? k->mla.decode_fp8_hbm : k->mla.decode_bf16_hbm,
      k->mla.decode_peak, k->mxfp4_experts.hbm, k->mxfp4_experts.peak, k->mxfp4_experts.turned,
      k->pairs.hbm, k->mix.hbm);
}

/* Not an assumption, but what step times in tables leave out. */
static void
about_heat(const oct_profile *p, json_t *list) {
  if (oct_heat_is_known(&p->heat))
    add(list,
        "heat: behind prompts, prompts take up to %.0f%% longer and decodes %.0f%%, with a time "
        "constant of %.0f ms, as measured on %s",
        p->heat.prompts * 100, p->heat.decodes * 100, p->heat.time_constant_s * 1e3, p->name);
}

static void
about_machine(const oct_replay_result *r, json_t *list) {
  const oct_setup *s = &r->setup;
  if (s->options.backend == OCT_REPLAY_MOCK) {
    add(list,
        "backend mock: step times are 1 ms + 1 us per token + 10 us per sequence, of no machine");
    return;
  }
  const oct_profile *p = s->profile;
  if (s->options.engine.instance.parallel.tensor == 0)
    add(list, "layout: not given, taken as tensor parallel over %u GPUs",
        s->engine.instance.parallel.tensor);
  if (p->n_nodes > 1)
    add(list, "%u nodes: NICs of %g GB/s a GPU, %g us a transfer%s, a network that does not block",
        p->n_nodes, p->pcie.nic_bytes_per_s_per_gpu / 1e9, 1e6 * p->nic_latency_s,
        s->options.nic_latency_ns == OCT_SETUP_NIC_LATENCY_NS ? " (assumed)" : "");
  if (p->fictional)
    add(list, "profile %s is fictional: it imitates a report", p->name);
  g_autoptr(GPtrArray) keys = oct_profile_assumed_keys(p->path);
  if (keys->len > 0) {
    g_autoptr(GString) names = g_string_new(NULL);
    g_autofree char *own = g_strdup_printf("engine %s/", p->engine.preset);
    for (guint i = 0; i < keys->len; i++) {
      const char *key = keys->pdata[i];
      /* Thermal limits and other presets have no part in this run. */
      if (g_str_has_prefix(key, "thermal/") || g_str_has_prefix(key, "reliability/") ||
          (g_str_has_prefix(key, "engine ") && !g_str_has_prefix(key, own)))
        continue;
      gboolean is_own = g_str_has_prefix(key, own);
      g_string_append_printf(names, "%s%s%s", names->len > 0 ? ", " : "", is_own ? "engine/" : "",
                             is_own ? key + strlen(own) : key);
    }
    add(list, "profile %s: assumed figures: %s", p->name, names->str);
  }
  about_heat(p, list);
  if (*s->options.engine_preset.name != '\0')
    add(list, "engine: %s is imitated: its policy, limits, host times and fusions (sim/engines)",
        s->options.engine_preset.name);
  if (s->options.weight_type != OCT_DTYPE_NONE)
    add(list, "weights: stored as %s, whatever the model's configuration says",
        oct_dtype_name(s->options.weight_type));
  if (s->options.moe_kernel == OCT_MOE_KERNEL_OWN)
    about_own_kernels(s, list);
  if (!oct_model_has_experts(s->spec))
    return;
  if (s->options.moe_kernel != OCT_MOE_KERNEL_OWN)
    add(list, "MoE kernel: %s",
        s->options.moe_kernel == OCT_MOE_KERNEL_TARGET
            ? "target (what the best measured kernel reaches), not this model's own measured table"
            : "measured (the profile's table of the model's shape where it has one)");
  if (s->routing_weights != NULL)
    add(list, "routing: popularity by rank as counted in %s, mean over layers",
        s->options.routing_file);
  else if (s->options.routing_balanced)
    add(list, "routing: balanced, experts in turn");
  else if (s->options.routing_alpha > 0)
    add(list, "routing: popularity of experts falls as rank^-%g", s->options.routing_alpha);
  else
    add(list, "routing: uniform over experts");
}

static void
about_drafts(const oct_setup *s, json_t *list) {
  const oct_speculation *c = &s->engine.speculation;
  if (c->method == OCT_DRAFT_NONE)
    return;
  g_autoptr(GString) text = g_string_new("drafts: accepted by chance, whatever the text: by place");
  for (guint32 i = 0; i < s->speculative.n_acceptance; i++)
    g_string_append_printf(text, "%s %.3g", i > 0 ? "," : "", s->speculative.acceptance[i]);
  if (c->method == OCT_DRAFT_NGRAM)
    g_string_append_printf(text, "; %.3g of decodes find any", c->proposal_rate);
  add(list, "%s", text->str);
}

static void
about_lengths(const oct_replay_config *config, const oct_replay_result *r, json_t *list) {
  const oct_drive_result *d = &r->drive;
  if (config->exact_lengths)
    add(list, "lengths: the scheduler is told the true output length (ignore_eos)");
  else if (d->unsized == 0)
    add(list, "lengths: the scheduler sees the trace's max_tokens");
  else if (config->assume_max_tokens != NULL)
    add(list, "lengths: max_tokens drawn from %s for %" G_GUINT64_FORMAT " requests",
        oct_dist_text(config->assume_max_tokens), d->unsized);
  else
    add(list,
        "lengths: max_tokens is not stated for %" G_GUINT64_FORMAT
        " request%s: the scheduler sees what max-model-len %u leaves",
        d->unsized, d->unsized == 1 ? "" : "s", r->setup.engine.max_model_len);
}

void
oct_replay_assumptions(const oct_replay_config *config, const oct_replay_result *r, json_t *list) {
  about_machine(r, list);
  about_drafts(&r->setup, list);
  about_lengths(config, r, list);
  if (!r->facts.has_hash_ids)
    add(list, "prefix hits: not modelled, the trace has lengths only");
  if (r->facts.spread)
    add(list, "arrivals are spread evenly over their recorded ticks of %.3f s",
        (double)r->facts.tick_ns / 1e9);
  else if (r->facts.quantised)
    add(list, "arrivals are recorded in ticks of %.3f s and replayed as bursts (--spread auto)",
        (double)r->facts.tick_ns / 1e9);
  if (config->concurrency > 0 && !r->facts.has_closed_loop)
    add(list, "concurrency %u: not used, the trace has arrival times", config->concurrency);
  if (r->facts.block_size_inferred)
    add(list, "hash blocks: %u tokens, inferred from the trace", r->facts.block_size);
  if (r->own_rate > 0 && config->rows.mode == OCT_RATE_SUPERPOSE)
    add(list, "rate: copies of the trace on top of each other share no prefixes");
}

double
oct_replay_cost_error(gboolean experts, const char **from) {
  const double p90 = oct_errors_get("silicon", experts ? "TPOT of models with experts, p90"
                                                       : "TPOT of dense models, p90");
  const double n = oct_errors_get("silicon", experts ? "TPOT of models with experts, rows"
                                                     : "TPOT of dense models, rows");
  if (!(p90 > 0 && n > 0)) {
    *from = "step costs: their error is not known, for want of " OCT_ERRORS_FILE;
    return 0;
  }
  g_autofree char *text = g_strdup_printf(
      "step costs: %.0f %% is the 90th percentile of the error of the time per token, %.0f "
      "published runs of %s (doc/simulation.md 3.3)",
      p90, n, experts ? "models with experts" : "dense models");
  *from = g_intern_string(text);
  return p90 / 100;
}

void
oct_replay_errors(const oct_replay_result *r, json_t *list) {
  const oct_setup *s = &r->setup;
  const oct_hist *ttft = r->drive.measured.latency[OCT_LATENCY_TTFT];
  if (s->options.backend == OCT_REPLAY_MOCK || s->profile == NULL) {
    add(list, "times are of no machine: there is nothing that they could be compared with");
  } else {
    const char *from;
    (void)oct_replay_cost_error(oct_model_has_experts(s->spec), &from);
    add(list, "%s", from);
    if (s->engine.speculation.method != OCT_DRAFT_NONE)
      add(list, "drafts: steps that verify them are priced 6 to 40 %% too low, 12 %% in the median "
                "(doc/simulation.md 1.3)");
  }
  guint64 n = ttft != NULL ? oct_hist_count(ttft) : 0;
  add(list,
      "chance: one stream of requests; a p99 of requests rests on the %" G_GUINT64_FORMAT
      " of %" G_GUINT64_FORMAT " that were slower. octet compare says which differences between "
      "two runs are more than chance",
      n / 100, n);
}
