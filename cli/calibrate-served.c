#include "cli/calibrate-served.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>

#include <jansson.h>

#include "cli/local-server.h"
#include "sim/calibrate/drive.h"

#define REQUESTS    12
#define WARM_UPS    "2"
#define LINE_BYTES  (1u << 20)
#define PATIENCE_MS 60000 /* until the server listens */
#define LOOK_MS     20

typedef double (*line_reader)(const json_t *line, gboolean *counts);

static double
ttft_of(const json_t *line, gboolean *counts) {
  const json_t *ttft = json_object_get(line, "ttft_s");
  *counts = json_is_number(ttft);
  return json_number_value(ttft);
}

/* Of steps with prompts. */
static double
step_of(const json_t *line, gboolean *counts) {
  const json_t *domain = json_array_get(json_object_get(line, "domains"), 0);
  *counts = json_array_size(json_object_get(domain, "prefill")) > 0;
  return (double)(json_integer_value(json_object_get(line, "end_ns")) -
                  json_integer_value(json_object_get(line, "start_ns"))) *
         1e-9;
}

/* The values that the file's lines have, in their order: double. */
static GArray *
read_lines(const char *path, line_reader reader, GError **error) {
  g_autofree char *text = NULL;
  if (!g_file_get_contents(path, &text, NULL, error))
    return NULL;
  GArray *values = g_array_new(FALSE, FALSE, sizeof(double));
  g_auto(GStrv) lines = g_strsplit(text, "\n", -1);
  for (guint i = 0; lines[i] != NULL; i++) {
    gboolean counts = FALSE;
    json_t *line = strlen(lines[i]) < LINE_BYTES ? json_loads(lines[i], 0, NULL) : NULL;
    double value = line != NULL ? reader(line, &counts) : 0;
    if (counts)
      g_array_append_val(values, value);
    json_decref(line);
  }
  return values;
}

/* FALSE with *error: it ended before it listened. */
static gboolean
await_socket(const oct_calibrate_server *how, const oct_local_server *server, GError **error) {
  for (guint i = 0; i < PATIENCE_MS / LOOK_MS; i++) {
    g_autofree char *last = oct_local_server_last_words(server);
    if (last != NULL) {
      g_set_error(error, OCT_CALIBRATE_ERROR, OCT_CALIBRATE_ERROR_WORLD, "a server of %s: %s",
                  how->model, last);
      return FALSE;
    }
    if (g_file_test(server->socket, G_FILE_TEST_EXISTS))
      return TRUE;
    (void)poll(NULL, 0, LOOK_MS);
  }
  g_set_error(error, OCT_CALIBRATE_ERROR, OCT_CALIBRATE_ERROR_WORLD,
              "a server of %s does not listen after %d s", how->model, PATIENCE_MS / 1000);
  return FALSE;
}

static gboolean
ask(const oct_calibrate_server *how, const oct_local_server *server, const char *requests,
    GError **error) {
  g_autofree char *url = g_strconcat("unix:", server->socket, NULL);
  g_autofree char *tokens = g_strdup_printf("%d", OCT_CALIBRATE_REQUEST_TOKENS);
  g_autofree char *n = g_strdup_printf("%d", REQUESTS);
  g_autofree char *said = NULL;
  int status = 0;
  char *argv[] = {server->program,
                  (char *)"bench",
                  url,
                  (char *)"--ready-check-timeout=60s",
                  (char *)"--random-input-len",
                  tokens,
                  (char *)"--random-output-len=2",
                  (char *)"--ignore-eos",
                  (char *)"--extra-body={\"return_token_ids\":true}",
                  (char *)"--max-concurrency=1",
                  (char *)"--num-warmups=" WARM_UPS,
                  (char *)"--num-prompts",
                  n,
                  (char *)"--warmup=0s",
                  (char *)"--requests",
                  (char *)requests,
                  NULL};
  if (!g_spawn_sync(NULL, argv, NULL, G_SPAWN_STDOUT_TO_DEV_NULL, NULL, NULL, NULL, &said, &status,
                    error))
    return FALSE;
  if (g_spawn_check_wait_status(status, NULL))
    return TRUE;
  g_autofree char *last = oct_local_server_last_words(server);
  g_set_error(error, OCT_CALIBRATE_ERROR, OCT_CALIBRATE_ERROR_WORLD, "a server of %s: %s",
              how->model, last != NULL ? last : g_strchomp(said));
  return FALSE;
}

/* What is left of the requests' times, each without its step; the last steps are theirs. */
static gboolean
rest_of(const char *requests, const char *steps, double *seconds, GError **error) {
  g_autoptr(GArray) ttfts = read_lines(requests, ttft_of, error);
  g_autoptr(GArray) ran = ttfts != NULL ? read_lines(steps, step_of, error) : NULL;
  double rests[REQUESTS];
  if (ran == NULL)
    return FALSE;
  if (ttfts->len != REQUESTS || ran->len < REQUESTS) {
    g_set_error(error, OCT_CALIBRATE_ERROR, OCT_CALIBRATE_ERROR_WORLD,
                "%u of %d requests were answered, in %u steps with prompts", ttfts->len, REQUESTS,
                ran->len);
    return FALSE;
  }
  for (guint i = 0; i < REQUESTS; i++)
    rests[i] =
        g_array_index(ttfts, double, i) - g_array_index(ran, double, ran->len - REQUESTS + i);
  *seconds = MAX(0, oct_drive_median(rests, REQUESTS));
  return TRUE;
}

gboolean
oct_calibrate_request(const oct_calibrate_server *how, double *seconds, GError **error) {
  oct_local_server server = {0};
  g_autofree char *tensor = g_strdup_printf("--tensor-parallel-size=%u", how->gpus);
  g_autofree char *folder = g_dir_make_tmp("octet-XXXXXX", error);
  if (folder == NULL)
    return FALSE;
  g_autofree char *steps = g_build_filename(folder, "steps", NULL);
  g_autofree char *requests = g_build_filename(folder, "requests", NULL);
  const char *args[] = {how->model,
                        "--backend",
                        how->backend,
                        tensor,
                        "--load-format=dummy",
                        "--skip-tokenizer-init",
                        "--no-enable-prefix-caching",
                        "--max-num-seqs=16",
                        "--disable-access-log",
                        "--record-steps",
                        steps,
                        NULL};
  gboolean fine = oct_local_server_start(&server, how->program, args, error) &&
                  await_socket(how, &server, error) && ask(how, &server, requests, error);
  oct_local_server_stop(&server);
  fine = fine && rest_of(requests, steps, seconds, error);
  (void)remove(steps);
  (void)remove(requests);
  (void)remove(folder);
  return fine;
}
