/* The draft model: a smaller model on an instance of its own, which proposes what it samples.
 *
 * It runs in rounds, between two steps of the engine. A round's first step brings each sequence's
 * place up to the sequence's last token, prompt included, and samples a draft; each step after it
 * feeds the last draft on the device and samples one more. They are all submitted at once, as far
 * as the instance takes them, and the engine plans its next step when the last has ended. A prompt
 * longer than what a step takes comes in over several rounds; until then its sequence decodes
 * without drafts.
 *
 *   absorbed: tokens of the sequence whose KV the place holds. A round ends with all known ones and
 *   its own drafts; of these stay as many as the verification accepts.
 *
 * A place samples with its sequence's parameters, seed and key, so where the two models agree they
 * agree on what is drawn, too. Penalties, biases and suppressed stops are left to the target.
 *
 * The cache is not shared: each place has its own pages, from pools of the instance's plan, one
 * page of each group at a time. Who finds no place or no page decodes without drafts. A failed step
 * costs its round, and the places are filled again; an instance that is lost, or whose rounds keep
 * failing, is given up, and the engine goes on without drafts until it is itself reopened. */
#include <string.h>

#include "engine/sched/internal.h"

typedef struct draft_place {
  oct_seq *seq;  /* NULL: free */
  gboolean open; /* the slot on the device is this sequence's */
  guint32 absorbed;
  guint32 n_pages, announced, room;
  guint32 *pages[OCT_GROUPS];
  /* Its part in the round. */
  guint32 known;   /* tokens of the sequence when it began */
  guint32 chunk;   /* tokens of the first step */
  guint32 wanted;  /* drafts: 0 where the chunk does not reach the last token */
  guint32 n_built; /* steps of the round that it is in */
  guint32 n_drafts;
  guint32 drafts[OCT_DRAFTS_MAX];
} draft_place;

struct oct_drafter {
  oct_instance_config config;
  guint16 *devices;
  guint32 instance; /* 0: none is open or opening */
  gboolean is_open, given_up, was_open;
  guint32 depth, n_groups, page_tokens;
  oct_pool *pools[OCT_GROUPS];
  draft_place *places;
  guint32 *free_places, n_free, n_places;
  oct_step_builder *builder;
  guint64 next_number; /* of the instance's steps */
  guint32 in_flight;   /* of them */
  oct_time since_ns;   /* the oldest began no earlier */
  guint32 bad_rounds;  /* in a row */
  /* The round. */
  gboolean ready;              /* it has ended, and no step was submitted since */
  gboolean failed;             /* a step of it */
  guint32 n_members, *members; /* places */
  guint32 n_steps, n_begun;    /* of it; those submitted */
};

/* ---------------------------------------------------------------- life cycle */

oct_drafter *
oct_draft_new(oct_engine *e) {
  const oct_speculation *s = &e->config.speculation;
  oct_drafter *d = g_new0(oct_drafter, 1);
  oct_layer_group groups[OCT_MODEL_GROUPS_MAX];
  d->config = s->draft;
  d->devices = g_memdup2(e->devices, oct_parallel_world(&s->draft.parallel) * sizeof(guint16));
  d->n_places = e->n_domains * e->config.max_num_seqs;
  d->config.label = s->draft.spec->name;
  d->config.devices = d->devices;
  d->config.depth = s->n_tokens;
  d->config.max_slots = d->n_places;
  /* A first step may have as many tokens as a step of the engine has. */
  d->config.max_batched_tokens = MAX(e->config.max_num_batched_tokens, d->n_places);
  d->config.seed = e->config.seed;
  d->config.check_tags = d->config.report_experts = FALSE;
  d->n_groups = oct_model_groups(s->draft.spec, s->draft.kv_dtype, groups);
  d->page_tokens = s->draft.block_size;
  for (guint32 g = 0; g < d->n_groups; g++)
    d->pools[g] = oct_pool_new(s->draft.memory.groups[g].n_device);
  d->places = g_new0(draft_place, d->n_places);
  d->free_places = g_new(guint32, d->n_places);
  d->members = g_new(guint32, d->n_places);
  d->builder = oct_step_builder_new();
  return d;
}

void
oct_draft_free(oct_engine *e) {
  oct_drafter *d = e->drafter;
  if (d == NULL)
    return;
  for (guint32 g = 0; g < d->n_groups; g++)
    oct_pool_free(d->pools[g]);
  for (guint32 i = 0; i < d->n_places; i++)
    for (guint32 g = 0; g < OCT_GROUPS; g++)
      g_free(d->places[i].pages[g]);
  g_free(d->places);
  g_free(d->free_places);
  g_free(d->members);
  g_free(d->devices);
  oct_step_builder_free(d->builder);
  g_free(d);
  e->drafter = NULL;
}

/* Nobody has a place, and nothing is in flight. */
static void
forget(oct_drafter *d) {
  d->n_free = d->n_members = d->in_flight = d->n_steps = d->n_begun = 0;
  d->ready = d->failed = FALSE;
  d->next_number = 1;
  for (guint32 i = 0; i < d->n_places; i++) {
    draft_place *p = &d->places[i];
    if (p->seq != NULL)
      p->seq->draft_place = OCT_NO_INDEX;
    p->seq = NULL;
    p->n_pages = p->absorbed = 0;
    d->free_places[d->n_free++] = d->n_places - 1 - i;
  }
  for (guint32 g = 0; g < d->n_groups; g++)
    oct_pool_reset(d->pools[g]);
}

gboolean
oct_draft_open(oct_engine *e, GError **error) {
  oct_drafter *d = e->drafter;
  forget(d);
  d->given_up = d->is_open = FALSE;
  d->bad_rounds = 0;
  if (oct_world_open(e->world, &d->config, &d->instance, error))
    return TRUE;
  d->instance = 0;
  g_prefix_error(error, "draft model %s: ", d->config.spec->name);
  return FALSE;
}

void
oct_draft_close(oct_engine *e) {
  oct_drafter *d = e->drafter;
  if (d->instance != 0)
    oct_world_close(e->world, d->instance);
  d->instance = 0;
  d->is_open = FALSE;
  forget(d);
}

static void
give_up(oct_engine *e, const char *why) {
  oct_drafter *d = e->drafter;
  if (e->config.log != NULL)
    oct_log_printf(e->config.log, "%" G_GINT64_FORMAT " draft model lost %s", e->now, why);
  e->stats.speculation.model_lost++;
  oct_draft_close(e);
  d->given_up = TRUE;
}

gboolean
oct_draft_is_settled(const oct_engine *e) {
  return e->drafter->is_open || e->drafter->given_up;
}

gboolean
oct_draft_works(const oct_engine *e) {
  return e->drafter->is_open;
}

gboolean
oct_draft_owns(const oct_engine *e, guint32 instance) {
  return instance != 0 && instance == e->drafter->instance;
}

/* ---------------------------------------------------------------- places */

static guint32
pages_of(const oct_drafter *d, guint32 tokens) {
  return (tokens + d->page_tokens - 1) / d->page_tokens;
}

static gboolean
grow(oct_drafter *d, draft_place *p, guint32 tokens) {
  guint32 want = pages_of(d, tokens);
  for (guint32 g = 0; g < d->n_groups && want > p->n_pages; g++)
    if (oct_pool_available(d->pools[g]) < want - p->n_pages)
      return FALSE;
  if (want > p->room) {
    p->room = MAX(want, 2 * p->room);
    for (guint32 g = 0; g < d->n_groups; g++)
      p->pages[g] = g_renew(guint32, p->pages[g], p->room);
  }
  for (; p->n_pages < want; p->n_pages++)
    for (guint32 g = 0; g < d->n_groups; g++)
      p->pages[g][p->n_pages] = oct_pool_take(d->pools[g]);
  return TRUE;
}

/* Gives back pages from number `keep` on; steps in flight may still write them. */
static void
shrink(oct_drafter *d, draft_place *p, guint32 keep) {
  for (; p->n_pages > keep; p->n_pages--)
    for (guint32 g = 0; g < d->n_groups; g++)
      oct_pool_unref(d->pools[g], p->pages[g][p->n_pages - 1], d->next_number - 1);
  p->announced = MIN(p->announced, keep);
}

void
oct_draft_leave(oct_engine *e, oct_seq *seq) {
  oct_drafter *d = e->drafter;
  draft_place *p = &d->places[seq->draft_place];
  oct_assert(p->seq == seq);
  shrink(d, p, 0);
  p->seq = NULL;
  p->absorbed = 0;
  d->free_places[d->n_free++] = seq->draft_place;
  seq->draft_place = OCT_NO_INDEX;
}

static draft_place *
place_of(oct_drafter *d, oct_seq *seq) {
  if (seq->draft_place != OCT_NO_INDEX)
    return &d->places[seq->draft_place];
  oct_assert(d->n_free > 0); /* one for each sequence that may run */
  seq->draft_place = d->free_places[--d->n_free];
  draft_place *p = &d->places[seq->draft_place];
  p->seq = seq;
  p->open = FALSE;
  p->absorbed = p->n_drafts = p->known = 0;
  return p;
}

/* ---------------------------------------------------------------- a round's steps */

static void
open_place(oct_engine *e, const draft_place *p, guint32 place) {
  const oct_request *r = p->seq->request;
  oct_slot_open *o = oct_step_add_open(e->drafter->builder);
  o->slot = place;
  o->key = p->seq->key;
  o->seed = p->seq->seed;
  o->prompt_tokens = r->prompt;
  o->oracle_tokens = r->oracle_tokens;
  o->eos_token = e->spec->n_eos_tokens > 0 ? e->spec->eos_tokens[0] : 0;
  o->top_k = r->top_k;
  o->temperature = r->temperature;
  o->top_p = r->top_p;
  o->min_p = r->min_p;
}

static void
announce(oct_drafter *d, draft_place *p, guint32 place) {
  for (guint32 g = 0; g < d->n_groups; g++)
    for (guint32 i = p->announced; i < p->n_pages; i++)
      *oct_step_add_change(d->builder) =
          (oct_page_change){.slot = place, .group = (guint16)g, .index = i, .page = p->pages[g][i]};
  p->announced = p->n_pages;
}

static void
add_chunk(oct_engine *e, draft_place *p, guint32 place) {
  oct_drafter *d = e->drafter;
  if (!p->open) {
    open_place(e, p, place);
    p->announced = 0;
  }
  p->open = TRUE;
  announce(d, p, place);
  oct_slice *s = oct_step_add_slice(d->builder);
  s->slot = place;
  s->sample = p->wanted > 0 ? OCT_SAMPLE_LAST : OCT_SAMPLE_NONE;
  s->flags = p->chunk > 2 ? OCT_SLICE_PREFILL : 0;
  s->n_tokens = p->chunk;
  s->position = p->absorbed;
  s->source = e->config.carry_ids ? OCT_SOURCE_IDS : OCT_SOURCE_ABSENT;
  if (e->config.carry_ids)
    s->tokens = oct_step_add_tokens(d->builder, p->seq->ids + p->absorbed, p->chunk, NULL);
  e->stats.speculation.model_tokens += p->chunk;
  p->absorbed += p->chunk;
}

/* The i-th draft of the place, from the one before it. */
static void
add_draft(oct_engine *e, const draft_place *p, guint32 place, guint32 i) {
  oct_slice *s = oct_step_add_slice(e->drafter->builder);
  s->slot = place;
  s->sample = OCT_SAMPLE_LAST;
  s->n_tokens = 1;
  s->position = p->known + i - 1;
  s->source = OCT_SOURCE_DEVICE;
  e->stats.speculation.model_tokens++;
}

/* Step `i` of the round, from 0; members that have left meanwhile are left out. */
static void
build_step(oct_engine *e, guint32 i) {
  oct_drafter *d = e->drafter;
  oct_step_begin(d->builder, d->next_number, 1);
  for (guint32 m = 0; m < d->n_members; m++) {
    draft_place *p = &d->places[d->members[m]];
    if (p->seq == NULL)
      continue;
    if (i == 0)
      add_chunk(e, p, d->members[m]);
    else if (i < p->wanted)
      add_draft(e, p, d->members[m], i);
    else
      continue;
    p->n_built++;
  }
}

/* Submits what the instance takes of the round's steps. */
static void
submit(oct_engine *e) {
  oct_drafter *d = e->drafter;
  while (d->n_begun < d->n_steps && d->in_flight < d->depth && !d->failed) {
    build_step(e, d->n_begun);
    if (oct_step_slice_count(d->builder) == 0) { /* nobody is left */
      d->n_steps = d->n_begun;
      return;
    }
    g_autoptr(GError) error = NULL;
    oct_submit answer = oct_world_submit(e->world, d->instance, oct_step_end(d->builder), &error);
    if (answer != OCT_SUBMIT_OK) {
      give_up(e, answer == OCT_SUBMIT_FULL ? "full below its depth" : error->message);
      return;
    }
    if (d->in_flight++ == 0)
      d->since_ns = e->now;
    d->next_number++;
    d->n_begun++;
  }
}

/* ---------------------------------------------------------------- a round */

/* Takes the sequence into the round, with at most `budget` tokens; returns its tokens in the first
 * step. */
static guint32
join(oct_engine *e, oct_seq *seq, guint32 budget) {
  oct_drafter *d = e->drafter;
  guint32 wanted = seq->unfinished == 0 ? oct_spec_limit(e, seq) : 0;
  if (seq->state != OCT_SEQ_RUNNING || wanted == 0 ||
      seq->request->prompt + seq->n_out + wanted > d->config.spec->max_position)
    return 0;
  draft_place *p = place_of(d, seq);
  guint32 known = seq->request->prompt + seq->n_out;
  if (p->n_drafts > 0 && p->known == known)
    return 0; /* the last step was not of it: its drafts are still good */
  /* All that it will need, so that no two of them wait for one another half filled. The last draft
   * is sampled, not fed. */
  p->n_drafts = 0;
  if (!grow(d, p, known + wanted - 1))
    return 0;
  p->known = known;
  p->n_built = 0;
  p->absorbed = MIN(p->absorbed, known - 1); /* the last token is fed, if again, to draw from it */
  p->chunk = MIN(known - p->absorbed, budget);
  p->wanted = p->absorbed + p->chunk == known ? wanted : 0;
  d->members[d->n_members++] = seq->draft_place;
  d->n_steps = MAX(d->n_steps, MAX(p->wanted, 1));
  return p->chunk;
}

gboolean
oct_draft_round(oct_engine *e) {
  oct_drafter *d = e->drafter;
  if (d->in_flight > 0)
    return TRUE;
  if (!d->is_open || d->ready)
    return FALSE;
  guint32 left = d->config.max_batched_tokens;
  d->n_members = d->n_steps = d->n_begun = 0;
  d->failed = FALSE;
  for (guint32 i = 0; i < e->n_domains; i++)
    for (guint32 k = 0; k < e->domains[i].n_running && left > 0; k++)
      left -= join(e, e->domains[i].running[k], left);
  if (d->n_members > 0)
    submit(e);
  return d->in_flight > 0;
}

void
oct_draft_used(oct_engine *e) {
  e->drafter->ready = FALSE;
}

guint32
oct_draft_take(oct_engine *e, oct_seq *seq, guint32 most, guint32 *drafts) {
  if (seq->draft_place == OCT_NO_INDEX)
    return 0;
  const draft_place *p = &e->drafter->places[seq->draft_place];
  if (!e->drafter->ready || p->known != seq->request->prompt + seq->n_out)
    return 0;
  guint32 n = MIN(most, p->n_drafts);
  memcpy(drafts, p->drafts, n * sizeof *drafts);
  return n;
}

void
oct_draft_accepted(oct_engine *e, oct_seq *seq, guint32 n) {
  if (seq->draft_place == OCT_NO_INDEX)
    return;
  draft_place *p = &e->drafter->places[seq->draft_place];
  /* Those that were fed, and are what the sequence went on with. */
  if (p->n_drafts > 0)
    p->absorbed = p->known + MIN(n, p->n_drafts - 1);
  p->n_drafts = 0;
  shrink(e->drafter, p, pages_of(e->drafter, p->absorbed + 1));
}

/* The round is over: drafts can be taken, or every place is to be filled again. */
static void
end_round(oct_engine *e) {
  oct_drafter *d = e->drafter;
  d->ready = TRUE;
  d->bad_rounds = d->failed ? d->bad_rounds + 1 : 0;
  for (guint32 i = 0; i < d->n_places && d->failed; i++) {
    d->places[i].open = FALSE;
    d->places[i].absorbed = d->places[i].n_drafts = 0;
  }
  if (d->bad_rounds > e->config.retries_max)
    give_up(e, "its steps keep failing");
}

/* ---------------------------------------------------------------- events */

/* Tokens of step `i` of the round: its slices are the members that are in so many steps. Who has
 * left since has no sequence any more; who comes gets a place between rounds. */
static gboolean
take_tokens(oct_drafter *d, guint32 i, const oct_step_result *result) {
  const oct_slice_result *slices = oct_result_slices(result);
  guint32 k = 0;
  for (guint32 m = 0; m < d->n_members; m++) {
    draft_place *p = &d->places[d->members[m]];
    if (p->n_built <= i)
      continue;
    if (k == result->n_slices)
      return FALSE;
    const oct_slice_result *s = &slices[k++];
    if (p->seq == NULL || p->wanted == 0)
      continue;
    if ((s->flags & OCT_RESULT_FAILED) != 0) { /* filled again from the first token */
      p->open = FALSE;
      p->absorbed = p->n_drafts = p->wanted = 0;
      continue;
    }
    if (s->n_accepted != 1 || s->tokens >= result->n_tokens)
      return FALSE;
    p->drafts[p->n_drafts++] = oct_result_tokens(result)[s->tokens];
  }
  return k == result->n_slices;
}

static void
step_ended(oct_engine *e, const oct_event *event) {
  oct_drafter *d = e->drafter;
  if (d->in_flight == 0 || event->number != d->next_number - d->in_flight) {
    give_up(e, "a step ended that is not the oldest in flight");
    return;
  }
  d->in_flight--;
  if (e->n_flights == 0) /* else it is counted with the engine's own steps */
    e->stats.busy_ns += e->now - d->since_ns;
  d->since_ns = e->now;
  for (guint32 g = 0; g < d->n_groups; g++)
    oct_pool_complete(d->pools[g], event->number);
  if (event->kind == OCT_EVENT_FAULT) {
    d->failed = TRUE;
  } else {
    e->stats.speculation.model_steps++;
    for (guint32 i = 0; i < OCT_PART_COUNT; i++)
      e->stats.part_ns[i] += event->result->part_ns[i];
    if (!take_tokens(d, d->n_begun - d->in_flight - 1, event->result)) {
      give_up(e, "a step's result does not answer its slices");
      return;
    }
    submit(e);
  }
  if (d->instance != 0 && d->in_flight == 0)
    end_round(e);
}

/* Why this engine cannot use an instance with these capabilities, NULL when it can. */
static const char *
misfit(const oct_engine *e, const oct_capabilities *c) {
  const oct_memory_plan *plan = &e->drafter->config.memory;
  for (guint32 g = 0; g < e->drafter->n_groups; g++)
    if (c->fits[g] < plan->groups[g].n_device)
      return "draft model: the device holds fewer pages than its memory plan";
  if (c->depth == 0)
    return "draft model: the backend takes no step";
  if (c->token_ids && !e->config.carry_ids)
    return "draft model: the backend needs token ids, which this run does not carry";
  return NULL;
}

/* An engine that was asked for drafts does not begin without; one that is reopened does. */
static void
no_instance(oct_engine *e, const char *why) {
  if (e->drafter->was_open) {
    give_up(e, why);
    return;
  }
  oct_instance_lost(e, why);
  e->lost_fatal = TRUE;
}

static void
opened(oct_engine *e, const oct_capabilities *c) {
  oct_drafter *d = e->drafter;
  const char *why = misfit(e, c);
  if (why != NULL) {
    no_instance(e, why);
    return;
  }
  d->depth = MIN(c->depth, d->config.depth);
  d->is_open = d->was_open = TRUE;
}

static void
fault(oct_engine *e, const oct_event *event) {
  switch (event->fault->severity) {
  case OCT_SEVERITY_REQUEST:
    break; /* the step's result marks the slice */
  case OCT_SEVERITY_STEP:
    step_ended(e, event);
    break;
  case OCT_SEVERITY_INSTANCE:
    give_up(e, event->fault->message);
    break;
  case OCT_SEVERITY_FATAL:
    oct_fault_handle(e, event->fault);
    break;
  }
}

void
oct_draft_event(oct_engine *e, const oct_event *event) {
  char why[96];
  switch (event->kind) {
  case OCT_EVENT_OPENED:
    opened(e, event->capabilities);
    break;
  case OCT_EVENT_OPEN_FAILED:
    e->drafter->instance = 0;
    g_snprintf(why, sizeof why, "draft model: %s",
               event->fault != NULL ? event->fault->message : "opening failed");
    no_instance(e, why);
    break;
  case OCT_EVENT_OPEN_PROGRESS:
    e->open_progress_ns = e->now;
    break;
  case OCT_EVENT_STEP_DONE:
    step_ended(e, event);
    break;
  case OCT_EVENT_FAULT:
    fault(e, event);
    break;
  case OCT_EVENT_COPY_DONE:
  case OCT_EVENT_MASK_WANTED:
  case OCT_EVENT_TIMER:
  case OCT_EVENT_WAKE:
    break; /* nothing of the kind was asked for */
  }
}

oct_time
oct_draft_deadline(const oct_engine *e) {
  const oct_drafter *d = e->drafter;
  return d->in_flight > 0 ? d->since_ns + e->config.step_deadline_ns : OCT_TIME_NEVER;
}

/* ---------------------------------------------------------------- the books */

gboolean
oct_draft_check(const oct_engine *e, GError **error) {
  const oct_drafter *d = e->drafter;
  guint32 held = 0, taken = 0;
  for (guint32 i = 0; i < d->n_places; i++) {
    const draft_place *p = &d->places[i];
    held += p->n_pages;
    taken += p->seq != NULL;
    gboolean good = p->seq != NULL ? p->seq->draft_place == i && p->seq->run_index != OCT_NO_INDEX
                                   : p->n_pages == 0;
    if (good && p->absorbed <= p->n_pages * d->page_tokens)
      continue;
    g_set_error(error, OCT_ENGINE_ERROR, OCT_ENGINE_ERROR_CONFIG,
                "draft place %u: %u tokens in %u pages, its sequence does not know of it or has "
                "left",
                i, p->absorbed, p->n_pages);
    return FALSE;
  }
  for (guint32 g = 0; g < d->n_groups; g++) {
    if (!oct_pool_check(d->pools[g], error))
      return FALSE;
    if (oct_pool_count(d->pools[g], OCT_ITEM_HELD) == held && taken + d->n_free == d->n_places)
      continue;
    g_set_error(error, OCT_ENGINE_ERROR, OCT_ENGINE_ERROR_CONFIG,
                "draft model: group %u has %u pages held, its places explain %u; %u of %u places "
                "are taken and %u free",
                g, oct_pool_count(d->pools[g], OCT_ITEM_HELD), held, taken, d->n_places, d->n_free);
    return FALSE;
  }
  return TRUE;
}
