/* Teacher-forced validation: a log whose times are the model's own prices, but for a known factor,
 * and logs that are none. */
#include <math.h>
#include <string.h>

#include <glib/gstdio.h>

#include "engine/model/expert-counts.h"
#include "sim/validate/report.h"
#include "sim/validate/steps.h"
#include "sim/validate/validate.h"
#include "tests/sim/cost/fixture.h"

static char *path;

#define HEAD "{\"octet_steps\":1,\"clock\":\"real\"}\n"
#define OPENED                                                                                     \
  "{\"opened\":1,\"tensor\":1,\"pipeline\":1,\"data\":1,\"decode_context\":1,"                     \
  "\"expert_parallel\":false,\"kv_dtype\":\"bfloat16\",\"block_size\":16,\"eager\":false,"         \
  "\"graph_max_batch\":256,\"label\":\"m\"}\n"

static char *counts_path;

static json_t *
validate(guint32 skip, GError **error) {
  const oct_steps_validation v = {
      .log = path, .model = "llama-3.1-8b", .node = "h200x1", .skip = skip};
  return oct_validate_steps(&v, error);
}

/* A step that takes `factor` of its price, after a gap; the engine knew what ended at `known`. */
static gint64
add_step(GString *log, const rig *r, const oct_step_shape *shape, const char *slices, double factor,
         gint64 begin, gint64 known) {
  gint64 end = begin + (gint64)((double)step_ns(r, shape) * factor);
  static guint number;
  g_string_append_printf(log,
                         "{\"step\":%u,\"instance\":1,\"known_ns\":%" G_GINT64_FORMAT
                         ",\"start_ns\":%" G_GINT64_FORMAT ",\"end_ns\":%" G_GINT64_FORMAT
                         ",\"gap_ns\":20000,\"domains\":[{\"rows\":%u,%s}]}\n",
                         ++number, known, begin, end, shape->domains[0].sample_rows, slices);
  return end;
}

static void
finds_a_known_error(void) {
  g_autoptr(GError) error = NULL;
  g_auto(rig) r = {0};
  rig_init(&r, "llama-3.1-8b", "h200x1", 1);
  r.profile->engine.graph_max_batch = 256; /* as the log says */
  rig_make(&r);
  g_autoptr(GString) log = g_string_new(HEAD OPENED);
  oct_step_shape prompt, decode;
  shape_prefill(&prompt, 1, 512, 0, 0);
  shape_decode(&decode, 2, 1000, 0);
  gint64 now = 1000, before = 0;
  /* The model asks for 4 % more than the prompts took, and as much as the decodes did. */
  for (guint i = 0; i < 20; i++) {
    gint64 end = add_step(log, &r, &prompt, "\"prefill\":[[512,0]]", 1 / 1.04, now, before);
    before = now;
    now = end + 20000;
    end = add_step(log, &r, &decode, "\"decode\":[999,999]", 1, now, before);
    before = now;
    now = end + 20000;
  }
  g_assert_true(g_file_set_contents(path, log->str, -1, NULL));
  json_t *part = validate(0, &error);
  g_assert_no_error(error);
  const json_t *tables = json_object_get(part, "tables");
  const json_t *rows = json_object_get(json_array_get(tables, 0), "rows");
  g_assert_cmpuint(json_array_size(rows), ==, 3); /* decodes, prompts, all */
  const json_t *decodes = json_array_get(rows, 0), *prompts = json_array_get(rows, 1);
  g_assert_cmpfloat_with_epsilon(json_number_value(json_array_get(decodes, 3)), 0, 0.01);
  g_assert_cmpfloat_with_epsilon(json_number_value(json_array_get(prompts, 3)), 4, 0.01);
  g_assert_cmpfloat_with_epsilon(json_number_value(json_array_get(prompts, 5)), 4, 0.01);
  g_assert_cmpfloat_with_epsilon(oct_validate_got(part, "teacher-forced steps, p90"), 0.04, 1e-4);
  /* The same by what is in a step. */
  const json_t *where = json_object_get(json_array_get(tables, 1), "rows");
  g_assert_cmpuint(json_array_size(where), ==, 2);
  g_assert_cmpstr(json_string_value(json_array_get(json_array_get(where, 0), 0)), ==,
                  "decodes: 2 to 8, context 257 to 1024");
  g_assert_cmpstr(json_string_value(json_array_get(json_array_get(where, 1), 0)), ==,
                  "with 257 to 1024 tokens of prompts");
  g_assert_cmpfloat_with_epsilon(json_number_value(json_array_get(json_array_get(where, 1), 3)), 4,
                                 0.01);
  /* The device was idle for 20 us before each step. */
  const json_t *idle = json_object_get(json_array_get(tables, 2), "rows");
  g_assert_cmpfloat_with_epsilon(json_number_value(json_array_get(json_array_get(idle, 0), 1)), 20,
                                 1e-6);
  json_decref(part);
  /* Left out, the first steps are not scored. */
  part = validate(39, &error);
  g_assert_no_error(error);
  rows = json_object_get(json_array_get(json_object_get(part, "tables"), 0), "rows");
  g_assert_cmpuint(json_array_size(rows), ==, 2);
  json_decref(part);
  /* Where none is left there is no error to tell, and no aim that was met or missed. */
  g_assert_null(validate(1000, &error));
  g_assert_error(error, OCT_VALIDATE_ERROR, OCT_VALIDATE_ERROR_DATA);
  g_assert_nonnull(strstr(error->message, "no step is left to price without the first 1000"));
  g_clear_error(&error);
}

/* What all decodes of a log, 64 at a time, are off by in per cent, priced with `routing_file`. */
static double
decodes_off(oct_moe_kernel kernel, const char *routing_file) {
  g_autoptr(GError) error = NULL;
  const oct_steps_validation v = {.log = path,
                                  .model = "kimi-k3+2layers",
                                  .node = "h200x1",
                                  .moe_kernel = kernel,
                                  .routing_file = routing_file};
  json_t *part = oct_validate_steps(&v, &error);
  g_assert_no_error(error);
  const json_t *rows = json_object_get(json_array_get(json_object_get(part, "tables"), 0), "rows");
  double off = json_number_value(json_array_get(json_array_get(rows, 0), 3));
  json_decref(part);
  return off;
}

static void
prices_with_the_routing_that_was_seen(void) {
  g_autoptr(GError) error = NULL;
  g_auto(rig) r = {0};
  enum { EXPERTS = 896, USED = 100 };
  double counts[2 * EXPERTS] = {0};
  rig_load(&r, "kimi-k3+2layers", "h200x1");
  for (guint i = 0; i < USED; i++)
    counts[EXPERTS + 7 * i] = 5; /* the second layer; the first is dense */
  g_assert_true(oct_expert_counts_write(counts_path, r.spec, counts, 64, &error));
  g_autofree double *ranked = oct_expert_counts_ranked(r.spec, counts, &error);
  g_assert_no_error(error);
  r.profile->engine.graph_max_batch = 256;
  r.options.moe_kernel = OCT_MOE_KERNEL_OWN;
  r.options.routing_weights = ranked;
  r.options.n_routing_weights = EXPERTS;
  rig_make(&r);
  g_autoptr(GString) log = g_string_new(HEAD OPENED), slices = g_string_new("\"decode\":[999");
  oct_step_shape decode;
  shape_decode(&decode, 64, 1000, 0);
  for (guint i = 1; i < 64; i++)
    g_string_append(slices, ",999");
  g_string_append_c(slices, ']');
  for (guint i = 0; i < 4; i++)
    add_step(log, &r, &decode, slices->str, 1, 1000, 0);
  g_assert_true(g_file_set_contents(path, log->str, -1, NULL));
  g_assert_cmpfloat_with_epsilon(decodes_off(OCT_MOE_KERNEL_OWN, counts_path), 0, 0.01);
  /* Uniform routing touches 613 experts, not 100. */
  g_assert_cmpfloat(decodes_off(OCT_MOE_KERNEL_OWN, NULL), >, 40);
  g_assert_cmpfloat(fabs(decodes_off(OCT_MOE_KERNEL_MEASURED, counts_path)), >, 0.1);
  const oct_steps_validation v = {
      .log = path, .model = "llama-3.1-8b", .node = "h200x1", .routing_file = counts_path};
  g_assert_null(oct_validate_steps(&v, &error));
  g_assert_nonnull(strstr(error->message, counts_path));
  g_unlink(counts_path);
}

/* Experts that a step brought from the host belong to its price. */
static void
prices_missed_experts(void) {
  g_auto(rig) r = {0};
  rig_load(&r, "kimi-k3+2layers", "h200x1");
  r.profile->engine.graph_max_batch = 256;
  r.options.moe_kernel = OCT_MOE_KERNEL_OWN;
  rig_make(&r);
  g_autoptr(GString) log = g_string_new(HEAD OPENED);
  oct_step_shape decode;
  shape_decode(&decode, 1, 1000, 0);
  decode.expert_miss_bytes[0] = 50 * (double)oct_model_expert(r.spec, 1).bytes;
  for (guint i = 0; i < 4; i++)
    add_step(log, &r, &decode, "\"decode\":[999]}],\"missed\":[50],\"x\":[{\"y\":1", 1, 1000, 0);
  g_assert_true(g_file_set_contents(path, log->str, -1, NULL));
  g_assert_cmpfloat_with_epsilon(decodes_off(OCT_MOE_KERNEL_OWN, NULL), 0, 0.01);
}

static void
refuses_what_is_no_log(void) {
  static const struct {
    const char *text, *why;
  } cases[] = {
      {"", "an empty file"},
      {"step,ns\n", "not an object of JSON"},
      {"{\"octet_steps\":2}\n", "\"octet_steps\" is not a whole number from 1 to 1"},
      {HEAD "{\"step\":1,\"instance\":7,\"known_ns\":0,\"start_ns\":0,\"end_ns\":1,\"gap_ns\":0,"
            "\"domains\":[{\"rows\":1,\"decode\":[5]}]}\n",
       "never opened"},
      {HEAD OPENED "{\"step\":1,\"instance\":1,\"known_ns\":0,\"start_ns\":9,\"end_ns\":1,"
                   "\"gap_ns\":0,\"domains\":[{\"rows\":1,\"decode\":[5]}]}\n",
       "\"end_ns\""},
      {HEAD OPENED "{\"step\":1,\"instance\":1,\"known_ns\":0,\"start_ns\":0,\"end_ns\":1,"
                   "\"gap_ns\":0,\"domains\":[{\"rows\":1,\"prefill\":[[0,5]]}]}\n",
       "a slice is neither"},
      {HEAD OPENED "{\"step\":1,\"instance\":1,\"known_ns\":0,\"start_ns\":0,\"end_ns\":1,"
                   "\"gap_ns\":0,\"domains\":[{\"rows\":1}]}\n",
       "without slices"},
      {HEAD OPENED "{\"step\":1,\"instance\":1,\"known_ns\":0,\"start_ns\":0,\"end_ns\":1,"
                   "\"gap_ns\":0,\"domains\":[{\"rows\":1,\"decode\":[5]}],\"missed\":[1,2]}\n",
       "as many numbers as stages"},
      {HEAD OPENED "{\"step\":1,\"instance\":1,\"known_ns\":0,\"start_ns\":0,\"end_ns\":1,"
                   "\"gap_ns\":0,\"domains\":[{\"rows\":1,\"decode\":[5]}],\"missed\":[-1]}\n",
       "whole numbers"},
  };
  for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
    g_autoptr(GError) error = NULL;
    g_assert_true(g_file_set_contents(path, cases[i].text, -1, NULL));
    g_assert_null(validate(0, &error));
    g_assert_error(error, OCT_VALIDATE_ERROR, OCT_VALIDATE_ERROR_DATA);
    if (strstr(error->message, cases[i].why) == NULL)
      g_error("'%s' lacks '%s'", error->message, cases[i].why);
  }
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_autofree char *folder = g_dir_make_tmp("octet-steps-XXXXXX", NULL);
  path = g_build_filename(folder, "steps.jsonl", NULL);
  counts_path = g_build_filename(folder, "counts", NULL);
  g_test_add_func("/sim/validate/steps/a-known-error-is-found", finds_a_known_error);
  g_test_add_func("/sim/validate/steps/prices-are-of-the-routing-that-was-seen",
                  prices_with_the_routing_that_was_seen);
  g_test_add_func("/sim/validate/steps/missed-experts-are-priced", prices_missed_experts);
  g_test_add_func("/sim/validate/steps/what-is-no-log-is-refused", refuses_what_is_no_log);
  int failed = g_test_run();
  g_unlink(path);
  g_rmdir(folder);
  g_free(path);
  g_free(counts_path);
  return failed;
}
