#include "engine/serve/outbox.h"

struct oct_outbox {
  oct_ring *ring;
  gsize record_bytes;
  GArray *waiting; /* producer's; those before `taken` have gone into the ring */
  guint taken;
};

oct_outbox *
oct_outbox_new(guint32 n_records, gsize record_bytes) {
  oct_outbox *box = g_new0(oct_outbox, 1);
  box->ring = oct_ring_new(n_records, record_bytes);
  box->record_bytes = record_bytes;
  box->waiting = g_array_new(FALSE, FALSE, (guint)record_bytes);
  return box;
}

void
oct_outbox_free(oct_outbox *box) {
  if (box == NULL)
    return;
  oct_ring_free(box->ring);
  g_array_unref(box->waiting);
  g_free(box);
}

gboolean
oct_outbox_flush(oct_outbox *box) {
  while (box->taken < box->waiting->len &&
         oct_ring_push(box->ring, box->waiting->data + box->taken * box->record_bytes))
    box->taken++;
  if (box->taken < box->waiting->len)
    return FALSE;
  g_array_set_size(box->waiting, 0);
  box->taken = 0;
  return TRUE;
}

void
oct_outbox_push(oct_outbox *box, const void *record) {
  if (!oct_outbox_flush(box) || !oct_ring_push(box->ring, record))
    g_array_append_vals(box->waiting, record, 1);
}

gboolean
oct_outbox_pop(oct_outbox *box, void *record) {
  return oct_ring_pop(box->ring, record);
}

guint32
oct_outbox_count(const oct_outbox *box) {
  return oct_ring_count(box->ring);
}
