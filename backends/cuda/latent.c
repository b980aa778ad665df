/* Experts that work on a latent (Kimi K3): down to it, the experts, the norm of their complete sum,
 * and back up, beside shared experts on the hidden state.
 *
 * A rank of a tensor group has rows of both projections and of the router. Its columns of the
 * latent and of the logits go to the other ranks in one exchange; and its rows of what comes back
 * are added to its part of the layer's sum. Where every rank has all rows, the first adds them. */
#include "backends/cuda/forward-internal.h"

static void
note(oct_cuda_forward *f, int result, const char *what) {
  (void)oct_cuda_note(f->rank, result, what);
}

static void *
at(const oct_cuda_forward *f, void *array, gsize elements) {
  return (guint8 *)array + elements * oct_cuda_type_bytes(f->type);
}

/* ---------------------------------------------------------------- shared experts */

/* Where steps are bound by reading weights, routing and sorting leave the memory idle meanwhile. */
#define BESIDE_TOKENS 32

void
oct_cuda_forward_make_beside(oct_cuda_forward *f, gsize shared_inner) {
  oct_cuda_beside *b = &f->beside;
  oct_cuda_rank *r = f->rank;
  gsize elements = MIN(f->options.max_tokens, BESIDE_TOKENS) * shared_inner,
        element = oct_cuda_type_bytes(f->type);
  b->both = oct_cuda_alloc(r, 2 * elements * element, "shared experts");
  b->inner = oct_cuda_alloc(r, elements * element, "shared experts");
  void *workspace = oct_cuda_alloc(r, OCT_CUDA_BLAS_WORKSPACE, "cuBLASLt's workspace");
  b->begin = oct_cuda_event_new(r);
  b->end = oct_cuda_event_new(r);
  if (oct_cuda_has_failed(r) ||
      !oct_cuda_note(r, cudaStreamCreateWithFlags(&b->stream, cudaStreamNonBlocking), "a stream"))
    return;
  b->blas = oct_cuda_blas_new(workspace, OCT_CUDA_BLAS_WORKSPACE);
  if (b->blas == NULL)
    oct_cuda_fail(r, "cuBLASLt cannot be used on this machine");
  b->most = BESIDE_TOKENS;
}

void
oct_cuda_forward_clear_beside(oct_cuda_forward *f) {
  oct_cuda_beside *b = &f->beside;
  oct_cuda_blas_free(b->blas);
  if (b->begin != NULL)
    (void)cudaEventDestroy(b->begin);
  if (b->end != NULL)
    (void)cudaEventDestroy(b->end);
  if (b->stream != NULL)
    (void)cudaStreamDestroy(b->stream);
}

/* The rank's queue and the rooms of feed-forwards, for those of what runs beside; or back. */
static void
change_places(oct_cuda_forward *f) {
  oct_cuda_beside *b = &f->beside, was = *b;
  b->queue = f->rank->queue;
  b->blas = f->rank->blas;
  b->both = f->room.both;
  b->inner = f->room.inner;
  f->rank->queue = was.queue;
  f->rank->blas = was.blas;
  f->room.both = was.both;
  f->room.inner = was.inner;
}

static void
start_shared(oct_cuda_forward *f, const oct_cuda_layer *l) {
  oct_cuda_beside *b = &f->beside;
  if (f->m > b->most) {
    oct_cuda_forward_shared(f, &l->shared);
    return;
  }
  b->queue = f->rank->queue;
  b->queue.stream = b->stream;
  b->queue.flags &= ~(guint32)OCT_CUDA_OVERLAP;
  note(f, cudaEventRecord(b->begin, f->rank->compute), "an event");
  note(f, cudaStreamWaitEvent(b->stream, b->begin, 0), "an event");
  change_places(f);
  oct_cuda_forward_shared(f, &l->shared);
  change_places(f);
  note(f, cudaEventRecord(b->end, b->stream), "an event");
}

/* What is enqueued next follows them. It begins when both streams' work has ended. */
static void
await_shared(oct_cuda_forward *f) {
  if (f->m <= f->beside.most)
    note(f, cudaStreamWaitEvent(f->rank->compute, f->beside.end, 0), "an event");
}

/* ---------------------------------------------------------------- experts */

/* The sum over the tensor group of x[m, latent]: its norm where there is a weight. */
static void
add_up(oct_cuda_forward *f, const oct_cuda_layer *l, void *x, const void *weight) {
  const oct_cuda_sum sum = {.n = f->m,
                            .width = l->ffn_spec->latent,
                            .x = x,
                            .weight = weight,
                            .eps = (float)f->model->spec->rms_norm_eps,
                            .out = x};
  (void)oct_cuda_comm_sum(f->options.comms[OCT_CUDA_CIRCLE_TENSOR], &sum);
}

/* The rank's columns of latents and of the router's logits; all of them to room.low and
 * room.router. */
static void
exchange_rows(oct_cuda_forward *f, const oct_cuda_layer *l, oct_cuda_latent_row row) {
  gsize element = oct_cuda_type_bytes(f->type);
  guint8 *rows = f->room.latent_rows;
  oct_cuda_product product = {.weight = &l->latent_down,
                              .x = f->room.normed,
                              .x_stride = l->latent_down.columns,
                              .y = rows,
                              .y_stride = row.bytes / element,
                              .y_type = f->type};
  oct_cuda_forward_multiply(f, &product, f->m);
  product.weight = &l->router;
  product.bias = l->router_bias;
  product.y = rows + row.logits;
  product.y_stride = row.bytes / sizeof(float);
  product.y_type = OCT_CUDA_F32;
  oct_cuda_forward_multiply(f, &product, f->m);
  const oct_cuda_gather_parts all = {.n = f->m,
                                     .row_bytes = row.bytes,
                                     .x = rows,
                                     .n_pieces = 2,
                                     .pieces = {{.bytes = (guint32)(l->latent_down.rows * element),
                                                 .out = f->room.low,
                                                 .pitch = l->ffn_spec->latent * element},
                                                {.at = row.logits,
                                                 .bytes = l->router.rows * (guint32)sizeof(float),
                                                 .out = f->room.router,
                                                 .pitch = l->ffn_spec->n_experts * sizeof(float)}}};
  (void)oct_cuda_comm_gather_parts(f->options.comms[OCT_CUDA_CIRCLE_TENSOR], &all);
}

/* room.low[m, latent], complete. */
static void
project_down(oct_cuda_forward *f, const oct_cuda_layer *l) {
  oct_cuda_latent_row row = oct_cuda_latent_row_of(l, f->type);
  if (row.bytes > 0)
    exchange_rows(f, l, row);
  else
    oct_cuda_forward_project(f, &l->latent_down, NULL, f->room.normed, f->room.low);
}

/* Every rank takes the latents and choices of all domains' tokens, and gives back each domain's
 * sums over its own experts. */
static gboolean
run_joint(oct_cuda_forward *f, const oct_cuda_layer *l, const oct_cuda_rows *own) {
  oct_cuda_comm *comm = f->options.comms[OCT_CUDA_CIRCLE_DOMAINS];
  gsize size = (gsize)f->m * l->ffn_spec->latent, pairs = (gsize)f->m * l->ffn_spec->top_k;
  oct_cuda_forward_route(f, l, own, f->room.own_experts, f->room.own_weights);
  if (!oct_cuda_comm_gather_runs(comm, f->room.own_experts, pairs * sizeof(guint32),
                                 f->room.experts) ||
      !oct_cuda_comm_gather_runs(comm, f->room.own_weights, pairs * sizeof(float),
                                 f->room.weights) ||
      !oct_cuda_comm_gather_runs(comm, f->room.low, size * oct_cuda_type_bytes(f->type),
                                 f->room.joint_x))
    return FALSE;
  const oct_cuda_pair_work out = {.x = f->room.joint_x, .out = f->room.joint_y};
  oct_cuda_forward_run_pairs(f, l, f->m * f->n_join, &out);
  return oct_cuda_comm_scatter_sums(comm, f->room.joint_y, size, f->room.joint_x,
                                    f->room.latent_sum);
}

/* The experts' sum through its norm, and back on this rank's part of room.y. */
static void
project_up(oct_cuda_forward *f, const oct_cuda_layer *l) {
  const oct_cuda_matmul up = {.weight = l->latent_up,
                              .accumulate = TRUE,
                              .x_type = f->type,
                              .y_type = f->type,
                              .m = f->m,
                              .x = f->room.latent_sum,
                              .x_stride = l->ffn_spec->latent,
                              .y = at(f, f->room.y, l->latent_up_row),
                              .y_stride = f->model->spec->hidden};
  oct_cuda_queue queue = f->rank->queue;
  gboolean is_whole = l->latent_up.rows == f->model->spec->hidden;
  if (l->ffn_spec->shared_intermediate > 0) {
    await_shared(f);
    queue.flags &= ~(guint32)OCT_CUDA_OVERLAP;
  }
  if (!is_whole || f->rank->tensor == 0)
    note(f, oct_cuda_multiply(&queue, f->rank->blas, &up), "experts");
}

void
oct_cuda_forward_latent_experts(oct_cuda_forward *f, const oct_cuda_layer *l) {
  const oct_cuda_rows own = {f->m, f->room.normed, f->pass->batch->token_seq};
  gsize bytes = (gsize)f->m * f->model->spec->hidden * oct_cuda_type_bytes(f->type);
  const void *norm = l->latent_norm;
  if (l->ffn_spec->shared_intermediate > 0)
    start_shared(f, l);
  else
    note(f, cudaMemsetAsync(f->room.y, 0, bytes, f->rank->compute), "experts");
  project_down(f, l);
  if (f->n_join > 1) {
    if (!run_joint(f, l, &own))
      return;
  } else {
    const oct_cuda_pair_work out = {.x = f->room.low,
                                    .out = f->room.latent_sum,
                                    /* A sum that is complete here is normed as it is made. */
                                    .norm = f->rank->group->n_tensor == 1 ? norm : NULL};
    oct_cuda_forward_route(f, l, &own, f->room.experts, f->room.weights);
    oct_cuda_forward_run_pairs(f, l, f->m, &out);
  }
  if (f->n_join > 1 || f->rank->group->n_tensor > 1)
    add_up(f, l, f->room.latent_sum, norm);
  project_up(f, l);
}
