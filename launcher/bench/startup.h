// bench startup: from the start of the program to the first token.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "launcher/bench/load_generator.h"
#include "runtime/engine/engine_messages.h"

namespace nvllm::launcher {

// When the last rank had come so far, in seconds after the start.
struct StartupStage {
  std::string name;
  double after_s = 0;
};

// Of one start. started_ns: of the program.
std::vector<StartupStage> startup_stages(std::int64_t started_ns, const runtime::EngineInfo& info,
                                         std::int64_t asked_ns, std::int64_t first_token_ns);

}  // namespace nvllm::launcher
