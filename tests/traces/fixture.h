/* Helpers of the tests of traces/. */
#ifndef OCT_TESTS_TRACES_FIXTURE_H
#define OCT_TESTS_TRACES_FIXTURE_H

#include "traces/trace.h"

/* A trace over the text, which must outlive it. Fails the test when it does not open. */
oct_trace *oct_test_open_text(const char *text, const oct_trace_options *options);

/* Owned copies of all rows (class names too), freed with the array. Fails the test on an error. */
GPtrArray *oct_test_read_all(oct_trace *trace);
/* Reads to the end and returns the error that stopped it; fails the test when none did. */
GError *oct_test_read_error(const char *text, const oct_trace_options *options);
/* The same, checked: the domain's code, and a message that has all of `parts` ("|" between). */
void oct_test_refuses(const char *text, const oct_trace_options *options, oct_trace_error code,
                      const char *parts);

/* Path of third-party data in OCT_SHARED, else in `shared` beside the source tree; NULL, with the
 * test marked as skipped, when it is not there. */
char *oct_test_shared(const char *name);

#endif
