// What the scripts of all shells are made from. Internal to completion*.cc.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "launcher/options.h"
#include "launcher/value_shape.h"

namespace nvllm::launcher {

std::string bash_completion();
std::string zsh_completion();
std::string fish_completion();

// The names of an option, "--tp" and "--tensor-parallel-size".
std::vector<std::string> names_of(const OptionRow& row);

// Commands of one word, and the first words of the others, each once: "chat", "bench"; with a summary.
struct FirstWord {
  std::string name, summary;
  std::vector<const Command*> commands;  // with this first word
  bool has_second() const { return std::string_view(commands.front()->name) != name; }
};
std::vector<FirstWord> first_words();
// "latency" of "bench latency"; empty if there is none.
std::string second_word(const Command& command);

// What is offered as a value: words, files, or nothing.
inline bool offers_nothing(const ValueShape& shape) {
  return !shape.file && shape.choices.empty();
}

// The words with spaces between them.
std::string joined(const std::vector<std::string>& words, std::string_view separator = " ");

// The beginning of a help text, in one line.
std::string short_help(std::string_view help);

// Every one of these characters becomes what stands for it.
std::string replaced(std::string_view text, std::string_view characters,
                     std::string (*replacement)(char));

}  // namespace nvllm::launcher
