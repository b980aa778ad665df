#include "tests/backends/golden-engine.h"

#include <math.h>
#include <string.h>

#include "backends/registry.h"
#include "engine/base/rng.h"
#include "tests/engine/sched/rig.h"

/* A world and one of its checkpoints. */
typedef struct subject {
  const golden_world *world;
  const char *name;
} subject;

typedef struct scene {
  const golden_world *world;
  golden g;
  rig r;
  oct_engine_config config;
} scene;

/* Expert slots per layer and rank; 0: the checkpoint has no experts, or all are on the device. */
static guint32
slots_of(const golden_world *world, const oct_model_spec *spec) {
  const oct_parallel *p = &world->parallel;
  guint32 most = 0, ranks = p->expert_parallel ? p->tensor * p->data : 1;
  for (guint32 i = 0; i < spec->n_ffn; i++)
    most = MAX(most, spec->ffn[i].n_experts / ranks);
  return world->expert_percent > 0 && most > 0 ? MAX(1, most * world->expert_percent / 100) : 0;
}

/* An engine on a checkpoint with room for everything; to be changed before scene_run(). */
static void
scene_open(scene *s, const subject *of, const char *description) {
  g_autoptr(GError) error = NULL;
  s->world = of->world;
  golden_open(&s->g, of->name);
  g_auto(GStrv) parts = g_strsplit(description, "%s", 2);
  g_autofree char *text = g_strconcat(parts[0], s->g.folder, parts[1], NULL);
  oct_world *world = oct_backend_world_new(text, &error);
  g_assert_no_error(error);
  rig_init(&s->r, world);
  rig_config(&s->config, s->g.spec, 64, 0);
  s->config.instance.parallel = of->world->parallel;
  s->config.instance.eager = of->world->eager;
  s->config.instance.memory.n_expert_slots = slots_of(of->world, s->g.spec);
  s->config.max_model_len = 128;
  s->config.max_num_seqs = 16;
  s->config.prefix_caching = FALSE;
}

static void
scene_run(scene *s) {
  rig_add_engine(&s->r, &s->config);
  rig_run(&s->r);
  g_assert_cmpstr(s->r.failure, ==, NULL);
}

static void
scene_close(scene *s) {
  rig_clear(&s->r);
  golden_close(&s->g);
}

static rig_request *
ask(scene *s, const guint32 *ids, guint32 n, oct_time arrival_ns) {
  oct_request_params p;
  oct_request_params_default(&p);
  p.prompt_ids = ids;
  p.prompt_tokens = n;
  p.temperature = 0;
  p.max_tokens = s->g.n_generated;
  p.ignore_eos = TRUE;
  p.arrival_ns = arrival_ns;
  return rig_add(&s->r, 0, &p);
}

static rig_request *
ask_golden(scene *s, oct_time arrival_ns) {
  return ask(s, s->g.prompt, s->g.n_prompt, arrival_ns);
}

/* A prompt that is not the golden one: `n` ids by key. */
static rig_request *
ask_other(scene *s, guint64 key, guint32 n, oct_time arrival_ns) {
  guint32 ids[GOLDEN_PROMPT];
  g_assert_cmpuint(n, <=, GOLDEN_PROMPT);
  for (guint32 i = 0; i < n; i++)
    ids[i] = (guint32)(oct_mix64(key * 1000 + i) % s->g.spec->vocab);
  return ask(s, ids, n, arrival_ns);
}

/* Texts that were compared in this test; those that had another token somewhere, nearly as likely;
 * and others. */
static guint n_texts, n_flipped, n_rerouted;

/* Whether a token may be another one whose logit is so far below the best, of their root mean
 * square. In a loose world a token may take other experts where two score alike, and is then off by
 * as much as experts differ. */
static gboolean
may_differ(const scene *s, double below) {
  gboolean is_near = below < s->world->margin;
  gboolean loose = s->world->loose || (s->world->loose_states && oct_model_has_state(s->g.spec));
  n_flipped += is_near;
  n_rerouted += !is_near;
  return is_near || (loose && oct_model_has_experts(s->g.spec));
}

/* Whether the k-th token may be another than the golden one. */
static gboolean
is_close(const scene *s, guint32 k, guint32 token) {
  guint32 vocab = s->g.spec->vocab;
  const float *logits = golden_generated_logits(&s->g) + (gsize)k * vocab;
  double squares = 0;
  for (guint32 i = 0; i < vocab; i++)
    squares += (double)logits[i] * logits[i];
  double below = (logits[s->g.generated[k]] - logits[token]) / sqrt(squares / vocab);
  g_test_message("token %u is %u instead of %u: its logit is %.4f below, of the root mean square",
                 k, token, s->g.generated[k], below);
  return may_differ(s, below);
}

static void
assert_golden(const scene *s, const rig_request *q) {
  g_assert_cmpstr(oct_end_reason_name(q->record.reason), ==, "length");
  g_assert_cmpuint(q->tokens[0]->len, ==, s->g.n_generated);
  n_texts++;
  for (guint32 k = 0; k < s->g.n_generated; k++) {
    guint32 token = g_array_index(q->tokens[0], guint32, k);
    if (token == s->g.generated[k])
      continue;
    g_assert_true(is_close(s, k, token));
    return;
  }
}

/* What a prompt gives alone: tokens, and logprobs of each and of those that are likeliest. */
typedef struct text {
  GArray *tokens, *logprobs;
} text;

#define LIKELIEST 20

static text
text_of(const rig_request *q) {
  return (text){g_array_ref(q->tokens[0]), g_array_ref(q->logprobs[0])};
}

static void
text_clear(text *t) {
  g_array_unref(t->tokens);
  g_array_unref(t->logprobs);
}

/* How large the checkpoint's logits are. */
static double
size_of_logits(const scene *s) {
  gsize n = (gsize)s->g.n_generated * s->g.spec->vocab;
  const float *logits = golden_generated_logits(&s->g);
  double squares = 0;
  for (gsize i = 0; i < n; i++)
    squares += (double)logits[i] * logits[i];
  return sqrt(squares / (double)n);
}

/* How far a token was below the likeliest one when the text had it as its k-th. */
static double
below_likeliest(const text *t, guint32 k, guint32 token) {
  const oct_logprob *row = &g_array_index(t->logprobs, oct_logprob, (gsize)k * (1 + LIKELIEST));
  double best = -INFINITY, its = -INFINITY;
  for (guint i = 0; i <= LIKELIEST; i++) {
    best = MAX(best, (double)row[i].logprob);
    if (row[i].token == token)
      its = row[i].logprob;
  }
  return best - its;
}

/* The same tokens; of a loose world another one where it was as good as likeliest, and what follows
 * it is not compared. */
static void
assert_text(const scene *s, const rig_request *q, const text *wanted) {
  g_assert_cmpuint(q->tokens[0]->len, ==, wanted->tokens->len);
  n_texts++;
  for (guint32 k = 0; k < wanted->tokens->len; k++) {
    guint32 token = g_array_index(q->tokens[0], guint32, k);
    if (token == g_array_index(wanted->tokens, guint32, k))
      continue;
    double below = below_likeliest(wanted, k, token) / size_of_logits(s);
    g_test_message("token %u is %u: its logit is %.4f below, of the root mean square", k, token,
                   below);
    g_assert_true(s->world->loose);
    g_assert_true(may_differ(s, below));
    return;
  }
}

static void
assert_same(const rig_request *a, const rig_request *b, guint32 choice) {
  g_assert_cmpuint(a->tokens[choice]->len, >, 0);
  g_assert_cmpmem(a->tokens[choice]->data, a->tokens[choice]->len * sizeof(guint32),
                  b->tokens[choice]->data, b->tokens[choice]->len * sizeof(guint32));
}

/* ---------------------------------------------------------------- golden tokens */

static void
in_chunks(const subject *of) {
  static const guint32 chunks[] = {1, 5, 7, 16, 17, 64};
  for (gsize i = 0; i < G_N_ELEMENTS(chunks); i++)
    for (guint32 ahead = 0; ahead < 2; ahead++) {
      scene s;
      scene_open(&s, of, of->world->usual);
      s.config.max_num_seqs = 1;
      s.config.max_num_batched_tokens = chunks[i];
      s.config.run_ahead = ahead;
      rig_request *q = ask_golden(&s, 0);
      scene_run(&s);
      assert_golden(&s, q);
      guint32 prefills = (s.g.n_prompt + chunks[i] - 1) / chunks[i];
      g_assert_cmpuint(s.r.stats[0].steps, >=, prefills + s.g.n_generated - 1);
      scene_close(&s);
    }
}

/* A request that waits for the one before it, which has left its pages behind by then. */
static void
one_after_the_other(rig *r, rig_request *ended, void *user) {
  (void)user;
  for (guint i = 0; i + 1 < r->requests->len; i++)
    if (rig_request_at(r, i) == ended) {
      rig_request *next = rig_request_at(r, i + 1);
      next->params.arrival_ns = r->now;
      rig_submit(r, next);
    }
}

/* Hits at whole pages of `block` tokens, with a snapshot of recurrent states at each. */
static void
from_pages_of(const subject *of, guint32 block, guint32 shared) {
  scene s;
  scene_open(&s, of, of->world->usual);
  s.config.prefix_caching = TRUE;
  s.config.instance.block_size = block;
  /* A page of ranks that share tokens out holds that many times more of them. */
  guint32 page = block * of->world->parallel.decode_context;
  guint32 whole = (s.g.n_prompt - 1) / page * page;
  s.config.state_snapshot_interval = page;
  s.r.on_ended = one_after_the_other;
  rig_request *first = ask_golden(&s, 0), *second = ask_golden(&s, OCT_TIME_NEVER);
  /* Shares some tokens with it, then goes its own way: and is itself found again. */
  guint32 ids[GOLDEN_PROMPT];
  for (guint32 i = 0; i < s.g.n_prompt; i++)
    ids[i] = i < shared ? s.g.prompt[i] : s.g.prompt[s.g.n_prompt - 1 - i];
  rig_request *third = ask(&s, ids, s.g.n_prompt, OCT_TIME_NEVER);
  third->params.n_logprobs = LIKELIEST;
  rig_request *fourth = ask(&s, ids, s.g.n_prompt, OCT_TIME_NEVER);
  scene_run(&s);
  assert_golden(&s, first);
  assert_golden(&s, second);
  text wanted = text_of(third);
  assert_text(&s, fourth, &wanted);
  text_clear(&wanted);
  g_assert_cmpuint(first->record.cached_tokens, ==, 0);
  g_assert_cmpuint(second->record.cached_tokens, ==, whole);
  g_assert_cmpuint(third->record.cached_tokens, ==, shared / page * page);
  g_assert_cmpuint(fourth->record.cached_tokens, ==, whole);
  scene_close(&s);
}

static void
from_the_prefix_cache(const subject *of) {
  from_pages_of(of, 16, 20);
}

/* Delta attention takes prompts in chunks of 16 tokens: hits at 40 and at 24 are in the middle. */
static void
from_the_prefix_cache_between_chunks(const subject *of) {
  from_pages_of(of, 8, 28);
}

/* What two other prompts give alone. */
static void
others_alone(const subject *of, text wanted[2]) {
  for (guint i = 0; i < 2; i++) {
    scene s;
    scene_open(&s, of, of->world->usual);
    rig_request *q = ask_other(&s, i, 30 + 5 * i, 0);
    q->params.n_logprobs = LIKELIEST;
    scene_run(&s);
    wanted[i] = text_of(q);
    scene_close(&s);
  }
}

/* Five sequences that need some 20 pages, with `pages` pages. Adds to the totals. */
static void
run_short(const subject *of, const text wanted[2], oct_preemption how, guint32 pages,
          guint32 n_host, oct_engine_stats *total) {
  scene s;
  rig_request *goldens[3], *others[2];
  oct_layer_group groups[OCT_MODEL_GROUPS_MAX];
  scene_open(&s, of, of->world->slow);
  (void)oct_model_groups(s.g.spec, OCT_DTYPE_BF16, groups);
  for (guint32 g = 0; g < s.config.instance.memory.n_groups; g++) {
    guint32 larger = groups[g].state_bytes > 0 ? 1 : of->world->parallel.decode_context;
    s.config.instance.memory.groups[g] =
        (oct_pool_plan){.n_device = pages / larger, .n_host = n_host};
  }
  s.config.preemption = how;
  if (how == OCT_PREEMPT_RECOMPUTE)
    s.config.policy = "vllm-v1"; /* admits all that fits for a moment */
  for (guint i = 0; i < 3; i++)
    goldens[i] = ask_golden(&s, (oct_time)i * 500000);
  for (guint i = 0; i < 2; i++)
    others[i] = ask_other(&s, i, 30 + 5 * i, (oct_time)i * 700000);
  scene_run(&s);
  for (guint i = 0; i < 3; i++)
    assert_golden(&s, goldens[i]);
  for (guint i = 0; i < 2; i++)
    assert_text(&s, others[i], &wanted[i]);
  total->preemptions += s.r.stats[0].preemptions;
  total->offloads += s.r.stats[0].offloads;
  total->reloads += s.r.stats[0].reloads;
  total->recomputed_tokens += s.r.stats[0].recomputed_tokens;
  scene_close(&s);
}

/* Where ranks share tokens out a page has room for all that a sequence grows by. */
static gboolean
has_room_to_grow(const subject *of) {
  return of->world->parallel.decode_context > 1;
}

static void
short_of_memory(const subject *of, oct_preemption how, guint32 n_host) {
  text wanted[2];
  oct_engine_stats total = {0};
  others_alone(of, wanted);
  for (guint32 pages = 8; pages <= 14; pages += 3)
    run_short(of, wanted, how, pages, n_host, &total);
  g_test_message("%" G_GUINT64_FORMAT " preemptions, %" G_GUINT64_FORMAT
                 " offloads, %" G_GUINT64_FORMAT " reloads, %" G_GUINT64_FORMAT
                 " tokens computed again",
                 total.preemptions, total.offloads, total.reloads, total.recomputed_tokens);
  text_clear(&wanted[0]);
  text_clear(&wanted[1]);
  if (has_room_to_grow(of))
    return;
  g_assert_cmpuint(total.preemptions, >, 0);
  if (how == OCT_PREEMPT_RECOMPUTE) {
    g_assert_cmpuint(total.offloads, ==, 0);
    g_assert_cmpuint(total.recomputed_tokens, >, 0);
  } else {
    g_assert_cmpuint(total.offloads, >, 0);
    g_assert_cmpuint(total.reloads, >, 0);
  }
}

static void
after_recomputing(const subject *of) {
  short_of_memory(of, OCT_PREEMPT_RECOMPUTE, 0);
}

static void
after_offloading(const subject *of) {
  short_of_memory(of, OCT_PREEMPT_OFFLOAD, 40);
}

/* On a real clock, with a thread that computes and one that drives. */
static void
in_company(const subject *of) {
  scene s;
  rig_request *goldens[3];
  scene_open(&s, of, of->world->real);
  s.config.max_num_batched_tokens = 48;
  for (guint i = 0; i < 6; i++) {
    if (i % 2 == 0)
      goldens[i / 2] = ask_golden(&s, (oct_time)i * 2000000);
    else
      (void)ask_other(&s, i, 10 + 5 * i, (oct_time)i * 1000000);
  }
  scene_run(&s);
  for (guint i = 0; i < 3; i++)
    assert_golden(&s, goldens[i]);
  scene_close(&s);
}

/* ---------------------------------------------------------------- sampling */

static rig_request *
ask_seeded(scene *s, guint64 seed, guint32 n, oct_time arrival_ns) {
  rig_request *q = ask_golden(s, arrival_ns);
  q->params.seed = seed;
  q->params.n = n;
  q->params.temperature = 0.9f;
  q->params.top_p = 0.95f;
  q->params.top_k = 50;
  q->params.repetition_penalty = 1.1f;
  q->params.frequency_penalty = 0.2f;
  return q;
}

/* Three choices: alone, among others, preempted, in another order; and other seeds give others. */
static void
seeds_decide(const subject *of) {
  scene alone, among;
  scene_open(&alone, of, of->world->usual);
  rig_request *wanted = ask_seeded(&alone, 77, 3, 0);
  scene_run(&alone);
  scene_open(&among, of, of->world->usual);
  /* A request with three choices ends with eight pages of its own: no other fits beside it to its
   * end, in one domain or two. */
  for (guint32 g = 0; g < among.config.instance.memory.n_groups; g++)
    among.config.instance.memory.groups[g].n_device = 9;
  among.config.policy = "vllm-v1"; /* admits all that fits for a moment */
  among.config.max_num_batched_tokens = 20;
  (void)ask_other(&among, 3, 33, 0);
  rig_request *other = ask_seeded(&among, 78, 3, 0);
  rig_request *same = ask_seeded(&among, 77, 3, 1000000);
  (void)ask_other(&among, 4, 12, 2000000);
  scene_run(&among);
  if (!has_room_to_grow(of))
    g_assert_cmpuint(among.r.stats[0].preemptions, >, 0);
  for (guint32 c = 0; c < 3; c++) {
    assert_same(wanted, same, c);
    g_assert_cmpuint(wanted->tokens[c]->len, ==, GOLDEN_GENERATED);
    g_assert_true(memcmp(other->tokens[c]->data, same->tokens[c]->data,
                         GOLDEN_GENERATED * sizeof(guint32)) != 0);
  }
  g_assert_true(memcmp(wanted->tokens[0]->data, wanted->tokens[1]->data,
                       GOLDEN_GENERATED * sizeof(guint32)) != 0);
  scene_close(&among);
  scene_close(&alone);
}

/* ---------------------------------------------------------------- drafts */

/* Proposals from the text itself, or from the very checkpoint as its own draft model. */
static void
speculate(scene *s, oct_draft_method method, guint32 n_tokens) {
  oct_speculation *c = &s->config.speculation;
  c->method = method;
  c->n_tokens = n_tokens;
  c->ngram_min = 1;
  c->ngram_max = 3;
  c->draft = s->config.instance;
  c->draft.parallel = (oct_parallel)OCT_PARALLEL_DEFAULT;
}

static void
tell_drafts(const oct_draft_stats *d) {
  g_test_message("%" G_GUINT64_FORMAT " of %" G_GUINT64_FORMAT " drafts in %" G_GUINT64_FORMAT
                 " slices were accepted, %" G_GUINT64_FORMAT " steps of the draft model",
                 d->accepted, d->draft_tokens, d->drafts, d->model_steps);
}

/* The golden prompt's text, and another's, without drafts. */
static void
without_drafts(const subject *of, text wanted[2]) {
  scene s;
  scene_open(&s, of, of->world->usual);
  rig_request *q[] = {ask_golden(&s, 0), ask_other(&s, 3, 33, 0)};
  for (guint i = 0; i < 2; i++)
    q[i]->params.n_logprobs = LIKELIEST;
  scene_run(&s);
  for (guint i = 0; i < 2; i++)
    wanted[i] = text_of(q[i]);
  scene_close(&s);
}

/* Two of the same prompt and another, in steps that have no room for all of their drafts. */
static void
with_ngram_drafts(const subject *of) {
  static const guint32 lengths[] = {1, 3, 5, OCT_DRAFTS_MAX};
  oct_draft_stats total = {0};
  text wanted[2];
  gboolean verifies = TRUE;
  without_drafts(of, wanted);
  for (gsize i = 0; i < G_N_ELEMENTS(lengths); i++) {
    scene s;
    scene_open(&s, of, of->world->usual);
    if (of->world->needs_gpu && oct_model_has_state(s.g.spec)) {
      g_test_skip("cuda verifies no drafts of a model with recurrent state");
      scene_close(&s);
      verifies = FALSE;
      break;
    }
    speculate(&s, OCT_DRAFT_NGRAM, lengths[i]);
    s.config.max_num_batched_tokens = 40;
    rig_request *a = ask_golden(&s, 0), *b = ask_golden(&s, 1);
    rig_request *other = ask_other(&s, 3, 33, 0);
    scene_run(&s);
    assert_golden(&s, a);
    assert_golden(&s, b);
    assert_text(&s, a, &wanted[0]);
    assert_text(&s, b, &wanted[0]);
    assert_text(&s, other, &wanted[1]);
    total.drafts += s.r.stats[0].speculation.drafts;
    total.draft_tokens += s.r.stats[0].speculation.draft_tokens;
    total.accepted += s.r.stats[0].speculation.accepted;
    scene_close(&s);
  }
  text_clear(&wanted[0]);
  text_clear(&wanted[1]);
  tell_drafts(&total);
  g_assert_cmpint(total.drafts > 0, ==, verifies);
}

static void
with_a_draft_model(const subject *of) {
  static const guint32 lengths[] = {1, 2, 5, OCT_DRAFTS_MAX};
  for (gsize i = 0; i < G_N_ELEMENTS(lengths); i++) {
    scene s;
    scene_open(&s, of, of->world->usual);
    if (oct_model_has_state(s.g.spec)) {
      g_test_skip("the checkpoint has recurrent state: it drafts for nobody");
      scene_close(&s);
      return;
    }
    speculate(&s, OCT_DRAFT_MODEL, lengths[i]);
    rig_request *a = ask_golden(&s, 0);
    scene_run(&s);
    assert_golden(&s, a);
    const oct_draft_stats *d = &s.r.stats[0].speculation;
    tell_drafts(d);
    g_assert_cmpuint(d->drafts, >, 0);
    if (of->world->margin <= 0) { /* the same model draws the same */
      g_assert_cmpuint(d->accepted, ==, d->draft_tokens);
      g_assert_cmpuint(s.r.stats[0].steps, <=, 2 + s.g.n_generated / (lengths[i] + 1) + 1);
    }
    scene_close(&s);
  }
}

/* What is drawn is what is drawn without drafts, whoever made them. */
static void
drafts_decide_nothing(const subject *of) {
  for (oct_draft_method method = OCT_DRAFT_NGRAM; method <= OCT_DRAFT_MODEL; method++) {
    scene alone, among;
    scene_open(&alone, of, of->world->usual);
    rig_request *wanted = ask_seeded(&alone, 77, 3, 0);
    scene_run(&alone);
    scene_open(&among, of, of->world->usual);
    speculate(&among, method, 4);
    (void)ask_other(&among, 3, 33, 0);
    rig_request *same = ask_seeded(&among, 77, 3, 0);
    rig_request *free_of_penalties = ask_seeded(&among, 78, 1, 1);
    free_of_penalties->params.repetition_penalty = 1;
    free_of_penalties->params.frequency_penalty = 0;
    free_of_penalties->params.top_k = -1;
    scene_run(&among);
    const oct_draft_stats *d = &among.r.stats[0].speculation;
    tell_drafts(d);
    for (guint32 c = 0; c < 3; c++)
      assert_same(wanted, same, c);
    g_assert_cmpuint(d->drafts, >, 0);
    scene_close(&among);
    scene_close(&alone);
  }
}

/* ---------------------------------------------------------------- the list */

typedef struct golden_test {
  subject of;
  void (*fn)(const subject *of);
} golden_test;

static gboolean
has_gpu(void) {
  g_autoptr(GError) error = NULL;
  oct_world *world = oct_backend_world_new("cuda", &error);
  oct_world_free(world);
  return world != NULL;
}

static void
run_test(gconstpointer data) {
  const golden_test *t = data;
  g_autoptr(GError) error = NULL;
  golden g;
  if (t->of.world->needs_gpu && !has_gpu()) {
    g_test_skip("no GPU");
    return;
  }
  golden_open(&g, t->of.name);
  gboolean legal = oct_parallel_check(g.spec, &t->of.world->parallel, &error);
  gboolean plain = t->of.world->expert_percent > 0 && slots_of(t->of.world, g.spec) == 0;
  gboolean has_state = oct_model_has_state(g.spec);
  golden_close(&g);
  n_texts = n_flipped = n_rerouted = 0;
  if (legal && !plain)
    t->fn(&t->of);
  else
    g_test_skip(plain ? "no experts" : error->message);
  if (t->of.world->margin > 0)
    g_test_message("of %u texts %u had another token that is nearly as likely, %u one of other "
                   "experts",
                   n_texts, n_flipped, n_rerouted);
  /* What a token of other experts leaves in a state is read by all behind it: such texts say
   * nothing, and are not said to be equal. */
  if (has_state && 2 * n_rerouted > n_texts)
    g_test_skip("most texts took other experts; test-logits compares this model in any order");
  else
    g_assert_cmpuint(2 * n_rerouted, <=, n_texts);
}

static void
add(const golden_world *world, const char *name, const char *claim, void (*fn)(const subject *of)) {
  golden_test *t = g_new(golden_test, 1);
  *t = (golden_test){{world, name}, fn};
  g_autofree char *path = g_strdup_printf("%s/%s/%s", world->prefix, name, claim);
  g_test_add_data_func_full(path, t, run_test, g_free);
}

static void
add_all(const golden_world *world, const char *const *names) {
  for (const char *const *name = names; *name != NULL; name++) {
    add(world, *name, "in-chunks", in_chunks);
    add(world, *name, "from-the-prefix-cache", from_the_prefix_cache);
    add(world, *name, "from-the-prefix-cache-between-chunks", from_the_prefix_cache_between_chunks);
    add(world, *name, "after-recomputing", after_recomputing);
    add(world, *name, "after-offloading", after_offloading);
    add(world, *name, "in-company", in_company);
    add(world, *name, "with-ngram-drafts", with_ngram_drafts);
    add(world, *name, "with-a-draft-model", with_a_draft_model);
  }
}

void
golden_engine_add(const golden_world *world) {
  add_all(world, golden_names);
  if (world->kimi_k3)
    add_all(world, golden_k3_names);
  if (world->loose)
    return;
  add(world, "qwen3-moe", "seeds-decide", seeds_decide);
  add(world, "qwen3-moe", "drafts-decide-nothing", drafts_decide_nothing);
}
