/* A rig for tests of the service: scripted clients in virtual time on one thread, and what each of
 * them got. Everything that a client must never see is asserted as it happens: a delta after the
 * end of its choice, a second end, half a character, an end without all choices and without error.
 *
 *   serve_rig r;  serve_rig_init(&r, world);  serve_ask *a = serve_add(&r, at_ns, "text");
 *   a->params.sampling.max_tokens = 5;  …  serve_run(&r);  … a->choices[0].text …;
 *   serve_rig_clear(&r);
 */
#ifndef OCT_TESTS_SERVE_RIG_H
#define OCT_TESTS_SERVE_RIG_H

#include "engine/serve/service.h"

#define MS 1000000

typedef struct serve_choice {
  GString *text;
  GArray *ids;      /* guint32 */
  GArray *logprobs; /* oct_logprob */
  guint n_deltas;
  gboolean finished;
  oct_generation_finish finish;
} serve_choice;

typedef struct serve_rig serve_rig;

typedef struct serve_ask {
  serve_rig *rig;
  oct_time at_ns, cancel_ns; /* 0: never */
  gboolean forgets;          /* rather than cancels */
  guint cancel_at_delta;     /* from within that delta, from 1; 0: never */
  char *text;                /* encoded as plain text; NULL: params.prompt_ids */
  const char *stops[4];      /* NULL-terminated */
  oct_generation_params params;
  oct_generation *generation; /* while it lives */
  guint n_deltas, n_ends;
  serve_choice choices[8];
  GArray *prompt; /* guint32, as it was at the end */
  GArray *prompt_logprobs, *pooled;
  guint32 prompt_logprobs_from;
  oct_generation_end end; /* its error is below */
  GError *error;          /* of submit() or of the end */
  gboolean refused;
  oct_time ended_ns, gone_ns; /* when the service had let go of everything; -1: not yet */
} serve_ask;

struct serve_rig {
  oct_world *world; /* owned */
  oct_model_spec *spec;
  oct_tokenizer *tokenizer;
  oct_service_config config; /* to be changed before serve_run() */
  oct_service *service;
  GPtrArray *asks;
  GPtrArray *log; /* lines */
  guint n_running;
  oct_time over_ns; /* when it will have lingered long enough; -1: there is work */
  gboolean (*each)(serve_rig *rig, oct_time now, oct_time *next); /* more to do; FALSE: over */
  void *user;
  GError *error; /* of run() */
};

/* Takes the world (virtual clock). The model is small, with the vocabulary of the byte tokenizer.
 */
void serve_rig_init(serve_rig *rig, oct_world *world);
/* A rig on a mock world with one ask. */
void serve_rig_one(serve_rig *rig, serve_ask **out, const char *text);
serve_ask *serve_add(serve_rig *rig, oct_time at_ns, const char *text);
/* Runs until every ask has ended and the service has nothing left, and the steps have ended that
 * were under way then. */
void serve_run(serve_rig *rig);
/* The service is still there after run(): metrics, status. Frees it and all else. */
void serve_rig_clear(serve_rig *rig);
/* For tests with a service of their own: submits now, and the rig's listener. */
void serve_submit(serve_ask *ask);

#endif
