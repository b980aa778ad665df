/* What the content of a sequence gives: its made-up tokens, logprobs and pooled vectors, and the
 * result record that they are handed over in. */
#include <math.h>
#include <string.h>

#include "backends/shadow-internal.h"
#include "engine/base/assert.h"
#include "engine/base/rng.h"

/* Components that a token adds to a pooled vector: texts that share tokens are alike. */
#define POOL_HASHES 8

/* ---------------------------------------------------------------- sequences */

void
shadow_sequence_open(oct_shadow *s, slot *to, const oct_step *step, const oct_slot_open *o) {
  /* A stop that may not be sampled yet is not emitted as the end either. */
  guint32 end = o->prompt_tokens + MAX(o->oracle_tokens, o->min_tokens + (o->n_stops > 0));
  *to = (slot){.open = TRUE,
               .domain = o->domain,
               .owner = s->next_owner++,
               .prompt_tokens = o->prompt_tokens,
               .end_position = o->oracle_tokens == 0 ? 0 : end,
               .eos_token = o->eos_token,
               .key = o->key,
               .stream = oct_mix64(o->key ^ s->token_key),
               .n_biases = o->n_biases,
               .n_stops = o->n_stops,
               .min_tokens = o->min_tokens,
               .biases = to->biases,
               .biases_room = to->biases_room,
               .stops = to->stops,
               .stops_room = to->stops_room,
               .sum = to->sum};
  if (o->n_biases > to->biases_room) {
    to->biases_room = o->n_biases;
    to->biases = g_renew(oct_token_bias, to->biases, o->n_biases);
  }
  if (o->n_stops > to->stops_room) {
    to->stops_room = o->n_stops;
    to->stops = g_renew(guint32, to->stops, o->n_stops);
  }
  if (o->n_biases > 0)
    memcpy(to->biases, oct_step_biases(step) + o->biases, o->n_biases * sizeof *to->biases);
  if (o->n_stops > 0)
    memcpy(to->stops, oct_step_tokens(step) + o->stops, o->n_stops * sizeof *to->stops);
}

void
shadow_sequence_free(slot *of) {
  g_free(of->biases);
  g_free(of->stops);
  g_free(of->sum);
}

/* ---------------------------------------------------------------- tokens */

static gboolean
is_eos(const oct_shadow *s, guint32 token) {
  const oct_model_spec *spec = s->config.spec;
  for (guint32 i = 0; i < spec->n_eos_tokens; i++)
    if (spec->eos_tokens[i] == token)
      return TRUE;
  return FALSE;
}

guint32
oct_shadow_token(const oct_shadow *s, guint64 key, guint32 adapter, guint32 position) {
  guint32 vocab = s->config.spec->vocab, repeat = s->options.repeat;
  guint64 stream = oct_mix64(key ^ s->token_key) ^ (guint64)adapter << 32;
  while (repeat > 0 && position >= repeat && oct_mix64(~stream ^ position) % 4 != 0)
    position -= repeat;
  guint64 x = oct_mix64(stream ^ position);
  guint32 token = (guint32)(((x >> 32) * vocab) >> 32);
  for (guint32 i = 0; i < vocab && is_eos(s, token); i++)
    token = (token + 1) % vocab;
  return token;
}

guint32
shadow_stream_token(const oct_shadow *s, const oct_shadow_slice *sl, guint32 position) {
  if (sl->end_position != 0 && position + 1 == sl->end_position)
    return sl->eos_token;
  guint32 vocab = s->config.spec->vocab;
  guint32 token = oct_shadow_token(s, sl->key, sl->adapter, position);
  for (guint32 i = 0; i < vocab && sl->end_position != 0; i++) {
    if (token != sl->eos_token && !is_eos(s, token))
      break;
    token = (token + 1) % vocab;
  }
  return token;
}

guint32
shadow_next_token(const oct_shadow *s, const slot *of, guint32 adapter, guint32 position) {
  const oct_model_spec *spec = s->config.spec;
  if (of->end_position != 0 && position + 1 == of->end_position)
    return of->eos_token;
  guint64 x = oct_mix64((of->stream ^ (guint64)adapter << 32) ^ position);
  guint32 token = (guint32)(((x >> 32) * spec->vocab) >> 32);
  gboolean ends = is_eos(s, token) || (of->end_position != 0 && token == of->eos_token);
  if (!ends && s->options.repeat == 0)
    return token;
  const oct_shadow_slice sl = {.end_position = of->end_position,
                               .eos_token = of->eos_token,
                               .key = of->key,
                               .adapter = adapter};
  return shadow_stream_token(s, &sl, position);
}

static gboolean
has_bit(const guint64 *bits, guint32 token) {
  return (bits[token / 64] >> (token % 64) & 1) != 0;
}

static guint64
count_bits(const guint64 *bits, guint32 words) {
  guint64 n = 0;
  for (guint32 w = 0; w < words; w++)
    n += (guint64)__builtin_popcountll(bits[w]);
  return n;
}

/* The k-th of the set bits. */
static guint32
find_bit(const guint64 *bits, guint64 k) {
  guint32 w = 0;
  for (guint32 n; (n = (guint32)__builtin_popcountll(bits[w])) <= k; w++)
    k -= n;
  guint64 word = bits[w];
  for (; k > 0; k--)
    word &= word - 1;
  return w * 64 + (guint32)__builtin_ctzll(word);
}

/* The mask without what the slot's stops and then its biases of -100 rule out, each as far as
 * something is left. */
static guint64 *
restrict_mask(oct_shadow *s, const slot *of, gboolean stops, const guint64 *bits) {
  guint32 vocab = s->config.spec->vocab, words = (vocab + 63) / 64;
  if (s->allowed == NULL)
    s->allowed = g_new(guint64, words);
  if (bits != NULL)
    memcpy(s->allowed, bits, words * sizeof *bits);
  else
    memset(s->allowed, 0xff, words * sizeof *bits);
  if (vocab % 64 != 0)
    s->allowed[words - 1] &= ((guint64)1 << (vocab % 64)) - 1;
  guint64 left = count_bits(s->allowed, words);
  for (guint32 i = 0; stops && i < of->n_stops && left > 1; i++) {
    left -= has_bit(s->allowed, of->stops[i]);
    s->allowed[of->stops[i] / 64] &= ~((guint64)1 << (of->stops[i] % 64));
  }
  for (guint32 i = 0; of != NULL && i < of->n_biases && left > 1; i++) {
    guint32 token = of->biases[i].token;
    if (of->biases[i].bias > -OCT_BIAS_MAX)
      continue;
    left -= has_bit(s->allowed, token);
    s->allowed[token / 64] &= ~((guint64)1 << (token % 64));
  }
  return s->allowed;
}

guint32
shadow_choose(oct_shadow *s, const oct_shadow_slice *sl, guint32 position, guint32 wanted,
              const guint64 *bits) {
  const slot *of = &s->slots[sl->slot];
  if (of->key != sl->key)
    of = NULL; /* it is another sequence's by now, and nobody wants the token */
  gboolean stops = of != NULL && of->n_stops > 0 && position - of->prompt_tokens < of->min_tokens;
  gboolean biased = of != NULL && of->n_biases > 0;
  if (bits == NULL && !stops && !biased)
    return wanted;
  const guint64 *allowed = restrict_mask(s, of, stops, bits);
  guint32 vocab = s->config.spec->vocab, forced = OCT_NO_INDEX;
  for (guint32 i = 0; biased && i < of->n_biases && forced == OCT_NO_INDEX; i++)
    if (of->biases[i].bias >= OCT_BIAS_MAX && has_bit(allowed, of->biases[i].token))
      forced = of->biases[i].token;
  if (forced != OCT_NO_INDEX)
    return forced;
  if (has_bit(allowed, wanted))
    return wanted;
  guint64 x = oct_mix64(oct_mix64(sl->key ^ s->token_key ^ 0x6d61736bu) + position);
  guint32 chosen = find_bit(allowed, x % count_bits(allowed, (vocab + 63) / 64));
  if (bits == NULL)
    return chosen;
  /* Where the text may end it does, half the time: what a grammar allows without end ends. */
  const oct_model_spec *spec = s->config.spec;
  for (guint32 i = 0; i < spec->n_eos_tokens && (x >> 63) != 0; i++)
    if (has_bit(allowed, spec->eos_tokens[i]))
      return spec->eos_tokens[i];
  return chosen;
}

/* ---------------------------------------------------------------- prompts */

void
shadow_score(step_entry *entry, oct_shadow_slice *sl, const oct_step *step, const oct_slice *in) {
  oct_shadow_step *o = &entry->step;
  sl->n_scored = oct_slice_scored(in);
  sl->scored = o->n_scored;
  if (sl->n_scored == 0)
    return;
  if (o->n_scored + sl->n_scored > entry->scored_room) {
    entry->scored_room = MAX(o->n_scored + sl->n_scored, 2 * entry->scored_room);
    o->scored = g_renew(guint32, o->scored, entry->scored_room);
  }
  memcpy(o->scored + o->n_scored, oct_step_tokens(step) + in->tokens + 1,
         sl->n_scored * sizeof(guint32));
  o->n_scored += sl->n_scored;
}

static void
add_token(const oct_shadow *s, const oct_shadow_slice *sl, guint32 index, guint32 token,
          float *to) {
  guint64 x = token != TOKEN_UNKNOWN ? token : oct_mix64(sl->key + sl->position + index);
  x = oct_mix64(x ^ s->token_key);
  for (int i = 0; i < POOL_HASHES; i++, x = oct_mix64(x))
    to[(x >> 32) % s->config.spec->hidden] += (x & 1) != 0 ? 1.0f : -1.0f;
}

/* Of length 1, whatever was added up. */
static void
make_unit(float *v, guint32 n) {
  double sum = 0;
  for (guint32 i = 0; i < n; i++)
    sum += (double)v[i] * v[i];
  if (sum <= 0) {
    v[0] = 1;
    sum = 1;
  }
  for (guint32 i = 0; i < n; i++)
    v[i] = (float)(v[i] / sqrt(sum));
}

gboolean
shadow_add_pooled(oct_shadow *s, guint64 number, step_entry *entry, oct_shadow_slice *sl,
                  const oct_slice *in, const guint32 *fed, oct_fault *fault) {
  oct_shadow_step *o = &entry->step;
  slot *of = &s->slots[sl->slot];
  guint32 hidden = s->config.spec->hidden;
  if (in->pooling == OCT_POOLING_NONE)
    return TRUE;
  if (in->pooling == OCT_POOLING_MEAN) {
    if (sl->position == 0 || of->sum == NULL) {
      of->sum = g_renew(float, of->sum, hidden);
      memset(of->sum, 0, hidden * sizeof *of->sum);
      of->n_summed = 0;
    }
    if (of->n_summed != sl->position)
      return shadow_breach(fault, number, "slot %u: a mean of %u tokens goes on at %u", sl->slot,
                           of->n_summed, sl->position);
    for (guint32 i = 0; i < sl->n_tokens; i++)
      add_token(s, sl, i, fed[i], of->sum);
    of->n_summed += sl->n_tokens;
  }
  if ((in->flags & OCT_SLICE_POOLED) == 0)
    return TRUE;
  if (o->n_floats + hidden > entry->floats_room) {
    entry->floats_room = MAX(o->n_floats + hidden, 2 * entry->floats_room);
    o->floats = g_renew(float, o->floats, entry->floats_room);
  }
  float *to = o->floats + o->n_floats;
  sl->floats = o->n_floats;
  o->n_floats += hidden;
  if (in->pooling == OCT_POOLING_MEAN) {
    memcpy(to, of->sum, hidden * sizeof *to);
  } else {
    memset(to, 0, hidden * sizeof *to);
    add_token(s, sl, sl->n_tokens - 1, fed[sl->n_tokens - 1], to);
  }
  make_unit(to, hidden);
  return TRUE;
}

/* ---------------------------------------------------------------- results */

/* Logprobs of a made-up distribution: the token first, then others, each less likely; together
 * their chances stay below 1. */
static void
fill_logprobs(const oct_shadow *s, guint32 token, guint32 n, oct_logprob *to) {
  to[0] = (oct_logprob){token, -0.25f};
  for (guint32 j = 1; j <= n; j++)
    to[j] = (oct_logprob){(token + j) % s->config.spec->vocab, -3 - 0.5f * (float)j};
}

static void
fill_slice(const oct_shadow *s, const oct_shadow_step *step, const oct_shadow_slice *sl,
           oct_slice_result *to, oct_logprob *logprobs, guint32 *at) {
  *to = (oct_slice_result){.n_accepted = sl->n_accepted,
                           .tokens = sl->tokens,
                           .logprobs = OCT_NO_INDEX,
                           .floats = sl->floats};
  guint32 n_sampled = sl->n_logprobs > 0 ? sl->n_accepted : 0;
  if (sl->n_scored + n_sampled > 0)
    to->logprobs = *at;
  for (guint32 k = 0; k < sl->n_scored; k++, *at += 1u + sl->n_prompt_logprobs)
    fill_logprobs(s, step->scored[sl->scored + k], sl->n_prompt_logprobs, logprobs + *at);
  for (guint32 k = 0; k < n_sampled; k++, *at += 1u + sl->n_logprobs)
    fill_logprobs(s, step->tokens[sl->tokens + k], sl->n_logprobs, logprobs + *at);
}

static guint32
count_logprobs(const oct_shadow_step *step) {
  guint32 n = 0;
  if (step->plain)
    return 0;
  for (guint32 i = 0; i < step->n_slices; i++) {
    const oct_shadow_slice *sl = &step->slices[i];
    n += sl->n_scored * (1u + sl->n_prompt_logprobs);
    n += sl->n_logprobs > 0 ? sl->n_accepted * (1u + sl->n_logprobs) : 0;
  }
  return n;
}

static guint32
place(guint32 *at, gsize n, gsize bytes) {
  guint32 offset = *at;
  *at += (guint32)((n * bytes + 7) & ~(gsize)7);
  return offset;
}

oct_step_result *
oct_shadow_result(oct_shadow *s, oct_shadow_step *step, guint8 **buffer, gsize *room) {
  shadow_settle(s);
  oct_step_result h = {.n_slices = step->n_slices,
                       .n_tokens = step->n_tokens,
                       .n_logprobs = count_logprobs(step),
                       .n_experts = s->config.report_experts ? step->n_experts : 0,
                       .n_floats = step->n_floats};
  guint32 at = sizeof h;
  h.slices = place(&at, h.n_slices, sizeof(oct_slice_result));
  h.tokens = place(&at, h.n_tokens, sizeof(guint32));
  h.logprobs = place(&at, h.n_logprobs, sizeof(oct_logprob));
  h.experts = place(&at, h.n_experts, sizeof(oct_expert_use));
  h.floats = place(&at, h.n_floats, sizeof(float));
  h.bytes = at;
  if (at > *room) {
    *room = MAX(at, 2 * *room);
    *buffer = g_realloc(*buffer, *room);
  }
  guint8 *bytes = *buffer;
  memcpy(bytes, &h, sizeof h);
  /* Padding is zero: the last word of what may end within one, before it is written. */
  memset(bytes + h.tokens - 8, 0, 8);
  if (h.n_tokens > 0)
    memset(bytes + h.logprobs - 8, 0, 8);
  if (h.n_floats > 0)
    memset(bytes + h.bytes - 8, 0, 8);
  oct_slice_result *slices = (oct_slice_result *)(void *)(bytes + h.slices);
  guint32 next = 0;
  for (guint32 i = 0; i < step->n_slices; i++)
    fill_slice(s, step, &step->slices[i], &slices[i], (oct_logprob *)(void *)(bytes + h.logprobs),
               &next);
  if (h.n_tokens > 0)
    memcpy(bytes + h.tokens, step->tokens, h.n_tokens * sizeof(guint32));
  if (h.n_experts > 0)
    memcpy(bytes + h.experts, step->experts, h.n_experts * sizeof(oct_expert_use));
  if (h.n_floats > 0)
    memcpy(bytes + h.floats, step->floats, h.n_floats * sizeof(float));
  return (oct_step_result *)(void *)bytes;
}
