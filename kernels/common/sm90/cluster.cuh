// What the blocks of a cluster do with each other (sm_90).
#pragma once

namespace nvllm::kernels::cuda {

#if __CUDA_ARCH__ >= 900

// Where another block of the cluster has what this one has here, in shared memory.
__device__ __forceinline__ unsigned address_in(unsigned here, int block) {
  unsigned there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(block));
  return there;
}
template <typename T>
__device__ __forceinline__ T* address_in_block(T* here, int block) {
  T* there;
  asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(here), "r"(block));
  return there;
}

// Floats into another block's shared memory, asynchronously: bytes that a barrier there expects.
__device__ __forceinline__ void send(unsigned to, float4 value, unsigned barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, "
      "[%5];" ::"r"(to),
      "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w), "r"(barrier)
      : "memory");
}
__device__ __forceinline__ void send(unsigned to, float2 value, unsigned barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, "
      "[%3];" ::"r"(to),
      "f"(value.x), "f"(value.y), "r"(barrier)
      : "memory");
}

// All threads of a cluster arrive; the wait is over when all have, and what they wrote before is seen.
__device__ __forceinline__ void arrive_at_cluster() {
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
}
__device__ __forceinline__ void wait_for_cluster() {
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}
__device__ __forceinline__ void sync_cluster() {
  arrive_at_cluster();
  wait_for_cluster();
}

#endif

}  // namespace nvllm::kernels::cuda
