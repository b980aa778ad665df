/* Generations on the front thread: from submit() to ended(). internal.h has their diagram.
 *
 * Invariants
 * 1. ended() is called by conclude() only, once, from a dispatch; after it `closed` and `ended`
 * hold and nothing is called any more.
 * 2. A generation leaves the service's list when it is ended and done, whichever comes last, and
 *    with it goes the front's reference.
 * 3. Once SUBMITTED, it is done when its ENDED or REFUSED note has come, or when the engine thread
 *    has ended and its notes are read.
 */
#include <string.h>

#include "engine/base/assert.h"
#include "engine/base/rng.h"
#include "engine/serve/bulletin.h"
#include "engine/serve/guides.h"
#include "engine/serve/internal.h"
#include "engine/serve/measures.h"
#include "engine/serve/recorder.h"
#include "engine/serve/workers.h"

/* Texts up to this are encoded at once: it takes less than handing them over. */
#define INLINE_TEXT_BYTES 1024u

/* ---------------------------------------------------------------- memory */

oct_generation *
oct_generation_ref(oct_generation *g) {
  atomic_fetch_add(&g->references, 1);
  return g;
}

void
oct_generation_unref(oct_generation *g) {
  if (atomic_fetch_sub(&g->references, 1) != 1)
    return;
  oct_assert(g->guided == NULL);
  oct_text_close(g);
  oct_stop_set_free(g->stops);
  oct_prompt_free(g->text_prompt);
  g_array_unref(g->prompt);
  g_free(g->biases);
  g_free(g->constraint_text);
  g_free(g->request_id);
  g_clear_error(&g->error);
  g_clear_error(&g->encode_error);
  g_free(g);
}

static void
leave_list(oct_generation *g) {
  oct_service *s = g->service;
  if (g->previous != NULL)
    g->previous->next = g->next;
  else
    s->first = g->next;
  if (g->next != NULL)
    g->next->previous = g->previous;
  oct_generation_unref(g);
}

/* ---------------------------------------------------------------- ends */

static void
conclude(oct_generation *g) {
  oct_service *s = g->service;
  if (g->ended)
    return;
  g->closed = g->ended = TRUE;
  s->n_live--;
  g->end.error = g->error;
  g->end.prompt_tokens = g->prompt->len;
  g->end.ended_ns = oct_service_now(s);
  g->end.output_tokens = 0;
  for (guint32 c = 0; c < g->n_choices; c++)
    g->end.output_tokens += g->choices[c].n_out;
  oct_measures_ended(s->measures, g);
  if (s->recorder != NULL)
    oct_recorder_ended(s->recorder, g);
  if (s->config.log != NULL) {
    g_autofree char *line = oct_measures_line(g);
    s->config.log(s->config.user, line);
  }
  if (g->listener.ended != NULL)
    g->listener.ended(g->user, g, &g->end);
  oct_text_close(g);
  if (g->done)
    leave_list(g);
}

void
oct_front_done(oct_generation *g) {
  if (g->done)
    return;
  g->done = TRUE;
  g->service->n_active--;
  if (g->ended)
    leave_list(g);
}

void
oct_front_end_soon(oct_generation *g, GError *error) {
  if (g->error == NULL && !g->ended)
    g->error = g_steal_pointer(&error);
  g_clear_error(&error);
  if (g->stage == OCT_STAGE_SUBMITTED && !g->done && !g->closed)
    oct_front_command(g->service, OCT_COMMAND_CANCEL, 0, oct_generation_ref(g));
  g->closed = TRUE;
  if (g->ended)
    return;
  g_ptr_array_add(g->service->due, oct_generation_ref(g));
  oct_service_notify(g->service);
}

gboolean
oct_front_end_due(oct_service *s) {
  gboolean any = FALSE;
  for (guint i = 0; i < s->due->len; i++) { /* callbacks may add more */
    oct_generation *g = s->due->pdata[i];
    conclude(g);
    oct_generation_unref(g);
    any = TRUE;
  }
  g_ptr_array_set_size(s->due, 0);
  return any;
}

void
oct_front_end_all(oct_service *s, const char *why) {
  for (oct_generation *g = s->first; g != NULL; g = g->next)
    if (!g->closed)
      oct_front_end_soon(g, g_error_new_literal(OCT_SERVICE_ERROR, OCT_SERVICE_ERROR_DOWN, why));
}

void
oct_generation_cancel(oct_generation *g) {
  if (!g->closed)
    oct_front_end_soon(g, g_error_new_literal(OCT_SERVICE_ERROR, OCT_SERVICE_ERROR_CANCELLED,
                                              "the client cancelled it"));
}

void
oct_generation_forget(oct_generation *g) {
  g->listener = (oct_generation_listener){0};
  oct_generation_cancel(g);
}

const guint32 *
oct_generation_prompt(const oct_generation *g, guint32 *n) {
  *n = g->prompt->len;
  return (const guint32 *)(const void *)g->prompt->data;
}

/* ---------------------------------------------------------------- on the way in */

void
oct_front_command(oct_service *s, oct_command_kind kind, guint32 choice, oct_generation *g) {
  if (atomic_load(&s->engine_ended)) {
    oct_generation_unref(g);
    return;
  }
  oct_outbox_push(s->commands, &(oct_command){kind, choice, g});
  oct_bulletin_sent(s->bulletin, oct_service_now(s));
  if (s->threaded)
    oct_world_wake(s->config.world);
}

static void
to_engine(oct_generation *g) {
  oct_service *s = g->service;
  oct_text_open(g);
  g->stage = OCT_STAGE_SUBMITTED;
  oct_front_command(s, OCT_COMMAND_SUBMIT, 0, oct_generation_ref(g));
}

void
oct_front_compiled(oct_generation *g, GError *error) {
  oct_guides *guides = g->service->guides;
  if (error == NULL && !g->closed) {
    to_engine(g);
    return;
  }
  oct_guides_drop(guides, oct_generation_ref(g));
  if (!g->closed)
    oct_front_end_soon(g, g_steal_pointer(&error));
  g_clear_error(&error);
  oct_front_done(g);
}

/* The rest of the context where nobody said how much. What is made up has about imagined_tokens
 * then: the same number for the same prompt. */
static void
size_output(oct_generation *g) {
  guint32 context = g->service->config.engine.max_model_len;
  guint32 imagined = g->service->config.imagined_tokens;
  if (g->sampling.max_tokens == 0) {
    g->sampling.max_tokens = context > g->prompt->len ? context - g->prompt->len : 1;
    guint64 hash = imagined;
    for (guint i = 0; i < g->prompt->len && imagined > 0; i++)
      hash = oct_mix64(hash ^ g_array_index(g->prompt, guint32, i));
    if (imagined > 0 && !g->sampling.ignore_eos)
      g->sampling.oracle_tokens = 1 + (guint32)(hash % (2 * imagined));
  }
  if (g->sampling.pooling == OCT_POOLING_NONE)
    return;
  g->sampling.max_tokens = 1;
  g->text = FALSE;
}

void
oct_front_encoded(oct_generation *g) {
  if (g->encode_error != NULL && !g->closed)
    oct_front_end_soon(g, g_steal_pointer(&g->encode_error));
  if (g->closed) {
    oct_front_done(g);
    return;
  }
  size_output(g);
  if (g->constraint == OCT_CONSTRAINT_NONE) {
    to_engine(g);
    return;
  }
  g->stage = OCT_STAGE_COMPILING;
  oct_guides_compile(g->service->guides, oct_generation_ref(g));
}

/* On a text thread, or at once. */
static void
encode(void *user) {
  oct_generation *g = user;
  const oct_tokenizer *t = g->service->config.tokenizer;
  guint n;
  const guint32 *ids = oct_tokenizer_before(t, &n);
  if (g->plain)
    g_array_append_vals(g->prompt, ids, n);
  if (!oct_prompt_encode(g->text_prompt, t, g->prompt, &g->encode_error))
    return;
  ids = oct_tokenizer_after(t, &n);
  if (g->plain)
    g_array_append_vals(g->prompt, ids, n);
}

static void
encoded(void *user) {
  oct_generation *g = user;
  g_clear_pointer(&g->text_prompt, oct_prompt_free);
  oct_front_encoded(g);
  oct_generation_unref(g);
}

/* ---------------------------------------------------------------- submit */

static gboolean
refuse(GError **error, oct_service_error code, const char *why) {
  g_set_error_literal(error, OCT_SERVICE_ERROR, code, why);
  return FALSE;
}

static gboolean
check(const oct_service *s, const oct_generation_params *p, GError **error) {
  gboolean has_text = s->config.tokenizer != NULL;
  const oct_request_params *q = &p->sampling;
  if (s->phase >= OCT_SERVICE_DRAINING || atomic_load(&s->engine_ended))
    return refuse(error, OCT_SERVICE_ERROR_DOWN, "the server is shutting down");
  if (s->n_active >= s->config.generations_max) {
    g_set_error(error, OCT_SERVICE_ERROR, OCT_SERVICE_ERROR_BUSY,
                "%u generations are running or waiting: at most %u", s->n_active,
                s->config.generations_max);
    return FALSE;
  }
  if (!has_text && (p->prompt != NULL || p->stops != NULL))
    return refuse(error, OCT_SERVICE_ERROR_INPUT,
                  "the model is served without a tokenizer: prompts are token ids, and there are "
                  "no stop strings");
  if (!has_text && p->constraint != OCT_CONSTRAINT_NONE)
    return refuse(error, OCT_SERVICE_ERROR_INPUT,
                  "the model is served without a tokenizer: nothing can be constrained");
  if (q->n < 1 || q->n > OCT_SERVICE_CHOICES_MAX) {
    g_set_error(error, OCT_SERVICE_ERROR, OCT_SERVICE_ERROR_INPUT, "n %u is not between 1 and %u",
                q->n, OCT_SERVICE_CHOICES_MAX);
    return FALSE;
  }
  if (p->no_text && p->stops != NULL)
    return refuse(error, OCT_SERVICE_ERROR_INPUT, "stop strings need text, which is off");
  if (q->n_logit_bias > OCT_BIASES_MAX) {
    g_set_error(error, OCT_SERVICE_ERROR, OCT_SERVICE_ERROR_INPUT,
                "%u entries of logit_bias: at most %u", q->n_logit_bias, OCT_BIASES_MAX);
    return FALSE;
  }
  return TRUE;
}

/* The request's own stop tokens, then the tokenizer's ends. */
static gboolean
take_stop_tokens(oct_generation *g, GError **error) {
  oct_request_params *p = &g->sampling;
  const GArray *ends = g->service->ends;
  guint32 room = G_N_ELEMENTS(p->stop_tokens) - (p->ignore_eos ? 0 : ends->len);
  if (p->n_stop_tokens > room) {
    g_set_error(error, OCT_SERVICE_ERROR, OCT_SERVICE_ERROR_INPUT,
                "%u stop tokens: at most %u beside those of the model", p->n_stop_tokens, room);
    return FALSE;
  }
  g->n_own_stops = p->n_stop_tokens;
  for (guint i = 0; i < ends->len && !p->ignore_eos; i++)
    p->stop_tokens[p->n_stop_tokens++] = g_array_index(ends, guint32, i);
  return TRUE;
}

static void
take_sampling(oct_generation *g, const oct_generation_params *p) {
  g->sampling = p->sampling;
  oct_request_params *q = &g->sampling;
  g->n_choices = q->n;
  if (q->n_logit_bias > 0)
    g->biases = g_memdup2(q->logit_bias, q->n_logit_bias * sizeof *g->biases);
  q->logit_bias = g->biases;
  q->page_ids = NULL;
  q->n_page_ids = 0;
  q->deadline_ns = 0;
  /* 0 is the engine's word for none. */
  q->seed = p->seeded ? MAX(oct_mix64(q->seed ^ 0x73656564u), 1) : 0;
  q->guided = p->constraint != OCT_CONSTRAINT_NONE;
  q->n_logprobs = p->n_logprobs < 0 ? 0 : (guint8)MIN(MAX(p->n_logprobs, 1), G_MAXUINT8);
}

static oct_generation *
make(oct_service *s, const oct_generation_params *p, const oct_generation_listener *listener,
     void *user) {
  oct_generation *g = g_new0(oct_generation, 1);
  atomic_init(&g->references, 1);
  g->service = s;
  take_sampling(g, p);
  g->prompt = g_array_new(FALSE, FALSE, sizeof(guint32));
  if (p->prompt_ids != NULL)
    g_array_append_vals(g->prompt, p->prompt_ids, p->n_prompt_ids);
  else
    g->text_prompt = p->prompt;
  g->plain = p->plain;
  g->listener = *listener;
  g->user = user;
  g->timeout_ns = p->timeout_ns;
  g->received_ns = oct_service_now(s);
  g->constraint = p->constraint;
  g->constraint_text = g_strdup(p->constraint_text);
  g->stops = p->stops;
  g->include_stop = p->include_stop;
  g->keep_special = p->keep_special;
  g->markers = p->markers;
  g->n_markers = p->n_markers;
  g->text = s->config.tokenizer != NULL && !p->no_text;
  g->n_logprobs = p->n_logprobs;
  g->request_id = g_strdup(p->request_id);
  g->reason = OCT_END_CANCELLED;
  g->end = (oct_generation_end){.received_ns = g->received_ns,
                                .queued_ns = -1,
                                .admitted_ns = -1,
                                .first_token_ns = -1,
                                .last_token_ns = -1};
  return g;
}

static void
enter(oct_service *s, oct_generation *g) {
  g->next = s->first;
  if (s->first != NULL)
    s->first->previous = g;
  s->first = g;
  s->n_active++;
  s->n_live++;
  g->row = s->n_submitted++;
}

static gboolean
check_and_make(oct_service *s, const oct_generation_params *p,
               const oct_generation_listener *listener, void *user, oct_generation **out,
               GError **error) {
  if (!check(s, p, error)) {
    oct_prompt_free(p->prompt);
    oct_stop_set_free(p->stops);
    return FALSE;
  }
  *out = make(s, p, listener, user);
  if (p->prompt_ids != NULL)
    oct_prompt_free(p->prompt);
  if (take_stop_tokens(*out, error))
    return TRUE;
  g_clear_pointer(out, oct_generation_unref);
  return FALSE;
}

oct_generation *
oct_service_submit(oct_service *s, const oct_generation_params *p,
                   const oct_generation_listener *listener, void *user, GError **error) {
  oct_generation *g = NULL;
  if (!check_and_make(s, p, listener, user, &g, error)) {
    oct_measures_refused(s->measures);
    return NULL;
  }
  gboolean later = g->text_prompt != NULL && g->text_prompt->text->len > INLINE_TEXT_BYTES;
  if (later && !oct_workers_post(s->workers, encode, encoded, oct_generation_ref(g), error)) {
    oct_measures_refused(s->measures);
    oct_generation_unref(g);
    oct_generation_unref(g);
    return NULL;
  }
  enter(s, g);
  if (later)
    return g;
  if (g->text_prompt != NULL)
    encode(g);
  encoded(oct_generation_ref(g));
  return g;
}

/* ---------------------------------------------------------------- on the way out */

static GError *
error_of(oct_end_reason reason) {
  switch (reason) {
  case OCT_END_STOP:
  case OCT_END_LENGTH:
    return NULL;
  case OCT_END_CANCELLED: /* not by its client: that has closed it */
    return g_error_new_literal(OCT_SERVICE_ERROR, OCT_SERVICE_ERROR_DOWN,
                               "the server is shutting down");
  case OCT_END_TIMED_OUT:
    return g_error_new_literal(OCT_SERVICE_ERROR, OCT_SERVICE_ERROR_TIMED_OUT,
                               "its deadline has passed");
  case OCT_END_FAILED:
  case OCT_END_COUNT:
    break;
  }
  return g_error_new_literal(OCT_SERVICE_ERROR, OCT_SERVICE_ERROR_FAILED,
                             "the engine could not finish it");
}

static void
engine_ended(oct_generation *g, const oct_request_record *record) {
  /* The engine's time is that of its last event, which may be a little earlier. */
  g->end.queued_ns = MAX(record->arrival_ns, g->received_ns);
  g->end.admitted_ns = record->admitted_ns < 0 ? -1 : MAX(record->admitted_ns, g->end.queued_ns);
  g->end.first_token_ns = record->first_token_ns;
  g->end.last_token_ns = record->last_token_ns;
  g->end.cached_tokens = record->cached_tokens;
  g->end.preemptions = record->preemptions;
  g->end.draft_tokens = record->draft_tokens;
  g->end.accepted_tokens = record->accepted_tokens;
  if (!g->closed) {
    g->reason = record->reason;
    g->error = error_of(record->reason);
    oct_finish reason = record->reason == OCT_END_LENGTH ? OCT_FINISH_LENGTH : OCT_FINISH_STOP;
    for (guint32 c = 0; c < g->n_choices && g->error == NULL; c++)
      oct_text_finish(g, c, reason);
  }
  conclude(g);
}

void
oct_front_note(oct_service *s, const oct_note *note) {
  oct_generation *g = note->generation;
  const void *payload = note + 1;
  if (g != NULL)
    g->measured_at = note->replica;
  switch ((oct_note_kind)note->kind) {
  case OCT_NOTE_TOKENS:
    if (!g->closed)
      oct_text_tokens(g, note);
    break;
  case OCT_NOTE_PROMPT_LOGPROBS:
    if (!g->closed && g->listener.prompt_logprobs != NULL)
      g->listener.prompt_logprobs(g->user, g, note->choice, payload, note->n);
    break;
  case OCT_NOTE_POOLED:
    if (!g->closed && g->listener.pooled != NULL)
      g->listener.pooled(g->user, g, payload, note->n);
    break;
  case OCT_NOTE_STEP:
    oct_measures_step(s->measures, note->replica, note->n);
    break;
  case OCT_NOTE_ENDED:
    /* The engine cancels what no mask fits, and why waits beside its note. */
    if (g->sampling.guided && !g->closed)
      oct_guides_dispatch(s->guides);
    engine_ended(g, payload);
    oct_front_done(g);
    oct_generation_unref(g);
    break;
  case OCT_NOTE_REFUSED:
    if (note->choice == OCT_SERVICE_ERROR_BUSY && !g->ended)
      oct_measures_refused(s->measures);
    if (g->error == NULL)
      g->error = g_error_new_literal(OCT_SERVICE_ERROR, (gint)note->choice, (const char *)payload);
    conclude(g);
    oct_front_done(g);
    oct_generation_unref(g);
    break;
  }
}
