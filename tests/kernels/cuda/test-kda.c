/* Delta attention: prompts and decodes into states. */
#include "tests/kernels/cuda/device.h"

#include <string.h>

enum { HEADS = 3, TAPS = 4 };

static void
check(const oct_cuda_queue *queue, oct_cuda_type type, guint32 width, float bound, double limit) {
  static const device_seq seqs[] = {{1, 5}, {20, 0}, {1, 0}, {7, 12}};
  g_autoptr(device_batch) b = device_batch_new(queue, seqs, G_N_ELEMENTS(seqs), 2, 1);
  gsize n = b->batch.n_tokens, c = (gsize)HEADS * width, size = n * c, states = b->n_slots + 2;
  g_autofree float *q = data_normal(size, 1), *k = data_normal(size, 1);
  g_autofree float *v = data_normal(size, 1), *z = data_normal(size, 1);
  g_autofree float *beta = data_normal(n * HEADS, 1), *taps = data_normal(3 * c * TAPS, 0.5);
  g_autofree float *rates = data_normal(HEADS, 0.5), *dt = data_normal(c, 0.5);
  gsize recurrent = c * width, inputs = 3 * (TAPS - 1) * c;
  g_autofree float *s = data_normal(states * recurrent, 0.3);
  g_autofree float *conv = data_normal(states * inputs, 1);
  g_autofree guint32 *state_of = data_pages(b->n_slots, (guint32)states);
  float *d_taps = device_put(OCT_CUDA_F32, taps, 3 * c * TAPS);
  oct_cuda_kda call = {.type = type,
                       .conv_type = type,
                       .batch = &b->batch,
                       .kda = {.n_heads = HEADS,
                               .width = width,
                               .taps = TAPS,
                               .q_conv = d_taps,
                               .k_conv = d_taps + c * TAPS,
                               .v_conv = d_taps + 2 * c * TAPS,
                               .a_log = device_put(OCT_CUDA_F32, rates, HEADS),
                               .dt_bias = device_put(OCT_CUDA_F32, dt, c),
                               .decay_bound = bound},
                       .states = device_put(OCT_CUDA_F32, s, states * recurrent),
                       .state_stride = recurrent,
                       .conv = device_put(type, conv, states * inputs),
                       .conv_stride = inputs,
                       .state_of = device_copy(state_of, b->n_slots * sizeof *state_of),
                       .state_of_stride = 1,
                       .q = device_put(type, q, size),
                       .k = device_put(type, k, size),
                       .v = device_put(type, v, size),
                       .z = device_put(type, z, size),
                       .beta = device_put(type, beta, n * HEADS),
                       .q_stride = c,
                       .k_stride = c,
                       .v_stride = c,
                       .z_stride = c,
                       .beta_stride = HEADS,
                       .out = device_room_of(type, size),
                       .out_stride = c};
  device_check(oct_cuda_kda_run(queue, &call));
  oct_kda twin = call.kda;
  twin.q_conv = taps;
  twin.k_conv = taps + c * TAPS;
  twin.v_conv = taps + 2 * c * TAPS;
  twin.a_log = rates;
  twin.dt_bias = dt;
  g_autofree float *want = g_new(float, size), *scratch = g_new(float, 8 * width);
  g_autofree float *state = g_new(float, oct_ref_kda_state_floats(&twin));
  for (guint32 i = 0; i < b->n_tokens; i++) {
    gsize slot = state_of[b->slots[b->seq_of[i]]];
    memcpy(state, s + slot * recurrent, recurrent * sizeof *s);
    memcpy(state + recurrent, conv + slot * inputs, inputs * sizeof *s);
    if (b->position_of[i] == 0)
      memset(state, 0, (recurrent + inputs) * sizeof *state);
    const oct_kda_token token = {q + i * c, k + i * c, v + i * c, z + i * c, beta + i * HEADS};
    oct_ref_kda(&twin, state, &token, 0, HEADS, want + i * c, scratch);
    memcpy(s + slot * recurrent, state, recurrent * sizeof *s);
    memcpy(conv + slot * inputs, state + recurrent, inputs * sizeof *s);
  }
  g_autofree float *out = device_get(type, call.out, size);
  g_autofree float *after = device_get(OCT_CUDA_F32, call.states, states * recurrent);
  g_autofree float *moved = device_get(type, call.conv, states * inputs);
  device_expect("outputs", out, want, b->n_tokens * c, limit);
  device_expect("states", after, s, states * recurrent, limit);
  device_expect("inputs", moved, conv, states * inputs, limit);
}

static void
test_kda(void) {
  static const guint32 widths[] = {16, 20, 128};
  for (guint w = 0; w < G_N_ELEMENTS(widths); w++)
    for (guint k = 0; k < 3; k++) {
      const oct_cuda_queue *queue = device_queue(0);
      if (queue == NULL)
        return;
      check(queue, k < 2 ? OCT_CUDA_F32 : OCT_CUDA_BF16, widths[w], k == 1 ? -5 : 0,
            k < 2 ? 1e-5 : 4e-3);
    }
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/cuda/kda/takes-tokens-into-states", test_kda);
  return g_test_run();
}
