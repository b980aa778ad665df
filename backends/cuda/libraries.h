/* NCCL, loaded when ranks on several GPUs need it: a program that does not is spared it, and one on
 * a machine without it says so. Private to backends/cuda.
 */
#ifndef OCT_BACKENDS_CUDA_LIBRARIES_H
#define OCT_BACKENDS_CUDA_LIBRARIES_H

#include <cuda_runtime_api.h>
#include <glib.h>
#include <nccl.h>

/* The functions that are called, by their own names. */
#define OCT_NCCL_CALLS(X)                                                                          \
  X(ncclGetUniqueId)                                                                               \
  X(ncclCommInitRankConfig)                                                                        \
  X(ncclCommGetAsyncError)                                                                         \
  X(ncclCommAbort)                                                                                 \
  X(ncclAllReduce)                                                                                 \
  X(ncclAllGather)                                                                                 \
  X(ncclReduceScatter)                                                                             \
  X(ncclGroupStart)                                                                                \
  X(ncclGroupEnd)                                                                                  \
  X(ncclSend)                                                                                      \
  X(ncclRecv)                                                                                      \
  X(ncclGetErrorString)

#define OCT_LIBRARY_FIELD(name) __typeof__(&name) name;
typedef struct oct_nccl {
  OCT_NCCL_CALLS(OCT_LIBRARY_FIELD)
} oct_nccl;
#undef OCT_LIBRARY_FIELD

/* Static, loaded once and kept. Any thread. NULL with *error (DEVICE) names the library, or the
 * function that it lacks. */
const oct_nccl *oct_nccl_get(GError **error) G_GNUC_WARN_UNUSED_RESULT;

#endif
