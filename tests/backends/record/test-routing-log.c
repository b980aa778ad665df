/* Counts of experts: what results say of a model's first instance, in a file that can be read. */
#include <string.h>

#include <glib/gstdio.h>

#include "backends/registry.h"
#include "engine/model/expert-counts.h"
#include "tests/contract/rig.h"

#define PROMPT 20

static char *path;
static double expected[8][FIXTURE_EXPERTS];

static oct_world *
world(const char *text) {
  g_autoptr(GError) error = NULL;
  g_autofree char *whole = g_strdup_printf("record:routing=%s@%s", path, text);
  oct_world *counting = oct_backend_world_new(whole, &error);
  g_assert_no_error(error);
  return counting;
}

static void
add_expected(const oct_event *event) {
  const oct_expert_use *uses = oct_result_experts(event->result);
  g_assert_cmpuint(event->result->n_experts, >, 0);
  for (guint32 i = 0; i < event->result->n_experts; i++)
    expected[uses[i].layer][uses[i].expert] += uses[i].tokens;
}

static void
scenario(rig *r) {
  oct_event event;
  rig_begin(r);
  rig_sequence(r, 0, 7, PROMPT, 0);
  rig_prefill(r, 0, 0, PROMPT, OCT_SAMPLE_LAST);
  rig_submit(r);
  rig_until(r, OCT_EVENT_STEP_DONE, 1, &event);
  add_expected(&event);
  rig_begin(r);
  rig_decode(r, 0, PROMPT);
  rig_submit(r);
  rig_until(r, OCT_EVENT_STEP_DONE, 2, &event);
  add_expected(&event);
}

static void
counts_what_results_say(void) {
  g_autoptr(GError) error = NULL;
  const oct_model_spec *spec = fixture_hybrid();
  oct_instance_config config = fixture_config(spec, OCT_PARALLEL_DEFAULT);
  config.report_experts = FALSE;
  memset(expected, 0, sizeof expected);
  g_assert_cmpuint(spec->n_layers, ==, G_N_ELEMENTS(expected));
  g_assert_cmpuint(oct_expert_counts_width(spec), ==, FIXTURE_EXPERTS);
  rig_run(world("mock"), &config, scenario);
  g_autofree double *counts = oct_expert_counts_read(path, spec, &error);
  g_assert_no_error(error);
  g_assert_cmpmem(counts, sizeof expected, expected, sizeof expected);
  g_autofree char *text = NULL, *head = NULL;
  g_assert_true(g_file_get_contents(path, &text, NULL, NULL));
  head = g_strdup_printf("# octet expert counts 1: %s, %d tokens\n", spec->name, PROMPT + 1);
  g_assert_true(g_str_has_prefix(text, head));
}

static int
opens_dense(oct_world *counting, void *arg) {
  g_autoptr(GError) error = NULL;
  oct_instance_config config = fixture_config(fixture_dense(), OCT_PARALLEL_DEFAULT);
  guint32 instance;
  (void)arg;
  g_assert_false(oct_world_open(counting, &config, &instance, &error));
  g_assert_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_CONFIG);
  g_assert_nonnull(strstr(error->message, "has no experts"));
  return 0;
}

static void
refuses_a_model_without_experts(void) {
  oct_world *counting = world("mock");
  g_assert_cmpint(oct_world_run(counting, opens_dense, NULL), ==, 0);
  oct_world_free(counting);
}

static void
refuses_no_path(void) {
  g_autoptr(GError) error = NULL;
  g_assert_null(oct_backend_world_new("record:routing=@mock", &error));
  g_assert_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_CONFIG);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_autofree char *folder = g_dir_make_tmp("octet-routing-XXXXXX", NULL);
  path = g_build_filename(folder, "counts", NULL);
  g_test_add_func("/record/routing/counts-are-what-results-say", counts_what_results_say);
  g_test_add_func("/record/routing/a-model-without-experts-is-refused",
                  refuses_a_model_without_experts);
  g_test_add_func("/record/routing/no-path-is-refused", refuses_no_path);
  int status = g_test_run();
  g_unlink(path);
  g_rmdir(folder);
  g_free(path);
  return status;
}
