// What is asked of `chat`, and of a command line without a command.
#pragma once

#include <optional>
#include <string>

namespace nvllm::launcher {

struct ChatOptions {
  bool command = true;                // false: nothing but a prompt, or nothing at all, was given
  std::optional<std::string> prompt;  // to be answered; then the program ends
  std::string system;                 // empty: what the chat template says itself
};

}  // namespace nvllm::launcher
