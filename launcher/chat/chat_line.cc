#include "launcher/chat/chat_line.h"

#include <algorithm>

#include "base/text.h"
#include "launcher/chat/chat_settings.h"
#include "launcher/cli/nearest_name.h"

namespace nvllm::launcher {

const std::vector<CommandName>& command_names() {
  static const std::vector<CommandName> all = {
      {"/help", "", "shows this", "/?"},
      {"/show", "", "shows the model, the conversation and the settings"},
      {"/model", "", "shows the model"},
      {"/system", "[TEXT|-]", "shows the system's message, sets it, or (-) removes it"},
      {"/set", "[NAME [VALUE]]", "shows the settings or sets one: /set temperature 0.7"},
      {"/regen", "", "asks the last question again"},
      {"/continue", "", "goes on with an answer that was cut off or stopped"},
      {"/clear", "", "forgets the conversation, but not the system's message", "/reset"},
      {"/save", "FILE", "writes the whole conversation to a file, as JSON"},
      {"/load", "FILE", "continues one that was saved"},
      {"/stats", "", "shows the figures of the last answer, and of all"},
      {"/bye", "", "leaves; so does Ctrl-D", "/exit"},
      {"/quit", "", "the same"},
  };
  return all;
}

std::string commands_help() {
  std::string text;
  for (const CommandName& command : command_names()) {
    std::string names = command.name;
    if (command.alias != nullptr) names += str(", ", command.alias);
    if (*command.words != '\0') names += str(' ', command.words);
    names.resize(std::max<std::size_t>(names.size() + 2, 22), ' ');
    text += names + command.help + '\n';
  }
  return text +
         "Alt-Enter, Ctrl-J or a backslash at the end of a line begin a new one. Ctrl-C\n"
         "stops an answer, Ctrl-R searches what was entered before. A space before a\n"
         "slash makes a text of it.";
}

ChatLine read_chat_line(const std::string& line) {
  if (!line.starts_with('/')) return {};
  const std::size_t end = std::min(line.find_first_of(" \n"), line.size());
  const std::string name = line.substr(0, end);
  std::string words = line.substr(end);
  words.erase(0, words.find_first_not_of(" \n"));
  words.erase(words.find_last_not_of(" \n") + 1);
  std::vector<std::string> known;
  for (const CommandName& command : command_names()) {
    const bool called = name == command.name || (command.alias != nullptr && name == command.alias);
    // Only a system message may have several lines; other texts of several lines are not commands.
    const bool one_line = words.find('\n') == std::string::npos || name == "/system";
    if (called && one_line) return {ChatLine::Kind::command, command.name, words};
    known.emplace_back(command.name + 1);
    if (command.alias != nullptr) known.emplace_back(command.alias + 1);
  }
  const std::string meant = mistyped_name(std::string_view(name).substr(1), known);
  if (meant.empty() || line.find('\n') != std::string::npos) return {};
  return {ChatLine::Kind::misspelt, "/" + meant, words};
}

std::vector<std::string> complete_command(const std::string& text) {
  std::vector<std::string> all;
  if (!text.starts_with('/')) return all;
  const auto offer = [&](const std::string& input) {
    if (input.starts_with(text)) all.push_back(input);
  };
  for (const CommandName& command : command_names()) {
    const char* const behind = *command.words == '\0' ? "" : " ";
    offer(str(command.name, behind));
    if (command.alias != nullptr) offer(str(command.alias, behind));
  }
  for (const std::string& name : ChatSettings::names()) {
    if (text.starts_with("/set ")) offer("/set " + name + " ");
  }
  return all;
}

}  // namespace nvllm::launcher
