/* Weights from where they are mapped to the device: threads fill one of two pinned buffers while
 * the other is on its way. What the files store as the device wants it is copied row by row;
 * anything else is read as float32 first. */
#include <string.h>

#include "backends/cuda/model.h"

struct oct_cuda_upload {
  oct_cuda_rank *rank;
  guint8 *staging[2];
  cudaEvent_t sent[2];
  gboolean busy[2];
  guint next;
  guint8 *codes; /* on the device, before they are packed; NULL until then */
};

oct_cuda_upload *
oct_cuda_upload_new(oct_cuda_rank *rank) {
  oct_cuda_upload *u = g_new0(oct_cuda_upload, 1);
  u->rank = rank;
  for (guint i = 0; i < 2; i++) {
    u->staging[i] = oct_cuda_alloc_pinned(rank, OCT_CUDA_STAGING_BYTES, "staging of weights");
    u->sent[i] = oct_cuda_event_new(rank);
  }
  if (oct_cuda_has_failed(rank))
    g_clear_pointer(&u, oct_cuda_upload_free);
  return u;
}

void
oct_cuda_upload_free(oct_cuda_upload *u) {
  if (u == NULL)
    return;
  for (guint i = 0; i < 2; i++) {
    oct_cuda_release(u->rank, u->staging[i]);
    if (u->sent[i] != NULL)
      (void)cudaEventDestroy(u->sent[i]);
  }
  oct_cuda_release(u->rank, u->codes);
  g_free(u);
}

/* ---------------------------------------------------------------- rows */

#define THREADS_MAX 8
#define PART_BYTES  ((gsize)1 << 20) /* what is worth a thread */

void
oct_cuda_upload_fill(oct_cuda_fill fill, gpointer user, guint64 n, gsize bytes) {
  oct_cuda_share_out(fill, user, n, MIN(bytes / PART_BYTES, THREADS_MAX));
}

static gboolean
is_plain(const oct_weight *w, oct_cuda_type type) {
  return w->codes != NULL && w->layout == OCT_LAYOUT_ROWS && w->head_rows == 0 &&
         w->type == (type == OCT_CUDA_F32 ? OCT_STORED_F32 : OCT_STORED_BF16);
}

/* To nearest, ties to even; what is not a number stays one. */
static guint16
to_bf16(float x) {
  guint32 bits;
  memcpy(&bits, &x, sizeof bits);
  if ((bits & 0x7fffffff) > 0x7f800000)
    return (guint16)(bits >> 16 | 0x40);
  return (guint16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* Row `row` of the slice to `to`, dense; `floats` has room for a row of the weight. */
static void
fill_row(const oct_cuda_slice *s, guint64 row, float *floats, guint8 *to) {
  const oct_weight *w = s->weight;
  gsize element = oct_cuda_type_bytes(s->type);
  if (is_plain(w, s->type)) {
    const guint8 *from = w->codes + oct_weight_stored_row(w, s->row + row) * w->columns * element;
    memcpy(to, from + s->column * element, s->columns * element);
    return;
  }
  oct_weight_read(w, s->row + row, 1, floats);
  if (s->type == OCT_CUDA_F32) {
    memcpy(to, floats + s->column, s->columns * sizeof *floats);
    return;
  }
  guint16 *narrow = (guint16 *)(gpointer)to;
  for (guint64 c = 0; c < s->columns; c++)
    narrow[c] = to_bf16(floats[s->column + c]);
}

/* Rows of a slice, from `first` on, that go to a staging buffer. */
typedef struct band {
  const oct_cuda_slice *slice;
  guint64 first;
  guint8 *to;
} band;

static void
fill_band(gpointer user, guint64 first, guint64 n) {
  const band *b = user;
  const oct_cuda_slice *s = b->slice;
  gsize row_bytes = s->columns * oct_cuda_type_bytes(s->type);
  g_autofree float *floats = is_plain(s->weight, s->type) ? NULL : g_new(float, s->weight->columns);
  for (guint64 i = first; i < first + n; i++)
    fill_row(s, b->first + i, floats, b->to + i * row_bytes);
}

static gboolean
make_dummy(oct_cuda_upload *u, const oct_cuda_slice *s) {
  const oct_weight *w = s->weight;
  const oct_glue_dummy call = {.key = w->dummy,
                               .mean = w->mean,
                               .deviation = w->deviation,
                               .stored_bf16 = w->type == OCT_STORED_BF16,
                               .columns = w->columns,
                               .row = s->row,
                               .column = s->column,
                               .rows = s->rows,
                               .n = s->columns,
                               .type = s->type,
                               .out = s->out,
                               .pitch = s->pitch};
  return oct_cuda_note(u->rank, oct_glue_make_dummy(u->rank->copy_in, &call), "made-up weights");
}

guint8 *
oct_cuda_upload_staging(oct_cuda_upload *u) {
  u->next ^= 1;
  if (u->busy[u->next] && !oct_cuda_wait(u->rank, u->sent[u->next], "the upload of weights"))
    return NULL;
  return u->staging[u->next];
}

gboolean
oct_cuda_upload_send(oct_cuda_upload *u, void *to, gsize pitch, gsize bytes, gsize height) {
  u->busy[u->next] = TRUE;
  return oct_cuda_note(u->rank,
                       cudaMemcpy2DAsync(to, pitch, u->staging[u->next], bytes, bytes, height,
                                         cudaMemcpyHostToDevice, u->rank->copy_in),
                       "the upload of weights") &&
         oct_cuda_note(u->rank, cudaEventRecord(u->sent[u->next], u->rank->copy_in), "an event");
}

gboolean
oct_cuda_upload_pack(oct_cuda_upload *u, oct_cuda_packing *call, gsize bytes) {
  if (u->codes == NULL)
    u->codes = oct_cuda_alloc(u->rank, OCT_CUDA_STAGING_BYTES, "codes before they are packed");
  if (u->codes == NULL || !oct_cuda_upload_send(u, u->codes, bytes, bytes, 1))
    return FALSE;
  oct_cuda_queue queue = u->rank->queue;
  queue.stream = u->rank->copy_in;
  call->codes = u->codes;
  return oct_cuda_note(u->rank, oct_cuda_pack(&queue, call), "packed weights");
}

gboolean
oct_cuda_upload_make_codes(oct_cuda_upload *u, const oct_glue_dummy_codes *call) {
  return oct_cuda_note(u->rank, oct_glue_make_codes(u->rank->copy_in, call), "made-up weights");
}

gboolean
oct_cuda_upload_bytes(oct_cuda_upload *u, void *to, const void *from, gsize bytes) {
  for (gsize at = 0; at < bytes; at += OCT_CUDA_STAGING_BYTES) {
    gsize n = MIN(bytes - at, OCT_CUDA_STAGING_BYTES);
    guint8 *staging = oct_cuda_upload_staging(u);
    if (staging == NULL)
      return FALSE;
    memcpy(staging, (const guint8 *)from + at, n);
    if (!oct_cuda_upload_send(u, (guint8 *)to + at, n, n, 1))
      return FALSE;
  }
  return TRUE;
}

/* A run of rows that fits a staging buffer. */
static gboolean
send_rows(oct_cuda_upload *u, const oct_cuda_slice *s, guint64 first, guint64 n) {
  gsize element = oct_cuda_type_bytes(s->type), row_bytes = s->columns * element;
  guint8 *staging = oct_cuda_upload_staging(u);
  if (staging == NULL)
    return FALSE;
  band rows = {s, first, staging};
  oct_cuda_upload_fill(fill_band, &rows, n, n * row_bytes);
  return oct_cuda_upload_send(u, (guint8 *)s->out + first * s->pitch * element, s->pitch * element,
                              row_bytes, n);
}

gboolean
oct_cuda_upload_slice(oct_cuda_upload *u, const oct_cuda_slice *s) {
  const oct_weight *w = s->weight;
  if (w->dummy != 0 && w->codes == NULL && w->layout == OCT_LAYOUT_ROWS &&
      (w->type == OCT_STORED_F32 || w->type == OCT_STORED_BF16))
    return make_dummy(u, s);
  gsize row_bytes = s->columns * oct_cuda_type_bytes(s->type);
  if (row_bytes == 0 || row_bytes > OCT_CUDA_STAGING_BYTES) {
    if (row_bytes > 0)
      oct_cuda_fail(u->rank, "a row of weights is larger than the staging buffer");
    return row_bytes == 0;
  }
  guint64 each = OCT_CUDA_STAGING_BYTES / row_bytes;
  for (guint64 first = 0; first < s->rows; first += each)
    if (!send_rows(u, s, first, MIN(each, s->rows - first)))
      return FALSE;
  return TRUE;
}

void
oct_cuda_upload_refuse(oct_cuda_upload *u, const char *message) {
  oct_cuda_fail(u->rank, message);
}

gboolean
oct_cuda_upload_finish(oct_cuda_upload *u) {
  u->busy[0] = u->busy[1] = FALSE;
  return oct_cuda_drain(u->rank, u->rank->copy_in, "the upload of weights");
}
