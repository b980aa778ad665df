/* POST /v1/completions: the answer, as chunks and whole. */
#include "engine/api/internal.h"

static void
put_choice(oct_choice *c, const char *text, gsize size, const char *finish_reason, oct_out *json) {
  oct_out_open(json, '{');
  oct_out_put_int(json, "index", c->index);
  oct_out_put_text(json, "text", text, size);
  oct_choice_put_logprobs(c, json);
  oct_out_put_string(json, "finish_reason", finish_reason);
  if (finish_reason != NULL)
    oct_choice_put_stop_reason(c, json);
  oct_choice_put_ids(c, finish_reason != NULL, json);
  if (finish_reason != NULL)
    oct_choice_put_prompt_logprobs(c, json);
  oct_out_close(json, '}');
}

static void
put_chunk(oct_choice *c, const char *text, gsize size, const char *finish_reason) {
  oct_out json = oct_chunk_open(c->job);
  oct_out_open(&json, '[');
  put_choice(c, text, size, finish_reason, &json);
  oct_out_close(&json, ']');
  oct_chunk_close(c->job, &json);
}

static void
begin(oct_job *job) {
  (void)job;
}

static void
event(oct_choice *c, const oct_parse_event *e) {
  put_chunk(c, e->text, e->size, NULL);
}

static void
finish(oct_choice *c) {
  put_chunk(c, "", 0, oct_choice_finish_reason(c));
}

static void
whole(oct_job *job) {
  oct_out json = oct_answer_open(job);
  for (guint i = 0; i < job->n_choices; i++) {
    oct_choice *c = &job->choices[i];
    put_choice(c, c->content->str, c->content->len, oct_choice_finish_reason(c), &json);
  }
  oct_answer_close(job, &json);
}

const oct_shape oct_completions_shape = {.begin = begin,
                                         .event = event,
                                         .finish = finish,
                                         .end = oct_chunk_end,
                                         .fail = oct_chunk_fail,
                                         .whole = whole,
                                         .id_prefix = "cmpl-",
                                         .object = "text_completion",
                                         .chunk = "text_completion"};
