/* What the machine's GPUs say of themselves while `octet serve` uses some: lines when it starts,
 * and metrics under the names of NVIDIA's DCGM exporter, so that its dashboards show them, beside a
 * few of our own. Read from the driver when they are asked for, without a CUDA context. Where the
 * driver tells nothing, nothing is written. */
#ifndef OCT_CLI_GPU_HEALTH_H
#define OCT_CLI_GPU_HEALTH_H

#include <glib.h>

#define OCT_GPU_HEALTH_INTERVAL_S 5

/* say(user, line) per GPU. */
void oct_gpu_health_tell(void (*say)(void *user, const char *line), void *user);
/* From here on a thread of its own reads the figures every OCT_GPU_HEALTH_INTERVAL_S, for asking
 * the driver takes milliseconds per GPU; it goes on until the process ends. */
void oct_gpu_health_watch(void);
/* The latest figures; read now where nobody watches. */
void oct_gpu_health_write_metrics(GString *out);

#endif
