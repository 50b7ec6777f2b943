// The commands of a chat, which start with a slash ("/save talk.json"): read_chat_line() tells them
// from texts for the model, ChatCommands runs them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "launcher/chat/chat_session.h"
#include "launcher/chat/chat_settings.h"

namespace nvllm::launcher {

struct CommandName {
  const char* name;      // "/save"
  const char* argument;  // placeholder of its argument, "FILE"; empty: none
  const char* help;
  const char* alias = nullptr;  // another name of the command
};
// In the order of /help.
const std::vector<CommandName>& command_names();
std::string commands_help();

// A line of a chat: a text for the model, or a command.
struct ChatLine {
  enum class Kind { text, command, misspelt };
  Kind kind = Kind::text;
  std::string name = "";      // of the command, not its alias; misspelt: of the most similar one
  std::string argument = "";  // its argument, trimmed
};

// Only names of commands are commands: "/usr/bin" starts a text, and so does a space. A word that
// differs from a command by one letter is misspelt.
ChatLine read_chat_line(const std::string& line);

// The completions of a text that starts a command; for the editor's Tab.
std::vector<std::string> complete_command(const std::string& text);

// Totals of the chat so far.
struct ChatTotals {
  std::int64_t answers = 0, tokens = 0;
  std::string last = "";  // statistics of the last answer
};

struct CommandResult {
  enum class Then { next, leave, ask_again, go_on };

  std::string text = "";  // to print
  Then then = Then::next;
};

class ChatCommands {
 public:
  struct Setup {
    std::string model;  // what /model shows
    // Asks the user at the terminal; empty: there is none, and nothing is overwritten.
    std::function<bool(const std::string& question)> confirm = nullptr;
  };
  // All arguments must outlive it.
  ChatCommands(ChatSession& chat, const ChatTotals& totals, Setup setup)
      : chat_(chat),
        totals_(totals),
        setup_(std::move(setup)),
        settings_(chat.sampling(), chat.stops()) {}

  // Throws an Error to be printed if the command fails. `line` is a command, or a misspelt one.
  CommandResult run(const ChatLine& line);

 private:
  std::string model(const std::string& argument) const;
  std::string show() const;
  std::string system(const std::string& argument);
  std::string set(const std::string& argument);
  std::string save(const std::string& argument);
  std::string load(const std::string& argument);
  std::string stats() const;

  ChatSession& chat_;
  const ChatTotals& totals_;
  const Setup setup_;
  ChatSettings settings_;
};

// Replaces a "~" at the start of the path by the home folder.
std::string expand_home(const std::string& path);

}  // namespace nvllm::launcher
