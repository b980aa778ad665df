/* From a GGUF file's keys to a spec. The keys are checked one by one, written as the config.json
 * that they stand for, and read by the same code as every config (engine/model/config.c), so that a
 * family has one reader. */
#include <jansson.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/model/files/model.h"

#define KEY_SIZE 128

typedef struct gguf_family {
  const char *architecture, *model_type, *mixture; /* of models with experts, or NULL */
} gguf_family;

static const gguf_family families[] = {
    {"llama", "llama", "mixtral"},   {"qwen2", "qwen2", NULL},     {"qwen3", "qwen3", NULL},
    {"qwen3moe", NULL, "qwen3_moe"}, {"gpt-oss", NULL, "gpt_oss"},
};

/* Reading keys "ARCHITECTURE.…" into a config until the first error. */
typedef struct reader {
  const oct_checkpoint *checkpoint;
  const gguf_family *family;
  json_t *config;
  guint64 vocab;
  GError **error;
  gboolean failed;
} reader;

static const char *
key_of(const reader *r, const char *name, char key[KEY_SIZE]) {
  g_snprintf(key, KEY_SIZE, "%s.%s", r->family->architecture, name);
  return key;
}

static gboolean
has_key(const reader *r, const char *name) {
  char key[KEY_SIZE];
  return oct_checkpoint_meta(r->checkpoint, key_of(r, name, key)) != NULL;
}

static gboolean
has_tensor(const reader *r, const char *name) {
  return oct_checkpoint_find(r->checkpoint, name) != NULL;
}

/* An integer of the architecture; 0 after an error. */
static guint64
read_uint(reader *r, const char *name, guint64 max) {
  char key[KEY_SIZE];
  guint64 value = 0;
  if (!r->failed &&
      !oct_checkpoint_uint(r->checkpoint, key_of(r, name, key), 1, max, &value, r->error))
    r->failed = TRUE;
  return value;
}

static double
read_real(reader *r, const char *name, double min, double max) {
  char key[KEY_SIZE];
  double value = 0;
  if (!r->failed &&
      !oct_checkpoint_real(r->checkpoint, key_of(r, name, key), min, max, &value, r->error))
    r->failed = TRUE;
  return value;
}

static void
set_uint(reader *r, const char *field, guint64 value) {
  json_object_set_new(r->config, field, json_integer((json_int_t)value));
}

static void
copy_uint(reader *r, const char *name, guint64 max, const char *field) {
  set_uint(r, field, read_uint(r, name, max));
}

static void refuse(reader *r, const char *format, ...) G_GNUC_PRINTF(2, 3);

static void
refuse(reader *r, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  g_autofree char *message = g_strdup_vprintf(format, arguments);
  va_end(arguments);
  if (!r->failed)
    g_set_error(r->error, OCT_FILES_ERROR, OCT_FILES_ERROR_UNSUPPORTED, "%s: %s",
                oct_checkpoint_path(r->checkpoint), message);
  r->failed = TRUE;
}

/* --- parts of a config ---------------------------------------------------------------------------
 */

/* The vocabulary is the embedding's rows: the key that names it is optional. */
static void
read_vocab(reader *r) {
  const oct_file_tensor *embedding = oct_checkpoint_find(r->checkpoint, "token_embd.weight");
  if (embedding == NULL || embedding->n_dims != 2 || embedding->shape[0] < 1 ||
      embedding->shape[0] > OCT_MODEL_DIM_MAX) {
    g_autofree char *shape = embedding != NULL ? oct_file_tensor_shape(embedding) : NULL;
    refuse(r, "tensor token_embd.weight %s%s: wanted is [vocabulary, width]",
           shape != NULL ? "has the shape " : "is missing", shape != NULL ? shape : "");
    return;
  }
  r->vocab = embedding->shape[0];
  set_uint(r, "vocab_size", r->vocab);
}

static void
read_tokens(reader *r) {
  static const char *const ends[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"};
  guint64 token = 0, first = G_MAXUINT64;
  json_t *list = json_array();
  for (guint i = 0; i < G_N_ELEMENTS(ends) && !r->failed; i++) {
    if (oct_checkpoint_meta(r->checkpoint, ends[i]) == NULL)
      continue;
    r->failed = !oct_checkpoint_uint(r->checkpoint, ends[i], 0, r->vocab - 1, &token, r->error);
    if (token != first)
      json_array_append_new(list, json_integer((json_int_t)token));
    first = token;
  }
  json_object_set_new(r->config, "eos_token_id", list);
  const char *bos = "tokenizer.ggml.bos_token_id";
  if (r->failed || oct_checkpoint_meta(r->checkpoint, bos) == NULL)
    return;
  r->failed = !oct_checkpoint_uint(r->checkpoint, bos, 0, r->vocab - 1, &token, r->error);
  set_uint(r, "bos_token_id", token);
}

static void
read_heads(reader *r) {
  guint64 heads = read_uint(r, "attention.head_count", OCT_MODEL_DIM_MAX);
  guint64 width = read_uint(r, "embedding_length", OCT_MODEL_DIM_MAX);
  guint64 head = 0;
  set_uint(r, "num_attention_heads", heads);
  set_uint(r, "hidden_size", width);
  set_uint(r, "num_key_value_heads",
           has_key(r, "attention.head_count_kv")
               ? read_uint(r, "attention.head_count_kv", OCT_MODEL_DIM_MAX)
               : heads);
  if (has_key(r, "attention.key_length"))
    head = read_uint(r, "attention.key_length", OCT_MODEL_DIM_MAX);
  else if (!r->failed && width % heads == 0)
    head = width / heads;
  else
    refuse(r, "%" G_GUINT64_FORMAT " heads do not divide the width %" G_GUINT64_FORMAT, heads,
           width);
  set_uint(r, "head_dim", head);
  if (has_key(r, "attention.value_length") &&
      read_uint(r, "attention.value_length", OCT_MODEL_DIM_MAX) != head)
    refuse(r, "attention.value_length differs from the %" G_GUINT64_FORMAT " of keys", head);
  if (has_key(r, "rope.dimension_count") &&
      read_uint(r, "rope.dimension_count", OCT_MODEL_DIM_MAX) != head)
    refuse(r,
           "rope.dimension_count differs from the head's %" G_GUINT64_FORMAT
           ": all of a head is rotated",
           head);
}

/* Positions: theta, and scaling by the names that config.json has for it. */
static void
read_rope(reader *r) {
  char key[KEY_SIZE];
  oct_text type = {"none", 4};
  double theta = has_key(r, "rope.freq_base") ? read_real(r, "rope.freq_base", 1, 1e12) : 10000;
  json_t *rope = json_pack("{s:f}", "rope_theta", theta);
  if (has_key(r, "rope.scaling.type") && !r->failed)
    r->failed =
        !oct_checkpoint_text(r->checkpoint, key_of(r, "rope.scaling.type", key), &type, r->error);
  gboolean none = type.size == 4 && memcmp(type.bytes, "none", 4) == 0;
  gboolean linear = type.size == 6 && memcmp(type.bytes, "linear", 6) == 0;
  gboolean yarn = type.size == 4 && memcmp(type.bytes, "yarn", 4) == 0;
  if (!none && !linear && !yarn)
    refuse(r, "rope.scaling.type '%.*s': supported are none, linear and yarn",
           (int)MIN(type.size, 40), type.bytes);
  json_object_set_new(rope, "rope_type", json_string(none ? "default" : yarn ? "yarn" : "linear"));
  if (linear || yarn)
    json_object_set_new(rope, "factor", json_real(read_real(r, "rope.scaling.factor", 1, 1e6)));
  if (yarn)
    json_object_set_new(
        rope, "original_max_position_embeddings",
        json_integer((json_int_t)read_uint(r, "rope.scaling.original_context_length", 1u << 30)));
  json_object_set_new(r->config, "rope_parameters", rope);
}

static void
read_ffn(reader *r, gboolean mixture) {
  if (!mixture || !has_key(r, "expert_feed_forward_length"))
    copy_uint(r, "feed_forward_length", OCT_MODEL_DIM_MAX, "intermediate_size");
  if (!mixture)
    return;
  copy_uint(r, "expert_count", OCT_MODEL_EXPERTS_MAX, "num_local_experts");
  copy_uint(r, "expert_used_count", OCT_MODEL_EXPERTS_MAX, "num_experts_per_tok");
  if (!has_key(r, "expert_feed_forward_length"))
    return;
  copy_uint(r, "expert_feed_forward_length", OCT_MODEL_DIM_MAX,
            g_str_equal(r->family->mixture, "qwen3_moe") ? "moe_intermediate_size"
                                                         : "intermediate_size");
}

static void
read_config(reader *r, gboolean mixture) {
  const char *model_type = mixture ? r->family->mixture : r->family->model_type;
  json_object_set_new(r->config, "model_type", json_string(model_type));
  json_object_set_new(r->config, "dtype", json_string("float32"));
  json_object_set_new(r->config, "hidden_act", json_string("silu"));
  json_object_set_new(r->config, "norm_topk_prob", json_true());
  json_object_set_new(r->config, "tie_word_embeddings",
                      json_boolean(!has_tensor(r, "output.weight")));
  json_object_set_new(r->config, "attention_bias",
                      json_boolean(has_tensor(r, "blk.0.attn_q.bias")));
  copy_uint(r, "block_count", OCT_MODEL_LAYERS_MAX, "num_hidden_layers");
  copy_uint(r, "context_length", 1u << 30, "max_position_embeddings");
  json_object_set_new(r->config, "rms_norm_eps",
                      json_real(read_real(r, "attention.layer_norm_rms_epsilon", 1e-20, 1)));
  read_vocab(r);
  read_tokens(r);
  read_heads(r);
  read_rope(r);
  read_ffn(r, mixture);
  if (has_key(r, "attention.sliding_window"))
    copy_uint(r, "attention.sliding_window", OCT_MODEL_DIM_MAX, "sliding_window");
  if (has_key(r, "attention.sliding_window") && g_str_equal(model_type, "llama"))
    refuse(r, "attention.sliding_window: windows of llama models are not supported");
}

/* --- types ---------------------------------------------------------------------------------------
 */

static oct_dtype
dtype_of(oct_stored_type type) {
  static const struct {
    oct_stored_type stored;
    oct_dtype dtype;
  } rows[] = {
      {OCT_STORED_F16, OCT_DTYPE_F16},     {OCT_STORED_BF16, OCT_DTYPE_BF16},
      {OCT_STORED_MXFP4, OCT_DTYPE_MXFP4}, {OCT_STORED_Q4_0, OCT_DTYPE_Q4_0},
      {OCT_STORED_Q4_1, OCT_DTYPE_Q4_1},   {OCT_STORED_Q5_0, OCT_DTYPE_Q5_0},
      {OCT_STORED_Q5_1, OCT_DTYPE_Q5_1},   {OCT_STORED_Q8_0, OCT_DTYPE_Q8_0},
      {OCT_STORED_Q4_K, OCT_DTYPE_Q4_K},   {OCT_STORED_Q5_K, OCT_DTYPE_Q5_K},
      {OCT_STORED_Q6_K, OCT_DTYPE_Q6_K},
  };
  for (guint i = 0; i < G_N_ELEMENTS(rows); i++)
    if (rows[i].stored == type)
      return rows[i].dtype;
  return OCT_DTYPE_F32;
}

/* The type that most bytes have among tensors whose name contains `part`; `fallback` when none
 * does. */
static oct_dtype
most_of(const oct_checkpoint *checkpoint, const char *part, oct_dtype fallback) {
  guint64 bytes[OCT_STORED_COUNT] = {0};
  guint best = OCT_STORED_F32;
  for (guint i = 0; i < oct_checkpoint_n_tensors(checkpoint); i++) {
    const oct_file_tensor *t = oct_checkpoint_tensor(checkpoint, i);
    const char *at = strstr(t->name, part);
    if (at != NULL && g_str_has_suffix(t->name, ".weight") && strstr(at, "norm") == NULL)
      bytes[t->type] += t->bytes;
  }
  for (guint i = 0; i < OCT_STORED_COUNT; i++)
    if (bytes[i] > bytes[best])
      best = i;
  return bytes[best] > 0 ? dtype_of((oct_stored_type)best) : fallback;
}

static void
set_types(const oct_checkpoint *checkpoint, oct_model_spec *spec) {
  oct_weight_types *t = &spec->types;
  t->attention = most_of(checkpoint, ".attn_", t->base);
  t->dense_ffn = most_of(checkpoint, ".ffn_", t->base);
  t->expert = most_of(checkpoint, "_exps.", t->dense_ffn);
  t->router = most_of(checkpoint, ".ffn_gate_inp.", t->base);
  t->embedding = most_of(checkpoint, "token_embd.", t->base);
  const oct_file_tensor *head = oct_checkpoint_find(checkpoint, "output.weight");
  t->head = head != NULL ? dtype_of(head->type) : t->embedding;
}

/* --- the whole -----------------------------------------------------------------------------------
 */

static const gguf_family *
find_family(const oct_checkpoint *checkpoint, GError **error) {
  oct_text name;
  g_autoptr(GString) known = g_string_new(NULL);
  if (!oct_checkpoint_text(checkpoint, "general.architecture", &name, error))
    return NULL;
  for (guint i = 0; i < G_N_ELEMENTS(families); i++) {
    const char *its_name = families[i].architecture;
    if (name.size == strlen(its_name) && memcmp(name.bytes, its_name, name.size) == 0)
      return &families[i];
    g_string_append_printf(known, "%s%s", i > 0 ? ", " : "", its_name);
  }
  g_autofree char *shown = g_utf8_make_valid(name.bytes, (gssize)MIN(name.size, 40));
  g_set_error(error, OCT_FILES_ERROR, OCT_FILES_ERROR_UNSUPPORTED,
              "%s: general.architecture is '%s': supported are %s", oct_checkpoint_path(checkpoint),
              shown, known->str);
  return NULL;
}

char *
oct_model_config_from_gguf(const oct_checkpoint *checkpoint, GError **error) {
  oct_assert(oct_checkpoint_format(checkpoint) == OCT_LOAD_GGUF);
  const gguf_family *family = find_family(checkpoint, error);
  if (family == NULL)
    return NULL;
  reader r = {.checkpoint = checkpoint, .family = family, .error = error};
  gboolean mixture =
      has_key(&r, "expert_count") && read_uint(&r, "expert_count", OCT_MODEL_EXPERTS_MAX) > 0;
  if (!r.failed && (mixture ? family->mixture : family->model_type) == NULL)
    refuse(&r, "a %s model with%s experts: there is no such thing", family->architecture,
           mixture ? "" : "out");
  if (r.failed)
    return NULL;
  r.config = json_object();
  read_config(&r, mixture);
  char *text = NULL;
  if (!r.failed) {
    char *dumped = json_dumps(r.config, 0);
    text = g_strdup(dumped);
    free(dumped);
  }
  json_decref(r.config);
  return text;
}

oct_model_spec *
oct_model_spec_from_gguf(const oct_checkpoint *checkpoint, GError **error) {
  g_autofree char *config = oct_model_config_from_gguf(checkpoint, error);
  if (config == NULL)
    return NULL;
  oct_model_spec *spec =
      oct_model_spec_parse(oct_checkpoint_path(checkpoint), config, strlen(config), error);
  if (spec == NULL)
    return NULL;
  g_autofree char *base = g_path_get_basename(oct_checkpoint_path(checkpoint));
  if (g_str_has_suffix(base, ".gguf"))
    base[strlen(base) - strlen(".gguf")] = '\0';
  g_free(spec->name);
  spec->name = g_steal_pointer(&base);
  set_types(checkpoint, spec);
  return spec;
}
