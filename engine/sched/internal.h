/* The scheduler's inside: what the files of this folder share. Nothing outside includes it, except
 * tests of one part.
 *
 * Reading order: accept.c (limits), request.c (life cycle), queue.c (who waits), kv.c (pages,
 * slots, prefix hits), plan.c (one step), preempt.c (who leaves), admit.c (who enters), policy/ (in
 * which order), commit.c (what a step brought), transfer.c (host tier), pull.c (other engines'
 * caches), fault.c (what goes wrong), speculate.c and draft.c (drafts), forward.c (fast-forward),
 * engine.c (the turn), check.c (the books).
 *
 * A sequence's numbers, all in tokens (n_out + in_flight_out <= max_out):
 *
 *   0 ........ prompt ........ prompt+n_out ........ +in_flight_out
 *   |--------- known ----------|-- sampled by unfinished steps --|
 *   done <= sched: tokens whose KV is written by finished / by submitted steps.
 *   Prefill while sched < target; target is prompt + n_out when the sequence (re)starts, or prompt
 * - 1 for the trunk of n > 1 choices until it forks. Decode when sched + 1 == prompt + n_out +
 * in_flight_out: the last token is all that is left.
 */
#ifndef OCT_SCHED_INTERNAL_H
#define OCT_SCHED_INTERNAL_H

#include "engine/base/assert.h"
#include "engine/base/hash.h"
#include "engine/base/limits.h"
#include "engine/base/rng.h"
#include "engine/sched/engine.h"
#include "engine/sched/policy.h"
#include "engine/sched/pool.h"

#define OCT_CHOICES_MAX  8
#define OCT_LOGPROBS_MAX 20
#define OCT_DEPTH_MAX    20 /* unfinished steps: OCT stages + run-ahead */
#define OCT_GROUPS       OCT_MODEL_GROUPS_MAX

typedef enum oct_seq_state {
  OCT_SEQ_WAITING,    /* in its domain's queue; holds no device memory, perhaps host pages */
  OCT_SEQ_RELOADING,  /* holds device pages that host pages are being copied into */
  OCT_SEQ_RUNNING,    /* has a slot; may be in unfinished steps */
  OCT_SEQ_PREEMPTING, /* chosen to leave; waits for its unfinished steps */
  OCT_SEQ_OFFLOADING, /* its pages are being copied to the host */
  OCT_SEQ_ENDED,      /* reported; a zombie while a step or copy in flight still names it */
} oct_seq_state;

typedef struct oct_request oct_request;

#define OCT_MASKS_MAX 2 /* of a sequence: slices that sample in unfinished steps */

/* A slice whose token waits for a mask, or will. */
typedef struct oct_mask_slice {
  guint64 number;
  guint32 slice;
  guint32 n_output;   /* of the token */
  gboolean asked;     /* the listener was */
  oct_time wanted_ns; /* when the device began to wait, OCT_TIME_NEVER = it does not */
  oct_time asked_ns;
} oct_mask_slice;

/* One choice of a request: what the scheduler schedules. */
typedef struct oct_seq {
  oct_request *request;
  guint32 choice;
  oct_seq_state state;
  guint32 domain;
  guint32 slot;      /* OCT_NO_INDEX without one */
  gboolean fresh;    /* the slot has not run a slice of this sequence */
  gboolean sampled;  /* it has sampled one: the last token is on the device */
  gboolean lacks;    /* it runs, and memory for its next slice was not there */
  guint32 announced; /* pages the slot's table on the device knows; and its state slots */
  guint32 sched, done, target;
  guint32 n_out, in_flight_out, max_out;
  guint32 unfinished;   /* steps in flight that name it */
  guint32 n_pages;      /* in table[] */
  guint32 n_indexed;    /* pages offered to the prefix index */
  guint32 computed_max; /* furthest `sched` ever: below it, computing again is recomputation */
  guint64 last_step;    /* latest step that has a slice of it */
  guint64 epoch;        /* latest step that may touch its memory: copies included */
  guint64 void_until;   /* results of steps up to this one are dropped (a fault made them void) */
  oct_time first_token_ns, last_token_ns;
  gint64 longest_gap_ns;
  /* Guided: slices in flight that sample, the oldest first, and have no mask yet (mask.c). */
  guint32 n_masks;
  guint32 copies;     /* transfers in flight that name it */
  guint64 depends_on; /* latest step that wrote a page or snapshot it took from the prefix index */
  guint32 retries;
  gboolean copies_void; /* what is being copied is in doubt: starts again when the copies end */
  gboolean no_offload;  /* its cache is not to be trusted: leaves by recomputation */
  gboolean counted;     /* admitted once: prefix statistics are taken */
  gboolean offloading;  /* an offload in flight: host[] is held too */
  gboolean exported;    /* ENDED, and its device memory is kept for another engine to pull */
  gboolean on_host;     /* WAITING with its pages in host[] */
  guint32 weight;       /* sequences it stands for in its domain's running count */
  guint32 run_index;    /* in domain.running, OCT_NO_INDEX outside */
  guint32 heap_index;   /* in domain.queue, OCT_NO_INDEX outside */
  gint32 rank_class;    /* queue order: class, then rank, then arrival order */
  gint64 rank;
  /* Pages: table[g][i] for page groups, table[g][0] for state groups. host[g] likewise. */
  guint32 page_capacity;
  guint32 first_live[OCT_GROUPS], told_live[OCT_GROUPS]; /* told: what the slot's table knows */
  guint32 *table[OCT_GROUPS], *host[OCT_GROUPS];
  gboolean has_state;          /* table[] of state groups is valid */
  guint32 restore[OCT_GROUPS]; /* snapshot to copy from before the first slice, or OCT_POOL_NONE */
  gboolean named;              /* its own pages among them are under their keys: kv.c */
  guint32 n_hashes;
  oct_hash128 *hashes; /* chain over full pages [page_capacity] */
  guint32 branch;      /* a snapshot is wanted at this position (branch seen twice); 0 = none */
  guint32 forwarded;   /* forward.c: skipped steps its counters know of */
  /* speculate.c */
  guint32 verifying;   /* drafts of its slice in flight: how far that goes is not known */
  guint32 stale_pages; /* the slot's table names so many: those behind n_pages were given back */
  guint32 pause_until; /* no drafts before there are so many output tokens */
  guint32 n_proposals, n_useful; /* since the last verdict; those of which any was accepted */
  oct_ngram *ngram;
  guint32 draft_place; /* draft.c: its slot on the draft model's instance, OCT_NO_INDEX = none */
  guint64 key, seed;
  guint32 *ids; /* prompt + output ids when carry_ids */
  guint32 ids_capacity;
  guint64 tag; /* chain of ids [0, tag_position) */
  guint32 tag_position;
  oct_mask_slice masks[OCT_MASKS_MAX];
} oct_seq;

struct oct_request {
  oct_request_id id;
  void *user;
  guint64 order; /* arrival order: ties are broken by it */
  guint32 n, n_ended;
  gboolean forked;
  oct_seq *seqs[OCT_CHOICES_MAX]; /* [0] is the trunk; the rest exist after the fork */
  gint32 priority;
  guint64 tenant, salt;
  guint32 prompt;
  guint32 max_tokens, min_tokens;
  gboolean ignore_eos;
  guint32 n_stop_tokens, stop_tokens[16];
  guint64 *page_ids;
  guint32 n_page_ids;
  oct_time arrival_ns, deadline_ns, admitted_ns;
  oct_end_reason reason; /* of the choice that ended first abnormally, else the last one's */
  guint32 cached_tokens, recomputed_tokens, preemptions, draft_tokens, accepted_tokens;
  guint64 charged; /* policy/priority.c: output tokens that its tenant has been charged for */
  gboolean export_cache;
  oct_engine *import_engine; /* NULL = none, or not any more */
  oct_request_id import_id;
  guint32 oracle_tokens, adapter;
  guint8 n_logprobs, n_prompt_logprobs;
  guint32 n_scored; /* prompt tokens whose logprobs have been handed over, token 0 included */
  gboolean guided;
  oct_pooling pooling;
  guint32 n_biases, n_stops;
  oct_token_bias *biases;
  guint32 *stops; /* min_tokens: ids that are not sampled until then */
  gint32 top_k;
  float temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
  oct_request *next, *prev; /* engine's list of live requests, in order of arrival */
  gboolean dead;            /* on the engine's list of those to be freed */
  oct_request *next_dead;
};

/* A binary heap of waiting sequences. */
typedef struct oct_queue {
  oct_seq **heap;
  guint32 n, capacity;
} oct_queue;

typedef struct oct_kv_domain {
  oct_engine *engine;
  oct_pool *device[OCT_GROUPS], *host[OCT_GROUPS];
  oct_queue queue;
  oct_seq **running; /* RELOADING, RUNNING and PREEMPTING, in order of admission */
  guint32 n_running;
  guint32 weight;       /* sum over running[]: bounded by max_num_seqs */
  guint32 n_preempting; /* PREEMPTING or OFFLOADING: memory that is about to come back */
  guint32 n_reloading;
  guint32 n_lacking; /* of running[] that lack memory: it is theirs before anybody is admitted */
  gboolean blocked; /* admission of the queue's head failed for memory; cleared when memory comes */
  /* A head whose prefix is long in the index: it is not looked up again before the pool that it
   * lacked items of has so many, or a few steps have passed and the prefix may have grown. */
  oct_seq *waiter;
  guint32 wait_group, wait_tries;
  guint64 wait_items;
  guint64 starved_steps; /* steps in a row in which prefill got nothing although it could run */
  oct_time last_decode_ns;
  guint64 spill_ticket; /* a spill in flight, 0 = none */
} oct_kv_domain;

typedef struct oct_flight_slice {
  oct_seq *seq;
  guint32 position, n_tokens;
  guint32 n_scored; /* prompt tokens, from position + 1 on */
  guint32 n_drafts; /* the last ones of n_tokens */
  gboolean samples, pooled;
} oct_flight_slice;

/* A submitted step whose end has not been seen. */
typedef struct oct_flight {
  guint64 number;
  oct_time submit_ns;
  guint32 n_slices, n_tokens, n_decode;
  gboolean pure_decode;
  gboolean guided;     /* somebody in it waits for a mask */
  gboolean speculates; /* somebody in it will be drafted for: nothing is submitted ahead of it */
  oct_flight_slice *slices; /* [max slices] */
} oct_flight;

typedef enum oct_transfer_kind {
  OCT_TRANSFER_OFFLOAD, /* a preempted sequence to the host */
  OCT_TRANSFER_RELOAD,  /* a sequence's pages (offloaded, or prefix hits) from the host */
  OCT_TRANSFER_SPILL,   /* cached pages to the host, ahead of eviction */
  OCT_TRANSFER_PULL, /* a sequence's cache from another engine; `host` is its device item there */
} oct_transfer_kind;

typedef struct oct_transfer_item {
  guint32 group, device, host;
  guint32 index; /* page of the sequence; OCT_NO_INDEX for a spill */
} oct_transfer_item;

typedef struct oct_transfer {
  guint64 ticket; /* 0 = unused entry */
  oct_transfer_kind kind;
  guint32 domain;
  oct_seq *seq;
  gboolean pending; /* not taken by the backend yet */
  GArray *items;    /* oct_transfer_item */
} oct_transfer;

typedef struct oct_residency oct_residency;
typedef struct oct_drafter oct_drafter;

struct oct_engine {
  oct_world *world;
  oct_engine_config config;
  char *label;      /* config.instance's, owned */
  guint16 *devices; /* likewise */
  const oct_policy *policy;
  const oct_model_spec *spec;
  guint32 instance; /* 0 while none is open */
  oct_engine_state state;
  gboolean is_open; /* the instance, not its draft model's */
  oct_capabilities capabilities;
  gboolean draining;
  guint32 reopen_attempts;

  guint32 n_groups, n_domains, page_tokens; /* page_tokens = block_size x DCP */
  oct_layer_group groups[OCT_GROUPS];
  gboolean is_state[OCT_GROUPS];
  gint32 first_page_group, first_state_group; /* -1 = none */
  oct_kv_domain *domains;
  guint32 *free_slots, n_free_slots, n_slots;
  oct_hash_key hash_key;

  oct_request *first, *last; /* live requests, and dead ones until the outermost call returns */
  oct_request *dead;
  guint32 calls; /* public calls on the stack: a listener may call back */
  oct_request_id next_id;
  GHashTable *by_id;   /* looked up only, never iterated */
  GHashTable *exports; /* id -> oct_seq; looked up only */
  GArray *deadlines;   /* deadline.c */
  guint64 queued_requests, queued_tokens;
  GHashTable *shares; /* policy/priority.c */
  double mean_output; /* running mean of output lengths, for expected growth */
  guint64 n_outputs;

  oct_time now;
  oct_step_builder *builder;
  guint64 next_number, completed; /* steps: next to submit, last finished */
  oct_flight flights[OCT_DEPTH_MAX];
  guint32 first_flight, n_flights;
  oct_time last_done_ns;
  guint32 copies_out;        /* tickets that the backend has taken and not ended */
  oct_time copy_progress_ns; /* when the first of them was taken, or one ended since */
  oct_time open_progress_ns; /* when opening began, or last told of its progress */
  gint64 decode_step_ns;     /* the last pure decode step's time */
  double mixed_ns_per_token; /* the last mixed step's */

  /* The step being built. */
  guint32 tokens_left, slices_left; /* of the domain being planned */
  guint32 drafts_left;              /* of its tokens, those that may be drafts */
  oct_flight *plan;
  gboolean plan_preempted;
  gboolean plan_looks_closer; /* no decode is but a slice: drafts, snapshots, tags or ids */
  /* What slots opened in it have put into its record, and what they may; each alone fits. */
  guint32 history_used, history_max, changes_used, changes_max, biases_used;
  guint32 scored_used, floats_used; /* logprobs of prompts, numbers of vectors */
  guint32 verified_used;            /* logprobs of drafts */
  guint32 drafts[OCT_DRAFTS_MAX];   /* of the slice being added */

  char down_reason[96];
  char lost[96]; /* why the instance is lost; handled at the end of turn() and event() */
  gboolean lost_fatal;
  gboolean has_host, has_windows;

  guint64 *every_token;      /* a mask that allows all; NULL until one is wanted */
  oct_time mask_progress_ns; /* when the device last began or ended to wait for one */
  oct_time mask_due_ns;      /* no slice has waited for its mask to its deadline before */

  oct_residency *residency; /* NULL: every expert is resident */
  oct_drafter *drafter;     /* NULL: no draft model */
  GPtrArray *transfers;     /* oct_transfer, reused */
  guint32 n_transfers;      /* in flight or pending */
  GArray *copies;           /* oct_copy scratch */
  guint64 next_ticket;

  oct_seq **bucket_seqs; /* forward.c: running sequences sorted by position in their page */
  guint32 *bucket_first; /* [page_tokens + 1] */

  oct_engine_stats stats;
  oct_hist *hists[OCT_HIST_COUNT];
  gint64 gap_ns; /* commit.c: `n_gaps` gaps of so long are still to go into hists[] */
  guint64 n_gaps;
};

/* ---- accept.c: FALSE with *error names the thing, its value and the limit */
gboolean oct_accept_config(const oct_engine_config *config, GError **error);
gboolean oct_accept_memory(const oct_engine *engine, GError **error);
gboolean oct_accept_request(const oct_engine *engine, const oct_request_params *params,
                            GError **error);

/* ---- request.c */
oct_request *oct_request_new(oct_engine *engine, const oct_request_params *params);
/* Frees a request all of whose sequences have ended and are in no step or copy. */
void oct_request_free(oct_request *request);
oct_seq *oct_seq_new(oct_engine *engine, oct_request *request, guint32 choice);
/* Hash of page `page` of the sequence, extending the chain; FALSE when its tokens are not all
 * known. */
gboolean oct_seq_hash(oct_engine *engine, oct_seq *seq, guint32 page, oct_hash128 *hash);
void oct_seq_reserve_pages(oct_engine *engine, oct_seq *seq, guint32 n_pages);
void oct_seq_append_ids(oct_seq *seq, const guint32 *ids, guint32 n);
/* Chain of ids [0, position), 0 when not all are known (or ids are not carried). */
guint64 oct_seq_tag(oct_engine *engine, oct_seq *seq, guint32 position);
/* The one place where a sequence's state changes; asserts that the change is in the machine. */
void oct_seq_set_state(oct_seq *seq, oct_seq_state state);
const char *oct_seq_state_name(oct_seq_state state);

/* ---- deadline.c */
void oct_deadlines_init(oct_engine *engine);
void oct_deadlines_free(oct_engine *engine);
/* Nothing for a request without one. */
void oct_deadline_add(oct_engine *engine, const oct_request *request);
/* Ends requests whose deadline has passed; returns a time that is no later than the earliest that
 * has not. */
oct_time oct_deadlines_take(oct_engine *engine);

/* ---- queue.c */
void oct_queue_push(oct_engine *engine, oct_seq *seq, gboolean requeued);
void oct_queue_remove(oct_engine *engine, oct_seq *seq);
oct_seq *oct_queue_head(const oct_queue *queue); /* NULL when empty */
gboolean oct_seq_before(const oct_seq *a, const oct_seq *b);

/* ---- kv.c */
void oct_kv_init(oct_engine *engine);
void oct_kv_free(oct_engine *engine);
void oct_kv_reset_device(oct_engine *engine);
/* Pages for `tokens` tokens in every page group, all or nothing. */
gboolean oct_kv_grow(oct_engine *engine, oct_seq *seq, guint32 tokens);
/* First page of group g that a token at `position` sees: 0 without a window. */
guint32 oct_kv_first_seen(const oct_engine *engine, guint32 g, guint64 position);
/* For a sequence that has none, the pages of tokens [0, tokens) that a token at `tokens` sees;
 * there are so many. */
void oct_kv_take_live(oct_engine *engine, oct_seq *seq, guint32 tokens);
static inline guint32
oct_kv_pages(const oct_engine *engine, guint32 tokens) { /* that many tokens take */
  return (tokens + engine->page_tokens - 1) / engine->page_tokens;
}
gboolean oct_kv_can_take(const oct_engine *engine, guint32 domain, guint32 pages, guint32 states);
/* State slots of the sequence (one per state group), all or nothing. */
gboolean oct_kv_take_state(oct_engine *engine, oct_seq *seq);
/* Gives back all that the sequence holds on the device; last pages first, so that a prefix outlives
 * its continuations. */
void oct_kv_release_device(oct_engine *engine, oct_seq *seq, guint64 epoch);
void oct_kv_release_host(oct_engine *engine, oct_seq *seq);
/* Offers the pages filled up to `tokens` to the prefix index as written by `step`. */
void oct_kv_index(oct_engine *engine, oct_seq *seq, guint32 tokens, guint64 step);
/* The sequence will come back for what it has offered: names those of its pages that were nobody
 * else's business. */
void oct_kv_name(oct_engine *engine, oct_seq *seq);
/* Withdraws what the sequence offered at or above token `from`. */
void oct_kv_withdraw(oct_engine *engine, oct_seq *seq, guint32 from);
/* Withdraws all that step `step` or a later one was to write, whoever offered it: also what a
 * sequence that has ended since left behind. */
void oct_kv_withdraw_from(oct_engine *engine, guint64 step);
/* Sliding windows: gives up pages that no token at or after `position` can see. The slot's table is
 * told with the sequence's next slice. */
void oct_kv_slide(oct_engine *engine, oct_seq *seq, guint32 position);
/* Gives back the pages behind those of `tokens` tokens: of drafts that were not accepted. No step
 * in flight names the sequence. */
void oct_kv_trim(oct_engine *engine, oct_seq *seq, guint32 tokens);
void oct_kv_complete(oct_engine *engine);
/* A prefix hit: tokens [0, pages x page_tokens), and what taking it costs each group's pool. */
typedef struct oct_hit {
  guint32 pages;
  guint32 pages_bound;        /* how far the pages alone reached, without regard to snapshots */
  guint32 load[OCT_GROUPS];   /* items to be loaded from the host */
  guint32 cached[OCT_GROUPS]; /* cached device items that will be held */
} oct_hit;
void oct_kv_lookup(oct_engine *engine, oct_seq *seq, oct_hit *hit);
/* Takes what lookup found: references on device pages, fresh pages for host ones, whose transfer is
 * prepared in *transfer (NULL when nothing is on the host). Memory has been checked. */
void oct_kv_take_hit(oct_engine *engine, oct_seq *seq, const oct_hit *hit, oct_transfer **transfer);
/* Position of the next state snapshot of the sequence's computation above `position`, 0 = none. */
guint32 oct_kv_next_cut(const oct_engine *engine, const oct_seq *seq, guint32 position);
/* Adds an AFTER copy of the sequence's state at `position`, a page boundary, to the step being
 * built. */
void oct_kv_snapshot(oct_engine *engine, oct_seq *seq, guint32 position, guint64 step);

/* ---- plan.c (what policies call: policy.h) */
/* Builds and submits one step; FALSE when there was nothing to do, or no room yet. */
gboolean oct_plan_step(oct_engine *engine);
/* A slot, weight and a place in domain.running; and their end. */
void oct_seq_enter(oct_engine *engine, oct_seq *seq, guint32 weight);
void oct_seq_leave(oct_engine *engine, oct_seq *seq);
/* The sequence has left its unfinished steps: releases or offloads it. */
void oct_preempt_finish(oct_engine *engine, oct_seq *seq);
/* All of it is to be computed from its first token, its output so far included. */
void oct_seq_rewind(oct_seq *seq);
/* Back to the queue, rewound. */
void oct_seq_restart(oct_engine *engine, oct_seq *seq);
void oct_preempt(oct_engine *engine, oct_seq *seq);
/* Whether the sequence may have a slice in the step being built. */
gboolean oct_plan_may_run(const oct_engine *engine, const oct_seq *seq);
/* Its next prompt chunk, forking it where that is due; returns the tokens added. */
guint32 oct_plan_prefill(oct_engine *engine, oct_seq *seq);
/* i-th unfinished step, oldest first. */
static inline oct_flight *
oct_flight_at(oct_engine *engine, guint32 i) {
  return &engine->flights[(engine->first_flight + i) % OCT_DEPTH_MAX];
}
/* All that is left of the sequence's known tokens is the last one: a decode slice is next. */
static inline gboolean
oct_seq_decodes(const oct_seq *seq) {
  return seq->n_out + seq->in_flight_out > 0 &&
         seq->sched + 1 == seq->request->prompt + seq->n_out + seq->in_flight_out;
}
/* Output tokens that a sequence is expected to have, before its own limit. */
static inline double
oct_expected_output(const oct_engine *engine) {
  return engine->n_outputs >= 16 ? engine->mean_output : 256;
}
/* Memory is about to come back without anybody being preempted, of a kind of which there is less
 * than so many. */
gboolean oct_memory_coming(const oct_engine *engine, guint32 domain, guint32 pages, guint32 states);

/* ---- commit.c */
void oct_commit_step(oct_engine *engine, const oct_event *event);
void oct_seq_end(oct_engine *engine, oct_seq *seq, oct_end_reason reason);
void oct_request_end(oct_engine *engine, oct_request *request, oct_end_reason reason);
/* Has the request freed if nothing in flight names it any more: not before the outermost public
 * call returns, since loops over requests and slices are on the stack while listeners run. */
void oct_request_reap(oct_engine *engine, oct_request *request);
void oct_engine_enter(oct_engine *engine);
void oct_engine_leave(oct_engine *engine);
/* Books of one finished step: histograms, estimates, log. Shared with forward.c. */
void oct_step_account(oct_engine *engine, const oct_flight *flight, oct_time start_ns,
                      oct_time end_ns);

/* ---- mask.c: guided requests */
/* The step just submitted has the sequence's slice `index`, which samples. */
void oct_mask_add(oct_seq *seq, guint64 number, guint32 index);
/* Asks for the masks of the step that has just been submitted, where what is before is known. */
void oct_mask_ask_step(oct_engine *engine, const oct_flight *flight);
/* The sequence has taken a token: asks for the mask of its next slice in flight, if there is one.
 */
void oct_mask_ask(oct_engine *engine, oct_seq *seq);
/* Step `number` has ended: nothing of it waits any more. */
void oct_mask_step_ended(oct_engine *engine, oct_seq *seq, guint64 number);
/* Nobody will answer: lets the sequence's slices in flight sample what they like. */
void oct_mask_release(oct_engine *engine, oct_seq *seq);
/* The device has begun to wait. */
void oct_mask_wanted(oct_engine *engine, guint64 number, guint32 slice);
/* Fails who has kept the device waiting; returns when the next one will have. */
oct_time oct_mask_time_out(oct_engine *engine);

/* ---- transfer.c */
gboolean oct_transfer_offload(oct_engine *engine, oct_seq *seq);
gboolean oct_transfer_reload(oct_engine *engine, oct_seq *seq);
oct_transfer *oct_transfer_new(oct_engine *engine, oct_transfer_kind kind, guint32 domain,
                               oct_seq *seq);
void oct_transfer_start(oct_engine *engine, oct_transfer *transfer);
/* The backend has taken a ticket; for the deadline. */
void oct_transfer_sent(oct_engine *engine);
void oct_transfer_done(oct_engine *engine, guint64 ticket, gboolean failed);
void oct_transfer_spill(oct_engine *engine);
/* Whether a turn might begin a spill once `taken` more pages of each pool have been taken. */
gboolean oct_transfer_spill_wanted(const oct_engine *engine, guint32 taken);
void oct_transfer_retry(oct_engine *engine);
void oct_transfer_drop_all(oct_engine *engine);

/* ---- residency.c: expert residency; each does nothing when every expert is resident */
gboolean oct_residency_new(oct_engine *engine, GError **error);
void oct_residency_free(oct_engine *engine);
/* The instance is opened again: nothing is on the device. */
void oct_residency_reset(oct_engine *engine);
/* The first experts are there: steps may be submitted. */
gboolean oct_residency_ready(const oct_engine *engine);
/* Adds what changed on the map to the step being built, which will be submitted. */
void oct_residency_plan(oct_engine *engine);
void oct_residency_used(oct_engine *engine, const oct_step_result *result);
void oct_residency_step_failed(oct_engine *engine, guint64 number);
/* Starts the copies that may begin. */
void oct_residency_turn(oct_engine *engine);
/* FALSE: the ticket is not one of residency's. */
gboolean oct_residency_copied(oct_engine *engine, guint64 ticket, gboolean failed);
void oct_residency_get_stats(const oct_engine *engine, oct_expert_stats *stats);
gboolean oct_residency_check(const oct_engine *engine, GError **error);

/* ---- speculate.c: whose next slice has drafts, and what came of them */
/* Whether drafts are proposed for the sequence's next slice, once all tokens before it are known.
 */
gboolean oct_spec_drafts_for(const oct_engine *engine, const oct_seq *seq);
/* Whether its next decode has to wait for the end of what is in flight. */
gboolean oct_spec_waits(const oct_engine *engine, const oct_seq *seq);
/* Tokens of the domain's part of a step that may be drafts. */
guint32 oct_spec_share(const oct_engine *engine, guint32 domain);
/* How many drafts its next slice may have, but for the step's budgets and memory. */
guint32 oct_spec_limit(const oct_engine *engine, const oct_seq *seq);
/* Puts what is proposed into engine->drafts and takes pages for it, without preempting anybody;
 * returns how many. The slice's first token has its page. */
guint32 oct_spec_propose(oct_engine *engine, oct_seq *seq);
/* The sequence's slice has ended, and `n` tokens of it were accepted. */
void oct_spec_accepted(oct_engine *engine, oct_seq *seq, const oct_flight_slice *slice, guint32 n);
/* Steps that can be skipped before the sequence is drafted for again, at most `most`. */
guint64 oct_spec_steps_ahead(const oct_engine *engine, const oct_seq *seq, guint64 most);

/* ---- draft.c: the draft model's instance; but for new and free, drafter is there */
oct_drafter *oct_draft_new(oct_engine *engine);
void oct_draft_free(oct_engine *engine); /* also where there is none */
gboolean oct_draft_open(oct_engine *engine, GError **error);
/* Closes the instance; what it had is forgotten. */
void oct_draft_close(oct_engine *engine);
/* Opened, or given up: the engine may serve. */
gboolean oct_draft_is_settled(const oct_engine *engine);
gboolean oct_draft_works(const oct_engine *engine);
gboolean oct_draft_owns(const oct_engine *engine, guint32 instance);
void oct_draft_event(oct_engine *engine, const oct_event *event);
/* Begins a round of drafting if one is due. TRUE: one is in flight, the next step waits for it. */
gboolean oct_draft_round(oct_engine *engine);
/* A step was submitted: the next one wants another round. */
void oct_draft_used(oct_engine *engine);
/* When the step in flight has hung, OCT_TIME_NEVER when there is none. */
oct_time oct_draft_deadline(const oct_engine *engine);
/* The sequence's drafts, up to `most`, if they follow its last token. */
guint32 oct_draft_take(oct_engine *engine, oct_seq *seq, guint32 most, guint32 *drafts);
/* Of the sequence's last drafts the first `n` were accepted. */
void oct_draft_accepted(oct_engine *engine, oct_seq *seq, guint32 n);
/* It does not run any more: its place is free. */
void oct_draft_leave(oct_engine *engine, oct_seq *seq);
gboolean oct_draft_check(const oct_engine *engine, GError **error);

/* ---- pull.c */
/* The exported sequence that this one is to continue, NULL when there is none (any more). */
oct_seq *oct_pull_source(const oct_seq *seq);
/* Takes memory for the import and starts to pull it; memory has been checked. */
void oct_pull_start(oct_engine *engine, oct_seq *seq, oct_seq *source, guint32 weight);
void oct_pull_done(oct_engine *engine, oct_transfer *transfer, gboolean failed);
/* The request needs its import no longer: what is exported for it is let go. */
void oct_pull_forget(oct_request *request);

/* ---- fault.c */
void oct_fault_handle(oct_engine *engine, const oct_fault *fault);
/* Marks the instance as lost; oct_instance_recover() follows at the end of the turn or event. */
void oct_instance_lost(oct_engine *engine, const char *why);
void oct_instance_recover(oct_engine *engine, gboolean fatal);
gboolean oct_instance_open(oct_engine *engine, GError **error);

/* ---- forward.c */
void oct_forward_stretch(oct_engine *engine, oct_time horizon);
/* When the next step should be submitted, given what is in flight. */
oct_time oct_pace(const oct_engine *engine);

#endif
