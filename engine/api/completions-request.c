/* POST /v1/completions: the request. */
#include "engine/api/plan.h"

#define MAX_TOKENS_STANDARD 16 /* OpenAI's */

typedef struct completion_fields {
  const char *model;
  const json_t *prompt;
  gint64 logprobs;
  gboolean echo, add_special_tokens, return_metrics;
} completion_fields;

#define FIELD(member, kind, ...) OCT_FIELD(completion_fields, member, kind, __VA_ARGS__)
static const oct_field fields[] = {
    FIELD(model, STRING, 0, 0, NULL),
    FIELD(prompt, VALUE, 0, 0, NULL),
    FIELD(logprobs, INT, 0, OCT_API_LOGPROBS_MAX, NULL),
    FIELD(echo, BOOL, 0, 0, NULL),
    FIELD(add_special_tokens, BOOL, 0, 0, NULL),
    FIELD(return_metrics, BOOL, 0, 0, NULL),
    OCT_FIELD_REFUSE("prompt_embeds", "tensors are not accepted"),
    OCT_FIELD_REFUSE("suffix", NULL),
};

static gboolean
check_fields(oct_plan *plan, const completion_fields *f, oct_api_fault *fault) {
  oct_sampling *s = &plan->sampling;
  s->logprobs = f->logprobs;
  plan->echo = f->echo;
  plan->plain = f->add_special_tokens;
  plan->metrics = f->return_metrics;
  if (s->max_tokens < 0)
    s->max_tokens = MAX_TOKENS_STANDARD;
  if (s->max_tokens == 0 && !f->echo)
    return oct_api_refuse(fault, 400, "max_tokens",
                          "max_tokens: 0 is below the limit of 1 without echo");
  plan->no_output = s->max_tokens == 0;
  s->max_tokens = MAX(s->max_tokens, 1);
  return TRUE;
}

/* The tokens that are left of ids: the last ones, as in vLLM. */
static gboolean
truncate_prompts(oct_plan *plan, oct_api_fault *fault) {
  gint64 keep = plan->sampling.truncate_prompt_tokens;
  for (guint i = 0; keep > 0 && i < plan->prompts->len; i++) {
    GArray *ids = g_array_index(plan->prompts, oct_plan_prompt, i).ids;
    if (ids == NULL)
      return oct_api_refuse(fault, 400, "truncate_prompt_tokens",
                            "truncate_prompt_tokens: is supported for token ids only");
    if (ids->len > keep)
      g_array_remove_range(ids, 0, ids->len - (guint)keep);
  }
  return keep != 0 || oct_api_refuse(fault, 400, "truncate_prompt_tokens",
                                     "truncate_prompt_tokens: 0 leaves no prompt");
}

gboolean
oct_completions_read(oct_plan *plan, const oct_api_model *model, const char *bytes, gsize size,
                     oct_api_fault *fault) {
  completion_fields f = {.logprobs = -1, .add_special_tokens = TRUE};
  const oct_field_table tables[] = {{fields, G_N_ELEMENTS(fields), &f},
                                    oct_sampling_table(&plan->sampling)};
  return oct_plan_body(plan, model, bytes, size, fault) &&
         oct_fields_read(plan->root, "", tables, G_N_ELEMENTS(tables), fault) &&
         oct_plan_model(plan, model, f.model, fault) && check_fields(plan, &f, fault) &&
         oct_sampling_check(&plan->sampling, model->n_tokens, model->context, fault) &&
         oct_plan_prompts(plan, model, f.prompt, "prompt", fault) && truncate_prompts(plan, fault);
}
