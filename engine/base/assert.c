#include "engine/base/assert.h"

#include <stdio.h>
#include <stdlib.h>

void
oct_assert_failed(const char *file, int line, const char *condition) {
  fprintf(stderr, "octet: internal error: %s:%d: %s\n", file, line, condition);
  abort();
}
