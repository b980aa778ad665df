/* The swarm: random clients, lengths, policies, memory sizes, layouts and faults, by seed. Clients
 * cancel, stop and ask again at times of their own, at the very time of an event, before and after
 * the engine has seen it, and from within its callbacks. After every event the engine's books are
 * checked, mock checks every page, state and lease; every step that ends brings somebody further,
 * but for a bounded number in a row; and in the end every request has ended exactly once, nothing
 * is held, a second run has written a byte-identical log, and a run without faults, without drafts
 * and with all the memory that it could want has given every request the same tokens.
 *
 *   test-swarm                     500 fixed seeds and 100 fresh ones (printed); fewer when built
 *                                  with a sanitizer
 *   test-swarm --fresh B --count N fresh ones are N from B on
 *   test-swarm --seed N [--log F]  one of them, its event log into F; those without ids, fast-
 *                                  forwarded and stepped, into F.skipped and F.stepped
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backends/fault/fault.h"
#include "backends/mock/mock.h"
#include "engine/base/rng.h"
#include "engine/sched/internal.h"
#include "tests/engine/sched/rig.h"

#ifndef __has_feature
#define __has_feature(x) 0
#endif
/* Instrumented, a seed takes some five times as long. */
#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
#define N_FIXED 200
#define N_FRESH 40
#else
#define N_FIXED 500
#define N_FRESH 100
#endif

/* Seeds beyond the fixed range that have found what it does not: late spills; idle domains;
 * drafts' pages; a fork that was robbed; long prompts, thrown out for ever. */
static const guint64 found[] = {400018, 400054, 400436, 401902, 701957, 78882, 405962104, 91001137};

static guint64 only_seed;
static gboolean have_seed;
static char *log_path;
static int fresh_seed = -1, n_fresh = N_FRESH;
static volatile guint64 current_seed;

/* A seed that hangs without an event: the rig cannot see it. */
static void
on_alarm(int signal_number) {
  (void)signal_number;
  char text[96];
  int n = snprintf(text, sizeof text, "Bail out! seed %" G_GUINT64_FORMAT " hangs\n", current_seed);
  (void)!write(STDOUT_FILENO, text, (size_t)n);
  _exit(1);
}

typedef struct swarm {
  guint64 seed;
  oct_rng rng;
  /* What clients do at events. */
  oct_rng hooks;
  guint32 cancel_permille, stop_permille, preempt_permille, again_percent;
  /* What requests want beside tokens, and how long their owners take for a mask. */
  oct_rng extras;
  guint32 guided_percent, extra_percent, mute_permille;
  gint64 answer_ns;
  guint64 last_progress; /* tokens computed, as of the last step that ended */
  guint32 idle_steps;    /* since then that brought nobody further */
  guint64 n_steps;       /* that have ended */
  oct_model_spec *spec;
  oct_engine_config config;
  oct_mock_options mock;
  gboolean faulty;
  oct_fault_options fault;
  guint32 n_requests;
  oct_model_spec *draft_spec; /* NULL: no draft model */
} swarm;

static guint32
pick(swarm *s, guint32 low, guint32 high) {
  return low + (guint32)oct_rng_below(&s->rng, high - low + 1);
}

static gboolean
chance(swarm *s, guint32 percent) {
  return oct_rng_below(&s->rng, 100) < percent;
}

static void
draw_layout(swarm *s, const char *kind) {
  oct_parallel *p = &s->config.instance.parallel;
  if (chance(s, 30))
    p->pipeline = pick(s, 2, 4);
  if (chance(s, 30))
    p->data = pick(s, 2, 3);
  if (strcmp(kind, "hybrid") == 0 && chance(s, 30)) {
    p->tensor = 4;
    p->decode_context = 1u << pick(s, 0, 2);
  }
}

static void
draw_config(swarm *s) {
  static const char *const kinds[] = {"llama", "hybrid", "window"};
  static const char *const policies[] = {"decode-first", "stage-aware", "vllm-v1", "priority",
                                         "shortest-first"};
  const char *kind = kinds[pick(s, 0, 2)];
  s->spec = rig_spec(kind);
  guint32 pages = chance(s, 60) ? pick(s, 8, 60) : pick(s, 60, 400);
  guint32 host = chance(s, 50) ? pick(s, 4, 200) : 0;
  rig_config(&s->config, s->spec, pages, host);
  oct_engine_config *c = &s->config;
  c->instance.block_size = 1u << pick(s, 2, 5);
  draw_layout(s, kind);
  c->max_num_seqs = pick(s, 1, 12);
  c->max_num_batched_tokens = pick(s, c->max_num_seqs, 300);
  c->run_ahead = pick(s, 0, 1);
  c->submit_lead_ns = pick(s, 0, 2000000);
  c->policy = policies[pick(s, 0, 4)];
  c->preemption = chance(s, 30) ? OCT_PREEMPT_RECOMPUTE : OCT_PREEMPT_AUTO;
  c->prefix_caching = chance(s, 75);
  c->long_prefill_threshold = chance(s, 30) ? pick(s, 1, 64) : 0;
  c->decode_gap_max_ns = pick(s, 1000000, 100000000);
  if (chance(s, 50))
    c->state_snapshot_interval =
        c->instance.block_size * c->instance.parallel.decode_context * pick(s, 1, 4);
  c->retries_max = 3;
  c->queue_max = chance(s, 20) ? pick(s, 1, 8) : 0;
  c->seed = s->seed;
  oct_layer_group groups[OCT_MODEL_GROUPS_MAX];
  guint n = oct_model_groups(s->spec, c->instance.kv_dtype, groups);
  for (guint g = 0; g < n; g++)
    if (groups[g].kind == OCT_ATTENTION_KDA) {
      c->instance.memory.groups[g].n_device = chance(s, 50) ? pick(s, 1, 8) : pick(s, 8, 40);
      if (host > 0)
        c->instance.memory.groups[g].n_host = pick(s, 1, 20);
    } else if (groups[g].window > 0 && chance(s, 50)) {
      c->instance.memory.groups[g].n_device = pick(s, 1, pages);
    }
  oct_mock_options *m = &s->mock;
  oct_mock_options_default(m);
  m->shadow.seed = s->seed;
  m->shadow.check_leases = TRUE;
  m->fixed_ns = pick(s, 0, 3000000);
  m->token_ns = pick(s, 0, 20000);
  m->host_ns = chance(s, 50) ? pick(s, 0, 3000000) : 0;
  m->copy_page_ns = pick(s, 0, 2000000);
  m->copy_state_ns = pick(s, 0, 2000000);
  s->n_requests = pick(s, 1, 40);
  s->cancel_permille = chance(s, 40) ? pick(s, 1, 60) : 0;
  s->stop_permille = chance(s, 30) ? pick(s, 1, 30) : 0;
  s->again_percent = chance(s, 30) ? pick(s, 1, 60) : 0;
  s->preempt_permille = chance(s, 30) ? pick(s, 1, 60) : 0;
  oct_rng_seed(&s->hooks, s->seed, 2);
}

static void
draw_faults(swarm *s) {
  s->faulty = chance(s, 40);
  oct_fault_options *f = &s->fault;
  oct_fault_options_default(f);
  f->seed = s->seed;
  f->rate = 0.001 * pick(s, 1, 60);
  f->kinds = pick(s, 0, (1u << OCT_INJECT_COUNT) - 1) & ~(1u << OCT_INJECT_FATAL);
  f->delay_ns = pick(s, 0, 5000000);
  f->late_ns = (gint64)pick(s, 1, 20) * G_GINT64_CONSTANT(1000000000);
  if (s->faulty)
    s->config.step_deadline_ns = G_GINT64_CONSTANT(10000000000);
}

/* What a trace would say of the prompt's full pages: equal values for equal content up to there. */
static guint64 *
page_ids(const swarm *s, const guint32 *ids, guint32 n, guint32 *n_pages) {
  guint32 page = s->config.instance.block_size * s->config.instance.parallel.decode_context;
  guint64 chain = 0, *pages = g_new(guint64, n / page + 1);
  *n_pages = n / page;
  for (guint32 i = 0; i < n; i++) {
    chain = oct_mix64(chain ^ ids[i]);
    if (i % page == page - 1)
      pages[i / page] = chain;
  }
  return pages;
}

static guint32
extra(swarm *s, guint32 low, guint32 high) {
  return low + (guint32)oct_rng_below(&s->extras, high - low + 1);
}

/* Masks, logprobs of the prompt, biases, vectors: from numbers of their own, so that the rest of a
 * seed's run is drawn as without them. */
static void
draw_extras(swarm *s) {
  oct_rng_seed(&s->extras, s->seed, 3);
  s->guided_percent = extra(s, 0, 2) == 0 ? extra(s, 1, 100) : 0;
  s->extra_percent = extra(s, 0, 1) == 0 ? extra(s, 1, 30) : 0;
  s->mute_permille = extra(s, 0, 9) == 0 ? extra(s, 1, 20) : 0;
  s->answer_ns = extra(s, 0, 1) == 0 ? extra(s, 1, 20) * G_GINT64_CONSTANT(1000000) : 0;
  if (s->mute_permille > 0)
    s->config.mask_deadline_ns = extra(s, 20, 200) * G_GINT64_CONSTANT(1000000);
}

/* Drafts: from numbers of their own, too. Half of the seeds have none. */
static void
draw_speculation(swarm *s) {
  oct_rng rng;
  oct_rng_seed(&rng, s->seed, 4);
#define DRAW(low, high) ((low) + (guint32)oct_rng_below(&rng, (high) - (low) + 1))
  oct_speculation *c = &s->config.speculation;
  oct_shadow_options *shadow = &s->mock.shadow;
  guint32 kind = DRAW(0, 3);
  if (kind < 2)
    return;
  c->method = kind == 2 ? OCT_DRAFT_NGRAM : OCT_DRAFT_MODEL;
  c->n_tokens = DRAW(1, OCT_DRAFTS_MAX);
  c->ngram_min = DRAW(1, 2);
  c->ngram_max = c->ngram_min + DRAW(0, 3);
  c->proposal_rate = DRAW(0, 10) / 10.0;
  c->seqs_max = DRAW(0, 3) == 0 ? DRAW(1, 8) : 0;
  c->acceptance_min = DRAW(0, 3) == 0 ? DRAW(1, 10) / 10.0 : 0;
  shadow->repeat = DRAW(2, 12);
  for (guint32 i = DRAW(1, 5); i > 0 && !s->config.carry_ids; i--) /* nothing can be compared */
    shadow->accept_at[shadow->n_accept_at++] = DRAW(0, 10) / 10.0;
  if (c->method == OCT_DRAFT_NGRAM)
    return;
  s->draft_spec = rig_spec(DRAW(0, 1) == 0 ? "llama" : "window");
  s->draft_spec->vocab = s->spec->vocab;
  s->draft_spec->max_position = DRAW(0, 2) == 0 ? DRAW(64, 400) : s->draft_spec->max_position;
  oct_engine_config draft;
  rig_config(&draft, s->draft_spec, DRAW(0, 1) == 0 ? DRAW(4, 60) : DRAW(60, 400), 0);
  c->draft = draft.instance;
  c->draft.block_size = 1u << DRAW(2, 5);
  s->mock.depth_max = DRAW(0, 3) == 0 ? DRAW(5, 8) : 0;
#undef DRAW
}

static gboolean
extra_chance(swarm *s, guint32 percent) {
  return oct_rng_below(&s->extras, 100) < percent;
}

static void
draw_request_extras(swarm *s, oct_request_params *p, oct_token_bias *biases) {
  p->guided = extra_chance(s, s->guided_percent);
  guint32 n_prompt_logprobs = extra_chance(s, s->extra_percent) ? extra(s, 1, 20) : 0;
  /* They need ids. */
  p->n_prompt_logprobs = (guint8)(s->config.carry_ids ? n_prompt_logprobs : 0);
  p->logit_bias = biases;
  p->n_logit_bias = extra_chance(s, s->extra_percent) ? extra(s, 1, 8) : 0;
  for (guint32 i = 0; i < p->n_logit_bias; i++)
    biases[i] = (oct_token_bias){extra(s, 0, 1000) * 8 + i, (float)extra(s, 0, 200) - 100};
  gboolean pools = extra_chance(s, s->extra_percent);
  oct_pooling pooling = extra(s, 0, 1) == 0 ? OCT_POOLING_LAST : OCT_POOLING_MEAN;
  if (!pools || p->guided || n_prompt_logprobs > 0 || p->n_logprobs > 0 || p->n > 1)
    return;
  p->pooling = pooling;
}

static gint64
answer_ns(rig *r, const rig_request *q, guint32 choice, guint32 n_output) {
  const swarm *s = r->user;
  guint64 x = oct_mix64(s->seed ^ oct_mix64(q->params.seed ^ ((guint64)choice << 32 | n_output)));
  if (x % 1000 < s->mute_permille)
    return -1;
  return s->answer_ns == 0 || x >> 63 != 0 ? 0 : (gint64)((x >> 20) % (guint64)s->answer_ns);
}

static void
draw_requests(swarm *s, rig *r) {
  oct_time arrival = 0;
  gint64 gap = (gint64)pick(s, 1, 20) * 1000000;
  guint32 families = pick(s, 1, 5), longest = pick(s, 2, 400);
  for (guint32 i = 0; i < s->n_requests; i++) {
    oct_request_params p;
    oct_request_params_default(&p);
    arrival += (gint64)oct_rng_exponential(&s->rng, (double)gap);
    p.arrival_ns = arrival;
    p.prompt_tokens = pick(s, 1, longest);
    p.max_tokens = pick(s, 1, 80);
    p.n = chance(s, 15) ? pick(s, 1, 8) : 1;
    p.oracle_tokens = chance(s, 70) ? pick(s, 1, 80) : 0;
    p.ignore_eos = chance(s, 10);
    p.priority = (gint32)pick(s, 0, 2);
    p.tenant = pick(s, 0, 3);
    p.salt = chance(s, 20) ? 7 : 0;
    p.seed = i + 1;
    p.min_tokens = chance(s, 10) ? pick(s, 1, p.max_tokens) : 0;
    p.repetition_penalty = chance(s, 10) ? 1.1f : 1;
    p.n_logprobs = (guint8)(chance(s, 10) ? pick(s, 1, 20) : 0);
    p.adapter = chance(s, 10) ? pick(s, 1, 2) : 0;
    if (chance(s, 10))
      p.deadline_ns = arrival + (gint64)pick(s, 1, 500) * 1000000;
    g_autofree guint32 *ids = rig_prompt(s->spec, pick(s, 1, families), p.prompt_tokens);
    if (chance(s, 50)) /* leaves its family somewhere */
      for (guint32 k = pick(s, 0, p.prompt_tokens - 1); k < p.prompt_tokens; k++)
        ids[k] = (ids[k] + i + 1) % (s->spec->vocab - 1000);
    p.prompt_ids = ids;
    g_autofree guint64 *pages = page_ids(s, ids, p.prompt_tokens, &p.n_page_ids);
    p.page_ids = pages;
    oct_token_bias biases[8];
    draw_request_extras(s, &p, biases);
    rig_request *q = rig_add(r, 0, &p);
    if (chance(s, 20))
      q->cancel_ns = arrival + 1 + (gint64)pick(s, 0, 300) * 1000000;
  }
}

/* ---------------------------------------------------------------- clients at events */

static gboolean
often(swarm *s, guint32 permille) {
  return oct_rng_below(&s->hooks, 1000) < permille;
}

/* A live request drawn at random, NULL = none. */
static rig_request *
some_request(swarm *s, rig *r) {
  if (r->requests->len == 0 || r->engines[0] == NULL) /* it is being freed, after a failure */
    return NULL;
  rig_request *q = rig_request_at(r, (guint)oct_rng_below(&s->hooks, r->requests->len));
  return q->id != 0 && q->n_ends == 0 ? q : NULL;
}

static void
disturb(swarm *s, rig *r) {
  rig_request *q = some_request(s, r);
  if (q != NULL && often(s, s->cancel_permille)) {
    (void)oct_engine_cancel(r->engines[0], q->id, r->now);
    q = some_request(s, r);
  }
  if (q != NULL && often(s, s->stop_permille))
    q->stopped |= oct_engine_stop(r->engines[0], q->id,
                                  (guint32)oct_rng_below(&s->hooks, q->params.n), r->now);
}

/* Throws out whom no policy might, when none might: what runs may leave between any two events.
 * Twenty times: a long prompt in small chunks would never be in. */
static void
throw_out(swarm *s, oct_engine *e) {
  const oct_kv_domain *d = &e->domains[oct_rng_below(&s->hooks, e->n_domains)];
  if (e->state != OCT_ENGINE_SERVING || d->n_running == 0)
    return;
  oct_seq *seq = d->running[oct_rng_below(&s->hooks, d->n_running)];
  if (!oct_plan_may_leave(e, seq) || seq->request->preemptions >= 20)
    return;
  oct_engine_enter(e);
  oct_preempt(e, seq);
  oct_engine_leave(e);
}

/* From within the engine: the owner of a request that has ended gives up another, or asks again. */
static void
on_ended(rig *r, rig_request *q, void *user) {
  swarm *s = user;
  disturb(s, r);
  if (!often(s, 10 * s->again_percent) || r->requests->len > 200 || r->engines[0] == NULL)
    return;
  oct_request_params p = q->params;
  p.arrival_ns = r->now;
  p.deadline_ns = 0;
  rig_submit(r, rig_add(r, 0, &p));
}

/* Progress (invariant 3): a step's end moves somebody, but for those that only zombies were left
 * in, or sequences on their way out: no more in a row than can be in flight, and two. */
static void
check_progress(swarm *s, rig *r) {
  oct_engine_stats stats;
  oct_engine_get_stats(r->engines[0], &stats);
  guint64 progress = stats.prompt_tokens + stats.recomputed_tokens + stats.generated_tokens;
  guint32 limit = s->config.instance.parallel.pipeline + s->config.run_ahead + 2;
  s->idle_steps = progress > s->last_progress ? 0 : s->idle_steps + (stats.steps > s->n_steps);
  s->last_progress = progress;
  s->n_steps = stats.steps;
  if (s->idle_steps > limit && r->failure == NULL)
    r->failure = g_strdup_printf("%u steps in a row brought nobody further", s->idle_steps);
}

static gboolean
before_event(rig *r, const oct_event *event, void *user) {
  swarm *s = user;
  (void)event;
  disturb(s, r);
  return TRUE;
}

static void
after_event(rig *r, void *user) {
  swarm *s = user;
  disturb(s, r);
  if (often(s, s->preempt_permille))
    throw_out(s, r->engines[0]);
  check_progress(s, r);
}

/* What one that ended by itself has got. */
static void
check_end(rig *r, guint i, const rig_request *q) {
  const oct_request_params *p = &q->params;
  gboolean whole = !q->refused && !q->stopped &&
                   (q->record.reason == OCT_END_STOP || q->record.reason == OCT_END_LENGTH);
  if (!whole || r->failure != NULL)
    return;
  /* No end of sequence is sampled before min_tokens. */
  guint32 end = p->min_tokens > 0 ? MAX(p->oracle_tokens, p->min_tokens + 1) : p->oracle_tokens;
  if (p->n == 1 && q->record.reason == OCT_END_STOP && p->oracle_tokens != 0 && !p->guided &&
      p->pooling == OCT_POOLING_NONE && q->record.output_tokens != end)
    r->failure = g_strdup_printf("request %u stopped after %u tokens, not %u", i,
                                 q->record.output_tokens, end);
  if (p->n_prompt_logprobs > 0 && q->n_scored != p->prompt_tokens)
    r->failure = g_strdup_printf("request %u got the logprobs of %u tokens", i, q->n_scored);
  if ((p->pooling != OCT_POOLING_NONE) != (q->pooled->len > 0))
    r->failure = g_strdup_printf("request %u got a vector of %u", i, q->pooled->len);
}

static void
check_at_rest(rig *r, const swarm *s) {
  const oct_engine_stats stats = r->stats[0];
  guint64 ends = 0;
  for (int i = 0; i < OCT_END_COUNT; i++)
    ends += stats.ended[i];
  for (guint32 g = 0; g < OCT_MODEL_GROUPS_MAX && r->failure == NULL; g++)
    if (stats.pages_used[g] != 0)
      r->failure =
          g_strdup_printf("%u pages of group %u are held by nobody", stats.pages_used[g], g);
  if (r->failure == NULL && (ends != stats.accepted || stats.running != 0 || stats.waiting != 0))
    r->failure = g_strdup("something is left although every request has ended");
  if (!s->faulty && s->mute_permille == 0 && r->failure == NULL &&
      (stats.ended[OCT_END_FAILED] > 0 || stats.lost > 0 || stats.speculation.model_lost > 0))
    r->failure = g_strdup("something failed although nothing went wrong");
  for (guint i = 0; i < r->requests->len && r->failure == NULL; i++) {
    const rig_request *q = rig_request_at(r, i);
    guint32 kept = 0;
    for (guint c = 0; c < 8; c++)
      kept += q->tokens[c]->len;
    if (!q->refused && s->config.carry_ids && kept != q->record.output_tokens)
      r->failure =
          g_strdup_printf("request %u had %u tokens of %u", i, kept, q->record.output_tokens);
    check_end(r, i, q);
  }
}

/* Tokens of each choice of each request, for those that ended by themselves; NULL for others. */
static GPtrArray *
texts_of(const swarm *s, const rig *r) {
  GPtrArray *texts = g_ptr_array_new_with_free_func(g_free);
  for (guint i = 0; i < s->n_requests; i++) {
    const rig_request *q = rig_request_at(r, i);
    gboolean whole = !q->refused && !q->stopped && q->n_ends == 1 &&
                     (q->record.reason == OCT_END_STOP || q->record.reason == OCT_END_LENGTH);
    GString *text = g_string_new(NULL);
    for (guint k = 0; k < q->pooled->len && whole; k++)
      g_string_append_printf(text, "%g ", (double)g_array_index(q->pooled, float, k));
    for (guint c = 0; c < q->params.n && whole; c++)
      for (guint t = 0; t < q->tokens[c]->len; t++)
        g_string_append_printf(text, "%u%c", g_array_index(q->tokens[c], guint32, t),
                               t + 1 < q->tokens[c]->len ? ' ' : '|');
    g_ptr_array_add(texts, g_string_free(text, !whole));
  }
  return texts;
}

typedef struct outcome {
  oct_hash128 digest;
  oct_engine_stats stats;
  GPtrArray *texts;
  char *failure;
} outcome;

static void
outcome_clear(outcome *o) {
  g_ptr_array_unref(o->texts);
  g_free(o->failure);
}

typedef enum variant {
  PLAIN,           /* token ids and tags */
  EASY,            /* the same with ample memory and without faults */
  LENGTHS,         /* lengths and page ids, as a trace has them, fast-forwarded where that may be */
  LENGTHS_STEPPED, /* the same, every step */
} variant;

static void
make_easy(swarm *s) {
  s->faulty = FALSE;
  s->config.queue_max = 0;
  s->config.speculation.method = OCT_DRAFT_NONE;
  for (guint32 g = 0; g < s->config.instance.memory.n_groups; g++)
    s->config.instance.memory.groups[g] = (oct_pool_plan){.n_device = 20000};
}

static outcome
run_once(guint64 seed, variant how, const char *path) {
  swarm s = {.seed = seed};
  outcome o = {0};
  oct_rng_seed(&s.rng, seed, 1);
  draw_config(&s);
  draw_faults(&s);
  draw_extras(&s);
  s.config.carry_ids = s.config.instance.check_tags = how == PLAIN || how == EASY;
  draw_speculation(&s);
  if (how == EASY)
    make_easy(&s);
  s.config.no_forward = how == LENGTHS_STEPPED;
  g_autoptr(GError) error = NULL;
  oct_world *world = oct_mock_world_new(&s.mock, &error);
  if (s.faulty && world != NULL)
    world = oct_fault_world_new(world, &s.fault, &error);
  g_assert_no_error(error);
  oct_log *log = path != NULL ? oct_log_new_file(path, &error) : oct_log_new_digest();
  g_assert_no_error(error);
  s.config.log = log;
  rig r;
  rig_init(&r, world);
  r.check = how != EASY;
  r.user = &s;
  r.on_event = how == PLAIN ? before_event : NULL;
  r.on_turn = how == PLAIN ? after_event : NULL;
  r.on_ended = how == PLAIN ? on_ended : NULL;
  r.answer_ns = answer_ns;
  rig_add_engine(&r, &s.config);
  draw_requests(&s, &r);
  rig_run(&r);
  if (r.failure == NULL)
    check_at_rest(&r, &s);
  o.failure = g_strdup(r.failure);
  o.stats = r.stats[0];
  o.texts = texts_of(&s, &r);
  rig_clear(&r);
  o.digest = oct_log_digest(log);
  oct_log_free(log);
  oct_model_spec_free(s.spec);
  oct_model_spec_free(s.draft_spec);
  return o;
}

static char *
compare_texts(const outcome *a, const outcome *b) {
  for (guint i = 0; i < a->texts->len; i++) {
    const char *x = g_ptr_array_index(a->texts, i), *y = g_ptr_array_index(b->texts, i);
    if (x != NULL && y != NULL && strcmp(x, y) != 0)
      return g_strdup_printf("request %u got other tokens than with ample memory", i);
  }
  return NULL;
}

static gboolean
run_seed(guint64 seed, oct_engine_stats *stats) {
  current_seed = seed;
  alarm(60);
  outcome first = run_once(seed, PLAIN, log_path);
  *stats = first.stats;
  char *failure = g_strdup(first.failure);
  if (failure == NULL) {
    outcome second = run_once(seed, PLAIN, NULL), easy = run_once(seed, EASY, NULL);
    g_autofree char *skipped_path =
        log_path != NULL ? g_strconcat(log_path, ".skipped", NULL) : NULL;
    g_autofree char *stepped_path =
        log_path != NULL ? g_strconcat(log_path, ".stepped", NULL) : NULL;
    outcome skipped = run_once(seed, LENGTHS, skipped_path);
    outcome stepped = run_once(seed, LENGTHS_STEPPED, stepped_path);
    stats->forwarded_steps = skipped.stats.forwarded_steps;
    if (!oct_hash128_equal(first.digest, second.digest))
      failure = g_strdup("two runs wrote different logs");
    else if (easy.failure != NULL)
      failure = g_strconcat("with ample memory: ", easy.failure, NULL);
    else if (skipped.failure != NULL || stepped.failure != NULL)
      failure = g_strconcat(
          "lengths only: ", skipped.failure != NULL ? skipped.failure : stepped.failure, NULL);
    else if (!oct_hash128_equal(skipped.digest, stepped.digest))
      failure = g_strdup("fast-forwarded and stepped, the logs differ");
    else
      failure = compare_texts(&first, &easy);
    outcome_clear(&skipped);
    outcome_clear(&stepped);
    outcome_clear(&second);
    outcome_clear(&easy);
  }
  alarm(0);
  outcome_clear(&first);
  if (failure == NULL)
    return TRUE;
  g_test_message("seed %" G_GUINT64_FORMAT ": %s; run: test-swarm --seed %" G_GUINT64_FORMAT
                 " --log swarm.log",
                 seed, failure, seed);
  g_free(failure);
  return FALSE;
}

static void
run_seeds(guint64 first, guint n) {
  guint failed = 0;
  oct_engine_stats sum = {0};
  for (guint i = 0; i < n; i++) {
    oct_engine_stats stats = {0};
    failed += !run_seed(first + i, &stats);
    sum.steps += stats.steps;
    sum.preemptions += stats.preemptions;
    sum.offloads += stats.offloads;
    sum.reloads += stats.reloads;
    sum.snapshot_hits += stats.snapshot_hits;
    sum.cached_prompt_tokens += stats.cached_prompt_tokens;
    sum.zombie_slices += stats.zombie_slices;
    sum.masks += stats.masks;
    sum.late_masks += stats.late_masks;
    sum.forwarded_steps += stats.forwarded_steps;
    for (gsize w = 0; w < sizeof sum.speculation / sizeof(guint64); w++)
      ((guint64 *)&sum.speculation)[w] += ((const guint64 *)&stats.speculation)[w];
    for (int f = 0; f < 4; f++)
      sum.faults[f] += stats.faults[f];
  }
  g_test_message("%u seeds: %" G_GUINT64_FORMAT " steps, %" G_GUINT64_FORMAT
                 " preemptions, %" G_GUINT64_FORMAT " offloads, %" G_GUINT64_FORMAT
                 " reloads, %" G_GUINT64_FORMAT " snapshot hits, %" G_GUINT64_FORMAT
                 " cached tokens, %" G_GUINT64_FORMAT " zombies, faults %" G_GUINT64_FORMAT
                 " request, %" G_GUINT64_FORMAT " step, %" G_GUINT64_FORMAT
                 " instance, %" G_GUINT64_FORMAT " steps skipped, %" G_GUINT64_FORMAT
                 " masks, %" G_GUINT64_FORMAT " late, %" G_GUINT64_FORMAT
                 " slices with drafts, %" G_GUINT64_FORMAT " accepted, %" G_GUINT64_FORMAT
                 " draft models lost",
                 n, sum.steps, sum.preemptions, sum.offloads, sum.reloads, sum.snapshot_hits,
                 sum.cached_prompt_tokens, sum.zombie_slices, sum.faults[0], sum.faults[1],
                 sum.faults[2], sum.forwarded_steps, sum.masks, sum.late_masks,
                 sum.speculation.drafts, sum.speculation.accepted, sum.speculation.model_lost);
  g_assert_cmpuint(failed, ==, 0);
  /* A swarm that never gets where it hurts proves nothing. Held of the fixed seeds: of the fresh
   * ones, a hundred have few enough by chance. */
  if (n >= 100 && first == 1) {
    g_assert_cmpuint(sum.preemptions, >, n / 2);
    g_assert_cmpuint(sum.offloads, >, n / 10);
    g_assert_cmpuint(sum.snapshot_hits, >, n / 10);
    g_assert_cmpuint(sum.zombie_slices, >, n / 10);
    g_assert_cmpuint(sum.forwarded_steps, >, n);
    g_assert_cmpuint(sum.masks, >, 10 * n);
    g_assert_cmpuint(sum.late_masks, >, n);
    g_assert_cmpuint(sum.speculation.drafts, >, 10 * n);
    g_assert_cmpuint(sum.speculation.accepted, >, 10 * n);
    g_assert_cmpuint(sum.speculation.draft_tokens, >, 3 * sum.speculation.accepted / 2);
    g_assert_true(sum.speculation.pauses > 0 && sum.speculation.model_lost > 0);
    g_assert_cmpuint(sum.speculation.model_steps, >, 10 * n);
    for (int f = 0; f < 3; f++)
      g_assert_cmpuint(sum.faults[f], >, n / 10);
  }
}

static void
test_fixed(void) {
  run_seeds(1, N_FIXED);
}

static void
test_found(void) {
  for (guint i = 0; i < G_N_ELEMENTS(found); i++)
    run_seeds(found[i], 1);
}

static void
test_fresh(void) {
  guint64 base = fresh_seed >= 0 ? (guint64)fresh_seed : (guint64)g_get_real_time() % 1000000000u;
  g_test_message("fresh seeds from %" G_GUINT64_FORMAT, base + N_FIXED);
  run_seeds(base + N_FIXED, n_fresh);
}

static void
test_one(void) {
  oct_engine_stats stats;
  g_assert_true(run_seed(only_seed, &stats));
}

int
main(int argc, char **argv) {
  for (int i = 1; i + 1 < argc; i++) {
    if (strcmp(argv[i], "--seed") == 0 && g_ascii_isdigit(argv[i + 1][0])) {
      only_seed = g_ascii_strtoull(argv[i + 1], NULL, 10);
      have_seed = TRUE;
      argv[i] = argv[i + 1] = (char *)"--verbose";
    } else if (strcmp(argv[i], "--log") == 0) {
      log_path = argv[i + 1];
      argv[i] = argv[i + 1] = (char *)"--verbose";
    } else if (strcmp(argv[i], "--fresh") == 0) {
      fresh_seed = atoi(argv[i + 1]);
      argv[i] = argv[i + 1] = (char *)"--verbose";
    } else if (strcmp(argv[i], "--count") == 0) {
      n_fresh = MAX(atoi(argv[i + 1]), 1);
      argv[i] = argv[i + 1] = (char *)"--verbose";
    }
  }
  signal(SIGALRM, on_alarm);
  g_test_init(&argc, &argv, NULL);
  if (have_seed) {
    g_test_add_func("/sched/swarm/seed", test_one);
  } else {
    g_test_add_func("/sched/swarm/keeps-its-books-over-fixed-seeds", test_fixed);
    g_test_add_func("/sched/swarm/keeps-its-books-over-seeds-that-found-something", test_found);
    g_test_add_func("/sched/swarm/keeps-its-books-over-fresh-seeds", test_fresh);
  }
  return g_test_run();
}
