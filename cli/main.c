/* octet: finds the sub-command in the table of cli.h and hands the rest of the line to it. */
#include "config.h"

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backends/registry.h"
#include "cli/cli.h"

typedef struct command {
  const char *name, *summary;
  int (*run)(int argc, char **argv);
} command;

#define ROW(name, summary) {#name, summary, oct_cmd_##name},
static const command commands[] = {OCT_COMMANDS(ROW)};
#undef ROW

static const command *
find_command(const char *name) {
  for (gsize i = 0; i < G_N_ELEMENTS(commands); i++)
    if (g_str_equal(commands[i].name, name))
      return &commands[i];
  return NULL;
}

static int
refuse_command(const char *name) {
  return oct_cli_refuse(NULL, "there is no command '%s'", name);
}

/* Output that could not be written (a full disk, a closed pipe) is a failure, not a success with
 * half a report. Runs at exit, also behind GOption's own exit after --help. */
static void
close_stdout(void) {
  if (fflush(stdout) == 0 && !ferror(stdout))
    return;
  perror("octet: standard output");
  _exit(OCT_EXIT_FAILED);
}

static void
print_version(void) {
  printf("octet %s\n", PACKAGE_VERSION);
#ifdef HAVE_SIMGRID
  printf("SimGrid: %s\n", SIMGRID_VERSION);
#else
  printf("SimGrid: not built in\n");
#endif
#ifdef HAVE_CUDA
  printf("CUDA: %s\n", CUDA_VERSION);
#else
  printf("CUDA: not built in\n");
#endif
}

static GOptionContext *
main_context(gboolean *version) {
  const GOptionEntry entries[] = {
      {"version", 0, 0, G_OPTION_ARG_NONE, version, "Print the version and what is built in", NULL},
      G_OPTION_ENTRY_NULL,
  };
  GOptionContext *context = g_option_context_new("COMMAND [ARGUMENT…]");
  /* The command's own options begin behind its name. */
  g_option_context_set_strict_posix(context, TRUE);
  g_option_context_add_main_entries(context, entries, NULL);
  g_option_context_set_summary(context,
                               "An LLM serving engine with a digital twin of its machine.");
  g_autoptr(GString) list = g_string_new("Commands:\n");
  for (gsize i = 0; i < G_N_ELEMENTS(commands); i++)
    g_string_append_printf(list, "  %-12s %s\n", commands[i].name, commands[i].summary);
  g_string_append(list, "\n'octet COMMAND --help' lists a command's options.\n"
                        "Exit status: 0 done, 1 failed, 2 wrong usage.");
  g_option_context_set_description(context, list->str);
  return context;
}

static void
print_backends(void) {
  printf("What --backend takes: NAME, or NAME:KEY=VALUE,KEY=VALUE; those with @ wrap another.\n");
  const oct_backend_info *info;
  for (guint i = 0; (info = oct_backend_info_at(i)) != NULL; i++) {
    printf("\n%s%s: %s\n", info->name, info->wraps ? "@" : "", info->summary);
    for (const oct_backend_key *key = info->keys; key->name != NULL; key++)
      printf("  %-15s %s\n", key->name, key->meaning);
  }
}

int
oct_cmd_help(int argc, char **argv) {
  static const oct_cli_usage usage = {
      .command = "help",
      .arguments = "[COMMAND | backends]",
      .summary = "Shows how to use octet, or one of its commands; backends: what --backend takes.",
      .max_arguments = 1,
  };
  int status = oct_cli_parse(&usage, &argc, &argv);
  if (status != OCT_CLI_GO_ON)
    return status;
  if (argc < 2) {
    gboolean version;
    g_set_prgname("octet");
    g_autoptr(GOptionContext) context = main_context(&version);
    g_autofree char *text = g_option_context_get_help(context, TRUE, NULL);
    g_print("%s", text);
    return OCT_EXIT_OK;
  }
  if (strcmp(argv[1], "backends") == 0) {
    print_backends();
    return OCT_EXIT_OK;
  }
  const command *found = find_command(argv[1]);
  if (!found)
    return refuse_command(argv[1]);
  char help[] = "--help";
  char *line[] = {argv[1], help, NULL};
  return found->run(2, line);
}

int
main(int argc, char **argv) {
  /* For the characters of help texts only: numbers are read and written the same everywhere. */
  setlocale(LC_CTYPE, "");
  atexit(close_stdout);
  gboolean version = FALSE;
  g_set_prgname("octet");
  g_autoptr(GOptionContext) context = main_context(&version);
  g_autoptr(GError) error = NULL;
  if (!g_option_context_parse(context, &argc, &argv, &error))
    return oct_cli_refuse(NULL, "%s", error->message);
  if (version) {
    print_version();
    return OCT_EXIT_OK;
  }
  if (argc < 2)
    return oct_cli_refuse(NULL, "which command?");
  const command *found = find_command(argv[1]);
  if (!found)
    return refuse_command(argv[1]);
  return found->run(argc - 1, argv + 1);
}
