/* Sums over two ranks of as many rows as a prompt has, which by size go by kernels over peers'
 * memory or by NCCL: the logits are those of one rank. Ranks of one GPU make them another way. */
#include <cuda_runtime_api.h>
#include <math.h>

#include "backends/cuda/cuda.h"
#include "engine/base/rng.h"
#include "kernels/cuda/launches.h"
#include "tests/backends/cuda/wide.h"

#define VOCAB  128 /* a token's own logprob and 127 others are all of them */
#define HIDDEN 4096
#define MOST   1536 /* rows of 8 KiB: 12 MiB, and peers' buffers take 10.3 */
#define FEW    48
#define BLOCK  16

static oct_layer_spec layers[2] = {{0, 0}, {0, 0}};

static oct_model_spec
spec_of(void) {
  static char name[] = "sums";
  oct_model_spec s = wide_base(name, VOCAB, HIDDEN, layers, G_N_ELEMENTS(layers));
  s.attention[0] = (oct_attention_spec){
      .kind = OCT_ATTENTION_GQA, .n_heads = 8, .n_kv_heads = 2, .head_dim = 64};
  s.ffn[0] = (oct_ffn_spec){.kind = OCT_FFN_DENSE, .intermediate = 1024};
  return s;
}

typedef struct run {
  guint32 tensor;
  oct_cuda_launches launches;
  guint64 sums[2]; /* kernels over peers' memory, for MOST tokens and for FEW */
  float *logits;   /* [MOST + FEW, VOCAB] */
} run;

/* A prompt of n tokens in slot number - 1. */
static void
add_prompt(oct_step_builder *builder, guint64 number, guint32 n) {
  guint32 *ids, slot = (guint32)number - 1;
  oct_step_begin(builder, number, 1);
  oct_slot_open *o = oct_step_add_open(builder);
  o->slot = slot;
  o->prompt_tokens = n + 1;
  for (guint32 i = 0; i < n / BLOCK; i++)
    *oct_step_add_change(builder) =
        (oct_page_change){.slot = slot, .index = i, .page = slot * MOST / BLOCK + i};
  guint32 at = oct_step_add_tokens(builder, NULL, n + 1, &ids);
  for (guint32 i = 0; i <= n; i++)
    ids[i] = (guint32)(oct_mix64(1000 * number + i) % VOCAB);
  oct_slice *s = oct_step_add_slice(builder);
  s->slot = slot;
  s->source = OCT_SOURCE_IDS;
  s->sample = OCT_SAMPLE_NONE;
  s->n_prompt_logprobs = VOCAB - 1;
  s->n_tokens = n;
  s->tokens = at;
}

static int
run_inside(oct_world *world, void *arg) {
  static const guint16 devices[] = {0, 1};
  static const guint32 sizes[] = {MOST, FEW};
  run *r = arg;
  g_autoptr(GError) error = NULL;
  g_autoptr(oct_step_builder) builder = oct_step_builder_new();
  oct_model_spec spec = spec_of();
  oct_instance_config config = {.label = "sums",
                                .spec = &spec,
                                .parallel = OCT_PARALLEL_DEFAULT,
                                .devices = devices,
                                .kv_dtype = OCT_DTYPE_BF16,
                                .block_size = BLOCK,
                                .depth = 2,
                                .max_slots = 2,
                                .max_batched_tokens = MOST,
                                .seed = 1};
  oct_event event;
  guint32 instance;
  config.parallel.tensor = r->tensor;
  config.memory.n_groups = 1;
  config.memory.groups[0] = (oct_pool_plan){.n_device = 2 * MOST / BLOCK};
  gboolean accepted = oct_world_open(world, &config, &instance, &error);
  g_assert_no_error(error);
  g_assert_true(accepted);
  wide_next(world, &event, OCT_EVENT_OPENED);
  for (guint i = 0, row = 0; i < G_N_ELEMENTS(sizes); row += sizes[i++]) {
    guint64 before = oct_cuda_launches_of(&r->launches, "all_reduce");
    add_prompt(builder, i + 1, sizes[i]);
    oct_submit answer = oct_world_submit(world, instance, oct_step_end(builder), &error);
    g_assert_no_error(error);
    g_assert_cmpint(answer, ==, OCT_SUBMIT_OK);
    wide_next(world, &event, OCT_EVENT_STEP_DONE);
    r->sums[i] = oct_cuda_launches_of(&r->launches, "all_reduce") - before;
    const oct_logprob *l = oct_result_logprobs(event.result);
    for (gsize at = 0; at < (gsize)sizes[i] * VOCAB; at++, l++)
      r->logits[(row + at / VOCAB) * VOCAB + l->token] = l->logprob;
  }
  oct_world_close(world, instance);
  return 0;
}

/* FALSE: skipped. */
static gboolean
run_on(run *r) {
  g_autoptr(GError) error = NULL;
  oct_cuda_options options;
  oct_cuda_options_default(&options);
  options.devices = 2;
  options.launches = &r->launches;
  oct_world *world = oct_cuda_world_new(&options, &error);
  if (world == NULL) {
    g_assert_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_DEVICE);
    g_test_skip(error->message);
    return FALSE;
  }
  r->logits = g_new0(float, (gsize)(MOST + FEW) * VOCAB);
  (void)oct_world_run(world, run_inside, r);
  oct_world_free(world);
  return TRUE;
}

/* |a - b| / |b| of logits, which have no fixed zero: each row without its mean. */
static double
distance(const float *a, const float *b, gsize rows) {
  double off = 0, all = 0;
  for (gsize row = 0; row < rows; row++, a += VOCAB, b += VOCAB) {
    double mean_a = 0, mean_b = 0;
    for (guint i = 0; i < VOCAB; i++) {
      mean_a += (double)a[i] / VOCAB;
      mean_b += (double)b[i] / VOCAB;
    }
    for (guint i = 0; i < VOCAB; i++) {
      double wanted = (double)b[i] - mean_b, error = (double)a[i] - mean_a - wanted;
      off += error * error;
      all += wanted * wanted;
    }
  }
  return sqrt(off / all);
}

static void
large_and_small_sums_are_right(void) {
  g_autofree run *one = g_new0(run, 1), *two = g_new0(run, 1);
  int n_gpus = 0;
  one->tensor = 1;
  two->tensor = 2;
  if (!run_on(one) || !run_on(two))
    return;
  const gsize split = (gsize)MOST * VOCAB;
  double large = distance(two->logits, one->logits, MOST);
  double small = distance(two->logits + split, one->logits + split, FEW);
  g_test_message("of %d tokens %.2e, of %d %.2e", MOST, large, FEW, small);
  g_assert_cmpfloat(large, <, 2e-2);
  g_assert_cmpfloat(small, <, 2e-2);
  g_free(one->logits);
  g_free(two->logits);
  if (cudaGetDeviceCount(&n_gpus) != cudaSuccess || n_gpus < 2) {
    g_test_skip("one GPU, on which ranks add up without NCCL");
    return;
  }
  g_assert_cmpuint(two->sums[0], ==, 0);
  g_assert_cmpuint(two->sums[1], >, 0);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/cuda/sums/large-and-small-ones-are-right", large_and_small_sums_are_right);
  return g_test_run();
}
