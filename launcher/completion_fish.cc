// fish: a line for every option of every command.
#include "base/text.h"
#include "launcher/completion_words.h"

namespace nvllm::launcher {
namespace {

constexpr const char* kBegin =
    R"(# Completion of nvllm-launch in fish, made by: nvllm-launch completion fish
# For good: nvllm-launch completion fish >~/.config/fish/completions/nvllm-launch.fish
# In this shell only: nvllm-launch completion fish | source

# Whether the words after the program begin with these; without any: whether there is none yet.
function __nvllm_launch_after
    set -l words (commandline -opc)
    if test (count $argv) -eq 0
        test (count $words) -eq 1
        return
    end
    string match -q -- "$argv *" "$words[2..-1] "
end

# Whether no command has been named: then it is a chat.
function __nvllm_launch_unnamed
    set -l words (commandline -opc)
    test (count $words) -lt 2; or string match -q -- '-*' $words[2]
end

complete -c nvllm-launch -f
)";

// In single quotes.
std::string quoted(const std::string& text) {
  return str('\'', replaced(text, "'\\", [](char c) { return str('\\', c); }), '\'');
}

std::string line(const std::string& condition, const std::string& what, std::string_view help) {
  return str("complete -c nvllm-launch -n '", condition, "' ", what, " -d ",
             quoted(short_help(help)), "\n");
}

// "-r -F" of a file, "-x -a 'auto cpu'" of words; nothing of a switch.
std::string taken(const OptionRow& row) {
  if (row.value == nullptr) return "";
  const ValueShape shape = shape_of(row.value);
  if (shape.file) return " -r -F";
  if (shape.choices.empty()) return " -x";
  return str(" -x -a '", joined(shape.choices), "'");
}

std::string option_lines(const std::string& condition, const Command& command) {
  std::string text;
  for (const OptionRow& row : command.rows) {
    for (const std::string& name : names_of(row)) {
      text += line(condition, str("-l ", name.substr(2), taken(row)), row.help);
    }
  }
  const ValueShape shape = shape_of(command.words == nullptr ? "TEXT" : command.words);
  if (!shape.choices.empty()) {
    text += line(condition, str("-a '", joined(shape.choices), "'"), command.summary);
  }
  return text + line(condition, "-l help", "shows the options");
}

}  // namespace

std::string fish_completion() {
  std::string text = kBegin;
  for (const FirstWord& first : first_words()) {
    text += line("__nvllm_launch_after", "-a " + first.name, first.summary);
    for (const Command* const command : first.commands) {
      const std::string second = second_word(*command);
      if (!second.empty()) {
        text += line(
            "__nvllm_launch_after " + first.name + "; and test (count (commandline -opc)) -eq 2",
            "-a " + second, command->summary);
      }
      text += option_lines(str("__nvllm_launch_after ", command->name), *command);
      if (command->name == std::string_view("chat")) {
        text += option_lines("__nvllm_launch_unnamed", *command);
      }
    }
  }
  return text;
}

}  // namespace nvllm::launcher
