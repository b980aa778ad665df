/* The pace backend: wraps a world with a virtual clock and holds it back to real time, so that a
 * simulated node answers at the speed that it predicts.
 *
 * The inner clock follows the machine's: it is never asked for anything later than it is. What
 * happens inside keeps its own times to the nanosecond, whatever the machine is busy with; it is
 * told up to OCT_PACE_SLICE_NS later, since there is no way to ask when the next thing will happen
 * without letting it happen. A simulation slower than the machine's clock falls behind it.
 *
 * It has a real clock, wakes like one, and does not fast-forward.
 */
#ifndef OCT_BACKENDS_PACE_H
#define OCT_BACKENDS_PACE_H

#include "engine/backend.h"

#define OCT_PACE_SLICE_NS 1000000 /* how often it looks while anything is under way */

/* Takes the inner world, also when it fails. NULL with *error (CONFIG): its clock is real. */
oct_world *oct_pace_world_new(oct_world *inner, GError **error) G_GNUC_WARN_UNUSED_RESULT;

#endif
