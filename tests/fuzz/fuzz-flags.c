/* Fuzz target: any bytes as a file of flags (--config). What is accepted are flags that there are,
 * each once unless it may be repeated; an error names the file.
 */
#include <string.h>

#include "cli/cli.h"
#include "cli/config-file.h"
#include "engine/base/assert.h"
#include "tests/fuzz/replay.h"

static const uint8_t *bytes;
static gsize n_bytes;

/* Stands in for the reader of files. */
char *
oct_cli_read_small(const char *path, gsize max_bytes, gsize *size, GError **error) {
  (void)path;
  (void)error;
  *size = MIN(n_bytes, max_bytes);
  char *text = g_malloc(*size + 1);
  if (*size > 0)
    memcpy(text, bytes, *size);
  text[*size] = '\0';
  return text;
}

static const GOptionEntry entries[] = {
    {.long_name = "port", .arg = G_OPTION_ARG_INT},
    {.long_name = "host", .arg = G_OPTION_ARG_STRING},
    {.long_name = "enable-log-requests", .arg = G_OPTION_ARG_NONE},
    {.long_name = "no-enable-prefix-caching", .arg = G_OPTION_ARG_NONE},
    {.long_name = "served-model-name", .arg = G_OPTION_ARG_STRING_ARRAY},
    {0}};

/* A switch may be said by its opposite. */
static gboolean
is_flag(const char *flag, const GOptionEntry *entry) {
  gboolean opposed = g_str_has_prefix(entry->long_name, "no-");
  g_autofree char *itself = g_strconcat("--", entry->long_name, NULL);
  g_autofree char *opposite = opposed ? g_strconcat("--", entry->long_name + 3, NULL)
                                      : g_strconcat("--no-", entry->long_name, NULL);
  if (entry->arg == G_OPTION_ARG_NONE)
    return strcmp(flag, itself) == 0 || strcmp(flag, opposite) == 0;
  return g_str_has_prefix(flag, itself) && flag[strlen(itself)] == '=';
}

static void
check_flags(const GPtrArray *flags) {
  guint n = 0;
  for (const GOptionEntry *e = entries; e->long_name != NULL; e++) {
    guint times = 0;
    for (guint i = 0; i < flags->len; i++)
      times += is_flag(flags->pdata[i], e) ? 1 : 0;
    oct_assert(times <= 1 || e->arg == G_OPTION_ARG_STRING_ARRAY);
    n += times;
  }
  oct_assert(n == flags->len);
  for (guint i = 0; i < flags->len; i++)
    oct_assert(strchr(flags->pdata[i], '\n') == NULL && g_utf8_validate(flags->pdata[i], -1, NULL));
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  bytes = data;
  n_bytes = size;
  g_autoptr(GError) error = NULL;
  g_autoptr(GPtrArray) flags = g_ptr_array_new_with_free_func(g_free);
  gboolean good = oct_config_file_read("c.yaml", entries, flags, &error);
  oct_assert(good == (error == NULL));
  oct_assert(good || g_str_has_prefix(error->message, "c.yaml:"));
  if (good)
    check_flags(flags);
  return 0;
}
