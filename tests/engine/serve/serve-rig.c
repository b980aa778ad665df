#include "tests/engine/serve/serve-rig.h"

#include <string.h>

#include "backends/mock/mock.h"
#include "engine/text/tokenizer-bytes.h"
#include "tests/engine/sched/rig.h"

/* ---------------------------------------------------------------- what a client sees */

/* GLib takes U+0000, which is a character like another, for an end. */
static gboolean
is_utf8(const char *text, gsize size) {
  const char *at = text, *end = text + size;
  while (at < end && !g_utf8_validate_len(at, (gsize)(end - at), &at) && *at == '\0')
    at++;
  return at == end || g_utf8_validate_len(at, (gsize)(end - at), NULL);
}

static void
on_delta(void *user, oct_generation *g, const oct_generation_delta *delta) {
  serve_ask *a = user;
  serve_choice *c = &a->choices[delta->choice];
  g_assert_true(a->generation == NULL || a->generation == g);
  g_assert_cmpuint(a->n_ends, ==, 0);
  g_assert_cmpuint(delta->choice, <, a->params.sampling.n);
  g_assert_false(c->finished);
  g_assert_true(is_utf8(delta->text, delta->size));
  g_string_append_len(c->text, delta->text, (gssize)delta->size);
  g_array_append_vals(c->ids, delta->ids, delta->n_ids);
  if (delta->logprobs != NULL)
    g_array_append_vals(c->logprobs, delta->logprobs, delta->n_ids * delta->logprobs_each);
  c->n_deltas++;
  if (++a->n_deltas == a->cancel_at_delta) {
    if (a->forgets) {
      oct_generation_forget(g);
      a->generation = NULL;
      a->rig->n_running--;
    } else
      oct_generation_cancel(g);
  }
}

static void
on_finished(void *user, oct_generation *g, const oct_generation_finish *finish) {
  serve_ask *a = user;
  serve_choice *c = &a->choices[finish->choice];
  (void)g;
  g_assert_cmpuint(a->n_ends, ==, 0);
  g_assert_false(c->finished);
  g_assert_cmpuint(finish->output_tokens, ==, c->ids->len);
  c->finished = TRUE;
  c->finish = *finish;
}

static void
on_prompt_logprobs(void *user, oct_generation *g, guint32 first, const oct_logprob *logprobs,
                   guint32 n) {
  serve_ask *a = user;
  (void)g;
  guint each = 1u + a->params.sampling.n_prompt_logprobs;
  g_assert_cmpuint(a->n_deltas, ==, 0);
  g_assert_cmpuint(first, ==, 1 + a->prompt_logprobs->len / each);
  g_array_append_vals(a->prompt_logprobs, logprobs, n * each);
}

static void
on_pooled(void *user, oct_generation *g, const float *values, guint32 n) {
  serve_ask *a = user;
  (void)g;
  g_assert_cmpuint(a->pooled->len, ==, 0);
  g_array_append_vals(a->pooled, values, n);
}

static void
on_ended(void *user, oct_generation *g, const oct_generation_end *end) {
  serve_ask *a = user;
  g_assert_true(a->generation == NULL || a->generation == g);
  g_assert_cmpuint(a->n_ends, ==, 0);
  a->n_ends++;
  guint32 n;
  const guint32 *ids = oct_generation_prompt(g, &n);
  g_array_append_vals(a->prompt, ids, n);
  a->end = *end;
  a->error = end->error != NULL ? g_error_copy(end->error) : NULL;
  for (guint c = 0; c < a->params.sampling.n && end->error == NULL &&
                    a->params.sampling.pooling == OCT_POOLING_NONE;
       c++)
    g_assert_true(a->choices[c].finished);
  a->generation = NULL;
  a->ended_ns = end->ended_ns;
  a->rig->n_running--;
}

static const oct_generation_listener listener = {.delta = on_delta,
                                                 .finished = on_finished,
                                                 .prompt_logprobs = on_prompt_logprobs,
                                                 .pooled = on_pooled,
                                                 .ended = on_ended};

void
serve_submit(serve_ask *a) {
  guint n_stops = 0;
  while (n_stops < G_N_ELEMENTS(a->stops) && a->stops[n_stops] != NULL)
    n_stops++;
  oct_generation_params params = a->params;
  if (n_stops > 0) {
    params.stops = oct_stop_set_new(a->stops, n_stops, &a->error);
    g_assert_no_error(a->error);
  }
  if (a->text != NULL) {
    params.prompt = oct_prompt_new();
    params.plain = TRUE;
    oct_prompt_outside(params.prompt, a->text);
  }
  a->generation = oct_service_submit(a->rig->service, &params, &listener, a, &a->error);
  a->refused = a->generation == NULL;
  g_assert_true(a->refused == (a->error != NULL));
  a->rig->n_running += !a->refused;
}

/* ---------------------------------------------------------------- the script */

#define LINGER_NS (20 * MS)

static void
leave(serve_ask *a) {
  if (a->forgets) {
    oct_generation_forget(g_steal_pointer(&a->generation));
    a->rig->n_running--;
  } else
    oct_generation_cancel(a->generation);
}

static gboolean
front(void *user, oct_time now, oct_time *next) {
  serve_rig *r = user;
  gboolean left = FALSE;
  *next = OCT_TIME_NEVER;
  for (guint i = 0; i < r->asks->len; i++) {
    serve_ask *a = r->asks->pdata[i];
    if (a->at_ns > now) {
      *next = MIN(*next, a->at_ns);
      left = TRUE;
      continue;
    }
    if (a->generation == NULL && a->n_ends == 0 && !a->refused && a->at_ns >= 0) {
      serve_submit(a);
      a->at_ns = -1;
    }
    if (a->generation == NULL || a->cancel_ns == 0)
      continue;
    if (a->cancel_ns <= now) {
      leave(a);
      a->cancel_ns = 0;
    } else
      *next = MIN(*next, a->cancel_ns);
  }
  if (oct_service_active(r->service) == 0)
    for (guint i = 0; i < r->asks->len; i++) {
      serve_ask *a = r->asks->pdata[i];
      a->gone_ns = a->gone_ns < 0 && a->at_ns < 0 ? now : a->gone_ns;
    }
  if (r->each != NULL && !r->each(r, now, next))
    return FALSE;
  if (left || r->n_running > 0 || oct_service_active(r->service) > 0) {
    r->over_ns = -1;
    return TRUE;
  }
  /* Steps under way end, and with them what they hold. */
  r->over_ns = r->over_ns < 0 ? now + LINGER_NS : r->over_ns;
  *next = MIN(*next, r->over_ns);
  return now < r->over_ns;
}

void
serve_rig_one(serve_rig *r, serve_ask **out, const char *text) {
  serve_rig_init(r, oct_mock_world_new(NULL, NULL));
  *out = serve_add(r, 0, text);
}

static void
on_log(void *user, const char *line) {
  g_ptr_array_add(((serve_rig *)user)->log, g_strdup(line));
}

void
serve_rig_init(serve_rig *r, oct_world *world) {
  *r = (serve_rig){.world = world};
  r->tokenizer = oct_tokenizer_new_bytes();
  r->spec = rig_spec("llama");
  r->spec->vocab = oct_tokenizer_n_tokens(r->tokenizer);
  r->spec->n_eos_tokens = 1;
  r->spec->eos_tokens[0] = oct_tokenizer_role(r->tokenizer, OCT_ROLE_EOS);
  oct_engine_config engine;
  rig_config(&engine, r->spec, 512, 0);
  r->config = (oct_service_config){.world = world,
                                   .engine = engine,
                                   .devices = engine.instance.devices,
                                   .tokenizer = r->tokenizer,
                                   .model_name = "test",
                                   .seed = 7,
                                   .log = on_log,
                                   .user = r};
  r->asks = g_ptr_array_new();
  r->log = g_ptr_array_new_with_free_func(g_free);
}

serve_ask *
serve_add(serve_rig *r, oct_time at_ns, const char *text) {
  serve_ask *a = g_new0(serve_ask, 1);
  a->rig = r;
  a->at_ns = at_ns;
  a->gone_ns = -1;
  a->text = g_strdup(text);
  oct_generation_params_default(&a->params);
  a->params.sampling.max_tokens = 16;
  a->prompt = g_array_new(FALSE, FALSE, sizeof(guint32));
  a->prompt_logprobs = g_array_new(FALSE, FALSE, sizeof(oct_logprob));
  a->pooled = g_array_new(FALSE, FALSE, sizeof(float));
  for (guint c = 0; c < G_N_ELEMENTS(a->choices); c++) {
    a->choices[c].text = g_string_new(NULL);
    a->choices[c].ids = g_array_new(FALSE, FALSE, sizeof(guint32));
    a->choices[c].logprobs = g_array_new(FALSE, FALSE, sizeof(oct_logprob));
  }
  g_ptr_array_add(r->asks, a);
  return a;
}

void
serve_run(serve_rig *r) {
  r->service = oct_service_new(&r->config, &r->error);
  g_assert_no_error(r->error);
  (void)!oct_service_run(r->service, front, r, &r->error);
}

void
serve_rig_clear(serve_rig *r) {
  oct_service_free(r->service);
  for (guint i = 0; i < r->asks->len; i++) {
    serve_ask *a = r->asks->pdata[i];
    for (guint c = 0; c < G_N_ELEMENTS(a->choices); c++) {
      g_string_free(a->choices[c].text, TRUE);
      g_array_unref(a->choices[c].ids);
      g_array_unref(a->choices[c].logprobs);
    }
    g_array_unref(a->prompt);
    g_array_unref(a->prompt_logprobs);
    g_array_unref(a->pooled);
    g_clear_error(&a->error);
    g_free(a->text);
    g_free(a);
  }
  g_ptr_array_unref(r->asks);
  g_ptr_array_unref(r->log);
  oct_world_free(r->world);
  oct_tokenizer_free(r->tokenizer);
  oct_model_spec_free(r->spec);
  g_clear_error(&r->error);
}
