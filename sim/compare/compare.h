/* Two reports side by side: what differs, and whether that is more than chance. `octet compare` is
 * the command; doc/compare.md describes the method and the fields.
 */
#ifndef OCT_SIM_COMPARE_COMPARE_H
#define OCT_SIM_COMPARE_COMPARE_H

#include <jansson.h>
#include <stdio.h>

#include "sim/compare/significance.h"

#define OCT_COMPARE_SCHEMA "octet-compare-1"
/* Runs have the same requests when at least this share of those that both kept have equal lengths.
 */
#define OCT_COMPARE_SAME_SHARE 0.95

/* Reports as octet replay and octet bench write them (schema octet-replay-1), which are borrowed.
 * Owned. NULL with *error (OCT_REPLAY_ERROR_OPTION): one of them keeps no requests, or too few. */
json_t *oct_compare_make(json_t *a, json_t *b, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* For people, at most 100 columns wide. */
void oct_compare_print(FILE *out, const json_t *compared);

#endif
