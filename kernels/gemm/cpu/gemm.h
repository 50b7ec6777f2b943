#pragma once

#include <memory>
#include <optional>

#include "kernels/common/cpu/instruction_set.h"
#include "kernels/gemm/linear.h"

namespace nvllm::kernels::cpu {

// Products for streams of the CPU backend. Workspace for rows of x in the kernels' own format is allocated
// when a call needs more of it than any before; it never shrinks. tune() with the most rows allocates it
// ahead. Results do not depend on the number of threads.
//
// set: at most this instruction set, for tests; without it, the best one that there is.
std::unique_ptr<Matmul> create_matmul(Backend& backend,
                                      std::optional<InstructionSet> set = std::nullopt);

}  // namespace nvllm::kernels::cpu
