// The response object of OpenAI's Responses API, and the items of its output.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/serve/api/answer_blocks.h"
#include "launcher/serve/api/generation_call.h"
#include "launcher/serve/api/responses/response_fields.h"

namespace nvllm::launcher {

enum class ResponseStatus { in_progress, completed, incomplete, failed };

// The constant parts of a response in all its states. Immutable.
class ResponseObject {
 public:
  ResponseObject(std::string_view id, std::int64_t created_s, std::string_view model,
                 const ResponseFields& fields);

  struct State {
    ResponseStatus status = ResponseStatus::in_progress;
    const std::vector<AnswerBlock>* blocks = nullptr;  // the output; null: none yet
    const Usage* usage = nullptr;
    std::int64_t reasoning_tokens = 0;
    std::string_view incomplete_reason = "";  // "max_output_tokens"
    std::string_view error = "";              // its message
  };
  void append(std::string& out, const State& state) const;

  // "msg_...": the id of this block.
  std::string item_id(std::size_t index, const AnswerBlock& block) const;
  // An item with its content, or without it (when it is added).
  void append_item(std::string& out, std::size_t index, const AnswerBlock& block,
                   ResponseStatus status, bool with_content) const;

 private:
  std::string id_;    // without its prefix
  std::string head_;  // up to the status
  std::string tail_;  // request values, after the output
};

// {"type": "output_text", ...} or {"type": "reasoning_text", ...}
void append_content_part(std::string& out, const AnswerBlock& block, std::string_view text);

}  // namespace nvllm::launcher
