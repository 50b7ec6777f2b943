#pragma once

namespace nvllm::testing {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// Whether this build detects races.
#if defined(__SANITIZE_THREAD__)
inline constexpr bool kThreadSanitized = true;
#else
inline constexpr bool kThreadSanitized = false;
#endif

// Factor on promised times in tests, because other programs use the machine, too.
inline constexpr double kLoad = kSanitized ? 10 : 3;

}  // namespace nvllm::testing
