/* POST /tokenize, POST /detokenize, GET /tokenizer_info. The work may be long, and is done on a
 * text thread. */
#include "engine/api/internal.h"

#include "engine/text/detokenizer.h"

/* --- requests ----------------------------------------------------------------------------------
 */

typedef struct tokenize_fields {
  const char *model;
  const json_t *prompt, *messages, *tools, *chat_template_kwargs;
  gboolean add_special_tokens, return_token_strs, add_generation_prompt, continue_final_message;
} tokenize_fields;

#define FIELD(member, kind) OCT_FIELD(tokenize_fields, member, kind, 0, 0, NULL)
static const oct_field fields[] = {
    FIELD(model, STRING),
    FIELD(prompt, VALUE),
    FIELD(messages, ARRAY),
    FIELD(tools, ARRAY),
    FIELD(chat_template_kwargs, OBJECT),
    FIELD(add_special_tokens, BOOL),
    FIELD(return_token_strs, BOOL),
    FIELD(add_generation_prompt, BOOL),
    FIELD(continue_final_message, BOOL),
    OCT_FIELD_REFUSE("chat_template", "a request cannot bring its own template"),
    OCT_FIELD_REFUSE("media_io_kwargs", NULL),
    OCT_FIELD_REFUSE("mm_processor_kwargs", NULL),
};

gboolean
oct_tokenize_read(oct_plan *plan, const oct_api_model *model, const char *bytes, gsize size,
                  oct_api_fault *fault) {
  tokenize_fields f = {.add_generation_prompt = TRUE};
  const oct_field_table table = {fields, G_N_ELEMENTS(fields), &f};
  if (!oct_plan_body(plan, model, bytes, size, fault))
    return FALSE;
  f.add_special_tokens = json_object_get(plan->root, "messages") == NULL; /* as in vLLM */
  if (!oct_fields_read(plan->root, "", &table, 1, fault) ||
      !oct_plan_model(plan, model, f.model, fault))
    return FALSE;
  plan->plain = f.add_special_tokens;
  plan->token_strings = f.return_token_strs;
  if (f.messages == NULL) {
    if (!json_is_string(f.prompt))
      return oct_api_refuse(fault, 400, "prompt", "prompt: is not a string");
    return oct_plan_prompts(plan, model, f.prompt, "prompt", fault);
  }
  const oct_plan_chat chat = {.messages = f.messages,
                              .tools = f.tools,
                              .template_kwargs = f.chat_template_kwargs,
                              .generation_prompt = f.add_generation_prompt,
                              .continue_final = f.continue_final_message};
  return oct_plan_chat_prompt(plan, model, &chat, fault);
}

gboolean
oct_detokenize_read(oct_plan *plan, const oct_api_model *model, const char *bytes, gsize size,
                    oct_api_fault *fault) {
  struct fields {
    const char *model;
    const json_t *tokens;
  } f = {.model = NULL};
  static const oct_field rows[] = {
      OCT_FIELD(struct fields, model, STRING, 0, 0, NULL),
      OCT_FIELD(struct fields, tokens, ARRAY, 0, 0, NULL),
  };
  const oct_field_table table = {rows, G_N_ELEMENTS(rows), &f};
  if (!oct_plan_body(plan, model, bytes, size, fault) ||
      !oct_fields_read(plan->root, "", &table, 1, fault) ||
      !oct_plan_model(plan, model, f.model, fault))
    return FALSE;
  if (f.tokens == NULL)
    return oct_api_refuse(fault, 400, "tokens", "tokens: is needed");
  GArray *ids = oct_plan_ids(model, f.tokens, "tokens", fault);
  if (ids == NULL)
    return FALSE;
  oct_plan_add_ids(plan, ids);
  return TRUE;
}

/* --- work --------------------------------------------------------------------------------------
 */

/* Lives until done() even when the client has left: then `x` is NULL. */
typedef struct text_job {
  oct_side_job side; /* first: what gone() finds */
  oct_api *api;
  oct_plan plan;
  GArray *ids;
  GString *text;
  GError *error;
} text_job;

static void
add_all(GArray *ids, const guint32 *more, guint n) {
  if (n > 0)
    g_array_append_vals(ids, more, n);
}

static void
encode(void *user) {
  text_job *job = user;
  const oct_tokenizer *tokenizer = oct_service_tokenizer(job->api->config.service);
  const oct_plan_prompt *p = &g_array_index(job->plan.prompts, oct_plan_prompt, 0);
  guint n;
  const guint32 *before = oct_tokenizer_before(tokenizer, &n);
  if (job->plan.plain)
    add_all(job->ids, before, n);
  if (!oct_prompt_encode(p->prompt, tokenizer, job->ids, &job->error))
    return;
  const guint32 *after = oct_tokenizer_after(tokenizer, &n);
  if (job->plan.plain)
    add_all(job->ids, after, n);
}

static void
decode(void *user) {
  text_job *job = user;
  const oct_tokenizer *tokenizer = oct_service_tokenizer(job->api->config.service);
  const GArray *ids = g_array_index(job->plan.prompts, oct_plan_prompt, 0).ids;
  oct_detokenize(tokenizer, (const guint32 *)(const void *)ids->data, ids->len, FALSE, job->text);
}

static void
text_job_free(text_job *job) {
  oct_plan_clear(&job->plan);
  g_array_unref(job->ids);
  g_string_free(job->text, TRUE);
  g_clear_error(&job->error);
  g_free(job);
}

static void
encoded(void *user) {
  text_job *job = user;
  oct_api *api = job->api;
  g_auto(oct_api_fault) fault = {.status = 0};
  if (job->side.x != NULL && job->error != NULL) {
    oct_api_refuse_error(&fault, "prompt", g_steal_pointer(&job->error));
    oct_api_respond_fault(api, job->side.x, &fault, FALSE);
  } else if (job->side.x != NULL) {
    oct_out json = oct_api_body(api);
    oct_out_open(&json, '{');
    oct_out_put_int(&json, "count", job->ids->len);
    oct_out_put_int(&json, "max_model_len", oct_service_max_model_len(api->config.service));
    oct_out_key(&json, "tokens");
    oct_out_open(&json, '[');
    for (guint i = 0; i < job->ids->len; i++)
      oct_out_int(&json, g_array_index(job->ids, guint32, i));
    oct_out_close(&json, ']');
    oct_out_key(&json, "token_strs");
    if (!job->plan.token_strings)
      oct_out_null(&json);
    else {
      oct_out_open(&json, '[');
      for (guint i = 0; i < job->ids->len; i++) {
        oct_api_token_text(api, g_array_index(job->ids, guint32, i), job->text);
        oct_out_text(&json, job->text->str, job->text->len);
      }
      oct_out_close(&json, ']');
    }
    oct_out_close(&json, '}');
    oct_api_respond_json(api, job->side.x, 200, api->scratch);
  }
  text_job_free(job);
}

/* Anthropic's. */
static void
counted(void *user) {
  text_job *job = user;
  g_auto(oct_api_fault) fault = {.status = 0};
  if (job->side.x != NULL && job->error != NULL) {
    oct_api_refuse_error(&fault, "messages", g_steal_pointer(&job->error));
    oct_api_respond_fault(job->api, job->side.x, &fault, TRUE);
  } else if (job->side.x != NULL) {
    oct_out json = oct_api_body(job->api);
    oct_out_open(&json, '{');
    oct_out_put_int(&json, "input_tokens", job->ids->len);
    oct_out_close(&json, '}');
    oct_api_respond_json(job->api, job->side.x, 200, job->api->scratch);
  }
  text_job_free(job);
}

static void
decoded(void *user) {
  text_job *job = user;
  if (job->side.x != NULL) {
    oct_out json = oct_api_body(job->api);
    oct_out_open(&json, '{');
    oct_out_put_text(&json, "prompt", job->text->str, job->text->len);
    oct_out_close(&json, '}');
    oct_api_respond_json(job->api, job->side.x, 200, job->api->scratch);
  }
  text_job_free(job);
}

static void
run(oct_api *api, oct_http_exchange *x, oct_plan_reader read, void (*work)(void *),
    void (*done)(void *)) {
  const oct_http_request *request = oct_http_exchange_request(x);
  const oct_api_model model = oct_api_model_of(api);
  g_auto(oct_api_fault) fault = {.status = 0};
  if (model.tokenizer == NULL) {
    oct_api_refuse(&fault, 404, NULL, "the model is served without its tokenizer");
    oct_api_respond_fault(api, x, &fault, FALSE);
    return;
  }
  text_job *job = g_new0(text_job, 1);
  *job = (text_job){.side = {.kind = OCT_JOB_SIDE, .x = x}, .api = api};
  job->ids = g_array_new(FALSE, FALSE, sizeof(guint32));
  job->text = g_string_new(NULL);
  oct_plan_init(&job->plan);
  GError *error = NULL;
  if (!read(&job->plan, &model, request->body.bytes, request->body.size, &fault)) {
    oct_api_respond_fault(api, x, &fault, done == counted);
    text_job_free(job);
    return;
  }
  oct_http_exchange_set_user(x, job);
  if (oct_service_offload(api->config.service, work, done, job, &error))
    return;
  oct_api_refuse_error(&fault, NULL, error);
  oct_api_respond_fault(api, x, &fault, FALSE);
  text_job_free(job);
}

void
oct_api_run_tokenize(oct_api *api, oct_http_exchange *x, const char *path) {
  (void)path;
  run(api, x, oct_tokenize_read, encode, encoded);
}

void
oct_api_run_count_tokens(oct_api *api, oct_http_exchange *x, const char *path) {
  (void)path;
  run(api, x, oct_count_tokens_read, encode, counted);
}

void
oct_api_run_detokenize(oct_api *api, oct_http_exchange *x, const char *path) {
  (void)path;
  run(api, x, oct_detokenize_read, decode, decoded);
}

/* --- what the tokenizer is ----------------------------------------------------------------------
 */

static void
put_role(oct_api *api, oct_out *json, const char *key, oct_token_role role) {
  const oct_tokenizer *tokenizer = oct_service_tokenizer(api->config.service);
  g_autoptr(GString) text = g_string_new(NULL);
  guint32 id = oct_tokenizer_role(tokenizer, role);
  if (id == OCT_NO_TOKEN) {
    oct_out_put_null(json, key);
    return;
  }
  oct_api_token_text(api, id, text);
  oct_out_put_text(json, key, text->str, text->len);
}

void
oct_api_run_tokenizer_info(oct_api *api, oct_http_exchange *x, const char *path) {
  const oct_tokenizer *tokenizer = oct_service_tokenizer(api->config.service);
  (void)path;
  if (!api->config.tokenizer_info || tokenizer == NULL) {
    g_auto(oct_api_fault) fault = {.status = 0};
    oct_api_refuse(&fault, 404, NULL, "the server runs without --enable-tokenizer-info-endpoint");
    oct_api_respond_fault(api, x, &fault, FALSE);
    return;
  }
  oct_out json = oct_api_body(api);
  oct_out_open(&json, '{');
  oct_out_put_int(&json, "vocab_size", oct_tokenizer_n_tokens(tokenizer));
  oct_out_put_int(&json, "model_max_length", oct_service_max_model_len(api->config.service));
  put_role(api, &json, "bos_token", OCT_ROLE_BOS);
  put_role(api, &json, "eos_token", OCT_ROLE_EOS);
  put_role(api, &json, "pad_token", OCT_ROLE_PAD);
  put_role(api, &json, "unk_token", OCT_ROLE_UNKNOWN);
  oct_out_put_string(&json, "chat_template", oct_tokenizer_chat_template(tokenizer));
  oct_out_close(&json, '}');
  oct_api_respond_json(api, x, 200, api->scratch);
}
