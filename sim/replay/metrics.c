#include "sim/replay/metrics.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/base/rng.h"

#define HISTS (OCT_LATENCY_COUNT) /* of a batch; ITL's place holds the longest gaps */

/* What arrived in one stretch of time, and the counters where it begins. */
typedef struct batch {
  gboolean begun; /* at_start is set */
  oct_counters at_start;
  guint64 requests, fates[OCT_FATE_COUNT], good, cut, input_tokens, output_tokens;
  oct_hist *hists[HISTS]; /* NULL until something is recorded */
} batch;

struct oct_metrics {
  oct_metrics_options options;
  oct_time origin_ns, sample_ns; /* samples and borders: origin + k x sample */
  guint n_samples;
  oct_gauges samples[OCT_METRICS_SAMPLES_MAX];
  batch batches[OCT_METRICS_BATCHES_MAX];
  gboolean ended, extended;
  oct_counters at_end;
  guint n_moved;
  double *moved; /* [OCT_METRICS_SAMPLES_MAX x n_moved]; NULL before the first sample */
  guint n_kept;
  oct_kept_request *kept; /* [2 x OCT_METRICS_REQUESTS_MAX]; NULL without detail */
  guint64 hash_most;      /* no request above it is kept */
};

const char *
oct_fate_name(oct_fate fate) {
  static const char *const names[OCT_FATE_COUNT] = {"answered", "busy", "refused", "failed"};
  oct_assert(fate < OCT_FATE_COUNT);
  return names[fate];
}

void
oct_counters_clear(oct_counters *counters) {
  for (int h = 0; h < OCT_HIST_COUNT; h++)
    oct_hist_free(counters->hists[h]);
  g_free(counters->moved);
  g_free(counters->delayed_ns);
  memset(counters, 0, sizeof *counters);
}

/* ---------------------------------------------------------------- life cycle */

oct_metrics *
oct_metrics_new(const oct_metrics_options *options) {
  oct_metrics *m = g_new0(oct_metrics, 1);
  m->options = *options;
  m->sample_ns = options->sample_ns > 0 ? options->sample_ns : OCT_METRICS_SAMPLE_NS;
  m->origin_ns = MAX(options->warmup_ns, 0);
  m->hash_most = G_MAXUINT64;
  if (options->detail)
    m->kept = g_new(oct_kept_request, 2 * OCT_METRICS_REQUESTS_MAX);
  return m;
}

static void
clear_batch(batch *b) {
  oct_counters_clear(&b->at_start);
  for (int h = 0; h < HISTS; h++)
    oct_hist_free(b->hists[h]);
  memset(b, 0, sizeof *b);
}

void
oct_metrics_free(oct_metrics *m) {
  if (m == NULL)
    return;
  for (guint i = 0; i < OCT_METRICS_BATCHES_MAX; i++)
    clear_batch(&m->batches[i]);
  oct_counters_clear(&m->at_end);
  g_free(m->moved);
  g_free(m->kept);
  g_free(m);
}

/* ---------------------------------------------------------------- collecting */

static void
merge_hist(oct_hist **into, oct_hist **from) {
  if (*into == NULL) {
    *into = g_steal_pointer(from);
    return;
  }
  if (*from != NULL)
    oct_hist_merge(*into, *from);
  g_clear_pointer(from, oct_hist_free);
}

static void
merge_batches(batch *into, batch *from) {
  into->requests += from->requests;
  for (int f = 0; f < OCT_FATE_COUNT; f++)
    into->fates[f] += from->fates[f];
  into->good += from->good;
  into->cut += from->cut;
  into->input_tokens += from->input_tokens;
  into->output_tokens += from->output_tokens;
  for (int h = 0; h < HISTS; h++)
    merge_hist(&into->hists[h], &from->hists[h]);
  clear_batch(from);
}

/* Batches and samples of twice the length: pairs become one, every other sample goes. */
static void
double_length(oct_metrics *m) {
  m->sample_ns *= 2;
  for (guint i = 0; i < OCT_METRICS_BATCHES_MAX / 2; i++) {
    batch pair = m->batches[2 * i];
    memset(&m->batches[2 * i], 0, sizeof(batch));
    merge_batches(&pair, &m->batches[2 * i + 1]);
    m->batches[i] = pair;
  }
  for (guint i = 0; 2 * i < m->n_samples; i++) {
    m->samples[i] = m->samples[2 * i];
    if (m->n_moved > 0)
      memmove(m->moved + (gsize)i * m->n_moved, m->moved + (gsize)2 * i * m->n_moved,
              m->n_moved * sizeof *m->moved);
  }
  m->n_samples = (m->n_samples + 1) / 2;
}

oct_time
oct_metrics_next_sample(const oct_metrics *m) {
  return m->origin_ns + (gint64)m->n_samples * m->sample_ns;
}

/* What the resources have moved by the sample that is taken. */
static void
note_moved(oct_metrics *m) {
  double moved[OCT_METRICS_RESOURCES_MAX];
  if (!m->options.detail || m->options.source.moved == NULL)
    return;
  guint n = m->options.source.moved(m->options.source.user, moved);
  if (m->moved == NULL && n > 0) {
    m->n_moved = n;
    m->moved = g_new0(double, (gsize)OCT_METRICS_SAMPLES_MAX *n);
  }
  oct_assert(n == m->n_moved);
  if (n > 0)
    memcpy(m->moved + (gsize)m->n_samples * n, moved, n * sizeof *moved);
}

void
oct_metrics_advance(oct_metrics *m, oct_time now) {
  while (oct_metrics_next_sample(m) < now) {
    if (m->n_samples == OCT_METRICS_SAMPLES_MAX) {
      double_length(m);
      continue;
    }
    oct_gauges *sample = &m->samples[m->n_samples];
    memset(sample, 0, sizeof *sample);
    m->options.source.sample(m->options.source.user, sample);
    sample->time_ns = oct_metrics_next_sample(m);
    if (m->n_samples % OCT_METRICS_SAMPLES == 0) {
      batch *b = &m->batches[m->n_samples / OCT_METRICS_SAMPLES];
      m->options.source.counters(m->options.source.user, &b->at_start);
      b->at_start.time_ns = sample->time_ns;
      b->begun = TRUE;
    }
    note_moved(m);
    m->n_samples++;
  }
}

static void
record(oct_hist **hist, gint64 value) {
  if (value < 0)
    return;
  if (*hist == NULL)
    *hist = oct_hist_new();
  oct_hist_add(*hist, value);
}

static int
by_hash(const void *a, const void *b) {
  const oct_kept_request *x = a, *y = b;
  return (x->hash > y->hash) - (x->hash < y->hash);
}

static int
by_index(const void *a, const void *b) {
  const oct_kept_request *x = a, *y = b;
  return (x->index > y->index) - (x->index < y->index);
}

/* Of what is kept, those with the smallest hashes. */
static void
trim_kept(oct_metrics *m) {
  if (m->n_kept <= OCT_METRICS_REQUESTS_MAX)
    return;
  qsort(m->kept, m->n_kept, sizeof *m->kept, by_hash);
  m->n_kept = OCT_METRICS_REQUESTS_MAX;
  m->hash_most = m->kept[m->n_kept - 1].hash;
}

static void
keep(oct_metrics *m, const oct_outcome *o) {
  oct_kept_request kept = {.hash = oct_mix64(o->index),
                           .index = o->index,
                           .arrival_ns = o->arrival_ns,
                           .input_tokens = o->input_tokens,
                           .output_tokens = o->output_tokens};
  if (m->kept == NULL || kept.hash > m->hash_most)
    return;
  memcpy(kept.value_ns, o->value_ns, sizeof kept.value_ns);
  m->kept[m->n_kept++] = kept;
  if (m->n_kept == 2 * OCT_METRICS_REQUESTS_MAX)
    trim_kept(m);
}

void
oct_metrics_add(oct_metrics *m, const oct_outcome *o) {
  if (o->arrival_ns < m->origin_ns)
    return;
  while ((o->arrival_ns - m->origin_ns) / m->sample_ns >= OCT_METRICS_SAMPLES_MAX)
    double_length(m);
  gint64 index = (o->arrival_ns - m->origin_ns) / (m->sample_ns * OCT_METRICS_SAMPLES);
  batch *b = &m->batches[index];
  b->requests++;
  b->fates[o->fate]++;
  if (o->fate != OCT_FATE_ANSWERED)
    return;
  b->good += oct_slo_is_good(&m->options.slo, o->value_ns);
  b->cut += o->cut;
  b->input_tokens += o->input_tokens;
  b->output_tokens += o->output_tokens;
  keep(m, o);
  for (int i = 0; i < OCT_LATENCY_COUNT; i++)
    record(&b->hists[i], o->value_ns[i]);
}

void
oct_metrics_end_window(oct_metrics *m, oct_time now) {
  oct_assert(!m->ended);
  m->options.source.counters(m->options.source.user, &m->at_end);
  m->at_end.time_ns = now;
  m->ended = TRUE;
}

void
oct_metrics_extend_window(oct_metrics *m, oct_time now) {
  oct_assert(m->ended && now >= m->at_end.time_ns);
  oct_counters_clear(&m->at_end);
  m->options.source.counters(m->options.source.user, &m->at_end);
  m->at_end.time_ns = now;
  m->extended = TRUE;
}

/* ---------------------------------------------------------------- measuring */

oct_hist *
oct_hist_difference(const oct_hist *a, const oct_hist *b) {
  oct_hist *difference = oct_hist_new();
  oct_hist_bucket of_a = {0}, of_b;
  guint at_a = 0, at_b = 0;
  gboolean more = oct_hist_next(a, &at_a, &of_a);
  while (oct_hist_next(b, &at_b, &of_b)) {
    guint64 before = 0;
    while (more && of_a.low < of_b.low)
      more = oct_hist_next(a, &at_a, &of_a);
    if (more && of_a.low == of_b.low)
      before = of_a.count;
    oct_hist_add_times(difference, of_b.low + (of_b.high - of_b.low) / 2, of_b.count - before);
  }
  return difference;
}

static void
copy_counters(oct_counters *to, const oct_counters *from) {
  *to = *from;
  for (int h = 0; h < OCT_HIST_COUNT; h++) {
    to->hists[h] = oct_hist_new();
    if (from->hists[h] != NULL)
      oct_hist_merge(to->hists[h], from->hists[h]);
  }
  to->moved = g_memdup2(from->moved, from->n_resources * sizeof *from->moved);
  to->delayed_ns = g_memdup2(from->delayed_ns, from->n_resources * sizeof *from->delayed_ns);
}

/* The batch where the window begins. */
static guint
first_batch(const oct_metrics *m, oct_measured *out) {
  double sum = 0;
  guint64 n = 0;
  for (guint i = 0; i < OCT_METRICS_BATCHES_MAX; i++) {
    const oct_hist *e2e = m->batches[i].hists[OCT_LATENCY_E2E];
    if (e2e == NULL)
      continue;
    sum += oct_hist_mean(e2e) * (double)oct_hist_count(e2e);
    n += oct_hist_count(e2e);
  }
  out->residence_mean_s = n > 0 ? sum / (double)n / 1e9 : 0;
  const double settled = 1e9 * OCT_METRICS_RESIDENCES * out->residence_mean_s;
  const double length = (double)out->end_ns;
  if (out->warmup_given)
    out->too_short = length - (double)m->options.warmup_ns < settled;
  if (out->warmup_given || m->extended)
    return 0;
  double wanted = MAX(settled, 0.1 * length);
  out->too_short = wanted > 0.5 * length;
  if (out->too_short)
    wanted = 0.1 * length;
  double border = (double)m->sample_ns * OCT_METRICS_SAMPLES;
  guint first = 0;
  while (first + 1 < OCT_METRICS_BATCHES_MAX && first * border < wanted &&
         m->batches[first + 1].begun && m->batches[first + 1].at_start.time_ns < out->end_ns)
    first++;
  return first;
}

static void
sum_batches(const oct_metrics *m, guint first, oct_measured *out) {
  for (int i = 0; i < OCT_LATENCY_COUNT; i++)
    out->latency[i] = oct_hist_new();
  out->longest_gap = oct_hist_new();
  for (guint i = first; i < OCT_METRICS_BATCHES_MAX; i++) {
    const batch *b = &m->batches[i];
    out->requests += b->requests;
    for (int f = 0; f < OCT_FATE_COUNT; f++)
      out->fates[f] += b->fates[f];
    out->good += b->good;
    out->cut += b->cut;
    out->input_tokens += b->input_tokens;
    out->output_tokens += b->output_tokens;
    for (int h = 0; h < HISTS; h++)
      if (b->hists[h] != NULL)
        oct_hist_merge(h == OCT_LATENCY_ITL ? out->longest_gap : out->latency[h], b->hists[h]);
  }
}

static gint64
percentile(const oct_hist *hist, double percent) {
  return hist != NULL ? oct_hist_percentile(hist, percent) : -1;
}

/* Batch by batch: what the course of a run looks like. */
static void
summarise_batches(const oct_metrics *m, oct_measured *out) {
  for (guint i = 0; i < OCT_METRICS_BATCHES_MAX && m->batches[i].begun; i++) {
    const batch *b = &m->batches[i];
    gboolean is_last = i + 1 == OCT_METRICS_BATCHES_MAX || !m->batches[i + 1].begun;
    const oct_counters *end = is_last ? &m->at_end : &m->batches[i + 1].at_start;
    oct_batch_summary *s = &out->batches[out->n_batches++];
    *s = (oct_batch_summary){.from_ns = b->at_start.time_ns,
                             .end_ns = MAX(end->time_ns, b->at_start.time_ns),
                             .answered = b->fates[OCT_FATE_ANSWERED],
                             .ttft_p50_ns = percentile(b->hists[OCT_LATENCY_TTFT], 50),
                             .ttft_p99_ns = percentile(b->hists[OCT_LATENCY_TTFT], 99),
                             .tpot_p50_ns = percentile(b->hists[OCT_LATENCY_TPOT], 50),
                             .tpot_p99_ns = percentile(b->hists[OCT_LATENCY_TPOT], 99),
                             .itl_p50_ns = -1,
                             .itl_p99_ns = -1};
    if (end->time_ns <= b->at_start.time_ns || b->at_start.hists[OCT_HIST_ITL] == NULL)
      continue;
    g_autoptr(oct_hist) gaps =
        oct_hist_difference(b->at_start.hists[OCT_HIST_ITL], end->hists[OCT_HIST_ITL]);
    s->itl_p50_ns = oct_hist_percentile(gaps, 50);
    s->itl_p99_ns = oct_hist_percentile(gaps, 99);
  }
}

/* What was kept of the window's requests. */
static void
copy_kept(const oct_metrics *m, oct_measured *out) {
  if (m->n_moved > 0) {
    out->n_moved = m->n_moved;
    out->moved = g_memdup2(m->moved, (gsize)m->n_samples * m->n_moved * sizeof *m->moved);
  }
  if (m->kept == NULL)
    return;
  out->kept = g_new(oct_kept_request, m->n_kept + 1);
  for (guint i = 0; i < m->n_kept; i++)
    if (m->kept[i].arrival_ns >= out->from_ns)
      out->kept[out->n_kept++] = m->kept[i];
  qsort(out->kept, out->n_kept, sizeof *out->kept, by_hash);
  out->n_kept = MIN(out->n_kept, OCT_METRICS_REQUESTS_MAX);
  qsort(out->kept, out->n_kept, sizeof *out->kept, by_index);
}

static void
judge(oct_measured *out) {
  out->verdict = OCT_VERDICT_UNDECIDED;
  if (out->extended)
    return; /* nothing arrives while it empties */
  double x[OCT_METRICS_SAMPLES_MAX], y[OCT_METRICS_SAMPLES_MAX];
  gsize n = 0;
  for (guint i = out->first_sample; i < out->end_sample; i++, n++) {
    x[n] = (double)out->samples[i].time_ns / 1e9;
    y[n] = out->samples[i].backlog_tokens;
  }
  double seconds = (double)(out->end_ns - out->from_ns) / 1e9;
  double offered = (double)(out->at_end.sent_tokens - out->at_from.sent_tokens) / seconds;
  out->backlog = oct_trend_of(x, y, n);
  out->verdict = seconds > 0 ? oct_trend_verdict(&out->backlog, offered) : OCT_VERDICT_UNDECIDED;
  /* A queue that is full grows no more, and turns away what is too much. */
  guint64 sent = out->at_end.sent - out->at_from.sent, busy = out->at_end.busy - out->at_from.busy;
  if (busy > 0 && (double)busy > OCT_UNSERVED_SATURATED * (double)sent)
    out->verdict = OCT_VERDICT_SATURATED;
  /* Nor does a backlog grow where everybody is refused for another reason. */
  gboolean nobody = out->requests > 0 && out->fates[OCT_FATE_ANSWERED] == 0;
  if (out->verdict == OCT_VERDICT_STABLE && (out->too_short || nobody))
    out->verdict = OCT_VERDICT_UNDECIDED;
}

void
oct_metrics_measure_beside(const oct_metrics *m, const oct_metrics *leader, oct_measured *out) {
  oct_assert(m->ended);
  memset(out, 0, sizeof *out);
  out->warmup_given = m->options.warmup_ns >= 0;
  out->extended = m->extended;
  out->end_ns = m->at_end.time_ns;
  guint first = first_batch(leader, out);
  const batch *b = &m->batches[first];
  sum_batches(m, first, out);
  copy_counters(&out->at_end, &m->at_end);
  copy_counters(&out->at_from, &b->at_start);
  out->from_ns = b->begun ? b->at_start.time_ns : m->origin_ns;
  out->at_from.time_ns = out->from_ns;
  for (int h = 0; h < OCT_HIST_COUNT; h++)
    out->steps[h] = oct_hist_difference(out->at_from.hists[h], out->at_end.hists[h]);
  oct_hist_merge(out->latency[OCT_LATENCY_ITL], out->steps[OCT_HIST_ITL]);
  out->n_samples = out->end_sample = m->n_samples;
  out->first_sample = MIN(first * OCT_METRICS_SAMPLES, m->n_samples);
  while (out->end_sample > out->first_sample &&
         m->samples[out->end_sample - 1].time_ns > out->end_ns)
    out->end_sample--;
  memcpy(out->samples, m->samples, m->n_samples * sizeof *m->samples);
  if (m->options.detail)
    summarise_batches(m, out);
  copy_kept(m, out);
  judge(out);
}

void
oct_metrics_measure(const oct_metrics *m, oct_measured *out) {
  oct_metrics_measure_beside(m, m, out);
}

void
oct_measured_clear(oct_measured *measured) {
  for (int i = 0; i < OCT_LATENCY_COUNT; i++)
    oct_hist_free(measured->latency[i]);
  for (int h = 0; h < OCT_HIST_COUNT; h++)
    oct_hist_free(measured->steps[h]);
  oct_hist_free(measured->longest_gap);
  g_free(measured->moved);
  g_free(measured->kept);
  oct_counters_clear(&measured->at_from);
  oct_counters_clear(&measured->at_end);
  memset(measured, 0, sizeof *measured);
}
