/* The inside of the memory shadow: what shadow.c, shadow-memory.c and shadow-experts.c share. */
#ifndef OCT_BACKENDS_SHADOW_INTERNAL_H
#define OCT_BACKENDS_SHADOW_INTERNAL_H

#include "backends/shadow.h"

#define SHADOW_NO_OWNER 0u /* of a unit: no sequence, but a copy */
#define TOKEN_UNKNOWN   G_MAXUINT32

/* A page or a state slot. Chains (guint64) are 0 when not known. */
typedef struct unit {
  guint64 writer;  /* last step that writes it */
  guint64 toucher; /* last step that reads or writes it, and for whom */
  guint32 owner;
  guint32 first;            /* page: position of its first token in the sequence */
  guint32 filled;           /* page: tokens in it; state: tokens absorbed */
  guint16 reading, writing; /* copies in flight from and to it */
  guint64 chain; /* page: of the tokens before its first; state: of the tokens absorbed */
} unit;

typedef struct unit_pool {
  unit *units;
  guint64 *chains; /* pages, with check_tags: [n][page_tokens] chain after each token */
  guint32 n;
} unit_pool;

/* A slot's pages of one group. Entries below first_set were never set. */
typedef struct page_table {
  guint32 *pages;
  guint32 n, room, first_set, first_live;
} page_table;

typedef struct slot {
  gboolean open, ran, has_token;
  guint16 domain;
  guint32 owner; /* unlike for every sequence that ever had a slot; never SHADOW_NO_OWNER */
  guint32 prompt_tokens, end_position, eos_token;
  guint64 key;
  guint64 stream;       /* oct_shadow_token()'s of the key, without an adapter */
  guint32 position;     /* of the next token */
  guint32 last_token;   /* accepted last; TOKEN_UNKNOWN while its mask is awaited */
  guint64 sampled_step; /* where it was accepted */
  guint64 chain;        /* of [0, position) */
  guint32 n_biases, n_stops, min_tokens;
  oct_token_bias *biases; /* kept, as are stops and sum, from one sequence to the next */
  guint32 biases_room;
  guint32 *stops;
  guint32 stops_room;
  float *sum;       /* [hidden] of mean pooling, NULL until it is used */
  guint32 n_summed; /* tokens in it */
} slot;

/* A device slot for an expert of one layer and rank. */
typedef struct expert_slot {
  guint32 loaded;   /* expert whose weights it holds, OCT_NO_INDEX = none */
  guint32 mapped;   /* expert that steps find in it, OCT_NO_INDEX = none */
  guint64 freed_at; /* steps before this one may still read what was mapped */
  guint32 writing;
} expert_slot;

typedef struct step_entry {
  oct_shadow_step step;
  guint32 slices_room, tokens_room, experts_room, scored_room, floats_room;
} step_entry;

struct oct_shadow {
  oct_instance_config config; /* its pointers other than spec are not used */
  oct_shadow_options options;
  guint64 token_key;
  guint32 n_groups, n_domains, page_tokens;
  oct_layer_group groups[OCT_MODEL_GROUPS_MAX];
  gboolean has_state, tracks_pages;
  gboolean looks_at_pages; /* what a slice writes is noted: state, pages or chains */
  unit_pool *pools;        /* [tier][domain][group] */
  slot *slots;
  page_table *tables; /* [slot][group] */
  guint32 next_owner;
  guint64 last_number, last_done;
  step_entry **ring; /* [ring_size]: step n is at n % ring_size */
  guint32 ring_size;
  guint32 script_at;
  /* Steps that the plain step was forwarded and its slots have not been told. */
  guint32 shift;
  guint64 *chains; /* scratch: chain after each token of a slice */
  guint32 *fed;    /* scratch: its tokens */
  guint32 scratch_room;
  guint64 *allowed; /* scratch: [vocabulary / 64] */
  /* Experts; NULL unless the instance reports them or has slots for them. */
  guint32 n_layer_experts; /* of the layer that has most */
  double *expert_chance; /* [n_layers, n_layer_experts]: of it or one before it; NULL = no counts */
  guint32 n_expert_ranks;
  guint32 *expert_at;        /* [layer][expert] -> slot, OCT_NO_INDEX */
  expert_slot *expert_slots; /* [layer][rank][slot] */
  guint32 *expert_use;       /* [expert] scratch */
};

/* Fills *fault with a breach of the contract in step `number`, and returns FALSE. */
gboolean shadow_breach(oct_fault *fault, guint64 number, const char *format, ...)
    G_GNUC_PRINTF(3, 4);

/* shadow.c: tells the slots of a forwarded step how far they have come. */
void shadow_settle(oct_shadow *s);

/* shadow-memory.c */
void shadow_pools_new(oct_shadow *s);
void shadow_pools_free(oct_shadow *s);
unit_pool *shadow_pool(const oct_shadow *s, oct_tier tier, guint32 domain, guint32 group);
gboolean shadow_apply_changes(oct_shadow *s, const oct_step *step, oct_fault *fault);
/* The copies of `order` in a step. */
gboolean shadow_step_copies(oct_shadow *s, const oct_step *step, oct_copy_order order,
                            oct_fault *fault);
/* Checks that the slot's tables cover [0, position + n) and hold the chain of [0, position), which
 * is `*chain` (0 = not known, and then set to what the memory says). */
gboolean shadow_check_slice(oct_shadow *s, guint64 number, guint32 slot, guint32 position,
                            guint32 n, guint64 *chain, oct_fault *fault);
/* Writes n tokens, of which the first `kept` stay; chains[i] is the chain after the i-th. */
gboolean shadow_write_slice(oct_shadow *s, guint64 number, guint32 slot, guint32 position,
                            guint32 n, guint32 kept, const guint64 *chains, oct_fault *fault);
/* Moves the slot's state and last page on by `tokens` written unseen, as step `number`. */
void shadow_advance_state(oct_shadow *s, guint64 number, guint32 slot, guint32 tokens);

/* shadow-content.c: what a sequence's content gives */
void shadow_sequence_open(oct_shadow *s, slot *to, const oct_step *step, const oct_slot_open *open);
void shadow_sequence_free(slot *of);
/* What the sequence has at `position`: its end is where the oracle says and nowhere else. */
guint32 shadow_stream_token(const oct_shadow *s, const oct_shadow_slice *sl, guint32 position);
/* The same for the sequence in a slot. */
guint32 shadow_next_token(const oct_shadow *s, const slot *of, guint32 adapter, guint32 position);
/* What is sampled for `position` where the stream has `wanted`, of the tokens that `bits` (NULL:
 * all), the slot's biases and its stops leave: `wanted`, or a hash's choice. */
guint32 shadow_choose(oct_shadow *s, const oct_shadow_slice *sl, guint32 position, guint32 wanted,
                      const guint64 *bits);
/* Notes the prompt tokens that the slice scores. */
void shadow_score(step_entry *entry, oct_shadow_slice *sl, const oct_step *step,
                  const oct_slice *in);
/* Adds the slice's tokens to what is pooled, and the vector to the step. */
gboolean shadow_add_pooled(oct_shadow *s, guint64 number, step_entry *entry, oct_shadow_slice *sl,
                           const oct_slice *in, const guint32 *fed, oct_fault *fault);

/* shadow-experts.c */
void shadow_experts_new(oct_shadow *s);
void shadow_experts_free(oct_shadow *s);
gboolean shadow_apply_experts(oct_shadow *s, const oct_step *step, oct_fault *fault);
/* Counts which experts the step's tokens use, into entry. */
void shadow_route(oct_shadow *s, step_entry *entry);
gboolean shadow_expert_copy_begin(oct_shadow *s, guint64 number, const oct_copy *copy,
                                  oct_fault *fault);
void shadow_expert_copy_end(oct_shadow *s, const oct_copy *copy, gboolean failed);

#endif
