/* Scheduling policies: in which order work enters a step. One file each in engine/sched/policy/; to
 * write one, copy decode-first.c and add it to the table in policy.c.
 *
 * A policy decides three things: the order of the waiting queue (rank), what the next step is made
 * of (plan), and who leaves when memory is short (victim). It does so only through the functions
 * below, which keep budgets, memory and invariants; whatever a policy does, no rule of the engine
 * can break. Policies keep no state of their own outside the engine.
 */
#ifndef OCT_SCHED_POLICY_H
#define OCT_SCHED_POLICY_H

#include <glib.h>

typedef struct oct_engine oct_engine;
struct oct_seq;
struct oct_request;

typedef struct oct_policy {
  const char *name;
  const char *summary; /* one line for --help */
  /* Sets seq->rank_class and seq->rank: smaller leaves the queue first; ties go by arrival.
   * `requeued`: it was preempted or failed and comes back. */
  void (*rank)(oct_engine *engine, struct oct_seq *seq, gboolean requeued);
  /* Optional: the sequence leaves the queue for memory. */
  void (*admitted)(oct_engine *engine, struct oct_seq *seq);
  /* Optional: the request has ended, in whatever state. */
  void (*ended)(oct_engine *engine, const struct oct_request *request);
  /* Plans one domain's part of the step with oct_plan_decodes() … */
  void (*plan)(oct_engine *engine, guint32 domain);
  /* Who gives up its memory for `needs` (running in `domain`): may be `needs` itself, NULL =
   * nobody. Only one that may leave (oct_plan_may_leave()). */
  struct oct_seq *(*victim)(oct_engine *engine, guint32 domain, struct oct_seq *needs);
  /* Admission by the memory of the first chunk only, as vLLM; else of the whole prompt and the
   * expected growth of what runs. */
  gboolean admit_by_chunk;
  gboolean always_recompute; /* preemption never offloads */
} oct_policy;

const oct_policy *oct_policy_find(const char *name); /* NULL: the default; returns NULL: none */
const oct_policy *const *oct_policy_list(void);      /* NULL-terminated */

/* ---- what plan() may call, for the domain it was given */

/* One-token decode slices for running sequences, in order of admission, while tokens and slices
 * last; `keep_tokens` of the budget are left alone. Returns the slices added. */
guint32 oct_plan_decodes(oct_engine *engine, guint32 domain, guint32 keep_tokens);
/* Prefill chunks for running sequences that have prompt left. Returns the tokens added. */
guint32 oct_plan_prefills(oct_engine *engine, guint32 domain);
/* Takes waiting sequences in queue order while they fit, with their first chunk. Stops at the first
 * that does not fit: nobody overtakes within a policy's order. Nobody at all while a running one
 * lacks memory for its next slice. Returns the tokens added. */
guint32 oct_plan_admissions(oct_engine *engine, guint32 domain);
/* vLLM's first loop: every running sequence in order of admission, whatever it needs next, until
 * one has to give up its own memory. TRUE if nobody was preempted. */
gboolean oct_plan_running(oct_engine *engine, guint32 domain);
/* Tokens of the step's budget left in this domain. */
guint32 oct_plan_tokens_left(const oct_engine *engine);
/* It runs, and neither a slice nor a copy of the step being built is of it. */
gboolean oct_plan_may_leave(const oct_engine *engine, const struct oct_seq *seq);
/* Running sequences with prompt left, or the head of the queue when it may be admitted. */
gboolean oct_plan_prefill_pending(const oct_engine *engine, guint32 domain);

/* ---- victims that policies share */
/* The last admitted of the worst priority. */
struct oct_seq *oct_victim_youngest(oct_engine *engine, guint32 domain, struct oct_seq *needs);

#endif
