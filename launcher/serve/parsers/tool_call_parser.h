// The parsers of single formats, among which make_output_parser() chooses: ToolCallParser, the base
// class of those of tool calls, and harmony, which parses whole answers.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/serve/parsers/output_parser.h"
#include "launcher/serve/parsers/stream_matcher.h"

namespace nvllm::launcher {

// Random call ids, determined by a seed.
class CallIds {
 public:
  CallIds(std::uint64_t seed, std::string_view prefix, int length)
      : state_(seed), prefix_(prefix), length_(length) {}
  std::string next();

 private:
  std::uint64_t state_;
  std::string_view prefix_;
  int length_;
};

class ToolCallParser {
 public:
  explicit ToolCallParser(CallIds ids) : ids_(ids) {}
  ToolCallParser(const ToolCallParser&) = delete;
  ToolCallParser& operator=(const ToolCallParser&) = delete;
  virtual ~ToolCallParser() = default;

  // The next byte of the content.
  virtual void push(char byte, OutputDelta& out) = 0;
  void finish(OutputDelta& out);
  bool called() const { return calls_ > 0; }

 protected:
  // Passes held-back text to add_content(), unless it is only the rest of a call's syntax.
  virtual void end(OutputDelta& out) = 0;

  // Text outside of calls.
  void add_content(std::string_view text, OutputDelta& out);
  void begin_call(const std::string& name, OutputDelta& out, std::string id = "");
  void add_arguments(std::string_view text, OutputDelta& out);
  // Pushes a byte into a call's object, and sends what becomes certain.
  CallObject::Step push_object(CallObject& object, char byte, OutputDelta& out);

 private:
  CallIds ids_;
  std::int32_t calls_ = 0;
  // White space at the start and after a call is held back until the next text.
  bool at_edge_ = true;
  std::string white_space_;
};

// Qwen's and Hermes': <tool_call>{"name": ..., "arguments": {...}}</tool_call>, any number of them.
std::unique_ptr<ToolCallParser> make_hermes_parser(std::uint64_t seed);
// Llama 3's: {"name": ..., "parameters": {...}}, several with ; between them, at the beginning of
// the answer or after <|python_tag|>.
std::unique_ptr<ToolCallParser> make_llama3_json_parser(std::uint64_t seed);
// Mistral's: [TOOL_CALLS][{"name": ..., "arguments": {...}}, ...] and [TOOL_CALLS]name{...}, the
// latter also with [ARGS], or [CALL_ID]id[ARGS], after the name.
std::unique_ptr<ToolCallParser> make_mistral_parser(std::uint64_t seed);

// The answers of gpt-oss, in OpenAI's harmony format. An answer consists of messages with headers;
// the first header starts in the prompt:
//
//   <|channel|>analysis<|message|>REASONING<|end|><|start|>assistant<|channel|>final<|message|>TEXT
//   ...<|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>JSON
//
// The recipient ("to=") may also follow the role. <|return|> and <|call|> end an answer.
//
// Messages of the channel analysis are reasoning, those with a recipient calls, all others content,
// including text without a header. Headers are not part of any text. calls: whether messages with a
// recipient are calls; otherwise they are content. seed: for the ids of calls.
std::unique_ptr<OutputParser> make_harmony_parser(bool calls, std::uint64_t seed);
// The tags between messages and in headers.
const std::vector<std::string_view>& harmony_tags();

}  // namespace nvllm::launcher
