#include "launcher/chat/streamed_answer.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "launcher/chat/answer_text.h"
#include "launcher/session/text_table.h"
#include "tokenizer/unicode/utf8.h"

namespace nvllm::launcher {

namespace {

using runtime::FinishReason;
using runtime::Update;

constexpr Nanoseconds kPollInterval = std::chrono::milliseconds(20);

// Prompt tokens that the engine has computed or found in its cache since it was opened.
std::uint64_t tokens_read(const runtime::EngineClient& client) {
  return client.load().completed_rows + client.load().prefix.hit_tokens;
}

// One answer while it is being generated.
class Stream {
 public:
  Stream(runtime::EngineClient& client, const AnswerRequest& wanted,
         const tokenizer::Tokenizer& tokenizer, const AnswerSinks& sinks)
      : client_(client), wanted_(wanted), sinks_(sinks), text_(tokenizer, wanted.stops) {
    answer_.prompt_tokens = static_cast<std::int64_t>(wanted.request.prompt.size());
    go_on_behind(wanted.shown);
  }

  StreamedAnswer run() {
    const std::uint64_t read_before = tokens_read(client_);
    client_.submit(wanted_.id, wanted_.request);
    while (!over_ && !out_of_patience()) {
      for (const Update& update : client_.poll(kPollInterval)) {
        if (update.request == wanted_.id) take(update);
      }
      if (over_ || ended_ns_ != 0) continue;
      if (sinks_.reading && answer_.token_ids.empty()) {
        const auto read = static_cast<std::int64_t>(tokens_read(client_) - read_before);
        sinks_.reading(std::min(read, answer_.prompt_tokens));
      }
      if (sinks_.stop && sinks_.stop()) end(FinishReason::abort);
    }
    return std::move(answer_);
  }

 private:
  // Replays the answer's tokens so far. When it was cut off, a possible start of a stop string was
  // shown, and a partial character as U+FFFD; the stream still holds both back.
  void go_on_behind(std::string_view shown) {
    std::string released;
    for (const std::int32_t token : wanted_.first_part) released += push(token);
    if (released.size() >= shown.size()) {
      unseen_ = released.substr(shown.size());
      return;
    }
    if (shown.ends_with(tokenizer::kReplacementCharacter)) {
      half_character_ = tokenizer::kReplacementCharacter.size();
    }
    seen_ = shown.size() - released.size() - half_character_;
  }

  bool out_of_patience() const {
    return ended_ns_ != 0 && Nanoseconds(now_ns() - ended_ns_) > kStopPatience;
  }

  void take(const Update& update) {
    if (!update.error.empty()) fail(update.error);
    for (const std::int32_t token : update.tokens) {
      if (ended_ns_ != 0) break;
      answer_.token_ids.push_back(token);
      answer_.total_s = seconds_since(submitted_ns_);
      if (answer_.tokens() == 1) answer_.first_token_s = answer_.total_s;
      show(push(token));
      if (text_.stopped()) end(FinishReason::stop);
    }
    if (update.finish == FinishReason::none) return;
    over_ = true;
    answer_.cached_tokens = update.cached_tokens;
    if (ended_ns_ != 0) return;
    answer_.finish = update.finish;
    show(text_.finish());
  }

  std::string push(std::int32_t token) {
    return text_.push(static_cast<tokenizer::TokenId>(token));
  }

  void show(std::string piece) {
    const std::size_t seen = std::min(seen_, piece.size());
    seen_ -= seen;
    piece = std::exchange(unseen_, {}) + piece.substr(seen);
    if (piece.empty()) return;
    answer_.text += piece;
    sinks_.text(piece);
    answer_.replaced = half_character_;
  }

  void end(FinishReason why) {
    if (why == FinishReason::stop) answer_.replaced = seen_ + half_character_;
    answer_.finish = why;
    ended_ns_ = now_ns();
    client_.abort(wanted_.id);
  }

  runtime::EngineClient& client_;
  const AnswerRequest& wanted_;
  const AnswerSinks& sinks_;
  AnswerText text_;
  StreamedAnswer answer_;
  const std::int64_t submitted_ns_ = now_ns();
  // For a continued answer: bytes of the coming text that were already shown, the size of the
  // U+FFFD after them, and text of its first part that was not shown.
  std::size_t seen_ = 0, half_character_ = 0;
  std::string unseen_;
  std::int64_t ended_ns_ = 0;  // when this side ended it; 0: not ended
  bool over_ = false;          // the engine has sent its last update
};

}  // namespace

std::string StreamedAnswer::statistics() const {
  std::string text = "no token";
  if (tokens() > 0) {
    // The decode speed excludes the first token, whose time includes the prefill.
    const double decode_s = total_s - first_token_s;
    text = str(counted(tokens(), "token"), " in ", format_duration(total_s));
    if (tokens() > 1 && decode_s > 0) {
      text += str(", ", fixed(static_cast<double>(tokens() - 1) / decode_s, 1), " tok/s");
    }
    text += str("; TTFT ", format_duration(first_token_s));
  }
  text += str("; prompt ", counted(prompt_tokens, "token"));
  if (cached_tokens > 0) text += str(" (", cached_tokens, " cached)");
  return text;
}

StreamedAnswer stream_answer(runtime::EngineClient& client, const AnswerRequest& wanted,
                             const tokenizer::Tokenizer& tokenizer, const AnswerSinks& sinks) {
  return Stream(client, wanted, tokenizer, sinks).run();
}

std::string PromptProgress::update(std::int64_t read_tokens, std::int64_t now_ns) {
  constexpr Nanoseconds kEvery = std::chrono::milliseconds(100);
  if (now_ns - started_ns_ < kNothingBefore.count()) return "";
  if (shown_ns_ != 0 && now_ns - shown_ns_ < kEvery.count()) return "";
  shown_ns_ = now_ns;
  const double done = prompt_tokens_ == 0
                          ? 1
                          : static_cast<double>(read_tokens) / static_cast<double>(prompt_tokens_);
  std::string text = str("reading the prompt: ", read_tokens, " of ", prompt_tokens_, " tokens");
  if (read_tokens > 0 && read_tokens < prompt_tokens_) {
    const double seconds = static_cast<double>(now_ns - started_ns_) * 1e-9;
    text += str(", ", format_duration(seconds / done * (1 - done)), " left");
  }
  if (text == shown_) return "";
  shown_ = text;
  return kClearLine + text;
}

std::string PromptProgress::finish() {
  if (shown_.empty()) return "";
  shown_.clear();
  return kClearLine;
}

}  // namespace nvllm::launcher
