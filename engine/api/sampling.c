#include "engine/api/sampling.h"

#include <string.h>

#include "engine/api/json-in.h"

void
oct_sampling_init(oct_sampling *sampling) {
  *sampling = (oct_sampling){.n = 1,
                             .best_of = -1,
                             .max_tokens = -1,
                             .top_k = -1,
                             .seed = -1,
                             .prompt_logprobs = -1,
                             .truncate_prompt_tokens = -1,
                             .temperature = 1,
                             .top_p = 1,
                             .repetition_penalty = 1,
                             .length_penalty = 1,
                             .skip_special_tokens = TRUE,
                             .logprobs = -1};
  sampling->stops = g_ptr_array_new_with_free_func(g_free);
  sampling->stop_tokens = g_array_new(FALSE, FALSE, sizeof(guint32));
  sampling->biases = g_array_new(FALSE, FALSE, sizeof(oct_token_bias));
}

void
oct_sampling_clear(oct_sampling *sampling) {
  g_clear_pointer(&sampling->stops, g_ptr_array_unref);
  g_clear_pointer(&sampling->stop_tokens, g_array_unref);
  g_clear_pointer(&sampling->biases, g_array_unref);
  g_clear_pointer(&sampling->constraint_text, g_free);
  g_clear_pointer(&sampling->constraint_param, g_free);
}

#define FIELD(member, kind, ...) OCT_FIELD(oct_sampling, member, kind, __VA_ARGS__)

static const oct_field fields[] = {
    FIELD(n, INT, 1, OCT_API_N_MAX, NULL),
    FIELD(best_of, INT, 1, OCT_API_N_MAX, NULL),
    FIELD(max_tokens, INT, 0, G_MAXINT32, NULL),
    FIELD(min_tokens, INT, 0, G_MAXINT32, NULL),
    FIELD(temperature, NUMBER, 0, 2, NULL),
    FIELD(top_p, NUMBER, 0, 1, NULL),
    FIELD(top_k, INT, -1, G_MAXINT32, NULL),
    FIELD(min_p, NUMBER, 0, 1, NULL),
    FIELD(repetition_penalty, NUMBER, 0.01, 10, NULL),
    FIELD(presence_penalty, NUMBER, -2, 2, NULL),
    FIELD(frequency_penalty, NUMBER, -2, 2, NULL),
    FIELD(length_penalty, NUMBER, 1, 1, NULL),
    FIELD(seed, INT, 0, OCT_API_SAFE_INT_MAX, NULL),
    FIELD(priority, INT, G_MININT32, G_MAXINT32, NULL),
    FIELD(prompt_logprobs, INT, 0, OCT_API_LOGPROBS_MAX, NULL),
    FIELD(truncate_prompt_tokens, INT, -1, G_MAXINT32, NULL),
    FIELD(ignore_eos, BOOL, 0, 0, NULL),
    FIELD(include_stop_str_in_output, BOOL, 0, 0, NULL),
    FIELD(skip_special_tokens, BOOL, 0, 0, NULL),
    FIELD(stream, BOOL, 0, 0, NULL),
    FIELD(return_token_ids, BOOL, 0, 0, NULL),
    FIELD(return_tokens_as_token_ids, BOOL, 0, 0, NULL),
    FIELD(cache_salt, STRING, 0, 256, NULL),
    FIELD(stop, VALUE, 0, 0, NULL),
    FIELD(stop_token_ids, ARRAY, 0, OCT_API_STOP_TOKENS_MAX, NULL),
    FIELD(logit_bias, OBJECT, 0, 0, NULL),
    FIELD(stream_options, OBJECT, 0, 0, NULL),
    FIELD(response_format, OBJECT, 0, 0, NULL),
    FIELD(structured_outputs, OBJECT, 0, 0, NULL),
    FIELD(guided_json, VALUE, 0, 0, NULL),
    FIELD(guided_choice, ARRAY, 0, 0, NULL),
    FIELD(guided_regex, VALUE, 0, 0, NULL),
    OCT_FIELD_IGNORE("user"),
    OCT_FIELD_IGNORE("metadata"),
    OCT_FIELD_IGNORE("request_id"),
    OCT_FIELD_IGNORE("spaces_between_special_tokens"),
    OCT_FIELD_IGNORE("guided_decoding_backend"),
    OCT_FIELD_REFUSE("allowed_token_ids", "is not supported: use logit_bias"),
    OCT_FIELD_REFUSE("bad_words", "is not supported: use logit_bias"),
    OCT_FIELD_REFUSE("early_stopping", "beam search is not supported"),
    OCT_FIELD_REFUSE("guided_grammar", "is not supported: use guided_regex or guided_json"),
    OCT_FIELD_REFUSE("guided_whitespace_pattern", NULL),
    OCT_FIELD_REFUSE("kv_transfer_params", NULL),
    OCT_FIELD_REFUSE("logits_processors", "a request cannot bring code"),
    OCT_FIELD_REFUSE("repetition_detection", NULL),
    OCT_FIELD_REFUSE("thinking_token_budget", NULL),
    OCT_FIELD_REFUSE("use_beam_search", "beam search is not supported"),
    OCT_FIELD_REFUSE("vllm_xargs", NULL),
};

oct_field_table
oct_sampling_table(oct_sampling *sampling) {
  return (oct_field_table){fields, G_N_ELEMENTS(fields), sampling};
}

/* --- lists ------------------------------------------------------------------------------------ */

static gboolean
add_stop(oct_sampling *sampling, const char *param, const json_t *value, oct_api_fault *fault) {
  if (!json_is_string(value))
    return oct_api_refuse(fault, 400, param, "%s: %s is not a string", param,
                          oct_json_type_name(value));
  gsize size = json_string_length(value);
  if (size == 0 || size > OCT_STOP_BYTES_MAX)
    return oct_api_refuse(fault, 400, param,
                          "%s: a string of %" G_GSIZE_FORMAT " bytes, from 1 to %u are possible",
                          param, size, OCT_STOP_BYTES_MAX);
  g_ptr_array_add(sampling->stops, g_strdup(json_string_value(value)));
  return TRUE;
}

gboolean
oct_sampling_read_stops(oct_sampling *sampling, const char *param, const json_t *value,
                        oct_api_fault *fault) {
  if (value == NULL)
    return TRUE;
  if (!json_is_array(value))
    return add_stop(sampling, param, value, fault);
  gsize n = json_array_size(value);
  if (n > OCT_STOP_STRINGS_MAX)
    return oct_api_refuse(fault, 400, param,
                          "%s: %" G_GSIZE_FORMAT " strings are above the limit of %u", param, n,
                          OCT_STOP_STRINGS_MAX);
  for (gsize i = 0; i < n; i++)
    if (!add_stop(sampling, param, json_array_get(value, i), fault))
      return FALSE;
  return TRUE;
}

/* A token's id; FALSE when the vocabulary has none such. */
static gboolean
check_token(const char *param, gint64 id, guint32 n_tokens, oct_api_fault *fault) {
  return (id >= 0 && id < n_tokens) ||
         oct_api_refuse(fault, 400, param,
                        "%s: token %" G_GINT64_FORMAT " is not in the vocabulary of %u", param, id,
                        n_tokens);
}

static gboolean
read_stop_tokens(oct_sampling *sampling, guint32 n_tokens, oct_api_fault *fault) {
  const char *param = "stop_token_ids";
  for (gsize i = 0; i < json_array_size(sampling->stop_token_ids); i++) {
    const json_t *value = json_array_get(sampling->stop_token_ids, i);
    if (!json_is_integer(value))
      return oct_api_refuse(fault, 400, param, "%s: %s is not an integer", param,
                            oct_json_type_name(value));
    if (!check_token(param, json_integer_value(value), n_tokens, fault))
      return FALSE;
    guint32 id = (guint32)json_integer_value(value);
    g_array_append_val(sampling->stop_tokens, id);
  }
  return TRUE;
}

/* Keys are ids in decimal. Anything but digits, or a leading zero, is refused: "1" and "01" would
 * be one token under two keys. */
static gboolean
read_bias_key(const char *key, gint64 *id) {
  gsize n = strlen(key);
  if (n == 0 || n > 10 || (key[0] == '0' && n > 1))
    return FALSE;
  *id = 0;
  for (gsize i = 0; i < n; i++) {
    if (!g_ascii_isdigit(key[i]))
      return FALSE;
    *id = *id * 10 + (key[i] - '0');
  }
  return TRUE;
}

static gboolean
read_biases(oct_sampling *sampling, guint32 n_tokens, oct_api_fault *fault) {
  const char *param = "logit_bias", *key;
  json_t *value;
  gsize n = json_object_size(sampling->logit_bias);
  if (n > OCT_API_BIAS_MAX)
    return oct_api_refuse(fault, 400, param,
                          "%s: %" G_GSIZE_FORMAT " entries are above the limit of %u", param, n,
                          OCT_API_BIAS_MAX);
  json_object_foreach((json_t *)sampling->logit_bias, key, value) {
    gint64 id;
    if (!read_bias_key(key, &id))
      return oct_api_refuse(fault, 400, param, "%s: a key is not a token's id", param);
    if (!check_token(param, id, n_tokens, fault))
      return FALSE;
    double bias = json_number_value(value);
    if (!json_is_number(value) || bias < -100 || bias > 100)
      return oct_api_refuse(fault, 400, param,
                            "%s: the value of token %" G_GINT64_FORMAT
                            " is not a number from -100 to 100",
                            param, id);
    oct_token_bias entry = {(guint32)id, (float)bias};
    g_array_append_val(sampling->biases, entry);
  }
  return TRUE;
}

static gboolean
read_stream_options(oct_sampling *sampling, oct_api_fault *fault) {
  struct options {
    gboolean include_usage, continuous_usage_stats;
  } options = {FALSE, FALSE};
  static const oct_field table[] = {
      OCT_FIELD(struct options, include_usage, BOOL, 0, 0, NULL),
      OCT_FIELD(struct options, continuous_usage_stats, BOOL, 0, 0, NULL),
      OCT_FIELD_IGNORE("include_obfuscation"),
  };
  const oct_field_table tables[] = {{table, G_N_ELEMENTS(table), &options}};
  if (sampling->stream_options == NULL)
    return TRUE;
  if (!sampling->stream)
    return oct_api_refuse(fault, 400, "stream_options",
                          "stream_options: is only allowed when stream is true");
  if (!oct_fields_read(sampling->stream_options, "stream_options.", tables, 1, fault))
    return FALSE;
  sampling->continuous_usage = options.continuous_usage_stats;
  sampling->include_usage = options.include_usage;
  return TRUE;
}

/* --- constraints ------------------------------------------------------------------------------ */

static gboolean
check_schema(const char *text, const char *param, oct_api_fault *fault) {
  gsize size = strlen(text);
  if (size > OCT_API_SCHEMA_BYTES_MAX)
    return oct_api_refuse(fault, 400, param,
                          "%s: a schema of %" G_GSIZE_FORMAT " bytes is above the limit of %u",
                          param, size, OCT_API_SCHEMA_BYTES_MAX);
  return oct_json_depth(text) <= OCT_API_SCHEMA_DEPTH_MAX ||
         oct_api_refuse(fault, 400, param, "%s: a schema nested more than %u deep", param,
                        OCT_API_SCHEMA_DEPTH_MAX);
}

static gboolean
check_choices(const char *param, const json_t *value, oct_api_fault *fault) {
  gsize n = json_array_size(value);
  gboolean strings = n > 0 && n <= OCT_API_CHOICES_MAX;
  for (gsize i = 0; strings && i < n; i++)
    strings = json_string_length(json_array_get(value, i)) > 0;
  return strings || oct_api_refuse(fault, 400, param, "%s: is not a list of 1 to %u strings", param,
                                   OCT_API_CHOICES_MAX);
}

/* vLLM takes a schema as text of JSON too. */
static gboolean
schema_from_text(const char *param, const json_t *value, json_t **schema, oct_api_fault *fault) {
  if (!json_is_string(value)) {
    *schema = json_incref((json_t *)value);
    return TRUE;
  }
  g_auto(oct_api_fault) inner = {.status = 0};
  *schema = oct_json_read(json_string_value(value), json_string_length(value), 0, &inner);
  return *schema != NULL || oct_api_refuse(fault, 400, param, "%s: is not a schema in JSON", param);
}

gboolean
oct_sampling_constrain(oct_sampling *sampling, oct_constraint kind, const char *param,
                       const json_t *value, oct_api_fault *fault) {
  if (sampling->constraint != OCT_CONSTRAINT_NONE)
    return oct_api_refuse(fault, 400, param, "%s: there is another constraint already", param);
  if (kind == OCT_CONSTRAINT_REGEX) {
    if (!json_is_string(value) || json_string_length(value) == 0 ||
        json_string_length(value) > OCT_GUIDE_BYTES_MAX)
      return oct_api_refuse(fault, 400, param, "%s: is not a string of 1 to %u bytes", param,
                            OCT_GUIDE_BYTES_MAX);
    sampling->constraint_text = g_strdup(json_string_value(value));
  } else if (kind == OCT_CONSTRAINT_SCHEMA || kind == OCT_CONSTRAINT_CHOICE) {
    json_t *from = NULL;
    if (kind == OCT_CONSTRAINT_CHOICE && !check_choices(param, value, fault))
      return FALSE;
    if (!schema_from_text(param, value, &from, fault))
      return FALSE;
    char *text = json_dumps(from, JSON_COMPACT | JSON_ENCODE_ANY);
    json_decref(from);
    sampling->constraint_text = g_strdup(text);
    free(text);
    if (kind == OCT_CONSTRAINT_SCHEMA && !check_schema(sampling->constraint_text, param, fault))
      return FALSE;
  }
  sampling->constraint = kind;
  sampling->constraint_param = g_strdup(param);
  return TRUE;
}

gboolean
oct_sampling_format(oct_sampling *sampling, const char *param, const json_t *format,
                    gboolean nested, oct_api_fault *fault) {
  struct format {
    const char *type, *name, *description;
    const json_t *json_schema, *schema;
    gboolean strict;
  } outer = {.type = NULL}, inner = {.type = NULL};
#define FORMAT(member, kind) OCT_FIELD(struct format, member, kind, 0, 0, NULL)
  static const oct_field in_chat[] = {FORMAT(type, STRING), FORMAT(json_schema, OBJECT)};
  static const oct_field of_schema[] = {FORMAT(name, STRING), FORMAT(description, STRING),
                                        FORMAT(schema, OBJECT), FORMAT(strict, BOOL)};
  static const oct_field in_responses[] = {FORMAT(type, STRING), FORMAT(name, STRING),
                                           FORMAT(description, STRING), FORMAT(schema, OBJECT),
                                           FORMAT(strict, BOOL)};
#undef FORMAT
  const oct_field_table outer_table = {nested ? in_chat : in_responses,
                                       nested ? G_N_ELEMENTS(in_chat) : G_N_ELEMENTS(in_responses),
                                       &outer};
  const oct_field_table inner_table = {of_schema, G_N_ELEMENTS(of_schema), &inner};
  g_autofree char *prefix = g_strconcat(param, ".", NULL);
  g_autofree char *type_param = g_strconcat(prefix, "type", NULL);
  g_autofree char *inner_prefix = g_strconcat(prefix, "json_schema.", NULL);
  g_autofree char *schema_param = g_strconcat(nested ? inner_prefix : prefix, "schema", NULL);
  if (format == NULL)
    return TRUE;
  if (!oct_fields_read(format, prefix, &outer_table, 1, fault))
    return FALSE;
  if (g_strcmp0(outer.type, "text") == 0)
    return TRUE;
  if (g_strcmp0(outer.type, "json_object") == 0)
    return oct_sampling_constrain(sampling, OCT_CONSTRAINT_JSON, param, NULL, fault);
  if (g_strcmp0(outer.type, "json_schema") != 0)
    return oct_api_refuse(fault, 400, type_param,
                          "%s: '%.64s' is not text, json_object or json_schema", type_param,
                          outer.type != NULL ? outer.type : "");
  if (outer.json_schema != NULL &&
      !oct_fields_read(outer.json_schema, inner_prefix, &inner_table, 1, fault))
    return FALSE;
  const json_t *schema = nested ? inner.schema : outer.schema;
  if (schema == NULL)
    return oct_api_refuse(fault, 400, schema_param, "%s: is needed", schema_param);
  return oct_sampling_constrain(sampling, OCT_CONSTRAINT_SCHEMA, schema_param, schema, fault);
}

static gboolean
read_structured(oct_sampling *sampling, oct_api_fault *fault) {
  struct outputs {
    const json_t *json, *choice, *regex;
    gboolean json_object;
  } outputs = {.json = NULL};
  static const oct_field table[] = {
      OCT_FIELD(struct outputs, json, VALUE, 0, 0, NULL),
      OCT_FIELD(struct outputs, choice, ARRAY, 0, 0, NULL),
      OCT_FIELD(struct outputs, regex, VALUE, 0, 0, NULL),
      OCT_FIELD(struct outputs, json_object, BOOL, 0, 0, NULL),
      OCT_FIELD_REFUSE("grammar", "is not supported: use regex or json"),
      OCT_FIELD_REFUSE("structural_tag", NULL),
      OCT_FIELD_REFUSE("whitespace_pattern", NULL),
      OCT_FIELD_REFUSE("disable_any_whitespace", NULL),
      OCT_FIELD_REFUSE("disable_additional_properties", NULL),
      OCT_FIELD_IGNORE("disable_fallback"),
  };
  const oct_field_table tables[] = {{table, G_N_ELEMENTS(table), &outputs}};
  const char *prefix = "structured_outputs.";
  if (sampling->structured_outputs == NULL)
    return TRUE;
  return oct_fields_read(sampling->structured_outputs, prefix, tables, 1, fault) &&
         (outputs.json == NULL ||
          oct_sampling_constrain(sampling, OCT_CONSTRAINT_SCHEMA, "structured_outputs.json",
                                 outputs.json, fault)) &&
         (outputs.choice == NULL ||
          oct_sampling_constrain(sampling, OCT_CONSTRAINT_CHOICE, "structured_outputs.choice",
                                 outputs.choice, fault)) &&
         (outputs.regex == NULL ||
          oct_sampling_constrain(sampling, OCT_CONSTRAINT_REGEX, "structured_outputs.regex",
                                 outputs.regex, fault)) &&
         (!outputs.json_object ||
          oct_sampling_constrain(sampling, OCT_CONSTRAINT_JSON, "structured_outputs.json_object",
                                 NULL, fault));
}

static gboolean
read_constraints(oct_sampling *s, oct_api_fault *fault) {
  return oct_sampling_format(s, "response_format", s->response_format, TRUE, fault) &&
         read_structured(s, fault) &&
         (s->guided_json == NULL ||
          oct_sampling_constrain(s, OCT_CONSTRAINT_SCHEMA, "guided_json", s->guided_json, fault)) &&
         (s->guided_choice == NULL ||
          oct_sampling_constrain(s, OCT_CONSTRAINT_CHOICE, "guided_choice", s->guided_choice,
                                 fault)) &&
         (s->guided_regex == NULL ||
          oct_sampling_constrain(s, OCT_CONSTRAINT_REGEX, "guided_regex", s->guided_regex, fault));
}

/* --- sums ------------------------------------------------------------------------------------- */

static gboolean
check_amounts(const oct_sampling *s, guint32 context, oct_api_fault *fault) {
  if (s->best_of >= 0 && s->best_of != s->n)
    return oct_api_refuse(fault, 400, "best_of",
                          "best_of: %" G_GINT64_FORMAT " is not n, which is %" G_GINT64_FORMAT
                          ": choices are not ranked",
                          s->best_of, s->n);
  if (s->max_tokens > context)
    return oct_api_refuse(fault, 400, "max_tokens",
                          "max_tokens: %" G_GINT64_FORMAT " is above the limit of %u, the context",
                          s->max_tokens, context);
  if (s->max_tokens > 0 && s->n * s->max_tokens > 4 * (gint64)context)
    return oct_api_refuse(fault, 400, "n",
                          "n: %" G_GINT64_FORMAT " choices of %" G_GINT64_FORMAT
                          " tokens are above the limit of %" G_GINT64_FORMAT ", 4 x the context",
                          s->n, s->max_tokens, 4 * (gint64)context);
  if (s->max_tokens >= 0 && s->min_tokens > s->max_tokens)
    return oct_api_refuse(fault, 400, "min_tokens",
                          "min_tokens: %" G_GINT64_FORMAT " is above max_tokens, %" G_GINT64_FORMAT,
                          s->min_tokens, s->max_tokens);
  if (s->min_tokens > context)
    return oct_api_refuse(fault, 400, "min_tokens",
                          "min_tokens: %" G_GINT64_FORMAT " is above the limit of %u, the context",
                          s->min_tokens, context);
  if (s->stream && s->prompt_logprobs >= 0)
    return oct_api_refuse(fault, 400, "prompt_logprobs",
                          "prompt_logprobs: are not available when stream is true");
  return TRUE;
}

gboolean
oct_sampling_check(oct_sampling *sampling, guint32 n_tokens, guint32 context,
                   oct_api_fault *fault) {
  return check_amounts(sampling, context, fault) && read_constraints(sampling, fault) &&
         oct_sampling_read_stops(sampling, "stop", sampling->stop, fault) &&
         read_stop_tokens(sampling, n_tokens, fault) && read_biases(sampling, n_tokens, fault) &&
         read_stream_options(sampling, fault);
}
