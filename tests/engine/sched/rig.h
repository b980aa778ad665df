/* A rig for tests of the engine: drives engines on a world with scripted requests, checks the books
 * after every event, and keeps what every request got.
 *
 *   rig r;  rig_init(&r, world);  rig_add_engine(&r, &config);
 *   rig_add(&r, 0, &params);  …  rig_run(&r);  r.requests[i].record …;  rig_clear(&r);
 */
#ifndef OCT_TESTS_RIG_H
#define OCT_TESTS_RIG_H

#include "engine/sched/engine.h"

#define RIG_ENGINES_MAX 4

typedef struct rig_request {
  oct_request_params params; /* ids are owned by the rig */
  guint engine;
  oct_time cancel_ns; /* 0 = never */
  oct_request_id id;  /* 0 until accepted */
  gboolean refused;
  char *refusal;
  guint n_ends;
  gboolean stopped; /* oct_engine_stop() ended a choice of it */
  oct_request_record record;
  GArray *tokens[8]; /* guint32, per choice; only with carry_ids */
  guint32 n_scored;  /* prompt tokens whose logprobs came, token 0 included */
  /* oct_logprob: per token its own and the others that were asked for. */
  GArray *logprobs[8], *prompt_logprobs;
  guint n_asked;  /* masks that the engine wanted */
  GArray *pooled; /* float: the vector */
  oct_time first_start_ns;
} rig_request;

/* A mask that will be given. */
typedef struct rig_answer {
  rig_request *request;
  guint32 choice, n_output;
  oct_time due_ns;
} rig_answer;

typedef struct rig rig;
struct rig {
  oct_world *world;
  guint n_engines;
  oct_engine_config configs[RIG_ENGINES_MAX];
  oct_engine *engines[RIG_ENGINES_MAX];    /* live during the run only */
  oct_engine_stats stats[RIG_ENGINES_MAX]; /* when it had ended */
  GPtrArray *requests; /* rig_request, in the order added; arrivals are sorted by rig_run() */
  gboolean check;      /* oct_engine_check() after every event */
  gboolean fatal;      /* a FATAL fault is part of the test; else it is a failure */
  gboolean (*on_event)(rig *r, const oct_event *event, void *user); /* before the engine sees it;
                                                                       FALSE: not handed on */
  void (*on_turn)(rig *r, void *user); /* after every turn and every event, before the check */
  void (*on_ended)(rig *r, rig_request *request, void *user); /* from within the engine */
  void (*on_finish)(rig *r, void *user);                      /* the engines are still there */
  guint (*route)(rig *r, const rig_request *request);         /* NULL: request.engine */
  /* How long the owner of a guided request takes to answer: 0 = at once, below 0 = for ever; NULL:
   * at once. */
  gint64 (*answer_ns)(rig *r, const rig_request *request, guint32 choice, guint32 n_output);
  GArray *answers; /* rig_answer */
  void *user;
  guint64 events_max; /* more is a hang */
  guint64 stop_at;    /* the engines are freed after so many events, whatever runs; 0 = not */
  guint64 n_events;
  oct_time now;
  char *failure; /* first thing that was wrong, NULL = nothing */
};

void rig_init(rig *r, oct_world *world);
/* Opened by rig_run(); a config that is refused is its failure. The listener is the rig's. */
void rig_add_engine(rig *r, const oct_engine_config *config);
/* Copies params and its ids. */
rig_request *rig_add(rig *r, guint engine, const oct_request_params *params);
rig_request *rig_request_at(const rig *r, guint i);
/* Hands it in now, whatever its arrival says: for hooks, also from within the engine. */
void rig_submit(rig *r, rig_request *request);
/* Whether the mask of an output token allows `token`: of each, about half, by a hash of the
 * request's seed, the choice and the place. What a guided request gets is checked against it. */
gboolean rig_allows(const rig_request *request, guint32 choice, guint32 n_output, guint32 token);
/* Runs until every request has ended and the world is at rest (a real clock never is: until every
 * request has ended), or something is wrong (r->failure). */
void rig_run(rig *r);
void rig_clear(rig *r);

/* Small models as specs: "llama" (8 layers, GQA), "hybrid" (KDA and MLA), "window" (sliding and
 * full). */
oct_model_spec *rig_spec(const char *kind);
/* An engine on that spec with `pages` pages (and states) per group. */
void rig_config(oct_engine_config *config, const oct_model_spec *spec, guint32 pages, guint32 host);
/* A prompt of n ids drawn from `seed`; equal seeds share their ids from the first on. Owned by
 * g_free(). */
guint32 *rig_prompt(const oct_model_spec *spec, guint64 seed, guint32 n);

#endif
