/* A model's weights as the operators take them, and the constants of its arithmetic.
 *
 * Matrices are read where their files are mapped, or from a copy in large pages, which the
 * processor reads up to twice as fast. Those that are not float32 or bfloat16 there are turned into
 * float32 row by row while they are used, or once when the model is loaded. Vectors are float32.
 * Nothing changes once a model is loaded: any thread may read it.
 */
#ifndef OCT_BACKENDS_CPU_MODEL_H
#define OCT_BACKENDS_CPU_MODEL_H

#include "engine/model/files/model.h"
#include "kernels/kernels.h"

typedef enum oct_cpu_weights {
  OCT_CPU_WEIGHTS_AUTO,   /* a copy of up to OCT_CPU_COPY_MAX bytes, else mapped */
  OCT_CPU_WEIGHTS_MAPPED, /* read from the files' mapping */
  OCT_CPU_WEIGHTS_COPIED, /* rows are copied as they are stored; other layouts stay mapped */
  OCT_CPU_WEIGHTS_FLOAT32,
} oct_cpu_weights;

typedef struct oct_cpu_experts {
  oct_matrix *gate, *up, *down;                    /* [n_experts] */
  const float **gate_bias, **up_bias, **down_bias; /* [n_experts]; NULL entries: none */
} oct_cpu_experts;

typedef struct oct_cpu_layer {
  const oct_attention_spec *attention;
  const oct_ffn_spec *ffn;
  guint32 group, place;                   /* layer group, and its number in that group */
  oct_matrix matrices[OCT_WEIGHT_KINDS];  /* rows 0: the layer has none */
  const float *vectors[OCT_WEIGHT_KINDS]; /* NULL: none */
  oct_cpu_experts experts;
} oct_cpu_layer;

typedef struct oct_cpu_model {
  oct_model_files *files; /* NULL for made-up weights of a spec that somebody else owns */
  oct_weight_map *map;
  const oct_model_spec *spec;
  oct_matrix embedding, head; /* head: the embedding when they are tied */
  const float *final_norm;
  const float *final_res_norm, *final_res_proj; /* attention residuals; NULL without */
  oct_cpu_layer *layers;                        /* [n_layers] */
  oct_rope rope;                                /* dim 0: no rotary positions */
  float *rope_frequencies;
  oct_glu_params glu;
  float latent_scale;  /* of latent attention's scores */
  guint64 bytes;       /* of memory of its own */
  oct_cpu_weights how; /* chosen: not AUTO */
  guint8 *pages;       /* copied weights: one mapping of pages_bytes */
  gsize pages_bytes, pages_used;
  GPtrArray *owned;
  oct_budget *budget; /* of made-up weights */
} oct_cpu_model;

#define OCT_CPU_COPY_MAX ((guint64)2 << 30)

typedef struct oct_cpu_model_options {
  const char *path; /* a checkpoint; NULL = weights made up from `seed` */
  oct_load_format format;
  const oct_model_spec
      *spec; /* what the model must be; borrowed for the model's life when made up */
  guint64 seed;
  oct_cpu_weights weights;
} oct_cpu_model_options;

/* Life cycle. Blocks on the disk. `progress` (may be NULL) is told a fraction now and then, and
 * stops the loading by returning FALSE. NULL with *error (CONFIG): the checkpoint cannot be read,
 * is not the model that the spec describes, or needs something that is not computed here. */
oct_cpu_model *oct_cpu_model_load(const oct_cpu_model_options *options,
                                  gboolean (*progress)(void *user, double fraction), void *user,
                                  GError **error) G_GNUC_WARN_UNUSED_RESULT;
void oct_cpu_model_free(oct_cpu_model *model); /* accepts NULL */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(oct_cpu_model, oct_cpu_model_free)

/* Bytes that the weights take as they are stored. */
guint64 oct_cpu_model_stored(const oct_cpu_model *model);
/* Delta attention of a layer. */
oct_kda oct_cpu_model_kda(const oct_cpu_model *model, const oct_cpu_layer *layer);
/* Width that routed experts work on: the latent's, else the hidden one. */
guint32 oct_cpu_model_expert_width(const oct_cpu_model *model, const oct_cpu_layer *layer);
/* The routing of a layer with experts. */
oct_routing oct_cpu_model_routing(const oct_cpu_model *model, const oct_cpu_layer *layer);
/* The MLP of one expert, of a dense layer, or of the shared experts. */
oct_mlp oct_cpu_model_expert(const oct_cpu_model *model, const oct_cpu_layer *layer,
                             guint32 expert);
oct_mlp oct_cpu_model_dense(const oct_cpu_model *model, const oct_cpu_layer *layer);
oct_mlp oct_cpu_model_shared(const oct_cpu_model *model, const oct_cpu_layer *layer);

#endif
