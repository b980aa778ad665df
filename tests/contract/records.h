/* The cases that doc/backend-contract.md shows: each builds its records, runs them on a backend and
 * checks what comes of it. The rig's log is what the document and tests/golden/contract have. */
#ifndef OCT_TESTS_RECORDS_H
#define OCT_TESTS_RECORDS_H

#include "tests/contract/rig.h"

typedef struct record_case {
  const char *name;    /* "mixed-step": of the golden file and of the place in the document */
  const char *backend; /* oct_backend_world_new() */
  oct_instance_config (*config)(void);
  void (*fn)(rig *r); /* opens and closes its instances */
} record_case;

extern const record_case record_cases_steps[];  /* what a step can say; ends with a NULL name */
extern const record_case record_cases_memory[]; /* pages, states and copies */
extern const record_case record_cases_faults[]; /* masks, experts, loss */

#endif
