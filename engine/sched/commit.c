/* What a finished step brought: tokens to sequences, ends to requests, figures to the books. */
#include "engine/sched/internal.h"

/* ---------------------------------------------------------------- ends */

static void
log_end(oct_engine *engine, const oct_request *r, guint32 output) {
  if (engine->config.log != NULL)
    oct_log_printf(engine->config.log, "%" G_GINT64_FORMAT " end %" G_GUINT64_FORMAT " %s out %u",
                   engine->now, r->id, oct_end_reason_name(r->reason), output);
}

/* The last choice has ended: the request has. */
static void
request_ended(oct_engine *engine, oct_request *r) {
  oct_request_record record = {.id = r->id,
                               .user = r->user,
                               .reason = r->reason,
                               .priority = r->priority,
                               .prompt_tokens = r->prompt,
                               .cached_tokens = r->cached_tokens,
                               .recomputed_tokens = r->recomputed_tokens,
                               .preemptions = r->preemptions,
                               .draft_tokens = r->draft_tokens,
                               .accepted_tokens = r->accepted_tokens,
                               .arrival_ns = r->arrival_ns,
                               .admitted_ns = r->admitted_ns,
                               .first_token_ns = -1,
                               .last_token_ns = -1,
                               .ended_ns = engine->now};
  for (guint32 c = 0; c < r->n; c++) {
    const oct_seq *s = r->seqs[c];
    if (s == NULL)
      continue;
    record.output_tokens += s->n_out;
    if (s->first_token_ns >= 0 &&
        (record.first_token_ns < 0 || s->first_token_ns < record.first_token_ns))
      record.first_token_ns = s->first_token_ns;
    record.last_token_ns = MAX(record.last_token_ns, s->last_token_ns);
    record.longest_gap_ns = MAX(record.longest_gap_ns, s->longest_gap_ns);
  }
  engine->stats.ended[r->reason]++;
  if (engine->policy->ended != NULL)
    engine->policy->ended(engine, r);
  log_end(engine, r, record.output_tokens);
  g_hash_table_remove(engine->by_id, &r->id);
  if (engine->config.listener.ended != NULL)
    engine->config.listener.ended(engine->config.listener.user, &record);
}

/* Gives back what the sequence holds, as far as nothing in flight is about to touch it. */
static void
let_go(oct_engine *engine, oct_seq *seq) {
  oct_kv_domain *d = &engine->domains[seq->domain];
  switch (seq->state) {
  case OCT_SEQ_WAITING:
    oct_queue_remove(engine, seq);
    oct_kv_release_host(engine, seq);
    break;
  case OCT_SEQ_RELOADING:
    d->n_reloading--;
    oct_seq_leave(engine, seq);
    break; /* memory goes back when the copies have ended */
  case OCT_SEQ_PREEMPTING:
    d->n_preempting--;
    G_GNUC_FALLTHROUGH;
  case OCT_SEQ_RUNNING:
    oct_seq_leave(engine, seq);
    if (seq->exported)
      g_hash_table_insert(engine->exports, &seq->request->id, seq);
    else
      oct_kv_release_device(engine, seq, seq->epoch);
    break;
  case OCT_SEQ_OFFLOADING:
    d->n_preempting--;
    break; /* as RELOADING */
  case OCT_SEQ_ENDED:
    g_assert_not_reached();
  }
}

void
oct_seq_end(oct_engine *engine, oct_seq *seq, oct_end_reason reason) {
  oct_request *r = seq->request;
  /* Stopped before it ran it has nothing to leave. */
  seq->exported = r->export_cache && (reason == OCT_END_STOP || reason == OCT_END_LENGTH) &&
                  (seq->state == OCT_SEQ_RUNNING || seq->state == OCT_SEQ_PREEMPTING);
  engine->stats.exports += seq->exported;
  oct_mask_release(engine, seq);
  let_go(engine, seq);
  if (seq->copies == 0)
    oct_pull_forget(r);
  oct_seq_set_state(seq, OCT_SEQ_ENDED);
  if ((reason == OCT_END_STOP || reason == OCT_END_LENGTH) && r->pooling == OCT_POOLING_NONE) {
    /* A running mean over about the last thousand outputs: what admission expects of the next. */
    engine->n_outputs++;
    double weight = 1.0 / (double)MIN(engine->n_outputs, 1000);
    engine->mean_output += (seq->n_out - engine->mean_output) * weight;
  }
  if (r->reason == OCT_END_STOP || r->reason == OCT_END_LENGTH)
    r->reason = reason;
  r->n_ended++;
  if (!r->forked)
    r->n_ended = r->n; /* the choices that were never forked end with their trunk */
  if (r->n_ended == r->n)
    request_ended(engine, r);
}

void
oct_request_end(oct_engine *engine, oct_request *r, oct_end_reason reason) {
  /* Choices not yet forked are only the trunk. Ending the last one reports the request. */
  guint32 live = 0;
  for (guint32 c = 0; c < r->n; c++)
    live += r->seqs[c] != NULL && r->seqs[c]->state != OCT_SEQ_ENDED;
  if (reason != OCT_END_STOP && reason != OCT_END_LENGTH)
    r->reason = reason;
  for (guint32 c = 0; c < r->n && live > 0; c++)
    if (r->seqs[c] != NULL && r->seqs[c]->state != OCT_SEQ_ENDED) {
      live--;
      oct_seq_end(engine, r->seqs[c], reason);
    }
}

void
oct_request_reap(oct_engine *engine, oct_request *r) {
  if (r->n_ended < r->n || r->dead)
    return;
  for (guint32 c = 0; c < r->n; c++)
    if (r->seqs[c] != NULL &&
        (r->seqs[c]->unfinished > 0 || r->seqs[c]->copies > 0 || r->seqs[c]->exported))
      return;
  oct_assert(engine->calls > 0);
  r->dead = TRUE;
  r->next_dead = engine->dead;
  engine->dead = r;
}

static void
bury(oct_engine *engine, oct_request *r) {
  if (r->prev != NULL)
    r->prev->next = r->next;
  else
    engine->first = r->next;
  if (r->next != NULL)
    r->next->prev = r->prev;
  else
    engine->last = r->prev;
  oct_request_free(r);
}

void
oct_engine_enter(oct_engine *engine) {
  engine->calls++;
}

void
oct_engine_leave(oct_engine *engine) {
  oct_assert(engine->calls > 0);
  if (--engine->calls > 0)
    return;
  while (engine->dead != NULL) {
    oct_request *r = engine->dead;
    engine->dead = r->next_dead;
    bury(engine, r);
  }
}

/* ---------------------------------------------------------------- tokens */

/* Most tokens of a step have the same gap before them: equal ones in a row are booked together. */
static void
book_gaps(oct_engine *engine) {
  oct_hist_add_times(engine->hists[OCT_HIST_ITL], engine->gap_ns, engine->n_gaps);
  engine->n_gaps = 0;
}

static inline void
note_token_time(oct_engine *engine, oct_seq *seq) {
  if (seq->first_token_ns < 0) {
    seq->first_token_ns = engine->now;
  } else {
    gint64 gap = engine->now - seq->last_token_ns;
    if (gap != engine->gap_ns) {
      book_gaps(engine);
      engine->gap_ns = gap;
    }
    engine->n_gaps++;
    seq->longest_gap_ns = MAX(seq->longest_gap_ns, gap);
  }
  seq->last_token_ns = engine->now;
}

static inline gboolean
stops(const oct_engine *engine, const oct_seq *seq, guint32 token) {
  const oct_request *r = seq->request;
  if (seq->n_out < r->min_tokens)
    return FALSE;
  for (guint32 i = 0; i < r->n_stop_tokens; i++)
    if (r->stop_tokens[i] == token)
      return TRUE;
  for (guint32 i = 0; i < engine->spec->n_eos_tokens && !r->ignore_eos; i++)
    if (engine->spec->eos_tokens[i] == token)
      return TRUE;
  return FALSE;
}

/* The end that the sequence's own limit or its last token make; FALSE: it goes on. */
static inline gboolean
end_if_due(oct_engine *engine, oct_seq *seq, gboolean stop) {
  if (!stop && seq->n_out < seq->max_out)
    return FALSE;
  oct_seq_end(engine, seq, stop ? OCT_END_STOP : OCT_END_LENGTH);
  return TRUE;
}

/* Takes the accepted tokens of a live sequence; may end it. */
static void
take_tokens(oct_engine *engine, oct_seq *seq, const guint32 *ids, const oct_logprob *logprobs,
            guint32 n) {
  oct_request *r = seq->request;
  gboolean stop = FALSE;
  guint32 taken = 0;
  while (taken < n && !stop && seq->n_out < seq->max_out) {
    if (seq->ids != NULL)
      oct_seq_append_ids(seq, &ids[taken], 1);
    seq->n_out++;
    note_token_time(engine, seq);
    stop = stops(engine, seq, ids[taken]);
    taken++;
  }
  engine->stats.generated_tokens += taken;
  if (engine->config.listener.tokens != NULL)
    engine->config.listener.tokens(engine->config.listener.user, r->id, r->user, seq->choice,
                                   seq->ids != NULL ? ids : NULL, logprobs, taken, engine->now);
  if (seq->state != OCT_SEQ_ENDED) /* else the listener has cancelled it */
    (void)end_if_due(engine, seq, stop);
}

/* What the slice has computed for good: of drafts those that were accepted. */
static void
count_computed(oct_engine *engine, oct_seq *seq, const oct_flight_slice *fs, guint32 end) {
  guint32 again = MIN(end, seq->computed_max);
  again = again > fs->position ? again - fs->position : 0;
  seq->computed_max = MAX(seq->computed_max, end);
  seq->request->recomputed_tokens += again;
  engine->stats.recomputed_tokens += again;
  guint32 prompt = seq->request->prompt;
  if (seq->choice == 0 && fs->position + again < prompt)
    engine->stats.prompt_tokens += MIN(end, prompt) - (fs->position + again);
}

/* Hands over those of the slice's prompt logprobs that have not been. */
static void
take_prompt_logprobs(oct_engine *engine, const oct_flight_slice *fs, const oct_logprob *logprobs) {
  oct_request *r = fs->seq->request;
  guint32 first = fs->position + 1, end = first + fs->n_scored;
  oct_assert(first <= r->n_scored && end <= r->prompt);
  if (end <= r->n_scored)
    return;
  guint32 skip = r->n_scored - first;
  r->n_scored = end;
  if (engine->config.listener.prompt_logprobs != NULL)
    engine->config.listener.prompt_logprobs(
        engine->config.listener.user, r->id, r->user, first + skip,
        logprobs + (gsize)skip * (1u + r->n_prompt_logprobs), fs->n_scored - skip, engine->now);
}

static void
take_pooled(oct_engine *engine, oct_seq *seq, const float *values) {
  const oct_request *r = seq->request;
  if (engine->config.listener.pooled != NULL)
    engine->config.listener.pooled(engine->config.listener.user, r->id, r->user, values,
                                   engine->spec->hidden, engine->now);
  if (seq->state != OCT_SEQ_ENDED)
    oct_seq_end(engine, seq, OCT_END_STOP);
}

/* Everything that the slice has brought to its sequence, which may end. */
static void
take_result(oct_engine *engine, const oct_flight_slice *fs, const oct_step_result *result,
            const oct_slice_result *slice) {
  oct_seq *seq = fs->seq;
  const oct_request *r = seq->request;
  const oct_logprob *logprobs =
      slice->logprobs != OCT_NO_INDEX ? oct_result_logprobs(result) + slice->logprobs : NULL;
  if (fs->n_scored > 0)
    take_prompt_logprobs(engine, fs, logprobs);
  if (seq->state == OCT_SEQ_ENDED)
    return;
  if (fs->pooled) {
    take_pooled(engine, seq, oct_result_floats(result) + slice->floats);
    return;
  }
  if (!fs->samples)
    return;
  if (r->n_logprobs > 0)
    logprobs += fs->n_scored * (1u + r->n_prompt_logprobs);
  take_tokens(engine, seq, oct_result_tokens(result) + slice->tokens,
              r->n_logprobs > 0 ? logprobs : NULL, slice->n_accepted);
  if (seq->state != OCT_SEQ_ENDED)
    oct_mask_ask(engine, seq);
}

/* commit_slice() of one token of a running sequence at which nobody looks: nearly every slice of a
 * long run. FALSE, nothing changed: it is more than that. */
static inline gboolean
commit_decode(oct_engine *engine, const oct_flight *f, const oct_flight_slice *fs,
              const oct_step_result *result, const oct_slice_result *slice) {
  oct_seq *seq = fs->seq;
  const guint32 end = fs->position + 1;
  if (seq->state != OCT_SEQ_RUNNING || f->number <= seq->void_until || fs->n_tokens != 1 ||
      !fs->samples || fs->n_drafts + fs->n_scored + seq->n_masks > 0 || seq->request->guided ||
      seq->ids != NULL || (slice->flags & OCT_RESULT_FAILED) != 0 || end <= seq->computed_max ||
      fs->position < seq->request->prompt || engine->config.listener.tokens != NULL)
    return FALSE;
  seq->unfinished--;
  seq->in_flight_out--;
  seq->done = seq->computed_max = end;
  seq->n_out++;
  note_token_time(engine, seq);
  engine->stats.generated_tokens++;
  const guint32 token = oct_result_tokens(result)[slice->tokens];
  if (end_if_due(engine, seq, stops(engine, seq, token)))
    oct_request_reap(engine, seq->request);
  else if (end / engine->page_tokens > seq->n_indexed)
    oct_kv_index(engine, seq, end, f->number);
  return TRUE;
}

static void
commit_slice(oct_engine *engine, const oct_flight *f, const oct_flight_slice *fs,
             const oct_step_result *result, const oct_slice_result *slice) {
  oct_seq *seq = fs->seq;
  if (commit_decode(engine, f, fs, result, slice))
    return;
  seq->unfinished--;
  oct_mask_step_ended(engine, seq, f->number);
  if (seq->state == OCT_SEQ_ENDED) {
    engine->stats.zombie_slices++;
    oct_seq_leave(engine, seq);
    oct_request_reap(engine, seq->request);
    return;
  }
  if (f->number > seq->void_until) {
    gboolean failed = (slice->flags & OCT_RESULT_FAILED) != 0, verified = fs->n_drafts > 0;
    seq->done = fs->position + (verified && !failed ? slice->n_accepted : fs->n_tokens);
    count_computed(engine, seq, fs, seq->done);
    seq->in_flight_out -= fs->n_drafts + fs->samples;
    if (verified)
      seq->sched = seq->done;
    if (verified && !failed)
      oct_spec_accepted(engine, seq, fs, slice->n_accepted);
    if (failed) {
      /* What the slice wrote is not to be trusted either. Whoever has taken it already goes on: to
       * send them back would let one bad request use up their retries. */
      oct_kv_withdraw(engine, seq, fs->position);
      oct_request_end(engine, seq->request, OCT_END_FAILED);
      oct_request_reap(engine, seq->request);
      return;
    }
    take_result(engine, fs, result, slice);
    if (seq->state == OCT_SEQ_ENDED) {
      oct_request_reap(engine, seq->request);
      return;
    }
    if (verified)
      oct_kv_trim(engine, seq, seq->sched + 1);
    oct_kv_index(engine, seq, seq->done, f->number);
  }
  if (seq->state == OCT_SEQ_PREEMPTING && seq->unfinished == 0)
    oct_preempt_finish(engine, seq);
}

/* ---------------------------------------------------------------- the step */

static void
note_peaks(oct_engine *engine) {
  for (guint32 g = 0; g < engine->n_groups; g++) {
    guint32 used = 0;
    for (guint32 d = 0; d < engine->n_domains; d++)
      used += oct_pool_count(engine->domains[d].device[g], OCT_ITEM_HELD) +
              oct_pool_count(engine->domains[d].device[g], OCT_ITEM_DRAINING);
    engine->stats.pages_peak[g] = MAX(engine->stats.pages_peak[g], used);
  }
}

void
oct_step_account(oct_engine *engine, const oct_flight *f, oct_time start_ns, oct_time end_ns) {
  gint64 took = end_ns - start_ns;
  engine->stats.steps++;
  note_peaks(engine);
  engine->stats.busy_ns += end_ns - MAX(f->submit_ns, engine->last_done_ns);
  oct_hist_add(engine->hists[OCT_HIST_STEP], took);
  oct_hist_add(engine->hists[OCT_HIST_BATCH_SEQS], f->n_slices);
  oct_hist_add(engine->hists[OCT_HIST_BATCH_TOKENS], f->n_tokens);
  if (f->pure_decode)
    engine->decode_step_ns = took;
  else
    engine->mixed_ns_per_token = (double)took / f->n_tokens;
  engine->last_done_ns = end_ns;
  oct_log *log = engine->config.log;
  if (log == NULL)
    return;
  oct_log_i64(log, end_ns);
  oct_log_text(log, " step ");
  oct_log_i64(log, (gint64)f->number);
  oct_log_text(log, " submit ");
  oct_log_i64(log, f->submit_ns);
  oct_log_text(log, " start ");
  oct_log_i64(log, start_ns);
  oct_log_text(log, " slices ");
  oct_log_i64(log, f->n_slices);
  oct_log_text(log, " tokens ");
  oct_log_i64(log, f->n_tokens);
  oct_log_end(log);
}

/* Whether the result has the logprobs and the vector that the slice asked for. */
static gboolean
has_extras(const oct_engine *engine, const oct_flight_slice *fs, const oct_step_result *result,
           const oct_slice_result *slice) {
  const oct_request *r = fs->seq->request;
  guint64 logprobs = (guint64)fs->n_scored * (1u + r->n_prompt_logprobs);
  if (fs->samples && r->n_logprobs > 0)
    logprobs += (guint64)slice->n_accepted * (1u + r->n_logprobs);
  if (logprobs > 0 && (guint64)slice->logprobs + logprobs > result->n_logprobs)
    return FALSE;
  return !fs->pooled || (guint64)slice->floats + engine->spec->hidden <= result->n_floats;
}

/* Whether the result answers the step: a token for every slice that samples, unless it failed. A
 * sequence without its token would neither decode nor prefill, for ever. */
static gboolean
answers(const oct_engine *engine, const oct_flight *f, const oct_step_result *result) {
  if (result->n_slices != f->n_slices)
    return FALSE;
  const oct_slice_result *slices = oct_result_slices(result);
  for (guint32 i = 0; i < f->n_slices; i++) {
    if ((slices[i].flags & OCT_RESULT_FAILED) != 0)
      continue;
    guint32 n = slices[i].n_accepted;
    if (f->slices[i].n_tokens == 1 && f->slices[i].samples && n == 1 &&
        f->slices[i].seq->request->n_logprobs == 0 && slices[i].tokens < result->n_tokens)
      continue;
    if (f->slices[i].samples && (n < 1 || n > 1 + f->slices[i].n_drafts ||
                                 (guint64)slices[i].tokens + n > result->n_tokens))
      return FALSE;
    if (!has_extras(engine, &f->slices[i], result, &slices[i]))
      return FALSE;
  }
  return TRUE;
}

void
oct_commit_step(oct_engine *engine, const oct_event *event) {
  oct_flight *f = engine->n_flights > 0 ? oct_flight_at(engine, 0) : NULL;
  if (f == NULL || f->number != event->number) {
    oct_instance_lost(engine, "a step ended that is not the oldest in flight");
    return;
  }
  const oct_step_result *result = event->result;
  if (!answers(engine, f, result)) {
    oct_instance_lost(engine, "a step's result does not answer its slices");
    return;
  }
  engine->first_flight = (engine->first_flight + 1) % OCT_DEPTH_MAX;
  engine->n_flights--;
  engine->completed = f->number;
  oct_kv_complete(engine);
  oct_step_account(engine, f, result->start_ns, result->end_ns);
  for (guint32 p = 0; p < OCT_PART_COUNT; p++)
    engine->stats.part_ns[p] += result->part_ns[p];
  const oct_slice_result *slices = oct_result_slices(result);
  for (guint32 i = 0; i < f->n_slices; i++)
    commit_slice(engine, f, &f->slices[i], result, &slices[i]);
  book_gaps(engine);
  oct_residency_used(engine, result);
}
