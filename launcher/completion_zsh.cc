// zsh: _arguments does the work; each command is one list of its specifications.
#include "base/text.h"
#include "launcher/completion_words.h"

namespace nvllm::launcher {
namespace {

constexpr const char* kBegin =
    R"(#compdef nvllm-launch
# Completion of nvllm-launch in zsh, made by: nvllm-launch completion zsh
# For good: nvllm-launch completion zsh >~/.zfunc/_nvllm-launch, with fpath+=~/.zfunc before compinit
# In this shell only: source <(nvllm-launch completion zsh)

)";

constexpr const char* kEnd = R"(
if [[ $funcstack[1] == _nvllm-launch ]]; then
  _nvllm-launch "$@"
else
  compdef _nvllm-launch nvllm-launch
fi
)";

// What an option or a word may be: ":value:(auto bfloat16)", ":file:_files", ": : ".
std::string action(const ValueShape& shape) {
  if (shape.file) return ":file:_files";
  if (shape.choices.empty()) return ":value: ";
  return str(":value:(", joined(shape.choices), ")");
}

// Within single quotes.
std::string quoted(const std::string& text) {
  return replaced(text, "'", [](char) { return std::string("'\\''"); });
}

// What _arguments shows beside an option: its own signs get a backslash.
std::string explanation(std::string_view help) {
  const auto escaped = [](char c) { return std::string("\\") + c; };
  return quoted(replaced(short_help(help), "[]:\\", escaped));
}

// "'*--dtype=[the type]:value:(auto bfloat16)'"; * since the last one counts.
std::string argument_lines(const Command& command) {
  std::string text = "    '(-)--help[shows the options]'\n";
  for (const OptionRow& row : command.rows) {
    for (const std::string& name : names_of(row)) {
      text += str("    '*", name, row.value != nullptr ? "=" : "", "[", explanation(row.help), "]",
                  row.value != nullptr ? action(shape_of(row.value)) : "", "'\n");
    }
  }
  if (command.words != nullptr) text += str("    '*", action(shape_of(command.words)), "'\n");
  return text;
}

// more: what comes before the list.
std::string arguments_case(const std::string& pattern, const Command& command,
                           const std::string& more = "") {
  return str("  (", pattern, ")\n", more, "  arguments=(\n", argument_lines(command), "  ) ;;\n");
}

// "    'chat:talks with a model'"
std::string described(const std::string& name, std::string_view help) {
  return str("    '", name, ':', quoted(short_help(help)), "'\n");
}

}  // namespace

std::string zsh_completion() {
  std::string firsts, cases, parts, unnamed;
  for (const FirstWord& first : first_words()) {
    firsts += described(first.name, first.summary);
    std::string seconds;
    for (const Command* const command : first.commands) {
      cases += arguments_case(str('"', command->name, '"'), *command);
      if (command->name == std::string_view("chat")) {
        unnamed = arguments_case("*", *command, "  named=\n");
      }
      if (first.has_second()) seconds += described(second_word(*command), command->summary);
    }
    if (!first.has_second()) continue;
    parts += str("  if [[ $command == ", first.name, " ]]; then\n",
                 "    if ((CURRENT == 3)); then\n      local -a seconds=(\n", seconds, "      )\n",
                 "      _describe command seconds\n      return\n    fi\n",
                 "    command=\"$command $words[3]\"\n    shift words\n    ((CURRENT--))\n  fi\n");
  }
  return str(kBegin, "_nvllm-launch() {\n  local -a commands=(\n", firsts, "  )\n",
             "  if ((CURRENT == 2)) && [[ $words[2] != -* ]]; then\n",
             "    _describe command commands\n    return\n  fi\n",
             "  local command=$words[2] named=1\n", parts, "  local -a arguments\n",
             "  case $command in\n", cases, unnamed, "  esac\n",
             "  if [[ $named ]]; then\n    shift words\n    ((CURRENT--))\n  fi\n",
             "  _arguments -S $arguments\n}\n", kEnd);
}

}  // namespace nvllm::launcher
