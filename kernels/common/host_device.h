// NVLLM_HOST_DEVICE marks a function that the CPU runs and, in a .cu file, also the GPU.
#pragma once

#ifdef __CUDACC__
#define NVLLM_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define NVLLM_HOST_DEVICE inline
#endif
