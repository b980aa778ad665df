#include "cli/serve-options.h"

#include <string.h>

#include "cli/cli.h"
#include "cli/config-file.h"

#define COMMAND     "serve"
#define NO_PORT     G_MININT /* none was given */
#define OWN_MAX     64
#define ENTRIES_MAX (OCT_ENGINE_FLAGS_MAX + OWN_MAX + OCT_LIMIT_COUNT)

/* --- flags that others have and this program cannot honour ------------------------------------ */

#define PROXY   "TLS, CORS and paths are a proxy's in front: doc/operations.md"
#define LOGGING "there is no uvicorn; see --enable-log-requests, --disable-access-log"
#define ADAPTER "adapters (LoRA) are not served"
#define NODES   "one process on one node serves; see --data-parallel-size"
#define MEDIA   "text is served only"

static const struct {
  const char *name, *reason;
} refused[] = {
    {"ssl-keyfile", PROXY},
    {"ssl-certfile", PROXY},
    {"ssl-ca-certs", PROXY},
    {"ssl-cert-reqs", PROXY},
    {"enable-ssl-refresh", PROXY},
    {"allow-credentials", PROXY},
    {"allowed-origins", PROXY},
    {"allowed-methods", PROXY},
    {"allowed-headers", PROXY},
    {"root-path", PROXY},
    {"middleware", "there is no code of others in the server"},
    {"uvicorn-log-level", LOGGING},
    {"log-config-file", LOGGING},
    {"max-log-len", "prompts are never logged"},
    {"enable-log-outputs", "what was generated is never logged"},
    {"h11-max-incomplete-event-size", "see --max-header-bytes, --max-body-bytes"},
    {"h11-max-header-count", "see --max-headers"},
    {"api-server-count", "one thread serves HTTP"},
    {"trust-remote-code", "model files are data: no code of theirs is ever run"},
    {"hf-token", "nothing is fetched: models come from a folder or from Hugging Face's cache"},
    {"download-dir", "nothing is fetched: set HF_HOME where models were downloaded elsewhere"},
    {"code-revision", "model files are data: no code of theirs is ever run"},
    {"tokenizer-revision", "--tokenizer takes a file or folder"},
    {"tokenizer-mode", "the tokenizer's files decide"},
    {"config-format", "the model's files decide"},
    {"hf-overrides", "the model's files decide"},
    {"quantization", "the model's files decide"},
    {"generation-config", "the defaults of OpenAI's API hold, whatever the model's files say"},
    {"override-generation-config", "the defaults of OpenAI's API hold"},
    {"rope-scaling", "the model's files decide"},
    {"rope-theta", "the model's files decide"},
    {"runner", "/v1/embeddings is beside the others: see --pooling"},
    {"task", "/v1/embeddings is beside the others: see --pooling"},
    {"convert", "/v1/embeddings is beside the others: see --pooling"},
    {"override-pooler-config", "see --pooling"},
    {"pooler-config", "see --pooling"},
    {"response-role", "an answer's role is assistant"},
    {"chat-template-content-format", "content is text, or parts of text"},
    {"tool-parser-plugin", "there is no code of others in the server"},
    {"tool-server", "tools are called by the client"},
    {"enable-lora", ADAPTER},
    {"lora-modules", ADAPTER},
    {"max-loras", ADAPTER},
    {"max-lora-rank", ADAPTER},
    {"limit-mm-per-prompt", MEDIA},
    {"allowed-local-media-path", MEDIA},
    {"mm-processor-kwargs", MEDIA},
    {"media-io-kwargs", MEDIA},
    {"nnodes", NODES},
    {"node-rank", NODES},
    {"master-addr", NODES},
    {"distributed-executor-backend", NODES},
    {"data-parallel-address", NODES},
    {"data-parallel-rank", NODES},
    {"headless", NODES},
    {"kv-transfer-config", NODES},
    {"kv-events-config", NODES},
    {"otlp-traces-endpoint", "nothing is sent anywhere: phase times are in --enable-log-requests"},
    {"prefix-caching-hash-algo", "a keyed hash of 128 bits; hits compare tokens"},
    {"guided-decoding-backend", "one compiler of schemas is built in"},
    {"structured-outputs-config", "one compiler of schemas is built in"},
    {"no-enable-chunked-prefill", "prompts come in chunks: --max-num-batched-tokens limits them"},
    {"compilation-config", "there is no compiler; see --enforce-eager"},
    {"cpu-offload-gb", "weights stay where they are; see --kv-offloading-size"},
};

/* The name of the flag that an argument is, without dashes and value; NULL for other arguments.
 * Owned. */
static char *
flag_name(const char *argument) {
  if (!g_str_has_prefix(argument, "--") || argument[2] == '\0')
    return NULL;
  return g_strndup(argument + 2, strcspn(argument + 2, "="));
}

static int
check_refused(const GPtrArray *words) {
  for (guint i = 1; i < words->len; i++) {
    const char *word = g_ptr_array_index(words, i);
    if (strcmp(word, "--") == 0)
      break;
    g_autofree char *name = flag_name(word);
    for (gsize k = 0; name != NULL && k < G_N_ELEMENTS(refused); k++)
      if (strcmp(name, refused[k].name) == 0)
        return oct_cli_refuse(COMMAND, "--%s: %s", name, refused[k].reason);
  }
  return OCT_CLI_GO_ON;
}

/* --- the flags -------------------------------------------------------------------------------- */

static void
model_entries(GPtrArray *out, oct_serve_options *o) {
  const GOptionEntry own[] = {
      {"revision", 0, 0, G_OPTION_ARG_STRING, &o->revision,
       "branch, tag or commit of a model in Hugging Face's cache (main)", "R"},
      {"load-format", 0, 0, G_OPTION_ARG_STRING, &o->load_format,
       "auto, safetensors, gguf, or dummy: random weights", "F"},
      {"dtype", 0, 0, G_OPTION_ARG_STRING, &o->dtype,
       "auto, or the type of the model's files; cpu: float32 widens the weights; cuda: bfloat16",
       "T"},
      {"tokenizer", 0, 0, G_OPTION_ARG_FILENAME, &o->tokenizer,
       "file or folder (default: the model's own)", "PATH"},
      {"skip-tokenizer-init", 0, 0, G_OPTION_ARG_NONE, &o->skip_tokenizer,
       "token ids in, token ids out", NULL},
      {"chat-template", 0, 0, G_OPTION_ARG_FILENAME, &o->chat_template,
       "a file, or chatml, llama3, mistral, qwen2.5, qwen3, kimi-k2, kimi-k3", "T"},
      {"tool-call-parser", 0, 0, G_OPTION_ARG_STRING, &o->tool_parser,
       "hermes, llama3_json, mistral, kimi_k2, kimi_k3 or none (default: by the template)", "P"},
      {"enable-auto-tool-choice", 0, 0, G_OPTION_ARG_NONE, &o->auto_tools,
       "always on where the model has a parser; accepted", NULL},
      {"reasoning-parser", 0, 0, G_OPTION_ARG_STRING, &o->reasoning_parser,
       "qwen3, deepseek_r1, kimi_k2 or kimi_k3 (default: by the template)", "P"},
      {"pooling", 0, 0, G_OPTION_ARG_STRING, &o->pooling,
       "of /v1/embeddings: last, mean, or none: no such endpoint (last)", "P"},
      {"batch-invariant", 0, 0, G_OPTION_ARG_NONE, &o->batch_invariant,
       "an answer is the same bit for bit whatever else is computed: sums in a fixed order", NULL},
      {"in-process", 0, 0, G_OPTION_ARG_NONE, &o->in_process,
       "cuda in this process, for debugging, not in one of its own that may be lost", NULL},
      {"kv-cache-memory-bytes", 0, 0, G_OPTION_ARG_STRING, &o->kv_memory,
       "of the cache, on cpu (default: a quarter of the memory, at most 4 GiB)", "N"},
  };
  for (gsize i = 0; i < G_N_ELEMENTS(own); i++)
    g_ptr_array_add(out, g_memdup2(&own[i], sizeof own[i]));
}

static void
server_entries(GPtrArray *out, oct_serve_options *o) {
  const GOptionEntry own[] = {
      {"host", 0, 0, G_OPTION_ARG_STRING, &o->host,
       "address to listen at: 127.0.0.1 unless told otherwise, so that a server without a key is "
       "nobody else's (vLLM: all)",
       "A"},
      {"port", 0, 0, G_OPTION_ARG_INT, &o->port, "8000; 0 takes a free one", "N"},
      {"uds", 0, 0, G_OPTION_ARG_FILENAME, &o->uds, "listen at a Unix socket instead (mode 0600)",
       "PATH"},
      {"api-key", 0, 0, G_OPTION_ARG_STRING_ARRAY, &o->keys,
       "a key that clients must send; may be repeated. Others see it in the list of processes: "
       "better --api-key-file, or the variable OCTET_API_KEY",
       "KEY"},
      {"api-key-file", 0, 0, G_OPTION_ARG_FILENAME, &o->key_file, "keys, one a line", "FILE"},
      {"allowed-host", 0, 0, G_OPTION_ARG_STRING_ARRAY, &o->hosts,
       "a name by which clients may ask a server at a loopback address without keys, besides "
       "localhost and addresses; may be repeated; * is any",
       "NAME"},
      {"served-model-name", 0, 0, G_OPTION_ARG_STRING_ARRAY, &o->names,
       "what requests call the model; may be repeated", "NAME"},
      {"enable-log-requests", 0, 0, G_OPTION_ARG_NONE, &o->log_requests,
       "a line per generation with its phases; never its text", NULL},
      {"log-requests", 0, 0, G_OPTION_ARG_NONE, &o->log_requests, "the same", NULL},
      {"disable-access-log", 0, 0, G_OPTION_ARG_NONE, &o->no_access_log,
       "no line per request to the server", NULL},
      {"disable-uvicorn-access-log", 0, 0, G_OPTION_ARG_NONE, &o->no_access_log, "the same", NULL},
      {"record", 0, 0, G_OPTION_ARG_FILENAME, &o->record,
       "write the traffic as a trace for octet replay: lengths and hashes, no text", "FILE"},
      {"record-steps", 0, 0, G_OPTION_ARG_FILENAME, &o->record_steps,
       "write a line for every step, for octet validate --steps: slices and times, no tokens",
       "FILE"},
      {"record-routing", 0, 0, G_OPTION_ARG_FILENAME, &o->record_routing,
       "write how often each expert was chosen, for octet replay --expert-routing file:FILE",
       "FILE"},
      {"enable-tokenizer-info-endpoint", 0, 0, G_OPTION_ARG_NONE, &o->tokenizer_info,
       "serve /tokenizer_info", NULL},
      {"enable-force-include-usage", 0, 0, G_OPTION_ARG_NONE, &o->force_usage,
       "streams end with usage, asked for or not", NULL},
      {"enable-per-request-metrics", 0, 0, G_OPTION_ARG_NONE, &o->metrics,
       "answers have their phase times, asked for or not", NULL},
      {"enable-request-id-headers", 0, 0, G_OPTION_ARG_NONE, &o->no_op, "always on; accepted",
       NULL},
      {"enable-prompt-tokens-details", 0, 0, G_OPTION_ARG_NONE, &o->no_op, "always on; accepted",
       NULL},
      {"disable-log-stats", 0, 0, G_OPTION_ARG_NONE, &o->no_op,
       "statistics are at /metrics, never logged; accepted", NULL},
      {"pace", 0, 0, G_OPTION_ARG_STRING, &o->pace,
       "of --backend simgrid: real, the speed of the machine that is simulated", "P"},
      {"shutdown-timeout", 0, 0, G_OPTION_ARG_INT, &o->shutdown_s,
       "seconds for what is being answered after SIGTERM or SIGINT (30); then it is aborted", "S"},
      {"drain-grace", 0, 0, G_OPTION_ARG_INT, &o->grace_s,
       "seconds before that in which /readyz is 503 and requests are still taken (0)", "S"},
      {"stalled-after", 0, 0, G_OPTION_ARG_INT, &o->stalled_s,
       "seconds with work and without the end of a step, after which /health is 503 (30)", "S"},
      {"config", 0, 0, G_OPTION_ARG_FILENAME, &o->config,
       "flags from a file of \"key: value\" lines; the command line wins", "FILE"},
  };
  for (gsize i = 0; i < G_N_ELEMENTS(own); i++)
    g_ptr_array_add(out, g_memdup2(&own[i], sizeof own[i]));
}

static gboolean
is_http_limit(guint which) {
  return which >= OCT_LIMIT_REQUEST_LINE_BYTES && which <= OCT_LIMIT_KEEP_ALIVE_TIMEOUT;
}

static void
limit_entries(GPtrArray *out, oct_serve_options *o, GPtrArray *texts) {
  for (guint i = 0; i < OCT_LIMIT_COUNT; i++) {
    const oct_limit_row *row = oct_limit_get(i);
    if (!is_http_limit(i))
      continue;
    o->limits[i] = G_MININT64;
    char *help =
        g_strdup_printf("%s, %" G_GINT64_FORMAT " to %" G_GINT64_FORMAT " (%" G_GINT64_FORMAT ")",
                        row->unit, row->min, row->max, row->standard);
    g_ptr_array_add(texts, help);
    const GOptionEntry entry = {row->flag, 0, 0, G_OPTION_ARG_INT64, &o->limits[i], help, "N"};
    g_ptr_array_add(out, g_memdup2(&entry, sizeof entry));
  }
}

#define OF_REPLAY "of octet replay"

/* Flags of engines that mean something else to a server than to a replay. */
static const struct {
  const char *name, *help;
} other_help[] = {
    {"model", "the same as MODEL"},
    {"backend", "cpu (default), cuda, mock, simgrid, or a world such as mock:fixed_ns=2000000"},
    {"tensor-parallel-size",
     "(-tp) GPUs that share each layer; default: 1, or as many as --node has "
     "for a replica"},
    {"data-parallel-size", "(-dp) replicas, each with its own devices, behind a least-loaded "
                           "router; with --enable-expert-parallel or --replicas: KV domains of "
                           "one engine"},
    {"expert-routing", "of --backend simgrid: uniform, or power:X (~ rank^-X, X <= 4)"},
    {"router", "least-loaded, which is a server's; others are of octet replay"},
    {"nodes", "1; more are of octet replay"},
    {"nic-latency", OF_REPLAY},
    {"prefill-replicas", OF_REPLAY},
    {"prefill-tensor-parallel-size", OF_REPLAY},
    {"engine", OF_REPLAY " and octet plan"},
    {"quantization", OF_REPLAY " and octet plan: weights are served as they are stored"},
};

/* [entries, their end], owned. */
static GOptionEntry *
all_entries(oct_serve_options *o, GPtrArray *texts) {
  g_autoptr(GPtrArray) list = g_ptr_array_new_with_free_func(g_free);
  GOptionEntry engine[OCT_ENGINE_FLAGS_MAX] = {0};
  guint n = oct_engine_flags_entries(o->flags, engine);
  for (guint i = 0; i < n; i++) {
    for (gsize k = 0; k < G_N_ELEMENTS(other_help); k++)
      if (strcmp(engine[i].long_name, other_help[k].name) == 0)
        engine[i].description = other_help[k].help;
    g_ptr_array_add(list, g_memdup2(&engine[i], sizeof engine[i]));
  }
  model_entries(list, o);
  server_entries(list, o);
  limit_entries(list, o, texts);
  GOptionEntry *entries = g_new0(GOptionEntry, list->len + 1);
  for (guint i = 0; i < list->len; i++)
    entries[i] = *(const GOptionEntry *)g_ptr_array_index(list, i);
  return entries;
}

/* --- words ------------------------------------------------------------------------------------ */

/* "--max_model_len=8" is "--max-model-len=8", as in vLLM. Owned. */
static char *
with_dashes(const char *word) {
  char *copy = g_strdup(word);
  if (g_str_has_prefix(copy, "--"))
    for (char *c = copy; *c != '\0' && *c != '='; c++)
      if (*c == '_')
        *c = '-';
  return copy;
}

static const char *
value_of_config(const GPtrArray *words) {
  const char *path = NULL;
  for (guint i = 1; i < words->len; i++) {
    const char *word = g_ptr_array_index(words, i);
    if (strcmp(word, "--") == 0)
      break;
    if (g_str_has_prefix(word, "--config="))
      path = word + strlen("--config=");
    else if (strcmp(word, "--config") == 0 && i + 1 < words->len)
      path = g_ptr_array_index(words, i + 1);
  }
  return path;
}

/* What a switch and its opposite have in common. */
static const char *
stem(const char *name) {
  return g_str_has_prefix(name, "no-") ? name + strlen("no-") : name;
}

static gboolean
is_given(const GPtrArray *words, const char *flag) {
  g_autofree char *wanted = flag_name(flag);
  for (guint i = 1; i < words->len; i++) {
    g_autofree char *name = flag_name(g_ptr_array_index(words, i));
    if (name != NULL && strcmp(stem(name), stem(wanted)) == 0)
      return TRUE;
  }
  return FALSE;
}

static const GOptionEntry *
find_entry(const GOptionEntry *entries, const char *name) {
  for (const GOptionEntry *e = entries; e->long_name != NULL; e++)
    if (strcmp(e->long_name, name) == 0)
      return e;
  return NULL;
}

static gboolean
is_switch(const GOptionEntry *entries, const char *name) {
  const GOptionEntry *entry = find_entry(entries, name);
  return entry != NULL && entry->arg == G_OPTION_ARG_NONE;
}

/* Of a switch and its opposite the last one counts, whatever the order of their table. Where the
 * opposite has no entry of its own, it stands for the switch's absence. */
static void
settle_switches(GPtrArray *words, const GOptionEntry *entries) {
  g_autoptr(GHashTable) settled = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
  g_autoptr(GArray) switches = g_array_new(FALSE, FALSE, sizeof(guint));
  for (guint i = 1; i < words->len && strcmp(g_ptr_array_index(words, i), "--") != 0; i++) {
    const char *word = g_ptr_array_index(words, i);
    g_autofree char *name = strchr(word, '=') == NULL ? flag_name(word) : NULL;
    if (name == NULL)
      continue;
    if (is_switch(entries, name) || is_switch(entries, stem(name)))
      g_array_append_val(switches, i);
    else if (find_entry(entries, name) != NULL)
      i++; /* its value, which may look like a flag */
  }
  for (guint k = switches->len; k-- > 0;) {
    guint i = g_array_index(switches, guint, k);
    const char *name = (const char *)g_ptr_array_index(words, i) + strlen("--");
    gboolean last = g_hash_table_add(settled, g_strdup(stem(name)));
    if (!last || !is_switch(entries, name))
      g_free(g_ptr_array_steal_index(words, i));
  }
}

/* Puts the file's flags in front, without those that the command line has. The model is kept apart:
 * the command line may name another without a flag. */
static int
add_config(oct_serve_options *o, GPtrArray *words, const GOptionEntry *entries) {
  const char *path = value_of_config(words);
  g_autoptr(GPtrArray) flags = g_ptr_array_new_with_free_func(g_free);
  g_autoptr(GPtrArray) added = g_ptr_array_new();
  g_autoptr(GError) error = NULL;
  if (path == NULL)
    return OCT_CLI_GO_ON;
  if (!oct_config_file_read(path, entries, flags, &error))
    return oct_cli_refuse(COMMAND, "--config: %s", error->message);
  for (guint i = 0; i < flags->len; i++)
    if (g_str_has_prefix(g_ptr_array_index(flags, i), "--config="))
      return oct_cli_refuse(COMMAND, "--config: %s: a file names no other", path);
  for (guint i = 0; i < flags->len; i++) {
    const char *flag = g_ptr_array_index(flags, i);
    if (g_str_has_prefix(flag, "--model=")) {
      g_free(o->file_model);
      o->file_model = g_strdup(flag + strlen("--model="));
    } else if (!is_given(words, flag)) {
      g_ptr_array_add(added, g_strdup(flag));
    }
  }
  for (guint i = 0; i < added->len; i++)
    g_ptr_array_insert(words, (int)i + 1, g_ptr_array_index(added, i));
  return OCT_CLI_GO_ON;
}

/* --- checks ----------------------------------------------------------------------------------- */

static int
check_limits(oct_serve_options *o) {
  g_autoptr(GError) error = NULL;
  for (guint i = 0; i < OCT_LIMIT_COUNT; i++) {
    if (!is_http_limit(i))
      continue;
    o->limits_given[i] = o->limits[i] != G_MININT64;
    if (!o->limits_given[i])
      o->limits[i] = oct_limit_get(i)->standard;
    else if (!oct_limit_check(i, o->limits[i], &error))
      return oct_cli_refuse(COMMAND, "%s", error->message);
  }
  return OCT_CLI_GO_ON;
}

static int
check_values(oct_serve_options *o) {
  static const char *const formats[] = {"auto", "safetensors", "gguf", "dummy", NULL};
  if (o->port != NO_PORT && (o->port < 0 || o->port > 65535))
    return oct_cli_refuse(COMMAND, "--port: %d is not from 0 to 65535", o->port);
  if (o->uds != NULL && *o->uds == '\0')
    return oct_cli_refuse(COMMAND, "--uds: a path is needed");
  for (char **name = o->names; name != NULL && *name != NULL; name++)
    if (**name == '\0')
      return oct_cli_refuse(COMMAND, "--served-model-name: a name is needed");
  if (o->uds != NULL && (o->host != NULL || o->port >= 0))
    return oct_cli_refuse(COMMAND, "--uds: a socket's path takes the place of --host and --port");
  if (o->shutdown_s < 0 || o->shutdown_s > 86400)
    return oct_cli_refuse(COMMAND, "--shutdown-timeout: %d is not from 0 to 86400 seconds",
                          o->shutdown_s);
  if (o->grace_s < 0 || o->grace_s > 86400)
    return oct_cli_refuse(COMMAND, "--drain-grace: %d is not from 0 to 86400 seconds", o->grace_s);
  if (o->stalled_s < 1 || o->stalled_s > 86400)
    return oct_cli_refuse(COMMAND, "--stalled-after: %d is not from 1 to 86400 seconds",
                          o->stalled_s);
  if (o->pace != NULL && strcmp(o->pace, "real") != 0)
    return oct_cli_refuse(COMMAND, "--pace: \"%s\": a server's clock is real", o->pace);
  if (o->load_format != NULL && !g_strv_contains(formats, o->load_format))
    return oct_cli_refuse(COMMAND, "--load-format: \"%s\": auto, safetensors, gguf or dummy",
                          o->load_format);
  if (o->skip_tokenizer && (o->tokenizer != NULL || o->chat_template != NULL))
    return oct_cli_refuse(COMMAND,
                          "--skip-tokenizer-init: goes without --tokenizer and --chat-template");
  if (o->kv_memory != NULL &&
      !g_ascii_string_to_unsigned(o->kv_memory, 10, 1, G_MAXINT64, &o->kv_bytes, NULL))
    return oct_cli_refuse(COMMAND, "--kv-cache-memory-bytes: \"%s\" is no number of bytes",
                          o->kv_memory);
  return check_limits(o);
}

/* --- parsing ---------------------------------------------------------------------------------- */

static const char details[] =
    "MODEL is a checkpoint (a folder with safetensors and config.json, or a .gguf file), the id\n"
    "of a model in Hugging Face's cache, or, with --backend mock or simgrid or --load-format\n"
    "dummy, a name of the zoo (octet model list), with +FORMAT for weights in fp8, fp8-block128,\n"
    "mxfp4, nvfp4, int4-g128, int4-g64 or int4-g32; +8layers before it is the model's first 8\n"
    "layers alone. mock needs none.\n"
    "--backend: cpu (default), cuda (where built in), mock, simgrid (with --node), or any world\n"
    "with a real clock; octet help backends lists them with their keys.\n"
    "--no-FLAG turns off a flag without a value; of several the last counts.\n"
    "Flags of vLLM that cannot be honoured are refused by name. doc/operations.md says more.\n"
    "Exit status: 0 all that was taken was answered; 1 it could not start, the engine died, or\n"
    "requests were aborted; 2 wrong usage.\n\n";

static int
parse_words(oct_serve_options *o, GPtrArray *words, const GOptionEntry *entries) {
  g_autofree char *policies = oct_engine_flags_details();
  g_autofree char *text = g_strconcat(details, policies, NULL);
  const oct_cli_usage usage = {
      .command = COMMAND,
      .arguments = "[MODEL]",
      .summary = "Serves a model over OpenAI's API.",
      .details = text,
      .entries = entries,
      .max_arguments = 1,
  };
  int argc = (int)words->len;
  g_autofree char **argv = g_new0(char *, words->len + 1);
  memcpy(argv, words->pdata, words->len * sizeof *argv);
  oct_engine_flags_expand(o->flags, argc, argv);
  char **rest = argv; /* parsing moves the words about */
  int status = oct_cli_parse(&usage, &argc, &rest);
  if (status != OCT_CLI_GO_ON)
    return status;
  if (argc > 1 && !oct_engine_flags_set_model(o->flags, rest[1]))
    return oct_cli_refuse(COMMAND, "--model: \"%s\" is given as well", rest[1]);
  if (o->file_model != NULL)
    (void)oct_engine_flags_set_model(o->flags, o->file_model);
  return check_values(o);
}

int
oct_serve_options_parse(oct_serve_options *options, int argc, char **argv) {
  *options = (oct_serve_options){.flags = oct_engine_flags_new(),
                                 .port = NO_PORT,
                                 .shutdown_s = 30,
                                 .grace_s = 0,
                                 .stalled_s = 30};
  g_autoptr(GPtrArray) texts = g_ptr_array_new_with_free_func(g_free);
  g_autoptr(GPtrArray) words = g_ptr_array_new_with_free_func(g_free);
  g_autofree GOptionEntry *entries = all_entries(options, texts);
  for (int i = 0; i < argc; i++)
    g_ptr_array_add(words, with_dashes(argv[i]));
  int status = check_refused(words);
  if (status == OCT_CLI_GO_ON)
    status = add_config(options, words, entries);
  settle_switches(words, entries);
  if (status == OCT_CLI_GO_ON)
    status = parse_words(options, words, entries);
  if (status != OCT_CLI_GO_ON)
    oct_serve_options_clear(options);
  return status;
}

void
oct_serve_options_clear(oct_serve_options *options) {
  char **const texts[] = {&options->revision,
                          &options->load_format,
                          &options->tokenizer,
                          &options->chat_template,
                          &options->dtype,
                          &options->tool_parser,
                          &options->reasoning_parser,
                          &options->pooling,
                          &options->kv_memory,
                          &options->host,
                          &options->uds,
                          &options->key_file,
                          &options->record,
                          &options->record_steps,
                          &options->record_routing,
                          &options->file_model,
                          &options->pace,
                          &options->config};
  for (gsize i = 0; i < G_N_ELEMENTS(texts); i++)
    g_clear_pointer(texts[i], g_free);
  g_clear_pointer(&options->keys, g_strfreev);
  g_clear_pointer(&options->names, g_strfreev);
  g_clear_pointer(&options->hosts, g_strfreev);
  g_clear_pointer(&options->flags, oct_engine_flags_free);
}
