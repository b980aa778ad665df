/* A rank's part of a model on its device: what tensors it holds, and which slice of the weight each
 * is. Private to backends/cuda.
 *
 * How tensors are split over the ranks of a tensor group is in partition.h.
 */
#ifndef OCT_BACKENDS_CUDA_MODEL_H
#define OCT_BACKENDS_CUDA_MODEL_H

#include "backends/cuda/glue.h"
#include "backends/cuda/rank.h"
#include "backends/cuda/threads.h"
#include "engine/model/files/model.h"

typedef struct oct_cuda_ffn {
  oct_cuda_matrix gate_up, down; /* gate_up: rows of gate, then of up */
  guint32 inner;                 /* on this rank */
} oct_cuda_ffn;

/* What reads the input of delta attention. GATE: the output gate, or down to its rank. */
typedef enum oct_cuda_kda_part {
  OCT_CUDA_KDA_Q,
  OCT_CUDA_KDA_K,
  OCT_CUDA_KDA_V,
  OCT_CUDA_KDA_GATE,
  OCT_CUDA_KDA_DECAY, /* down to its rank */
  OCT_CUDA_KDA_BETA,
  OCT_CUDA_KDA_PARTS
} oct_cuda_kda_part;

/* And of latent attention. QUERIES: down to their rank, or direct ones. */
typedef enum oct_cuda_mla_part {
  OCT_CUDA_MLA_QUERIES,
  OCT_CUDA_MLA_GATE, /* Kimi K3's output gate */
  OCT_CUDA_MLA_LATENTS,
  OCT_CUDA_MLA_PARTS
} oct_cuda_mla_part;

typedef struct oct_cuda_layer {
  const oct_attention_spec *attention;
  const oct_ffn_spec *ffn_spec;
  guint32 index, group, place; /* place: its number among this rank's layers of the group */
  guint32 heads, kv_heads;     /* on this rank */
  void *attn_norm, *ffn_norm;
  float *attn_score, *ffn_score; /* attention residuals: norm times projection; NULL: none */
  /* Grouped-query attention and delta attention: q, k, v one after another; for the latter all that
   * reads its input. */
  oct_cuda_matrix qkv, o;
  void *qkv_bias, *o_bias, *q_norm, *k_norm;
  float *sinks;
  float *k_scale, *v_scale; /* of a cache in fp8 [kv_heads]; NULL: 1 */
  /* Latent attention. input: all that reads its input; q_b: none when queries are direct. */
  oct_cuda_matrix input, q_b, kv_b;
  guint32 mla_rows[OCT_CUDA_MLA_PARTS]; /* where each part of input begins */
  void *input_bias, *q_a_norm, *kv_a_norm;
  /* Delta attention. */
  guint32 kda_rows[OCT_CUDA_KDA_PARTS]; /* where each part of qkv begins */
  oct_cuda_matrix decay_b;
  oct_cuda_matrix gate_b; /* the output gate from its rank */
  oct_kda kda;
  void *head_norm;
  /* Feed-forward. */
  oct_cuda_ffn dense, shared, experts; /* experts: one matrix after another */
  oct_cuda_matrix router, shared_switch;
  oct_cuda_matrix latent_down, latent_up; /* rows of both, and of the router, are this rank's */
  guint32 latent_up_row;                  /* where they begin */
  void *latent_norm;
  void *router_bias, *gate_up_bias, *down_bias;
  float *score_bias;
  guint32 first_expert, n_experts; /* on this rank */
} oct_cuda_layer;

typedef struct oct_cuda_model {
  oct_cuda_rank *rank;
  struct oct_cuda_residency *residency; /* residency.h; NULL: all experts are on the device */
  const oct_model_spec *spec;
  oct_cuda_layer *layers; /* [rank->n_layers] */
  oct_cuda_matrix embedding, head;
  guint32 head_rows; /* of both on every rank: the vocabulary over the tensor group, rounded up */
  void *final_norm;
  float *final_score;
  oct_rope rope;
  float *angles; /* [positions, rope.dim] on the device; NULL: none */
  guint32 positions;
  oct_glu_params glu;
  float latent_scale, latent_eps;
  guint64 bytes; /* of weights */
} oct_cuda_model;

/* What the ranks of a tensor group exchange in front of experts that work on a latent: rows of this
 * rank's columns of the latent, and of the router's logits in float32 from byte `logits` on. bytes
 * 0: a rank has all columns of both. */
typedef struct oct_cuda_latent_row {
  guint32 logits, bytes;
} oct_cuda_latent_row;
oct_cuda_latent_row oct_cuda_latent_row_of(const oct_cuda_layer *layer, oct_cuda_type type);

/* A model's files, shared by the ranks; or made-up weights. */
typedef struct oct_cuda_source {
  oct_model_files *files;
  oct_weight_map *map;
  const oct_model_spec *spec;
} oct_cuda_source;

/* Life cycle. NULL spec in *source on failure, with *error (CONFIG). Blocks on the disk. */
gboolean oct_cuda_source_open(oct_cuda_source *source, const oct_cuda_options *options,
                              const oct_model_spec *spec, GError **error) G_GNUC_WARN_UNUSED_RESULT;
void oct_cuda_source_close(oct_cuda_source *source);

/* FALSE with *error (CONFIG): something of the config that this backend does not do. */
gboolean oct_cuda_model_supports(const oct_instance_config *config,
                                 GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Loads the rank's part, on its thread. `positions`: of the longest sequence. progress() (may be
 * NULL) is told a fraction now and then; FALSE from it stops the loading. FALSE: noted. */
gboolean oct_cuda_model_load(oct_cuda_model *model, oct_cuda_rank *rank,
                             const oct_cuda_source *source, guint32 positions,
                             gboolean (*progress)(void *user, double fraction),
                             void *user) G_GNUC_WARN_UNUSED_RESULT;
void oct_cuda_model_clear(oct_cuda_model *model);

/* ---- uploading (upload.c) */

/* Where a weight's slice goes: rows [row, row + rows) and columns [column, column + columns) to
 * `out`, rows `pitch` elements apart, as `type`. */
typedef struct oct_cuda_slice {
  const oct_weight *weight;
  guint64 row, rows, column, columns;
  oct_cuda_type type; /* F32 or BF16 */
  void *out;
  gsize pitch;
} oct_cuda_slice;

typedef struct oct_cuda_upload oct_cuda_upload;
oct_cuda_upload *oct_cuda_upload_new(oct_cuda_rank *rank); /* NULL: noted */
void oct_cuda_upload_free(oct_cuda_upload *upload);        /* accepts NULL */
/* Through pinned staging, in the order of the rank's copy-in stream; made-up numbers of plain types
 * are made on the device. FALSE: noted. */
gboolean oct_cuda_upload_slice(oct_cuda_upload *upload, const oct_cuda_slice *slice);
/* Bytes as they are; `from` is free again when it returns. FALSE: noted. */
gboolean oct_cuda_upload_bytes(oct_cuda_upload *upload, void *to, const void *from,
                               gsize bytes) G_GNUC_WARN_UNUSED_RESULT;
/* For other contents (matrix.c): the next staging buffer, OCT_CUDA_STAGING_BYTES, once it is free,
 * or NULL; then what was put there, `height` dense runs of `bytes`, goes to `to`, `pitch` apart, or
 * as stored codes to where call->data says. Made-up codes are made on the device. FALSE, NULL:
 * noted. */
#define OCT_CUDA_STAGING_BYTES ((gsize)32 << 20)
guint8 *oct_cuda_upload_staging(oct_cuda_upload *upload) G_GNUC_WARN_UNUSED_RESULT;
gboolean oct_cuda_upload_send(oct_cuda_upload *upload, void *to, gsize pitch, gsize bytes,
                              gsize height) G_GNUC_WARN_UNUSED_RESULT;
gboolean oct_cuda_upload_pack(oct_cuda_upload *upload, oct_cuda_packing *call,
                              gsize bytes) G_GNUC_WARN_UNUSED_RESULT;
gboolean oct_cuda_upload_make_codes(oct_cuda_upload *upload,
                                    const oct_glue_dummy_codes *call) G_GNUC_WARN_UNUSED_RESULT;
/* Notes why weights cannot be taken. */
void oct_cuda_upload_refuse(oct_cuda_upload *upload, const char *message);
/* fill() over the whole of n rows, `bytes` in all, by as many threads as these are worth. */
void oct_cuda_upload_fill(oct_cuda_fill fill, gpointer user, guint64 n, gsize bytes);
/* Waits for all of it. */
gboolean oct_cuda_upload_finish(oct_cuda_upload *upload);

#endif
