#include "sim/replay/engine-preset.h"

#include <string.h>

#include "engine/base/file.h"
#include "engine/sched/policy.h"
#include "sim/replay/slo.h"

#ifndef OCT_SOURCE_DIR
#define OCT_SOURCE_DIR "."
#endif
#ifndef OCT_DATA_DIR
#define OCT_DATA_DIR "/usr/local/share/octet"
#endif

static const char *const folders[] = {OCT_SOURCE_DIR "/sim/engines", OCT_DATA_DIR "/engines"};

typedef struct reader {
  const char *label;
  GKeyFile *keys;
  GError **error;
} reader;

static gboolean
refuse(const reader *r, const char *group, const char *key, const char *why) {
  g_set_error(r->error, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_OPTION, "%s: [%s] %s: %s", r->label,
              group, key, why);
  return FALSE;
}

/* ---------------------------------------------------------------- values */

static gboolean
read_number(const reader *r, const char *group, const char *key, double low, double high,
            double *out) {
  g_autofree char *text = g_key_file_get_value(r->keys, group, key, NULL);
  if (text == NULL)
    return refuse(r, group, key, "is missing");
  char *end;
  *out = g_ascii_strtod(g_strstrip(text), &end);
  if (end != text && *end == '\0' && *out >= low && *out <= high)
    return TRUE;
  g_autofree char *why = g_strdup_printf("'%.40s' is not within %.10g and %.10g", text, low, high);
  return refuse(r, group, key, why);
}

static gboolean
read_whole(const reader *r, const char *group, const char *key, double high, guint32 *out) {
  double value;
  if (!read_number(r, group, key, 0, high, &value))
    return FALSE;
  *out = (guint32)value;
  return (double)*out == value || refuse(r, group, key, "is not a whole number");
}

/* One of `words` (NULL-terminated): its index. */
static gboolean
read_word(const reader *r, const char *key, const char *const *words, guint *out) {
  g_autofree char *text = g_key_file_get_value(r->keys, "engine", key, NULL);
  if (text == NULL)
    return refuse(r, "engine", key, "is missing");
  for (*out = 0; words[*out] != NULL; (*out)++)
    if (strcmp(words[*out], g_strstrip(text)) == 0)
      return TRUE;
  g_autofree char *known = g_strjoinv(", ", (char **)words);
  g_autofree char *why = g_strdup_printf("'%.40s' is none of %s", text, known);
  return refuse(r, "engine", key, why);
}

static gboolean
read_policy(const reader *r, oct_engine_preset *out) {
  g_autofree char *text = g_key_file_get_value(r->keys, "engine", "policy", NULL);
  if (text == NULL)
    return refuse(r, "engine", "policy", "is missing");
  if (oct_policy_find(text) == NULL || strlen(text) > OCT_ENGINE_PRESET_NAME_MAX)
    return refuse(r, "engine", "policy", "is no scheduling policy");
  g_strlcpy(out->policy, text, sizeof out->policy);
  return TRUE;
}

/* ---------------------------------------------------------------- groups */

#define US_MAX         1e7
#define FILE_BYTES_MAX ((gsize)1 << 20)

static gboolean
read_host(const reader *r, oct_engine_preset *out) {
  const struct {
    const char *key;
    gint64 *ns;
  } times[] = {
      {"step_us", &out->host.step_host_ns},
      {"step_per_seq_us", &out->host.step_host_per_seq_ns},
      {"request_in_us", &out->host.request_in_ns},
      {"request_out_per_token_us", &out->host.request_out_per_token_ns},
      {"submit_lead_us", &out->host.submit_lead_ns},
  };
  out->has_host = g_key_file_has_group(r->keys, "host");
  for (gsize i = 0; i < G_N_ELEMENTS(times) && out->has_host; i++) {
    double us;
    if (!read_number(r, "host", times[i].key, 0, US_MAX, &us))
      return FALSE;
    *times[i].ns = (gint64)(us * 1e3 + 0.5);
  }
  return !out->has_host ||
         read_whole(r, "host", "graph_max_batch", 65536, &out->host.graph_max_batch);
}

static gboolean
read_engine(const reader *r, oct_engine_preset *out) {
  static const char *const no_yes[] = {"false", "true", NULL};
  static const char *const preemptions[] = {"auto", "recompute", "offload", NULL};
  static const char *const kinds[] = {"one-shot", "nccl", NULL};
  static const char *const orders[] = {"serial", "beside", NULL};
  static const char *const fusions[] = {"apart", "fused", NULL};
  guint preemption, ahead, graphs, nccl, beside, fused;
  if (!read_policy(r, out) || !read_word(r, "preemption", preemptions, &preemption) ||
      !read_word(r, "async_scheduling", no_yes, &ahead) ||
      !read_word(r, "graphs", no_yes, &graphs) || !read_word(r, "all_reduce", kinds, &nccl) ||
      !read_word(r, "shared_experts", orders, &beside) || !read_word(r, "norms", fusions, &fused) ||
      !read_whole(r, "engine", "max_num_seqs", 1 << 20, &out->max_num_seqs) ||
      !read_whole(r, "engine", "max_num_batched_tokens", 1 << 30, &out->max_num_batched_tokens) ||
      !read_number(r, "engine", "gpu_memory_utilization", 0.01, 1, &out->gpu_memory_utilization) ||
      !read_number(r, "engine", "expert_time", 0.1, 10, &out->expert_time) ||
      !read_number(r, "engine", "expert_time_int4", 0.1, 10, &out->expert_time_int4) ||
      !read_number(r, "engine", "step_time", 0.5, 5, &out->step_time))
    return FALSE;
  out->preemption = (oct_preemption)preemption;
  out->run_ahead = ahead;
  out->graphs = graphs == 1;
  out->nccl_only = nccl == 1;
  out->shared_beside = beside == 1;
  out->fused_norms = fused == 1;
  return TRUE;
}

static gboolean
check_names(const reader *r) {
  static const char *const known[] = {"title",
                                      "policy",
                                      "preemption",
                                      "async_scheduling",
                                      "graphs",
                                      "all_reduce",
                                      "max_num_seqs",
                                      "max_num_batched_tokens",
                                      "gpu_memory_utilization",
                                      "expert_time",
                                      "expert_time_int4",
                                      "shared_experts",
                                      "norms",
                                      "step_time",
                                      "step_us",
                                      "step_per_seq_us",
                                      "request_in_us",
                                      "request_out_per_token_us",
                                      "submit_lead_us",
                                      "graph_max_batch",
                                      NULL};
  g_auto(GStrv) groups = g_key_file_get_groups(r->keys, NULL);
  for (guint g = 0; groups[g] != NULL; g++) {
    if (strcmp(groups[g], "engine") != 0 && strcmp(groups[g], "host") != 0)
      return refuse(r, groups[g], "", "is not a group of an engine");
    g_auto(GStrv) keys = g_key_file_get_keys(r->keys, groups[g], NULL, NULL);
    for (guint k = 0; keys[k] != NULL; k++)
      if (!g_strv_contains(known, keys[k]))
        return refuse(r, groups[g], keys[k], "is not a key of an engine");
  }
  return TRUE;
}

/* ---------------------------------------------------------------- files */

gboolean
oct_engine_preset_parse(const char *label, const char *text, oct_engine_preset *out,
                        GError **error) {
  g_autoptr(GKeyFile) keys = g_key_file_new();
  g_autoptr(GError) reason = NULL;
  reader r = {.label = label, .keys = keys, .error = error};
  memset(out, 0, sizeof *out);
  if (!g_key_file_load_from_data(keys, text, strlen(text), G_KEY_FILE_NONE, &reason)) {
    g_set_error(error, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_OPTION, "%s: %s", label, reason->message);
    return FALSE;
  }
  g_autofree char *file = g_path_get_basename(label);
  if (g_str_has_suffix(file, ".ini"))
    file[strlen(file) - strlen(".ini")] = '\0';
  g_strlcpy(out->name, file, sizeof out->name);
  return check_names(&r) && read_engine(&r, out) && read_host(&r, out);
}

static char *
find(const char *name, GError **error) {
  if (strchr(name, '/') != NULL || g_str_has_suffix(name, ".ini"))
    return g_strdup(name);
  g_autofree char *file = g_strconcat(name, ".ini", NULL);
  for (guint i = 0; i < G_N_ELEMENTS(folders); i++) {
    g_autofree char *path = g_build_filename(folders[i], file, NULL);
    if (g_file_test(path, G_FILE_TEST_IS_REGULAR))
      return g_steal_pointer(&path);
  }
  g_auto(GStrv) names = oct_engine_preset_list();
  g_autofree char *known = g_strjoinv(", ", names);
  g_set_error(error, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_OPTION,
              "engine \"%.60s\": must be a file or one of %s", name, known);
  return NULL;
}

gboolean
oct_engine_preset_load(const char *name, oct_engine_preset *out, GError **error) {
  g_autofree char *path = find(name, error), *text = NULL;
  g_autoptr(GError) reason = NULL;
  if (path == NULL)
    return FALSE;
  if (!oct_file_read(path, FILE_BYTES_MAX, &text, NULL, &reason)) {
    g_set_error(error, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_OPTION, "engine %s: %s", path,
                reason->message);
    return FALSE;
  }
  return oct_engine_preset_parse(path, text, out, error);
}

static int
compare_names(gconstpointer a, gconstpointer b) {
  return strcmp(*(const char *const *)a, *(const char *const *)b);
}

char **
oct_engine_preset_list(void) {
  g_autoptr(GPtrArray) names = g_ptr_array_new();
  for (guint i = 0; i < G_N_ELEMENTS(folders) && names->len == 0; i++) {
    g_autoptr(GDir) folder = g_dir_open(folders[i], 0, NULL);
    const char *file;
    while (folder != NULL && (file = g_dir_read_name(folder)) != NULL)
      if (g_str_has_suffix(file, ".ini"))
        g_ptr_array_add(names, g_strndup(file, strlen(file) - strlen(".ini")));
  }
  g_ptr_array_sort(names, compare_names);
  g_ptr_array_add(names, NULL);
  return (char **)g_ptr_array_free(g_steal_pointer(&names), FALSE);
}
