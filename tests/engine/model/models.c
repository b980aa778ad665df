#include "tests/engine/model/models.h"

#include <stdlib.h>
#include <string.h>

oct_model_spec *
load_zoo(const char *name) {
  g_autofree char *zoo = g_test_build_filename(G_TEST_DIST, "..", "engine", "model", "zoo", NULL);
  g_autoptr(GError) error = NULL;
  oct_model_spec *spec = oct_model_spec_load(name, zoo, &error);
  g_assert_no_error(error);
  return spec;
}

oct_model_spec *
load_small(const char *name) {
  g_autofree char *file = g_strconcat(name, ".json", NULL);
  g_autofree char *path =
      g_test_build_filename(G_TEST_DIST, "engine", "model", "configs", file, NULL);
  g_autoptr(GError) error = NULL;
  oct_model_spec *spec = oct_model_spec_load(path, NULL, &error);
  g_assert_no_error(error);
  return spec;
}

json_t *
zoo_json(const char *name) {
  g_autofree char *file = g_strconcat(name, ".json", NULL);
  g_autofree char *path =
      g_test_build_filename(G_TEST_DIST, "..", "engine", "model", "zoo", file, NULL);
  json_t *json = json_load_file(path, 0, NULL);
  g_assert_nonnull(json);
  return json;
}

oct_model_spec *
parse_json(const json_t *json, GError **error) {
  char *text = json_dumps(json, 0);
  oct_model_spec *spec = oct_model_spec_parse("test", text, strlen(text), error);
  free(text);
  return spec;
}

void
expect_refused(const json_t *json, int code, const char *part) {
  g_autoptr(GError) error = NULL;
  g_autoptr(oct_model_spec) spec = parse_json(json, &error);
  g_assert_null(spec);
  g_assert_error(error, OCT_MODEL_ERROR, code);
  if (strstr(error->message, part) == NULL)
    g_error("'%s' does not contain '%s'", error->message, part);
}
