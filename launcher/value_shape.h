// What an option takes, read from what stands for its value in the help: "N", "auto|cpu|cuda", "ID,ID...",
// "FILE|-". So shell completion and configuration files know it without a second table.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace nvllm::launcher {

struct ValueShape {
  bool number = false;               // N, SECONDS, BYTES, ...
  bool list = false;                 // of numbers: ID,ID...
  bool file = false;                 // FILE, MODEL
  bool json = false;                 // JSON
  std::vector<std::string> choices;  // words that stand for themselves: auto, none
};

ValueShape shape_of(std::string_view placeholder);

}  // namespace nvllm::launcher
