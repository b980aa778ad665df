/* What happens on the way, each effect against a closed form: a clock at half, a link at a quarter,
 * a lost GPU, weights that are loaded, clients that give up, pools that hand over. */
#include "config.h"

#include <math.h>
#include <string.h>

#include <glib/gstdio.h>

#include "sim/replay/jobs.h"
#include "sim/replay/replay.h"
#include "sim/replay/report.h"

#define MODEL "llama-3.1-8b"
#define NODE  "h200-hgx8"

/* One replay in a child, with its file of requests. */
typedef struct bench {
  oct_replay_config config;
  char *folder, *scenario, *requests;
  char *files[2];
  json_t *report;
  json_t *lines; /* an array of requests, in order of their ends */
} bench;

static gboolean
built(void) {
#ifdef HAVE_SIMGRID
  return TRUE;
#else
  g_test_skip("SimGrid is not built in");
  return FALSE;
#endif
}

static void
bench_init(bench *b, const char *trace, guint32 tensor, guint32 replicas) {
  memset(b, 0, sizeof *b);
  oct_replay_config_default(&b->config);
  b->folder = g_dir_make_tmp("octet-incidents-XXXXXX", NULL);
  b->scenario = g_build_filename(b->folder, "scenario.ini", (char *)NULL);
  b->requests = g_build_filename(b->folder, "requests.jsonl", (char *)NULL);
  b->config.rows.path = trace;
  b->config.setup.model = MODEL;
  b->config.setup.node = NODE;
  b->config.setup.n_replicas = replicas;
  b->config.setup.engine.instance.parallel.tensor = tensor;
  b->config.exact_lengths = TRUE;
  b->config.warmup_ns = 0;
  b->config.requests_path = b->requests;
}

static void
bench_scenario(bench *b, const char *text) {
  g_assert_true(g_file_set_contents(b->scenario, text, -1, NULL));
  b->files[0] = b->scenario;
  b->config.setup.scenarios = b->files;
}

static json_t *
run_job(void *user, guint index, GError **error) {
  const oct_replay_config *config = user;
  oct_replay_result result;
  (void)index;
  if (!oct_replay_run(config, &result, error))
    return NULL;
  json_t *report = oct_replay_json(config, &result);
  oct_replay_result_clear(&result);
  return report;
}

static void
bench_run(bench *b) {
  g_autoptr(GError) error = NULL;
  g_autofree char *text = NULL;
  json_decref(b->report);
  json_decref(b->lines);
  gboolean good = oct_jobs_run(1, run_job, &b->config, NULL, &b->report, &error);
  g_assert_no_error(error);
  g_assert_true(good);
  g_assert_true(g_file_get_contents(b->requests, &text, NULL, NULL));
  g_auto(GStrv) lines = g_strsplit(text, "\n", -1);
  b->lines = json_array();
  for (char **line = lines; *line != NULL && **line != '\0'; line++)
    json_array_append_new(b->lines, json_loads(*line, 0, NULL));
}

static double
of_report(const bench *b, const char *path) {
  return oct_report_number(b->report, path);
}

static double
of_request(const bench *b, guint index, const char *field) {
  return json_number_value(json_object_get(json_array_get(b->lines, index), field));
}

static void
bench_clear(bench *b) {
  json_decref(b->report);
  json_decref(b->lines);
  g_unlink(b->scenario);
  g_unlink(b->requests);
  g_rmdir(b->folder);
  g_free(b->scenario);
  g_free(b->requests);
  g_free(b->folder);
}

/* The price of a prefill step, and its arithmetic, seconds. */
static void
price_prefill(guint32 tokens, guint32 tensor, double *all_s, double *compute_s) {
  g_autoptr(oct_model_spec) spec = oct_model_spec_load(MODEL, NULL, NULL);
  g_autoptr(oct_profile) profile = oct_profile_load(NODE, NULL, NULL, NULL);
  oct_parallel parallel = OCT_PARALLEL_DEFAULT;
  parallel.tensor = tensor;
  oct_cost_options options = OCT_COST_OPTIONS_DEFAULT;
  g_autoptr(oct_cost) cost = oct_cost_new(spec, &parallel, NULL, profile, &options, NULL);
  oct_step_shape shape = {.n_domains = 1};
  oct_slice slice = {.n_tokens = tokens, .flags = OCT_SLICE_PREFILL, .sample = OCT_SAMPLE_LAST};
  oct_step_price price;
  oct_domain_shape_add(&shape.domains[0], &slice, 0, oct_cost_window(spec));
  oct_cost_step(cost, &shape, &price);
  *all_s = (double)price.stages[0].ns / 1e9;
  *compute_s = (double)price.stages[0].groups[OCT_PART_COMPUTE].ns / 1e9;
}

/* ---------------------------------------------------------------- hardware */

/* A clock at half: arithmetic takes twice as long, all else as long as before. */
static void
test_throttle(void) {
  bench b;
  double all_s, compute_s;
  if (!built())
    return;
  price_prefill(4096, 1, &all_s, &compute_s);
  g_assert_cmpfloat(compute_s, >, 0.5 * all_s);
  bench_init(&b, "gen:rate=1,requests=3,arrivals=constant,input=4096,output=1", 1, 1);
  bench_run(&b);
  double usual = of_request(&b, 0, "ttft_s");
  bench_scenario(&b, "[event hot]\nkind=throttle\nat=0 s\nfactor=0.5\n");
  bench_run(&b);
  g_assert_cmpfloat_with_epsilon(of_request(&b, 0, "ttft_s"), usual + compute_s, 1e-7);
  /* Under a cap the clock that is left, and after it the usual one. */
  bench_scenario(&b, "[event cap]\nkind=power-cap\nat=0 s\nfor=1.5 s\nwatts=400 W\n");
  bench_run(&b);
  double clock = pow((400.0 - 75) / (700 - 75), 1 / OCT_SCENARIO_POWER_EXPONENT);
  g_autoptr(oct_profile) profile = oct_profile_load(NODE, NULL, NULL, NULL);
  clock = oct_scenario_capped_clock(profile, 400, OCT_SCENARIO_POWER_EXPONENT);
  g_assert_cmpfloat_with_epsilon(of_request(&b, 0, "ttft_s"), usual + compute_s * (1 / clock - 1),
                                 1e-7);
  g_assert_cmpfloat_with_epsilon(of_request(&b, 2, "ttft_s"), usual, 1e-8);
  bench_clear(&b);
}

/* Idle for ten seconds: every GPU draws its idle power; busy: no more than its cap. */
static void
test_energy(void) {
  bench b;
  if (!built())
    return;
  bench_init(&b, "gen:rate=0.1,requests=2,arrivals=constant,input=16,output=1", 1, 1);
  bench_scenario(&b, "[event cap]\nkind=power-cap\nat=0 s\nwatts=400 W\n");
  bench_run(&b);
  g_autoptr(oct_profile) profile = oct_profile_load(NODE, NULL, NULL, NULL);
  double span = of_report(&b, "window.span_s"), idle = profile->thermal.idle_w;
  double low = of_report(&b, "incidents.energy.joules_low");
  double high = of_report(&b, "incidents.energy.joules_high");
  double busy = (high - 8 * idle * span) / (400 - idle);
  g_assert_cmpfloat(low, >=, 8 * idle * span);
  g_assert_cmpfloat(low, <=, high);
  /* Two short prompts. */
  g_assert_cmpfloat(busy, >, 2 * 0.001);
  g_assert_cmpfloat(busy, <, 2 * 0.1);
  g_assert_cmpfloat_with_epsilon(of_report(&b, "incidents.energy.joules_per_token_high"), high / 2,
                                 1e-6);
  bench_clear(&b);
}

/* A lone request that has some tokens when its GPU goes: it goes on in the largest layout that is
 * left, once storage has sent the weights, and computes prompt and output again. */
static void
test_loss(void) {
  bench b;
  if (!built())
    return;
  bench_init(&b, "gen:rate=1,requests=1,arrivals=constant,input=1000,output=800", 8, 1);
  bench_run(&b);
  double usual = of_request(&b, 0, "e2e_s"), ttft = of_request(&b, 0, "ttft_s");
  double tpot = of_request(&b, 0, "tpot_s"), at = ttft + 300.5 * tpot;
  double start = of_request(&b, 0, "arrival_s");
  g_autofree char *text = g_strdup_printf("[scenario]\nload_rate=4 GB/s\n"
                                          "[event loss]\nkind=lose-gpu\nat=%.9f s\ngpus=5\n",
                                          start + at);
  bench_scenario(&b, text);
  bench_run(&b);
  g_assert_cmpfloat(of_report(&b, "incidents.lost_requests"), ==, 1);
  g_assert_cmpfloat(of_report(&b, "incidents.resumed"), ==, 1);
  /* The prompt and the 301 tokens that it had. */
  g_assert_cmpfloat(of_report(&b, "incidents.resumed_tokens"), >=, 1000 + 299);
  g_assert_cmpfloat(of_report(&b, "incidents.resumed_tokens"), <=, 1000 + 302);
  g_assert_cmpfloat(of_request(&b, 0, "output_tokens"), ==, 800);
  /* Four ranks of a quarter of the weights: all bytes of them at 4 GB/s. */
  g_autoptr(oct_model_spec) spec = oct_model_spec_load(MODEL, NULL, NULL);
  oct_parallel four = OCT_PARALLEL_DEFAULT;
  four.tensor = 4;
  oct_weights w;
  oct_model_rank_weights(spec, &four, 0, &w);
  double load = 4 * (double)oct_weights_total(&w).bytes / 4e9;
  g_assert_cmpfloat_with_epsilon(of_report(&b, "incidents.down_s"), load, 1e-6);
  g_assert_cmpfloat(of_request(&b, 0, "e2e_s"), >, usual + load);
  g_assert_cmpfloat(of_request(&b, 0, "longest_gap_s"), >, load);
  g_assert_cmpfloat(of_request(&b, 0, "longest_gap_s"), <, load + 0.5);
  bench_clear(&b);
}

/* The same with after_loss = fail, and with a client that asks again. */
static void
test_loss_fails(void) {
  bench b;
  if (!built())
    return;
  bench_init(&b, "gen:rate=1,requests=1,arrivals=constant,input=1000,output=800", 2, 1);
  bench_scenario(&b, "[scenario]\nafter_loss=fail\n[event loss]\nkind=lose-gpu\nat=1.5 s\n"
                     "gpus=0\n");
  bench_run(&b);
  g_assert_cmpfloat(of_report(&b, "requests.failed"), ==, 1);
  g_assert_cmpfloat(of_report(&b, "incidents.resumed"), ==, 0);
  b.config.client.retries = 1;
  b.config.client.backoff_ns = 1000000000;
  bench_run(&b);
  g_assert_cmpfloat(of_report(&b, "requests.answered"), ==, 1);
  g_assert_cmpfloat(of_report(&b, "incidents.client_retries"), ==, 1);
  g_assert_cmpfloat(of_request(&b, 0, "attempts"), ==, 2);
  bench_clear(&b);
}

/* NVLink of a GPU is cut: those of several ranks with it go on without, a rank alone does not see
 * it. */
static void
test_cut(void) {
  bench b;
  if (!built())
    return;
  bench_init(&b, "gen:rate=2,requests=20,arrivals=constant,input=500,output=100", 4, 2);
  bench_scenario(&b, "[event cut]\nkind=cut-link\nlink=nvlink\ngpus=1\nat=3.1 s\n");
  bench_run(&b);
  g_assert_cmpfloat(of_report(&b, "requests.answered"), ==, 20);
  g_assert_cmpfloat(of_report(&b, "incidents.down_s"), >, 0);
  bench_clear(&b);
  bench_init(&b, "gen:rate=2,requests=20,arrivals=constant,input=500,output=100", 1, 2);
  bench_scenario(&b, "[event cut]\nkind=cut-link\nlink=nvlink\ngpus=1\nat=3.1 s\n");
  bench_run(&b);
  g_assert_cmpfloat(of_report(&b, "requests.answered"), ==, 20);
  g_assert_cmpfloat(of_report(&b, "incidents.lost_requests"), ==, 0);
  bench_clear(&b);
}

/* N + 1: of two replicas the other takes what comes while one loads; nobody fails. All GPUs gone:
 * everybody does. */
static void
test_n_plus_one(void) {
  bench b;
  if (!built())
    return;
  bench_init(&b, "gen:rate=4,requests=100,input=500,output=50", 4, 2);
  bench_scenario(&b, "[scenario]\nload_rate=1 GB/s\n"
                     "[event loss]\nkind=lose-gpu\nat=5 s\ngpus=0,1,2,3\n");
  bench_run(&b);
  g_assert_cmpfloat(of_report(&b, "requests.answered"), ==, 100);
  for (guint i = 0; i < 100; i++)
    if (of_request(&b, i, "arrival_s") > 5)
      g_assert_cmpfloat(of_request(&b, i, "replica"), ==, 1);
  bench_scenario(&b, "[event loss]\nkind=lose-gpu\nat=5 s\n"
                     "gpus=all\n");
  bench_run(&b);
  double failed = of_report(&b, "requests.failed"), after = 0;
  for (guint i = 0; i < 100; i++)
    after += of_request(&b, i, "arrival_s") > 5;
  g_assert_cmpfloat(failed, >=, after);
  g_assert_cmpfloat(failed + of_report(&b, "requests.answered"), ==, 100);
  bench_clear(&b);
}

/* Weights before the first request: the first token waits for them, storage or PCIe. */
static void
test_cold_start(void) {
  bench b;
  if (!built())
    return;
  bench_init(&b, "gen:rate=1000,requests=1,arrivals=constant,input=100,output=1", 1, 1);
  bench_run(&b);
  double usual = of_request(&b, 0, "ttft_s"), arrival = of_request(&b, 0, "arrival_s");
  g_autoptr(oct_model_spec) spec = oct_model_spec_load(MODEL, NULL, NULL);
  g_autoptr(oct_profile) profile = oct_profile_load(NODE, NULL, NULL, NULL);
  oct_weights w;
  oct_model_weights(spec, &w);
  double bytes = (double)oct_weights_total(&w).bytes;
  bench_scenario(&b, "[scenario]\ncold_start=true\nload_rate=2 GB/s\n");
  bench_run(&b);
  double waited = of_request(&b, 0, "ttft_s") - usual + arrival;
  g_assert_cmpfloat_with_epsilon(waited, bytes / 2e9, 2e-3);
  bench_scenario(&b, "[scenario]\ncold_start=true\n");
  bench_run(&b);
  waited = of_request(&b, 0, "ttft_s") - usual + arrival;
  g_assert_cmpfloat_with_epsilon(waited, bytes / profile->pcie.h2d_bytes_per_s, 2e-3);
  bench_clear(&b);
}

/* ---------------------------------------------------------------- drains */

static void
test_reload(void) {
  bench b;
  if (!built())
    return;
  bench_init(&b, "gen:rate=4,requests=200,input=500,output=50", 1, 2);
  bench_scenario(&b, "[scenario]\nload_rate=8 GB/s\n"
                     "[event reload]\nkind=reload\nat=10 s\n");
  bench_run(&b);
  g_autoptr(oct_model_spec) spec = oct_model_spec_load(MODEL, NULL, NULL);
  oct_weights w;
  oct_model_weights(spec, &w);
  g_assert_cmpfloat(of_report(&b, "requests.answered"), ==, 200);
  g_assert_cmpfloat(of_report(&b, "incidents.parked"), ==, 0);
  g_assert_cmpfloat_with_epsilon(of_report(&b, "incidents.down_s"),
                                 2 * (double)oct_weights_total(&w).bytes / 8e9, 1e-6);
  /* A replica alone: what comes meanwhile waits, or is refused. */
  bench_clear(&b);
  bench_init(&b, "gen:rate=4,requests=200,input=500,output=50", 1, 1);
  bench_scenario(&b, "[scenario]\nload_rate=8 GB/s\n"
                     "[event reload]\nkind=reload\nat=10 s\n");
  bench_run(&b);
  g_assert_cmpfloat(of_report(&b, "requests.answered"), ==, 200);
  double parked = of_report(&b, "incidents.parked");
  g_assert_cmpfloat(parked, >, 0);
  bench_scenario(&b, "[scenario]\nload_rate=8 GB/s\nwhile_down=refuse\n"
                     "[event reload]\nkind=reload\nat=10 s\n");
  bench_run(&b);
  g_assert_cmpfloat(of_report(&b, "requests.busy"), ==, parked);
  bench_clear(&b);
}

/* ---------------------------------------------------------------- clients */

/* Nobody is answered within the timeout: everybody asks 1 + N times, at pauses that double. */
static void
test_timeouts(void) {
  bench b;
  bench_init(&b, "gen:rate=10,requests=50,input=10,output=1000", 1, 1);
  b.config.setup.backend = OCT_REPLAY_MOCK;
  b.config.setup.node = NULL;
  b.config.client = (oct_client){.timeout_ns = 200000000, .retries = 3, .backoff_ns = 500000000};
  bench_run(&b);
  g_assert_cmpfloat(of_report(&b, "requests.failed"), ==, 50);
  g_assert_cmpfloat(of_report(&b, "incidents.client_retries"), ==, 50 * 3);
  g_assert_cmpfloat(of_report(&b, "incidents.client_timeouts"), ==, 50 * 4);
  /* Four timeouts and pauses of 0.5, 1 and 2 s after the last arrival. */
  double span = of_report(&b, "window.span_s"), load = of_report(&b, "window.load_end_s");
  g_assert_cmpfloat_with_epsilon(span - load, 4 * 0.2 + 3.5, 0.02);
  bench_clear(&b);
}

/* Arrivals twice as many for a while: as many as the integral says. */
static void
test_arrivals(void) {
  bench b;
  bench_init(&b, "gen:rate=10,requests=400,arrivals=constant,input=1,output=1", 1, 1);
  b.config.setup.backend = OCT_REPLAY_MOCK;
  b.config.setup.node = NULL;
  bench_scenario(&b, "[event rush]\nkind=arrivals\nat=5 s\nfor=10 s\nfactor=2\n");
  bench_run(&b);
  guint before = 0, in_rush = 0;
  for (guint i = 0; i < 400; i++) {
    double at = of_request(&b, i, "arrival_s");
    before += at < 5;
    in_rush += at >= 5 && at < 15;
  }
  g_assert_cmpuint(before, >=, 49);
  g_assert_cmpuint(before, <=, 51);
  g_assert_cmpuint(in_rush, >=, 199);
  g_assert_cmpuint(in_rush, <=, 201);
  bench_clear(&b);
}

/* ---------------------------------------------------------------- routing and pools */

/* Sessions of growing prompts over four replicas: by prefix each stays where its pages are, so that
 * only first turns and new parts are computed; else three of four turns find nothing. */
static void
test_prefix_routing(void) {
  bench b;
  double hit[2];
  const char *trace = "gen:rate=0.5,requests=300,input=2048,output=64,followup=256,turns=6,"
                      "think=1,block-size=16";
  for (int i = 0; i < 2; i++) {
    bench_init(&b, trace, 1, 4);
    b.config.setup.backend = OCT_REPLAY_MOCK;
    b.config.setup.node = NULL;
    b.config.setup.prefix_caching = 1;
    b.config.setup.router = i == 0 ? OCT_ROUTE_ROUND_ROBIN : OCT_ROUTE_PREFIX;
    bench_run(&b);
    hit[i] = of_report(&b, "scheduler.prefix_hit_share");
    bench_clear(&b);
  }
  /* Turn k = 1 … 5 has 2048 + 320 k tokens, of which all but 256 and a page are there. */
  double tokens = 0, found = 0;
  for (int k = 0; k < 6; k++) {
    tokens += 2048 + 320 * k;
    found += k > 0 ? 2048 + 320 * k - 256 : 0;
  }
  g_assert_cmpfloat(hit[1], <=, found / tokens);
  g_assert_cmpfloat(hit[1], >=, found / tokens - 0.02);
  g_assert_cmpfloat(hit[0], <, 0.7 * hit[1]);
}

/* A prompt on one GPU, the rest of the answer on another: the second token comes after the cache
 * has crossed NVLink, at the rate that copies reach, and a step; at a quarter of the links' rate
 * that takes as much longer. */
static void
test_pools(void) {
  bench b;
  if (!built())
    return;
  bench_init(&b, "gen:rate=1,requests=1,arrivals=constant,input=8000,output=2", 1, 2);
  b.config.setup.n_prefill = 1;
  bench_run(&b);
  g_assert_cmpfloat(of_request(&b, 0, "output_tokens"), ==, 2);
  g_autoptr(oct_profile) profile = oct_profile_load(NODE, NULL, NULL, NULL);
  double bytes = 8000 * 131072.0;
  double pull = bytes / profile->nvlink.achieved_bytes_per_s + profile->nvlink.copy_latency_s;
  double gap = of_request(&b, 0, "tpot_s");
  g_assert_cmpfloat(gap, >, pull + 0.003);
  g_assert_cmpfloat(gap, <, pull + 0.012);
  bench_scenario(&b, "[event slow]\nkind=link\nlink=nvlink\nat=0 s\nfactor=0.25\n");
  bench_run(&b);
  double slow = bytes / (0.25 * profile->nvlink.bytes_per_s);
  double least = bytes / profile->nvlink.achieved_bytes_per_s;
  g_assert_cmpfloat_with_epsilon(of_request(&b, 0, "tpot_s") - gap, slow - least, 2e-5);
  bench_clear(&b);
}

/* One GPU computes prompts, four go on: each takes its quarter, and all of it leaves by one GPU's
 * links. */
static void
test_pools_unlike(void) {
  bench b;
  if (!built())
    return;
  bench_init(&b, "gen:rate=1,requests=1,arrivals=constant,input=8000,output=2", 4, 2);
  b.config.setup.n_prefill = 1;
  b.config.setup.prefill_tensor = 1;
  bench_run(&b);
  g_autoptr(oct_profile) profile = oct_profile_load(NODE, NULL, NULL, NULL);
  double pull = 8000 * 131072.0 / profile->nvlink.bytes_per_s + profile->nvlink.copy_latency_s;
  double gap = of_request(&b, 0, "tpot_s");
  g_assert_cmpfloat(gap, >, pull);
  g_assert_cmpfloat(gap, <, pull + 0.012);
  g_assert_cmpfloat(of_report(&b, "configuration.prefill_tensor_parallel_size"), ==, 1);
  double all_s, compute_s;
  price_prefill(8000, 1, &all_s, &compute_s);
  g_assert_cmpfloat(of_request(&b, 0, "ttft_s"), >, all_s);
  g_assert_cmpfloat(of_request(&b, 0, "ttft_s"), <, all_s + 0.01);
  bench_clear(&b);
}

static void
test_pools_under_load(void) {
  bench b;
  if (!built())
    return;
  bench_init(&b, "gen:rate=8,requests=300,input=1000,output=100", 1, 4);
  b.config.setup.n_prefill = 2;
  bench_run(&b);
  g_assert_cmpfloat(of_report(&b, "requests.answered"), ==, 300);
  /* Of the window, which ends with the last arrival. */
  g_assert_cmpfloat(of_report(&b, "scheduler.pulls"), >=, 290);
  /* A prefill replica is lost: what waits there is computed again by the decode replica. */
  bench_scenario(&b, "[event loss]\nkind=lose-gpu\nat=10 s\ngpus=0\n");
  bench_run(&b);
  g_assert_cmpfloat(of_report(&b, "requests.answered"), ==, 300);
  bench_clear(&b);
}

/* Two nodes: a cache crosses the NICs of its GPUs, a stage's output those of its ranks; what talks
 * in every layer stays within a node. */
static void
test_nodes(void) {
  bench b;
  if (!built())
    return;
  bench_init(&b, "gen:rate=1,requests=1,arrivals=constant,input=8000,output=2", 8, 2);
  b.config.setup.n_nodes = 2;
  b.config.setup.n_prefill = 1;
  bench_run(&b);
  g_autoptr(oct_profile) profile = oct_profile_load(NODE, NULL, NULL, NULL);
  const double nic = profile->pcie.nic_bytes_per_s_per_gpu, latency = 5e-6;
  double bytes = 8000 * 131072.0 / 8, pull = bytes / nic + latency;
  double gap = of_request(&b, 0, "tpot_s");
  g_assert_cmpfloat(gap, >, pull);
  g_assert_cmpfloat(gap, <, pull + 0.012);
  bench_scenario(&b, "[event slow]\nkind=link\nlink=gpu3-nic-up\nat=0 s\nfactor=0.5\n");
  bench_run(&b);
  g_assert_cmpfloat_with_epsilon(of_request(&b, 0, "tpot_s") - gap, bytes / nic, 2e-5);
  bench_clear(&b);
  g_autoptr(GError) error = NULL;
  g_assert_true(oct_profile_join(profile, 2, latency, &error));
  g_assert_cmpuint(profile->gpu.count, ==, 16);
  g_autoptr(oct_model_spec) spec = oct_model_spec_load(MODEL, NULL, NULL);
  oct_parallel parallel = OCT_PARALLEL_DEFAULT;
  parallel.tensor = 8;
  parallel.pipeline = 2;
  oct_cost_options options = OCT_COST_OPTIONS_DEFAULT;
  g_autoptr(oct_cost) cost = oct_cost_new(spec, &parallel, NULL, profile, &options, &error);
  oct_step_shape shape = {.n_domains = 1};
  oct_slice slice = {.n_tokens = 1000, .flags = OCT_SLICE_PREFILL};
  oct_step_price price;
  oct_domain_shape_add(&shape.domains[0], &slice, 0, 0);
  oct_cost_step(cost, &shape, &price);
  g_assert_cmpfloat(price.stages[0].send_bytes, >, 1000 * 4096 * 2 / 8.0 - 1);
  g_assert_cmpint(price.stages[0].send_ns, ==,
                  oct_cost_ns(price.stages[0].send_bytes / nic + latency));
  parallel.tensor = 16;
  parallel.pipeline = 1;
  g_assert_null(oct_cost_new(spec, &parallel, NULL, profile, &options, &error));
  g_clear_error(&error);
  g_autoptr(oct_profile) lone = oct_profile_load("h200x1", NULL, NULL, NULL);
  g_assert_false(oct_profile_join(lone, 2, latency, &error));
  g_assert_nonnull(strstr(error->message, "no NIC"));
}

/* ---------------------------------------------------------------- determinism */

static void
test_equal(void) {
  bench b;
  json_t *first;
  if (!built())
    return;
  bench_init(&b, "gen:chat-150,rate=6,requests=600", 4, 2);
  bench_scenario(&b, "[scenario]\nuntil=5 min\nload_rate=20 GB/s\n"
                     "[event loss]\nkind=lose-gpu\nrate=60 /h\ngpus=any\nfor=20 s\n"
                     "[event hot]\nkind=throttle\nrate=60 /h\ngpus=any\nfor=10 s\nfactor=0.5\n"
                     "[event day]\nkind=period\nperiod=60 s\namplitude=0.5\n");
  b.config.client = (oct_client){.timeout_ns = 60000000000, .retries = 1, .backoff_ns = 1000000};
  g_autofree char *log = g_build_filename(b.folder, "log", (char *)NULL);
  b.config.log_path = log;
  bench_run(&b);
  first = json_incref(b.report);
  g_assert_cmpfloat(oct_report_number(first, "incidents.lost_requests"), >, 0);
  g_assert_cmpfloat(oct_report_number(first, "run.forwarded_steps"), >, 100);
  for (int i = 0; i < 2; i++) {
    b.config.setup.engine.no_forward = i == 1;
    bench_run(&b);
    g_assert_true(json_equal(oct_report_at(first, "run.log_digest"),
                             oct_report_at(b.report, "run.log_digest")));
    g_assert_true(
        json_equal(oct_report_at(first, "incidents"), oct_report_at(b.report, "incidents")));
  }
  json_decref(first);
  g_unlink(log);
  bench_clear(&b);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/replay/incidents/half-the-clock-is-twice-the-arithmetic", test_throttle);
  g_test_add_func("/replay/incidents/energy-lies-between-idle-and-cap", test_energy);
  g_test_add_func("/replay/incidents/a-loss-is-replanned-and-resumed", test_loss);
  g_test_add_func("/replay/incidents/a-loss-fails-where-that-is-asked", test_loss_fails);
  g_test_add_func("/replay/incidents/a-cut-link-concerns-groups", test_cut);
  g_test_add_func("/replay/incidents/n-plus-one", test_n_plus_one);
  g_test_add_func("/replay/incidents/a-cold-start-loads-weights", test_cold_start);
  g_test_add_func("/replay/incidents/reloads-roll-and-requests-wait", test_reload);
  g_test_add_func("/replay/incidents/clients-give-up-and-ask-again", test_timeouts);
  g_test_add_func("/replay/incidents/arrivals-follow-their-integral", test_arrivals);
  g_test_add_func("/replay/incidents/prefixes-stay-where-they-are", test_prefix_routing);
  g_test_add_func("/replay/incidents/pools-hand-caches-over", test_pools);
  g_test_add_func("/replay/incidents/pools-of-unlike-layouts", test_pools_unlike);
  g_test_add_func("/replay/incidents/pools-under-load-and-loss", test_pools_under_load);
  g_test_add_func("/replay/incidents/nodes-are-joined-by-their-nics", test_nodes);
  g_test_add_func("/replay/incidents/equal-seeds-equal-bytes", test_equal);
  return g_test_run();
}
