#include "sim/validate/steps.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <glib/gstdio.h>

#include "engine/base/assert.h"
#include "engine/model/expert-counts.h"
#include "sim/validate/report.h"
#include "sim/validate/validate.h"

#define LOG_VERSION    1
#define LINE_BYTES_MAX ((gsize)64 << 20)
#define INSTANCES_MAX  64
#define AIM_MEDIAN     0.03
#define AIM_P90        0.08

typedef enum step_kind { KIND_DECODE, KIND_PROMPT, KIND_MIXED, KIND_VERIFY, KINDS } step_kind;
static const char *const kind_names[KINDS] = {"decodes", "prompts", "both", "with drafts"};

/* Where steps differ: decodes by sequences and mean context, steps with prompts by tokens. */
#define BANDS         5
#define CONTEXT_BANDS 4
static const guint32 sequence_ends[BANDS] = {1, 8, 32, 128, G_MAXUINT32};
static const guint32 context_ends[CONTEXT_BANDS] = {256, 1024, 4096, G_MAXUINT32};
static const guint32 token_ends[BANDS] = {256, 1024, 2048, 4096, G_MAXUINT32};

/* What is found of one kind of step. */
typedef struct kind_score {
  oct_score score;
  double priced_s, measured_s;
} kind_score;

typedef struct logged_instance {
  gint64 id;
  oct_profile profile; /* shallow, with the graphs that the log tells */
  oct_cost *cost;
  guint32 n_stages, seen;
  gint64 last_end_ns;
  oct_heat heat[OCT_COST_STAGES_MAX]; /* by the real times */
} logged_instance;

typedef struct reading {
  const oct_steps_validation *validation;
  oct_model_spec *spec;
  oct_profile *profile;
  guint32 window, n_routing_weights;
  double *routing_weights; /* popularity by rank; NULL = uniform */
  guint n_instances;
  logged_instance instances[INSTANCES_MAX];
  guint64 line;
  kind_score kinds[KINDS], all;
  kind_score decodes[BANDS][CONTEXT_BANDS], prompts[BANDS];
  GArray *gaps; /* double: seconds in which nothing ran although a step was known before */
  double busy_s, idle_s;
} reading;

/* ---------------------------------------------------------------- reading values */

static gboolean
bad_line(const reading *r, const char *what, GError **error) {
  g_set_error(error, OCT_VALIDATE_ERROR, OCT_VALIDATE_ERROR_DATA, "%s:%" G_GUINT64_FORMAT ": %s",
              r->validation->log, r->line, what);
  return FALSE;
}

static gboolean
take_integer(const reading *r, const json_t *object, const char *key, gint64 low, gint64 high,
             gint64 *out, GError **error) {
  const json_t *value = json_object_get(object, key);
  if (!json_is_integer(value) || json_integer_value(value) < low ||
      json_integer_value(value) > high) {
    g_autofree char *text = g_strdup_printf("\"%s\" is not a whole number from %" G_GINT64_FORMAT
                                            " to %" G_GINT64_FORMAT,
                                            key, low, high);
    return bad_line(r, text, error);
  }
  *out = json_integer_value(value);
  return TRUE;
}

static gboolean
integer_of(const json_t *value, gint64 high, guint32 *out) {
  if (!json_is_integer(value) || json_integer_value(value) < 0 || json_integer_value(value) > high)
    return FALSE;
  *out = (guint32)json_integer_value(value);
  return TRUE;
}

/* ---------------------------------------------------------------- an instance */

static gboolean
take_parallel(const reading *r, const json_t *line, oct_parallel *parallel, GError **error) {
  gint64 tensor, pipeline, data, context;
  if (!take_integer(r, line, "tensor", 1, 4096, &tensor, error) ||
      !take_integer(r, line, "pipeline", 1, OCT_PARALLEL_STAGES_MAX, &pipeline, error) ||
      !take_integer(r, line, "data", 1, OCT_STEP_DOMAINS_MAX, &data, error) ||
      !take_integer(r, line, "decode_context", 1, 4096, &context, error))
    return FALSE;
  *parallel = OCT_PARALLEL_DEFAULT;
  parallel->tensor = (guint32)tensor;
  parallel->pipeline = (guint32)pipeline;
  parallel->data = (guint32)data;
  parallel->decode_context = (guint32)context;
  parallel->expert_parallel = json_is_true(json_object_get(line, "expert_parallel"));
  return TRUE;
}

static gboolean
take_opened(reading *r, const json_t *line, GError **error) {
  const char *kv = json_string_value(json_object_get(line, "kv_dtype"));
  oct_cost_options options = {.eager = json_is_true(json_object_get(line, "eager")),
                              .moe_kernel = r->validation->moe_kernel,
                              .n_routing_weights = r->n_routing_weights,
                              .routing_weights = r->routing_weights};
  oct_parallel parallel;
  gint64 id, graphs;
  if (!take_integer(r, line, "opened", 0, G_MAXUINT32, &id, error) ||
      !take_integer(r, line, "graph_max_batch", 0, G_MAXUINT32, &graphs, error) ||
      !take_parallel(r, line, &parallel, error))
    return FALSE;
  if (r->n_instances == INSTANCES_MAX)
    return bad_line(r, "more than 64 instances were opened", error);
  options.kv_dtype =
      g_strcmp0(kv, oct_dtype_name(OCT_DTYPE_FP8)) == 0 ? OCT_DTYPE_FP8 : OCT_DTYPE_BF16;
  logged_instance *in = &r->instances[r->n_instances];
  *in = (logged_instance){
      .id = id, .profile = *r->profile, .n_stages = parallel.pipeline, .last_end_ns = -1};
  in->profile.engine.graph_max_batch = (guint32)graphs;
  in->cost = oct_cost_new(r->spec, &parallel, NULL, &in->profile, &options, error);
  if (in->cost == NULL)
    return FALSE;
  r->n_instances++;
  return TRUE;
}

/* ---------------------------------------------------------------- a step */

static gboolean
add_slices(const reading *r, const json_t *domain, const char *key, guint8 flags,
           oct_domain_shape *shape, guint *n_slices) {
  const json_t *list = json_object_get(domain, key);
  if (list == NULL)
    return TRUE;
  if (!json_is_array(list) || json_array_size(list) > OCT_STEP_SLICES_MAX)
    return FALSE;
  for (gsize i = 0; i < json_array_size(list); i++) {
    const json_t *item = json_array_get(list, i);
    oct_slice slice = {.flags = flags, .n_tokens = 1};
    guint32 position;
    if (json_is_array(item)) {
      if (!integer_of(json_array_get(item, 0), OCT_STEP_TOKENS_MAX, &slice.n_tokens) ||
          slice.n_tokens == 0 || !integer_of(json_array_get(item, 1), G_MAXINT32, &position))
        return FALSE;
    } else if (!integer_of(item, G_MAXINT32, &position)) {
      return FALSE;
    }
    oct_domain_shape_add(shape, &slice, position, r->window);
    *n_slices += 1;
  }
  return TRUE;
}

static gboolean
take_shape(const reading *r, const json_t *line, oct_step_shape *shape, step_kind *kind,
           GError **error) {
  const json_t *domains = json_object_get(line, "domains");
  guint n_prompts = 0, n_decodes = 0, n_verified = 0;
  memset(shape, 0, sizeof *shape);
  if (!json_is_array(domains) || json_array_size(domains) == 0 ||
      json_array_size(domains) > OCT_STEP_DOMAINS_MAX)
    return bad_line(r, "\"domains\" is not a list of 1 to 64", error);
  shape->n_domains = (guint32)json_array_size(domains);
  for (guint32 d = 0; d < shape->n_domains; d++) {
    const json_t *domain = json_array_get(domains, d);
    oct_domain_shape *s = &shape->domains[d];
    gint64 rows;
    if (!take_integer(r, domain, "rows", 0, OCT_STEP_TOKENS_MAX, &rows, error))
      return FALSE;
    if (!add_slices(r, domain, "prefill", OCT_SLICE_PREFILL, s, &n_prompts) ||
        !add_slices(r, domain, "decode", 0, s, &n_decodes) ||
        !add_slices(r, domain, "verify", OCT_SLICE_VERIFY, s, &n_verified))
      return bad_line(r, "a slice is neither a position nor [tokens, position]", error);
    s->sample_rows = (guint32)rows;
  }
  *kind = n_verified > 0   ? KIND_VERIFY
          : n_prompts == 0 ? KIND_DECODE
          : n_decodes == 0 ? KIND_PROMPT
                           : KIND_MIXED;
  return n_prompts + n_decodes + n_verified > 0 || bad_line(r, "a step without slices", error);
}

/* Experts that were brought from the host, by stage; a log of a model that was whole has none. */
static gboolean
take_misses(const reading *r, const json_t *line, const logged_instance *in, oct_step_shape *shape,
            GError **error) {
  const json_t *list = json_object_get(line, "missed");
  guint32 missed;
  if (list == NULL)
    return TRUE;
  if (!json_is_array(list) || json_array_size(list) != in->n_stages)
    return bad_line(r, "\"missed\" is not a list of as many numbers as stages", error);
  for (guint32 s = 0; s < json_array_size(list); s++) {
    if (!integer_of(json_array_get(list, s), G_MAXINT32, &missed))
      return bad_line(r, "\"missed\" is not a list of whole numbers", error);
    shape->expert_miss_bytes[s] = missed > 0 ? oct_cost_miss_bytes(in->cost, s, missed) : 0;
  }
  return TRUE;
}

/* Seconds of a step that really ran from start_ns to end_ns: stages one after the other, each of a
 * chip as warm as the real ones were, whose stages took their shares of the step. */
static double
price_s(logged_instance *in, const oct_step_shape *shape, gint64 start_ns, gint64 end_ns) {
  const oct_heat_law *law = oct_cost_heat(in->cost);
  oct_step_price price;
  gint64 cold = 0, passed = 0;
  double ns = 0;
  oct_cost_step(in->cost, shape, &price);
  for (guint32 s = 0; s < price.n_stages; s++)
    cold += price.stages[s].ns;
  const double stretch = cold > 0 ? (double)(end_ns - start_ns) / (double)cold : 0;
  for (guint32 s = 0; s < price.n_stages; s++) {
    const oct_stage_price *stage = &price.stages[s];
    const gint64 from = start_ns + (gint64)((double)passed * stretch);
    passed += stage->ns;
    const gint64 to = start_ns + (gint64)((double)passed * stretch);
    ns += (double)stage->ns *
          (law != NULL ? oct_heat_pass(law, &in->heat[s], from, to, price.graph, stage) : 1);
    ns += s + 1 < price.n_stages ? (double)stage->send_ns : 0;
  }
  return ns * 1e-9;
}

static void
score(kind_score *k, double priced_s, double measured_s) {
  oct_score_add(&k->score, priced_s, measured_s);
  k->priced_s += priced_s;
  k->measured_s += measured_s;
}

static guint
band_of(const guint32 *ends, double value) {
  guint i = 0;
  while (value > ends[i])
    i++;
  return i;
}

/* The place of a step in the tables of where steps differ; NULL: it has none. */
static kind_score *
place_of(reading *r, const oct_step_shape *shape, step_kind kind) {
  double n = 0, context = 0, prompt_tokens = 0;
  for (guint32 d = 0; d < shape->n_domains; d++) {
    n += shape->domains[d].n_decode;
    context += (double)shape->domains[d].decode_context;
    prompt_tokens += shape->domains[d].prefill_tokens;
  }
  if (kind == KIND_VERIFY)
    return NULL;
  if (kind != KIND_DECODE)
    return &r->prompts[band_of(token_ends, prompt_tokens)];
  return &r->decodes[band_of(sequence_ends, n)][band_of(context_ends, context / n)];
}

static logged_instance *
find_instance(reading *r, gint64 id) {
  for (guint i = r->n_instances; i-- > 0;)
    if (r->instances[i].id == id)
      return &r->instances[i];
  return NULL;
}

static gboolean
take_step(reading *r, const json_t *line, GError **error) {
  oct_step_shape shape;
  step_kind kind;
  gint64 id, known, start, end, gap;
  if (!take_integer(r, line, "instance", 0, G_MAXUINT32, &id, error) ||
      !take_integer(r, line, "known_ns", 0, G_MAXINT64, &known, error) ||
      !take_integer(r, line, "start_ns", 0, G_MAXINT64, &start, error) ||
      !take_integer(r, line, "end_ns", start, G_MAXINT64, &end, error) ||
      !take_integer(r, line, "gap_ns", 0, G_MAXINT64, &gap, error) ||
      !take_shape(r, line, &shape, &kind, error))
    return FALSE;
  logged_instance *in = find_instance(r, id);
  if (in == NULL)
    return bad_line(r, "a step of an instance that was never opened", error);
  if (!take_misses(r, line, in, &shape, error))
    return FALSE;
  const double measured_s = (double)(end - start) * 1e-9;
  const double priced_s = price_s(in, &shape, start, end);
  gboolean counts = in->seen++ >= r->validation->skip && end > start;
  /* A gap counts where the step before it had been seen to end only after this one was submitted:
   * the engine ran ahead, and the device waited nevertheless. */
  if (counts && in->last_end_ns >= 0 && known < in->last_end_ns) {
    double seconds = (double)gap * 1e-9;
    g_array_append_val(r->gaps, seconds);
  }
  in->last_end_ns = end;
  if (!counts)
    return TRUE;
  score(&r->kinds[kind], priced_s, measured_s);
  score(&r->all, priced_s, measured_s);
  kind_score *place = place_of(r, &shape, kind);
  if (place != NULL)
    score(place, priced_s, measured_s);
  r->busy_s += measured_s;
  r->idle_s += (double)gap * 1e-9;
  return TRUE;
}

/* ---------------------------------------------------------------- the files */

static gboolean
read_routing(reading *r, GError **error) {
  const char *path = r->validation->routing_file;
  if (path == NULL)
    return TRUE;
  g_autofree double *counts = oct_expert_counts_read(path, r->spec, error);
  if (counts == NULL)
    return FALSE;
  r->n_routing_weights = oct_expert_counts_width(r->spec);
  r->routing_weights = oct_expert_counts_ranked(r->spec, counts, error);
  if (r->routing_weights == NULL)
    g_prefix_error(error, "%s: ", path);
  return r->routing_weights != NULL;
}

static gboolean
take_line(reading *r, const char *text, gsize size, GError **error) {
  json_error_t why;
  json_t *line = json_loadb(text, size, 0, &why);
  gint64 version;
  gboolean fine;
  if (!json_is_object(line)) {
    json_decref(line);
    return bad_line(r, "not an object of JSON", error);
  }
  if (r->line == 1)
    fine = take_integer(r, line, "octet_steps", LOG_VERSION, LOG_VERSION, &version, error);
  else if (json_object_get(line, "opened") != NULL)
    fine = take_opened(r, line, error);
  else
    fine = json_object_get(line, "step") == NULL || take_step(r, line, error);
  json_decref(line);
  return fine;
}

static gboolean
read_log(reading *r, GError **error) {
  FILE *file = g_fopen(r->validation->log, "r");
  char *text = NULL;
  size_t room = 0;
  ssize_t n;
  gboolean fine = TRUE;
  if (file == NULL) {
    g_set_error(error, OCT_VALIDATE_ERROR, OCT_VALIDATE_ERROR_DATA, "%s: %s", r->validation->log,
                g_strerror(errno));
    return FALSE;
  }
  while (fine && (n = getline(&text, &room, file)) > 0) {
    r->line++;
    fine = (gsize)n <= LINE_BYTES_MAX ? take_line(r, text, (gsize)n, error)
                                      : bad_line(r, "longer than 64 MiB", error);
  }
  if (fine && ferror(file)) {
    g_set_error(error, OCT_VALIDATE_ERROR, OCT_VALIDATE_ERROR_DATA, "%s: %s", r->validation->log,
                g_strerror(errno));
    fine = FALSE;
  } else if (fine && r->line == 0)
    fine = bad_line(r, "an empty file", error);
  free(text);
  fclose(file);
  return fine;
}

/* ---------------------------------------------------------------- the report */

static void
add_row(json_t *table, const char *name, const kind_score *k) {
  json_t *row = oct_validate_row(table);
  oct_validate_text(row, "%s", name);
  oct_validate_cells(row, &k->score);
  oct_validate_number(row, k->measured_s);
  oct_validate_number(row, k->measured_s > 0 ? (k->priced_s / k->measured_s - 1) * 100 : NAN);
}

/* "1", "2 to 8", "129 and more": of the i-th band. */
static char *
band_name(const guint32 *ends, guint i) {
  const guint32 first = i == 0 ? 1 : ends[i - 1] + 1;
  return ends[i] == G_MAXUINT32 ? g_strdup_printf("%u and more", first)
         : ends[i] == first     ? g_strdup_printf("%u", first)
                                : g_strdup_printf("%u to %u", first, ends[i]);
}

static void
add_places(const reading *r, json_t *part) {
  static const char *const columns[] = {"steps", OCT_VALIDATE_SCORE_COLUMNS, "measured s",
                                        "sum of prices, off %", NULL};
  json_t *table = oct_validate_table(part, "where they differ", columns);
  for (guint i = 0; i < BANDS; i++)
    for (guint k = 0; k < CONTEXT_BANDS; k++) {
      g_autofree char *sequences = band_name(sequence_ends, i);
      g_autofree char *context = band_name(context_ends, k);
      g_autofree char *name = g_strdup_printf("decodes: %s, context %s", sequences, context);
      if (oct_score_n(&r->decodes[i][k].score) > 0)
        add_row(table, name, &r->decodes[i][k]);
    }
  for (guint i = 0; i < BANDS; i++) {
    g_autofree char *tokens = band_name(token_ends, i);
    g_autofree char *name = g_strdup_printf("with %s tokens of prompts", tokens);
    if (oct_score_n(&r->prompts[i].score) > 0)
      add_row(table, name, &r->prompts[i]);
  }
}

static json_t *
report(reading *r) {
  static const char *const columns[] = {"step", OCT_VALIDATE_SCORE_COLUMNS, "measured s",
                                        "sum of prices, off %", NULL};
  static const char *const idle[] = {"gaps", "median us", "p90 us", "p99 us", "idle %", NULL};
  json_t *part = oct_validate_part("steps");
  json_t *table = oct_validate_table(part, "logged steps, priced one by one", columns);
  oct_validate_note(table, "%s on %s, steps of %s", r->spec->name, r->profile->name,
                    r->validation->log);
  if (r->validation->skip > 0)
    oct_validate_note(table, "the first %u steps of each instance are left out",
                      r->validation->skip);
  if (oct_model_has_experts(r->spec))
    oct_validate_note(table, "kernels of experts: %s; routing: %s",
                      oct_moe_kernel_name(r->validation->moe_kernel),
                      r->validation->routing_file != NULL ? r->validation->routing_file
                                                          : "uniform over experts");
  for (int k = 0; k < KINDS; k++)
    if (oct_score_n(&r->kinds[k].score) > 0)
      add_row(table, kind_names[k], &r->kinds[k]);
  add_row(table, "all", &r->all);
  add_places(r, part);
  table = oct_validate_table(part, "the device's idle time before a step submitted ahead", idle);
  json_t *row = oct_validate_row(table);
  double *gaps = (double *)(void *)r->gaps->data;
  oct_validate_number(row, r->gaps->len);
  oct_validate_number(row, oct_quantile(gaps, r->gaps->len, 0.5) * 1e6);
  oct_validate_number(row, oct_quantile(gaps, r->gaps->len, 0.9) * 1e6);
  oct_validate_number(row, oct_quantile(gaps, r->gaps->len, 0.99) * 1e6);
  oct_validate_number(row, r->busy_s > 0 ? r->idle_s / (r->busy_s + r->idle_s) * 100 : NAN);
  oct_validate_note(table, "idle: all time between steps, also while there was nothing to do");
  oct_validate_aim(part, "teacher-forced steps, median", AIM_MEDIAN,
                   oct_score_quantile(&r->all.score, 0.5));
  oct_validate_aim(part, "teacher-forced steps, p90", AIM_P90,
                   oct_score_quantile(&r->all.score, 0.9));
  return part;
}

static gboolean
has_steps(const reading *r, GError **error) {
  if (oct_score_n(&r->all.score) > 0)
    return TRUE;
  g_set_error(error, OCT_VALIDATE_ERROR, OCT_VALIDATE_ERROR_DATA,
              "%s: no step is left to price without the first %u of each instance",
              r->validation->log, r->validation->skip);
  return FALSE;
}

json_t *
oct_validate_steps(const oct_steps_validation *validation, GError **error) {
  g_autofree reading *r = g_new0(reading, 1);
  json_t *part = NULL;
  r->validation = validation;
  r->gaps = g_array_new(FALSE, FALSE, sizeof(double));
  r->spec = oct_model_spec_load(validation->model, NULL, error);
  if (r->spec != NULL)
    r->profile = oct_profile_load(validation->node, NULL, NULL, error);
  if (r->profile != NULL) {
    r->window = oct_cost_window(r->spec);
    if (read_routing(r, error) && read_log(r, error) && has_steps(r, error))
      part = report(r);
  }
  for (guint i = 0; i < r->n_instances; i++)
    oct_cost_free(r->instances[i].cost);
  for (int k = 0; k < KINDS; k++)
    oct_score_clear(&r->kinds[k].score);
  oct_score_clear(&r->all.score);
  for (guint i = 0; i < BANDS; i++) {
    oct_score_clear(&r->prompts[i].score);
    for (guint k = 0; k < CONTEXT_BANDS; k++)
      oct_score_clear(&r->decodes[i][k].score);
  }
  oct_profile_free(r->profile);
  oct_model_spec_free(r->spec);
  g_array_unref(r->gaps);
  g_free(r->routing_weights);
  return part;
}
