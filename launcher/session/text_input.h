// TextInput: turns the text of requests, as users write it, into token ids.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "launcher/session/text_model.h"

namespace nvllm::launcher {

// Text options of a request.
struct TextRules {
  std::vector<std::string> stop;  // strings that end an answer and are not part of it
  bool skip_special_tokens = true;
};

// TextInput: turns the text of requests into token ids. Immutable; the model must outlive it.
class TextInput {
 public:
  TextInput(const TextModel& model, std::vector<std::string> stop)
      : model_(model), defaults_{.stop = std::move(stop)} {}

  const TextModel& model() const { return model_; }
  // For requests that do not specify them.
  const TextRules& defaults() const { return defaults_; }

  // A prompt to be continued.
  std::vector<std::int32_t> encode_prompt(std::string_view text) const;
  // A line's "messages" with its "tools" and "chat_template_kwargs". It takes the whole line
  // because keys must keep their order.
  std::vector<std::int32_t> encode_messages(std::string_view line) const;
  // The token sequences that spell a word at the start of a text and after a space, as in vLLM.
  std::vector<std::vector<std::int32_t>> encode_bad_word(std::string_view word) const;

 private:
  const TextModel& model_;
  TextRules defaults_;
};

}  // namespace nvllm::launcher
