/* octet model plan: which bytes of a checkpoint's files each rank of the cuda backend reads, from
 * the headers alone. The parts are those of backends/cuda/partition.h; no data is touched. */
#include "cli/cmd-model-plan.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "backends/cuda/partition.h"
#include "cli/cli.h"
#include "engine/model/files/model.h"

#define SKIPPED_SHOWN 5

typedef enum class {
  EMBEDDING,
  KDA,
  MLA,
  ATTENTION, /* with a KV head for some queries, whole or in windows */
  DENSE,
  EXPERTS,
  SHARED,
  ROUTER,
  NORMS,
  HEAD,
  CLASSES
} class;

/* Headings of the table, and keys of the JSON. */
static const char *const class_names[CLASSES] = {"embedding", "kda",     "mla",    "attention",
                                                 "dense",     "experts", "shared", "router",
                                                 "norms",     "head"};

typedef struct rank_sum {
  oct_cuda_share place;
  guint64 bytes[CLASSES], total;
  guint64 copied; /* of total: on other ranks of the instance too */
  guint8 *files;  /* [files]: this rank reads from it */
  guint n_files;
} rank_sum;

/* read = file - padding + scales + copies. */
typedef struct plan {
  oct_model_files *files;
  oct_map_report *report;
  const oct_parallel *parallel;
  const oct_file_tensor **places; /* by data: whose file a part of a weight is in */
  guint n_places;
  rank_sum *ranks;
  guint32 n_ranks;
  guint64 file;    /* bytes of all weights in the files */
  guint64 other;   /* of tensors that are no weight */
  guint64 padding; /* no rank reads it */
  guint64 scales;  /* read by two, because a group of codes is cut */
  guint64 copies;  /* read by more than one rank: each reading but the first */
  guint64 read;    /* by all ranks */
} plan;

static class class_of(const oct_model_spec *spec, const oct_weight *w) {
  if (w->kind == OCT_WEIGHT_EMBEDDING)
    return EMBEDDING;
  if (w->kind == OCT_WEIGHT_HEAD)
    return HEAD;
  if (w->kind < OCT_WEIGHT_Q)
    return NORMS;
  if (w->kind < OCT_WEIGHT_GATE) {
    oct_attention_kind kind = spec->attention[spec->layers[w->layer].attention].kind;
    return kind == OCT_ATTENTION_KDA ? KDA : kind == OCT_ATTENTION_MLA ? MLA : ATTENTION;
  }
  if (w->kind < OCT_WEIGHT_ROUTER)
    return DENSE;
  if (w->kind < OCT_WEIGHT_SHARED_GATE)
    return ROUTER;
  return w->kind < OCT_WEIGHT_EXPERT_GATE ? SHARED : EXPERTS;
}

/* --- files ---------------------------------------------------------------------------------------
 */

static int
by_data(const void *a, const void *b) {
  const guint8 *x = (*(const oct_file_tensor *const *)a)->data;
  const guint8 *y = (*(const oct_file_tensor *const *)b)->data;
  return (x > y) - (x < y);
}

static void
list_places(plan *p) {
  const oct_checkpoint *c = p->files->checkpoint;
  if (c == NULL)
    return;
  p->n_places = oct_checkpoint_n_tensors(c);
  p->places = g_new(const oct_file_tensor *, p->n_places);
  for (guint i = 0; i < p->n_places; i++)
    p->places[i] = oct_checkpoint_tensor(c, i);
  qsort(p->places, p->n_places, sizeof *p->places, by_data);
}

/* Marks the file that `data`, a part of a weight or NULL, lies in: that of the last tensor that
 * begins at or before it. */
static void
mark_file(const plan *p, rank_sum *rank, const void *data) {
  guint low = 0, high = p->n_places;
  if (data == NULL || p->n_places == 0)
    return;
  while (high - low > 1) {
    guint middle = low + (high - low) / 2;
    *(p->places[middle]->data <= (const guint8 *)data ? &low : &high) = middle;
  }
  guint8 *file = &rank->files[p->places[low]->file];
  rank->n_files += *file == 0;
  *file = 1;
}

/* --- sums ----------------------------------------------------------------------------------------
 */

/* What all ranks read of a weight, asked for as `kind`; *copies: ranks that hold each part. */
static guint64
add_parts(plan *p, const oct_weight *w, oct_weight_kind kind, class to, guint32 *copies) {
  guint64 all = 0;
  *copies = 1;
  for (guint32 i = 0; i < p->n_ranks; i++) {
    rank_sum *rank = &p->ranks[i];
    oct_cuda_piece part =
        oct_cuda_piece_of(&rank->place, kind, w->layer, w->expert, w->rows, w->columns);
    if (part.rows == 0)
      continue;
    guint64 bytes = oct_cuda_piece_bytes(w, &part);
    *copies = oct_cuda_piece_copies(&rank->place, kind, w->layer);
    rank->bytes[to] += bytes;
    rank->total += bytes;
    rank->copied += *copies > 1 ? bytes : 0;
    all += bytes;
    mark_file(p, rank, w->codes);
    mark_file(p, rank, w->scales);
    mark_file(p, rank, w->zeros);
    mark_file(p, rank, w->order);
  }
  return all;
}

static void
add_weight(plan *p, const oct_weight *w) {
  const oct_model_spec *spec = p->files->spec;
  guint32 copies;
  guint64 all = add_parts(p, w, w->kind, class_of(spec, w), &copies), once = all / copies;
  p->file += w->bytes;
  p->read += all;
  p->copies += all - once;
  p->padding += w->bytes > once ? w->bytes - once : 0;
  p->scales += once > w->bytes ? once - w->bytes : 0;
  if (w->kind != OCT_WEIGHT_EMBEDDING || !spec->tied_embeddings)
    return;
  /* The same bytes again, as the head. */
  guint64 head = add_parts(p, w, OCT_WEIGHT_HEAD, HEAD, &copies);
  p->read += head;
  p->copies += head;
}

static void
add_all(plan *p) {
  const oct_checkpoint *c = p->files->checkpoint;
  guint n_files = c != NULL ? oct_checkpoint_n_files(c) : 0;
  p->n_ranks = oct_parallel_world(p->parallel);
  p->ranks = g_new0(rank_sum, p->n_ranks);
  for (guint32 i = 0; i < p->n_ranks; i++) {
    p->ranks[i].place = oct_cuda_share_of(p->files->spec, p->parallel, i);
    p->ranks[i].files = g_new0(guint8, MAX(n_files, 1));
  }
  list_places(p);
  for (guint i = 0; i < oct_weight_map_n(p->files->map); i++)
    add_weight(p, oct_weight_map_at(p->files->map, i));
  if (c != NULL)
    p->other = oct_checkpoint_bytes(c) - p->file;
}

/* --- for people ----------------------------------------------------------------------------------
 */

static void
print_files(const plan *p, const char *name) {
  const oct_checkpoint *c = p->files->checkpoint;
  const oct_map_list *skipped = &p->report->skipped;
  printf("%s (%s): ", name, p->files->spec->architecture);
  if (c == NULL) {
    printf("%u weights as the config has them, without files\n", oct_weight_map_n(p->files->map));
    return;
  }
  printf("%u tensors in %u file%s, %" G_GUINT64_FORMAT " bytes\n", oct_checkpoint_n_tensors(c),
         oct_checkpoint_n_files(c), oct_checkpoint_n_files(c) == 1 ? "" : "s",
         oct_checkpoint_bytes(c));
  if (skipped->n > 0)
    printf("not read: %u tensors, %" G_GUINT64_FORMAT " bytes\n", skipped->n, p->other);
  guint shown = MIN(skipped->texts->len, SKIPPED_SHOWN);
  for (guint i = 0; i < shown; i++)
    printf("  %s\n", (char *)g_ptr_array_index(skipped->texts, i));
  if (skipped->n > shown)
    printf("  … and %u more\n", skipped->n - shown);
}

static void
print_plan(const plan *p, const char *name) {
  gboolean has[CLASSES] = {0};
  for (guint32 i = 0; i < p->n_ranks; i++)
    for (guint k = 0; k < CLASSES; k++)
      has[k] = has[k] || p->ranks[i].bytes[k] > 0;
  print_files(p, name);
  printf("\nGB read by each rank; copied: of it, what other ranks read too\n");
  printf("%4s %5s", "rank", "stage");
  for (guint k = 0; k < CLASSES; k++)
    if (has[k])
      printf(" %9s", class_names[k]);
  printf(" %9s %17s %9s %5s\n", "all", "bytes", "copied", "files");
  for (guint32 i = 0; i < p->n_ranks; i++) {
    const rank_sum *rank = &p->ranks[i];
    printf("%4u %5u", i, rank->place.stage);
    for (guint k = 0; k < CLASSES; k++)
      if (has[k])
        printf(" %9.3f", (double)rank->bytes[k] * 1e-9);
    printf(" %9.3f %17" G_GUINT64_FORMAT " %9.3f %5u\n", (double)rank->total * 1e-9, rank->total,
           (double)rank->copied * 1e-9, rank->n_files);
  }
  printf("\n%-38s %18" G_GUINT64_FORMAT " B\n", "weights in the files", p->file);
  printf("%-38s %18" G_GUINT64_FORMAT " B\n", "- padding that no rank reads", p->padding);
  printf("%-38s %18" G_GUINT64_FORMAT " B\n", "+ scales of groups that are cut", p->scales);
  printf("%-38s %18" G_GUINT64_FORMAT " B\n", "+ copies on further ranks", p->copies);
  printf("%-38s %18" G_GUINT64_FORMAT " B\n", "= read by all ranks", p->read);
}

/* --- for programs --------------------------------------------------------------------------------
 */

static json_t *
number(guint64 value) {
  return json_integer((json_int_t)value);
}

static json_t *
json_plan(const plan *p, const char *name) {
  const oct_checkpoint *c = p->files->checkpoint;
  json_t *ranks = json_array();
  for (guint32 i = 0; i < p->n_ranks; i++) {
    const rank_sum *r = &p->ranks[i];
    json_t *kinds = json_object(), *files = json_array();
    for (guint k = 0; k < CLASSES; k++)
      json_object_set_new(kinds, class_names[k], number(r->bytes[k]));
    for (guint f = 0; c != NULL && f < oct_checkpoint_n_files(c); f++) {
      g_autofree char *base = g_path_get_basename(oct_checkpoint_file(c, f));
      if (r->files[f] != 0)
        json_array_append_new(files, json_string(base));
    }
    json_array_append_new(ranks,
                          json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "stage",
                                    number(r->place.stage), "domain", number(r->place.domain),
                                    "tensor", number(r->place.tensor), "bytes", number(r->total),
                                    "copied", number(r->copied), "kinds", kinds, "files", files));
  }
  json_t *skipped = json_array();
  for (guint i = 0; i < p->report->skipped.texts->len; i++)
    json_array_append_new(skipped, json_string(g_ptr_array_index(p->report->skipped.texts, i)));
  return json_pack("{s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "name", name,
                   "weight_bytes", number(p->file), "other_bytes", number(p->other),
                   "skipped_tensors", number(p->report->skipped.n), "skipped_first", skipped,
                   "padding_bytes", number(p->padding), "cut_scale_bytes", number(p->scales),
                   "copied_bytes", number(p->copies), "read_bytes", number(p->read), "ranks",
                   ranks);
}

/* --- the command ---------------------------------------------------------------------------------
 */

/* Without files there are only the config's numbers: a name of the zoo, or a config file. */
static oct_load_format
format_of(const char *name) {
  gboolean config = g_str_has_suffix(name, ".json") && !g_str_has_suffix(name, ".index.json");
  return config || !g_file_test(name, G_FILE_TEST_EXISTS) ? OCT_LOAD_DUMMY : OCT_LOAD_AUTO;
}

int
oct_cmd_model_plan(const char *name, const oct_parallel *parallel, const char *zoo,
                   const char *json) {
  GError *error = NULL;
  plan p = {.parallel = parallel, .report = oct_map_report_new()};
  p.files = oct_model_files_open(name, zoo, format_of(name), 0, p.report, &error);
  gboolean ok = p.files != NULL && oct_parallel_check(p.files->spec, parallel, &error);
  if (ok) {
    add_all(&p);
    if (json == NULL || !g_str_equal(json, "-"))
      print_plan(&p, name);
    ok = json == NULL || oct_cli_write_json(json, json_plan(&p, name), &error);
  }
  for (guint32 i = 0; i < p.n_ranks; i++)
    g_free(p.ranks[i].files);
  g_free(p.ranks);
  g_free(p.places);
  oct_model_files_close(p.files);
  oct_map_report_free(p.report);
  return ok ? OCT_EXIT_OK : oct_cli_fail("model", error);
}
