#include "sim/replay/speculation.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/file.h"
#include "sim/replay/metrics.h"

#define DEFAULT_LOOKUP     5 /* as vLLM: of both, where neither is given */
#define DEFAULT_ACCEPTANCE 0.1
#define METRICS_BYTES_MAX  ((gsize)64 << 20)

static gboolean
G_GNUC_PRINTF(2, 3) refuse(GError **error, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  g_autofree char *text = g_strdup_vprintf(format, arguments);
  va_end(arguments);
  g_set_error(error, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_OPTION, "speculative-config: %s", text);
  return FALSE;
}

/* ---------------------------------------------------------------- values */

/* The value as it stands in the text; owned. */
static char *
shown(const json_t *value) {
  char *dumped = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
  char *out = g_strdup(dumped != NULL ? dumped : "");
  free(dumped);
  return out;
}

static gboolean
take_count(const char *key, const json_t *value, guint32 low, guint32 high, guint32 *out,
           GError **error) {
  json_int_t n = json_integer_value(value);
  if (!json_is_integer(value) || n < low || n > high) {
    g_autofree char *text = shown(value);
    return refuse(error, "%s: %s is not a whole number from %u to %u", key, text, low, high);
  }
  *out = (guint32)n;
  return TRUE;
}

static gboolean
take_share(const char *key, const json_t *value, double *out, GError **error) {
  double x = json_number_value(value);
  if (!json_is_number(value) || !(x >= 0 && x <= 1)) {
    g_autofree char *text = shown(value);
    return refuse(error, "%s: %s is not a number from 0 to 1", key, text);
  }
  *out = x;
  return TRUE;
}

static gboolean
take_method(oct_speculative *s, const json_t *value, GError **error) {
  const char *name = json_string_value(value);
  if (name != NULL && strcmp(name, "ngram") == 0)
    s->method = OCT_DRAFT_NGRAM;
  else if (name != NULL && strcmp(name, "draft_model") == 0)
    s->method = OCT_DRAFT_MODEL;
  else
    return refuse(error, "method %s%s%s: ngram or draft_model", name != NULL ? "\"" : "",
                  name != NULL ? name : "is no text", name != NULL ? "\"" : "");
  return TRUE;
}

/* ---------------------------------------------------------------- a measured run's acceptance */

/* The sum over engines of a counter in Prometheus' text; a place is that of label position. */
static double
sum_counter(char **lines, const char *name, int place) {
  double sum = 0;
  gsize n = strlen(name);
  g_autofree char *label = g_strdup_printf("position=\"%d\"", place);
  for (char **line = lines; *line != NULL; line++) {
    if (strncmp(*line, name, n) != 0 || ((*line)[n] != '{' && (*line)[n] != ' '))
      continue;
    if (place >= 0 && strstr(*line, label) == NULL)
      continue;
    const char *value = strrchr(*line, ' ');
    sum += value != NULL ? g_ascii_strtod(value, NULL) : 0;
  }
  return sum;
}

/* What a server's /metrics say: of the drafts at a place, which are those whose predecessor was
 * accepted, the share that was accepted; and of the decodes the share that had drafts. */
static gboolean
read_metrics(oct_speculative *s, const char *path, GError **error) {
  g_autofree char *text = NULL;
  g_autoptr(GError) why = NULL;
  if (!oct_file_read(path, METRICS_BYTES_MAX, &text, NULL, &why))
    return refuse(error, "acceptance: %s: %s", path, why->message);
  g_auto(GStrv) lines = g_strsplit(text, "\n", -1);
  double drafts = sum_counter(lines, "vllm:spec_decode_num_drafts_total", -1);
  if (drafts <= 0)
    return refuse(error, "acceptance: %s has no vllm:spec_decode_num_drafts_total above 0", path);
  double before = drafts;
  for (s->n_acceptance = 0; s->n_acceptance < MIN(s->n_tokens, OCT_DRAFTS_MAX);) {
    double here = sum_counter(lines, "vllm:spec_decode_num_accepted_tokens_per_pos_total",
                              (int)s->n_acceptance);
    s->acceptance[s->n_acceptance++] = before > 0 ? MIN(here / before, 1) : 0;
    before = here;
  }
  double decodes = sum_counter(lines, "vllm:generation_tokens_total", -1) -
                   sum_counter(lines, "vllm:spec_decode_num_accepted_tokens_total", -1) -
                   sum_counter(lines, "vllm:request_success_total", -1);
  if (s->proposal_rate < 0)
    s->proposal_rate = decodes > drafts ? drafts / decodes : 1;
  return TRUE;
}

static gboolean
take_acceptance(oct_speculative *s, const json_t *value, GError **error) {
  if (json_is_string(value))
    return read_metrics(s, json_string_value(value), error);
  if (json_is_number(value)) {
    s->n_acceptance = 1;
    return take_share("acceptance", value, &s->acceptance[0], error);
  }
  gsize n = json_array_size(value);
  if (n < 1 || n > OCT_DRAFTS_MAX)
    return refuse(error,
                  "acceptance is neither a number from 0 to 1, nor a list of 1 to %u of them, nor "
                  "the name of a file with a server's metrics",
                  OCT_DRAFTS_MAX);
  for (gsize i = 0; i < n; i++)
    if (!take_share("acceptance", json_array_get(value, i), &s->acceptance[i], error))
      return FALSE;
  s->n_acceptance = (guint32)n;
  return TRUE;
}

/* ---------------------------------------------------------------- the object */

/* Of "acceptance" the file may need the number of tokens: it is taken last. */
static gboolean
take_key(oct_speculative *s, const char *key, const json_t *value, GError **error) {
  const struct {
    const char *key;
    guint32 low, high, *to;
  } counts[] = {{"num_speculative_tokens", 1, OCT_DRAFTS_MAX, &s->n_tokens},
                {"prompt_lookup_max", 1, OCT_NGRAM_MAX, &s->ngram_max},
                {"prompt_lookup_min", 1, OCT_NGRAM_MAX, &s->ngram_min},
                {"draft_tensor_parallel_size", 1, OCT_PARALLEL_WORLD_MAX, &s->tensor},
                {"disable_by_batch_size", 1, OCT_STEP_SLICES_MAX, &s->seqs_max}};
  for (gsize i = 0; i < G_N_ELEMENTS(counts); i++)
    if (strcmp(key, counts[i].key) == 0)
      return take_count(key, value, counts[i].low, counts[i].high, counts[i].to, error);
  if (strcmp(key, "method") == 0)
    return take_method(s, value, error);
  if (strcmp(key, "min_acceptance") == 0)
    return take_share(key, value, &s->acceptance_min, error);
  if (strcmp(key, "proposal_rate") == 0)
    return take_share(key, value, &s->proposal_rate, error);
  if (strcmp(key, "acceptance") == 0)
    return TRUE;
  if (strcmp(key, "model") == 0) {
    s->model = g_strdup(json_string_value(value));
    return (s->model != NULL && *s->model != '\0') || refuse(error, "model is no name");
  }
  return refuse(error,
                "\"%s\" is not known; known are method, num_speculative_tokens, prompt_lookup_max, "
                "prompt_lookup_min, model, draft_tensor_parallel_size, disable_by_batch_size, "
                "min_acceptance, acceptance, proposal_rate",
                key);
}

static gboolean
settle(oct_speculative *s, GError **error) {
  if (s->method == OCT_DRAFT_NONE && s->model != NULL)
    s->method = strcmp(s->model, "ngram") == 0 ? OCT_DRAFT_NGRAM : OCT_DRAFT_MODEL;
  if (s->method == OCT_DRAFT_NONE)
    return refuse(error, "which method? ngram or draft_model");
  if (s->n_tokens == 0)
    return refuse(error, "num_speculative_tokens is missing: 1 to %u", OCT_DRAFTS_MAX);
  if (s->method == OCT_DRAFT_MODEL && s->model == NULL)
    return refuse(error, "draft_model: which model?");
  if (s->method == OCT_DRAFT_MODEL && (s->ngram_min > 0 || s->ngram_max > 0))
    return refuse(error, "prompt_lookup_max, prompt_lookup_min: of method ngram");
  if (s->method == OCT_DRAFT_NGRAM && s->model != NULL && strcmp(s->model, "ngram") != 0)
    return refuse(error, "model \"%s\": of method draft_model", s->model);
  if (s->method == OCT_DRAFT_NGRAM && s->tensor > 0)
    return refuse(error, "draft_tensor_parallel_size: of method draft_model");
  guint32 either = MAX(s->ngram_min, s->ngram_max);
  s->ngram_min = s->ngram_min > 0 ? s->ngram_min : either > 0 ? either : DEFAULT_LOOKUP;
  s->ngram_max = s->ngram_max > 0 ? s->ngram_max : either > 0 ? either : DEFAULT_LOOKUP;
  if (s->ngram_min > s->ngram_max)
    return refuse(error, "prompt_lookup_min %u is above prompt_lookup_max %u", s->ngram_min,
                  s->ngram_max);
  return TRUE;
}

static gboolean
parse(const char *text, oct_speculative *s, GError **error) {
  json_error_t why;
  json_t *object = json_loads(text, JSON_REJECT_DUPLICATES, &why);
  const char *key;
  json_t *value, *acceptance = json_object_get(object, "acceptance");
  gboolean good = json_is_object(object);
  if (object == NULL)
    refuse(error, "is no JSON: %s at character %d", why.text, why.position);
  else if (!good)
    refuse(error, "is no JSON object, as {\"method\":\"ngram\",\"num_speculative_tokens\":5}");
  json_object_foreach(object, key, value) {
    good = good && take_key(s, key, value, error);
  }
  good = good && settle(s, error) && (acceptance == NULL || take_acceptance(s, acceptance, error));
  json_decref(object);
  return good;
}

gboolean
oct_speculative_parse(const char *text, oct_speculative *out, GError **error) {
  *out = (oct_speculative){.acceptance_min = DEFAULT_ACCEPTANCE, .proposal_rate = -1};
  if (parse(text, out, error))
    return TRUE;
  oct_speculative_clear(out);
  return FALSE;
}

void
oct_speculative_clear(oct_speculative *s) {
  g_clear_pointer(&s->model, g_free);
  s->method = OCT_DRAFT_NONE;
}

char *
oct_speculative_rates(const oct_speculative *s) {
  if (s->n_acceptance == 0)
    return NULL;
  g_autoptr(GString) out = g_string_new(NULL);
  for (guint32 i = 0; i < s->n_acceptance; i++) {
    char number[G_ASCII_DTOSTR_BUF_SIZE];
    g_string_append_printf(out, "%s%s", i > 0 ? "+" : "",
                           g_ascii_dtostr(number, sizeof number, s->acceptance[i]));
  }
  return g_string_free(g_steal_pointer(&out), FALSE);
}

char *
oct_speculative_of_server(const char *text) {
  json_t *object = json_loads(text, 0, NULL);
  char *out = NULL;
  if (json_is_object(object)) {
    json_object_del(object, "acceptance");
    json_object_del(object, "proposal_rate");
    char *dumped = json_dumps(object, JSON_COMPACT | JSON_PRESERVE_ORDER);
    out = g_strdup(dumped);
    free(dumped);
  }
  json_decref(object);
  return out;
}
