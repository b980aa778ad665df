#include "cli/gpu-memory.h"

#include <string.h>

#include "backends/cuda/nvml.h"

#define GPUS_MAX 64

typedef struct gpus {
  guint n; /* of the driver, by its order */
  oct_nvml_identity who[GPUS_MAX];
  /* CUDA's devices, as indices into the above. */
  guint n_visible;
  guint visible[GPUS_MAX];
  gboolean by_index; /* an index, or the order of all, says which they are */
} gpus;

static void
read_all(gpus *all) {
  all->n = MIN(oct_nvml_count(), GPUS_MAX);
  for (guint i = 0; i < all->n; i++)
    (void)oct_nvml_identity_read(i, &all->who[i]);
}

/* The GPU whose UUID alone begins so; all->n: there is none. */
static guint
by_uuid(const gpus *all, const char *prefix) {
  guint found = all->n;
  for (guint i = 0; i < all->n; i++)
    if (g_str_has_prefix(all->who[i].uuid, prefix)) {
      if (found < all->n)
        return all->n;
      found = i;
    }
  return found;
}

static gboolean
is_visible(const gpus *all, guint index) {
  for (guint i = 0; i < all->n_visible; i++)
    if (all->visible[i] == index)
      return TRUE;
  return FALSE;
}

/* What comes behind an entry that names no GPU is not seen either; and CUDA sees none where one is
 * named twice. */
static void
read_visible(gpus *all, const char *visible) {
  g_auto(GStrv) entries = visible != NULL ? g_strsplit(visible, ",", -1) : NULL;
  all->by_index = visible == NULL;
  for (guint i = 0; visible == NULL && i < all->n; i++)
    all->visible[all->n_visible++] = i;
  for (char **entry = entries; entry != NULL && *entry != NULL; entry++) {
    guint64 index = all->n;
    const char *text = g_strstrip(*entry);
    if (g_str_has_prefix(text, "GPU-"))
      index = by_uuid(all, text);
    else if (g_ascii_string_to_unsigned(text, 10, 0, GPUS_MAX - 1, &index, NULL))
      all->by_index = TRUE;
    else
      return;
    if (index >= all->n)
      return;
    if (is_visible(all, (guint)index)) {
      all->n_visible = 0;
      return;
    }
    all->visible[all->n_visible++] = (guint)index;
  }
}

/* Whether CUDA's order of the GPUs is the driver's, as far as it matters. */
static gboolean
is_ordered(const gpus *all, const char *order) {
  if (!all->by_index || g_strcmp0(order, "PCI_BUS_ID") == 0)
    return TRUE;
  for (guint i = 1; i < all->n; i++)
    if (strcmp(all->who[i].name, all->who[0].name) != 0)
      return FALSE;
  return TRUE;
}

static guint64
least_of(const gpus *all, const oct_gpu_layout *layout) {
  guint64 least = 0;
  if (all->n_visible == 0)
    return 0;
  const gboolean ordered = is_ordered(all, layout->order);
  const guint32 rounds = layout->n_ranks / all->n_visible, more = layout->n_ranks % all->n_visible;
  for (guint i = 0; i < (ordered ? all->n_visible : all->n); i++) {
    const oct_nvml_identity *who = &all->who[ordered ? all->visible[i] : i];
    const guint32 ranks = rounds + (ordered ? i < more : more > 0);
    oct_nvml_health health;
    if (ranks == 0 || !oct_nvml_health_read(who->bus_id, &health) ||
        health.free_mib == OCT_NVML_UNKNOWN)
      continue;
    guint64 bytes = ((guint64)health.free_mib << 20) / ranks;
    least = least == 0 ? bytes : MIN(least, bytes);
  }
  return least;
}

guint64
oct_gpu_memory_free(const oct_gpu_layout *layout) {
  g_autofree gpus *all = g_new0(gpus, 1);
  read_all(all);
  read_visible(all, layout->visible);
  guint64 bytes = least_of(all, layout);
  oct_nvml_close();
  return bytes;
}
