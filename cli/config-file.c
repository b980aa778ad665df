#include "cli/config-file.h"

#include <string.h>

#include "cli/cli.h"

typedef struct reader {
  const char *path;
  const GOptionEntry *entries;
  GPtrArray *flags;
  guint line;
  char *list; /* the flag whose items follow, NULL: none; owned */
  guint n_items;
  GPtrArray *seen; /* the entries of keys so far */
} reader;

static gboolean
G_GNUC_PRINTF(3, 4) refuse(const reader *r, GError **error, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  g_autofree char *what = g_strdup_vprintf(format, arguments);
  va_end(arguments);
  g_set_error(error, G_OPTION_ERROR, G_OPTION_ERROR_BAD_VALUE, "%s:%u: %s", r->path, r->line, what);
  return FALSE;
}

static const GOptionEntry *
find_entry(const reader *r, const char *name) {
  for (const GOptionEntry *e = r->entries; e->long_name != NULL; e++)
    if (strcmp(e->long_name, name) == 0)
      return e;
  return NULL;
}

/* A plain or quoted scalar; a comment may follow. NULL with *error. Owned. */
static char *
read_scalar(const reader *r, const char *text, GError **error) {
  char quote = text[0];
  if (quote == '"' || quote == '\'') {
    const char *end = strchr(text + 1, quote);
    const char *rest = end != NULL ? end + 1 + strspn(end + 1, " \t") : "";
    if (end == NULL || (*rest != '\0' && *rest != '#') ||
        memchr(text, '\\', (gsize)(end - text)) != NULL) {
      refuse(r, error, "a quoted value ends in its quote, on its line, without backslashes: %s",
             text);
      return NULL;
    }
    return g_strndup(text + 1, (gsize)(end - text - 1));
  }
  if (quote != '\0' && strchr("[]{}&*!|>%@`", quote) != NULL) {
    refuse(r, error, "of YAML, plain values and lists with '- ' are read only: %s", text);
    return NULL;
  }
  const char *comment = strstr(text, " #");
  char *value = comment != NULL ? g_strndup(text, (gsize)(comment - text)) : g_strdup(text);
  return g_strchomp(value);
}

/* `value` is what stands behind "key:", and not empty. */
static gboolean
add_flag(reader *r, const GOptionEntry *entry, const char *text, GError **error) {
  g_autofree char *value = read_scalar(r, text, error);
  if (value == NULL)
    return FALSE;
  if (entry->arg != G_OPTION_ARG_NONE) {
    g_ptr_array_add(r->flags, g_strdup_printf("--%s=%s", entry->long_name, value));
    return TRUE;
  }
  if (strcmp(value, "true") == 0)
    g_ptr_array_add(r->flags, g_strdup_printf("--%s", entry->long_name));
  else if (strcmp(value, "false") == 0)
    g_ptr_array_add(r->flags, g_str_has_prefix(entry->long_name, "no-")
                                  ? g_strdup_printf("--%s", entry->long_name + strlen("no-"))
                                  : g_strdup_printf("--no-%s", entry->long_name));
  else
    return refuse(r, error, "%s is true or false, not \"%s\"", entry->long_name, value);
  return TRUE;
}

static gboolean
end_list(reader *r, GError **error) {
  gboolean empty = r->list != NULL && r->n_items == 0;
  if (empty)
    refuse(r, error, "%s has no value", r->list);
  g_clear_pointer(&r->list, g_free);
  r->n_items = 0;
  return !empty;
}

static gboolean
read_item(reader *r, const char *text, GError **error) {
  if (r->list == NULL)
    return refuse(r, error, "an item of no list: %s", text);
  r->n_items++;
  return add_flag(r, find_entry(r, r->list), text, error);
}

static gboolean
read_key(reader *r, char *line, GError **error) {
  char *colon = strchr(line, ':');
  if (!end_list(r, error))
    return FALSE;
  if (colon == NULL || (colon[1] != '\0' && colon[1] != ' ' && colon[1] != '\t'))
    return refuse(r, error, "not \"key: value\": %s", line);
  *colon = '\0';
  g_autofree char *key = g_strdelimit(g_strdup(line), "_", '-');
  const GOptionEntry *entry = find_entry(r, key);
  const char *value = colon + 1 + strspn(colon + 1, " \t");
  if (entry == NULL)
    return refuse(r, error, "there is no flag --%s", key);
  if (g_ptr_array_find(r->seen, entry, NULL))
    return refuse(r, error, "%s is given twice", key);
  g_ptr_array_add(r->seen, (gpointer)entry);
  if (*value != '\0' && *value != '#')
    return add_flag(r, entry, value, error);
  if (entry->arg != G_OPTION_ARG_STRING_ARRAY)
    return refuse(r, error, "%s has no value", key);
  r->list = g_steal_pointer(&key);
  return TRUE;
}

static gboolean
read_line(reader *r, char *line, GError **error) {
  gsize indent = strspn(line, " ");
  char *text = g_strchomp(line + indent);
  r->line++;
  if (strchr(line, '\t') != NULL && strspn(line, " \t") > indent)
    return refuse(r, error, "a tab is no indentation");
  if (*text == '\0' || *text == '#' || strcmp(text, "---") == 0)
    return TRUE;
  if (g_str_has_prefix(text, "- "))
    return read_item(r, text + 2 + strspn(text + 2, " "), error);
  if (indent > 0)
    return refuse(r, error, "values within values are not read: %s", text);
  return read_key(r, text, error);
}

gboolean
oct_config_file_read(const char *path, const GOptionEntry *entries, GPtrArray *flags,
                     GError **error) {
  g_autofree char *text = NULL;
  gsize size;
  reader r = {.path = path, .entries = entries, .flags = flags};
  text = oct_cli_read_small(path, OCT_CONFIG_FILE_BYTES_MAX, &size, error);
  if (text == NULL)
    return FALSE;
  if (strlen(text) != size || !g_utf8_validate(text, (gssize)size, NULL)) {
    g_set_error(error, G_OPTION_ERROR, G_OPTION_ERROR_BAD_VALUE, "%s: not a text in UTF-8", path);
    return FALSE;
  }
  r.seen = g_ptr_array_new();
  g_auto(GStrv) lines = g_strsplit(text, "\n", -1);
  gboolean good = TRUE;
  for (char **line = lines; good && *line != NULL; line++)
    good = read_line(&r, *line, error);
  good = good && end_list(&r, error);
  g_free(r.list);
  g_ptr_array_unref(r.seen);
  return good;
}
