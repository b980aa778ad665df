#include "cli/serve-model.h"

#include <string.h>
#include <sys/sysinfo.h>

#include "backends/cpu/cpu.h"
#include "backends/record/record.h"
#include "backends/registry.h"
#include "cli/gpu-memory.h"
#include "cli/hf-cache.h"
#include "cli/serve-parser.h"
#include "engine/base/file.h"
#include "engine/model/expert-counts.h"
#include "engine/text/jinja.h"
#include "engine/text/tokenizer-bytes.h"
#include "sim/replay/metrics.h"

#define CPU_CACHE_MAX ((guint64)4 << 30)

typedef struct maker {
  oct_serve_model *model;
  const oct_serve_options *options;
  oct_setup_options setup;
  char *description;                    /* of the world, owned; NULL: cpu with plain options */
  gboolean is_cpu, is_mock, is_simgrid; /* with plain options */
  gboolean on_cpu, on_cuda;             /* what computes, whatever is round it */
  gboolean kv_bf16;                     /* asked for: the cpu's own is float32 */
  oct_serve_told told;
  void *user;
} maker;

static gboolean
G_GNUC_PRINTF(2, 3) refuse(GError **error, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  g_autofree char *text = g_strdup_vprintf(format, arguments);
  va_end(arguments);
  g_set_error_literal(error, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_OPTION, text);
  return FALSE;
}

/* --- which model ------------------------------------------------------------------------------ */

/* A name of the zoo, with "+FORMAT" or the like or without (oct_model_spec_load()). */
static gboolean
is_in_zoo(const char *name) {
  g_auto(GStrv) names = oct_model_zoo_names(NULL);
  g_autofree char *base = g_strdup(name);
  char *plus = strchr(base, '+');
  if (plus != NULL)
    *plus = '\0';
  return g_strv_contains((const char *const *)names, base);
}

static gboolean
needs_no_files(const maker *m) {
  const char *format = m->options->load_format;
  return m->model->imitates || (format != NULL && strcmp(format, "dummy") == 0);
}

static gboolean
find_model(maker *m, GError **error) {
  oct_serve_model *model = m->model;
  const char *asked = m->setup.model;
  if (asked == NULL && (!m->model->imitates || m->is_simgrid))
    return refuse(error, "which model? (MODEL; --backend mock needs none)");
  model->name = g_strdup(asked != NULL ? asked : "mock");
  asked = asked != NULL ? asked : OCT_SERVE_MOCK_MODEL;
  if (g_file_test(asked, G_FILE_TEST_EXISTS)) {
    model->path = g_strdup(asked);
  } else if (is_in_zoo(asked)) {
    model->path = g_strdup(asked);
    model->in_zoo = TRUE;
    if (!needs_no_files(m))
      return refuse(error,
                    "%s is a name of the zoo, which has no weights: give a folder, an id of "
                    "Hugging Face's cache, or --load-format dummy",
                    asked);
  } else if (oct_hf_is_id(asked)) {
    g_autofree char *hub = oct_hf_hub();
    model->path = oct_hf_find(hub, asked, m->options->revision, error);
    if (model->path == NULL)
      return FALSE;
  } else {
    return refuse(error, "%s: there is no such file or folder", asked);
  }
  model->root = g_strdup(model->path);
  m->setup.model = model->path;
  return TRUE;
}

/* The draft model of --speculative-config: as the model, a path, a name of the zoo where no weights
 * are read, or an id in Hugging Face's cache. */
static gboolean
find_draft(maker *m, GError **error) {
  if (m->setup.speculative == NULL)
    return TRUE;
  oct_speculative s;
  if (!oct_speculative_parse(m->setup.speculative, &s, error))
    return FALSE;
  g_autofree char *asked = g_steal_pointer(&s.model);
  gboolean drafts = s.method == OCT_DRAFT_MODEL, said = s.n_acceptance > 0 || s.proposal_rate >= 0;
  oct_speculative_clear(&s);
  if (said && !m->model->imitates)
    return refuse(error, "speculative-config: acceptance, proposal_rate: of a backend without "
                         "weights; this one finds out");
  if (!drafts)
    return TRUE;
  gboolean zoo = is_in_zoo(asked);
  if (g_file_test(asked, G_FILE_TEST_EXISTS) || (zoo && needs_no_files(m))) {
    m->model->draft_path = g_steal_pointer(&asked);
  } else if (!zoo && oct_hf_is_id(asked)) {
    g_autofree char *hub = oct_hf_hub();
    m->model->draft_path = oct_hf_find(hub, asked, NULL, error);
  } else {
    return refuse(error, "speculative-config: model %s: %s", asked,
                  zoo ? "a name of the zoo has no weights; --load-format dummy makes them up"
                      : "there is no such file or folder");
  }
  m->setup.draft_model = m->model->draft_path;
  return m->model->draft_path != NULL;
}

/* --- how it runs ------------------------------------------------------------------------------ */

/* The innermost world of a description is what computes. */
static const char *
innermost(const char *text) {
  const char *at = strrchr(text, '@');
  return at != NULL ? at + 1 : text;
}

/* `text` with an option of its innermost world, unless that has the key already. Owned. */
static char *
with_option(const char *text, const char *key, const char *value) {
  const char *inner = innermost(text);
  g_autofree char *wanted = g_strdup_printf("%s=", key);
  if (strstr(inner, wanted) != NULL)
    return g_strdup(text);
  return g_strdup_printf("%s%c%s%s", text, strchr(inner, ':') != NULL ? ',' : ':', wanted, value);
}

static gboolean
is_world(const char *inner, const char *name) {
  gsize n = strlen(name);
  return inner != NULL && strncmp(inner, name, n) == 0 && (inner[n] == '\0' || inner[n] == ':');
}

/* GPUs are used by a process of their own, which may be lost; and which ends with an instance that
 * is, as what is wrong with a device stays with the process that used it. */
static gboolean
choose_process(maker *m, GError **error) {
  gboolean alone = m->on_cuda && strchr(m->description, '@') == NULL;
  if (m->options->in_process && !alone)
    return refuse(error, "in-process: of --backend cuda, which has a process of its own otherwise");
  if (!alone || m->options->in_process)
    return TRUE;
  g_autofree char *text = with_option(m->description, "exit_on_loss", "1");
  g_free(m->description);
  m->description = g_strconcat("remote@", text, NULL);
  return TRUE;
}

/* The cpu's rows never depend on others, and mock has none. */
static gboolean
choose_order(maker *m, const char *inner, GError **error) {
  if (!m->options->batch_invariant)
    return TRUE;
  if (m->is_simgrid || is_world(inner, "simgrid"))
    return refuse(error, "batch-invariant: simgrid has no prices for sums in a fixed order");
  if (m->on_cuda && strstr(inner, "fixed_order=0") != NULL)
    return refuse(error, "batch-invariant: fixed_order=0 of --backend says the opposite");
  if (m->on_cuda) {
    char *text = with_option(m->description, "fixed_order", "1");
    g_free(m->description);
    m->description = text;
  }
  return TRUE;
}

/* The cpu keeps its cache by its own key, whatever the instance's type is. */
static gboolean
choose_cache(maker *m, const char *inner, GError **error) {
  if (!m->on_cpu)
    return TRUE;
  if (m->kv_bf16 && strstr(inner, "kv=float32") != NULL)
    return refuse(error, "kv-cache-dtype \"bfloat16\": kv=float32 of --backend says the opposite");
  if (m->kv_bf16 && m->description != NULL) {
    char *text = with_option(m->description, "kv", "bfloat16");
    g_free(m->description);
    m->description = text;
  }
  m->kv_bf16 |= strstr(inner, "kv=bfloat16") != NULL;
  return TRUE;
}

/* "mock", "simgrid", "cpu", or a description of another world. */
static gboolean
choose_backend(maker *m, GError **error) {
  const char *text = m->setup.description;
  const char *inner = text != NULL ? innermost(text) : NULL;
  m->is_mock = text == NULL && m->setup.backend == OCT_REPLAY_MOCK;
  m->is_simgrid = text == NULL && m->setup.backend == OCT_REPLAY_SIMGRID;
  m->is_cpu = text != NULL && strcmp(text, "cpu") == 0;
  if (!m->is_simgrid)
    m->setup.backend = OCT_REPLAY_MOCK; /* the setup counts pages, not a node's memory */
  m->setup.description = NULL;
  gboolean mock = is_world(inner, "mock");
  m->model->imitates = m->is_mock || m->is_simgrid || mock || is_world(inner, "simgrid");
  m->on_cpu = is_world(inner, "cpu");
  m->on_cuda = m->model->on_gpus = is_world(inner, "cuda");
  if (mock) /* with options it has a real clock unless it says */
    m->description = with_option(text, "clock", "real");
  else if (text != NULL && !m->is_cpu)
    m->description = g_strdup(text);
  return choose_order(m, inner, error) && choose_cache(m, inner, error) &&
         choose_process(m, error) && (text == NULL || oct_backend_check(text, error));
}

/* vLLM's replicas; with expert parallelism, or where replicas have a number of their own, attention
 * replicas of one engine. */
static void
choose_replicas(maker *m) {
  oct_parallel *p = &m->setup.engine.instance.parallel;
  const gboolean given = m->setup.n_replicas > 0;
  m->setup.n_replicas = MAX(1, m->setup.n_replicas);
  if (p->expert_parallel || given)
    return;
  m->setup.n_replicas = MAX(1, p->data);
  p->data = 1;
}

static guint64
cpu_cache_bytes(const maker *m) {
  struct sysinfo info;
  if (m->options->kv_bytes > 0)
    return m->options->kv_bytes;
  if (sysinfo(&info) != 0)
    return CPU_CACHE_MAX / 4;
  return MIN(CPU_CACHE_MAX, (guint64)info.totalram * info.mem_unit / 4);
}

/* Pages that fit into the memory for the cache. */
static gboolean
count_cpu_pages(maker *m, GError **error) {
  oct_layer_group groups[OCT_MODEL_GROUPS_MAX];
  guint64 token_bytes = 0, budget = cpu_cache_bytes(m);
  if (m->setup.engine.instance.kv_dtype != OCT_DTYPE_BF16)
    return refuse(error,
                  "kv-cache-dtype \"fp8\": the cpu backend keeps float32 (auto), or bfloat16");
  if (m->setup.num_gpu_blocks_override > 0)
    return TRUE;
  /* A draft model's cache has as many tokens. */
  const char *const paths[] = {m->model->path, m->model->draft_path, NULL};
  guint32 context = G_MAXUINT32;
  for (const char *const *path = paths; *path != NULL; path++) {
    g_autoptr(oct_model_spec) spec = oct_model_spec_load(*path, NULL, error);
    if (spec == NULL)
      return FALSE;
    guint n = oct_model_groups(spec, OCT_DTYPE_BF16, groups);
    for (guint i = 0; i < n; i++)
      token_bytes += (m->kv_bf16 ? 1 : 2) * groups[i].token_bytes;
    context = path == paths ? spec->max_position : context;
  }
  guint64 page_bytes = MAX(1, token_bytes * m->setup.engine.instance.block_size);
  guint64 pages = budget / page_bytes / m->setup.n_replicas;
  guint64 useful = (guint64)context * 128 / m->setup.engine.instance.block_size;
  pages = MIN(MIN(pages, useful), G_MAXINT32);
  if (pages < 2)
    return refuse(error,
                  "kv-cache-memory-bytes: %" G_GUINT64_FORMAT
                  " bytes hold no two pages of %" G_GUINT64_FORMAT,
                  budget, page_bytes);
  m->setup.num_gpu_blocks_override = (guint32)pages;
  return TRUE;
}

/* For each rank, where it is going to be. */
static guint64
gpu_free_bytes(const maker *m) {
  oct_parallel parallel = m->setup.engine.instance.parallel;
  parallel.tensor = MAX(1, parallel.tensor); /* 0: not given */
  const oct_gpu_layout layout = {.visible = g_getenv("CUDA_VISIBLE_DEVICES"),
                                 .order = g_getenv("CUDA_DEVICE_ORDER"),
                                 .n_ranks = oct_parallel_world(&parallel) * m->setup.n_replicas};
  return oct_gpu_memory_free(&layout);
}

/* On GPUs a key of the backend says what is computed in, whatever the files are. */
static gboolean
check_dtype(const maker *m, GError **error) {
  const char *asked = m->options->dtype == NULL ? "auto" : m->options->dtype;
  const char *own = oct_dtype_name(m->model->setup.spec->types.base), *used = own;
  if (strcmp(asked, "half") == 0)
    asked = "float16";
  if (m->on_cuda)
    used = strstr(innermost(m->description), "dtype=float32") != NULL ? "float32" : "bfloat16";
  if (strcmp(asked, "auto") == 0 && strcmp(used, own) != 0 && strcmp(used, "bfloat16") == 0)
    g_ptr_array_add(m->model->setup.warnings,
                    g_strdup_printf("warning: the model's %s is served in %s", own, used));
  if (strcmp(asked, "auto") == 0 || strcmp(asked, used) == 0)
    return TRUE;
  if (strcmp(asked, "float") == 0 || strcmp(asked, "float32") == 0)
    if (m->is_cpu || strcmp(used, "float32") == 0)
      return TRUE;
  if (m->on_cuda)
    return refuse(error, "dtype: \"%s\": --backend %s computes in %s", asked, m->description, used);
  return refuse(error, "dtype: \"%s\": the model's files are %s, and weights are not converted%s",
                asked, own, m->is_cpu ? " but to float32" : "");
}

/* Without a node's profile there is no GPU memory to plan. */
static void
warn_of_unused(const maker *m) {
  const oct_setup_options *o = &m->setup;
  oct_setup_options standard;
  oct_setup_options_default(&standard);
  const struct {
    const char *flag;
    gboolean given;
  } checks[] = {
      {"gpu-memory-utilization", o->gpu_memory_utilization < standard.gpu_memory_utilization ||
                                     o->gpu_memory_utilization > standard.gpu_memory_utilization},
      {"kv-offloading-size", o->kv_offloading_bytes > 0},
      {"swap-space", o->swap_space_bytes > 0},
      {"expert-cache-size", o->expert_cache_bytes > 0},
      {"engine-preset", o->preset != NULL},
  };
  for (gsize i = 0; o->node == NULL && o->device_bytes == 0 && i < G_N_ELEMENTS(checks); i++)
    if (checks[i].given)
      g_ptr_array_add(m->model->setup.warnings,
                      g_strdup_printf("warning: %s has no effect on this backend without --node",
                                      checks[i].flag));
}

/* Of the first group that has pages: a model may begin with recurrent state. */
static guint32
kv_pages(const oct_model_spec *spec, const oct_memory_plan *memory) {
  oct_layer_group groups[OCT_MODEL_GROUPS_MAX];
  guint n = oct_model_groups(spec, OCT_DTYPE_BF16, groups);
  for (guint g = 0; g < n; g++)
    if (groups[g].token_bytes > 0)
      return memory->groups[g].n_device;
  return 0;
}

/* What traffic on a simulated node may have and a server has not. */
static gboolean
refuse_of_replay(const maker *m, GError **error) {
  const oct_setup_options *o = &m->setup;
  if (o->routing_file != NULL || o->routing_balanced)
    return refuse(
        error,
        "expert-routing \"%s%s\": of octet replay and octet plan; a server has uniform "
        "or power:X",
        o->routing_balanced ? "balanced" : "file:", o->routing_balanced ? "" : o->routing_file);
  if (o->n_nodes > 1)
    return refuse(error, "nodes %u: of octet replay; a server has 1", o->n_nodes);
  if (o->router != OCT_ROUTE_LEAST_LOADED)
    return refuse(error, "router \"%s\": of octet replay; a server's is least-loaded",
                  oct_routing_rule_name(o->router));
  if (o->n_prefill > 0)
    return refuse(error, "prefill-replicas %u: of octet replay; a server has 0", o->n_prefill);
  return TRUE;
}

static gboolean
make_setup(maker *m, GError **error) {
  oct_serve_model *model = m->model;
  choose_replicas(m);
  if (m->on_cpu && !count_cpu_pages(m, error))
    return FALSE;
  if (m->on_cuda && m->setup.node == NULL)
    m->setup.device_bytes = gpu_free_bytes(m);
  if (!m->on_cpu && m->options->kv_bytes > 0)
    return refuse(error, "kv-cache-memory-bytes: of --backend cpu; see --gpu-memory-utilization, "
                         "--num-gpu-blocks-override");
  if (*m->setup.engine_preset.name != '\0')
    return refuse(error,
                  "engine \"%s\": replay and plan imitate other engines; this is Octet's own",
                  m->setup.engine_preset.name);
  if (m->setup.weight_type != OCT_DTYPE_NONE)
    return refuse(error, "quantization: weights are served as they are stored; see octet convert");
  if (!refuse_of_replay(m, error))
    return FALSE;
  if (!oct_setup_make(&m->setup, &model->setup, error))
    return FALSE;
  model->has_setup = TRUE;
  model->setup.engine.carry_ids = TRUE;
  if (!needs_no_files(m))
    model->setup.engine.speculation.draft.weights = model->draft_path;
  warn_of_unused(m);
  if (!check_dtype(m, error))
    return FALSE;
  const oct_engine_config *e = &model->setup.engine;
  g_autofree char *what = g_strdup_printf(
      "%s, %u layers, context %u, %u sequences and %u tokens a step, %u KV pages of %u",
      model->setup.spec->architecture, model->setup.spec->n_layers, e->max_model_len,
      e->max_num_seqs, e->max_num_batched_tokens, kv_pages(model->setup.spec, &e->instance.memory),
      e->instance.block_size);
  m->told(m->user, "model", what);
  if (model->setup.draft_spec != NULL) {
    const oct_instance_config *d = &e->speculation.draft;
    g_autofree char *draft = g_strdup_printf(
        "%s, %u layers, %u drafts a step, %u KV pages of %u", model->setup.draft_spec->name,
        model->setup.draft_spec->n_layers, e->speculation.n_tokens,
        kv_pages(model->setup.draft_spec, &d->memory), d->block_size);
    m->told(m->user, "draft", draft);
  }
  return TRUE;
}

/* --- the world -------------------------------------------------------------------------------- */

static char *
simgrid_text(const maker *m) {
  const oct_setup_options *o = &m->setup;
  g_autoptr(GString) text = g_string_new(NULL);
  g_string_append_printf(text, "pace@simgrid:node=%s,seed=%" G_GUINT64_FORMAT, o->node, o->seed);
  if (o->preset != NULL)
    g_string_append_printf(text, ",preset=%s", o->preset);
  if (o->exact)
    g_string_append(text, ",exact=1");
  if (o->moe_kernel != OCT_MOE_KERNEL_MEASURED)
    g_string_append_printf(text, ",moe_kernel=%s", oct_moe_kernel_name(o->moe_kernel));
  if (o->routing_alpha > 0)
    g_string_append_printf(text, ",routing_alpha=%.10g", o->routing_alpha);
  if (o->expert_load)
    g_string_append(text, ",expert_miss=load");
  g_autofree char *rates = oct_speculative_rates(&m->model->setup.speculative);
  if (rates != NULL)
    g_string_append_printf(text, ",accept_rate=%s", rates);
  return g_string_free(g_steal_pointer(&text), FALSE);
}

/* "remote@cuda" or "cpu:threads=4" with the model's files, or with the seed of made-up weights.
 * NULL with *error. */
static char *
with_model(const maker *m, const char *text, GError **error) {
  const char *inner = innermost(text), *format = m->options->load_format;
  gboolean takes = m->on_cpu || m->on_cuda;
  g_autofree char *seed = g_strdup_printf("%" G_GUINT64_FORMAT, m->setup.seed);
  if (!takes || strstr(inner, "model=") != NULL)
    return g_strdup(text);
  if (needs_no_files(m))
    return m->model->seeded ? with_option(text, "seed", seed) : g_strdup(text);
  if (strpbrk(m->model->path, ",@:") != NULL) {
    refuse(error, "backend \"%s\": a path with a comma, a colon or an @ has no place there: %s",
           text, m->model->path);
    return NULL;
  }
  g_autofree char *whole = with_option(text, "model", m->model->path);
  return format != NULL ? with_option(whole, "format", format) : g_steal_pointer(&whole);
}

static oct_world *
cpu_world(const maker *m, GError **error) {
  static const struct {
    const char *name;
    oct_load_format format;
  } formats[] = {{"auto", OCT_LOAD_AUTO},
                 {"safetensors", OCT_LOAD_SAFETENSORS},
                 {"gguf", OCT_LOAD_GGUF},
                 {"dummy", OCT_LOAD_DUMMY}};
  oct_cpu_options options;
  oct_cpu_options_default(&options);
  for (gsize i = 0; m->options->load_format != NULL && i < G_N_ELEMENTS(formats); i++)
    if (strcmp(m->options->load_format, formats[i].name) == 0)
      options.format = formats[i].format;
  options.model = needs_no_files(m) ? NULL : m->model->path;
  options.seed = m->setup.seed;
  options.kv = m->kv_bf16 ? OCT_KV_BF16 : OCT_KV_F32;
  if (m->options->dtype != NULL && g_str_has_prefix(m->options->dtype, "float") &&
      strcmp(m->options->dtype, "float16") != 0)
    options.weights = OCT_CPU_WEIGHTS_FLOAT32;
  return oct_cpu_world_new(&options, error);
}

/* "record:steps=FILE,routing=FILE@" in front of a world's text, where one is wanted. */
static gboolean
add_logs(const maker *m, char **text, GError **error) {
  const struct {
    const char *key, *path;
  } logs[] = {{"steps", m->options->record_steps}, {"routing", m->options->record_routing}};
  g_autoptr(GString) wrapped = g_string_new(NULL);
  for (guint i = 0; i < G_N_ELEMENTS(logs); i++) {
    if (logs[i].path == NULL)
      continue;
    if (*logs[i].path == '\0' || strpbrk(logs[i].path, ",@:") != NULL)
      return refuse(error, "record-%s: \"%s\": a path without a comma, a colon or an @ is needed",
                    logs[i].key, logs[i].path);
    g_string_append_printf(wrapped, "%s%s=%s", wrapped->len == 0 ? "record:" : ",", logs[i].key,
                           logs[i].path);
  }
  if (wrapped->len == 0)
    return TRUE;
  g_string_append_printf(wrapped, "@%s", *text);
  g_free(*text);
  *text = g_string_free(g_steal_pointer(&wrapped), FALSE);
  return TRUE;
}

static gboolean
make_world(maker *m, GError **error) {
  oct_serve_model *model = m->model;
  const char *routing = m->options->record_routing;
  if (routing != NULL && model->imitates)
    return refuse(error,
                  "record-routing: \"%s\": mock and simgrid have no router: the experts that "
                  "they report are made up",
                  routing);
  if (routing != NULL && oct_expert_counts_width(model->setup.spec) == 0)
    return refuse(error, "record-routing: \"%s\": %s has no experts", routing,
                  model->setup.spec->name);
  if (m->is_cpu) {
    const oct_record_options log = {.steps_path = m->options->record_steps,
                                    .routing_path = routing};
    model->world_text = g_strdup("cpu");
    model->world = cpu_world(m, error);
    if (model->world != NULL && (log.steps_path != NULL || routing != NULL))
      model->world = oct_record_world_new(model->world, &log, error);
    return model->world != NULL;
  }
  g_autofree char *rates = oct_speculative_rates(&model->setup.speculative);
  if (m->is_mock)
    model->world_text =
        g_strdup_printf("mock:clock=real,seed=%" G_GUINT64_FORMAT "%s%s", m->setup.seed,
                        rates != NULL ? ",accept_rate=" : "", rates != NULL ? rates : "");
  else if (m->is_simgrid)
    model->world_text = simgrid_text(m);
  else
    model->world_text = with_model(m, m->description, error);
  if (model->world_text == NULL || !add_logs(m, &model->world_text, error))
    return FALSE;
  model->on_thread = strstr(model->world_text, "simgrid:") != NULL;
  if (!model->on_thread)
    model->world = oct_backend_world_new(model->world_text, error);
  return model->on_thread || model->world != NULL;
}

/* --- text ------------------------------------------------------------------------------------- */

static gboolean
has_tokenizer_files(const char *path) {
  static const char *const files[] = {"tokenizer.json", "tiktoken.model"};
  if (g_str_has_suffix(path, ".gguf"))
    return TRUE;
  for (gsize i = 0; i < G_N_ELEMENTS(files); i++) {
    g_autofree char *file = g_build_filename(path, files[i], NULL);
    if (g_file_test(file, G_FILE_TEST_EXISTS))
      return TRUE;
  }
  /* A folder with a .gguf file. */
  g_autoptr(GDir) folder = g_dir_open(path, 0, NULL);
  for (const char *name; folder != NULL && (name = g_dir_read_name(folder)) != NULL;)
    if (g_str_has_suffix(name, ".gguf"))
      return TRUE;
  return FALSE;
}

/* The model takes the byte tokenizer's vocabulary: its own would name tokens that have no text. */
static void
take_bytes(oct_serve_model *model) {
  oct_model_spec *spec = model->setup.spec;
  model->bytes = TRUE;
  model->tokenizer = oct_tokenizer_new_bytes();
  spec->vocab = oct_tokenizer_n_tokens(model->tokenizer);
  spec->bos_token = OCT_MODEL_TOKEN_NONE;
  spec->n_eos_tokens = 1;
  spec->eos_tokens[0] = oct_tokenizer_role(model->tokenizer, OCT_ROLE_EOS);
  if (model->setup.draft_spec != NULL)
    model->setup.draft_spec->vocab = spec->vocab;
}

static gboolean
make_tokenizer(maker *m, GError **error) {
  oct_serve_model *model = m->model;
  const char *path = m->options->tokenizer != NULL ? m->options->tokenizer : model->path;
  if (m->options->skip_tokenizer) {
    m->told(m->user, "tokenizer", "none: token ids in, token ids out");
    return TRUE;
  }
  gboolean asked = m->options->tokenizer != NULL;
  if (asked || (!model->in_zoo && has_tokenizer_files(path)))
    model->tokenizer = oct_tokenizer_open(path, error);
  else if (needs_no_files(m))
    take_bytes(model);
  else
    return refuse(error,
                  "%s has no tokenizer.json and no tiktoken.model: --tokenizer, or "
                  "--skip-tokenizer-init for token ids",
                  path);
  if (model->tokenizer == NULL)
    return FALSE;
  g_autofree char *what = g_strdup_printf("%u tokens%s", oct_tokenizer_n_tokens(model->tokenizer),
                                          model->bytes ? ", of bytes: the model has no own" : "");
  m->told(m->user, "tokenizer", what);
  return TRUE;
}

static gboolean
make_renderer(maker *m, GError **error) {
  oct_serve_model *model = m->model;
  const char *asked = m->options->chat_template;
  g_autofree char *text = NULL;
  g_autoptr(GError) why = NULL;
  if (model->tokenizer == NULL) {
    model->no_chat = g_strdup("the server has no tokenizer (--skip-tokenizer-init)");
    return TRUE;
  }
  if (asked != NULL && g_file_test(asked, G_FILE_TEST_EXISTS) &&
      !oct_file_read(asked, OCT_TEMPLATE_BYTES_MAX, &text, NULL, error)) {
    g_prefix_error(error, "chat-template %s: ", asked);
    return FALSE;
  }
  model->renderer = oct_chat_renderer_new(model->tokenizer, text != NULL ? text : asked, &why);
  if (model->renderer == NULL && asked != NULL) {
    g_propagate_prefixed_error(error, g_steal_pointer(&why), "chat-template %s: ", asked);
    return FALSE;
  }
  if (model->renderer == NULL)
    model->no_chat = g_strdup(why->message);
  m->told(m->user, "chat",
          model->renderer != NULL ? oct_chat_family_name(oct_chat_renderer_family(model->renderer))
                                  : model->no_chat);
  return TRUE;
}

static gboolean
choose_parser(maker *m, GError **error) {
  const oct_serve_options *o = m->options;
  oct_serve_model *model = m->model;
  model->family = model->renderer != NULL
                      ? oct_api_parse_family(oct_chat_renderer_family(model->renderer))
                      : OCT_PARSE_PLAIN;
  return oct_serve_parser_choose(o->tool_parser, o->reasoning_parser, &model->family, error);
}

static gboolean
choose_pooling(maker *m, GError **error) {
  static const char *const names[] = {"none", "last", "mean"};
  const char *asked = m->options->pooling;
  m->model->pooling = OCT_API_POOL_LAST;
  for (gsize i = 0; asked != NULL && i < G_N_ELEMENTS(names); i++)
    if (strcmp(asked, names[i]) == 0) {
      m->model->pooling = (oct_api_pooling)i;
      return TRUE;
    }
  return asked == NULL || refuse(error, "pooling: \"%s\": none, last or mean", asked);
}

/* --- the whole -------------------------------------------------------------------------------- */

static gboolean
read_flags(maker *m, GError **error) {
  oct_setup_options_default(&m->setup);
  m->setup.n_replicas = 0; /* until it is given */
  m->setup.description = "cpu";
  m->setup.seed = G_MAXUINT64; /* no --seed has this value */
  m->setup.engine.instance.kv_dtype = OCT_DTYPE_NONE;
  if (!oct_engine_flags_single(m->options->flags, error) ||
      !oct_engine_flags_apply(m->options->flags, 0, &m->setup, NULL, NULL, error))
    return FALSE;
  m->kv_bf16 = m->setup.engine.instance.kv_dtype == OCT_DTYPE_BF16;
  if (m->setup.engine.instance.kv_dtype == OCT_DTYPE_NONE)
    m->setup.engine.instance.kv_dtype = OCT_DTYPE_BF16;
  m->model->seeded = m->setup.seed != G_MAXUINT64;
  if (!m->model->seeded)
    m->setup.seed = 1;
  return TRUE;
}

gboolean
oct_serve_model_open(oct_serve_model *model, const oct_serve_options *options, oct_serve_told told,
                     void *user, GError **error) {
  maker m = {.model = model, .options = options, .told = told, .user = user};
  *model = (oct_serve_model){0};
  gboolean good = read_flags(&m, error);
  good = good && choose_backend(&m, error) && find_model(&m, error) && find_draft(&m, error) &&
         make_setup(&m, error) && make_tokenizer(&m, error) && make_renderer(&m, error) &&
         choose_parser(&m, error) && choose_pooling(&m, error) && make_world(&m, error);
  g_free(m.description);
  return good;
}

void
oct_serve_model_clear(oct_serve_model *model) {
  oct_world_free(model->world);
  oct_chat_renderer_free(model->renderer);
  oct_tokenizer_free(model->tokenizer);
  if (model->has_setup)
    oct_setup_clear(&model->setup);
  g_free(model->name);
  g_free(model->path);
  g_free(model->draft_path);
  g_free(model->root);
  g_free(model->world_text);
  g_free(model->no_chat);
}
