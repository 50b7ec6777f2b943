// The tables of options: every command's options, and the rows that several commands share.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "launcher/cli/option_value.h"
#include "launcher/cli/options.h"

namespace nvllm::launcher {

using StoreOption = std::function<void(Options& options, const OptionValue& value)>;

// One row of a command's table.
struct OptionRow {
  const char* name;      // "--tp"
  const char* value;     // placeholder of the value in the help, "N"; nullptr: no value
  const char* help;      // lines of at most 72 characters
  const char* fallback;  // default, as shown in the help; nullptr: none
  StoreOption store;     // validates the value and stores it
  // "--tensor-parallel-size"; for a switch the name that turns it off, "--no-..."; nullptr: none
  const char* second_name = nullptr;
  bool repeats = false;         // each occurrence adds a value; otherwise the last one is used
  const char* group = nullptr;  // heading in the help, "Engine"; nullptr: the command's own option
  // Words after the value are more values, "--name a b", where they cannot be the model.
  bool more_words = false;
};
using OptionRows = std::vector<OptionRow>;

struct Command {
  const char* name;
  const char* summary;
  OptionRows rows;
  // Rejects invalid combinations of options; nullptr: all are valid.
  void (*check)(const Options& options) = nullptr;
  // Arguments that are not options: their placeholder in the help, "[TEXT]..."; nullptr: not
  // accepted.
  const char* positional = nullptr;
  void (*store_positional)(Options& options, const std::string& word) = nullptr;
  // Sets defaults that differ from those of Options; nullptr: none do.
  void (*set_defaults)(Options& options) = nullptr;
};

// Creates the store functions of rows whose value is a field of one part of the options:
// Into(&Options::engine).whole(&runtime::EngineOptions::max_num_seqs, 1, 65536)
template <typename Part>
class Into {
 public:
  explicit Into(Part Options::*part) : part_(part) {}

  template <typename Field>
  StoreOption whole(Field Part::*field, std::int64_t min, std::int64_t max) const {
    return store(field, [=](const OptionValue& value) { return value.whole(min, max); });
  }
  template <typename Field>
  StoreOption amount(Field Part::*field, std::int64_t min, std::int64_t max) const {
    return store(field, [=](const OptionValue& value) { return value.amount(min, max); });
  }
  template <typename Field>
  StoreOption real(Field Part::*field, double min, double max) const {
    return store(field, [=](const OptionValue& value) { return value.real(min, max); });
  }
  template <typename Field>
  StoreOption path(Field Part::*field, const char* fix) const {
    return store(field, [=](const OptionValue& value) { return value.path(fix); });
  }
  StoreOption on(bool Part::*field) const {
    return store(field, [](const OptionValue& value) { return value.on(); });
  }
  // what: describes a choice, "policy".
  template <typename Choice>
  StoreOption one_of(Choice Part::*field, const char* what,
                     std::vector<std::pair<std::string_view, Choice>> choices) const {
    return store(field, [=](const OptionValue& value) { return value.one_of(what, choices); });
  }

 private:
  template <typename Field, typename Read>
  StoreOption store(Field Part::*field, Read read) const {
    return [part = part_, field, read](Options& options, const OptionValue& value) {
      options.*part.*field = static_cast<Field>(read(value));
    };
  }

  Part Options::*part_;
};

// All commands of this program, in the order of the help.
const std::vector<Command>& commands();

// Rows shared by several commands (shared_options.cc, engine_options.cc).
OptionRow model_row();            // the model
OptionRows model_rows();          // the model, and how it is loaded
OptionRows group_rows();          // commands that run a worker group
OptionRows engine_rows();         // commands that run an engine
OptionRows sampling_rows();       // commands that generate; stored in options.sampling
OptionRows chat_sampling_rows();  // the sampling options of a chat, with its own defaults
OptionRow generation_config_row();
OptionRow config_row();           // every command
OptionRows chat_template_rows();  // the template, and how its input is read
OptionRows api_rows();  // commands that process requests of the OpenAI API; stored in options.serve
OptionRow json_row(const char* help = "prints the result as JSON");
OptionRow memory_report_row();
// Stores the only word of commands that take a model.
void store_model_word(Options& options, const std::string& word);
OptionRow switch_row(const char* name, const char* help, bool Options::*field);

// Rows shared by several benchmarks (bench_options.cc); stored in options.bench.
constexpr std::int64_t kMaxBenchRequests = 1'000'000;
OptionRow dataset_seed_row();
OptionRow input_row(const char* value, const char* help, const char* fallback);
OptionRow output_row(const char* value, const char* help, const char* fallback);
OptionRow warmup_row(const char* help, const char* fallback);
OptionRow max_concurrency_row();

OptionRows join_rows(std::initializer_list<OptionRows> tables);
OptionRows in_group(const char* group, OptionRows rows);

// First part of check() for commands with an engine.
void check_engine(const Options& options);
// The same for commands with api_rows().
void check_api(const Options& options);

// The commands' tables (command_options.cc, serve_options.cc, bench_options.cc,
// bench_serve_options.cc).
Command serve_command();
std::vector<Command> generating_commands();
std::vector<Command> bench_commands();
Command bench_serve_command();
std::vector<Command> other_commands();

// The output of --version and --help (help.cc).
std::string version_line();
std::string help_text();
std::string help_text(const Command& command);
// For commands of two words with the same first word.
std::string help_text(const std::string& first_word);
// The help of all commands as Markdown; options shared by several commands are listed once.
// tools/write_docs inserts it into docs/command-line.md.
std::string manual_text();

// The same as man pages in roff (help.cc): of the program, and of a command.
std::string man_page();
std::string man_page(const Command& command);

// A script for completing commands, options and values in a shell (completion.cc). shell: "bash",
// "zsh" or "fish".
std::string completion_script(const std::string& shell);

// --config FILE (config_file.cc): options of a command line as YAML (yaml_config.h), or as a JSON
// object.
//
//   model: Qwen/Qwen3-8B                {"model": "Qwen/Qwen3-8B",
//   tensor-parallel-size: 2              "tensor-parallel-size": 2,
//   max_model_len: 32k                   "max_model_len": "32k"}
//
// A key is an option's long name without its leading dashes; underscores may stand for dashes. A
// switch takes true or false; numbers, lists of token ids and JSON objects stand for themselves; an
// option that may come repeatedly takes a list of its values. A text means the same as on the
// command line.
struct ConfigEntry {
  const OptionRow* row = nullptr;
  std::string name;   // as on the command line, "--tp"; for a switch that is turned off, "--no-..."
  std::string text;   // its value
  std::string place;  // "--config run.json, line 2, column 3"
};

// The file's entries in order; an option with several values has one entry per value. Throws a
// UsageError if the file cannot be read, is neither YAML nor JSON, or has a key that is not an
// option of the command, is duplicated, or has a value of the wrong type.
std::vector<ConfigEntry> read_config_file(const std::string& path, const Command& command);

}  // namespace nvllm::launcher
