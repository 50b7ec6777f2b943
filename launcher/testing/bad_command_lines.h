// Command lines that cannot be followed, of all commands, and what each is told.
#pragma once

#include <string>
#include <vector>

namespace nvllm::testing {

struct BadCommandLine {
  std::vector<std::string> words;  // after nvllm-launch
  std::string message;
};

// The messages depend neither on the machine nor on its files.
std::vector<BadCommandLine> bad_command_lines();

}  // namespace nvllm::testing
