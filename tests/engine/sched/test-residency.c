/* Expert residency through the engine on mock: warm-up, learning, tokens that do not depend on it,
 * faults by seed. Mock ends the world when a copy goes to a slot that a step can read, or a step is
 * told of an expert that is not there. */
#include <string.h>

#include "backends/fault/fault.h"
#include "backends/mock/mock.h"
#include "engine/base/rng.h"
#include "tests/engine/sched/rig.h"

typedef struct run {
  oct_model_spec *spec;
  oct_engine_config config;
  oct_mock_options mock;
  oct_fault_options fault;
  gboolean faulty;
  guint32 n_requests, output;
  guint64 seed;
  /* Results. */
  oct_engine_stats stats;
  oct_hash128 digest;
  GArray *tokens; /* of all requests, in order */
  oct_time first_token_ns;
  guint64 n_missed, n_steps; /* of the results seen, after warm-up's first steps */
} run;

static void
run_init(run *r, const char *model, guint32 n_slots, guint64 seed) {
  g_autoptr(GError) error = NULL;
  *r = (run){.seed = seed, .n_requests = 8, .output = 30};
  r->spec = oct_model_spec_load(model, NULL, &error);
  g_assert_no_error(error);
  rig_config(&r->config, r->spec, 400, 0);
  r->config.instance.memory.n_expert_slots = n_slots;
  r->config.max_num_seqs = 4;
  r->config.max_num_batched_tokens = 64;
  r->config.seed = seed;
  oct_mock_options_default(&r->mock);
  r->mock.shadow.seed = seed;
  r->mock.shadow.check_leases = TRUE;
  r->mock.shadow.expert_skew = 2;
  r->mock.copy_expert_ns = 100000;
  r->mock.expert_miss_ns = 100000;
  oct_fault_options_default(&r->fault);
}

static gboolean
watch(rig *driver, const oct_event *event, void *user) {
  run *r = user;
  if (event->kind == OCT_EVENT_FAULT && event->fault->severity == OCT_SEVERITY_FATAL &&
      driver->failure == NULL)
    driver->failure = g_strdup(event->fault->message);
  if (event->kind != OCT_EVENT_STEP_DONE)
    return TRUE;
  for (guint32 i = 0; event->result != NULL && i < event->result->n_experts; i++)
    r->n_missed += oct_result_experts(event->result)[i].missed;
  r->n_steps++;
  return TRUE;
}

static void
run_go(run *r) {
  g_autoptr(GError) error = NULL;
  oct_world *world = oct_mock_world_new(&r->mock, &error);
  g_assert_no_error(error);
  if (r->faulty)
    world = oct_fault_world_new(world, &r->fault, &error);
  g_assert_no_error(error);
  oct_log *log = oct_log_new_digest();
  r->config.log = log;
  rig driver;
  rig_init(&driver, world);
  driver.on_event = watch;
  driver.user = r;
  rig_add_engine(&driver, &r->config);
  for (guint32 i = 0; i < r->n_requests; i++) {
    oct_request_params p;
    oct_request_params_default(&p);
    p.arrival_ns = (oct_time)i * 3000000;
    p.prompt_tokens = 10 + i * 5 % 40;
    p.max_tokens = r->output;
    p.seed = i + 1;
    g_autofree guint32 *ids = rig_prompt(r->spec, i + 1, p.prompt_tokens);
    p.prompt_ids = ids;
    rig_add(&driver, 0, &p);
  }
  rig_run(&driver);
  if (driver.failure != NULL)
    g_error("seed %" G_GUINT64_FORMAT ": %s", r->seed, driver.failure);
  r->stats = driver.stats[0];
  r->tokens = g_array_new(FALSE, FALSE, sizeof(guint32));
  for (guint i = 0; i < driver.requests->len; i++) {
    const rig_request *q = rig_request_at(&driver, i);
    g_array_append_vals(r->tokens, q->tokens[0]->data, q->tokens[0]->len);
    if (i == 0)
      r->first_token_ns = q->record.first_token_ns;
  }
  rig_clear(&driver);
  r->digest = oct_log_digest(log);
  oct_log_free(log);
}

static void
run_clear(run *r) {
  g_array_unref(r->tokens);
  oct_model_spec_free(r->spec);
}

static double
hit_share(const run *r) {
  return (double)r->stats.experts.hit_pairs / (double)r->stats.experts.used_pairs;
}

/* ---------------------------------------------------------------- tests */

/* A step is submitted when the copies of warm-up have ended, not before, and finds its experts. */
static void
test_warmup(void) {
  run all, some;
  run_init(&all, "qwen3-30b-a3b", 128, 1);
  run_init(&some, "qwen3-30b-a3b", 32, 1);
  all.n_requests = some.n_requests = 1;
  all.config.experts.policy = some.config.experts.policy = OCT_EXPERT_PINNED;
  some.config.experts.warmup = OCT_EXPERT_WARM_POWER_LAW;
  run_go(&all);
  run_go(&some);
  /* 48 layers x slots x 100 us on one stream. */
  g_assert_cmpint(all.first_token_ns, >, G_GINT64_CONSTANT(48) * 128 * 100000);
  g_assert_cmpint(some.first_token_ns, >, G_GINT64_CONSTANT(48) * 32 * 100000);
  g_assert_cmpuint(all.stats.experts.loads, ==, 48 * 128);
  g_assert_cmpuint(some.stats.experts.loads, ==, 48 * 32);
  g_assert_cmpuint(some.stats.experts.loaded_bytes, ==,
                   48 * 32 * oct_model_expert(some.spec, 0).bytes);
  g_assert_cmpuint(all.stats.experts.uses, ==, all.stats.experts.hits);
  g_assert_cmpuint(all.n_missed, ==, 0);
  /* Mock's skewed routing prefers low numbers, as the power law expects. */
  g_assert_cmpfloat(hit_share(&some), >, 0.4);
  g_assert_cmpfloat(hit_share(&some), <, 1);
  g_assert_cmpuint(some.stats.experts.uses - some.stats.experts.hits, ==, some.n_missed);
  run_clear(&all);
  run_clear(&some);
}

/* Pins that knew nothing hold the first experts, which this routing hardly uses; LRU finds the
 * others. */
static void
test_learns(void) {
  double share[2];
  for (int policy = 0; policy < 2; policy++) {
    run r;
    run_init(&r, "qwen3-30b-a3b", 32, 3);
    g_autofree double *histogram = g_new0(double, 48 * 128);
    for (guint32 i = 0; i < 48 * 128; i++)
      histogram[i] = i % 128; /* the opposite of the truth */
    r.config.experts =
        (oct_expert_options){.policy = policy == 0 ? OCT_EXPERT_PINNED : OCT_EXPERT_LRU,
                             .warmup = OCT_EXPERT_WARM_HISTOGRAM,
                             .histogram = histogram,
                             .half_life_steps = 8,
                             .loads_max = 256};
    r.n_requests = 12;
    r.output = 60;
    run_go(&r);
    share[policy] = hit_share(&r);
    g_test_message("%s: %.1f %% of pairs hit over %" G_GUINT64_FORMAT " steps, %" G_GUINT64_FORMAT
                   " loads, %" G_GUINT64_FORMAT " evictions",
                   policy == 0 ? "pins" : "LRU", 100 * share[policy], r.stats.steps,
                   r.stats.experts.loads, r.stats.experts.evictions);
    g_assert_cmpint(r.stats.experts.evictions > 0, ==, policy == 1);
    run_clear(&r);
  }
  g_assert_cmpfloat(share[1], >, share[0] + 0.2);
}

/* What is resident changes times, never tokens. */
static void
test_tokens(void) {
  static const guint32 slots[] = {0, 1, 2, 5, 8};
  run first = {0};
  for (guint i = 0; i < G_N_ELEMENTS(slots); i++) {
    run r;
    run_init(&r, "mixtral-8x7b", slots[i], 2);
    r.config.experts.half_life_steps = 4;
    run_go(&r);
    g_assert_cmpuint(r.stats.ended[OCT_END_LENGTH] + r.stats.ended[OCT_END_STOP], ==, 8);
    if (i == 0) {
      first = r;
      g_assert_cmpuint(r.stats.experts.uses, ==, 0);
      continue;
    }
    g_assert_cmpuint(r.stats.experts.uses, >, 0);
    g_assert_cmpmem(r.tokens->data, r.tokens->len * sizeof(guint32), first.tokens->data,
                    first.tokens->len * sizeof(guint32));
    run_clear(&r);
  }
  run_clear(&first);
}

static void
draw(run *r, guint64 seed) {
  oct_rng rng;
  oct_rng_seed(&rng, seed, 9);
  run_init(r, "mixtral-8x7b", 1 + (guint32)oct_rng_below(&rng, 8), seed);
  oct_parallel *p = &r->config.instance.parallel;
  p->pipeline = 1 + (guint32)oct_rng_below(&rng, 3);
  p->tensor = 1u << oct_rng_below(&rng, 2);
  p->data = 1u << oct_rng_below(&rng, 2);
  p->expert_parallel = oct_rng_below(&rng, 2) == 0;
  r->config.run_ahead = (guint32)oct_rng_below(&rng, 2);
  r->config.experts = (oct_expert_options){
      .policy = oct_rng_below(&rng, 5) == 0 ? OCT_EXPERT_PINNED : OCT_EXPERT_LRU,
      .warmup = oct_rng_below(&rng, 2) == 0 ? OCT_EXPERT_WARM_UNIFORM : OCT_EXPERT_WARM_POWER_LAW,
      .half_life_steps = 1 + (guint32)oct_rng_below(&rng, 6),
      .loads_max = 1 + (guint32)oct_rng_below(&rng, 300)};
  r->config.retries_max = 5;
  r->config.step_deadline_ns = G_GINT64_CONSTANT(10000000000);
  r->mock.copy_expert_ns = (gint64)oct_rng_below(&rng, 3000000);
  r->mock.shadow.expert_skew = (double)oct_rng_below(&rng, 4);
  r->n_requests = 4 + (guint32)oct_rng_below(&rng, 12);
  r->output = 1 + (guint32)oct_rng_below(&rng, 40);
  r->faulty = seed % 3 != 0;
  r->fault.seed = seed;
  r->fault.rate = 0.002 * (double)(1 + oct_rng_below(&rng, 40));
  r->fault.kinds = (guint32)oct_rng_u64(&rng) & ((1u << OCT_INJECT_COUNT) - 1);
  r->fault.kinds &= ~(1u << OCT_INJECT_FATAL);
}

/* Random layouts, slots and faults: the books hold after every event, mock finds nothing wrong,
 * every request ends, and a second run writes the same log. */
static void
test_faults(void) {
  guint64 evictions = 0, failed_steps = 0, lost = 0;
  for (guint64 seed = 1; seed <= 60; seed++) {
    run r, again;
    draw(&r, seed);
    run_go(&r);
    draw(&again, seed);
    run_go(&again);
    g_assert_true(oct_hash128_equal(r.digest, again.digest));
    guint64 ended = 0;
    for (int i = 0; i < OCT_END_COUNT; i++)
      ended += r.stats.ended[i];
    g_assert_cmpuint(ended, ==, r.stats.accepted);
    evictions += r.stats.experts.evictions;
    failed_steps += r.stats.faults[OCT_SEVERITY_STEP];
    lost += r.stats.faults[OCT_SEVERITY_INSTANCE];
    run_clear(&r);
    run_clear(&again);
  }
  g_test_message("%" G_GUINT64_FORMAT " evictions, %" G_GUINT64_FORMAT
                 " failed steps, %" G_GUINT64_FORMAT " lost instances",
                 evictions, failed_steps, lost);
  g_assert_cmpuint(evictions, >, 100);
  g_assert_cmpuint(failed_steps, >, 10);
  g_assert_cmpuint(lost, >, 0);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/sched/residency/warms-up-before-the-first-step", test_warmup);
  g_test_add_func("/sched/residency/learns-what-pins-do-not", test_learns);
  g_test_add_func("/sched/residency/changes-no-token", test_tokens);
  g_test_add_func("/sched/residency/keeps-its-books-under-faults", test_faults);
  return g_test_run();
}
