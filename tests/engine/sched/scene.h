/* A scene for tests of the engine: a small model, a mock world (behind a fault wrapper when a
 * script is given) and one engine, with what every submitted step was made of.
 *
 *   scene s;  scene_init(&s, "llama", 64, 0);  s.config.run_ahead = 0;
 *   rig_request *q = scene_ask(&s, 1, 40, 8);  scene_run(&s);
 *   q->record …;  scene_step_at(&s, 0)->text …;  scene_clear(&s);
 *
 * scene_run() fails the test when the rig finds anything wrong, and when anything is held at the
 * end.
 */
#ifndef OCT_TESTS_SCENE_H
#define OCT_TESTS_SCENE_H

#include "backends/fault/fault.h"
#include "backends/mock/mock.h"
#include "engine/sched/internal.h"
#include "tests/engine/sched/rig.h"

#define MS G_GINT64_CONSTANT(1000000)

/* A submitted step. `text` lists its slices in order, "SEED@POSITION+TOKENS", with a * when it
 * samples; SEED is that of the request (a further choice of it has another). */
typedef struct scene_step {
  guint32 instance_step; /* its number */
  guint32 n_slices, n_tokens, n_copies, n_decodes;
  guint64 unfinished; /* steps in flight when it was submitted, itself included */
  char *text;
} scene_step;

typedef struct scene {
  oct_model_spec *spec;
  oct_engine_config config; /* of the first engine; change it before scene_run() */
  oct_mock_options mock;
  oct_fault_options fault; /* in use once n_script > 0 or rate > 0 */
  /* A stage's time: fixed + token x tokens. mock.step_time, .fixed_ns and .token_ns are not used.
   */
  gint64 fixed_ns, token_ns;
  rig rig;
  GPtrArray *steps; /* scene_step */
  guint64 *seeds;   /* of the slot's sequence */
  guint32 n_asked;
  gboolean keeps;    /* leave out the check that nothing is held at the end */
  guint64 seed_base; /* seeds of requests begin above it */
} scene;

/* "llama", "hybrid" or "window" as rig_spec(), `pages` device and `host` host items per group.
 * Steps take 1 ms and 10 us a token; pages have 16 tokens; 16 sequences, 64 tokens a step;
 * run-ahead with 0.2 ms lead; ids and tags are carried. */
void scene_init(scene *s, const char *kind, guint32 pages, guint32 host);
/* A request at time 0 with `prompt` ids of family `family` (equal families share their beginning)
 * that ignores the end of sequence. Change its params before scene_run(). */
rig_request *scene_ask(scene *s, guint64 family, guint32 prompt, guint32 max_tokens);
void scene_run(scene *s);
void scene_clear(scene *s);
const scene_step *scene_step_at(const scene *s, guint i);
const oct_engine_stats *scene_stats(const scene *s);
/* The live engine's request, NULL once it is gone; for hooks. */
oct_request *scene_find(const scene *s, const rig_request *q);
/* State of the request's first choice, or ENDED when it is gone. */
oct_seq_state scene_state(const scene *s, const rig_request *q);
/* Token `i` that a request with this seed must get. */
gboolean scene_same_tokens(const rig_request *a, const rig_request *b);

#endif
