/* model.safetensors.index.json: {"metadata": …, "weight_map": {"tensor": "file"…}}.
 *
 * Every file that the map names is opened, each once. A shard is a file name, never a path, so that
 * an index cannot reach out of its folder; the file may be a link, as in Hugging Face's cache.
 * After all shards are read, each tensor of the map must be in its shard. */
#include <string.h>

#include "engine/base/assert.h"
#include "engine/model/files/internal.h"
#include "engine/model/files/scan.h"

#define SHARD_NAME_MAX 255

/* Reads {"metadata": …, "weight_map": …} and calls back for each entry of the map. */
typedef gboolean (*entry_reader)(oct_scan *scan, const char *tensor, const char *shard,
                                 gpointer data);

static gboolean
read_string(oct_scan *scan, char *out, gsize max) {
  gsize size;
  if (!oct_scan_string(scan, out, max, &size))
    return FALSE;
  out[size] = '\0';
  return TRUE;
}

static gboolean
read_map(oct_scan *scan, entry_reader read, gpointer data) {
  char tensor[OCT_FILE_NAME_MAX + 1], shard[SHARD_NAME_MAX + 1];
  gboolean more = TRUE;
  if (!oct_scan_char(scan, '{'))
    return FALSE;
  if (oct_scan_next_is(scan, '}'))
    return oct_scan_char(scan, '}');
  while (more)
    if (!read_string(scan, tensor, OCT_FILE_NAME_MAX) || !oct_scan_char(scan, ':') ||
        !read_string(scan, shard, SHARD_NAME_MAX) || !read(scan, tensor, shard, data) ||
        !oct_scan_more(scan, '}', &more))
      return FALSE;
  return TRUE;
}

static gboolean
read_index(oct_scan *scan, entry_reader read, gpointer data) {
  char field[OCT_FILE_NAME_MAX + 1];
  gboolean more = TRUE, has_map = FALSE;
  if (!oct_scan_char(scan, '{'))
    return FALSE;
  while (more) {
    if (!read_string(scan, field, OCT_FILE_NAME_MAX) || !oct_scan_char(scan, ':'))
      return FALSE;
    gboolean map = g_str_equal(field, "weight_map");
    if (map && has_map)
      return oct_scan_fail(scan, OCT_FILES_ERROR_FORMAT, "weight_map is there twice");
    has_map = has_map || map;
    if (!(map ? read_map(scan, read, data) : oct_scan_skip(scan)) ||
        !oct_scan_more(scan, '}', &more))
      return FALSE;
  }
  return (has_map || oct_scan_fail(scan, OCT_FILES_ERROR_FORMAT, "there is no weight_map")) &&
         oct_scan_end(scan);
}

/* --- first reading: the set of shards ------------------------------------------------------------
 */

static gboolean
collect_shard(oct_scan *scan, const char *tensor, const char *shard, gpointer data) {
  GPtrArray *shards = data;
  if (*shard == '\0' || strchr(shard, '/') != NULL || g_str_equal(shard, ".") ||
      g_str_equal(shard, ".."))
    return oct_scan_fail(scan, OCT_FILES_ERROR_FORMAT,
                         "tensor %s: shard '%s' is not the name of a file in the index's folder",
                         tensor, shard);
  /* Entries of one shard mostly stand together: look at the newest first. */
  for (guint i = shards->len; i > 0; i--)
    if (g_str_equal(g_ptr_array_index(shards, i - 1), shard))
      return TRUE;
  if (shards->len == OCT_FILE_SHARDS_MAX)
    return oct_scan_fail(scan, OCT_FILES_ERROR_LIMIT, "more than %d shards", OCT_FILE_SHARDS_MAX);
  g_ptr_array_add(shards, g_strdup(shard));
  return TRUE;
}

static int
compare_names(const void *a, const void *b) {
  return strcmp(*(char *const *)a, *(char *const *)b);
}

static gboolean
read_shard(oct_checkpoint *checkpoint, const char *label, const char *folder, const char *shard,
           GError **error) {
  g_autofree char *path = g_build_filename(folder, shard, NULL);
  if (!g_file_test(path, G_FILE_TEST_EXISTS)) {
    g_set_error(error, OCT_FILES_ERROR, OCT_FILES_ERROR_NOT_FOUND,
                "%s: shard %s is missing from its folder", label, shard);
    return FALSE;
  }
  return oct_checkpoint_add_file(checkpoint, path, NULL, 0, error) &&
         oct_safetensors_read(checkpoint, error);
}

/* --- second reading: is every tensor where the map says ------------------------------------------
 */

typedef struct place {
  const char *name;
  guint file;
} place;

typedef struct places {
  place *all; /* sorted by name */
  guint n;
  GPtrArray *shards; /* sorted, as the checkpoint's files are */
} places;

static int
by_name(const void *a, const void *b) {
  return strcmp(((const place *)a)->name, ((const place *)b)->name);
}

static gboolean
check_place(oct_scan *scan, const char *tensor, const char *shard, gpointer data) {
  const places *p = data;
  const place key = {.name = tensor};
  const place *found = p->n > 0 ? bsearch(&key, p->all, p->n, sizeof key, by_name) : NULL;
  return (found != NULL && g_str_equal(g_ptr_array_index(p->shards, found->file), shard)) ||
         oct_scan_fail(scan, OCT_FILES_ERROR_TENSOR, "tensor %s is not in its shard %s", tensor,
                       shard);
}

static gboolean
check_places(oct_checkpoint *checkpoint, oct_scan *scan, GPtrArray *shards) {
  places p = {.n = checkpoint->n_tensors, .shards = shards};
  p.all = oct_budget_alloc(checkpoint->budget, p.n, sizeof *p.all, scan->error);
  if (p.all == NULL)
    return FALSE;
  for (guint i = 0; i < p.n; i++)
    p.all[i] = (place){checkpoint->tensors[i].name, checkpoint->tensors[i].file};
  if (p.n > 0)
    qsort(p.all, p.n, sizeof *p.all, by_name);
  scan->at = 0;
  gboolean ok = TRUE;
  for (guint i = 1; i < p.n && ok; i++)
    if (strcmp(p.all[i - 1].name, p.all[i].name) == 0)
      ok = oct_scan_fail(scan, OCT_FILES_ERROR_FORMAT, "tensor %s is there twice, in %s and %s",
                         p.all[i].name, (char *)g_ptr_array_index(shards, p.all[i - 1].file),
                         (char *)g_ptr_array_index(shards, p.all[i].file));
  ok = ok && read_index(scan, check_place, &p);
  oct_budget_release(checkpoint->budget, p.all);
  return ok;
}

gboolean
oct_shards_read(oct_checkpoint *checkpoint, const char *label, const char *folder, oct_text text,
                GError **error) {
  GError *first = NULL;
  oct_scan scan = {.label = label, .text = text.bytes, .size = text.size, .error = &first};
  GPtrArray *shards = g_ptr_array_new_with_free_func(g_free);
  gboolean ok = read_index(&scan, collect_shard, shards);
  if (ok && shards->len == 0)
    ok = oct_scan_fail(&scan, OCT_FILES_ERROR_FORMAT, "the weight_map is empty");
  g_ptr_array_sort(shards, compare_names);
  for (guint i = 0; ok && i < shards->len; i++)
    ok = read_shard(checkpoint, label, folder, g_ptr_array_index(shards, i), &first);
  ok = ok && check_places(checkpoint, &scan, shards);
  g_ptr_array_free(shards, TRUE);
  if (!ok)
    g_propagate_error(error, first);
  return ok;
}
