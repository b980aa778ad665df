/* What becomes of a step, a copy or an opening: a function of the options alone (fault.h). */
#ifndef OCT_BACKENDS_FAULT_FATE_H
#define OCT_BACKENDS_FAULT_FATE_H

#include "backends/fault/fault.h"

typedef enum fault_scope { FAULT_OF_STEP, FAULT_OF_COPY, FAULT_OF_OPEN } fault_scope;

/* Of number `number` in instance `id`; OCT_INJECT_COUNT = nothing. */
oct_inject fault_fate(const oct_fault_options *options, fault_scope scope, guint32 id,
                      guint64 number);
/* FALSE with *error (CONFIG). */
gboolean fault_options_check(const oct_fault_options *options,
                             GError **error) G_GNUC_WARN_UNUSED_RESULT;

#endif
