/* An instance's pages and states: per KV domain and layer group a pool that stands for the device,
 * and one for the host tier. Both are this machine's memory; a copy between them is a copy.
 *
 * A page is one run of bytes: for each layer of its group K then V of every head, or the latents of
 * its tokens. A state slot likewise: for each layer its recurrent state. Pools are allocated whole
 * and zeroed when the instance is opened. Whoever writes a page or reads it is the caller's to
 * order.
 */
#ifndef OCT_BACKENDS_CPU_MEMORY_H
#define OCT_BACKENDS_CPU_MEMORY_H

#include "backends/cpu/model.h"
#include "engine/backend.h"

typedef struct oct_cpu_memory oct_cpu_memory;

/* Life cycle. The model is borrowed. NULL with *error (CONFIG) when the machine has not got the
 * memory. */
oct_cpu_memory *oct_cpu_memory_new(const oct_instance_config *config, const oct_cpu_model *model,
                                   oct_kv_format format, GError **error) G_GNUC_WARN_UNUSED_RESULT;
void oct_cpu_memory_free(oct_cpu_memory *memory); /* accepts NULL */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(oct_cpu_memory, oct_cpu_memory_free)

/* Use. */

/* The cache of model layer `layer` in a domain's device pool. */
oct_kv_layer oct_cpu_memory_layer(const oct_cpu_memory *memory, guint32 domain, guint32 layer);
/* The recurrent state of model layer `layer` in a state slot. */
float *oct_cpu_memory_state(const oct_cpu_memory *memory, guint32 domain, guint32 layer,
                            guint32 slot);
/* A whole device item of a group. */
guint8 *oct_cpu_memory_item(const oct_cpu_memory *memory, guint32 domain, guint32 group,
                            oct_tier tier, guint32 item);
/* A copy that oct_copies_check() accepts, of a page or state. */
void oct_cpu_memory_copy(const oct_cpu_memory *memory, const oct_copy *copy);
/* The same from another memory with equal groups. */
void oct_cpu_memory_pull(const oct_cpu_memory *memory, const oct_cpu_memory *peer,
                         guint32 peer_domain, const oct_copy *copy);

/* Inspect: bytes of a page or state slot of a group; tokens of a page. */
gsize oct_cpu_memory_unit_bytes(const oct_cpu_memory *memory, guint32 group);
guint32 oct_cpu_memory_page_tokens(const oct_cpu_memory *memory);

#endif
