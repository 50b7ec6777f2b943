// Ends the program with an error message if the processor lacks instructions that it was compiled
// for.
//
// This must run before anything that is compiled for x86-64-v3, so this file is compiled for plain
// x86-64 (its copts in BUILD.bazel), calls only the C library, and includes no header whose inline
// functions the linker could take from another file. The check is in .preinit_array, which the
// dynamic linker runs before all static initialisers, including those of shared libraries, and
// before main.
#include "launcher/processor.h"

#include <cpuid.h>
#include <unistd.h>

namespace nvllm::launcher {
namespace {

constexpr std::uint32_t bit(int n) {
  return std::uint32_t{1} << n;
}

// SSE and AVX registers, in xcr0.
constexpr std::uint32_t kSavedRegisters = bit(1) | bit(2);

struct InstructionSet {
  const char* name;
  std::uint32_t ProcessorFeatures::*word;
  std::uint32_t bits;
};

// The best-known one comes first. Instructions of x86-64-v2 are not listed, since every processor
// with AVX2 has them. If OSXSAVE (bit 27) is 0, so is xcr0.
constexpr InstructionSet kNeeded[] = {
    {"AVX2", &ProcessorFeatures::leaf7_ebx, bit(5)},
    {"AVX", &ProcessorFeatures::leaf1_ecx, bit(28)},
    {"AVX (the system does not save its registers)", &ProcessorFeatures::xcr0, kSavedRegisters},
    {"FMA", &ProcessorFeatures::leaf1_ecx, bit(12)},
    {"F16C", &ProcessorFeatures::leaf1_ecx, bit(29)},
    {"BMI1", &ProcessorFeatures::leaf7_ebx, bit(3)},
    {"BMI2", &ProcessorFeatures::leaf7_ebx, bit(8)},
    {"MOVBE", &ProcessorFeatures::leaf1_ecx, bit(22)},
    {"LZCNT", &ProcessorFeatures::extended1_ecx, bit(5)},
};

ProcessorFeatures read_features() {
  ProcessorFeatures features;
  std::uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0) features.leaf1_ecx = ecx;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0) features.leaf7_ebx = ebx;
  if (__get_cpuid(0x80000001, &eax, &ebx, &ecx, &edx) != 0) features.extended1_ecx = ecx;
  if ((features.leaf1_ecx & bit(27)) != 0) {
    // The intrinsic _xgetbv would need -mxsave.
    __asm__("xgetbv" : "=a"(eax), "=d"(edx) : "c"(0));
    features.xcr0 = eax;
  }
  return features;
}

void say(const char* text) {
  std::size_t size = 0;
  while (text[size] != '\0') ++size;
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text, size);
}

void check_processor() {
  const char* const missing = missing_instruction_set(read_features());
  if (missing == nullptr) return;
  say("nvllm-launch: this processor lacks ");
  say(missing);
  say("; nvllm needs one of x86-64-v3: Intel from Haswell (2013) or AMD from Excavator (2015) "
      "on\n");
  ::_exit(2);  // kExitUsage: more than this machine has
}

[[gnu::section(".preinit_array"), gnu::used]] void (*const kCheckProcessor)() = check_processor;

}  // namespace

const char* missing_instruction_set(const ProcessorFeatures& features) {
  for (const InstructionSet& set : kNeeded) {
    if ((features.*set.word & set.bits) != set.bits) return set.name;
  }
  return nullptr;
}

}  // namespace nvllm::launcher
