/* Sessions one after the other: an arrival, then its turns back to back.
 *
 * The live session is its context length and the ids of its full blocks; both only grow. The first
 * blocks are those of its prefix, the others are numbered from one counter, so that ids are small
 * whole numbers and never meet those of another session.
 */
#include "traces/gen.h"

#include <math.h>
#include <string.h>

#include "engine/base/assert.h"
#include "traces/arrivals.h"
#include "traces/servegen.h"
#include "traces/source.h"

/* One stream of random numbers per purpose; 1 is the arrivals' (arrivals.c). */
enum {
  STREAM_INPUT = 2,
  STREAM_OUTPUT,
  STREAM_TURNS,
  STREAM_THINK,
  STREAM_PREFIX,
  STREAM_MAX_TOKENS,
};

typedef struct generator {
  oct_trace_gen_spec spec; /* own copy, ready to use */
  oct_arrivals arrivals;
  oct_servegen *servegen;
  oct_rng input, output, turns, think, prefix, max_tokens;
  oct_dist *prefixes;    /* index by popularity; NULL: one or none */
  guint64 prefix_blocks; /* full blocks of each prefix */
  guint64 next_id;       /* of the blocks of sessions */

  /* The live session. */
  guint64 session;          /* number from 1 */
  guint32 turns_left, turn; /* turn: done so far */
  guint64 context;          /* tokens so far, prompt and outputs */
  GArray *ids;              /* guint64 of its full blocks */
  gint64 start_ns;
  oct_servegen_event event;
  guint64 n_emitted;
} generator;

/* --- one turn --------------------------------------------------------------------------------- */

/* Names the session's blocks up to `tokens`; past the limit they stay private. */
static void
name_blocks(generator *g, guint64 tokens) {
  guint64 n = MIN(tokens / g->spec.block_size, OCT_TRACE_GEN_BLOCKS_MAX);
  while (g->ids->len < n) {
    guint64 id = g->next_id++;
    g_array_append_val(g->ids, id);
  }
}

/* New tokens of the turn, output tokens, and what the client allows. */
static void
draw_lengths(generator *g, oct_trace_request *out, guint64 *fresh) {
  const oct_trace_gen_spec *spec = &g->spec;
  if (g->servegen != NULL) {
    *fresh = g->event.input_tokens;
    out->output_tokens = g->event.output_tokens;
  } else {
    const oct_dist *input = g->turn > 0 && spec->followup != NULL ? spec->followup : spec->input;
    *fresh = oct_dist_draw_tokens(input, &g->input, 0);
    out->output_tokens = oct_dist_draw_tokens(spec->output, &g->output, 0);
  }
  if (spec->max_tokens != NULL) {
    out->max_tokens = oct_dist_draw_tokens(spec->max_tokens, &g->max_tokens, out->output_tokens);
    out->output_tokens = MIN(out->output_tokens, out->max_tokens);
  }
}

static gint64
draw_think(generator *g) {
  if (g->spec.think == NULL)
    return 0;
  double s = oct_dist_draw(g->spec.think, &g->think);
  return (gint64)CLAMP(round(s * 1e9), 0, (double)OCT_TRACE_TIME_MAX_NS);
}

/* Fills the next turn. FALSE when it would pass the longest context: the session ends. */
static gboolean
next_turn(generator *g, oct_trace_request *out) {
  guint64 fresh, longest = g->spec.max_context;
  draw_lengths(g, out, &fresh);
  if (g->turn == 0) {
    /* A first turn is shortened rather than dropped; validation left room for one token each. */
    out->output_tokens = (guint32)MIN(out->output_tokens, longest - g->context - 1);
    fresh = MIN(fresh, longest - g->context - out->output_tokens);
  }
  guint64 prompt = g->context + fresh, total = prompt + out->output_tokens;
  if (total > longest)
    return FALSE;
  out->input_tokens = (guint32)prompt;
  out->arrival_ns = g->turn == 0 ? g->start_ns : -1;
  out->think_ns = out->arrival_ns < 0 ? draw_think(g) : 0;
  out->session = g->spec.turns != NULL ? g->session : 0;
  out->parent = g->turn > 0 ? g->n_emitted : 0;
  out->priority = g->spec.priority;
  out->class_name = g->servegen != NULL          ? g->event.client
                    : g->spec.class_name != NULL ? g->spec.class_name
                                                 : "";
  g->turn++;
  g->turns_left--;
  g->context = total;
  if (g->spec.block_size > 0) {
    name_blocks(g, g->turns_left > 0 ? total : prompt);
    out->n_hash_ids = (guint32)MIN(prompt / g->spec.block_size, g->ids->len);
    out->n_output_hash_ids = g->ids->len - out->n_hash_ids;
    out->block_size = g->ids->len > 0 ? g->spec.block_size : 0;
    if (g->ids->len > 0) { /* an empty array has no memory */
      out->hash_ids = (const guint64 *)(const void *)g->ids->data;
      out->output_hash_ids = out->hash_ids + out->n_hash_ids;
    }
  }
  return TRUE;
}

/* --- sessions --------------------------------------------------------------------------------- */

/* The next start, in ns; -1 in closed loop. FALSE: no further one. */
static gboolean
next_start(generator *g, gint64 *start_ns, GError **error) {
  if (g->spec.arrivals == OCT_TRACE_ARRIVALS_CLOSED) {
    *start_ns = -1;
    return TRUE;
  }
  if (g->servegen != NULL) {
    gboolean more = oct_servegen_next(g->servegen, &g->event);
    *start_ns = g->event.arrival_ns;
    return more;
  }
  double s = oct_arrivals_next(&g->arrivals);
  if (g->spec.duration_s > 0 && s >= g->spec.duration_s)
    return FALSE;
  if (s * 1e9 > (double)OCT_TRACE_TIME_MAX_NS) {
    g_set_error(error, OCT_TRACE_ERROR, OCT_TRACE_ERROR_LIMIT,
                "%s: request %" G_GUINT64_FORMAT
                " would arrive after %.4g s, the limit is 73 years",
                g->spec.name, g->n_emitted, s);
    return FALSE;
  }
  *start_ns = llround(s * 1e9);
  return TRUE;
}

static gboolean
start_session(generator *g, GError **error) {
  const oct_trace_gen_spec *spec = &g->spec;
  g->turns_left = 0;
  if (!next_start(g, &g->start_ns, error))
    return FALSE;
  g->session++;
  g->turn = 0;
  g->turns_left = spec->turns != NULL ? oct_dist_draw_tokens(spec->turns, &g->turns, 0) : 1;
  g->context = spec->prefix_tokens;
  g_array_set_size(g->ids, 0);
  guint64 which = g->prefixes != NULL ? (guint64)oct_dist_draw(g->prefixes, &g->prefix) : 0;
  for (guint64 i = 0; i < g->prefix_blocks; i++) {
    guint64 id = which * g->prefix_blocks + i;
    g_array_append_val(g->ids, id);
  }
  return TRUE;
}

static gboolean
generator_next(void *source, oct_trace_facts *facts, oct_trace_request *out, GError **error) {
  generator *g = source;
  if (g->spec.n_requests > 0 && g->n_emitted == g->spec.n_requests)
    return FALSE;
  if (g->turns_left == 0 || !next_turn(g, out)) {
    if (!start_session(g, error))
      return FALSE;
    gboolean fits = next_turn(g, out);
    oct_assert(fits);
  }
  out->line = ++g->n_emitted;
  if (out->arrival_ns >= 0) {
    gint64 gap_ns = out->arrival_ns - facts->last_arrival_ns;
    facts->n_distinct_arrivals += gap_ns > 0 || facts->n_distinct_arrivals == 0;
    if (gap_ns > 0 && facts->n_distinct_arrivals > 1)
      facts->tick_ns = facts->tick_ns > 0 ? MIN(facts->tick_ns, gap_ns) : gap_ns;
  }
  return TRUE;
}

/* --- life cycle ------------------------------------------------------------------------------- */

static void
generator_free(void *source) {
  generator *g = source;
  oct_servegen_free(g->servegen);
  oct_dist_unref(g->prefixes);
  g_array_unref(g->ids);
  oct_trace_gen_spec_clear(&g->spec);
  g_free(g);
}

static const oct_trace_source_ops generator_ops = {.next = generator_next, .free = generator_free};

static oct_dist *
ref_or_null(oct_dist *dist) {
  return dist != NULL ? oct_dist_ref(dist) : NULL;
}

static void
copy_spec(oct_trace_gen_spec *to, const oct_trace_gen_spec *from) {
  *to = *from;
  to->name = g_strdup(from->name != NULL ? from->name : "generated");
  to->class_name = g_strdup(from->class_name);
  to->servegen = g_strdupv(from->servegen);
  to->gaps = ref_or_null(from->gaps);
  to->input = ref_or_null(from->input);
  to->output = ref_or_null(from->output);
  to->followup = ref_or_null(from->followup);
  to->max_tokens = ref_or_null(from->max_tokens);
  to->turns = ref_or_null(from->turns);
  to->think = ref_or_null(from->think);
  if (to->max_context == 0)
    to->max_context = OCT_TRACE_TOKENS_MAX;
  if (to->prefix_tokens > 0 && to->prefix_count == 0)
    to->prefix_count = 1;
  if (to->block_size == 0 && (to->prefix_tokens > 0 || to->turns != NULL))
    to->block_size = OCT_TRACE_GEN_BLOCK_SIZE;
}

/* Counts are drawn as whole numbers from 1 on: a smaller mean is not what would come out. */
static gboolean
gives_tokens(const oct_dist *dist) {
  return dist == NULL || oct_dist_mean(dist) >= 0.5;
}

static const char *
find_fault(const oct_trace_gen_spec *s) {
  gboolean closed = s->arrivals == OCT_TRACE_ARRIVALS_CLOSED;
  gboolean servegen = s->arrivals == OCT_TRACE_ARRIVALS_SERVEGEN;
  if (s->n_requests == 0 && s->duration_s == 0 && !servegen)
    return "requests or duration must be given";
  if (closed && s->n_requests == 0)
    return "a closed loop has no times, so requests must be given";
  if (closed && s->concurrency == 0)
    return "a closed loop needs concurrency";
  if (closed && s->ramp != OCT_TRACE_RAMP_NONE)
    return "a closed loop has no rate to ramp";
  if (s->arrivals == OCT_TRACE_ARRIVALS_GAPS &&
      (s->gaps == NULL || oct_dist_is_true(s->gaps) || !(oct_dist_mean(s->gaps) > 0)))
    return "arrivals by gaps need a distribution of gaps with a mean above 0";
  if (s->ramp != OCT_TRACE_RAMP_NONE && (servegen || s->end_rate <= 0))
    return "a ramp needs an end rate above 0, and not ServeGen clients";
  if (s->ramp == OCT_TRACE_RAMP_EXPONENTIAL && s->start_rate <= 0)
    return "an exponential ramp needs a start rate above 0";
  if (s->rate == INFINITY && s->n_requests == 0)
    return "an infinite rate needs requests";
  if (oct_dist_is_true(s->input) || oct_dist_is_true(s->output) ||
      (s->followup != NULL && oct_dist_is_true(s->followup)) ||
      (s->turns != NULL && oct_dist_is_true(s->turns)) ||
      (s->think != NULL && oct_dist_is_true(s->think)))
    return "\"true\" stands for the output length and is for max_tokens only";
  if (!gives_tokens(s->input) || !gives_tokens(s->output) || !gives_tokens(s->turns) ||
      !gives_tokens(s->followup))
    return "input, output, followup and turns need a mean of at least 0.5";
  if (servegen && (s->servegen == NULL || s->servegen[0] == NULL))
    return "ServeGen arrivals need client files";
  if (servegen && s->turns != NULL)
    return "ServeGen clients send single turns";
  if (s->prefix_count > 0 && s->prefix_tokens == 0)
    return "prefixes need prefix-tokens";
  if (s->prefix_tokens + 2u > s->max_context)
    return "max-context leaves no room beside prefix-tokens";
  return NULL;
}

static void
seed_streams(generator *g) {
  oct_rng_seed(&g->input, g->spec.seed, STREAM_INPUT);
  oct_rng_seed(&g->output, g->spec.seed, STREAM_OUTPUT);
  oct_rng_seed(&g->turns, g->spec.seed, STREAM_TURNS);
  oct_rng_seed(&g->think, g->spec.seed, STREAM_THINK);
  oct_rng_seed(&g->prefix, g->spec.seed, STREAM_PREFIX);
  oct_rng_seed(&g->max_tokens, g->spec.seed, STREAM_MAX_TOKENS);
  oct_arrivals_init(&g->arrivals, &g->spec, g->spec.seed);
}

/* Popularity of the prefixes: Zipf's law. */
static oct_dist *
make_prefixes(const oct_trace_gen_spec *spec) {
  guint32 n = spec->prefix_count;
  if (n < 2)
    return NULL;
  g_autofree double *values = g_new(double, n);
  g_autofree double *weights = g_new(double, n);
  for (guint32 i = 0; i < n; i++) {
    values[i] = i;
    weights[i] = pow(i + 1.0, -spec->prefix_zipf);
  }
  return oct_dist_from_weights(values, weights, n);
}

oct_trace *
oct_trace_gen_open(const oct_trace_gen_spec *spec, GError **error) {
  generator *g = g_new0(generator, 1);
  copy_spec(&g->spec, spec);
  g->ids = g_array_new(FALSE, FALSE, sizeof(guint64));
  const char *fault = find_fault(&g->spec);
  if (fault != NULL) {
    g_set_error(error, OCT_TRACE_ERROR, OCT_TRACE_ERROR_OPTION, "%s: %s", g->spec.name, fault);
    generator_free(g);
    return NULL;
  }
  if (g->spec.arrivals == OCT_TRACE_ARRIVALS_SERVEGEN) {
    g->servegen = oct_servegen_new(g->spec.servegen, g->spec.servegen_from_s, g->spec.duration_s,
                                   g->spec.rate_given ? g->spec.rate : 0, g->spec.seed, error);
    if (g->servegen == NULL) {
      generator_free(g);
      return NULL;
    }
  }
  seed_streams(g);
  g->prefixes = make_prefixes(&g->spec);
  if (g->spec.block_size > 0)
    g->prefix_blocks = MIN(g->spec.prefix_tokens / g->spec.block_size, OCT_TRACE_GEN_BLOCKS_MAX);
  g->next_id = g->prefix_blocks * g->spec.prefix_count;
  oct_trace_facts facts = {.format = OCT_TRACE_FORMAT_GENERATED,
                           .concurrency = g->spec.concurrency};
  return oct_trace_new(g->spec.name, &generator_ops, g, &facts, 0);
}
