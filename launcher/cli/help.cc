// What --help and --version print.
#include "launcher/options.h"
#include "launcher/version.h"

namespace nvllm::launcher {
namespace {

constexpr const char* kExitCodeHelp =
    "Exit codes\n"
    "  0        fine\n"
    "  1        the run failed; the last line on standard error says why\n"
    "  2        wrong command line, or more than this machine has; nothing was started\n"
    "  3        a worker died\n"
    "  4        a worker was alive but stuck for longer than --step-timeout\n"
    "  128 + S  stopped by signal S: 130 for SIGINT, 143 for SIGTERM; a second SIGINT\n"
    "           does not wait for the workers to end by themselves\n";

// "  --tp N, --tensor-parallel-size N", its help below and what holds without it.
std::string help_of(const OptionRow& row) {
  const std::string value = row.value != nullptr ? str(' ', row.value) : "";
  std::string text = str("  ", row.name, value);
  if (row.second_name != nullptr) text += str(", ", row.second_name, value);
  text += "\n      ";
  for (const char* c = row.help; *c != '\0'; ++c) {
    text += *c;
    if (*c == '\n') text += "      ";
  }
  if (row.fallback != nullptr) text += str("\n      default: ", row.fallback);
  return text + '\n';
}

std::string help_line(const Command& command) {
  const std::string name = command.name;
  return str("  ", name, std::string(18 - name.size(), ' '), command.summary, '\n');
}

}  // namespace

std::string version_line() {
  return str("nvllm ", kVersion, " (", NVLLM_BUILT_WITH, ")\n");
}

std::string help_text() {
  std::string text =
      "nvllm-launch starts one worker process per GPU, or per rank on the CPU, and watches over "
      "them.\n"
      "\n"
      "  nvllm-launch [OPTIONS] PROMPT    answers it\n"
      "  nvllm-launch [OPTIONS]           opens a chat; not on a terminal, answers each line of\n"
      "                                   standard input; options are those of chat\n"
      "  nvllm-launch COMMAND [OPTIONS]\n"
      "  nvllm-launch COMMAND --help\n"
      "  nvllm-launch --version\n"
      "\n"
      "Commands\n";
  for (const Command& command : commands()) text += help_line(command);
  return text + "\n" + kExitCodeHelp;
}

std::string help_text(const std::string& first_word) {
  std::string text =
      str("nvllm-launch ", first_word, " has several commands, each with its own --help.\n\n");
  for (const Command& command : commands()) {
    if (std::string_view(command.name).starts_with(first_word + ' ')) text += help_line(command);
  }
  return text;
}

std::string help_text(const Command& command) {
  std::string text = str("nvllm-launch ", command.name, " ", command.summary, ".\n\n");
  if (command.words != nullptr) {
    text += str("  nvllm-launch ", command.name, " [OPTIONS] ", command.words, "\n\n");
  }
  text += "Options (--name value or --name=value)\n";
  for (const OptionRow& row : command.rows) text += help_of(row);
  return text + "\n" + kExitCodeHelp;
}

}  // namespace nvllm::launcher
