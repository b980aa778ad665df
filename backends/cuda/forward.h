/* A rank's forward pass: a batch in, hidden states or logits out, caches and states written on the
 * way. Everything is enqueued on the rank's compute stream; nothing is allocated, so a graph can
 * hold it. Private to backends/cuda.
 */
#ifndef OCT_BACKENDS_CUDA_FORWARD_H
#define OCT_BACKENDS_CUDA_FORWARD_H

#include "backends/cuda/comm.h"
#include "backends/cuda/memory.h"
#include "backends/cuda/slots.h"

typedef struct oct_cuda_forward oct_cuda_forward;

/* What a batch is to kernels, beside its arrays. */
typedef struct oct_cuda_pass {
  const oct_cuda_batch *batch;
  guint32 n_decode; /* the first sequences, of one token each */
  guint32 max_queries, max_context;
  /* The last sequences: those whose context latent attention expands. Not in a graph. */
  const oct_cuda_prompt *prompts;
  guint32 n_prompts;
  oct_cuda_tables tables[OCT_MODEL_GROUPS_MAX];
} oct_cuda_pass;

typedef struct oct_cuda_forward_options {
  oct_cuda_rank *rank; /* borrowed, as are the next three */
  const oct_cuda_model *model;
  const oct_cuda_memory *memory;
  oct_cuda_comm *const *comms; /* [OCT_CUDA_CIRCLES]; NULL: there is no such circle */
  guint32 max_tokens, max_seqs, max_context;
  guint32 logit_rows; /* at most, of one call of _logits() */
  gboolean count_experts;
} oct_cuda_forward_options;

/* Life cycle. NULL: noted. */
oct_cuda_forward *oct_cuda_forward_new(const oct_cuda_forward_options *options);
void oct_cuda_forward_free(oct_cuda_forward *forward); /* accepts NULL */

/* Use. Runs the rank's layers. The first stage embeds the batch's ids, others find the residual
 * stream in oct_cuda_forward_residual(); there a stage that is not the last leaves it. */
void oct_cuda_forward_run(oct_cuda_forward *forward, const oct_cuda_pass *pass);
/* Last stage: logits of n tokens of the batch, rows[n] on the device (NULL: of tokens 0 … n - 1),
 * to oct_cuda_forward_logits_at(). */
void oct_cuda_forward_logits(oct_cuda_forward *forward, const guint32 *rows, guint32 n);

/* Attention residuals: snapshots of the stream that a stage finds, and those that it leaves, the
 * same ones first; [snapshot, token of the pass, hidden] of the activations' type. */
typedef struct oct_cuda_snapshots {
  void *data; /* NULL: the model has none */
  guint32 n_found, n_left;
  gsize token_bytes; /* of one */
} oct_cuda_snapshots;
oct_cuda_snapshots oct_cuda_forward_snapshots(const oct_cuda_forward *forward);

/* Inspect. Whether latent attention may be asked to expand contexts, and gains by it. */
gboolean oct_cuda_forward_expands(const oct_cuda_forward *forward);
float *oct_cuda_forward_residual(const oct_cuda_forward *forward);    /* [max_tokens, hidden] */
const void *oct_cuda_forward_normed(const oct_cuda_forward *forward); /* after the last norm */
const float *oct_cuda_forward_logits_at(const oct_cuda_forward *forward, gsize *stride);
/* Token-expert pairs of this rank's layers since they were cleared, [n_layers, most experts of a
 * layer] on the device; NULL without count_experts. */
guint32 *oct_cuda_forward_counts(const oct_cuda_forward *forward, gsize *n);

#endif
