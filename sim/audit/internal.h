/* What the files of an audit share: the vocabulary, a group of claims, and notes on them. */
#ifndef OCT_SIM_AUDIT_INTERNAL_H
#define OCT_SIM_AUDIT_INTERNAL_H

#include "sim/audit/audit.h"
#include "sim/cost/cost.h"
#include "sim/ini.h"
#include "sim/units.h"

/* Keys with a number; keys.c has their names, units and limits. Those up to OCT_AUDIT_SETTINGS say
 * under which conditions, the rest what was reached. */
typedef enum oct_audit_key {
  OCT_AUDIT_TENSOR,
  OCT_AUDIT_PIPELINE,
  OCT_AUDIT_DATA,
  OCT_AUDIT_DCP,
  OCT_AUDIT_REPLICAS,
  OCT_AUDIT_TENSOR_BEFORE,
  OCT_AUDIT_PIPELINE_BEFORE,
  OCT_AUDIT_CONCURRENCY,
  OCT_AUDIT_INPUT,
  OCT_AUDIT_OUTPUT,
  OCT_AUDIT_CONTEXT,
  OCT_AUDIT_BYTES_PER_TOKEN,
  OCT_AUDIT_SETTINGS,
  OCT_AUDIT_RATE = OCT_AUDIT_SETTINGS,
  OCT_AUDIT_LATENCY_MEAN,
  OCT_AUDIT_LATENCY_P50,
  OCT_AUDIT_LATENCY_P99,
  OCT_AUDIT_TTFT_MEAN,
  OCT_AUDIT_TTFT_P50,
  OCT_AUDIT_TTFT_P99,
  OCT_AUDIT_TPOT_MEAN,
  OCT_AUDIT_TPOT_P50,
  OCT_AUDIT_TPOT_P99,
  OCT_AUDIT_OUTPUT_RATE,
  OCT_AUDIT_OUTPUT_RATE_BEFORE,
  OCT_AUDIT_BYTE_RATE,
  OCT_AUDIT_GPUS,
  OCT_AUDIT_MEMORY,
  OCT_AUDIT_BANDWIDTH,
  OCT_AUDIT_POWER,
  OCT_AUDIT_WEIGHTS,
  OCT_AUDIT_WEIGHTS_PER_GPU,
  OCT_AUDIT_KV_PER_REQUEST,
  OCT_AUDIT_REQUESTS,
  OCT_AUDIT_REQUESTS_BEFORE,
  OCT_AUDIT_ROOT_COMPLEXES,
  OCT_AUDIT_SOCKETS,
  OCT_AUDIT_LINK_LATENCY,
  OCT_AUDIT_FAR_LATENCY,
  OCT_AUDIT_KEYS
} oct_audit_key;

typedef enum oct_audit_word {
  OCT_AUDIT_TITLE,
  OCT_AUDIT_SOURCE,
  OCT_AUDIT_MODEL,
  OCT_AUDIT_NODE,
  OCT_AUDIT_KV_TYPE,
  OCT_AUDIT_KV_TYPE_BEFORE,
  OCT_AUDIT_EXPERT_PARALLEL,
  OCT_AUDIT_NVLINK,
  OCT_AUDIT_WORDS
} oct_audit_word;

typedef struct oct_audit_check {
  const oct_ini_entry *entry; /* the claim that it judges */
  const char *name;           /* static: "little's law" */
  oct_claim_verdict verdict;
  char *text; /* the arithmetic; owned */
} oct_audit_check;

/* One group with what it inherits from [report]. */
typedef struct oct_audit_group {
  const oct_ini *ini;
  const oct_ini_group *text;
  const oct_ini_entry *entries[OCT_AUDIT_KEYS]; /* NULL: not stated */
  double values[OCT_AUDIT_KEYS];
  const oct_ini_entry *word_entries[OCT_AUDIT_WORDS];
  const char *words[OCT_AUDIT_WORDS]; /* NULL: not stated */
  oct_parallel parallel;
  oct_model_spec *spec; /* owned; both NULL unless stated */
  oct_profile *profile;
  oct_cost *cost; /* owned; NULL without model, node or a layout that fits the node */
  GArray *checks; /* of oct_audit_check */
} oct_audit_group;

/* ---- keys.c: reading */
extern const char *const oct_audit_kv_types[]; /* "bf16", "fp8" */
gboolean oct_audit_read(const oct_ini *ini, const oct_ini_group *text,
                        const oct_audit_group *report, const char *zoo_dir, oct_audit_group *group,
                        GError **error) G_GNUC_WARN_UNUSED_RESULT;
void oct_audit_group_clear(gpointer group);
/* A key as its own unit writes it; owned. */
char *oct_audit_format(oct_audit_key key, double value) G_GNUC_WARN_UNUSED_RESULT;
/* A cost of the group's model and node in another layout or KV type; NULL where there is none. */
oct_cost *oct_audit_cost(const oct_audit_group *group, const oct_parallel *parallel, oct_dtype kv);
oct_dtype oct_audit_kv_dtype(const char *word); /* BF16 when NULL */

/* ---- notes */
static inline gboolean
oct_audit_has(const oct_audit_group *g, oct_audit_key key) {
  return g->entries[key] != NULL;
}
/* Stated in this very group, not inherited. */
static inline gboolean
oct_audit_owns(const oct_audit_group *g, oct_audit_key key) {
  return g->entries[key] != NULL && g->entries[key]->group == g->text->name;
}
/* Judges the claim `entry`. */
void oct_audit_note(oct_audit_group *g, const oct_ini_entry *entry, const char *name,
                    oct_claim_verdict verdict, const char *format, ...) G_GNUC_PRINTF(5, 6);
/* Within the tolerance of each other. */
gboolean oct_audit_agree(double a, double b);

/* ---- the checks: each looks for what it needs, and does nothing without */
void oct_audit_check_traffic(oct_audit_group *g);
void oct_audit_check_machine(oct_audit_group *g);
void oct_audit_check_memory(oct_audit_group *g);
void oct_audit_check_floor(oct_audit_group *g);

#endif
