/* Worlds by name. A row per backend: its keys and the function that makes a world of them. */
#include "config.h"

#include "backends/registry.h"

#include <string.h>

#include "backends/cpu/cpu.h"
#include "backends/cuda/cuda.h"
#include "backends/fault/fault.h"
#include "backends/mock/mock.h"
#include "backends/pace/pace.h"
#include "backends/record/record.h"
#include "backends/remote/remote.h"
#ifdef HAVE_SIMGRID
#include "backends/simgrid/simgrid.h"
#endif

/* ---------------------------------------------------------------- options */

/* The options of one name, whose keys are all in its row. */
typedef struct key_list {
  const char *backend;
  char **pairs; /* key, value, key, value … NULL */
} key_list;

static const char *
value_of(const key_list *keys, const char *key) {
  for (char **p = keys->pairs; p[0] != NULL; p += 2)
    if (strcmp(p[0], key) == 0)
      return p[1];
  return NULL;
}

static gboolean
refuse(const key_list *keys, const char *key, const char *wanted, GError **error) {
  g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_CONFIG, "%s: %s is \"%s\", must be %s",
              keys->backend, key, value_of(keys, key), wanted);
  return FALSE;
}

/* Leaves *value alone when the key is not given. */
static gboolean
take_i64(const key_list *keys, const char *key, gint64 low, gint64 high, gint64 *value,
         GError **error) {
  const char *text = value_of(keys, key);
  if (text == NULL || g_ascii_string_to_signed(text, 10, low, high, value, NULL))
    return TRUE;
  g_autofree char *wanted =
      g_strdup_printf("an integer from %" G_GINT64_FORMAT " to %" G_GINT64_FORMAT, low, high);
  return refuse(keys, key, wanted, error);
}

static gboolean
take_u64(const key_list *keys, const char *key, guint64 *value, GError **error) {
  const char *text = value_of(keys, key);
  if (text == NULL || g_ascii_string_to_unsigned(text, 10, 0, G_MAXUINT64, value, NULL))
    return TRUE;
  return refuse(keys, key, "an unsigned integer", error);
}

static gboolean
take_u32(const key_list *keys, const char *key, guint32 high, guint32 *value, GError **error) {
  gint64 wide = *value;
  if (!take_i64(keys, key, 0, high, &wide, error))
    return FALSE;
  *value = (guint32)wide;
  return TRUE;
}

static gboolean
take_double(const key_list *keys, const char *key, double low, double high, double *value,
            GError **error) {
  const char *text = value_of(keys, key);
  if (text == NULL)
    return TRUE;
  char *end;
  double parsed = g_ascii_strtod(text, &end);
  if (*text != '\0' && *end == '\0' && parsed >= low && parsed <= high) {
    *value = parsed;
    return TRUE;
  }
  g_autofree char *wanted = g_strdup_printf("a number from %g to %g", low, high);
  return refuse(keys, key, wanted, error);
}

/* One of the words. */
static gboolean
take_word(const key_list *keys, const char *key, const char *const *words, guint *index,
          GError **error) {
  const char *text = value_of(keys, key);
  if (text == NULL)
    return TRUE;
  for (guint i = 0; words[i] != NULL; i++)
    if (strcmp(words[i], text) == 0) {
      *index = i;
      return TRUE;
    }
  g_autofree char *wanted = g_strjoinv(" or ", (char **)words);
  return refuse(keys, key, wanted, error);
}

static const char *
take_file(const key_list *keys, GError **error) {
  const char *path = value_of(keys, "file");
  if (path == NULL || *path == '\0')
    g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_CONFIG,
                "%s needs file=PATH of the recording", keys->backend);
  return path == NULL || *path == '\0' ? NULL : path;
}

/* ---------------------------------------------------------------- mock */

#define HOUR_NS (3600 * (gint64)1000000000)

static const oct_backend_key mock_keys[] = {
    {"clock", "virtual or real (default virtual)"},
    {"seed", "of token streams and routing (default 1)"},
    {"fixed_ns", "time of a step on each stage (default 1000000)"},
    {"token_ns", "and for each token (default 1000)"},
    {"sequence_ns", "and for each sequence (default 10000)"},
    {"context_ns", "and for each token of context, a fraction (default 0)"},
    {"send_ns", "between two stages (default 0)"},
    {"host_ns", "from submission until a step may begin (default 0)"},
    {"copy_page_ns", "to copy a page (default 10000)"},
    {"copy_state_ns", "to copy a state (default 10000)"},
    {"copy_expert_ns", "to load an expert (default 10000)"},
    {"expert_miss_ns", "for each expert used that is not resident (default 10000)"},
    {"accept_rate", "chance of a draft, 0 to 1, or chances by its place, with + between (default: "
                    "drafts are compared)"},
    {"accept_script", "or: how many tokens of each verify slice are accepted, with + between"},
    {"repeat", "of a sequence's tokens three of four are what stood so many before (default 0)"},
    {"expert_skew", "0 = uniform routing, above: towards some experts (default 0)"},
    {"open_ns", "time to open an instance (default 0)"},
    {"open_failures", "the first so many openings fail (default 0)"},
    {"devices", "in the world, 0 = as many as asked for (default 0)"},
    {"depth", "most unfinished steps, 0 = as asked for (default 0)"},
    {NULL, NULL}};

static gboolean
take_accept_script(const key_list *keys, oct_shadow_options *o, GError **error) {
  const char *text = value_of(keys, "accept_script");
  g_auto(GStrv) counts = g_strsplit(text != NULL ? text : "", "+", -1);
  for (char **c = counts; *c != NULL; c++) {
    guint64 count;
    if (o->n_accept_script == OCT_SHADOW_SCRIPT_MAX ||
        !g_ascii_string_to_unsigned(*c, 10, 1, OCT_VERIFY_TOKENS_MAX, &count, NULL))
      return refuse(keys, "accept_script", "at most 16 counts of 1 to 16", error);
    o->accept_script[o->n_accept_script++] = (guint8)count;
  }
  return TRUE;
}

static gboolean
take_accept_rates(const key_list *keys, oct_shadow_options *o, GError **error) {
  const char *text = value_of(keys, "accept_rate");
  g_auto(GStrv) rates = g_strsplit(text != NULL ? text : "", "+", -1);
  for (char **r = rates; *r != NULL; r++) {
    char *end;
    double rate = g_ascii_strtod(*r, &end);
    if (o->n_accept_at == G_N_ELEMENTS(o->accept_at) || end == *r || *end != '\0' ||
        !(rate >= 0 && rate <= 1))
      return refuse(keys, "accept_rate", "a number from 0 to 1, or up to 16 with + between", error);
    o->accept_at[o->n_accept_at++] = rate;
  }
  return TRUE;
}

static oct_world *
make_mock(const key_list *keys, const char *inner, GError **error) {
  static const char *const clocks[] = {"virtual", "real", NULL};
  (void)inner;
  oct_mock_options o;
  oct_mock_options_default(&o);
  guint clock = 0;
  gint64 open_ns = 0;
  const struct {
    const char *key;
    gint64 *value;
  } times[] = {{"fixed_ns", &o.fixed_ns},
               {"token_ns", &o.token_ns},
               {"sequence_ns", &o.sequence_ns},
               {"send_ns", &o.send_ns},
               {"host_ns", &o.host_ns},
               {"copy_page_ns", &o.copy_page_ns},
               {"copy_state_ns", &o.copy_state_ns},
               {"copy_expert_ns", &o.copy_expert_ns},
               {"expert_miss_ns", &o.expert_miss_ns},
               {"open_ns", &open_ns}};
  for (gsize i = 0; i < G_N_ELEMENTS(times); i++)
    if (!take_i64(keys, times[i].key, 0, HOUR_NS, times[i].value, error))
      return NULL;
  if (!take_word(keys, "clock", clocks, &clock, error) ||
      !take_u64(keys, "seed", &o.shadow.seed, error) ||
      !take_double(keys, "context_ns", 0, 1e6, &o.context_ns, error) ||
      !take_accept_rates(keys, &o.shadow, error) ||
      !take_u32(keys, "repeat", 1u << 20, &o.shadow.repeat, error) ||
      !take_accept_script(keys, &o.shadow, error) ||
      !take_double(keys, "expert_skew", 0, 100, &o.shadow.expert_skew, error) ||
      !take_u32(keys, "open_failures", 1000000, &o.n_open_failures, error) ||
      !take_u32(keys, "devices", 65536, &o.n_devices, error) ||
      !take_u32(keys, "depth", 64, &o.depth_max, error))
    return NULL;
  o.clock = clock == 1 ? OCT_CLOCK_REAL : OCT_CLOCK_VIRTUAL;
  if (open_ns > 0) {
    o.n_phases = 1;
    o.phases[0] = (oct_mock_phase){"weights", open_ns};
  }
  return oct_mock_world_new(&o, error);
}

/* ---------------------------------------------------------------- fault */

static const oct_backend_key fault_keys[] = {
    {"seed", "of the chances (default 1)"},
    {"rate", "chance of each step, copy and opening to go wrong, 0 to 1 (default 0)"},
    {"kinds", "what may happen by chance, with + between (default: all)"},
    {"script", "kind/number or kind/number/instance, with + between: what happens for certain"},
    {"delay_ns", "of delays and failures (default 1000000)"},
    {"late_ns", "of late events (default 10000000000)"},
    {NULL, NULL}};

static gboolean
take_kind(const key_list *keys, const char *key, const char *name, oct_inject *kind,
          GError **error) {
  *kind = oct_inject_from_name(name);
  if (*kind < OCT_INJECT_COUNT)
    return TRUE;
  g_autoptr(GString) wanted = g_string_new("of kinds");
  for (guint k = 0; k < OCT_INJECT_COUNT; k++)
    g_string_append_printf(wanted, " %s", oct_inject_name((oct_inject)k));
  return refuse(keys, key, wanted->str, error);
}

static gboolean
take_kinds(const key_list *keys, guint32 *mask, GError **error) {
  const char *text = value_of(keys, "kinds");
  *mask = (1u << OCT_INJECT_COUNT) - 1;
  if (text == NULL)
    return TRUE;
  *mask = 0;
  g_auto(GStrv) names = g_strsplit(text, "+", -1);
  for (char **name = names; *name != NULL; name++) {
    oct_inject kind;
    if (!take_kind(keys, "kinds", *name, &kind, error))
      return FALSE;
    *mask |= 1u << kind;
  }
  return TRUE;
}

static gboolean
take_script(const key_list *keys, oct_fault_options *o, GError **error) {
  const char *text = value_of(keys, "script");
  if (text == NULL)
    return TRUE;
  g_auto(GStrv) lines = g_strsplit(text, "+", -1);
  for (char **line = lines; *line != NULL; line++) {
    g_auto(GStrv) parts = g_strsplit(*line, "/", -1);
    guint n = g_strv_length(parts);
    guint64 at = 0, instance = 0;
    if (n < 2 || n > 3 || !g_ascii_string_to_unsigned(parts[1], 10, 1, G_MAXUINT64, &at, NULL) ||
        (n == 3 && !g_ascii_string_to_unsigned(parts[2], 10, 0, G_MAXUINT32, &instance, NULL)) ||
        o->n_script == OCT_INJECT_SCRIPT_MAX)
      return refuse(keys, "script", "at most 64 of kind/number or kind/number/instance", error);
    oct_inject_line *to = &o->script[o->n_script++];
    to->at = at;
    to->instance = (guint32)instance;
    if (!take_kind(keys, "script", parts[0], &to->kind, error))
      return FALSE;
  }
  return TRUE;
}

static oct_world *
make_fault(const key_list *keys, const char *inner, GError **error) {
  oct_fault_options o;
  oct_fault_options_default(&o);
  if (!take_u64(keys, "seed", &o.seed, error) || !take_double(keys, "rate", 0, 1, &o.rate, error) ||
      !take_kinds(keys, &o.kinds, error) || !take_script(keys, &o, error) ||
      !take_i64(keys, "delay_ns", 0, HOUR_NS, &o.delay_ns, error) ||
      !take_i64(keys, "late_ns", 0, HOUR_NS, &o.late_ns, error))
    return NULL;
  oct_world *world = oct_backend_world_new(inner, error);
  return world == NULL ? NULL : oct_fault_world_new(world, &o, error);
}

/* ---------------------------------------------------------------- record and replay */

static const oct_backend_key record_keys[] = {
    {"file", "the recording, created or emptied"},
    {"flush", "0 or 1: every entry is written at once (default 0)"},
    {"steps", "a log of every step, for octet validate --steps; beside file or instead"},
    {"routing", "how often each expert was chosen, for octet replay --expert-routing; likewise"},
    {NULL, NULL}};

static oct_world *
make_record(const key_list *keys, const char *inner, GError **error) {
  oct_record_options o = {.steps_path = value_of(keys, "steps"),
                          .routing_path = value_of(keys, "routing")};
  guint32 flush = 0;
  if (o.steps_path != NULL && *o.steps_path == '\0')
    return refuse(keys, "steps", "a path", error), NULL;
  if (o.routing_path != NULL && *o.routing_path == '\0')
    return refuse(keys, "routing", "a path", error), NULL;
  if ((o.steps_path == NULL && o.routing_path == NULL) || value_of(keys, "file") != NULL) {
    o.path = take_file(keys, error);
    if (o.path == NULL)
      return NULL;
  }
  if (!take_u32(keys, "flush", 1, &flush, error))
    return NULL;
  o.flush = flush != 0;
  oct_world *world = oct_backend_world_new(inner, error);
  return world == NULL ? NULL : oct_record_world_new(world, &o, error);
}

static const oct_backend_key replay_keys[] = {{"file", "the recording"}, {NULL, NULL}};

static oct_world *
make_replay(const key_list *keys, const char *inner, GError **error) {
  (void)inner;
  const char *path = take_file(keys, error);
  return path == NULL ? NULL : oct_replay_world_new(path, error);
}

/* ---------------------------------------------------------------- pace */

static const oct_backend_key pace_keys[] = {{NULL, NULL}};

static oct_world *
make_pace(const key_list *keys, const char *inner, GError **error) {
  (void)keys;
  oct_world *world = oct_backend_world_new(inner, error);
  return world == NULL ? NULL : oct_pace_world_new(world, error);
}

/* ---------------------------------------------------------------- simgrid */

#ifdef HAVE_SIMGRID
static const oct_backend_key simgrid_keys[] = {
    {"node", "name of a profile, or path of an .ini file"},
    {"preset", "host times (default: the profile's)"},
    {"seed", "of token streams and routing (default 1)"},
    {"exact", "0 or 1: every step through the solver (default 0)"},
    {"load_weights", "0 or 1: opening takes the time that weights take over PCIe (default 0)"},
    {"moe_kernel", "measured, target or own (default measured)"},
    {"routing_alpha", "popularity of experts ~ rank^-alpha, 0 to 4 (default 0)"},
    {"expert_miss", "read or load (default read)"},
    {"host_socket", "of every host buffer (default: of the GPU that copies)"},
    {"accept_rate", "chance of a draft, as mock's (default: drafts are compared)"},
    {NULL, NULL}};

static oct_world *
make_simgrid(const key_list *keys, const char *inner, GError **error) {
  static const char *const kernels[] = {"measured", "target", "own", NULL};
  static const char *const misses[] = {"read", "load", NULL};
  (void)inner;
  oct_simgrid_options o = OCT_SIMGRID_OPTIONS_DEFAULT;
  guint kernel = 0, miss = 0;
  guint32 exact = 0, weights = 0;
  gint64 socket = -1;
  o.seed = 1;
  const char *node = value_of(keys, "node");
  if (node == NULL) {
    g_set_error_literal(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_CONFIG,
                        "simgrid needs node=PROFILE");
    return NULL;
  }
  oct_shadow_options shadow;
  oct_shadow_options_default(&shadow);
  o.shadow = &shadow;
  if (!take_u64(keys, "seed", &o.seed, error) || !take_u32(keys, "exact", 1, &exact, error) ||
      !take_accept_rates(keys, &shadow, error) ||
      !take_u32(keys, "load_weights", 1, &weights, error) ||
      !take_word(keys, "moe_kernel", kernels, &kernel, error) ||
      !take_double(keys, "routing_alpha", 0, 4, &o.routing_alpha, error) ||
      !take_word(keys, "expert_miss", misses, &miss, error) ||
      !take_i64(keys, "host_socket", 0, OCT_PLATFORM_SOCKETS_MAX - 1, &socket, error))
    return NULL;
  g_autoptr(oct_profile) profile = oct_profile_load(node, NULL, value_of(keys, "preset"), error);
  if (profile == NULL)
    return NULL;
  o.profile = profile;
  o.exact = exact != 0;
  o.load_weights = weights != 0;
  o.moe_kernel = (oct_moe_kernel)kernel;
  o.expert_miss = miss == 1 ? OCT_EXPERT_MISS_LOAD : OCT_EXPERT_MISS_READ;
  o.host_socket = (gint)socket;
  oct_world *world = oct_simgrid_world_new(&o, error);
  if (world != NULL)
    oct_simgrid_own_profile(world, g_steal_pointer(&profile));
  return world;
}
#endif

/* ---------------------------------------------------------------- remote */

static const oct_backend_key remote_keys[] = {
    {"heartbeat_ns", "the worker shows life at least this often (default 50000000)"},
    {"hang_ns", "silence that is taken for its death, 4 heartbeats or more (default 10000000000)"},
    {"start_ns", "longest time to make its world (default 60000000000)"},
    {"restarts", "workers after the first (default 3)"},
    {"ring_bytes", "of each direction, a power of two (default 16777216)"},
    {NULL, NULL}};

static oct_world *
make_described(void *description, GError **error) {
  return oct_backend_world_new(description, error);
}

static oct_world *
make_remote(const key_list *keys, const char *inner, GError **error) {
  oct_remote_options o;
  oct_remote_options_default(&o);
  if (!take_i64(keys, "heartbeat_ns", 1, HOUR_NS, &o.heartbeat_ns, error) ||
      !take_i64(keys, "hang_ns", 1, HOUR_NS, &o.hang_ns, error) ||
      !take_i64(keys, "start_ns", 1, HOUR_NS, &o.start_ns, error) ||
      !take_u32(keys, "restarts", 1000000, &o.restarts, error) ||
      !take_u32(keys, "ring_bytes", 1u << 30, &o.ring_bytes, error))
    return NULL;
  /* The keeper has its own copy of the description. */
  return oct_remote_world_new(make_described, (void *)(gsize)inner, &o, error);
}

/* ---------------------------------------------------------------- cpu */

static const oct_backend_key cpu_keys[] = {
    {"model", "checkpoint file or folder (default: random weights in the shapes of the model)"},
    {"format", "auto, safetensors or gguf (default auto)"},
    {"seed", "of random weights (default 1)"},
    {"threads", "of an instance, 0 = one per processor (default 0)"},
    {"kv", "float32 or bfloat16: the cache's storage (default float32)"},
    {"weights", "mapped, copied or float32: where they are read (default copied up to 2 GiB)"},
    {"latents", "absorbed or expanded form of latent attention (default absorbed)"},
    {"clock", "real or virtual (default real)"},
    {"fixed_ns", "virtual clock: time of a step (default 1000000)"},
    {"token_ns", "virtual clock: and for each token (default 10000)"},
    {"copy_ns", "virtual clock: to copy a page or state (default 10000)"},
    {NULL, NULL}};

static oct_world *
make_cpu(const key_list *keys, const char *inner, GError **error) {
  static const char *const formats[] = {"auto", "safetensors", "gguf", NULL};
  static const char *const kvs[] = {"float32", "bfloat16", NULL};
  static const char *const weights[] = {"auto", "mapped", "copied", "float32", NULL};
  static const char *const latents[] = {"absorbed", "expanded", NULL};
  static const char *const clocks[] = {"real", "virtual", NULL};
  static const oct_load_format load[] = {OCT_LOAD_AUTO, OCT_LOAD_SAFETENSORS, OCT_LOAD_GGUF};
  (void)inner;
  oct_cpu_options o;
  oct_cpu_options_default(&o);
  guint format = 0, kv = 0, weight = 0, latent = 0, clock = 0;
  o.model = value_of(keys, "model");
  if (!take_word(keys, "format", formats, &format, error) ||
      !take_u64(keys, "seed", &o.seed, error) ||
      !take_u32(keys, "threads", 256, &o.threads, error) ||
      !take_word(keys, "kv", kvs, &kv, error) ||
      !take_word(keys, "weights", weights, &weight, error) ||
      !take_word(keys, "latents", latents, &latent, error) ||
      !take_word(keys, "clock", clocks, &clock, error) ||
      !take_i64(keys, "fixed_ns", 1, HOUR_NS, &o.fixed_ns, error) ||
      !take_i64(keys, "token_ns", 0, 1000000000, &o.token_ns, error) ||
      !take_i64(keys, "copy_ns", 1, 1000000000, &o.copy_ns, error))
    return NULL;
  o.format = load[format];
  o.kv = kv == 1 ? OCT_KV_BF16 : OCT_KV_F32;
  o.weights = (oct_cpu_weights)weight;
  o.expanded_latents = latent == 1;
  o.clock = clock == 1 ? OCT_CLOCK_VIRTUAL : OCT_CLOCK_REAL;
  return oct_cpu_world_new(&o, error);
}

/* ---------------------------------------------------------------- cuda */

static const oct_backend_key cuda_keys[] = {
    {"model", "checkpoint file or folder (default: random weights in the shapes of the model)"},
    {"format", "auto, safetensors or gguf (default auto)"},
    {"seed", "of random weights (default 1)"},
    {"dtype", "bfloat16 or float32: weights, activations and cache (default bfloat16)"},
    {"fixed_order", "0 or 1: equal bits whatever the batch (default 0)"},
    {"fp8_inputs", "0 or 1: products of more than 64 tokens with fp8 weights round their inputs to "
                   "fp8 too, a scale for each token (default 0)"},
    {"overlap", "kernels begin while others end in steps of up to so many tokens (default 64)"},
    {"expand",
     "latent attention makes keys and values for a sequence of so many new tokens or more, "
     "and works on latents for others; 0: for all (default 256)"},
    {"expand_keys", "for so many positions at a time, rounded up to whole pages (default 8192)"},
    {"nvls", "0 or 1: NVLink multicast for collectives (default 0)"},
    {"devices", "of the world, 0 to 64: beyond the GPUs they are taken round by round (default: "
                "the GPUs)"},
    {"deadline_ns", "of every wait for a device (default 30000000000)"},
    {"exit_on_loss", "0 or 1: the process ends with a lost instance, for remote@ (default 0)"},
    {"fault_step", "for tests: in this step a rank writes where no memory is (default 0: never)"},
    {"fault_open", "0 or 1: in every opening, too (default 0)"},
    {"fault_rank", "which (default 0)"},
    {"fault_hang", "0 or 1: it stands still instead, for twice the deadline (default 0)"},
    {NULL, NULL}};

#ifdef HAVE_CUDA
static oct_world *
make_cuda(const key_list *keys, const char *inner, GError **error) {
  static const char *const formats[] = {"auto", "safetensors", "gguf", NULL};
  static const char *const dtypes[] = {"bfloat16", "float32", NULL};
  static const oct_load_format load[] = {OCT_LOAD_AUTO, OCT_LOAD_SAFETENSORS, OCT_LOAD_GGUF};
  (void)inner;
  oct_cuda_options o;
  oct_cuda_options_default(&o);
  guint format = 0, dtype = 0;
  guint32 fixed_order = 0, fp8_inputs = 0, nvls = 0, exit_on_loss = 0, in_opening = 0, hang = 0;
  o.model = value_of(keys, "model");
  if (!take_word(keys, "format", formats, &format, error) ||
      !take_u64(keys, "seed", &o.seed, error) || !take_word(keys, "dtype", dtypes, &dtype, error) ||
      !take_u32(keys, "fixed_order", 1, &fixed_order, error) ||
      !take_u32(keys, "fp8_inputs", 1, &fp8_inputs, error) ||
      !take_u32(keys, "overlap", G_MAXUINT32, &o.overlap, error) ||
      !take_u32(keys, "expand", G_MAXUINT32, &o.expand, error) ||
      !take_u32(keys, "expand_keys", 1 << 20, &o.expand_keys, error) ||
      !take_u32(keys, "nvls", 1, &nvls, error) ||
      !take_u32(keys, "devices", OCT_CUDA_DEVICES_MAX, &o.devices, error) ||
      !take_i64(keys, "deadline_ns", 1, HOUR_NS, &o.deadline_ns, error) ||
      !take_u32(keys, "exit_on_loss", 1, &exit_on_loss, error) ||
      !take_u64(keys, "fault_step", &o.fault_step, error) ||
      !take_u32(keys, "fault_open", 1, &in_opening, error) ||
      !take_u32(keys, "fault_rank", OCT_CUDA_DEVICES_MAX - 1, &o.fault_rank, error) ||
      !take_u32(keys, "fault_hang", 1, &hang, error))
    return NULL;
  o.fault_open = in_opening != 0;
  o.fault_hang = hang != 0;
  o.exit_on_loss = exit_on_loss != 0;
  o.format = load[format];
  o.float32 = dtype == 1;
  o.fixed_order = fixed_order != 0;
  o.fp8_inputs = fp8_inputs != 0;
  o.nvls = nvls != 0;
  return oct_cuda_world_new(&o, error);
}
#else
#define make_cuda NULL /* its keys are known all the same */
#endif

/* ---------------------------------------------------------------- the table */

static const struct {
  oct_backend_info info;
  oct_world *(*make)(const key_list *keys, const char *inner, GError **error); /* NULL: cuda is not
                                                                                  built in */
} backends[] = {
    {{"mock", "no device: deterministic tokens, times from a table", FALSE, mock_keys}, make_mock},
    {{"cpu", "real tokens from real weights, on this machine's processors", FALSE, cpu_keys},
     make_cpu},
    {{"cuda", "NVIDIA GPUs", FALSE, cuda_keys}, make_cuda},
    {{"fault", "goes wrong, by seed or by script", TRUE, fault_keys}, make_fault},
    {{"record", "writes every call and event to a file", TRUE, record_keys}, make_record},
    {{"replay", "answers from a recording", FALSE, replay_keys}, make_replay},
    {{"pace", "holds a virtual clock back to real time", TRUE, pace_keys}, make_pace},
    {{"remote", "runs a real-clock world in a worker process", TRUE, remote_keys}, make_remote},
#ifdef HAVE_SIMGRID
    {{"simgrid", "a simulated node: one world per process", FALSE, simgrid_keys}, make_simgrid},
#endif
};

const oct_backend_info *
oct_backend_info_at(guint i) {
  return i < G_N_ELEMENTS(backends) ? &backends[i].info : NULL;
}

static void
refuse_name(const char *name, GError **error) {
  g_autoptr(GString) known = g_string_new(NULL);
  for (gsize i = 0; i < G_N_ELEMENTS(backends); i++)
    g_string_append_printf(known, " %s", backends[i].info.name);
  g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_CONFIG, "no backend \"%s\"; there are:%s",
              name, known->str);
}

/* Splits "key=value,key=value" into pairs; every key must be the row's, and there once. */
static char **
split_keys(const oct_backend_info *info, const char *text, GError **error) {
  g_autoptr(GPtrArray) pairs = g_ptr_array_new_with_free_func(g_free);
  g_auto(GStrv) options = g_strsplit(text, ",", -1);
  for (char **o = options; *o != NULL && *text != '\0'; o++) {
    char *equals = strchr(*o, '=');
    g_autofree char *key = equals != NULL ? g_strndup(*o, (gsize)(equals - *o)) : g_strdup(*o);
    const oct_backend_key *known = info->keys;
    while (known->name != NULL && strcmp(known->name, key) != 0)
      known++;
    gboolean twice = FALSE;
    for (guint i = 0; i < pairs->len; i += 2)
      twice |= strcmp(pairs->pdata[i], key) == 0;
    if (known->name == NULL || equals == NULL || twice) {
      g_autoptr(GString) all = g_string_new(NULL);
      for (const oct_backend_key *k = info->keys; k->name != NULL; k++)
        g_string_append_printf(all, " %s", k->name);
      g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_CONFIG,
                  "%s: option \"%s\" %s; there are:%s", info->name, *o,
                  twice                 ? "is given twice"
                  : known->name == NULL ? "is not known"
                                        : "has no value",
                  all->str);
      return NULL;
    }
    g_ptr_array_add(pairs, g_steal_pointer(&key));
    g_ptr_array_add(pairs, g_strdup(equals + 1));
  }
  g_ptr_array_add(pairs, NULL);
  return (char **)g_ptr_array_free(g_steal_pointer(&pairs), FALSE);
}

/* The outermost world of a description: its row, its keys, and what stands behind its "@" (NULL:
 * nothing does). Keys are owned. */
typedef struct outermost {
  gsize row;
  char **pairs;
  const char *inner;
} outermost;

static gboolean
read_outermost(const char *description, outermost *out, GError **error) {
  const char *at = strchr(description, '@');
  g_autofree char *own =
      at != NULL ? g_strndup(description, (gsize)(at - description)) : g_strdup(description);
  char *colon = strchr(own, ':');
  if (colon != NULL)
    *colon = '\0';
  gsize row = 0;
  while (row < G_N_ELEMENTS(backends) && strcmp(backends[row].info.name, own) != 0)
    row++;
  if (row == G_N_ELEMENTS(backends)) {
    refuse_name(own, error);
    return FALSE;
  }
  const oct_backend_info *info = &backends[row].info;
  if (info->wraps != (at != NULL)) {
    g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_CONFIG,
                info->wraps ? "%s wraps another backend: %s@NAME" : "%s wraps nothing: not %s@",
                info->name, info->name);
    return FALSE;
  }
  out->row = row;
  out->inner = at != NULL ? at + 1 : NULL;
  out->pairs = split_keys(info, colon != NULL ? colon + 1 : "", error);
  if (out->pairs == NULL || backends[row].make != NULL)
    return out->pairs != NULL;
  g_clear_pointer(&out->pairs, g_strfreev);
  g_set_error_literal(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_DEVICE,
                      "cuda: this program was built without CUDA: configure --with-cuda=DIR");
  return FALSE;
}

static gboolean
check_size(const char *description, GError **error) {
  guint depth = 0;
  for (const char *c = description; *c != '\0'; c++)
    depth += *c == '@';
  if (strlen(description) <= OCT_BACKEND_TEXT_MAX && depth < OCT_BACKEND_DEPTH_MAX)
    return TRUE;
  g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_CONFIG,
              "backend of %" G_GSIZE_FORMAT " characters with %u \"@\", limits %u and %u",
              strlen(description), depth, OCT_BACKEND_TEXT_MAX, OCT_BACKEND_DEPTH_MAX - 1);
  return FALSE;
}

gboolean
oct_backend_check(const char *description, GError **error) {
  if (!check_size(description, error))
    return FALSE;
  for (outermost o = {.inner = description}; o.inner != NULL; g_strfreev(o.pairs))
    if (!read_outermost(o.inner, &o, error))
      return FALSE;
  return TRUE;
}

oct_world *
oct_backend_world_new(const char *description, GError **error) {
  outermost o;
  if (!check_size(description, error) || !read_outermost(description, &o, error))
    return NULL;
  key_list keys = {backends[o.row].info.name, o.pairs};
  oct_world *world = backends[o.row].make(&keys, o.inner, error);
  g_strfreev(o.pairs);
  return world;
}
