// ChatCommands: runs the commands of a chat ("/save talk.json").
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "launcher/chat/chat_line.h"
#include "launcher/chat/chat_session.h"
#include "launcher/chat/chat_settings.h"

namespace nvllm::launcher {

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
  std::string model(const std::string& words) const;
  std::string show() const;
  std::string system(const std::string& words);
  std::string set(const std::string& words);
  std::string save(const std::string& words);
  std::string load(const std::string& words);
  std::string stats() const;

  ChatSession& chat_;
  const ChatTotals& totals_;
  const Setup setup_;
  ChatSettings settings_;
};

// Replaces a "~" at the start of the path by the home folder.
std::string expand_home(const std::string& path);

}  // namespace nvllm::launcher
