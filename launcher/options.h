// The command line: what nvllm-launch was asked to do.
//
//   nvllm-launch COMMAND [--name value | --name=value | --switch]...
//
// Every command has one table of its options; parsing, checking and the help all come from that
// table.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/logging.h"
#include "runtime/model_options.h"

namespace nvllm::launcher {

enum class DeviceChoice { automatic, cpu, cuda };

// Parsed once, validated, const afterwards.
struct Options {
  std::string command;  // "selftest", "inspect"; empty: `text` is all there is to do

  // Of the worker group.
  std::optional<int> ranks;  // absent: every GPU, or one rank on the CPU
  DeviceChoice device = DeviceChoice::automatic;
  Nanoseconds step_timeout = std::chrono::seconds(60);
  std::string collectives = "auto";
  LogLevel log_level = LogLevel::info;

  // Of every command that takes a model.
  runtime::ModelOptions model;

  // Of selftest.
  double seconds = 0;

  // Of inspect.
  bool load = false;
  bool checksums = false;

  // Of several.
  bool json = false;
  bool memory_report = false;

  std::string text;  // --help, --version: to be printed on standard output
};

// A command line that cannot be followed. One line: the thing, its value, the mend.
class UsageError : public Error {
 public:
  using Error::Error;
};

// One row of a command's table.
struct OptionRow {
  const char* name;         // "--tp"
  const char* second_name;  // "--tensor-parallel-size"; nullptr: has none
  const char* value;        // what stands for the value in the help, "N"; nullptr: a switch
  const char* help;         // lines of at most 72 characters
  const char* fallback;     // what holds without the option; nullptr: nothing to say
  // Checks the value and stores it. `given` is the name as it was written.
  void (*store)(Options& options, std::string_view given, std::string_view value);
};

struct Command {
  const char* name;
  const char* summary;
  std::vector<OptionRow> rows;
  // Whether what was stored goes together; nullptr: anything does.
  void (*check)(const Options& options) = nullptr;
};

// All commands of this program.
const std::vector<Command>& commands();

// The arguments after the program's name. Throws UsageError.
Options parse_command_line(const std::vector<std::string>& arguments);

std::string version_line();
std::string help_text();
std::string help_text(const Command& command);

// The candidate that is fewest edits away from the word; empty if none is near.
std::string nearest_name(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace nvllm::launcher
