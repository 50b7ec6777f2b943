// Synchronization of parts of a block, by named barriers (any GPU), and of the blocks of a cluster,
// by barriers and distributed shared memory (sm_90).
#pragma once

namespace nvllm::kernels::cuda {

// Barriers are identified by number; 0 is __syncthreads().
__device__ __forceinline__ void sync_threads(int number, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
__device__ __forceinline__ void arrive_at(int number, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
// A barrier that also returns whether a condition holds for any of the threads.
__device__ __forceinline__ bool any_of_threads(int number, int threads, bool holds) {
  unsigned any;
  asm volatile(
      "{\n.reg .pred mine, any;\nsetp.ne.u32 mine, %3, 0;\n"
      "bar.red.or.pred any, %1, %2, mine;\nselp.u32 %0, 1, 0, any;\n}\n"
      : "=r"(any)
      : "r"(number), "r"(threads), "r"(static_cast<unsigned>(holds))
      : "memory");
  return __any_sync(~0u, any != 0);  // tells the compiler that the value is warp-uniform
}

#if __CUDA_ARCH__ >= 900

// The address in another block's shared memory that corresponds to `here` in this block's.
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

// Writes floats to another block's shared memory, asynchronously, as bytes that a barrier there
// expects.
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

// All threads of a cluster arrive. The wait ends when all have; their earlier writes are then
// visible.
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
