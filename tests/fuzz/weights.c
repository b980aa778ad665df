#include "tests/fuzz/weights.h"

#include <string.h>

#include "engine/base/assert.h"
#include "engine/model/files/dequant.h"
#include "engine/model/files/find.h"

static void
read_items(const oct_meta *meta) {
  for (guint64 i = 0; i < meta->array.count; i++)
    switch (meta->array.element) {
    case OCT_META_TEXT: {
      oct_text text = oct_meta_item_text(meta, i);
      if (text.size > 0)
        oct_assert(text.bytes[0] + text.bytes[text.size - 1] < 1000);
      break;
    }
    case OCT_META_BOOL:
      (void)oct_meta_item_bool(meta, i);
      break;
    case OCT_META_REAL:
      (void)oct_meta_item_real(meta, i);
      break;
    case OCT_META_UINT:
    case OCT_META_INT:
      (void)oct_meta_item_int(meta, i);
      break;
    case OCT_META_ARRAY:
      oct_assert_failed(__FILE__, __LINE__, "no arrays of arrays");
    }
}

void
fuzz_checkpoint(const oct_checkpoint *checkpoint, const void *bytes, size_t size) {
  const guint8 *start = bytes;
  guint64 sum = 0, n_dims = 0;
  for (guint i = 0; i < oct_checkpoint_n_tensors(checkpoint); i++) {
    const oct_file_tensor *t = oct_checkpoint_tensor(checkpoint, i);
    guint64 wanted = 0, n = oct_file_tensor_elements(t);
    float values[256];
    oct_assert(oct_stored_bytes(t->type, n, &wanted) && t->bytes == wanted);
    oct_assert(t->data >= start && t->data <= start + size);
    oct_assert(t->bytes <= (guint64)(start + size - t->data));
    oct_assert(oct_checkpoint_find(checkpoint, t->name) == t);
    if (oct_stored_get(t->type)->is_float && n >= G_N_ELEMENTS(values))
      oct_dequant_row(t->type, t->data, G_N_ELEMENTS(values), values);
    for (guint64 k = 0; k < t->bytes; k++)
      sum += t->data[k];
    n_dims += t->n_dims;
  }
  oct_assert(sum <= (guint64)size * 255 && n_dims <= size);
  for (guint i = 0; i < oct_checkpoint_n_meta(checkpoint); i++) {
    const oct_meta *meta = oct_checkpoint_meta_at(checkpoint, i);
    oct_assert(oct_checkpoint_meta(checkpoint, meta->key) == meta);
    if (meta->kind == OCT_META_ARRAY)
      read_items(meta);
    else if (meta->kind == OCT_META_TEXT && meta->text.size > 0)
      oct_assert(memchr(meta->text.bytes, meta->text.bytes[0], meta->text.size) != NULL);
  }
}

static void
read_weight(const oct_weight *w) {
  const guint64 rows_max = 64;
  g_autofree float *values = g_new(float, MIN(w->rows, rows_max) * w->columns);
  for (guint64 row = 0; row < w->rows; row += rows_max)
    oct_weight_read(w, row, MIN(rows_max, w->rows - row), values);
}

void
fuzz_weights(const oct_model_spec *spec, const oct_checkpoint *checkpoint) {
  g_autoptr(GError) error = NULL;
  g_autoptr(oct_map_report) report = oct_map_report_new();
  g_autoptr(oct_weight_map) whole = oct_weight_map_new(spec, checkpoint, report, &error);
  oct_assert((whole == NULL) == (error != NULL));
  guint problems = report->missing.n + report->wrong.n + report->unexpected.n;
  oct_assert(whole == NULL || problems == 0);
  if (problems == 0 && whole == NULL)
    return; /* too many weights to look for */
  for (guint i = 0; whole != NULL && i < oct_weight_map_n(whole); i++)
    read_weight(oct_weight_map_at(whole, i));
  /* An incomplete one: weight by weight, with the model's list from a dummy. */
  g_autoptr(oct_weight_map) list = oct_weight_map_new_dummy(spec, 0, NULL);
  g_autofree guint8 *used = g_malloc0(oct_checkpoint_n_tensors(checkpoint) + 1);
  oct_finder finder = {
      .spec = spec, .checkpoint = checkpoint, .prefix = "", .used = used, .report = report};
  for (guint i = 0; whole == NULL && list != NULL && i < oct_weight_map_n(list); i++) {
    const oct_weight *wanted = oct_weight_map_at(list, i);
    oct_weight w = {.kind = wanted->kind,
                    .layer = wanted->layer,
                    .expert = wanted->expert,
                    .rows = wanted->rows,
                    .columns = wanted->columns};
    if (oct_finder_find(&finder, &w))
      read_weight(&w);
  }
}
