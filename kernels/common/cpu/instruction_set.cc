#include "kernels/common/cpu/instruction_set.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace nvllm::kernels::cpu {
namespace {

bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

bool has_amx_bf16() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24;
  if ((d & kBf16) == 0 || (d & kTile) == 0) return false;
  // Tiles are 8 KiB more state per thread, so Linux (since 5.16) wants to be asked:
  // ARCH_REQ_XCOMP_PERM for the state component XTILEDATA.
  constexpr int kRequest = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
}

}  // namespace

const char* name_of(InstructionSet set) {
  switch (set) {
    case InstructionSet::avx2: return "avx2";
    case InstructionSet::avx512: return "avx512";
    case InstructionSet::avx512_vnni: return "avx512_vnni";
    case InstructionSet::avx512_bf16: return "avx512_bf16";
    case InstructionSet::amx_bf16: return "amx_bf16";
  }
  return "?";
}

std::vector<InstructionSet> instruction_sets() {
  std::vector<InstructionSet> sets = {InstructionSet::avx2};
  if (!has_avx512()) return sets;
  sets.push_back(InstructionSet::avx512);
  if (!__builtin_cpu_supports("avx512vnni")) return sets;
  sets.push_back(InstructionSet::avx512_vnni);
  if (!__builtin_cpu_supports("avx512bf16")) return sets;
  sets.push_back(InstructionSet::avx512_bf16);
  if (has_amx_bf16()) sets.push_back(InstructionSet::amx_bf16);
  return sets;
}

}  // namespace nvllm::kernels::cpu
