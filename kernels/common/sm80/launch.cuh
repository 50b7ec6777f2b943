// Programmatic dependent launch (PDL): from compute capability 9.0 on a kernel may be on its
// multiprocessors before the previous kernel of the stream has ended, which saves the time between
// them.
//
//   __global__ void kernel(...) {
//     begin_after_previous_kernel();
//     ...
//   launch_early("launching kernel", kernel, grid, block, stream, ...);
//
// This way at most two kernels are on the GPU at once. Short kernels can let the next one come
// before they may begin themselves (next_comes_early): one after the other joins them, each waiting
// for the one before, as long as all are short and there is room. So a GEMM loads its weights while
// the GEMM before it, and what lies between, is still at work. GEMMs whose blocks load all of their
// weights at once do this, so do norms and activations before them and before small-M GEMMs, and
// norm_rope_store. Norms that did it before longer GEMMs made steps up to 7% longer. Before its
// wait none of these kernels reads what any of them has written: it reads weights only,
// norm_rope_store also the slot mapping, attention what only_rows_are_new says.
#pragma once

#include "device/cuda/stream.h"

namespace nvllm::kernels {

// Waits until the previous kernel of the stream has ended and its writes are visible.
__device__ __forceinline__ void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The next kernel may come when all blocks have called this or have ended.
__device__ __forceinline__ void let_next_kernel_come() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// The first call of such a kernel. The next kernel may come only when the previous one has ended.
// So what a kernel reads before this call, constants, was written before the last kernel that made
// this call came. Kernels with next_comes_early do not count here: between the two halves of the
// call such a kernel may read only what none of the kernels that do so in a row, nor the one before
// them, writes.
__device__ __forceinline__ void begin_after_previous_kernel(bool next_comes_early) {
  if (next_comes_early) let_next_kernel_come();
  wait_for_previous_kernel();
  if (!next_comes_early) let_next_kernel_come();
}
__device__ __forceinline__ void begin_after_previous_kernel() {
  begin_after_previous_kernel(false);
}

// The blocks that it takes for all items, with `per_block` of them each.
inline unsigned blocks_for(long long items, long long per_block) {
  return static_cast<unsigned>((items + per_block - 1) / per_block);
}

struct LaunchShape {
  dim3 grid, block;
  std::size_t shared_bytes = 0;  // besides those that the kernel declares
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
