/* The host tier through the engine: preemption by offload, reload, spill, and cancel at each stage.
 * mock looks at every copy: what it reads must be there, what it writes must be free. */
#include "tests/engine/sched/scene.h"

/* A choice that has just been forked cannot leave in the same step: the step's copies are still to
 * write what it holds. */
static void
test_fresh_choice(void) {
  for (guint32 pages = 8; pages <= 12; pages++)
    for (guint32 n = 2; n <= 5; n++) {
      scene s;
      scene_init(&s, "hybrid", pages, 32);
      s.config.run_ahead = 0; /* nothing drains, so that somebody has to leave */
      rig_request *t = scene_ask(&s, 1, 33, 10), *b = scene_ask(&s, 2, 40, 30);
      t->params.n = n;
      scene_run(&s);
      g_assert_true(t->refused || t->record.reason == OCT_END_LENGTH);
      g_assert_cmpint(b->record.reason, ==, OCT_END_LENGTH);
      scene_clear(&s);
    }
}

static void
without_ids(rig_request *q) {
  g_free((guint32 *)(void *)(guintptr)q->params.prompt_ids);
  q->params.prompt_ids = NULL;
}

/* A cache of more pages than a transfer may have copies does not go to the host, and does not come
 * from there: it is computed again. Nobody else notices. */
static void
test_large_transfer(void) {
  scene s;
  scene_init(&s, "hybrid", 66300, 150000);
  s.config.carry_ids = s.config.instance.check_tags = FALSE;
  s.config.instance.block_size = 1;
  s.config.max_model_len = 100000;
  s.config.max_num_batched_tokens = 70000;
  s.rig.check = FALSE;
  rig_request *small = scene_ask(&s, 1, 50, 300), *large = scene_ask(&s, 2, 66000, 290);
  large->params.arrival_ns = 5 * MS;
  without_ids(small);
  without_ids(large);

  scene_run(&s);
  g_assert_cmpint(small->record.reason, ==, OCT_END_LENGTH);
  g_assert_cmpint(large->record.reason, ==, OCT_END_LENGTH);
  g_assert_cmpuint(large->record.preemptions, >, 0);
  g_assert_cmpuint(scene_stats(&s)->offloads, ==, 0);
  g_assert_cmpuint(scene_stats(&s)->lost, ==, 0);
  scene_clear(&s);
}

static void
throw_out(oct_engine *e, oct_seq *seq) {
  g_assert_true(oct_plan_may_leave(e, seq));
  oct_engine_enter(e);
  oct_preempt(e, seq);
  oct_engine_leave(e);
}

static guint thrown_out;

/* Pages of it have come from the host, its snapshot is still to be restored. */
static void
throw_out_unrestored(rig *r, void *user) {
  oct_engine *e = r->engines[0];
  guint32 g = *(const guint32 *)user;
  for (oct_request *q = e->first; q != NULL; q = q->next)
    if (q->seqs[0]->state == OCT_SEQ_RUNNING && q->seqs[0]->restore[g] != OCT_POOL_NONE &&
        q->seqs[0]->unfinished == 0 && thrown_out == 0) {
      thrown_out++;
      throw_out(e, q->seqs[0]);
    }
}

/* A hit whose pages have been pushed out to the host and whose snapshot has not: thrown out before
 * its first step, there is nothing in its own state slot that could be copied. */
static void
test_unrestored(void) {
  scene s;
  scene_init(&s, "hybrid", 24, 200);
  oct_layer_group groups[OCT_MODEL_GROUPS_MAX];
  guint n = oct_model_groups(s.spec, s.config.instance.kv_dtype, groups);
  guint32 state = 0;
  for (guint32 g = 0; g < n; g++)
    if (groups[g].kind == OCT_ATTENTION_KDA)
      state = g;
  s.config.instance.memory.groups[state].n_device = 40;
  (void)scene_ask(&s, 1, 65, 1);
  rig_request *pushes = scene_ask(&s, 2, 300, 60), *again = scene_ask(&s, 1, 65, 20);
  pushes->params.arrival_ns = 50 * MS;
  again->params.arrival_ns = 200 * MS;
  thrown_out = 0;
  s.rig.on_turn = throw_out_unrestored;
  s.rig.user = &state;
  scene_run(&s);
  g_assert_cmpuint(thrown_out, ==, 1);
  g_assert_cmpuint(scene_stats(&s)->host_hit_tokens, >, 0);
  g_assert_cmpint(again->record.reason, ==, OCT_END_LENGTH);
  scene_clear(&s);
}

/* Choices that were forked in the step in flight, and have no slice in it. */
static void
throw_out_forked(rig *r, void *user) {
  (void)user;
  oct_engine *e = r->engines[0];
  for (oct_request *q = e->first; q != NULL; q = q->next)
    for (guint32 c = 1; c < q->n; c++)
      if (q->seqs[c] != NULL && q->seqs[c]->state == OCT_SEQ_RUNNING &&
          q->seqs[c]->unfinished == 0 && q->seqs[c]->last_step == 0 && e->n_flights > 0) {
        thrown_out++;
        throw_out(e, q->seqs[c]);
      }
}

/* The step that was to make what is on its way to the host, or there already, fails. */
static void
test_source_fails(void) {
  for (gint64 copy_ns = 10000; copy_ns <= 10000000; copy_ns *= 1000) {
    scene s;
    scene_init(&s, "hybrid", 64, 64);
    s.config.max_num_batched_tokens = 16;
    s.config.run_ahead = 0;
    s.mock.copy_page_ns = s.mock.copy_state_ns = copy_ns;
    (void)scene_ask(&s, 1, 17, 1);
    rig_request *e = scene_ask(&s, 2, 15, 1), *a = scene_ask(&s, 1, 17, 6);
    e->params.arrival_ns = a->params.arrival_ns = 20 * MS;
    a->params.n = 3;
    s.fault.script[s.fault.n_script++] = (oct_inject_line){OCT_INJECT_STEP, 0, 3};
    s.fault.delay_ns = 2 * MS;
    thrown_out = 0;
    s.rig.on_turn = throw_out_forked;
    scene_run(&s);
    g_assert_cmpuint(thrown_out, >=, 2);
    g_assert_cmpuint(scene_stats(&s)->offloads, >=, 2);
    g_assert_cmpint(a->record.reason, ==, OCT_END_LENGTH);
    g_assert_cmpuint(a->record.output_tokens, ==, 18);
    scene_clear(&s);
  }
}

static guint32 throw_at, waited;

/* The youngest is thrown out once, and comes back to the pages that it has left. */
static void
throw_out_youngest(rig *r, void *user) {
  const scene *s = user;
  oct_engine *e = r->engines[0];
  const oct_kv_domain *d = &e->domains[0];
  oct_request *oldest = scene_find(s, rig_request_at(r, 16));
  oct_request *youngest = scene_find(s, rig_request_at(r, r->requests->len - 1));
  waited += oldest != NULL && oldest->seqs[0]->lacks && d->n_reloading > 0 && d->n_preempting == 0;
  if (thrown_out > 0 || oldest == NULL || youngest == NULL || oldest->seqs[0]->sched < throw_at ||
      youngest->seqs[0]->state != OCT_SEQ_RUNNING || !oct_plan_may_leave(e, youngest->seqs[0]))
    return;
  thrown_out++;
  throw_out(e, youngest->seqs[0]);
}

/* Who is short of memory while a younger one is on its way back waits for it, and is no victim;
 * where another can leave, that one does and nobody waits. */
static void
test_youngest_comes_back(void) {
  for (guint others = 0; others < 2; others++) {
    waited = 0;
    for (throw_at = 50; throw_at < 64; throw_at++) {
      scene s;
      scene_init(&s, "llama", 8 + 4 * others, 100);
      s.config.prefix_caching = FALSE;
      s.mock.copy_page_ns = MS;
      s.rig.on_turn = throw_out_youngest;
      s.rig.user = &s;
      for (guint i = 0; i < 16; i++) /* outputs are expected to be short: nothing is kept free */
        (void)scene_ask(&s, 1, 4, 1);
      for (guint i = 0; i < 2 + others; i++)
        scene_ask(&s, 2 + i, 40, 60)->params.arrival_ns = (50 + i) * MS;
      thrown_out = 0;
      scene_run(&s);
      g_assert_cmpuint(thrown_out, ==, 1);
      g_assert_cmpuint(rig_request_at(&s.rig, 16)->record.preemptions, ==, 0);
      g_assert_cmpuint(rig_request_at(&s.rig, 17 + others)->record.preemptions, <=, 3);
      scene_clear(&s);
    }
    g_assert_cmpint(waited > 0, ==, others == 0);
  }
}

/* Prompts of 400 pages, each of which evicts so many at once, and each asked again when it has left
 * the device: what was pushed out is on the host. */
static void
test_bursts(void) {
  enum { PROMPTS = 15, TOKENS = 6400 };
  scene s;
  scene_init(&s, "llama", 4096, 8192);
  s.config.max_model_len = 8192;
  s.config.max_num_batched_tokens = 8192;
  for (guint round = 0; round < 2; round++)
    for (guint64 k = 0; k < PROMPTS; k++) {
      rig_request *q = scene_ask(&s, k, TOKENS, 20);
      q->params.arrival_ns = (gint64)(round * PROMPTS + k) * 200 * MS;
    }
  scene_run(&s);
  const oct_engine_stats *stats = scene_stats(&s);
  g_test_message("%" G_GUINT64_FORMAT " tokens found, %" G_GUINT64_FORMAT " of them on the host",
                 stats->cached_prompt_tokens, stats->host_hit_tokens);
  g_assert_cmpuint(stats->cached_prompt_tokens, >=, PROMPTS * TOKENS * 99 / 100);
  g_assert_cmpuint(stats->host_hit_tokens, >, PROMPTS * TOKENS / 2);
  scene_clear(&s);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/sched/transfer/a-choice-does-not-leave-in-the-step-of-its-fork",
                  test_fresh_choice);
  g_test_add_func("/sched/transfer/a-cache-too-large-for-a-transfer-is-computed",
                  test_large_transfer);
  g_test_add_func("/sched/transfer/a-snapshot-not-restored-is-not-offloaded", test_unrestored);
  g_test_add_func("/sched/transfer/what-a-failed-step-was-to-make-does-not-come-back",
                  test_source_fails);
  g_test_add_func("/sched/transfer/the-oldest-is-no-victim-while-a-younger-comes-back",
                  test_youngest_comes_back);
  g_test_add_func("/sched/transfer/what-long-prompts-push-out-is-found-on-the-host", test_bursts);
  return g_test_run();
}
