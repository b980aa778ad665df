/* What a model goes on with when devices are lost. */
#include "engine/sched/replan.h"

#include <string.h>

typedef struct bed {
  oct_model_spec *spec;
  oct_ledger_config config;
  oct_node_shape node;
} bed;

static void
bed_init(bed *b, const char *model, guint64 device_bytes, guint32 tensor, guint32 data) {
  g_autoptr(GError) error = NULL;
  memset(b, 0, sizeof *b);
  b->spec = oct_model_spec_load(model, NULL, &error);
  g_assert_no_error(error);
  oct_ledger_config_default(&b->config);
  b->config.spec = b->spec;
  b->config.parallel = OCT_PARALLEL_DEFAULT;
  b->config.parallel.tensor = tensor;
  b->config.parallel.data = data;
  b->config.max_num_seqs = 64;
  b->config.max_num_batched_tokens = 2048;
  b->config.max_model_len = 8192;
  b->config.depth = 2;
  b->config.device_bytes = device_bytes;
  b->node.n_devices = 8;
  b->node.memory_bytes = device_bytes;
  for (guint i = 0; i < 8; i++)
    b->node.socket[i] = (guint8)(i / 4);
}

static void
test_tensor(void) {
  bed b;
  oct_replan plan;
  g_autoptr(GError) error = NULL;
  bed_init(&b, "llama-3.1-70b", G_GUINT64_CONSTANT(150) << 30, 8, 1);
  b.node.taken[3] = TRUE;
  g_assert_true(oct_replan_make(&b.config, &b.node, 8, &plan, &error));
  /* 64 heads are not divisible by 7, 6 or 5. */
  g_assert_cmpuint(plan.parallel.tensor, ==, 4);
  g_assert_cmpuint(plan.parallel.pipeline, ==, 1);
  for (guint r = 0; r < 4; r++)
    g_assert_cmpuint(plan.devices[r], !=, 3);
  /* A replica that had four takes no more. */
  b.config.parallel.tensor = 4;
  g_assert_true(oct_replan_make(&b.config, &b.node, 4, &plan, &error));
  g_assert_cmpuint(oct_parallel_world(&plan.parallel), ==, 4);
  oct_model_spec_free(b.spec);
}

/* Memory decides: a model that needs seven of eight GPUs is cut into stages. */
static void
test_stages(void) {
  bed b;
  oct_replan plan;
  g_autoptr(GError) error = NULL;
  bed_init(&b, "llama-3.1-70b", G_GUINT64_CONSTANT(50) << 30, 8, 1);
  b.node.taken[0] = b.node.taken[1] = b.node.taken[2] = TRUE;
  g_assert_true(oct_replan_make(&b.config, &b.node, 8, &plan, &error));
  g_assert_cmpuint(plan.parallel.tensor, ==, 4);
  b.node.taken[3] = b.node.taken[4] = TRUE; /* three are left: 141 GB in 3 x 50 GiB x 0.92 */
  g_assert_false(oct_replan_make(&b.config, &b.node, 8, &plan, &error));
  g_assert_nonnull(strstr(error->message, "3 of 8 devices that are left"));
  oct_model_spec_free(b.spec);
}

static void
test_domains(void) {
  bed b;
  oct_replan plan;
  g_autoptr(GError) error = NULL;
  bed_init(&b, "qwen3-32b", G_GUINT64_CONSTANT(150) << 30, 4, 2);
  b.node.taken[7] = TRUE;
  g_assert_true(oct_replan_make(&b.config, &b.node, 8, &plan, &error));
  g_assert_cmpuint(plan.parallel.data, ==, 2);
  g_assert_cmpuint(plan.parallel.tensor, ==, 2);
  for (guint d = 1; d < 8; d++)
    b.node.taken[d] = TRUE;
  g_assert_true(oct_replan_make(&b.config, &b.node, 8, &plan, &error));
  g_assert_cmpuint(oct_parallel_world(&plan.parallel), ==, 1);
  b.node.taken[0] = TRUE;
  g_assert_false(oct_replan_make(&b.config, &b.node, 8, &plan, &error));
  oct_model_spec_free(b.spec);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/replan/most-tensor-ranks-that-are-legal", test_tensor);
  g_test_add_func("/replan/what-does-not-fit-is-refused", test_stages);
  g_test_add_func("/replan/domains-are-kept-while-they-fit", test_domains);
  return g_test_run();
}
