/* Speculative decoding: what one scene can show. That drafts change no token, whatever else goes
 * on, is the swarm's to show. */
#include <string.h>

#include "tests/engine/sched/scene.h"

/* Tokens of a sequence repeat every four, but for every fourth or so: much is accepted. */
static void
ngram(scene *s, guint32 n_tokens) {
  s->mock.shadow.repeat = 4;
  s->config.speculation = (oct_speculation){
      .method = OCT_DRAFT_NGRAM, .n_tokens = n_tokens, .ngram_min = 1, .ngram_max = 3};
}

/* The model drafts for itself, and draws what it draws: all is accepted. */
static void
draft_model(scene *s, guint32 n_tokens, guint32 pages) {
  s->config.speculation = (oct_speculation){
      .method = OCT_DRAFT_MODEL, .n_tokens = n_tokens, .draft = s->config.instance};
  for (guint32 g = 0; g < s->config.instance.memory.n_groups; g++)
    s->config.speculation.draft.memory.groups[g] = (oct_pool_plan){.n_device = pages};
}

static const oct_draft_stats *
drafts_of(const scene *s) {
  return &scene_stats(s)->speculation;
}

/* ---------------------------------------------------------------- steps */

/* One prompt, and then slices of 5 that bring 5 each. */
static void
a_draft_model_that_is_right_saves_steps(void) {
  scene s;
  scene_init(&s, "llama", 64, 0);
  draft_model(&s, 4, 64);
  rig_request *q = scene_ask(&s, 1, 40, 21);
  scene_run(&s);
  const oct_draft_stats *d = drafts_of(&s);
  g_assert_cmpuint(q->record.output_tokens, ==, 21);
  g_assert_cmpuint(scene_stats(&s)->steps, ==, 1 + 4);
  g_assert_cmpuint(d->drafts, ==, 4);
  g_assert_cmpuint(d->draft_tokens, ==, 16);
  g_assert_cmpuint(d->accepted, ==, 16);
  for (guint i = 0; i < 4; i++)
    g_assert_cmpuint(d->accepted_at[i], ==, 4);
  /* 40 and a first token come in; then what was drafted last and what was sampled behind it; and
   * each round feeds all drafts but its last. */
  g_assert_cmpuint(d->model_steps, ==, 4 * 4);
  g_assert_cmpuint(d->model_tokens, ==, 41 + 3 * 2 + 4 * 3);
  g_assert_cmpuint(q->record.draft_tokens, ==, 16);
  g_assert_cmpuint(q->record.accepted_tokens, ==, 16);
  scene_clear(&s);
}

/* Nothing is submitted ahead of a step with a sequence that will be drafted for. */
static void
nothing_runs_ahead_of_drafts(void) {
  scene s;
  scene_init(&s, "llama", 64, 0);
  ngram(&s, 3);
  (void)scene_ask(&s, 1, 40, 40);
  (void)scene_ask(&s, 2, 30, 40);
  scene_run(&s);
  for (guint i = 0; i < s.steps->len; i++)
    g_assert_cmpuint(scene_step_at(&s, i)->unfinished, <=, 1);
  g_assert_cmpuint(drafts_of(&s)->accepted, >, 20);
  g_assert_cmpuint(scene_stats(&s)->zombie_slices, ==, 0);
  scene_clear(&s);
}

/* Who is never right is left alone for a while, and others may run ahead again. */
static void
drafting_in_vain_pauses(void) {
  scene s;
  scene_init(&s, "llama", 64, 0);
  ngram(&s, 3);
  s.mock.shadow.accept_rate = 0;
  s.config.speculation.acceptance_min = 0.1;
  (void)scene_ask(&s, 1, 40, 400);
  scene_run(&s);
  guint64 ahead = 0;
  for (guint i = 0; i < s.steps->len; i++)
    ahead += scene_step_at(&s, i)->unfinished > 1;
  g_assert_cmpuint(drafts_of(&s)->accepted, ==, 0);
  g_assert_cmpuint(drafts_of(&s)->pauses, ==, 2); /* after 32, and 256 tokens later after 32 more */
  g_assert_cmpuint(drafts_of(&s)->drafts, ==, 64);
  g_assert_cmpuint(ahead, >, 200);
  scene_clear(&s);
}

static void
many_sequences_get_no_drafts(void) {
  for (guint32 limit = 2; limit <= 3; limit++) {
    scene s;
    scene_init(&s, "llama", 64, 0);
    ngram(&s, 3);
    s.config.speculation.seqs_max = limit;
    for (guint32 i = 0; i < 3; i++)
      (void)scene_ask(&s, i, 20, 30);
    scene_run(&s);
    for (guint i = 0; i < s.steps->len && limit == 2; i++)
      if (scene_step_at(&s, i)->n_slices == 3 && scene_step_at(&s, i)->n_decodes == 3)
        g_assert_cmpuint(scene_step_at(&s, i)->n_tokens, ==, 3);
    g_assert_cmpuint(drafts_of(&s)->drafts > 0, ==, limit == 3);
    scene_clear(&s);
  }
}

/* ---------------------------------------------------------------- budgets and memory */

/* Drafts take what is left of a step's tokens once everybody has one. */
static void
drafts_come_last(void) {
  scene s;
  scene_init(&s, "llama", 64, 0);
  draft_model(&s, 8, 64);
  s.config.max_num_seqs = 6;
  s.config.max_num_batched_tokens = 10;
  for (guint32 i = 0; i < 6; i++)
    (void)scene_ask(&s, i, 8, 40);
  scene_run(&s);
  guint full = 0;
  for (guint i = 0; i < s.steps->len; i++) {
    const scene_step *step = scene_step_at(&s, i);
    full += step->n_slices == 6 && step->n_tokens == 10;
  }
  g_assert_cmpuint(full, >, 0);
  g_assert_cmpuint(drafts_of(&s)->accepted, ==, drafts_of(&s)->draft_tokens);
  scene_clear(&s);
}

/* A pool that just holds the sequences: the drafts get no page, and nobody leaves for them. */
static void
nobody_is_preempted_for_drafts(void) {
  scene plain, s;
  scene_init(&plain, "llama", 12, 0);
  scene_init(&s, "llama", 12, 0);
  ngram(&s, OCT_DRAFTS_MAX);
  ngram(&plain, 1);
  plain.config.speculation.method = OCT_DRAFT_NONE;
  for (guint32 i = 0; i < 4; i++) {
    (void)scene_ask(&plain, i, 30, 18);
    (void)scene_ask(&s, i, 30, 18);
  }
  scene_run(&plain);
  scene_run(&s);
  g_assert_cmpuint(scene_stats(&plain)->preemptions, ==, 0);
  g_assert_cmpuint(scene_stats(&s)->preemptions, ==, 0);
  g_assert_cmpuint(drafts_of(&s)->drafts, >, 0);
  for (guint32 i = 0; i < 4; i++)
    g_assert_true(scene_same_tokens(rig_request_at(&plain.rig, i), rig_request_at(&s.rig, i)));
  scene_clear(&s);
  scene_clear(&plain);
}

/* Between steps a sequence holds the pages of its tokens and of the next one. */
static void
holds_no_page_too_many(rig *r, void *user) {
  (void)user;
  if (r->engines[0] == NULL)
    return;
  const oct_kv_domain *d = &r->engines[0]->domains[0];
  for (guint32 i = 0; i < d->n_running; i++)
    if (d->running[i]->unfinished == 0 && oct_seq_decodes(d->running[i]))
      g_assert_cmpuint(d->running[i]->n_pages, <=,
                       oct_kv_pages(r->engines[0], d->running[i]->sched + 1));
}

static void
pages_of_rejected_drafts_go_back(void) {
  scene s;
  scene_init(&s, "llama", 64, 0);
  s.config.instance.block_size = 4;
  ngram(&s, OCT_DRAFTS_MAX);
  s.mock.shadow.n_accept_script = 2;
  s.mock.shadow.accept_script[0] = 1;
  s.mock.shadow.accept_script[1] = 9;
  s.rig.on_turn = holds_no_page_too_many;
  (void)scene_ask(&s, 1, 15, 60);
  scene_run(&s);
  g_assert_cmpuint(drafts_of(&s)->draft_tokens, >, 2 * drafts_of(&s)->accepted);
  scene_clear(&s);
}

/* A draft model whose cache holds one of two: the other decodes, and gets the same. */
static void
no_room_for_a_draft_is_no_harm(void) {
  scene s;
  scene_init(&s, "llama", 64, 0);
  draft_model(&s, 4, 5);
  rig_request *a = scene_ask(&s, 1, 60, 15), *b = scene_ask(&s, 2, 60, 15);
  scene_run(&s);
  g_assert_cmpuint(a->record.draft_tokens, >, 0);
  g_assert_cmpuint(b->record.draft_tokens, <, a->record.draft_tokens);
  g_assert_cmpuint(b->record.output_tokens, ==, 15);
  scene_clear(&s);
}

/* ---------------------------------------------------------------- what requests want */

static void
every_accepted_token_has_its_logprobs(void) {
  scene plain, s;
  scene_init(&plain, "llama", 64, 0);
  scene_init(&s, "llama", 64, 0);
  draft_model(&s, 5, 64);
  rig_request *p = scene_ask(&plain, 1, 30, 20), *q = scene_ask(&s, 1, 30, 20);
  p->params.n_logprobs = q->params.n_logprobs = 4;
  scene_run(&plain);
  scene_run(&s);
  g_assert_true(scene_same_tokens(p, q));
  g_assert_cmpuint(q->logprobs[0]->len, ==, 20 * 5);
  g_assert_cmpmem(q->logprobs[0]->data, q->logprobs[0]->len * sizeof(oct_logprob),
                  p->logprobs[0]->data, p->logprobs[0]->len * sizeof(oct_logprob));
  g_assert_cmpuint(drafts_of(&s)->accepted, >, 10);
  scene_clear(&s);
  scene_clear(&plain);
}

static void
guided_requests_get_no_drafts(void) {
  scene s;
  scene_init(&s, "llama", 64, 0);
  draft_model(&s, 4, 64);
  rig_request *guided = scene_ask(&s, 1, 30, 12), *other = scene_ask(&s, 2, 30, 12);
  guided->params.guided = TRUE;
  scene_run(&s);
  g_assert_cmpuint(guided->record.draft_tokens, ==, 0);
  g_assert_cmpuint(guided->n_asked, ==, 12);
  g_assert_cmpuint(other->record.draft_tokens, >, 0);
  g_assert_cmpuint(drafts_of(&s)->undrafted, ==, 1);
  scene_clear(&s);
}

/* Behind the end nothing is accepted, in the middle of a slice or not. */
static void
an_end_among_drafts_is_the_end(void) {
  for (guint32 length = 2; length <= 12; length++) {
    scene s;
    scene_init(&s, "llama", 64, 0);
    draft_model(&s, 6, 64);
    rig_request *q = scene_ask(&s, 1, 30, 40);
    q->params.ignore_eos = FALSE;
    q->params.oracle_tokens = length;
    scene_run(&s);
    g_assert_cmpuint(q->record.output_tokens, ==, length);
    g_assert_cmpstr(oct_end_reason_name(q->record.reason), ==, "stop");
    scene_clear(&s);
  }
}

/* A slice never goes past max_tokens, whose pages there are and no more. */
static void
nothing_is_drafted_past_the_length(void) {
  for (guint32 length = 1; length <= 9; length++) {
    scene s;
    scene_init(&s, "llama", 64, 0);
    draft_model(&s, 4, 64);
    s.config.max_model_len = 30 + length;
    rig_request *q = scene_ask(&s, 1, 30, 100);
    scene_run(&s);
    g_assert_cmpuint(q->record.output_tokens, ==, length);
    g_assert_cmpuint(drafts_of(&s)->draft_tokens, <=, length - 1);
    scene_clear(&s);
  }
}

/* ---------------------------------------------------------------- what goes wrong */

/* The draft model's instance is the second that opens. */
static void
a_lost_draft_model_is_done_without(void) {
  scene s;
  scene_init(&s, "llama", 64, 0);
  draft_model(&s, 4, 64);
  s.fault.script[0] = (oct_inject_line){.kind = OCT_INJECT_INSTANCE, .instance = 2, .at = 6};
  s.fault.n_script = 1;
  rig_request *q = scene_ask(&s, 1, 30, 40);
  scene_run(&s);
  g_assert_cmpuint(q->record.output_tokens, ==, 40);
  g_assert_cmpuint(drafts_of(&s)->model_lost, ==, 1);
  g_assert_cmpuint(drafts_of(&s)->drafts, ==, 1);
  g_assert_cmpuint(scene_stats(&s)->lost, ==, 0);
  scene_clear(&s);
}

static void
a_failed_draft_step_costs_its_round(void) {
  scene s;
  scene_init(&s, "llama", 64, 0);
  draft_model(&s, 4, 64);
  s.fault.script[0] = (oct_inject_line){.kind = OCT_INJECT_STEP, .instance = 2, .at = 6};
  s.fault.n_script = 1;
  rig_request *q = scene_ask(&s, 1, 30, 40);
  scene_run(&s);
  g_assert_cmpuint(q->record.output_tokens, ==, 40);
  g_assert_cmpuint(drafts_of(&s)->model_lost, ==, 0);
  g_assert_cmpuint(drafts_of(&s)->drafts, >, 4);
  g_assert_cmpuint(drafts_of(&s)->accepted, ==, drafts_of(&s)->draft_tokens);
  scene_clear(&s);
}

typedef struct bad_config {
  void (*change)(oct_speculation *c);
  const char *says[2];
} bad_config;

#define CHANGE(name, statement)                                                                    \
  static void name(oct_speculation *c) {                                                           \
    statement;                                                                                     \
  }
CHANGE(no_drafts, c->n_tokens = 0)
CHANGE(many_drafts, c->n_tokens = 16)
CHANGE(no_ngram, c->ngram_min = 0)
CHANGE(turned_ngram, (c->ngram_min = 4, c->ngram_max = 3))
CHANGE(long_ngram, c->ngram_max = 33)
CHANGE(no_share, c->acceptance_min = 1.5)
CHANGE(no_model, (c->method = OCT_DRAFT_MODEL, c->draft.spec = NULL))
CHANGE(two_domains, (c->method = OCT_DRAFT_MODEL, c->draft.parallel.data = 2))
#undef CHANGE

static void
configurations_are_refused(void) {
  static const bad_config cases[] = {
      {no_drafts, {"num_speculative_tokens 0", "15"}},
      {many_drafts, {"num_speculative_tokens 16", "15"}},
      {no_ngram, {"prompt_lookup_min 0", "1 to 32"}},
      {turned_ngram, {"prompt_lookup_min 4", "prompt_lookup_max 3"}},
      {long_ngram, {"prompt_lookup_max 33", "1 to 32"}},
      {no_share, {"min_acceptance 1.5", "0 and 1"}},
      {no_model, {"draft model", "given"}},
      {two_domains, {"2 ranks", "one domain"}},
  };
  for (gsize i = 0; i < G_N_ELEMENTS(cases); i++) {
    scene s;
    scene_init(&s, "llama", 64, 0);
    draft_model(&s, 4, 64);
    ngram(&s, 4);
    s.config.speculation.draft = s.config.instance;
    cases[i].change(&s.config.speculation);
    g_autoptr(GError) error = NULL;
    g_assert_null(oct_engine_new(NULL, &s.config, &error));
    g_assert_nonnull(error);
    for (int k = 0; k < 2; k++)
      if (strstr(error->message, cases[i].says[k]) == NULL)
        g_error("case %u: \"%s\" does not name %s", (guint)i, error->message, cases[i].says[k]);
    scene_clear(&s);
  }
}

/* Another vocabulary, or a state that drafts cannot be taken out of. */
static void
draft_models_that_cannot_be_are_refused(void) {
  for (int which = 0; which < 2; which++) {
    scene s;
    scene_init(&s, "hybrid", 64, 0);
    draft_model(&s, 4, 64);
    oct_model_spec *other = rig_spec("llama");
    other->vocab = s.spec->vocab + 1;
    if (which == 0)
      s.config.speculation.draft.spec = other;
    g_autoptr(GError) error = NULL;
    g_assert_null(oct_engine_new(NULL, &s.config, &error));
    g_assert_nonnull(strstr(error->message, which == 0 ? "vocabulary of" : "recurrent state"));
    oct_model_spec_free(other);
    scene_clear(&s);
  }
}

static void
note_reason(rig *r, void *user) {
  if (r->engines[0] != NULL && *(char **)user == NULL &&
      *oct_engine_down_reason(r->engines[0]) != '\0')
    *(char **)user = g_strdup(oct_engine_down_reason(r->engines[0]));
}

static void
a_backend_without_verification_is_told(void) {
  scene s;
  char *reason = NULL;
  scene_init(&s, "llama", 64, 0);
  ngram(&s, 4);
  s.mock.no_speculation = TRUE;
  s.rig.on_turn = note_reason;
  s.rig.user = &reason;
  rig_request *q = scene_ask(&s, 1, 30, 4);
  scene_run(&s);
  g_assert_cmpstr(reason, ==, "the backend verifies no drafts");
  g_assert_cmpuint(q->record.output_tokens, ==, 0);
  g_free(reason);
  scene_clear(&s);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
#define ADD(name, function) g_test_add_func("/sched/speculate/" name, function)
  ADD("a-draft-model-that-is-right-saves-steps", a_draft_model_that_is_right_saves_steps);
  ADD("nothing-runs-ahead-of-drafts", nothing_runs_ahead_of_drafts);
  ADD("drafting-in-vain-pauses", drafting_in_vain_pauses);
  ADD("many-sequences-get-no-drafts", many_sequences_get_no_drafts);
  ADD("drafts-come-last", drafts_come_last);
  ADD("nobody-is-preempted-for-drafts", nobody_is_preempted_for_drafts);
  ADD("pages-of-rejected-drafts-go-back", pages_of_rejected_drafts_go_back);
  ADD("no-room-for-a-draft-is-no-harm", no_room_for_a_draft_is_no_harm);
  ADD("every-accepted-token-has-its-logprobs", every_accepted_token_has_its_logprobs);
  ADD("guided-requests-get-no-drafts", guided_requests_get_no_drafts);
  ADD("an-end-among-drafts-is-the-end", an_end_among_drafts_is_the_end);
  ADD("nothing-is-drafted-past-the-length", nothing_is_drafted_past_the_length);
  ADD("a-lost-draft-model-is-done-without", a_lost_draft_model_is_done_without);
  ADD("a-failed-draft-step-costs-its-round", a_failed_draft_step_costs_its_round);
  ADD("configurations-are-refused", configurations_are_refused);
  ADD("draft-models-that-cannot-be-are-refused", draft_models_that_cannot_be_are_refused);
  ADD("a-backend-without-verification-is-told", a_backend_without_verification_is_told);
#undef ADD
  return g_test_run();
}
