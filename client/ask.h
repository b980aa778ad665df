/* One question to an OpenAI-compatible server whose answer is streamed: what came, when, and how it
 * ended.
 *
 * Reads the streams of /v1/completions and /v1/chat/completions. A chunk counts as one that bears
 * tokens when its first choice has text, reasoning, a tool call or token ids; chunks that only open
 * the answer (a role) or close it (a finish_reason, the usage) do not. How many tokens a chunk has
 * is known when it has token ids ("return_token_ids"), else it counts as one; the usage at the end
 * has the true number of the whole answer. A server that says nothing of usage is believed to have
 * sent one token a chunk.
 *
 * A stream is whole when "[DONE]" came. Anything else is a failure: see client/failure.h. One
 * thread.
 */
#ifndef OCT_CLIENT_ASK_H
#define OCT_CLIENT_ASK_H

#include "client/http.h"

#define OCT_ASK_MESSAGE_MAX 512 /* of an error's text */

/* A chunk that bears tokens. */
typedef struct oct_ask_piece {
  gint64 at_ns;
  const char *text, *reasoning; /* "" = none; borrowed for the call; end at a U+0000 */
  guint32 n_tokens;             /* at least 1; more only where the server says so */
} oct_ask_piece;

/* Times on the server's own clock, as far as it tells them ("metrics" in the answer); -1 = not. */
typedef struct oct_ask_server_times {
  gint64 queue_ns, ttft_ns, e2e_ns;
} oct_ask_server_times;

typedef struct oct_ask_end {
  oct_failure failure;
  int status;             /* of HTTP; 0 = no answer */
  const char *message;    /* of a failure, the server's words where it has any; borrowed */
  char finish_reason[32]; /* "" = none came */
  gboolean has_usage;
  guint32 prompt_tokens, cached_tokens; /* 0 without usage */
  guint32 output_tokens;                /* of the usage; without, the sum of n_tokens */
  guint32 n_pieces;
  gint64 started_ns, ended_ns;
  gint64 first_ns, last_ns; /* of pieces; -1 = none came */
  gint64 longest_gap_ns;    /* between two pieces; -1 = fewer than two */
  oct_ask_server_times server;
} oct_ask_end;

typedef struct oct_ask oct_ask;

typedef struct oct_question {
  const char *path; /* "/v1/chat/completions" */
  char *body;       /* taken; says "stream": true */
  gsize body_bytes;
  void *user;
  /* Both are called from oct_client_poll(). `piece` may be NULL. */
  void (*piece)(void *user, const oct_ask_piece *piece);
  void (*end)(void *user, const oct_ask_end *end);
} oct_question;

/* Asks; the handle is good until `end`. */
oct_ask *oct_ask_start(oct_client *client, const oct_question *question);
/* Ends it: `end` is called from here. Not from a callback. */
void oct_ask_cancel(oct_ask *ask);

/* The text of an error that a server answered with, in any of the shapes that are about
 * ({"error":{"message"}}, {"error":TEXT}, {"message"}, {"detail"}); else the start of the body.
 * Into message[OCT_ASK_MESSAGE_MAX]. */
void oct_ask_error_text(const char *body, gsize n, char *message);

#endif
