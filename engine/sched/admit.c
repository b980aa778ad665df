/* Who enters memory: the head of the queue while the whole prompt fits, with room for what runs to
 * grow.
 *
 * Nobody overtakes within a policy's order: the first that does not fit ends a domain's admissions.
 * Nobody who waits comes before who runs: while one that runs lacks memory, none is admitted.
 * One that failed for memory is not tried again before memory comes back (domain.blocked), so that
 * a queue that waits costs nothing per step and ends no fast-forward. */
#include <math.h>

#include "engine/sched/internal.h"

/* Pages that running sequences are expected to need before some of them end: half of what is left
 * to the mean output length, since on average half of a running sequence's growth is met by others'
 * ends. */
static guint32
growth_pages(const oct_engine *engine, const oct_kv_domain *d) {
  double tokens = 0;
  for (guint32 i = 0; i < d->n_running; i++) {
    const oct_seq *s = d->running[i];
    tokens += MAX(0.0, MIN(oct_expected_output(engine), s->max_out) - s->n_out);
  }
  return (guint32)ceil(0.5 * tokens / engine->page_tokens);
}

/* Whether the domain has what admitting the sequence takes, with `reserve` pages to spare. Notes
 * what is missing. */
static gboolean
fits_with(oct_engine *engine, const oct_seq *seq, const oct_hit *hit, guint32 pages,
          guint32 reserve) {
  oct_kv_domain *d = &engine->domains[seq->domain];
  const oct_seq *source = oct_pull_source(seq);
  for (guint32 g = 0; g < engine->n_groups; g++) {
    guint64 need = (guint64)hit->load[g] + hit->cached[g];
    if (engine->is_state[g])
      need = (seq->request->forked ? 1 : seq->request->n) + hit->cached[g];
    else if (seq->on_host)
      need = seq->n_pages - seq->first_live[g] + (guint64)reserve;
    else if (source != NULL) /* what is pulled, and a page for what is computed on it */
      need = (source->done + engine->page_tokens - 1) / engine->page_tokens -
             oct_kv_first_seen(engine, g, source->done) + 1 + (guint64)reserve;
    else
      need += (guint64)pages - MIN(pages, hit->pages) + reserve;
    if (need > oct_pool_available(d->device[g])) {
      d->wait_group = g;
      d->wait_items = need;
      return FALSE;
    }
  }
  return TRUE;
}

static gboolean
admission_fits(oct_engine *engine, const oct_seq *seq, const oct_hit *hit) {
  const oct_kv_domain *d = &engine->domains[seq->domain];
  guint32 end = seq->target;
  /* Window groups give pages back as the prompt goes by: they are taken chunk by chunk. */
  if (engine->policy->admit_by_chunk || engine->has_windows)
    end = MIN(end, hit->pages * engine->page_tokens + engine->tokens_left);
  guint32 pages = (end + engine->page_tokens - 1) / engine->page_tokens;
  guint32 reserve =
      engine->policy->admit_by_chunk || d->n_running == 0 ? 0 : growth_pages(engine, d);
  if (!seq->request->forked) /* each further choice needs its own last page */
    reserve += seq->request->n;
  return fits_with(engine, seq, hit, pages, reserve);
}

static void
count_admission(oct_engine *engine, oct_seq *seq, const oct_hit *hit) {
  if (hit->pages_bound > hit->pages) {
    engine->stats.hits_bound_by_state++;
    seq->branch = hit->pages_bound * engine->page_tokens;
  }
  if (engine->first_state_group >= 0 && hit->pages > 0)
    engine->stats.snapshot_hits++;
  oct_request *r = seq->request;
  /* Each prompt token is either computed for the request or cached, once: a later admission adds
   * what it finds beyond what the request ever had. The last token of further choices is not
   * counted. */
  guint32 tokens = MIN(hit->pages * engine->page_tokens, r->prompt);
  if (tokens > seq->computed_max && seq->choice == 0) {
    r->cached_tokens += tokens - seq->computed_max;
    engine->stats.cached_prompt_tokens += tokens - seq->computed_max;
    seq->computed_max = tokens;
  }
  if (seq->counted)
    return;
  seq->counted = TRUE;
  r->admitted_ns = engine->now;
  engine->stats.queried_prompt_tokens += r->prompt;
  engine->stats.host_hit_tokens +=
      engine->first_page_group < 0
          ? 0
          : (guint64)hit->load[engine->first_page_group] * engine->page_tokens;
}

#define LOOKUP_LONG  256 /* pages: a shorter lookup is made every time */
#define LOOKUP_TRIES 16

/* The head still lacks what it lacked when its long prefix was last looked up. */
static gboolean
still_lacks(oct_kv_domain *d, const oct_seq *seq) {
  return d->waiter == seq && d->wait_tries++ < LOOKUP_TRIES &&
         oct_pool_available(d->device[d->wait_group]) < d->wait_items;
}

/* Takes the head of the queue into memory. FALSE: it stays. */
static gboolean
admit(oct_engine *engine, oct_seq *seq) {
  oct_kv_domain *d = &engine->domains[seq->domain];
  guint32 weight = seq->request->forked ? 1 : seq->request->n;
  if (d->weight + weight > engine->config.max_num_seqs || engine->n_free_slots < weight)
    return FALSE;
  oct_hit hit = {0};
  oct_seq *source = oct_pull_source(seq);
  /* Of whatever kind: what is missing is not known before the lookup. */
  gboolean coming = oct_memory_coming(engine, seq->domain, G_MAXUINT32, G_MAXUINT32);
  if (d->n_running > 0 && still_lacks(d, seq)) {
    d->blocked = !coming;
    return FALSE;
  }
  if (!seq->on_host && source == NULL)
    oct_kv_lookup(engine, seq, &hit);
  gboolean fits = admission_fits(engine, seq, &hit);
  if (!fits && hit.pages > 0 && d->n_running == 0 && !coming) {
    /* Nobody else is there: the hit's own snapshot holds the state slot that is missing. */
    hit = (oct_hit){0};
    fits = admission_fits(engine, seq, &hit);
  }
  if (!fits) {
    d->blocked = !coming;
    d->waiter = hit.pages >= LOOKUP_LONG ? seq : NULL;
    d->wait_tries = 0;
    return FALSE;
  }
  oct_queue_remove(engine, seq);
  if (engine->policy->admitted != NULL)
    engine->policy->admitted(engine, seq);
  oct_transfer *transfer = NULL;
  if (seq->on_host) {
    oct_transfer_reload(engine, seq);
    return TRUE;
  }
  if (source != NULL) {
    count_admission(engine, seq, &hit);
    oct_pull_start(engine, seq, source, weight);
    return TRUE;
  }
  oct_kv_take_hit(engine, seq, &hit, &transfer);
  count_admission(engine, seq, &hit);
  seq->sched = seq->done = hit.pages * engine->page_tokens;
  if (!engine->policy->admit_by_chunk && !engine->has_windows) {
    gboolean grown = oct_kv_grow(engine, seq, seq->target);
    oct_assert(grown);
  }
  if (engine->config.log != NULL)
    oct_log_printf(engine->config.log, "%" G_GINT64_FORMAT " admit %" G_GUINT64_FORMAT ".%u hit %u",
                   engine->now, seq->request->id, seq->choice, seq->sched);
  oct_seq_set_state(seq, transfer != NULL ? OCT_SEQ_RELOADING : OCT_SEQ_RUNNING);
  oct_seq_enter(engine, seq, weight);
  if (transfer != NULL) {
    d->n_reloading++;
    oct_transfer_start(engine, transfer);
  }
  return TRUE;
}

guint32
oct_plan_admissions(oct_engine *engine, guint32 domain) {
  oct_kv_domain *d = &engine->domains[domain];
  guint32 added = 0;
  oct_seq *seq;
  while (engine->tokens_left > 0 && engine->slices_left > 0 && !d->blocked && d->n_lacking == 0 &&
         !engine->plan_preempted && (seq = oct_queue_head(&d->queue)) != NULL) {
    if (!admit(engine, seq))
      break;
    if (seq->state != OCT_SEQ_RUNNING)
      continue;
    added += oct_plan_prefill(engine, seq);
    for (guint32 c = 1; c < seq->request->n && seq->request->forked; c++)
      if (seq->request->seqs[c] != NULL && oct_plan_may_run(engine, seq->request->seqs[c]))
        added += oct_plan_prefill(engine, seq->request->seqs[c]);
  }
  return added;
}

gboolean
oct_plan_prefill_pending(const oct_engine *engine, guint32 domain) {
  const oct_kv_domain *d = &engine->domains[domain];
  for (guint32 i = 0; i < d->n_running; i++)
    if (d->running[i]->state == OCT_SEQ_RUNNING && d->running[i]->sched < d->running[i]->target)
      return TRUE;
  return d->queue.n > 0 && !d->blocked && d->n_lacking == 0 &&
         d->weight < engine->config.max_num_seqs;
}
