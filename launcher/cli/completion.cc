// bash: one function, which finds the command and then looks its options and their values up in `case`s.
#include "base/text.h"
#include "launcher/completion_words.h"

namespace nvllm::launcher {
namespace {

constexpr const char* kBegin =
    R"(# Completion of nvllm-launch in bash, made by: nvllm-launch completion bash
# For good: nvllm-launch completion bash >~/.local/share/bash-completion/completions/nvllm-launch
# In this shell only: source <(nvllm-launch completion bash)

# Sets of one command: `options`, and of what stands before the cursor (`option`), what may follow:
# `words`, `files`, or `value` if nothing can be offered.
)";

// A value after "=" is a word of its own to bash, since "=" parts words (COMP_WORDBREAKS).
constexpr const char* kFunction = R"(
_nvllm_launch() {
  local current=${COMP_WORDS[COMP_CWORD]} option=${COMP_WORDS[COMP_CWORD - 1]}
  if [[ $current == '=' ]]; then
    current=
  elif [[ $option == '=' ]] && ((COMP_CWORD > 1)); then
    option=${COMP_WORDS[COMP_CWORD - 2]}
  fi
  local options= words= files= value= first=${COMP_WORDS[1]} second=
  ((COMP_CWORD > 1)) || first=
  ((COMP_CWORD > 2)) && second=${COMP_WORDS[2]}
  _nvllm_launch_tables
  COMPREPLY=()
  if [[ $words || $value ]]; then
    :
  elif [[ $current == -* ]]; then
    words=$options files=
  fi
  [[ $words ]] && COMPREPLY=($(compgen -W "$words" -- "$current"))
  if [[ $files ]]; then
    compopt -o filenames 2>/dev/null
    local IFS=$'\n'
    COMPREPLY+=($(compgen -f -- "$current"))
  fi
}
complete -F _nvllm_launch nvllm-launch
)";

// "    --dtype) words='auto bfloat16' ;;"
std::string value_case(const OptionRow& row) {
  if (row.value == nullptr) return "";
  const ValueShape shape = shape_of(row.value);
  std::string action;
  if (!shape.choices.empty()) action += str(" words='", joined(shape.choices), "'");
  if (shape.file) action += " files=1";
  if (offers_nothing(shape)) action += " value=1";
  return str("        ", joined(names_of(row), " | "), ")", action, " ;;\n");
}

// The body of one command's branch. more: other options of this place.
std::string branch(const Command& command, const std::string& more) {
  std::string options = "--help" + more;
  std::string values;
  for (const OptionRow& row : command.rows) {
    options += str(' ', joined(names_of(row)));
    values += value_case(row);
  }
  std::string text = str("      options='", options, "'\n");
  const ValueShape shape = shape_of(command.words == nullptr ? "TEXT" : command.words);
  text += str("      case $option in\n", values);
  if (!shape.choices.empty()) {
    text += str("        *) [[ $current == -* ]] || words='", joined(shape.choices), "' ;;\n");
  }
  return text + "      esac\n";
}

std::string tables() {
  std::vector<std::string> firsts;
  std::string text = "_nvllm_launch_tables() {\n  case \"$first $second\" in\n";
  const Command* unnamed = nullptr;
  for (const FirstWord& first : first_words()) {
    firsts.push_back(first.name);
    std::vector<std::string> seconds;
    for (const Command* const command : first.commands) {
      if (command->name == std::string_view("chat")) unnamed = command;
      const std::string pattern =
          first.has_second() ? str('\'', command->name, "'") : str('\'', first.name, " '*");
      text += str("    ", pattern, ")\n", branch(*command, ""), "      ;;\n");
      seconds.push_back(second_word(*command));
    }
    if (!first.has_second()) continue;
    text += str("    '", first.name, " '*) words='", joined(seconds), " --help' ;;\n");
  }
  // No command yet, or none at all: a chat.
  text += str("    *)\n", branch(*unnamed, " --version"));
  text +=
      str("      [[ -z $first && $current != -* ]] && words='", joined(firsts), "'\n      ;;\n");
  return text + "  esac\n}\n";
}

}  // namespace

std::string bash_completion() {
  return kBegin + tables() + kFunction;
}

}  // namespace nvllm::launcher
