// NVLLM_HOST_DEVICE: a function that the CPU and, in a .cu file, also the GPU runs.
#pragma once

#ifdef __CUDACC__
#define NVLLM_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define NVLLM_HOST_DEVICE inline
#endif
