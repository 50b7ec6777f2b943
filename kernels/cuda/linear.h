#pragma once

#include <memory>

#include "kernels/linear.h"

namespace nvllm::kernels::cuda {

// kernels::create_matmul for the CUDA backend.
std::unique_ptr<Matmul> create_matmul(Backend& backend);

}  // namespace nvllm::kernels::cuda
