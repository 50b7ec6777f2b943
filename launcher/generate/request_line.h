// One line of the input of `generate`: a JSON object with a prompt, and any field of SamplingParams
// under its name in vLLM. A prompt is token ids, a text to be continued, or a conversation to be
// answered:
//   {"id": "a", "prompt_token_ids": [1, 2, 3], "max_tokens": 8, "logit_bias": {"7": -100}}
//   {"prompt": "Once upon a time", "stop": ["\n\n"]}
//   {"messages": [{"role": "user", "content": "Hi"}],
//    "chat_template_kwargs": {"enable_thinking": false}}
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/session/text_model.h"
#include "runtime/request.h"

namespace nvllm::launcher {

// The options of a request that are about text.
struct TextRules {
  std::vector<std::string> stop;  // strings that end an answer and are no part of it
  bool skip_special_tokens = true;
};

// TextInput: turns the text of requests into token ids. Immutable; the model must outlive it.
class TextInput {
 public:
  TextInput(const TextModel& model, std::vector<std::string> stop)
      : model_(model), defaults_{.stop = std::move(stop)} {}

  const TextModel& model() const { return model_; }
  // For requests that do not say it themselves.
  const TextRules& defaults() const { return defaults_; }

  // A prompt to be continued.
  std::vector<std::int32_t> encode_prompt(std::string_view text) const;
  // A line's "messages" with its "tools" and "chat_template_kwargs". It takes the whole line
  // because the keys must keep their order.
  std::vector<std::int32_t> encode_messages(std::string_view line) const;
  // The token sequences that spell a word at the beginning of a text and after a space, as in vLLM.
  std::vector<std::vector<std::int32_t>> encode_bad_word(std::string_view word) const;

 private:
  const TextModel& model_;
  TextRules defaults_;
};

// A parsed line: either a request, or the error why there is none.
struct RequestLine {
  std::string id;  // as JSON: "\"a\"", "7"; empty: it has none
  std::optional<runtime::Request> request = std::nullopt;
  std::string error = "";
  TextRules text = {};
};

// defaults: the values of fields that the line does not have. It throws no Error:
// RequestLine::error says in one line what is wrong. text: null if the model has no tokenizer; then
// text is refused.
RequestLine parse_request_line(std::string_view line, const runtime::SamplingParams& defaults,
                               const TextInput* text = nullptr);

}  // namespace nvllm::launcher
