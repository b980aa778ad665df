/* The map: every weight of a model, found in a checkpoint or made up. */
#include "engine/model/files/map.h"

#include <string.h>

#include "engine/base/assert.h"
#include "engine/model/files/dummy.h"
#include "engine/model/files/find.h"
#include "engine/model/files/names.h"
#include "engine/model/tensors.h"

/* Memory for the list of weights: Kimi K3 has 250,000 of 144 bytes. */
#define MAP_BYTES_MAX (1u << 30)
#define NONE          G_MAXUINT32
#define SHOWN         5 /* problems that an error's message names */
/* So many weights may be missing without a doubt about the config. */
#define PLENTY 65536

/* Parts of a materialised dummy. */
typedef struct owned {
  void *memory;
  oct_budget *budget;
} owned;

struct oct_weight_map {
  oct_budget *budget;
  oct_weight *weights;
  guint n;
  guint32 n_layers;
  guint32 *first; /* [n_layers + 1, OCT_WEIGHT_KINDS]: position of the first of a kind; the model's
                     own weights stand in the last row */
  guint32 *count; /* likewise: how many (experts) */
  const float *rope_divisors;
  guint n_rope_divisors;
  GArray *materialised; /* of owned */
};

/* --- reports -------------------------------------------------------------------------------------
 */

static oct_map_list *
report_list(oct_map_report *report, guint i) {
  oct_map_list *lists[] = {&report->missing, &report->wrong, &report->unexpected, &report->skipped};
  return i < G_N_ELEMENTS(lists) ? lists[i] : NULL;
}

oct_map_report *
oct_map_report_new(void) {
  oct_map_report *report = g_new0(oct_map_report, 1);
  oct_map_list *list;
  for (guint i = 0; (list = report_list(report, i)) != NULL; i++)
    list->texts = g_ptr_array_new_with_free_func(g_free);
  return report;
}

char *
oct_map_report_skipped_line(const oct_map_report *report) {
  const oct_map_list *list = &report->skipped;
  if (list->n == 0)
    return NULL;
  return g_strdup_printf("%u tensor%s of the checkpoint %s not read, as the first: %s", list->n,
                         list->n == 1 ? "" : "s", list->n == 1 ? "is" : "are",
                         (const char *)g_ptr_array_index(list->texts, 0));
}

void
oct_map_report_free(oct_map_report *report) {
  oct_map_list *list;
  for (guint i = 0; report != NULL && (list = report_list(report, i)) != NULL; i++)
    g_ptr_array_free(list->texts, TRUE);
  g_free(report);
}

char *
oct_weight_name(const oct_weight *w) {
  const char *kind = oct_weight_kind_name(w->kind);
  if (w->kind <= OCT_WEIGHT_HEAD)
    return g_strdup(kind);
  if (w->kind < OCT_WEIGHT_EXPERT_GATE)
    return g_strdup_printf("layer %u %s", w->layer, kind);
  return g_strdup_printf("layer %u %s %u", w->layer, kind, w->expert);
}

/* --- the list of weights -------------------------------------------------------------------------
 */

typedef void (*tensor_visitor)(const oct_tensor *tensor, guint32 layer, gpointer data);

/* All tensors of the model in order; layer is n_layers for the model's own. */
static void
visit_tensors(const oct_model_spec *spec, tensor_visitor visit, gpointer data) {
  oct_tensor_list list;
  oct_tensors_before(spec, &list);
  for (guint i = 0; i < list.n; i++)
    visit(&list.tensors[i], spec->n_layers, data);
  for (guint32 layer = 0; layer < spec->n_layers; layer++) {
    oct_tensors_layer(spec, layer, &list);
    for (guint i = 0; i < list.n; i++)
      visit(&list.tensors[i], layer, data);
  }
  oct_tensors_after(spec, FALSE, &list);
  for (guint i = 0; i < list.n; i++)
    visit(&list.tensors[i], spec->n_layers, data);
}

static void
count_tensor(const oct_tensor *tensor, guint32 layer, gpointer data) {
  guint64 *n = data;
  (void)layer;
  *n += tensor->count;
}

/* What is needed to fill in a weight that has been listed. */
typedef struct builder {
  oct_weight_map *map;
  const oct_model_spec *spec;
  oct_finder *finder; /* NULL: dummies */
  guint64 seed;
} builder;

static void
add_tensor(const oct_tensor *tensor, guint32 layer, gpointer data) {
  builder *b = data;
  oct_weight_map *map = b->map;
  guint slot = layer * OCT_WEIGHT_KINDS + tensor->kind;
  oct_assert(map->first[slot] == NONE);
  map->first[slot] = map->n;
  map->count[slot] = (guint32)tensor->count;
  for (guint64 i = 0; i < tensor->count; i++) {
    oct_weight *w = &map->weights[map->n++];
    *w = (oct_weight){.kind = tensor->kind,
                      .layer = layer == map->n_layers ? 0 : layer,
                      .expert = (guint32)i,
                      .rows = tensor->rows,
                      .columns = tensor->columns};
    if (b->finder == NULL)
      oct_dummy_init(w, tensor->type, b->spec->tied_embeddings, b->seed);
    else if (!oct_finder_find(b->finder, w))
      w->codes = NULL; /* the report has it; the map is not handed out */
  }
}

/* FALSE when a config asks for many more weights than its checkpoint has bytes for: no list of them
 * is made then. */
static gboolean
check_count(guint64 n, const oct_checkpoint *checkpoint, GError **error) {
  guint64 bytes = checkpoint != NULL ? oct_checkpoint_bytes(checkpoint) : G_MAXUINT64;
  if (n <= PLENTY || n <= bytes / 8)
    return TRUE;
  g_set_error(error, OCT_FILES_ERROR, OCT_FILES_ERROR_LIMIT,
              "%s: the config describes %" G_GUINT64_FORMAT
              " weights, and all tensors together have "
              "only %" G_GUINT64_FORMAT " bytes",
              oct_checkpoint_path(checkpoint), n, bytes);
  return FALSE;
}

static oct_weight_map *
map_new(const oct_model_spec *spec, const oct_checkpoint *checkpoint, GError **error) {
  guint64 n = 0;
  visit_tensors(spec, count_tensor, &n);
  if (!check_count(n, checkpoint, error))
    return NULL;
  oct_weight_map *map = g_new0(oct_weight_map, 1);
  map->budget = oct_budget_new("map of weights", MAP_BYTES_MAX);
  map->materialised = g_array_new(FALSE, FALSE, sizeof(owned));
  map->n_layers = spec->n_layers;
  map->weights = oct_budget_alloc(map->budget, n, sizeof *map->weights, error);
  if (map->weights == NULL) {
    oct_weight_map_free(map);
    return NULL;
  }
  gsize slots = ((gsize)spec->n_layers + 1) * OCT_WEIGHT_KINDS;
  map->first = g_new(guint32, slots);
  map->count = g_new0(guint32, slots);
  for (gsize i = 0; i < slots; i++)
    map->first[i] = NONE;
  return map;
}

/* --- from a checkpoint ---------------------------------------------------------------------------
 */

/* GPTQ writers add a bias of zeros to every projection. */
static gboolean
is_zero_bias(const oct_checkpoint *checkpoint, const oct_file_tensor *t) {
  gsize stem = strlen(t->name) - strlen(".bias");
  if (!g_str_has_suffix(t->name, ".bias"))
    return FALSE;
  g_autofree char *codes = g_strdup_printf("%.*s.qweight", (int)stem, t->name);
  if (oct_checkpoint_find(checkpoint, codes) == NULL)
    return FALSE;
  for (guint64 i = 0; i < t->bytes; i++)
    if (t->data[i] != 0)
      return FALSE;
  return TRUE;
}

static void
report_unclaimed(const oct_finder *f) {
  gsize prefix = strlen(f->prefix);
  for (guint i = 0; i < oct_checkpoint_n_tensors(f->checkpoint); i++) {
    const oct_file_tensor *t = oct_checkpoint_tensor(f->checkpoint, i);
    if (f->used[i] != 0)
      continue;
    const char *name = t->name + (g_str_has_prefix(t->name, f->prefix) ? prefix : 0);
    const char *reason = oct_name_skipped(name, f->spec->n_layers, f->spec->tied_embeddings);
    if (reason == NULL && is_zero_bias(f->checkpoint, t))
      reason = "zeros";
    if (reason != NULL)
      oct_map_list_add(&f->report->skipped, "%s: %s", t->name, reason);
    else
      oct_map_list_add(&f->report->unexpected, "%s", t->name);
  }
}

/* The tensor that GGUF files of llama 3 have instead of scaling parameters. */
static void
find_rope_divisors(oct_weight_map *map, oct_finder *f) {
  if (oct_checkpoint_format(f->checkpoint) != OCT_LOAD_GGUF)
    return;
  const oct_file_tensor *t = oct_finder_tensor(f, "rope_freqs", ".weight");
  if (t == NULL)
    return;
  guint64 wanted = f->spec->attention[0].head_dim / 2;
  if (t->type != OCT_STORED_F32 || t->n_dims != 1 || t->shape[0] != wanted) {
    g_autofree char *shape = oct_file_tensor_shape(t);
    oct_map_list_add(&f->report->wrong, "tensor %s is %s %s, wanted is F32 [%" G_GUINT64_FORMAT "]",
                     t->name, oct_stored_get(t->type)->name, shape, wanted);
    return;
  }
  map->rope_divisors = (const float *)(gconstpointer)t->data;
  map->n_rope_divisors = (guint)wanted;
}

/* What stands before all names: the text model's module in checkpoints of several modalities. */
static const char *
find_prefix(const oct_checkpoint *checkpoint) {
  static const char *const prefixes[] = {"", "language_model."};
  for (guint i = 0; i < G_N_ELEMENTS(prefixes); i++) {
    g_autofree char *name = g_strconcat(prefixes[i], "model.embed_tokens.weight", NULL);
    if (oct_checkpoint_find(checkpoint, name) != NULL)
      return prefixes[i];
  }
  return "";
}

/* "PATH: 3 weights are missing (…; …), 1 tensor is wrong (…)". */
static void
set_error(const oct_checkpoint *checkpoint, oct_map_report *report, GError **error) {
  static const char *const whats[] = {"missing", "wrong", "unexpected"};
  g_autoptr(GString) text = g_string_new(NULL);
  for (guint i = 0; i < G_N_ELEMENTS(whats); i++) {
    const oct_map_list *list = report_list(report, i);
    if (list->n == 0)
      continue;
    g_string_append_printf(text, "%s%u %s (", text->len > 0 ? "; " : "", list->n, whats[i]);
    for (guint k = 0; k < MIN(list->texts->len, SHOWN); k++)
      g_string_append_printf(text, "%s%s", k > 0 ? "; " : "",
                             (char *)g_ptr_array_index(list->texts, k));
    g_string_append(text, list->n > SHOWN ? "; …)" : ")");
  }
  g_set_error(error, OCT_FILES_ERROR, OCT_FILES_ERROR_TENSOR,
              "%s does not hold the model that its config describes: %s",
              oct_checkpoint_path(checkpoint), text->str);
}

oct_weight_map *
oct_weight_map_new(const oct_model_spec *spec, const oct_checkpoint *checkpoint,
                   oct_map_report *report, GError **error) {
  g_autoptr(oct_map_report) own = report == NULL ? oct_map_report_new() : NULL;
  oct_weight_map *map = map_new(spec, checkpoint, error);
  if (map == NULL)
    return NULL;
  oct_finder finder = {.spec = spec,
                       .checkpoint = checkpoint,
                       .prefix = find_prefix(checkpoint),
                       .report = report != NULL ? report : own};
  finder.used = oct_budget_alloc(map->budget, oct_checkpoint_n_tensors(checkpoint), 1, error);
  if (finder.used == NULL) {
    oct_weight_map_free(map);
    return NULL;
  }
  builder b = {.map = map, .spec = spec, .finder = &finder};
  visit_tensors(spec, add_tensor, &b);
  find_rope_divisors(map, &finder);
  report_unclaimed(&finder);
  oct_budget_release(map->budget, finder.used);
  if (finder.report->missing.n == 0 && finder.report->wrong.n == 0 &&
      finder.report->unexpected.n == 0)
    return map;
  set_error(checkpoint, finder.report, error);
  oct_weight_map_free(map);
  return NULL;
}

/* --- made up -------------------------------------------------------------------------------------
 */

oct_weight_map *
oct_weight_map_new_dummy(const oct_model_spec *spec, guint64 seed, GError **error) {
  oct_weight_map *map = map_new(spec, NULL, error);
  if (map == NULL)
    return NULL;
  builder b = {.map = map, .spec = spec, .seed = seed};
  visit_tensors(spec, add_tensor, &b);
  return map;
}

gboolean
oct_weight_materialise(oct_weight_map *map, guint position, oct_budget *budget, GError **error) {
  oct_assert(position < map->n);
  oct_weight *w = &map->weights[position];
  oct_dummy_sizes sizes;
  if (w->dummy == 0 || w->codes != NULL)
    return TRUE;
  oct_dummy_sizes_get(w, &sizes);
  /* One piece: codes, then scales, then zeros, each from a multiple of 16. */
  gsize scales_at = (sizes.codes + 15) & ~(gsize)15;
  gsize zeros_at = (scales_at + sizes.scales + 15) & ~(gsize)15;
  guint8 *memory = oct_budget_alloc(budget, zeros_at + sizes.zeros, 1, error);
  if (memory == NULL)
    return FALSE;
  g_array_append_val(map->materialised, ((owned){memory, budget}));
  guint32 *zeros = (guint32 *)(gpointer)(memory + zeros_at);
  oct_dummy_fill(w, memory, memory + scales_at, zeros);
  w->scales = sizes.scales > 0 ? memory + scales_at : NULL;
  w->zeros = sizes.zeros > 0 ? zeros : NULL;
  w->codes = memory;
  return TRUE;
}

/* --- use -----------------------------------------------------------------------------------------
 */

void
oct_weight_map_free(oct_weight_map *map) {
  if (map == NULL)
    return;
  for (guint i = 0; i < map->materialised->len; i++) {
    const owned *part = &g_array_index(map->materialised, owned, i);
    oct_budget_release(part->budget, part->memory);
  }
  g_array_free(map->materialised, TRUE);
  oct_budget_release(map->budget, map->weights);
  oct_budget_free(map->budget);
  g_free(map->first);
  g_free(map->count);
  g_free(map);
}

const oct_weight *
oct_weight_map_get(const oct_weight_map *map, oct_weight_kind kind, guint32 layer, guint32 expert) {
  oct_assert((guint)kind < OCT_WEIGHT_KINDS && layer < map->n_layers);
  gsize row = kind <= OCT_WEIGHT_HEAD ? map->n_layers : layer;
  gsize slot = row * OCT_WEIGHT_KINDS + kind;
  if (map->first[slot] == NONE || expert >= map->count[slot])
    return NULL;
  return &map->weights[map->first[slot] + expert];
}

guint
oct_weight_map_n(const oct_weight_map *map) {
  return map->n;
}

const oct_weight *
oct_weight_map_at(const oct_weight_map *map, guint position) {
  oct_assert(position < map->n);
  return &map->weights[position];
}

const float *
oct_weight_map_rope_divisors(const oct_weight_map *map, guint *n) {
  *n = map->n_rope_divisors;
  return map->rope_divisors;
}
