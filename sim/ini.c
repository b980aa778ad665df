#include "sim/ini.h"

#include <string.h>

#include "engine/base/file.h"

G_DEFINE_QUARK(oct - ini - error - quark, oct_ini_error)

struct oct_ini {
  char *label;
  GKeyFile *keys;
  GPtrArray *groups; /* of oct_ini_group */
  GPtrArray *texts;  /* values, owned */
  char **names;      /* of the groups, owned */
  GPtrArray *key_lists;
};

static void
group_free(gpointer data) {
  oct_ini_group *group = data;
  g_array_unref(group->entries);
  g_free(group);
}

void
oct_ini_free(oct_ini *ini) {
  if (ini == NULL)
    return;
  g_free(ini->label);
  g_key_file_unref(ini->keys);
  g_ptr_array_unref(ini->groups);
  g_ptr_array_unref(ini->texts);
  g_ptr_array_unref(ini->key_lists);
  g_strfreev(ini->names);
  g_free(ini);
}

/* ---------------------------------------------------------------- errors */

G_GNUC_PRINTF(6, 0)
static gboolean
refuse(const oct_ini *ini, guint line, oct_ini_error code, GError **error, const char *where,
       const char *format, va_list args) {
  g_autofree char *what = g_strdup_vprintf(format, args);
  g_set_error(error, OCT_INI_ERROR, (int)code, "%s:%u: %s: %s", ini->label, line, where, what);
  return FALSE;
}

gboolean
oct_ini_refuse(const oct_ini *ini, const oct_ini_entry *entry, oct_ini_error code, GError **error,
               const char *format, ...) {
  va_list args;
  g_autofree char *where =
      g_strdup_printf("[%s] %s = %.120s", entry->group, entry->key, entry->value);
  va_start(args, format);
  refuse(ini, entry->line, code, error, where, format, args);
  va_end(args);
  return FALSE;
}

gboolean
oct_ini_refuse_group(const oct_ini *ini, const oct_ini_group *group, oct_ini_error code,
                     GError **error, const char *format, ...) {
  va_list args;
  g_autofree char *where = g_strdup_printf("[%s]", group->name);
  va_start(args, format);
  refuse(ini, group->line, code, error, where, format, args);
  va_end(args);
  return FALSE;
}

static gboolean broken(const oct_ini *ini, guint line, GError **error, const char *format, ...)
    G_GNUC_PRINTF(4, 5);
static gboolean
broken(const oct_ini *ini, guint line, GError **error, const char *format, ...) {
  va_list args;
  va_start(args, format);
  g_autofree char *what = g_strdup_vprintf(format, args);
  va_end(args);
  g_set_error(error, OCT_INI_ERROR, OCT_INI_ERROR_SYNTAX, "%s:%u: %s", ini->label, line, what);
  return FALSE;
}

/* ---------------------------------------------------------------- lines */

/* The lines of a text that GKeyFile has read: where each group and each key stands. */
static gboolean
find_lines(const oct_ini *ini, char **lines, GHashTable *places, GError **error) {
  g_autofree char *group = NULL;
  guint n_keys = 0;
  for (guint i = 0; lines[i] != NULL; i++) {
    char *line = g_strstrip(lines[i]);
    g_autofree char *place = NULL;
    if (*line == '\0' || *line == '#')
      continue;
    if (*line == '[') {
      const char *end = strchr(line, ']');
      g_free(group);
      group = g_strndup(line + 1, end != NULL ? (gsize)(end - line - 1) : strlen(line + 1));
      place = g_strdup_printf("[%s]", group);
      n_keys = 0;
    } else {
      char *equals = strchr(line, '=');
      g_autofree char *key = g_strndup(line, equals != NULL ? (gsize)(equals - line) : 0);
      place = g_strdup_printf("[%s] %s", group != NULL ? group : "", g_strstrip(key));
      if (++n_keys > OCT_INI_KEYS_MAX)
        return broken(ini, i + 1, error, "[%s] has more than %u keys", group, OCT_INI_KEYS_MAX);
    }
    if (g_hash_table_contains(places, place))
      return broken(ini, i + 1, error, "%s is there twice", place);
    g_hash_table_insert(places, g_steal_pointer(&place), GUINT_TO_POINTER(i + 1));
  }
  return TRUE;
}

static guint
line_of(GHashTable *places, const char *group, const char *key) {
  g_autofree char *place =
      key != NULL ? g_strdup_printf("[%s] %s", group, key) : g_strdup_printf("[%s]", group);
  return GPOINTER_TO_UINT(g_hash_table_lookup(places, place));
}

static void
fill_groups(oct_ini *ini, GHashTable *places) {
  for (char **name = ini->names; *name != NULL; name++) {
    oct_ini_group *group = g_new0(oct_ini_group, 1);
    char **keys = g_key_file_get_keys(ini->keys, *name, NULL, NULL);
    group->name = *name;
    group->line = line_of(places, *name, NULL);
    group->entries = g_array_new(FALSE, FALSE, sizeof(oct_ini_entry));
    g_ptr_array_add(ini->groups, group);
    g_ptr_array_add(ini->key_lists, keys);
    for (char **key = keys; *key != NULL; key++) {
      char *value = g_strstrip(g_key_file_get_value(ini->keys, *name, *key, NULL));
      g_ptr_array_add(ini->texts, value);
      oct_ini_entry entry = {*name, *key, value, line_of(places, *name, *key)};
      g_array_append_val(group->entries, entry);
    }
  }
}

/* ---------------------------------------------------------------- life cycle */

oct_ini *
oct_ini_parse(const char *label, const char *text, gsize size, GError **error) {
  g_autoptr(oct_ini) ini = g_new0(oct_ini, 1);
  g_autoptr(GError) reason = NULL;
  ini->label = g_strdup(label);
  ini->keys = g_key_file_new();
  ini->groups = g_ptr_array_new_with_free_func(group_free);
  ini->texts = g_ptr_array_new_with_free_func(g_free);
  ini->key_lists = g_ptr_array_new_with_free_func((GDestroyNotify)g_strfreev);
  if (size > OCT_INI_BYTES_MAX) {
    broken(ini, 1, error, "%" G_GSIZE_FORMAT " bytes are more than the limit of %u", size,
           OCT_INI_BYTES_MAX);
    return NULL;
  }
  if (memchr(text, '\0', size) != NULL || !g_utf8_validate(text, (gssize)size, NULL)) {
    broken(ini, 1, error, "not a text file");
    return NULL;
  }
  if (size == 0 || !g_key_file_load_from_data(ini->keys, text, size, G_KEY_FILE_NONE, &reason)) {
    broken(ini, 1, error, "%s", reason != NULL ? reason->message : "empty file");
    return NULL;
  }
  g_autofree char *copy = g_strndup(text, size);
  g_auto(GStrv) lines = g_strsplit(copy, "\n", -1);
  g_autoptr(GHashTable) places = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
  if (!find_lines(ini, lines, places, error))
    return NULL;
  gsize n;
  ini->names = g_key_file_get_groups(ini->keys, &n);
  if (n > OCT_INI_GROUPS_MAX) {
    broken(ini, 1, error, "%" G_GSIZE_FORMAT " groups are more than the limit of %u", n,
           OCT_INI_GROUPS_MAX);
    return NULL;
  }
  fill_groups(ini, places);
  return g_steal_pointer(&ini);
}

oct_ini *
oct_ini_load(const char *path, GError **error) {
  g_autofree char *text = NULL;
  g_autoptr(GError) reason = NULL;
  gsize size;
  if (!oct_file_read(path, OCT_INI_BYTES_MAX, &text, &size, &reason)) {
    g_set_error(error, OCT_INI_ERROR, OCT_INI_ERROR_READ, "%s: cannot read: %s", path,
                reason->message);
    return NULL;
  }
  return oct_ini_parse(path, text, size, error);
}

/* ---------------------------------------------------------------- inspect */

const char *
oct_ini_label(const oct_ini *ini) {
  return ini->label;
}

guint
oct_ini_n_groups(const oct_ini *ini) {
  return ini->groups->len;
}

const oct_ini_group *
oct_ini_group_at(const oct_ini *ini, guint index) {
  return g_ptr_array_index(ini->groups, index);
}

const oct_ini_entry *
oct_ini_find(const oct_ini_group *group, const char *key) {
  for (guint i = 0; i < group->entries->len; i++) {
    const oct_ini_entry *entry = &g_array_index(group->entries, oct_ini_entry, i);
    if (strcmp(entry->key, key) == 0)
      return entry;
  }
  return NULL;
}
