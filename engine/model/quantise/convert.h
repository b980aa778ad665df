/* A checkpoint in another number format: the matrices of attention, MLPs and experts quantised,
 * everything else as it is, in safetensors with a config.json that other engines read.
 *
 *   format      tensors of a module                           quantization_config
 *   awq         qweight, qzeros, scales (AutoAWQ's "gemm")     awq, 4 bits, group_size
 *   fp8         weight e4m3, weight_scale [1]                  fp8
 *   fp8-block   weight e4m3, weight_scale_inv per 128 x 128    fp8, weight_block_size
 *   mxfp4       weight_packed, weight_scale e8m0               compressed-tensors,
 * mxfp4-pack-quantized
 *
 * Router, embedding, head, norms and biases stay as they are stored. The folder appears whole, or
 * not at all. One thread; blocks on the disk.
 */
#ifndef OCT_MODEL_QUANTISE_CONVERT_H
#define OCT_MODEL_QUANTISE_CONVERT_H

#include "engine/model/files/model.h"
#include "engine/model/quantise/scaling.h"

typedef enum oct_convert_format {
  OCT_CONVERT_AWQ,
  OCT_CONVERT_FP8,
  OCT_CONVERT_FP8_BLOCK,
  OCT_CONVERT_MXFP4,
  OCT_CONVERT_FORMATS
} oct_convert_format;

/* "awq", "fp8", "fp8-block", "mxfp4": FALSE for anything else. */
gboolean oct_convert_format_parse(const char *name,
                                  oct_convert_format *format) G_GNUC_WARN_UNUSED_RESULT;

/* What a quantised matrix lost: |back - original| / |original| over all its elements (L2), and the
 * largest difference, both of what the model computes with, scaling taken out. */
typedef struct oct_convert_row {
  const char *module; /* borrowed */
  guint64 rows, columns, bytes;
  double relative, largest;
} oct_convert_row;

typedef struct oct_convert_report {
  guint64 n_quantised, n_kept; /* weights */
  guint64 bytes, bytes_before; /* of all tensors */
  guint n_files;
  double relative, largest; /* over all quantised weights together */
} oct_convert_report;

typedef struct oct_convert_options {
  oct_convert_format format;
  guint32 group;              /* AWQ: 128, 64 or 32 inputs per scale */
  oct_dtype kept;             /* F32, BF16 or F16 for what is not quantised; NONE: as it is stored,
                                 and BF16 where that is no plain type or the source is GGUF */
  guint64 shard_bytes;        /* of a file */
  const oct_inputs *inputs;   /* AWQ: weighs errors; NULL: round to nearest */
  const oct_scaling *scaling; /* AWQ, with inputs; NULL: none */
  void (*row)(void *user, const oct_convert_row *row); /* each quantised weight; NULL: nobody */
  void *user;
} oct_convert_options;

/* Whether all of a model can be converted: what oct_convert() checks first. FALSE with *error
 * (UNSUPPORTED) names the weight and why not. */
gboolean oct_convert_check(const oct_model_files *source, oct_convert_format format, guint32 group,
                           GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Makes `folder`, which must not exist. FALSE with *error: as above, IO, or LIMIT; then nothing is
 * left behind. */
gboolean oct_convert(const oct_model_files *source, const char *folder,
                     const oct_convert_options *options, oct_convert_report *report,
                     GError **error) G_GNUC_WARN_UNUSED_RESULT;

#endif
