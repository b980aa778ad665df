/* Fuzz target: any text as a list of processors, with room for as many as the first byte says. A
 * list that is accepted keeps to its room, has no other characters, and reads the same when each of
 * its processors is named.
 */
#include <string.h>

#include "backends/cuda/numa.h"
#include "engine/base/assert.h"
#include "tests/fuzz/replay.h"

/* In exactly so much room, so that sanitizers see a write past its end. */
static guint
read_list(const char *text, guint most, guint32 **processors) {
  *processors = g_new(guint32, MAX(most, 1));
  guint n = oct_numa_processors(text, *processors, most);
  oct_assert(n <= most);
  return n;
}

static void
check_same(const guint32 *processors, guint n) {
  g_autoptr(GString) text = g_string_new(NULL);
  for (guint i = 0; i < n; i++)
    g_string_append_printf(text, "%s%u", i > 0 ? "," : "", processors[i]);
  g_autofree guint32 *again = NULL, *fewer = NULL;
  oct_assert(read_list(text->str, n, &again) == n);
  oct_assert(memcmp(again, processors, n * sizeof *again) == 0);
  oct_assert(read_list(text->str, n - 1, &fewer) == 0);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size == 0)
    return 0;
  g_autofree char *text = g_strndup((const char *)data + 1, size - 1);
  g_autofree guint32 *processors = NULL;
  guint n = read_list(text, data[0], &processors);
  oct_assert(n == 0 || strspn(text, "0123456789,-") == strlen(text));
  if (n > 0)
    check_same(processors, n);
  return 0;
}
