// OutputParser: finds reasoning and tool calls in the text that a model writes, while it comes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace nvllm::launcher {

// A part of a tool call. The first of a call has its id and name; the arguments' JSON text comes in
// any number of parts.
struct ToolCallDelta {
  std::int32_t index = 0;  // of the call within the answer
  std::string id = "";     // "call_..." (Mistral: nine characters); only with the first part
  std::string name = "";   // only with the first part
  std::string arguments = "";
};

// What is new of an answer.
struct OutputDelta {
  std::string reasoning = "";
  std::string content = "";
  std::vector<ToolCallDelta> tool_calls = {};

  bool empty() const { return reasoning.empty() && content.empty() && tool_calls.empty(); }
};

// Used by one thread. All deltas together are the same, however the text was cut into pieces.
class OutputParser {
 public:
  virtual ~OutputParser() = default;
  // The text that came, and what it makes certain. Text is held back only while it may be the
  // beginning of a tag.
  virtual OutputDelta push(std::string_view text) = 0;
  // The answer has ended: what was held back.
  virtual OutputDelta finish() = 0;
  // Whether a tool call was found: then the answer's finish_reason is "tool_calls".
  virtual bool called_tools() const = 0;
};

// How an answer is to be read.
struct OutputParserOptions {
  std::string reasoning_parser = "";  // "qwen3", "deepseek_r1"; empty: none
  bool thinking = false;              // the prompt ended inside <think>
  std::string tool_call_parser = "";  // "hermes", "llama3_json", "mistral"; empty: none
  std::uint64_t seed = 0;             // of the ids of tool calls
};

// The names that exist, for messages and checks.
const std::vector<std::string>& reasoning_parser_names();
const std::vector<std::string>& tool_call_parser_names();

// Throws an Error for names that do not exist. Without any parser all text is content.
std::unique_ptr<OutputParser> make_output_parser(const OutputParserOptions& options);

}  // namespace nvllm::launcher
