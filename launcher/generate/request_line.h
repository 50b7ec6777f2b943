// One line of the input of `generate`: a JSON object with a prompt, and any field of SamplingParams
// under its name in vLLM. A prompt is token ids, a text to be continued, or a conversation to be
// answered:
//   {"id": "a", "prompt_token_ids": [1, 2, 3], "max_tokens": 8, "logit_bias": {"7": -100}}
//   {"prompt": "Once upon a time", "stop": ["\n\n"]}
//   {"messages": [{"role": "user", "content": "Hi"}],
//    "chat_template_kwargs": {"enable_thinking": false}}
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "launcher/session/text_input.h"
#include "runtime/request.h"

namespace nvllm::launcher {

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
