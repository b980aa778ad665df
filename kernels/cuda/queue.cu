/* The queue, errors' names, and counts of kernels. */
#include <mutex>

#include "kernels/cuda/common.cuh"

size_t
oct_cuda_type_bytes(oct_cuda_type type) {
  return type == OCT_CUDA_F32 ? 4 : type == OCT_CUDA_BF16 ? 2 : 1;
}

const char *
oct_cuda_error_text(int error) {
  if (error == OCT_CUDA_UNSUPPORTED)
    return "no kernel for these sizes or types";
  if (error == OCT_CUDA_BLAS)
    return "cuBLASLt refused the product";
  return cudaGetErrorString((cudaError_t)error);
}

int
oct_cuda_queue_init(oct_cuda_queue *queue, struct CUstream_st *stream, uint32_t flags) {
  int device, sms, major, minor, shared;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess)
    error = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
  if (error == cudaSuccess)
    error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  if (error == cudaSuccess)
    error = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  if (error == cudaSuccess)
    error = cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  if (error != cudaSuccess)
    return (int)error;
  queue->stream = stream;
  queue->launches = NULL;
  queue->flags = flags;
  queue->sm_count = (uint32_t)sms;
  queue->capability = (uint32_t)(10 * major + minor);
  queue->shared_bytes = (uint32_t)shared;
  return OCT_CUDA_OK;
}

int
oct_cuda_allow_shared(const void *function, size_t bytes) {
  static std::mutex lock;
  std::lock_guard<std::mutex> held(lock);
  cudaFuncAttributes now;
  cudaError_t error = cudaFuncGetAttributes(&now, function);
  if (error == cudaSuccess && (size_t)now.maxDynamicSharedSizeBytes < bytes)
    error = cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
  return (int)error;
}

void
oct_cuda_count_launch(oct_cuda_launches *launches, const void *function, const char *name) {
  static std::mutex lock;
  std::lock_guard<std::mutex> held(lock);
  uint32_t i = 0;
  while (i < launches->n &&
         (launches->of[i].function != function || (name != NULL && launches->of[i].name != name)))
    i++;
  if (i == OCT_CUDA_KERNELS_MAX)
    return;
  if (i == launches->n) {
    if (function != NULL && cudaFuncGetName(&name, function) != cudaSuccess)
      name = "";
    launches->of[launches->n++] = {function, name, 0};
  }
  launches->of[i].n++;
}
