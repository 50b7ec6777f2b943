// Parses one input line of `generate`: a JSON object with a prompt, and any field of SamplingParams
// under its name in vLLM. A prompt is token ids, a text to continue, or a conversation to answer:
//   {"id": "a", "prompt_token_ids": [1, 2, 3], "max_tokens": 8, "logit_bias": {"7": -100}}
//   {"prompt": "Once upon a time", "stop": ["\n\n"]}
//   {"messages": [{"role": "user", "content": "Hi"}],
//    "chat_template_kwargs": {"enable_thinking": false}}
// Alternatively it is a line in the format of OpenAI's batch API, whose body an endpoint of the
// server parses:
//   {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {...}}
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "launcher/session/request_fields.h"
#include "runtime/request.h"

namespace nvllm::launcher {

// The request of a batch line.
struct BatchRequest {
  std::string url;   // "/v1/completions"
  std::string body;  // JSON
};

// A parsed line: a request of either kind, or an error.
struct RequestLine {
  std::string id = "";  // as JSON: "\"a\"", "7"; empty: none. In a batch: its custom_id
  std::optional<runtime::Request> request = std::nullopt;
  bool batch = false;  // whether it is a batch line, even if it is invalid
  std::optional<BatchRequest> batch_request = std::nullopt;
  std::string error = "";
  std::string error_param = "";  // in a batch: the invalid field
  TextRules text = {};
  // The hash of the line, by which --resume sees whether it has changed since it was answered. In
  // valid JSON neither spaces nor the order of names count. Empty: too long, or not from a file.
  std::string hash = "";
};

// defaults: values of fields that the line does not have. Never throws: any failure is stored as
// one line in RequestLine::error. text: nullptr if the model has no tokenizer; then text is
// rejected.
RequestLine parse_request_line(std::string_view line, const runtime::SamplingParams& defaults,
                               const TextInput* text = nullptr);

}  // namespace nvllm::launcher
