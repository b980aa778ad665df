/* The seam: what executes steps, behind one table of functions.
 *
 * A *world* owns a clock, devices, host memory and links. *Instances* (a model on some of the
 * devices) are opened in it; several share the world's clock. The engine submits *steps* and
 * *copies* and receives *events*; it knows nothing else of CUDA, SimGrid or the machine, and never
 * asks for the time: every event carries it. doc/backend-contract.md gives the rules by number and
 * shows the exact records of each case; tests/contract checks every backend against them.
 *
 * Callers use the checked wrappers (oct_world_submit() …), never the table. All calls come from the
 * one thread (or actor) that oct_world_run() calls back on, except oct_world_wake(). Records are
 * flat: offsets, no pointers, little endian, so that a log, a shared-memory ring and a kernel read
 * the same bytes. Time is int64 nanoseconds since the world began. Nothing here blocks except
 * oct_world_next() and oct_world_run().
 */
#ifndef OCT_BACKEND_H
#define OCT_BACKEND_H

#include <glib.h>

#include "engine/model/spec.h"

#define OCT_BACKEND_ABI 2

/* Limits of a record. A step beyond them is refused with OCT_BACKEND_ERROR_RECORD. */
#define OCT_STEP_SLICES_MAX 4096
#define OCT_STEP_TOKENS_MAX (1u << 20)
/* Ids in its array: slices' and histories', and some for each slice's opening. */
#define OCT_STEP_IDS_MAX      (OCT_STEP_TOKENS_MAX + 64 * OCT_STEP_SLICES_MAX)
#define OCT_STEP_CHANGES_MAX  (1u << 22)
#define OCT_STEP_COPIES_MAX   (1u << 16)
#define OCT_STEP_DOMAINS_MAX  64
#define OCT_VERIFY_TOKENS_MAX 16
#define OCT_BIASES_MAX        1024 /* of one sequence */
#define OCT_STEP_BIASES_MAX   (1u << 18)
/* What a step's slices may ask for together: entries of logprobs, numbers of pooled vectors. */
#define OCT_STEP_LOGPROBS_MAX (1u << 18)
#define OCT_STEP_FLOATS_MAX   (1u << 20)
#define OCT_BIAS_MAX          100.0f /* and as much below 0 */
/* Of a sequence's sampling. The upper ones are far beyond any useful value, and no product of them
 * with a logit overflows. */
#define OCT_TOP_P_MIN              1e-30f
#define OCT_REPETITION_PENALTY_MIN 1e-6f
#define OCT_TEMPERATURE_MAX        1e6f
#define OCT_PENALTY_MAX            1e6f

typedef gint64 oct_time; /* ns */
#define OCT_TIME_NEVER G_MAXINT64

#define OCT_BACKEND_ERROR (oct_backend_error_quark())
GQuark oct_backend_error_quark(void);
typedef enum oct_backend_error {
  OCT_BACKEND_ERROR_RECORD, /* a malformed or out-of-range record: the message names the field */
  OCT_BACKEND_ERROR_UNSUPPORTED, /* a capability that this backend does not have */
  OCT_BACKEND_ERROR_CONFIG,      /* an instance that cannot be: layout, memory, devices */
  OCT_BACKEND_ERROR_DEVICE,      /* the device, its driver or the worker process failed */
} oct_backend_error;

/* ---------------------------------------------------------------- instances */

/* Pools of one layer group, in the order of oct_model_groups(). For a page group the unit is a page
 * of block_size x decode_context tokens; for a state group one sequence's state. Counts are per KV
 * domain and the same on every stage. */
typedef struct oct_pool_plan {
  guint32 n_device;
  guint32 n_host;
} oct_pool_plan;

typedef struct oct_memory_plan {
  guint32 n_groups;
  oct_pool_plan groups[OCT_MODEL_GROUPS_MAX];
  /* Expert slots per MoE layer on each rank; 0 = every expert of the rank is resident. */
  guint32 n_expert_slots;
} oct_memory_plan;

typedef struct oct_instance_config {
  const char *label;          /* for people; copied */
  const oct_model_spec *spec; /* borrowed until the instance is closed */
  const char *weights;        /* a checkpoint in place of the world's own; copied; NULL = that */
  oct_parallel parallel;
  const guint16 *devices; /* [oct_parallel_world()] rank -> device of the world; copied */
  oct_dtype kv_dtype;
  guint32 block_size;         /* tokens per page before decode-context parallelism */
  guint32 depth;              /* unfinished steps wanted: pipeline stages + run-ahead */
  guint32 max_slots;          /* sequence slots, per instance */
  guint32 max_batched_tokens; /* tokens of one step and domain at most */
  oct_memory_plan memory;
  guint64 seed;
  gboolean check_tags;     /* slices carry tags; simulated backends verify them (invariant 7) */
  gboolean report_experts; /* results carry experts used and missed per layer */
  gboolean eager;          /* no graphs: --enforce-eager */
} oct_instance_config;

typedef enum oct_clock_kind { OCT_CLOCK_VIRTUAL, OCT_CLOCK_REAL } oct_clock_kind;

/* What an opened instance can do; arrives with OCT_EVENT_OPENED. */
typedef struct oct_capabilities {
  guint32 depth; /* unfinished steps accepted; oct_world_submit() answers FULL past it */
  guint32 n_groups;
  guint64 page_bytes[OCT_MODEL_GROUPS_MAX]; /* bytes of a page or state slot, summed over ranks */
  guint32 fits[OCT_MODEL_GROUPS_MAX]; /* pages or state slots that fit per domain, >= the plan */
  guint32 graph_max_batch;            /* decode steps up to this batch run as a graph; 0 = none */
  gboolean token_ids; /* slices must carry token ids; else OCT_SOURCE_ABSENT is accepted */
  gboolean masks, speculation, adapters, expert_slots, host_tier;
  gboolean forward; /* oct_world_forward() is there */
  gboolean pooling; /* slices may pool hidden states */
  oct_clock_kind clock;
} oct_capabilities;

/* ---------------------------------------------------------------- the step record */

#define OCT_POSITION_AFTER G_MAXUINT32 /* "after what the slot's last unfinished step accepts" */
#define OCT_NO_INDEX       G_MAXUINT32

typedef enum oct_token_source {
  OCT_SOURCE_IDS,    /* tokens[] holds n_tokens ids */
  OCT_SOURCE_DEVICE, /* one token: what the slot accepted last, on the device; then n_tokens - 1
                        draft ids from tokens[] */
  OCT_SOURCE_ABSENT, /* simulated: content is not carried (capability token_ids is FALSE) */
} oct_token_source;

typedef enum oct_sample { OCT_SAMPLE_NONE, OCT_SAMPLE_LAST, OCT_SAMPLE_ALL } oct_sample;

enum {
  OCT_SLICE_NEEDS_MASK = 1 << 0, /* sampling waits for oct_world_mask() */
  OCT_SLICE_PREFILL = 1 << 1,    /* prompt tokens: for statistics and kernel choice only */
  OCT_SLICE_VERIFY = 1 << 2,     /* drafts follow the first token; 1..n_tokens are accepted */
  OCT_SLICE_POOLED = 1 << 3,     /* the result has the pooled vector; with `pooling` */
};

/* What is made of a prompt's hidden states (after the final norm) where nothing is sampled. */
typedef enum oct_pooling {
  OCT_POOLING_NONE,
  OCT_POOLING_LAST, /* that of the slice's last token; in a POOLED slice only */
  OCT_POOLING_MEAN, /* the mean over all tokens from position 0 on. Every slice of the prompt has
                       it, and adds to the slot's sum, which position 0 begins; the last is POOLED
                     */
} oct_pooling;

/* A run of tokens of one sequence. */
typedef struct oct_slice {
  guint32 slot;
  guint16 domain;
  guint8 source;     /* oct_token_source */
  guint8 sample;     /* oct_sample */
  guint8 n_logprobs; /* logprobs of others wanted per sampled token, 0 = not even its own */
  guint8 flags;      /* OCT_SLICE_… */
  /* Logprobs of prompt tokens: others wanted per scored token, 0 = none are scored. Scored are the
   * tokens that follow the slice's own in the prompt: for IDS only. With LAST, whose last token
   * ends the prompt, its second to last token, n_tokens - 1 of them; with NONE as many and the one
   * after the slice, whose id stands behind the slice's in tokens[]. */
  guint8 n_prompt_logprobs;
  guint8 pooling;         /* oct_pooling; other than NONE with sample NONE only */
  guint32 adapter;        /* 0 = none */
  guint32 n_tokens;       /* >= 1 */
  guint32 tokens;         /* index of the first id in tokens[], OCT_NO_INDEX when none; n_tokens
                             ids, or one more with n_prompt_logprobs and NONE */
  guint32 position;       /* of the first token, 0-based; or OCT_POSITION_AFTER */
  guint32 state_position; /* tokens the slot's recurrent state has absorbed (= position), or
                             OCT_POSITION_AFTER; OCT_NO_INDEX for a model without state */
  guint64 tag;            /* with check_tags: chain of the slot's tokens [0, position), or 0 = not
                             known (position AFTER), which skips the comparison; else 0 */
} oct_slice;

/* Adds `bias` to the token's logit, -100 … 100. */
typedef struct oct_token_bias {
  guint32 token;
  float bias;
} oct_token_bias;

/* Travels once, when a sequence takes a slot. Reopening a slot replaces what it held. */
typedef struct oct_slot_open {
  guint32 slot;
  guint16 domain;
  guint16 reserved; /* 0 */
  guint64 key;      /* identity of the sequence's token stream: equal keys sample equal tokens */
  guint64 seed;     /* of the sampler */
  guint32 prompt_tokens; /* length of the prompt: position prompt_tokens is the first output */
  guint32 oracle_tokens; /* simulated backends only: true output length, then end of sequence is
                            emitted as its last token; 0 = never. The engine does not look at it. */
  guint32 eos_token;     /* what to emit then */
  gint32 top_k;          /* -1 = off */
  float temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
  guint32 history; /* index in tokens[] of ids that penalties count, OCT_NO_INDEX = none */
  guint32 n_history;
  guint32 biases;   /* index in biases[], each token at most once; OCT_NO_INDEX = none */
  guint32 n_biases; /* at most OCT_BIASES_MAX */
  /* Ids that are not sampled before there are min_tokens output tokens, unless nothing else is
   * allowed: index in tokens[], OCT_NO_INDEX = none. */
  guint32 stops;
  guint32 n_stops, min_tokens;
  guint32 reserved2; /* 0 */
} oct_slot_open;

typedef enum oct_page_op {
  OCT_PAGE_SET,        /* logical page `index` of (slot, group) is page `page`: append or replace;
                          for a state group index is 0 and page is the state slot */
  OCT_PAGE_FIRST_LIVE, /* pages below `index` are given up (sliding window); `page` is 0 */
} oct_page_op;

typedef struct oct_page_change {
  guint32 slot;
  guint16 group;
  guint16 op; /* oct_page_op */
  guint32 index;
  guint32 page;
} oct_page_change;

typedef enum oct_tier { OCT_TIER_DEVICE, OCT_TIER_HOST } oct_tier;
typedef enum oct_copy_kind { OCT_COPY_PAGE, OCT_COPY_STATE, OCT_COPY_EXPERT } oct_copy_kind;
typedef enum oct_copy_order {
  OCT_COPY_BEFORE, /* in a step: ends before its kernels begin */
  OCT_COPY_AFTER,  /* in a step: begins after its kernels, ends before the next step's begin */
  OCT_COPY_BESIDE, /* on its own: begins after all that was submitted earlier and writes its source
                      has finished; both ends are leased until its event */
} oct_copy_order;

/* One page, state or expert, all ranks of the domain (groups replicated over ranks go to the host
 * once). PAGE and STATE: from/to index the pool of (domain, group, tier). EXPERT: from is the
 * expert, to the device slot of `group` = the model layer, HOST to DEVICE. Here and below a layer
 * is counted over all layers of the model, dense ones included. */
typedef struct oct_copy {
  guint8 kind;      /* oct_copy_kind */
  guint8 order;     /* oct_copy_order */
  guint8 from_tier; /* oct_tier */
  guint8 to_tier;
  guint16 domain;
  guint16 group;
  guint32 from, to;
} oct_copy;

/* From this step on, `expert` of MoE layer `layer` is in device slot `slot` (OCT_NO_INDEX: gone).
 */
typedef struct oct_expert_change {
  guint16 layer;
  guint16 reserved; /* 0 */
  guint32 expert;
  guint32 slot;
} oct_expert_change;

/* A KV domain's part of the step. A domain with n_slices 0 takes part with one padded slice: expert
 * exchange needs every domain. */
typedef struct oct_domain_part {
  guint32 first_slice, n_slices;
  guint32 n_tokens; /* sum over its slices */
  guint32 reserved; /* 0 */
} oct_domain_part;

/* The header of a step record; the arrays follow at the given byte offsets from the header, in the
 * order of the fields, each 8-byte aligned, without gaps but zeroed padding: equal content is equal
 * bytes. An empty array has the offset where it would begin. Slices are sorted by domain. A slot
 * appears in at most one slice and at most one open. No slice reads pages that another writes. */
typedef struct oct_step {
  guint32 bytes; /* of the whole record */
  guint16 abi;   /* OCT_BACKEND_ABI */
  guint16 n_domains;
  guint64 number; /* 1, 2, 3 … per instance, without gaps */
  guint32 n_slices, slices;
  guint32 n_tokens,
      tokens; /* guint32 ids of all slices, histories and stops: not the step's token count */
  guint32 n_opens, opens;
  guint32 n_biases, biases; /* oct_token_bias of all opens */
  guint32 n_changes, changes;
  guint32 n_copies, copies;   /* BEFORE and AFTER only */
  guint32 n_experts, experts; /* at most OCT_STEP_COPIES_MAX */
  guint32 domains;            /* oct_domain_part[n_domains] */
  guint32 reserved;           /* 0 */
} oct_step;

#define OCT_STEP_ARRAY(name, type, field)                                                          \
  static inline const type *oct_step_##name(const oct_step *step) {                                \
    return (const type *)(const void *)((const guint8 *)step + step->field);                       \
  }
OCT_STEP_ARRAY(slices, oct_slice, slices)
OCT_STEP_ARRAY(tokens, guint32, tokens)
OCT_STEP_ARRAY(opens, oct_slot_open, opens)
OCT_STEP_ARRAY(biases, oct_token_bias, biases)
OCT_STEP_ARRAY(changes, oct_page_change, changes)
OCT_STEP_ARRAY(copies, oct_copy, copies)
OCT_STEP_ARRAY(experts, oct_expert_change, experts)
OCT_STEP_ARRAY(domains, oct_domain_part, domains)
#undef OCT_STEP_ARRAY

/* ---------------------------------------------------------------- events */

typedef enum oct_event_kind {
  OCT_EVENT_TIMER, /* `until` was reached */
  OCT_EVENT_WAKE,  /* oct_world_wake() was called (any number of times) since the last one */
  OCT_EVENT_OPEN_PROGRESS, /* phase and fraction */
  OCT_EVENT_OPENED,        /* capabilities */
  OCT_EVENT_OPEN_FAILED,   /* fault; the instance is gone */
  OCT_EVENT_STEP_DONE,     /* result; steps of an instance finish in order */
  OCT_EVENT_COPY_DONE,     /* ticket; failed copies say so */
  OCT_EVENT_MASK_WANTED,   /* a slice has reached sampling and waits for its mask */
  OCT_EVENT_FAULT,         /* fault */
} oct_event_kind;

/* How much an error takes with it. */
typedef enum oct_severity {
  OCT_SEVERITY_REQUEST,  /* one slice: its request fails, the step goes on */
  OCT_SEVERITY_STEP,     /* the step did nothing, its opens, changes and copies included: every
                            request in it fails or is run again. Every unfinished step after it
                            ends the same way, in order, each with its own FAULT */
  OCT_SEVERITY_INSTANCE, /* the instance is lost (device, rank, communicator): reopen */
  OCT_SEVERITY_FATAL,    /* the world is lost */
} oct_severity;

typedef struct oct_fault {
  oct_severity severity;
  guint32 device;    /* OCT_NO_INDEX = not known */
  guint64 number;    /* step, 0 = none. STEP severity: its STEP_DONE does not come */
  guint32 slice;     /* REQUEST severity: which */
  guint32 retryable; /* STEP: 1 = running it again may work */
  char message[96];  /* for people, NUL-terminated */
} oct_fault;

enum {
  OCT_RESULT_FAILED =
      1 << 0, /* REQUEST severity: this slice has no tokens; a FAULT event said why */
};

typedef struct oct_slice_result {
  guint32 n_accepted; /* tokens sampled and accepted: 0 when nothing was to be sampled; for a VERIFY
                         slice 1..n_tokens; SAMPLE_LAST gives 1 */
  guint32 tokens;     /* index of the first in result tokens[] */
  guint32 flags;      /* OCT_RESULT_… */
  guint32 logprobs;   /* index of the first in logprobs[], OCT_NO_INDEX when none: per scored token
                         its own, then n_prompt_logprobs others; then per accepted token (with
                         n_logprobs) its own, then n_logprobs others. A FAILED slice has none */
  guint32 floats;   /* index of the first in floats[], OCT_NO_INDEX when none: the pooled vector of
                       a POOLED slice, as wide as the model's hidden state, not normalised */
  guint32 reserved; /* 0 */
} oct_slice_result;

/* Natural logarithm of the softmax of the logits as the model gave them: before bias, mask,
 * penalties and temperature. Others are the likeliest first, of equals the lower token. */
typedef struct oct_logprob {
  guint32 token;
  float logprob;
} oct_logprob;

typedef struct oct_expert_use {
  guint16 layer, reserved;
  guint32 expert;
  guint32 tokens; /* token-expert pairs that used it */
  guint32 missed; /* 1 = it was not resident and was read or loaded from the host */
} oct_expert_use;

/* Where a step's time went, summed over its longest path. */
enum {
  OCT_PART_COMPUTE,    /* bound by arithmetic */
  OCT_PART_MEMORY,     /* bound by device memory */
  OCT_PART_COLLECTIVE, /* all-reduce, all-to-all, pipeline sends */
  OCT_PART_FIXED,      /* launches, floors */
  OCT_PART_COPY,       /* BEFORE and AFTER copies, expert misses */
  OCT_PART_WAIT,       /* mask waits, pipeline bubbles */
  OCT_PART_COUNT
};

/* Header of a step's result; arrays follow as in oct_step. */
typedef struct oct_step_result {
  guint32 bytes;
  guint32 n_slices, slices; /* oct_slice_result, in the step's order */
  guint32 n_tokens, tokens; /* guint32 */
  guint32 n_logprobs, logprobs;
  guint32 n_experts, experts;
  guint32 n_floats, floats;
  guint32 reserved;
  oct_time start_ns; /* when the step began on its first stage */
  oct_time end_ns;   /* when its tokens were known; = the event's time unless host is late. Not
                      * before start_ns, but it may equal it: a step may take no time */
  gint64 part_ns[OCT_PART_COUNT];
} oct_step_result;

#define OCT_RESULT_ARRAY(name, type, field)                                                        \
  static inline const type *oct_result_##name(const oct_step_result *result) {                     \
    return (const type *)(const void *)((const guint8 *)result + result->field);                   \
  }
OCT_RESULT_ARRAY(slices, oct_slice_result, slices)
OCT_RESULT_ARRAY(tokens, guint32, tokens)
OCT_RESULT_ARRAY(logprobs, oct_logprob, logprobs)
OCT_RESULT_ARRAY(experts, oct_expert_use, experts)
OCT_RESULT_ARRAY(floats, float, floats)
#undef OCT_RESULT_ARRAY

/* Pointers in an event are borrowed until the next oct_world_next() or oct_world_close(). */
typedef struct oct_event {
  oct_event_kind kind;
  guint32 instance;  /* 0 for TIMER and WAKE */
  oct_time time_ns;  /* never before the previous event's */
  guint64 number;    /* STEP_DONE, MASK_WANTED: step; COPY_DONE: ticket */
  guint32 slice;     /* MASK_WANTED */
  guint32 failed;    /* COPY_DONE: 1 = the copy failed and its destination holds nothing */
  double fraction;   /* OPEN_PROGRESS: 0..1 */
  const char *phase; /* OPEN_PROGRESS: "weights", "graphs" … */
  const oct_step_result *result;
  const oct_capabilities *capabilities;
  const oct_fault *fault;
} oct_event;

/* ---------------------------------------------------------------- fast-forward */

/* Virtual clocks only. Asks to retire the instance's only unfinished step m silently and to put its
 * successor m + 1 in flight: the same slices one token further, as if submitted at submit_ns. */
typedef struct oct_forward {
  oct_time limit_ns;  /* m must end at or before this */
  oct_time submit_ns; /* when m + 1 would have been submitted, <= end of m */
} oct_forward;

typedef struct oct_forwarded {
  oct_time start_ns, end_ns;      /* of the retired step m */
  gint64 part_ns[OCT_PART_COUNT]; /* as its result would have said */
} oct_forwarded;

/* ---------------------------------------------------------------- the table */

typedef struct oct_world oct_world;
typedef int (*oct_world_fn)(oct_world *world, void *arg);

typedef enum oct_submit {
  OCT_SUBMIT_OK,
  OCT_SUBMIT_FULL,    /* depth reached: come back after the next STEP_DONE; nothing was taken */
  OCT_SUBMIT_REFUSED, /* *error says why; nothing was taken */
} oct_submit;

typedef struct oct_world_ops {
  const char *name;
  guint32 abi;
  oct_clock_kind clock;
  /* Frees the world; no instance may be open. Not inside run(). */
  void (*free)(oct_world *world);
  /* Calls fn(world, arg) on the world's thread or actor and returns its value, once it returned. */
  int (*run)(oct_world *world, oct_world_fn fn, void *arg);
  /* From any thread: makes a waiting or the next next() return OCT_EVENT_WAKE. */
  void (*wake)(oct_world *world);
  /* Takes what it needs of the config and returns at once; progress and outcome come as events.
   * *instance is >= 1 and never reused within the world. */
  gboolean (*open)(oct_world *world, const oct_instance_config *config, guint32 *instance,
                   GError **error);
  /* Ends the instance in whatever state: pending open, steps and copies are cancelled and send no
   * further events. */
  void (*close)(oct_world *world, guint32 instance);
  /* The record is read before the call returns. */
  oct_submit (*submit)(oct_world *world, guint32 instance, const oct_step *step, GError **error);
  /* BESIDE copies; one COPY_DONE for the ticket when all n have ended. */
  oct_submit (*copy)(oct_world *world, guint32 instance, guint64 ticket, const oct_copy *copies,
                     guint32 n_copies, GError **error);
  /* Optional (oct_world_can_pull()): BESIDE copies of pages and states whose sources are device
   * items of instance `peer` of the same world, domain `peer_domain`: from a prefill to a decode
   * pool. `from` indexes the peer's pool, everything else is this instance's. Both have the same
   * model, KV type and page. The sources' writers have ended, and the caller keeps them leased in
   * the peer. One COPY_DONE for this instance and ticket; it says failed when the peer was closed
   * or lost meanwhile. */
  oct_submit (*pull)(oct_world *world, guint32 instance, guint32 peer, guint32 peer_domain,
                     guint64 ticket, const oct_copy *copies, guint32 n_copies, GError **error);
  /* Optional (capability masks): allowed tokens of slice `slice` of step `number`, one bit per
   * vocabulary id. May come before or after the slice reaches sampling; a mask for a step that has
   * ended is ignored. */
  gboolean (*mask)(oct_world *world, guint32 instance, guint64 number, guint32 slice,
                   const guint64 *bits, guint32 n_words, GError **error);
  /* Waits for the earliest event, or until until_ns. Events at or before until_ns come before its
   * TIMER. With a virtual clock and nothing pending, until OCT_TIME_NEVER returns FALSE: the world
   * is at rest for ever. */
  gboolean (*next)(oct_world *world, oct_time until_ns, oct_event *event);
  /* Optional (capability forward). FALSE, with nothing changed, when m or the world is eventful
   * before m ends: a sequence ends in m, another event of the world is due at or before m's end, m
   * is not a plain one-token decode of every slice, or limit_ns is earlier. */
  gboolean (*forward)(oct_world *world, guint32 instance, const oct_forward *forward,
                      oct_forwarded *forwarded);
} oct_world_ops;

/* Base of every world: an implementation's struct begins with it. The wrappers own the fields. */
struct oct_world {
  const oct_world_ops *ops;
  oct_time now_ns;  /* of the last event */
  gboolean running; /* inside oct_world_run() */
};

/* ---------------------------------------------------------------- checked wrappers
 * (engine/backend.c) */

/* Asserts that the table is complete (required entries, abi) and ties it to the world. */
void oct_world_init(oct_world *world, const oct_world_ops *ops);
void oct_world_free(oct_world *world); /* accepts NULL */
int oct_world_run(oct_world *world, oct_world_fn fn, void *arg);
void oct_world_wake(oct_world *world);
gboolean oct_world_open(oct_world *world, const oct_instance_config *config, guint32 *instance,
                        GError **error) G_GNUC_WARN_UNUSED_RESULT;
void oct_world_close(oct_world *world, guint32 instance);
oct_submit oct_world_submit(oct_world *world, guint32 instance, const oct_step *step,
                            GError **error) G_GNUC_WARN_UNUSED_RESULT;
oct_submit oct_world_copy(oct_world *world, guint32 instance, guint64 ticket,
                          const oct_copy *copies, guint32 n_copies,
                          GError **error) G_GNUC_WARN_UNUSED_RESULT;
gboolean oct_world_can_pull(const oct_world *world);
/* REFUSED (UNSUPPORTED) by worlds that cannot. */
oct_submit oct_world_pull(oct_world *world, guint32 instance, guint32 peer, guint32 peer_domain,
                          guint64 ticket, const oct_copy *copies, guint32 n_copies,
                          GError **error) G_GNUC_WARN_UNUSED_RESULT;
gboolean oct_world_mask(oct_world *world, guint32 instance, guint64 number, guint32 slice,
                        const guint64 *bits, guint32 n_words,
                        GError **error) G_GNUC_WARN_UNUSED_RESULT;
gboolean oct_world_next(oct_world *world, oct_time until_ns, oct_event *event);
gboolean oct_world_forward(oct_world *world, guint32 instance, const oct_forward *forward,
                           oct_forwarded *forwarded);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(oct_world, oct_world_free)

/* Checks a record against itself, the instance's config and the limits above, distrusting every
 * field: offsets, counts, ids, order. For records that cross a process border, and for the contract
 * test. `size` is what the caller has at `step`. */
gboolean oct_step_check(const oct_step *step, gsize size, const oct_instance_config *config,
                        GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Its first part, which needs no config: counts, offsets, sizes. Enough to walk the arrays, not to
 * follow an index in them. */
gboolean oct_step_layout_check(const oct_step *step, gsize size,
                               GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* What a slice gives, beside what depends on the outcome: prompt tokens that are scored, and ids
 * that it has in tokens[]. */
static inline guint32
oct_slice_scored(const oct_slice *slice) {
  return slice->n_prompt_logprobs == 0 ? 0 : slice->n_tokens - (slice->sample != OCT_SAMPLE_NONE);
}
static inline guint32
oct_slice_ids(const oct_slice *slice) {
  if (slice->source == OCT_SOURCE_DEVICE)
    return slice->n_tokens - 1;
  gboolean one_more = slice->n_prompt_logprobs > 0 && slice->sample == OCT_SAMPLE_NONE;
  return slice->source == OCT_SOURCE_IDS ? slice->n_tokens + one_more : 0;
}
/* Logprobs that a slice's result has when it accepted n tokens and has not failed. */
static inline guint32
oct_slice_logprobs(const oct_slice *slice, guint32 n_accepted) {
  guint32 scored = oct_slice_scored(slice) * (1u + slice->n_prompt_logprobs);
  return scored + (slice->n_logprobs > 0 ? n_accepted * (1u + slice->n_logprobs) : 0);
}

/* The same for pulled copies: device to device, `from` within the peer's pools, which fit this
 * instance's. */
gboolean oct_pull_check(const oct_copy *copies, guint32 n_copies, const oct_instance_config *config,
                        const oct_instance_config *peer, guint32 peer_domain,
                        GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* The same for copies outside a step (BESIDE) and for a config (CONFIG errors), which
 * oct_world_open() checks. */
gboolean oct_copies_check(const oct_copy *copies, guint32 n_copies,
                          const oct_instance_config *config,
                          GError **error) G_GNUC_WARN_UNUSED_RESULT;
gboolean oct_instance_config_check(const oct_instance_config *config,
                                   GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* One link of a tag chain (invariant 7): the chain of tokens [0, p + 1) from that of [0, p). A
 * cheap mix, not a defence; the empty chain is OCT_TAG_EMPTY. */
#define OCT_TAG_EMPTY 0x6f637465745f7461u
guint64 oct_tag_next(guint64 tag, guint32 token);

/* ---------------------------------------------------------------- building records */

/* Builds step records in one growing buffer that is reused, so that nothing is allocated once it
 * has reached its largest size. Order of calls: begin, any adds (slices sorted by domain), end. */
typedef struct oct_step_builder oct_step_builder;
oct_step_builder *oct_step_builder_new(void);
void oct_step_builder_free(oct_step_builder *builder); /* accepts NULL */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(oct_step_builder, oct_step_builder_free)
void oct_step_begin(oct_step_builder *builder, guint64 number, guint16 n_domains);
/* Returns the entry to fill, valid until the next add of the same kind. It is zeroed, except what
 * would not mean "none" as 0: tokens, history, biases, stops and state_position are OCT_NO_INDEX,
 * and an open has top_k -1, top_p 1 and repetition_penalty 1. */
oct_slice *oct_step_add_slice(oct_step_builder *builder);
/* The same for a caller that writes all of it: what stands there is anything. */
oct_slice *oct_step_next_slice(oct_step_builder *builder);
oct_slot_open *oct_step_add_open(oct_step_builder *builder);
oct_page_change *oct_step_add_change(oct_step_builder *builder);
oct_copy *oct_step_add_copy(oct_step_builder *builder);
oct_expert_change *oct_step_add_expert(oct_step_builder *builder);
/* Appends n ids (borrowed; NULL = room for n, to be filled through *ids) and returns the index of
 * the first. */
guint32 oct_step_add_tokens(oct_step_builder *builder, const guint32 *ids, guint32 n,
                            guint32 **room);
/* Appends n biases (borrowed) and returns the index of the first. */
guint32 oct_step_add_biases(oct_step_builder *builder, const oct_token_bias *biases, guint32 n);
guint32 oct_step_slice_count(const oct_step_builder *builder);
/* Borrowed until the next begin. Times the buffer grew so far: oct_step_builder_grown(). */
const oct_step *oct_step_end(oct_step_builder *builder);
guint32 oct_step_builder_grown(const oct_step_builder *builder);

#endif
