/* The service in virtual time on one thread: what clients get. */
#include <string.h>

#include "backends/mock/mock.h"
#include "engine/text/detokenizer.h"
#include "tests/engine/serve/serve-rig.h"

static guint32
id_at(const serve_ask *a, guint choice, guint i) {
  g_assert_cmpuint(i, <, a->choices[choice].ids->len);
  return g_array_index(a->choices[choice].ids, guint32, i);
}

static GString *
whole_text(const serve_rig *r, const GArray *ids, guint n) {
  GString *text = g_string_new(NULL);
  g_autoptr(oct_detokenizer) d = oct_detokenizer_new(r->tokenizer, TRUE, FALSE);
  for (guint i = 0; i < n; i++)
    oct_detokenizer_push(d, g_array_index(ids, guint32, i), text);
  oct_detokenizer_finish(d, text);
  return text;
}

static void
test_text_of_tokens(void) {
  serve_rig r;
  serve_ask *a;
  serve_rig_one(&r, &a, "Hello");
  a->at_ns = 5 * MS;
  serve_run(&r);
  g_assert_no_error(r.error);
  g_assert_no_error(a->error);
  g_assert_cmpuint(a->n_ends, ==, 1);
  g_assert_cmpuint(a->prompt->len, ==, 5);
  g_assert_cmpuint(g_array_index(a->prompt, guint32, 0), ==, 'H');
  g_assert_cmpuint(a->choices[0].ids->len, ==, 16);
  g_autoptr(GString) text = whole_text(&r, a->choices[0].ids, 16);
  g_assert_cmpstr(a->choices[0].text->str, ==, text->str);
  g_assert_cmpint(a->choices[0].finish.reason, ==, OCT_FINISH_LENGTH);
  serve_rig_clear(&r);
}

static void
test_phases(void) {
  serve_rig r;
  serve_ask *a;
  serve_rig_one(&r, &a, "Hello");
  a->at_ns = 5 * MS;
  a->params.request_id = "abc";
  serve_run(&r);
  g_assert_cmpint(a->end.received_ns, ==, 5 * MS);
  g_assert_cmpint(a->end.queued_ns, >=, a->end.received_ns);
  g_assert_cmpint(a->end.admitted_ns, >=, a->end.queued_ns);
  g_assert_cmpint(a->end.first_token_ns, >, a->end.admitted_ns);
  g_assert_cmpint(a->end.last_token_ns, >, a->end.first_token_ns);
  g_assert_cmpint(a->end.ended_ns, >=, a->end.last_token_ns);
  g_assert_cmpuint(a->end.prompt_tokens, ==, 5);
  g_assert_cmpuint(a->end.output_tokens, ==, 16);
  g_assert_cmpuint(r.log->len, ==, 1);
  const char *line = r.log->pdata[0];
  g_assert_true(
      g_str_has_prefix(line, "request id=abc outcome=length prompt=5 cached=0 output=16"));
  g_autofree char *total =
      g_strdup_printf(" total_ms=%.3f", (double)(a->end.ended_ns - a->end.received_ns) / 1e6);
  g_assert_nonnull(strstr(line, total));
  serve_rig_clear(&r);
}

/* ---------------------------------------------------------------- sampling and company */

static void
seeded(serve_ask *a, guint64 seed) {
  a->params.seeded = TRUE;
  a->params.sampling.seed = seed;
  a->params.sampling.max_tokens = 40;
}

static void
test_seed(void) {
  serve_rig r;
  serve_ask *a;
  serve_rig_one(&r, &a, "Tell me");
  seeded(a, 0); /* is a seed like any other */
  serve_run(&r);
  g_autofree char *alone = g_strdup(a->choices[0].text->str);
  serve_rig_clear(&r);

  serve_rig_init(&r, oct_mock_world_new(NULL, NULL));
  serve_ask *same[3], *other;
  for (guint i = 0; i < 3; i++) {
    same[i] = serve_add(&r, i * MS, "Tell me");
    seeded(same[i], 0);
    serve_add(&r, i * MS + 1, "something else, in the same batch")->params.sampling.n = 3;
  }
  other = serve_add(&r, 0, "Tell me");
  seeded(other, 1);
  serve_run(&r);
  for (guint i = 0; i < 3; i++)
    g_assert_cmpstr(same[i]->choices[0].text->str, ==, alone);
  g_assert_cmpstr(other->choices[0].text->str, !=, alone);
  serve_rig_clear(&r);
}

static void
test_choices(void) {
  serve_rig r;
  serve_ask *a;
  serve_rig_one(&r, &a, "Hello");
  a->params.sampling.n = 8;
  serve_run(&r);
  g_assert_no_error(a->error);
  for (guint c = 0; c < 8; c++) {
    g_assert_cmpuint(a->choices[c].ids->len, ==, 16);
    for (guint other = 0; other < c; other++)
      g_assert_cmpstr(a->choices[c].text->str, !=, a->choices[other].text->str);
  }
  g_assert_cmpuint(a->end.output_tokens, ==, 8 * 16);
  serve_rig_clear(&r);
}

/* Choices part before the prompt's last token: one token is prompt enough all the same. */
static void
test_choices_of_one_token(void) {
  serve_rig r;
  serve_rig_init(&r, oct_mock_world_new(NULL, NULL));
  serve_ask *a = serve_add(&r, 0, "x"), *again = serve_add(&r, 0, "x");
  serve_ask *gone = serve_add(&r, 0, "x"), *fits = serve_add(&r, 0, "x");
  serve_ask *asks[] = {a, again, gone, fits};
  for (guint i = 0; i < 4; i++) {
    asks[i]->params.sampling.n = 3;
    asks[i]->params.seeded = i < 2;
  }
  gone->params.sampling.max_tokens = 1000;
  gone->cancel_ns = 8 * MS;
  fits->params.constraint = OCT_CONSTRAINT_REGEX;
  fits->params.constraint_text = "[a-z]{2}";
  serve_run(&r);
  g_assert_no_error(r.error);
  g_assert_no_error(a->error);
  for (guint c = 0; c < 3; c++) {
    g_assert_cmpuint(a->choices[c].ids->len, ==, 16);
    g_assert_cmpstr(a->choices[c].text->str, ==, again->choices[c].text->str);
    g_assert_cmpstr(a->choices[c].text->str, !=, a->choices[(c + 1) % 3].text->str);
    g_assert_cmpuint(strlen(fits->choices[c].text->str), ==, 2);
  }
  g_assert_cmpuint(a->end.output_tokens, ==, 48);
  g_assert_cmpint(a->end.last_token_ns, >, a->end.first_token_ns);
  g_assert_cmpuint(gone->n_ends, ==, 1);
  oct_engine_stats stats;
  oct_service_get_stats(r.service, 0, &stats);
  g_assert_cmpuint(stats.accepted, ==, 12);
  g_assert_cmpuint(stats.running + stats.waiting, ==, 0);
  serve_rig_clear(&r);
}

/* An engine that takes some of the parts and no more has taken none. */
static void
test_choices_refused(void) {
  serve_rig r;
  serve_ask *a;
  serve_rig_one(&r, &a, "x");
  a->params.sampling.n = 3;
  r.config.engine.queue_max = 2;
  serve_run(&r);
  g_assert_cmpuint(oct_service_error_status(a->error), ==, 429);
  g_assert_cmpuint(a->n_deltas, ==, 0);
  oct_engine_stats stats;
  oct_service_get_stats(r.service, 0, &stats);
  g_assert_cmpuint(stats.running + stats.waiting, ==, 0);
  serve_rig_clear(&r);
}

static void
test_replicas(void) {
  static const guint16 devices[3] = {0, 1, 2};
  serve_rig r;
  serve_rig_init(&r, oct_mock_world_new(NULL, NULL));
  r.config.n_replicas = 3;
  r.config.devices = devices;
  for (guint i = 0; i < 9; i++)
    serve_add(&r, i, "Hello");
  serve_run(&r);
  for (guint i = 0; i < 3; i++) {
    oct_engine_stats stats;
    oct_service_get_stats(r.service, i, &stats);
    g_assert_cmpuint(stats.accepted, ==, 3);
  }
  serve_rig_clear(&r);
}

/* ---------------------------------------------------------------- stops */

/* The answer to "Tell me" without stops. */
static char *
free_answer(serve_rig *r, serve_ask **a) {
  serve_rig_one(r, a, "Tell me");
  seeded(*a, 5);
  serve_run(r);
  return g_strdup((*a)->choices[0].text->str);
}

static void
check_stop(const char *answer, const char *stop, gboolean include) {
  serve_rig r;
  serve_ask *a;
  serve_rig_one(&r, &a, "Tell me");
  seeded(a, 5);
  a->stops[0] = "never in it";
  a->stops[1] = stop;
  a->params.include_stop = include;
  serve_run(&r);
  g_assert_no_error(a->error);
  const char *at = strstr(answer, stop);
  g_autofree char *wanted = g_strndup(answer, (gsize)(at - answer) + (include ? strlen(stop) : 0));
  g_assert_cmpstr(a->choices[0].text->str, ==, wanted);
  g_assert_cmpint(a->choices[0].finish.reason, ==, OCT_FINISH_STOP);
  g_assert_cmpint(a->choices[0].finish.stop_string, ==, 1);
  /* The last id is the one that completes it, and the engine goes on for no longer than it takes
   * to be told: a step that runs and one that is submitted. */
  g_autoptr(GString) upto = whole_text(&r, a->choices[0].ids, a->choices[0].ids->len);
  g_autoptr(GString) before = whole_text(&r, a->choices[0].ids, a->choices[0].ids->len - 1);
  g_assert_nonnull(strstr(upto->str, stop));
  g_assert_null(strstr(before->str, stop));
  oct_engine_stats stats;
  oct_service_get_stats(r.service, 0, &stats);
  g_assert_cmpuint(stats.generated_tokens, <=, a->choices[0].ids->len + 2);
  serve_rig_clear(&r);
}

static void
test_stop_strings(void) {
  serve_rig r;
  serve_ask *a;
  g_autofree char *answer = free_answer(&r, &a);
  serve_rig_clear(&r);
  /* From within a token to over five of them, at every fifth place. */
  gsize size = strlen(answer);
  g_assert_cmpuint(size, >, 60);
  for (gsize length = 2; length <= 28; length += 5)
    for (gsize at = 1; at + length < size; at += 9) {
      g_autofree char *stop = g_strndup(answer + at, length);
      if (g_utf8_validate(stop, -1, NULL) && strstr(answer, stop) == answer + at)
        check_stop(answer, stop, at % 2 == 0);
    }
}

static void
test_stop_keeps_nothing_back(void) {
  serve_rig r;
  serve_ask *a;
  g_autofree char *answer = free_answer(&r, &a);
  serve_rig_clear(&r);
  /* The text ends in what could have been the beginning of a stop string. */
  g_autofree char *stop = g_strconcat(answer + strlen(answer) - 3, "and no more", NULL);
  serve_rig_one(&r, &a, "Tell me");
  seeded(a, 5);
  a->stops[0] = stop;
  serve_run(&r);
  g_assert_cmpstr(a->choices[0].text->str, ==, answer);
  g_assert_cmpint(a->choices[0].finish.reason, ==, OCT_FINISH_LENGTH);
  serve_rig_clear(&r);
}

static void
test_stop_tokens(void) {
  serve_rig r;
  serve_ask *a;
  g_free(free_answer(&r, &a));
  guint32 sixth = id_at(a, 0, 5);
  g_autoptr(GString) five = whole_text(&r, a->choices[0].ids, 5);
  g_autoptr(GString) six = whole_text(&r, a->choices[0].ids, 6);
  serve_rig_clear(&r);
  for (guint include = 0; include < 2; include++) {
    serve_rig_one(&r, &a, "Tell me");
    seeded(a, 5);
    a->params.sampling.n_stop_tokens = 1;
    a->params.sampling.stop_tokens[0] = sixth;
    a->params.include_stop = include;
    serve_run(&r);
    g_assert_cmpstr(a->choices[0].text->str, ==, include ? six->str : five->str);
    g_assert_cmpuint(a->choices[0].ids->len, ==, 6);
    g_assert_cmpint(a->choices[0].finish.reason, ==, OCT_FINISH_STOP);
    g_assert_cmpuint(a->choices[0].finish.stop_token, ==, sixth);
    g_assert_cmpint(a->choices[0].finish.stop_string, ==, -1);
    serve_rig_clear(&r);
  }
}

static void
test_end_of_sequence(void) {
  serve_rig r;
  serve_ask *a;
  serve_rig_one(&r, &a, "Tell me");
  seeded(a, 5);
  a->params.sampling.oracle_tokens = 4;
  serve_ask *on = serve_add(&r, 0, "Tell me"); /* the end is a token like another */
  seeded(on, 5);
  on->params.sampling.oracle_tokens = 4;
  on->params.sampling.ignore_eos = TRUE;
  on->params.keep_special = TRUE;
  serve_run(&r);
  g_assert_cmpuint(a->choices[0].ids->len, ==, 4);
  g_assert_cmpuint(id_at(a, 0, 3), ==, r.spec->eos_tokens[0]);
  g_assert_null(strstr(a->choices[0].text->str, "im_end"));
  g_assert_cmpint(a->choices[0].finish.reason, ==, OCT_FINISH_STOP);
  g_assert_cmpuint(a->choices[0].finish.stop_token, ==, OCT_NO_TOKEN);
  g_assert_cmpuint(on->choices[0].ids->len, ==, 40);
  g_assert_nonnull(strstr(on->choices[0].text->str, "<|im_end|>"));
  serve_rig_clear(&r);
}

static void
test_min_tokens(void) {
  serve_rig r;
  serve_ask *a;
  g_free(free_answer(&r, &a));
  g_autoptr(GString) four = whole_text(&r, a->choices[0].ids, 4);
  serve_rig_clear(&r);
  serve_rig_one(&r, &a, "Tell me");
  seeded(a, 5);
  a->params.sampling.min_tokens = 12;
  a->stops[0] = four->str + four->len - 3; /* in the fourth token */
  serve_run(&r);
  g_assert_cmpuint(a->choices[0].ids->len, >=, 12);
  g_assert_true(g_str_has_prefix(a->choices[0].text->str, four->str));
  serve_rig_clear(&r);
}

/* ---------------------------------------------------------------- characters */

static void
test_characters(void) {
  /* Every byte of these is a token of its own: each character comes in one delta or later. */
  static const char *const texts[] = {"สวัสดี", "漢字かな", "🙂🏳️‍🌈", "é", "a\u0301b"};
  for (guint i = 0; i < G_N_ELEMENTS(texts); i++) {
    serve_rig r;
    serve_ask *a;
    serve_rig_one(&r, &a, "Say it");
    g_autofree char *choice = g_strdup_printf("[\"%s\"]", texts[i]);
    a->params.constraint = OCT_CONSTRAINT_CHOICE;
    a->params.constraint_text = choice;
    a->params.sampling.max_tokens = 200;
    serve_run(&r);
    g_assert_no_error(a->error);
    g_assert_cmpstr(a->choices[0].text->str, ==, texts[i]);
    g_assert_cmpuint(a->choices[0].ids->len, ==, strlen(texts[i]) + 1);
    serve_rig_clear(&r);
  }
}

static void
test_cut_character(void) {
  /* Cut by its length, an answer ends in one replacement character and not in three. */
  serve_rig r;
  serve_ask *a;
  serve_rig_one(&r, &a, "Say it");
  a->params.constraint = OCT_CONSTRAINT_CHOICE;
  a->params.constraint_text = "[\"ab🙂\"]";
  a->params.sampling.max_tokens = 5;
  serve_run(&r);
  g_assert_cmpstr(a->choices[0].text->str, ==, "ab\uFFFD");
  g_assert_cmpint(a->choices[0].finish.reason, ==, OCT_FINISH_LENGTH);
  serve_rig_clear(&r);
}

static void
test_prompt_ends_within_character(void) {
  static const char *const prompts[] = {"สวัสดี", "漢", "🙂"};
  for (guint i = 0; i < G_N_ELEMENTS(prompts); i++)
    for (guint cut = 1; cut < strlen(prompts[i]) && cut < 4; cut++) {
      serve_rig r;
      serve_ask *a;
      serve_rig_one(&r, &a, NULL);
      guint32 ids[8];
      for (guint k = 0; k < cut; k++)
        ids[k] = (guint8)prompts[i][k];
      a->params.prompt_ids = ids;
      a->params.n_prompt_ids = cut;
      a->params.constraint = OCT_CONSTRAINT_CHOICE;
      a->params.constraint_text = "[\"plain\"]";
      serve_run(&r);
      g_assert_no_error(a->error);
      g_assert_cmpstr(a->choices[0].text->str, ==, "plain");
      serve_rig_clear(&r);
    }
}

/* ---------------------------------------------------------------- ids, logprobs, vectors */

static void
test_without_tokenizer(void) {
  serve_rig r;
  serve_ask *a;
  guint32 ids[] = {1, 2, 3};
  serve_rig_one(&r, &a, NULL);
  a->params.prompt_ids = ids;
  a->params.n_prompt_ids = 3;
  serve_ask *text = serve_add(&r, 0, "text");
  r.config.tokenizer = NULL;
  serve_run(&r);
  g_assert_cmpuint(a->choices[0].ids->len, ==, 16);
  g_assert_cmpuint(a->choices[0].text->len, ==, 0);
  g_assert_true(text->refused);
  g_assert_cmpuint(oct_service_error_status(text->error), ==, 400);
  serve_rig_clear(&r);
}

static void
test_logprobs(void) {
  for (int k = 0; k <= 3; k++) {
    serve_rig r;
    serve_ask *a;
    serve_rig_one(&r, &a, "Hello");
    a->params.n_logprobs = k;
    a->params.sampling.n_prompt_logprobs = 2;
    serve_run(&r);
    g_assert_no_error(a->error);
    guint each = 1 + (guint)MAX(k, 1);
    g_assert_cmpuint(a->choices[0].logprobs->len, ==, 16 * each);
    for (guint i = 0; i < 16; i++) {
      const oct_logprob *own = &g_array_index(a->choices[0].logprobs, oct_logprob, i * each);
      g_assert_cmpuint(own->token, ==, id_at(a, 0, i));
      g_assert_cmpfloat((double)own->logprob, <=, 0);
    }
    /* Of prompt tokens 1 … 4. */
    g_assert_cmpuint(a->prompt_logprobs->len, ==, 4 * 3);
    g_assert_cmpuint(g_array_index(a->prompt_logprobs, oct_logprob, 0).token, ==, 'e');
    serve_rig_clear(&r);
  }
}

static void
test_pooling(void) {
  serve_rig r;
  serve_ask *a;
  serve_rig_one(&r, &a, "Hello");
  a->params.sampling.pooling = OCT_POOLING_MEAN;
  serve_run(&r);
  g_assert_no_error(a->error);
  g_assert_cmpuint(a->pooled->len, ==, r.spec->hidden);
  g_assert_cmpuint(a->n_deltas, ==, 0);
  serve_rig_clear(&r);
}

/* ---------------------------------------------------------------- sizes */

static void
test_sizes(void) {
  serve_rig r;
  serve_ask *a;
  serve_rig_one(&r, &a, "Hello");
  r.config.engine.max_model_len = 64;
  a->params.sampling.max_tokens = 0;
  g_autofree char *long_text = g_strnfill(5000, 'x'); /* encoded by a text thread */
  serve_ask *too_long = serve_add(&r, 0, long_text), *empty = serve_add(&r, 0, "");
  serve_ask *fits = serve_add(&r, 0, NULL);
  guint32 ids[63] = {0};
  fits->params.prompt_ids = ids;
  fits->params.n_prompt_ids = 63;
  fits->params.sampling.max_tokens = 0;
  serve_run(&r);
  g_assert_cmpuint(a->choices[0].ids->len, ==, 64 - 5);
  g_assert_cmpint(a->choices[0].finish.reason, ==, OCT_FINISH_LENGTH);
  g_assert_cmpuint(fits->choices[0].ids->len, ==, 1);
  g_assert_cmpuint(oct_service_error_status(too_long->error), ==, 400);
  g_assert_nonnull(strstr(too_long->error->message, "5000"));
  g_assert_cmpuint(oct_service_error_status(empty->error), ==, 400);
  g_assert_cmpuint(too_long->n_ends, ==, 1);
  serve_rig_clear(&r);
}

static void
count_work(void *user) {
  ++*(int *)user;
}

static void
count_done(void *user) {
  *(int *)user += 100;
}

static gboolean
offload_once(serve_rig *r, oct_time now, oct_time *next) {
  (void)next;
  int *counts = r->user;
  if (now == 0 && counts[0] == 0) {
    g_assert_true(oct_service_offload(r->service, count_work, count_done, &counts[0], NULL));
    g_assert_cmpint(counts[0], ==, 0);
  }
  return TRUE;
}

static void
test_offload(void) {
  serve_rig r;
  serve_ask *a;
  int counts[1] = {0};
  serve_rig_one(&r, &a, "Hello");
  r.each = offload_once;
  r.user = counts;
  serve_run(&r);
  g_assert_cmpint(counts[0], ==, 101);
  serve_rig_clear(&r);
}

/* ---------------------------------------------------------------- determinism */

static char *
transcript(void) {
  serve_rig r;
  GString *out = g_string_new(NULL);
  serve_rig_init(&r, oct_mock_world_new(NULL, NULL));
  for (guint i = 0; i < 40; i++) {
    g_autofree char *text = g_strdup_printf("ask %u", i % 7);
    serve_ask *a = serve_add(&r, i * 1700000, text);
    a->params.sampling.n = 1 + i % 3;
    a->stops[0] = i % 4 == 0 ? "th" : NULL;
    if (i % 5 == 0) {
      a->params.constraint = OCT_CONSTRAINT_REGEX;
      a->params.constraint_text = "[a-z]{3,9}";
    }
    if (i % 6 == 0)
      a->cancel_ns = a->at_ns + 3000000;
  }
  serve_run(&r);
  g_assert_no_error(r.error);
  for (guint i = 0; i < r.asks->len; i++)
    for (guint c = 0; c < 3; c++) {
      const serve_ask *a = r.asks->pdata[i];
      g_string_append_printf(out, "%u %u %s %u %" G_GINT64_FORMAT "\n", i, c,
                             a->choices[c].text->str, a->choices[c].n_deltas, a->ended_ns);
    }
  for (guint i = 0; i < r.log->len; i++)
    g_string_append_printf(out, "%s\n", (char *)r.log->pdata[i]);
  oct_service_write_metrics(r.service, out);
  serve_rig_clear(&r);
  return g_string_free(out, FALSE);
}

static void
test_equal_runs(void) {
  g_autofree char *once = transcript(), *twice = transcript();
  g_assert_cmpuint(strlen(once), >, 10000);
  g_assert_cmpstr(once, ==, twice);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/serve/service/text-is-the-text-of-the-tokens", test_text_of_tokens);
  g_test_add_func("/serve/service/phases-follow-one-another", test_phases);
  g_test_add_func("/serve/service/a-seeded-text-does-not-depend-on-its-company", test_seed);
  g_test_add_func("/serve/service/choices-differ", test_choices);
  g_test_add_func("/serve/service/choices-of-one-token", test_choices_of_one_token);
  g_test_add_func("/serve/service/choices-are-refused-together", test_choices_refused);
  g_test_add_func("/serve/service/replicas-share-the-load", test_replicas);
  g_test_add_func("/serve/stop/strings-wherever-tokens-end", test_stop_strings);
  g_test_add_func("/serve/stop/what-was-held-back-comes-at-the-end", test_stop_keeps_nothing_back);
  g_test_add_func("/serve/stop/tokens", test_stop_tokens);
  g_test_add_func("/serve/stop/end-of-sequence-is-no-text", test_end_of_sequence);
  g_test_add_func("/serve/stop/not-before-min-tokens", test_min_tokens);
  g_test_add_func("/serve/text/whole-characters-only", test_characters);
  g_test_add_func("/serve/text/a-cut-character-is-replaced-once", test_cut_character);
  g_test_add_func("/serve/text/nothing-of-the-prompt-leaks", test_prompt_ends_within_character);
  g_test_add_func("/serve/ids/are-served-without-a-tokenizer", test_without_tokenizer);
  g_test_add_func("/serve/logprobs/of-output-and-prompt", test_logprobs);
  g_test_add_func("/serve/pooling/gives-a-vector", test_pooling);
  g_test_add_func("/serve/sizes/default-to-the-context-and-beyond-is-400", test_sizes);
  g_test_add_func("/serve/offload/works-then-says-done", test_offload);
  g_test_add_func("/serve/service/equal-runs-are-equal", test_equal_runs);
  return g_test_run();
}
