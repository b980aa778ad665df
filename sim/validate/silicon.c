/* End to end against published runs: one protocol per source, inferred on H100 and H200 and frozen;
 * errors by engine and version; the table's own repeat spread beside them. */
#include "sim/validate/silicon.h"

#include <math.h>
#include <string.h>

#include "engine/base/assert.h"
#include "sim/validate/report.h"

/* A quick run simulates at most so many rows of each engine and system, drawn by the seed among
 * those that take little time. */
#define QUICK_ROWS            3
#define QUICK_OUTPUT_MAX      1024
#define QUICK_CONCURRENCY_MAX 64
/* Rows of each source that protocols are inferred on, and that the band of TTFT is made for. */
#define INFER_ROWS 32
#define BAND_ROWS  6
#define BAND_K_MIN 5
#define STARTS     2
#define ALL_LOADS  ((1u << OCT_SILICON_LOADS) - 1)

typedef struct protocol {
  const char *source;
  guint load, start; /* of oct_silicon_k x oct_silicon_range; 1: the first wave is left out */
  guint rows;        /* of H100 and H200 that it was inferred on */
} protocol;
#define SOURCES 3

/* Inferred by `octet validate --silicon --infer --rows 12` over k of 5, 10, 20 and kept, so that no
 * score chooses its protocol. */
static const protocol frozen[SOURCES] = {
    {"dated-csv", 3, 0, 27}, {"gap-analysis", 3, 0, 29}, {"db-dump", 2, 0, 4}};

typedef struct scored {
  const oct_silicon_row *row;
  guint index;           /* of the row */
  oct_silicon_run *runs; /* [OCT_SILICON_LOADS] */
  gboolean flagged;      /* TTFT beyond the whole burst's prefill */
} scored;

typedef struct run {
  const oct_validate_options *options;
  oct_silicon_rows rows;
  GArray *scored; /* scored */
  oct_silicon_run *runs;
  protocol protocols[SOURCES];
  guint n_protocols, unsupported, refused;
  guint limit;         /* rows of each engine and system; 0 = all */
  GHashTable *reasons; /* const char * -> count */
  json_t *part;
} run;

static gboolean
is_seen(const oct_silicon_row *row) {
  return oct_measured_systems[row->system].fitted;
}

/* ---------------------------------------------------------------- which rows */

static void
count_reason(run *r, const char *why) {
  guint n = GPOINTER_TO_UINT(g_hash_table_lookup(r->reasons, why));
  g_hash_table_insert(r->reasons, g_strdup(why), GUINT_TO_POINTER(n + 1));
}

/* A number that depends on the row's place and the seed alone: the order of a draw. */
static guint32
draw_of(guint64 seed, guint index) {
  guint64 x = (seed + 1) * G_GUINT64_CONSTANT(0x9e3779b97f4a7c15) +
              index * G_GUINT64_CONSTANT(0xbf58476d1ce4e5b9);
  x ^= x >> 31;
  x *= G_GUINT64_CONSTANT(0x94d049bb133111eb);
  return (guint32)(x >> 32);
}

static gboolean
is_same_kind(const oct_silicon_row *a, const oct_silicon_row *b) {
  return a->system == b->system && a->vague == b->vague && strcmp(a->backend, b->backend) == 0;
}

static gboolean
is_same_source(const oct_silicon_row *a, const oct_silicon_row *b) {
  return is_seen(a) == is_seen(b) && strcmp(a->source, b->source) == 0;
}

static gboolean
is_small(const oct_silicon_row *row) {
  return row->osl <= QUICK_OUTPUT_MAX && row->concurrency <= QUICK_CONCURRENCY_MAX;
}

static gboolean
is_asked_for(const run *r, const oct_silicon_row *row) {
  return (!r->options->seen || is_seen(row)) &&
         (r->options->only == NULL || strstr(row->model, r->options->only) != NULL);
}

/* Whether the row is among the first `limit` of its like in the order of the draw. */
static gboolean
is_drawn(const run *r, guint index, gboolean small,
         gboolean (*is_like)(const oct_silicon_row *, const oct_silicon_row *), guint limit) {
  const oct_silicon_row *rows = (const oct_silicon_row *)(void *)r->rows.rows->data;
  const guint32 own = draw_of(r->options->seed, index);
  guint before = 0;
  if (small && !is_small(&rows[index]))
    return FALSE;
  for (guint i = 0; i < r->rows.rows->len && before < limit; i++)
    before += draw_of(r->options->seed, i) < own && is_like(&rows[i], &rows[index]) &&
              is_asked_for(r, &rows[i]) && (!small || is_small(&rows[i])) &&
              oct_silicon_unsupported(&rows[i]) == NULL;
  return before < limit;
}

static void
choose(run *r) {
  r->scored = g_array_new(FALSE, FALSE, sizeof(scored));
  for (guint i = 0; i < r->rows.rows->len; i++) {
    const oct_silicon_row *row = &g_array_index(r->rows.rows, oct_silicon_row, i);
    const char *why = oct_silicon_unsupported(row);
    if (!is_asked_for(r, row))
      continue;
    if (why != NULL) {
      r->unsupported++;
      count_reason(r, why);
    } else if (r->limit == 0 || is_drawn(r, i, r->options->quick, is_same_kind, r->limit)) {
      scored one = {.row = row, .index = i, .flagged = row->ttft_s > oct_silicon_burst_s(row)};
      g_array_append_val(r->scored, one);
    }
  }
  r->runs = g_new0(oct_silicon_run, (gsize)r->scored->len * OCT_SILICON_LOADS + 1);
  for (guint i = 0; i < r->scored->len; i++)
    g_array_index(r->scored, scored, i).runs = r->runs + (gsize)i * OCT_SILICON_LOADS;
}

/* Runs the loads that `loads_of` names for each row, besides those that were run. */
static gboolean
simulate(run *r, guint8 (*loads_of)(const run *r, guint index), GError **error) {
  const guint n = r->scored->len;
  g_autofree const oct_silicon_row **rows = g_new(const oct_silicon_row *, n + 1);
  g_autofree guint8 *loads = g_new(guint8, n + 1);
  for (guint i = 0; i < n; i++) {
    const scored *one = &g_array_index(r->scored, scored, i);
    rows[i] = one->row;
    loads[i] = loads_of(r, i);
    for (guint load = 0; load < OCT_SILICON_LOADS; load++)
      if (one->runs[load].failed != NULL || one->runs[load].tpot_s[0] > 0)
        loads[i] &= (guint8) ~(1u << load);
  }
  return oct_silicon_simulate(rows, n, loads, r->options, r->runs, error);
}

/* ---------------------------------------------------------------- protocols */

static double
log_error(double predicted, double measured) {
  return predicted > 0 ? fabs(log(predicted / measured)) : INFINITY;
}

/* How far a protocol is off on the source's rows of H100 and H200; *n = how many. Time per token
 * counts most: TTFT depends on more than a protocol can say, and is scored as a band. */
#define TTFT_WEIGHT 0.25

static double
protocol_error(const run *r, const protocol *p, guint load, guint start, guint *n) {
  g_autofree double *ttft = g_new(double, r->scored->len + 1);
  g_autofree double *tpot = g_new(double, r->scored->len + 1);
  *n = 0;
  for (guint i = 0; i < r->scored->len; i++) {
    const scored *s = &g_array_index(r->scored, scored, i);
    const oct_silicon_run *one = &s->runs[load];
    if (!is_seen(s->row) || s->flagged || strcmp(s->row->source, p->source) != 0 ||
        one->failed != NULL || !(one->ttft_s[start] > 0))
      continue;
    ttft[*n] = log_error(one->ttft_s[start], s->row->ttft_s);
    tpot[(*n)++] = log_error(one->tpot_s[start], s->row->tpot_s);
  }
  return oct_quantile(tpot, *n, 0.5) + TTFT_WEIGHT * oct_quantile(ttft, *n, 0.5);
}

/* The load and start with the smallest error; as it was where the source has no such rows. */
static void
infer(const run *r, protocol *p) {
  double best = INFINITY;
  for (guint load = 0; load < OCT_SILICON_LOADS; load++)
    for (guint start = 0; start < STARTS; start++) {
      guint n;
      double error = protocol_error(r, p, load, start, &n);
      if (n > 0 && error < best) {
        best = error;
        p->load = load;
        p->start = start;
        p->rows = n;
      }
    }
}

/* A source that is not known has the last one's. */
static const protocol *
protocol_of(const run *r, const oct_silicon_row *row) {
  guint i = 0;
  while (i + 1 < r->n_protocols && strcmp(r->protocols[i].source, row->source) != 0)
    i++;
  return &r->protocols[i];
}

static gboolean
has_run(const run *r, const scored *s) {
  const protocol *p = protocol_of(r, s->row);
  return s->runs[p->load].failed == NULL && s->runs[p->load].tpot_s[p->start] > 0;
}

static guint8
loads_of_protocol(const run *r, guint index) {
  return (guint8)(1u << protocol_of(r, g_array_index(r->scored, scored, index).row)->load);
}

static guint8
loads_of_inference(const run *r, guint index) {
  const scored *s = &g_array_index(r->scored, scored, index);
  gboolean wanted =
      is_seen(s->row) && !s->flagged && is_drawn(r, s->index, FALSE, is_same_source, INFER_ROWS);
  return wanted ? ALL_LOADS : 0;
}

static guint8
loads_of_band(const run *r, guint index) {
  const scored *s = &g_array_index(r->scored, scored, index);
  gboolean wanted = !s->flagged && is_drawn(r, s->index, FALSE, is_same_source, BAND_ROWS);
  return wanted ? ALL_LOADS : 0;
}

static gboolean
settle_protocols(run *r, GError **error) {
  r->n_protocols = G_N_ELEMENTS(frozen);
  memcpy(r->protocols, frozen, sizeof frozen);
  if (!r->options->infer)
    return TRUE;
  if (!simulate(r, loads_of_inference, error))
    return FALSE;
  for (guint i = 0; i < r->n_protocols; i++)
    infer(r, &r->protocols[i]);
  return TRUE;
}

/* The least error of each k: "1: 20, 5: 11, …"; "–" where the protocol was not inferred now. Owned.
 */
static char *
errors_by_k(const run *r, const protocol *p) {
  g_autoptr(GString) text = g_string_new(NULL);
  for (guint k = 0; k < OCT_SILICON_KS && r->options->infer; k++) {
    double least = INFINITY;
    for (guint range = 0; range < OCT_SILICON_RANGES; range++)
      for (guint start = 0; start < STARTS; start++) {
        guint n;
        double error = protocol_error(r, p, k * OCT_SILICON_RANGES + range, start, &n);
        least = n > 0 ? MIN(least, error) : least;
      }
    g_string_append_printf(text, "%s%u: %.0f", k > 0 ? ", " : "", oct_silicon_k[k], 100 * least);
  }
  return g_strdup(text->len > 0 ? text->str : "–");
}

static void
show_protocols(run *r) {
  static const char *const columns[] = {"source",     "rows of H100, H200", "prompts", "lengths",
                                        "first wave", "error % by k",       NULL};
  json_t *table = oct_validate_table(
      r->part, "Protocols: inferred on H100 and H200 rows, then frozen", columns);
  for (guint i = 0; i < r->n_protocols; i++) {
    const protocol *p = &r->protocols[i];
    const double range = oct_silicon_range[p->load % OCT_SILICON_RANGES];
    json_t *row = oct_validate_row(table);
    oct_validate_text(row, "%s", p->source);
    json_array_append_new(row, json_integer(p->rows));
    oct_validate_text(row, "%u x concurrency", oct_silicon_k[p->load / OCT_SILICON_RANGES]);
    oct_validate_text(row, range < 1 ? "%.1f … 1 x" : "exact", range);
    oct_validate_text(row, p->start == 1 ? "left out" : "counted");
    g_autofree char *by_k = errors_by_k(r, p);
    oct_validate_text(row, "%s", by_k);
  }
  oct_validate_note(table, "Closed loop at the row's concurrency; random data: no prefix hits, "
                           "uniform routing, no chat-template tokens.");
}

/* ---------------------------------------------------------------- constants of engines */

/* What the presets of sim/engines would need to be right on H100 and H200: a factor on steps and a
 * gap between them, on top of what they have. */
static void
show_engine_fits(run *r) {
  static const char *const columns[] = {
      "engine", "rows of H100, H200", "median % as it is", "factor",
      "gap ms", "median % then",      "TTFT lacks ms",     NULL};
  json_t *table = oct_validate_table(
      r->part, "Engines: what would make the time per token right on H100 and H200", columns);
  g_auto(GStrv) names = oct_engine_preset_list();
  g_autofree double *predicted = g_new(double, r->scored->len + 1);
  g_autofree double *measured = g_new(double, r->scored->len + 1);
  g_autofree double *lacks = g_new(double, r->scored->len + 1);
  for (guint e = 0; names[e] != NULL; e++) {
    g_auto(oct_score) now = {0};
    oct_silicon_fit fit;
    guint n = 0, n_lacks = 0;
    for (guint i = 0; i < r->scored->len; i++) {
      const scored *s = &g_array_index(r->scored, scored, i);
      if (!is_seen(s->row) || !has_run(r, s) || strcmp(oct_silicon_engine(s->row), names[e]) != 0)
        continue;
      const protocol *p = protocol_of(r, s->row);
      predicted[n] = s->runs[p->load].tpot_s[p->start];
      measured[n] = s->row->tpot_s;
      oct_score_add(&now, predicted[n], measured[n]);
      n++;
      if (!s->flagged)
        lacks[n_lacks++] = s->row->ttft_s - s->runs[p->load].ttft_s[p->start];
    }
    if (n == 0)
      continue;
    oct_silicon_fit_steps(predicted, measured, n, &fit);
    json_t *row = oct_validate_row(table);
    oct_validate_text(row, "%s", names[e]);
    json_array_append_new(row, json_integer(n));
    oct_validate_number(row, 100 * oct_score_quantile(&now, 0.5));
    oct_validate_text(row, "%.2f", fit.factor);
    oct_validate_text(row, "%.1f", 1e3 * fit.gap_s);
    oct_validate_number(row, 100 * fit.median);
    oct_validate_number(row, 1e3 * oct_quantile(lacks, n_lacks, 0.5));
  }
  oct_validate_note(table, "Rows without version or precision count here: the engine is known.");
}

/* ---------------------------------------------------------------- scores */

typedef struct figures {
  oct_score tpot, ttft, e2e, rate;
  GArray *tpot_spread, *ttft_spread; /* double */
  guint banded, in_band, flagged;
} figures;

static void
figures_init(figures *f) {
  *f = (figures){.tpot_spread = g_array_new(FALSE, FALSE, sizeof(double)),
                 .ttft_spread = g_array_new(FALSE, FALSE, sizeof(double))};
}

static void
figures_clear(figures *f) {
  oct_score_clear(&f->tpot);
  oct_score_clear(&f->ttft);
  oct_score_clear(&f->e2e);
  oct_score_clear(&f->rate);
  g_array_unref(f->tpot_spread);
  g_array_unref(f->ttft_spread);
}

static double
e2e_of(const oct_silicon_row *row, double ttft_s, double tpot_s) {
  return ttft_s + (row->osl - 1) * tpot_s;
}

/* Whether the measured TTFT lies between the lowest and the highest of the loads; -1: not all of
 * them were run. */
static int
is_in_band(const scored *s, guint start) {
  double low = INFINITY, high = 0;
  for (guint load = 0; load < OCT_SILICON_LOADS; load++) {
    if (oct_silicon_k[load / OCT_SILICON_RANGES] < BAND_K_MIN)
      continue;
    if (!(s->runs[load].ttft_s[start] > 0))
      return -1;
    low = MIN(low, s->runs[load].ttft_s[start]);
    high = MAX(high, s->runs[load].ttft_s[start]);
  }
  return s->row->ttft_s >= low && s->row->ttft_s <= high;
}

static void
count_row(const run *r, figures *f, const scored *s) {
  const protocol *p = protocol_of(r, s->row);
  const oct_silicon_run *one = &s->runs[p->load];
  const double ttft_s = one->ttft_s[p->start], tpot_s = one->tpot_s[p->start];
  const double measured_e2e_s = e2e_of(s->row, s->row->ttft_s, s->row->tpot_s);
  oct_score_add(&f->tpot, tpot_s, s->row->tpot_s);
  f->flagged += s->flagged;
  if (isfinite(s->row->tpot_spread)) {
    g_array_append_val(f->tpot_spread, s->row->tpot_spread);
    g_array_append_val(f->ttft_spread, s->row->ttft_spread);
  }
  if (s->flagged)
    return;
  /* Tokens per second of a closed loop: concurrency x osl over the time that a request takes. */
  const double e2e_s = e2e_of(s->row, ttft_s, tpot_s);
  oct_score_add(&f->ttft, ttft_s, s->row->ttft_s);
  oct_score_add(&f->e2e, e2e_s, measured_e2e_s);
  oct_score_add(&f->rate, 1 / e2e_s, 1 / measured_e2e_s);
  int in_band = is_in_band(s, p->start);
  f->banded += in_band >= 0;
  f->in_band += in_band > 0;
}

static void
add_row(json_t *table, const char *engine, const char *version, guint system, figures *f) {
  json_t *row = oct_validate_row(table);
  GArray *a = f->tpot_spread, *b = f->ttft_spread;
  oct_validate_text(row, "%s", engine);
  oct_validate_text(row, "%s", *version != '\0' ? version : "–");
  oct_validate_text(row, "%s",
                    system < OCT_MEASURED_SYSTEMS ? oct_measured_systems[system].short_name
                                                  : "all not fitted");
  json_array_append_new(row, json_integer(oct_score_n(&f->tpot)));
  oct_validate_number(row, 100 * oct_score_quantile(&f->tpot, 0.5));
  oct_validate_number(row, 100 * oct_score_quantile(&f->tpot, 0.9));
  oct_validate_number(row, 100 * oct_score_bias(&f->tpot));
  oct_validate_number(row, 100 * oct_score_quantile(&f->rate, 0.5));
  oct_validate_number(row, 100 * oct_score_quantile(&f->e2e, 0.5));
  oct_validate_number(row, 100 * oct_score_quantile(&f->ttft, 0.5));
  oct_validate_text(row, "%u of %u", f->in_band, f->banded);
  json_array_append_new(row, json_integer(f->flagged));
  if (a->len == 0)
    oct_validate_text(row, "–");
  else
    oct_validate_text(row, "%.1f / %.1f (%u)",
                      100 * oct_quantile((double *)(void *)a->data, a->len, 0.5),
                      100 * oct_quantile((double *)(void *)b->data, b->len, 0.5), a->len);
}

static int
compare_scored(const void *a, const void *b) {
  const oct_silicon_row *x = (*(const scored *const *)a)->row,
                        *y = (*(const scored *const *)b)->row;
  int order = strcmp(x->backend, y->backend);
  order = order != 0 ? order : strcmp(x->version, y->version);
  return order != 0 ? order : (x->system > y->system) - (x->system < y->system);
}

/* One table of rows with or without version and precision; adds those of systems that were not
 * fitted to `all`. */
static void
score_table(run *r, gboolean vague, const char *title, figures *all) {
  static const char *const columns[] = {"engine",
                                        "version",
                                        "system",
                                        "rows",
                                        "TPOT median %",
                                        "TPOT p90 %",
                                        "TPOT bias %",
                                        "tok/s median %",
                                        "E2E median %",
                                        "TTFT median %",
                                        "TTFT in band",
                                        "flagged",
                                        "repeats TPOT / TTFT % (n)",
                                        NULL};
  json_t *table = oct_validate_table(r->part, title, columns);
  g_autoptr(GPtrArray) list = g_ptr_array_new();
  for (guint i = 0; i < r->scored->len; i++) {
    scored *s = &g_array_index(r->scored, scored, i);
    if (s->row->vague == vague && has_run(r, s))
      g_ptr_array_add(list, s);
  }
  qsort(list->pdata, list->len, sizeof *list->pdata, compare_scored);
  for (guint from = 0, to; from < list->len; from = to) {
    const scored *first = list->pdata[from];
    figures f;
    figures_init(&f);
    for (to = from; to < list->len && compare_scored(&list->pdata[from], &list->pdata[to]) == 0;
         to++) {
      count_row(r, &f, list->pdata[to]);
      if (!is_seen(first->row))
        count_row(r, all, list->pdata[to]);
    }
    add_row(table, first->row->backend, first->row->version, first->row->system, &f);
    figures_clear(&f);
  }
  if (oct_score_n(&all->tpot) > 0)
    add_row(table, "all", "", OCT_MEASURED_SYSTEMS, all);
}

/* Time per token by kind of model, with and without version: what plans take as the error of step
 * costs. */
static void
score_kinds(run *r) {
  static const char *const columns[] = {"model", "systems", OCT_VALIDATE_SCORE_COLUMNS, NULL};
  json_t *table = oct_validate_table(r->part, "Time per token by kind of model, all rows", columns);
  for (guint kind = 0; kind < 4; kind++) {
    const gboolean experts = kind >= 2, seen = kind % 2 == 0;
    g_auto(oct_score) score = {0};
    for (guint i = 0; i < r->scored->len; i++) {
      const scored *s = &g_array_index(r->scored, scored, i);
      const protocol *p = protocol_of(r, s->row);
      if (oct_silicon_has_experts(s->row) == experts && is_seen(s->row) == seen && has_run(r, s))
        oct_score_add(&score, s->runs[p->load].tpot_s[p->start], s->row->tpot_s);
    }
    json_t *row = oct_validate_row(table);
    oct_validate_text(row, experts ? "with experts" : "dense");
    oct_validate_text(row, seen ? "H100, H200 (fitted to)" : "B200 (not fitted to)");
    oct_validate_cells(row, &score);
    if (!seen) {
      const char *const names[] = {
          experts ? "TPOT of models with experts, rows" : "TPOT of dense models, rows",
          experts ? "TPOT of models with experts, median" : "TPOT of dense models, median",
          experts ? "TPOT of models with experts, p90" : "TPOT of dense models, p90"};
      oct_validate_count(r->part, names[0], oct_score_n(&score));
      oct_validate_percent(r->part, names[1], oct_score_quantile(&score, 0.5));
      oct_validate_percent(r->part, names[2], oct_score_quantile(&score, 0.9));
    }
  }
}

/* ---------------------------------------------------------------- the whole */

static void
add_notes(run *r) {
  json_t *tables = json_object_get(r->part, "tables");
  json_t *last = json_array_get(tables, json_array_size(tables) - 1);
  oct_validate_note(last,
                    "%u rows read: %u disaggregated, %u equal to another in every cell, %u not "
                    "supported, %u that do not fit the memory of the engine imitated.",
                    r->rows.read, r->rows.disaggregated, r->rows.duplicates, r->unsupported,
                    r->refused);
  g_autoptr(GList) keys = g_list_sort(g_hash_table_get_keys(r->reasons), (GCompareFunc)strcmp);
  for (GList *k = keys; k != NULL; k = k->next) {
    guint n = GPOINTER_TO_UINT(g_hash_table_lookup(r->reasons, k->data));
    oct_validate_note(last, "Not supported: %s: %u rows.", (const char *)k->data, n);
  }
  oct_validate_note(last,
                    "Flagged: TTFT beyond what prefilling the whole burst takes, so no simple "
                    "closed loop: TPOT is scored, TTFT, E2E and tok/s are not. E2E = TTFT + "
                    "(osl - 1) x TPOT on both sides. Repeats: median distance of a row from "
                    "the mean of the table's own measurements of its configuration.");
  if (!r->options->quick)
    oct_validate_note(last,
                      "Band: the lowest to the highest TTFT over k of 5, 10, 20 and lengths "
                      "exact or from 0.8, for %d rows of each source on systems fitted and "
                      "not, drawn by seed.",
                      BAND_ROWS);
  if (r->limit > 0)
    oct_validate_note(last,
                      "A sample: at most %u rows of each engine and system, with and without "
                      "version and precision, drawn by seed %" G_GUINT64_FORMAT ".",
                      r->limit, r->options->seed);
  if (r->options->seen)
    oct_validate_note(last, "Only systems that constants may be fitted to: no score.");
  if (r->options->only != NULL)
    oct_validate_note(last, "Only models whose name has \"%s\".", r->options->only);
  if (r->options->quick)
    oct_validate_note(last,
                      "Quick: of those of at most %d tokens out and a concurrency of at most "
                      "%d.",
                      QUICK_OUTPUT_MAX, QUICK_CONCURRENCY_MAX);
}

/* Every row, for programs: not printed. */
static void
add_rows(run *r) {
  json_t *list = json_array();
  for (guint i = 0; i < r->scored->len; i++) {
    const scored *s = &g_array_index(r->scored, scored, i);
    const oct_silicon_row *row = s->row;
    const protocol *p = protocol_of(r, row);
    const oct_silicon_run *one = &s->runs[p->load];
    json_t *out = json_pack(
        "{s:s,s:s,s:s,s:s,s:s,s:s,s:s,s:i,s:i,s:i,s:i,s:i,s:i,s:f,s:f,s:f,s:f,s:b}", "backend",
        row->backend, "version", row->version, "model", row->model, "precision", row->precision,
        "gemm", row->gemm, "source", row->source, "system",
        oct_measured_systems[row->system].short_name, "isl", (int)row->isl, "osl", (int)row->osl,
        "concurrency", (int)row->concurrency, "tp", (int)row->tp, "dp", (int)row->dp, "ep",
        (int)row->moe_ep, "ttft_s", row->ttft_s, "tpot_s", row->tpot_s, "predicted_ttft_s",
        one->ttft_s[p->start], "predicted_tpot_s", one->tpot_s[p->start], "flagged", s->flagged);
    if (one->failed != NULL)
      json_object_set_new(out, "refused", json_string(one->failed));
    r->refused += one->failed != NULL;
    json_array_append_new(list, out);
  }
  json_object_set_new(r->part, "rows", list);
}

static void
clear(run *r) {
  for (gsize i = 0; r->runs != NULL && i < (gsize)r->scored->len * OCT_SILICON_LOADS; i++)
    g_free(r->runs[i].failed);
  g_free(r->runs);
  g_clear_pointer(&r->scored, g_array_unref);
  g_hash_table_unref(r->reasons);
  oct_silicon_clear(&r->rows);
}

json_t *
oct_validate_silicon(const oct_validate_options *options, GError **error) {
  run r = {.options = options};
  if (!oct_silicon_read(&r.rows, options->data, error))
    return NULL;
  r.reasons = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
  r.part = oct_validate_part("silicon");
  r.limit = options->rows > 0 ? options->rows : (options->quick ? QUICK_ROWS : 0);
  choose(&r);
  gboolean good = settle_protocols(&r, error) && simulate(&r, loads_of_protocol, error) &&
                  (options->quick || simulate(&r, loads_of_band, error));
  if (good) {
    figures clear_rows, vague_rows;
    figures_init(&clear_rows);
    figures_init(&vague_rows);
    show_protocols(&r);
    show_engine_fits(&r);
    add_rows(&r);
    score_table(&r, FALSE, "Rows with version and precision", &clear_rows);
    score_table(&r, TRUE, "Rows without version or precision: which kernels ran is not known",
                &vague_rows);
    add_notes(&r);
    score_kinds(&r);
    oct_validate_aim(r.part, "TPOT on systems not fitted, median", 0.08,
                     oct_score_quantile(&clear_rows.tpot, 0.5));
    figures_clear(&clear_rows);
    figures_clear(&vague_rows);
  }
  clear(&r);
  if (good)
    return r.part;
  json_decref(r.part);
  return NULL;
}
