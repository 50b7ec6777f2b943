// Programmatic dependent launch (PDL): from compute capability 9.0 on a kernel may occupy its
// multiprocessors before the previous kernel of the stream has ended, which hides the launch gap.
//
//   __global__ void kernel(...) {
//     pdl_begin();
//     ...
//   launch_with_pdl("launching kernel", kernel, grid, block, stream, ...);
//
// Normally at most two kernels are on the GPU at once. Short kernels can trigger the launch of the
// next one before their own wait (trigger_early): several such kernels may then be resident,
// each waiting for the previous one, as long as all are short and fit. So a GEMM loads its weights
// while the previous GEMM, and what lies between, is still running. GEMMs whose blocks load all of
// their weights at once do this; so do norms and activations before them and before small-M GEMMs,
// and norm_rope_store. Norms that did it before longer GEMMs made steps up to 7% longer. Before its
// wait none of these kernels reads anything that another of them writes: it reads only weights,
// norm_rope_store also the slot mapping, attention what history_is_visible permits.
#pragma once

#include "device/cuda/stream.h"
#include "kernels/common/cuda_arch.h"

namespace nvllm::kernels {

// Waits until the previous kernel of the stream has ended and its writes are visible.
__device__ __forceinline__ void wait_on_dependent_grids() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The next kernel may launch once all blocks have called this or have ended.
__device__ __forceinline__ void launch_dependent_grids() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// The first call of a kernel that uses PDL. The next kernel may launch only after the previous one
// has ended. So constants that a kernel reads before this call were written before the launch of
// the last kernel that made this call. Kernels with trigger_early do not count here: between the
// two halves of the call such a kernel may read only what neither the consecutive kernels that do
// so nor the kernel before them write.
__device__ __forceinline__ void pdl_begin(bool trigger_early) {
  if (trigger_early) launch_dependent_grids();
  wait_on_dependent_grids();
  if (!trigger_early) launch_dependent_grids();
}
__device__ __forceinline__ void pdl_begin() {
  pdl_begin(false);
}

// The number of blocks for all items, with `per_block` items each.
inline unsigned blocks_for(long long items, long long per_block) {
  return static_cast<unsigned>((items + per_block - 1) / per_block);
}

struct LaunchShape {
  dim3 grid, block;
  std::size_t shared_bytes = 0;  // dynamic
  unsigned cluster = 1;          // blocks of a cluster, from compute capability 9.0 on
};

template <typename... Params, typename... Args>
void launch_with_pdl(const char* what, void (*kernel)(Params...), const LaunchShape& shape,
                     cudaStream_t stream, const Args&... args) {
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
  config.numAttrs = !cuda::has_pdl() ? 0 : shape.cluster > 1 ? 2 : 1;
  nvllm::cuda::check(cudaLaunchKernelEx(&config, kernel, args...), what);
}

template <typename... Params, typename... Args>
void launch_with_pdl(const char* what, void (*kernel)(Params...), dim3 grid, dim3 block,
                     cudaStream_t stream, const Args&... args) {
  launch_with_pdl(what, kernel, LaunchShape{grid, block}, stream, args...);
}

}  // namespace nvllm::kernels
