/* Published end-to-end runs: rows of (engine, version, model, system, precision, prompt and output
 * lengths, parallelism, concurrency) with mean TTFT and mean time per output token.
 *
 * The table does not say how it was measured. What is assumed: a closed loop at the row's
 * concurrency, prompts = k x concurrency, lengths drawn from [range x length, length], random data
 * (no prefix hits), uniform routing, no chat-template tokens. k, range and whether the first wave
 * counts are inferred per source on H100 and H200 rows alone and then frozen.
 */
#ifndef OCT_SIM_VALIDATE_SILICON_H
#define OCT_SIM_VALIDATE_SILICON_H

#include <jansson.h>

#include "sim/replay/setup.h"
#include "sim/validate/measured.h"
#include "sim/validate/validate.h"

#define OCT_SILICON_TEXT_MAX 48

/* ---------------------------------------------------------------- rows */

typedef struct oct_silicon_row {
  char backend[16], version[OCT_SILICON_TEXT_MAX], model[OCT_SILICON_TEXT_MAX];
  char precision[8], gemm[16], moe[16], source[24];
  guint system; /* of oct_measured_systems */
  guint isl, osl, concurrency;
  guint tp, dp, moe_tp, moe_ep;
  double ttft_s, tpot_s;
  guint duplicates; /* further rows that are equal in every cell: dropped */
  /* Other measurements of the same configuration: the size of this row's difference from their
   * common mean; NaN without others. */
  double tpot_spread, ttft_spread;
  gboolean vague; /* without version or precision */
} oct_silicon_row;

typedef struct oct_silicon_rows {
  GArray *rows; /* oct_silicon_row, owned; of systems that are known, aggregated serving only */
  guint read, duplicates, disaggregated;
} oct_silicon_rows;

gboolean oct_silicon_read(oct_silicon_rows *rows, const char *folder,
                          GError **error) G_GNUC_WARN_UNUSED_RESULT;
void oct_silicon_clear(oct_silicon_rows *rows);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(oct_silicon_rows, oct_silicon_clear)

/* Why the row cannot be simulated, static; NULL when it can. */
const char *oct_silicon_unsupported(const oct_silicon_row *row);
gboolean oct_silicon_has_experts(const oct_silicon_row *row);
/* The engine preset that imitates the row's backend and version; static. */
const char *oct_silicon_engine(const oct_silicon_row *row);
/* The row's configuration over defaults; strings are static. KV is in FP8 where BF16 does not hold
 * the row's concurrency. FALSE with *error: no such preset, or neither holds it, or weights do not
 * fit. */
gboolean oct_silicon_setup(const oct_silicon_row *row, oct_setup_options *options,
                           GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* ---------------------------------------------------------------- runs */

#define OCT_SILICON_KS     4
#define OCT_SILICON_RANGES 2
#define OCT_SILICON_LOADS  (OCT_SILICON_KS * OCT_SILICON_RANGES)
extern const guint oct_silicon_k[OCT_SILICON_KS];          /* 1, 5, 10, 20 */
extern const double oct_silicon_range[OCT_SILICON_RANGES]; /* 1, 0.8 */

/* Means of one simulated run; [1] leaves out the requests of the first wave. */
typedef struct oct_silicon_run {
  double ttft_s[2], tpot_s[2];
  char *failed; /* why there is none; owned */
} oct_silicon_run;

/* A run for each row and load whose bit is set in loads[row]: out[row x OCT_SILICON_LOADS + load],
 * zeroed where there is none; equal configurations are run once. The caller frees `failed`. */
gboolean oct_silicon_simulate(const oct_silicon_row *const *rows, guint n, const guint8 *loads,
                              const oct_validate_options *options, oct_silicon_run *out,
                              GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* time = factor x predicted + gap: the two that fit best, and the median error with them. */
typedef struct oct_silicon_fit {
  double factor, gap_s, median;
} oct_silicon_fit;
void oct_silicon_fit_steps(const double *predicted, const double *measured, guint n,
                           oct_silicon_fit *out);

/* Time to prefill `concurrency` prompts and nothing else, as priced. 0 when it cannot be priced. */
double oct_silicon_burst_s(const oct_silicon_row *row);

#endif
