/* The sub-commands of octet. Each lives in cli/cmd-<name>.c and is one row of the table in
 * cli/main.c. argv[0] is the sub-command's name.
 */
#ifndef OCT_CLI_H
#define OCT_CLI_H

/* What octet exits with. */
enum { OCT_EXIT_OK = 0, OCT_EXIT_FAILED = 1, OCT_EXIT_USAGE = 2 };

#endif
