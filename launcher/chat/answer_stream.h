// One answer, shown as it comes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/engine/engine_client.h"
#include "tokenizer/tokenizer.h"

namespace nvllm::launcher {

struct StreamedAnswer {
  std::string text = "";
  std::int64_t tokens = 0, prompt_tokens = 0, cached_tokens = 0;
  double first_token_s = 0;  // from the question on
  double total_s = 0;
  bool interrupted = false;

  // "52 tokens in 1.63 s, 34.1 tok/s; first after 210 ms; prompt 48 tokens (32 cached)"
  std::string statistics() const;
};

struct AnswerSinks {
  std::function<void(std::string_view)> text;  // each new piece
  std::function<bool()> stop;                  // asked several times a second: whether it is enough
};

// Asks and waits for the end. An Error if the request is refused.
StreamedAnswer stream_answer(runtime::EngineClient& client, std::uint64_t id,
                             const runtime::Request& request, const std::vector<std::string>& stops,
                             const tokenizer::Tokenizer& tokenizer, const AnswerSinks& sinks);

}  // namespace nvllm::launcher
