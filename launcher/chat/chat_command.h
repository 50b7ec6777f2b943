#pragma once

#include <cstdint>

#include "launcher/options.h"

namespace nvllm::launcher {

// nvllm-launch chat, and nvllm-launch without a command. Returns the exit code.
int run_chat(const Options& options, std::int64_t started_ns);

}  // namespace nvllm::launcher
