#pragma once

namespace nvllm {

// The one place where the version is written.
inline constexpr const char* kVersion = "0.1.0";

}  // namespace nvllm
