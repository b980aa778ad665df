/* What a request may want besides tokens: logprobs of its own and of the prompt, biases, vectors.
 * The rig looks at the order and the place of everything that comes (rig.c). */
#include "tests/engine/sched/scene.h"

/* Per token its own and as many others as were asked for, whatever else is in the slice. */
static void
logprobs_come_with_their_tokens(void) {
  scene s;
  scene_init(&s, "llama", 64, 0);
  rig_request *q = scene_ask(&s, 1, 100, 7);
  q->params.n_logprobs = 3;
  q->params.n_prompt_logprobs = 5;
  scene_run(&s);
  g_assert_cmpuint(q->logprobs[0]->len, ==, 7 * 4);
  g_assert_cmpuint(q->prompt_logprobs->len, ==, 99 * 6);
  for (guint i = 0; i < 7; i++) {
    const oct_logprob *l = &g_array_index(q->logprobs[0], oct_logprob, 4 * i);
    for (int k = 1; k < 4; k++) {
      g_assert_cmpfloat(l[k].logprob, <=, l[k - 1].logprob);
      g_assert_cmpuint(l[k].token, !=, l[0].token);
    }
  }
  for (guint i = 0; i < 99; i++)
    g_assert_cmpuint(g_array_index(q->prompt_logprobs, oct_logprob, 6 * i).token, ==,
                     q->params.prompt_ids[i + 1]);
  scene_clear(&s);
}

/* A prompt that is cached is computed again as far as its logprobs are wanted: what the second
 * request would have taken, it does not; the third, which wants none, does. */
static void
a_scored_prompt_takes_no_hits(void) {
  for (guint32 n = 1; n <= 3; n += 2) {
    scene s;
    scene_init(&s, "llama", 64, 0);
    rig_request *first = scene_ask(&s, 1, 100, 4), *second = scene_ask(&s, 1, 100, 4),
                *third = scene_ask(&s, 1, 100, 4);
    second->params.arrival_ns = 50 * MS;
    second->params.n_prompt_logprobs = 1;
    second->params.n = n;
    third->params.arrival_ns = 100 * MS;
    scene_run(&s);
    g_assert_cmpuint(first->record.cached_tokens, ==, 0);
    g_assert_cmpuint(second->record.cached_tokens, ==, 0);
    g_assert_cmpuint(second->n_scored, ==, 100);
    g_assert_cmpuint(third->record.cached_tokens, ==, 96);
    scene_clear(&s);
  }
}

/* In chunks of any size, preempted and run again, every prompt token is scored once, in order. */
static void
prompts_are_scored_once(void) {
  for (guint32 chunk = 1; chunk <= 64; chunk *= 4)
    for (int bad = 0; bad < 3; bad++) {
      scene s;
      scene_init(&s, "llama", bad == 0 ? 14 : 64, 0);
      s.config.max_num_seqs = MIN(chunk, 4);
      s.config.max_num_batched_tokens = chunk;
      if (bad > 0) {
        s.fault.script[0] = (oct_inject_line){
            .kind = bad == 1 ? OCT_INJECT_STEP : OCT_INJECT_INSTANCE, .instance = 1, .at = 2};
        s.fault.n_script = 1;
      }
      for (guint32 i = 0; i < 3; i++) {
        rig_request *q = scene_ask(&s, i, 70, 30);
        q->params.n_prompt_logprobs = 2;
        q->params.n = i == 2 && chunk >= 4 ? 2 : 1;
      }
      scene_run(&s);
      for (guint32 i = 0; i < 3; i++)
        g_assert_cmpuint(rig_request_at(&s.rig, i)->n_scored, ==, 70);
      g_assert_cmpuint(scene_stats(&s)->ended[OCT_END_LENGTH], ==, 3);
      scene_clear(&s);
    }
}

/* -100 is never sampled, 100 always (mock's rule, and what OpenAI says of them); between the two
 * mock has no opinion. */
static void
biases_reach_the_sampler(void) {
  scene plain, s;
  scene_init(&plain, "llama", 64, 0);
  rig_request *p = scene_ask(&plain, 1, 20, 6);
  scene_run(&plain);
  guint32 third = g_array_index(p->tokens[0], guint32, 2);
  scene_init(&s, "llama", 64, 0);
  rig_request *banned = scene_ask(&s, 1, 20, 6), *forced = scene_ask(&s, 1, 20, 6),
              *mild = scene_ask(&s, 1, 20, 6);
  oct_token_bias bans = {third, -100}, forces[] = {{5, 100}, {9, 1}}, milds = {third, -99};
  banned->params.logit_bias = g_memdup2(&bans, sizeof bans);
  forced->params.logit_bias = g_memdup2(forces, sizeof forces);
  mild->params.logit_bias = g_memdup2(&milds, sizeof milds);
  banned->params.n_logit_bias = mild->params.n_logit_bias = 1;
  forced->params.n_logit_bias = 2;
  banned->params.seed = forced->params.seed = mild->params.seed = p->params.seed;
  scene_run(&s);
  for (guint i = 0; i < 6; i++) {
    guint32 was = g_array_index(p->tokens[0], guint32, i);
    g_assert_cmpuint(g_array_index(forced->tokens[0], guint32, i), ==, 5);
    g_assert_cmpuint(g_array_index(mild->tokens[0], guint32, i), ==, was);
    if (was == third)
      g_assert_cmpuint(g_array_index(banned->tokens[0], guint32, i), !=, was);
    else
      g_assert_cmpuint(g_array_index(banned->tokens[0], guint32, i), ==, was);
  }
  scene_clear(&s);
  scene_clear(&plain);
}

/* Several requests with the most biases there may be, in one step. */
static void
the_most_biases_are_taken(void) {
  scene s;
  scene_init(&s, "llama", 64, 0);
  for (guint32 i = 0; i < 5; i++) {
    rig_request *q = scene_ask(&s, i, 20, 6);
    oct_token_bias *biases = g_new(oct_token_bias, OCT_BIASES_MAX);
    for (guint32 k = 0; k < OCT_BIASES_MAX; k++)
      biases[k] = (oct_token_bias){k, -100};
    q->params.logit_bias = biases;
    q->params.n_logit_bias = OCT_BIASES_MAX;
  }
  scene_run(&s);
  for (guint i = 0; i < 5; i++)
    for (guint k = 0; k < 6; k++)
      g_assert_cmpuint(g_array_index(rig_request_at(&s.rig, i)->tokens[0], guint32, k), >=,
                       OCT_BIASES_MAX);
  scene_clear(&s);
}

static void
run_vectors(scene *s, guint32 pages, guint32 host, guint32 chunk, const oct_inject_line *script) {
  scene_init(s, "llama", pages, host);
  s->config.max_num_batched_tokens = chunk;
  if (script != NULL) {
    s->fault.script[0] = *script;
    s->fault.n_script = 1;
  }
  for (guint32 i = 0; i < 6; i++) {
    rig_request *q = scene_ask(s, i / 2, 100, 1);
    q->params.pooling = i % 2 == 0 ? OCT_POOLING_MEAN : OCT_POOLING_LAST;
    q->params.seed = 7;
  }
  rig_request *text = scene_ask(s, 9, 40, 40);
  text->params.seed = 8;
  scene_run(s);
}

/* A vector is of its prompt alone: in chunks, with hits, preempted and run again it is the same. It
 * ends its request without a token. */
static void
vectors_depend_on_their_prompt_alone(void) {
  static const oct_inject_line scripts[] = {{.kind = OCT_INJECT_STEP, .at = 3},
                                            {.kind = OCT_INJECT_INSTANCE, .instance = 1, .at = 3}};
  scene whole, s[5];
  run_vectors(&whole, 400, 0, 1024, NULL);
  run_vectors(&s[0], 400, 0, 17, NULL);
  run_vectors(&s[1], 12, 0, 33, NULL);
  run_vectors(&s[2], 12, 64, 33, NULL);
  run_vectors(&s[3], 400, 0, 64, &scripts[0]);
  run_vectors(&s[4], 400, 0, 64, &scripts[1]);
  for (int k = 0; k < 5; k++) {
    for (guint i = 0; i < 6; i++) {
      const rig_request *q = rig_request_at(&s[k].rig, i), *w = rig_request_at(&whole.rig, i);
      g_assert_cmpint(q->record.reason, ==, OCT_END_STOP);
      g_assert_cmpuint(q->record.output_tokens, ==, 0);
      g_assert_cmpuint(q->pooled->len, ==, s[k].spec->hidden);
      g_assert_cmpmem(q->pooled->data, q->pooled->len * sizeof(float), w->pooled->data,
                      w->pooled->len * sizeof(float));
    }
    g_assert_cmpuint(rig_request_at(&s[k].rig, 6)->record.output_tokens, ==, 40);
    scene_clear(&s[k]);
  }
  scene_clear(&whole);
}

/* A mean needs all of the prompt; the last token's state takes what is cached of the rest. */
static void
a_mean_takes_no_hits(void) {
  scene s;
  scene_init(&s, "llama", 64, 0);
  (void)scene_ask(&s, 1, 100, 4);
  rig_request *mean = scene_ask(&s, 1, 100, 4), *last = scene_ask(&s, 1, 100, 4);
  mean->params.pooling = OCT_POOLING_MEAN;
  last->params.pooling = OCT_POOLING_LAST;
  mean->params.arrival_ns = last->params.arrival_ns = 50 * MS;
  scene_run(&s);
  g_assert_cmpuint(mean->record.cached_tokens, ==, 0);
  g_assert_cmpuint(last->record.cached_tokens, ==, 96);
  scene_clear(&s);
}

/* A step's result holds so many logprobs and numbers of vectors: more go into several. */
static void
what_a_result_cannot_hold_takes_more_steps(void) {
  scene s;
  scene_init(&s, "llama", 4000, 0);
  s.config.max_num_batched_tokens = 16384;
  for (guint32 i = 0; i < 5; i++)
    scene_ask(&s, i, 2000, 2)->params.n_prompt_logprobs = 20;
  scene_run(&s);
  for (guint i = 0; i < 5; i++)
    g_assert_cmpuint(rig_request_at(&s.rig, i)->n_scored, ==, 2000);
  g_assert_cmpuint(scene_step_at(&s, 0)->n_tokens, >, 6000);
  /* The last token of each of three whole prompts is not scored. */
  g_assert_cmpuint(scene_step_at(&s, 0)->n_tokens, <=, OCT_STEP_LOGPROBS_MAX / 2 / 21 + 3);
  scene_clear(&s);
  scene_init(&s, "llama", 4000, 0);
  guint32 most = OCT_STEP_FLOATS_MAX / s.spec->hidden;
  s.config.max_num_seqs = most + 10;
  s.config.max_num_batched_tokens = 16384;
  s.rig.check = FALSE;
  for (guint32 i = 0; i < most + 10; i++)
    scene_ask(&s, i, 4, 1)->params.pooling = OCT_POOLING_LAST;
  scene_run(&s);
  g_assert_cmpuint(scene_step_at(&s, 0)->n_slices, ==, most);
  g_assert_cmpuint(scene_stats(&s)->ended[OCT_END_STOP], ==, most + 10);
  scene_clear(&s);
}

static void
expect_refused(void (*change)(rig_request *q), const char *what) {
  scene s;
  scene_init(&s, "llama", 64, 0);
  rig_request *q = scene_ask(&s, 1, 100, 4);
  change(q);
  scene_run(&s);
  g_assert_true(q->refused);
  if (g_strstr_len(q->refusal, -1, what) == NULL)
    g_error("wanted '%s' in: %s", what, q->refusal);
  scene_clear(&s);
}

static void
twenty_one(rig_request *q) {
  q->params.n_prompt_logprobs = 21;
}
static void
two_vectors(rig_request *q) {
  q->params.pooling = OCT_POOLING_MEAN;
  q->params.n = 2;
}
static void
a_guided_vector(rig_request *q) {
  q->params.pooling = OCT_POOLING_LAST;
  q->params.guided = TRUE;
}
static void
give_biases(rig_request *q, oct_token_bias a, oct_token_bias b) {
  oct_token_bias both[] = {a, b};
  q->params.logit_bias = g_memdup2(both, sizeof both);
  q->params.n_logit_bias = 2;
}
static void
too_much(rig_request *q) {
  give_biases(q, (oct_token_bias){1, 100}, (oct_token_bias){2, 101});
}
static void
twice(rig_request *q) {
  give_biases(q, (oct_token_bias){1, 1}, (oct_token_bias){1, 2});
}
static void
no_token(rig_request *q) {
  give_biases(q, (oct_token_bias){1, 1}, (oct_token_bias){1u << 30, 2});
}

static void
what_cannot_be_is_refused(void) {
  expect_refused(twenty_one, "logprobs 21 is above 20");
  expect_refused(two_vectors, "pooling");
  expect_refused(a_guided_vector, "pooling");
  expect_refused(too_much, "logit_bias 101 is not between -100 and 100");
  expect_refused(twice, "token 1 twice");
  expect_refused(no_token, "token 1073741824");
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/sched/extras/logprobs-come-with-their-tokens", logprobs_come_with_their_tokens);
  g_test_add_func("/sched/extras/a-scored-prompt-takes-no-hits", a_scored_prompt_takes_no_hits);
  g_test_add_func("/sched/extras/prompts-are-scored-once", prompts_are_scored_once);
  g_test_add_func("/sched/extras/biases-reach-the-sampler", biases_reach_the_sampler);
  g_test_add_func("/sched/extras/the-most-biases-are-taken", the_most_biases_are_taken);
  g_test_add_func("/sched/extras/vectors-depend-on-their-prompt-alone",
                  vectors_depend_on_their_prompt_alone);
  g_test_add_func("/sched/extras/a-mean-takes-no-hits", a_mean_takes_no_hits);
  g_test_add_func("/sched/extras/what-a-result-cannot-hold-takes-more-steps",
                  what_a_result_cannot_hold_takes_more_steps);
  g_test_add_func("/sched/extras/what-cannot-be-is-refused", what_cannot_be_is_refused);
  return g_test_run();
}
