// Completion scripts for bash, zsh and fish, generated from the tables of options.
#include <algorithm>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/text.h"
#include "launcher/cli/option_table.h"

namespace nvllm::launcher {
namespace {

// The names of an option, "--tp" and "--tensor-parallel-size".
std::vector<std::string> names_of(const OptionRow& row) {
  std::vector<std::string> names = {row.name};
  if (row.second_name != nullptr) names.emplace_back(row.second_name);
  return names;
}

// The first words of all commands, without duplicates: "chat", "bench".
struct FirstWord {
  std::string name, summary;
  std::vector<const Command*> commands;  // with this first word
  bool has_second() const { return std::string_view(commands.front()->name) != name; }
};

std::vector<FirstWord> first_words() {
  std::vector<FirstWord> words;
  for (const Command& command : commands()) {
    const std::string name = command.name;
    const std::string first = name.substr(0, name.find(' '));
    const auto same = [&](const FirstWord& word) { return word.name == first; };
    const auto found = std::find_if(words.begin(), words.end(), same);
    if (found == words.end()) {
      words.push_back({.name = first, .summary = command.summary, .commands = {&command}});
    } else {
      found->commands.push_back(&command);
      found->summary = "has several commands";
    }
  }
  return words;
}

// "latency" of "bench latency"; empty if there is none.
std::string second_word(const Command& command) {
  const std::string name = command.name;
  const std::size_t space = name.find(' ');
  return space == std::string::npos ? "" : name.substr(space + 1);
}

std::string joined(const std::vector<std::string>& words, std::string_view separator = " ") {
  std::string text;
  for (const std::string& word : words) {
    if (!text.empty()) text += separator;
    text += word;
  }
  return text;
}

// The start of a help text, in one line.
std::string short_help(std::string_view help) {
  std::string text(help.substr(0, help.find(';')));
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

// Each of these characters is replaced by replacement(character).
std::string replaced(std::string_view text, std::string_view characters,
                     std::string (*replacement)(char)) {
  std::string out;
  for (const char c : text) {
    out += characters.find(c) == characters.npos ? std::string(1, c) : replacement(c);
  }
  return out;
}

// One function, which determines the command and then looks up its options and their values in
// `case`s.
namespace bash {

constexpr const char* kBegin =
    R"(# Completion of nvllm-launch in bash, made by: nvllm-launch completion bash
# For good: nvllm-launch completion bash >~/.local/share/bash-completion/completions/nvllm-launch
# In this shell only: source <(nvllm-launch completion bash)

# Sets `options` of one command and, for the word before the cursor (`option`), what may follow it:
# `words`, `files`, or `value` if nothing can be offered.
)";

// To bash, a value after "=" is a word of its own, since "=" separates words (COMP_WORDBREAKS).
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
  if (!shape.file && shape.choices.empty()) action += " value=1";
  return str("        ", joined(names_of(row), " | "), ")", action, " ;;\n");
}

// The body of one command's branch. more: other options that are valid there.
std::string branch(const Command& command, const std::string& more) {
  std::string options = "--help" + more;
  std::string values;
  for (const OptionRow& row : command.rows) {
    options += str(' ', joined(names_of(row)));
    values += value_case(row);
  }
  std::string text = str("      options='", options, "'\n");
  const ValueShape shape = shape_of(command.positional == nullptr ? "TEXT" : command.positional);
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
  // No command so far: a chat.
  text += str("    *)\n", branch(*unnamed, " --version"));
  text +=
      str("      [[ -z $first && $current != -* ]] && words='", joined(firsts), "'\n      ;;\n");
  return text + "  esac\n}\n";
}

std::string script() {
  return kBegin + tables() + kFunction;
}

}  // namespace bash

// Based on _arguments; each command is one list of its specifications.
namespace zsh {

constexpr const char* kBegin =
    R"(#compdef nvllm-launch
# Completion of nvllm-launch in zsh, made by: nvllm-launch completion zsh
# For good: nvllm-launch completion zsh >~/.zfunc/_nvllm-launch
# (and fpath+=~/.zfunc before compinit)
# In this shell only: source <(nvllm-launch completion zsh)

)";

constexpr const char* kEnd = R"(
if [[ $funcstack[1] == _nvllm-launch ]]; then
  _nvllm-launch "$@"
else
  compdef _nvllm-launch nvllm-launch
fi
)";

// The action for the value of an option or a word: ":value:(auto bfloat16)", ":file:_files", ": :
// ".
std::string action(const ValueShape& shape) {
  if (shape.file) return ":file:_files";
  if (shape.choices.empty()) return ":value: ";
  return str(":value:(", joined(shape.choices), ")");
}

// Escaped for single quotes.
std::string quoted(const std::string& text) {
  return replaced(text, "'", [](char) { return std::string("'\\''"); });
}

// The explanation that _arguments shows for an option: special characters get a backslash.
std::string explanation(std::string_view help) {
  const auto escaped = [](char c) { return std::string("\\") + c; };
  return quoted(replaced(short_help(help), "[]:\\", escaped));
}

// "'*--dtype=[the type]:value:(auto bfloat16)'"; * because an option may be repeated.
std::string argument_lines(const Command& command) {
  std::string text = "    '(-)--help[shows the options]'\n";
  for (const OptionRow& row : command.rows) {
    for (const std::string& name : names_of(row)) {
      text += str("    '*", name, row.value != nullptr ? "=" : "", "[", explanation(row.help), "]",
                  row.value != nullptr ? action(shape_of(row.value)) : "", "'\n");
    }
  }
  if (command.positional != nullptr)
    text += str("    '*", action(shape_of(command.positional)), "'\n");
  return text;
}

// more: precedes the list.
std::string arguments_case(const std::string& pattern, const Command& command,
                           const std::string& more = "") {
  return str("  (", pattern, ")\n", more, "  arguments=(\n", argument_lines(command), "  ) ;;\n");
}

// "    'chat:talks with a model'"
std::string described(const std::string& name, std::string_view help) {
  return str("    '", name, ':', quoted(short_help(help)), "'\n");
}

std::string script() {
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

}  // namespace zsh

// A line for every option of every command.
namespace fish {

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

// "-r -F" for a file, "-x -a 'auto cpu'" for words; nothing for a switch.
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
  const ValueShape shape = shape_of(command.positional == nullptr ? "TEXT" : command.positional);
  if (!shape.choices.empty()) {
    text += line(condition, str("-a '", joined(shape.choices), "'"), command.summary);
  }
  return text + line(condition, "-l help", "shows the options");
}

std::string script() {
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

}  // namespace fish
}  // namespace

std::string completion_script(const std::string& shell) {
  if (shell == "bash") return bash::script();
  if (shell == "zsh") return zsh::script();
  NVLLM_CHECK(shell == "fish", shell);
  return fish::script();
}

}  // namespace nvllm::launcher
