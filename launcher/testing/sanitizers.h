#pragma once

namespace nvllm::testing {

// How many times longer things may take in this build; bounds of tests are multiplied by it.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr int kSlowdown = 5;
#else
inline constexpr int kSlowdown = 1;
#endif

}  // namespace nvllm::testing
