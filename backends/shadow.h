/* The shadow of an instance's memory: what the simulated backends (mock, simgrid) keep in place of
 * a device. Per slot its sequence, position and page tables; per page and state slot what is in it
 * and who is using it; which experts are loaded. It turns a submitted step into its outcome
 * (resolved positions, accepted tokens, experts used) and finds what an engine must never do:
 *
 * - a slice whose pages do not cover it, or whose state is not where it says (invariant 9, always);
 * - with check_tags, a sequence that does not read its own chain of tokens (invariant 7), page by
 * page from the first live one;
 * - double use (invariant 2): a step or copy that writes what an unfinished step or a copy in
 * flight may still read or write.
 *
 * It has no clock. Everything takes effect in the order of the calls, which is the order that FIFO
 * streams give: a step's outcome is known when it is submitted, except for tokens that wait for a
 * mask. Nothing is allocated per step once tables have reached their size. One thread.
 */
#ifndef OCT_BACKENDS_SHADOW_H
#define OCT_BACKENDS_SHADOW_H

#include "engine/backend.h"

#define OCT_SHADOW_SCRIPT_MAX 16

typedef struct oct_shadow_options {
  guint64 seed; /* of token streams and routing */
  /* How many drafts of a VERIFY slice are accepted: the script's counts in turn (each cut to the
   * slice), else each draft with this chance once all before it were, else (negative) those equal
   * to the token stream. accept_at[]: the chance by the draft's place, the last one's also for
   * those behind it, in place of accept_rate. */
  double accept_rate;
  guint32 n_accept_at;
  double accept_at[OCT_VERIFY_TOKENS_MAX];
  guint32 n_accept_script;
  guint8 accept_script[OCT_SHADOW_SCRIPT_MAX];
  /* Of a sequence's tokens three of four are what stood so many tokens before; 0 = none are. */
  guint32 repeat;
  double expert_skew; /* routing: 0 = uniform, above = towards the experts with low numbers */
  /* In place of it: how often each expert was chosen, [n_count_layers, n_count_experts] as in
   * engine/model/expert-counts.h; borrowed while shadows live. A layer that counts nothing, and a
   * model of other sizes, are as without. NULL = none. */
  guint32 n_count_layers, n_count_experts;
  const double *expert_counts;
  gboolean check_leases; /* double use */
  /* Who uses which page is kept. FALSE saves a fifth of a replay's time and changes no outcome; it
   * has no effect, and pages are tracked, where a copy may ask who uses one (a host tier) or with
   * check_tags, and it must not be used where caches are pulled. */
  gboolean track_pages;
} oct_shadow_options;

void oct_shadow_options_default(oct_shadow_options *options);

/* One slice of a submitted step, resolved. */
typedef struct oct_shadow_slice {
  guint32 slot;
  guint16 domain;
  guint8 sample, n_logprobs, flags, n_prompt_logprobs; /* as in oct_slice */
  gboolean masked;                                     /* its mask has come */
  guint32 adapter, position, n_tokens;
  guint32 n_accepted, tokens;          /* result: count and index of the first in step.tokens[] */
  guint32 n_scored, scored;            /* prompt tokens in step.scored[] */
  guint32 floats;                      /* in step.floats[]; OCT_NO_INDEX = none */
  guint32 prompt_tokens, end_position; /* tokens of the whole sequence, 0 = never ends */
  guint32 eos_token;
  guint64 key;
  guint64 feeds_on; /* unfinished earlier step whose token it needs, 0 = none */
} oct_shadow_slice;

typedef struct oct_shadow_step {
  guint64 number;
  guint32 n_slices, n_tokens, n_experts, n_masks; /* n_masks: masks that have not come */
  oct_shadow_slice *slices;
  guint32 *tokens; /* accepted tokens of all slices */
  guint32 n_scored, n_floats;
  guint32 *scored;         /* prompt tokens whose logprobs are wanted */
  float *floats;           /* pooled vectors */
  oct_expert_use *experts; /* used experts by layer and number; empty unless reported or slotted */
  guint32 missed[16];      /* per stage: experts used that are not resident */
  /* May be fast-forwarded: one-token decodes only, and steps until one in which a sequence ends. */
  gboolean plain;
  guint32 forward_left;
} oct_shadow_step;

typedef struct oct_shadow oct_shadow;

/* ---- life cycle. The config has passed oct_instance_config_check(); its spec is borrowed. */
oct_shadow *oct_shadow_new(const oct_instance_config *config, const oct_shadow_options *options);
void oct_shadow_free(oct_shadow *shadow); /* accepts NULL */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(oct_shadow, oct_shadow_free)

/* ---- use. Those that return gboolean: FALSE is a breach of the contract by the engine, told in
 * *fault (FATAL, with step, slot, group and page in its message), after which the shadow is of no
 * more use. */

/* Takes a step that oct_step_check() accepts and returns what comes of it, owned by the shadow
 * until oct_shadow_step_done() of the step. At most config.depth may be unfinished. */
gboolean oct_shadow_submit(oct_shadow *shadow, const oct_step *step, oct_shadow_step **out,
                           oct_fault *fault) G_GNUC_WARN_UNUSED_RESULT;
/* The mask of one slice has come: its tokens are chosen among the allowed ones. FALSE, without
 * *error, when it is not awaited (ignored); with *error when it is malformed or allows nothing. */
gboolean oct_shadow_mask(oct_shadow *shadow, guint64 number, guint32 slice, const guint64 *bits,
                         guint32 n_words, GError **error);
/* The engine has been told that the step ended. Steps end in order. */
void oct_shadow_step_done(oct_shadow *shadow, guint64 number);
/* Copies outside a step: from submission (both ends are leased) to the moment before COPY_DONE. */
gboolean oct_shadow_copy_begin(oct_shadow *shadow, const oct_copy *copies, guint32 n,
                               oct_fault *fault) G_GNUC_WARN_UNUSED_RESULT;
void oct_shadow_copy_end(oct_shadow *shadow, const oct_copy *copies, guint32 n, gboolean failed);
/* The same for copies whose sources are in another instance's shadow (NULL at the end: it is gone,
 * and the copy has failed). */
gboolean oct_shadow_pull_begin(oct_shadow *shadow, oct_shadow *peer, guint32 peer_domain,
                               const oct_copy *copies, guint32 n,
                               oct_fault *fault) G_GNUC_WARN_UNUSED_RESULT;
void oct_shadow_pull_end(oct_shadow *shadow, oct_shadow *peer, guint32 peer_domain,
                         const oct_copy *copies, guint32 n);
/* The last unfinished step that writes the copy's source or has written or read its destination,
 * 0 = none: what a BESIDE copy waits for. */
guint64 oct_shadow_copy_waits_for(const oct_shadow *shadow, const oct_copy *copy);
/* Whether a copy in flight writes the copy's source. */
gboolean oct_shadow_copy_is_chained(const oct_shadow *shadow, const oct_copy *copy);
/* Retires the only unfinished step, which is plain, and puts its successor in its place, in O(1).
 */
void oct_shadow_forward(oct_shadow *shadow, oct_shadow_step *step);

/* ---- inspect */

/* Writes the result record of a step into *buffer (of *room bytes, grown when needed), times zero.
 */
oct_step_result *oct_shadow_result(oct_shadow *shadow, oct_shadow_step *step, guint8 **buffer,
                                   gsize *room);
/* The token that a sequence with `key` samples for `position` under `adapter`: never an end of
 * sequence. */
guint32 oct_shadow_token(const oct_shadow *shadow, guint64 key, guint32 adapter, guint32 position);
/* What capabilities say of an instance with this config: bytes of a page or state over all ranks.
 */
guint64 oct_shadow_unit_bytes(const oct_instance_config *config, guint32 group);

#endif
