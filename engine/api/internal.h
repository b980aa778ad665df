/* What the files of engine/api share: the API's state, a job per request, and the shapes of
 * answers. */
#ifndef OCT_API_INTERNAL_H
#define OCT_API_INTERNAL_H

#include "engine/api/api.h"
#include "engine/api/json-out.h"
#include "engine/api/keys.h"
#include "engine/api/plan.h"

typedef struct oct_job oct_job;
typedef struct oct_choice oct_choice;
typedef struct oct_shape oct_shape;

struct oct_api {
  oct_api_config config;
  char **names;
  char *root, *no_chat, *version;
  oct_api_keys *keys;
  gint64 started_s;
  guint64 n_jobs;     /* so far: ids are made of it */
  GQueue streams;     /* oct_job: those whose answer is a stream */
  gint64 look_ns;     /* when to look for silent ones again */
  guint32 generating; /* requests whose answer is being made: /load */
  GString *scratch;   /* bodies of short answers */
};

/* The prefix cache's salt for a request's cache_salt (NULL: 0). */
guint64 oct_api_salt(const oct_api *api, const char *cache_salt);
/* What requests are read against at this moment. */
oct_api_model oct_api_model_of(const oct_api *api);

/* --- answers without a job (respond.c) --------------------------------------------------------
 */

/* Each logs the request and ends the exchange. */
void oct_api_respond(oct_api *api, oct_http_exchange *x, const oct_http_reply *reply);
void oct_api_respond_json(oct_api *api, oct_http_exchange *x, guint status, const GString *body);
/* In the shape that the route's clients read. */
void oct_api_respond_fault(oct_api *api, oct_http_exchange *x, const oct_api_fault *fault,
                           gboolean anthropic);
/* For exchanges that end otherwise, while they are there. */
void oct_api_log(oct_api *api, const oct_http_exchange *x, guint status);

/* A short answer's body, begun: api->scratch. */
oct_out oct_api_body(oct_api *api);
/* Reads the body with `read`, and generates or refuses (read.c). A longer body than this is read on
 * a text thread. */
#define OCT_API_SHORT_BYTES 65536u
void oct_api_run_plan(oct_api *api, oct_http_exchange *x, const oct_shape *shape,
                      oct_plan_reader read);

/* An exchange's user is one of these, by its first member. */
typedef enum oct_job_kind { OCT_JOB_GENERATES, OCT_JOB_SIDE } oct_job_kind;
/* Work on a text thread, which goes on when the client leaves: then `x` becomes NULL. */
typedef struct oct_side_job {
  oct_job_kind kind;
  oct_http_exchange *x;
} oct_side_job;

/* --- jobs: a request that generates ------------------------------------------------------------
 */

/* One tool call of an answer. */
typedef struct oct_call {
  char *id, *name;
  GString *arguments; /* NULL while streaming */
} oct_call;

/* A part of an answer, in order: text, reasoning, or a call, for shapes that have blocks. */
typedef struct oct_item {
  oct_parse_kind kind;  /* CONTENT, REASONING or CALL */
  GString *text;        /* of a call its arguments */
  const oct_call *call; /* NULL: no call */
  guint index;          /* in the answer */
  gboolean ended;
} oct_item;

/* One choice of one prompt: what came of it so far. */
struct oct_choice {
  oct_job *job;
  guint index;                  /* in the answer */
  guint prompt;                 /* which prompt it belongs to */
  oct_parser *parser;           /* NULL: text is text */
  GString *content, *reasoning; /* whole answers; NULL while streaming */
  GPtrArray *calls;             /* oct_call */
  GPtrArray *items;             /* oct_item; for shapes with blocks, streaming or not */
  gboolean in_reasoning;
  guint32 reasoning_tokens, output_tokens;
  /* JSON, items with commas between, that has not been written yet. */
  GString *logprobs;                                /* chat: objects of one token each */
  GString *tokens, *token_logprobs, *top, *offsets; /* completions */
  GString *ids;                                     /* return_token_ids */
  guint offset;                                     /* completions: characters so far */
  gboolean echoed, started, finished;
  oct_generation_finish finish;
  GArray *vector; /* float; of embeddings */
};

/* How an endpoint writes its answers. `out` of the job is the buffer of what is written next. */
struct oct_shape {
  /* Streams. Each appends whole frames to job->out. */
  void (*begin)(oct_job *job);
  void (*event)(oct_choice *choice, const oct_parse_event *event);
  void (*finish)(oct_choice *choice);
  void (*end)(oct_job *job);
  void (*fail)(oct_job *job, const oct_api_fault *fault);
  /* Instead of event(), for shapes with blocks (`items`). */
  void (*item_begin)(oct_choice *choice, const oct_item *item);
  void (*item_text)(oct_choice *choice, const oct_item *item, const char *text, gsize size);
  void (*item_end)(oct_choice *choice, const oct_item *item);
  gboolean items;
  /* Whole answers: appends the body. */
  void (*whole)(oct_job *job);
  gboolean chat_logprobs; /* else those of completions */
  gboolean anthropic;     /* errors */
  /* Before whole(), may be NULL: FALSE with a fault where the answer cannot be what was asked. */
  gboolean (*check)(oct_job *job, oct_api_fault *fault);
  gboolean vectors; /* pooled, not generated */
  const char *id_prefix, *object, *chunk;
};

/* Frames with a name: event: NAME, and data: a value that begins with "type": NAME. */
oct_out oct_event_open(oct_job *job, const char *name);
void oct_event_close(oct_job *job, oct_out *json); /* closes the object too */
/* A call's arguments as a JSON object; {"arguments": text} where they are none. */
void oct_item_put_input(const oct_item *item, oct_out *json);

/* One prompt's generation. */
typedef struct oct_run {
  oct_job *job;
  guint prompt;
  oct_generation *generation; /* NULL: ended, or not submitted */
} oct_run;

struct oct_job {
  oct_job_kind kind; /* first */
  oct_api *api;
  oct_http_exchange *x;
  const oct_shape *shape;
  oct_plan plan;
  char *id;
  guint64 number; /* of the API's jobs */
  gint64 created_s;
  oct_run *runs;                        /* [prompts] */
  oct_choice *choices;                  /* [prompts x n] */
  guint n_choices, n_live;              /* of prompts that have not ended */
  gboolean begun;                       /* the stream's head has been written */
  GString *out;                         /* frames to be written */
  GString *prefix;                      /* of every frame of a choice, kept by the shape */
  GString **prompt_logprobs;            /* [prompts] JSON, or NULL */
  GString **prompt_ids;                 /* [prompts] JSON, or NULL: not return_token_ids */
  guint32 *n_prompt;                    /* [prompts] tokens; 0: not known yet */
  guint64 prompt_tokens, cached_tokens; /* of the prompts that are known, that have ended */
  oct_generation_end times;             /* over all prompts: the first beginnings, the last ends */
  gint64 wrote_ns;
  guint n_events; /* responses: sequence_number */
  GList link;     /* in api->streams */
};

/* Makes a job of a plan, which it takes and empties, submits it, and answers when it is done. The
 * exchange's user becomes the job. */
void oct_job_start(oct_api *api, oct_http_exchange *x, const oct_shape *shape, oct_plan *plan);
/* The client has left. */
void oct_job_gone(oct_job *job);
/* Keeps a silent stream alive. */
void oct_job_keep_alive(oct_job *job);
/* An id for a call or an item: `prefix` and 24 hexadecimal digits, a function of the job, the
 * choice and the number; owned. */
char *oct_job_id(const oct_job *job, const char *prefix, guint choice, guint number);
guint64 oct_job_reasoning_tokens(const oct_job *job);
guint64 oct_job_output_tokens(const oct_job *job);

/* OpenAI's chunks (chunks.c): data: {…,"choices": and what follows is a value; the end of the
 * frame; the end of a stream; an error in one. */
oct_out oct_chunk_open(oct_job *job);
void oct_chunk_close(oct_job *job, oct_out *json);
void oct_chunk_end(oct_job *job);
void oct_chunk_fail(oct_job *job, const oct_api_fault *fault);
/* The same of whole answers: inside the list of choices, and behind it. */
oct_out oct_answer_open(oct_job *job);
void oct_answer_close(oct_job *job, oct_out *json);
/* "token_ids" of what has not been written yet; with `last` the prompt's too. */
void oct_choice_put_ids(oct_choice *choice, gboolean last, oct_out *json);
void oct_choice_put_prompt_logprobs(const oct_choice *choice, oct_out *json);

/* Whether an answer's usage and metrics are to be written, and how OpenAI writes them. */
void oct_job_put_usage(const oct_job *job, oct_out *json);
void oct_job_put_metrics(const oct_job *job, oct_out *json);
/* "stop", "length", "tool_calls". */
const char *oct_choice_finish_reason(const oct_choice *choice);
/* "stop_reason" as vLLM has it: the stop string, the stop token's id, or null. */
void oct_choice_put_stop_reason(const oct_choice *choice, oct_out *json);

/* --- logprobs (logprobs.c) ----------------------------------------------------------------------
 */

/* Takes in a delta's log probabilities, in the form of the job's shape. */
void oct_choice_add_logprobs(oct_choice *choice, const oct_generation_delta *delta);
/* Of a prompt's tokens [first, first + n), whose ids are ids[first …]. */
void oct_job_add_prompt_logprobs(oct_job *job, guint prompt, guint32 first,
                                 const oct_logprob *logprobs, guint32 n, const guint32 *ids);
/* The first token of a prompt that is echoed: once, whoever comes first. */
void oct_choice_add_echo(oct_choice *choice, guint32 id);
/* Writes and forgets what has been taken in; null where none were asked for. */
void oct_choice_put_chat_logprobs(oct_choice *choice, oct_out *json);
void oct_choice_put_logprobs(oct_choice *choice, oct_out *json);
/* The token as text; empties `out` first. */
void oct_api_token_text(const oct_api *api, guint32 id, GString *out);

/* --- endpoints ---------------------------------------------------------------------------------
 */

extern const oct_shape oct_chat_shape, oct_completions_shape, oct_embeddings_shape,
    oct_messages_shape, oct_responses_shape;

/* Each answers the exchange; `path` in the one spelling (keys.h). */
#define OCT_API_RUN(name)                                                                          \
  void oct_api_run_##name(oct_api *api, oct_http_exchange *x, const char *path)
OCT_API_RUN(models);
OCT_API_RUN(model);
OCT_API_RUN(health);
OCT_API_RUN(livez);
OCT_API_RUN(readyz);
OCT_API_RUN(ping);
OCT_API_RUN(version);
OCT_API_RUN(load);
OCT_API_RUN(metrics);
OCT_API_RUN(tokenize);
OCT_API_RUN(detokenize);
OCT_API_RUN(tokenizer_info);
OCT_API_RUN(embeddings);
OCT_API_RUN(count_tokens);

#endif
