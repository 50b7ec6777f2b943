#pragma once

#include <memory>

#include "kernels/linear.h"

namespace nvllm::kernels::cpu {

// kernels::create_matmul for the CPU backend.
std::unique_ptr<Matmul> create_matmul(Backend& backend);

}  // namespace nvllm::kernels::cpu
