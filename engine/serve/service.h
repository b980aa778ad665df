/* The service: engines on a thread of their own, text in and text out on the front's thread.
 *
 *   front thread                              engine thread                     text threads
 *   oct_service_submit()  -- commands -->     oct_engine_submit(), _cancel()    long prompts are
 *   oct_service_dispatch() <-- batches --     tokens of a step, ends            encoded, guides
 * make detokenizer, stop strings, callbacks    oct_engine_mask() <-- masks --    their masks
 *
 * One front thread (HTTP's) owns the service: every function here is called from it, and every
 * callback comes from within oct_service_dispatch() or oct_service_free() on it. Nothing here waits
 * for the engine: what does not fit is refused as busy. A generation ends exactly once, whatever
 * happens to the client, to the engine or to the service.
 *
 * With a real clock oct_service_start() starts the threads. With a virtual one oct_service_run()
 * does all of it in the calling thread and in one order: equal scripts give equal bytes.
 */
#ifndef OCT_SERVE_SERVICE_H
#define OCT_SERVE_SERVICE_H

#include <glib.h>

#include "engine/sched/engine.h"
#include "engine/text/prompt.h"
#include "engine/text/stop.h"
#include "engine/text/tokenizer.h"

#define OCT_SERVICE_REPLICAS_MAX 64
#define OCT_SERVICE_CHOICES_MAX  8 /* of a generation */

#define OCT_SERVICE_ERROR (oct_service_error_quark())
GQuark oct_service_error_quark(void);
typedef enum oct_service_error {
  OCT_SERVICE_ERROR_INPUT,     /* a request that cannot be; HTTP 400 */
  OCT_SERVICE_ERROR_BUSY,      /* too many generations, or text to encode; HTTP 429 */
  OCT_SERVICE_ERROR_DOWN,      /* draining, stopped, or no engine lives; HTTP 503 */
  OCT_SERVICE_ERROR_FAILED,    /* the engine failed it, after retries; HTTP 500 */
  OCT_SERVICE_ERROR_TIMED_OUT, /* its deadline passed; HTTP 504 */
  OCT_SERVICE_ERROR_CANCELLED, /* oct_generation_cancel(); nobody is there to be answered: 499 */
  OCT_SERVICE_ERROR_TOO_LONG, /* prompt and max_tokens exceed the context or the memory; HTTP 400 */
} oct_service_error;
/* The HTTP status of any error that this header or the engine's and the text's give. */
guint oct_service_error_status(const GError *error);

typedef struct oct_service oct_service;
typedef struct oct_generation oct_generation;

/* ---------------------------------------------------------------- generations */

/* What an answer must fit (engine/text/guide.h). Compiled, and kept for the next that asks for the
 * same, on the text thread: what cannot be compiled ends the generation with an error (400). */
typedef enum oct_constraint {
  OCT_CONSTRAINT_NONE,
  OCT_CONSTRAINT_REGEX,  /* `constraint_text` is the pattern */
  OCT_CONSTRAINT_CHOICE, /* a JSON array of strings */
  OCT_CONSTRAINT_JSON,   /* any JSON object; no text */
  OCT_CONSTRAINT_SCHEMA, /* a JSON schema */
} oct_constraint;

/* Everything is copied but `prompt` and `stops`, which are taken, also when submit() fails. */
typedef struct oct_generation_params {
  /* The prompt: ids, or else text (text needs a tokenizer). */
  const guint32 *prompt_ids;
  guint32 n_prompt_ids;
  oct_prompt *prompt;
  gboolean plain; /* of `prompt`: add what the tokenizer puts before and after a plain text (BOS) */

  /* Of these the service sets: user, arrival_ns, deadline_ns, prompt_tokens, prompt_ids, seed,
   * stop tokens that the tokenizer ends with (unless ignore_eos), n_logprobs and guided. max_tokens
   * 0: as many as the context allows. */
  oct_request_params sampling;
  gboolean seeded; /* `sampling.seed` counts, 0 included; else each generation has its own */
  int n_logprobs;  /* -1: none; 0: of the chosen tokens; k: and of the k likeliest others */

  oct_stop_set *stops;        /* NULL: none */
  gboolean include_stop;      /* the stop string, or the stop token's text, is part of the text */
  gboolean no_text;           /* ids only; always so without a tokenizer, which then has no stops */
  gboolean keep_special;      /* control tokens are part of the text: skip_special_tokens FALSE */
  const char *const *markers; /* static: of control tokens, text in any case */
  guint n_markers;
  oct_constraint constraint;
  const char *constraint_text;
  gint64 timeout_ns;      /* from submit(); 0: none */
  const char *request_id; /* for the log; NULL: none */
} oct_generation_params;
/* Text on, no stops, no logprobs, sampling as oct_request_params_default() but max_tokens 0. */
void oct_generation_params_default(oct_generation_params *params);

/* New output of a choice. A choice's texts in order are its text, its ids its ids. Text lags behind
 * ids while it may be the beginning of a stop string or of a character: either may be empty. */
typedef struct oct_generation_delta {
  guint32 choice;
  const char *text; /* UTF-8, whole characters, [size]; valid during the call, as all here */
  gsize size;
  const guint32 *ids; /* [n_ids] */
  guint32 n_ids;
  const oct_logprob *logprobs; /* [n_ids][logprobs_each]: the token's own, then the likeliest
                                  others; NULL when none were asked for */
  guint32 logprobs_each;       /* 1 + MAX(n_logprobs, 1) */
} oct_generation_delta;

typedef enum oct_finish { OCT_FINISH_STOP, OCT_FINISH_LENGTH } oct_finish;

typedef struct oct_generation_finish {
  guint32 choice;
  oct_finish reason;
  int stop_string;    /* index in the stop set, -1: none */
  guint32 stop_token; /* of the request's stop_tokens, OCT_NO_TOKEN: none (an end of the model) */
  guint32 output_tokens; /* of this choice */
} oct_generation_finish;

/* How a generation ended. Times are of the service's clock; -1: never happened. */
typedef struct oct_generation_end {
  const GError *error; /* NULL: every choice has finished */
  guint32 prompt_tokens, cached_tokens;
  guint32 output_tokens; /* over all choices */
  guint32 preemptions;
  guint32 draft_tokens, accepted_tokens; /* speculative decoding: verified, and accepted */
  gint64 received_ns;                    /* submit() */
  gint64 queued_ns;                      /* handed to an engine: encoded, constraint compiled */
  gint64 admitted_ns;                    /* prefill begins */
  gint64 first_token_ns;                 /* decoding begins */
  gint64 last_token_ns;
  gint64 ended_ns;
} oct_generation_end;

/* Any may be NULL. submit(), cancel() and forget() may be called from all of them. */
typedef struct oct_generation_listener {
  void (*delta)(void *user, oct_generation *generation, const oct_generation_delta *delta);
  /* A choice has had its last delta. */
  void (*finished)(void *user, oct_generation *generation, const oct_generation_finish *finish);
  /* For sampling.n_prompt_logprobs > 0, before the first delta: of prompt tokens [first, first + n)
   * [n][1 + n_prompt_logprobs]; token 0 has none. */
  void (*prompt_logprobs)(void *user, oct_generation *generation, guint32 first,
                          const oct_logprob *logprobs, guint32 n);
  /* For sampling.pooling, before ended(). */
  void (*pooled)(void *user, oct_generation *generation, const float *values, guint32 n);
  /* Exactly once, last. The generation is gone when this returns. */
  void (*ended)(void *user, oct_generation *generation, const oct_generation_end *end);
} oct_generation_listener;

/* Takes a request, or refuses it with *error; a refused one has no callback. The listener is
 * copied. */
oct_generation *oct_service_submit(oct_service *service, const oct_generation_params *params,
                                   const oct_generation_listener *listener, void *user,
                                   GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Ends it, in whatever state: ended() follows from a dispatch, with CANCELLED unless it had ended
 * by itself. No delta comes after this. */
void oct_generation_cancel(oct_generation *generation);
/* The same for a client that has gone: no callback comes any more, ended() included. The pointer is
 * dead when this returns. */
void oct_generation_forget(oct_generation *generation);
/* The prompt's ids, from the first callback on; borrowed until ended() returns. */
const guint32 *oct_generation_prompt(const oct_generation *generation, guint32 *n);

/* ---------------------------------------------------------------- life cycle */

/* A row of the traffic, for a trace: what traces/trace.h calls a request. One for each choice that
 * has sampled anything. */
typedef struct oct_service_row {
  gint64 arrival_ns; /* since the first row's */
  guint32 input_tokens, output_tokens, max_tokens;
  guint32 block_size;
  const guint64
      *hash_ids; /* [n_hash_ids], below 2^63: prompt blocks, the last one may be partial */
  guint32 n_hash_ids;
  const guint64 *output_hash_ids; /* [n_output_hash_ids], from block input_tokens / block_size on */
  guint32 n_output_hash_ids;
  gint32 priority;
} oct_service_row;

typedef struct oct_service_config {
  oct_world *world; /* borrowed; nobody else runs it */
  /* Or, with `world` NULL: makes it on the engine thread, which frees it too. For worlds that live
   * on one thread (a paced SimGrid). Real clocks only. */
  oct_world *(*make_world)(void *user, GError **error);
  /* Each replica's; listener, devices and seed are set by the service. carry_ids is needed. */
  oct_engine_config engine;
  guint32 n_replicas;     /* 0 = 1 */
  const guint16 *devices; /* [n_replicas x ranks]: device of each rank; copied */

  const oct_tokenizer *tokenizer; /* borrowed; NULL: token ids only */
  gint64 (*now_ns)(void *clock);  /* never goes back; called from every thread */
  void *clock;
  void (*notify)(void *user); /* dispatch is due; from any thread; must not block */
  void *user;                 /* of make_world, notify, log and record */

  guint32 generations_max; /* live at once; more are BUSY. 0 = 8192 */
  guint32 n_workers;       /* threads that encode prompts. 0 = 2 */
  gint64 busy_ns;          /* without progress for longer: health says busy. 0 = 1 s */
  gint64 stall_ns;         /* … stalled. 0 = 30 s */
  gboolean has_weights;    /* the world holds the model's: metrics say how much that is */
  const char *model_name;  /* label of metrics; copied */
  guint64 seed;            /* of the hashes in the record */
  /* For worlds that make their tokens up, and would never end: an answer whose request does not say
   * how long it may be has about so many tokens, and text that must fit a constraint is brought to
   * its end after so many. 0: answers end by themselves. */
  guint32 imagined_tokens;

  /* A line for each generation that has ended: request id, outcome, tokens, phases. NULL: none. */
  void (*log)(void *user, const char *line);
  /* The traffic, in the order of arrival, each when it and all before it have ended. NULL: none. */
  void (*record)(void *user, const oct_service_row *row);
  guint32 record_block; /* tokens per hash block; 0 = 16 */
} oct_service_config;

/* Copies the config. NULL with *error: what no engine could be made of is found by start(). */
oct_service *oct_service_new(const oct_service_config *config,
                             GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Starts the threads and opens the instances; generations may be submitted at once and wait until
 * they are open. FALSE with *error: no thread, a world with a virtual clock, or (waited for) an
 * engine that cannot be made. */
gboolean oct_service_start(oct_service *service, GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Calls back what has happened since; never waits. */
void oct_service_dispatch(oct_service *service);
/* Asks the engine thread to end: what is left ends as DOWN. */
void oct_service_stop(oct_service *service);
/* TRUE when the engine thread has ended: free() will not wait. notify() comes when it does. */
gboolean oct_service_is_stopped(const oct_service *service);
/* Stops, waits for the threads, ends what is left with callbacks. Accepts NULL. Where the engine
 * thread may hang in its backend, wait for is_stopped() as long as you care, and leave. */
void oct_service_free(oct_service *service);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(oct_service, oct_service_free)

/* Virtual clocks: runs in the calling thread until `front` returns FALSE. It is called first at
 * time 0, then at *next (its last answer; OCT_TIME_NEVER: not by time) and after whatever was
 * dispatched. FALSE with *error: an engine could not be made, or the world came to rest while front
 * waits for it. */
typedef gboolean (*oct_service_front)(void *user, oct_time now, oct_time *next);
gboolean oct_service_run(oct_service *service, oct_service_front front, void *user,
                         GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* ---------------------------------------------------------------- shutdown */

typedef enum oct_service_phase {
  OCT_SERVICE_RUNNING,
  OCT_SERVICE_LAME,     /* not ready, so that nobody new is sent here; still accepts */
  OCT_SERVICE_DRAINING, /* refuses; what is in goes on */
  OCT_SERVICE_ABORTED,  /* what was left has been ended as DOWN */
} oct_service_phase;
oct_service_phase oct_service_get_phase(const oct_service *service);
/* Only forwards. ABORTED: the ends come from dispatch; stop() need not be called before. */
void oct_service_set_phase(oct_service *service, oct_service_phase phase);
/* Generations that have not ended, forgotten ones included until their memory is back. */
guint32 oct_service_active(const oct_service *service);

/* ---------------------------------------------------------------- inspect: never waits */

typedef enum oct_health {
  OCT_HEALTH_OPENING, /* weights are being loaded */
  OCT_HEALTH_OK,      /* idle, or something was finished less than busy_ns ago */
  OCT_HEALTH_BUSY,    /* there is work, and nothing was finished for busy_ns */
  OCT_HEALTH_STALLED, /* … for stall_ns */
  OCT_HEALTH_DEAD,    /* no engine will serve again without a restart */
} oct_health;
const char *oct_health_name(oct_health health); /* "ok" …; static */

typedef struct oct_service_status {
  oct_health health;      /* of the worst replica that there is work for; DEAD only when all are */
  gboolean ready;         /* serving, neither lame nor stalled, and the queue has room */
  gint64 progress_age_ns; /* since the last thing that the world finished */
  guint32 active;         /* as oct_service_active() */
  guint32 running, waiting; /* sequences in the engines */
  double opened;            /* 0..1 */
  char reason[128];         /* why it is not OK; "" */
} oct_service_status;
void oct_service_get_status(const oct_service *service, oct_service_status *status);
/* Appends all metrics in Prometheus' text format. */
void oct_service_write_metrics(oct_service *service, GString *out);
/* Counters of one replica, as of its last step. */
void oct_service_get_stats(const oct_service *service, guint32 replica, oct_engine_stats *stats);
/* How often a replica's instance was lost; into reason[room] why it was the last time, or "". */
guint64 oct_service_lost(const oct_service *service, guint32 replica, char *reason, gsize room);
const oct_tokenizer *oct_service_tokenizer(const oct_service *service); /* NULL: none */
guint32 oct_service_max_model_len(const oct_service *service);

/* ---------------------------------------------------------------- work off the front thread */

/* Calls work(user) on a text thread, then done(user) from a dispatch, which comes exactly once,
 * also when the service is freed before (then without work). For what is long: rendering and
 * encoding a long text. FALSE with *error (BUSY): too many are queued, and nothing is called. */
gboolean oct_service_offload(oct_service *service, void (*work)(void *user),
                             void (*done)(void *user), void *user,
                             GError **error) G_GNUC_WARN_UNUSED_RESULT;

#endif
