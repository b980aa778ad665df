/* The engine: requests in, tokens out, steps in between.
 *
 * One engine drives one instance of one world (engine/backend.h). It is re-entrant: it never waits
 * and never asks for the time. Its driver feeds it events and calls oct_engine_turn(), which does
 * what is due and says when to call again. N engines can share a world, a clock and a thread:
 * replicas behind a router, a prefill and a decode pool. The same object code serves production and
 * replays traces.
 *
 * Driver's loop, in one thread (or one SimGrid actor):
 *
 *     wake = oct_engine_turn(engine, now, horizon);
 *     oct_world_next(world, MIN(wake, next arrival), &event);  now = event.time_ns;
 *     if (oct_engine_owns(engine, event.instance)) oct_engine_event(engine, &event);
 *     … oct_engine_submit(), oct_engine_cancel() …
 *
 * Life of a request (engine/sched/request.c has the machine): WAITING -> RELOADING -> RUNNING ->
 * ended, with RUNNING -> PREEMPTING -> OFFLOADING -> WAITING on the way when memory is short. It
 * ends exactly once, with one oct_end_reason, in whatever state it is.
 */
#ifndef OCT_SCHED_ENGINE_H
#define OCT_SCHED_ENGINE_H

#include <glib.h>

#include "engine/backend.h"
#include "engine/base/hist.h"
#include "engine/base/log.h"
#include "engine/sched/experts.h"
#include "engine/sched/ngram.h"

#define OCT_ENGINE_ERROR (oct_engine_error_quark())
GQuark oct_engine_error_quark(void);
typedef enum oct_engine_error {
  OCT_ENGINE_ERROR_CONFIG,   /* a configuration that cannot work; HTTP: does not start */
  OCT_ENGINE_ERROR_INVALID,  /* a request out of its limits; HTTP 400 */
  OCT_ENGINE_ERROR_TOO_LONG, /* prompt and max_tokens exceed the context or the memory; HTTP 400 */
  OCT_ENGINE_ERROR_BUSY,     /* the queue is full; HTTP 429 */
  OCT_ENGINE_ERROR_DOWN,     /* the instance is lost or closing; HTTP 503 */
} oct_engine_error;

typedef guint64 oct_request_id; /* 1, 2, 3 … per engine; 0 is none */

/* Which sequence is thrown out of memory, and how it comes back. */
typedef enum oct_preemption {
  OCT_PREEMPT_AUTO, /* offload when the host tier has room, else recompute */
  OCT_PREEMPT_RECOMPUTE,
  OCT_PREEMPT_OFFLOAD, /* as AUTO; named so that a run can say what it asked for */
} oct_preemption;

typedef enum oct_end_reason {
  OCT_END_STOP,      /* end of sequence or a stop token */
  OCT_END_LENGTH,    /* max_tokens or the context is reached */
  OCT_END_CANCELLED, /* oct_engine_cancel() */
  OCT_END_TIMED_OUT, /* deadline_ns passed */
  OCT_END_FAILED,    /* a device error, after retries */
  OCT_END_COUNT
} oct_end_reason;
const char *oct_end_reason_name(oct_end_reason reason); /* "stop", "length" …; static */

/* All that is known of a request when it has ended. Times are world time; -1 = never happened. */
typedef struct oct_request_record {
  oct_request_id id;
  void *user; /* oct_request_params.user */
  oct_end_reason reason;
  gint32 priority;
  guint32 prompt_tokens;
  guint32 output_tokens;     /* over all choices */
  guint32 cached_tokens;     /* prompt tokens that were never computed for it: prefix hits */
  guint32 recomputed_tokens; /* computed more than once because of preemption or faults */
  guint32 preemptions;
  guint32 draft_tokens, accepted_tokens; /* verified drafts of its choices, and those accepted */
  oct_time arrival_ns, admitted_ns, first_token_ns, last_token_ns, ended_ns;
  gint64 longest_gap_ns; /* longest time between two tokens of one choice; 0 below two tokens */
} oct_request_record;

/* What the engine tells its owner, from within turn(), event(), cancel(), stop() and mask(). Each
 * may be NULL, mask() if no request is guided. From here oct_engine_submit(), oct_engine_cancel(),
 * oct_engine_stop() and oct_engine_mask() may be called, of this request or any other; no other
 * function of this engine. Arrays are borrowed for the call.
 */
typedef struct oct_listener {
  void *user;
  /* New tokens of one choice; ids is NULL when the backend's tokens are not kept (carry_ids FALSE).
   * logprobs[n][1 + n_logprobs], NULL unless the request has n_logprobs: per token its own, then
   * the n_logprobs likeliest others, the likeliest first. They are of the model's own distribution,
   * before bias, mask, penalties and temperature, as vLLM's raw_logprobs. */
  void (*tokens)(void *user, oct_request_id id, void *request_user, guint32 choice,
                 const guint32 *ids, const oct_logprob *logprobs, guint32 n, oct_time now);
  void (*ended)(void *user, const oct_request_record *record);
  /* Prompt tokens [first, first + n) of a request with n_prompt_logprobs: logprobs[n][1 +
   * n_prompt_logprobs], as above. In order, each from token 1 on exactly once (token 0 has none),
   * whatever is computed again, all before its first tokens(). Once for all choices. */
  void (*prompt_logprobs)(void *user, oct_request_id id, void *request_user, guint32 first,
                          const oct_logprob *logprobs, guint32 n, oct_time now);
  /* A guided request: the mask for output token number n_output of the choice is wanted; those
   * before it have come through tokens(). It is answered with oct_engine_mask(), from within or
   * later. After a preemption or fault the same one may be asked for again; an answer is good for
   * whichever question. */
  void (*mask)(void *user, oct_request_id id, void *request_user, guint32 choice, guint32 n_output,
               oct_time now);
  /* The vector of a request with `pooling`, before ended(): n is the model's hidden width; after
   * the final norm, not normalised. */
  void (*pooled)(void *user, oct_request_id id, void *request_user, const float *values, guint32 n,
                 oct_time now);
} oct_listener;

#define OCT_DRAFTS_MAX (OCT_VERIFY_TOKENS_MAX - 1) /* of a sequence in a step */

/* Speculative decoding: drafts are proposed cheaply for a sequence and verified by one slice that
 * runs them all. A draft is accepted where it is what would have been sampled there (rule 32 of the
 * contract), so what a request gets is, token for token, what it gets without; drafts decide how
 * many tokens a step brings. */
typedef enum oct_draft_method {
  OCT_DRAFT_NONE,
  OCT_DRAFT_NGRAM, /* what followed when the text's last tokens were there before (ngram.h) */
  OCT_DRAFT_MODEL, /* what a smaller model samples, on an instance of its own (draft.c) */
} oct_draft_method;

typedef struct oct_speculation {
  oct_draft_method method;
  guint32 n_tokens;             /* proposed for a sequence and step: 1 … OCT_DRAFTS_MAX */
  guint32 ngram_min, ngram_max; /* NGRAM: tokens that must have been there, 1 … OCT_NGRAM_MAX */
  /* NGRAM without ids (a trace of lengths): the chance that there is a proposal, 0 … 1. */
  double proposal_rate;
  guint32 seqs_max; /* nobody gets drafts while a domain runs more sequences; 0 = no limit */
  /* A sequence of whose last 32 proposals a smaller share had a draft accepted gets none for 256
   * tokens; 0 = never. */
  double acceptance_min;
  /* MODEL: spec, weights, parallel (data and pipeline 1), kv_dtype, block_size, memory and eager of
   * the draft model's instance, which runs on the first of this engine's devices. The rest is
   * derived. Its vocabulary is the target's, it has no recurrent state, and its cache holds the
   * sequences that are drafted for; whoever finds no room in it decodes without. */
  oct_instance_config draft;
} oct_speculation;

typedef struct oct_engine_config {
  /* max_slots, depth and max_batched_tokens are derived from below. The spec is borrowed, label and
   * devices are copied. */
  oct_instance_config instance;
  guint32 max_num_seqs;           /* per KV domain */
  guint32 max_num_batched_tokens; /* per KV domain and step, >= max_num_seqs */
  guint32 max_model_len;
  guint32 run_ahead;     /* 0 or 1: steps submitted on the assumption that decodes go on */
  gint64 submit_lead_ns; /* a step is submitted this long before its predecessor should end */
  const char *policy;    /* "decode-first" … (engine/sched/policy.h); NULL = decode-first */
  oct_preemption preemption;
  gboolean prefix_caching;
  gboolean carry_ids;              /* keep and carry token ids; FALSE for traces of lengths */
  guint32 state_snapshot_interval; /* tokens between state snapshots, a multiple of the page; 0 =
                                      only at the prompt's end and at branch points */
  guint32
      long_prefill_threshold; /* a prefill chunk is at most this long while others wait; 0 = off */
  /* stage-aware: once the last decode step is this long ago the next one decodes. What is in flight
   * by then ends first: tokens come up to 1 + run_ahead steps later. */
  gint64 decode_gap_max_ns;
  gint64 step_deadline_ns; /* a step, or a copy, that takes longer has hung; 0 = none */
  gint64 open_deadline_ns; /* opening that tells of no progress for longer has hung; 0 = none */
  /* A device that has waited so long for a mask waits no longer: the mask's request fails, the
   * others of its step go on. 0 = none: whoever does not answer stops everybody. */
  gint64 mask_deadline_ns;
  /* Times a request is run again after faults before it fails. A lost instance is reopened up to
   * once more often than that without a step that ends well in between. */
  guint32 retries_max;
  guint32 queue_max;        /* waiting requests; 0 = OCT_LIMIT_QUEUE_REQUESTS */
  guint64 queue_tokens_max; /* their prompt tokens together; 0 = OCT_LIMIT_QUEUE_TOKENS */
  gboolean no_forward;      /* never fast-forward */
  guint64 seed;
  oct_expert_options experts; /* residency; only with instance.memory.n_expert_slots */
  /* No step is submitted ahead of one whose sequences will be drafted for: what follows them is not
   * known. */
  oct_speculation speculation;
  oct_log *log; /* event log; borrowed; NULL = none */
  oct_listener listener;
} oct_engine_config;

/* Fills in every default (vLLM's where it has one) except instance.spec, .devices and .memory. */
void oct_engine_config_default(oct_engine_config *config);

typedef struct oct_request_params {
  void *user;                /* handed back in callbacks */
  oct_time arrival_ns;       /* when it came in, never later than the world's time */
  oct_time deadline_ns;      /* world time after which it is timed out; 0 = none */
  gint32 priority;           /* smaller is more urgent, as in vLLM */
  guint64 tenant;            /* fairness key for the priority policy */
  guint32 prompt_tokens;     /* >= 1 */
  const guint32 *prompt_ids; /* [prompt_tokens], copied; NULL when carry_ids is FALSE */
  /* Without ids: one value per page of block_size x DCP tokens, equal for equal content up to and
   * including that page (traces/blocks.h); may go on past the prompt when a later turn names the
   * output. Pages past n_page_ids, and every page when it is 0, are this request's own. Copied. */
  const guint64 *page_ids;
  guint32 n_page_ids;
  guint64 salt;       /* prefix entries are shared only within equal salts (a tenant's cache) */
  guint64 seed;       /* sampling; 0 = from the engine's seed and the id */
  guint32 max_tokens; /* >= 1 */
  guint32 min_tokens; /* before there are so many, ends of sequence and stop tokens are not sampled
                       */
  guint32 n;          /* choices, 1..8 */
  gboolean ignore_eos;
  guint32 n_stop_tokens;
  guint32 stop_tokens[16];
  guint32 adapter;
  guint8 n_logprobs; /* others beside each token's own, at most 20; 0 = not even that */
  /* The same for prompt tokens. Needs carry_ids. What is wanted of the prompt is computed: no
   * prefix hits there. */
  guint8 n_prompt_logprobs;
  guint32 n_logit_bias;             /* at most OCT_BIASES_MAX */
  const oct_token_bias *logit_bias; /* -100 … 100, each token once; copied */
  /* Each output token is sampled under a mask that the listener's mask() asks for. The step goes
   * on meanwhile: what it waits for, at its end, is an answer that is late. */
  gboolean guided;
  /* Not NONE: no text but a vector. The prompt is computed, pooled() called, and the request ends
   * as STOP without output. n must be 1; max_tokens is not looked at, and the prompt may fill
   * max_model_len. */
  oct_pooling pooling;
  /* Prefill and decode pools. A prefill request has export_cache, max_tokens 1 and n 1: what it
   * computed stays on its engine after it has ended by itself, until oct_engine_release_export()
   * or a lost instance. A decode request names it as import: its prompt is the prefill's prompt
   * and the token that this gave, and its cache is pulled from there beside the steps, then
   * released there. Where that cannot be (the export is gone, the copy fails) the prompt is
   * computed again. Both engines are in one world and have the same model, KV type and page; the
   * exporting one outlives the other. */
  gboolean export_cache;
  struct oct_engine *import_engine;
  oct_request_id import_id;
  guint32 oracle_tokens; /* simulated backends: true output length; passed on, never looked at */
  gint32 top_k;
  float temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
} oct_request_params;

/* Defaults of an OpenAI request: n 1, temperature 1, top_p 1, max_tokens 16. */
void oct_request_params_default(oct_request_params *params);

typedef struct oct_engine oct_engine;

/* ---- life cycle */

/* Opens the instance; requests may be submitted at once and wait until it is open. NULL with *error
 * (CONFIG, or the domain of the limit, layout or backend that says no) names the value and the
 * limit. The world is borrowed. */
oct_engine *oct_engine_new(oct_world *world, const oct_engine_config *config,
                           GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Ends what is left as CANCELLED (with callbacks), closes the instance. Accepts NULL. */
void oct_engine_free(oct_engine *engine);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(oct_engine, oct_engine_free)

/* ---- use */

/* Takes a request, or refuses it with *error; a refused one has no callback. */
gboolean oct_engine_submit(oct_engine *engine, const oct_request_params *params, oct_request_id *id,
                           GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Ends a request in whatever state, with ended() before it returns. FALSE: no such live request.
 * `now` is the world's time here and below: what its record says. */
gboolean oct_engine_cancel(oct_engine *engine, oct_request_id id, oct_time now);
/* Ends one choice of a request as OCT_END_STOP: for stop strings, which the text layer finds. The
 * others go on. FALSE: no such live choice. */
gboolean oct_engine_stop(oct_engine *engine, oct_request_id id, guint32 choice, oct_time now);
/* Answers the listener's mask(): allowed tokens, token i in bit i % 64 of word i / 64; n_words is
 * (vocabulary + 63) / 64. Copied. One that allows nothing fails the request. FALSE: it is not
 * awaited (any more): the request or choice has ended, is to be computed again, or has it. */
gboolean oct_engine_mask(oct_engine *engine, oct_request_id id, guint32 choice, guint32 n_output,
                         const guint64 *bits, guint32 n_words, oct_time now);
/* Hands over an event of this engine's instance. */
void oct_engine_event(oct_engine *engine, const oct_event *event);
/* Does all that is due at `now`. No input will come before `horizon` (the driver's next arrival or
 * timer, OCT_TIME_NEVER when none): up to there uneventful decode steps may be fast-forwarded.
 * Returns when to call again at the latest (>= now, OCT_TIME_NEVER = only after an event or a
 * request). */
oct_time oct_engine_turn(oct_engine *engine, oct_time now, oct_time horizon);
/* Lets go of what an ended request with export_cache has left here. FALSE: there is nothing (any
 * more). */
gboolean oct_engine_release_export(oct_engine *engine, oct_request_id id);
/* From now on submit() answers DOWN; what is in goes on. */
void oct_engine_drain(oct_engine *engine);

/* ---- inspect */

typedef enum oct_engine_state {
  OCT_ENGINE_OPENING,
  OCT_ENGINE_SERVING,
  OCT_ENGINE_RECOVERING, /* the instance was lost and is being reopened */
  OCT_ENGINE_DEAD,       /* fatal fault, or reopening failed too often */
} oct_engine_state;

/* Counters since the start, and gauges (marked). Tokens and steps are counted when a step ends. */
/* Speculative decoding, counted when a slice's step ends; not of sequences that have ended. */
typedef struct oct_draft_stats {
  guint64 drafts;                      /* slices that verified any */
  guint64 draft_tokens;                /* drafts verified */
  guint64 accepted;                    /* of them */
  guint64 accepted_at[OCT_DRAFTS_MAX]; /* by place, the first draft's is 0 */
  guint64 pauses;                      /* of sequences that too little was accepted of */
  guint64 undrafted;                   /* requests accepted that never get drafts: guided ones */
  guint64 model_steps;                 /* of the draft model */
  guint64 model_tokens;                /* … their tokens, prompts included */
  guint64 model_lost;                  /* times that its instance was lost, without the engine's */
} oct_draft_stats;

typedef struct oct_engine_stats {
  oct_engine_state state;   /* gauge */
  guint32 running, waiting; /* gauges: requests' sequences holding a slot, and not */
  guint32 unfinished_steps; /* gauge */
  guint64 accepted, refused, ended[OCT_END_COUNT];
  guint64 steps, forwarded_steps; /* all finished steps, and those of them fast-forwarded */
  guint64 prompt_tokens;         /* computed in prefill, first time; of n choices' last ones, one */
  guint64 cached_prompt_tokens;  /* prefix hits, device and host; with the former all of a prompt */
  guint64 host_hit_tokens;       /* those of them that came from the host tier */
  guint64 queried_prompt_tokens; /* prompt tokens looked up at first admission */
  guint64 recomputed_tokens, generated_tokens, zombie_slices;
  guint64 preemptions, offloads, reloads, offloaded_pages, reloaded_pages;
  guint64 exports, pulls, pulled_pages; /* caches left for others; taken from others */
  guint64 masks, late_masks;            /* handed on; and those that the device had to wait for */
  guint64 snapshots_taken, snapshot_hits;
  guint64 hits_bound_by_state;    /* lookups whose pages reached further than their snapshot */
  guint64 faults[4];              /* by severity */
  guint64 lost;                   /* times the instance was lost, for whatever reason */
  gint64 part_ns[OCT_PART_COUNT]; /* summed over steps, a draft model's too */
  gint64 busy_ns;                 /* time with at least one unfinished step, likewise */
  guint32 pages_total[OCT_MODEL_GROUPS_MAX],
      pages_used[OCT_MODEL_GROUPS_MAX];       /* gauges, device: held
                                                 by requests */
  guint32 pages_cached[OCT_MODEL_GROUPS_MAX]; /* gauge: only in the prefix cache */
  guint32 host_total[OCT_MODEL_GROUPS_MAX], host_used[OCT_MODEL_GROUPS_MAX]; /* gauges */
  guint32 pages_peak[OCT_MODEL_GROUPS_MAX];
  oct_expert_stats experts; /* zero when every expert is resident */
  oct_draft_stats speculation;
} oct_engine_stats;
void oct_engine_get_stats(const oct_engine *engine, oct_engine_stats *stats);

/* Histograms (engine/base/hist.h), ns except batch sizes; borrowed. */
typedef enum oct_engine_hist {
  OCT_HIST_ITL,          /* time between two tokens of a choice, one sample a token */
  OCT_HIST_STEP,         /* a step's time on the device */
  OCT_HIST_BATCH_SEQS,   /* slices of a step */
  OCT_HIST_BATCH_TOKENS, /* tokens of a step */
  OCT_HIST_COUNT
} oct_engine_hist;
const oct_hist *oct_engine_get_hist(const oct_engine *engine, oct_engine_hist which);

guint32 oct_engine_instance(const oct_engine *engine);
/* Whether events of the instance are this engine's: of its own, or of its draft model's. */
gboolean oct_engine_owns(const oct_engine *engine, guint32 instance);
/* Why the engine is DEAD or RECOVERING, "" otherwise; borrowed until the next call. */
const char *oct_engine_down_reason(const oct_engine *engine);
/* Why its instance was lost last, "" before it ever was; borrowed likewise. */
const char *oct_engine_lost_reason(const oct_engine *engine);
/* Sequences waiting or running, weighted by the tokens they have yet to compute: for least-loaded
 * routing. */
guint64 oct_engine_load_tokens(const oct_engine *engine);
/* Checks the engine's books against one another (reliability: pages, references, queues, slots):
 * FALSE with *error that names the first difference. O(everything); for the swarm and debug builds.
 */
gboolean oct_engine_check(const oct_engine *engine, GError **error);

#endif
