/* Metrics under vLLM's names: present, adding up, and readable by Prometheus' own tool. */
#include <string.h>

#include <glib/gstdio.h>

#include "backends/mock/mock.h"
#include "engine/serve/outbox.h"
#include "tests/engine/serve/serve-rig.h"

/* The value of the sample that begins with `name`, which is there once. */
static double
sample(const GString *metrics, const char *name) {
  g_autofree char *line = g_strconcat("\n", name, NULL);
  const char *at = strstr(metrics->str, line);
  g_assert_nonnull(at);
  g_assert_null(strstr(at + 1, line));
  const char *end = strchr(at + 1, '\n');
  while (end[-1] != ' ')
    end--;
  return g_ascii_strtod(end, NULL);
}

#define LABELS "{model_name=\"test\",engine=\"0\""

static GString *
measure(serve_rig *r) {
  serve_rig_init(r, oct_mock_world_new(NULL, NULL));
  for (guint i = 0; i < 4; i++) /* the last two find the first ones' prompt */
    serve_add(r, i * 100 * MS, "a prompt that is longer than a page is")->params.sampling.n =
        1 + i % 2;
  serve_ask *gone = serve_add(r, 0, "Hello"), *stops = serve_add(r, 0, "Hello");
  gone->params.sampling.max_tokens = 2000;
  gone->cancel_ns = 30 * MS;
  stops->params.sampling.oracle_tokens = 3;
  serve_add(r, 0, "");
  serve_add(r, 0, "x")->params.sampling.n = 9;
  serve_run(r);
  g_assert_no_error(r->error);
  GString *metrics = g_string_new("\n");
  oct_service_write_metrics(r->service, metrics);
  return metrics;
}

static void
test_figures(void) {
  serve_rig r;
  GString *m = measure(&r);
  guint64 prompt = 0, output = 0;
  for (guint i = 0; i < r.asks->len; i++) {
    const serve_ask *a = r.asks->pdata[i];
    prompt += a->end.prompt_tokens;
    output += a->end.output_tokens;
  }
  g_assert_cmpfloat(sample(m, "vllm:request_success_total" LABELS ",finished_reason=\"length\""),
                    ==, 4);
  g_assert_cmpfloat(sample(m, "vllm:request_success_total" LABELS ",finished_reason=\"stop\""), ==,
                    1);
  g_assert_cmpfloat(sample(m, "vllm:request_success_total" LABELS ",finished_reason=\"abort\""), ==,
                    1);
  g_assert_cmpfloat(sample(m, "vllm:request_success_total" LABELS ",finished_reason=\"error\""), ==,
                    1);
  g_assert_cmpfloat(sample(m, "vllm:admission_rejections_total" LABELS), ==, 1);
  g_assert_cmpfloat(sample(m, "vllm:num_requests_running" LABELS), ==, 0);
  g_assert_cmpfloat(sample(m, "vllm:prompt_tokens_total" LABELS), ==, (double)prompt);
  double cached = sample(m, "vllm:prompt_tokens_cached_total" LABELS);
  g_assert_cmpfloat(cached, >, 0);
  const char *by = "vllm:prompt_tokens_by_source_total" LABELS ",source=";
  g_autofree char *computed = g_strconcat(by, "\"local_compute\"", NULL);
  g_autofree char *hit = g_strconcat(by, "\"local_cache_hit\"", NULL);
  g_assert_cmpfloat(sample(m, computed) + sample(m, hit), ==, (double)prompt);
  g_assert_cmpfloat(sample(m, hit), ==, cached);
  g_assert_cmpfloat(sample(m, "vllm:e2e_request_latency_seconds_count" LABELS), ==, 7);
  g_assert_cmpfloat(sample(m, "vllm:time_to_first_token_seconds_count" LABELS), ==, 6);
  g_assert_cmpfloat(sample(m, "vllm:request_generation_tokens_sum" LABELS), ==, (double)output);
  /* A gap less than a token for each choice that has any. */
  g_assert_cmpfloat(sample(m, "vllm:inter_token_latency_seconds_count" LABELS), ==,
                    (double)output - 8);
  g_assert_cmpfloat(sample(m, "vllm:iteration_tokens_total_count" LABELS), ==,
                    sample(m, "octet:steps_total" LABELS));
  g_assert_cmpfloat(sample(m, "octet:health" LABELS ",state=\"ok\""), ==, 0);
  g_assert_cmpfloat(sample(m, "octet:health" LABELS ",state=\"dead\""), ==, 1); /* it is over */
  g_string_free(m, TRUE);
  serve_rig_clear(&r);
}

/* Every name that dashboards of vLLM look for: those that are not there have their reason in
 * doc/operations.md, and those that are there have none. */
static const char *const names[] = {"num_requests_running",
                                    "num_requests_waiting",
                                    "num_requests_waiting_by_reason",
                                    "kv_cache_usage_perc",
                                    "engine_sleep_state",
                                    "lora_requests_info",
                                    "cache_config_info",
                                    "model_weights_memory_bytes",
                                    "prompt_tokens_total",
                                    "prompt_tokens_by_source_total",
                                    "prompt_tokens_cached_total",
                                    "generation_tokens_total",
                                    "request_success_total",
                                    "num_preemptions_total",
                                    "prefix_cache_queries_total",
                                    "prefix_cache_hits_total",
                                    "external_prefix_cache_queries_total",
                                    "external_prefix_cache_hits_total",
                                    "mm_cache_queries_total",
                                    "mm_cache_hits_total",
                                    "corrupted_requests_total",
                                    "admission_rejections_total",
                                    "estimated_flops_per_gpu_total",
                                    "estimated_read_bytes_per_gpu_total",
                                    "estimated_write_bytes_per_gpu_total",
                                    "spec_decode_num_drafts_total",
                                    "spec_decode_num_draft_tokens_total",
                                    "spec_decode_num_accepted_tokens_total",
                                    "spec_decode_num_accepted_tokens_per_pos_total",
                                    "time_to_first_token_seconds",
                                    "inter_token_latency_seconds",
                                    "request_time_per_output_token_seconds",
                                    "e2e_request_latency_seconds",
                                    "request_queue_time_seconds",
                                    "request_inference_time_seconds",
                                    "request_prefill_time_seconds",
                                    "request_decode_time_seconds",
                                    "request_prompt_tokens",
                                    "request_generation_tokens",
                                    "request_max_num_generation_tokens",
                                    "request_params_n",
                                    "request_params_max_tokens",
                                    "request_prefill_kv_computed_tokens",
                                    "iteration_tokens_total",
                                    "kv_block_lifetime_seconds",
                                    "kv_block_idle_before_evict_seconds",
                                    "kv_block_reuse_gap_seconds"};

static void
test_names(void) {
  serve_rig r;
  GString *m = measure(&r);
  g_autofree char *path = g_test_build_filename(G_TEST_DIST, "..", "doc", "operations.md", NULL);
  g_autofree char *doc = NULL;
  g_assert_true(g_file_get_contents(path, &doc, NULL, NULL));
  for (guint i = 0; i < G_N_ELEMENTS(names); i++) {
    g_autofree char *type = g_strdup_printf("\n# TYPE vllm:%s ", names[i]);
    g_autofree char *excused = g_strdup_printf("| `vllm:%s`", names[i]);
    g_autofree char *also = g_strdup_printf(", `vllm:%s`", names[i]);
    gboolean absent = strstr(doc, excused) != NULL || strstr(doc, also) != NULL;
    if ((strstr(m->str, type) == NULL) != absent)
      g_error("vllm:%s is %s", names[i],
              absent ? "there, and excused" : "neither there nor excused");
  }
  g_string_free(m, TRUE);
  serve_rig_clear(&r);
}

/* Weights that a world holds, by the model. */
static void
test_weights(void) {
  serve_rig r;
  serve_rig_init(&r, oct_mock_world_new(NULL, NULL));
  r.config.has_weights = TRUE;
  serve_add(&r, 0, "Hello");
  serve_run(&r);
  g_autoptr(GString) m = g_string_new("\n");
  oct_service_write_metrics(r.service, m);
  oct_weights weights;
  oct_model_weights(r.spec, &weights);
  g_assert_cmpfloat(sample(m, "vllm:model_weights_memory_bytes" LABELS), ==,
                    (double)oct_weights_total(&weights).bytes);
  serve_rig_clear(&r);
}

/* Half of the experts have slots: some uses find theirs, and none is told where all are there. */
static void
test_experts(void) {
  for (guint32 slots = 0; slots <= 4; slots += 4) {
    serve_rig r;
    serve_rig_init(&r, oct_mock_world_new(NULL, NULL));
    r.spec->ffn[0] =
        (oct_ffn_spec){.kind = OCT_FFN_MOE, .n_experts = 8, .top_k = 2, .moe_intermediate = 64};
    r.config.engine.instance.memory.n_expert_slots = slots;
    serve_add(&r, 0, "Hello");
    serve_run(&r);
    g_assert_no_error(r.error);
    g_autoptr(GString) m = g_string_new("\n");
    oct_service_write_metrics(r.service, m);
    double uses = sample(m, "octet:expert_uses_total" LABELS);
    double hits = sample(m, "octet:expert_hits_total" LABELS);
    double loads = sample(m, "octet:expert_loads_total" LABELS);
    double bytes = sample(m, "octet:expert_loaded_bytes_total" LABELS);
    g_assert_true(slots > 0 ? hits > 0 && hits < uses : uses == 0);
    g_assert_true(slots > 0 ? loads >= slots && bytes >= loads : loads == 0 && bytes == 0);
    serve_rig_clear(&r);
  }
}

/* What a replica did is told of it, and of no other. */
static void
test_replicas(void) {
  static const guint16 devices[2] = {0, 1};
  static const char *const counts[] = {"vllm:e2e_request_latency_seconds_count",
                                       "vllm:time_to_first_token_seconds_count",
                                       "vllm:request_generation_tokens_sum"};
  static const double expected[2][3] = {{2, 2, 32}, {1, 1, 16}};
  serve_rig r;
  serve_rig_init(&r, oct_mock_world_new(NULL, NULL));
  r.config.n_replicas = 2;
  r.config.devices = devices;
  for (guint i = 0; i < 3; i++)
    serve_add(&r, i, "Hello");
  serve_run(&r);
  g_assert_no_error(r.error);
  g_autoptr(GString) m = g_string_new("\n");
  oct_service_write_metrics(r.service, m);
  for (guint i = 0; i < 2; i++) {
    g_autofree char *labels = g_strdup_printf("{model_name=\"test\",engine=\"%u\"", i);
    for (guint k = 0; k < G_N_ELEMENTS(counts); k++) {
      g_autofree char *name = g_strconcat(counts[k], labels, NULL);
      g_assert_cmpfloat(sample(m, name), ==, expected[i][k]);
    }
    g_autofree char *ended =
        g_strconcat("vllm:request_success_total", labels, ",finished_reason=\"length\"", NULL);
    g_assert_cmpfloat(sample(m, ended), ==, expected[i][0]);
    g_autofree char *steps = g_strconcat("octet:steps_total", labels, NULL);
    g_autofree char *iterations = g_strconcat("vllm:iteration_tokens_total_count", labels, NULL);
    g_assert_cmpfloat(sample(m, iterations), ==, sample(m, steps));
  }
  serve_rig_clear(&r);
}

/* A full queue of an engine counts as a front that is full does. */
static void
test_rejections(void) {
  serve_rig r;
  serve_rig_init(&r, oct_mock_world_new(NULL, NULL));
  r.config.engine.max_num_seqs = 1;
  r.config.engine.queue_max = 1;
  for (guint i = 0; i < 6; i++)
    serve_add(&r, 0, "Hello");
  serve_run(&r);
  guint refused = 0;
  for (guint i = 0; i < r.asks->len; i++) {
    const serve_ask *a = r.asks->pdata[i];
    refused += a->error != NULL && oct_service_error_status(a->error) == 429;
  }
  g_assert_cmpuint(refused, >, 0);
  g_autoptr(GString) m = g_string_new("\n");
  oct_service_write_metrics(r.service, m);
  g_assert_cmpfloat(sample(m, "vllm:admission_rejections_total" LABELS), ==, refused);
  serve_rig_clear(&r);
}

/* Of what the tool finds, the names that vLLM chose are not ours to change. */
static void
test_promtool(void) {
  g_autofree char *tool = g_find_program_in_path("promtool");
  if (tool == NULL) {
    g_test_skip("promtool is not installed (Debian's prometheus)");
    return;
  }
  serve_rig r;
  GString *m = measure(&r);
  g_autoptr(GError) error = NULL;
  g_autofree char *file = NULL, *found = NULL;
  int fd = g_file_open_tmp("octet-metrics-XXXXXX", &file, &error);
  g_assert_no_error(error);
  g_assert_true(g_close(fd, NULL));
  g_assert_true(g_file_set_contents(file, m->str + 1, -1, &error));
  char *argv[] = {"/bin/sh", "-c", "exec \"$0\" check metrics <\"$1\" 2>&1", tool, file, NULL};
  g_assert_true(
      g_spawn_sync(NULL, argv, NULL, G_SPAWN_DEFAULT, NULL, NULL, &found, NULL, NULL, &error));
  g_assert_no_error(error);
  g_unlink(file);
  g_auto(GStrv) lines = g_strsplit(found, "\n", -1);
  for (char **line = lines; *line != NULL; line++)
    if (**line != '\0' && strstr(*line, "should not contain ':'") == NULL &&
        strstr(*line, "vllm:iteration_tokens_total non-counter") == NULL)
      g_error("promtool: %s", *line);
  g_string_free(m, TRUE);
  serve_rig_clear(&r);
}

/* ---------------------------------------------------------------- outbox */

static void
test_outbox(void) {
  oct_outbox *box = oct_outbox_new(4, sizeof(guint32));
  guint32 popped, wanted = 0;
  for (guint32 i = 0; i < 10; i++)
    oct_outbox_push(box, &i);
  g_assert_cmpuint(oct_outbox_count(box), ==, 4);
  g_assert_false(oct_outbox_flush(box));
  for (guint round = 0; round < 3; round++) {
    while (oct_outbox_pop(box, &popped))
      g_assert_cmpuint(popped, ==, wanted++);
    (void)!oct_outbox_flush(box);
  }
  g_assert_cmpuint(wanted, ==, 10);
  g_assert_true(oct_outbox_flush(box));
  g_assert_false(oct_outbox_pop(box, &popped));
  oct_outbox_free(box);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/serve/measures/figures-add-up", test_figures);
  g_test_add_func("/serve/measures/names-are-there-or-excused", test_names);
  g_test_add_func("/serve/measures/weights-are-the-model-s", test_weights);
  g_test_add_func("/serve/measures/experts-that-were-there", test_experts);
  g_test_add_func("/serve/measures/replicas-are-told-apart", test_replicas);
  g_test_add_func("/serve/measures/an-engine-s-full-queue-counts", test_rejections);
  g_test_add_func("/serve/measures/promtool-reads-them", test_promtool);
  g_test_add_func("/serve/outbox/keeps-order-past-its-ring", test_outbox);
  return g_test_run();
}
