#include "tests/backends/cpu/golden.h"

#include <math.h>
#include <string.h>

const char *const golden_names[] = {"llama",        "llama-tied-rope3", "qwen2-bias",
                                    "qwen3-qknorm", "mixtral",          "qwen3-moe",
                                    "deepseek-v3",  "kimi-linear",      NULL};
const char *const golden_k3_names[] = {"kimi-k3/tiny-a", "kimi-k3/tiny-b", "kimi-k3/tiny-linear",
                                       NULL};

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

static gboolean
is_k3(const golden *g) {
  return oct_checkpoint_find(g->file, "greedy_ids") != NULL;
}

const float *
golden_generated_logits(const golden *g) {
  return golden_floats(g, is_k3(g) ? "greedy_logits" : "generated_logits",
                       (gsize)g->n_generated * g->spec->vocab);
}

/* transformers gives the last layer's only after the final norm, k3_reference.py only before. */
const float *
golden_hidden(const golden *g, guint32 index) {
  g_autofree char *name = NULL;
  guint32 last = g->spec->n_layers;
  if (index == (is_k3(g) ? last + 1 : last))
    return NULL;
  if (is_k3(g))
    name = index == 0 ? g_strdup("embed") : g_strdup_printf("layer.%u.out", index - 1);
  else
    name = g_strdup_printf("hidden.%u", MIN(index, last));
  return golden_floats(g, name, (gsize)g->n_prompt * g->spec->hidden);
}

void
golden_open(golden *g, const char *name) {
  g_autoptr(GError) error = NULL;
  gboolean k3 = strchr(name, '/') != NULL;
  g_autofree char *in_folder = k3 ? g_strdup(name) : g_build_filename("hf", name, NULL);
  g->folder = golden_path(in_folder);
  g->spec = oct_model_spec_load(g->folder, NULL, &error);
  g_assert_no_error(error);
  g_autofree char *path =
      g_build_filename(g->folder, k3 ? "golden" : ".", "golden.safetensors", NULL);
  g->file = oct_checkpoint_open(path, OCT_LOAD_SAFETENSORS, &error);
  g_assert_no_error(error);
  g->n_prompt = k3 ? 37 : GOLDEN_PROMPT;
  g->n_generated = k3 ? 16 : GOLDEN_GENERATED;
  memcpy(g->prompt, find(g, "input_ids", OCT_STORED_I32, g->n_prompt)->data,
         g->n_prompt * sizeof *g->prompt);
  memcpy(g->generated,
         find(g, k3 ? "greedy_ids" : "generated", OCT_STORED_I32, g->n_generated)->data,
         g->n_generated * sizeof *g->generated);
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
