/* What the answers of OpenAI's endpoints have in common: the head of a chunk, usage, metrics, ends.
 */
#include "engine/api/internal.h"

#include "engine/api/json-in.h"

/* Every chunk of a job begins with the same text, which is written once. */
oct_out
oct_chunk_open(oct_job *job) {
  if (job->prefix->len == 0) {
    oct_out head = OCT_OUT_INIT(job->prefix);
    g_string_append(job->prefix, "data: ");
    oct_out_open(&head, '{');
    oct_out_put_string(&head, "id", job->id);
    oct_out_put_string(&head, "object", job->shape->chunk);
    oct_out_put_int(&head, "created", job->created_s);
    oct_out_put_string(&head, "model", job->plan.model);
    oct_out_key(&head, "choices");
  }
  g_string_append_len(job->out, job->prefix->str, (gssize)job->prefix->len);
  return (oct_out){.out = job->out, .depth = 1, .filled = 2, .after_key = TRUE};
}

void
oct_chunk_close(oct_job *job, oct_out *json) {
  if (job->plan.sampling.continuous_usage)
    oct_job_put_usage(job, json);
  else if (job->plan.sampling.include_usage)
    oct_out_put_null(json, "usage");
  oct_out_close(json, '}');
  g_string_append(job->out, "\n\n");
}

void
oct_chunk_end(oct_job *job) {
  if (job->plan.sampling.include_usage || job->plan.metrics) {
    oct_out json = oct_chunk_open(job);
    oct_out_open(&json, '[');
    oct_out_close(&json, ']');
    if (job->plan.sampling.include_usage)
      oct_job_put_usage(job, &json);
    oct_job_put_metrics(job, &json);
    oct_out_close(&json, '}');
    g_string_append(job->out, "\n\n");
  }
  g_string_append(job->out, "data: [DONE]\n\n");
}

void
oct_chunk_fail(oct_job *job, const oct_api_fault *fault) {
  g_string_append(job->out, "data: ");
  oct_api_fault_write(fault, job->out);
  g_string_append(job->out, "\n\ndata: [DONE]\n\n");
}

oct_out
oct_event_open(oct_job *job, const char *name) {
  g_string_append_printf(job->out, "event: %s\ndata: ", name);
  oct_out json = OCT_OUT_INIT(job->out);
  oct_out_open(&json, '{');
  oct_out_put_string(&json, "type", name);
  return json;
}

void
oct_event_close(oct_job *job, oct_out *json) {
  oct_out_close(json, '}');
  g_string_append(job->out, "\n\n");
}

void
oct_item_put_input(const oct_item *item, oct_out *json) {
  g_auto(oct_api_fault) fault = {.status = 0};
  json_t *object = oct_json_read_object(item->text->str, item->text->len, 0, &fault);
  if (object != NULL)
    oct_out_raw(json, item->text->str, item->text->len);
  else {
    oct_out_open(json, '{');
    if (item->text->len > 0)
      oct_out_put_text(json, "arguments", item->text->str, item->text->len);
    oct_out_close(json, '}');
  }
  g_clear_pointer(&object, json_decref);
}

oct_out
oct_answer_open(oct_job *job) {
  oct_out json = OCT_OUT_INIT(job->out);
  oct_out_open(&json, '{');
  oct_out_put_string(&json, "id", job->id);
  oct_out_put_string(&json, "object", job->shape->object);
  oct_out_put_int(&json, "created", job->created_s);
  oct_out_put_string(&json, "model", job->plan.model);
  oct_out_key(&json, "choices");
  oct_out_open(&json, '[');
  return json;
}

void
oct_answer_close(oct_job *job, oct_out *json) {
  oct_out_close(json, ']');
  oct_job_put_usage(job, json);
  oct_job_put_metrics(job, json);
  oct_out_close(json, '}');
}

static void
put_items(oct_out *json, const char *key, const GString *items) {
  oct_out_key(json, key);
  oct_out_open(json, '[');
  if (items->len > 0)
    oct_out_raw(json, items->str, items->len);
  oct_out_close(json, ']');
}

void
oct_choice_put_ids(oct_choice *c, gboolean last, oct_out *json) {
  if (c->ids == NULL)
    return;
  put_items(json, "token_ids", c->ids);
  g_string_truncate(c->ids, 0);
  if (last && c->job->prompt_ids[c->prompt] != NULL)
    put_items(json, "prompt_token_ids", c->job->prompt_ids[c->prompt]);
}

void
oct_choice_put_prompt_logprobs(const oct_choice *c, oct_out *json) {
  if (c->job->plan.sampling.prompt_logprobs < 0)
    return;
  const GString *items = c->job->prompt_logprobs[c->prompt];
  if (items != NULL)
    put_items(json, "prompt_logprobs", items);
  else { /* a prompt of one token, of which nothing is known */
    oct_out_key(json, "prompt_logprobs");
    oct_out_raw(json, "[null]", 6);
  }
}

void
oct_job_put_usage(const oct_job *job, oct_out *json) {
  guint64 output = oct_job_output_tokens(job);
  oct_out_key(json, "usage");
  oct_out_open(json, '{');
  oct_out_put_int(json, "prompt_tokens", (gint64)job->prompt_tokens);
  oct_out_put_int(json, "completion_tokens", (gint64)output);
  oct_out_put_int(json, "total_tokens", (gint64)(job->prompt_tokens + output));
  if (!job->api->config.no_prompt_details) {
    oct_out_key(json, "prompt_tokens_details");
    oct_out_open(json, '{');
    oct_out_put_int(json, "cached_tokens", (gint64)job->cached_tokens);
    oct_out_close(json, '}');
  }
  oct_out_key(json, "completion_tokens_details");
  oct_out_open(json, '{');
  oct_out_put_int(json, "reasoning_tokens", (gint64)oct_job_reasoning_tokens(job));
  oct_out_close(json, '}');
  oct_out_close(json, '}');
}

/* Seconds from the request's arrival, null for what never happened. */
static void
put_since(oct_out *json, const char *key, gint64 from, gint64 to, double unit_ns) {
  if (from < 0 || to < 0)
    oct_out_put_null(json, key);
  else
    oct_out_put_double(json, key, (double)(to - from) / unit_ns);
}

void
oct_job_put_metrics(const oct_job *job, oct_out *json) {
  const oct_generation_end *t = &job->times;
  guint64 n = oct_job_output_tokens(job);
  if (!job->plan.metrics)
    return;
  oct_out_key(json, "metrics");
  oct_out_open(json, '{');
  put_since(json, "queue", t->received_ns, t->queued_ns, 1e9);
  put_since(json, "prefill_start", t->received_ns, t->admitted_ns, 1e9);
  put_since(json, "decode_start", t->received_ns, t->first_token_ns, 1e9);
  put_since(json, "response_end", t->received_ns, t->ended_ns, 1e9);
  put_since(json, "time_to_first_token_ms", t->received_ns, t->first_token_ns, 1e6);
  put_since(json, "generation_time_ms", t->first_token_ns, t->last_token_ns, 1e6);
  put_since(json, "queue_time_ms", t->received_ns, t->admitted_ns, 1e6);
  double decode_ns = (double)(t->last_token_ns - t->first_token_ns);
  guint64 gaps = n > job->n_choices ? n - job->n_choices : 0;
  oct_out_key(json, "mean_itl_ms");
  if (gaps > 0 && t->first_token_ns >= 0)
    oct_out_double(json, decode_ns * job->n_choices / (double)gaps / 1e6);
  else
    oct_out_null(json);
  oct_out_key(json, "tokens_per_second");
  if (gaps > 0 && decode_ns > 0)
    oct_out_double(json, (double)gaps * 1e9 / decode_ns);
  else
    oct_out_null(json);
  oct_out_close(json, '}');
}

const char *
oct_choice_finish_reason(const oct_choice *c) {
  if (c->finish.reason == OCT_FINISH_LENGTH)
    return "length";
  return c->calls->len > 0 ? "tool_calls" : "stop";
}

void
oct_choice_put_stop_reason(const oct_choice *c, oct_out *json) {
  oct_out_key(json, "stop_reason");
  if (c->finish.stop_string >= 0)
    oct_out_string(json, g_ptr_array_index(c->job->plan.sampling.stops, c->finish.stop_string));
  else if (c->finish.stop_token != OCT_NO_TOKEN)
    oct_out_int(json, c->finish.stop_token);
  else
    oct_out_null(json);
}
