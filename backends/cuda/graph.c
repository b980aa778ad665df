/* Graphs of padded steps: one per shape and kind of context length. What changes from step to step
 * is in the head, whose places depend on the shape alone. */
#include "backends/cuda/stepper-internal.h"

/* The longest context of a kind. */
static guint32
context_of(const oct_cuda_stepper *s, guint32 kind) {
  guint64 most = (guint64)OCT_CUDA_CONTEXT_MIN << (2 * kind);
  return (guint32)MIN(most, s->options.slots->max_context);
}

static guint32
kind_of(const oct_cuda_stepper *s, guint32 context) {
  guint32 kind = 0;
  while (kind + 1 < OCT_CUDA_CONTEXTS && context_of(s, kind) < context)
    kind++;
  return kind;
}

/* ---------------------------------------------------------------- what is kept */

static gboolean
is_of(const oct_cuda_graph *g, const oct_cuda_domain_plan *d, guint32 kind) {
  return g->shape.n_tokens == d->padded.n_tokens && g->shape.n_decode == d->padded.n_decode &&
         g->shape.n_seqs == d->padded.n_seqs && g->shape.n_rows == d->padded.n_rows &&
         g->plain == d->plain && g->context == kind;
}

/* The place of the one that was used the longest time ago. A graph that may still run is kept by
 * the driver until it has. */
static oct_cuda_graph *
give_up_oldest(oct_cuda_stepper *s) {
  oct_cuda_graph *oldest = &s->graphs[0];
  for (guint32 i = 1; i < s->n_graphs; i++)
    if (s->graphs[i].used < oldest->used)
      oldest = &s->graphs[i];
  if (oldest->graph != NULL)
    (void)cudaGraphExecDestroy(oldest->graph);
  return oldest;
}

/* *is_new: such a step comes for the first time. */
static oct_cuda_graph *
find(oct_cuda_stepper *s, const oct_cuda_domain_plan *d, guint32 kind, gboolean *is_new) {
  oct_cuda_graph *g = NULL;
  for (guint32 i = 0; g == NULL && i < s->n_graphs; i++)
    if (is_of(&s->graphs[i], d, kind))
      g = &s->graphs[i];
  *is_new = g == NULL;
  if (g == NULL) {
    g = s->n_graphs < OCT_CUDA_GRAPHS_MAX ? &s->graphs[s->n_graphs++] : give_up_oldest(s);
    *g = (oct_cuda_graph){.shape = d->padded, .context = kind, .plain = d->plain};
  }
  g->used = ++s->graph_turn;
  return g;
}

/* ---------------------------------------------------------------- use */

/* The step as the graph is to run it: nothing in it may depend on this one. */
static gboolean
capture(oct_cuda_stepper *s, const oct_cuda_domain_plan *d, oct_cuda_inputs *in,
        cudaGraphExec_t *graph) {
  cudaGraph_t captured = NULL;
  if (!oct_cuda_note(&s->rank,
                     cudaStreamBeginCapture(s->rank.compute, cudaStreamCaptureModeThreadLocal),
                     "a graph"))
    return FALSE;
  oct_cuda_stepper_enqueue_forward(s, d, in);
  gboolean fine =
      oct_cuda_note(&s->rank, cudaStreamEndCapture(s->rank.compute, &captured), "a graph") &&
      oct_cuda_note(&s->rank, cudaGraphInstantiate(graph, captured, 0), "a graph");
  if (captured != NULL)
    (void)cudaGraphDestroy(captured);
  return fine;
}

gboolean
oct_cuda_stepper_run_padded(oct_cuda_stepper *s, const oct_cuda_domain_plan *d,
                            oct_cuda_inputs *in) {
  guint32 kind = kind_of(s, d->max_context);
  gboolean is_new = FALSE;
  s->pass.max_context = MAX(context_of(s, kind), d->max_context);
  oct_cuda_graph *g = s->eager ? NULL : find(s, d, kind, &is_new);
  if (g == NULL || (is_new && !d->plain)) {
    oct_cuda_stepper_enqueue_forward(s, d, in);
    return !oct_cuda_has_failed(&s->rank);
  }
  if (g->graph == NULL) {
    /* Once as it is, so that every plan of a product is made: then for the next time. */
    oct_cuda_stepper_enqueue_forward(s, d, in);
    return !oct_cuda_has_failed(&s->rank) && capture(s, d, in, &g->graph);
  }
  return oct_cuda_note(&s->rank, cudaGraphLaunch(g->graph, s->rank.compute), "a graph");
}

gboolean
oct_cuda_stepper_warm_graphs(oct_cuda_stepper *s) {
  if (s->padding.decodes == 0 || s->eager)
    return TRUE;
  s->graphs = g_new0(oct_cuda_graph, OCT_CUDA_GRAPHS_MAX);
  oct_cuda_inputs *in = oct_cuda_stepper_inputs(s, 0); /* zeroed: no sequences */
  for (guint32 n = 1; n <= s->padding.decodes && !oct_cuda_has_failed(&s->rank); n++) {
    oct_cuda_domain_plan d = {.padded = {n, n, n, n}, .plain = TRUE};
    if (oct_cuda_graph_size(n, s->padding.decodes) != n)
      continue;
    d.layout = oct_cuda_layout_of(n, n, n);
    in->batch.n_tokens = in->batch.n_seqs = n;
    s->pass.batch = &in->batch;
    s->pass.n_decode = n;
    s->pass.max_queries = 1;
    (void)oct_cuda_stepper_run_padded(s, &d, in);
  }
  return !oct_cuda_has_failed(&s->rank);
}

void
oct_cuda_stepper_free_graphs(oct_cuda_stepper *s) {
  for (guint32 i = 0; i < s->n_graphs; i++)
    if (s->graphs[i].graph != NULL)
      (void)cudaGraphExecDestroy(s->graphs[i].graph);
  g_clear_pointer(&s->graphs, g_free);
}
