/* Pages, snapshots, windows and forks through the engine: hits are what they say, and memory that
 * is small is enough. */
#include <string.h>

#include "tests/engine/sched/scene.h"

static guint32
group_of(const scene *s, gboolean state, gboolean window) {
  oct_layer_group groups[OCT_MODEL_GROUPS_MAX];
  guint n = oct_model_groups(s->spec, s->config.instance.kv_dtype, groups);
  for (guint32 g = 0; g < n; g++)
    if ((groups[g].kind == OCT_ATTENTION_KDA) == state && (groups[g].window > 0) == window)
      return g;
  g_assert_not_reached();
}

static void
set_states(scene *s, guint32 n) {
  s->config.instance.memory.groups[group_of(s, TRUE, FALSE)].n_device = n;
}

/* ---------------------------------------------------------------- enough is enough */

/* Two state slots, one of which holds the snapshot of the hit of a request that needs both. */
static void
test_snapshot_in_the_way(void) {
  for (guint32 run_ahead = 0; run_ahead < 2; run_ahead++) {
    scene s;
    scene_init(&s, "hybrid", 64, 0);
    s.config.run_ahead = run_ahead;
    set_states(&s, 2);
    rig_request *a = scene_ask(&s, 1, 40, 4), *b = scene_ask(&s, 1, 40, 4);
    b->params.arrival_ns = 50 * MS;
    b->params.n = 2;
    scene_run(&s);
    g_assert_cmpuint(scene_stats(&s)->snapshots_taken, >=, 1);
    g_assert_cmpint(a->record.reason, ==, OCT_END_LENGTH);
    g_assert_cmpint(b->record.reason, ==, OCT_END_LENGTH);
    scene_clear(&s);
  }
}

/* The smallest window pool that a request is accepted for is enough for it, alone, without throwing
 * it out: pages that the window has left are given up before the next chunk's are taken. */
static void
test_smallest_window(void) {
  for (guint32 run_ahead = 0; run_ahead < 2; run_ahead++)
    for (guint32 tokens = 16; tokens <= 512; tokens *= 2) {
      scene s;
      scene_init(&s, "window", 200, 0);
      s.config.run_ahead = run_ahead;
      s.config.max_num_batched_tokens = tokens;
      guint32 g = group_of(&s, FALSE, TRUE);
      oct_layer_group groups[OCT_MODEL_GROUPS_MAX];
      (void)oct_model_groups(s.spec, s.config.instance.kv_dtype, groups);
      s.config.instance.memory.groups[g].n_device = (groups[g].window + tokens + 32 + 15) / 16;
      rig_request *a = scene_ask(&s, 1, 1500, 100);
      scene_run(&s);
      g_assert_cmpint(a->record.reason, ==, OCT_END_LENGTH);
      g_assert_cmpuint(a->record.preemptions, ==, 0);
      g_assert_cmpuint(a->record.recomputed_tokens, ==, 0);
      scene_clear(&s);
    }
}

/* ---------------------------------------------------------------- prefix hits */

/* Every prompt token is computed for its request or found, once, whatever happens on the way:
 * chunks, forks, preemption, memory that is short. */
static void
test_each_token_once(void) {
  for (guint pages = 14; pages < 80; pages += 3)
    for (guint32 host = 0; host <= 100; host += 50) {
      scene s;
      scene_init(&s, host > 0 ? "hybrid" : "llama", pages, host);
      s.config.policy = pages % 2 == 0 ? "vllm-v1" : "decode-first";
      guint64 prompts = 0;
      for (guint i = 0; i < 12; i++) {
        rig_request *q = scene_ask(&s, i % 3, 20 + 11 * i, 30);
        q->params.n = i % 4 == 3 ? 3 : 1;
        q->params.arrival_ns = i * 3 * MS;
        prompts += q->params.prompt_tokens;
      }
      scene_run(&s);
      const oct_engine_stats *stats = scene_stats(&s);
      guint32 cached = 0, recomputed = 0, refused = 0;
      for (guint i = 0; i < 12; i++) {
        const rig_request *q = rig_request_at(&s.rig, i);
        if (q->refused)
          refused += q->params.prompt_tokens;
        cached += q->record.cached_tokens;
        recomputed += q->record.recomputed_tokens;
      }
      g_assert_cmpuint(stats->prompt_tokens + stats->cached_prompt_tokens, ==, prompts - refused);
      g_assert_cmpuint(stats->queried_prompt_tokens, ==, prompts - refused);
      g_assert_cmpuint(stats->cached_prompt_tokens, ==, cached);
      g_assert_cmpuint(stats->recomputed_tokens, ==, recomputed);
      g_assert_cmpuint(stats->host_hit_tokens, <=, stats->cached_prompt_tokens);
      scene_clear(&s);
    }
}

/* The same prompt at 0 and, after it has ended, again: what the second finds. */
static guint32
second_hit(scene *s, guint32 prompt, void (*change)(oct_request_params *p)) {
  (void)scene_ask(s, 1, prompt, 4);
  rig_request *q = scene_ask(s, 1, prompt, 4);
  q->params.arrival_ns = 500 * MS;
  if (change != NULL)
    change(&q->params);
  scene_run(s);
  guint32 cached = q->record.cached_tokens;
  scene_clear(s);
  return cached;
}

static void
other_salt(oct_request_params *p) {
  p->salt = 7;
}

static void
other_adapter(oct_request_params *p) {
  p->adapter = 1;
}

static void
other_first_token(oct_request_params *p) {
  ((guint32 *)(void *)(guintptr)p->prompt_ids)[0] ^= 1;
}

static void
test_separate_caches(void) {
  static void (*const changes[])(oct_request_params *) = {NULL, other_salt, other_adapter,
                                                          other_first_token};
  for (guint i = 0; i < G_N_ELEMENTS(changes); i++)
    for (int caching = 0; caching < 2; caching++) {
      scene s;
      scene_init(&s, "llama", 64, 0);
      s.config.prefix_caching = caching;
      guint32 cached = second_hit(&s, 100, changes[i]);
      g_assert_cmpuint(cached, ==, changes[i] == NULL && caching ? 96 : 0);
    }
}

/* All full pages but for the last token, which is to be computed. */
static void
test_hit_lengths(void) {
  for (guint32 prompt = 1; prompt < 70; prompt++) {
    scene s;
    scene_init(&s, prompt % 2 == 0 ? "llama" : "window", 64, 0);
    g_assert_cmpuint(second_hit(&s, prompt, NULL), ==, (prompt - 1) / 16 * 16);
  }
}

/* A page of eight ranks' context parallelism holds eight times the tokens; hits are in that unit.
 */
static void
test_context_parallel_pages(void) {
  scene s;
  scene_init(&s, "hybrid", 64, 0);
  s.config.instance.parallel.tensor = s.config.instance.parallel.decode_context = 8;
  g_assert_cmpuint(second_hit(&s, 300, NULL), ==, 256);
}

/* Without ids a trace's page ids stand for content: equal ones hit; past them pages are the
 * request's own. */
static void
test_page_ids(void) {
  scene s;
  scene_init(&s, "llama", 64, 0);
  s.config.carry_ids = s.config.instance.check_tags = FALSE;
  const guint64 pages[] = {11, 12, 13, 14, 15, 16}, fork[] = {11, 12, 99};
  rig_request *q[4];
  for (guint i = 0; i < 4; i++) {
    q[i] = scene_ask(&s, 1, 100, 30);
    q[i]->params.arrival_ns = i * 200 * MS;
    g_free((guint32 *)(void *)(guintptr)q[i]->params.prompt_ids);
    q[i]->params.prompt_ids = NULL;
    q[i]->params.n_page_ids = i == 2 ? 3 : i == 3 ? 0 : 6;
    q[i]->params.page_ids = g_memdup2(i == 2 ? fork : pages, 8 * q[i]->params.n_page_ids);
  }
  scene_run(&s);
  g_assert_cmpuint(q[0]->record.cached_tokens, ==, 0);
  g_assert_cmpuint(q[1]->record.cached_tokens, ==, 96);
  g_assert_cmpuint(q[2]->record.cached_tokens, ==, 32);
  g_assert_cmpuint(q[3]->record.cached_tokens, ==, 0);
  scene_clear(&s);
}

/* Requests of unlike texts in memory that is short, with ids or without: what each step was made
 * of.
 */
static char *
steps_when_short(const char *kind, gboolean ids, guint64 *recomputed) {
  scene s;
  scene_init(&s, kind, 60, 0);
  s.config.carry_ids = s.config.instance.check_tags = ids;
  s.config.preemption = OCT_PREEMPT_RECOMPUTE;
  for (guint i = 0; i < 8; i++) {
    rig_request *q = scene_ask(&s, i + 1, 60 + 40 * i, 120 + 30 * i);
    q->params.arrival_ns = i * 20 * MS;
    if (ids)
      continue;
    g_free((guint32 *)(void *)(guintptr)q->params.prompt_ids);
    q->params.prompt_ids = NULL;
  }
  scene_run(&s);
  GString *all = g_string_new(NULL);
  for (guint i = 0; i < s.steps->len; i++)
    g_string_append_printf(all, "%s\n", scene_step_at(&s, i)->text);
  g_assert_cmpuint(scene_stats(&s)->preemptions, >=, 2);
  *recomputed = scene_stats(&s)->recomputed_tokens;
  scene_clear(&s);
  return g_string_free(all, FALSE);
}

/* A preempted request finds its own pages again, those that bear no name before as well as those
 * that are named by their ids from the beginning. */
static void
test_own_pages(void) {
  for (guint i = 0; i < 2; i++) {
    const char *kind = i == 0 ? "llama" : "window";
    guint64 named, unnamed;
    g_autofree char *with = steps_when_short(kind, TRUE, &named);
    g_autofree char *without = steps_when_short(kind, FALSE, &unnamed);
    g_assert_cmpuint(unnamed, >, 0);
    g_assert_cmpuint(unnamed, ==, named);
    g_assert_cmpstr(without, ==, with);
  }
}

/* ---------------------------------------------------------------- hybrid hits */

static rig_request *
ask_at(scene *s, guint64 family, guint32 shared, guint32 prompt, oct_time at) {
  rig_request *q = scene_ask(s, family, prompt, 4);
  q->params.arrival_ns = at;
  guint32 *ids = (guint32 *)(void *)(guintptr)q->params.prompt_ids;
  for (guint32 i = shared; i < prompt; i++)
    ids[i] = (ids[i] + (guint32)q->params.seed) % 1000;
  return q;
}

/* A hit ends at a snapshot: at the prompt's last page, at intervals, and at a branch once it has
 * been seen. */
static void
test_hybrid_hits(void) {
  for (guint32 interval = 0; interval <= 32; interval += 32) {
    scene s;
    scene_init(&s, "hybrid", 64, 0);
    s.config.state_snapshot_interval = interval;
    rig_request *first = ask_at(&s, 1, 100, 100, 0), *same = ask_at(&s, 1, 100, 100, 500 * MS);
    rig_request *branch = ask_at(&s, 1, 50, 100, 1000 * MS);
    rig_request *again = ask_at(&s, 1, 50, 100, 1500 * MS);
    scene_run(&s);
    g_assert_cmpuint(first->record.cached_tokens, ==, 0);
    g_assert_cmpuint(same->record.cached_tokens, ==, 96);
    g_assert_cmpuint(branch->record.cached_tokens, ==, interval);
    g_assert_cmpuint(again->record.cached_tokens, ==, 48);
    g_assert_cmpuint(scene_stats(&s)->hits_bound_by_state, ==, 1);
    g_assert_cmpuint(scene_stats(&s)->snapshot_hits, ==, interval > 0 ? 3 : 2);
    scene_clear(&s);
  }
}

/* Chunks end where snapshots are taken. */
static void
test_cuts(void) {
  scene s;
  scene_init(&s, "hybrid", 64, 0);
  s.config.state_snapshot_interval = 32;
  (void)scene_ask(&s, 1, 117, 2);
  scene_run(&s);
  static const char *const steps[] = {"1@0+32", "1@32+32", "1@64+32", "1@96+16", "1@112+5*"};
  for (guint i = 0; i < G_N_ELEMENTS(steps); i++)
    g_assert_cmpstr(scene_step_at(&s, i)->text, ==, steps[i]);
  g_assert_cmpuint(scene_stats(&s)->snapshots_taken, ==, 4);
  scene_clear(&s);
}

/* Decoding takes snapshots too, every interval, and a next turn goes on from the last. */
static void
test_snapshots_while_decoding(void) {
  for (guint32 run_ahead = 0; run_ahead < 2; run_ahead++) {
    scene s;
    scene_init(&s, "hybrid", 64, 0);
    s.config.run_ahead = run_ahead;
    s.config.state_snapshot_interval = 32;
    s.config.carry_ids = s.config.instance.check_tags = FALSE;
    guint64 pages[12];
    for (guint i = 0; i < 12; i++)
      pages[i] = 100 + i;
    rig_request *q[2];
    for (guint i = 0; i < 2; i++) {
      q[i] = scene_ask(&s, 1, i == 0 ? 20 : 180, i == 0 ? 150 : 4);
      q[i]->params.arrival_ns = i * 2000 * MS;
      g_free((guint32 *)(void *)(guintptr)q[i]->params.prompt_ids);
      q[i]->params.prompt_ids = NULL;
      q[i]->params.n_page_ids = 11;
      q[i]->params.page_ids = g_memdup2(pages, sizeof pages);
    }
    scene_run(&s);
    /* 170 tokens, of which 169 have been run: the last snapshot is at 160. */
    g_assert_cmpuint(q[1]->record.cached_tokens, ==, 160);
    scene_clear(&s);
  }
}

static guint32 found_without_page;

static void
count_bare_snapshots(rig *r, void *user) {
  const oct_engine *e = r->engines[0];
  const oct_kv_domain *d = &e->domains[0];
  (void)user;
  const oct_pool *states = d->device[e->first_state_group];
  found_without_page = 0;
  for (guint32 i = 0; i < oct_pool_total(states); i++)
    if (oct_pool_indexed(states, i) &&
        oct_pool_find(d->device[e->first_page_group], oct_pool_key(states, i)) == OCT_POOL_NONE)
      found_without_page++;
}

/* A snapshot goes with the page that it stands at the end of. */
static void
test_snapshots_go(void) {
  scene s;
  scene_init(&s, "hybrid", 20, 0);
  set_states(&s, 60);
  s.config.state_snapshot_interval = 16;
  for (guint i = 0; i < 12; i++)
    scene_ask(&s, i, 100, 4)->params.arrival_ns = i * 50 * MS;
  s.rig.on_finish = count_bare_snapshots;
  scene_run(&s);
  g_assert_cmpuint(scene_stats(&s)->snapshots_taken, >, 60);
  g_assert_cmpuint(found_without_page, ==, 0);
  scene_clear(&s);
}

/* ---------------------------------------------------------------- windows */

/* A hit needs the pages that the next token's window covers, not those before: they may be gone. */
static void
test_window_hit(void) {
  scene s;
  scene_init(&s, "window", 200, 0);
  guint32 g = group_of(&s, FALSE, TRUE);
  s.config.instance.memory.groups[g].n_device = 20;
  rig_request *a = scene_ask(&s, 1, 1000, 4), *b = scene_ask(&s, 1, 1000, 4);
  b->params.arrival_ns = 500 * MS;
  scene_run(&s);
  g_assert_cmpuint(a->record.preemptions, ==, 0);
  g_assert_cmpuint(b->record.cached_tokens, ==, 992);
  g_assert_cmpuint(scene_stats(&s)->pages_peak[g], <=, 20);
  scene_clear(&s);
}

static guint32 most_window_pages;

static void
watch_window(rig *r, void *user) {
  scene *s = user;
  const oct_kv_domain *d = &r->engines[0]->domains[0];
  guint32 g = group_of(s, FALSE, TRUE);
  if (r->engines[0]->n_flights == 0)
    return;
  most_window_pages = MAX(most_window_pages, oct_pool_count(d->device[g], OCT_ITEM_HELD));
}

/* A long decode holds its window's pages only. */
static void
test_window_is_freed(void) {
  scene s;
  scene_init(&s, "window", 200, 0);
  s.rig.on_turn = watch_window;
  s.rig.user = &s;
  most_window_pages = 0;
  (void)scene_ask(&s, 1, 20, 900);
  scene_run(&s);
  oct_layer_group groups[OCT_MODEL_GROUPS_MAX];
  (void)oct_model_groups(s.spec, s.config.instance.kv_dtype, groups);
  guint32 window = groups[group_of(&s, FALSE, TRUE)].window;
  g_assert_cmpuint(most_window_pages, >=, window / 16);
  g_assert_cmpuint(most_window_pages, <=, window / 16 + 2);
  scene_clear(&s);
}

/* ---------------------------------------------------------------- forks */

static guint32
copies_of(const scene *s) {
  guint32 n = 0;
  for (guint i = 0; i < s->steps->len; i++)
    n += scene_step_at(s, i)->n_copies;
  return n;
}

/* n = 4: the prompt is computed once; the partial page and the state are copied for three; the
 * first choice's tokens are those of n = 1. */
static void
test_fork(void) {
  static const char *const kinds[] = {"llama", "hybrid", "window"};
  for (guint k = 0; k < G_N_ELEMENTS(kinds); k++)
    for (guint32 prompt = 30; prompt <= 34; prompt++) {
      scene s, one;
      scene_init(&s, kinds[k], 64, 0);
      scene_init(&one, kinds[k], 64, 0);
      s.config.prefix_caching = one.config.prefix_caching = FALSE;
      rig_request *q = scene_ask(&s, 1, prompt, 20), *p = scene_ask(&one, 1, prompt, 20);
      q->params.n = 4;
      scene_run(&s);
      scene_run(&one);
      g_assert_cmpuint(q->record.output_tokens, ==, 80);
      g_assert_cmpuint(scene_stats(&s)->recomputed_tokens, ==, 0);
      guint32 state = k == 1, partial = (prompt - 1) % 16 != 0;
      guint32 page_groups = s.config.instance.memory.n_groups - state;
      g_assert_cmpuint(copies_of(&s), ==, 3 * (state + partial * page_groups));
      g_assert_cmpmem(q->tokens[0]->data, 80, p->tokens[0]->data, 80);
      for (guint c = 1; c < 4; c++)
        g_assert_true(memcmp(q->tokens[0]->data, q->tokens[c]->data, 80) != 0);
      scene_clear(&s);
      scene_clear(&one);
    }
}

/* A fork straight after a full hit: nothing of the prompt but its last token is run, by each. */
static void
test_fork_after_hit(void) {
  static const char *const kinds[] = {"llama", "hybrid", "window"};
  for (guint k = 0; k < G_N_ELEMENTS(kinds); k++)
    for (guint32 host = 0; host < 2; host++) {
      scene s;
      scene_init(&s, kinds[k], 64, host * 64);
      rig_request *a = scene_ask(&s, 1, 33, 4), *b = scene_ask(&s, 1, 33, 4);
      b->params.arrival_ns = 200 * MS;
      b->params.n = 4;
      scene_run(&s);
      g_assert_cmpuint(b->record.cached_tokens, ==, 32);
      g_assert_cmpuint(scene_stats(&s)->prompt_tokens, ==, 34);
      g_assert_cmpuint(a->record.output_tokens * 4, ==, b->record.output_tokens);
      scene_clear(&s);
    }
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/sched/kv/a-hit-does-not-stand-in-its-own-way", test_snapshot_in_the_way);
  g_test_add_func("/sched/kv/the-smallest-window-pool-is-enough", test_smallest_window);
  g_test_add_func("/sched/kv/every-prompt-token-is-computed-or-found-once", test_each_token_once);
  g_test_add_func("/sched/kv/salts-and-adapters-have-caches-of-their-own", test_separate_caches);
  g_test_add_func("/sched/kv/a-hit-is-all-full-pages-before-the-last-token", test_hit_lengths);
  g_test_add_func("/sched/kv/context-parallel-pages-are-the-unit-of-hits",
                  test_context_parallel_pages);
  g_test_add_func("/sched/kv/page-ids-stand-for-content", test_page_ids);
  g_test_add_func("/sched/kv/a-preempted-request-finds-its-own-pages", test_own_pages);
  g_test_add_func("/sched/kv/a-hybrid-hit-ends-at-a-snapshot", test_hybrid_hits);
  g_test_add_func("/sched/kv/chunks-end-where-snapshots-are-taken", test_cuts);
  g_test_add_func("/sched/kv/decoding-takes-snapshots", test_snapshots_while_decoding);
  g_test_add_func("/sched/kv/a-snapshot-goes-with-its-page", test_snapshots_go);
  g_test_add_func("/sched/kv/a-window-hit-needs-its-live-pages-only", test_window_hit);
  g_test_add_func("/sched/kv/a-window-leaves-pages-behind", test_window_is_freed);
  g_test_add_func("/sched/kv/choices-share-the-prompt", test_fork);
  g_test_add_func("/sched/kv/choices-fork-after-a-full-hit", test_fork_after_hit);
  return g_test_run();
}
