/* Requests and their sequences: memory, content, and the one table of legal state changes.
 *
 *            +----------------------- restart (fault) ----------------------+
 *            v                                                              |
 *   new -> WAITING ------ admitted, all on the device -----------------> RUNNING <-+
 *            ^   \                                                        |  |     |
 *            |    +-- admitted, host pages --> RELOADING -- copied -------+--|-----+
 *            |                                     | copy failed             | preempted
 *            |                                     v                         v
 *            +<------------------------------- (restart)               PREEMPTING
 *            |                                                               | no step names it
 *            +<------------------ recompute ---------------------------------+
 *            +<------------------ copied ------------- OFFLOADING <----------+
 *
 *   every state -> ENDED (finished, cancelled, timed out, failed), from where nothing comes back.
 * An ENDED sequence that a step or copy in flight still names is a zombie; its memory drains by
 * epoch.
 */
#include <string.h>

#include "engine/sched/internal.h"

GQuark
oct_engine_error_quark(void) {
  return g_quark_from_static_string("oct-engine-error-quark");
}

const char *
oct_end_reason_name(oct_end_reason reason) {
  static const char *const names[OCT_END_COUNT] = {"stop", "length", "cancelled", "timed_out",
                                                   "failed"};
  oct_assert(reason < OCT_END_COUNT);
  return names[reason];
}

const char *
oct_seq_state_name(oct_seq_state state) {
  static const char *const names[] = {"waiting",    "reloading",  "running",
                                      "preempting", "offloading", "ended"};
  oct_assert(state <= OCT_SEQ_ENDED);
  return names[state];
}

void
oct_seq_set_state(oct_seq *seq, oct_seq_state state) {
  static const guint8 legal[] = {
      [OCT_SEQ_WAITING] = 1 << OCT_SEQ_RELOADING | 1 << OCT_SEQ_RUNNING | 1 << OCT_SEQ_ENDED,
      [OCT_SEQ_RELOADING] = 1 << OCT_SEQ_RUNNING | 1 << OCT_SEQ_WAITING | 1 << OCT_SEQ_ENDED,
      [OCT_SEQ_RUNNING] = 1 << OCT_SEQ_PREEMPTING | 1 << OCT_SEQ_WAITING | 1 << OCT_SEQ_ENDED,
      [OCT_SEQ_PREEMPTING] = 1 << OCT_SEQ_OFFLOADING | 1 << OCT_SEQ_WAITING | 1 << OCT_SEQ_ENDED,
      [OCT_SEQ_OFFLOADING] = 1 << OCT_SEQ_WAITING | 1 << OCT_SEQ_ENDED,
      [OCT_SEQ_ENDED] = 0,
  };
  oct_assert(legal[seq->state] & 1 << state);
  seq->state = state;
}

oct_seq *
oct_seq_new(oct_engine *engine, oct_request *request, guint32 choice) {
  oct_seq *seq = g_new0(oct_seq, 1);
  seq->request = request;
  seq->choice = choice;
  seq->slot = seq->draft_place = OCT_NO_INDEX;
  seq->run_index = seq->heap_index = OCT_NO_INDEX;
  seq->target = request->n > 1 && choice == 0 ? request->prompt - 1 : request->prompt;
  seq->max_out = request->pooling != OCT_POOLING_NONE
                     ? 0
                     : MIN(request->max_tokens, engine->config.max_model_len - request->prompt);
  seq->weight = choice == 0 ? request->n : 1;
  seq->tag = OCT_TAG_EMPTY;
  seq->first_token_ns = seq->last_token_ns = -1;
  for (guint32 g = 0; g < OCT_GROUPS; g++)
    seq->restore[g] = OCT_POOL_NONE;
  request->seqs[choice] = seq;
  /* The prompt and a few hundred output tokens; longer outputs grow it. */
  guint64 tokens = MIN((guint64)request->prompt + seq->max_out, (guint64)request->prompt + 512);
  oct_seq_reserve_pages(engine, seq, (guint32)(tokens / engine->page_tokens + 2));
  return seq;
}

void
oct_seq_reserve_pages(oct_engine *engine, oct_seq *seq, guint32 n_pages) {
  if (n_pages <= seq->page_capacity)
    return;
  guint32 capacity = MAX(n_pages, seq->page_capacity * 2);
  for (guint32 g = 0; g < engine->n_groups; g++) {
    guint32 n = engine->is_state[g] ? 1 : capacity;
    seq->table[g] = g_renew(guint32, seq->table[g], n);
    if (engine->config.instance.memory.groups[g].n_host > 0)
      seq->host[g] = g_renew(guint32, seq->host[g], n);
  }
  seq->hashes = g_renew(oct_hash128, seq->hashes, capacity);
  seq->page_capacity = capacity;
}

static void
seq_free(oct_seq *seq) {
  if (seq == NULL)
    return;
  for (guint32 g = 0; g < OCT_GROUPS; g++) {
    g_free(seq->table[g]);
    g_free(seq->host[g]);
  }
  g_free(seq->hashes);
  g_free(seq->ids);
  oct_ngram_free(seq->ngram);
  g_free(seq);
}

/* What min_tokens keeps from being sampled: as vLLM, every end of sequence too. */
static void
note_stops(const oct_engine *engine, oct_request *r) {
  if (r->min_tokens == 0)
    return;
  r->n_stops = engine->spec->n_eos_tokens + r->n_stop_tokens;
  r->stops = g_new(guint32, MAX(r->n_stops, 1));
  for (guint32 i = 0; i < engine->spec->n_eos_tokens; i++)
    r->stops[i] = engine->spec->eos_tokens[i];
  for (guint32 i = 0; i < r->n_stop_tokens; i++)
    r->stops[engine->spec->n_eos_tokens + i] = r->stop_tokens[i];
}

oct_request *
oct_request_new(oct_engine *engine, const oct_request_params *params) {
  oct_request *r = g_new0(oct_request, 1);
  r->id = engine->next_id++;
  r->order = r->id;
  r->user = params->user;
  r->n = params->n;
  r->forked = params->n == 1;
  r->priority = params->priority;
  r->tenant = params->tenant;
  r->salt = params->salt;
  r->prompt = params->prompt_tokens;
  r->max_tokens = params->max_tokens;
  r->min_tokens = params->min_tokens;
  r->ignore_eos = params->ignore_eos;
  r->n_stop_tokens = params->n_stop_tokens;
  memcpy(r->stop_tokens, params->stop_tokens, sizeof r->stop_tokens);
  /* Those past the context are of no use. */
  r->n_page_ids = params->page_ids != NULL
                      ? MIN(params->n_page_ids, engine->config.max_model_len / engine->page_tokens)
                      : 0;
  r->page_ids = g_memdup2(params->page_ids, r->n_page_ids * sizeof(guint64));
  r->arrival_ns = params->arrival_ns;
  r->deadline_ns = params->deadline_ns;
  r->admitted_ns = -1;
  r->reason = OCT_END_STOP;
  r->export_cache = params->export_cache;
  r->import_engine = params->import_engine;
  r->import_id = params->import_id;
  r->oracle_tokens = params->oracle_tokens;
  r->adapter = params->adapter;
  r->n_logprobs = params->n_logprobs;
  r->n_prompt_logprobs = params->n_prompt_logprobs;
  r->n_scored = params->n_prompt_logprobs > 0 ? 1 : r->prompt;
  r->guided = params->guided;
  r->pooling = params->pooling;
  r->n_biases = params->n_logit_bias;
  r->biases = g_memdup2(params->logit_bias, params->n_logit_bias * sizeof *params->logit_bias);
  note_stops(engine, r);
  r->top_k = params->top_k;
  r->temperature = params->temperature;
  r->top_p = params->top_p;
  r->min_p = params->min_p;
  r->repetition_penalty = params->repetition_penalty;
  r->presence_penalty = params->presence_penalty;
  r->frequency_penalty = params->frequency_penalty;

  oct_seq *trunk = oct_seq_new(engine, r, 0);
  trunk->seed = params->seed != 0 ? params->seed : oct_mix64(engine->config.seed ^ r->id);
  trunk->key = oct_mix64(trunk->seed ^ 0x746f6b656e73u);
  if (engine->config.carry_ids)
    oct_seq_append_ids(trunk, params->prompt_ids, params->prompt_tokens);
  r->prev = engine->last;
  if (engine->last != NULL)
    engine->last->next = r;
  else
    engine->first = r;
  engine->last = r;
  g_hash_table_insert(engine->by_id, &r->id, r);
  return r;
}

void
oct_request_free(oct_request *r) {
  for (guint32 c = 0; c < r->n; c++)
    seq_free(r->seqs[c]);
  g_free(r->page_ids);
  g_free(r->biases);
  g_free(r->stops);
  g_free(r);
}

void
oct_seq_append_ids(oct_seq *seq, const guint32 *ids, guint32 n) {
  guint32 have = seq->request->prompt + seq->n_out;
  /* The prompt itself is appended while n_out is 0 and nothing is stored. */
  if (seq->ids == NULL)
    have = 0;
  if (have + n > seq->ids_capacity) {
    seq->ids_capacity = MAX(have + n, seq->ids_capacity * 2);
    seq->ids = g_renew(guint32, seq->ids, seq->ids_capacity);
  }
  memcpy(seq->ids + have, ids, n * sizeof(guint32));
}

/* What page `page` holds, as bytes to hash: its ids, or the value that stands for them. */
static gboolean
page_content(oct_engine *engine, const oct_seq *seq, guint32 page, guint64 *value,
             const void **data, gsize *size) {
  const oct_request *r = seq->request;
  guint64 end = ((guint64)page + 1) * engine->page_tokens;
  if (end > (guint64)r->prompt + seq->n_out)
    return FALSE;
  if (engine->config.carry_ids) {
    *data = seq->ids + (gsize)page * engine->page_tokens;
    *size = engine->page_tokens * sizeof(guint32);
    return TRUE;
  }
  *value = page < r->n_page_ids ? r->page_ids[page]
                                : oct_mix64(oct_mix64(r->id ^ engine->config.seed) +
                                            (end > r->prompt ? seq->key : 0) + page);
  *data = value;
  *size = sizeof *value;
  return TRUE;
}

gboolean
oct_seq_hash(oct_engine *engine, oct_seq *seq, guint32 page, oct_hash128 *hash) {
  while (seq->n_hashes <= page) {
    guint64 value;
    const void *data;
    gsize size;
    if (!page_content(engine, seq, seq->n_hashes, &value, &data, &size))
      return FALSE;
    oct_hash128 previous = {seq->request->salt, seq->request->adapter};
    if (seq->n_hashes > 0)
      previous = seq->hashes[seq->n_hashes - 1];
    oct_seq_reserve_pages(engine, seq, seq->n_hashes + 1);
    seq->hashes[seq->n_hashes] = oct_hash128_chain(engine->hash_key, previous, data, size);
    seq->n_hashes++;
  }
  *hash = seq->hashes[page];
  return TRUE;
}

guint64
oct_seq_tag(oct_engine *engine, oct_seq *seq, guint32 position) {
  if (!engine->config.carry_ids || position > seq->request->prompt + seq->n_out)
    return 0;
  if (position < seq->tag_position) {
    seq->tag = OCT_TAG_EMPTY;
    seq->tag_position = 0;
  }
  for (; seq->tag_position < position; seq->tag_position++)
    seq->tag = oct_tag_next(seq->tag, seq->ids[seq->tag_position]);
  return seq->tag;
}
