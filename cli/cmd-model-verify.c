/* octet model verify: are a checkpoint's files whole, and do they hold the model that its config
 * describes? Opening already checks every header field; the map checks names and shapes; --values
 * reads every weight and looks for what is not a number. */
#include "cli/cmd-model-verify.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "engine/model/files/model.h"

#define VALUES_PER_READ (1u << 20)
#define TEXTS_SHOWN     20  /* of each kind of problem, in the table */
#define NOT_NUMBERS_MAX 100 /* weights with something that is not a number: named */

typedef struct options {
  char *format, *config, *json;
  gboolean values;
} options;

/* What a reading of all values found. */
typedef struct values_report {
  guint64 n_read, n_nan, n_inf, n_weights;
  double largest;
  GPtrArray *texts; /* of char*: the first weights with something that is not a number */
} values_report;

typedef struct verified {
  oct_checkpoint *checkpoint;
  oct_model_spec *spec;
  oct_weight_map *map; /* NULL when something is missing, wrong or unexpected */
  oct_map_report *report;
  values_report values;
} verified;

/* --- values --------------------------------------------------------------------------------------
 */

/* A line on a terminal that says how far the reading is. */
static void
show_progress(guint64 done, guint64 all) {
  static guint shown = G_MAXUINT;
  guint percent = all > 0 ? (guint)((double)done / (double)all * 100) : 100;
  if (percent == shown || isatty(STDERR_FILENO) == 0)
    return;
  shown = percent;
  fprintf(stderr, percent < 100 ? "\rreading values: %u %%" : "\r%*s\r", percent, "");
}

static void
check_weight(const oct_weight *w, float *buffer, values_report *out) {
  guint64 rows_per_read = MAX(VALUES_PER_READ / w->columns, 1), n_bad = 0, first = 0;
  for (guint64 row = 0; row < w->rows; row += rows_per_read) {
    guint64 n = MIN(rows_per_read, w->rows - row) * w->columns;
    oct_weight_read(w, row, n / w->columns, buffer);
    for (guint64 i = 0; i < n; i++) {
      if (isfinite(buffer[i])) {
        out->largest = fmax(out->largest, fabs((double)buffer[i]));
        continue;
      }
      if (n_bad++ == 0)
        first = row * w->columns + i;
      *(isnan(buffer[i]) ? &out->n_nan : &out->n_inf) += 1;
    }
    out->n_read += n;
  }
  out->n_weights += n_bad > 0;
  if (n_bad == 0 || out->texts->len >= NOT_NUMBERS_MAX)
    return;
  g_autofree char *name = oct_weight_name(w);
  g_ptr_array_add(out->texts,
                  g_strdup_printf("%s: %" G_GUINT64_FORMAT " of %" G_GUINT64_FORMAT
                                  ", the first at [%" G_GUINT64_FORMAT ", %" G_GUINT64_FORMAT "]",
                                  name, n_bad, w->rows * w->columns, first / w->columns,
                                  first % w->columns));
}

static gboolean
check_values(verified *v, GError **error) {
  guint64 widest = 0, bytes = 0;
  for (guint i = 0; i < oct_weight_map_n(v->map); i++)
    widest = MAX(widest, oct_weight_map_at(v->map, i)->columns);
  float *buffer = g_try_new(float, MAX(widest, VALUES_PER_READ));
  if (buffer == NULL) {
    g_set_error(error, OCT_FILES_ERROR, OCT_FILES_ERROR_LIMIT,
                "no memory for rows of %" G_GUINT64_FORMAT " values", widest);
    return FALSE;
  }
  for (guint i = 0; i < oct_weight_map_n(v->map); i++) {
    const oct_weight *w = oct_weight_map_at(v->map, i);
    check_weight(w, buffer, &v->values);
    bytes += w->bytes;
    show_progress(bytes, oct_checkpoint_bytes(v->checkpoint));
  }
  show_progress(1, 1);
  g_free(buffer);
  return TRUE;
}

/* --- for people ----------------------------------------------------------------------------------
 */

typedef struct type_row {
  guint64 n, elements, bytes;
} type_row;

static void
sum_types(const oct_checkpoint *c, type_row rows[OCT_STORED_COUNT]) {
  memset(rows, 0, OCT_STORED_COUNT * sizeof *rows);
  for (guint i = 0; i < oct_checkpoint_n_tensors(c); i++) {
    const oct_file_tensor *t = oct_checkpoint_tensor(c, i);
    rows[t->type].n++;
    rows[t->type].elements += oct_file_tensor_elements(t);
    rows[t->type].bytes += t->bytes;
  }
}

static void
sum_layouts(const oct_weight_map *map, type_row rows[OCT_LAYOUT_COUNT]) {
  memset(rows, 0, OCT_LAYOUT_COUNT * sizeof *rows);
  for (guint i = 0; map != NULL && i < oct_weight_map_n(map); i++) {
    const oct_weight *w = oct_weight_map_at(map, i);
    rows[w->layout].n++;
    rows[w->layout].elements += w->rows * w->columns;
    rows[w->layout].bytes += w->bytes;
  }
}

static void
print_rows(const char *heading, const char *(*name)(guint row), const type_row *rows, guint n) {
  printf("\n%-12s %10s %18s %20s\n", heading, "count", "elements", "bytes");
  for (guint i = 0; i < n; i++)
    if (rows[i].n > 0)
      printf("%-12s %10" G_GUINT64_FORMAT " %18" G_GUINT64_FORMAT " %20" G_GUINT64_FORMAT "\n",
             name(i), rows[i].n, rows[i].elements, rows[i].bytes);
}

static const char *
type_name(guint row) {
  return oct_stored_get((oct_stored_type)row)->name;
}

static const char *
layout_name(guint row) {
  return oct_layout_name((oct_layout)row);
}

/* n_items: how many there are, of which texts are the first. */
static void
print_list(const char *what, guint64 n, guint64 n_items, const GPtrArray *texts) {
  guint shown = MIN(texts->len, TEXTS_SHOWN);
  printf("%-14s %10" G_GUINT64_FORMAT "\n", what, n);
  for (guint i = 0; i < shown; i++)
    printf("  %s\n", (char *)g_ptr_array_index(texts, i));
  if (n_items > shown)
    printf("  … and %" G_GUINT64_FORMAT " more\n", n_items - shown);
}

static gboolean
is_good(const verified *v) {
  return v->map != NULL && v->values.n_nan == 0 && v->values.n_inf == 0;
}

static void
print_report(const verified *v, const options *o) {
  type_row types[OCT_STORED_COUNT], layouts[OCT_LAYOUT_COUNT];
  oct_weights weights;
  gboolean gguf = oct_checkpoint_format(v->checkpoint) == OCT_LOAD_GGUF;
  oct_model_weights(v->spec, &weights);
  printf("%s: %s, %u file%s, %u tensors, %" G_GUINT64_FORMAT " bytes\n",
         oct_checkpoint_path(v->checkpoint), gguf ? "GGUF" : "safetensors",
         oct_checkpoint_n_files(v->checkpoint),
         oct_checkpoint_n_files(v->checkpoint) == 1 ? "" : "s",
         oct_checkpoint_n_tensors(v->checkpoint), oct_checkpoint_bytes(v->checkpoint));
  printf("%s (%s): %" G_GUINT64_FORMAT " parameters in %" G_GUINT64_FORMAT " bytes by its config\n",
         v->spec->name, v->spec->architecture, oct_weights_total(&weights).parameters,
         oct_weights_total(&weights).bytes);
  sum_types(v->checkpoint, types);
  print_rows("tensors", type_name, types, OCT_STORED_COUNT);
  sum_layouts(v->map, layouts);
  if (v->map != NULL)
    print_rows("weights", layout_name, layouts, OCT_LAYOUT_COUNT);
  printf("\n");
  const struct {
    const char *name;
    const oct_map_list *list;
  } lists[] = {{"missing", &v->report->missing},
               {"wrong", &v->report->wrong},
               {"unexpected", &v->report->unexpected},
               {"not used", &v->report->skipped}};
  for (guint i = 0; i < G_N_ELEMENTS(lists); i++)
    print_list(lists[i].name, lists[i].list->n, lists[i].list->n, lists[i].list->texts);
  if (o->values && v->map != NULL) {
    print_list("not numbers", v->values.n_nan + v->values.n_inf, v->values.n_weights,
               v->values.texts);
    printf("%" G_GUINT64_FORMAT " values read, the largest is %g\n", v->values.n_read,
           v->values.largest);
  }
  printf("\n%s\n",
         is_good(v) ? "the checkpoint holds the model" : "the checkpoint does not hold the model");
}

/* --- for programs --------------------------------------------------------------------------------
 */

static json_t *
number(guint64 value) {
  return json_integer((json_int_t)value);
}

static json_t *
json_rows(const char *(*name)(guint row), const type_row *rows, guint n) {
  json_t *list = json_array();
  for (guint i = 0; i < n; i++)
    if (rows[i].n > 0)
      json_array_append_new(list, json_pack("{s:s, s:o, s:o, s:o}", "name", name(i), "count",
                                            number(rows[i].n), "elements", number(rows[i].elements),
                                            "bytes", number(rows[i].bytes)));
  return list;
}

static json_t *
json_list(guint64 n, const GPtrArray *texts) {
  json_t *list = json_array();
  for (guint i = 0; i < texts->len; i++)
    json_array_append_new(list, json_string(g_ptr_array_index(texts, i)));
  return json_pack("{s:o, s:o}", "count", number(n), "first", list);
}

static json_t *
json_report(const verified *v, const options *o) {
  type_row types[OCT_STORED_COUNT], layouts[OCT_LAYOUT_COUNT];
  const oct_map_report *r = v->report;
  sum_types(v->checkpoint, types);
  sum_layouts(v->map, layouts);
  json_t *json = json_pack(
      "{s:s, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:b}", "path",
      oct_checkpoint_path(v->checkpoint), "format",
      oct_checkpoint_format(v->checkpoint) == OCT_LOAD_GGUF ? "gguf" : "safetensors", "files",
      number(oct_checkpoint_n_files(v->checkpoint)), "tensors",
      number(oct_checkpoint_n_tensors(v->checkpoint)), "bytes",
      number(oct_checkpoint_bytes(v->checkpoint)), "types",
      json_rows(type_name, types, OCT_STORED_COUNT), "layouts",
      json_rows(layout_name, layouts, OCT_LAYOUT_COUNT), "missing",
      json_list(r->missing.n, r->missing.texts), "wrong", json_list(r->wrong.n, r->wrong.texts),
      "unexpected", json_list(r->unexpected.n, r->unexpected.texts), "not_used",
      json_list(r->skipped.n, r->skipped.texts), "ok", (int)is_good(v));
  if (o->values && v->map != NULL)
    json_object_set_new(json, "values",
                        json_pack("{s:o, s:o, s:o, s:f, s:o}", "read", number(v->values.n_read),
                                  "nan", number(v->values.n_nan), "inf", number(v->values.n_inf),
                                  "largest", v->values.largest, "not_numbers",
                                  json_list(v->values.n_nan + v->values.n_inf, v->values.texts)));
  return json;
}

/* --- the command ---------------------------------------------------------------------------------
 */

static gboolean
verify(verified *v, const options *o, oct_load_format format, const char *path, GError **error) {
  v->checkpoint = oct_checkpoint_open(path, format, error);
  if (v->checkpoint == NULL)
    return FALSE;
  v->spec = o->config != NULL ? oct_model_spec_load(o->config, NULL, error)
                              : oct_model_spec_of(v->checkpoint, error);
  if (v->spec == NULL)
    return FALSE;
  g_autoptr(GError) unfit = NULL;
  v->map = oct_weight_map_new(v->spec, v->checkpoint, v->report, &unfit);
  if (v->map == NULL && !g_error_matches(unfit, OCT_FILES_ERROR, OCT_FILES_ERROR_TENSOR)) {
    g_propagate_error(error, g_steal_pointer(&unfit));
    return FALSE;
  }
  return v->map == NULL || !o->values || check_values(v, error);
}

static int
run(const options *o, const char *path) {
  oct_load_format format = OCT_LOAD_AUTO;
  if (o->format != NULL && (!oct_load_format_parse(o->format, &format) || format == OCT_LOAD_DUMMY))
    return oct_cli_refuse("model", "--load-format '%s': allowed are auto, safetensors and gguf",
                          o->format);
  GError *error = NULL;
  verified v = {.report = oct_map_report_new(),
                .values.texts = g_ptr_array_new_with_free_func(g_free)};
  gboolean ok = verify(&v, o, format, path, &error);
  if (ok && (o->json == NULL || !g_str_equal(o->json, "-")))
    print_report(&v, o);
  ok = ok && (o->json == NULL || oct_cli_write_json(o->json, json_report(&v, o), &error));
  int status = !ok ? oct_cli_fail("model", error) : is_good(&v) ? OCT_EXIT_OK : OCT_EXIT_FAILED;
  oct_weight_map_free(v.map);
  oct_map_report_free(v.report);
  oct_checkpoint_close(v.checkpoint);
  oct_model_spec_free(v.spec);
  g_ptr_array_free(v.values.texts, TRUE);
  return status;
}

int
oct_cmd_model_verify(int argc, char **argv) {
  options o = {0};
  const GOptionEntry entries[] = {
      {"values", 0, 0, G_OPTION_ARG_NONE, &o.values,
       "Read every weight, and find what is not a number", NULL},
      {"load-format", 0, 0, G_OPTION_ARG_STRING, &o.format, "auto, safetensors or gguf", "FORMAT"},
      {"config", 0, 0, G_OPTION_ARG_FILENAME, &o.config,
       "Check against this model (default: the checkpoint's own config)", "MODEL"},
      {"json", 0, 0, G_OPTION_ARG_FILENAME, &o.json, "Write the findings to a file, - for stdout",
       "FILE"},
      G_OPTION_ENTRY_NULL,
  };
  const oct_cli_usage usage = {
      .command = "model verify",
      .arguments = "CHECKPOINT",
      .summary = "Checks that a checkpoint's files are whole and hold the model that its config "
                 "describes.",
      .details = "CHECKPOINT is a .safetensors or .gguf file, an index, or a folder that holds "
                 "one.\nExit status: 0 when it holds the model, 1 when not.",
      .entries = entries,
      .min_arguments = 1,
      .max_arguments = 1,
  };
  int status = oct_cli_parse(&usage, &argc, &argv);
  if (status == OCT_CLI_GO_ON)
    status = run(&o, argv[1]);
  g_free(o.format);
  g_free(o.config);
  g_free(o.json);
  return status;
}
