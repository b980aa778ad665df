/* octet serve: a model over OpenAI's API. This file puts the parts together: options, the model's
 * files, the service and its engines, the API, the HTTP server, and the loop that runs them. */
#include "config.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

#include "backends/registry.h"
#include "cli/gpu-health.h"
#include "cli/cli.h"
#include "cli/serve-loop.h"
#include "cli/serve-model.h"
#include "cli/serve-options.h"
#include "cli/serve-output.h"
#include "engine/base/error.h"
#include "sim/replay/metrics.h"

#define COMMAND            "serve"
#define IMAGINED_TOKENS    32
#define S                  G_GINT64_CONSTANT(1000000000)
#define DEFAULT_HOST       "127.0.0.1"
#define DEFAULT_PORT       8000
#define KEY_FILE_BYTES_MAX ((gsize)1 << 20)
#define HTTP_BYTES_MAX     ((gsize)2 << 30) /* requests, and answers that wait to be sent */
#define BYTES_PER_TOKEN    16               /* of context, that a request's body may have */

/* Everything that lives as long as the server. */
typedef struct serving {
  oct_serve_options options;
  oct_serve_model model;
  int notify_fd, signal_fd;
  oct_service *service;
  oct_api *api;
  oct_budget *budget;
  oct_http_server *server;
  GPtrArray *keys; /* of char *, owned */
  oct_serve_output *output;
  gint64 started_ns, told_ns;
  guint16 port;
  struct {
    guint64 ids, seed;
    oct_hash_key key;
  } random;
} serving;

/* --- clocks, words ---------------------------------------------------------------------------- */

static gint64
now_ns(void *clock) {
  struct timespec at;
  (void)clock;
  clock_gettime(CLOCK_MONOTONIC, &at);
  return (gint64)at.tv_sec * S + at.tv_nsec;
}

static gint64
unix_s(void *clock) {
  (void)clock;
  return (gint64)time(NULL);
}

static void
say(void *user, const char *line) {
  oct_serve_output_say(((serving *)user)->output, line);
}

static void
flush(void *user) {
  oct_serve_output_flush(((serving *)user)->output);
}

/* A phase of the start, with the time since the one before. */
static void
tell(void *user, const char *phase, const char *what) {
  serving *s = user;
  gint64 at = now_ns(NULL);
  g_autofree char *line =
      g_strdup_printf("%-9s %7.1f ms  %s", phase, (double)(at - s->told_ns) / 1e6, what);
  say(s, line);
  s->told_ns = at;
}

static const char *
served_name(const serving *s) {
  return s->options.names != NULL ? s->options.names[0] : s->model.name;
}

static void
say_ready(void *user) {
  serving *s = user;
  const char *host = s->options.host != NULL ? s->options.host : DEFAULT_HOST;
  gboolean six = strchr(host, ':') != NULL;
  tell(s, "engines", "open");
  if (s->options.uds != NULL)
    printf("octet: serving %s on unix:%s", served_name(s), s->options.uds);
  else
    printf("octet: serving %s on http://%s%s%s:%u", served_name(s), six ? "[" : "", host,
           six ? "]" : "", s->port);
  printf(" (started in %.2f s)\n", (double)(now_ns(NULL) - s->started_ns) / 1e9);
  fflush(stdout);
}

/* --- the process ------------------------------------------------------------------------------ */

/* Prompts are in memory, and so in a core; connections need descriptors. */
static void
set_limits(void) {
  const struct rlimit none = {0, 0};
  struct rlimit files;
  (void)setrlimit(RLIMIT_CORE, &none);
  if (getrlimit(RLIMIT_NOFILE, &files) != 0)
    return;
  files.rlim_cur = files.rlim_max;
  (void)setrlimit(RLIMIT_NOFILE, &files);
}

/* Signals are read from a descriptor, in every thread that is started from here on. */
static gboolean
open_descriptors(serving *s, GError **error) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  signal(SIGPIPE, SIG_IGN);
  s->notify_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  s->signal_fd = -1;
  if (sigprocmask(SIG_BLOCK, &set, NULL) == 0)
    s->signal_fd = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
  if (s->notify_fd >= 0 && s->signal_fd >= 0 &&
      getrandom(&s->random, sizeof s->random, 0) == sizeof s->random)
    return TRUE;
  g_set_error(error, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_IO, "cannot make descriptors: %s",
              g_strerror(errno));
  return FALSE;
}

static void
notify(void *user) {
  const serving *s = user;
  const guint64 one = 1;
  (void)!write(s->notify_fd, &one, sizeof one);
}

/* --- keys ------------------------------------------------------------------------------------- */

static gboolean
add_key(serving *s, const char *key, const char *from, GError **error) {
  if (*key == '\0' || strpbrk(key, " \t\r\n") != NULL) {
    g_set_error(error, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_OPTION,
                "%s: a key is empty or has white space in it", from);
    return FALSE;
  }
  g_ptr_array_add(s->keys, g_strdup(key));
  return TRUE;
}

static gboolean
read_key_file(serving *s, GError **error) {
  const char *path = s->options.key_file;
  g_autofree char *text = NULL;
  guint before = s->keys->len;
  if (path == NULL)
    return TRUE;
  gsize size;
  text = oct_cli_read_small(path, KEY_FILE_BYTES_MAX, &size, error);
  if (text == NULL)
    return FALSE;
  g_auto(GStrv) lines = g_strsplit(text, "\n", -1);
  for (char **line = lines; *line != NULL; line++) {
    g_strstrip(*line);
    if (**line != '\0' && **line != '#' && !add_key(s, *line, path, error))
      return FALSE;
  }
  if (s->keys->len > before)
    return TRUE;
  g_set_error(error, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_OPTION, "api-key-file %s: has no key",
              path);
  return FALSE;
}

static gboolean
gather_keys(serving *s, GError **error) {
  const char *variable = g_getenv("OCTET_API_KEY");
  s->keys = g_ptr_array_new_with_free_func(g_free);
  for (char **key = s->options.keys; key != NULL && *key != NULL; key++)
    if (!add_key(s, *key, "api-key", error))
      return FALSE;
  if (variable != NULL && !add_key(s, variable, "OCTET_API_KEY", error))
    return FALSE;
  return read_key_file(s, error);
}

/* --- what is written ---------------------------------------------------------------------------
 */

static void
record(void *user, const oct_service_row *row) {
  oct_serve_output_row(((serving *)user)->output, row);
}

/* --- parts ------------------------------------------------------------------------------------ */

static oct_world *
make_world(void *user, GError **error) {
  const serving *s = user;
  return oct_backend_world_new(s->model.world_text, error);
}

static gboolean
start_service(serving *s, GError **error) {
  const oct_setup *setup = &s->model.setup;
  const oct_service_config config = {
      .world = s->model.world,
      .make_world = s->model.on_thread ? make_world : NULL,
      .engine = setup->engine,
      .n_replicas = setup->options.n_replicas,
      .devices = setup->devices,
      .tokenizer = s->model.tokenizer,
      .now_ns = now_ns,
      .notify = notify,
      .user = s,
      .stall_ns = s->options.stalled_s * S,
      .has_weights = !s->model.imitates,
      .model_name = served_name(s),
      /* Without --seed, answers to requests without one differ from run to run, and the hashes of
       * a record say nothing to who has not seen the texts. */
      .imagined_tokens = s->model.imitates ? IMAGINED_TOKENS : 0,
      .seed = s->model.seeded ? setup->options.seed : s->random.seed,
      .log = s->options.log_requests ? say : NULL,
      .record = oct_serve_output_records(s->output) ? record : NULL,
  };
  s->service = oct_service_new(&config, error);
  return s->service != NULL && oct_service_start(s->service, error);
}

static void
write_metrics(void *user, GString *out) {
  const serving *s = user;
  oct_http_server_write_metrics(s->server, out);
  oct_serve_output_write_metrics(s->output, out);
  if (s->model.on_gpus)
    oct_gpu_health_write_metrics(out);
}

static gboolean
make_api(serving *s, GError **error) {
  const char *const own[] = {s->model.name};
  const char *const *names = s->options.names != NULL ? (const char *const *)s->options.names : own;
  const oct_api_config config = {
      .service = s->service,
      .names = names,
      .n_names = s->options.names != NULL ? g_strv_length(s->options.names) : 1,
      .root = s->model.root,
      .renderer = s->model.renderer,
      .no_chat = s->model.no_chat,
      .family = s->model.family,
      .n_tokens = s->model.setup.spec->vocab,
      .keys = (const char *const *)s->keys->pdata,
      .n_keys = s->keys->len,
      .version = PACKAGE_VERSION,
      .unix_s = unix_s,
      .now_ns = now_ns,
      .id_key = s->random.key,
      .pooling = s->model.pooling,
      .tokenizer_info = s->options.tokenizer_info,
      .always_usage = s->options.force_usage,
      .always_metrics = s->options.metrics,
      .log = s->options.no_access_log ? NULL : say,
      .metrics = write_metrics,
      .user = s,
  };
  s->api = oct_api_new(&config, error);
  return s->api != NULL;
}

static oct_http_server_limits
http_limits(const serving *s) {
  const gint64 *l = s->options.limits, ms = 1000000;
  gsize body = (gsize)l[OCT_LIMIT_BODY_BYTES];
  if (!s->options.limits_given[OCT_LIMIT_BODY_BYTES])
    body = MAX(body, (gsize)BYTES_PER_TOKEN * s->model.setup.engine.max_model_len);
  return (oct_http_server_limits){
      .request = {.request_line_bytes = (gsize)l[OCT_LIMIT_REQUEST_LINE_BYTES],
                  .header_bytes = (gsize)l[OCT_LIMIT_HEADER_BYTES],
                  .headers = (gsize)l[OCT_LIMIT_HEADERS],
                  .body_bytes = body,
                  .chunks = (gsize)l[OCT_LIMIT_CHUNKS],
                  .extension_bytes = (gsize)l[OCT_LIMIT_CHUNK_EXTENSION_BYTES]},
      .connections = (gsize)l[OCT_LIMIT_CONNECTIONS],
      .connections_per_address = (gsize)l[OCT_LIMIT_CONNECTIONS_PER_ADDRESS],
      .queue_bytes = (gsize)l[OCT_LIMIT_STREAM_QUEUE_BYTES],
      .header_ns = l[OCT_LIMIT_HEADER_TIMEOUT] * ms,
      .body_idle_ns = l[OCT_LIMIT_BODY_TIMEOUT] * ms,
      .body_grace_ns = l[OCT_LIMIT_BODY_GRACE] * ms,
      .body_rate = (gsize)l[OCT_LIMIT_BODY_RATE],
      .stall_ns = l[OCT_LIMIT_STALL_TIMEOUT] * ms,
      .idle_ns = l[OCT_LIMIT_KEEP_ALIVE_TIMEOUT] * ms,
  };
}

static gboolean
is_loopback(const char *host) {
  return g_str_has_prefix(host, "127.") || strcmp(host, "::1") == 0 ||
         g_ascii_strcasecmp(host, "localhost") == 0;
}

/* Whom a key does not protect, Host does: from pages in browsers on this machine. */
static const char *const *
known_hosts(const serving *s, const char *host) {
  static const char *const none[] = {NULL};
  const char *const *names = (const char *const *)s->options.hosts;
  if (names == NULL)
    return s->keys->len == 0 && s->options.uds == NULL && is_loopback(host) ? none : NULL;
  return g_strv_contains(names, "*") ? NULL : names;
}

static gboolean
start_server(serving *s, GError **error) {
  const oct_serve_options *o = &s->options;
  const char *host = o->host != NULL ? o->host : DEFAULT_HOST;
  s->budget = oct_budget_new("HTTP", HTTP_BYTES_MAX);
  const oct_http_server_config config = {
      .limits = http_limits(s),
      .handler = oct_api_handler(),
      .user = s->api,
      .budget = s->budget,
      .now_ns = now_ns,
      .id_seed = s->random.ids,
      .hosts = known_hosts(s, host),
  };
  s->server = oct_http_server_new(&config, error);
  if (s->server == NULL)
    return FALSE;
  if (o->uds != NULL)
    return oct_http_server_listen_unix(s->server, o->uds, error);
  if (!is_loopback(host) && s->keys->len == 0)
    say(s, "warning: whoever reaches this address may use the model: there is no --api-key");
  guint16 port = o->port >= 0 ? (guint16)o->port : DEFAULT_PORT;
  return oct_http_server_listen(s->server, host, port, &s->port, error);
}

/* --- the whole -------------------------------------------------------------------------------- */

static gboolean
start(serving *s, GError **error) {
  s->started_ns = s->told_ns = now_ns(NULL);
  set_limits();
  s->output = oct_serve_output_open(s->options.record, error);
  if (s->output == NULL || !gather_keys(s, error) || !open_descriptors(s, error) ||
      !oct_serve_model_open(&s->model, &s->options, tell, s, error))
    return FALSE;
  for (guint i = 0; i < s->model.setup.warnings->len; i++)
    say(s, g_ptr_array_index(s->model.setup.warnings, i));
  tell(s, "backend", s->model.world_text);
  if (!start_service(s, error) || !make_api(s, error) || !start_server(s, error))
    return FALSE;
  /* Behind the start of the workers: what the driver's library holds is this process's. */
  if (s->model.on_gpus) {
    oct_gpu_health_tell(say, s);
    oct_gpu_health_watch();
  }
  tell(s, "server", "listens");
  return TRUE;
}

static gboolean
run(serving *s) {
  const oct_serve_loop loop = {
      .server = s->server,
      .service = s->service,
      .n_replicas = s->model.setup.options.n_replicas,
      .api = s->api,
      .notify_fd = s->notify_fd,
      .signal_fd = s->signal_fd,
      .shutdown_ns = s->options.shutdown_s * S,
      .grace_ns = s->options.grace_s * S,
      .now_ns = now_ns,
      .uds = s->options.uds,
      .say = say,
      .flush = flush,
      .ready = say_ready,
      .user = s,
  };
  return oct_serve_loop_run(&loop);
}

/* What speculative decoding has come to. */
static void
tell_drafts(serving *s) {
  const oct_engine_config *e = &s->model.setup.engine;
  for (guint32 i = 0; s->service != NULL && i < s->model.setup.options.n_replicas &&
                      e->speculation.method != OCT_DRAFT_NONE;
       i++) {
    oct_engine_stats stats;
    oct_service_get_stats(s->service, i, &stats);
    const oct_draft_stats *d = &stats.speculation;
    if (d->drafts == 0)
      continue;
    g_autoptr(GString) line = g_string_new(NULL);
    g_string_append_printf(line,
                           "drafts: engine %u: %" G_GUINT64_FORMAT " of %" G_GUINT64_FORMAT
                           " accepted (%.1f %%), %.2f tokens a verified slice; by place",
                           i, d->accepted, d->draft_tokens,
                           100.0 * (double)d->accepted / (double)d->draft_tokens,
                           1.0 + (double)d->accepted / (double)d->drafts);
    for (guint32 k = 0; k < e->speculation.n_tokens; k++)
      g_string_append_printf(line, " %.1f", 100.0 * (double)d->accepted_at[k] / (double)d->drafts);
    g_string_append(line, " %");
    say(s, line->str);
  }
}

/* In the order in which they hold on to each other. *error: the record is not whole. FALSE: a
 * writer hangs. */
static gboolean
end(serving *s, GError **error) {
  oct_http_server_free(s->server);
  if (s->model.has_setup)
    tell_drafts(s);
  oct_service_free(s->service);
  oct_api_free(s->api);
  oct_budget_free(s->budget);
  oct_serve_model_clear(&s->model);
  gboolean good = oct_serve_output_close(s->output, error);
  if (s->notify_fd >= 0)
    close(s->notify_fd);
  if (s->signal_fd >= 0)
    close(s->signal_fd);
  g_clear_pointer(&s->keys, g_ptr_array_unref);
  oct_serve_options_clear(&s->options);
  return good;
}

int
oct_cmd_serve(int argc, char **argv) {
  serving s = {.notify_fd = -1, .signal_fd = -1};
  GError *error = NULL;
  int status = oct_serve_options_parse(&s.options, argc, argv);
  if (status != OCT_CLI_GO_ON)
    return status;
  status = OCT_EXIT_OK;
  gboolean refused = FALSE;
  GError *why = NULL; /* it did not start */
  if (!start(&s, &why))
    refused = g_error_matches(why, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_OPTION);
  else if (!run(&s))
    status = OCT_EXIT_FAILED;
  if (!end(&s, &error))
    _exit(OCT_EXIT_FAILED); /* what is left of files would be written, and hang as well */
  if (refused)
    status = oct_cli_refuse(COMMAND, "%s", why->message);
  else if (why != NULL)
    status = oct_cli_fail(COMMAND, g_steal_pointer(&why));
  else if (error != NULL)
    status = oct_cli_fail(COMMAND, g_steal_pointer(&error));
  g_clear_error(&why);
  g_clear_error(&error);
  return status;
}
