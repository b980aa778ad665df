/* What comes beside tokens, and what changes them, through the real engine on golden checkpoints:
 * prompt logprobs and pooled vectors are those of transformers' logits and hidden states, in any
 * chunks, bit by bit; biases, penalties and samplers do what their formulas say of those logits. */
#include <math.h>
#include <string.h>

#include "backends/registry.h"
#include "tests/backends/cpu/golden.h"
#include "tests/engine/sched/rig.h"

#define LATER_NS ((oct_time)10 * 1000000000)

typedef struct scene {
  golden g;
  rig r;
  oct_engine_config config;
  const float *logits; /* [41, vocab] */
} scene;

static void
scene_open_at(scene *s, const char *name, const char *clock) {
  g_autoptr(GError) error = NULL;
  golden_open(&s->g, name);
  g_autofree char *text = g_strdup_printf("cpu:model=%s,threads=2,clock=%s", s->g.folder, clock);
  oct_world *world = oct_backend_world_new(text, &error);
  g_assert_no_error(error);
  rig_init(&s->r, world);
  rig_config(&s->config, s->g.spec, 64, 0);
  s->config.max_model_len = 128;
  s->config.max_num_seqs = 16;
  s->logits = golden_floats(&s->g, "logits", (gsize)GOLDEN_PROMPT * s->g.spec->vocab);
}

static void
scene_open(scene *s, const char *name) {
  scene_open_at(s, name, "virtual");
}

static void
scene_run(scene *s) {
  rig_add_engine(&s->r, &s->config);
  rig_run(&s->r);
  g_assert_cmpstr(s->r.failure, ==, NULL);
}

static void
scene_close(scene *s) {
  rig_clear(&s->r);
  golden_close(&s->g);
}

static rig_request *
ask(scene *s, guint32 max_tokens, oct_time arrival_ns) {
  oct_request_params p;
  oct_request_params_default(&p);
  p.prompt_ids = s->g.prompt;
  p.prompt_tokens = GOLDEN_PROMPT;
  p.temperature = 0;
  p.max_tokens = max_tokens;
  p.ignore_eos = TRUE;
  p.arrival_ns = arrival_ns;
  return rig_add(&s->r, 0, &p);
}

/* ---------------------------------------------------------------- logprobs of prompts */

static double
exact_logprob(const scene *s, guint32 row, guint32 token) {
  const float *logits = s->logits + (gsize)row * s->g.spec->vocab;
  double sum = 0, top = logits[0];
  for (guint32 i = 0; i < s->g.spec->vocab; i++)
    top = MAX(top, logits[i]);
  for (guint32 i = 0; i < s->g.spec->vocab; i++)
    sum += exp(logits[i] - top);
  return logits[token] - top - log(sum);
}

static void
assert_scored(const scene *s, const rig_request *q) {
  g_assert_cmpuint(q->prompt_logprobs->len, ==, (GOLDEN_PROMPT - 1) * 4);
  for (guint32 t = 0; t + 1 < GOLDEN_PROMPT; t++) {
    const oct_logprob *l = &g_array_index(q->prompt_logprobs, oct_logprob, 4 * t);
    g_assert_cmpuint(l[0].token, ==, s->g.prompt[t + 1]);
    for (guint32 k = 0; k < 4; k++)
      g_assert_cmpfloat(fabs(l[k].logprob - exact_logprob(s, t, l[k].token)), <, 1e-3);
  }
  const oct_logprob *first = &g_array_index(q->logprobs[0], oct_logprob, 0);
  g_assert_cmpuint(first->token, ==, s->g.generated[0]);
  g_assert_cmpfloat(fabs(first->logprob - exact_logprob(s, GOLDEN_PROMPT - 1, first->token)), <,
                    1e-3);
}

static void
prompts_are_scored(gconstpointer name) {
  static const guint32 chunks[] = {64, 1, 7, 16};
  g_autoptr(GArray) whole = g_array_new(FALSE, FALSE, sizeof(oct_logprob));
  for (gsize i = 0; i < G_N_ELEMENTS(chunks); i++) {
    scene s;
    scene_open(&s, name);
    s.config.max_num_seqs = 1;
    s.config.max_num_batched_tokens = chunks[i];
    (void)ask(&s, 4, 0); /* leaves its prompt in the cache */
    rig_request *q = ask(&s, 4, LATER_NS);
    q->params.n_prompt_logprobs = 3;
    q->params.n_logprobs = 1;
    scene_run(&s);
    assert_scored(&s, q);
    g_assert_cmpuint(q->record.cached_tokens, ==, 0);
    if (i == 0)
      g_array_append_vals(whole, q->prompt_logprobs->data, q->prompt_logprobs->len);
    g_assert_cmpmem(whole->data, whole->len * sizeof(oct_logprob), q->prompt_logprobs->data,
                    q->prompt_logprobs->len * sizeof(oct_logprob));
    scene_close(&s);
  }
}

/* ---------------------------------------------------------------- vectors */

static void
vectors_are_of_hidden_states(gconstpointer name) {
  static const guint32 chunks[] = {64, 1, 7, 16};
  GArray *whole[2] = {g_array_new(FALSE, FALSE, sizeof(float)),
                      g_array_new(FALSE, FALSE, sizeof(float))};
  for (gsize i = 0; i < G_N_ELEMENTS(chunks); i++) {
    scene s;
    scene_open(&s, name);
    s.config.max_num_seqs = 2;
    s.config.max_num_batched_tokens = MAX(chunks[i], 2);
    s.config.long_prefill_threshold = chunks[i];
    guint32 width = s.g.spec->hidden;
    g_autofree char *last_layer = g_strdup_printf("hidden.%u", s.g.spec->n_layers);
    const float *hidden = golden_floats(&s.g, last_layer, (gsize)GOLDEN_PROMPT * width);
    rig_request *q[2] = {ask(&s, 1, 0), ask(&s, 1, 0)};
    q[0]->params.pooling = OCT_POOLING_LAST;
    q[1]->params.pooling = OCT_POOLING_MEAN;
    scene_run(&s);
    g_autofree float *mean = g_new(float, width);
    for (guint32 k = 0; k < width; k++) {
      double sum = 0;
      for (guint32 t = 0; t < GOLDEN_PROMPT; t++)
        sum += hidden[(gsize)t * width + k];
      mean[k] = (float)(sum / GOLDEN_PROMPT);
    }
    const float *wanted[2] = {hidden + (gsize)(GOLDEN_PROMPT - 1) * width, mean};
    for (int p = 0; p < 2; p++) {
      const float *got = (const float *)(const void *)q[p]->pooled->data;
      g_assert_cmpuint(q[p]->pooled->len, ==, width);
      g_assert_cmpfloat(golden_error(got, wanted[p], width), <, 1e-3);
      if (i == 0)
        g_array_append_vals(whole[p], got, width);
      g_assert_cmpmem(whole[p]->data, width * sizeof(float), got, width * sizeof(float));
    }
    scene_close(&s);
  }
  g_array_unref(whole[0]);
  g_array_unref(whole[1]);
}

/* ---------------------------------------------------------------- biases */

/* The two likeliest tokens after the prompt, and how far they are apart. */
static float
top_two(const scene *s, guint32 *best, guint32 *second) {
  const float *logits = s->logits + (gsize)(GOLDEN_PROMPT - 1) * s->g.spec->vocab;
  *best = s->g.generated[0];
  *second = *best == 0 ? 1 : 0;
  for (guint32 t = 0; t < s->g.spec->vocab; t++)
    if (t != *best && logits[t] > logits[*second])
      *second = t;
  return logits[*best] - logits[*second];
}

/* A bias moves a logit by just so much: at nine tenths of the distance to the first nothing
 * changes, at eleven the second is the first. */
static void
a_bias_is_added_to_its_logit(void) {
  scene s;
  guint32 best, second;
  scene_open(&s, "llama");
  float apart = top_two(&s, &best, &second);
  const oct_token_bias biases[4] = {
      {second, 0.9f * apart}, {second, 1.1f * apart}, {best, -0.9f * apart}, {best, -1.1f * apart}};
  rig_request *q[4];
  for (int i = 0; i < 4; i++) {
    q[i] = ask(&s, 1, 0);
    q[i]->params.logit_bias = g_memdup2(&biases[i], sizeof biases[i]);
    q[i]->params.n_logit_bias = 1;
    q[i]->params.n_logprobs = 1;
  }
  scene_run(&s);
  for (int i = 0; i < 4; i++) {
    guint32 token = g_array_index(q[i]->tokens[0], guint32, 0);
    g_assert_cmpuint(token, ==, i % 2 == 0 ? best : second);
    /* The logprob is the model's, without it. */
    g_assert_cmpfloat(fabs(g_array_index(q[i]->logprobs[0], oct_logprob, 0).logprob -
                           exact_logprob(&s, GOLDEN_PROMPT - 1, token)),
                      <, 1e-3);
  }
  scene_close(&s);
}

/* ---------------------------------------------------------------- penalties */

/* Each token is the argmax of the logits less what the formula takes for the output so far, which
 * among the 21 likeliest can be worked out from their logprobs. The counts are there again after a
 * preemption. */
static void
output_penalties_follow_their_formula(void) {
  scene s;
  scene_open(&s, "llama");
  for (guint32 g = 0; g < s.config.instance.memory.n_groups; g++)
    s.config.instance.memory.groups[g].n_device = 10;
  s.config.prefix_caching = FALSE;
  s.config.policy = "vllm-v1"; /* admits what it will have to throw out */
  rig_request *q[3];
  for (int i = 0; i < 3; i++) {
    q[i] = ask(&s, GOLDEN_GENERATED, 0);
    q[i]->params.n_logprobs = 20;
    q[i]->params.presence_penalty = 0.4f;
    q[i]->params.frequency_penalty = 0.3f;
  }
  scene_run(&s);
  g_assert_cmpuint(s.r.stats[0].preemptions, >, 0);
  for (int i = 0; i < 3; i++) {
    guint moved = 0;
    g_autofree guint32 *counts = g_new0(guint32, s.g.spec->vocab);
    for (guint32 t = 0; t < GOLDEN_GENERATED; t++) {
      const oct_logprob *l = &g_array_index(q[i]->logprobs[0], oct_logprob, 21 * t);
      guint32 wanted = l[0].token;
      double most = -INFINITY;
      float likeliest = MAX(l[0].logprob, l[1].logprob);
      for (int k = 0; k < 21; k++) {
        double left =
            l[k].logprob - (counts[l[k].token] > 0 ? 0.4 : 0.0) - 0.3 * counts[l[k].token];
        if (left > most)
          wanted = l[k].token;
        most = MAX(most, left);
      }
      g_assert_cmpuint(l[0].token, ==, wanted);
      moved += l[0].logprob < likeliest;
      counts[l[0].token]++;
    }
    g_assert_cmpuint(moved, >, 0); /* else it proves nothing */
  }
  scene_close(&s);
}

/* ---------------------------------------------------------------- samplers */

/* Upper 1e-6 quantile of chi-square with n degrees, by Wilson and Hilferty. */
static double
chi_square_limit(double n) {
  double a = 2 / (9 * n);
  return n * pow(1 - a + 4.753424 * sqrt(a), 3);
}

static int
larger_first(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return x < y ? 1 : x > y ? -1 : 0;
}

/* The chances of the first token from the golden logits: bias, temperature, top-k. */
static double *
exact_chances(const scene *s, const oct_request_params *p) {
  guint32 vocab = s->g.spec->vocab;
  double *chances = g_new(double, vocab), sum = 0;
  const float *logits = s->logits + (gsize)(GOLDEN_PROMPT - 1) * vocab;
  for (guint32 t = 0; t < vocab; t++) {
    double logit = logits[t];
    for (guint32 i = 0; i < p->n_logit_bias; i++)
      logit += p->logit_bias[i].token == t ? p->logit_bias[i].bias : 0;
    chances[t] = exp(logit / p->temperature);
  }
  g_autofree double *sorted = g_memdup2(chances, vocab * sizeof *chances);
  qsort(sorted, vocab, sizeof *sorted, larger_first);
  double least = p->top_k > 0 ? sorted[p->top_k - 1] : 0;
  for (guint32 t = 0; t < vocab; t++) {
    chances[t] = chances[t] >= least ? chances[t] : 0;
    sum += chances[t];
  }
  for (guint32 t = 0; t < vocab; t++)
    chances[t] /= sum;
  return chances;
}

/* Eight choices of each of many requests, each with a stream of its own: together they are draws
 * from the distribution, by chi-square. */
static void
choices_draw_from_the_distribution(void) {
  enum { REQUESTS = 250, CHOICES = 8 };
  scene s;
  guint32 best, second;
  scene_open(&s, "llama");
  s.config.max_num_batched_tokens = 512;
  (void)top_two(&s, &best, &second);
  const oct_token_bias bias[] = {{best, -0.5f}, {(second + 7) % s.g.spec->vocab, 1.5f}};
  for (guint i = 0; i < REQUESTS; i++) {
    rig_request *q = ask(&s, 1, 0);
    q->params.n = CHOICES;
    q->params.seed = 1000 + i;
    q->params.temperature = 0.7f;
    q->params.top_k = 30;
    q->params.logit_bias = g_memdup2(bias, sizeof bias);
    q->params.n_logit_bias = 2;
  }
  s.r.check = FALSE;
  scene_run(&s);
  g_autofree double *chances = exact_chances(&s, &rig_request_at(&s.r, 0)->params);
  g_autofree guint *seen = g_new0(guint, s.g.spec->vocab);
  guint distinct = 0;
  for (guint i = 0; i < REQUESTS; i++) {
    const rig_request *q = rig_request_at(&s.r, i);
    for (int c = 0; c < CHOICES; c++) {
      seen[g_array_index(q->tokens[c], guint32, 0)]++;
      distinct +=
          g_array_index(q->tokens[c], guint32, 0) != g_array_index(q->tokens[0], guint32, 0);
    }
  }
  double chi = 0, degrees = -1, rest = 0, rest_seen = 0;
  for (guint32 t = 0; t < s.g.spec->vocab; t++) {
    double expected = chances[t] * REQUESTS * CHOICES;
    g_assert_true(chances[t] > 0 || seen[t] == 0);
    if (expected < 10) {
      rest += expected;
      rest_seen += seen[t];
      continue;
    }
    chi += (seen[t] - expected) * (seen[t] - expected) / expected;
    degrees++;
  }
  if (rest >= 10) {
    chi += (rest_seen - rest) * (rest_seen - rest) / rest;
    degrees++;
  }
  g_test_message("chi-square %.1f with %.0f degrees of freedom, limit %.1f at 1e-6", chi, degrees,
                 chi_square_limit(degrees));
  g_assert_cmpfloat(degrees, >=, 5);
  g_assert_cmpfloat(chi, <=, chi_square_limit(degrees));
  g_assert_cmpuint(distinct, >, REQUESTS);
  scene_close(&s);
}

/* min_tokens: what would end the text is not sampled before, and is from there on. */
static void
stops_wait(void) {
  for (guint32 min = 0; min <= 6; min++) {
    scene s;
    scene_open(&s, "llama");
    rig_request *q = ask(&s, GOLDEN_GENERATED, 0);
    q->params.min_tokens = min;
    q->params.n_stop_tokens = 1;
    q->params.stop_tokens[0] = s.g.generated[2];
    guint32 first = 2; /* where it comes first */
    for (guint32 i = 0; i < 2; i++)
      first = s.g.generated[i] == s.g.generated[2] ? MIN(first, i) : first;
    scene_run(&s);
    for (guint32 i = 0; i < q->tokens[0]->len; i++) {
      guint32 token = g_array_index(q->tokens[0], guint32, i);
      g_assert_true(token != s.g.generated[2] || i >= min);
      if (i < first || min <= first)
        g_assert_cmpuint(token, ==, s.g.generated[i]);
    }
    if (min <= first)
      g_assert_cmpuint(q->tokens[0]->len, ==, first + 1);
    else
      g_assert_cmpuint(q->tokens[0]->len, >, min);
    scene_close(&s);
  }
}

/* ---------------------------------------------------------------- masks */

static gint64
half_a_millisecond(rig *r, const rig_request *q, guint32 choice, guint32 n_output) {
  (void)r, (void)q, (void)choice;
  return n_output % 2 == 0 ? 0 : 500000;
}

/* Guided and not, side by side, on both clocks, running ahead or not, with masks at once and late:
 * the rig sees that every token is allowed; they are the same each time, and the others' golden. */
static void
masks_guide_real_tokens(void) {
  g_autoptr(GArray) first = g_array_new(FALSE, FALSE, sizeof(guint32));
  for (guint32 i = 0; i < 8; i++) {
    scene s;
    scene_open_at(&s, "llama", i & 1 ? "real" : "virtual");
    s.config.run_ahead = i >> 1 & 1;
    s.r.answer_ns = i & 4 ? half_a_millisecond : NULL;
    rig_request *guided = ask(&s, GOLDEN_GENERATED, 0), *free = ask(&s, GOLDEN_GENERATED, 0);
    guided->params.guided = TRUE;
    guided->params.seed = 5;
    scene_run(&s);
    g_assert_cmpuint(guided->n_asked, ==, GOLDEN_GENERATED);
    g_assert_cmpmem(free->tokens[0]->data, free->tokens[0]->len * sizeof(guint32), s.g.generated,
                    sizeof s.g.generated);
    if (i == 0)
      g_array_append_vals(first, guided->tokens[0]->data, guided->tokens[0]->len);
    g_assert_cmpuint(first->len, ==, GOLDEN_GENERATED);
    g_assert_cmpmem(guided->tokens[0]->data, guided->tokens[0]->len * sizeof(guint32), first->data,
                    first->len * sizeof(guint32));
    scene_close(&s);
  }
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  for (const char *const *name = golden_names; *name != NULL; name++) {
    g_autofree char *scored = g_strdup_printf("/cpu/extras/%s/prompts-are-scored", *name);
    g_autofree char *pooled = g_strdup_printf("/cpu/extras/%s/vectors-are-of-hidden-states", *name);
    g_test_add_data_func(scored, *name, prompts_are_scored);
    g_test_add_data_func(pooled, *name, vectors_are_of_hidden_states);
  }
  g_test_add_func("/cpu/extras/a-bias-is-added-to-its-logit", a_bias_is_added_to_its_logit);
  g_test_add_func("/cpu/extras/output-penalties-follow-their-formula",
                  output_penalties_follow_their_formula);
  g_test_add_func("/cpu/extras/choices-draw-from-the-distribution",
                  choices_draw_from_the_distribution);
  g_test_add_func("/cpu/extras/stops-wait", stops_wait);
  g_test_add_func("/cpu/extras/masks-guide-real-tokens", masks_guide_real_tokens);
  return g_test_run();
}
