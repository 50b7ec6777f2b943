#pragma once

namespace nvllm::testing {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// Whether this build finds races.
#if defined(__SANITIZE_THREAD__)
inline constexpr bool kThreadSanitized = true;
#else
inline constexpr bool kThreadSanitized = false;
#endif

// How many times longer than promised things may take in a test: others use the machine, too.
inline constexpr double kLoad = kSanitized ? 10 : 3;

}  // namespace nvllm::testing
