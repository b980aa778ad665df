/* Log probabilities as OpenAI and vLLM write them. */
#include "engine/api/internal.h"

#include <math.h>
#include <string.h>

#include "engine/base/assert.h"

/* What stands for minus infinity, as in vLLM: JSON has none. */
#define LOGPROB_FLOOR -9999.0f

void
oct_api_token_text(const oct_api *api, guint32 id, GString *out) {
  const oct_tokenizer *tokenizer = oct_service_tokenizer(api->config.service);
  g_string_truncate(out, 0);
  if (tokenizer == NULL) {
    g_string_printf(out, "token_id:%u", id);
    return;
  }
  oct_text bytes = oct_tokenizer_bytes(tokenizer, id);
  if (bytes.size == 0) { /* an id that no token has */
    g_string_printf(out, "token_id:%u", id);
    return;
  }
  if (g_utf8_validate((const char *)bytes.bytes, (gssize)bytes.size, NULL)) {
    g_string_append_len(out, bytes.bytes, (gssize)bytes.size);
    return;
  }
  /* Part of a character, as OpenAI's completions show it. */
  g_string_append(out, "bytes:");
  for (gsize i = 0; i < bytes.size; i++)
    g_string_append_printf(out, "\\x%02x", (guint8)bytes.bytes[i]);
}

static void
text_of(const oct_job *job, guint32 id, GString *out) {
  if (job->plan.sampling.return_tokens_as_token_ids)
    g_string_printf(out, "token_id:%u", id);
  else
    oct_api_token_text(job->api, id, out);
}

static void
put_logprob(oct_out *json, float logprob) {
  oct_out_float(json, logprob < LOGPROB_FLOOR || isnan(logprob) ? LOGPROB_FLOOR : logprob);
}

/* The k likeliest tokens out of the token's own and the likeliest others; returns how many. With
 * `own` the token itself is one more where it is not among them. */
static guint
likeliest(const oct_logprob *row, guint32 each, gint64 k, gboolean own, oct_logprob *out) {
  guint n = 0;
  gboolean placed = FALSE;
  for (guint32 i = 1; i < each && n < k; i++) {
    if (row[i].token == OCT_NO_TOKEN || row[i].token == row[0].token)
      continue;
    if (!placed && row[0].logprob >= row[i].logprob) {
      out[n++] = row[0];
      placed = TRUE;
      if (n == k)
        break;
    }
    out[n++] = row[i];
  }
  if (!placed && (own || n < k))
    out[n++] = row[0];
  return n;
}

/* --- chat ------------------------------------------------------------------------------------- */

static void
put_chat_token(const oct_job *job, oct_out *json, oct_logprob entry, GString *text) {
  text_of(job, entry.token, text);
  oct_out_put_text(json, "token", text->str, text->len);
  oct_out_key(json, "logprob");
  put_logprob(json, entry.logprob);
  const oct_tokenizer *tokenizer = oct_service_tokenizer(job->api->config.service);
  oct_out_key(json, "bytes");
  if (tokenizer == NULL) {
    oct_out_null(json);
    return;
  }
  oct_text bytes = oct_tokenizer_bytes(tokenizer, entry.token);
  oct_out_open(json, '[');
  for (gsize i = 0; i < bytes.size; i++)
    oct_out_int(json, (guint8)bytes.bytes[i]);
  oct_out_close(json, ']');
}

static void
add_chat(oct_choice *c, const oct_logprob *row, guint32 each, GString *text) {
  oct_logprob top[OCT_API_LOGPROBS_MAX + 2];
  oct_out json = OCT_OUT_INIT(c->logprobs);
  if (c->logprobs->len > 0)
    g_string_append_c(c->logprobs, ',');
  oct_out_open(&json, '{');
  put_chat_token(c->job, &json, row[0], text);
  guint n = likeliest(row, each, c->job->plan.sampling.logprobs, FALSE, top);
  oct_out_key(&json, "top_logprobs");
  oct_out_open(&json, '[');
  for (guint i = 0; i < n; i++) {
    oct_out_open(&json, '{');
    put_chat_token(c->job, &json, top[i], text);
    oct_out_close(&json, '}');
  }
  oct_out_close(&json, ']');
  oct_out_close(&json, '}');
}

void
oct_choice_put_chat_logprobs(oct_choice *c, oct_out *json) {
  oct_out_key(json, "logprobs");
  if (c->logprobs == NULL) {
    oct_out_null(json);
    return;
  }
  oct_out_open(json, '{');
  oct_out_key(json, "content");
  oct_out_open(json, '[');
  if (c->logprobs->len > 0)
    oct_out_raw(json, c->logprobs->str, c->logprobs->len);
  oct_out_close(json, ']');
  oct_out_put_null(json, "refusal");
  oct_out_close(json, '}');
  g_string_truncate(c->logprobs, 0);
}

/* --- completions ------------------------------------------------------------------------------ */

/* Begins the next item. */
static oct_out
next_item(GString *items) {
  if (items->len > 0)
    g_string_append_c(items, ',');
  return (oct_out)OCT_OUT_INIT(items);
}

/* Two tokens may have one text, and an object has each key once: the likelier counts. */
static gboolean
reads_as_earlier(const oct_job *job, const oct_logprob *top, guint at) {
  const oct_tokenizer *tokenizer = oct_service_tokenizer(job->api->config.service);
  if (tokenizer == NULL || job->plan.sampling.return_tokens_as_token_ids)
    return FALSE;
  oct_text text = oct_tokenizer_bytes(tokenizer, top[at].token);
  for (guint i = 0; i < at; i++) {
    oct_text other = oct_tokenizer_bytes(tokenizer, top[i].token);
    if (text.size > 0 && text.size == other.size && memcmp(text.bytes, other.bytes, text.size) == 0)
      return TRUE;
  }
  return FALSE;
}

/* row NULL: the first token of a prompt, of which nothing is known. */
static void
add_completion(oct_choice *c, guint32 id, const oct_logprob *row, guint32 each, GString *text) {
  oct_logprob top[OCT_API_LOGPROBS_MAX + 2];
  gint64 k = c->job->plan.sampling.logprobs;
  text_of(c->job, id, text);
  oct_out tokens = next_item(c->tokens), logprobs = next_item(c->token_logprobs);
  oct_out all = next_item(c->top), offsets = next_item(c->offsets);
  oct_out_text(&tokens, text->str, text->len);
  oct_out_int(&offsets, c->offset);
  c->offset += (guint)g_utf8_strlen(text->str, (gssize)text->len);
  if (row == NULL) {
    oct_out_null(&logprobs);
    oct_out_null(&all);
    return;
  }
  put_logprob(&logprobs, row[0].logprob);
  guint n = k > 0 ? likeliest(row, each, k, TRUE, top) : 0;
  oct_out_open(&all, '{');
  for (guint i = 0; i < n; i++) {
    if (reads_as_earlier(c->job, top, i))
      continue;
    text_of(c->job, top[i].token, text);
    oct_out_key_text(&all, text->str, text->len);
    put_logprob(&all, top[i].logprob);
  }
  oct_out_close(&all, '}');
}

static void
put_items(oct_out *json, const char *key, GString *items) {
  oct_out_key(json, key);
  oct_out_open(json, '[');
  if (items->len > 0)
    oct_out_raw(json, items->str, items->len);
  oct_out_close(json, ']');
  g_string_truncate(items, 0);
}

void
oct_choice_put_logprobs(oct_choice *c, oct_out *json) {
  oct_out_key(json, "logprobs");
  if (c->tokens == NULL) {
    oct_out_null(json);
    return;
  }
  oct_out_open(json, '{');
  put_items(json, "tokens", c->tokens);
  put_items(json, "token_logprobs", c->token_logprobs);
  put_items(json, "top_logprobs", c->top);
  put_items(json, "text_offset", c->offsets);
  oct_out_close(json, '}');
}

void
oct_choice_add_logprobs(oct_choice *c, const oct_generation_delta *delta) {
  g_autoptr(GString) text = g_string_new(NULL);
  for (guint32 i = 0; i < delta->n_ids; i++) {
    const oct_logprob *row = delta->logprobs + (gsize)i * delta->logprobs_each;
    if (c->job->shape->chat_logprobs)
      add_chat(c, row, delta->logprobs_each, text);
    else
      add_completion(c, delta->ids[i], row, delta->logprobs_each, text);
  }
}

/* --- prompts ---------------------------------------------------------------------------------- */

/* Where entry i of a row stands among all tokens, from 1. The others are the likeliest there are,
 * in order; 0 when the token's own is behind all of them: then nobody knows. */
static guint32
rank_of(const oct_logprob *row, guint32 each, guint32 i) {
  if (i > 0)
    return i + (row[0].logprob > row[i].logprob);
  guint32 rank = 1;
  while (rank < each && row[rank].logprob > row[0].logprob)
    rank++;
  return rank < each ? rank : 0;
}

/* vLLM's: per token null or {"ID": {"logprob", "rank", "decoded_token"}, …}. */
static void
add_prompt_item(const oct_job *job, GString *out, const oct_logprob *row, guint32 each,
                GString *text) {
  oct_out json = next_item(out);
  if (row == NULL) {
    oct_out_null(&json);
    return;
  }
  guint32 n = (guint32)MIN(job->plan.sampling.prompt_logprobs, (gint64)each - 1);
  oct_out_open(&json, '{');
  for (guint32 i = 0; i <= n; i++) {
    char key[16];
    guint32 rank = rank_of(row, each, i);
    g_snprintf(key, sizeof key, "%u", row[i].token);
    oct_out_key(&json, key);
    oct_out_open(&json, '{');
    oct_out_key(&json, "logprob");
    put_logprob(&json, row[i].logprob);
    oct_out_key(&json, "rank");
    if (rank > 0)
      oct_out_int(&json, rank);
    else
      oct_out_null(&json);
    text_of(job, row[i].token, text);
    oct_out_put_text(&json, "decoded_token", text->str, text->len);
    oct_out_close(&json, '}');
  }
  oct_out_close(&json, '}');
}

void
oct_job_add_prompt_logprobs(oct_job *job, guint prompt, guint32 first, const oct_logprob *logprobs,
                            guint32 n, const guint32 *ids) {
  g_autoptr(GString) text = g_string_new(NULL);
  const oct_sampling *s = &job->plan.sampling;
  gint64 k = MAX(s->prompt_logprobs, job->plan.echo ? s->logprobs : -1);
  guint32 each = 1 + (guint32)MAX(k, 1);
  if (s->prompt_logprobs >= 0) {
    GString **out = &job->prompt_logprobs[prompt];
    if (*out == NULL) {
      *out = g_string_new(NULL);
      add_prompt_item(job, *out, NULL, 0, text);
    }
    for (guint32 i = 0; i < n; i++)
      add_prompt_item(job, *out, logprobs + (gsize)i * each, each, text);
  }
  for (guint c = prompt * (guint)s->n; job->plan.echo && c < (prompt + 1) * (guint)s->n; c++) {
    oct_choice_add_echo(&job->choices[c], ids[0]);
    for (guint32 i = 0; s->logprobs >= 0 && i < n; i++)
      add_completion(&job->choices[c], ids[first + i], logprobs + (gsize)i * each, each, text);
  }
}

void
oct_choice_add_echo(oct_choice *c, guint32 id) {
  g_autoptr(GString) text = g_string_new(NULL);
  if (c->tokens != NULL && !c->echoed)
    add_completion(c, id, NULL, 0, text);
  c->echoed = TRUE;
}
