// Barriers of some of a block's warps.
#pragma once

namespace nvllm::kernels::cuda {

// By number; 0 is __syncthreads().
__device__ __forceinline__ void sync_threads(int number, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
__device__ __forceinline__ void arrive_at(int number, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
// Whether it holds for any of them.
__device__ __forceinline__ bool any_of_threads(int number, int threads, bool holds) {
  unsigned any;
  asm volatile(
      "{\n.reg .pred mine, any;\nsetp.ne.u32 mine, %3, 0;\n"
      "bar.red.or.pred any, %1, %2, mine;\nselp.u32 %0, 1, 0, any;\n}\n"
      : "=r"(any)
      : "r"(number), "r"(threads), "r"(static_cast<unsigned>(holds))
      : "memory");
  return __any_sync(~0u, any != 0);  // lets the compiler know that a warp's lanes agree
}

}  // namespace nvllm::kernels::cuda
