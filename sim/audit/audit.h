/* Are the claims of a deployment report possible?
 *
 * A report is a key file: its group [report] states what holds throughout (model, node, layout,
 * traffic), every other group what is claimed besides, with a unit behind each number. Claims are
 * checked against each other (units, Little's law), against the model (exact bytes of weights and
 * cache, the engine's memory ledger), against the node's profile, and against what no kernel can
 * beat (sim/cost's roofline floor). doc/audit.md lists keys and checks.
 *
 * Nothing is simulated and no figure of a model or node stands here: they come from engine/model,
 * engine/sched/ledger, sim/profile and sim/cost.
 */
#ifndef OCT_SIM_AUDIT_AUDIT_H
#define OCT_SIM_AUDIT_AUDIT_H

#include <stdio.h>

#include <glib.h>
#include <jansson.h>

#define OCT_AUDIT_SCHEMA "octet-audit-1"

/* Two statements of one quantity agree when they are this close. */
#define OCT_AUDIT_TOLERANCE 0.05

/* From the best to the worst; a claim has the worst of its checks. */
typedef enum oct_claim_verdict {
  OCT_CLAIM_UNCHECKED,    /* nothing that is stated bears on it */
  OCT_CLAIM_CONSISTENT,   /* nothing checked speaks against it */
  OCT_CLAIM_INCONSISTENT, /* contradicts another claim, the machine, or what is usual */
  OCT_CLAIM_IMPOSSIBLE,   /* beyond the roofline or the memory, whatever the software */
} oct_claim_verdict;
const char *oct_claim_verdict_name(oct_claim_verdict verdict); /* static */

/* Audits a file; models are looked for in `zoo_dir` (NULL: built in). Owned; NULL with *error
 * (OCT_INI_ERROR and those of the model, profile and layout), which names file, line, key and
 * limit. */
json_t *oct_audit_run(const char *path, const char *zoo_dir,
                      GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* The same of a text; `label` names it. */
json_t *oct_audit_text(const char *label, const char *text, gsize size, const char *zoo_dir,
                       GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* For people: made from the JSON, so that whatever it shows a program can read. */
void oct_audit_print(FILE *out, const json_t *report);

/* "key  unit  what it is" of every key, a line each; owned. */
char *oct_audit_keys(void) G_GNUC_WARN_UNUSED_RESULT;

#endif
