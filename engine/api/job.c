/* A request that generates, from its plan to its last byte.
 *
 *   oct_job_start --> submitted --deltas--> finished choices --ends--> answered, freed
 *                         \-- the client leaves, or anything fails: the rest is forgotten, freed
 *
 * A stream's head is written with its first frame, so that what is refused late (a prompt that is
 * too long, a schema that cannot be compiled) still has its own status. After that an error is a
 * frame. A stream that says nothing for long, before its first token too, is kept alive.
 */
#include "engine/api/internal.h"

#include <string.h>

#include "engine/base/assert.h"
#include "engine/text/detokenizer.h"
#include "engine/text/error.h"

/* --- life cycle ------------------------------------------------------------------------------- */

static void
free_call(gpointer data) {
  oct_call *call = data;
  g_free(call->id);
  g_free(call->name);
  if (call->arguments != NULL)
    g_string_free(call->arguments, TRUE);
  g_free(call);
}

static void
free_string(GString *string) {
  if (string != NULL)
    g_string_free(string, TRUE);
}

static void
free_item(gpointer data) {
  oct_item *item = data;
  g_string_free(item->text, TRUE);
  g_free(item);
}

static void
free_choice(oct_choice *c) {
  oct_parser_free(c->parser);
  g_ptr_array_unref(c->items);
  g_ptr_array_unref(c->calls);
  GString *strings[] = {c->content,        c->reasoning, c->logprobs, c->tokens,
                        c->token_logprobs, c->top,       c->offsets,  c->ids};
  for (guint i = 0; i < G_N_ELEMENTS(strings); i++)
    free_string(strings[i]);
  g_clear_pointer(&c->vector, g_array_unref);
}

static void
job_free(oct_job *job) {
  oct_api *api = job->api;
  for (guint i = 0; i < job->plan.prompts->len; i++)
    if (job->runs[i].generation != NULL)
      oct_generation_forget(job->runs[i].generation);
  g_free(job->runs);
  for (guint i = 0; i < job->n_choices; i++)
    free_choice(&job->choices[i]);
  g_free(job->choices);
  for (guint i = 0; i < job->plan.prompts->len; i++) {
    free_string(job->prompt_logprobs[i]);
    free_string(job->prompt_ids[i]);
  }
  g_free(job->prompt_logprobs);
  g_free(job->prompt_ids);
  g_free(job->n_prompt);
  if (job->plan.sampling.stream)
    g_queue_unlink(&api->streams, &job->link);
  oct_plan_clear(&job->plan);
  g_string_free(job->out, TRUE);
  g_string_free(job->prefix, TRUE);
  g_free(job->id);
  g_free(job);
  api->generating--;
}

/* --- writing ---------------------------------------------------------------------------------- */

static void
begin_stream(oct_job *job) {
  static const oct_http_field fields[] = {{"Cache-Control", "no-cache"},
                                          {"X-Accel-Buffering", "no"}};
  const oct_http_reply reply = {.status = 200,
                                .content_type = "text/event-stream; charset=utf-8",
                                .fields = fields,
                                .n_fields = G_N_ELEMENTS(fields)};
  oct_http_stream_begin(job->x, &reply);
  job->begun = TRUE;
  job->shape->begin(job);
}

/* Hands job->out to the server. */
static void
write_frames(oct_job *job) {
  if (job->out->len == 0)
    return;
  /* FALSE is followed by gone(). */
  (void)!oct_http_stream_write(job->x, job->out->str, job->out->len);
  g_string_truncate(job->out, 0);
  job->wrote_ns = job->api->config.now_ns(job->api->config.clock);
}

static void
fail(oct_job *job, const oct_api_fault *fault) {
  if (!job->begun)
    oct_api_respond_fault(job->api, job->x, fault, job->shape->anthropic);
  else {
    job->shape->fail(job, fault);
    write_frames(job);
    oct_api_log(job->api, job->x, fault->status);
    oct_http_stream_end(job->x);
  }
  job_free(job);
}

static void
succeed(oct_job *job) {
  if (!job->plan.sampling.stream) {
    g_auto(oct_api_fault) fault = {.status = 0};
    if (job->shape->check != NULL && !job->shape->check(job, &fault)) {
      fail(job, &fault);
      return;
    }
    job->shape->whole(job);
    oct_api_respond_json(job->api, job->x, 200, job->out);
  } else {
    if (!job->begun)
      begin_stream(job);
    job->shape->end(job);
    write_frames(job);
    oct_api_log(job->api, job->x, 200);
    oct_http_stream_end(job->x);
  }
  job_free(job);
}

void
oct_job_keep_alive(oct_job *job) {
  if (!job->begun)
    begin_stream(job);
  g_string_append(job->out, ": keep-alive\n\n");
  write_frames(job);
}

void
oct_job_gone(oct_job *job) {
  oct_api_log(job->api, job->x, 499);
  job_free(job);
}

/* --- what the model wrote --------------------------------------------------------------------- */

static void
keep_event(oct_choice *c, const oct_parse_event *e) {
  switch (e->kind) {
  case OCT_PARSE_CONTENT:
    g_string_append_len(c->content, e->text, (gssize)e->size);
    break;
  case OCT_PARSE_REASONING:
    g_string_append_len(c->reasoning, e->text, (gssize)e->size);
    break;
  case OCT_PARSE_ARGUMENTS: {
    oct_call *call = g_ptr_array_index(c->calls, c->calls->len - 1);
    g_string_append_len(call->arguments, e->text, (gssize)e->size);
    break;
  }
  case OCT_PARSE_CALL:
  case OCT_PARSE_CALL_END:
  default:
    break;
  }
}

static void
add_call(oct_choice *c, const oct_parse_event *e) {
  oct_call *call = g_new0(oct_call, 1);
  call->name = g_strdup(e->name);
  call->id = e->id != NULL ? g_strdup(e->id) : oct_job_id(c->job, "call_", c->index, e->call);
  if (!c->job->plan.sampling.stream)
    call->arguments = g_string_new(NULL);
  g_ptr_array_add(c->calls, call);
}

/* Ends the last item. */
static void
end_item(oct_choice *c) {
  oct_item *last = c->items->len > 0 ? g_ptr_array_index(c->items, c->items->len - 1) : NULL;
  if (last == NULL || last->ended)
    return;
  last->ended = TRUE;
  if (c->job->plan.sampling.stream)
    c->job->shape->item_end(c, last);
}

static void
take_item(oct_choice *c, const oct_parse_event *e) {
  const oct_shape *shape = c->job->shape;
  gboolean stream = c->job->plan.sampling.stream;
  oct_item *last = c->items->len > 0 ? g_ptr_array_index(c->items, c->items->len - 1) : NULL;
  gboolean of_call = e->kind == OCT_PARSE_ARGUMENTS || e->kind == OCT_PARSE_CALL_END;
  oct_parse_kind kind = of_call ? OCT_PARSE_CALL : e->kind;
  if (e->kind == OCT_PARSE_CALL || last == NULL || last->ended || last->kind != kind) {
    end_item(c);
    last = g_new0(oct_item, 1);
    *last = (oct_item){.kind = kind, .text = g_string_new(NULL), .index = c->items->len};
    if (kind == OCT_PARSE_CALL)
      last->call = g_ptr_array_index(c->calls, c->calls->len - 1);
    g_ptr_array_add(c->items, last);
    if (stream)
      shape->item_begin(c, last);
  }
  if (e->size > 0) {
    g_string_append_len(last->text, e->text, (gssize)e->size);
    if (stream)
      shape->item_text(c, last, e->text, e->size);
  }
  if (e->kind == OCT_PARSE_CALL_END)
    end_item(c);
}

static void
on_event(gpointer data, const oct_parse_event *e) {
  oct_choice *c = data;
  const oct_plan *plan = &c->job->plan;
  gboolean of_call = e->kind != OCT_PARSE_CONTENT && e->kind != OCT_PARSE_REASONING;
  c->in_reasoning = e->kind == OCT_PARSE_REASONING;
  if (of_call && plan->one_call && e->call > 0)
    return;
  if (e->kind == OCT_PARSE_REASONING && plan->no_reasoning)
    return;
  if (e->kind == OCT_PARSE_CALL)
    add_call(c, e);
  if (c->job->shape->items)
    take_item(c, e);
  else if (plan->sampling.stream)
    c->job->shape->event(c, e);
  else
    keep_event(c, e);
}

static void
take_text(oct_choice *c, const char *text, gsize size) {
  if (size == 0)
    return;
  if (c->parser != NULL) {
    oct_parser_push(c->parser, text, size);
    return;
  }
  const oct_parse_event e = {.kind = OCT_PARSE_CONTENT, .text = text, .size = size};
  on_event(c, &e);
}

static void
take_ids(oct_choice *c, const oct_generation_delta *delta) {
  for (guint i = 0; c->ids != NULL && i < delta->n_ids; i++)
    g_string_append_printf(c->ids, "%s%u", c->ids->len > 0 ? "," : "", delta->ids[i]);
}

/* A prompt's tokens are there from its first callback on. */
static void
know_prompt(const oct_run *run, const oct_generation *generation) {
  oct_job *job = run->job;
  guint at = run->prompt;
  if (job->n_prompt[at] > 0)
    return;
  const guint32 *ids = oct_generation_prompt(generation, &job->n_prompt[at]);
  job->prompt_tokens += job->n_prompt[at];
  if (!job->plan.sampling.return_token_ids)
    return;
  GString *out = job->prompt_ids[at] = g_string_new(NULL);
  for (guint32 i = 0; i < job->n_prompt[at]; i++)
    g_string_append_printf(out, "%s%u", i > 0 ? "," : "", ids[i]);
}

/* Before a choice's first text: the prompt, where it is echoed. */
static oct_choice *
start_choice(const oct_run *run, const oct_generation *generation, guint32 choice) {
  oct_job *job = run->job;
  oct_choice *c = &job->choices[run->prompt * (guint)job->plan.sampling.n + choice];
  know_prompt(run, generation);
  if (job->plan.sampling.stream && !job->begun)
    begin_stream(job);
  if (c->started)
    return c;
  c->started = TRUE;
  guint32 n;
  const guint32 *ids = oct_generation_prompt(generation, &n);
  const oct_tokenizer *tokenizer = oct_service_tokenizer(job->api->config.service);
  if (!job->plan.echo || n == 0)
    return c;
  oct_choice_add_echo(c, ids[0]);
  g_autoptr(GString) text = g_string_new(NULL);
  if (tokenizer != NULL)
    oct_detokenize(tokenizer, ids, n, job->plan.sampling.skip_special_tokens, text);
  take_text(c, text->str, text->len);
  return c;
}

/* --- the service's callbacks ------------------------------------------------------------------ */

static void
on_delta(void *user, oct_generation *generation, const oct_generation_delta *delta) {
  const oct_run *run = user;
  oct_job *job = run->job;
  oct_choice *c = start_choice(run, generation, delta->choice);
  if (job->plan.no_output)
    return;
  c->output_tokens += delta->n_ids;
  take_ids(c, delta);
  if (delta->logprobs != NULL)
    oct_choice_add_logprobs(c, delta);
  /* Without a tokenizer there is no text that ids could travel with. */
  if (delta->size == 0 && c->ids != NULL && c->ids->len > 0 && job->plan.sampling.stream &&
      oct_service_tokenizer(job->api->config.service) == NULL)
    on_event(c, &(oct_parse_event){.kind = OCT_PARSE_CONTENT, .text = ""});
  take_text(c, delta->text, delta->size);
  if (c->in_reasoning)
    c->reasoning_tokens += delta->n_ids;
  if (job->begun)
    write_frames(job);
}

static void
on_finished(void *user, oct_generation *generation, const oct_generation_finish *finish) {
  const oct_run *run = user;
  oct_job *job = run->job;
  oct_choice *c = start_choice(run, generation, finish->choice);
  if (c->parser != NULL)
    oct_parser_finish(c->parser);
  c->finished = TRUE;
  c->finish = *finish;
  if (job->shape->items)
    end_item(c);
  if (!job->begun)
    return;
  job->shape->finish(c);
  write_frames(job);
}

static void
on_prompt_logprobs(void *user, oct_generation *generation, guint32 first,
                   const oct_logprob *logprobs, guint32 n) {
  const oct_run *run = user;
  guint32 n_prompt;
  const guint32 *ids = oct_generation_prompt(generation, &n_prompt);
  oct_assert(first + n <= n_prompt);
  oct_job_add_prompt_logprobs(run->job, run->prompt, first, logprobs, n, ids);
}

static void
on_pooled(void *user, oct_generation *generation, const float *values, guint32 n) {
  const oct_run *run = user;
  (void)generation;
  GArray *vector = g_array_sized_new(FALSE, FALSE, sizeof(float), n);
  g_array_append_vals(vector, values, n);
  run->job->choices[run->prompt].vector = vector;
}

static void
on_ended(void *user, oct_generation *generation, const oct_generation_end *end) {
  oct_run *run = user;
  oct_job *job = run->job;
  (void)generation;
  run->generation = NULL;
  if (end->error != NULL) {
    g_auto(oct_api_fault) fault = {.status = 0};
    /* Before the first token the text layer has refused the constraint, or a prompt. */
    const char *param = job->plan.sampling.constraint_param;
    gboolean of_text = end->error->domain == OCT_TEXT_ERROR && end->first_token_ns < 0;
    oct_api_refuse_error(&fault, of_text ? param : NULL, g_error_copy(end->error));
    fail(job, &fault);
    return;
  }
  if (job->n_prompt[run->prompt] == 0)
    job->prompt_tokens += end->prompt_tokens;
  job->cached_tokens += end->cached_tokens;
  oct_generation_end *all = &job->times;
  if (job->n_live == job->plan.prompts->len)
    *all = *end;
  all->admitted_ns = MIN(all->admitted_ns, end->admitted_ns);
  all->first_token_ns = MIN(all->first_token_ns, end->first_token_ns);
  all->last_token_ns = MAX(all->last_token_ns, end->last_token_ns);
  all->ended_ns = MAX(all->ended_ns, end->ended_ns);
  if (--job->n_live == 0)
    succeed(job);
}

/* --- start ------------------------------------------------------------------------------------ */

static void
init_choice(oct_job *job, guint index) {
  oct_choice *c = &job->choices[index];
  const oct_plan *plan = &job->plan;
  c->job = job;
  c->index = index;
  c->prompt = index / (guint)plan->sampling.n;
  c->calls = g_ptr_array_new_with_free_func(free_call);
  c->items = g_ptr_array_new_with_free_func(free_item);
  c->in_reasoning = plan->begins_in_thinking;
  if (!plan->sampling.stream) {
    c->content = g_string_new(NULL);
    c->reasoning = g_string_new(NULL);
  }
  if (plan->sampling.return_token_ids)
    c->ids = g_string_new(NULL);
  if (plan->sampling.logprobs >= 0) {
    GString **strings[] = {&c->logprobs, &c->tokens, &c->token_logprobs, &c->top, &c->offsets};
    for (guint i = 0; i < G_N_ELEMENTS(strings); i++)
      *strings[i] = g_string_new(NULL);
  }
  if (!plan->parsed)
    return;
  const oct_parse_options options = {.family = plan->family,
                                     .tools = plan->tools,
                                     .begins_in_thinking = plan->begins_in_thinking,
                                     .sink = on_event,
                                     .data = c};
  c->parser = oct_parser_new(&options);
}

static oct_job *
job_new(oct_api *api, oct_http_exchange *x, const oct_shape *shape, oct_plan *plan) {
  oct_job *job = g_new0(oct_job, 1);
  *job = (oct_job){.api = api, .x = x, .shape = shape, .plan = *plan};
  *plan = (oct_plan){.root = NULL};
  job->id = g_strconcat(shape->id_prefix, oct_http_exchange_id(x), NULL);
  job->number = ++api->n_jobs;
  job->created_s = api->config.unix_s(api->config.clock);
  job->wrote_ns = api->config.now_ns(api->config.clock);
  job->out = g_string_new(NULL);
  job->prefix = g_string_new(NULL);
  job->n_live = job->plan.prompts->len;
  job->n_choices = job->n_live * (guint)job->plan.sampling.n;
  job->choices = g_new0(oct_choice, job->n_choices);
  for (guint i = 0; i < job->n_choices; i++)
    init_choice(job, i);
  job->runs = g_new0(oct_run, job->n_live);
  for (guint i = 0; i < job->n_live; i++)
    job->runs[i] = (oct_run){.job = job, .prompt = i};
  job->prompt_logprobs = g_new0(GString *, job->n_live);
  job->prompt_ids = g_new0(GString *, job->n_live);
  job->n_prompt = g_new0(guint32, job->n_live);
  if (api->config.always_usage)
    job->plan.sampling.include_usage = TRUE;
  if (api->config.always_metrics)
    job->plan.metrics = TRUE;
  job->link.data = job;
  if (job->plan.sampling.stream) {
    if (g_queue_is_empty(&api->streams))
      api->look_ns = job->wrote_ns + OCT_API_LOOK_NS;
    g_queue_push_tail_link(&api->streams, &job->link);
  }
  api->generating++;
  return job;
}

static void
fill_sampling(const oct_plan *plan, oct_generation_params *params) {
  const oct_sampling *s = &plan->sampling;
  oct_request_params *r = &params->sampling;
  r->n = (guint32)s->n;
  r->max_tokens = s->max_tokens > 0 ? (guint32)s->max_tokens : 0;
  r->min_tokens = (guint32)s->min_tokens;
  r->ignore_eos = s->ignore_eos;
  r->priority = (gint32)s->priority;
  r->temperature = (float)s->temperature;
  r->top_p = MAX((float)s->top_p, OCT_TOP_P_MIN); /* 0: the likeliest alone */
  r->min_p = (float)s->min_p;
  r->top_k = s->top_k > 0 ? (gint32)s->top_k : -1;
  r->repetition_penalty = (float)s->repetition_penalty;
  r->presence_penalty = (float)s->presence_penalty;
  r->frequency_penalty = (float)s->frequency_penalty;
  r->n_stop_tokens = s->stop_tokens->len;
  for (guint i = 0; i < s->stop_tokens->len; i++)
    r->stop_tokens[i] = g_array_index(s->stop_tokens, guint32, i);
  r->n_logit_bias = s->biases->len;
  r->logit_bias = (const oct_token_bias *)(const void *)s->biases->data;
  gint64 prompt_logprobs = s->prompt_logprobs;
  if (plan->echo && s->logprobs >= 0)
    prompt_logprobs = MAX(prompt_logprobs, s->logprobs);
  /* Where only the tokens' own are wanted, one more comes with them. */
  r->n_prompt_logprobs = prompt_logprobs < 0 ? 0 : (guint8)MAX(prompt_logprobs, 1);
  /* Greedy sampling draws nothing. Simulated backends do all the same, and with one seed for all
   * they too say the same to the same prompt. */
  if (s->seed >= 0 || s->temperature <= 0) {
    params->seeded = TRUE;
    r->seed = (guint64)MAX(s->seed, 0);
  }
  params->n_logprobs = (int)s->logprobs;
  params->include_stop = s->include_stop_str_in_output;
  params->constraint = s->constraint;
  params->constraint_text = s->constraint_text;
}

static gboolean
submit_one(oct_job *job, guint at, oct_api_fault *fault) {
  static const oct_generation_listener listener = {.delta = on_delta,
                                                   .finished = on_finished,
                                                   .prompt_logprobs = on_prompt_logprobs,
                                                   .pooled = on_pooled,
                                                   .ended = on_ended};
  oct_plan *plan = &job->plan;
  oct_plan_prompt *prompt = &g_array_index(plan->prompts, oct_plan_prompt, at);
  oct_generation_params params;
  oct_generation_params_default(&params);
  fill_sampling(plan, &params);
  GError *error = NULL;
  if (plan->sampling.stops->len > 0) {
    params.stops = oct_stop_set_new((const char *const *)plan->sampling.stops->pdata,
                                    plan->sampling.stops->len, &error);
    if (params.stops == NULL)
      return oct_api_refuse_error(fault, "stop", error);
  }
  if (job->shape->vectors)
    params.sampling.pooling =
        job->api->config.pooling == OCT_API_POOL_MEAN ? OCT_POOLING_MEAN : OCT_POOLING_LAST;
  params.plain = plan->plain;
  params.keep_special = !plan->sampling.skip_special_tokens;
  if (plan->parsed) /* markers may be control tokens: the parser takes them out */
    params.markers = oct_parse_markers(plan->family, &params.n_markers);
  params.sampling.salt = oct_api_salt(job->api, plan->sampling.cache_salt);
  params.timeout_ns = job->api->config.timeout_ns;
  params.request_id = oct_http_exchange_id(job->x);
  if (prompt->prompt != NULL)
    params.prompt = g_steal_pointer(&prompt->prompt);
  else {
    params.prompt_ids = (const guint32 *)(const void *)prompt->ids->data;
    params.n_prompt_ids = prompt->ids->len;
  }
  oct_run *run = &job->runs[at];
  run->generation = oct_service_submit(job->api->config.service, &params, &listener, run, &error);
  return run->generation != NULL || oct_api_refuse_error(fault, NULL, error);
}

void
oct_job_start(oct_api *api, oct_http_exchange *x, const oct_shape *shape, oct_plan *plan) {
  oct_job *job = job_new(api, x, shape, plan);
  oct_http_exchange_set_user(x, job);
  g_auto(oct_api_fault) fault = {.status = 0};
  for (guint i = 0; i < job->plan.prompts->len; i++)
    if (!submit_one(job, i, &fault)) {
      fail(job, &fault);
      return;
    }
}

/* --- what shapes ask -------------------------------------------------------------------------- */

char *
oct_job_id(const oct_job *job, const char *prefix, guint choice, guint number) {
  const guint64 what[] = {job->number, choice, number};
  oct_hash128 hash = oct_hash128_of(job->api->config.id_key, what, sizeof what);
  return g_strdup_printf("%s%016" G_GINT64_MODIFIER "x%08x", prefix, hash.lo, (guint32)hash.hi);
}

guint64
oct_job_output_tokens(const oct_job *job) {
  guint64 sum = 0;
  for (guint i = 0; i < job->n_choices; i++)
    sum += job->choices[i].output_tokens;
  return sum;
}

guint64
oct_job_reasoning_tokens(const oct_job *job) {
  guint64 sum = 0;
  for (guint i = 0; i < job->n_choices; i++)
    sum += job->choices[i].reasoning_tokens;
  return sum;
}
