/* What is made of the driver's management library, which this program stands in for: it exports the
 * library's functions, and opens itself where the library is asked for. Two GPUs: one that tells
 * all, one that tells little. */
#include <dlfcn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backends/cuda/numa.h"
#include "backends/cuda/nvml.h"
#include "cli/gpu-health.h"
#include "cli/gpu-memory.h"

#define FAILED 999

typedef struct nvml_device {
  guint32 index;
} nvml_device;

static nvml_device devices[] = {{0}, {1}};
static guint n_events;            /* to be told */
static guint64 second_mib;        /* free on the second GPU; 0: it does not tell */
static const char *second = NULL; /* its name where it is another kind */

static gboolean
tells(const nvml_device *d) {
  return d->index == 0;
}

/* ---------------------------------------------------------------- the library */

void *
dlopen(const char *name, int mode) {
  void *(*real)(const char *, int);
  void *function = dlsym(RTLD_NEXT, "dlopen");
  memcpy(&real, &function, sizeof real);
  return real(name != NULL && strstr(name, "nvidia-ml") != NULL ? NULL : name, mode);
}

/* As with the real one: what a process has opened, its children cannot use, nor open anew. */
static pid_t opener;

int nvmlInit_v2(void);
int
nvmlInit_v2(void) {
  if (opener == 0)
    opener = getpid();
  return 0;
}

int nvmlShutdown(void);
int
nvmlShutdown(void) {
  g_assert_cmpint(opener, ==, getpid());
  opener = 0;
  return 0;
}

int nvmlDeviceGetCount_v2(guint32 *n);
int
nvmlDeviceGetCount_v2(guint32 *n) {
  *n = G_N_ELEMENTS(devices);
  return 0;
}

int nvmlDeviceGetHandleByIndex_v2(guint32 index, nvml_device **out);
int
nvmlDeviceGetHandleByIndex_v2(guint32 index, nvml_device **out) {
  *out = &devices[index];
  return 0;
}

int nvmlDeviceGetTopologyCommonAncestor(nvml_device *a, nvml_device *b, int *level);
int
nvmlDeviceGetTopologyCommonAncestor(nvml_device *a, nvml_device *b, int *level) {
  *level = a == b ? OCT_NVML_PATH_SAME : OCT_NVML_PATH_NODE;
  return 0;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, nvml_device **out);
int
nvmlDeviceGetHandleByPciBusId_v2(const char *bus, nvml_device **out) {
  if (g_strcmp0(bus, "0000:1b:00.0") != 0 && g_strcmp0(bus, "0000:2c:00.0") != 0)
    return FAILED;
  if (opener != getpid())
    return FAILED;
  *out = &devices[bus[5] == '2'];
  return 0;
}

int nvmlDeviceGetName(nvml_device *d, char *text, guint32 size);
int
nvmlDeviceGetName(nvml_device *d, char *text, guint32 size) {
  g_strlcpy(text, d->index == 1 && second != NULL ? second : "Model \"X\"", size);
  return 0;
}

int nvmlDeviceGetUUID(nvml_device *d, char *text, guint32 size);
int
nvmlDeviceGetUUID(nvml_device *d, char *text, guint32 size) {
  (void)g_snprintf(text, size, "GPU-%u", d->index);
  return 0;
}

int nvmlDeviceGetPciInfo_v3(nvml_device *d, guint32 *words);
int
nvmlDeviceGetPciInfo_v3(nvml_device *d, guint32 *words) {
  words[4] = 0; /* behind 16 bytes of the old bus id: domain, bus, device */
  words[5] = d->index == 0 ? 0x1b : 0x2c;
  words[6] = 0;
  return 0;
}

int nvmlDeviceGetClockInfo(nvml_device *d, int kind, guint32 *mhz);
int
nvmlDeviceGetClockInfo(nvml_device *d, int kind, guint32 *mhz) {
  *mhz = kind == 1 ? 1980 : 3201;
  return tells(d) ? 0 : FAILED;
}

int nvmlDeviceGetTemperature(nvml_device *d, int sensor, guint32 *celsius);
int
nvmlDeviceGetTemperature(nvml_device *d, int sensor, guint32 *celsius) {
  *celsius = 41 + d->index + (guint32)sensor;
  return 0;
}

int nvmlDeviceGetPowerUsage(nvml_device *d, guint32 *milliwatts);
int
nvmlDeviceGetPowerUsage(nvml_device *d, guint32 *milliwatts) {
  *milliwatts = 123500;
  return tells(d) ? 0 : FAILED;
}

int nvmlDeviceGetCurrentClocksEventReasons(nvml_device *d, unsigned long long *reasons);
int
nvmlDeviceGetCurrentClocksEventReasons(nvml_device *d, unsigned long long *reasons) {
  *reasons = OCT_NVML_SW_THERMAL | OCT_NVML_POWER_CAP;
  return tells(d) ? 0 : FAILED;
}

int nvmlDeviceGetTotalEccErrors(nvml_device *d, int kind, int counter, unsigned long long *count);
int
nvmlDeviceGetTotalEccErrors(nvml_device *d, int kind, int counter, unsigned long long *count) {
  (void)counter;
  *count = kind == 0 ? 7 : 0;
  return tells(d) ? 0 : FAILED;
}

int nvmlDeviceGetNvLinkState(nvml_device *d, guint32 link, int *active);
int
nvmlDeviceGetNvLinkState(nvml_device *d, guint32 link, int *active) {
  *active = link != 3;
  return tells(d) && link < 18 ? 0 : FAILED;
}

int nvmlDeviceGetMemoryInfo(nvml_device *d, unsigned long long *bytes);
int
nvmlDeviceGetMemoryInfo(nvml_device *d, unsigned long long *bytes) {
  bytes[0] = 100ull << 20;
  bytes[1] = (tells(d) ? 60 : second_mib) << 20;
  bytes[2] = bytes[0] - bytes[1];
  return tells(d) || second_mib > 0 ? 0 : FAILED;
}

int nvmlEventSetCreate(void **set);
int
nvmlEventSetCreate(void **set) {
  *set = devices;
  return 0;
}

int nvmlDeviceRegisterEvents(nvml_device *d, unsigned long long kinds, void *set);
int
nvmlDeviceRegisterEvents(nvml_device *d, unsigned long long kinds, void *set) {
  return kinds == 8 && set == devices && tells(d) ? 0 : FAILED;
}

typedef struct event {
  nvml_device *device;
  unsigned long long kind, data;
  guint32 instances[2];
} event;

int nvmlEventSetWait_v2(void *set, event *e, guint32 timeout_ms);
int
nvmlEventSetWait_v2(void *set, event *e, guint32 timeout_ms) {
  g_assert_true(set == devices);
  g_assert_cmpuint(timeout_ms, ==, 0);
  if (n_events == 0)
    return FAILED;
  *e = (event){.device = &devices[0], .kind = 8, .data = 90 + n_events--};
  return 0;
}

/* ---------------------------------------------------------------- tests */

static void
has(const GString *text, const char *line) {
  g_autofree char *whole = g_strconcat("\n", line, "\n", NULL);
  if (strstr(text->str, whole) == NULL)
    g_test_message("%s", text->str);
  g_assert_nonnull(strstr(text->str, whole));
}

#define FIRST  "{gpu=\"0\",UUID=\"GPU-0\",modelName=\"Model \\\"X\\\"\"} "
#define SECOND "{gpu=\"1\",UUID=\"GPU-1\",modelName=\"Model \\\"X\\\"\"} "

static void
figures_have_the_exporters_names(void) {
  GString *text = g_string_new(NULL);
  n_events = 3;
  oct_gpu_health_write_metrics(text);
  has(text, "DCGM_FI_DEV_GPU_TEMP" FIRST "41");
  has(text, "DCGM_FI_DEV_GPU_TEMP" SECOND "42");
  has(text, "DCGM_FI_DEV_SM_CLOCK" FIRST "1980");
  has(text, "DCGM_FI_DEV_MEM_CLOCK" FIRST "3201");
  has(text, "DCGM_FI_DEV_POWER_USAGE" FIRST "123.5");
  has(text, "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS" FIRST "36");
  has(text, "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL" FIRST "7");
  has(text, "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL" FIRST "0");
  has(text, "DCGM_FI_DEV_FB_USED" FIRST "40");
  has(text, "DCGM_FI_DEV_FB_FREE" FIRST "60");
  has(text, "octet:gpu_nvlinks" FIRST "18");
  has(text, "octet:gpu_nvlinks_active" FIRST "17");
  has(text, "DCGM_FI_DEV_XID_ERRORS" FIRST "91");
  has(text, "octet:gpu_xid_errors_total" FIRST "3");
  has(text, "# TYPE DCGM_FI_DEV_SM_CLOCK gauge");
  /* What a GPU does not tell is not written, and a family that none tells neither. */
  g_assert_null(strstr(text->str, "DCGM_FI_DEV_SM_CLOCK" SECOND));
  g_assert_null(strstr(text->str, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"));
  g_assert_null(strstr(text->str, "4294967295"));
  g_string_free(text, TRUE);
}

static void
errors_of_the_driver_are_counted_once(void) {
  oct_nvml_health before, after;
  g_assert_true(oct_nvml_health_read("0000:1b:00.0", &before));
  n_events = 2;
  g_assert_true(oct_nvml_health_read("0000:2c:00.0", &after)); /* whoever looks takes them */
  g_assert_true(oct_nvml_health_read("0000:1b:00.0", &after));
  g_assert_cmpuint(after.xids, ==, before.xids + 2);
  g_assert_cmpuint(after.xid, ==, 91);
}

static void
take_line(void *user, const char *line) {
  g_ptr_array_add(user, g_strdup(line));
}

static void
a_line_per_gpu_says_how_it_is(void) {
  g_autoptr(GPtrArray) lines = g_ptr_array_new_with_free_func(g_free);
  oct_gpu_health_tell(take_line, lines);
  g_assert_cmpuint(lines->len, ==, 2);
  g_autofree char *first = g_strdup_printf(
      "gpu 0: Model \"X\" at 0000:1b:00.0, NUMA node %d, 60 MiB free, 41 C, 1980 MHz, held back "
      "by: "
      "SW power cap, SW thermal slowdown, 17 of 18 NVLinks up, ECC errors 7 corrected and 0 not; "
      "PCIe NODE to 1",
      oct_numa_node_of("0000:1b:00.0"));
  g_autofree char *other = g_strdup_printf("gpu 1: Model \"X\" at 0000:2c:00.0, NUMA node %d, 42 "
                                           "C, held back by: unknown; PCIe NODE to 0",
                                           oct_numa_node_of("0000:2c:00.0"));
  g_assert_cmpstr(lines->pdata[0], ==, first);
  g_assert_cmpstr(lines->pdata[1], ==, other);
}

static void
a_state_leaves_out_what_is_unknown(void) {
  oct_nvml_health health;
  g_assert_true(oct_nvml_health_read("0000:1b:00.0", &health));
  g_autofree char *first = oct_nvml_state_text(&health);
  g_assert_cmpstr(first, ==, "1980 MHz, 41 C, held back by SW power cap, SW thermal slowdown");
  g_assert_true(oct_nvml_health_read("0000:2c:00.0", &health));
  g_autofree char *other = oct_nvml_state_text(&health);
  g_assert_cmpstr(other, ==, "42 C, held back by unknown");
  g_assert_false(oct_nvml_health_read("0000:3d:00.0", &health));
  g_autofree char *none = oct_nvml_state_text(&health);
  g_assert_cmpstr(none, ==, "held back by unknown");
}

static guint64
free_mib(const char *visible, const char *order, guint32 n_ranks) {
  const oct_gpu_layout layout = {.visible = visible, .order = order, .n_ranks = n_ranks};
  return oct_gpu_memory_free(&layout) >> 20;
}

static void
memory_is_that_of_the_gpus_that_ranks_take(void) {
  static const struct {
    const char *visible;
    guint32 n_ranks;
    guint64 mib;
  } cases[] = {{NULL, 1, 60},      {NULL, 2, 8},       {NULL, 3, 8},      {NULL, 16, 1},
               {"0", 1, 60},       {"1", 1, 8},        {"1,0", 1, 8},     {"1,0", 2, 8},
               {"0,1", 1, 60},     {" 0 , 1 ", 1, 60}, {"0,-1,1", 2, 30}, {"0,7,1", 2, 30},
               {"GPU-0", 1, 60},   {"GPU-1", 1, 8},    {"GPU-1,0", 1, 8}, {"GPU-", 1, 0},
               {"GPU-5", 1, 0},    {"", 1, 0},         {"-1", 1, 0},      {"MIG-GPU-0/1/0", 1, 0},
               {"0,MIG-0", 1, 60}, {"0", 2, 30},       {"none", 1, 0},    {"1", 4, 2},
               {"0,0", 2, 0},      {"1,0,1", 1, 0},    {"0,GPU-0", 1, 0}, {"0,7,0", 2, 30}};
  second_mib = 8;
  for (gsize i = 0; i < G_N_ELEMENTS(cases); i++) {
    g_test_message("CUDA_VISIBLE_DEVICES=%s, %u ranks", cases[i].visible, cases[i].n_ranks);
    g_assert_cmpuint(free_mib(cases[i].visible, NULL, cases[i].n_ranks), ==, cases[i].mib);
  }
  /* CUDA's order of two kinds is by speed, unless it is asked to be the driver's. */
  second = "Model Y";
  g_assert_cmpuint(free_mib(NULL, NULL, 1), ==, 8);
  g_assert_cmpuint(free_mib("0", "FASTEST_FIRST", 1), ==, 8);
  g_assert_cmpuint(free_mib("0", "PCI_BUS_ID", 1), ==, 60);
  g_assert_cmpuint(free_mib("GPU-0", NULL, 1), ==, 60);
  second = NULL;
  second_mib = 0; /* of one that does not tell nothing is known */
  g_assert_cmpuint(free_mib(NULL, NULL, 2), ==, 60);
  g_assert_cmpuint(free_mib("1", NULL, 1), ==, 0);
}

/* As a server forks the process that uses the GPUs. */
static void
a_process_forked_behind_it_reads_the_driver(void) {
  int status = 0;
  g_assert_cmpuint(free_mib(NULL, NULL, 1), ==, 60);
  pid_t child = fork();
  if (child == 0) {
    oct_nvml_health health;
    _exit(oct_nvml_health_read("0000:1b:00.0", &health) && health.sm_mhz == 1980 ? 0 : 1);
  }
  g_assert_cmpint(waitpid(child, &status, 0), ==, child);
  g_assert_cmpint(status, ==, 0);
  oct_nvml_health health;
  g_assert_true(oct_nvml_health_read("0000:1b:00.0", &health)); /* and so does this one */
}

/* The last: the thread stays. */
static void
a_watched_figure_is_there(void) {
  oct_gpu_health_watch();
  for (guint i = 0; i < 1000; i++) {
    GString *text = g_string_new(NULL);
    oct_gpu_health_write_metrics(text);
    has(text, "DCGM_FI_DEV_GPU_TEMP" FIRST "41");
    g_string_free(text, TRUE);
  }
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/cuda/nvml/figures-have-the-exporters-names", figures_have_the_exporters_names);
  g_test_add_func("/cuda/nvml/errors-of-the-driver-are-counted-once",
                  errors_of_the_driver_are_counted_once);
  g_test_add_func("/cuda/nvml/a-line-per-gpu-says-how-it-is", a_line_per_gpu_says_how_it_is);
  g_test_add_func("/cuda/nvml/a-state-leaves-out-what-is-unknown",
                  a_state_leaves_out_what_is_unknown);
  g_test_add_func("/cuda/nvml/memory-is-that-of-the-gpus-that-ranks-take",
                  memory_is_that_of_the_gpus_that_ranks_take);
  g_test_add_func("/cuda/nvml/a-process-forked-behind-it-reads-the-driver",
                  a_process_forked_behind_it_reads_the_driver);
  g_test_add_func("/cuda/nvml/a-watched-figure-is-there-at-once", a_watched_figure_is_there);
  return g_test_run();
}
