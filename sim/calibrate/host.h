/* What the engine itself takes on the host: scheduling, submitting and committing a step. */
#ifndef OCT_SIM_CALIBRATE_HOST_H
#define OCT_SIM_CALIBRATE_HOST_H

#include "sim/calibrate/drive.h"

typedef struct oct_host_times {
  double step_s;     /* of a step, whatever is in it */
  double sequence_s; /* and for each sequence */
} oct_host_times;

/* Runs the real engine on `world` (borrowed, not running) with one sequence, then with `running`
 * decodes, and times its calls, the waiting left out. FALSE with *error. */
gboolean oct_calibrate_host(oct_world *world, const oct_model_spec *spec,
                            const oct_parallel *parallel, guint32 running, oct_host_times *out,
                            GError **error) G_GNUC_WARN_UNUSED_RESULT;

#endif
