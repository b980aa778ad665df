/* The vocabulary of a report, and how a group of it is read. */
#include <math.h>
#include <string.h>

#include "engine/base/assert.h"
#include "sim/audit/internal.h"

#define CONCURRENCY_MAX 1e6

typedef struct key_row {
  const char *name;
  const oct_dimension *dimension;
  double min, max;
  gboolean whole;
  const char *what;
} key_row;

static const key_row rows[OCT_AUDIT_KEYS] = {
    [OCT_AUDIT_TENSOR] = {"tensor_parallel_size", &oct_dimension_number, 1, 64, TRUE,
                          "ranks that share heads (1)"},
    [OCT_AUDIT_PIPELINE] = {"pipeline_parallel_size", &oct_dimension_number, 1, 16, TRUE,
                            "stages (1)"},
    [OCT_AUDIT_DATA] = {"data_parallel_size", &oct_dimension_number, 1, 64, TRUE,
                        "attention replicas (1)"},
    [OCT_AUDIT_DCP] = {"decode_context_parallel_size", &oct_dimension_number, 1, 64, TRUE,
                       "ranks that share a sequence's KV (1)"},
    [OCT_AUDIT_REPLICAS] = {"replicas", &oct_dimension_number, 1, 1e5, TRUE,
                            "independent instances (1)"},
    [OCT_AUDIT_TENSOR_BEFORE] = {"tensor_parallel_size_before", &oct_dimension_number, 1, 64, TRUE,
                                 "of what output_tokens_per_s_before was reached with"},
    [OCT_AUDIT_PIPELINE_BEFORE] = {"pipeline_parallel_size_before", &oct_dimension_number, 1, 16,
                                   TRUE, "likewise"},
    [OCT_AUDIT_CONCURRENCY] = {"concurrency", &oct_dimension_requests, 1, CONCURRENCY_MAX, FALSE,
                               "requests in the system at a time, mean"},
    [OCT_AUDIT_INPUT] = {"input_tokens", &oct_dimension_tokens, 1, 1e8, FALSE, "of a prompt, mean"},
    [OCT_AUDIT_OUTPUT] = {"output_tokens", &oct_dimension_tokens, 1, 1e8, FALSE,
                          "of an answer, mean"},
    [OCT_AUDIT_CONTEXT] = {"context_tokens", &oct_dimension_tokens, 1, 1e8, FALSE,
                           "of the requests that kv_bytes_per_request and requests speak of"},
    [OCT_AUDIT_RATE] = {"request_rate", &oct_dimension_requests_per_s, 0, 1e9, FALSE, "arrivals"},
    [OCT_AUDIT_LATENCY_MEAN] = {"latency_mean", &oct_dimension_seconds, 0, 1e9, FALSE,
                                "arrival to last token"},
    [OCT_AUDIT_LATENCY_P50] = {"latency_p50", &oct_dimension_seconds, 0, 1e9, FALSE, "its median"},
    [OCT_AUDIT_LATENCY_P99] = {"latency_p99", &oct_dimension_seconds, 0, 1e9, FALSE,
                               "its 99th percentile"},
    [OCT_AUDIT_TTFT_MEAN] = {"ttft_mean", &oct_dimension_seconds, 0, 1e9, FALSE,
                             "arrival to first token"},
    [OCT_AUDIT_TTFT_P50] = {"ttft_p50", &oct_dimension_seconds, 0, 1e9, FALSE, "its median"},
    [OCT_AUDIT_TTFT_P99] = {"ttft_p99", &oct_dimension_seconds, 0, 1e9, FALSE,
                            "its 99th percentile"},
    [OCT_AUDIT_TPOT_MEAN] = {"tpot_mean", &oct_dimension_seconds, 0, 1e9, FALSE,
                             "time per output token of a request"},
    [OCT_AUDIT_TPOT_P50] = {"tpot_p50", &oct_dimension_seconds, 0, 1e9, FALSE, "its median"},
    [OCT_AUDIT_TPOT_P99] = {"tpot_p99", &oct_dimension_seconds, 0, 1e9, FALSE,
                            "its 99th percentile"},
    [OCT_AUDIT_OUTPUT_RATE] = {"output_tokens_per_s", &oct_dimension_tokens_per_s, 0, 1e15, FALSE,
                               "tokens generated, all replicas"},
    [OCT_AUDIT_OUTPUT_RATE_BEFORE] = {"output_tokens_per_s_before", &oct_dimension_tokens_per_s, 0,
                                      1e15, FALSE, "what it was compared with"},
    [OCT_AUDIT_BYTES_PER_TOKEN] = {"bytes_per_token", &oct_dimension_bytes_per_token, 0, 1e15,
                                   FALSE, "moved for a token, as the report has it"},
    [OCT_AUDIT_BYTE_RATE] = {"bytes_per_s", &oct_dimension_bytes_per_s, 0, 1e21, FALSE,
                             "\"effective throughput\""},
    [OCT_AUDIT_GPUS] = {"gpus", &oct_dimension_number, 1, 1e6, TRUE, "of the node"},
    [OCT_AUDIT_MEMORY] = {"memory_per_gpu", &oct_dimension_bytes, 0, 1e15, FALSE, "capacity"},
    [OCT_AUDIT_BANDWIDTH] = {"memory_bandwidth", &oct_dimension_bytes_per_s, 0, 1e18, FALSE,
                             "of a GPU's memory"},
    [OCT_AUDIT_POWER] = {"power_per_gpu", &oct_dimension_watts, 0, 1e6, FALSE, "drawn, mean"},
    [OCT_AUDIT_WEIGHTS] = {"weight_bytes", &oct_dimension_bytes, 0, 1e18, FALSE, "of the model"},
    [OCT_AUDIT_WEIGHTS_PER_GPU] = {"weight_bytes_per_gpu", &oct_dimension_bytes, 0, 1e15, FALSE,
                                   "in the layout"},
    [OCT_AUDIT_KV_PER_REQUEST] = {"kv_bytes_per_request", &oct_dimension_bytes, 0, 1e18, FALSE,
                                  "cache of one request of context_tokens"},
    [OCT_AUDIT_REQUESTS] = {"requests", &oct_dimension_requests, 0, 1e9, FALSE,
                            "of context_tokens in memory at a time"},
    [OCT_AUDIT_REQUESTS_BEFORE] = {"requests_before", &oct_dimension_requests, 0, 1e9, FALSE,
                                   "the same with kv_cache_dtype_before"},
    [OCT_AUDIT_ROOT_COMPLEXES] = {"root_complexes", &oct_dimension_number, 1, 1e3, TRUE, "of PCIe"},
    [OCT_AUDIT_SOCKETS] = {"sockets", &oct_dimension_number, 1, 1e3, TRUE, "of processors"},
    [OCT_AUDIT_LINK_LATENCY] = {"link_latency", &oct_dimension_seconds, 0, 1, FALSE,
                                "of a load over NVLink"},
    [OCT_AUDIT_FAR_LATENCY] = {"far_link_latency", &oct_dimension_seconds, 0, 1, FALSE,
                               "between GPUs that no NVLink joins"},
};

static const struct {
  const char *name, *what;
} word_rows[OCT_AUDIT_WORDS] = {
    [OCT_AUDIT_TITLE] = {"title", "what the report or the claim is called"},
    [OCT_AUDIT_SOURCE] = {"source", "where it is from"},
    [OCT_AUDIT_MODEL] = {"model", "a name of octet model list, or a config.json"},
    [OCT_AUDIT_NODE] = {"node", "a node profile"},
    [OCT_AUDIT_KV_TYPE] = {"kv_cache_dtype", "bf16 (default) or fp8"},
    [OCT_AUDIT_KV_TYPE_BEFORE] = {"kv_cache_dtype_before", "of requests_before"},
    [OCT_AUDIT_EXPERT_PARALLEL] = {"enable_expert_parallel", "true or false (default)"},
    [OCT_AUDIT_NVLINK] = {"nvlink", "switch, pairs or none"},
};

const char *const oct_audit_kv_types[] = {"bf16", "fp8", NULL};
static const char *const truth[] = {"true", "false", NULL};
static const char *const nvlinks[] = {"switch", "pairs", "none", NULL};

char *
oct_audit_keys(void) {
  GString *out = g_string_new(NULL);
  for (int w = 0; w < OCT_AUDIT_WORDS; w++)
    g_string_append_printf(out, "  %-29s %-16s %s\n", word_rows[w].name, "text", word_rows[w].what);
  for (int k = 0; k < OCT_AUDIT_KEYS; k++) {
    g_autofree char *unit = oct_dimension_name(rows[k].dimension);
    gboolean number = rows[k].dimension == &oct_dimension_number;
    g_string_append_printf(out, "  %-29s %-16s %s\n", rows[k].name, number ? "a number" : unit,
                           rows[k].what);
  }
  return g_string_free(out, FALSE);
}

char *
oct_audit_format(oct_audit_key key, double value) {
  return oct_quantity_format(value, rows[key].dimension);
}

/* ---------------------------------------------------------------- one value */

static gboolean
read_number(oct_audit_group *g, oct_audit_key key, const oct_ini_entry *entry, GError **error) {
  const key_row *row = &rows[key];
  g_autoptr(GError) reason = NULL;
  double value;
  if (!oct_quantity_read(entry->value, row->dimension, &value, &reason))
    return oct_ini_refuse(g->ini, entry, OCT_INI_ERROR_VALUE, error, "%s", reason->message);
  if (!(value >= row->min && value <= row->max) || (row->min <= 0 && value <= 0)) {
    g_autofree char *max = oct_quantity_format(row->max, row->dimension);
    return oct_ini_refuse(g->ini, entry, OCT_INI_ERROR_VALUE, error, "must be %s %g and at most %s",
                          row->min > 0 ? "at least" : "above", row->min, max);
  }
  if (row->whole && value != floor(value))
    return oct_ini_refuse(g->ini, entry, OCT_INI_ERROR_VALUE, error, "must be a whole number");
  g->entries[key] = entry;
  g->values[key] = value;
  return TRUE;
}

static const char *const *
choices_of(oct_audit_word word) {
  switch (word) {
  case OCT_AUDIT_KV_TYPE:
  case OCT_AUDIT_KV_TYPE_BEFORE:
    return oct_audit_kv_types;
  case OCT_AUDIT_EXPERT_PARALLEL:
    return truth;
  case OCT_AUDIT_NVLINK:
    return nvlinks;
  case OCT_AUDIT_TITLE:
  case OCT_AUDIT_SOURCE:
  case OCT_AUDIT_MODEL:
  case OCT_AUDIT_NODE:
  case OCT_AUDIT_WORDS:
    break;
  }
  return NULL;
}

static gboolean
read_word(oct_audit_group *g, oct_audit_word word, const oct_ini_entry *entry, GError **error) {
  const char *const *choices = choices_of(word);
  if (choices != NULL && !g_strv_contains(choices, entry->value)) {
    g_autofree char *list = g_strjoinv(", ", (char **)choices);
    return oct_ini_refuse(g->ini, entry, OCT_INI_ERROR_VALUE, error, "must be one of %s", list);
  }
  if (*entry->value == '\0')
    return oct_ini_refuse(g->ini, entry, OCT_INI_ERROR_VALUE, error, "is empty");
  g->word_entries[word] = entry;
  g->words[word] = entry->value;
  return TRUE;
}

static gboolean
read_entry(oct_audit_group *g, const oct_ini_entry *entry, GError **error) {
  for (int k = 0; k < OCT_AUDIT_KEYS; k++)
    if (strcmp(rows[k].name, entry->key) == 0)
      return read_number(g, (oct_audit_key)k, entry, error);
  for (int w = 0; w < OCT_AUDIT_WORDS; w++)
    if (strcmp(word_rows[w].name, entry->key) == 0)
      return read_word(g, (oct_audit_word)w, entry, error);
  return oct_ini_refuse(g->ini, entry, OCT_INI_ERROR_UNKNOWN, error,
                        "no such key (octet audit --help lists them)");
}

/* ---------------------------------------------------------------- model, node, layout */

oct_dtype
oct_audit_kv_dtype(const char *word) {
  return word != NULL && strcmp(word, "fp8") == 0 ? OCT_DTYPE_FP8 : OCT_DTYPE_BF16;
}

static guint32
size_of(const oct_audit_group *g, oct_audit_key key) {
  return oct_audit_has(g, key) ? (guint32)g->values[key] : 1;
}

oct_cost *
oct_audit_cost(const oct_audit_group *g, const oct_parallel *parallel, oct_dtype kv) {
  oct_cost_options options = OCT_COST_OPTIONS_DEFAULT;
  options.kv_dtype = kv;
  options.even_floor = TRUE;
  if (g->spec == NULL || g->profile == NULL || !oct_parallel_check(g->spec, parallel, NULL))
    return NULL;
  return oct_cost_new(g->spec, parallel, NULL, g->profile, &options, NULL);
}

static gboolean
read_layout(oct_audit_group *g, GError **error) {
  g_autoptr(GError) reason = NULL;
  const char *expert = g->words[OCT_AUDIT_EXPERT_PARALLEL];
  g->parallel = OCT_PARALLEL_DEFAULT;
  g->parallel.tensor = size_of(g, OCT_AUDIT_TENSOR);
  g->parallel.pipeline = size_of(g, OCT_AUDIT_PIPELINE);
  g->parallel.data = size_of(g, OCT_AUDIT_DATA);
  g->parallel.decode_context = size_of(g, OCT_AUDIT_DCP);
  g->parallel.expert_parallel = expert != NULL && strcmp(expert, "true") == 0;
  if (g->spec == NULL)
    return TRUE;
  if (!oct_parallel_check(g->spec, &g->parallel, &reason)) {
    const oct_ini_entry *entry = g->entries[OCT_AUDIT_TENSOR];
    if (entry == NULL)
      return oct_ini_refuse_group(g->ini, g->text, OCT_INI_ERROR_VALUE, error, "%s",
                                  reason->message);
    return oct_ini_refuse(g->ini, entry, OCT_INI_ERROR_VALUE, error, "%s", reason->message);
  }
  if (g->profile != NULL && oct_parallel_world(&g->parallel) <= g->profile->gpu.count)
    g->cost = oct_audit_cost(g, &g->parallel, oct_audit_kv_dtype(g->words[OCT_AUDIT_KV_TYPE]));
  return TRUE;
}

static gboolean
load_machine(oct_audit_group *g, const char *zoo_dir, GError **error) {
  g_autoptr(GError) reason = NULL;
  if (g->words[OCT_AUDIT_MODEL] != NULL) {
    g->spec = oct_model_spec_load(g->words[OCT_AUDIT_MODEL], zoo_dir, &reason);
    if (g->spec == NULL)
      return oct_ini_refuse(g->ini, g->word_entries[OCT_AUDIT_MODEL], OCT_INI_ERROR_VALUE, error,
                            "%s", reason->message);
  }
  if (g->words[OCT_AUDIT_NODE] != NULL) {
    g->profile = oct_profile_load(g->words[OCT_AUDIT_NODE], NULL, NULL, &reason);
    if (g->profile == NULL)
      return oct_ini_refuse(g->ini, g->word_entries[OCT_AUDIT_NODE], OCT_INI_ERROR_VALUE, error,
                            "%s", reason->message);
  }
  return read_layout(g, error);
}

static void
check_clear(gpointer data) {
  g_free(((oct_audit_check *)data)->text);
}

gboolean
oct_audit_read(const oct_ini *ini, const oct_ini_group *text, const oct_audit_group *report,
               const char *zoo_dir, oct_audit_group *g, GError **error) {
  memset(g, 0, sizeof *g);
  if (report != NULL) {
    memcpy(g->entries, report->entries, sizeof g->entries);
    memcpy(g->values, report->values, sizeof g->values);
    memcpy(g->word_entries, report->word_entries, sizeof g->word_entries);
    memcpy(g->words, report->words, sizeof g->words);
    g->words[OCT_AUDIT_TITLE] = g->words[OCT_AUDIT_SOURCE] = NULL;
  }
  g->ini = ini;
  g->text = text;
  g->checks = g_array_new(FALSE, FALSE, sizeof(oct_audit_check));
  g_array_set_clear_func(g->checks, check_clear);
  for (guint i = 0; i < text->entries->len; i++)
    if (!read_entry(g, &g_array_index(text->entries, oct_ini_entry, i), error))
      return FALSE;
  return load_machine(g, zoo_dir, error);
}

void
oct_audit_group_clear(gpointer data) {
  oct_audit_group *g = data;
  oct_cost_free(g->cost);
  oct_model_spec_free(g->spec);
  oct_profile_free(g->profile);
  g_clear_pointer(&g->checks, g_array_unref);
}

/* ---------------------------------------------------------------- notes */

void
oct_audit_note(oct_audit_group *g, const oct_ini_entry *entry, const char *name,
               oct_claim_verdict verdict, const char *format, ...) {
  va_list args;
  oct_assert(entry != NULL);
  va_start(args, format);
  oct_audit_check check = {entry, name, verdict, g_strdup_vprintf(format, args)};
  va_end(args);
  g_array_append_val(g->checks, check);
}

gboolean
oct_audit_agree(double a, double b) {
  return fabs(a - b) <= OCT_AUDIT_TOLERANCE * MAX(fabs(a), fabs(b));
}
