#include "tests/backends/cpu/golden.h"

#include <math.h>
#include <string.h>

const char *const golden_names[] = {"llama",        "llama-tied-rope3", "qwen2-bias",
                                    "qwen3-qknorm", "mixtral",          "qwen3-moe",
                                    "deepseek-v3",  "kimi-linear",      NULL};

char *
golden_path(const char *name) {
  return g_test_build_filename(G_TEST_DIST, "golden", name, NULL);
}

static const oct_file_tensor *
find(const golden *g, const char *name, oct_stored_type type, gsize n) {
  const oct_file_tensor *t = oct_checkpoint_find(g->file, name);
  g_assert_nonnull(t);
  g_assert_cmpint(t->type, ==, type);
  g_assert_cmpuint(oct_file_tensor_elements(t), ==, n);
  return t;
}

const float *
golden_floats(const golden *g, const char *name, gsize n) {
  return (const float *)(const void *)find(g, name, OCT_STORED_F32, n)->data;
}

void
golden_open(golden *g, const char *name) {
  g_autoptr(GError) error = NULL;
  g_autofree char *in_hf = g_build_filename("hf", name, NULL);
  g->folder = golden_path(in_hf);
  g->spec = oct_model_spec_load(g->folder, NULL, &error);
  g_assert_no_error(error);
  g_autofree char *path = g_build_filename(g->folder, "golden.safetensors", NULL);
  g->file = oct_checkpoint_open(path, OCT_LOAD_SAFETENSORS, &error);
  g_assert_no_error(error);
  memcpy(g->prompt, find(g, "input_ids", OCT_STORED_I32, GOLDEN_PROMPT)->data, sizeof g->prompt);
  memcpy(g->generated, find(g, "generated", OCT_STORED_I32, GOLDEN_GENERATED)->data,
         sizeof g->generated);
}

void
golden_close(golden *g) {
  oct_checkpoint_close(g->file);
  oct_model_spec_free(g->spec);
  g_free(g->folder);
}

double
golden_error(const float *a, const float *b, gsize n) {
  double difference = 0, size = 0;
  for (gsize i = 0; i < n; i++) {
    difference += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
    size += (double)b[i] * b[i];
  }
  return sqrt(difference / size);
}
