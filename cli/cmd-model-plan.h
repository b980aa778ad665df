/* octet model plan: called by octet model, which has parsed the layout. */
#ifndef OCT_CMD_MODEL_PLAN_H
#define OCT_CMD_MODEL_PLAN_H

#include "engine/model/spec.h"

/* `name` is a checkpoint, a config file or a name of the zoo; `zoo` and `json` may be NULL. Returns
 * one of OCT_EXIT_*. */
int oct_cmd_model_plan(const char *name, const oct_parallel *parallel, const char *zoo,
                       const char *json);

#endif
