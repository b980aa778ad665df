/* Where tests find the recordings of others: no part of the project. */
#ifndef OCT_TESTS_RECORDINGS_H
#define OCT_TESTS_RECORDINGS_H

#include "sim/validate/validate.h"

/* The folder, owned; NULL after g_test_skip() where there is none: shared/groundtruth beside the
 * source tree, or below $OCT_SHARED. */
char *recordings_or_skip(void);

/* Fails when a part's aim `what` is now above `bound` (a fraction), or is not there. */
void recordings_judge(const json_t *part, const char *what, double bound);

/* Every figure of the part is what sim/profiles/fits/errors.ini says, to its digit; at least
 * `n_least` are compared. */
void recordings_equal_quoted(const json_t *part, guint n_least);

#endif
