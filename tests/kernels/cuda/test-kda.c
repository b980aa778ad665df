/* Delta attention: prompts and decodes into states, against the recurrence in plain C. */
#include "kernels/cuda/kda.h"
#include "tests/kernels/cuda/device.h"

#include <math.h>
#include <string.h>

enum { HEADS = 3, TAPS = 4, SEQS_MAX = 80 };

/* What is compared, over the calls of a rig. */
typedef struct kda_case {
  oct_cuda_type type;
  guint32 width;
  float bound, shift;       /* shift: of dt_bias, towards long (< 0) or short memory */
  gboolean decodes, chunks; /* the kernels that must run, if the width has them */
  gboolean normed, plain;   /* plain: neither gate nor z */
  double limit, state_limit;
  float rate;     /* of a_log, likewise: large = steep decays */
  guint32 passes; /* the workspace is a part of what it could be; 0: there is none */
} kda_case;

/* A layer's weights and states, here and on the device; the twin's states are float32 all through.
 */
typedef struct rig {
  const kda_case *c;
  oct_cuda_queue queue;
  oct_cuda_launches launches;
  gsize channels, recurrent, inputs; /* elements of a slot's parts */
  guint32 n_states, *order;          /* the state slots of the sequences that have tokens */
  oct_kda twin;
  oct_cuda_kda call;
  float *weights, *norm, *states;
} rig;

static void
weights_of(gsize n, float shift, const float **device, const float **host) {
  float *x = data_normal(n, 0.5);
  for (gsize i = 0; i < n; i++)
    x[i] += shift;
  *device = device_put(OCT_CUDA_F32, x, n);
  *host = x;
}

static void
rig_open(rig *r, const kda_case *c, const oct_cuda_queue *queue, guint32 n_seqs) {
  gsize channels = (gsize)HEADS * c->width, n_taps = channels * TAPS;
  *r = (rig){.c = c, .queue = *queue, .channels = channels, .n_states = n_seqs + 2};
  r->queue.launches = &r->launches;
  r->recurrent = channels * c->width;
  r->inputs = 3 * (TAPS - 1) * channels;
  r->order = data_pages(n_seqs, r->n_states);
  r->twin = (oct_kda){.n_heads = HEADS, .width = c->width, .taps = TAPS, .decay_bound = c->bound};
  r->call = (oct_cuda_kda){.type = c->type, .conv_type = c->type, .kda = r->twin};
  weights_of(n_taps, 0, &r->call.kda.q_conv, &r->twin.q_conv);
  weights_of(n_taps, 0, &r->call.kda.k_conv, &r->twin.k_conv);
  weights_of(n_taps, 0, &r->call.kda.v_conv, &r->twin.v_conv);
  weights_of(HEADS, c->rate, &r->call.kda.a_log, &r->twin.a_log);
  weights_of(channels, c->shift, &r->call.kda.dt_bias, &r->twin.dt_bias);
  r->norm = data_normal(c->width, 1);
  r->call.norm_eps = 1e-5f;
  r->call.norm = c->normed ? device_put(c->type, r->norm, c->width) : NULL;
  gsize floats = oct_ref_kda_state_floats(&r->twin);
  r->states = data_normal(r->n_states * floats, 0.3);
  g_autofree float *s = g_new(float, r->n_states * r->recurrent);
  g_autofree float *conv = g_new(float, r->n_states * r->inputs);
  for (guint32 i = 0; i < r->n_states; i++) {
    memcpy(s + i * r->recurrent, r->states + i * floats, r->recurrent * sizeof *s);
    memcpy(conv + i * r->inputs, r->states + i * floats + r->recurrent, r->inputs * sizeof *s);
  }
  r->call.states = device_put(OCT_CUDA_F32, s, r->n_states * r->recurrent);
  r->call.state_stride = r->recurrent;
  r->call.conv = device_put(c->type, conv, r->n_states * r->inputs);
  r->call.conv_stride = r->inputs;
  for (guint32 i = 0; i < r->n_states; i++)
    memcpy(r->states + i * floats + r->recurrent, conv + i * r->inputs, r->inputs * sizeof *s);
}

static void
rig_close(rig *r) {
  device_tell_launches(&r->launches);
  g_free((void *)r->twin.q_conv);
  g_free((void *)r->twin.k_conv);
  g_free((void *)r->twin.v_conv);
  g_free((void *)r->twin.a_log);
  g_free((void *)r->twin.dt_bias);
  g_free(r->norm);
  g_free(r->states);
  g_free(r->order);
}

typedef struct rows {
  float *q, *k, *v, *z, *beta, *gate;
} rows;

/* n rows of inputs, padding behind them, on both sides. */
static rows
rig_inputs(rig *r, gsize n) {
  gsize size = n * r->channels;
  rows x = {data_normal(size, 1), data_normal(size, 1),      data_normal(size, 1),
            data_normal(size, 1), data_normal(n * HEADS, 1), data_normal(size, 1)};
  oct_cuda_kda *call = &r->call;
  call->q = device_put(r->c->type, x.q, size);
  call->k = device_put(r->c->type, x.k, size);
  call->v = device_put(r->c->type, x.v, size);
  call->z = device_put(r->c->type, x.z, size);
  call->gate = device_put(r->c->type, x.gate, size);
  call->beta = device_put(r->c->type, x.beta, n * HEADS);
  call->out = device_room_of(r->c->type, size);
  call->q_stride = call->k_stride = call->v_stride = call->z_stride = call->gate_stride =
      call->out_stride = r->channels;
  call->beta_stride = HEADS;
  if (r->c->plain) {
    call->z = call->gate = NULL;
    memset(x.z, 0, size * sizeof *x.z);
    memset(x.gate, 0, size * sizeof *x.gate);
  }
  return x;
}

/* Row i of `want` from the sequence's state. */
static void
rig_twin(rig *r, const rows *x, gsize i, guint32 state, gboolean fresh, float *want) {
  gsize floats = oct_ref_kda_state_floats(&r->twin), at = i * r->channels;
  float *s = r->states + state * floats;
  g_autofree float *scratch = g_new(float, 8 * (gsize)r->twin.width);
  if (fresh)
    memset(s, 0, floats * sizeof *s);
  const oct_kda_token token = {x->q + at, x->k + at, x->v + at, x->z + at, x->beta + i * HEADS};
  oct_ref_kda(&r->twin, s, &token, 0, HEADS, want + at, scratch);
  if (!r->c->normed)
    return;
  oct_ref_rms_norm(want + at, r->norm, HEADS, r->twin.width, r->twin.width, r->call.norm_eps,
                   want + at);
  oct_ref_sigmoid_gate(want + at, x->gate + at, r->channels);
}

/* A batch of sequences, the first n_decode of one token, into the states; when all are, padding is
 * one, too. */
static void
rig_step(rig *r, const device_seq *seqs, guint32 n_seqs, guint32 n_decode) {
  g_autoptr(device_batch) b = device_batch_new(&r->queue, seqs, n_seqs, 2, 1);
  g_autofree guint32 *state_of = g_new0(guint32, b->n_slots);
  for (guint32 s = 0, used = 0; s < n_seqs; s++)
    if (seqs[s].n_tokens > 0)
      state_of[b->slots[s]] = r->order[used++];
  rows x = rig_inputs(r, b->batch.n_tokens);
  r->call.batch = &b->batch;
  r->call.n_decode = n_decode == n_seqs ? b->batch.n_seqs : n_decode;
  r->call.state_of = device_copy(state_of, b->n_slots * sizeof *state_of);
  r->call.state_of_stride = 1;
  r->call.workspace_bytes = oct_cuda_kda_workspace(&r->queue, &r->call);
  r->call.workspace_bytes = r->c->passes > 0 ? r->call.workspace_bytes / r->c->passes : 0;
  r->call.workspace = device_room(r->call.workspace_bytes);
  device_check(oct_cuda_kda_run(&r->queue, &r->call));
  gsize size = b->n_tokens * r->channels;
  g_autofree float *want = g_new(float, MAX(size, 1));
  for (guint32 i = 0; i < b->n_tokens; i++)
    rig_twin(r, &x, i, state_of[b->slots[b->seq_of[i]]], b->position_of[i] == 0, want);
  g_autofree float *out = device_get(r->c->type, r->call.out, size);
  device_expect("outputs", out, want, size, r->c->limit);
  float *all[] = {x.q, x.k, x.v, x.z, x.beta, x.gate};
  for (guint i = 0; i < G_N_ELEMENTS(all); i++)
    g_free(all[i]);
}

/* States and inputs of convolutions, also those that no sequence has. */
static void
rig_check(rig *r) {
  gsize floats = oct_ref_kda_state_floats(&r->twin);
  g_autofree float *s = g_new(float, r->n_states * r->recurrent);
  g_autofree float *conv = g_new(float, r->n_states * r->inputs);
  for (guint32 i = 0; i < r->n_states; i++) {
    memcpy(s + i * r->recurrent, r->states + i * floats, r->recurrent * sizeof *s);
    memcpy(conv + i * r->inputs, r->states + i * floats + r->recurrent, r->inputs * sizeof *s);
  }
  gsize n = r->n_states * r->recurrent, m = r->n_states * r->inputs;
  g_autofree float *after = device_get(OCT_CUDA_F32, r->call.states, n);
  g_autofree float *moved = device_get(r->c->type, r->call.conv, m);
  device_expect("states", after, s, n, r->c->state_limit);
  device_expect("inputs of convolutions", moved, conv, m, 0);
  gboolean fast = r->c->width == 128 && r->queue.capability >= 90;
  g_assert_cmpuint(oct_cuda_launches_of(&r->launches, "kda_decode") > 0, ==, fast && r->c->decodes);
  g_assert_cmpuint(oct_cuda_launches_of(&r->launches, "kda_chunks") > 0, ==, fast && r->c->chunks);
}

/* ---------------------------------------------------------------- any width */

static void
test_recurrent(void) {
  static const guint32 widths[] = {16, 20, 128};
  static const device_seq seqs[] = {{1, 5}, {20, 0}, {1, 0}, {7, 12}};
  static const device_seq more[] = {{3, 6}, {1, 20}, {9, 1}, {1, 19}};
  for (guint w = 0; w < G_N_ELEMENTS(widths); w++)
    for (guint k = 0; k < 4; k++) {
      const oct_cuda_queue *queue = device_queue(0);
      if (queue == NULL)
        return;
      if (device_quick() && k % 3 != 0)
        continue;
      const kda_case c = {.type = k % 2 == 0 ? OCT_CUDA_F32 : OCT_CUDA_BF16,
                          .width = widths[w],
                          .bound = k < 2 ? -5 : 0,
                          .normed = k == 0,
                          .limit = k % 2 == 0 ? 1e-5 : 4e-3,
                          .state_limit = 1e-5};
      rig r;
      rig_open(&r, &c, queue, G_N_ELEMENTS(seqs));
      rig_step(&r, seqs, G_N_ELEMENTS(seqs), 0);
      rig_step(&r, more, G_N_ELEMENTS(more), 0);
      rig_check(&r);
      rig_close(&r);
    }
}

/* ---------------------------------------------------------------- one token a sequence */

static void
decode(const kda_case *c, guint32 n_seqs, guint32 steps) {
  const oct_cuda_queue *queue = device_queue(OCT_CUDA_OVERLAP);
  if (queue == NULL)
    return;
  device_seq seqs[SEQS_MAX];
  rig r;
  rig_open(&r, c, queue, n_seqs);
  for (guint32 step = 0; step < steps; step++) {
    for (guint32 s = 0; s < n_seqs; s++)
      seqs[s] = (device_seq){1, s % 3 == 1 ? step : 7 + step};
    rig_step(&r, seqs, n_seqs, n_seqs);
  }
  rig_check(&r);
  rig_close(&r);
}

static void
test_decode(void) {
  const kda_case cases[] = {
      {OCT_CUDA_F32, 128, -5, 0, TRUE, FALSE, FALSE, FALSE, 1e-5, 1e-5, 0, 1},
      {OCT_CUDA_F32, 128, 0, 0, TRUE, FALSE, TRUE, FALSE, 1e-5, 1e-5, 0, 1},
      {OCT_CUDA_F32, 128, 0, 0, TRUE, FALSE, TRUE, TRUE, 1e-5, 1e-5, 0, 1},
      {OCT_CUDA_BF16, 128, -5, 0, TRUE, FALSE, TRUE, FALSE, 3e-3, 1e-5, 0, 1},
      {OCT_CUDA_BF16, 128, 0, 0, TRUE, FALSE, FALSE, TRUE, 3e-3, 1e-5, 0, 1},
      {OCT_CUDA_F32, 16, -5, 0, TRUE, FALSE, TRUE, FALSE, 1e-5, 1e-5, 0, 1},
      /* Decays of 1 and of e^-5 at every step, and e^-20. */
      {OCT_CUDA_F32, 128, -5, -30, TRUE, FALSE, FALSE, FALSE, 1e-5, 1e-5, 0, 1},
      {OCT_CUDA_F32, 128, -5, 30, TRUE, FALSE, FALSE, FALSE, 1e-5, 1e-5, 0, 1},
      {OCT_CUDA_F32, 128, 0, 20, TRUE, FALSE, FALSE, FALSE, 1e-5, 1e-5, 0, 1},
  };
  for (guint i = 0; i < G_N_ELEMENTS(cases); i += device_quick() ? 3 : 1) {
    decode(&cases[i], 1, 2);
    decode(&cases[i], 5, device_quick() ? 2 : 6);
  }
  if (!device_quick())
    decode(&cases[0], SEQS_MAX, 2);
}

/* Decodes first, then prompts; places of decodes that no sequence takes lie between them. */
static void
test_mixed(void) {
  static const device_seq seqs[] = {{1, 5}, {1, 0}, {0, 0}, {5, 0}, {18, 3}};
  const kda_case cases[] = {{OCT_CUDA_F32, 128, -5, 0, TRUE, TRUE, TRUE, FALSE, 1e-5, 1e-5, 0, 1},
                            {OCT_CUDA_BF16, 128, -5, 0, TRUE, TRUE, TRUE, FALSE, 6e-3, 5e-3, 0, 1}};
  for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
    const oct_cuda_queue *queue = device_queue(OCT_CUDA_OVERLAP);
    if (queue == NULL)
      return;
    rig r;
    rig_open(&r, &cases[i], queue, G_N_ELEMENTS(seqs));
    rig_step(&r, seqs, G_N_ELEMENTS(seqs), 3);
    rig_check(&r);
    rig_close(&r);
  }
}

/* ---------------------------------------------------------------- prompts in chunks */

/* Sequences of 1 to 70 tokens, then as many again of other lengths behind them. */
static void
test_lengths(void) {
  enum { LENGTHS = 70 };
  const kda_case cases[] = {
      {OCT_CUDA_BF16, 128, -5, 0, FALSE, TRUE, TRUE, FALSE, 5e-3, 5e-3, 0, 1},
      {OCT_CUDA_BF16, 128, 0, 0, FALSE, TRUE, FALSE, FALSE, 5e-3, 5e-3, 0, 7},
      {OCT_CUDA_BF16, 128, 0, 0, FALSE, TRUE, FALSE, TRUE, 5e-3, 5e-3, 0, 2},
      /* Decays of 1 and of e^-5 at every step; some too steep for one factor; all of them. */
      {OCT_CUDA_BF16, 128, -5, -30, FALSE, TRUE, FALSE, FALSE, 5e-3, 5e-3, 0, 1},
      {OCT_CUDA_BF16, 128, -5, 30, FALSE, TRUE, FALSE, FALSE, 5e-3, 5e-3, 0, 1},
      {OCT_CUDA_BF16, 128, 0, 0, FALSE, TRUE, FALSE, FALSE, 5e-3, 5e-3, 2.5, 1},
      {OCT_CUDA_BF16, 128, 0, 30, FALSE, TRUE, FALSE, FALSE, 5e-3, 5e-3, 0, 1},
      {OCT_CUDA_F32, 128, -5, 0, FALSE, TRUE, TRUE, FALSE, 1e-5, 1e-5, 0, 3},
      {OCT_CUDA_F32, 128, -5, -30, FALSE, TRUE, FALSE, FALSE, 1e-5, 1e-5, 0, 1},
      {OCT_CUDA_F32, 128, 0, 0, FALSE, TRUE, FALSE, FALSE, 1e-5, 1e-5, 2.5, 1},
  };
  /* Quick: of one chunk, of two and of three. */
  guint32 n = device_quick() ? 5 : LENGTHS, apart = device_quick() ? 8 : 1;
  for (guint i = 0; i < G_N_ELEMENTS(cases); i += device_quick() ? 3 : 1) {
    const oct_cuda_queue *queue = device_queue(OCT_CUDA_OVERLAP);
    if (queue == NULL)
      return;
    device_seq seqs[LENGTHS], more[LENGTHS];
    for (guint32 s = 0; s < n; s++) {
      seqs[s] = (device_seq){1 + s * apart, s % 2 == 0 ? 0 : 3};
      more[s] = (device_seq){1 + (n - 1 - s) * apart, seqs[s].position + seqs[s].n_tokens};
    }
    rig r;
    rig_open(&r, &cases[i], queue, n);
    rig_step(&r, seqs, n, 0);
    rig_step(&r, more, i < 2 ? n : MIN(n, 20), 0);
    rig_check(&r);
    rig_close(&r);
  }
}

/* One long prompt, in one call or cut: errors do not grow on the way. */
static void
test_long(void) {
  static const guint32 lengths[] = {1040, 1000, 2056};
  const guint32 fewer = device_quick() ? 40 : 1;
  const kda_case cases[] = {
      {OCT_CUDA_BF16, 128, -5, 0, FALSE, TRUE, FALSE, FALSE, 4e-3, 4e-3, 0, 1},
      {OCT_CUDA_BF16, 128, -5, -4, FALSE, TRUE, FALSE, FALSE, 4e-3, 4e-3, 0, 3},
      {OCT_CUDA_BF16, 128, 0, -4, FALSE, TRUE, FALSE, FALSE, 4e-3, 4e-3, 0, 1},
      {OCT_CUDA_F32, 128, -5, -4, FALSE, TRUE, FALSE, FALSE, 1e-5, 1e-5, 0, 1}};
  for (guint i = 0; i < G_N_ELEMENTS(cases); i += device_quick() ? 3 : 1) {
    const oct_cuda_queue *queue = device_queue(OCT_CUDA_OVERLAP);
    if (queue == NULL)
      return;
    rig r;
    rig_open(&r, &cases[i], queue, 1);
    device_seq part = {4096, 0};
    if (i == 1)
      rig_step(&r, &part, 1, 0);
    for (guint k = 0; i != 1 && k < G_N_ELEMENTS(lengths); k++) {
      part.n_tokens = lengths[k] / fewer;
      rig_step(&r, &part, 1, 0);
      part.position += part.n_tokens;
    }
    rig_check(&r);
    rig_close(&r);
  }
}

/* ---------------------------------------------------------------- a fixed order */

/* Whether [n] of what the device has are the bits of `wanted`. */
static void
expect_bits(oct_cuda_type type, const void *device, const float *wanted, gsize n) {
  g_autofree float *got = device_get(type, device, n);
  g_assert_cmpmem(got, n * sizeof *got, wanted, n * sizeof *wanted);
}

/* A run of tokens at once, then the same one by one into the same state. */
static void
run_and_singles(const kda_case *c, guint32 position) {
  const oct_cuda_queue *queue = device_queue(OCT_CUDA_FIXED_ORDER);
  guint32 n = device_quick() ? 5 : 37;
  rig r;
  rig_open(&r, c, queue, 1);
  rows x = rig_inputs(&r, n + 1);
  oct_cuda_kda *call = &r.call, all = *call;
  gsize states = r.n_states * r.recurrent, inputs = r.n_states * r.inputs;
  gsize row = r.channels * oct_cuda_type_bytes(c->type),
        beta = HEADS * oct_cuda_type_bytes(c->type);
  g_autofree float *state = device_get(OCT_CUDA_F32, all.states, states), *out = NULL;
  g_autofree float *conv = device_get(c->type, all.conv, inputs), *after = NULL, *moved = NULL;
  for (guint32 i = 0; i <= n; i++) {
    const device_seq run = {i == 0 ? n : 1, position + (i == 0 ? 0 : i - 1)};
    g_autoptr(device_batch) b = device_batch_new(&r.queue, &run, 1, 0, 0);
    g_autofree guint32 *state_of = g_new0(guint32, b->n_slots);
    gsize at = i == 0 ? 0 : i - 1;
    state_of[b->slots[0]] = r.order[0];
    call->batch = &b->batch;
    call->n_decode = i == 0 ? 0 : 1;
    call->state_of = device_copy(state_of, b->n_slots * sizeof *state_of);
    call->state_of_stride = 1;
    call->q = (const guint8 *)all.q + at * row;
    call->k = (const guint8 *)all.k + at * row;
    call->v = (const guint8 *)all.v + at * row;
    call->z = (const guint8 *)all.z + at * row;
    call->gate = (const guint8 *)all.gate + at * row;
    call->beta = (const guint8 *)all.beta + at * beta;
    call->out = (guint8 *)all.out + at * row;
    g_assert_cmpuint(oct_cuda_kda_workspace(&r.queue, call), ==, 0);
    device_check(oct_cuda_kda_run(&r.queue, call));
    if (i > 0)
      continue;
    out = device_get(c->type, all.out, n * r.channels);
    after = device_get(OCT_CUDA_F32, all.states, states);
    moved = device_get(c->type, all.conv, inputs);
    call->states = device_put(OCT_CUDA_F32, state, states);
    call->conv = device_put(c->type, conv, inputs);
  }
  expect_bits(c->type, all.out, out, n * r.channels);
  expect_bits(OCT_CUDA_F32, call->states, after, states);
  expect_bits(c->type, call->conv, moved, inputs);
  float *parts[] = {x.q, x.k, x.v, x.z, x.beta, x.gate};
  for (guint i = 0; i < G_N_ELEMENTS(parts); i++)
    g_free(parts[i]);
  rig_close(&r);
}

/* No prompt goes in chunks. */
static void
test_fixed(void) {
  static const device_seq seqs[] = {{1, 5}, {1, 0}, {0, 0}, {5, 0}, {18, 3}};
  const kda_case cases[] = {
      {OCT_CUDA_F32, 128, -5, 0, TRUE, FALSE, TRUE, FALSE, 1e-5, 1e-5, 0, 1},
      {OCT_CUDA_BF16, 128, 0, 0, TRUE, FALSE, TRUE, FALSE, 3e-3, 1e-5, 0, 1},
      {OCT_CUDA_BF16, 20, -5, 0, FALSE, FALSE, TRUE, FALSE, 8e-3, 1e-5, 0, 1}};
  for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
    const oct_cuda_queue *queue = device_queue(OCT_CUDA_FIXED_ORDER);
    if (queue == NULL)
      return;
    rig r;
    rig_open(&r, &cases[i], queue, G_N_ELEMENTS(seqs));
    rig_step(&r, seqs, G_N_ELEMENTS(seqs), 3);
    rig_check(&r);
    rig_close(&r);
    run_and_singles(&cases[i], 0);
    run_and_singles(&cases[i], 9);
  }
}

/* More sequences than a grid is high, most without tokens, by every kernel that has a block for
 * each; none of so many goes in chunks. */
static void
test_many(void) {
  enum { MANY = 70000 };
  static const guint32 some[] = {0, 65534, 65535, MANY - 1};
  const kda_case cases[] = {{OCT_CUDA_F32, 128, -5, 0, TRUE, FALSE, TRUE, FALSE, 1e-5, 1e-5, 0, 1},
                            {OCT_CUDA_F32, 128, -5, 0, FALSE, FALSE, TRUE, FALSE, 1e-5, 1e-5, 0, 1},
                            {OCT_CUDA_F32, 20, -5, 0, FALSE, FALSE, TRUE, FALSE, 1e-5, 1e-5, 0, 1}};
  g_autofree device_seq *seqs = g_new0(device_seq, MANY);
  for (guint i = 0; i < G_N_ELEMENTS(some); i++)
    seqs[some[i]] = (device_seq){1, i % 2 == 0 ? 3 : 0};
  for (guint i = 0; i < 2 * G_N_ELEMENTS(cases); i++) {
    const kda_case *c = &cases[i / 2];
    const oct_cuda_queue *queue = device_queue(i % 2 == 0 ? 0 : OCT_CUDA_FIXED_ORDER);
    if (queue == NULL || device_quick())
      return;
    kda_case fixed = *c;
    fixed.decodes = TRUE; /* runs, too, by its arithmetic */
    rig r;
    rig_open(&r, i % 2 == 0 ? c : &fixed, queue, G_N_ELEMENTS(some));
    rig_step(&r, seqs, MANY, c->decodes ? MANY : 0);
    rig_check(&r);
    rig_close(&r);
  }
}

/* A state that has no room in shared memory is refused. This needs no GPU. */
static void
test_widest(void) {
  const oct_cuda_queue queue = {.sm_count = 132, .capability = 90, .shared_bytes = 227 << 10};
  const oct_cuda_batch batch = {.n_tokens = 1, .n_seqs = 1};
  const oct_cuda_kda call = {.type = OCT_CUDA_BF16,
                             .conv_type = OCT_CUDA_BF16,
                             .batch = &batch,
                             .kda = {.n_heads = 1, .width = 240, .taps = TAPS}};
  g_assert_cmpint(oct_cuda_kda_run(&queue, &call), ==, OCT_CUDA_UNSUPPORTED);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/cuda/kda/takes-tokens-into-states", test_recurrent);
  g_test_add_func("/cuda/kda/takes-one-token-in-one-launch", test_decode);
  g_test_add_func("/cuda/kda/refuses-what-has-no-room", test_widest);
  g_test_add_func("/cuda/kda/mixes-decodes-and-prompts", test_mixed);
  g_test_add_func("/cuda/kda/takes-prompts-of-any-length-in-chunks", test_lengths);
  g_test_add_func("/cuda/kda/keeps-to-the-recurrence-over-long-prompts", test_long);
  g_test_add_func("/cuda/kda/a-fixed-order-has-the-same-bits-alone-and-in-a-run", test_fixed);
  g_test_add_func("/cuda/kda/more-sequences-than-a-grid-is-high", test_many);
  return g_test_run();
}
