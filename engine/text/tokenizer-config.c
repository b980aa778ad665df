/* The small files beside a tokenizer, and opening a model's folder. */
#include "engine/text/tokenizer-internal.h"

#include <jansson.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/base/file.h"
#include "engine/text/error.h"

static json_t *
load(const char *label, const char *json, gsize size, GError **error) {
  json_error_t problem;
  json_t *root = json_loadb(json, size, JSON_ALLOW_NUL, &problem);
  if (root == NULL || !json_is_object(root)) {
    g_set_error(error, OCT_TEXT_ERROR, OCT_TEXT_ERROR_FORMAT, "%s: %s", label,
                root == NULL ? problem.text : "not an object");
    g_clear_pointer(&root, json_decref);
  }
  return root;
}

/* A token is named by its text, or by an object with it. */
static const char *
token_text(const json_t *value) {
  return json_string_value(json_is_object(value) ? json_object_get(value, "content") : value);
}

static void
read_roles(oct_tokenizer *t, const json_t *root) {
  static const struct {
    const char *key;
    oct_token_role role;
  } keys[] = {{"bos_token", OCT_ROLE_BOS},
              {"eos_token", OCT_ROLE_EOS},
              {"pad_token", OCT_ROLE_PAD},
              {"unk_token", OCT_ROLE_UNKNOWN}};
  for (guint i = 0; i < G_N_ELEMENTS(keys); i++) {
    const char *text = token_text(json_object_get(root, keys[i].key));
    if (text == NULL)
      continue;
    guint32 id = oct_tokenizer_find_added(t, text);
    if (id == OCT_NO_TOKEN)
      id = oct_vocab_find(t->vocab, text, strlen(text));
    if (id != OCT_NO_TOKEN)
      oct_tokenizer_set_role(t, keys[i].role, id);
  }
  /* LlamaTokenizer without a post_processor says here whether it begins with BOS. */
  guint32 bos = t->roles[OCT_ROLE_BOS];
  if (t->before->len == 0 && bos != OCT_NO_TOKEN &&
      json_is_true(json_object_get(root, "add_bos_token")))
    g_array_append_val(t->before, bos);
  if (json_is_false(json_object_get(root, "add_bos_token")))
    g_array_set_size(t->before, 0);
}

gboolean
oct_tokenizer_read_config(oct_tokenizer *t, const char *json, gsize size, GError **error) {
  json_t *root = load("tokenizer_config.json", json, size, error);
  if (root == NULL)
    return FALSE;
  read_roles(t, root);
  const json_t *chat = json_object_get(root, "chat_template");
  if (json_is_string(chat)) {
    g_free(t->chat_template);
    t->chat_template = g_strdup(json_string_value(chat));
  }
  for (gsize i = 0; i < json_array_size(chat); i++) {
    const json_t *entry = json_array_get(chat, i);
    const char *name = json_string_value(json_object_get(entry, "name"));
    const char *text = json_string_value(json_object_get(entry, "template"));
    if (name == NULL || text == NULL)
      continue;
    g_hash_table_replace(t->templates, g_strdup(name), g_strdup(text));
    if (g_str_equal(name, "default")) {
      g_free(t->chat_template);
      t->chat_template = g_strdup(text);
    }
  }
  json_decref(root);
  return TRUE;
}

/* eos_token_id: a number or a list. */
static gboolean
read_generation_config(oct_tokenizer *t, const char *json, gsize size, GError **error) {
  json_t *root = load("generation_config.json", json, size, error);
  if (root == NULL)
    return FALSE;
  const json_t *ends = json_object_get(root, "eos_token_id");
  gsize n = json_is_integer(ends) ? 1 : json_array_size(ends);
  for (gsize i = 0; i < n; i++) {
    json_int_t id = json_integer_value(json_is_integer(ends) ? ends : json_array_get(ends, i));
    if (id >= 0 && id < (json_int_t)oct_tokenizer_n_tokens(t))
      oct_tokenizer_add_end(t, (guint32)id);
  }
  json_decref(root);
  return TRUE;
}

/* --- Kimi ------------------------------------------------------------------------------------ */

/* Names of the 256 special ids from tokenizer_config.json's added_tokens_decoder. */
static gboolean
read_kimi(const char *file, gsize size, const char *config, gsize config_size, oct_tokenizer **t,
          GError **error) {
  oct_tiktoken_spec spec = {
      .pre = "kimi-k2", .n_special = 256, .slice_chars_max = 400000, .run_chars_max = 25000};
  json_t *root = config == NULL ? NULL : load("tokenizer_config.json", config, config_size, error);
  if (config != NULL && root == NULL)
    return FALSE;
  gsize lines = 0;
  for (gsize i = 0; i < size; i++)
    lines += file[i] == '\n';
  lines += size > 0 && file[size - 1] != '\n';
  const char *names[256] = {NULL};
  json_t *value;
  const char *key;
  json_object_foreach(json_object_get(root, "added_tokens_decoder"), key, value) {
    guint64 id = g_ascii_strtoull(key, NULL, 10);
    if (id >= lines && id - lines < 256)
      names[id - lines] = token_text(value);
  }
  spec.names = names;
  *t = oct_tokenizer_from_tiktoken(file, size, &spec, error);
  g_clear_pointer(&root, json_decref);
  return *t != NULL;
}

/* --- opening --------------------------------------------------------------------------------- */

/* FALSE with *error when the file is there and cannot be read; *content NULL when it is absent. */
static gboolean
read_file(const char *folder, const char *name, char **content, gsize *size, GError **error) {
  g_autofree char *path = g_build_filename(folder, name, NULL);
  *content = NULL;
  if (!g_file_test(path, G_FILE_TEST_EXISTS))
    return TRUE;
  if (oct_file_read(path, OCT_TOKENIZER_FILE_MAX, content, size, error))
    return TRUE;
  g_prefix_error(error, "%s: ", path);
  return FALSE;
}

static gboolean
read_beside(oct_tokenizer *t, const char *folder, const char *config, gsize config_size,
            GError **error) {
  g_autofree char *chat = NULL, *generation = NULL;
  gsize size;
  if (config != NULL && !oct_tokenizer_read_config(t, config, config_size, error))
    return FALSE;
  if (!read_file(folder, "chat_template.jinja", &chat, &size, error))
    return FALSE;
  if (chat != NULL) {
    g_free(t->chat_template);
    t->chat_template = g_steal_pointer(&chat);
  }
  return read_file(folder, "generation_config.json", &generation, &size, error) &&
         (generation == NULL || read_generation_config(t, generation, size, error));
}

static oct_tokenizer *
open_folder(const char *folder, GError **error) {
  g_autofree char *json = NULL, *tiktoken = NULL, *config = NULL;
  gsize json_size, tiktoken_size, config_size = 0;
  if (!read_file(folder, "tokenizer.json", &json, &json_size, error) ||
      !read_file(folder, "tiktoken.model", &tiktoken, &tiktoken_size, error) ||
      !read_file(folder, "tokenizer_config.json", &config, &config_size, error))
    return NULL;
  g_autoptr(oct_tokenizer) t = NULL;
  if (json != NULL)
    t = oct_tokenizer_from_json(json, json_size, error);
  else if (tiktoken != NULL) {
    if (!read_kimi(tiktoken, tiktoken_size, config, config_size, &t, error))
      return NULL;
  } else
    g_set_error(error, OCT_TEXT_ERROR, OCT_TEXT_ERROR_FORMAT,
                "%s: there is neither a tokenizer.json nor a tiktoken.model", folder);
  if (t == NULL || !read_beside(t, folder, config, config_size, error))
    return NULL;
  return g_steal_pointer(&t);
}

oct_tokenizer *
oct_tokenizer_open(const char *path, GError **error) {
  if (g_str_has_suffix(path, ".gguf")) {
    g_autoptr(oct_checkpoint) checkpoint = oct_checkpoint_open(path, OCT_LOAD_GGUF, error);
    return checkpoint == NULL ? NULL : oct_tokenizer_from_checkpoint(checkpoint, error);
  }
  if (g_file_test(path, G_FILE_TEST_IS_DIR)) {
    g_autofree char *json = g_build_filename(path, "tokenizer.json", NULL);
    g_autofree char *tiktoken = g_build_filename(path, "tiktoken.model", NULL);
    if (g_file_test(json, G_FILE_TEST_EXISTS) || g_file_test(tiktoken, G_FILE_TEST_EXISTS))
      return open_folder(path, error);
    g_autoptr(oct_checkpoint) checkpoint = oct_checkpoint_open(path, OCT_LOAD_GGUF, NULL);
    return checkpoint == NULL ? open_folder(path, error)
                              : oct_tokenizer_from_checkpoint(checkpoint, error);
  }
  g_autofree char *folder = g_path_get_dirname(path), *name = g_path_get_basename(path);
  g_autofree char *json = NULL, *config = NULL;
  gsize size, config_size = 0;
  if (!read_file(folder, name, &json, &size, error) ||
      !read_file(folder, "tokenizer_config.json", &config, &config_size, error))
    return NULL;
  if (json == NULL) {
    g_set_error(error, OCT_TEXT_ERROR, OCT_TEXT_ERROR_FORMAT, "%s: no such file", path);
    return NULL;
  }
  g_autoptr(oct_tokenizer) t = oct_tokenizer_from_json(json, size, error);
  if (t == NULL || !read_beside(t, folder, config, config_size, error))
    return NULL;
  return g_steal_pointer(&t);
}
