// Invalid command lines of all commands, and their error messages.
#pragma once

#include <string>
#include <vector>

namespace nvllm::testing {

struct BadCommandLine {
  std::vector<std::string> words;  // after nvllm-launch
  std::string message;
};

// The messages do not depend on the machine or its files.
std::vector<BadCommandLine> bad_command_lines();

}  // namespace nvllm::testing
