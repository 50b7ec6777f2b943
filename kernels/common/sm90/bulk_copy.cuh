// Bulk tensor copies into shared memory and the barriers on which they complete (sm_90).
#pragma once

#include <cuda.h>

#include <cstdint>

namespace nvllm::kernels::cuda {

#if __CUDA_ARCH__ >= 900

// A barrier in shared memory: it completes a phase when `arrivals` threads have arrived and all bytes
// that were announced are there. Phases are told apart by their parity.
struct Barrier {
  unsigned address;

  __device__ __forceinline__ void init(int arrivals) const {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address), "r"(arrivals)
                 : "memory");
  }
  __device__ __forceinline__ void arrive() const {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address) : "memory");
  }
  __device__ __forceinline__ void arrive_and_expect(unsigned bytes) const {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address), "r"(bytes)
                 : "memory");
  }
  // When all copies (cp.async) that this thread has asked for are there.
  __device__ __forceinline__ void arrive_after_copies() const {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(address) : "memory");
  }
  // Until the phase of this parity is complete.
  __device__ __forceinline__ void wait(unsigned parity) const {
    asm volatile(
        "{\n.reg .pred done;\n"
        "again:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n}\n" ::"r"(address),
        "r"(parity)
        : "memory");
  }
};

// Barriers that were initialised are seen by bulk copies.
__device__ __forceinline__ void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
// What this thread wrote to shared memory is seen by bulk copies and wgmma.
__device__ __forceinline__ void fence_shared_writes() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// The first copy will not wait for what the tensor is.
__device__ __forceinline__ void prefetch(const CUtensorMap& tensor) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(reinterpret_cast<std::uint64_t>(&tensor))
               : "memory");
}

// What is copied with it leaves the L2 before other things do.
struct LeavesFirst {
  std::uint64_t policy;
  __device__ __forceinline__ LeavesFirst() {
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  }
};

// A box of a tensor of three dimensions, its first coordinates innermost first.
__device__ __forceinline__ void copy_box(unsigned to, const CUtensorMap& tensor, int x0, int x1,
                                         int x2, const Barrier& arrived) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(to),
      "l"(reinterpret_cast<std::uint64_t>(&tensor)), "r"(arrived.address), "r"(x0), "r"(x1), "r"(x2)
      : "memory");
}

__device__ __forceinline__ void copy_box(unsigned to, const CUtensorMap& tensor, int x0, int x1,
                                         int x2, const Barrier& arrived, const LeavesFirst& hint) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(to),
      "l"(reinterpret_cast<std::uint64_t>(&tensor)), "r"(arrived.address), "r"(x0), "r"(x1),
      "r"(x2), "l"(hint.policy)
      : "memory");
}

// A box of a tensor of four dimensions, its first coordinates innermost first.
__device__ __forceinline__ void copy_box(unsigned to, const CUtensorMap& tensor, int x0, int x1,
                                         int x2, int x3, const Barrier& arrived) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(to),
      "l"(reinterpret_cast<std::uint64_t>(&tensor)), "r"(arrived.address), "r"(x0), "r"(x1),
      "r"(x2), "r"(x3)
      : "memory");
}

__device__ __forceinline__ void copy_box(unsigned to, const CUtensorMap& tensor, int x0, int x1,
                                         int x2, int x3, const Barrier& arrived,
                                         const LeavesFirst& hint) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(to),
      "l"(reinterpret_cast<std::uint64_t>(&tensor)), "r"(arrived.address), "r"(x0), "r"(x1),
      "r"(x2), "r"(x3), "l"(hint.policy)
      : "memory");
}

// The same of five dimensions.
__device__ __forceinline__ void copy_box(unsigned to, const CUtensorMap& tensor, int x0, int x1,
                                         int x2, int x3, int x4, const Barrier& arrived,
                                         const LeavesFirst& hint) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8;" ::"r"(to),
      "l"(reinterpret_cast<std::uint64_t>(&tensor)), "r"(arrived.address), "r"(x0), "r"(x1),
      "r"(x2), "r"(x3), "r"(x4), "l"(hint.policy)
      : "memory");
}

#endif

}  // namespace nvllm::kernels::cuda
