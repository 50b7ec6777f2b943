// Command lines of `generate` that cannot be followed, and what each is told.
#pragma once

#include <string>
#include <vector>

namespace nvllm::testing {

struct BadCommandLine {
  std::vector<std::string> words;  // after: generate --model a
  std::string message;
};

std::vector<BadCommandLine> bad_command_lines();

}  // namespace nvllm::testing
