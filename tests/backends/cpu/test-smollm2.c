/* A real model that people know, through the text layer and the engine on the cpu backend: prompts,
 * token ids and greedy text are those of an independent implementation
 * (tests/golden/smollm2/make_greedy.py says which). Needs the model's file. */
#include <jansson.h>
#include <string.h>

#include "backends/registry.h"
#include "engine/text/chat.h"
#include "tests/backends/cpu/golden.h"
#include "tests/engine/sched/rig.h"

#define TOKENS_MAX 64

typedef struct smollm2 {
  const char *path;
  oct_model_spec *spec;
  oct_tokenizer *tokenizer;
  oct_chat_renderer *renderer;
  json_t *cases; /* of greedy.json */
} smollm2;

/* FALSE, and the test skipped, without the model. */
static gboolean
smollm2_open(smollm2 *s) {
  g_autoptr(GError) error = NULL;
  s->path = g_getenv("OCT_SMOLLM2");
  if (s->path == NULL || *s->path == '\0') {
    g_test_skip("OCT_SMOLLM2 does not name a file (tools/get-smollm2 fetches it)");
    return FALSE;
  }
  s->spec = oct_model_spec_load(s->path, NULL, &error);
  g_assert_no_error(error);
  s->tokenizer = oct_tokenizer_open(s->path, &error);
  g_assert_no_error(error);
  s->renderer = oct_chat_renderer_new(s->tokenizer, NULL, &error);
  g_assert_no_error(error);
  g_autofree char *file = golden_path("smollm2/greedy.json");
  s->cases = json_load_file(file, 0, NULL);
  g_assert_cmpuint(json_array_size(s->cases), ==, 10);
  return TRUE;
}

static void
smollm2_close(smollm2 *s) {
  json_decref(s->cases);
  oct_chat_renderer_free(s->renderer);
  oct_tokenizer_free(s->tokenizer);
  oct_model_spec_free(s->spec);
}

static GArray *
ids_of(const json_t *row, const char *field) {
  const json_t *list = json_object_get(row, field);
  GArray *ids = g_array_new(FALSE, FALSE, sizeof(guint32));
  for (gsize i = 0; i < json_array_size(list); i++) {
    guint32 id = (guint32)json_integer_value(json_array_get(list, i));
    g_array_append_val(ids, id);
  }
  g_assert_cmpuint(ids->len, >, 0);
  return ids;
}

static void
assert_ids(const GArray *found, const GArray *wanted) {
  g_assert_cmpmem(found->data, found->len * sizeof(guint32), wanted->data,
                  wanted->len * sizeof(guint32));
}

/* The conversation of one user's message as ids. */
static GArray *
render(const smollm2 *s, const char *message) {
  g_autoptr(GError) error = NULL;
  g_autoptr(oct_prompt) prompt = oct_prompt_new();
  json_t *messages = json_pack("[{s:s, s:s}]", "role", "user", "content", message);
  oct_chat *chat = oct_chat_new(messages, NULL, &error);
  g_assert_no_error(error);
  const oct_chat_options options = {.generation_prompt = TRUE};
  gboolean ok = oct_chat_render(s->renderer, chat, &options, prompt, &error);
  g_assert_no_error(error);
  GArray *ids = g_array_new(FALSE, FALSE, sizeof(guint32));
  ok = ok && oct_prompt_encode(prompt, s->tokenizer, ids, &error);
  g_assert_no_error(error);
  g_assert_true(ok);
  oct_chat_free(chat);
  json_decref(messages);
  return ids;
}

static void
prompts(void) {
  smollm2 s;
  if (!smollm2_open(&s))
    return;
  for (gsize i = 0; i < json_array_size(s.cases); i++) {
    const json_t *row = json_array_get(s.cases, i);
    GArray *found = render(&s, json_string_value(json_object_get(row, "prompt")));
    GArray *wanted = ids_of(row, "prompt_ids");
    assert_ids(found, wanted);
    g_array_unref(found);
    g_array_unref(wanted);
  }
  smollm2_close(&s);
}

static rig_request *
ask(const smollm2 *s, rig *r, const json_t *row) {
  oct_request_params p;
  GArray *prompt = ids_of(row, "prompt_ids");
  guint n_ends;
  const guint32 *ends = oct_tokenizer_ends(s->tokenizer, &n_ends);
  oct_request_params_default(&p);
  p.prompt_ids = (const guint32 *)(gconstpointer)prompt->data;
  p.prompt_tokens = prompt->len;
  p.temperature = 0;
  p.max_tokens = TOKENS_MAX;
  p.n_stop_tokens = n_ends;
  memcpy(p.stop_tokens, ends, n_ends * sizeof *ends);
  rig_request *q = rig_add(r, 0, &p);
  g_array_unref(prompt);
  return q;
}

/* What a client reads: without the token that ended the text. */
static void
assert_text(const smollm2 *s, const GArray *ids, const char *wanted) {
  GString *text = g_string_new(NULL);
  for (guint i = 0; i < ids->len; i++) {
    guint32 id = g_array_index(ids, guint32, i);
    oct_text bytes = oct_tokenizer_bytes(s->tokenizer, id);
    if (!oct_tokenizer_is_control(s->tokenizer, id))
      g_string_append_len(text, bytes.bytes, (gssize)bytes.size);
  }
  g_assert_cmpstr(text->str, ==, wanted);
  g_string_free(text, TRUE);
}

/* All ten in one batch. */
static void
greedy_text(void) {
  smollm2 s;
  if (!smollm2_open(&s))
    return;
  g_autoptr(GError) error = NULL;
  oct_engine_config config;
  rig r;
  rig_request *asked[10];
  g_autofree char *backend = g_strdup_printf("cpu:model=%s,threads=2,clock=virtual", s.path);
  oct_world *world = oct_backend_world_new(backend, &error);
  g_assert_no_error(error);
  rig_init(&r, world);
  rig_config(&config, s.spec, 128, 0);
  config.max_model_len = 256;
  config.max_num_seqs = 16;
  rig_add_engine(&r, &config);
  for (gsize i = 0; i < G_N_ELEMENTS(asked); i++)
    asked[i] = ask(&s, &r, json_array_get(s.cases, i));
  rig_run(&r);
  g_assert_cmpstr(r.failure, ==, NULL);
  for (gsize i = 0; i < G_N_ELEMENTS(asked); i++) {
    const json_t *row = json_array_get(s.cases, i);
    GArray *wanted = ids_of(row, "ids");
    g_test_message("%s", json_string_value(json_object_get(row, "prompt")));
    assert_ids(asked[i]->tokens[0], wanted);
    assert_text(&s, asked[i]->tokens[0], json_string_value(json_object_get(row, "text")));
    g_array_unref(wanted);
  }
  rig_clear(&r);
  smollm2_close(&s);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/cpu/smollm2/renders-and-tokenizes-as-llama-cpp-does", prompts);
  g_test_add_func("/cpu/smollm2/says-greedily-what-llama-cpp-says", greedy_text);
  return g_test_run();
}
