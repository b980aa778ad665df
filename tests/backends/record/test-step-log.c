/* The step log: every finished step has its line, with positions that only results tell. */
#include <string.h>

#include <glib/gstdio.h>
#include <jansson.h>

#include "backends/record/step-log.h"
#include "backends/registry.h"
#include "tests/contract/rig.h"

static char *path;

static oct_world *
world(void) {
  g_autoptr(GError) error = NULL;
  g_autofree char *text = g_strdup_printf("record:steps=%s@mock:accept_rate=1", path);
  oct_world *logged = oct_backend_world_new(text, &error);
  g_assert_no_error(error);
  return logged;
}

/* A prompt of 20 tokens, a verified step of 1 + 3 tokens, then a decode whose position the device
 * knows alone: 24, all drafts having been accepted. */
static void
scenario(rig *r) {
  static const guint32 drafts[] = {1, 2, 3};
  oct_event event;
  rig_begin(r);
  rig_sequence(r, 0, 7, 20, 0);
  rig_prefill(r, 0, 0, 20, OCT_SAMPLE_LAST);
  rig_submit(r);
  rig_until(r, OCT_EVENT_STEP_DONE, 1, &event);
  rig_begin(r);
  rig_verify(r, 0, 20, drafts, 4);
  rig_submit(r);
  rig_begin(r);
  rig_decode(r, 0, OCT_POSITION_AFTER);
  rig_submit(r);
  rig_until(r, OCT_EVENT_STEP_DONE, 2, &event);
  rig_until(r, OCT_EVENT_STEP_DONE, 3, &event);
}

static GPtrArray *
read_lines(void) {
  g_autofree char *text = NULL;
  g_autoptr(GError) error = NULL;
  g_assert_true(g_file_get_contents(path, &text, NULL, &error));
  g_assert_no_error(error);
  GPtrArray *lines = g_ptr_array_new_with_free_func((GDestroyNotify)json_decref);
  g_auto(GStrv) parts = g_strsplit(text, "\n", -1);
  for (guint i = 0; parts[i] != NULL && *parts[i] != '\0'; i++) {
    json_t *line = json_loads(parts[i], 0, NULL);
    g_assert_nonnull(line);
    g_ptr_array_add(lines, line);
  }
  return lines;
}

static json_int_t
integer(const json_t *line, const char *key) {
  const json_t *value = json_object_get(line, key);
  g_assert_true(json_is_integer(value));
  return json_integer_value(value);
}

static char *
slices(const json_t *line, const char *kind) {
  const json_t *domain = json_array_get(json_object_get(line, "domains"), 0);
  const json_t *list = json_object_get(domain, kind);
  return list != NULL ? json_dumps(list, JSON_COMPACT) : NULL;
}

static void
logs_steps(void) {
  oct_instance_config c = fixture_config(fixture_dense(), OCT_PARALLEL_DEFAULT);
  rig_run(world(), &c, scenario);
  g_autoptr(GPtrArray) lines = read_lines();
  g_assert_cmpuint(lines->len, ==, 5);
  g_assert_cmpint(integer(lines->pdata[0], "octet_steps"), ==, OCT_STEP_LOG_VERSION);
  g_assert_cmpint(integer(lines->pdata[1], "tensor"), ==, 1);
  static const char *const kinds[] = {"prefill", "verify", "decode"};
  static const char *const expected[] = {"[[20,0]]", "[[4,20]]", "[24]"};
  static const guint64 rows[] = {1, 4, 1};
  json_int_t last = 0;
  for (guint i = 0; i < 3; i++) {
    const json_t *line = lines->pdata[2 + i];
    const json_t *domain = json_array_get(json_object_get(line, "domains"), 0);
    g_assert_cmpuint((guint64)integer(line, "step"), ==, i + 1);
    for (guint k = 0; k < 3; k++) {
      char *text = slices(line, kinds[k]);
      g_assert_cmpstr(text, ==, k == i ? expected[i] : NULL);
      free(text);
    }
    g_assert_cmpuint((guint64)integer(domain, "rows"), ==, rows[i]);
    g_assert_cmpint(integer(line, "start_ns"), >=, last);
    g_assert_cmpint(integer(line, "end_ns"), >, integer(line, "start_ns"));
    g_assert_cmpint(integer(line, "gap_ns"), ==, i > 0 ? integer(line, "start_ns") - last : 0);
    last = integer(line, "end_ns");
  }
  /* The third step was submitted before the second had ended. */
  g_assert_cmpint(integer(lines->pdata[4], "known_ns"), ==, integer(lines->pdata[2], "end_ns"));
}

/* A step that a fault takes has no line; the one that is run in its place has. */
static void
failing(rig *r) {
  oct_event event;
  rig_begin(r);
  rig_sequence(r, 0, 7, 20, 0);
  rig_prefill(r, 0, 0, 20, OCT_SAMPLE_LAST);
  rig_submit(r);
  rig_until(r, OCT_EVENT_FAULT, 0, &event);
  rig_begin(r);
  rig_sequence(r, 0, 7, 20, 0);
  rig_prefill(r, 0, 0, 20, OCT_SAMPLE_LAST);
  rig_submit(r);
  rig_until(r, OCT_EVENT_STEP_DONE, 2, &event);
}

static void
leaves_out_failed_steps(void) {
  g_autoptr(GError) error = NULL;
  g_autofree char *text = g_strdup_printf("record:steps=%s@fault:script=step/1@mock", path);
  oct_world *faulty = oct_backend_world_new(text, &error);
  g_assert_no_error(error);
  oct_instance_config c = fixture_config(fixture_dense(), OCT_PARALLEL_DEFAULT);
  rig_run(faulty, &c, failing);
  g_autoptr(GPtrArray) lines = read_lines();
  g_assert_cmpuint(lines->len, ==, 3);
  g_assert_cmpint(integer(lines->pdata[2], "step"), ==, 2);
}

/* Experts used and missed by the layers before `end_of_first` and from there on, of each step. */
static guint32 used[2][2], missed[2][2], end_of_first;

static void
missing(rig *r) {
  oct_event event;
  for (guint32 i = 0; i < 2; i++) {
    rig_begin(r);
    if (i == 0) {
      rig_sequence(r, 0, 7, 20, 0);
      rig_prefill(r, 0, 0, 20, OCT_SAMPLE_LAST);
    } else {
      rig_decode(r, 0, 20);
    }
    rig_submit(r);
    rig_until(r, OCT_EVENT_STEP_DONE, i + 1, &event);
    const oct_expert_use *uses = oct_result_experts(event.result);
    for (guint32 k = 0; k < event.result->n_experts; k++) {
      used[i][uses[k].layer >= end_of_first]++;
      missed[i][uses[k].layer >= end_of_first] += uses[k].missed;
    }
  }
}

static void
tells_experts_by_stage(void) {
  oct_parallel parallel = OCT_PARALLEL_DEFAULT;
  guint32 first;
  parallel.pipeline = 2;
  oct_instance_config c = fixture_config(fixture_hybrid(), parallel);
  c.memory.n_expert_slots = 2;
  c.report_experts = TRUE;
  oct_parallel_stage(c.spec, &parallel, 0, &first, &end_of_first);
  rig_run(world(), &c, missing);
  g_autoptr(GPtrArray) lines = read_lines();
  g_assert_cmpuint(lines->len, ==, 4);
  for (guint i = 0; i < 2; i++) {
    const json_t *all = json_object_get(lines->pdata[2 + i], "used"),
                 *list = json_object_get(lines->pdata[2 + i], "missed");
    g_assert_cmpuint(json_array_size(list), ==, 2);
    for (guint s = 0; s < 2; s++) {
      g_assert_cmpuint(missed[i][s], >, 0);
      g_assert_cmpuint(missed[i][s], <=, used[i][s]);
      g_assert_cmpint(json_integer_value(json_array_get(list, s)), ==, missed[i][s]);
      g_assert_cmpint(json_integer_value(json_array_get(all, s)), ==, used[i][s]);
    }
  }
}

static void
refuses_no_path(void) {
  g_autoptr(GError) error = NULL;
  g_assert_null(oct_backend_world_new("record:steps=@mock", &error));
  g_assert_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_CONFIG);
  g_clear_error(&error);
  g_assert_null(oct_backend_world_new("record:steps=/nonexistent/log@mock", &error));
  g_assert_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_CONFIG);
  g_assert_nonnull(strstr(error->message, "/nonexistent/log"));
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_autofree char *folder = g_dir_make_tmp("octet-steps-XXXXXX", NULL);
  path = g_build_filename(folder, "steps", NULL);
  g_test_add_func("/record/steps/every-step-has-its-line-with-positions", logs_steps);
  g_test_add_func("/record/steps/experts-are-told-by-stage", tells_experts_by_stage);
  g_test_add_func("/record/steps/failed-ones-are-left-out", leaves_out_failed_steps);
  g_test_add_func("/record/steps/a-path-that-cannot-be-is-refused", refuses_no_path);
  int failed = g_test_run();
  g_unlink(path);
  g_rmdir(folder);
  g_free(path);
  return failed;
}
