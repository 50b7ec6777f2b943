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

// The kernel before it in the stream has ended, and its writes are seen.
__device__ __forceinline__ void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// When all blocks have called it, or ended, the next kernel may come.
__device__ __forceinline__ void let_next_kernel_come() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// The first thing that such a kernel does. Only when the kernel before it has ended may the next one come: so what a
// kernel reads before this call, constants, was written before the last kernel that made this call came. Short kernels
// let the next one come earlier (next_kernel.cuh) and do not count.
__device__ __forceinline__ void begin_after_previous_kernel() {
  wait_for_previous_kernel();
  let_next_kernel_come();
}

struct LaunchShape {
  dim3 grid, block;
  std::size_t shared_bytes = 0;  // beside those that the kernel declares
  unsigned cluster = 1;          // blocks of a cluster, from compute capability 9.0 on
};

template <typename... Params, typename... Args>
void launch_early(const char* what, void (*kernel)(Params...), const LaunchShape& shape,
                  cudaStream_t stream, const Args&... args) {
  const int major = nvllm::cuda::device_attribute(cudaDevAttrComputeCapabilityMajor);
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {shape.cluster, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = major < 9 ? 0 : shape.cluster > 1 ? 2 : 1;
  nvllm::cuda::check(cudaLaunchKernelEx(&config, kernel, args...), what);
}

template <typename... Params, typename... Args>
void launch_early(const char* what, void (*kernel)(Params...), dim3 grid, dim3 block,
                  cudaStream_t stream, const Args&... args) {
  launch_early(what, kernel, LaunchShape{grid, block}, stream, args...);
}

}  // namespace nvllm::kernels
