/* The golden checkpoints on the processors: virtual clocks, and a real one. */
#include "tests/backends/golden-engine.h"

int
main(int argc, char **argv) {
  static const golden_world cpu = {
      .prefix = "/cpu/engine",
      .usual = "cpu:model=%s,threads=2,clock=virtual",
      .slow = "cpu:model=%s,threads=2,clock=virtual,fixed_ns=1000000",
      .real = "cpu:model=%s,threads=2,clock=real",
      .kimi_k3 = TRUE,
      .parallel = {
          .tensor = 1, .pipeline = 1, .data = 1, .decode_context = 1, .shard_latent = TRUE}};
  g_test_init(&argc, &argv, NULL);
  golden_engine_add(&cpu);
  return g_test_run();
}
