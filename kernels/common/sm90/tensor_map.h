// A tensor as bulk copies see it (sm_90), made by the host: its elements in boxes that lie in shared memory with
// the 128-byte swizzle.
#pragma once

#include <cuda.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/error.h"
#include "device/cuda/stream.h"
#include "device/tensor_view.h"

namespace nvllm::kernels::cuda {

// One dimension of a tensor and of its boxes, which take each step-th element of it.
struct Dimension {
  std::int64_t size, stride;  // in elements
  std::int64_t box, step = 1;
};

// Whether the GPU has what is compiled for sm_90a alone: bulk tensor copies and wgmma as these kernels use them.
inline bool is_hopper() {
  return nvllm::cuda::device_attribute(cudaDevAttrComputeCapabilityMajor) == 9 &&
         nvllm::cuda::device_attribute(cudaDevAttrComputeCapabilityMinor) == 0;
}

// The driver's function, found at run time: the program does not link with the driver.
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

// Of 16-bit floats; the innermost dimension comes first, its stride is 1. `owner` is named if it cannot be.
template <std::size_t kDimensions>
CUtensorMap describe_tensor(const char* owner, DType dtype, const void* data,
                            const std::array<Dimension, kDimensions>& dimensions,
                            CUtensorMapL2promotion promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_256B) {
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
      steps.data(), CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, promotion,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    fail(owner, ": describing a tensor to the GPU: CUresult ", result);
  }
  return map;
}

// Rows, which may lie apart, in boxes of 64 of their elements and `box` rows.
inline CUtensorMap describe_rows(const char* owner, const TensorView& rows, int box) {
  const std::int64_t columns = rows.shape[1];
  const std::int64_t stride = rows.shape[0] > 1 ? rows.stride[0] : columns;
  return describe_tensor<3>(
      owner, rows.dtype, rows.data,
      {{{columns, 1, 64}, {rows.shape[0], stride, box}, {1, rows.shape[0] * stride, 1}}},
      CU_TENSOR_MAP_L2_PROMOTION_NONE);
}

}  // namespace nvllm::kernels::cuda
