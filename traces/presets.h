/* Named traffic: generator parameters fitted to published statistics.
 *
 * A preset holds figures derived from its source (means, quantiles, rates), never rows of it. What
 * is assumed rather than derived is said in `about`. Any parameter can be changed afterwards.
 */
#ifndef OCT_TRACES_PRESETS_H
#define OCT_TRACES_PRESETS_H

#include "traces/gen.h"

typedef struct oct_trace_preset {
  const char *name;
  const char *about;  /* what it is like, and what is assumed */
  const char *source; /* where its figures come from */
} oct_trace_preset;

/* One by one; NULL past the last. */
const oct_trace_preset *oct_trace_preset_at(gsize i);

/* Sets the parameters of a preset, over an initialised spec. FALSE with error when it is unknown.
 */
gboolean oct_trace_preset_apply(const char *name, oct_trace_gen_spec *spec,
                                GError **error) G_GNUC_WARN_UNUSED_RESULT;

#endif
