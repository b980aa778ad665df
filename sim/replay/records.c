#include "sim/replay/records.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sim/replay/measured-json.h"

#define STEPS 5 /* of a window's length, from one to the next */

typedef struct record {
  oct_time arrival_ns;
  gint64 ttft_ns, tpot_ns, e2e_ns, gap_ns; /* -1 = none */
  guint32 tokens;
  guint16 class_index;
  gboolean answered;
} record;

struct oct_records {
  GArray *all; /* of record */
  gboolean full;
  GPtrArray *classes; /* char *, owned; [0] is "" */
};

oct_records *
oct_records_new(void) {
  oct_records *r = g_new0(oct_records, 1);
  r->all = g_array_new(FALSE, FALSE, sizeof(record));
  r->classes = g_ptr_array_new_with_free_func(g_free);
  g_ptr_array_add(r->classes, g_strdup(""));
  return r;
}

void
oct_records_free(oct_records *r) {
  if (r == NULL)
    return;
  g_array_unref(r->all);
  g_ptr_array_unref(r->classes);
  g_free(r);
}

/* The class's number; those past the limit count as without. */
static guint16
class_of(oct_records *r, const char *name) {
  for (guint i = 0; i < r->classes->len; i++)
    if (strcmp(r->classes->pdata[i], name) == 0)
      return (guint16)i;
  if (r->classes->len > OCT_RECORDS_CLASSES_MAX)
    return 0;
  g_ptr_array_add(r->classes, g_strdup(name));
  return (guint16)(r->classes->len - 1);
}

void
oct_records_add(oct_records *r, const oct_outcome *o, const char *class_name) {
  if (r->all->len >= OCT_RECORDS_MAX) {
    r->full = TRUE;
    return;
  }
  record one = {.arrival_ns = o->arrival_ns,
                .ttft_ns = o->value_ns[OCT_LATENCY_TTFT],
                .tpot_ns = o->value_ns[OCT_LATENCY_TPOT],
                .e2e_ns = o->value_ns[OCT_LATENCY_E2E],
                .gap_ns = o->value_ns[OCT_LATENCY_ITL],
                .tokens = o->input_tokens + o->output_tokens,
                .class_index = class_of(r, class_name != NULL ? class_name : ""),
                .answered = o->fate == OCT_FATE_ANSWERED};
  g_array_append_val(r->all, one);
}

/* ---------------------------------------------------------------- figures of some of them */

static int
compare_arrivals(gconstpointer a, gconstpointer b) {
  const record *x = a, *y = b;
  return x->arrival_ns < y->arrival_ns ? -1 : x->arrival_ns > y->arrival_ns;
}

static int
compare_times(const void *a, const void *b) {
  gint64 x = *(const gint64 *)a, y = *(const gint64 *)b;
  return x < y ? -1 : x > y;
}

/* Records of a stretch of time in order of arrival, or of a class. */
typedef struct part {
  const record *const *records;
  guint n;
} part;

/* Nearest rank of a latency of the part; -1 when none has it. */
static gint64
percentile(const part *p, gsize offset, double percent) {
  g_autofree gint64 *values = g_new(gint64, MAX(p->n, 1));
  guint n = 0;
  for (guint i = 0; i < p->n; i++) {
    gint64 value = G_STRUCT_MEMBER(gint64, p->records[i], offset);
    if (value >= 0)
      values[n++] = value;
  }
  if (n == 0)
    return -1;
  qsort(values, n, sizeof *values, compare_times);
  guint rank = (guint)ceil(percent / 100 * n);
  return values[MAX(rank, 1) - 1];
}

static json_t *
percentile_json(const part *p, gsize offset, double percent) {
  gint64 value = percentile(p, offset, percent);
  return value >= 0 ? oct_json_seconds(value) : json_null();
}

static gboolean
is_good(const record *r, const oct_slo *slo) {
  gint64 value_ns[OCT_LATENCY_COUNT] = {-1, -1, -1, -1, -1};
  value_ns[OCT_LATENCY_TTFT] = r->ttft_ns;
  value_ns[OCT_LATENCY_TPOT] = r->tpot_ns;
  value_ns[OCT_LATENCY_E2E] = r->e2e_ns;
  value_ns[OCT_LATENCY_ITL] = r->gap_ns;
  return r->answered && oct_slo_is_good(slo, value_ns);
}

static guint
count_good(const part *p, const oct_slo *slo) {
  guint good = 0;
  for (guint i = 0; i < p->n; i++)
    good += is_good(p->records[i], slo);
  return good;
}

/* ---------------------------------------------------------------- windows */

static json_t *
window_json(const part *p, oct_time from_ns, gint64 length_ns, const oct_slo *slo) {
  double tokens = 0;
  for (guint i = 0; i < p->n; i++)
    tokens += p->records[i]->tokens;
  return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "from_s", oct_json_seconds(from_ns),
                   "length_s", oct_json_seconds(length_ns), "requests", oct_json_count(p->n),
                   "attainment", oct_json_share(count_good(p, slo), p->n), "ttft_p99_s",
                   percentile_json(p, G_STRUCT_OFFSET(record, ttft_ns), 99), "tpot_p99_s",
                   percentile_json(p, G_STRUCT_OFFSET(record, tpot_ns), 99), "e2e_p99_s",
                   percentile_json(p, G_STRUCT_OFFSET(record, e2e_ns), 99), "tokens_per_s",
                   oct_json_real(tokens / ((double)length_ns / 1e9)));
}

typedef struct choice {
  part part;
  oct_time from_ns;
  double share, tokens;
  gint64 ttft_ns;
} choice;

static void
look_at(const part *p, oct_time from_ns, const oct_slo *slo, choice *worst, choice *peak) {
  choice c = {.part = *p, .from_ns = from_ns};
  if (p->n == 0)
    return;
  c.share = (double)count_good(p, slo) / p->n;
  c.ttft_ns = percentile(p, G_STRUCT_OFFSET(record, ttft_ns), 99);
  for (guint i = 0; i < p->n; i++)
    c.tokens += p->records[i]->tokens;
  if (worst->part.n == 0 || c.share < worst->share ||
      (c.share <= worst->share && c.ttft_ns > worst->ttft_ns))
    *worst = c;
  if (peak->part.n == 0 || c.tokens > peak->tokens)
    *peak = c;
}

json_t *
oct_records_windows_json(const oct_records *r, oct_time from_ns, oct_time end_ns, gint64 length_ns,
                         const oct_slo *slo) {
  if (r == NULL || length_ns <= 0)
    return json_null();
  if (r->full)
    return json_pack("{s:o}", "reason", oct_json_text("more requests than are kept one by one"));
  /* A run that is shorter is one window of its own length: rates are over what there was. */
  length_ns = MIN(length_ns, MAX(end_ns - from_ns, 1));
  const gint64 step_ns = MAX(length_ns / STEPS, 1);
  g_autoptr(GArray) sorted = g_array_copy(r->all);
  g_autofree const record **list = g_new(const record *, MAX(sorted->len, 1));
  g_array_sort(sorted, compare_arrivals);
  for (guint i = 0; i < sorted->len; i++)
    list[i] = &g_array_index(sorted, record, i);
  choice worst = {0}, peak = {0};
  guint first = 0, end = 0;
  /* The last window is whole: what arrives after it is part of earlier ones. */
  for (oct_time at = from_ns; at == from_ns || at + length_ns <= end_ns; at += step_ns) {
    while (first < sorted->len && list[first]->arrival_ns < at)
      first++;
    end = MAX(end, first);
    while (end < sorted->len && list[end]->arrival_ns < MIN(at + length_ns, end_ns))
      end++;
    const part p = {list + first, end - first};
    look_at(&p, at, slo, &worst, &peak);
  }
  if (worst.part.n == 0)
    return json_null();
  return json_pack("{s:o, s:o}", "worst", window_json(&worst.part, worst.from_ns, length_ns, slo),
                   "peak", window_json(&peak.part, peak.from_ns, length_ns, slo));
}

/* ---------------------------------------------------------------- classes */

static json_t *
objectives_json(const part *p, const oct_slo *slo) {
  static const gsize offsets[OCT_LATENCY_COUNT] = {
      [OCT_LATENCY_TTFT] = G_STRUCT_OFFSET(record, ttft_ns),
      [OCT_LATENCY_TPOT] = G_STRUCT_OFFSET(record, tpot_ns),
      [OCT_LATENCY_ITL] = G_STRUCT_OFFSET(record, gap_ns),
      [OCT_LATENCY_E2E] = G_STRUCT_OFFSET(record, e2e_ns)};
  json_t *list = json_array();
  for (guint i = 0; i < slo->n_items; i++) {
    const oct_slo_item *item = &slo->items[i];
    if (item->is_mean || item->latency == OCT_LATENCY_QUEUE)
      continue; /* of the whole run only */
    gint64 value = percentile(p, offsets[item->latency], item->percent);
    json_array_append_new(list, json_pack("{s:s, s:o, s:o, s:b}", "name", item->name, "limit_s",
                                          oct_json_seconds(item->limit_ns), "value_s",
                                          value >= 0 ? oct_json_seconds(value) : json_null(), "met",
                                          value <= item->limit_ns));
  }
  return list;
}

static json_t *
class_json(const part *p, const char *name, const oct_slo *slo) {
  guint answered = 0;
  for (guint i = 0; i < p->n; i++)
    answered += p->records[i]->answered;
  json_t *out = json_object();
  json_object_set_new(out, "class", oct_json_text(name));
  json_object_set_new(out, "requests", oct_json_count(p->n));
  json_object_set_new(out, "answered", oct_json_count(answered));
  json_object_set_new(out, "attainment", oct_json_share(count_good(p, slo), p->n));
  json_object_set_new(out, "ttft_p50_s", percentile_json(p, G_STRUCT_OFFSET(record, ttft_ns), 50));
  json_object_set_new(out, "ttft_p99_s", percentile_json(p, G_STRUCT_OFFSET(record, ttft_ns), 99));
  json_object_set_new(out, "tpot_p50_s", percentile_json(p, G_STRUCT_OFFSET(record, tpot_ns), 50));
  json_object_set_new(out, "tpot_p99_s", percentile_json(p, G_STRUCT_OFFSET(record, tpot_ns), 99));
  json_object_set_new(out, "e2e_p50_s", percentile_json(p, G_STRUCT_OFFSET(record, e2e_ns), 50));
  json_object_set_new(out, "e2e_p99_s", percentile_json(p, G_STRUCT_OFFSET(record, e2e_ns), 99));
  json_object_set_new(out, "objectives", objectives_json(p, slo));
  return out;
}

static int
compare_names(gconstpointer a, gconstpointer b, gpointer classes) {
  const GPtrArray *names = classes;
  return strcmp(names->pdata[*(const guint *)a], names->pdata[*(const guint *)b]);
}

const char *
oct_records_lack_of(const oct_records *r, const char *class_name) {
  if (r != NULL && r->full)
    return "more requests than are kept one by one";
  for (guint c = 0; r != NULL && r->classes->len > 1 && c < r->classes->len; c++)
    if (strcmp(r->classes->pdata[c], class_name) == 0)
      return NULL;
  return "no request of the trace has this class";
}

json_t *
oct_records_classes_json(const oct_records *r, oct_time from_ns, oct_time end_ns,
                         const oct_slo *slo, const oct_class_slo *own, guint n_own) {
  if (r == NULL || r->classes->len < 2 || r->full)
    return json_null();
  json_t *list = json_array();
  g_autofree const record **members = g_new(const record *, MAX(r->all->len, 1));
  g_autofree guint *order = g_new(guint, r->classes->len);
  for (guint c = 0; c < r->classes->len; c++)
    order[c] = c;
  g_qsort_with_data(order, (gint)r->classes->len, sizeof *order, compare_names, r->classes);
  for (guint c = 0; c < r->classes->len; c++) {
    const char *name = r->classes->pdata[order[c]];
    const oct_slo *limits = slo;
    part p = {members, 0};
    for (guint i = 0; i < n_own; i++)
      if (strcmp(own[i].class_name, name) == 0)
        limits = &own[i].slo;
    for (guint i = 0; i < r->all->len; i++) {
      const record *one = &g_array_index(r->all, record, i);
      if (one->class_index == order[c] && one->arrival_ns >= from_ns && one->arrival_ns < end_ns)
        members[p.n++] = one;
    }
    if (p.n > 0)
      json_array_append_new(list, class_json(&p, name, limits));
  }
  return list;
}
