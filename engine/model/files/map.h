/* Which tensors of a checkpoint are which weight of a model, and reading them as float32.
 *
 * A map takes the list of a model's weights (engine/model/tensors.h) and finds each in the files,
 * by the names that published checkpoints of its family use. It then knows, for every weight, how
 * its bytes are laid out. Anything that does not fit is an error that names it: a weight that is
 * missing, a tensor of another shape, or a tensor that no weight claims.
 *
 * A weight is always [rows, columns] = [outputs, inputs] in Hugging Face's order of rows, however
 * it is stored: stacked experts, fused gate and up projections, transposed matrices, and the heads
 * that GGUF's llama files permute, all read alike. Vectors are [n, 1].
 *
 * The dummy map has no checkpoint: every weight reads as random numbers that depend on its name and
 * a seed only. It is stored the way the spec says, so that it takes the same bytes.
 *
 * A map borrows its checkpoint, which must outlive it. Any thread may read it; only
 * oct_weight_materialise() changes it.
 */
#ifndef OCT_MODEL_FILES_MAP_H
#define OCT_MODEL_FILES_MAP_H

#include "engine/base/budget.h"
#include "engine/model/files/tensors.h"
#include "engine/model/kinds.h"
#include "engine/model/spec.h"

/* How a weight's bytes are laid out. Group and block sizes are inputs per scale. */
typedef enum oct_layout {
  OCT_LAYOUT_ROWS,        /* codes [rows, columns] of `type`, plain or GGUF's blocks */
  OCT_LAYOUT_COLUMNS,     /* codes [columns, stored rows] of a plain `type` (gpt-oss) */
  OCT_LAYOUT_FP8,         /* e4m3 [rows, columns]; scales [1], or [rows] when row_scales */
  OCT_LAYOUT_FP8_BLOCK,   /* e4m3; scales [ceil(rows / 128), ceil(columns / 128)] */
  OCT_LAYOUT_MXFP4,       /* codes [rows, columns / 2], lower half first; scales e8m0 per 32 */
  OCT_LAYOUT_NVFP4,       /* the same with e4m3 scales per 16, / divisor x factor */
  OCT_LAYOUT_AWQ,         /* codes [columns, rows / 8] of u32; zeros, scales: dequant.h */
  OCT_LAYOUT_GPTQ,        /* codes [columns / 8, rows] */
  OCT_LAYOUT_INT4_PACKED, /* codes [rows, columns / 8] */
  OCT_LAYOUT_COUNT
} oct_layout;

const char *oct_layout_name(oct_layout layout); /* "rows", "fp8-block"…: static */

typedef struct oct_weight {
  oct_weight_kind kind;
  oct_layout layout;
  guint32 layer, expert; /* 0 where the kind has none */
  guint64 rows, columns;
  guint64 bytes; /* that it takes in its files, all parts */
  oct_stored_type type, scale_type;
  /* Parts; NULL where the layout has none. A dummy's are NULL until it is materialised. */
  const guint8 *codes, *scales;
  const guint32 *zeros;
  const gint32 *order;   /* GPTQ: group of each input, NULL when in order; checked */
  float divisor, factor; /* NVFP4 */
  guint32 group;         /* the int4 layouts */
  guint8 zero_offset;    /* GPTQ's first format: 1 */
  gboolean row_scales;
  /* Row r stands at stored row step x p(r) from `codes` on: fused gate and up have step 2; with
   * head_rows, p takes the first halves of a head's rows to the even places. */
  guint32 row_step, head_rows;
  guint64 row_pitch;     /* COLUMNS: elements between stored columns */
  guint64 dummy;         /* key of its random numbers, or 0 */
  float mean, deviation; /* of a dummy's numbers */
} oct_weight;

typedef struct oct_weight_map oct_weight_map;

/* What a checkpoint has too little or too much. Counts are of all, texts of the first few. */
#define OCT_MAP_TEXTS_MAX 100
typedef struct oct_map_list {
  guint n;
  GPtrArray *texts; /* of char*, owned */
} oct_map_list;
typedef struct oct_map_report {
  oct_map_list missing;    /* "layer 3 q: no tensor model.layers.3.self_attn.q_proj.weight" */
  oct_map_list wrong;      /* "tensor …: shape …, wanted is …" */
  oct_map_list unexpected; /* names */
  oct_map_list skipped;    /* names of what a text model does not use: other towers, scales of
                              activations, a tied head's copy */
} oct_map_report;

oct_map_report *oct_map_report_new(void);
void oct_map_report_free(oct_map_report *report); /* accepts NULL */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(oct_map_report, oct_map_report_free)
/* A line about what is skipped, for whoever loads the checkpoint: "165 tensors of the checkpoint
 * are not read, as the first: vision_tower.…: another modality". NULL: nothing is. Owned. */
char *oct_map_report_skipped_line(const oct_map_report *report) G_GNUC_WARN_UNUSED_RESULT;

/* Life cycle. The spec is read, not kept. NULL with *error (TENSOR), which names the first
 * problems, when anything is missing, wrong or unexpected; `report` (may be NULL) then has them
 * all. */
oct_weight_map *oct_weight_map_new(const oct_model_spec *spec, const oct_checkpoint *checkpoint,
                                   oct_map_report *report,
                                   GError **error) G_GNUC_WARN_UNUSED_RESULT;
oct_weight_map *oct_weight_map_new_dummy(const oct_model_spec *spec, guint64 seed,
                                         GError **error) G_GNUC_WARN_UNUSED_RESULT;
void oct_weight_map_free(oct_weight_map *map); /* accepts NULL */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(oct_weight_map, oct_weight_map_free)

/* Find: O(1). NULL when the model has no such weight (a dense layer's router, a tied head). layer
 * and expert are 0 where the kind has none. */
const oct_weight *oct_weight_map_get(const oct_weight_map *map, oct_weight_kind kind, guint32 layer,
                                     guint32 expert);
guint oct_weight_map_n(const oct_weight_map *map);
const oct_weight *oct_weight_map_at(const oct_weight_map *map, guint position);
/* What a GGUF file of a llama-3 model has instead of rope scaling parameters: n divisors of the
 * rotary frequencies, float32. NULL when there is none. */
const float *oct_weight_map_rope_divisors(const oct_weight_map *map, guint *n);
/* "layer 3 expert 17 expert down"; owned. */
char *oct_weight_name(const oct_weight *weight);

/* What safetensors files of this family call the tensors of a weight: its module in
 * name[OCT_FILE_NAME_MAX + 1], and in *suffix (static) what follows when it is stored plain,
 * ".weight", ".bias" or "". `source` is the checkpoint that the weight is from, whatever its
 * format. FALSE: all experts are in one tensor there. */
gboolean oct_weight_module(const oct_model_spec *spec, const oct_checkpoint *source,
                           const oct_weight *weight, char *name,
                           const char **suffix) G_GNUC_WARN_UNUSED_RESULT;

/* Read: rows first … first + n - 1 into out[n, columns], float32. Dummies too. Pure: any thread. */
void oct_weight_read(const oct_weight *weight, guint64 first, guint64 n, float *out);
/* The scale of a row's inputs around `column`, and the zero of 4-bit integers (else 0): a value is
 * (code - zero) x scale. Layouts FP8, FP8_BLOCK, MXFP4 and the int4 ones whose inputs are in order;
 * dummies too. */
float oct_weight_scale(const oct_weight *weight, guint64 row, guint64 column, gint *zero);
/* Where row `row` is stored, counted in rows from `codes` (layouts with whole rows). */
guint64 oct_weight_stored_row(const oct_weight *weight, guint64 row);
/* Bytes of one stored row of codes (ROWS, FP8, FP8_BLOCK, MXFP4, NVFP4, INT4_PACKED). */
guint64 oct_weight_row_bytes(const oct_weight *weight);

/* Gives a dummy real parts, in memory of `budget`, which must outlive the map; nothing to do for
 * others and the second time. Not while others read the map. */
gboolean oct_weight_materialise(oct_weight_map *map, guint position, oct_budget *budget,
                                GError **error) G_GNUC_WARN_UNUSED_RESULT;

#endif
