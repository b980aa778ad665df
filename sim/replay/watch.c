/* What is sampled while a replay runs, and the files that it writes as it goes. */
#include <math.h>
#include <string.h>

#include "sim/replay/drive-internal.h"

/* ---------------------------------------------------------------- sums over replicas */

static void
add_stats(oct_engine_stats *sum, const oct_engine_stats *s) {
  sum->running += s->running;
  sum->waiting += s->waiting;
  sum->accepted += s->accepted;
  sum->refused += s->refused;
  for (int i = 0; i < OCT_END_COUNT; i++)
    sum->ended[i] += s->ended[i];
  sum->steps += s->steps;
  sum->forwarded_steps += s->forwarded_steps;
  sum->prompt_tokens += s->prompt_tokens;
  sum->cached_prompt_tokens += s->cached_prompt_tokens;
  sum->host_hit_tokens += s->host_hit_tokens;
  sum->queried_prompt_tokens += s->queried_prompt_tokens;
  sum->recomputed_tokens += s->recomputed_tokens;
  sum->generated_tokens += s->generated_tokens;
  sum->zombie_slices += s->zombie_slices;
  sum->preemptions += s->preemptions;
  sum->offloads += s->offloads;
  sum->reloads += s->reloads;
  sum->offloaded_pages += s->offloaded_pages;
  sum->reloaded_pages += s->reloaded_pages;
  sum->exports += s->exports;
  sum->pulls += s->pulls;
  sum->pulled_pages += s->pulled_pages;
  sum->snapshots_taken += s->snapshots_taken;
  sum->snapshot_hits += s->snapshot_hits;
  sum->hits_bound_by_state += s->hits_bound_by_state;
  for (guint i = 0; i < G_N_ELEMENTS(s->faults); i++)
    sum->faults[i] += s->faults[i];
  for (int p = 0; p < OCT_PART_COUNT; p++)
    sum->part_ns[p] += s->part_ns[p];
  sum->busy_ns += s->busy_ns;
  oct_draft_stats *to = &sum->speculation;
  const oct_draft_stats *from = &s->speculation;
  to->drafts += from->drafts;
  to->draft_tokens += from->draft_tokens;
  to->accepted += from->accepted;
  for (guint i = 0; i < G_N_ELEMENTS(from->accepted_at); i++)
    to->accepted_at[i] += from->accepted_at[i];
  to->pauses += from->pauses;
  to->undrafted += from->undrafted;
  to->model_steps += from->model_steps;
  to->model_tokens += from->model_tokens;
  to->model_lost += from->model_lost;
  sum->experts.uses += s->experts.uses;
  sum->experts.hits += s->experts.hits;
  sum->experts.used_pairs += s->experts.used_pairs;
  sum->experts.hit_pairs += s->experts.hit_pairs;
  sum->experts.loads += s->experts.loads;
  sum->experts.loaded_bytes += s->experts.loaded_bytes;
  sum->experts.evictions += s->experts.evictions;
}

static void
add_memory(oct_engine_stats *sum, const oct_engine_stats *s) {
  for (guint g = 0; g < OCT_MODEL_GROUPS_MAX; g++) {
    sum->pages_total[g] += s->pages_total[g];
    sum->pages_used[g] += s->pages_used[g];
    sum->pages_cached[g] += s->pages_cached[g];
    sum->host_total[g] += s->host_total[g];
    sum->host_used[g] += s->host_used[g];
    sum->pages_peak[g] += s->pages_peak[g];
  }
}

void
oct_driver_sum_stats(const oct_driver *d, oct_engine_stats *sum) {
  memset(sum, 0, sizeof *sum);
  add_stats(sum, &d->retired_stats);
  for (guint32 i = 0; i < d->n_replicas; i++) {
    oct_engine_stats stats;
    if (d->replicas[i].engine == NULL)
      continue;
    oct_engine_get_stats(d->replicas[i].engine, &stats);
    sum->state = MAX(sum->state, stats.state);
    add_stats(sum, &stats);
    add_memory(sum, &stats);
  }
}

void
oct_driver_add_retired(oct_driver *d, const oct_engine *engine) {
  oct_engine_stats stats;
  oct_engine_get_stats(engine, &stats);
  stats.running = stats.waiting = 0;
  add_stats(&d->retired_stats, &stats);
  for (int h = 0; h < OCT_HIST_COUNT; h++) {
    if (d->retired_hists[h] == NULL)
      d->retired_hists[h] = oct_hist_new();
    oct_hist_merge(d->retired_hists[h], oct_engine_get_hist(engine, (oct_engine_hist)h));
  }
}

void
oct_driver_merge_hist(const oct_driver *d, oct_engine_hist which, oct_hist *into) {
  if (d->retired_hists[which] != NULL)
    oct_hist_merge(into, d->retired_hists[which]);
  for (guint32 i = 0; i < d->n_replicas; i++)
    if (d->replicas[i].engine != NULL)
      oct_hist_merge(into, oct_engine_get_hist(d->replicas[i].engine, which));
}

/* ---------------------------------------------------------------- what metrics ask for */

static float
share(guint32 part, guint32 whole) {
  return whole > 0 ? (float)part / (float)whole : 0;
}

static void
fill_gauges(const oct_driver *d, const oct_engine_stats *s, oct_gauges *g) {
  g->running = s->running;
  g->waiting = s->waiting;
  g->backlog_tokens = (double)d->busy_tokens;
  for (guint32 i = 0; i < d->n_replicas; i++)
    if (d->replicas[i].engine != NULL)
      g->backlog_tokens += (double)oct_engine_load_tokens(d->replicas[i].engine);
  g->backlog_tokens += (double)d->again_tokens;
  for (const GList *l = d->parked.head; l != NULL; l = l->next)
    g->backlog_tokens += (double)oct_live_tokens(l->data);
  for (guint i = 0; i < d->result->n_groups; i++) {
    float used = share(s->pages_used[i], s->pages_total[i]);
    float cached = share(s->pages_cached[i], s->pages_total[i]);
    if (d->result->is_state[i]) {
      g->state_used = MAX(g->state_used, used);
      g->state_cached = MAX(g->state_cached, cached);
    } else {
      g->kv_used = MAX(g->kv_used, used);
      g->kv_cached = MAX(g->kv_cached, cached);
    }
    g->host_used = MAX(g->host_used, share(s->host_used[i], s->host_total[i]));
  }
}

static void
sample(void *user, oct_gauges *gauges) {
  oct_engine_stats stats;
  oct_driver_sum_stats(user, &stats);
  fill_gauges(user, &stats, gauges);
}

static void
counters(void *user, oct_counters *out) {
  oct_driver *d = user;
  out->sent = d->sent;
  out->ended = d->ended;
  out->busy = d->busy;
  out->sent_tokens = d->sent_tokens;
  out->busy_tokens = d->busy_tokens;
  oct_driver_sum_stats(d, &out->stats);
  for (int h = 0; h < OCT_HIST_COUNT; h++) {
    out->hists[h] = oct_hist_new();
    oct_driver_merge_hist(d, (oct_engine_hist)h, out->hists[h]);
  }
  if (d->config->read_use == NULL)
    return;
  out->moved = g_new0(double, OCT_METRICS_RESOURCES_MAX);
  out->delayed_ns = g_new0(gint64, OCT_METRICS_RESOURCES_MAX);
  d->config->read_use(d->given, &out->n_resources, out->moved, out->delayed_ns);
}

static guint
moved(void *user, double *out) {
  oct_driver *d = user;
  gint64 delayed_ns[OCT_METRICS_RESOURCES_MAX];
  guint n = 0;
  if (d->config->read_use != NULL)
    d->config->read_use(d->given, &n, out, delayed_ns);
  return n;
}

oct_metrics_source
oct_driver_source(oct_driver *d) {
  return (oct_metrics_source){d, sample, counters, moved};
}

/* ---------------------------------------------------------------- spans */

static gboolean
find_replica(const oct_driver *d, guint32 instance, guint32 *replica) {
  for (guint32 i = 0; i < d->n_replicas; i++)
    if (d->replicas[i].engine != NULL && oct_engine_instance(d->replicas[i].engine) == instance) {
      *replica = i;
      return TRUE;
    }
  return FALSE;
}

static void
see_step(void *user, const oct_tap_step *step) {
  oct_driver *d = user;
  guint32 replica;
  if (find_replica(d, step->instance, &replica))
    oct_spans_step(d->spans, replica, step);
}

static void
see_copy(void *user, const oct_tap_copy *copy) {
  oct_driver *d = user;
  guint32 replica;
  if (find_replica(d, copy->instance, &replica))
    oct_spans_copy(d->spans, replica, copy);
}

void
oct_driver_watch_spans(oct_driver *d) {
  const oct_drive_config *c = d->config;
  const oct_parallel *parallel = &c->engine.instance.parallel;
  if (!c->picture && c->chrome == NULL)
    return;
  const oct_spans_config config = {.picture = c->picture,
                                   .chrome = c->chrome,
                                   .chrome_from_ns = c->chrome_from_ns,
                                   .chrome_for_ns = c->chrome_for_ns,
                                   .n_replicas = c->n_replicas,
                                   .ranks = oct_parallel_world(parallel),
                                   .stages = parallel->pipeline,
                                   .devices = c->devices};
  const oct_tap_listener listener = {.user = d, .step = see_step, .copy = see_copy};
  d->spans = oct_spans_new(&config);
  d->world = oct_tap_new(d->given, &listener);
}

/* ---------------------------------------------------------------- the time line */

void
oct_driver_write_timeline_head(oct_driver *d) {
  if (d->config->timeline != NULL)
    fprintf(d->config->timeline,
            "time_s,running,waiting,backlog_tokens,kv_used,kv_cached,state_used,state_cached,"
            "host_used,sent,ended,busy,prompt_tokens,cached_tokens,output_tokens,"
            "recomputed_tokens,preemptions,steps,busy_share\n");
}

static void
write_row(oct_driver *d, oct_time at) {
  oct_engine_stats s, *b = &d->row_stats;
  oct_gauges g = {0};
  oct_driver_sum_stats(d, &s);
  fill_gauges(d, &s, &g);
  double busy = (double)(s.busy_ns - b->busy_ns) / (double)d->config->timeline_ns / d->n_replicas;
  fprintf(d->config->timeline,
          "%.9g,%u,%u,%.0f,%.6g,%.6g,%.6g,%.6g,%.6g,%" G_GUINT64_FORMAT ",%" G_GUINT64_FORMAT
          ",%" G_GUINT64_FORMAT ",%" G_GUINT64_FORMAT ",%" G_GUINT64_FORMAT ",%" G_GUINT64_FORMAT
          ",%" G_GUINT64_FORMAT ",%" G_GUINT64_FORMAT ",%" G_GUINT64_FORMAT ",%.6g\n",
          (double)at / 1e9, g.running, g.waiting, g.backlog_tokens, (double)g.kv_used,
          (double)g.kv_cached, (double)g.state_used, (double)g.state_cached, (double)g.host_used,
          d->sent - d->row_sent, d->ended - d->row_ended, d->busy - d->row_busy,
          s.prompt_tokens - b->prompt_tokens, s.cached_prompt_tokens - b->cached_prompt_tokens,
          s.generated_tokens - b->generated_tokens, s.recomputed_tokens - b->recomputed_tokens,
          s.preemptions - b->preemptions, s.steps - b->steps, busy);
  d->row_stats = s;
  d->row_sent = d->sent;
  d->row_ended = d->ended;
  d->row_busy = d->busy;
}

/* ---------------------------------------------------------------- when */

oct_time
oct_driver_next_watch(const oct_driver *d) {
  /* With a duration the samples end with the window, else with the run. */
  gboolean over = d->window_ended && d->config->duration_ns > 0;
  oct_time next = over ? OCT_TIME_NEVER : oct_metrics_next_sample(d->metrics);
  if (d->config->timeline != NULL)
    next = MIN(next, d->next_row);
  if (d->spans != NULL)
    next = MIN(next, oct_spans_next(d->spans, d->now));
  if (d->config->duration_ns > 0 && !d->window_ended)
    next = MIN(next, d->config->duration_ns);
  return next;
}

void
oct_driver_watch(oct_driver *d, oct_time now) {
  oct_time end = d->config->duration_ns;
  if (!d->window_ended || end == 0)
    oct_metrics_advance(d->metrics, end > 0 ? MIN(now, end) : now);
  if (end > 0 && now > end && !d->window_ended) {
    oct_metrics_end_window(d->metrics, end);
    d->window_ended = TRUE;
    if (d->spans != NULL)
      oct_spans_end_picture(d->spans, end);
  }
  for (; d->config->timeline != NULL && d->next_row < now; d->next_row += d->config->timeline_ns)
    write_row(d, d->next_row);
}

/* ---------------------------------------------------------------- one line per request */

static void
write_time(FILE *file, const char *name, gint64 ns) {
  if (ns >= 0)
    fprintf(file, ",\"%s\":%" G_GINT64_FORMAT ".%09" G_GINT64_FORMAT, name, ns / 1000000000,
            ns % 1000000000);
}

/* Class names are UTF-8 of at most 64 bytes. */
static void
write_class(FILE *file, const char *name) {
  if (name == NULL || name[0] == '\0')
    return;
  fputs(",\"class\":\"", file);
  for (const char *c = name; *c != '\0'; c++) {
    if ((guchar)*c < 0x20)
      fprintf(file, "\\u%04x", (guint)(guchar)*c);
    else if (*c == '"' || *c == '\\')
      fprintf(file, "\\%c", *c);
    else
      fputc(*c, file);
  }
  fputc('"', file);
}

void
oct_driver_write_request(oct_driver *d, const oct_live *live, const oct_outcome *o,
                         const oct_request_record *record) {
  FILE *file = d->config->requests;
  fprintf(file, "{\"index\":%" G_GUINT64_FORMAT ",\"fate\":\"%s\",\"replica\":%u", live->index,
          oct_fate_name(o->fate), live->replica != NULL ? live->replica->number : 0);
  write_time(file, "arrival_s", live->due_ns);
  if (live->attempts > 0)
    fprintf(file, ",\"attempts\":%u", live->attempts + 1);
  fprintf(file, ",\"input_tokens\":%u,\"true_output_tokens\":%u,\"priority\":%d",
          live->input_tokens, live->true_tokens, live->priority);
  write_class(file, live->class_name);
  if (record != NULL) {
    fprintf(file,
            ",\"end\":\"%s\",\"output_tokens\":%u,\"cached_tokens\":%u,\"recomputed_tokens\":%u,"
            "\"preemptions\":%u",
            oct_end_reason_name(record->reason), record->output_tokens, record->cached_tokens,
            record->recomputed_tokens, record->preemptions);
    write_time(file, "queue_s", o->value_ns[OCT_LATENCY_QUEUE]);
    write_time(file, "ttft_s", o->value_ns[OCT_LATENCY_TTFT]);
    write_time(file, "tpot_s", o->value_ns[OCT_LATENCY_TPOT]);
    write_time(file, "e2e_s", o->value_ns[OCT_LATENCY_E2E]);
    write_time(file, "longest_gap_s", o->value_ns[OCT_LATENCY_ITL]);
  }
  fputs("}\n", file);
}
