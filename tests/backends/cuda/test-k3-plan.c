/* Kimi K3's checkpoint of 1.56 TB, on paper: files of the released shape whose data are holes, read
 * by the engine's readers, and divided over ranks as the cuda backend's loader divides them. What
 * each rank reads is also summed by hand, from the shapes alone. */
#include <jansson.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/model/files/model.h"
#include "tests/backends/cuda/k3-files.h"
#include "tests/engine/model/files/folder.h"

static char *folder;
static char *reason; /* why there are no files */
static k3_files files;

static gboolean
is_skipped(void) {
  if (reason != NULL)
    g_test_skip(reason);
  return reason != NULL;
}

static void
the_files_are_holes(void) {
  if (is_skipped())
    return;
  guint64 size = 0, taken = 0;
  for (guint i = 1; i <= K3_SHARDS; i++) {
    struct stat info;
    g_autofree char *path =
        g_strdup_printf("%s/model-%05u-of-%06u.safetensors", folder, i, K3_SHARDS);
    g_assert_cmpint(stat(path, &info), ==, 0);
    size += (guint64)info.st_size;
    taken += (guint64)info.st_blocks * 512;
  }
  g_test_message("%.3f GB of files in %.3f GB", (double)size * 1e-9, (double)taken * 1e-9);
  g_assert_cmpuint(size, >, K3_BYTES);
  g_assert_cmpuint(taken, <, 1000000000);
}

static void
every_tensor_is_claimed_or_said_to_be_skipped(void) {
  if (is_skipped())
    return;
  g_autoptr(GError) error = NULL;
  g_autoptr(oct_map_report) report = oct_map_report_new();
  g_autoptr(oct_model_files) f =
      oct_model_files_open(folder, NULL, OCT_LOAD_AUTO, 0, report, &error);
  g_assert_no_error(error);
  g_assert_cmpuint(oct_checkpoint_n_files(f->checkpoint), ==, K3_SHARDS);
  g_assert_cmpuint(oct_checkpoint_n_tensors(f->checkpoint), ==, K3_TENSORS);
  g_assert_cmpuint(oct_checkpoint_bytes(f->checkpoint), ==, K3_BYTES);
  g_assert_cmpuint(report->missing.n + report->wrong.n + report->unexpected.n, ==, 0);
  g_assert_cmpuint(report->skipped.n, ==, K3_VISION);
  for (guint i = 0; i < report->skipped.texts->len; i++)
    g_assert_true(
        g_str_has_suffix(g_ptr_array_index(report->skipped.texts, i), ": another modality"));
  g_autofree char *line = oct_map_report_skipped_line(report);
  g_assert_nonnull(strstr(line, "168 tensors of the checkpoint are not read, as the first: "));
  g_assert_true(g_str_has_suffix(line, ": another modality"));
  guint64 bytes = 0, experts = 0;
  for (guint i = 0; i < oct_weight_map_n(f->map); i++) {
    const oct_weight *w = oct_weight_map_at(f->map, i);
    bytes += w->bytes;
    if (w->kind < OCT_WEIGHT_EXPERT_GATE)
      continue;
    experts += w->bytes;
    g_assert_cmpint(w->layout, ==, OCT_LAYOUT_MXFP4);
  }
  g_assert_cmpuint(bytes, ==, K3_TEXT_BYTES);
  g_assert_cmpuint(experts, ==, (guint64)92 * K3_EXPERTS * K3_EXPERT_BYTES);
}

/* ---------------------------------------------------------------- ranks */

typedef struct layout {
  const char *name;
  guint32 tensor, pipeline, data;
  gboolean experts;
} layout;

static const layout layouts[] = {{"tp8", 8, 1, 1, FALSE},
                                 {"dp8-ep8", 1, 1, 8, TRUE},
                                 {"tp8-ep8", 8, 1, 1, TRUE},
                                 {"tp4-pp2", 4, 2, 1, FALSE},
                                 {"tp2-pp4", 2, 4, 1, FALSE}};

/* Layers go to stages as evenly as they can, the first stages taking one more. */
static guint64
rank_bytes(const layout *l, guint32 stage) {
  guint32 each = K3_LAYERS / l->pipeline, more = K3_LAYERS % l->pipeline;
  guint32 first = stage * each + MIN(stage, more), n = each + (stage < more ? 1 : 0);
  guint32 shares = l->experts ? l->tensor * l->data : l->tensor;
  guint64 bytes = stage == 0 ? files.embedding / l->tensor : 0;
  for (guint32 i = first; i < first + n; i++) {
    const k3_bytes *b = &files.layer[i];
    bytes += b->whole + b->divided / l->tensor + b->experts / shares;
  }
  if (stage + 1 == l->pipeline)
    bytes += files.end.whole + files.end.divided / l->tensor;
  return bytes;
}

/* What the memory ledger counts of a rank of a stage. */
static guint64
counted_bytes(const layout *l, guint32 stage) {
  g_autoptr(GError) error = NULL;
  g_autoptr(oct_model_spec) spec = oct_model_spec_load("kimi-k3", NULL, &error);
  g_assert_no_error(error);
  oct_parallel p = OCT_PARALLEL_DEFAULT;
  p.tensor = l->tensor;
  p.pipeline = l->pipeline;
  p.data = l->data;
  p.expert_parallel = l->experts;
  oct_weights weights;
  oct_model_rank_weights(spec, &p, stage, &weights);
  return oct_weights_total(&weights).bytes;
}

static json_t *
plan_of(const layout *l) {
  g_autoptr(GError) error = NULL;
  g_autofree char *octet = g_build_filename(g_getenv("OCT_BUILDDIR"), "octet", NULL);
  g_autofree char *tensor = g_strdup_printf("--tensor-parallel-size=%u", l->tensor);
  g_autofree char *pipeline = g_strdup_printf("--pipeline-parallel-size=%u", l->pipeline);
  g_autofree char *data = g_strdup_printf("--data-parallel-size=%u", l->data);
  char experts[] = "--enable-expert-parallel", model[] = "model", plan[] = "plan",
       json[] = "--json=-";
  char *argv[] = {
      octet, model, plan, folder, tensor, pipeline, data, json, l->experts ? experts : NULL, NULL};
  g_autofree char *out = NULL, *err = NULL;
  int status;
  gboolean ran = g_spawn_sync(NULL, argv, NULL, 0, NULL, NULL, &out, &err, &status, &error);
  g_assert_no_error(error);
  g_assert_true(ran);
  g_assert_cmpstr(err, ==, "");
  g_assert_cmpint(status, ==, 0);
  json_t *root = json_loads(out, 0, NULL);
  g_assert_nonnull(root);
  return root;
}

static guint64
get(const json_t *object, const char *key) {
  const json_t *value = json_object_get(object, key);
  g_assert_true(json_is_integer(value));
  return (guint64)json_integer_value(value);
}

/* The files of a rank: never the two of the vision tower; all others when it has all layers. */
static void
check_files(const layout *l, const json_t *rank) {
  const json_t *list = json_object_get(rank, "files"), *file;
  gsize i;
  json_array_foreach(list, i, file) {
    g_assert_null(strstr(json_string_value(file), "-00095-"));
    g_assert_null(strstr(json_string_value(file), "-00096-"));
  }
  if (l->pipeline == 1)
    g_assert_cmpuint(json_array_size(list), ==, K3_SHARDS - 2);
  else
    g_assert_cmpuint(json_array_size(list), <=, (K3_SHARDS - 2) / l->pipeline + 2);
}

static void
ranks_read_the_file_and_the_copies(gconstpointer data) {
  const layout *l = data;
  if (is_skipped())
    return;
  json_t *plan = plan_of(l);
  const json_t *ranks = json_object_get(plan, "ranks"), *rank, *value;
  guint64 read = 0, most = 0, padding = 0;
  gsize i;
  g_assert_cmpuint(json_array_size(ranks), ==, 8);
  json_array_foreach(ranks, i, rank) {
    guint64 kinds = 0, bytes = get(rank, "bytes");
    const char *name;
    json_object_foreach(json_object_get(rank, "kinds"), name, value) kinds +=
        (guint64)json_integer_value(value);
    g_assert_cmpuint(kinds, ==, bytes);
    g_assert_cmpuint(bytes, ==, rank_bytes(l, (guint32)get(rank, "stage")));
    g_assert_cmpuint(bytes, ==, counted_bytes(l, (guint32)get(rank, "stage")));
    g_assert_cmpuint(get(rank, "copied"), <, bytes);
    check_files(l, rank);
    read += bytes;
    most = MAX(most, bytes);
  }
  for (guint32 layer = 0; layer < K3_LAYERS; layer++)
    padding += files.layer[layer].padding;
  g_assert_cmpuint(get(plan, "weight_bytes"), ==, K3_TEXT_BYTES);
  g_assert_cmpuint(get(plan, "other_bytes"), ==, K3_BYTES - K3_TEXT_BYTES);
  g_assert_cmpuint(get(plan, "skipped_tensors"), ==, K3_VISION);
  g_assert_cmpuint(get(plan, "padding_bytes"), ==, padding);
  g_assert_cmpuint(get(plan, "cut_scale_bytes"), ==, 0);
  g_assert_cmpuint(get(plan, "read_bytes"), ==, read);
  g_assert_cmpuint(read, ==, K3_TEXT_BYTES - padding + get(plan, "copied_bytes"));
  g_test_message("%s: %.3f GB read by all ranks, %.3f of them copies, %.3f by the busiest", l->name,
                 (double)read * 1e-9, (double)get(plan, "copied_bytes") * 1e-9,
                 (double)most * 1e-9);
  json_decref(plan);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  GError *error = NULL;
  folder = folder_new();
  if (!k3_files_write(folder, &files, &error))
    reason = g_strdup(error->message);
  g_clear_error(&error);
  g_test_add_func("/cuda/k3-plan/the-files-are-holes", the_files_are_holes);
  g_test_add_func("/cuda/k3-plan/every-tensor-is-claimed-or-said-to-be-skipped",
                  every_tensor_is_claimed_or_said_to_be_skipped);
  for (gsize i = 0; i < G_N_ELEMENTS(layouts); i++) {
    g_autofree char *path =
        g_strdup_printf("/cuda/k3-plan/%s/ranks-read-the-file-and-the-copies", layouts[i].name);
    g_test_add_data_func(path, &layouts[i], ranks_read_the_file_and_the_copies);
  }
  int status = g_test_run();
  folder_remove(folder);
  g_free(folder);
  g_free(reason);
  return status;
}
