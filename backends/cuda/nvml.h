/* What the driver's management library says of a GPU: where it sits, its clocks, temperature and
 * why it is held back. Read by libnvidia-ml.so.1, which is loaded when first asked for; its header
 * is not needed. What the library or the GPU does not tell is "unknown", never an error.
 */
#ifndef OCT_BACKENDS_CUDA_NVML_H
#define OCT_BACKENDS_CUDA_NVML_H

#include <glib.h>

#define OCT_NVML_UNKNOWN G_MAXUINT32
#define OCT_NVML_LINKS   36

/* Bits of oct_nvml_health.throttle. */
enum {
  OCT_NVML_IDLE = 1 << 0,
  OCT_NVML_APPLICATION_CLOCKS = 1 << 1,
  OCT_NVML_POWER_CAP = 1 << 2,
  OCT_NVML_HW_SLOWDOWN = 1 << 3,
  OCT_NVML_SW_THERMAL = 1 << 5,
  OCT_NVML_HW_THERMAL = 1 << 6,
  OCT_NVML_POWER_BRAKE = 1 << 7,
};

typedef struct oct_nvml_health {
  guint32 sm_mhz, memory_mhz;
  guint32 temperature, memory_temperature; /* degrees C */
  guint32 power_mw;                        /* drawn */
  guint32 throttle;                        /* OCT_NVML_… bits */
  guint32 corrected_errors;                /* ECC, since the driver was loaded */
  guint32 uncorrected_errors;
  guint32 corrected_rows, uncorrected_rows; /* of memory, that were remapped */
  guint32 remap_failed;                     /* 1: a row could not be */
  guint32 links, links_active;              /* NVLinks; those that are up */
  guint32 busy_percent;                     /* time that a kernel ran */
  guint32 used_mib, free_mib;               /* memory */
  guint32 xid;  /* the last error that the driver reported since the library was loaded; 0: none */
  guint32 xids; /* how many */
  guint64 energy_mj; /* since the driver was loaded; G_MAXUINT64: unknown */
} oct_nvml_health;

/* What does not change. */
typedef struct oct_nvml_identity {
  char name[96], uuid[96], bus_id[32]; /* "" where it is unknown */
} oct_nvml_identity;

/* How two GPUs are joined, the nearer the smaller. */
typedef enum oct_nvml_path {
  OCT_NVML_PATH_UNKNOWN = -1,
  OCT_NVML_PATH_SAME = 0,
  OCT_NVML_PATH_SWITCH = 10,   /* one PCIe switch */
  OCT_NVML_PATH_SWITCHES = 20, /* several */
  OCT_NVML_PATH_BRIDGE = 30,   /* a host bridge */
  OCT_NVML_PATH_NODE = 40,     /* within a NUMA node */
  OCT_NVML_PATH_SYSTEM = 50,   /* across sockets */
} oct_nvml_path;

/* By the bus id that CUDA gives ("0000:1b:00.0"). Any thread; 0.1 to 4 us per figure. FALSE: the
 * library or the GPU is not there, and all fields are unknown. */
gboolean oct_nvml_health_read(const char *bus_id, oct_nvml_health *health);
/* Before a fork, by the only thread that uses it: a child can do nothing with what its parent has
 * opened. Who asks again opens it again. */
void oct_nvml_close(void);
/* GPUs that the driver has, by its own order; 0 without the library. */
guint32 oct_nvml_count(void);
gboolean oct_nvml_identity_read(guint32 index, oct_nvml_identity *identity);
oct_nvml_path oct_nvml_path_between(const char *bus_a, const char *bus_b);
/* "SW power cap, HW thermal slowdown" or "none"; owned. */
char *oct_nvml_throttle_text(guint32 throttle);
/* "1980 MHz, 41 C, held back by none", without what is unknown; owned. */
char *oct_nvml_state_text(const oct_nvml_health *health);

#endif
