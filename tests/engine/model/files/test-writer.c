/* What the writer writes is what the reader reads: one file or shards, any type and shape, whatever
 * the order of filling; and half a file is never seen. */
#include "engine/model/files/writer.h"

#include <glib/gstdio.h>
#include <string.h>

#include "tests/engine/model/files/folder.h"

/* Tensors of many types and sizes, so that none could follow another without the right order. */
typedef struct sample {
  const char *name;
  oct_stored_type type;
  guint n_dims;
  guint64 shape[3];
} sample;

static const sample samples[] = {
    {"b.odd", OCT_STORED_U8, 1, {3}},
    {"a.scale", OCT_STORED_F32, 1, {1}},
    {"c.half", OCT_STORED_F16, 2, {3, 5}},
    {"scalar", OCT_STORED_F64, 0, {0}},
    {"a \"quoted\" \\ name é", OCT_STORED_I32, 3, {2, 1, 3}},
    {"d.fp8", OCT_STORED_F8_E4M3, 2, {5, 7}},
    {"empty", OCT_STORED_BF16, 2, {0, 4}},
    {"wide", OCT_STORED_I64, 1, {9}},
};

static guint8
byte_of(guint tensor, gsize at) {
  return (guint8)(tensor * 31 + at * 7 + 1);
}

static oct_safetensors_writer *
begin(const char *folder, guint64 shard_bytes) {
  g_autoptr(GError) error = NULL;
  oct_safetensors_writer *w = oct_safetensors_writer_new(folder, shard_bytes);
  for (guint i = 0; i < G_N_ELEMENTS(samples); i++) {
    const sample *s = &samples[i];
    gboolean ok = oct_safetensors_writer_add(w, s->name, s->type, s->n_dims, s->shape, &error);
    g_assert_no_error(error);
    g_assert_true(ok);
  }
  gboolean ok = oct_safetensors_writer_begin(w, &error);
  g_assert_no_error(error);
  g_assert_true(ok);
  return w;
}

/* Fills the last tensor first, each in two pieces. */
static void
fill(oct_safetensors_writer *w) {
  g_autoptr(GError) error = NULL;
  for (guint i = G_N_ELEMENTS(samples); i-- > 0;) {
    guint64 n = 1, bytes;
    guint8 data[128];
    for (guint d = 0; d < samples[i].n_dims; d++)
      n *= samples[i].shape[d];
    g_assert_true(oct_stored_bytes(samples[i].type, n, &bytes));
    for (gsize k = 0; k < bytes; k++)
      data[k] = byte_of(i, k);
    gboolean ok = oct_safetensors_writer_append(w, i, data, bytes / 2, &error) &&
                  oct_safetensors_writer_append(w, i, data + bytes / 2, bytes - bytes / 2, &error);
    g_assert_no_error(error);
    g_assert_true(ok);
  }
}

static void
assert_whole(const char *folder, guint n_files) {
  g_autoptr(GError) error = NULL;
  g_autoptr(oct_checkpoint) c = oct_checkpoint_open(folder, OCT_LOAD_SAFETENSORS, &error);
  g_assert_no_error(error);
  g_assert_cmpuint(oct_checkpoint_n_files(c), ==, n_files);
  g_assert_cmpuint(oct_checkpoint_n_tensors(c), ==, G_N_ELEMENTS(samples));
  for (guint i = 0; i < G_N_ELEMENTS(samples); i++) {
    const oct_file_tensor *t = oct_checkpoint_find(c, samples[i].name);
    g_assert_nonnull(t);
    g_assert_cmpint(t->type, ==, samples[i].type);
    g_assert_cmpuint(t->n_dims, ==, samples[i].n_dims);
    for (guint d = 0; d < t->n_dims; d++)
      g_assert_cmpuint(t->shape[d], ==, samples[i].shape[d]);
    for (gsize k = 0; k < t->bytes; k++)
      g_assert_cmpuint(t->data[k], ==, byte_of(i, k));
  }
}

static void
round_trip(void) {
  /* Shards: all in one; as many as fit 60 bytes; one each. */
  const struct {
    guint64 shard_bytes;
    guint n_files;
  } cases[] = {{G_MAXUINT64, 1}, {60, 3}, {1, 7}};
  for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
    g_autoptr(GError) error = NULL;
    g_autofree char *folder = folder_new();
    g_autoptr(oct_safetensors_writer) w = begin(folder, cases[i].shard_bytes);
    fill(w);
    g_assert_true(oct_safetensors_writer_finish(w, &error));
    g_assert_no_error(error);
    g_assert_cmpuint(oct_safetensors_writer_n_files(w), ==, cases[i].n_files);
    assert_whole(folder, cases[i].n_files);
    folder_remove(folder);
  }
}

static void
abandoned(void) {
  g_autofree char *folder = folder_new();
  oct_safetensors_writer *w = begin(folder, 60);
  fill(w);
  g_autofree char *name = g_build_filename(folder, "model-00001-of-00003.safetensors", NULL);
  g_assert_false(g_file_test(name, G_FILE_TEST_EXISTS)); /* not before finish() */
  oct_safetensors_writer_free(w);
  g_assert_cmpint(g_rmdir(folder), ==, 0); /* it is empty */
}

static void
refused(void) {
  g_autofree char *folder = folder_new(), *longest = g_strnfill(OCT_FILE_NAME_MAX, 'n');
  g_autofree char *longer = g_strnfill(OCT_FILE_NAME_MAX + 1, 'n');
  g_autoptr(oct_safetensors_writer) w = oct_safetensors_writer_new(folder, 1000);
  const guint64 shape[] = {2, 2}, huge[] = {1ull << 40, 1ull << 40};
  const struct {
    const char *name;
    const guint64 *shape;
    int code;
  } cases[] = {
      {"", shape, OCT_FILES_ERROR_LIMIT},      {longer, shape, OCT_FILES_ERROR_LIMIT},
      {"once", shape, OCT_FILES_ERROR_FORMAT}, {"__metadata__", shape, OCT_FILES_ERROR_FORMAT},
      {"\xff", shape, OCT_FILES_ERROR_FORMAT}, {"huge", huge, OCT_FILES_ERROR_LIMIT}};
  g_assert_true(oct_safetensors_writer_add(w, "once", OCT_STORED_F32, 2, shape, NULL));
  g_assert_true(oct_safetensors_writer_add(w, longest, OCT_STORED_F32, 2, shape, NULL));
  for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
    g_autoptr(GError) error = NULL;
    g_assert_false(
        oct_safetensors_writer_add(w, cases[i].name, OCT_STORED_F32, 2, cases[i].shape, &error));
    g_assert_error(error, OCT_FILES_ERROR, cases[i].code);
  }
  folder_remove(folder);
  g_autoptr(GError) error = NULL;
  g_assert_false(oct_safetensors_writer_begin(w, &error)); /* the folder is gone */
  g_assert_error(error, OCT_FILES_ERROR, OCT_FILES_ERROR_IO);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/writer/is-read-back-as-written", round_trip);
  g_test_add_func("/writer/leaves-nothing-before-it-is-done", abandoned);
  g_test_add_func("/writer/refuses-names-and-sizes-by-name", refused);
  return g_test_run();
}
