#include "sim/validate/fit-file.h"

#include <math.h>
#include <string.h>

#include "sim/validate/report.h"
#include "sim/validate/validate.h"

#define EVALUATIONS_MAX 20000
#define QUANTISE_STEPS  200

typedef struct fit_name {
  const char *name;  /* of the file */
  const char *about; /* whose rows */
  guint systems;     /* as bits */
} fit_name;
static const fit_name fits[] = {
    {"h100", "h100_sxm", 1 << 0},
    {"h200", "h200_sxm", 1 << 1},
    {"b200", "b200_sxm", 1 << 2},
    {"b300", "b300_sxm", 1 << 3},
    {OCT_FIT_TRANSFER, "h100_sxm and h200_sxm together", 1 << 0 | 1 << 1},
};

/* ---------------------------------------------------------------- profiles */

gboolean
oct_fit_profiles_load(oct_profile **profiles, GError **error) {
  memset(profiles, 0, OCT_MEASURED_SYSTEMS * sizeof *profiles);
  for (guint s = 0; s < OCT_MEASURED_SYSTEMS; s++)
    if ((profiles[s] = oct_profile_load(oct_measured_systems[s].node, NULL, NULL, error)) == NULL) {
      oct_fit_profiles_free(profiles);
      return FALSE;
    }
  return TRUE;
}

void
oct_fit_profiles_free(oct_profile **profiles) {
  for (guint s = 0; s < OCT_MEASURED_SYSTEMS; s++)
    g_clear_pointer(&profiles[s], oct_profile_free);
}

static const char *
key_of(oct_law_id id) {
  static const char *const keys[OCT_LAW_COUNT] = {
      [OCT_LAW_GEMM_BF16] = "bfloat16", [OCT_LAW_GEMM_FP8] = "fp8",
      [OCT_LAW_GEMM_FP4] = "fp4",       [OCT_LAW_MOE_BF16] = "bfloat16",
      [OCT_LAW_MOE_FP8] = "fp8",        [OCT_LAW_MOE_FP8_BLOCK] = "fp8_block",
      [OCT_LAW_MOE_FP4] = "fp4"};
  return keys[id] != NULL ? keys[id] : oct_law_get(id)->key;
}

gboolean
oct_fit_file_apply(const char *name, oct_profile *profile, GError **error) {
  g_autoptr(GKeyFile) keys = g_key_file_new();
  g_autofree char *file = g_strdup_printf("%s.ini", name);
  const char *const *dirs = oct_profile_dirs();
  gboolean found = FALSE;
  for (guint i = 0; dirs[i] != NULL && !found; i++) {
    g_autofree char *path = g_build_filename(dirs[i], OCT_PROFILE_FITS, file, NULL);
    found = g_key_file_load_from_file(keys, path, G_KEY_FILE_NONE, NULL);
  }
  if (!found) {
    g_set_error(error, OCT_VALIDATE_ERROR, OCT_VALIDATE_ERROR_DATA,
                "fits/%s: no such file beside the node profiles", file);
    return FALSE;
  }
  for (guint id = 0; id < OCT_LAW_COUNT; id++) {
    const oct_law *law = oct_law_get(id);
    gsize n = 0;
    g_autofree double *constants =
        g_key_file_get_double_list(keys, law->group, key_of(id), &n, NULL);
    if (constants != NULL && n == law->n)
      oct_law_set(profile, id, constants);
  }
  return TRUE;
}

/* ---------------------------------------------------------------- writing */

typedef struct writer {
  const oct_law_rows *rows;
  oct_profile *profiles[OCT_MEASURED_SYSTEMS];
  json_t *table;
  GString *text;
  const char *group;         /* that was begun last */
  const oct_constant *order; /* that was told last */
} writer;

static void
begin_group(writer *w, oct_law_id id) {
  const oct_law *law = oct_law_get(id);
  if (w->group != NULL && strcmp(w->group, law->group) == 0)
    return;
  w->group = law->group;
  g_string_append_printf(w->text, "\n[%s]\n", law->group);
}

static void
write_constants(writer *w, oct_law_id id, const char *key, const double *constants) {
  g_string_append_printf(w->text, "%s=", key);
  for (guint i = 0; i < oct_law_get(id)->n; i++)
    g_string_append_printf(w->text, "%.4g;", constants[i]);
  g_string_append_c(w->text, '\n');
}

static const char *
order_of(oct_law_id id, GString *text) {
  const oct_law *law = oct_law_get(id);
  g_string_truncate(text, 0);
  for (guint i = 0; i < law->n; i++)
    g_string_append_printf(text, "%s%s", i > 0 ? "; " : "", law->constants[i].name);
  return text->str;
}

/* Block scales: FP8's law with the peak scaled by [efficiency], and the bandwidth of quantising
 * that is best for the profile's own row of 8192 x 8192 products, where it has one. */
static void
write_fp8_block(writer *w, const fit_name *fit, const double *fp8) {
  guint s = 0;
  while ((fit->systems >> s & 1) == 0 ||
         (s + 1 < OCT_MEASURED_SYSTEMS && fit->systems >> (s + 1) != 0))
    s++;
  oct_profile *profile = w->profiles[s];
  const oct_profile_efficiency *e = &profile->efficiency;
  const oct_curve *row = &profile->gemm_8192[OCT_MATH_FP8_BLOCK];
  oct_gemm_fit *block = &profile->gemm_fit[OCT_MATH_FP8_BLOCK];
  double constants[OCT_LAW_CONSTANTS_MAX], best = INFINITY;
  const guint n = oct_law_get(OCT_LAW_GEMM_FP8)->n;
  memcpy(constants, fp8, n * sizeof *fp8);
  constants[0] = MIN(1, fp8[0] * e->gemm[OCT_MATH_FP8_BLOCK] / e->gemm[OCT_MATH_FP8]);
  /* What makes one row slow is the other kernel's. */
  constants[G_STRUCT_OFFSET(oct_gemm_fit, single_row_s) / sizeof *constants] = 0;
  memcpy(block, constants, sizeof *block);
  for (guint i = 0; i <= QUANTISE_STEPS && row->n > 0; i++) {
    double error = 0;
    block->quantise = 0.02 * pow(50, (double)i / QUANTISE_STEPS);
    for (guint32 k = 0; k < row->n; k++)
      error += fabs(oct_cost_gemm_ns(profile, OCT_MATH_FP8_BLOCK, (guint64)row->x[k], 8192, 8192) /
                        (row->y[k] * 1e9) -
                    1);
    if (error < best) {
      best = error;
      constants[n - 1] = block->quantise;
    }
  }
  g_string_append(w->text,
                  "# derived: as fp8, its peak fraction by [efficiency], the last constant "
                  "from the [gemm] row\n");
  write_constants(w, OCT_LAW_GEMM_FP8, "fp8_block", constants);
}

oct_law_id
oct_fit_rows_of(const char *name, oct_law_id id) {
  const gboolean transfers = strcmp(name, OCT_FIT_TRANSFER) == 0;
  return transfers && id == OCT_LAW_MOE_FP8 ? OCT_LAW_MOE_FP8_BLOCK : id;
}

static void
write_law(writer *w, const fit_name *fit, oct_law_id id) {
  const oct_law_id of = oct_fit_rows_of(fit->name, id);
  const oct_law *law = oct_law_get(of);
  const oct_law_choice all = {fit->systems, -1, FALSE};
  const guint n = oct_law_count(w->rows, of, &all);
  g_autoptr(GString) order = g_string_new(NULL);
  double constants[OCT_LAW_CONSTANTS_MAX];
  if (n == 0)
    return;
  double error = oct_law_fit(w->rows, of, &all, w->profiles, EVALUATIONS_MAX, constants);
  begin_group(w, id);
  if (w->order != law->constants)
    g_string_append_printf(w->text, "# Order: %s\n", order_of(id, order));
  w->order = law->constants;
  g_string_append_printf(w->text, "# derived: fitted to %u rows (%s), mean error there %.1f %%\n",
                         n, law->name, 100 * error);
  write_constants(w, id, key_of(id), constants);
  json_t *row = oct_validate_row(w->table);
  oct_validate_text(row, "%s", law->name);
  oct_validate_text(row, "%s", fit->about);
  json_array_append_new(row, json_integer(n));
  oct_validate_number(row, 100 * error);
  if (id == OCT_LAW_GEMM_FP8)
    write_fp8_block(w, fit, constants);
}

static gboolean
write_file(writer *w, const fit_name *fit, const char *dir, GError **error) {
  g_autofree char *file = g_strdup_printf("%s.ini", fit->name);
  g_autofree char *path = g_build_filename(dir, file, NULL);
  w->text = g_string_new(NULL);
  w->group = NULL;
  w->order = NULL;
  g_string_append_printf(
      w->text,
      "# Constants of the price laws of sim/cost, fitted to kernel times of %s.\n"
      "# Written by `octet validate --fit DIR`; do not edit. Rows: aiconfigurator @095f58a51 "
      "(Apache-2.0), vLLM 0.24.0,\n"
      "# NCCL 2.29.2, TensorRT-LLM 1.3.0rc20, the subset that doc/simulation.md describes. All "
      "rows "
      "were fitted to: none\n"
      "# of them is a score. The scores are those of `octet validate --operators`, which leaves "
      "shapes out.\n"
      "\n[profile]\n# version of this layout\nschema=1\n",
      fit->about);
  for (guint id = 0; id < OCT_LAW_COUNT; id++)
    write_law(w, fit, id);
  gboolean good = g_file_set_contents(path, w->text->str, (gssize)w->text->len, error);
  g_string_free(w->text, TRUE);
  return good;
}

gboolean
oct_fit_files_write(const oct_law_rows *rows, const char *dir, json_t *part, GError **error) {
  static const char *const columns[] = {"law", "rows of", "rows", "mean % (fitted)", NULL};
  writer w = {.rows = rows};
  if (!oct_fit_profiles_load(w.profiles, error))
    return FALSE;
  w.table = oct_validate_table(part, "Constants fitted", columns);
  oct_validate_note(w.table, "Rows used for a fit are no score: octet validate --operators leaves "
                             "whole shapes, or whole systems, out.");
  gboolean good = TRUE;
  for (guint i = 0; i < G_N_ELEMENTS(fits) && good; i++)
    good = write_file(&w, &fits[i], dir, error);
  oct_fit_profiles_free(w.profiles);
  return good;
}
