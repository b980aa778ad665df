/* The inside of a runner: what runner.c and outcome.c share. */
#ifndef OCT_BACKENDS_CPU_RUNNER_INTERNAL_H
#define OCT_BACKENDS_CPU_RUNNER_INTERNAL_H

#include "backends/cpu/runner.h"
#include "kernels/kernels.h"

typedef struct table {
  guint32 *pages; /* [room]; OCT_NO_INDEX: none */
  guint32 n, room, first_live;
} table;

typedef struct slot {
  gboolean open, failed;
  guint16 domain;
  guint32 next_position; /* OCT_NO_INDEX: not known yet */
  guint32 last_token;    /* accepted last; OCT_NO_INDEX: none */
  oct_sampling sampling;
  guint32 *counts; /* [vocab] for penalties, or NULL */
  table *tables;   /* [groups] */
  guint32 prompt_tokens, min_tokens, n_biases, n_stops;
  oct_logit_bias *biases; /* [n_biases] */
  guint32 *stops;         /* [n_stops] */
  double *sum; /* [hidden]: of the hidden states, for their mean; NULL until it is used */
  guint32 n_summed;
} slot;

/* One slice, resolved. */
typedef struct part {
  const oct_slice *slice;
  slot *slot;
  guint32 position, view;
  guint32 first_row, n_rows; /* of hidden, for what is scored and sampled */
  guint32 n_scored;          /* of those rows, the first */
  guint32 first_pooled;      /* row of hidden, of what is pooled */
  guint32 n_accepted;
  gboolean ended, failed; /* no more tokens are accepted; none is */
  guint32 first_token;    /* in tokens[] of the batch */
  guint32 backup;         /* of its states; OCT_NO_INDEX: none */
} part;

struct oct_cpu_runner {
  const oct_instance_config *config;
  const oct_cpu_model *model;
  oct_cpu_memory *memory;
  oct_team *team;
  oct_cpu_forward *forward;
  guint32 n_groups, page_tokens, max_context, first_state; /* group; n_groups: none */
  oct_layer_group groups[OCT_MODEL_GROUPS_MAX];
  gsize state_bytes; /* of all state groups of a sequence */
  slot *slots;
  float *hidden, *logits;                    /* [max tokens, hidden], [logit_rows, vocab] */
  guint32 logit_rows, first_logit, n_logits; /* rows that logits[] holds */
  oct_token_logprob **scratch;               /* [threads][vocab] */
  /* The step. */
  const oct_step *step;
  guint32 n_parts, n_tokens, n_rows, n_backups;
  guint32 n_pooled; /* rows of hidden behind n_rows, without logits */
  part *parts;
  oct_cpu_view *views;
  oct_cpu_token *tokens;
  guint8 *backups;
  gsize backups_room;
  const guint64 *const *masks;
  guint32 *sampled; /* [rows] */
  float *pooled;    /* [parts, hidden] vectors of POOLED slices */
  gsize pooled_room;
  oct_token_logprob *logprobs; /* [rows, 1 + most wanted of a slice] */
  gsize logprobs_room;
  guint32 most_logprobs;
  GArray *failed; /* guint32 */
};

/* ---- outcome.c */

/* Scores and samples those rows of part `item` that logits[] holds; context is the runner. */
void oct_cpu_sample_item(void *context, guint32 item, guint32 thread);
/* What a slot that failed earlier gives: anything, until it is opened again. */
void oct_cpu_sample_nothing(oct_cpu_runner *r, part *p);
/* Adds the part's hidden states to the slot's sum, and gives the vector where it is wanted. */
void oct_cpu_pool(oct_cpu_runner *r, const part *p);

#endif
