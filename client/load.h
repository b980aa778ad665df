/* Load for a server: the requests of a trace sent in real time, and what came of them.
 *
 * Which request is due when is the feed's business (sim/replay/feed.h): open loop by arrival times,
 * turns of a session after the turn before, closed loop when a slot is free. What is due is sent at
 * once, unless max_concurrency are out: then it waits here, and its waiting counts.
 *
 * Each request is looked at in three ways, each with figures of its own over one window:
 *   from_due   from the time when it was due: what a user waits. A server that makes the load wait
 *              cannot hide it (no coordinated omission). In a closed loop, and for turns of a
 *              session, due is when the request before has ended and its pause is over.
 *   from_sent  from the time when it was handed to the connection; `queue` is how late that was.
 *   server     what the server says of itself in "metrics", where it does.
 * `queue` in from_due is the server's own queue, as in a replay.
 *
 * TTFT is to the first chunk that bears tokens (client/ask.h), E2E to the last, TPOT =
 * (E2E - TTFT) / (tokens - 1) with the usage's number of tokens, ITL the gaps between chunks: where
 * a server sends several tokens at once, its gaps are longer and fewer than its tokens'.
 *
 * One thread, that of the client.
 */
#ifndef OCT_CLIENT_LOAD_H
#define OCT_CLIENT_LOAD_H

#include <signal.h>
#include <stdio.h>

#include <jansson.h>

#include "client/ask.h"
#include "client/prompt.h"
#include "sim/replay/feed.h"
#include "sim/replay/metrics.h"

typedef enum oct_load_endpoint { OCT_LOAD_COMPLETIONS, OCT_LOAD_CHAT } oct_load_endpoint;
const char *oct_load_path(oct_load_endpoint endpoint); /* static */

typedef struct oct_load_progress {
  oct_time now_ns; /* since the start */
  guint64 sent, ended, failed;
  guint64 out; /* with the server */
} oct_load_progress;

/* Plain data; everything is borrowed for the run. */
typedef struct oct_load_config {
  oct_client *client;
  oct_rows *rows;
  oct_load_endpoint endpoint;
  const char *model;
  oct_prompt_options prompt;
  const json_t *extra;     /* more fields of each request's body; NULL = none */
  gboolean ignore_eos;     /* ask for as many tokens as the trace has */
  guint32 concurrency;     /* slots of a closed loop; 0 = what the trace states */
  guint32 max_concurrency; /* requests that may be out; 0 = any number */
  guint32 n_warmups;       /* requests sent before, and not counted */
  oct_time duration_ns;    /* nothing is sent after; 0 = the trace's end */
  oct_time warmup_ns;      /* -1 = by rule */
  oct_slo slo;
  FILE *requests;                    /* a JSON line per request; NULL = none */
  const volatile sig_atomic_t *stop; /* above 0: end now, with what there is; NULL = never */
  void (*progress)(void *user, const oct_load_progress *progress); /* now and then; may be NULL */
  void *user;
} oct_load_config;

/* Failures of one kind. */
typedef struct oct_load_error {
  oct_failure failure;
  int status; /* of OCT_FAILURE_STATUS, else 0 */
  guint64 count;
  char first[OCT_ASK_MESSAGE_MAX]; /* the first one's message */
} oct_load_error;

typedef struct oct_load_result {
  oct_measured from_due, from_sent, server;
  gboolean has_server; /* it told times of its own */
  gboolean closed_loop, interrupted;
  guint32 concurrency;
  oct_time span_ns, load_end_ns, warmed_up_ns;
  guint64 sent, ended, unfinished; /* unfinished: out when it was interrupted */
  guint64 input_tokens, cached_tokens, output_tokens;
  guint64 pieces, pieces_with_usage, piece_tokens; /* chunks; of answers with usage, their tokens */
  guint64 answers, answers_with_usage, short_answers; /* short: fewer tokens than the trace's */
  GArray *errors;                                     /* oct_load_error, in order of appearance */
  char first_refusal[OCT_ASK_MESSAGE_MAX];
  double busy_share; /* of the run's time, in which this thread was not waiting */
} oct_load_result;

/* FALSE with *error: the trace's, a file's, or a warm-up that failed. */
gboolean oct_load_run(const oct_load_config *config, oct_load_result *result,
                      GError **error) G_GNUC_WARN_UNUSED_RESULT;
void oct_load_result_clear(oct_load_result *result);

#endif
