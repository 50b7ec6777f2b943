// --config FILE: options of a command line as one JSON object.
//
//   {"model": "Qwen/Qwen3-8B", "tensor-parallel-size": 2, "max_model_len": "32k", "enforce-eager": true}
//
// A key is an option's long name without its dashes, or with underscores instead of them. A switch takes true
// or false; numbers, lists of token ids and JSON objects stand for themselves; an option that may come
// repeatedly takes a list of its values. A text is taken as on the command line.
#pragma once

#include <string>
#include <vector>

#include "launcher/options.h"

namespace nvllm::launcher {

struct ConfigEntry {
  const OptionRow* row = nullptr;
  std::string name;   // as on the command line, "--tp"; of a switch that is turned off, "--no-..."
  std::string text;   // its value
  std::string place;  // "--config run.json, line 2, column 3"
};

// What the file says, in its order; of an option that comes repeatedly one entry per value. A UsageError in one
// line for what is no file, no JSON, no option of the command, there twice, or of another type.
std::vector<ConfigEntry> read_config_file(const std::string& path, const Command& command);

}  // namespace nvllm::launcher
