/* What the machine's GPUs say of themselves while `octet serve` uses some: lines when it starts,
 * and metrics under the names of NVIDIA's DCGM exporter, so that its dashboards show them, beside a
 * few of our own. Read from the driver when they are asked for, without a CUDA context. Where the
 * driver tells nothing, nothing is written. */
#ifndef OCT_CLI_GPU_HEALTH_H
#define OCT_CLI_GPU_HEALTH_H

#include <glib.h>

/* One thread at a time. say(user, line) per GPU. */
void oct_gpu_health_tell(void (*say)(void *user, const char *line), void *user);
void oct_gpu_health_write_metrics(GString *out);

#endif
