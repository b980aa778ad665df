/* The text thread of constraints. Questions come through two rings (the front's and the engine's),
 * answers leave through two; a bell wakes the thread. What a generation needs here hangs on it
 * (generation->guided) and is touched by this thread only.
 */
#include "engine/serve/guides.h"

#include <jansson.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/text/error.h"

#define RING_RECORDS 4096u
/* A guide that has used so much of its positions gets no further generation: those that have it
 * still need room, and the next ones a fresh one. */
#define USED_MAX 0.5

/* A compiled constraint. */
typedef struct oct_kept {
  char *key; /* kind and text */
  oct_guide *guide;
  guint32 users;
  guint64 used; /* when last, in compilations */
} oct_kept;

struct oct_guided {
  oct_kept *kept;
  guint32 n_out[OCT_SERVICE_CHOICES_MAX];
  oct_guide_state states[OCT_SERVICE_CHOICES_MAX];
  gboolean failed;
};

typedef enum oct_question_kind {
  QUESTION_COMPILE, /* carries a reference that comes back with the result */
  QUESTION_DROP,    /* carries a reference */
  QUESTION_TOKEN,   /* of an engine: the generation lives at least until LEFT */
  QUESTION_MASK,
  QUESTION_LEFT, /* carries a reference */
} oct_question_kind;

typedef struct oct_question {
  oct_question_kind kind;
  guint32 choice;
  guint32 value; /* the token; the output's number */
  oct_generation *generation;
} oct_question;

/* To the front: compiled, or a mask that cannot be. Carries a reference. */
typedef struct oct_result {
  gboolean compiled;
  oct_generation *generation;
  GError *error;
} oct_result;

struct oct_guides {
  oct_service *service;
  const oct_tokenizer *tokenizer;
  guint32 vocab_size, n_words; /* ids, and words of 64 bits, of the engine's masks */
  oct_outbox *from_front, *from_engine, *to_front, *to_engine;
  oct_bell *bell;
  oct_worker *worker;
  gboolean threaded; /* constant once started */
  atomic_bool quit;
  gboolean asked; /* engine thread's: the bell is to be rung */
  /* its thread's */
  oct_guide_vocab *vocab;
  guint32 *mask; /* of the vocabulary's words */
  GPtrArray *kept;
  guint64 n_compiles;
};

/* ---------------------------------------------------------------- life cycle */

static void
free_kept(gpointer data) {
  oct_kept *kept = data;
  oct_guide_free(kept->guide);
  g_free(kept->key);
  g_free(kept);
}

oct_guides *
oct_guides_new(oct_service *service, const oct_tokenizer *tokenizer, guint32 vocab) {
  oct_guides *s = g_new0(oct_guides, 1);
  s->service = service;
  s->tokenizer = tokenizer;
  s->vocab_size = vocab;
  s->n_words = (vocab + 63) / 64;
  s->from_front = oct_outbox_new(RING_RECORDS, sizeof(oct_question));
  s->from_engine = oct_outbox_new(RING_RECORDS, sizeof(oct_question));
  s->to_front = oct_outbox_new(RING_RECORDS, sizeof(oct_result));
  s->to_engine = oct_outbox_new(RING_RECORDS, sizeof(oct_guide_answer));
  s->bell = oct_bell_new();
  s->kept = g_ptr_array_new_with_free_func(free_kept);
  return s;
}

void
oct_guide_answer_clear(oct_guide_answer *answer) {
  oct_generation_unref(answer->generation);
  g_free(answer->bits);
}

/* ---------------------------------------------------------------- compiling */

static oct_guide *
compile_choice(oct_guides *s, const char *text, GError **error) {
  json_t *list = json_loads(text, 0, NULL);
  g_autoptr(GPtrArray) choices = g_ptr_array_new();
  for (gsize i = 0; i < json_array_size(list); i++)
    if (json_is_string(json_array_get(list, i)))
      g_ptr_array_add(choices, (gpointer)json_string_value(json_array_get(list, i)));
  oct_guide *guide = NULL;
  if (json_array_size(list) == 0 || choices->len != json_array_size(list))
    g_set_error_literal(error, OCT_SERVICE_ERROR, OCT_SERVICE_ERROR_INPUT,
                        "guided_choice is not a list of strings");
  else
    guide =
        oct_guide_new_choice(s->vocab, (const char *const *)choices->pdata, choices->len, error);
  json_decref(list);
  return guide;
}

static oct_guide *
compile_schema(oct_guides *s, const char *text, GError **error) {
  json_error_t problem;
  json_t *schema = json_loads(text, JSON_REJECT_DUPLICATES, &problem);
  oct_guide *guide = NULL;
  if (schema == NULL)
    g_set_error(error, OCT_SERVICE_ERROR, OCT_SERVICE_ERROR_INPUT, "the schema is not JSON: %s",
                problem.text);
  else
    guide = oct_guide_new_schema(s->vocab, schema, error);
  json_decref(schema);
  return guide;
}

static oct_guide *
compile(oct_guides *s, oct_constraint kind, const char *text, GError **error) {
  if (s->vocab == NULL) {
    s->vocab = oct_guide_vocab_new(s->tokenizer);
    s->mask = g_new0(guint32, MAX(oct_guide_vocab_words(s->vocab), 2 * s->n_words));
  }
  switch (kind) {
  case OCT_CONSTRAINT_REGEX:
    return oct_guide_new_regex(s->vocab, text, error);
  case OCT_CONSTRAINT_CHOICE:
    return compile_choice(s, text, error);
  case OCT_CONSTRAINT_JSON:
    return oct_guide_new_json(s->vocab, error);
  case OCT_CONSTRAINT_SCHEMA:
    return compile_schema(s, text, error);
  case OCT_CONSTRAINT_NONE:
    break;
  }
  oct_assert(!"a constraint of no kind is compiled");
  return NULL;
}

/* Lets go of those that nobody uses and that are used up, or were used longest ago. */
static void
forget_old(oct_guides *s) {
  for (guint i = s->kept->len; i-- > 0;) {
    const oct_kept *kept = s->kept->pdata[i];
    if (kept->users == 0 && oct_guide_used(kept->guide) >= USED_MAX)
      g_ptr_array_remove_index_fast(s->kept, i);
  }
  while (s->kept->len > OCT_GUIDES_KEPT) {
    guint oldest = G_MAXUINT;
    for (guint i = 0; i < s->kept->len; i++) {
      const oct_kept *kept = s->kept->pdata[i];
      if (kept->users == 0 &&
          (oldest == G_MAXUINT || kept->used < ((oct_kept *)s->kept->pdata[oldest])->used))
        oldest = i;
    }
    if (oldest == G_MAXUINT)
      return;
    g_ptr_array_remove_index_fast(s->kept, oldest);
  }
}

static oct_kept *
find_or_compile(oct_guides *s, const oct_generation *g, GError **error) {
  g_autofree char *key = g_strdup_printf("%d:%s", (int)g->constraint,
                                         g->constraint_text != NULL ? g->constraint_text : "");
  for (guint i = 0; i < s->kept->len; i++) {
    oct_kept *kept = s->kept->pdata[i];
    if (strcmp(kept->key, key) == 0 && oct_guide_used(kept->guide) < USED_MAX)
      return kept;
  }
  oct_guide *guide = compile(s, g->constraint, g->constraint_text, error);
  if (guide == NULL)
    return NULL;
  oct_kept *kept = g_new0(oct_kept, 1);
  kept->key = g_steal_pointer(&key);
  kept->guide = guide;
  g_ptr_array_add(s->kept, kept);
  return kept;
}

static void
answer_compile(oct_guides *s, oct_generation *g) {
  oct_result result = {.compiled = TRUE, .generation = g};
  oct_kept *kept = find_or_compile(s, g, &result.error);
  if (kept != NULL) {
    kept->users++;
    kept->used = ++s->n_compiles;
    g->guided = g_new0(struct oct_guided, 1);
    g->guided->kept = kept;
    forget_old(s);
  }
  oct_outbox_push(s->to_front, &result);
}

static void
let_go(oct_generation *g) {
  if (g->guided != NULL) {
    oct_assert(g->guided->kept->users > 0);
    g->guided->kept->users--;
    g_clear_pointer(&g->guided, g_free);
  }
  oct_generation_unref(g);
}

/* Gives back what the rings still carry. */
static void
empty_rings(oct_guides *s) {
  oct_question question;
  oct_result result;
  oct_guide_answer answer;
  while (oct_outbox_pop(s->from_engine, &question) || oct_outbox_pop(s->from_front, &question))
    if (question.kind == QUESTION_COMPILE)
      oct_generation_unref(question.generation);
    else if (question.kind == QUESTION_DROP || question.kind == QUESTION_LEFT)
      let_go(question.generation);
  while (oct_outbox_pop(s->to_engine, &answer))
    oct_guide_answer_clear(&answer);
  while (oct_outbox_pop(s->to_front, &result)) {
    g_clear_error(&result.error);
    if (result.compiled)
      let_go(result.generation);
    else
      oct_generation_unref(result.generation);
  }
}

void
oct_guides_free(oct_guides *s) {
  if (s == NULL)
    return;
  oct_assert(s->worker == NULL);
  do
    empty_rings(s);
  while (!oct_outbox_flush(s->from_front) || !oct_outbox_flush(s->from_engine) ||
         !oct_outbox_flush(s->to_front) || !oct_outbox_flush(s->to_engine));
  empty_rings(s);
  oct_outbox_free(s->from_front);
  oct_outbox_free(s->from_engine);
  oct_outbox_free(s->to_front);
  oct_outbox_free(s->to_engine);
  oct_bell_free(s->bell);
  g_ptr_array_unref(s->kept);
  oct_guide_vocab_free(s->vocab);
  g_free(s->mask);
  g_free(s);
}

/* ---------------------------------------------------------------- masks */

static void
fail(oct_guides *s, oct_generation *g, GError *why) {
  g->guided->failed = TRUE;
  oct_outbox_push(s->to_front, &(oct_result){.generation = oct_generation_ref(g), .error = why});
  oct_outbox_push(s->to_engine, &(oct_guide_answer){.generation = oct_generation_ref(g)});
}

static void
take_token(oct_guides *s, oct_generation *g, guint32 choice, guint32 token) {
  struct oct_guided *guided = g->guided;
  if (guided->failed)
    return;
  guided->n_out[choice]++;
  /* After the end nothing is asked. A token outside the mask is a fault of the backend. */
  if (!guided->states[choice].ended &&
      !oct_guide_advance(guided->kept->guide, &guided->states[choice], token))
    fail(s, g,
         g_error_new(OCT_SERVICE_ERROR, OCT_SERVICE_ERROR_FAILED,
                     "token %u of choice %u, number %u, is outside its mask", token, choice,
                     guided->n_out[choice] - 1));
}

static void
only_ends(oct_guides *s) {
  guint n;
  const guint32 *ends = oct_tokenizer_ends(s->tokenizer, &n);
  memset(s->mask, 0, s->n_words * sizeof(guint64));
  for (guint i = 0; i < n; i++)
    if (ends[i] < s->vocab_size)
      s->mask[ends[i] / 32] |= 1u << ends[i] % 32;
}

/* Of what may come, only what ends: the text, or else a string, an object, a list. As it is where
 * nothing of that may come. */
static void
only_closes(oct_guides *s) {
  static const char closers[] = "\"}]";
  guint n;
  const guint32 *ends = oct_tokenizer_ends(s->tokenizer, &n);
  for (guint i = 0; i < n; i++)
    if (ends[i] < s->vocab_size && (s->mask[ends[i] / 32] >> ends[i] % 32 & 1) != 0) {
      only_ends(s);
      return;
    }
  for (const char *closer = closers; *closer != '\0'; closer++) {
    g_autoptr(GArray) ids = g_array_new(FALSE, FALSE, sizeof(guint32));
    if (!oct_tokenizer_encode(s->tokenizer, closer, 1, ids, NULL) || ids->len != 1)
      continue;
    guint32 id = g_array_index(ids, guint32, 0);
    if (id >= s->vocab_size || (s->mask[id / 32] >> id % 32 & 1) == 0)
      continue;
    memset(s->mask, 0, s->n_words * sizeof(guint64));
    s->mask[id / 32] |= 1u << id % 32;
    return;
  }
}

static void
answer_mask(oct_guides *s, oct_generation *g, guint32 choice, guint32 n_output) {
  struct oct_guided *guided = g->guided;
  if (guided->failed || n_output != guided->n_out[choice])
    return;
  GError *error = NULL;
  if (guided->states[choice].ended)
    only_ends(s); /* ignore_eos: whole, and asked to go on */
  else if (!oct_guide_mask(guided->kept->guide, &guided->states[choice], s->mask, &error)) {
    fail(s, g, error);
    return;
  }
  guint32 imagined = s->service->config.imagined_tokens;
  if (imagined > 0 && n_output >= imagined && !g->sampling.ignore_eos)
    only_closes(s);
  oct_guide_answer answer = {.generation = oct_generation_ref(g),
                             .choice = choice,
                             .n_output = n_output,
                             .n_words = s->n_words,
                             .bits = g_memdup2(s->mask, s->n_words * sizeof(guint64))};
  /* The tokenizer may know of more ids than the model has. */
  if (s->vocab_size % 64 != 0)
    answer.bits[s->n_words - 1] &= ((guint64)1 << s->vocab_size % 64) - 1;
  oct_outbox_push(s->to_engine, &answer);
}

/* ---------------------------------------------------------------- the thread */

static void
take_question(oct_guides *s, const oct_question *question) {
  oct_generation *g = question->generation;
  switch (question->kind) {
  case QUESTION_COMPILE:
    answer_compile(s, g);
    break;
  case QUESTION_DROP:
  case QUESTION_LEFT:
    let_go(g);
    break;
  case QUESTION_TOKEN:
    take_token(s, g, question->choice, question->value);
    break;
  case QUESTION_MASK:
    answer_mask(s, g, question->choice, question->value);
    break;
  }
}

gboolean
oct_guides_turn(oct_guides *s) {
  oct_question question;
  gboolean any = FALSE;
  while (oct_outbox_pop(s->from_engine, &question) || oct_outbox_pop(s->from_front, &question)) {
    take_question(s, &question);
    any = TRUE;
  }
  oct_outbox_flush(s->to_front);
  oct_outbox_flush(s->to_engine);
  return any;
}

static void
run(void *data) {
  oct_guides *s = data;
  for (;;) {
    oct_bell_wait(s->bell);
    if (atomic_load(&s->quit))
      return;
    oct_guides_turn(s);
    oct_world_wake(s->service->config.world);
    oct_service_notify(s->service);
  }
}

gboolean
oct_guides_start(oct_guides *s, GError **error) {
  s->threaded = TRUE;
  s->worker = oct_worker_new("octet-guides", run, s, error);
  return s->worker != NULL;
}

void
oct_guides_stop(oct_guides *s) {
  atomic_store(&s->quit, TRUE);
  oct_bell_ring(s->bell);
  g_clear_pointer(&s->worker, oct_worker_free);
}

/* ---------------------------------------------------------------- asking */

static void
ask_from_front(oct_guides *s, oct_question_kind kind, oct_generation *g) {
  oct_outbox_push(s->from_front, &(oct_question){.kind = kind, .generation = g});
  if (s->threaded)
    oct_bell_ring(s->bell);
}

void
oct_guides_compile(oct_guides *s, oct_generation *g) {
  ask_from_front(s, QUESTION_COMPILE, g);
}

void
oct_guides_drop(oct_guides *s, oct_generation *g) {
  ask_from_front(s, QUESTION_DROP, g);
}

gboolean
oct_guides_dispatch(oct_guides *s) {
  oct_result result;
  gboolean any = FALSE;
  /* Results that found no room wait on the other side until that thread turns again. */
  if (oct_outbox_count(s->to_front) >= RING_RECORDS / 2 && s->threaded)
    oct_bell_ring(s->bell);
  while (oct_outbox_pop(s->to_front, &result)) {
    any = TRUE;
    if (result.compiled)
      oct_front_compiled(result.generation, result.error);
    else
      oct_front_end_soon(result.generation, result.error);
    oct_generation_unref(result.generation);
  }
  oct_outbox_flush(s->from_front);
  return any;
}

static void
ask_from_engine(oct_guides *s, oct_question_kind kind, oct_generation *g, guint32 choice,
                guint32 value) {
  oct_outbox_push(s->from_engine, &(oct_question){kind, choice, value, g});
  s->asked = TRUE;
}

void
oct_guides_tokens(oct_guides *s, oct_generation *g, guint32 choice, const guint32 *ids, guint32 n) {
  for (guint32 i = 0; i < n; i++)
    ask_from_engine(s, QUESTION_TOKEN, g, choice, ids[i]);
}

void
oct_guides_ask(oct_guides *s, oct_generation *g, guint32 choice, guint32 n_output) {
  ask_from_engine(s, QUESTION_MASK, g, choice, n_output);
}

void
oct_guides_left(oct_guides *s, oct_generation *g) {
  ask_from_engine(s, QUESTION_LEFT, oct_generation_ref(g), 0, 0);
}

gboolean
oct_guides_answer(oct_guides *s, oct_guide_answer *answer) {
  /* Answers that found no room wait on the other side until that thread turns again. */
  s->asked = s->asked || oct_outbox_count(s->to_engine) >= RING_RECORDS / 2;
  return oct_outbox_pop(s->to_engine, answer);
}

gboolean
oct_guides_flush(oct_guides *s) {
  gboolean all = oct_outbox_flush(s->from_engine);
  if (s->asked && s->threaded)
    oct_bell_ring(s->bell);
  s->asked = FALSE;
  return all;
}
