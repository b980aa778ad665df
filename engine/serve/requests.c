/* Generations as requests of the engines: submitted, told of, ended. On the engine thread.
 *
 * A generation is one request with its choices, and is spread over as many requests as it has
 * choices where the engine cannot fork them: choices part at the prompt's last token, before which
 * there must be another. Such parts share a replica and end together.
 */
#include <math.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/base/rng.h"
#include "engine/sched/router.h"
#include "engine/serve/bulletin.h"
#include "engine/serve/guides.h"
#include "engine/serve/internal.h"

/* Which choice the engine means. */
static guint32
choice_of(const oct_generation *g, oct_request_id id, guint32 choice) {
  guint32 part = 0;
  if (g->n_parts == 1)
    return choice;
  while (part < g->n_parts && g->ids[part] != id)
    part++;
  oct_assert(part < g->n_parts);
  return part;
}

/* ---------------------------------------------------------------- what engines say */

static void
on_tokens(void *user, oct_request_id id, void *request_user, guint32 choice, const guint32 *ids,
          const oct_logprob *logprobs, guint32 n, oct_time now) {
  oct_service *s = ((oct_replica *)user)->service;
  oct_generation *g = request_user;
  (void)now;
  if (n == 0)
    return;
  choice = choice_of(g, id, choice);
  guint32 each = logprobs != NULL ? 1 + g->sampling.n_logprobs : 0;
  gsize id_bytes = ((gsize)n * sizeof *ids + 7) / 8 * 8;
  gsize size = (gsize)n * each * sizeof *logprobs;
  guint at = s->batch->len;
  guint8 *to = oct_loop_note(s, OCT_NOTE_TOKENS, g, choice, n, id_bytes + size);
  ((oct_note *)(void *)(s->batch->data + at))->each = each;
  memcpy(to, ids, n * sizeof *ids);
  if (size > 0)
    memcpy(to + id_bytes, logprobs, size);
  if (g->sampling.guided)
    oct_guides_tokens(s->guides, g, choice, ids, n);
}

static void
on_prompt_logprobs(void *user, oct_request_id id, void *request_user, guint32 first,
                   const oct_logprob *logprobs, guint32 n, oct_time now) {
  oct_service *s = ((oct_replica *)user)->service;
  oct_generation *g = request_user;
  (void)id, (void)now;
  gsize size = (gsize)n * (1u + g->sampling.n_prompt_logprobs) * sizeof *logprobs;
  memcpy(oct_loop_note(s, OCT_NOTE_PROMPT_LOGPROBS, g, first, n, size), logprobs, size);
}

static void
on_pooled(void *user, oct_request_id id, void *request_user, const float *values, guint32 n,
          oct_time now) {
  oct_service *s = ((oct_replica *)user)->service;
  (void)id, (void)now;
  gsize size = n * sizeof *values;
  memcpy(oct_loop_note(s, OCT_NOTE_POOLED, request_user, 0, n, size), values, size);
}

static void
on_mask(void *user, oct_request_id id, void *request_user, guint32 choice, guint32 n_output,
        oct_time now) {
  (void)now;
  oct_guides_ask(((oct_replica *)user)->service->guides, request_user,
                 choice_of(request_user, id, choice), n_output);
}

static oct_time
earlier(oct_time a, oct_time b) {
  return a < 0 || (b >= 0 && b < a) ? b : a;
}

/* Into what is told of all parts together. */
static void
merge(oct_request_record *all, const oct_request_record *part) {
  if (all->reason == OCT_END_STOP || all->reason == OCT_END_LENGTH)
    all->reason = part->reason;
  all->output_tokens += part->output_tokens;
  all->cached_tokens = MAX(all->cached_tokens, part->cached_tokens);
  all->preemptions += part->preemptions;
  all->draft_tokens += part->draft_tokens;
  all->accepted_tokens += part->accepted_tokens;
  all->admitted_ns = earlier(all->admitted_ns, part->admitted_ns);
  all->first_token_ns = earlier(all->first_token_ns, part->first_token_ns);
  all->last_token_ns = MAX(all->last_token_ns, part->last_token_ns);
  all->ended_ns = MAX(all->ended_ns, part->ended_ns);
}

static void
cancel_parts(oct_service *s, oct_generation *g) {
  oct_replica *replica = &s->replicas[g->replica];
  for (guint32 i = 0; i < g->n_parts; i++)
    if (g->ids[i] != 0 && oct_engine_cancel(replica->engine, g->ids[i], s->now))
      replica->dirty = TRUE;
}

/* The engine's reference goes to the front with the note. */
static void
tell_ended(oct_service *s, oct_generation *g) {
  oct_request_record *out = &g->record;
  oct_bulletin_left(s->bulletin, g->replica);
  if (g->sampling.guided)
    oct_guides_left(s->guides, g);
  oct_time *const times[] = {&out->arrival_ns, &out->admitted_ns, &out->first_token_ns,
                             &out->last_token_ns, &out->ended_ns};
  for (gsize i = 0; i < G_N_ELEMENTS(times); i++)
    if (*times[i] >= 0)
      *times[i] += s->offset_ns;
  memcpy(oct_loop_note(s, OCT_NOTE_ENDED, g, 0, 0, sizeof *out), out, sizeof *out);
}

static void
on_ended(void *user, const oct_request_record *record) {
  oct_service *s = ((oct_replica *)user)->service;
  oct_generation *g = record->user;
  g->ids[choice_of(g, record->id, 0)] = 0;
  if (g->n_left == g->n_parts)
    g->record = *record;
  else
    merge(&g->record, record);
  g->n_left--;
  if (g->n_left == 0 && !g->refused)
    tell_ended(s, g);
  else if (record->reason != OCT_END_STOP && record->reason != OCT_END_LENGTH)
    cancel_parts(s, g); /* one that fails takes the others with it */
}

void
oct_requests_listen(oct_replica *replica, oct_listener *listener) {
  *listener = (oct_listener){.user = replica,
                             .tokens = on_tokens,
                             .ended = on_ended,
                             .prompt_logprobs = on_prompt_logprobs,
                             .mask = on_mask,
                             .pooled = on_pooled};
}

/* ---------------------------------------------------------------- what the front wants */

/* Tokens that the replica has to compute. */
static double
load_of(void *user, guint32 i) {
  const oct_service *s = user;
  oct_engine_stats stats;
  oct_engine_get_stats(s->replicas[i].engine, &stats);
  return stats.state != OCT_ENGINE_DEAD ? (double)oct_engine_load_tokens(s->replicas[i].engine)
                                        : INFINITY;
}

void
oct_requests_refuse(oct_service *s, oct_generation *g, oct_service_error status, const char *why) {
  if (g->sampling.guided)
    oct_guides_left(s->guides, g);
  gsize size = strlen(why) + 1;
  memcpy(oct_loop_note(s, OCT_NOTE_REFUSED, g, (guint32)status, 0, size), why, size);
}

static oct_service_error
refusal_code(const GError *why) {
  if (g_error_matches(why, OCT_ENGINE_ERROR, OCT_ENGINE_ERROR_BUSY))
    return OCT_SERVICE_ERROR_BUSY;
  if (g_error_matches(why, OCT_ENGINE_ERROR, OCT_ENGINE_ERROR_DOWN))
    return OCT_SERVICE_ERROR_DOWN;
  if (g_error_matches(why, OCT_ENGINE_ERROR, OCT_ENGINE_ERROR_TOO_LONG))
    return OCT_SERVICE_ERROR_TOO_LONG;
  return OCT_SERVICE_ERROR_INPUT;
}

static oct_request_params
request_of(const oct_service *s, oct_generation *g, guint32 part) {
  oct_request_params params = g->sampling;
  params.user = g;
  params.arrival_ns = s->now;
  if (g->timeout_ns > 0)
    params.deadline_ns = MAX(g->received_ns + g->timeout_ns - s->offset_ns, 1);
  params.prompt_tokens = g->prompt->len;
  params.prompt_ids = (const guint32 *)(const void *)g->prompt->data;
  if (g->n_parts == 1)
    return params;
  params.n = 1;
  if (params.seed != 0 && part > 0)
    params.seed = MAX(oct_mix64(params.seed + part), 1);
  return params;
}

/* To a client. Why is for the log: it may name files. */
#define NO_ENGINE "no engine serves"

static void
submit(oct_service *s, oct_generation *g) {
  const guint32 chosen = oct_router_least_loaded(s->n_replicas, 0, load_of, s);
  if (chosen == s->n_replicas) {
    oct_requests_refuse(s, g, OCT_SERVICE_ERROR_DOWN, NO_ENGINE);
    return;
  }
  oct_replica *replica = &s->replicas[chosen];
  g_autoptr(GError) why = NULL;
  g->replica = replica->number;
  g->n_parts = g->prompt->len == 1 ? g->n_choices : 1;
  g->n_left = g->n_parts;
  for (guint32 i = 0; i < g->n_parts && why == NULL; i++) {
    oct_request_params params = request_of(s, g, i);
    if (!oct_engine_submit(replica->engine, &params, &g->ids[i], &why))
      g->ids[i] = 0;
  }
  if (why != NULL) {
    g->refused = TRUE;
    cancel_parts(s, g);
    oct_service_error code = refusal_code(why);
    oct_requests_refuse(s, g, code, code == OCT_SERVICE_ERROR_DOWN ? NO_ENGINE : why->message);
    return;
  }
  oct_bulletin_entered(s->bulletin, replica->number, s->now + s->offset_ns);
  replica->dirty = TRUE;
}

/* The request that has the choice, and the choice's number there. 0: it has ended. */
static oct_request_id
request_with(const oct_generation *g, guint32 *choice) {
  if (g->n_parts <= 1)
    return g->ids[0];
  guint32 part = *choice;
  *choice = 0;
  return g->ids[part];
}

void
oct_requests_command(oct_service *s, const oct_command *command) {
  oct_generation *g = command->generation;
  oct_replica *replica = &s->replicas[g->replica];
  guint32 choice = command->choice;
  oct_request_id id;
  switch (command->kind) {
  case OCT_COMMAND_SUBMIT:
    submit(s, g);
    return; /* the reference is the engine's */
  case OCT_COMMAND_CANCEL:
    cancel_parts(s, g);
    break;
  case OCT_COMMAND_STOP:
    id = request_with(g, &choice);
    if (id != 0 && oct_engine_stop(replica->engine, id, choice, s->now))
      replica->dirty = TRUE;
    break;
  }
  oct_generation_unref(g);
}

void
oct_requests_mask(oct_service *s, const oct_guide_answer *answer) {
  oct_generation *g = answer->generation;
  oct_replica *replica = &s->replicas[g->replica];
  guint32 choice = answer->choice;
  oct_request_id id = request_with(g, &choice);
  if (answer->bits == NULL)
    cancel_parts(s, g); /* the front has been told why */
  else if (id != 0 && oct_engine_mask(replica->engine, id, choice, answer->n_output, answer->bits,
                                      answer->n_words, s->now))
    replica->dirty = TRUE;
}
