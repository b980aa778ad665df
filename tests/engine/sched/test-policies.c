/* Scheduling policies: what each promises, on one arrival list or against a model of its own. */
#include <string.h>

#include "tests/engine/sched/scene.h"

/* ---------------------------------------------------------------- vllm-v1 */

/* vLLM V1's scheduler without prefix caching and speculation, as its schedule() reads: running
 * requests in order, the newest preempted when a page is missing, then, if nobody was preempted,
 * waiting ones from the front while their chunk fits. Nothing here is shared with the engine. */
typedef struct model_request {
  guint id, prompt, max_tokens, computed, out, pages;
  gint64 arrival_ns;
} model_request;

typedef struct model {
  GArray *requests; /* model_request, by arrival */
  GQueue running, waiting;
  guint free_pages, max_seqs, budget, next;
  gint64 now;
  GPtrArray *steps; /* text */
} model;

static guint
missing_pages(const model_request *r, guint n) {
  guint want = (r->computed + n + 15) / 16;
  return want > r->pages ? want - r->pages : 0;
}

static void
model_take(model *m, model_request *r, guint n, guint *budget, GString *text, GArray *chunks) {
  guint pages = missing_pages(r, n);
  m->free_pages -= pages;
  r->pages += pages;
  *budget -= n;
  g_string_append_printf(text, "%s%u@%u+%u%s", text->len > 0 ? " " : "", r->id, r->computed, n,
                         r->computed + n == r->prompt + r->out ? "*" : "");
  g_array_append_val(chunks, n);
}

/* Memory for r's next n tokens by preempting the newest; FALSE: it was itself the newest. */
static gboolean
model_make_room(model *m, model_request *r, guint n, gboolean *preempted) {
  while (missing_pages(r, n) > m->free_pages) {
    model_request *newest = g_queue_pop_tail(&m->running);
    m->free_pages += newest->pages;
    newest->pages = newest->computed = 0;
    g_queue_push_head(&m->waiting, newest);
    *preempted = TRUE;
    if (newest == r)
      return FALSE;
  }
  return TRUE;
}

static void
model_update(model *m, GPtrArray *scheduled, const GArray *chunks) {
  for (guint i = 0; i < scheduled->len; i++) {
    model_request *r = scheduled->pdata[i];
    r->computed += g_array_index(chunks, guint, i);
    if (r->computed == r->prompt + r->out)
      r->out++;
    if (r->out == r->max_tokens) {
      m->free_pages += r->pages;
      g_queue_remove(&m->running, r);
    }
  }
}

/* One step; FALSE when nothing is left. */
static gboolean
model_step(model *m) {
  for (; m->next < m->requests->len; m->next++) {
    model_request *r = &g_array_index(m->requests, model_request, m->next);
    if (r->arrival_ns > m->now) {
      if (m->running.length + m->waiting.length > 0)
        break;
      m->now = r->arrival_ns;
    }
    g_queue_push_tail(&m->waiting, r);
  }
  guint budget = m->budget;
  gboolean preempted = FALSE;
  g_autoptr(GString) text = g_string_new(NULL);
  g_autoptr(GPtrArray) scheduled = g_ptr_array_new();
  g_autoptr(GArray) chunks = g_array_new(FALSE, FALSE, sizeof(guint));
  for (guint i = 0; i < m->running.length && budget > 0; i++) {
    model_request *r = g_queue_peek_nth(&m->running, i);
    guint n = MIN(r->prompt + r->out - r->computed, budget);
    if (!model_make_room(m, r, n, &preempted))
      break;
    model_take(m, r, n, &budget, text, chunks);
    g_ptr_array_add(scheduled, r);
  }
  while (!preempted && m->waiting.length > 0 && budget > 0 && m->running.length < m->max_seqs) {
    model_request *r = g_queue_peek_head(&m->waiting);
    guint n = MIN(r->prompt + r->out, budget);
    if (missing_pages(r, n) > m->free_pages)
      break;
    g_queue_push_tail(&m->running, g_queue_pop_head(&m->waiting));
    model_take(m, r, n, &budget, text, chunks);
    g_ptr_array_add(scheduled, r);
  }
  if (scheduled->len == 0)
    return FALSE;
  g_ptr_array_add(m->steps, g_strdup(text->str));
  m->now += MS + 10000 * (gint64)(m->budget - budget);
  model_update(m, scheduled, chunks);
  return TRUE;
}

static void
compare_with_model(guint64 seed) {
  oct_rng rng;
  oct_rng_seed(&rng, seed, 1);
  scene s;
  guint pages = 8 + (guint)oct_rng_below(&rng, 40);
  scene_init(&s, "llama", pages, 0);
  s.config.policy = "vllm-v1";
  s.config.run_ahead = 0;
  s.config.prefix_caching = FALSE;
  s.config.max_num_seqs = 1 + (guint)oct_rng_below(&rng, 12);
  s.config.max_num_batched_tokens = s.config.max_num_seqs + (guint)oct_rng_below(&rng, 100);
  model m = {.free_pages = pages,
             .max_seqs = s.config.max_num_seqs,
             .budget = s.config.max_num_batched_tokens};
  m.requests = g_array_new(FALSE, FALSE, sizeof(model_request));
  m.steps = g_ptr_array_new_with_free_func(g_free);
  gint64 at = 0;
  for (guint i = 0; i < 20; i++) {
    guint max_tokens = 1 + (guint)oct_rng_below(&rng, 60);
    guint prompt = 1 + (guint)oct_rng_below(&rng, pages * 16 - max_tokens);
    at += (gint64)oct_rng_below(&rng, 8) * MS;
    rig_request *q = scene_ask(&s, i, prompt, max_tokens);
    q->params.arrival_ns = at;
    model_request r = {.id = i + 1, .prompt = prompt, .max_tokens = max_tokens, .arrival_ns = at};
    g_array_append_val(m.requests, r);
  }
  while (model_step(&m))
    g_assert_cmpuint(m.steps->len, <, 100000);
  scene_run(&s);
  for (guint i = 0; i < MIN(m.steps->len, s.steps->len); i++)
    if (strcmp(m.steps->pdata[i], scene_step_at(&s, i)->text) != 0)
      g_error("seed %" G_GUINT64_FORMAT " step %u: vLLM %s, the engine %s", seed, i + 1,
              (char *)m.steps->pdata[i], scene_step_at(&s, i)->text);
  g_assert_cmpuint(m.steps->len, ==, s.steps->len);
  g_array_unref(m.requests);
  g_ptr_array_unref(m.steps);
  g_queue_clear(&m.running);
  g_queue_clear(&m.waiting);
  scene_clear(&s);
}

static void
test_vllm_model(void) {
  for (guint64 seed = 1; seed <= 100; seed++)
    compare_with_model(seed);
}

/* By hand: admission by the chunk, the newest preempted, nobody admitted in that step although the
 * third would fit, the preempted one back in front of it, computed from its first token. */
static void
test_vllm_by_hand(void) {
  scene s;
  scene_init(&s, "llama", 6, 0);
  s.config.policy = "vllm-v1";
  s.config.run_ahead = 0;
  s.config.prefix_caching = FALSE;
  (void)scene_ask(&s, 1, 40, 30);
  (void)scene_ask(&s, 2, 40, 10);
  (void)scene_ask(&s, 3, 8, 4);
  scene_run(&s);
  static const struct {
    guint step;
    const char *text;
  } steps[] = {
      {1, "1@0+40* 2@0+24"},  {2, "1@40+1* 2@24+16*"}, {3, "1@41+1* 2@40+1*"},
      {9, "1@47+1* 2@46+1*"}, {10, "1@48+1*"},         {11, "1@49+1*"},
      {30, "1@68+1*"},        {31, "2@0+48* 3@0+8*"},  {32, "2@48+1* 3@8+1*"},
      {33, "3@9+1*"},         {34, "3@10+1*"},
  };
  for (gsize i = 0; i < G_N_ELEMENTS(steps); i++)
    g_assert_cmpstr(scene_step_at(&s, steps[i].step - 1)->text, ==, steps[i].text);
  g_assert_cmpuint(s.steps->len, ==, 34);
  g_assert_cmpuint(scene_stats(&s)->preemptions, ==, 1);
  g_assert_cmpuint(scene_stats(&s)->recomputed_tokens, ==, 47);
  scene_clear(&s);
}

/* ---------------------------------------------------------------- decodes against prompts */

/* Four sequences decode while prompts come faster than they can be computed; the longest gap
 * between two tokens of the four. */
static gint64
longest_gap(const char *policy, gint64 gap_max_ns, guint32 run_ahead) {
  scene s;
  scene_init(&s, "llama", 2000, 0);
  s.config.policy = policy;
  s.config.run_ahead = run_ahead;
  s.config.decode_gap_max_ns = gap_max_ns;
  for (guint i = 0; i < 4; i++)
    (void)scene_ask(&s, i, 20, 200);
  for (guint i = 0; i < 150; i++) {
    rig_request *q = scene_ask(&s, 10 + i, 300, 1);
    q->params.arrival_ns = (5 + 2 * i) * MS;
  }
  scene_run(&s);
  gint64 longest = 0;
  for (guint i = 0; i < 4; i++)
    longest = MAX(longest, rig_request_at(&s.rig, i)->record.longest_gap_ns);
  scene_clear(&s);
  return longest;
}

/* A step of 64 tokens takes 1.64 ms. */
static void
test_decode_gap(void) {
  const gint64 step = MS + 64 * 10000;
  for (guint32 run_ahead = 0; run_ahead < 2; run_ahead++) {
    gint64 first = longest_gap("decode-first", 0, run_ahead);
    g_assert_cmpint(first, <=, step);
    for (gint64 gap = 10 * MS; gap <= 90 * MS; gap += 40 * MS) {
      gint64 aware = longest_gap("stage-aware", gap, run_ahead);
      g_test_message("run-ahead %u: decode-first %.2f ms, stage-aware %.2f ms with a bound of %.0f",
                     run_ahead, 1e-6 * (double)first, 1e-6 * (double)aware, 1e-6 * (double)gap);
      g_assert_cmpint(aware, >=, gap);
      /* With a step in flight when the bound is reached there is one more. */
      g_assert_cmpint(aware, <=, gap + (1 + run_ahead) * step);
    }
  }
}

/* Decodes could take the whole budget: prompts get in nevertheless, on every policy. */
static void
test_prefill_gets_in(void) {
  for (const oct_policy *const *p = oct_policy_list(); *p != NULL; p++) {
    scene s;
    scene_init(&s, "llama", 500, 0);
    s.config.policy = (*p)->name;
    s.config.max_num_seqs = s.config.max_num_batched_tokens = 16;
    s.config.decode_gap_max_ns = 20 * MS;
    for (guint i = 0; i < 15; i++)
      (void)scene_ask(&s, i, 4, 300);
    rig_request *late = scene_ask(&s, 99, 60, 4);
    late->params.arrival_ns = 50 * MS;
    scene_run(&s);
    /* One token of sixteen is left for it: sixty steps of 1.16 ms, no more than twice that. */
    g_assert_cmpint(late->record.first_token_ns - late->params.arrival_ns, <, 140 * MS);
    scene_clear(&s);
  }
}

/* A long prompt goes in pieces while others are there, and at once when it is alone. */
static void
test_threshold(void) {
  for (guint n = 1; n <= 2; n++) {
    scene s;
    scene_init(&s, "llama", 100, 0);
    s.config.long_prefill_threshold = 16;
    for (guint i = 0; i < n; i++)
      (void)scene_ask(&s, i, 60, 4);
    scene_run(&s);
    g_assert_cmpuint(scene_step_at(&s, 0)->n_slices, ==, n);
    g_assert_cmpuint(scene_step_at(&s, 0)->n_tokens, ==, n == 1 ? 60 : 32);
    scene_clear(&s);
  }
}

/* ---------------------------------------------------------------- who goes first */

static void
test_priority_order(void) {
  scene s;
  scene_init(&s, "llama", 100, 0);
  s.config.policy = "priority";
  s.config.max_num_seqs = 1;
  static const gint32 priorities[] = {0, 2, 1, -1, 1, 0};
  static const guint order[] = {0, 3, 5, 2, 4, 1}; /* the first runs before the others come */
  for (guint i = 0; i < 6; i++) {
    rig_request *q = scene_ask(&s, i, 20, 5);
    q->params.priority = priorities[i];
    q->params.arrival_ns = i == 0 ? 0 : MS;
  }
  scene_run(&s);
  for (guint i = 1; i < 6; i++)
    g_assert_cmpint(rig_request_at(&s.rig, order[i])->record.admitted_ns, >=,
                    rig_request_at(&s.rig, order[i - 1])->record.ended_ns);
  scene_clear(&s);
}

/* Two tenants of one priority; the one sends ten times as many requests, and longer ones. While
 * both wait, each gets half of the tokens. */
static void
test_fair_shares(void) {
  for (guint longer = 1; longer <= 4; longer++) {
    scene s;
    scene_init(&s, "llama", 400, 0);
    s.config.policy = "priority";
    s.config.max_num_seqs = 4;
    s.config.prefix_caching = FALSE;
    for (guint i = 0; i < 550; i++) {
      gboolean small = i % 11 == 10;
      rig_request *q = scene_ask(&s, i, small ? 30 : 30 * longer, 10);
      q->params.tenant = small;
    }
    scene_run(&s);
    oct_time end = 0;
    double tokens[2] = {0};
    for (guint i = 0; i < 550; i++) {
      const rig_request *q = rig_request_at(&s.rig, i);
      if (q->params.tenant == 1)
        end = MAX(end, q->record.admitted_ns);
    }
    for (guint i = 0; i < 550; i++) {
      const rig_request *q = rig_request_at(&s.rig, i);
      if (q->record.admitted_ns <= end)
        tokens[q->params.tenant] += q->record.prompt_tokens + q->record.output_tokens;
    }
    g_test_message("tenant 0 with requests %u times as long: %.0f tokens, tenant 1: %.0f", longer,
                   tokens[0], tokens[1]);
    g_assert_cmpfloat(tokens[0] / tokens[1], >, 0.9);
    g_assert_cmpfloat(tokens[0] / tokens[1], <, 1.1);
    scene_clear(&s);
  }
}

/* The same with requests that keep coming, whose outputs differ tenfold from what is expected of
 * them: what each tenant gets is counted by what it got. */
static void
test_fair_outputs(void) {
  scene s;
  scene_init(&s, "llama", 400, 0);
  s.config.policy = "priority";
  s.config.max_num_seqs = 4;
  s.config.prefix_caching = FALSE;
  for (guint i = 0; i < 1200; i++) {
    gboolean small = i % 6 != 0;
    rig_request *q = scene_ask(&s, i, 20, 400);
    q->params.tenant = small;
    q->params.ignore_eos = FALSE;
    q->params.oracle_tokens = small ? 10 : 100;
    q->params.arrival_ns = i * 4 * MS;
  }
  scene_run(&s);
  oct_time from = 1500 * MS, until = 4000 * MS;
  double tokens[2] = {0};
  for (guint i = 0; i < 1200; i++) {
    const rig_request *q = rig_request_at(&s.rig, i);
    if (q->record.admitted_ns >= from && q->record.admitted_ns < until)
      tokens[q->params.tenant] += q->record.prompt_tokens + q->record.output_tokens;
  }
  g_test_message("long outputs: %.0f tokens, short ones: %.0f", tokens[0], tokens[1]);
  g_assert_cmpfloat(tokens[0] / tokens[1], >, 0.9);
  g_assert_cmpfloat(tokens[0] / tokens[1], <, 1.1);
  scene_clear(&s);
}

/* A long prompt is overtaken by shorter ones, but by none that comes later than its own length's
 * worth of time: a second for 1,000 tokens. */
static void
test_shortest_first(void) {
  scene s;
  scene_init(&s, "llama", 400, 0);
  s.config.policy = "shortest-first";
  s.config.max_num_seqs = 1;
  (void)scene_ask(&s, 1, 10, 10);
  rig_request *large = scene_ask(&s, 2, 500, 10);
  large->params.arrival_ns = MS;
  for (guint i = 0; i < 200; i++) {
    rig_request *q = scene_ask(&s, 3 + i, 20, 10);
    q->params.arrival_ns = (2 + 5 * i) * MS;
  }
  scene_run(&s);
  guint overtook = 0;
  for (guint i = 2; i < s.rig.requests->len; i++) {
    const rig_request *q = rig_request_at(&s.rig, i);
    if (q->record.admitted_ns > large->record.admitted_ns)
      continue;
    overtook++;
    g_assert_cmpint(q->params.arrival_ns - large->params.arrival_ns, <=, 480 * MS);
  }
  g_assert_cmpuint(overtook, >, 10);
  g_assert_cmpuint(overtook, <, 100);
  scene_clear(&s);
}

/* ---------------------------------------------------------------- who leaves */

static void
test_victims(void) {
  static const gint32 priorities[] = {1, 0, 1, 0};
  for (int priority = 0; priority < 2; priority++) {
    scene s;
    scene_init(&s, "llama", 14, 0);
    s.config.policy = priority ? "priority" : "decode-first";
    s.config.prefix_caching = FALSE;
    for (guint i = 0; i < 4; i++) {
      rig_request *q = scene_ask(&s, i, 40, 60);
      q->params.arrival_ns = i * 2 * MS;
      if (priority)
        q->params.priority = priorities[i];
    }
    scene_run(&s);
    guint32 preempted[4];
    for (guint i = 0; i < 4; i++)
      preempted[i] = rig_request_at(&s.rig, i)->record.preemptions;
    g_test_message("preempted %u %u %u %u times", preempted[0], preempted[1], preempted[2],
                   preempted[3]);
    /* The oldest of the best is never thrown out, the youngest of the worst is. */
    g_assert_cmpuint(preempted[priority ? 1 : 0], ==, 0);
    g_assert_cmpuint(preempted[priority ? 2 : 3] + preempted[priority ? 0 : 2], >, 0);
    scene_clear(&s);
  }
}

/* All run from the start, the worst two in the middle: the later of them leaves first, and the best
 * never do. */
static void
test_priority_victims(void) {
  static const gint32 priorities[] = {0, 1, 1, 0};
  scene s;
  scene_init(&s, "llama", 12, 0); /* three of each: the first in line lacks the next */
  s.config.policy = "priority";
  s.config.prefix_caching = FALSE;
  for (guint i = 0; i < 4; i++) {
    rig_request *q = scene_ask(&s, i, 8, 80);
    q->params.priority = priorities[i];
  }
  scene_run(&s);
  guint32 preempted[4];
  for (guint i = 0; i < 4; i++)
    preempted[i] = rig_request_at(&s.rig, i)->record.preemptions;
  g_test_message("preempted %u %u %u %u times", preempted[0], preempted[1], preempted[2],
                 preempted[3]);
  g_assert_cmpuint(preempted[0] + preempted[3], ==, 0);
  g_assert_cmpuint(preempted[1] + preempted[2], >, 0);
  scene_clear(&s);
}

typedef struct share {
  double recomputed;
  guint64 preemptions;
  guint32 most; /* preemptions of one request */
  oct_time took;
} share;

static share
overload(const char *policy, guint32 host) {
  scene s;
  scene_init(&s, "llama", 120, host);
  s.config.policy = policy;
  s.config.prefix_caching = FALSE;
  s.config.max_num_seqs = 32;
  s.config.max_num_batched_tokens = 256;
  oct_rng rng;
  oct_rng_seed(&rng, 1, 1);
  oct_time at = 0;
  for (guint i = 0; i < 300; i++) {
    guint prompt = 20 + (guint)oct_rng_below(&rng, 200), out = 10 + (guint)oct_rng_below(&rng, 200);
    rig_request *q = scene_ask(&s, i, prompt, 400);
    q->params.ignore_eos = FALSE;
    q->params.oracle_tokens = out;
    at += (gint64)oct_rng_exponential(&rng, 8e6);
    q->params.arrival_ns = at;
  }
  scene_run(&s);
  const oct_engine_stats *stats = scene_stats(&s);
  share result = {.preemptions = stats->preemptions};
  guint64 all = stats->prompt_tokens + stats->generated_tokens + stats->recomputed_tokens;
  result.recomputed = (double)stats->recomputed_tokens / (double)all;
  for (guint i = 0; i < 300; i++) {
    const rig_request *q = rig_request_at(&s.rig, i);
    g_assert_cmpint(q->record.reason, ==, OCT_END_STOP);
    result.most = MAX(result.most, q->record.preemptions);
    result.took = MAX(result.took, q->record.ended_ns);
  }
  scene_clear(&s);
  return result;
}

/* One overloaded list: what each policy computes twice, and how often one request is thrown out. */
static void
test_recompute_share(void) {
  share vllm = {0}, standard = {0};
  for (const oct_policy *const *p = oct_policy_list(); *p != NULL; p++) {
    share now = overload((*p)->name, 0), host = overload((*p)->name, 400);
    g_test_message("%-15s %5.2f %% recomputed, %4" G_GUINT64_FORMAT
                   " preemptions, at most %u of one, %.2f s; with a host tier %.2f %%, %.2f s",
                   (*p)->name, 100 * now.recomputed, now.preemptions, now.most,
                   1e-9 * (double)now.took, 100 * host.recomputed, 1e-9 * (double)host.took);
    if (strcmp((*p)->name, "vllm-v1") == 0)
      vllm = now;
    if (strcmp((*p)->name, "decode-first") == 0)
      standard = now;
    g_assert_cmpuint(now.most, <=, 40);
    if (!(*p)->always_recompute)
      g_assert_cmpfloat(host.recomputed, ==, 0);
  }
  g_assert_cmpuint(vllm.preemptions, >, 20);
  g_assert_cmpfloat(standard.recomputed, <, 0.5 * vllm.recomputed);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/sched/policies/vllm-v1-does-what-vllm-does", test_vllm_model);
  g_test_add_func("/sched/policies/vllm-v1-by-hand", test_vllm_by_hand);
  g_test_add_func("/sched/policies/decodes-wait-no-longer-than-the-bound", test_decode_gap);
  g_test_add_func("/sched/policies/prompts-get-in-under-full-decode-load", test_prefill_gets_in);
  g_test_add_func("/sched/policies/priority-orders-the-queue", test_priority_order);
  g_test_add_func("/sched/policies/tenants-get-equal-shares", test_fair_shares);
  g_test_add_func("/sched/policies/tenants-are-charged-for-what-they-got", test_fair_outputs);
  g_test_add_func("/sched/policies/shortest-first-overtakes-for-a-while", test_shortest_first);
  g_test_add_func("/sched/policies/long-prompts-go-in-pieces-beside-others", test_threshold);
  g_test_add_func("/sched/policies/victims-are-the-youngest-of-the-worst", test_victims);
  g_test_add_func("/sched/policies/the-best-priority-does-not-leave", test_priority_victims);
  g_test_add_func("/sched/policies/recompute-share-under-overload", test_recompute_share);
  return g_test_run();
}
