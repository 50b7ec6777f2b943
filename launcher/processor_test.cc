#include "launcher/processor.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <string>

namespace nvllm::launcher {
namespace {

// cpuid as a Haswell (2013) answers, the first processor of x86-64-v3.
constexpr ProcessorFeatures kHaswell = {
    .leaf1_ecx = 0x7ffafbff, .leaf7_ebx = 0x000027ab, .extended1_ecx = 0x00000021, .xcr0 = 0x7};

std::string missing(ProcessorFeatures features) {
  const char* const name = missing_instruction_set(features);
  return name == nullptr ? "nothing" : name;
}

ProcessorFeatures without(std::uint32_t ProcessorFeatures::*word, int bit) {
  ProcessorFeatures features = kHaswell;
  features.*word &= ~(std::uint32_t{1} << bit);
  return features;
}

}  // namespace

TEST_CASE("a Haswell lacks nothing") {
  CHECK(missing(kHaswell) == "nothing");
}

TEST_CASE("each instruction set of x86-64-v3 is named when it is missing") {
  CHECK(missing(without(&ProcessorFeatures::leaf1_ecx, 28)) == "AVX");
  CHECK(missing(without(&ProcessorFeatures::leaf7_ebx, 5)) == "AVX2");
  CHECK(missing(without(&ProcessorFeatures::leaf1_ecx, 12)) == "FMA");
  CHECK(missing(without(&ProcessorFeatures::leaf1_ecx, 29)) == "F16C");
  CHECK(missing(without(&ProcessorFeatures::leaf7_ebx, 3)) == "BMI1");
  CHECK(missing(without(&ProcessorFeatures::leaf7_ebx, 8)) == "BMI2");
  CHECK(missing(without(&ProcessorFeatures::leaf1_ecx, 22)) == "MOVBE");
  CHECK(missing(without(&ProcessorFeatures::extended1_ecx, 5)) == "LZCNT");
}

TEST_CASE("a Sandy Bridge (2011) has AVX and lacks AVX2") {
  CHECK(missing({.leaf1_ecx = 0x1fbae3ff, .leaf7_ebx = 0, .extended1_ecx = 1, .xcr0 = 7}) ==
        "AVX2");
}

TEST_CASE("AVX that the system does not save is AVX that is missing") {
  ProcessorFeatures features = kHaswell;
  features.xcr0 = 0x3;
  CHECK(missing(features).starts_with("AVX (the system"));
}

TEST_CASE("a processor of which nothing is known lacks something") {
  CHECK(missing({}) != "nothing");
}

}  // namespace nvllm::launcher
