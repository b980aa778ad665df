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

typedef struct library {
  gint (*init)(void);
  gint (*by_bus)(const char *bus, device *out);
  gint (*clock)(device d, gint kind, guint32 *mhz);
  gint (*temperature)(device d, temperature_request *request);
  gint (*temperature_old)(device d, gint sensor, guint32 *celsius);
  gint (*power)(device d, guint32 *milliwatts);
  gint (*throttle)(device d, unsigned long long *reasons);
  gint (*ecc)(device d, gint kind, gint counter, unsigned long long *count);
  gint (*link)(device d, guint32 link, gint *active);
  gint (*ancestor)(device a, device b, gint *level);
  gboolean there;
} library;

enum { CLOCK_SM = 1, CLOCK_MEMORY = 2, ECC_CORRECTED = 0, ECC_UNCORRECTED = 1, ECC_VOLATILE = 0 };

static void
take(void *handle, const char *name, void *field) {
  void *function = dlsym(handle, name);
  memcpy(field, &function, sizeof function);
}

static const library *
get(void) {
  static library l;
  static gsize once;
  if (g_once_init_enter(&once)) {
    void *handle = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (handle != NULL) {
      take(handle, "nvmlInit_v2", &l.init);
      take(handle, "nvmlDeviceGetHandleByPciBusId_v2", &l.by_bus);
      take(handle, "nvmlDeviceGetClockInfo", &l.clock);
      take(handle, "nvmlDeviceGetTemperatureV", &l.temperature);
      take(handle, "nvmlDeviceGetTemperature", &l.temperature_old);
      take(handle, "nvmlDeviceGetPowerUsage", &l.power);
      take(handle, "nvmlDeviceGetCurrentClocksEventReasons", &l.throttle);
      take(handle, "nvmlDeviceGetTotalEccErrors", &l.ecc);
      take(handle, "nvmlDeviceGetNvLinkState", &l.link);
      take(handle, "nvmlDeviceGetTopologyCommonAncestor", &l.ancestor);
      l.there = l.init != NULL && l.by_bus != NULL && l.init() == 0;
    }
    g_once_init_leave(&once, 1);
  }
  return &l;
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

static guint32
links_of(const library *l, device d) {
  guint32 n = 0, told = 0;
  for (guint32 i = 0; l->link != NULL && i < OCT_NVML_LINKS; i++) {
    gint active;
    if (l->link(d, i, &active) != 0)
      break;
    told++;
    n += active != 0;
  }
  return told > 0 ? n : OCT_NVML_UNKNOWN;
}

gboolean
oct_nvml_health_read(const char *bus_id, oct_nvml_health *health) {
  const library *l = get();
  device d;
  unsigned long long reasons;
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
  health->links_active = links_of(l, d);
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
