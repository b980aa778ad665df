/* Kernels against measured tables: two scores that are never mixed.
 *
 * transfer: the datasheet of a machine and constants that were fitted on H100 and H200 alone
 *           (fits/hopper.ini), scored on machines of which no row was seen.
 * table:    constants (for NCCL collectives the profile's tables) of the machine's own rows, scored
 *           on shapes that were left out as a whole, fold by fold.
 */
#include <math.h>
#include <string.h>

#include "sim/validate/fit-file.h"
#include "sim/validate/report.h"
#include "sim/validate/validate.h"

#define EVALUATIONS_MAX 20000
#define MIB             1048576.0

/* Bandwidth-bound collectives are what their aim is about. */
#define BAND_LARGE 2

typedef struct run {
  const oct_validate_options *options;
  oct_law_rows rows;
  oct_profile *profiles[OCT_MEASURED_SYSTEMS];
  json_t *part;
  /* Errors of aims: over systems together, and by system where that is the aim. */
  oct_score transfer[OCT_LAW_COUNT], table[OCT_LAW_COUNT];
  oct_score transfer_large, table_large; /* all-reduce above 1 MiB */
} run;

static void
tell(const run *r, const char *what, guint done, guint total) {
  if (r->options->told != NULL)
    r->options->told(r->options->user, what, done, total);
}

static void
join(oct_score *all, const oct_score *one) {
  for (guint i = 0; i < oct_score_n(one); i++)
    oct_score_add_error(all, g_array_index(one->errors, double, i));
}

/* A row: law, system, score, and the mean of each band. */
static void
add_row(json_t *table, oct_law_id id, guint system, oct_score *bands) {
  const oct_law *law = oct_law_get(id);
  g_auto(oct_score) all = {0};
  json_t *row = oct_validate_row(table);
  for (guint b = 0; b < OCT_LAW_BANDS; b++)
    join(&all, &bands[b]);
  oct_validate_text(row, "%s", law->name);
  oct_validate_text(row, "%s", oct_measured_systems[system].short_name);
  oct_validate_cells(row, &all);
  for (guint b = 0; b < OCT_LAW_BANDS; b++) {
    if (oct_score_n(&bands[b]) > 0)
      oct_validate_text(row, "%.1f (%s)", 100 * oct_score_mean(&bands[b]), law->bands[b]);
    else
      oct_validate_text(row, "–");
  }
}

/* Decode attention again, by what the price says it waits for: a planner knows that of a step of
 * his, and errors differ by it more than by size. */
static void
add_bound(run *r) {
  static const char *const columns[] = {"KV bytes at the datasheet's rate, of the price",
                                        OCT_VALIDATE_SCORE_COLUMNS, NULL};
  static const char *const names[] = {"below 1/4", "1/4 … 1/2", "1/2 … 2/3", "above 2/3"};
  static const double ends[] = {0.25, 0.5, 2.0 / 3, INFINITY};
  json_t *table = oct_validate_table(
      r->part, "Transfer, decode attention by what it waits for, B200 and B300", columns);
  const GArray *rows = r->rows.of[OCT_LAW_DECODE];
  for (guint b = 0; b < G_N_ELEMENTS(names); b++) {
    g_auto(oct_score) score = {0};
    for (guint i = 0; i < rows->len; i++) {
      const oct_law_row *row = &g_array_index(rows, oct_law_row, i);
      const oct_attention_shape *s = &row->u.attention;
      const oct_profile *profile = r->profiles[row->system];
      if (oct_measured_systems[row->system].fitted)
        continue;
      const double price_s = 1e-9 * oct_cost_attention_ns(profile, s);
      const double bytes = (double)s->context * s->n_kv_heads *
                           ((double)s->key_dim + s->value_dim) * s->kv_element_bytes;
      const double share = bytes / profile->gpu.hbm_bytes_per_s / price_s;
      if (share < ends[b] && (b == 0 || share >= ends[b - 1]))
        oct_score_add(&score, price_s, row->measured_s);
    }
    json_t *out = oct_validate_row(table);
    oct_validate_text(out, "%s", names[b]);
    oct_validate_cells(out, &score);
  }
}

static const char *const score_columns[] = {
    "operator", "system", OCT_VALIDATE_SCORE_COLUMNS, "band 1", "band 2", "band 3", "band 4", NULL};

/* ---------------------------------------------------------------- transfer */

static void
transfer_row(run *r, json_t *table, oct_law_id id, guint system) {
  oct_score bands[OCT_LAW_BANDS] = {{0}};
  const oct_law_choice all = {1u << system, -1, FALSE};
  for (guint b = 0; b < OCT_LAW_BANDS; b++) {
    oct_law_score(&r->rows, id, &all, (int)b, r->profiles, &bands[b]);
    join(&r->transfer[id], &bands[b]);
    if (id == OCT_LAW_ALL_REDUCE && b >= BAND_LARGE)
      join(&r->transfer_large, &bands[b]);
  }
  add_row(table, id, system, bands);
  for (guint b = 0; b < OCT_LAW_BANDS; b++)
    oct_score_clear(&bands[b]);
}

static gboolean
transfer(run *r, GError **error) {
  json_t *table = oct_validate_table(
      r->part, "Transfer: datasheet, and constants of H100 and H200 only (fits/hopper.ini)",
      score_columns);
  for (guint s = 0; s < OCT_MEASURED_SYSTEMS; s++)
    if (!oct_fit_file_apply(OCT_FIT_TRANSFER, r->profiles[s], error))
      return FALSE;
  for (guint id = 0; id < OCT_LAW_COUNT; id++) {
    const oct_law_choice seen = {1u << 0 | 1u << 1, -1, FALSE};
    /* A type that Hopper does not have has nothing to transfer. */
    if (oct_law_count(&r->rows, id, &seen) == 0)
      continue;
    for (guint s = 0; s < OCT_MEASURED_SYSTEMS; s++)
      if (!oct_measured_systems[s].fitted)
        transfer_row(r, table, id, s);
  }
  oct_validate_note(table, "Rows of H100 and H200 were fitted to and are not scored. NVFP4 has no "
                           "rows there, so nothing to transfer.");
  oct_validate_note(table, "Bands: mean error in percent; GEMM by rows m, attention by KV bytes or "
                           "prompt tokens, experts by tokens, collectives by bytes.");
  add_bound(r);
  return TRUE;
}

/* ---------------------------------------------------------------- table */

/* The curve without the sizes of a fold. */
static double
without_fold(const oct_curve *curve, guint fold, double bytes) {
  oct_curve cut = {0};
  for (guint32 i = 0; i < curve->n; i++)
    if ((guint)(log2(curve->x[i]) + 0.5) % OCT_LAW_FOLDS != fold) {
      cut.x[cut.n] = curve->x[i];
      cut.y[cut.n++] = curve->y[i];
    }
  return oct_curve_at(&cut, bytes);
}

/* NCCL's collectives are looked up in tables of 16-bit rows: those are the measurements held out by
 * size; 8-bit rows of the same bytes go with them. */
static void
collective_fold(run *r, oct_law_id id, guint system, guint fold, oct_score *bands) {
  const oct_profile_collectives *c = &r->profiles[system]->collectives;
  for (guint i = 0; i < r->rows.of[id]->len; i++) {
    const oct_law_row *row = &g_array_index(r->rows.of[id], oct_law_row, i);
    if (row->system != system || row->fold != fold)
      continue;
    guint size = row->u.collective.n == 2 ? 0 : (row->u.collective.n == 4 ? 1 : 2);
    const oct_curve *curve = id == OCT_LAW_ONESHOT ? &c->oneshot_all_reduce[size]
                                                   : &c->nccl[id - OCT_LAW_ALL_REDUCE][size];
    if (curve->n > 0)
      oct_score_add(&bands[row->band], without_fold(curve, fold, row->u.collective.bytes),
                    row->measured_s);
  }
}

static void
fitted_fold(run *r, oct_law_id id, guint system, guint fold, oct_score *bands) {
  const oct_law_choice others = {1u << system, (int)fold, FALSE};
  const oct_law_choice own = {1u << system, (int)fold, TRUE};
  double constants[OCT_LAW_CONSTANTS_MAX];
  if (oct_law_count(&r->rows, id, &own) == 0 || oct_law_count(&r->rows, id, &others) == 0)
    return;
  oct_law_fit(&r->rows, id, &others, r->profiles, EVALUATIONS_MAX, constants);
  oct_law_set(r->profiles[system], id, constants);
  for (guint b = 0; b < OCT_LAW_BANDS; b++)
    oct_law_score(&r->rows, id, &own, (int)b, r->profiles, &bands[b]);
}

static void
table_row(run *r, json_t *table, oct_law_id id, guint system) {
  oct_score bands[OCT_LAW_BANDS] = {{0}};
  const guint folds = r->options->quick ? 1 : OCT_LAW_FOLDS;
  for (guint fold = 0; fold < folds; fold++) {
    if (id >= OCT_LAW_ALL_REDUCE)
      collective_fold(r, id, system, fold, bands);
    else
      fitted_fold(r, id, system, fold, bands);
  }
  for (guint b = 0; b < OCT_LAW_BANDS; b++) {
    join(&r->table[id], &bands[b]);
    if (id == OCT_LAW_ALL_REDUCE && b >= BAND_LARGE)
      join(&r->table_large, &bands[b]);
  }
  add_row(table, id, system, bands);
  for (guint b = 0; b < OCT_LAW_BANDS; b++)
    oct_score_clear(&bands[b]);
}

static void
own_table(run *r) {
  json_t *table = oct_validate_table(
      r->part, "Table: constants of the machine's own rows, whole shapes left out", score_columns);
  for (guint id = 0; id < OCT_LAW_COUNT; id++)
    for (guint s = 0; s < OCT_MEASURED_SYSTEMS; s++) {
      const oct_law_choice own = {1u << s, -1, FALSE};
      tell(r, "shapes left out", id * OCT_MEASURED_SYSTEMS + s,
           OCT_LAW_COUNT * OCT_MEASURED_SYSTEMS);
      if (oct_law_count(&r->rows, id, &own) > 0)
        table_row(r, table, id, s);
    }
  oct_validate_note(table, "Left out together: GEMM a fifth of the (n, k) pairs, attention a fifth "
                           "of the head layouts, experts one model, collectives a fifth of the "
                           "sizes (looked up in the profile's tables without them).");
  if (r->options->quick)
    oct_validate_note(table, "Quick: the first of %d folds only.", OCT_LAW_FOLDS);
}

/* ---------------------------------------------------------------- aims */

static void
add_aims(run *r) {
  const struct {
    const char *what;
    double aim;
    const oct_score *score;
  } aims[] = {
      {"table, GEMM BF16, mean", 0.08, &r->table[OCT_LAW_GEMM_BF16]},
      {"table, GEMM FP8, mean", 0.15, &r->table[OCT_LAW_GEMM_FP8]},
      {"table, decode attention, mean", 0.10, &r->table[OCT_LAW_DECODE]},
      {"table, all-reduce above 1 MiB, mean", 0.10, &r->table_large},
      {"transfer, GEMM BF16, mean", 0.12, &r->transfer[OCT_LAW_GEMM_BF16]},
      {"transfer, GEMM FP8, mean", 0.25, &r->transfer[OCT_LAW_GEMM_FP8]},
      {"transfer, decode attention, mean", 0.10, &r->transfer[OCT_LAW_DECODE]},
      {"transfer, all-reduce above 1 MiB, mean", 0.10, &r->transfer_large},
  };
  for (gsize i = 0; i < G_N_ELEMENTS(aims); i++)
    oct_validate_aim(r->part, aims[i].what, aims[i].aim, oct_score_mean(aims[i].score));
}

static void
clear(run *r) {
  for (guint id = 0; id < OCT_LAW_COUNT; id++) {
    oct_score_clear(&r->transfer[id]);
    oct_score_clear(&r->table[id]);
  }
  oct_score_clear(&r->transfer_large);
  oct_score_clear(&r->table_large);
  oct_law_rows_clear(&r->rows);
  oct_fit_profiles_free(r->profiles);
}

json_t *
oct_validate_operators(const oct_validate_options *options, GError **error) {
  run r = {.options = options};
  if (!oct_law_rows_read(&r.rows, options->data, error))
    return NULL;
  gboolean good = oct_fit_profiles_load(r.profiles, error);
  r.part = oct_validate_part("operators");
  if (good && (good = transfer(&r, error))) {
    own_table(&r);
    add_aims(&r);
    good = oct_validate_others(options->data, r.part, error);
  }
  clear(&r);
  if (good)
    return r.part;
  json_decref(r.part);
  return NULL;
}

json_t *
oct_validate_fit(const oct_validate_options *options, const char *dir, GError **error) {
  g_auto(oct_law_rows) rows = {{0}};
  if (!oct_law_rows_read(&rows, options->data, error))
    return NULL;
  json_t *part = oct_validate_part("fit");
  if (oct_fit_files_write(&rows, dir, part, error))
    return part;
  json_decref(part);
  return NULL;
}
