/* POST /v1/embeddings: a vector per text. */
#include "engine/api/internal.h"

#include <math.h>
#include <string.h>

typedef struct embedding_fields {
  const char *model, *encoding_format;
  const json_t *input;
  gint64 dimensions, truncate_prompt_tokens, priority;
  gboolean add_special_tokens, normalize;
} embedding_fields;

#define FIELD(member, kind, ...) OCT_FIELD(embedding_fields, member, kind, __VA_ARGS__)
static const oct_field fields[] = {
    FIELD(model, STRING, 0, 0, NULL),
    FIELD(input, VALUE, 0, 0, NULL),
    FIELD(encoding_format, STRING, 0, 0, NULL),
    FIELD(dimensions, INT, 1, G_MAXINT32, NULL),
    FIELD(truncate_prompt_tokens, INT, -1, -1, NULL),
    FIELD(priority, INT, G_MININT32, G_MAXINT32, NULL),
    FIELD(add_special_tokens, BOOL, 0, 0, NULL),
    FIELD(normalize, BOOL, 0, 0, NULL),
    OCT_FIELD_IGNORE("user"),
    OCT_FIELD_IGNORE("request_id"),
    OCT_FIELD_REFUSE("messages", "is not supported: use input"),
    OCT_FIELD_REFUSE("embed_dtype", NULL),
    OCT_FIELD_REFUSE("endianness", NULL),
    OCT_FIELD_REFUSE("mm_processor_kwargs", NULL),
};

gboolean
oct_embeddings_read(oct_plan *plan, const oct_api_model *model, const char *bytes, gsize size,
                    oct_api_fault *fault) {
  embedding_fields f = {.dimensions = -1,
                        .truncate_prompt_tokens = -1,
                        .add_special_tokens = TRUE,
                        .normalize = TRUE};
  const oct_field_table table = {fields, G_N_ELEMENTS(fields), &f};
  if (!oct_plan_body(plan, model, bytes, size, fault) ||
      !oct_fields_read(plan->root, "", &table, 1, fault) ||
      !oct_plan_model(plan, model, f.model, fault))
    return FALSE;
  const char *format = f.encoding_format != NULL ? f.encoding_format : "float";
  plan->base64 = g_str_equal(format, "base64");
  if (!plan->base64 && !g_str_equal(format, "float"))
    return oct_api_refuse(fault, 400, "encoding_format",
                          "encoding_format: '%.32s' is not float or base64", format);
  plan->dimensions = f.dimensions;
  plan->normalize = f.normalize;
  plan->plain = f.add_special_tokens;
  plan->sampling.priority = f.priority;
  return oct_plan_prompts(plan, model, f.input, "input", fault);
}

/* --- answers -----------------------------------------------------------------------------------
 */

/* The first `dimensions` values, of length 1 again: what models trained for that want. */
static void
shorten(const oct_plan *plan, GArray *vector) {
  if (plan->dimensions > 0)
    g_array_set_size(vector, (guint)plan->dimensions);
  double sum = 0;
  for (guint i = 0; i < vector->len; i++)
    sum += (double)g_array_index(vector, float, i) * (double)g_array_index(vector, float, i);
  if (!plan->normalize || !(sum > 0))
    return;
  double scale = 1 / sqrt(sum);
  for (guint i = 0; i < vector->len; i++)
    g_array_index(vector, float, i) = (float)((double)g_array_index(vector, float, i) * scale);
}

static void
put_vector(const oct_plan *plan, const GArray *vector, oct_out *json) {
  oct_out_key(json, "embedding");
  if (plan->base64) { /* float32, little endian */
    g_autofree char *text =
        g_base64_encode((const guchar *)vector->data, (gsize)vector->len * sizeof(float));
    oct_out_string(json, text);
    return;
  }
  oct_out_open(json, '[');
  for (guint i = 0; i < vector->len; i++)
    oct_out_float(json, g_array_index(vector, float, i));
  oct_out_close(json, ']');
}

static void
whole(oct_job *job) {
  oct_out json = OCT_OUT_INIT(job->out);
  oct_out_open(&json, '{');
  oct_out_put_string(&json, "id", job->id);
  oct_out_put_string(&json, "object", "list");
  oct_out_put_int(&json, "created", job->created_s);
  oct_out_put_string(&json, "model", job->plan.model);
  oct_out_key(&json, "data");
  oct_out_open(&json, '[');
  for (guint i = 0; i < job->n_choices; i++) {
    shorten(&job->plan, job->choices[i].vector);
    oct_out_open(&json, '{');
    oct_out_put_string(&json, "object", "embedding");
    oct_out_put_int(&json, "index", i);
    put_vector(&job->plan, job->choices[i].vector, &json);
    oct_out_close(&json, '}');
  }
  oct_out_close(&json, ']');
  oct_job_put_usage(job, &json);
  oct_out_close(&json, '}');
}

/* Whether the vectors have as many values as are wanted. */
static gboolean
check(oct_job *job, oct_api_fault *fault) {
  for (guint i = 0; i < job->n_choices; i++) {
    if (job->choices[i].vector == NULL)
      return oct_api_refuse(fault, 500, NULL, "internal error");
    guint n = job->choices[i].vector->len;
    if (job->plan.dimensions > n)
      return oct_api_refuse(fault, 400, "dimensions",
                            "dimensions: %" G_GINT64_FORMAT
                            " is above the limit of %u, the model's own",
                            job->plan.dimensions, n);
  }
  return TRUE;
}

const oct_shape oct_embeddings_shape = {
    .whole = whole, .check = check, .vectors = TRUE, .id_prefix = "embd-"};

void
oct_api_run_embeddings(oct_api *api, oct_http_exchange *x, const char *path) {
  (void)path;
  if (api->config.pooling != OCT_API_POOL_NONE) {
    oct_api_run_plan(api, x, &oct_embeddings_shape, oct_embeddings_read);
    return;
  }
  g_auto(oct_api_fault) fault = {.status = 0};
  oct_api_refuse(&fault, 404, NULL, "the server runs with --pooling none");
  oct_api_respond_fault(api, x, &fault, FALSE);
}
