/* What a name and a load format mean together. */
#include "engine/model/files/model.h"

#include <string.h>

#include "tests/engine/model/files/golden.h"
#include "tests/engine/model/files/maker.h"
#include "tests/engine/model/files/small.h"

static char *
llama_path(const char *file) {
  return g_test_build_filename(G_TEST_DIST, "golden", "hf", "llama", file, NULL);
}

static oct_model_files *
open_or_fail(const char *name, oct_load_format format) {
  g_autoptr(GError) error = NULL;
  oct_model_files *files = oct_model_files_open(name, NULL, format, 5, NULL, &error);
  g_assert_no_error(error);
  g_assert_true((files->checkpoint == NULL) == (format == OCT_LOAD_DUMMY));
  return files;
}

static void
refused(const char *name, oct_load_format format, const char *part) {
  g_autoptr(GError) error = NULL;
  g_assert_null(oct_model_files_open(name, NULL, format, 5, NULL, &error));
  g_assert_nonnull(error);
  if (strstr(error->message, part) == NULL)
    g_error("'%s' does not contain '%s'", error->message, part);
}

static void
opens(void) {
  g_autofree char *folder = llama_path(NULL), *file = llama_path("model.safetensors");
  const oct_load_format formats[] = {OCT_LOAD_AUTO, OCT_LOAD_SAFETENSORS};
  for (guint i = 0; i < G_N_ELEMENTS(formats); i++) {
    g_autoptr(oct_model_files) a = open_or_fail(folder, formats[i]);
    g_autoptr(oct_model_files) b = open_or_fail(file, formats[i]);
    g_assert_cmpstr(a->spec->name, ==, "llama");
    g_assert_cmpstr(b->spec->name, ==, "llama");
    g_assert_cmpuint(oct_weight_map_n(a->map), ==, oct_weight_map_n(b->map));
  }
}

/* Random weights have the shapes of the config beside real ones, and other values. */
static void
makes_dummies(void) {
  g_autofree char *folder = llama_path(NULL);
  g_autoptr(oct_model_files) real = open_or_fail(folder, OCT_LOAD_AUTO);
  g_autoptr(oct_model_files) dummy = open_or_fail(folder, OCT_LOAD_DUMMY);
  g_autoptr(oct_model_files) again = open_or_fail(folder, OCT_LOAD_DUMMY);
  g_assert_cmpuint(oct_weight_map_n(real->map), ==, oct_weight_map_n(dummy->map));
  for (guint i = 0; i < oct_weight_map_n(real->map); i++) {
    const oct_weight *a = oct_weight_map_at(real->map, i), *b = oct_weight_map_at(dummy->map, i);
    float x[320], y[320], z[320];
    g_assert_cmpint(a->kind, ==, b->kind);
    g_assert_true(a->rows == b->rows && a->columns == b->columns && a->bytes == b->bytes);
    oct_weight_read(a, 0, 1, x);
    oct_weight_read(b, 0, 1, y);
    oct_weight_read(oct_weight_map_at(again->map, i), 0, 1, z);
    g_assert_true(memcmp(x, y, a->columns * sizeof *x) != 0 || a->columns == 1);
    assert_same(y, z, a->columns);
  }
  g_autoptr(oct_model_files) zoo = open_or_fail("smollm2-135m", OCT_LOAD_DUMMY);
  g_assert_cmpuint(zoo->spec->n_layers, ==, 30);
}

static void
refuses(void) {
  g_autoptr(maker) m = maker_new();
  g_autofree char *folder = llama_path(NULL), *config = llama_path("config.json");
  refused("kimi-k3", OCT_LOAD_AUTO, "kimi-k3 is a model of the zoo, which has no weights");
  refused("kimi-k9", OCT_LOAD_AUTO, "kimi-k9: No such file");
  refused("kimi-k9", OCT_LOAD_DUMMY, "model 'kimi-k9' is neither");
  refused(folder, OCT_LOAD_GGUF, "wanted is one .gguf file");
  refused(config, OCT_LOAD_AUTO, "is this a safetensors or GGUF file?");
  char *scratch = scratch_new();
  maker_safetensors(m, "{}", 0);
  scratch_write(scratch, "model.safetensors", m->bytes->data, m->bytes->len);
  refused(scratch, OCT_LOAD_AUTO, "no config.json beside this checkpoint");
  scratch_write(scratch, "config.json", "{", 1);
  refused(scratch, OCT_LOAD_AUTO, "config.json:1:");
  scratch_remove(scratch);
}

/* A config whose experts no file could hold is refused before any list is made. */
static void
refuses_a_config_out_of_all_proportion(void) {
  g_autoptr(GError) error = NULL;
  g_autofree guint8 *memory = NULL;
  g_autoptr(oct_model_spec) spec = small_spec(
      "{\"model_type\":\"qwen3_moe\",\"hidden_size\":8,\"intermediate_size\":8,"
      "\"num_hidden_layers\":512,\"num_attention_heads\":1,\"num_key_value_heads\":1,"
      "\"head_dim\":8,\"vocab_size\":8,\"max_position_embeddings\":64,\"rms_norm_eps\":1e-5,"
      "\"num_experts\":65536,\"num_experts_per_tok\":1,\"moe_intermediate_size\":1}");
  g_autoptr(writer) w = writer_new();
  writer_add(w, "model.norm.weight", OCT_STORED_F32, NULL, 8, -1);
  g_autoptr(oct_checkpoint) checkpoint = writer_open(w, &memory);
  g_assert_null(oct_weight_map_new(spec, checkpoint, NULL, &error));
  g_assert_error(error, OCT_FILES_ERROR, OCT_FILES_ERROR_LIMIT);
  g_assert_nonnull(strstr(error->message, "weights, and all tensors together have only 32 bytes"));
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/model/opens-a-folder-and-its-file", opens);
  g_test_add_func("/model/makes-dummies-of-the-same-shapes", makes_dummies);
  g_test_add_func("/model/names-what-is-missing", refuses);
  g_test_add_func("/model/refuses-a-config-out-of-all-proportion",
                  refuses_a_config_out_of_all_proportion);
  return g_test_run();
}
