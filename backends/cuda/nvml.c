#include "backends/cuda/nvml.h"

#include <dlfcn.h>
#include <string.h>

/* The library's own types, as far as they are needed. Every function returns 0 when it worked. */
typedef struct nvml_device *device;

typedef struct temperature_request {
  guint32 version; /* size | 1 << 24 */
  gint32 sensor;   /* 0: the GPU */
  gint32 celsius;
} temperature_request;

typedef struct pci_info {
  char old_bus_id[16];
  guint32 domain, bus, device, id, subsystem_id;
  char bus_id[32];
} pci_info;

typedef struct memory_info {
  unsigned long long total, free, used;
} memory_info;

typedef struct utilisation {
  guint32 gpu, memory;
} utilisation;

typedef struct event {
  device device;
  unsigned long long kind, data;
  guint32 gpu_instance, compute_instance;
} event;

typedef struct field_value {
  guint32 field, scope;
  long long timestamp, latency_us;
  guint32 type, result;
  union {
    double number;
    guint32 whole;
    unsigned long long wide;
  } value;
} field_value;

#define FIELD_MEMORY_TEMPERATURE 82
#define EVENT_XID                0x8ull
#define GPUS_MAX                 64

typedef struct library {
  void *handle; /* NULL: it is not there */
  gint (*init)(void);
  gint (*shutdown)(void);
  gint (*by_bus)(const char *bus, device *out);
  gint (*clock)(device d, gint kind, guint32 *mhz);
  gint (*temperature)(device d, temperature_request *request);
  gint (*temperature_old)(device d, gint sensor, guint32 *celsius);
  gint (*power)(device d, guint32 *milliwatts);
  gint (*throttle)(device d, unsigned long long *reasons);
  gint (*ecc)(device d, gint kind, gint counter, unsigned long long *count);
  gint (*link)(device d, guint32 link, gint *active);
  gint (*ancestor)(device a, device b, gint *level);
  gint (*count)(guint32 *n);
  gint (*by_index)(guint32 index, device *out);
  gint (*name)(device d, char *text, guint32 size);
  gint (*uuid)(device d, char *text, guint32 size);
  gint (*bus)(device d, pci_info *info);
  gint (*rows)(device d, guint32 *corrected, guint32 *uncorrected, guint32 *pending,
               guint32 *failed);
  gint (*memory)(device d, memory_info *info);
  gint (*busy)(device d, utilisation *rates);
  gint (*energy)(device d, unsigned long long *mj);
  gint (*fields)(device d, gint n, field_value *values);
  gint (*new_events)(void **set);
  gint (*watch)(device d, unsigned long long kinds, void *set);
  gint (*wait)(void *set, event *data, guint32 timeout_ms);
  gboolean asked, there; /* since it was closed: whether it was opened, and can be used */
  /* Errors that the driver reports come as events: who looks takes what has come. */
  void *events; /* NULL: it tells nothing */
} library;

typedef struct errors {
  device device;
  guint32 last, n;
} errors;

static GMutex lock; /* of what follows, and of opening and closing the library */
static errors seen[GPUS_MAX];
static guint n_seen;

enum { CLOCK_SM = 1, CLOCK_MEMORY = 2, ECC_CORRECTED = 0, ECC_UNCORRECTED = 1, ECC_VOLATILE = 0 };

static void
take(void *handle, const char *name, void *field) {
  void *function = dlsym(handle, name);
  memcpy(field, &function, sizeof function);
}

/* Every GPU's, from here on. */
static void
watch_errors(library *l) {
  guint32 n = 0;
  device d;
  if (l->count == NULL || l->by_index == NULL || l->new_events == NULL || l->watch == NULL ||
      l->wait == NULL || l->count(&n) != 0 || l->new_events(&l->events) != 0)
    return;
  for (guint32 i = 0; i < MIN(n, GPUS_MAX); i++)
    if (l->by_index(i, &d) == 0 && l->watch(d, EVENT_XID, l->events) == 0)
      seen[n_seen++].device = d;
}

static void
take_all(library *l) {
  l->handle = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (l->handle == NULL)
    return;
  take(l->handle, "nvmlInit_v2", &l->init);
  take(l->handle, "nvmlShutdown", &l->shutdown);
  take(l->handle, "nvmlDeviceGetHandleByPciBusId_v2", &l->by_bus);
  take(l->handle, "nvmlDeviceGetClockInfo", &l->clock);
  take(l->handle, "nvmlDeviceGetTemperatureV", &l->temperature);
  take(l->handle, "nvmlDeviceGetTemperature", &l->temperature_old);
  take(l->handle, "nvmlDeviceGetPowerUsage", &l->power);
  take(l->handle, "nvmlDeviceGetCurrentClocksEventReasons", &l->throttle);
  take(l->handle, "nvmlDeviceGetTotalEccErrors", &l->ecc);
  take(l->handle, "nvmlDeviceGetNvLinkState", &l->link);
  take(l->handle, "nvmlDeviceGetTopologyCommonAncestor", &l->ancestor);
  take(l->handle, "nvmlDeviceGetCount_v2", &l->count);
  take(l->handle, "nvmlDeviceGetHandleByIndex_v2", &l->by_index);
  take(l->handle, "nvmlDeviceGetName", &l->name);
  take(l->handle, "nvmlDeviceGetUUID", &l->uuid);
  take(l->handle, "nvmlDeviceGetPciInfo_v3", &l->bus);
  take(l->handle, "nvmlDeviceGetRemappedRows", &l->rows);
  take(l->handle, "nvmlDeviceGetMemoryInfo", &l->memory);
  take(l->handle, "nvmlDeviceGetUtilizationRates", &l->busy);
  take(l->handle, "nvmlDeviceGetTotalEnergyConsumption", &l->energy);
  take(l->handle, "nvmlDeviceGetFieldValues", &l->fields);
  take(l->handle, "nvmlEventSetCreate", &l->new_events);
  take(l->handle, "nvmlDeviceRegisterEvents", &l->watch);
  take(l->handle, "nvmlEventSetWait_v2", &l->wait);
}

static library the_library; /* whether it is open: under the lock; functions stay as they are */

static const library *
get(void) {
  library *l = &the_library;
  g_mutex_lock(&lock);
  if (!l->asked) {
    l->asked = TRUE;
    if (l->handle == NULL)
      take_all(l);
    l->there = l->init != NULL && l->by_bus != NULL && l->init() == 0;
    if (l->there)
      watch_errors(l);
  }
  g_mutex_unlock(&lock);
  return l;
}

void
oct_nvml_close(void) {
  library *l = &the_library;
  g_mutex_lock(&lock);
  if (l->there && l->shutdown != NULL)
    (void)l->shutdown();
  l->asked = l->there = FALSE;
  l->events = NULL;
  n_seen = 0;
  g_mutex_unlock(&lock);
}

static gboolean
find(const library *l, const char *bus_id, device *d) {
  return l->there && l->by_bus(bus_id, d) == 0;
}

static guint32
errors_of(const library *l, device d, gint kind) {
  unsigned long long count;
  if (l->ecc == NULL || l->ecc(d, kind, ECC_VOLATILE, &count) != 0)
    return OCT_NVML_UNKNOWN;
  return (guint32)MIN(count, OCT_NVML_UNKNOWN - 1);
}

static guint32
celsius_of(const library *l, device d) {
  temperature_request request = {.version = sizeof request | 1u << 24};
  guint32 celsius;
  if (l->temperature != NULL && l->temperature(d, &request) == 0)
    return (guint32)request.celsius;
  if (l->temperature_old != NULL && l->temperature_old(d, 0, &celsius) == 0)
    return celsius;
  return OCT_NVML_UNKNOWN;
}

static void
links_of(const library *l, device d, oct_nvml_health *health) {
  gint active;
  guint32 n = 0, up = 0;
  for (; l->link != NULL && n < OCT_NVML_LINKS && l->link(d, n, &active) == 0; n++)
    up += active != 0;
  if (n == 0)
    return;
  health->links = n;
  health->links_active = up;
}

static void
memory_of(const library *l, device d, oct_nvml_health *health) {
  memory_info info;
  guint32 pending;
  field_value value = {.field = FIELD_MEMORY_TEMPERATURE};
  if (l->memory != NULL && l->memory(d, &info) == 0) {
    health->used_mib = (guint32)(info.used >> 20);
    health->free_mib = (guint32)(info.free >> 20);
  }
  if (l->rows == NULL || l->rows(d, &health->corrected_rows, &health->uncorrected_rows, &pending,
                                 &health->remap_failed) != 0)
    health->corrected_rows = health->uncorrected_rows = health->remap_failed = OCT_NVML_UNKNOWN;
  if (l->fields != NULL && l->fields(d, 1, &value) == 0 && value.result == 0)
    health->memory_temperature = value.value.whole;
}

/* What has come since anybody looked. */
static void
errors_seen(const library *l, device d, oct_nvml_health *health) {
  event e;
  if (l->events == NULL)
    return;
  g_mutex_lock(&lock);
  while (l->wait(l->events, &e, 0) == 0)
    for (guint i = 0; i < n_seen; i++)
      if (seen[i].device == e.device && e.kind == EVENT_XID) {
        seen[i].last = (guint32)e.data;
        seen[i].n++;
      }
  for (guint i = 0; i < n_seen; i++)
    if (seen[i].device == d) {
      health->xid = seen[i].last;
      health->xids = seen[i].n;
    }
  g_mutex_unlock(&lock);
}

guint32
oct_nvml_count(void) {
  const library *l = get();
  guint32 n = 0;
  return l->there && l->count != NULL && l->count(&n) == 0 ? n : 0;
}

gboolean
oct_nvml_identity_read(guint32 index, oct_nvml_identity *identity) {
  const library *l = get();
  device d;
  pci_info info;
  memset(identity, 0, sizeof *identity);
  if (!l->there || l->by_index == NULL || l->by_index(index, &d) != 0)
    return FALSE;
  if (l->name != NULL)
    (void)l->name(d, identity->name, sizeof identity->name);
  if (l->uuid != NULL)
    (void)l->uuid(d, identity->uuid, sizeof identity->uuid);
  /* As CUDA writes it. */
  if (l->bus != NULL && l->bus(d, &info) == 0)
    (void)g_snprintf(identity->bus_id, sizeof identity->bus_id, "%04x:%02x:%02x.0", info.domain,
                     info.bus, info.device);
  return TRUE;
}

gboolean
oct_nvml_health_read(const char *bus_id, oct_nvml_health *health) {
  const library *l = get();
  device d;
  unsigned long long reasons, energy;
  utilisation rates;
  memset(health, 0xff, sizeof *health);
  if (!find(l, bus_id, &d))
    return FALSE;
  if (l->clock == NULL || l->clock(d, CLOCK_SM, &health->sm_mhz) != 0)
    health->sm_mhz = OCT_NVML_UNKNOWN;
  if (l->clock == NULL || l->clock(d, CLOCK_MEMORY, &health->memory_mhz) != 0)
    health->memory_mhz = OCT_NVML_UNKNOWN;
  if (l->power == NULL || l->power(d, &health->power_mw) != 0)
    health->power_mw = OCT_NVML_UNKNOWN;
  if (l->throttle != NULL && l->throttle(d, &reasons) == 0)
    health->throttle = (guint32)reasons;
  health->temperature = celsius_of(l, d);
  health->corrected_errors = errors_of(l, d, ECC_CORRECTED);
  health->uncorrected_errors = errors_of(l, d, ECC_UNCORRECTED);
  links_of(l, d, health);
  memory_of(l, d, health);
  errors_seen(l, d, health);
  if (l->busy != NULL && l->busy(d, &rates) == 0)
    health->busy_percent = rates.gpu;
  if (l->energy == NULL || l->energy(d, &energy) != 0)
    energy = G_MAXUINT64;
  health->energy_mj = energy;
  return TRUE;
}

oct_nvml_path
oct_nvml_path_between(const char *bus_a, const char *bus_b) {
  const library *l = get();
  device a, b;
  gint level;
  if (!find(l, bus_a, &a) || !find(l, bus_b, &b) || l->ancestor == NULL ||
      l->ancestor(a, b, &level) != 0)
    return OCT_NVML_PATH_UNKNOWN;
  return (oct_nvml_path)level;
}

char *
oct_nvml_throttle_text(guint32 throttle) {
  static const struct {
    guint32 bit;
    const char *text;
  } reasons[] = {{OCT_NVML_IDLE, "idle"},
                 {OCT_NVML_APPLICATION_CLOCKS, "application clocks"},
                 {OCT_NVML_POWER_CAP, "SW power cap"},
                 {OCT_NVML_HW_SLOWDOWN, "HW slowdown"},
                 {OCT_NVML_SW_THERMAL, "SW thermal slowdown"},
                 {OCT_NVML_HW_THERMAL, "HW thermal slowdown"},
                 {OCT_NVML_POWER_BRAKE, "power brake"}};
  if (throttle == OCT_NVML_UNKNOWN)
    return g_strdup("unknown");
  GString *text = g_string_new(NULL);
  for (gsize i = 0; i < G_N_ELEMENTS(reasons); i++)
    if ((throttle & reasons[i].bit) != 0)
      g_string_append_printf(text, "%s%s", text->len > 0 ? ", " : "", reasons[i].text);
  if (text->len == 0)
    g_string_append(text, "none");
  return g_string_free(text, FALSE);
}

char *
oct_nvml_state_text(const oct_nvml_health *health) {
  g_autofree char *throttle = oct_nvml_throttle_text(health->throttle);
  GString *text = g_string_new(NULL);
  if (health->sm_mhz != OCT_NVML_UNKNOWN)
    g_string_append_printf(text, "%u MHz, ", health->sm_mhz);
  if (health->temperature != OCT_NVML_UNKNOWN)
    g_string_append_printf(text, "%u C, ", health->temperature);
  g_string_append_printf(text, "held back by %s", throttle);
  return g_string_free(text, FALSE);
}
