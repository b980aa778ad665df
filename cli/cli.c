/* What the sub-commands share: option parsing with one way to refuse, and one way to fail. */
#include "cli/cli.h"

#include <stdarg.h>
#include <stdio.h>

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

int
oct_cli_parse(const oct_cli_usage *usage, int *argc, char ***argv) {
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
