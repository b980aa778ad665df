/* The batch made on the device, and what slots keep of what was sampled. */
#include "tests/kernels/cuda/device.h"

#define NONE OCT_CUDA_NONE

/* Three sequences: ids from the host, the slot's last token alone, and drafts behind it. */
static void
test_prepare(void) {
  const oct_cuda_queue *queue = device_queue(0);
  if (queue == NULL)
    return;
  static const oct_cuda_seq seqs[] = {
      {.slot = 2, .first = 0, .n_tokens = 3, .position = 10, .ids = 4},
      {.slot = 0, .first = 3, .n_tokens = 1, .position = NONE, .from_slot = 1},
      {.slot = 3, .first = 4, .n_tokens = 3, .position = 7, .ids = 0, .from_slot = 1}};
  static const guint32 count = 3, ids[] = {50, 51, 0, 0, 60, 61, 62};
  static const guint32 last[] = {90, 91, 92, 93}, length[] = {20, 21, 22, 23};
  oct_cuda_batch b = {.n_tokens = 9,
                      .n_seqs = 5,
                      .ids = device_room(9 * 4),
                      .token_position = device_room(9 * 4),
                      .token_seq = device_room(9 * 4),
                      .seq_first = device_room(6 * 4),
                      .seq_start = device_room(5 * 4),
                      .seq_slot = device_room(5 * 4)};
  oct_cuda_prepare call = {.batch = &b,
                           .seqs = device_copy(seqs, sizeof seqs),
                           .count = device_copy(&count, sizeof count),
                           .ids = device_copy(ids, sizeof ids),
                           .slots = {.last_token = device_copy(last, sizeof last),
                                     .length = device_copy(length, sizeof length)}};
  device_check(oct_cuda_prepare_batch(queue, &call));
  static const guint32 want_ids[] = {60, 61, 62, 90, 93, 50, 51, 0, 0};
  static const guint32 positions[] = {10, 11, 12, 20, 7, 8, 9, 0, 0};
  static const guint32 token_seq[] = {0, 0, 0, 1, 2, 2, 2, NONE, NONE};
  static const guint32 firsts[] = {0, 3, 4, 7, 7, 7}, starts[] = {10, 20, 7, 0, 0};
  guint32 got[9];
  device_read(got, b.ids, sizeof want_ids);
  g_assert_cmpmem(got, sizeof want_ids, want_ids, sizeof want_ids);
  device_read(got, b.token_position, sizeof positions);
  g_assert_cmpmem(got, sizeof positions, positions, sizeof positions);
  device_read(got, b.token_seq, sizeof token_seq);
  g_assert_cmpmem(got, sizeof token_seq, token_seq, sizeof token_seq);
  device_read(got, b.seq_first, sizeof firsts);
  g_assert_cmpmem(got, sizeof firsts, firsts, sizeof firsts);
  device_read(got, b.seq_start, sizeof starts);
  g_assert_cmpmem(got, sizeof starts, starts, sizeof starts);
}

/* One token; drafts of which the second is refused; no rows; a row without a token. */
static void
test_accept(void) {
  const oct_cuda_queue *queue = device_queue(0);
  if (queue == NULL)
    return;
  static const guint32 ids[] = {1, 5, 6, 7, 8, 9}, position[] = {30, 10, 11, 12, 0, 40};
  static const guint32 first[] = {0, 1, 4, 5, 6}, slot[] = {0, 1, 2, 3};
  static const guint32 seq_rows[] = {0, 1, 4, 4, 5}, tokens[] = {3, 6, 99, 2, OCT_REF_NO_TOKEN};
  static const guint32 zeros[128] = {0};
  guint32 *counts = device_copy(zeros, sizeof zeros);
  const oct_cuda_sample_row rows[] = {{.token = 0},
                                      {.token = 1, .counts = counts},
                                      {.token = 2, .counts = counts},
                                      {.token = 3, .counts = counts},
                                      {.token = 5}};
  oct_cuda_batch b = {.n_tokens = 6,
                      .n_seqs = 4,
                      .ids = device_copy(ids, sizeof ids),
                      .token_position = device_copy(position, sizeof position),
                      .seq_first = device_copy(first, sizeof first),
                      .seq_slot = device_copy(slot, sizeof slot)};
  oct_cuda_accept call = {
      .batch = &b,
      .rows = device_copy(rows, sizeof rows),
      .seq_rows = device_copy(seq_rows, sizeof seq_rows),
      .tokens = device_copy(tokens, sizeof tokens),
      .vocab = 128,
      .accepted = device_room(4 * 4),
      .slots = {.last_token = device_copy(zeros, 16), .length = device_copy(zeros, 16)}};
  device_check(oct_cuda_accept_tokens(queue, &call));
  static const guint32 accepted[] = {1, 2, 0, 0}, last[] = {3, 99, 0, 0}, length[] = {31, 12, 0, 0};
  guint32 got[128];
  device_read(got, call.accepted, sizeof accepted);
  g_assert_cmpmem(got, sizeof accepted, accepted, sizeof accepted);
  device_read(got, call.slots.last_token, sizeof last);
  g_assert_cmpmem(got, sizeof last, last, sizeof last);
  device_read(got, call.slots.length, sizeof length);
  g_assert_cmpmem(got, sizeof length, length, sizeof length);
  device_read(got, counts, sizeof got);
  for (guint i = 0; i < 128; i++)
    g_assert_cmpuint(got[i], ==, i == 6 || i == 99);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/cuda/batch/is-made-of-sequences-and-slots", test_prepare);
  g_test_add_func("/cuda/batch/drafts-are-accepted-up-to-the-first-other", test_accept);
  return g_test_run();
}
