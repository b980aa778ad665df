/* Expert slots: a rank's experts when the device cannot hold them all. All of them are in pinned
 * memory of this machine, near the GPU; on the device each layer with experts has slots, which the
 * engine fills and maps (engine/sched/experts.h), and all layers together have scratch matrices,
 * into which a layer's products first bring what its batch needs and no slot has. Private to
 * backends/cuda.
 *
 * Slots of all layers and the scratch matrices are one array, so that a layer's table says where
 * any expert is. The layers of a model therefore have experts of one shape, format and number.
 */
#ifndef OCT_BACKENDS_CUDA_RESIDENCY_H
#define OCT_BACKENDS_CUDA_RESIDENCY_H

#include "backends/cuda/model.h"
#include "kernels/cuda/fetch.h"

typedef struct oct_cuda_residency oct_cuda_residency;

/* Experts of the widest layer, as entries of a layer in the map. */
guint32 oct_cuda_residency_width(const oct_model_spec *spec);

/* Life cycle, on the rank's thread. NULL: the instance has no expert slots. */
oct_cuda_residency *oct_cuda_residency_new(oct_cuda_rank *rank, const oct_model_spec *spec);
void oct_cuda_residency_free(oct_cuda_residency *residency); /* accepts NULL */
/* The layer's experts, which were loaded to matrices of their own, by the copy-in stream or before
 * it: they go to the host, and the layer's matrices are the array from now on. FALSE: noted. */
gboolean oct_cuda_residency_take(oct_cuda_residency *residency,
                                 oct_cuda_layer *layer) G_GNUC_WARN_UNUSED_RESULT;

/* Use. The map that changes of steps are written to, on the device: [layers of the model, width].
 */
guint32 *oct_cuda_residency_map(const oct_cuda_residency *residency);
/* Enqueues the copy of an expert to a slot of its layer; nothing when either is another rank's. */
gboolean oct_cuda_residency_copy(const oct_cuda_residency *residency, const oct_copy *copy,
                                 cudaStream_t stream);
/* Enqueues what makes all experts ready that have rows (starts, of the sorted pairs), and sets the
 * products' slots and n_matrices. FALSE: noted. */
gboolean oct_cuda_residency_fetch(const oct_cuda_residency *residency, const oct_cuda_layer *layer,
                                  const guint32 *starts, oct_cuda_expert_matmul *products);

#endif
