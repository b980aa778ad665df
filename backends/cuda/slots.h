/* Sequence slots and their page tables as the host knows them. Private to backends/cuda.
 *
 * The device has each slot's last token and its length; the host has everything else, and knows the
 * length too unless drafts are being verified.
 */
#ifndef OCT_BACKENDS_CUDA_SLOTS_H
#define OCT_BACKENDS_CUDA_SLOTS_H

#include "engine/backend.h"
#include "kernels/kernels.h"

typedef struct oct_cuda_table {
  guint32 *pages; /* [room]; OCT_NO_INDEX: none */
  guint32 n, room, first_live;
} oct_cuda_table;

/* Tokens [first, first + n_tokens) of a batch: the sequence of `slot` from `position` on. */
typedef struct oct_cuda_prompt {
  guint32 first, n_tokens, position, slot;
} oct_cuda_prompt;

typedef struct oct_cuda_slot {
  gboolean open, has_token, penalties;
  guint16 domain;
  guint64 epoch;         /* the step that opened it */
  guint64 failed_epoch;  /* the opening whose sequence has failed; 0 = none */
  guint32 next_position; /* OCT_NO_INDEX: not known, or known to the device alone */
  guint32 least, most;   /* bounds of next_position once it is the device's */
  guint32 settled;       /* where the latest result left the sequence */
  guint64 verify_step;   /* the step whose result will tell it; 0 = none */
  guint64 last_step;     /* the latest that samples a token of it; 0 = none */
  oct_sampling sampling;
  guint32 prompt_tokens, min_tokens, n_biases, n_stops;
  guint32 n_summed;       /* tokens in the slot's mean */
  oct_cuda_table *tables; /* [groups] */
} oct_cuda_slot;

typedef struct oct_cuda_slots_state {
  const oct_instance_config *config; /* borrowed */
  guint32 n_groups, max_context;
  oct_layer_group groups[OCT_MODEL_GROUPS_MAX];
  gsize strides[OCT_MODEL_GROUPS_MAX]; /* entries of a slot's table on the device */
  gsize firsts[OCT_MODEL_GROUPS_MAX];  /* where the group's tables begin there */
  gsize n_entries;
  oct_cuda_slot *slots; /* [max_slots] */
  /* Expert slots; NULL when all experts are on the device. Experts of layer l begin at l *
   * n_layer_experts. */
  guint32 n_layer_experts;
  guint32 *expert_at; /* slot of each, OCT_NO_INDEX: none */
  guint64 *resident;  /* a bit for each that has one */
  gsize n_words;      /* of these bits */
} oct_cuda_slots_state;

/* Life cycle. */
void oct_cuda_slots_open(oct_cuda_slots_state *state, const oct_instance_config *config);
void oct_cuda_slots_close(oct_cuda_slots_state *state);

/* Use. Opens, page changes and expert changes of a step, in its order. FALSE: *fault (FATAL) says
 * what the engine must never do. */
gboolean oct_cuda_slots_apply(oct_cuda_slots_state *state, const oct_step *step, oct_fault *fault);
/* Where slice `s` begins: *position, or OCT_NO_INDEX when the device alone knows; *end is beyond
 * the last position that it may write. FALSE as above. */
gboolean oct_cuda_slots_resolve(const oct_cuda_slots_state *state, const oct_step *step,
                                const oct_slice *s, guint32 n_tokens, guint32 *position,
                                guint32 *end, oct_fault *fault);
/* The slice will have run; `accepts` when tokens are sampled, verify when 1 … n_tokens of them. */
void oct_cuda_slots_advance(oct_cuda_slots_state *state, const oct_step *step, const oct_slice *s,
                            guint32 n_tokens, guint32 position, gboolean verify);
/* The result of a step, told in the order of steps: `kept` tokens from `position` on (OCT_NO_INDEX:
 * from where the result before it ended) belong to the sequence that opened the slot at `epoch`. */
void oct_cuda_slots_settle(oct_cuda_slots_state *state, guint32 slot, guint64 epoch, guint64 step,
                           guint32 position, guint32 kept);

#endif
