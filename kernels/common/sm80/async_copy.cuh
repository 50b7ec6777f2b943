// Asynchronous copies of 16 bytes into shared memory by the threads of a block (cp.async, Ampere and later).
#pragma once

namespace nvllm::kernels::cuda {

// 16 bytes, asynchronously; zeros if `valid` is false (then nothing is read).
__device__ __forceinline__ void copy_chunk(unsigned to, const void* from, bool valid) {
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Until all but the newest kPending groups of this thread have arrived.
template <int kPending>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace nvllm::kernels::cuda
