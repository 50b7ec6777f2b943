// The command line: what nvllm-launch was asked to do.
//
//   nvllm-launch COMMAND [--name value | --name=value | --switch]...
//   nvllm-launch [--name value | --name=value | --switch]... [PROMPT]      as `chat`
//
// A command is one word, or two where several share the first ("bench latency", "bench startup").
// Every command has one table of its options; parsing, checking and the help all come from that
// table; so do shell completion (completion.h) and --config (config_file.h). A command's table, what it checks and what it stores are in a file of its own
// (options_COMMAND.cc); rows that several commands share are in others (option_rows.h).
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/logging.h"
#include "launcher/nearest_name.h"
#include "launcher/option_value.h"
#include "launcher/options_bench.h"
#include "launcher/options_chat.h"
#include "launcher/options_generate.h"
#include "launcher/options_text.h"
#include "launcher/sampling_settings.h"
#include "runtime/engine_options.h"
#include "runtime/model_options.h"

namespace nvllm::launcher {

enum class DeviceChoice { automatic, cpu, cuda };

// Of the worker group.
struct GroupOptions {
  std::optional<int> ranks;  // absent: every GPU, or one rank on the CPU
  DeviceChoice device = DeviceChoice::automatic;
  Nanoseconds step_timeout = std::chrono::seconds(60);
  std::string collectives = "auto";
  LogLevel log_level = LogLevel::info;
};

struct SelftestOptions {
  double seconds = 0;
};

struct InspectOptions {
  bool load = false;
  bool checksums = false;
};

// Parsed once, validated, const afterwards.
struct Options {
  std::string command;  // "selftest", "inspect"; empty: `message` is all there is to do

  // Shared by commands.
  GroupOptions group;
  runtime::ModelOptions model;
  runtime::EngineOptions engine;
  std::map<std::string, std::string>
      host_cache;             // options of keys and values in host memory, as they were given
  SamplingSettings sampling;  // where a request does not say it itself
  std::string profile;        // where the trace goes; empty: there is none
  bool json = false;
  bool memory_report = false;

  // Each command's own.
  SelftestOptions selftest;
  InspectOptions inspect;
  GenerateOptions generate;
  TextOptions text;
  ChatOptions chat;
  BenchOptions bench;
  std::string shell;  // of completion: bash, zsh, fish

  std::string message;  // --help, --version: to be printed on standard output
};

// One row of a command's table.
struct OptionRow {
  const char* name;  // "--tp"
  // "--tensor-parallel-size"; of a switch: what turns it off, "--no-..."; nullptr: has none
  const char* second_name;
  const char* value;     // what stands for the value in the help, "N"; nullptr: a switch
  const char* help;      // lines of at most 72 characters
  const char* fallback;  // what holds without the option; nullptr: nothing to say
  // Checks the value and stores it.
  void (*store)(Options& options, const OptionValue& value);
  bool repeats = false;  // each time it comes adds a value; otherwise the last one counts
};

struct Command {
  const char* name;
  const char* summary;
  std::vector<OptionRow> rows;
  // Whether what was stored goes together; nullptr: anything does.
  void (*check)(const Options& options) = nullptr;
  // Of arguments that are no options: what stands for them in the help, "[TEXT]..."; nullptr: none are taken.
  const char* words = nullptr;
  void (*store_word)(Options& options, const std::string& word) = nullptr;
};

// All commands of this program.
const std::vector<Command>& commands();

// The arguments after the program's name. Throws UsageError.
Options parse_command_line(const std::vector<std::string>& arguments);

std::string version_line();
std::string help_text();
std::string help_text(const Command& command);
// Of the commands of two words that share their first.
std::string help_text(const std::string& first_word);

}  // namespace nvllm::launcher
