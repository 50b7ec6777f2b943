// ChatLine: a parsed line of a chat: a text for the model, or a command that starts with a slash.
#pragma once

#include <string>
#include <vector>

namespace nvllm::launcher {

struct CommandName {
  const char* name;   // "/save"
  const char* words;  // placeholder of its argument, "FILE"; empty: none
  const char* help;
  const char* alias = nullptr;  // another name of the command
};
// In the order of /help.
const std::vector<CommandName>& command_names();
std::string commands_help();

struct ChatLine {
  enum class Kind { text, command, misspelt };
  Kind kind = Kind::text;
  std::string name = "";   // of the command, not its alias; misspelt: of the most similar one
  std::string words = "";  // its argument, trimmed
};

// Only names of commands are commands: "/usr/bin" starts a text, and so does a space. A word that
// differs from a command by one letter is misspelt.
ChatLine read_chat_line(const std::string& line);

// The completions of a text that starts a command; for the editor's Tab.
std::vector<std::string> complete_command(const std::string& text);

}  // namespace nvllm::launcher
