/* The sub-commands of octet, and what they share.
 *
 * A sub-command `name` lives in cli/cmd-<name>.c, which defines `int oct_cmd_<name>(int, char **)`
 * (argv[0] is its name; it returns one of OCT_EXIT_*), and has one row in OCT_COMMANDS below: that
 * row declares the function and lists it in `octet --help`. The row, the file's line in
 * cli/Makefile.am.inc and a test in tests/cli/ are all there is to add.
 *
 * Everything here runs in the main thread.
 */
#ifndef OCT_CLI_H
#define OCT_CLI_H

#include <glib.h>
#include <jansson.h>

/* What octet exits with: done; could not be done (the reason is on stderr); asked wrongly. */
enum { OCT_EXIT_OK = 0, OCT_EXIT_FAILED = 1, OCT_EXIT_USAGE = 2 };

/* clang-format off */
#define OCT_COMMANDS(ROW)                                                                          \
  ROW(audit,   "whether the claims of a deployment report are possible")                           \
  ROW(bench,   "load for a server, and what came of it")                                           \
  ROW(calibrate, "a node profile, measured on this machine")                                       \
  ROW(chat,    "a conversation with a model, in a terminal")                                       \
  ROW(compare, "two runs side by side, and which differences are more than chance")                \
  ROW(convert, "a checkpoint in another number format: AWQ, FP8, MXFP4")                           \
  ROW(eval,    "how well a model predicts a text, and how far it is from another")                 \
  ROW(help,    "how to use a command: octet help COMMAND; octet help backends")                   \
  ROW(model,   "the models that octet knows, and what they take: list, show, plan, verify")        \
  ROW(plan,    "the layout and the rate that serve a trace under objectives")                      \
  ROW(replay,  "a trace through the real scheduler on a simulated node")                           \
  ROW(serve,   "a model over OpenAI's API")                                                        \
  ROW(trace,   "request traces: gen, convert, info")                                               \
  ROW(validate, "predictions against measurements: how far each is off")
/* clang-format on */

#define OCT_COMMAND_DECLARE(name, summary) int oct_cmd_##name(int argc, char **argv);
OCT_COMMANDS(OCT_COMMAND_DECLARE)
#undef OCT_COMMAND_DECLARE

/* What a sub-command accepts. All strings are static. */
typedef struct oct_cli_usage {
  const char *command;         /* "replay" */
  const char *arguments;       /* "TRACE…", shown after the options; NULL when it takes none */
  const char *summary;         /* one sentence, above the options in --help */
  const char *details;         /* text below the options; NULL: none */
  const GOptionEntry *entries; /* NULL-terminated; NULL: no options but --help */
  int min_arguments, max_arguments; /* how many arguments besides options; max -1: any number */
} oct_cli_usage;

/* ns. A signal that comes again so soon is the same one: timeout of coreutils sends it to its child
 * and then to the whole group. */
#define OCT_CLI_ECHO_NS ((gint64)300000000)

enum { OCT_CLI_GO_ON = -1 };

/* Parses options, in any order with the arguments; "--" ends them. Returns OCT_CLI_GO_ON with
 * argv[1] … argv[argc - 1] the arguments that are left, or the status to exit with after it has
 * said why on stderr. `--help` prints and exits. */
int oct_cli_parse(const oct_cli_usage *usage, int *argc, char ***argv) G_GNUC_WARN_UNUSED_RESULT;

/* -tp, -pp and -dp, which GOption cannot parse, into their long names, in place; with or without
 * "=N" behind them. The strings that take their places are added to `kept`, which outlives argv and
 * frees them. */
void oct_cli_expand(int argc, char **argv, GPtrArray *kept);

/* The whole of a small file, ended by a NUL; owned. NULL with *error: it cannot be read, or goes on
 * past max_bytes, as a device may for ever. */
char *oct_cli_read_small(const char *path, gsize max_bytes, gsize *size,
                         GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Says on stderr what is wrong with the command line and where help is. Returns OCT_EXIT_USAGE. */
int oct_cli_refuse(const char *command, const char *format, ...) G_GNUC_PRINTF(2, 3);

/* Writes `value`, which it takes, to a file, or to stdout for "-". */
gboolean oct_cli_write_json(const char *path, json_t *value,
                            GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Says on stderr why the command failed. Takes `error`, which is set. Returns OCT_EXIT_FAILED. */
int oct_cli_fail(const char *command, GError *error);

#endif
