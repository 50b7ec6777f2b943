#pragma once

#include <cstdint>

#include "launcher/options.h"

namespace nvllm::launcher {

// Text to ids, ids to text, conversations to text. They start no worker. Return the program's exit code.
int run_tokenize(const Options& options, std::int64_t started_ns);
int run_detokenize(const Options& options, std::int64_t started_ns);
int run_template(const Options& options, std::int64_t started_ns);

}  // namespace nvllm::launcher
