/* Tokens of a choice to its deltas: bytes to characters, characters up to a stop string.
 *
 * Which token ends a choice is the engine's decision (stop tokens, lengths); the same rule is
 * applied here so that the text ends in the same delta, and what the engine says later changes
 * nothing. Stop strings are found here, and the engine is told; tokens that it had under way by
 * then are dropped. What a client gets does not depend on how tokens were grouped on their way.
 */
#include <string.h>

#include "engine/base/assert.h"
#include "engine/serve/internal.h"
#include "engine/serve/measures.h"

void
oct_text_open(oct_generation *g) {
  const oct_service *s = g->service;
  guint32 context = s->config.engine.max_model_len;
  g->max_out = MIN(g->sampling.max_tokens, context - MIN(g->prompt->len, context));
  for (guint32 c = 0; c < g->n_choices; c++) {
    oct_choice *choice = &g->choices[c];
    choice->last_ns = -1;
    if (s->recorder != NULL)
      choice->ids = g_array_new(FALSE, FALSE, sizeof(guint32));
    if (!g->text)
      continue;
    choice->detokenizer = oct_detokenizer_new(s->config.tokenizer, !g->keep_special, FALSE);
    oct_detokenizer_keep(choice->detokenizer, g->markers, g->n_markers);
    oct_detokenizer_after(choice->detokenizer, (const guint32 *)(const void *)g->prompt->data,
                          g->prompt->len);
  }
}

void
oct_text_close(oct_generation *g) {
  for (guint32 c = 0; c < g->n_choices; c++) {
    oct_choice *choice = &g->choices[c];
    g_clear_pointer(&choice->detokenizer, oct_detokenizer_free);
    oct_stop_clear(&choice->matcher);
    g_clear_pointer(&choice->ids, g_array_unref);
  }
}

/* ---------------------------------------------------------------- out */

static void
emit(oct_generation *g, guint32 c, const guint32 *ids, guint32 n, const oct_logprob *logprobs,
     guint32 each) {
  GString *text = g->service->text;
  if (g->listener.delta == NULL || (n == 0 && text->len == 0))
    return;
  oct_generation_delta delta = {.choice = c,
                                .text = text->str,
                                .size = text->len,
                                .ids = ids,
                                .n_ids = n,
                                .logprobs = logprobs,
                                .logprobs_each = each};
  g->listener.delta(g->user, g, &delta);
}

static void
tell_finished(oct_generation *g, guint32 c, oct_finish reason, int stop_string,
              guint32 stop_token) {
  oct_choice *choice = &g->choices[c];
  choice->finished = TRUE;
  g->n_finished++;
  if (g->listener.finished == NULL || g->closed)
    return;
  oct_generation_finish finish = {.choice = c,
                                  .reason = reason,
                                  .stop_string = stop_string,
                                  .stop_token = stop_token,
                                  .output_tokens = choice->n_out};
  g->listener.finished(g->user, g, &finish);
}

/* ---------------------------------------------------------------- in */

/* The rest of the text once no token follows; the index of a stop string that it completes, or -1.
 */
static int
flush_text(oct_generation *g, oct_choice *choice) {
  oct_service *s = g->service;
  int hit = -1;
  if (choice->detokenizer == NULL)
    return hit;
  g_string_truncate(s->piece, 0);
  oct_detokenizer_finish(choice->detokenizer, s->piece);
  if (g->stops == NULL) {
    g_string_append_len(s->text, s->piece->str, (gssize)s->piece->len);
    return hit;
  }
  hit = oct_stop_push(g->stops, &choice->matcher, s->piece->str, s->piece->len,
                      choice->n_out >= g->sampling.min_tokens, g->include_stop, s->text);
  if (hit < 0)
    oct_stop_finish(&choice->matcher, s->text);
  return hit;
}

/* Appends what the token completes; the index of the stop string that it completes, or -1. */
static int
push_text(oct_generation *g, oct_choice *choice, guint32 id) {
  oct_service *s = g->service;
  if (choice->detokenizer == NULL)
    return -1;
  if (g->stops == NULL) {
    oct_detokenizer_push(choice->detokenizer, id, s->text);
    return -1;
  }
  g_string_truncate(s->piece, 0);
  oct_detokenizer_push(choice->detokenizer, id, s->piece);
  return oct_stop_push(g->stops, &choice->matcher, s->piece->str, s->piece->len,
                       choice->n_out >= g->sampling.min_tokens, g->include_stop, s->text);
}

static gboolean
is_stop_token(const oct_generation *g, guint32 n_out, guint32 id) {
  const oct_request_params *p = &g->sampling;
  const oct_model_spec *spec = g->service->config.engine.instance.spec;
  if (n_out < p->min_tokens)
    return FALSE;
  for (guint32 i = 0; i < p->n_stop_tokens; i++)
    if (p->stop_tokens[i] == id)
      return TRUE;
  for (guint32 i = 0; i < spec->n_eos_tokens && !p->ignore_eos; i++)
    if (spec->eos_tokens[i] == id)
      return TRUE;
  return FALSE;
}

/* The stop token as the request named it, else OCT_NO_TOKEN. */
static guint32
own_stop(const oct_generation *g, guint32 id) {
  for (guint32 i = 0; i < g->n_own_stops; i++)
    if (g->sampling.stop_tokens[i] == id)
      return id;
  return OCT_NO_TOKEN;
}

typedef struct oct_verdict {
  gboolean over;
  oct_finish reason;
  int stop_string;
  guint32 stop_token;
} oct_verdict;

static oct_verdict
take_token(oct_generation *g, oct_choice *choice, guint32 id) {
  oct_verdict v = {.reason = OCT_FINISH_STOP, .stop_string = -1, .stop_token = OCT_NO_TOKEN};
  choice->n_out++;
  if (choice->ids != NULL)
    g_array_append_val(choice->ids, id);
  gboolean stops = is_stop_token(g, choice->n_out, id);
  if (!stops || g->include_stop)
    v.stop_string = push_text(g, choice, id);
  v.over = v.stop_string >= 0 || stops || choice->n_out >= g->max_out;
  if (!v.over || v.stop_string >= 0)
    return v;
  v.stop_string = flush_text(g, choice);
  if (v.stop_string >= 0)
    return v;
  if (stops)
    v.stop_token = own_stop(g, id);
  else
    v.reason = OCT_FINISH_LENGTH;
  return v;
}

/* A stop string ends the choice before the engine knows. */
static void
tell_engine(oct_generation *g, guint32 c) {
  oct_front_command(g->service, OCT_COMMAND_STOP, c, oct_generation_ref(g));
}

void
oct_text_tokens(oct_generation *g, const oct_note *note) {
  const guint32 *ids = (const guint32 *)(const void *)(note + 1);
  gsize id_bytes = ((gsize)note->n * sizeof *ids + 7) / 8 * 8;
  const oct_logprob *logprobs =
      note->each == 0 ? NULL
                      : (const oct_logprob *)(const void *)((const guint8 *)(note + 1) + id_bytes);
  oct_choice *choice = &g->choices[note->choice];
  oct_assert(note->choice < g->n_choices);
  if (choice->finished)
    return;
  g_string_truncate(g->service->text, 0);
  oct_verdict v = {.over = FALSE};
  guint32 n = 0;
  while (n < note->n && !v.over)
    v = take_token(g, choice, ids[n++]);
  oct_measures_tokens(g->service->measures, note->replica, choice, n, note->time_ns);
  gboolean own_stop_string = v.over && v.stop_string >= 0;
  emit(g, note->choice, ids, n, logprobs, note->each);
  if (v.over && !choice->finished)
    tell_finished(g, note->choice, v.reason, v.stop_string, v.stop_token);
  if (own_stop_string && !g->closed)
    tell_engine(g, note->choice);
}

void
oct_text_finish(oct_generation *g, guint32 c, oct_finish reason) {
  if (g->choices[c].finished)
    return;
  g_string_truncate(g->service->text, 0);
  int hit = flush_text(g, &g->choices[c]);
  emit(g, c, NULL, 0, NULL, 0);
  if (!g->choices[c].finished)
    tell_finished(g, c, hit >= 0 ? OCT_FINISH_STOP : reason, hit, OCT_NO_TOKEN);
}
