/* Generated traffic, as a source of requests like any file.
 *
 * A generator makes *sessions*: one starts at each arrival of the chosen law, has one or more
 * turns, and each turn is a request. Everything is drawn from one seed, each purpose from its own
 * stream, so that a change of lengths leaves the arrivals alone; equal specs give equal requests.
 * Memory is that of one live session: 10^6 requests need no file and no array.
 *
 * Arrivals (of session starts, mean rate `rate` per second; gaps between them):
 *   poisson   exponential
 *   gamma     shape `burstiness`, as vllm bench: 1 is Poisson, below 1 burstier, cv = 1/sqrt(shape)
 *   weibull   shape `weibull_shape`: 1 is Poisson, below 1 burstier
 *   constant  equal
 *   gaps      the distribution `gaps`, stretched to the mean 1/rate
 *   closed    no times: `concurrency` slots, see "Kinds of arrival" in traces/trace.h; `think` is
 *             waited before each row, the first of a slot included
 * With a ramp the rate goes from start_rate to end_rate over the duration (or over the expected
 * time of n_requests sessions) and stays at end_rate; the law of the gaps holds in the time that a
 * unit rate would take (time change by the integral of the rate).
 *
 * Turns: turn 1 has prefix_tokens + input tokens; each further turn has the whole context so far
 * (earlier prompts and outputs) + followup tokens, think seconds after the turn before it ended. A
 * session ends early rather than pass max_context. Its blocks (block_size > 0) are named when full,
 * outputs included while turns follow, so that turn n + 1 names what turn n left in the cache.
 * Prefixes are prefix_count different ones of prefix_tokens each; number k is drawn with
 * probability proportional to (k + 1)^-prefix_zipf.
 */
#ifndef OCT_TRACES_GEN_H
#define OCT_TRACES_GEN_H

#include <glib.h>

#include "traces/dist.h"
#include "traces/trace.h"

#define OCT_TRACE_GEN_PREFIXES_MAX    (1u << 20)
#define OCT_TRACE_GEN_BLOCK_SIZE      64u /* when prefixes or turns are asked for */
#define OCT_TRACE_GEN_CONCURRENCY_MAX (1u << 20)
#define OCT_TRACE_GEN_BLOCKS_MAX      (1u << 21) /* named per session: a line holds no more */

typedef enum oct_trace_arrivals {
  OCT_TRACE_ARRIVALS_POISSON,
  OCT_TRACE_ARRIVALS_GAMMA,
  OCT_TRACE_ARRIVALS_WEIBULL,
  OCT_TRACE_ARRIVALS_CONSTANT,
  OCT_TRACE_ARRIVALS_GAPS,
  OCT_TRACE_ARRIVALS_CLOSED,
  OCT_TRACE_ARRIVALS_SERVEGEN /* the clients of traces/servegen.h: arrivals and lengths */
} oct_trace_arrivals;

typedef enum oct_trace_ramp {
  OCT_TRACE_RAMP_NONE,
  OCT_TRACE_RAMP_LINEAR,
  OCT_TRACE_RAMP_EXPONENTIAL
} oct_trace_ramp;

/* Owned by whoever initialises it: oct_trace_gen_spec_clear() drops strings and distributions. */
typedef struct oct_trace_gen_spec {
  char *name; /* for reports; NULL: "generated" */
  guint64 seed;
  guint64 n_requests; /* rows; 0: by duration alone */
  double duration_s;  /* of session starts; 0: by n_requests alone */
  oct_trace_arrivals arrivals;
  double rate;         /* sessions per second, > 0; INFINITY: all at once */
  gboolean rate_given; /* by oct_trace_gen_set(); ServeGen clients keep their own rates otherwise */
  double burstiness, weibull_shape;
  guint32 concurrency;
  oct_trace_ramp ramp;
  double start_rate, end_rate;
  oct_dist *gaps;
  oct_dist *input, *output;
  oct_dist *followup;   /* NULL: as input */
  oct_dist *max_tokens; /* NULL: not stated; may be "true*K"; below the true output it cuts it */
  oct_dist *turns;      /* NULL: 1 */
  oct_dist *think;      /* seconds; NULL: 0 */
  guint32 block_size; /* 0: OCT_TRACE_GEN_BLOCK_SIZE when there is something to share, else none */
  guint32 prefix_tokens, prefix_count;
  double prefix_zipf;
  guint32 max_context; /* 0: OCT_TRACE_TOKENS_MAX */
  gint32 priority;
  char *class_name;       /* NULL: none */
  char **servegen;        /* trace.csv files of ServeGen clients, NULL-terminated */
  double servegen_from_s; /* where in their week to start */
} oct_trace_gen_spec;

/* Life cycle. init: Poisson at 1/s, input 1024, output 128, seed 1, no limit. */
void oct_trace_gen_spec_init(oct_trace_gen_spec *spec);
void oct_trace_gen_spec_clear(oct_trace_gen_spec *spec);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(oct_trace_gen_spec, oct_trace_gen_spec_clear)

/* Sets one parameter from text; `key` is the long option of `octet trace gen` without dashes
 * (rate, requests, input, …). FALSE with error when it is unknown or its value makes no sense. */
gboolean oct_trace_gen_set(oct_trace_gen_spec *spec, const char *key, const char *value,
                           GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* "PRESET,key=value,…" or "key=value,…"; what stands behind "gen:" in oct_trace_open(). */
gboolean oct_trace_gen_parse(oct_trace_gen_spec *spec, const char *text,
                             GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Use. The spec is copied. NULL with error when the parameters contradict each other. */
oct_trace *oct_trace_gen_open(const oct_trace_gen_spec *spec,
                              GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Inspect: the keys of oct_trace_gen_set() one by one, for help texts; NULL past the last. */
typedef struct oct_trace_gen_key {
  const char *key, *value_name, *help;
} oct_trace_gen_key;
const oct_trace_gen_key *oct_trace_gen_key_at(gsize i);

#endif
