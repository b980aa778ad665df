/* A conversion: which weights are coded and under which names (the plan), then weight by weight
 * through the writer, in a folder beside the one that is to be, which gets its name at the end. */
#include "engine/model/quantise/convert.h"

#include <errno.h>
#include <glib/gstdio.h>
#include <math.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/model/files/floats.h"
#include "engine/model/files/quantise.h"
#include "engine/model/quantise/internal.h"
#include "engine/model/tensors.h"

#define F16_MAX 65504.0f

/* A weight of the source and what becomes of it. */
typedef struct job {
  const oct_weight *weight;
  char *module;
  const char *suffix; /* of a plain tensor */
  gboolean coded;
  oct_stored_type type; /* kept as */
  guint first;          /* tensor in the writer */
  guint64 bytes;        /* of its tensors */
} job;

typedef struct conversion {
  const oct_model_files *source;
  const oct_convert_options *options;
  oct_safetensors_writer *writer;
  GArray *jobs;       /* of job */
  GPtrArray *skipped; /* of char*: routers, and the head */
  float *band, *back; /* [OCT_CODED_BAND, widest] */
  double error, size, largest;
} conversion;

gboolean
oct_convert_format_parse(const char *name, oct_convert_format *format) {
  static const char *const names[OCT_CONVERT_FORMATS] = {[OCT_CONVERT_AWQ] = "awq",
                                                         [OCT_CONVERT_FP8] = "fp8",
                                                         [OCT_CONVERT_FP8_BLOCK] = "fp8-block",
                                                         [OCT_CONVERT_MXFP4] = "mxfp4"};
  for (guint i = 0; i < G_N_ELEMENTS(names); i++)
    if (g_str_equal(names[i], name)) {
      *format = (oct_convert_format)i;
      return TRUE;
    }
  return FALSE;
}

/* --- what is converted ---------------------------------------------------------------------------
 */

static gboolean refuse(GError **error, const char *format, ...) G_GNUC_PRINTF(2, 3);

static gboolean
refuse(GError **error, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  if (error != NULL)
    *error = g_error_new_valist(OCT_FILES_ERROR, OCT_FILES_ERROR_UNSUPPORTED, format, arguments);
  va_end(arguments);
  return FALSE;
}

/* Matrices of the classes that a scheme covers (engine/model/quant.c). */
static gboolean
is_coded(const oct_model_spec *spec, const oct_weight *w) {
  oct_tensor_list list;
  if (w->kind <= OCT_WEIGHT_HEAD || w->columns == 1)
    return FALSE;
  oct_tensors_layer(spec, w->layer, &list);
  for (guint i = 0; i < list.n; i++)
    if (list.tensors[i].kind == w->kind)
      return list.tensors[i].class == OCT_TENSOR_ATTENTION ||
             list.tensors[i].class == OCT_TENSOR_DENSE ||
             list.tensors[i].class == OCT_TENSOR_EXPERT ||
             list.tensors[i].class == OCT_TENSOR_SHARED;
  return FALSE;
}

static gboolean
check_weight(const oct_weight *w, oct_convert_format format, guint32 group, GError **error) {
  g_autofree char *name = oct_weight_name(w);
  guint64 multiple = format == OCT_CONVERT_AWQ ? group : format == OCT_CONVERT_MXFP4 ? 32 : 1;
  if (w->columns % multiple != 0)
    return refuse(error,
                  "%s has %" G_GUINT64_FORMAT " inputs, not a multiple of the %" G_GUINT64_FORMAT
                  " that share a scale",
                  name, w->columns, multiple);
  if (format == OCT_CONVERT_AWQ && w->rows % 8 != 0)
    return refuse(error,
                  "%s has %" G_GUINT64_FORMAT " outputs, not a multiple of the 8 of a word of AWQ",
                  name, w->rows);
  return TRUE;
}

static gboolean
check_model(const oct_model_files *source, GError **error) {
  guint n;
  const oct_model_spec *spec = source->spec;
  if (source->checkpoint == NULL)
    return refuse(error, "%s has random weights: there is nothing to convert", spec->name);
  for (guint32 i = 0; i < spec->n_attention; i++)
    if (spec->attention[i].kind == OCT_ATTENTION_KDA)
      return refuse(error, "%s has delta attention, for which there is no published layout",
                    spec->name);
  if (oct_weight_map_rope_divisors(source->map, &n) != NULL)
    return refuse(error,
                  "tensor rope_freqs.weight of %s says how positions are scaled, and config.json "
                  "has no field for it: convert the model's safetensors",
                  oct_checkpoint_path(source->checkpoint));
  if (oct_checkpoint_find(source->checkpoint, "model.embed_tokens.weight") == NULL &&
      oct_checkpoint_format(source->checkpoint) != OCT_LOAD_GGUF)
    return refuse(error, "%s holds more than a text model (no tensor model.embed_tokens.weight)",
                  oct_checkpoint_path(source->checkpoint));
  return TRUE;
}

gboolean
oct_convert_check(const oct_model_files *source, oct_convert_format format, guint32 group,
                  GError **error) {
  char name[OCT_FILE_NAME_MAX + 1];
  const char *suffix;
  if (!check_model(source, error))
    return FALSE;
  for (guint i = 0; i < oct_weight_map_n(source->map); i++) {
    const oct_weight *w = oct_weight_map_at(source->map, i);
    if (!oct_weight_module(source->spec, source->checkpoint, w, name, &suffix)) {
      g_autofree char *its_name = oct_weight_name(w);
      return refuse(error,
                    "%s is stored together with other experts', and so has no name of its own",
                    its_name);
    }
    if (is_coded(source->spec, w) && !check_weight(w, format, group, error))
      return FALSE;
  }
  return TRUE;
}

/* --- the plan ------------------------------------------------------------------------------------
 */

static gboolean
is_plain(const oct_weight *w) {
  return w->layout == OCT_LAYOUT_ROWS &&
         (w->type == OCT_STORED_F32 || w->type == OCT_STORED_BF16 || w->type == OCT_STORED_F16);
}

static oct_stored_type
kept_type(const conversion *c, const oct_weight *w) {
  oct_dtype kept = c->options->kept;
  gboolean gguf = oct_checkpoint_format(c->source->checkpoint) == OCT_LOAD_GGUF;
  if (kept == OCT_DTYPE_NONE)
    return !gguf && is_plain(w) ? w->type : OCT_STORED_BF16;
  oct_assert(kept == OCT_DTYPE_F32 || kept == OCT_DTYPE_F16 || kept == OCT_DTYPE_BF16);
  return kept == OCT_DTYPE_F32   ? OCT_STORED_F32
         : kept == OCT_DTYPE_F16 ? OCT_STORED_F16
                                 : OCT_STORED_BF16;
}

/* A kept tensor has the shape that it had, where that is known. */
static gboolean
plan_kept(conversion *c, job *j, const char *name, GError **error) {
  const oct_weight *w = j->weight;
  const oct_file_tensor *t = oct_checkpoint_find(c->source->checkpoint, name);
  guint64 shape[2] = {w->rows, w->columns};
  j->type = kept_type(c, w);
  j->bytes = w->rows * w->columns * oct_stored_get(j->type)->bytes;
  if (t != NULL && oct_file_tensor_elements(t) == w->rows * w->columns)
    return oct_safetensors_writer_add(c->writer, name, j->type, t->n_dims, t->shape, error);
  return oct_safetensors_writer_add(c->writer, name, j->type, w->columns == 1 ? 1 : 2, shape,
                                    error);
}

static gboolean
plan_weight(conversion *c, const oct_weight *w, guint *n_tensors, GError **error) {
  char module[OCT_FILE_NAME_MAX + 1];
  oct_coded_part parts[OCT_CODED_PARTS_MAX];
  job j = {.weight = w, .first = *n_tensors, .coded = is_coded(c->source->spec, w)};
  if (!oct_weight_module(c->source->spec, c->source->checkpoint, w, module, &j.suffix))
    oct_assert_failed(__FILE__, __LINE__, "a weight whose name was checked");
  j.module = g_strdup(module);
  guint n = j.coded
                ? oct_coded_parts(c->options->format, c->options->group, w->rows, w->columns, parts)
                : 1;
  gboolean ok = TRUE;
  for (guint i = 0; ok && i < n; i++) {
    g_autofree char *name = g_strconcat(module, j.coded ? parts[i].suffix : j.suffix, NULL);
    if (!j.coded) {
      ok = plan_kept(c, &j, name, error);
      continue;
    }
    j.bytes += parts[i].bytes;
    ok = oct_safetensors_writer_add(c->writer, name, parts[i].type, parts[i].n_dims, parts[i].shape,
                                    error);
  }
  if (w->kind == OCT_WEIGHT_ROUTER)
    g_ptr_array_add(c->skipped, g_strdup(module));
  *n_tensors += n;
  g_array_append_val(c->jobs, j);
  return ok;
}

/* --- the work ------------------------------------------------------------------------------------
 */

/* Rows of a weight, which must be numbers. */
static gboolean
read_band(const oct_weight *w, guint64 first, guint64 n, float *out, GError **error) {
  oct_weight_read(w, first, n, out);
  for (guint64 i = 0; i < n * w->columns; i++) {
    if (isfinite(out[i]))
      continue;
    g_autofree char *name = oct_weight_name(w);
    return refuse(error, "%s is %g at [%" G_GUINT64_FORMAT ", %" G_GUINT64_FORMAT "]", name,
                  (double)out[i], first + i / w->columns, i % w->columns);
  }
  return TRUE;
}

/* n values in place as a plain type; FALSE for one that is too large for it. */
static gboolean
narrow(float *values, guint64 n, oct_stored_type type, float *beyond) {
  guint16 *out = (guint16 *)(gpointer)values;
  for (guint64 i = 0; type != OCT_STORED_F32 && i < n; i++) {
    float value = values[i];
    guint16 code = type == OCT_STORED_F16 ? oct_f16_from_float(value) : oct_bf16_from_float(value);
    *beyond = value;
    if (type == OCT_STORED_F16 && fabsf(value) > F16_MAX)
      return FALSE;
    memcpy(&out[i], &code, sizeof code);
  }
  return TRUE;
}

static gboolean
keep(conversion *c, const job *j, GError **error) {
  const oct_weight *w = j->weight;
  const oct_scaling *s = c->options->scaling;
  const oct_coded scaling = {.columns = w->columns,
                             .inputs = s != NULL ? oct_scaling_inputs(s, w) : NULL,
                             .outputs = s != NULL ? oct_scaling_outputs(s, w) : NULL};
  for (guint64 row = 0; row < w->rows; row += OCT_CODED_BAND) {
    guint64 n = MIN(OCT_CODED_BAND, w->rows - row);
    float beyond;
    if (!read_band(w, row, n, c->band, error))
      return FALSE;
    oct_coded_scale(&scaling, c->band, row, n);
    if (!narrow(c->band, n * w->columns, j->type, &beyond))
      return refuse(error, "%s%s: %g is beyond float16", j->module, j->suffix, (double)beyond);
    if (!oct_safetensors_writer_append(c->writer, j->first, c->band,
                                       n * w->columns * oct_stored_get(j->type)->bytes, error))
      return FALSE;
  }
  return TRUE;
}

/* The scale of a whole FP8 matrix, which is read once for it. */
static gboolean
find_scale(conversion *c, const oct_weight *w, oct_coded *coded, GError **error) {
  coded->scale = 0;
  float none = oct_quant_fp8_scale(NULL, 0);
  for (guint64 row = 0; row < w->rows; row += OCT_CODED_BAND) {
    guint64 n = MIN(OCT_CODED_BAND, w->rows - row);
    if (!read_band(w, row, n, c->band, error))
      return FALSE;
    gboolean zeros = TRUE;
    for (guint64 i = 0; zeros && i < n * w->columns; i++)
      zeros = c->band[i] == 0;
    if (!zeros)
      coded->scale = fmaxf(coded->scale, oct_quant_fp8_scale(c->band, n * w->columns));
  }
  if (coded->scale == 0)
    coded->scale = none;
  return TRUE;
}

/* What errors on the scaled inputs cost. Owned; NULL: all the same. */
static float *
importance_of(const conversion *c, const oct_weight *w, const float *factors) {
  const oct_inputs *inputs = c->options->inputs;
  if (c->options->format != OCT_CONVERT_AWQ || inputs == NULL || oct_inputs_rows(inputs, w) == 0)
    return NULL;
  float *out = g_new(float, w->columns);
  oct_inputs_squares(inputs, w, out);
  for (guint64 k = 0; factors != NULL && k < w->columns; k++)
    out[k] /= factors[k] * factors[k];
  return out;
}

static void
add_error(const float *found, const float *wanted, guint64 n, double *error, double *size,
          double *largest) {
  for (guint64 i = 0; i < n; i++) {
    double off = (double)found[i] - (double)wanted[i];
    *error += off * off;
    *size += (double)wanted[i] * (double)wanted[i];
    *largest = fmax(*largest, fabs(off));
  }
}

static double
ratio(double error, double size) {
  return size > 0 ? sqrt(error / size) : 0;
}

/* Codes all bands of a matrix and measures what is lost. */
static gboolean
code_bands(conversion *c, const job *j, oct_coded *coded, GError **error) {
  const oct_weight *w = j->weight;
  double off = 0, size = 0, largest = 0;
  float *original = c->back + OCT_CODED_BAND * w->columns;
  if (c->options->format == OCT_CONVERT_FP8 && !find_scale(c, w, coded, error))
    return FALSE;
  for (guint64 row = 0; row < w->rows; row += OCT_CODED_BAND) {
    guint64 n = MIN(OCT_CODED_BAND, w->rows - row);
    if (!read_band(w, row, n, c->band, error))
      return FALSE;
    memcpy(original, c->band, n * w->columns * sizeof *original);
    oct_coded_scale(coded, c->band, row, n);
    oct_coded_band(coded, c->band, row, n, c->back);
    add_error(c->back, original, n * w->columns, &off, &size, &largest);
  }
  c->error += off;
  c->size += size;
  c->largest = fmax(c->largest, largest);
  const oct_convert_row row = {.module = j->module,
                               .rows = w->rows,
                               .columns = w->columns,
                               .bytes = j->bytes,
                               .relative = ratio(off, size),
                               .largest = largest};
  if (c->options->row != NULL)
    c->options->row(c->options->user, &row);
  return TRUE;
}

static gboolean
code(conversion *c, const job *j, GError **error) {
  const oct_weight *w = j->weight;
  const oct_scaling *s = c->options->scaling;
  oct_coded_part parts[OCT_CODED_PARTS_MAX];
  guint n = oct_coded_parts(c->options->format, c->options->group, w->rows, w->columns, parts);
  oct_coded coded = {.format = c->options->format,
                     .group = c->options->group,
                     .rows = w->rows,
                     .columns = w->columns,
                     .inputs = s != NULL ? oct_scaling_inputs(s, w) : NULL,
                     .outputs = s != NULL ? oct_scaling_outputs(s, w) : NULL};
  gboolean ok = TRUE;
  for (guint i = 0; i < n; i++) {
    coded.parts[i] = g_try_malloc(MAX(parts[i].bytes, 1));
    ok = ok && coded.parts[i] != NULL;
  }
  if (!ok)
    g_set_error(error, OCT_FILES_ERROR, OCT_FILES_ERROR_LIMIT,
                "%s: no memory for %" G_GUINT64_FORMAT " bytes", j->module, j->bytes);
  coded.importance = importance_of(c, w, coded.inputs);
  ok = ok && code_bands(c, j, &coded, error);
  for (guint i = 0; i < n; i++) {
    ok = ok && oct_safetensors_writer_append(c->writer, j->first + i, coded.parts[i],
                                             parts[i].bytes, error);
    g_free(coded.parts[i]);
  }
  g_free(coded.importance);
  return ok;
}

static gboolean
make_room(conversion *c, GError **error) {
  guint64 widest = 1;
  gsize floats;
  for (guint i = 0; i < oct_weight_map_n(c->source->map); i++)
    widest = MAX(widest, oct_weight_map_at(c->source->map, i)->columns);
  if (g_size_checked_mul(&floats, widest, OCT_CODED_BAND)) {
    c->band = g_try_new(float, floats);
    c->back = g_try_new(float, floats * 2); /* and the original beside it */
  }
  if (c->band != NULL && c->back != NULL)
    return TRUE;
  g_set_error(error, OCT_FILES_ERROR, OCT_FILES_ERROR_LIMIT,
              "no memory for rows of %" G_GUINT64_FORMAT " values", widest);
  return FALSE;
}

static gboolean
convert_into(conversion *c, const char *folder, GError **error) {
  guint n_tensors = 0;
  c->writer = oct_safetensors_writer_new(folder, c->options->shard_bytes);
  g_ptr_array_add(c->skipped, g_strdup("lm_head")); /* tied ones are looked for too */
  if (!make_room(c, error))
    return FALSE;
  for (guint i = 0; i < oct_weight_map_n(c->source->map); i++)
    if (!plan_weight(c, oct_weight_map_at(c->source->map, i), &n_tensors, error))
      return FALSE;
  if (!oct_safetensors_writer_begin(c->writer, error))
    return FALSE;
  for (guint i = 0; i < c->jobs->len; i++) {
    const job *j = &g_array_index(c->jobs, job, i);
    if (!(j->coded ? code(c, j, error) : keep(c, j, error)))
      return FALSE;
  }
  return oct_safetensors_writer_finish(c->writer, error) &&
         oct_publish_config(c->source, c->options, c->skipped, folder, error) &&
         oct_publish_beside(c->source, folder, error);
}

/* --- the folder ----------------------------------------------------------------------------------
 */

/* A folder without folders in it. */
static void
remove_folder(const char *path) {
  GDir *dir = g_dir_open(path, 0, NULL);
  const char *name;
  while (dir != NULL && (name = g_dir_read_name(dir)) != NULL) {
    g_autofree char *file = g_build_filename(path, name, NULL);
    (void)g_unlink(file);
  }
  if (dir != NULL)
    g_dir_close(dir);
  (void)g_rmdir(path);
}

static gboolean
fail_folder(const char *folder, const char *what, GError **error) {
  g_set_error(error, OCT_FILES_ERROR, OCT_FILES_ERROR_IO, "%s: cannot be %s: %s", folder, what,
              g_strerror(errno));
  return FALSE;
}

static void
fill_report(const conversion *c, oct_convert_report *report) {
  *report = (oct_convert_report){.bytes = oct_safetensors_writer_bytes(c->writer),
                                 .bytes_before = oct_checkpoint_bytes(c->source->checkpoint),
                                 .n_files = oct_safetensors_writer_n_files(c->writer),
                                 .relative = ratio(c->error, c->size),
                                 .largest = c->largest};
  for (guint i = 0; i < c->jobs->len; i++)
    *(g_array_index(c->jobs, job, i).coded ? &report->n_quantised : &report->n_kept) += 1;
}

gboolean
oct_convert(const oct_model_files *source, const char *folder, const oct_convert_options *options,
            oct_convert_report *report, GError **error) {
  if (!oct_convert_check(source, options->format, options->group, error))
    return FALSE;
  g_autofree char *partial = g_strconcat(folder, ".partial", NULL);
  if (g_file_test(folder, G_FILE_TEST_EXISTS)) {
    errno = EEXIST;
    return fail_folder(folder, "made", error);
  }
  if (g_mkdir(partial, 0777) != 0)
    return fail_folder(partial, "made", error);
  conversion c = {.source = source,
                  .options = options,
                  .jobs = g_array_new(FALSE, FALSE, sizeof(job)),
                  .skipped = g_ptr_array_new_with_free_func(g_free)};
  gboolean ok = convert_into(&c, partial, error);
  if (ok && g_rename(partial, folder) != 0)
    ok = fail_folder(folder, "named", error);
  if (ok)
    fill_report(&c, report);
  oct_safetensors_writer_free(c.writer);
  if (!ok)
    remove_folder(partial);
  for (guint i = 0; i < c.jobs->len; i++)
    g_free(g_array_index(c.jobs, job, i).module);
  g_array_unref(c.jobs);
  g_ptr_array_unref(c.skipped);
  g_free(c.band);
  g_free(c.back);
  return ok;
}
