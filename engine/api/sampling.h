/* What every endpoint that generates text can be asked for: sampling, length, stops, log
 * probabilities, constraints. One table reads it for /v1/completions and /v1/chat/completions; the
 * other endpoints fill the struct from their own fields. */
#ifndef OCT_API_SAMPLING_H
#define OCT_API_SAMPLING_H

#include "engine/api/fields.h"
#include "engine/backend.h"
#include "engine/serve/service.h"
#include "engine/text/guide.h"
#include "engine/text/stop.h"

/* Limits. */
#define OCT_API_N_MAX            8
#define OCT_API_LOGPROBS_MAX     20
#define OCT_API_BIAS_MAX         1024u
#define OCT_API_STOP_TOKENS_MAX  16u
#define OCT_API_SCHEMA_BYTES_MAX 65536u
#define OCT_API_SCHEMA_DEPTH_MAX 16u
#define OCT_API_SAFE_INT_MAX     ((1LL << 53) - 1) /* what JavaScript can count to */
#define OCT_API_CHOICES_MAX      1024u             /* of guided_choice */

/* As read; -1 is "not given" for integers without a default. Members that tables fill have the
 * field's name. */
typedef struct oct_sampling {
  gint64 n, best_of, max_tokens, min_tokens, top_k, seed, priority;
  gint64 prompt_logprobs, truncate_prompt_tokens;
  double temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
  double length_penalty;
  gboolean ignore_eos, include_stop_str_in_output, skip_special_tokens, stream;
  gboolean return_token_ids, return_tokens_as_token_ids;
  const char *cache_salt;
  const json_t *stop, *stop_token_ids, *logit_bias, *stream_options;
  const json_t *response_format, *structured_outputs, *guided_json, *guided_choice, *guided_regex;

  /* What oct_sampling_check() makes of them. */
  gboolean include_usage, continuous_usage;
  gint64 logprobs;     /* alternatives per token, 0: the chosen one only, -1: none */
  GPtrArray *stops;    /* char *; never NULL after init */
  GArray *stop_tokens; /* guint32 */
  GArray *biases;      /* oct_token_bias */
  oct_constraint constraint;
  char *constraint_text;
  char *constraint_param; /* the field that it came from */
} oct_sampling;

void oct_sampling_init(oct_sampling *sampling);
void oct_sampling_clear(oct_sampling *sampling);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(oct_sampling, oct_sampling_clear)

/* The table of /v1/completions and /v1/chat/completions. */
oct_field_table oct_sampling_table(oct_sampling *sampling);

/* What one field alone cannot say: lists, sums, constraints, fields that exclude each other.
 * `n_tokens` is the vocabulary's, `context` the model's length in tokens. */
gboolean oct_sampling_check(oct_sampling *sampling, guint32 n_tokens, guint32 context,
                            oct_api_fault *fault) G_GNUC_WARN_UNUSED_RESULT;

/* The stop strings of field `param`: a string, or a list of them. */
gboolean oct_sampling_read_stops(oct_sampling *sampling, const char *param, const json_t *value,
                                 oct_api_fault *fault) G_GNUC_WARN_UNUSED_RESULT;

/* What the answer must fit; a second constraint is refused. `value` is a schema (SCHEMA: an object,
 * true, or text of JSON), a list of strings (CHOICE), a string (REGEX), or not looked at. */
gboolean oct_sampling_constrain(oct_sampling *sampling, oct_constraint kind, const char *param,
                                const json_t *value,
                                oct_api_fault *fault) G_GNUC_WARN_UNUSED_RESULT;
/* The same of a response_format: text, json_object, json_schema; `nested`: the last has its schema
 * inside "json_schema", else (Responses) beside its type. */
gboolean oct_sampling_format(oct_sampling *sampling, const char *param, const json_t *format,
                             gboolean nested, oct_api_fault *fault) G_GNUC_WARN_UNUSED_RESULT;

#endif
