/* A service without an engine: the answers are the test's. It defines the functions of
 * engine/serve/service.h that engine/api calls, so that the linker takes none of the real ones.
 *
 * Every choice of a generation takes the next of the answers that were given, in order, and says it
 * token by token. */
#ifndef OCT_TESTS_API_FAKE_SERVICE_H
#define OCT_TESTS_API_FAKE_SERVICE_H

#include "engine/serve/service.h"

#define FAKE_LOGPROB_STEP 0.25f /* the chosen token has -0.25, the others one step less each */

struct oct_service {
  const oct_tokenizer *tokenizer;
  guint32 context;
  gint64 now_ns;   /* one millisecond more with each token */
  GQueue answers;  /* char *: control tokens in it are tokens */
  GPtrArray *live; /* oct_generation */
  GQueue offloaded;
  guint32 tokens_of_delta; /* 0: 1 */
  guint hold;              /* steps of a second each in which generations say nothing */
  guint n_submitted, n_forgotten;
  int refuse_code; /* of the next submit(), -1: none */
  int fail_code;   /* of the next generation, after `fail_after` deltas; -1: none */
  guint fail_after;
  oct_service_status status;
  /* Of the last submit(). */
  oct_generation_params params;
  GString *prompt; /* as text, with control tokens */
  char *constraint;
  guint32 logit_bias_token;
  GArray *stop_tokens;
};

oct_service *fake_service_new(const oct_tokenizer *tokenizer, guint32 context);
void fake_service_free(oct_service *service);
void fake_service_answer(oct_service *service, const char *text);
/* Does one thing for every generation; FALSE when there is nothing to do. */
gboolean fake_service_step(oct_service *service);

#endif
