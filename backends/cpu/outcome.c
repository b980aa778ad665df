/* What a step's hidden states and logits give: tokens, logprobs, pooled vectors, and the result
 * that they are handed over in. */
#include <string.h>

#include "backends/cpu/runner-internal.h"

/* ---------------------------------------------------------------- sampling */

static gboolean
is_eos(const oct_cpu_runner *r, guint32 token) {
  const oct_model_spec *spec = r->model->spec;
  for (guint32 i = 0; i < spec->n_eos_tokens; i++)
    if (spec->eos_tokens[i] == token)
      return TRUE;
  return FALSE;
}

/* Row `i` of the part: the logprob of the prompt's token there. */
static void
score_row(oct_cpu_runner *r, const part *p, guint32 i) {
  const oct_slice *s = p->slice;
  guint32 row = p->first_row + i, vocab = r->model->spec->vocab;
  oct_ref_logprobs(r->logits + (gsize)(row - r->first_logit) * vocab, vocab,
                   oct_step_tokens(r->step)[s->tokens + i + 1], s->n_prompt_logprobs,
                   r->logprobs + (gsize)row * (1 + r->most_logprobs));
}

/* Samples row `i` of the part. Drafts go on only while they are what is sampled. */
static void
sample_row(oct_cpu_runner *r, part *p, guint32 i, guint32 thread) {
  const oct_slice *s = p->slice;
  guint32 row = p->first_row + i, vocab = r->model->spec->vocab;
  const float *logits = r->logits + (gsize)(row - r->first_logit) * vocab;
  guint32 index = s->n_tokens - p->n_rows + i; /* of the token whose successor this is */
  const guint64 *mask = r->masks != NULL ? r->masks[p - r->parts] : NULL;
  guint32 position = p->position + index + 1;
  gboolean too_early = position - p->slot->prompt_tokens < p->slot->min_tokens;
  const oct_sample_input input = {.logits = logits,
                                  .vocab = vocab,
                                  .position = position,
                                  .counts = p->slot->counts,
                                  .mask = mask,
                                  .biases = p->slot->biases,
                                  .n_biases = p->slot->n_biases,
                                  .suppressed = p->slot->stops,
                                  .n_suppressed = too_early ? p->slot->n_stops : 0};
  guint32 token = oct_ref_sample(&p->slot->sampling, &input, r->scratch[thread]);
  if (token == OCT_REF_NO_TOKEN) {
    p->failed = p->ended = TRUE;
    return;
  }
  r->sampled[row] = token;
  p->n_accepted = i + 1 - p->n_scored;
  if (s->n_logprobs > 0)
    oct_ref_logprobs(logits, vocab, token, s->n_logprobs,
                     r->logprobs + (gsize)row * (1 + r->most_logprobs));
  gboolean verify = (s->flags & OCT_SLICE_VERIFY) != 0;
  if (p->slot->counts != NULL && (verify || i + 1 == p->n_rows))
    p->slot->counts[token]++;
  if (verify && i + 1 < p->n_rows)
    p->ended = token != r->tokens[p->first_token + index + 1].id || is_eos(r, token);
}

void
oct_cpu_sample_item(void *context, guint32 item, guint32 thread) {
  oct_cpu_runner *r = context;
  part *p = &r->parts[item];
  guint32 last = r->first_logit + r->n_logits;
  for (guint32 i = 0; i < p->n_rows && !p->ended && !p->slot->failed; i++)
    if (p->first_row + i < r->first_logit || p->first_row + i >= last)
      continue;
    else if (i < p->n_scored)
      score_row(r, p, i);
    else
      sample_row(r, p, i, thread);
}

void
oct_cpu_sample_nothing(oct_cpu_runner *r, part *p) {
  p->n_accepted = p->n_rows > p->n_scored ? 1 : 0;
  if (p->n_rows == 0)
    return;
  if (p->n_accepted > 0)
    r->sampled[p->first_row + p->n_scored] = 0;
  memset(r->logprobs + (gsize)p->first_row * (1 + r->most_logprobs), 0,
         p->n_rows * (1 + r->most_logprobs) * sizeof *r->logprobs);
}

/* In the order of positions, so that chunks change no bit. */
void
oct_cpu_pool(oct_cpu_runner *r, const part *p) {
  const oct_slice *s = p->slice;
  gsize width = r->model->spec->hidden;
  const float *rows = r->hidden + p->first_pooled * width;
  slot *of = p->slot;
  float *to = r->pooled + (gsize)(p - r->parts) * width;
  if (s->pooling == OCT_POOLING_LAST)
    memcpy(to, rows, width * sizeof *to);
  if (s->pooling != OCT_POOLING_MEAN)
    return;
  if (of->sum == NULL)
    of->sum = g_new(double, width);
  for (gsize k = 0; p->position == 0 && k < width; k++)
    of->sum[k] = 0;
  for (gsize i = 0; i < s->n_tokens; i++)
    for (gsize k = 0; k < width; k++)
      of->sum[k] += (double)rows[i * width + k];
  of->n_summed = p->position + s->n_tokens;
  for (gsize k = 0; (s->flags & OCT_SLICE_POOLED) != 0 && k < width; k++)
    to[k] = (float)(of->sum[k] / of->n_summed);
}

/* ---------------------------------------------------------------- the result */

static guint32
count_experts(const oct_cpu_runner *r) {
  guint32 n = 0;
  for (guint32 l = 0; l < r->model->spec->n_layers; l++) {
    const guint32 *counts = oct_cpu_forward_experts(r->forward, l);
    for (guint32 e = 0; counts != NULL && e < r->model->layers[l].ffn->n_experts; e++)
      n += counts[e] > 0;
  }
  return n;
}

static void
fill_experts(const oct_cpu_runner *r, oct_expert_use *to) {
  for (guint32 l = 0; l < r->model->spec->n_layers; l++) {
    const guint32 *counts = oct_cpu_forward_experts(r->forward, l);
    for (guint32 e = 0; counts != NULL && e < r->model->layers[l].ffn->n_experts; e++)
      if (counts[e] > 0)
        *to++ = (oct_expert_use){.layer = (guint16)l, .expert = e, .tokens = counts[e]};
  }
}

/* The header's array at `field` begins at *end. */
static void *
place(guint8 *buffer, guint32 *field, gsize bytes, gsize *end) {
  void *at = buffer + *end;
  *field = (guint32)*end;
  *end += (bytes + 7) & ~(gsize)7;
  return at;
}

/* The arrays of a result, and how far they are filled. */
typedef struct output {
  oct_slice_result *slices;
  guint32 *tokens;
  oct_logprob *logprobs;
  float *floats;
  guint32 n_tokens, n_logprobs, n_floats;
} output;

static void
fill_row(const oct_cpu_runner *r, guint32 row, guint32 n_others, output *o) {
  const oct_token_logprob *from = &r->logprobs[(gsize)row * (1 + r->most_logprobs)];
  for (guint32 j = 0; j <= n_others; j++)
    o->logprobs[o->n_logprobs++] = (oct_logprob){from[j].token, from[j].logprob};
}

static void
fill_slice(const oct_cpu_runner *r, guint32 i, output *o) {
  const part *p = &r->parts[i];
  const oct_slice *s = p->slice;
  gboolean scores = !p->failed && oct_slice_logprobs(s, p->n_accepted) > 0;
  gboolean pooled = (s->flags & OCT_SLICE_POOLED) != 0;
  o->slices[i] = (oct_slice_result){.n_accepted = p->n_accepted,
                                    .tokens = o->n_tokens,
                                    .flags = p->failed ? OCT_RESULT_FAILED : 0,
                                    .logprobs = scores ? o->n_logprobs : OCT_NO_INDEX,
                                    .floats = pooled ? o->n_floats : OCT_NO_INDEX};
  for (guint32 k = 0; k < p->n_scored && !p->failed; k++)
    fill_row(r, p->first_row + k, s->n_prompt_logprobs, o);
  for (guint32 k = 0; k < p->n_accepted; k++) {
    guint32 row = p->first_row + p->n_scored + k;
    o->tokens[o->n_tokens++] = r->sampled[row];
    if (s->n_logprobs > 0)
      fill_row(r, row, s->n_logprobs, o);
  }
  gsize width = r->model->spec->hidden;
  if (pooled) {
    memcpy(o->floats + o->n_floats, r->pooled + (gsize)i * width, width * sizeof(float));
    o->n_floats += (guint32)width;
  }
}

oct_step_result *
oct_cpu_runner_result(const oct_cpu_runner *r, guint8 **buffer, gsize *room) {
  oct_step_result h = {.n_slices = r->n_parts, .n_experts = count_experts(r)};
  for (guint32 i = 0; i < r->n_parts; i++) {
    const part *p = &r->parts[i];
    h.n_tokens += p->n_accepted;
    h.n_logprobs += p->failed ? 0 : oct_slice_logprobs(p->slice, p->n_accepted);
    h.n_floats += (p->slice->flags & OCT_SLICE_POOLED) != 0 ? r->model->spec->hidden : 0;
  }
  gsize bytes = sizeof h + h.n_slices * sizeof(oct_slice_result) + h.n_tokens * sizeof(guint32) +
                h.n_logprobs * sizeof(oct_logprob) + h.n_experts * sizeof(oct_expert_use) +
                h.n_floats * sizeof(float) + 40;
  if (bytes > *room) {
    *room = 2 * bytes;
    *buffer = g_realloc(*buffer, *room);
  }
  memset(*buffer, 0, bytes);
  gsize end = sizeof h;
  output o = {.slices = place(*buffer, &h.slices, h.n_slices * sizeof(oct_slice_result), &end)};
  o.tokens = place(*buffer, &h.tokens, h.n_tokens * sizeof(guint32), &end);
  o.logprobs = place(*buffer, &h.logprobs, h.n_logprobs * sizeof(oct_logprob), &end);
  fill_experts(r, place(*buffer, &h.experts, h.n_experts * sizeof(oct_expert_use), &end));
  o.floats = place(*buffer, &h.floats, h.n_floats * sizeof(float), &end);
  h.bytes = (guint32)end;
  for (guint32 i = 0; i < r->n_parts; i++)
    fill_slice(r, i, &o);
  memcpy(*buffer, &h, sizeof h);
  return (oct_step_result *)(void *)*buffer;
}
