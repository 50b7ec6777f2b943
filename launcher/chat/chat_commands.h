// What a person may say to the program in a chat: /help, /reset and so on.
#pragma once

#include <string>

#include "launcher/chat/talk.h"

namespace nvllm::launcher {

// What there has been so far.
struct ChatTotals {
  std::int64_t answers = 0, tokens = 0;
  std::string last;  // statistics of the last answer
};

struct CommandResult {
  std::string text;  // to be shown
  bool exit = false;
};

// `line` begins with a slash. An Error, which is to be shown, for what cannot be done.
CommandResult run_chat_command(const std::string& line, Talk& talk, const ChatTotals& totals);

}  // namespace nvllm::launcher
