/* --speculative-config as text, and what the twin makes of it against closed forms. */
#include "config.h"

#include "sim/replay/speculation.h"

#include <math.h>
#include <string.h>

#include <glib/gstdio.h>

#include "sim/cost/cost.h"
#include "sim/replay/jobs.h"
#include "sim/replay/replay.h"
#include "sim/replay/report.h"

/* ---------------------------------------------------------------- the text */

static void
parse(const char *text, oct_speculative *s) {
  g_autoptr(GError) error = NULL;
  gboolean good = oct_speculative_parse(text, s, &error);
  g_assert_no_error(error);
  g_assert_true(good);
}

static void
reads_vllms_json(void) {
  oct_speculative s;
  parse("{\"method\":\"ngram\",\"num_speculative_tokens\":5,\"prompt_lookup_max\":4,"
        "\"prompt_lookup_min\":2}",
        &s);
  g_assert_cmpint(s.method, ==, OCT_DRAFT_NGRAM);
  g_assert_cmpuint(s.n_tokens, ==, 5);
  g_assert_cmpuint(s.ngram_max, ==, 4);
  g_assert_cmpuint(s.ngram_min, ==, 2);
  oct_speculative_clear(&s);
  parse("{\"model\":\"small\",\"num_speculative_tokens\":3,\"draft_tensor_parallel_size\":1,"
        "\"disable_by_batch_size\":32,\"min_acceptance\":0,\"acceptance\":[0.8,0.5]}",
        &s);
  g_assert_cmpint(s.method, ==, OCT_DRAFT_MODEL);
  g_assert_cmpstr(s.model, ==, "small");
  g_assert_cmpuint(s.tensor, ==, 1);
  g_assert_cmpuint(s.seqs_max, ==, 32);
  g_autofree char *rates = oct_speculative_rates(&s);
  g_assert_cmpstr(rates, ==, "0.80000000000000004+0.5");
  oct_speculative_clear(&s);
  /* As vLLM: one of the two lookups is both, none is 5. */
  parse("{\"method\":\"ngram\",\"num_speculative_tokens\":1,\"prompt_lookup_max\":3}", &s);
  g_assert_cmpuint(s.ngram_min, ==, 3);
  parse("{\"method\":\"ngram\",\"num_speculative_tokens\":1}", &s);
  g_assert_cmpuint(s.ngram_min, ==, 5);
  g_assert_cmpuint(s.ngram_max, ==, 5);
}

static void
a_server_is_told_what_concerns_it(void) {
  g_autofree char *text = oct_speculative_of_server(
      "{\"method\":\"ngram\",\"acceptance\":[0.5],\"num_speculative_tokens\":2,"
      "\"proposal_rate\":1}");
  g_assert_cmpstr(text, ==, "{\"method\":\"ngram\",\"num_speculative_tokens\":2}");
}

static void
refuses_by_name(void) {
  static const char *const cases[][2] = {
      {"", "no JSON"},
      {"[]", "no JSON object"},
      {"{}", "which method"},
      {"{\"method\":\"eagle\",\"num_speculative_tokens\":2}", "method \"eagle\""},
      {"{\"method\":\"ngram\"}", "num_speculative_tokens is missing"},
      {"{\"method\":\"ngram\",\"num_speculative_tokens\":16}",
       "num_speculative_tokens: 16 is not a whole number from 1 to 15"},
      {"{\"method\":\"ngram\",\"num_speculative_tokens\":2.5}", "2.5 is not a whole number"},
      {"{\"method\":\"ngram\",\"num_speculative_tokens\":\"5\"}", "\"5\" is not a whole number"},
      {"{\"method\":\"ngram\",\"num_speculative_tokens\":2,\"min_acceptance\":-1}",
       "min_acceptance: -1 is not a number from 0 to 1"},
      {"{\"method\":\"ngram\",\"num_speculative_tokens\":2,\"model\":\"m\"}",
       "model \"m\": of method draft_model"},
      {"{\"method\":\"ngram\",\"num_speculative_tokens\":2,\"tree\":1}", "\"tree\" is not known"},
      {"{\"method\":\"draft_model\",\"num_speculative_tokens\":2}", "which model"},
      {"{\"method\":\"ngram\",\"num_speculative_tokens\":2,\"prompt_lookup_min\":4,"
       "\"prompt_lookup_max\":3}",
       "prompt_lookup_min 4 is above prompt_lookup_max 3"},
      {"{\"method\":\"ngram\",\"num_speculative_tokens\":2,\"draft_tensor_parallel_size\":1}",
       "of method draft_model"},
      {"{\"method\":\"ngram\",\"num_speculative_tokens\":2,\"acceptance\":1.5}", "acceptance"},
      {"{\"method\":\"ngram\",\"num_speculative_tokens\":2,\"acceptance\":[]}", "acceptance"},
      {"{\"method\":\"ngram\",\"num_speculative_tokens\":2,\"acceptance\":\"/none\"}", "/none"},
      {"{\"method\":\"ngram\",\"method\":\"ngram\",\"num_speculative_tokens\":2}", "no JSON"},
  };
  for (gsize i = 0; i < G_N_ELEMENTS(cases); i++) {
    oct_speculative s;
    g_autoptr(GError) error = NULL;
    g_assert_false(oct_speculative_parse(cases[i][0], &s, &error));
    if (strstr(error->message, cases[i][1]) == NULL)
      g_error("%s: \"%s\" does not say %s", cases[i][0], error->message, cases[i][1]);
  }
}

/* 1,000 slices, of which 800, 400 and 100 had their first, second and third draft accepted. */
static void
reads_a_servers_metrics(void) {
  static const char text[] =
      "# TYPE vllm:spec_decode_num_drafts_total counter\n"
      "vllm:spec_decode_num_drafts_total{model_name=\"m\",engine=\"0\"} 600\n"
      "vllm:spec_decode_num_drafts_total{model_name=\"m\",engine=\"1\"} 400\n"
      "vllm:spec_decode_num_accepted_tokens_total{model_name=\"m\",engine=\"0\"} 1300\n"
      "vllm:spec_decode_num_accepted_tokens_per_pos_total{engine=\"0\",position=\"0\"} 800\n"
      "vllm:spec_decode_num_accepted_tokens_per_pos_total{engine=\"0\",position=\"1\"} 400\n"
      "vllm:spec_decode_num_accepted_tokens_per_pos_total{engine=\"0\",position=\"2\"} 100\n"
      "vllm:generation_tokens_total{engine=\"0\"} 3400\n"
      "vllm:request_success_total{engine=\"0\",finished_reason=\"stop\"} 100\n";
  g_autofree char *path = NULL;
  int fd = g_file_open_tmp("octet-metrics-XXXXXX", &path, NULL);
  g_assert_cmpint(fd, >=, 0);
  g_close(fd, NULL);
  g_assert_true(g_file_set_contents(path, text, -1, NULL));
  g_autofree char *json = g_strdup_printf(
      "{\"method\":\"ngram\",\"num_speculative_tokens\":3,\"acceptance\":\"%s\"}", path);
  oct_speculative s;
  parse(json, &s);
  g_unlink(path);
  g_assert_cmpuint(s.n_acceptance, ==, 3);
  g_assert_cmpfloat_with_epsilon(s.acceptance[0], 0.8, 1e-12);
  g_assert_cmpfloat_with_epsilon(s.acceptance[1], 0.5, 1e-12);
  g_assert_cmpfloat_with_epsilon(s.acceptance[2], 0.25, 1e-12);
  /* 3,400 tokens, less 1,300 drafts and 100 first tokens of prompts, are 2,000 slices. */
  g_assert_cmpfloat_with_epsilon(s.proposal_rate, 0.5, 1e-12);
}

/* ---------------------------------------------------------------- replays */

static json_t *
run_job(void *user, guint index, GError **error) {
  const oct_replay_config *config = (const oct_replay_config *)user + index;
  oct_replay_result result;
  if (!oct_replay_run(config, &result, error))
    return NULL;
  json_t *report = oct_replay_json(config, &result);
  /* Of the whole run, not of its window. */
  const oct_draft_stats *d = &result.drive.stats.speculation;
  json_object_set_new(report, "drafts", json_integer((json_int_t)d->drafts));
  json_object_set_new(report, "accepted", json_integer((json_int_t)d->accepted));
  json_object_set_new(report, "generated",
                      json_integer((json_int_t)result.drive.stats.generated_tokens));
  oct_replay_result_clear(&result);
  return report;
}

static json_t *
replay(const char *trace, const char *node, const char *speculative) {
  g_autoptr(GError) error = NULL;
  oct_replay_config c;
  json_t *report;
  oct_replay_config_default(&c);
  c.rows.path = trace;
  c.setup.model = "llama-3.1-8b";
  c.setup.node = node;
  c.setup.backend = node != NULL ? OCT_REPLAY_SIMGRID : OCT_REPLAY_MOCK;
  c.setup.speculative = speculative;
  c.exact_lengths = TRUE;
  c.warmup_ns = 0;
  gboolean good = oct_jobs_run(1, run_job, &c, NULL, &report, &error);
  g_assert_no_error(error);
  g_assert_true(good);
  return report;
}

/* With chance a for each draft once those before it were accepted, a slice of k drafts gives
 * (1 - a^(k + 1)) / (1 - a) tokens on average. */
static void
a_slice_gives_what_the_closed_form_says(void) {
  static const struct {
    double a;
    guint k;
  } cases[] = {{0.3, 1}, {0.6, 3}, {0.8, 5}, {0.9, 8}, {0.95, 15}};
  for (gsize i = 0; i < G_N_ELEMENTS(cases); i++) {
    double a = cases[i].a;
    guint k = cases[i].k;
    g_autofree char *config = g_strdup_printf(
        "{\"method\":\"ngram\",\"num_speculative_tokens\":%u,\"acceptance\":%.2f}", k, a);
    json_t *r = replay("gen:rate=20,input=64,output=2000,requests=40", NULL, config);
    double slices = oct_report_number(r, "drafts");
    double got = 1 + oct_report_number(r, "accepted") / slices;
    double want = (1 - pow(a, k + 1)) / (1 - a);
    /* The number of tokens is between 1 and k + 1: its deviation is at most k / 2. */
    double sigma = 0.5 * k / sqrt(slices);
    g_test_message("a %.2f, k %u: %.3f tokens a slice, %.3f in the limit, of %.0f slices", a, k,
                   got, want, slices);
    g_assert_cmpfloat(slices, >, 4000);
    g_assert_cmpfloat(fabs(got - want), <, 4 * sigma + 0.002 * want);
    json_decref(r);
  }
}

/* The chance of having drafts at all, and chances by place. */
static void
chances_are_by_place(void) {
  json_t *r = replay("gen:rate=20,input=64,output=2000,requests=40", NULL,
                     "{\"method\":\"ngram\",\"num_speculative_tokens\":4,\"acceptance\":[0.9,0.5],"
                     "\"proposal_rate\":0.25}");
  const json_t *places = oct_report_at(r, "speculation.accepted_share_by_place");
  static const double want[] = {0.9, 0.45, 0.225, 0.1125};
  double slices = oct_report_number(r, "drafts");
  for (gsize i = 0; i < G_N_ELEMENTS(want); i++)
    g_assert_cmpfloat_with_epsilon(json_number_value(json_array_get(places, i)), want[i],
                                   2.5 / sqrt(slices));
  /* A decode gives one token and those accepted; each of 40 prompts gives one too. */
  double decodes = oct_report_number(r, "generated") - oct_report_number(r, "accepted") - 40;
  g_assert_cmpfloat_with_epsilon(slices / decodes, 0.25, 0.02);
  json_decref(r);
}

#ifdef HAVE_SIMGRID
static gint64
price(const oct_cost *cost, guint32 tokens, guint32 position) {
  const oct_slice slice = {.n_tokens = tokens,
                           .sample = tokens > 1 ? OCT_SAMPLE_ALL : OCT_SAMPLE_LAST,
                           .flags = tokens > 1 ? OCT_SLICE_VERIFY : 0};
  oct_step_shape shape = {.n_domains = 1};
  oct_step_price out;
  oct_domain_shape_add(&shape.domains[0], &slice, position, 0);
  oct_cost_step(cost, &shape, &out);
  return out.stages[0].ns;
}
#endif

/* One sequence whose drafts are all right: the time between its first and last token is that of its
 * verifications, of the draft model's k steps before each, and of the host's work between. */
static void
a_step_takes_what_drafts_and_verification_cost(void) {
#ifndef HAVE_SIMGRID
  g_test_skip("SimGrid is not built in");
#else
  enum { K = 4, PROMPT = 1000, SLICES = 200, OUTPUT = 1 + SLICES * (K + 1) };
  json_t *r = replay("gen:rate=1,input=1000,output=1001,requests=1", "h200x1",
                     "{\"method\":\"draft_model\",\"model\":\"llama-3.1-8b\","
                     "\"num_speculative_tokens\":4,\"acceptance\":1}");
  g_autoptr(GError) error = NULL;
  g_autoptr(oct_profile) profile = oct_profile_load("h200x1", NULL, NULL, &error);
  g_autoptr(oct_model_spec) spec = oct_model_spec_load("llama-3.1-8b", NULL, &error);
  oct_parallel one = OCT_PARALLEL_DEFAULT;
  oct_cost_options options = OCT_COST_OPTIONS_DEFAULT;
  g_autoptr(oct_cost) cost = oct_cost_new(spec, &one, NULL, profile, &options, &error);
  g_assert_no_error(error);
  double device = 0;
  for (guint32 i = 0; i < SLICES; i++) {
    guint32 known = PROMPT + 1 + i * (K + 1);
    device += (double)price(cost, K + 1, known - 1);
    for (guint32 k = 1; k < K; k++)
      device += (double)price(cost, 1, known + k - 1);
    /* The draft model first takes in what it has not seen: two tokens, or at first the prompt. */
    device += (double)price(cost, 1, known - 1);
  }
  double host = SLICES * 2 * (double)oct_cost_step_host_ns(cost, 1);
  double got = oct_report_number(r, "latency_s.tpot.mean") * (OUTPUT - 1);
  g_test_message("%.4f s between first and last token: %.4f s of kernels, %.4f s of the host", got,
                 device / 1e9, host / 1e9);
  g_assert_cmpfloat(oct_report_number(r, "drafts"), ==, SLICES);
  g_assert_cmpfloat(got, >, device / 1e9);
  g_assert_cmpfloat(got, <, 1.03 * (device + host) / 1e9);
  json_decref(r);
#endif
}

/* The same scheduler, stepped or not, and twice the same. */
static void
two_runs_are_equal(void) {
  static const char config[] = "{\"method\":\"draft_model\",\"model\":\"llama-3.1-8b\","
                               "\"num_speculative_tokens\":3,\"acceptance\":[0.8,0.7],"
                               "\"disable_by_batch_size\":4}";
  json_t *a = replay("gen:chat-150,rate=6,requests=300", NULL, config);
  json_t *b = replay("gen:chat-150,rate=6,requests=300", NULL, config);
  json_object_del(a, "run");
  json_object_del(b, "run");
  g_assert_cmpfloat(oct_report_number(a, "speculation.drafts"), >, 100);
  g_assert_true(json_equal(a, b));
  json_decref(a);
  json_decref(b);
}

/* What the draft model takes of a GPU is not there for the model's cache. */
static void
the_draft_model_takes_its_memory(void) {
  oct_setup_options o;
  oct_setup plain, s;
  g_autoptr(GError) error = NULL;
  oct_setup_options_default(&o);
  o.model = "llama-3.1-70b";
  o.node = "h200-hgx8";
  o.engine.instance.parallel.tensor = 4;
  gboolean good = oct_setup_make(&o, &plain, &error);
  g_assert_no_error(error);
  o.speculative = "{\"method\":\"draft_model\",\"model\":\"llama-3.1-8b\","
                  "\"num_speculative_tokens\":3,\"draft_tensor_parallel_size\":1}";
  good = good && oct_setup_make(&o, &s, &error);
  g_assert_no_error(error);
  g_assert_true(good);
  const oct_instance_config *draft = &s.engine.speculation.draft;
  guint32 pages = s.engine.instance.memory.groups[0].n_device;
  g_assert_cmpuint(draft->parallel.tensor, ==, 1);
  g_assert_cmpuint(draft->memory.groups[0].n_device, ==, pages);
  /* 16.1 GB of weights and its workspace, and 131,072 bytes a token beside the 81,920 of a rank. */
  double bytes = (double)plain.engine.instance.memory.groups[0].n_device * 16 * 81920;
  double share = pages * 16.0 * (81920 + 131072);
  g_assert_cmpfloat((bytes - share) / 1e9, >, 16.06);
  g_assert_cmpfloat((bytes - share) / 1e9, <, 20);
  oct_setup_clear(&s);
  oct_setup_clear(&plain);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
#define ADD(name, function) g_test_add_func("/replay/speculation/" name, function)
  ADD("reads-vllms-json", reads_vllms_json);
  ADD("refuses-by-name", refuses_by_name);
  ADD("a-server-is-told-what-concerns-it", a_server_is_told_what_concerns_it);
  ADD("reads-a-servers-metrics", reads_a_servers_metrics);
  ADD("a-slice-gives-what-the-closed-form-says", a_slice_gives_what_the_closed_form_says);
  ADD("chances-are-by-place", chances_are_by_place);
  ADD("a-step-takes-what-drafts-and-verification-cost",
      a_step_takes_what_drafts_and_verification_cost);
  ADD("two-runs-are-equal", two_runs_are_equal);
  ADD("the-draft-model-takes-its-memory", the_draft_model_takes_its_memory);
#undef ADD
  return g_test_run();
}
