/* The forward pass: tokens in, hidden states out, caches and states written on the way.
 *
 * A batch is any tokens of any sequences, those of a sequence in the order of their positions. They
 * go through all layers in tiles of at most OCT_FORWARD_TILE tokens; within a layer all keys and
 * values of a tile are stored before any of its tokens looks at them. A token's arithmetic depends
 * on its own sequence alone (kernels/kernels.h), so tiles, batches and the number of threads change
 * no bit.
 */
#ifndef OCT_BACKENDS_CPU_FORWARD_H
#define OCT_BACKENDS_CPU_FORWARD_H

#include "backends/cpu/memory.h"
#include "backends/cpu/threads.h"

#define OCT_FORWARD_TILE 128

/* Where a sequence's cache is. */
typedef struct oct_cpu_view {
  guint32 domain;
  /* Per layer group its page table, of which the entries of the positions seen are read; for a
   * state group entry 0 is the state slot. */
  const guint32 *tables[OCT_MODEL_GROUPS_MAX];
} oct_cpu_view;

typedef struct oct_cpu_token {
  guint32 id, position;
  guint32 view; /* index in views[] */
  guint32 row;  /* of the result for this token's hidden state; OCT_NO_INDEX: not wanted */
} oct_cpu_token;

typedef struct oct_cpu_forward oct_cpu_forward;

typedef struct oct_cpu_forward_options {
  const oct_cpu_model *model; /* borrowed, as are the next two */
  const oct_cpu_memory *memory;
  oct_team *team;
  guint32 max_tokens;  /* of a batch: what a tile needs at most */
  guint32 max_context; /* positions */
  gboolean count_experts;
  gboolean expanded_latents; /* latent attention in the expanded form; else absorbed */
} oct_cpu_forward_options;

/* Life cycle. NULL with *error (CONFIG) without the memory for a tile. */
oct_cpu_forward *oct_cpu_forward_new(const oct_cpu_forward_options *options,
                                     GError **error) G_GNUC_WARN_UNUSED_RESULT;
void oct_cpu_forward_free(oct_cpu_forward *forward); /* accepts NULL */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(oct_cpu_forward, oct_cpu_forward_free)

/* Runs n tokens and writes hidden[row, hidden width] after the final norm. FALSE: *stop (atomic,
 * may be NULL) was set meanwhile. */
gboolean oct_cpu_forward_run(oct_cpu_forward *forward, const oct_cpu_view *views,
                             const oct_cpu_token *tokens, guint32 n, const gboolean *stop,
                             float *hidden) G_GNUC_WARN_UNUSED_RESULT;
/* logits[n, vocab] of n rows of hidden. */
void oct_cpu_forward_logits(oct_cpu_forward *forward, const float *hidden, guint32 n,
                            float *logits);

/* Inspect. Token-expert pairs since the last clear: [n_experts] of a layer; NULL for a dense layer
 * or without count_experts. */
const guint32 *oct_cpu_forward_experts(const oct_cpu_forward *forward, guint32 layer);
void oct_cpu_forward_clear_experts(oct_cpu_forward *forward);

/* What comes into matrices, for calibration: called with x[n, columns], rows `stride` apart, before
 * each product on the caller's thread. Gate and up of an MLP are told once, as gate. */
typedef void (*oct_cpu_forward_inputs)(void *user, const oct_matrix *matrix, const float *x,
                                       gsize stride, guint32 n);
void oct_cpu_forward_set_inputs(oct_cpu_forward *forward, oct_cpu_forward_inputs inputs,
                                void *user);

/* For tests: called with x[n, hidden] before layer 0, after each layer, and (layer = n_layers + 1)
 * after the final norm of all tokens; `first` counts tokens from the batch's start. */
typedef void (*oct_cpu_forward_watch)(void *user, guint32 layer, guint32 first, guint32 n,
                                      const float *x);
void oct_cpu_forward_set_watch(oct_cpu_forward *forward, oct_cpu_forward_watch watch, void *user);

/* For tests of how a layer is divided over ranks: in place of a layer's attention, or of its
 * feed-forward, which read room.normed of the tile and add to room.x (forward-internal.h). */
typedef void (*oct_cpu_forward_part)(void *user, oct_cpu_forward *forward, guint32 layer);
void oct_cpu_forward_set_parts(oct_cpu_forward *forward, oct_cpu_forward_part attention,
                               oct_cpu_forward_part feed, void *user);

#endif
