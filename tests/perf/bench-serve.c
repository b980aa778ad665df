/* What a token costs between the engine and a client's bytes, HTTP and JSON left out: the service
 * with its threads on a real-clock mock, at many streams. CPU time of the whole process for each
 * token, which includes the mock's own; the front's part of it; memory. With OCT_SMOLLM2 naming
 * SmolLM2-135M-Instruct's GGUF file the tokenizer is its own, else the byte tokenizer. An argument
 * chooses the cases that have it in their names.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "backends/mock/mock.h"
#include "engine/base/worker.h"
#include "engine/serve/service.h"
#include "engine/text/tokenizer-bytes.h"

#define TOKENS 200
#define WORDS  "([a-z]+ )+" /* positions that come back: their masks are kept */

typedef struct bench {
  oct_bell *bell;
  oct_service *service;
  guint64 n_deltas, n_bytes;
  guint n_ended;
} bench;

static gint64
read_clock(clockid_t which) {
  struct timespec t;
  clock_gettime(which, &t);
  return (gint64)t.tv_sec * 1000000000 + t.tv_nsec;
}

static gint64
now_ns(void *clock) {
  (void)clock;
  return read_clock(CLOCK_MONOTONIC);
}

static void
notify(void *user) {
  oct_bell_ring(((bench *)user)->bell);
}

static void
on_delta(void *user, oct_generation *g, const oct_generation_delta *delta) {
  bench *b = user;
  (void)g;
  b->n_deltas++;
  b->n_bytes += delta->size;
}

static void
on_ended(void *user, oct_generation *g, const oct_generation_end *end) {
  bench *b = user;
  (void)g;
  if (end->error != NULL) {
    fprintf(stderr, "%s\n", end->error->message);
    exit(1);
  }
  b->n_ended++;
}

typedef struct bench_case {
  const char *name;
  const char *stop;
  const char *pattern;
  int n_logprobs;
  guint every; /* one in so many has the above */
} bench_case;

static void
submit_all(bench *b, const bench_case *c, guint n) {
  static const oct_generation_listener listener = {.delta = on_delta, .ended = on_ended};
  static const guint32 prompt[] = {10, 11, 12, 13};
  for (guint i = 0; i < n; i++) {
    oct_generation_params params;
    g_autoptr(GError) error = NULL;
    oct_generation_params_default(&params);
    params.prompt_ids = prompt;
    params.n_prompt_ids = G_N_ELEMENTS(prompt);
    params.sampling.max_tokens = TOKENS;
    params.sampling.ignore_eos = TRUE;
    if (i % c->every == 0) {
      params.n_logprobs = c->n_logprobs;
      params.stops = c->stop == NULL ? NULL : oct_stop_set_new(&c->stop, 1, NULL);
      params.constraint = c->pattern == NULL ? OCT_CONSTRAINT_NONE : OCT_CONSTRAINT_REGEX;
      params.constraint_text = c->pattern;
    }
    if (oct_service_submit(b->service, &params, &listener, b, &error) == NULL) {
      fprintf(stderr, "%s\n", error->message);
      exit(1);
    }
  }
}

static oct_service *
make_service(bench *b, oct_model_spec *spec, const oct_tokenizer *tokenizer, guint n) {
  static const guint16 device;
  oct_mock_options mock;
  g_autoptr(GError) error = NULL;
  oct_mock_options_default(&mock);
  mock.clock = OCT_CLOCK_REAL;
  mock.fixed_ns = 10000000; /* a step of 10 ms and what the sequences add */
  mock.token_ns = mock.sequence_ns = 0;
  mock.trust_records = TRUE;
  oct_service_config config = {.devices = &device,
                               .tokenizer = tokenizer,
                               .now_ns = now_ns,
                               .notify = notify,
                               .user = b,
                               .model_name = "bench"};
  config.world = oct_mock_world_new(&mock, NULL);
  oct_engine_config_default(&config.engine);
  config.engine.instance.spec = spec;
  config.engine.instance.devices = &device;
  config.engine.instance.memory.n_groups = 1;
  config.engine.instance.memory.groups[0].n_device = n * (TOKENS / 16 + 3);
  config.engine.max_model_len = 2048;
  config.engine.max_num_seqs = MAX(n, 16);
  config.engine.max_num_batched_tokens = MAX(8192, n * 5);
  config.engine.carry_ids = TRUE;
  oct_service *service = oct_service_new(&config, &error);
  if (service == NULL || !oct_service_start(service, &error)) {
    fprintf(stderr, "%s\n", error->message);
    exit(1);
  }
  return service;
}

static void
run(const bench_case *c, const oct_tokenizer *tokenizer, guint n) {
  bench b = {.bell = oct_bell_new()};
  g_autoptr(oct_model_spec) spec = oct_model_spec_load("smollm2-135m", NULL, NULL);
  spec->vocab = oct_tokenizer_n_tokens(tokenizer);
  b.service = make_service(&b, spec, tokenizer, n);
  oct_service_status status;
  do
    oct_service_get_status(b.service, &status);
  while (status.opened < 1);
  gint64 cpu = read_clock(CLOCK_PROCESS_CPUTIME_ID), front = read_clock(CLOCK_THREAD_CPUTIME_ID);
  gint64 begin = read_clock(CLOCK_MONOTONIC);
  submit_all(&b, c, n);
  while (b.n_ended < n) {
    oct_bell_wait(b.bell);
    oct_service_dispatch(b.service);
  }
  double tokens = (double)n * TOKENS;
  struct rusage use;
  getrusage(RUSAGE_SELF, &use);
  oct_engine_stats stats;
  oct_service_get_stats(b.service, 0, &stats);
  printf("%-28s %5u streams: %.2f us/token all threads, front %.2f; %.1f ms a step of 10; RSS %.0f "
         "MiB\n",
         c->name, n, (double)(read_clock(CLOCK_PROCESS_CPUTIME_ID) - cpu) / 1e3 / tokens,
         (double)(read_clock(CLOCK_THREAD_CPUTIME_ID) - front) / 1e3 / tokens,
         (double)(read_clock(CLOCK_MONOTONIC) - begin) / 1e6 / (double)stats.steps,
         (double)use.ru_maxrss / 1024);
  fflush(stdout);
  oct_service_free(b.service);
  oct_bell_free(b.bell);
}

int
main(int argc, char **argv) {
  static const bench_case cases[] = {
      {"text", NULL, NULL, -1, 1},
      {"text, a stop string", "never in it", NULL, -1, 1},
      {"text, 5 logprobs", NULL, NULL, 5, 1},
      {"10 % constrained", NULL, WORDS, -1, 10},
      {"100 % constrained", NULL, WORDS, -1, 1},
      {"10 %, new positions", NULL, "(" WORDS "){300}", -1, 10},
  };
  static const guint streams[] = {256, 1000};
  const char *path = getenv("OCT_SMOLLM2");
  g_autoptr(GError) error = NULL;
  g_autoptr(oct_tokenizer) tokenizer =
      path == NULL || *path == 0 ? oct_tokenizer_new_bytes() : oct_tokenizer_open(path, &error);
  if (tokenizer == NULL) {
    fprintf(stderr, "%s\n", error->message);
    return 1;
  }
  for (guint c = 0; c < G_N_ELEMENTS(cases); c++)
    for (guint i = 0; i < G_N_ELEMENTS(streams); i++)
      if (argc < 2 || strstr(cases[c].name, argv[1]) != NULL)
        run(&cases[c], tokenizer, streams[i]);
  return 0;
}
