#include "launcher/chat/streamed_answer.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "launcher/session/text_table.h"
#include "tokenizer/unicode/utf8.h"

namespace nvllm::launcher {
namespace {

constexpr std::string_view kBegin = "<think>\n", kEnd = "\n</think>\n\n";

OutputParserOptions channel_options() {
  return {.reasoning_parser = "openai_gptoss"};
}

constexpr std::string_view kOpenTag = "<think>", kCloseTag = "</think>";
constexpr const char *kDim = "\033[2m", *kPlain = "\033[0m";

// How many of the text's last bytes may be the start of the tag.
std::size_t started(std::string_view text, std::string_view tag) {
  for (std::size_t size = std::min(text.size(), tag.size() - 1); size > 0; --size) {
    if (text.ends_with(tag.substr(0, size))) return size;
  }
  return 0;
}

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
         const tokenizer::Tokenizer& tokenizer, const AnswerCallbacks& callbacks)
      : client_(client), wanted_(wanted), callbacks_(callbacks), text_(tokenizer, wanted.stops) {
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
      if (callbacks_.reading && answer_.token_ids.empty()) {
        const auto read = static_cast<std::int64_t>(tokens_read(client_) - read_before);
        callbacks_.reading(std::min(read, answer_.prompt_tokens));
      }
      if (callbacks_.stop && callbacks_.stop()) end(FinishReason::abort);
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
    callbacks_.text(piece);
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
  const AnswerCallbacks& callbacks_;
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

bool writes_channels(const tokenizer::Tokenizer& tokenizer) {
  for (const std::string_view tag : {"<|start|>", "<|channel|>", "<|message|>"}) {
    const auto id = tokenizer.token_id(tag);
    if (!id || !tokenizer.is_special(*id)) return false;
  }
  return true;
}

std::string without_reasoning(std::string_view text) {
  if (!text.starts_with(kBegin)) return std::string(text);
  const std::size_t end = text.find(kEnd);
  return end == std::string_view::npos ? "" : std::string(text.substr(end + kEnd.size()));
}

AnswerText::AnswerText(const tokenizer::Tokenizer& tokenizer, std::vector<std::string> stops)
    : channels_(writes_channels(tokenizer) ? make_output_parser(channel_options()) : nullptr),
      tokens_(tokenizer,
              {.kept_special_tokens = channels_ ? kept_tokens(channel_options(), tokenizer)
                                                : std::vector<tokenizer::TokenId>{},
               .stop_strings = std::move(stops)}) {}

std::string AnswerText::push(tokenizer::TokenId id) {
  return translated(tokens_.push(id));
}

std::string AnswerText::finish() {
  std::string text = translated(tokens_.finish());
  if (channels_) text += with_tags(channels_->finish());
  return text;
}

// Byte by byte, so that the order of reasoning and content is kept.
std::string AnswerText::translated(const std::string& text) {
  if (!channels_) return text;
  std::string all;
  for (const char& byte : text) all += with_tags(channels_->push({&byte, 1}));
  return all;
}

std::string AnswerText::with_tags(const OutputDelta& delta) {
  std::string text;
  if (!delta.reasoning.empty()) {
    if (!std::exchange(reasons_, true)) text += kBegin;
    text += delta.reasoning;
  }
  if (!delta.content.empty()) {
    if (std::exchange(reasons_, false)) text += kEnd;
    text += delta.content;
  }
  return text;
}

ThinkingText::ThinkingText(bool dimmed, bool thinking) : dimmed_(dimmed), thinking_(thinking) {}

std::string ThinkingText::push(std::string_view piece) {
  if (!dimmed_) return std::string(piece);
  std::string all = std::exchange(held_, {}).append(piece);
  std::string out;
  while (true) {
    const std::string_view tag = thinking_ ? kCloseTag : kOpenTag;
    const std::size_t at = all.find(tag);
    const bool found = at != std::string::npos;
    const std::size_t size =
        found ? at + (thinking_ ? tag.size() : 0) : all.size() - started(all, tag);
    if (size > 0) out += thinking_ ? kDim + all.substr(0, size) + kPlain : all.substr(0, size);
    all.erase(0, size);
    if (!found) break;
    thinking_ = !thinking_;
  }
  held_ = std::move(all);
  return out;
}

std::string ThinkingText::finish() {
  if (held_.empty()) return "";
  return thinking_ ? kDim + std::exchange(held_, {}) + kPlain : std::exchange(held_, {});
}

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
                             const tokenizer::Tokenizer& tokenizer,
                             const AnswerCallbacks& callbacks) {
  return Stream(client, wanted, tokenizer, callbacks).run();
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
