/* Feed-forwards: dense, and with experts, whose token-expert pairs are sorted by expert. Where the
 * KV domains share the experts out, each rank takes the tokens of all domains and gives back every
 * domain's sums over its own experts. */
#include "backends/arithmetic.h"
#include "backends/cuda/forward-internal.h"
#include "backends/cuda/residency.h"

static void
note(oct_cuda_forward *f, int result, const char *what) {
  (void)oct_cuda_note(f->rank, result, what);
}

static void
activate(oct_cuda_forward *f, guint32 n, guint32 inner, const guint32 *n_device) {
  const oct_cuda_glu call = {.type = f->type,
                             .params = f->model->glu,
                             .n = n,
                             .inner = inner,
                             .n_device = n_device,
                             .x = f->room.both,
                             .x_stride = 2 * (gsize)inner,
                             .out = f->room.inner,
                             .out_stride = inner};
  note(f, oct_cuda_glu_rows(&f->rank->queue, &call), "an activation");
}

static void
gate(oct_cuda_forward *f, const oct_cuda_ffn *ffn) {
  if (!oct_cuda_forward_gated(f, &ffn->gate_up, f->room.normed, f->room.inner)) {
    oct_cuda_forward_project(f, &ffn->gate_up, NULL, f->room.normed, f->room.both);
    activate(f, f->m, ffn->inner, NULL);
  }
}

void
oct_cuda_forward_dense(oct_cuda_forward *f, const oct_cuda_ffn *ffn) {
  gate(f, ffn);
  oct_cuda_forward_project_back(f, &ffn->down, NULL, f->room.inner);
}

void
oct_cuda_forward_shared(oct_cuda_forward *f, const oct_cuda_ffn *ffn) {
  gate(f, ffn);
  oct_cuda_forward_project(f, &ffn->down, NULL, f->room.inner, f->room.y);
}

/* ---------------------------------------------------------------- experts */

void
oct_cuda_forward_route(oct_cuda_forward *f, const oct_cuda_layer *l, const oct_cuda_rows *in,
                       guint32 *experts, float *weights) {
  const oct_cuda_product router = {.weight = &l->router,
                                   .bias = l->router_bias,
                                   .x = in->x,
                                   .x_stride = l->router.columns,
                                   .y = f->room.router,
                                   .y_stride = l->router.rows,
                                   .y_type = OCT_CUDA_F32};
  if (l->router.rows == l->ffn_spec->n_experts)
    oct_cuda_forward_multiply(f, &router, in->n);
  const oct_cuda_route call = {
      .routing = oct_arithmetic_routing(f->model->spec, l->ffn_spec, l->score_bias),
      .n = in->n,
      .logits = f->room.router,
      .token_seq = in->seq,
      .experts = experts,
      .weights = weights};
  note(f, oct_cuda_route_tokens(&f->rank->queue, &call), "routing");
}

static oct_cuda_pairs
sort_pairs(oct_cuda_forward *f, const oct_cuda_layer *l, guint32 n) {
  gsize layer = l->index - f->rank->first_layer;
  /* All domains' tokens are the same ones everywhere: the first counts them. */
  gboolean counts = f->room.counts != NULL && (f->n_join == 1 || f->rank->domain == 0);
  const oct_cuda_pairs pairs = {.n = n,
                                .top_k = l->ffn_spec->top_k,
                                .n_experts = l->ffn_spec->n_experts,
                                .first_expert = l->first_expert,
                                .n_local = l->n_experts,
                                .experts = f->room.experts,
                                .starts = f->room.starts,
                                .pair_of = f->room.pair_of,
                                .row_of = f->room.row_of,
                                .counts = counts ? f->room.counts + layer * f->most_experts : NULL};
  note(f, oct_cuda_sort_pairs(&f->rank->queue, &pairs), "pairs of tokens and experts");
  return pairs;
}

static void
multiply_experts(oct_cuda_forward *f, const oct_cuda_layer *l, const oct_cuda_pairs *pairs,
                 const void *x) {
  guint32 outer = l->experts.gate_up.columns, inner = l->experts.inner;
  oct_cuda_expert_matmul call = {.type = f->type,
                                 .y_type = f->type,
                                 .weight = l->experts.gate_up,
                                 .pairs = pairs,
                                 .gather = true,
                                 .bias = l->gate_up_bias,
                                 .x = x,
                                 .x_stride = outer,
                                 .y = f->room.both,
                                 .y_stride = 2 * (gsize)inner};
  if (f->model->residency != NULL)
    (void)oct_cuda_residency_fetch(f->model->residency, l, pairs->starts, &call);
  gboolean gates = oct_cuda_expert_gates(&f->rank->queue, &call);
  if (gates) {
    call.glu = &f->model->glu;
    call.y = f->room.inner;
    call.y_stride = inner;
  }
  note(f, oct_cuda_expert_multiply(&f->rank->queue, &call), "experts");
  if (!gates)
    activate(f, pairs->n * pairs->top_k, inner, pairs->starts + pairs->n_local);
  call.glu = NULL;
  call.weight = l->experts.down;
  call.gather = false;
  call.bias = l->down_bias;
  call.y_type = OCT_CUDA_F32; /* rounded once, after the sum over experts */
  call.x = f->room.inner;
  call.x_stride = inner;
  call.y = f->room.pair_y;
  call.y_stride = outer;
  note(f, oct_cuda_expert_multiply(&f->rank->queue, &call), "experts");
}

void
oct_cuda_forward_run_pairs(oct_cuda_forward *f, const oct_cuda_layer *l, guint32 n,
                           const oct_cuda_pair_work *work) {
  guint32 outer = l->experts.gate_up.columns;
  oct_cuda_pairs pairs = sort_pairs(f, l, n);
  multiply_experts(f, l, &pairs, work->x);
  const oct_cuda_combine combine = {.type = OCT_CUDA_F32,
                                    .out_type = f->type,
                                    .pairs = &pairs,
                                    .weights = f->room.weights,
                                    .width = outer,
                                    .y = f->room.pair_y,
                                    .y_stride = outer,
                                    .add = work->add,
                                    .norm = work->norm,
                                    .norm_eps = (float)f->model->spec->rms_norm_eps,
                                    .out = work->out,
                                    .out_stride = outer};
  note(f, oct_cuda_combine_pairs(&f->rank->queue, &combine), "experts");
}

/* out[rows, hidden] (+)= what this rank's experts give. */
static void
run_experts(oct_cuda_forward *f, const oct_cuda_layer *l, const oct_cuda_rows *in, void *out,
            gboolean add) {
  oct_cuda_forward_route(f, l, in, f->room.experts, f->room.weights);
  const oct_cuda_pair_work work = {.x = in->x, .out = out, .add = add};
  oct_cuda_forward_run_pairs(f, l, in->n, &work);
}

/* ---------------------------------------------------------------- all domains' tokens */

void
oct_cuda_forward_join(oct_cuda_forward *f) {
  (void)oct_cuda_comm_gather_runs(f->options.comms[OCT_CUDA_CIRCLE_DOMAINS],
                                  f->pass->batch->token_seq, f->m * sizeof(guint32),
                                  f->room.joint_seq);
}

static void
run_joint(oct_cuda_forward *f, const oct_cuda_layer *l, gboolean add) {
  gsize size = (gsize)f->m * f->model->spec->hidden, element = oct_cuda_type_bytes(f->type);
  const oct_cuda_rows all = {f->m * f->n_join, f->room.joint_x, f->room.joint_seq};
  if (!oct_cuda_comm_gather_runs(f->options.comms[OCT_CUDA_CIRCLE_DOMAINS], f->room.normed,
                                 size * element, f->room.joint_x))
    return;
  run_experts(f, l, &all, f->room.joint_y, FALSE);
  /* Rows of pairs are read by now. */
  void *mine = add ? f->room.pair_y : f->room.y;
  if (!oct_cuda_comm_scatter_sums(f->options.comms[OCT_CUDA_CIRCLE_DOMAINS], f->room.joint_y, size,
                                  f->room.joint_x, mine) ||
      !add)
    return;
  const oct_cuda_add sum = {.type = f->type,
                            .y_type = f->type,
                            .n = f->m,
                            .width = f->model->spec->hidden,
                            .x = mine,
                            .x_stride = f->model->spec->hidden,
                            .y = f->room.y,
                            .y_stride = f->model->spec->hidden};
  note(f, oct_cuda_add_rows(&f->rank->queue, &sum), "experts");
}

/* qwen2-moe: a sigmoid of one product scales what the shared expert gives. */
static void
scale_shared(oct_cuda_forward *f, const oct_cuda_layer *l) {
  guint32 hidden = f->model->spec->hidden;
  const oct_cuda_product row = {.weight = &l->shared_switch,
                                .x = f->room.normed,
                                .x_stride = hidden,
                                .y = f->room.shared_switch,
                                .y_stride = 1,
                                .y_type = OCT_CUDA_F32};
  oct_cuda_forward_multiply(f, &row, f->m);
  gsize bytes = (gsize)f->m * hidden * oct_cuda_type_bytes(f->type);
  note(
      f,
      cudaMemcpyAsync(f->room.pair_y, f->room.y, bytes, cudaMemcpyDeviceToDevice, f->rank->compute),
      "the shared expert");
  note(f, cudaMemsetAsync(f->room.y, 0, bytes, f->rank->compute), "the shared expert");
  const oct_cuda_add add = {.type = f->type,
                            .y_type = f->type,
                            .n = f->m,
                            .width = hidden,
                            .x = f->room.pair_y,
                            .x_stride = hidden,
                            .row_gate = f->room.shared_switch,
                            .y = f->room.y,
                            .y_stride = hidden};
  note(f, oct_cuda_add_rows(&f->rank->queue, &add), "the shared expert");
}

void
oct_cuda_forward_experts(oct_cuda_forward *f, const oct_cuda_layer *l) {
  const oct_cuda_rows own = {f->m, f->room.normed, f->pass->batch->token_seq};
  gboolean shared = l->ffn_spec->shared_intermediate > 0;
  if (shared)
    oct_cuda_forward_shared(f, &l->shared);
  if (l->shared_switch.rows > 0)
    scale_shared(f, l);
  if (f->n_join > 1)
    run_joint(f, l, shared);
  else
    run_experts(f, l, &own, f->room.y, shared);
}
