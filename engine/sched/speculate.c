/* Speculative decoding: whose next slice has drafts, how many, and what came of them.
 *
 * A sequence that is drafted for has one slice in flight at a time: its drafts follow its last
 * token, and how far it has come is not known before the slice has ended. Where such a sequence is
 * in a step, nothing is submitted ahead of that step, for anybody: else the two halves of a batch
 * would take turns.
 *
 * Drafts come last. They take what tokens and pages the others leave, and no more than a quarter of
 * a step while prompts wait: no decode waits for a token, and nobody is preempted, for the sake of
 * a draft. The pages of those that were not accepted go back when the slice ends.
 *
 * Not drafted for: guided requests, since a slice takes one mask; and a while, those of whose
 * drafts too little is accepted. */
#include "engine/sched/internal.h"

#define PROPOSALS_PER_VERDICT 32
#define PAUSE_TOKENS          256

/* Logprobs of a result beside those of prompts and of one token of each slice. */
#define VERIFIED_MAX (OCT_STEP_LOGPROBS_MAX / 2 - OCT_STEP_SLICES_MAX * (1 + OCT_LOGPROBS_MAX))

gboolean
oct_spec_drafts_for(const oct_engine *engine, const oct_seq *seq) {
  const oct_speculation *s = &engine->config.speculation;
  if (s->method == OCT_DRAFT_NONE || seq->request->guided ||
      seq->request->pooling != OCT_POOLING_NONE || seq->n_out < seq->pause_until ||
      (engine->drafter != NULL && !oct_draft_works(engine)))
    return FALSE;
  return s->seqs_max == 0 || engine->domains[seq->domain].n_running <= s->seqs_max;
}

gboolean
oct_spec_waits(const oct_engine *engine, const oct_seq *seq) {
  return seq->verifying > 0 || (seq->in_flight_out > 0 && oct_spec_drafts_for(engine, seq));
}

guint32
oct_spec_limit(const oct_engine *engine, const oct_seq *seq) {
  if (!oct_spec_drafts_for(engine, seq) || seq->in_flight_out > 0 || !oct_seq_decodes(seq))
    return 0;
  guint32 n = MIN(engine->config.speculation.n_tokens, seq->max_out - seq->n_out - 1);
  /* A state's snapshot is taken where a slice ends: none that may end elsewhere goes up to it. */
  guint32 cut = oct_kv_next_cut(engine, seq, seq->sched);
  return cut == 0 ? n : MIN(n, MAX(cut - seq->sched, 2) - 2);
}

guint32
oct_spec_share(const oct_engine *engine, guint32 domain) {
  guint32 tokens = engine->config.max_num_batched_tokens;
  gboolean pending = engine->config.speculation.method != OCT_DRAFT_NONE &&
                     oct_plan_prefill_pending(engine, domain);
  return pending ? tokens / 4 : tokens;
}

/* What the step's budgets leave: each sequence that has no slice yet can have one of one token. */
static guint32
fit_budgets(const oct_engine *engine, const oct_seq *seq, guint32 n) {
  const oct_kv_domain *d = &engine->domains[seq->domain];
  guint32 planned = engine->config.max_num_seqs - engine->slices_left;
  guint32 others = d->n_running > planned ? d->n_running - planned - 1 : 0;
  n = MIN(n, engine->drafts_left);
  n = MIN(n, engine->tokens_left > others + 1 ? engine->tokens_left - others - 1 : 0);
  if (seq->request->n_logprobs > 0)
    n = MIN(n, (VERIFIED_MAX - engine->verified_used) / (1u + seq->request->n_logprobs));
  return n;
}

/* What memory leaves: pages are taken while every running sequence could still take one. */
static guint32
fit_pages(oct_engine *engine, oct_seq *seq, guint32 n) {
  guint32 have = seq->n_pages * engine->page_tokens, tokens = seq->sched + 1 + n;
  if (tokens <= have)
    return n;
  guint32 more = oct_kv_pages(engine, tokens) - seq->n_pages;
  if (oct_kv_can_take(engine, seq->domain, more + engine->domains[seq->domain].n_running, 0) &&
      oct_kv_grow(engine, seq, tokens))
    return n;
  return have - seq->sched - 1;
}

static guint32
propose_ngram(oct_engine *engine, oct_seq *seq, guint32 n) {
  const oct_speculation *s = &engine->config.speculation;
  if (!engine->config.carry_ids) {
    guint64 x = oct_mix64(oct_mix64(seq->key ^ 0x70726f706f73u) + seq->n_out);
    return (double)(x >> 11) * 0x1p-53 < s->proposal_rate ? n : 0;
  }
  if (seq->ngram == NULL)
    seq->ngram = oct_ngram_new(s->ngram_min, s->ngram_max);
  return oct_ngram_propose(seq->ngram, seq->ids, seq->request->prompt + seq->n_out, n,
                           engine->drafts);
}

guint32
oct_spec_propose(oct_engine *engine, oct_seq *seq) {
  guint32 n = fit_budgets(engine, seq, oct_spec_limit(engine, seq));
  if (n == 0)
    return 0;
  if (engine->config.speculation.method == OCT_DRAFT_MODEL)
    n = oct_draft_take(engine, seq, n, engine->drafts);
  else
    n = propose_ngram(engine, seq, n);
  return n > 0 ? fit_pages(engine, seq, n) : 0;
}

/* ---------------------------------------------------------------- outcomes */

/* Whether going on is worth it. */
static void
judge(oct_engine *engine, oct_seq *seq, gboolean useful) {
  double least = engine->config.speculation.acceptance_min;
  seq->n_useful += useful;
  if (++seq->n_proposals < PROPOSALS_PER_VERDICT)
    return;
  if (seq->n_useful < least * seq->n_proposals) {
    seq->pause_until = seq->n_out + PAUSE_TOKENS;
    engine->stats.speculation.pauses++;
  }
  seq->n_proposals = seq->n_useful = 0;
}

void
oct_spec_accepted(oct_engine *engine, oct_seq *seq, const oct_flight_slice *fs, guint32 n) {
  oct_draft_stats *stats = &engine->stats.speculation;
  guint32 accepted = n - 1;
  seq->verifying = 0;
  stats->drafts++;
  stats->draft_tokens += fs->n_drafts;
  stats->accepted += accepted;
  for (guint32 i = 0; i < accepted; i++)
    stats->accepted_at[i]++;
  seq->request->draft_tokens += fs->n_drafts;
  seq->request->accepted_tokens += accepted;
  judge(engine, seq, accepted > 0);
  if (engine->drafter != NULL)
    oct_draft_accepted(engine, seq, accepted);
}

guint64
oct_spec_steps_ahead(const oct_engine *engine, const oct_seq *seq, guint64 most) {
  if (oct_spec_drafts_for(engine, seq))
    return 0;
  /* What is skipped names no pages: it goes no further than those that are not somebody else's. */
  if (seq->stale_pages > seq->n_pages)
    most = MIN(most, seq->n_pages * engine->page_tokens - seq->sched);
  return seq->pause_until > seq->n_out ? MIN(most, seq->pause_until - seq->n_out - 1) : most;
}
