/* The engine's outside: what is accepted, one request's life, limits, drain. */
#include <math.h>
#include <string.h>

#include "tests/engine/sched/scene.h"

/* ---------------------------------------------------------------- what is refused */

typedef void (*change_config)(oct_engine_config *config);

#define CHANGE(name, statement)                                                                    \
  static void name(oct_engine_config *c) {                                                         \
    statement;                                                                                     \
  }
CHANGE(no_spec, c->instance.spec = NULL)
CHANGE(no_devices, c->instance.devices = NULL)
CHANGE(no_seqs, c->max_num_seqs = 0)
CHANGE(many_seqs, c->max_num_seqs = 5000)
CHANGE(few_tokens, c->max_num_batched_tokens = 15)
CHANGE(many_tokens, c->max_num_batched_tokens = (1 << 20) + 1)
CHANGE(no_block, c->instance.block_size = 0)
CHANGE(run_far_ahead, c->run_ahead = 2)
CHANGE(bad_policy, c->policy = "best")
CHANGE(long_context, c->max_model_len = 1 << 30)
CHANGE(odd_interval, c->state_snapshot_interval = 24)
CHANGE(tags_without_ids, c->carry_ids = FALSE)
CHANGE(few_groups, c->instance.memory.n_groups = 0)
CHANGE(no_pages, c->instance.memory.groups[0].n_device = 0)
CHANGE(many_slices,
       (c->instance.parallel.data = 8, c->max_num_seqs = 1024, c->max_num_batched_tokens = 2048))
CHANGE(many_ids, (c->instance.parallel.data = 8, c->max_num_batched_tokens = 1 << 18))
CHANGE(negative_lead, c->submit_lead_ns = -1)
CHANGE(negative_deadline, c->step_deadline_ns = -1)
CHANGE(negative_gap, c->decode_gap_max_ns = -1)
CHANGE(long_queue, c->queue_max = (1 << 20) + 1)
#undef CHANGE

static void
test_config(void) {
  static const struct {
    change_config change;
    const char *says[2];
  } cases[] = {
      {no_spec, {"model", "given"}},
      {no_devices, {"devices", "given"}},
      {no_seqs, {"max-num-seqs", "1"}},
      {many_seqs, {"5000", "4096"}},
      {few_tokens, {"15", "16"}},
      {many_tokens, {"1048577", "1048576"}},
      {no_block, {"block-size", "1"}},
      {run_far_ahead, {"run-ahead", "2"}},
      {bad_policy, {"best", "policy"}},
      {long_context, {"1073741824", "max-model-len"}},
      {odd_interval, {"24", "16"}},
      {tags_without_ids, {"tags", "ids"}},
      {few_groups, {"0 groups", "1"}},
      {no_pages, {"group 0", "pages"}},
      {many_slices, {"8192", "4096"}},
      {many_ids, {"2097152", "1048576"}},
      {negative_lead, {"submit-lead", "-1"}},
      {negative_deadline, {"step-deadline", "-1"}},
      {negative_gap, {"decode-gap-max", "-1"}},
      {long_queue, {"1048577", "1048576"}},
  };
  for (gsize i = 0; i < G_N_ELEMENTS(cases); i++) {
    scene s;
    scene_init(&s, "llama", 64, 0);
    cases[i].change(&s.config);
    g_autoptr(GError) error = NULL;
    g_assert_null(oct_engine_new(NULL, &s.config, &error));
    g_assert_nonnull(error);
    for (int k = 0; k < 2; k++)
      if (strstr(error->message, cases[i].says[k]) == NULL)
        g_error("case %u: \"%s\" does not name %s", (guint)i, error->message, cases[i].says[k]);
    scene_clear(&s);
  }
}

typedef struct bad_request {
  void (*change)(oct_request_params *p);
  oct_engine_error code;
  const char *says[2];
} bad_request;

#define CHANGE(name, statement)                                                                    \
  static void name(oct_request_params *p) {                                                        \
    statement;                                                                                     \
  }
CHANGE(no_prompt, p->prompt_tokens = 0)
CHANGE(no_ids, p->prompt_ids = NULL)
CHANGE(context_full, p->prompt_tokens = 4096)
CHANGE(prompt_2_31, p->prompt_tokens = 1u << 31)
CHANGE(prompt_2_32, p->prompt_tokens = G_MAXUINT32)
CHANGE(no_choices, p->n = 0)
CHANGE(many_choices, p->n = 9)
CHANGE(endless_choices, p->n = G_MAXUINT32)
CHANGE(no_tokens, p->max_tokens = 0)
CHANGE(min_above_max, (p->min_tokens = 9, p->max_tokens = 8))
CHANGE(many_stops, p->n_stop_tokens = 17)
CHANGE(far_stop, (p->n_stop_tokens = 2, p->stop_tokens[1] = 1u << 30))
CHANGE(many_logprobs, p->n_logprobs = 21)
CHANGE(bad_top_k, p->top_k = -2)
CHANGE(cold, p->temperature = -0.5f)
CHANGE(nan_temperature, p->temperature = NAN)
CHANGE(hot, p->temperature = INFINITY)
CHANGE(hotter_than_a_step, p->temperature = 1.1f * OCT_TEMPERATURE_MAX)
CHANGE(zero_top_p, p->top_p = 0)
CHANGE(tiny_top_p, p->top_p = 0.9f * OCT_TOP_P_MIN)
CHANGE(high_top_p, p->top_p = 1.5f)
CHANGE(nan_top_p, p->top_p = NAN)
CHANGE(high_min_p, p->min_p = 2)
CHANGE(zero_penalty, p->repetition_penalty = 0)
CHANGE(tiny_penalty, p->repetition_penalty = 0.9f * OCT_REPETITION_PENALTY_MIN)
CHANGE(high_penalty, p->repetition_penalty = 1.1f * OCT_PENALTY_MAX)
CHANGE(nan_penalty, p->repetition_penalty = NAN)
CHANGE(presence, p->presence_penalty = 3)
CHANGE(frequency, p->frequency_penalty = -3)
CHANGE(before_time, p->arrival_ns = -1)
CHANGE(past_deadline, p->deadline_ns = -1)
CHANGE(one_token_forked, (p->prompt_tokens = 1, p->n = 2))
CHANGE(more_than_cache, p->prompt_tokens = 1500)
#undef CHANGE

static const bad_request bad_requests[] = {
    {no_prompt, OCT_ENGINE_ERROR_INVALID, {"prompt", "empty"}},
    {no_ids, OCT_ENGINE_ERROR_INVALID, {"prompt", "ids"}},
    {context_full, OCT_ENGINE_ERROR_TOO_LONG, {"4096", "4095"}},
    {prompt_2_31, OCT_ENGINE_ERROR_TOO_LONG, {"2147483648", "4095"}},
    {prompt_2_32, OCT_ENGINE_ERROR_TOO_LONG, {"4294967295", "4095"}},
    {no_choices, OCT_ENGINE_ERROR_INVALID, {"n 0", "8"}},
    {many_choices, OCT_ENGINE_ERROR_INVALID, {"n 9", "8"}},
    {endless_choices, OCT_ENGINE_ERROR_INVALID, {"n 4294967295", "8"}},
    {no_tokens, OCT_ENGINE_ERROR_INVALID, {"max_tokens 0", "1"}},
    {min_above_max, OCT_ENGINE_ERROR_INVALID, {"min_tokens 9", "8"}},
    {many_stops, OCT_ENGINE_ERROR_INVALID, {"17", "16"}},
    {far_stop, OCT_ENGINE_ERROR_INVALID, {"stop token 1 is 1073741824", "49152"}},
    {many_logprobs, OCT_ENGINE_ERROR_INVALID, {"logprobs 21", "20"}},
    {bad_top_k, OCT_ENGINE_ERROR_INVALID, {"top_k", "-1"}},
    {cold, OCT_ENGINE_ERROR_INVALID, {"temperature", "-0.5"}},
    {nan_temperature, OCT_ENGINE_ERROR_INVALID, {"temperature", "nan"}},
    {hot, OCT_ENGINE_ERROR_INVALID, {"temperature", "inf"}},
    {hotter_than_a_step, OCT_ENGINE_ERROR_INVALID, {"temperature", "1e+06"}},
    {tiny_penalty, OCT_ENGINE_ERROR_INVALID, {"repetition_penalty", "1e-06"}},
    {high_penalty, OCT_ENGINE_ERROR_INVALID, {"repetition_penalty", "1e+06"}},
    {zero_top_p, OCT_ENGINE_ERROR_INVALID, {"top_p", "0"}},
    {tiny_top_p, OCT_ENGINE_ERROR_INVALID, {"top_p", "1e-30"}},
    {high_top_p, OCT_ENGINE_ERROR_INVALID, {"top_p", "1.5"}},
    {nan_top_p, OCT_ENGINE_ERROR_INVALID, {"top_p", "nan"}},
    {high_min_p, OCT_ENGINE_ERROR_INVALID, {"min_p", "2"}},
    {zero_penalty, OCT_ENGINE_ERROR_INVALID, {"repetition_penalty", "0"}},
    {nan_penalty, OCT_ENGINE_ERROR_INVALID, {"repetition_penalty", "nan"}},
    {presence, OCT_ENGINE_ERROR_INVALID, {"presence_penalty", "3"}},
    {frequency, OCT_ENGINE_ERROR_INVALID, {"frequency_penalty", "-3"}},
    {before_time, OCT_ENGINE_ERROR_INVALID, {"arrival", "-1"}},
    {past_deadline, OCT_ENGINE_ERROR_INVALID, {"deadline", "-1"}},
    {one_token_forked, OCT_ENGINE_ERROR_INVALID, {"n 2", "2 tokens"}},
    {more_than_cache, OCT_ENGINE_ERROR_TOO_LONG, {"1500", "64"}},
};

static gboolean refusals_seen;

static void
refuse_all(rig *r, void *user) {
  (void)user;
  if (refusals_seen)
    return;
  refusals_seen = TRUE;
  for (gsize i = 0; i < G_N_ELEMENTS(bad_requests); i++) {
    oct_request_params p = rig_request_at(r, 0)->params;
    const bad_request *bad = &bad_requests[i];
    bad->change(&p);
    g_autoptr(GError) error = NULL;
    oct_request_id id = 0;
    g_assert_false(oct_engine_submit(r->engines[0], &p, &id, &error));
    g_assert_error(error, OCT_ENGINE_ERROR, (gint)bad->code);
    for (int k = 0; k < 2; k++)
      if (strstr(error->message, bad->says[k]) == NULL)
        g_error("case %u: \"%s\" does not name %s", (guint)i, error->message, bad->says[k]);
  }
}

static void
test_bad_requests(void) {
  scene s;
  scene_init(&s, "llama", 64, 0);
  refusals_seen = FALSE;
  s.rig.on_turn = refuse_all;
  /* The ids are long enough for what the cases claim, up to what is refused for its length. */
  rig_request *q = scene_ask(&s, 1, 1500, 4);
  q->params.prompt_tokens = 20;
  scene_run(&s);
  g_assert_true(refusals_seen);
  g_assert_cmpint(q->record.reason, ==, OCT_END_LENGTH);
  g_assert_cmpuint(scene_stats(&s)->refused, ==, G_N_ELEMENTS(bad_requests));
  g_assert_cmpuint(scene_stats(&s)->accepted, ==, 1);
  scene_clear(&s);
}

/* max_tokens is bounded by the context, however large it is. */
static void
test_largest_max_tokens(void) {
  scene s;
  scene_init(&s, "llama", 64, 0);
  s.config.max_model_len = 64;
  rig_request *q = scene_ask(&s, 1, 20, G_MAXUINT32), *p = scene_ask(&s, 2, 63, 1u << 31);
  scene_run(&s);
  g_assert_cmpint(q->record.reason, ==, OCT_END_LENGTH);
  g_assert_cmpuint(q->record.output_tokens, ==, 44);
  g_assert_cmpuint(p->record.output_tokens, ==, 1);
  scene_clear(&s);
}

static void
test_queue_limits(void) {
  scene s;
  scene_init(&s, "llama", 64, 0);
  s.config.max_num_seqs = 1;
  s.config.queue_max = 3;
  s.config.queue_tokens_max = 100;
  for (guint i = 0; i < 4; i++)
    (void)scene_ask(&s, i, 10, 4);
  rig_request *few = scene_ask(&s, 9, 10, 4), *large = scene_ask(&s, 9, 91, 4);
  few->params.arrival_ns = 0;
  large->params.arrival_ns = 6 * MS; /* the first runs, two or fewer wait */
  scene_run(&s);
  /* All arrive before the first turn: three are taken. */
  g_assert_true(rig_request_at(&s.rig, 3)->refused);
  g_assert_true(few->refused);
  g_assert_nonnull(strstr(few->refusal, "3 requests wait; the queue takes 3"));
  g_assert_true(large->refused);
  g_assert_nonnull(strstr(large->refusal, "prompt tokens wait; the queue takes 100"));
  g_assert_cmpuint(scene_stats(&s)->refused, ==, 3);
  scene_clear(&s);
}

static void
drain_at_5(rig *r, void *user) {
  (void)user;
  if (r->now >= 5 * MS)
    oct_engine_drain(r->engines[0]);
}

static void
test_drain(void) {
  scene s;
  scene_init(&s, "llama", 64, 0);
  s.config.max_num_seqs = 1;
  s.rig.on_turn = drain_at_5;
  rig_request *runs = scene_ask(&s, 1, 20, 20), *waits = scene_ask(&s, 2, 20, 20);
  rig_request *late = scene_ask(&s, 3, 20, 20);
  late->params.arrival_ns = 7 * MS;
  scene_run(&s);
  g_assert_cmpint(runs->record.reason, ==, OCT_END_LENGTH);
  g_assert_cmpint(waits->record.reason, ==, OCT_END_LENGTH);
  g_assert_true(late->refused);
  g_assert_nonnull(strstr(late->refusal, "draining"));
  scene_clear(&s);
}

/* A backend without adapters: refused where that is known, failed where it was not yet; nobody
 * else notices. */
static void
test_adapters(void) {
  scene s;
  scene_init(&s, "llama", 64, 0);
  s.mock.no_adapters = TRUE;
  s.mock.n_phases = 1;
  s.mock.phases[0] = (oct_mock_phase){"weights", 2 * MS};
  rig_request *early = scene_ask(&s, 1, 20, 4), *late = scene_ask(&s, 1, 20, 4);
  rig_request *plain = scene_ask(&s, 2, 20, 14);
  early->params.adapter = late->params.adapter = 3;
  late->params.arrival_ns = 5 * MS;
  scene_run(&s);
  g_assert_cmpint(early->record.reason, ==, OCT_END_FAILED);
  g_assert_true(late->refused);
  g_assert_nonnull(strstr(late->refusal, "adapter 3"));
  g_assert_cmpint(plain->record.reason, ==, OCT_END_LENGTH);
  g_assert_cmpuint(plain->record.recomputed_tokens, ==, 0);
  scene_clear(&s);
}

/* What becomes of a request, even before the engine's next turn, is not before it arrived. */
static void
test_cancel_on_arrival(void) {
  scene s;
  scene_init(&s, "llama", 64, 0);
  (void)scene_ask(&s, 1, 20, 4);
  rig_request *q = scene_ask(&s, 1, 20, 4);
  q->params.arrival_ns = q->cancel_ns = 500 * MS;
  scene_run(&s);
  g_assert_cmpint(q->record.reason, ==, OCT_END_CANCELLED);
  g_assert_cmpint(q->record.ended_ns, ==, 500 * MS);
  scene_clear(&s);
}

/* The configuration's arrays may go once the engine is there: a lost instance is reopened without
 * them. */
static void
spoil_devices(rig *r, void *user) {
  (void)r;
  memset(user, 0xff, sizeof(guint16));
}

static void
test_owns_config(void) {
  scene s;
  scene_init(&s, "llama", 64, 0);
  s.mock.n_devices = 1;
  guint16 devices[1] = {0};
  s.config.instance.devices = devices;
  s.fault.script[s.fault.n_script++] = (oct_inject_line){OCT_INJECT_INSTANCE, 1, 3};
  s.rig.on_turn = spoil_devices;
  s.rig.user = devices;
  rig_request *q = scene_ask(&s, 1, 20, 8);
  scene_run(&s);
  g_assert_cmpint(q->record.reason, ==, OCT_END_LENGTH);
  scene_clear(&s);
}

/* Many long prompts with penalties, all of them prefix hits: their histories together are more than
 * a step's record takes. They go into several. */
static void
test_long_histories(void) {
  scene s;
  scene_init(&s, "llama", 1200, 0);
  s.config.max_model_len = 8192;
  s.config.max_num_seqs = 200;
  s.config.max_num_batched_tokens = 4096;
  (void)scene_ask(&s, 1, 8000, 1);
  for (guint i = 0; i < 160; i++) {
    rig_request *q = scene_ask(&s, 1, 8000, 2);
    q->params.repetition_penalty = 1.1f;
    q->params.arrival_ns = 1000 * MS;
  }
  s.rig.check = FALSE;
  scene_run(&s);
  for (guint i = 1; i < 161; i++)
    g_assert_cmpint(rig_request_at(&s.rig, i)->record.reason, ==, OCT_END_LENGTH);
  g_assert_cmpuint(scene_stats(&s)->recomputed_tokens, ==, 0);
  scene_clear(&s);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/sched/engine/a-refused-config-names-value-and-limit", test_config);
  g_test_add_func("/sched/engine/a-refused-request-names-value-and-limit", test_bad_requests);
  g_test_add_func("/sched/engine/the-context-bounds-max-tokens", test_largest_max_tokens);
  g_test_add_func("/sched/engine/a-full-queue-names-value-and-limit", test_queue_limits);
  g_test_add_func("/sched/engine/drains", test_drain);
  g_test_add_func("/sched/engine/a-missing-capability-ends-its-request-only", test_adapters);
  g_test_add_func("/sched/engine/nothing-ends-before-it-arrived", test_cancel_on_arrival);
  g_test_add_func("/sched/engine/owns-what-reopening-needs", test_owns_config);
  g_test_add_func("/sched/engine/long-histories-go-into-several-steps", test_long_histories);
  return g_test_run();
}
