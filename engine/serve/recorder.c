#include "engine/serve/recorder.h"

#include "engine/base/assert.h"

#define BLOCK_STANDARD 16u

/* A generation that has ended: what its rows need. */
typedef struct oct_held {
  gint64 arrival_ns;
  guint32 max_tokens;
  gint32 priority;
  GArray *ids;                              /* guint32: the prompt */
  guint32 n_outputs;                        /* choices that have sampled anything */
  GArray *outputs[OCT_SERVICE_CHOICES_MAX]; /* guint32 */
} oct_held;

struct oct_recorder {
  void (*record)(void *user, const oct_service_row *row);
  void *user;
  guint32 block;
  oct_hash_key key;
  GPtrArray *held; /* oct_held of generation `oldest` + index; NULL: has not ended */
  guint64 oldest;
  gint64 begin_ns;                /* arrival of the first row; -1: there was none */
  GArray *hashes, *output_hashes; /* guint64 */
  GArray *text;                   /* guint32: prompt and output */
};

oct_recorder *
oct_recorder_new(const oct_service_config *config) {
  oct_recorder *r = g_new0(oct_recorder, 1);
  r->record = config->record;
  r->user = config->user;
  r->block = config->record_block != 0 ? config->record_block : BLOCK_STANDARD;
  r->key = (oct_hash_key){config->seed, 0x6f637465742f726f};
  r->held = g_ptr_array_new();
  r->begin_ns = -1;
  r->hashes = g_array_new(FALSE, FALSE, sizeof(guint64));
  r->output_hashes = g_array_new(FALSE, FALSE, sizeof(guint64));
  r->text = g_array_new(FALSE, FALSE, sizeof(guint32));
  return r;
}

static void
free_held(oct_held *held) {
  if (held == NULL)
    return;
  for (guint32 i = 0; i < held->n_outputs; i++)
    g_array_unref(held->outputs[i]);
  g_array_unref(held->ids);
  g_free(held);
}

/* Hashes of the blocks of ids[0, n), each over all before it; `partial`: of the last one too when
 * it is not full. Those before `from` are left out. */
static void
hash_blocks(const oct_recorder *r, const GArray *ids, guint32 from, gboolean partial,
            GArray *hashes) {
  const guint32 *at = (const guint32 *)(const void *)ids->data;
  oct_hash128 chain = {0, 0};
  g_array_set_size(hashes, 0);
  for (guint32 begin = 0, k = 0; begin < ids->len; begin += r->block, k++) {
    guint32 n = MIN(r->block, ids->len - begin);
    if (n < r->block && !partial)
      return;
    chain = oct_hash128_chain(r->key, chain, at + begin, n * sizeof *at);
    guint64 id = chain.lo >> 1;
    if (k >= from)
      g_array_append_val(hashes, id);
  }
}

static void
write_rows(oct_recorder *r, const oct_held *held) {
  if (held->n_outputs == 0)
    return;
  if (r->begin_ns < 0)
    r->begin_ns = held->arrival_ns;
  hash_blocks(r, held->ids, 0, TRUE, r->hashes);
  for (guint32 i = 0; i < held->n_outputs; i++) {
    const GArray *output = held->outputs[i];
    g_array_set_size(r->text, 0);
    g_array_append_vals(r->text, held->ids->data, held->ids->len);
    g_array_append_vals(r->text, output->data, output->len);
    hash_blocks(r, r->text, held->ids->len / r->block, FALSE, r->output_hashes);
    oct_service_row row = {.arrival_ns = MAX(held->arrival_ns - r->begin_ns, 0),
                           .input_tokens = held->ids->len,
                           .output_tokens = output->len,
                           .max_tokens = held->max_tokens,
                           .block_size = r->block,
                           .hash_ids = (const guint64 *)(const void *)r->hashes->data,
                           .n_hash_ids = r->hashes->len,
                           .output_hash_ids = (const guint64 *)(const void *)r->output_hashes->data,
                           .n_output_hash_ids = r->output_hashes->len,
                           .priority = held->priority};
    r->record(r->user, &row);
  }
}

static void
write_ready(oct_recorder *r) {
  guint n = 0;
  while (n < r->held->len && r->held->pdata[n] != NULL) {
    write_rows(r, r->held->pdata[n]);
    free_held(r->held->pdata[n]);
    n++;
  }
  if (n > 0)
    g_ptr_array_remove_range(r->held, 0, n);
  r->oldest += n;
}

void
oct_recorder_free(oct_recorder *r) {
  if (r == NULL)
    return;
  for (guint i = 0; i < r->held->len; i++)
    if (r->held->pdata[i] != NULL) {
      write_rows(r, r->held->pdata[i]);
      free_held(r->held->pdata[i]);
    }
  g_ptr_array_unref(r->held);
  g_array_unref(r->hashes);
  g_array_unref(r->output_hashes);
  g_array_unref(r->text);
  g_free(r);
}

void
oct_recorder_ended(oct_recorder *r, const oct_generation *g) {
  oct_held *held = g_new0(oct_held, 1);
  held->arrival_ns = g->received_ns;
  held->max_tokens = g->sampling.max_tokens;
  held->priority = g->sampling.priority;
  held->ids = g_array_ref(g->prompt);
  for (guint32 c = 0; c < g->n_choices; c++)
    if (g->choices[c].ids != NULL && g->choices[c].ids->len > 0)
      held->outputs[held->n_outputs++] = g_array_ref(g->choices[c].ids);
  if (g->row < r->oldest) { /* it was waited for too long */
    write_rows(r, held);
    free_held(held);
    return;
  }
  guint at = (guint)(g->row - r->oldest);
  if (at >= r->held->len)
    g_ptr_array_set_size(r->held, (gint)at + 1);
  oct_assert(r->held->pdata[at] == NULL);
  r->held->pdata[at] = held;
  write_ready(r);
  while (r->held->len > OCT_RECORDER_HELD_MAX) {
    g_ptr_array_remove_index(r->held, 0);
    r->oldest++;
    write_ready(r);
  }
}
