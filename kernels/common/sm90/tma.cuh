// Bulk tensor copies into shared memory (TMA, sm_90): tensor maps on the host, the copies, and the
// mbarriers on which they complete.
#pragma once

#include <cuda.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/error.h"
#include "device/cuda/stream.h"
#include "device/tensor_view.h"

namespace nvllm::kernels::cuda {

// --- on the host: tensors of 16-bit floats, or pairs of bytes, in boxes whose shared memory layout
// has the 128-byte swizzle unless another is given

// One dimension of a tensor and of its boxes, which take each step-th element of it.
struct Dimension {
  std::int64_t size, stride;  // in elements
  std::int64_t box, step = 1;
};

// The driver's function is looked up at run time, since the program does not link against the
// driver.
inline auto tensor_map_encoder() {
  static const auto encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found{};
    nvllm::cuda::check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                        cudaEnableDefault, &found),
                       "looking for cuTensorMapEncodeTiled");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
  }();
  return encode;
}

// The innermost dimension is first; its stride is 1. An Error names `owner`.
template <std::size_t kDimensions>
CUtensorMap describe_tensor(const char* owner, DType dtype, const void* data,
                            const std::array<Dimension, kDimensions>& dimensions,
                            CUtensorMapL2promotion promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                            CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B) {
  std::array<cuuint64_t, kDimensions> shape{}, strides{};  // strides in bytes
  std::array<cuuint32_t, kDimensions> box{}, steps{};
  for (std::size_t i = 0; i < kDimensions; ++i) {
    shape[i] = static_cast<cuuint64_t>(dimensions[i].size);
    strides[i] = static_cast<cuuint64_t>(dimensions[i].stride * 2);
    box[i] = static_cast<cuuint32_t>(dimensions[i].box);
    steps[i] = static_cast<cuuint32_t>(dimensions[i].step);
  }
  CUtensorMap map{};
  const CUresult result = tensor_map_encoder()(
      &map,
      dtype == DType::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
      kDimensions, const_cast<void*>(data), shape.data(), strides.data() + 1, box.data(),
      steps.data(), CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, promotion,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    fail(owner, ": describing a tensor to the GPU: CUresult ", result);
  }
  return map;
}

// Rows, with any row stride, in boxes of 64 elements of `box` rows.
inline CUtensorMap describe_rows(const char* owner, const TensorView& rows, int box) {
  const std::int64_t columns = rows.shape[1];
  const std::int64_t stride = rows.shape[0] > 1 ? rows.stride[0] : columns;
  return describe_tensor<3>(
      owner, rows.dtype, rows.data,
      {{{columns, 1, 64}, {rows.shape[0], stride, box}, {1, rows.shape[0] * stride, 1}}},
      CU_TENSOR_MAP_L2_PROMOTION_NONE);
}

// --- on the device

#if __CUDA_ARCH__ >= 900

// A barrier in shared memory. A phase completes when `arrivals` threads have arrived and all
// announced bytes have been written. Phases are identified by their parity.
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
  // Arrives when all copies (cp.async) that this thread has started are complete.
  __device__ __forceinline__ void arrive_after_copies() const {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(address) : "memory");
  }
  // Waits until the phase of this parity is complete.
  __device__ __forceinline__ void wait(unsigned parity) const {
    asm volatile(
        "{\n.reg .pred done;\n"
        "again:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n}\n" ::"r"(address),
        "r"(parity)
        : "memory");
  }
};

// Makes initialised barriers visible to bulk copies.
__device__ __forceinline__ void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
// Makes what this thread wrote to shared memory visible to bulk copies and wgmma.
__device__ __forceinline__ void fence_shared_writes() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Prefetches a tensor map, so that the first copy does not wait for it.
__device__ __forceinline__ void prefetch(const CUtensorMap& tensor) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(reinterpret_cast<std::uint64_t>(&tensor))
               : "memory");
}

// L2 cache policy evict_first.
struct EvictFirst {
  std::uint64_t policy;
  __device__ __forceinline__ EvictFirst() {
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  }
};

// Copies bytes; the count and both addresses are multiples of 16.
__device__ __forceinline__ void copy_bytes(unsigned to, const void* from, int bytes,
                                           const Barrier& arrived) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
      "[%3];" ::"r"(to),
      "l"(from), "r"(bytes), "r"(arrived.address)
      : "memory");
}

// Copies a box of a 3-dimensional tensor. Coordinates are innermost first.
__device__ __forceinline__ void copy_box(unsigned to, const CUtensorMap& tensor, int x0, int x1,
                                         int x2, const Barrier& arrived) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(to),
      "l"(reinterpret_cast<std::uint64_t>(&tensor)), "r"(arrived.address), "r"(x0), "r"(x1), "r"(x2)
      : "memory");
}

__device__ __forceinline__ void copy_box(unsigned to, const CUtensorMap& tensor, int x0, int x1,
                                         int x2, const Barrier& arrived, const EvictFirst& hint) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(to),
      "l"(reinterpret_cast<std::uint64_t>(&tensor)), "r"(arrived.address), "r"(x0), "r"(x1),
      "r"(x2), "l"(hint.policy)
      : "memory");
}

// Copies a box of a 4-dimensional tensor.
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
                                         const EvictFirst& hint) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(to),
      "l"(reinterpret_cast<std::uint64_t>(&tensor)), "r"(arrived.address), "r"(x0), "r"(x1),
      "r"(x2), "r"(x3), "l"(hint.policy)
      : "memory");
}

// Copies a box of a 5-dimensional tensor.
__device__ __forceinline__ void copy_box(unsigned to, const CUtensorMap& tensor, int x0, int x1,
                                         int x2, int x3, int x4, const Barrier& arrived,
                                         const EvictFirst& hint) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8;" ::"r"(to),
      "l"(reinterpret_cast<std::uint64_t>(&tensor)), "r"(arrived.address), "r"(x0), "r"(x1),
      "r"(x2), "r"(x3), "r"(x4), "l"(hint.policy)
      : "memory");
}

#endif

}  // namespace nvllm::kernels::cuda
