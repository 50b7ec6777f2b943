// Answers that are shown while they are generated. stream_answer() submits a request and waits for
// its StreamedAnswer; until it starts, PromptProgress is shown. AnswerText is the text of its
// tokens, as chats show and store it; ThinkingText formats it for a terminal.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "launcher/serve/parsers/output_parser.h"
#include "runtime/engine/engine_client.h"
#include "runtime/request.h"
#include "tokenizer/stream.h"
#include "tokenizer/tokenizer.h"

namespace nvllm::launcher {

// Whether the model writes messages in channels: its tokenizer has the special tokens for them.
bool writes_channels(const tokenizer::Tokenizer& tokenizer);

// The part of an answer that such a model gets in later prompts: the text without its reasoning.
std::string without_reasoning(std::string_view text);

// One text, in which reasoning is between <think> and </think>. Most models write this form
// themselves. gpt-oss models write messages in channels (launcher/serve/parsers/harmony_parser.cc):
// the reasoning becomes such a block, and the headers are removed.
class AnswerText {
 public:
  // The tokenizer must outlive it. stops: stop strings.
  AnswerText(const tokenizer::Tokenizer& tokenizer, std::vector<std::string> stops);

  // Same as those of StreamDetokenizer.
  std::string push(tokenizer::TokenId id);
  std::string finish();
  bool stopped() const { return tokens_.stopped(); }

 private:
  std::string translated(const std::string& text);
  std::string with_tags(const OutputDelta& delta);

  std::unique_ptr<OutputParser> channels_;  // nullptr: the text is not in channels
  tokenizer::StreamDetokenizer tokens_;
  bool reasons_ = false;  // <think> has been written, but not </think>
};

// Dims the text between <think> and </think>, in a text that arrives in pieces.
class ThinkingText {
 public:
  // dimmed: if false, pieces pass unchanged. thinking: whether the text starts inside <think>.
  ThinkingText(bool dimmed, bool thinking);

  std::string push(std::string_view piece);
  std::string finish();

 private:
  bool dimmed_, thinking_;
  std::string held_;  // may be the start of a tag
};

// Progress of prompts whose prefill takes longer than a second. Not thread-safe.
class PromptProgress {
 public:
  static constexpr Nanoseconds kNothingBefore = std::chrono::seconds(1);

  PromptProgress(std::int64_t prompt_tokens, std::int64_t started_ns)
      : prompt_tokens_(prompt_tokens), started_ns_(started_ns) {}

  // The text to write now, without a newline: it replaces the previous one. May be empty.
  std::string update(std::int64_t read_tokens, std::int64_t now_ns);
  // The text that removes it.
  std::string finish();

 private:
  std::int64_t prompt_tokens_, started_ns_;
  std::int64_t shown_ns_ = 0;  // 0: nothing was shown
  std::string shown_;
};

struct StreamedAnswer {
  std::string text = "";
  std::vector<std::int32_t> token_ids = {};
  std::int64_t prompt_tokens = 0, cached_tokens = 0;
  double first_token_s = 0;  // TTFT
  double total_s = 0;
  // For a continued answer: how many of the last bytes shown before are replaced by the new text,
  // because they started a stop string that is now complete, or a character that is now complete.
  std::size_t replaced = 0;
  // length: it was cut off, at max_tokens or at the end of the context. abort: it was stopped.
  runtime::FinishReason finish = runtime::FinishReason::none;

  std::int64_t tokens() const { return static_cast<std::int64_t>(token_ids.size()); }
  bool interrupted() const { return finish == runtime::FinishReason::abort; }
  bool stopped_before_text() const { return interrupted() && text.empty(); }
  // "52 tokens in 1.63 s, 34.1 tok/s; TTFT 210 ms; prompt 48 tokens (32 cached)"
  std::string statistics() const;
};

struct AnswerCallbacks {
  std::function<void(std::string_view)> text;  // called with each new piece
  std::function<bool()> stop = nullptr;        // called many times a second; true stops the answer
  // Called many times a second before the first token, with the number of prompt tokens processed.
  std::function<void(std::int64_t read)> reading = nullptr;
};

// How long to wait for a stopped answer: the engine handles aborts between steps. After that the
// request is abandoned, and its last updates are ignored.
inline constexpr Nanoseconds kStopPatience = std::chrono::milliseconds(100);

struct AnswerRequest {
  std::uint64_t id = 0;  // greater than those before
  runtime::Request request = {};
  std::vector<std::string> stops = {};  // stop strings
  // To continue an answer: all its tokens so far, and the text shown for them.
  std::vector<std::int32_t> first_part = {};
  std::string shown = "";
};

// Submits a request and waits for the end of its answer; the text is that of its own tokens, and of
// earlier ones not shown yet. Throws an Error if the request is rejected. Requests with smaller ids
// are abandoned ones.
StreamedAnswer stream_answer(runtime::EngineClient& client, const AnswerRequest& wanted,
                             const tokenizer::Tokenizer& tokenizer,
                             const AnswerCallbacks& callbacks);

}  // namespace nvllm::launcher
