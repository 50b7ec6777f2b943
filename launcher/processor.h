// Whether this processor can run the program: everything but processor.cc is compiled for
// x86-64-v3, so an older processor would kill it with SIGILL without a message.
#pragma once

#include <cstdint>

namespace nvllm::launcher {

// The output of the instructions cpuid and xgetbv.
struct ProcessorFeatures {
  std::uint32_t leaf1_ecx = 0;
  std::uint32_t leaf7_ebx = 0;
  std::uint32_t extended1_ecx = 0;  // leaf 0x80000001
  std::uint32_t xcr0 = 0;           // registers that the operating system saves; 0 without xgetbv
};

// The first instruction set of x86-64-v3 that the processor lacks, "AVX2"; nullptr: it has all.
const char* missing_instruction_set(const ProcessorFeatures& features);

}  // namespace nvllm::launcher
