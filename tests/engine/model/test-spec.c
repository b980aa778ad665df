/* Storage arithmetic, finding a model by name, and files that are not one. */
#include <glib/gstdio.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/engine/model/models.h"

static void
test_storage(void) {
  const struct {
    oct_dtype type;
    guint64 rows, columns, bytes;
  } cases[] = {
      {OCT_DTYPE_F32, 3, 5, 60},
      {OCT_DTYPE_BF16, 3, 5, 30},
      {OCT_DTYPE_F16, 3, 5, 30},
      {OCT_DTYPE_FP8, 3, 5, 15},
      {OCT_DTYPE_FP8_BLOCK, 256, 256, 65536 + 4 * 4},
      {OCT_DTYPE_FP8_BLOCK, 576, 7168, 576 * 7168 + 4 * 5 * 56},
      {OCT_DTYPE_FP8_BLOCK, 1, 1, 5},
      {OCT_DTYPE_MXFP4, 3072, 3584, 3072 * (1792 + 112)},
      {OCT_DTYPE_MXFP4, 2, 33, 2 * (17 + 2)},
      {OCT_DTYPE_NVFP4, 10, 64, 10 * (32 + 4)},
      {OCT_DTYPE_NVFP4, 1, 17, 9 + 2},
      {OCT_DTYPE_INT4_G128, 8, 256, 8 * 128 + 16 * 2 + 8},
      {OCT_DTYPE_INT4_G128, 1, 1, 1 + 2 + 1},
  };
  for (guint i = 0; i < G_N_ELEMENTS(cases); i++)
    g_assert_cmpuint(oct_storage_bytes(cases[i].type, cases[i].rows, cases[i].columns), ==,
                     cases[i].bytes);
  for (int type = OCT_DTYPE_F32; type < OCT_DTYPE_COUNT; type++) {
    g_assert_cmpuint(oct_storage_bytes((oct_dtype)type, 0, 100), ==, 0);
    g_assert_cmpuint(oct_storage_bytes((oct_dtype)type, 100, 0), ==, 0);
    g_assert_nonnull(oct_dtype_name((oct_dtype)type));
  }
}

static void
test_zoo_names(void) {
  g_auto(GStrv) names = oct_model_zoo_names(NULL);
  const char *const expected[] = {"deepseek-v3",
                                  "gpt-oss-120b",
                                  "kimi-k2",
                                  "kimi-k3",
                                  "kimi-linear-48b-a3b",
                                  "llama-3.1-405b",
                                  "llama-3.1-70b",
                                  "llama-3.1-8b",
                                  "mixtral-8x7b",
                                  "qwen3-235b-a22b",
                                  "qwen3-30b-a3b",
                                  "qwen3-32b",
                                  "smollm2-135m",
                                  NULL};
  g_assert_cmpstrv(names, expected);
  for (guint i = 0; expected[i] != NULL; i++) {
    g_autoptr(GError) error = NULL;
    g_autoptr(oct_model_spec) spec = oct_model_spec_load(expected[i], NULL, &error);
    g_assert_no_error(error);
    g_assert_cmpstr(spec->name, ==, expected[i]);
  }
  g_auto(GStrv) none = oct_model_zoo_names("/nonexistent");
  g_assert_cmpuint(g_strv_length(none), ==, 0);
  g_assert_cmpuint(g_strv_length((char **)oct_model_zoo_dirs()), ==, 2);
}

static void
expect_unloadable(const char *name, const char *zoo, int code, const char *part) {
  g_autoptr(GError) error = NULL;
  g_assert_null(oct_model_spec_load(name, zoo, &error));
  g_assert_error(error, OCT_MODEL_ERROR, code);
  if (strstr(error->message, part) == NULL)
    g_error("'%s' does not contain '%s'", error->message, part);
}

static void
test_not_found(void) {
  expect_unloadable("kimi-k9", NULL, OCT_MODEL_ERROR_NOT_FOUND, "kimi-k3");
  expect_unloadable("", NULL, OCT_MODEL_ERROR_NOT_FOUND, "model ''");
  expect_unloadable("../zoo/kimi-k3", NULL, OCT_MODEL_ERROR_NOT_FOUND, "model '../zoo/kimi-k3'");
  expect_unloadable("kimi-k3", "/nonexistent", OCT_MODEL_ERROR_NOT_FOUND, "empty");
  expect_unloadable("/nonexistent/config.json", NULL, OCT_MODEL_ERROR_NOT_FOUND, "neither");
}

/* A scratch folder, removed with its files at the end. */
static char *
make_folder(void) {
  char *folder = g_dir_make_tmp("octet-spec-XXXXXX", NULL);
  g_assert_nonnull(folder);
  return folder;
}

static void
remove_folder(const char *folder, const char *const *files) {
  for (; *files != NULL; files++) {
    g_autofree char *path = g_build_filename(folder, *files, NULL);
    g_remove(path);
  }
  g_assert_cmpint(g_rmdir(folder), ==, 0);
}

static void
test_paths(void) {
  g_autofree char *folder = make_folder();
  g_autofree char *config = g_build_filename(folder, "config.json", NULL);
  g_autofree char *other = g_build_filename(folder, "mine.json", NULL);
  g_autofree char *base = g_path_get_basename(folder);
  json_t *json = zoo_json("smollm2-135m");
  expect_unloadable(folder, NULL, OCT_MODEL_ERROR_NOT_FOUND, folder);
  g_assert_cmpint(json_dump_file(json, config, 0), ==, 0);
  g_assert_cmpint(json_dump_file(json, other, 0), ==, 0);
  json_decref(json);
  g_autoptr(oct_model_spec) by_folder = oct_model_spec_load(folder, NULL, NULL);
  g_autoptr(oct_model_spec) by_config = oct_model_spec_load(config, NULL, NULL);
  g_autoptr(oct_model_spec) by_file = oct_model_spec_load(other, NULL, NULL);
  g_autoptr(oct_model_spec) by_zoo = oct_model_spec_load("mine", folder, NULL);
  g_assert_cmpstr(by_folder->name, ==, base);
  g_assert_cmpstr(by_config->name, ==, base);
  g_assert_cmpstr(by_file->name, ==, "mine");
  g_assert_cmpstr(by_zoo->name, ==, "mine");
  remove_folder(folder, (const char *const[]){"config.json", "mine.json", NULL});
}

static void
test_bad_files(void) {
  g_autofree char *folder = make_folder();
  g_autofree char *path = g_build_filename(folder, "config.json", NULL);
  g_autofree char *huge = g_strnfill(2 * 1024 * 1024, ' ');
  g_assert_true(g_file_set_contents(path, "", 0, NULL));
  expect_unloadable(folder, NULL, OCT_MODEL_ERROR_PARSE, path);
  g_assert_true(g_file_set_contents(path,
                                    "\x7f"
                                    "ELF\0\0\0\0",
                                    8, NULL));
  expect_unloadable(folder, NULL, OCT_MODEL_ERROR_PARSE, path);
  g_assert_true(g_file_set_contents(path, huge, 2 * 1024 * 1024, NULL));
  expect_unloadable(folder, NULL, OCT_MODEL_ERROR_PARSE, "1048577 bytes, at most 1048576");
  g_assert_true(g_file_set_contents(path, "{\"model_type\": \"llama\"}", -1, NULL));
  expect_unloadable(folder, NULL, OCT_MODEL_ERROR_FIELD, "field vocab_size is missing");
  /* A pipe that nobody writes to is refused instead of waited for; so is a folder of that name. */
  g_remove(path);
  g_assert_cmpint(mkfifo(path, 0600), ==, 0);
  expect_unloadable(folder, NULL, OCT_MODEL_ERROR_PARSE, "not a regular file");
  g_remove(path);
  g_assert_cmpint(g_mkdir(path, 0700), ==, 0);
  expect_unloadable(folder, NULL, OCT_MODEL_ERROR_PARSE, "not a regular file");
  g_rmdir(path);
  remove_folder(folder, (const char *const[]){NULL});
}

static void
test_free(void) {
  oct_model_spec_free(NULL);
  /* An error may be ignored. */
  g_assert_null(oct_model_spec_parse("none", "", 0, NULL));
  g_assert_null(oct_model_spec_load("none", NULL, NULL));
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/model/spec/storage-counts-codes-and-scales", test_storage);
  g_test_add_func("/model/spec/zoo-lists-and-loads-its-models", test_zoo_names);
  g_test_add_func("/model/spec/a-model-not-found-is-named", test_not_found);
  g_test_add_func("/model/spec/loads-folders-files-and-zoo-names", test_paths);
  g_test_add_func("/model/spec/bad-files-are-refused", test_bad_files);
  g_test_add_func("/model/spec/accepts-null", test_free);
  return g_test_run();
}
