// NVLLM_ON_BOTH: a function that the CPU and, in a .cu file, also the GPU runs.
#pragma once

#ifdef __CUDACC__
#define NVLLM_ON_BOTH __host__ __device__ __forceinline__
#else
#define NVLLM_ON_BOTH inline
#endif
