/* octet convert: a checkpoint in another number format. */
#include <jansson.h>
#include <stdio.h>
#include <unistd.h>

#include "backends/cpu/direct.h"
#include "backends/cpu/threads.h"
#include "cli/cli.h"
#include "engine/base/file.h"
#include "engine/model/quantise/convert.h"
#include "engine/text/tokenizer.h"

#define THREADS_DEFAULT 2
#define WINDOW          512 /* tokens of a calibration text that are computed together */
#define WINDOWS_DEFAULT 16

typedef struct options {
  char *to, *calibration, *dtype, *json, *tokenizer;
  gint group, windows, threads;
  double shard_gb;
} options;

typedef struct work {
  const options *o;
  oct_convert_options convert;
  oct_convert_report report;
  GArray *rows; /* of oct_convert_row, whose modules are owned */
} work;

/* --- calibration ---------------------------------------------------------------------------------
 */

static void
show_progress(void *user, double fraction) {
  (void)user;
  if (isatty(STDERR_FILENO) == 0)
    return;
  if (fraction < 1)
    fprintf(stderr, "\rsearching scales: %.0f %%", fraction * 100);
  else
    fprintf(stderr, "\r%40s\r", "");
}

/* A file as ids. Owned; NULL with *error. */
static GArray *
read_text(const char *tokenizer_path, const char *path, GError **error) {
  g_autoptr(oct_tokenizer) tokenizer = oct_tokenizer_open(tokenizer_path, error);
  g_autofree char *text = NULL;
  gsize size;
  if (tokenizer == NULL)
    return NULL;
  if (!oct_file_read(path, OCT_TEXT_BYTES_MAX, &text, &size, error)) {
    g_prefix_error(error, "%s: ", path);
    return NULL;
  }
  GArray *ids = g_array_new(FALSE, FALSE, sizeof(guint32));
  if (oct_tokenizer_encode(tokenizer, text, size, ids, error))
    return ids;
  g_array_unref(ids);
  return NULL;
}

/* Computes windows of the text, spread over all of it, with what comes into weights noted. */
static gboolean
calibrate(oct_cpu_direct *model, const options *o, const char *source, oct_inputs *inputs,
          GError **error) {
  GArray *ids = read_text(o->tokenizer != NULL ? o->tokenizer : source, o->calibration, error);
  if (ids == NULL)
    return FALSE;
  guint32 vocab = oct_cpu_direct_model(model)->spec->vocab, n = ids->len / WINDOW;
  if (n == 0) {
    g_set_error(error, G_FILE_ERROR, G_FILE_ERROR_INVAL,
                "%s has %u tokens: a calibration text has at least %d", o->calibration, ids->len,
                WINDOW);
    g_array_unref(ids);
    return FALSE;
  }
  oct_cpu_direct_collect(model, inputs);
  guint32 used = MIN(n, (guint32)o->windows);
  for (guint32 i = 0; i < used; i++) {
    const guint32 *window = &g_array_index(ids, guint32, (gsize)i * n / used * WINDOW);
    for (guint k = 0; k < WINDOW; k++)
      if (window[k] >= vocab) {
        g_set_error(error, G_FILE_ERROR, G_FILE_ERROR_INVAL,
                    "token %u of the tokenizer is beyond the model's vocabulary of %u", window[k],
                    vocab);
        g_array_unref(ids);
        return FALSE;
      }
    oct_cpu_direct_run(model, window, WINDOW);
    if (isatty(STDERR_FILENO) != 0)
      fprintf(stderr, "\rcalibrating: %u of %u windows", i + 1, used);
  }
  if (isatty(STDERR_FILENO) != 0)
    fprintf(stderr, "\r%40s\r", "");
  oct_cpu_direct_collect(model, NULL);
  g_array_unref(ids);
  return TRUE;
}

/* --- the conversion ------------------------------------------------------------------------------
 */

static void
on_row(void *user, const oct_convert_row *row) {
  work *w = user;
  oct_convert_row copy = *row;
  copy.module = g_strdup(row->module);
  g_array_append_val(w->rows, copy);
}

static gboolean
convert_plain(work *w, const char *source, const char *folder, GError **error) {
  g_autoptr(oct_model_files) files =
      oct_model_files_open(source, NULL, OCT_LOAD_AUTO, 0, NULL, error);
  return files != NULL && oct_convert(files, folder, &w->convert, &w->report, error);
}

static gboolean
convert_calibrated(work *w, const char *source, const char *folder, GError **error) {
  const oct_cpu_direct_options direct = {
      .path = source, .threads = (guint32)w->o->threads, .context = WINDOW};
  g_autoptr(oct_cpu_direct) model = oct_cpu_direct_new(&direct, error);
  if (model == NULL)
    return FALSE;
  const oct_model_files *files = oct_cpu_direct_model(model)->files;
  /* A refusal comes before the long part. */
  if (!oct_convert_check(files, w->convert.format, w->convert.group, error))
    return FALSE;
  g_autoptr(oct_inputs) inputs = oct_inputs_new(files->map);
  if (!calibrate(model, w->o, source, inputs, error))
    return FALSE;
  g_autoptr(oct_scaling) scaling =
      oct_scaling_new(files->spec, files->map, inputs, w->convert.group, show_progress, NULL);
  w->convert.inputs = inputs;
  w->convert.scaling = scaling;
  return oct_convert(files, folder, &w->convert, &w->report, error);
}

/* --- what it says --------------------------------------------------------------------------------
 */

static void
print_report(const work *w, const char *folder) {
  const oct_convert_report *r = &w->report;
  printf("%-44s %14s %12s %12s %12s\n", "tensor", "shape", "bytes", "relative L2", "largest");
  for (guint i = 0; i < w->rows->len; i++) {
    const oct_convert_row *row = &g_array_index(w->rows, oct_convert_row, i);
    g_autofree char *shape =
        g_strdup_printf("%" G_GUINT64_FORMAT "x%" G_GUINT64_FORMAT, row->rows, row->columns);
    printf("%-44s %14s %12" G_GUINT64_FORMAT " %12.6f %12.6f\n", row->module, shape, row->bytes,
           row->relative, row->largest);
  }
  printf("%-44s %14s %12" G_GUINT64_FORMAT " %12.6f %12.6f\n", "all", "", r->bytes, r->relative,
         r->largest);
  printf("%s: %" G_GUINT64_FORMAT " weights quantised, %" G_GUINT64_FORMAT
         " kept, %u file%s; %" G_GUINT64_FORMAT " bytes, %" G_GUINT64_FORMAT " before\n",
         folder, r->n_quantised, r->n_kept, r->n_files, r->n_files == 1 ? "" : "s", r->bytes,
         r->bytes_before);
}

static json_t *
json_report(const work *w) {
  const oct_convert_report *r = &w->report;
  json_t *rows = json_array();
  for (guint i = 0; i < w->rows->len; i++) {
    const oct_convert_row *row = &g_array_index(w->rows, oct_convert_row, i);
    json_array_append_new(rows, json_pack("{s:s, s:I, s:I, s:I, s:f, s:f}", "module", row->module,
                                          "rows", (json_int_t)row->rows, "columns",
                                          (json_int_t)row->columns, "bytes", (json_int_t)row->bytes,
                                          "relative_l2", row->relative, "largest", row->largest));
  }
  return json_pack("{s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:o}", "quantised",
                   (json_int_t)r->n_quantised, "kept", (json_int_t)r->n_kept, "files",
                   (json_int_t)r->n_files, "bytes", (json_int_t)r->bytes, "bytes_before",
                   (json_int_t)r->bytes_before, "relative_l2", r->relative, "largest", r->largest,
                   "tensors", rows);
}

/* --- the command ---------------------------------------------------------------------------------
 */

static int
refuse_option(const options *o, const oct_convert_options *convert) {
  gboolean awq = convert->format == OCT_CONVERT_AWQ;
  if (awq && convert->group != 128 && convert->group != 64 && convert->group != 32)
    return oct_cli_refuse("convert", "--group-size %d: allowed are 128, 64 and 32", o->group);
  if (!awq && (o->group != 0 || o->calibration != NULL))
    return oct_cli_refuse("convert", "%s is of --to awq only",
                          o->group != 0 ? "--group-size" : "--calibration");
  if (o->threads < 1 || o->threads > OCT_TEAM_THREADS_MAX)
    return oct_cli_refuse("convert", "--threads %d: allowed are 1 to %d", o->threads,
                          OCT_TEAM_THREADS_MAX);
  if (o->windows < 1)
    return oct_cli_refuse("convert", "--windows %d: at least 1 is wanted", o->windows);
  if (!(o->shard_gb > 0 && o->shard_gb <= 1e6))
    return oct_cli_refuse("convert", "--shard-size %g: allowed are more than 0 to 1e6 GB",
                          o->shard_gb);
  return OCT_CLI_GO_ON;
}

static int
read_options(const options *o, oct_convert_options *convert) {
  static const oct_dtype kept[] = {OCT_DTYPE_F32, OCT_DTYPE_BF16, OCT_DTYPE_F16};
  if (o->to == NULL || !oct_convert_format_parse(o->to, &convert->format))
    return oct_cli_refuse("convert", "--to %s: allowed are awq, fp8, fp8-block and mxfp4",
                          o->to != NULL ? o->to : "is missing");
  for (guint i = 0; o->dtype != NULL && i < G_N_ELEMENTS(kept); i++)
    if (g_str_equal(o->dtype, oct_dtype_name(kept[i])))
      convert->kept = kept[i];
  if (o->dtype != NULL && convert->kept == OCT_DTYPE_NONE)
    return oct_cli_refuse("convert", "--dtype '%s': allowed are float32, bfloat16 and float16",
                          o->dtype);
  convert->group = convert->format == OCT_CONVERT_AWQ && o->group == 0 ? 128 : (guint32)o->group;
  convert->shard_bytes = (guint64)(o->shard_gb * 1e9);
  return refuse_option(o, convert);
}

static int
run(const options *o, const char *source, const char *folder) {
  work w = {.o = o, .rows = g_array_new(FALSE, FALSE, sizeof(oct_convert_row))};
  GError *error = NULL;
  int status = read_options(o, &w.convert);
  if (status == OCT_CLI_GO_ON) {
    w.convert.row = on_row;
    w.convert.user = &w;
    gboolean ok = o->calibration != NULL ? convert_calibrated(&w, source, folder, &error)
                                         : convert_plain(&w, source, folder, &error);
    if (ok && (o->json == NULL || !g_str_equal(o->json, "-")))
      print_report(&w, folder);
    ok = ok && (o->json == NULL || oct_cli_write_json(o->json, json_report(&w), &error));
    status = ok ? OCT_EXIT_OK : oct_cli_fail("convert", error);
  }
  for (guint i = 0; i < w.rows->len; i++)
    g_free((char *)g_array_index(w.rows, oct_convert_row, i).module);
  g_array_unref(w.rows);
  return status;
}

int
oct_cmd_convert(int argc, char **argv) {
  options o = {.windows = WINDOWS_DEFAULT, .threads = THREADS_DEFAULT, .shard_gb = 5};
  const GOptionEntry entries[] = {
      {"to", 0, 0, G_OPTION_ARG_STRING, &o.to, "awq, fp8, fp8-block or mxfp4", "FORMAT"},
      {"calibration", 0, 0, G_OPTION_ARG_FILENAME, &o.calibration,
       "awq: weigh errors by what this text brings to each input (default: round to nearest)",
       "FILE"},
      {"windows", 0, 0, G_OPTION_ARG_INT, &o.windows,
       "Of 512 tokens each, spread over the calibration text (default 16)", "N"},
      {"tokenizer", 0, 0, G_OPTION_ARG_FILENAME, &o.tokenizer,
       "For the calibration text (default: the source's own)", "PATH"},
      {"group-size", 0, 0, G_OPTION_ARG_INT, &o.group,
       "awq: inputs that share a scale: 128 (default), 64 or 32", "N"},
      {"dtype", 0, 0, G_OPTION_ARG_STRING, &o.dtype,
       "Of what is not quantised: float32, bfloat16 or float16 (default: as it is stored)", "TYPE"},
      {"shard-size", 0, 0, G_OPTION_ARG_DOUBLE, &o.shard_gb, "Bytes of a file (default 5 GB)",
       "GB"},
      {"threads", 0, 0, G_OPTION_ARG_INT, &o.threads, "For the calibration text (default 2)", "N"},
      {"json", 0, 0, G_OPTION_ARG_FILENAME, &o.json, "Write the errors to a file, - for stdout",
       "FILE"},
      G_OPTION_ENTRY_NULL,
  };
  const oct_cli_usage usage = {
      .command = "convert",
      .arguments = "SOURCE FOLDER",
      .summary =
          "Quantises a checkpoint's matrices and writes safetensors that other engines read.",
      .details = "SOURCE is a .safetensors or .gguf file, an index, or a folder that holds one.\n"
                 "FOLDER must not exist. Router, embedding, head, norms and biases are kept.",
      .entries = entries,
      .min_arguments = 2,
      .max_arguments = 2,
  };
  int status = oct_cli_parse(&usage, &argc, &argv);
  if (status == OCT_CLI_GO_ON)
    status = run(&o, argv[1], argv[2]);
  g_free(o.to);
  g_free(o.calibration);
  g_free(o.dtype);
  g_free(o.json);
  g_free(o.tokenizer);
  return status;
}
