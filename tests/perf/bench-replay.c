/* What a replay costs: a recorded hour on two nodes with and without fast-forward, and generated
 * requests by the hundred thousand, whose memory must not grow with their number. Each in a process
 * of its own, one after the other. The recorded trace is looked for in the folder OCT_SHARED, else
 * in shared/ beside the source tree. */
#include <malloc.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "sim/replay/jobs.h"
#include "sim/replay/replay.h"
#include "sim/replay/report.h"

typedef struct row {
  const char *what, *trace, *model, *node;
  guint64 limit;
  gboolean stepped;
} row;

static const row rows[] = {
    {"azure2023_conv, kimi-k3 on b300-hgx8", NULL, "kimi-k3", "b300-hgx8", 0, FALSE},
    {"  stepped", NULL, "kimi-k3", "b300-hgx8", 0, TRUE},
    {"azure2023_conv, llama-3.1-70b on h200-hgx8", NULL, "llama-3.1-70b", "h200-hgx8", 0, FALSE},
    {"  stepped", NULL, "llama-3.1-70b", "h200-hgx8", 0, TRUE},
    {"10^5 generated, llama-3.1-8b on h200-hgx8", "gen:rate=200,input=200,output=20",
     "llama-3.1-8b", "h200-hgx8", 100000, FALSE},
    {"10^6 generated, llama-3.1-8b on h200-hgx8", "gen:rate=200,input=200,output=20",
     "llama-3.1-8b", "h200-hgx8", 1000000, FALSE},
};

static char *azure;

static json_t *
replay(void *user, guint index, GError **error) {
  const row *r = user;
  oct_replay_config config;
  oct_replay_result result;
  (void)index;
  oct_replay_config_default(&config);
  config.setup.model = r->model;
  config.setup.node = r->node;
  config.setup.engine.no_forward = r->stepped;
  g_autofree char *generated =
      r->trace != NULL ? g_strdup_printf("%s,requests=%" G_GUINT64_FORMAT, r->trace, r->limit)
                       : NULL;
  config.rows.path = generated != NULL ? generated : azure;
  if (!oct_replay_run(&config, &result, error))
    return NULL;
  json_t *report = oct_replay_json(&config, &result);
  oct_replay_result_clear(&result);
  return report;
}

static void
measure(const row *r) {
  json_t *report;
  g_autoptr(GError) error = NULL;
  if (r->trace == NULL && !g_file_test(azure, G_FILE_TEST_EXISTS)) {
    printf("%-44s skipped: no %s\n", r->what, azure);
    return;
  }
  row one = *r;
  if (!oct_jobs_run(1, replay, &one, NULL, &report, &error)) {
    printf("%-44s %s\n", r->what, error->message);
    return;
  }
  printf("%-44s %7.2f s %7.2f s %12s %12s %6.0f MB\n", r->what,
         oct_report_number(report, "run.wall_s"), oct_report_number(report, "run.cpu_s"),
         oct_report_count(round(oct_report_number(report, "run.steps_per_s"))),
         oct_report_count(round(oct_report_number(report, "run.requests_per_s"))),
         oct_report_number(report, "run.peak_rss_bytes") / 1e6);
  fflush(stdout);
  json_decref(report);
}

int
main(void) {
  mallopt(M_MMAP_THRESHOLD, 128 * 1024); /* as octet replay does */
  const char *shared = g_getenv("OCT_SHARED"), *source = g_getenv("OCT_SRCDIR");
  azure = shared != NULL ? g_build_filename(shared, "traces", "azure2023_conv.csv", NULL)
                         : g_build_filename(source != NULL ? source : ".", "..", "shared", "traces",
                                            "azure2023_conv.csv", NULL);
  printf("%-44s %9s %9s %12s %12s %9s\n", "replay", "wall", "CPU", "steps/s", "requests/s",
         "peak RSS");
  for (gsize i = 0; i < G_N_ELEMENTS(rows); i++)
    measure(&rows[i]);
  g_free(azure);
  return 0;
}
