#include "engine/model/files/cache.h"

#include <math.h>

#include "engine/model/files/map.h"

/* Names differ by who quantised. `which`: k or v. */
static const oct_file_tensor *
find_scale(const oct_checkpoint *checkpoint, guint32 layer, char which) {
  static const char *const prefixes[] = {"", "language_model."};
  const char *const modules[] = {"", "attn.", which == 'k' ? "k_proj." : "v_proj."};
  for (guint p = 0; p < G_N_ELEMENTS(prefixes); p++)
    for (guint m = 0; m < G_N_ELEMENTS(modules); m++) {
      g_autofree char *name = g_strdup_printf("%smodel.layers.%u.self_attn.%s%c_scale", prefixes[p],
                                              layer, modules[m], which);
      const oct_file_tensor *t = oct_checkpoint_find(checkpoint, name);
      if (t != NULL)
        return t;
    }
  return NULL;
}

static gboolean
read_scale(const oct_checkpoint *checkpoint, const oct_file_tensor *t, guint32 n_heads, float *out,
           GError **error) {
  guint64 n = oct_file_tensor_elements(t);
  const char *file = oct_checkpoint_file(checkpoint, t->file);
  if (n != 1 && n != n_heads) {
    g_set_error(error, OCT_FILES_ERROR, OCT_FILES_ERROR_TENSOR,
                "%s: %s: %" G_GUINT64_FORMAT " scales, wanted is one or one for each of %u heads",
                file, t->name, n, n_heads);
    return FALSE;
  }
  if (t->type != OCT_STORED_F32 && t->type != OCT_STORED_BF16 && t->type != OCT_STORED_F16) {
    g_set_error(error, OCT_FILES_ERROR, OCT_FILES_ERROR_TENSOR,
                "%s: %s: scales of type %s, wanted is F32, F16 or BF16", file, t->name,
                oct_stored_get(t->type)->name);
    return FALSE;
  }
  const oct_weight weight = {.layout = OCT_LAYOUT_ROWS,
                             .rows = n,
                             .columns = 1,
                             .type = t->type,
                             .codes = t->data,
                             .row_step = 1};
  oct_weight_read(&weight, 0, n, out);
  for (guint32 h = 0; h < n_heads; h++) {
    out[h] = out[n == 1 ? 0 : h];
    if (!(out[h] > 0) || !isfinite(out[h])) {
      g_set_error(error, OCT_FILES_ERROR, OCT_FILES_ERROR_TENSOR,
                  "%s: %s: a scale of %g, wanted is a positive number", file, t->name,
                  (double)out[h]);
      return FALSE;
    }
  }
  return TRUE;
}

gboolean
oct_cache_scales(const oct_checkpoint *checkpoint, guint32 layer, guint32 n_heads, float *k,
                 float *v, gboolean *found, GError **error) {
  float *const out[] = {k, v};
  *found = FALSE;
  for (guint i = 0; i < 2; i++) {
    const oct_file_tensor *t = find_scale(checkpoint, layer, i == 0 ? 'k' : 'v');
    for (guint32 h = 0; h < n_heads; h++)
      out[i][h] = 1;
    if (t == NULL)
      continue;
    *found = TRUE;
    if (!read_scale(checkpoint, t, n_heads, out[i], error))
      return FALSE;
  }
  return TRUE;
}
