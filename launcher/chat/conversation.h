// Conversation: the messages of a chat, and the prompt (token ids) that they make for the model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "launcher/session/text_model.h"

namespace nvllm::launcher {

struct Message {
  std::string role;  // "system", "user", "assistant"
  std::string content;
};

class Conversation {
 public:
  // The model must outlive it, and have a chat template.
  explicit Conversation(const TextModel& model) : model_(model) {}

  void add(std::string role, std::string content) {
    messages_.push_back({std::move(role), std::move(content)});
  }
  // Sets the system message, which comes first; empty: there is none.
  void set_system(std::string content);
  void drop_last() { messages_.pop_back(); }
  // Removes all messages but the system's.
  void reset();
  const std::vector<Message>& messages() const { return messages_; }

  struct Prompt {
    std::vector<std::int32_t> ids;
    bool thinking = false;      // the template ends with <think>
    std::size_t forgotten = 0;  // messages that were removed so that it fits
  };
  // The prompt for the next answer, in at most `limit` tokens: while it is longer, the oldest
  // question and its answer are removed. Throws an Error if the last message alone is too long;
  // nothing is removed then.
  Prompt prompt(std::size_t limit);

  // {"messages": [{"role": ..., "content": ...}, ...]}
  std::string to_json() const;
  // Throws an Error if the text is no such object; the conversation stays as it is then.
  void from_json(const std::string& text);

 private:
  std::string render(const std::vector<Message>& messages) const;

  const TextModel& model_;
  std::vector<Message> messages_;
};

}  // namespace nvllm::launcher
