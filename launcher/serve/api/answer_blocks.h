// AnswerBlocks: an answer as a sequence of blocks: reasoning, text, tool calls. Anthropic's
// messages (content blocks) and OpenAI's responses (output items) have this form.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/serve/parsers/output_parser.h"

namespace nvllm::launcher {

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
