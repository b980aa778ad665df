/* The parts of a conversion. Private to engine/model/quantise. */
#ifndef OCT_MODEL_QUANTISE_INTERNAL_H
#define OCT_MODEL_QUANTISE_INTERNAL_H

#include "engine/model/files/writer.h"
#include "engine/model/quantise/convert.h"

#define OCT_CODED_BAND 128 /* rows that are coded at a time */

/* --- code.c: one matrix ---------------------------------------------------------------------- */

/* A tensor that a coded matrix consists of. */
typedef struct oct_coded_part {
  const char *suffix; /* static */
  oct_stored_type type;
  guint n_dims;
  guint64 shape[2];
  gsize bytes;
} oct_coded_part;

#define OCT_CODED_PARTS_MAX 3
/* The tensors of a [rows, columns] matrix in a format; returns how many. */
guint oct_coded_parts(oct_convert_format format, guint32 group, guint64 rows, guint64 columns,
                      oct_coded_part parts[OCT_CODED_PARTS_MAX]);

typedef struct oct_coded {
  oct_convert_format format;
  guint32 group;
  guint64 rows, columns;
  const float *inputs, *outputs; /* scaling: oct_scaling_inputs(), …_outputs(); NULL: none */
  float *importance;             /* AWQ: [columns] of the scaled inputs; NULL: nearest */
  float scale;                   /* FP8: of the whole matrix, set before the first band */
  guint8 *parts[OCT_CODED_PARTS_MAX];
} oct_coded;

/* Scales a band of n rows from `first` on in place: what is to be coded. */
void oct_coded_scale(const oct_coded *coded, float *band, guint64 first, guint64 n);
/* Codes a scaled band; then reads it back, scaling taken out, into back[n, columns]. */
void oct_coded_band(oct_coded *coded, const float *band, guint64 first, guint64 n, float *back);

/* --- publish.c: what stands beside the tensors ------------------------------------------------ */

/* Writes config.json with its quantization_config. `kept` as in the options; `skipped` are the
 * names of modules that look like they were quantised, and are not. */
gboolean oct_publish_config(const oct_model_files *source, const oct_convert_options *options,
                            const GPtrArray *skipped, const char *folder,
                            GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Copies tokenizer and generation files from beside the source. */
gboolean oct_publish_beside(const oct_model_files *source, const char *folder,
                            GError **error) G_GNUC_WARN_UNUSED_RESULT;

#endif
