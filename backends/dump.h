/* Records, events and configs of the seam as text for people: what doc/backend-contract.md shows,
 * what a replay names when calls differ, what a debugger wants. One fact a line, every field that
 * says something; equal records give equal text. Appends to *out. Any thread.
 *
 * Steps must have passed oct_step_layout_check(); events come from a backend.
 */
#ifndef OCT_BACKENDS_DUMP_H
#define OCT_BACKENDS_DUMP_H

#include "engine/backend.h"

void oct_dump_config(GString *out, const oct_instance_config *config);
void oct_dump_step(GString *out, const oct_step *step);
void oct_dump_copies(GString *out, const oct_copy *copies, guint32 n);
void oct_dump_event(GString *out, const oct_event *event);
/* "STEP_DONE" …; static; "?" when there is none. */
const char *oct_event_name(oct_event_kind kind);
const char *oct_severity_name(oct_severity severity);

#endif
