#include "client/load.h"

#include <errno.h>
#include <string.h>

#include "engine/base/assert.h"

#define TURN_MAX_NS    (100 * G_GINT64_CONSTANT(1000000)) /* a signal is seen within this */
#define PROGRESS_NS    (200 * G_GINT64_CONSTANT(1000000))
#define WARMUP_INPUT   64u
#define WARMUP_OUTPUT  16u
#define HTTP_BUSY      429
#define HTTP_NO_SERVER 503

typedef struct load load;

/* A request from the time it is due until it has ended. */
typedef struct request {
  load *load;
  oct_feed_entry *entry;  /* NULL: a warm-up, which counts for nothing */
  oct_trace_request *row; /* until it is sent */
  guint64 salt, index;
  const char *class_name;
  guint32 input_tokens, true_tokens;
  oct_time due_ns, sent_ns, last_piece_ns;
  gboolean has_piece;
  guint32 counted_tokens;
  oct_ask *ask;
  struct request *previous, *next; /* of those that are out */
} request;

enum { DUE, SENT, SERVER, VIEWS };

struct load {
  const oct_load_config *config;
  oct_load_result *result;
  oct_client *client;
  oct_feed *feed;
  oct_metrics *views[VIEWS];
  gint64 origin_ns;
  GQueue held; /* request *, due and not sent */
  request *out;
  guint64 n_out;
  guint64 sent, ended, failed, busy, sent_tokens, busy_tokens, unanswered_tokens;
  guint64 prompt_tokens, cached_tokens, generated_tokens;
  oct_hist *itl;
  gboolean window_ended, ended_by_duration, closing;
  gint64 told_ns;
  GError *error; /* of a warm-up */
};

const char *
oct_load_path(oct_load_endpoint endpoint) {
  return endpoint == OCT_LOAD_CHAT ? "/v1/chat/completions" : "/v1/completions";
}

static oct_time
now_of(const load *l) {
  return oct_client_now_ns() - l->origin_ns;
}

/* ---------------------------------------------------------------- what metrics ask for */

static void
sample(void *user, oct_gauges *g) {
  const load *l = user;
  g->running = (guint32)l->n_out;
  g->waiting = l->held.length;
  /* As an engine counts it: prompts without a first token, and one for each that is being decoded.
   */
  g->backlog_tokens = (double)(l->unanswered_tokens + l->busy_tokens + l->n_out);
}

static void
counters(void *user, oct_counters *out) {
  const load *l = user;
  out->sent = l->sent;
  out->ended = l->ended;
  out->busy = l->busy;
  out->sent_tokens = l->sent_tokens;
  out->busy_tokens = l->busy_tokens;
  out->stats.prompt_tokens = l->prompt_tokens;
  out->stats.cached_prompt_tokens = l->cached_tokens;
  out->stats.generated_tokens = l->generated_tokens;
  out->hists[OCT_HIST_ITL] = oct_hist_new();
  oct_hist_merge(out->hists[OCT_HIST_ITL], l->itl);
}

static void
sample_nothing(void *user, oct_gauges *g) {
  (void)user;
  (void)g;
}

static void
count_nothing(void *user, oct_counters *out) {
  (void)user;
  (void)out;
}

static void
make_views(load *l) {
  for (int v = 0; v < VIEWS; v++) {
    oct_metrics_options o = {
        .warmup_ns = l->config->warmup_ns, .slo = l->config->slo, .detail = v == DUE};
    o.source = v == DUE ? (oct_metrics_source){l, sample, counters, NULL}
                        : (oct_metrics_source){l, sample_nothing, count_nothing, NULL};
    l->views[v] = oct_metrics_new(&o);
  }
}

static void
end_window(load *l, oct_time now) {
  for (int v = 0; v < VIEWS && !l->window_ended; v++)
    oct_metrics_end_window(l->views[v], now);
  l->window_ended = TRUE;
}

/* ---------------------------------------------------------------- the body of a request */

static void
append_extra(GString *out, const json_t *extra) {
  const char *name;
  const json_t *value;
  json_object_foreach((json_t *)extra, name, value) {
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    json_t *key = json_string(name);
    char *quoted = json_dumps(key, JSON_ENCODE_ANY);
    g_string_append_printf(out, ",%s:%s", quoted, text);
    json_decref(key);
    free(quoted);
    free(text);
  }
}

static GString *
make_body(const load *l, const oct_trace_request *row, guint64 salt) {
  const oct_load_config *c = l->config;
  GString *out = g_string_sized_new(256 + (gsize)row->input_tokens * 7);
  json_t *model = json_string(c->model);
  char *quoted = json_dumps(model, JSON_ENCODE_ANY);
  g_string_append_printf(out,
                         "{\"model\":%s,\"stream\":true,\"stream_options\":{\"include_usage\":true}"
                         ",\"max_tokens\":%u",
                         quoted, row->output_tokens);
  free(quoted);
  json_decref(model);
  if (c->ignore_eos)
    g_string_append(out, ",\"ignore_eos\":true");
  if (c->extra != NULL)
    append_extra(out, c->extra);
  if (c->endpoint == OCT_LOAD_CHAT) {
    oct_prompt_options as_text = c->prompt;
    as_text.as_text = TRUE;
    g_string_append(out, ",\"messages\":[{\"role\":\"user\",\"content\":");
    oct_prompt_append(out, row, salt, &as_text);
    g_string_append(out, "}]}");
  } else {
    g_string_append(out, ",\"prompt\":");
    oct_prompt_append(out, row, salt, &c->prompt);
    g_string_append_c(out, '}');
  }
  return out;
}

/* ---------------------------------------------------------------- answers */

static void
note_error(load *l, const oct_ask_end *end) {
  int status = end->failure == OCT_FAILURE_STATUS ? end->status : 0;
  GArray *errors = l->result->errors;
  for (guint i = 0; i < errors->len; i++) {
    oct_load_error *e = &g_array_index(errors, oct_load_error, i);
    if (e->failure == end->failure && e->status == status) {
      e->count++;
      return;
    }
  }
  oct_load_error e = {.failure = end->failure, .status = status, .count = 1};
  g_strlcpy(e.first, end->message, sizeof e.first);
  g_array_append_val(errors, e);
}

static oct_fate
fate_of(const oct_ask_end *end) {
  if (end->failure == OCT_FAILURE_NONE)
    return OCT_FATE_ANSWERED;
  if (end->failure != OCT_FAILURE_STATUS)
    return OCT_FATE_FAILED;
  if (end->status == HTTP_BUSY || end->status == HTTP_NO_SERVER)
    return OCT_FATE_BUSY;
  return end->status >= 400 && end->status < 500 ? OCT_FATE_REFUSED : OCT_FATE_FAILED;
}

static gint64
per_token(gint64 first, gint64 last, guint32 tokens) {
  return first >= 0 && last >= first && tokens >= 2 ? (last - first) / (tokens - 1) : -1;
}

/* Of times since the same moment; -1 = not known. */
static void
fill_values(oct_outcome *o, gint64 queue, gint64 first, gint64 last, gint64 gap, guint32 tokens) {
  o->value_ns[OCT_LATENCY_QUEUE] = queue;
  o->value_ns[OCT_LATENCY_TTFT] = first;
  o->value_ns[OCT_LATENCY_E2E] = last;
  o->value_ns[OCT_LATENCY_TPOT] = per_token(first, last, tokens);
  o->value_ns[OCT_LATENCY_ITL] = gap;
}

/* One outcome for each view. */
static void
fill_outcomes(const request *r, const oct_ask_end *end, oct_outcome views[VIEWS]) {
  const load *l = r->load;
  guint32 n = end->output_tokens;
  gint64 first = end->first_ns < 0 ? -1 : end->first_ns - l->origin_ns;
  gint64 last = end->last_ns < 0 ? -1 : end->last_ns - l->origin_ns;
  gint64 late = r->sent_ns - r->due_ns;
  oct_outcome o = {
      .fate = fate_of(end), .index = r->index, .arrival_ns = r->due_ns, .output_tokens = n};
  o.input_tokens = end->has_usage ? end->prompt_tokens : r->input_tokens;
  o.cut = n < r->true_tokens;
  for (int v = 0; v < VIEWS; v++)
    views[v] = o;
  const oct_ask_server_times *s = &end->server;
  fill_values(&views[DUE], s->queue_ns, first < 0 ? -1 : first - r->due_ns,
              last < 0 ? -1 : last - r->due_ns, end->longest_gap_ns, n);
  fill_values(&views[SENT], late, first < 0 ? -1 : first - r->sent_ns,
              last < 0 ? -1 : last - r->sent_ns, end->longest_gap_ns, n);
  fill_values(&views[SERVER], s->queue_ns, s->ttft_ns, s->e2e_ns, -1, n);
}

static void
write_request(const load *l, const request *r, const oct_ask_end *end, const oct_outcome *views) {
  FILE *f = l->config->requests;
  fprintf(f, "{\"index\":%" G_GUINT64_FORMAT ",\"fate\":\"%s\",\"arrival_s\":%.6f,\"sent_s\":%.6f",
          r->index, oct_fate_name(views[DUE].fate), (double)r->due_ns / 1e9,
          (double)r->sent_ns / 1e9);
  fprintf(f, ",\"input_tokens\":%u,\"true_output_tokens\":%u,\"output_tokens\":%u",
          views[DUE].input_tokens, r->true_tokens, end->output_tokens);
  if (end->failure != OCT_FAILURE_NONE)
    fprintf(f, ",\"error\":\"%s\",\"status\":%d", oct_failure_name(end->failure), end->status);
  if (end->has_usage)
    fprintf(f, ",\"cached_tokens\":%u", end->cached_tokens);
  static const struct {
    const char *name;
    oct_latency latency;
  } fields[] = {{"queue_s", OCT_LATENCY_QUEUE},
                {"ttft_s", OCT_LATENCY_TTFT},
                {"tpot_s", OCT_LATENCY_TPOT},
                {"e2e_s", OCT_LATENCY_E2E},
                {"longest_gap_s", OCT_LATENCY_ITL}};
  for (gsize i = 0; i < G_N_ELEMENTS(fields); i++)
    if (views[DUE].value_ns[fields[i].latency] >= 0)
      fprintf(f, ",\"%s\":%.9f", fields[i].name,
              (double)views[DUE].value_ns[fields[i].latency] / 1e9);
  fputs("}\n", f);
}

static void
unlink_request(load *l, request *r) {
  if (r->previous != NULL)
    r->previous->next = r->next;
  else
    l->out = r->next;
  if (r->next != NULL)
    r->next->previous = r->previous;
  l->n_out--;
}

static void
count_answer(load *l, const request *r, const oct_ask_end *end) {
  oct_load_result *x = l->result;
  guint32 prompt = end->has_usage ? end->prompt_tokens : r->input_tokens;
  x->answers++;
  x->answers_with_usage += end->has_usage;
  x->short_answers += end->output_tokens < r->true_tokens;
  x->pieces += end->n_pieces;
  if (end->has_usage) {
    x->pieces_with_usage += end->n_pieces;
    x->piece_tokens += end->output_tokens;
  }
  x->has_server |= end->server.ttft_ns >= 0 || end->server.queue_ns >= 0;
  l->cached_tokens += MIN(end->cached_tokens, prompt);
  l->prompt_tokens += prompt - MIN(end->cached_tokens, prompt);
  /* Tokens that the chunks did not show one by one. */
  l->generated_tokens += end->output_tokens - MIN(r->counted_tokens, end->output_tokens);
}

static void send_held(load *l);

static void
on_end(void *user, const oct_ask_end *end) {
  request *r = user;
  load *l = r->load;
  oct_time now = now_of(l);
  oct_outcome views[VIEWS];
  unlink_request(l, r);
  if (!r->has_piece)
    l->unanswered_tokens -= r->input_tokens;
  if (l->closing) {
    l->result->unfinished++;
    g_free(r);
    return;
  }
  for (int v = 0; v < VIEWS; v++)
    oct_metrics_advance(l->views[v], now);
  fill_outcomes(r, end, views);
  if (views[DUE].fate == OCT_FATE_ANSWERED) {
    l->ended++;
    count_answer(l, r, end);
  } else {
    l->failed++;
    note_error(l, end);
  }
  if (views[DUE].fate == OCT_FATE_BUSY) {
    l->busy++;
    l->busy_tokens += r->input_tokens;
  } else if (views[DUE].fate == OCT_FATE_REFUSED && *l->result->first_refusal == '\0') {
    g_strlcpy(l->result->first_refusal, end->message, sizeof l->result->first_refusal);
  }
  for (int v = 0; v < VIEWS; v++)
    oct_metrics_add(l->views[v], &views[v]);
  if (l->config->requests != NULL)
    write_request(l, r, end, views);
  oct_feed_ended(l->feed, r->entry, now);
  g_free(r);
  send_held(l);
}

static void
on_piece(void *user, const oct_ask_piece *piece) {
  request *r = user;
  load *l = r->load;
  if (r->has_piece)
    oct_hist_add(l->itl, piece->at_ns - r->last_piece_ns);
  else
    l->unanswered_tokens -= r->input_tokens;
  r->has_piece = TRUE;
  r->last_piece_ns = piece->at_ns;
  r->counted_tokens += piece->n_tokens;
  l->generated_tokens += piece->n_tokens;
}

/* A warm-up's end. */
static void
on_warm(void *user, const oct_ask_end *end) {
  request *r = user;
  load *l = r->load;
  unlink_request(l, r);
  g_free(r);
  if (!l->closing && end->failure != OCT_FAILURE_NONE && l->error == NULL)
    g_set_error(&l->error, OCT_CLIENT_ERROR, OCT_CLIENT_ERROR_ANSWER,
                "a warm-up request failed: %s%s%s", oct_failure_name(end->failure),
                *end->message ? ": " : "", end->message);
}

/* ---------------------------------------------------------------- requests */

static void
send(load *l, request *r) {
  GString *body = make_body(l, r->row, r->salt);
  gsize n = body->len;
  oct_question q = {.path = oct_load_path(l->config->endpoint),
                    .body = g_string_free(body, FALSE),
                    .body_bytes = n,
                    .user = r,
                    .piece = r->entry != NULL ? on_piece : NULL,
                    .end = r->entry != NULL ? on_end : on_warm};
  g_clear_pointer(&r->row, oct_trace_request_free);
  r->next = l->out;
  if (l->out != NULL)
    l->out->previous = r;
  l->out = r;
  l->n_out++;
  r->sent_ns = now_of(l);
  r->ask = oct_ask_start(l->client, &q);
}

static gboolean
may_send(const load *l) {
  return l->config->max_concurrency == 0 || l->n_out < l->config->max_concurrency;
}

static void
send_held(load *l) {
  request *r;
  while (may_send(l) && (r = g_queue_pop_head(&l->held)) != NULL)
    send(l, r);
}

static void
take(load *l) {
  oct_feed_request given;
  oct_feed_take(l->feed, &given);
  const oct_trace_request *row = given.row;
  request *r = g_new0(request, 1);
  *r = (request){.load = l,
                 .entry = given.entry,
                 .row = oct_trace_request_copy(row),
                 .salt = given.salt,
                 .index = row->index,
                 .class_name = row->class_name,
                 .input_tokens = row->input_tokens,
                 .true_tokens = row->output_tokens,
                 .due_ns = given.due_ns};
  l->sent++;
  l->sent_tokens += row->input_tokens;
  l->unanswered_tokens += row->input_tokens;
  l->result->load_end_ns = given.due_ns;
  g_queue_push_tail(&l->held, r);
}

/* ---------------------------------------------------------------- warm-up */

/* Content of its own: what is measured finds nothing of it in a cache. */
static gboolean
warm_up(load *l, GError **error) {
  const oct_load_config *c = l->config;
  for (guint32 i = 0; i < c->n_warmups; i++) {
    request *r = g_new0(request, 1);
    r->load = l;
    r->row = g_new0(oct_trace_request, 1);
    *r->row = (oct_trace_request){.input_tokens = WARMUP_INPUT,
                                  .output_tokens = WARMUP_OUTPUT,
                                  .index = G_MAXUINT64 - i,
                                  .class_name = ""};
    send(l, r);
  }
  while (l->n_out > 0 && (c->stop == NULL || *c->stop == 0))
    oct_client_poll(l->client, oct_client_now_ns() + TURN_MAX_NS);
  if (l->n_out > 0 && l->error == NULL)
    g_set_error(&l->error, OCT_CLIENT_ERROR, OCT_CLIENT_ERROR_ANSWER, "interrupted in the warm-up");
  if (l->error == NULL)
    return TRUE;
  g_propagate_error(error, g_steal_pointer(&l->error));
  return FALSE;
}

/* ---------------------------------------------------------------- the loop */

static void
tell(load *l, oct_time now) {
  const oct_load_config *c = l->config;
  if (c->progress == NULL || now - l->told_ns < PROGRESS_NS)
    return;
  l->told_ns = now;
  c->progress(c->user, &(oct_load_progress){now, l->sent, l->ended, l->failed, l->n_out});
}

/* Takes and sends what is due. *next: when something is due again. */
static gboolean
take_due(load *l, oct_time now, oct_time *next, GError **error) {
  const oct_load_config *c = l->config;
  gboolean over = c->duration_ns > 0 && now >= c->duration_ns;
  if (over && !l->window_ended) {
    end_window(l, now);
    l->ended_by_duration = TRUE;
  }
  for (*next = OCT_TIME_NEVER; !over;) {
    if (!oct_feed_due(l->feed, now, next, error))
      return FALSE;
    if (c->duration_ns > 0)
      *next = MIN(*next, c->duration_ns);
    if (*next > now || (c->duration_ns > 0 && *next >= c->duration_ns))
      break;
    take(l);
    send_held(l);
  }
  if (!l->window_ended && oct_feed_is_exhausted(l->feed))
    end_window(l, now);
  return TRUE;
}

static gboolean
is_over(const load *l) {
  return (l->ended_by_duration || oct_feed_is_exhausted(l->feed)) && l->n_out == 0 &&
         l->held.length == 0;
}

static gboolean
loop(load *l, GError **error) {
  const oct_load_config *c = l->config;
  for (;;) {
    oct_time now = now_of(l), next;
    for (int v = 0; v < VIEWS; v++)
      oct_metrics_advance(l->views[v], now);
    if (!take_due(l, now, &next, error))
      return FALSE;
    if (is_over(l))
      return TRUE;
    if (c->stop != NULL && *c->stop != 0) {
      l->result->interrupted = TRUE;
      return TRUE;
    }
    tell(l, now);
    next = MIN(next, oct_metrics_next_sample(l->views[DUE]));
    next = MIN(next, now + TURN_MAX_NS);
    oct_client_poll(l->client, l->origin_ns + next);
  }
}

/* ---------------------------------------------------------------- the end */

static void
drop_all(load *l) {
  request *r;
  l->closing = TRUE;
  while (l->out != NULL)
    oct_ask_cancel(l->out->ask);
  while ((r = g_queue_pop_head(&l->held)) != NULL) {
    l->result->unfinished++;
    oct_trace_request_free(r->row);
    g_free(r);
  }
}

static void
measure(load *l) {
  oct_load_result *x = l->result;
  const oct_metrics *leader = l->views[DUE];
  oct_metrics_measure(leader, &x->from_due);
  oct_metrics_measure_beside(l->views[SENT], leader, &x->from_sent);
  oct_metrics_measure_beside(l->views[SERVER], leader, &x->server);
}

static void
clear_measured(oct_load_result *x) {
  oct_measured_clear(&x->from_due);
  oct_measured_clear(&x->from_sent);
  oct_measured_clear(&x->server);
}

static void
conclude(load *l, oct_time now) {
  oct_load_result *x = l->result;
  end_window(l, now);
  measure(l);
  const oct_measured *m = &x->from_due;
  /* As in a replay: where all was sent within one residence time, rates go on to the last answer.
   */
  if (!l->ended_by_duration && !x->interrupted &&
      (double)(m->end_ns - m->from_ns) < 1e9 * m->residence_mean_s) {
    clear_measured(x);
    for (int v = 0; v < VIEWS; v++)
      oct_metrics_extend_window(l->views[v], now);
    measure(l);
  }
  x->closed_loop = oct_feed_is_closed_loop(l->feed);
  x->concurrency = oct_feed_concurrency(l->feed);
  if (x->closed_loop)
    x->from_due.verdict = OCT_VERDICT_CLOSED;
  x->span_ns = now;
  x->sent = l->sent;
  x->ended = l->ended;
  x->input_tokens = l->prompt_tokens + l->cached_tokens;
  x->cached_tokens = l->cached_tokens;
  x->output_tokens = l->generated_tokens;
}

static gboolean
check_file(FILE *file, GError **error) {
  if (file == NULL || (fflush(file) == 0 && !ferror(file)))
    return TRUE;
  g_set_error(error, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_IO, "requests: cannot write: %s",
              g_strerror(errno));
  return FALSE;
}

gboolean
oct_load_run(const oct_load_config *config, oct_load_result *result, GError **error) {
  memset(result, 0, sizeof *result);
  result->errors = g_array_new(FALSE, TRUE, sizeof(oct_load_error));
  load *l = g_new0(load, 1);
  l->config = config;
  l->result = result;
  l->client = config->client;
  l->feed = oct_feed_new(config->rows, config->concurrency);
  l->itl = oct_hist_new();
  g_queue_init(&l->held);
  make_views(l);
  gint64 begun = oct_client_now_ns();
  gboolean good = warm_up(l, error);
  l->origin_ns = oct_client_now_ns();
  result->warmed_up_ns = l->origin_ns - begun;
  gint64 busy = oct_client_busy_ns(l->client);
  good = good && loop(l, error);
  oct_time now = now_of(l);
  if (good) {
    result->busy_share = (double)(oct_client_busy_ns(l->client) - busy) / (double)MAX(now, 1);
    conclude(l, now);
  }
  drop_all(l);
  good = good && check_file(config->requests, error);
  for (int v = 0; v < VIEWS; v++)
    oct_metrics_free(l->views[v]);
  oct_feed_free(l->feed);
  oct_hist_free(l->itl);
  g_free(l);
  if (!good)
    oct_load_result_clear(result);
  return good;
}

void
oct_load_result_clear(oct_load_result *result) {
  clear_measured(result);
  g_clear_pointer(&result->errors, g_array_unref);
  memset(result, 0, sizeof *result);
}
