/* Graphs of decode steps: one per padded size and kind of context length. What changes from step to
 * step is in the head, whose places depend on the size alone. */
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
oct_cuda_stepper_run_graph(oct_cuda_stepper *s, const oct_cuda_domain_plan *d,
                           oct_cuda_inputs *in) {
  guint32 kind = kind_of(s, d->max_context);
  cudaGraphExec_t *graph = &s->graphs[d->padded][kind];
  s->pass.max_context = MAX(context_of(s, kind), d->max_context);
  if (*graph == NULL) {
    /* Once as it is, so that every plan of a product is made: then for the next time. */
    oct_cuda_stepper_enqueue_forward(s, d, in);
    return !s->rank.failed && capture(s, d, in, graph);
  }
  return oct_cuda_note(&s->rank, cudaGraphLaunch(*graph, s->rank.compute), "a graph");
}

gboolean
oct_cuda_stepper_warm_graphs(oct_cuda_stepper *s) {
  if (s->graph_most == 0)
    return TRUE;
  s->graphs = g_malloc0_n(s->graph_most + 1, sizeof *s->graphs);
  oct_cuda_inputs *in = oct_cuda_stepper_inputs(s, 0); /* zeroed: no sequences */
  for (guint32 n = 1; n <= s->graph_most && !s->rank.failed; n++) {
    oct_cuda_domain_plan d = {.padded = n, .plain = TRUE};
    if (oct_cuda_graph_size(n, s->graph_most) != n)
      continue;
    d.layout = oct_cuda_layout_of(n, n, n);
    in->batch.n_tokens = in->batch.n_seqs = n;
    s->pass.batch = &in->batch;
    s->pass.n_decode = n;
    s->pass.max_queries = 1;
    (void)oct_cuda_stepper_run_graph(s, &d, in);
  }
  return !s->rank.failed;
}

void
oct_cuda_stepper_free_graphs(oct_cuda_stepper *s) {
  for (guint32 n = 0; s->graphs != NULL && n <= s->graph_most; n++)
    for (guint32 k = 0; k < OCT_CUDA_CONTEXTS; k++)
      if (s->graphs[n][k] != NULL)
        (void)cudaGraphExecDestroy(s->graphs[n][k]);
  g_clear_pointer(&s->graphs, g_free);
}
