/* The price laws of sim/cost that have constants, the recorded measurements that hold them to
 * account, and the fit of one to the other.
 *
 * A law is one price formula with the place of its constants in a profile. Its rows are
 * measurements of many machines; each row belongs to a *fold*, a shape that is left out as a whole
 * (GEMM: (n, k); attention: head layout; experts: model; collectives: size), so that a score over
 * folds says what the law makes of shapes that it has never seen.
 */
#ifndef OCT_SIM_VALIDATE_LAWS_H
#define OCT_SIM_VALIDATE_LAWS_H

#include "sim/cost/cost.h"
#include "sim/validate/measured.h"
#include "sim/validate/score.h"

#define OCT_LAW_CONSTANTS_MAX 12
#define OCT_LAW_FOLDS         5

typedef enum oct_law_id {
  OCT_LAW_GEMM_BF16,
  OCT_LAW_GEMM_FP8,
  OCT_LAW_GEMM_FP4,
  OCT_LAW_DECODE,
  OCT_LAW_PREFILL,
  OCT_LAW_MOE_BF16,
  OCT_LAW_MOE_FP8,
  OCT_LAW_MOE_FP8_BLOCK,
  OCT_LAW_MOE_FP4,
  OCT_LAW_ALL_REDUCE,
  OCT_LAW_ALL_GATHER,
  OCT_LAW_REDUCE_SCATTER,
  OCT_LAW_ALL_TO_ALL,
  OCT_LAW_ONESHOT,
  OCT_LAW_COUNT
} oct_law_id;

/* One measurement. */
typedef struct oct_law_row {
  guint8 system; /* of oct_measured_systems */
  guint8 fold;   /* 0 … OCT_LAW_FOLDS - 1 */
  guint8 band;   /* of the law */
  double measured_s;
  union {
    struct {
      double m, n, k;
    } gemm;
    oct_attention_shape attention;
    oct_moe_shape moe;
    struct {
      double n, bytes;
    } collective;
  } u;
} oct_law_row;

typedef struct oct_constant {
  const char *name;
  double low, high, start;
  gboolean logarithmic; /* searched by its logarithm; else as it is */
  double zero_below;    /* what is smaller is taken as 0 */
} oct_constant;

#define OCT_LAW_BANDS 4

typedef struct oct_law {
  const char *name;                 /* "GEMM BF16" */
  const char *group, *key;          /* of a profile's file */
  const char *fold_of;              /* what a fold leaves out */
  const char *bands[OCT_LAW_BANDS]; /* NULL = no more */
  gsize offset;                     /* of the constants, doubles, in oct_profile */
  guint n;
  const oct_constant *constants; /* [n] */
  double (*price_s)(const oct_profile *profile, oct_law_id id, const oct_law_row *row);
} oct_law;

const oct_law *oct_law_get(oct_law_id id);

/* Rows of every law, in order of the files. */
typedef struct oct_law_rows {
  GArray *of[OCT_LAW_COUNT]; /* oct_law_row, owned */
} oct_law_rows;
gboolean oct_law_rows_read(oct_law_rows *rows, const char *folder,
                           GError **error) G_GNUC_WARN_UNUSED_RESULT;
void oct_law_rows_clear(oct_law_rows *rows);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(oct_law_rows, oct_law_rows_clear)

/* Which rows: systems as bits, and all folds (-1), all but one, or only one. */
typedef struct oct_law_choice {
  guint systems;
  int fold;
  gboolean only; /* of fold >= 0: that fold; else all others */
} oct_law_choice;
guint oct_law_count(const oct_law_rows *rows, oct_law_id id, const oct_law_choice *choice);

/* The profiles are of oct_measured_systems, in order, and are written over at the law's constants.
 * Fits constants[] to the chosen rows, from the law's start; returns the mean relative error there.
 */
double oct_law_fit(const oct_law_rows *rows, oct_law_id id, const oct_law_choice *choice,
                   oct_profile *const *profiles, guint evaluations_max, double *constants);
void oct_law_set(oct_profile *profile, oct_law_id id, const double *constants);
/* Adds the chosen rows' errors with the profiles as they are; one band, or all (-1). */
void oct_law_score(const oct_law_rows *rows, oct_law_id id, const oct_law_choice *choice, int band,
                   oct_profile *const *profiles, oct_score *score);

#endif
