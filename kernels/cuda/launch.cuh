// Launching a kernel early (programmatic dependent launch): from compute capability 9.0 on it may be on its
// multiprocessors before the one before it in the stream has ended, which saves the time between them.
//
//   __global__ void kernel(...) {
//     begin_after_previous_kernel();
//     ...
//   launch_early("launching kernel", kernel, grid, block, stream, ...);
#pragma once

#include "device/cuda/stream.h"

namespace nvllm::kernels {

// The first thing that such a kernel does: the kernel before it in the stream has ended and its writes are
// seen. Only then may the next one come: so what kernels read before this call, constants, was written at
// least two kernels earlier.
__device__ __forceinline__ void begin_after_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

template <typename... Params, typename... Args>
void launch_early(const char* what, void (*kernel)(Params...), dim3 grid, dim3 block,
                  cudaStream_t stream, const Args&... args) {
  const int major = nvllm::cuda::device_attribute(cudaDevAttrComputeCapabilityMajor);
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = major >= 9 ? 1 : 0;
  nvllm::cuda::check(cudaLaunchKernelEx(&config, kernel, args...), what);
}

}  // namespace nvllm::kernels
