/* A step as the ranks run it: made once on the host from the record and the slots, then sent to
 * every rank of the domain that it is for. Private to backends/cuda.
 *
 * A domain's plan is two runs of bytes. The head has fixed places for a given size, so that a graph
 * finds them: how many sequences, the sequences, what each row of logits is sampled with, the rows
 * of each sequence, tokens whose logits are wanted, tokens of the prompt that are scored, ids. The
 * tail has what is applied before: page changes, histories of penalties, biases.
 *
 * Rows of logits come in three runs: those whose tokens are accepted, sequence by sequence; those
 * that are sampled only (SAMPLE_ALL: of the tokens before the last); those that are scored only.
 */
#ifndef OCT_BACKENDS_CUDA_PLAN_H
#define OCT_BACKENDS_CUDA_PLAN_H

#include "backends/cuda/glue.h"
#include "backends/cuda/slots.h"

#define OCT_CUDA_LOGPROBS_MAX 128
#define OCT_CUDA_STOPS_MAX    64 /* suppressed ids of a sequence */

/* Byte offsets in the head. */
typedef struct oct_cuda_layout {
  gsize count, seqs, rows, seq_rows, picks, given, ids, bytes;
} oct_cuda_layout;
/* For n_seqs sequences, n_rows rows and n_ids ids. */
oct_cuda_layout oct_cuda_layout_of(guint32 n_seqs, guint32 n_rows, guint32 n_ids);

/* Sizes that a step is padded to, so that one graph serves many steps. */
typedef struct oct_cuda_shape {
  guint32 n_tokens; /* 0: the step is not padded */
  guint32 n_decode; /* the first sequences, of at most one token each */
  guint32 n_seqs, n_rows;
} oct_cuda_shape;

/* What is padded: batches of decodes alone, and other steps. */
typedef struct oct_cuda_padding {
  guint32 decodes;      /* most of a step; 0: nothing is padded */
  guint32 tokens, rows; /* most of another step; tokens 0: others are not padded */
  guint32 seqs;
  guint32 expand; /* new tokens of a sequence from which latent attention expands its context, in
                     a step that is not padded; 0: never */
} oct_cuda_padding;

/* What a slot is opened with, beside its place in tables. */
typedef struct oct_cuda_opening {
  guint32 slot;
  gboolean penalties;
  gsize ids; /* of the history: byte offset in the tail */
  guint32 n_ids, n_prompt;
  gsize biases, stops; /* likewise */
  guint32 n_biases, n_stops;
} oct_cuda_opening;

typedef struct oct_cuda_part {
  guint32 slice, slot;
  guint64 epoch; /* of the slot */
  guint32 position, n_tokens, seq;
  guint32 first_row, n_rows;      /* accepted */
  guint32 first_extra, n_extra;   /* sampled */
  guint32 first_scored, n_scored; /* scored */
  guint32 mask;                   /* of the domain's masks; OCT_NO_INDEX: needs none */
  guint32 pooled;                 /* of the domain's vectors; OCT_NO_INDEX: none is handed over */
  gboolean verify;
} oct_cuda_part;

typedef struct oct_cuda_domain_plan {
  guint32 n_seqs, n_decode, n_tokens, n_ids, max_queries, max_context;
  guint32 n_accepting, n_sampled, n_rows; /* ends of the three runs of rows */
  guint32 most_logprobs, n_masks, n_pooled;
  gboolean plain;  /* row i is of token i: nothing has to be gathered */
  GArray *prompts; /* oct_cuda_prompt, of sequences whose context is expanded: the batch's last */
  oct_cuda_shape padded;
  oct_cuda_layout layout;
  guint8
      *head; /* rows have slot + 1 for counts and for biases, the mask's index + 1 for mask; or 0 */
  gsize head_room;
  GArray *changes;  /* oct_glue_change */
  GArray *experts;  /* oct_glue_change of the map of experts */
  gsize experts_at; /* byte offset in the tail */
  GArray *openings; /* oct_cuda_opening, of slots that have penalties, biases or suppressed ids */
  guint8 *tail;     /* changes, those of experts, then what openings bring */
  gsize tail_bytes, tail_room;
} oct_cuda_domain_plan;

typedef struct oct_cuda_plan {
  const oct_step *step; /* borrowed */
  guint32 n_parts;      /* = slices */
  oct_cuda_part *parts; /* [max_slots], in the record's order */
  oct_cuda_domain_plan *domains;
  guint32 n_domains;
  guint64 *resident; /* as the slots', in this step; NULL without expert slots */
  guint64
      feeds_on; /* the latest earlier step that a slice needs tokens or positions of; 0 = none */
} oct_cuda_plan;

/* Sizes of graphs: the smallest that holds n, 0 = none does. Of tokens of steps that are not
 * decodes alone: within an eighth, or 16. */
guint32 oct_cuda_graph_size(guint32 n, guint32 most);
guint32 oct_cuda_graph_tokens(guint32 n, guint32 most);

/* Life cycle. */
oct_cuda_plan *oct_cuda_plan_new(const oct_instance_config *config);
void oct_cuda_plan_free(oct_cuda_plan *plan); /* accepts NULL */

/* Use. The slots move on as if the step had run. FALSE: *fault (FATAL) says what the engine must
 * never do. */
gboolean oct_cuda_plan_make(oct_cuda_plan *plan, oct_cuda_slots_state *slots, const oct_step *step,
                            const oct_cuda_padding *padding, oct_fault *fault);

#endif
