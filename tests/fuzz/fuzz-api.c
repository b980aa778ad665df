/* Fuzz target: a byte that chooses an endpoint and a family of chats, and a request's body. It is
 * read into a plan that keeps every limit, or refused with a fault that is JSON. */
#include <math.h>
#include <string.h>

#include "engine/api/json-in.h"
#include "engine/api/plan.h"
#include "engine/base/assert.h"
#include "tests/fuzz/replay.h"

#define CONTEXT 256

static const oct_plan_reader readers[] = {
    oct_completions_read, oct_chat_read,     oct_messages_read,   oct_responses_read,
    oct_embeddings_read,  oct_tokenize_read, oct_detokenize_read, oct_count_tokens_read,
};
static const char *const families[] = {"chatml", "qwen3", "llama3"};
static const oct_parse_family parses[] = {OCT_PARSE_PLAIN, OCT_PARSE_HERMES, OCT_PARSE_LLAMA3};

static const char *const names[] = {"tiny"};
static oct_tokenizer *tokenizer;
static oct_chat_renderer *renderers[G_N_ELEMENTS(families)];

static void
set_up(void) {
  g_autofree char *path =
      g_build_filename(OCT_SOURCE_DIR, "tests/golden/text/vocab/qwen2.json", NULL);
  tokenizer = oct_tokenizer_open(path, NULL);
  oct_assert(tokenizer != NULL);
  for (guint i = 0; i < G_N_ELEMENTS(families); i++) {
    renderers[i] = oct_chat_renderer_new(tokenizer, families[i], NULL);
    oct_assert(renderers[i] != NULL);
  }
}

static void
check_fault(const oct_api_fault *fault) {
  oct_assert(fault->status == 400 || fault->status == 404);
  oct_assert(fault->message != NULL && g_utf8_validate(fault->message, -1, NULL));
  g_autoptr(GString) out = g_string_new(NULL);
  oct_api_fault_write(fault, out);
  oct_api_fault_write_anthropic(fault, "id", out);
  json_error_t error;
  json_t *first =
      json_loadb(out->str, out->len, JSON_DISABLE_EOF_CHECK | JSON_REJECT_DUPLICATES, &error);
  oct_assert(json_is_object(first));
  json_t *second = json_loadb(out->str + error.position, out->len - (gsize)error.position,
                              JSON_REJECT_DUPLICATES, NULL);
  oct_assert(json_is_object(second));
  json_decref(first);
  json_decref(second);
}

static void
check_sampling(const oct_sampling *s) {
  oct_assert(s->n >= 1 && s->n <= OCT_API_N_MAX);
  oct_assert(s->max_tokens >= -1 && s->max_tokens <= CONTEXT && s->max_tokens != 0);
  oct_assert(s->max_tokens < 0 || s->n * s->max_tokens <= 4 * CONTEXT);
  oct_assert(s->min_tokens >= 0 && s->min_tokens <= CONTEXT);
  oct_assert(s->temperature >= 0 && s->temperature <= 2 && s->top_p >= 0 && s->top_p <= 1);
  oct_assert(isfinite(s->presence_penalty) && isfinite(s->frequency_penalty));
  oct_assert(s->top_k >= -1 && s->logprobs >= -1 && s->logprobs <= OCT_API_LOGPROBS_MAX);
  oct_assert(s->seed >= -1 && s->seed <= OCT_API_SAFE_INT_MAX);
  oct_assert(s->stops->len <= 2 * OCT_STOP_STRINGS_MAX && s->biases->len <= OCT_API_BIAS_MAX);
  oct_assert(s->stop_tokens->len <= OCT_API_STOP_TOKENS_MAX);
  for (guint i = 0; i < s->biases->len; i++)
    oct_assert(g_array_index(s->biases, oct_token_bias, i).token <
               oct_tokenizer_n_tokens(tokenizer));
  gboolean has_text = s->constraint != OCT_CONSTRAINT_NONE && s->constraint != OCT_CONSTRAINT_JSON;
  oct_assert((s->constraint_text != NULL) == has_text);
}

/* What is submitted: each prompt is ids of the vocabulary, or text that can be encoded. */
static void
check_prompts(const oct_plan *plan) {
  oct_assert(plan->prompts->len >= 1 && plan->prompts->len <= OCT_API_PROMPTS_MAX);
  for (guint i = 0; i < plan->prompts->len; i++) {
    const oct_plan_prompt *p = &g_array_index(plan->prompts, oct_plan_prompt, i);
    oct_assert((p->ids == NULL) != (p->prompt == NULL));
    if (p->prompt != NULL) {
      g_autoptr(GArray) ids = g_array_new(FALSE, FALSE, sizeof(guint32));
      oct_assert(p->prompt->text->len == p->prompt->marks->len);
      oct_assert(oct_prompt_encode(p->prompt, tokenizer, ids, NULL));
    } else {
      oct_assert(p->ids->len <= CONTEXT);
      for (guint k = 0; k < p->ids->len; k++)
        oct_assert(g_array_index(p->ids, guint32, k) < oct_tokenizer_n_tokens(tokenizer));
    }
  }
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (tokenizer == NULL)
    set_up();
  if (size == 0)
    return 0;
  guint family = data[0] / 8 % G_N_ELEMENTS(families);
  const oct_api_model model = {.names = names,
                               .n_names = 1,
                               .tokenizer = tokenizer,
                               .renderer = renderers[family],
                               .family = parses[family],
                               .n_tokens = oct_tokenizer_n_tokens(tokenizer),
                               .context = CONTEXT,
                               .now_s = 1700000000};
  g_auto(oct_plan) plan;
  g_auto(oct_api_fault) fault = {.status = 0};
  oct_plan_init(&plan);
  if (!readers[data[0] % 8](&plan, &model, (const char *)data + 1, size - 1, &fault)) {
    check_fault(&fault);
    return 0;
  }
  oct_assert(fault.status == 0 && plan.model != NULL);
  check_sampling(&plan.sampling);
  check_prompts(&plan);
  return 0;
}
