// Conversation: what was said, as messages, and as the token ids that a model is to go on with.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "launcher/text_model.h"

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
  // The system's message comes first; empty: there is none.
  void set_system(std::string content);
  void drop_last() { messages_.pop_back(); }
  // All but the system's.
  void reset();
  const std::vector<Message>& messages() const { return messages_; }

  struct Prompt {
    std::vector<std::int32_t> ids;
    bool thinking = false;      // the template has begun a thought already
    std::size_t forgotten = 0;  // messages that went, so that it fits
  };
  // What comes before the next answer, in at most `limit` tokens: while it is longer, the oldest question goes
  // with its answer. An Error if the last message alone is too long; nothing has gone then.
  Prompt prompt(std::size_t limit);

  // {"messages": [{"role": ..., "content": ...}, ...]}
  std::string to_json() const;
  // An Error says what is wrong with it; the conversation stays as it is then.
  void from_json(const std::string& text);

 private:
  std::string render(const std::vector<Message>& messages) const;

  const TextModel& model_;
  std::vector<Message> messages_;
};

}  // namespace nvllm::launcher
