/* The contract test: every rule of doc/backend-contract.md that a program can check, as a case, run
 * against every backend of the table in worlds.c. A case is named by its rule's number. */
#ifndef OCT_TESTS_CONTRACT_H
#define OCT_TESTS_CONTRACT_H

#include "tests/contract/rig.h"

/* ---- worlds */

typedef struct contract_world {
  const char *name;
  /* A new world, whose steps take long enough (1 ms and more) for the next call to find them in
   * flight. NULL with *error. */
  oct_world *(*make)(GError **error);
  gboolean simulated;   /* takes absent content, finds what an engine must never do */
  gboolean own_process; /* a process can hold one such world: each case runs in a child */
  void (*done)(void);   /* after each case; may be NULL */
} contract_world;

extern const contract_world contract_worlds[];
extern const guint n_contract_worlds;

/* ---- cases */

typedef enum contract_model {
  CONTRACT_DENSE,   /* one group of pages */
  CONTRACT_HYBRID,  /* state, latent pages, window pages */
  CONTRACT_EXPERTS, /* the hybrid model with 8 expert slots per layer, experts reported */
  CONTRACT_DATA2,   /* the dense model with two KV domains: slots 0-15 and 16-31 */
  CONTRACT_PIPE2,   /* the dense model on two stages, depth 3 */
  CONTRACT_BARE,    /* the dense model without tags */
} contract_model;

enum {
  NEEDS_VIRTUAL = 1 << 0, /* a virtual clock */
  NEEDS_SIMULATED = 1 << 1,
  NEEDS_MASKS = 1 << 2, /* and so on: capabilities */
  NEEDS_SPECULATION = 1 << 3,
  NEEDS_ADAPTERS = 1 << 4,
  NEEDS_EXPERTS = 1 << 5,
  NEEDS_HOST = 1 << 6,
  NEEDS_FORWARD = 1 << 7,
  CLOSED = 1 << 8, /* the case opens its instances itself */
  NEEDS_PULL = 1 << 9,
};

typedef struct contract_case {
  const char *name; /* "12-steps-end-in-order" */
  contract_model model;
  guint flags;
  void (*fn)(rig *r);
} contract_case;

/* Each ends with a NULL name. */
extern const contract_case contract_world_cases[];  /* rules 1 to 8 */
extern const contract_case contract_step_cases[];   /* 9 to 22 */
extern const contract_case contract_memory_cases[]; /* 23 to 28 */
extern const contract_case contract_extra_cases[];  /* 29 to 39 */
extern const contract_case contract_pull_cases[];   /* 40 */

#endif
