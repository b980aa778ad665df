/* Waiting for a device while an instance opens: what is sent arrives, and a device that stands
 * still is told of at the deadline, not waited for. */
#include <string.h>

#include "backends/cuda/glue.h"
#include "backends/cuda/model.h"
#include "engine/base/rng.h"

#define DEADLINE_NS ((gint64)200000000)
#define HANG_NS     ((gint64)2000000000)

typedef struct fixture {
  oct_model_spec spec;
  oct_instance_config config;
  oct_cuda_options options;
  guint16 devices[1];
  oct_cuda_group group;
  oct_cuda_rank rank;
  oct_cuda_upload *upload;
} fixture;

/* FALSE: the test is skipped. */
static gboolean
set_up(fixture *f) {
  int n = 0;
  memset(f, 0, sizeof *f);
  if (cudaGetDeviceCount(&n) != cudaSuccess || n == 0) {
    g_test_skip("no GPU");
    return FALSE;
  }
  f->spec.n_layers = 1;
  f->config = (oct_instance_config){
      .spec = &f->spec, .parallel = OCT_PARALLEL_DEFAULT, .devices = f->devices};
  oct_cuda_options_default(&f->options);
  f->options.deadline_ns = DEADLINE_NS;
  oct_cuda_group_init(&f->group, &f->config, &f->options, (guint32)n);
  g_assert_true(oct_cuda_rank_open(&f->rank, &f->group, 0));
  f->upload = oct_cuda_upload_new(&f->rank);
  g_assert_nonnull(f->upload);
  return TRUE;
}

static void
tear_down(fixture *f) {
  oct_cuda_upload_free(f->upload);
  g_assert_true(oct_cuda_rank_rest(&f->rank)); /* once it moves again */
  g_assert_true(oct_cuda_rank_close(&f->rank, TRUE));
  oct_cuda_group_clear(&f->group);
}

/* More than the two staging buffers hold. */
static void
test_bytes(void) {
  const gsize bytes = 2 * OCT_CUDA_STAGING_BYTES + 12;
  fixture f;
  if (!set_up(&f))
    return;
  g_autofree guint32 *sent = g_malloc(bytes), *got = g_malloc0(bytes);
  for (gsize i = 0; i < bytes / sizeof *sent; i++)
    sent[i] = (guint32)oct_mix64(i);
  void *to = oct_cuda_alloc(&f.rank, bytes, "a table");
  g_assert_nonnull(to);
  g_assert_true(oct_cuda_upload_bytes(f.upload, to, sent, bytes));
  g_assert_true(oct_cuda_upload_finish(f.upload));
  g_assert_cmpint(cudaMemcpy(got, to, bytes, cudaMemcpyDefault), ==, cudaSuccess);
  g_assert_cmpmem(got, bytes, sent, bytes);
  g_assert_false(f.rank.failed);
  tear_down(&f);
}

static void
test_hang(void) {
  const gsize bytes = 2 * OCT_CUDA_STAGING_BYTES + 12;
  fixture f;
  if (!set_up(&f))
    return;
  g_autofree guint8 *sent = g_malloc0(bytes);
  void *to = oct_cuda_alloc(&f.rank, bytes, "a table");
  g_assert_nonnull(to);
  gint64 began = g_get_monotonic_time();
  g_assert_cmpint(oct_glue_fault(f.rank.copy_in, HANG_NS), ==, 0);
  g_assert_false(oct_cuda_upload_bytes(f.upload, to, sent, bytes));
  g_assert_nonnull(strstr(f.group.message, "takes longer than 0.2 s"));
  g_assert_true(f.rank.failed);
  /* Its buffers are still being read: they are not waited for either. */
  oct_cuda_upload_free(f.upload);
  f.upload = NULL;
  oct_cuda_release(&f.rank, to);
  gint64 took_ns = (g_get_monotonic_time() - began) * 1000;
  g_test_message("told of after %.3f s", (double)took_ns * 1e-9);
  g_assert_cmpint(took_ns, >=, DEADLINE_NS);
  g_assert_cmpint(took_ns, <, HANG_NS / 2);
  tear_down(&f);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/cuda/rank/a-table-comes-whole", test_bytes);
  g_test_add_func("/cuda/rank/opening-gives-a-hanging-device-up-at-the-deadline", test_hang);
  return g_test_run();
}
