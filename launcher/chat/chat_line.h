// ChatLine: what a line of a chat is: a text for the model, or a command that begins with a slash.
#pragma once

#include <string>
#include <vector>

namespace nvllm::launcher {

struct CommandName {
  const char* name;   // "/save"
  const char* words;  // placeholder of what follows, "FILE"; empty: nothing does
  const char* help;
  const char* alias = nullptr;  // another name of the same
};
// In the order of the help.
const std::vector<CommandName>& command_names();
std::string commands_help();

struct ChatLine {
  enum class Kind { text, command, misspelt };
  Kind kind = Kind::text;
  std::string name = "";   // of the command, not its alias; misspelt: of the one that is meant
  std::string words = "";  // what follows it, without spaces around
};

// Only the names of commands are commands: "/usr/bin" begins a text, and so does a space. A word
// that is a command but for a letter is misspelt.
ChatLine read_chat_line(const std::string& line);

// The inputs that a text may be the beginning of, as far as it is a command; the editor's Tab.
std::vector<std::string> complete_command(const std::string& text);

}  // namespace nvllm::launcher
