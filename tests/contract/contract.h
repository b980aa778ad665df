/* The contract test: every rule of doc/backend-contract.md that a program can check, as a case, run
 * against every backend of the table in worlds.c. A case is named by its rule's number. */
#ifndef OCT_TESTS_CONTRACT_H
#define OCT_TESTS_CONTRACT_H

#include "tests/contract/rig.h"

/* ---- worlds */

typedef struct contract_world {
  const char *name;
  /* backends/registry.h: the wrappers under test ("remote@" or ""), and the world that they wrap.
   * "FILE" stands for a file of the case's own. Steps take long enough (1 ms and more) for the next
   * call to find them in flight. */
  const char *outer, *inner;
  gboolean simulated;   /* takes absent content, finds what an engine must never do */
  gboolean own_process; /* a process can hold one such world: each case runs in a child */
  gboolean needs_gpu;   /* no such world where there is none */
} contract_world;

/* A new world; with a script, one in which that goes wrong (backends/fault). NULL with *error. */
oct_world *contract_world_new(const contract_world *world, const char *script, GError **error);
/* After each case. */
void contract_world_done(void);

extern const contract_world contract_worlds[];
extern const guint n_contract_worlds;

/* ---- cases */

typedef enum contract_model {
  CONTRACT_DENSE,    /* one group of pages */
  CONTRACT_HYBRID,   /* state, latent pages, window pages */
  CONTRACT_EXPERTS,  /* the hybrid model with 8 expert slots per layer, experts reported */
  CONTRACT_DATA2,    /* the dense model with two KV domains: slots 0-15 and 16-31 */
  CONTRACT_JOINT,    /* the hybrid model with two KV domains that share its experts out, reported */
  CONTRACT_CONTEXT2, /* the latent model on two ranks that share each sequence's tokens out */
  CONTRACT_PIPE2,    /* the dense model on two stages, depth 3 */
  CONTRACT_BARE,     /* the dense model without tags */
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
  NEEDS_POOLING = 1 << 10,
};

typedef struct contract_case {
  const char *name; /* "12-steps-end-in-order" */
  contract_model model;
  guint flags;
  void (*fn)(rig *r);
} contract_case;

/* A case in which something goes wrong. */
typedef struct contract_fault_case {
  contract_case c;
  const char *script; /* of backends/fault */
} contract_fault_case;

/* Each ends with a NULL name. */
extern const contract_case contract_world_cases[];       /* rules 1 to 8 */
extern const contract_case contract_step_cases[];        /* 9 to 22 */
extern const contract_case contract_memory_cases[];      /* 23 to 28 */
extern const contract_case contract_extra_cases[];       /* 29 to 34, 39 */
extern const contract_fault_case contract_fault_cases[]; /* 35 to 38 */
extern const contract_case contract_pull_cases[];        /* 40 */
extern const contract_case contract_prompt_cases[];      /* 41 to 44 */

#endif
