/* Which processors and memory are near a GPU. Private to backends/cuda. */
#ifndef OCT_BACKENDS_CUDA_NUMA_H
#define OCT_BACKENDS_CUDA_NUMA_H

#include <glib.h>

/* The NUMA node of a PCI device ("0000:1b:00.0"): the only one where there is one, else -1 when the
 * machine does not say. */
gint oct_numa_node_of(const char *bus_id);
/* Processors of a list as the kernel writes it ("0-31,128-159"), in its order. 0: it is none, or
 * one of more than `most`. */
guint oct_numa_processors(const char *text, guint32 *processors, guint most);
/* Binds the calling thread to the node's processors, and prefers the node for memory that it
 * touches first. FALSE when the node is not known or the system refuses. */
gboolean oct_numa_bind(gint node);

#endif
