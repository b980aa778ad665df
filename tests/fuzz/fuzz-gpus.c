/* Fuzz target: any text as CUDA_VISIBLE_DEVICES, on a machine of four GPUs of two kinds, of which
 * one does not tell what is free. The first byte says how many ranks there are, and whether CUDA's
 * order is the driver's. What is found is a share of some GPU's memory; an entry that names no GPU
 * ends the list; blanks around entries mean nothing; and more ranks have no more each.
 */
#include <string.h>

#include "backends/cuda/nvml.h"
#include "cli/gpu-memory.h"
#include "engine/base/assert.h"
#include "tests/fuzz/replay.h"

/* ---------------------------------------------------------------- the driver */

static const struct {
  const char *name, *uuid;
  guint32 free_mib;
} gpus[] = {{"X", "GPU-01", 6000},
            {"X", "GPU-02", 700},
            {"Y", "GPU-1", OCT_NVML_UNKNOWN},
            {"Y", "GPU-12", 50000}};

guint32
oct_nvml_count(void) {
  return G_N_ELEMENTS(gpus);
}

gboolean
oct_nvml_identity_read(guint32 index, oct_nvml_identity *identity) {
  oct_assert(index < G_N_ELEMENTS(gpus));
  *identity = (oct_nvml_identity){.bus_id = {(char)('0' + index)}};
  g_strlcpy(identity->name, gpus[index].name, sizeof identity->name);
  g_strlcpy(identity->uuid, gpus[index].uuid, sizeof identity->uuid);
  return TRUE;
}

gboolean
oct_nvml_health_read(const char *bus_id, oct_nvml_health *health) {
  guint index = (guint)(bus_id[0] - '0');
  oct_assert(index < G_N_ELEMENTS(gpus));
  *health = (oct_nvml_health){.free_mib = gpus[index].free_mib};
  return TRUE;
}

void
oct_nvml_close(void) {
}

/* ---------------------------------------------------------------- what holds of any list */

static guint64
bytes_of(const char *visible, gboolean by_bus, guint32 n_ranks) {
  const oct_gpu_layout layout = {
      .visible = visible, .order = by_bus ? "PCI_BUS_ID" : NULL, .n_ranks = n_ranks};
  return oct_gpu_memory_free(&layout);
}

static gboolean
is_share(guint64 bytes, guint32 n_ranks) {
  for (gsize i = 0; i < G_N_ELEMENTS(gpus); i++)
    for (guint32 ranks = 1; ranks <= n_ranks; ranks++)
      if (gpus[i].free_mib != OCT_NVML_UNKNOWN &&
          bytes == ((guint64)gpus[i].free_mib << 20) / ranks)
        return TRUE;
  return FALSE;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size == 0)
    return 0;
  gboolean by_bus = data[0] & 1;
  guint32 n_ranks = 1 + data[0] / 2 % 32;
  g_autofree char *text = g_strndup((const char *)data + 1, size - 1);
  g_autofree char *ended = g_strconcat(text, ",none,3", NULL);
  g_auto(GStrv) entries = g_strsplit(text, ",", -1);
  g_autofree char *joined = g_strjoinv(" ,\t", entries);
  g_autofree char *blanks = g_strconcat(" ", joined, NULL);
  guint64 bytes = bytes_of(text, by_bus, n_ranks);
  oct_assert(bytes == 0 || is_share(bytes, n_ranks));
  oct_assert(bytes_of(ended, by_bus, n_ranks) == bytes);
  oct_assert(bytes_of(blanks, by_bus, n_ranks) == bytes);
  guint64 more = bytes_of(text, by_bus, n_ranks + 1);
  oct_assert(bytes == 0 || (more > 0 && more <= bytes));
  return 0;
}
