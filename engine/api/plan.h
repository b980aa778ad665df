/* A request as read: what is asked of the service, and how the answer is to be written.
 *
 * Reading is a function of the body and the model: no service, no clock, no connection. Internal to
 * engine/api.
 */
#ifndef OCT_API_PLAN_H
#define OCT_API_PLAN_H

#include "engine/api/sampling.h"
#include "engine/text/chat.h"
#include "engine/text/parse.h"
#include "engine/text/prompt.h"

/* Limits. */
#define OCT_API_PROMPTS_MAX    1024u  /* of one request */
#define OCT_API_TOOL_BYTES_MAX 65536u /* of one tool's definition */
#define OCT_API_TOOL_DEPTH_MAX 16u
#define OCT_API_NAME_BYTES_MAX 128u /* of a tool's name */

/* What requests are read against; borrowed. */
typedef struct oct_api_model {
  const char *const *names; /* [n_names] that requests may give; the first is the model's own */
  guint n_names;
  const oct_tokenizer *tokenizer;    /* NULL: prompts are token ids */
  const oct_chat_renderer *renderer; /* NULL: no chat */
  const char *no_chat;               /* why; NULL: no reason is known */
  oct_parse_family family;           /* of answers */
  guint32 n_tokens;                  /* of the vocabulary */
  guint32 context;                   /* tokens of a prompt and its answer together */
  gint64 now_s;                      /* since 1970: templates may write the date */
} oct_api_model;

/* One prompt: ids, or text that the service encodes. */
typedef struct oct_plan_prompt {
  GArray *ids;        /* guint32, or NULL */
  oct_prompt *prompt; /* or NULL */
} oct_plan_prompt;

typedef struct oct_plan {
  json_t *root; /* the request; what is borrowed from it lives as long */
  json_t *made; /* the same for what was made of it */
  char *model;  /* as the answer names it; owned */
  oct_sampling sampling;
  GArray *prompts; /* oct_plan_prompt */
  gboolean plain;  /* the tokenizer's BOS and the like are to be added */

  /* How answers are read. */
  gboolean parsed; /* into answer, reasoning and tool calls; else text is text */
  oct_parse_family family;
  gboolean tools, begins_in_thinking;
  gboolean one_call;     /* parallel_tool_calls false: later ones are dropped */
  gboolean no_reasoning; /* is not shown */
  gboolean metrics;      /* are part of the answer */

  gboolean echo;              /* completions */
  gboolean token_strings;     /* tokenize */
  gboolean base64, normalize; /* embeddings */
  gint64 dimensions;          /* embeddings; -1: the model\'s own */
  gboolean no_output;         /* completions: max_tokens 0; the one token made is not shown */
} oct_plan;

void oct_plan_init(oct_plan *plan);
void oct_plan_clear(oct_plan *plan);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(oct_plan, oct_plan_clear)

/* The body into plan->root, an object. */
gboolean oct_plan_body(oct_plan *plan, const oct_api_model *model, const char *bytes, gsize size,
                       oct_api_fault *fault) G_GNUC_WARN_UNUSED_RESULT;
/* `name` (NULL: the model's own) into plan->model; 404 when it is not served. */
gboolean oct_plan_model(oct_plan *plan, const oct_api_model *model, const char *name,
                        oct_api_fault *fault) G_GNUC_WARN_UNUSED_RESULT;

/* A list of token ids, each in the vocabulary, at most a context of them. */
GArray *oct_plan_ids(const oct_api_model *model, const json_t *list, const char *param,
                     oct_api_fault *fault) G_GNUC_WARN_UNUSED_RESULT;
void oct_plan_add_ids(oct_plan *plan, GArray *ids);           /* takes */
void oct_plan_add_prompt(oct_plan *plan, oct_prompt *prompt); /* takes */
/* A prompt as OpenAI's completions and embeddings take it: a string, token ids, or a list of
 * either. */
gboolean oct_plan_prompts(oct_plan *plan, const oct_api_model *model, const json_t *value,
                          const char *param, oct_api_fault *fault) G_GNUC_WARN_UNUSED_RESULT;

/* --- chat (plan-chat.c) ------------------------------------------------------------------------
 */

/* A conversation in the shape of OpenAI's chat API, whatever endpoint it came by. Borrowed. */
typedef struct oct_plan_chat {
  const json_t *messages, *tools;
  const json_t *tool_choice; /* NULL: auto */
  const json_t *template_kwargs;
  const json_t *response_format; /* for templates that write it; in the shape of chat */
  const char *effort;            /* NULL: the model's own */
  const char *effort_param;      /* the field that it came from */
  gboolean generation_prompt, continue_final, no_thinking;
} oct_plan_chat;

/* Checks and renders a conversation into the plan's one prompt, and sets how the answer is read. */
gboolean oct_plan_chat_prompt(oct_plan *plan, const oct_api_model *model, const oct_plan_chat *chat,
                              oct_api_fault *fault) G_GNUC_WARN_UNUSED_RESULT;

/* --- endpoints: each reads a body into a plan --------------------------------------------------
 */

typedef gboolean (*oct_plan_reader)(oct_plan *plan, const oct_api_model *model, const char *bytes,
                                    gsize size, oct_api_fault *fault);
gboolean oct_completions_read(oct_plan *plan, const oct_api_model *model, const char *bytes,
                              gsize size, oct_api_fault *fault) G_GNUC_WARN_UNUSED_RESULT;
gboolean oct_tokenize_read(oct_plan *plan, const oct_api_model *model, const char *bytes,
                           gsize size, oct_api_fault *fault) G_GNUC_WARN_UNUSED_RESULT;
gboolean oct_detokenize_read(oct_plan *plan, const oct_api_model *model, const char *bytes,
                             gsize size, oct_api_fault *fault) G_GNUC_WARN_UNUSED_RESULT;
gboolean oct_embeddings_read(oct_plan *plan, const oct_api_model *model, const char *bytes,
                             gsize size, oct_api_fault *fault) G_GNUC_WARN_UNUSED_RESULT;
gboolean oct_messages_read(oct_plan *plan, const oct_api_model *model, const char *bytes,
                           gsize size, oct_api_fault *fault) G_GNUC_WARN_UNUSED_RESULT;
gboolean oct_count_tokens_read(oct_plan *plan, const oct_api_model *model, const char *bytes,
                               gsize size, oct_api_fault *fault) G_GNUC_WARN_UNUSED_RESULT;
gboolean oct_responses_read(oct_plan *plan, const oct_api_model *model, const char *bytes,
                            gsize size, oct_api_fault *fault) G_GNUC_WARN_UNUSED_RESULT;
gboolean oct_chat_read(oct_plan *plan, const oct_api_model *model, const char *bytes, gsize size,
                       oct_api_fault *fault) G_GNUC_WARN_UNUSED_RESULT;

#endif
