#include "tests/engine/api/fake-service.h"

#include "engine/base/assert.h"
#include "engine/text/detokenizer.h"

typedef struct choice {
  GArray *ids;
  guint at;
  gboolean length, finished;
  oct_detokenizer *detokenizer;
} choice;

struct oct_generation {
  oct_service *service;
  oct_generation_listener listener;
  void *user;
  oct_generation_params params;
  GArray *prompt;
  choice choices[OCT_SERVICE_CHOICES_MAX];
  gint64 received_ns, first_ns, last_ns;
  guint32 output;
  guint deltas, fail_after;
  int fail_code;
  gboolean asked; /* prompt logprobs have been told */
};

typedef struct offload {
  void (*work)(void *user);
  void (*done)(void *user);
  void *user;
} offload;

GQuark
oct_service_error_quark(void) {
  return g_quark_from_static_string("oct-service-error");
}

guint
oct_service_error_status(const GError *error) {
  static const guint statuses[] = {400, 429, 503, 500, 504, 499};
  return error->domain == OCT_SERVICE_ERROR ? statuses[error->code] : 400;
}

oct_service *
fake_service_new(const oct_tokenizer *tokenizer, guint32 context) {
  oct_service *s = g_new0(oct_service, 1);
  s->tokenizer = tokenizer;
  s->context = context;
  s->live = g_ptr_array_new();
  s->prompt = g_string_new(NULL);
  s->stop_tokens = g_array_new(FALSE, FALSE, sizeof(guint32));
  s->refuse_code = s->fail_code = -1;
  s->status = (oct_service_status){.health = OCT_HEALTH_OK, .ready = TRUE};
  return s;
}

static void
generation_free(oct_generation *g) {
  g_ptr_array_remove(g->service->live, g);
  for (guint i = 0; i < g->params.sampling.n; i++) {
    g_array_unref(g->choices[i].ids);
    oct_detokenizer_free(g->choices[i].detokenizer);
  }
  g_array_unref(g->prompt);
  g_free(g);
}

void
fake_service_free(oct_service *s) {
  g_assert_cmpuint(s->live->len, ==, 0);
  g_ptr_array_unref(s->live);
  g_queue_clear_full(&s->answers, g_free);
  g_queue_clear_full(&s->offloaded, g_free);
  g_string_free(s->prompt, TRUE);
  g_array_unref(s->stop_tokens);
  g_free(s->constraint);
  g_free(s);
}

void
fake_service_answer(oct_service *s, const char *text) {
  g_queue_push_tail(&s->answers, g_strdup(text));
}

static void
begin_choice(oct_generation *g, choice *c) {
  oct_service *s = g->service;
  g_autofree char *text = g_queue_pop_head(&s->answers);
  const char *said = text != NULL ? text : "Hello, world.";
  c->ids = g_array_new(FALSE, FALSE, sizeof(guint32));
  g_assert_true(oct_tokenizer_encode_marked(s->tokenizer, said, NULL, strlen(said), c->ids, NULL));
  guint32 most = g->params.sampling.max_tokens;
  if (most > 0 && c->ids->len > most) {
    g_array_set_size(c->ids, most);
    c->length = TRUE;
  }
  c->detokenizer = oct_detokenizer_new(s->tokenizer, !g->params.keep_special, FALSE);
  oct_detokenizer_keep(c->detokenizer, g->params.markers, g->params.n_markers);
}

oct_generation *
oct_service_submit(oct_service *s, const oct_generation_params *params,
                   const oct_generation_listener *listener, void *user, GError **error) {
  g_autoptr(oct_prompt) prompt = params->prompt;
  oct_stop_set_free(params->stops); /* both are taken */
  s->n_submitted++;
  s->params = *params;
  s->params.prompt = NULL;
  s->params.stops = NULL;
  g_free(s->constraint);
  s->constraint = g_strdup(params->constraint_text);
  g_array_set_size(s->stop_tokens, 0);
  g_array_append_vals(s->stop_tokens, params->sampling.stop_tokens, params->sampling.n_stop_tokens);
  s->logit_bias_token =
      params->sampling.n_logit_bias > 0 ? params->sampling.logit_bias[0].token : OCT_NO_TOKEN;
  if (s->refuse_code >= 0) {
    g_set_error(error, OCT_SERVICE_ERROR, s->refuse_code, "refused by the test");
    s->refuse_code = -1;
    return NULL;
  }
  oct_generation *g = g_new0(oct_generation, 1);
  g->service = s;
  g->listener = *listener;
  g->user = user;
  g->params = s->params;
  g->prompt = g_array_new(FALSE, FALSE, sizeof(guint32));
  if (prompt != NULL)
    g_assert_true(oct_prompt_encode(prompt, s->tokenizer, g->prompt, NULL));
  else
    g_array_append_vals(g->prompt, params->prompt_ids, params->n_prompt_ids);
  g_string_truncate(s->prompt, 0);
  oct_detokenize(s->tokenizer, (const guint32 *)(const void *)g->prompt->data, g->prompt->len,
                 FALSE, s->prompt);
  for (guint i = 0; i < params->sampling.n; i++)
    begin_choice(g, &g->choices[i]);
  g->received_ns = s->now_ns;
  g->first_ns = -1;
  g->fail_code = s->fail_code;
  g->fail_after = s->fail_after;
  s->fail_code = -1;
  g_ptr_array_add(s->live, g);
  return g;
}

void
oct_generation_forget(oct_generation *g) {
  g->service->n_forgotten++;
  generation_free(g);
}

const guint32 *
oct_generation_prompt(const oct_generation *g, guint32 *n) {
  *n = g->prompt->len;
  return (const guint32 *)(const void *)g->prompt->data;
}

/* The token's own logprob and those of the ids above it. */
static void
fill_row(guint32 id, guint32 n, oct_logprob *row) {
  for (guint32 i = 0; i <= n; i++)
    row[i] = (oct_logprob){id + i, -FAKE_LOGPROB_STEP * (float)(i + 1)};
}

static gboolean
ended(oct_generation *g, int code) {
  g_autoptr(GError) error =
      code < 0 ? NULL : g_error_new_literal(OCT_SERVICE_ERROR, code, "failed by the test");
  oct_generation_end end = {.error = error,
                            .prompt_tokens = g->prompt->len,
                            .cached_tokens = g->prompt->len / 2,
                            .output_tokens = g->output,
                            .received_ns = g->received_ns,
                            .queued_ns = g->received_ns + 1000,
                            .admitted_ns = g->received_ns + 2000,
                            .first_token_ns = g->first_ns,
                            .last_token_ns = g->last_ns,
                            .ended_ns = g->last_ns};
  g->listener.ended(g->user, g, &end);
  generation_free(g);
  return TRUE;
}

static void
tell_prompt(oct_generation *g) {
  guint32 n = g->params.sampling.n_prompt_logprobs;
  g->asked = TRUE;
  if (n == 0 || g->prompt->len < 2)
    return;
  g_autofree oct_logprob *rows = g_new0(oct_logprob, (gsize)(g->prompt->len - 1) * (1 + n));
  for (guint32 i = 1; i < g->prompt->len; i++)
    fill_row(g_array_index(g->prompt, guint32, i), n, rows + (gsize)(i - 1) * (1 + n));
  g->listener.prompt_logprobs(g->user, g, 1, rows, g->prompt->len - 1);
}

static void
say_tokens(oct_generation *g, guint32 index) {
  choice *c = &g->choices[index];
  g_autoptr(GString) text = g_string_new(NULL);
  const guint32 *ids = &g_array_index(c->ids, guint32, c->at);
  guint32 n = MIN(MAX(g->service->tokens_of_delta, 1), c->ids->len - c->at);
  guint32 each = 1 + (guint32)MAX(g->params.n_logprobs, 1);
  g_autofree oct_logprob *rows = g_new0(oct_logprob, (gsize)n * each);
  for (guint32 i = 0; i < n; i++) {
    fill_row(ids[i], each - 1, rows + (gsize)i * each);
    oct_detokenizer_push(c->detokenizer, ids[i], text);
  }
  c->at += n;
  if (c->at == c->ids->len)
    oct_detokenizer_finish(c->detokenizer, text);
  const oct_generation_delta delta = {.choice = index,
                                      .text = text->str,
                                      .size = text->len,
                                      .ids = ids,
                                      .n_ids = n,
                                      .logprobs = g->params.n_logprobs >= 0 ? rows : NULL,
                                      .logprobs_each = each};
  g->output += n;
  g->service->now_ns += 1000000;
  g->last_ns = g->service->now_ns;
  if (g->first_ns < 0)
    g->first_ns = g->service->now_ns;
  g->listener.delta(g->user, g, &delta);
}

/* TRUE when the generation has ended. */
static gboolean
generation_step(oct_generation *g) {
  gboolean all = TRUE;
  if (g->params.sampling.pooling != 0 && g->fail_code < 0) {
    const float values[] = {3, 0, -4, 0};
    g->listener.pooled(g->user, g, values, G_N_ELEMENTS(values));
    return ended(g, -1);
  }
  if (g->fail_code >= 0 && g->deltas++ == g->fail_after)
    return ended(g, g->fail_code);
  if (!g->asked)
    tell_prompt(g);
  for (guint32 i = 0; i < g->params.sampling.n; i++) {
    choice *c = &g->choices[i];
    if (c->at < c->ids->len)
      say_tokens(g, i);
    if (!c->finished && c->at == c->ids->len) {
      const oct_generation_finish finish = {.choice = i,
                                            .reason =
                                                c->length ? OCT_FINISH_LENGTH : OCT_FINISH_STOP,
                                            .stop_string = -1,
                                            .stop_token = OCT_NO_TOKEN,
                                            .output_tokens = c->ids->len};
      c->finished = TRUE;
      g->listener.finished(g->user, g, &finish);
    }
    all = all && c->finished;
  }
  return all && ended(g, -1);
}

gboolean
fake_service_step(oct_service *s) {
  offload *o = g_queue_pop_head(&s->offloaded);
  if (o != NULL) {
    o->work(o->user);
    o->done(o->user);
    g_free(o);
    return TRUE;
  }
  gboolean any = s->live->len > 0;
  if (any && s->hold > 0) {
    s->hold--;
    s->now_ns += 1000000000;
    return TRUE;
  }
  for (guint i = 0; i < s->live->len;) {
    oct_generation *g = g_ptr_array_index(s->live, i);
    generation_step(g);
    if (i < s->live->len && g_ptr_array_index(s->live, i) == g)
      i++;
  }
  return any;
}

gboolean
oct_service_offload(oct_service *s, void (*work)(void *), void (*done)(void *), void *user,
                    GError **error) {
  (void)error;
  offload *o = g_new(offload, 1);
  *o = (offload){work, done, user};
  g_queue_push_tail(&s->offloaded, o);
  return TRUE;
}

void
oct_generation_params_default(oct_generation_params *params) {
  *params = (oct_generation_params){.n_logprobs = -1};
  oct_request_params_default(&params->sampling);
  params->sampling.max_tokens = 0;
}

const char *
oct_health_name(oct_health health) {
  static const char *const names[] = {"opening", "ok", "busy", "stalled", "dead"};
  return names[health];
}

void
oct_service_get_status(const oct_service *s, oct_service_status *status) {
  *status = s->status;
}

void
oct_service_write_metrics(oct_service *s, GString *out) {
  (void)s;
  g_string_append(out, "vllm:num_requests_running 0\n");
}

const oct_tokenizer *
oct_service_tokenizer(const oct_service *s) {
  return s->tokenizer;
}

guint32
oct_service_max_model_len(const oct_service *s) {
  return s->context;
}
