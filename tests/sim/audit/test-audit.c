/* The figures of the examples, each worked out by hand from published sizes and rates, and what a
 * wrong file gets. */
#include "sim/audit/audit.h"

#include <string.h>

static json_t *
example(const char *name) {
  g_autoptr(GError) error = NULL;
  g_autofree char *path =
      g_test_build_filename(G_TEST_DIST, "..", "sim", "audits", name, (char *)NULL);
  json_t *report = oct_audit_run(path, NULL, &error);
  g_assert_no_error(error);
  return report;
}

static const json_t *
claim_of(const json_t *report, const char *group, const char *key) {
  gsize i, k;
  json_t *g, *claim;
  json_array_foreach(json_object_get(report, "groups"), i, g) {
    if (strcmp(json_string_value(json_object_get(g, "group")), group) != 0)
      continue;
    json_array_foreach(json_object_get(g, "claims"), k, claim) {
      if (strcmp(json_string_value(json_object_get(claim, "key")), key) == 0)
        return claim;
    }
  }
  g_error("no claim [%s] %s", group, key);
}

static void
assert_verdict(const json_t *report, const char *group, const char *key, const char *verdict) {
  const json_t *claim = claim_of(report, group, key);
  g_assert_cmpstr(json_string_value(json_object_get(claim, "verdict")), ==, verdict);
}

/* A check of the claim has this verdict and says this. */
static void
assert_says(const json_t *report, const char *group, const char *key, const char *check,
            const char *verdict, const char *says) {
  gsize i;
  json_t *c;
  json_array_foreach(json_object_get(claim_of(report, group, key), "checks"), i, c) {
    if (strcmp(json_string_value(json_object_get(c, "check")), check) != 0)
      continue;
    if (strstr(json_string_value(json_object_get(c, "arithmetic")), says) == NULL)
      continue;
    g_assert_cmpstr(json_string_value(json_object_get(c, "verdict")), ==, verdict);
    return;
  }
  g_error("[%s] %s: no check \"%s\" says \"%s\"", group, key, check, says);
}

static void
test_deployment(void) {
  json_t *r = example("deployment-8xb300.ini");
  const char *g = "effective throughput";
  assert_says(r, g, "bytes_per_s", "product", "inconsistent",
              "100000 tok/s x 16 B/tok = 1.6 MB/s; 1.6 TB/s is 1e+06 times that");
  /* 896 (1 - (1 - 16/896)^200) = 871.6 of 92 layers' experts of 17.55 MB, and 111.16 GB: 1,518 GB
   * over 8 GPUs; 2 x 56.2 MB of state and 1,600 x 13,824 B of KV for each of 200. */
  assert_says(r, g, "output_tokens_per_s", "bandwidth, uniform routing", "inconsistent",
              "at least 28.14 ms (ms: weights 24.6, state 2.9, KV 0.6): at most 7107 tok/s");
  assert_says(r, g, "output_tokens_per_s", "bandwidth", "impossible",
              "weights 2.2, state 2.9, KV 0.6): at most 34981 tok/s");
  g = "machine";
  assert_says(r, g, "memory_bandwidth", "machine", "inconsistent", "7.7 TB/s");
  assert_says(r, g, "memory_per_gpu", "machine", "inconsistent", "288.4 GB");
  assert_says(r, g, "memory_per_gpu", "memory", "impossible", "195 GB of a GPU, which has 192 GB");
  g = "load";
  assert_says(r, g, "latency_p99", "bandwidth", "impossible",
              "17.13 GB of weights on a GPU, at any routing: 2.225 ms at 7.7 TB/s; 800 tokens take "
              "at least 1.78 s");
  assert_says(r, g, "latency_p99", "little's law", "inconsistent",
              "= 1.333 s on average, which is above the 99th percentile, 1.18 s: the slowest 1 % "
              "would have to take 16.51 s");
  assert_says(r, g, "request_rate", "little's law, shortest stay", "impossible", "= 269 in the");
  assert_says(r, g, "request_rate", "arithmetic", "impossible", "112 % of it");
  json_decref(r);
}

static void
test_deployment_memory(void) {
  json_t *r = example("deployment-8xb300.ini");
  /* 200,000 x 27,648 B + 449.4 MB; the latents on each of 8 ranks. */
  assert_says(r, "long context in bf16", "kv_bytes_per_request", "cache", "inconsistent",
              "are 5.979 GB, with the copies that the ranks hold 44.69 GB");
  assert_says(r, "long context in bf16", "requests", "memory as claimed", "inconsistent",
              "37 requests of the claimed 40 GB and weights of 1.56 TB are 3.04 TB; 8 GPUs have "
              "2.307 TB");
  assert_says(r, "long context", "requests", "KV type", "impossible",
              "at most 1.86 times as many (2 without state); claimed are 92 / 37 = 2.49 times");
  json_decref(r);
}

static void
test_deployment_topology(void) {
  json_t *r = example("deployment-8xb300.ini");
  assert_verdict(r, "topology", "nvlink", "inconsistent");
  assert_verdict(r, "topology", "root_complexes", "inconsistent");
  assert_says(r, "topology", "link_latency", "topology", "inconsistent", "1.45 us");
  assert_says(r, "layout", "output_tokens_per_s", "bandwidth", "consistent", "TP4 x PP2");
  assert_says(r, "layout", "output_tokens_per_s", "speed-up", "inconsistent",
              "claimed are 2.79 times");
  g_assert_cmpstr(json_string_value(json_object_get(r, "verdict")), ==, "impossible");
  json_decref(r);
}

static void
test_measured(void) {
  json_t *r = example("kimi-k3-measured.ini");
  g_assert_cmpstr(json_string_value(json_object_get(r, "verdict")), ==, "consistent");
  g_assert_cmpint(json_integer_value(json_object_get(json_object_get(r, "claims"), "unchecked")),
                  ==, 0);
  json_decref(r);
}

static void
test_llama(void) {
  json_t *r = example("llama-70b-one-gpu.ini");
  /* 70.55 G parameters in 16 bits; 64 x 32,000 tokens of 327,680 B. */
  assert_says(r, "report", "memory_per_gpu", "memory", "impossible", "141.1 GB of a GPU");
  assert_says(r, "memory", "kv_bytes_per_request", "cache", "consistent", "are 10.49 GB");
  assert_says(r, "memory", "requests", "memory", "impossible", "64 requests 671.1 GB");
  assert_says(r, "users", "latency_mean", "little's law", "consistent", "= 32 s on average");
  assert_verdict(r, "users", "tpot_mean", "impossible");
  assert_verdict(r, "users", "ttft_p99", "impossible");
  json_decref(r);
}

/* ---------------------------------------------------------------- claims without a model */

static json_t *
text_audit(const char *text) {
  g_autoptr(GError) error = NULL;
  json_t *report = oct_audit_text("x.ini", text, strlen(text), NULL, &error);
  g_assert_no_error(error);
  return report;
}

static void
test_traffic(void) {
  json_t *r = text_audit("[report]\nconcurrency=20\nrequest_rate=2 req/s\nlatency_mean=10 s\n"
                         "output_tokens=100\nttft_mean=0.1 s\ntpot_mean=100 ms\n"
                         "output_tokens_per_s=200 tok/s\nlatency_p50=12 s\nlatency_p99=11 s\n"
                         "[again]\noutput_tokens_per_s=300 tok/s\n");
  assert_says(r, "report", "latency_mean", "little's law", "consistent", "= 10 s on average");
  assert_says(r, "report", "latency_mean", "sum", "consistent", "100 ms + 99 x 100 ms = 10 s");
  assert_says(r, "report", "output_tokens_per_s", "demand", "consistent", "= 200 tok/s");
  assert_says(r, "report", "latency_p99", "order", "inconsistent", "12 s > 11 s");
  assert_says(r, "again", "output_tokens_per_s", "one quantity", "inconsistent",
              "300 tok/s here and 200 tok/s in [report]");
  assert_says(r, "again", "output_tokens_per_s", "little's law", "inconsistent",
              "at most 200 tok/s; claimed are 300 tok/s");
  json_decref(r);
}

static void
test_bounds_are_tight(void) {
  /* The bound of one H200 at batch 1 is passed by the smallest step over it. */
  json_t *r = text_audit("[report]\nmodel=llama-3.1-8b\nnode=h200x1\nconcurrency=1\n"
                         "input_tokens=1\noutput_tokens=2\n[slow]\noutput_tokens_per_s=250 tok/s\n"
                         "[fast]\noutput_tokens_per_s=350 tok/s\n");
  assert_says(r, "slow", "output_tokens_per_s", "bandwidth", "consistent", "at most 320 tok/s");
  assert_says(r, "fast", "output_tokens_per_s", "bandwidth", "impossible", "at most 320 tok/s");
  json_decref(r);
}

static void
test_errors(void) {
  const struct {
    const char *text, *says;
  } rows[] = {
      {"[x]\n", "x.ini: the first group must be [report]"},
      {"[report]\nspeed=3\n", "x.ini:2: [report] speed = 3: no such key"},
      {"[report]\nrequest_rate=150\n",
       "x.ini:2: [report] request_rate = 150: is in numbers without unit, must be in requests/s"},
      {"[report]\nconcurrency=2000000\n",
       "x.ini:2: [report] concurrency = 2000000: must be at least 1 and at most 1000000 req"},
      {"[report]\nlatency_mean=0 s\n", "must be above 0"},
      {"[report]\ngpus=1.5\n", "x.ini:2: [report] gpus = 1.5: must be a whole number"},
      {"[report]\nkv_cache_dtype=int3\n", "must be one of bf16, fp8"},
      {"[report]\nmodel=no-such-model\n", "x.ini:2: [report] model = no-such-model: "},
      {"[report]\nnode=no-such-node\n", "x.ini:2: [report] node = no-such-node: "},
      {"[report]\nmodel=kimi-k3\n\ntensor_parallel_size=7\n",
       "x.ini:4: [report] tensor_parallel_size = 7: "},
  };
  for (gsize i = 0; i < G_N_ELEMENTS(rows); i++) {
    g_autoptr(GError) error = NULL;
    g_assert_null(oct_audit_text("x.ini", rows[i].text, strlen(rows[i].text), NULL, &error));
    g_assert_nonnull(strstr(error->message, rows[i].says));
  }
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/audit/deployment-report/rates-and-latencies", test_deployment);
  g_test_add_func("/audit/deployment-report/memory", test_deployment_memory);
  g_test_add_func("/audit/deployment-report/topology-and-layout", test_deployment_topology);
  g_test_add_func("/audit/measured-figures-pass", test_measured);
  g_test_add_func("/audit/one-gpu-cannot", test_llama);
  g_test_add_func("/audit/claims-against-each-other", test_traffic);
  g_test_add_func("/audit/bounds-are-tight", test_bounds_are_tight);
  g_test_add_func("/audit/errors-name-line-key-value-limit", test_errors);
  return g_test_run();
}
