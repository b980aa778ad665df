/* Requests on their way in and out: from the feed to a replica, from its record to the metrics. */
#include <string.h>

#include "engine/base/assert.h"
#include "sim/replay/drive-internal.h"
#include "traces/blocks.h"

/* ---------------------------------------------------------------- out */

static void
count_time(oct_driver *d, oct_time now) {
  d->integral += (unsigned __int128)(now - d->integral_at) * d->n_live;
  d->integral_at = now;
}

static void
finish(oct_driver *d, oct_live *live, const oct_outcome *outcome,
       const oct_request_record *record) {
  if (live->in_window) {
    oct_metrics_add(d->metrics, outcome);
    if (d->config->outcome != NULL)
      d->config->outcome(d->config->user, live->index, outcome);
    if (d->config->requests != NULL)
      oct_driver_write_request(d, live, outcome, record);
  }
  g_free(live);
}

static oct_fate
fate_of(oct_end_reason reason) {
  switch (reason) {
  case OCT_END_STOP:
  case OCT_END_LENGTH:
    return OCT_FATE_ANSWERED;
  case OCT_END_CANCELLED: /* nobody cancels before the run is over */
  case OCT_END_TIMED_OUT:
  case OCT_END_FAILED:
  case OCT_END_COUNT:
    break;
  }
  return OCT_FATE_FAILED;
}

static void
ended(void *user, const oct_request_record *record) {
  oct_driver *d = ((oct_replica *)user)->driver;
  oct_live *live = record->user;
  if (d->closing) {
    g_free(live);
    return;
  }
  gint64 out = d->config->request_out_per_token_ns;
  oct_outcome outcome = {.fate = fate_of(record->reason),
                         .index = live->index,
                         .arrival_ns = live->due_ns,
                         .input_tokens = record->prompt_tokens,
                         .output_tokens = record->output_tokens,
                         .cut = record->output_tokens < live->true_tokens};
  for (int i = 0; i < OCT_LATENCY_COUNT; i++)
    outcome.value_ns[i] = -1;
  if (record->first_token_ns >= 0) {
    gint64 ttft = record->first_token_ns + out - live->due_ns;
    gint64 e2e = record->last_token_ns + out - live->due_ns;
    outcome.value_ns[OCT_LATENCY_TTFT] = ttft;
    outcome.value_ns[OCT_LATENCY_E2E] = e2e;
    if (record->output_tokens >= 2) {
      outcome.value_ns[OCT_LATENCY_TPOT] = (e2e - ttft) / (record->output_tokens - 1);
      outcome.value_ns[OCT_LATENCY_ITL] = record->longest_gap_ns;
    }
  }
  if (record->admitted_ns >= 0)
    outcome.value_ns[OCT_LATENCY_QUEUE] = record->admitted_ns - record->arrival_ns;
  count_time(d, record->ended_ns);
  d->residence += (unsigned __int128)(record->ended_ns - record->arrival_ns);
  d->n_live--;
  d->n_live_window -= live->in_window;
  d->ended++;
  oct_feed_ended(d->feed, live->entry, record->ended_ns + out);
  if (d->spans != NULL)
    oct_spans_request(d->spans, live->replica->number, live->index, live->due_ns, record);
  finish(d, live, &outcome, record);
}

void
oct_driver_listen(oct_driver *d, oct_replica *replica, oct_listener *listener) {
  replica->driver = d;
  /* No token callback: it would rule out fast-forward. */
  *listener = (oct_listener){.user = replica, .ended = ended};
}

/* ---------------------------------------------------------------- in */

static oct_replica *
least_loaded(oct_driver *d) {
  oct_replica *best = &d->replicas[0];
  guint64 least = G_MAXUINT64;
  for (guint32 i = 0; i < d->n_replicas && d->n_replicas > 1; i++) {
    guint64 load = oct_engine_load_tokens(d->replicas[i].engine);
    if (load < least) {
      least = load;
      best = &d->replicas[i];
    }
  }
  return best;
}

static guint32
max_tokens_of(oct_driver *d, const oct_trace_request *row) {
  const oct_drive_config *c = d->config;
  if (c->exact_lengths)
    return row->output_tokens;
  if (row->max_tokens > 0)
    return row->max_tokens;
  d->result->unsized++;
  if (c->assume_max_tokens != NULL)
    return oct_dist_draw_tokens(c->assume_max_tokens, &d->lengths, row->output_tokens);
  guint32 context = c->engine.max_model_len;
  return context > row->input_tokens ? context - row->input_tokens : 1;
}

/* The prefix content as page ids: those that the trace names. */
static void
fill_pages(oct_driver *d, const oct_trace_request *row, oct_request_params *params) {
  if (row->block_size == 0 || !d->config->engine.prefix_caching)
    return;
  guint32 page = d->result->page_tokens;
  guint64 n = oct_trace_known_pages(row, page);
  g_array_set_size(d->page_ids, (guint)n);
  oct_trace_page_ids(row, 0, n, page, (guint64 *)(void *)d->page_ids->data);
  params->page_ids = (const guint64 *)(const void *)d->page_ids->data;
  params->n_page_ids = (guint32)n;
}

static gboolean
refuse(oct_driver *d, oct_live *live, const GError *why) {
  gboolean busy = g_error_matches(why, OCT_ENGINE_ERROR, OCT_ENGINE_ERROR_BUSY);
  if (g_error_matches(why, OCT_ENGINE_ERROR, OCT_ENGINE_ERROR_DOWN)) {
    g_free(live);
    return oct_driver_fail(d);
  }
  oct_outcome outcome = {.fate = busy ? OCT_FATE_BUSY : OCT_FATE_REFUSED,
                         .index = live->index,
                         .arrival_ns = live->due_ns,
                         .input_tokens = live->input_tokens};
  for (int i = 0; i < OCT_LATENCY_COUNT; i++)
    outcome.value_ns[i] = -1;
  d->refused++;
  if (busy) {
    d->busy++;
    d->busy_tokens += live->input_tokens;
  } else if (d->result->first_refusal[0] == '\0') {
    g_strlcpy(d->result->first_refusal, why->message, sizeof d->result->first_refusal);
  }
  oct_feed_ended(d->feed, live->entry, d->now);
  finish(d, live, &outcome, NULL);
  return TRUE;
}

static gboolean
send(oct_driver *d, const oct_feed_request *request) {
  const oct_trace_request *row = request->row;
  const oct_drive_config *c = d->config;
  oct_replica *replica = least_loaded(d);
  oct_live *live = g_new(oct_live, 1);
  *live = (oct_live){.replica = replica,
                     .entry = request->entry,
                     .index = row->index,
                     .due_ns = request->due_ns,
                     .input_tokens = row->input_tokens,
                     .true_tokens = row->output_tokens,
                     .priority = row->priority,
                     .class_name = row->class_name,
                     .in_window = c->duration_ns == 0 || request->due_ns < c->duration_ns};
  oct_request_params params;
  oct_request_params_default(&params);
  params.user = live;
  params.arrival_ns = d->now;
  params.priority = row->priority;
  params.prompt_tokens = row->input_tokens;
  params.salt = request->salt;
  params.max_tokens = max_tokens_of(d, row);
  params.ignore_eos = c->exact_lengths;
  params.oracle_tokens = c->exact_lengths ? 0 : row->output_tokens;
  fill_pages(d, row, &params);
  d->sent++;
  d->sent_tokens += row->input_tokens;
  d->result->load_end_ns = request->due_ns;
  g_autoptr(GError) why = NULL;
  oct_request_id id;
  count_time(d, d->now);
  if (!oct_engine_submit(replica->engine, &params, &id, &why))
    return refuse(d, live, why);
  if (d->spans != NULL)
    oct_spans_arrival(d->spans, replica->number, row->index, request->due_ns, row->input_tokens);
  d->n_live++;
  d->n_live_window += live->in_window;
  replica->dirty = TRUE;
  return TRUE;
}

gboolean
oct_driver_take_due(oct_driver *d, gboolean may_send) {
  for (;;) {
    oct_time due;
    if (!oct_feed_due(d->feed, d->now, &due, &d->error))
      return FALSE;
    d->next_input = due == OCT_TIME_NEVER ? due : due + d->config->request_in_ns;
    if (d->next_input > d->now || !may_send)
      break;
    oct_feed_request request;
    oct_feed_take(d->feed, &request);
    if (!send(d, &request))
      return FALSE;
  }
  /* Without a duration the window is over when the last request has been sent. */
  if (d->config->duration_ns == 0 && !d->window_ended && oct_feed_is_exhausted(d->feed)) {
    oct_metrics_end_window(d->metrics, d->now);
    d->window_ended = TRUE;
    if (d->spans != NULL)
      oct_spans_end_picture(d->spans, d->now);
  }
  return TRUE;
}
