// Instruction sets beyond the build's baseline, x86-64-v3.
#pragma once

#include <cstdint>
#include <vector>

namespace nvllm::kernels::cpu {

// Each one includes the previous ones.
enum class InstructionSet : std::uint8_t {
  avx2,         // and FMA and F16C: the baseline
  avx512,       // F, BW, DQ, VL
  avx512_vnni,  // dot instruction of integers of 8 bits
  avx512_bf16,  // pairwise dot instruction of bfloat16
  amx_bf16,     // tiles
};
const char* name_of(InstructionSet set);

// All sets that this processor and system offer to this process, in order. Requests the use of AMX
// tiles, which the system grants to a process permanently.
std::vector<InstructionSet> instruction_sets();

// Permutations of bytes (AVX512-VBMI): some processors with avx512_vnni or avx512_bf16 lack them.
bool has_avx512_vbmi();

}  // namespace nvllm::kernels::cpu
