// One choice of a response while it is generated. AnswerStream detokenizes the engine's tokens,
// ends the text at stop strings, and parses it for reasoning and tool calls. AnswerBlocks makes a
// sequence of blocks of it, for the APIs that answer in such a form.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/serve/parsers/output_parser.h"
#include "runtime/request.h"
#include "tokenizer/stream.h"

namespace nvllm::launcher {

// How answers to a request are processed. Shared by all of them.
struct AnswerOptions {
  std::shared_ptr<const tokenizer::StopStrings> stop = nullptr;  // null: none
  std::int64_t min_tokens = 0;  // no stop strings are matched before this
  bool include_stop_str_in_output = false;
  bool skip_special_tokens = true;
  std::vector<tokenizer::TokenId> kept_special_tokens = {};  // special tokens that the parser needs
  std::vector<std::int32_t> stop_token_ids = {};
  bool keep_token_ids = false;
  bool keep_logprobs = false;
  bool include_reasoning = true;
  bool parallel_tool_calls = true;  // false: only the first call of an answer
};

// New output of an answer that was not yet taken.
struct AnswerDelta {
  OutputDelta text = {};  // with one entry per tool call
  std::vector<std::int32_t> token_ids = {};
  std::vector<runtime::TokenLogprobs> logprobs = {};

  bool empty() const { return text.empty() && token_ids.empty() && logprobs.empty(); }
  void clear();  // keeps the memory of the texts
};

// Why an answer ended: the stop string, or one of stop_token_ids. Neither: EOS, or the length.
struct StopReason {
  std::string text = "";
  std::optional<std::int32_t> token = std::nullopt;
};

// Used by one thread at a time.
class AnswerStream {
 public:
  // tokenizer: nullptr: no text. parser: nullptr: all text is content. Tokenizer and options must
  // outlive it.
  AnswerStream(const tokenizer::Tokenizer* tokenizer, const AnswerOptions& options,
               std::unique_ptr<OutputParser> parser);

  // Updates after a stop string have no effect.
  void apply(const runtime::Update& update);

  AnswerDelta& delta() { return delta_; }
  // Tokens of the answer, including those of a stop string and EOS.
  std::int64_t tokens() const { return tokens_; }

  // Whether the text is complete; the engine may still be generating.
  bool ended() const { return !finish_reason_.empty(); }
  bool met_stop_string() const { return !stop_reason_.text.empty(); }
  // "stop", "length", "tool_calls", "abort"; empty before the end.
  std::string_view finish_reason() const { return finish_reason_; }
  const StopReason& stop_reason() const { return stop_reason_; }

 private:
  void add_text(std::string_view text);
  void add_parsed(OutputDelta delta);
  std::size_t detokenize(const runtime::Update& update);
  void end(const runtime::Update& update);

  const AnswerOptions& options_;
  std::optional<tokenizer::StreamDetokenizer> detokenizer_;
  std::unique_ptr<OutputParser> parser_;
  AnswerDelta delta_;
  std::int64_t tokens_ = 0;
  std::string_view finish_reason_;
  StopReason stop_reason_;
};

struct AnswerBlock {
  enum class Kind { reasoning, text, tool_call };
  Kind kind = Kind::text;
  std::string id = "", name = "";  // of a tool call
  std::string text = "";           // so far; of a tool call: its arguments
};

// Used by one thread at a time.
class AnswerBlocks {
 public:
  // Receives what a stream writes. Blocks are numbered from 0.
  class Listener {
   public:
    virtual ~Listener() = default;
    virtual void opened(std::size_t index, const AnswerBlock& block) = 0;
    virtual void grew(std::size_t index, const AnswerBlock& block, std::string_view by) = 0;
    virtual void closed(std::size_t index, const AnswerBlock& block) = 0;
  };

  // At most one block is open. White space alone opens none: models write it between reasoning and
  // calls.
  void add(const OutputDelta& delta, Listener* listener = nullptr);
  // The answer has ended.
  void close(Listener* listener = nullptr);

  const std::vector<AnswerBlock>& blocks() const { return blocks_; }

 private:
  void add_text(AnswerBlock::Kind kind, std::string_view text, Listener* listener);
  void add_tool_call(const ToolCallDelta& call, Listener* listener);
  void open(AnswerBlock block, Listener* listener);
  void grow(std::string_view text, Listener* listener);

  std::vector<AnswerBlock> blocks_;
  bool open_ = false;  // the last one may grow
  std::string space_;  // not yet part of a block
};

}  // namespace nvllm::launcher
