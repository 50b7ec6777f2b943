// Conversation: the messages of a chat, and the prompt (token ids) built from them.
#pragma once

#include <cstddef>
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
  // Sets the system message, which comes first; empty: none.
  void set_system(std::string content);
  std::string system() const;  // empty: there is none
  Message take_last();
  // Removes all messages except the system message.
  void reset();
  // All messages, including those that are forgotten.
  const std::vector<Message>& messages() const { return messages_; }
  // How many of the oldest messages are no longer part of prompts.
  std::size_t forgotten() const { return forgotten_; }
  // Restores the number, after a question was withdrawn, or from a copy of the conversation.
  void restore_forgotten(std::size_t forgotten) { forgotten_ = forgotten; }
  bool ends_with(std::string_view role) const {
    return !messages_.empty() && messages_.back().role == role;
  }

  struct Prompt {
    std::vector<std::int32_t> ids = {};
    bool thinking = false;             // the template ends with <think>
    std::size_t forgotten = 0;         // messages dropped from prompts from now on, so that it fits
    std::string first_forgotten = "";  // the first dropped message
  };
  // The prompt for the next answer, of at most `limit` tokens: while it is longer, the oldest
  // question and its answer are dropped. Throws an Error if the last message alone is too long;
  // nothing is dropped then.
  Prompt prompt(std::size_t limit);

  // {"messages": [{"role": ..., "content": ...}, ...]}
  std::string to_json() const;
  // Throws an Error if the text is no such object; the conversation is unchanged then.
  void from_json(const std::string& text);

 private:
  bool has_system() const { return !messages_.empty() && messages_.front().role == "system"; }
  std::vector<Message> kept(std::size_t forgotten) const;
  std::size_t forget_one_more(std::size_t forgotten) const;
  tokenizer::MarkedText render(const std::vector<Message>& messages) const;

  const TextModel& model_;
  std::vector<Message> messages_;
  std::size_t forgotten_ = 0;  // messages after the system message
};

}  // namespace nvllm::launcher
