/* A small engine for tests of the seam: it keeps the ids of each slot's sequence, builds steps from
 * one line per slice, fills in tags and state positions, and waits for events. What it does not do
 * is think: pages, slots and order are the test's.
 */
#ifndef OCT_TESTS_RIG_H
#define OCT_TESTS_RIG_H

#include "backends/dump.h"
#include "engine/backend.h"
#include "tests/contract/fixture.h"

#define RIG_SLOTS 32

typedef struct rig {
  oct_world *world;
  oct_instance_config config;
  oct_capabilities capabilities;
  guint32 instance;
  gboolean has_state, no_tags, simulated;
  GString *log; /* borrowed; NULL = none: every call and event as text */
  guint32 n_groups;
  oct_layer_group groups[OCT_MODEL_GROUPS_MAX];
  oct_step_builder *builder;
  guint64 number;         /* of the step being built, or built last */
  GArray *ids[RIG_SLOTS]; /* guint32: prompt and accepted tokens */
  /* Steps submitted and not ended: which slices they had. */
  struct {
    guint64 number;
    guint32 n;
    guint32 slots[RIG_SLOTS];
  } flights[8];
  guint32 n_flights;
} rig;

/* Runs `fn` on the world's thread with an opened instance, closes it, frees the world. */
void rig_run(oct_world *world, const oct_instance_config *config, void (*fn)(rig *r));
/* The same for tests that open instances themselves: rig.instance is 0. */
void rig_run_closed(oct_world *world, const oct_instance_config *config, void (*fn)(rig *r));

/* ---- life cycle inside a run */
void rig_open(rig *r); /* opens and waits for OPENED */
void rig_close(rig *r);
/* A second rig on the same world, for a second instance. */
void rig_init(rig *r, oct_world *world, const oct_instance_config *config);
void rig_clear(rig *r);

/* ---- building the next step */
void rig_begin(rig *r);
/* Opens a slot for a sequence with `key` and `prompt` tokens (ids from the key), which ends after
 * `output` tokens (0 = never). Returned to be changed. */
oct_slot_open *rig_slot(rig *r, guint32 slot, guint64 key, guint32 prompt, guint32 output);
/* Pages first_page, first_page + 1 … become the slot's logical pages index … of a group. */
void rig_pages(rig *r, guint32 slot, guint32 group, guint32 index, guint32 n, guint32 first_page);
void rig_state(rig *r, guint32 slot, guint32 group, guint32 state);
void rig_first_live(rig *r, guint32 slot, guint32 group, guint32 index);
oct_copy *rig_copy(rig *r, oct_copy_kind kind, oct_copy_order order, guint32 group, guint32 from,
                   guint32 to);
/* rig_slot() with a table in every group: pages 8 x slot to 8 x slot + 7 (128 tokens), state
 * `slot`. */
oct_slot_open *rig_sequence(rig *r, guint32 slot, guint64 key, guint32 prompt, guint32 output);
/* n known tokens from position on. */
oct_slice *rig_prefill(rig *r, guint32 slot, guint32 position, guint32 n, oct_sample sample);
/* The same with n_logprobs of the tokens that follow them in the prompt: one past the slice where
 * it samples nothing. */
oct_slice *rig_score(rig *r, guint32 slot, guint32 position, guint32 n, oct_sample sample,
                     guint8 n_logprobs);
/* The token that the slot accepted last. */
oct_slice *rig_decode(rig *r, guint32 slot, guint32 position);
/* It and n - 1 drafts. */
oct_slice *rig_verify(rig *r, guint32 slot, guint32 position, const guint32 *drafts, guint32 n);
const oct_step *rig_end(rig *r);
/* Ends and submits; the step must be taken. */
void rig_submit(rig *r);

/* A copy outside a step, which must be taken; and a mask that allows these tokens. */
void rig_beside(rig *r, guint64 ticket, const oct_copy *copies, guint32 n);
void rig_mask(rig *r, guint64 number, guint32 slice, const guint32 *tokens, guint32 n);

/* ---- events. Tokens of a finished step are added to their slots' ids. */

/* The next event whatever it is; FALSE when the world is at rest. */
gboolean rig_next(rig *r, oct_time until, oct_event *event);
/* The next event must be of this kind (and number, unless 0). Skips nothing. */
void rig_expect(rig *r, oct_event_kind kind, guint64 number, oct_event *event);
/* Passes over other events until this one comes; a FAULT fails the test unless it is awaited. */
void rig_until(rig *r, oct_event_kind kind, guint64 number, oct_event *event);
/* Tokens that slice i of the last STEP_DONE accepted. */
const guint32 *rig_accepted(const oct_event *event, guint32 slice, guint32 *n);
/* Chain of the slot's first n ids. */
guint64 rig_tag(const rig *r, guint32 slot, guint32 n);
/* An id of a prompt: made from its key, never an end of sequence. */
guint32 rig_prompt_id(guint64 key, guint32 position);

#endif
