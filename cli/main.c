/* octet: picks the sub-command. */
#include "config.h"

#include <stdio.h>

#include "cli/cli.h"

int
main(void) {
  printf("octet %s\n", PACKAGE_VERSION);
  return OCT_EXIT_OK;
}
