#pragma once

#include <cstdint>

#include "launcher/options.h"

namespace nvllm::launcher {

// Looks at the machine, prints what it found and the mend for what is wrong. An Error, after that, if something
// stops nvllm from working. started_ns: see main.cc.
int run_doctor(const Options& options, std::int64_t started_ns);

}  // namespace nvllm::launcher
