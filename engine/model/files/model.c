#include "engine/model/files/model.h"

#include <string.h>

#include "engine/base/assert.h"

/* The config.json beside an open safetensors checkpoint. */
static oct_model_spec *
load_config(const oct_checkpoint *checkpoint, GError **error) {
  g_autofree char *folder = g_path_get_dirname(oct_checkpoint_path(checkpoint));
  g_autofree char *path = g_build_filename(folder, "config.json", NULL);
  if (g_file_test(path, G_FILE_TEST_EXISTS))
    return oct_model_spec_load(path, NULL, error);
  g_set_error(error, OCT_FILES_ERROR, OCT_FILES_ERROR_NOT_FOUND,
              "%s: no config.json beside this checkpoint", oct_checkpoint_path(checkpoint));
  return NULL;
}

oct_model_spec *
oct_model_spec_of(const oct_checkpoint *checkpoint, GError **error) {
  return oct_checkpoint_format(checkpoint) == OCT_LOAD_GGUF
             ? oct_model_spec_from_gguf(checkpoint, error)
             : load_config(checkpoint, error);
}

/* TRUE, with *error, for a name that is no file but a model of the zoo: those have no weights. */
static gboolean
is_zoo_only(const char *name, const char *zoo_dir, GError **error) {
  if (g_file_test(name, G_FILE_TEST_EXISTS))
    return FALSE;
  g_autoptr(oct_model_spec) spec = oct_model_spec_load(name, zoo_dir, NULL);
  if (spec != NULL)
    g_set_error(error, OCT_FILES_ERROR, OCT_FILES_ERROR_NOT_FOUND,
                "%s is a model of the zoo, which has no weights: name its checkpoint, or take "
                "random ones (load format dummy)",
                name);
  return spec != NULL;
}

static gboolean
open_files(oct_model_files *files, const char *name, oct_load_format format, oct_map_report *report,
           GError **error) {
  files->checkpoint = oct_checkpoint_open(name, format, error);
  if (files->checkpoint == NULL)
    return FALSE;
  files->spec = oct_model_spec_of(files->checkpoint, error);
  if (files->spec == NULL)
    return FALSE;
  files->map = oct_weight_map_new(files->spec, files->checkpoint, report, error);
  return files->map != NULL;
}

oct_model_files *
oct_model_files_open(const char *name, const char *zoo_dir, oct_load_format format, guint64 seed,
                     oct_map_report *report, GError **error) {
  oct_model_files *files = g_new0(oct_model_files, 1);
  gboolean ok;
  if (format != OCT_LOAD_DUMMY) {
    ok = !is_zoo_only(name, zoo_dir, error) && open_files(files, name, format, report, error);
  } else {
    files->spec = oct_model_spec_load(name, zoo_dir, error);
    files->map = files->spec != NULL ? oct_weight_map_new_dummy(files->spec, seed, error) : NULL;
    ok = files->map != NULL;
  }
  if (ok)
    return files;
  oct_model_files_close(files);
  return NULL;
}

void
oct_model_files_close(oct_model_files *files) {
  if (files == NULL)
    return;
  oct_weight_map_free(files->map);
  oct_checkpoint_close(files->checkpoint);
  oct_model_spec_free(files->spec);
  g_free(files);
}
