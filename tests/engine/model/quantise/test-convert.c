/* Conversions of tiny checkpoints of eight architectures: what is written is a checkpoint that the
 * reader takes as the model, with the weights that were reported. */
#include <glib/gstdio.h>
#include <math.h>
#include <string.h>

#include "engine/model/quantise/convert.h"
#include "engine/base/rng.h"
#include "tests/engine/model/files/folder.h"

typedef struct scene {
  oct_model_files *source, *target;
  char *folder, *path; /* path: of the conversion, in the folder */
  GHashTable *rows;    /* of module: double *, its relative error */
  oct_convert_report report;
} scene;

static char *
golden(const char *name) {
  return g_test_build_filename(G_TEST_DIST, "golden", "hf", name, NULL);
}

static oct_model_files *
open_files(const char *path) {
  g_autoptr(GError) error = NULL;
  oct_model_files *files = oct_model_files_open(path, NULL, OCT_LOAD_AUTO, 0, NULL, &error);
  g_assert_no_error(error);
  return files;
}

static void
on_row(void *user, const oct_convert_row *row) {
  scene *s = user;
  g_hash_table_insert(s->rows, g_strdup(row->module), g_memdup2(&row->relative, sizeof(double)));
}

static void
scene_open(scene *s, const char *name) {
  g_autofree char *path = golden(name);
  *s = (scene){.source = open_files(path), .folder = folder_new()};
  s->path = g_build_filename(s->folder, "out", NULL);
  s->rows = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, g_free);
}

static void
scene_convert(scene *s, oct_convert_options *options) {
  g_autoptr(GError) error = NULL;
  options->row = on_row;
  options->user = s;
  if (options->shard_bytes == 0)
    options->shard_bytes = G_MAXUINT64;
  gboolean ok = oct_convert(s->source, s->path, options, &s->report, &error);
  g_assert_no_error(error);
  g_assert_true(ok);
  s->target = open_files(s->path);
}

static void
scene_close(scene *s) {
  oct_model_files_close(s->source);
  oct_model_files_close(s->target);
  if (g_file_test(s->path, G_FILE_TEST_EXISTS))
    folder_remove(s->path);
  folder_remove(s->folder);
  g_hash_table_unref(s->rows);
  g_free(s->folder);
  g_free(s->path);
}

/* |a - b| / |b| */
static double
distance(const float *a, const float *b, gsize n) {
  double off = 0, size = 0;
  for (gsize i = 0; i < n; i++) {
    off += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
    size += (double)b[i] * (double)b[i];
  }
  return size > 0 ? sqrt(off / size) : 0;
}

static float *
values_of(const oct_weight *w) {
  float *values = g_new(float, w->rows * w->columns);
  oct_weight_read(w, 0, w->rows, values);
  return values;
}

/* Every weight of the target against the source's: coded ones are in `layout` and as far off as was
 * reported and at most `limit`, others have the same values. */
static void
assert_converted(const scene *s, oct_layout layout, double limit) {
  guint64 n_coded = 0;
  g_assert_cmpuint(oct_weight_map_n(s->target->map), ==, oct_weight_map_n(s->source->map));
  for (guint i = 0; i < oct_weight_map_n(s->source->map); i++) {
    const oct_weight *old = oct_weight_map_at(s->source->map, i);
    const oct_weight *new = oct_weight_map_at(s->target->map, i);
    g_autofree float *before = values_of(old), *after = values_of(new);
    char module[OCT_FILE_NAME_MAX + 1];
    const char *suffix;
    g_assert_true(oct_weight_module(s->source->spec, s->source->checkpoint, old, module, &suffix));
    const double *reported = g_hash_table_lookup(s->rows, module);
    if (reported == NULL || !g_str_equal(suffix, ".weight") || old->columns == 1) {
      g_assert_cmpint(new->layout, ==, OCT_LAYOUT_ROWS);
      g_assert_cmpmem(after, old->rows * old->columns * sizeof *after, before,
                      old->rows * old->columns * sizeof *before);
      continue;
    }
    n_coded++;
    /* One block is one scale. */
    gboolean one = layout == OCT_LAYOUT_FP8_BLOCK && old->rows <= 128 && old->columns <= 128;
    g_assert_cmpint(new->layout, ==, one ? OCT_LAYOUT_FP8 : layout);
    double off = distance(after, before, old->rows * old->columns);
    g_assert_cmpfloat_with_epsilon(off, *reported, 1e-9);
    g_assert_cmpfloat(off, >, 0);
    g_assert_cmpfloat(off, <, limit);
  }
  g_assert_cmpuint(n_coded, ==, s->report.n_quantised);
  g_assert_cmpuint(n_coded, ==, g_hash_table_size(s->rows));
  g_assert_cmpuint(s->report.bytes, ==, oct_checkpoint_bytes(s->target->checkpoint));
}

/* ---------------------------------------------------------------- formats */

static void
fp8(void) {
  static const char *const names[] = {"llama",   "llama-tied-rope3", "qwen2-bias", "qwen3-qknorm",
                                      "mixtral", "qwen3-moe",        "deepseek-v3"};
  for (guint i = 0; i < G_N_ELEMENTS(names); i++)
    for (guint block = 0; block < 2; block++) {
      scene s;
      oct_convert_options o = {.format = block ? OCT_CONVERT_FP8_BLOCK : OCT_CONVERT_FP8};
      scene_open(&s, names[i]);
      scene_convert(&s, &o);
      assert_converted(&s, block ? OCT_LAYOUT_FP8_BLOCK : OCT_LAYOUT_FP8, 0.05);
      g_assert_cmpint(s.target->spec->types.attention, ==,
                      block ? OCT_DTYPE_FP8_BLOCK : OCT_DTYPE_FP8);
      scene_close(&s);
    }
}

static const char *const even_names[] = {"llama", "qwen2-bias", "qwen3-qknorm", "mixtral"};

static void
awq(void) {
  for (guint i = 0; i < G_N_ELEMENTS(even_names); i++) {
    scene s;
    oct_convert_options o = {.format = OCT_CONVERT_AWQ, .group = 32};
    scene_open(&s, even_names[i]);
    scene_convert(&s, &o);
    assert_converted(&s, OCT_LAYOUT_AWQ, 0.12);
    g_assert_cmpint(s.target->spec->types.attention, ==, OCT_DTYPE_INT4_G32);
    scene_close(&s);
  }
}

static void
mxfp4(void) {
  for (guint i = 0; i < G_N_ELEMENTS(even_names); i++) {
    scene s;
    oct_convert_options o = {.format = OCT_CONVERT_MXFP4};
    scene_open(&s, even_names[i]);
    scene_convert(&s, &o);
    assert_converted(&s, OCT_LAYOUT_MXFP4, 0.15);
    g_assert_cmpint(s.target->spec->types.dense_ffn, ==, OCT_DTYPE_MXFP4);
    scene_close(&s);
  }
}

static void
shards(void) {
  scene s;
  oct_convert_options o = {.format = OCT_CONVERT_FP8, .shard_bytes = 50000};
  scene_open(&s, "llama");
  scene_convert(&s, &o);
  g_assert_cmpuint(s.report.n_files, >, 2);
  g_assert_cmpuint(oct_checkpoint_n_files(s.target->checkpoint), ==, s.report.n_files);
  assert_converted(&s, OCT_LAYOUT_FP8, 0.05);
  scene_close(&s);
}

static void
kept_types(void) {
  static const oct_dtype kept[] = {OCT_DTYPE_F32, OCT_DTYPE_F16, OCT_DTYPE_BF16};
  static const oct_stored_type stored[] = {OCT_STORED_F32, OCT_STORED_F16, OCT_STORED_BF16};
  for (guint i = 0; i < G_N_ELEMENTS(kept); i++) {
    scene s;
    oct_convert_options o = {.format = OCT_CONVERT_FP8, .kept = kept[i]};
    scene_open(&s, "llama");
    scene_convert(&s, &o);
    const oct_weight *old = oct_weight_map_get(s.source->map, OCT_WEIGHT_EMBEDDING, 0, 0);
    const oct_weight *new = oct_weight_map_get(s.target->map, OCT_WEIGHT_EMBEDDING, 0, 0);
    g_autofree float *before = values_of(old), *after = values_of(new);
    g_assert_cmpint(new->type, ==, stored[i]);
    g_assert_cmpfloat(distance(after, before, old->rows * old->columns), <, 1e-3);
    g_assert_cmpint(s.target->spec->types.embedding, ==, kept[i]);
    scene_close(&s);
  }
}

/* ---------------------------------------------------------------- scaling */

/* Inputs as if a few channels of each weight carried a hundred times what the others do. */
static oct_inputs *
make_inputs(const oct_model_files *files) {
  oct_rng rng;
  oct_rng_seed(&rng, 5, 0);
  oct_inputs *inputs = oct_inputs_new(files->map);
  for (guint i = 0; i < oct_weight_map_n(files->map); i++) {
    const oct_weight *w = oct_weight_map_at(files->map, i);
    g_autofree float *x = g_new(float, w->columns);
    if (w->columns == 1 || w->kind <= OCT_WEIGHT_HEAD)
      continue;
    for (guint row = 0; row < 8; row++) {
      for (guint64 c = 0; c < w->columns; c++)
        x[c] = (float)oct_rng_normal(&rng) * (c % 16 == 3 ? 100 : 1);
      oct_inputs_add(inputs, w, x, w->columns, 1);
    }
  }
  return inputs;
}

/* What the errors of all coded weights cost, given what comes in. Scaling is taken out. */
static double
cost_of(const scene *s, const oct_inputs *inputs, const oct_scaling *scaling) {
  double cost = 0;
  for (guint i = 0; i < oct_weight_map_n(s->source->map); i++) {
    const oct_weight *old = oct_weight_map_at(s->source->map, i);
    const oct_weight *new = oct_weight_map_at(s->target->map, i);
    if (new->layout != OCT_LAYOUT_AWQ)
      continue;
    g_autofree float *before = values_of(old), *after = values_of(new);
    g_autofree float *squares = g_new(float, old->columns);
    const float *in = scaling != NULL ? oct_scaling_inputs(scaling, old) : NULL;
    const float *out = scaling != NULL ? oct_scaling_outputs(scaling, old) : NULL;
    oct_inputs_squares(inputs, old, squares);
    for (guint64 k = 0; k < old->rows * old->columns; k++) {
      guint64 row = k / old->columns, c = k % old->columns;
      double back = (double)after[k] * (out != NULL ? (double)out[row] : 1) /
                    (in != NULL ? (double)in[c] : 1);
      cost += (double)squares[c] * (back - (double)before[k]) * (back - (double)before[k]);
    }
  }
  return cost;
}

static double
cost_with(const char *name, gboolean aware) {
  scene s;
  scene_open(&s, name);
  oct_inputs *inputs = make_inputs(s.source);
  oct_scaling *scaling =
      aware ? oct_scaling_new(s.source->spec, s.source->map, inputs, 32, NULL, NULL) : NULL;
  oct_convert_options o = {
      .format = OCT_CONVERT_AWQ, .group = 32, .inputs = aware ? inputs : NULL, .scaling = scaling};
  scene_convert(&s, &o);
  double cost = cost_of(&s, inputs, scaling);
  oct_scaling_free(scaling);
  oct_inputs_free(inputs);
  scene_close(&s);
  return cost;
}

static void
scaling_helps(void) {
  for (guint i = 0; i < G_N_ELEMENTS(even_names); i++) {
    double nearest = cost_with(even_names[i], FALSE), aware = cost_with(even_names[i], TRUE);
    g_test_message("%s: %g, with scaling %g", even_names[i], nearest, aware);
    g_assert_cmpfloat(aware, <, nearest / 4);
  }
}

/* A writer's division takes out what its readers' multiplication brings in: channel by channel,
 * with the query heads of a KV head sharing a factor. */
static void
scaling_cancels(void) {
  scene s;
  scene_open(&s, "qwen2-bias");
  const oct_weight_map *map = s.source->map;
  oct_inputs *inputs = make_inputs(s.source);
  oct_scaling *scaling = oct_scaling_new(s.source->spec, map, inputs, 32, NULL, NULL);
  const struct {
    oct_weight_kind writer, reader;
  } pairs[] = {{OCT_WEIGHT_ATTN_NORM, OCT_WEIGHT_Q}, {OCT_WEIGHT_ATTN_NORM, OCT_WEIGHT_K},
               {OCT_WEIGHT_ATTN_NORM, OCT_WEIGHT_V}, {OCT_WEIGHT_FFN_NORM, OCT_WEIGHT_GATE},
               {OCT_WEIGHT_FFN_NORM, OCT_WEIGHT_UP}, {OCT_WEIGHT_UP, OCT_WEIGHT_DOWN},
               {OCT_WEIGHT_V, OCT_WEIGHT_O},         {OCT_WEIGHT_V_BIAS, OCT_WEIGHT_O}};
  const oct_attention_spec *a = &s.source->spec->attention[0];
  for (guint i = 0; i < G_N_ELEMENTS(pairs); i++) {
    const oct_weight *reader = oct_weight_map_get(map, pairs[i].reader, 1, 0);
    const float *out = oct_scaling_outputs(scaling, oct_weight_map_get(map, pairs[i].writer, 1, 0));
    const float *in = oct_scaling_inputs(scaling, reader);
    g_assert_nonnull(out);
    g_assert_nonnull(in);
    for (guint64 c = 0; c < reader->columns; c++) {
      guint64 head = c / a->head_dim / (a->n_heads / a->n_kv_heads);
      guint64 at = pairs[i].reader == OCT_WEIGHT_O ? head * a->head_dim + c % a->head_dim : c;
      g_assert_cmpfloat(in[c], ==, out[at]);
    }
  }
  oct_scaling_free(scaling);
  oct_inputs_free(inputs);
  scene_close(&s);
}

/* ---------------------------------------------------------------- refusals */

static void
refused(void) {
  const struct {
    const char *name;
    oct_convert_options options;
    const char *part;
  } cases[] = {
      {"llama",
       {.format = OCT_CONVERT_AWQ, .group = 64},
       "layer 0 down has 160 inputs, not a mult"},
      {"llama-tied-rope3", {.format = OCT_CONVERT_AWQ, .group = 32}, "layer 0 q has 72 inputs"},
      {"qwen3-moe", {.format = OCT_CONVERT_MXFP4}, "layer 0 expert down 0 has 48 inputs"},
      {"kimi-linear", {.format = OCT_CONVERT_FP8}, "delta attention"},
  };
  for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
    g_autoptr(GError) error = NULL;
    scene s;
    scene_open(&s, cases[i].name);
    g_assert_false(oct_convert(s.source, s.path, &cases[i].options, &s.report, &error));
    g_assert_error(error, OCT_FILES_ERROR, OCT_FILES_ERROR_UNSUPPORTED);
    g_test_message("%s", error->message);
    g_assert_nonnull(strstr(error->message, cases[i].part));
    scene_close(&s); /* also: nothing was left in the folder */
  }
}

static void
existing_folder(void) {
  g_autoptr(GError) error = NULL;
  scene s;
  const oct_convert_options o = {.format = OCT_CONVERT_FP8, .shard_bytes = 1u << 30};
  scene_open(&s, "llama");
  g_assert_cmpint(g_mkdir(s.path, 0777), ==, 0);
  g_assert_false(oct_convert(s.source, s.path, &o, &s.report, &error));
  g_assert_error(error, OCT_FILES_ERROR, OCT_FILES_ERROR_IO);
  scene_close(&s);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/convert/fp8-is-read-back-as-reported", fp8);
  g_test_add_func("/convert/awq-is-read-back-as-reported", awq);
  g_test_add_func("/convert/mxfp4-is-read-back-as-reported", mxfp4);
  g_test_add_func("/convert/shards-hold-the-same", shards);
  g_test_add_func("/convert/what-is-kept-has-the-type-asked-for", kept_types);
  g_test_add_func("/convert/scaling-costs-a-quarter-of-rounding", scaling_helps);
  g_test_add_func("/convert/scaling-cancels-out", scaling_cancels);
  g_test_add_func("/convert/refuses-by-the-weights-name", refused);
  g_test_add_func("/convert/replaces-nothing", existing_folder);
  return g_test_run();
}
