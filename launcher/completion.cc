#include "launcher/completion.h"

#include <algorithm>

#include "base/check.h"
#include "launcher/completion_words.h"

namespace nvllm::launcher {

std::vector<std::string> names_of(const OptionRow& row) {
  std::vector<std::string> names = {row.name};
  if (row.second_name != nullptr) names.emplace_back(row.second_name);
  return names;
}

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

std::string second_word(const Command& command) {
  const std::string name = command.name;
  const std::size_t space = name.find(' ');
  return space == std::string::npos ? "" : name.substr(space + 1);
}

std::string joined(const std::vector<std::string>& words, std::string_view separator) {
  std::string text;
  for (const std::string& word : words) {
    if (!text.empty()) text += separator;
    text += word;
  }
  return text;
}

std::string short_help(std::string_view help) {
  std::string text(help.substr(0, help.find(';')));
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

std::string replaced(std::string_view text, std::string_view characters,
                     std::string (*replacement)(char)) {
  std::string out;
  for (const char c : text) {
    out += characters.find(c) == characters.npos ? std::string(1, c) : replacement(c);
  }
  return out;
}

std::string completion_script(const std::string& shell) {
  if (shell == "bash") return bash_completion();
  if (shell == "zsh") return zsh_completion();
  NVLLM_CHECK(shell == "fish", shell);
  return fish_completion();
}

}  // namespace nvllm::launcher
