/* Prefill and decode pools: two engines of one world, the cache pulled from one to the other. */
#include <string.h>

#include "backends/fault/fault.h"
#include "backends/mock/mock.h"
#include "tests/engine/sched/rig.h"

#define N 12

typedef struct pools {
  rig r;
  oct_model_spec *spec;
  GPtrArray *decodes;     /* rig_request, parallel to the prefills, or NULL: not sent yet */
  gint64 cancel_after_ns; /* every second decode is cancelled so long after it was sent; 0 = none */
} pools;

/* When a prefill has ended its decode request is added: the prompt and the token it gave. */
static gboolean
hand_over(rig *r, const oct_event *event, void *user) {
  (void)event;
  pools *p = user;
  for (guint i = 0; i < N; i++) {
    rig_request *prefill = rig_request_at(r, i);
    if (prefill->n_ends == 0 || g_ptr_array_index(p->decodes, i) != NULL ||
        prefill->record.reason != OCT_END_LENGTH)
      continue;
    oct_request_params d = prefill->params;
    guint32 *ids = g_new(guint32, d.prompt_tokens + 1);
    memcpy(ids, d.prompt_ids, d.prompt_tokens * sizeof *ids);
    ids[d.prompt_tokens] = g_array_index(prefill->tokens[0], guint32, 0);
    d.prompt_ids = ids;
    d.prompt_tokens++;
    d.arrival_ns = r->now;
    d.max_tokens = 20;
    d.export_cache = FALSE;
    d.import_engine = r->engines[0];
    d.import_id = prefill->id;
    rig_request *decode = rig_add(r, 1, &d);
    if (p->cancel_after_ns > 0 && i % 2 == 0)
      decode->cancel_ns = r->now + p->cancel_after_ns;
    p->decodes->pdata[i] = decode;
    g_free(ids);
  }
  return TRUE;
}

static void
set_up_on(pools *p, const char *kind, oct_world *world) {
  memset(p, 0, sizeof *p);
  p->spec = rig_spec(kind);
  rig_init(&p->r, world);
  p->r.on_event = hand_over;
  p->r.user = p;
  p->decodes = g_ptr_array_new();
  g_ptr_array_set_size(p->decodes, N);
  oct_engine_config c;
  rig_config(&c, p->spec, 200, 0);
  rig_add_engine(&p->r, &c);
  c.policy = "vllm-v1";
  rig_add_engine(&p->r, &c);
  for (guint i = 0; i < N; i++) {
    oct_request_params q;
    oct_request_params_default(&q);
    q.prompt_tokens = 20 + 37 * i;
    q.max_tokens = 1;
    q.export_cache = TRUE;
    q.seed = i + 1;
    q.arrival_ns = (oct_time)i * 3000000;
    q.prompt_ids = rig_prompt(p->spec, i, q.prompt_tokens);
    rig_add(&p->r, 0, &q);
    g_free((void *)q.prompt_ids);
  }
}

static void
set_up(pools *p, const char *kind, const oct_mock_options *options) {
  g_autoptr(GError) error = NULL;
  oct_world *world = oct_mock_world_new(options, &error);
  g_assert_no_error(error);
  set_up_on(p, kind, world);
}

static void
tear_down(pools *p) {
  rig_clear(&p->r);
  oct_model_spec_free(p->spec);
  g_ptr_array_unref(p->decodes);
}

/* The mock checks every page and state that a step reads against the chain of its tokens: a decode
 * that ran at all has read what the other engine wrote. */
static void
test_pulls(gconstpointer kind) {
  oct_mock_options options;
  oct_mock_options_default(&options);
  options.shadow.check_leases = TRUE;
  pools p;
  set_up(&p, kind, &options);
  rig_run(&p.r);
  g_assert_cmpstr(p.r.failure, ==, NULL);
  for (guint i = 0; i < N; i++) {
    const rig_request *d = g_ptr_array_index(p.decodes, i);
    g_assert_cmpuint(d->record.output_tokens, ==, 20);
    g_assert_cmpuint(d->record.recomputed_tokens, ==, 0);
  }
  g_assert_cmpuint(p.r.stats[0].exports, ==, N);
  g_assert_cmpuint(p.r.stats[1].pulls, ==, N);
  /* Of each prompt the decode engine has computed one token: the one the prefill gave. */
  g_assert_cmpuint(p.r.stats[1].prompt_tokens, ==, N);
  for (guint e = 0; e < 2; e++)
    for (guint g = 0; g < OCT_MODEL_GROUPS_MAX; g++)
      g_assert_cmpuint(p.r.stats[e].pages_used[g], ==, 0);
  tear_down(&p);
}

/* Releases an export by hand as soon as its decode request waits: the prompt is computed again. */
static gboolean
hand_over_and_drop(rig *r, const oct_event *event, void *user) {
  pools *p = user;
  hand_over(r, event, user);
  for (guint i = 0; i < N; i++)
    if (g_ptr_array_index(p->decodes, i) != NULL)
      (void)oct_engine_release_export(r->engines[0], rig_request_at(r, i)->id);
  return TRUE;
}

static void
test_computes_again(void) {
  oct_mock_options options;
  oct_mock_options_default(&options);
  options.shadow.check_leases = TRUE;
  pools p;
  set_up(&p, "hybrid", &options);
  p.r.on_event = hand_over_and_drop;
  rig_run(&p.r);
  g_assert_cmpstr(p.r.failure, ==, NULL);
  for (guint i = 0; i < N; i++)
    g_assert_cmpuint(((rig_request *)g_ptr_array_index(p.decodes, i))->record.output_tokens, ==,
                     20);
  g_assert_cmpuint(p.r.stats[1].pulls, ==, 0);
  tear_down(&p);
}

/* Cancelled in every state of the pull, at many times: nothing is left on either engine. */
static void
test_cancel(void) {
  guint cancelled = 0;
  for (gint64 delay = 1; delay < 30000000; delay += 1700000) {
    oct_mock_options options;
    oct_mock_options_default(&options);
    options.shadow.check_leases = TRUE;
    options.copy_page_ns = 500000;
    pools p;
    set_up(&p, "hybrid", &options);
    p.cancel_after_ns = delay;
    rig_run(&p.r);
    g_assert_cmpstr(p.r.failure, ==, NULL);
    for (guint i = 0; i < p.r.requests->len; i++)
      cancelled += rig_request_at(&p.r, i)->record.reason == OCT_END_CANCELLED;
    for (guint e = 0; e < 2; e++)
      for (guint g = 0; g < OCT_MODEL_GROUPS_MAX; g++)
        g_assert_cmpuint(p.r.stats[e].pages_used[g], ==, 0);
    tear_down(&p);
  }
  g_assert_cmpuint(cancelled, >, 50); /* of 108: late ones have ended by themselves */
}

/* The decode engine has the instance that it opened first. */
static void
keeps_its_instance(rig *r, void *user) {
  (void)user;
  g_assert_cmpuint(oct_engine_instance(r->engines[1]), ==, 2);
}

/* The prefill instance is lost with any of its steps, at once or at the step's end: its exports are
 * gone and pulls from it fail or are refused, which is no loss of the decode instance. */
static void
test_lost_prefill(void) {
  guint recomputed = 0;
  for (guint64 at = 1; at <= 24; at++) {
    g_autoptr(GError) error = NULL;
    oct_mock_options options;
    oct_mock_options_default(&options);
    options.copy_page_ns = 300000;
    oct_fault_options faults;
    oct_fault_options_default(&faults);
    faults.n_script = 1;
    faults.script[0] = (oct_inject_line){.kind = OCT_INJECT_INSTANCE, .instance = 1, .at = at};
    oct_world *mock = oct_mock_world_new(&options, &error);
    oct_world *world = oct_fault_world_new(mock, &faults, &error);
    g_assert_no_error(error);
    pools p;
    set_up_on(&p, "hybrid", world);
    p.r.on_finish = keeps_its_instance;
    rig_run(&p.r);
    g_assert_cmpstr(p.r.failure, ==, NULL);
    for (guint i = 0; i < N; i++) {
      const rig_request *d = g_ptr_array_index(p.decodes, i);
      g_assert_cmpuint(d->record.output_tokens, ==, 20);
    }
    g_assert_cmpuint(p.r.stats[0].faults[OCT_SEVERITY_INSTANCE], <=, 1);
    g_assert_cmpuint(p.r.stats[1].faults[OCT_SEVERITY_INSTANCE], ==, 0);
    recomputed += p.r.stats[1].prompt_tokens > N;
    tear_down(&p);
  }
  g_assert_cmpuint(recomputed, >, 5);
}

static void
test_refuses(void) {
  pools p;
  set_up(&p, "llama", NULL);
  rig_request *q = rig_request_at(&p.r, 0);
  q->params.max_tokens = 2;
  rig_run(&p.r);
  g_assert_true(q->refused);
  g_assert_nonnull(strstr(q->refusal, "export_cache"));
  tear_down(&p);
}

/* A decode engine whose window pool holds a window and a chunk: a long prompt's pull takes what its
 * window still sees, no more. */
static void
test_small_window(void) {
  oct_mock_options options;
  oct_mock_options_default(&options);
  options.shadow.check_leases = TRUE;
  pools p;
  set_up(&p, "window", &options);
  oct_layer_group groups[OCT_MODEL_GROUPS_MAX];
  guint n = oct_model_groups(p.spec, p.r.configs[1].instance.kv_dtype, groups);
  p.r.configs[1].max_num_seqs = p.r.configs[1].max_num_batched_tokens = 32;
  for (guint g = 0; g < n; g++)
    if (groups[g].window > 0)
      p.r.configs[1].instance.memory.groups[g].n_device = (groups[g].window + 32 + 32 + 15) / 16;
  rig_run(&p.r);
  g_assert_cmpstr(p.r.failure, ==, NULL);
  for (guint i = 0; i < N; i++) {
    const rig_request *d = g_ptr_array_index(p.decodes, i);
    g_assert_cmpuint(d->record.output_tokens, ==, 20);
  }
  g_assert_cmpuint(p.r.stats[1].pulls, ==, N);
  tear_down(&p);
}

static void
stop_all(rig *r, void *user) {
  const guint64 *after = user;
  for (guint i = 0; r->n_events >= *after && i < r->requests->len; i++) {
    rig_request *q = rig_request_at(r, i);
    if (q->id != 0 && q->n_ends == 0)
      q->stopped |= oct_engine_stop(r->engines[q->engine], q->id, 0, r->now);
  }
}

/* A prefill that is stopped before it has computed anything leaves nothing, and is freed. */
static void
test_stopped_prefill(void) {
  for (guint64 after = 0; after < 30; after++) {
    pools p;
    set_up(&p, "llama", NULL);
    p.r.configs[0].max_num_seqs = 1;
    p.r.configs[0].max_num_batched_tokens = 64;
    p.r.on_event = NULL;
    p.r.on_turn = stop_all;
    p.r.user = &after;
    rig_run(&p.r);
    g_assert_cmpstr(p.r.failure, ==, NULL);
    for (guint i = 0; i < N; i++)
      g_assert_cmpuint(rig_request_at(&p.r, i)->n_ends, ==, 1);
    tear_down(&p);
  }
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_data_func("/sched/pull/decode-goes-on-from-the-prefills-pages", "llama", test_pulls);
  g_test_add_data_func("/sched/pull/decode-goes-on-from-the-prefills-state", "hybrid", test_pulls);
  g_test_add_data_func("/sched/pull/windows-leave-what-they-have-passed", "window", test_pulls);
  g_test_add_func("/sched/pull/computes-again-what-is-gone", test_computes_again);
  g_test_add_func("/sched/pull/cancel-leaves-nothing-on-either-engine", test_cancel);
  g_test_add_func("/sched/pull/a-lost-prefill-instance-is-not-the-decode's", test_lost_prefill);
  g_test_add_func("/sched/pull/refuses-an-export-that-could-go-on", test_refuses);
  g_test_add_func("/sched/pull/a-pull-fits-where-its-window-does", test_small_window);
  g_test_add_func("/sched/pull/a-stopped-prefill-leaves-nothing", test_stopped_prefill);
  return g_test_run();
}
