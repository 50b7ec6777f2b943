// --config FILE: options of a command line as one JSON object.
//
//   {"model": "Qwen/Qwen3-8B", "tensor-parallel-size": 2, "max_model_len": "32k"}
//
// A key is an option's long name without its leading dashes; underscores may stand for dashes. A
// switch takes true or false; numbers, lists of token ids and JSON objects stand for themselves; an
// option that may come repeatedly takes a list of its values. A text means the same as on the
// command line.
#pragma once

#include <string>
#include <vector>

#include "launcher/cli/option_table.h"

namespace nvllm::launcher {

struct ConfigEntry {
  const OptionRow* row = nullptr;
  std::string name;   // as on the command line, "--tp"; of a switch that is turned off, "--no-..."
  std::string text;   // its value
  std::string place;  // "--config run.json, line 2, column 3"
};

// The file's entries in its order; an option that comes repeatedly has one entry per value. Throws
// a UsageError if the file cannot be read, is no JSON, or has a key that is no option of the
// command, comes twice, or has a value of another type.
std::vector<ConfigEntry> read_config_file(const std::string& path, const Command& command);

}  // namespace nvllm::launcher
