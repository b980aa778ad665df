/* How steps are made: run-ahead, zombies, pipelines, domains, replicas, preemption and progress. */
#include <string.h>

#include "tests/engine/sched/scene.h"

/* Time that the device, once it had begun, stood still until its last step ended. */
static gint64
idle_ns(const scene *s) {
  gint64 busy = 0, first = -1;
  const oct_engine_stats *stats = scene_stats(s);
  for (guint p = 0; p < OCT_PART_COUNT; p++)
    busy += stats->part_ns[p];
  oct_time last = 0;
  for (guint i = 0; i < s->rig.requests->len; i++) {
    const rig_request *q = rig_request_at(&s->rig, i);
    last = MAX(last, q->record.last_token_ns);
    if (first < 0 || q->record.admitted_ns < first)
      first = q->record.admitted_ns;
  }
  return last - first - busy;
}

/* ---------------------------------------------------------------- one request */

/* Prompt, tokens, end of sequence where the oracle says; times that follow each other. */
static void
test_life(void) {
  for (guint32 run_ahead = 0; run_ahead < 2; run_ahead++) {
    scene s;
    scene_init(&s, "llama", 64, 0);
    s.config.run_ahead = run_ahead;
    rig_request *q = scene_ask(&s, 1, 100, 50);
    q->params.ignore_eos = FALSE;
    q->params.oracle_tokens = 17;
    q->params.arrival_ns = 3 * MS;
    scene_run(&s);
    g_assert_cmpint(q->record.reason, ==, OCT_END_STOP);
    g_assert_cmpuint(q->record.output_tokens, ==, 17);
    g_assert_cmpuint(q->tokens[0]->len, ==, 17);
    g_assert_cmpuint(g_array_index(q->tokens[0], guint32, 16), ==, s.spec->eos_tokens[0]);
    g_assert_cmpint(q->record.admitted_ns, ==, 3 * MS);
    /* Two chunks: 64 and 36 tokens. */
    g_assert_cmpint(q->record.first_token_ns, ==, 3 * MS + 2 * MS + 100 * 10000);
    g_assert_cmpint(q->record.last_token_ns - q->record.first_token_ns, ==, 16 * (MS + 10000));
    g_assert_cmpint(q->record.ended_ns, ==, q->record.last_token_ns);
    g_assert_cmpint(q->record.longest_gap_ns, ==, MS + 10000);
    g_assert_cmpuint(scene_stats(&s)->zombie_slices, ==, run_ahead);
    g_assert_cmpuint(scene_stats(&s)->steps, ==, 18 + run_ahead);
    scene_clear(&s);
  }
}

/* An end that is known beforehand makes no zombie. */
static void
test_length_stop(void) {
  for (guint32 tokens = 1; tokens < 5; tokens++) {
    scene s;
    scene_init(&s, "llama", 64, 0);
    rig_request *q = scene_ask(&s, 1, 20, tokens);
    scene_run(&s);
    g_assert_cmpint(q->record.reason, ==, OCT_END_LENGTH);
    g_assert_cmpuint(scene_stats(&s)->zombie_slices, ==, 0);
    g_assert_cmpuint(scene_stats(&s)->steps, ==, tokens);
    scene_clear(&s);
  }
}

/* A stop token ends like the end of sequence; neither is sampled before min_tokens. */
static void
test_min_tokens(void) {
  scene plain;
  scene_init(&plain, "llama", 64, 0);
  rig_request *p = scene_ask(&plain, 1, 20, 20);
  scene_run(&plain);
  guint32 stop = g_array_index(p->tokens[0], guint32, 5);
  for (guint32 min = 5; min <= 20; min++) {
    scene s;
    scene_init(&s, "llama", 64, 0);
    rig_request *q = scene_ask(&s, 1, 20, 20);
    q->params.n_stop_tokens = 1;
    q->params.stop_tokens[0] = stop;
    q->params.min_tokens = min;
    scene_run(&s);
    g_assert_cmpint(q->record.reason, ==, min <= 5 ? OCT_END_STOP : OCT_END_LENGTH);
    g_assert_cmpuint(q->record.output_tokens, ==, min <= 5 ? 6 : 20);
    for (guint32 i = 0; i < 20 && min > 5; i++)
      g_assert_cmpuint(g_array_index(q->tokens[0], guint32, i), !=, stop);
    scene_clear(&s);
  }
  scene_clear(&plain);
}

static void
stop_second_choice(rig *r, void *user) {
  (void)user;
  rig_request *q = rig_request_at(r, 0);
  if (q->tokens[1]->len == 4 && !q->stopped)
    q->stopped = oct_engine_stop(r->engines[0], q->id, 1, r->now);
}

/* A stop string that the text layer finds in one choice leaves the others alone. */
static void
test_stop_choice(void) {
  scene s;
  scene_init(&s, "llama", 64, 0);
  s.rig.on_turn = stop_second_choice;
  rig_request *q = scene_ask(&s, 1, 20, 10);
  q->params.n = 3;
  scene_run(&s);
  g_assert_true(q->stopped);
  g_assert_cmpuint(q->tokens[0]->len, ==, 10);
  g_assert_cmpuint(q->tokens[1]->len, ==, 4);
  g_assert_cmpuint(q->tokens[2]->len, ==, 10);
  g_assert_cmpint(q->record.reason, ==, OCT_END_LENGTH);
  scene_clear(&s);
}

/* ---------------------------------------------------------------- step ahead */

/* The host's time before a step is hidden behind the one that runs; without run-ahead it is paid
 * each time. */
static void
test_host_time_overlaps(void) {
  for (guint32 run_ahead = 0; run_ahead < 2; run_ahead++) {
    scene s;
    scene_init(&s, "llama", 64, 0);
    s.config.run_ahead = run_ahead;
    s.config.submit_lead_ns = 600000;
    s.mock.host_ns = 500000;
    (void)scene_ask(&s, 1, 20, 100);
    scene_run(&s);
    if (run_ahead == 0)
      g_assert_cmpint(idle_ns(&s), ==, 100 * 500000);
    else
      g_assert_cmpint(idle_ns(&s), ==, 500000);
    scene_clear(&s);
  }
}

/* What arrives before the lead joins the next step; what arrives after it, the one after that. */
static void
test_submit_lead(void) {
  for (int late = 0; late < 2; late++) {
    scene s;
    scene_init(&s, "llama", 64, 0);
    (void)scene_ask(&s, 1, 20, 30);
    /* The prompt ends at 1.2 ms, decode step k (from 1 on) at 1.2 + 1.01 k; lead 0.2 ms. */
    rig_request *q = scene_ask(&s, 2, 10, 4);
    oct_time end_of_5 = 1200000 + 5 * 1010000;
    q->params.arrival_ns = end_of_5 - 200000 + (late ? 1 : -1);
    scene_run(&s);
    /* Step 1 is the prompt, step 6 decode step 5, step 7 begins at its end. */
    g_assert_true((strstr(scene_step_at(&s, 6)->text, "2@0") != NULL) == (late == 0));
    g_assert_nonnull(strstr(scene_step_at(&s, 6 + (guint)late)->text, "2@0+10*"));
    scene_clear(&s);
  }
}

/* ---------------------------------------------------------------- pipelines */

static guint64 deepest, most_unfinished;

static void
watch_depth(rig *r, void *user) {
  (void)user;
  const oct_engine *e = r->engines[0];
  deepest = MAX(deepest, e->n_flights);
  for (const oct_request *q = e->first; q != NULL; q = q->next)
    for (guint c = 0; c < q->n; c++)
      if (q->seqs[c] != NULL)
        most_unfinished = MAX(most_unfinished, q->seqs[c]->unfinished);
}

/* Sixteen sequences of 200 tokens: how long they take. 200 rounds of P steps, 16 / P sequences and
 * a stage's time each, is ideal. */
static oct_time
run_pipeline(guint32 pages, guint32 stages, guint32 run_ahead) {
  scene s;
  scene_init(&s, "llama", pages, 0);
  s.config.instance.parallel.pipeline = stages;
  s.config.run_ahead = run_ahead;
  s.rig.on_turn = watch_depth;
  deepest = most_unfinished = 0;
  for (guint i = 0; i < 16; i++)
    (void)scene_ask(&s, i, 8, 200);
  scene_run(&s);
  g_assert_cmpuint(deepest, ==, stages + run_ahead);
  g_assert_cmpuint(most_unfinished, ==, 1 + run_ahead);
  oct_time took = 0;
  for (guint i = 0; i < 16; i++)
    took = MAX(took, rig_request_at(&s.rig, i)->record.ended_ns);
  scene_clear(&s);
  return took;
}

/* P stages and run-ahead A: P + A steps in flight, a sequence in 1 + A of them, and every stage
 * busy: as many tokens a second as P devices that each do their part. */
static void
test_pipeline(void) {
  for (guint32 stages = 2; stages <= 4; stages += 2)
    for (guint32 run_ahead = 0; run_ahead < 2; run_ahead++) {
      gint64 ideal = 200 * stages * (MS + 16 / (gint64)stages * 10000);
      oct_time took = run_pipeline(300, stages, run_ahead);
      g_test_message("%u stages, run-ahead %u: %.1f ms, ideal %.1f", stages, run_ahead,
                     1e-6 * (double)took, 1e-6 * (double)ideal);
      g_assert_cmpint(took, >=, ideal);
      g_assert_cmpint(took, <, ideal + ideal / 50);
    }
}

/* Sequences that wait for memory fall out of their group. A step that took one of the step just
 * before it would hold up the pipeline, and so would all that follow. */
static void
test_pipeline_mends(void) {
  oct_time without = run_pipeline(200, 2, 0), with = run_pipeline(200, 2, 1);
  g_test_message("run-ahead 0: %.1f ms, 1: %.1f ms", 1e-6 * (double)without, 1e-6 * (double)with);
  g_assert_cmpint(with, <, without + without / 100);
}

/* ---------------------------------------------------------------- domains */

/* Four KV domains, work for two of them: the others run along empty; requests go where least is. */
static void
test_idle_domain(void) {
  scene s;
  scene_init(&s, "hybrid", 64, 0);
  s.config.instance.parallel.data = 4;
  rig_request *a = scene_ask(&s, 1, 40, 10), *b = scene_ask(&s, 1, 40, 10);
  rig_request *late = scene_ask(&s, 1, 40, 10);
  late->params.arrival_ns = 500 * MS;
  scene_run(&s);
  g_assert_true(strstr(scene_step_at(&s, 0)->text, "1@0+32 2@0+32") != NULL);
  g_assert_true(a->record.reason == OCT_END_LENGTH && b->record.reason == OCT_END_LENGTH);
  /* Each domain has its own prefix index; all being empty the first takes the late one. */
  g_assert_cmpuint(a->record.cached_tokens + b->record.cached_tokens, ==, 0);
  g_assert_cmpuint(late->record.cached_tokens, ==, 32);
  scene_clear(&s);
}

/* ---------------------------------------------------------------- several engines */

static guint
least_loaded(rig *r, const rig_request *q) {
  (void)q;
  guint best = 0;
  for (guint e = 1; e < r->n_engines; e++)
    if (oct_engine_load_tokens(r->engines[e]) < oct_engine_load_tokens(r->engines[best]))
      best = e;
  return best;
}

/* Two replicas on one clock behind a router: each request runs on one, both are used alike, and the
 * tokens are those of one engine. */
static void
test_replicas(void) {
  scene one, two;
  scene_init(&one, "llama", 200, 0);
  scene_init(&two, "llama", 200, 0);
  rig_add_engine(&two.rig, &two.config);
  rig_add_engine(&two.rig, &two.config);
  two.rig.route = least_loaded;
  for (guint i = 0; i < 40; i++) {
    rig_request *p = scene_ask(&one, i, 20 + 7 * (i % 9), 30);
    rig_request *q = scene_ask(&two, i, 20 + 7 * (i % 9), 30);
    p->params.arrival_ns = q->params.arrival_ns = i * 4 * MS;
  }
  scene_run(&one);
  scene_run(&two);
  guint on_first = 0;
  oct_time one_took = 0, two_took = 0;
  for (guint i = 0; i < 40; i++) {
    const rig_request *p = rig_request_at(&one.rig, i), *q = rig_request_at(&two.rig, i);
    on_first += q->engine == 0;
    g_assert_true(scene_same_tokens(p, q));
    one_took = MAX(one_took, p->record.ended_ns - p->record.arrival_ns);
    two_took = MAX(two_took, q->record.ended_ns - q->record.arrival_ns);
  }
  g_test_message("%u of 40 on the first; slowest %.1f ms, alone %.1f", on_first,
                 1e-6 * (double)two_took, 1e-6 * (double)one_took);
  g_assert_cmpuint(on_first, >=, 15);
  g_assert_cmpuint(on_first, <=, 25);
  g_assert_cmpuint(two.rig.stats[0].accepted + two.rig.stats[1].accepted, ==, 40);
  scene_clear(&one);
  scene_clear(&two);
}

/* Two models, or two layouts of one, in one world: an instance's loss is its own. */
static void
test_instances_apart(void) {
  scene s;
  scene_init(&s, "llama", 200, 0);
  oct_engine_config other = s.config;
  other.instance.parallel.pipeline = 2;
  rig_add_engine(&s.rig, &s.config);
  rig_add_engine(&s.rig, &other);
  s.fault.script[s.fault.n_script++] = (oct_inject_line){OCT_INJECT_INSTANCE, 1, 8};
  for (guint i = 0; i < 8; i++)
    scene_ask(&s, i, 30, 30)->engine = i % 2;
  scene_run(&s);
  for (guint i = 0; i < 8; i++) {
    const rig_request *q = rig_request_at(&s.rig, i);
    g_assert_cmpint(q->record.reason, ==, OCT_END_LENGTH);
    if (i % 2 == 1)
      g_assert_cmpuint(q->record.recomputed_tokens, ==, 0);
    else
      g_assert_cmpuint(q->record.recomputed_tokens, >, 0);
  }
  scene_clear(&s);
}

/* ---------------------------------------------------------------- memory is short */

/* Eight sequences in memory for about four: by offload or by recomputation, everybody's tokens are
 * what ample memory gives, and with a host tier nothing is computed twice. */
static void
test_preemption(void) {
  static const char *const kinds[] = {"llama", "hybrid", "window"};
  for (guint k = 0; k < G_N_ELEMENTS(kinds); k++)
    for (int how = 0; how < 3; how++) {
      scene s, ample;
      scene_init(&s, kinds[k], 24, how > 0 ? 200 : 0);
      scene_init(&ample, kinds[k], 2000, 0);
      s.config.prefix_caching = FALSE;
      s.config.preemption = how == 1 ? OCT_PREEMPT_RECOMPUTE : OCT_PREEMPT_AUTO;
      for (guint i = 0; i < 8; i++) {
        (void)scene_ask(&s, i, 40 + i, 60 + 20 * i);
        (void)scene_ask(&ample, i, 40 + i, 60 + 20 * i);
      }
      scene_run(&s);
      scene_run(&ample);
      const oct_engine_stats *stats = scene_stats(&s);
      g_assert_cmpuint(stats->preemptions, >, 0);
      for (guint i = 0; i < 8; i++) {
        const rig_request *q = rig_request_at(&s.rig, i);
        g_assert_true(scene_same_tokens(q, rig_request_at(&ample.rig, i)));
        g_assert_cmpuint(q->record.preemptions, <=, 20);
      }
      if (how == 2) {
        g_assert_cmpuint(stats->offloads, ==, stats->preemptions);
        g_assert_cmpuint(stats->reloads, ==, stats->offloads);
        g_assert_cmpuint(stats->recomputed_tokens, ==, 0);
      } else {
        g_assert_cmpuint(stats->offloads, ==, 0);
        g_assert_cmpuint(stats->recomputed_tokens, >, 0);
      }
      scene_clear(&s);
      scene_clear(&ample);
    }
}

static guint64 computed_before, stuck_steps, most_stuck, steps_before;

static void
watch_progress(rig *r, void *user) {
  (void)user;
  oct_engine_stats stats;
  oct_engine_get_stats(r->engines[0], &stats);
  guint64 computed = stats.prompt_tokens + stats.recomputed_tokens + stats.generated_tokens;
  if (computed > computed_before)
    stuck_steps = 0;
  else
    stuck_steps += stats.steps - steps_before;
  computed_before = computed;
  steps_before = stats.steps;
  most_stuck = MAX(most_stuck, stuck_steps);
}

/* Every page is held or drains behind an unfinished step, whichever the policy: of the steps that
 * end, no more than depth + 2 in a row bring nobody further. */
static void
test_progress(void) {
  guint64 preemptions = 0;
  for (const oct_policy *const *p = oct_policy_list(); *p != NULL; p++)
    for (guint32 stages = 1; stages <= 4; stages++)
      for (guint32 host = 0; host <= 60; host += 30) {
        scene s;
        scene_init(&s, "llama", 13, host);
        s.config.policy = (*p)->name;
        s.config.instance.parallel.pipeline = stages;
        s.rig.on_turn = watch_progress;
        computed_before = stuck_steps = most_stuck = steps_before = 0;
        for (guint i = 0; i < 12; i++) {
          rig_request *q = scene_ask(&s, i % 5, 20 + 13 * i, 8 + 4 * i);
          q->params.ignore_eos = FALSE;
          q->params.oracle_tokens = 5 + 4 * i;
          q->params.arrival_ns = i * MS;
        }
        scene_run(&s);
        preemptions += scene_stats(&s)->preemptions;
        g_assert_cmpuint(most_stuck, <=, stages + 1 + 2);
        for (guint i = 0; i < 12; i++)
          g_assert_cmpuint(rig_request_at(&s.rig, i)->record.preemptions, <=, 12);
        scene_clear(&s);
      }
  g_assert_cmpuint(preemptions, >, 100);
}

static gboolean was_lacking;
static guint32 ran_before, n_lacked;

/* No sequence has joined those that run while one of them has lacked memory all along. */
static void
watch_lacking(rig *r, void *user) {
  (void)user;
  const oct_kv_domain *d = &r->engines[0]->domains[0];
  gboolean prompts = FALSE;
  for (guint32 i = 0; i < d->n_running; i++)
    prompts |=
        d->running[i]->state == OCT_SEQ_RUNNING && d->running[i]->sched < d->running[i]->target;
  if (was_lacking && d->n_lacking > 0)
    g_assert_cmpuint(d->n_running, <=, ran_before);
  if (d->n_lacking > 0) /* decodes leave nothing to a queue that gets nothing */
    g_assert_cmpint(oct_plan_prefill_pending(r->engines[0], 0), ==, prompts);
  was_lacking = d->n_lacking > 0;
  ran_before = d->n_running;
  n_lacked += was_lacking;
}

/* Four choices of a prompt and four state slots, of which others took some while it was computed:
 * they give way, each once, and none gets in again before the choices run. */
static void
test_lacking(void) {
  guint32 lacked = 0;
  for (const oct_policy *const *p = oct_policy_list(); *p != NULL; p++)
    for (guint32 stages = 1; stages <= 4; stages++) {
      scene s;
      scene_init(&s, "hybrid", 60, 0);
      s.config.policy = (*p)->name;
      s.config.prefix_caching = FALSE;
      s.config.instance.parallel.pipeline = stages;
      s.config.max_num_batched_tokens = 16;
      s.config.instance.memory.groups[0].n_device = 4; /* the states' */
      s.rig.on_turn = watch_lacking;
      was_lacking = FALSE;
      ran_before = n_lacked = 0;
      rig_request *forks = scene_ask(&s, 1, 50, 30);
      forks->params.n = 4;
      for (guint i = 2; i < 5; i++)
        scene_ask(&s, i, 120, 10)->params.arrival_ns = i - 1;
      scene_run(&s);
      g_assert_cmpuint(forks->record.preemptions, ==, 0);
      for (guint i = 0; i < 4; i++) {
        g_assert_cmpint(rig_request_at(&s.rig, i)->record.reason, ==, OCT_END_LENGTH);
        g_assert_cmpuint(rig_request_at(&s.rig, i)->record.preemptions, <=, 1);
      }
      g_assert_cmpuint(scene_stats(&s)->preemptions, >, 0);
      lacked += n_lacked;
      scene_clear(&s);
    }
  g_assert_cmpuint(lacked, >, 0);
}

static guint n_waited;
static guint32 preempted;

/* Request 2 is preempted in no turn in which request 0 has ended, or after it. */
static void
watch_draining(rig *r, void *user) {
  const scene *s = user;
  const oct_request *other = scene_find(s, rig_request_at(r, 2));
  const gboolean ended = scene_state(s, rig_request_at(r, 0)) == OCT_SEQ_ENDED;
  n_waited += ended && r->engines[0]->domains[0].n_lacking > 0;
  if (other == NULL || other->preemptions == preempted)
    return;
  g_assert_false(ended);
  preempted = other->preemptions;
}

/* A fork waits for a state that drains behind the step in which its owner was a zombie; nobody is
 * preempted for it. */
static void
test_fork_waits(void) {
  n_waited = 0;
  for (guint32 ends = 1; ends < 40; ends++) {
    scene s;
    scene_init(&s, "hybrid", 60, 0);
    s.config.prefix_caching = FALSE;
    s.config.max_num_batched_tokens = 16;
    s.config.instance.memory.groups[0].n_device = 3; /* the states' */
    s.rig.on_turn = watch_draining;
    s.rig.user = &s;
    preempted = 0;
    s.config.long_prefill_threshold = 6;
    rig_request *zombie = scene_ask(&s, 1, 10, 60), *trunk = scene_ask(&s, 2, 90, 30);
    zombie->params.ignore_eos = FALSE;
    zombie->params.oracle_tokens = ends;
    trunk->params.n = 2;
    trunk->params.arrival_ns = 1;
    scene_ask(&s, 3, 600, 10)->params.arrival_ns = 2;
    scene_run(&s);
    scene_clear(&s);
  }
  g_assert_cmpuint(n_waited, >, 0);
}

/* A prompt is admitted when all of it fits, and what runs may grow; by its first chunk only where
 * the policy says so. */
static void
test_admission(void) {
  for (int by_chunk = 0; by_chunk < 2; by_chunk++) {
    scene s;
    scene_init(&s, "llama", 20, 0);
    s.config.policy = by_chunk ? "vllm-v1" : "decode-first";
    s.config.prefix_caching = FALSE;
    (void)scene_ask(&s, 1, 100, 100);
    rig_request *large = scene_ask(&s, 2, 250, 4);
    scene_run(&s);
    if (by_chunk)
      g_assert_cmpuint(large->record.preemptions, >, 0);
    else
      g_assert_cmpuint(scene_stats(&s)->preemptions, ==, 0);
    scene_clear(&s);
  }
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/sched/plan/one-requests-life", test_life);
  g_test_add_func("/sched/plan/a-length-stop-makes-no-zombie", test_length_stop);
  g_test_add_func("/sched/plan/nothing-stops-before-min-tokens", test_min_tokens);
  g_test_add_func("/sched/plan/a-stop-string-ends-one-choice", test_stop_choice);
  g_test_add_func("/sched/plan/host-time-hides-behind-the-device", test_host_time_overlaps);
  g_test_add_func("/sched/plan/what-arrives-before-the-lead-joins", test_submit_lead);
  g_test_add_func("/sched/plan/a-pipeline-is-full-and-busy", test_pipeline);
  g_test_add_func("/sched/plan/a-pipeline-mends", test_pipeline_mends);
  g_test_add_func("/sched/plan/an-idle-domain-runs-along", test_idle_domain);
  g_test_add_func("/sched/plan/replicas-share-a-clock-and-the-load", test_replicas);
  g_test_add_func("/sched/plan/an-instance-is-lost-alone", test_instances_apart);
  g_test_add_func("/sched/plan/preemption-changes-no-token", test_preemption);
  g_test_add_func("/sched/plan/a-full-pool-makes-progress", test_progress);
  g_test_add_func("/sched/plan/nobody-is-admitted-to-what-a-running-one-lacks", test_lacking);
  g_test_add_func("/sched/plan/a-fork-waits-for-a-state-that-drains", test_fork_waits);
  g_test_add_func("/sched/plan/a-prompt-is-admitted-whole", test_admission);
  return g_test_run();
}
