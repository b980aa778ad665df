/* What the sub-commands share: option parsing with one way to refuse, and one way to fail. */
#include "cli/cli.h"

#include <errno.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const char *
plural(int n) {
  return n == 1 ? "" : "s";
}

static int
check_count(const oct_cli_usage *usage, int n_given) {
  int min = usage->min_arguments, max = usage->max_arguments;
  const char *wanted = usage->arguments ? usage->arguments : "";
  if (n_given < min)
    return oct_cli_refuse(usage->command, "%d argument%s given, at least %d wanted: %s", n_given,
                          plural(n_given), min, wanted);
  if (max >= 0 && n_given > max)
    return oct_cli_refuse(usage->command, "%d argument%s given, at most %d wanted%s%s", n_given,
                          plural(n_given), max, *wanted ? ": " : "", wanted);
  return OCT_CLI_GO_ON;
}

/* GOption leaves the "--" that ends the options in place when a dashed argument follows it. */
static void
drop_separator(int *argc, char **argv) {
  int i = 1;
  while (i < *argc && !g_str_equal(argv[i], "--"))
    i++;
  if (i == *argc)
    return;
  for (; i < *argc; i++) /* argv[*argc] is the NULL at the end */
    argv[i] = argv[i + 1];
  (*argc)--;
}

/* GOption drops what stands behind the '=' of an option that takes no value: such an argument is
 * returned, NULL when there is none. */
static const char *
find_needless_value(const GOptionEntry *entries, int argc, char **argv) {
  for (int i = 1; i < argc && !g_str_equal(argv[i], "--"); i++) {
    const char *value = strchr(argv[i], '=');
    if (value == NULL || !g_str_has_prefix(argv[i], "--"))
      continue;
    gsize size = (gsize)(value - argv[i]) - 2;
    for (const GOptionEntry *e = entries; e != NULL && e->long_name != NULL; e++)
      if (e->arg == G_OPTION_ARG_NONE && strlen(e->long_name) == size &&
          memcmp(e->long_name, argv[i] + 2, size) == 0)
        return argv[i];
  }
  return NULL;
}

int
oct_cli_parse(const oct_cli_usage *usage, int *argc, char ***argv) {
  const char *needless = find_needless_value(usage->entries, *argc, *argv);
  if (needless != NULL)
    return oct_cli_refuse(usage->command, "%s: this option takes no value", needless);
  g_autofree char *name = g_strdup_printf("octet %s", usage->command);
  g_set_prgname(name);
  g_autoptr(GOptionContext) context = g_option_context_new(usage->arguments);
  g_option_context_set_summary(context, usage->summary);
  g_option_context_set_description(context, usage->details);
  if (usage->entries)
    g_option_context_add_main_entries(context, usage->entries, NULL);
  g_autoptr(GError) error = NULL;
  if (!g_option_context_parse(context, argc, argv, &error))
    return oct_cli_refuse(usage->command, "%s", error->message);
  drop_separator(argc, *argv);
  return check_count(usage, *argc - 1);
}

void
oct_cli_expand(int argc, char **argv, GPtrArray *kept) {
  static const char *const shorts[][2] = {{"-tp", "tensor-parallel-size"},
                                          {"-pp", "pipeline-parallel-size"},
                                          {"-dp", "data-parallel-size"}};
  for (int i = 1; i < argc && !g_str_equal(argv[i], "--"); i++)
    for (gsize k = 0; k < G_N_ELEMENTS(shorts); k++)
      if (g_str_has_prefix(argv[i], shorts[k][0]) && (argv[i][3] == '\0' || argv[i][3] == '=')) {
        char *full = g_strdup_printf("--%s%s", shorts[k][1], argv[i] + 3);
        g_ptr_array_add(kept, full);
        argv[i] = full;
      }
}

char *
oct_cli_read_small(const char *path, gsize max_bytes, gsize *size, GError **error) {
  FILE *file = fopen(path, "rb");
  if (file == NULL) {
    g_set_error(error, G_FILE_ERROR, (gint)g_file_error_from_errno(errno), "%s: %s", path,
                g_strerror(errno));
    return NULL;
  }
  g_autofree char *text = g_malloc(max_bytes + 2);
  *size = fread(text, 1, max_bytes + 1, file);
  gboolean failed = ferror(file) != 0;
  fclose(file);
  if (failed || *size > max_bytes) {
    g_set_error(error, G_FILE_ERROR, G_FILE_ERROR_FAILED,
                failed ? "%s: cannot be read" : "%s: longer than %" G_GSIZE_FORMAT " bytes", path,
                max_bytes);
    return NULL;
  }
  text[*size] = '\0';
  return g_steal_pointer(&text);
}

int
oct_cli_refuse(const char *command, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  g_autofree char *message = g_strdup_vprintf(format, arguments);
  va_end(arguments);
  const char *blank = command ? " " : "", *name = command ? command : "";
  fprintf(stderr, "octet%s%s: %s\n", blank, name, message);
  fprintf(stderr, "Try 'octet%s%s --help'.\n", blank, name);
  return OCT_EXIT_USAGE;
}

int
oct_cli_fail(const char *command, GError *error) {
  fprintf(stderr, "octet %s: %s\n", command, error->message);
  g_error_free(error);
  return OCT_EXIT_FAILED;
}

gboolean
oct_cli_write_json(const char *path, json_t *value, GError **error) {
  gboolean to_stdout = g_str_equal(path, "-");
  FILE *file = to_stdout ? stdout : fopen(path, "we");
  gboolean ok = file != NULL && json_dumpf(value, file, JSON_INDENT(2)) == 0 &&
                fputc('\n', file) != EOF && fflush(file) == 0;
  if (file != NULL && !to_stdout && fclose(file) != 0)
    ok = FALSE;
  json_decref(value);
  if (!ok)
    g_set_error(error, G_FILE_ERROR, G_FILE_ERROR_FAILED, "%s cannot be written: %s", path,
                g_strerror(errno));
  return ok;
}
