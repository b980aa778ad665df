/* Whole plans, on servers of one sequence at a time and 10 ms a step. */
#include "sim/plan/plan.h"

#include <glib/gstdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct bed {
  oct_replay_config base;
  oct_plan_variant variant;
  oct_plan_options plan;
} bed;

static void
bed_init(bed *b) {
  memset(b, 0, sizeof *b);
  oct_replay_config_default(&b->base);
  b->base.rows.path = "gen:chat-150,rate=1,input=1,output=1";
  b->base.exact_lengths = TRUE;
  b->base.setup.seed = 1;
  g_assert_true(oct_slo_parse(&b->base.slo, "ttft_mean=20ms", NULL));
  oct_setup_options *o = &b->variant.options;
  oct_setup_options_default(o);
  o->model = "llama-3.1-8b";
  o->backend = OCT_REPLAY_MOCK;
  o->description = "mock:fixed_ns=10000000,token_ns=0,sequence_ns=0";
  o->engine.max_num_seqs = o->engine.max_num_batched_tokens = 1;
  o->engine.instance.parallel.tensor = 1;
  o->engine.run_ahead = 0;
  o->num_gpu_blocks_override = 256; /* more only take time */
  o->engine.submit_lead_ns = 0;
  b->variant.label = "";
  oct_plan_options_default(&b->plan);
  b->plan.base = &b->base;
  b->plan.endless = TRUE;
  b->plan.n_variants = 1;
  b->plan.variants = &b->variant;
  b->plan.gpus_max = 2;
  b->plan.full_seconds = 10;
  b->plan.coarse_requests = 200;
  b->plan.seeds = 2;
}

static json_t *
make(const bed *b) {
  g_autoptr(GError) error = NULL;
  json_t *plan = oct_plan_make(&b->plan, &error);
  g_assert_no_error(error);
  return plan;
}

static const char *
best_of(const json_t *plan) {
  const json_t *first = json_array_get(json_object_get(plan, "finals"), 0);
  return json_string_value(json_object_get(first, "label"));
}

static void
test_order(void) {
  bed b;
  bed_init(&b);
  b.plan.full_seconds = 60;
  b.plan.coarse_requests = 500;
  b.plan.seeds = 3;
  json_t *plan = make(&b);
  const json_t *first = json_array_get(json_object_get(plan, "finals"), 0);
  g_assert_cmpstr(best_of(plan), ==, "TP1 x2");
  /* Two servers: more than twice one M/D/1, less than they can do. */
  double rate = json_number_value(json_object_get(first, "rate"));
  g_assert_cmpfloat(rate, >, 2 * 200.0 / 3);
  g_assert_cmpfloat(rate, <, 200);
  g_assert_cmpint(json_integer_value(json_object_get(first, "n")), ==, 3);
  g_assert_cmpfloat(json_number_value(json_object_get(first, "rate_half")), <, 0.1 * rate);
  json_decref(plan);
}

static void
test_fewest(void) {
  bed b;
  bed_init(&b);
  b.plan.goal = OCT_PLAN_GOAL_GPUS;
  b.plan.wanted = 40;
  json_t *plan = make(&b);
  g_assert_cmpstr(best_of(plan), ==, "TP1 x1");
  json_decref(plan);
  b.plan.wanted = 100;
  plan = make(&b);
  g_assert_cmpstr(best_of(plan), ==, "TP1 x2");
  json_decref(plan);
  b.plan.wanted = 1000;
  plan = make(&b);
  g_assert_cmpuint(json_array_size(json_object_get(plan, "finals")), ==, 0);
  json_decref(plan);
}

static void
test_children(void) {
  bed b;
  bed_init(&b);
  b.plan.parallel = 1;
  json_t *one = make(&b);
  b.plan.parallel = 5;
  json_t *five = make(&b);
  g_assert_true(json_equal(one, five));
  json_decref(one);
  json_decref(five);
}

/* A state from which some searches were taken is one of a plan that was interrupted. */
static void
test_resume(void) {
  bed b;
  g_autoptr(GError) error = NULL;
  g_autofree char *folder = g_dir_make_tmp("octet-plan-XXXXXX", &error);
  g_autofree char *path = g_build_filename(folder, "state.json", NULL);
  bed_init(&b);
  json_t *whole = make(&b);
  b.plan.state_path = path;
  json_t *kept = make(&b);
  g_assert_true(json_equal(whole, kept));
  json_t *state = json_load_file(path, 0, NULL), *done = json_object_get(state, "done"), *value;
  const char *key;
  void *next;
  guint n = 0;
  g_assert_cmpuint(json_object_size(done), >, 8);
  json_object_foreach_safe(done, next, key, value) if (n++ % 2 == 0) json_object_del(done, key);
  g_assert_cmpint(json_dump_file(state, path, 0), ==, 0);
  json_decref(state);
  json_t *resumed = make(&b);
  g_assert_true(json_equal(whole, resumed));
  json_decref(resumed);
  json_decref(kept);
  json_decref(whole);
  /* Another question does not go on from there. */
  g_assert_true(oct_slo_parse(&b.base.slo, "ttft_mean=30ms", NULL));
  g_assert_null(oct_plan_make(&b.plan, &error));
  g_assert_error(error, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_OPTION);
  g_unlink(path);
  g_rmdir(folder);
}

static void
test_command(void) {
  oct_plan_layout l = {.label = NULL};
  oct_setup_options_default(&l.options);
  l.options.model = "llama-3.1-8b";
  l.options.engine.instance.parallel.tensor = 4;
  l.options.engine.instance.kv_dtype = OCT_DTYPE_FP8;
  g_autofree char *line = oct_plan_serve_command(&l);
  g_assert_cmpstr(line, ==,
                  "octet serve llama-3.1-8b --backend cuda --tensor-parallel-size 4 "
                  "--kv-cache-dtype fp8");
  /* One GPU is said too: a server on a simulated node would take all of it. */
  l.options.engine.instance.parallel.tensor = 1;
  g_autofree char *single = oct_plan_serve_command(&l);
  g_assert_cmpstr(single, ==,
                  "octet serve llama-3.1-8b --backend cuda --tensor-parallel-size 1 "
                  "--kv-cache-dtype fp8");
  /* Knobs that were asked for go on. */
  l.options.gpu_memory_utilization = 0.8;
  l.options.engine.preemption = OCT_PREEMPT_RECOMPUTE;
  l.options.engine.run_ahead = 0;
  l.options.engine.instance.eager = TRUE;
  g_autofree char *knobs = oct_plan_serve_command(&l);
  g_assert_cmpstr(knobs, ==,
                  "octet serve llama-3.1-8b --backend cuda --tensor-parallel-size 1 "
                  "--kv-cache-dtype fp8 --gpu-memory-utilization 0.8 --preemption recompute "
                  "--no-async-scheduling "
                  "--enforce-eager");
  l.options.num_gpu_blocks_override = 512;
  g_autofree char *pages = oct_plan_serve_command(&l);
  g_assert_nonnull(strstr(pages, " --num-gpu-blocks-override 512"));
}

static double
at(const json_t *plan, const char *object, const char *name) {
  return json_number_value(json_object_get(json_object_get(plan, object), name));
}

/* More GPUs than the node has are no layout. */
static void
test_too_many_gpus(void) {
  bed b;
  bed_init(&b);
  b.plan.gpus_max = 9;
  g_autoptr(GError) error = NULL;
  g_assert_null(oct_plan_make(&b.plan, &error));
  g_assert_error(error, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_OPTION);
  g_assert_nonnull(strstr(error->message, "max-gpus 9"));
}

/* A rate that follows: the mean, grown, at the peak. */
static void
test_demand(void) {
  bed b;
  bed_init(&b);
  b.plan.goal = OCT_PLAN_GOAL_GPUS;
  b.plan.asked = (oct_plan_asked){.rate = 20, .growth = 1.5, .peak = 1.2};
  json_t *plan = make(&b);
  g_assert_cmpfloat_with_epsilon(at(plan, "demand", "rate"), 36, 1e-9);
  g_assert_cmpfloat_with_epsilon(at(plan, "question", "wanted_rate"), 36, 1e-9);
  g_assert_cmpstr(best_of(plan), ==, "TP1 x1");
  const json_t *first = json_array_get(json_object_get(plan, "finals"), 0);
  double rate = json_number_value(json_object_get(first, "rate"));
  g_assert_cmpfloat_with_epsilon(at(plan, "demand", "lasts_until_growth"), rate / 24, 1e-9);
  json_decref(plan);
  /* Grown three times it takes the second server. */
  b.plan.asked.growth = 4;
  plan = make(&b);
  g_assert_cmpstr(best_of(plan), ==, "TP1 x2");
  json_decref(plan);
}

/* Without a rate the trace's own is meant. */
static void
test_own_rate(void) {
  bed b;
  bed_init(&b);
  b.base.rows.path = "gen:chat-150,rate=30,input=1,output=1";
  b.plan.goal = OCT_PLAN_GOAL_GPUS;
  b.plan.asked = (oct_plan_asked){.growth = 2};
  json_t *plan = make(&b);
  g_assert_cmpfloat_with_epsilon(at(plan, "demand", "mean_rate"), 30, 1e-9);
  g_assert_cmpfloat_with_epsilon(at(plan, "demand", "rate"), 60, 1e-9);
  json_decref(plan);
}

/* One of two servers lost: the other's rate; of one server nothing is left. */
static void
test_loss(void) {
  bed b;
  bed_init(&b);
  json_t *whole = make(&b);
  b.plan.gpus_max = 1;
  json_t *single = make(&b);
  b.plan.gpus_max = 2;
  b.variant.survive_loss = TRUE;
  json_t *plan = make(&b);
  const json_t *finals = json_object_get(plan, "finals"), *first = json_array_get(finals, 0);
  g_assert_cmpstr(best_of(plan), ==, "TP1 x2");
  g_assert_cmpstr(json_string_value(json_object_get(first, "after_loss")), ==, "TP1 x1");
  g_assert_cmpuint(json_array_size(finals), ==, 1);
  double lost = json_number_value(json_object_get(first, "rate"));
  double healthy = json_number_value(json_object_get(first, "healthy_rate"));
  const json_t *l;
  gsize i;
  g_assert_cmpstr(best_of(single), ==, "TP1 x1");
  double one = json_number_value(
      json_object_get(json_array_get(json_object_get(single, "finals"), 0), "rate"));
  double two = 0;
  json_array_foreach(json_object_get(whole, "finals"), i, l) {
    const char *label = json_string_value(json_object_get(l, "label"));
    g_assert_cmpstr(label, !=, "TP1 x1"); /* fewer of the same are no other choice */
    if (strcmp(label, "TP1 x2") == 0)
      two = json_number_value(json_object_get(l, "rate"));
  }
  g_assert_cmpfloat_with_epsilon(lost, one, 0.06 * one);
  g_assert_cmpfloat_with_epsilon(healthy, two, 0.1 * two);
  json_array_foreach(json_object_get(plan, "layouts"), i, l) {
    if (strcmp(json_string_value(json_object_get(l, "label")), "TP1 x1") == 0) {
      g_assert_cmpstr(json_string_value(json_object_get(l, "fate")), ==, "bounded");
      g_assert_nonnull(strstr(json_string_value(json_object_get(l, "why")), "one GPU lost"));
    }
  }
  json_decref(plan);
  json_decref(single);
  json_decref(whole);
}

/* ---------------------------------------------------------------- too short */

/* 64 sequences at a time, 100 tokens each of 10 ms a step: 64 a second, each of which stays one
 * second; five of those are three quarters of 6.7 s. */
static void
sixty_four(bed *b) {
  bed_init(b);
  b->base.rows.path = "gen:chat-150,rate=1,input=1,output=100";
  g_assert_true(oct_slo_parse(&b->base.slo, "ttft_p99=1s", NULL));
  b->variant.options.engine.max_num_seqs = 64;
  b->variant.options.engine.max_num_batched_tokens = 128;
  b->variant.options.num_gpu_blocks_override = 4096;
  b->plan.gpus_max = 1;
}

/* The plan of a recorded trace of these rows. */
static json_t *
make_recorded(bed *b, const char *rows) {
  g_autoptr(GError) error = NULL;
  g_autofree char *folder = g_dir_make_tmp("octet-plan-XXXXXX", &error);
  g_autofree char *path = g_build_filename(folder, "trace.jsonl", NULL);
  g_autofree char *text = g_strconcat("{\"octet_trace\":1,\"source\":\"rows\"}\n", rows, NULL);
  g_assert_true(g_file_set_contents(path, text, -1, &error));
  b->base.rows.path = path;
  b->plan.endless = FALSE;
  json_t *plan = make(b);
  g_unlink(path);
  g_rmdir(folder);
  return plan;
}

/* So many requests, evenly spaced. */
static json_t *
recorded(guint n) {
  bed b;
  g_autoptr(GString) rows = g_string_new(NULL);
  for (guint i = 0; i < n; i++)
    g_string_append_printf(rows, "{\"arrival_us\":%u,\"input_tokens\":1,\"output_tokens\":100}\n",
                           i * 100000);
  sixty_four(&b);
  return make_recorded(&b, rows->str);
}

static const char *
no_verdict(const json_t *plan) {
  return json_string_value(json_object_get(plan, "no_verdict"));
}

static double
first_rate(const json_t *plan) {
  return json_number_value(
      json_object_get(json_array_get(json_object_get(plan, "finals"), 0), "rate"));
}

static void
no_recommendation(const json_t *plan) {
  g_assert_true(json_is_null(json_object_get(plan, "serve")));
  g_assert_cmpuint(json_array_size(json_object_get(plan, "pareto")), ==, 0);
  const json_t *changes = json_object_get(json_object_get(plan, "what_if"), "changes");
  g_assert_cmpuint(json_array_size(changes), ==, 0);
}

/* Requests that would all be in the engine at once say nothing of what it serves for long. */
static void
test_too_short(void) {
  static const guint lengths[] = {4, 300};
  for (gsize i = 0; i < G_N_ELEMENTS(lengths); i++) {
    json_t *plan = recorded(lengths[i]);
    g_assert_nonnull(no_verdict(plan));
    g_assert_nonnull(strstr(no_verdict(plan), "while a request stays"));
    g_assert_nonnull(strstr(no_verdict(plan), "A longer trace tells"));
    no_recommendation(plan);
    g_assert_cmpfloat(first_rate(plan), <, 64);
    const json_t *first = json_array_get(json_object_get(plan, "finals"), 0);
    if (first != NULL)
      g_assert_true(json_is_false(json_object_get(first, "judged")));
    json_decref(plan);
  }
}

static void
test_long_enough(void) {
  json_t *plan = recorded(600);
  g_assert_null(no_verdict(plan));
  g_assert_cmpfloat(first_rate(plan), >, 0.93 * 64);
  g_assert_cmpfloat(first_rate(plan), <, 1.03 * 64);
  g_assert_true(json_is_string(json_object_get(plan, "serve")));
  g_assert_cmpstr(best_of(plan), ==, "TP1 x1");
  json_decref(plan);
}

/* ---------------------------------------------------------------- what-ifs */

/* Two servers beside one, on a trace whose first 200 requests, which a coarse run of one server
 * has, come evenly, and the others in eights: 10 a second in the mean. */
static json_t *
in_eights(double growth) {
  bed b;
  g_autoptr(GString) rows = g_string_new(NULL);
  for (guint i = 0; i < 1200; i++)
    g_string_append_printf(rows, "{\"arrival_us\":%u,\"input_tokens\":1,\"output_tokens\":1}\n",
                           (i < 200 ? i : i / 8 * 8) * 100000 + (i < 200 ? 0 : i % 8 * 10000));
  bed_init(&b);
  b.plan.goal = OCT_PLAN_GOAL_GPUS;
  b.plan.asked = (oct_plan_asked){.growth = growth};
  json_t *plan = make_recorded(&b, rows->str);
  g_assert_cmpstr(best_of(plan), ==, "TP1 x2");
  return plan;
}

/* The layout that is recommended was searched as another number of replicas; what-ifs are of its
 * own. Answers of one token are of one token all the same when they are a fifth longer or shorter:
 * the rate is the first's, to the 6 % of two coarse searches. */
static void
test_nothing_changed(void) {
  json_t *plan = in_eights(4);
  const json_t *changes = json_object_get(json_object_get(plan, "what_if"), "changes"), *change;
  gsize i, outputs = 0;
  json_array_foreach(changes, i, change) {
    if (!g_str_has_prefix(json_string_value(json_object_get(change, "change")), "outputs"))
      continue;
    const double rate = json_number_value(json_object_get(change, "rate"));
    g_assert_cmpfloat(rate, >, first_rate(plan) / 1.13);
    g_assert_cmpfloat(rate, <, first_rate(plan) * 1.13);
    outputs++;
  }
  g_assert_cmpuint(outputs, ==, 2);
  json_decref(plan);
}

/* A coarse run serves it, the whole trace does not. */
static void
test_not_enough(void) {
  json_t *plan = in_eights(8);
  const double mean = at(plan, "demand", "mean_rate");
  g_assert_cmpfloat(first_rate(plan), <, 8 * mean);
  g_assert_cmpfloat_with_epsilon(at(plan, "demand", "lasts_until_growth"), first_rate(plan) / mean,
                                 1e-9);
  json_decref(plan);
}

/* A stream has more to give, up to 16 times what was asked for; and the plan says so. */
static void
test_extended(void) {
  bed b;
  sixty_four(&b);
  b.plan.full_seconds = 1;
  json_t *plan = make(&b);
  g_assert_null(no_verdict(plan));
  g_assert_cmpfloat(first_rate(plan), <, 1.05 * 64);
  g_assert_cmpfloat(at(plan, "method", "full_seconds"), ==, 1);
  g_assert_cmpfloat(at(plan, "method", "full_seconds_most"), >=, 5 / 0.75);
  g_assert_true(json_is_string(json_object_get(plan, "serve")));
  json_decref(plan);
  b.plan.full_seconds = 0.2;
  plan = make(&b);
  g_assert_nonnull(no_verdict(plan));
  g_assert_nonnull(strstr(no_verdict(plan), "A --duration of more than"));
  no_recommendation(plan);
  json_decref(plan);
}

/* A rate that was seen to be served is enough where no more is wanted. */
static void
test_short_but_enough(void) {
  bed b;
  sixty_four(&b);
  b.plan.full_seconds = 0.4; /* at most 6.4: too short for what is served at most */
  b.plan.goal = OCT_PLAN_GOAL_GPUS;
  b.plan.wanted = 1;
  json_t *plan = make(&b);
  g_assert_cmpstr(best_of(plan), ==, "TP1 x1");
  json_decref(plan);
}

/* One server of two domains or two such have the same rate per GPU, and the same latencies. */
static void
test_front(void) {
  bed b;
  bed_init(&b);
  b.variant.options.engine.instance.parallel.data = 2;
  b.plan.gpus_max = 4;
  json_t *plan = make(&b);
  const json_t *front = json_object_get(plan, "pareto"), *l;
  gsize i;
  gboolean found = FALSE;
  json_array_foreach(front, i, l) found |=
      strcmp(json_string_value(json_object_get(l, "label")), best_of(plan)) == 0;
  g_assert_true(found);
  json_decref(plan);
}

/* They are told once, and are the same for every stream. */
static void
test_assumptions(void) {
  bed b;
  bed_init(&b);
  json_t *plan = make(&b);
  g_assert_cmpuint(json_array_size(json_object_get(plan, "assumptions")), >, 0);
  char *text = json_dumps(json_object_get(plan, "finals"), 0);
  g_assert_null(strstr(text, "\"assumptions\""));
  free(text);
  json_decref(plan);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/plan/plan/two-servers-come-before-one", test_order);
  g_test_add_func("/plan/plan/the-fewest-that-serve-a-rate", test_fewest);
  g_test_add_func("/plan/plan/children-change-no-answer", test_children);
  g_test_add_func("/plan/plan/resumed-equals-uninterrupted", test_resume);
  g_test_add_func("/plan/plan/one-command-line", test_command);
  g_test_add_func("/plan/plan/no-more-gpus-than-the-node-has", test_too_many_gpus);
  g_test_add_func("/plan/plan/growth-and-peak-multiply-the-rate", test_demand);
  g_test_add_func("/plan/plan/growth-of-a-trace-is-of-its-own-rate", test_own_rate);
  g_test_add_func("/plan/plan/a-loss-leaves-the-other-servers", test_loss);
  g_test_add_func("/plan/plan/a-trace-that-is-too-short-gets-no-verdict", test_too_short);
  g_test_add_func("/plan/plan/a-trace-just-long-enough-gets-its-rate", test_long_enough);
  g_test_add_func("/plan/plan/a-stream-goes-on-until-it-can-be-judged", test_extended);
  g_test_add_func("/plan/plan/what-is-wanted-may-be-less-than-is-known", test_short_but_enough);
  g_test_add_func("/plan/plan/a-change-of-nothing-changes-no-rate", test_nothing_changed);
  g_test_add_func("/plan/plan/growth-ends-where-the-nodes-do", test_not_enough);
  g_test_add_func("/plan/plan/of-equals-the-front-keeps-the-recommended", test_front);
  g_test_add_func("/plan/plan/assumptions-are-told-once", test_assumptions);
  return g_test_run();
}
