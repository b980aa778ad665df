/* Requests on their way in and out: from the feed to a replica, from its record to the metrics.
 *
 * A request is one for its client and may be several for engines: what a prefill replica began a
 * decode replica goes on with; what was in an engine that is lost goes on in another, with the
 * tokens that it had; what its client gave up is sent again from the start. */
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

void
oct_live_free(oct_driver *d, oct_live *live) {
  if (d->keeps)
    g_free(live->page_ids);
  g_free(live);
}

static void
finish(oct_driver *d, oct_live *live, const oct_outcome *outcome,
       const oct_request_record *record) {
  oct_feed_ended(d->feed, live->entry,
                 record != NULL ? record->ended_ns + d->config->request_out_per_token_ns : d->now);
  if (live->in_window) {
    d->n_live_window--;
    oct_metrics_add(d->metrics, outcome);
    if (d->config->keep_records || *live->class_name != '\0') {
      if (d->result->records == NULL)
        d->result->records = oct_records_new();
      oct_records_add(d->result->records, outcome, live->class_name);
    }
    if (d->config->outcome != NULL)
      d->config->outcome(d->config->user, live->index, outcome);
    if (d->config->requests != NULL)
      oct_driver_write_request(d, live, outcome, record);
  }
  oct_live_free(d, live);
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

static int
compare_again(gconstpointer a, gconstpointer b, gpointer unused) {
  const oct_live *x = a, *y = b;
  (void)unused;
  if (x->again_ns != y->again_ns)
    return x->again_ns < y->again_ns ? -1 : 1;
  return x->order < y->order ? -1 : x->order > y->order;
}

void
oct_driver_again(oct_driver *d, oct_live *live, oct_time at) {
  live->again_ns = at;
  live->order = d->next_order++;
  d->again_tokens += oct_live_tokens(live);
  g_sequence_insert_sorted(d->again, live, compare_again, NULL);
}

/* The first of those that are sent again, NULL when there is none. */
static oct_live *
first_again(const oct_driver *d) {
  GSequenceIter *first = g_sequence_get_begin_iter(d->again);
  return g_sequence_iter_is_end(first) ? NULL : g_sequence_get(first);
}

/* The client sends the same from the start, if it has not done so often enough. */
static gboolean
try_again(oct_driver *d, oct_live *live, oct_time now) {
  const oct_client *client = &d->config->client;
  if (live->attempts >= client->retries)
    return FALSE;
  oct_time pause = client->backoff_ns << MIN(live->attempts, 30);
  live->attempts++;
  live->prefill = d->config->n_prefill > 0;
  live->import_from = NULL;
  live->output = live->cached = live->recomputed = live->preemptions = 0;
  live->first_ns = live->last_ns = live->queue_ns = -1;
  live->gap_ns = 0;
  live->sent_ns = now + pause;
  d->result->incidents.retries++;
  oct_driver_again(d, live, live->sent_ns);
  return TRUE;
}

/* What this engine has brought, added to what others had. */
static void
add_part(oct_live *live, const oct_request_record *record) {
  if (record->first_token_ns >= 0) {
    if (live->last_ns >= 0)
      live->gap_ns = MAX(live->gap_ns, record->first_token_ns - live->last_ns);
    if (live->first_ns < 0)
      live->first_ns = record->first_token_ns;
    live->last_ns = record->last_token_ns;
  }
  if (record->admitted_ns >= 0 && live->queue_ns < 0)
    live->queue_ns = record->admitted_ns - record->arrival_ns;
  live->gap_ns = MAX(live->gap_ns, record->longest_gap_ns);
  live->output += record->output_tokens;
  live->cached += record->cached_tokens;
  live->recomputed += record->recomputed_tokens;
  live->preemptions += record->preemptions;
}

/* The cache that a decode replica has taken, or will not take any more, is let go. */
static void
drop_import(oct_live *live) {
  if (live->import_from != NULL && live->import_from->n_exports > 0)
    live->import_from->n_exports--;
  live->import_from = NULL;
}

/* Where the request goes from here: TRUE, it is not over for its client. */
static gboolean
goes_on(oct_driver *d, oct_live *live, const oct_request_record *record) {
  oct_incidents *incidents = &d->result->incidents;
  gboolean lost = record->reason == OCT_END_FAILED && d->config->scenario != NULL;
  gboolean first = live->prefill && record->reason == OCT_END_LENGTH;
  if (first && record->output_tokens < live->max_tokens) {
    live->prefill = FALSE;
    live->import_from = live->replica;
    live->import_id = record->id;
    live->replica->n_exports++;
    oct_driver_again(d, live, record->ended_ns);
    return TRUE;
  }
  drop_import(live);
  incidents->lost_requests += lost;
  if (lost && d->config->scenario->after_loss == OCT_AFTER_LOSS_RECOMPUTE) {
    incidents->resumed++;
    if (live->output > 0)
      incidents->resumed_tokens += live->input_tokens + live->output;
    oct_driver_again(d, live, record->ended_ns);
    return TRUE;
  }
  incidents->timeouts += record->reason == OCT_END_TIMED_OUT;
  return fate_of(record->reason) == OCT_FATE_FAILED && try_again(d, live, record->ended_ns);
}

static void
fill_outcome(const oct_driver *d, const oct_live *live, const oct_request_record *record,
             oct_outcome *outcome) {
  const gint64 out = d->config->request_out_per_token_ns;
  *outcome = (oct_outcome){.fate = fate_of(record->reason),
                           .index = live->index,
                           .arrival_ns = live->due_ns,
                           .input_tokens = live->input_tokens,
                           .output_tokens = live->output,
                           .cut = live->output < live->true_tokens};
  for (int i = 0; i < OCT_LATENCY_COUNT; i++)
    outcome->value_ns[i] = -1;
  if (live->first_ns >= 0) {
    gint64 ttft = live->first_ns + out - live->due_ns;
    gint64 e2e = live->last_ns + out - live->due_ns;
    outcome->value_ns[OCT_LATENCY_TTFT] = ttft;
    outcome->value_ns[OCT_LATENCY_E2E] = e2e;
    if (live->output >= 2) {
      outcome->value_ns[OCT_LATENCY_TPOT] = (e2e - ttft) / (live->output - 1);
      outcome->value_ns[OCT_LATENCY_ITL] = live->gap_ns;
    }
  }
  outcome->value_ns[OCT_LATENCY_QUEUE] = live->queue_ns;
}

static void
ended(void *user, const oct_request_record *record) {
  oct_driver *d = ((oct_replica *)user)->driver;
  oct_live *live = record->user;
  if (d->closing) {
    oct_live_free(d, live);
    return;
  }
  count_time(d, record->ended_ns);
  d->residence += (unsigned __int128)(record->ended_ns - record->arrival_ns);
  d->n_live--;
  if (d->spans != NULL)
    oct_spans_request(d->spans, live->replica->number, live->index, live->due_ns, record);
  add_part(live, record);
  if (goes_on(d, live, record))
    return;
  oct_outcome outcome;
  oct_request_record whole = *record;
  whole.output_tokens = live->output;
  whole.cached_tokens = live->cached;
  whole.recomputed_tokens = live->recomputed;
  whole.preemptions = live->preemptions;
  fill_outcome(d, live, record, &outcome);
  d->ended++;
  finish(d, live, &outcome, &whole);
}

void
oct_driver_listen(oct_driver *d, oct_replica *replica, oct_listener *listener) {
  replica->driver = d;
  /* No token callback: it would rule out fast-forward. */
  *listener = (oct_listener){.user = replica, .ended = ended};
}

/* ---------------------------------------------------------------- in */

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
fill_pages(oct_driver *d, const oct_trace_request *row, oct_live *live) {
  if (row->block_size == 0 || !d->config->engine.prefix_caching)
    return;
  guint32 page = d->result->page_tokens;
  guint64 n = oct_trace_known_pages(row, page);
  g_array_set_size(d->page_ids, (guint)n);
  oct_trace_page_ids(row, 0, n, page, (guint64 *)(void *)d->page_ids->data);
  live->page_ids = (guint64 *)(void *)d->page_ids->data;
  live->n_page_ids = (guint32)n;
  if (d->keeps)
    live->page_ids = g_memdup2(live->page_ids, n * sizeof *live->page_ids);
}

void
oct_driver_give_up(oct_driver *d, oct_live *live, oct_fate fate) {
  oct_outcome outcome = {.fate = fate,
                         .index = live->index,
                         .arrival_ns = live->due_ns,
                         .input_tokens = live->input_tokens};
  for (int i = 0; i < OCT_LATENCY_COUNT; i++)
    outcome.value_ns[i] = -1;
  drop_import(live);
  d->refused++;
  if (fate == OCT_FATE_BUSY) {
    d->busy++;
    d->busy_tokens += live->input_tokens;
  }
  finish(d, live, &outcome, NULL);
}

static gboolean
refuse(oct_driver *d, oct_live *live, const GError *why) {
  gboolean busy = g_error_matches(why, OCT_ENGINE_ERROR, OCT_ENGINE_ERROR_BUSY);
  if (g_error_matches(why, OCT_ENGINE_ERROR, OCT_ENGINE_ERROR_DOWN)) {
    d->n_live_window -= live->in_window;
    oct_live_free(d, live);
    return oct_driver_fail(d);
  }
  if (busy && try_again(d, live, d->now))
    return TRUE;
  if (!busy && d->result->first_refusal[0] == '\0')
    g_strlcpy(d->result->first_refusal, why->message, sizeof d->result->first_refusal);
  oct_driver_give_up(d, live, busy ? OCT_FATE_BUSY : OCT_FATE_REFUSED);
  return TRUE;
}

/* No replica is up. */
static gboolean
wait_for_replica(oct_driver *d, oct_live *live) {
  const oct_scenario *scenario = d->config->scenario;
  if (!oct_incidents_may_return(d)) {
    if (!try_again(d, live, d->now))
      oct_driver_give_up(d, live, OCT_FATE_FAILED);
  } else if (scenario == NULL || !scenario->refuse_while_down) {
    d->result->incidents.parked++;
    g_queue_push_tail(&d->parked, live);
  } else if (!try_again(d, live, d->now)) {
    oct_driver_give_up(d, live, OCT_FATE_BUSY);
  }
  return TRUE;
}

static void
fill_params(const oct_driver *d, const oct_live *live, oct_request_params *params) {
  const oct_drive_config *c = d->config;
  oct_request_params_default(params);
  params->user = (void *)live;
  params->arrival_ns = d->now;
  if (c->client.timeout_ns > 0)
    params->deadline_ns = live->sent_ns + c->client.timeout_ns;
  params->priority = live->priority;
  params->tenant = live->tenant;
  params->prompt_tokens = live->input_tokens + live->output;
  params->salt = live->salt;
  params->page_ids = live->page_ids;
  params->n_page_ids = live->n_page_ids;
  params->max_tokens = live->max_tokens - MIN(live->output, live->max_tokens - 1);
  params->ignore_eos = c->exact_lengths;
  if (live->oracle_tokens > 0)
    params->oracle_tokens = live->oracle_tokens - MIN(live->output, live->oracle_tokens - 1);
  if (live->prefill) {
    params->export_cache = TRUE;
    params->max_tokens = 1;
  } else if (live->import_from != NULL && live->import_from->engine != NULL) {
    params->import_engine = live->import_from->engine;
    params->import_id = live->import_id;
  }
}

/* Hands a request to the replica that it is routed to. FALSE: driver->error. */
static gboolean
hand_in(oct_driver *d, oct_live *live) {
  live->replica = oct_driver_route(d, live);
  if (live->replica == NULL)
    return wait_for_replica(d, live);
  oct_request_params params;
  fill_params(d, live, &params);
  g_autoptr(GError) why = NULL;
  oct_request_id id;
  count_time(d, d->now);
  if (!oct_engine_submit(live->replica->engine, &params, &id, &why))
    return refuse(d, live, why);
  if (d->spans != NULL)
    oct_spans_arrival(d->spans, live->replica->number, live->index, live->due_ns,
                      live->input_tokens);
  d->n_live++;
  live->replica->dirty = TRUE;
  return TRUE;
}

static gboolean
send(oct_driver *d, const oct_feed_request *request) {
  const oct_trace_request *row = request->row;
  const oct_drive_config *c = d->config;
  oct_live *live = g_new(oct_live, 1);
  *live = (oct_live){.entry = request->entry,
                     .index = row->index,
                     .due_ns = request->due_ns,
                     .sent_ns = request->due_ns,
                     .input_tokens = row->input_tokens,
                     .true_tokens = row->output_tokens,
                     .priority = row->priority,
                     .class_name = row->class_name,
                     .in_window = c->duration_ns == 0 || request->due_ns < c->duration_ns,
                     .max_tokens = max_tokens_of(d, row),
                     .oracle_tokens = c->exact_lengths ? 0 : row->output_tokens,
                     .salt = request->salt,
                     .tenant = *row->class_name != '\0' ? g_str_hash(row->class_name) : 0,
                     .prefill = c->n_prefill > 0,
                     .first_ns = -1,
                     .last_ns = -1,
                     .queue_ns = -1};
  fill_pages(d, row, live);
  d->sent++;
  d->sent_tokens += row->input_tokens;
  d->n_live_window += live->in_window;
  d->result->load_end_ns = request->due_ns;
  return hand_in(d, live);
}

/* Those of earlier requests whose time has come. */
static gboolean
send_again(oct_driver *d) {
  for (oct_live *live; (live = first_again(d)) != NULL && live->again_ns <= d->now;) {
    g_sequence_remove(g_sequence_get_begin_iter(d->again));
    d->again_tokens -= oct_live_tokens(live);
    if (!hand_in(d, live))
      return FALSE;
  }
  return TRUE;
}

gboolean
oct_driver_take_due(oct_driver *d, gboolean may_send) {
  if (may_send && !send_again(d))
    return FALSE;
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
  const oct_live *again = first_again(d);
  if (again != NULL)
    d->next_input = MIN(d->next_input, again->again_ns);
  return TRUE;
}
