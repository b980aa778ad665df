/* A checkpoint rewritten as a GGUF file computes what it did: names, the order of q's and k's rows,
 * and positions of llama 3, which GGUF tells by divisors of the rotary frequencies instead of
 * parameters. */
#include <math.h>
#include <string.h>

#include "backends/cpu/direct.h"
#include "engine/model/quantise/convert.h"
#include "tests/backends/cpu/golden.h"
#include "tests/engine/model/files/maker.h"

enum { F32 = 0, LAYERS = 3, HIDDEN = 72, HEADS = 9, KV = 3, HEAD = 8, FFN = 160, VOCAB = 320 };

typedef struct file {
  maker *tensors;
  GArray *data; /* of float */
  guint n_tensors;
} file;

static float *
add(file *f, const char *name, guint64 rows, guint64 columns) {
  const guint64 sizes[] = {columns, rows};
  guint at = f->data->len;
  maker_tensor(f->tensors, name, F32, at * sizeof(float), sizes, rows > 1 ? 2 : 1);
  g_array_set_size(f->data, (guint)((at + rows * columns + 7) / 8 * 8)); /* 32 bytes */
  f->n_tensors++;
  return &g_array_index(f->data, float, at);
}

/* A weight under its name of GGUF; the pairs of `head` rows that are rotated together stand
 * together. */
static void
add_weight(file *f, const oct_weight_map *map, oct_weight_kind kind, guint32 layer,
           const char *name, guint32 head) {
  const oct_weight *w = oct_weight_map_get(map, kind, layer, 0);
  g_autofree float *values = g_new(float, w->rows * w->columns);
  g_autofree char *full = g_strdup_printf("blk.%u.%s", layer, name);
  oct_weight_read(w, 0, w->rows, values);
  float *to = w->columns == 1
                  ? add(f, kind == OCT_WEIGHT_FINAL_NORM ? name : full, 1, w->rows)
                  : add(f, kind == OCT_WEIGHT_EMBEDDING ? name : full, w->rows, w->columns);
  for (guint64 r = 0; r < w->rows; r++) {
    guint64 stored = r;
    if (head > 0)
      stored = r / head * head + r % head % (head / 2) * 2 + r % head / (head / 2);
    for (guint64 c = 0; c < w->columns; c++)
      to[stored * w->columns + c] = values[r * w->columns + c];
  }
}

static void
add_layer(file *f, const oct_weight_map *map, guint32 l) {
  add_weight(f, map, OCT_WEIGHT_ATTN_NORM, l, "attn_norm.weight", 0);
  add_weight(f, map, OCT_WEIGHT_FFN_NORM, l, "ffn_norm.weight", 0);
  add_weight(f, map, OCT_WEIGHT_Q, l, "attn_q.weight", HEAD);
  add_weight(f, map, OCT_WEIGHT_K, l, "attn_k.weight", HEAD);
  add_weight(f, map, OCT_WEIGHT_V, l, "attn_v.weight", 0);
  add_weight(f, map, OCT_WEIGHT_O, l, "attn_output.weight", 0);
  add_weight(f, map, OCT_WEIGHT_GATE, l, "ffn_gate.weight", 0);
  add_weight(f, map, OCT_WEIGHT_UP, l, "ffn_up.weight", 0);
  add_weight(f, map, OCT_WEIGHT_DOWN, l, "ffn_down.weight", 0);
}

/* What llama 3 divides each frequency by, with the golden's parameters. */
static void
add_divisors(file *f) {
  const double theta = 500000, factor = 8, low = 1, high = 4, original = 64;
  float *to = add(f, "rope_freqs.weight", 1, HEAD / 2);
  for (guint i = 0; i < HEAD / 2; i++) {
    double waves = original * pow(theta, -2.0 * i / HEAD) / (2 * G_PI); /* in the context */
    double smooth = fmin(fmax((waves - low) / (high - low), 0), 1);
    to[i] = (float)(1 / (smooth + (1 - smooth) / factor));
  }
}

static guint
add_keys(maker *m) {
  const struct {
    const char *key;
    guint32 value;
  } keys[] = {{"llama.block_count", LAYERS},         {"llama.context_length", 256},
              {"llama.embedding_length", HIDDEN},    {"llama.feed_forward_length", FFN},
              {"llama.attention.head_count", HEADS}, {"llama.attention.head_count_kv", KV},
              {"llama.rope.dimension_count", HEAD}};
  maker_key_text(m, "general.architecture", "llama");
  for (guint i = 0; i < G_N_ELEMENTS(keys); i++)
    maker_key_u32(m, keys[i].key, keys[i].value);
  maker_key_f32(m, "llama.rope.freq_base", 500000);
  maker_key_f32(m, "llama.attention.layer_norm_rms_epsilon", 1e-6f);
  return G_N_ELEMENTS(keys) + 3;
}

/* Writes the golden's model as GGUF; its path, owned. */
static char *
write_gguf(const golden *g, const char *folder, gboolean divisors) {
  g_autoptr(GError) error = NULL;
  g_autoptr(oct_model_files) files =
      oct_model_files_open(g->folder, NULL, OCT_LOAD_AUTO, 0, NULL, &error);
  g_assert_no_error(error);
  file f = {.tensors = maker_new(), .data = g_array_new(FALSE, TRUE, sizeof(float))};
  add_weight(&f, files->map, OCT_WEIGHT_EMBEDDING, 0, "token_embd.weight", 0);
  add_weight(&f, files->map, OCT_WEIGHT_FINAL_NORM, 0, "output_norm.weight", 0);
  for (guint32 l = 0; l < LAYERS; l++)
    add_layer(&f, files->map, l);
  if (divisors)
    add_divisors(&f);
  g_autoptr(maker) keys = maker_new(), whole = maker_new();
  guint n_keys = add_keys(keys);
  maker_gguf(whole, 3, f.n_tensors, n_keys);
  maker_raw(whole, keys->bytes->data, keys->bytes->len);
  maker_raw(whole, f.tensors->bytes->data, f.tensors->bytes->len);
  maker_pad(whole, 32);
  maker_raw(whole, f.data->data, f.data->len * sizeof(float));
  scratch_write(folder, "model.gguf", whole->bytes->data, (gssize)whole->bytes->len);
  maker_free(f.tensors);
  g_array_unref(f.data);
  return g_build_filename(folder, "model.gguf", NULL);
}

/* How far the logits of the file are from the golden's. */
static double
error_of(const golden *g, gboolean divisors) {
  g_autoptr(GError) error = NULL;
  char *folder = scratch_new();
  g_autofree char *path = write_gguf(g, folder, divisors);
  const oct_cpu_direct_options options = {.path = path, .threads = 1, .context = GOLDEN_PROMPT};
  oct_cpu_direct *direct = oct_cpu_direct_new(&options, &error);
  g_assert_no_error(error);
  g_autofree float *logits = g_new(float, (gsize)GOLDEN_PROMPT *VOCAB);
  oct_cpu_direct_run(direct, g->prompt, GOLDEN_PROMPT);
  oct_cpu_direct_logits(direct, 0, GOLDEN_PROMPT, logits);
  oct_cpu_direct_free(direct);
  scratch_remove(folder);
  return golden_error(logits, golden_floats(g, "logits", (gsize)GOLDEN_PROMPT * VOCAB),
                      (gsize)GOLDEN_PROMPT * VOCAB);
}

static void
rotary_divisors(void) {
  golden g;
  golden_open(&g, "llama-tied-rope3");
  g_assert_cmpfloat(error_of(&g, TRUE), <, 1e-4);
  g_assert_cmpfloat(error_of(&g, FALSE), >, 1e-3); /* they are needed */
  golden_close(&g);
}

static gboolean
convert(const char *path, const char *folder, GError **error) {
  g_autoptr(oct_model_files) files =
      oct_model_files_open(path, NULL, OCT_LOAD_AUTO, 0, NULL, error);
  g_assert_no_error(*error);
  const oct_convert_options options = {
      .format = OCT_CONVERT_FP8, .kept = OCT_DTYPE_F32, .shard_bytes = 1u << 30};
  oct_convert_report report;
  return oct_convert(files, folder, &options, &report, error);
}

/* Equal weights, each under its name, in two checkpoints. */
static void
assert_same_weights(const char *a, const char *b) {
  g_autoptr(GError) error = NULL;
  g_autoptr(oct_model_files) x = oct_model_files_open(a, NULL, OCT_LOAD_AUTO, 0, NULL, &error);
  g_assert_no_error(error);
  g_autoptr(oct_model_files) y = oct_model_files_open(b, NULL, OCT_LOAD_AUTO, 0, NULL, &error);
  g_assert_no_error(error);
  g_assert_cmpuint(oct_weight_map_n(x->map), ==, oct_weight_map_n(y->map));
  for (guint i = 0; i < oct_weight_map_n(x->map); i++) {
    const oct_weight *v = oct_weight_map_at(x->map, i), *w = oct_weight_map_at(y->map, i);
    gsize n = v->rows * v->columns;
    g_autofree float *left = g_new(float, n), *right = g_new(float, n);
    oct_weight_read(v, 0, v->rows, left);
    oct_weight_read(w, 0, w->rows, right);
    g_assert_cmpint(v->layout, ==, w->layout);
    g_assert_cmpmem(left, n * sizeof *left, right, n * sizeof *right);
  }
}

/* Into safetensors with Hugging Face's names and order of rows, and a config.json of the file's
 * keys: the same weights as the golden's own conversion gives. */
static void
converted(void) {
  golden g;
  golden_open(&g, "llama-tied-rope3");
  g_autoptr(GError) error = NULL;
  char *folder = scratch_new();
  g_autofree char *path = write_gguf(&g, folder, FALSE);
  char *ours = g_build_filename(folder, "ours", NULL);
  char *its = g_build_filename(folder, "its", NULL);
  g_assert_true(convert(path, ours, &error) && convert(g.folder, its, &error));
  g_assert_no_error(error);
  assert_same_weights(ours, its);
  scratch_remove(ours);
  scratch_remove(its);
  g_autofree char *other = write_gguf(&g, folder, TRUE), *none = g_strconcat(path, "-out", NULL);
  g_assert_false(convert(other, none, &error));
  g_assert_error(error, OCT_FILES_ERROR, OCT_FILES_ERROR_UNSUPPORTED);
  g_assert_nonnull(strstr(error->message, "rope_freqs.weight"));
  scratch_remove(folder);
  golden_close(&g);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/cpu/gguf/divisors-of-frequencies-are-llama-3s-scaling", rotary_divisors);
  g_test_add_func("/cpu/gguf/is-converted-to-safetensors", converted);
  return g_test_run();
}
