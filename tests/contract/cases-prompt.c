/* Rules 41 to 44: what is made of a prompt, and what of its parameters reaches the sampler. */
#include <math.h>
#include <string.h>

#include "tests/contract/contract.h"

#define PROMPT     20
#define MASK_WORDS ((FIXTURE_VOCAB + 63) / 64)

static void
done(rig *r, oct_event *event) {
  rig_until(r, OCT_EVENT_STEP_DONE, 0, event);
}

/* ---------------------------------------------------------------- 41 */

static void
check_entry(const oct_logprob *l, guint32 token, guint32 n_others) {
  g_assert_cmpuint(l[0].token, ==, token);
  for (guint32 i = 0; i <= n_others; i++) {
    g_assert_cmpuint(l[i].token, <, FIXTURE_VOCAB);
    g_assert_cmpfloat(l[i].logprob, <=, 0);
    g_assert_true(i == 0 || l[i].token != token);
    g_assert_true(i < 2 || l[i].logprob <= l[i - 1].logprob);
  }
}

/* Runs the slot's prompt in chunks of `chunk`, others' in the same steps, and appends the logprobs
 * of its tokens from 1 on, and of the token that is sampled. */
static void
score(rig *r, guint32 slot, guint32 chunk, GArray *to) {
  for (guint32 at = 0; at < PROMPT; at += chunk) {
    guint32 n = MIN(chunk, PROMPT - at);
    gboolean last = at + n == PROMPT;
    oct_event event;
    rig_begin(r);
    if (at == 0) {
      rig_sequence(r, slot, 5, PROMPT, 0);
      rig_sequence(r, 7, 6, 4, 0);
      rig_prefill(r, 7, 0, 4, OCT_SAMPLE_LAST)->n_logprobs = 2;
    } else {
      rig_decode(r, 7, OCT_POSITION_AFTER);
    }
    rig_score(r, slot, at, n, last ? OCT_SAMPLE_LAST : OCT_SAMPLE_NONE, 3)->n_logprobs =
        last ? 1 : 0;
    rig_submit(r);
    done(r, &event);
    const oct_slice_result *s = &oct_result_slices(event.result)[1];
    guint32 scored = n - last, n_all = scored * 4 + (last ? 2 : 0);
    g_assert_cmpuint(s->n_accepted, ==, last ? 1 : 0);
    if (n_all == 0) {
      g_assert_cmpuint(s->logprobs, ==, OCT_NO_INDEX);
      continue;
    }
    g_assert_cmpuint(s->logprobs + n_all, <=, event.result->n_logprobs);
    const oct_logprob *l = oct_result_logprobs(event.result) + s->logprobs;
    for (guint32 i = 0; i < scored; i++)
      check_entry(l + 4 * i, rig_prompt_id(5, at + i + 1), 3);
    if (last)
      check_entry(l + 4 * scored, oct_result_tokens(event.result)[s->tokens], 1);
    g_array_append_vals(to, l, n_all);
  }
}

static void
prompts_are_scored_in_any_chunks(rig *r) {
  static const guint32 chunks[] = {PROMPT, 1, 7, 16};
  g_autoptr(GArray) whole = g_array_new(FALSE, FALSE, sizeof(oct_logprob));
  for (guint32 i = 0; i < G_N_ELEMENTS(chunks); i++) {
    g_autoptr(GArray) some = g_array_new(FALSE, FALSE, sizeof(oct_logprob));
    score(r, i, chunks[i], some);
    if (i == 0)
      g_array_append_vals(whole, some->data, some->len);
    g_assert_cmpuint(some->len, ==, (PROMPT - 1) * 4 + 2);
    for (guint k = 0; k < some->len; k++) {
      const oct_logprob *a = &g_array_index(some, oct_logprob, k);
      const oct_logprob *b = &g_array_index(whole, oct_logprob, k);
      g_assert_cmpfloat(fabsf(a->logprob - b->logprob), <, 1e-2f);
    }
  }
}

/* ---------------------------------------------------------------- 42, 43 */

/* n outputs of a sequence in `slot`; open says with what. */
static void
stream(rig *r, guint32 slot, const oct_slot_open *like, const oct_token_bias *biases,
       const guint32 *stops, guint32 n, guint32 *tokens) {
  oct_event event;
  guint32 n_got;
  rig_begin(r);
  oct_slot_open *open = rig_sequence(r, slot, 5, 10, 0);
  open->n_biases = like->n_biases;
  open->n_stops = like->n_stops;
  open->min_tokens = like->min_tokens;
  if (open->n_biases > 0)
    open->biases = oct_step_add_biases(r->builder, biases, open->n_biases);
  if (open->n_stops > 0)
    open->stops = oct_step_add_tokens(r->builder, stops, open->n_stops, NULL);
  rig_prefill(r, slot, 0, 10, OCT_SAMPLE_LAST);
  rig_submit(r);
  for (guint32 i = 0;; i++) {
    done(r, &event);
    tokens[i] = rig_accepted(&event, 0, &n_got)[0];
    if (i + 1 == n)
      return;
    rig_begin(r);
    rig_decode(r, slot, 10 + i);
    rig_submit(r);
  }
}

static void
biases_choose_and_exclude(rig *r) {
  guint32 plain[3], out[3];
  stream(r, 0, &(oct_slot_open){0}, NULL, NULL, 3, plain);
  oct_token_bias most[] = {{(plain[0] + 1) % FIXTURE_VOCAB, 0.0f}, {plain[0], 0}};
  /* Of no weight: nothing changes. */
  stream(r, 1, &(oct_slot_open){.n_biases = 2}, most, NULL, 3, out);
  g_assert_cmpmem(out, sizeof out, plain, sizeof plain);
  most[0].bias = 100;
  stream(r, 2, &(oct_slot_open){.n_biases = 2}, most, NULL, 3, out);
  for (int i = 0; i < 3; i++)
    g_assert_cmpuint(out[i], ==, most[0].token);
  oct_token_bias ban = {plain[0], -100};
  stream(r, 3, &(oct_slot_open){.n_biases = 1}, &ban, NULL, 3, out);
  for (int i = 0; i < 3; i++)
    g_assert_cmpuint(out[i], !=, plain[0]);
  /* The slot's next sequence has none. */
  stream(r, 3, &(oct_slot_open){0}, NULL, NULL, 3, out);
  g_assert_cmpmem(out, sizeof out, plain, sizeof plain);
}

static void
stops_wait_for_min_tokens(rig *r) {
  guint32 plain[4], out[4];
  stream(r, 0, &(oct_slot_open){0}, NULL, NULL, 4, plain);
  const guint32 stops[] = {FIXTURE_EOS, plain[0]};
  /* Before one more than where it would come it is not sampled; from there on it may be. */
  stream(r, 1, &(oct_slot_open){.n_stops = 2, .min_tokens = 0}, NULL, stops, 4, out);
  g_assert_cmpmem(out, sizeof out, plain, sizeof plain);
  stream(r, 2, &(oct_slot_open){.n_stops = 2, .min_tokens = 3}, NULL, stops, 4, out);
  for (int i = 0; i < 3; i++)
    g_assert_true(out[i] != stops[0] && out[i] != stops[1]);
}

/* Where the mask leaves nothing but a stop it is sampled all the same. */
static void
masks_go_before_stops(rig *r) {
  static const guint32 stop = 77;
  guint64 bits[MASK_WORDS] = {0};
  bits[stop / 64] = (guint64)1 << (stop % 64);
  oct_event event;
  guint32 n;
  rig_begin(r);
  oct_slot_open *open = rig_sequence(r, 0, 5, 10, 0);
  open->stops = oct_step_add_tokens(r->builder, &stop, 1, NULL);
  open->n_stops = 1;
  open->min_tokens = 9;
  rig_prefill(r, 0, 0, 10, OCT_SAMPLE_LAST)->flags |= OCT_SLICE_NEEDS_MASK;
  rig_submit(r);
  g_assert_true(oct_world_mask(r->world, r->instance, 1, 0, bits, MASK_WORDS, NULL));
  done(r, &event);
  g_assert_cmpuint(rig_accepted(&event, 0, &n)[0], ==, stop);
}

/* ---------------------------------------------------------------- 44 */

/* The vector of the slot's prompt, run in chunks of `chunk` beside a decoding sequence. */
static float *
pool(rig *r, guint32 slot, guint64 key, guint32 n_prompt, guint32 chunk, oct_pooling pooling) {
  guint32 hidden = r->config.spec->hidden;
  for (guint32 at = 0; at < n_prompt; at += chunk) {
    guint32 n = MIN(chunk, n_prompt - at);
    gboolean last = at + n == n_prompt;
    oct_event event;
    rig_begin(r);
    if (at == 0)
      rig_sequence(r, slot, key, n_prompt, 0);
    oct_slice *s = rig_prefill(r, slot, at, n, OCT_SAMPLE_NONE);
    s->pooling = last || pooling == OCT_POOLING_MEAN ? (guint8)pooling : OCT_POOLING_NONE;
    s->flags |= last ? OCT_SLICE_POOLED : 0;
    rig_submit(r);
    done(r, &event);
    const oct_slice_result *got = &oct_result_slices(event.result)[0];
    g_assert_cmpuint(got->n_accepted, ==, 0);
    if (!last) {
      g_assert_cmpuint(got->floats, ==, OCT_NO_INDEX);
      continue;
    }
    g_assert_cmpuint(got->floats + hidden, <=, event.result->n_floats);
    return g_memdup2(oct_result_floats(event.result) + got->floats, hidden * sizeof(float));
  }
  g_assert_not_reached();
}

static double
distance(const float *a, const float *b, guint32 n) {
  double apart = 0, length = 0;
  for (guint32 i = 0; i < n; i++) {
    g_assert_true(isfinite(a[i]));
    apart += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
    length += (double)b[i] * b[i];
  }
  g_assert_cmpfloat(length, >, 0);
  return sqrt(apart / length);
}

static void
vectors_are_of_the_prompt_alone(rig *r) {
  static const guint32 chunks[] = {1, 7, 16};
  guint32 hidden = r->config.spec->hidden;
  for (oct_pooling p = OCT_POOLING_LAST; p <= OCT_POOLING_MEAN; p++) {
    g_autofree float *whole = pool(r, 0, 5, PROMPT, PROMPT, p);
    g_autofree float *other = pool(r, 1, 6, PROMPT, PROMPT, p);
    g_assert_cmpfloat(distance(other, whole, hidden), >, 1e-2);
    for (guint32 i = 0; i < G_N_ELEMENTS(chunks); i++) {
      g_autofree float *some = pool(r, 2 + i, 5, PROMPT, chunks[i], p);
      g_assert_cmpfloat(distance(some, whole, hidden), <, 1e-2);
    }
  }
  /* Of one token both are its hidden state. */
  g_autofree float *last = pool(r, 0, 5, 1, 1, OCT_POOLING_LAST);
  g_autofree float *mean = pool(r, 1, 5, 1, 1, OCT_POOLING_MEAN);
  g_assert_cmpfloat(distance(mean, last, hidden), <, 1e-3);
}

const contract_case contract_prompt_cases[] = {
    {"41-prompts-are-scored-in-any-chunks", CONTRACT_DENSE, 0, prompts_are_scored_in_any_chunks},
    {"41-prompts-with-state-are-scored", CONTRACT_HYBRID, 0, prompts_are_scored_in_any_chunks},
    {"42-biases-choose-and-exclude", CONTRACT_DENSE, 0, biases_choose_and_exclude},
    {"43-stops-wait-for-min-tokens", CONTRACT_DENSE, 0, stops_wait_for_min_tokens},
    {"43-masks-go-before-stops", CONTRACT_DENSE, NEEDS_MASKS, masks_go_before_stops},
    {"44-vectors-are-of-the-prompt-alone", CONTRACT_DENSE, NEEDS_POOLING,
     vectors_are_of_the_prompt_alone},
    {"44-vectors-of-a-model-with-state", CONTRACT_HYBRID, NEEDS_POOLING,
     vectors_are_of_the_prompt_alone},
    {"44-vectors-of-a-pipeline", CONTRACT_PIPE2, NEEDS_POOLING, vectors_are_of_the_prompt_alone},
    {NULL, 0, 0, NULL}};
