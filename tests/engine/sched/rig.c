#include "tests/engine/sched/rig.h"

#include <string.h>

#include "engine/base/rng.h"

void
rig_init(rig *r, oct_world *world) {
  *r = (rig){.world = world, .check = TRUE, .events_max = 200000};
  r->requests = g_ptr_array_new();
  r->answers = g_array_new(FALSE, FALSE, sizeof(rig_answer));
}

static void
fail(rig *r, const char *what) {
  if (r->failure == NULL)
    r->failure = g_strdup(what);
}

/* ---------------------------------------------------------------- what the engine tells */

static guint64
mask_word(const rig_request *q, guint32 choice, guint32 n_output, guint32 word) {
  return oct_mix64(oct_mix64(q->params.seed + ((guint64)choice << 32 | n_output)) + word);
}

gboolean
rig_allows(const rig_request *q, guint32 choice, guint32 n_output, guint32 token) {
  return (mask_word(q, choice, n_output, token / 64) >> (token % 64) & 1) != 0;
}

static void
on_tokens(void *user, oct_request_id id, void *request_user, guint32 choice, const guint32 *ids,
          const oct_logprob *logprobs, guint32 n, oct_time now) {
  rig *r = user;
  rig_request *q = request_user;
  if (q->n_ends > 0 || (q->id != 0 && q->id != id) || now < r->now)
    fail(r, "tokens came after the request had ended, or for another");
  if ((logprobs != NULL) != (q->params.n_logprobs > 0) || q->params.pooling != OCT_POOLING_NONE)
    fail(r, "tokens came with logprobs that nobody wanted, or without, or for a vector");
  if (q->params.n_prompt_logprobs > 0 && choice == 0 && q->n_scored != q->params.prompt_tokens)
    fail(r, "tokens came before the logprobs of the prompt");
  if (ids == NULL)
    return;
  for (guint32 i = 0; i < n; i++) {
    if (logprobs != NULL && logprobs[(gsize)i * (1u + q->params.n_logprobs)].token != ids[i])
      fail(r, "a logprob is of another token");
    if (q->params.guided && !rig_allows(q, choice, q->tokens[choice]->len + i, ids[i]))
      fail(r, "a token came that its mask does not allow");
  }
  if (logprobs != NULL)
    g_array_append_vals(q->logprobs[choice], logprobs, n * (1u + q->params.n_logprobs));
  g_array_append_vals(q->tokens[choice], ids, n);
}

static void
on_prompt_logprobs(void *user, oct_request_id id, void *request_user, guint32 first,
                   const oct_logprob *logprobs, guint32 n, oct_time now) {
  rig *r = user;
  rig_request *q = request_user;
  if (q->n_ends > 0 || (q->id != 0 && q->id != id) || now < r->now || first != q->n_scored ||
      n == 0 || first + n > q->params.prompt_tokens)
    fail(r, "logprobs of the prompt came out of order");
  for (guint32 i = 0; i < n && r->failure == NULL; i++)
    if (logprobs[(gsize)i * (1u + q->params.n_prompt_logprobs)].token !=
        q->params.prompt_ids[first + i])
      fail(r, "a logprob is not of the prompt's token");
  g_array_append_vals(q->prompt_logprobs, logprobs, n * (1u + q->params.n_prompt_logprobs));
  q->n_scored += n;
}

static void
on_pooled(void *user, oct_request_id id, void *request_user, const float *values, guint32 n,
          oct_time now) {
  rig *r = user;
  rig_request *q = request_user;
  if (q->n_ends > 0 || (q->id != 0 && q->id != id) || now < r->now || q->pooled->len > 0 ||
      q->params.pooling == OCT_POOLING_NONE)
    fail(r, "a vector came twice, or for another");
  g_array_append_vals(q->pooled, values, n);
}

static void
answer(rig *r, const rig_answer *a) {
  oct_engine *e = r->engines[a->request->engine];
  guint32 words = (r->configs[a->request->engine].instance.spec->vocab + 63) / 64;
  g_autofree guint64 *bits = g_new(guint64, words);
  for (guint32 w = 0; w < words; w++)
    bits[w] = mask_word(a->request, a->choice, a->n_output, w);
  (void)oct_engine_mask(e, a->request->id, a->choice, a->n_output, bits, words, r->now);
}

static void
on_mask(void *user, oct_request_id id, void *request_user, guint32 choice, guint32 n_output,
        oct_time now) {
  rig *r = user;
  rig_request *q = request_user;
  if (q->n_ends > 0 || (q->id != 0 && q->id != id) || now < r->now || !q->params.guided ||
      (r->configs[q->engine].carry_ids && n_output != q->tokens[choice]->len))
    fail(r, "a mask is wanted that nobody can know, or for another");
  q->n_asked++;
  gint64 takes = r->answer_ns != NULL ? r->answer_ns(r, q, choice, n_output) : 0;
  rig_answer a = {q, choice, n_output, now + takes};
  if (takes == 0)
    answer(r, &a);
  else if (takes > 0)
    g_array_append_val(r->answers, a);
}

/* Gives the masks that are due; returns when the next is. */
static oct_time
give_answers(rig *r) {
  oct_time next = OCT_TIME_NEVER;
  for (guint i = 0; i < r->answers->len;) {
    rig_answer a = g_array_index(r->answers, rig_answer, i);
    if (a.due_ns > r->now) {
      next = MIN(next, a.due_ns);
      i++;
      continue;
    }
    g_array_remove_index(r->answers, i);
    answer(r, &a);
  }
  return next;
}

static void
on_ended(void *user, const oct_request_record *record) {
  rig *r = user;
  rig_request *q = record->user;
  if (q->n_ends++ > 0)
    fail(r, "a request ended twice");
  q->record = *record;
  if (r->on_ended != NULL)
    r->on_ended(r, q, r->user);
}

void
rig_add_engine(rig *r, const oct_engine_config *config) {
  r->configs[r->n_engines++] = *config;
}

static gboolean
open_engines(rig *r) {
  for (guint e = 0; e < r->n_engines; e++) {
    oct_engine_config *c = &r->configs[e];
    c->listener =
        (oct_listener){.user = r, .ended = on_ended, .mask = on_mask, .pooled = on_pooled};
    if (c->carry_ids) {
      c->listener.tokens = on_tokens;
      c->listener.prompt_logprobs = on_prompt_logprobs;
    }
    g_autoptr(GError) error = NULL;
    r->engines[e] = oct_engine_new(r->world, c, &error);
    if (r->engines[e] == NULL) {
      fail(r, error->message);
      return FALSE;
    }
  }
  return TRUE;
}

static void
close_engines(rig *r) {
  if (r->failure == NULL && r->on_finish != NULL)
    r->on_finish(r, r->user);
  /* The last first: one that others pull from outlives them. */
  for (guint e = r->n_engines; e-- > 0;) {
    if (r->engines[e] == NULL)
      continue;
    oct_engine_get_stats(r->engines[e], &r->stats[e]);
    /* An engine that submits again at once after a breach is refused, and closes its instance
     * before the FATAL event that says what it did. */
    const char *why = oct_engine_down_reason(r->engines[e]);
    if (!r->fatal && g_str_has_prefix(why, "the world is lost"))
      fail(r, why);
    g_clear_pointer(&r->engines[e], oct_engine_free);
  }
}

rig_request *
rig_add(rig *r, guint engine, const oct_request_params *params) {
  rig_request *q = g_new0(rig_request, 1);
  q->params = *params;
  q->engine = engine;
  q->params.user = q;
  q->params.prompt_ids = g_memdup2(params->prompt_ids, params->prompt_tokens * sizeof(guint32));
  q->params.page_ids = g_memdup2(params->page_ids, params->n_page_ids * sizeof(guint64));
  q->params.logit_bias =
      g_memdup2(params->logit_bias, params->n_logit_bias * sizeof(oct_token_bias));
  for (int c = 0; c < 8; c++) {
    q->tokens[c] = g_array_new(FALSE, FALSE, sizeof(guint32));
    q->logprobs[c] = g_array_new(FALSE, FALSE, sizeof(oct_logprob));
  }
  q->prompt_logprobs = g_array_new(FALSE, FALSE, sizeof(oct_logprob));
  q->pooled = g_array_new(FALSE, FALSE, sizeof(float));
  q->n_scored = 1;
  g_ptr_array_add(r->requests, q);
  return q;
}

rig_request *
rig_request_at(const rig *r, guint i) {
  return g_ptr_array_index(r->requests, i);
}

void
rig_submit(rig *r, rig_request *q) {
  g_autoptr(GError) error = NULL;
  if (r->route != NULL)
    q->engine = r->route(r, q);
  if (!oct_engine_submit(r->engines[q->engine], &q->params, &q->id, &error)) {
    q->refused = TRUE;
    q->refusal = g_strdup(error->message);
  }
}

/* Hands in what has arrived and cancels what is due; returns the next such time. */
static oct_time
inputs(rig *r) {
  oct_time next = OCT_TIME_NEVER;
  for (guint i = 0; i < r->requests->len; i++) {
    rig_request *q = rig_request_at(r, i);
    if (q->id == 0 && !q->refused) {
      if (q->params.arrival_ns > r->now) {
        next = MIN(next, q->params.arrival_ns);
        continue;
      }
      rig_submit(r, q);
    }
    if (q->cancel_ns > 0 && q->n_ends == 0 && q->id != 0) {
      if (q->cancel_ns > r->now)
        next = MIN(next, q->cancel_ns);
      else if (!oct_engine_cancel(r->engines[q->engine], q->id, r->now))
        fail(r, "a live request could not be cancelled");
    }
  }
  return next;
}

static gboolean
all_ended(const rig *r) {
  for (guint i = 0; i < r->requests->len; i++) {
    const rig_request *q = rig_request_at(r, i);
    if (!q->refused && q->n_ends == 0)
      return FALSE;
  }
  return TRUE;
}

static void
check(rig *r) {
  if (r->on_turn != NULL)
    r->on_turn(r, r->user);
  for (guint e = 0; r->check && e < r->n_engines; e++) {
    g_autoptr(GError) error = NULL;
    if (!oct_engine_check(r->engines[e], &error))
      fail(r, error->message);
  }
}

static int
loop(oct_world *world, void *arg) {
  rig *r = arg;
  gboolean open = open_engines(r);
  while (open && r->failure == NULL && (r->stop_at == 0 || r->n_events < r->stop_at)) {
    oct_time next_input = MIN(inputs(r), give_answers(r)), wake = next_input;
    for (guint e = 0; e < r->n_engines; e++)
      wake = MIN(wake,
                 oct_engine_turn(r->engines[e], r->now, r->n_engines == 1 ? next_input : r->now));
    for (guint i = 0; i < r->answers->len; i++)
      wake = MIN(wake, g_array_index(r->answers, rig_answer, i).due_ns);
    check(r);
    oct_event event;
    /* A real clock is never at rest. */
    if ((world->ops->clock == OCT_CLOCK_REAL && all_ended(r)) ||
        !oct_world_next(world, wake, &event))
      break;
    r->now = event.time_ns;
    if (r->n_events++ > r->events_max)
      fail(r, "too many events: the engine makes no progress");
    /* What mock finds that an engine must not do. */
    if (event.kind == OCT_EVENT_FAULT && event.fault->severity == OCT_SEVERITY_FATAL && !r->fatal)
      fail(r, event.fault->message);
    if (r->on_event != NULL && !r->on_event(r, &event, r->user))
      continue;
    for (guint e = 0; e < r->n_engines && event.instance != 0; e++)
      if (oct_engine_owns(r->engines[e], event.instance)) {
        oct_engine_event(r->engines[e], &event);
        break;
      }
    check(r);
  }
  if (r->failure == NULL && r->stop_at == 0 && !all_ended(r))
    fail(r, "the world is at rest but requests have not ended");
  close_engines(r);
  return 0;
}

void
rig_run(rig *r) {
  (void)oct_world_run(r->world, loop, r);
}

void
rig_clear(rig *r) {
  for (guint i = 0; i < r->requests->len; i++) {
    rig_request *q = rig_request_at(r, i);
    g_free((void *)q->params.prompt_ids);
    g_free((void *)q->params.page_ids);
    g_free((void *)q->params.logit_bias);
    g_array_unref(q->pooled);
    g_free(q->refusal);
    for (int c = 0; c < 8; c++) {
      g_array_unref(q->tokens[c]);
      g_array_unref(q->logprobs[c]);
    }
    g_array_unref(q->prompt_logprobs);
    g_free(q);
  }
  g_ptr_array_unref(r->requests);
  g_array_unref(r->answers);
  g_free(r->failure);
  oct_world_free(r->world);
}

oct_model_spec *
rig_spec(const char *kind) {
  const char *name = "smollm2-135m";
  if (strcmp(kind, "hybrid") == 0)
    name = "kimi-linear-48b-a3b";
  else if (strcmp(kind, "window") == 0)
    name = "gpt-oss-120b";
  g_autoptr(GError) error = NULL;
  oct_model_spec *spec = oct_model_spec_load(name, NULL, &error);
  g_assert_no_error(error);
  return spec;
}

void
rig_config(oct_engine_config *config, const oct_model_spec *spec, guint32 pages, guint32 host) {
  static const guint16 devices[64] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12,
                                      13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25,
                                      26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38};
  oct_engine_config_default(config);
  config->instance.label = "test";
  config->instance.spec = spec;
  config->instance.devices = devices;
  config->max_model_len = 4096;
  config->carry_ids = TRUE;
  config->instance.check_tags = TRUE;
  oct_layer_group groups[OCT_MODEL_GROUPS_MAX];
  config->instance.memory.n_groups = oct_model_groups(spec, config->instance.kv_dtype, groups);
  for (guint32 g = 0; g < config->instance.memory.n_groups; g++)
    config->instance.memory.groups[g] = (oct_pool_plan){.n_device = pages, .n_host = host};
  config->seed = 1;
}

guint32 *
rig_prompt(const oct_model_spec *spec, guint64 seed, guint32 n) {
  guint32 *ids = g_new(guint32, n);
  for (guint32 i = 0; i < n; i++)
    ids[i] = (guint32)(oct_mix64(seed * 1000003 + i) % (spec->vocab - 1000));
  return ids;
}
