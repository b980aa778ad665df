#include "tests/engine/model/files/golden.h"

#include <math.h>

oct_checkpoint *
golden_open(const char *name) {
  g_autoptr(GError) error = NULL;
  g_autofree char *file = g_strconcat(name, ".safetensors", NULL);
  g_autofree char *path = g_test_build_filename(G_TEST_DIST, "golden", "dequant", file, NULL);
  oct_checkpoint *golden = oct_checkpoint_open(path, OCT_LOAD_AUTO, &error);
  g_assert_no_error(error);
  return golden;
}

const void *
golden_data(const oct_checkpoint *golden, const char *name, oct_stored_type type, guint64 n) {
  const oct_file_tensor *tensor = oct_checkpoint_find(golden, name);
  g_assert_nonnull(tensor);
  g_assert_cmpint(tensor->type, ==, type);
  if (n > 0)
    g_assert_cmpuint(oct_file_tensor_elements(tensor), ==, n);
  return tensor->data;
}

guint64
golden_dim(const oct_checkpoint *golden, const char *name, guint dim) {
  const oct_file_tensor *tensor = oct_checkpoint_find(golden, name);
  g_assert_nonnull(tensor);
  g_assert_cmpuint(dim, <, tensor->n_dims);
  return tensor->shape[dim];
}

void
assert_same(const float *found, const float *wanted, guint64 n) {
  for (guint64 i = 0; i < n; i++)
    if (!(found[i] == wanted[i] || (isnan(found[i]) && isnan(wanted[i]))))
      g_error("value %" G_GUINT64_FORMAT " is %.9g (%a), wanted is %.9g (%a)", i, (double)found[i],
              (double)found[i], (double)wanted[i], (double)wanted[i]);
}
