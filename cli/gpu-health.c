#include "cli/gpu-health.h"

#include "backends/cuda/numa.h"
#include "backends/cuda/nvml.h"
#include "engine/obs/metrics.h"

typedef struct figure {
  const char *name;
  oct_metric_kind kind;
  const char *help;
  gsize offset;    /* of a guint32 in oct_nvml_health */
  double per_unit; /* of the metric */
} figure;

#define OF(field) G_STRUCT_OFFSET(oct_nvml_health, field)

static const figure figures[] = {
    {"DCGM_FI_DEV_GPU_TEMP", OCT_METRIC_GAUGE, "Temperature of the GPU, degrees C.",
     OF(temperature), 1},
    {"DCGM_FI_DEV_MEMORY_TEMP", OCT_METRIC_GAUGE, "Temperature of its memory, degrees C.",
     OF(memory_temperature), 1},
    {"DCGM_FI_DEV_SM_CLOCK", OCT_METRIC_GAUGE, "Clock of the multiprocessors, MHz.", OF(sm_mhz), 1},
    {"DCGM_FI_DEV_MEM_CLOCK", OCT_METRIC_GAUGE, "Clock of the memory, MHz.", OF(memory_mhz), 1},
    {"DCGM_FI_DEV_POWER_USAGE", OCT_METRIC_GAUGE, "Power drawn, W.", OF(power_mw), 1e-3},
    {"DCGM_FI_DEV_GPU_UTIL", OCT_METRIC_GAUGE, "Time that a kernel ran, percent.", OF(busy_percent),
     1},
    {"DCGM_FI_DEV_FB_USED", OCT_METRIC_GAUGE, "Memory in use, MiB.", OF(used_mib), 1},
    {"DCGM_FI_DEV_FB_FREE", OCT_METRIC_GAUGE, "Memory that is free, MiB.", OF(free_mib), 1},
    {"DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", OCT_METRIC_GAUGE,
     "Why clocks are held back, bits: 4 power cap, 8 hardware, 32 and 64 heat, 128 power brake.",
     OF(throttle), 1},
    {"DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", OCT_METRIC_COUNTER, "Memory errors that were corrected.",
     OF(corrected_errors), 1},
    {"DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", OCT_METRIC_COUNTER, "Memory errors that were not corrected.",
     OF(uncorrected_errors), 1},
    {"DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", OCT_METRIC_COUNTER,
     "Rows of memory remapped for corrected errors.", OF(corrected_rows), 1},
    {"DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", OCT_METRIC_COUNTER,
     "Rows of memory remapped for uncorrected errors.", OF(uncorrected_rows), 1},
    {"DCGM_FI_DEV_ROW_REMAP_FAILURE", OCT_METRIC_GAUGE, "1: a row could not be remapped.",
     OF(remap_failed), 1},
    {"DCGM_FI_DEV_XID_ERRORS", OCT_METRIC_GAUGE, "The last error that the driver reported.",
     OF(xid), 1},
    {"octet:gpu_xid_errors_total", OCT_METRIC_COUNTER,
     "Errors that the driver reported since the server began.", OF(xids), 1},
    {"octet:gpu_nvlinks", OCT_METRIC_GAUGE, "NVLinks of the GPU.", OF(links), 1},
    {"octet:gpu_nvlinks_active", OCT_METRIC_GAUGE, "NVLinks that are up.", OF(links_active), 1},
};

#define GPUS_MAX 64

typedef struct gpus {
  guint32 n;
  oct_nvml_identity identities[GPUS_MAX];
  oct_nvml_health healths[GPUS_MAX];
} gpus;

/* NULL: the driver tells nothing. Owned. */
static gpus *
read_all(void) {
  guint32 n = MIN(oct_nvml_count(), GPUS_MAX);
  if (n == 0)
    return NULL;
  gpus *all = g_new0(gpus, 1);
  for (guint32 i = 0; i < n; i++) {
    (void)oct_nvml_identity_read(i, &all->identities[i]);
    (void)oct_nvml_health_read(all->identities[i].bus_id, &all->healths[i]);
  }
  all->n = n;
  return all;
}

/* ---------------------------------------------------------------- watching */

static GMutex lock;
static gpus *latest; /* NULL: nobody watches, or the driver tells nothing */
static gboolean watched;

static void *
watch(void *data) {
  (void)data;
  for (;;) {
    gpus *all = read_all();
    g_mutex_lock(&lock);
    gpus *old = latest;
    latest = all;
    watched = TRUE;
    g_mutex_unlock(&lock);
    g_free(old);
    g_usleep(OCT_GPU_HEALTH_INTERVAL_S * G_USEC_PER_SEC);
  }
  return NULL;
}

void
oct_gpu_health_watch(void) {
  g_thread_unref(g_thread_new("gpu-health", watch, NULL));
}

/* Owned; NULL: nothing is known. */
static gpus *
take_latest(void) {
  g_mutex_lock(&lock);
  gboolean read = !watched;
  gpus *all = latest != NULL ? g_memdup2(latest, sizeof *latest) : NULL;
  g_mutex_unlock(&lock);
  return read ? read_all() : all;
}

/* ---------------------------------------------------------------- texts */

static void
append(GString *line, const char *before, guint32 value, const char *behind) {
  if (value != OCT_NVML_UNKNOWN)
    g_string_append_printf(line, "%s%u%s", before, value, behind);
}

/* "; PCIe PIX to 1, SYS to 2 3": as nvidia-smi topo names the paths to the other GPUs. */
static void
append_paths(GString *line, const gpus *all, guint32 from) {
  static const struct {
    oct_nvml_path path;
    const char *name;
  } paths[] = {{OCT_NVML_PATH_SAME, "board"},   {OCT_NVML_PATH_SWITCH, "PIX"},
               {OCT_NVML_PATH_SWITCHES, "PXB"}, {OCT_NVML_PATH_BRIDGE, "PHB"},
               {OCT_NVML_PATH_NODE, "NODE"},    {OCT_NVML_PATH_SYSTEM, "SYS"}};
  const char *before = "; PCIe ";
  for (gsize k = 0; k < G_N_ELEMENTS(paths); k++) {
    gboolean any = FALSE;
    for (guint32 i = 0; i < all->n; i++) {
      if (i == from || oct_nvml_path_between(all->identities[from].bus_id,
                                             all->identities[i].bus_id) != paths[k].path)
        continue;
      if (!any)
        g_string_append_printf(line, "%s%s to", before, paths[k].name);
      g_string_append_printf(line, " %u", i);
      any = TRUE;
    }
    before = any ? ", " : before;
  }
}

void
oct_gpu_health_tell(void (*say)(void *user, const char *line), void *user) {
  g_autofree gpus *all = read_all();
  for (guint32 i = 0; all != NULL && i < all->n; i++) {
    const oct_nvml_identity *who = &all->identities[i];
    const oct_nvml_health *h = &all->healths[i];
    g_autofree char *throttle = oct_nvml_throttle_text(h->throttle);
    GString *line = g_string_new(NULL);
    g_string_append_printf(line, "gpu %u: %s at %s, NUMA node %d", i, who->name, who->bus_id,
                           oct_numa_node_of(who->bus_id));
    append(line, ", ", h->free_mib, " MiB free");
    append(line, ", ", h->temperature, " C");
    append(line, ", ", h->sm_mhz, " MHz");
    g_string_append_printf(line, ", held back by: %s", throttle);
    append(line, ", ", h->links_active, "");
    append(line, " of ", h->links, " NVLinks up");
    append(line, ", ECC errors ", h->corrected_errors, " corrected");
    append(line, " and ", h->uncorrected_errors, " not");
    append_paths(line, all, i);
    say(user, line->str);
    g_string_free(line, TRUE);
  }
}

static char *
labels_of(guint32 index, const oct_nvml_identity *who) {
  GString *labels = g_string_new(NULL);
  char number[16];
  (void)g_snprintf(number, sizeof number, "%u", index);
  oct_metrics_label(labels, "gpu", number);
  oct_metrics_label(labels, "UUID", who->uuid);
  oct_metrics_label(labels, "modelName", who->name);
  return g_string_free(labels, FALSE);
}

void
oct_gpu_health_write_metrics(GString *out) {
  g_autofree gpus *all = take_latest();
  for (gsize k = 0; all != NULL && k < G_N_ELEMENTS(figures); k++) {
    const figure *f = &figures[k];
    gboolean begun = FALSE;
    for (guint32 i = 0; i < all->n; i++) {
      guint32 value = *(const guint32 *)(gconstpointer)((guint8 *)&all->healths[i] + f->offset);
      if (value == OCT_NVML_UNKNOWN)
        continue;
      g_autofree char *labels = labels_of(i, &all->identities[i]);
      if (!begun)
        oct_metrics_family(out, f->name, f->kind, f->help);
      begun = TRUE;
      oct_metrics_sample(out, f->name, labels, value * f->per_unit);
    }
  }
  gboolean begun = FALSE;
  for (guint32 i = 0; all != NULL && i < all->n; i++) {
    const char *name = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION";
    g_autofree char *labels = labels_of(i, &all->identities[i]);
    if (all->healths[i].energy_mj == G_MAXUINT64)
      continue;
    if (!begun)
      oct_metrics_family(out, name, OCT_METRIC_COUNTER, "Energy since the driver was loaded, mJ.");
    begun = TRUE;
    oct_metrics_sample(out, name, labels, (double)all->healths[i].energy_mj);
  }
}
