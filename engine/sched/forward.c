/* Fast-forward over uneventful decode steps, and the pace of submitting.
 *
 * A stretch begins with one step m in flight, all of it decodes of everything that runs, and
 * nothing that could be admitted. Each turn of the loop below does to the books exactly what one
 * pass through the driver does when stepping (submit m + 1 ahead, commit m), with the counters of
 * sequences advanced lazily; the order of page takes, index entries and log lines is the same, so
 * logs are byte-identical either way. */
#include "engine/sched/internal.h"

oct_time
oct_pace(const oct_engine *engine) {
  guint32 stages = engine->config.instance.parallel.pipeline;
  if (engine->n_flights < stages)
    return 0;
  const oct_flight *f = &engine->flights[engine->first_flight];
  /* A mixed step's time is less sure: half is taken, since too early costs little and too late a
   * bubble. */
  gint64 takes = f->pure_decode ? engine->decode_step_ns
                                : (gint64)(0.5 * engine->mixed_ns_per_token * f->n_tokens);
  return MAX(f->submit_ns, engine->last_done_ns) + takes / stages - engine->config.submit_lead_ns;
}

static gboolean
domain_at_rest(const oct_engine *engine, const oct_kv_domain *d) {
  return d->n_preempting == 0 && d->n_reloading == 0 && d->n_lacking == 0 &&
         (d->queue.n == 0 || d->blocked || d->weight >= engine->config.max_num_seqs);
}

/* Steps that can be skipped at most before a sequence does something else; 0 = none. */
static guint64
steps_ahead(const oct_engine *engine, const oct_seq *s) {
  if (s->state != OCT_SEQ_RUNNING || s->unfinished != 1 || s->in_flight_out != 1 ||
      !oct_seq_decodes(s) || s->request->guided || s->request->n_logprobs > 0 ||
      s->computed_max >= s->sched || s->n_out + 1 >= s->max_out)
    return 0;
  if (!engine->plan_looks_closer)
    return s->max_out - s->n_out - 1;
  guint64 k = oct_spec_steps_ahead(engine, s, s->max_out - s->n_out - 1);
  guint32 cut = oct_kv_next_cut(engine, s, s->sched);
  return cut == 0 ? k : MIN(k, cut - s->sched - 1);
}

static guint64
stretch_limit(const oct_engine *engine) {
  const oct_flight *f = &engine->flights[engine->first_flight];
  if (!engine->capabilities.forward || engine->config.no_forward || engine->n_flights != 1 ||
      engine->config.run_ahead != 1 || engine->config.instance.parallel.pipeline != 1 ||
      !f->pure_decode || f->speculates || engine->n_transfers > 0 || engine->config.carry_ids ||
      engine->config.listener.tokens != NULL || engine->has_windows)
    return 0;
  guint64 limit = G_MAXUINT64;
  guint32 n = 0;
  for (guint32 i = 0; i < engine->n_domains; i++) {
    const oct_kv_domain *d = &engine->domains[i];
    if (!domain_at_rest(engine, d))
      return 0;
    for (guint32 j = 0; j < d->n_running && limit > 0; j++)
      limit = MIN(limit, steps_ahead(engine, d->running[j]));
    n += d->n_running;
  }
  return n == f->n_slices ? limit : 0;
}

/* Sorts the running sequences by where `sched` is in its page, in order of domain and admission
 * within. */
static void
fill_buckets(oct_engine *engine) {
  guint32 page = engine->page_tokens, *first = engine->bucket_first;
  for (guint32 b = 0; b <= page; b++)
    first[b] = 0;
  for (guint32 i = 0; i < engine->n_domains; i++)
    for (guint32 j = 0; j < engine->domains[i].n_running; j++)
      first[engine->domains[i].running[j]->sched % page + 1]++;
  for (guint32 b = 0; b < page; b++)
    first[b + 1] += first[b];
  for (guint32 i = 0; i < engine->n_domains; i++)
    for (guint32 j = 0; j < engine->domains[i].n_running; j++) {
      oct_seq *s = engine->domains[i].running[j];
      s->forwarded = 0;
      engine->bucket_seqs[first[s->sched % page]++] = s;
    }
  for (guint32 b = page; b > 0; b--)
    first[b] = first[b - 1];
  first[0] = 0;
}

static void
catch_up(oct_seq *s, guint32 steps) {
  guint32 behind = steps - s->forwarded;
  s->n_out += behind;
  s->sched += behind;
  s->done += behind;
  s->last_step += behind;
  s->epoch = s->last_step;
  s->computed_max = s->done;
  s->forwarded = steps;
}

static gboolean
bucket_fits(const oct_engine *engine, oct_seq *const *seqs, guint32 n) {
  guint32 need[OCT_STEP_DOMAINS_MAX] = {0};
  for (guint32 i = 0; i < n; i++)
    need[seqs[i]->domain]++;
  for (guint32 d = 0; d < engine->n_domains && n > 0; d++)
    if (!oct_kv_can_take(engine, d, need[d], 0))
      return FALSE;
  return TRUE;
}

/* The first skipped step has each sequence's own gap; from then on they all move together. */
static void
first_gaps(oct_engine *engine, oct_time end_ns) {
  for (guint32 i = 0; i < engine->n_domains; i++)
    for (guint32 j = 0; j < engine->domains[i].n_running; j++) {
      oct_seq *s = engine->domains[i].running[j];
      gint64 gap = end_ns - s->last_token_ns;
      oct_hist_add(engine->hists[OCT_HIST_ITL], gap);
      s->longest_gap_ns = MAX(s->longest_gap_ns, gap);
    }
}

void
oct_forward_stretch(oct_engine *engine, oct_time horizon) {
  guint64 limit = stretch_limit(engine);
  if (limit == 0)
    return;
  oct_flight *f = oct_flight_at(engine, 0);
  guint32 page = engine->page_tokens, steps = 0;
  gint64 longest = 0;
  fill_buckets(engine);
  while (steps < limit) {
    /* Sequences whose next slice begins a page: m has filled the one before. */
    guint32 b = (page - steps % page) % page;
    oct_seq **crossing = engine->bucket_seqs + engine->bucket_first[b];
    guint32 n_crossing = engine->bucket_first[b + 1] - engine->bucket_first[b];
    /* A spill begins in the turn that takes the pages, before m ends: that turn is stepped. */
    if (!bucket_fits(engine, crossing, n_crossing) ||
        (engine->has_host && oct_transfer_spill_wanted(engine, n_crossing)))
      break;
    oct_time submit_ns = MAX(engine->now, oct_pace(engine)), limit_ns = horizon;
    if (engine->config.step_deadline_ns > 0)
      limit_ns =
          MIN(limit_ns, MAX(f->submit_ns, engine->last_done_ns) + engine->config.step_deadline_ns);
    oct_forward ask = {.limit_ns = limit_ns, .submit_ns = submit_ns};
    oct_forwarded done;
    if (!oct_world_forward(engine->world, engine->instance, &ask, &done))
      break;
    steps++;
    for (guint32 i = 0; i < n_crossing; i++) {
      catch_up(crossing[i], steps);
      gboolean grown = oct_kv_grow(engine, crossing[i], crossing[i]->sched);
      oct_assert(grown);
    }
    gint64 gap = done.end_ns - engine->last_done_ns;
    if (steps == 1) {
      first_gaps(engine, done.end_ns);
    } else {
      oct_hist_add_times(engine->hists[OCT_HIST_ITL], gap, f->n_slices);
      longest = MAX(longest, gap);
    }
    engine->now = done.end_ns;
    engine->completed = f->number;
    oct_kv_complete(engine);
    oct_step_account(engine, f, done.start_ns, done.end_ns);
    for (guint32 p = 0; p < OCT_PART_COUNT; p++)
      engine->stats.part_ns[p] += done.part_ns[p];
    for (guint32 i = 0; i < n_crossing; i++)
      oct_kv_index(engine, crossing[i], crossing[i]->done, f->number);
    f->number = engine->next_number++;
    f->submit_ns = MIN(submit_ns, done.end_ns);
  }
  if (steps == 0)
    return;
  engine->stats.forwarded_steps += steps;
  engine->stats.generated_tokens += (guint64)steps * f->n_slices;
  for (guint32 i = 0; i < engine->n_domains; i++) {
    oct_kv_domain *d = &engine->domains[i];
    if (d->n_running > 0) /* an idle domain has decoded nothing */
      d->last_decode_ns = f->submit_ns;
    for (guint32 j = 0; j < d->n_running; j++) {
      catch_up(d->running[j], steps);
      d->running[j]->last_token_ns = engine->now;
      d->running[j]->longest_gap_ns = MAX(d->running[j]->longest_gap_ns, longest);
    }
  }
  for (guint32 i = 0; i < f->n_slices; i++)
    f->slices[i].position += steps;
}
