/* Assertions that stay on in every build.
 *
 * oct_assert() states a programmer's promise: its failure is a bug in Octet, never the
 * consequence of input. It prints file, line and condition, and aborts. Anything that a user,
 * a file, a client or a device can cause is an error (GError or an event), not an assertion.
 */
#ifndef OCT_BASE_ASSERT_H
#define OCT_BASE_ASSERT_H

#include <glib.h>

#define oct_assert(condition)                                                                      \
  do {                                                                                             \
    if (G_UNLIKELY(!(condition)))                                                                  \
      oct_assert_failed(__FILE__, __LINE__, #condition);                                           \
  } while (0)

/* Prints the broken promise on stderr and aborts. Any thread. */
void oct_assert_failed(const char *file, int line, const char *condition) G_GNUC_NORETURN;

#endif
