/* Every tokenizer against the ids that independent implementations gave for the same corpus. */
#include <string.h>

#include "engine/text/error.h"
#include "tests/engine/text/text-golden.h"

/* No token of the vocabulary covers every byte, or normalisation changes the text. */
static gboolean
round_trips(const char *name) {
  static const char *const changing[] = {"qwen2",        "nfkc-punct",  "gguf-llama", "llama2",
                                         "gguf-unigram", "gpt2-prefix", "smollm2"};
  for (guint i = 0; i < G_N_ELEMENTS(changing); i++)
    if (g_str_equal(name, changing[i]))
      return FALSE;
  return TRUE;
}

static void
compare(const oct_tokenizer *tokenizer, const char *name) {
  g_autofree char *file = g_strdup_printf("%s.ids", name);
  g_auto(GStrv) expected = text_golden_lines(file);
  g_autoptr(GPtrArray) corpus = text_corpus();
  g_assert_cmpuint(g_strv_length(expected), ==, corpus->len);
  guint wrong = 0;
  for (guint i = 0; i < corpus->len; i++) {
    gsize size;
    const char *text = g_bytes_get_data(corpus->pdata[i], &size);
    g_autoptr(GArray) ids = text_encode(tokenizer, text, size);
    g_autofree char *got = text_ids(ids);
    if (!g_str_equal(got, expected[i])) {
      g_test_message("line %u, '%.*s': got %s, expected %s", i + 1, (int)MIN(size, 60u),
                     text == NULL ? "" : text, got, expected[i]);
      wrong++;
    }
    g_autoptr(GString) back = g_string_new(NULL);
    for (guint k = 0; k < ids->len; k++) {
      oct_text bytes = oct_tokenizer_bytes(tokenizer, g_array_index(ids, guint32, k));
      g_string_append_len(back, bytes.bytes, (gssize)bytes.size);
    }
    if (round_trips(name))
      g_assert_cmpmem(back->str, back->len, text, size);
  }
  g_assert_cmpuint(wrong, ==, 0);
}

static void
matches_the_reference(gconstpointer name) {
  g_autoptr(oct_tokenizer) tokenizer = text_tokenizer(name);
  compare(tokenizer, name);
}

static void
matches_the_reference_for_smollm2(void) {
  const char *path = text_smollm2();
  if (path == NULL)
    return;
  g_autoptr(GError) error = NULL;
  g_autoptr(oct_tokenizer) tokenizer = oct_tokenizer_open(path, &error);
  g_assert_no_error(error);
  compare(tokenizer, "smollm2");
  g_assert_cmpuint(oct_tokenizer_n_tokens(tokenizer), ==, 49152);
  g_assert_cmpuint(oct_tokenizer_role(tokenizer, OCT_ROLE_EOS), ==, 2);
  g_assert_true(oct_tokenizer_is_control(tokenizer, 1));
  g_assert_nonnull(strstr(oct_tokenizer_chat_template(tokenizer), "<|im_start|>"));
}

/* Control tokens: never from outside, always from the template. */
static void
user_text_never_becomes_a_control_token(gconstpointer name) {
  g_autoptr(oct_tokenizer) tokenizer = text_tokenizer(name);
  g_autoptr(GString) all = g_string_new(NULL);
  guint n_control = 0;
  for (guint32 id = 0; id < oct_tokenizer_n_tokens(tokenizer); id++)
    if (oct_tokenizer_is_control(tokenizer, id)) {
      oct_text text = oct_tokenizer_bytes(tokenizer, id);
      g_string_append_len(all, text.bytes, (gssize)text.size);
      g_string_append(all, " x");
      n_control++;
    }
  g_assert_cmpuint(n_control, >, 1);
  g_autoptr(GArray) ids = text_encode(tokenizer, all->str, all->len);
  for (guint i = 0; i < ids->len; i++)
    g_assert_false(oct_tokenizer_is_control(tokenizer, g_array_index(ids, guint32, i)));

  /* The template's own text gives each once; one byte from outside in it takes it away. */
  g_array_set_size(ids, 0);
  g_assert_true(oct_tokenizer_encode_marked(tokenizer, all->str, NULL, all->len, ids, NULL));
  guint found = 0;
  for (guint i = 0; i < ids->len; i++)
    found += oct_tokenizer_is_control(tokenizer, g_array_index(ids, guint32, i));
  g_assert_cmpuint(found, ==, n_control);
  g_autofree guint8 *marks = g_malloc0(all->len);
  marks[1] = OCT_MARK_OUTSIDE;
  g_array_set_size(ids, 0);
  g_assert_true(oct_tokenizer_encode_marked(tokenizer, all->str, marks, all->len, ids, NULL));
  g_assert_false(oct_tokenizer_is_control(tokenizer, g_array_index(ids, guint32, 0)));
}

static void
pieces_do_not_merge_across_a_cut(void) {
  g_autoptr(oct_tokenizer) tokenizer = text_tokenizer("kimi");
  g_autoptr(GArray) whole = text_encode(tokenizer, "the quick", 9);
  g_autoptr(GArray) left = text_encode(tokenizer, "the q", 5);
  g_autoptr(GArray) right = text_encode(tokenizer, "uick", 4);
  g_array_append_vals(left, right->data, right->len);
  guint8 marks[9];
  memset(marks, OCT_MARK_OUTSIDE, sizeof marks);
  marks[5] |= OCT_MARK_CUT;
  g_autoptr(GArray) cut = g_array_new(FALSE, FALSE, sizeof(guint32));
  g_assert_true(oct_tokenizer_encode_marked(tokenizer, "the quick", marks, 9, cut, NULL));
  g_assert_cmpmem(cut->data, cut->len * 4, left->data, left->len * 4);
  g_assert_cmpuint(cut->len, !=, whole->len);
}

#define ADDED(id, text, special)                                                                   \
  "{\"id\":" #id ",\"content\":\"" text "\",\"special\":" special                                  \
  ",\"lstrip\":false,\"rstrip\":false,\"normalized\":false,\"single_word\":false}"
#define TINY(extra)                                                                                \
  "{\"added_tokens\":[" ADDED(4, "<t>", "true") "," ADDED(5, "<call>", "false") "," ADDED(         \
      6, "  ", "false") "],\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"  \
                        "\"use_regex\":true}," extra                                               \
                        "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,"                  \
                        "\"ab\":2,\"\\u0120\":3},\"merges\":[\"a b\"]}}"

static void
only_white_space_is_added_in_user_text(void) {
  const char *json = TINY("");
  g_autoptr(GError) error = NULL;
  g_autoptr(oct_tokenizer) tokenizer = oct_tokenizer_from_json(json, strlen(json), &error);
  g_assert_no_error(error);
  const char *text = "ab<t>ab<call>  ab";
  g_autoptr(GArray) outside = text_encode(tokenizer, text, strlen(text));
  g_autofree char *got = text_ids(outside);
  /* Bytes without a token are dropped by this vocabulary. */
  g_assert_cmpstr(got, ==, "2 2 0 6 2");
  g_autoptr(GArray) own = g_array_new(FALSE, FALSE, sizeof(guint32));
  g_assert_true(oct_tokenizer_encode_marked(tokenizer, text, NULL, strlen(text), own, NULL));
  g_autofree char *marked = text_ids(own);
  g_assert_cmpstr(marked, ==, "2 4 2 5 6 2");
}

static void
names_what_it_does_not_support(void) {
  static const struct {
    const char *json, *word;
  } cases[] = {
      {TINY("\"normalizer\":{\"type\":\"BertNormalizer\"},"), "BertNormalizer"},
      {TINY("\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},"
            "{\"type\":\"Lowercase\"}]},"),
       "Lowercase"},
      {TINY("\"post_processor\":{\"type\":\"BertProcessing\"},"), "BertProcessing"},
      {TINY("\"decoder\":{\"type\":\"WordPiece\"},"), "WordPiece"},
      {"{\"model\":{\"type\":\"WordPiece\",\"vocab\":{}}}", "WordPiece"},
      {"{\"pre_tokenizer\":{\"type\":\"UnicodeScripts\"},\"model\":{\"type\":\"BPE\","
       "\"vocab\":{},\"merges\":[]}}",
       "UnicodeScripts"},
      {"{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[a&&b]\"},\"behavior\":"
       "\"Isolated\"},\"model\":{\"type\":\"BPE\",\"vocab\":{},\"merges\":[]}}",
       "[A&&[^B]]"},
      {"{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(\"},\"behavior\":"
       "\"Isolated\"},\"model\":{\"type\":\"BPE\",\"vocab\":{},\"merges\":[]}}",
       "pattern"},
      {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a b\"]}}", "lacks"},
      {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]}}", "twice"},
      {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":99999999},\"merges\":[]}}", "limit"},
      {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":-1},\"merges\":[]}}", "limit"},
      {"[]", "model"},
      {"{", "tokenizer.json"},
  };
  for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
    g_autoptr(GError) error = NULL;
    g_autoptr(oct_tokenizer) tokenizer =
        oct_tokenizer_from_json(cases[i].json, strlen(cases[i].json), &error);
    g_assert_null(tokenizer);
    g_assert_nonnull(error);
    g_assert_true(error->domain == OCT_TEXT_ERROR);
    if (strstr(error->message, cases[i].word) == NULL)
      g_error("case %u: '%s' does not name %s", i, error->message, cases[i].word);
  }
}

static void
reads_roles_and_templates_from_the_config(void) {
  const char *json = TINY("");
  g_autoptr(oct_tokenizer) tokenizer = oct_tokenizer_from_json(json, strlen(json), NULL);
  const char *config = "{\"bos_token\":{\"content\":\"<t>\"},\"eos_token\":\"<call>\","
                       "\"add_bos_token\":true,\"chat_template\":[{\"name\":\"default\","
                       "\"template\":\"D\"},{\"name\":\"tool_use\",\"template\":\"T\"}]}";
  g_assert_true(oct_tokenizer_read_config(tokenizer, config, strlen(config), NULL));
  g_assert_cmpuint(oct_tokenizer_role(tokenizer, OCT_ROLE_BOS), ==, 4);
  g_assert_cmpuint(oct_tokenizer_role(tokenizer, OCT_ROLE_PAD), ==, OCT_NO_TOKEN);
  guint n;
  g_assert_cmpuint(oct_tokenizer_ends(tokenizer, &n)[0], ==, 5);
  g_assert_cmpuint(n, ==, 1);
  g_assert_cmpuint(oct_tokenizer_before(tokenizer, &n)[0], ==, 4);
  g_assert_cmpuint(n, ==, 1);
  g_assert_cmpstr(oct_tokenizer_chat_template(tokenizer), ==, "D");
  g_assert_cmpstr(oct_tokenizer_named_template(tokenizer, "tool_use"), ==, "T");
}

static void
text_is_cut_as_kimi_cuts_it(void) {
  g_autoptr(oct_tokenizer) tokenizer = text_tokenizer("kimi");
  g_autofree char *text = g_malloc(25001);
  memset(text, 'a', 25001);
  g_autoptr(GArray) all = text_encode(tokenizer, text, 25001);
  g_autoptr(GArray) first = text_encode(tokenizer, text, 25000);
  g_autoptr(GArray) last = text_encode(tokenizer, text, 1);
  g_array_append_vals(first, last->data, last->len);
  g_assert_cmpmem(all->data, all->len * 4, first->data, first->len * 4);
}

static void
refuses_a_text_beyond_the_limit(void) {
  g_autoptr(oct_tokenizer) tokenizer = text_tokenizer("gpt2");
  g_autoptr(GError) error = NULL;
  g_autoptr(GArray) ids = g_array_new(FALSE, FALSE, sizeof(guint32));
  g_assert_false(oct_tokenizer_encode(tokenizer, "", (gsize)OCT_TEXT_BYTES_MAX + 1, ids, &error));
  g_assert_error(error, OCT_TEXT_ERROR, OCT_TEXT_ERROR_LIMIT);
  g_clear_error(&error);
  gsize size = (4u << 20) + 1;
  g_autofree char *run = g_malloc(size);
  memset(run, 'a', size);
  g_assert_false(oct_tokenizer_encode(tokenizer, run, size, ids, &error));
  g_assert_error(error, OCT_TEXT_ERROR, OCT_TEXT_ERROR_LIMIT);
  g_assert_cmpuint(ids->len, ==, 0);
}

static void
refuses_an_unknown_token_that_is_not_there(void) {
  static const struct {
    const char *model, *reason;
  } cases[] = {
      {"\"unk_id\":2,\"vocab\":[[\"a\",-1],[\"b\",-2]]",
       "unk_id 2 is not in the vocabulary of 2 tokens"},
      {"\"unk_id\":-1,\"vocab\":[[\"a\",-1]]", "unk_id -1 is not in the vocabulary"},
      {"\"unk_id\":0,\"vocab\":{\"a\":0}", "is no list"},
  };
  for (gsize i = 0; i < G_N_ELEMENTS(cases); i++) {
    g_autofree char *json = g_strdup_printf("{\"added_tokens\":[{\"id\":4,\"content\":\"<s>\"}],"
                                            "\"model\":{\"type\":\"Unigram\",%s}}",
                                            cases[i].model);
    g_autoptr(GError) error = NULL;
    g_autoptr(oct_tokenizer) t = oct_tokenizer_from_json(json, strlen(json), &error);
    g_assert_null(t);
    g_assert_error(error, OCT_TEXT_ERROR, OCT_TEXT_ERROR_FORMAT);
    g_assert_nonnull(strstr(error->message, cases[i].reason));
  }
}

int
main(int argc, char **argv) {
  static const char *const names[] = {"gpt2",       "gpt2-prefix",    "llama3",     "qwen2",
                                      "smollm",     "deepseek",       "nfkc-punct", "merged",
                                      "kimi",       "gguf-llama-bpe", "gguf-qwen2", "gguf-smollm",
                                      "gguf-llama", "gguf-unigram",   "llama2"};
  g_test_init(&argc, &argv, NULL);
  for (guint i = 0; i < G_N_ELEMENTS(names); i++) {
    g_autofree char *path = g_strdup_printf("/text/tokenizer/%s/matches-the-reference", names[i]);
    g_test_add_data_func(path, names[i], matches_the_reference);
  }
  for (guint i = 0; i < 14; i += 1) {
    if (g_str_equal(names[i], "llama2"))
      continue;
    g_autofree char *path =
        g_strdup_printf("/text/tokenizer/%s/user-text-never-becomes-a-control-token", names[i]);
    g_test_add_data_func(path, names[i], user_text_never_becomes_a_control_token);
  }
  g_test_add_func("/text/tokenizer/smollm2/matches-the-reference",
                  matches_the_reference_for_smollm2);
  g_test_add_func("/text/tokenizer/pieces-do-not-merge-across-a-cut",
                  pieces_do_not_merge_across_a_cut);
  g_test_add_func("/text/tokenizer/only-white-space-is-added-in-user-text",
                  only_white_space_is_added_in_user_text);
  g_test_add_func("/text/tokenizer/names-what-it-does-not-support", names_what_it_does_not_support);
  g_test_add_func("/text/tokenizer/reads-roles-and-templates-from-the-config",
                  reads_roles_and_templates_from_the_config);
  g_test_add_func("/text/tokenizer/text-is-cut-as-kimi-cuts-it", text_is_cut_as_kimi_cuts_it);
  g_test_add_func("/text/tokenizer/refuses-an-unknown-token-that-is-not-there",
                  refuses_an_unknown_token_that_is_not_there);
  g_test_add_func("/text/tokenizer/refuses-a-text-beyond-the-limit",
                  refuses_a_text_beyond_the_limit);
  return g_test_run();
}
