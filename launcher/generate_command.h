#pragma once

#include <cstdint>

#include "launcher/options.h"

namespace nvllm::launcher {

// nvllm-launch generate. started_ns: when the launcher began. Returns the exit code.
int run_generate(const Options& options, std::int64_t started_ns);

}  // namespace nvllm::launcher
