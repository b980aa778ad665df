/* POST /v1/chat/completions: the request. */
#include "engine/api/plan.h"

#include <string.h>

#include "engine/api/json-in.h"

typedef struct chat_fields {
  const char *model, *reasoning_effort;
  const json_t *messages, *tools, *tool_choice, *chat_template_kwargs, *modalities;
  gint64 max_completion_tokens, top_logprobs;
  gboolean logprobs, parallel_tool_calls, add_generation_prompt, continue_final_message;
  gboolean add_special_tokens, include_reasoning, return_metrics;
} chat_fields;

#define FIELD(member, kind, ...) OCT_FIELD(chat_fields, member, kind, __VA_ARGS__)
static const oct_field fields[] = {
    FIELD(model, STRING, 0, 0, NULL),
    FIELD(messages, ARRAY, 0, 0, NULL),
    FIELD(tools, ARRAY, 0, 0, NULL),
    FIELD(tool_choice, VALUE, 0, 0, NULL),
    FIELD(parallel_tool_calls, BOOL, 0, 0, NULL),
    FIELD(max_completion_tokens, INT, 1, G_MAXINT32, NULL),
    FIELD(logprobs, BOOL, 0, 0, NULL),
    FIELD(top_logprobs, INT, 0, OCT_API_LOGPROBS_MAX, NULL),
    FIELD(reasoning_effort, STRING, 0, 0, NULL),
    FIELD(include_reasoning, BOOL, 0, 0, NULL),
    FIELD(chat_template_kwargs, OBJECT, 0, 0, NULL),
    FIELD(add_generation_prompt, BOOL, 0, 0, NULL),
    FIELD(continue_final_message, BOOL, 0, 0, NULL),
    FIELD(add_special_tokens, BOOL, 0, 0, NULL),
    FIELD(modalities, ARRAY, 0, 0, NULL),
    FIELD(return_metrics, BOOL, 0, 0, NULL),
    OCT_FIELD_IGNORE("prediction"),
    OCT_FIELD_IGNORE("prompt_cache_key"),
    OCT_FIELD_IGNORE("prompt_cache_retention"),
    OCT_FIELD_IGNORE("safety_identifier"),
    OCT_FIELD_IGNORE("service_tier"),
    OCT_FIELD_IGNORE("store"),
    OCT_FIELD_IGNORE("verbosity"),
    OCT_FIELD_REFUSE("audio", NULL),
    OCT_FIELD_REFUSE("chat_template", "a request cannot bring its own template"),
    OCT_FIELD_REFUSE("documents", NULL),
    OCT_FIELD_REFUSE("echo", NULL),
    OCT_FIELD_REFUSE("function_call", "is not supported: use tool_choice"),
    OCT_FIELD_REFUSE("functions", "is not supported: use tools"),
    OCT_FIELD_REFUSE("media_io_kwargs", NULL),
    OCT_FIELD_REFUSE("mm_processor_kwargs", NULL),
    OCT_FIELD_REFUSE("web_search_options", NULL),
};

static gboolean
check_modalities(const json_t *modalities, oct_api_fault *fault) {
  for (gsize i = 0; i < json_array_size(modalities); i++)
    if (g_strcmp0(json_string_value(json_array_get(modalities, i)), "text") != 0)
      return oct_api_refuse(fault, 400, "modalities", "modalities: only text is supported");
  return TRUE;
}

static gboolean
check_fields(oct_plan *plan, chat_fields *f, oct_api_fault *fault) {
  oct_sampling *s = &plan->sampling;
  if (f->top_logprobs >= 0 && !f->logprobs)
    return oct_api_refuse(fault, 400, "top_logprobs",
                          "top_logprobs: is only allowed when logprobs is true");
  if (f->max_completion_tokens >= 0)
    s->max_tokens = f->max_completion_tokens;
  if (s->max_tokens == 0)
    return oct_api_refuse(fault, 400, "max_tokens", "max_tokens: 0 is below the limit of 1");
  s->logprobs = f->logprobs ? MAX(f->top_logprobs, 0) : -1;
  if (s->truncate_prompt_tokens >= 0)
    return oct_api_refuse(fault, 400, "truncate_prompt_tokens",
                          "truncate_prompt_tokens: is not supported for chats");
  if (f->continue_final_message && f->add_generation_prompt &&
      json_is_true(json_object_get(plan->root, "add_generation_prompt")))
    return oct_api_refuse(fault, 400, "continue_final_message",
                          "continue_final_message: excludes add_generation_prompt");
  plan->one_call = !f->parallel_tool_calls;
  plan->no_reasoning = !f->include_reasoning;
  plan->plain = f->add_special_tokens;
  plan->metrics = f->return_metrics;
  return check_modalities(f->modalities, fault);
}

gboolean
oct_chat_read(oct_plan *plan, const oct_api_model *model, const char *bytes, gsize size,
              oct_api_fault *fault) {
  chat_fields f = {.max_completion_tokens = -1,
                   .top_logprobs = -1,
                   .parallel_tool_calls = TRUE,
                   .add_generation_prompt = TRUE,
                   .include_reasoning = TRUE};
  const oct_field_table tables[] = {{fields, G_N_ELEMENTS(fields), &f},
                                    oct_sampling_table(&plan->sampling)};
  if (!oct_plan_body(plan, model, bytes, size, fault) ||
      !oct_fields_read(plan->root, "", tables, G_N_ELEMENTS(tables), fault) ||
      !oct_plan_model(plan, model, f.model, fault) || !check_fields(plan, &f, fault) ||
      !oct_sampling_check(&plan->sampling, model->n_tokens, model->context, fault))
    return FALSE;
  oct_plan_chat chat = {.messages = f.messages,
                        .tools = f.tools,
                        .tool_choice = f.tool_choice,
                        .template_kwargs = f.chat_template_kwargs,
                        .response_format = plan->sampling.response_format,
                        .effort = f.reasoning_effort,
                        .effort_param = "reasoning_effort",
                        .generation_prompt = f.add_generation_prompt,
                        .continue_final = f.continue_final_message};
  return oct_plan_chat_prompt(plan, model, &chat, fault);
}
