/* Fuzz target: any bytes as a scenario of a node, and as a list of claims without model or node. A
 * scenario that is accepted keeps its promises: actions in order, of things that the node has,
 * factors within their limits, arrivals that never go backwards; an error names its line.
 */
#include <string.h>

#include "engine/base/assert.h"
#include "sim/audit/audit.h"
#include "sim/scenario/scenario.h"
#include "tests/fuzz/replay.h"

static void
check_actions(const oct_scenario *scenario, const oct_scenario_options *options) {
  oct_time before = 0;
  guint gpus = oct_platform_gpus(options->platform);
  for (guint i = 0; i < scenario->actions->len; i++) {
    const oct_action *a = &g_array_index(scenario->actions, oct_action, i);
    oct_assert(a->at_ns >= before && a->event != NULL);
    before = a->at_ns;
    if (a->kind == OCT_ACTION_SCALE) {
      oct_assert(a->index < oct_platform_resource_count(options->platform));
      oct_assert(a->factor >= OCT_SCENARIO_FACTOR_MIN && a->factor <= 1);
    } else if (a->kind == OCT_ACTION_DRAIN) {
      oct_assert(a->index < options->n_replicas || a->index == OCT_ACTION_ALL);
    } else if (a->kind != OCT_ACTION_TELL) {
      oct_assert(a->index < gpus);
    }
  }
}

static void
check_warp(const oct_warp *warp) {
  gint64 before = -1;
  for (gint64 usual = 0; usual < G_GINT64_CONSTANT(1000000000000); usual += 7777777777) {
    gint64 at = oct_warp_at(warp, usual);
    oct_assert(at >= before);
    before = at;
  }
}

/* Claims that name a file would read it. */
static gboolean
names_a_file(const char *text) {
  return strstr(text, "model") != NULL || strstr(text, "node") != NULL;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static oct_profile *profile;
  static oct_platform *platform;
  if (platform == NULL) {
    profile = oct_profile_load("b300-hgx8", NULL, NULL, NULL);
    platform = oct_platform_new(profile, NULL);
  }
  g_autofree char *text = g_strndup(size > 0 ? (const char *)data : "", size);
  g_autoptr(GError) error = NULL;
  const oct_scenario_options options = {
      .platform = platform, .profile = profile, .n_replicas = 3, .seed = 1};
  g_autoptr(oct_scenario) scenario =
      oct_scenario_parse("fuzz.ini", size > 0 ? (const char *)data : "", size, &options, &error);
  oct_assert((scenario == NULL) == (error != NULL));
  oct_assert(error == NULL || g_str_has_prefix(error->message, "fuzz.ini:"));
  if (scenario != NULL) {
    check_actions(scenario, &options);
    if (scenario->warp != NULL)
      check_warp(scenario->warp);
  }
  g_clear_error(&error);
  if (names_a_file(text))
    return 0;
  json_t *report = oct_audit_text("fuzz.ini", text, strlen(text), NULL, &error);
  oct_assert((report == NULL) == (error != NULL));
  json_decref(report);
  return 0;
}
