// The CUDA backend's interface for CUDA code: the CUDA stream of a Stream, errors with their names,
// and the attributes of the GPU.
#pragma once

#include <cuda_runtime_api.h>

#include <string_view>

#include "device/backend.h"

namespace nvllm::cuda {

// The CUDA stream of a Stream that the CUDA backend created; any other aborts.
cudaStream_t native(Stream& stream);

// Throws an Error with `what` was being done and CUDA's name and description of the error.
[[noreturn]] void fail_cuda(cudaError_t error, std::string_view what);

inline void check(cudaError_t error, std::string_view what) {
  if (error != cudaSuccess) [[unlikely]]
    fail_cuda(error, what);
}

// Returns an attribute of the thread's current GPU.
inline int device_attribute(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  check(cudaGetDevice(&device), "asking for the current GPU");
  check(cudaDeviceGetAttribute(&value, attribute, device), "asking what the GPU has");
  return value;
}

}  // namespace nvllm::cuda
