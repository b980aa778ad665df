/* Guided requests: whose next token waits for a mask, and for how long.
 *
 * A mask is made of the output before its token, so it is asked for once that is known: when the
 * step is submitted, or, one step ahead, when the step before it has ended and its slice is in
 * flight already. So run-ahead stays on, and the device waits only at the end of the step, if the
 * answer is later than that. A sequence has at most one question open, about the oldest of its
 * slices in flight; its entry goes when the mask has been handed on.
 *
 * One who never answers stops everybody in the step, so two rules: a sequence that has ended, or
 * whose results are void, is answered for (everything is allowed; what comes of it is dropped); and
 * one that keeps the device waiting for mask_deadline_ns fails, which answers for it too. The time
 * counts from when the device waits and the question has been asked, whichever is later. */
#include <string.h>

#include "engine/sched/internal.h"

static guint32
mask_words(const oct_engine *engine) {
  return (engine->spec->vocab + 63) / 64;
}

/* When the slice's time is up. */
static oct_time
due_of(const oct_engine *engine, const oct_mask_slice *m) {
  if (!m->asked || m->wanted_ns == OCT_TIME_NEVER || engine->config.mask_deadline_ns == 0)
    return OCT_TIME_NEVER;
  return MAX(m->wanted_ns, m->asked_ns) + engine->config.mask_deadline_ns;
}

/* The oldest entry goes. */
static void
drop(oct_engine *engine, oct_seq *seq) {
  oct_assert(seq->n_masks > 0);
  if (seq->masks[0].wanted_ns != OCT_TIME_NEVER)
    engine->mask_progress_ns = engine->now;
  seq->n_masks--;
  memmove(&seq->masks[0], &seq->masks[1], seq->n_masks * sizeof seq->masks[0]);
}

/* Hands the oldest entry's mask on. */
static void
give(oct_engine *engine, oct_seq *seq, const guint64 *bits) {
  oct_mask_slice m = seq->masks[0];
  drop(engine, seq);
  g_autoptr(GError) error = NULL;
  if (engine->instance != 0 && engine->lost[0] == '\0' &&
      !oct_world_mask(engine->world, engine->instance, m.number, m.slice, bits, mask_words(engine),
                      &error))
    oct_instance_lost(engine, error->message);
}

void
oct_mask_add(oct_seq *seq, guint64 number, guint32 index) {
  oct_assert(seq->n_masks < OCT_MASKS_MAX && seq->in_flight_out > 0);
  seq->masks[seq->n_masks++] = (oct_mask_slice){.number = number,
                                                .slice = index,
                                                .n_output = seq->n_out + seq->in_flight_out - 1,
                                                .wanted_ns = OCT_TIME_NEVER};
}

void
oct_mask_ask(oct_engine *engine, oct_seq *seq) {
  oct_mask_slice *m = &seq->masks[0];
  if (seq->n_masks == 0 || m->asked || m->n_output != seq->n_out)
    return;
  m->asked = TRUE;
  m->asked_ns = engine->now;
  engine->mask_due_ns = MIN(engine->mask_due_ns, due_of(engine, m));
  oct_request *r = seq->request;
  engine->config.listener.mask(engine->config.listener.user, r->id, r->user, seq->choice,
                               seq->n_out, engine->now);
}

void
oct_mask_ask_step(oct_engine *engine, const oct_flight *f) {
  for (guint32 i = 0; f->guided && i < f->n_slices; i++)
    oct_mask_ask(engine, f->slices[i].seq);
}

void
oct_mask_step_ended(oct_engine *engine, oct_seq *seq, guint64 number) {
  while (seq->n_masks > 0 && seq->masks[0].number <= number)
    drop(engine, seq);
}

void
oct_mask_release(oct_engine *engine, oct_seq *seq) {
  guint32 vocab = engine->spec->vocab, words = mask_words(engine);
  if (seq->n_masks > 0 && engine->every_token == NULL) {
    engine->every_token = g_new(guint64, words);
    memset(engine->every_token, 0xff, words * sizeof(guint64));
    if (vocab % 64 != 0)
      engine->every_token[words - 1] = ((guint64)1 << (vocab % 64)) - 1;
  }
  while (seq->n_masks > 0)
    give(engine, seq, engine->every_token);
}

void
oct_mask_wanted(oct_engine *engine, guint64 number, guint32 slice) {
  engine->mask_progress_ns = engine->now;
  for (guint32 i = 0; i < engine->n_flights; i++) {
    const oct_flight *f = oct_flight_at(engine, i);
    if (f->number != number || slice >= f->n_slices)
      continue;
    oct_seq *seq = f->slices[slice].seq;
    for (guint32 k = 0; k < seq->n_masks; k++) {
      oct_mask_slice *m = &seq->masks[k];
      if (m->number != number || m->wanted_ns != OCT_TIME_NEVER)
        continue;
      engine->stats.late_masks++;
      m->wanted_ns = engine->now;
      engine->mask_due_ns = MIN(engine->mask_due_ns, due_of(engine, m));
    }
  }
}

oct_time
oct_mask_time_out(oct_engine *engine) {
  if (engine->mask_due_ns > engine->now)
    return engine->mask_due_ns;
  engine->mask_due_ns = OCT_TIME_NEVER;
  for (guint32 i = 0; i < engine->n_flights; i++) {
    const oct_flight *f = oct_flight_at(engine, i);
    for (guint32 k = 0; k < f->n_slices; k++) {
      oct_seq *seq = f->slices[k].seq;
      oct_time due = seq->n_masks > 0 ? due_of(engine, &seq->masks[0]) : OCT_TIME_NEVER;
      if (due > engine->now) {
        engine->mask_due_ns = MIN(engine->mask_due_ns, due);
        continue;
      }
      oct_request_end(engine, seq->request, OCT_END_FAILED);
      oct_request_reap(engine, seq->request);
    }
  }
  return engine->mask_due_ns;
}

static gboolean
allows_something(const oct_engine *engine, const guint64 *bits) {
  guint32 vocab = engine->spec->vocab, rest = vocab % 64;
  for (guint32 w = 0; w < vocab / 64; w++)
    if (bits[w] != 0)
      return TRUE;
  return rest > 0 && (bits[vocab / 64] & (((guint64)1 << rest) - 1)) != 0;
}

gboolean
oct_engine_mask(oct_engine *e, oct_request_id id, guint32 choice, guint32 n_output,
                const guint64 *bits, guint32 n_words, oct_time now) {
  oct_assert(n_words == mask_words(e));
  const oct_request *r = g_hash_table_lookup(e->by_id, &id);
  oct_seq *seq = r != NULL && choice < r->n ? r->seqs[choice] : NULL;
  if (seq == NULL || seq->n_masks == 0 || !seq->masks[0].asked ||
      seq->masks[0].n_output != n_output)
    return FALSE;
  oct_engine_enter(e);
  e->now = MAX(e->now, now);
  if (allows_something(e, bits)) {
    e->stats.masks++;
    give(e, seq, bits);
  } else {
    oct_request_end(e, seq->request, OCT_END_FAILED);
    oct_request_reap(e, seq->request);
  }
  oct_engine_leave(e);
  return TRUE;
}
