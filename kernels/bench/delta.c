/* Delta attention: one token of many sequences, and prompts; and how long their states take to be
 * copied, which is what a decode step has to do at least. */
#include "kernels/bench/bench.h"
#include "kernels/cuda/kda.h"

#include <stdlib.h>

#define WIDTH    128
#define TAPS     4
#define SETS_MAX 16

typedef struct delta_set {
  oct_cuda_batch batch;
  oct_cuda_kda call;
  float *copy;
} delta_set;

static delta_set room[SETS_MAX];

static int
call_delta(const bench *b, void *context, unsigned set) {
  (void)context;
  return oct_cuda_kda_run(&b->queue, &room[set].call);
}

static int
call_copy(const bench *b, void *context, unsigned set) {
  const size_t *bytes = context;
  return (int)cudaMemcpyAsync(room[set].copy, room[set].call.states, *bytes,
                              cudaMemcpyDeviceToDevice, b->queue.stream);
}

/* n sequences of `each` tokens that have come to position 1024, with states of their own. */
static void
make_set(bench *b, delta_set *set, uint32_t heads, uint32_t n, uint32_t each, bool chunks) {
  size_t channels = (size_t)heads * WIDTH, tokens = (size_t)n * each;
  uint32_t *words = malloc((2 * (size_t)n + 1 + n) * sizeof *words);
  uint32_t *first = words, *start = first + n + 1, *slot = start + n;
  for (uint32_t s = 0; s <= n; s++)
    first[s] = s * each;
  for (uint32_t s = 0; s < n; s++) {
    start[s] = 1024;
    slot[s] = s;
  }
  set->batch = (oct_cuda_batch){.n_tokens = (uint32_t)tokens,
                                .n_seqs = n,
                                .seq_first = bench_copy(first, (n + 1) * 4),
                                .seq_start = bench_copy(start, n * 4),
                                .seq_slot = bench_copy(slot, n * 4)};
  size_t size = tokens * channels;
  oct_cuda_kda *call = &set->call;
  *call = (oct_cuda_kda){.type = OCT_CUDA_BF16,
                         .conv_type = OCT_CUDA_BF16,
                         .batch = &set->batch,
                         .n_decode = each == 1 ? n : 0,
                         .kda = {.n_heads = heads,
                                 .width = WIDTH,
                                 .taps = TAPS,
                                 .q_conv = bench_random(b, OCT_CUDA_F32, channels * TAPS, 0.5f),
                                 .k_conv = bench_random(b, OCT_CUDA_F32, channels * TAPS, 0.5f),
                                 .v_conv = bench_random(b, OCT_CUDA_F32, channels * TAPS, 0.5f),
                                 .a_log = bench_random(b, OCT_CUDA_F32, heads, 0.5f),
                                 .dt_bias = bench_random(b, OCT_CUDA_F32, channels, 1),
                                 .decay_bound = -5},
                         .states = bench_random(b, OCT_CUDA_F32, n * channels * WIDTH, 0.1f),
                         .state_stride = channels * WIDTH,
                         .conv = bench_random(b, OCT_CUDA_BF16, n * 3 * (TAPS - 1) * channels, 1),
                         .conv_stride = 3 * (TAPS - 1) * channels,
                         .state_of = set->batch.seq_slot,
                         .state_of_stride = 1,
                         .q = bench_random(b, OCT_CUDA_BF16, 3 * size, 1),
                         .z = bench_random(b, OCT_CUDA_BF16, size, 1),
                         .gate = bench_random(b, OCT_CUDA_BF16, size, 1),
                         .beta = bench_random(b, OCT_CUDA_BF16, tokens * heads, 1),
                         .norm = bench_random(b, OCT_CUDA_BF16, WIDTH, 1),
                         .norm_eps = 1e-5f,
                         .out = bench_room(size * 2),
                         .q_stride = 3 * channels,
                         .k_stride = 3 * channels,
                         .v_stride = 3 * channels,
                         .z_stride = channels,
                         .gate_stride = channels,
                         .beta_stride = heads,
                         .out_stride = channels};
  call->k = (const char *)call->q + channels * 2;
  call->v = (const char *)call->q + channels * 4;
  if (chunks)
    call->workspace_bytes = oct_cuda_kda_workspace(&b->queue, call);
  call->workspace = bench_room(call->workspace_bytes);
  free(words);
}

double
bench_delta_tokens(bench *b, uint32_t heads, uint32_t n, uint32_t each, bool chunks) {
  double state = 4.0 * n * heads * WIDTH * WIDTH, tokens = (double)n * each;
  bench_item item = {.rate = b->bf16_rate, .call = call_delta};
  snprintf(item.name, sizeof item.name, "delta %s %u heads, %u x %u tokens",
           each == 1 ? "decode"
           : chunks  ? "prompt"
                     : "prompt one by one",
           heads, n, each);
  if (!bench_wants(b, item.name))
    return -1;
  /* Of a token and channel: q, k, v, z, gate and out; of a head: products of 16 tokens with each
   * other (2), with the state (2), with what changes (2) and of that with the state (1). */
  item.bytes = 2 * state + tokens * heads * WIDTH * 12.0;
  item.flops = tokens * heads * 2.0 * (3.0 * WIDTH * WIDTH + 4.0 * 16 * WIDTH);
  item.sets = bench_sets(item.bytes) < SETS_MAX ? bench_sets(item.bytes) : SETS_MAX;
  item.calls = each == 1 ? item.sets * (1 + 8 / item.sets) : item.sets;
  for (unsigned i = 0; i < item.sets; i++)
    make_set(b, &room[i], heads, n, each, chunks);
  double seconds = bench_run(b, &item);
  if (each == 1 && seconds > 0) {
    size_t bytes = (size_t)state;
    bench_item copy = item;
    copy.call = call_copy;
    copy.context = &bytes;
    copy.bytes = 2 * state;
    snprintf(copy.name, sizeof copy.name, "  its states copied, %u x %u heads", n, heads);
    for (unsigned i = 0; i < item.sets; i++)
      room[i].copy = bench_room(bytes);
    double floor = bench_run(b, &copy);
    if (!b->quiet)
      printf("  a decode takes %.2f times that\n", seconds / floor);
  }
  bench_free_all();
  return seconds;
}

void
bench_delta(bench *b) {
  static const uint32_t batches[] = {1, 8, 64, 256}, heads[] = {96, 12};
  for (unsigned h = 0; h < 2; h++) {
    for (unsigned i = 0; i < sizeof batches / sizeof *batches; i++)
      bench_delta_tokens(b, heads[h], batches[i], 1, false);
    for (unsigned chunks = 0; chunks < 2; chunks++) {
      bench_delta_tokens(b, heads[h], 1, 8192, chunks != 0);
      bench_delta_tokens(b, heads[h], 8, 1024, chunks != 0);
    }
  }
}
