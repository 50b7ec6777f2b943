// What the thread's current GPU can do with the code that this program has for it. Host code asks
// here, so that all kernels mean the same by it. With code for compute capability 8.0 alone, a
// later GPU runs bodies for which __CUDA_ARCH__ is 800: they neither wait for the previous kernel
// nor read another block's shared memory, so they must not be launched as if they did.
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

// Whether kernels may be launched with programmatic dependent launch (sm80/launch.cuh): GPU and
// code of compute capability 9.0 or later.
bool has_pdl();

// Whether kernels may be launched in clusters, blocks that run at once and read each other's shared
// memory: GPU and code of compute capability 9.0 or later. How many blocks, and how much of their
// shared memory, fit into a cluster is another question, which the occupancy functions of CUDA
// answer.
bool has_clusters();

}  // namespace nvllm::kernels::cuda
