/* Builds one step: what policies call, and the rules that they cannot break.
 *
 * Memory short. A sequence that cannot get its next page waits while memory is coming back by
 * itself (pages that drain behind unfinished steps, sequences on their way out); only when nothing
 * is coming is somebody preempted. Without that rule each step would preempt one more, since frees
 * are deferred. And while one that runs lacks memory nobody is admitted: what comes back is for
 * whom it was taken, not for the head of the queue, which would be the next victim. Progress
 * (invariant 3): the victim is never in the step being built, the first admitted is the last to be
 * a victim (after those that are on their way back, for which it waits), those that run only become
 * fewer while it lacks something, and any accepted request fits alone; so within depth + 2 steps
 * and the copies in flight, some sequence advances. */
#include <string.h>

#include "engine/sched/internal.h"

/* ---------------------------------------------------------------- slots and running lists */

void
oct_seq_enter(oct_engine *engine, oct_seq *seq, guint32 weight) {
  oct_kv_domain *d = &engine->domains[seq->domain];
  oct_assert(seq->slot == OCT_NO_INDEX && engine->n_free_slots > 0);
  oct_assert(d->n_running < engine->config.max_num_seqs);
  seq->slot = engine->free_slots[--engine->n_free_slots];
  seq->fresh = TRUE;
  seq->sampled = FALSE;
  seq->announced = seq->stale_pages = 0;
  seq->weight = weight;
  d->weight += weight;
  seq->run_index = d->n_running;
  d->running[d->n_running++] = seq;
}

/* What the running sequence needs next is not there; or it is, or is not needed any more. */
static void
set_lacks(oct_engine *engine, oct_seq *seq, gboolean lacks) {
  oct_kv_domain *d = &engine->domains[seq->domain];
  d->n_lacking = d->n_lacking - seq->lacks + lacks;
  seq->lacks = lacks;
}

void
oct_seq_leave(oct_engine *engine, oct_seq *seq) {
  oct_kv_domain *d = &engine->domains[seq->domain];
  if (seq->draft_place != OCT_NO_INDEX)
    oct_draft_leave(engine, seq);
  if (seq->run_index != OCT_NO_INDEX) {
    d->n_running--;
    for (guint32 i = seq->run_index; i < d->n_running; i++) {
      d->running[i] = d->running[i + 1];
      d->running[i]->run_index = i;
    }
    seq->run_index = OCT_NO_INDEX;
    set_lacks(engine, seq, FALSE);
    d->weight -= seq->weight;
    seq->weight = 0;
    d->blocked = FALSE;
  }
  if (seq->slot != OCT_NO_INDEX && seq->unfinished == 0) {
    engine->free_slots[engine->n_free_slots++] = seq->slot;
    seq->slot = OCT_NO_INDEX;
  }
}

/* ---------------------------------------------------------------- room */

static gboolean
find_room(oct_engine *engine, oct_seq *seq, guint32 tokens) {
  oct_kv_slide(engine, seq, seq->sched);
  while (!oct_kv_grow(engine, seq, tokens)) {
    if (oct_memory_coming(engine, seq->domain, oct_kv_pages(engine, tokens) - seq->n_pages, 0))
      return FALSE;
    oct_seq *victim = engine->policy->victim(engine, seq->domain, seq);
    /* Who is on its way back has come later, and can be a victim once it is there. */
    if (victim == NULL || (victim == seq && engine->domains[seq->domain].n_reloading > 0))
      return FALSE;
    oct_assert(oct_plan_may_leave(engine, victim));
    oct_preempt(engine, victim);
    if (victim == seq)
      return FALSE;
  }
  return TRUE;
}

/* Pages for `tokens` tokens of a running sequence, after what its windows have left behind; by
 * preempting others (or itself) where needed. FALSE: it does not run in this step. */
static gboolean
make_room(oct_engine *engine, oct_seq *seq, guint32 tokens) {
  gboolean found = find_room(engine, seq, tokens);
  set_lacks(engine, seq, !found && seq->state == OCT_SEQ_RUNNING);
  return found;
}

/* ---------------------------------------------------------------- slices */

guint32
oct_plan_tokens_left(const oct_engine *engine) {
  return engine->tokens_left;
}

gboolean
oct_plan_may_leave(const oct_engine *engine, const oct_seq *seq) {
  /* The epoch also tells of a choice just forked, whose pages this step's copies write. */
  return seq->state == OCT_SEQ_RUNNING && seq->epoch < engine->next_number;
}

/* Ids that penalties count, sent when the slot opens. */
static guint32
history_tokens(const oct_seq *seq) {
  const oct_request *r = seq->request;
  gboolean penalties =
      r->repetition_penalty != 1 || r->presence_penalty != 0 || r->frequency_penalty != 0;
  return penalties && seq->ids != NULL ? r->prompt + seq->n_out : 0;
}

static guint32
opening_changes(const oct_engine *engine, const oct_seq *seq) {
  guint32 n = 0;
  for (guint32 g = 0; g < engine->n_groups; g++)
    n += engine->is_state[g] ? 1 : seq->n_pages - seq->first_live[g] + 1;
  return n;
}

/* Whether the step's record takes the opening of the sequence's slot beside what it has: each
 * alone fits, many long ones (all of them prefix hits, say) go into several steps. */
static gboolean
record_takes(const oct_engine *engine, const oct_seq *seq) {
  guint32 history = history_tokens(seq), changes = opening_changes(engine, seq);
  return (engine->history_used == 0 || history <= engine->history_max - engine->history_used) &&
         seq->request->n_biases <= OCT_STEP_BIASES_MAX - engine->biases_used &&
         (engine->changes_used == 0 || changes <= engine->changes_max - engine->changes_used);
}

static inline gboolean
may_run(const oct_engine *engine, const oct_seq *seq) {
  return seq->state == OCT_SEQ_RUNNING && seq->unfinished <= engine->config.run_ahead &&
         seq->last_step < engine->next_number && engine->slices_left > 0 &&
         engine->tokens_left > 0 && (!seq->fresh || record_takes(engine, seq));
}

gboolean
oct_plan_may_run(const oct_engine *engine, const oct_seq *seq) {
  return may_run(engine, seq);
}

static void
open_slot(oct_engine *engine, oct_seq *seq) {
  const oct_request *r = seq->request;
  oct_slot_open *o = oct_step_add_open(engine->builder);
  *o =
      (oct_slot_open){.slot = seq->slot,
                      .domain = (guint16)seq->domain,
                      .key = seq->key,
                      .seed = seq->seed,
                      .prompt_tokens = r->prompt,
                      .oracle_tokens = r->oracle_tokens,
                      .eos_token = engine->spec->n_eos_tokens > 0 ? engine->spec->eos_tokens[0] : 0,
                      .top_k = r->top_k,
                      .temperature = r->temperature,
                      .top_p = r->top_p,
                      .min_p = r->min_p,
                      .repetition_penalty = r->repetition_penalty,
                      .presence_penalty = r->presence_penalty,
                      .frequency_penalty = r->frequency_penalty,
                      .history = OCT_NO_INDEX,
                      .biases = OCT_NO_INDEX,
                      .stops = OCT_NO_INDEX,
                      .n_biases = r->n_biases,
                      .n_stops = r->n_stops,
                      .min_tokens = r->n_stops > 0 ? r->min_tokens : 0};
  engine->changes_used += opening_changes(engine, seq);
  o->n_history = history_tokens(seq);
  if (o->n_history > 0) {
    engine->history_used += o->n_history;
    o->history = oct_step_add_tokens(engine->builder, seq->ids, o->n_history, NULL);
  }
  engine->biases_used += r->n_biases;
  if (r->n_biases > 0)
    o->biases = oct_step_add_biases(engine->builder, r->biases, r->n_biases);
  if (r->n_stops > 0)
    o->stops = oct_step_add_tokens(engine->builder, r->stops, r->n_stops, NULL);
}

static void
change(oct_engine *engine, const oct_seq *seq, guint32 group, oct_page_op op, guint32 index,
       guint32 page) {
  *oct_step_add_change(engine->builder) = (oct_page_change){
      .slot = seq->slot, .group = (guint16)group, .op = (guint16)op, .index = index, .page = page};
}

/* Tells the slot's table what is new since its last slice; with a fresh slot, everything. */
static void
announce(oct_engine *engine, oct_seq *seq) {
  oct_kv_domain *d = &engine->domains[seq->domain];
  for (guint32 g = 0; g < engine->n_groups; g++) {
    if (engine->is_state[g]) {
      if (!seq->fresh)
        continue;
      change(engine, seq, g, OCT_PAGE_SET, 0, seq->table[g][0]);
      if (seq->restore[g] == OCT_POOL_NONE)
        continue;
      *oct_step_add_copy(engine->builder) = (oct_copy){.kind = OCT_COPY_STATE,
                                                       .order = OCT_COPY_BEFORE,
                                                       .domain = (guint16)seq->domain,
                                                       .group = (guint16)g,
                                                       .from = seq->restore[g],
                                                       .to = seq->table[g][0]};
      oct_pool_unref(d->device[g], seq->restore[g], engine->next_number);
      seq->restore[g] = OCT_POOL_NONE;
      continue;
    }
    for (guint32 i = MAX(seq->announced, seq->first_live[g]); i < seq->n_pages; i++)
      change(engine, seq, g, OCT_PAGE_SET, i, seq->table[g][i]);
    if (seq->first_live[g] > (seq->fresh ? 0 : seq->told_live[g]))
      change(engine, seq, g, OCT_PAGE_FIRST_LIVE, seq->first_live[g], 0);
    seq->told_live[g] = seq->first_live[g];
  }
  seq->announced = seq->n_pages;
}

/* What a prompt's slice is computed for besides its cache: logprobs that have not been handed over
 * yet, a pooled vector. */
static void
want_of_prompt(oct_slice *s, oct_flight_slice *fs, const oct_seq *seq) {
  const oct_request *r = seq->request;
  gboolean last = fs->position + fs->n_tokens == seq->target;
  if (r->pooling == OCT_POOLING_MEAN || (r->pooling == OCT_POOLING_LAST && last))
    s->pooling = (guint8)r->pooling;
  fs->pooled = s->pooling != OCT_POOLING_NONE && last;
  if (fs->pooled)
    s->flags |= OCT_SLICE_POOLED;
  guint32 n = fs->n_tokens - fs->samples;
  if (seq->choice != 0 || r->n_scored == r->prompt || n == 0 || fs->position + n < r->n_scored)
    return;
  s->n_prompt_logprobs = r->n_prompt_logprobs;
  fs->n_scored = n;
}

/* Ids of the slice's tokens as far as it carries them: drafts stand behind the sequence's own. */
static void
fill_tokens(oct_engine *engine, const oct_seq *seq, oct_slice *s, guint32 n_drafts) {
  guint32 n = oct_slice_ids(s), *room;
  if (n == 0)
    return;
  if (n_drafts == 0) {
    s->tokens = oct_step_add_tokens(engine->builder, seq->ids + seq->sched, n, NULL);
    return;
  }
  s->tokens = oct_step_add_tokens(engine->builder, NULL, n, &room);
  if (s->source == OCT_SOURCE_IDS)
    room[0] = seq->ids[seq->sched];
  memcpy(room + n - n_drafts, engine->drafts, n_drafts * sizeof *room);
}

static oct_token_source
source_of(const oct_engine *engine, const oct_seq *seq, gboolean prefill, guint32 n_drafts) {
  gboolean ids = engine->config.carry_ids;
  if (!prefill && seq->sampled && (ids || n_drafts == 0))
    return OCT_SOURCE_DEVICE;
  return ids ? OCT_SOURCE_IDS : OCT_SOURCE_ABSENT;
}

/* Adds `n` tokens of the sequence from `sched` on, the last `n_drafts` of them in engine->drafts.
 * Its pages are there. */
static void
add_slice(oct_engine *engine, oct_seq *seq, guint32 n, guint32 n_drafts, gboolean samples,
          gboolean prefill) {
  const guint64 step = engine->next_number;
  if (seq->fresh)
    open_slot(engine, seq);
  announce(engine, seq);
  oct_slice *s = oct_step_add_slice(engine->builder);
  *s = (oct_slice){.slot = seq->slot,
                   .domain = (guint16)seq->domain,
                   .sample = samples ? OCT_SAMPLE_LAST : OCT_SAMPLE_NONE,
                   .n_logprobs = samples ? seq->request->n_logprobs : 0,
                   .flags = (prefill ? OCT_SLICE_PREFILL : 0) |
                            (samples && seq->request->guided ? OCT_SLICE_NEEDS_MASK : 0),
                   .adapter = seq->request->adapter,
                   .n_tokens = n,
                   .tokens = OCT_NO_INDEX,
                   .position = seq->sched,
                   .state_position = engine->first_state_group >= 0 ? seq->sched : OCT_NO_INDEX};
  s->source = source_of(engine, seq, prefill, n_drafts);
  if (n_drafts > 0) {
    s->sample = OCT_SAMPLE_ALL;
    s->flags |= OCT_SLICE_VERIFY;
    engine->verified_used += s->n_logprobs > 0 ? n_drafts * (1u + s->n_logprobs) : 0;
  }
  if (engine->config.instance.check_tags)
    s->tag = oct_seq_tag(engine, seq, seq->sched);
  oct_flight *f = engine->plan;
  oct_flight_slice *fs = &f->slices[f->n_slices++];
  *fs = (oct_flight_slice){
      .seq = seq, .position = seq->sched, .n_tokens = n, .n_drafts = n_drafts, .samples = samples};
  if (prefill)
    want_of_prompt(s, fs, seq);
  engine->scored_used += fs->n_scored * (1u + s->n_prompt_logprobs);
  engine->floats_used += fs->pooled ? engine->spec->hidden : 0;
  fill_tokens(engine, seq, s, n_drafts);
  f->n_tokens += n;
  f->speculates |= samples && oct_spec_drafts_for(engine, seq);
  if (!prefill)
    f->n_decode++;
  seq->fresh = FALSE;
  seq->sampled |= samples;
  seq->sched += n;
  seq->in_flight_out += n_drafts + samples;
  seq->verifying = n_drafts;
  if ((s->flags & OCT_SLICE_NEEDS_MASK) != 0) {
    f->guided = TRUE;
    oct_mask_add(seq, step, f->n_slices - 1);
  }
  seq->unfinished++;
  seq->last_step = seq->epoch = step;
  engine->tokens_left -= n;
  engine->drafts_left -= n_drafts;
  engine->slices_left--;
  if (prefill)
    oct_kv_index(engine, seq, seq->sched, step);
  if (n_drafts == 0 && oct_kv_next_cut(engine, seq, seq->sched - 1) == seq->sched)
    oct_kv_snapshot(engine, seq, seq->sched, step);
}

/* Whether the sequence's next decode is a slice and no more: nobody wants anything of it, and
 * neither pages nor windows nor snapshots change with it. Nearly every slice of a long run. */
static inline gboolean
is_plain_decode(const oct_engine *engine, const oct_seq *seq) {
  const guint32 position = seq->sched;
  if (engine->plan_looks_closer || seq->fresh || !seq->sampled || seq->request->guided ||
      position >= seq->n_pages * engine->page_tokens || seq->announced != seq->n_pages)
    return FALSE;
  for (guint32 g = 0; engine->has_windows && g < engine->n_groups; g++) {
    const guint32 window = engine->groups[g].window;
    if (window > 0 &&
        (guint64)(seq->first_live[g] + 1) * engine->page_tokens + window <= (guint64)position + 1)
      return FALSE;
  }
  return TRUE;
}

/* add_slice() of a plain decode. */
static inline void
add_decode(oct_engine *engine, oct_seq *seq) {
  *oct_step_next_slice(engine->builder) =
      (oct_slice){.slot = seq->slot,
                  .domain = (guint16)seq->domain,
                  .source = OCT_SOURCE_DEVICE,
                  .sample = OCT_SAMPLE_LAST,
                  .n_logprobs = seq->request->n_logprobs,
                  .adapter = seq->request->adapter,
                  .n_tokens = 1,
                  .tokens = OCT_NO_INDEX,
                  .position = seq->sched,
                  .state_position = engine->first_state_group >= 0 ? seq->sched : OCT_NO_INDEX};
  oct_flight *f = engine->plan;
  f->slices[f->n_slices++] =
      (oct_flight_slice){.seq = seq, .position = seq->sched, .n_tokens = 1, .samples = TRUE};
  f->n_tokens++;
  f->n_decode++;
  seq->sched++;
  seq->in_flight_out++;
  seq->unfinished++;
  seq->last_step = seq->epoch = engine->next_number;
  engine->tokens_left--;
  engine->slices_left--;
}

static gboolean
plan_decode(oct_engine *engine, oct_seq *seq) {
  if (seq->n_out + seq->in_flight_out < seq->max_out && is_plain_decode(engine, seq)) {
    add_decode(engine, seq);
    return TRUE;
  }
  if (seq->n_out + seq->in_flight_out >= seq->max_out || oct_spec_waits(engine, seq))
    return FALSE;
  /* A snapshot is filed under its tokens: they must all be known when its step is submitted. */
  if (seq->in_flight_out > 0 && oct_kv_next_cut(engine, seq, seq->sched) == seq->sched + 1)
    return FALSE;
  if (!make_room(engine, seq, seq->sched + 1))
    return FALSE;
  guint32 n_drafts = oct_spec_propose(engine, seq);
  add_slice(engine, seq, 1 + n_drafts, n_drafts, TRUE, FALSE);
  return TRUE;
}

/* A running sequence may have been preempted while another was planned: the next index is where it
 * is not known to be, so it is taken from the sequence itself. */
static guint32
next_index(const oct_seq *seq, guint32 index) {
  return seq->run_index == OCT_NO_INDEX ? index : seq->run_index + 1;
}

/* With P stages a P-th of the decoding sequences go into each step, those that ran longest ago
 * first. One that is in the last P - 1 steps could only begin when those have left the last stage,
 * and would hold up the whole step: it goes only where nobody else can. */
static guint32
staged_decodes(oct_engine *engine, guint32 domain, guint32 keep_tokens) {
  oct_kv_domain *d = &engine->domains[domain];
  guint32 stages = engine->config.instance.parallel.pipeline, n_decoding = 0, added = 0;
  for (guint32 i = 0; i < d->n_running; i++)
    n_decoding += oct_seq_decodes(d->running[i]);
  guint32 share = (n_decoding + stages - 1) / stages;
  guint64 after = 0;
  for (guint32 round = 0; round < OCT_DEPTH_MAX && added < share; round++) {
    guint64 oldest = G_MAXUINT64;
    for (guint32 i = 0; i < d->n_running; i++) {
      const oct_seq *s = d->running[i];
      if (may_run(engine, s) && oct_seq_decodes(s) && s->last_step >= after)
        oldest = MIN(oldest, s->last_step);
    }
    if (oldest == G_MAXUINT64 || (added > 0 && oldest + stages > engine->next_number))
      break;
    for (guint32 i = 0; i < d->n_running && added < share;) {
      oct_seq *s = d->running[i];
      if (may_run(engine, s) && oct_seq_decodes(s) && s->last_step == oldest &&
          engine->tokens_left > keep_tokens)
        added += plan_decode(engine, s);
      i = next_index(s, i);
    }
    after = oldest + 1;
  }
  return added;
}

guint32
oct_plan_decodes(oct_engine *engine, guint32 domain, guint32 keep_tokens) {
  oct_kv_domain *d = &engine->domains[domain];
  guint32 added = 0;
  if (engine->config.instance.parallel.pipeline > 1) {
    added = staged_decodes(engine, domain, keep_tokens);
  } else {
    for (guint32 i = 0; i < d->n_running;) {
      oct_seq *s = d->running[i];
      if (may_run(engine, s) && oct_seq_decodes(s) && engine->tokens_left > keep_tokens)
        added += plan_decode(engine, s);
      i = next_index(s, i);
    }
  }
  if (added > 0)
    d->last_decode_ns = engine->now;
  return added;
}

/* ---------------------------------------------------------------- forks: n choices of one prompt
 */

static gboolean
fork_fits(const oct_engine *engine, const oct_seq *trunk) {
  const oct_request *r = trunk->request;
  return engine->n_free_slots >= r->n - 1 &&
         oct_kv_can_take(engine, trunk->domain,
                         trunk->sched % engine->page_tokens != 0 ? r->n - 1 : 0,
                         engine->first_state_group >= 0 ? r->n - 1 : 0);
}

/* What the trunk's further choices begin with, by preempting others where needed. */
static gboolean
make_room_to_fork(oct_engine *engine, oct_seq *trunk) {
  const guint32 n = trunk->request->n - 1;
  if (!make_room(engine, trunk, trunk->request->prompt))
    return FALSE;
  gboolean waits = FALSE;
  while (!waits && !fork_fits(engine, trunk)) {
    oct_seq *victim = NULL;
    if (!oct_memory_coming(engine, trunk->domain, n, n))
      victim = engine->policy->victim(engine, trunk->domain, trunk);
    waits = victim == NULL || victim == trunk;
    if (!waits)
      oct_preempt(engine, victim);
  }
  set_lacks(engine, trunk, waits);
  return !waits;
}

/* The child shares the trunk's full pages; the partial page and the state are copied before the
 * step. */
static void
fork_child(oct_engine *engine, oct_seq *trunk, guint32 choice) {
  oct_kv_domain *d = &engine->domains[trunk->domain];
  oct_seq *child = oct_seq_new(engine, trunk->request, choice);
  child->domain = trunk->domain;
  /* Mixed first: the choices of neighbouring seeds are no neighbours. */
  child->seed = oct_mix64(oct_mix64(trunk->seed) + choice);
  child->key = oct_mix64(trunk->key + choice);
  if (trunk->ids != NULL)
    oct_seq_append_ids(child, trunk->ids, trunk->request->prompt);
  oct_seq_reserve_pages(engine, child, trunk->n_pages);
  guint32 full = trunk->sched / engine->page_tokens;
  child->n_pages = (trunk->sched + engine->page_tokens - 1) / engine->page_tokens;
  for (guint32 g = 0; g < engine->n_groups; g++) {
    gboolean state = engine->is_state[g];
    child->first_live[g] = trunk->first_live[g];
    for (guint32 i = state ? 0 : trunk->first_live[g]; i < (state ? 1 : child->n_pages); i++) {
      guint32 item = trunk->table[g][i];
      if (!state && i < full) {
        oct_pool_ref(d->device[g], item);
      } else {
        item = oct_pool_take(d->device[g]);
        oct_assert(item != OCT_POOL_NONE);
        *oct_step_add_copy(engine->builder) =
            (oct_copy){.kind = state ? OCT_COPY_STATE : OCT_COPY_PAGE,
                       .order = OCT_COPY_BEFORE,
                       .domain = (guint16)trunk->domain,
                       .group = (guint16)g,
                       .from = state && trunk->restore[g] != OCT_POOL_NONE ? trunk->restore[g]
                                                                           : trunk->table[g][i],
                       .to = item};
      }
      child->table[g][i] = item;
    }
  }
  child->epoch = trunk->epoch = engine->next_number;
  child->has_state = trunk->has_state;
  child->n_indexed = MIN(full, trunk->n_indexed);
  child->sched = child->done = trunk->sched;
  child->computed_max = trunk->sched;
  child->counted = TRUE;
  /* Should it come back to the queue. */
  child->rank_class = trunk->rank_class;
  child->rank = trunk->rank;
  /* Its pages and state are copied by this step, in which it may have no slice yet. */
  child->depends_on = engine->next_number;
  oct_seq_set_state(child, OCT_SEQ_RUNNING);
  oct_seq_enter(engine, child, 1);
}

/* A trunk whose prompt but the last token is in: all its choices run that token for themselves. */
static void
plan_fork(oct_engine *engine, oct_seq *trunk) {
  oct_request *r = trunk->request;
  oct_kv_domain *d = &engine->domains[trunk->domain];
  if (!make_room_to_fork(engine, trunk))
    return;
  d->weight -= trunk->weight - 1;
  trunk->weight = 1;
  for (guint32 c = 1; c < r->n; c++)
    fork_child(engine, trunk, c);
  r->forked = TRUE;
  for (guint32 c = 0; c < r->n; c++)
    r->seqs[c]->target = r->prompt;
}

/* ---------------------------------------------------------------- prefill */

static guint32
chunk_tokens(const oct_engine *engine, const oct_seq *seq) {
  guint32 n = MIN(seq->target - seq->sched, engine->tokens_left);
  const oct_kv_domain *d = &engine->domains[seq->domain];
  guint32 threshold = engine->config.long_prefill_threshold;
  if (threshold > 0 && (d->queue.n > 0 || d->n_running > 1))
    n = MIN(n, threshold);
  guint32 cut = oct_kv_next_cut(engine, seq, seq->sched);
  if (cut > seq->sched && cut - seq->sched < n)
    n = cut - seq->sched;
  return n;
}

/* Half of a result's logprobs are for prompts, the other for as many sampled tokens as there may
 * be. */
#define SCORED_MAX (OCT_STEP_LOGPROBS_MAX / 2)
G_STATIC_ASSERT(OCT_STEP_SLICES_MAX *(1 + OCT_LOGPROBS_MAX) <= OCT_STEP_LOGPROBS_MAX / 2);

/* How many of the next n tokens the step's result has room for: what is scored and pooled of them.
 * 0: another step. Each sequence alone fits. */
static guint32
tokens_with_results(const oct_engine *engine, const oct_seq *seq, guint32 n) {
  const oct_request *r = seq->request;
  if (seq->choice == 0 && r->n_scored < r->prompt)
    n = MIN(n, (SCORED_MAX - engine->scored_used) / (1u + r->n_prompt_logprobs));
  gboolean last = seq->sched + n == seq->target;
  if (r->pooling != OCT_POOLING_NONE && last &&
      engine->floats_used + engine->spec->hidden > OCT_STEP_FLOATS_MAX)
    return 0;
  return n;
}

guint32
oct_plan_prefill(oct_engine *engine, oct_seq *seq) {
  if (!may_run(engine, seq))
    return 0;
  if (!seq->request->forked && seq->sched == seq->target)
    plan_fork(engine, seq);
  if (seq->sched >= seq->target || seq->state != OCT_SEQ_RUNNING)
    return 0;
  guint32 n = tokens_with_results(engine, seq, chunk_tokens(engine, seq));
  if (n == 0 || !make_room(engine, seq, seq->sched + n))
    return 0;
  gboolean samples = seq->sched + n == seq->target && seq->request->forked &&
                     seq->request->pooling == OCT_POOLING_NONE;
  add_slice(engine, seq, n, 0, samples, TRUE);
  return n;
}

guint32
oct_plan_prefills(oct_engine *engine, guint32 domain) {
  oct_kv_domain *d = &engine->domains[domain];
  guint32 added = 0;
  for (guint32 i = 0; i < d->n_running;) {
    oct_seq *s = d->running[i];
    if (may_run(engine, s) && !oct_seq_decodes(s))
      added += oct_plan_prefill(engine, s);
    i = next_index(s, i);
  }
  return added;
}

gboolean
oct_plan_running(oct_engine *engine, guint32 domain) {
  oct_kv_domain *d = &engine->domains[domain];
  for (guint32 i = 0; i < d->n_running && engine->tokens_left > 0;) {
    oct_seq *s = d->running[i];
    if (may_run(engine, s)) {
      if (oct_seq_decodes(s))
        (void)plan_decode(engine, s);
      else
        (void)oct_plan_prefill(engine, s);
      if (s->state != OCT_SEQ_RUNNING)
        break; /* it was the newest itself: no other has less right to memory */
    }
    i = next_index(s, i);
  }
  return !engine->plan_preempted;
}

/* ---------------------------------------------------------------- the step */

gboolean
oct_plan_step(oct_engine *engine) {
  oct_flight *f = oct_flight_at(engine, engine->n_flights);
  f->number = engine->next_number;
  f->submit_ns = engine->now;
  f->n_slices = f->n_tokens = f->n_decode = 0;
  engine->history_used = engine->changes_used = engine->biases_used = 0;
  engine->scored_used = engine->floats_used = engine->verified_used = 0;
  f->speculates = f->guided = FALSE;
  engine->plan_looks_closer = engine->config.speculation.method != OCT_DRAFT_NONE ||
                              (engine->first_state_group >= 0 && engine->config.prefix_caching) ||
                              engine->config.instance.check_tags || engine->config.carry_ids;
  engine->plan = f;
  engine->plan_preempted = FALSE;
  oct_step_begin(engine->builder, f->number, (guint16)engine->n_domains);
  for (guint32 d = 0; d < engine->n_domains; d++) {
    engine->tokens_left = engine->config.max_num_batched_tokens;
    engine->slices_left = engine->config.max_num_seqs;
    engine->drafts_left = oct_spec_share(engine, d);
    engine->policy->plan(engine, d);
  }
  engine->plan = NULL;
  if (f->n_slices == 0)
    return FALSE;
  f->pure_decode = f->n_decode == f->n_slices;
  oct_residency_plan(engine);
  const oct_step *step = oct_step_end(engine->builder);
  engine->next_number++;
  engine->n_flights++;
  g_autoptr(GError) error = NULL;
  oct_submit submit = oct_world_submit(engine->world, engine->instance, step, &error);
  if (submit != OCT_SUBMIT_OK)
    oct_instance_lost(engine, submit == OCT_SUBMIT_FULL ? "the backend is full below its depth"
                                                        : error->message);
  else
    oct_mask_ask_step(engine, f);
  return engine->lost[0] == '\0';
}
