/* Which tensor is which weight: real layouts, and everything that may be missing, wrong or too
 * much. */
#include "engine/model/files/map.h"

#include <string.h>

#include "engine/model/files/dequant.h"
#include "engine/model/files/model.h"
#include "tests/engine/model/files/golden.h"
#include "tests/engine/model/files/writer.h"

static const char *const models[] = {"llama",     "llama-tied-rope3", "qwen2-bias", "qwen3-qknorm",
                                     "qwen3-moe", "deepseek-v3",      "kimi-linear"};

static char *
model_path(const char *name) {
  return g_test_build_filename(G_TEST_DIST, "golden", "hf", name, NULL);
}

static oct_model_files *
open_model(const char *path) {
  g_autoptr(GError) error = NULL;
  oct_model_files *files = oct_model_files_open(path, NULL, OCT_LOAD_AUTO, 0, NULL, &error);
  g_assert_no_error(error);
  return files;
}

static float *
read_all(const oct_weight *w) {
  float *values = g_new(float, w->rows * w->columns);
  oct_weight_read(w, 0, w->rows, values);
  return values;
}

/* --- complete checkpoints ------------------------------------------------------------------------
 */

/* Every weight is there once, and together they are the model and the file. */
static void
assert_complete(const char *path) {
  g_autoptr(oct_model_files) files = open_model(path);
  guint64 parameters = 0, bytes = 0;
  oct_weights weights;
  for (guint i = 0; i < oct_weight_map_n(files->map); i++) {
    const oct_weight *w = oct_weight_map_at(files->map, i);
    parameters += w->rows * w->columns;
    bytes += w->bytes;
    g_assert_true(w == oct_weight_map_get(files->map, w->kind, w->layer, w->expert));
    g_autofree float *values = read_all(w);
    for (guint64 k = 0; k < w->rows * w->columns; k++)
      g_assert_true(values[k] > -100 && values[k] < 100);
  }
  oct_model_weights(files->spec, &weights);
  g_assert_cmpuint(parameters, ==, oct_weights_total(&weights).parameters);
  g_assert_cmpuint(bytes, ==, oct_checkpoint_bytes(files->checkpoint));
}

static void
complete(gconstpointer name) {
  g_autofree char *path = model_path(name);
  assert_complete(path);
}

/* Models that are too large for the project's own folder. */
static void
complete_shared(gconstpointer name) {
  const char *shared = g_getenv("OCT_SHARED");
  g_autofree char *beside = g_test_build_filename(G_TEST_DIST, "..", "..", "shared", NULL);
  g_autofree char *path = g_build_filename(shared != NULL ? shared : beside, "golden", name, NULL);
  if (g_file_test(path, G_FILE_TEST_IS_DIR))
    assert_complete(path);
  else
    g_test_skip("the golden checkpoint is not in the folder of shared data");
}

/* Weights against the tensor that holds them by its published name. */
static void
names(void) {
  const struct {
    const char *model;
    oct_weight_kind kind;
    guint32 layer, expert;
    const char *tensor;
  } cases[] = {
      {"llama", OCT_WEIGHT_EMBEDDING, 0, 0, "model.embed_tokens.weight"},
      {"llama", OCT_WEIGHT_HEAD, 2, 0, "lm_head.weight"},
      {"llama", OCT_WEIGHT_FFN_NORM, 1, 0, "model.layers.1.post_attention_layernorm.weight"},
      {"llama", OCT_WEIGHT_DOWN, 2, 0, "model.layers.2.mlp.down_proj.weight"},
      {"qwen2-bias", OCT_WEIGHT_V_BIAS, 1, 0, "model.layers.1.self_attn.v_proj.bias"},
      {"qwen3-qknorm", OCT_WEIGHT_K_NORM, 0, 0, "model.layers.0.self_attn.k_norm.weight"},
      {"qwen3-moe", OCT_WEIGHT_ROUTER, 2, 0, "model.layers.2.mlp.gate.weight"},
      {"qwen3-moe", OCT_WEIGHT_EXPERT_UP, 0, 7, "model.layers.0.mlp.experts.7.up_proj.weight"},
      {"qwen3-moe", OCT_WEIGHT_GATE, 1, 0, "model.layers.1.mlp.gate_proj.weight"},
      {"deepseek-v3", OCT_WEIGHT_KV_A, 1, 0, "model.layers.1.self_attn.kv_a_proj_with_mqa.weight"},
      {"deepseek-v3", OCT_WEIGHT_ROUTER_SCORE_BIAS, 2, 0,
       "model.layers.2.mlp.gate.e_score_correction_bias"},
      {"deepseek-v3", OCT_WEIGHT_SHARED_DOWN, 1, 0,
       "model.layers.1.mlp.shared_experts.down_proj.weight"},
      {"kimi-linear", OCT_WEIGHT_EXPERT_GATE, 3, 2,
       "model.layers.3.block_sparse_moe.experts.2.w1.weight"},
      {"kimi-linear", OCT_WEIGHT_EXPERT_UP, 3, 2,
       "model.layers.3.block_sparse_moe.experts.2.w3.weight"},
      {"kimi-linear", OCT_WEIGHT_EXPERT_DOWN, 3, 2,
       "model.layers.3.block_sparse_moe.experts.2.w2.weight"},
      {"kimi-linear", OCT_WEIGHT_A_LOG, 1, 0, "model.layers.1.self_attn.A_log"},
      {"kimi-linear", OCT_WEIGHT_K_CONV, 0, 0, "model.layers.0.self_attn.k_conv1d.weight"},
      {"kimi-linear", OCT_WEIGHT_ATTN_GATE_B, 4, 0, "model.layers.4.self_attn.g_b_proj.weight"},
      {"kimi-linear", OCT_WEIGHT_Q, 3, 0, "model.layers.3.self_attn.q_proj.weight"},
  };
  for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
    g_autofree char *path = model_path(cases[i].model);
    g_autoptr(oct_model_files) files = open_model(path);
    const oct_weight *w =
        oct_weight_map_get(files->map, cases[i].kind, cases[i].layer, cases[i].expert);
    const oct_file_tensor *t = oct_checkpoint_find(files->checkpoint, cases[i].tensor);
    g_assert_true(w != NULL && t != NULL);
    guint64 n = oct_file_tensor_elements(t);
    g_assert_cmpuint(n, ==, w->rows * w->columns);
    g_autofree float *wanted = g_new(float, n), *found = read_all(w);
    oct_dequant_row(t->type, t->data, n, wanted);
    assert_same(found, wanted, n);
    oct_weight_read(w, w->rows - 1, 1, found);
    assert_same(found, wanted + n - w->columns, w->columns);
  }
}

static void
absent(void) {
  g_autofree char *path = model_path("llama-tied-rope3");
  g_autoptr(oct_model_files) files = open_model(path);
  guint n;
  g_assert_null(oct_weight_map_get(files->map, OCT_WEIGHT_HEAD, 0, 0));
  g_assert_null(oct_weight_map_get(files->map, OCT_WEIGHT_ROUTER, 1, 0));
  g_assert_null(oct_weight_map_get(files->map, OCT_WEIGHT_Q, 1, 1));
  g_assert_null(oct_weight_map_rope_divisors(files->map, &n));
  g_assert_cmpuint(n, ==, 0);
}

/* --- incomplete ones -----------------------------------------------------------------------------
 */

/* All tensors of a golden model, to be changed. */
static writer *
rewrite(const char *name, oct_model_spec **spec) {
  g_autofree char *path = model_path(name);
  g_autoptr(oct_model_files) files = open_model(path);
  writer *w = writer_new();
  for (guint i = 0; i < oct_checkpoint_n_tensors(files->checkpoint); i++) {
    const oct_file_tensor *t = oct_checkpoint_tensor(files->checkpoint, i);
    gint64 shape[OCT_FILE_DIMS_MAX + 1];
    for (guint k = 0; k < t->n_dims; k++)
      shape[k] = (gint64)t->shape[k];
    shape[t->n_dims] = -1;
    writer_add_shape(w, t->name, t->type, t->data, shape);
  }
  *spec = g_steal_pointer(&files->spec);
  return w;
}

/* Maps what the writer has; checks the counts and that some text of the report has `part`. */
static void
expect_report(const oct_model_spec *spec, const writer *w, guint missing, guint wrong,
              guint unexpected, guint skipped, const char *part) {
  g_autofree guint8 *memory = NULL;
  g_autoptr(GError) error = NULL;
  g_autoptr(oct_map_report) report = oct_map_report_new();
  g_autoptr(oct_checkpoint) checkpoint = writer_open(w, &memory);
  g_autoptr(oct_weight_map) map = oct_weight_map_new(spec, checkpoint, report, &error);
  gboolean complete_map = missing + wrong + unexpected == 0, found = FALSE;
  const oct_map_list *lists[] = {&report->missing, &report->wrong, &report->unexpected,
                                 &report->skipped};
  g_assert_cmpuint(report->missing.n, ==, missing);
  g_assert_cmpuint(report->wrong.n, ==, wrong);
  g_assert_cmpuint(report->unexpected.n, ==, unexpected);
  g_assert_cmpuint(report->skipped.n, ==, skipped);
  g_assert_true((map != NULL) == complete_map);
  if (!complete_map)
    g_assert_error(error, OCT_FILES_ERROR, OCT_FILES_ERROR_TENSOR);
  for (guint i = 0; i < G_N_ELEMENTS(lists); i++)
    for (guint k = 0; k < lists[i]->texts->len; k++)
      found = found || strstr(g_ptr_array_index(lists[i]->texts, k), part) != NULL;
  if (!found)
    g_error("no text of the report has '%s' (error: %s)", part,
            error != NULL ? error->message : "none");
  if (!complete_map && strstr(error->message, part) == NULL)
    g_error("'%s' does not contain '%s'", error->message, part);
}

/* Without each tensor in turn: named, and only that. */
static void
names_what_is_missing(gconstpointer model) {
  g_autoptr(oct_model_spec) spec = NULL;
  g_autoptr(writer) all = rewrite(model, &spec);
  guint n = writer_n(all);
  for (guint i = 0; i < n; i++) {
    g_autoptr(oct_model_spec) same = NULL;
    g_autoptr(writer) w = rewrite(model, &same);
    g_autofree char *name = g_strdup(writer_name(w, i));
    writer_drop(w, name);
    expect_report(spec, w, 1, 0, 0, 0, name);
  }
}

static void
names_what_is_unexpected(void) {
  g_autoptr(oct_model_spec) spec = NULL;
  g_autoptr(writer) w = rewrite("llama", &spec);
  writer_rename(w, "model.layers.1.mlp.up_proj.weight", "model.layers.1.mlp.up.weight");
  expect_report(spec, w, 1, 0, 1, 0, "no tensor model.layers.1.mlp.up_proj.weight");
  expect_report(spec, w, 1, 0, 1, 0, "model.layers.1.mlp.up.weight");
  expect_report(spec, w, 1, 0, 1, 0, "layer 1 up");
}

static void
names_what_is_wrong(void) {
  const struct {
    const char *name;
    oct_stored_type type;
    gint64 shape[4];
    const char *part;
  } cases[] = {
      {"model.norm.weight", OCT_STORED_BF16, {65, -1}, "has the shape [65], wanted is [64]"},
      {"model.norm.weight", OCT_STORED_U16, {64, -1}, "is of type U16"},
      {"lm_head.weight", OCT_STORED_BF16, {64, 320, -1}, "[64, 320], wanted is [320, 64]"},
      {"model.layers.0.self_attn.q_proj.weight", OCT_STORED_U8, {64, 32, -1}, "weight_scale"},
      {"model.layers.0.self_attn.q_proj.weight", OCT_STORED_F32, {64, 2, 32, -1}, "[64, 2, 32]"},
      {"model.layers.0.self_attn.q_proj.weight", OCT_STORED_F8_E5M2, {64, 64, -1}, "F8_E5M2"},
  };
  for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
    g_autoptr(oct_model_spec) spec = NULL;
    g_autoptr(writer) w = rewrite("llama", &spec);
    writer_drop(w, cases[i].name);
    writer_add_shape(w, cases[i].name, cases[i].type, NULL, cases[i].shape);
    expect_report(spec, w, 0, 1, 0, 0, cases[i].part);
    expect_report(spec, w, 0, 1, 0, 0, cases[i].name);
  }
}

static void
accepts_dimensions_of_one(void) {
  g_autoptr(oct_model_spec) spec = NULL;
  g_autoptr(writer) w = rewrite("llama", &spec);
  writer_drop(w, "model.norm.weight");
  writer_add(w, "model.norm.weight", OCT_STORED_F32, NULL, 1, 64, 1, -1);
  writer_add(w, "model.layers.0.rotary_emb.inv_freq", OCT_STORED_F32, NULL, 8, -1);
  expect_report(spec, w, 0, 0, 0, 1, "model.layers.0.rotary_emb.inv_freq: computed");
}

/* What a text model does not use is told, not refused. */
static void
skips(void) {
  const struct {
    const char *name, *part;
  } cases[] = {
      {"vision_tower.encoder.weight", "another modality"},
      {"mm_projector.weight", "another modality"},
      {"model.layers.3.input_layernorm.weight", "multi-token prediction"},
      {"model.layers.0.self_attn.q_proj.input_scale", "a scale of activations"},
      {"model.layers.0.self_attn.k_scale", "a scale of the cache"},
      {"lm_head.weight", "the head is the embedding"},
  };
  for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
    g_autoptr(oct_model_spec) spec = NULL;
    g_autoptr(writer) w = rewrite("llama-tied-rope3", &spec);
    writer_add(w, cases[i].name, OCT_STORED_F32, NULL, 3, -1);
    expect_report(spec, w, 0, 0, 0, 1, cases[i].part);
  }
  /* Only where they are nobody's. */
  g_autoptr(oct_model_spec) spec = NULL;
  g_autoptr(writer) w = rewrite("llama", &spec);
  writer_add(w, "model.layers.2.extra.weight", OCT_STORED_F32, NULL, 3, -1);
  expect_report(spec, w, 0, 0, 1, 0, "model.layers.2.extra.weight");
}

/* A hundred thousand problems are counted, and a few shown. */
static void
bounds_its_report(void) {
  g_autoptr(oct_model_spec) spec = NULL;
  g_autoptr(writer) w = rewrite("llama", &spec);
  for (guint i = 0; i < 1000; i++) {
    g_autofree char *name = g_strdup_printf("extra.%u", i);
    writer_add(w, name, OCT_STORED_U8, NULL, 0, -1);
  }
  g_autofree guint8 *memory = NULL;
  g_autoptr(GError) error = NULL;
  g_autoptr(oct_map_report) report = oct_map_report_new();
  g_autoptr(oct_checkpoint) checkpoint = writer_open(w, &memory);
  g_assert_null(oct_weight_map_new(spec, checkpoint, report, &error));
  g_assert_cmpuint(report->unexpected.n, ==, 1000);
  g_assert_cmpuint(report->unexpected.texts->len, ==, OCT_MAP_TEXTS_MAX);
  g_assert_nonnull(strstr(error->message, "1000 unexpected (extra.0; extra.1; "));
  g_assert_cmpuint(strlen(error->message), <, 400);
}

int
main(int argc, char **argv) {
  static const char *const shared[] = {"hf/mixtral", "kimi-k3/tiny-a", "kimi-k3/tiny-b",
                                       "kimi-k3/tiny-linear"};
  g_test_init(&argc, &argv, NULL);
  for (guint i = 0; i < G_N_ELEMENTS(models); i++) {
    g_autofree char *path = g_strdup_printf("/map/%s-maps-completely", models[i]);
    g_test_add_data_func(path, models[i], complete);
  }
  for (guint i = 0; i < G_N_ELEMENTS(shared); i++) {
    g_autofree char *base = g_path_get_basename(shared[i]);
    g_autofree char *path = g_strdup_printf("/map/%s-maps-completely", base);
    g_test_add_data_func(path, shared[i], complete_shared);
  }
  g_test_add_func("/map/weights-are-the-tensors-of-their-names", names);
  g_test_add_func("/map/has-no-weight-that-the-model-lacks", absent);
  g_test_add_data_func("/map/names-each-missing-tensor-of-llama", "llama", names_what_is_missing);
  g_test_add_data_func("/map/names-each-missing-tensor-of-kimi-linear", "kimi-linear",
                       names_what_is_missing);
  g_test_add_func("/map/names-what-is-unexpected", names_what_is_unexpected);
  g_test_add_func("/map/names-what-is-wrong", names_what_is_wrong);
  g_test_add_func("/map/accepts-dimensions-of-one", accepts_dimensions_of_one);
  g_test_add_func("/map/skips-what-a-text-model-does-not-use", skips);
  g_test_add_func("/map/bounds-its-report", bounds_its_report);
  return g_test_run();
}
