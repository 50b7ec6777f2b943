// Lines of the output of `generate`: JSON objects, each with its newline.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/generate/text_input.h"
#include "runtime/request.h"

namespace nvllm::launcher {

// What a request was, as its answers show it.
struct Asked {
  std::uint64_t line = 0;  // of the input, from 1; of the command line, which prompt
  std::string id = "";     // as JSON; empty: none
  std::vector<std::int32_t> prompt = {};
  std::int32_t n = 1;
  std::vector<std::int32_t> stop_token_ids = {};
  bool logprobs = false, prompt_logprobs = false;
  TextRules text = {};
};

// All that came of one answer.
struct Answer {
  std::vector<std::int32_t> tokens;
  std::vector<runtime::TokenLogprobs> logprobs;
  std::optional<std::string> text = std::nullopt;  // nothing: there is no tokenizer
  std::string stop_string = "";                    // that ended it
  runtime::FinishReason finish = runtime::FinishReason::none;
  std::int32_t cached_tokens = 0;
  std::int32_t preemptions = 0;
  std::string kv_mode;
  runtime::RequestTimes times;
};

// {"id": ..., "line": ..., "index": ..., "prompt_token_ids": [...], "token_ids": [...], ...}
void append_answer_line(std::string& out, const Asked& asked, std::int32_t index,
                        const Answer& answer,
                        const std::vector<runtime::TokenLogprobs>& prompt_logprobs);

// What is new of an answer: {"id": ..., "line": ..., "index": ..., "delta": "...", "token_ids": [...]}
void append_piece_line(std::string& out, const Asked& asked, std::int32_t index,
                       std::string_view text, const std::vector<std::int32_t>& tokens);

// {"id": ..., "line": ..., "error": "..."}
void append_error_line(std::string& out, std::uint64_t line, std::string_view id,
                       std::string_view error);

}  // namespace nvllm::launcher
