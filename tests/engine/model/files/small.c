#include "tests/engine/model/files/small.h"

#include <string.h>

#include "engine/model/files/names.h"

oct_model_spec *
small_spec(const char *json) {
  g_autoptr(GError) error = NULL;
  oct_model_spec *spec = oct_model_spec_parse("small", json, strlen(json), &error);
  g_assert_no_error(error);
  return spec;
}

oct_model_spec *
small_llama(void) {
  return small_spec("{\"model_type\":\"llama\",\"hidden_size\":256,\"intermediate_size\":256,"
                    "\"num_hidden_layers\":1,\"num_attention_heads\":3,\"num_key_value_heads\":3,"
                    "\"head_dim\":8,\"vocab_size\":32,\"max_position_embeddings\":64,"
                    "\"rms_norm_eps\":1e-5}");
}

oct_model_spec *
small_gpt_oss(void) {
  return small_spec("{\"model_type\":\"gpt_oss\",\"hidden_size\":64,\"intermediate_size\":32,"
                    "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
                    "\"head_dim\":16,\"vocab_size\":32,\"max_position_embeddings\":64,"
                    "\"rms_norm_eps\":1e-5,\"sliding_window\":16,\"num_local_experts\":3,"
                    "\"num_experts_per_tok\":2}");
}

char *
small_module(const oct_weight *weight) {
  const oct_name_row *row = oct_name_row_get(OCT_LOAD_SAFETENSORS, weight->kind);
  char name[OCT_FILE_NAME_MAX];
  g_assert_nonnull(row->single[0]);
  g_assert_true(
      oct_name_expand("", row->single[0], weight->layer, weight->expert, name, sizeof name));
  return g_strdup(name);
}

writer *
small_write(const oct_weight_map *map) {
  writer *w = writer_new();
  for (guint i = 0; i < oct_weight_map_n(map); i++) {
    const oct_weight *weight = oct_weight_map_at(map, i);
    if (oct_name_row_get(OCT_LOAD_SAFETENSORS, weight->kind)->single[0] == NULL)
      continue; /* only in tensors of all experts: the test's own */
    g_autofree char *module = small_module(weight);
    oct_name_part part = oct_name_row_get(OCT_LOAD_SAFETENSORS, weight->kind)->part;
    if (part == OCT_NAME_WEIGHT) {
      writer_add_weight(w, module, weight);
      continue;
    }
    g_autofree char *name = g_strconcat(module, part == OCT_NAME_BIAS ? ".bias" : "", NULL);
    const gint64 shape[] = {(gint64)weight->rows, -1};
    writer_add_shape(w, name, weight->type, weight->codes, shape);
  }
  return w;
}

small_map *
small_open(const oct_model_spec *spec, const writer *w) {
  g_autoptr(GError) error = NULL;
  small_map *m = g_new0(small_map, 1);
  m->checkpoint = writer_open(w, &m->memory);
  m->map = oct_weight_map_new(spec, m->checkpoint, NULL, &error);
  g_assert_no_error(error);
  return m;
}

void
small_close(small_map *m) {
  oct_weight_map_free(m->map);
  oct_checkpoint_close(m->checkpoint);
  g_free(m->memory);
  g_free(m);
}

void
small_refused(const oct_model_spec *spec, const writer *w, const char *part) {
  g_autoptr(GError) error = NULL;
  guint8 *memory;
  oct_checkpoint *checkpoint = writer_open(w, &memory);
  g_assert_null(oct_weight_map_new(spec, checkpoint, NULL, &error));
  g_assert_error(error, OCT_FILES_ERROR, OCT_FILES_ERROR_TENSOR);
  if (strstr(error->message, part) == NULL)
    g_error("'%s' does not contain '%s'", error->message, part);
  oct_checkpoint_close(checkpoint);
  g_free(memory);
}
