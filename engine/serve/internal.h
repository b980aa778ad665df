/* The service's inside. Which thread owns what is written beside it: F front, E engine thread, T
 * the text thread that makes masks, W a text thread that encodes. What two of them use is atomic,
 * or is handed over by a ring: written by one before the push, read by the other after the pop.
 *
 * A generation, as the front sees it:
 *
 *   ENCODING --> COMPILING --> SUBMITTED --> (the engine is done with it)
 *       \            \             \
 *        +------------+-------------+--> ended: its client has been told, or has left
 *
 * Ending and being done are two things: a client is told at once, the engine lets go when it can.
 * Memory is counted by references: the front's until both have come, the engine's, the text
 * threads'.
 */
#ifndef OCT_SERVE_INTERNAL_H
#define OCT_SERVE_INTERNAL_H

#include <stdatomic.h>

#include "engine/base/hash.h"
#include "engine/base/worker.h"
#include "engine/serve/outbox.h"
#include "engine/serve/service.h"
#include "engine/text/detokenizer.h"
#include "engine/text/guide.h"

typedef struct oct_measures oct_measures;
typedef struct oct_recorder oct_recorder;
typedef struct oct_guides oct_guides;
typedef struct oct_guide_answer oct_guide_answer;
typedef struct oct_workers oct_workers;
typedef struct oct_bulletin oct_bulletin;

/* ---------------------------------------------------------------- generation */

typedef struct oct_choice {
  oct_detokenizer *detokenizer; /* NULL: no text */
  oct_stop_matcher matcher;
  guint32 n_out;
  gint64 last_ns; /* when its last token came; -1: none has */
  gboolean finished;
  GArray *ids; /* guint32, for the record; NULL: not kept */
} oct_choice;

typedef enum oct_stage { OCT_STAGE_ENCODING, OCT_STAGE_COMPILING, OCT_STAGE_SUBMITTED } oct_stage;

struct oct_generation {
  atomic_uint references;
  oct_service *service;

  /* Set by the front before anyone else sees it, constant after that. */
  oct_request_params sampling; /* what the engine is given */
  oct_token_bias *biases;
  GArray *prompt;                 /* guint32; W fills it while ENCODING */
  guint32 n_choices, n_own_stops; /* of sampling.stop_tokens the first are the request's own */
  gint64 timeout_ns, received_ns;
  oct_constraint constraint;
  char *constraint_text;

  /* F */
  oct_generation *previous, *next; /* of those that are not ended and done */
  oct_generation_listener listener;
  void *user;
  oct_stage stage;
  gboolean closed; /* its client is not called any more but for ended() */
  gboolean ended;  /* … and has had that, or has left */
  gboolean done;   /* the engine has let go, or never had it */
  GError *error;   /* why it ends; NULL: well */
  oct_stop_set *stops;
  gboolean include_stop, text, keep_special;
  const char *const *markers; /* static */
  guint n_markers;
  int n_logprobs;
  char *request_id;
  guint32 n_finished, max_out;
  oct_choice choices[OCT_SERVICE_CHOICES_MAX];
  oct_generation_end end;
  oct_end_reason reason; /* what metrics count it as */
  guint64 row;           /* in the record, from 0 */
  guint32 measured_at;   /* the replica that it is counted for: 0 until one tells of it */

  /* W while ENCODING */
  oct_prompt *text_prompt;
  gboolean plain;
  GError *encode_error;

  /* E */
  guint32 replica;
  guint32 n_parts, n_left; /* requests it was made, and those of them that have not ended */
  oct_request_id
      ids[OCT_SERVICE_CHOICES_MAX]; /* of the parts; 0: the engine has it not (any more) */
  gboolean refused;                 /* what parts an engine took are not told of */
  oct_request_record record;

  /* T */
  struct oct_guided *guided;
};

oct_generation *oct_generation_ref(oct_generation *generation);
void oct_generation_unref(oct_generation *generation);

/* ---------------------------------------------------------------- front to engine */

#define OCT_COMMANDS_IN_RING 4096u

typedef enum oct_command_kind {
  OCT_COMMAND_SUBMIT,
  OCT_COMMAND_CANCEL,
  OCT_COMMAND_STOP, /* one choice */
} oct_command_kind;

typedef struct oct_command {
  oct_command_kind kind;
  guint32 choice;
  oct_generation *generation; /* with a reference */
} oct_command;

/* ---------------------------------------------------------------- engine to front */

typedef enum oct_note_kind {
  OCT_NOTE_TOKENS,          /* ids, then logprobs */
  OCT_NOTE_PROMPT_LOGPROBS, /* first token in `choice`, logprobs */
  OCT_NOTE_POOLED,          /* floats */
  OCT_NOTE_ENDED,           /* oct_request_record */
  OCT_NOTE_REFUSED,         /* code in `choice`, message with its NUL */
  OCT_NOTE_STEP,            /* tokens of a step of `replica` in `n`; no generation */
} oct_note_kind;

/* A note is followed by its payload; `bytes` leads to the next one. */
typedef struct oct_note {
  guint32 bytes; /* with payload, a multiple of 8 */
  guint32 kind;  /* oct_note_kind */
  guint32 choice, n;
  guint32 each;    /* logprobs of a token; 0: none */
  guint32 replica; /* of the generation; with OCT_NOTE_STEP of the step */
  oct_generation *generation;
  gint64 time_ns; /* of the service's clock */
} oct_note;

/* ---------------------------------------------------------------- service */

typedef struct oct_replica {
  oct_service *service;
  guint32 number;
  oct_engine *engine;  /* E */
  oct_time wake;       /* E */
  gboolean dirty;      /* E */
  guint64 step_tokens; /* E: computed and generated tokens when its last step was noted */
} oct_replica;

struct oct_service {
  oct_service_config config; /* constant; .engine.listener, .devices are per replica */
  guint16 *devices;
  guint32 ranks;
  gboolean is_virtual, threaded;
  guint32 n_replicas;
  oct_replica replicas[OCT_SERVICE_REPLICAS_MAX];
  GArray *ends; /* guint32: the tokenizer's ends that the model's spec does not have; constant */

  /* F */
  oct_generation *first;
  guint32 n_active, n_live; /* not yet done; not yet ended */
  GPtrArray *due;           /* generations to be ended by the next dispatch; each a reference */
  oct_service_phase phase;
  gboolean dispatching;
  guint64 n_submitted;
  GString *text, *piece; /* scratch of deltas */
  oct_measures *measures;
  oct_recorder *recorder; /* NULL: nothing is recorded */

  /* Between threads. */
  oct_outbox *commands;   /* oct_command, F to E */
  oct_ring *batches;      /* GByteArray *, E to F */
  oct_ring *spares;       /* GByteArray *, emptied, F to E */
  oct_guides *guides;     /* T; NULL: no tokenizer */
  oct_workers *workers;   /* W */
  oct_bulletin *bulletin; /* E writes, F reads */
  atomic_bool quit, engine_ended;

  /* E */
  oct_worker *engine_worker;
  oct_bell *started, *released;
  GError *start_error;     /* before `started` rings */
  oct_time now;            /* the world's */
  gint64 offset_ns;        /* of the service's clock to it */
  GByteArray *batch;       /* being filled */
  oct_service_front front; /* virtual: called between events */
  void *front_user;
  oct_time front_next;
};

/* The service's clock. */
gint64 oct_service_now(const oct_service *service);
void oct_service_notify(oct_service *service);

/* ---- front.c: generations on the front thread */
/* Its prompt is there: on to the next stage. */
void oct_front_encoded(oct_generation *generation);
/* Its constraint is there; takes the error, NULL when it is. */
void oct_front_compiled(oct_generation *generation, GError *error);
/* Ends it for its client with the next dispatch; takes the error. */
void oct_front_end_soon(oct_generation *generation, GError *error);
/* Ends every one that has not: draining is over, or no engine lives. */
void oct_front_end_all(oct_service *service, const char *why);
/* The engine has nothing of it any more. */
void oct_front_done(oct_generation *generation);
void oct_front_note(oct_service *service, const oct_note *note);
/* Ends those that are due. TRUE when there were any. */
gboolean oct_front_end_due(oct_service *service);
/* To the engine thread; takes the reference. */
void oct_front_command(oct_service *service, oct_command_kind kind, guint32 choice,
                       oct_generation *generation);

/* ---- service.c. Virtual clocks: dispatches, calls the front when it is due. FALSE: it is over.
 * *again: there is something for the engines to take. */
gboolean oct_service_front_turn(oct_service *service, gboolean *again);

/* ---- text.c: tokens of a choice to its deltas */
void oct_text_open(oct_generation *generation);
void oct_text_close(oct_generation *generation);
void oct_text_tokens(oct_generation *generation, const oct_note *note);
/* The engine says that the choice has ended. */
void oct_text_finish(oct_generation *generation, guint32 choice, oct_finish reason);

/* ---- loop.c: the engine thread */
int oct_service_loop(oct_world *world, void *service);
/* E: appends a note to the batch and returns room for its payload. */
void *oct_loop_note(oct_service *service, oct_note_kind kind, oct_generation *generation,
                    guint32 choice, guint32 n, gsize payload);
/* E: hands over what has been noted. */
void oct_loop_flush(oct_service *service);

/* ---- requests.c: generations as requests, on the engine thread */
void oct_requests_listen(oct_replica *replica, oct_listener *listener);
void oct_requests_command(oct_service *service, const oct_command *command);
void oct_requests_refuse(oct_service *service, oct_generation *generation, oct_service_error code,
                         const char *why);
void oct_requests_mask(oct_service *service, const oct_guide_answer *answer);

#endif
