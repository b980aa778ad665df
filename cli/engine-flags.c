#include "cli/engine-flags.h"

#include <math.h>
#include <string.h>

#include "cli/cli.h"
#include "engine/base/assert.h"
#include "engine/base/limits.h"
#include "engine/sched/policy.h"
#include "sim/replay/slo.h"

typedef enum flag_kind {
  FLAG_COUNT,  /* a whole number from `low` to `high` into a guint32 */
  FLAG_SEED,   /* any 64-bit number */
  FLAG_REAL,   /* a number from `low` to `high` into a double */
  FLAG_GIB,    /* into bytes, a guint64 */
  FLAG_TIME,   /* "1s" into a gint64 of ns */
  FLAG_TEXT,   /* as it is */
  FLAG_WORD,   /* by a function */
  FLAG_ENGINE, /* an engine to imitate: over everything that flags before it have set */
  FLAG_WHOLE,  /* the same, and commas in it do not separate values */
  FLAG_ON,     /* no value */
  FLAG_OFF,
} flag_kind;

typedef gboolean (*set_word_fn)(oct_setup_options *options, const char *value);

typedef struct flag {
  const char *name, *value_name, *help;
  flag_kind kind;
  gsize offset; /* in oct_setup_options */
  double low, high;
  set_word_fn set; /* FLAG_WORD, and FLAG_ON and _OFF where a boolean will not do */
} flag;

/* ---------------------------------------------------------------- words */

static gboolean
set_context(oct_setup_options *o, const char *value) {
  guint64 n = 0;
  if (strcmp(value, "auto") != 0 &&
      !g_ascii_string_to_unsigned(value, 10, 2, OCT_MODEL_DIM_MAX, &n, NULL))
    return FALSE;
  o->engine.max_model_len = (guint32)n;
  return TRUE;
}

static gboolean
set_kv_dtype(oct_setup_options *o, const char *value) {
  gboolean fp8 = strcmp(value, "fp8") == 0 || strcmp(value, "fp8_e4m3") == 0;
  if (strcmp(value, "auto") == 0)
    return TRUE; /* as the options have it */
  o->engine.instance.kv_dtype = fp8 ? OCT_DTYPE_FP8 : OCT_DTYPE_BF16;
  return fp8 || strcmp(value, "bfloat16") == 0;
}

static gboolean
set_policy(oct_setup_options *o, const char *value) {
  o->engine.policy = value;
  return oct_policy_find(value) != NULL;
}

/* vLLM's two orders of the queue: fcfs is what the default policy does. */
static gboolean
set_scheduling(oct_setup_options *o, const char *value) {
  if (strcmp(value, "priority") == 0)
    o->engine.policy = "priority";
  return strcmp(value, "priority") == 0 || strcmp(value, "fcfs") == 0;
}

static gboolean
set_preemption(oct_setup_options *o, const char *value) {
  static const char *const names[] = {"auto", "recompute", "offload"};
  for (guint i = 0; i < G_N_ELEMENTS(names); i++)
    if (strcmp(value, names[i]) == 0) {
      o->engine.preemption = (oct_preemption)i;
      return TRUE;
    }
  return FALSE;
}

/* Anything but the plain names is a world of backends/registry.h, which says what is wrong with it.
 */
static gboolean
set_backend(oct_setup_options *o, const char *value) {
  gboolean simgrid = strcmp(value, "simgrid") == 0;
  o->backend = simgrid ? OCT_REPLAY_SIMGRID : OCT_REPLAY_MOCK;
  o->description = simgrid || strcmp(value, "mock") == 0 ? NULL : value;
  return TRUE;
}

static gboolean
set_expert_policy(oct_setup_options *o, const char *value) {
  gboolean pinned = strcmp(value, "pinned") == 0;
  o->engine.experts.policy = pinned ? OCT_EXPERT_PINNED : OCT_EXPERT_LRU;
  return pinned || strcmp(value, "lru") == 0;
}

/* "power:X", above 0 and at most 4. */
static gboolean
parse_power(const char *value, double *exponent) {
  char *end;
  if (!g_str_has_prefix(value, "power:"))
    return FALSE;
  *exponent = g_ascii_strtod(value + 6, &end);
  return end != value + 6 && *end == '\0' && *exponent > 0 && *exponent <= 4;
}

static gboolean
set_expert_warmup(oct_setup_options *o, const char *value) {
  o->engine.experts.warmup = OCT_EXPERT_WARM_UNIFORM;
  if (strcmp(value, "uniform") == 0)
    return TRUE;
  if (g_str_has_prefix(value, "hist:")) {
    o->expert_histogram = value + 5;
    return value[5] != '\0';
  }
  o->engine.experts.warmup = OCT_EXPERT_WARM_POWER_LAW;
  return parse_power(value, &o->engine.experts.exponent);
}

static gboolean
set_expert_miss(oct_setup_options *o, const char *value) {
  o->expert_load = strcmp(value, "load") == 0;
  return o->expert_load || strcmp(value, "read") == 0;
}

static gboolean
set_moe_kernel(oct_setup_options *o, const char *value) {
  return oct_moe_kernel_parse(value, &o->moe_kernel);
}

/* "uniform", "balanced", "power:EXPONENT" or "file:PATH". */
static gboolean
set_routing(oct_setup_options *o, const char *value) {
  o->routing_alpha = 0;
  o->routing_balanced = strcmp(value, "balanced") == 0;
  o->routing_file = g_str_has_prefix(value, "file:") ? value + 5 : NULL;
  if (o->routing_file != NULL)
    return *o->routing_file != '\0';
  return o->routing_balanced || strcmp(value, "uniform") == 0 ||
         parse_power(value, &o->routing_alpha);
}

/* "48,45": layers of each stage. */
static gboolean
set_stage_layers(oct_setup_options *o, const char *value) {
  g_auto(GStrv) parts = g_strsplit(value, ",", -1);
  guint n = g_strv_length(parts);
  memset(o->engine.instance.parallel.stage_layers, 0,
         sizeof o->engine.instance.parallel.stage_layers);
  for (guint i = 0; i < n && n <= OCT_PARALLEL_STAGES_MAX; i++) {
    guint64 layers;
    if (!g_ascii_string_to_unsigned(parts[i], 10, 1, OCT_MODEL_LAYERS_MAX, &layers, NULL))
      return FALSE;
    o->engine.instance.parallel.stage_layers[i] = (guint32)layers;
  }
  return n >= 1 && n <= OCT_PARALLEL_STAGES_MAX;
}

static gboolean
set_prefix_caching(oct_setup_options *o, const char *value) {
  o->prefix_caching = value != NULL;
  return TRUE;
}

static gboolean
set_run_ahead(oct_setup_options *o, const char *value) {
  o->engine.run_ahead = value != NULL;
  return TRUE;
}

static const struct {
  const char *name;
  oct_dtype type;
} quantizations[] = {{"bfloat16", OCT_DTYPE_BF16},       {"fp8", OCT_DTYPE_FP8},
                     {"fp8_block", OCT_DTYPE_FP8_BLOCK}, {"nvfp4", OCT_DTYPE_NVFP4},
                     {"mxfp4", OCT_DTYPE_MXFP4},         {"int4", OCT_DTYPE_INT4_G128}};

static gboolean
set_quantization(oct_setup_options *o, const char *value) {
  for (gsize i = 0; i < G_N_ELEMENTS(quantizations); i++)
    if (strcmp(value, quantizations[i].name) == 0) {
      o->weight_type = o->expert_type = quantizations[i].type;
      return TRUE;
    }
  return FALSE;
}

static gboolean
set_speculative(oct_setup_options *o, const char *value) {
  o->speculative = value; /* whoever makes the setup says what is wrong with it */
  return TRUE;
}

static gboolean
set_router(oct_setup_options *o, const char *value) {
  return oct_routing_rule_find(value, &o->router);
}

static gboolean
set_nothing(oct_setup_options *o, const char *value) {
  (void)o;
  (void)value;
  return TRUE;
}

/* ---------------------------------------------------------------- the table */

#define AT(field)   G_STRUCT_OFFSET(oct_setup_options, field)
#define PARALLEL(f) AT(engine.instance.parallel.f)
#define GIB         1073741824.0

/* clang-format off */
static const flag flags_table[] = {
    {"model", "M", "name of the zoo, config.json, or a folder that has one", FLAG_TEXT, AT(model),
     0, 0, NULL},
    {"engine", "E", "imitate an engine (listed below): its policy, limits, host times and kernels",
     FLAG_ENGINE, 0, 0, 0, NULL},
    {"quantization", "Q", "weights as bfloat16, fp8, fp8_block, nvfp4, mxfp4 or int4", FLAG_WORD,
     0, 0, 0, set_quantization},
    {"node", "N", "profile of the machine: b300-hgx8, h200-hgx8, … or an .ini file", FLAG_TEXT,
     AT(node), 0, 0, NULL},
    {"backend", "B", "simgrid (default), mock, or a world such as mock:fixed_ns=2000000",
     FLAG_WHOLE, 0, 0, 0, set_backend},
    {"engine-preset", "P", "host times of the profile, by name", FLAG_TEXT, AT(preset), 0, 0,
     NULL},
    {"nodes", "N", "so many nodes, joined by a NIC for each GPU; 16 GPUs at most", FLAG_COUNT,
     AT(n_nodes), 1, 16, NULL},
    {"nic-latency", "TIME", "of a transfer between nodes (5us)", FLAG_TIME, AT(nic_latency_ns), 0,
     0, NULL},
    {"replicas", "N", "engines behind a router, each with its own GPUs", FLAG_COUNT,
     AT(n_replicas), 1, 64, NULL},
    {"router", "R", "least-loaded (default), round-robin or prefix-affinity", FLAG_WORD, 0, 0, 0,
     set_router},
    {"prefill-replicas", "N", "of them: compute prompts, the others pull their KV and go on",
     FLAG_COUNT, AT(n_prefill), 0, 63, NULL},
    {"prefill-tensor-parallel-size", "N", "of the prefill replicas; default: as the others",
     FLAG_COUNT, AT(prefill_tensor), 1, OCT_PARALLEL_WORLD_MAX, NULL},
    {"tensor-parallel-size", "N", "(-tp) default: all GPUs that a replica can have", FLAG_COUNT,
     PARALLEL(tensor), 1, OCT_PARALLEL_WORLD_MAX, NULL},
    {"pipeline-parallel-size", "N", "(-pp) stages", FLAG_COUNT, PARALLEL(pipeline), 1,
     OCT_PARALLEL_STAGES_MAX, NULL},
    {"pipeline-layers", "LIST", "layers of each stage, 1 or more, of at most 16 stages: 48,45",
     FLAG_WHOLE, 0, 0, 0, set_stage_layers},
    {"data-parallel-size", "N", "(-dp) data-parallel attention: KV domains of one engine",
     FLAG_COUNT,
     PARALLEL(data), 1, OCT_STEP_DOMAINS_MAX, NULL},
    {"decode-context-parallel-size", "N", "ranks of a TP group that share KV by token", FLAG_COUNT,
     PARALLEL(decode_context), 1, OCT_PARALLEL_WORLD_MAX, NULL},
    {"enable-expert-parallel", NULL, "whole experts over the ranks, not slices", FLAG_ON,
     PARALLEL(expert_parallel), 0, 0, NULL},
    {"replicate-latent", NULL, "projections of experts' latents and the router: whole",
     FLAG_OFF, PARALLEL(shard_latent), 0, 0, NULL},
    {"replicate-shared-experts", NULL, "shared experts whole on every rank", FLAG_ON,
     PARALLEL(replicate_shared), 0, 0, NULL},
    {"max-num-seqs", "N", "sequences of a step", FLAG_COUNT, AT(engine.max_num_seqs), 1, 1 << 20,
     NULL},
    {"max-num-batched-tokens", "N", "tokens of a step", FLAG_COUNT,
     AT(engine.max_num_batched_tokens), 1, 1 << 30, NULL},
    {"max-model-len", "N", "context, 2 to 16777216, or auto: what the model and the cache allow",
     FLAG_WORD, 0, 0, 0, set_context},
    {"max-queued-requests", "N", "waiting requests; more are refused as busy", FLAG_COUNT,
     AT(engine.queue_max), 1, 1 << 20, NULL},
    {"block-size", "N", "tokens of a KV page", FLAG_COUNT, AT(engine.instance.block_size), 1, 4096,
     NULL},
    {"kv-cache-dtype", "T", "auto, bfloat16 or fp8", FLAG_WORD, 0, 0, 0, set_kv_dtype},
    {"gpu-memory-utilization", "X", "share of GPU memory to use (0.92)", FLAG_REAL,
     AT(gpu_memory_utilization), 0.01, 1, NULL},
    {"num-gpu-blocks-override", "N", "KV pages, in place of what fits", FLAG_COUNT,
     AT(num_gpu_blocks_override), 1, 1 << 30, NULL},
    {"enable-prefix-caching", NULL, "default: on, but for models with recurrent state", FLAG_ON, 0,
     0, 0, set_prefix_caching},
    {"no-enable-prefix-caching", NULL, "off", FLAG_OFF, 0, 0, 0, set_prefix_caching},
    {"kv-offloading-size", "GiB", "host tier of each engine, all ranks together", FLAG_GIB,
     AT(kv_offloading_bytes), 0, 1 << 20, NULL},
    {"swap-space", "GiB", "the host tier's old name, per GPU", FLAG_GIB, AT(swap_space_bytes), 0,
     1 << 20, NULL},
    {"state-memory-ratio", "X", "share of the cache for recurrent state", FLAG_REAL,
     AT(state_memory_ratio), 0, 0.99, NULL},
    {"state-snapshot-interval", "N", "tokens between state snapshots", FLAG_COUNT,
     AT(engine.state_snapshot_interval), 0, 1 << 30, NULL},
    {"expert-cache-size", "GiB", "routed experts kept on each GPU; the rest stays in host memory",
     FLAG_GIB, AT(expert_cache_bytes), 0, 1 << 20, NULL},
    {"expert-policy", "P", "lru (frequency-aware) or pinned", FLAG_WORD, 0, 0, 0,
     set_expert_policy},
    {"expert-warmup", "W", "uniform, power:X (~ rank^-X, X <= 4) or hist:FILE (a line per layer)",
     FLAG_WORD, 0, 0, 0, set_expert_warmup},
    {"expert-miss", "M", "read (a missing expert in host memory) or load (it first)", FLAG_WORD, 0,
     0, 0, set_expert_miss},
    {"policy", "P", "scheduling policy, see below", FLAG_WORD, 0, 0, 0, set_policy},
    {"scheduling-policy", "P", "fcfs or priority", FLAG_WORD, 0, 0, 0, set_scheduling},
    {"preemption", "P", "auto, recompute or offload", FLAG_WORD, 0, 0, 0, set_preemption},
    {"async-scheduling", NULL, "submit a step ahead (default)", FLAG_ON, 0, 0, 0, set_run_ahead},
    {"no-async-scheduling", NULL, "wait for each step", FLAG_OFF, 0, 0, 0, set_run_ahead},
    {"enable-chunked-prefill", NULL, "always on; accepted", FLAG_ON, 0, 0, 0, set_nothing},
    {"long-prefill-token-threshold", "N", "longest prefill chunk while others wait", FLAG_COUNT,
     AT(engine.long_prefill_threshold), 0, 1 << 30, NULL},
    {"decode-gap-max", "TIME", "stage-aware: longest time that decodes are held up", FLAG_TIME,
     AT(engine.decode_gap_max_ns), 0, 0, NULL},
    {"speculative-config", "JSON",
     "speculative decoding: {\"method\":\"ngram\",\"num_speculative_tokens\":5}, or with a "
     "draft_model; see doc/operations.md",
     FLAG_WHOLE, 0, 0, 0, set_speculative},
    {"enforce-eager", NULL, "no CUDA graphs", FLAG_ON, AT(engine.instance.eager), 0, 0, NULL},
    {"moe-kernel", "K", "measured, target or own: price of expert kernels", FLAG_WORD, 0, 0, 0,
     set_moe_kernel},
    {"expert-routing", "R",
     "uniform, balanced (in turn), power:X (~ rank^-X, X <= 4) or file:COUNTS (measured)",
     FLAG_WORD, 0, 0, 0, set_routing},
    {"seed", "N", "of everything drawn", FLAG_SEED, AT(seed), 0, 0, NULL},
    {"sim-exact", NULL, "every step through SimGrid's solver", FLAG_ON, AT(exact), 0, 0, NULL},
    {"no-fast-forward", NULL, "step through uneventful stretches", FLAG_ON, AT(engine.no_forward),
     0, 0, NULL},
};
/* clang-format on */

#define N_FLAGS G_N_ELEMENTS(flags_table)
G_STATIC_ASSERT(N_FLAGS < OCT_ENGINE_FLAGS_MAX);

struct oct_engine_flags {
  char *values[N_FLAGS];   /* as given, NULL = not */
  gboolean given[N_FLAGS]; /* FLAG_ON, FLAG_OFF */
  char **choices[N_FLAGS]; /* values[] at its commas, made when it is asked for */
  GPtrArray *kept;
};

static gboolean
takes_value(const flag *f) {
  return f->kind != FLAG_ON && f->kind != FLAG_OFF;
}

/* ---------------------------------------------------------------- life cycle */

oct_engine_flags *
oct_engine_flags_new(void) {
  oct_engine_flags *flags = g_new0(oct_engine_flags, 1);
  flags->kept = g_ptr_array_new_with_free_func(g_free);
  return flags;
}

/* The flag that says the opposite of flag i, or i itself. */
static gsize
opposite(gsize i) {
  for (gsize k = 0; k < N_FLAGS && flags_table[i].set != NULL; k++)
    if (k != i && flags_table[k].set == flags_table[i].set && !takes_value(&flags_table[i]))
      return k;
  return i;
}

oct_engine_flags *
oct_engine_flags_copy(const oct_engine_flags *from, const oct_engine_flags *over) {
  oct_engine_flags *flags = oct_engine_flags_new();
  for (gsize i = 0; i < N_FLAGS; i++) {
    gboolean replaced = over != NULL && over->values[i] != NULL;
    flags->values[i] = g_strdup(replaced ? over->values[i] : from->values[i]);
    gboolean said = over != NULL && (over->given[i] || over->given[opposite(i)]);
    flags->given[i] = said ? over->given[i] : from->given[i];
  }
  return flags;
}

void
oct_engine_flags_free(oct_engine_flags *flags) {
  if (flags == NULL)
    return;
  for (gsize i = 0; i < N_FLAGS; i++) {
    g_free(flags->values[i]);
    g_strfreev(flags->choices[i]);
  }
  g_ptr_array_unref(flags->kept);
  g_free(flags);
}

/* ---------------------------------------------------------------- parsing */

void
oct_engine_flags_expand(oct_engine_flags *flags, int argc, char **argv) {
  oct_cli_expand(argc, argv, flags->kept);
}

guint
oct_engine_flags_entries(oct_engine_flags *flags, GOptionEntry *entries) {
  for (gsize i = 0; i < N_FLAGS; i++) {
    const flag *f = &flags_table[i];
    entries[i] =
        (GOptionEntry){f->name,
                       0,
                       0,
                       takes_value(f) ? G_OPTION_ARG_STRING : G_OPTION_ARG_NONE,
                       takes_value(f) ? (void *)&flags->values[i] : (void *)&flags->given[i],
                       f->help,
                       f->value_name};
  }
  return N_FLAGS;
}

gboolean
oct_engine_flags_set_model(oct_engine_flags *flags, const char *model) {
  oct_assert(strcmp(flags_table[0].name, "model") == 0);
  if (flags->values[0] != NULL)
    return FALSE;
  flags->values[0] = g_strdup(model);
  return TRUE;
}

/* ---------------------------------------------------------------- variants */

/* The flag's values; NULL when it has none. The cache behind it does not show. */
static char **
choices_of(const oct_engine_flags *flags, gsize i) {
  oct_engine_flags *cache = (oct_engine_flags *)flags;
  if (flags->values[i] != NULL && flags->choices[i] == NULL)
    cache->choices[i] =
        g_strsplit(flags->values[i], ",", flags_table[i].kind == FLAG_WHOLE ? 1 : -1);
  return flags->choices[i];
}

guint
oct_engine_flags_variants(const oct_engine_flags *flags, GError **error) {
  guint64 n = 1;
  for (gsize i = 0; i < N_FLAGS && n <= OCT_ENGINE_VARIANTS_MAX; i++)
    if (flags->values[i] != NULL)
      n *= MAX(1, g_strv_length(choices_of(flags, i)));
  if (n <= OCT_ENGINE_VARIANTS_MAX)
    return (guint)n;
  g_set_error(error, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_OPTION,
              "the values given make more than %d combinations", OCT_ENGINE_VARIANTS_MAX);
  return 0;
}

/* ---------------------------------------------------------------- values */

static gboolean
refuse(GError **error, const flag *f, const char *value, const char *why) {
  g_set_error(error, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_OPTION, "%s \"%s\": %s", f->name, value,
              why);
  return FALSE;
}

static gboolean
refuse_policy(GError **error, const flag *f, const char *value) {
  g_autoptr(GString) names = g_string_new("must be one of");
  for (const oct_policy *const *p = oct_policy_list(); *p != NULL; p++)
    g_string_append_printf(names, " %s", (*p)->name);
  return refuse(error, f, value, names->str);
}

static gboolean
set_number(const flag *f, void *at, const char *value, GError **error) {
  char *end;
  double number = g_ascii_strtod(value, &end);
  double scale = f->kind == FLAG_GIB ? GIB : 1;
  if (end == value || *end != '\0' || isnan(number) || number < f->low || number > f->high) {
    g_autofree char *why = g_strdup_printf("must be a number from %.10g to %.10g", f->low, f->high);
    return refuse(error, f, value, why);
  }
  if (f->kind == FLAG_GIB)
    *(guint64 *)at = (guint64)(number * scale);
  else
    *(double *)at = number;
  return TRUE;
}

static gboolean
imitate(oct_setup_options *o, const char *name, GError **error) {
  oct_engine_preset preset;
  if (!oct_engine_preset_load(name, &preset, error))
    return FALSE;
  oct_setup_imitate(o, &preset);
  return TRUE;
}

static gboolean
set_value(const flag *f, oct_setup_options *o, const char *value, GError **error) {
  void *at = (guint8 *)o + f->offset;
  guint64 number;
  switch (f->kind) {
  case FLAG_COUNT:
    if (!g_ascii_string_to_unsigned(value, 10, (guint64)f->low, (guint64)f->high, &number, NULL)) {
      g_autofree char *why =
          g_strdup_printf("must be a whole number from %.0f to %.0f", f->low, f->high);
      return refuse(error, f, value, why);
    }
    *(guint32 *)at = (guint32)number;
    return TRUE;
  case FLAG_SEED:
    if (!g_ascii_string_to_unsigned(value, 10, 0, G_MAXINT64, (guint64 *)at, NULL))
      return refuse(error, f, value, "must be a whole number below 2^63");
    return TRUE;
  case FLAG_REAL:
  case FLAG_GIB:
    return set_number(f, at, value, error);
  case FLAG_TIME:
    return oct_duration_parse(f->name, value, TRUE, at, error);
  case FLAG_TEXT:
    *(const char **)at = value;
    return TRUE;
  case FLAG_ENGINE:
    return imitate(o, value, error);
  case FLAG_WORD:
  case FLAG_WHOLE:
    if (f->set(o, value))
      return TRUE;
    if (f->set == set_policy)
      return refuse_policy(error, f, value);
    return refuse(error, f, value, f->help);
  case FLAG_ON:
  case FLAG_OFF:
    if (f->set != NULL)
      return f->set(o, f->kind == FLAG_ON ? "" : NULL);
    *(gboolean *)at = f->kind == FLAG_ON;
    return TRUE;
  }
  return FALSE;
}

gboolean
oct_engine_flags_single(const oct_engine_flags *flags, GError **error) {
  for (gsize i = 0; i < N_FLAGS; i++)
    if (flags->values[i] != NULL && g_strv_length(choices_of(flags, i)) > 1)
      return refuse(error, &flags_table[i], flags->values[i],
                    "a list of values has no meaning here: one configuration is served");
  return TRUE;
}

/* Two names of one thing cannot both be given: one would be ignored. */
static gboolean
check_rivals(const oct_engine_flags *flags, GError **error) {
  static const char *const rivals[][2] = {{"kv-offloading-size", "swap-space"},
                                          {"engine", "engine-preset"},
                                          {"policy", "scheduling-policy"}};
  for (gsize k = 0; k < G_N_ELEMENTS(rivals); k++) {
    const flag *given[2] = {NULL, NULL};
    const char *value = NULL;
    for (gsize i = 0; i < N_FLAGS; i++)
      for (gsize r = 0; r < 2; r++)
        if (flags->values[i] != NULL && strcmp(flags_table[i].name, rivals[k][r]) == 0) {
          given[r] = &flags_table[i];
          value = flags->values[i];
        }
    if (given[0] == NULL || given[1] == NULL)
      continue;
    g_autofree char *why =
        g_strdup_printf("--%s is given too, and says the same thing", rivals[k][0]);
    return refuse(error, given[1], value, why);
  }
  return TRUE;
}

gboolean
oct_engine_flags_apply(const oct_engine_flags *flags, guint variant, oct_setup_options *options,
                       GString *label, const char *unlabelled, GError **error) {
  if (!check_rivals(flags, error))
    return FALSE;
  for (gsize i = 0; i < N_FLAGS; i++) {
    const flag *f = &flags_table[i];
    const char *value = NULL;
    if (flags->values[i] != NULL) {
      char **choices = choices_of(flags, i);
      guint n = MAX(1, g_strv_length(choices));
      value = choices[0] != NULL ? choices[variant % n] : "";
      variant /= n;
      if (label != NULL && n > 1 && g_strcmp0(f->name, unlabelled) != 0)
        g_string_append_printf(label, "%s%s %s", label->len > 0 ? ", " : "", f->name, value);
    } else if (!flags->given[i]) {
      continue;
    }
    if (!set_value(f, options, value, error))
      return FALSE;
  }
  return TRUE;
}

char *
oct_engine_flags_details(void) {
  GString *text = g_string_new("Policies:\n");
  for (const oct_policy *const *p = oct_policy_list(); *p != NULL; p++)
    g_string_append_printf(text, "  %-15s %s\n", (*p)->name, (*p)->summary);
  g_auto(GStrv) engines = oct_engine_preset_list();
  g_autofree char *names = g_strjoinv(", ", engines);
  g_string_append_printf(text, "Engines: %s, or a file like them (doc/replay.md)\n", names);
  return g_string_free(text, FALSE);
}
