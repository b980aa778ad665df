#include "engine/api/plan.h"

#include <string.h>

#include "engine/api/json-in.h"

static void
clear_prompt(gpointer data) {
  oct_plan_prompt *p = data;
  g_clear_pointer(&p->ids, g_array_unref);
  g_clear_pointer(&p->prompt, oct_prompt_free);
}

void
oct_plan_init(oct_plan *plan) {
  *plan = (oct_plan){.root = NULL};
  oct_sampling_init(&plan->sampling);
  plan->prompts = g_array_new(FALSE, FALSE, sizeof(oct_plan_prompt));
  g_array_set_clear_func(plan->prompts, clear_prompt);
}

void
oct_plan_clear(oct_plan *plan) {
  g_clear_pointer(&plan->root, json_decref);
  g_clear_pointer(&plan->made, json_decref);
  g_clear_pointer(&plan->model, g_free);
  g_clear_pointer(&plan->prompts, g_array_unref);
  oct_sampling_clear(&plan->sampling);
}

gboolean
oct_plan_body(oct_plan *plan, const oct_api_model *model, const char *bytes, gsize size,
              oct_api_fault *fault) {
  plan->root = oct_json_read_object(bytes, size, model->context, fault);
  return plan->root != NULL;
}

gboolean
oct_plan_model(oct_plan *plan, const oct_api_model *model, const char *name, oct_api_fault *fault) {
  for (guint i = 0; i < model->n_names; i++)
    if (name == NULL || g_str_equal(name, model->names[i])) {
      plan->model = g_strdup(model->names[i]);
      return TRUE;
    }
  g_autoptr(GString) served = g_string_new(NULL);
  for (guint i = 0; i < model->n_names; i++)
    g_string_append_printf(served, "%s'%s'", i > 0 ? ", " : "", model->names[i]);
  g_autofree char *shown = g_utf8_substring(name, 0, MIN(g_utf8_strlen(name, -1), 128));
  oct_api_refuse(fault, 404, "model", "model: '%s' does not exist; served here: %s", shown,
                 served->str);
  fault->code = "model_not_found";
  return FALSE;
}

GArray *
oct_plan_ids(const oct_api_model *model, const json_t *list, const char *param,
             oct_api_fault *fault) {
  gsize n = json_array_size(list);
  if (n > model->context) {
    oct_api_refuse(fault, 400, param,
                   "%s: %" G_GSIZE_FORMAT " tokens are above the limit of %u, the context", param,
                   n, model->context);
    fault->code = "context_length_exceeded";
    return NULL;
  }
  g_autoptr(GArray) ids = g_array_sized_new(FALSE, FALSE, sizeof(guint32), (guint)n);
  for (gsize i = 0; i < n; i++) {
    const json_t *value = json_array_get(list, i);
    json_int_t id = json_is_integer(value) ? json_integer_value(value) : -1;
    if (id < 0 || id >= model->n_tokens) {
      g_autofree char *shown = oct_json_show(value);
      oct_api_refuse(fault, 400, param,
                     "%s[%" G_GSIZE_FORMAT "]: %s is not a token of the vocabulary of %u", param, i,
                     shown, model->n_tokens);
      return NULL;
    }
    guint32 id32 = (guint32)id;
    g_array_append_val(ids, id32);
  }
  return g_steal_pointer(&ids);
}

void
oct_plan_add_ids(oct_plan *plan, GArray *ids) {
  oct_plan_prompt p = {.ids = ids};
  g_array_append_val(plan->prompts, p);
}

void
oct_plan_add_prompt(oct_plan *plan, oct_prompt *prompt) {
  oct_plan_prompt p = {.prompt = prompt};
  g_array_append_val(plan->prompts, p);
}

static gboolean
add_text(oct_plan *plan, const oct_api_model *model, const json_t *value, const char *param,
         oct_api_fault *fault) {
  if (model->tokenizer == NULL)
    return oct_api_refuse(fault, 400, param,
                          "%s: is text, and the model is served without its tokenizer: send token "
                          "ids",
                          param);
  oct_prompt *prompt = oct_prompt_new();
  oct_prompt_add(prompt, json_string_value(value), json_string_length(value), OCT_MARK_OUTSIDE);
  oct_plan_add_prompt(plan, prompt);
  return TRUE;
}

static gboolean
add_one(oct_plan *plan, const oct_api_model *model, const json_t *value, const char *param,
        oct_api_fault *fault) {
  if (json_is_string(value))
    return add_text(plan, model, value, param, fault);
  if (!json_is_array(value))
    return oct_api_refuse(fault, 400, param, "%s: %s is neither a string nor a list of token ids",
                          param, oct_json_type_name(value));
  if (json_array_size(value) == 0)
    return oct_api_refuse(fault, 400, param, "%s: has no tokens, at least 1 is needed", param);
  GArray *ids = oct_plan_ids(model, value, param, fault);
  if (ids == NULL)
    return FALSE;
  oct_plan_add_ids(plan, ids);
  return TRUE;
}

gboolean
oct_plan_prompts(oct_plan *plan, const oct_api_model *model, const json_t *value, const char *param,
                 oct_api_fault *fault) {
  const json_t *first = json_array_get(value, 0);
  if (value == NULL)
    return oct_api_refuse(fault, 400, param, "%s: is needed", param);
  if (!json_is_string(first) && !json_is_array(first))
    return add_one(plan, model, value, param, fault);
  gsize n = json_array_size(value);
  if (n > OCT_API_PROMPTS_MAX)
    return oct_api_refuse(fault, 400, param,
                          "%s: %" G_GSIZE_FORMAT " entries are above the limit of %u", param, n,
                          OCT_API_PROMPTS_MAX);
  for (gsize i = 0; i < n; i++) {
    g_autofree char *inner = g_strdup_printf("%s[%" G_GSIZE_FORMAT "]", param, i);
    if (!add_one(plan, model, json_array_get(value, i), inner, fault))
      return FALSE;
  }
  return TRUE;
}
