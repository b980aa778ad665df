/* The loop over the layers of a model with attention residuals (Kimi K3): each half of a layer
 * reads a mix of the residual stream and of what it was before each block of layers. A block begins
 * with a snapshot of the stream, which is empty from then on. */
#include "backends/cuda/forward-internal.h"
#include "kernels/cuda/residual.h"

guint32
oct_cuda_forward_snapshots_before(const oct_cuda_forward *f, guint32 layer) {
  guint32 block = f->model->spec->attn_res_block;
  return block > 0 ? (layer + block - 1) / block : 0;
}

oct_cuda_snapshots
oct_cuda_forward_snapshots(const oct_cuda_forward *f) {
  guint32 first = f->rank->first_layer;
  return (oct_cuda_snapshots){.data = f->room.snapshots,
                              .n_found = oct_cuda_forward_snapshots_before(f, first),
                              .n_left =
                                  oct_cuda_forward_snapshots_before(f, first + f->rank->n_layers),
                              .token_bytes = f->model->spec->hidden * oct_cuda_type_bytes(f->type)};
}

/* y (NULL: nothing) goes on top of the stream; the norm of the mix to room.normed, unless `norm` is
 * NULL. `starts`: a block begins behind it. */
static void
read_stream(oct_cuda_forward *f, const void *y, const float *score, const void *norm,
            gboolean starts) {
  guint32 hidden = f->model->spec->hidden;
  gsize stride = (gsize)f->m * hidden, element = oct_cuda_type_bytes(f->type);
  void *next = (guint8 *)f->room.snapshots + f->n_snapshots * stride * element;
  const oct_cuda_residual_mix call = {.type = f->type,
                                      .n = f->m,
                                      .width = hidden,
                                      .n_blocks = norm != NULL ? f->n_snapshots : 0,
                                      .x = y,
                                      .begins = f->begins,
                                      .residual = f->room.residual,
                                      .blocks = f->room.snapshots,
                                      .block_stride = stride,
                                      .score = score,
                                      .eps = (float)f->model->spec->rms_norm_eps,
                                      .norm = norm,
                                      .norm_eps = (float)f->model->spec->rms_norm_eps,
                                      .out = norm != NULL ? f->room.normed : NULL,
                                      .keep = starts ? next : NULL};
  (void)oct_cuda_note(f->rank, oct_cuda_residual_mix_rows(&f->rank->queue, &call),
                      "a mix of residuals");
  f->begins = starts;
  f->n_snapshots += starts;
}

/* The parts of all ranks. */
static void
add_up(oct_cuda_forward *f) {
  const oct_cuda_sum sum = {
      .n = f->m, .width = f->model->spec->hidden, .x = f->room.y, .out = f->room.y};
  (void)oct_cuda_comm_sum(f->options.comms[OCT_CUDA_CIRCLE_TENSOR], &sum);
}

void
oct_cuda_forward_run_residuals(oct_cuda_forward *f) {
  const oct_cuda_rank *r = f->rank;
  f->n_snapshots = oct_cuda_forward_snapshots_before(f, r->first_layer);
  f->begins = FALSE;
  for (guint32 i = 0; i < r->n_layers && !oct_cuda_has_failed(r); i++) {
    const oct_cuda_layer *l = &f->model->layers[i];
    oct_cuda_forward_mark(f, 2 * i);
    read_stream(f, i > 0 ? f->room.y : NULL, l->attn_score, l->attn_norm,
                l->index % f->model->spec->attn_res_block == 0);
    oct_cuda_forward_attend(f, l);
    add_up(f);
    oct_cuda_forward_mark(f, 2 * i + 1);
    read_stream(f, f->room.y, l->ffn_score, l->ffn_norm, FALSE);
    oct_cuda_forward_feed(f, l);
    add_up(f);
  }
  oct_cuda_forward_mark(f, 2 * r->n_layers);
  read_stream(f, f->room.y, f->model->final_score, f->model->final_norm, FALSE);
}
