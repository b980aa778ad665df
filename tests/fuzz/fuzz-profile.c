/* Fuzz target: any bytes as a node profile. A profile that is accepted must keep its promises:
 * indices within the node, grids that rise, fractions of the peak of at most 1, prices above their
 * roofline.
 */
#include <math.h>

#include "engine/base/assert.h"
#include "sim/cost/cost.h"
#include "tests/fuzz/replay.h"

static void
check_topology(const oct_profile *profile) {
  const oct_profile_topology *t = &profile->topology;
  oct_assert(profile->gpu.count >= 1 && profile->gpu.count <= OCT_PROFILE_GPUS_MAX);
  for (guint32 g = 0; g < profile->gpu.count; g++) {
    oct_assert(t->gpu_socket[g] < t->n_sockets);
    oct_assert(t->gpu_switch[g] < t->n_switches);
    oct_assert(t->gpu_root_complex[g] < t->n_root_complexes);
    guint8 peer = profile->nvlink.gpu_pair[g];
    oct_assert(peer < OCT_PROFILE_GPUS_MAX && profile->nvlink.gpu_pair[peer] == g);
  }
  for (guint32 s = 0; s < t->n_switches; s++)
    oct_assert(t->switch_socket[s] < t->n_sockets);
}

static void
check_curve(const oct_curve *curve) {
  oct_assert(curve->n <= OCT_PROFILE_POINTS_MAX);
  for (guint32 i = 0; i < curve->n; i++)
    oct_assert(curve->y[i] > 0 && (i == 0 || curve->x[i] > curve->x[i - 1]));
}

static void
check_prices(const oct_profile *profile) {
  static const guint64 shapes[][3] = {{1, 128, 64}, {17, 8192, 4096}, {5000, 333, 7168}};
  for (int math = 0; math < OCT_MATH_COUNT; math++)
    for (guint i = 0; i < G_N_ELEMENTS(shapes) && profile->gpu.flops[math] > 0; i++) {
      const double m = (double)shapes[i][0], n = (double)shapes[i][1], k = (double)shapes[i][2];
      double ns =
          oct_cost_gemm_ns(profile, (oct_math)math, shapes[i][0], shapes[i][1], shapes[i][2]);
      oct_assert(isfinite(ns) && ns * 1e-9 * profile->gpu.flops[math] >= 2 * m * n * k * 0.999999);
    }
  for (guint32 n = 2; n <= MIN(profile->gpu.count, 8u); n++)
    oct_assert(oct_cost_collective_ns(profile, OCT_COLLECTIVE_ALL_REDUCE, n, 1e6, TRUE) > 0);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  g_autoptr(GError) error = NULL;
  g_autoptr(oct_profile) profile =
      oct_profile_parse("fuzz.ini", size > 0 ? (const char *)data : "", size, NULL, NULL, &error);
  oct_assert((profile == NULL) == (error != NULL));
  if (profile != NULL) {
    check_topology(profile);
    for (int m = 0; m < OCT_MATH_COUNT; m++)
      check_curve(&profile->gemm_8192[m]);
    check_curve(&profile->moe_alltoall.dispatch);
    check_curve(&profile->collectives.nccl[OCT_COLLECTIVE_ALL_REDUCE][0]);
    check_prices(profile);
  }
  return 0;
}
