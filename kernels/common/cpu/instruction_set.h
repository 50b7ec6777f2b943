// What the processor can do beyond the build's baseline, x86-64-v3.
#pragma once

#include <cstdint>
#include <vector>

namespace nvllm::kernels::cpu {

// Each one includes those before it.
enum class InstructionSet : std::uint8_t {
  avx2,         // and FMA and F16C: the baseline
  avx512,       // F, BW, DQ, VL
  avx512_vnni,  // dot instruction of integers of 8 bits
  avx512_bf16,  // pairwise dot instruction of bfloat16
  amx_bf16,     // tiles
};
const char* name_of(InstructionSet set);

// All that this processor and system allow this process, in order. Asks the system for the use of
// tiles, which it grants to a process once and for all.
std::vector<InstructionSet> instruction_sets();

}  // namespace nvllm::kernels::cpu
