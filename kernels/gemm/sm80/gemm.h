#pragma once

#include <cstddef>
#include <memory>

#include "kernels/gemm/linear.h"

namespace nvllm::kernels::cuda {

// What cuBLASLt works with: as much as NVIDIA advises for Hopper.
inline constexpr std::size_t kMatmulBytes = 32 << 20;

// kernels::create_matmul for the CUDA backend.
std::unique_ptr<Matmul> create_matmul(Backend& backend);

}  // namespace nvllm::kernels::cuda
