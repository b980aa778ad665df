/* Attention of each kind: projections, norms, rotation, the cache, and the output projection. */
#include <math.h>

#include "backends/cuda/forward-internal.h"
#include "kernels/cuda/kda.h"

#define GATHER_MAX 16384 /* positions of a context that is gathered at most */

static void *
at(const oct_cuda_forward *f, void *array, gsize elements) {
  return (guint8 *)array + elements * oct_cuda_type_bytes(f->type);
}

static void
note(oct_cuda_forward *f, int result, const char *what) {
  (void)oct_cuda_note(f->rank, result, what);
}

static void
project_out(oct_cuda_forward *f, const oct_cuda_layer *l) {
  oct_cuda_forward_project_back(f, &l->o, l->o_bias, f->room.mixed);
}

/* ---------------------------------------------------------------- grouped-query attention */

static oct_cuda_attention
attention_call(const oct_cuda_forward *f, const oct_cuda_layer *l) {
  const oct_attention_spec *a = l->attention;
  gsize row = ((gsize)l->heads + 2 * l->kv_heads) * a->head_dim;
  return (oct_cuda_attention){.type = f->type,
                              .kv = oct_cuda_memory_layer(f->options.memory, l),
                              .n_heads = l->heads,
                              .window = a->kind == OCT_ATTENTION_WINDOW ? a->window : 0,
                              .scale = (float)(1 / sqrt(a->head_dim)),
                              .sinks = l->sinks,
                              .q = f->room.qkv,
                              .out = f->room.mixed,
                              .q_stride = row,
                              .out_stride = (gsize)l->heads * a->head_dim,
                              .workspace = f->room.workspace,
                              .workspace_bytes = f->room.workspace_bytes};
}

static oct_cuda_rope_store
store_call(const oct_cuda_forward *f, const oct_cuda_layer *l) {
  const oct_attention_spec *a = l->attention;
  gsize width = a->head_dim, row = ((gsize)l->heads + 2 * l->kv_heads) * width;
  return (oct_cuda_rope_store){.type = f->type,
                               .batch = f->pass->batch,
                               .kv = oct_cuda_memory_layer(f->options.memory, l),
                               .tables = f->pass->tables[l->group],
                               .n_heads = l->heads,
                               .q = f->room.qkv,
                               .k = at(f, f->room.qkv, l->heads * width),
                               .v = at(f, f->room.qkv, ((gsize)l->heads + l->kv_heads) * width),
                               .q_stride = row,
                               .k_stride = row,
                               .v_stride = row,
                               .q_norm = l->q_norm,
                               .k_norm = l->k_norm,
                               .eps = (float)f->model->spec->rms_norm_eps,
                               .angles = f->model->angles,
                               .rope_dim = f->model->rope.dim,
                               .interleaved = f->model->rope.interleaved,
                               .place = f->room.place};
}

/* ---- over tokens that are shared out over ranks */

/* Queries [tokens, heads, width of a key], rows q_stride elements apart, to out[tokens, heads,
 * value_width]. */
typedef struct shared_call {
  const oct_cuda_layer *l;
  const void *q;
  gsize q_stride;
  guint32 value_width;
  float scale;
  void *out;
} shared_call;

/* n tokens over this rank's part of contexts of at most so many. */
static oct_cuda_context_attention
part_call(const oct_cuda_forward *f, const oct_cuda_layer *l, guint32 n, guint32 max_context) {
  const oct_attention_spec *a = l->attention;
  oct_cuda_kv kv = oct_cuda_memory_layer(f->options.memory, l);
  guint32 members = f->rank->group->n_context, page = members * kv.page_tokens;
  return (oct_cuda_context_attention){
      .type = f->type,
      .n = n,
      .members = members,
      .kv = kv,
      .n_heads = l->heads,
      .value_width = a->kind == OCT_ATTENTION_MLA ? a->kv_lora : a->head_dim,
      .q = f->room.context_q,
      .out = f->room.found,
      .max_visible = (max_context + page - 1) / page * kv.page_tokens,
      .workspace = f->room.workspace,
      .workspace_bytes = f->room.workspace_bytes};
}

/* n tokens' queries of all ranks that share tokens out, over those that are here; and what each of
 * them found of this rank's heads, put together. */
static gboolean
attend_some(oct_cuda_forward *f, const shared_call *c, guint32 first, guint32 n) {
  oct_cuda_comm *comm = f->options.comms[OCT_CUDA_CIRCLE_CONTEXT];
  guint32 members = f->rank->group->n_context, rows = n * c->l->heads;
  oct_cuda_context_attention call = part_call(f, c->l, n, f->pass->max_context);
  call.token_seq = f->pass->batch->token_seq + first;
  call.visible = f->room.visible + first;
  call.seq_slot = f->pass->batch->seq_slot;
  call.tables = f->pass->tables[c->l->group];
  call.value_width = c->value_width;
  call.scale = c->scale;
  gsize element = oct_cuda_type_bytes(f->type), row = c->l->heads * call.kv.width * element;
  note(f,
       cudaMemcpy2DAsync(f->room.own_q, row, at(f, (void *)(gsize)c->q, first * c->q_stride),
                         c->q_stride * element, row, n, cudaMemcpyDeviceToDevice, f->rank->compute),
       "queries");
  if (!oct_cuda_comm_gather_runs(comm, f->room.own_q, n * row, f->room.context_q))
    return FALSE;
  note(f, oct_cuda_context_attend(&f->rank->queue, &call), "attention to some tokens");
  if (!oct_cuda_comm_exchange(comm, f->room.found, rows * (c->value_width + 2) * sizeof(float),
                              f->room.gathered))
    return FALSE;
  note(f,
       oct_cuda_context_merge(&f->rank->queue, f->type, f->room.gathered, members, rows,
                              c->value_width,
                              at(f, c->out, (gsize)first * c->l->heads * c->value_width)),
       "attention to all tokens");
  return TRUE;
}

static void
attend_shared(oct_cuda_forward *f, const shared_call *c) {
  guint32 n = 0;
  for (guint32 first = 0; first < f->m; first += n) {
    n = MIN(f->m - first, OCT_FORWARD_CONTEXT);
    if (!attend_some(f, c, first, n))
      return;
  }
}

void
oct_cuda_forward_attention(oct_cuda_forward *f, const oct_cuda_layer *l) {
  oct_cuda_forward_project(f, &l->qkv, l->qkv_bias, f->room.normed, f->room.qkv);
  const oct_cuda_rope_store store = store_call(f, l);
  if (f->rank->group->n_context > 1) {
    note(f, oct_cuda_rope_and_store(&f->rank->queue, &store), "keys and values");
    const shared_call shared = {.l = l,
                                .q = f->room.qkv,
                                .q_stride = l->qkv.rows,
                                .value_width = l->attention->head_dim,
                                .scale = (float)(1 / sqrt(l->attention->head_dim)),
                                .out = f->room.mixed};
    attend_shared(f, &shared);
    project_out(f, l);
    return;
  }
  oct_cuda_attention call = attention_call(f, l);
  call.batch = f->pass->batch;
  call.n_decode = f->pass->n_decode;
  call.max_queries = f->pass->max_queries;
  call.max_context = f->pass->max_context;
  call.tables = f->pass->tables[l->group];
  call.store = &store;
  call.settled = f->rank->is_first; /* embeddings have been looked up */
  if (!oct_cuda_attention_can_store(&f->rank->queue, &call)) {
    call.store = NULL;
    note(f, oct_cuda_rope_and_store(&f->rank->queue, &store), "keys and values");
  }
  note(f, oct_cuda_attend(&f->rank->queue, &call), "attention");
  project_out(f, l);
}

/* ---------------------------------------------------------------- latent attention */

static oct_cuda_mla
latent_call(const oct_cuda_forward *f, const oct_cuda_layer *l) {
  const oct_attention_spec *a = l->attention;
  return (oct_cuda_mla){.type = f->type,
                        .kv = oct_cuda_memory_layer(f->options.memory, l),
                        .n_heads = l->heads,
                        .lora = a->kv_lora,
                        .rope = a->qk_rope,
                        .scale = f->model->latent_scale,
                        .q = f->room.low,
                        .out = f->room.gate,
                        .workspace = f->room.workspace,
                        .workspace_bytes = f->room.workspace_bytes};
}

/* Where a part of what reads the input is. */
static void *
latent_part(const oct_cuda_forward *f, const oct_cuda_layer *l, oct_cuda_mla_part part) {
  return at(f, f->room.latents, l->mla_rows[part]);
}

/* Queries, directly or through a low rank: rows *stride elements apart. */
static void *
latent_queries(const oct_cuda_forward *f, const oct_cuda_layer *l, gsize *stride) {
  gboolean direct = l->q_b.rows == 0;
  *stride = direct ? l->input.rows : l->q_b.rows;
  return direct ? latent_part(f, l, OCT_CUDA_MLA_QUERIES) : f->room.qkv;
}

/* From their rank, which has a norm of its own. */
static void
project_queries(oct_cuda_forward *f, const oct_cuda_layer *l) {
  const oct_cuda_norm norm = {.type = f->type,
                              .residual_type = f->type,
                              .n = f->m,
                              .width = l->attention->q_lora,
                              .x = latent_part(f, l, OCT_CUDA_MLA_QUERIES),
                              .x_stride = l->input.rows,
                              .weight = l->q_a_norm,
                              .eps = f->model->latent_eps,
                              .out = f->room.low,
                              .out_stride = l->attention->q_lora};
  note(f, oct_cuda_rms_norm(&f->rank->queue, &norm), "the norm of queries");
  oct_cuda_forward_project(f, &l->q_b, NULL, f->room.low, f->room.qkv);
}

/* One product per head with a part of kv_b, of the first m tokens: queries by its key rows, read as
 * columns, or latents by its value rows. */
static void
multiply_heads(oct_cuda_forward *f, const oct_cuda_layer *l, guint32 m, gboolean absorb) {
  const oct_attention_spec *a = l->attention;
  gsize q = a->qk_nope + a->qk_rope, latent = a->kv_lora + a->qk_rope, heads = l->heads, q_stride;
  const void *queries = latent_queries(f, l, &q_stride);
  oct_cuda_matmul call = {.weight = l->kv_b,
                          .x_type = f->type,
                          .y_type = f->type,
                          .m = m,
                          .batch = l->heads,
                          .w_batch = (gsize)(a->qk_nope + a->v_head) * a->kv_lora};
  if (absorb) {
    call.weight.rows = a->qk_nope;
    call.transposed = TRUE;
    call.x = queries;
    call.x_stride = q_stride;
    call.x_batch = q;
    call.y = f->room.low;
    call.y_stride = heads * latent;
    call.y_batch = latent;
  } else {
    call.weight.rows = a->v_head;
    call.weight.data = at(f, (void *)(gsize)l->kv_b.data, (gsize)a->qk_nope * a->kv_lora);
    call.x = f->room.gate;
    call.x_stride = heads * a->kv_lora;
    call.x_batch = a->kv_lora;
    call.y = f->room.mixed;
    call.y_stride = heads * a->v_head;
    call.y_batch = a->v_head;
  }
  note(f, oct_cuda_multiply(&f->rank->queue, f->rank->blas, &call), "latent heads");
}

static void
store_latents(oct_cuda_forward *f, const oct_cuda_layer *l) {
  const oct_attention_spec *a = l->attention;
  gsize q_stride;
  void *queries = latent_queries(f, l, &q_stride);
  const oct_cuda_mla_store store = {.type = f->type,
                                    .batch = f->pass->batch,
                                    .kv = oct_cuda_memory_layer(f->options.memory, l),
                                    .tables = f->pass->tables[l->group],
                                    .n_heads = l->heads,
                                    .lora = a->kv_lora,
                                    .nope = a->qk_nope,
                                    .rope = a->qk_rope,
                                    .latents = latent_part(f, l, OCT_CUDA_MLA_LATENTS),
                                    .latents_stride = l->input.rows,
                                    .q = queries,
                                    .q_stride = q_stride,
                                    .absorbed = f->room.low,
                                    .norm = l->kv_a_norm,
                                    .eps = f->model->latent_eps,
                                    .angles = f->model->angles,
                                    .interleaved = f->model->rope.interleaved,
                                    .place = f->room.place};
  note(f, oct_cuda_mla_norm_and_store(&f->rank->queue, &store), "latents");
}

/* Over the latents that are on this rank. */
static void
attend_here(oct_cuda_forward *f, const oct_cuda_layer *l, const oct_cuda_batch *batch) {
  oct_cuda_mla call = latent_call(f, l);
  call.batch = batch;
  call.n_decode = f->pass->n_decode;
  call.max_queries = f->pass->max_queries;
  call.max_context = f->pass->max_context;
  call.tables = f->pass->tables[l->group];
  note(f, oct_cuda_mla_attend(&f->rank->queue, &call), "latent attention");
}

/* ---- in the expanded form */

static oct_cuda_mla_expanded
expanded_call(const oct_cuda_forward *f, const oct_cuda_layer *l) {
  const oct_attention_spec *a = l->attention;
  return (oct_cuda_mla_expanded){.type = f->type,
                                 .n_heads = l->heads,
                                 .lora = a->kv_lora,
                                 .nope = a->qk_nope,
                                 .rope = a->qk_rope,
                                 .value = a->v_head,
                                 .scale = f->model->latent_scale,
                                 .q_stride = l->q_b.rows == 0 ? l->input.rows : l->q_b.rows,
                                 .out_stride = (gsize)l->heads * a->v_head};
}

/* By wgmma, or where latents would be worked on plainly as well. The order of sums would be another
 * one by the length of a prompt's parts. */
gboolean
oct_cuda_forward_expands(const oct_cuda_forward *f) {
  const oct_cuda_queue *queue = &f->rank->queue;
  gboolean any = FALSE;
  for (guint32 i = 0; i < f->model->spec->n_attention; i++)
    any |= f->model->spec->attention[i].kind == OCT_ATTENTION_MLA;
  for (guint32 i = 0; i < f->rank->n_layers && any; i++) {
    const oct_cuda_layer *l = &f->model->layers[i];
    oct_cuda_mla_expanded call = expanded_call(f, l);
    if (l->attention->kind == OCT_ATTENTION_MLA && f->type == OCT_CUDA_BF16 &&
        oct_cuda_mla_expanded_paths(queue, &call) == 1u << OCT_CUDA_ATTENTION_PLAIN)
      return FALSE;
  }
  return any && f->rank->group->n_context == 1 && (queue->flags & OCT_CUDA_FIXED_ORDER) == 0 &&
         f->rank->group->options->expand > 0;
}

/* Positions whose keys and values are made at a time: whole pages. */
static guint32
keys_at_a_time(const oct_cuda_forward *f) {
  guint32 page = f->rank->group->config->block_size, keys = f->rank->group->options->expand_keys;
  return MAX((keys + page - 1) / page, 1) * page;
}

oct_cuda_expanded_room
oct_cuda_forward_expanded_room(const oct_cuda_forward *f, const oct_cuda_layer *l) {
  const oct_attention_spec *a = l->attention;
  gsize keys = MIN(keys_at_a_time(f), f->options.max_context);
  gsize element = oct_cuda_type_bytes(f->type);
  gboolean parts = f->options.max_context > keys_at_a_time(f);
  if (a->kind != OCT_ATTENTION_MLA || !oct_cuda_forward_expands(f))
    return (oct_cuda_expanded_room){0};
  gsize latents = (keys * (a->kv_lora + a->qk_rope) * element + 255) / 256 * 256;
  gsize state =
      parts ? (gsize)f->options.max_tokens * l->heads * (2 + a->v_head) * sizeof(float) : 0;
  return (oct_cuda_expanded_room){.kv = keys * l->heads * (a->qk_nope + a->v_head) * element,
                                  .latents = latents,
                                  .rest = latents + state};
}

/* Latents of n positions from `first` on, and keys and values of all heads from them. */
static void
expand(oct_cuda_forward *f, const oct_cuda_layer *l, const oct_cuda_prompt *prompt, guint32 first,
       guint32 n) {
  const oct_attention_spec *a = l->attention;
  const oct_cuda_tables *tables = &f->pass->tables[l->group];
  oct_cuda_kv kv = oct_cuda_memory_layer(f->options.memory, l);
  const guint32 *pages = tables->pages + prompt->slot * tables->stride + first / kv.page_tokens;
  note(f, oct_cuda_mla_gather(&f->rank->queue, &kv, pages, n, f->type, f->room.inner),
       "latents of a prompt");
  const oct_cuda_product product = {.weight = &l->kv_b,
                                    .x = f->room.inner,
                                    .x_stride = (gsize)a->kv_lora + a->qk_rope,
                                    .y = f->room.both,
                                    .y_stride = l->kv_b.rows,
                                    .y_type = f->type};
  oct_cuda_forward_multiply(f, &product, n);
}

/* Tokens of a prompt over all before them and themselves, by parts of `keys` positions that begin
 * where none of the tokens is before. */
static void
attend_run(oct_cuda_forward *f, const oct_cuda_layer *l, const oct_cuda_prompt *run, guint32 keys) {
  gsize q_stride;
  void *queries = latent_queries(f, l, &q_stride);
  oct_cuda_mla_expanded call = expanded_call(f, l);
  guint32 seen = run->position + run->n_tokens;
  call.m = run->n_tokens;
  call.position = run->position;
  call.q = at(f, queries, run->first * q_stride);
  call.out = at(f, f->room.mixed, run->first * call.out_stride);
  call.kv = f->room.both;
  call.latents = f->room.inner;
  if (seen > keys)
    call.state =
        (float *)(gpointer)((guint8 *)f->room.inner + oct_cuda_forward_expanded_room(f, l).latents);
  for (guint32 first = 0; first < seen; first += keys) {
    call.first_key = first;
    call.n_keys = MIN(keys, seen - first);
    call.begins = first == 0;
    call.ends = first + call.n_keys == seen;
    expand(f, l, run, first, call.n_keys);
    note(f, oct_cuda_mla_attend_expanded(&f->rank->queue, &call), "attention of a prompt");
  }
}

/* In the rooms of feed-forwards, which hold some thousands of keys at a time. */
static void
attend_expanded(oct_cuda_forward *f, const oct_cuda_layer *l, const oct_cuda_prompt *prompt) {
  guint32 keys = keys_at_a_time(f);
  for (guint32 done = 0, n = 0; done < prompt->n_tokens; done += n) {
    guint32 position = prompt->position + done;
    n = MIN(prompt->n_tokens - done, keys - position % keys);
    const oct_cuda_prompt run = {prompt->first + done, n, position, prompt->slot};
    attend_run(f, l, &run, keys);
  }
}

/* Kimi K3: a sigmoid of a product of the layer's input scales what attention gives. */
static void
gate_out(oct_cuda_forward *f, const oct_cuda_layer *l) {
  gsize width = (gsize)l->heads * l->attention->v_head;
  const oct_cuda_gate call = {.type = f->type,
                              .n = f->m,
                              .width = (guint32)width,
                              .x = f->room.mixed,
                              .x_stride = width,
                              .gate = latent_part(f, l, OCT_CUDA_MLA_GATE),
                              .gate_stride = l->input.rows};
  note(f, oct_cuda_sigmoid_gate(&f->rank->queue, &call), "an output gate");
}

/* The batch's sequences that are not expanded: queries and latents meet in the latent's width. */
static void
attend_absorbed(oct_cuda_forward *f, const oct_cuda_layer *l, const oct_cuda_batch *batch) {
  const oct_attention_spec *a = l->attention;
  const shared_call shared = {.l = l,
                              .q = f->room.low,
                              .q_stride = (gsize)l->heads * (a->kv_lora + a->qk_rope),
                              .value_width = a->kv_lora,
                              .scale = f->model->latent_scale,
                              .out = f->room.gate};
  multiply_heads(f, l, batch->n_tokens, TRUE);
  if (f->rank->group->n_context > 1)
    attend_shared(f, &shared);
  else
    attend_here(f, l, batch);
  multiply_heads(f, l, batch->n_tokens, FALSE);
}

void
oct_cuda_forward_latent(oct_cuda_forward *f, const oct_cuda_layer *l) {
  oct_cuda_forward_project(f, &l->input, l->input_bias, f->room.normed, f->room.latents);
  if (l->q_b.rows > 0)
    project_queries(f, l);
  store_latents(f, l);
  oct_cuda_batch rest = *f->pass->batch;
  if (f->pass->n_prompts > 0) {
    rest.n_tokens = f->pass->prompts[0].first;
    rest.n_seqs -= f->pass->n_prompts;
  }
  for (guint32 i = 0; i < f->pass->n_prompts; i++)
    attend_expanded(f, l, &f->pass->prompts[i]);
  if (rest.n_tokens > 0)
    attend_absorbed(f, l, &rest);
  if (l->attention->output_gate)
    gate_out(f, l);
  project_out(f, l);
}

/* ---------------------------------------------------------------- delta attention */

/* Where a part of what reads the input is. */
static void *
delta_part(const oct_cuda_forward *f, const oct_cuda_layer *l, oct_cuda_kda_part part) {
  return at(f, f->room.qkv, l->kda_rows[part]);
}

/* The second half of a projection through a low rank. */
static void
project_up(oct_cuda_forward *f, const oct_cuda_layer *l, oct_cuda_kda_part part,
           const oct_cuda_matrix *up, void *y) {
  const oct_cuda_product product = {.weight = up,
                                    .x = delta_part(f, l, part),
                                    .x_stride = l->qkv.rows,
                                    .y = y,
                                    .y_stride = up->rows,
                                    .y_type = f->type};
  oct_cuda_forward_multiply(f, &product, f->m);
}

static oct_cuda_kda
delta_call(const oct_cuda_forward *f, const oct_cuda_layer *l) {
  gsize channels = (gsize)l->heads * l->attention->head_dim, row = l->qkv.rows;
  gboolean is_low = l->gate_b.rows > 0;
  return (oct_cuda_kda){.type = f->type,
                        .conv_type = f->type,
                        .kda = l->kda,
                        .q = delta_part(f, l, OCT_CUDA_KDA_Q),
                        .k = delta_part(f, l, OCT_CUDA_KDA_K),
                        .v = delta_part(f, l, OCT_CUDA_KDA_V),
                        .z = l->decay_b.rows > 0 ? f->room.gate : NULL,
                        .beta = delta_part(f, l, OCT_CUDA_KDA_BETA),
                        .q_stride = row,
                        .k_stride = row,
                        .v_stride = row,
                        .z_stride = channels,
                        .beta_stride = row,
                        .norm = l->head_norm,
                        .gate = is_low ? f->room.open : delta_part(f, l, OCT_CUDA_KDA_GATE),
                        .gate_stride = is_low ? channels : row,
                        .norm_eps = (float)f->model->spec->rms_norm_eps,
                        .out = f->room.mixed,
                        .out_stride = channels,
                        .workspace = f->room.workspace,
                        .workspace_bytes = f->room.workspace_bytes};
}

void
oct_cuda_forward_delta(oct_cuda_forward *f, const oct_cuda_layer *l) {
  oct_cuda_states states = oct_cuda_memory_states(f->options.memory, l);
  oct_cuda_kda call = delta_call(f, l);
  oct_cuda_forward_project(f, &l->qkv, NULL, f->room.normed, f->room.qkv);
  if (l->decay_b.rows > 0)
    project_up(f, l, OCT_CUDA_KDA_DECAY, &l->decay_b, f->room.gate);
  if (l->gate_b.rows > 0)
    project_up(f, l, OCT_CUDA_KDA_GATE, &l->gate_b, f->room.open);
  call.batch = f->pass->batch;
  call.n_decode = f->pass->n_decode;
  call.states = states.states;
  call.state_stride = states.state_stride;
  call.conv = states.conv;
  call.conv_stride = states.conv_stride;
  call.state_of = f->pass->tables[l->group].pages;
  call.state_of_stride = f->pass->tables[l->group].stride;
  note(f, oct_cuda_kda_run(&f->rank->queue, &call), "delta attention");
  project_out(f, l);
}

/* ---------------------------------------------------------------- workspace */

/* Bytes with which every call of the layer does: batches and contexts are no larger than these. */
static gsize
workspace_of(oct_cuda_forward *f, const oct_cuda_layer *l) {
  const oct_cuda_batch most = {.n_tokens = f->options.max_tokens, .n_seqs = f->options.max_seqs};
  if (l->attention->kind == OCT_ATTENTION_KDA) {
    oct_cuda_kda call = delta_call(f, l);
    call.batch = &most;
    return oct_cuda_kda_workspace(&f->rank->queue, &call);
  }
  if (f->rank->group->n_context > 1) {
    oct_cuda_context_attention call =
        part_call(f, l, MIN(most.n_tokens, OCT_FORWARD_CONTEXT), f->options.max_context);
    return oct_cuda_context_workspace(&f->rank->queue, &call);
  }
  if (l->attention->kind == OCT_ATTENTION_MLA) {
    oct_cuda_mla call = latent_call(f, l);
    call.batch = &most;
    call.max_queries = most.n_tokens;
    call.max_context = f->options.max_context;
    return oct_cuda_mla_workspace(&f->rank->queue, &call);
  }
  oct_cuda_attention call = attention_call(f, l);
  call.batch = &most;
  call.max_queries = most.n_tokens;
  call.max_context = f->options.max_context;
  return oct_cuda_attention_workspace(&f->rank->queue, &call);
}

/* Room to gather a prompt's context before it is read, up to a length. */
static gsize
gather_of(oct_cuda_forward *f, const oct_cuda_layer *l) {
  const oct_cuda_batch prompt = {.n_tokens = f->options.max_tokens, .n_seqs = 1};
  oct_cuda_attention call = attention_call(f, l);
  call.batch = &prompt;
  call.max_queries = f->options.max_tokens;
  call.max_context = MIN(f->options.max_context, GATHER_MAX);
  return oct_cuda_attention_gather(&f->rank->queue, &call);
}

gsize
oct_cuda_forward_attention_workspace(oct_cuda_forward *f) {
  gsize most = 0, gather = 0;
  for (guint32 i = 0; i < f->rank->n_layers; i++) {
    const oct_cuda_layer *l = &f->model->layers[i];
    most = MAX(most, workspace_of(f, l));
    if (l->attention->kind == OCT_ATTENTION_GQA)
      gather = MAX(gather, gather_of(f, l));
  }
  return most + gather;
}
