#include "launcher/chat/answer_stream.h"

#include <array>
#include <cstdio>

#include "base/clock.h"
#include "base/error.h"
#include "tokenizer/stream.h"

namespace nvllm::launcher {
namespace {

constexpr Nanoseconds kLookEvery = std::chrono::milliseconds(50);

std::string one_digit(double number) {
  std::array<char, 64> text;
  std::snprintf(text.data(), text.size(), "%.1f", number);
  return text.data();
}

}  // namespace

std::string StreamedAnswer::statistics() const {
  std::string text = "no token";
  if (tokens > 0) {
    // Of the tokens after the first one, which the prompt's time is part of.
    const double decode_s = total_s - first_token_s;
    text = str(tokens, tokens == 1 ? " token in " : " tokens in ", format_duration(total_s));
    if (tokens > 1 && decode_s > 0) {
      text += str(", ", one_digit(static_cast<double>(tokens - 1) / decode_s), " tok/s");
    }
    text += str("; first after ", format_duration(first_token_s));
  }
  text += str("; prompt ", prompt_tokens, prompt_tokens == 1 ? " token" : " tokens");
  if (cached_tokens > 0) text += str(" (", cached_tokens, " cached)");
  return text;
}

StreamedAnswer stream_answer(runtime::EngineClient& client, std::uint64_t id,
                             const runtime::Request& request, const std::vector<std::string>& stops,
                             const tokenizer::Tokenizer& tokenizer, const AnswerSinks& sinks) {
  StreamedAnswer answer{.prompt_tokens = static_cast<std::int64_t>(request.prompt.size())};
  tokenizer::StreamDetokenizer stream(tokenizer, {.stop_strings = stops});
  const std::int64_t asked_ns = now_ns();
  const auto show = [&](const std::string& piece) {
    if (piece.empty()) return;
    answer.text += piece;
    sinks.text(piece);
  };
  bool ended = false;
  client.submit(id, request);
  const auto end = [&] {
    if (!std::exchange(ended, true)) client.abort(id);
  };
  while (client.unfinished() > 0) {
    for (const runtime::Update& update : client.poll(kLookEvery)) {
      if (!update.error.empty()) fail(update.error);
      for (const std::int32_t token : update.tokens) {
        if (ended) break;
        if (answer.tokens++ == 0) answer.first_token_s = seconds_since(asked_ns);
        answer.total_s = seconds_since(asked_ns);
        show(stream.push(static_cast<tokenizer::TokenId>(token)));
        if (stream.stopped()) end();
      }
      if (update.finish != runtime::FinishReason::none) {
        answer.cached_tokens = update.cached_tokens;
        if (!ended) show(stream.finish());
      }
    }
    if (!ended && sinks.stop && sinks.stop()) {
      answer.interrupted = true;
      end();
    }
  }
  return answer;
}

}  // namespace nvllm::launcher
