#include "sim/validate/errors-file.h"

#include <string.h>

#include "sim/errors.h"
#include "sim/profile.h"
#include "sim/replay/engine-preset.h"

#define SILICON "silicon"

/* ---------------------------------------------------------------- what it was made with */

static gint
compare_names(gconstpointer a, gconstpointer b) {
  return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static gboolean
add_folder(GChecksum *sum, const char *folder) {
  g_autoptr(GDir) dir = g_dir_open(folder, 0, NULL);
  g_autoptr(GPtrArray) names = g_ptr_array_new_with_free_func(g_free);
  const char *name;
  while (dir != NULL && (name = g_dir_read_name(dir)) != NULL)
    if (g_str_has_suffix(name, ".ini") && strcmp(name, OCT_ERRORS_FILE) != 0)
      g_ptr_array_add(names, g_strdup(name));
  g_ptr_array_sort(names, compare_names);
  for (guint i = 0; i < names->len; i++) {
    g_autofree char *path = g_build_filename(folder, names->pdata[i], NULL);
    g_autofree char *text = NULL;
    gsize size;
    if (!g_file_get_contents(path, &text, &size, NULL))
      return FALSE;
    g_checksum_update(sum, (const guchar *)text, (gssize)size);
  }
  return names->len > 0;
}

char *
oct_errors_presets_sha256(void) {
  g_autoptr(GChecksum) sum = g_checksum_new(G_CHECKSUM_SHA256);
  const char *profiles = oct_profile_dirs()[0];
  g_autofree char *fits = g_build_filename(profiles, OCT_PROFILE_FITS, NULL);
  g_autofree char *engines = g_build_filename(profiles, "..", "engines", NULL);
  if (!add_folder(sum, engines) || !add_folder(sum, fits))
    return NULL;
  return g_strdup(g_checksum_get_string(sum));
}

/* ---------------------------------------------------------------- writing */

static void
set_figure(GKeyFile *keys, const char *group, const char *name, const json_t *value) {
  if (!json_is_number(value))
    return;
  g_autofree char *text = json_is_integer(value)
                              ? g_strdup_printf("%" JSON_INTEGER_FORMAT, json_integer_value(value))
                              : g_strdup_printf("%.1f", json_real_value(value));
  g_key_file_set_value(keys, group, name, text);
}

static void
set_part(GKeyFile *keys, const json_t *part) {
  const char *group = json_string_value(json_object_get(part, "name")), *name;
  json_t *value;
  gsize i;
  json_array_foreach(json_object_get(part, "aims"), i, value)
      set_figure(keys, group, json_string_value(json_object_get(value, "what")),
                 json_object_get(value, "got_percent"));
  json_object_foreach(json_object_get(part, "figures"), name, value)
      set_figure(keys, group, name, value);
  if (strcmp(group, SILICON) == 0) {
    g_autofree char *sum = oct_errors_presets_sha256();
    g_key_file_set_value(keys, group, OCT_ERRORS_PRESETS, sum != NULL ? sum : "");
  }
}

/* The group as it was. */
static void
keep_part(GKeyFile *keys, GKeyFile *before, const char *group) {
  g_auto(GStrv) names = g_key_file_get_keys(before, group, NULL, NULL);
  for (guint i = 0; names != NULL && names[i] != NULL; i++) {
    g_autofree char *value = g_key_file_get_value(before, group, names[i], NULL);
    g_key_file_set_value(keys, group, names[i], value);
  }
}

static const json_t *
find_part(const json_t *report, const char *name) {
  const json_t *part;
  gsize i;
  json_array_foreach(json_object_get(report, "parts"), i, part) {
    if (strcmp(json_string_value(json_object_get(part, "name")), name) == 0)
      return part;
  }
  return NULL;
}

gboolean
oct_errors_file_write(const char *path, const json_t *report, GError **error) {
  static const char *const names[] = {"operators", SILICON, "trace-record"};
  g_autoptr(GKeyFile) keys = g_key_file_new();
  g_autoptr(GKeyFile) before = g_key_file_new();
  if (g_file_test(path, G_FILE_TEST_EXISTS) &&
      !g_key_file_load_from_file(before, path, G_KEY_FILE_NONE, error))
    return FALSE;
  for (gsize i = 0; i < G_N_ELEMENTS(names); i++) {
    const json_t *part = find_part(report, names[i]);
    if (part != NULL)
      set_part(keys, part);
    else
      keep_part(keys, before, names[i]);
    if (!g_key_file_has_group(keys, names[i]))
      continue;
    g_autofree char *about =
        g_strdup_printf(" octet validate --data DIR --%s: percents, and counts of rows", names[i]);
    (void)g_key_file_set_comment(keys, names[i], NULL, about, NULL);
  }
  gsize size;
  g_autofree char *text = g_key_file_to_data(keys, &size, NULL);
  g_autofree char *whole = g_strconcat(
      "# What predictions were off by: written by `octet validate --errors FILE`; do not "
      "edit. Reports and pages quote it.\n\n",
      text, NULL);
  return g_file_set_contents(path, whole, -1, error);
}
