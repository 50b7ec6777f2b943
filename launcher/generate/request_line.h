// One line of the input of `generate`: a JSON object with a prompt, and any field of SamplingParams
// under its name in vLLM. A prompt is token ids, a text to be continued, or a conversation to be
// answered:
//   {"id": "a", "prompt_token_ids": [1, 2, 3], "max_tokens": 8, "logit_bias": {"7": -100}}
//   {"prompt": "Once upon a time", "stop": ["\n\n"]}
//   {"messages": [{"role": "user", "content": "Hi"}],
//    "chat_template_kwargs": {"enable_thinking": false}}
// Or it is a line of a batch, as OpenAI's API for batches has it, whose body an endpoint of the
// server reads:
//   {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {...}}
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "launcher/session/text_input.h"
#include "runtime/request.h"

namespace nvllm::launcher {

// What a line of a batch asks for.
struct BatchRequest {
  std::string url;   // "/v1/completions"
  std::string body;  // JSON
};

// A parsed line: either a request, of one kind or the other, or the error why there is none.
struct RequestLine {
  std::string id = "";  // as JSON: "\"a\"", "7"; empty: it has none. Of a batch: its custom_id
  std::optional<runtime::Request> request = std::nullopt;
  bool batch = false;  // it is a line of a batch, even if it cannot be read
  std::optional<BatchRequest> batch_request = std::nullopt;
  std::string error = "";
  std::string error_param = "";  // of a batch: the field that is to blame
  TextRules text = {};
};

// defaults: the values of fields that the line does not have. It throws nothing: whatever is wrong
// with a line is RequestLine::error, in one line, and the others go on. text: null if the model has
// no tokenizer; then text is refused.
RequestLine parse_request_line(std::string_view line, const runtime::SamplingParams& defaults,
                               const TextInput* text = nullptr);

}  // namespace nvllm::launcher
