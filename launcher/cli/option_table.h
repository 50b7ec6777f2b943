// The tables of options: every command's options, and the rows that several commands share.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/cli/option_value.h"
#include "launcher/cli/options.h"

namespace nvllm::launcher {

// One row of a command's table.
struct OptionRow {
  const char* name;  // "--tp"
  // "--tensor-parallel-size"; for a switch what turns it off, "--no-..."; nullptr: there is none
  const char* second_name;
  const char* value;     // placeholder of the value in the help, "N"; nullptr: a switch
  const char* help;      // lines of at most 72 characters
  const char* fallback;  // what holds without the option; nullptr: nothing to say
  // Checks the value and stores it.
  void (*store)(Options& options, const OptionValue& value);
  bool repeats = false;         // each occurrence adds a value; otherwise the last one counts
  const char* group = nullptr;  // heading in the help, "Engine"; nullptr: the command's own option
};
using OptionRows = std::vector<OptionRow>;

struct Command {
  const char* name;
  const char* summary;
  OptionRows rows;
  // Refuses options that do not go together; nullptr: all do.
  void (*check)(const Options& options) = nullptr;
  // Arguments that are no options: their placeholder in the help, "[TEXT]..."; nullptr: there are
  // none.
  const char* words = nullptr;
  void (*store_word)(Options& options, const std::string& word) = nullptr;
};

// All commands of this program, in the order of the help.
const std::vector<Command>& commands();

// Rows that several commands have (shared_options.cc, engine_options.cc).
OptionRow model_row();            // which model
OptionRows model_rows();          // which model, and how it is loaded
OptionRows group_rows();          // commands that run a worker group
OptionRows engine_rows();         // commands that run an engine
OptionRows sampling_rows();       // commands that generate; stored in options.sampling
OptionRows chat_sampling_rows();  // the sampling options of a chat, with its own defaults
OptionRow config_row();           // every command
OptionRow chat_template_row();
OptionRow json_row(const char* help = "prints the result as JSON");
OptionRow memory_report_row();

OptionRows join_rows(std::initializer_list<OptionRows> tables);
OptionRows in_group(const char* group, OptionRows rows);

// What check() of a command with an engine does first.
void check_engine(const Options& options);

// The commands' tables (command_options.cc, bench_options.cc).
std::vector<Command> generating_commands();
std::vector<Command> bench_commands();
std::vector<Command> other_commands();

// What --version and --help print (help.cc).
std::string version_line();
std::string help_text();
std::string help_text(const Command& command);
// For commands of two words that share their first.
std::string help_text(const std::string& first_word);
// The help of all commands as Markdown: options that several commands share stand there once.
// tools/write_docs puts it into docs/command-line.md.
std::string manual_text();

}  // namespace nvllm::launcher
