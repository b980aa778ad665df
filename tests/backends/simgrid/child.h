/* Runs a test's body in a child process: SimGrid has one engine per process. */
#ifndef OCT_TESTS_SIMGRID_CHILD_H
#define OCT_TESTS_SIMGRID_CHILD_H

#include <glib.h>

/* Fails the test when body(arg) does not return in the child. Its last *out_size bytes at `out`,
 * which body() fills in, come back (out may be NULL). Lines that it prints begin with "# ". */
void child_run(void (*body)(gpointer arg, gpointer out), gpointer arg, gpointer out,
               gsize out_size);

#endif
