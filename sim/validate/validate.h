/* Predictions against measurements of others and of one's own: what `octet validate` runs.
 *
 * Each part compares one kind of prediction with one kind of measurement and answers with a part of
 * the report (sim/validate/report.h). Measurements are read from a folder of recordings that is no
 * part of the project; doc/simulation.md names their sources and shows what came of them. */
#ifndef OCT_SIM_VALIDATE_VALIDATE_H
#define OCT_SIM_VALIDATE_VALIDATE_H

#include <jansson.h>

#include <glib.h>

#define OCT_VALIDATE_ERROR (oct_validate_error_quark())
GQuark oct_validate_error_quark(void);
typedef enum oct_validate_error {
  OCT_VALIDATE_ERROR_DATA, /* a file is missing, or not what it should be */
} oct_validate_error;

/* Plain data; strings are borrowed. */
typedef struct oct_validate_options {
  const char *data; /* folder of the recordings */
  gboolean quick;   /* fewer folds and a sample of rows: for tests; the report says so */
  gboolean infer;   /* protocols of published runs afresh; else the frozen ones */
  guint64 seed;     /* of that sample */
  const char *only; /* of published runs, those whose model's name has this; NULL = all */
  gboolean seen;    /* of published runs, those of systems that constants may be fitted to */
  guint rows;       /* of published runs, of each engine and system; 0 = all */
  guint jobs;       /* processes at once */
  /* May be NULL: what is done now, 0 … total. */
  void (*told)(void *user, const char *what, guint done, guint total);
  void *user;
} oct_validate_options;

/* Kernels against measured tables. Owned; NULL with *error. */
json_t *oct_validate_operators(const oct_validate_options *options,
                               GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* The table of another laboratory's kernels on H100, appended to `part`. FALSE with *error. */
gboolean oct_validate_others(const char *folder, json_t *part,
                             GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Published end-to-end runs. `rows` of the part has every one of them. */
json_t *oct_validate_silicon(const oct_validate_options *options,
                             GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* A recorded run on an RTX 4090. */
json_t *oct_validate_record(const oct_validate_options *options,
                            GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Fits every law of sim/cost to the recordings and writes the files of sim/profiles/fits into
 * `dir`. Owned; NULL with *error. */
json_t *oct_validate_fit(const oct_validate_options *options, const char *dir,
                         GError **error) G_GNUC_WARN_UNUSED_RESULT;

#endif
