// What the thread's current GPU can do, by its compute capability. Host code asks here, so that all
// kernels mean the same by it. It says nothing of the code that the program has for that GPU: with
// code for compute capability 8.0 alone, a later GPU runs bodies for which __CUDA_ARCH__ is 800.
#pragma once

#include "device/cuda/stream.h"

namespace nvllm::kernels::cuda {

// Whether the GPU runs what is compiled for sm_90a alone: bulk tensor copies (TMA), wgmma, clusters
// and PDL. That is Hopper, compute capability 9.0, and no other, not even a later one: instructions
// of sm_90a are not part of what later GPUs keep.
inline bool runs_sm90a() {
  return nvllm::cuda::device_attribute(cudaDevAttrComputeCapabilityMajor) == 9 &&
         nvllm::cuda::device_attribute(cudaDevAttrComputeCapabilityMinor) == 0;
}

// Whether kernels may be launched with programmatic dependent launch (sm80/launch.cuh): compute
// capability 9.0 and later.
inline bool has_pdl() {
  return nvllm::cuda::device_attribute(cudaDevAttrComputeCapabilityMajor) >= 9;
}

// Whether kernels may be launched in clusters, blocks that run at once and read each other's shared
// memory: compute capability 9.0 and later. How many blocks, and how much of their shared memory,
// fit into a cluster is another question, which the occupancy functions of CUDA answer.
inline bool has_clusters() {
  return nvllm::cuda::device_attribute(cudaDevAttrComputeCapabilityMajor) >= 9;
}

}  // namespace nvllm::kernels::cuda
